#!/usr/bin/env bash
# check_gpu.sh - everything that needs a GPU, on the machine that has one: device, cache, kernel and model tests on every
# device present (CUDA, and the same card again through its OpenCL driver), compute-sanitizer on the small ones, the
# measured bandwidth. Figures of models when PLUMB_GPU_MODELS names GGUF files. No network.
#
#   make check-gpu        or        sh tools/check_gpu.sh [folder of the build]
set -u
B=${1:-build/release}
fail=0
note() { printf '%s\n' "$*"; }
run() { # name, command...
    name=$1; shift
    if "$@" > /tmp/plumb-check-gpu.$$ 2>&1; then
        note "ok   $name"
        grep -E "^# |SKIPPED \]" /tmp/plumb-check-gpu.$$ | sort | uniq | sed 's/^/     /'
    else
        note "FAIL $name"; tail -40 /tmp/plumb-check-gpu.$$; fail=$((fail + 1))
    fi
    rm -f /tmp/plumb-check-gpu.$$
}
XDG_CACHE_HOME=$(mktemp -d); export XDG_CACHE_HOME
"$B/plumb" devices --measure || exit 1
if ! "$B/plumb" devices --json | grep -q '"kind": "cuda"' || "$B/plumb" devices --json | grep -q 'CUDA library .* was not found'; then
    note "no CUDA driver here: nothing was checked"; exit 1
fi
TESTS="device/test_device jit/test_jit kernels/test_rows kernels/test_linear kernels/test_attention model/test_device"
for t in $TESTS; do run "cuda   $t" env PLUMB_TEST_DEVICE=cuda "$B/tests/$t"; done
for t in kernels/test_rows kernels/test_linear kernels/test_attention; do
    run "opencl $t" env PLUMB_TEST_DEVICE=opencl "$B/tests/$t"
done
if command -v compute-sanitizer > /dev/null; then
    for t in kernels/test_rows kernels/test_attention; do
        for tool in memcheck racecheck; do
            run "compute-sanitizer $tool $t" env PLUMB_TEST_DEVICE=cuda compute-sanitizer --tool "$tool" --error-exitcode 7 \
                "$B/tests/$t"
        done
    done
else
    note "skip compute-sanitizer: not installed"
fi
for m in ${PLUMB_GPU_MODELS:-}; do
    note "== $m"
    "$B/plumb" bench -m "$m" --backend cuda -p 512 -n 128 -r 3 || fail=$((fail + 1))
done
rm -rf "$XDG_CACHE_HOME"
note "$fail failed"
[ "$fail" = 0 ]
