/* Mamba-2 layers of one row as one launch (cuda_layers.h). What a layer would launch, its first products, the recurrence,
 * its last product, is held back in this order, layer after layer. Whatever else is asked for has it launched first: as one
 * where it is whole layers, else one by one, as it would have been without. */
#include <string.h>

#include "base/mem.h"
#include "ops/device_ops.h"

static bool is_wanted(const struct dev_ops *d) {
    const struct pl_choice *c = &d->base.choice;
    if ((c->disabled[PL_OP_ssm_update] >> PL_IMPL_LAYERS & 1u) != 0 || (!c->layers && !PL_LAYERS_DEFAULT)) return false;
    return c->forced[PL_OP_ssm_update] == PL_IMPL_NONE && dev_chain_wanted(d);
}

enum pl_status dev_layers_begin(struct dev_ops *d, const struct pl_kv_store *kv) {
    struct dev_layers *h = &d->layers;
    h->at = DEV_LAYERS_NOTHING; /* of a step that failed half way */
    h->count = 0;
    if (h->layer != NULL || h->off || kv->shape.state_layers == 0 || !is_wanted(d)) return PL_OK;
    PL_TRY(pl_device_alloc(d->ks.device, PL_LAYERS_MAX * sizeof *h->uploaded, &h->table, &d->ks.err));
    PL_TRY(pl_device_alloc(d->ks.device, PL_CHAIN_MEET_BYTES, &h->meet, &d->ks.err));
    PL_TRY(pl_device_fill(d->ks.device, d->ks.stream, &h->meet, 0, &d->ks.err));
    h->uploaded = pl_calloc(2 * PL_LAYERS_MAX, sizeof *h->uploaded);
    h->layer = pl_alloc(PL_LAYERS_MAX, sizeof *h->layer);
    if (h->uploaded != NULL && h->layer != NULL) return PL_OK;
    dev_layers_deinit(d);
    return PL_NO_MEMORY;
}
void dev_layers_deinit(struct dev_ops *d) {
    struct dev_layers *h = &d->layers;
    pl_kernel_free(&d->ks, &h->k);
    pl_device_free(d->ks.device, &h->table);
    pl_device_free(d->ks.device, &h->meet);
    pl_free(h->layer);
    pl_free(h->uploaded);
    h->layer = NULL;
    h->uploaded = NULL;
}

/* --- what is held --- */

bool dev_layers_hold_norm(struct dev_ops *d, const struct dev_norm *n) {
    struct dev_layers *h = &d->layers;
    if (h->at == DEV_LAYERS_NOTHING || h->at == DEV_LAYERS_PRODUCTS) return false;
    const struct dev_held_layer *last = &h->layer[h->count - 1];
    const struct pl_device_buffer *x = &((const struct dev_activation *)n->x)->data;
    if (x != (h->at == DEV_LAYERS_SSM ? last->l.ssm.y : last->l.in.x)) return false;
    return dev_norm_waits(d, n);
}

bool dev_layers_hold_products(struct dev_ops *d, enum pl_op op, struct pl_stream_kind kind, const struct pl_launch_stream *l,
                              struct dev_format *f, uint64_t bytes) {
    struct dev_layers *h = &d->layers;
    if (h->layer == NULL || h->off || h->releasing || !kind.norm || kind.glu || d->base.batch->rows != 1) return false;
    if (h->at == DEV_LAYERS_SSM && op == PL_OP_linear_add && l->x == h->layer[h->count - 1].l.ssm.y) {
        struct dev_held_layer *last = &h->layer[h->count - 1];
        last->l.out = *l, last->formats[1] = f, last->bytes[1] = bytes;
        h->at = DEV_LAYERS_WHOLE;
        h->off = pl_layers_declines(&d->ks, &last->l, 1) != NULL;
        return true;
    }
    if (op != PL_OP_linear || l->count != 3 || h->count == PL_LAYERS_MAX) return false;
    if (h->at != DEV_LAYERS_NOTHING && (h->at != DEV_LAYERS_WHOLE || l->x != h->layer[0].l.in.x)) return false;
    h->layer[h->count] = (struct dev_held_layer){.l.in = *l, .formats = {f}, .bytes = {bytes}};
    h->count++;
    h->at = DEV_LAYERS_PRODUCTS;
    return true;
}

