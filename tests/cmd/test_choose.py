"""Choosing kernels from the command line: names, what was forced, counters that add up, witnesses on CPU and device."""
import json
import os
import subprocess

from tests.cmd.support import GOLDEN, PLUMB, WORK, path, run, tiny
from tests.tap import Skip, case, main

MODEL = tiny()
CACHE = {**os.environ, "XDG_CACHE_HOME": os.path.join(WORK, "cache")}
STEPS = 5  # one prefill, then each of five tokens but the last, which is told and not computed


def generate(*args, env=None, **more):
    return run("generate", "-m", MODEL, "-p", "hello there", "-n", 5, "--ignore-eos", *args, env=env or CACHE, **more)


def load(name):
    return json.load(open(os.path.join(WORK, name)))


def layers():
    return json.loads(run("inspect", "-m", MODEL, "--json", check=0).stdout)["sizes"]["layers"]


def device():
    listed = json.loads(run("devices", "--json", env=CACHE, check=0).stdout)
    for kind in listed:
        if kind["devices"]:
            return kind["kind"]
    raise Skip("no device here")


@case
def unknown_names_are_errors_that_list_the_known():
    for option, value, words in (("--force-kernel", "linier=scalar", [b"known: embed", b"linear"]),
                                 ("--force-kernel", "linear=fast", [b"known:", b"scalar"]),
                                 ("--disable-kernel", "norm", [b"OPERATION=IMPLEMENTATION"]),
                                 ("--jit-cache", "maybe", [b"on, off, verify"])):
        out = generate("--isa", "scalar", option, value, check=64)
        assert all(w in out.stderr for w in words), out.stderr
    out = generate("--backend", "cpu", env={**CACHE, "PLUMB_KERNEL": "linear=fast"}, check=64)
    assert b"known:" in out.stderr and b"scalar" in out.stderr
    out = generate("--backend", "cpu", env={**CACHE, "PLUMB_JIT_CACHE": "maybe"}, check=64)
    assert b"on, off, verify" in out.stderr


@case
def what_was_forced_is_shown():
    out = generate("--backend", "cpu", "--force-kernel", "attention=scalar", check=0,
                   env={**CACHE, "PLUMB_KERNEL": "linear=scalar"})
    assert b"plumb: kernels: forced linear=scalar, attention=scalar\n" in out.stderr
    assert b"plumb: kernels" not in generate("--backend", "cpu", check=0).stderr


def outcomes_add_up(counters, layer_count):
    assert counters["add_up"] is True
    sums = {}
    for row in counters["outcomes"]:
        sums[row["op"]] = sums.get(row["op"], 0) + row["count"]
        assert row["outcome"] in ("chosen", "fallback", "declined")
        assert (row["reason"] == "") == (row["outcome"] == "chosen")
    assert sums == counters["decisions"]
    assert counters["decisions"]["attention"] == layer_count * STEPS  # layers x steps, exactly
    assert counters["decisions"]["embed"] == STEPS


@case
def counters_add_up_on_the_cpu():
    generate("--backend", "cpu", "--counters", path("c.json"), "--witness", path("w.json"), check=0)
    c, w = load("c.json"), load("w.json")
    assert c["schema"] == "plumb-counters-1" and w["schema"] == "plumb-witness-1" and w["modules"] == []
    outcomes_add_up(c, layers())
    generate("--isa", "scalar", "--force-kernel", "norm=scalar", "--counters", path("c.json"), check=0)
    c = load("c.json")
    outcomes_add_up(c, layers())
    assert all(row["taken"] == "scalar" for row in c["outcomes"] if row["op"] != "gather")
    assert any(k["kernel"] == "scalar/norm" for k in c["kernels"])


@case
def forced_cpu_kernels_run():
    for op in ("norm", "glu", "attention", "rope_append", "linear"):
        generate("--backend", "cpu", "--force-kernel", op + "=scalar", "--counters", path("c.json"), check=0)
        rows = [r for r in load("c.json")["outcomes"] if r["op"] == op]
        assert rows and all(r["taken"] == "scalar" and r["outcome"] == "chosen" for r in rows), rows


@case
def counters_and_witness_on_a_device():
    kind = device()
    generate("--backend", kind, "--strict", "--counters", path("d.json"), "--witness", path("dw.json"), check=0)
    outcomes_add_up(load("d.json"), layers())
    w = load("dw.json")
    host = {}
    for row in w["modules"]:
        assert row["symbol"] and len(row["module"]) in (0, 32) and row["target"]
        assert row["host"] == row["eager"] + row["graph"]
        assert row["device"] is None or (row["device"] == row["host"] and row["agree"] is True), row
        host[row["kernel"]] = row["host"]
    for row in w["kernels"]:
        assert row["launches"] == 0 or row["kernel"] in host, row
    launched = {k["kernel"] for k in w["kernels"]}
    assert sum(k["launches"] for k in w["kernels"]) == sum(n for name, n in host.items() if name in launched)
    assert w["jit"]["mode"] == "on" and w["jit"]["compiled"] + w["jit"]["disk_hits"] > 0
    generate("--backend", kind, "--jit-cache", "off", "--witness", path("dw.json"), check=0)
    assert load("dw.json")["jit"]["disk_hits"] == 0
    out = generate("--backend", kind, "--disable-kernel", "norm=portable", check=64)
    assert b"no other implementation" in out.stderr


@case
def bench_writes_counters_too():
    run("eval", "-m", GOLDEN, "--tokens", path("ids.json", "[1, 2, 3, 4, 5]"), "--backend", "cpu", "--counters", path("e.json"),
        "--witness", path("ew.json"), check=0)
    assert load("e.json")["add_up"] is True and load("e.json")["outcomes"] and load("ew.json")["decisions"]["linear"] > 0
    run("eval", "--url", "http://127.0.0.1:1", "-m", GOLDEN, "--tokens", path("ids.json"), "--counters", path("e.json"), check=64)
    run("bench", "-m", GOLDEN, "-p", 4, "-n", 3, "-r", 1, "--backend", "cpu", "--counters", path("b.json"), check=0)
    c = load("b.json")
    assert c["add_up"] and c["decisions"]["embed"] == 3  # the last stage that was timed: three decoded tokens


if __name__ == "__main__":
    main()
