/* attn_half - keys and values of 16 bits (f16, bf16) read without a widened copy, on AVX2: keys turned while they are
 * narrow, values of few queries widened on their way into the sums. The operations on an element and their order are those
 * of attn_body.h, which includes this: the results are the same bits. */
#ifndef PL_CPU_ATTN_HALF_H
#define PL_CPU_ATTN_HALF_H

#include "cpu/vec.h"

#if defined(__AVX2__) && !defined(__AVX512F__)
/* Queries that a value is widened for at once, and vectors of it at a time: as many as registers hold. */
enum { HALF_QUERIES = 3, HALF_VECTORS = 4 };

static bool by_halves(const struct pl_cpu_kv *kv, size_t d) {
    return (kv->dtype == PL_F16 || kv->dtype == PL_BF16) && d % VW == 0;
}

/* Where the tokens of the group at t0 lie, those outside [begin, end) as zeros; the next group's are asked for, for they lie
 * apart and no hardware foresees them. */
static void half_rows(const struct cpu_attn_tile *t, bool values, size_t t0, size_t begin, size_t end,
                      const uint16_t **rows) {
    static const uint16_t zeros[ATTN_HEAD_MAX];
    const struct pl_cpu_kv *kv = t->a->kv;
    const size_t page = kv->page_tokens, step = kv->kv_heads * kv->head_dim;
    const uint16_t *data = (const uint16_t *)(values ? kv->v : kv->k) + t->kv_head * kv->head_dim;
    for (size_t i = 0; i < ATTN_GROUP; i++) rows[i] = zeros;
    size_t i = begin > t0 ? begin - t0 : 0, at = (t0 + i) / page, in = (t0 + i) % page;
    for (const size_t last = PL_MIN(end - t0, (size_t)2 * ATTN_GROUP); i < last; i++) {
        const uint16_t *p = data + ((size_t)t->seq->pages[at] * page + in) * step;
        if (i < ATTN_GROUP) rows[i] = p;
        for (size_t b = 0; b < kv->head_dim && i >= ATTN_GROUP; b += 32) __builtin_prefetch(p + b);
        if (++in == page) in = 0, at++;
    }
}

static inline vf half_widened(const enum pl_dtype dtype, __m128i v) {
    return dtype == PL_F16 ? _mm256_cvtph_ps(v) : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}

/* Eight elements of tokens r and r + 8. */
static inline __m256i half_pair(const uint16_t *const *rows, size_t r, size_t i) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(rows[r] + i))),
                                   _mm_loadu_si128((const __m128i *)(const void *)(rows[r + 8] + i)), 1);
}

/* rows [16][d] -> turned [d_pad][16] as f32. */
static inline __attribute__((always_inline)) void half_turn(const enum pl_dtype dtype, const uint16_t *const *rows, size_t d,
                                                            size_t d_pad, float *turned) {
    for (size_t i = 0; i < d; i += 8, turned += 8 * ATTN_GROUP) {
        __m256i v[8], u[8];
#pragma GCC unroll 8
        for (size_t r = 0; r < 8; r++) v[r] = half_pair(rows, r, i);
#pragma GCC unroll 4
        for (size_t r = 0; r < 8; r += 2) {
            u[r] = _mm256_unpacklo_epi16(v[r], v[r + 1]);
            u[r + 1] = _mm256_unpackhi_epi16(v[r], v[r + 1]);
        }
#pragma GCC unroll 2
        for (size_t r = 0; r < 8; r += 4)
#pragma GCC unroll 2
            for (size_t h = 0; h < 2; h++) {
                v[r + 2 * h] = _mm256_unpacklo_epi32(u[r + h], u[r + h + 2]);
                v[r + 2 * h + 1] = _mm256_unpackhi_epi32(u[r + h], u[r + h + 2]);
            }
#pragma GCC unroll 4
        for (size_t e = 0; e < 4; e++) {
            const __m256i a = _mm256_unpacklo_epi64(v[e], v[e + 4]), b = _mm256_unpackhi_epi64(v[e], v[e + 4]);
            float *to = turned + 2 * e * ATTN_GROUP;
            vf_store(to, half_widened(dtype, _mm256_castsi256_si128(a)));
            vf_store(to + 8, half_widened(dtype, _mm256_extracti128_si256(a, 1)));
            vf_store(to + 16, half_widened(dtype, _mm256_castsi256_si128(b)));
            vf_store(to + 24, half_widened(dtype, _mm256_extracti128_si256(b, 1)));
        }
    }
    memset(turned, 0, (d_pad - d) * ATTN_GROUP * sizeof *turned);
}

/* o += sum over tokens [b, e) of the group of p[t] * v[t], for n queries (p ATTN_CHUNK apart, o o_stride apart) and
 * `vectors` vectors of v from element i on. */
