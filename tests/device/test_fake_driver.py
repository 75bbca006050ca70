"""Around a driver: too old, incomplete, without a device, memory full, computing nothing; NVRTC missing, slow, interrupted,
refusing. By libraries of our own (tests/device/fakes.py), so neither a GPU nor a toolkit is needed.

test-timeout: 600"""
import json
import os
import re
import shutil
import signal
import subprocess
import time

from tests.cmd.support import PLUMB, WORK, path, run, tiny
from tests.device.fakes import build, env
from tests.tap import Skip, case, main
from tests.terminal import on_terminal

MODEL = tiny()


def generate(environment, *args, **more):
    return run("generate", "-m", MODEL, "--backend", "cuda", "-p", "hello there you", "-n", 3, "--ignore-eos", *args, env=environment,
               **more)


@case
def a_driver_too_old():
    e = env(build("fake"), FAKE_CUDA_VERSION="10020")
    out = generate(e, check=1)
    assert b"speaks CUDA 10.2, at least 11.4 is needed: install a newer NVIDIA driver" in out.stderr, out.stderr
    listed = json.loads(run("devices", "--json", env=e, check=0).stdout)
    assert any("CUDA 10.2" in k.get("missing", "") for k in listed)


@case
def a_driver_without_a_function():
    out = generate(env(build("incomplete", "-DFAKE_CUDA_INCOMPLETE")), check=1)
    assert b"has no function cuLaunchKernel" in out.stderr and b"install the NVIDIA driver" in out.stderr, out.stderr


@case
def a_driver_that_does_not_start():
    out = generate(env(build("fake"), FAKE_CUDA_INIT="100"), check=1)
    assert b"CUDA_ERROR_NO_DEVICE (100)" in out.stderr and b"kernel module" in out.stderr, out.stderr


@case
def a_driver_without_devices():
    out = generate(env(build("fake"), FAKE_CUDA_DEVICES="0"), check=1)
    assert b"lists no device" in out.stderr, out.stderr
    out = generate(env(build("fake")), "--device", 3, check=1)
    assert b"no device 3, only 0 to 0" in out.stderr, out.stderr


@case
def no_driver():
    e = env(WORK)
    listed = json.loads(run("devices", "--json", env=e, check=0).stdout)
    cuda = next(k for k in listed if k["kind"] == "cuda")
    if cuda["devices"]:
        raise Skip("this machine has a CUDA device")
    out = generate(e, check=1)
    assert b"NVIDIA driver" in out.stderr or b"driver" in out.stderr, out.stderr
    if "was not found" in cuda["missing"]:
        assert "libcuda.so.1" in cuda["missing"] and "nvidia-driver" in cuda["missing"]


@case
def nvrtc_missing_names_the_package():
    out = generate(env(build("fake"), PLUMB_NVRTC="off", PLUMB_KERNEL_PACK="/no/such/pack"), check=1)
    for word in (b"NVRTC", b"pip: nvidia-cuda-nvrtc", b"PLUMB_CUDA_PATH"):
        assert word in out.stderr, out.stderr


@case
def memory_full_is_refused_with_figures():
    e = env(build("fake"))
    for room in (100, 20_000, 60_000):  # in the kernels' counters, in the weights, in the cache
        out = generate({**e, "FAKE_CUDA_MEMORY": str(room)}, check=1)
        assert b"CUDA_ERROR_OUT_OF_MEMORY" in out.stderr and b"memory is full" in out.stderr, out.stderr
        assert b"allocate" in out.stderr and b"of its 8589934592 bytes were free" in out.stderr, out.stderr


@case
def a_gpu_that_is_not_used_is_told():
    def said(**more):
        e = {k: v for k, v in env(build("fake")).items() if k != "CUDA_VISIBLE_DEVICES"}
        return run("generate", "-m", MODEL, "-p", "a", "-n", 1, env={**e, **more}, check=0).stderr

    for more, why in (({"FAKE_CUDA_VERSION": "10020"}, b"speaks CUDA 10.2"), ({"FAKE_CUDA_INIT": "803"}, b"does not start")):
        lines = said(**more)
        assert lines.count(b"plumb: no GPU is used: ") == 1 and why in lines and b"kernel backend: cpu" in lines, lines
        assert b"no GPU" not in said(**more, CUDA_VISIBLE_DEVICES="")  # hidden on purpose
    for none in ({"FAKE_CUDA_DEVICES": "0"}, {"FAKE_CUDA_INIT": "100"}):
        assert b"no GPU" not in said(**none), none


