/* Latent attention on devices: products of each head, the append. */
#include <string.h>

#include "ops/device_ops.h"
#include "tensor/quant.h"

enum pl_status dev_heads_create(struct pl_ops *o, const struct pl_tensor *heads, size_t count, struct pl_weight **out,
                                struct pl_err *err) {
    struct dev_weight *w;
    PL_TRY(dev_stack_create(o, heads, count, &w, err));
    *out = &w->base;
    return PL_OK;
}

enum pl_status dev_heads_linear(struct pl_ops *o, const struct pl_weight *weight, const struct pl_activation *x,
                                struct pl_activation *y) {
    struct dev_ops *d = dev_of(o);
    const struct dev_weight *w = weight_of(weight);
    uint32_t tile_rows, tile = pl_tile_of(d->base.invariant ? SIZE_MAX : x->rows, &tile_rows);
    if (x->rows >= PL_HEADS_TILE_FROM && !d->base.invariant && !pl_device_info(d->ks.device)->is_cpu)
        tile = PL_HEADS_TILE, tile_rows = PL_HEADS_TILE_ROWS;
    struct pl_kernel *k = &w->format->heads[tile];
    PL_TRY(dev_settle(o));
    enum pl_status st = k->jit != NULL ? PL_OK : pl_kernel_heads(&d->ks, &w->w, tile, k, &d->ks.err);
    if (st != PL_OK) return dev_report(d, st);
    const struct pl_launch_heads h = {.w = &w->w,
                                      .x = data_of(x),
                                      .y = data_of(y),
                                      .heads = weight->experts,
                                      .rows = x->rows,
                                      .x_head = x->cols / weight->experts,
                                      .y_head = y->cols / weight->experts};
    return dev_done(o, PL_OP_heads_linear, k, w->bytes, pl_launch_heads(&d->ks, k, &h, tile_rows));
}

static enum pl_status append_kernel(struct dev_ops *d, const struct pl_kv_shape *s, bool halves) {
    struct pl_kernel *k = &d->latent.append;
    bool same = d->latent.kv == s->dtype && d->latent.head_dim == s->head_dim && d->latent.value_dim == s->value_dim &&
                d->latent.page_tokens == s->page_tokens && d->latent.halves == halves;
    if (k->jit != NULL && same) return PL_OK;
    pl_kernel_free(&d->ks, k); /* what ran stays in its record */
    d->latent.kv = s->dtype;
    d->latent.head_dim = s->head_dim;
    d->latent.value_dim = s->value_dim;
    d->latent.page_tokens = s->page_tokens;
    d->latent.halves = halves;
    return dev_report(
        d, pl_kernel_latent_append(&d->ks, s->dtype, s->head_dim, s->value_dim, s->page_tokens, halves, k, &d->ks.err));
}

enum pl_status dev_latent_append(struct pl_ops *o, const struct pl_latent *p, const struct pl_activation *q,
                                 const struct pl_activation *kv, struct pl_activation *qa) {
    struct dev_ops *d = dev_of(o);
    const struct dev_kv *store = (const struct dev_kv *)o->kv;
    const struct pl_kv_shape *s = &store->base.shape;
    PL_TRY(dev_settle(o));
    PL_TRY(append_kernel(d, s, p->rope->halves));
    const struct pl_launch_latent l = {.q = data_of(q),
                                       .latent = data_of(kv),
                                       .qa = data_of(qa),
                                       .norm = &weight_of(p->norm)->w.data,
                                       .cos_sin = &((const struct dev_rope *)p->rope)->cos_sin,
                                       .step = &d->step,
                                       .pages = &store->sides[p->layer],
                                       .rows = (uint32_t)q->rows,
                                       .heads = p->heads,
                                       .q_head = (uint32_t)(q->cols / p->heads),
                                       .turned = (uint32_t)p->rope->dim,
                                       .stride = d->stride,
                                       .norm_eps = p->norm_eps};
    uint64_t bytes = (uint64_t)kv->rows * kv->cols * pl_dtype_info(s->dtype)->block_bytes;
    return dev_done(o, PL_OP_latent_append, &d->latent.append, bytes,
                    pl_launch_latent_append(&d->ks, &d->latent.append, &l));
}

void dev_latent_deinit(struct dev_ops *d) {
    pl_kernel_free(&d->ks, &d->latent.append);
    for (struct dev_format *f = d->formats; f != NULL; f = f->next)
        for (size_t i = 0; i < PL_COUNT_OF(f->heads); i++) pl_kernel_free(&d->ks, &f->heads[i]);
}
