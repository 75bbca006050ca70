/* Choosing tokens where the logits are. Choices stay on the device for the next step, and travel to the host behind it. */
#include <string.h>

#include "base/mem.h"
#include "ops/device_ops.h"

_Static_assert(PL_TOKEN_CHOSEN == PL_STEP_CHOSEN, "one mark for both sides");

void dev_choice_deinit(struct dev_ops *d) {
    struct pl_device *dev = d->ks.device;
    struct dev_choice *c = &d->choice;
    pl_device_free(dev, &c->tokens);
    pl_device_free(dev, &c->draws);
    pl_draw_release(&d->ks, &c->room);
    pl_device_free(dev, &c->parts);
    for (size_t i = 0; i < PL_COUNT_OF(c->slots); i++) {
        pl_device_host_free(dev, c->slots[i].host);
        pl_device_host_free(dev, c->slots[i].draws);
        pl_device_event_destroy(dev, &c->slots[i].arrived);
    }
    pl_kernel_free(&d->ks, &c->draw.scan);
    pl_kernel_free(&d->ks, &c->draw.weigh);
    pl_kernel_free(&d->ks, &c->draw.gather);
    pl_kernel_free(&d->ks, &c->draw.choose);
    for (int i = 0; i < PL_PICK_COUNT; i++) pl_kernel_free(&d->ks, &c->pick[i]);
    *c = (struct dev_choice){0};
}

static enum pl_status make_slot(struct dev_ops *d, struct dev_choice_slot *s) {
    struct pl_device *dev = d->ks.device;
    pl_device_host_free(dev, s->host);
    pl_device_host_free(dev, s->draws);
    s->host = NULL;
    s->draws = NULL;
    s->rows = 0;
    PL_TRY(pl_device_host_alloc(dev, 2 * d->stride * sizeof *s->host, (void **)&s->host, &d->ks.err));
    PL_TRY(pl_device_host_alloc(dev, d->stride * sizeof *s->draws, (void **)&s->draws, &d->ks.err));
    return s->arrived.handle != NULL ? PL_OK : pl_device_event_create(dev, &s->arrived, &d->ks.err);
}

/* Room for as many rows as any activation has: launches that were collected keep the address. */
enum pl_status dev_choice_begin(struct dev_ops *d) {
    struct dev_choice *c = &d->choice;
    struct pl_device *dev = d->ks.device;
    if (c->rows_max >= d->stride) return PL_OK;
    PL_TRY(pl_device_stream_wait(dev, d->ks.stream, &d->ks.err));
    pl_device_free(dev, &c->tokens);
    pl_device_free(dev, &c->draws);
    c->rows_max = 0;
    if (c->parts.handle == NULL) {
        uint64_t bytes = PL_PICK_ROWS_FEW * PL_PICK_SLICES * 2 * sizeof(uint32_t);
        PL_TRY(pl_device_alloc(dev, bytes, &c->parts, &d->ks.err));
    }
    PL_TRY(pl_device_alloc(dev, 2 * d->stride * sizeof(uint32_t), &c->tokens, &d->ks.err));
    PL_TRY(pl_device_alloc(dev, d->stride * sizeof(struct pl_args_draw), &c->draws, &d->ks.err));
    for (size_t i = 0; i < PL_COUNT_OF(c->slots); i++) PL_TRY(make_slot(d, &c->slots[i]));
    c->rows_max = d->stride;
    return PL_OK;
}

static enum pl_status send(struct dev_ops *d, uint32_t slot, size_t rows, bool drawn) {
    struct dev_choice_slot *s = &d->choice.slots[slot];
    uint64_t bytes = (drawn ? 2 : 1) * rows * sizeof *s->host;
    s->rows = rows;
    s->drawn = drawn;
    PL_TRY(pl_device_download(d->ks.device, d->ks.stream, s->host, &d->choice.tokens, 0, bytes, &d->ks.err));
    return pl_device_event_record(d->ks.device, &s->arrived, d->ks.stream, &d->ks.err);
}

