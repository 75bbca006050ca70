"""Instructions that the hot kernels execute, beside stored counts: a regression seen without a clock.

bench/count_kernels.c calls each kernel once; valgrind counts inside that call, for the AVX2 table (it knows no AVX-512: the
code of those is counted by test_vector_code.py) and the plain one. The counts belong to one compiler and one C library;
after a change that is meant to cost, or with others, write them anew:  python3 tests/cpu/test_instructions.py --write
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.getcwd())
from tests.build import make  # noqa: E402
from tests.cpu import stored  # noqa: E402
from tests.tap import Skip, case, main  # noqa: E402

PROGRAM = "build/release/bench/count_kernels"
STORED = "tests/golden/cpu_instructions.json"
TOLERANCE = 0.02  # repeated runs give the same counts
TABLES = ("avx2", "scalar")


def prepare():
    if shutil.which("valgrind") is None:
        raise Skip("valgrind is not installed")
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        if "avx2" not in f.read():
            raise Skip("this machine has no AVX2")
    make(PROGRAM)


def measure(table, *more):
    """Instructions of each call, by its name."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", "--toggle-collect=counted",
                   "--dump-after=counted", PROGRAM, table, *more]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "LD_BIND_NOW": "1"})
        assert done.returncode == 0, done.stderr.decode()[-800:]
        names, counts = done.stdout.decode().splitlines(), []
        for i in range(1, len(glob.glob(f"{folder}/out.*")) + 1):
            with open(f"{folder}/out.{i}", encoding="utf-8") as f:
                text = f.read()
            if "--dump-after=counted" in text:
                counts.append(int(re.search(r"^totals: (\d+)", text, flags=re.M).group(1)))
    assert len(names) == len(counts) == len(set(names)) and min(counts) > 0, f"{len(names)} calls, {len(counts)} counts"
    return {f"{table}: {name}": n for name, n in zip(names, counts)}


def all_tables(*more):
    return {name: n for table in TABLES for name, n in measure(table, *more).items()}


@case
def hot_kernels_execute_no_more_instructions_than_stored():
    prepare()
    faults = stored.outside(all_tables(), stored.load(STORED), TOLERANCE)
    assert not faults, "; ".join(faults) + "; if that is meant, run this file with --write"


@case
def a_quarter_more_work_is_seen_in_every_count():
    prepare()
    counts = stored.load(STORED)
    faults = stored.outside(all_tables("more"), counts, TOLERANCE)
    unseen = set(counts) - {f.rsplit(": ", 1)[0] for f in faults}
    assert not unseen, f"more work changes nothing in {sorted(unseen)}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        prepare()
        stored.save(STORED, all_tables())
    else:
        main()
