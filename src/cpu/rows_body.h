/* rows_body - norms, activations, rotary embedding and cache append, written once in the words of vec.h.
 * Included by one file per instruction set, which then fills a cpu_table with these functions. */
#ifndef PL_CPU_ROWS_BODY_H
#define PL_CPU_ROWS_BODY_H

#include "cpu/table.h"
#include "cpu/vec.h"
#include "tensor/kv8.h"

static float sum_squares(const float *x, size_t n) {
    vf a = vf_set1(0), b = vf_set1(0), c = vf_set1(0), d = vf_set1(0);
    size_t i = 0;
    for (; i + 4 * VW <= n; i += 4 * VW) {
        vf x0 = vf_load(x + i), x1 = vf_load(x + i + VW), x2 = vf_load(x + i + 2 * VW), x3 = vf_load(x + i + 3 * VW);
        a = vf_fma(x0, x0, a);
        b = vf_fma(x1, x1, b);
        c = vf_fma(x2, x2, c);
        d = vf_fma(x3, x3, d);
    }
    for (; i < n; i += VW) {
        vf v = vf_loadn(x + i, PL_MIN((size_t)VW, n - i));
        a = vf_fma(v, v, a);
    }
    return vf_hsum(vf_add(vf_add(a, b), vf_add(c, d)));
}

/* y = x * inv * (offset + w) */
static void norm_apply(const float *x, const float *w, float inv, float offset, float *y, size_t n) {
    vf s = vf_set1(inv), o = vf_set1(offset);
    size_t i = 0;
    for (; i + VW <= n; i += VW) vf_store(y + i, vf_mul(vf_mul(vf_load(x + i), s), vf_add(vf_load(w + i), o)));
    if (i < n) vf_storen(y + i, vf_mul(vf_mul(vf_loadn(x + i, n - i), s), vf_add(vf_loadn(w + i, n - i), o)), n - i);
}

static void row_add(float *x, const float *add, size_t n) {
    size_t i = 0;
    for (; i + VW <= n; i += VW) vf_store(x + i, vf_add(vf_load(x + i), vf_load(add + i)));
    if (i < n) vf_storen(x + i, vf_add(vf_loadn(x + i, n - i), vf_loadn(add + i, n - i)), n - i);
}

static void row_scale(float *x, float scale, size_t n) {
    vf s = vf_set1(scale);
    size_t i = 0;
    for (; i + VW <= n; i += VW) vf_store(x + i, vf_mul(vf_load(x + i), s));
    if (i < n) vf_storen(x + i, vf_mul(vf_loadn(x + i, n - i), s), n - i);
}

static float norm_factor(const float *x, size_t n, float eps) { return 1.0f / sqrtf(sum_squares(x, n) / (float)n + eps); }

/* y = x - mean(x) */
static void row_center(const float *x, float *y, size_t n) {
    vf a = vf_set1(0);
    size_t i = 0;
    for (; i + VW <= n; i += VW) a = vf_add(a, vf_load(x + i));
    if (i < n) a = vf_add(a, vf_loadn(x + i, n - i));
    vf m = vf_set1(-vf_hsum(a) / (float)n);
    for (i = 0; i + VW <= n; i += VW) vf_store(y + i, vf_add(vf_load(x + i), m));
    if (i < n) vf_storen(y + i, vf_add(vf_loadn(x + i, n - i), m), n - i);
}

/* (x - mean) / deviation * w + bias; centred twice, so that what the first mean lost in rounding does not count. */
static void center_row(const struct pl_cpu_norm *p, const float *x, float *y) {
    row_center(x, y, p->cols);
    row_center(y, y, p->cols);
    norm_apply(y, p->w, norm_factor(y, p->cols, p->eps), 0.0f, y, p->cols);
    if (p->bias != NULL) row_add(y, p->bias, p->cols);
}

static void norm_rows(const struct pl_cpu_norm *p, size_t begin, size_t end) {
    for (size_t r = begin; r < end; r++) {
        float *x = p->x + r * p->x_stride;
        if (p->add != NULL) row_add(x, p->add + r * p->add_stride, p->cols);
        float *y = p->y + r * p->y_stride;
        if (p->center)
            center_row(p, x, y);
        else
            norm_apply(x, p->w, norm_factor(x, p->cols, p->eps), p->offset, y, p->cols);
    }
}