@case
def inspect_shows_the_kernels_that_run_would_take():
    def shown(*args, **more):
        out = run("inspect", MODEL, *args, env=env(build("fake"), **more), check=0)
        kernels = re.search(r"kernels on (\S+)\n  bf16 .* 1 row: (\S+), 512 rows: (\S+)\n", out.stdout.decode())
        assert kernels and f"kernel backend: {kernels[1]} (".encode() in out.stderr, out
        return kernels[1], all(k.startswith("cuda/") for k in kernels.groups()[1:]), out.stderr

    for auto in ((), ("--backend", "auto"), ("--backend", "cuda")):
        assert shown(*auto)[:2] == ("cuda", True), auto
    for plain in (("--backend", "cpu"), ("--isa", "scalar")):
        assert shown(*plain)[:2] == ("cpu", False), plain
    assert shown(FAKE_CUDA_DEVICES="0")[:2] == ("cpu", False)
    broken = {"PLUMB_NVRTC": "off", "PLUMB_KERNEL_PACK": "/no/such/pack"}
    backend, on_device, said = shown(**broken)
    assert backend == "cpu" and b"cuda cannot be used, so these are the CPU's kernels" in said and b"NVRTC" in said, said
    for args, why in ((("--backend", "cuda"), b"NVRTC"), (("--device", "3"), b"no device 3")):
        out = run("inspect", MODEL, *args, env=env(build("fake"), **broken), check=1)
        assert out.stdout == b"" and why in out.stderr, out
    as_json = json.loads(run("inspect", MODEL, "--json", env=env(build("fake")), check=0).stdout)
    assert as_json["backend"].startswith("cuda (") and as_json["dtypes"]["bf16"]["kernels"]["1_row"].startswith("cuda/"), as_json["dtypes"]


@case
def a_driver_that_computes_nothing_is_seen():
    e = env(build("fake"))
    out = generate(e, "--witness", path("nothing.json"), check=1)
    assert b"but counted 0 launches on the device" in out.stderr, out.stderr
    w = json.load(open(path("nothing.json")))
    ran = [m for m in w["modules"] if m["host"] > 0 and m["device"] is not None]
    assert ran and all(m["device"] == 0 and m["agree"] is False for m in ran)
    assert any(m["graph"] > 0 for m in ran) and any(m["eager"] > 0 for m in ran)
    generate(e, check=0)  # without the witness nobody would know
    listed = json.loads(run("devices", "--measure", "--json", "--only", "cuda", env=e, check=0).stdout)
    cuda = next(k for k in listed if k["kind"] == "cuda")["devices"][0]
    assert "read_gb_per_s" not in cuda and "counted 0" in cuda["measure_error"], cuda  # what does not run is fast


@case
def one_device_is_listed_alone():
    e = env(build("fake"), FAKE_CUDA_DEVICES="3")
    listed = json.loads(run("devices", "--json", "--only", "cuda", env=e, check=0).stdout)
    assert [k["kind"] for k in listed] == ["cuda"] and [d["index"] for d in listed[0]["devices"]] == [0, 1, 2]
    listed = json.loads(run("devices", "--json", "--only", "cuda:1", env=e, check=0).stdout)
    assert [d["index"] for d in listed[0]["devices"]] == [1]
    assert b"no device 7, only 0 to 2" in run("devices", "--only", "cuda:7", env=e, check=0).stdout
    assert b"cuda, rocm, opencl" in run("devices", "--only", "vulkan", env=e, check=64).stderr
    assert b"no port" in run("devices", "--only", "metal", env=e, check=0).stdout


@case
def a_driver_that_stands_still_is_given_up():
    """Measured in a process of its own: the list goes on."""
    e = env(build("fake"), FAKE_CUDA_SLEEP="cuMemAlloc_v2")
    out = run("devices", "--measure", "--limit", 1, "--only", "cuda", env=e, check=0).stdout
    assert b"Fake GPU" in out and b"not measured: not finished after 1 s" in out, out


