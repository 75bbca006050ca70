#!/bin/sh
# check_order.sh BUILD JOBS [NAMES] - the optimised suite three times: one program after the other in order, in a random order
# (the seed is printed), and every test alone. Then the verdicts are compared, test by test.
set -eu
build=$1 jobs=$2 names=${3:-} seed=${SEED:-$(date +%s)}
python=$build/venv/bin/python
[ -x "$python" ] || python=python3
suite() { # FILE FLAGS...
    file=$1
    shift
    # shellcheck disable=SC2086
    "$python" tools/run_tests.py --build "$build" --variant release --python --report "$build/$file.xml" "$@" $names > "$build/$file.log" 2>&1 ||
        echo "check-order: $file: $(tail -n 1 "$build/$file.log")"
}
suite order --jobs 1
suite order-shuffled --jobs "$jobs" --shuffle "$seed"
suite order-alone --jobs "$jobs" --shuffle "$seed" --alone
echo "check-order: --shuffle $seed"
"$build/plumb" verify --only tests,order --quick --report "$build/order-report" \
    --tests "$build/order.xml" --order "$build/order-shuffled.xml,$build/order-alone.xml"
