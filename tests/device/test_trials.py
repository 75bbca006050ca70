"""What goes wrong around a device, tried on one that is here: two processes at once, the cache removed while it is used, Ctrl-C
in a compile; on an NVIDIA GPU also life without NVRTC and without cuBLASLt. PLUMB_TEST_DEVICE picks the backend.

test-timeout: 600"""
import json
import os
import shutil
import signal
import subprocess
import time

from tests.cmd.support import PLUMB, WORK, path, run, tiny
from tests.tap import Skip, case, main

MODEL = tiny()
MODEL64 = tiny("tiny64", head_dim=64)  # heads that NVIDIA's attention takes as planned, so that --strict speaks of products
PROMPT = "hello there you and all of the others who came by this morning"  # rows enough for the products of many rows
N = 24


def backend():
    listed = json.loads(run("devices", "--json").stdout)
    wanted = os.environ.get("PLUMB_TEST_DEVICE", "").split(":")[0]
    for kind in listed:
        if kind["devices"] and wanted in ("", kind["kind"]):
            return kind["kind"]
    raise Skip("no device here")


def fresh(name):
    """An environment whose kernel cache is empty, and the NVIDIA driver's. PoCL keeps its own: it takes minutes without."""
    folder = os.path.join(WORK, name)
    shutil.rmtree(folder, ignore_errors=True)
    return {**os.environ, "XDG_CACHE_HOME": folder, "POCL_CACHE_DIR": os.path.abspath("build/test-pocl"), "CUDA_CACHE_PATH": folder + "-cuda"}


def argv(*args, model=MODEL):
    return [PLUMB, "generate", "-m", model, "--backend", backend(), "-p", PROMPT, "-n", str(N), "--ignore-eos", *args]


def start(environment, *args):
    return subprocess.Popen(argv(*args), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def text(environment, *args):
    out = subprocess.run(argv(*args), env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
    assert out.returncode == 0, out.stderr[-2000:]
    assert len(out.stdout) > N, out.stdout  # two empty texts are not equal texts
    return out.stdout


def witness(environment, *args):
    file = path("witness.json")
    text(environment, "--witness", file, *args)
    return json.load(open(file))


def needs_nvidia():
    if backend() != "cuda":
        raise Skip("no CUDA device here")


WARM = fresh("warm")


def expected():
    return text(WARM)


def compiled_nothing(environment):
    jit = witness(environment)["jit"]
    assert jit["compiled"] == 0 and jit["disk_hits"] > 4 and jit["damaged"] == 0, jit


@case
def two_processes_at_once_with_a_cold_cache():
    want, environment = expected(), fresh("two")
    both = [start(environment) for _ in range(2)]
    for p in both:
        out, err = p.communicate(timeout=300)
        assert p.returncode == 0 and out == want, (p.returncode, out, err[-2000:])
        assert b"compiling" in err, err
    compiled_nothing(environment)


@case
def the_cache_is_removed_while_it_is_used():
    want, environment = expected(), fresh("removed")
    p, removed = start(environment), 0
    while p.poll() is None:
        if os.path.isdir(environment["XDG_CACHE_HOME"] + "/plumb/jit"):
            shutil.rmtree(environment["XDG_CACHE_HOME"] + "/plumb", ignore_errors=True)
            removed += 1
        time.sleep(0.002)
    out, err = p.communicate()
    assert p.returncode == 0 and out == want, (p.returncode, out, err[-2000:])
    assert removed > 0
    assert text(environment) == want  # and what is left of it harms nobody
    compiled_nothing(environment)


@case
def ctrl_c_in_a_compile():
    want, environment = expected(), fresh("stopped")
    p = start(environment)
    line = b""
    while b"compiling" not in line:
        line = p.stderr.readline()
        assert line != b"", "it ended without compiling"
    p.send_signal(signal.SIGINT)
    begun = time.monotonic()
    out, _ = p.communicate(timeout=120)
    assert p.returncode == 130 and out == b"", (p.returncode, out)
    assert time.monotonic() - begun < 60
    assert text(environment) == want
    compiled_nothing(environment)


@case
def the_cache_checks_itself():
    needs_nvidia()  # elsewhere code is not reproducible
    environment = fresh("verify")
    want = text(environment)
    assert text(environment, "--jit-cache", "verify") == want
    assert text(environment, "--jit-cache", "off") == want
    compiled_nothing(environment)


@case
def without_nvrtc_shipped_code_serves():
    needs_nvidia()
    pack, file = path("kernels.pack"), path("shipped.json")
    run("cache", "--ship", pack, "--shape", "4,2,16", "--type", "bf16", check=0, timeout=300, env=WARM)
    off = {**fresh("shipped"), "PLUMB_NVRTC": "off", "PLUMB_KERNEL_PACK": pack}
    assert text(off, "--force-kernel", "linear=gemv", "--witness", file) == text(WARM, "--force-kernel", "linear=gemv")
    jit = json.load(open(file))["jit"]
    assert jit["shipped"] > 8 and jit["compiled"] == 0 and jit["disk_hits"] == 0, jit
    p = subprocess.run(argv(), env={**off, "PLUMB_KERNEL_PACK": "/no/such/pack"}, capture_output=True)
    assert p.returncode == 1 and b"pip: nvidia-cuda-nvrtc" in p.stderr, p.stderr


@case
def without_cublaslt_our_own_products_serve():
    needs_nvidia()
    file = path("fallbacks.json")
    want = text(WARM, "--counters", file)
    counted = json.load(open(file))["outcomes"]
    if not any(r["taken"] == "cublaslt" for r in counted):
        raise Skip("cuBLASLt is not here either")
    off = {**WARM, "PLUMB_CUBLASLT": "off"}
    got = text(off, "--counters", file)
    counted = json.load(open(file))
    assert counted["add_up"], counted
    missing = [r for r in counted["outcomes"] if r["planned"] == "cublaslt" and r["outcome"] == "fallback"]
    assert missing and all(r["reason"] == "cuBLASLt is missing" for r in missing), counted["outcomes"]
    assert not any(r["taken"] == "cublaslt" for r in counted["outcomes"])
    assert got[:len(PROMPT) // 4] == want[:len(PROMPT) // 4], (got, want)  # a random model amplifies another rounding
    assert subprocess.run(argv("--strict", model=MODEL64), env=WARM, capture_output=True).returncode == 0
    p = subprocess.run(argv("--strict", model=MODEL64), env=off, capture_output=True)
    assert p.returncode == 1 and b"cuBLASLt is missing" in p.stderr, p.stderr


if __name__ == "__main__":
    main()
