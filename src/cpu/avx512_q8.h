/* avx512_q8 - the product of one tile with one group of activation rows, specialised by constants.
 *
 * Every function here is inlined into an instance whose storage, scale kind, offset and row count are constants. The
 * order of operations on one output element is the same in all instances: blocks ascending; in a block the exact
 * integer sum, then acc = fma(weight scale * activation scale, sum, acc), then the minimum's part. */
#ifndef PL_CPU_AVX512_Q8_H
#define PL_CPU_AVX512_Q8_H

#include <immintrin.h>

#include "cpu/internal.h"

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
#pragma GCC unroll 4
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
    } else if (k.scale == SCALE_K32) {
        unit += b * (k.has_min ? 32 : 16);
        r.s[0] = _mm512_mul_ps(load_f16(super), load_i8(unit));
        if (k.has_min) r.m[0] = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(load_f16(super + 32), load_i8(unit + 16)));
    } else if (k.scale == SCALE_K16) {
        __m512 d = load_f16(super);
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

Q8_INLINE __m512i act4(const int8_t *q) {
    int32_t v;
    __builtin_memcpy(&v, q, 4);
    return _mm512_set1_epi32(v);
}
Q8_INLINE __m512i start(const unsigned offset_log2, int32_t nsum) {
    if (offset_log2 == NO_OFFSET) return _mm512_setzero_si512();
    return offset_log2 == 0 ? _mm512_set1_epi32(nsum) : _mm512_slli_epi32(_mm512_set1_epi32(nsum), offset_log2);
}

/* One row of activations of one block. */
Q8_INLINE __m512 q8_row(const struct q8_instance k, const __m512i *w, const struct q8_scales *s, const int8_t *q,
                        float scale, float ssum, int32_t nsum, int32_t nsum0, int32_t nsum1, __m512 acc) {
    const bool halves = k.scale == SCALE_K16 || k.scale == SCALE_K16N;
    const __m512 a = _mm512_set1_ps(scale);
    __m512i d = start(k.offset_log2, halves ? nsum0 : nsum);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) d = _mm512_dpbusd_epi32(d, w[j], act4(q + 4 * j));
    if (halves) {
        acc = _mm512_fmadd_ps(_mm512_mul_ps(s->s[0], a), _mm512_cvtepi32_ps(d), acc);
        if (k.has_min) acc = _mm512_fmadd_ps(s->m[0], _mm512_set1_ps(scale * (float)-nsum0), acc);
        d = start(k.offset_log2, nsum1);
    }
#pragma GCC unroll 4
    for (int j = 4; j < 8; j++) d = _mm512_dpbusd_epi32(d, w[j], act4(q + 4 * j));
    acc = _mm512_fmadd_ps(_mm512_mul_ps(s->s[halves], a), _mm512_cvtepi32_ps(d), acc);
    if (k.has_min)
        acc = _mm512_fmadd_ps(s->m[halves], halves ? _mm512_set1_ps(scale * (float)-nsum1) : _mm512_set1_ps(ssum), acc);
    return acc;
}

Q8_INLINE void q8_store(const struct pl_cpu_weight *w, size_t tile, __m512 acc, const float *bias, bool accumulate,
                        float *y) {
    size_t left = w->out - tile * TILE_ROWS;
    __mmask16 k = left >= 16 ? (__mmask16)0xFFFF : (__mmask16)((1u << left) - 1u);
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
        if (k.book != NULL)
            for (int j = 0; j < 8; j++) v[j] = _mm512_shuffle_epi8(book, v[j]);
        struct q8_scales s = load_scales(k, w, tile, b);
        const int8_t *q = (const int8_t *)a;
        const float *scale = (const float *)(const void *)(a + 32 * rows), *ssum = scale + rows;
        const int32_t *nsum = (const int32_t *)(const void *)(ssum + rows), *n0 = nsum + rows, *n1 = n0 + rows;
#pragma GCC unroll 16
        for (int m = 0; m < rows; m++)
            acc[m] = q8_row(k, v, &s, q + 32 * m, scale[m], ssum[m], nsum[m], n0[m], n1[m], acc[m]);
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
Q8_DECLARE(avx512_q5_0);
Q8_DECLARE(avx512_q5_1);
Q8_DECLARE(avx512_q5_k);
Q8_DECLARE(avx512_q6_k);
Q8_DECLARE(avx512_mlx6);
Q8_DECLARE(avx512_q8_0);
Q8_DECLARE(avx512_mlx8);
Q8_DECLARE(avx512_q2_k);
Q8_DECLARE(avx512_q3_k);
Q8_DECLARE(avx512_tq);
Q8_DECLARE(avx512_mlx2);
Q8_DECLARE(avx512_mlx3);

#endif
