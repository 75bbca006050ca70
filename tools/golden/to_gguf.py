"""The same weights as a GGUF file, by the names and in the order of rows that llama.cpp's converter gives them."""
import math

import numpy as np
import torch

from golden.weights import ROOT, experts_of, text_config

CODE_BOOKS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")  # the package gguf reads these and writes none

GGUF_NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
              "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
              "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
              "input_layernorm": "attn_norm", "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up",
              "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
              "mlp.router": "ffn_gate_inp", "block_sparse_moe.router": "ffn_gate_inp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
              "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp"}
SANDWICH = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm"}
GPT_OSS = {"post_attention_layernorm": "post_attention_norm"}
AFTER = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
GGUF_NORMS = {"gemma2": SANDWICH, "gemma3": SANDWICH, "olmo2": AFTER, "exaone4": AFTER, "gpt-oss": GPT_OSS, "seed_oss": GPT_OSS, "glm4moe": GPT_OSS,
              "glm4": {"post_attention_layernorm": "ffn_norm", "post_self_attn_layernorm": "post_attention_norm",
                       "post_mlp_layernorm": "post_ffw_norm"}}
FLOAT_KEYS = {"granite": {"embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier",
                          "attention.scale": "attention_multiplier", "logit_scale": "logits_scaling"},
              "command-r": {"logit_scale": "logit_scale"}, "cohere2": {"logit_scale": "logit_scale"},
              "gemma2": {"attn_logit_softcapping": "attn_logit_softcapping",
                         "final_logit_softcapping": "final_logit_softcapping"}}
FLOAT_KEYS["granitemoe"] = FLOAT_KEYS["granite"]
PERMUTED = {"llama", "smollm3", "granite", "granitemoe", "mistral3"}  # architectures whose query and key rows the converter reorders


DEEPSEEK_NAMES = {"self_attn.q_a_proj": "attn_q_a", "self_attn.q_b_proj": "attn_q_b", "self_attn.q_a_layernorm": "attn_q_a_norm",
                  "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
                  "self_attn.kv_b_proj": "attn_kv_b", "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
                  "mlp.shared_experts.up_proj": "ffn_up_shexp", "mlp.shared_experts.down_proj": "ffn_down_shexp"}


def heads_of(c, t):
    """kv_b_proj as what makes keys, turned, and what makes values, of each head."""
    both = t.reshape(c["num_attention_heads"], c["qk_nope_head_dim"] + c["v_head_dim"], c["kv_lora_rank"])
    return {"k_b": both[:, : c["qk_nope_head_dim"]].swapaxes(1, 2).copy(), "v_b": both[:, c["qk_nope_head_dim"] :].copy()}


def joined(c, heads):
    return np.concatenate([heads["k_b"].swapaxes(1, 2), heads["v_b"]], 1).reshape(-1, c["kv_lora_rank"])


