/* service_run.c - the engine thread: plan, launch, read, commit, hand over.
 *
 * Where tokens are chosen on the device a step is launched before the last one's tokens are read: the scheduler is told
 * that every request goes on, and the step finds its tokens on the device. Then the last step is read and handed over while
 * this one runs. A request that had ended by then leaves a surplus row behind: its pages are given back as they were before
 * that row, and what it writes to them comes before anything a later step does there.
 * A step of which the host has to see logits is read before the next is planned. */
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

/* The last of them may be on its way: then the step reads it where it was chosen. */
static void copy_tokens(uint32_t *to, const struct request *r, const struct pl_sched_item *it) {
    uint32_t end = it->first + it->count;
    bool known = end <= r->known;
    PL_ASSERT(known || (r->unread == 1 && end == r->known + 1 && it->count == 1));
    memcpy(to, r->tokens + it->first, (it->count - !known) * sizeof *to);
    if (!known) to[it->count - 1] = PL_TOKEN_CHOSEN | r->choice_row;
}

static void count_item(struct flight *f, const struct request *r, const struct pl_sched_item *it) {
    f->decoding += it->count == 1 && it->first >= r->prompt;
}

/* The plan as the model's batch: rows, block tables one after the other, rows whose logits are wanted. Under lock. */
static void build_batch(struct pl_service *s, const struct pl_sched_plan *p, struct flight *f, struct pl_batch *b) {
    uint32_t page_first = 0, logits = 0;
    bool windows = s->engine->pools.of[PL_PAGES_WINDOWED] != NULL;
    f->items = p->item_count;
    f->rows = p->rows;
    f->decoding = 0;
    memcpy(f->item, p->items, p->item_count * sizeof *f->item);
    for (uint32_t i = 0; i < p->item_count; i++) {
        const struct pl_sched_item *it = &p->items[i];
        const struct pl_sched_request *q = pl_sched_slot(s->sched, it->slot);
        struct request *r = f->request[i] = item_request(s, it);
        if (r->admitted_ns == 0) r->admitted_ns = pl_clock_ns();
        copy_tokens(s->batch_tokens + it->row, r, it);
        count_item(f, r, it);
        s->batch_seqs[i] = (struct pl_batch_seq){.first_row = it->row,
                                                 .rows = it->count,
                                                 .past = it->first,
                                                 .page_first = page_first,
                                                 .state = s->states != NULL ? service_place_state(s, f, i) : 0};
        uint32_t tokens = it->first + it->count, size = s->engine->pages.page_tokens,
                 pages = tokens / size + (tokens % size != 0);
        memcpy(s->batch_pages + page_first, q->tables.of[PL_PAGES_FULL].pages, pages * sizeof *s->batch_pages);
        if (windows)
            memcpy(s->batch_windows + page_first, q->tables.of[PL_PAGES_WINDOWED].pages, pages * sizeof *s->batch_windows);
        page_first += pages;
        s->engine->step.who[i] = (struct pl_epoch_part){r->number, it->count};
        f->item_logit[i] = logits;
        for (uint32_t k = first_logit(r, it); k < it->count; k++) {
            f->row_item[logits] = i;
            f->logit_row[logits++] = it->row + k;
        }
    }
    f->item_logit[p->item_count] = logits;
    *b = (struct pl_batch){.rows = p->rows,
                           .tokens = s->batch_tokens,
                           .seq_count = p->item_count,
                           .seqs = s->batch_seqs,
                           .pages = s->batch_pages,
                           .page_entries = page_first,
                           .window_pages = windows ? s->batch_windows : NULL,
                           .logit_count = logits,
                           .logit_rows = f->logit_row,
                           .epoch = pl_engine_epoch(s->engine, s->engine->step.who, p->item_count)};
}

static enum pl_status launch(struct pl_service *s, const struct pl_sched_plan *p, const struct pl_batch *b,
                             struct flight *f) {
    struct plumb_engine *e = s->engine;
    for (uint32_t i = 0; i < p->copy_count; i++)
        PL_TRY(
            pl_ops_kv_copy_page(e->ops, e->kv, p->copies[i].group == PL_PAGES_WINDOWED, p->copies[i].from, p->copies[i].to));
    if (s->states != NULL) PL_TRY(service_copy_states(s, f->before, f->items));
    PL_TRY(pl_model_forward(e->model, b, e->kv, &f->logits));
    if (s->states != NULL) PL_TRY(service_copy_states(s, f->after, f->items));
    service_place_rows(s, f);
    return f->has_choices ? pl_ops_choose(e->ops, f->logits, b->logit_count, f->drawn ? s->draws : NULL, &f->slot) : PL_OK;
}

