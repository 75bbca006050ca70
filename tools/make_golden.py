#!/usr/bin/env python3
"""Tiny random checkpoints and the logits that independent implementations compute from them.

    python tools/make_golden.py [CASE ...]          (needs torch, transformers, safetensors, gguf, mlx, mlx-lm)

Writes into tests/golden/model:
    CASE/                Hugging Face directory: config.json in the style of published files, bf16 safetensors
    CASE.gguf            the same weights under GGUF names (f16 matrices, or quantised ones)
    CASE-mlx/            the same after mx.quantize
    CASE.bin, CASE-*.bin "PLGOLD1\\0", u32 T, u32 V, u32 tokens[T], f32 logits[T][V] from transformers (f32, eager)

Weights are chosen so that bf16 and f16 both hold them exactly. Quantised cases are checked against the dequantised
weights run by transformers, and the generator prints how far mlx-lm's own forward pass is from that.
"""
import json
import math
import re
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = Path(__file__).resolve().parent.parent / "tests" / "golden" / "model"
TOKENS = 48
COMMON = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              vocab_size=96, max_position_embeddings=128, rms_norm_eps=1e-5, torch_dtype="bfloat16")
TINY = dict(COMMON, hidden_size=32, intermediate_size=48, num_hidden_layers=3, head_dim=16, num_attention_heads=4)
DEEPSEEK = dict(hidden_act="silu", intermediate_size=64, head_dim=None, num_hidden_layers=2, num_key_value_heads=4, kv_lora_rank=32, qk_nope_head_dim=32,
                qk_rope_head_dim=8, v_head_dim=24, moe_intermediate_size=32, num_experts_per_tok=3, moe_layer_freq=1,
                attention_bias=False, rms_norm_eps=1e-6, rope_theta=10000.0, tie_word_embeddings=False)

