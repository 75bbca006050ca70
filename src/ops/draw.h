/* draw - tokens drawn on a device: kernels/draw.k.c as functions. Portable. */
#ifndef PL_OPS_DRAW_H
#define PL_OPS_DRAW_H

#include "ops/launch.h"
#include "ops/ops.h"

enum { PL_DRAW_LIST = 2048 }; /* entries of a part's list */
struct pl_draw_kernels {      /* of rows of one type */
    struct pl_kernel scan, climb, weigh, gather, choose;
};
enum pl_status pl_kernel_draw(struct pl_kernels *ks, enum pl_dtype logits, struct pl_draw_kernels *out,
                              struct pl_err *err) PL_MUST_CHECK;
/* What the launches leave each other, for any number of rows up to `rows`. Taking more waits for the device. */
struct pl_draw_room {
    uint64_t rows;
    struct pl_device_buffer part_max, part_id, maxima, rises, stairs, above, parts, ids, logits, scores;
};
enum pl_status pl_draw_reserve(struct pl_kernels *ks, struct pl_draw_room *room, uint64_t rows) PL_MUST_CHECK;
void pl_draw_release(struct pl_kernels *ks, struct pl_draw_room *room);

struct pl_args_draw pl_draw_args(const struct pl_draw *d, uint32_t vocab);
/* Which launches rows need: scan and gather where one has top_k or no temperature; climb where one has neither, weigh where
 * such a row has top_p. Choose always. */
struct pl_draw_ways {
    bool lists, climbs, weighs;
};
struct pl_draw_ways pl_draw_ways_of(const struct pl_draw *draws, size_t rows);
/* x [rows, cols]; draws [rows] struct pl_args_draw; out [2 * rows] u32: tokens, then 1 where the rounds did not suffice.
 * The tokens are the same when ways are {.lists = true}. list: entries of a part's list, at most PL_DRAW_LIST; fewer in
 * tests. */
enum pl_status pl_launch_draw(struct pl_kernels *ks, struct pl_draw_kernels *k, const struct pl_draw_room *room,
                              const struct pl_device_buffer *x, const struct pl_device_buffer *draws,
                              const struct pl_device_buffer *out, size_t rows, size_t cols, struct pl_draw_ways ways,
                              uint32_t list) PL_MUST_CHECK;

#endif
