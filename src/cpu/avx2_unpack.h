/* avx2_unpack - codes and scales of a packed tile (tile.h) as AVX2 vectors: half a tile, 8 output rows, at a time; and what
 * its products have in common besides. */
#ifndef PL_CPU_AVX2_UNPACK_H
#define PL_CPU_AVX2_UNPACK_H

#include <immintrin.h>
#include <string.h>

#include "cpu/internal.h"
#include "cpu/prefetch.h"

#define Q8_INLINE static inline __attribute__((always_inline))

struct q8_instance {
    enum cpu_storage storage;
    enum cpu_scale scale;
    bool has_min;
    unsigned offset_log2;
    const uint8_t *book; /* NULL: codes are values */
    int pairs;           /* products added in 16 bits: 8, 4, 2; 1: signed codes, value = code - 128 */
};

Q8_INLINE __m256i load32(const unsigned char *p) { return _mm256_loadu_si256((const __m256i *)p); }
Q8_INLINE __m256i shift_to(__m256i v, int from, int to) {
    return from > to ? _mm256_srli_epi16(v, from - to) : _mm256_slli_epi16(v, to - from);
}
Q8_INLINE __m256i masked(__m256i v, int mask) { return _mm256_and_si256(v, _mm256_set1_epi8((char)mask)); }

/* Vector j of a block's codes, for the half at p. */
Q8_INLINE __m256i unpack(const struct q8_instance k, const unsigned char *p, const int j) {
    __m256i v;
    if (k.storage == STORE_U8) return load32(p + 64 * j);
    if (k.storage == STORE_U2 || k.storage == STORE_U3)
        v = masked(_mm256_srli_epi16(load32(p + 64 * (j / 4)), 2 * (j % 4)), 3);
    else
        v = masked(j < 4 ? load32(p + 64 * j) : _mm256_srli_epi16(load32(p + 64 * (j - 4)), 4), 15);
    if (k.storage == STORE_U5) v = _mm256_or_si256(v, masked(shift_to(load32(p + 256), j, 4), 16));
    if (k.storage == STORE_U3) v = _mm256_or_si256(v, masked(shift_to(load32(p + 128), j, 2), 4));
    if (k.storage == STORE_U6) v = _mm256_or_si256(v, masked(shift_to(load32(p + 256 + 64 * (j / 4)), 2 * (j % 4), 4), 48));
    return v;
}

Q8_INLINE __m256 load_f16(const unsigned char *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
Q8_INLINE __m256 load_bf16(const unsigned char *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
Q8_INLINE __m256 load_i8(const unsigned char *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
Q8_INLINE __m256 load_e8m0(const unsigned char *p) {
    __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

/* Super scales. */
Q8_INLINE __m256 load_d(const struct q8_instance k, const unsigned char *p) {
    const bool eighths = k.scale == SCALE_K32E || k.scale == SCALE_K16E;
    return eighths ? _mm256_mul_ps(load_f16(p), _mm256_set1_ps(0.125f)) : load_f16(p);
}

struct q8_scales {
    __m256 s[2], m[2];
};
/* h8: 8 for the upper half of the tile, else 0. */
Q8_INLINE struct q8_scales load_scales(const struct q8_instance k, const struct pl_cpu_weight *w, const unsigned char *tile,
                                       size_t b, size_t h8) {
    struct q8_scales r;
    const struct cpu_tile_layout *l = &w->layout;
    const unsigned char *unit = tile + l->units_at, *super = tile + l->supers_at + b / 8 * l->super_bytes + 2 * h8;
    r.s[0] = r.s[1] = r.m[0] = r.m[1] = _mm256_setzero_ps();
    if (k.scale == SCALE_F16) {
        unit += (k.storage == STORE_U2 ? b / 8 * 32 : b * (k.has_min ? 64 : 32)) + 2 * h8;
        r.s[0] = load_f16(unit);
        if (k.has_min) r.m[0] = load_f16(unit + 32);
    } else if (k.scale == SCALE_E8M0) {
        r.s[0] = load_e8m0(unit + 16 * b + h8);
    } else if (k.scale == SCALE_K32 || k.scale == SCALE_K32E) {
        unit += b * (k.has_min ? 32 : 16) + h8;
        r.s[0] = _mm256_mul_ps(load_d(k, super), load_i8(unit));
        if (k.has_min) r.m[0] = _mm256_sub_ps(_mm256_setzero_ps(), _mm256_mul_ps(load_f16(super + 32), load_i8(unit + 16)));
    } else if (k.scale == SCALE_K16 || k.scale == SCALE_K16E) {
        __m256 d = load_d(k, super);
        r.s[0] = _mm256_mul_ps(d, load_i8(unit + 32 * b + h8));
        r.s[1] = _mm256_mul_ps(d, load_i8(unit + 32 * b + 16 + h8));
    } else if (k.scale == SCALE_K16N) {
        __m256 d = load_f16(super), dmin = load_f16(super + 32);
        for (int h = 0; h < 2; h++) {
            __m256i v = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(unit + 32 * b + 16 * h + h8)));
            r.s[h] = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_and_si256(v, _mm256_set1_epi32(15))));
            r.m[h] = _mm256_sub_ps(_mm256_setzero_ps(), _mm256_mul_ps(dmin, _mm256_cvtepi32_ps(_mm256_srli_epi32(v, 4))));
        }
    } else {
        unit += b / l->unit_blocks * l->unit_bytes;
        if (w->t.scale_dtype == PL_F16) {
            r.s[0] = load_f16(unit + 2 * h8);
            r.m[0] = load_f16(unit + 32 + 2 * h8);
        } else if (w->t.scale_dtype == PL_BF16) {
            r.s[0] = load_bf16(unit + 2 * h8);
            r.m[0] = load_bf16(unit + 32 + 2 * h8);
        } else {
            r.s[0] = _mm256_loadu_ps((const void *)(unit + 4 * h8));
            r.m[0] = _mm256_loadu_ps((const void *)(unit + 64 + 4 * h8));
        }
    }
    return r;
}

Q8_INLINE __m256i act4(const int8_t *q) {
    int32_t v;
    __builtin_memcpy(&v, q, 4);
    return _mm256_set1_epi32(v);
}

/* A sum that is made here and now: gcc 12 would rather have all products first and add them up as a tree, for which there
 * are not registers enough. */
Q8_INLINE __m256i as_written(__m256i v) {
    __asm__("" : "+x"(v));
    return v;
}

Q8_INLINE void q8_store(const struct pl_cpu_weight *w, size_t row, __m256 acc, const float *bias, bool accumulate,
                        float *y) {
    size_t left = w->out > row ? w->out - row : 0;
    __m256i k =
        _mm256_cmpgt_epi32(_mm256_set1_epi32((int)PL_MIN(left, (size_t)8)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    if (bias != NULL) acc = _mm256_add_ps(acc, _mm256_maskload_ps(bias, k));
    if (accumulate) acc = _mm256_add_ps(_mm256_maskload_ps(y, k), acc);
    _mm256_maskstore_ps(y, k, acc);
}

#endif
