/* Products of one row (cuda_stream.h) as the device backend runs them. A norm of one row waits for the operation after it: a
 * product of its result does both in one launch, anything else has it done first (dev_settle). */
#include "ops/device_ops.h"

static bool asked(const struct dev_ops *d, enum pl_op op) {
    return d->base.choice.forced[op] != PL_IMPL_NONE || d->base.choice.disabled[op] != 0;
}

bool dev_streams_strips(const struct dev_ops *d) {
    bool narrow = d->mma_cols > 0 && d->mma_cols <= PL_STREAM_NARROW;
    return PL_STREAM_STRIPS || narrow || d->base.choice.forced[PL_OP_linear] == PL_IMPL_STREAM ||
           (dev_chain_wanted(d) && !d->chain.off);
}
static bool streams(const struct dev_ops *d) { return d->streams > 0 || (d->strip_streams > 0 && dev_streams_strips(d)); }

enum pl_status dev_norm_kernel(struct dev_ops *d, size_t rows, size_t cols, struct pl_kernel **out) {
    *out = &d->norm;
    if (rows < PL_NORM_ROWS || d->base.invariant || !pl_norm_rows(&d->ks, cols)) return PL_OK;
    *out = &d->norm_rows;
    if (d->norm_rows.jit != NULL && d->norm_cols == cols) return PL_OK;
    d->norm_cols = cols;
    return dev_report(d, pl_kernel_norm_rows(&d->ks, cols, &d->norm_rows, &d->ks.err));
}
bool dev_norm_waits(struct dev_ops *d, const struct dev_norm *n) {
    if ((!streams(d) && d->routers == 0 && d->ternary.cols == 0) || n->x->rows != 1 || n->x->cols % 8 != 0 || n->x == n->y ||
        asked(d, PL_OP_norm))
        return false;
    d->norm_waits = *n;
    return true;
}

static enum pl_status kernel_of(struct dev_ops *d, struct dev_format *f, const struct pl_device_weight *w,
                                struct pl_stream_kind kind, struct pl_kernel **out) {
    struct pl_kernel *k = &f->stream[pl_stream_chunk_index(w)][pl_stream_index(kind)];
    if (k->jit == NULL) PL_TRY(pl_kernel_stream(&d->ks, w, kind, k, &d->ks.err));
    *out = k;
    return PL_OK;
}

const char *dev_stream_name(struct dev_format *f) {
    if (f->stream_name[0] == 0) pl_kernel_stream_name(&f->w, (struct pl_stream_kind){0}, f->stream_name);
    return f->stream_name;
}

bool dev_takes_norm(const struct dev_ops *d, size_t count, const struct pl_activation *x, struct pl_activation *const *y) {
    const struct dev_norm *n = &d->norm_waits;
    if (n->y == NULL || n->y != x) return false;
    for (size_t i = 0; i < count; i++)
        if (y[i] == n->x || y[i] == n->y) return false;
    return true;
}

enum pl_status dev_stream_launch(struct pl_ops *o, enum pl_op op, struct pl_stream_kind kind,
                                 const struct pl_launch_stream *l, struct dev_format *f, uint64_t bytes) {
    struct dev_ops *d = dev_of(o);
    struct pl_kernel *k = NULL;
    enum pl_status st = kernel_of(d, f, l->w[0], kind, &k);
    if (st == PL_OK) st = pl_launch_stream(&d->ks, k, kind, l);
    if (st == PL_OK) pl_ops_count(o, op, k->name, 1, bytes);
    if (st == PL_OK && kind.norm)
        pl_ops_count(o, PL_OP_norm, k->name, 1, 0); /* one launch, counted under all that it does */
    if (st == PL_OK && kind.glu) pl_ops_count(o, PL_OP_glu, k->name, 1, 0);
    return dev_report(d, st);
}
static enum pl_status run(struct pl_ops *o, enum pl_op op, struct pl_stream_kind kind, struct pl_launch_stream *l,
                          struct dev_format *f, const struct pl_activation *x, uint64_t bytes) {
    struct dev_ops *d = dev_of(o);
    l->x = data_of(x);
    if (kind.norm) {
        const struct dev_norm *n = &d->norm_waits;
        l->x = data_of(n->x);
        l->norm = &weight_of(n->w)->w.data;
        l->h = data_of(x);
        l->eps = n->eps;
        l->offset = n->offset;
        d->norm_waits = (struct dev_norm){0};
    }
    if (dev_layers_hold_products(d, op, kind, l, f, bytes)) return PL_OK;
    PL_TRY(dev_layers_settle(o));
    return dev_stream_launch(o, op, kind, l, f, bytes);
}

