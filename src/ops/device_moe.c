/* Mixtures of experts as the device backends run them: choice, then the products of the chosen experts either slot by slot,
 * with the weighted sum fused (one row: each chosen expert's weights are read once), or in order of their experts (each
 * expert's weights are read once for all rows that chose it); on NVIDIA GPUs by device_moe_cuda.c where it can. */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "ops/device_moe.h"

enum pl_status dev_experts_create(struct pl_ops *o, const struct pl_tensor *experts, size_t count, struct pl_weight **out,
                                  struct pl_err *err) {
    struct dev_weight *w;
    PL_TRY(dev_stack_create(o, experts, count, &w, err));
    w->bytes /= count; /* one expert's: what a product reads depends on how many are chosen */
    *out = &w->base;
    return PL_OK;
}

/* --- one layer --- */

enum pl_status dev_moe_reserve(struct pl_ops *o, const struct pl_moe *p, size_t rows, struct pl_err *err) {
    struct dev_ops *d = dev_of(o);
    size_t slots;
    if (!pl_mul_size(rows, p->used, &slots)) PL_FAIL(err, PL_LIMIT, "%zu rows of %zu experts", rows, p->used);
    PL_TRY(dev_moe_rearrange(d, p, err));
    PL_TRY(pl_moe_ready(&d->ks, &d->moe.room, slots, p->up->experts, (size_t)p->up->rows, (size_t)p->down->rows, err));
    return dev_moe_cuda_reserve(d, p, rows, err);
}

enum pl_status dev_moe_kernels(struct dev_ops *d, const struct pl_moe *p, uint32_t tile, struct pl_moe_route **out) {
    struct pl_moe_route *r = tile == PL_MOE_TILE ? &d->moe.route : &d->moe.route_dense;
    uint32_t experts = (uint32_t)p->up->experts, used = (uint32_t)p->used;
    *out = r;
    if (r->combine.jit != NULL && r->experts == experts && r->used == used) return PL_OK;
    return dev_report(d, pl_kernel_moe_route(&d->ks, experts, used, tile, r, &d->ks.err)); /* what ran stays in its record */
}

static struct pl_launch_route route_of(const struct pl_moe *p, const struct pl_activation *logits) {
    return (struct pl_launch_route){.logits = data_of(logits),
                                    .bias = vector_of(p->choice_bias),
                                    .rows = logits->rows,
                                    .sigmoid = p->router == PL_ROUTER_SIGMOID,
                                    .renormalise = p->renormalise,
                                    .groups = p->groups,
                                    .groups_used = p->groups_used,
                                    .group_top = p->group_top,
                                    .scale = p->scale};
}
static enum pl_status route(struct pl_ops *o, struct pl_moe_route *k, const struct pl_launch_route *r) {
    struct dev_ops *d = dev_of(o);
    return dev_done(o, PL_OP_moe, &k->route, 0, pl_launch_moe_route(&d->ks, k, &d->moe.room, r));
}

/* One launch; m says what of it. */
static enum pl_status product(struct pl_ops *o, const struct pl_weight *weight, enum pl_moe_kernel which, int act,
                              struct pl_launch_moe *m) {
    struct dev_ops *d = dev_of(o);
    const struct dev_weight *w = weight_of(weight);
    struct pl_kernel *k = &w->format->moe[which][act][m->direct];
    if (k->jit == NULL) {
        enum pl_status st = pl_kernel_moe(&d->ks, &w->w, which, act, m->direct, k, &d->ks.err);
        if (st != PL_OK) return dev_report(d, st);
    }
    m->w = &w->w;
    m->experts = weight->experts;
    uint64_t experts = PL_MIN((uint64_t)(m->rows * m->used), (uint64_t)weight->experts); /* the most that can be chosen */
    return dev_done(o, PL_OP_moe, k, experts * w->bytes * (which == PL_MOE_PAIR ? 2 : 1),
                    pl_launch_moe(&d->ks, k, which, &d->moe.room, m));
}

/* h = act(gate x) * up x for every slot: one launch where both matrices are of one format, or there is but one. */
static enum pl_status gate_and_up(struct pl_ops *o, const struct pl_moe *p, const struct pl_activation *x, bool direct) {
    struct dev_ops *d = dev_of(o);
    struct pl_launch_moe m = {.x = data_of(x), .y = &d->moe.room.h, .rows = x->rows, .used = p->used, .direct = direct};
    if (p->gate == NULL) {
        m.alone = true;
        return product(o, p->up, PL_MOE_ONE, (int)p->act, &m);
    }
    m.bias = vector_of(p->gate_bias);
    if (weight_of(p->gate)->format == weight_of(p->up)->format) {
        m.up = &weight_of(p->up)->w;
        m.up_bias = vector_of(p->up_bias);
        return product(o, p->gate, PL_MOE_PAIR, (int)p->act, &m);
    }
    PL_TRY(product(o, p->gate, PL_MOE_ONE, 0, &m));
    m.bias = vector_of(p->up_bias);
    m.gated = true;
    return product(o, p->up, PL_MOE_ONE, (int)p->act, &m);
}

static enum pl_status by_slot(struct pl_ops *o, const struct pl_moe *p, const struct pl_activation *x,
                              struct pl_activation *y) {
    struct dev_ops *d = dev_of(o);
    PL_TRY(gate_and_up(o, p, x, true));
    struct pl_launch_moe m = {.bias = vector_of(p->down_bias),
                              .x = &d->moe.room.h,
                              .y = data_of(y),
                              .rows = x->rows,
                              .used = p->used,
                              .direct = true};
    return product(o, p->down, PL_MOE_MIX, 0, &m);
}

