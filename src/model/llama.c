/* Llama (Touvron et al. 2023; "The Llama 3 Herd of Models" 2024) and Mistral (Jiang et al. 2023), which adds a sliding
 * window. Pre-norm, grouped-query attention, rotary positions, SwiGLU. */
#include "model/arch.h"

static const struct pl_binding bindings[] = {
    PL_MODEL_WEIGHT(embed, "token_embd.weight", "embed_tokens.weight", EMBED, V, E, ALWAYS),
    PL_MODEL_WEIGHT(out_norm, "output_norm.weight", "norm.weight", VECTOR, NONE, E, ALWAYS),
    PL_MODEL_WEIGHT(head, "output.weight", "lm_head.weight", HEAD, V, E, UNTIED),
    PL_LAYER_VECTOR(attn_norm, "attn_norm.weight", "input_layernorm.weight", E, ALWAYS),
    PL_LAYER_MATRIX(q, "attn_q.weight", "self_attn.q_proj.weight", HD, E),
    PL_LAYER_MATRIX(k, "attn_k.weight", "self_attn.k_proj.weight", GD, E),
    PL_LAYER_MATRIX(v, "attn_v.weight", "self_attn.v_proj.weight", GD, E),
    PL_LAYER_VECTOR(q_bias, "attn_q.bias", "self_attn.q_proj.bias", HD, QKV_BIAS),
    PL_LAYER_VECTOR(k_bias, "attn_k.bias", "self_attn.k_proj.bias", GD, QKV_BIAS),
    PL_LAYER_VECTOR(v_bias, "attn_v.bias", "self_attn.v_proj.bias", GD, QKV_BIAS),
    PL_LAYER_MATRIX(o, "attn_output.weight", "self_attn.o_proj.weight", E, HD),
    PL_LAYER_VECTOR(o_bias, "attn_output.bias", "self_attn.o_proj.bias", E, O_BIAS),
    PL_LAYER_VECTOR(mlp_norm, "ffn_norm.weight", "post_attention_layernorm.weight", E, ALWAYS),
    PL_LAYER_MATRIX(gate, "ffn_gate.weight", "mlp.gate_proj.weight", F, E),
    PL_LAYER_MATRIX(up, "ffn_up.weight", "mlp.up_proj.weight", F, E),
    PL_LAYER_MATRIX(down, "ffn_down.weight", "mlp.down_proj.weight", E, F),
    PL_LAYER_VECTOR(gate_bias, "ffn_gate.bias", "mlp.gate_proj.bias", F, MLP_BIAS),
    PL_LAYER_VECTOR(up_bias, "ffn_up.bias", "mlp.up_proj.bias", F, MLP_BIAS),
    PL_LAYER_VECTOR(down_bias, "ffn_down.bias", "mlp.down_proj.bias", E, MLP_BIAS),
};

static enum pl_status check(const struct pl_model_config *c, struct pl_err *err) {
    if (c->qk_norm)
        PL_FAIL(err, PL_UNSUPPORTED, "a %s model with norms on queries and keys is not implemented", pl_arch_name(c->arch));
    if (c->attn_softcap > 0 || c->logit_softcap > 0)
        PL_FAIL(err, PL_UNSUPPORTED, "a %s model with soft-caps is not implemented", pl_arch_name(c->arch));
    return PL_OK;
}

/* x += from w^T + bias. A bias goes by way of h, which is free by then. */
static enum pl_status project_back(struct pl_model *m, const struct pl_weight *w, const struct pl_weight *bias,
                                   const struct pl_activation *from, struct pl_activation *x) {
    if (bias == NULL) return pl_ops_linear_add(m->ops, w, from, x);
    struct pl_activation *y[] = {m->h};
    PL_TRY(pl_ops_linear(m->ops, 1, &w, &bias, from, y));
    return pl_ops_add(m->ops, x, m->h);
}

static enum pl_status attend(struct pl_model *m, uint32_t l, struct pl_activation *x) {
    const struct pl_model_config *c = &m->cfg;
    const struct pl_layer *w = &m->layers[l];
    const struct pl_weight *qkv[] = {w->q, w->k, w->v}, *bias[] = {w->q_bias, w->k_bias, w->v_bias};
    struct pl_activation *out[] = {m->q, m->k, m->v};
    PL_TRY(pl_ops_norm(m->ops, x, w->attn_norm, c->norm_eps, c->norm_offset, m->h));
    PL_TRY(pl_ops_linear(m->ops, 3, qkv, bias, m->h, out));
    const struct pl_qkv p = {.layer = l, .heads = c->heads, .rope = pl_layer_rope(m, l)};
    PL_TRY(pl_ops_rope_append(m->ops, &p, m->q, m->k, m->v));
    const struct pl_attention attention = {
        .layer = l, .heads = c->heads, .scale = c->attn_scale, .window = pl_layer_window(m, l)};
    return pl_ops_attention(m->ops, &attention, m->q, m->a);
}

static enum pl_status mlp(struct pl_model *m, const struct pl_layer *w, struct pl_activation *x) {
    const struct pl_model_config *c = &m->cfg;
    const struct pl_weight *gate_up[] = {w->gate, w->up}, *bias[] = {w->gate_bias, w->up_bias};
    struct pl_activation *out[] = {m->g, m->u};
    PL_TRY(pl_ops_norm(m->ops, x, w->mlp_norm, c->norm_eps, c->norm_offset, m->h));
    PL_TRY(pl_ops_linear(m->ops, 2, gate_up, bias, m->h, out));
    PL_TRY(pl_ops_glu(m->ops, c->mlp_act, m->g, m->u, m->g));
    return project_back(m, w->down, w->down_bias, m->g, x);
}

static enum pl_status forward(struct pl_model *m) {
    struct pl_activation *x = m->x, *a = m->a;
    PL_TRY(pl_ops_embed(m->ops, m->embed, m->cfg.embed_scale, x));
    for (uint32_t l = 0; l < m->cfg.layers; l++) {
        PL_TRY(attend(m, l, x));
        PL_TRY(pl_model_keep_logit_rows(m, l, &x, &a));
        PL_TRY(project_back(m, m->layers[l].o, m->layers[l].o_bias, a, x));
        PL_TRY(mlp(m, &m->layers[l], x));
    }
    return pl_model_output(m, x);
}

const struct pl_arch_def pl_llama_def = {
    .check = check, .bindings = bindings, .binding_count = PL_COUNT_OF(bindings), .forward = forward};
