/* Mixtures of experts on NVIDIA's tensor cores (cuda_moe.h): rearranged weights for up to MMA_ROWS_MAX rows, weights
 * unpacked to bf16 for more. */
#include "base/check.h"
#include "base/log.h"
#include "ops/device_moe.h"

enum {
    GRID_MAX = 65535,
    MMA_ROWS_MAX = 1024,                  /* made ready at once */
    DENSE_ROWS_STRIPS = MMA_ROWS_MAX + 1, /* from so many rows on unpacking pays: rearranged weights, */
    DENSE_ROWS_TALL = 225,                /* those on sm_90a, which are unpacked on their way, */
    DENSE_ROWS = 9                        /* and others, which the portable kernel takes up to then */
};

/* All strips of a group asked for at once from the copy engine: for one row (moe_one) right on a card and slower there than
 * what is taken; for more (bulk) faster for down, slower for gate and up (docs/perf/h200.md). */
#define ONE_BY_COPIES false
static bool takes_bulk(const struct dev_ops *d, const struct pl_device_weight *w, enum pl_moe_mma which, bool direct) {
    return which == PL_MOE_MMA_DOWN && pl_moe_bulk(&d->ks, w, which, direct);
}

static bool is_strips(const struct pl_weight *w) { return weight_of(w)->w.strips; }

/* --- weights --- */

/* Whether the layer's experts are to stand in strips: all three matrices can, and the kernels have no biases. */
static bool wants_strips(const struct dev_ops *d, const struct pl_moe *p) {
    const struct pl_choice *c = &d->base.choice;
    enum pl_impl forced = c->forced[PL_OP_moe];
    const struct pl_weight *all[] = {p->gate, p->up, p->down};
    if (p->gate == NULL || (d->exact && !d->ks.fixed) ||
        (forced != PL_IMPL_NONE && forced != PL_IMPL_MMA && forced != PL_IMPL_DENSE))
        return false;
    if ((c->disabled[PL_OP_moe] >> PL_IMPL_MMA & 1u) != 0 || p->gate_bias != NULL || p->down_bias != NULL) return false;
    if (weight_of(p->gate)->format != weight_of(p->up)->format || p->act == PL_OPS_SWIGLU_CLAMPED) return false;
    for (size_t i = 0; i < PL_COUNT_OF(all); i++)
        if (pl_moe_strips_decline(&d->ks, &weight_of(all[i])->w, all[i]->experts) != NULL) return false;
    return true;
}

/* Rows made ready at once. Fixed: all, since the other forms add in another order. */
static size_t rows_max(const struct dev_ops *d) { return d->ks.fixed ? PL_MMA_FIXED_ROWS : MMA_ROWS_MAX; }

static enum pl_status rearrange(struct dev_ops *d, struct dev_weight *w, struct pl_err *err) {
    struct pl_device_weight to = w->w;
    struct dev_format *format = NULL;
    to.strips = true;
    to.data = (struct pl_device_buffer){0};
    PL_TRY(dev_format_of(d, &to, &format, err));
    if (format->retile.jit == NULL) PL_TRY(pl_kernel_retile(&d->ks, &format->w, &format->retile, err));
    PL_TRY(pl_device_alloc(d->ks.device, pl_strips_bytes(&to), &to.data, err));
    enum pl_status st = pl_launch_retile(&d->ks, &format->retile, &w->w, &to.data);
    if (st == PL_OK) st = pl_device_stream_wait(d->ks.device, d->ks.stream, &d->ks.err);
    if (st != PL_OK) {
        *err = d->ks.err;
        pl_device_settle(d->ks.device);
        pl_device_free(d->ks.device, &to.data);
        return st;
    }
    pl_device_free(d->ks.device, &w->w.data);
    w->w = to;
    w->format = format;
    d->strips = true;
    d->mma_cols = PL_MAX(d->mma_cols, to.cols); /* norms make their rows ready for these as well */
    return PL_OK;
}

