"""Forms of decode attention from the command line: names, what was asked for, layer steps that add up, reuse of plans.

test-timeout: 600"""
import json
import os

from tests.cmd.support import WORK, run, tiny
from tests.tap import Skip, case, main

MODEL = tiny()
CACHE = {**os.environ, "XDG_CACHE_HOME": os.path.join(os.getcwd(), "build", "test-cache")}


def generate(*args, env=None, **more):
    return run("generate", "-m", MODEL, "-p", "hello there", "-n", 9, "--ignore-eos", "--ids", *args, env={**CACHE, **(env or {})},
               timeout=300, **more)


def counters(*args, **more):
    file = os.path.join(WORK, "counters.json")
    out = generate(*args, "--counters", file, check=0, **more)
    c = json.load(open(file))
    a = c["attention"]
    assert c["add_up"] is True
    assert a["layer_steps"] == a["layers"] * a["steps"] == sum(f["layer_steps"] for f in a["forms"])
    assert a["steps"] == 9 and a["layer_steps"] == c["decisions"]["attention"]
    return out, a


def forms(a):
    return {(f["form"], f["reason"]): f["layer_steps"] for f in a["forms"]}


def device():
    for kind in json.loads(run("devices", "--json", env=CACHE, check=0).stdout):
        if kind["devices"]:
            return kind["kind"]
    raise Skip("no device here")


@case
def unknown_forms_are_errors():
    out = generate("--attn", "v3", check=64)
    assert b"auto, v1, v2, cascade, gather" in out.stderr
    out = generate("--backend", "cpu", env={"PLUMB_ATTN_OFF": "v2,flash"}, check=64)
    assert b"'flash'" in out.stderr and b"cascade" in out.stderr
    out = generate("--backend", "cpu", "--attn", "v2", env={"PLUMB_ATTN_OFF": "v2"}, check=64)
    assert b"PLUMB_ATTN_OFF" in out.stderr


@case
def the_cpu_has_one_form():
    _, a = counters("--backend", "cpu")
    assert forms(a) == {("cpu", ""): a["layer_steps"]}
    out, a = counters("--backend", "cpu", "--attn", "cascade")
    assert forms(a) == {("cpu", "no port"): a["layer_steps"]}
    assert b"plumb: kernels: decode attention cascade\n" in out.stderr
    out = generate("--backend", "cpu", "--attn", "cascade", "--strict", check=None)
    assert out.returncode != 0 and b"no port" in out.stderr


@case
def every_form_gives_the_same_text():
    kind = device()
    base, a = counters("--backend", kind)
    steps = 8 * a["layers"]
    for form in ("v1", "v2", "gather"):
        out, a = counters("--backend", kind, "--attn", form)
        assert forms(a)[(form, "")] == steps, forms(a)
        assert out.stdout == base.stdout
        assert (a["gathered_bytes"] > 0) == (form == "gather")
    out, a = counters("--backend", kind, "--attn", "cascade")
    assert sum(n for (_, reason), n in forms(a).items() if reason == "nothing shared") == steps
    assert out.stdout == base.stdout
    out = generate("--backend", kind, "--attn", "cascade", "--strict", check=None)
    assert out.returncode != 0 and b"nothing shared" in out.stderr


@case
def the_kill_switch_is_counted_and_shown():
    kind = device()
    out, a = counters("--backend", kind, env={"PLUMB_ATTN_OFF": "v2,cascade"})
    assert b"attention off cascade, v2" in out.stderr
    assert not any(form in ("v2", "cascade") for form, _ in forms(a))
    if kind != "cuda":
        assert forms(a)[("v1", "kill switch")] == 8 * a["layers"], forms(a)


@case
def forms_read_what_sequences_share():
    """Sequences with one beginning in the same pages: v2 and v1 must read all of it, with no cascade to do that for them."""
    from concurrent.futures import ThreadPoolExecutor

    from tests.serve.support import Server
    kind = device()
    if run("serve", "--help").returncode != 0:
        raise Skip("this build has no server")
    shared, texts = "the hand and the other hand in the hall " * 9, {}
    for flags in ((), ("--attn", "v2"), ("--attn", "v1"), ("--disable-kernel", "attention=cascade")):
        server = Server(MODEL, "--backend", kind, "--parallel", "4", "-c", "512", "--metrics", *flags, env=CACHE)
        ask = lambda end: server.call("POST", "/v1/completions", {"prompt": shared + end, "max_tokens": 16, "ignore_eos": True, "temperature": 0}, timeout=300)
        try:
            assert ask("first")[0] == 200  # leaves the beginning in the cache
            with ThreadPoolExecutor(4) as pool:
                answers = list(pool.map(ask, ("one", "two", "three", "four")))
            used = server.call("GET", "/metrics")[1].decode()
        finally:
            server.stop()
        assert [a[0] for a in answers] == [200] * 4, (flags, answers)
        texts[flags] = [a[1]["choices"][0]["text"] for a in answers]
        assert 'outcome="used"' not in used or flags == (), used
    assert len({json.dumps(t) for t in texts.values()}) == 1, texts


@case
def plans_are_reused_while_no_page_moves():
    kind = device()
    _, a = counters("--backend", kind, "--attn", "v2")
    assert a["plans"] == 8 and a["plans_reused"] >= 6, a


@case
def invariant_mode_takes_one_form():
    kind = device()
    _, a = counters("--backend", kind, "--invariant")
    assert forms(a) == {("v2", ""): a["layer_steps"]}, forms(a)
    assert a["invariant"] is True


if __name__ == "__main__":
    main()
