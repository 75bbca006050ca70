#!/usr/bin/env python3
"""Tiny random BitNet checkpoints and the logits that transformers computes from them (tools/make_golden.py says more).

    python tools/make_bitnet_golden.py          (needs torch, transformers, safetensors, gguf)

    bitnet/          bitlinear: codes in bytes, the inverse of the scale; tied embeddings
    bitnet-auto/     autobitlinear, offline: codes in bytes, the scale itself
    bitnet-online/   autobitlinear, online: bf16 weights, rounded by their mean while loading
    bitnet-mlx4/     autobitlinear as mlx-lm's converter leaves it: embeddings affine, a config.json that says of those alone
    bitnet-tq.gguf   bitnet-b1.58 (squared ReLU) in TQ1_0, TQ2_0 and I2_S
    bitnet.gguf      bitnet (SiLU) in f16, some matrices with a scale beside them
"""
import json
import os
import struct

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # the packed layers ask for a compiler

import numpy as np
import torch
from safetensors.torch import save_file
from transformers.integrations import replace_with_bitnet_linear
from transformers.integrations.bitnet import pack_weights
from transformers.utils.quantization_config import BitNetQuantConfig

from golden.to_mlx import mlx_packed
from golden.weights import ROOT, TOKENS, build, exact, expected, write_bin

BASE = dict(architectures=["BitNetForCausalLM"], model_type="bitnet", hidden_act="relu2", hidden_size=64, intermediate_size=96,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=96, max_position_embeddings=128,
            rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=True, torch_dtype="bfloat16")
WIDE = dict(BASE, hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=1)
BYTES = dict(quant_method="bitnet", modules_to_not_convert=None)
AUTO = dict(quant_method="bitnet", linear_class="autobitlinear", quantization_mode="offline")
PARTS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]


def weights_of(config, seed):
    """Everything but the ternary matrices, exact in bf16; those as codes of -1, 0, 1 and a scale."""
    gen = torch.Generator().manual_seed(seed)
    plain, ternary = {}, {}
    for name, p in build(config).named_parameters():
        if any(name.endswith(part + ".weight") for part in PARTS):
            codes = torch.randint(-1, 2, p.shape, generator=gen).float()
            scale = exact(torch.tensor([1.5 / (p.shape[1] * 2 / 3) ** 0.5]) * (1 + 0.2 * torch.rand(1, generator=gen)))
            ternary[name] = (codes, scale)
        else:
            n = torch.randn(p.shape, generator=gen)
            plain[name] = exact(n * 0.2 + 1) if p.dim() == 1 else exact(n * 0.5)
    return plain, ternary


def run(config, quant, plain, ternary, master=None):
    model = build(config)
    settings = BitNetQuantConfig(**{k: v for k, v in quant.items() if k != "quant_method"})
    model = replace_with_bitnet_linear(model, modules_to_not_convert=["lm_head"], quantization_config=settings).to_empty(device="cpu").float()
    auto, online = settings.linear_class == "autobitlinear", settings.quantization_mode == "online"
    state = dict(plain)
    for name, (codes, scale) in ternary.items():
        if online:
            state[name] = master[name]
        else:
            state[name] = codes if auto else pack_weights(codes.clone())
            state[name + "_scale"] = scale if auto else 1 / scale
    for module in model.modules():  # rotary tables are not in the state
        if hasattr(module, "inv_freq"):
            half = config["hidden_size"] // config["num_attention_heads"]
            module.inv_freq = 1.0 / config["rope_theta"] ** (torch.arange(0, half, 2).float() / half)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all("lm_head" in m for m in missing), (missing, unexpected)
    model.tie_weights()
    for layer in model.modules():
        if type(layer).__name__ == "BitLinear":
            layer.dtype = torch.float32
    return expected(model, tokens())


def tokens():
    return [int(t) for t in np.random.default_rng(4).integers(0, BASE["vocab_size"], TOKENS)]