enum pl_status dev_moe_rearrange(struct dev_ops *d, const struct pl_moe *p, struct pl_err *err) {
    struct pl_weight *const all[] = {(struct pl_weight *)p->gate, (struct pl_weight *)p->up, (struct pl_weight *)p->down};
    if (is_strips(p->up) || !wants_strips(d, p)) return PL_OK;
    for (size_t i = 0; i < PL_COUNT_OF(all); i++) PL_TRY(rearrange(d, (struct dev_weight *)all[i], err));
    return PL_OK;
}

static uint64_t unpacked_bytes(const struct pl_weight *w) {
    const struct pl_device_weight *m = &weight_of(w)->w;
    return m->dtype == PL_BF16 ? 0 : 2 * m->rows * m->cols;
}
static const char *dense_declines(const struct dev_ops *d, const struct pl_moe *p) {
    const struct pl_weight *all[] = {p->gate, p->up, p->down};
    if (p->gate == NULL) return "experts without gates";
    for (size_t i = 0; i < PL_COUNT_OF(all); i++) {
        const char *why = pl_moe_dense_declines(&d->ks, &weight_of(all[i])->w, all[i]->experts);
        if (why != NULL) return why;
    }
    return d->exact ? "exact products were asked for" : NULL;
}
/* Many rows meet strips as they are: nothing is unpacked. */
static bool takes_tall(const struct dev_ops *d, const struct pl_moe *p) {
    const struct pl_weight *all[] = {p->gate, p->up, p->down};
    for (size_t i = 0; i < PL_COUNT_OF(all); i++)
        if (pl_moe_tall_declines(&d->ks, &weight_of(all[i])->w, all[i]->experts) != NULL) return false;
    return true;
}
static size_t dense_from(const struct dev_ops *d, const struct pl_moe *p) {
    return !is_strips(p->up) ? DENSE_ROWS : takes_tall(d, p) ? DENSE_ROWS_TALL : DENSE_ROWS_STRIPS;
}

enum pl_status dev_moe_cuda_reserve(struct dev_ops *d, const struct pl_moe *p, size_t rows, struct pl_err *err) {
    if (is_strips(p->up))
        PL_TRY(pl_moe_ready_room(&d->ks, &d->moe.ready, PL_MIN(rows, rows_max(d)), (size_t)p->up->cols, err));
    bool forced = d->base.choice.forced[PL_OP_moe] == PL_IMPL_DENSE;
    if (dense_declines(d, p) != NULL || (rows < dense_from(d, p) && !forced)) return PL_OK;
    struct pl_err why = {0};
    uint64_t bytes = PL_MAX(PL_MAX(unpacked_bytes(p->gate), unpacked_bytes(p->up)), unpacked_bytes(p->down));
    if (takes_tall(d, p)) bytes = 0;
    enum pl_status st =
        pl_moe_dense_ready(&d->ks, &d->moe.dense, rows, p->used, (size_t)p->gate->cols, (size_t)p->gate->rows, bytes, &why);
    if (st == PL_OK) {
        d->moe.dense_rows = rows;
    } else { /* slower, but it runs */
        pl_log("experts of many rows run without unpacked weights: %s", why.text);
    }
    return PL_OK;
}

size_t dev_moe_cuda_candidates(const struct dev_ops *d, const struct pl_moe *p, size_t rows, struct pl_candidate *out) {
    bool forced = d->base.choice.forced[PL_OP_moe] == PL_IMPL_DENSE;
    const char *dense = dense_declines(d, p), *mma = is_strips(p->up) ? NULL : "layout of the file";
    if (dense == NULL && rows > d->moe.dense_rows) dense = "no memory for unpacked weights";
    if (dense == NULL && rows < dense_from(d, p) && !forced) dense = "few rows";
    if (mma == NULL && rows > rows_max(d)) mma = "many rows";
    if (mma == NULL && pl_moe_tiles(rows * p->used, p->up->experts, PL_MOE_TILE) > GRID_MAX)
        mma = "too many rows for one grid";
    bool planned = !d->exact && rows >= dense_from(d, p) && d->moe.dense_rows > 0 && dense_declines(d, p) == NULL;
    out[0] = (struct pl_candidate){PL_IMPL_DENSE, planned, dense};
    out[1] = (struct pl_candidate){PL_IMPL_MMA, is_strips(p->up), mma};
    return 2;
}

/* --- choice --- */

