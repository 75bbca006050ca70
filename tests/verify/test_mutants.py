"""Is the checker itself right? A build with one planted fault at a time (build/release/plumb-faults, src/base/fault.h) must get
the right verdict from the right tool, and the table in docs/verify.md is what this test has proved:
    python3 tests/verify/test_mutants.py --write     # writes the table after every row was proved
test-timeout: 900"""
import glob
import json
import os
import platform
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
from tests import tap  # noqa: E402
from tests.cmd.support import PLUMB, WORK, tiny  # noqa: E402

FAULTY = os.path.join(os.path.dirname(os.path.realpath(PLUMB)), "plumb-faults")
DOCS, BEGIN, END = "docs/verify.md", "<!-- faults: begin -->\n", "<!-- faults: end -->\n"
# Scalar code gives the same bits on every machine, so the verdicts are the same too.
# More than a chunk of attention (128 tokens), and an answer that crosses a page (32).
LONG = "the hand and the other and then the hand again in the hall where the old bell hangs and rings at ten, and nobody knows why or when it began, but all who hear it stand still and listen to it, then go on"
os.environ["XDG_CACHE_HOME"] = os.path.join(WORK, "cache")


def run(*args, env=None):
    r = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=600, env={**os.environ, **(env or {})})
    return r.returncode, r.stdout + r.stderr


def ab(fault, *flags, base=None, arm=None, side="arm"):
    model = tiny()
    base = base or (FAULTY if side == "base" else PLUMB)
    arm = arm or (FAULTY if side == "arm" else PLUMB)
    return run(PLUMB, "ab", "--base", f"{base} generate -m {model} --ignore-eos -t 1 --isa scalar", "--arm", f"{arm} generate -m {model} --ignore-eos -t 1 --isa scalar",
               f"--{side}-env", f"PLUMB_FAULT={fault}", "-p", LONG, "-n", 48, *flags)


def x86(check):
    """Rows about one instruction set falling back to another."""
    def checked(fault):
        if platform.machine() != "x86_64" or "avx2" not in open("/proc/cpuinfo").read():
            raise tap.Skip("this machine has no AVX2")
        return check(fault)
    return checked


def counters(fault, *flags, engine=""):
    if run(PLUMB, "serve", "--help")[0] != 0:
        raise tap.Skip("this build has no server")
    serve = f"serve -m {tiny()} -c 512 --parallel 4 -t 1 {engine}"
    return run(PLUMB, "ab", "--counters", "--base", f"{PLUMB} {serve}", "--arm", f"{FAULTY} {serve}", "--arm-env", f"PLUMB_FAULT={fault}",
               "-p", LONG, "-p", "the hand", "-n", 24, *flags)


def item(name):
    def check(fault):
        code, out = run(FAULTY, "verify", "--item", name, "--quick", "--backend", "cpu", "-m", tiny(), "--report", WORK, env={"PLUMB_FAULT": fault})
        result = json.loads(out[out.index("{"):out.rindex("}") + 1]) if "{" in out else {"status": "fail", "summary": out}
        if result["status"] == "skipped" and name == "jit":
            raise tap.Skip(result["summary"])
        return result["status"], result["summary"]
    return check


def whole(name):
    """The item as the pass runs it: in a process of its own."""
    def check(fault):
        out = os.path.join(WORK, "pass-" + fault)
        run(FAULTY, "verify", "--only", name, "--quick", "--backend", "cpu", "-m", tiny(), "--report", out, env={"PLUMB_FAULT": fault})
        i = json.load(open(os.path.join(out, "verify.json")))["items"][0]
        return i["status"], i["summary"]
    return check


def identical(_fault):
    copy = os.path.join(WORK, "plumb-copy")
    shutil.copy(PLUMB, copy)
    return ab("none", base=PLUMB, arm=copy)


