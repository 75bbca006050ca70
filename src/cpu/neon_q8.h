/* neon_q8 - the product of quarters of a tile (4 output rows each) with one group of activation rows, specialised by
 * constants, with the signed dot product of four bytes or, where the file's flags have it and there are two rows and more,
 * with products of 2 x 8 by 8 x 2 bytes.
 *
 * Same tiles and same order of operations as avx512_q8.h. Codes above 127 are taken minus 128 (`far`). */
#ifndef PL_CPU_NEON_Q8_H
#define PL_CPU_NEON_Q8_H

#include <arm_neon.h>

#include "cpu/internal.h"
#include "cpu/prefetch.h"

#define Q8_INLINE static inline __attribute__((always_inline))

struct q8_instance {
    enum cpu_storage storage;
    enum cpu_scale scale;
    bool has_min;
    unsigned offset_log2;
    const uint8_t *book; /* NULL: codes are values */
    bool far;            /* codes may pass 127 */
};

Q8_INLINE uint8x16_t masked(uint8x16_t v, uint8_t mask) { return vandq_u8(v, vdupq_n_u8(mask)); }
/* Bits that a byte's shift would move into its neighbour are masked away by the caller. */
Q8_INLINE uint8x16_t shift_to(uint8x16_t v, const int from, const int to) {
    return vshlq_u8(v, vdupq_n_s8((int8_t)(to - from)));
}

/* Vector j of a block's codes, for the quarter at p. */
Q8_INLINE int8x16_t unpack(const struct q8_instance k, const unsigned char *p, uint8x16_t book, const int j) {
    uint8x16_t v;
    if (k.storage == STORE_U8)
        v = vld1q_u8(p + 64 * j);
    else if (k.storage == STORE_U2 || k.storage == STORE_U3)
        v = masked(shift_to(vld1q_u8(p + 64 * (j / 4)), 2 * (j % 4), 0), 3);
    else
        v = j < 4 ? masked(vld1q_u8(p + 64 * j), 15) : vshrq_n_u8(vld1q_u8(p + 64 * (j - 4)), 4);
    if (k.storage == STORE_U5) v = vorrq_u8(v, masked(shift_to(vld1q_u8(p + 256), j, 4), 16));
    if (k.storage == STORE_U3) v = vorrq_u8(v, masked(shift_to(vld1q_u8(p + 128), j, 2), 4));
    if (k.storage == STORE_U6) v = vorrq_u8(v, masked(shift_to(vld1q_u8(p + 256 + 64 * (j / 4)), 2 * (j % 4), 4), 48));
    if (k.book != NULL) v = vqtbl1q_u8(book, v);
    if (k.far) v = veorq_u8(v, vdupq_n_u8(0x80));
    return vreinterpretq_s8_u8(v);
}

Q8_INLINE float32x4_t load_f16(const unsigned char *p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vreinterpret_u16_u8(vld1_u8(p))));
}
Q8_INLINE float32x4_t load_bf16(const unsigned char *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}
Q8_INLINE uint32x4_t load_u8(const unsigned char *p) {
    uint32_t four;
    __builtin_memcpy(&four, p, 4);
    return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
}
Q8_INLINE float32x4_t load_i8(const unsigned char *p) {
    int32x4_t v = vreinterpretq_s32_u32(load_u8(p));
    return vcvtq_f32_s32(vshrq_n_s32(vshlq_n_s32(v, 24), 24));
}
/* 2^(e-128), with the two exponents below the normal range spelt out */
Q8_INLINE float32x4_t load_e8m0(const unsigned char *p) {
    uint32x4_t e = load_u8(p), normal = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
    uint32x4_t tiny = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e));
    return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), tiny, normal));
}

/* Super scales. */
Q8_INLINE float32x4_t load_d(const struct q8_instance k, const unsigned char *p) {
    const bool eighths = k.scale == SCALE_K32E || k.scale == SCALE_K16E;
    return eighths ? vmulq_n_f32(load_f16(p), 0.125f) : load_f16(p);
}

