#!/bin/sh
# demo.sh PLUMB - fetches the small demo model, asks it one question, and says which kernels made the answer.
set -eu
plumb=$1 model=smollm2-135m-instruct question="What is the capital of France?"
echo "demo: the model $model (98 MB, checked against its SHA-256)"
"$plumb" pull "$model"
echo "demo: $question"
"$plumb" run "$model" --system "You are a helpful assistant." -p "$question" --temp 0 -n 64 --verbose < /dev/null
echo "demo: the lines above that name kernels say what made each token; talk to it: $plumb run $model"
