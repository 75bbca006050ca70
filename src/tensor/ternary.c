/* Matrices of -1, 0 and 1 into plumb's own order: element 4s + i of 16 is bits 2s, 2s+1 of byte i of a word. */
#include <math.h>
#include <string.h>

#include "tensor/quant.h"

static void pack16(const uint8_t *codes, uint8_t *out) {
    for (int i = 0; i < 4; i++) out[i] = (uint8_t)(codes[i] | codes[4 + i] << 2 | codes[8 + i] << 4 | codes[12 + i] << 6);
}

bool pl_ternary_bytes(const uint8_t *bytes, unsigned shift, uint64_t n, uint8_t *out) {
    uint8_t bad = 0;
    for (uint64_t k = 0; k < n; k += 16, out += 4) {
        uint8_t codes[16];
        for (int i = 0; i < 16; i++) {
            codes[i] = bytes[k + i] >> shift & 3;
            bad |= codes[i] & (codes[i] >> 1) & 1;
        }
        pack16(codes, out);
    }
    return bad == 0;
}

bool pl_ternary_row(const float *row, uint64_t n, float *scale, uint8_t *out) {
    for (uint64_t i = 0; i < n && *scale == 0; i++) *scale = fabsf(row[i]);
    const float s = *scale;
    if (!(s <= 3e38f)) return false; /* NaN, infinite */
    bool sound = true;
    for (uint64_t k = 0; k < n; k += 16, out += 4) {
        uint8_t codes[16];
        for (int i = 0; i < 16; i++) {
            float v = row[k + i];
            codes[i] = (uint8_t)(1 + (v > 0) - (v < 0));
            sound = sound && (v == 0 || v == s || v == -s);
        }
        pack16(codes, out);
    }
    return sound;
}
