"""The test runner itself: what it must call a failure."""
import importlib.util

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
    assert verdicts("1..1\nok 1 - a\n1..1\nok 1 - b\n") == [("a", "passed"), ("b", "passed")]


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


@case
def other_lines_are_not_results():
    assert verdicts("1..1\n# ok 7 - not this\nokay\nok 1 - a\n") == [("a", "passed")]


main()
