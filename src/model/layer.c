/* The steps that layers are written in, and the plain layers made of them. */
#include "model/arch.h"

enum pl_status pl_layer_norm(struct pl_model *m, struct pl_activation *x, const struct pl_weight *w,
                             const struct pl_weight *bias, struct pl_activation *y) {
    if (m->cfg.layer_norm) return pl_ops_layer_norm(m->ops, x, w, bias, m->cfg.norm_eps, y);
    return pl_ops_norm(m->ops, x, w, m->cfg.norm_eps, m->cfg.norm_offset, y);
}

enum pl_status pl_layer_qkv(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *from) {
    const struct pl_weight *qkv[] = {w->q, w->k, w->v}, *bias[] = {w->q_bias, w->k_bias, w->v_bias};
    struct pl_activation *out[] = {m->q, m->k, m->v};
    return pl_ops_linear(m->ops, 3, qkv, bias, from, out);
}

static const struct pl_rope *rope_of(const struct pl_model *m, uint32_t l) {
    if (m->cfg.layer_nope[l]) return NULL;
    return m->cfg.layer_windowed[l] && m->rope_local != NULL ? m->rope_local : m->rope;
}

enum pl_status pl_layer_attention(struct pl_model *m, uint32_t l, const struct pl_layer *w) {
    const struct pl_model_config *c = &m->cfg;
    const struct pl_qkv p = {.layer = c->layer_kv[l],
                             .heads = c->heads,
                             .q_norm = w->q_norm,
                             .k_norm = w->k_norm,
                             .norm_eps = c->norm_eps,
                             .norm_offset = c->norm_offset,
                             .rope = rope_of(m, l)};
    PL_TRY(pl_ops_rope_append(m->ops, &p, m->q, m->k, m->v));
    const struct pl_attention attention = {.layer = c->layer_kv[l],
                                           .heads = c->heads,
                                           .scale = c->attn_scale,
                                           .softcap = c->attn_softcap,
                                           .window = c->layer_windowed[l] ? c->window : 0,
                                           .sinks = w->sinks};
    return pl_ops_attention(m->ops, &attention, m->q, m->a);
}

enum pl_status pl_layer_project(struct pl_model *m, const struct pl_weight *w, const struct pl_weight *bias,
                                const struct pl_activation *from, struct pl_activation *y) {
    return pl_ops_linear(m->ops, 1, &w, &bias, from, &y);
}

enum pl_status pl_layer_project_add_scaled(struct pl_model *m, const struct pl_weight *w, const struct pl_weight *bias,
                                           const struct pl_activation *from, struct pl_activation *x, float scale) {
    if (bias == NULL && scale == 1) return pl_ops_linear_add(m->ops, w, from, x);
    PL_TRY(pl_layer_project(m, w, bias, from, m->h));
    if (scale != 1) PL_TRY(pl_ops_scale(m->ops, m->h, scale));
    return pl_ops_add(m->ops, x, m->h);
}

enum pl_status pl_layer_project_add(struct pl_model *m, const struct pl_weight *w, const struct pl_weight *bias,
                                    const struct pl_activation *from, struct pl_activation *x) {
    return pl_layer_project_add_scaled(m, w, bias, from, x, m->cfg.residual_scale);
}

enum pl_status pl_layer_gated(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *from) {
    const struct pl_weight *gate_up[] = {w->gate, w->up}, *bias[] = {w->gate_bias, w->up_bias};
    struct pl_activation *out[] = {m->g, m->u};
    return pl_ops_gated(m->ops, gate_up, bias, m->cfg.mlp_act, from, out);
}

enum pl_status pl_layer_attend(struct pl_model *m, uint32_t l, const struct pl_layer *w, struct pl_activation *x) {
    PL_TRY(pl_layer_norm(m, x, w->attn_norm, w->attn_norm_bias, m->h));
    PL_TRY(pl_layer_qkv(m, w, m->h));
    return pl_layer_attention(m, l, w);
}

enum pl_status pl_layer_finish(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *a,
                               struct pl_activation *x) {
    PL_TRY(pl_layer_project_add(m, w->o, w->o_bias, a, x));
    PL_TRY(pl_layer_norm(m, x, w->mlp_norm, w->mlp_norm_bias, m->h));
    PL_TRY(pl_layer_gated(m, w, m->h));
    return pl_layer_project_add(m, w->down, w->down_bias, m->g, x);
}

