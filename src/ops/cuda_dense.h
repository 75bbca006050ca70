/* cuda_dense - products of many rows on NVIDIA's tensor cores: inputs rounded to bf16, weights as they are (bf16) or
 * unpacked to bf16 tile by tile (kernels/cuda/pack.k.c), the product itself by cuBLASLt with f32 sums. And attention of
 * many rows of one sequence (kernels/cuda/attention_tiles.k.c). "Does it apply" answers NULL or the reason why not. */
#ifndef PL_OPS_CUDA_DENSE_H
#define PL_OPS_CUDA_DENSE_H

#include "ops/launch.h"

enum {
    PL_DENSE_ROWS = 9,       /* up to eight stream the weights once through gemv; unpacking costs less than a second pass */
    PL_DENSE_ROWS_PLAIN = 3, /* bf16 weights, read by the library as fast for 3 rows as by gemv for 2 */
    PL_DENSE_ROWS_STRIPS = 129, /* rearranged weights meet up to so many rows in cuda_mma */
    PL_DENSE_TILE = 256 << 20,  /* bytes of unpacked weights at a time */
    PL_TILES_ROWS = 16          /* rows of one sequence from which tiles pay */
};
struct pl_dense {
    struct pl_kernel pack;
    struct pl_device_buffer x, w; /* scratch */
    bool tried;
    char why_not[256]; /* empty: the library is open */
};
/* Opens the library on first use and makes room; a missing library is no failure but why_not. */
enum pl_status pl_dense_ready(struct pl_kernels *ks, struct pl_dense *dense, uint64_t x_bytes, uint64_t w_bytes,
                              struct pl_err *err) PL_MUST_CHECK;
void pl_dense_deinit(struct pl_kernels *ks, struct pl_dense *dense);

/* The whole matrix as bf16 in `to`, of 2 x rows x cols bytes. */
enum pl_status pl_launch_unpack(struct pl_kernels *ks, struct pl_kernel *unpack, const struct pl_device_weight *w,
                                pl_buffer_in *to) PL_MUST_CHECK;
/* pl_launch_dense with the matrix as pl_launch_unpack left it. */
enum pl_status pl_launch_dense_kept(struct pl_kernels *ks, struct pl_dense *dense, pl_buffer_in *kept,
                                    const struct pl_device_weight *w, pl_buffer_in *bias, pl_buffer_in *y, size_t rows,
                                    bool add) PL_MUST_CHECK;

bool pl_cuda_has_units(const struct pl_kernels *ks); /* bf16 matrix units */
/* From how many rows on it is planned. */
size_t pl_dense_rows(const struct pl_device_weight *w);
/* Whether the format could ever be taken; rows decides when. */
const char *pl_dense_declines(const struct pl_kernels *ks, const struct pl_device_weight *w, size_t rows);
uint64_t pl_dense_unpacked_bytes(const struct pl_device_weight *w); /* scratch one matrix wants, 0 for bf16 */
enum pl_status pl_kernel_unpack(struct pl_kernels *ks, const struct pl_device_weight *w, struct pl_kernel *out,
                                struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_launch_pack(struct pl_kernels *ks, struct pl_dense *dense, pl_buffer_in *x, uint64_t count) PL_MUST_CHECK;
/* y = (packed x) * w^T (+ bias), or y += when add. unpack: the format's kernel, unused for bf16. */
enum pl_status pl_launch_dense(struct pl_kernels *ks, struct pl_dense *dense, struct pl_kernel *unpack,
                               const struct pl_device_weight *w, pl_buffer_in *bias, pl_buffer_in *y, size_t rows,
                               bool add) PL_MUST_CHECK;

const char *pl_tiles_declines(const struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t heads, size_t kv_heads);
enum pl_status pl_kernel_tiles(struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t page_tokens,
                               struct pl_kernel *out, struct pl_err *err) PL_MUST_CHECK;
/* Rows [row0, row0 + rows) of the step: one sequence. A kernel for a cache in few bits reads what pl_launch_widen wrote. */
enum pl_status pl_launch_tiles(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_attention *a,
                               size_t head_dim, uint32_t row0, uint32_t rows) PL_MUST_CHECK;

#endif
