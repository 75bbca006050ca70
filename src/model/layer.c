/* The steps that layers are written in, and the plain pre-norm layer made of them. */
#include "model/arch.h"

enum pl_status pl_layer_norm(struct pl_model *m, struct pl_activation *x, const struct pl_weight *w,
                             struct pl_activation *y) {
    return pl_ops_norm(m->ops, x, w, m->cfg.norm_eps, m->cfg.norm_offset, y);
}

enum pl_status pl_layer_qkv(struct pl_model *m, const struct pl_layer *w) {
    const struct pl_weight *qkv[] = {w->q, w->k, w->v}, *bias[] = {w->q_bias, w->k_bias, w->v_bias};
    struct pl_activation *out[] = {m->q, m->k, m->v};
    return pl_ops_linear(m->ops, 3, qkv, bias, m->h, out);
}

enum pl_status pl_layer_attention(struct pl_model *m, uint32_t l, const struct pl_layer *w) {
    const struct pl_model_config *c = &m->cfg;
    bool windowed = c->layer_windowed[l];
    const struct pl_qkv p = {.layer = l,
                             .heads = c->heads,
                             .q_norm = w->q_norm,
                             .k_norm = w->k_norm,
                             .norm_eps = c->norm_eps,
                             .norm_offset = c->norm_offset,
                             .rope = windowed && m->rope_local != NULL ? m->rope_local : m->rope};
    PL_TRY(pl_ops_rope_append(m->ops, &p, m->q, m->k, m->v));
    const struct pl_attention attention = {.layer = l,
                                           .heads = c->heads,
                                           .scale = c->attn_scale,
                                           .softcap = c->attn_softcap,
                                           .window = windowed ? c->window : 0};
    return pl_ops_attention(m->ops, &attention, m->q, m->a);
}

enum pl_status pl_layer_project(struct pl_model *m, const struct pl_weight *w, const struct pl_weight *bias,
                                const struct pl_activation *from, struct pl_activation *y) {
    return pl_ops_linear(m->ops, 1, &w, &bias, from, &y);
}

enum pl_status pl_layer_project_add(struct pl_model *m, const struct pl_weight *w, const struct pl_weight *bias,
                                    const struct pl_activation *from, struct pl_activation *x) {
    if (bias == NULL) return pl_ops_linear_add(m->ops, w, from, x);
    PL_TRY(pl_layer_project(m, w, bias, from, m->h));
    return pl_ops_add(m->ops, x, m->h);
}

enum pl_status pl_layer_gated(struct pl_model *m, const struct pl_layer *w) {
    const struct pl_weight *gate_up[] = {w->gate, w->up}, *bias[] = {w->gate_bias, w->up_bias};
    struct pl_activation *out[] = {m->g, m->u};
    PL_TRY(pl_ops_linear(m->ops, 2, gate_up, bias, m->h, out));
    return pl_ops_glu(m->ops, m->cfg.mlp_act, m->g, m->u, m->g);
}

enum pl_status pl_layer_attend(struct pl_model *m, uint32_t l, const struct pl_layer *w, struct pl_activation *x) {
    PL_TRY(pl_layer_norm(m, x, w->attn_norm, m->h));
    PL_TRY(pl_layer_qkv(m, w));
    return pl_layer_attention(m, l, w);
}

enum pl_status pl_layer_finish(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *a,
                               struct pl_activation *x) {
    PL_TRY(pl_layer_project_add(m, w->o, w->o_bias, a, x));
    PL_TRY(pl_layer_norm(m, x, w->mlp_norm, m->h));
    PL_TRY(pl_layer_gated(m, w));
    return pl_layer_project_add(m, w->down, w->down_bias, m->g, x);
}
