/* avx512_q8 - the product of one tile with one group of activation rows, specialised by constants.
 *
 * Every function here is inlined into an instance whose storage, scale kind, offset and row count are constants. The
 * order of operations on one output element is the same in all instances: blocks ascending; in a block the exact
 * integer sum, then acc = fma(weight scale * activation scale, sum, acc), then the minimum's part. */
#ifndef PL_CPU_AVX512_Q8_H
#define PL_CPU_AVX512_Q8_H

#include <immintrin.h>

#include "cpu/internal.h"
#include "cpu/prefetch.h"

#define Q8_INLINE static inline __attribute__((always_inline))

struct q8_instance {
    enum cpu_storage storage;
    enum cpu_scale scale;
    bool has_min;
    unsigned offset_log2;
    const uint8_t *book; /* NULL: codes are values */
};

Q8_INLINE __m512i load64(const unsigned char *p) { return _mm512_loadu_si512((const void *)p); }

Q8_INLINE void unpack_u4(const unsigned char *p, __m512i *w) {
    const __m512i low = _mm512_set1_epi8(15);
    for (int i = 0; i < 4; i++) {
        __m512i v = load64(p + 64 * i);
        w[i] = _mm512_and_si512(v, low);
        w[i + 4] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
    }
}
/* a | (b & mask) */
Q8_INLINE __m512i or_masked(__m512i a, __m512i b, __m512i mask) { return _mm512_ternarylogic_epi64(a, b, mask, 0xF8); }
Q8_INLINE __m512i shift_to(__m512i v, int from, int to) {
    return from > to ? _mm512_srli_epi16(v, (unsigned)(from - to)) : _mm512_slli_epi16(v, (unsigned)(to - from));
}
Q8_INLINE void unpack_u2(const unsigned char *p, __m512i *w) {
    const __m512i low = _mm512_set1_epi8(3);
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        __m512i v = load64(p + 64 * h);
#pragma GCC unroll 8
        for (int i = 0; i < 4; i++) w[4 * h + i] = _mm512_and_si512(_mm512_srli_epi16(v, (unsigned)(2 * i)), low);
    }
}
Q8_INLINE void unpack(const enum cpu_storage storage, const unsigned char *p, __m512i *w) {
    if (storage == STORE_U8) {
        for (int j = 0; j < 8; j++) w[j] = load64(p + 64 * j);
        return;
    }
    if (storage == STORE_U2 || storage == STORE_U3)
        unpack_u2(p, w);
    else
        unpack_u4(p, w);
    if (storage == STORE_U5) {
        __m512i v = load64(p + 256), mask = _mm512_set1_epi8(16);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) w[j] = or_masked(w[j], shift_to(v, j, 4), mask);
    } else if (storage == STORE_U3) {
        __m512i v = load64(p + 128), mask = _mm512_set1_epi8(4);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) w[j] = or_masked(w[j], shift_to(v, j, 2), mask);
    } else if (storage == STORE_U6) {
        __m512i mask = _mm512_set1_epi8(48);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) w[j] = or_masked(w[j], shift_to(load64(p + 256 + 64 * (j / 4)), 2 * (j % 4), 4), mask);
    }
}

Q8_INLINE __m512 load_f16(const unsigned char *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
Q8_INLINE __m512 load_bf16(const unsigned char *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
Q8_INLINE __m512 load_i8(const unsigned char *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
/* 2^(e-128), with the two exponents below the normal range spelt out */
Q8_INLINE __m512 load_e8m0(const unsigned char *p) {
    __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    __m512i tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    return _mm512_castsi512_ps(_mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2)), normal, tiny));
}

/* Super scales. */
Q8_INLINE __m512 load_d(const struct q8_instance k, const unsigned char *p) {
    const bool eighths = k.scale == SCALE_K32E || k.scale == SCALE_K16E;
    return eighths ? _mm512_mul_ps(load_f16(p), _mm512_set1_ps(0.125f)) : load_f16(p);
}

