#!/bin/sh
# fuzz.sh DIR NAME RUNS SEED - runs each libFuzzer binary in DIR (or the one called fuzz_NAME) for RUNS executions,
# starting from the committed corpus. New inputs go to build/fuzz-corpus, findings to build/fuzz-findings.
set -eu
dir=$1 only=$2 runs=$3 seed=$4 ran=0
for bin in "$dir"/fuzz_*; do
    [ -x "$bin" ] && [ -f "$bin" ] || continue
    case $bin in *.o | *.d) continue ;; esac
    name=${bin##*/fuzz_}
    [ -z "$only" ] || [ "$only" = "$name" ] || continue
    work=build/fuzz-corpus/$name
    mkdir -p "$work" build/fuzz-findings
    seeds=fuzz/corpus/$name
    [ -d "$seeds" ] || seeds=
    dict=fuzz/$name.dict
    [ -f "$dict" ] && dict=-dict=$dict || dict=
    echo "fuzz: $name, $runs runs"
    "$bin" -runs="$runs" ${seed:+-seed=$seed} $dict -max_len=65536 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix=build/fuzz-findings/"$name"- "$work" $seeds
    ran=$((ran + 1))
done
[ "$ran" -gt 0 ] || { echo "fuzz: no target${only:+ called $only}" >&2; exit 1; }
echo "fuzz: $ran targets, no finding"
