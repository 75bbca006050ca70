"""The test runner itself: what it must call a failure."""
import importlib.util
import os
import subprocess
import tempfile
import types
import xml.etree.ElementTree as ET

from tests.tap import case, main

spec = importlib.util.spec_from_file_location("run_tests", "tools/run_tests.py")
runner = importlib.util.module_from_spec(spec)
spec.loader.exec_module(runner)


def verdicts(text, code=0, timed_out=False):
    program = runner.Program("p", [], "none")
    runner.judge(program, code, text, timed_out, 5)
    return [(name, verdict) for name, verdict, _ in program.cases]


@case
def results_are_counted():
    assert verdicts("1..3\nok 1 - a\nok 2 - b # SKIP no root\nnoise\nok 3 - c\n") == [
        ("a", "passed"), ("b", "skipped"), ("c", "passed")]
    assert verdicts("1..1\nnot ok 1 - a\n", 1) == [("a", "failed")]
    assert verdicts("1..0 # SKIP no device\n") == [("(all)", "skipped")]
    assert verdicts("1..1\nnot ok 1 # SKIP a\n") == [("a", "skipped")]  # cmocka: the name that it has when it runs
    assert verdicts("1..1\nok 1 # SKIP\n") == [("case 1", "skipped")]
    assert verdicts("1..1\nok 1 - a\n1..1\nok 1 - b\n") == [("a", "passed"), ("b", "passed")]


@case
def a_skip_has_its_reason():
    program = runner.Program("p", [], "none")
    runner.judge(program, 0, "1..3\n# SKIP no device here\nnot ok 1 # SKIP a\nnot ok 2 # SKIP b\nok 3 - c # SKIP no root\n", False, 5)
    assert program.cases == [("a", "skipped", "no device here"), ("b", "skipped", ""), ("c", "skipped", "no root")], program.cases


@case
def silence_and_shortness_are_failures():
    assert verdicts("") == [("(process)", "failed")]
    assert verdicts("all is well\n") == [("(process)", "failed")]
    assert verdicts("1..2\nok 1 - a\n") == [("a", "passed"), ("(process)", "failed")]
    assert verdicts("ok 1 - a\n") == [("a", "passed"), ("(process)", "failed")]


@case
def crashes_and_hangs_are_failures():
    assert verdicts("1..1\nok 1 - a\n", -11) == [("a", "passed"), ("(process)", "failed")]
    assert verdicts("1..1\nok 1 - a\n", 1) == [("a", "passed"), ("(process)", "failed")]  # a leak found at exit
    assert verdicts("1..1\nok 1 - a\n", -9, timed_out=True)[-1] == ("(process)", "failed")


TAP = {"norm": ("1..3\nok 1 - a\n# SKIP no such device here\nok 2 # SKIP b\nnot ok 3 - c < d\n", 1), "crash": ("1..2\nok 1 - a\n", 139), "short": ("1..2\nok 1 - a\n", 0),
       "fault": ("1..2\nok 1 - a\n# cuda: CUDA_ERROR_ILLEGAL_ADDRESS (700)\nnot ok 2 - d\n", 1)}


@case
def check_gpu_writes_what_verify_reads():
    """A folder of programs that are none: every case is in the JUnit file, and one that broke off is a failure."""
    with tempfile.TemporaryDirectory() as build:
        def script(name, text):
            path = os.path.join(build, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as f:
                f.write("#!/bin/sh\n" + text)
            os.chmod(path, 0o755)

        def program(name, text, code=0):
            script(name, f"cat <<'EOF'\n{text}EOF\nexit {code}\n")

        program("plumb", "cuda    0  NVIDIA None\n")
        script("bin/compute-sanitizer", 'for last; do :; done\necho "========= $(basename $last) $PLUMB_TEST_ONLY on $PLUMB_TEST_DEVICE"\n')
        for name, (text, code) in TAP.items():
            program(f"tests/kernels/test_{name}", text, code)
        report = os.path.join(build, "r.xml")
        out = subprocess.run(["bash", "tools/check_gpu.sh", build], capture_output=True, text=True,
                             env={**os.environ, "PLUMB_GPU_ONLY": "cuda-kernels", "PLUMB_GPU_REPORT": report,
                                  "PATH": os.path.join(build, "bin") + ":" + os.environ["PATH"]})
        assert out.returncode == 1 and "4 passed, 4 failed, 1 skipped" in out.stdout, out.stdout + out.stderr
        asked = [line.split("memcheck: ")[1] for line in out.stdout.splitlines() if "memcheck: " in line]
        assert asked == ["test_fault d on cuda"], out.stdout  # what the driver broke off, and nothing else
        cases = {(c.get("classname")[13:], c.get("name")): c[0].tag if len(c) else "pass" for c in ET.parse(report).iter("testcase")}
        assert cases == {("norm", "a"): "pass", ("norm", "b"): "skipped", ("norm", "c < d"): "failure", ("crash", "a"): "pass",
                         ("crash", "(process)"): "failure", ("short", "a"): "pass", ("short", "(process)"): "failure",
                         ("fault", "a"): "pass", ("fault", "d"): "failure"}, cases
        assert [c.get("message") for c in ET.parse(report).iter("skipped")] == ["no such device here"]


def ran(*outcomes):
    """How often a program with these outputs and exit codes runs, and the verdicts that stand."""
    program, runs = runner.Program("p", [], "none"), []

    def once(program, args, leaks=1):
        text, code = outcomes[len(runs)]
        assert leaks == (len(runs) < 3)
        runs.append(code)
        runner.judge(program, code, text, False, 5)

    real, runner.run_once = runner.run_once, once
    try:
        runner.run(program, types.SimpleNamespace())
    finally:
        runner.run_once = real
    return len(runs), [v for _, v, _ in program.cases]


@case
def only_a_broken_leak_checker_gets_more_runs():
    broke = "1..1\nok 1 - a\n==9==LeakSanitizer has encountered a fatal error.\n"
    assert ran((broke, 1), ("1..1\nok 1 - a\n", 0)) == (2, ["passed"])
    assert ran((broke, 1), ("1..1\nok 1 - a\n", 1)) == (2, ["passed", "failed"])
    assert ran((broke, 1), (broke, 1), ("1..1\nok 1 - a\n", 0)) == (3, ["passed"])
    assert ran((broke, 1), (broke, 1), (broke, 1), ("1..1\nok 1 - a\n", 0)) == (4, ["passed", "skipped"])
    assert ran((broke, 1), (broke, 1), (broke, 1), ("1..1\nok 1 - a\n", 1)) == (4, ["passed", "failed", "skipped"])
    assert ran(("1..1\nok 1 - a\nERROR: LeakSanitizer: detected memory leaks\n", 1)) == (1, ["passed", "failed"])
    assert ran((broke.replace("ok 1", "not ok 1"), 1)) == (1, ["failed"])


@case
def other_lines_are_not_results():
    assert verdicts("1..1\n# ok 7 - not this\nokay\nok 1 - a\n") == [("a", "passed")]


main()
