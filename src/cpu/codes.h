/* codes - each format's 32 unsigned codes of a block, sixteen bytes at a time. Vectors are the compiler's own kind, so
 * this file is the same on every architecture. Included by pack.c only. */
#ifndef PL_CPU_CODES_H
#define PL_CPU_CODES_H

#include <string.h>

#include "cpu/tile.h"

#define CODE_INLINE static inline __attribute__((always_inline))

typedef uint8_t v16 __attribute__((vector_size(16)));
typedef uint16_t v8h __attribute__((vector_size(16)));
typedef uint32_t v4w __attribute__((vector_size(16)));
typedef uint64_t v2d __attribute__((vector_size(16)));

struct codes {
    v16 lo, hi; /* codes 0..15, 16..31 */
};

CODE_INLINE v16 load16(const unsigned char *p) {
    v16 v;
    memcpy(&v, p, 16);
    return v;
}
CODE_INLINE v16 splat(uint8_t b) { return (v16){0} + b; }
/* (byte >> shift) & mask for every byte: what a neighbour shifts in lies above the mask. */
CODE_INLINE v16 field(v16 v, unsigned shift, uint8_t mask) { return (v16)((v8h)v >> (uint16_t)shift) & splat(mask); }
/* byte << shift; the bytes hold no bits that would leave them. */
CODE_INLINE v16 up(v16 v, unsigned shift) { return (v16)((v8h)v << (uint16_t)shift); }

CODE_INLINE struct codes fields(const unsigned char *p, unsigned shift, uint8_t mask) {
    return (struct codes){field(load16(p), shift, mask), field(load16(p + 16), shift, mask)};
}
CODE_INLINE struct codes with(struct codes c, struct codes high, unsigned shift) {
    return (struct codes){c.lo | up(high.lo, shift), c.hi | up(high.hi, shift)};
}
CODE_INLINE struct codes nibbles(const unsigned char *qs) {
    v16 v = load16(qs);
    return (struct codes){v & splat(15), field(v, 4, 15)};
}

/* Bit j of 32 as code j's bit 4. */
CODE_INLINE v16 sixteen_bits(uint16_t bits) {
    const v16 each = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint64_t ones = 0x0101010101010101u;
    v16 spread = (v16)(v2d){(bits & 255u) * ones, (uint64_t)(bits >> 8) * ones};
    return (v16)((spread & each) == each) & splat(16);
}
CODE_INLINE struct codes fifth_bits(struct codes c, const unsigned char *p) {
    uint16_t b[2];
    memcpy(b, p, 4);
    return (struct codes){c.lo | sixteen_bits(b[0]), c.hi | sixteen_bits(b[1])};
}

CODE_INLINE struct codes codes_q4_0(const unsigned char *row, size_t b) { return nibbles(row + b * 18 + 2); }
CODE_INLINE struct codes codes_q4_1(const unsigned char *row, size_t b) { return nibbles(row + b * 20 + 4); }
CODE_INLINE struct codes codes_q5_0(const unsigned char *row, size_t b) {
    return fifth_bits(nibbles(row + b * 22 + 6), row + b * 22 + 2);
}
CODE_INLINE struct codes codes_q5_1(const unsigned char *row, size_t b) {
    return fifth_bits(nibbles(row + b * 24 + 8), row + b * 24 + 4);
}
CODE_INLINE struct codes codes_q8_0(const unsigned char *row, size_t b) {
    const unsigned char *p = row + b * 34 + 2;
    return (struct codes){load16(p) ^ splat(0x80), load16(p + 16) ^ splat(0x80)};
}
CODE_INLINE struct codes codes_mxfp4(const unsigned char *row, size_t b) { return nibbles(row + b * 17 + 1); }
CODE_INLINE struct codes codes_iq4_xs(const unsigned char *row, size_t b) {
    return nibbles(row + b / 8 * 136 + 8 + b % 8 * 16);
}
CODE_INLINE struct codes codes_q4_k(const unsigned char *row, size_t b) {
    return fields(row + b / 8 * 144 + 16 + b % 8 / 2 * 32, b % 2 * 4, 15);
}
CODE_INLINE struct codes codes_q5_k(const unsigned char *row, size_t b) {
    const unsigned char *s = row + b / 8 * 176;
    return with(fields(s + 48 + b % 8 / 2 * 32, b % 2 * 4, 15), fields(s + 16, (unsigned)(b % 8), 1), 4);
}
CODE_INLINE struct codes codes_q6_k(const unsigned char *row, size_t b) {
    const unsigned char *s = row + b / 8 * 210;
    size_t half = b % 8 / 4, quarter = b % 4;
    return with(fields(s + half * 64 + quarter % 2 * 32, (unsigned)(quarter / 2 * 4), 15),
                fields(s + 128 + half * 32, (unsigned)(quarter * 2), 3), 4);
}
CODE_INLINE struct codes codes_q2_k(const unsigned char *row, size_t b) {
    return fields(row + b / 8 * 84 + 16 + b % 8 / 4 * 32, (unsigned)(b % 4 * 2), 3);
}
CODE_INLINE struct codes codes_q3_k(const unsigned char *row, size_t b) {
    const unsigned char *s = row + b / 8 * 110;
    return with(fields(s + 32 + b % 8 / 4 * 32, (unsigned)(b % 4 * 2), 3), fields(s, (unsigned)(b % 8), 1), 2);
}
CODE_INLINE struct codes codes_tq2_0(const unsigned char *row, size_t b) {
    return fields(row + b / 8 * 66 + b % 8 / 4 * 32, (unsigned)(b % 4 * 2), 3);
}

