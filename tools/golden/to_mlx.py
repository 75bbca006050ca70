"""The same weights as an MLX directory, and mlx-lm's own forward pass over it."""
import json
import re

import numpy as np
import torch

from golden.to_gguf import heads_of, joined
from golden.weights import ROOT, experts_of, published, text_config

MLX_STACKS = {"nemotron_h": {"up": "fc1", "down": "fc2"}}


def is_moved(config, name):
    """Norms of Qwen3-Next, which transformers keeps less 1 and mlx-lm's converter whole."""
    return config["model_type"] == "qwen3_next" and name.endswith(("layernorm.weight", "q_norm.weight", "k_norm.weight", "model.norm.weight"))


def mlx_names(config, weights):
    """Names of mlx-lm's converter: the experts of a layer in three stacks."""
    for name, t in weights.items():
        if config["model_type"] == "mixtral":
            name = name.replace(".mlp.", ".block_sparse_moe.")
        if config["model_type"] == "nemotron_h":
            name = name.replace("model.", "backbone.", 1)
        if config["model_type"] == "gpt_oss" and ".experts." in name:
            yield from gpt_oss_stacks(name, t)
            continue
        if "text_config" in config:
            name = "language_model." + name
        if config["model_type"] == "falcon_h1":
            t = t * mlx_fold(config, name)
        if name.endswith("conv1d.weight"):
            t = t.transpose(1, 2).contiguous()
        if is_moved(config, name):
            t = t + 1
        if name.endswith("conv.conv.weight"):
            t = t.transpose(1, 2).contiguous()
        if config["model_type"] == "lfm2_moe":
            for old, new in {"w1.weight": "gate_proj.weight", "w2.weight": "down_proj.weight", "w3.weight": "up_proj.weight"}.items():
                name = name.replace(old, new)
        if config["model_type"] in ("granitemoe", "granitemoehybrid"):
            name = name.replace("router.weight", "router.layer.weight")
            if not config["num_local_experts"]:
                name = name.replace("shared_mlp.output_linear", "mlp.down_proj")
                if name.endswith("shared_mlp.input_linear.weight"):
                    for kind, half in zip(("gate", "up"), t.chunk(2)):
                        yield name.replace("shared_mlp.input_linear", f"mlp.{kind}_proj"), half.contiguous()
                    continue
        parts = experts_of(name, t)
        for kind, all_of in parts.items():
            stem = MLX_STACKS.get(config["model_type"], {}).get(kind, f"{kind}_proj")
            yield f"{name.rsplit('.experts.', 1)[0]}.switch_mlp.{stem}.weight", all_of.contiguous()
        if not parts:
            yield name, t


def gpt_oss_stacks(name, t):
    """Experts as rows of outputs, gate and up apart; transformers has [experts, in, out] with the two in turn."""
    block, stem = name.rsplit(".", 1)
    suffix = "bias" if stem.endswith("_bias") else "weight"
    if suffix == "weight":
        t = t.transpose(1, 2)
    parts = {"gate": t[:, ::2], "up": t[:, 1::2]} if stem.startswith("gate_up") else {"down": t}
    for kind, of_part in parts.items():
        yield f"{block}.{kind}_proj.{suffix}", of_part.contiguous()


def gpt_oss_joined(stacks, biases):
    """The other way round, by transformers' names."""
    out = {}
    for name in stacks:
        if ".gate_proj." not in name:
            continue
        up, down, block = name.replace("gate_proj", "up_proj"), name.replace("gate_proj", "down_proj"), name.split(".gate_proj")[0]
        out[block + ".gate_up_proj"] = torch.stack([stacks[name], stacks[up]], 2).flatten(1, 2).transpose(1, 2).contiguous()
        out[block + ".down_proj"] = stacks[down].transpose(1, 2).contiguous()
        g, u, d = (biases[n.replace(".weight", ".bias")] for n in (name, up, down))
        out[block + ".gate_up_proj_bias"], out[block + ".down_proj_bias"] = torch.stack([g, u], 2).flatten(1, 2), d
    return out


