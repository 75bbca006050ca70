/* f32 to the simple block types, rounding as the published reference quantisers do. For tests and tools. */
#include <math.h>

#include "tensor/dequant.h"
#include "tensor/quant.h"

static void store_f16(uint8_t *p, float f) {
    uint16_t h = pl_f32_to_f16(f);
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

static bool f16_finite(float f) { return (pl_f32_to_f16(f) & 0x7C00) != 0x7C00; }

/* The element with the largest magnitude, first one of equals, with its sign. */
static float extreme(const float *x) {
    float best = x[0];
    for (int i = 1; i < 32; i++) {
        if (fabsf(x[i]) > fabsf(best)) best = x[i];
    }
    return best;
}

static void range(const float *x, float *min, float *max) {
    *min = *max = x[0];
    for (int i = 1; i < 32; i++) {
        *min = x[i] < *min ? x[i] : *min;
        *max = x[i] > *max ? x[i] : *max;
    }
}

static float inverse(float d) { return d == 0 ? 0.0f : 1.0f / d; }

/* Rounds to nearest, halves away from zero, in f32 steps. */
static float round_away(float v) {
    float a = fabsf(v), whole = floorf(a), r = whole + floorf(2.0f * (a - whole));
    return v < 0 ? -r : r;
}

static int clip(float v, int max) { return v >= (float)max ? max : v <= 0 ? 0 : (int)v; }

/* Codes 0..2^bits - 1 of one block; the fifth bits go to a word of their own. */
static void pack(const int *q, int bits, uint8_t *high, uint8_t *nibbles) {
    for (int j = 0; j < 16; j++) nibbles[j] = (uint8_t)((q[j] & 15) | (q[j + 16] & 15) << 4);
    if (bits == 4) return;
    for (int j = 0; j < 32; j++) high[j / 8] = (uint8_t)((j % 8 == 0 ? 0 : high[j / 8]) | (q[j] >> 4 & 1) << (j % 8));
}

static bool quantize_q8_0(const float *x, uint8_t *b) {
    float d = fabsf(extreme(x)) / 127.0f, id = inverse(d);
    store_f16(b, d);
    for (int j = 0; j < 32; j++) b[2 + j] = (uint8_t)(int8_t)round_away(x[j] * id);
    return f16_finite(d);
}

/* q4_0 and q5_0: the largest magnitude becomes the most negative code. */
static bool quantize_symmetric(const float *x, int bits, uint8_t *b) {
    int half = 1 << (bits - 1), q[32];
    float d = extreme(x) / (float)-half, id = inverse(d);
    store_f16(b, d);
    for (int j = 0; j < 32; j++) q[j] = clip(truncf(x[j] * id + ((float)half + 0.5f)), 2 * half - 1);
    pack(q, bits, b + 2, b + (bits == 5 ? 6 : 2));
    return f16_finite(d);
}

/* q4_1 and q5_1: codes span minimum to maximum. */
static bool quantize_affine(const float *x, int bits, uint8_t *b) {
    int top = (1 << bits) - 1, q[32];
    float min, max;
    range(x, &min, &max);
    float d = (max - min) / (float)top, id = inverse(d);
    store_f16(b, d);
    store_f16(b + 2, min);
    for (int j = 0; j < 32; j++) q[j] = clip(truncf((x[j] - min) * id + 0.5f), top);
    pack(q, bits, b + 4, b + (bits == 5 ? 8 : 4));
    return f16_finite(d) && f16_finite(min);
}

static bool quantize_block(enum pl_dtype t, const float *x, uint8_t *b) {
    for (int i = 0; i < 32; i++) {
        if (!isfinite(x[i])) return false;
    }
    switch (t) {
    case PL_Q8_0: return quantize_q8_0(x, b);
    case PL_Q4_0: return quantize_symmetric(x, 4, b);
    case PL_Q5_0: return quantize_symmetric(x, 5, b);
    case PL_Q4_1: return quantize_affine(x, 4, b);
    default: return quantize_affine(x, 5, b);
    }
}

enum pl_status pl_quantize_span(enum pl_dtype dtype, const float *src, uint64_t n, void *out) {
    if (dtype != PL_Q8_0 && dtype != PL_Q4_0 && dtype != PL_Q4_1 && dtype != PL_Q5_0 && dtype != PL_Q5_1)
        return PL_UNSUPPORTED;
    if (n % 32 != 0) return PL_INVALID;
    uint8_t *b = out;
    for (uint64_t i = 0; i < n; i += 32, b += pl_dtype_info(dtype)->block_bytes) {
        if (!quantize_block(dtype, src + i, b)) return PL_INVALID;
    }
    return PL_OK;
}
