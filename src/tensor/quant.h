/* quant - rows of any weight type to f32, and (for tests and tools) f32 to some of them.
 *
 * Dequantisation is the definition of each format: bit-exact against independent dequantisers, one rounding per
 * documented product, no fused multiply-add. It is the slow, plain form; src/cpu has the fast ones. */
#ifndef PL_TENSOR_QUANT_H
#define PL_TENSOR_QUANT_H

#include "tensor/tensor.h"

/* cols elements of row `row` of t (rows counted over all leading dimensions) into out[cols]. Any weight dtype
 * (floats, GGUF blocks, MLX affine). Requires a tensor whose sizes were checked when it was made. */
enum pl_status pl_dequant_row(const struct pl_tensor *t, uint64_t row, float *out) PL_MUST_CHECK;

/* What products use: as pl_dequant_row, but a PL_MLX element is scale * q + bias in f32, not rounded to the type of the
 * scales (MLX's products, too, scale sums of integers and never see rounded weights). */
enum pl_status pl_dequant_row_product(const struct pl_tensor *t, uint64_t row, float *out) PL_MUST_CHECK;

/* n elements (a multiple of the block) from packed bytes; block types and plain floats only. */
enum pl_status pl_dequant_span(enum pl_dtype dtype, const void *src, uint64_t n, float *out) PL_MUST_CHECK;

/* n floats (a multiple of 32) to packed q8_0, q4_0, q4_1, q5_0 or q5_1, rounded as the reference quantisers do.
 * PL_INVALID: n is no multiple, an input is not finite, or a scale does not fit f16 (out is then partly written). */
enum pl_status pl_quantize_span(enum pl_dtype dtype, const float *src, uint64_t n, void *out) PL_MUST_CHECK;

/* Into PL_TERNARY, a row of n (a multiple of 32) at a time.
 * pl_ternary_row: floats that are all -s, 0 or s for one s > 0; *scale is that s, 0 while every row was zeros. False: they
 * are not.
 * pl_ternary_bytes: codes (value + 1) at bits shift, shift+1 of each byte. False: one of them is 3. */
bool pl_ternary_row(const float *row, uint64_t n, float *scale, uint8_t *out);
bool pl_ternary_bytes(const uint8_t *bytes, unsigned shift, uint64_t n, uint8_t *out);

/* NaN and infinite scales. Opening a file does not read weights, so it does not look: whoever reads all of them anyway
 * (repacking, copying to a device) asks pl_scales_first_bad for the blocks at hand; whoever does not calls
 * pl_file_check_scales once, on all cores. Plain float tensors have no scales and always pass. */
/* The index of the first of `blocks` packed blocks with a bad scale; `blocks` when all are finite. */
uint64_t pl_scales_first_bad(enum pl_dtype dtype, const void *src, uint64_t blocks);
/* Rows [begin, end), or all. PL_FORMAT names tensor, row, block and byte. */
enum pl_status pl_tensor_check_scales_rows(const struct pl_tensor *t, uint64_t begin, uint64_t end,
                                           struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_tensor_check_scales(const struct pl_tensor *t, struct pl_err *err) PL_MUST_CHECK;

#endif
