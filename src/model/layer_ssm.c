/* State-space layers in calls to operations: Mamba (Gu and Dao 2023), also with heads, and Mamba-2 (Dao and Gu 2024). */
#include "model/arch.h"

struct pl_conv pl_layer_convolution(const struct pl_model *m, uint32_t l, const struct pl_layer *w) {
    return (struct pl_conv){.layer = m->cfg.layer_state[l],
                            .kernel = m->cfg.ssm.conv,
                            .silu = m->cfg.ssm.kind != PL_SSM_CONV,
                            .w = w->ssm_conv,
                            .bias = w->ssm_conv_bias};
}

static struct pl_ssm recurrence(const struct pl_model *m, uint32_t l, const struct pl_layer *w) {
    const struct pl_ssm_config *s = &m->cfg.ssm;
    return (struct pl_ssm){.layer = m->cfg.layer_state[l],
                           .heads = s->heads,
                           .head_dim = s->head_dim,
                           .groups = s->groups,
                           .state = s->state,
                           .full = s->kind == PL_SSM_MAMBA,
                           .a = w->ssm_a,
                           .dt_bias = w->ssm_dt_bias,
                           .skip = w->ssm_d,
                           .dt_min = s->dt_min,
                           .dt_max = s->dt_max,
                           .x = m->cy,
                           .dt = m->dt};
}

/* Falcon-Mamba has them without weights: ones. */
static enum pl_status norm_inputs(struct pl_model *m, const struct pl_layer *w) {
    const float eps = m->cfg.ssm.bcdt_eps;
    if (w->ssm_dt_norm == NULL) return PL_OK;
    PL_TRY(pl_ops_norm(m->ops, m->dt_low, w->ssm_dt_norm, eps, 0, m->dt_low));
    PL_TRY(pl_ops_norm(m->ops, m->b, w->ssm_b_norm, eps, 0, m->b));
    return pl_ops_norm(m->ops, m->c, w->ssm_c_norm, eps, 0, m->c);
}

/* Time steps, B and C depend on the convolution's result. */
static enum pl_status mamba(struct pl_model *m, uint32_t l, const struct pl_layer *w) {
    const struct pl_weight *in[] = {w->ssm_x, w->ssm_z}, *select[] = {w->ssm_dt, w->ssm_b, w->ssm_c};
    struct pl_activation *made[] = {m->cx, m->z}, *selected[] = {m->dt_low, m->b, m->c};
    PL_TRY(pl_ops_linear(m->ops, 2, in, NULL, m->h, made));
    const struct pl_conv conv = pl_layer_convolution(m, l, w);
    PL_TRY(pl_ops_causal_conv(m->ops, &conv, m->cx, m->cy));
    PL_TRY(pl_ops_linear(m->ops, 3, select, NULL, m->cy, selected));
    PL_TRY(norm_inputs(m, w));
    PL_TRY(pl_layer_project(m, w->ssm_dt_up, NULL, m->dt_low, m->dt));
    struct pl_ssm s = recurrence(m, l, w);
    s.b = m->b;
    s.c = m->c;
    s.z = m->z;
    return pl_ops_ssm(m->ops, &s, m->y);
}

