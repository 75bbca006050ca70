/* Values cut into bf16 terms: activations for a group of rows, weights for a chunk of a tile. */
#include "cpu/avx512_terms.h"

#include <immintrin.h>
#include <string.h>

#define TERM_INLINE static inline __attribute__((always_inline))

void avx512_turn(uint32_t (*m)[16]) {
    __m512i a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_si512((const void *)m[i]);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) { /* a[i+c]: column c of each lane's four, of rows i..i+3 */
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) { /* lanes of rows 0-3, 4-7, 8-11, 12-15 come together */
        __m512i p = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88), q = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88);
        __m512i r = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xDD), s = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xDD);
        _mm512_storeu_si512((void *)m[c], _mm512_shuffle_i32x4(p, q, 0x88));
        _mm512_storeu_si512((void *)m[8 + c], _mm512_shuffle_i32x4(p, q, 0xDD));
        _mm512_storeu_si512((void *)m[4 + c], _mm512_shuffle_i32x4(r, s, 0x88));
        _mm512_storeu_si512((void *)m[12 + c], _mm512_shuffle_i32x4(r, s, 0xDD));
    }
}

/* The upper halves of 32 values, in order. */
TERM_INLINE __m512i upper_halves(__m512 a, __m512 b) {
    const __m512i odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23,
                                         21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return _mm512_permutex2var_epi16(_mm512_castps_si512(a), odd, _mm512_castps_si512(b));
}
/* v less its first eight significant bits. */
TERM_INLINE __m512 rest(__m512 v) {
    const __m512i upper = _mm512_set1_epi32((int)0xFFFF0000u);
    return _mm512_sub_ps(v, _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), upper)));
}
TERM_INLINE void cut(__m512 a, __m512 b, const int terms, __m512i *out) {
#pragma GCC unroll 3
    for (int t = 0; t < terms; t++) {
        out[t] = upper_halves(a, b);
        a = rest(a);
        b = rest(b);
    }
}
TERM_INLINE __mmask16 first_lanes(size_t n) { return (__mmask16)(n >= 16 ? 0xFFFFu : (1u << n) - 1u); }

void avx512_float_terms(const float *x, size_t stride, size_t rows, size_t in, unsigned char *dst) {
    const __mmask16 these = first_lanes(rows);
    for (size_t at = 0; at < in; at += TERM_BLOCK) {
        _Alignas(64) uint32_t pairs[TERMS][16][16];
        const size_t left = in - at;
        for (size_t r = 0; r < 16; r++) {
            __m512i t[TERMS] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
            if (r < rows) {
                const float *v = x + r * stride + at;
                cut(_mm512_maskz_loadu_ps(first_lanes(left), v),
                    _mm512_maskz_loadu_ps(left > 16 ? first_lanes(left - 16) : 0, v + 16), TERMS, t);
            }
            for (int k = 0; k < TERMS; k++) _mm512_store_si512((void *)pairs[k][r], t[k]);
        }
        for (int k = 0; k < TERMS; k++) {
            avx512_turn(pairs[k]);
            for (size_t i = 0; i < 16; i++, dst += 4 * rows)
                _mm512_mask_storeu_epi32(dst, these, _mm512_load_si512((const void *)pairs[k][i]));
        }
    }
}

/* 32 values of a row, those past `left` zero. */
TERM_INLINE void load_row(const enum pl_dtype t, const unsigned char *p, size_t left, __m512 *a, __m512 *b) {
    const __mmask16 lo = first_lanes(left), hi = left > 16 ? first_lanes(left - 16) : 0;
    if (t == PL_F32) {
        *a = _mm512_maskz_loadu_ps(lo, p);
        *b = _mm512_maskz_loadu_ps(hi, p + 64);
        return;
    }
    const __m256i h[2] = {_mm256_maskz_loadu_epi16(lo, p), _mm256_maskz_loadu_epi16(hi, p + 32)};
    if (t == PL_F16) {
        *a = _mm512_cvtph_ps(h[0]);
        *b = _mm512_cvtph_ps(h[1]);
    } else {
        *a = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h[0]), 16));
        *b = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h[1]), 16));
    }
}

TERM_INLINE void weight_terms(const enum pl_dtype t, const int terms, const struct pl_cpu_weight *w, size_t tile,
                              size_t first, size_t count, unsigned char *dst) {
    const size_t each = t == PL_F32 ? 4 : 2, rows = PL_MIN((size_t)TILE_ROWS, w->out - tile * TILE_ROWS);
    for (size_t r = 0; r < TILE_ROWS; r++) {
        const unsigned char *row =
            (const unsigned char *)w->t.data + (tile * TILE_ROWS + PL_MIN(r, rows - 1)) * w->in * each;
        for (size_t b = 0; b < count; b++) {
            const size_t at = (first + b) * TERM_BLOCK;
            __m512 lo = _mm512_setzero_ps(), hi = lo;
            if (r < rows) load_row(t, row + at * each, w->in - at, &lo, &hi);
            __builtin_prefetch(row + at * each + 2048);
            __m512i cuts[TERMS];
            cut(lo, hi, terms, cuts);
#pragma GCC unroll 3
            for (int k = 0; k < terms; k++)
                _mm512_storeu_si512((void *)(dst + (b * (size_t)terms + (size_t)k) * 1024 + r * 64), cuts[k]);
        }
    }
}

size_t avx512_weight_terms(const struct pl_cpu_weight *w, size_t tile, size_t first, size_t count, unsigned char *dst) {
    switch (w->t.dtype) {
    case PL_F32: weight_terms(PL_F32, 3, w, tile, first, count, dst); return 3;
    case PL_F16: weight_terms(PL_F16, 2, w, tile, first, count, dst); return 2;
    default: weight_terms(PL_BF16, 1, w, tile, first, count, dst); return 1;
    }
}