bool dev_layers_hold_ssm(struct dev_ops *d, const struct dev_step_launch *s) {
    struct dev_layers *h = &d->layers;
    if (h->at != DEV_LAYERS_PRODUCTS) return false;
    struct dev_held_layer *last = &h->layer[h->count - 1];
    if (s->ssm.seq_count != 1 || s->conv.x != last->l.in.y[1]) return false;
    last->l.conv = s->conv, last->l.ssm = s->ssm, last->l.kind = s->kind;
    last->state_bytes[0] = s->bytes[0], last->state_bytes[1] = s->bytes[1];
    h->at = DEV_LAYERS_SSM;
    return true;
}

/* --- launched --- */

static enum pl_status one_by_one(struct pl_ops *o, const struct dev_held_layer *l, enum dev_layers_at to) {
    const struct pl_stream_kind normed = {.norm = true};
    PL_TRY(dev_stream_launch(o, PL_OP_linear, normed, &l->l.in, l->formats[0], l->bytes[0]));
    const struct dev_step_launch step = {l->l.kind, l->l.conv, l->l.ssm, {l->state_bytes[0], l->state_bytes[1]}};
    if (to >= DEV_LAYERS_SSM) PL_TRY(dev_step_launch(o, &step));
    if (to < DEV_LAYERS_WHOLE) return PL_OK;
    return dev_stream_launch(o, PL_OP_linear_add, normed, &l->l.out, l->formats[1], l->bytes[1]);
}

static enum pl_status together(struct pl_ops *o, const struct pl_layer_launches *all, size_t count) {
    struct dev_ops *d = dev_of(o);
    struct dev_layers *h = &d->layers;
    uint64_t in = 0, out = 0, conv = 0, state = 0, (*table)[PL_LAYERS_WORDS] = h->uploaded + PL_LAYERS_MAX;
    enum pl_status st = h->k.jit != NULL ? PL_OK : pl_kernel_layers(&d->ks, all, &h->k, &d->ks.err);
    if (st != PL_OK) return dev_report(d, st);
    if (d->ks.planning) return PL_OK;
    pl_layers_fill(all, count, table);
    if (memcmp(table, h->uploaded, count * sizeof *table) != 0) {
        memcpy(h->uploaded, table, count * sizeof *table);
        st = pl_device_upload(d->ks.device, d->ks.stream, &h->table, 0, h->uploaded, count * sizeof *table, &d->ks.err);
        if (st == PL_OK) st = pl_device_stream_wait(d->ks.device, d->ks.stream, &d->ks.err); /* once */
        if (st != PL_OK) return dev_report(d, st);
    }
    st = pl_launch_layers(&d->ks, &h->k, all, count, &h->table, &h->meet);
    if (st != PL_OK) return dev_report(d, st);
    for (size_t i = 0; i < count; i++) {
        in += h->layer[i].bytes[0], out += h->layer[i].bytes[1];
        conv += h->layer[i].state_bytes[0], state += h->layer[i].state_bytes[1];
    }
    pl_ops_count(o, PL_OP_linear, h->k.name, 1, in); /* one launch, counted under all that it does */
    pl_ops_count(o, PL_OP_linear_add, h->k.name, 1, out);
    pl_ops_count(o, PL_OP_norm, h->k.name, 1, 0);
    pl_ops_count(o, PL_OP_causal_conv, h->k.name, 1, conv);
    pl_ops_count(o, PL_OP_ssm_update, h->k.name, 1, state);
    return PL_OK;
}

enum pl_status dev_layers_settle(struct pl_ops *o) {
    struct dev_ops *d = dev_of(o);
    struct dev_layers *h = &d->layers;
    enum dev_layers_at at = h->at;
    if (at == DEV_LAYERS_NOTHING) return PL_OK;
    struct dev_norm waits = d->norm_waits; /* of what comes next */
    size_t count = h->count, whole = at == DEV_LAYERS_WHOLE ? count : count - 1, done = 0;
    enum pl_status st = PL_OK;
    d->norm_waits = (struct dev_norm){0};
    h->at = DEV_LAYERS_NOTHING;
    h->count = 0;
    h->releasing = true;
    if (whole >= PL_LAYERS_LEAST && !h->off) {
        for (size_t i = 0; i < whole; i++) h->all[i] = h->layer[i].l;
        h->off = pl_layers_declines(&d->ks, h->all, whole) != NULL;
        if (!h->off) st = together(o, h->all, whole), done = whole;
    }
    for (size_t i = done; i < count && st == PL_OK; i++) st = one_by_one(o, &h->layer[i], i < whole ? DEV_LAYERS_WHOLE : at);
    h->releasing = false;
    d->norm_waits = waits;
    return st;
}
