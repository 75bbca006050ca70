/* ref - every operation in plain C, accumulating in double: the oracle the vector kernels and devices are held to.
 *
 * Slow on purpose and short on purpose: one loop nest per definition, no blocking, no tables, no code shared with any
 * implementation under test (weights come through tensor/quant.h, the definition of the formats). Inputs and outputs
 * are f32 arrays, intermediate values double, so an output is the exact result rounded once. */
#ifndef PL_REF_REF_H
#define PL_REF_REF_H

#include "tensor/tensor.h"

/* y [rows, out] = x [rows, in] w^T [+ bias] [+ y]; row [in] is scratch. When magnitude is not NULL, magnitude[i] is
 * the sum of |x w| behind y[i]: what rounding errors are relative to. */
enum pl_status pl_ref_matmul(const struct pl_tensor *w, const float *bias, const float *x, size_t x_stride, size_t rows,
                             bool accumulate, float *y, size_t y_stride, double *magnitude, float *row) PL_MUST_CHECK;
void pl_ref_rmsnorm(const float *x, const float *w, size_t cols, double eps, double offset, float *y);
/* bias may be NULL */
void pl_ref_layernorm(const float *x, const float *w, const float *bias, size_t cols, double eps, float *y);

enum pl_ref_act {
    PL_REF_SILU,
    PL_REF_GELU_TANH,
    PL_REF_GELU_ERF,
    PL_REF_RELU2,
    PL_REF_NONE,
    PL_REF_SIGMOID,
    PL_REF_SWIGLU_CLAMPED
};
void pl_ref_glu(enum pl_ref_act act, const float *gate, const float *up, float *y, size_t n);
/* Which experts one row takes, best first, and their weights: struct pl_moe in ops/ops.h is the definition. */
struct pl_ref_route {
    size_t experts, used, groups, groups_used, group_top;
    bool sigmoid, renormalise;
    double scale;
    const float *choice_bias; /* [experts] or NULL */
};
void pl_ref_route(const struct pl_ref_route *r, const float *logits, size_t *ids, double *weights,
                  double *scratch /* [2 experts] */);
void pl_ref_softcap(float *x, size_t n, double cap);
/* x [dim] of one head at one position; cos_sin [dim/2, 2]; pairs (i, i+dim/2) when halves, else (2i, 2i+1). */
void pl_ref_rope(float *x, const float *cos_sin, size_t dim, bool halves);
/* Index of the largest element, the first of equals. */
size_t pl_ref_argmax(const float *x, size_t n);

/* One sequence of attention over contiguous keys and values [tokens, G, D]; q and out [rows, H*D] (strides in
 * floats). Row i stands at position past + i and sees (pos - window, pos], all of [0, pos] when window is 0. */
struct pl_ref_attention {
    size_t rows, past, heads, kv_heads, head_dim, window;
    double scale, softcap;
    const float *q, *k, *v;
    size_t q_stride;
    float *out;
    size_t out_stride;
    const float *sinks; /* [heads] or NULL: one more score in each softmax, that weighs nothing */
};
void pl_ref_attention(const struct pl_ref_attention *a, double *scores /* [past + rows] */);

/* The positive half of the Lloyd-Max codebook of 16 levels for the normal distribution, by Lloyd's iteration. */
void pl_ref_lloyd_max(double levels[8]);
/* A vector of values as a 4-bit cache gives it back. Its blocks of the largest power of two that divides n are turned
 * (signs, then the orthonormal Walsh-Hadamard matrix), over their root mean square rounded to the nearest of levels and
 * their negatives, scaled for the least squared error, turned back. `shift`: so many levels further up, up to the last;
 * `flip`: this element comes back with the other sign (n: none). Both are what a wrong kernel would do. work [3 n] is
 * scratch. */
void pl_ref_kv4(const float *x, size_t n, const double levels[8], size_t shift, size_t flip, float *y, double *work);

/* State-space layers, one sequence. y[t, c] = act(bias[c] + sum of w[k, c] x[t - K + 1 + k, c]); state [K-1, channels] holds
 * the inputs before row 0, oldest first, and then those before row `rows`. */
void pl_ref_causal_conv(const float *w, const float *bias, size_t channels, size_t kernel, bool silu, const float *x,
                        size_t rows, float *state, float *y);
/* S = exp(d a) S + d x B, y = C S + skip x, times silu(z) where z is not NULL, with d = clip(softplus(dt + dt_bias)).
 * Shapes: x, y, z [rows, H, P], b, c [rows, G, N], dt [rows, H], a [H] or (full) [H, N], state [H, P, N]; dt_bias, skip [H]
 * or NULL. */
struct pl_ref_ssm {
    size_t rows, heads, head_dim, groups, state;
    bool full;
    const float *a, *dt_bias, *skip, *x, *b, *c, *dt, *z;
    double dt_min, dt_max;
};
void pl_ref_ssm(const struct pl_ref_ssm *p, double *state, float *y);
/* The gated delta rule (Yang et al. 2024), one sequence. With q, k of the key head of h as vectors of length 1, the former
 * over sqrt(N), e = exp(a[h] softplus(dt + dt_bias[h])), r = 1 / (1 + exp(-beta)): S = e S, S += k r (v - k S), y = q S.
 * Shapes: q, k [rows, G, N], v, y [rows, H, P], dt, beta [rows, H], a, dt_bias [H], state [H, N, P]. Key head of h: h / (H /
 * G), or h mod G. */
struct pl_ref_delta {
    size_t rows, heads, head_dim, groups, state;
    bool in_turn;
    const float *a, *dt_bias, *q, *k, *v, *dt, *beta;
};
void pl_ref_delta(const struct pl_ref_delta *p, double *state, float *y);
/* One row: RMS norms of groups of cols / groups, with a gate silu(z) before them or (norm_first) after. */
void pl_ref_gated_norm(const float *x, const float *z, const float *w, size_t cols, size_t groups, double eps,
                       bool norm_first, float *y);

/* Activations in 8 bits per block of 32, as the vector tables define them: scale = max|x| / 127, q = x / scale
 * rounded to nearest even (0 where max|x| < 1e-30). cols is filled up with zeros to a multiple of 32. */
void pl_ref_quantize(const float *x, size_t cols, int8_t *q, float *scale);

/* BitNet's product: x [rows, in] in 8 bits by the scale 127 / max(max|x|, 1e-5) of the row, rounded to nearest even, times
 * the matrix's codes (-1, 0, 1), times both scales. */
enum pl_status pl_ref_ternary(const struct pl_tensor *w, const float *x, size_t x_stride, size_t rows, float *y,
                              size_t y_stride, float *row) PL_MUST_CHECK;

#endif