def mlx_fold(c, name):
    """What mlx-lm's converter multiplies into the weights of a Falcon-H1. It means to do so with key_multiplier, but looks for
    another name; values it leaves out as well."""
    by = {"q_proj": c["attention_in_multiplier"], "k_proj": c["attention_in_multiplier"], "o_proj": c["attention_out_multiplier"],
          "out_proj": c["ssm_out_multiplier"], "gate_proj": c["mlp_multipliers"][0], "down_proj": c["mlp_multipliers"][1],
          "embed_tokens": c["embedding_multiplier"], "lm_head": c["lm_head_multiplier"]}
    stem = name.removesuffix(".weight").rsplit(".", 1)[-1]
    if stem != "in_proj" or not name.endswith(".weight"):
        return by.get(stem, 1.0)
    inner, group = c["mamba_d_ssm"], c["mamba_n_groups"] * c["mamba_d_state"]
    return torch.tensor(c["ssm_multipliers"]).repeat_interleave(
        torch.tensor([inner, inner, group, group, c["mamba_n_heads"]]))[:, None] * c["ssm_in_multiplier"]


def mlx_packed(a, group, bits):
    """(arrays by suffix, the values they stand for); group "mxfp4": that mode."""
    import mlx.core as mx
    if group == "mxfp4":
        q, s = mx.quantize(a, group_size=32, bits=4, mode="mxfp4")
        return {"weight": q, "scales": s}, np.array(mx.dequantize(q, s, group_size=32, bits=4, mode="mxfp4").astype(mx.float32))
    q, s, z = mx.quantize(a, group_size=group, bits=bits)
    back = mx.dequantize(q, s.astype(mx.float32), z.astype(mx.float32), group_size=group, bits=bits)
    return {"weight": q, "scales": s, "biases": z}, np.array(back)


def transformers_name(config, name):
    name = name.removeprefix("language_model.")
    changes = {"mixtral": {".block_sparse_moe.": ".mlp."}, "nemotron_h": {"backbone.": "model."},
               "lfm2_moe": {"feed_forward.gate_proj": "feed_forward.w1", "feed_forward.up_proj": "feed_forward.w3", "feed_forward.down_proj": "feed_forward.w2"},
               "granitemoe": {"router.layer.weight": "router.weight"},
               "granitemoehybrid": {"router.layer.weight": "router.weight", ".mlp.down_proj": ".shared_mlp.output_linear"}}
    for of_mlx, of_transformers in changes.get(config["model_type"], {}).items():
        name = name.replace(of_mlx, of_transformers)
    return name


