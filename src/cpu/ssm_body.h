/* ssm_body - the state-space kernels of ssm.h over ranges of channels or heads, written once in the words of vec.h. */
#ifndef PL_CPU_SSM_BODY_H
#define PL_CPU_SSM_BODY_H

#include "cpu/rows_body.h"
#include "cpu/ssm.h"

/* Row t of the convolution's input at channel c: of this step, or one of the K-1 before it. */
static inline const float *conv_row(const struct pl_cpu_conv *p, const struct pl_cpu_state_seq *s, size_t t, size_t k) {
    size_t past = p->kernel - 1;
    return t + k >= past ? p->x + (s->first_row + t + k - past) * p->x_stride : s->conv + (t + k) * p->channels;
}

static void conv_channels(const struct pl_cpu_conv *p, const struct pl_cpu_state_seq *s, size_t begin, size_t end) {
    size_t past = p->kernel - 1;
    if (s->fresh)
        for (size_t k = 0; k < past; k++) memset(s->conv + k * p->channels + begin, 0, (end - begin) * sizeof(float));
    for (size_t t = 0; t < s->rows; t++) {
        float *y = p->y + (s->first_row + t) * p->y_stride;
        for (size_t c = begin; c < end; c += VW) {
            size_t n = PL_MIN((size_t)VW, end - c);
            vf v = p->bias != NULL ? vf_loadn(p->bias + c, n) : vf_set1(0.0f);
            for (size_t k = 0; k < p->kernel; k++)
                v = vf_fma(vf_loadn(p->w + k * p->channels + c, n), vf_loadn(conv_row(p, s, t, k) + c, n), v);
            vf_storen(y + c, p->silu ? silu(v) : v, n);
        }
    }
    for (size_t k = 0; k < past; k++) /* upward: a row is read before it is overwritten */
        memmove(s->conv + k * p->channels + begin, conv_row(p, s, s->rows, k) + begin, (end - begin) * sizeof(float));
}

/* log(1 + e^x) = max(x, 0) + 2 atanh(u / (2 + u)), u = e^-|x| */
static inline vf softplus(vf x) {
    vf u = vf_exp(vf_sub(vf_set1(0.0f), vf_abs(x))), s = vf_div(u, vf_add(u, vf_set1(2.0f))), q = vf_mul(s, s);
    vf r = vf_set1(1.0f / 15);
    r = vf_fma(r, q, vf_set1(1.0f / 13));
    r = vf_fma(r, q, vf_set1(1.0f / 11));
    r = vf_fma(r, q, vf_set1(1.0f / 9));
    r = vf_fma(r, q, vf_set1(1.0f / 7));
    r = vf_fma(r, q, vf_set1(1.0f / 5));
    r = vf_fma(r, q, vf_set1(1.0f / 3));
    r = vf_fma(r, q, vf_set1(1.0f));
    return vf_fma(vf_add(s, s), r, vf_max(x, vf_set1(0.0f)));
}

/* out[h - begin] = clip(softplus(dt + bias)) */
static void ssm_steps(const struct pl_cpu_ssm *p, const float *dt, size_t begin, size_t end, float *out) {
    for (size_t h = begin; h < end; h += VW) {
        size_t n = PL_MIN((size_t)VW, end - h);
        vf v = vf_loadn(dt + h, n);
        if (p->dt_bias != NULL) v = vf_add(v, vf_loadn(p->dt_bias + h, n));
        vf_storen(out + (h - begin), vf_min(vf_max(softplus(v), vf_set1(p->dt_min)), vf_set1(p->dt_max)), n);
    }
}

/* One vector of N of up to four rows of the state: S = decay S + dx B; acc += S C */
#define SSM_STEP(load, store)                                                                                          \
    do {                                                                                                               \
        vf bv = load(b + i), cv = load(c + i), keep = full ? vf_exp(vf_mul(vf_set1(d), load(a + i))) : vf_set1(decay); \
        for (size_t k = 0; k < rows; k++) {                                                                            \
            float *at = s + k * n + i;                                                                                 \
            vf v = vf_fma(load(at), keep, vf_mul(vf_set1(d * x[k]), bv));                                              \
            store(at, v);                                                                                              \
            acc[k] = vf_fma(v, cv, acc[k]);                                                                            \
        }                                                                                                              \
    } while (0)
