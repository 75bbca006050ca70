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

static enum pl_status fake_argmax(struct pl_ops *o, const struct pl_activation *x, size_t rows, uint32_t slot) {
    PL_TRY(fake_call());
    float *logits = malloc(rows * x->cols * sizeof *logits);
    enum pl_status st = fake.real->activation_read(o, x, 0, rows, logits);
    for (size_t r = 0; st == PL_OK && r < rows; r++) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < x->cols; i++)
            if (logits[r * x->cols + i] > logits[r * x->cols + best]) best = i;
        fake.slots[slot][r] = fake.last[r] = fake.end_token != 0 && best % 29 == 5 ? fake.end_token : best;
    }
    free(logits);
    fake.chooses++;
    fake.unread++;
    fake.unread_max = PL_MAX(fake.unread_max, fake.unread);
    return st;
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
    fake.impl.chosen = fake_chosen;
    fake.impl.begin = fake_begin;
    e->ops->impl = &fake.impl;
}

#endif
