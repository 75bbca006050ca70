"""The AVX-VNNI, AVX-512 and AMX tables on a machine that may have none of them: their sources compiled a second time, with
SIMDe's vectors made of AVX2 and with tiles in C (tests/cpu/emulated/), and linked into the tests of src/cpu in place of the
library's own. The same cases, bounds and reference as with the instructions themselves. test-timeout: 900"""
import os
import subprocess
import sys

sys.path.insert(0, os.getcwd())
from tests.build import make  # noqa: E402
from tests.tap import Skip, case, main  # noqa: E402

OUT = "build/release/emulated"
TESTS = ["matmul", "passes", "amx", "rows", "attention", "latent", "moe", "ssm", "ternary", "wrong"]
MARK = b"plumb: vectors of 512 bits made of AVX2"  # tests/cpu/emulated/avx512.h


def has_simde():
    done = subprocess.run(["gcc", "-E", "-x", "c", "-", "-o", os.devnull], input=b"#include <simde/x86/avx512.h>\n",
                          stderr=subprocess.DEVNULL, check=False)
    return done.returncode == 0


def build():
    if os.uname().machine != "x86_64":
        raise Skip("the tables are those of x86-64")
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        flags = set(f.read().split())
    if not {"avx2", "fma", "f16c", "bmi2"} <= flags:
        raise Skip("the emulation is made of AVX2, which this machine lacks")
    if not has_simde():
        raise Skip("SIMDe is needed (package libsimde-dev)")
    make(*(f"{OUT}/test_{t}" for t in TESTS), options=[f"-j{len(os.sched_getaffinity(0))}"])


def run(test):
    build()
    done = subprocess.run([f"{OUT}/test_{test}"], env=dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP"), capture_output=True,
                          check=False)
    text = done.stdout.decode()
    assert done.returncode == 0, f"test_{test} ended with {done.returncode}: {(text + done.stderr.decode())[-1500:]}"
    assert "ok 1 - " in text and "SKIP" not in text, f"test_{test} did not run all its cases: {text[-1500:]}"
    return text


@case
def norms_activations_and_rotation_agree():
    assert "the best table here is avx512-amx" in run("rows")


@case
def products_of_every_type_agree_with_the_reference():
    run("matmul")
    run("passes")


@case
def tiles_give_the_bits_of_vectors_and_a_planted_fault_is_found():
    run("amx")


@case
def attention_agrees():
    run("attention")
    run("latent")


@case
def mixtures_state_spaces_and_ternary_products_agree():
    for test in ("moe", "ssm", "ternary"):
        run(test)


@case
def a_wrong_instruction_is_found():
    build()
    with subprocess.Popen([f"{OUT}/test_wrong"], env=dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP"), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT) as program:
        seen = b""
        for line in program.stdout:
            seen += line
            if b"ok 1 - " in line:
                break
        program.kill()
    assert b"not ok 1 - every_type_every_row_count" in seen and b"avx512-vnni" in seen, seen.decode()[-600:]


@case
def only_test_programs_contain_the_emulation():
    build()
    for name, emulated in ((f"{OUT}/test_rows", True), ("build/release/plumb", False), ("build/release/libplumb.a", False),
                           ("build/release/tests/cpu/test_rows", False)):
        if emulated or os.path.exists(name):
            with open(name, "rb") as f:
                assert (MARK in f.read()) == emulated, f"{name}: {emulated} was expected"


if __name__ == "__main__":
    main()
