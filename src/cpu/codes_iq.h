/* codes_iq - the codes of the types with grids (tensor/iq.h): which of the type's magnitudes, with the sign in the bit above
 * it (tile.h has their books). As codes.h; included by pack.c only. */
#ifndef PL_CPU_CODES_IQ_H
#define PL_CPU_CODES_IQ_H

#include "cpu/codes.h"
#include "tensor/iq.h"

/* 32 codes from four eights; bit i of signs[k]: element i of eight k is negative. */
CODE_INLINE struct codes with_signs(const uint64_t *eights, const unsigned char *signs, const unsigned bit) {
    const v16 lo = sixteen_bits((uint16_t)(signs[0] | signs[1] << 8)),
              hi = sixteen_bits((uint16_t)(signs[2] | signs[3] << 8));
    return (struct codes){(v16)(v2d){eights[0], eights[1]} | (v16)((v8h)lo >> (uint16_t)(4 - bit)),
                          (v16)(v2d){eights[2], eights[3]} | (v16)((v8h)hi >> (uint16_t)(4 - bit))};
}

/* Four times seven signs as bytes. */
CODE_INLINE void four_signs(uint32_t sevens, unsigned char *signs) {
    for (unsigned k = 0; k < 4; k++) signs[k] = (unsigned char)pl_iq_signs(sevens >> (7 * k));
}

CODE_INLINE struct codes codes_iq2_xxs(const unsigned char *row, size_t b) {
    const unsigned char *p = row + b / 8 * 66 + 2 + b % 8 * 8;
    uint64_t eights[4];
    unsigned char signs[4];
    for (int k = 0; k < 4; k++) eights[k] = eight_codes(pl_iq2_xxs_grid[p[k]], 2);
    four_signs(pl_iq_u32(p + 4), signs);
    return with_signs(eights, signs, 2);
}
CODE_INLINE struct codes codes_iq2_xs(const unsigned char *row, size_t b) {
    const unsigned char *p = row + b / 8 * 74 + 2 + b % 8 * 8;
    uint64_t eights[4];
    unsigned char signs[4];
    for (int k = 0; k < 4; k++) {
        eights[k] = eight_codes(pl_iq2_xs_grid[p[2 * k] | (p[2 * k + 1] & 1u) << 8], 2);
        signs[k] = (unsigned char)pl_iq_signs(p[2 * k + 1] >> 1);
    }
    return with_signs(eights, signs, 2);
}
CODE_INLINE struct codes codes_iq2_s(const unsigned char *row, size_t b) {
    const unsigned char *s = row + b / 8 * 82;
    uint64_t eights[4];
    for (size_t k = 0; k < 4; k++) eights[k] = eight_codes(pl_iq2_s_grid[pl_iq2_s_index(s, b % 8 * 4 + k)], 2);
    return with_signs(eights, s + 34 + b % 8 * 4, 2);
}
/* Two entries of four elements, three bits each. */
CODE_INLINE uint64_t two_entries(uint16_t first, uint16_t second) {
    return eight_codes((uint64_t)first | (uint64_t)second << 12, 3);
}
CODE_INLINE struct codes codes_iq3_xxs(const unsigned char *row, size_t b) {
    const unsigned char *s = row + b / 8 * 98, *p = s + 2 + b % 8 * 8;
    uint64_t eights[4];
    unsigned char signs[4];
    for (int k = 0; k < 4; k++) eights[k] = two_entries(pl_iq3_xxs_grid[p[2 * k]], pl_iq3_xxs_grid[p[2 * k + 1]]);
    four_signs(pl_iq_u32(s + 66 + b % 8 * 4), signs);
    return with_signs(eights, signs, 3);
}
CODE_INLINE struct codes codes_iq3_s(const unsigned char *row, size_t b) {
    const unsigned char *s = row + b / 8 * 110;
    uint64_t eights[4];
    for (size_t k = 0; k < 4; k++) {
        const size_t j = b % 8 * 8 + 2 * k;
        eights[k] = two_entries(pl_iq3_s_grid[pl_iq3_s_index(s, j)], pl_iq3_s_grid[pl_iq3_s_index(s, j + 1)]);
    }
    return with_signs(eights, s + 74 + b % 8 * 4, 3);
}
/* A "sign" of iq1 says which way all eight elements are shifted. */
CODE_INLINE struct codes codes_iq1_s(const unsigned char *row, size_t b) {
    const unsigned char *s = row + b / 8 * 50, *p = s + 2 + b % 8 * 4;
    const uint32_t rest = (uint32_t)s[34 + b % 8 * 2] | (uint32_t)s[35 + b % 8 * 2] << 8;
    const uint64_t shift = rest >> 15 != 0 ? 0x0404040404040404u : 0;
    uint64_t eights[4];
    for (int k = 0; k < 4; k++) eights[k] = eight_codes(pl_iq1_grid[p[k] | (rest >> (3 * k) & 7u) << 8], 2) | shift;
    return (struct codes){(v16)(v2d){eights[0], eights[1]}, (v16)(v2d){eights[2], eights[3]}};
}
CODE_INLINE struct codes codes_iq1_m(const unsigned char *row, size_t b) {
    const unsigned char *s = row + b / 8 * 56, *p = s + b % 8 * 4;
    uint64_t eights[4];
    for (size_t k = 0; k < 4; k++) {
        const uint32_t rest = (uint32_t)s[32 + b % 8 * 2 + k / 2] >> (k % 2 * 4) & 15u;
        eights[k] = eight_codes(pl_iq1_grid[p[k] | (rest & 7u) << 8], 2) | (rest >> 3 != 0 ? 0x0404040404040404u : 0);
    }
    return (struct codes){(v16)(v2d){eights[0], eights[1]}, (v16)(v2d){eights[2], eights[3]}};
}

#endif
