#!/usr/bin/env python3
"""Runs test programs in parallel, each file a process of its own, and judges their TAP output.

Programs are C tests (build/<variant>/tests/<folder>/test_*), fuzz corpora replayed (build/<variant>/fuzz/replay_*) and
Python tests (tests/<folder>/test_*.py). A process that crashes, runs out of time, prints no plan or fewer results than
planned has failed. The last line is exactly "N passed, N failed", with ", N skipped" when there are any.

--alone runs every case of every program in a process of its own (cmocka's test filter, set by a small library that is loaded
before; PLUMB_TEST_ONLY in Python tests): a case that needs what another one left behind fails here.
"""
import argparse
import glob
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULT = re.compile(r"^(not ok|ok)\b\s*(\d+)?\s*-?\s*(.*)$")
PLAN = re.compile(r"^1\.\.(\d+)\s*(?:#\s*(.*))?$")
SKIP = re.compile(r"#\s*skip\b:?\s*(.*)$", re.I)
TIMEOUT = re.compile(r"test-timeout:\s*(\d+)")
SANITIZED = re.compile(r"test-sanitized: yes")
SHARED = re.compile(r"test-kernels: shared")
VARIANTS = re.compile(r"test-variants:\s*([a-z ,]+)")
OUTPUT_SHOWN = 6000


class Program:
    """One test file: what to run and, afterwards, its cases as (name, verdict, detail)."""

    def __init__(self, name, argv, source, env=None):
        self.name, self.argv, self.source, self.env = name, argv, source, env or {}
        self.cases, self.output, self.seconds = [], "", 0.0

    def marker(self, pattern):
        """What the first lines of the source say about how it wants to be run."""
        try:
            with open(self.source, encoding="utf-8", errors="replace") as f:
                return pattern.search(f.read(4000))
        except OSError:
            return None

    def timeout(self, default):
        found = self.marker(TIMEOUT)
        return max(default, int(found.group(1))) if found else default

    def after(self):
        """The optimised program that leaves the kernels this sanitized one takes from the shared cache: a driver's compiler is
        several times slower in a sanitized process, and is not what is looked at there. None: it may begin at any time."""
        variant, _, rest = self.name.partition("/")
        return "release/" + rest if variant == "asan" and self.marker(SHARED) else None

    def runs_as(self, variant):
        found = self.marker(VARIANTS)
        return found is None or variant in re.split(r"[ ,]+", found.group(1))


def discover(args):
    programs = []
    for variant in args.variant:
        base = os.path.join(args.build, variant)
        san = {"PLUMB": os.path.join(base, "plumb")}
        for path in sorted(glob.glob("tests/*/test_*.c")):
            binary = os.path.join(base, path[:-2])
            program = Program(f"{variant}/{path[6:-2]}", [binary], path, san)
            if program.runs_as(variant):
                programs.append(program)
        for path in sorted(glob.glob("fuzz/fuzz_*.c")):
            target = os.path.basename(path)[5:-2]
            corpus = os.path.join("fuzz", "corpus", target)
            binary = os.path.join(base, "fuzz", "replay_" + target)
            programs.append(Program(f"{variant}/fuzz/{target}", [binary, corpus], path, san))
    if args.python:
        env = {"PLUMB": os.path.join(args.build, "plumb"), "PLUMB_LIB": os.path.join(args.build, "libplumb.so")}
        for path in sorted(glob.glob("tests/*/test_*.py")):
            programs.append(Program(path[6:-3], [sys.executable, path], path, env))
            sanitized = os.path.join(args.build, "asan", "plumb")
            if "asan" in args.variant and programs[-1].marker(SANITIZED):
                programs.append(Program("asan/" + path[6:-3], [sys.executable, path], path, dict(env, PLUMB=sanitized)))
    return [p for p in programs if all(word in p.name for word in args.filter)]


def read_tap(text):
    """Cases and the number planned (None: no plan). Several plans add up: cmocka prints one per group."""
    cases, planned, notes, since = [], None, [], ""
    for line in text.split("\n"):
        plan = PLAN.match(line)
        if plan:
            planned = (planned or 0) + int(plan.group(1))
            if int(plan.group(1)) == 0:
                cases.append(("(all)", "skipped", plan.group(2) or "no cases"))
            continue
        result = RESULT.match(line)
        if not result:
            reason = SKIP.match(line)  # cmocka's own line has no room for one
            since = reason.group(1) if reason else since
            notes.append(line)
            continue
        skip = SKIP.search(result.group(3))
        why = skip.group(1) if skip else ""
        name = SKIP.sub("", result.group(3)).strip()
        if not name:  # cmocka: "not ok 2 # SKIP name"
            name, why = why or f"case {result.group(2)}", since
        verdict = "skipped" if skip else "failed" if result.group(1) == "not ok" else "passed"
        cases.append((name, verdict, why))
        since = ""
    return cases, planned


