/* State-space layers on devices: state in slots beside the pages, one launch for each operation. */
#include "base/mem.h"
#include "ops/device_ops.h"

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

void dev_states_deinit(struct dev_ops *d) {
    struct pl_device_buffer *all[] = {&d->ssm.seqs, &d->ssm.dots, &d->ssm.steps, &d->ssm.arrived};
    for (size_t i = 0; i < PL_COUNT_OF(all); i++) pl_device_free(d->ks.device, all[i]);
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
    d->ssm.longest = 0, d->ssm.least = UINT32_MAX;
    for (uint32_t i = 0; i < b->seq_count; i++, to += PL_SEQ_WORDS) {
        const struct pl_batch_seq *q = &b->seqs[i];
        to[PL_SEQ_FIRST] = q->first_row;
        to[PL_SEQ_ROWS] = q->rows;
        to[PL_SEQ_PAST] = q->past;
        to[PL_SEQ_SLOT] = q->state;
        d->ssm.longest = PL_MAX(d->ssm.longest, q->rows);
        d->ssm.least = PL_MIN(d->ssm.least, q->rows);
    }
    uint64_t bytes = (uint64_t)b->seq_count * PL_SEQ_WORDS * sizeof(uint32_t);
    return pl_device_upload(d->ks.device, d->ks.stream, &d->ssm.seqs, 0, staging, bytes, &d->ks.err);
}

static uint64_t slot_stride(const struct pl_ops *o) { return o->kv->shape.state_conv + o->kv->shape.state_ssm; }
static const struct pl_device_buffer *states_of(const struct pl_ops *o, uint32_t layer) {
    return &((const struct dev_kv *)o->kv)->states[layer];
}

static struct pl_launch_conv conv_of(const struct pl_ops *o, const struct pl_conv *p, const struct pl_activation *x,
                                     const struct pl_activation *y) {
    const struct dev_ops *d = (const struct dev_ops *)o;
    return (struct pl_launch_conv){.x = data_of(x),
                                   .w = vector_of(p->w),
                                   .bias = vector_of(p->bias),
                                   .state = states_of(o, p->layer),
                                   .seqs = &d->ssm.seqs,
                                   .y = data_of(y),
                                   .channels = x->cols,
                                   .seq_count = o->batch->seq_count,
                                   .longest = d->ssm.longest,
                                   .slot_stride = slot_stride(o)};
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
    const struct pl_launch_conv c = conv_of(o, p, x, y);
    return dev_done(o, PL_OP_causal_conv, k, 2 * c.seq_count * o->kv->shape.state_conv * sizeof(float),
                    pl_launch_causal_conv(&d->ks, k, &c));
}

static bool same_kind(const struct pl_ssm_kind *a, const struct pl_ssm_kind *b) {
    return a->state == b->state && a->full == b->full && a->bias == b->bias && a->skip == b->skip && a->gate == b->gate;
}

