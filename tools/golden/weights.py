"""Random weights that bf16 and f16 both hold, the model that transformers makes of them, its logits, and the Hugging Face directory."""
import json
import math
import re
import struct
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

ROOT = Path(__file__).resolve().parent.parent.parent / "tests" / "golden" / "model"
TOKENS = 48


def text_config(config):
    return config.get("text_config", config)


def exact(t):
    """Rounded to bf16 and clear of f16's subnormals, so that both hold it."""
    t = t.to(torch.bfloat16).float()
    return torch.where(t.abs() < 2.0**-14, torch.zeros_like(t), t)


def random_weights(model, seed):
    gen = torch.Generator().manual_seed(seed)
    out = {}
    for name, p in model.named_parameters():
        n = torch.randn(p.shape, generator=gen)
        if name.endswith(".A_log") or name.endswith("dt_bias") or name.endswith("dt_proj.bias"):  # states that last
            out[name] = exact(n * 0.5 + (0.5 if name.endswith(".A_log") else -2.0))
            continue
        if p.dim() == 1:
            norm = "norm" in name or name.endswith(".D")
            offset = 1.0 if norm and "gemma" not in model.config.model_type else 0.0
            out[name] = exact(n * (0.2 if norm else 0.5) + offset)
        else:
            gain = 2.0 if ("q_proj" in name or "k_proj" in name) else 1.0
            out[name] = exact(n * gain / math.sqrt(p.shape[-1]))
    for name, p in model.named_buffers():  # DeepSeek-V3's router
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            out[name] = exact(torch.randn(p.shape, generator=gen) * 0.2)
    return out


MXFP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def mxfp4_codes(w):
    """[..., rows, cols] to codes [..., rows, cols / 32, 32] and biased exponents: the nearest code of each element."""
    b = w.reshape(*w.shape[:-1], -1, 32)
    e = np.floor(np.log2(np.abs(b).max(-1, keepdims=True))) - 2
    codes = np.abs(b[..., None] / 2.0 ** e[..., None] - MXFP4).argmin(-1)
    return codes.astype(np.uint8), (e[..., 0] + 127).astype(np.uint8)


def mxfp4_values(codes, exponents):
    v = MXFP4[codes] * 2.0 ** (exponents[..., None].astype(np.float32) - 127)
    return v.reshape(*v.shape[:-2], -1)


def mxfp4_experts(weights):
    """gpt-oss: experts rounded to MXFP4 in place, [experts, in, out] as transformers has them; returns the codes by name."""
    out = {}
    for name, t in weights.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            out[name] = mxfp4_codes(t.numpy().swapaxes(1, 2) * 2)
            weights[name] = torch.from_numpy(mxfp4_values(*out[name]).swapaxes(1, 2).copy())
    return out


class TextPart(torch.nn.Module):
    """The language model of one that sees, with the names of a model that does not."""

    def __init__(self, whole):
        super().__init__()
        self.whole, self.config = [whole], whole.config.text_config
        self.model, self.lm_head = whole.model.language_model, whole.lm_head

    def tie_weights(self):
        self.whole[0].tie_weights()

    def forward(self, ids, use_cache):
        return self.whole[0](input_ids=ids, use_cache=use_cache)


def build_seeing(config):
    kind = config["model_type"].removesuffix("_text")
    vision = dict(depth=1, hidden_size=16, num_heads=2, intermediate_size=16, out_hidden_size=text_config(config)["hidden_size"],
                  deepstack_visual_indexes=[0], fullatt_block_indexes=[0])
    text = {k: v for k, v in text_config(config).items() if k not in ("torch_dtype", "architectures", "vision_config", "model_type")}
    hf = AutoConfig.for_model(kind, text_config=text, vision_config=vision, tie_word_embeddings=text["tie_word_embeddings"])
    hf._attn_implementation = "eager"
    return TextPart(AutoModelForImageTextToText.from_config(hf, dtype=torch.float32).eval())


