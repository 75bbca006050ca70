/* Activations and weights as bf16 in the order that wide products take them. Each function twice: with the instruction that
 * rounds (where tiles are, it is), and with the same rounding in others, for tests on machines that lack it. */
#include <string.h>

#include "cpu/avx512_chunk.h"
#include "cpu/avx512_q8.h"
#include "cpu/avx512_terms.h"
#include "cpu/wide.h"

/* To nearest, ties to even, in the upper halves; what is no number stays none. */
Q8_INLINE __m512i rounded(__m512 v) {
    const __m512i bits = _mm512_castps_si512(v), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    return _mm512_mask_or_epi32(up, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), bits, _mm512_set1_epi32(0x400000));
}
/* 32 values in order: those of a, then those of b. */
Q8_INLINE __m512i to_bf16(const bool emulated, __m512 a, __m512 b) {
    if (emulated) {
        const __m512i odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25,
                                             23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
        return _mm512_permutex2var_epi16(rounded(a), odd, rounded(b));
    }
    __m512i out;
    __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(out) : "v"(a), "v"(b));
    return out;
}
/* Dword i: value i of a in the lower half, of b in the upper. */
Q8_INLINE __m512i pairs_of(const bool emulated, __m512 a, __m512 b) {
    if (emulated) {
        const __m512i upper = _mm512_set1_epi32((int)0xFFFF0000u);
        return _mm512_or_si512(_mm512_srli_epi32(rounded(a), 16), _mm512_and_si512(rounded(b), upper));
    }
    const __m512i turn = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                          20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(turn, to_bf16(false, a, b));
}
Q8_INLINE __mmask16 lanes_below(size_t n) { return n >= 16 ? (__mmask16)0xFFFF : (__mmask16)((1u << n) - 1u); }

/* What is left of 32 values once `taken` is subtracted. */
Q8_INLINE void less(__m512 *a, __m512 *b, __m512i taken) {
    const __m512i lo = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(taken)),
                  hi = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(taken, 1));
    *a = _mm512_sub_ps(*a, _mm512_castsi512_ps(_mm512_slli_epi32(lo, 16)));
    *b = _mm512_sub_ps(*b, _mm512_castsi512_ps(_mm512_slli_epi32(hi, 16)));
}

Q8_INLINE void group(const bool emulated, const float *x, size_t stride, size_t rows, size_t in, size_t terms,
                     unsigned char *dst) {
    for (size_t at = 0; at < in; at += 32, dst += terms * WIDE_BLOCK) {
        const __mmask16 lo = lanes_below(in - at), hi = in - at > 16 ? lanes_below(in - at - 16) : 0;
        for (size_t r = 0; r < 16; r++) {
            __m512 a = _mm512_setzero_ps(), b = a;
            if (r < rows) {
                a = _mm512_maskz_loadu_ps(lo, x + r * stride + at);
                b = _mm512_maskz_loadu_ps(hi, x + r * stride + at + 16);
            }
            for (size_t t = 0; t < terms; t++) {
                const __m512i v = to_bf16(emulated, a, b);
                _mm512_store_si512((void *)(dst + t * WIDE_BLOCK + 64 * r), v);
                less(&a, &b, v);
            }
        }
    }
}

/* Four codes of each of 16 outputs times their scale: two rows of pairs. */
Q8_INLINE void four_inputs(const bool emulated, const bool has_min, __m512i codes, __m512 scale, __m512 min,
                           unsigned char *dst) {
    __m512 v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512i code = has_min ? _mm512_and_si512(_mm512_srli_epi32(codes, 8 * (unsigned)i), _mm512_set1_epi32(0xFF))
                               : _mm512_srai_epi32(_mm512_slli_epi32(codes, 24 - 8 * (unsigned)i), 24);
        __m512 f = _mm512_cvtepi32_ps(code);
        v[i] = has_min ? _mm512_fmadd_ps(f, scale, min) : _mm512_mul_ps(f, scale);
    }
    _mm512_store_si512((void *)dst, pairs_of(emulated, v[0], v[1]));
    _mm512_store_si512((void *)(dst + 64), pairs_of(emulated, v[2], v[3]));
}

Q8_INLINE void chunk_weights(const bool emulated, const bool has_min, const bool halves, const struct q8_chunk *c,
                             size_t count, unsigned char *dst) {
    for (size_t b = 0; b < count; b++) {
        const size_t lower = halves ? 2 * b : b, upper = halves ? 2 * b + 1 : b;
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const size_t t = half == 0 ? lower : upper;
            const __m512 scale = _mm512_load_ps(c->scale[t]), min = _mm512_load_ps(c->min[t]);
#pragma GCC unroll 4
            for (int j = 4 * half; j < 4 * half + 4; j++)
                four_inputs(emulated, has_min, _mm512_load_si512((const void *)(c->codes[t] + 64 * j)), scale, min,
                            dst + b * WIDE_BLOCK + 128 * j);
        }
    }
}

Q8_INLINE void weights(const bool emulated, const struct pl_cpu_weight *w, size_t tile, size_t first, size_t count,
                       unsigned char *dst) {
    if (w->kind == KIND_FLOAT) { /* rows of inputs, turned */
        const size_t blocks = count * avx512_weight_terms(w, tile, first, count, dst);
        for (size_t b = 0; b < blocks; b++) avx512_turn((uint32_t(*)[16])(void *)(dst + b * WIDE_BLOCK));
        return;
    }
    struct q8_chunk chunk;
    const struct cpu_tile_format *f = w->format;
    const bool halves = f->scale == SCALE_K16 || f->scale == SCALE_K16N;
    chunk_unpack_fn unpack_blocks = avx512_chunk_unpack(f);
    for (size_t at = 0, n; at < count; at += n, dst += n * WIDE_BLOCK) {
        n = PL_MIN((size_t)CHUNK_BLOCKS, count - at);
        unpack_blocks(w, w->tiles + tile * w->layout.bytes, first + at, n, true, &chunk);
        if (f->has_min && halves)
            chunk_weights(emulated, true, true, &chunk, n, dst);
        else if (f->has_min)
            chunk_weights(emulated, true, false, &chunk, n, dst);
        else if (halves)
            chunk_weights(emulated, false, true, &chunk, n, dst);
        else
            chunk_weights(emulated, false, false, &chunk, n, dst);
    }
}

void avx512_wide_group(const float *x, size_t stride, size_t rows, size_t in, size_t terms, unsigned char *dst) {
    group(false, x, stride, rows, in, terms, dst);
}
void avx512_wide_group_emulated(const float *x, size_t stride, size_t rows, size_t in, size_t terms, unsigned char *dst) {
    group(true, x, stride, rows, in, terms, dst);
}
void avx512_wide_weights(const struct pl_cpu_weight *w, size_t tile, size_t first, size_t count, unsigned char *dst) {
    weights(false, w, tile, first, count, dst);
}
void avx512_wide_weights_emulated(const struct pl_cpu_weight *w, size_t tile, size_t first, size_t count,
                                  unsigned char *dst) {
    weights(true, w, tile, first, count, dst);
}
