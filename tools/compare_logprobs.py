#!/usr/bin/env python3
"""How far plumb's token log-probabilities are from those of the f32 model on the same dequantised weights, and how far
llama.cpp's are.

    python tools/compare_logprobs.py --gguf MODEL.gguf --text FILE [--ctx 512] [--chunks 8] [--cache DIR]
        [--llama DIR]                                     (holds llama-perplexity and its libraries)
        [--plumb "build/plumb eval -m {model} --tokens {ids} --dump {out}"] ...   (several: one row each)

The text is cut into chunks of --ctx tokens by llama-perplexity, which also starts each with BOS where the model asks for
it; every engine sees exactly these tokens, from an empty cache, and the second half of each chunk is scored, as
llama-perplexity does. Its log-probabilities come from its own file format (16 bits, clipped 16 below the best: clipped
tokens are left out for all). The reference is transformers in f32, eager attention, with the GGUF's weights dequantised.
Needs torch, transformers, gguf, numpy.
"""
import argparse
import json
import os
import shlex
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


def llama_run(args, base):
    env = dict(os.environ, LD_LIBRARY_PATH=args.llama)
    subprocess.run([f"{args.llama}/llama-perplexity", "-m", args.gguf, "-f", args.text, "-c", str(args.ctx), "-b",
                    str(args.ctx), "--chunks", str(args.chunks), "-t", str(args.threads), "--kl-divergence-base", base],
                   env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def llama_read(base):
    """Tokens [chunks, ctx], log-probabilities of the given tokens [chunks, scored] (NaN where clipped), best ids."""
    with open(base, "rb") as f:
        assert f.read(8) == b"_logits_"
        ctx, vocab, chunks = struct.unpack("<Iii", f.read(12))
        tokens = np.frombuffer(f.read(4 * ctx * chunks), "<i4").reshape(chunks, ctx)
        row, scored = 2 * ((vocab + 1) // 2) + 4, ctx - 1 - ctx // 2
        lp, best = np.zeros((chunks, scored)), np.zeros((chunks, scored), int)
        for c in range(chunks):
            data = np.frombuffer(f.read(2 * row * scored), "<u2").reshape(scored, row)
            for i in range(scored):
                scale, low = np.frombuffer(data[i, :4].tobytes(), "<f4")
                q = data[i, 4:4 + vocab]
                target = q[tokens[c, ctx // 2 + i + 1]]
                lp[c, i] = low + scale * target if target > 0 else np.nan
                best[c, i] = q.argmax()
    return tokens, lp, best


def with_bos(args, tokens):
    from gguf import GGUFReader
    fields = GGUFReader(args.gguf).fields
    add = fields.get("tokenizer.ggml.add_bos_token")
    add = bool(add.contents()) if add else fields["tokenizer.ggml.model"].contents() == "llama"
    out = tokens.copy()
    if add:
        out[:, 0] = fields["tokenizer.ggml.bos_token_id"].contents()
    return out


def reference(args, tokens):
    import torch
    from transformers import AutoModelForCausalLM
    path = Path(args.gguf)
    model = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32,
                                                 attn_implementation="eager").eval()
    assert all(p.dtype == torch.float32 for p in model.parameters())
    lp, best, half = [], [], tokens.shape[1] // 2
    with torch.no_grad():
        for chunk in tokens:
            ids = torch.tensor([chunk.tolist()])
            logits = model(ids, use_cache=False).logits[0, half:-1].float()
            logp = torch.log_softmax(logits, -1)
            lp.append(logp.gather(1, ids[0, half + 1:, None])[:, 0].numpy())
            best.append(logits.argmax(-1).numpy())
    return np.array(lp, np.float64), np.array(best)


def plumb_run(args, command, tokens):
    lp, best, half = [], [], tokens.shape[1] // 2
    with tempfile.TemporaryDirectory() as tmp:
        ids, out = f"{tmp}/ids.json", f"{tmp}/out.jsonl"
        for chunk in tokens:
            Path(ids).write_text(json.dumps(chunk.tolist()))
            words = [w.format(model=args.gguf, ids=ids, out=out) for w in shlex.split(command)]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            rows = {r["pos"]: r for r in map(json.loads, open(out))}
            scored = [rows[p] for p in range(half + 1, len(chunk))]
            assert [r["id"] for r in scored] == chunk[half + 1:].tolist()
            lp.append([r["logprob"] for r in scored])
            # "top" of position p is the distribution that position p's token was drawn from
            best.append([r["top"][0][0] for r in scored])
    return np.array(lp), np.array(best)


def row(name, lp, best, ref_lp, ref_best, keep):
    d = np.abs(lp - ref_lp)[keep]
    print(f"| {name} | {d.mean():.4f} | {np.median(d):.4f} | {d.max():.2f} | {np.mean((lp - ref_lp)[keep]):+.4f} | "
          f"{100 * np.mean((best == ref_best)[keep]):.1f}% | {np.exp(-lp[keep].mean()):.3f} |", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--gguf", required=True)
    p.add_argument("--text", required=True)
    p.add_argument("--llama", required=True)
    p.add_argument("--plumb", action="append", default=[])
    p.add_argument("--ctx", type=int, default=512)
    p.add_argument("--chunks", type=int, default=8)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--cache", default="/tmp/plumb-logprobs")
    args = p.parse_args()
    os.makedirs(args.cache, exist_ok=True)
    stem = f"{args.cache}/{Path(args.gguf).name}-{Path(args.text).name}-{args.ctx}-{args.chunks}"
    if not os.path.exists(stem + ".llama"):
        llama_run(args, stem + ".llama")
    raw, llama_lp, llama_best = llama_read(stem + ".llama")
    tokens = with_bos(args, raw)
    if not os.path.exists(stem + ".npz"):
        lp, best = reference(args, tokens)
        np.savez(stem + ".npz", lp=lp, best=best)
    ref = np.load(stem + ".npz")
    keep = ~np.isnan(llama_lp)
    print(f"{Path(args.gguf).name}: {keep.sum()} tokens scored of {tokens.size}, perplexity of the f32 model "
          f"{np.exp(-ref['lp'][keep].mean()):.3f}")
    print("| engine | mean abs difference | median | max | mean difference | same best token | perplexity |")
    print("|---|---|---|---|---|---|---|")
    row("llama.cpp", llama_lp, llama_best, ref["lp"], ref["best"], keep)
    for command in args.plumb:
        start = time.time()
        lp, best = plumb_run(args, command, tokens)
        row(f"plumb: `{command}`", lp, best, ref["lp"], ref["best"], keep)
        print(f"  ({time.time() - start:.1f} s)", file=sys.stderr)


if __name__ == "__main__":
    main()
