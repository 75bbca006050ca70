"""Timing one operation, tuning a device, and tables that are refused when they were measured for something else.

test-timeout: 600"""
import json
import os
import xml.dom.minidom

from tests.cmd.support import WORK, run, tiny
from tests.tap import Skip, case, main

DATA = os.path.join(WORK, "data")
ENV = {**os.environ, "XDG_CACHE_HOME": os.path.join(os.getcwd(), "build", "test-cache"), "XDG_DATA_HOME": DATA}
SHAPE = ["--heads", 4, "--kv-heads", 2, "--dim", 32, "--page", 16]


def device():
    for kind in json.loads(run("devices", "--json", env=ENV, check=0).stdout):
        if kind["devices"]:
            return kind["kind"]
    raise Skip("no device here")


def bench(*args, **more):
    return run("bench", "--op", "paged-decode", *SHAPE, *args, env=ENV, timeout=300, **more)


def tables():
    folder = os.path.join(DATA, "plumb", "tune")
    return [os.path.join(folder, f) for f in os.listdir(folder)] if os.path.isdir(folder) else []


@case
def wrong_usage_says_what_is_known():
    assert b"paged-decode" in run("bench", "--op", "flash", env=ENV, check=64).stderr
    assert b"'v3'" in bench("--compare", "v1,v3", check=64).stderr
    assert b"multiple" in bench("--heads", 5, check=64).stderr
    assert b"--sweep" in bench("--svg", "x.svg", check=64).stderr
    assert b"cascade" in run("tune", "--op", "flash", env=ENV, check=64).stderr
    assert b"exclude" in bench("-m", "x", check=64).stderr


@case
def rows_name_kernels_and_a_sweep_draws():
    kind = device()
    picture = os.path.join(WORK, "sweep.svg")
    out = bench("--backend", kind, "--batch", 2, "--len", 128, "--shared", 64, "--sweep", "--svg", picture, "--json", check=0)
    table = json.loads(out.stdout)
    rows = {(r["len"], r["form"]): r for r in table["rows"]}
    assert set(rows) == {(n, f) for n in (64, 128) for f in ("v1", "v2", "cascade", "gather", "dense")}
    assert rows[(128, "gather")]["kernels"].count("/paged_") == 2 and rows[(128, "gather")]["launches"] == 2
    full = 2 * 2 * 2 * 32 * 2 * 128  # sides, sequences, KV heads, size, bytes, tokens
    assert rows[(128, "v1")]["bytes"] == rows[(128, "v2")]["bytes"] == full
    assert rows[(128, "cascade")]["bytes"] == full * 3 // 4  # the shared half is read once
    assert all(r["us"] > 0 for r in rows.values()) and table["costs"] == "built in"
    out = bench("--backend", kind, "--batch", 2, "--len", 32, "--compare", "auto", "--json", check=0)
    row, = json.loads(out.stdout)["rows"]
    assert row["form"] == "auto" and "/paged_v2" in row["kernels"], row
    lines = xml.dom.minidom.parse(picture).getElementsByTagName("polyline")
    assert len(lines) == 5 and all(len(n.getAttribute("points").split()) == 2 for n in lines)


@case
def a_table_is_kept_used_and_refused():
    kind = device()
    out = run("tune", "--backend", kind, *SHAPE, "--len", 64, "--report", env=ENV, timeout=400, check=0)
    kept = json.loads(out.stdout)
    assert tables() == [kept["file"]] and len(kept["report"]) > 10
    assert {r["form"] for r in kept["report"]} == {"v1", "v2", "cascade"}
    good = json.load(open(kept["file"]))
    assert good["schema"] == "plumb-tune-1" and good["attention"] == kept["attention"]
    small = ["--backend", kind, "--len", 32, "--compare", "v2"]
    assert json.loads(bench(*small, "--json", check=0).stdout)["costs"] == "measured"
    for field, value in (("driver", "another"), ("target", "sm_1"), ("kernel_sources", "0" * 32), ("device", "x"),
                         ("attention", {**good["attention"], "slots": 0}),
                         ("attention", {**good["attention"], "chunk_cost": "nan"})):
        with open(kept["file"], "w") as f:
            json.dump({**good, field: value}, f)
        out = bench(*small, "--json", check=0)
        assert json.loads(out.stdout)["costs"] == "built in", field
        assert b"tuning table not used" in out.stderr and b"plumb tune" in out.stderr, out.stderr
    with open(kept["file"], "w") as f:
        f.write("{")
    assert b"not used" in bench(*small, check=0).stderr
    model = run("generate", "-m", tiny(), "-p", "hi", "-n", 2, "--backend", kind, env=ENV, timeout=300, check=0)
    assert b"not used" in model.stderr
    os.remove(kept["file"])
    run("tune", "--backend", kind, *SHAPE, "--len", 64, "--op", "merge", "--dry-run", env=ENV, timeout=300, check=0)
    assert tables() == []


@case
def products_are_timed_on_the_cpu():
    args = ["bench", "--op", "linear", "--backend", "cpu", "-t", 1, "--quick", "--shape", "64x512", "--types", "q8_0,f16,q4_k"]
    out = json.loads(run(*args, "--rows", "1,8", "--json", env=ENV, check=0).stdout)
    assert [(r["type"], r["rows"]) for r in out["rows"]] == [(t, n) for t in ("q8_0", "f16", "q4_k") for n in (1, 8)]
    for r in out["rows"]:
        assert r["way"] == "planned" and r["us"] > 0 and r["gb_s"] > 0 and r["percent_of_ceiling"] > 0 and r["kernel"], r
        assert ("gemv" in r["kernel"]) == (r["rows"] == 1), r
    assert {c["type"] for c in out["cross_over"]} == {"q8_0", "f16", "q4_k"} and out["planned_over_fastest_max"] >= 1
    text = run(*args, "--rows", 1, "--compare", "scalar", env=ENV, check=0).stdout.decode()
    assert "scalar" in text and "the plan takes at most" in text, text
    for flags in (["--rows", "0"], ["--rows", "1,x"], ["--types", "q99"], ["--shape", "5x5"], ["--compare", "nonsense"], ["--backend", "metal"]):
        run("bench", "--op", "linear", *(["--backend", "cpu"] if "--backend" not in flags else []), *flags, env=ENV, check=64)


@case
def products_on_the_cpu_follow_the_set_and_the_kernel_asked_for():
    args = ["bench", "--op", "linear", "--backend", "cpu", "-t", 1, "--quick", "--shape", "32x256", "--types", "q8_0", "--rows", 1]
    for flags in (["--isa", "scalar"], ["--force-kernel", "linear=scalar"]):
        out = json.loads(run(*args, "--json", *flags, env=ENV, check=0).stdout)
        assert out["rows"][0]["kernel"].startswith("scalar/"), out["rows"]
    pinned = json.loads(run(*args, "--json", "--isa", "scalar", "--pin", env=ENV, check=0).stdout)
    assert pinned["backend"] == "cpu (scalar, 1 pinned thread)", pinned["backend"]
    foreign = "avx2" if os.uname().machine == "aarch64" else "neon-dotprod"
    assert f"this machine lacks {foreign}".encode() in run(*args, "--isa", foreign, env=ENV, check=1).stderr
    run(*args, "--disable-kernel", "linear=nonsense", env=ENV, check=64)


if __name__ == "__main__":
    main()
