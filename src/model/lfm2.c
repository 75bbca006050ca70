/* LFM2 (Liquid AI 2025): most layers are a short convolution gated before and after it, y = C * conv(B * x), whose last
 * inputs are all the state they have; the others are attention with norms of each head. After each an MLP, or, in LFM2's
 * mixtures, experts chosen by sigmoids with a bias. */
#include "model/arch.h"

/* MLX has the MLP of a mixture's first layers under names of its own. */
#define MLP(field, gguf_name, hf_name, mlx, ROWS, COLS)                                                              \
    {                                                                                                                \
        .gguf = gguf_name, .hf = "feed_forward." hf_name ".weight", .hf_fused = "feed_forward." mlx ".weight",       \
        .per_layer = true, .slot = offsetof(struct pl_layer, field), .use = PL_WEIGHT_MATRIX, .rows = PL_DIM_##ROWS, \
        .cols = PL_DIM_##COLS, .need = PL_NEED_DENSE                                                                 \
    }
#define IN(field, PART) PL_BIND_PART(field, "shortconv.in_proj.weight", "conv.in_proj.weight", SI, E, PART)
#define COMMON                                                                                                            \
    PL_BIND_EMBED, PL_MODEL_WEIGHT(out_norm, "token_embd_norm.weight", "embedding_norm.weight", VECTOR, NONE, E, ALWAYS), \
        PL_BIND_HEAD, PL_LAYER_VECTOR(attn_norm, "attn_norm.weight", "operator_norm.weight", E, ALWAYS), PL_BIND_QKV,     \
        PL_LAYER_VECTOR(q_norm, "attn_q_norm.weight", "self_attn.q_layernorm.weight", D, QK_NORM),                        \
        PL_LAYER_VECTOR(k_norm, "attn_k_norm.weight", "self_attn.k_layernorm.weight", D, QK_NORM),                        \
        PL_LAYER_MATRIX(o, "attn_output.weight", "self_attn.out_proj.weight", E, HD), IN(ssm_b, IN3_B), IN(ssm_z, IN3_C), \
        IN(ssm_x, IN3_X), PL_BIND_MADE(ssm_conv, "shortconv.conv.weight", "conv.conv.weight", SCK, SSM, TAPS),            \
        PL_BIND_MATRIX(ssm_out, "shortconv.out_proj.weight", "conv.out_proj.weight", E, SI, SSM, MATRIX),                 \
        PL_BIND_MLP_NORM("ffn_norm.weight"), MLP(gate, "ffn_gate.weight", "w1", "gate_proj", F, E),                       \
        MLP(up, "ffn_up.weight", "w3", "up_proj", F, E), MLP(down, "ffn_down.weight", "w2", "down_proj", E, F)

static const struct pl_binding bindings[] = {COMMON};
static const struct pl_binding moe_bindings[] = {
    COMMON,
    PL_BIND_EXPERTS("feed_forward", "w1", "w3", "w2"),
    PL_LAYER_VECTOR(router_choice, "exp_probs_b.bias", "feed_forward.expert_bias", X, CHOICE_BIAS),
};

static enum pl_status short_conv(struct pl_model *m, uint32_t l, const struct pl_layer *w, struct pl_activation *x) {
    const struct pl_weight *in[] = {w->ssm_b, w->ssm_z, w->ssm_x};
    struct pl_activation *made[] = {m->y, m->z, m->cx};
    const struct pl_conv conv = pl_layer_convolution(m, l, w);
    PL_TRY(pl_layer_norm(m, x, w->attn_norm, NULL, m->h));
    PL_TRY(pl_ops_linear(m->ops, 3, in, NULL, m->h, made));
    PL_TRY(pl_ops_glu(m->ops, PL_OPS_NO_ACT, m->cx, m->y, m->cx));
    PL_TRY(pl_ops_causal_conv(m->ops, &conv, m->cx, m->cy));
    return pl_ops_glu(m->ops, PL_OPS_NO_ACT, m->z, m->cy, m->y);
}

static enum pl_status attend(struct pl_model *m, uint32_t l, const struct pl_layer *w, struct pl_activation *x) {
    return m->cfg.layer_ssm[l] ? short_conv(m, l, w, x) : pl_layer_attend(m, l, w, x);
}

const struct pl_arch_def pl_lfm2_def = {
    .ssm = PL_SSM_CONV,
    .hf_eps = "norm_eps",
    .qk_norm = true,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = attend,
    .finish = pl_layer_finish_hybrid,
};

const struct pl_arch_def pl_lfm2_moe_def = {
    .ssm = PL_SSM_CONV,
    .hf_eps = "norm_eps",
    .qk_norm = true,
    .moe = true,
    .renormalise = true,
    .deepseek_moe = true,
    .bindings = moe_bindings,
    .binding_count = PL_COUNT_OF(moe_bindings),
    .attend = attend,
    .finish = pl_layer_finish_hybrid,
};