def build(config):
    if "_vl" in config["model_type"]:
        return build_seeing(config)
    hf = AutoConfig.for_model(**{k: v for k, v in text_config(config).items() if k not in ("torch_dtype", "architectures", "quantization_config") and (v is not None or k != "head_dim")})
    hf._attn_implementation = "eager"
    return AutoModelForCausalLM.from_config(hf, dtype=torch.float32).eval()


def load_weights(model, weights):
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and all("lm_head" in m for m in missing), (missing, unexpected)
    model.tie_weights()


def expected(model, tokens, reach=0):
    with torch.no_grad():
        return model(torch.tensor([tokens + [0] * (reach - len(tokens))]), use_cache=False).logits[0, : len(tokens)].float().numpy()


def write_bin(name, tokens, logits):
    with open(ROOT / f"{name}.bin", "wb") as f:
        f.write(b"PLGOLD1\0" + struct.pack("<II", *logits.shape))
        f.write(np.asarray(tokens, "<u4").tobytes() + np.ascontiguousarray(logits, "<f4").tobytes())


def experts_of(name, t):
    """The stacked parameters of transformers as gate, up and down, all experts in one (not gpt-oss's)."""
    if name.endswith("experts.up_proj"):
        return {"up": t}
    if name.endswith("experts.gate_up_proj"):
        return {"gate": t[:, : t.shape[1] // 2], "up": t[:, t.shape[1] // 2 :]}
    return {"down": t} if name.endswith("experts.down_proj") else {}


def one_by_one(config, weights):
    """Names of published files: one tensor for each expert."""
    mixtral, lfm2 = config["model_type"] == "mixtral", config["model_type"] == "lfm2_moe"
    if config["model_type"] == "gpt_oss":
        return weights
    if config["model_type"] in ("granitemoe", "granitemoehybrid"):
        moe = {"experts.gate_up_proj": "input_linear.weight", "experts.down_proj": "output_linear.weight",
               "router.weight": "router.layer.weight"}
        return {re.sub(r"(?<=block_sparse_moe\.)(.*)", lambda m: moe[m.group(1)], k): v for k, v in weights.items()}
    if config["model_type"] == "nemotron_h":
        weights = {k.replace("model.", "backbone.", 1): v for k, v in weights.items()}
    kinds = {"gate": "w1", "up": "w3", "down": "w2"} if mixtral or lfm2 else {k: k + "_proj" for k in ("gate", "up", "down")}
    out = {}
    for name, t in weights.items():
        if mixtral:
            name = name.replace(".mlp.", ".block_sparse_moe.")
        for kind, all_of in experts_of(name, t).items():
            for i in range(all_of.shape[0]):
                out[f"{name.rsplit('.', 1)[0]}.{i}.{kinds[kind]}.weight"] = all_of[i]
        if not experts_of(name, t):
            out[name] = t
    return out


def published(config):
    """Without the fields that this architecture does not have."""
    return {k: published(v) if k == "text_config" else v for k, v in config.items() if v is not None or k != "head_dim"}


LATE = {"mistral3-late", "qwen3-vl"}  # whose checkpoints have names of the newer multimodal classes


def multimodal_name(config, case, name):
    if "text_config" not in config:
        return name
    return "language_model." + name if case not in LATE else name.replace("model.", "model.language_model.", 1)


def write_hf(name, config, weights, mxfp4=None):
    d = ROOT / name
    d.mkdir(parents=True, exist_ok=True)
    (d / "config.json").write_text(json.dumps(published(config), indent=1) + "\n")
    named = {multimodal_name(config, name, k): v.to(torch.bfloat16).contiguous()
             for k, v in one_by_one(config, weights).items()}
    for k, (codes, exponents) in (mxfp4 or {}).items():  # neighbours share a byte
        del named[k]
        named[k + "_blocks"] = torch.from_numpy(codes[..., 0::2] | codes[..., 1::2] << 4).contiguous()
        named[k + "_scales"] = torch.from_numpy(exponents).contiguous()
    save_file(named, d / "model.safetensors", metadata={"format": "pt"})
