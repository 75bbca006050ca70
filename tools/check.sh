#!/bin/sh
# check.sh BUILD JOBS [NAMES] - the whole test run: C tests and fuzz corpora under address and undefined sanitizers
# (built with clang when it is there), then everything again optimised (gcc), and the Python tests.
set -eu
build=$1 jobs=$2 names=${3:-}
asan_cc=$(command -v clang > /dev/null 2>&1 && echo clang || echo "${CC:-gcc}")
make --no-print-directory -j"$jobs" BUILD="$build" all tests replay-bins
make --no-print-directory -j"$jobs" BUILD="$build" VARIANT=asan CC="$asan_cc" tests replay-bins
python=$build/venv/bin/python
[ -x "$python" ] || python=python3
exec "$python" tools/run_tests.py --build "$build" --variant asan --variant release --python --jobs "$jobs" $names
