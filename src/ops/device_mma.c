/* Products with rearranged and bf16 weights (cuda_mma.h) as the device backend runs them. The operation that makes a
 * product's input makes it ready as well where it can; d->prepared remembers whose rows those are until something else may
 * write them. */
#include "ops/device_ops.h"

bool dev_wants_strips(const struct dev_ops *d, const struct pl_device_weight *w, enum pl_weight_use use) {
    const struct pl_choice *c = &d->base.choice;
    enum pl_impl forced = c->forced[PL_OP_linear];
    if (d->exact && !d->ks.fixed) return false;
    if (use != PL_WEIGHT_MATRIX && use != PL_WEIGHT_HEAD) return false; /* rows are looked up in the others */
    if (forced != PL_IMPL_NONE && forced != PL_IMPL_MMA && forced != PL_IMPL_STREAM && forced != PL_IMPL_CUBLASLT)
        return false;
    if ((c->disabled[PL_OP_linear] >> PL_IMPL_MMA & 1u) != 0) return false;
    return pl_strips_decline(&d->ks, w) == NULL;
}

enum pl_status dev_load_strips(struct dev_ops *d, const void *bytes, uint64_t n, struct dev_weight *w, struct pl_err *err) {
    struct pl_kernel *k = &w->format->retile;
    if (k->jit == NULL) PL_TRY(pl_kernel_retile(&d->ks, &w->format->w, k, err));
    if (d->loading.bytes < n) {
        PL_TRY(pl_device_stream_wait(d->ks.device, d->ks.stream, err));
        pl_device_free(d->ks.device, &d->loading);
        PL_TRY(pl_device_alloc(d->ks.device, n, &d->loading, err));
    }
    PL_TRY(pl_device_alloc(d->ks.device, pl_strips_bytes(&w->w), &w->w.data, err));
    PL_TRY(dev_upload(d, &d->loading, 0, bytes, n, err));
    struct pl_device_weight from = w->w;
    from.data = d->loading;
    enum pl_status st = pl_launch_retile(&d->ks, k, &from, &w->w.data);
    if (st != PL_OK) *err = d->ks.err;
    d->strips = true;
    d->mma_cols = PL_MAX(d->mma_cols, w->w.cols);
    d->mma_outputs = PL_MAX(d->mma_outputs, PL_MMA_MATRICES_MAX * w->w.rows);
    return st;
}

enum pl_status dev_mma_begin(struct dev_ops *d) {
    if (d->mma_cols == 0) return PL_OK;
    if (d->loading.bytes > 0) {
        PL_TRY(pl_device_stream_wait(d->ks.device, d->ks.stream, &d->ks.err));
        pl_device_free(d->ks.device, &d->loading);
    }
    return pl_mma_ready(&d->ks, &d->mma, d->stride, d->mma_cols, d->mma_outputs, &d->ks.err);
}

void dev_mma_deinit(struct dev_ops *d) {
    pl_device_free(d->ks.device, &d->loading);
    pl_mma_deinit(&d->ks, &d->mma);
    for (int i = 0; i < PL_INPUTS_COUNT * PL_PREPARE_COUNT; i++)
        pl_kernel_free(&d->ks, &d->prepare[i / PL_INPUTS_COUNT][i % PL_INPUTS_COUNT]);
}

const char *dev_mma_name(const struct dev_ops *d, struct dev_format *f, size_t rows) {
    uint32_t size = pl_mma_size(PL_MIN(rows, (size_t)pl_mma_rows(&d->ks)), pl_mma_inputs(&d->ks, !f->w.strips, rows));
    if (f->mma_names[size][0] == 0) pl_kernel_mma_name(&d->ks, &f->w, size, f->mma_names[size]);
    return f->mma_names[size];
}