/* B and C come out of the convolution beside x; the gate comes with the norm. */
static enum pl_status mamba2(struct pl_model *m, uint32_t l, const struct pl_layer *w) {
    const struct pl_ssm_config *c = &m->cfg.ssm;
    const struct pl_weight *in[] = {w->ssm_z, w->ssm_x, w->ssm_dt};
    struct pl_activation *made[] = {m->z, m->cx, m->dt};
    PL_TRY(pl_ops_linear(m->ops, 3, in, NULL, m->h, made));
    if (c->scale[0] != 1) PL_TRY(pl_ops_scale(m->ops, m->z, c->scale[0]));
    if (c->scale[4] != 1) PL_TRY(pl_ops_scale(m->ops, m->dt, c->scale[4])); /* the others are in the convolution's taps */
    const struct pl_conv conv = pl_layer_convolution(m, l, w);
    struct pl_ssm s = recurrence(m, l, w);
    s.b = s.c = m->cy;
    s.b_first = c->inner;
    s.c_first = c->inner + c->groups * c->state;
    if (c->norm && (c->groups > 1 || c->norm_first)) {
        const struct pl_gated_norm norm = {
            .groups = c->groups, .norm_first = c->norm_first, .eps = m->cfg.norm_eps, .w = w->ssm_norm};
        PL_TRY(pl_ops_conv_ssm(m->ops, &conv, m->cx, m->cy, &s, m->y));
        return pl_ops_gated_norm(m->ops, &norm, m->y, m->z, m->y);
    }
    s.z = m->z;
    if (!c->norm) return pl_ops_conv_ssm(m->ops, &conv, m->cx, m->cy, &s, m->y);
    /* gated there: what is left is a plain norm, which a product may do on its way */
    PL_TRY(pl_ops_conv_ssm(m->ops, &conv, m->cx, m->cy, &s, m->z));
    return pl_ops_norm(m->ops, m->z, w->ssm_norm, m->cfg.norm_eps, 0, m->y);
}

/* Queries, keys and values come out of the convolution; the gate follows the norms of the heads. */
static enum pl_status delta(struct pl_model *m, uint32_t l, const struct pl_layer *w) {
    const struct pl_ssm_config *c = &m->cfg.ssm;
    const struct pl_weight *in[] = {w->ssm_x, w->ssm_z}, *gates[] = {w->ssm_b, w->ssm_dt};
    struct pl_activation *made[] = {m->cx, m->z}, *gated[] = {m->b, m->dt};
    const struct pl_conv conv = pl_layer_convolution(m, l, w);
    const struct pl_gated_norm norm = {.groups = c->heads, .norm_first = true, .eps = m->cfg.norm_eps, .w = w->ssm_norm};
    const struct pl_delta d = {.layer = m->cfg.layer_state[l],
                               .heads = c->heads,
                               .head_dim = c->head_dim,
                               .groups = c->groups,
                               .state = c->state,
                               .in_turn = c->in_turn,
                               .a = w->ssm_a,
                               .dt_bias = w->ssm_dt_bias,
                               .x = m->cy,
                               .dt = m->dt,
                               .beta = m->b,
                               .k_first = c->groups * c->state,
                               .v_first = 2 * c->groups * c->state};
    PL_TRY(pl_ops_linear(m->ops, 2, in, NULL, m->h, made));
    PL_TRY(pl_ops_linear(m->ops, 2, gates, NULL, m->h, gated));
    PL_TRY(pl_ops_causal_conv(m->ops, &conv, m->cx, m->cy));
    PL_TRY(pl_ops_delta(m->ops, &d, m->y));
    return pl_ops_gated_norm(m->ops, &norm, m->y, m->z, m->y);
}

enum pl_status pl_layer_ssm_normed(struct pl_model *m, uint32_t l, const struct pl_layer *w) {
    if (m->cfg.ssm.kind == PL_SSM_DELTA) return delta(m, l, w);
    return m->cfg.ssm.kind == PL_SSM_MAMBA2 ? mamba2(m, l, w) : mamba(m, l, w);
}

enum pl_status pl_layer_ssm(struct pl_model *m, uint32_t l, const struct pl_layer *w, struct pl_activation *x) {
    PL_TRY(pl_layer_norm(m, x, w->attn_norm, w->attn_norm_bias, m->h));
    return pl_layer_ssm_normed(m, l, w);
}

enum pl_status pl_layer_finish_ssm(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *a,
                                   struct pl_activation *x) {
    (void)a;
    return pl_layer_project_add(m, w->ssm_out, NULL, m->y_now, x);
}

enum pl_status pl_layer_finish_hybrid(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *a,
                                      struct pl_activation *x) {
    PL_TRY(w->ssm_out != NULL ? pl_layer_project_add(m, w->ssm_out, NULL, m->y_now, x)
                              : pl_layer_project_add(m, w->o, w->o_bias, a, x));
    return pl_layer_mixture(m, w, x);
}
