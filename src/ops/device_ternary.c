/* BitNet's product on devices. Portable: one launch makes x 8-bit, one for each matrix multiplies. On CUDA up to three
 * matrices in one launch; of one row such a launch waits for the operation after it (dev_ternary_waits): an addition of its
 * result, or the gate of its two, is done by it, and so is the norm before it. It leaves everything that the operations
 * apart would leave. */
#include <stdio.h>

#include "ops/device_ops.h"

enum pl_status dev_ternary_fill(struct dev_ops *d, const struct pl_tensor *t, struct dev_weight *w, struct pl_err *err) {
    w->w = (struct pl_device_weight){.dtype = PL_TERNARY, .rows = pl_tensor_rows(t), .cols = pl_tensor_cols(t)};
    w->w.row_bytes = w->w.cols / 4;
    w->bytes = t->bytes;
    w->scale = *(const float *)t->scales;
    if (w->w.cols > 1u << 17) {
        PL_FAIL(err, PL_UNSUPPORTED, "tensor %s: %llu inputs of a ternary product: %u are the most", t->name,
                (unsigned long long)w->w.cols, 1u << 17);
    }
    d->ternary.cols = PL_MAX(d->ternary.cols, w->w.cols);
    PL_TRY(dev_format_of(d, &w->w, &w->format, err));
    PL_TRY(pl_device_alloc(d->ks.device, t->bytes, &w->w.data, err));
    PL_TRY(dev_upload(d, &w->w.data, 0, t->data, t->bytes, err));
    return pl_device_stream_wait(d->ks.device, d->ks.stream, err); /* the tensor's bytes may go */
}

enum pl_status dev_ternary_begin(struct dev_ops *d) {
    uint64_t rows = d->stride, cols = d->ternary.cols;
    d->ternary.waits = (struct dev_ternary_waits){0}; /* of a step that failed half way */
    if (cols == 0 || rows * cols <= d->ternary.room) return PL_OK;
    PL_TRY(pl_device_stream_wait(d->ks.device, d->ks.stream, &d->ks.err));
    pl_device_free(d->ks.device, &d->ternary.q);
    pl_device_free(d->ks.device, &d->ternary.row);
    d->ternary.room = 0;
    PL_TRY(pl_device_alloc(d->ks.device, rows * cols, &d->ternary.q, &d->ks.err));
    PL_TRY(pl_device_alloc(d->ks.device, rows * 2 * sizeof(uint32_t), &d->ternary.row, &d->ks.err));
    d->ternary.room = rows * cols;
    return PL_OK;
}

void dev_ternary_deinit(struct dev_ops *d) {
    pl_device_free(d->ks.device, &d->ternary.q);
    pl_device_free(d->ks.device, &d->ternary.row);
    pl_kernel_free(&d->ks, &d->ternary.k.quantize);
    for (int i = 0; i < PL_TILE_COUNT; i++) pl_kernel_free(&d->ks, &d->ternary.k.product[i]);
    for (size_t i = 0; i < d->ternary.made_count; i++) pl_kernel_free(&d->ks, &d->ternary.made[i].k);
}

/* --- which kernel --- */

/* Implementations are asked for by linear's names; one that ternary does not have is no wish about it. */
static struct pl_pick pick_for(const struct dev_ops *d, uint64_t cols) {
    const char *why = pl_ternary_mma_declines(&d->ks, cols);
    bool cuda = pl_device_info(d->ks.device)->kind == PL_DEVICE_CUDA;
    const struct pl_candidate list[] = {{PL_IMPL_MMA, why == NULL, why}, {PL_IMPL_PORTABLE, true, NULL}};
    struct pl_choice c = d->base.choice;
    enum pl_impl *forced = &c.forced[PL_OP_ternary];
    if (*forced != PL_IMPL_MMA && *forced != PL_IMPL_PORTABLE) *forced = PL_IMPL_NONE;
    return pl_choose(&c, PL_OP_ternary, cuda ? list : list + 1, cuda ? 2 : 1);
}

/* Sums are exact, so any number of rows gives the same bits: invariant has nothing to ask for. */
const char *dev_ternary_name(const struct dev_ops *d, const struct dev_weight *w, size_t rows) {
    static const char *const names[PL_DEVICE_KIND_COUNT][PL_TILE_COUNT] = {
        [PL_DEVICE_CUDA] = {"cuda/ternary/r1", "cuda/ternary/r2", "cuda/ternary/r4", "cuda/ternary/r8"},
        [PL_DEVICE_ROCM] = {"rocm/ternary/r1", "rocm/ternary/r2", "rocm/ternary/r4", "rocm/ternary/r8"},
        [PL_DEVICE_OPENCL] = {"opencl/ternary/r1", "opencl/ternary/r2", "opencl/ternary/r4", "opencl/ternary/r8"}};
    uint32_t tile_rows, tile = pl_tile_of(rows, &tile_rows);
    if (pick_for(d, w->w.cols).taken == PL_IMPL_MMA)
        return rows <= 1    ? "cuda/ternary/mma/r1"
               : rows <= 8  ? "cuda/ternary/mma/r8"
               : rows <= 16 ? "cuda/ternary/mma/r16"
                            : "cuda/ternary/mma/r32";
    return names[pl_device_info(d->ks.device)->kind][tile];
}

