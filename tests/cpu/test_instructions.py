"""Instructions that the hot kernels execute, beside stored counts: a regression seen without a clock.

Counted by valgrind for the AVX2 table (valgrind knows no AVX-512) as the difference of a run with three repeats and one
with one, so that start-up, packing and random numbers drop out. The counts belong to one compiler; after a change that
is meant to cost, or with another compiler, write them anew:  python3 tests/cpu/test_instructions.py --write
"""
import json
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.getcwd())
from tests.tap import Skip, case, main  # noqa: E402

BENCH = "build/release/bench/bench_matmul"
STORED = "tests/golden/cpu_instructions.json"
TOLERANCE = 0.10
KERNELS = [("q4_1", "1"), ("q4_1", "4"), ("q4_k", "1"), ("q4_k", "4"), ("q8_0", "1"), ("q8_0", "4"), ("f16", "1"), ("f16", "4"),
           ("q4_k", "64"), ("q8_0", "64")]


def compiler():
    done = subprocess.run(["gcc", "-dumpfullversion"], stdout=subprocess.PIPE, check=True)
    return "gcc " + done.stdout.decode().strip().split(".")[0]


def collected(dtype, rows, repeats):
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", BENCH, "--isa", "avx2", "--type", dtype,
               "--threads", "1", "--mib", "1", "--out", "64", "--in", "512", "--rows", rows, "--repeats", repeats]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True)
    assert f"{dtype} " in done.stdout.decode(), f"{dtype} did not run: {done.stdout.decode()}"
    return int(re.search(r"Collected : (\d+)", done.stderr.decode()).group(1))


def measure(dtype, rows):
    return (collected(dtype, rows, "3") - collected(dtype, rows, "1")) / 2


def prepare():
    if shutil.which("valgrind") is None:
        raise Skip("valgrind is not installed")
    if "avx2" not in open("/proc/cpuinfo", encoding="utf-8").read():
        raise Skip("this machine has no AVX2")
    subprocess.run(["make", "-s", BENCH], check=True, stdout=subprocess.DEVNULL)


@case
def hot_kernels_execute_no_more_instructions_than_stored():
    prepare()
    with open(STORED, encoding="utf-8") as f:
        stored = json.load(f)
    if stored["compiler"] != compiler():
        raise Skip(f"counts were stored for {stored['compiler']}, this is {compiler()}")
    faults = []
    for dtype, rows in KERNELS:
        ratio = measure(dtype, rows) / stored["counts"][f"{dtype} x {rows}"]
        if not 1 - TOLERANCE <= ratio <= 1 + TOLERANCE:
            faults.append(f"{dtype} with {rows} rows: {ratio:.2f} times the stored count")
    assert not faults, "; ".join(faults) + "; if that is meant, run this file with --write"


def write():
    prepare()
    counts = {f"{d} x {r}": measure(d, r) for d, r in KERNELS}
    with open(STORED, "w", encoding="utf-8") as f:
        json.dump({"compiler": compiler(), "counts": counts}, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    write() if sys.argv[1:] == ["--write"] else main()
