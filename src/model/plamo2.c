/* PLaMo 2 (Preferred Networks 2025): Mamba layers with heads, attention at every mamba_step-th, after each a gated MLP.
 * Norms before and after both halves, whose weights safetensors hold less 1, 1/5, 1 and 1/5^1.5; queries and keys are normed
 * by heads, each with weights of its own. */
#include "model/arch.h"

#define AFTER_MIXER 0.2f        /* of what norms before a half add to their weights */
#define AFTER_MLP   0.08944272f /* 5^-1.5 */

#define NORM(field, name, hf_name) PL_LAYER_VECTOR(field, name ".weight", hf_name ".weight", E, ALWAYS)
/* llama.cpp's converter leaves the suffix of these out. */
#define BARE(field, name, hf_name, COLS, NEED)                                                                           \
    {                                                                                                                    \
        .gguf = name, .gguf_fused = name ".weight", .hf = hf_name, .per_layer = true,                                    \
        .slot = offsetof(struct pl_layer, field), .use = PL_WEIGHT_VECTOR, .cols = PL_DIM_##COLS, .need = PL_NEED_##NEED \
    }
#define FUSED(field, letter, ROWS, PART)                                                               \
    {                                                                                                  \
        .gguf = "attn_" letter ".weight", .per_layer = true, .slot = offsetof(struct pl_layer, field), \
        .use = PL_WEIGHT_MATRIX, .rows = PL_DIM_##ROWS, .cols = PL_DIM_E, .part = PL_PART_##PART,      \
        .gguf_fused = "attn_qkv.weight", .hf_fused = "mixer.qkv_proj.weight"                           \
    }
#define IN(field, PART)       PL_BIND_PART(field, "ssm_in.weight", "mixer.in_proj.weight", SI, E, PART)
#define BC(field, ROWS, PART) PL_BIND_PART(field, "ssm_x.weight", "mixer.bcdt_proj.weight", ROWS, SI, PART)

static const struct pl_binding bindings[] = {
    PL_BIND_EMBED,
    PL_BIND_OUT_NORM,
    PL_BIND_HEAD,
    NORM(attn_norm, "attn_norm", "pre_mixer_norm"),
    BARE(post_attn_norm, "post_attention_norm", "post_mixer_norm.weight", E, ALWAYS),
    FUSED(q, "q", HD, Q),
    FUSED(k, "k", GD, K),
    FUSED(v, "v", GD, V),
    PL_BIND_MADE(q_norm_wide, "attn_q_norm.weight", "mixer.q_weight", HD, ALWAYS, FLAT),
    PL_BIND_MADE(k_norm_wide, "attn_k_norm.weight", "mixer.k_weight", GD, ALWAYS, FLAT),
    PL_LAYER_MATRIX(o, "attn_output.weight", "mixer.o_proj.weight", E, HD),
    IN(ssm_z, HEADS_Z),
    IN(ssm_x, HEADS_X),
    BC(ssm_b, SN, BC_B),
    BC(ssm_c, SN, BC_C),
    BC(ssm_dt, SR, BC_DT),
    BARE(ssm_dt_norm, "ssm_dt_norm", "mixer.dt_norm_weight", SR, SSM),
    BARE(ssm_b_norm, "ssm_b_norm", "mixer.B_norm_weight", SN, SSM),
    BARE(ssm_c_norm, "ssm_c_norm", "mixer.C_norm_weight", SN, SSM),
    PL_BIND_MATRIX(ssm_dt_up, "ssm_dt.weight", "mixer.dt_proj.weight", SH, SR, SSM, MATRIX),
    PL_BIND_MADE(ssm_dt_bias, "ssm_dt.bias", "mixer.dt_bias", SH, SSM, FLAT),
    PL_BIND_MADE(ssm_d, "ssm_d", "mixer.D", SH, SSM, FLAT),
    PL_BIND_SSM_COMMON("mixer"),
    NORM(mlp_norm, "ffn_norm", "pre_mlp_norm"),
    BARE(post_mlp_norm, "post_ffw_norm", "post_mlp_norm.weight", E, ALWAYS),
    PL_BIND_FUSED_MLP,
};

static enum pl_status norm_heads(struct pl_model *m, uint32_t heads, const struct pl_weight *w, struct pl_activation *x) {
    const struct pl_gated_norm norm = {.groups = heads, .eps = m->cfg.qk_eps, .w = w};
    return pl_ops_gated_norm(m->ops, &norm, x, NULL, x);
}

static enum pl_status attend(struct pl_model *m, uint32_t l, const struct pl_layer *w, struct pl_activation *x) {
    if (m->cfg.layer_ssm[l]) return pl_layer_ssm(m, l, w, x);
    PL_TRY(pl_layer_norm(m, x, w->attn_norm, NULL, m->h));
    PL_TRY(pl_layer_qkv(m, w, m->h));
    PL_TRY(norm_heads(m, m->cfg.heads, w->q_norm_wide, m->q));
    PL_TRY(norm_heads(m, m->cfg.kv_heads, w->k_norm_wide, m->k));
    return pl_layer_attention(m, l, w);
}

static enum pl_status finish(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *a,
                             struct pl_activation *x) {
    const struct pl_model_config *c = &m->cfg;
    PL_TRY(w->ssm_out != NULL ? pl_layer_project(m, w->ssm_out, NULL, m->y_now, m->h)
                              : pl_layer_project(m, w->o, NULL, a, m->h));
    PL_TRY(pl_ops_norm(m->ops, m->h, w->post_attn_norm, c->norm_eps, AFTER_MIXER * c->norm_offset, m->h));
    PL_TRY(pl_ops_add_norm(m->ops, x, m->h, w->mlp_norm, c->norm_eps, c->norm_offset, m->h));
    PL_TRY(pl_layer_gated(m, w, m->h));
    PL_TRY(pl_layer_project(m, w->down, NULL, m->g, m->h));
    PL_TRY(pl_ops_norm(m->ops, m->h, w->post_mlp_norm, c->norm_eps, AFTER_MLP * c->norm_offset, m->h));
    return pl_ops_add(m->ops, x, m->h);
}

const struct pl_arch_def pl_plamo2_def = {
    .ssm = PL_SSM_HEADS,
    .hf_head_dim = "hidden_size_per_head",
    .hf_layers = "layers.layers",
    .hf_norm_offset = 1,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = attend,
    .finish = finish,
};
