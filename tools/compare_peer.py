#!/usr/bin/env python3
"""Do plumb and llama.cpp read the same GGUF alike? For each case a tiny model with random weights and a real tokenizer is
written as a GGUF, both engines score the same tokens, and the log-probabilities are compared.

    python tools/compare_peer.py --vocabs DIR --llama DIR [--plumb build/plumb] [--out DIR] [CASE ...]

--vocabs holds llama.cpp's ggml-vocab-*.gguf, --llama its llama-perplexity. Weights are f32 and both caches f32, so what is
left is the order of sums and the 16 bits of llama.cpp's file of log-probabilities (about 2e-4); its GELU goes through a
table of 16-bit floats, so Gemma and StarCoder2 get --gelu-limit. Exit 1 when a case is off by more. Needs gguf and numpy.
"""
import argparse
import functools
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

# name: (architecture, vocabulary, sizes, extra metadata, extra tensors). Parts: output (untied), freqs (rope_freqs.weight),
# bias (q, k, v), o_bias, norm (of query and key heads), wide (over all of them), post (norms after both halves), after (only
# those), second (the second one by that name), choice (bias of the router's choice),
# layer (layer norms), norm_bias, plain (no gate), mlp_bias, fused (qkv and gate_up), gate_up, long (LongRoPE),
# parallel (one norm), experts, shared.
E, F = 64, 96
CASES = {
    "llama": ("llama", "llama-spm", dict(layers=3, heads=4, kv=2, head=16), {"rope.freq_base": 10000.0}, ()),
    "llama3": ("llama", "llama-bpe", dict(layers=3, heads=4, kv=1, head=16), {"rope.freq_base": 500000.0}, ("freqs",)),
    "nemo": ("llama", "llama-spm", dict(layers=2, heads=4, kv=2, head=32), {"rope.freq_base": 1e6}, ("output",)),
    "llama-bias": ("llama", "llama-spm", dict(layers=2, heads=4, kv=4, head=16), {}, ("bias", "o_bias", "output")),
    "llama-linear": ("llama", "llama-spm", dict(layers=2, heads=4, kv=2, head=16),
                     {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, ()),
    "llama-untyped": ("llama", "llama-spm", dict(layers=2, heads=4, kv=2, head=16), {"rope.scaling.factor": 4.0}, ()),
    "llama-old": ("llama", "llama-spm", dict(layers=2, heads=4, kv=2, head=16), {"rope.scale_linear": 2.0}, ()),
    "llama-none": ("llama", "llama-spm", dict(layers=2, heads=4, kv=2, head=16),
                   {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, ()),
    "llama-yarn": ("llama", "llama-spm", dict(layers=2, heads=4, kv=2, head=32),
                   {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128},
                   ()),
    "llama-yarn-attn": ("llama", "llama-spm", dict(layers=2, heads=4, kv=2, head=32),
                        {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0,
                         "rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": 0.9}, ()),
    "qwen2": ("qwen2", "qwen2", dict(layers=2, heads=4, kv=2, head=16), {"rope.freq_base": 1e6}, ("bias",)),
    "qwen2-yarn": ("qwen2", "qwen2", dict(layers=2, heads=4, kv=2, head=16),
                   {"rope.freq_base": 1e6, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                    "rope.scaling.original_context_length": 128}, ("bias", "output")),
    "qwen3": ("qwen3", "qwen2", dict(layers=2, heads=4, kv=2, head=32), {"rope.freq_base": 1e6}, ("norm",)),
    "qwen3vl": ("qwen3vl", "qwen2", dict(layers=2, heads=4, kv=2, head=32),
                {"rope.freq_base": 5e6, "rope.dimension_sections": [6, 5, 5, 0], "n_deepstack_layers": 0}, ("norm",)),
    "gemma": ("gemma", "llama-spm", dict(layers=2, heads=4, kv=1, head=32), {}, ()),
    "exaone4": ("exaone4", "qwen2", dict(layers=4, heads=4, kv=2, head=16), {"rope.freq_base": 1e6}, ("norm", "after", "freqs")),
    "ernie4_5": ("ernie4_5", "llama-spm", dict(layers=2, heads=4, kv=2, head=32), {"rope.freq_base": 500000.0}, ()),
    "seed_oss": ("seed_oss", "qwen2", dict(layers=2, heads=4, kv=2, head=32), {"rope.freq_base": 1e7},
                 ("bias", "output", "second")),
    "glm4moe": ("glm4moe", "qwen2", dict(layers=3, heads=4, kv=2, head=32, experts=8, inner=48, shared=48, dense=1),
                {"rope.freq_base": 1e6, "rope.dimension_count": 16, "expert_count": 8, "expert_used_count": 3,
                 "expert_shared_count": 1, "expert_feed_forward_length": 48, "leading_dense_block_count": 1,
                 "expert_weights_scale": 1.5, "expert_weights_norm": True, "expert_gating_func": 2, "nextn_predict_layers": 0},
                ("bias", "norm", "output", "second", "experts", "shared", "choice")),
    "gemma3": ("gemma3", "llama-spm", dict(layers=7, heads=4, kv=1, head=32),
               {"rope.freq_base": 1e6, "attention.sliding_window": 48}, ("norm", "post")),
    "gemma3-linear": ("gemma3", "llama-spm", dict(layers=7, heads=4, kv=1, head=32),
                      {"rope.freq_base": 1e6, "attention.sliding_window": 48, "rope.scaling.type": "linear",
                       "rope.scaling.factor": 8.0, "final_logit_softcapping": 6.0}, ("norm", "post")),
    "gemma3-pattern": ("gemma3", "llama-spm", dict(layers=4, heads=4, kv=2, head=16),
                       {"rope.freq_base": 1e6, "rope.freq_base_swa": 20000.0, "attention.sliding_window": 32,
                        "attention.sliding_window_pattern": 3}, ("norm", "post")),
    "gemma3-flags": ("gemma3", "llama-spm", dict(layers=4, heads=4, kv=2, head=16),
                     {"rope.freq_base": 1e6, "attention.sliding_window": 32,
                      "attention.sliding_window_pattern": [True, False, False, True]}, ("norm", "post")),
    "gemma2": ("gemma2", "llama-spm", dict(layers=4, heads=4, kv=2, head=16),
               {"attention.sliding_window": 48, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0}, ("post",)),
    "phi3": ("phi3", "phi-3", dict(layers=3, heads=4, kv=2, head=16),
             {"rope.dimension_count": 12, "rope.scaling.original_context_length": 2048, "rope.scaling.attn_factor": 1.1},
             ("fused", "output", "long")),
    "smollm3": ("smollm3", "llama-bpe", dict(layers=5, heads=4, kv=2, head=16), {"rope.freq_base": 5e6}, ()),
    "granite": ("granite", "refact", dict(layers=3, heads=4, kv=2, head=16),
                {"embedding_scale": 3.0, "residual_scale": 0.5, "attention.scale": 0.2, "logit_scale": 2.0}, ()),
    "mistral3": ("mistral3", "llama-bpe", dict(layers=3, heads=4, kv=2, head=32), {"rope.freq_base": 1e9}, ("output",)),
    "olmo2": ("olmo2", "gpt-2", dict(layers=3, heads=4, kv=4, head=16), {"rope.freq_base": 5e5}, ("wide", "after", "output")),
    "olmo3": ("olmo2", "gpt-2", dict(layers=4, heads=4, kv=2, head=16),
              {"rope.freq_base": 5e5, "attention.sliding_window": 48, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
               "rope.scaling.original_context_length": 128,
               "attention.sliding_window_pattern": [True, True, True, False]}, ("wide", "after", "output")),
    "starcoder2": ("starcoder2", "starcoder", dict(layers=3, heads=4, kv=2, head=16), {"rope.freq_base": 1e6},
                   ("layer", "norm_bias", "bias", "o_bias", "plain", "mlp_bias")),
    "command-r": ("command-r", "command-r", dict(layers=3, heads=4, kv=4, head=16),
                  {"logit_scale": 0.5, "rope.scaling.type": "none"}, ("layer", "parallel")),
    "cohere2": ("cohere2", "command-r", dict(layers=5, heads=4, kv=2, head=16),
                {"logit_scale": 0.5, "attention.sliding_window": 48, "rope.scaling.type": "none"}, ("layer", "parallel")),
    "chatglm": ("chatglm", "llama-bpe", dict(layers=3, heads=4, kv=2, head=16), {"rope.dimension_count": 8},
                ("fused", "bias", "output")),
    "glm4": ("glm4", "llama-bpe", dict(layers=3, heads=4, kv=2, head=16), {"rope.dimension_count": 8},
             ("gate_up", "post", "bias", "output")),
    "mixtral": ("llama", "llama-spm", dict(layers=3, heads=4, kv=2, head=16, experts=4),
                {"expert_count": 4, "expert_used_count": 2}, ("experts", "output")),
    "qwen3moe": ("qwen3moe", "qwen2", dict(layers=2, heads=4, kv=2, head=32, experts=8, inner=32),
                 {"rope.freq_base": 1e6, "expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 32},
                 ("norm", "experts")),
    "qwen2moe": ("qwen2moe", "qwen2", dict(layers=2, heads=4, kv=2, head=16, experts=6, inner=32, shared=80),
                 {"rope.freq_base": 1e6, "expert_count": 6, "expert_used_count": 4, "expert_feed_forward_length": 32,
                  "expert_shared_feed_forward_length": 80}, ("bias", "experts", "shared", "output")),
    "olmoe": ("olmoe", "gpt-2", dict(layers=2, heads=4, kv=4, head=16, experts=8),
              {"expert_count": 8, "expert_used_count": 3}, ("wide", "experts", "output")),
}


@functools.cache
def tokenizer(path):
    """[(key, type or None for arrays, value)]: read once, it is slow."""
    fields = [f for f in GGUFReader(path).fields.values() if f.name.startswith("tokenizer.")]
    return [(f.name, None if f.types[0] == GGUFValueType.ARRAY else f.types[0], f.contents()) for f in fields]


def copy_tokenizer(w, path):
    for name, kind, value in tokenizer(path):
        if kind is None:
            w.add_array(name, value)
        else:
            w.add_key_value(name, value, kind)
    return len(dict((k, v) for k, _, v in tokenizer(path))["tokenizer.ggml.tokens"])


def put(w, key, value):
    if isinstance(value, str):
        w.add_string(key, value)
    elif isinstance(value, list):
        w.add_array(key, value)
    elif isinstance(value, float):
        w.add_float32(key, value)
    elif isinstance(value, bool):
        w.add_bool(key, value)
    else:
        w.add_uint32(key, value)


def norms_of(parts):
    if "second" in parts:
        return ["attn_norm", "post_attention_norm"]
    before = [] if "after" in parts else ["attn_norm"] if "parallel" in parts else ["attn_norm", "ffn_norm"]
    return before + (["post_attention_norm", "post_ffw_norm"] if "post" in parts or "after" in parts else [])


def attention(b, s, parts, tensor):
    q, kv = s["heads"] * s["head"], s["kv"] * s["head"]
    shapes = [("attn_qkv", q + 2 * kv)] if "fused" in parts else [("attn_q", q), ("attn_k", kv), ("attn_v", kv)]
    for name, rows in shapes:
        tensor(f"{b}{name}.weight", rows, E, scale=1.2 if name == "attn_v" else 2)
        if "bias" in parts:
            tensor(f"{b}{name}.bias", rows, scale=0.5)
    tensor(f"{b}attn_output.weight", E, q, scale=1.2)
    if "o_bias" in parts:
        tensor(f"{b}attn_output.bias", E, scale=0.5)
    if "norm" in parts or "wide" in parts:
        tensor(f"{b}attn_q_norm.weight", q if "wide" in parts else s["head"], scale=0.3, offset=1.5)
        tensor(f"{b}attn_k_norm.weight", kv if "wide" in parts else s["head"], scale=0.3, offset=1.5)


def mlp(b, s, parts, tensor):
    if "experts" in parts and int(b.split(".")[1]) >= s.get("dense", 0):
        x, inner = s["experts"], s.get("inner", F)
        tensor(f"{b}ffn_gate_inp.weight", x, E, scale=3)
        for name, *shape in (("gate", inner, E), ("up", inner, E), ("down", E, inner)):
            tensor(f"{b}ffn_{name}_exps.weight", x, *shape, scale=1.2)
        if "choice" in parts:
            tensor(f"{b}exp_probs_b.bias", x, scale=0.2)
        if "shared" in parts:
            if "choice" not in parts:
                tensor(f"{b}ffn_gate_inp_shexp.weight", E, scale=0.3)
            for name, *shape in (("gate", s["shared"], E), ("up", s["shared"], E), ("down", E, s["shared"])):
                tensor(f"{b}ffn_{name}_shexp.weight", *shape, scale=1.2)
        return
    double = "fused" in parts or "gate_up" in parts
    shapes = [("ffn_up", 2 * F if double else F, E), ("ffn_down", E, F)]
    if not double and "plain" not in parts:
        shapes.append(("ffn_gate", F, E))
    for name, rows, cols in shapes:
        tensor(f"{b}{name}.weight", rows, cols, scale=1.2)
        if "mlp_bias" in parts:
            tensor(f"{b}{name}.bias", rows, scale=0.5)


def write(path, case, vocabs):
    arch, vocab, s, extra, parts = case
    rng = np.random.default_rng(7)
    w = GGUFWriter(str(path), arch)
    n = copy_tokenizer(w, f"{vocabs}/ggml-vocab-{vocab}.gguf")
    keys = {"block_count": s["layers"], "context_length": 2048, "embedding_length": E, "feed_forward_length": F,
            "attention.head_count": s["heads"], "attention.head_count_kv": s["kv"], "attention.key_length": s["head"],
            "attention.value_length": s["head"],
            "attention.layer_norm_epsilon" if "layer" in parts else "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.dimension_count": s["head"], **extra}
    for k, v in keys.items():
        put(w, f"{arch}.{k}", v)

    def tensor(name, *shape, scale=1.0, offset=0.0):
        a = offset + scale * rng.standard_normal(shape) / (np.sqrt(shape[-1]) if len(shape) > 1 else 1)
        w.add_tensor(name, a.astype(np.float32), raw_dtype=GGMLQuantizationType.F32)

    def norm(name, width=E, offset=1.0, scale=0.2):
        tensor(f"{name}.weight", width, scale=scale, offset=offset)
        if "norm_bias" in parts:
            tensor(f"{name}.bias", width, scale=0.3)

    tensor("token_embd.weight", n, E, scale=4)
    norm("output_norm")
    if "output" in parts:
        tensor("output.weight", n, E, scale=4)
    rotated = extra.get("rope.dimension_count", s["head"]) // 2
    if "freqs" in parts:
        w.add_tensor("rope_freqs.weight", np.linspace(1, 8, rotated).astype(np.float32))
    if "long" in parts:
        w.add_tensor("rope_factors_short.weight", np.linspace(1, 2, rotated).astype(np.float32))
        w.add_tensor("rope_factors_long.weight", np.linspace(1, 9, rotated).astype(np.float32))
    for i in range(s["layers"]):
        attention(f"blk.{i}.", s, parts, tensor)
        mlp(f"blk.{i}.", s, parts, tensor)
        for name in norms_of(parts):
            norm(f"blk.{i}.{name}")
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def llama_scores(path, text, ctx, llama):
    base = f"{path}.base"
    subprocess.run([f"{llama}/llama-perplexity", "-m", path, "-f", text, "-c", str(ctx), "-b", str(ctx), "--chunks", "1",
                    "-t", "2", "-ctk", "f32", "-ctv", "f32", "-fa", "off", "--kl-divergence-base", base],
                   env=dict(os.environ, LD_LIBRARY_PATH=llama), check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    with open(base, "rb") as f:
        assert f.read(8) == b"_logits_"
        n, vocab, _ = struct.unpack("<Iii", f.read(12))
        tokens = np.frombuffer(f.read(4 * n), "<i4").tolist()
        row, scored = 2 * ((vocab + 1) // 2) + 4, n - 1 - n // 2
        data = np.frombuffer(f.read(2 * row * scored), "<u2").reshape(scored, row)
    os.unlink(base)
    scale = np.ascontiguousarray(data[:, :2]).view("<f4")[:, 0]
    low = np.ascontiguousarray(data[:, 2:4]).view("<f4")[:, 0]
    return tokens, low[:, None] + scale[:, None] * data[:, 4:4 + vocab]


def plumb_scores(path, tokens, plumb):
    ids, out = f"{path}.ids", f"{path}.jsonl"
    Path(ids).write_text(json.dumps(tokens))
    subprocess.run([plumb, "eval", "-m", path, "--tokens", ids, "--dump", out, "--kv-dtype", "f32"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return {r["pos"]: r for r in map(json.loads, open(out))}


def bos_of(path):
    """The BOS that llama-perplexity puts at the start of the chunk without telling."""
    fields = {k: v for k, _, v in tokenizer(path)}
    model, pre = fields["tokenizer.ggml.model"], fields.get("tokenizer.ggml.pre")
    wants = fields.get("tokenizer.ggml.add_bos_token", model == "llama" or pre == "llama-bpe")
    return fields["tokenizer.ggml.bos_token_id"] if wants else None


def compare(name, args):
    path = f"{args.out}/{name}.gguf"
    write(path, CASES[name], args.vocabs)
    tokens, lp = llama_scores(path, args.text, args.ctx, args.llama)
    bos = bos_of(f"{args.vocabs}/ggml-vocab-{CASES[name][1]}.gguf")
    if bos is not None:
        tokens[0] = bos
    rows = plumb_scores(path, tokens, args.plumb)
    worst, same, count = 0.0, 0, 0
    for i, given in enumerate(lp):
        mine = rows[len(tokens) // 2 + 1 + i]
        pairs = [(mine["id"], mine["logprob"])] + mine["top"]
        worst = max([worst] + [abs(given[t] - p) for t, p in pairs if given[t] > given.min()])
        same += int(given[mine["top"][0][0]] == given.max())
        count += 1
    limit = args.gelu_limit if CASES[name][0] in ("gemma", "gemma2", "gemma3", "starcoder2") else args.limit
    ok = worst <= limit and same == count
    print(f"{'ok' if ok else 'NOT OK':7} {name:16} largest difference {worst:.1e}, same best token {same} of {count}",
          flush=True)
    if not args.keep:
        for end in ("", ".ids", ".jsonl"):
            os.unlink(path + end)
    return ok


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocabs", required=True)
    p.add_argument("--llama", required=True)
    p.add_argument("--plumb", default="build/plumb")
    p.add_argument("--out", default="/tmp")
    p.add_argument("--text", default="docs/architecture.md")
    p.add_argument("--ctx", type=int, default=256)
    p.add_argument("--limit", type=float, default=5e-4)
    p.add_argument("--gelu-limit", type=float, default=1e-2)
    p.add_argument("--keep", action="store_true")
    p.add_argument("cases", nargs="*")
    args = p.parse_args()
    results = [compare(name, args) for name in args.cases or CASES]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