static struct pl_launch_ssm launch_of(struct pl_ops *o, const struct pl_ssm *p, const struct pl_activation *y) {
    struct dev_ops *d = (struct dev_ops *)o;
    return (struct pl_launch_ssm){.x = data_of(p->x),
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
}

/* Token by token. */
static enum pl_status walk(struct pl_ops *o, enum pl_op op, struct pl_ssm_kind kind, const struct pl_launch_ssm *s) {
    struct dev_ops *d = (struct dev_ops *)o;
    struct dev_ssm_kernel *k = &d->ssm.scan[kind.one_row];
    enum pl_status st = PL_OK;
    if (k->kernel.jit == NULL || !same_kind(&k->kind, &kind)) st = pl_kernel_ssm(&d->ks, kind, &k->kernel, &d->ks.err);
    if (st != PL_OK) return dev_report(d, st);
    k->kind = kind;
    return dev_done(o, op, &k->kernel, 2 * s->seq_count * o->kv->shape.state_ssm * sizeof(float),
                    pl_launch_ssm(&d->ks, &k->kernel, s));
}

static enum pl_status prepare_chunks(struct dev_ops *d, struct pl_ssm_kind kind, const struct pl_ssm *p) {
    const uint64_t dots = (uint64_t)d->stride * p->groups * PL_SSM_CHUNK * sizeof(float),
                   steps = (uint64_t)d->stride * 3 * p->heads * sizeof(float);
    if (d->ssm.dots.bytes < dots) { /* once: d->stride is the longest step */
        pl_device_free(d->ks.device, &d->ssm.dots);
        PL_TRY(pl_device_alloc(d->ks.device, dots, &d->ssm.dots, &d->ks.err));
    }
    if (d->ssm.steps.bytes < steps) {
        pl_device_free(d->ks.device, &d->ssm.steps);
        PL_TRY(pl_device_alloc(d->ks.device, steps, &d->ssm.steps, &d->ks.err));
    }
    if (d->ssm.chunks.scan.jit == NULL || !same_kind(&d->ssm.chunks_kind, &kind))
        PL_TRY(pl_kernel_ssm_chunks(&d->ks, kind, &d->ssm.chunks, &d->ks.err));
    d->ssm.chunks_kind = kind;
    return PL_OK;
}

static enum pl_status by_chunks(struct pl_ops *o, struct pl_ssm_kind kind, const struct pl_ssm *p,
                                const struct pl_launch_ssm *s) {
    struct dev_ops *d = (struct dev_ops *)o;
    struct pl_ssm_chunks *k = &d->ssm.chunks;
    enum pl_status st = prepare_chunks(d, kind, p);
    if (st != PL_OK) return dev_report(d, st);
    PL_TRY(dev_done(o, PL_OP_ssm_scan, &k->dots, 0,
                    pl_launch_ssm_dots(&d->ks, &k->dots, s, &d->ssm.dots, &d->ssm.steps, d->ssm.longest)));
    return dev_done(o, PL_OP_ssm_scan, &k->scan, 2 * s->seq_count * o->kv->shape.state_ssm * sizeof(float),
                    pl_launch_ssm_chunks(&d->ks, &k->scan, s, &d->ssm.dots, &d->ssm.steps));
}

static struct pl_ssm_kind kind_of(const struct pl_ssm *p, bool one_row) {
    return (struct pl_ssm_kind){p->state, p->full, p->dt_bias != NULL, p->skip != NULL, p->z != NULL, one_row};
}

static struct pl_step_kind step_kind_of(const struct pl_conv *conv, const struct pl_ssm *p) {
    return (struct pl_step_kind){kind_of(p, true), {conv->kernel, conv->bias != NULL, conv->silu}};
}

bool dev_takes_conv_ssm(struct pl_ops *o, const struct pl_conv *conv, const struct pl_ssm *p) {
    struct dev_ops *d = (struct dev_ops *)o;
    const struct pl_step_kind kind = step_kind_of(conv, p);
    const char *why = pl_step_declines(&d->ks, &kind, p->head_dim, slot_stride(o), o->kv->shape.state_conv);
    if (why == NULL && o->invariant) why = "invariant";
    const struct pl_candidate list[] = {{PL_IMPL_STEP, why == NULL, why}, {PL_IMPL_PORTABLE, true, NULL}};
    bool cuda = pl_device_info(d->ks.device)->kind == PL_DEVICE_CUDA;
    d->ssm.not_step = why;
    return cuda && pl_choose(&o->choice, PL_OP_ssm_update, list, PL_COUNT_OF(list)).taken == PL_IMPL_STEP;
}

static enum pl_status prepare_step(struct dev_ops *d, const struct pl_step_kind *kind, uint32_t groups) {
    const struct pl_step_kind *was = &d->ssm.step_kind;
    const uint64_t arrived = (uint64_t)d->stride * groups * sizeof(uint32_t);
    if (d->ssm.arrived.bytes < arrived) { /* once: d->stride is the longest step */
        pl_device_free(d->ks.device, &d->ssm.arrived);
        PL_TRY(pl_device_alloc(d->ks.device, arrived, &d->ssm.arrived, &d->ks.err));
        PL_TRY(pl_device_fill(d->ks.device, d->ks.stream, &d->ssm.arrived, 0, &d->ks.err));
    }
    bool same = same_kind(&was->ssm, &kind->ssm) && was->conv.kernel == kind->conv.kernel &&
                was->conv.bias == kind->conv.bias && was->conv.silu == kind->conv.silu;
    if (d->ssm.step.jit == NULL || !same) PL_TRY(pl_kernel_step(&d->ks, kind, &d->ssm.step, &d->ks.err));
    d->ssm.step_kind = *kind;
    return PL_OK;
}

enum pl_status dev_step_launch(struct pl_ops *o, const struct dev_step_launch *s) {
    struct dev_ops *d = (struct dev_ops *)o;
    enum pl_status st = prepare_step(d, &s->kind, s->ssm.groups);
    if (st != PL_OK) return dev_report(d, st);
    st = pl_launch_step(&d->ks, &d->ssm.step, &s->ssm, &s->conv, &d->ssm.arrived);
    if (st == PL_OK) /* one launch, counted under all that it does */
        pl_ops_count(o, PL_OP_causal_conv, d->ssm.step.name, 1, s->bytes[0]);
    return dev_done(o, PL_OP_ssm_update, &d->ssm.step, s->bytes[1], st);
}

enum pl_status dev_conv_ssm(struct pl_ops *o, const struct pl_conv *conv, const struct pl_activation *in,
                            const struct pl_ssm *p, struct pl_activation *y) {
    struct dev_ops *d = (struct dev_ops *)o;
    const struct pl_pick pick = {PL_IMPL_STEP, PL_IMPL_STEP, ""};
    const struct pl_kv_shape *shape = &o->kv->shape;
    const uint64_t bytes = 2 * o->batch->seq_count * sizeof(float);
    const struct dev_step_launch s = {.kind = step_kind_of(conv, p),
                                      .conv = conv_of(o, conv, in, in),
                                      .ssm = launch_of(o, p, y),
                                      .bytes = {bytes * shape->state_conv, bytes * shape->state_ssm}};
    bool held = dev_layers_hold_ssm(d, &s);
    if (!held) PL_TRY(dev_settle(o));
    PL_TRY(pl_ops_end_decision(o, PL_OP_ssm_update, &pick, 1, ""));
    return held ? PL_OK : dev_step_launch(o, &s);
}

enum pl_status dev_ssm_update(struct pl_ops *o, const struct pl_ssm *p, struct pl_activation *y) {
    struct dev_ops *d = (struct dev_ops *)o;
    const char *why = d->ssm.not_step != NULL ? d->ssm.not_step : "its convolution was asked for apart";
    const struct pl_candidate list[] = {{PL_IMPL_STEP, false, why}, {PL_IMPL_PORTABLE, true, NULL}};
    enum pl_impl taken;
    PL_TRY(dev_settle(o));
    PL_TRY(pl_ops_decide(o, PL_OP_ssm_update, list, PL_COUNT_OF(list), 1, "", &taken));
    const struct pl_launch_ssm s = launch_of(o, p, y);
    return walk(o, PL_OP_ssm_update, kind_of(p, true), &s);
}

/* By chunks the sequences that have the rows for it, token by token the others: what a sequence goes through does not depend
 * on its neighbours. Under --invariant it may not depend on how a prompt is cut either. */
enum pl_status dev_ssm_scan(struct pl_ops *o, const struct pl_ssm *p, struct pl_activation *y) {
    struct dev_ops *d = (struct dev_ops *)o;
    const struct pl_ssm_kind kind = kind_of(p, false);
    bool asked = o->choice.forced[PL_OP_ssm_scan] == PL_IMPL_CHUNKS;
    const char *why = pl_ssm_chunks_declines(&kind);
    if (why == NULL && o->invariant) why = "invariant";
    const uint32_t from = asked ? 2 : PL_SSM_CHUNK_ROWS;
    const struct pl_candidate list[] = {{PL_IMPL_CHUNKS, why == NULL && d->ssm.longest >= from, why},
                                        {PL_IMPL_PORTABLE, true, NULL}};
    enum pl_impl taken;
    PL_TRY(dev_settle(o));
    PL_TRY(pl_ops_decide(o, PL_OP_ssm_scan, list, PL_COUNT_OF(list), 1, "", &taken));
    struct pl_launch_ssm s = launch_of(o, p, y);
    if (taken == PL_IMPL_CHUNKS) {
        s.split = from;
        PL_TRY(by_chunks(o, kind, p, &s));
    }
    bool rest = taken != PL_IMPL_CHUNKS || d->ssm.least < from;
    return rest || d->ks.planning ? walk(o, PL_OP_ssm_scan, kind, &s) : PL_OK; /* planning: other steps will want it */
}

enum pl_status dev_delta(struct pl_ops *o, const struct pl_delta *p, struct pl_activation *y) {
    struct dev_ops *d = (struct dev_ops *)o;
    struct pl_kernel *k = &d->ssm.delta;
    PL_TRY(dev_settle(o));
    enum pl_status st = PL_OK;
    const struct pl_delta_kind kind = pl_delta_kind_for(p->state, p->in_turn, pl_device_info(d->ks.device)->is_cpu);
    if (k->jit == NULL || d->ssm.delta_state != p->state || d->ssm.delta_in_turn != p->in_turn)
        st = pl_kernel_delta(&d->ks, kind, k, &d->ks.err);
    if (st != PL_OK) return dev_report(d, st);
    d->ssm.delta_state = p->state;
    d->ssm.delta_in_turn = p->in_turn;
    const struct pl_launch_delta s = {.x = data_of(p->x),
                                      .dt = data_of(p->dt),
                                      .beta = data_of(p->beta),
                                      .a = vector_of(p->a),
                                      .dt_bias = vector_of(p->dt_bias),
                                      .state = states_of(o, p->layer),
                                      .seqs = &d->ssm.seqs,
                                      .y = data_of(y),
                                      .heads = p->heads,
                                      .head_dim = p->head_dim,
                                      .groups = p->groups,
                                      .x_stride = (uint32_t)p->x->cols,
                                      .q_first = p->q_first,
                                      .k_first = p->k_first,
                                      .v_first = p->v_first,
                                      .cols = kind.cols,
                                      .seq_count = o->batch->seq_count,
                                      .slot_stride = slot_stride(o),
                                      .state_first = o->kv->shape.state_conv};
    return dev_done(o, PL_OP_delta, k, 2 * s.seq_count * o->kv->shape.state_ssm * sizeof(float),
                    pl_launch_delta(&d->ks, k, &s));
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
