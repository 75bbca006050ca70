/* Formats with blocks of 32 elements. In all of them byte j of the 16 nibble bytes holds element j (low) and element
 * j + 16 (high). */
#include "tensor/dequant.h"

const int8_t pl_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t e2m1_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void pl_dequant_q4_0(const uint8_t *b, float *y) { /* f16 d, 16 nibbles: d * (q - 8) */
    float d = pl_load_f16(b);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)((b[2 + j] & 15) - 8);
        y[j + 16] = d * (float)((b[2 + j] >> 4) - 8);
    }
}

void pl_dequant_q4_1(const uint8_t *b, float *y) { /* f16 d, f16 m, nibbles: d * q + m */
    float d = pl_load_f16(b), m = pl_load_f16(b + 2);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)(b[4 + j] & 15) + m;
        y[j + 16] = d * (float)(b[4 + j] >> 4) + m;
    }
}

/* The fifth bits of q5: bit j of the little-endian word belongs to element j. */
static uint32_t load_u32(const uint8_t *p) {
    return (uint32_t)p[0] | ((uint32_t)p[1] << 8) | ((uint32_t)p[2] << 16) | ((uint32_t)p[3] << 24);
}

void pl_dequant_q5_0(const uint8_t *b, float *y) { /* f16 d, u32 high bits, nibbles: d * (q - 16) */
    float d = pl_load_f16(b);
    uint32_t high = load_u32(b + 2);
    for (int j = 0; j < 16; j++) {
        int lo = (b[6 + j] & 15) | (int)((high >> j & 1u) << 4);
        int hi = (b[6 + j] >> 4) | (int)((high >> (j + 16) & 1u) << 4);
        y[j] = d * (float)(lo - 16);
        y[j + 16] = d * (float)(hi - 16);
    }
}

void pl_dequant_q5_1(const uint8_t *b, float *y) { /* f16 d, f16 m, u32 high bits, nibbles: d * q + m */
    float d = pl_load_f16(b), m = pl_load_f16(b + 2);
    uint32_t high = load_u32(b + 4);
    for (int j = 0; j < 16; j++) {
        int lo = (b[8 + j] & 15) | (int)((high >> j & 1u) << 4);
        int hi = (b[8 + j] >> 4) | (int)((high >> (j + 16) & 1u) << 4);
        y[j] = d * (float)lo + m;
        y[j + 16] = d * (float)hi + m;
    }
}

void pl_dequant_q8_0(const uint8_t *b, float *y) { /* f16 d, 32 signed bytes */
    float d = pl_load_f16(b);
    for (int j = 0; j < 32; j++) y[j] = d * (float)(int8_t)b[2 + j];
}

void pl_dequant_iq4_nl(const uint8_t *b, float *y) { /* f16 d, nibbles that index the code book */
    float d = pl_load_f16(b);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)pl_iq4_values[b[2 + j] & 15];
        y[j + 16] = d * (float)pl_iq4_values[b[2 + j] >> 4];
    }
}

void pl_dequant_mxfp4(const uint8_t *b, float *y) { /* e8m0 exponent byte, nibbles in e2m1 */
    float d = pl_e8m0_half(b[0]);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)e2m1_doubled[b[1 + j] & 15];
        y[j + 16] = d * (float)e2m1_doubled[b[1 + j] >> 4];
    }
}
