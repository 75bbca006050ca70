/* draw - tokens drawn on a device: kernels/draw.k.c as functions. Portable. */
#ifndef PL_OPS_DRAW_H
#define PL_OPS_DRAW_H

#include "ops/launch.h"
#include "ops/ops.h"

enum { PL_DRAW_LIST = 2048, PL_DRAW_PARTS_MAX = 32 }; /* entries of a part's list */
struct pl_draw_kernels {                              /* of rows of one type */
    struct pl_kernel scan, weigh, gather, choose;
};
enum pl_status pl_kernel_draw(struct pl_kernels *ks, enum pl_dtype logits, struct pl_draw_kernels *out,
                              struct pl_err *err) PL_MUST_CHECK;
/* What the launches leave each other, for any number of rows up to `rows`. Taking more waits for the device. */
struct pl_draw_room {
    uint64_t rows;
    struct pl_device_buffer part_max, part_id, maxima, weights, bins, parts, ids, logits, scores;
};
enum pl_status pl_draw_reserve(struct pl_kernels *ks, struct pl_draw_room *room, uint64_t rows) PL_MUST_CHECK;
void pl_draw_release(struct pl_kernels *ks, struct pl_draw_room *room);

struct pl_args_draw pl_draw_args(const struct pl_draw *d, uint32_t vocab);
/* x [rows, cols]; draws [rows] struct pl_args_draw; out [2 * rows] u32: tokens, then 1 where the rounds did not suffice.
 * weigh: where some row has top_p, what it leaves is first narrowed by the masses of whole bins: one more launch, and as a
 * rule short lists. The tokens are the same without. list: entries of a part's list, at most PL_DRAW_LIST; fewer in tests.
 */
bool pl_draw_weighs(const struct pl_draw *draws,
                    size_t rows); /* one of them has top_p and no top_k, which shortens its list */
enum pl_status pl_launch_draw(struct pl_kernels *ks, struct pl_draw_kernels *k, const struct pl_draw_room *room,
                              const struct pl_device_buffer *x, const struct pl_device_buffer *draws,
                              const struct pl_device_buffer *out, size_t rows, size_t cols, bool weigh,
                              uint32_t list) PL_MUST_CHECK;

#endif
