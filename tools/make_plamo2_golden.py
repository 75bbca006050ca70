#!/usr/bin/env python3
"""Tiny random PLaMo 2 checkpoints and the logits that mlx-lm computes from them in f32, as transformers does not have the model
(tools/make_golden.py says more).

    python tools/make_plamo2_golden.py          (needs numpy, torch, safetensors, gguf, mlx, mlx-lm)

    plamo2/          two of four layers with attention, tied embeddings; plamo2.gguf the same; plamo2-mlx4/ after mx.quantize
    plamo2-window/   one of the two with a window and a rotary base of its own, which mlx-lm gets from here: it knows neither
"""
import json

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import torch
from mlx.utils import tree_flatten
from mlx_lm.models import plamo2
from mlx_lm.utils import load_model

from golden.weights import ROOT, TOKENS, exact, write_bin, write_hf

BASE = dict(architectures=["Plamo2ForCausalLM"], model_type="plamo2", vocab_size=96, hidden_size=32, intermediate_size=48,
            num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, hidden_size_per_head=16,
            max_position_embeddings=128, attention_window_size=2048, full_attention_idx=None, rms_norm_eps=1e-6,
            mamba_d_state=16, mamba_d_conv=4, mamba_num_heads=4, mamba_step=2, mamba_chunk_size=16, mamba_enabled=True,
            tie_word_embeddings=True, torch_dtype="bfloat16")
CASES = {"plamo2": BASE,
         "plamo2-window": dict(BASE, attention_window_size=7, full_attention_idx=[1], rope_theta=100000.0, rope_local_theta=5000.0,
                               tie_word_embeddings=False)}
mx.set_default_device(mx.cpu)


def weights_of(config, seed):
    """By their published names, convolutions [channels, 1, taps]; exact in bf16 and f16."""
    gen = torch.Generator().manual_seed(seed)
    out = {}
    for name, p in tree_flatten(plamo2.Model(plamo2.ModelArgs.from_dict(config)).parameters()):
        shape = (p.shape[0], 1, p.shape[1]) if "conv1d" in name else p.shape
        n = torch.randn(shape, generator=gen)
        if name.endswith(("A_log", "dt_bias")):  # states that last
            n = n * 0.5 + (0.5 if name.endswith("A_log") else -2.0)
        elif name.endswith(("norm.weight", "layers.norm.weight")):  # less what the model adds
            n = n * (0.2 if "post_" not in name else 0.04)
        elif len(shape) == 1 or name.endswith(("q_weight", "k_weight")):
            n = n * 0.2 + 1
        else:
            n = n / shape[-1] ** 0.5 * (0.7 if "dt_proj" in name else 1)
        out[name] = exact(n)
    return out


class Own(nn.Module):
    """Attention of one layer with its window and rotation."""

    def __init__(self, inner, window, base):
        super().__init__()
        self.inner, self.window = inner, window
        inner.rope = nn.RoPE(inner.qk_dim, base=base)

    def __call__(self, hidden_states, mask=None, cache=None):
        behind = mx.arange(hidden_states.shape[1])[:, None] - mx.arange(hidden_states.shape[1])[None]
        return self.inner(hidden_states, mask=(behind >= 0) & (behind <= self.window), cache=cache)


def run(config, weights, tokens):
    model = plamo2.Model(plamo2.ModelArgs.from_dict(config))
    values = {k: mx.array(v.numpy()) for k, v in weights.items()}
    model.load_weights(list(model.sanitize(values).items()))
    model.set_dtype(mx.float32)
    for i, layer in enumerate(model.layers):
        if not layer.is_mamba:
            full = i in (config["full_attention_idx"] or [])
            window = config["max_position_embeddings"] if full else config["attention_window_size"]
            layer.mixer = Own(layer.mixer, window, config.get("rope_theta" if full else "rope_local_theta", 10000.0))
    return np.array(model(mx.array([tokens])).astype(mx.float32))[0]