bool dev_moe_chooses(const struct dev_ops *d, const struct pl_launch_route *r, const struct pl_moe *p) {
    return pl_cuda_capability(&d->ks) >= 80 && pl_moe_routed_declines(r, p->up->experts, p->used) == NULL;
}
enum pl_status dev_moe_choose(struct pl_ops *o, struct pl_moe_route *k, const struct pl_launch_route *r,
                              const struct pl_moe *p, uint32_t tile) {
    struct dev_ops *d = dev_of(o);
    uint32_t experts = (uint32_t)p->up->experts, used = (uint32_t)p->used;
    bool both = tile > 0 && r->rows <= PL_MOE_CHOOSE_ROWS && !d->base.invariant; /* else one kernel chooses for all */
    struct dev_moe_choice *c = &d->moe.choose[!both ? 0 : tile == PL_MOE_TILE ? 1 : 2];
    enum pl_status st = PL_OK;
    if (c->k.jit == NULL || c->experts != experts || c->used != used)
        st = pl_kernel_moe_choose(&d->ks, experts, used, both ? tile : 0, &c->k, &d->ks.err);
    if (st != PL_OK) return dev_report(d, st);
    c->experts = experts;
    c->used = used;
    PL_TRY(dev_done(o, PL_OP_moe, &c->k, 0, pl_launch_moe_choose(&d->ks, &c->k, &d->moe.room, r, both)));
    return tile > 0 && !both ? dev_moe_order(o, k, r->rows, tile) : PL_OK;
}
bool dev_moe_sorts(const struct dev_ops *d, uint32_t experts) {
    return pl_cuda_capability(&d->ks) >= 80 && experts <= PL_MOE_SORT_EXPERTS;
}
enum pl_status dev_moe_sort(struct pl_ops *o, uint32_t experts, size_t slots, uint32_t tile) {
    struct dev_ops *d = dev_of(o);
    uint32_t which = tile == PL_MOE_TILE ? 0 : 1;
    struct pl_kernel *k = &d->moe.sort[which];
    bool made = k->jit != NULL && d->moe.sort_experts[which] == experts;
    enum pl_status st = made ? PL_OK : pl_kernel_moe_sort(&d->ks, experts, tile, k, &d->ks.err);
    if (st != PL_OK) return dev_report(d, st);
    d->moe.sort_experts[which] = experts;
    return dev_done(o, PL_OP_moe, k, 0, pl_launch_moe_sort(&d->ks, k, &d->moe.room, slots));
}

/* --- rearranged weights --- */

static enum pl_status product(struct pl_ops *o, const struct pl_weight *weight, enum pl_moe_mma which, int act,
                              struct pl_launch_moe_mma *m) {
    struct dev_ops *d = dev_of(o);
    const struct dev_weight *w = weight_of(weight);
    m->bulk = takes_bulk(d, &w->w, which, m->direct);
    struct pl_kernel *k = &w->format->moe_mma[which][act][m->bulk ? 2 : m->direct];
    enum pl_status st = PL_OK;
    if (k->jit == NULL) st = pl_kernel_moe_mma(&d->ks, &w->w, which, act, m->direct, m->bulk, k, &d->ks.err);
    if (st != PL_OK) return dev_report(d, st);
    m->w = &w->w;
    m->experts = weight->experts;
    uint64_t experts = PL_MIN((uint64_t)(m->rows * m->used), (uint64_t)weight->experts); /* the most that can be chosen */
    return dev_done(o, PL_OP_moe, k, experts * w->bytes * (which == PL_MOE_MMA_UP ? 2 : 1),
                    pl_launch_moe_mma(&d->ks, k, which, &d->moe.room, m));
}

static enum pl_status make_ready(struct pl_ops *o, const struct pl_activation *x) {
    struct dev_ops *d = dev_of(o);
    struct pl_kernel *k = &d->prepare[PL_PREPARE_COPY][PL_INPUTS_FEW];
    struct pl_launch_prepare copy = {.x = data_of(x), .rows = x->rows, .cols = x->cols};
    enum pl_status st = k->jit != NULL ? PL_OK : pl_kernel_prepare(&d->ks, PL_PREPARE_COPY, PL_INPUTS_FEW, k, &d->ks.err);
    if (st != PL_OK) return dev_report(d, st);
    return dev_done(o, PL_OP_moe, k, 0, pl_launch_prepare(&d->ks, PL_PREPARE_COPY, k, &d->moe.ready, &copy));
}