enum pl_status dev_moe_order(struct pl_ops *o, struct pl_moe_route *k, size_t rows, uint32_t tile) {
    struct dev_ops *d = dev_of(o);
    if (dev_moe_sorts(d, k->experts)) return dev_moe_sort(o, k->experts, rows * k->used, tile);
    return dev_done(o, PL_OP_moe, &k->order, 0, pl_launch_moe_order(&d->ks, k, &d->moe.room, rows));
}
enum pl_status dev_moe_combine(struct pl_ops *o, struct pl_moe_route *k, struct pl_activation *y) {
    struct dev_ops *d = dev_of(o);
    enum pl_status st = pl_launch_moe_combine(&d->ks, k, &d->moe.room, y->rows, y->cols, data_of(y));
    return dev_done(o, PL_OP_moe, &k->combine, 0, st);
}

static enum pl_status by_expert(struct pl_ops *o, struct pl_moe_route *k, const struct pl_moe *p,
                                const struct pl_activation *x, struct pl_activation *y) {
    struct dev_ops *d = dev_of(o);
    PL_TRY(gate_and_up(o, p, x, false));
    struct pl_launch_moe m = {.bias = vector_of(p->down_bias),
                              .x = &d->moe.room.h,
                              .y = &d->moe.room.made,
                              .rows = x->rows,
                              .used = p->used,
                              .by_place = true};
    PL_TRY(product(o, p->down, PL_MOE_ONE, 0, &m));
    return dev_moe_combine(o, k, y);
}

/* Each row's experts, and with a tile the order by expert. */
static enum pl_status choice(struct pl_ops *o, struct pl_moe_route *k, const struct pl_moe *p,
                             const struct pl_launch_route *r, uint32_t tile) {
    if (pl_device_info(dev_of(o)->ks.device)->kind == PL_DEVICE_CUDA && dev_moe_chooses(dev_of(o), r, p))
        return dev_moe_choose(o, k, r, p, tile);
    PL_TRY(route(o, k, r));
    return tile > 0 ? dev_moe_order(o, k, r->rows, tile) : PL_OK;
}

enum { MOE_IMPLS = 4, GRID_MAX = 65535 };
/* In rank order. One row has every expert once: nothing to put in order. */
static size_t candidates(const struct dev_ops *d, const struct pl_moe *p, size_t rows, struct pl_candidate out[MOE_IMPLS]) {
    bool forced = d->base.choice.forced[PL_OP_moe] == PL_IMPL_BY_SLOT;
    bool strips = weight_of(p->up)->w.strips || weight_of(p->down)->w.strips;
    const char *moved = strips ? "rearranged weights" : NULL, *why = moved;
    size_t n = pl_device_info(d->ks.device)->kind == PL_DEVICE_CUDA ? dev_moe_cuda_candidates(d, p, rows, out) : 0;
    if (why == NULL && d->base.invariant) why = "another kernel for one row than for many";
    if (why == NULL && rows > 1 && !forced) why = "several rows";
    if (why == NULL && rows * p->used > GRID_MAX) why = "too many rows for one grid";
    out[n++] = (struct pl_candidate){PL_IMPL_BY_SLOT, rows == 1 && !d->base.invariant, why};
    out[n++] = (struct pl_candidate){PL_IMPL_BY_EXPERT, true, moved};
    return n;
}

enum pl_status dev_moe(struct pl_ops *o, const struct pl_moe *p, const struct pl_activation *logits,
                       const struct pl_activation *x, struct pl_activation *y) {
    struct dev_ops *d = dev_of(o);
    struct pl_candidate list[MOE_IMPLS];
    enum pl_impl taken;
    char shape[96];
    PL_TRY(dev_settle(o));
    bool ready = d->prepared == x && d->prepared_as == PL_INPUTS_FEW; /* the choice does not change x */
    snprintf(shape, sizeof shape, "%zu rows, %zu of %zu experts, %s", x->rows, p->used, p->up->experts,
             pl_dtype_name(weight_of(p->up)->w.dtype));
    PL_TRY(pl_ops_decide(o, PL_OP_moe, list, candidates(d, p, x->rows, list), 1, shape, &taken));
    struct pl_moe_route *k = NULL;
    PL_TRY(dev_moe_kernels(d, p, taken == PL_IMPL_DENSE ? PL_MOE_DENSE_TILE : PL_MOE_TILE, &k));
    const struct pl_launch_route r = route_of(p, logits);
    bool alone = taken == PL_IMPL_MMA && x->rows == 1 && !d->ks.fixed;
    if (alone && pl_moe_routed_declines(&r, p->up->experts, p->used) == NULL) return dev_moe_routed(o, &r, p, x, ready, y);
    bool ordered = taken != PL_IMPL_BY_SLOT && !alone;
    PL_TRY(choice(o, k, p, &r, !ordered ? 0 : taken == PL_IMPL_DENSE ? PL_MOE_DENSE_TILE : PL_MOE_TILE));
    if (taken == PL_IMPL_DENSE) return dev_moe_dense(o, k, p, x, y);
    if (taken == PL_IMPL_MMA) return dev_moe_mma(o, k, p, x, ready, y);
    return taken == PL_IMPL_BY_SLOT ? by_slot(o, p, x, y) : by_expert(o, k, p, x, y);
}

void dev_moe_deinit(struct dev_ops *d) {
    pl_moe_deinit(&d->ks, &d->moe.room);
    dev_moe_cuda_deinit(d);
}
