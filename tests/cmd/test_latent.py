"""Made DeepSeek models whose latent keys are as wide as published ones (512 + 64), with 16 and with 64 heads, which the tiny
checkpoints are not: the distributions of every backend present at 1, 8 and 120 rows a step beside those of the CPU's scalar
table, and what attention ran. PLUMB_TEST_DEVICE=cuda: that backend alone.

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

WIDTH, INNER, EXPERTS, LATENT, ROPE, NOPE, VALUE, LAYERS, VOCAB, TOKENS = 256, 256, 8, 512, 64, 32, 32, 2, 256, 120
F32, Q8_0 = 0, 8


def model(heads, nope=NOPE, value=VALUE):
    rng, tensors, data = random.Random(heads), [], []

    def add(name, shape, kind=Q8_0, spread=None, mean=0.0):
        n = 1
        for s in shape:
            n *= s
        spread = shape[0] ** -0.5 if spread is None else spread
        if kind == F32:
            bits = struct.pack(f"<{n}f", *(rng.gauss(mean, spread) for _ in range(n)))
        else:
            scale = struct.pack("<e", spread / 73)
            bits = b"".join(scale + rng.randbytes(32) for _ in range(n // 32))
        tensors.append((name, shape, kind, len(bits)))
        data.append(bits)

    add("token_embd.weight", (WIDTH, VOCAB), Q8_0, 1.0)
    add("output_norm.weight", (WIDTH,), F32, 0.2, 1.0)
    add("output.weight", (WIDTH, VOCAB))
    for layer in range(LAYERS):
        p = f"blk.{layer}."
        add(p + "attn_norm.weight", (WIDTH,), F32, 0.2, 1.0)
        add(p + "ffn_norm.weight", (WIDTH,), F32, 0.2, 1.0)
        add(p + "attn_q.weight", (WIDTH, heads * (nope + ROPE)))
        add(p + "attn_kv_a_mqa.weight", (WIDTH, LATENT + ROPE))
        add(p + "attn_kv_a_norm.weight", (LATENT,), F32, 0.2, 1.0)
        add(p + "attn_k_b.weight", (nope, LATENT, heads), Q8_0, LATENT ** -0.5)
        add(p + "attn_v_b.weight", (LATENT, value, heads))
        add(p + "attn_output.weight", (heads * value, WIDTH))
        if layer == 0:
            for name, shape in (("gate", (WIDTH, INNER)), ("up", (WIDTH, INNER)), ("down", (INNER, WIDTH))):
                add(p + f"ffn_{name}.weight", shape)
            continue
        add(p + "ffn_gate_inp.weight", (WIDTH, EXPERTS), F32, 2 * WIDTH ** -0.5)
        for kind, more in (("exps", (EXPERTS,)), ("shexp", ())):
            for name, shape in (("gate", (WIDTH, INNER)), ("up", (WIDTH, INNER)), ("down", (INNER, WIDTH))):
                add(p + f"ffn_{name}_{kind}.weight", shape + more)
    a = "deepseek2."
    meta = {"general.architecture": "deepseek2", a + "context_length": 2048, a + "embedding_length": WIDTH, a + "block_count": LAYERS,
            a + "feed_forward_length": INNER, a + "attention.head_count": heads, a + "attention.head_count_kv": 1,
            a + "attention.key_length": LATENT + ROPE, a + "attention.value_length": LATENT, a + "attention.key_length_mla": nope + ROPE,
            a + "attention.value_length_mla": value, a + "attention.kv_lora_rank": LATENT, a + "rope.dimension_count": ROPE,
            a + "attention.layer_norm_rms_epsilon": 1e-6, a + "rope.freq_base": 10000.0, a + "vocab_size": VOCAB,
            a + "leading_dense_block_count": 1, a + "expert_count": EXPERTS, a + "expert_used_count": 2, a + "expert_shared_count": 1,
            a + "expert_feed_forward_length": INNER, a + "expert_gating_func": 1, "tokenizer.ggml.model": "no_vocab"}
    head, size = gguf(meta, tensors)
    out = bytearray(head)
    for bits in data:
        out += bits + b"\0" * (-len(bits) % 32)
    assert len(out) == size
    return path(f"latent{heads}-{nope}.gguf", bytes(out))


IDS = path("ids.json", json.dumps(random.Random(5).choices(range(VOCAB), k=TOKENS)))
FILES = {heads: model(heads) for heads in (16, 64)}
PUBLISHED = "16 of 128 + 64 and 128"


def reference(heads):
    to = path(f"reference{heads}")
    if not os.path.exists(to):
        run("eval", "-m", FILES[heads], "--tokens", IDS, "--backend", "cpu", "--isa", "scalar", "-c", "128", "--reference-dtype", "f32",
            "--disable-kernel", "attention=expanded", "--save-reference", to, check=0)
    return to


def distance(heads, *args):
    out = run("eval", "-m", FILES[heads], "--tokens", IDS, "-c", "128", "--against", reference(heads), "--json", *args, timeout=800)
    if out.returncode != 0 and any(w in out.stderr for w in (b"no device", b"no usable device", b"libcuda", b"not found")):
        raise Skip(out.stderr.decode().strip().splitlines()[-1][:100])
    assert out.returncode == 0, out.stderr
    c = json.loads(out.stdout)
    c = c["against"] | {"on": c["backend"]}
    print(f"# {heads} heads, {' '.join(map(str, args))}: KL median {c['kl_median']['value']:.2e}, mean {c['kl_mean']['value']:.2e}")
    return c


def of_backend(name, heads, kernel, many=None):
    if os.environ.get("PLUMB_TEST_DEVICE", name).split(":")[0] != name:
        raise Skip("another device was asked for")
    for rows in (1, 8, 120):
        seen = path("witness.json")
        c = distance(heads, "--backend", name, "--batch-rows", rows, "--witness", seen)
        assert c["kl_median"]["value"] < 2e-3 and c["kl_mean"]["value"] < 2e-2, c
        ran = sorted({k["kernel"] for k in json.load(open(seen))["kernels"] if k["op"] == "attention"})
        print(f"# {name}, {heads} heads, {rows} rows a step:", *ran)
        assert any((many or kernel if rows >= 64 else kernel) in k for k in ran), ran


@case
def cpu_tables_agree():
    for rows in (1, 64):
        c = distance(16, "--backend", "cpu", "--batch-rows", rows, "--disable-kernel", "attention=expanded")
        assert c["kl_median"]["value"] < 2e-3, c


ASKED, INVARIANT = ("--force-kernel", "attention=expanded"), ("--invariant",)


def goes_by_keys_of_heads(name, *steps, heads=16, kernel="expanded"):
    """steps: rows of each, how it is asked for, whether it goes so."""
    seen = path("witness.json")
    for rows, args, by_heads in steps:
        c = distance(heads, "--backend", name, "--batch-rows", rows, "--witness", seen, *args)
        assert c["kl_median"]["value"] < 2e-3, c
        ran = {k["kernel"]: k["launches"] for k in json.load(open(seen))["kernels"] if k["op"] == "attention"}
        assert ran and any(kernel in k for k in ran) == by_heads, (rows, args, ran)


@case
def cpu_goes_by_keys_of_heads():
    """A long step by itself, short ones when asked; under --invariant never."""
    goes_by_keys_of_heads("cpu", (120, (), True), (24, ASKED, True), (24, (), False), (120, INVARIANT, False))


@case
def opencl_goes_by_keys_of_heads():
    """Long steps by themselves: opencl_agrees, on a processor. On another OpenCL device, as on CUDA, only when asked."""
    if os.environ.get("PLUMB_TEST_DEVICE", "opencl").split(":")[0] != "opencl":
        raise Skip("another device was asked for")
    goes_by_keys_of_heads("opencl", (24, ASKED, True), (120, ASKED + INVARIANT, False))


@case
def cuda_goes_by_keys_of_heads_when_asked():
    if os.environ.get("PLUMB_TEST_DEVICE", "cuda").split(":")[0] != "cuda":
        raise Skip("another device was asked for")
    goes_by_keys_of_heads("cuda", (120, ASKED, True), (120, (), False))


@case
def cuda_goes_by_keys_of_heads_by_itself():
    """Heads as published have them, on Hopper: in steps of 64 rows and more, by its tensor cores."""
    if os.environ.get("PLUMB_TEST_DEVICE", "cuda").split(":")[0] != "cuda":
        raise Skip("another device was asked for")
    c = distance(16, "--backend", "cuda")
    if "sm_90a" not in c["on"]:
        raise Skip("not sm_90a")
    FILES[PUBLISHED] = model(16, nope=128, value=128)
    goes_by_keys_of_heads("cuda", (120, (), True), (24, (), False), (24, ASKED, True), (120, INVARIANT, False), heads=PUBLISHED,
                          kernel="expanded_attend/wide")


@case
def opencl_agrees():
    of_backend("opencl", 16, "paged_v2/", "expanded_attend/")


@case
def cuda_agrees_with_16_heads():
    of_backend("cuda", 16, "paged_v2_mla")


@case
def cuda_agrees_with_64_heads():
    of_backend("cuda", 64, "paged_v2_mla")


@case
def another_scale_is_seen():
    """The bound is no formality: the same model with keys that rotate by another base is outside of it."""
    data = open(FILES[16], "rb").read()
    key = b"deepseek2.rope.freq_base"
    at = data.index(key) + len(key) + 4
    assert struct.unpack("<f", data[at : at + 4])[0] == 10000.0
    FILES[17] = path("other.gguf", data[:at] + struct.pack("<f", 300.0) + data[at + 4 :])
    out = run("eval", "-m", FILES[17], "--tokens", IDS, "-c", "128", "--backend", "cpu", "--against", reference(16), "--json", check=0)
    c = json.loads(out.stdout)["against"]
    assert c["kl_median"]["value"] > 4e-3, c


main()