/* The step is on its way: its requests are told where their tokens will be. */
static void note_launch(struct pl_service *s, struct flight *f) {
    f->live = true;
    for (uint32_t i = 0; i < f->items; i++) {
        if (!f->item[i].wants_token) continue;
        f->request[i]->unread++;
        f->request[i]->choice_row = f->item_logit[i + 1] - 1;
    }
    service_count_launch(s, f);
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
static void accept_token(struct pl_service *s, const struct flight *f, uint32_t i, struct draw *d, uint64_t now) {
    struct request *r = f->request[i];
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

/* The rows of r in steps that were not read yet are for nobody. */
static void forget(struct pl_service *s, struct request *r) {
    for (size_t k = 0; k < PL_COUNT_OF(s->flights); k++) {
        struct flight *f = &s->flights[k];
        for (uint32_t i = 0; f->live && i < f->items; i++) {
            if (f->request[i] != r) continue;
            f->request[i] = NULL;
            s->info.surplus_rows += f->item[i].count;
        }
    }
    r->unread = 0;
}

static void push_end(struct pl_service *s, struct request *r) {
    s->table[r->number % s->table_cap] = NULL;
    if (r->failed) s->info.failed++;
    if (r->cancelled && !r->failed) r->reason = PL_END_CANCELLED;
    service_push(s,
                 &(struct delivery){.request = r, .kind = r->failed ? PL_EVENT_ERROR : PL_EVENT_END, .now = pl_clock_ns()});
}

/* Every request that ended: its place becomes free and its last event goes out, unless its last token is on its way; then
 * that is when the token was read. Under lock. */
static void report_ended(struct pl_service *s) {
    struct pl_sched_request e;
    while (pl_sched_pop_ended(s->sched, &e)) {
        struct request *r = s->table[e.id % s->table_cap];
        if (r->witness != NULL) r->witness->preemptions = e.preemptions;
        if (r->cancelled || r->failed) forget(s, r);
        r->ended = r->unread > 0;
        if (!r->ended) push_end(s, r);
    }
    service_hand_over(s);
}

static void accept_item(struct pl_service *s, const struct flight *f, uint32_t i, uint64_t now) {
    struct request *r = f->request[i];
    for (uint32_t row = f->item_logit[i]; row < f->item_logit[i + 1]; row++) {
        struct draw *d = &s->drawn[row];
        bool fresh = service_row_is_new(f, row);
        if (r != NULL && fresh && !d->ok && !r->no_answer && !r->cancelled) r->failed = true;
        if (r != NULL && !r->cancelled && !r->failed && fresh) accept_token(s, f, i, d, now);
        if (r != NULL && !r->cancelled && !r->failed && d->is_prompt) {
            r->scored++;
            push_draw(s, r, d, now);
        }
        pl_free(d->top);
        d->top = NULL;
    }
}

/* Takes what the rows gave into their requests and hands it over. Under lock: cancelled requests are told by the
 * scheduler. committed: the scheduler was told of the step before its tokens were known. */
static void accept_rows(struct pl_service *s, struct flight *f, bool committed, uint64_t now) {
    f->live = false;
    for (uint32_t i = 0; i < f->items; i++) {
        struct request *r = f->request[i];
        s->ends[i] = false;
        accept_item(s, f, i, now);
        if (r == NULL) continue;
        if (f->item[i].wants_token && r->unread > 0) r->unread--;
        if (r->ended) {
            push_end(s, r);
        } else if (r->cancelled || r->failed) {
            (void)pl_sched_cancel(s->sched, r->number, now);
        } else if (committed && s->ends[i] && pl_sched_finish(s->sched, r->number, now)) {
            forget(s, r);
        }
    }
}

/* A step that failed fails its requests; a device failure fails all. Under lock. */
static void fail_step(struct pl_service *s, struct flight *f, enum pl_status st) {
    struct pl_err err = {0};
    const char *why = pl_ops_failure(s->engine->ops);
    (void)pl_err_set(&err, __FILE__, __LINE__, st, "the step of %u sequences failed: %s%s%.200s", f->items,
                     pl_status_text(st), why[0] != '\0' ? ": " : "", why);
    pl_log("%s", err.text);
    f->live = false;
    if (st == PL_DEVICE) {
        s->poisoned = s->engine->poisoned = true;
        s->poison = err;
    }
    for (uint32_t i = 0; i < s->table_cap; i++) {
        struct request *r = s->table[i];
        bool in_step = false;
        for (uint32_t k = 0; k < f->items; k++) in_step |= f->request[k] == r;
        if (r == NULL || (!in_step && !s->poisoned)) continue;
        if (!pl_sched_cancel(s->sched, r->number, pl_clock_ns()) && !r->ended) continue; /* its end is being reported */
        r->failed = true;
        r->err = err;
        if (r->ended) push_end(s, r);
    }
    for (size_t k = 0; s->poisoned && k < PL_COUNT_OF(s->flights); k++) s->flights[k].live = false;
}

enum { LATE_NS = 4000 }; /* what asking for a token costs that has arrived */

/* Waits for a step and takes its tokens. Called and returns with the lock held. */
static enum pl_status land(struct pl_service *s, struct flight *f, bool committed, float *copy) {
    pthread_mutex_unlock(&s->lock);
    uint64_t asked = pl_clock_ns();
    service_enter(s, PL_HOST_WAIT);
    enum pl_status st = service_read_rows(s, f);
    bool late = committed && pl_clock_ns() - asked < LATE_NS; /* nothing to wait for */
    service_enter(s, PL_HOST_TAKE);
    if (st == PL_OK) service_draw_rows(s, f, copy);
    uint64_t now = pl_clock_ns(), began = PL_MAX(f->start_ns, s->last_read_ns);
    s->last_read_ns = now;
    pthread_mutex_lock(&s->lock);
    service_count_step(s, f, now - began);
    s->info.steps_late += late;
    if (st == PL_OK)
        accept_rows(s, f, committed, now);
    else
        fail_step(s, f, st);
    service_hand_over(s);
    return st;
}

static void wait_for_work(struct pl_service *s) {
    const struct timespec moment = {0, 1000 * 1000};
    report_ended(s);
    if (s->stop || pl_sched_running(s->sched) + pl_sched_waiting(s->sched) > 0) return;
    service_enter(s, PL_HOST_IDLE);
    if (s->made_len == 0) {
        pthread_cond_wait(&s->work, &s->lock);
        return;
    }
    pthread_mutex_unlock(&s->lock); /* there was no memory to hand it over */
    nanosleep(&moment, NULL);
    pthread_mutex_lock(&s->lock);
}

/* The step that was launched: what its tokens are may stay open until the next one runs. */
static void go_on(struct pl_service *s, const struct pl_sched_plan *p, struct flight *f, float *copy) {
    bool ahead = f->wait == PL_CHOICE_DEVICE;
    if (!ahead) {
        s->info.steps_waited[f->wait]++;
        if (land(s, f, false, copy) != PL_OK) return;
    }
    pl_sched_commit(s->sched, p, ahead ? s->no_ends : s->ends, pl_clock_ns());
}

/* One step, or a wait for work. Called and returns with the lock held. */
static void step(struct pl_service *s, float *copy) {
    struct pl_sched_plan p;
    struct pl_batch b;
    struct flight *last = &s->flights[s->turn], *f = &s->flights[s->turn ^ 1];
    service_enter(s, PL_HOST_PLAN);
    pl_sched_plan(s->sched, &p);
    if (p.item_count == 0) {
        if (last->live)
            (void)land(s, last, true, copy);
        else
            wait_for_work(s);
        report_ended(s);
        return;
    }
    build_batch(s, &p, f, &b);
    pthread_mutex_unlock(&s->lock);
    f->start_ns = pl_clock_ns();
    service_enter(s, PL_HOST_LAUNCH);
    enum pl_status st = ++s->steps_begun == s->fail_step ? PL_DEVICE : launch(s, &p, &b, f);
    pthread_mutex_lock(&s->lock);
    if (st == PL_OK) note_launch(s, f);
    if (last->live) {
        s->info.steps_ahead += st == PL_OK;
        enum pl_status before = land(s, last, true, copy);
        if (before == PL_DEVICE) st = before; /* all have failed already */
    }
    s->turn ^= 1;
    if (st == PL_OK)
        go_on(s, &p, f, copy);
    else if (!s->poisoned)
        fail_step(s, f, st);
    report_ended(s);
}

void *service_engine_main(void *arg) {
    struct pl_service *s = arg;
    float *copy = pl_alloc(s->engine->config.vocab, sizeof *copy); /* NULL: log-probabilities are left out */
    pthread_mutex_lock(&s->lock);
    while (!s->stop) step(s, copy);
    for (size_t k = 0; k < PL_COUNT_OF(s->flights); k++) s->flights[k].live = false; /* nobody will read them */
    for (uint32_t i = 0; i < s->table_cap; i++) {
        struct request *r = s->table[i];
        if (r == NULL) continue;
        r->unread = 0;
        if (pl_sched_cancel(s->sched, r->number, pl_clock_ns())) r->cancelled = true;
        if (!r->ended) continue;
        r->cancelled = true;
        push_end(s, r);
    }
    report_ended(s);
    pthread_mutex_unlock(&s->lock);
    for (const struct timespec moment = {0, 1000 * 1000}; s->made_len > 0; nanosleep(&moment, NULL))
        service_hand_over(s); /* what waits is delivered meanwhile, and then no memory is needed */
    pl_free(copy);
    return NULL;
}
