/* OLMoE (Muennighoff et al. 2024): pre-norm, queries and keys normalised over all their heads at once, many small experts.
 */
#include "model/arch.h"

static const struct pl_binding bindings[] = {
    PL_BIND_EMBED,
    PL_BIND_OUT_NORM,
    PL_BIND_HEAD,
    PL_BIND_ATTN_NORM,
    PL_BIND_QKV,
    PL_BIND_QK_WIDE_NORM,
    PL_BIND_O,
    PL_BIND_MLP_NORM("post_attention_layernorm.weight"),
    PL_BIND_EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
};

static enum pl_status attend(struct pl_model *m, uint32_t l, const struct pl_layer *w, struct pl_activation *x) {
    PL_TRY(pl_layer_norm(m, x, w->attn_norm, NULL, m->h));
    PL_TRY(pl_layer_qkv(m, w, m->h));
    PL_TRY(pl_layer_norm(m, m->q, w->q_norm_wide, NULL, m->q));
    PL_TRY(pl_layer_norm(m, m->k, w->k_norm_wide, NULL, m->k));
    return pl_layer_attention(m, l, w);
}

const struct pl_arch_def pl_olmoe_def = {
    .qk_norm = true,
    .moe = true,
    .biases = {{"attention_bias", false, PL_BIAS_QKV | PL_BIAS_O}},
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = attend,
    .finish = pl_layer_finish_moe,
};
