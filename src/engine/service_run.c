/* service_run.c - the engine thread: plan, run, sample, commit, hand over. */
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/service_internal.h"

static struct request *item_request(struct pl_service *s, const struct pl_sched_item *it) {
    uint64_t number = pl_sched_slot(s->sched, it->slot)->id;
    return s->table[number % s->table_cap];
}

/* Of its part's rows the last one's logits when it gets a token; all of those whose next token is one of the prompt's when
 * those are scored (a row that was computed again after a preemption was scored already). */
static uint32_t first_logit(const struct request *r, const struct pl_sched_item *it) {
    uint32_t last = it->wants_token ? it->count - 1 : it->count;
    if (!r->score_prompt || r->scored == r->prompt) return last;
    return r->scored - 1 > it->first ? PL_MIN(r->scored - 1 - it->first, last) : 0;
}

/* The plan as the model's batch: rows, block tables one after the other, rows whose logits are wanted. Under lock. */
static void build_batch(struct pl_service *s, const struct pl_sched_plan *p, struct pl_batch *b) {
    uint32_t page_first = 0, logits = 0;
    for (uint32_t i = 0; i < p->item_count; i++) {
        const struct pl_sched_item *it = &p->items[i];
        const struct pl_sched_request *q = pl_sched_slot(s->sched, it->slot);
        struct request *r = item_request(s, it);
        s->item_request[i] = r;
        if (r->admitted_ns == 0) r->admitted_ns = pl_clock_ns();
        memcpy(s->batch_tokens + it->row, r->tokens + it->first, it->count * sizeof *s->batch_tokens);
        s->batch_seqs[i] =
            (struct pl_batch_seq){.first_row = it->row, .rows = it->count, .past = it->first, .page_first = page_first};
        uint32_t tokens = it->first + it->count, size = s->engine->pages.page_tokens,
                 pages = tokens / size + (tokens % size != 0);
        memcpy(s->batch_pages + page_first, q->table.pages, pages * sizeof *s->batch_pages);
        page_first += pages;
        s->engine->step.who[i] = (struct pl_epoch_part){r->number, it->count};
        s->item_logit[i] = logits;
        for (uint32_t k = first_logit(r, it); k < it->count; k++) {
            s->row_item[logits] = i;
            s->batch_logit_rows[logits++] = it->row + k;
        }
    }
    s->item_logit[p->item_count] = logits;
    *b = (struct pl_batch){.rows = p->rows,
                           .tokens = s->batch_tokens,
                           .seq_count = p->item_count,
                           .seqs = s->batch_seqs,
                           .pages = s->batch_pages,
                           .page_entries = page_first,
                           .logit_count = logits,
                           .logit_rows = s->batch_logit_rows,
                           .epoch = pl_engine_epoch(s->engine, s->engine->step.who, p->item_count)};
}

/* Is row `row` the one an item's new token comes from? Otherwise it tells of a prompt token. */
static bool row_is_new(const struct pl_service *s, const struct pl_sched_plan *p, size_t row) {
    uint32_t i = s->row_item[row];
    return p->items[i].wants_token && row + 1 == s->item_logit[i + 1];
}

static bool needs_copy(const struct request *r) { return r->want_logprobs || r->constraint != NULL; }

/* Whether every row of the step is wanted for its largest logit alone. Under no lock: all of it is the engine thread's. */
static bool can_pick(const struct pl_service *s, const struct pl_sched_plan *p, const struct pl_batch *b) {
    if (!pl_engine_picks(s->engine)) return false;
    for (uint32_t row = 0; row < b->logit_count; row++) {
        const struct request *r = s->item_request[s->row_item[row]];
        if (!row_is_new(s, p, row) || r->no_answer || needs_copy(r) || !pl_sampler_is_greedy(r->sampler)) return false;
    }
    return true;
}