#define SSM_LOAD_REST(p)     vf_loadn(p, n - i)
#define SSM_STORE_REST(p, v) vf_storen(p, v, n - i)

/* y[k] = C S for `rows` (1 to 4) rows of one head; a: its row [N] where full, else [1]; d: the step. */
static inline void ssm_rows(const size_t rows, const bool full, const float *a, float d, const float *x, const float *b,
                            const float *c, size_t n, float *s, float *y) {
    vf acc[4] = {vf_set1(0.0f), vf_set1(0.0f), vf_set1(0.0f), vf_set1(0.0f)};
    const float decay = full ? 0.0f : vf_first(vf_exp(vf_set1(d * a[0])));
    size_t i = 0;
    for (; i + VW <= n; i += VW) SSM_STEP(vf_load, vf_store);
    if (i < n) SSM_STEP(SSM_LOAD_REST, SSM_STORE_REST);
    float sums[4];
    vf_hsum4(acc[0], acc[1], acc[2], acc[3], sums);
    for (size_t k = 0; k < rows; k++) y[k] = sums[k];
}

static void ssm_head(const struct pl_cpu_ssm *p, size_t h, float d, const float *b, const float *c, const float *x, float *s,
                     float *y) {
    size_t n = p->state;
    const float *a = p->a + (p->full ? h * n : h);
    float skip = p->skip != NULL ? p->skip[h] : 0.0f;
    size_t q = 0;
    for (; q + 4 <= p->head_dim; q += 4) {
        if (p->full)
            ssm_rows(4, true, a, d, x + q, b, c, n, s + q * n, y + q);
        else
            ssm_rows(4, false, a, d, x + q, b, c, n, s + q * n, y + q);
    }
    for (; q < p->head_dim; q++) {
        if (p->full)
            ssm_rows(1, true, a, d, x + q, b, c, n, s + q * n, y + q);
        else
            ssm_rows(1, false, a, d, x + q, b, c, n, s + q * n, y + q);
    }
    for (q = 0; q < p->head_dim; q++) y[q] = vf_first(vf_fma(vf_set1(skip), vf_set1(x[q]), vf_set1(y[q])));
}

/* Heads [begin, end), at most SSM_BLOCK values of y, or one head of any size. */
static void ssm_heads(const struct pl_cpu_ssm *p, const struct pl_cpu_state_seq *s, size_t begin, size_t end) {
    size_t each = p->head_dim * p->state, first = begin * p->head_dim, n = (end - begin) * p->head_dim,
           share = p->heads / p->groups;
    float step[SSM_BLOCK], made[SSM_HEAD_MAX];
    if (s->fresh) memset(s->ssm + begin * each, 0, (end - begin) * each * sizeof(float));
    for (size_t t = 0; t < s->rows; t++) {
        size_t r = s->first_row + t;
        const float *x = p->x + r * p->x_stride;
        ssm_steps(p, p->dt + r * p->dt_stride, begin, end, step);
        for (size_t h = begin; h < end; h++) {
            size_t g = h / share * p->state;
            ssm_head(p, h, step[h - begin], p->b + r * p->b_stride + g, p->c + r * p->c_stride + g, x + h * p->head_dim,
                     s->ssm + h * each, made + (h - begin) * p->head_dim);
        }
        float *y = p->y + r * p->y_stride + first;
        if (p->z != NULL)
            row_glu(PL_ACT_SILU, p->z + r * p->z_stride + first, made, y, n);
        else
            memcpy(y, made, n * sizeof *y);
    }
}

enum { DELTA_COLS = 4 * VW }; /* columns of a head's state that go together */

/* One row over columns [0, count) of a head's state s [n, dim]: y of q and k, whose lengths are not 1: scaled by what is
 * given. */
