/* Choosing tokens where the logits are. Choices stay on the device for the next step, and travel to the host behind it. */
#include <string.h>

#include "base/mem.h"
#include "ops/device_ops.h"

_Static_assert(PL_TOKEN_CHOSEN == PL_STEP_CHOSEN, "one mark for both sides");

static struct dev_ops *dev_of(struct pl_ops *o) { return (struct dev_ops *)o; }

void dev_choice_deinit(struct dev_ops *d) {
    struct pl_device *dev = d->ks.device;
    struct dev_choice *c = &d->choice;
    pl_device_free(dev, &c->tokens);
    for (size_t i = 0; i < PL_COUNT_OF(c->slots); i++) {
        pl_device_host_free(dev, c->slots[i].host);
        pl_device_event_destroy(dev, &c->slots[i].arrived);
    }
    pl_kernel_free(&d->ks, &c->pick);
    *c = (struct dev_choice){0};
}

/* Room for as many rows as any activation has: launches that were collected keep the address. */
enum pl_status dev_choice_begin(struct dev_ops *d) {
    struct dev_choice *c = &d->choice;
    struct pl_device *dev = d->ks.device;
    if (c->rows_max >= d->stride) return PL_OK;
    PL_TRY(pl_device_stream_wait(dev, d->ks.stream, &d->ks.err));
    pl_device_free(dev, &c->tokens);
    c->rows_max = 0;
    PL_TRY(pl_device_alloc(dev, d->stride * sizeof(uint32_t), &c->tokens, &d->ks.err));
    for (size_t i = 0; i < PL_COUNT_OF(c->slots); i++) {
        struct dev_choice_slot *s = &c->slots[i];
        pl_device_host_free(dev, s->host);
        s->host = NULL;
        PL_TRY(pl_device_host_alloc(dev, d->stride * sizeof(uint32_t), (void **)&s->host, &d->ks.err));
        if (s->arrived.handle == NULL) PL_TRY(pl_device_event_create(dev, &s->arrived, &d->ks.err));
    }
    c->rows_max = d->stride;
    return PL_OK;
}

static enum pl_status send(struct dev_ops *d, uint32_t slot, size_t rows) {
    struct dev_choice_slot *s = &d->choice.slots[slot];
    s->rows = rows;
    PL_TRY(
        pl_device_download(d->ks.device, d->ks.stream, s->host, &d->choice.tokens, 0, rows * sizeof(uint32_t), &d->ks.err));
    return pl_device_event_record(d->ks.device, &s->arrived, d->ks.stream, &d->ks.err);
}

enum pl_status dev_argmax(struct pl_ops *o, const struct pl_activation *x, size_t rows, uint32_t slot) {
    struct dev_ops *d = dev_of(o);
    struct dev_choice *c = &d->choice;
    enum pl_status st = c->pick.jit != NULL ? PL_OK : pl_kernel_pick(&d->ks, &c->pick, &d->ks.err);
    if (st == PL_OK) st = pl_kernels_record_end(&d->ks);
    if (st == PL_OK)
        st = pl_launch_pick(&d->ks, &c->pick, &((const struct dev_activation *)x)->data, &c->tokens, rows, x->cols);
    if (st == PL_OK && !d->ks.planning) st = send(d, slot, rows);
    return dev_done(o, PL_OP_argmax, &c->pick, rows * x->cols * sizeof(float), st);
}

enum pl_status dev_chosen(struct pl_ops *o, uint32_t slot, uint32_t *ids, size_t rows) {
    struct dev_ops *d = dev_of(o);
    struct dev_choice_slot *s = &d->choice.slots[slot];
    PL_ASSERT(rows <= s->rows);
    enum pl_status st = pl_device_event_wait(d->ks.device, &s->arrived, &d->ks.err);
    if (st == PL_OK) memcpy(ids, s->host, rows * sizeof *ids);
    return dev_report(d, st);
}