# name -> (config.json, GGUF architecture or None)
CASES = {
    "llama2": (dict(COMMON, architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu",
                    num_key_value_heads=4, tie_word_embeddings=False, attention_bias=True, mlp_bias=True,
                    pretraining_tp=1, rope_scaling=None, rope_theta=10000.0, initializer_range=0.02), "llama"),
    "llama3": (dict(COMMON, architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", head_dim=16,
                    tie_word_embeddings=True, attention_bias=False, mlp_bias=False, rope_theta=500000.0,
                    rope_scaling=dict(factor=32.0, high_freq_factor=4.0, low_freq_factor=1.0,
                                      original_max_position_embeddings=16, rope_type="llama3")), "llama"),
    "mistral": (dict(COMMON, architectures=["MistralForCausalLM"], model_type="mistral", hidden_act="silu", head_dim=24,
                     tie_word_embeddings=False, rope_theta=10000.0, sliding_window=8), "llama"),
    "qwen2": (dict(COMMON, architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_act="silu",
                   tie_word_embeddings=True, use_sliding_window=False, sliding_window=8, max_window_layers=1,
                   rope_theta=1000000.0, rope_scaling=dict(factor=4.0, original_max_position_embeddings=16, type="yarn")),
              "qwen2"),
    "qwen2-window": (dict(COMMON, architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_act="silu",
                          tie_word_embeddings=False, use_sliding_window=True, sliding_window=8, max_window_layers=1,
                          rope_theta=1000000.0), None),
    "qwen3": (dict(COMMON, architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_act="silu", head_dim=32,
                   num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=False, attention_bias=False, use_sliding_window=False,
                   sliding_window=None, max_window_layers=2,
                   rope_parameters=dict(rope_type="default", rope_theta=1000000.0)), "qwen3"),
    "gemma3": (dict(COMMON, architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", num_hidden_layers=6,
                    num_attention_heads=2, num_key_value_heads=1, head_dim=16, rms_norm_eps=1e-6,
                    hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=16, sliding_window=8,
                    sliding_window_pattern=6, rope_theta=1000000.0, rope_local_base_freq=10000.0,
                    rope_scaling=dict(factor=8.0, rope_type="linear"), attn_logit_softcapping=None,
                    final_logit_softcapping=None, attention_bias=False), "gemma3"),
    # Soft-caps, an odd layer pattern, and the multimodal layout: nested text_config, prefixed names.
    "gemma3-nested": (dict(architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3", text_config=dict(
        COMMON, model_type="gemma3_text", num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, head_dim=32,
        query_pre_attn_scalar=40, sliding_window=5, attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"]),
        vision_config=dict(model_type="siglip_vision_model")), None),
    "gemma2": (dict(TINY, architectures=["Gemma2ForCausalLM"], model_type="gemma2", rms_norm_eps=1e-6,
                    hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=16,
                    sliding_window=8, rope_theta=10000.0, attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
                    attention_bias=False), "gemma2"),
    # Fused matrices, half of a head rotates, LongRoPE: positions before and (in phi3-long) past the original context.
    "phi3": (dict(TINY, architectures=["Phi3ForCausalLM"], model_type="phi3", hidden_act="silu", head_dim=None,
                  hidden_size=64, intermediate_size=32, num_hidden_layers=2, partial_rotary_factor=0.5, rope_theta=10000.0,
                  sliding_window=40, tie_word_embeddings=False, max_position_embeddings=512,
                  original_max_position_embeddings=256, pad_token_id=0, rope_scaling=dict(
                      type="longrope", short_factor=[1.0, 1.05, 1.2, 1.5], long_factor=[1.1, 2.0, 4.0, 8.0])), "phi3"),
    "phi3-long": (dict(TINY, architectures=["Phi3ForCausalLM"], model_type="phi3", hidden_act="silu", head_dim=None,
                       intermediate_size=32, num_hidden_layers=2, partial_rotary_factor=0.75, rope_theta=10000.0, num_attention_heads=2,
                       num_key_value_heads=1, sliding_window=None, tie_word_embeddings=True, max_position_embeddings=128,
                       original_max_position_embeddings=32, pad_token_id=0, rope_scaling=dict(
                           type="longrope", short_factor=[1.0] * 6, long_factor=[1.0, 1.5, 2.0, 3.0, 4.0, 8.0])), "phi3"),
    "smollm3": (dict(TINY, architectures=["SmolLM3ForCausalLM"], model_type="smollm3", hidden_act="silu", head_dim=None,
                     num_hidden_layers=5, rope_theta=5000000.0, no_rope_layer_interval=4,
                     no_rope_layers=[1, 1, 1, 0, 1], attention_bias=False, mlp_bias=False, use_sliding_window=False,
                     sliding_window=None, layer_types=["full_attention"] * 5, pad_token_id=0), "smollm3"),
    "granite": (dict(TINY, architectures=["GraniteForCausalLM"], model_type="granite", hidden_act="silu", head_dim=None,
                     attention_bias=False, mlp_bias=False, rope_theta=10000000.0, embedding_multiplier=12.0,
                     attention_multiplier=0.25, residual_multiplier=0.22, logits_scaling=8.0, tie_word_embeddings=True,
                     rope_scaling=None), "granite"),
    "olmo2": (dict(TINY, architectures=["Olmo2ForCausalLM"], model_type="olmo2", hidden_act="silu", head_dim=None,
                   attention_bias=False, rope_theta=500000.0, rope_scaling=None, tie_word_embeddings=False,
                   pad_token_id=0), "olmo2"),
    "olmo3": (dict(TINY, architectures=["Olmo3ForCausalLM"], model_type="olmo3", hidden_act="silu", head_dim=None,
                   num_hidden_layers=4, attention_bias=False, rope_theta=500000.0, tie_word_embeddings=False, sliding_window=8,
                   layer_types=["sliding_attention"] * 3 + ["full_attention"], pad_token_id=0,
                   rope_scaling=dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=16,
                                     attention_factor=1.2079441541679836, beta_fast=32.0, beta_slow=1.0)), "olmo2"),
    "starcoder2": (dict(TINY, architectures=["Starcoder2ForCausalLM"], model_type="starcoder2",
                        hidden_act="gelu_pytorch_tanh", head_dim=None, norm_epsilon=1e-5, use_bias=True, sliding_window=16,
                        rope_theta=999999.4420358813, norm_type="layer_norm", mlp_type="default"), "starcoder2"),
    "cohere": (dict(TINY, architectures=["CohereForCausalLM"], model_type="cohere", hidden_act="silu", head_dim=None,
                    layer_norm_eps=1e-5, logit_scale=0.0625, use_qk_norm=False, rope_theta=8000000.0,
                    attention_bias=False, pad_token_id=0), "command-r"),
    "cohere2": (dict(TINY, architectures=["Cohere2ForCausalLM"], model_type="cohere2", hidden_act="silu", head_dim=8,
                     num_hidden_layers=4, layer_norm_eps=1e-5, logit_scale=0.25, rope_theta=50000.0, sliding_window=8,
                     sliding_window_pattern=4, attention_bias=False, rotary_pct=1.0, use_gated_activation=True,
                     use_parallel_block=True, pad_token_id=0), "cohere2"),
    "glm": (dict(TINY, architectures=["GlmForCausalLM"], model_type="glm", hidden_act="silu", num_hidden_layers=2, attention_bias=True,
                 partial_rotary_factor=0.5, rope_theta=10000.0, tie_word_embeddings=False, pad_token_id=0,
                 rms_norm_eps=1.5625e-07), "chatglm"),
    "glm4": (dict(TINY, architectures=["Glm4ForCausalLM"], model_type="glm4", hidden_act="silu", num_hidden_layers=2, attention_bias=False,
                  partial_rotary_factor=0.5, rope_theta=10000.0, tie_word_embeddings=False, pad_token_id=0), "glm4"),
    "ministral": (dict(TINY, architectures=["MinistralForCausalLM"], model_type="ministral", hidden_act="silu",
                       sliding_window=8, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                       rope_theta=100000000.0, tie_word_embeddings=False), None),
    "mistral3": (dict(architectures=["Mistral3ForConditionalGeneration"], model_type="mistral3", text_config=dict(
        TINY, model_type="mistral", hidden_act="silu", sliding_window=None, rope_theta=1000000000.0,
        tie_word_embeddings=False), vision_config=dict(model_type="pixtral")), "mistral3"),
    # As newer libraries write it: rope_parameters, the head beside both parts (LATE).
    "mistral3-late": (dict(architectures=["Mistral3ForConditionalGeneration"], model_type="mistral3", dtype="bfloat16", text_config=dict(
        TINY, model_type="mistral", hidden_act="silu", num_hidden_layers=2, head_dim=8, sliding_window=None,
        rope_parameters=dict(rope_type="default", rope_theta=1000000000.0)), vision_config=dict(model_type="pixtral")), None),
    # Ministral 3: YaRN; attention that scales by position from the original context on, which these tokens do not reach.
    "ministral3": (dict(architectures=["Mistral3ForConditionalGeneration"], model_type="mistral3", dtype="bfloat16", text_config=dict(
        COMMON, model_type="ministral3", hidden_act="silu", hidden_size=32, intermediate_size=48, head_dim=16, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, sliding_window=None, tie_word_embeddings=True, rope_parameters=dict(
            rope_type="yarn", type="yarn", rope_theta=1000000.0, factor=2.0, original_max_position_embeddings=128, beta_fast=4.0,
            beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1)),
        vision_config=dict(model_type="pixtral")), "mistral3"),
    # Mixtures of experts: one layer without (qwen3moe), a shared expert (qwen2moe), weights renormalised or not.
    "qwen3moe": (dict(TINY, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", hidden_act="silu",
                      num_hidden_layers=2, attention_bias=False, decoder_sparse_step=1, mlp_only_layers=[], moe_intermediate_size=24,
                      norm_topk_prob=True, num_experts=8, num_experts_per_tok=3, rope_theta=1000000.0, rope_scaling=None,
                      sliding_window=None, use_sliding_window=False, tie_word_embeddings=False), "qwen3moe"),
    "qwen3moe-mixed": (dict(TINY, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", hidden_act="silu",
                            num_hidden_layers=3, attention_bias=True, decoder_sparse_step=1, mlp_only_layers=[1], moe_intermediate_size=16,
                            norm_topk_prob=False, num_experts=5, num_experts_per_tok=2, rope_theta=1000000.0,
                            tie_word_embeddings=True), None),
    "qwen2moe": (dict(TINY, architectures=["Qwen2MoeForCausalLM"], model_type="qwen2_moe", hidden_act="silu", head_dim=None,
                      num_hidden_layers=2, decoder_sparse_step=1, moe_intermediate_size=16, shared_expert_intermediate_size=40,
                      norm_topk_prob=False, num_experts=6, num_experts_per_tok=4, rope_theta=1000000.0, use_sliding_window=False,
                      tie_word_embeddings=False), "qwen2moe"),
    "mixtral": (dict(TINY, architectures=["MixtralForCausalLM"], model_type="mixtral", hidden_act="silu", head_dim=None,
                     num_hidden_layers=2, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, rope_theta=1000000.0,
                     sliding_window=None, tie_word_embeddings=False), "llama"),
    "olmoe": (dict(TINY, architectures=["OlmoeForCausalLM"], model_type="olmoe", hidden_act="silu", head_dim=None,
                   num_hidden_layers=2, intermediate_size=16, num_experts=8, num_experts_per_tok=3, norm_topk_prob=False, clip_qkv=None,
                   attention_bias=False, rope_theta=10000.0, rope_scaling=None, tie_word_embeddings=False, pad_token_id=0),
              "olmoe"),
    # Sinks, windows in turn, biases everywhere, clamped experts in MXFP4.
    "gpt-oss": (dict(architectures=["GptOssForCausalLM"], model_type="gpt_oss", attention_bias=True, head_dim=16, hidden_act="silu",
                     hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                     num_local_experts=6, num_experts_per_tok=3, experts_per_token=3, vocab_size=96, max_position_embeddings=128,
                     rms_norm_eps=1e-5, sliding_window=8, layer_types=["sliding_attention", "full_attention"], swiglu_limit=7.0,
                     rope_theta=150000, tie_word_embeddings=False, torch_dtype="bfloat16", pad_token_id=0, eos_token_id=1,
                     rope_scaling=dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=16, beta_fast=32.0,
                                       beta_slow=1.0, truncate=False),
                     quantization_config=dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn",
                                              "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"])), "gpt-oss"),
    # Experts that somebody widened to bf16.
    "gpt-oss-bf16": (dict(architectures=["GptOssForCausalLM"], model_type="gpt_oss", attention_bias=True, head_dim=16, hidden_act="silu",
                          hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                          num_local_experts=4, num_experts_per_tok=2, vocab_size=96, max_position_embeddings=128, rms_norm_eps=1e-5,
                          sliding_window=8, swiglu_limit=7.0, tie_word_embeddings=False, dtype="bfloat16", pad_token_id=0,
                          rope_parameters=dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=16, beta_fast=32.0,
                                               beta_slow=1.0, truncate=False, rope_theta=150000)), None),
    # Latent attention. V2-Lite: queries by one product, plain choice; V2: by rank, groups with the best expert; V3: groups with
    # the two best together, sigmoid and bias. Plain layers first, shared experts, YaRN's scales.
    "deepseek2-lite": (dict(TINY | DEEPSEEK, architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", q_lora_rank=None,
                            n_group=1, topk_group=1, topk_method="greedy", norm_topk_prob=False, routed_scaling_factor=1.0,
                            scoring_func="softmax", n_routed_experts=6, n_shared_experts=2, first_k_dense_replace=1,
                            rope_scaling=dict(type="yarn", factor=40, original_max_position_embeddings=16, beta_fast=32, beta_slow=1,
                                              mscale=0.707, mscale_all_dim=0.707)), "deepseek2"),
    "deepseek2": (dict(TINY | DEEPSEEK, architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", q_lora_rank=24,
                       n_group=4, topk_group=2, topk_method="group_limited_greedy", norm_topk_prob=False, routed_scaling_factor=4.0,
                       scoring_func="softmax", n_routed_experts=8, n_shared_experts=1, first_k_dense_replace=0, moe_intermediate_size=16,
                       rope_scaling=None), "deepseek2"),
    "deepseek3": (dict(TINY | DEEPSEEK, architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", q_lora_rank=32,
                       n_group=4, topk_group=2, topk_method="noaux_tc", norm_topk_prob=True, routed_scaling_factor=2.5,
                       scoring_func="sigmoid", n_routed_experts=8, n_shared_experts=1, first_k_dense_replace=1,
                       num_nextn_predict_layers=1,
                       rope_scaling=dict(type="yarn", factor=40, original_max_position_embeddings=16, beta_fast=32, beta_slow=1,
                                         mscale=1.0, mscale_all_dim=1.0)), "deepseek2"),
    # State-space layers alone: published files say more than transformers reads.
    "mamba": (dict(architectures=["MambaForCausalLM"], model_type="mamba", vocab_size=96, hidden_size=32, intermediate_size=64,
                   d_inner=64, d_model=32, num_hidden_layers=3, n_layer=3, state_size=16, conv_kernel=4, expand=2,
                   time_step_rank=6, layer_norm_epsilon=1e-5, use_bias=False, use_conv_bias=True, hidden_act="silu",
                   residual_in_fp32=True, rms_norm=True, tie_word_embeddings=True, torch_dtype="bfloat16"), "mamba"),
    "mamba2": (dict(architectures=["Mamba2ForCausalLM"], model_type="mamba2", vocab_size=96, hidden_size=32, num_hidden_layers=3,
                    state_size=16, conv_kernel=4, expand=2, num_heads=8, head_dim=8, n_groups=2, layer_norm_epsilon=1e-5,
                    use_bias=False, use_conv_bias=True, hidden_act="silu", chunk_size=16, time_step_limit=[0.0, math.inf],
                    time_step_rank=2, norm_before_gate=True, rms_norm=True, tie_word_embeddings=False,
                    torch_dtype="bfloat16"), "mamba2"),
    "mamba2-limit": (dict(architectures=["Mamba2ForCausalLM"], model_type="mamba2", vocab_size=96, hidden_size=24,
                          num_hidden_layers=2, state_size=20, conv_kernel=3, expand=2, num_heads=4, head_dim=12, n_groups=1,
                          layer_norm_epsilon=1e-5, use_bias=False, use_conv_bias=True, hidden_act="silu", chunk_size=8,
                          time_step_limit=[0.05, 0.25], tie_word_embeddings=True, torch_dtype="bfloat16"), None),
    # Hybrids: Mamba-2 layers and attention in turn (an MLP; experts beside a shared one; with rotation), or side by side.
    "granite-hybrid": (dict(TINY, architectures=["GraniteMoeHybridForCausalLM"], model_type="granitemoehybrid", hidden_act="silu",
                            head_dim=None, num_hidden_layers=4, layer_types=["mamba", "attention", "mamba", "mamba"],
                            attention_bias=False, embedding_multiplier=12.0, attention_multiplier=0.25, residual_multiplier=0.22,
                            logits_scaling=8.0, num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=48,
                            position_embedding_type="nope", mamba_n_heads=8, mamba_d_head=8, mamba_d_state=16, mamba_n_groups=1,
                            mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=16, mamba_conv_bias=True, mamba_proj_bias=False,
                            rope_theta=10000.0, rope_scaling=None, tie_word_embeddings=True), "granitehybrid"),
    # Granite 4's dense ones: no layer has a state.
    "granite-hybrid-dense": (dict(TINY, architectures=["GraniteMoeHybridForCausalLM"], model_type="granitemoehybrid", hidden_act="silu",
                                  head_dim=None, num_hidden_layers=2, layer_types=["attention"] * 2, attention_bias=False,
                                  embedding_multiplier=12.0, attention_multiplier=0.25, residual_multiplier=0.22, logits_scaling=4.0,
                                  num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=48,
                                  position_embedding_type="rope", mamba_n_heads=8, mamba_d_head=8, mamba_d_state=256, mamba_n_groups=1,
                                  mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=256, mamba_conv_bias=True, mamba_proj_bias=False,
                                  rope_theta=10000000.0, rope_scaling=None, tie_word_embeddings=True), None),
    "granite-hybrid-moe": (dict(TINY, architectures=["GraniteMoeHybridForCausalLM"], model_type="granitemoehybrid", hidden_act="silu",
                                head_dim=None, num_hidden_layers=3, layer_types=["mamba", "mamba", "attention"],
                                attention_bias=False, embedding_multiplier=6.0, attention_multiplier=0.125, residual_multiplier=0.5,
                                logits_scaling=2.0, num_local_experts=6, num_experts_per_tok=3, intermediate_size=16,
                                shared_intermediate_size=24, position_embedding_type="rope", mamba_n_heads=4, mamba_d_head=16,
                                mamba_d_state=20, mamba_n_groups=2, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=8,
                                mamba_conv_bias=True, mamba_proj_bias=False, rope_theta=10000.0, tie_word_embeddings=False),
                           "granitehybrid"),
    "falcon-h1": (dict(TINY, architectures=["FalconH1ForCausalLM"], model_type="falcon_h1", hidden_act="silu", num_hidden_layers=2,
                       attention_bias=False, mlp_bias=False, projectors_bias=False, mamba_d_ssm=48, mamba_n_heads=6, mamba_d_head=8,
                       mamba_d_state=16, mamba_n_groups=1, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=16, mamba_conv_bias=True,
                       mamba_proj_bias=False, mamba_norm_before_gate=False, mamba_rms_norm=False, rope_theta=100000000000.0,
                       embedding_multiplier=5.656854, lm_head_multiplier=0.5, key_multiplier=0.75, attention_in_multiplier=0.9,
                       attention_out_multiplier=0.7, ssm_in_multiplier=1.25, ssm_out_multiplier=0.6, mlp_multipliers=[0.88, 0.4],
                       ssm_multipliers=[0.7, 0.5, 0.35, 0.5, 0.4], tie_word_embeddings=False, rope_scaling=None), "falcon-h1"),
    "falcon-h1-norm": (dict(TINY, architectures=["FalconH1ForCausalLM"], model_type="falcon_h1", hidden_act="silu",
                            num_hidden_layers=2, attention_bias=False, mlp_bias=False, mamba_d_ssm=64, mamba_n_heads=8,
                            mamba_d_head="auto", mamba_d_state=12, mamba_n_groups=2, mamba_d_conv=4, mamba_expand=2,
                            mamba_chunk_size=16, mamba_conv_bias=True, mamba_proj_bias=False, mamba_norm_before_gate=True,
                            mamba_rms_norm=True, rope_theta=10000.0, tie_word_embeddings=True), None),
    # Tied: what multiplies embeddings stands in an MLX directory's output matrix too.
    "falcon-h1-tied": (dict(TINY, architectures=["FalconH1ForCausalLM"], model_type="falcon_h1", hidden_act="silu", num_hidden_layers=2,
                            attention_bias=False, mlp_bias=False, projectors_bias=False, mamba_d_ssm=64, mamba_n_heads=8, mamba_d_head=8,
                            mamba_d_state=16, mamba_n_groups=1, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=16, mamba_conv_bias=True,
                            mamba_proj_bias=False, mamba_norm_before_gate=False, mamba_rms_norm=True, rope_theta=10000.0,
                            embedding_multiplier=5.65, lm_head_multiplier=0.25, key_multiplier=0.5, attention_in_multiplier=1.5,
                            attention_out_multiplier=0.9, ssm_in_multiplier=1.25, ssm_out_multiplier=0.25, mlp_multipliers=[0.75, 0.5],
                            ssm_multipliers=[0.35, 0.25, 0.2, 0.5, 0.4], tie_word_embeddings=True, rope_scaling=None), None),
    "jamba": (dict(TINY, architectures=["JambaForCausalLM"], model_type="jamba", hidden_act="silu", head_dim=None,
                   num_hidden_layers=4, attn_layer_period=3, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1,
                   num_experts=4, num_experts_per_tok=2, intermediate_size=24, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2,
                   mamba_dt_rank=5, mamba_conv_bias=True, mamba_proj_bias=False, tie_word_embeddings=False), "jamba"),
    "nemotron-h": (dict(architectures=["NemotronHForCausalLM"], model_type="nemotron_h", vocab_size=96, hidden_size=32,
                        intermediate_size=40, num_hidden_layers=5, hybrid_override_pattern="M-*M-", num_attention_heads=4,
                        num_key_value_heads=2, head_dim=8, max_position_embeddings=128, layer_norm_epsilon=1e-5, mlp_hidden_act="relu2",
                        mamba_hidden_act="silu", ssm_state_size=16, mamba_num_heads=6, mamba_head_dim=8, n_groups=2, conv_kernel=4,
                        expand=2, use_conv_bias=True, use_bias=False, mamba_proj_bias=False, attention_bias=False, mlp_bias=False,
                        chunk_size=16, time_step_min=0.001, tie_word_embeddings=False, torch_dtype="bfloat16"), "nemotron_h"),
    # Experts without gates: sigmoid scores, a bias for the choice, an expert that always counts; in groups.
    "nemotron-h-moe": (dict(architectures=["NemotronHForCausalLM"], model_type="nemotron_h", vocab_size=96, hidden_size=32,
                            intermediate_size=24, num_hidden_layers=5, hybrid_override_pattern="ME*EM", num_attention_heads=4,
                            num_key_value_heads=2, head_dim=8, max_position_embeddings=128, layer_norm_epsilon=1e-5, mlp_hidden_act="relu2",
                            mamba_hidden_act="silu", ssm_state_size=16, mamba_num_heads=6, mamba_head_dim=8, n_groups=2, conv_kernel=4,
                            expand=2, use_conv_bias=True, use_bias=False, mamba_proj_bias=False, attention_bias=False, mlp_bias=False,
                            chunk_size=16, time_step_min=0.001, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32,
                            moe_shared_expert_intermediate_size=40, n_shared_experts=1, norm_topk_prob=True, routed_scaling_factor=2.5,
                            n_group=1, topk_group=1, moe_latent_size=None, tie_word_embeddings=False, torch_dtype="bfloat16"),
                       "nemotron_h_moe"),
    "nemotron-h-groups": (dict(architectures=["NemotronHForCausalLM"], model_type="nemotron_h", vocab_size=96, hidden_size=32,
                               intermediate_size=24, num_hidden_layers=4, layers_block_type=["mamba", "moe", "mlp", "attention"],
                               num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=128,
                               layer_norm_epsilon=1e-5, mlp_hidden_act="relu2", mamba_hidden_act="silu", ssm_state_size=16,
                               mamba_num_heads=4, mamba_head_dim=8, n_groups=1, conv_kernel=4, expand=2, use_conv_bias=True,
                               use_bias=False, mamba_proj_bias=False, attention_bias=False, mlp_bias=False, chunk_size=16,
                               n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=16,
                               moe_shared_expert_intermediate_size=24, n_shared_experts=1, norm_topk_prob=False,
                               routed_scaling_factor=1.5, n_group=4, topk_group=2, tie_word_embeddings=False, torch_dtype="bfloat16"),
                          None),
    "falcon-mamba": (dict(architectures=["FalconMambaForCausalLM"], model_type="falcon_mamba", vocab_size=96, hidden_size=48,
                          num_hidden_layers=2, state_size=12, conv_kernel=3, expand=2, intermediate_size=96,
                          time_step_rank="auto", layer_norm_epsilon=1e-5, mixer_rms_eps=1e-5, use_bias=False,
                          use_conv_bias=True, hidden_act="silu", tie_word_embeddings=False, torch_dtype="bfloat16"), "mamba"),
}
# name -> (source case, default bits, group, scale dtype, per-layer overrides)
MLX_CASES = {
    "llama3-mlx4": ("llama3", 4, 32, torch.float16, {}),
    "qwen2-mlx8": ("qwen2", 8, 64, torch.bfloat16, {}),
    "qwen3-mlx3": ("qwen3", 3, 64, torch.bfloat16, {"model.layers.1.mlp.down_proj": dict(bits=6, group_size=32)}),
    "qwen3-mlx5": ("qwen3", 5, 32, torch.float16, {}),
    "qwen3moe-mlx4": ("qwen3moe", 4, 32, torch.bfloat16, {"model.layers.1.mlp.gate": dict(bits=8, group_size=32)}),
    "qwen2moe-mlx8": ("qwen2moe", 8, 32, torch.float16, {}),
    "deepseek2-lite-mlx4": ("deepseek2-lite", 4, 32, torch.bfloat16, {}),
    "deepseek3-mlx8": ("deepseek3", 8, 32, torch.bfloat16, {}),
    "mixtral-mlx6": ("mixtral", 6, 32, torch.bfloat16, {}),
    "olmoe-mlx4": ("olmoe", 4, 32, torch.float16, {}),
    "mistral-mlx4": ("mistral", 4, 32, torch.bfloat16, {}),
    "gemma2-mlx4": ("gemma2", 4, 32, torch.bfloat16, {}),
    "phi3-mlx5": ("phi3", 5, 32, torch.float16, {}),
    "smollm3-mlx4": ("smollm3", 4, 32, torch.bfloat16, {}),
    "granite-mlx8": ("granite", 8, 32, torch.bfloat16, {}),
    "olmo2-mlx4": ("olmo2", 4, 32, torch.bfloat16, {}),
    "olmo3-mlx6": ("olmo3", 6, 32, torch.bfloat16, {}),
    "starcoder2-mlx4": ("starcoder2", 4, 32, torch.bfloat16, {}),
    "cohere-mlx8": ("cohere", 8, 32, torch.float16, {}),
    "cohere2-mlx4": ("cohere2", 4, 32, torch.bfloat16, {}),
    "glm-mlx4": ("glm", 4, 32, torch.bfloat16, {}),
    "mamba-mlx4": ("mamba", 4, 32, torch.bfloat16, {}),
    "falcon-mamba-mlx4": ("falcon-mamba", 4, 32, torch.bfloat16, {}),
    "mamba2-mlx4": ("mamba2", 4, 32, torch.float16, {}),
    "granite-hybrid-mlx4": ("granite-hybrid", 4, 32, torch.bfloat16, {}),
    "granite-hybrid-moe-mlx4": ("granite-hybrid-moe", 4, 32, torch.bfloat16, {}),
    "jamba-mlx4": ("jamba", 4, 32, torch.bfloat16, {}),
    "nemotron-h-mlx4": ("nemotron-h", 4, 32, torch.bfloat16, {}),
    "nemotron-h-moe-mlx4": ("nemotron-h-moe", 4, 32, torch.bfloat16, {}),
    "gpt-oss-mlx8": ("gpt-oss", 8, 32, torch.bfloat16, {}),
    # As published: experts in MXFP4, the rest affine by entries of their own.
    "gpt-oss-mlx-mxfp4": ("gpt-oss", 4, "mxfp4", torch.bfloat16, {
        f"model.{part}": dict(group_size=32, bits=8) for part in ["embed_tokens"] + [
            f"layers.{i}.{stem}" for i in range(2) for stem in ["mlp.router"] + [f"self_attn.{k}_proj" for k in "qkvo"]]}),
    "smollm3-mlx-mxfp4": ("smollm3", 4, "mxfp4", torch.bfloat16, {}),
    "phi3-mlx-mxfp4": ("phi3", 4, "mxfp4", torch.bfloat16, {}),
    "qwen3moe-mlx-mxfp4": ("qwen3moe", 4, "mxfp4", torch.bfloat16, {"model.layers.0.mlp.gate": dict(bits=8, group_size=32)}),
    "gemma3-nested-mlx4": ("gemma3-nested", 4, 32, torch.bfloat16, {"language_model.model.layers.1.mlp.down_proj": dict(bits=8, group_size=64)}),
    "ministral3-mlx4": ("ministral3", 4, 32, torch.bfloat16, {}),
    "granite-hybrid-dense-mlx8": ("granite-hybrid-dense", 8, 32, torch.bfloat16, {}),
    "mistral3-mlx4": ("mistral3-late", 4, 32, torch.bfloat16, {}),
    "ministral-mlx8": ("ministral", 8, 32, torch.bfloat16, {}),
    "falcon-h1-mlx4": ("falcon-h1", 4, 32, torch.bfloat16, {}),
    "falcon-h1-tied-mlx8": ("falcon-h1-tied", 8, 32, torch.bfloat16, {}),
    "glm4-mlx3": ("glm4", 3, 32, torch.float16, {}),
    "gemma3-mlx6": ("gemma3", 6, 32, torch.bfloat16, {"model.layers.0.self_attn.q_proj": dict(bits=2, group_size=64)}),
}
SEEDS = {"ministral3-mlx4": 3, "ministral-mlx8": 2, "mistral3-late": 1, "glm": 6, "cohere2": 5, "olmoe": 2}  # where the usual one gives a model that magnifies what 16-bit caches round
# name -> (source case, GGUF types taken in turn by the matrices)
QUANT_CASES = {"deepseek2-lite-q": ("deepseek2-lite", ["Q8_0", "Q5_0", "Q4_1"]), "deepseek3-q": ("deepseek3", ["Q8_0", "Q5_1"]),
               "mixtral-q": ("mixtral", ["Q8_0", "Q4_0", "Q5_1"]), "llama2-q": ("llama2", ["Q8_0", "Q4_0", "Q5_0", "Q4_1", "Q5_1"])}


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
        if name.endswith("e_score_correction_bias"):
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


