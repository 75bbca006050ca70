/* Llama (Touvron et al. 2023; "The Llama 3 Herd of Models" 2024) and Mistral (Jiang et al. 2023), which adds a sliding
 * window to all layers, Ministral to some; ERNIE 4.5, dense (Baidu 2025), which rotates neighbours, and Seed-OSS (ByteDance
 * 2025), which differ in where biases are. Pre-norm, grouped-query attention, rotary positions, SwiGLU. */
#include "model/arch.h"

static const struct pl_binding bindings[] = {
    PL_BIND_EMBED,
    PL_BIND_OUT_NORM,
    PL_BIND_HEAD,
    PL_BIND_ATTN_NORM,
    PL_BIND_QKV,
    PL_BIND_O,
    PL_BIND_MLP_NORM("post_attention_layernorm.weight"),
    PL_BIND_MLP,
    PL_BIND_MLP_BIAS,
};

static const struct pl_binding seed_bindings[] = {
    PL_BIND_EMBED, PL_BIND_OUT_NORM,         PL_BIND_HEAD, PL_BIND_ATTN_NORM, PL_BIND_QKV,
    PL_BIND_O,     PL_BIND_MLP_NORM_AS_POST, PL_BIND_MLP,  PL_BIND_MLP_BIAS,
};

static enum pl_status check(struct pl_model_config *c, struct pl_err *err) {
    if (c->qk_norm)
        PL_FAIL(err, PL_UNSUPPORTED, "a %s model with norms on queries and keys is not implemented", pl_arch_name(c->arch));
    if (c->attn_softcap > 0 || c->logit_softcap > 0)
        PL_FAIL(err, PL_UNSUPPORTED, "a %s model with soft-caps is not implemented", pl_arch_name(c->arch));
    return PL_OK;
}

const struct pl_arch_def pl_llama_def = {
    .gguf_pairs = true,
    .biases = {{"attention_bias", false, PL_BIAS_QKV | PL_BIAS_O}, {"mlp_bias", false, PL_BIAS_MLP}},
    .check = check,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish,
};

const struct pl_arch_def pl_mistral_def = {
    .gguf_pairs = true,
    .windows = true,
    .layer_types_ignored = true,
    .window_default = 4096,
    .check = check,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish,
};

const struct pl_arch_def pl_ministral_def = {
    .gguf_pairs = true,
    .windows = true,
    .window_default = 4096,
    .check = check,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish,
};

/* Windows where the file names one; attention that scales by position past a limit. */
const struct pl_arch_def pl_ministral3_def = {
    .gguf_pairs = true,
    .windows = true,
    .layer_types_ignored = true,
    .check = check,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish,
};

const struct pl_arch_def pl_ernie4_5_def = {
    .gguf_pairs = true,
    .hf_pairs = true,
    .biases = {{"use_bias", false, PL_BIAS_QKV | PL_BIAS_O | PL_BIAS_MLP}},
    .check = check,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish,
};

const struct pl_arch_def pl_seed_oss_def = {
    .biases = {{"attention_bias", true, PL_BIAS_QKV},
               {"attention_out_bias", false, PL_BIAS_O},
               {"mlp_bias", false, PL_BIAS_MLP}},
    .check = check,
    .bindings = seed_bindings,
    .binding_count = PL_COUNT_OF(seed_bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish,
};