def slower(fault):
    """Its speed beside a report of the build without the fault. A busy machine widens the intervals until nothing can be told
    apart: asked again until it is said, ten times at most."""
    base, args = os.path.join(WORK, "speed"), ("--backend", "cpu", "-t", "1", "-m", tiny(), "--only", "bench", "--report")
    for _ in range(10):
        code, out = run(PLUMB, "verify", *args, base)
        assert code == 0, out
        run(FAULTY, "verify", *args, base + "-now", "--against", os.path.join(base, "verify.json"), env={"PLUMB_FAULT": fault})
        i = json.load(open(os.path.join(base + "-now", "verify.json")))["items"][-1]
        if i["status"] != "pass":
            break
    return i["status"], i["summary"]


VERDICT = {0: "EQUAL (0)", 1: "DIFFERS (1)", 2: "INCONCLUSIVE (2)"}
AB, COUNTERS = "`ab`", "`ab --counters`"
OPERATIONS, JIT, BACKEND, OUTPUTS = "`verify`: operations", "`verify`: jit", "`verify`: backend", "`verify`: outputs"
AGAINST = "`verify --against` a report"
# fault, what is planted, [(tool, how it is asked, expected, words that must be said)]
ROWS = [
    ("none", "nothing: the same build, a control", [
        (AB, ab, 0, ()), (AB + ", log-probabilities too", lambda f: ab(f, "--tolerance", "logprob=0.05"), 0, ("as allowed",)), (COUNTERS, counters, 0, ()), (OPERATIONS, item("operations"), "pass", ())]),
    ("skipped-launch", "every seventh launch of gate and up does not happen", [
        (AB, ab, 1, ()), (COUNTERS, counters, 1, ("no whole number", "glu"))]),
    ("merge-log-base", "parts of a long context merged in the wrong logarithm", [
        (AB, ab, 1, ()), (OPERATIONS, item("operations"), "fail", ("attention",))]),
    ("stale-page", "the first token of a new page is not written", [
        (AB, ab, 1, ()), (OPERATIONS, item("operations"), "fail", ("attention",))]),
    ("short-chunk", "attention sees one token less", [
        (AB, ab, 0, ("moved by at most",)), (AB + ", log-probabilities too", lambda f: ab(f, "--tolerance", "logprob=0.05"), 1, ("more than",)), (OPERATIONS, item("operations"), "fail", ("attention",))]),
    ("weak-key", "the types are missing from the key of the kernel cache", [
        (JIT, item("jit"), "fail", ())]),
    ("sampler-bit", "the sampler's choice is off by one bit, once in five tokens", [
        (AB, ab, 1, ("token",))]),
    ("uncounted", "launches of products are not counted", [
        (AB + ", kernel expected", lambda f: ab(f, "--expect-kernel", "linear=gemv"), 2, ("fell back",)),
        (COUNTERS, counters, 1, ("linear", "never on arm")), (OPERATIONS, item("operations"), "fail", ("no launch was counted",))]),
    ("gathered", "attention takes the composed way, as below a dispatch floor that is too high, and gives the same answers", [
        (AB, ab, 0, ("composed/gather",)), (AB + ", kernel expected", lambda f: ab(f, "--expect-kernel", "attention=/attention"), 2, ("fell back",)),
        (COUNTERS, counters, 1, ("gathered on the arm alone",))]),
    ("predicate", "a test of shapes says no to everything, so that all products fall back", [
        (COUNTERS, x86(lambda f: counters(f, engine="--isa avx2")), 1, ("declined on arm alone", "linear", "no such shape"))]),
    ("one-slot", "a second reason to decline is counted in the place of the first", [
        (COUNTERS + ", two reasons on both sides", x86(lambda f: counters(f, engine="--isa avx2 --disable-kernel linear=avx2 --attn cascade")), 1, ("declined on base alone",)),
        ("the same without the fault", x86(lambda f: counters("none", engine="--isa avx2 --disable-kernel linear=avx2 --attn cascade")), 0, ("EQUAL",))]),
    ("moe-expert", "experts are changed, and the model has none: it never reaches what was changed", [
        (AB, ab, 0, ()), (AB + ", kernel expected", lambda f: ab(f, "--expect-kernel", "moe="), 2, ("fell back", "moe=")),
        (OPERATIONS, item("operations"), "fail", ("moe",))]),
    ("lost-state", "a recurrent layer forgets its state from step to step, and the model has none", [
        (AB, ab, 0, ()), (OPERATIONS, item("operations"), "fail", ("ssm_update",))]),
    ("slow-product", "products are computed three times: the answers are right", [
        (AB, ab, 0, ()), (COUNTERS, counters, 0, ("twice as often or more in a step of the arm",)), (AGAINST, slower, "fail", ("of its former speed",))]),
    ("identical", "the arm is a copy of the baseline", [
        (AB, identical, 2, ("one build",))]),
    ("empty", "no token is generated", [
        (AB, ab, 2, ("generated 0 tokens",))]),
    ("no-backend-line", "the process does not say what it runs on", [
        (AB, ab, 2, ("no backend line",)), (BACKEND, item("backend"), "fail", ("no backend line",))]),
    ("metrics-off", "the server answers 501", [
        (COUNTERS, counters, 2, ("501", "switched off"))]),
    ("unsteady", "the baseline's choices depend on the clock", [
        (AB, lambda f: ab(f, side="base"), 2, ("does not reproduce itself",))]),
    ("crash", "an operation ends the process", [
        (AB, ab, 2, ("exit code 134",)), (OPERATIONS, whole("operations"), "fail", ("exit code 134",))]),
]


