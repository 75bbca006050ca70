#!/bin/sh
# demo.sh PLUMB - fetches the small demo model, asks it one question, and says which kernels made the answer.
set -eu
plumb=$1 model=smollm2-135m-instruct question="What is the capital of France?"
witness=build/demo-witness.json
echo "demo: the model $model (98 MB, checked against its SHA-256)"
"$plumb" pull "$model"
echo "demo: $question"
"$plumb" run "$model" -p "$question" --temp 0 -n 64 --witness "$witness"
echo
echo "demo: kernels that ran (launches), from $witness:"
# One line for each kernel, without needing more than the shell has.
tr ',{}[]' '\n\n\n\n\n' < "$witness" | sed -n 's/^ *"\(kernel\|symbol\|name\|launches\|op\|kind\)": *"\{0,1\}\([^"]*\)"\{0,1\}.*/\1 \2/p' |
    awk '{ if ($1 == "launches") { print "  " label " x " $2; label = "" } else { v = $0; sub(/^[a-z]+ /, "", v); label = label (label == "" ? "" : " ") v } }'
echo "demo: done. Talk to it: $plumb run $model"
