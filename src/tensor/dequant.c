#include "tensor/quant.h"

#include "tensor/dequant.h"

/* No entry: not a block format. */
static const pl_dequant_block_fn block_fn[PL_DTYPE_COUNT] = {
    [PL_Q4_0] = pl_dequant_q4_0,       [PL_Q4_1] = pl_dequant_q4_1,       [PL_Q5_0] = pl_dequant_q5_0,
    [PL_Q5_1] = pl_dequant_q5_1,       [PL_Q8_0] = pl_dequant_q8_0,       [PL_Q2_K] = pl_dequant_q2_k,
    [PL_Q3_K] = pl_dequant_q3_k,       [PL_Q4_K] = pl_dequant_q4_k,       [PL_Q5_K] = pl_dequant_q5_k,
    [PL_Q6_K] = pl_dequant_q6_k,       [PL_IQ4_NL] = pl_dequant_iq4_nl,   [PL_IQ4_XS] = pl_dequant_iq4_xs,
    [PL_MXFP4] = pl_dequant_mxfp4,     [PL_TQ1_0] = pl_dequant_tq1_0,     [PL_TQ2_0] = pl_dequant_tq2_0,
    [PL_TERNARY] = pl_dequant_ternary, [PL_I2_S] = pl_dequant_i2_s,       [PL_IQ1_S] = pl_dequant_iq1_s,
    [PL_IQ1_M] = pl_dequant_iq1_m,     [PL_IQ2_XXS] = pl_dequant_iq2_xxs, [PL_IQ2_XS] = pl_dequant_iq2_xs,
    [PL_IQ2_S] = pl_dequant_iq2_s,     [PL_IQ3_XXS] = pl_dequant_iq3_xxs, [PL_IQ3_S] = pl_dequant_iq3_s,
};

static enum pl_status plain_span(enum pl_dtype dtype, const uint8_t *src, uint64_t n, float *out) {
    switch (dtype) {
    case PL_F32: memcpy(out, src, n * sizeof *out); return PL_OK;
    case PL_F16:
        for (uint64_t i = 0; i < n; i++) out[i] = pl_load_f16(src + 2 * i);
        return PL_OK;
    case PL_BF16:
        for (uint64_t i = 0; i < n; i++) out[i] = pl_bf16_to_f32(pl_load_u16(src + 2 * i));
        return PL_OK;
    default: return PL_UNSUPPORTED;
    }
}

enum pl_status pl_dequant_span(enum pl_dtype dtype, const void *src, uint64_t n, float *out) {
    if ((unsigned)dtype >= PL_DTYPE_COUNT) return PL_INVALID;
    const struct pl_dtype_info *d = pl_dtype_info(dtype);
    const uint8_t *p = src;
    if (block_fn[dtype] == NULL) return plain_span(dtype, p, n, out);
    if (n % d->block_elems != 0) return PL_INVALID;
    for (uint64_t i = 0; i < n; i += d->block_elems, p += d->block_bytes) block_fn[dtype](p, out + i);
    return PL_OK;
}

static enum pl_status row_to_f32(const struct pl_tensor *t, uint64_t row, enum pl_dtype mlx_rounding, float *out) {
    if (row >= pl_tensor_rows(t)) return PL_INVALID;
    if (t->dtype == PL_MLX) {
        pl_dequant_mlx_row(t, row, mlx_rounding, out);
        return PL_OK;
    }
    uint64_t bytes, cols = pl_tensor_cols(t);
    if (!pl_dtype_row_bytes(t->dtype, cols, &bytes)) return PL_INVALID;
    PL_TRY(pl_dequant_span(t->dtype, (const uint8_t *)t->data + row * bytes, cols, out));
    float scale = 1; /* of the whole matrix */
    if (t->dtype == PL_TERNARY) memcpy(&scale, t->scales, sizeof scale);
    if (t->dtype == PL_I2_S) memcpy(&scale, (const uint8_t *)t->data + pl_tensor_rows(t) * bytes, sizeof scale);
    for (uint64_t i = 0; scale != 1 && i < cols; i++) out[i] *= scale;
    return PL_OK;
}

enum pl_status pl_dequant_row(const struct pl_tensor *t, uint64_t row, float *out) {
    return row_to_f32(t, row, t->scale_dtype, out);
}

enum pl_status pl_dequant_row_product(const struct pl_tensor *t, uint64_t row, float *out) {
    return row_to_f32(t, row, PL_F32, out);
}
