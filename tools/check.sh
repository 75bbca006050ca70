#!/bin/sh
# check.sh BUILD JOBS [NAMES] - the whole test run: C tests and fuzz corpora under address and undefined sanitizers
# then everything again optimised, and the Python tests. clang, when it is there, reads every source and must stay silent.
set -eu
build=$1 jobs=$2 names=${3:-}
make --no-print-directory -j"$jobs" BUILD="$build" all tests replay-bins
if command -v clang > /dev/null 2>&1; then make --no-print-directory -j"$jobs" BUILD="$build" clang-check; fi
make --no-print-directory -j"$jobs" BUILD="$build" VARIANT=asan tests replay-bins "$build/asan/plumb"
python=$build/venv/bin/python
[ -x "$python" ] || python=python3
# Public cases that are fetched, never committed; without them their tests are skipped and say so.
"$python" tools/fetch_vocab_cases.py || echo "plumb: the tokenizers' published cases could not be fetched" >&2
"$python" tools/fetch_templates.py || echo "plumb: the published chat templates could not be fetched" >&2
exec "$python" tools/run_tests.py --build "$build" --variant asan --variant release --python --jobs "$jobs" $names
