/* ternary - the portable kernels of BitNet's product (kernels/ternary.k.c): specialisation and launch. */
#ifndef PL_OPS_TERNARY_H
#define PL_OPS_TERNARY_H

#include "ops/launch.h"

struct pl_ternary_kernels {
    struct pl_kernel quantize, product[PL_TILE_COUNT]; /* by rows that share a weight: pl_tile_of */
};
enum pl_status pl_kernel_ternary_quantize(struct pl_kernels *ks, struct pl_kernel *out, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_kernel_ternary(struct pl_kernels *ks, uint32_t tile, struct pl_kernel *out,
                                 struct pl_err *err) PL_MUST_CHECK;
uint32_t pl_ternary_per(const struct pl_kernels *ks); /* outputs of a team */

/* x [rows, in] f32 to q [rows, in] i8 and row [rows, 2]. */
enum pl_status pl_launch_ternary_quantize(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x, pl_buffer_in *q,
                                          pl_buffer_in *row, size_t rows, size_t in) PL_MUST_CHECK;
/* y [rows, w->rows] of those; w->data as PL_TERNARY has it. */
enum pl_status pl_launch_ternary(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_device_weight *w, float scale,
                                 pl_buffer_in *q, pl_buffer_in *row, pl_buffer_in *y, size_t rows,
                                 uint32_t tile_rows) PL_MUST_CHECK;

#endif