/* Scale and minimum of a block; two of each where halves differ. */
struct q8_scales {
    __m512 s[2], m[2];
};
Q8_INLINE struct q8_scales load_scales(const struct q8_instance k, const struct pl_cpu_weight *w, const unsigned char *tile,
                                       size_t b) {
    struct q8_scales r;
    const struct cpu_tile_layout *l = &w->layout;
    const unsigned char *unit = tile + l->units_at, *super = tile + l->supers_at + b / 8 * l->super_bytes;
    r.s[0] = r.s[1] = r.m[0] = r.m[1] = _mm512_setzero_ps();
    if (k.scale == SCALE_F16) {
        unit += k.storage == STORE_U2 ? b / 8 * 32 : b * (k.has_min ? 64 : 32);
        r.s[0] = load_f16(unit);
        if (k.has_min) r.m[0] = load_f16(unit + 32);
    } else if (k.scale == SCALE_E8M0) {
        r.s[0] = load_e8m0(unit + 16 * b);
    } else if (k.scale == SCALE_K32 || k.scale == SCALE_K32E) {
        unit += b * (k.has_min ? 32 : 16);
        r.s[0] = _mm512_mul_ps(load_d(k, super), load_i8(unit));
        if (k.has_min) r.m[0] = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(load_f16(super + 32), load_i8(unit + 16)));
    } else if (k.scale == SCALE_K16 || k.scale == SCALE_K16E) {
        __m512 d = load_d(k, super);
        r.s[0] = _mm512_mul_ps(d, load_i8(unit + 32 * b));
        r.s[1] = _mm512_mul_ps(d, load_i8(unit + 32 * b + 16));
    } else if (k.scale == SCALE_K16N) {
        __m512 d = load_f16(super), dmin = load_f16(super + 32);
        for (int h = 0; h < 2; h++) {
            __m512i v = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(unit + 32 * b + 16 * h)));
            r.s[h] = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_and_si512(v, _mm512_set1_epi32(15))));
            r.m[h] = _mm512_mul_ps(dmin, _mm512_cvtepi32_ps(_mm512_srli_epi32(v, 4)));
            r.m[h] = _mm512_sub_ps(_mm512_setzero_ps(), r.m[h]);
        }
    } else {
        unit += b / l->unit_blocks * l->unit_bytes;
        if (w->t.scale_dtype == PL_F16) {
            r.s[0] = load_f16(unit);
            r.m[0] = load_f16(unit + 32);
        } else if (w->t.scale_dtype == PL_BF16) {
            r.s[0] = load_bf16(unit);
            r.m[0] = load_bf16(unit + 32);
        } else {
            r.s[0] = _mm512_loadu_ps((const void *)unit);
            r.m[0] = _mm512_loadu_ps((const void *)(unit + 64));
        }
    }
    return r;
}

/* d + w . the four activations at q, met by every lane. gcc 12 keeps the broadcast a separate instruction; as part of
 * the product it costs no slot and no register. */
Q8_INLINE __m512i dot4(__m512i d, __m512i w, const int8_t *q) {
#if defined(PL_AVX512_EMULATED)
    int32_t four;
    __builtin_memcpy(&four, q, 4);
    d = _mm512_dpbusd_epi32(d, w, _mm512_set1_epi32(four));
#else
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(d) : "v"(w), "m"(*(const int8_t(*)[4])q));
#endif
    return d;
}
Q8_INLINE __m512i start(const unsigned offset_log2, int32_t nsum) {
    if (offset_log2 == NO_OFFSET) return _mm512_setzero_si512();
    return offset_log2 == 0 ? _mm512_set1_epi32(nsum) : _mm512_slli_epi32(_mm512_set1_epi32(nsum), offset_log2);
}

/* What a block holds of a group of `rows` activation rows. */
struct q8_acts {
    const int8_t *q;
    const float *scale, *ssum;
    const int32_t *nsum, *half[2];
};
Q8_INLINE struct q8_acts acts_at(const unsigned char *a, const int rows) {
    struct q8_acts r;
    r.q = (const int8_t *)a;
    r.scale = (const float *)(const void *)(a + 32 * rows);
    r.ssum = r.scale + rows;
    r.nsum = (const int32_t *)(const void *)(r.ssum + rows);
    r.half[0] = r.nsum + rows;
    r.half[1] = r.half[0] + rows;
    return r;
}

