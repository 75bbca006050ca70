/* cuda_ternary - BitNet's products on the integer matrix units of sm_80 and up (kernels/cuda/ternary.k.c): the bits of
 * ops/ternary.h. One row: up to three matrices of one input in one launch, with the norm before them and what follows; more
 * rows: made 8-bit by ternary.h's launch before. */
#ifndef PL_OPS_CUDA_TERNARY_H
#define PL_OPS_CUDA_TERNARY_H

#include "ops/cuda_fast.h"

enum { PL_TERNARY_MATRICES_MAX = 3, PL_TERNARY_ONE_COLS_MAX = 8192 };
struct pl_ternary_kind {
    uint32_t in, rows_8, split; /* input width; rows / 8 of a group of threads, 0: one row of f32; warps that share a tile */
    bool norm, add, relu2, silu; /* one row: normed first; y added to `to`; act(y[0]) * y[1] to `to` */
};
/* NULL, or why not. one: with the input made ready inside. */
const char *pl_ternary_mma_declines(const struct pl_kernels *ks, uint64_t cols);
const char *pl_ternary_one_declines(const struct pl_kernels *ks, uint64_t cols);

struct pl_launch_ternaries {
    size_t count, rows;
    const struct pl_device_weight *w[PL_TERNARY_MATRICES_MAX]; /* of one width */
    float scale[PL_TERNARY_MATRICES_MAX];
    pl_buffer_in *y[PL_TERNARY_MATRICES_MAX];
    pl_buffer_in *q, *row;           /* rows made 8-bit before */
    pl_buffer_in *x, *norm, *h, *to; /* one row; h: what the norm makes of x, not x; to: neither x nor h */
    float eps, offset;
};
/* The kind for a launch: norm, add, relu2 and silu stay as they are. */
void pl_ternary_plan(const struct pl_kernels *ks, const struct pl_launch_ternaries *l, struct pl_ternary_kind *kind);
bool pl_ternary_same(const struct pl_ternary_kind *a, const struct pl_ternary_kind *b);
void pl_ternaries_spec(const struct pl_ternary_kind *kind, struct pl_jit_spec *s);
enum pl_status pl_kernel_ternaries(struct pl_kernels *ks, const struct pl_ternary_kind *kind, struct pl_kernel *out,
                                   struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_launch_ternaries(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_ternary_kind *kind,
                                   const struct pl_launch_ternaries *l) PL_MUST_CHECK;

#endif
