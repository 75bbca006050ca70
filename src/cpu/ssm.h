/* ssm - state-space layers on the host: causal convolution, the recurrence of Mamba and Mamba-2, gated norms.
 *
 * A sequence's state of one layer is [kernel-1, channels] inputs of the convolution, oldest first, then [H, P, N] of the
 * recurrence, all f32. Every call reads and advances it by the sequence's rows. One thread computes an element of the
 * state over all rows of a step, in order: so neither chunks, nor neighbours, nor threads change a bit. */
#ifndef PL_CPU_SSM_H
#define PL_CPU_SSM_H

#include "cpu/cpu.h"

struct pl_cpu_state_seq {
    size_t first_row, rows;
    bool fresh; /* its first rows: the state counts as zeros, whatever it holds */
    float *conv, *ssm;
};

/* y[t, c] = act(bias[c] + sum over k of w[k, c] x[t - K + 1 + k, c]); x before the step's first row comes from the state. */
struct pl_cpu_conv {
    size_t seq_count, channels, kernel; /* kernel K: 2 to PL_CPU_CONV_MAX */
    const struct pl_cpu_state_seq *seqs;
    const float *w, *bias; /* [K, channels]; [channels] or NULL */
    bool silu;
    const float *x;
    size_t x_stride;
    float *y; /* not x */
    size_t y_stride;
};
enum { PL_CPU_CONV_MAX = 8 };
void pl_cpu_causal_conv(struct pl_cpu *c, const struct pl_cpu_conv *p);

/* For head h, its group g and row t, with d = clip(softplus(dt[t, h] + dt_bias[h])):
 *   S[h, p, n] = exp(d a[h or h, n]) S[h, p, n] + d x[t, h, p] B[t, g, n]
 *   y[t, h, p] = sum over n of C[t, g, n] S[h, p, n] + skip[h] x[t, h, p], times silu(z[t, h, p]) where there is z. */
struct pl_cpu_ssm {
    size_t seq_count, heads, head_dim, groups, state; /* H, P, G, N */
    const struct pl_cpu_state_seq *seqs;
    bool full;            /* a is [H, N], else [H] */
    const float *a;       /* negative */
    const float *dt_bias; /* [H] or NULL */
    const float *skip;    /* [H] or NULL */
    float dt_min, dt_max;
    const float *x, *b, *c, *dt, *z; /* z may be NULL */
    size_t x_stride, b_stride, c_stride, dt_stride, z_stride;
    float *y; /* may be z */
    size_t y_stride;
};
void pl_cpu_ssm(struct pl_cpu *c, const struct pl_cpu_ssm *p);

/* The gated delta rule: for head h, its key head g and row t, with q and k of length 1 (1e-6 beside the squares), q over
 * sqrt(N), e = exp(a[h] softplus(dt[t, h] + dt_bias[h])) and r = sigmoid(beta[t, h]):
 *   d[p] = r (v[t, h, p] - e sum over n of k[t, g, n] S[h, n, p]),
 *   S[h, n, p] = e S[h, n, p] + k[t, g, n] d[p],
 *   y[t, h, p] = sum over n of q[t, g, n] S[h, n, p] */
struct pl_cpu_delta {
    size_t seq_count, heads, head_dim, groups, state; /* H, P, G, N */
    const struct pl_cpu_state_seq *seqs;
    bool in_turn;             /* g is h mod G, else h / (H / G) */
    const float *a, *dt_bias; /* [H], the first negative */
    const float *q, *k, *v, *dt, *beta;
    size_t x_stride, dt_stride, beta_stride; /* x: of q, k and v */
    float *y;                                /* none of the inputs */
    size_t y_stride;
};
enum { PL_CPU_DELTA_MAX = 256 }; /* N */
void pl_cpu_delta(struct pl_cpu *c, const struct pl_cpu_delta *p);

/* y = rms-normed x silu(z), by groups of cols / groups; norm_first: normed x, times silu(z). */
struct pl_cpu_gated_norm {
    size_t rows, cols, groups;
    const float *x, *z, *w; /* z may be NULL: no gate */
    size_t x_stride, z_stride;
    bool norm_first;
    float eps;
    float *y; /* may be x */
    size_t y_stride;
};
void pl_cpu_gated_norm(struct pl_cpu *c, const struct pl_cpu_gated_norm *p);

#endif
