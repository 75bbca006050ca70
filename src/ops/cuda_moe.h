/* cuda_moe - the products of chosen experts on NVIDIA's tensor cores: with rearranged weights, tiles of up to eight rows
 * (kernels/cuda/moe.k.c), and of many rows with weights unpacked to bf16 (kernels/cuda/moe_dense.k.c). "Does it apply"
 * answers NULL or the reason why not. */
#ifndef PL_OPS_CUDA_MOE_H
#define PL_OPS_CUDA_MOE_H

#include "ops/cuda_mma.h"
#include "ops/moe.h"

enum { PL_MOE_DENSE_TILE = 128 };

/* --- rearranged weights; w: of all experts --- */
const char *pl_moe_strips_decline(const struct pl_kernels *ks, const struct pl_device_weight *w, size_t experts);
enum pl_moe_mma { PL_MOE_MMA_UP, PL_MOE_MMA_MIX, PL_MOE_MMA_DOWN, PL_MOE_MMA_COUNT };
/* direct: of up alone. */
enum pl_status pl_kernel_moe_mma(struct pl_kernels *ks, const struct pl_device_weight *w, enum pl_moe_mma which, int act,
                                 bool direct, bool bulk, struct pl_kernel *out, struct pl_err *err) PL_MUST_CHECK;
/* Whether the weights of a group of threads come through shared memory at once; direct: of up alone. */
bool pl_moe_bulk(const struct pl_kernels *ks, const struct pl_device_weight *w, enum pl_moe_mma which, bool direct);
struct pl_launch_moe_mma {
    const struct pl_device_weight *w, *up;
    pl_buffer_in *x; /* up: inputs made ready, by row; else room->h */
    pl_buffer_in *y; /* mix: what is added to; else room->h or room->made */
    size_t experts, rows, used;
    bool direct, bulk;
};
enum pl_status pl_launch_moe_mma(struct pl_kernels *ks, struct pl_kernel *k, enum pl_moe_mma which,
                                 const struct pl_moe_room *room, const struct pl_launch_moe_mma *m) PL_MUST_CHECK;

/* Room for so many rows made ready, as many as there may be. */
enum pl_status pl_moe_ready_room(struct pl_kernels *ks, struct pl_mma_room *room, size_t rows, size_t cols,
                                 struct pl_err *err) PL_MUST_CHECK;