def judge(program, code, text, timed_out, limit):
    cases, planned = read_tap(text)
    real = [c for c in cases if c[0] != "(all)"]
    trouble = None
    if timed_out:
        trouble = f"ran past its limit of {limit} s"
    elif code < 0:
        trouble = f"killed by signal {-code} ({signal.Signals(-code).name})"
    elif planned is None:
        trouble = f"printed no test plan (exit code {code})"
    elif len(real) != planned:
        trouble = f"planned {planned} cases but reported {len(real)} (exit code {code})"
    elif code != 0 and not any(v == "failed" for _, v, _ in cases):
        trouble = f"exit code {code} although every case passed"
    if trouble:
        cases.append(("(process)", "failed", trouble))
    program.cases, program.output = cases, text


CHECKER_BROKE = "LeakSanitizer has encountered a fatal error"


def run(program, args):
    """Once; again when every case passed and the leak checker itself broke down, which says nothing of the program; when it does
    so three times, without it: that nothing leaked is skipped then."""
    run_once(program, args)
    for leaks in (1, 1, 0):
        if CHECKER_BROKE not in program.output or [n for n, v, _ in program.cases if v == "failed"] != ["(process)"]:
            return
        print(f"     {program.name}: the leak checker itself failed; running the program again")
        run_once(program, args, leaks)
    program.cases.append(("(leaks)", "skipped", "the leak checker broke down three times"))


def run_once(program, args, leaks=1):
    limit = program.timeout(args.timeout)
    scratch = os.path.abspath(os.path.join(args.build, "tmp", program.name.replace("/", "-")))
    shutil.rmtree(scratch, ignore_errors=True)
    os.makedirs(scratch)
    env = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP", TMPDIR=scratch, PYTHONDONTWRITEBYTECODE="1",
               PYTHONPATH=ROOT, ASAN_OPTIONS=f"detect_leaks={leaks}:abort_on_error=0:allocator_may_return_null=1",
               UBSAN_OPTIONS="print_stacktrace=1",
               LSAN_OPTIONS=f"suppressions={ROOT}/tools/lsan.supp:print_suppressions=0", LC_ALL="C.UTF-8", **program.env)
    start, timed_out = time.monotonic(), False
    try:
        proc = subprocess.Popen(program.argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, start_new_session=True)
    except OSError as e:
        program.cases, program.output = [("(process)", "failed", f"cannot start: {e}")], ""
        return
    try:
        out, _ = proc.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        try:  # whatever the test left running
            os.killpg(proc.pid, signal.SIGKILL)
        except OSError:
            pass
    if timed_out:
        out, _ = proc.communicate()
    program.seconds = time.monotonic() - start
    shutil.rmtree(scratch, ignore_errors=True)
    judge(program, proc.returncode, out.decode("utf-8", "replace"), timed_out, limit)


FILTER = """#include <stdlib.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
__attribute__((constructor)) static void only(void) {
    const char *name = getenv("PLUMB_TEST_ONLY");
    if (name != NULL) cmocka_set_test_filter(name);
}
"""


def filter_library(build):
    """A library that tells cmocka which test to run."""
    source, library = os.path.join(build, "tmp", "only_one.c"), os.path.join(build, "tmp", "only_one.so")
    os.makedirs(os.path.dirname(source), exist_ok=True)
    with open(source, "w", encoding="utf-8") as f:
        f.write(FILTER)
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", library, source, "-lcmocka"], check=True)
    return library


def run_alone(program, args):
    """Every case by itself, under the name it has among the others. Programs of one case, and fuzz corpora, as they are."""
    run(program, args)
    names = [n for n, v, _ in program.cases if n not in ("(all)", "(process)")]
    if len(names) < 2 or "/fuzz/" in program.name or len(set(names)) < len(names):
        return
    cases, seconds, said = [], program.seconds, ""
    for name in names:
        python = program.source.endswith(".py")
        env = dict(program.env, PLUMB_TEST_ONLY=name, **({} if python else {"LD_PRELOAD": args.only_library}))
        one = Program(program.name, program.argv, program.source, env)
        run(one, args)
        mine = [c for c in one.cases if c[0] in (name, "(process)")]
        cases += mine if any(c[0] == name for c in mine) else mine + [(name, "failed", "did not run when it was alone")]
        seconds += one.seconds
        said += one.output if any(v == "failed" for _, v, _ in mine) else ""
    program.cases, program.seconds, program.output = cases, seconds, said


