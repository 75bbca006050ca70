#!/bin/sh
# soak.sh BUILD JOBS MINUTES - runs the suite in a new random order until the time is over; stops at the first failure
# and names the seed.
set -eu
# Random programs of the plan and the page pool run longer here than in make check.
export PLUMB_STEPS="${PLUMB_STEPS:-100000}"
build=$1 jobs=$2 end=$(($(date +%s) + $3 * 60)) rounds=0
make --no-print-directory -j"$jobs" BUILD="$build" all tests replay-bins
make --no-print-directory -j"$jobs" BUILD="$build" VARIANT=asan tests replay-bins "$build/asan/plumb"
# The server first, for a third of the time, among clients of every kind, under address and then thread sanitizers.
make --no-print-directory -j"$jobs" BUILD="$build" VARIANT=tsan "$build/tsan/plumb"
sixth=$(awk "BEGIN { print $3 / 6 }")
for variant in asan tsan; do
    "$build/venv/bin/python" tools/soak_server.py --plumb "$build/$variant/plumb" --minutes "$sixth" --clients 256 --seed "$(date +%s)"
done
while [ "$(date +%s)" -lt "$end" ]; do
    seed=$(date +%s)
    if ! "$build/venv/bin/python" tools/run_tests.py --build "$build" --variant asan --variant release --python \
        --jobs "$jobs" --shuffle "$seed" > "$build/soak.log" 2>&1; then
        cat "$build/soak.log"
        echo "soak: round $((rounds + 1)) failed, order --shuffle $seed"
        exit 1
    fi
    rounds=$((rounds + 1))
    echo "soak: round $rounds (--shuffle $seed): $(tail -n 1 "$build/soak.log")"
done
