/* Matrices of one type and shape, one after the other as one tall one: the experts of a layer, the heads of latent
 * attention. */
#include "base/check.h"
#include "base/mem.h"
#include "ops/device_ops.h"
#include "tensor/quant.h"

static enum pl_status check_alike(const struct pl_tensor *parts, size_t count, struct pl_err *err) {
    for (size_t i = 0; i < count; i++) {
        const struct pl_tensor *t = &parts[i];
        PL_TRY(pl_tensor_check_scales(t, err));
        if (t->dtype == parts[0].dtype && t->bytes == parts[0].bytes && t->bits == parts[0].bits &&
            t->group == parts[0].group && t->scale_dtype == parts[0].scale_dtype)
            continue;
        PL_FAIL(err, PL_UNSUPPORTED, "tensor %s is not of the first one's type: experts of one type are implemented",
                t->name);
    }
    return PL_OK;
}

static enum pl_status fill(struct dev_ops *d, const struct pl_tensor *parts, size_t count, struct dev_weight *w,
                           struct pl_err *err) {
    const struct pl_tensor *t = &parts[0];
    uint64_t out = t->shape[0], bytes, scales = 0, more = 0; /* the last two: of one part, of all */
    if (t->dtype == PL_MLX) scales = out * (t->shape[1] / t->group) * pl_dtype_info(t->scale_dtype)->block_bytes;
    if (!pl_mul_u64(t->bytes, count, &bytes) || !pl_mul_u64(scales, count, &more) || out * count > UINT32_MAX)
        PL_FAIL(err, PL_LIMIT, "%zu matrices of %llu bytes are larger than any memory", count, (unsigned long long)t->bytes);
    w->w = (struct pl_device_weight){.dtype = t->dtype,
                                     .rows = out * count,
                                     .cols = t->shape[1],
                                     .row_bytes = t->bytes / out,
                                     .bits = t->bits,
                                     .group = t->group,
                                     .scale_dtype = t->scale_dtype};
    w->bytes = bytes + 2 * more;
    PL_TRY(pl_device_alloc(d->ks.device, bytes, &w->w.data, err));
    if (scales > 0) PL_TRY(pl_device_alloc(d->ks.device, more, &w->w.scales, err));
    if (scales > 0) PL_TRY(pl_device_alloc(d->ks.device, more, &w->w.biases, err));
    for (size_t i = 0; i < count; i++) {
        PL_TRY(dev_upload(d, &w->w.data, i * t->bytes, parts[i].data, t->bytes, err));
        if (scales == 0) continue;
        PL_TRY(dev_upload(d, &w->w.scales, i * scales, parts[i].scales, scales, err));
        PL_TRY(dev_upload(d, &w->w.biases, i * scales, parts[i].biases, scales, err));
    }
    return dev_format_of(d, &w->w, &w->format, err);
}

enum pl_status dev_stack_create(struct pl_ops *o, const struct pl_tensor *parts, size_t count, struct dev_weight **out,
                                struct pl_err *err) {
    struct dev_ops *d = dev_of(o);
    if (!dev_is_matrix_type(parts[0].dtype))
        PL_FAIL(err, PL_UNSUPPORTED, "tensor %s has type %s, which no product takes", parts[0].name,
                pl_dtype_name(parts[0].dtype));
    PL_TRY(check_alike(parts, count, err));
    struct dev_weight *w = pl_calloc(1, sizeof *w);
    if (w == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for %s", parts[0].name);
    enum pl_status st = fill(d, parts, count, w, err);
    if (st != PL_OK) {
        pl_device_settle(d->ks.device); /* a copy may still read a tensor */
        o->impl->weight_destroy(o, &w->base);
        pl_err_note(err, "copying %s to the device", parts[0].name);
        return st;
    }
    *out = w;
    return PL_OK;
}