static inline __attribute__((always_inline)) void half_block(const enum pl_dtype dtype, const int n, const int vectors,
                                                             const float *p, const uint16_t *const *rows, size_t i, size_t b,
                                                             size_t e, float *o, size_t o_stride) {
    vf acc[HALF_QUERIES * HALF_VECTORS];
#pragma GCC unroll 4
    for (int m = 0; m < n; m++)
#pragma GCC unroll 4
        for (int k = 0; k < vectors; k++) acc[m * vectors + k] = vf_load(o + (size_t)m * o_stride + i + (size_t)k * VW);
    for (size_t t = b; t < e; t++) {
        vf weight[HALF_QUERIES];
#pragma GCC unroll 4
        for (int m = 0; m < n; m++) weight[m] = vf_set1(p[(size_t)m * ATTN_CHUNK + t]);
#pragma GCC unroll 4
        for (int k = 0; k < vectors; k++) {
            const uint16_t *from = rows[t] + i + (size_t)k * VW;
            const vf v = half_widened(dtype, _mm_loadu_si128((const __m128i *)(const void *)from));
#pragma GCC unroll 4
            for (int m = 0; m < n; m++) acc[m * vectors + k] = vf_fma(weight[m], v, acc[m * vectors + k]);
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < n; m++)
#pragma GCC unroll 4
        for (int k = 0; k < vectors; k++) vf_store(o + (size_t)m * o_stride + i + (size_t)k * VW, acc[m * vectors + k]);
}
static inline __attribute__((always_inline)) void half_weigh_of(const enum pl_dtype dtype, const int n, const float *p,
                                                                const uint16_t *const *rows, size_t d, size_t b, size_t e,
                                                                float *o, size_t o_stride) {
    size_t i = 0;
    for (; i + (size_t)HALF_VECTORS * VW <= d; i += (size_t)HALF_VECTORS * VW)
        half_block(dtype, n, HALF_VECTORS, p, rows, i, b, e, o, o_stride);
    for (; i < d; i += VW) half_block(dtype, n, 1, p, rows, i, b, e, o, o_stride);
}
static void half_weigh(const enum pl_dtype dtype, size_t n, const float *p, const uint16_t *const *rows, size_t d, size_t b,
                       size_t e, float *o, size_t o_stride) {
#define HALF_CASE(k)                                                  \
    case k:                                                           \
        if (dtype == PL_F16)                                          \
            half_weigh_of(PL_F16, k, p, rows, d, b, e, o, o_stride);  \
        else                                                          \
            half_weigh_of(PL_BF16, k, p, rows, d, b, e, o, o_stride); \
        break;
    switch (n) { HALF_CASE(1) HALF_CASE(2) HALF_CASE(3) }
#undef HALF_CASE
}

/* Keys of the group at t0, zeros outside [begin, end), to s->turned [d_pad][16]; false: not these. */
static bool half_turned(const struct cpu_attn_tile *t, const struct attn_scratch *s, size_t t0, size_t begin, size_t end,
                        size_t d_pad) {
    const struct pl_cpu_kv *kv = t->a->kv;
    const uint16_t *rows[ATTN_GROUP];
    if (!by_halves(kv, kv->head_dim)) return false;
    half_rows(t, false, t0, begin, end, rows);
    if (kv->dtype == PL_F16)
        half_turn(PL_F16, rows, kv->head_dim, d_pad, s->turned);
    else
        half_turn(PL_BF16, rows, kv->head_dim, d_pad, s->turned);
    return true;
}

/* Values of the group at g of the chunk at t0 into the sums of queries [first, last) at o; false: not so many, not these. */
static bool half_values(const struct cpu_attn_tile *t, const struct attn_scratch *s, size_t t0, size_t g, size_t first,
                        size_t last, float *o, size_t o_stride) {
    const struct pl_cpu_kv *kv = t->a->kv;
    const size_t d = cpu_value_dim(kv);
    const uint16_t *rows[ATTN_GROUP];
    if (last - first > HALF_QUERIES || !by_halves(kv, d)) return false;
    half_rows(t, true, t0 + g, t0 + s->begin[0], t0 + s->end[t->count - 1], rows);
    for (size_t q = first, n; q < last; q += n) {
        const uint8_t from = s->begin[q], to = s->end[q];
        for (n = 1; q + n < last && s->begin[q + n] == from && s->end[q + n] == to;) n++;
        half_weigh(kv->dtype, n, s->scores + q * ATTN_CHUNK + g, rows, d, PL_MAX((size_t)from, g) - g,
                   PL_MIN((size_t)to, g + ATTN_GROUP) - g, o + q * o_stride, o_stride);
    }
    return true;
}
#else
static bool half_turned(const struct cpu_attn_tile *t, const struct attn_scratch *s, size_t t0, size_t begin, size_t end,
                        size_t d_pad) {
    (void)t, (void)s, (void)t0, (void)begin, (void)end, (void)d_pad;
    return false;
}
static bool half_values(const struct cpu_attn_tile *t, const struct attn_scratch *s, size_t t0, size_t g, size_t first,
                        size_t last, float *o, size_t o_stride) {
    (void)t, (void)s, (void)t0, (void)g, (void)first, (void)last, (void)o, (void)o_stride;
    return false;
}
#endif

#endif
