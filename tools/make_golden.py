#!/usr/bin/env python3
"""Tiny random checkpoints and the logits that independent implementations compute from them.

    python tools/make_golden.py [CASE ...]          (needs torch, transformers, safetensors, gguf, mlx, mlx-lm)

Writes into tests/golden/model:
    CASE/                Hugging Face directory: config.json in the style of published files, bf16 safetensors
    CASE.gguf            the same weights under GGUF names (f16 matrices, or quantised ones)
    CASE-mlx/            the same after mx.quantize
    CASE.bin, CASE-*.bin "PLGOLD1\\0", u32 T, u32 V, u32 tokens[T], f32 logits[T][V] from transformers (f32, eager)

What the cases are: golden/cases.py; who writes which form: golden/weights.py, golden/to_gguf.py, golden/to_mlx.py.

Weights are chosen so that bf16 and f16 both hold them exactly. Quantised cases are checked against the dequantised
weights run by transformers, and the generator prints how far mlx-lm's own forward pass is from that.
"""
import shutil
import sys

import numpy as np
import torch

from golden.cases import CASES, COMMON, MLX_CASES, QUANT_CASES, QUANT_ONLY, REACH, SEEDS
from golden.to_gguf import write_gguf
from golden.to_mlx import mlx_logits, write_mlx
from golden.weights import ROOT, TOKENS, build, expected, load_weights, mxfp4_experts, random_weights, text_config, write_bin, write_hf


def report(name, logits, extra=""):
    top = np.sort(logits, axis=1)
    print(f"{name:16} max |logit| {np.abs(logits).max():8.3f}  spread {logits.std():6.3f}  "
          f"median gap of the best two {np.median(top[:, -1] - top[:, -2]):.3f}{extra}")


def make(name, tokens):
    config, arch = CASES[name]
    torch.manual_seed(0)
    model = build(config)
    weights = random_weights(model, seed=SEEDS.get(name, sum(map(ord, name))))
    if text_config(config).get("tie_word_embeddings", config["model_type"].startswith("gemma")):
        weights.pop("lm_head.weight", None)
    mxfp4 = mxfp4_experts(weights) if config["model_type"] == "gpt_oss" and "quantization_config" in config else None
    load_weights(model, weights)
    if name not in QUANT_ONLY:
        write_hf(name, config, weights, mxfp4)
        if arch:
            write_gguf(name, config, weights, arch, mxfp4=mxfp4)
        logits = expected(model, tokens, REACH.get(name, 0))
        write_bin(name, tokens, logits)
        report(name, logits)
    for q, (source, types) in QUANT_CASES.items():
        if source == name:
            load_weights(model, write_gguf(q, config, weights, arch, types))
            logits = expected(model, tokens)
            write_bin(q, tokens, logits)
            report(q, logits)
    for q, (source, bits, group, dtype, overrides) in MLX_CASES.items():
        if source == name:
            own = random_weights(model, SEEDS[q]) if q in SEEDS else weights
            load_weights(model, write_mlx(q, config, {k: own[k] for k in weights}, bits, group, dtype, overrides))
            logits = expected(model, tokens)
            write_bin(q, tokens, logits)
            try:
                diff = f"differs by {np.abs(mlx_logits(q, tokens) - logits).max():.4f}"
            except Exception as e:  # a model that mlx-lm does not have, or reads otherwise
                diff = f"cannot run it: {str(e)[:100]}"
            report(q, logits, f"  mlx-lm {diff}")


def main():
    names = sys.argv[1:] or list(CASES)
    if not sys.argv[1:] and ROOT.exists():
        shutil.rmtree(ROOT)
    ROOT.mkdir(parents=True, exist_ok=True)
    tokens = np.random.default_rng(7).integers(0, COMMON["vocab_size"], TOKENS).tolist()
    for name in names:
        make(name, tokens)


if __name__ == "__main__":
    main()
