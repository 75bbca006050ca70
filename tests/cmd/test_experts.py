"""A made mixture of experts whose matrices are as wide as kernels for tensor cores want them (Q4_K and Q6_K, inputs of 256 and
more, 32 experts), which the tiny checkpoints are not: the distributions of every backend present at 1, 8, 64 and 200 rows a step
beside those of the CPU's scalar table, and what ran. PLUMB_TEST_DEVICE=cuda: that backend alone.

test-timeout: 900
"""
import json
import os
import random
import struct
import sys

sys.path.insert(0, os.getcwd())
from tests.cmd.support import gguf, path, run
from tests.tap import Skip, case, main

WIDTH, INNER, EXPERTS, USED, LAYERS, VOCAB, TOKENS = 512, 512, 32, 4, 2, 256, 200
F32, Q4_K, Q6_K = 0, 12, 14


def blocks(rng, n, kind, spread):
    """n weights of mean 0 and about that spread."""
    out = bytearray()
    half = lambda v: struct.pack("<e", v)
    for _ in range(n // 256):
        if kind == Q4_K:
            out += half(spread / 170) + half(7.5 * spread / 170) + rng.randbytes(140)
        else:
            out += rng.randbytes(208) + half(spread / 1370)
    return bytes(out)


def floats(rng, n, mean, spread):
    return struct.pack(f"<{n}f", *(rng.gauss(mean, spread) for _ in range(n)))


def together(gate, up):
    """Gate and up of every expert, one after the other."""
    size = len(gate) // EXPERTS
    return b"".join(gate[e * size : (e + 1) * size] + up[e * size : (e + 1) * size] for e in range(EXPERTS))


def model(fused=False):
    rng, tensors, data = random.Random(11), [], []

    def add(name, shape, kind, spread=None, mean=0.0):
        n = 1
        for s in shape:
            n *= s
        spread = shape[0] ** -0.5 if spread is None else spread
        bits = floats(rng, n, mean, spread) if kind == F32 else blocks(rng, n, kind, spread)
        tensors.append((name, shape, kind, len(bits)))
        data.append(bits)

    add("token_embd.weight", (WIDTH, VOCAB), Q4_K, 1.0)
    add("output_norm.weight", (WIDTH,), F32, 0.2, 1.0)
    add("output.weight", (WIDTH, VOCAB), Q6_K)
    for layer in range(LAYERS):
        p, second = f"blk.{layer}.", Q6_K if layer % 2 else Q4_K
        add(p + "attn_norm.weight", (WIDTH,), F32, 0.2, 1.0)
        add(p + "ffn_norm.weight", (WIDTH,), F32, 0.2, 1.0)
        for name, out in (("q", 512), ("k", 128), ("v", 128), ("output", WIDTH)):
            add(p + f"attn_{name}.weight", (WIDTH if name != "output" else 512, out), Q4_K)
        add(p + "attn_q_norm.weight", (64,), F32, 0.2, 1.0)
        add(p + "attn_k_norm.weight", (64,), F32, 0.2, 1.0)
        add(p + "ffn_gate_inp.weight", (WIDTH, EXPERTS), F32, 2 * WIDTH ** -0.5)
        add(p + "ffn_gate_exps.weight", (WIDTH, INNER, EXPERTS), Q4_K)
        add(p + "ffn_up_exps.weight", (WIDTH, INNER, EXPERTS), Q4_K)
        if fused:
            data[-2:] = [together(*data[-2:])]
            tensors[-2:] = [(p + "ffn_gate_up_exps.weight", (WIDTH, 2 * INNER, EXPERTS), Q4_K, len(data[-1]))]
        add(p + "ffn_down_exps.weight", (INNER, WIDTH, EXPERTS), second)
    meta = {"general.architecture": "qwen3moe", "qwen3moe.context_length": 2048, "qwen3moe.embedding_length": WIDTH,
            "qwen3moe.block_count": LAYERS, "qwen3moe.feed_forward_length": 1024, "qwen3moe.attention.head_count": 8,
            "qwen3moe.attention.head_count_kv": 2, "qwen3moe.attention.key_length": 64, "qwen3moe.attention.value_length": 64,
            "qwen3moe.attention.layer_norm_rms_epsilon": 1e-5, "qwen3moe.rope.freq_base": 10000.0, "qwen3moe.vocab_size": VOCAB,
            "qwen3moe.expert_count": EXPERTS, "qwen3moe.expert_used_count": USED, "qwen3moe.expert_feed_forward_length": INNER,
            "tokenizer.ggml.model": "no_vocab"}
    head, size = gguf(meta, tensors)
    out = bytearray(head)
    for bits in data:
        out += bits + b"\0" * (-len(bits) % 32)
    assert len(out) == size
    return path("fused.gguf" if fused else "experts.gguf", bytes(out))


FILE = model()
IDS = path("ids.json", json.dumps(random.Random(5).choices(range(VOCAB), k=TOKENS)))
REFERENCE = path("reference")
run("eval", "-m", FILE, "--tokens", IDS, "--backend", "cpu", "--isa", "scalar", "-c", "256", "--reference-dtype", "f32",
    "--save-reference", REFERENCE, check=0)


def distance(*args):
    out = run("eval", "-m", FILE, "--tokens", IDS, "-c", "256", "--against", REFERENCE, "--json", *args, timeout=800)
    if out.returncode != 0 and any(w in out.stderr for w in (b"no device", b"no usable device", b"libcuda", b"not found")):
        raise Skip(out.stderr.decode().strip().splitlines()[-1][:100])
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)