enum pl_status dev_argmax(struct pl_ops *o, const struct pl_activation *x, size_t rows, uint32_t slot) {
    struct dev_ops *d = dev_of(o);
    struct dev_choice *c = &d->choice;
    const struct pl_device_buffer *from = &((const struct dev_activation *)x)->data;
    bool few = rows <= PL_PICK_ROWS_FEW && d->ks.norm >= PL_PICK_SLICES && !pl_device_info(d->ks.device)->is_cpu;
    struct pl_kernel *last = &c->pick[few ? PL_PICK_JOIN : PL_PICK_ROWS], *part = &c->pick[PL_PICK_PART];
    enum pl_status st = dev_settle(o);
    for (int i = 0; st == PL_OK && i < PL_PICK_COUNT; i++) { /* other steps have other numbers of rows */
        if (c->pick[i].jit == NULL) st = pl_kernel_pick(&d->ks, (enum pl_picking)i, &c->pick[i], &d->ks.err);
    }
    if (st == PL_OK) st = pl_kernels_record_end(&d->ks);
    if (st == PL_OK && few) {
        st = pl_launch_pick(&d->ks, PL_PICK_PART, part, from, &c->parts, rows, x->cols);
        if (st == PL_OK) pl_ops_count(o, PL_OP_argmax, part->name, 1, rows * x->cols * sizeof(float));
        from = &c->parts;
    }
    if (st == PL_OK) st = pl_launch_pick(&d->ks, few ? PL_PICK_JOIN : PL_PICK_ROWS, last, from, &c->tokens, rows, x->cols);
    if (st == PL_OK && !d->ks.planning) st = send(d, slot, rows, false);
    return dev_done(o, PL_OP_argmax, last, few ? 0 : rows * x->cols * sizeof(float), st);
}

static enum pl_status send_draws(struct dev_ops *d, const struct pl_draw *draws, size_t rows, size_t vocab, uint32_t slot) {
    struct dev_choice_slot *s = &d->choice.slots[slot];
    /* What was sent from here two choices ago has arrived when that choice was read; it may not have been. */
    if (s->rows > 0) PL_TRY(pl_device_event_wait(d->ks.device, &s->arrived, &d->ks.err));
    for (size_t i = 0; i < rows; i++) s->draws[i] = pl_draw_args(&draws[i], (uint32_t)vocab);
    return pl_device_upload(d->ks.device, d->ks.stream, &d->choice.draws, 0, s->draws, rows * sizeof *s->draws, &d->ks.err);
}

enum pl_status dev_draw(struct pl_ops *o, const struct pl_activation *x, size_t rows, const struct pl_draw *draws,
                        uint32_t slot) {
    struct dev_ops *d = dev_of(o);
    struct dev_choice *c = &d->choice;
    uint64_t bytes = rows * x->cols * sizeof(float); /* of one reading */
    struct pl_draw_ways ways = pl_draw_ways_of(draws, rows);
    enum pl_status st = dev_settle(o);
    if (st == PL_OK && c->draw.choose.jit == NULL) st = pl_kernel_draw(&d->ks, PL_F32, &c->draw, &d->ks.err);
    if (st == PL_OK) st = pl_kernels_record_end(&d->ks);
    if (st == PL_OK && d->ks.planning) return PL_OK;
    if (st == PL_OK) st = pl_draw_reserve(&d->ks, &c->room, x->rows_max);
    if (st == PL_OK) st = send_draws(d, draws, rows, x->cols, slot);
    if (st == PL_OK)
        st = pl_launch_draw(&d->ks, &c->draw, &c->room, &((const struct dev_activation *)x)->data, &c->draws, &c->tokens,
                            rows, x->cols, ways, PL_DRAW_LIST);
    if (st == PL_OK) st = send(d, slot, rows, true);
    if (st != PL_OK) return dev_report(d, st);
    if (ways.climbs) pl_ops_count(o, PL_OP_draw, c->draw.climb.name, 1, bytes);
    if (ways.weighs) pl_ops_count(o, PL_OP_draw, c->draw.weigh.name, 1, bytes);
    if (ways.lists) pl_ops_count(o, PL_OP_draw, c->draw.scan.name, 1, bytes);
    if (ways.lists) pl_ops_count(o, PL_OP_draw, c->draw.gather.name, 1, bytes);
    return dev_done(o, PL_OP_draw, &c->draw.choose, 0, PL_OK);
}

enum pl_status dev_chosen(struct pl_ops *o, uint32_t slot, uint32_t *ids, size_t rows) {
    struct dev_ops *d = dev_of(o);
    struct dev_choice_slot *s = &d->choice.slots[slot];
    PL_ASSERT(rows <= s->rows);
    enum pl_status st = pl_device_event_wait(d->ks.device, &s->arrived, &d->ks.err);
    if (st == PL_OK) memcpy(ids, s->host, rows * sizeof *ids);
    for (size_t i = 0; st == PL_OK && s->drawn && i < rows; i++) o->unconverged += s->host[s->rows + i];
    return dev_report(d, st);
}