/* Both products in a launch of their own that chooses: true where they can. */
static bool takes_one(const struct dev_ops *d, const struct pl_launch_route *r, const struct pl_moe *p) {
    return ONE_BY_COPIES &&
           pl_moe_one_declines(&d->ks, &weight_of(p->gate)->w, &weight_of(p->down)->w, r, p->gate->experts, p->used) == NULL;
}
/* Steps that are planned have one row or many; others come later. */
static enum pl_status note_others(struct dev_ops *d, const struct pl_moe *p) {
    struct pl_kernel noted = {0};
    const struct pl_device_weight *up = &weight_of(p->gate)->w, *down = &weight_of(p->down)->w;
    const struct pl_launch_route r = {
        .bias = vector_of(p->choice_bias), .sigmoid = p->router == PL_ROUTER_SIGMOID, .groups = p->groups};
    bool bulk_up = takes_bulk(d, up, PL_MOE_MMA_UP, false), bulk_down = takes_bulk(d, down, PL_MOE_MMA_DOWN, false);
    uint32_t experts = (uint32_t)p->gate->experts, used = (uint32_t)p->used;
    PL_TRY(pl_kernel_moe_mma(&d->ks, up, PL_MOE_MMA_UP, (int)p->act, false, bulk_up, &noted, &d->ks.err));
    PL_TRY(pl_kernel_moe_mma(&d->ks, down, PL_MOE_MMA_DOWN, 0, false, bulk_down, &noted, &d->ks.err));
    for (uint32_t tile = 0; dev_moe_chooses(d, &r, p) && tile <= PL_MOE_TILE; tile += PL_MOE_TILE)
        PL_TRY(pl_kernel_moe_choose(&d->ks, experts, used, tile, &noted, &d->ks.err));
    if (d->ks.fixed) return PL_OK; /* no forms of one row */
    if (takes_one(d, &r, p)) {
        PL_TRY(pl_kernel_router(&d->ks, &noted, &d->ks.err));
        PL_TRY(pl_kernel_moe_one(&d->ks, up, PL_MOE_ONE_UP, (int)p->act, experts, used, &noted, &d->ks.err));
        return pl_kernel_moe_one(&d->ks, down, PL_MOE_ONE_MIX, 0, experts, used, &noted, &d->ks.err);
    }
    if (pl_moe_routed_declines(&r, experts, used) == NULL) {
        PL_TRY(pl_kernel_router(&d->ks, &noted, &d->ks.err));
        PL_TRY(pl_kernel_moe_routed(&d->ks, up, (int)p->act, experts, used, &noted, &d->ks.err));
    } else {
        PL_TRY(pl_kernel_moe_mma(&d->ks, up, PL_MOE_MMA_UP, (int)p->act, true, false, &noted, &d->ks.err));
    }
    return pl_kernel_moe_mma(&d->ks, down, PL_MOE_MMA_MIX, 0, true, false, &noted, &d->ks.err);
}

enum pl_status dev_moe_mma(struct pl_ops *o, struct pl_moe_route *k, const struct pl_moe *p, const struct pl_activation *x,
                           bool ready, struct pl_activation *y) {
    struct dev_ops *d = dev_of(o);
    bool direct = x->rows == 1 && !d->ks.fixed; /* one row in order of its experts gets the bits that it gets among others */
    if (d->ks.planning) {
        enum pl_status st = note_others(d, p);
        if (st != PL_OK) return dev_report(d, st);
    }
    if (!ready) PL_TRY(make_ready(o, x));
    struct pl_launch_moe_mma up = {.up = &weight_of(p->up)->w,
                                   .x = ready ? &d->mma.x : &d->moe.ready.x,
                                   .y = &d->moe.room.h,
                                   .rows = x->rows,
                                   .used = p->used,
                                   .direct = direct};
    PL_TRY(product(o, p->gate, PL_MOE_MMA_UP, (int)p->act, &up));
    struct pl_launch_moe_mma down = {.x = &d->moe.room.h, .rows = x->rows, .used = p->used, .direct = direct};
    down.y = direct ? data_of(y) : &d->moe.room.made;
    PL_TRY(product(o, p->down, direct ? PL_MOE_MMA_MIX : PL_MOE_MMA_DOWN, 0, &down));
    return direct ? PL_OK : dev_moe_combine(o, k, y);
}

