/* cuda_dense - products of many rows on NVIDIA's tensor cores: inputs rounded to bf16, weights as they are (bf16) or
 * unpacked to bf16 tile by tile (kernels/cuda/pack.k.c), the product itself by cuBLASLt with f32 sums. And attention of
 * many rows of one sequence (kernels/cuda/attention_tiles.k.c, attention_wide.k.c). "Does it apply" answers NULL or the
 * reason why not. */
#ifndef PL_OPS_CUDA_DENSE_H
#define PL_OPS_CUDA_DENSE_H

#include "ops/launch.h"

enum {
    PL_DENSE_ROWS = 9,       /* up to eight stream the weights once through gemv; unpacking costs less than a second pass */
    PL_DENSE_ROWS_PLAIN = 3, /* bf16 weights, read by the library as fast for 3 rows as by gemv for 2 */
    PL_DENSE_ROWS_STRIPS = 129, /* rearranged weights meet up to so many rows in cuda_mma */
    PL_DENSE_TILE = 256 << 20,  /* bytes of unpacked weights at a time */
    PL_TILES_ROWS = 16,         /* rows of one sequence from which tiles pay */
    PL_TILES_WIDE_ROWS = 256    /* the same of Hopper's (kernels/cuda/attention_wide.k.c) */
};
/* What else pack.k.c makes of activations. */
enum pl_pack { PL_PACK_NORM, PL_PACK_SILU, PL_PACK_GELU_TANH, PL_PACK_WIDEN, PL_PACK_COUNT };
struct pl_dense {
    struct pl_kernel pack, packs[PL_PACK_COUNT]; /* the latter made when first used */
    struct pl_device_buffer x, w;                /* scratch */
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

bool pl_cuda_has_units(const struct pl_kernels *ks); /* bf16 matrix units */
/* From how many rows on it is planned. */
size_t pl_dense_rows(const struct pl_device_weight *w);
/* Whether the format could ever be taken; rows decides when. */
const char *pl_dense_declines(const struct pl_kernels *ks, const struct pl_device_weight *w, size_t rows);
uint64_t pl_dense_unpacked_bytes(const struct pl_device_weight *w); /* scratch one matrix wants, 0 for bf16 */
enum pl_status pl_kernel_unpack(struct pl_kernels *ks, const struct pl_device_weight *w, struct pl_kernel *out,
                                struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_launch_pack(struct pl_kernels *ks, struct pl_dense *dense, pl_buffer_in *x, uint64_t count) PL_MUST_CHECK;
/* y = x * w^T (+ bias), or y += when add. x: rows in bf16, as dense.x after pl_launch_pack. */
struct pl_launch_dense {
    const struct pl_device_weight *w;
    pl_buffer_in *x, *bias, *y; /* bias NULL: none */
    pl_buffer_in *kept;         /* the matrix as pl_launch_unpack left it; NULL: it is unpacked now */
    size_t rows;
    bool add, half; /* half: y in bf16, without bias */
};
/* unpack: the format's kernel, unused for bf16 and with kept. */
enum pl_status pl_launch_dense(struct pl_kernels *ks, struct pl_dense *dense, struct pl_kernel *unpack,
                               const struct pl_launch_dense *l) PL_MUST_CHECK;

enum pl_status pl_kernel_pack(struct pl_kernels *ks, enum pl_pack which, struct pl_kernel *out,
                              struct pl_err *err) PL_MUST_CHECK;
/* y = bf16(norm(x)). */
enum pl_status pl_launch_pack_norm(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x, pl_buffer_in *w,
                                   pl_buffer_in *y, size_t rows, size_t cols, float eps, float offset) PL_MUST_CHECK;
/* y = act(gate) * up, count numbers, all bf16; y may be gate. */
enum pl_status pl_launch_pack_glu(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *gate, pl_buffer_in *up,
                                  pl_buffer_in *y, uint64_t count) PL_MUST_CHECK;
/* count numbers at x, bf16, become f32 where they stand: half of them, half of the others, and so on, a launch each. */
enum pl_status pl_launch_pack_widen(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x,
                                    uint64_t count) PL_MUST_CHECK;

const char *pl_tiles_declines(const struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t heads, size_t kv_heads);
/* Whether Hopper's own kernel takes the shape. */
bool pl_tiles_wide(const struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t page_tokens);
/* The kernel for every device, Hopper's, and that one with its result in bf16. */
enum pl_tiles { PL_TILES_PLAIN, PL_TILES_WIDE, PL_TILES_HALF, PL_TILES_COUNT };
enum pl_status pl_kernel_tiles(struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t page_tokens,
                               enum pl_tiles which, struct pl_kernel *out, struct pl_err *err) PL_MUST_CHECK;
/* Rows [row0, row0 + rows) of the step: one sequence. A kernel for a cache in few bits reads what pl_launch_widen wrote. */
enum pl_status pl_launch_tiles(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_attention *a,
                               size_t head_dim, uint32_t row0, uint32_t rows) PL_MUST_CHECK;

#endif
