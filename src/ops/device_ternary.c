/* BitNet's product on devices: one launch makes x 8-bit, one for each matrix multiplies. */
#include <stdio.h>

#include "ops/device_ops.h"

static const struct dev_weight *weight_of(const struct pl_weight *w) { return (const struct dev_weight *)w; }
static const struct pl_device_buffer *data_of(const struct pl_activation *a) {
    return &((const struct dev_activation *)a)->data;
}

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
}

/* Sums are exact, so any number of rows gives the same bits: invariant has nothing to ask for. */
const char *dev_ternary_name(const struct dev_ops *d, size_t rows) {
    static const char *const names[PL_DEVICE_KIND_COUNT][PL_TILE_COUNT] = {
        [PL_DEVICE_CUDA] = {"cuda/ternary/r1", "cuda/ternary/r2", "cuda/ternary/r4", "cuda/ternary/r8"},
        [PL_DEVICE_ROCM] = {"rocm/ternary/r1", "rocm/ternary/r2", "rocm/ternary/r4", "rocm/ternary/r8"},
        [PL_DEVICE_OPENCL] = {"opencl/ternary/r1", "opencl/ternary/r2", "opencl/ternary/r4", "opencl/ternary/r8"}};
    uint32_t tile_rows, tile = pl_tile_of(rows, &tile_rows);
    return names[pl_device_info(d->ks.device)->kind][tile];
}

static enum pl_status make(struct dev_ops *d, uint32_t tile) {
    struct pl_ternary_kernels *k = &d->ternary.k;
    if (k->quantize.jit == NULL) PL_TRY(pl_kernel_ternary_quantize(&d->ks, &k->quantize, &d->ks.err));
    return k->product[tile].jit != NULL ? PL_OK : pl_kernel_ternary(&d->ks, tile, &k->product[tile], &d->ks.err);
}

enum pl_status dev_ternary(struct pl_ops *o, size_t count, const struct pl_weight *const *w, const struct pl_activation *x,
                           struct pl_activation *const *y) {
    struct dev_ops *d = (struct dev_ops *)o;
    struct pl_kernels *ks = &d->ks;
    uint32_t tile_rows, tile = pl_tile_of(x->rows, &tile_rows);
    PL_TRY(dev_settle(o));
    enum pl_status st = make(d, tile);
    if (st != PL_OK) return dev_report(d, st);
    struct pl_kernel *k = &d->ternary.k.product[tile], *quantize = &d->ternary.k.quantize;
    st = pl_launch_ternary_quantize(ks, quantize, data_of(x), &d->ternary.q, &d->ternary.row, x->rows, x->cols);
    PL_TRY(dev_done(o, PL_OP_ternary, quantize, 0, st));
    for (size_t i = 0; i < count; i++) {
        const struct dev_weight *m = weight_of(w[i]);
        st = pl_launch_ternary(ks, k, &m->w, m->scale, &d->ternary.q, &d->ternary.row, data_of(y[i]), x->rows, tile_rows);
        PL_TRY(dev_done(o, PL_OP_ternary, k, m->bytes, st));
    }
    return PL_OK;
}
