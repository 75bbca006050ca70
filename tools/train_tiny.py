#!/usr/bin/env python3
"""Small models that know some prose by heart, for verification passes where no published model can be had: confident
answers, real shapes, a real tokenizer, a few MB.

    python tools/train_tiny.py llama|qwen3 OUT.gguf [STEPS]     (needs torch, transformers, tokenizers, gguf)

Text: docs/attention.md, and the prompts and the prose of src/verify/verify.c. Llama: heads of 64; Qwen3: heads of 128, normed
queries and keys. Matrices of attention and the output are Q8_0; those of the MLP Q4_0."""
import json
import re
import sys

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'"
            " + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
ROWS, LENGTH = 6, 128


def prose():
    source = open("src/verify/verify.c", encoding="utf-8").read()
    strings = lambda name: [eval(s) for s in re.findall(r'"(?:[^"\\]|\\.)*"', source[source.index(name):].split(";\n")[0])]
    text = "".join(strings("const char pl_verify_text[]"))
    more = [p + " so on, as it was said before.\n" for p in strings("const char *const pl_verify_prompts[")]
    return (text + "\n" + "".join(more)) * 2 + open("docs/attention.md", encoding="utf-8").read()


def tokenizer(text, size):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator([text], trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIAL, show_progress=False,
                                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def build(kind, vocab):
    common = dict(vocab_size=vocab, hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=4,
                  num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=True, attn_implementation="sdpa")
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(head_dim=64, rope_theta=10000.0, **common))
    return Qwen3ForCausalLM(Qwen3Config(head_dim=128, rope_theta=1000000.0, **common))


def train(model, ids, steps):
    rng = np.random.default_rng(7)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    plan = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        at = rng.integers(0, len(ids) - LENGTH, ROWS)
        x = torch.stack([ids[a:a + LENGTH] for a in at])
        loss = model(input_ids=x, labels=x).loss
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        plan.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def permute(a, heads):
    return a.reshape(heads, 2, a.shape[0] // heads // 2, a.shape[1]).swapaxes(1, 2).reshape(a.shape)


def write(kind, model, tok, out):
    c, w = model.config, gguf.GGUFWriter(out, kind)
    merges = [" ".join(m) if isinstance(m, (list, tuple)) else m for m in json.loads(tok.to_str())["model"]["merges"]]
    tokens = sorted(tok.get_vocab(), key=tok.get_vocab().get)
    for add, v in ((w.add_block_count, c.num_hidden_layers), (w.add_context_length, c.max_position_embeddings),
                   (w.add_embedding_length, c.hidden_size), (w.add_feed_forward_length, c.intermediate_size),
                   (w.add_head_count, c.num_attention_heads), (w.add_head_count_kv, c.num_key_value_heads), (w.add_key_length, c.head_dim),
                   (w.add_value_length, c.head_dim), (w.add_rope_dimension_count, c.head_dim), (w.add_layer_norm_rms_eps, c.rms_norm_eps),
                   (w.add_rope_freq_base, (getattr(c, "rope_parameters", None) or {}).get("rope_theta") or c.rope_theta), (w.add_vocab_size, c.vocab_size), (w.add_tokenizer_model, "gpt2"),
                   (w.add_tokenizer_pre, "gpt-2"), (w.add_token_list, tokens), (w.add_token_merges, merges),
                   (w.add_token_types, [3 if t in SPECIAL else 1 for t in tokens]), (w.add_eos_token_id, 2), (w.add_bos_token_id, 0),
                   (w.add_add_bos_token, False), (w.add_chat_template, TEMPLATE), (w.add_name, f"tiny-{kind}")):
        add(v)
    for name, t in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        a = t.numpy().astype(np.float32)
        part = name.removeprefix("model.").removesuffix(".weight")
        if part in ("embed_tokens", "norm"):
            target = {"embed_tokens": "token_embd", "norm": "output_norm"}[part]
        else:
            _, layer, rest = part.split(".", 2)
            target = f"blk.{layer}.{NAMES[rest]}"
        if kind == "llama" and target.endswith(("attn_q", "attn_k")):
            a = permute(a, c.num_attention_heads if target.endswith("q") else c.num_key_value_heads)
        if a.ndim == 1:
            w.add_tensor(target + ".weight", a)
            continue
        q = gguf.GGMLQuantizationType.Q4_0 if "ffn" in target else gguf.GGMLQuantizationType.Q8_0
        w.add_tensor(target + ".weight", gguf.quantize(a, q), raw_dtype=q)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    kind, out, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 700
    torch.manual_seed(7)
    text = prose()
    tok = tokenizer(text, 1024)
    ids = torch.tensor(tok.encode(text).ids)
    print(f"{len(text)} characters, {len(ids)} tokens")
    model = build(kind, tok.get_vocab_size())
    train(model, ids, steps)
    write(kind, model.eval(), tok, out)


main()