enum pl_status pl_layer_finish_sandwich(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *a,
                                        struct pl_activation *x) {
    const struct pl_model_config *c = &m->cfg;
    PL_TRY(pl_layer_project(m, w->o, w->o_bias, a, m->h));
    PL_TRY(pl_layer_norm(m, m->h, w->post_attn_norm, NULL, m->h));
    PL_TRY(pl_ops_add_norm(m->ops, x, m->h, w->mlp_norm, c->norm_eps, c->norm_offset, m->h));
    PL_TRY(pl_layer_gated(m, w, m->h));
    PL_TRY(pl_layer_project(m, w->down, w->down_bias, m->g, m->h));
    PL_TRY(pl_layer_norm(m, m->h, w->post_mlp_norm, NULL, m->h));
    return pl_ops_add(m->ops, x, m->h);
}

enum pl_status pl_layer_finish_after(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *a,
                                     struct pl_activation *x) {
    PL_TRY(pl_layer_project(m, w->o, w->o_bias, a, m->h));
    PL_TRY(pl_layer_norm(m, m->h, w->post_attn_norm, NULL, m->h));
    PL_TRY(pl_ops_add(m->ops, x, m->h));
    PL_TRY(pl_layer_gated(m, w, x));
    PL_TRY(pl_layer_project(m, w->down, NULL, m->g, m->h));
    PL_TRY(pl_layer_norm(m, m->h, w->post_mlp_norm, NULL, m->h));
    return pl_ops_add(m->ops, x, m->h);
}

struct pl_moe pl_layer_moe(const struct pl_model *m, const struct pl_layer *w) {
    const struct pl_model_config *c = &m->cfg;
    return (struct pl_moe){.used = c->experts_used,
                           .router = c->experts_sigmoid ? PL_ROUTER_SIGMOID : PL_ROUTER_SOFTMAX,
                           .renormalise = c->experts_renormalise,
                           .scale = c->experts_scale,
                           .groups = c->expert_groups,
                           .groups_used = c->groups_used,
                           .group_top = c->expert_group_top,
                           .choice_bias = w->router_choice,
                           .act = m->cfg.mlp_act,
                           .gate = w->gate_experts,
                           .up = w->up_experts,
                           .down = w->down_experts,
                           .gate_bias = w->gate_experts_bias,
                           .up_bias = w->up_experts_bias,
                           .down_bias = w->down_experts_bias};
}

/* x += mlp(m->h), times sigmoid(m->h shared_router^T) where there is one. */
static enum pl_status shared_expert(struct pl_model *m, const struct pl_layer *w, struct pl_activation *x) {
    const struct pl_weight *in[] = {w->shared_gate, w->shared_up, w->shared_router};
    struct pl_activation *out[] = {m->sg, m->su, m->share};
    if (w->shared_router == NULL) {
        PL_TRY(pl_ops_gated(m->ops, in, NULL, m->cfg.mlp_act, m->h, out));
        return pl_ops_linear_add(m->ops, w->shared_down, m->sg, x);
    }
    PL_TRY(pl_ops_linear(m->ops, 3, in, NULL, m->h, out));
    PL_TRY(pl_ops_glu(m->ops, m->cfg.mlp_act, m->sg, m->su, m->sg));
    PL_TRY(pl_ops_gate_rows(m->ops, m->sg, m->share));
    return pl_ops_linear_add(m->ops, w->shared_down, m->sg, x);
}

enum pl_status pl_layer_mixture(struct pl_model *m, const struct pl_layer *w, struct pl_activation *x) {
    PL_TRY(pl_layer_norm(m, x, w->mlp_norm, w->mlp_norm_bias, m->h));
    if (w->router == NULL) {
        PL_TRY(pl_layer_gated(m, w, m->h));
        return pl_layer_project_add(m, w->down, w->down_bias, m->g, x);
    }
    const struct pl_moe moe = pl_layer_moe(m, w);
    PL_TRY(pl_layer_project(m, w->router, w->router_bias, m->h, m->router));
    PL_TRY(pl_ops_moe(m->ops, &moe, m->router, m->h, x));
    return w->shared_down != NULL ? shared_expert(m, w, x) : PL_OK;
}

enum pl_status pl_layer_finish_moe(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *a,
                                   struct pl_activation *x) {
    PL_TRY(pl_layer_project_add(m, w->o, w->o_bias, a, x));
    return pl_layer_mixture(m, w, x);
}