def build(config):
    hf = AutoConfig.for_model(**{k: v for k, v in text_config(config).items() if k not in ("torch_dtype", "architectures", "quantization_config") and (v is not None or k != "head_dim")})
    hf._attn_implementation = "eager"
    return AutoModelForCausalLM.from_config(hf, dtype=torch.float32).eval()


def load_weights(model, weights):
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and all("lm_head" in m for m in missing), (missing, unexpected)
    model.tie_weights()


def expected(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()


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
    mixtral = config["model_type"] == "mixtral"
    if config["model_type"] == "gpt_oss":
        return weights
    if config["model_type"] == "granitemoehybrid":
        moe = {"experts.gate_up_proj": "input_linear.weight", "experts.down_proj": "output_linear.weight",
               "router.weight": "router.layer.weight"}
        return {re.sub(r"(?<=block_sparse_moe\.)(.*)", lambda m: moe[m.group(1)], k): v for k, v in weights.items()}
    if config["model_type"] == "nemotron_h":
        weights = {k.replace("model.", "backbone.", 1): v for k, v in weights.items()}
    kinds = {"gate": "w1", "up": "w3", "down": "w2"} if mixtral else {k: k + "_proj" for k in ("gate", "up", "down")}
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


LATE = {"mistral3-late"}  # whose checkpoints have names of the newer multimodal classes


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


# --- GGUF ---

GGUF_NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
              "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
              "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
              "input_layernorm": "attn_norm", "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up",
              "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
              "mlp.router": "ffn_gate_inp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
              "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp"}