static enum pl_status one_kernel(struct dev_ops *d, const struct pl_weight *weight, enum pl_moe_one which, int act,
                                 uint32_t used, struct pl_kernel **out) {
    struct dev_format *f = weight_of(weight)->format;
    struct pl_kernel *k = &f->moe_one[which];
    uint32_t experts = (uint32_t)weight->experts;
    *out = k;
    if (k->jit != NULL && f->one_experts[which] == experts && f->one_used[which] == used) return PL_OK;
    PL_TRY(dev_report(d, pl_kernel_moe_one(&d->ks, &weight_of(weight)->w, which, act, experts, used, k, &d->ks.err)));
    f->one_experts[which] = experts;
    f->one_used[which] = used;
    return PL_OK;
}
static enum pl_status one_row(struct pl_ops *o, const struct pl_launch_route *r, const struct pl_moe *p, bool ready,
                              struct pl_activation *y) {
    struct dev_ops *d = dev_of(o);
    struct pl_kernel *up_kernel = NULL, *mix_kernel = NULL;
    uint32_t used = (uint32_t)p->used;
    PL_TRY(one_kernel(d, p->gate, PL_MOE_ONE_UP, (int)p->act, used, &up_kernel));
    PL_TRY(one_kernel(d, p->down, PL_MOE_ONE_MIX, 0, used, &mix_kernel));
    const struct pl_launch_moe_mma up = {.w = &weight_of(p->gate)->w,
                                         .up = &weight_of(p->up)->w,
                                         .x = ready ? &d->mma.x : &d->moe.ready.x,
                                         .y = &d->moe.room.h,
                                         .experts = p->gate->experts,
                                         .rows = 1,
                                         .used = used,
                                         .direct = true};
    const struct pl_launch_moe_mma mix = {.w = &weight_of(p->down)->w,
                                          .x = &d->moe.room.h,
                                          .y = data_of(y),
                                          .experts = p->down->experts,
                                          .rows = 1,
                                          .used = used,
                                          .direct = true};
    enum pl_status st = pl_launch_moe_one(&d->ks, up_kernel, PL_MOE_ONE_UP, &d->moe.room, r, &up);
    PL_TRY(dev_done(o, PL_OP_moe, up_kernel, 2 * used * weight_of(p->gate)->bytes, st));
    st = pl_launch_moe_one(&d->ks, mix_kernel, PL_MOE_ONE_MIX, &d->moe.room, r, &mix);
    return dev_done(o, PL_OP_moe, mix_kernel, used * weight_of(p->down)->bytes, st);
}

enum pl_status dev_moe_routed(struct pl_ops *o, const struct pl_launch_route *r, const struct pl_moe *p,
                              const struct pl_activation *x, bool ready, struct pl_activation *y) {
    struct dev_ops *d = dev_of(o);
    struct dev_format *f = weight_of(p->gate)->format;
    uint32_t experts = (uint32_t)p->gate->experts, used = (uint32_t)p->used;
    enum pl_status st = d->ks.planning ? note_others(d, p) : PL_OK;
    if (st == PL_OK && takes_one(d, r, p)) {
        if (!ready) PL_TRY(make_ready(o, x));
        return one_row(o, r, p, ready, y);
    }
    if (st == PL_OK && (f->moe_routed.jit == NULL || f->routed_experts != experts || f->routed_used != used))
        st = pl_kernel_moe_routed(&d->ks, &f->w, (int)p->act, experts, used, &f->moe_routed, &d->ks.err);
    if (st != PL_OK) return dev_report(d, st);
    f->routed_experts = experts;
    f->routed_used = used;
    if (!ready) PL_TRY(make_ready(o, x));
    struct pl_launch_moe_mma up = {.w = &weight_of(p->gate)->w,
                                   .up = &weight_of(p->up)->w,
                                   .x = ready ? &d->mma.x : &d->moe.ready.x,
                                   .y = &d->moe.room.h,
                                   .experts = experts,
                                   .rows = 1,
                                   .used = used,
                                   .direct = true};
    st = pl_launch_moe_routed(&d->ks, &f->moe_routed, &d->moe.room, r, &up);
    PL_TRY(dev_done(o, PL_OP_moe, &f->moe_routed, 2 * used * weight_of(p->gate)->bytes, st));
    struct pl_launch_moe_mma down = {.x = &d->moe.room.h, .y = data_of(y), .rows = 1, .used = used, .direct = true};
    return product(o, p->down, PL_MOE_MMA_MIX, 0, &down);
}

