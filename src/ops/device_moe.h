/* device_moe - what the two files of mixtures of experts on devices share (inside src/ops only). */
#ifndef PL_OPS_DEVICE_MOE_H
#define PL_OPS_DEVICE_MOE_H

#include "ops/device_ops.h"

/* device_moe.c */
/* The kernels of choice and order for tiles of so many rows; the failure is reported. */
enum pl_status dev_moe_kernels(struct dev_ops *d, const struct pl_moe *p, uint32_t tile,
                               struct pl_moe_route **out) PL_MUST_CHECK;
/* tile: rows of a tile of k's order. */
enum pl_status dev_moe_order(struct pl_ops *o, struct pl_moe_route *k, size_t rows, uint32_t tile) PL_MUST_CHECK;
enum pl_status dev_moe_combine(struct pl_ops *o, struct pl_moe_route *k, struct pl_activation *y) PL_MUST_CHECK;

/* device_moe_cuda.c */
/* Whether a warp a row chooses; then the second does it, and puts the slots in order where a tile is given. k: for an order
 * by itself. */
bool dev_moe_chooses(const struct dev_ops *d, const struct pl_launch_route *r, const struct pl_moe *p);
enum pl_status dev_moe_choose(struct pl_ops *o, struct pl_moe_route *k, const struct pl_launch_route *r,
                              const struct pl_moe *p, uint32_t tile) PL_MUST_CHECK;
/* The order by many groups of threads: whether, and it. */
bool dev_moe_sorts(const struct dev_ops *d, uint32_t experts);
enum pl_status dev_moe_sort(struct pl_ops *o, uint32_t experts, size_t slots, uint32_t tile) PL_MUST_CHECK;
/* The matrices of a layer, loaded as the file has them, into strips where all of them can go together. */
enum pl_status dev_moe_rearrange(struct dev_ops *d, const struct pl_moe *p, struct pl_err *err) PL_MUST_CHECK;
enum pl_status dev_moe_cuda_reserve(struct dev_ops *d, const struct pl_moe *p, size_t rows,
                                    struct pl_err *err) PL_MUST_CHECK;
size_t dev_moe_cuda_candidates(const struct dev_ops *d, const struct pl_moe *p, size_t rows, struct pl_candidate *out);
/* After the choice. ready: x's rows stand ready in d->mma. */
enum pl_status dev_moe_mma(struct pl_ops *o, struct pl_moe_route *k, const struct pl_moe *p, const struct pl_activation *x,
                           bool ready, struct pl_activation *y) PL_MUST_CHECK;
/* One row, the choice included. */
enum pl_status dev_moe_routed(struct pl_ops *o, const struct pl_launch_route *r, const struct pl_moe *p,
                              const struct pl_activation *x, bool ready, struct pl_activation *y) PL_MUST_CHECK;
enum pl_status dev_moe_dense(struct pl_ops *o, struct pl_moe_route *k, const struct pl_moe *p, const struct pl_activation *x,
                             struct pl_activation *y) PL_MUST_CHECK;
void dev_moe_cuda_deinit(struct dev_ops *d);

#endif
