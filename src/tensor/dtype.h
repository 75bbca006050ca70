/* dtype - element types and quantised block formats: names, sizes, block layouts. No arithmetic here but scalar
 * conversion (convert.h) and dequantisation of whole rows (quant.h).
 *
 * A block holds `block_elems` consecutive elements of one row in `block_bytes` bytes. Plain types have blocks of one.
 * PL_I2_S, BitNet's own type in GGUF, has one scale behind the blocks of a tensor: only bitnet models hold it.
 * PL_TERNARY is plumb's own form of BitNet's matrices, made while a model is loaded; no file holds it.
 * PL_MLX is the MLX affine format: it is spread over three arrays (see struct pl_tensor), so its block size is 0.
 * PL_MLX_MXFP4 is MLX's mode mxfp4, in two arrays: made PL_MXFP4 while a model is loaded. */
#ifndef PL_TENSOR_DTYPE_H
#define PL_TENSOR_DTYPE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* clang-format off */
/*      name       text       elems bytes ggml type id (-1: not in GGUF) */
#define PL_DTYPE_LIST(X)                                                                                                      \
    X(PL_F32,    "f32",     1,    4,   0)                                                                                     \
    X(PL_F16,    "f16",     1,    2,   1)                                                                                     \
    X(PL_BF16,   "bf16",    1,    2,   30)                                                                                    \
    X(PL_Q4_0,   "q4_0",    32,   18,  2)                                                                                     \
    X(PL_Q4_1,   "q4_1",    32,   20,  3)                                                                                     \
    X(PL_Q5_0,   "q5_0",    32,   22,  6)                                                                                     \
    X(PL_Q5_1,   "q5_1",    32,   24,  7)                                                                                     \
    X(PL_Q8_0,   "q8_0",    32,   34,  8)                                                                                     \
    X(PL_Q2_K,   "q2_k",    256,  84,  10)                                                                                    \
    X(PL_Q3_K,   "q3_k",    256,  110, 11)                                                                                    \
    X(PL_Q4_K,   "q4_k",    256,  144, 12)                                                                                    \
    X(PL_Q5_K,   "q5_k",    256,  176, 13)                                                                                    \
    X(PL_Q6_K,   "q6_k",    256,  210, 14)                                                                                    \
    X(PL_IQ4_NL, "iq4_nl",  32,   18,  20)                                                                                    \
    X(PL_IQ4_XS, "iq4_xs",  256,  136, 23)                                                                                    \
    X(PL_MXFP4,  "mxfp4",   32,   17,  39)                                                                                    \
    X(PL_TQ1_0,  "tq1_0",   256,  54,  34)                                                                                    \
    X(PL_TQ2_0,  "tq2_0",   256,  66,  35)                                                                                    \
    X(PL_MLX,    "mlx",     1,    0,   -1)                                                                                    \
    X(PL_I8,     "i8",      1,    1,   24)                                                                                    \
    X(PL_U8,     "u8",      1,    1,   -1)                                                                                    \
    X(PL_I16,    "i16",     1,    2,   25)                                                                                    \
    X(PL_I32,    "i32",     1,    4,   26)                                                                                    \
    X(PL_U32,    "u32",     1,    4,   -1)                                                                                    \
    X(PL_I64,    "i64",     1,    8,   27)                                                                                    \
    X(PL_F64,    "f64",     1,    8,   28)                                                                                    \
    X(PL_I2_S,   "i2_s",    128,  32,  36)                                                                                    \
    X(PL_F8,     "f8_e4m3", 1,    1,   -1)                                                                                    \
    X(PL_TERNARY,"ternary", 32,   8,   -1)                                                                                    \
    X(PL_K8V4,   "k8v4",    1,    1,   -1)                                                                                    \
    X(PL_MLX_MXFP4, "mlx mxfp4", 1, 0, -1)                                                                                    \
    X(PL_IQ1_S,  "iq1_s",   256,  50,  19)                                                                                    \
    X(PL_IQ1_M,  "iq1_m",   256,  56,  29)                                                                                    \
    X(PL_IQ2_XXS,"iq2_xxs", 256,  66,  16)                                                                                    \
    X(PL_IQ2_XS, "iq2_xs",  256,  74,  17)                                                                                    \
    X(PL_IQ2_S,  "iq2_s",   256,  82,  22)                                                                                    \
    X(PL_IQ3_XXS,"iq3_xxs", 256,  98,  18)                                                                                    \
    X(PL_IQ3_S,  "iq3_s",   256,  110, 21)
/* clang-format on */

enum pl_dtype {
#define PL_DTYPE_ENUM(name, text, elems, bytes, ggml) name,
    PL_DTYPE_LIST(PL_DTYPE_ENUM)
#undef PL_DTYPE_ENUM
        PL_DTYPE_COUNT
};

struct pl_dtype_info {
    const char *name;
    uint32_t block_elems, block_bytes;
    int ggml_type;
};

const struct pl_dtype_info *pl_dtype_info(enum pl_dtype t);
const char *pl_dtype_name(enum pl_dtype t);
bool pl_dtype_from_name(const char *name, enum pl_dtype *out);
bool pl_dtype_from_ggml(uint32_t ggml_type, enum pl_dtype *out); /* only types plumb can read */
const char *pl_ggml_type_name(uint32_t ggml_type);               /* also of types plumb cannot read; NULL if unheard of */

/* Bytes of one row of `cols` elements; false when cols is no multiple of the block or the product overflows. */
bool pl_dtype_row_bytes(enum pl_dtype t, uint64_t cols, uint64_t *bytes);

#endif
