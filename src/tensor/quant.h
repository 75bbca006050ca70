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

/* n elements (a multiple of the block) from packed bytes; block types and plain floats only. */
enum pl_status pl_dequant_span(enum pl_dtype dtype, const void *src, uint64_t n, float *out) PL_MUST_CHECK;

#endif
