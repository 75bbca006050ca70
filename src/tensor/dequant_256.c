/* Formats with super-blocks of 256 elements: the k-quants, iq4_xs and the ternary types. */
#include "tensor/dequant.h"

void pl_dequant_q2_k(const uint8_t *b, float *y) { /* scales[16], qs[64], f16 d, f16 dmin */
    const uint8_t *scales = b, *qs = b + 16;
    float d = pl_load_f16(b + 80), dmin = pl_load_f16(b + 82);
    for (int i = 0; i < 256; i++) {
        int sub = i / 16; /* 16 elements share a scale */
        int q = qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        y[i] = d * (float)(scales[sub] & 15) * (float)q - dmin * (float)(scales[sub] >> 4);
    }
}

void pl_dequant_q3_k(const uint8_t *b, float *y) { /* high bits[32], qs[64], scales[12], f16 d */
    const uint8_t *high = b, *qs = b + 32, *sc = b + 96;
    float d = pl_load_f16(b + 108);
    for (int i = 0; i < 256; i++) {
        int sub = i / 16;
        int scale = ((sub < 8 ? sc[sub] : sc[sub - 8] >> 4) & 15) | ((sc[8 + sub % 4] >> (sub / 4 * 2) & 3) << 4);
        int q = qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        if ((high[i % 32] >> (i / 32) & 1) == 0) q -= 4; /* a clear bit means minus four */
        y[i] = d * (float)(scale - 32) * (float)q;
    }
}

/* Six-bit scale and minimum number j (0..7) of the 12 packed bytes of q4_k and q5_k. */
static void scale_min(const uint8_t *p, int j, int *scale, int *min) {
    if (j < 4) {
        *scale = p[j] & 63;
        *min = p[j + 4] & 63;
    } else {
        *scale = (p[j + 4] & 15) | (p[j - 4] >> 6 << 4);
        *min = (p[j + 4] >> 4) | (p[j] >> 6 << 4);
    }
}

void pl_dequant_q4_k(const uint8_t *b, float *y) { /* f16 d, f16 dmin, scales[12], qs[128] */
    float d = pl_load_f16(b), dmin = pl_load_f16(b + 2);
    for (int j = 0; j < 8; j++) { /* 32 elements each; nibbles of two neighbours share 32 bytes */
        int scale, min;
        scale_min(b + 4, j, &scale, &min);
        float dl = d * (float)scale, ml = dmin * (float)min;
        const uint8_t *qs = b + 16 + j / 2 * 32;
        for (int l = 0; l < 32; l++) y[j * 32 + l] = dl * (float)(qs[l] >> (j % 2 * 4) & 15) - ml;
    }
}

void pl_dequant_q5_k(const uint8_t *b, float *y) { /* f16 d, f16 dmin, scales[12], high bits[32], qs[128] */
    float d = pl_load_f16(b), dmin = pl_load_f16(b + 2);
    for (int j = 0; j < 8; j++) {
        int scale, min;
        scale_min(b + 4, j, &scale, &min);
        float dl = d * (float)scale, ml = dmin * (float)min;
        const uint8_t *high = b + 16, *qs = b + 48 + j / 2 * 32;
        for (int l = 0; l < 32; l++) {
            int q = (qs[l] >> (j % 2 * 4) & 15) | ((high[l] >> j & 1) << 4);
            y[j * 32 + l] = dl * (float)q - ml;
        }
    }
}

void pl_dequant_q6_k(const uint8_t *b, float *y) { /* low[128], high[64], signed scales[16], f16 d */
    const uint8_t *low = b, *high = b + 128, *scales = b + 192;
    float d = pl_load_f16(b + 208);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, r = i % 128, quarter = r / 32, l = r % 32;
        int lo = low[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
        int hi = high[half * 32 + l] >> (quarter * 2) & 3;
        y[i] = d * (float)(int8_t)scales[i / 16] * (float)((lo | (hi << 4)) - 32);
    }
}

void pl_dequant_iq4_xs(const uint8_t *b, float *y) { /* f16 d, u16 scales high, scales low[4], qs[128] */
    float d = pl_load_f16(b);
    uint16_t scales_high = pl_load_u16(b + 2);
    for (int j = 0; j < 8; j++) {
        int scale = (b[4 + j / 2] >> (j % 2 * 4) & 15) | ((scales_high >> (j * 2) & 3) << 4);
        float dl = d * (float)(scale - 32);
        const uint8_t *qs = b + 8 + j * 16;
        for (int l = 0; l < 16; l++) {
            y[j * 32 + l] = dl * (float)pl_iq4_values[qs[l] & 15];
            y[j * 32 + l + 16] = dl * (float)pl_iq4_values[qs[l] >> 4];
        }
    }
}

/* Digit n (0 = most significant) of a byte that holds five ternary digits as a fraction of 256. */
static float trit(uint8_t byte, int n) {
    static const uint8_t pow3[5] = {1, 3, 9, 27, 81};
    uint8_t rest = (uint8_t)(byte * pow3[n]);
    return (float)((rest * 3 >> 8) - 1);
}

void pl_dequant_tq1_0(const uint8_t *b, float *y) { /* qs[48] five trits each, qh[4] four trits each, f16 d */
    float d = pl_load_f16(b + 52);
    for (int n = 0; n < 5; n++) {
        for (int l = 0; l < 32; l++) y[n * 32 + l] = d * trit(b[l], n);
        for (int l = 0; l < 16; l++) y[160 + n * 16 + l] = d * trit(b[32 + l], n);
    }
    for (int n = 0; n < 4; n++) {
        for (int l = 0; l < 4; l++) y[240 + n * 4 + l] = d * trit(b[48 + l], n);
    }
}

void pl_dequant_tq2_0(const uint8_t *b, float *y) { /* qs[64], f16 d: d * (q - 1) */
    float d = pl_load_f16(b + 64);
    for (int i = 0; i < 256; i++) {
        int q = b[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        y[i] = d * (float)(q - 1);
    }
}

void pl_dequant_ternary(const uint8_t *b, float *y) { /* two words of 16: element 4s + i is bits 2s, 2s+1 of byte i */
    for (int i = 0; i < 32; i++) y[i] = (float)((b[i / 16 * 4 + i % 4] >> (i % 16 / 4 * 2) & 3) - 1);
}

void pl_dequant_i2_s(const uint8_t *b, float *y) { /* element 32g + p: bits 6-2g, 7-2g of byte p */
    for (int i = 0; i < 128; i++) y[i] = (float)((b[i % 32] >> (6 - i / 32 * 2) & 3) - 1);
}