/* Trit n of bytes: three times the fraction that is left after n digits, rounded down; 3 t / 256 is the number of
 * 86 and 171 that t reaches. */
CODE_INLINE v16 trits(v16 bytes, v16 pow3) {
    v16 t = bytes * pow3;
    return (v16){0} - (v16)(t > splat(85)) - (v16)(t > splat(170));
}
/* 5 x 32 elements in 32 bytes, 5 x 16 in 16, 4 x 4 in 4. */
CODE_INLINE struct codes codes_tq1_0(const unsigned char *row, size_t b) {
    static const uint8_t pow3[5] = {1, 3, 9, 27, 81};
    const unsigned char *s = row + b / 8 * 54;
    size_t k = b % 8;
    if (k < 5) return (struct codes){trits(load16(s), splat(pow3[k])), trits(load16(s + 16), splat(pow3[k]))};
    v16 a = load16(s + 32);
    if (k < 7) return (struct codes){trits(a, splat(pow3[2 * k - 10])), trits(a, splat(pow3[2 * k - 9]))};
    uint32_t last;
    memcpy(&last, s + 48, 4);
    const v16 powers = {1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27};
    return (struct codes){trits(a, splat(pow3[4])), trits((v16)((v4w){0} + last), powers)};
}

CODE_INLINE struct codes codes_ternary(const unsigned char *row, size_t b) {
    uint32_t w[2];
    memcpy(w, row + 8 * b, 8);
    return (struct codes){(v16)(v4w){w[0], w[0] >> 2, w[0] >> 4, w[0] >> 6} & splat(3),
                          (v16)(v4w){w[1], w[1] >> 2, w[1] >> 4, w[1] >> 6} & splat(3)};
}

/* MLX: a stream of bits, the first code lowest. */
CODE_INLINE v16 interleave_low(v16 a, v16 b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
CODE_INLINE v16 interleave_high(v16 a, v16 b) {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
CODE_INLINE struct codes codes_mlx2(const unsigned char *row, size_t b) {
    v2d raw = {0, 0};
    memcpy(&raw, row + b * 8, 8);
    v16 v = (v16)raw, even = interleave_low(v & splat(3), field(v, 4, 3)), /* codes 0, 2 of every byte */
        odd = interleave_low(field(v, 2, 3), field(v, 6, 3));
    return (struct codes){interleave_low(even, odd), interleave_high(even, odd)};
}
CODE_INLINE struct codes codes_mlx4(const unsigned char *row, size_t b) {
    struct codes c = nibbles(row + b * 16);
    return (struct codes){interleave_low(c.lo, c.hi), interleave_high(c.lo, c.hi)};
}
CODE_INLINE struct codes codes_mlx8(const unsigned char *row, size_t b) {
    return (struct codes){load16(row + b * 32), load16(row + b * 32 + 16)};
}
/* Eight codes, the lowest 8 * bits bits of v, spread to a byte each by halves. */
CODE_INLINE uint64_t eight_codes(uint64_t v, const unsigned bits) {
    const uint64_t fours = (1u << (4 * bits)) - 1u, twos = ((1u << (2 * bits)) - 1u) * 0x0000000100000001u,
                   ones = ((1u << bits) - 1u) * 0x0001000100010001u;
    v = (v & fours) | (v >> (4 * bits) & fours) << 32;
    v = (v & twos) | (v >> (2 * bits) & twos) << 16;
    return (v & ones) | (v >> bits & ones) << 8;
}
CODE_INLINE struct codes codes_mlx3(const unsigned char *row, size_t b) {
    uint64_t v;
    uint32_t end;
    memcpy(&v, row + b * 12, 8);
    memcpy(&end, row + b * 12 + 8, 4);
    return (struct codes){(v16)(v2d){eight_codes(v, 3), eight_codes(v >> 24, 3)},
                          (v16)(v2d){eight_codes(v >> 48 | (uint64_t)end << 16, 3), eight_codes(end >> 8, 3)}};
}
CODE_INLINE struct codes codes_mlx5(const unsigned char *row, size_t b) {
    uint64_t v[2];
    uint32_t end;
    memcpy(v, row + b * 20, 16);
    memcpy(&end, row + b * 20 + 16, 4);
    return (struct codes){(v16)(v2d){eight_codes(v[0], 5), eight_codes(v[0] >> 40 | v[1] << 24, 5)},
                          (v16)(v2d){eight_codes(v[1] >> 16, 5), eight_codes(v[1] >> 56 | (uint64_t)end << 8, 5)}};
}
CODE_INLINE struct codes codes_mlx6(const unsigned char *row, size_t b) {
    uint64_t v[3];
    memcpy(v, row + b * 24, 24);
    return (struct codes){(v16)(v2d){eight_codes(v[0], 6), eight_codes(v[0] >> 48 | v[1] << 16, 6)},
                          (v16)(v2d){eight_codes(v[1] >> 32 | v[2] << 32, 6), eight_codes(v[2] >> 16, 6)}};
}

#endif
