#!/usr/bin/env python3
"""Do plumb and llama.cpp read the same GGUF alike? For each case a tiny model with random weights and a real tokenizer is
written as a GGUF, both engines score the same tokens, and the log-probabilities are compared.

    python tools/compare_peer.py --vocabs DIR --llama DIR [--plumb build/plumb] [--out DIR] [CASE ...]

--vocabs holds llama.cpp's ggml-vocab-*.gguf, --llama its llama-perplexity. Weights are f32 and both caches f32, so what is
left is the order of sums and the 16 bits of llama.cpp's file of log-probabilities (about 2e-4); its GELU goes through a
table of 16-bit floats, so Gemma gets --gelu-limit. Exit 1 when a case is off by more. Needs gguf and numpy.
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

# name: (architecture, vocabulary, sizes, extra metadata, extra tensors)
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
    else:
        w.add_uint32(key, value)


def write(path, case, vocabs):
    arch, vocab, s, extra, parts = case
    rng = np.random.default_rng(7)
    w = GGUFWriter(str(path), arch)
    n = copy_tokenizer(w, f"{vocabs}/ggml-vocab-{vocab}.gguf")
    keys = {"block_count": s["layers"], "context_length": 2048, "embedding_length": E, "feed_forward_length": F,
            "attention.head_count": s["heads"], "attention.head_count_kv": s["kv"], "attention.key_length": s["head"],
            "attention.value_length": s["head"], "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.dimension_count": s["head"], **extra}
    for k, v in keys.items():
        put(w, f"{arch}.{k}", v)

    def tensor(name, *shape, scale=1.0, offset=0.0):
        a = offset + scale * rng.standard_normal(shape) / (np.sqrt(shape[-1]) if len(shape) > 1 else 1)
        w.add_tensor(name, a.astype(np.float32), raw_dtype=GGMLQuantizationType.F32)

    tensor("token_embd.weight", n, E, scale=4)
    tensor("output_norm.weight", E, scale=0.2, offset=1)
    if "output" in parts:
        tensor("output.weight", n, E, scale=4)
    if "freqs" in parts:
        w.add_tensor("rope_freqs.weight", np.linspace(1, 8, s["head"] // 2).astype(np.float32))
    q, kv = s["heads"] * s["head"], s["kv"] * s["head"]
    for i in range(s["layers"]):
        b = f"blk.{i}."
        for name, rows, cols in (("attn_q", q, E), ("attn_k", kv, E), ("attn_v", kv, E), ("attn_output", E, q),
                                 ("ffn_gate", F, E), ("ffn_up", F, E), ("ffn_down", E, F)):
            tensor(f"{b}{name}.weight", rows, cols, scale=2 if name in ("attn_q", "attn_k") else 1.2)
        norms = ["attn_norm", "ffn_norm"] + (["post_attention_norm", "post_ffw_norm"] if "post" in parts else [])
        for name in norms:
            tensor(f"{b}{name}.weight", E, scale=0.2, offset=1)
        if "norm" in parts:
            tensor(f"{b}attn_q_norm.weight", s["head"], scale=0.3, offset=1.5)
            tensor(f"{b}attn_k_norm.weight", s["head"], scale=0.3, offset=1.5)
        if "bias" in parts:
            for name, rows in (("attn_q", q), ("attn_k", kv), ("attn_v", kv)):
                tensor(f"{b}{name}.bias", rows, scale=0.5)
        if "o_bias" in parts:
            tensor(f"{b}attn_output.bias", E, scale=0.5)
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
    limit = args.gelu_limit if CASES[name][0] == "gemma3" else args.limit
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
