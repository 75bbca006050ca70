/* moe - the portable kernels of a mixture of experts (kernels/moe_route.k.c, kernels/moe.k.c): specialisation and launch. */
#ifndef PL_OPS_MOE_H
#define PL_OPS_MOE_H

#include "ops/launch.h"

enum { PL_MOE_TILE = 8 }; /* rows that share an unpacked weight */

/* Records and scratch of one step's layer; used again by the next. Made for `slots` slots. */
struct pl_moe_room {
    size_t slots, experts, inner, width;
    struct pl_device_buffer ids, weights, order, h, made; /* made: [slots, width], where sums are not fused */
};
/* Grows what is too small; the device is waited for then. */
enum pl_status pl_moe_ready(struct pl_kernels *ks, struct pl_moe_room *room, size_t slots, size_t experts, size_t inner,
                            size_t width, struct pl_err *err) PL_MUST_CHECK;
void pl_moe_deinit(struct pl_kernels *ks, struct pl_moe_room *room);
/* Tiles that so many slots make at most. */
uint32_t pl_moe_tiles(size_t slots, size_t experts, size_t tile);

struct pl_moe_route {
    struct pl_kernel route, order, combine;
    uint32_t experts, used;
};
/* tile: rows of a tile of the order, PL_MOE_TILE for the kernels here. */
enum pl_status pl_kernel_moe_route(struct pl_kernels *ks, uint32_t experts, uint32_t used, uint32_t tile,
                                   struct pl_moe_route *out, struct pl_err *err) PL_MUST_CHECK;
struct pl_launch_route {
    pl_buffer_in *logits, *bias; /* bias may be NULL */
    size_t rows;
    bool sigmoid, renormalise;
    uint32_t groups, groups_used, group_top;
    float scale;
};
enum pl_status pl_launch_moe_route(struct pl_kernels *ks, struct pl_moe_route *k, const struct pl_moe_room *room,
                                   const struct pl_launch_route *r) PL_MUST_CHECK;
enum pl_status pl_launch_moe_order(struct pl_kernels *ks, struct pl_moe_route *k, const struct pl_moe_room *room,
                                   size_t rows) PL_MUST_CHECK;
/* y += the weighted sums of room->made. */
enum pl_status pl_launch_moe_combine(struct pl_kernels *ks, struct pl_moe_route *k, const struct pl_moe_room *room,
                                     size_t rows, size_t cols, pl_buffer_in *y) PL_MUST_CHECK;

/* Products of one format of weights: gate and up together, one matrix, down with the sum; by slot, or by order. */
enum pl_moe_kernel { PL_MOE_PAIR, PL_MOE_ONE, PL_MOE_MIX, PL_MOE_KERNELS };
enum { PL_MOE_ACTS = 4 }; /* enum pl_ops_act */
enum pl_status pl_kernel_moe(struct pl_kernels *ks, const struct pl_device_weight *w, enum pl_moe_kernel which, int act,
                             bool direct, struct pl_kernel *out, struct pl_err *err) PL_MUST_CHECK;
struct pl_launch_moe {
    const struct pl_device_weight *w, *up; /* of all experts, one after the other; up: of a pair */
    pl_buffer_in *bias, *up_bias;          /* of all experts, or NULL */
    pl_buffer_in *x, *y;
    size_t experts, rows, used;
    bool direct, by_place, gated, alone; /* as in kernels/moe.k.c */
};
enum pl_status pl_launch_moe(struct pl_kernels *ks, struct pl_kernel *k, enum pl_moe_kernel which,
                             const struct pl_moe_room *room, const struct pl_launch_moe *m) PL_MUST_CHECK;

#endif
