"""A complete tiny chat model made from nothing but a seed: random Llama weights, a byte-level BPE tokenizer with
ChatML's special tokens and a chat template. For tests of commands and server that need text in and out but no sense.
Standard library only. Use: python3 tests/tiny_chat_model.py DIR [FAMILY]; families: llama, mamba, hybrid, windows, plamo2,
nemotron."""
import json
import os
import random
import struct
import sys

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>'"
            " + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def byte_alphabet():
    """The printable stand-in of every byte, as byte-level BPE has used it since GPT-2."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, extra = {}, 0
    for b in range(256):
        if b in keep:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + extra)
            extra += 1
    return table


def tokenizer():
    alphabet = byte_alphabet()
    vocab = {alphabet[b]: b for b in range(256)}
    merges = []
    for pair in [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("t", "h"), ("th", "e"), ("i", "n"), ("\u0120", "the"),
                 ("\u0120", "w"), ("o", "r"), ("e", "r"), ("a", "n"), ("an", "d")]:
        merges.append(list(pair))
        vocab["".join(pair)] = len(vocab)
    added = []
    for name in SPECIAL:
        added.append({"id": len(vocab) + len(added), "content": name, "single_word": False, "lstrip": False, "rstrip": False,
                      "normalized": False, "special": not name.endswith("think>") and "tool" not in name})
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": merges}}


def bf16(values):
    out = bytearray()
    for v in values:
        out += struct.pack("<f", v)[2:]
    return bytes(out)


def safetensors(tensors):
    header, at, blobs = {}, 0, []
    for name, shape, data in tensors:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
        blobs.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(blobs)


def weights(rng, config):
    e, f, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    d = config["head_dim"]
    h, g = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    matrix = lambda name, out, inp: (name, [out, inp], bf16([rng.gauss(0, inp ** -0.5 * 1.5) for _ in range(out * inp)]))
    norm = lambda name: (name, [e], bf16([1 + rng.gauss(0, 0.05) for _ in range(e)]))
    out = [matrix("model.embed_tokens.weight", v, e), norm("model.norm.weight"), matrix("lm_head.weight", v, e)]
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        out += [norm(p + "input_layernorm.weight"), norm(p + "post_attention_layernorm.weight"),
                matrix(p + "self_attn.q_proj.weight", h, e), matrix(p + "self_attn.k_proj.weight", g, e),
                matrix(p + "self_attn.v_proj.weight", g, e), matrix(p + "self_attn.o_proj.weight", e, h),
                matrix(p + "mlp.gate_proj.weight", f, e), matrix(p + "mlp.up_proj.weight", f, e),
                matrix(p + "mlp.down_proj.weight", e, f)]
    return out


def matrix(rng, name, out, inp, gain=1.5):
    return name, [out, inp], bf16([rng.gauss(0, inp ** -0.5 * gain) for _ in range(out * inp)])


def vector(rng, name, n, mean, spread):
    return name, [n], bf16([mean + rng.gauss(0, spread) for _ in range(n)])


MAMBA = {"architectures": ["MambaForCausalLM"], "model_type": "mamba", "hidden_size": 48, "num_hidden_layers": 2,
         "state_size": 16, "conv_kernel": 4, "expand": 2, "time_step_rank": 4, "layer_norm_epsilon": 1e-5, "use_bias": False,
         "use_conv_bias": True, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
         "bos_token_id": None}


def mamba_weights(rng, config):
    e, v, n, r = config["hidden_size"], config["vocab_size"], config["state_size"], config["time_step_rank"]
    i = config["expand"] * e
    out = [matrix(rng, "backbone.embeddings.weight", v, e), vector(rng, "backbone.norm_f.weight", e, 1, 0.05),
           matrix(rng, "lm_head.weight", v, e)]
    for l in range(config["num_hidden_layers"]):
        p = f"backbone.layers.{l}.mixer."
        taps = matrix(rng, p + "conv1d.weight", i, 4)
        out += [vector(rng, f"backbone.layers.{l}.norm.weight", e, 1, 0.05), matrix(rng, p + "in_proj.weight", 2 * i, e),
                (taps[0], [i, 1, 4], taps[2]), vector(rng, p + "conv1d.bias", i, 0, 0.1),
                matrix(rng, p + "x_proj.weight", r + 2 * n, i), matrix(rng, p + "dt_proj.weight", i, r),
                vector(rng, p + "dt_proj.bias", i, -2, 0.5), matrix(rng, p + "A_log", i, n),
                vector(rng, p + "D", i, 1, 0.2), matrix(rng, p + "out_proj.weight", e, i)]
    return out


HYBRID = {"architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "hidden_size": 48,
          "intermediate_size": 64, "shared_intermediate_size": 64, "num_local_experts": 0, "num_experts_per_tok": 0,
          "num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"], "num_attention_heads": 3,
          "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "attention_multiplier": 0.25, "embedding_multiplier": 4.0,
          "residual_multiplier": 0.5, "logits_scaling": 0.5, "position_embedding_type": "nope", "mamba_n_heads": 6,
          "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2,
          "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": None}


def hybrid_weights(rng, config):
    e, v, f, n, h = (config[k] for k in ("hidden_size", "vocab_size", "shared_intermediate_size", "mamba_d_state",
                                         "mamba_n_heads"))
    inner, d = 2 * e, e // config["num_attention_heads"]
    conv, kv = inner + 2 * n, d * config["num_key_value_heads"]
    out = [matrix(rng, "model.embed_tokens.weight", v, e), vector(rng, "model.norm.weight", e, 1, 0.05),
           matrix(rng, "lm_head.weight", v, e)]
    for l, kind in enumerate(config["layer_types"]):
        p = f"model.layers.{l}."
        out += [vector(rng, p + "input_layernorm.weight", e, 1, 0.05),
                vector(rng, p + "post_attention_layernorm.weight", e, 1, 0.05),
                matrix(rng, p + "shared_mlp.input_linear.weight", 2 * f, e),
                matrix(rng, p + "shared_mlp.output_linear.weight", e, f)]
        if kind == "attention":
            out += [matrix(rng, f"{p}self_attn.{m}_proj.weight", rows, e) for m, rows in (("q", e), ("k", kv), ("v", kv), ("o", e))]
            continue
        p += "mamba."
        taps = matrix(rng, p + "conv1d.weight", conv, 4)
        out += [matrix(rng, p + "in_proj.weight", inner + conv + h, e), (taps[0], [conv, 1, 4], taps[2]),
                vector(rng, p + "conv1d.bias", conv, 0, 0.1), vector(rng, p + "dt_bias", h, -2, 0.5),
                vector(rng, p + "A_log", h, 0, 0.5), vector(rng, p + "D", h, 1, 0.2),
                vector(rng, p + "norm.weight", inner, 1, 0.05), matrix(rng, p + "out_proj.weight", e, inner)]
    return out


PLAMO2 = {"architectures": ["Plamo2ForCausalLM"], "model_type": "plamo2", "hidden_size": 48, "intermediate_size": 64,
          "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size_per_head": 16,
          "attention_window_size": 20, "full_attention_idx": [1], "rms_norm_eps": 1e-6, "mamba_d_state": 16, "mamba_d_conv": 4,
          "mamba_num_heads": 4, "mamba_step": 2, "mamba_enabled": True, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
          "bos_token_id": None}


def plamo2_weights(rng, config):
    e, v, f, n, d = (config[k] for k in ("hidden_size", "vocab_size", "intermediate_size", "mamba_d_state", "hidden_size_per_head"))
    heads, kv, h, rank = config["num_attention_heads"], config["num_key_value_heads"], config["mamba_num_heads"], 64
    inner = h * d
    out = [matrix(rng, "model.embed_tokens.weight", v, e), vector(rng, "model.norm.weight", e, 0, 0.05),
           matrix(rng, "lm_head.weight", v, e)]
    for l in range(config["num_hidden_layers"]):
        p = f"model.layers.layers.{l}."
        out += [vector(rng, f"{p}{name}.weight", e, 0, 0.03) for name in ("pre_mixer_norm", "post_mixer_norm", "pre_mlp_norm", "post_mlp_norm")]
        out += [matrix(rng, p + "mlp.gate_up_proj.weight", 2 * f, e), matrix(rng, p + "mlp.down_proj.weight", e, f)]
        p += "mixer."
        if l % 2 == 1:
            weight = lambda name, n: (name, [n, d], vector(rng, name, n * d, 1, 0.1)[2])
            out += [matrix(rng, p + "qkv_proj.weight", (heads + 2 * kv) * d, e), matrix(rng, p + "o_proj.weight", e, heads * d),
                    weight(p + "q_weight", heads), weight(p + "k_weight", kv)]
            continue
        taps = matrix(rng, p + "conv1d.weight", inner, 4)
        out += [matrix(rng, p + "in_proj.weight", 2 * inner, e), (taps[0], [inner, 1, 4], taps[2]),
                matrix(rng, p + "bcdt_proj.weight", rank + 2 * n, inner), matrix(rng, p + "dt_proj.weight", h, rank, 0.7),
                vector(rng, p + "dt_bias", h, -2, 0.5), vector(rng, p + "A_log", h, 0, 0.5), vector(rng, p + "D", h, 1, 0.2),
                vector(rng, p + "dt_norm_weight", rank, 1, 0.1), vector(rng, p + "B_norm_weight", n, 1, 0.1),
                vector(rng, p + "C_norm_weight", n, 1, 0.1), matrix(rng, p + "out_proj.weight", e, inner)]
    return out


NEMOTRON = {"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "hidden_size": 48, "intermediate_size": 64,
            "num_hidden_layers": 4, "hybrid_override_pattern": "ME*E", "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16,
            "layer_norm_epsilon": 1e-5, "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu", "ssm_state_size": 16, "mamba_num_heads": 6,
            "mamba_head_dim": 16, "n_groups": 2, "conv_kernel": 4, "use_conv_bias": True, "n_routed_experts": 6, "num_experts_per_tok": 2,
            "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 40, "n_shared_experts": 1, "norm_topk_prob": True,
            "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "bos_token_id": None}


def nemotron_weights(rng, config):
    e, v, n, h, x = (config[k] for k in ("hidden_size", "vocab_size", "ssm_state_size", "mamba_num_heads", "n_routed_experts"))
    inner = h * config["mamba_head_dim"]
    conv, d = inner + 2 * config["n_groups"] * n, config["head_dim"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    out = [matrix(rng, "backbone.embeddings.weight", v, e), vector(rng, "backbone.norm_f.weight", e, 1, 0.05),
           matrix(rng, "lm_head.weight", v, e)]
    for l, kind in enumerate(config["hybrid_override_pattern"]):
        p = f"backbone.layers.{l}.mixer."
        out.append(vector(rng, f"backbone.layers.{l}.norm.weight", e, 1, 0.05))
        if kind == "*":
            out += [matrix(rng, f"{p}{m}_proj.weight", r, c) for m, r, c in (("q", q, e), ("k", kv, e), ("v", kv, e), ("o", e, q))]
        elif kind == "E":
            mlps = [(f"experts.{i}", config["moe_intermediate_size"]) for i in range(x)]
            mlps.append(("shared_experts", config["moe_shared_expert_intermediate_size"]))
            out += [matrix(rng, p + "gate.weight", x, e), vector(rng, p + "gate.e_score_correction_bias", x, 0, 0.2)]
            for name, f in mlps:
                out += [matrix(rng, f"{p}{name}.up_proj.weight", f, e), matrix(rng, f"{p}{name}.down_proj.weight", e, f)]
        else:
            taps = matrix(rng, p + "conv1d.weight", conv, 4)
            out += [matrix(rng, p + "in_proj.weight", inner + conv + h, e), (taps[0], [conv, 1, 4], taps[2]),
                    vector(rng, p + "conv1d.bias", conv, 0, 0.1), vector(rng, p + "dt_bias", h, -2, 0.5),
                    vector(rng, p + "A_log", h, 0, 0.5), vector(rng, p + "D", h, 1, 0.2),
                    vector(rng, p + "norm.weight", inner, 1, 0.05), matrix(rng, p + "out_proj.weight", e, inner)]
    return out


def write(directory, seed=1, context=512, family="llama", head_dim=16):
    os.makedirs(directory, exist_ok=True)
    tok = tokenizer()
    vocab = len(tok["model"]["vocab"]) + len(tok["added_tokens"])
    ids = {t["content"]: t["id"] for t in tok["added_tokens"]}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": head_dim, "vocab_size": vocab,
              "max_position_embeddings": context, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
              "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": None,
              "eos_token_id": ids["<|im_end|>"]}
    if family == "mamba":
        config = dict(MAMBA, vocab_size=vocab, max_position_embeddings=context, eos_token_id=ids["<|im_end|>"])
    if family in ("plamo2", "nemotron"):
        config = dict(PLAMO2 if family == "plamo2" else NEMOTRON, vocab_size=vocab, max_position_embeddings=context,
                      eos_token_id=ids["<|im_end|>"])
    if family == "hybrid":
        config = dict(HYBRID, vocab_size=vocab, max_position_embeddings=context, eos_token_id=ids["<|im_end|>"])
    if family == "windows":  # of four layers one sees everything
        config.update(architectures=["MinistralForCausalLM"], model_type="ministral", num_hidden_layers=4, sliding_window=20,
                      layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"])
    files = {"config.json": config, "tokenizer.json": tok,
             "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>",
                                       "pad_token": "<|endoftext|>", "chat_template": TEMPLATE},
             "generation_config.json": {"eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]]}}
    for name, value in files.items():
        with open(os.path.join(directory, name), "w", encoding="utf-8") as out:
            json.dump(value, out, ensure_ascii=False)
    with open(os.path.join(directory, "model.safetensors"), "wb") as out:
        of = {"mamba": mamba_weights, "hybrid": hybrid_weights, "plamo2": plamo2_weights, "nemotron": nemotron_weights}
        out.write(safetensors(of.get(family, weights)(random.Random(seed), config)))


if __name__ == "__main__":
    write(sys.argv[1], family=sys.argv[2] if len(sys.argv) > 2 else "llama")