static enum pl_status quantize(struct pl_ops *o, const struct pl_activation *x) {
    struct dev_ops *d = (struct dev_ops *)o;
    struct pl_kernel *k = &d->ternary.k.quantize;
    enum pl_status st = k->jit != NULL ? PL_OK : pl_kernel_ternary_quantize(&d->ks, k, &d->ks.err);
    if (st != PL_OK) return dev_report(d, st);
    st = pl_launch_ternary_quantize(&d->ks, k, data_of(x), &d->ternary.q, &d->ternary.row, x->rows, x->cols);
    return dev_done(o, PL_OP_ternary, k, 0, st);
}

static enum pl_status portable(struct pl_ops *o, size_t count, const struct pl_weight *const *w,
                               const struct pl_activation *x, struct pl_activation *const *y) {
    struct dev_ops *d = (struct dev_ops *)o;
    uint32_t tile_rows, tile = pl_tile_of(x->rows, &tile_rows);
    struct pl_kernel *k = &d->ternary.k.product[tile];
    PL_TRY(dev_settle(o));
    enum pl_status st = k->jit != NULL ? PL_OK : pl_kernel_ternary(&d->ks, tile, k, &d->ks.err);
    if (st != PL_OK) return dev_report(d, st);
    PL_TRY(quantize(o, x));
    for (size_t i = 0; i < count; i++) {
        const struct dev_weight *m = weight_of(w[i]);
        st =
            pl_launch_ternary(&d->ks, k, &m->w, m->scale, &d->ternary.q, &d->ternary.row, data_of(y[i]), x->rows, tile_rows);
        PL_TRY(dev_done(o, PL_OP_ternary, k, m->bytes, st));
    }
    return PL_OK;
}

/* --- on matrix units --- */

static enum pl_status kernel_of(struct dev_ops *d, const struct pl_ternary_kind *kind, struct pl_kernel **out) {
    for (size_t i = 0; i < d->ternary.made_count; i++) {
        *out = &d->ternary.made[i].k;
        if (!pl_ternary_same(&d->ternary.made[i].kind, kind)) continue;
        return (*out)->jit != NULL ? PL_OK : pl_kernel_ternaries(&d->ks, kind, *out, &d->ks.err); /* so far only planned */
    }
    size_t at =
        PL_MIN(d->ternary.made_count, (size_t)DEV_TERNARY_KERNELS - 1); /* more than there is room for: the last goes */
    *out = &d->ternary.made[at].k;
    PL_TRY(pl_kernel_ternaries(&d->ks, kind, *out, &d->ks.err));
    d->ternary.made[at].kind = *kind;
    d->ternary.made_count = at + 1;
    return PL_OK;
}

static enum pl_status run(struct pl_ops *o, struct pl_launch_ternaries *l, struct pl_ternary_kind *kind,
                          const struct pl_weight *const *w, struct pl_activation *const *y, struct pl_kernel **k) {
    struct dev_ops *d = (struct dev_ops *)o;
    uint64_t bytes = 0;
    for (size_t i = 0; i < l->count; i++) {
        const struct dev_weight *m = weight_of(w[i]);
        l->w[i] = &m->w;
        l->scale[i] = m->scale;
        l->y[i] = data_of(y[i]);
        bytes += m->bytes;
    }
    pl_ternary_plan(&d->ks, l, kind);
    enum pl_status st = kernel_of(d, kind, k);
    if (st == PL_OK) st = pl_launch_ternaries(&d->ks, *k, kind, l);
    return dev_done(o, PL_OP_ternary, *k, bytes, st);
}

static enum pl_status rows(struct pl_ops *o, size_t count, const struct pl_weight *const *w, const struct pl_activation *x,
                           struct pl_activation *const *y) {
    struct dev_ops *d = (struct dev_ops *)o;
    struct pl_launch_ternaries l = {.count = count, .rows = x->rows, .q = &d->ternary.q, .row = &d->ternary.row};
    struct pl_ternary_kind kind = {0};
    struct pl_kernel *k;
    PL_TRY(dev_settle(o));
    PL_TRY(quantize(o, x));
    return run(o, &l, &kind, w, y, &k);
}

