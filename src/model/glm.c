/* GLM-4-9B (GLM Team 2024): the Llama layer with biases on queries, keys and values; half of each head rotates, in pairs of
 * neighbours; gate and up are one matrix. GLM-4-0414 adds a norm after each half. GLM-4.5 (GLM Team 2025): one layer or a
 * few with an MLP, then mixtures of experts as DeepSeek-V3 has them; halves of what rotates are pairs, and there may be
 * norms on queries and keys. Its last layers, which predict further tokens, are left out. */
#include "model/arch.h"

static const struct pl_binding glm_bindings[] = {
    PL_BIND_EMBED,
    PL_BIND_OUT_NORM,
    PL_BIND_HEAD,
    PL_BIND_ATTN_NORM,
    PL_BIND_QKV,
    PL_BIND_O,
    PL_BIND_MLP_NORM("post_attention_layernorm.weight"),
    PL_BIND_FUSED_MLP,
};
static const struct pl_binding glm4_bindings[] = {
    PL_BIND_EMBED,
    PL_BIND_OUT_NORM,
    PL_BIND_HEAD,
    PL_BIND_ATTN_NORM,
    PL_BIND_QKV,
    PL_BIND_O,
    PL_BIND_POST_ATTN_NORM("post_self_attn_layernorm.weight"),
    PL_BIND_MLP_NORM("post_attention_layernorm.weight"),
    PL_BIND_FUSED_MLP,
    PL_BIND_POST_MLP_NORM("post_mlp_layernorm.weight"),
};

static const struct pl_binding glm4_moe_bindings[] = {
    PL_BIND_EMBED,
    PL_BIND_OUT_NORM,
    PL_BIND_HEAD,
    PL_BIND_ATTN_NORM,
    PL_BIND_QKV,
    PL_LAYER_VECTOR(q_norm, "attn_q_norm.weight", "self_attn.q_norm.weight", D, QK_NORM),
    PL_LAYER_VECTOR(k_norm, "attn_k_norm.weight", "self_attn.k_norm.weight", D, QK_NORM),
    PL_BIND_O,
    PL_BIND_MLP_NORM_AS_POST,
    PL_BIND_DENSE_MLP,
    PL_BIND_EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    PL_BIND_SHARED_EXPERTS,
};

const struct pl_arch_def pl_glm_def = {
    .gguf_pairs = true,
    .hf_pairs = true,
    .rotary_part = 0.5,
    .biases = {{"attention_bias", true, PL_BIAS_QKV}},
    .bindings = glm_bindings,
    .binding_count = PL_COUNT_OF(glm_bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish,
};

const struct pl_arch_def pl_glm4_def = {
    .gguf_pairs = true,
    .hf_pairs = true,
    .rotary_part = 0.5,
    .biases = {{"attention_bias", true, PL_BIAS_QKV}},
    .bindings = glm4_bindings,
    .binding_count = PL_COUNT_OF(glm4_bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish_sandwich,
};

const struct pl_arch_def pl_glm4_moe_def = {
    .rotary_part = 0.5,
    .qk_norm_optional = true,
    .moe = true,
    .deepseek_moe = true,
    .biases = {{"attention_bias", false, PL_BIAS_QKV}},
    .bindings = glm4_moe_bindings,
    .binding_count = PL_COUNT_OF(glm4_moe_bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish_moe,
};
