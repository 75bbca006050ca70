/* philox - Philox4x32-10, a counter-based random generator (Salmon et al. 2011).
 * The same (counter, key) gives the same four words everywhere: no state, no order, no launch shape. */
#ifndef PL_BASE_PHILOX_H
#define PL_BASE_PHILOX_H

#include <stdint.h>

struct pl_philox {
    uint32_t v[4];
};

static inline struct pl_philox pl_philox4x32(const uint32_t counter[4], const uint32_t key[2]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (struct pl_philox){{c0, c1, c2, c3}};
}

/* Uniform in the open interval (0,1): 23 bits and a half, so that no rounding reaches 0 or 1. */
static inline float pl_uniform_open(uint32_t bits) { return ((float)(bits >> 9) + 0.5f) * 0x1p-23f; }

#endif
