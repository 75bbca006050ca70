/* fake_device - the CPU backend as if it were a device: it chooses tokens itself, late, and hands them on only when asked.
 *
 * What it chooses is a function of the logits alone: usually the largest, sometimes the token that ends the text. The next
 * step may name a choice instead of a token (PL_TOKEN_CHOSEN); it is looked up when that step begins. Calls can be made to
 * fail. One engine at a time. */
#ifndef FAKE_DEVICE_H
#define FAKE_DEVICE_H

#include <stdlib.h>

#include "engine/engine.h"
#include "ops/impl.h"

enum { FAKE_ROWS = 64 };
static struct fake {
    struct pl_ops_impl impl;
    const struct pl_ops_impl *real;
    uint32_t last[FAKE_ROWS], slots[2][FAKE_ROWS];
    uint32_t end_token;                      /* 0: never chosen */
    uint64_t chooses, reads, calls, fail_at; /* the n-th choose or chosen call fails */
    uint32_t unread, unread_max;             /* choices made and not read */
    bool worsen;                             /* planted fault: a choice that is named is taken from the wrong row */
} fake;

static enum pl_status fake_call(void) { return ++fake.calls == fake.fail_at ? PL_DEVICE : PL_OK; }

static void fake_keep(uint32_t slot, size_t row, uint32_t id) {
    fake.slots[slot][row] = fake.last[row] = fake.end_token != 0 && id % 29 == 5 ? fake.end_token : id;
}

static uint32_t fake_draw_one(float *row, size_t cols, const struct pl_draw *d) {
    struct pl_sampling s;
    struct pl_sampler *sampler = NULL;
    struct pl_err err = {0};
    uint32_t id = (uint32_t)PL_OPS_PICK_NONE;
    pl_sampling_default(&s);
    s.temperature = d->temperature, s.top_k = d->top_k, s.top_p = d->top_p, s.min_p = d->min_p, s.seed = d->seed;
    if (d->temperature == 0) s.top_p = 1;
    assert_int_equal(pl_sampler_create(&s, (uint32_t)cols, &sampler, &err), PL_OK);
    if (pl_sampler_draw(sampler, row, d->position, &id) != PL_OK) id = (uint32_t)PL_OPS_PICK_BROKEN;
    pl_sampler_destroy(sampler);
    return id;
}

/* draws NULL: the largest of each row. */
static enum pl_status fake_draw(struct pl_ops *o, const struct pl_activation *x, size_t rows, const struct pl_draw *draws,
                                uint32_t slot) {
    PL_TRY(fake_call());
    const struct pl_draw largest = {0};
    float *logits = malloc(rows * x->cols * sizeof *logits);
    enum pl_status st = fake.real->activation_read(o, x, 0, rows, logits);
    for (size_t r = 0; st == PL_OK && r < rows; r++)
        fake_keep(slot, r, fake_draw_one(logits + r * x->cols, x->cols, draws != NULL ? &draws[r] : &largest));
    free(logits);
    fake.chooses++;
    fake.unread++;
    fake.unread_max = PL_MAX(fake.unread_max, fake.unread);
    return st;
}
static enum pl_status fake_argmax(struct pl_ops *o, const struct pl_activation *x, size_t rows, uint32_t slot) {
    return fake_draw(o, x, rows, NULL, slot);
}

static enum pl_status fake_chosen(struct pl_ops *o, uint32_t slot, uint32_t *ids, size_t rows) {
    (void)o;
    PL_TRY(fake_call());
    for (size_t r = 0; r < rows; r++) ids[r] = fake.slots[slot][r];
    fake.reads++;
    fake.unread--;
    return PL_OK;
}

static enum pl_status fake_begin(struct pl_ops *o, const struct pl_batch *b, struct pl_kv_store *kv) {
    uint32_t *tokens = (uint32_t *)(uintptr_t)b->tokens;
    for (uint32_t i = 0; i < b->rows; i++)
        if ((tokens[i] & PL_TOKEN_CHOSEN) != 0)
            tokens[i] = fake.last[((tokens[i] & ~PL_TOKEN_CHOSEN) + fake.worsen) % FAKE_ROWS];
    return fake.real->begin(o, b, kv);
}

static inline void fake_install(struct plumb_engine *e, uint32_t end_token) {
    fake = (struct fake){.real = e->ops->impl, .impl = *e->ops->impl, .end_token = end_token};
    fake.impl.argmax = fake_argmax;
    fake.impl.draw = fake_draw;
    fake.impl.chosen = fake_chosen;
    fake.impl.begin = fake_begin;
    e->ops->impl = &fake.impl;
}

#endif