static enum pl_status run_model(struct pl_service *s, const struct pl_sched_plan *p, const struct pl_batch *b) {
    struct plumb_engine *e = s->engine;
    const struct pl_activation *logits = NULL;
    for (uint32_t i = 0; i < p->copy_count; i++)
        PL_TRY(pl_ops_kv_copy_page(e->ops, e->kv, p->copies[i].from, p->copies[i].to));
    PL_TRY(pl_model_forward(e->model, b, e->kv, &logits));
    if (b->logit_count == 0) return PL_OK;
    s->picked = can_pick(s, p, b);
    if (s->picked) return pl_ops_argmax(e->ops, logits, b->logit_count, s->picks);
    return pl_ops_activation_read(e->ops, logits, 0, b->logit_count, s->logits);
}

static void read_logprobs(const struct request *r, const float *logits, uint32_t vocab, struct draw *d) {
    d->logprob = pl_logprob(logits, vocab, d->id);
    if (r->top_logprobs == 0) return;
    d->top = pl_calloc(1, sizeof *d->top); /* none: the token goes out without alternatives */
    if (d->top != NULL)
        d->top->count = (uint32_t)pl_top_logprobs(logits, vocab, r->top_logprobs, d->top->ids, d->top->logprobs);
}

/* What the noise and the sampler choose among all tokens is, when it is allowed, what they would choose among the allowed
 * ones, so the mask is only made when it is not. copy holds the model's own logits. */
static enum pl_status draw_constrained(struct request *r, float *logits, const float *copy, uint32_t vocab, uint32_t *id) {
    bool allowed = false;
    PL_TRY(pl_sampler_draw(r->sampler, logits, r->known, id));
    PL_TRY(pl_constraint_allows(r->constraint, *id, &allowed));
    if (!allowed) {
        memcpy(logits, copy, vocab * sizeof *logits);
        PL_TRY(pl_constraint_mask(r->constraint, logits, vocab));
        PL_TRY(pl_sampler_draw(r->sampler, logits, r->known, id));
    }
    return pl_constraint_accept(r->constraint, *id);
}

static struct draw finish_draw(const struct pl_service *s, struct request *r, enum pl_status st, uint32_t id) {
    struct draw d = {.id = id};
    if (st != PL_OK) {
        const char *why = st == PL_NO_MEMORY      ? "no memory for the choice"
                          : st == PL_LIMIT        ? "the grammar allows too many ways at once"
                          : r->constraint != NULL ? "the grammar allows none of the model's tokens"
                                                  : "the model gave no usable logits";
        (void)pl_err_set(&r->err, __FILE__, __LINE__, st, "%s at token %u", why, r->known);
        return d;
    }
    d.ok = true;
    bool may_end = !r->ignore_eos || r->constraint != NULL; /* where a grammar ends nothing else can follow */
    d.is_end = may_end && s->engine->tok != NULL && pl_tokenizer_is_eog(s->engine->tok, d.id);
    return d;
}

static struct draw draw_picked(const struct pl_service *s, struct request *r, uint32_t id) {
    enum pl_status st = id == (uint32_t)PL_OPS_PICK_NONE     ? PL_INVALID
                        : id == (uint32_t)PL_OPS_PICK_BROKEN ? PL_DEVICE
                                                             : PL_OK;
    return finish_draw(s, r, st, id);
}

/* Log-probabilities are of the model's own distribution, so they are read before the sampler changes the logits; which
 * token they are of is known only after it. Hence the copy, and only for requests that ask. */
static struct draw draw_one(struct pl_service *s, struct request *r, float *logits, float *copy) {
    uint32_t vocab = s->engine->config.vocab;
    struct draw d = {0};
    if (needs_copy(r) && copy != NULL) memcpy(copy, logits, vocab * sizeof *logits);
    enum pl_status st = PL_NO_MEMORY;
    if (r->constraint == NULL)
        st = pl_sampler_draw(r->sampler, logits, r->known, &d.id);
    else if (copy != NULL)
        st = draw_constrained(r, logits, copy, vocab, &d.id);
    d = finish_draw(s, r, st, d.id);
    if (!d.ok) return d;
    if (r->want_logprobs && copy != NULL) read_logprobs(r, copy, vocab, &d);
    return d;
}

