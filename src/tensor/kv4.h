/* kv4 - values in 4 bits: of each token and head one rotated vector, 16 levels, one scale.
 *
 * A vector of n numbers is turned by random signs and then a Walsh-Hadamard matrix (in blocks of the largest power of two
 * that divides n): what comes out is spread like a normal distribution whatever its channels were like. Its numbers, over
 * their root mean square, become the nearest of 16 levels: the Lloyd-Max codebook of the normal distribution, rounded to
 * f16. The scale is the one that makes the squared error least. Attention sums turned vectors; its sum is turned back once,
 * as the rotation is linear. Stored: n / 2 bytes, element 2 i in the low half of byte i (bit 3 is the sign), then the f32
 * scale, which holds the 1 / block that a rotation and its inverse leave. The same in kernels/kv.h. */
#ifndef PL_TENSOR_KV4_H
#define PL_TENSOR_KV4_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { PL_KV4_MULTIPLE = 16, PL_KV4_MAX = 1024 }; /* of head sizes */

static const float pl_kv4_levels[16] = {0.12841796875f,  0.387939453125f,  0.65673828125f,  0.9423828125f,
                                        1.255859375f,    1.6181640625f,    2.068359375f,    2.732421875f,
                                        -0.12841796875f, -0.387939453125f, -0.65673828125f, -0.9423828125f,
                                        -1.255859375f,   -1.6181640625f,   -2.068359375f,   -2.732421875f};

/* 1 or -1, by the element's place alone. */
static inline float pl_kv4_sign(size_t i) {
    uint32_t h = ((uint32_t)i + 1u) * 0x9E3779B1u;
    h = (h ^ h >> 15) * 0x85EBCA6Bu;
    return (h ^ h >> 13) & 1u ? -1.0f : 1.0f;
}
static inline size_t pl_kv4_block(size_t n) { return n & (~n + 1u); }

/* Times the Walsh-Hadamard matrix of each block, entries 1 and -1: twice is times the block. */
static inline void pl_kv4_transform(float *x, size_t n) {
    for (size_t h = 1; h < pl_kv4_block(n); h *= 2) {
        for (size_t i = 0; i < n; i += 2 * h) {
            for (size_t j = i; j < i + h; j++) {
                float a = x[j], b = x[j + h];
                x[j] = a + b;
                x[j + h] = a - b;
            }
        }
    }
}
static inline void pl_kv4_turn(const float *x, size_t n, float *y) {
    for (size_t i = 0; i < n; i++) y[i] = x[i] * pl_kv4_sign(i);
    pl_kv4_transform(y, n);
}
static inline void pl_kv4_turn_back(float *x, size_t n) {
    pl_kv4_transform(x, n);
    for (size_t i = 0; i < n; i++) x[i] *= pl_kv4_sign(i);
}

/* The nearest level's place; of two the smaller. */
static inline uint32_t pl_kv4_code(float v) {
    uint32_t place = 0;
    float mag = fabsf(v);
    for (size_t i = 0; i < 7; i++) place += mag > 0.5f * (pl_kv4_levels[i] + pl_kv4_levels[i + 1]);
    return place | (v < 0 ? 8u : 0u);
}

static inline void pl_kv4_put(const float *x, size_t n, uint8_t *to) {
    float y[PL_KV4_MAX], squares = 0, along = 0, levels = 0;
    pl_kv4_turn(x, n, y);
    for (size_t i = 0; i < n; i++) squares += y[i] * y[i];
    const float by = squares > 1e-30f ? sqrtf((float)n / squares) : 0.0f;
    for (size_t i = 0; i < n; i += 2) {
        uint32_t a = pl_kv4_code(y[i] * by), b = pl_kv4_code(y[i + 1] * by);
        to[i / 2] = (uint8_t)(a | b << 4);
        along += y[i] * pl_kv4_levels[a] + y[i + 1] * pl_kv4_levels[b];
        levels += pl_kv4_levels[a] * pl_kv4_levels[a] + pl_kv4_levels[b] * pl_kv4_levels[b];
    }
    const float scale = along / levels / (float)pl_kv4_block(n);
    memcpy(to + n / 2, &scale, sizeof scale);
}
/* Turned as it is: pl_kv4_turn_back gives the vector. */
static inline void pl_kv4_get(const uint8_t *from, size_t n, float *x) {
    float scale;
    memcpy(&scale, from + n / 2, sizeof scale);
    for (size_t i = 0; i < n; i++) x[i] = pl_kv4_levels[from[i / 2] >> (i % 2 * 4) & 15u] * scale;
}

#endif