/* --- the router --- */

bool dev_takes_router(const struct dev_ops *d, const struct pl_weight *w, const struct pl_activation *x,
                      struct pl_activation *y) {
    return x->rows == 1 && pl_router_declines(&d->ks, &weight_of(w)->w) == NULL && dev_takes_norm(d, 1, x, &y);
}
enum pl_status dev_router(struct pl_ops *o, const struct pl_weight *w, const struct pl_weight *bias,
                          const struct pl_activation *x, struct pl_activation *y) {
    struct dev_ops *d = dev_of(o);
    PL_TRY(dev_layers_settle(o));
    const struct dev_norm n = d->norm_waits;
    bool prepares = d->strips && dev_prepares(d, 1, x->cols);
    enum pl_status st = d->router.jit != NULL ? PL_OK : pl_kernel_router(&d->ks, &d->router, &d->ks.err);
    struct pl_launch_router r = {.x = data_of(n.x),
                                 .norm = &weight_of(n.w)->w.data,
                                 .w = &weight_of(w)->w.data,
                                 .bias = vector_of(bias),
                                 .h = data_of(x),
                                 .ready = prepares ? &d->mma.x : NULL,
                                 .logits = data_of(y),
                                 .in = x->cols,
                                 .experts = y->cols,
                                 .eps = n.eps,
                                 .offset = n.offset};
    d->norm_waits = (struct dev_norm){0};
    d->prepared = NULL;
    if (st == PL_OK) st = pl_launch_router(&d->ks, &d->router, &r);
    if (st != PL_OK) return dev_report(d, st);
    pl_ops_count(o, PL_OP_linear, d->router.name, 1, weight_of(w)->bytes);
    pl_ops_count(o, PL_OP_norm, d->router.name, 1, 0); /* one launch, counted under all that it does */
    if (prepares) d->prepared = x, d->prepared_as = PL_INPUTS_FEW;
    return PL_OK;
}

/* --- many rows --- */

/* The matrix in bf16: as it is, or the chosen experts' unpacked to scratch `to`. */
static enum pl_status unpacked(struct pl_ops *o, const struct pl_weight *weight, size_t to,
                               const struct pl_device_buffer **out) {
    struct dev_ops *d = dev_of(o);
    const struct dev_weight *w = weight_of(weight);
    struct pl_kernel *k = &w->format->moe_unpack;
    *out = w->w.dtype == PL_BF16 ? &w->w.data : &d->moe.dense.w[to];
    if (w->w.dtype == PL_BF16) return PL_OK;
    enum pl_status st = k->jit != NULL ? PL_OK : pl_kernel_moe_unpack(&d->ks, &w->format->w, k, &d->ks.err);
    if (st != PL_OK) return dev_report(d, st);
    st = pl_launch_moe_unpack(&d->ks, &d->moe.dense, k, &w->w, weight->experts, &d->moe.room, to);
    return dev_done(o, PL_OP_moe, k, weight->experts * w->bytes, st);
}

static enum pl_status grouped(struct pl_ops *o, struct pl_kernel *k, int act, struct pl_launch_moe_dense *m) {
    struct dev_ops *d = dev_of(o);
    bool wide = pl_moe_dense_wide(&d->ks);
    enum pl_status st = k->jit != NULL ? PL_OK : pl_kernel_moe_dense(&d->ks, m->pair, act, wide, k, &d->ks.err);
    if (st != PL_OK) return dev_report(d, st);
    return dev_done(o, PL_OP_moe, k, 0, pl_launch_moe_dense(&d->ks, &d->moe.dense, k, &d->moe.room, m));
}

