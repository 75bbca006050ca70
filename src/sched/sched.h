/* sched - continuous batching as a deterministic state machine on virtual time. Touches no device, no clock, no text.
 *
 * A request is a number of known tokens (prompt, then what it generated) of which the first `computed` have their keys
 * and values in pages. A step computes some tokens of some requests; a request whose last known token is computed in
 * the step gets logits, one new token, and is extended by it. Prefill, decode and recompute after preemption are this
 * one rule with different counts.
 *
 * Promises
 *  1. Equal calls give equal plans: order is total (priority, then arrival number), nothing reads a clock.
 *  2. A step computes at most step_tokens tokens, at most prefill_tokens of them for requests that are behind by more
 *     than one token, so running requests never wait longer than one such step for their next token.
 *  3. No starvation: the first waiting request of a group is never overtaken within its priority; of several groups the one
 *     with the fewest running requests comes first; every submitted request fits the
 *     pool alone (checked at submit), and the oldest one may take pages from all others.
 *  4. Pages: a running request owns the pages of its planned tokens, of windowed ones those that a later token sees; a
 *     finished, failed or cancelled one owns none.
 *  5. A preempted request loses its pages, not its tokens: it is computed again.
 *
 * One thread owns it (the engine's). Time is a number the caller passes in; units are the caller's. */
#ifndef PL_SCHED_SCHED_H
#define PL_SCHED_SCHED_H

#include <stdint.h>

#include "base/status.h"
#include "kv/tables.h"

struct pl_sched_config {
    uint32_t max_running;    /* slots: requests that may own pages */
    uint32_t step_tokens;    /* rows of one step; >= max_running + 1 */
    uint32_t prefill_tokens; /* of them for requests behind; >= 1 */
    uint32_t max_waiting;    /* beside those that the slots hold or will; more are refused with PL_BUSY */
    uint32_t reserve_pages;  /* kept free at admission, so that running requests can grow before they preempt */
    uint32_t score_tokens;   /* of prefill_tokens for requests that want the logits of every row (0: there are none) */
};

/* Pages that outlive their requests (a prefix tree), behind four calls so that the scheduler stays free of token ids.
 * All NULL: no cache. */
struct pl_sched_cache {
    void *user;
    /* A request is admitted: fill its empty tables with pages already computed; returns the tokens they hold (less than
     * what the request knows). */
    uint32_t (*adopt)(void *user, uint64_t id, struct pl_block_tables *tables);
    /* A request is about to give its pages back: keep what is worth keeping of the first `computed` tokens. */
    void (*retire)(void *user, uint64_t id, const struct pl_block_tables *tables, uint32_t computed);
    /* Tokens [first, computed) of a request were computed, and windowed pages before them are about to be given back: keep
     * what is worth keeping. NULL: nothing is. */
    void (*pass)(void *user, uint64_t id, const struct pl_block_tables *tables, uint32_t first, uint32_t computed);
    /* Of one group: free that many pages if possible, returns how many; pages that could be freed now; references that the
     * cache holds, for the checker. */
    uint32_t (*reclaim)(void *user, enum pl_page_group group, uint32_t pages);
    uint32_t (*reclaimable)(void *user, enum pl_page_group group);
    uint32_t (*held)(void *user, enum pl_page_group group);
    /* How many of the next `count` tokens after the first `computed` a step may compute, at least 1. NULL: all. */
    uint32_t (*most)(void *user, uint64_t id, uint32_t computed, uint32_t count);
};

enum pl_sched_phase { PL_REQ_DONE, PL_REQ_WAITING, PL_REQ_RUNNING };

struct pl_sched_request {
    uint64_t id;      /* the caller's */
    uint64_t arrival; /* number of its submit call: total order */
    int32_t priority; /* higher first */
    enum pl_sched_phase phase;
    uint32_t group;    /* who asks (an API key); 0 by default */
    uint32_t known;    /* tokens that exist */
    uint32_t computed; /* of them in pages */
    uint32_t prompt;
    uint32_t adopted; /* tokens taken from the cache at its last admission */
    uint32_t limit;   /* known never passes it: prompt + most new tokens */
    uint32_t preemptions;
    bool cancelled, scored;                          /* scored: see pl_sched_mark_scored */
    uint64_t submitted_at, first_token_at, ended_at; /* 0: not yet */
    struct pl_block_tables tables;
};