/* One row: the choice and up in one launch, for plain softmax routers; ids and weights are left in room as well. */
const char *pl_moe_routed_declines(const struct pl_launch_route *r, size_t experts, size_t used);
enum pl_status pl_kernel_moe_routed(struct pl_kernels *ks, const struct pl_device_weight *w, int act, uint32_t experts,
                                    uint32_t used, struct pl_kernel *out, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_launch_moe_routed(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_moe_room *room,
                                    const struct pl_launch_route *r, const struct pl_launch_moe_mma *m) PL_MUST_CHECK;

/* --- plain softmax routers, a warp a row (kernels/cuda/moe_choose.k.c); where pl_moe_routed_declines says NULL --- */
enum { PL_MOE_CHOOSE_ROWS = 64 }; /* choice and order in one launch up to so many */
/* tile: rows of a tile of the order that is made as well; 0: none is. */
enum pl_status pl_kernel_moe_choose(struct pl_kernels *ks, uint32_t experts, uint32_t used, uint32_t tile,
                                    struct pl_kernel *out, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_launch_moe_choose(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_moe_room *room,
                                    const struct pl_launch_route *r, bool order) PL_MUST_CHECK;

/* The order by many groups of threads, for any router (kernels/cuda/moe_sort.k.c). */
enum { PL_MOE_SORT_EXPERTS = 1024, PL_MOE_SORT_SLOTS = 2048 }; /* at most; of a group */
enum pl_status pl_kernel_moe_sort(struct pl_kernels *ks, uint32_t experts, uint32_t tile, struct pl_kernel *out,
                                  struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_launch_moe_sort(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_moe_room *room,
                                  size_t slots) PL_MUST_CHECK;

/* --- one row on sm_90: both products choose for themselves (kernels/cuda/moe_one.k.c), after norm and logits in one launch
 * (moe_router.k.c). up is followed by mix with no launch between them. --- */
enum pl_moe_one { PL_MOE_ONE_UP, PL_MOE_ONE_MIX, PL_MOE_ONE_COUNT };
const char *pl_moe_one_declines(const struct pl_kernels *ks, const struct pl_device_weight *up,
                                const struct pl_device_weight *down, const struct pl_launch_route *r, size_t experts,
                                size_t used);
enum pl_status pl_kernel_moe_one(struct pl_kernels *ks, const struct pl_device_weight *w, enum pl_moe_one which, int act,
                                 uint32_t experts, uint32_t used, struct pl_kernel *out, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_launch_moe_one(struct pl_kernels *ks, struct pl_kernel *k, enum pl_moe_one which,
                                 const struct pl_moe_room *room, const struct pl_launch_route *r,
                                 const struct pl_launch_moe_mma *m) PL_MUST_CHECK;

struct pl_launch_router {
    pl_buffer_in *x, *norm, *w, *bias, *h, *ready, *logits; /* bias and ready may be NULL; ready: one row, for few rows */
    size_t in, experts;
    float eps, offset;
};
const char *pl_router_declines(const struct pl_kernels *ks, const struct pl_device_weight *w);
enum pl_status pl_kernel_router(struct pl_kernels *ks, struct pl_kernel *out, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_launch_router(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_router *r) PL_MUST_CHECK;

/* --- many rows --- */
struct pl_moe_dense {
    struct pl_kernel pack, pack_in_order;
    struct pl_device_buffer x, w[2], h; /* scratch in bf16 */
};
const char *pl_moe_dense_declines(const struct pl_kernels *ks, const struct pl_device_weight *w, size_t experts);
enum pl_status pl_moe_dense_ready(struct pl_kernels *ks, struct pl_moe_dense *d, size_t rows, size_t used, size_t width,
                                  size_t inner, uint64_t unpacked_bytes, struct pl_err *err) PL_MUST_CHECK;
void pl_moe_dense_deinit(struct pl_kernels *ks, struct pl_moe_dense *d);
enum pl_status pl_kernel_moe_unpack(struct pl_kernels *ks, const struct pl_device_weight *w, struct pl_kernel *out,
                                    struct pl_err *err) PL_MUST_CHECK;
/* Of the experts that were chosen, to scratch `to` of d. */
enum pl_status pl_launch_moe_unpack(struct pl_kernels *ks, struct pl_moe_dense *d, struct pl_kernel *k,
                                    const struct pl_device_weight *w, size_t experts, const struct pl_moe_room *room,
                                    size_t to) PL_MUST_CHECK;
/* in_order: as pl_launch_moe_tall takes it. */
enum pl_status pl_launch_moe_pack(struct pl_kernels *ks, struct pl_moe_dense *d, bool in_order, pl_buffer_in *x,
                                  uint64_t count) PL_MUST_CHECK;
/* wide: by four warps together (kernels/cuda/moe_wide.k.c), where the second says so. */
enum pl_status pl_kernel_moe_dense(struct pl_kernels *ks, bool pair, int act, bool wide, struct pl_kernel *out,
                                   struct pl_err *err) PL_MUST_CHECK;
bool pl_moe_dense_wide(const struct pl_kernels *ks);
struct pl_launch_moe_dense {
    pl_buffer_in *w[2], *bias[2]; /* bf16; biases NULL or both */
    size_t experts, rows, used, in, out;
    bool pair;
};
/* d->x to d->h, or d->h to room->made. */
enum pl_status pl_launch_moe_dense(struct pl_kernels *ks, struct pl_moe_dense *d, struct pl_kernel *k,
                                   const struct pl_moe_room *room, const struct pl_launch_moe_dense *m) PL_MUST_CHECK;

/* Rearranged weights unpacked on their way into the matrix units (kernels/cuda/moe_tall.k.c); h is left in their order. */
const char *pl_moe_tall_declines(const struct pl_kernels *ks, const struct pl_device_weight *w, size_t experts);
enum pl_status pl_kernel_moe_tall(struct pl_kernels *ks, const struct pl_device_weight *w, bool pair, int act,
                                  struct pl_kernel *out, struct pl_err *err) PL_MUST_CHECK;
struct pl_launch_moe_tall {
    const struct pl_device_weight *w, *up; /* up: with the gate, from d->x to d->h; NULL: d->h to room->made, in bf16 */
    size_t experts, rows, used;
};
enum pl_status pl_launch_moe_tall(struct pl_kernels *ks, struct pl_moe_dense *d, struct pl_kernel *k,
                                  const struct pl_moe_room *room, const struct pl_launch_moe_tall *m) PL_MUST_CHECK;

/* y += the weighted sums of room->made in bf16. */
enum pl_status pl_kernel_moe_sum(struct pl_kernels *ks, uint32_t used, struct pl_kernel *out,
                                 struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_launch_moe_sum(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_moe_room *room, size_t rows,
                                 size_t cols, pl_buffer_in *y) PL_MUST_CHECK;

/* --- f32 weights, nothing rounded: routers (kernels/cuda/fma.k.c; from two rows on and with few outputs tf32x3.k.c and
 * tf32x3_few.k.c) --- */
enum { PL_FMA_ROWS_FEW = 8, PL_FMA_OUT_FEW = 1024, PL_FMA_KERNELS = 7 };
const char *pl_fma_declines(const struct pl_kernels *ks, const struct pl_device_weight *w, size_t rows);
/* Index of the kernel. */
uint32_t pl_fma_kernel_of(const struct pl_kernels *ks, const struct pl_device_weight *w, size_t rows);
const char *pl_fma_name(uint32_t which);
enum pl_status pl_kernel_fma(struct pl_kernels *ks, uint32_t which, struct pl_kernel *out, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_launch_fma(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_device_weight *w, pl_buffer_in *x,
                             pl_buffer_in *bias, pl_buffer_in *y, size_t rows, bool add) PL_MUST_CHECK;

#endif
