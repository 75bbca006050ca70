/* outcome - decisions, each ending in exactly one counted outcome with a reason.
 *
 * A subject (an operation) is asked, and every question ends once: chosen (what the plan says runs), fallback (another
 * implementation runs, and why) or declined (nothing runs, and why). One row per (subject, outcome, taken, planned, reason),
 * so a second reason never hides behind the first. asked and ended are counted apart from the rows: a caller can prove that
 * they add up. Texts are not copied: they must outlive the table. One thread. */
#ifndef PL_METER_OUTCOME_H
#define PL_METER_OUTCOME_H

#include <stdint.h>

#include "base/status.h"

enum { PL_OUTCOME_SUBJECTS = 64 };
enum pl_outcome_kind { PL_OUTCOME_CHOSEN, PL_OUTCOME_FALLBACK, PL_OUTCOME_DECLINED, PL_OUTCOME_KINDS };
const char *pl_outcome_name(enum pl_outcome_kind k); /* "chosen", "fallback", "declined" */

struct pl_outcome {
    uint32_t subject;
    enum pl_outcome_kind kind;
    const char *taken, *planned, *reason; /* taken "" when declined, reason "" when chosen */
    uint64_t count;
};
struct pl_outcomes {
    struct pl_outcome *rows;
    size_t count, cap;
    uint64_t asked[PL_OUTCOME_SUBJECTS], ended[PL_OUTCOME_SUBJECTS];
    uint64_t lost; /* ended without a row: memory was short */
};

void pl_outcomes_init(struct pl_outcomes *o);
void pl_outcomes_deinit(struct pl_outcomes *o);
void pl_outcomes_reset(struct pl_outcomes *o); /* counts to zero; rows stay */
void pl_outcomes_ask(struct pl_outcomes *o, uint32_t subject, uint64_t n);
void pl_outcomes_end(struct pl_outcomes *o, const struct pl_outcome *how, uint64_t n);
/* Questions of a subject that have not ended yet. */
uint64_t pl_outcomes_open(const struct pl_outcomes *o, uint32_t subject);
/* Everything asked has ended, and the rows sum up to it. */
bool pl_outcomes_add_up(const struct pl_outcomes *o);

#endif