def prove(fault, tools):
    if not os.path.exists(FAULTY):
        raise tap.Skip("there is no plumb-faults beside plumb (make tests builds it)")
    skipped = None
    for tool, ask, expected, words in tools:
        try:
            got, said = ask(fault)
        except tap.Skip as why:
            skipped = why
            continue
        assert got == expected, (fault, tool, got, said[-3000:])
        for w in words:
            assert w in said, (fault, tool, w, said[-3000:])
    if skipped:
        raise skipped


def table():
    out = "| planted fault | which is | what is said, by which tool |\n|---|---|---|\n"
    for fault, what, tools in ROWS:
        said = "; ".join(f"{tool}: {VERDICT.get(expected, expected)}" + (f", \"{', '.join(words)}\"" if words else "")
                         for tool, _, expected, words in tools)
        out += f"| {fault} | {what} | {said} |\n"
    return out


def the_table_in_the_docs_is_this_one():
    text = open(DOCS, encoding="utf-8").read()
    assert BEGIN + table() + END in text, "python3 tests/verify/test_mutants.py --write"


def every_planted_fault_is_in_the_table_and_caught():
    """What src plants is what is tried, and of each at least one tool says that something is wrong."""
    planted = {name for f in glob.glob("src/*/*.c") for name in re.findall(r'pl_fault(?:_now)?\("([a-z-]+)"', open(f, encoding="utf-8").read())}
    tried = {fault for fault, _, _ in ROWS} - {"none", "identical"}  # no fault, and a copy of the program
    assert planted == tried, planted ^ tried
    assert {f for f, _, tools in ROWS if any(expected not in (0, "pass") for _, _, expected, _ in tools)} == {f for f, _, _ in ROWS} - {"none"}


def main():
    if "--write" in sys.argv:
        for fault, _, tools in ROWS:
            prove(fault, tools)
        text = open(DOCS, encoding="utf-8").read()
        text = text[:text.index(BEGIN) + len(BEGIN)] + table() + text[text.index(END):]
        open(DOCS, "w", encoding="utf-8").write(text)
        return
    for fault, _, tools in ROWS:
        check = lambda fault=fault, tools=tools: prove(fault, tools)
        check.__name__ = fault.replace("-", "_")
        tap.case(check)
    tap.case(every_planted_fault_is_in_the_table_and_caught)
    tap.case(the_table_in_the_docs_is_this_one)
    tap.main()


if __name__ == "__main__":
    main()
