/* Qwen1.5-MoE and Qwen2-MoE (Qwen Team 2024): the Qwen2 layer with a mixture of small experts and one shared expert with a
 * gate of its own. Qwen3-MoE (Yang et al. 2025): the Qwen3 layer, no shared expert. Some layers may keep a plain MLP. */
#include "model/arch.h"

static const struct pl_binding qwen2_bindings[] = {
    PL_BIND_EMBED,
    PL_BIND_OUT_NORM,
    PL_BIND_HEAD,
    PL_BIND_ATTN_NORM,
    PL_BIND_QKV,
    PL_BIND_O,
    PL_BIND_MLP_NORM("post_attention_layernorm.weight"),
    PL_BIND_DENSE_MLP,
    PL_BIND_EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    PL_BIND_SHARED_EXPERT,
};
static const struct pl_binding qwen3_bindings[] = {
    PL_BIND_EMBED,     PL_BIND_OUT_NORM,
    PL_BIND_HEAD,      PL_BIND_ATTN_NORM,
    PL_BIND_QKV,       PL_BIND_QK_HEAD_NORM,
    PL_BIND_O,         PL_BIND_MLP_NORM("post_attention_layernorm.weight"),
    PL_BIND_DENSE_MLP, PL_BIND_EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
};

const struct pl_arch_def pl_qwen2_moe_def = {
    .windows = true,
    .window_opt_in = true,
    .window_default = 4096,
    .moe = true,
    .shared_expert = true,
    .biases = {{"qkv_bias", true, PL_BIAS_QKV}},
    .bindings = qwen2_bindings,
    .binding_count = PL_COUNT_OF(qwen2_bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish_moe,
};

const struct pl_arch_def pl_qwen3_moe_def = {
    .qk_norm = true,
    .windows = true,
    .window_opt_in = true,
    .window_default = 4096,
    .moe = true,
    .renormalise = true, /* GGUF does not say; config.json does, its library's default is not to */
    .biases = {{"attention_bias", false, PL_BIAS_QKV | PL_BIAS_O}},
    .bindings = qwen3_bindings,
    .binding_count = PL_COUNT_OF(qwen3_bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish_moe,
};
