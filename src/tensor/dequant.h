/* dequant - one packed block to floats, one function per format. Inside this folder only.
 *
 * b points at block_bytes packed bytes (any alignment), y at block_elems floats. Every product and sum is rounded on
 * its own, in the order written, so results equal the published reference dequantisers bit for bit.
 * The layout of each block stands in README.md. */
#ifndef PL_TENSOR_DEQUANT_H
#define PL_TENSOR_DEQUANT_H

#include "tensor/convert.h"
#include "tensor/tensor.h"

typedef void (*pl_dequant_block_fn)(const uint8_t *b, float *y);

static inline uint16_t pl_load_u16(const uint8_t *p) { return (uint16_t)(p[0] | (p[1] << 8)); }
static inline float pl_load_f16(const uint8_t *p) { return pl_f16_to_f32(pl_load_u16(p)); }

/* The power of two of an MX block's exponent byte, halved: its code book holds doubled values. 255 means NaN. */
static inline float pl_e8m0_half(uint8_t e) {
    uint32_t u = e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

void pl_dequant_q4_0(const uint8_t *b, float *y);
void pl_dequant_q4_1(const uint8_t *b, float *y);
void pl_dequant_q5_0(const uint8_t *b, float *y);
void pl_dequant_q5_1(const uint8_t *b, float *y);
void pl_dequant_q8_0(const uint8_t *b, float *y);
void pl_dequant_iq4_nl(const uint8_t *b, float *y);
void pl_dequant_mxfp4(const uint8_t *b, float *y);

void pl_dequant_q2_k(const uint8_t *b, float *y);
void pl_dequant_q3_k(const uint8_t *b, float *y);
void pl_dequant_q4_k(const uint8_t *b, float *y);
void pl_dequant_q5_k(const uint8_t *b, float *y);
void pl_dequant_q6_k(const uint8_t *b, float *y);
void pl_dequant_iq4_xs(const uint8_t *b, float *y);
void pl_dequant_tq1_0(const uint8_t *b, float *y);
void pl_dequant_tq2_0(const uint8_t *b, float *y);
void pl_dequant_iq1_s(const uint8_t *b, float *y);
void pl_dequant_iq1_m(const uint8_t *b, float *y);
void pl_dequant_iq2_xxs(const uint8_t *b, float *y);
void pl_dequant_iq2_xs(const uint8_t *b, float *y);
void pl_dequant_iq2_s(const uint8_t *b, float *y);
void pl_dequant_iq3_xxs(const uint8_t *b, float *y);
void pl_dequant_iq3_s(const uint8_t *b, float *y);
void pl_dequant_i2_s(const uint8_t *b, float *y);
void pl_dequant_ternary(const uint8_t *b, float *y); /* without the matrix's scale */

/* One row of an MLX affine tensor; product and sum are rounded to the type `rounding` (PL_F32: not at all). */
void pl_dequant_mlx_row(const struct pl_tensor *t, uint64_t row, enum pl_dtype rounding, float *out);

extern const int8_t pl_iq4_values[16]; /* the non-linear code book of iq4_nl and iq4_xs */

#endif