/* One request's part of a step: tokens [first, first + count) at rows [row, row + count). */
struct pl_sched_item {
    uint32_t slot; /* index for pl_sched_slot */
    uint32_t first, count, row;
    bool wants_token; /* its last known token is in the step: sample one */
};
struct pl_sched_plan {
    struct pl_sched_item *items; /* owned by the scheduler, valid until the next plan */
    uint32_t item_count, rows;
    struct pl_page_copy *copies; /* to make before the step (shared last pages that get written) */
    uint32_t copy_count;
    uint64_t epoch; /* changes whenever a block table changed other than by growing */
};

struct pl_sched_stats {
    uint64_t submitted, refused, finished, cancelled, preempted, steps, tokens_computed, tokens_generated;
};

struct pl_sched;

/* The pools are borrowed and must outlive the scheduler; the windowed one holds at least what one sequence needs of it while
 * a step is its alone. cache may be NULL. */
enum pl_status pl_sched_create(const struct pl_sched_config *c, const struct pl_page_pools *pools,
                               const struct pl_sched_cache *cache, struct pl_sched **out, struct pl_err *err) PL_MUST_CHECK;
void pl_sched_destroy(struct pl_sched *s); /* gives all pages back */

/* PL_LIMIT: can never fit; PL_BUSY: the queue is full; PL_INVALID: no tokens, or nothing to generate. */
enum pl_status pl_sched_submit(struct pl_sched *s, uint64_t id, uint32_t prompt_tokens, uint32_t new_tokens_max,
                               int32_t priority, uint64_t now, struct pl_err *err) PL_MUST_CHECK;
/* The request just submitted wants the logits of all its rows: it is computed in chunks that share score_tokens rows of a
 * step with others of its kind. */
void pl_sched_mark_scored(struct pl_sched *s, uint64_t id);
/* The request just submitted belongs to a group other than 0. */
void pl_sched_set_group(struct pl_sched *s, uint64_t id, uint32_t group);
/* Steps that also decode have at most this many rows in all, but at least one for prefill (and at most prefill_tokens of
 * them, which is the default): it bounds how long running requests wait for their next token. */
void pl_sched_limit_mixed(struct pl_sched *s, uint32_t rows);
/* In any phase, between plan and commit too: its pages are free when the call returns, its item is then ignored. */
bool pl_sched_cancel(struct pl_sched *s, uint64_t id, uint64_t now);

/* A request whose last token, told by an earlier commit, turned out to be its end: as if that commit had said so. Between
 * plan and commit too: its item is then ignored. */
bool pl_sched_finish(struct pl_sched *s, uint64_t id, uint64_t now);

/* The next step; item_count 0 means there is nothing to do. Must be followed by commit before the next plan. */
void pl_sched_plan(struct pl_sched *s, struct pl_sched_plan *out);
/* The step ran, or was launched: which token it gave need not be known yet. ends[i] tells that item i's new token ended its
 * request (ignored without wants_token). Requests that reached their limit end by themselves. */
void pl_sched_commit(struct pl_sched *s, const struct pl_sched_plan *plan, const bool *ends, uint64_t now);

const struct pl_sched_request *pl_sched_slot(const struct pl_sched *s, uint32_t slot);
uint32_t pl_sched_running(const struct pl_sched *s);
uint32_t pl_sched_waiting(const struct pl_sched *s);
struct pl_sched_stats pl_sched_stats(const struct pl_sched *s);
/* Requests that ended and were not reported yet, oldest first. False: there is none. */
bool pl_sched_pop_ended(struct pl_sched *s, struct pl_sched_request *out);
/* Full consistency check, for tests: NULL, or what is wrong. */
const char *pl_sched_check(const struct pl_sched *s);

#endif
