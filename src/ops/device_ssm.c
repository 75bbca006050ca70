/* State-space layers on devices: state in slots beside the pages, one launch for each operation. */
#include "base/mem.h"
#include "ops/device_ops.h"

static const struct pl_device_buffer *data_of(const struct pl_activation *a) {
    return a != NULL ? &((const struct dev_activation *)a)->data : NULL;
}
static const struct pl_device_buffer *vector_of(const struct pl_weight *w) {
    return w != NULL ? &((const struct dev_weight *)w)->w.data : NULL;
}

/* --- the store: one buffer a layer --- */

enum pl_status dev_states_create(struct dev_ops *d, struct dev_kv *kv, const struct pl_kv_shape *s, struct pl_err *err) {
    uint64_t bytes = s->state_layers > 0 ? pl_kv_state_bytes(s) / s->state_layers : 0;
    if (s->state_layers == 0) return PL_OK;
    kv->states = pl_calloc(s->state_layers, sizeof *kv->states);
    if (kv->states == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for the recurrent state of %zu layers", s->state_layers);
    while (kv->state_count < s->state_layers) {
        struct pl_device_buffer *b = &kv->states[kv->state_count];
        PL_TRY(pl_device_alloc(d->ks.device, bytes, b, err));
        kv->state_count++;
        PL_TRY(pl_device_fill(d->ks.device, d->ks.stream, b, 0, err));
    }
    return PL_OK;
}
void dev_states_destroy(struct dev_ops *d, struct dev_kv *kv) {
    for (size_t i = 0; i < kv->state_count; i++) pl_device_free(d->ks.device, &kv->states[i]);
    pl_free(kv->states);
}

enum pl_status dev_state_copy(struct pl_ops *o, struct pl_kv_store *store, uint32_t from, uint32_t to) {
    struct dev_ops *d = (struct dev_ops *)o;
    struct dev_kv *kv = (struct dev_kv *)store;
    uint64_t slot = (store->shape.state_conv + store->shape.state_ssm) * sizeof(float);
    for (size_t i = 0; i < kv->state_count; i++) {
        struct pl_device_buffer *b = &kv->states[i];
        enum pl_status st = pl_device_copy(d->ks.device, d->ks.stream, b, to * slot, b, from * slot, slot, &d->ks.err);
        if (st != PL_OK) return dev_report(d, st);
    }
    return PL_OK;
}

/* --- a step: its sequences, in a record of their own --- */

enum pl_status dev_reserve_seqs(struct dev_ops *d) {
    if (d->ssm.seqs_max >= d->stride) return PL_OK;
    d->ssm.seqs_max = 0;
    pl_device_free(d->ks.device, &d->ssm.seqs);
    PL_TRY(pl_device_alloc(d->ks.device, (uint64_t)d->stride * PL_SEQ_WORDS * sizeof(uint32_t), &d->ssm.seqs, &d->ks.err));
    d->ssm.seqs_max = d->stride;
    return PL_OK;
}

enum pl_status dev_upload_seqs(struct dev_ops *d, const struct pl_batch *b, uint32_t *staging) {
    uint32_t *to = staging;
    d->ssm.longest = 0;
    for (uint32_t i = 0; i < b->seq_count; i++, to += PL_SEQ_WORDS) {
        const struct pl_batch_seq *q = &b->seqs[i];
        to[PL_SEQ_FIRST] = q->first_row;
        to[PL_SEQ_ROWS] = q->rows;
        to[PL_SEQ_PAST] = q->past;
        to[PL_SEQ_SLOT] = q->state;
        d->ssm.longest = PL_MAX(d->ssm.longest, q->rows);
    }
    uint64_t bytes = (uint64_t)b->seq_count * PL_SEQ_WORDS * sizeof(uint32_t);
    return pl_device_upload(d->ks.device, d->ks.stream, &d->ssm.seqs, 0, staging, bytes, &d->ks.err);
}

static uint64_t slot_stride(const struct pl_ops *o) { return o->kv->shape.state_conv + o->kv->shape.state_ssm; }
static const struct pl_device_buffer *states_of(const struct pl_ops *o, uint32_t layer) {
    return &((const struct dev_kv *)o->kv)->states[layer];
}

enum pl_status dev_causal_conv(struct pl_ops *o, const struct pl_conv *p, const struct pl_activation *x,
                               struct pl_activation *y) {
    struct dev_ops *d = (struct dev_ops *)o;
    PL_TRY(dev_settle(o));
    const struct pl_conv_kind kind = {p->kernel, p->bias != NULL, p->silu};
    struct pl_kernel *k = &d->ssm.conv[(kind.bias ? 1 : 0) | (kind.silu ? 2 : 0)];
    enum pl_status st = PL_OK;
    if (k->jit == NULL || d->ssm.conv_kernel != p->kernel) st = pl_kernel_causal_conv(&d->ks, kind, k, &d->ks.err);
    if (st != PL_OK) return dev_report(d, st);
    d->ssm.conv_kernel = p->kernel;
    const struct pl_launch_conv c = {.x = data_of(x),
                                     .w = vector_of(p->w),
                                     .bias = vector_of(p->bias),
                                     .state = states_of(o, p->layer),
                                     .seqs = &d->ssm.seqs,
                                     .y = data_of(y),
                                     .channels = x->cols,
                                     .seq_count = o->batch->seq_count,
                                     .longest = d->ssm.longest,
                                     .slot_stride = slot_stride(o)};
    return dev_done(o, PL_OP_causal_conv, k, 2 * c.seq_count * o->kv->shape.state_conv * sizeof(float),
                    pl_launch_causal_conv(&d->ks, k, &c));
}

static enum pl_status run(struct pl_ops *o, enum pl_op op, const struct pl_ssm *p, struct pl_activation *y) {
    struct dev_ops *d = (struct dev_ops *)o;
    PL_TRY(dev_settle(o));
    const struct pl_ssm_kind kind = {.state = p->state,
                                     .full = p->full,
                                     .bias = p->dt_bias != NULL,
                                     .skip = p->skip != NULL,
                                     .gate = p->z != NULL,
                                     .one_row = op == PL_OP_ssm_update};
    struct dev_ssm_kernel *k = &d->ssm.scan[kind.one_row];
    bool same = k->kind.state == kind.state && k->kind.full == kind.full && k->kind.bias == kind.bias &&
                k->kind.skip == kind.skip && k->kind.gate == kind.gate;
    enum pl_status st = PL_OK;
    if (k->kernel.jit == NULL || !same) st = pl_kernel_ssm(&d->ks, kind, &k->kernel, &d->ks.err);
    if (st != PL_OK) return dev_report(d, st);
    k->kind = kind;
    const struct pl_launch_ssm s = {.x = data_of(p->x),
                                    .b = data_of(p->b),
                                    .c = data_of(p->c),
                                    .dt = data_of(p->dt),
                                    .z = data_of(p->z),
                                    .a = vector_of(p->a),
                                    .dt_bias = vector_of(p->dt_bias),
                                    .skip = vector_of(p->skip),
                                    .state = states_of(o, p->layer),
                                    .seqs = &d->ssm.seqs,
                                    .y = data_of(y),
                                    .heads = p->heads,
                                    .head_dim = p->head_dim,
                                    .groups = p->groups,
                                    .n = p->state,
                                    .x_stride = (uint32_t)p->x->cols,
                                    .b_stride = (uint32_t)p->b->cols,
                                    .c_stride = (uint32_t)p->c->cols,
                                    .x_first = p->x_first,
                                    .b_first = p->b_first,
                                    .c_first = p->c_first,
                                    .dt_min = p->dt_min,
                                    .dt_max = p->dt_max,
                                    .seq_count = o->batch->seq_count,
                                    .slot_stride = slot_stride(o),
                                    .state_first = o->kv->shape.state_conv};
    return dev_done(o, op, &k->kernel, 2 * s.seq_count * o->kv->shape.state_ssm * sizeof(float),
                    pl_launch_ssm(&d->ks, &k->kernel, &s));
}
enum pl_status dev_ssm_update(struct pl_ops *o, const struct pl_ssm *p, struct pl_activation *y) {
    return run(o, PL_OP_ssm_update, p, y);
}
enum pl_status dev_ssm_scan(struct pl_ops *o, const struct pl_ssm *p, struct pl_activation *y) {
    return run(o, PL_OP_ssm_scan, p, y);
}

enum pl_status dev_gated_norm(struct pl_ops *o, const struct pl_gated_norm *p, const struct pl_activation *x,
                              const struct pl_activation *z, struct pl_activation *y) {
    struct dev_ops *d = (struct dev_ops *)o;
    PL_TRY(dev_settle(o));
    struct pl_kernel *k = &d->ssm.norm[z != NULL];
    enum pl_status st = k->jit != NULL ? PL_OK : pl_kernel_gated_norm(&d->ks, z != NULL, k, &d->ks.err);
    if (st != PL_OK) return dev_report(d, st);
    st = pl_launch_gated_norm(&d->ks, k, data_of(x), data_of(z), vector_of(p->w), data_of(y), x->rows, x->cols, p->groups,
                              p->norm_first, p->eps);
    return dev_done(o, PL_OP_gated_norm, k, 0, st);
}