struct q8_scales {
    float32x4_t s[2], m[2];
};
/* Rows [r, r + 4) of the tile. */
Q8_INLINE struct q8_scales load_scales(const struct q8_instance k, const struct pl_cpu_weight *w, const unsigned char *tile,
                                       size_t b, size_t r) {
    const struct cpu_tile_layout *l = &w->layout;
    const unsigned char *unit = tile + l->units_at, *super = tile + l->supers_at + b / 8 * l->super_bytes + 2 * r;
    const float32x4_t zero = vdupq_n_f32(0);
    struct q8_scales q = {{zero, zero}, {zero, zero}};
    if (k.scale == SCALE_F16) {
        unit += (k.storage == STORE_U2 ? b / 8 * 32 : b * (k.has_min ? 64 : 32)) + 2 * r;
        q.s[0] = load_f16(unit);
        if (k.has_min) q.m[0] = load_f16(unit + 32);
    } else if (k.scale == SCALE_E8M0) {
        q.s[0] = load_e8m0(unit + 16 * b + r);
    } else if (k.scale == SCALE_K32 || k.scale == SCALE_K32E) {
        unit += b * (k.has_min ? 32 : 16) + r;
        q.s[0] = vmulq_f32(load_d(k, super), load_i8(unit));
        if (k.has_min) q.m[0] = vnegq_f32(vmulq_f32(load_f16(super + 32), load_i8(unit + 16)));
    } else if (k.scale == SCALE_K16 || k.scale == SCALE_K16E) {
        for (size_t h = 0; h < 2; h++) q.s[h] = vmulq_f32(load_d(k, super), load_i8(unit + 32 * b + 16 * h + r));
    } else if (k.scale == SCALE_K16N) {
        for (size_t h = 0; h < 2; h++) {
            uint32x4_t v = load_u8(unit + 32 * b + 16 * h + r);
            q.s[h] = vmulq_f32(load_f16(super), vcvtq_f32_u32(vandq_u32(v, vdupq_n_u32(15))));
            q.m[h] = vnegq_f32(vmulq_f32(load_f16(super + 32), vcvtq_f32_u32(vshrq_n_u32(v, 4))));
        }
    } else {
        unit += b / l->unit_blocks * l->unit_bytes;
        if (w->t.scale_dtype == PL_F16) {
            q.s[0] = load_f16(unit + 2 * r);
            q.m[0] = load_f16(unit + 32 + 2 * r);
        } else if (w->t.scale_dtype == PL_BF16) {
            q.s[0] = load_bf16(unit + 2 * r);
            q.m[0] = load_bf16(unit + 32 + 2 * r);
        } else {
            q.s[0] = vreinterpretq_f32_u8(vld1q_u8(unit + 4 * r));
            q.m[0] = vreinterpretq_f32_u8(vld1q_u8(unit + 64 + 4 * r));
        }
    }
    return q;
}

/* What the 32-bit sum of a row starts from: the offset's part. nsum = -sum(q). */
Q8_INLINE int32x4_t start(const struct q8_instance k, int32_t nsum) {
    const int offset = k.offset_log2 == NO_OFFSET ? 0 : 1 << k.offset_log2;
    return vdupq_n_s32(nsum * (offset - (k.far ? 128 : 0)));
}

