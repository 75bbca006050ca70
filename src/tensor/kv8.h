/* kv8 - keys and values in 8 bits: the codes of one token and head, then the one f32 that scales them.
 *
 * PL_I8: whole numbers up to 127; PL_F8: e4m3 (4 bits of exponent with bias 7, 3 of mantissa, no infinity, up to 448);
 * PL_K8V4: keys as in PL_I8, values in 4 bits (kv4.h). The
 * scale makes the largest magnitude the largest code; codes are rounded to nearest even. Here, so that each instruction
 * set's files make their own vectors of it; the bits are the same in all of them and in kernels/kv.h. */
#ifndef PL_TENSOR_KV8_H
#define PL_TENSOR_KV8_H

#include <string.h>

#include "tensor/dtype.h"
#include "tensor/kv4.h"

static inline bool pl_is_kv8(enum pl_dtype t) { return t == PL_I8 || t == PL_F8 || t == PL_K8V4; }
/* Head sizes that a cache of this type takes are multiples of this. */
static inline size_t pl_kv_multiple(enum pl_dtype t) { return t == PL_K8V4 ? PL_KV4_MULTIPLE : pl_is_kv8(t) ? 4 : 1; }
/* Bytes of n numbers of one token and head in a cache of this type. */
static inline size_t pl_kv_key_bytes(enum pl_dtype t, size_t n) {
    return pl_is_kv8(t) ? n + sizeof(float) : n * pl_dtype_info(t)->block_bytes;
}
static inline size_t pl_kv_value_bytes(enum pl_dtype t, size_t n) {
    return t == PL_K8V4 ? n / 2 + sizeof(float) : pl_kv_key_bytes(t, n);
}

static inline uint32_t pl_kv8_bits(float v) {
    uint32_t u;
    memcpy(&u, &v, 4);
    return u;
}
static inline float pl_kv8_number(uint32_t u) {
    float v;
    memcpy(&v, &u, 4);
    return v;
}
static inline uint8_t pl_f8_from_f32(float v) { /* |v| <= 448 */
    uint32_t u = pl_kv8_bits(v), mag = u & 0x7FFFFFFFu;
    uint32_t normal = ((mag + 0x7FFFFu + (mag >> 20 & 1u)) >> 20) - (120u << 3);
    uint32_t small = pl_kv8_bits(pl_kv8_number(mag) * 512.0f + 12582912.0f) & 0xFFu; /* steps of 2^-9 */
    return (uint8_t)((mag < 0x3C800000u ? small : normal) | (u >> 24 & 0x80u));
}
static inline float pl_f8_to_f32(uint8_t c) {
    const int32_t mag = c & 0x7F; /* masks, not branches: loops of this become vectors */
    const uint32_t below = (uint32_t)((mag - 8) >> 31), small = pl_kv8_bits((float)mag * 0x1p-9f);
    const uint32_t normal = ((uint32_t)mag << 20) + (120u << 23);
    return pl_kv8_number((small & below) | (normal & ~below) | (c & 0x80u) << 24);
}

static inline void pl_kv8_put(enum pl_dtype t, const float *x, size_t n, uint8_t *to) {
    int32_t top = 0;
    for (size_t i = 0; i < n; i++) { /* larger numbers have larger bits */
        int32_t b = (int32_t)(pl_kv8_bits(x[i]) & 0x7FFFFFFFu);
        top = b > top ? b : top;
    }
    const float max = pl_kv8_number((uint32_t)top), most = t == PL_F8 ? 448.0f : 127.0f;
    const float by = max > 1e-30f ? most / max : 0.0f, scale = max / most;
    if (t != PL_F8) {
        for (size_t i = 0; i < n; i++) to[i] = (uint8_t)(pl_kv8_bits(x[i] * by + 12582912.0f) & 0xFFu);
    } else {
        for (size_t i = 0; i < n; i++) to[i] = pl_f8_from_f32(x[i] * by);
    }
    memcpy(to + n, &scale, sizeof scale);
}
/* The first `want` of a vector of n. */
static inline void pl_kv8_get(enum pl_dtype t, const uint8_t *from, size_t n, size_t want, float *x) {
    float scale;
    memcpy(&scale, from + n, sizeof scale);
    if (t != PL_F8) {
        for (size_t i = 0; i < want; i++) x[i] = (float)(int8_t)from[i] * scale;
    } else {
        for (size_t i = 0; i < want; i++) x[i] = pl_f8_to_f32(from[i]) * scale;
    }
}

#endif