struct sampling {
    struct pl_service *s;
    const struct pl_sched_plan *plan;
};

static void score_row(struct pl_service *s, const struct pl_sched_plan *p, size_t row) {
    uint32_t i = s->row_item[row], vocab = s->engine->config.vocab;
    const struct request *r = s->item_request[i];
    uint32_t next = p->items[i].first + (s->batch_logit_rows[row] - p->items[i].row) + 1;
    struct draw *d = &s->drawn[row];
    *d = (struct draw){.id = r->tokens[next], .ok = true, .is_prompt = true};
    read_logprobs(r, s->logits + row * vocab, vocab, d);
}

static void sample_row(void *arg, size_t row) {
    const struct sampling *a = arg;
    struct pl_service *s = a->s;
    struct request *r = s->item_request[s->row_item[row]];
    if (!row_is_new(s, a->plan, row))
        score_row(s, a->plan, row);
    else if (s->picked)
        s->drawn[row] = draw_picked(s, r, s->picks[row]);
    else if (!r->no_answer && !needs_copy(r))
        s->drawn[row] = draw_one(s, r, s->logits + row * s->engine->config.vocab, NULL);
}

/* Requests share nothing but the tokenizer, which is only read, so they are drawn on the backend's threads; those that
 * want log-probabilities or are constrained share `copy` and come one after the other. */
static void sample_all(struct pl_service *s, const struct pl_sched_plan *p, float *copy) {
    struct sampling a = {s, p};
    size_t vocab = s->engine->config.vocab, rows = s->item_logit[p->item_count];
    for (size_t row = 0; row < rows; row++) s->drawn[row] = (struct draw){0};
    pl_ops_share(s->engine->ops, rows, sample_row, &a);
    for (size_t row = 0; row < rows; row++) {
        struct request *r = s->item_request[s->row_item[row]];
        if (row_is_new(s, p, row) && needs_copy(r) && !r->no_answer)
            s->drawn[row] = draw_one(s, r, s->logits + row * vocab, copy);
    }
}

static void push_draw(struct pl_service *s, struct request *r, struct draw *d, uint64_t now) {
    service_push(s, &(struct delivery){.request = r,
                                       .kind = d->is_prompt ? PL_EVENT_PROMPT : PL_EVENT_TOKEN,
                                       .id = d->id,
                                       .is_end = d->is_end,
                                       .logprob = d->logprob,
                                       .top = d->top,
                                       .now = now});
    d->top = NULL;
}

/* The item's new token, if it gets one. */
static void accept_token(struct pl_service *s, uint32_t i, struct draw *d, uint64_t now) {
    struct request *r = s->item_request[i];
    if (r->first_ns == 0) r->first_ns = now;
    s->info.last_token_ns = now;
    if (r->no_answer) {
        r->reason = PL_END_LENGTH;
        s->ends[i] = true;
        return;
    }
    r->tokens[r->known++] = d->id;
    r->generated++;
    s->info.tokens_generated++;
    pl_sampler_accept(r->sampler, d->id);
    s->ends[i] = d->is_end;
    r->reason = d->is_end ? PL_END_STOP : PL_END_LENGTH;
    push_draw(s, r, d, now);
}

/* Takes what the rows gave into their requests and hands it over. Under lock: cancelled requests are told by the
 * scheduler. */
static void accept_rows(struct pl_service *s, const struct pl_sched_plan *p, uint64_t now) {
    for (uint32_t i = 0; i < p->item_count; i++) {
        struct request *r = s->item_request[i];
        s->ends[i] = false;
        for (uint32_t row = s->item_logit[i]; row < s->item_logit[i + 1]; row++) {
            struct draw *d = &s->drawn[row];
            bool fresh = row_is_new(s, p, row);
            if (fresh && !d->ok && !r->no_answer && !r->cancelled) r->failed = true;
            if (!r->cancelled && !r->failed && fresh) accept_token(s, i, d, now);
            if (!r->cancelled && !r->failed && d->is_prompt) {
                r->scored++;
                push_draw(s, r, d, now);
            }
            pl_free(d->top);
            d->top = NULL;
        }
        if (r->cancelled || r->failed) (void)pl_sched_cancel(s->sched, r->number, now);
    }
}

