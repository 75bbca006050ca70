#!/usr/bin/env python3
"""Small models with random weights for routes that a Llama does not reach: `plumb verify --route-model FILE`. Standard
library only; a few MB and some seconds.

    python3 tools/route_models.py DIR [NAME..]

| file | reaches |
|---|---|
| latent.gguf | latent attention as wide as published (512 + 64, 16 heads) and its merges; a mixture of experts |
| states.gguf | Mamba-2: convolution, scan over a prompt, update of a state |
| ternary.gguf | BitNet's product |
| sinks.gguf | gpt-oss: attention sinks, a window, experts with biases |
| wide.gguf | heads of 640 numbers, which no paged kernel takes |
| capped.gguf | Gemma 2: norms after products with the residual in one, soft caps, a window |
| shared.gguf | Qwen2-MoE: shared experts behind a gate |
| parallel.gguf | Command R: norms around a mean, scaled logits |

Every byte is a token, so that any text is a prompt. The answers mean nothing.
"""
import os
import random
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from craft_model import Gguf  # noqa: E402

VOCAB = 259


def bytes_as_text():
    """GPT-2's letters for bytes: those that can be seen stand for themselves, the others from U+0100 on."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = iter(range(256, 512))
    return [chr(b) if b in seen else chr(next(other)) for b in range(256)]


class Model:
    def __init__(self, arch, width, context, seed):
        self.g, self.arch, self.rng, self.width = Gguf(), arch, random.Random(seed), width
        self.g.key("general.architecture", "string", arch).key("general.name", "string", arch + "-routes")
        self.named({"context_length": context, "embedding_length": width, "vocab_size": VOCAB})

    def named(self, values):
        for name, v in values.items():
            kind = "string" if isinstance(v, str) else "f32" if isinstance(v, float) else "u32"
            self.g.key(f"{self.arch}.{name}", kind, v)
        return self

    def vector(self, name, n, mean=0.0, spread=0.2):
        self.tensor(name, (n,), "f32", spread, mean)

    def tensor(self, name, shape, kind="q8_0", spread=None, mean=0.0):
        """shape: inputs first."""
        n = 1
        for s in shape:
            n *= s
        spread = shape[0] ** -0.5 if spread is None else spread
        if kind == "f32":
            bits = struct.pack(f"<{n}f", *(self.rng.gauss(mean, spread) for _ in range(n)))
        elif kind == "f16":  # -s, 0 and s
            bits = b"".join(self.rng.choices((struct.pack("<e", -0.0625), bytes(2), struct.pack("<e", 0.0625)), k=n))
        elif kind == "mxfp4":
            bits = b"".join(bytes([121]) + self.rng.randbytes(16) for _ in range(n // 32))
        else:
            scale = struct.pack("<e", spread / 73)
            bits = b"".join(scale + self.rng.randbytes(32) for _ in range(n // 32))
        self.g.tensor(name, list(shape), kind, bits)

    def attention(self, p, heads, groups, size, kind="q8_0", bias=False):
        w = self.width
        for name, shape in (("attn_q", (w, heads * size)), ("attn_k", (w, groups * size)), ("attn_v", (w, groups * size)),
                            ("attn_output", (heads * size, w))):
            self.tensor(p + name + ".weight", shape, kind)
            if bias:
                self.vector(p + name + ".bias", shape[1])

    def mlp(self, p, inner, kind="q8_0", suffix="", more=()):
        for name, shape in (("gate", (self.width, inner)), ("up", (self.width, inner)), ("down", (inner, self.width))):
            self.tensor(p + f"ffn_{name}{suffix}.weight", shape + more, kind)

    def norms(self, p, *names):
        for name in names:
            self.vector(p + name + ".weight", self.width, 1.0)

    def ends(self, tied=False):
        self.tensor("token_embd.weight", (self.width, VOCAB), spread=1.0)
        self.vector("output_norm.weight", self.width, 1.0)
        if not tied:
            self.tensor("output.weight", (self.width, VOCAB))

    def write(self, path):
        tokens = [*bytes_as_text(), "<|begin|>", "<|end|>", "<|pad|>"]
        self.g.key("tokenizer.ggml.model", "string", "gpt2").key("tokenizer.ggml.pre", "string", "gpt-2")
        self.g.array("tokenizer.ggml.tokens", "string", tokens).array("tokenizer.ggml.token_type", "i32", [1] * 256 + [3] * 3)
        self.g.array("tokenizer.ggml.merges", "string", [])
        self.g.key("tokenizer.ggml.bos_token_id", "u32", 256).key("tokenizer.ggml.eos_token_id", "u32", 257)
        self.g.key("tokenizer.ggml.add_bos_token", "bool", False)
        with open(path, "wb") as f:
            f.write(self.g.bytes())


def shape(heads, groups, size, inner, eps=1e-5, base=10000.0, layers=2):
    return {"block_count": layers, "feed_forward_length": inner, "attention.head_count": heads, "attention.head_count_kv": groups,
            "attention.key_length": size, "attention.value_length": size, "rope.dimension_count": size,
            "attention.layer_norm_rms_epsilon": eps, "rope.freq_base": base}


def latent(path):
    heads, c, rope, nope, value, inner, experts = 16, 512, 64, 32, 32, 256, 8
    m = Model("deepseek2", 256, 2048, 1)
    m.named(shape(heads, 1, c, inner) | {
        "attention.key_length": c + rope, "attention.key_length_mla": nope + rope, "attention.value_length_mla": value,
        "attention.kv_lora_rank": c, "rope.dimension_count": rope, "leading_dense_block_count": 1, "expert_count": experts,
        "expert_used_count": 2, "expert_shared_count": 1, "expert_feed_forward_length": inner, "expert_gating_func": 1})
    m.ends()
    for layer in range(2):
        p, w = f"blk.{layer}.", m.width
        m.norms(p, "attn_norm", "ffn_norm")
        m.tensor(p + "attn_q.weight", (w, heads * (nope + rope)))
        m.tensor(p + "attn_kv_a_mqa.weight", (w, c + rope))
        m.vector(p + "attn_kv_a_norm.weight", c, 1.0)
        m.tensor(p + "attn_k_b.weight", (nope, c, heads), spread=c ** -0.5)
        m.tensor(p + "attn_v_b.weight", (c, value, heads))
        m.tensor(p + "attn_output.weight", (heads * value, w))
        if layer == 0:
            m.mlp(p, inner)
            continue
        m.tensor(p + "ffn_gate_inp.weight", (w, experts), "f32", 2 * w ** -0.5)
        m.mlp(p, inner, suffix="_exps", more=(experts,))
        m.mlp(p, inner, suffix="_shexp")
    m.write(path)


def states(path):
    width, inner, heads, groups, state, kernel = 256, 512, 8, 2, 64, 4
    m = Model("mamba2", width, 2048, 2)
    m.named({"block_count": 2, "feed_forward_length": 0, "attention.head_count": 0, "attention.layer_norm_rms_epsilon": 1e-5,
             "ssm.conv_kernel": kernel, "ssm.state_size": state, "ssm.inner_size": inner, "ssm.time_step_rank": heads,
             "ssm.group_count": groups})
    m.ends()
    for layer in range(2):
        p, mixed = f"blk.{layer}.", inner + 2 * groups * state
        m.norms(p, "attn_norm")
        m.vector(p + "ssm_dt.bias", heads)
        m.tensor(p + "ssm_a", (1, heads), "f32", 0.2, -1.0)
        m.tensor(p + "ssm_d", (1, heads), "f32", 0.2, 1.0)
        m.tensor(p + "ssm_conv1d.weight", (kernel, mixed), "f32", 0.3)
        m.vector(p + "ssm_conv1d.bias", mixed)
        m.tensor(p + "ssm_in.weight", (width, 2 * inner + 2 * groups * state + heads))
        m.tensor(p + "ssm_norm.weight", (inner // groups, groups), "f32", 0.2, 1.0)
        m.tensor(p + "ssm_out.weight", (inner, width))
    m.write(path)


def ternary(path):
    inner = 512
    m = Model("bitnet", 256, 2048, 3)
    m.named({k: v for k, v in shape(4, 2, 64, inner).items() if k not in ("attention.key_length", "attention.value_length", "rope.dimension_count")})
    m.ends(tied=True)
    for layer in range(2):
        p = f"blk.{layer}."
        m.norms(p, "attn_norm", "attn_sub_norm", "ffn_norm")
        m.vector(p + "ffn_sub_norm.weight", inner, 1.0)
        m.attention(p, 4, 2, 64, "f16")
        m.mlp(p, inner, "f16")
    m.write(path)


def sinks(path):
    inner, heads, experts = 256, 8, 4
    m = Model("gpt-oss", 256, 2048, 4)
    m.named(shape(heads, 2, 64, inner, base=150000.0) | {"attention.sliding_window": 128, "expert_count": experts, "expert_used_count": 2,
                                                         "expert_feed_forward_length": inner})
    m.ends()
    for layer in range(2):
        p = f"blk.{layer}."
        m.norms(p, "attn_norm", "post_attention_norm")
        m.vector(p + "attn_sinks.weight", heads)
        m.attention(p, heads, 2, 64, bias=True)
        m.tensor(p + "ffn_gate_inp.weight", (m.width, experts), "f32")
        m.vector(p + "ffn_gate_inp.bias", experts)
        m.mlp(p, inner, "mxfp4", "_exps", (experts,))
        for name, n in (("gate", inner), ("up", inner), ("down", m.width)):
            m.tensor(p + f"ffn_{name}_exps.bias", (n, experts), "f32", 0.1)
    m.write(path)


def wide(path):
    m = Model("llama", 256, 2048, 5)
    m.named(shape(2, 1, 640, 512))
    m.ends()
    for layer in range(2):
        p = f"blk.{layer}."
        m.norms(p, "attn_norm", "ffn_norm")
        m.attention(p, 2, 1, 640)
        m.mlp(p, 512)
    m.write(path)


def capped(path):
    m = Model("gemma2", 256, 2048, 6)
    m.named(shape(4, 2, 64, 512, eps=1e-6) | {"attention.sliding_window": 128, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0})
    m.ends(tied=True)
    for layer in range(2):
        p = f"blk.{layer}."
        m.norms(p, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        m.attention(p, 4, 2, 64)
        m.mlp(p, 512)
    m.write(path)


def shared(path):
    experts = 8
    m = Model("qwen2moe", 256, 2048, 7)
    m.named(shape(4, 2, 64, 512, eps=1e-6, base=1000000.0) | {"expert_count": experts, "expert_used_count": 2, "expert_feed_forward_length": 256,
                                                              "expert_shared_feed_forward_length": 512})
    m.ends()
    for layer in range(2):
        p = f"blk.{layer}."
        m.norms(p, "attn_norm", "ffn_norm")
        m.attention(p, 4, 2, 64)
        for name, n in (("attn_q", 256), ("attn_k", 128), ("attn_v", 128)):
            m.vector(p + name + ".bias", n)
        m.tensor(p + "ffn_gate_inp.weight", (m.width, experts), "f32")
        m.mlp(p, 256, suffix="_exps", more=(experts,))
        m.mlp(p, 512, suffix="_shexp")
        m.vector(p + "ffn_gate_inp_shexp.weight", m.width)
    m.write(path)


def parallel(path):
    m = Model("command-r", 256, 2048, 8)
    keys = shape(4, 2, 64, 512, base=8000000.0) | {"attention.layer_norm_epsilon": 1e-5, "logit_scale": 0.0625}
    del keys["attention.layer_norm_rms_epsilon"]
    m.named(keys)
    m.ends(tied=True)
    for layer in range(2):
        p = f"blk.{layer}."
        m.norms(p, "attn_norm")
        m.attention(p, 4, 2, 64)
        m.mlp(p, 512)
    m.write(path)


MODELS = {f.__name__: f for f in (latent, states, ternary, sinks, wide, capped, shared, parallel)}


def main():
    os.makedirs(sys.argv[1], exist_ok=True)
    for name in sys.argv[2:] or MODELS:
        MODELS[name](os.path.join(sys.argv[1], name + ".gguf"))
        print(os.path.join(sys.argv[1], name + ".gguf"))


if __name__ == "__main__":
    main()