def report(program, lock):
    failed = [c for c in program.cases if c[1] == "failed"]
    with lock:
        counts = {v: sum(c[1] == v for c in program.cases) for v in ("passed", "failed", "skipped")}
        extra = "".join(f", {n} {v}" for v, n in counts.items() if n and v != "passed")
        print(f"{'FAIL' if failed else 'ok  '} {program.name}: {counts['passed']} passed{extra} ({program.seconds:.1f} s)")
        for name, verdict, detail in program.cases:
            if verdict == "skipped":
                print(f"     skipped {name}: {detail or 'no reason given'}")
            if verdict == "failed":
                print(f"     failed {name}{': ' + detail if detail else ''}")
        if failed:
            text = program.output
            if len(text) > OUTPUT_SHOWN:
                text = text[:OUTPUT_SHOWN // 2] + "\n[...]\n" + text[-OUTPUT_SHOWN // 2:]
            print("     --- output of " + " ".join(program.argv))
            print("".join(f"     | {line}\n" for line in text.splitlines()), end="")
        sys.stdout.flush()


def write_junit(programs, path):
    clean = lambda s: re.sub(r"[^\t\n\r\x20-\uD7FF\uE000-\uFFFD]", "?", s)
    top = ET.Element("testsuites")
    for p in programs:
        suite = ET.SubElement(top, "testsuite", name=p.name, tests=str(len(p.cases)), time=f"{p.seconds:.3f}",
                              failures=str(sum(c[1] == "failed" for c in p.cases)),
                              skipped=str(sum(c[1] == "skipped" for c in p.cases)))
        for name, verdict, detail in p.cases:
            case = ET.SubElement(suite, "testcase", classname=p.name, name=clean(name))
            if verdict == "failed":
                ET.SubElement(case, "failure", message=clean(detail)).text = clean(p.output[-20000:])
            if verdict == "skipped":
                ET.SubElement(case, "skipped", message=clean(detail))
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    ET.ElementTree(top).write(path, encoding="utf-8", xml_declaration=True)


def load_times(path):
    try:
        with open(path, encoding="utf-8") as f:
            return {str(k): float(v) for k, v in json.load(f).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("filter", nargs="*", help="run only programs whose name contains all of these")
    ap.add_argument("--build", default="build")
    ap.add_argument("--variant", action="append", default=[], help="flavour whose C tests run; may be repeated")
    ap.add_argument("--python", action="store_true", help="also run the Python tests")
    ap.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    ap.add_argument("--timeout", type=int, default=240, help="seconds for each program (default 240)")
    ap.add_argument("--shuffle", type=int, metavar="SEED", help="random order from this seed")
    ap.add_argument("--alone", action="store_true", help="every case of every program in a process of its own")
    ap.add_argument("--report", default=None, help="JUnit XML (default BUILD/test-report.xml)")
    args = ap.parse_args()
    os.chdir(ROOT)
    args.build = os.path.abspath(args.build)

    programs = discover(args)
    times_path = os.path.join(args.build, "test-times.json")
    times = load_times(times_path)
    if args.shuffle is not None:
        random.Random(args.shuffle).shuffle(programs)
    else:  # the long ones first, so that no core waits at the end; where nothing is known, those that may take long
        programs.sort(key=lambda p: -times.get(p.name, p.timeout(args.timeout) / 8))
    if args.alone:
        args.only_library = filter_library(args.build)
    queue, lock, started = list(programs), threading.Lock(), time.monotonic()
    after = {p.name: p.after() for p in programs} if args.shuffle is None else {}
    pending = {p.name for p in programs}

    def worker():
        while True:
            with lock:
                if not queue:
                    return
                ready = [p for p in queue if after.get(p.name) not in pending]
                program = (ready or queue)[0]
                queue.remove(program)
            (run_alone if args.alone else run)(program, args)
            with lock:
                pending.discard(program.name)
            report(program, lock)

    threads = [threading.Thread(target=worker) for _ in range(max(1, args.jobs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()

    times.update({p.name: round(p.seconds, 2) for p in programs})
    with open(times_path, "w", encoding="utf-8") as f:
        json.dump(times, f, indent=0, sort_keys=True)
    write_junit(programs, args.report or os.path.join(args.build, "test-report.xml"))
    counts = {v: sum(c[1] == v for p in programs for c in p.cases) for v in ("passed", "failed", "skipped")}
    slow = sorted(programs, key=lambda p: -p.seconds)[:5]
    print(f"{len(programs)} programs in {time.monotonic() - started:.0f} s; longest: " +
          ", ".join(f"{p.name} {p.seconds:.0f} s" for p in slow))
    if not programs:
        print("no test program matches " + " ".join(args.filter))
    print(f"{counts['passed']} passed, {counts['failed']} failed" + (f", {counts['skipped']} skipped" if counts["skipped"] else ""))
    return 1 if counts["failed"] or not programs else 0


if __name__ == "__main__":
    sys.exit(main())
