/* Activations and weights as bf16 in the order that wide products take them. Activations twice: with the instruction that
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
#if defined(PL_AVX512_EMULATED)
    return (__m512i)_mm512_cvtne2ps_pbh(b, a);
#else
    __m512i out;
    __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(out) : "v"(a), "v"(b));
    return out;
#endif
}
Q8_INLINE __mmask16 lanes_below(size_t n) { return (__mmask16)(n >= 16 ? 0xFFFFu : (1u << n) - 1u); }

/* What is left of 32 values once `taken` is subtracted. */
Q8_INLINE void less(__m512 *a, __m512 *b, __m512i taken) {
    const __m512i lo = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(taken)),
                  hi = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(taken, 1));
    *a = _mm512_sub_ps(*a, _mm512_castsi512_ps(_mm512_slli_epi32(lo, 16)));
    *b = _mm512_sub_ps(*b, _mm512_castsi512_ps(_mm512_slli_epi32(hi, 16)));
}

Q8_INLINE void rows_of_group(const bool emulated, const float *x, size_t stride, size_t in, const struct wide_rows *to,
                             size_t g) {
    const size_t rows = PL_MIN((size_t)16, to->rows - 16 * g), terms = to->terms;
    for (size_t at = 0; at < in; at += 32) {
        unsigned char *dst = wide_block(to, g, at / 32);
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

/* --- weights ---
 * A code of n bits behind the leading one of an f32 is 1 + code / 2^n, without a conversion; scale and minimum make up for
 * it. What is rounded is off by half a last bit of 2^n scales at most. */
struct line {
    __m512 scale, min;
};
/* value = scale * (code - offset) + min, of codes of n bits */
Q8_INLINE struct line line_of(__m512 scale, __m512 min, const int bits, const float offset) {
    const struct line l = {_mm512_mul_ps(scale, _mm512_set1_ps((float)(1 << bits))),
                           _mm512_fnmadd_ps(scale, _mm512_set1_ps((float)(1 << bits) + offset), min)};
    return l;
}
/* The code of `bits` bits at bit `at` of every dword, as bits of its value half a step further from zero. */
Q8_INLINE __m512i value_bits(__m512i codes, const int at, const int bits, const struct line *l) {
    const int to = 23 - bits;
    const __m512i there = at > to   ? _mm512_srli_epi32(codes, (unsigned)(at - to))
                          : at < to ? _mm512_slli_epi32(codes, (unsigned)(to - at))
                                    : codes;
    const __m512i one = or_masked(_mm512_set1_epi32(0x3F800000), there, _mm512_set1_epi32(((1 << bits) - 1) << to));
    const __m512 v = _mm512_fmadd_ps(_mm512_castsi512_ps(one), l->scale, l->min);
    return _mm512_add_epi32(_mm512_castps_si512(v), _mm512_set1_epi32(0x8000));
}
/* The codes at two places of every dword as a row of pairs; of two equally near the one further from zero. */
Q8_INLINE void put_pairs(__m512i codes, const int at, const int second, const int bits, const struct line *l,
                         unsigned char *dst) {
    const __m512i lower = _mm512_srli_epi32(value_bits(codes, at, bits, l), 16), upper = value_bits(codes, second, bits, l);
    _mm512_store_si512((void *)dst, or_masked(lower, upper, _mm512_set1_epi32((int)0xFFFF0000u)));
}

/* Codes of four bits straight from their planes. */
Q8_INLINE void nibbles(const struct q8_instance k, const struct pl_cpu_weight *w, size_t tile, size_t first, size_t count,
                       unsigned char *dst) {
    const unsigned char *data = w->tiles + tile * w->layout.bytes;
    const float offset = k.offset_log2 == NO_OFFSET ? 0.0f : (float)(1u << (k.offset_log2 & 31));
    for (size_t b = 0; b < count; b++, dst += WIDE_BLOCK) {
        const struct q8_scales s = load_scales(k, w, data, first + b);
        const struct line l = line_of(s.s[0], s.m[0], 4, offset);
        cpu_prefetch_block(k.storage, k.scale, &w->layout, data, first + b);
#pragma GCC unroll 4
        for (int p = 0; p < 4; p++) {
            const __m512i v = load64(data + (first + b) * w->layout.plane_bytes + 64 * p);
            put_pairs(v, 0, 8, 4, &l, dst + 128 * p);
            put_pairs(v, 16, 24, 4, &l, dst + 128 * p + 64);
            put_pairs(v, 4, 12, 4, &l, dst + 512 + 128 * p);
            put_pairs(v, 20, 28, 4, &l, dst + 512 + 128 * p + 64);
        }
    }
}

/* Codes of n bits that were widened to bytes. */
Q8_INLINE void chunk_weights(const int bits, const bool halves, const float offset, const struct q8_chunk *c, size_t count,
                             unsigned char *dst) {
    for (size_t b = 0; b < count; b++) {
        const size_t lower = halves ? 2 * b : b, upper = halves ? 2 * b + 1 : b;
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const size_t t = half == 0 ? lower : upper;
            const struct line l = line_of(_mm512_load_ps(c->scale[t]), _mm512_load_ps(c->min[t]), bits, offset);
#pragma GCC unroll 4
            for (int j = 4 * half; j < 4 * half + 4; j++) {
                const __m512i v = load64(c->codes[t] + 64 * j);
                put_pairs(v, 0, 8, bits, &l, dst + b * WIDE_BLOCK + 128 * j);
                put_pairs(v, 16, 24, bits, &l, dst + b * WIDE_BLOCK + 128 * j + 64);
            }
        }
    }
}

/* Bits of a code once it is a byte: those of its entry where there is a code book. */
static int code_bits(const struct cpu_tile_format *f) {
    static const int bits[] = {
        [STORE_U4] = 8, [STORE_U5] = 5, [STORE_U6] = 6, [STORE_U8] = 8, [STORE_U2] = 2, [STORE_U3] = 3};
    const bool book = f->scale == SCALE_K32E || f->scale == SCALE_K16E; /* of three bits: all of them have one */
    return book ? 8 : bits[f->storage];
}

static void chunks(const struct pl_cpu_weight *w, size_t tile, size_t first, size_t count, unsigned char *dst) {
    struct q8_chunk chunk;
    const struct cpu_tile_format *f = w->format;
    const bool halves = cpu_scale_halves(f->scale);
    const float offset = f->offset_log2 == NO_OFFSET ? 0.0f : (float)(1u << (f->offset_log2 & 31));
    chunk_unpack_fn unpack_blocks = avx512_chunk_unpack(f);
    for (size_t at = 0, n; at < count; at += n, dst += n * WIDE_BLOCK) {
        n = PL_MIN((size_t)CHUNK_BLOCKS, count - at);
        unpack_blocks(w, w->tiles + tile * w->layout.bytes, first + at, n, false, &chunk);
        switch (code_bits(f)) {
#define CHUNK_CASE(bits)                                        \
    case bits:                                                  \
        if (halves)                                             \
            chunk_weights(bits, true, offset, &chunk, n, dst);  \
        else                                                    \
            chunk_weights(bits, false, offset, &chunk, n, dst); \
        break;
            CHUNK_CASE(2)
            CHUNK_CASE(3)
            CHUNK_CASE(5)
            CHUNK_CASE(6)
            CHUNK_CASE(8)
#undef CHUNK_CASE
        }
    }
}

void avx512_wide_weights(const struct pl_cpu_weight *w, size_t tile, size_t first, size_t count, unsigned char *dst) {
    static const struct q8_instance q4_0 = {STORE_U4, SCALE_F16, false, 3, NULL},
                                    q4_1 = {STORE_U4, SCALE_F16, true, NO_OFFSET, NULL},
                                    q4_k = {STORE_U4, SCALE_K32, true, NO_OFFSET, NULL},
                                    mlx4 = {STORE_U4, SCALE_MLX, true, NO_OFFSET, NULL};
    if (w->kind == KIND_FLOAT) { /* rows of inputs, turned */
        const size_t blocks = count * avx512_weight_terms(w, tile, first, count, dst);
        for (size_t b = 0; b < blocks; b++) avx512_turn((uint32_t(*)[16])(void *)(dst + b * WIDE_BLOCK));
    } else if (w->t.dtype == PL_Q4_0) {
        nibbles(q4_0, w, tile, first, count, dst);
    } else if (w->t.dtype == PL_Q4_1) {
        nibbles(q4_1, w, tile, first, count, dst);
    } else if (w->t.dtype == PL_Q4_K) {
        nibbles(q4_k, w, tile, first, count, dst);
    } else if (w->t.dtype == PL_MLX && w->format->bits == 4) {
        nibbles(mlx4, w, tile, first, count, dst);
    } else {
        chunks(w, tile, first, count, dst);
    }
}

void avx512_wide_group(const float *x, size_t stride, size_t in, const struct wide_rows *to, size_t group) {
    rows_of_group(false, x, stride, in, to, group);
}
void avx512_wide_group_emulated(const float *x, size_t stride, size_t in, const struct wide_rows *to, size_t group) {
    rows_of_group(true, x, stride, in, to, group);
}
