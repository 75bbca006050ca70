#include "meter/outcome.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"

const char *pl_outcome_name(enum pl_outcome_kind k) {
    static const char *const names[PL_OUTCOME_KINDS] = {"chosen", "fallback", "declined"};
    return k < PL_OUTCOME_KINDS ? names[k] : "?";
}

void pl_outcomes_init(struct pl_outcomes *o) { *o = (struct pl_outcomes){0}; }
void pl_outcomes_deinit(struct pl_outcomes *o) {
    pl_free(o->rows);
    pl_outcomes_init(o);
}
void pl_outcomes_reset(struct pl_outcomes *o) {
    for (size_t i = 0; i < o->count; i++) o->rows[i].count = 0;
    memset(o->asked, 0, sizeof o->asked);
    memset(o->ended, 0, sizeof o->ended);
    o->lost = 0;
}

void pl_outcomes_ask(struct pl_outcomes *o, uint32_t subject, uint64_t n) {
    PL_ASSERT(subject < PL_OUTCOME_SUBJECTS);
    o->asked[subject] += n;
}

static bool same_text(const char *a, const char *b) { return a == b || strcmp(a, b) == 0; }
static bool same_row(const struct pl_outcome *a, const struct pl_outcome *b) {
    if (pl_fault("one-slot") && a->kind != PL_OUTCOME_CHOSEN && b->kind != PL_OUTCOME_CHOSEN) return true;
    return a->subject == b->subject && a->kind == b->kind && same_text(a->taken, b->taken) &&
           same_text(a->planned, b->planned) && same_text(a->reason, b->reason);
}

void pl_outcomes_end(struct pl_outcomes *o, const struct pl_outcome *how, uint64_t n) {
    PL_ASSERT(how->subject < PL_OUTCOME_SUBJECTS && how->kind < PL_OUTCOME_KINDS);
    o->ended[how->subject] += n;
    for (size_t i = 0; i < o->count; i++) {
        if (!same_row(&o->rows[i], how)) continue;
        o->rows[i].count += n;
        return;
    }
    if (pl_grow(&o->rows, &o->cap, o->count + 1, sizeof *o->rows) != PL_OK) {
        o->lost += n;
        return;
    }
    o->rows[o->count] = *how;
    o->rows[o->count++].count = n;
}

uint64_t pl_outcomes_open(const struct pl_outcomes *o, uint32_t subject) {
    PL_ASSERT(subject < PL_OUTCOME_SUBJECTS);
    return o->asked[subject] - o->ended[subject];
}

bool pl_outcomes_add_up(const struct pl_outcomes *o) {
    uint64_t total = 0, rows = o->lost;
    for (uint32_t s = 0; s < PL_OUTCOME_SUBJECTS; s++) {
        if (o->asked[s] != o->ended[s]) return false;
        total += o->ended[s];
    }
    for (size_t i = 0; i < o->count; i++) rows += o->rows[i].count;
    return total == rows;
}