static uint64_t fill(struct pl_launch_stream *l, size_t count, const struct pl_weight *const *w,
                     const struct pl_weight *const *bias, struct pl_activation *const *y) {
    uint64_t bytes = 0;
    l->count = count;
    for (size_t i = 0; i < count; i++) {
        l->w[i] = &weight_of(w[i])->w;
        l->bias[i] = bias != NULL ? vector_of(bias[i]) : NULL;
        l->y[i] = data_of(y[i]);
        bytes += weight_of(w[i])->bytes;
    }
    return bytes;
}

enum pl_status dev_stream(struct pl_ops *o, enum pl_op op, size_t count, const struct pl_weight *const *w,
                          const struct pl_weight *const *bias, const struct pl_activation *x,
                          struct pl_activation *const *y) {
    struct dev_ops *d = dev_of(o);
    struct pl_launch_stream l = {.add = op == PL_OP_linear_add};
    uint64_t bytes = fill(&l, count, w, bias, y);
    struct pl_stream_kind kind = {.norm = dev_takes_norm(d, count, x, y)};
    if (!kind.norm) PL_TRY(dev_settle(o));
    for (size_t i = 0; i < count; i++)
        if (y[i] == d->prepared) d->prepared = NULL;
    return run(o, op, kind, &l, weight_of(w[0])->format, x, bytes);
}

bool dev_takes_gated(const struct pl_ops *o, const struct pl_weight *const *w, const struct pl_weight *const *bias,
                     const struct pl_activation *x) {
    const struct dev_ops *d = (const struct dev_ops *)o;
    const struct dev_weight *gate = weight_of(w[0]), *up = weight_of(w[1]);
    if (x->rows > 1) return dev_takes_gated_rounded(d, w, bias, x);
    if (!streams(d) || gate->format != up->format || gate->w.rows != up->w.rows || asked(d, PL_OP_glu)) return false;
    enum pl_impl taken = dev_product(d, gate, x->rows);
    return (taken == PL_IMPL_STREAM || taken == PL_IMPL_CHAIN) && dev_product(d, up, x->rows) == taken;
}

enum pl_status dev_gated(struct pl_ops *o, const struct pl_weight *const *w, const struct pl_weight *const *bias,
                         enum pl_ops_act act, const struct pl_activation *x, struct pl_activation *const *y) {
    struct dev_ops *d = dev_of(o);
    if (x->rows > 1) return dev_gated_rounded(o, w, act, x, y);
    struct pl_launch_stream l = {0};
    enum pl_impl taken[2];
    bool chained = dev_chain_fits(d, PL_OP_glu, 2, w, bias, x, y);
    d->chain.fits = chained;
    if (!d->chain.replaying) {
        for (size_t i = 0; i < 2; i++) PL_TRY(dev_decide(d, PL_OP_linear, weight_of(w[i]), x->rows, &taken[i]));
    }
    d->chain.fits = false;
    if (chained) return dev_chain_take(o, PL_OP_glu, 2, w, bias, x, y, act == PL_OPS_GELU_TANH);
    PL_TRY(dev_chain_settle(o));
    uint64_t bytes = fill(&l, 2, w, bias, y);
    struct pl_stream_kind kind = {.norm = dev_takes_norm(d, 2, x, y), .glu = true, .gelu = act == PL_OPS_GELU_TANH};
    if (!kind.norm) PL_TRY(dev_settle(o));
    d->prepared = NULL;
    return run(o, PL_OP_linear, kind, &l, weight_of(w[0])->format, x, bytes);
}
