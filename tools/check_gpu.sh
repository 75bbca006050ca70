#!/usr/bin/env bash
# check_gpu.sh - everything that needs a GPU, on the machine that has one: device, cache, kernel and model tests through CUDA and
# again through NVIDIA's OpenCL; each kernel and cache test shuffled; compute-sanitizer on small grids; what happens without NVRTC
# or cuBLASLt, with two processes at once, when the cache goes away or Ctrl-C comes (needs python3). Figures of models when
# PLUMB_GPU_MODELS names GGUF files. No network, no compiler: a folder of programs built elsewhere will do.
#
#   make check-gpu        or        bash tools/check_gpu.sh [folder of the build]
#
# PLUMB_GPU_JOBS programs at a time (4), each for PLUMB_GPU_LIMIT seconds at most (400: what stands still has failed, the rest goes
# on); PLUMB_GPU_ONLY: only steps whose name contains this; logs stay in PLUMB_GPU_LOGS. Every case goes into a JUnit file,
# PLUMB_GPU_REPORT (build/gpu-report.xml): what `plumb verify --tests` reads, and compares with that of another build. A case that
# the driver broke off (an address, an instruction) runs once more under memcheck, whose words stand in the log.
set -u
B=$(cd "${1:-build/release}" && pwd) || exit 1
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
JOBS=${PLUMB_GPU_JOBS:-4} ONLY=${PLUMB_GPU_ONLY:-} LIMIT=${PLUMB_GPU_LIMIT:-400}
REPORT=${PLUMB_GPU_REPORT:-build/gpu-report.xml}
W=$(mktemp -d) LOGS=${PLUMB_GPU_LOGS:-}
[ -n "$LOGS" ] && mkdir -p "$LOGS"
export XDG_CACHE_HOME=$W/cache CMOCKA_MESSAGE_OUTPUT=TAP PYTHONPATH=. PYTHONDONTWRITEBYTECODE=1 TMPDIR=$W PLUMB=$B/plumb
mkdir -p "$W/done" "$W/xml"
trap 'rm -rf "$W"' EXIT