bool dev_prepares(const struct dev_ops *d, size_t rows, size_t cols) {
    bool one = d->strips || d->ks.fixed; /* else one row of plain weights is another's */
    return d->mma_cols >= cols && cols % 256 == 0 && rows > (one ? 0u : 1u) && rows <= pl_mma_ready_rows(&d->ks);
}
bool dev_mma_plain(const struct dev_ops *d, const struct pl_device_weight *w) {
    return (!d->exact || d->ks.fixed) && pl_mma_plain(&d->ks, w);
}
static enum pl_status prepare(struct pl_ops *o, enum pl_op op, enum pl_prepare which, enum pl_inputs inputs,
                              const struct pl_launch_prepare *p, const struct pl_activation *y) {
    struct dev_ops *d = dev_of(o);
    struct pl_kernel *k = &d->prepare[which][inputs];
    enum pl_status st = PL_OK;
    d->prepared = NULL;
    if (k->jit == NULL) st = pl_kernel_prepare(&d->ks, which, inputs, k, &d->ks.err);
    if (st == PL_OK) st = pl_launch_prepare(&d->ks, which, k, &d->mma, p);
    if (st != PL_OK) return dev_report(d, st);
    pl_ops_count(o, op, k->name, 1, 0);
    d->prepared = y;
    d->prepared_as = inputs;
    return PL_OK;
}

enum pl_status dev_prepare(struct pl_ops *o, enum pl_op op, enum pl_prepare which, const struct pl_launch_prepare *p,
                           const struct pl_activation *y) {
    struct dev_ops *d = dev_of(o);
    return prepare(o, op, which, pl_mma_inputs(&d->ks, !d->strips, p->rows), p, y);
}

/* Rows [from, from + rows) of what stands ready, to rows row0 and up. */
static enum pl_status launch(struct pl_ops *o, enum pl_op op, struct dev_format *f, struct pl_launch_mma *m,
                             uint64_t bytes) {
    struct dev_ops *d = dev_of(o);
    bool plain = !f->w.strips;
    uint32_t size = pl_mma_size(m->rows, pl_mma_inputs(&d->ks, plain, m->ready));
    struct pl_mma_shape shape = pl_mma_shape_of(&d->ks, plain, size);
    struct pl_kernel *k = &f->mma[size];
    enum pl_status st = PL_OK;
    for (uint32_t i = 0; d->ks.planning && i < PL_MMA_SIZES && st == PL_OK;
         i++) { /* other steps have other numbers of rows */
        struct pl_mma_shape other = pl_mma_shape_of(&d->ks, plain, i);
        struct pl_kernel noted = {0};
        st = pl_kernel_mma(&d->ks, &f->w, &other, &noted, &d->ks.err);
    }
    if (st == PL_OK && k->jit == NULL) st = pl_kernel_mma(&d->ks, &f->w, &shape, k, &d->ks.err);
    if (st == PL_OK) st = pl_launch_mma(&d->ks, k, &shape, &d->mma, m);
    if (st == PL_OK) pl_ops_count(o, op, k->name, 1, bytes);
    return dev_report(d, st);
}

enum pl_status dev_mma(struct pl_ops *o, enum pl_op op, size_t count, const struct pl_weight *const *w,
                       const struct pl_weight *const *bias, const struct pl_activation *x, struct pl_activation *const *y) {
    struct dev_ops *d = dev_of(o);
    struct pl_launch_mma m = {.count = count, .add = op == PL_OP_linear_add};
    uint64_t bytes = 0;
    size_t most = pl_mma_ready_rows(&d->ks), each = pl_mma_rows(&d->ks);
    bool written = false;
    for (size_t i = 0; i < count; i++) {
        m.w[i] = &weight_of(w[i])->w;
        m.bias[i] = bias != NULL ? vector_of(bias[i]) : NULL;
        m.y[i] = data_of(y[i]);
        bytes += weight_of(w[i])->bytes;
        written |= y[i] == d->prepared;
    }
    for (uint32_t block = 0; block < x->rows; block += (uint32_t)most) {
        m.ready = PL_MIN(x->rows - block, most);
        enum pl_inputs inputs = pl_mma_inputs(&d->ks, !weight_of(w[0])->w.strips, m.ready);
        if (d->prepared != x || d->prepared_as != inputs || block > 0) {
            struct pl_device_buffer from = *data_of(x); /* CUDA's handles are addresses */
            from.handle = (char *)from.handle + block * x->cols * sizeof(float);
            struct pl_launch_prepare p = {.x = &from, .rows = m.ready, .cols = x->cols};
            PL_TRY(prepare(o, op, PL_PREPARE_COPY, inputs, &p, x->rows <= most ? x : NULL));
        }
        for (m.from = 0; m.from < m.ready; m.from += (uint32_t)each) {
            m.rows = (uint32_t)PL_MIN(m.ready - m.from, each);
            m.row0 = block + m.from;
            PL_TRY(launch(o, op, weight_of(w[0])->format, &m, bytes));
        }
    }
    if (written) d->prepared = NULL;
    return PL_OK;
}