def write_gguf(name, config, weights):
    """As llama.cpp's converter: its names, what it adds to the norms, one number of heads a layer."""
    import gguf
    layers, arch = config["num_hidden_layers"], "plamo2"
    w = gguf.GGUFWriter(str(ROOT / f"{name}.gguf"), arch)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.PLAMO2, layers)
    mamba = [i % config["mamba_step"] != config["mamba_step"] // 2 for i in range(layers)]
    w.add_vocab_size(config["vocab_size"])
    w.add_head_count([0 if m else config["num_attention_heads"] for m in mamba])
    w.add_head_count_kv([0 if m else config["num_key_value_heads"] for m in mamba])
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_key_length(config["hidden_size_per_head"])
    w.add_value_length(config["hidden_size_per_head"])
    w.add_block_count(layers)
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    w.add_rope_freq_base(10000.0)
    w.add_ssm_state_size(config["mamba_d_state"])
    w.add_ssm_conv_kernel(config["mamba_d_conv"])
    w.add_ssm_time_step_rank(config["mamba_num_heads"])
    w.add_ssm_inner_size(config["mamba_num_heads"] * config["hidden_size_per_head"])
    w.add_ssm_group_count(0)
    w.add_feed_forward_length(config["intermediate_size"])
    added = {"pre_mixer_norm": 1, "post_mixer_norm": 1 / 5, "pre_mlp_norm": 1, "post_mlp_norm": 1 / 5**1.5, "norm": 1}
    renamed = {"dt_bias": "dt_proj.bias", "dt_norm_weight": "dt_norm.weight", "B_norm_weight": "B_norm.weight",
               "C_norm_weight": "C_norm.weight", "q_weight": "q.weight", "k_weight": "k.weight"}
    for hf_name, t in weights.items():
        a, (where, _, last) = t.numpy().astype(np.float32), hf_name.rpartition(".")
        if last == "A_log":
            a = -np.exp(a)
        if hf_name.endswith("conv1d.weight"):
            a = a.squeeze(1)
        a = a + np.float32(added.get(where.rpartition(".")[2], 0))
        target = names.get_name(f"{where}.{renamed.get(last, last)}", try_suffixes=(".weight", ".bias"))
        big = a.ndim == 2 and not hf_name.endswith(("conv1d.weight", "q_weight", "k_weight"))
        w.add_tensor(target, a.astype(np.float16) if big else a)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_mlx(name, config, weights, bits, group):
    d = ROOT / name
    d.mkdir(parents=True, exist_ok=True)
    out, used = {}, dict(weights)
    for k, t in weights.items():
        v = mx.array(t.numpy()).astype(mx.bfloat16)
        if "conv1d" in k:
            v = v.swapaxes(1, 2)
        out[k] = v
        if v.ndim != 2 or v.shape[-1] % group != 0 or k.endswith(("q_weight", "k_weight")):  # no product, or left alone
            continue
        q, s, z = mx.quantize(v, group_size=group, bits=bits)
        out[k], out[k[:-6] + "scales"], out[k[:-6] + "biases"] = q, s, z
        back = mx.dequantize(q, s.astype(mx.float32), z.astype(mx.float32), group_size=group, bits=bits)
        used[k] = torch.from_numpy(np.array(back))
    mx.save_safetensors(str(d / "model.safetensors"), out, metadata={"format": "mlx"})
    q = dict(group_size=group, bits=bits, mode="affine")
    (d / "config.json").write_text(json.dumps(dict(config, quantization=q, quantization_config=q), indent=1) + "\n")
    return used


def main():
    tokens = np.random.default_rng(7).integers(0, BASE["vocab_size"], TOKENS).tolist()
    for i, (name, config) in enumerate(CASES.items()):
        weights = weights_of(config, 20 + i)
        write_hf(name, config, weights)
        logits = run(config, weights, tokens)
        write_bin(name, tokens, logits)
        print(f"{name:16} max |logit| {np.abs(logits).max():8.3f}  spread {logits.std():6.3f}")
    weights = weights_of(BASE, 20)
    write_gguf("plamo2", BASE, weights)
    logits = run(BASE, write_mlx("plamo2-mlx4", BASE, weights, 4, 32), tokens)
    write_bin("plamo2-mlx4", tokens, logits)
    model, _ = load_model(ROOT / "plamo2-mlx4", lazy=False)
    model.set_dtype(mx.float32)
    other = np.array(model(mx.array([tokens])).astype(mx.float32))[0]
    print(f"plamo2-mlx4      max |logit| {np.abs(logits).max():8.3f}  as mlx-lm reads it {np.abs(other - logits).max():.2e}")


if __name__ == "__main__":
    main()