/* d[m] += w[from..to) . q[m][4 from..4 to): rows side by side, so that no chain of sums is waited for. */
Q8_INLINE void q8_dots(const __m512i *w, const int8_t *q, const int from, const int to, const int n, __m512i *d) {
#pragma GCC unroll 8
    for (int j = from; j < to; j++) {
#pragma GCC unroll 8
        for (int m = 0; m < n; m++) d[m] = dot4(d[m], w[j], q + 32 * m + 4 * j);
    }
}

/* n (at most 4) rows of activations, from row m0 of the group, of one block whose halves share a scale. */
Q8_INLINE void q8_block(const struct q8_instance k, const __m512i *w, const struct q8_scales *s, const struct q8_acts *a,
                        const int m0, const int n, __m512 *acc) {
    __m512i d[8];
#pragma GCC unroll 8
    for (int m = 0; m < n; m++) d[m] = start(k.offset_log2, a->nsum[m0 + m]);
    if (n == 1) { /* two chains: integer sums are exact in any order */
        __m512i e = _mm512_setzero_si512();
        q8_dots(w, a->q + 32 * m0, 0, 4, 1, d);
        q8_dots(w, a->q + 32 * m0, 4, 8, 1, &e);
        d[0] = _mm512_add_epi32(d[0], e);
    } else {
        q8_dots(w, a->q + 32 * m0, 0, 8, n, d);
    }
#pragma GCC unroll 8
    for (int m = 0; m < n; m++) {
        __m512 scale = _mm512_mul_ps(s->s[0], _mm512_set1_ps(a->scale[m0 + m]));
        acc[m0 + m] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(d[m]), acc[m0 + m]);
        if (k.has_min) acc[m0 + m] = _mm512_fmadd_ps(s->m[0], _mm512_set1_ps(a->ssum[m0 + m]), acc[m0 + m]);
    }
}

/* The same for half h of a block whose halves have scales of their own. */
Q8_INLINE void q8_half(const struct q8_instance k, const __m512i *w, const struct q8_scales *s, const struct q8_acts *a,
                       const int h, const int m0, const int n, __m512 *acc) {
    __m512i d[8];
#pragma GCC unroll 8
    for (int m = 0; m < n; m++) d[m] = start(k.offset_log2, a->half[h][m0 + m]);
    q8_dots(w, a->q + 32 * m0, 4 * h, 4 * h + 4, n, d);
#pragma GCC unroll 8
    for (int m = 0; m < n; m++) {
        __m512 scale = _mm512_set1_ps(a->scale[m0 + m]);
        acc[m0 + m] = _mm512_fmadd_ps(_mm512_mul_ps(s->s[h], scale), _mm512_cvtepi32_ps(d[m]), acc[m0 + m]);
        if (k.has_min) {
            __m512 sum = _mm512_set1_ps(a->scale[m0 + m] * (float)-a->half[h][m0 + m]);
            acc[m0 + m] = _mm512_fmadd_ps(s->m[h], sum, acc[m0 + m]);
        }
    }
}

Q8_INLINE void q8_store(const struct pl_cpu_weight *w, size_t tile, __m512 acc, const float *bias, bool accumulate,
                        float *y) {
    size_t left = w->out - tile * TILE_ROWS;
    const __mmask16 k = (__mmask16)(left >= 16 ? 0xFFFFu : (1u << left) - 1u);
    if (bias != NULL) acc = _mm512_add_ps(acc, _mm512_maskz_loadu_ps(k, bias));
    if (accumulate) acc = _mm512_add_ps(_mm512_maskz_loadu_ps(k, y), acc);
    _mm512_mask_storeu_ps(y, k, acc);
}