/* d[m] += codes of vectors [from, to) . activations, for n rows. */
Q8_INLINE void q8_dots(const struct q8_instance k, const unsigned char *p, uint8x16_t book, const int8_t *q, const int from,
                       const int to, const int n, int32x4_t *d) {
#pragma GCC unroll 8
    for (int j = from; j < to; j++) {
        int8x16_t w = unpack(k, p, book, j);
#pragma GCC unroll 8
        for (int m = 0; m < n; m++) {
            int32_t four;
            __builtin_memcpy(&four, q + 32 * m + 4 * j, 4);
            d[m] = vdotq_s32(d[m], w, vreinterpretq_s8_s32(vdupq_n_s32(four)));
        }
    }
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
/* d[m] = start + codes of vectors [from, to) . activations, for n rows, n even: two rows of the quarter and two rows of
 * activations at a time, eight inputs each. Whole numbers: the same sums as by dot products. */
Q8_INLINE void q8_matrix(const struct q8_instance k, const unsigned char *p, uint8x16_t book, const int8_t *q,
                         const int32_t *nsum, const int from, const int to, const int n, int32x4_t *d) {
    int32x4_t low[4], high[4]; /* quarter rows 0 and 1, 2 and 3: row after row, by activation row */
#pragma GCC unroll 4
    for (int m = 0; m < n / 2; m++) {
        int32x4_t even = start(k, nsum[2 * m]), odd = start(k, nsum[2 * m + 1]);
        low[m] = high[m] = vtrn1q_s32(even, odd);
    }
#pragma GCC unroll 4
    for (int j = from; j < to; j += 2) {
        int32x4_t a = vreinterpretq_s32_s8(unpack(k, p, book, j)), b = vreinterpretq_s32_s8(unpack(k, p, book, j + 1));
        int8x16_t w01 = vreinterpretq_s8_s32(vzip1q_s32(a, b)), w23 = vreinterpretq_s8_s32(vzip2q_s32(a, b));
#pragma GCC unroll 4
        for (int m = 0; m < n / 2; m++) {
            int8x16_t x = vcombine_s8(vld1_s8(q + 64 * m + 4 * j), vld1_s8(q + 64 * m + 32 + 4 * j));
            low[m] = vmmlaq_s32(low[m], w01, x);
            high[m] = vmmlaq_s32(high[m], w23, x);
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < n / 2; m++) {
        d[2 * m] = vuzp1q_s32(low[m], high[m]);
        d[2 * m + 1] = vuzp2q_s32(low[m], high[m]);
    }
}
#endif

/* Sums of one block (or one half, h >= 0) of n rows with one quarter into acc. */
Q8_INLINE void q8_block(const struct q8_instance k, const unsigned char *p, uint8x16_t book, const struct q8_scales *s,
                        const unsigned char *a, const int h, const int n, float32x4_t *acc) {
    const float *scale = (const float *)(const void *)(a + 32 * n), *ssum = scale + n;
    const int32_t *nsum = (const int32_t *)(const void *)(ssum + n) + (h < 0 ? 0 : (1 + h) * n);
    const int i = h > 0;
    int32x4_t d[8];
    const int from = h > 0 ? 4 : 0, to = h == 0 ? 4 : 8;
#if defined(__ARM_FEATURE_MATMUL_INT8)
    const bool matrix = n > 1;
    if (matrix) q8_matrix(k, p, book, (const int8_t *)a, nsum, from, to, n, d);
#else
    const bool matrix = false;
#endif
#pragma GCC unroll 8
    for (int m = 0; m < n && !matrix; m++) d[m] = start(k, nsum[m]);
    if (!matrix) q8_dots(k, p, book, (const int8_t *)a, from, to, n, d);
#pragma GCC unroll 8
    for (int m = 0; m < n; m++) {
        acc[m] = vfmaq_f32(acc[m], vmulq_n_f32(s->s[i], scale[m]), vcvtq_f32_s32(d[m]));
        if (k.has_min) acc[m] = vfmaq_n_f32(acc[m], s->m[i], h < 0 ? ssum[m] : scale[m] * (float)-nsum[m]);
    }
}

Q8_INLINE void q8_store(const struct pl_cpu_weight *w, size_t row, float32x4_t acc, const float *bias, bool accumulate,
                        float *y) {
    float v[4];
    vst1q_f32(v, acc);
    for (size_t r = 0; r < 4 && row + r < w->out; r++) {
        float sum = bias != NULL ? v[r] + bias[r] : v[r];
        y[r] = accumulate ? y[r] + sum : sum;
    }
}

/* n (1, 2, 4, 8) activation rows against `quarters` quarters of a tile from row r0 on, side by side. */
Q8_INLINE void q8_run(const struct q8_instance k, const int n, const int quarters, const struct pl_cpu_weight *w,
                      size_t tile_index, size_t r0, const struct cpu_act_group *g, float *y, size_t y_stride,
                      const float *bias, bool accumulate) {
    const unsigned char *tile = w->tiles + tile_index * w->layout.bytes, *a = g->data;
    uint8x16_t book = k.book != NULL ? vld1q_u8(k.book) : vdupq_n_u8(0);
    float32x4_t acc[8];
#pragma GCC unroll 8
    for (int m = 0; m < n * quarters; m++) acc[m] = vdupq_n_f32(0);
    for (size_t b = 0; b < w->layout.blocks; b++, a += (size_t)n * ACT_ROW_BYTES) {
        const unsigned char *p = tile + b * w->layout.plane_bytes + 4 * r0;
        if (r0 == 0) cpu_prefetch_block(k.storage, k.scale, &w->layout, tile, b);
#pragma GCC unroll 4
        for (int c = 0; c < quarters; c++) {
            struct q8_scales s = load_scales(k, w, tile, b, r0 + 4 * (size_t)c);
            if (cpu_scale_halves(k.scale)) {
                q8_block(k, p + 16 * c, book, &s, a, 0, n, acc + n * c);
                q8_block(k, p + 16 * c, book, &s, a, 1, n, acc + n * c);
            } else {
                q8_block(k, p + 16 * c, book, &s, a, -1, n, acc + n * c);
            }
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < n * quarters; m++) {
        size_t r = r0 + 4 * (size_t)(m / n);
        q8_store(w, tile_index * TILE_ROWS + r, acc[m], bias != NULL ? bias + r : NULL, accumulate,
                 y + (size_t)(m % n) * y_stride + r);
    }
}

/* Defines `name`, the kernel of one format for any group size. */
#define Q8_KERNEL(name, storage, scale, has_min, offset, book, fits)                                             \
    static void name##_tile(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, float *y, \
                            size_t y_stride, const float *bias, bool accumulate) {                               \
        const struct q8_instance k = {storage, scale, has_min, offset, book, (fits) == 1};                       \
        const size_t step = g->rows >= 8 ? 4 : g->rows == 4 ? 8 : 16;                                            \
        for (size_t r = 0; r < TILE_ROWS && tile * TILE_ROWS + r < w->out; r += step) {                          \
            switch (g->rows) {                                                                                   \
            case 8: q8_run(k, 8, 1, w, tile, r, g, y, y_stride, bias, accumulate); break;                        \
            case 4: q8_run(k, 4, 2, w, tile, r, g, y, y_stride, bias, accumulate); break;                        \
            case 2: q8_run(k, 2, 4, w, tile, r, g, y, y_stride, bias, accumulate); break;                        \
            default: q8_run(k, 1, 4, w, tile, r, g, y, y_stride, bias, accumulate); break;                       \
            }                                                                                                    \
        }                                                                                                        \
    }                                                                                                            \
    static const struct q8_kernel name = {name##_tile, NULL};

#endif
