/* Gemma (Gemma Team 2024): the Llama layer with norm weights stored as w - 1, tied embeddings scaled by sqrt(E), GELU. Gemma
 * 2 (Gemma Team 2024) and Gemma 3, text (Gemma Team 2025): norms before and after both halves of a layer with weights stored
 * as w - 1, tied embeddings scaled by sqrt(E), GELU, layers with a window between global ones. Gemma 2 soft-caps attention
 * scores and logits; every second layer is global. Gemma 3 has norms on queries and keys instead, and five windowed layers
 * with their own rotary base to one global layer. */
#include "model/arch.h"

static const struct pl_binding gemma_bindings[] = {
    PL_BIND_EMBED,
    PL_BIND_HEAD,
    PL_BIND_OUT_NORM,
    PL_BIND_ATTN_NORM,
    PL_BIND_QKV,
    PL_BIND_O,
    PL_BIND_MLP_NORM("post_attention_layernorm.weight"),
    PL_BIND_MLP,
};
static const struct pl_binding gemma2_bindings[] = {
    PL_BIND_EMBED,
    PL_BIND_HEAD,
    PL_BIND_OUT_NORM,
    PL_BIND_ATTN_NORM,
    PL_BIND_QKV,
    PL_BIND_O,
    PL_BIND_POST_ATTN_NORM("post_attention_layernorm.weight"),
    PL_BIND_MLP_NORM("pre_feedforward_layernorm.weight"),
    PL_BIND_MLP,
    PL_BIND_POST_MLP_NORM("post_feedforward_layernorm.weight"),
};
static const struct pl_binding gemma3_bindings[] = {
    PL_BIND_EMBED,
    PL_BIND_HEAD,
    PL_BIND_OUT_NORM,
    PL_BIND_ATTN_NORM,
    PL_BIND_QKV,
    PL_BIND_QK_HEAD_NORM,
    PL_BIND_O,
    PL_BIND_POST_ATTN_NORM("post_attention_layernorm.weight"),
    PL_BIND_MLP_NORM("pre_feedforward_layernorm.weight"),
    PL_BIND_MLP,
    PL_BIND_POST_MLP_NORM("post_feedforward_layernorm.weight"),
};

static enum pl_status check(struct pl_model_config *c, struct pl_err *err) {
    if (c->mlp_bias)
        PL_FAIL(err, PL_UNSUPPORTED, "a %s model with biases in its MLP is not implemented", pl_arch_name(c->arch));
    return PL_OK;
}

static const struct pl_arch_field gemma2_fields[] = {
    PL_FIELD(attn_softcap, "attn_logit_softcapping", "attn_logit_softcapping", 50),
    PL_FIELD(logit_softcap, "final_logit_softcapping", "final_logit_softcapping", 30),
};
static const struct pl_arch_field gemma3_fields[] = {
    PL_FIELD(logit_softcap, "final_logit_softcapping", "final_logit_softcapping", 0),
};

/* Its published configurations say hidden_act gelu and were trained with the tanh form: hidden_activation counts. */
const struct pl_arch_def pl_gemma_def = {
    .embed_by_width = true,
    .hf_norm_offset = 1,
    .act = PL_OPS_GELU_TANH,
    .hf_act = "hidden_activation",
    .biases = {{"attention_bias", false, PL_BIAS_QKV | PL_BIAS_O}},
    .check = check,
    .bindings = gemma_bindings,
    .binding_count = PL_COUNT_OF(gemma_bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish,
};

const struct pl_arch_def pl_gemma2_def = {
    .embed_by_width = true,
    .hf_norm_offset = 1,
    .act = PL_OPS_GELU_TANH,
    .hf_act = "hidden_activation",
    .query_scalar = true,
    .nominal_scale_layers = 46, /* 27B */
    .windows = true,
    .window_default = 4096,
    .window_pattern = 2,
    .biases = {{"attention_bias", false, PL_BIAS_QKV | PL_BIAS_O}},
    .fields = gemma2_fields,
    .field_count = PL_COUNT_OF(gemma2_fields),
    .check = check,
    .bindings = gemma2_bindings,
    .binding_count = PL_COUNT_OF(gemma2_bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish_sandwich,
};

const struct pl_arch_def pl_gemma3_def = {
    .embed_by_width = true,
    .hf_norm_offset = 1,
    .act = PL_OPS_GELU_TANH,
    .qk_norm = true,
    .hf_act = "hidden_activation",
    .query_scalar = true,
    .nominal_scale_layers = 62, /* 27B */
    .windows = true,
    .window_default = 4096,
    .window_pattern = 6,
    .windowed_unscaled = true,
    .rope_base_gguf = 1e6f,
    .rope_base_local = 1e4f,
    .biases = {{"attention_bias", false, PL_BIAS_QKV | PL_BIAS_O}},
    .fields = gemma3_fields,
    .field_count = PL_COUNT_OF(gemma3_fields),
    .check = check,
    .bindings = gemma3_bindings,
    .binding_count = PL_COUNT_OF(gemma3_bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish_sandwich,
};