def add_deepseek_keys(w, c, apart):
    import gguf
    rope, latent = c["qk_rope_head_dim"], c["kv_lora_rank"]
    key, value = c["qk_nope_head_dim"] + rope, c["v_head_dim"]
    w.add_head_count_kv(1 if apart else c["num_attention_heads"])
    w.add_key_length(latent + rope if apart else key)
    w.add_value_length(latent if apart else value)
    if apart:
        w.add_key_length_mla(key)
        w.add_value_length_mla(value)
    if c["q_lora_rank"]:
        w.add_q_lora_rank(c["q_lora_rank"])
    w.add_kv_lora_rank(latent)
    w.add_rope_dimension_count(rope)
    w.add_leading_dense_block_count(c["first_k_dense_replace"])
    w.add_expert_count(c["n_routed_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_expert_shared_count(c["n_shared_experts"])
    w.add_expert_group_count(c["n_group"])
    w.add_expert_group_used_count(c["topk_group"])
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    w.add_expert_weights_norm(c["norm_topk_prob"])
    if apart:  # older files do not say it
        w.add_expert_gating_func(gguf.ExpertGatingFuncType[c["scoring_func"].upper()])
    if c["rope_scaling"]:
        w.add_rope_scaling_yarn_log_mul(0.1 * c["rope_scaling"]["mscale_all_dim"])


def add_glm_experts(w, c):
    import gguf
    w.add_leading_dense_block_count(c["first_k_dense_replace"])
    w.add_expert_count(c["n_routed_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_expert_shared_count(c["n_shared_experts"])
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    w.add_expert_weights_norm(c["norm_topk_prob"])
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def gguf_name(hf_name, arch):
    flat = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "model.norm.bias": "output_norm.bias",
            "lm_head.weight": "output.weight"}
    if hf_name in flat:
        return flat[hf_name]
    _, _, layer, rest = hf_name.split(".", 3)
    if rest == "self_attn.sinks":
        return f"blk.{layer}.attn_sinks.weight"
    if rest == "mlp.gate.e_score_correction_bias":
        return f"blk.{layer}.exp_probs_b.bias"
    stem, kind = rest.rsplit(".", 1)
    if stem in DEEPSEEK_NAMES:
        return f"blk.{layer}.{DEEPSEEK_NAMES[stem]}.{kind}"
    norms = GGUF_NORMS.get(arch, {"post_attention_layernorm": "ffn_norm"})
    return f"blk.{layer}.{GGUF_NAMES.get(stem) or norms[stem]}.{kind}"


def put_scale(blocks, q, d):
    bits = d.astype(np.float16).view(np.uint16)
    if q.name == "IQ1_M":  # a digit in the highest four bits of each of the last words
        for i in range(4):
            blocks[:, 49 + 2 * i] = (blocks[:, 49 + 2 * i] & 15) | (bits >> (4 * i) & 15) << 4
    else:
        blocks[:, :2] = bits[:, None].view(np.uint8)


def quantized(a, q):
    """a in blocks of type q; of the types with code books any blocks whose values are spread as a's are: every entry, every sign."""
    import gguf
    if q.name not in CODE_BOOKS:
        return gguf.quantize(a, q)
    elems, size = gguf.GGML_QUANT_SIZES[q]
    rng = np.random.default_rng(list(np.ascontiguousarray(a).tobytes()[:64]))
    blocks = rng.integers(0, 256, (a.size // elems, size), np.uint8)
    put_scale(blocks, q, np.ones(len(blocks)))
    spread = a.std() / gguf.dequantize(blocks, q).std()
    put_scale(blocks, q, spread * rng.uniform(0.5, 1.5, len(blocks)) * rng.choice([-1, 1], len(blocks)))
    return blocks.reshape(*a.shape[:-1], -1)


def permute(w, heads):
    """Halves to adjacent pairs, as converters do for Llama."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def llama3_divisors(c, head_dim):
    s = c["rope_scaling"]
    out = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * c["rope_theta"] ** (i / head_dim)
        low, high = s["low_freq_factor"], s["high_freq_factor"]
        smooth = (s["original_max_position_embeddings"] / wavelength - low) / (high - low)
        smooth = min(max(smooth, 0.0), 1.0)
        out.append(1 / ((1 - smooth) / s["factor"] + smooth))
    return np.array(out, np.float32)


def add_gpt_oss_experts(w, hf_name, t, mxfp4):
    import gguf
    layer, stem = hf_name.split(".")[2], hf_name.rsplit(".", 1)[1]
    parts = {"ffn_down_exps": slice(None)} if stem.startswith("down") else {"ffn_gate_exps": slice(0, None, 2),
                                                                            "ffn_up_exps": slice(1, None, 2)}
    for target, rows in parts.items():
        if mxfp4 is None:
            w.add_tensor(f"blk.{layer}.{target}.bias", t.numpy()[:, rows].copy())
            continue
        codes, exponents = mxfp4[0][:, rows], mxfp4[1][:, rows]
        packed = np.concatenate([exponents[..., None], codes[..., :16] | codes[..., 16:] << 4], -1)
        w.add_tensor(f"blk.{layer}.{target}.weight", packed.reshape(*packed.shape[:2], -1).copy(),
                     raw_dtype=gguf.GGMLQuantizationType.MXFP4)


SSM_NAMES = {"backbone.embeddings": "token_embd", "backbone.norm_f": "output_norm", "lm_head": "output", "norm": "attn_norm",
             "in_proj": "ssm_in", "conv1d": "ssm_conv1d", "x_proj": "ssm_x", "dt_proj": "ssm_dt", "out_proj": "ssm_out",
             "A_log": "ssm_a", "D": "ssm_d", "dt_bias": "ssm_dt.bias"}


def write_gguf_mamba(name, c, weights, arch):
    """State-space layers alone, as llama.cpp's converter names them."""
    import gguf
    w = gguf.GGUFWriter(str(ROOT / f"{name}.gguf"), arch)
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(2**20)
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(0)
    w.add_head_count(0)
    w.add_layer_norm_rms_eps(c["layer_norm_epsilon"])
    w.add_ssm_conv_kernel(c["conv_kernel"])
    w.add_ssm_state_size(c["state_size"])
    inner = c["expand"] * c["hidden_size"]
    w.add_ssm_inner_size(inner)
    rank = c.get("num_heads") or c["time_step_rank"]
    w.add_ssm_time_step_rank(-(-c["hidden_size"] // 16) if rank == "auto" else rank)
    if arch == "mamba2":
        w.add_ssm_group_count(c["n_groups"])
    else:
        w.add_ssm_dt_b_c_rms(c["model_type"] == "falcon_mamba")
    for hf_name, t in weights.items():
        stem, _, kind = hf_name.replace(".mixer.", ".").rpartition(".")
        a = t.numpy().astype(np.float32)
        if kind in ("A_log", "D", "dt_bias"):
            stem, kind = f"{stem}.{kind}", ""
        where, _, last = stem.rpartition(".")
        target = SSM_NAMES.get(stem) or f"blk.{where.split('.')[2]}.{SSM_NAMES[last]}"
        if last == "A_log":
            a = -np.exp(a)
        if last == "conv1d" and kind == "weight":
            a = a.squeeze(1)
        if hf_name.endswith(".mixer.norm.weight"):
            target, a = target.replace("attn_norm", "ssm_norm"), a.reshape(c["n_groups"], -1)
        if arch == "mamba2" and last in ("A_log", "D"):
            a = a.reshape(-1, 1)
        big = a.ndim == 2 and last not in ("A_log", "D", "conv1d", "norm")
        w.add_tensor(target + (f".{kind}" if kind else ""), a.astype(np.float16) if big else a)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return weights


HYBRID_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "model.final_layernorm": "output_norm",
                "lm_head": "output", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
                "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
                "self_attn.o_proj": "attn_output", "mamba.in_proj": "ssm_in", "mamba.conv1d": "ssm_conv1d",
                "mamba.norm": "ssm_norm", "mamba.out_proj": "ssm_out", "mamba.A_log": "ssm_a", "mamba.D": "ssm_d",
                "mamba.dt_bias": "ssm_dt.bias", "feed_forward.gate_proj": "ffn_gate", "feed_forward.up_proj": "ffn_up",
                "feed_forward.down_proj": "ffn_down", "pre_ff_layernorm": "ffn_norm",
                "block_sparse_moe.router": "ffn_gate_inp", "feed_forward.router": "ffn_gate_inp", "mamba.x_proj": "ssm_x",
                "mamba.dt_proj": "ssm_dt", "mamba.dt_layernorm": "ssm_dt_norm", "mamba.b_layernorm": "ssm_b_norm",
                "mamba.c_layernorm": "ssm_c_norm", "model.embeddings": "token_embd", "model.norm_f": "output_norm",
                "norm": "attn_norm", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "moe.gate": "ffn_gate_inp",
                "moe.gate.e_score_correction_bias": "exp_probs_b.bias", "moe.experts.up_proj": "ffn_up_exps.weight",
                "moe.experts.down_proj": "ffn_down_exps.weight", "moe.shared_experts.up_proj": "ffn_up_shexp",
                "moe.shared_experts.down_proj": "ffn_down_shexp"}


def falcon_h1_scale(c, rest, a):
    """What llama.cpp's converter multiplies into the weights."""
    ain, (gate, down) = c["attention_in_multiplier"], c["mlp_multipliers"]
    by = {"feed_forward.down_proj": down, "feed_forward.gate_proj": gate, "self_attn.k_proj": c["key_multiplier"] * ain,
          "self_attn.q_proj": ain, "self_attn.v_proj": ain, "self_attn.o_proj": c["attention_out_multiplier"],
          "mamba.out_proj": c["ssm_out_multiplier"], "lm_head": c["lm_head_multiplier"],
          "model.embed_tokens": c["embedding_multiplier"]}
    if rest != "mamba.in_proj":
        return a * by.get(rest, 1.0)
    inner, group = c["mamba_d_ssm"], c["mamba_n_groups"] * c["mamba_d_state"]
    sizes = [inner, inner, group, group, c["mamba_n_heads"]]
    return a * np.repeat(c["ssm_multipliers"], sizes)[:, None].astype(np.float32) * c["ssm_in_multiplier"]


def hybrid_tensors(c, name, a, arch):
    """(GGUF name, values) of one of transformers' parameters; matrices f16, but those of Falcon-H1, which were scaled."""
    stem, _, kind = name.rpartition(".")
    if kind not in ("weight", "bias"):  # parameters without a suffix
        stem, kind = name, ""
    top = HYBRID_NAMES.get(stem)
    layer, rest = ("", stem) if top else stem.split(".", 3)[2:]
    block = f"blk.{layer}."
    if arch == "falcon-h1":
        a = falcon_h1_scale(c, rest, a)
    if arch.startswith("nemotron_h"):  # one mixer a layer, whatever it is
        part = rest.removeprefix("mixer.")
        expert = part.startswith(("gate", "experts", "shared_experts"))
        rest = ({"q_proj": "self_attn.", "k_proj": "self_attn.", "v_proj": "self_attn.", "o_proj": "self_attn.",
                 "up_proj": "mlp.", "down_proj": "mlp."}.get(part, "moe." if expert else "mamba.") + part) if part != rest else rest
    if rest == "mamba.A_log":
        a = -np.exp(a)
    if rest in ("mamba.A_log", "mamba.D") and arch != "jamba":
        a = a.reshape(-1, 1)
    if rest == "mamba.conv1d" and kind == "weight":
        a = a.squeeze(1)
    if rest == "mamba.norm":
        a = a.reshape(c["n_groups"] if arch.startswith("nemotron_h") else c["mamba_n_groups"], -1)
    if arch == "granitehybrid" and rest in ("self_attn.q_proj", "self_attn.k_proj"):
        a = permute(a, c["num_attention_heads"] if "q_proj" in rest else c["num_key_value_heads"])
    small = a.ndim == 1 or arch == "falcon-h1" or rest in ("mamba.A_log", "mamba.D", "mamba.conv1d", "mamba.norm",
                                                           "block_sparse_moe.router", "feed_forward.router", "moe.gate")
    a = a.astype(np.float32 if small else np.float16)
    shared = "_shexp" if c.get("num_local_experts") else ""
    if rest == "shared_mlp.input_linear":
        half = a.shape[0] // 2
        return [(f"{block}ffn_gate{shared}.weight", a[:half]), (f"{block}ffn_up{shared}.weight", a[half:])]
    if rest == "shared_mlp.output_linear":
        return [(f"{block}ffn_down{shared}.weight", a)]
    if rest.endswith(".experts.gate_up_proj"):
        half = a.shape[1] // 2
        return [(f"{block}ffn_gate_exps.weight", a[:, :half].copy()), (f"{block}ffn_up_exps.weight", a[:, half:].copy())]
    if rest.endswith(".experts.down_proj") and not rest.startswith("moe."):
        return [(f"{block}ffn_down_exps.weight", a)]
    target = top or block + HYBRID_NAMES[rest]
    bare = rest == "pre_ff_layernorm" and arch == "falcon-h1"  # Falcon-H1's converter leaves the suffix out
    return [(target + (f".{kind}" if kind and not bare else ""), a)]


def write_gguf_hybrid(name, c, weights, arch):
    import gguf
    w = gguf.GGUFWriter(str(ROOT / f"{name}.gguf"), arch)
    pattern = c.get("hybrid_override_pattern", "")
    mamba = [t == "mamba" for t in c.get("layer_types", [])] or [t != "*" for t in pattern]
    if arch == "jamba":
        mamba = [i % c["attn_layer_period"] != c["attn_layer_offset"] for i in range(c["num_hidden_layers"])]
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    ff = c["intermediate_size"]
    w.add_feed_forward_length([{"-": ff, "E": c.get("moe_intermediate_size")}.get(t, 0) for t in pattern] if pattern else ff)
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv([0 if m else c["num_key_value_heads"] for m in mamba] if mamba else c["num_key_value_heads"])
    w.add_layer_norm_rms_eps(c.get("rms_norm_eps") or c["layer_norm_epsilon"])
    w.add_rope_freq_base(c.get("rope_theta", 10000.0))
    w.add_ssm_conv_kernel(c.get("mamba_d_conv") or c["conv_kernel"])
    w.add_ssm_state_size(c.get("mamba_d_state") or c["ssm_state_size"])
    if arch != "jamba":
        w.add_ssm_group_count(c.get("mamba_n_groups") or c["n_groups"])
    inner = c["mamba_num_heads"] * c["mamba_head_dim"] if pattern else c.get("mamba_expand", 2) * c["hidden_size"]
    w.add_ssm_inner_size(c.get("mamba_d_ssm") or inner)
    w.add_ssm_time_step_rank(c.get("mamba_n_heads") or c.get("mamba_num_heads") or c["mamba_dt_rank"])
    if arch == "jamba":
        w.add_expert_count(c["num_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
    elif arch in ("falcon-h1", "nemotron_h", "nemotron_h_moe"):
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
        if arch == "nemotron_h_moe":
            w.add_expert_used_count(c["num_experts_per_tok"])
            w.add_expert_feed_forward_length(c["moe_intermediate_size"])
            w.add_expert_shared_feed_forward_length(c["moe_shared_expert_intermediate_size"])
            w.add_expert_count(c["n_routed_experts"])
            w.add_expert_shared_count(c["n_shared_experts"])
            w.add_expert_weights_norm(c["norm_topk_prob"])
            w.add_expert_weights_scale(c["routed_scaling_factor"])
            w.add_expert_group_count(c["n_group"])
    else:
        w.add_rope_scaling_finetuned(c["position_embedding_type"] == "rope")
        w.add_expert_shared_feed_forward_length(c["shared_intermediate_size"])
        for key, field in FLOAT_KEYS["granite"].items():
            w.add_float32(f"{arch}.{key}", c[field])
        if c["num_local_experts"]:
            w.add_expert_count(c["num_local_experts"])
            w.add_expert_used_count(c["num_experts_per_tok"])
    for hf_name, t in weights.items():
        for target, values in hybrid_tensors(c, hf_name, t.numpy().astype(np.float32), arch):
            w.add_tensor(target, values)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return weights


LFM2_NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_output",
              "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm", "conv.in_proj": "shortconv.in_proj",
              "conv.conv": "shortconv.conv", "conv.out_proj": "shortconv.out_proj", "operator_norm": "attn_norm", "ffn_norm": "ffn_norm",
              "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up", "feed_forward.w2": "ffn_down", "feed_forward.gate": "ffn_gate_inp"}


def write_gguf_lfm2(name, c, weights, arch):
    import gguf
    types = c.get("layer_types") or ["full_attention" if i in c["full_attn_idxs"] else "conv" for i in range(c["num_hidden_layers"])]
    w = gguf.GGUFWriter(str(ROOT / f"{name}.gguf"), arch)
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(weights["model.layers.0.feed_forward.w1.weight"].shape[0])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv([c["num_key_value_heads"] if t != "conv" else 0 for t in types])
    w.add_layer_norm_rms_eps(c["norm_eps"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_vocab_size(c["vocab_size"])
    w.add_shortconv_l_cache(c["conv_L_cache"])
    if arch == "lfm2moe":
        w.add_expert_count(c["num_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        w.add_leading_dense_block_count(c["num_dense_layers"])
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    for hf_name, t in weights.items():
        a = t.numpy().astype(np.float32)
        if not hf_name.startswith("model.layers."):
            target = {"model.embed_tokens.weight": "token_embd.weight", "model.embedding_norm.weight": "token_embd_norm.weight"}[hf_name]
            w.add_tensor(target, a.astype(np.float16) if a.ndim == 2 else a)
            continue
        layer, rest = hf_name.split(".", 3)[2:]
        block = f"blk.{layer}."
        experts = experts_of(hf_name, t)
        for kind, all_of in experts.items():
            w.add_tensor(f"{block}ffn_{kind}_exps.weight", all_of.numpy().astype(np.float16))
        if rest == "feed_forward.expert_bias":
            w.add_tensor(block + "exp_probs_b.bias", a)
        elif not experts:
            stem = rest.removesuffix(".weight")
            small = a.ndim != 2 or stem == "feed_forward.gate"
            w.add_tensor(f"{block}{LFM2_NAMES[stem]}.weight", (a.squeeze(1) if a.ndim == 3 else a).astype(np.float32 if small else np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return weights


DELTA_NAMES = {"linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out", "linear_attn.in_proj_ba": "ssm_ba",
               "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta",
               "linear_attn.in_proj_a": "ssm_alpha", "post_attention_layernorm": "post_attention_norm"}


def in_turn(c, a, dim, size):
    """Value heads in the order of their place in a group, as the converter puts those of Qwen3.5; size: rows of one."""
    keys, values = c["linear_num_key_heads"], c["linear_num_value_heads"]
    return np.moveaxis(np.moveaxis(a, dim, 0).reshape(keys, values // keys, size, -1).swapaxes(0, 1).reshape(np.moveaxis(a, dim, 0).shape), 0, dim)


def delta_tensors(c, stem, a, arch):
    """(end of the name, values) of one of a layer's tensors, whose A_log and so on are made as the converter makes them."""
    n, d, keys, values = c["linear_key_head_dim"], c["linear_value_head_dim"], c["linear_num_key_heads"], c["linear_num_value_heads"]
    if stem.endswith("in_proj_qkvz"):
        blocks, part = a.reshape(keys, -1, a.shape[1]), values // keys * d
        cut = np.split(blocks, [n, 2 * n, 2 * n + part], 1)
        q, k, v, z = (x.reshape(-1, a.shape[1]) for x in cut)
        return [("attn_qkv.weight", np.concatenate([q, k, v])), ("attn_gate.weight", z)]
    if stem.endswith("A_log"):
        a = -np.exp(a)
    if stem.endswith("conv1d"):
        a = a.squeeze(1)
    if arch == "qwen35":
        first = 2 * keys * n
        if stem.endswith(("in_proj_qkv", "conv1d")):
            a = np.concatenate([a[:first], in_turn(c, a[first:], 0, d)])
        elif stem.endswith("in_proj_z"):
            a = in_turn(c, a, 0, d)
        elif stem.endswith(("in_proj_a", "in_proj_b", "A_log", "dt_bias")):
            a = in_turn(c, a, 0, 1)
        elif stem.endswith("linear_attn.out_proj"):
            a = in_turn(c, a, 1, d)
    if stem.endswith("norm") and "linear_attn" not in stem:
        a = a + 1
    end = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}.get(stem)
    return [(end or f"{DELTA_NAMES.get(stem) or GGUF_NAMES[stem]}.weight", a)]


def write_gguf_delta(name, c, weights, arch):
    import gguf
    w = gguf.GGUFWriter(str(ROOT / f"{name}.gguf"), arch)
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(c.get("rope_theta") or c["rope_parameters"]["rope_theta"])
    w.add_rope_dimension_count(c["head_dim"] // 4)
    w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
    w.add_ssm_state_size(c["linear_key_head_dim"])
    w.add_ssm_group_count(c["linear_num_key_heads"])
    w.add_ssm_time_step_rank(c["linear_num_value_heads"])
    w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
    if "layer_types" in c:
        w.add_array(f"{arch}.attention.recurrent_layers", [t == "linear_attention" for t in c["layer_types"]])
        w.add_rope_dimension_sections(c["rope_parameters"]["mrope_section"] + [0])
    else:
        w.add_uint32(f"{arch}.full_attention_interval", c["full_attention_interval"])
    if "num_experts" in c:
        w.add_expert_count(c["num_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
    for hf_name, t in weights.items():
        a = t.numpy().astype(np.float32)
        if hf_name in top:
            w.add_tensor(top[hf_name], a.astype(np.float16) if a.ndim == 2 else a + 1)
            continue
        layer, rest = hf_name.split(".", 3)[2:]
        experts = experts_of(hf_name, t)
        for kind, all_of in experts.items():
            w.add_tensor(f"blk.{layer}.ffn_{kind}_exps.weight", all_of.numpy().astype(np.float16))
        for end, values in [] if experts else delta_tensors(c, rest.removesuffix(".weight"), a, arch):
            small = values.ndim == 1 or end.startswith(("ssm_conv1d", "ffn_gate_inp"))
            w.add_tensor(f"blk.{layer}.{end}", (values[0] if end.startswith("ffn_gate_inp_shexp") else values).astype(np.float32 if small else np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return weights


def write_gguf(name, config, weights, arch, types=None, mxfp4=None):
    import gguf
    c = text_config(config)
    if arch in ("granitehybrid", "falcon-h1", "jamba", "nemotron_h", "nemotron_h_moe"):
        return write_gguf_hybrid(name, c, weights, arch)
    if arch in ("qwen3next", "qwen35"):
        return write_gguf_delta(name, c, weights, arch)
    if arch in ("lfm2", "lfm2moe"):
        return write_gguf_lfm2(name, c, weights, arch)
    if arch in ("mamba", "mamba2"):
        return write_gguf_mamba(name, c, weights, arch)
    head_dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    w = gguf.GGUFWriter(str(ROOT / f"{name}.gguf"), arch)
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    apart = arch == "deepseek2" and (types is not None or c["q_lora_rank"] is not None)
    if arch == "deepseek2":
        add_deepseek_keys(w, c, apart)
    else:
        w.add_head_count_kv(c["num_key_value_heads"])
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
    if arch in ("starcoder2", "command-r", "cohere2", "stablelm"):
        w.add_layer_norm_eps(c.get("norm_epsilon", c.get("layer_norm_eps")))
    else:
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(c.get("rope_theta") or c["rope_parameters"]["rope_theta"])
    if arch == "llama":
        w.add_rope_dimension_count(head_dim)
        w.add_vocab_size(c["vocab_size"])
    if "partial_rotary_factor" in c:
        w.add_rope_dimension_count(int(head_dim * c["partial_rotary_factor"]))
    scaling = c.get("rope_scaling") or (c.get("rope_parameters", {}) if c["model_type"] == "ministral3" else {})
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_divisors(c, head_dim))
    elif kind == "longrope":
        orig = c["original_max_position_embeddings"]
        w.add_rope_scaling_orig_ctx_len(orig)
        w.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(c["max_position_embeddings"] / orig) / math.log(orig)))
        w.add_tensor("rope_factors_long.weight", np.array(scaling["long_factor"], np.float32))
        w.add_tensor("rope_factors_short.weight", np.array(scaling["short_factor"], np.float32))
    elif kind in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType(kind))
        w.add_rope_scaling_factor(scaling["factor"])
        if kind == "yarn":
            w.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        if "llama_4_scaling_beta" in scaling:
            w.add_rope_scaling_yarn_log_mul(scaling["mscale_all_dim"])
            w.add_float32(f"{arch}.attention.temperature_scale", scaling["llama_4_scaling_beta"])
            w.add_float32(f"{arch}.rope.scaling.yarn_beta_fast", scaling["beta_fast"])
            w.add_float32(f"{arch}.rope.scaling.yarn_beta_slow", scaling["beta_slow"])
    if "mrope_section" in scaling:
        w.add_rope_dimension_sections(scaling["mrope_section"] + [0])
    if c.get("sliding_window") and arch != "qwen2vl":
        w.add_sliding_window(c["sliding_window"])
    if arch == "glm4moe":
        add_glm_experts(w, c)
    if arch in ("olmo2", "exaone4") and c.get("sliding_window") and "layer_types" in c:
        w.add_sliding_window_pattern([t == "sliding_attention" for t in c["layer_types"]])
    for key, field in FLOAT_KEYS.get(arch, {}).items():
        w.add_float32(f"{arch}.{key}", c[field])
    experts = c.get("num_experts", c.get("num_local_experts"))
    if experts:
        w.add_expert_count(experts)
        w.add_expert_used_count(c["num_experts_per_tok"])
    if "moe_intermediate_size" in c or arch == "gpt-oss":
        w.add_expert_feed_forward_length(c.get("moe_intermediate_size", c["intermediate_size"]))
    if "shared_expert_intermediate_size" in c:
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    used, matrices = {}, 0
    for hf_name, t in weights.items():
        if mxfp4 is not None and ".mlp.experts." in hf_name:
            add_gpt_oss_experts(w, hf_name, t, mxfp4.get(hf_name))
            continue
        stacks = []
        for kind, all_of in experts_of(hf_name, t).items():
            target = f"blk.{hf_name.split('.')[2]}.ffn_{kind}_exps.weight"
            if types is None:
                w.add_tensor(target, all_of.numpy().astype(np.float16))
                continue
            q = gguf.GGMLQuantizationType[types[matrices % len(types)]]
            matrices += 1
            packed = quantized(all_of.numpy().copy(), q)
            w.add_tensor(target, packed, raw_dtype=q)
            stacks.append(torch.from_numpy(gguf.dequantize(packed, q).astype(np.float32)))
        if stacks:
            used[hf_name] = torch.cat(stacks, 1)
        if experts_of(hf_name, t):
            continue
        a = t.numpy().copy()
        if apart and "kv_b_proj" in hf_name:
            heads = heads_of(c, a)
            for part, of_part in heads.items():
                target = f"blk.{hf_name.split('.')[2]}.attn_{part}.weight"
                if types is None:
                    w.add_tensor(target, of_part.astype(np.float16))
                    continue
                q = gguf.GGMLQuantizationType[types[matrices % len(types)]]
                matrices += 1
                packed = quantized(of_part, q)
                w.add_tensor(target, packed, raw_dtype=q)
                heads[part] = gguf.dequantize(packed, q).reshape(of_part.shape)
            used[hf_name] = torch.from_numpy(joined(c, heads).astype(np.float32))
            continue
        if "shared_expert_gate" in hf_name or ".mlp.gate." in hf_name or ".mlp.router.weight" in hf_name:  # routers stay f32
            w.add_tensor(gguf_name(hf_name, arch), (a[0] if a.shape[0] == 1 else a).astype(np.float32))
            continue
        if arch in PERMUTED and "q_proj" in hf_name:
            a = permute(a, c["num_attention_heads"])
        if arch in PERMUTED and "k_proj" in hf_name:
            a = permute(a, c["num_key_value_heads"])
        if arch in ("gemma", "gemma2", "gemma3") and "norm" in hf_name:
            a = a + 1
        if a.ndim == 1:
            w.add_tensor(gguf_name(hf_name, arch), a.astype(np.float32))
            continue
        if types is None:
            w.add_tensor(gguf_name(hf_name, arch), a.astype(np.float16))
            continue
        q = gguf.GGMLQuantizationType[types[matrices % len(types)]]
        matrices += 1
        packed = quantized(a, q)
        w.add_tensor(gguf_name(hf_name, arch), packed, raw_dtype=q)
        back = gguf.dequantize(packed, q)
        heads = c["num_attention_heads"] if "q_proj" in hf_name else c["num_key_value_heads"]
        if arch in PERMUTED and ("q_proj" in hf_name or "k_proj" in hf_name):
            back = back.reshape(heads, back.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(back.shape)
        used[hf_name] = torch.from_numpy(back.astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return dict(weights, **used)