/* ROWS (1, 2, 4, 8, 16) activation rows against one tile. */
Q8_INLINE void q8_run(const struct q8_instance k, const int rows, const struct pl_cpu_weight *w, size_t tile_index,
                      const struct cpu_act_group *g, float *y, size_t y_stride, const float *bias, bool accumulate) {
    const unsigned char *tile = w->tiles + tile_index * w->layout.bytes, *a = g->data;
    const size_t blocks = w->layout.blocks, plane = w->layout.plane_bytes;
    __m512i book = _mm512_setzero_si512();
    if (k.book != NULL) book = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)k.book));
    __m512 acc[16];
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++) acc[m] = _mm512_setzero_ps();
    for (size_t b = 0; b < blocks; b++, a += (size_t)rows * ACT_ROW_BYTES) {
        __m512i v[8];
        unpack(k.storage, tile + b * plane, v);
        cpu_prefetch_block(k.storage, k.scale, &w->layout, tile, b);
        if (k.book != NULL)
            for (int j = 0; j < 8; j++) v[j] = _mm512_shuffle_epi8(book, v[j]);
        struct q8_scales s = load_scales(k, w, tile, b);
        const struct q8_acts acts = acts_at(a, rows);
        const int n = rows < 4 ? rows : rows == 8 ? 8 : 4;
#pragma GCC unroll 8
        for (int m = 0; m < rows; m += n) {
            if (cpu_scale_halves(k.scale)) {
                q8_half(k, v, &s, &acts, 0, m, n, acc);
                q8_half(k, v, &s, &acts, 1, m, n, acc);
            } else {
                q8_block(k, v, &s, &acts, m, n, acc);
            }
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++) q8_store(w, tile_index, acc[m], bias, accumulate, y + (size_t)m * y_stride);
}

/* Defines `name`, the kernel of one format for any group size. */
#define Q8_KERNEL(name, ...)                                                                                        \
    void name(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride, \
              const float *bias, bool accumulate) {                                                                 \
        const struct q8_instance k = {__VA_ARGS__};                                                                 \
        switch (g->rows) {                                                                                          \
        case 16: q8_run(k, 16, w, tile, g, y, y_stride, bias, accumulate); break;                                   \
        case 8: q8_run(k, 8, w, tile, g, y, y_stride, bias, accumulate); break;                                     \
        case 4: q8_run(k, 4, w, tile, g, y, y_stride, bias, accumulate); break;                                     \
        case 2: q8_run(k, 2, w, tile, g, y, y_stride, bias, accumulate); break;                                     \
        default: q8_run(k, 1, w, tile, g, y, y_stride, bias, accumulate); break;                                    \
        }                                                                                                           \
    }

typedef void (*cpu_q8_fn)(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y,
                          size_t y_stride, const float *bias, bool accumulate);
#define Q8_DECLARE(name)                                                                                            \
    void name(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, size_t y_stride, \
              const float *bias, bool accumulate)
Q8_DECLARE(avx512_q4_0);
Q8_DECLARE(avx512_q4_1);
Q8_DECLARE(avx512_q4_k);
Q8_DECLARE(avx512_iq4_nl);
Q8_DECLARE(avx512_iq4_xs);
Q8_DECLARE(avx512_mxfp4);
Q8_DECLARE(avx512_mlx4);
Q8_DECLARE(avx512_iq1_s);
Q8_DECLARE(avx512_iq1_m);
Q8_DECLARE(avx512_iq2_32);
Q8_DECLARE(avx512_iq2_16);
Q8_DECLARE(avx512_iq3_xxs);
Q8_DECLARE(avx512_iq3_s);
Q8_DECLARE(avx512_q5_0);
Q8_DECLARE(avx512_q5_1);
Q8_DECLARE(avx512_q5_k);
Q8_DECLARE(avx512_q6_k);
Q8_DECLARE(avx512_mlx5);
Q8_DECLARE(avx512_mlx6);
Q8_DECLARE(avx512_q8_0);
Q8_DECLARE(avx512_mlx8);
Q8_DECLARE(avx512_q2_k);
Q8_DECLARE(avx512_q3_k);
Q8_DECLARE(avx512_tq);
Q8_DECLARE(avx512_mlx2);
Q8_DECLARE(avx512_mlx3);

#endif