static inline void delta_cols(size_t count, const float *q, const float *k, const float *v, size_t n, size_t dim, float keep,
                              float rate, float q_scale, float k_scale, float *s, float *y) {
    vf held[4] = {vf_set1(0.0f), vf_set1(0.0f), vf_set1(0.0f), vf_set1(0.0f)}, put[4], sum[4], e = vf_set1(keep);
    size_t parts = (count + VW - 1) / VW, last = count - (parts - 1) * VW;
    if (parts == 4 && last == VW) {
        for (size_t i = 0; i < n; i++)
            for (size_t c = 0; c < 4; c++) held[c] = vf_fma(vf_set1(k[i]), vf_load(s + i * dim + c * VW), held[c]);
        for (size_t c = 0; c < 4; c++) {
            vf d = vf_sub(vf_load(v + c * VW), vf_mul(held[c], vf_set1(keep * k_scale)));
            put[c] = vf_mul(d, vf_set1(rate * k_scale)), sum[c] = vf_set1(0.0f);
        }
        for (size_t i = 0; i < n; i++)
            for (size_t c = 0; c < 4; c++) {
                vf w = vf_fma(vf_load(s + i * dim + c * VW), e, vf_mul(vf_set1(k[i]), put[c]));
                vf_store(s + i * dim + c * VW, w);
                sum[c] = vf_fma(vf_set1(q[i]), w, sum[c]);
            }
        for (size_t c = 0; c < 4; c++) vf_store(y + c * VW, vf_mul(sum[c], vf_set1(q_scale)));
        return;
    }
    for (size_t c = 0; c < parts; c++) { /* the same sums, column by column */
        size_t m = c + 1 < parts ? (size_t)VW : last;
        for (size_t i = 0; i < n; i++) held[c] = vf_fma(vf_set1(k[i]), vf_loadn(s + i * dim + c * VW, m), held[c]);
        vf d = vf_sub(vf_loadn(v + c * VW, m), vf_mul(held[c], vf_set1(keep * k_scale)));
        put[c] = vf_mul(d, vf_set1(rate * k_scale)), sum[c] = vf_set1(0.0f);
        for (size_t i = 0; i < n; i++) {
            vf w = vf_fma(vf_loadn(s + i * dim + c * VW, m), e, vf_mul(vf_set1(k[i]), put[c]));
            vf_storen(s + i * dim + c * VW, w, m);
            sum[c] = vf_fma(vf_set1(q[i]), w, sum[c]);
        }
        vf_storen(y + c * VW, vf_mul(sum[c], vf_set1(q_scale)), m);
    }
}

static void delta_head(const struct pl_cpu_delta *p, const struct pl_cpu_state_seq *s, size_t h) {
    size_t n = p->state, dim = p->head_dim, g = p->in_turn ? h % p->groups : h / (p->heads / p->groups);
    float *own = s->ssm + h * n * dim;
    if (s->fresh) memset(own, 0, n * dim * sizeof *own);
    for (size_t t = 0; t < s->rows; t++) {
        size_t r = s->first_row + t;
        const float *q = p->q + r * p->x_stride + g * n, *k = p->k + r * p->x_stride + g * n,
                    *v = p->v + r * p->x_stride + h * dim;
        float step = vf_first(softplus(vf_set1(p->dt[r * p->dt_stride + h] + p->dt_bias[h])));
        float keep = vf_first(vf_exp(vf_set1(p->a[h] * step))),
              rate = vf_first(vf_sigmoid(vf_set1(p->beta[r * p->beta_stride + h])));
        float q_scale = 1.0f / sqrtf((sum_squares(q, n) + 1e-6f) * (float)n),
              k_scale = 1.0f / sqrtf(sum_squares(k, n) + 1e-6f);
        for (size_t j = 0; j < dim; j += DELTA_COLS)
            delta_cols(PL_MIN((size_t)DELTA_COLS, dim - j), q, k, v + j, n, dim, keep, rate, q_scale, k_scale, own + j,
                       p->y + r * p->y_stride + h * dim + j);
    }
}

static void gated_norm_row(const struct pl_cpu_gated_norm *p, size_t row) {
    const float *x = p->x + row * p->x_stride, *z = p->z != NULL ? p->z + row * p->z_stride : NULL;
    float *y = p->y + row * p->y_stride;
    size_t n = p->cols / p->groups;
    if (z != NULL && !p->norm_first) {
        row_glu(PL_ACT_SILU, z, x, y, p->cols);
        x = y;
    }
    for (size_t g = 0; g < p->groups; g++)
        norm_apply(x + g * n, p->w + g * n, norm_factor(x + g * n, n, p->eps), 0.0f, y + g * n, n);
    if (z != NULL && p->norm_first) row_glu(PL_ACT_SILU, z, y, y, p->cols);
}

#endif
