"""References and what is measured against them: exact where the same model made both, refused where texts, windows or
vocabularies differ, continued where a run was cut, and over HTTP by both ways that servers have."""
import http.server
import json
import math
import os
import random
import struct
import threading

from tests.cmd.support import GOLDEN, path, run, tiny
from tests.tap import case, main
from tests.verify.answers import Answers

IDS = random.Random(7).choices(range(96), k=120)
FILE = path("ids.json", json.dumps(IDS))


def evaluate(*args, model=GOLDEN, check=0, ids=FILE):
    out = run("eval", "-m", model, "--tokens", ids, "--json", *args, check=check)
    return json.loads(out.stdout) if check == 0 else out


def reference(name="a.ref", *args):
    full = path(name)
    evaluate("--save-reference", full, *args)
    return full


@case
def the_same_model_is_at_distance_zero():
    out = evaluate("--against", reference("f32.ref", "--reference-dtype", "f32"))["against"]
    assert out["kl_max"] < 1e-9 and out["top1_agreement"]["value"] == 1 and abs(out["perplexity_ratio"]["value"] - 1) < 1e-9
    out = evaluate("--against", reference("f16.ref"))["against"]  # what rounding to 16 bits costs
    assert out["kl_max"] < 1e-5 and out["top1_agreement"]["value"] == 1 and not out["kl_is_lower_bound"]


def saved_rows(name):
    """The distributions of a reference in f32."""
    data = open(name, "rb").read()
    vocab, origin = struct.unpack_from("<I", data, 16)[0], struct.unpack_from("<Q", data, 56)[0]
    at, size = 64 + origin + 4 * len(IDS), 16 + vocab * 4 + (vocab * 4) % 8 + 8
    return [struct.unpack_from(f"<{vocab}f", data, at + i * size + 16) for i in range(len(IDS) - 1)]


@case
def divergence_is_what_its_definition_gives():
    """A small vocabulary, so that the reference file can be read here and the sum done by hand."""
    a, b = reference("one.ref", "--reference-dtype", "f32"), path("two.ref")
    args = ("--kv-dtype", "bf16")  # another numeric path: close, not equal
    run("eval", "-m", GOLDEN, "--tokens", FILE, "--save-reference", b, "--reference-dtype", "f32", *args, check=0)
    rows = [saved_rows(name) for name in (a, b)]
    kl = [sum(math.exp(x) * (x - y) for x, y in zip(p, q)) for p, q in zip(*rows)]
    agree = [p.index(max(p)) == q.index(max(q)) for p, q in zip(*rows)]
    out = evaluate("--against", a, *args)["against"]
    assert max(kl) > 1e-7 and abs(out["kl_max"] - max(kl)) < 1e-6, (out, max(kl))
    assert abs(out["kl_mean"]["value"] - sum(kl) / len(kl)) < 1e-6
    assert abs(out["top1_agreement"]["value"] - sum(agree) / len(agree)) < 1e-9
    assert out["top1_or_near_tie"]["value"] == 1
    m = out["kl_mean"]
    assert m["low"] <= m["value"] <= m["high"] and m["low"] < m["high"]


