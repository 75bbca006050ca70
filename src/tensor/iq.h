/* iq - the fields of blocks of IQ1, IQ2 and IQ3 that stand in several places, and the code books. b points at a block;
 * README.md has the layouts. */
#ifndef PL_TENSOR_IQ_H
#define PL_TENSOR_IQ_H

#include <stddef.h>

#include "tensor/iq_grids.h"

static inline uint32_t pl_iq_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Signs of eight elements from the lowest seven bits: an even number of them is negative. */
static inline uint32_t pl_iq_signs(uint32_t seven) {
    uint32_t s = seven & 127u, odd = s ^ s >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return s | (odd & 1u) << 7;
}

/* Index of entry j (eight elements of 256, or four of iq3_s). */
static inline uint32_t pl_iq2_s_index(const uint8_t *b, size_t j) {
    return b[2 + j] | ((uint32_t)b[66 + j / 4] >> (j % 4 * 2) & 3u) << 8;
}
static inline uint32_t pl_iq3_s_index(const uint8_t *b, size_t j) {
    return b[2 + j] | ((uint32_t)b[66 + j / 8] >> (j % 8) & 1u) << 8;
}

/* iq1_m has four words of 16 bits at the end of a block: each has four scales of three bits below a digit of d. */
static inline uint16_t pl_iq1_m_d(const uint8_t *b) { /* the bits of an f16 */
    return (uint16_t)(b[49] >> 4 | (b[51] >> 4) << 4 | (b[53] >> 4) << 8 | (b[55] >> 4) << 12);
}
static inline void pl_iq1_m_put_d(uint8_t *b, uint16_t d) {
    for (int i = 0; i < 4; i++) b[49 + 2 * i] = (uint8_t)((b[49 + 2 * i] & 15) | (d >> (4 * i) & 15) << 4);
}
/* Scale of the 16 elements from 16 j on. */
static inline uint32_t pl_iq1_m_scale(const uint8_t *b, size_t j) {
    const uint8_t *p = b + 48 + j / 4 * 2;
    return ((uint32_t)p[0] | (uint32_t)p[1] << 8) >> (j % 4 * 3) & 7u;
}

#endif