/* Every request that ended: its place becomes free and its last event goes out. Under lock. */
static void report_ended(struct pl_service *s) {
    struct pl_sched_request e;
    while (pl_sched_pop_ended(s->sched, &e)) {
        struct request *r = s->table[e.id % s->table_cap];
        s->table[e.id % s->table_cap] = NULL;
        if (r->witness != NULL) r->witness->preemptions = e.preemptions;
        if (r->failed) s->info.failed++;
        if (r->cancelled && !r->failed) r->reason = PL_END_CANCELLED;
        service_push(
            s, &(struct delivery){.request = r, .kind = r->failed ? PL_EVENT_ERROR : PL_EVENT_END, .now = pl_clock_ns()});
    }
}

/* A step that failed fails its requests; a device failure fails all. Under lock. */
static void fail_step(struct pl_service *s, const struct pl_sched_plan *p, enum pl_status st) {
    struct pl_err err = {0};
    const char *why = pl_ops_failure(s->engine->ops);
    (void)pl_err_set(&err, __FILE__, __LINE__, st, "the step of %u sequences failed: %s%s%.200s", p->item_count,
                     pl_status_text(st), why[0] != '\0' ? ": " : "", why);
    pl_log(PL_LOG_ERROR, "%s", err.text);
    if (st == PL_DEVICE) {
        s->poisoned = s->engine->poisoned = true;
        s->poison = err;
    }
    for (uint32_t i = 0; i < s->table_cap; i++) {
        struct request *r = s->table[i];
        bool in_step = false;
        for (uint32_t k = 0; k < p->item_count; k++) in_step |= s->item_request[k] == r;
        if (r == NULL || (!in_step && !s->poisoned)) continue;
        if (!pl_sched_cancel(s->sched, r->number, pl_clock_ns())) continue; /* it has ended already */
        r->failed = true;
        r->err = err;
    }
}

/* One step, or a wait for work. Called and returns with the lock held. */
static void step(struct pl_service *s, float *copy) {
    struct pl_sched_plan p;
    struct pl_batch b;
    pl_sched_plan(s->sched, &p);
    if (p.item_count == 0) {
        report_ended(s);
        if (!s->stop && pl_sched_running(s->sched) + pl_sched_waiting(s->sched) == 0) pthread_cond_wait(&s->work, &s->lock);
        return;
    }
    build_batch(s, &p, &b);
    pthread_mutex_unlock(&s->lock);
    uint64_t start = pl_clock_ns();
    enum pl_status st = ++s->steps_begun == s->fail_step ? PL_DEVICE : run_model(s, &p, &b);
    if (st == PL_OK) sample_all(s, &p, copy);
    uint64_t now = pl_clock_ns();
    pthread_mutex_lock(&s->lock);
    service_count_step(s, &p, now - start);
    if (st == PL_OK) {
        accept_rows(s, &p, now);
        pl_sched_commit(s->sched, &p, s->ends, now);
    } else {
        fail_step(s, &p, st);
    }
    report_ended(s);
}

void *service_engine_main(void *arg) {
    struct pl_service *s = arg;
    float *copy = pl_alloc(s->engine->config.vocab, sizeof *copy); /* NULL: log-probabilities are left out */
    pthread_mutex_lock(&s->lock);
    while (!s->stop) step(s, copy);
    for (uint32_t i = 0; i < s->table_cap; i++) {
        struct request *r = s->table[i];
        if (r != NULL && pl_sched_cancel(s->sched, r->number, pl_clock_ns())) r->cancelled = true;
    }
    report_ended(s);
    pthread_mutex_unlock(&s->lock);
    pl_free(copy);
    return NULL;
}
