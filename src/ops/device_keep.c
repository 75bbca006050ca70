/* Unpacked weights that stay: a step of many rows then costs what its rows cost. */
#include "ops/device_ops.h"
#include "ops/keep.h"

static uint64_t unpacked_bytes(const struct dev_weight *w) { return 2 * w->w.rows * w->w.cols; }

static enum pl_status keep(struct dev_ops *d, struct dev_weight *w, struct pl_err *err) {
    struct pl_kernel *k = &w->format->unpack;
    if (k->jit == NULL) PL_TRY(pl_kernel_unpack(&d->ks, &w->format->w, k, err));
    PL_TRY(pl_device_alloc(d->ks.device, unpacked_bytes(w), &w->kept, err));
    enum pl_status st = pl_launch_unpack(&d->ks, k, &w->w, &w->kept);
    if (st == PL_OK) return PL_OK;
    *err = d->ks.err;
    return st;
}

/* What may be taken without leaving less than a quarter of the device to others. */
static enum pl_status spare(struct dev_ops *d, uint64_t *bytes, struct pl_err *err) {
    uint64_t left = 0, all = pl_device_info(d->ks.device)->memory_bytes;
    PL_TRY(pl_device_memory_free(d->ks.device, &left, err));
    *bytes = left > all / 4 ? left - all / 4 : 0;
    return PL_OK;
}

enum pl_status pl_ops_keep_unpacked(struct pl_ops *o, uint64_t most, uint64_t *kept, struct pl_err *err) {
    struct dev_ops *d = (struct dev_ops *)o;
    *kept = 0;
    if (o->impl->backend != PL_BACKEND_CUDA || d->exact || d->packed == NULL) return PL_OK;
    PL_TRY(pl_dense_ready(&d->ks, &d->dense, 2 * d->dense_cols * d->stride, d->dense_bytes, err));
    if (d->dense.why_not[0] != 0) return PL_OK; /* said already */
    if (most == PL_KEEP_AUTO) PL_TRY(spare(d, &most, err));
    for (struct dev_weight *w = d->packed; w != NULL; w = w->next_packed) {
        if (w->kept.handle != NULL || unpacked_bytes(w) > most - *kept) continue;
        enum pl_status st = keep(d, w, err);
        if (st == PL_NO_MEMORY) break; /* those that found room serve all the same */
        PL_TRY(st);
        *kept += unpacked_bytes(w);
    }
    return pl_device_stream_wait(d->ks.device, d->ks.stream, err);
}