def write_mlx(name, config, weights, bits, group, dtype, overrides):
    import mlx.core as mx
    d = ROOT / name
    d.mkdir(parents=True, exist_ok=True)
    out, used = {}, dict(weights)
    mlx_dtype = {torch.float16: mx.float16, torch.bfloat16: mx.bfloat16}[dtype]
    stacks = {}
    for hf_name, t in mlx_names(config, weights):
        if t.dim() == 1 or hf_name.endswith(".bias"):
            out[hf_name] = mx.array(t.numpy()).astype(mlx_dtype)
            if config["model_type"] == "gpt_oss" and ".experts." in hf_name:
                stacks[hf_name] = t
                continue
            used[transformers_name(config, hf_name)] = torch.from_numpy(np.array(out[hf_name].astype(mx.float32))) - float(is_moved(config, hf_name))
            continue
        stacked = ".switch_mlp." in hf_name or ".mlp.experts." in hf_name or config["model_type"] == "granitemoehybrid" and re.search(r"\.mlp\.(gate|up)", hf_name)
        o = overrides.get(hf_name.removesuffix(".weight"), {})
        if hf_name.endswith({"nemotron_h": "mixer.gate.weight"}.get(config["model_type"], "mlp.gate.weight")) and (
                config["model_type"].startswith(("deepseek", "nemotron_h", "glm4_moe"))):  # no product in mlx-lm
            out[hf_name] = mx.array(t.numpy()).astype(mlx_dtype)
            continue
        if config["model_type"] == "deepseek_v3" and "kv_b_proj" in hf_name:  # as its mlx-lm converter leaves it
            heads = heads_of(config, t.numpy())
            for part, stem in {"k_b": "embed_q", "v_b": "unembed_out"}.items():
                target = hf_name.replace("kv_b_proj", stem)
                packed, heads[part] = mlx_packed(mx.array(heads[part]).astype(mlx_dtype), group, bits)
                out |= {target[:-6] + suffix: a for suffix, a in packed.items()}
            used[hf_name] = torch.from_numpy(joined(config, heads))
            continue
        b, g = o.get("bits", bits), o.get("group_size", group)
        if t.shape[-1] % (32 if g == "mxfp4" else g) != 0:  # mlx-lm leaves such matrices alone
            out[hf_name] = mx.array(t.numpy()).astype(mlx_dtype)
            if stacked:
                stacks[hf_name] = t
            if config["model_type"] == "falcon_h1" and t.dim() == 2:
                used[hf_name] = torch.from_numpy(np.array(out[hf_name].astype(mx.float32))) / mlx_fold(config, hf_name)
            continue
        packed, back = mlx_packed(mx.array(t.numpy()).astype(mlx_dtype), g, b)
        out |= {hf_name[:-6] + suffix: a for suffix, a in packed.items()}
        back = torch.from_numpy(back)
        if config["model_type"] == "falcon_h1":
            back = back / mlx_fold(config, hf_name)
        if stacked:
            stacks[hf_name] = back
        else:
            used[transformers_name(config, hf_name)] = back
    if config["model_type"] == "gpt_oss":
        used |= gpt_oss_joined({k: v for k, v in stacks.items() if k.endswith(".weight")},
                               {k: v for k, v in stacks.items() if k.endswith(".bias")})
        stacks = {}
    for fc in [n for n in stacks if ".switch_mlp.fc" in n]:
        which = {"fc1": "up_proj", "fc2": "down_proj"}[fc.split(".")[-2]]
        used[transformers_name(config, fc.split("switch_mlp.")[0] + "experts.") + which] = stacks[fc]
    for gate in [n for n in stacks if ".gate_proj." in n]:
        up, down = gate.replace("gate_proj", "up_proj"), gate.replace("gate_proj", "down_proj")
        if ".switch_mlp." not in gate:
            used[gate.replace("mlp.gate_proj", "shared_mlp.input_linear")] = torch.cat([stacks[gate], stacks[up]])
            continue
        experts = transformers_name(config, gate.replace("switch_mlp.gate_proj.weight", "experts."))
        used[experts + "gate_up_proj"] = torch.cat([stacks[gate], stacks[up]], 1)
        used[experts + "down_proj"] = stacks[down]
    mx.save_safetensors(str(d / "model.safetensors"), out, metadata={"format": "mlx"})
    mode = dict(group_size=32, bits=4, mode="mxfp4") if group == "mxfp4" else dict(group_size=group, bits=bits, mode="affine")
    quantization = dict(mode, **overrides)
    config = dict(published(config), quantization=quantization, quantization_config=quantization)
    (d / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return used


def mlx_logits(name, tokens):
    """mlx-lm's own forward pass over the directory just written, with f32 activations."""
    import mlx.core as mx
    from mlx_lm.utils import load_model
    mx.set_default_device(mx.cpu)
    text = text_config(json.loads((ROOT / name / "config.json").read_text()))
    old = {"text_config": text | {"rope_theta": text["rope_parameters"]["rope_theta"]}} if text["model_type"] == "mistral" and (
        "rope_parameters" in text) else None  # where mlx-lm reads the older spelling alone
    model, config = load_model(ROOT / name, lazy=False, model_config=old)
    model.set_dtype(mx.float32)
    for layer in model.layers if config["model_type"] == "falcon_h1" else []:  # what mlx_fold says is left out
        k, v = layer.self_attn.k_proj, layer.self_attn.v_proj
        k.scales, k.biases = k.scales * config["key_multiplier"], k.biases * config["key_multiplier"]
        v.scales, v.biases = v.scales * config["attention_in_multiplier"], v.biases * config["attention_in_multiplier"]
    return np.array(model(mx.array([tokens])).astype(mx.float32))[0]
