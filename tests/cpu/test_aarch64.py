"""The aarch64 tables: src/cpu and what it needs, built by the cross compiler and run through its own tests under qemu's
user mode, on a CPU with dot products and matrix products of bytes and, for the choice of a table, on ones with less.
test-timeout: 1500"""
import concurrent.futures
import glob
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.getcwd())
from tests.tap import Skip, case, main  # noqa: E402

CC, QEMU, OUT = "aarch64-linux-gnu-gcc", "qemu-aarch64", "build/cross-aarch64"
FLAGS = ["-std=c17", "-D_GNU_SOURCE", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Wshadow", "-Wconversion",
         "-Wno-sign-conversion", "-Werror", "-DPL_TEST_FIRST_ISA=(pl_cpu_best_isa()<PL_ISA_NEON?PL_ISA_SCALAR:PL_ISA_NEON)", "-DPL_TEST_ROW_STEP=3", "-Itests/cpu/cross", "-Isrc", "-Iinclude", "-I."]
TESTS = ["matmul", "rows", "attention"]


def sources():
    base = [f"src/base/{n}.c" for n in ("mem", "pool", "status", "str", "topology")]
    cpu = [f for f in glob.glob("src/cpu/*.c") if not os.path.basename(f).startswith("avx")]
    return base + glob.glob("src/tensor/*.c") + cpu + glob.glob("src/ref/*.c")


def compiled(source):
    to = os.path.join(OUT, source.replace("/", "_") + ".o")
    name = os.path.basename(source)
    isa = ["-march=armv8.2-a+dotprod" + ("+i8mm" if name.startswith("neon_i8mm") else "")] if name.startswith("neon") else []
    cache = ["ccache"] if shutil.which("ccache") else []
    subprocess.run(cache + [CC] + FLAGS + isa + ["-c", source, "-o", to], check=True)
    return to


def build():
    if shutil.which(CC) is None or shutil.which(QEMU) is None:
        raise Skip(f"{CC} and {QEMU} are needed (packages gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user)")
    os.makedirs(OUT, exist_ok=True)
    tests = [f"tests/cpu/test_{t}.c" for t in TESTS]
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(compiled, sources() + tests))
    for t, program in zip(TESTS, objects[-len(tests):]):
        link = [CC, "-static", "-o", f"{OUT}/test_{t}", program] + objects[:-len(tests)] + ["-lpthread", "-lm"]
        subprocess.run(link, check=True)


def run(test, cpu):
    done = subprocess.run([QEMU, "-cpu", cpu, f"{OUT}/test_{test}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = done.stdout.decode()
    assert done.returncode == 0, f"test_{test} on {cpu} ended with {done.returncode}: {text[-600:]}"
    assert text.count("ok ") > 3, f"test_{test} on {cpu} ran nothing: {text[-600:]}"
    return text


@case
def products_of_every_type_agree_with_the_reference():
    build()
    run("matmul", "max")


@case
def norms_activations_and_rotation_agree():
    build()
    run("rows", "max")


@case
def attention_agrees():
    build()
    run("attention", "max")


@case
def each_cpu_gets_the_table_that_it_can_run():
    build()
    assert "the best table here is neon-i8mm" in run("rows", "max")
    assert "the best table here is neon-dotprod" in run("rows", "neoverse-n1")
    assert "the best table here is scalar" in run("rows", "cortex-a53")


if __name__ == "__main__":
    main()
