/* convert - scalar conversion between f32 and the 16-bit types, round to nearest even, NaN kept NaN. */
#ifndef PL_TENSOR_CONVERT_H
#define PL_TENSOR_CONVERT_H

#include <stdint.h>
#include <string.h>

static inline float pl_bf16_to_f32(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint16_t pl_f32_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}
static inline float pl_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 31u, man = h & 1023u, u;
    if (exp == 31u) {
        u = sign | 0x7F800000u | (man << 13);
    } else if (exp != 0) {
        u = sign | ((exp + 112u) << 23) | (man << 13);
    } else {
        float f = (float)man * 0x1p-24f; /* subnormal or zero: exact */
        memcpy(&u, &f, 4);
        u |= sign;
    }
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint16_t pl_f32_to_f16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    uint16_t sign = (uint16_t)((u >> 16) & 0x8000u);
    uint32_t a = u & 0x7FFFFFFFu;
    if (a > 0x7F800000u) return (uint16_t)(sign | 0x7E00u);
    if (a >= 0x477FF000u) return (uint16_t)(sign | 0x7C00u); /* rounds past 65504 */
    if (a < 0x38800000u) {                                   /* below the smallest normal */
        float mag;
        memcpy(&mag, &a, 4);
        mag += 0.5f; /* the rounding of this sum keeps 24 fractional bits: units of 2^-24 */
        uint32_t m;
        memcpy(&m, &mag, 4);
        return (uint16_t)(sign | (m - 0x3F000000u));
    }
    a += 0xC8000FFFu + ((a >> 13) & 1u); /* rebias by -112 << 23 and round to nearest even */
    return (uint16_t)(sign | (a >> 13));
}

#endif
