/* EXAONE 4 (LG AI Research 2025): norms stand after both halves of a layer instead of before them, and on each query and key
 * head. The large model has windowed layers, three to one global layer, which does not rotate; the small one has none, and
 * all layers rotate. */
#include "model/arch.h"

static const struct pl_binding bindings[] = {
    PL_BIND_EMBED,
    PL_BIND_OUT_NORM,
    PL_BIND_HEAD,
    PL_BIND_QKV,
    PL_BIND_QK_HEAD_NORM,
    PL_BIND_O,
    PL_BIND_POST_ATTN_NORM("post_attention_layernorm.weight"),
    PL_BIND_MLP,
    PL_BIND_POST_MLP_NORM("post_feedforward_layernorm.weight"),
};

static enum pl_status attend(struct pl_model *m, uint32_t l, const struct pl_layer *w, struct pl_activation *x) {
    PL_TRY(pl_layer_qkv(m, w, x));
    return pl_layer_attention(m, l, w);
}

const struct pl_arch_def pl_exaone4_def = {
    .qk_norm = true,
    .nope = PL_NOPE_BESIDE_WINDOWS,
    .windows = true,
    .window_default = 4096,
    .window_pattern = 4,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = attend,
    .finish = pl_layer_finish_after,
};
