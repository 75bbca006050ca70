/* Formats of 256 elements whose magnitudes are named by entries of a code book (iq_grids.h). Every value is exact in f32:
 * 11 bits of d, at most 5 of a scale, at most 6 of a magnitude. */
#include "tensor/dequant.h"
#include "tensor/iq.h"

static const uint8_t iq2_magnitudes[4] = {8, 25, 43, 0};
static const uint8_t iq3_xxs_magnitudes[8] = {4, 12, 20, 28, 36, 44, 52, 62};
static const uint8_t iq3_s_magnitudes[8] = {1, 3, 5, 7, 9, 11, 13, 15};

/* n elements of one entry, `width` bits each; bit i of signs set: element i is negative. */
static void entry(uint32_t word, int width, int n, const uint8_t *magnitudes, uint32_t signs, float scale, float *y) {
    for (int i = 0; i < n; i++) {
        float v = scale * (float)magnitudes[word >> (width * i) & ((1u << width) - 1u)];
        y[i] = (signs >> i & 1u) != 0 ? -v : v;
    }
}

void pl_dequant_iq2_xxs(const uint8_t *b, float *y) { /* f16 d, 8 x {indices[4], u32: 4 x 7 bits of signs, scale << 28} */
    float d = pl_load_f16(b);
    for (int j = 0; j < 32; j++) {
        const uint8_t *p = b + 2 + j / 4 * 8;
        uint32_t rest = pl_iq_u32(p + 4);
        entry(pl_iq2_xxs_grid[p[j % 4]], 2, 8, iq2_magnitudes, pl_iq_signs(rest >> (7 * (j % 4))),
              d * (float)(2 * (rest >> 28) + 1) * 0.125f, y + 8 * j);
    }
}

void pl_dequant_iq2_xs(const uint8_t *b, float *y) { /* f16 d, 32 x u16 {index, signs << 9}, scales[8] */
    float d = pl_load_f16(b);
    for (int j = 0; j < 32; j++) {
        uint32_t q = pl_load_u16(b + 2 + 2 * j), scale = b[66 + j / 4] >> (j / 2 % 2 * 4) & 15u;
        entry(pl_iq2_xs_grid[q & 511], 2, 8, iq2_magnitudes, pl_iq_signs(q >> 9), d * (float)(2 * scale + 1) * 0.125f,
              y + 8 * j);
    }
}

void pl_dequant_iq2_s(const uint8_t *b, float *y) { /* f16 d, indices[32], signs[32], high bits[8], scales[8] */
    float d = pl_load_f16(b);
    for (int j = 0; j < 32; j++) {
        uint32_t index = pl_iq2_s_index(b, (size_t)j), scale = b[74 + j / 4] >> (j / 2 % 2 * 4) & 15u;
        entry(pl_iq2_s_grid[index], 2, 8, iq2_magnitudes, b[34 + j], d * (float)(2 * scale + 1) * 0.125f, y + 8 * j);
    }
}

void pl_dequant_iq3_xxs(const uint8_t *b, float *y) { /* f16 d, indices[64], 8 x u32 as of iq2_xxs */
    float d = pl_load_f16(b);
    for (int j = 0; j < 64; j++) {
        uint32_t rest = pl_iq_u32(b + 66 + j / 8 * 4);
        entry(pl_iq3_xxs_grid[b[2 + j]], 3, 4, iq3_xxs_magnitudes, pl_iq_signs(rest >> (7 * (j / 2 % 4))) >> (j % 2 * 4),
              d * (float)(2 * (rest >> 28) + 1) * 0.25f, y + 4 * j);
    }
}

void pl_dequant_iq3_s(const uint8_t *b, float *y) { /* f16 d, indices[64], high bits[8], signs[32], scales[4] */
    float d = pl_load_f16(b);
    for (int j = 0; j < 64; j++) {
        uint32_t scale = b[106 + j / 16] >> (j / 8 % 2 * 4) & 15u;
        entry(pl_iq3_s_grid[pl_iq3_s_index(b, (size_t)j)], 3, 4, iq3_s_magnitudes, (uint32_t)b[74 + j / 2] >> (j % 2 * 4),
              d * (float)(2 * scale + 1), y + 4 * j);
    }
}

/* Eight elements q - 1 + shift, in eighths; negative: the shift is -1/8. */
static void ternary(uint32_t word, bool negative, float scale, float *y) {
    for (int i = 0; i < 8; i++) y[i] = scale * ((float)((int)(word >> (2 * i) & 3u) - 1) + (negative ? -0.125f : 0.125f));
}

void pl_dequant_iq1_s(const uint8_t *b,
                      float *y) { /* f16 d, indices[32], 8 x u16 {4 x 3 high bits, scale << 12, shift << 15} */
    float d = pl_load_f16(b);
    for (int j = 0; j < 32; j++) {
        uint32_t rest = pl_load_u16(b + 34 + j / 4 * 2);
        ternary(pl_iq1_grid[b[2 + j] | (rest >> (3 * (j % 4)) & 7u) << 8], rest >> 15 != 0,
                d * (float)(2 * (rest >> 12 & 7u) + 1), y + 8 * j);
    }
}

void pl_dequant_iq1_m(const uint8_t *b,
                      float *y) { /* indices[32], nibbles[16] {3 high bits, shift << 3}, u16[4] (pl_iq1_m_d) */
    float d = pl_f16_to_f32(pl_iq1_m_d(b));
    for (int j = 0; j < 32; j++) {
        uint32_t rest = b[32 + j / 2] >> (j % 2 * 4) & 15u;
        ternary(pl_iq1_grid[b[j] | (rest & 7u) << 8], rest >> 3 != 0, d * (float)(2 * pl_iq1_m_scale(b, (size_t)j / 2) + 1),
                y + 8 * j);
    }
}