/* What waits becomes a launch; to: where it adds its result to, or leaves its gate in. */
static enum pl_status launch(struct pl_ops *o, struct pl_ternary_kind kind, struct pl_activation *to) {
    struct dev_ops *d = (struct dev_ops *)o;
    struct dev_ternary_waits t = d->ternary.waits;
    struct pl_launch_ternaries l = {.count = t.count, .rows = 1, .x = data_of(t.x)};
    struct pl_kernel *k;
    d->ternary.waits = (struct dev_ternary_waits){0};
    kind.norm = t.norm.y != NULL;
    if (to != NULL) l.to = data_of(to);
    if (kind.norm) {
        l.x = data_of(t.norm.x);
        l.norm = &weight_of(t.norm.w)->w.data;
        l.h = data_of(t.norm.y);
        l.eps = t.norm.eps;
        l.offset = t.norm.offset;
    }
    PL_TRY(run(o, &l, &kind, t.w, t.y, &k));
    if (kind.norm) pl_ops_count(o, PL_OP_norm, k->name, 1, 0); /* one launch, counted under all that it does */
    if (kind.add) pl_ops_count(o, PL_OP_add, k->name, 1, 0);
    if (kind.relu2 || kind.silu) pl_ops_count(o, PL_OP_glu, k->name, 1, 0);
    return PL_OK;
}
enum pl_status dev_ternary_settle(struct pl_ops *o) {
    if (((struct dev_ops *)o)->ternary.waits.count == 0) return PL_OK;
    return launch(o, (struct pl_ternary_kind){0}, NULL);
}

static bool asked(const struct dev_ops *d, enum pl_op op) {
    return d->base.choice.forced[op] != PL_IMPL_NONE || d->base.choice.disabled[op] != 0;
}
/* `to` is written while other groups still read the input. */
static bool apart(const struct dev_ternary_waits *t, const struct pl_activation *to) {
    return to != t->x && to != t->norm.x && to != t->norm.y;
}
bool dev_ternary_adds(const struct dev_ops *d, const struct pl_activation *x, const struct pl_activation *add) {
    const struct dev_ternary_waits *t = &d->ternary.waits;
    return t->count == 1 && t->y[0] == add && x != add && apart(t, x) && !asked(d, PL_OP_add);
}
enum pl_status dev_ternary_add(struct pl_ops *o, struct pl_activation *x) {
    return launch(o, (struct pl_ternary_kind){.add = true}, x);
}
bool dev_ternary_gates(const struct dev_ops *d, enum pl_ops_act act, const struct pl_activation *gate,
                       const struct pl_activation *up, const struct pl_activation *y) {
    const struct dev_ternary_waits *t = &d->ternary.waits;
    return t->count == 2 && up != NULL && t->y[0] == gate && t->y[1] == up && y != up && apart(t, y) &&
           (act == PL_OPS_RELU2 || act == PL_OPS_SILU) && !asked(d, PL_OP_glu);
}
enum pl_status dev_ternary_gate(struct pl_ops *o, enum pl_ops_act act, struct pl_activation *y) {
    return launch(o, (struct pl_ternary_kind){.relu2 = act == PL_OPS_RELU2, .silu = act == PL_OPS_SILU}, y);
}

static enum pl_status one_row(struct pl_ops *o, size_t count, const struct pl_weight *const *w,
                              const struct pl_activation *x, struct pl_activation *const *y) {
    struct dev_ops *d = (struct dev_ops *)o;
    struct dev_ternary_waits t = {.count = count, .x = x};
    bool norm = dev_takes_norm(d, count, x, y);
    if (norm) t.norm = d->norm_waits;
    if (norm) d->norm_waits = (struct dev_norm){0};
    PL_TRY(dev_settle(o));
    for (size_t i = 0; i < count; i++) t.w[i] = w[i], t.y[i] = y[i];
    d->ternary.waits = t;
    return PL_OK;
}

enum pl_status dev_ternary(struct pl_ops *o, size_t count, const struct pl_weight *const *w, const struct pl_activation *x,
                           struct pl_activation *const *y) {
    struct dev_ops *d = (struct dev_ops *)o;
    struct pl_pick pick = pick_for(d, x->cols);
    char shape[96] = "";
    if (pick.taken == PL_IMPL_NONE) snprintf(shape, sizeof shape, "%zu rows of %zu inputs", x->rows, x->cols);
    PL_TRY(pl_ops_end_decision(o, PL_OP_ternary, &pick, count, shape)); /* all matrices alike */
    if (pick.taken == PL_IMPL_PORTABLE || count > PL_TERNARY_MATRICES_MAX) return portable(o, count, w, x, y);
    if (x->rows > 1 || pl_ternary_one_declines(&d->ks, x->cols) != NULL) return rows(o, count, w, x, y);
    return one_row(o, count, w, x, y);
}
