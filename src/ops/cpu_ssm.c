/* The CPU backend's state-space operations: handles become what src/cpu/ssm.h takes. */
#include "ops/cpu_ops.h"

_Static_assert((int)PL_OPS_CONV_MAX == (int)PL_CPU_CONV_MAX, "one limit");

enum pl_status cpu_ops_causal_conv(struct pl_ops *o, const struct pl_conv *p, const struct pl_activation *x,
                                   struct pl_activation *y) {
    struct pl_cpu_conv a = {.seq_count = o->batch->seq_count,
                            .seqs = cpu_ops_states(o, p->layer),
                            .channels = x->cols,
                            .kernel = p->kernel,
                            .w = cpu_ops_vector(p->w),
                            .bias = cpu_ops_vector(p->bias),
                            .silu = p->silu};
    a.x = cpu_ops_rows(x, &a.x_stride);
    a.y = cpu_ops_rows(y, &a.y_stride);
    pl_cpu_causal_conv(cpu_ops_kernels(o), &a);
    cpu_ops_count(o, PL_OP_causal_conv, 2 * a.seq_count * (p->kernel - 1) * x->cols * sizeof(float));
    return PL_OK;
}

static enum pl_status run(struct pl_ops *o, enum pl_op op, const struct pl_ssm *p, struct pl_activation *y) {
    struct pl_cpu_ssm a = {.seq_count = o->batch->seq_count,
                           .seqs = cpu_ops_states(o, p->layer),
                           .heads = p->heads,
                           .head_dim = p->head_dim,
                           .groups = p->groups,
                           .state = p->state,
                           .full = p->full,
                           .a = cpu_ops_vector(p->a),
                           .dt_bias = cpu_ops_vector(p->dt_bias),
                           .skip = cpu_ops_vector(p->skip),
                           .dt_min = p->dt_min,
                           .dt_max = p->dt_max};
    a.x = cpu_ops_rows(p->x, &a.x_stride) + p->x_first;
    a.b = cpu_ops_rows(p->b, &a.b_stride) + p->b_first;
    a.c = cpu_ops_rows(p->c, &a.c_stride) + p->c_first;
    a.dt = cpu_ops_rows(p->dt, &a.dt_stride);
    a.z = cpu_ops_rows(p->z, &a.z_stride);
    a.y = cpu_ops_rows(y, &a.y_stride);
    pl_cpu_ssm(cpu_ops_kernels(o), &a);
    cpu_ops_count(o, op, 2 * a.seq_count * a.heads * a.head_dim * a.state * sizeof(float));
    return PL_OK;
}
enum pl_status cpu_ops_ssm_update(struct pl_ops *o, const struct pl_ssm *p, struct pl_activation *y) {
    return run(o, PL_OP_ssm_update, p, y);
}
enum pl_status cpu_ops_ssm_scan(struct pl_ops *o, const struct pl_ssm *p, struct pl_activation *y) {
    return run(o, PL_OP_ssm_scan, p, y);
}

enum pl_status cpu_ops_delta(struct pl_ops *o, const struct pl_delta *p, struct pl_activation *y) {
    struct pl_cpu_delta a = {.seq_count = o->batch->seq_count,
                             .seqs = cpu_ops_states(o, p->layer),
                             .heads = p->heads,
                             .head_dim = p->head_dim,
                             .groups = p->groups,
                             .state = p->state,
                             .in_turn = p->in_turn,
                             .a = cpu_ops_vector(p->a),
                             .dt_bias = cpu_ops_vector(p->dt_bias)};
    const float *x = cpu_ops_rows(p->x, &a.x_stride);
    a.q = x + p->q_first;
    a.k = x + p->k_first;
    a.v = x + p->v_first;
    a.dt = cpu_ops_rows(p->dt, &a.dt_stride);
    a.beta = cpu_ops_rows(p->beta, &a.beta_stride);
    a.y = cpu_ops_rows(y, &a.y_stride);
    pl_cpu_delta(cpu_ops_kernels(o), &a);
    cpu_ops_count(o, PL_OP_delta, 2 * a.seq_count * a.heads * a.head_dim * a.state * sizeof(float));
    return PL_OK;
}

enum pl_status cpu_ops_gated_norm(struct pl_ops *o, const struct pl_gated_norm *p, const struct pl_activation *x,
                                  const struct pl_activation *z, struct pl_activation *y) {
    struct pl_cpu_gated_norm a = {.rows = x->rows,
                                  .cols = x->cols,
                                  .groups = p->groups,
                                  .w = cpu_ops_vector(p->w),
                                  .norm_first = p->norm_first,
                                  .eps = p->eps};
    a.x = cpu_ops_rows(x, &a.x_stride);
    a.z = cpu_ops_rows(z, &a.z_stride);
    a.y = cpu_ops_rows(y, &a.y_stride);
    pl_cpu_gated_norm(cpu_ops_kernels(o), &a);
    cpu_ops_count(o, PL_OP_gated_norm, 0);
    return PL_OK;
}
