/* OLMo 2 (OLMo Team 2025): norms stand after both halves of a layer instead of before them, and queries and keys are
 * normalised over all their heads at once. OLMo 3 adds windowed layers, four to one global layer, which rotary scaling
 * leaves alone. */
#include "model/arch.h"

static const struct pl_binding bindings[] = {
    PL_BIND_EMBED,
    PL_BIND_OUT_NORM,
    PL_BIND_HEAD,
    PL_BIND_QKV,
    PL_BIND_QK_WIDE_NORM,
    PL_BIND_O,
    PL_BIND_POST_ATTN_NORM("post_attention_layernorm.weight"),
    PL_BIND_MLP,
    PL_BIND_POST_MLP_NORM("post_feedforward_layernorm.weight"),
};

static enum pl_status attend(struct pl_model *m, uint32_t l, const struct pl_layer *w, struct pl_activation *x) {
    PL_TRY(pl_layer_qkv(m, w, x));
    PL_TRY(pl_layer_norm(m, m->q, w->q_norm_wide, NULL, m->q));
    PL_TRY(pl_layer_norm(m, m->k, w->k_norm_wide, NULL, m->k));
    return pl_layer_attention(m, l, w);
}

const struct pl_arch_def pl_olmo2_def = {
    .qk_norm = true,
    .windowed_unscaled = true, /* GGUF calls both by this name: a file with a window is OLMo 3 */
    .window_pattern = 4,
    .biases = {{"attention_bias", false, PL_BIAS_QKV | PL_BIAS_O}},
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = attend,
    .finish = pl_layer_finish_after,
};

const struct pl_arch_def pl_olmo3_def = {
    .qk_norm = true,
    .windowed_unscaled = true,
    .windows = true,
    .window_default = 4096,
    .window_pattern = 4,
    .biases = {{"attention_bias", false, PL_BIAS_QKV | PL_BIAS_O}},
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = attend,
    .finish = pl_layer_finish_after,
};