static enum pl_status tall(struct pl_ops *o, const struct pl_weight *w, const struct pl_weight *up, int act, size_t rows,
                           size_t used) {
    struct dev_ops *d = dev_of(o);
    const struct dev_weight *dw = weight_of(w);
    struct pl_kernel *k = &dw->format->moe_tall[up != NULL ? act : 2];
    const struct pl_launch_moe_tall m = {&dw->w, up != NULL ? &weight_of(up)->w : NULL, w->experts, rows, used};
    enum pl_status st = k->jit != NULL ? PL_OK : pl_kernel_moe_tall(&d->ks, &dw->w, up != NULL, act, k, &d->ks.err);
    if (st != PL_OK) return dev_report(d, st);
    uint64_t bytes = PL_MIN((uint64_t)(rows * used), (uint64_t)w->experts) * dw->bytes * (up != NULL ? 2 : 1);
    return dev_done(o, PL_OP_moe, k, bytes, pl_launch_moe_tall(&d->ks, &d->moe.dense, k, &d->moe.room, &m));
}

static enum pl_status sum_of_tall(struct pl_ops *o, uint32_t used, struct pl_activation *y) {
    struct dev_ops *d = dev_of(o);
    struct pl_kernel *k = &d->moe.sum;
    bool made = k->jit != NULL && d->moe.sum_used == used;
    enum pl_status st = made ? PL_OK : pl_kernel_moe_sum(&d->ks, used, k, &d->ks.err);
    if (st != PL_OK) return dev_report(d, st);
    d->moe.sum_used = used;
    return dev_done(o, PL_OP_moe, k, 0, pl_launch_moe_sum(&d->ks, k, &d->moe.room, y->rows, y->cols, data_of(y)));
}

enum pl_status dev_moe_dense(struct pl_ops *o, struct pl_moe_route *k, const struct pl_moe *p, const struct pl_activation *x,
                             struct pl_activation *y) {
    struct dev_ops *d = dev_of(o);
    struct pl_moe_dense *dense = &d->moe.dense;
    bool is_tall = takes_tall(d, p);
    enum pl_status st = pl_launch_moe_pack(&d->ks, dense, is_tall, data_of(x), (uint64_t)x->rows * x->cols);
    PL_TRY(dev_done(o, PL_OP_moe, is_tall ? &dense->pack_in_order : &dense->pack, 0, st));
    if (is_tall) {
        PL_TRY(tall(o, p->gate, p->up, (int)p->act, x->rows, p->used));
        PL_TRY(tall(o, p->down, NULL, 0, x->rows, p->used));
        return sum_of_tall(o, (uint32_t)p->used, y);
    }
    struct pl_launch_moe_dense up = {.bias = {vector_of(p->gate_bias), vector_of(p->up_bias)},
                                     .experts = p->gate->experts,
                                     .rows = x->rows,
                                     .used = p->used,
                                     .in = (size_t)p->gate->cols,
                                     .out = (size_t)p->gate->rows,
                                     .pair = true};
    PL_TRY(unpacked(o, p->gate, 0, &up.w[0]));
    PL_TRY(unpacked(o, p->up, 1, &up.w[1]));
    PL_TRY(grouped(o, &d->moe.pair[p->act], (int)p->act, &up));
    struct pl_launch_moe_dense down = {.bias = {vector_of(p->down_bias), NULL},
                                       .experts = p->down->experts,
                                       .rows = x->rows,
                                       .used = p->used,
                                       .in = (size_t)p->down->cols,
                                       .out = (size_t)p->down->rows};
    PL_TRY(unpacked(o, p->down, 0, &down.w[0]));
    PL_TRY(grouped(o, &d->moe.down, 0, &down));
    return dev_moe_combine(o, k, y);
}

void dev_moe_cuda_deinit(struct dev_ops *d) {
    pl_mma_deinit(&d->ks, &d->moe.ready);
    pl_moe_dense_deinit(&d->ks, &d->moe.dense);
}