/* 0.5 g (1 + tanh(u)) = g * sigmoid(2u), u = sqrt(2/pi) (g + 0.044715 g^3) */
static inline vf gelu_tanh(vf g) {
    vf u2 = vf_mul(vf_mul(vf_set1(1.5957691216f), g), vf_fma(vf_mul(g, g), vf_set1(0.044715f), vf_set1(1.0f)));
    return vf_mul(g, vf_sigmoid(u2));
}
/* 0.5 g (1 + erf(g / sqrt 2)), without the difference that loses every digit where g is far below zero */
static inline vf gelu_erf(vf g) {
    /* erfc(z) = t exp(p(t) - z^2), t = 1 / (1 + z / 2), z >= 0: a Chebyshev fit with an error of 1.2e-7 of the value */
    static const float fit[] = {0.17087277f,  -0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f,
                                -0.18628806f, 0.09678418f,  0.37409196f, 1.00002368f,  -1.26551223f};
    vf z = vf_mul(vf_abs(g), vf_set1(0.70710678f)), t = vf_div(vf_set1(1.0f), vf_fma(z, vf_set1(0.5f), vf_set1(1.0f)));
    vf p = vf_set1(fit[0]);
    for (size_t i = 1; i < PL_COUNT_OF(fit); i++) p = vf_fma(p, t, vf_set1(fit[i]));
    vf c = vf_mul(t, vf_exp(vf_sub(p, vf_mul(z, z))));
    c = vf_select_lt(g, vf_set1(0.0f), c, vf_sub(vf_set1(2.0f), c));
    return vf_mul(vf_mul(vf_set1(0.5f), g), c);
}
static inline vf relu2(vf g) {
    vf z = vf_max(g, vf_set1(0.0f));
    return vf_mul(z, z);
}
static inline vf same(vf g) { return g; }
static inline vf silu(vf g) { return vf_mul(g, vf_sigmoid(g)); }

static inline vf swiglu_clamped(vf g, vf u) {
    g = vf_min(g, vf_set1(7.0f));
    u = vf_max(vf_min(u, vf_set1(7.0f)), vf_set1(-7.0f));
    return vf_mul(vf_add(u, vf_set1(1.0f)), vf_mul(g, vf_sigmoid(vf_mul(g, vf_set1(1.702f)))));
}

#define GLU_LOOP(f)                                                                              \
    for (; i + VW <= n; i += VW) vf_store(y + i, vf_mul(f(vf_load(gate + i)), vf_load(up + i))); \
    if (i < n) vf_storen(y + i, vf_mul(f(vf_loadn(gate + i, n - i)), vf_loadn(up + i, n - i)), n - i)

#define ACT_LOOP(f)                                                     \
    for (; i + VW <= n; i += VW) vf_store(y + i, f(vf_load(gate + i))); \
    if (i < n) vf_storen(y + i, f(vf_loadn(gate + i, n - i)), n - i)

static void row_act(enum pl_act act, const float *gate, float *y, size_t n) {
    size_t i = 0;
    switch (act) {
    case PL_ACT_SILU: ACT_LOOP(silu); break;
    case PL_ACT_GELU_TANH: ACT_LOOP(gelu_tanh); break;
    case PL_ACT_GELU_ERF: ACT_LOOP(gelu_erf); break;
    case PL_ACT_RELU2: ACT_LOOP(relu2); break;
    case PL_ACT_NONE: ACT_LOOP(same); break;
    case PL_ACT_SIGMOID: ACT_LOOP(vf_sigmoid); break;
    case PL_ACT_SWIGLU_CLAMPED: break; /* pl_cpu_glu asserts that it is gated */
    }
}

