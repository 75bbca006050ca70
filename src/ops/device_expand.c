/* Latent attention by keys and values of each head on devices: when, and chunk by chunk. Scratch is bounded (PL_EXPAND_ROOM)
 * and taken once, at the dry step before the first where there is one; all layers and sequences use it in turn. */
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "ops/device_ops.h"

static struct pl_expand_shape shape_of(const struct dev_ops *d, const struct pl_latent_heads *w) {
    const struct pl_kv_shape *s = &d->base.kv->shape;
    struct pl_expand_shape e = {.kv = s->dtype,
                                .nope = (uint32_t)w->k_heads->cols,
                                .rope = (uint32_t)(s->head_dim - s->value_dim),
                                .value = (uint32_t)w->v_heads->rows,
                                .latent = (uint32_t)s->value_dim,
                                .page_tokens = (uint32_t)s->page_tokens};
    e.halves = !d->exact && pl_expand_halves(&d->ks, &e);
    return e;
}

/* Measured on processors (docs/perf/cpu.md) and, in bf16, on Hopper (docs/perf/h200.md); elsewhere it is asked for. */
static const struct pl_latent_costs processor = {.product = 1, .pair = 0.55, .head_product = 0.09, .head_pair = 0.22},
                                    hopper = {.product = 1, .pair = 0.003, .head_product = 0.002, .head_pair = 0.0025};
static const struct pl_latent_costs *costs_of(const struct dev_ops *d, const struct pl_expand_shape *s) {
    return pl_device_info(d->ks.device)->is_cpu ? &processor : s->halves ? &hopper : NULL;
}

static enum pl_status make_kernels(struct dev_ops *d, const struct pl_expand_shape *s, const struct pl_latent_heads *w) {
    const struct pl_weight *const sides[] = {w->k_heads, w->v_heads};
    struct dev_expand *e = &d->expand;
    if (memcmp(&e->shape, s, sizeof *s) != 0) { /* what ran stays in its record */
        for (int i = 0; i < PL_EXPAND_COUNT; i++) pl_kernel_free(&d->ks, &e->kernels[i]);
        e->shape = *s;
    }
    for (int i = 0; i < PL_EXPAND_COUNT; i++)
        if (e->kernels[i].jit == NULL && !(s->halves && i == PL_EXPAND_KEYS))
            PL_TRY(pl_kernel_expand(&d->ks, s, (enum pl_expand_kernel)i, &e->kernels[i], &d->ks.err));
    for (size_t i = 0; i < PL_COUNT_OF(sides); i++) {
        const struct dev_weight *side = weight_of(sides[i]);
        struct pl_kernel *k = &side->format->turn;
        if (k->jit == NULL) PL_TRY(pl_kernel_turn(&d->ks, &side->w, s->halves, k, &d->ks.err));
    }
    return PL_OK;
}

static enum pl_status buffer(struct dev_ops *d, struct pl_device_buffer *b, uint64_t bytes) {
    if (b->bytes >= bytes) return PL_OK;
    PL_TRY(pl_device_stream_wait(d->ks.device, d->ks.stream, &d->ks.err));
    pl_device_free(d->ks.device, b);
    return pl_device_alloc(d->ks.device, bytes, b, &d->ks.err);
}

static enum pl_status reserve(struct dev_ops *d, const struct pl_expand_shape *s, uint32_t heads) {
    const struct pl_kv_shape *kv = &d->base.kv->shape;
    struct dev_expand *e = &d->expand;
    const uint64_t each = s->halves ? sizeof(uint16_t) : sizeof(float);
    uint64_t token = each * heads * pl_expand_vector(s), held = (uint64_t)kv->page_count * kv->page_tokens;
    uint64_t tokens = PL_MIN((held + 15) / 16 * 16, PL_MAX(PL_EXPAND_ROOM / token / 16 * 16, (uint64_t)16));
    if (e->chunk >= tokens && e->heads == heads) tokens = e->chunk;
    PL_TRY(buffer(d, &e->kv, tokens * token));
    PL_TRY(buffer(d, &e->latents, each * tokens * s->latent));
    PL_TRY(buffer(d, &e->rotated, each * tokens * s->rope));
    PL_TRY(buffer(d, &e->w, each * heads * (s->nope + s->value) * s->latent));
    PL_TRY(buffer(d, &e->lse, sizeof(float) * d->stride * heads));
    e->chunk = (uint32_t)tokens;
    e->heads = heads;
    return PL_OK;
}

static void free_buffers(struct dev_ops *d) {
    struct dev_expand *e = &d->expand;
    struct pl_device_buffer *const all[] = {&e->kv, &e->latents, &e->rotated, &e->w, &e->lse};
    for (size_t i = 0; i < PL_COUNT_OF(all); i++) pl_device_free(d->ks.device, all[i]);
    e->chunk = 0;
}

/* No room, or no kernel: said once; what there was of room is others'. */
static void give_up(struct dev_ops *d) {
    pl_log("latent attention goes by the latents: %s", d->ks.err.text);
    if (pl_device_stream_wait(d->ks.device, d->ks.stream, &d->ks.err) == PL_OK) free_buffers(d);
    d->expand.given_up = true;
}