# Reads a program's TAP: how many cases passed, failed, were skipped; a program that broke off counts as one failed.
judge() { # name rc seconds, output in $W/name
    local out=$W/$1 passed failed skipped planned mark=ok
    skipped=$(grep -cE '^(not )?ok .*# SKIP' "$out")
    passed=$(grep -E '^ok\b' "$out" | grep -cv '# SKIP')
    failed=$(grep -E '^not ok\b' "$out" | grep -cv '# SKIP')
    planned=$(grep -oE '^1\.\.[0-9]+' "$out" | head -1 | cut -c4-)
    if [ "$2" != 0 ] && [ "$failed" = 0 ]; then failed=1; fi
    if [ "$2" = 0 ] && [ "$((passed + failed + skipped))" != "${planned:-0}" ]; then failed=$((failed + 1)); fi
    [ "$failed" != 0 ] && mark=FAIL
    {
        echo "$mark $1: $passed passed, $failed failed, $skipped skipped ($3 s)"
        if [ "$failed" != 0 ]; then
            [ "$2" = 124 ] && echo "     ran out of time"
            grep -vE '^ok\b' "$out" | tail -25 | sed 's/^/     | /'
        fi
    } > "$W/line.$1"
    cat "$W/line.$1"
    echo "$passed $failed $skipped" > "$W/done/$1"
    junit "$1" "$2" "$failed"
    [ -n "$LOGS" ] && cp "$out" "$LOGS/$1.txt"
    return 0
}
# The same cases as JUnit; a program that broke off is a failed case of its own.
junit() { # name rc failed, output in $W/name
    awk -v group="$1" -v rc="$2" -v failed="$3" '
        function clean(s) { gsub(/[^ -~]/, "?", s); gsub(/&/, "\\&amp;", s); gsub(/</, "\\&lt;", s); gsub(/>/, "\\&gt;", s)
                            gsub(/"/, "\\&quot;", s); return s }
        function add(name, what) { printf "<testcase classname=\"%s\" name=\"%s\">%s</testcase>\n", group, clean(name), what }
        /^# SKIP / { since = substr($0, 8) } # cmocka has no room for a reason in its own line
        /^(not )?ok[ \t]/ {
            bad = /^not /
            name = $0
            sub(/^(not )?ok[ \t]*[0-9]*[ \t]*-?[ \t]*/, "", name)
            skipped = match(name, /#[ \t]*SKIP:?[ \t]*/)
            why = skipped ? substr(name, RSTART + RLENGTH) : ""
            if (skipped) name = substr(name, 1, RSTART - 1)
            sub(/[ \t]+$/, "", name)
            if (name == "") { name = why; why = since }
            since = ""
            if (skipped) add(name, "<skipped message=\"" clean(why) "\"/>")
            else if (bad) { add(name, "<failure/>"); seen++ }
            else add(name, "")
        }
        END { if (failed > seen) add("(process)", "<failure message=\"exit code " rc "\"/>") }' "$W/$1" > "$W/xml/$1"
}
# Which kernel and which access: the driver says neither.
ask_memcheck() { # name, command..., the program last; output in $W/name
    local out=$W/$1 program=${!#} only
    shift
    command -v compute-sanitizer > /dev/null && grep -q CUDA_ERROR_ "$out" || return 0
    case $program in "$B"/tests/*) ;; *) return 0 ;; esac
    case " $* " in *" compute-sanitizer "*) return 0 ;; esac
    only=$(sed -nE 's/^not ok [0-9]+ - //p' "$out" | head -1)
    timeout -k 5 "$LIMIT" "${@:1:$#-1}" ${only:+PLUMB_TEST_ONLY="$only"} compute-sanitizer --tool memcheck --report-api-errors no \
        --print-limit 3 "$program" 2>&1 | grep '^=========' | head -20 | sed 's/^=*/# memcheck:/' >> "$out"
}
step() { # name, command...
    local name=$1
    shift
    case $name in *"$ONLY"*) ;; *) return ;; esac
    while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n; done
    (
        start=$SECONDS
        timeout -k 5 "$LIMIT" "$@" > "$W/$name" 2>&1
        rc=$? seconds=$((SECONDS - start))
        [ $rc = 0 ] || ask_memcheck "$name" "$@"
        judge "$name" $rc $seconds
    ) &
}

"$B/plumb" devices > "$W/devices" 2>&1 || exit 1
cat "$W/devices"
if ! grep -qE '^cuda +[0-9]' "$W/devices"; then
    echo "no CUDA device here: nothing was checked"
    exit 1
fi
CL=$(awk '$1 == "opencl" && /NVIDIA/ { print $2; exit }' "$W/devices")
KERNELS=$(cd "$B/tests" && find kernels -name 'test_*' -type f -perm -u+x ! -name '*.*' ! -name test_gates | sort)
OTHERS="device/test_device jit/test_jit ops/test_witness model/test_attention model/test_device_faults
engine/test_two_models engine/test_ahead engine/test_windows engine/test_latent_service"
name() { local n=${1//test_/} && echo "${n//\//-}"; }

# Models take longest, so they begin, each case (f32, f16 cache, tensor cores) a step of its own.
models() { # kind of device, its name for tests, cases...
    local kind=$1 device=$2 c
    shift 2
    for c; do step "$kind-model-device-$c" env PLUMB_TEST_DEVICE="$device" PLUMB_TEST_ONLY="$c" "$B/tests/model/test_device"; done
}
models cuda cuda cuda cuda_half cuda_tensor_cores scans absent_is_an_error
if [ -n "$CL" ]; then models opencl opencl:"$CL" opencl opencl_half scans absent_is_an_error; fi
for t in $KERNELS $OTHERS; do
    step "cuda-$(name "$t")" env PLUMB_TEST_DEVICE=cuda "$B/tests/$t"
done
for t in $KERNELS $OTHERS; do
    if [ -n "$CL" ]; then step "opencl-$(name "$t")" env PLUMB_TEST_DEVICE=opencl:"$CL" "$B/tests/$t"; fi
done
[ -n "$CL" ] || echo "skip NVIDIA's OpenCL: it lists no device here"
sanitize() { # tool, test, patterns of cases...
    step "$1-$(name "$2")" env PLUMB_TEST_DEVICE=cuda PLUMB_TEST_SMALL=1 $RACE ${3:+PLUMB_TEST_ONLY="$3"} compute-sanitizer \
        --tool "$1" --error-exitcode 7 --report-api-errors no "$B/tests/$2"
}
step cuda-fft env PLUMB_TEST_DEVICE=cuda "$B/tests/audio/test_fft"
# which kernels each family takes: docs/families.md with this device's column
step cuda-families env PLUMB_TEST_DEVICE=cuda PLUMB_FAMILIES="${LOGS:-$W}/families.md" "$B/tests/model/test_families"
if command -v compute-sanitizer > /dev/null; then
    for tool in memcheck racecheck; do
        [ "$tool" = racecheck ] && RACE=PLUMB_TEST_RACECHECK=1 || RACE=
        for t in $KERNELS; do sanitize $tool "$t"; done
        # racecheck takes most of a minute for each model: there one, with quantised weights
        if [ $tool = racecheck ]; then
            PLUMB_TEST_MODELS=llama2-q sanitize $tool model/test_device cuda
        else
            sanitize $tool model/test_device cuda
        fi
    done
else
    echo "skip compute-sanitizer: not installed"
fi
for t in $KERNELS jit/test_jit ops/test_witness; do
    step "shuffled-$(name "$t")" env PLUMB_TEST_DEVICE=cuda PLUMB_TEST_SHUFFLE=$RANDOM PLUMB_TEST_SMALL=1 "$B/tests/$t"
done
if command -v python3 > /dev/null; then
    step cuda-trials env PLUMB_TEST_DEVICE=cuda python3 tests/device/test_trials.py
    step cuda-experts env PLUMB_TEST_DEVICE=cuda python3 tests/cmd/test_experts.py
else
    echo "skip trials: no python3"
fi
wait
"$B/plumb" devices --measure --limit 30 --only cuda # alone, now that nothing else runs
for m in ${PLUMB_GPU_MODELS:-}; do
    echo "== $m"
    "$B/plumb" bench -m "$m" --backend cuda -p 512 -n 128 -r 3 && r="" s="1 0 0" || r="<failure/>" s="0 1 0"
    echo "$s" > "$W/done/bench-$(basename "$m")"
    echo "<testcase classname=\"bench\" name=\"$(basename "$m")\">$r</testcase>" > "$W/xml/bench-$(basename "$m")"
done
mkdir -p "$(dirname "$REPORT")" && { echo "<testsuites><testsuite name=\"check-gpu\">" && cat "$W"/xml/* && echo "</testsuite></testsuites>"; } > "$REPORT" 2> /dev/null &&
    echo "cases: $REPORT"
cat "$W"/done/* 2> /dev/null | awk '{ p += $1; f += $2; s += $3 } END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 || p == 0 }'
