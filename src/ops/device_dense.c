/* Products of many rows by cuBLASLt (cuda_dense.h) as the device backend runs them, and inputs made for them in bf16. A norm
 * of many rows waits for the operation after it: where cuBLASLt takes all of that, its result is written in bf16 in place of
 * f32 and the activation is `rounded`; anything else has it done in f32 first (dev_settle). Gate and up that it takes
 * together stay bf16 up to the product after them. */
#include "ops/device_ops.h"

/* Matrices that share x, which is packed once where it is not bf16 already. */
enum pl_status dev_dense(struct pl_ops *o, enum pl_op op, size_t count, const struct pl_weight *const *w,
                         const struct pl_weight *const *bias, const struct pl_activation *x, struct pl_activation *const *y,
                         bool half) {
    struct dev_ops *d = dev_of(o);
    enum pl_status st = PL_OK;
    if (!x->rounded) {
        st = pl_launch_pack(&d->ks, &d->dense, data_of(x), (uint64_t)x->rows * x->cols);
        PL_TRY(dev_done(o, op, &d->dense.pack, 0, st));
    }
    for (size_t i = 0; i < count; i++) {
        const struct dev_weight *dw = weight_of(w[i]);
        struct pl_kernel *k = &dw->format->unpack;
        const struct pl_launch_dense l = {.w = &dw->w,
                                          .x = x->rounded ? data_of(x) : &d->dense.x,
                                          .bias = bias != NULL ? vector_of(bias[i]) : NULL,
                                          .y = data_of(y[i]),
                                          .kept = dw->kept.handle != NULL ? &dw->kept : NULL,
                                          .rows = x->rows,
                                          .add = op == PL_OP_linear_add,
                                          .half = half};
        bool packed = dw->w.dtype != PL_BF16 && l.kept == NULL;
        if (packed && k->jit == NULL) st = pl_kernel_unpack(&d->ks, &dw->format->w, k, &d->ks.err);
        if (st == PL_OK) st = pl_launch_dense(&d->ks, &d->dense, k, &l);
        if (st != PL_OK) return dev_report(d, st);
        if (packed) pl_ops_count(o, op, k->name, 1, 0);
        pl_ops_count(o, op, DEV_DENSE_NAME, 1, dw->bytes);
    }
    return PL_OK;
}

static bool asked(const struct dev_ops *d, enum pl_op op) {
    return d->base.choice.forced[op] != PL_IMPL_NONE || d->base.choice.disabled[op] != 0;
}

bool dev_may_round(const struct dev_ops *d, const struct pl_activation *x) {
    return d->dense.tried && d->dense.why_not[0] == 0 && !d->exact && x->rows > 1 && x->cols % 8 == 0 &&
           x->cols <= d->dense_cols && !dev_prepares(d, x->rows, x->cols);
}

static enum pl_status kernel_of(struct dev_ops *d, enum pl_pack which, struct pl_kernel **out) {
    struct pl_kernel *k = &d->dense.packs[which];
    if (k->jit == NULL) PL_TRY(pl_kernel_pack(&d->ks, which, k, &d->ks.err));
    *out = k;
    return PL_OK;
}

bool dev_rounds_norm(struct dev_ops *d, const struct dev_norm *n) {
    if (!dev_may_round(d, n->x) || n->x == n->y || asked(d, PL_OP_norm)) return false;
    d->rounds = *n;
    return true;
}

enum pl_status dev_round(struct pl_ops *o, const struct pl_activation *x, size_t count, const struct pl_weight *const *w) {
    struct dev_ops *d = dev_of(o);
    const struct dev_norm n = d->rounds;
    struct pl_kernel *k = NULL;
    uint64_t outputs = 0;
    for (size_t i = 0; i < count; i++) outputs += weight_of(w[i])->w.rows;
    if (n.y == NULL || n.y != x || outputs < x->cols) return PL_OK; /* a router's: experts read x as well */
    d->rounds = (struct dev_norm){0};
    enum pl_status st = kernel_of(d, PL_PACK_NORM, &k);
    if (st != PL_OK) return dev_report(d, st);
    st = pl_launch_pack_norm(&d->ks, k, data_of(n.x), &weight_of(n.w)->w.data, data_of(n.y), n.x->rows, n.x->cols, n.eps,
                             n.offset);
    n.y->rounded = st == PL_OK;
    return dev_done(o, PL_OP_norm, k, 0, st);
}

enum pl_status dev_round_settle(struct pl_ops *o) {
    const struct dev_norm n = dev_of(o)->rounds;
    if (n.y == NULL) return PL_OK;
    dev_of(o)->rounds = (struct dev_norm){0};
    return dev_norm(o, &n);
}

enum pl_status dev_whole_again(struct pl_ops *o, struct pl_activation *a) {
    struct dev_ops *d = dev_of(o);
    struct pl_kernel *k = NULL;
    PL_TRY(dev_settle(o));
    enum pl_status st = kernel_of(d, PL_PACK_WIDEN, &k);
    if (st != PL_OK) return dev_report(d, st);
    st = pl_launch_pack_widen(&d->ks, k, data_of(a), (uint64_t)a->rows * a->cols);
    a->rounded = st != PL_OK;
    return dev_done(o, PL_OP_linear, k, 0, st);
}

bool dev_takes_gated_rounded(const struct dev_ops *d, const struct pl_weight *const *w, const struct pl_weight *const *bias,
                             const struct pl_activation *x) {
    const struct dev_weight *gate = weight_of(w[0]), *up = weight_of(w[1]);
    if (bias != NULL && (bias[0] != NULL || bias[1] != NULL)) return false;
    if (!dev_may_round(d, x) || asked(d, PL_OP_glu) || gate->w.rows != up->w.rows || gate->w.rows % 32 != 0) return false;
    return dev_product(d, gate, x->rows) == PL_IMPL_CUBLASLT && dev_product(d, up, x->rows) == PL_IMPL_CUBLASLT;
}

enum pl_status dev_gated_rounded(struct pl_ops *o, const struct pl_weight *const *w, enum pl_ops_act act,
                                 const struct pl_activation *x, struct pl_activation *const *y) {
    struct dev_ops *d = dev_of(o);
    struct pl_kernel *k = NULL;
    enum pl_impl taken;
    for (size_t i = 0; i < 2; i++) {
        PL_TRY(dev_decide(d, PL_OP_linear, weight_of(w[i]), x->rows, &taken));
        PL_ASSERT(taken == PL_IMPL_CUBLASLT);
    }
    PL_TRY(dev_round(o, x, 2, w));
    PL_TRY(dev_settle(o));
    PL_TRY(dev_dense(o, PL_OP_linear, 2, w, NULL, x, y, true));
    enum pl_status st = kernel_of(d, act == PL_OPS_GELU_TANH ? PL_PACK_GELU_TANH : PL_PACK_SILU, &k);
    if (st != PL_OK) return dev_report(d, st);
    st = pl_launch_pack_glu(&d->ks, k, data_of(y[0]), data_of(y[1]), data_of(y[0]), (uint64_t)y[0]->rows * y[0]->cols);
    y[0]->rounded = st == PL_OK;
    return dev_done(o, PL_OP_glu, k, 0, st);
}