@case
def a_near_tie_is_no_agreement():
    """The model with other angles: of the places where its choice is another one, some are near-ties (0.25 nats) and some are not."""
    a, b = reference("one.ref", "--reference-dtype", "f32"), path("other.ref")
    data, key = open(GOLDEN, "rb").read(), b"llama.rope.freq_base"
    at = data.index(key) + len(key) + 4
    other = path("other.gguf", data[:at] + struct.pack("<f", 10000.0) + data[at + 4:])
    run("eval", "-m", other, "--tokens", FILE, "--save-reference", b, "--reference-dtype", "f32", check=0)
    rows = [saved_rows(name) for name in (a, b)]
    gaps = [max(p) - p[q.index(max(q))] for p, q in zip(*rows)]
    scores = path("near.jsonl")
    out = json.loads(run("eval", "-m", other, "--tokens", FILE, "--against", a, "--scores", scores, "--json", check=0).stdout)["against"]
    same, near = sum(g == 0 for g in gaps), sum(g <= 0.25 for g in gaps)
    assert same < near < len(gaps), (same, near, len(gaps))
    assert abs(out["top1_agreement"]["value"] - same / len(gaps)) < 1e-9 and abs(out["top1_or_near_tie"]["value"] - near / len(gaps)) < 1e-9, (out, same, near)
    kept = open(scores).read().splitlines()
    open(scores, "w").write("\n".join(kept[:len(kept) // 2]) + "\n")  # taken back, the half that is there counts the same
    again = json.loads(run("eval", "-m", other, "--tokens", FILE, "--against", a, "--scores", scores, "--resume", "--json", check=0).stdout)["against"]
    assert again["top1_or_near_tie"] == out["top1_or_near_tie"] and again["top1_agreement"] == out["top1_agreement"]


@case
def an_interval_holds_the_perplexity():
    out = evaluate()
    i = out["perplexity_interval"]
    assert i["low"] < out["perplexity"] == i["value"] < i["high"]
    assert evaluate()["perplexity_interval"] == i  # the same samples, the same interval


@case
def an_interrupted_run_goes_on():
    whole = reference("whole.ref")
    want, data = evaluate("--against", whole), open(whole, "rb").read()
    for cut in (len(data) // 3, len(data) - 1, len(data) - len(data) // 50, len(data)):
        part, scores = path("part.ref", data[:cut]), path("part.scores")
        evaluate("--save-reference", part, "--resume")
        assert abs(len(open(part, "rb").read()) - len(data)) == 0
        assert evaluate("--against", part)["perplexity"] == want["perplexity"] or abs(
            evaluate("--against", part)["perplexity"] / want["perplexity"] - 1) < 1e-4
        if os.path.exists(scores):
            os.remove(scores)
        evaluate("--against", whole, "--scores", scores)
        lines = open(scores).read()
        open(scores, "w").write(lines[:len(lines) // 2])
        assert evaluate("--against", whole, "--scores", scores, "--resume")["scored"] == 119
        assert len(open(scores).read().splitlines()) == 120
    out = run("eval", "-m", GOLDEN, "--tokens", FILE, "--save-reference", part, "--resume", check=0)
    assert b"119 of 119" in out.stderr


@case
def a_damaged_or_foreign_reference_is_refused():
    good = open(reference("good.ref"), "rb").read()
    size = (len(good) - 64 - struct.unpack_from("<Q", good, 56)[0] - 480) // 119
    flip = lambda at: good[:at] + bytes([good[at] ^ 1]) + good[at + 1:]
    for name, data, words in (("empty", b"", b"no reference"), ("magic", flip(0), b"no reference"), ("version", flip(8), b"version"),
                              ("form", good[:12] + b"\xff" * 4 + good[16:], b"damaged"), ("vocab", good[:16] + b"\0" * 4 + good[20:], b"damaged"),
                              ("count", good[:32] + b"\xff" * 8 + good[40:], b"damaged"), ("ids", flip(len(good) - 119 * size - 3), b"ids"),
                              ("origin", good[:56] + b"\xff" * 8 + good[64:], b"damaged"),
                              ("row", flip(len(good) - 3 * size), b"is damaged"), ("short", good[:-5 * size - 3], b"interrupted")):
        out = evaluate("--against", path(f"{name}.ref", data), check=1)
        assert words in out.stderr and out.stdout == b"", (name, out)
    other = path("other.json", json.dumps(IDS[:-1] + [(IDS[-1] + 1) % 96]))
    ref = path("good.ref")
    assert b"another text" in evaluate("--against", ref, ids=other, check=1).stderr
    assert b"window" in evaluate("--against", ref, "--window", "64", check=1).stderr
    out = run("eval", "-m", tiny(), "--tokens", FILE, "--against", ref, check=1)
    assert b"another vocabulary" in out.stderr or b"vocabulary has" in out.stderr, out
    assert b"no-such" in evaluate("--against", "no-such", check=1).stderr
    assert b"resume" in evaluate("--resume", check=64).stderr
    assert b"same file" in evaluate("--against", ref, "--save-reference", ref, check=64).stderr
    assert b"f64" in evaluate("--save-reference", path("x.ref"), "--reference-dtype", "f64", check=64).stderr
    assert b"http" in run("eval", "--url", "ftp://x", "--tokens", FILE, check=64).stderr


class Fake(Answers):
    """A server of one distribution: id i follows id j with a probability that depends on both; way: echo, steps or none."""
    V = 96

    @classmethod
    def row(cls, last):
        logits = [math.sin(last * 1.7 + i * 0.9) * 2 for i in range(cls.V)]
        z = math.log(sum(math.exp(x) for x in logits))
        return [x - z for x in logits]

    def do_GET(self):
        if self.path == "/v1/models":
            return self.send(200, {"data": [{"meta": {"n_vocab": self.V}}]})
        self.send(404, {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        way, ids = self.server.way, body["prompt"]
        self.server.asked += 1
        if self.server.lasts is not None and self.server.asked > self.server.lasts:
            return self.send(503, {"error": {"message": "gone"}})
        if self.path == "/v1/completions" and (way == "echo" or way.startswith("echo ")):
            if body["max_tokens"] == 0 and self.server.wants_one:
                return self.send(400, {"error": {"message": "max_tokens"}})
            chosen, tops = [None], [None]
            lies = {"positive": 5, "huge": -1e300, "text": "x", "null": None}
            for a, b in zip(ids, ids[1:]):
                r = self.row(a)
                best = sorted(range(self.V), key=lambda i: -r[i])[:body["logprobs"]]
                chosen.append(r[b])
                tops.append({f"t{i}": r[i] for i in best + [b]})
            if way != "echo":
                chosen[len(chosen) // 2] = lies[way.split()[1]]
            self.send(200, {"choices": [{"text": "", "logprobs": {"tokens": [f"t{i}" for i in ids], "token_logprobs": chosen, "top_logprobs": tops}}]})
        elif self.path == "/completion" and way == "steps":
            r = self.row(ids[-1])
            best = sorted(range(self.V), key=lambda i: -r[i])[:body["n_probs"]]
            self.send(200, {"completion_probabilities": [{"top_logprobs": [{"id": i, "token": f"t{i}", "logprob": r[i]} for i in best]}]})
        elif self.path == "/v1/completions":
            self.send(200, {"choices": [{"text": "x", "logprobs": {"content": []}}]})
        else:
            self.send(404, {})


def serve(way, lasts=None, wants_one=False):
    h = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Fake)
    h.way, h.lasts, h.asked, h.wants_one = way, lasts, 0, wants_one
    threading.Thread(target=h.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{h.server_address[1]}"


def ask(url, *args, check=0):
    out = run("eval", "--url", url, "--tokens", FILE, "--window", "32", "--json", *args, check=check)
    return json.loads(out.stdout) if check == 0 else out


@case
def servers_by_both_ways():
    exact = math.exp(-sum(Fake.row(a)[b] for a, b in zip(IDS, IDS[1:])) / 119)
    for way, one in (("echo", False), ("echo", True), ("steps", False)):
        url = serve(way, wants_one=one)
        out = ask(url)
        assert out["way"] == way and out["scored"] == 119 and abs(out["perplexity"] / exact - 1) < 1e-5, out
        ref = path(f"{way}.ref")
        ask(url, "--save-reference", ref)
        out = ask(url, "--against", ref)["against"]
        assert out["kl_max"] < 1e-5 and out["top1_agreement"]["value"] == 1
        assert out["kl_is_lower_bound"] == (way == "echo")
    for lie in ("positive", "huge", "text", "null"):
        assert b"no log-probability" in ask(serve("echo " + lie), check=1).stderr, lie
    out = ask(serve("none"), check=1)
    assert b"cannot be evaluated" in out.stderr and b"echo" in out.stderr and b"n_probs" in out.stderr
    assert b"127.0.0.1:1" in ask("http://127.0.0.1:1", check=1).stderr


@case
def a_server_that_dies_leaves_a_run_that_goes_on():
    ref = path("dying.ref")
    out = ask(serve("steps", lasts=50), "--save-reference", ref, check=1)
    assert b"503" in out.stderr and b"gone" in out.stderr
    done = run("eval", "--url", serve("steps"), "--tokens", FILE, "--window", "32", "--save-reference", ref, "--resume", check=0)
    assert b"of 119 tokens were scored before" in done.stderr
    assert ask(serve("steps"), "--against", ref)["against"]["kl_max"] < 1e-5


if __name__ == "__main__":
    main()