/* In a dry step, which is short: longer ones may go this way. */
static bool noted(const struct dev_ops *d, const struct pl_latent_costs *costs) {
    const struct pl_choice *c = &d->base.choice;
    bool off = d->base.invariant || (c->disabled[PL_OP_attention] >> PL_IMPL_EXPANDED & 1u) != 0;
    return d->ks.planning && !off && (costs != NULL || c->expanded);
}

bool dev_takes_expanded(struct pl_ops *o, const struct pl_attention *p, const struct pl_latent_heads *w) {
    struct dev_ops *d = dev_of(o);
    const struct pl_expand_shape s = shape_of(d, w);
    const struct pl_latent_costs *costs = costs_of(d, &s);
    if (d->expand.given_up || d->sparse > 0 || pl_expand_declines(&d->ks, &s) != NULL)
        return false; /* sparse: all values would be read */
    if (!pl_ops_wants_expanded(o, w, costs) && !noted(d, costs)) return false;
    enum pl_status st = make_kernels(d, &s, w);
    if (st == PL_OK) st = reserve(d, &s, p->heads);
    if (st != PL_OK) give_up(d);
    return st == PL_OK && !d->ks.planning; /* kernels of the other way must be noted, too */
}

/* One chunk's launches, in order. */
static enum pl_status chunk(struct pl_ops *o, const struct pl_expand_shape *s, const struct pl_launch_expand *l) {
    struct dev_ops *d = dev_of(o);
    uint64_t bytes = (uint64_t)l->tokens * pl_kv_token_bytes(&o->kv->shape);
    for (int i = 0; i < PL_EXPAND_COUNT; i++) {
        struct pl_kernel *k = &d->expand.kernels[i];
        enum pl_status st = pl_launch_expand(&d->ks, s, (enum pl_expand_kernel)i, k, l);
        if (s->halves && i == PL_EXPAND_KEYS) {
            if (st != PL_OK) return dev_report(d, st);
            pl_ops_count(o, PL_OP_attention, DEV_DENSE_NAME, 1, 0);
            continue;
        }
        PL_TRY(dev_done(o, PL_OP_attention, k, i == PL_EXPAND_WIDEN ? bytes : 0, st));
    }
    return PL_OK;
}

static enum pl_status turn(struct pl_ops *o, const struct pl_expand_shape *s, const struct pl_weight *w, bool values) {
    struct dev_ops *d = dev_of(o);
    const struct dev_weight *side = weight_of(w);
    struct pl_kernel *k = &side->format->turn;
    return dev_done(o, PL_OP_attention, k, side->bytes,
                    pl_launch_turn(&d->ks, k, s, &side->w, values, &d->expand.w, d->expand.heads));
}

enum pl_status dev_expanded(struct pl_ops *o, const struct pl_attention *p, const struct pl_latent_heads *w,
                            const struct pl_activation *q, const struct pl_activation *qa, struct pl_activation *out) {
    static const struct pl_pick pick = {PL_IMPL_EXPANDED, PL_IMPL_EXPANDED, ""};
    struct dev_ops *d = dev_of(o);
    const struct dev_expand *e = &d->expand;
    const struct pl_expand_shape s = shape_of(d, w);
    uint64_t seen = 0;
    PL_TRY(dev_settle(o));
    PL_TRY(pl_ops_end_decision(o, PL_OP_attention, &pick, 1, ""));
    PL_TRY(turn(o, &s, w->k_heads, false));
    PL_TRY(turn(o, &s, w->v_heads, true));
    for (uint32_t i = 0; i < o->batch->seq_count; i++) {
        const struct pl_batch_seq *seq = &o->batch->seqs[i];
        const uint32_t tokens = seq->past + seq->rows;
        struct pl_launch_expand l = {.pages = &((struct dev_kv *)o->kv)->sides[p->layer],
                                     .step = &d->step,
                                     .w = &e->w,
                                     .q = data_of(q),
                                     .qa = data_of(qa),
                                     .latents = &e->latents,
                                     .rotated = &e->rotated,
                                     .kv = &e->kv,
                                     .out = data_of(out),
                                     .lse = &e->lse,
                                     .heads = p->heads,
                                     .stride = d->stride,
                                     .row0 = seq->first_row,
                                     .rows = seq->rows,
                                     .past = seq->past,
                                     .scale = p->scale};
        for (; l.first < tokens; l.first += l.tokens) {
            l.tokens = PL_MIN(e->chunk, tokens - l.first);
            PL_TRY(chunk(o, &s, &l));
        }
        seen += tokens;
    }
    o->attention_totals.rows += q->rows;
    o->attention_totals.tokens += seen;
    pl_ops_count_attention(o, pl_impl_name(PL_IMPL_EXPANDED), "", seen * pl_kv_token_bytes(&o->kv->shape));
    return PL_OK;
}

void dev_expand_deinit(struct dev_ops *d) {
    struct dev_expand *e = &d->expand;
    free_buffers(d);
    for (int i = 0; i < PL_EXPAND_COUNT; i++) pl_kernel_free(&d->ks, &e->kernels[i]);
    for (struct dev_format *f = d->formats; f != NULL; f = f->next) pl_kernel_free(&d->ks, &f->turn);
}