static void row_glu(enum pl_act act, const float *gate, const float *up, float *y, size_t n) {
    size_t i = 0;
    if (up == NULL) {
        row_act(act, gate, y, n);
        return;
    }
    switch (act) {
    case PL_ACT_SILU: GLU_LOOP(silu); break;
    case PL_ACT_GELU_TANH: GLU_LOOP(gelu_tanh); break;
    case PL_ACT_GELU_ERF: GLU_LOOP(gelu_erf); break;
    case PL_ACT_RELU2: GLU_LOOP(relu2); break;
    case PL_ACT_NONE: GLU_LOOP(same); break;
    case PL_ACT_SIGMOID: GLU_LOOP(vf_sigmoid); break;
    case PL_ACT_SWIGLU_CLAMPED:
        for (; i + VW <= n; i += VW) vf_store(y + i, swiglu_clamped(vf_load(gate + i), vf_load(up + i)));
        if (i < n) vf_storen(y + i, swiglu_clamped(vf_loadn(gate + i, n - i), vf_loadn(up + i, n - i)), n - i);
        break;
    }
}
#undef GLU_LOOP
#undef ACT_LOOP

static void row_softcap(float *x, size_t n, float cap) {
    vf c = vf_set1(cap), inv = vf_set1(1.0f / cap);
    size_t i = 0;
    for (; i + VW <= n; i += VW) vf_store(x + i, vf_mul(c, vf_tanh(vf_mul(vf_load(x + i), inv))));
    if (i < n) vf_storen(x + i, vf_mul(c, vf_tanh(vf_mul(vf_loadn(x + i, n - i), inv))), n - i);
}

/* cs: [dim/2, 2] of this position */
static void rotate(float *x, const float *cs, size_t dim, bool halves) {
    size_t half = dim / 2, step = halves ? 1 : 2, far = halves ? half : 1;
    for (size_t i = 0; i < half; i++) {
        float c = cs[2 * i], s = cs[2 * i + 1], a = x[i * step], b = x[i * step + far];
        x[i * step] = a * c - b * s;
        x[i * step + far] = a * s + b * c;
    }
}

static void kv_store(void *dst, enum pl_dtype dtype, size_t at, const float *x, size_t n) {
    if (pl_is_kv8(dtype)) {
        pl_kv8_put(dtype, x, n, (uint8_t *)dst + at / n * (n + sizeof(float)));
    } else if (dtype == PL_F32) {
        memcpy((float *)dst + at, x, n * sizeof *x);
    } else if (dtype == PL_F16) {
        uint16_t *d = (uint16_t *)dst + at;
        size_t i = 0;
        for (; i + VW <= n; i += VW) vf_store_f16(d + i, vf_load(x + i));
        for (; i < n; i++) d[i] = pl_f32_to_f16(x[i]);
    } else {
        uint16_t *d = (uint16_t *)dst + at;
        for (size_t i = 0; i < n; i++) d[i] = pl_f32_to_bf16(x[i]);
    }
}

static void head_prepare(const struct pl_cpu_rope_append *a, float *x, const float *norm, size_t pos) {
    size_t d = a->kv->head_dim;
    if (norm != NULL) norm_apply(x, norm, norm_factor(x, d, a->norm_eps), a->norm_offset, x, d);
    if (a->cos_sin != NULL) rotate(x, a->cos_sin + pos * a->rope_dim, a->rope_dim, a->halves);
}

static void rope_append_row(const struct pl_cpu_rope_append *a, const struct pl_cpu_seq *s, size_t row, float *tmp) {
    const struct pl_cpu_kv *kv = a->kv;
    size_t d = kv->head_dim, pos = s->past + row, r = s->first_row + row;
    size_t slot = ((size_t)s->pages[pos / kv->page_tokens] * kv->page_tokens + pos % kv->page_tokens) * kv->kv_heads;
    for (size_t h = 0; h < a->heads; h++) head_prepare(a, a->q + r * a->q_stride + h * d, a->q_norm, pos);
    for (size_t g = 0; g < kv->kv_heads; g++) {
        memcpy(tmp, a->k + r * a->k_stride + g * d, d * sizeof *tmp);
        head_prepare(a, tmp, a->k_norm, pos);
        kv_store(kv->k, kv->dtype, (slot + g) * d, tmp, d);
        const float *v = a->v + r * a->v_stride + g * d;
        if (kv->dtype == PL_K8V4)
            pl_kv4_put(v, d, (uint8_t *)kv->v + (slot + g) * pl_kv_value_bytes(PL_K8V4, d));
        else
            kv_store(kv->v, kv->dtype, (slot + g) * d, v, d);
    }
}

#endif