@case
def fallbacks_are_counted_and_strict_refuses_them():
    """Heads of 16 have no fast attention on CUDA, and cuBLASLt is left out: said, counted, and refused at load."""
    e = env(build("fake"), PLUMB_CUBLASLT="off")
    generate(e, "--counters", path("fallbacks.json"), check=0)
    c = json.load(open(path("fallbacks.json")))
    rows = {(r["op"], r["planned"], r["taken"], r["reason"]) for r in c["outcomes"] if r["outcome"] == "fallback"}
    assert c["add_up"] and ("attention", "split", "portable", "head size") in rows, rows
    out = generate(e, "--strict", check=1)
    assert b"--strict: attention of " in out.stderr and b"4 heads of 16" in out.stderr and b"head size" in out.stderr, out.stderr
    assert out.stdout == b"" and b"generated" not in out.stderr
    out = generate(e, "--force-kernel", "attention=split", check=1)
    assert b"--force-kernel: attention of " in out.stderr and b"head size" in out.stderr, out.stderr
    generate(e, "--strict", "--force-kernel", "attention=portable,linear=portable", "--counters", path("all.json"), check=0)
    c = json.load(open(path("all.json")))
    assert c["add_up"] and all(r["outcome"] == "chosen" for r in c["outcomes"])
    assert c["forced"] == "forced linear=portable, attention=portable"


