/* tensor - a view of typed, shaped bytes. Never owns.
 *
 * shape[0] is the slowest dimension (row-major, C order), whatever the file's own order: a weight matrix is
 * [out, in], an embedding table [V, E], a norm weight [E]. Unused entries of shape are 1.
 * PL_MLX: data is the packed u32 array [.., in*bits/32], scales and biases are [.., in/group] of scale_dtype;
 * shape is the logical shape [out, in] of the weights they stand for.
 * PL_MLX_MXFP4: data as of PL_MLX with 4 bits, element 0 in the lowest; scales the exponents of 32 elements each, u8.
 * PL_I2_S: 32 bytes more than its blocks, which begin with the one f32 that scales (code - 1).
 * PL_TERNARY: values are (code - 1) * the one f32 at scales.
 * data, scales and biases may have any alignment. */
#ifndef PL_TENSOR_TENSOR_H
#define PL_TENSOR_TENSOR_H

#include "tensor/dtype.h"

enum { PL_MAX_DIMS = 4 };

struct pl_tensor {
    const char *name; /* as in the file */
    enum pl_dtype dtype;
    uint32_t ndim;
    uint64_t shape[PL_MAX_DIMS];
    const void *data;
    uint64_t bytes; /* of data */
    /* PL_MLX, and but for biases PL_MLX_MXFP4; PL_TERNARY has one f32 at scales */
    const void *scales, *biases;
    enum pl_dtype scale_dtype;
    uint32_t bits, group;
};

static inline uint64_t pl_tensor_cols(const struct pl_tensor *t) { return t->ndim == 0 ? 1 : t->shape[t->ndim - 1]; }
/* Product of all dimensions but the last. Checked when the tensor was made, so it cannot overflow. */
static inline uint64_t pl_tensor_rows(const struct pl_tensor *t) {
    uint64_t rows = 1;
    for (uint32_t i = 0; i + 1 < t->ndim; i++) rows *= t->shape[i];
    return rows;
}

#endif
