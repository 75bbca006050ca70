"""The aarch64 tables: src/cpu and what it needs, built by the cross compiler and run under qemu's user mode through every
test of its operations, on a CPU with dot products and matrix products of bytes and, for the choice of a table, on ones
with less; then whole tiny models of every family against their golden logits, through each of those tables.

Sizes are fewer than on the machine itself (PL_TEST_EMULATED in tests/cpu/support.h). Left out: models that are no GGUF
files, since JSON's library is not there for that target, and everything above the model.
test-timeout: 1500"""
import concurrent.futures
import functools
import glob
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.getcwd())
from tests.tap import Skip, case, main  # noqa: E402

CC, QEMU, OUT = "aarch64-linux-gnu-gcc", "qemu-aarch64", "build/cross-aarch64"
FLAGS = ["-std=c17", "-D_GNU_SOURCE", "-ffp-contract=off", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wno-sign-conversion",
         "-Werror", "-DPL_TEST_EMULATED", "-Itests/cpu/cross", "-Isrc", "-Iinclude", "-I.", f"-I{OUT}/include"]
TESTS = ["matmul", "rows", "attention", "latent", "moe", "ssm", "ternary", "passes"]
OTHER = {"amx", "packing"}  # tiles; a terminal
DEVICE_OPS = re.compile(r"src/ops/(cuda|device|expand|launch|ops_device|portable|ship)")  # not called on the CPU
# What a model on the CPU never calls: JSON, other devices.
ABSENT = re.compile(r"json_|pl_json_|pl_device_|pl_jit_|pl_kernel_|pl_cuda_capability|pl_ops_(cuda|rocm|opencl)_create")


def operation_sources():
    base = [f"src/base/{n}.c" for n in ("log", "mem", "pool", "status", "str", "topology")]
    cpu = [f for f in glob.glob("src/cpu/*.c") if not os.path.basename(f).startswith("avx")]
    return base + glob.glob("src/tensor/*.c") + cpu + glob.glob("src/ref/*.c")


def model_sources():
    folders = [f for folder in ("base", "file", "kv", "meter", "model", "plan") for f in glob.glob(f"src/{folder}/*.c")]
    ops = [f for f in glob.glob("src/ops/*.c") if not DEVICE_OPS.match(f)]
    return [f for f in folders + ops if os.path.basename(f) != "json.c" and f not in operation_sources()]


def compiled(source):
    to = os.path.join(OUT, source.replace("/", "_") + ".o")
    name = os.path.basename(source)
    kernels = source.startswith(("src/cpu/", "src/ref/", "src/tensor/", "src/base/", "tests/cpu/"))
    isa = ["-march=armv8.2-a+dotprod" + ("+i8mm" if name.startswith("neon_i8mm") else "")] if name.startswith("neon") else []
    cache = ["ccache"] if shutil.which("ccache") else []
    subprocess.run(cache + [CC] + FLAGS + ["-O2" if kernels else "-O0"] + isa + ["-c", source, "-o", to], check=True)
    return to


def objects_of(sources):
    if shutil.which(CC) is None or shutil.which(QEMU) is None:
        raise Skip(f"{CC} and {QEMU} are needed (packages gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user)")
    os.makedirs(f"{OUT}/include", exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(compiled, sources))


def link(program, objects, *options):
    command = [CC, "-static", *options, "-o", f"{OUT}/{program}", *objects, "-lpthread", "-lm"]
    return subprocess.run(command, check=True, stderr=subprocess.PIPE).stderr.decode()


@functools.cache
def build_operations():
    tests = [f"tests/cpu/test_{t}.c" for t in TESTS]
    objects = objects_of(tests + operation_sources())
    for name, program in zip(TESTS, objects):
        link(f"test_{name}", [program] + objects[len(tests):])


def headers_of_json():
    """Its two headers are the same for every target; other headers of this machine are not."""
    seen = subprocess.run(["gcc", "-M", "-x", "c", "-"], input=b"#include <jansson.h>\n", stdout=subprocess.PIPE, check=True).stdout
    for path in re.findall(r"\S+/jansson\w*\.h", seen.decode()):
        to = f"{OUT}/include/{os.path.basename(path)}"
        if not os.path.lexists(to):
            os.symlink(path, to)


def build_models():
    os.makedirs(f"{OUT}/include", exist_ok=True)
    headers_of_json()
    said = link("test_golden", objects_of(["tests/model/test_golden.c"] + operation_sources() + model_sources()),
                "-Wl,--warn-unresolved-symbols")
    left_out = set(re.findall(r"undefined reference to `(\w+)'", said))
    assert left_out and all(ABSENT.match(n) for n in left_out), sorted(n for n in left_out if not ABSENT.match(n))


def run(test, cpu, source):
    done = subprocess.run([QEMU, "-cpu", cpu, f"{OUT}/test_{test}"], capture_output=True)  # two pipes: lines stay whole
    text = done.stdout.decode()
    assert done.returncode == 0, f"test_{test} on {cpu} ended with {done.returncode}: {(text + done.stderr.decode())[-600:]}"
    with open(source, encoding="utf-8") as f:
        cases = f.read().count("cmocka_unit_test(")
    assert len(re.findall(r"^ok ", text, flags=re.M)) == cases, f"test_{test} on {cpu}, {cases} cases: {text[-600:]}"
    assert "# skipped" not in text, text[-600:]
    return text


@functools.cache
def operation(test, cpu="max"):
    build_operations()
    return run(test, cpu, f"tests/cpu/test_{test}.c")


@case
def no_test_of_an_operation_is_left_out():
    there = {os.path.basename(f)[5:-2] for f in glob.glob("tests/cpu/test_*.c")}
    assert there == set(TESTS) | OTHER, there ^ (set(TESTS) | OTHER)


@case
def products_of_every_type_agree_with_the_reference():
    operation("matmul")
    operation("passes")


@case
def norms_activations_and_rotation_agree():
    operation("rows")


@case
def attention_agrees():
    operation("attention")
    operation("latent")


@case
def mixtures_state_spaces_and_ternary_weights_agree():
    operation("moe")
    operation("ssm")
    operation("ternary")


@case
def each_cpu_gets_the_table_that_it_can_run():
    assert "the best table here is neon-i8mm" in operation("rows")
    assert "the best table here is neon-dotprod" in operation("rows", "neoverse-n1")
    assert "the best table here is scalar" in operation("rows", "cortex-a53")


@case
def models_of_every_family_give_their_golden_logits():
    build_models()
    text = run("golden", "max", "tests/model/test_golden.c")
    with open("tests/model/test_golden.c", encoding="utf-8") as f:
        models = set(re.findall(r'\{"([\w-]+\.gguf)"', f.read()))
    assert len(models) > 40
    for table in ("scalar", "neon-dotprod", "neon-i8mm"):
        ran = set(re.findall(rf"^# {table} +(\S+) +kv f32", text, flags=re.M))
        assert ran == models, f"{table}: {ran ^ models}"


if __name__ == "__main__":
    main()