def write_mlx(name, config, plain, ternary):
    """Embeddings in 4 bits; returns what they stand for. (mlx-lm runs such a model without rounding inputs to 8 bits.)"""
    import mlx.core as mx
    d = ROOT / name
    d.mkdir(parents=True, exist_ok=True)
    quantization = dict(group_size=32, bits=4)
    config = dict(config, quantization=quantization, quantization_config=quantization)
    (d / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    out = {k: mx.array(v.numpy()).astype(mx.bfloat16) for k, v in plain.items()}
    for k, (codes, scale) in ternary.items():
        out[k] = mx.array(pack_weights(codes.clone()).numpy())
        out[k + "_scale"] = mx.array(scale.numpy()).astype(mx.bfloat16)
    embed = "model.embed_tokens."
    packed, back = mlx_packed(out[embed + "weight"], 32, 4)
    out |= {embed + suffix: a for suffix, a in packed.items()}
    mx.save_safetensors(str(d / "model.safetensors"), out, metadata={"format": "mlx"})
    return plain | {embed + "weight": torch.from_numpy(back)}


def write_hf(name, config, quant, plain, ternary, master=None):
    d = ROOT / name
    d.mkdir(parents=True, exist_ok=True)
    (d / "config.json").write_text(json.dumps(dict(config, quantization_config=quant), indent=1) + "\n")
    out = {k: v.to(torch.bfloat16).contiguous() for k, v in (plain | (master or {})).items()}
    for k, (codes, scale) in ({} if master else ternary).items():
        out[k] = pack_weights(codes.clone())
        out[k + "_scale"] = (scale if "linear_class" in quant else 1 / scale).to(torch.bfloat16)
    save_file(out, d / "model.safetensors", metadata={"format": "pt"})


def bf16_inverse(ternary):
    """The scales whose inverses bf16 holds, so that what is written is what was run."""
    return {k: (codes, 1 / (1 / scale).to(torch.bfloat16).float()) for k, (codes, scale) in ternary.items()}


NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm", "self_attn.attn_sub_norm": "attn_sub_norm", "mlp.ffn_sub_norm": "ffn_sub_norm"}


def gguf_name(name):
    flat = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in flat:
        return flat[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def i2_s(codes, scale):
    """Runs of 128: element 32g + p is bits 6-2g, 7-2g of byte p; the scale in f32 behind all of them, 32 bytes for it."""
    q = (codes.numpy().reshape(-1, 4, 32) + 1).astype(np.uint8)
    packed = (q[:, 0] << 6 | q[:, 1] << 4 | q[:, 2] << 2 | q[:, 3]).reshape(-1)
    return np.frombuffer(packed.tobytes() + struct.pack("<f", float(scale)) + b"\0" * 28, np.uint8)


def write_gguf(name, arch, config, plain, ternary, types):
    import gguf
    w = gguf.GGUFWriter(str(ROOT / f"{name}.gguf"), arch)
    w.add_block_count(config["num_hidden_layers"])
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_head_count_kv(config["num_key_value_heads"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    w.add_rope_freq_base(config["rope_theta"])
    w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    w.add_rope_scaling_factor(1.0)
    w.add_vocab_size(config["vocab_size"])
    for k, v in plain.items():
        w.add_tensor(gguf_name(k), v.numpy().astype(np.float32 if v.dim() == 1 else np.float16))
    for i, (k, (codes, scale)) in enumerate(ternary.items()):
        kind = types[i % len(types)]
        if kind == "scaled":  # codes in f16 and the scale beside them
            w.add_tensor(gguf_name(k), codes.numpy().astype(np.float16))
            w.add_tensor(gguf_name(k).replace(".weight", ".scale"), scale.numpy())
        elif kind == "F16":
            w.add_tensor(gguf_name(k), (codes * scale).numpy().astype(np.float16))
        elif kind == "I2_S":  # not in gguf's list: its number is put in below
            w.add_tensor(gguf_name(k), i2_s(codes, scale).view(np.int8), raw_shape=codes.shape)
        else:
            q = gguf.GGMLQuantizationType[kind]
            w.add_tensor(gguf_name(k), gguf.quantize((codes * scale).numpy(), q), raw_dtype=q)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    path = ROOT / f"{name}.gguf"
    data = bytearray(path.read_bytes())
    for i, k in enumerate(ternary):
        if types[i % len(types)] == "I2_S":
            key = gguf_name(k).encode()
            at = data.index(struct.pack("<Q", len(key)) + key) + 8 + len(key) + 4 + 2 * 8
            assert data[at:at + 4] == struct.pack("<I", gguf.GGMLQuantizationType.I8)
            data[at:at + 4] = struct.pack("<I", 36)
    path.write_bytes(data)


def f16(ternary):
    return {k: (codes, scale.half().float()) for k, (codes, scale) in ternary.items()}


def main():
    plain, ternary = weights_of(BASE, 1)
    ternary = bf16_inverse(ternary)
    write_hf("bitnet", BASE, BYTES, plain, ternary)
    write_bin("bitnet", tokens(), run(BASE, BYTES, plain, ternary))
    plain, ternary = weights_of(BASE, 2)
    write_hf("bitnet-auto", BASE, AUTO, plain, ternary)
    write_bin("bitnet-auto", tokens(), run(BASE, AUTO, plain, ternary))
    plain, ternary = weights_of(BASE, 6)
    write_bin("bitnet-mlx4", tokens(), run(BASE, AUTO, write_mlx("bitnet-mlx4", BASE, plain, ternary), ternary))
    plain, ternary = weights_of(BASE, 3)
    gen = torch.Generator().manual_seed(9)
    master = {k: exact((codes + 0.3 * torch.randn(codes.shape, generator=gen)) * scale) for k, (codes, scale) in ternary.items()}
    online = dict(AUTO, quantization_mode="online")
    write_hf("bitnet-online", BASE, online, plain, ternary, master)
    write_bin("bitnet-online", tokens(), run(BASE, online, plain, ternary, master))
    plain, ternary = weights_of(WIDE, 4)
    ternary = f16(ternary)
    write_gguf("bitnet-tq", "bitnet-b1.58", WIDE, plain, ternary, ["TQ2_0", "TQ1_0", "I2_S"])
    write_bin("bitnet-tq", tokens(), run(WIDE, AUTO, plain, ternary))
    silu = dict(BASE, hidden_act="silu")
    plain, ternary = weights_of(silu, 5)
    ternary = f16(ternary)
    write_gguf("bitnet", "bitnet", silu, plain, ternary, ["F16", "scaled"])
    write_bin("bitnet-silu", tokens(), run(silu, AUTO, plain, ternary))


if __name__ == "__main__":
    main()