SANDWICH = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm"}
GPT_OSS = {"post_attention_layernorm": "post_attention_norm"}
AFTER = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
GGUF_NORMS = {"gemma2": SANDWICH, "gemma3": SANDWICH, "olmo2": AFTER, "gpt-oss": GPT_OSS,
              "glm4": {"post_attention_layernorm": "ffn_norm", "post_self_attn_layernorm": "post_attention_norm",
                       "post_mlp_layernorm": "post_ffw_norm"}}
FLOAT_KEYS = {"granite": {"embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier",
                          "attention.scale": "attention_multiplier", "logit_scale": "logits_scaling"},
              "command-r": {"logit_scale": "logit_scale"}, "cohere2": {"logit_scale": "logit_scale"},
              "gemma2": {"attn_logit_softcapping": "attn_logit_softcapping",
                         "final_logit_softcapping": "final_logit_softcapping"}}
PERMUTED = {"llama", "smollm3", "granite", "mistral3"}  # architectures whose query and key rows the converter reorders


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


def write_gguf(name, config, weights, arch, types=None, mxfp4=None):
    import gguf
    c = text_config(config)
    if arch in ("granitehybrid", "falcon-h1", "jamba", "nemotron_h", "nemotron_h_moe"):
        return write_gguf_hybrid(name, c, weights, arch)
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
    if arch in ("starcoder2", "command-r", "cohere2"):
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
    if c.get("sliding_window"):
        w.add_sliding_window(c["sliding_window"])
    if arch == "olmo2" and "layer_types" in c:
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
            packed = gguf.quantize(all_of.numpy().copy(), q)
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
                packed = gguf.quantize(of_part, q)
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
        if arch in ("gemma2", "gemma3") and "norm" in hf_name:
            a = a + 1
        if a.ndim == 1:
            w.add_tensor(gguf_name(hf_name, arch), a.astype(np.float32))
            continue
        if types is None:
            w.add_tensor(gguf_name(hf_name, arch), a.astype(np.float16))
            continue
        q = gguf.GGMLQuantizationType[types[matrices % len(types)]]
        matrices += 1
        packed = gguf.quantize(a, q)
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


# --- MLX ---

MLX_STACKS = {"nemotron_h": {"up": "fc1", "down": "fc2"}}


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
        if config["model_type"] == "granitemoehybrid":
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
            used[transformers_name(config, hf_name)] = torch.from_numpy(np.array(out[hf_name].astype(mx.float32)))
            continue
        stacked = ".switch_mlp." in hf_name or ".mlp.experts." in hf_name or config["model_type"] == "granitemoehybrid" and re.search(r"\.mlp\.(gate|up)", hf_name)
        o = overrides.get(hf_name.removesuffix(".weight"), {})
        if hf_name.endswith({"nemotron_h": "mixer.gate.weight"}.get(config["model_type"], "mlp.gate.weight")) and (
                config["model_type"].startswith(("deepseek", "nemotron_h"))):  # no product in mlx-lm
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
    write_hf(name, config, weights, mxfp4)
    if arch:
        write_gguf(name, config, weights, arch, mxfp4=mxfp4)
    logits = expected(model, tokens)
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