def near(d):
    """Rounding of inputs turns a near tie between experts here and there: the median says what rounding does, the mean bounds it."""
    c = d["against"]
    print(f"# KL median {c['kl_median']['value']:.2e}, mean {c['kl_mean']['value']:.2e}")
    assert c["kl_median"]["value"] < 2e-3 and c["kl_mean"]["value"] < 2e-2, d


def of_backend(name):
    if os.environ.get("PLUMB_TEST_DEVICE", name).split(":")[0] != name:
        raise Skip("another device was asked for")
    for rows, *more in ((1,), (8,), (64,), (200,)) + (((200, "--force-kernel", "moe=dense"),) if name == "cuda" else ()):
        seen = path("witness.json")
        near(distance("--backend", name, "--batch-rows", rows, "--witness", seen, *more))
        ran = sorted({k["kernel"] for k in json.load(open(seen))["kernels"] if k["op"] == "moe"})
        print(f"# {name}, {rows} rows a step:", *ran)
        assert ran


@case
def cpu_tables_agree():
    for rows in (1, 64):
        near(distance("--backend", "cpu", "--batch-rows", rows))


@case
def opencl_agrees():
    of_backend("opencl")


@case
def cuda_agrees():
    of_backend("cuda")


@case
def gate_and_up_may_stand_in_one_tensor():
    """As converters write it when asked to (ffn_gate_up_exps): the same bits."""
    dumps = [path(name) for name in ("apart.jsonl", "fused.jsonl")]
    for file, dump in zip((FILE, model(fused=True)), dumps):
        run("eval", "-m", file, "--tokens", IDS, "--backend", "cpu", "-c", "256", "--dump", dump, check=0)
    apart, fused = (open(d).read() for d in dumps)
    assert apart == fused and apart.count("\n") == TOKENS, (apart[:200], fused[:200])


@case
def another_router_is_seen():
    """The bound is no formality: the same model with one choice less a token is far outside of it."""
    data = open(FILE, "rb").read()
    key = b"qwen3moe.expert_used_count" + struct.pack("<I", 4)
    at = data.index(key) + len(key)
    assert struct.unpack("<I", data[at : at + 4])[0] == USED
    other = path("fewer.gguf", data[:at] + struct.pack("<I", USED - 1) + data[at + 4 :])
    out = run("eval", "-m", other, "--tokens", IDS, "-c", "256", "--backend", "cpu", "--against", REFERENCE, "--json", check=0)
    c = json.loads(out.stdout)["against"]
    assert c["kl_median"]["value"] > 1e-2, c


main()