@case
def shipped_code_serves_without_nvrtc():
    """Code made ahead of time, found by its full key; what is not among it is an error that names the package."""
    e, pack = env(build("fake")), path("kernels.pack")
    run("cache", "--ship", pack, "--shape", "4,2", check=64)
    run("cache", "--ship", pack, "--type", "q4_7", check=64)
    code, shown = on_terminal([PLUMB, "cache", "--ship", pack, "--shape", "4,2,16", "--type", "bf16"], stdout=subprocess.DEVNULL, env=e)
    assert code == 0 and re.search(rb"compiling kernels +\d+% +\d+ of \d+", shown), shown
    silent = run("cache", "--ship", pack, "--shape", "4,2,16", "--type", "bf16", check=0, timeout=300, env=e)
    assert b"compiling" not in silent.stderr and re.fullmatch(rb"\d+ kernels in .*\n", silent.stdout), silent
    off = {**e, "PLUMB_NVRTC": "off", "PLUMB_KERNEL_PACK": pack, "FAKE_CUDA_LOG": path("loaded")}
    out = generate(off, "--force-kernel", "linear=gemv", check=0)
    assert b"no compiler here; shipped code serves" in out.stderr and b"compute_80" in out.stderr, out.stderr
    assert set(open(path("loaded")).read().split()) == {"ptx"}
    generate(off, "--force-kernel", "linear=gemv", "--witness", path("ship.json"), check=1)  # the fake computes nothing
    w = json.load(open(path("ship.json")))
    assert w["jit"]["shipped"] > 8 and w["jit"]["compiled"] == 0 and w["jit"]["disk_hits"] == 0
    assert {m["origin"] for m in w["modules"] if m["host"] > 0} == {"shipped"}
    out = generate(off, "--page-tokens", 16, check=1)
    for word in (b"is not among the shipped ones", b"PAGE_TOKENS=16u", b"pip: nvidia-cuda-nvrtc"):
        assert word in out.stderr, out.stderr
    data = bytearray(open(pack, "rb").read())
    for at in (3, 200, len(data) // 2):  # damaged: said, and not used
        bad = bytearray(data)
        bad[at] ^= 1
        out = subprocess.run([PLUMB, "generate", "-m", MODEL, "--backend", "cuda", "-p", "hello there you", "-n", "3", "--ignore-eos",
                              "--force-kernel", "linear=gemv"], capture_output=True,
                             env={**off, "PLUMB_KERNEL_PACK": path("bad.pack", bytes(bad))})
        assert out.returncode == 0 or b"NVRTC" in out.stderr, out.stderr
        assert out.returncode == 1 or at > 200
    out = generate({**off, "PLUMB_KERNEL_PACK": path("bad.pack", bytes(data[:-1]))}, check=1)
    assert b"damaged" in out.stderr and b"NVRTC" in out.stderr, out.stderr


def cold(name, **more):
    folder = path(name)
    shutil.rmtree(folder, ignore_errors=True)
    return env(build("fake"), XDG_CACHE_HOME=folder, **more)


def argv(*more):
    return [PLUMB, "generate", "-m", MODEL, "--backend", "cuda", "-p", "hello there you", "-n", "3", "--ignore-eos", *more]


def entries(e):
    folder = e["XDG_CACHE_HOME"] + "/plumb/jit"
    return [f for f in os.listdir(folder) if f != "lock"] if os.path.isdir(folder) else []


@case
def kernels_compile_together_with_a_line_that_moves():
    log = path("running")
    e = cold("moving", FAKE_NVRTC_MS="60", FAKE_NVRTC_LOG=log)
    code, seen = on_terminal(argv(), env=e, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    assert code == 0, seen
    assert b"compiling" in seen and b"plumb: compiling kernels: 1 of" in seen and b"compiled in" in seen, seen
    assert seen.count(b"plumb: compiling kernels: ") > 8, seen
    if os.cpu_count() > 1:
        assert max(int(n) for n in open(log)) > 1
    out = generate(e)
    assert out.returncode == 0 and b"compiling" not in out.stderr, out.stderr  # and no such line in a file


@case
def a_warm_start_compiles_nothing():
    log = path("again")
    e = cold("warm", FAKE_NVRTC_LOG=log, FAKE_NVRTC_MS="300")
    start = json.loads(generate(e, "--json", check=0).stdout)["start"]
    before = os.path.getsize(log)
    generate(e, check=0)
    assert before > 0 and os.path.getsize(log) == before
    assert start["kernels_s"] >= 0.3, start  # a compiler that takes 0.3 s shows in the part that kernels took


@case
def ctrl_c_in_a_compile():
    """At once, and the next start finds nothing half done."""
    e = cold("stopped", FAKE_NVRTC_MS="20000")
    p = subprocess.Popen(argv(), env=e, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    line = b""
    while b"compiling" not in line:
        line = p.stderr.readline()
        assert line != b""
    time.sleep(0.2)  # into the compiler; too short changes nothing
    begun = time.monotonic()
    p.send_signal(signal.SIGINT)
    out, _ = p.communicate(timeout=60)
    assert p.returncode == 130 and out == b"" and time.monotonic() - begun < 15, p.returncode
    assert entries(e) == [], entries(e)
    e.pop("FAKE_NVRTC_MS")
    generate(e, check=0)
    assert len(entries(e)) > 8 and all(f.endswith(".pljit") for f in entries(e)), entries(e)


@case
def kernels_of_sequences_together_are_made_before_the_first_step():
    """What a service compiles while requests wait stood in its speed as well: 4,802 tok/s of prompts for 109,243."""
    # which rows meet in a step depends on when requests arrive: so counts of rows of every remainder behind 8 as well
    for model, parallel, prompt, rows in (("gemma3", 8, 60, 64), ("olmoe", 8, 60, 64), ("mamba2", 8, 60, 64), ("jamba", 8, 60, 64),
                                          ("jamba", 1, 13, 128), ("jamba", 1, 5, 64), ("jamba", 16, 50, 64),
                                          ("deepseek2-lite", 13, 60, 64), ("deepseek2-lite", 1, 6, 256)):
        e = cold("ahead-" + model)
        out = run("bench", "-m", "tests/golden/model/" + model, "--backend", "cuda", "--parallel", parallel, "-p", prompt, "-n", 24,
                  "-c", 128, "--batch-rows", rows, "--json", env=e, check=0)
        planned = sum(int(n) for n in re.findall(rb"compiling (\d+) kernel", out.stderr))
        row = json.loads(out.stdout)["parallel"][0]
        assert planned > 20 and row["kernels_made"]["compiled"] == planned, (model, parallel, prompt, planned, row["kernels_made"])
        within = row["kernels_made_within"]  # several sequences: a count of rows may come up for the first time in the last repeat
        assert row["kernels_made"]["loaded"] > 20 and within["compiled"] == 0 and (parallel > 1 or within["loaded"] == 0), (model, row)


@case
def two_processes_at_once():
    e = cold("both", FAKE_NVRTC_MS="20")
    both = [subprocess.Popen(argv(), env=e, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(2)]
    texts = [p.communicate(timeout=200) for p in both]
    assert all(p.returncode == 0 for p in both), texts
    assert texts[0][0] == texts[1][0]
    assert all(f.endswith(".pljit") for f in entries(e))


@case
def the_cache_goes_away_while_it_is_used():
    e = cold("gone", FAKE_NVRTC_MS="5")
    p = subprocess.Popen(argv(), env=e, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while p.poll() is None:
        shutil.rmtree(e["XDG_CACHE_HOME"], ignore_errors=True)
        time.sleep(0.001)
    out, err = p.communicate()
    assert p.returncode == 0 and b"dumped" not in err, err


if __name__ == "__main__":
    main()
