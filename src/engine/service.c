/* service.c - requests come in, leave and are answered here; service_run.c is the engine thread's loop.
 *
 * Locks: `lock` guards the scheduler, the prefix tree, the page pool and the request table; it is held while planning and
 * committing, never while the model runs. `out_lock` guards the queue between the engine thread and the delivery thread.
 * Order: lock before out_lock. */
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "engine/service_internal.h"

/* ---------- requests ---------- */

struct request *service_request_of(struct pl_service *s, uint64_t number) {
    struct request *r = s->table[number % s->table_cap];
    return r != NULL && r->number == number ? r : NULL;
}

void service_request_free(struct request *r) {
    if (r == NULL) return;
    pl_sampler_destroy(r->sampler);
    pl_constraint_destroy(r->constraint);
    pl_free(r->witness);
    pl_free(r->tokens);
    pl_free(r->bias);
    pl_free(r);
}

/* ---------- the prefix tree behind the scheduler's cache calls (under lock) ---------- */

/* Keys and values follow from the weights and are rounded to the cache's type. There are no adapters; one would be a part of
 * this. */
static uint64_t space_of(const struct plumb_engine *e) {
    const char *weights = pl_file_fingerprint(e->file);
    uint32_t rest[] = {(uint32_t)e->kv_shape.dtype, (uint32_t)e->kv_shape.page_tokens};
    return pl_hash64(rest, sizeof rest, pl_hash64(weights, strlen(weights), 0));
}

static uint32_t adopt_pages(struct pl_service *s, struct request *r, struct pl_block_tables *tables) {
    uint32_t matched, n = pl_prefix_adopt(s->tree, s->space, r->tokens, r->known, tables, &matched);
    s->info.prefix_declined += n < matched;
    r->fork = n < matched ? matched : 0;
    return n;
}
static uint32_t cache_adopt(void *user, uint64_t id, struct pl_block_tables *tables) {
    struct pl_service *s = user;
    struct request *r = service_request_of(s, id);
    bool fresh = r->score_prompt && r->scored < r->prompt; /* the logits of all its rows are wanted */
    uint32_t n = fresh ? 0 : s->states != NULL ? service_adopt_state(s, r, tables) : adopt_pages(s, r, tables);
    if (!r->admitted) r->cached = n;
    r->admitted = true;
    if (r->admitted_ns == 0) r->admitted_ns = pl_clock_ns();
    return n;
}
static void cache_retire(void *user, uint64_t id, const struct pl_block_tables *tables, uint32_t computed) {
    struct pl_service *s = user;
    struct request *r = service_request_of(s, id);
    bool sound = !s->poisoned && !r->failed;
    if (sound) pl_prefix_insert(s->tree, s->space, r->tokens, computed, tables);
    if (s->states != NULL) service_retire_states(s, r, computed, sound);
}
/* Where others will begin, with windows that are about to be given back: at the last whole page of the prompt, and where its
 * pages were known without them. */
static void cache_pass(void *user, uint64_t id, const struct pl_block_tables *tables, uint32_t first, uint32_t computed) {
    struct pl_service *s = user;
    const struct request *r = service_request_of(s, id);
    const uint32_t ends[] = {r->fork, (r->prompt - 1) / s->engine->pages.page_tokens * s->engine->pages.page_tokens};
    for (size_t i = 0; i < PL_COUNT_OF(ends) && !s->poisoned && !r->failed; i++)
        if (first < ends[i] && ends[i] <= computed) pl_prefix_insert(s->tree, s->space, r->tokens, ends[i], tables);
}
static uint32_t cache_reclaim(void *user, enum pl_page_group g, uint32_t pages) {
    return pl_prefix_evict(((struct pl_service *)user)->tree, g, pages);
}
static uint32_t cache_reclaimable(void *user, enum pl_page_group g) {
    return pl_prefix_evictable(((struct pl_service *)user)->tree, g);
}
static uint32_t cache_held(void *user, enum pl_page_group g) {
    return pl_prefix_pages(((struct pl_service *)user)->tree, g);
}

/* ---------- delivery ---------- */

/* A token that cannot be kept fails its request. The END or ERROR of every live request always fits: there are table_cap
 * places more than tokens take, and nobody is let in while there are not. */
void service_push(struct pl_service *s, const struct delivery *d) {
    bool token = d->kind == PL_EVENT_TOKEN || d->kind == PL_EVENT_PROMPT;
    if (pl_grow(&s->made, &s->made_cap, s->made_len + 1 + s->table_cap, sizeof *s->made) != PL_OK && token) {
        pl_free(d->top);
        d->request->failed = true;
        (void)pl_err_set(&d->request->err, __FILE__, __LINE__, PL_NO_MEMORY, "no memory for the answer's next token");
        return;
    }
    s->made[s->made_len++] = *d;
}

/* One lock and one wake for all that a step gave. Where there is no memory to join it to what waits already, it goes out
 * with the next. */
void service_hand_over(struct pl_service *s) {
    if (s->made_len == 0) return;
    pthread_mutex_lock(&s->out_lock);
    if (s->out_len == 0) { /* the usual: everything before was taken */
        struct delivery *room = s->out;
        size_t cap = s->out_cap;
        s->out = s->made, s->out_cap = s->made_cap, s->out_len = s->made_len;
        s->made = room, s->made_cap = cap, s->made_len = 0;
    } else if (pl_grow(&s->out, &s->out_cap, s->out_len + s->made_len, sizeof *s->out) == PL_OK) {
        memcpy(s->out + s->out_len, s->made, s->made_len * sizeof *s->made);
        s->out_len += s->made_len;
        s->made_len = 0;
    }
    pthread_cond_signal(&s->out_ready);
    pthread_mutex_unlock(&s->out_lock);
}

static void deliver(struct pl_service *s, const struct delivery *d) {
    struct pl_event e; /* 1.5 KB: filled as far as its kind says */
    struct request *r = d->request;
    e.kind = d->kind;
    e.request = r->number;
    e.top_count = 0;
    if (d->kind == PL_EVENT_TOKEN || d->kind == PL_EVENT_PROMPT) {
        e.id = d->id;
        e.is_end_token = d->is_end;
        e.logprob = d->logprob;
        if (d->top != NULL) {
            e.top_count = d->top->count;
            memcpy(e.top_ids, d->top->ids, sizeof e.top_ids);
            memcpy(e.top_logprobs, d->top->logprobs, sizeof e.top_logprobs);
        }
    } else if (d->kind == PL_EVENT_END) {
        e.reason = r->reason;
        e.prompt_tokens = r->prompt;
        e.cached_tokens = r->cached;
        e.generated = r->generated;
        uint64_t first = r->first_ns != 0 ? r->first_ns : d->now, started = r->admitted_ns != 0 ? r->admitted_ns : first;
        e.queued_ns = started - r->submitted_ns;
        e.prefill_ns = first - started;
        e.decode_ns = d->now - first;
    } else {
        e.err = r->err;
    }
    e.witness = r->witness;
    r->on_event(r->user, &e);
    pl_free(d->top);
    if (d->kind == PL_EVENT_TOKEN || d->kind == PL_EVENT_PROMPT) return;
    service_request_free(r);
    atomic_fetch_sub(&s->undelivered, 1);
}

static void *delivery_main(void *arg) {
    struct pl_service *s = arg;
    pthread_mutex_lock(&s->out_lock);
    for (;;) {
        while (s->out_len == 0 && !s->out_stop) pthread_cond_wait(&s->out_ready, &s->out_lock);
        if (s->out_len == 0) break;
        /* Swap buffers: the engine thread goes on while these are delivered. */
        struct delivery *taken = s->out;
        size_t count = s->out_len, taken_cap = s->out_cap;
        s->out = s->taken;
        s->out_cap = s->taken_cap;
        s->out_len = 0;
        pthread_mutex_unlock(&s->out_lock);
        for (size_t i = 0; i < count; i++) deliver(s, &taken[i]);
        pthread_mutex_lock(&s->out_lock);
        s->taken = taken;
        s->taken_cap = taken_cap;
    }
    pthread_mutex_unlock(&s->out_lock);
    return NULL;
}

/* ---------- life ---------- */

enum { FIRST_ROWS = 512 };

static void options_with_defaults(const struct plumb_engine *e, const struct pl_service_options *opt,
                                  struct pl_sched_config *c) {
    *c = (struct pl_sched_config){.max_running = opt->max_running != 0 ? opt->max_running : 8,
                                  .max_waiting = opt->max_waiting != 0 ? opt->max_waiting : 256,
                                  .step_tokens = opt->step_tokens != 0 ? opt->step_tokens : e->batch_rows,
                                  .prefill_tokens = opt->prefill_tokens};
    c->max_running = PL_MIN(c->max_running, e->dense || pl_engine_is_recurrent(e) ? e->max_sessions : e->logit_rows);
    c->step_tokens = PL_MIN(c->step_tokens, e->batch_rows);
    if (c->prefill_tokens == 0) c->prefill_tokens = c->step_tokens; /* decoding rows come first: what they leave */
    /* Where all of them can grow to the end of the context nobody is ever preempted, and nothing is kept back for that. */
    const uint64_t each = (e->context + e->pages.page_tokens - 1) / e->pages.page_tokens;
    const bool enough = e->kv_shape.window_page_count == 0 && e->pages.page_count >= each * c->max_running;
    c->reserve_pages = enough ? 0 : c->max_running;
    c->score_tokens = PL_MIN(e->logit_rows - c->max_running, c->prefill_tokens);
}

static bool make_flight(struct flight *f, size_t items, size_t rows) {
    f->item = pl_alloc(items, sizeof *f->item);
    f->request = pl_calloc(items, sizeof *f->request);
    f->item_logit = pl_alloc(items + 1, sizeof *f->item_logit);
    f->row_item = pl_alloc(rows, sizeof *f->row_item);
    f->logit_row = pl_alloc(rows, sizeof *f->logit_row);
    f->place = pl_alloc(rows, sizeof *f->place);
    f->before = pl_calloc(items, sizeof *f->before);
    f->after = pl_calloc(items, sizeof *f->after);
    return f->before && f->after && f->item && f->request && f->item_logit && f->row_item && f->logit_row && f->place;
}

static void free_flight(struct flight *f) {
    pl_free(f->item);
    pl_free((void *)f->request);
    pl_free(f->item_logit);
    pl_free(f->row_item);
    pl_free(f->logit_row);
    pl_free(f->place);
    pl_free(f->before);
    pl_free(f->after);
}

static enum pl_status make_buffers(struct pl_service *s) {
    const struct plumb_engine *e = s->engine;
    size_t running = s->config.max_running;
    uint64_t pages = (uint64_t)s->config.max_running * ((e->context + e->pages.page_tokens - 1) / e->pages.page_tokens);
    s->table_cap = s->config.max_waiting + s->config.max_running;
    s->table = pl_calloc(s->table_cap, sizeof *s->table);
    s->batch_tokens = pl_alloc(s->config.step_tokens, sizeof *s->batch_tokens);
    s->batch_seqs = pl_alloc(running, sizeof *s->batch_seqs);
    s->batch_pages = pl_alloc(pages, sizeof *s->batch_pages);
    s->batch_windows = pl_alloc(pages, sizeof *s->batch_windows);
    s->logit_cap = s->config.max_running + s->config.score_tokens;
    s->logits = pl_alloc(s->logit_cap, (size_t)e->config.vocab * sizeof(float));
    s->draws = pl_calloc(s->logit_cap, sizeof *s->draws);
    s->picks = pl_alloc(s->logit_cap, sizeof *s->picks);
    s->ends = pl_calloc(running, sizeof *s->ends);
    s->no_ends = pl_calloc(running, sizeof *s->no_ends);
    s->drawn = pl_calloc(s->logit_cap, sizeof *s->drawn);
    bool ok = s->table && s->batch_tokens && s->batch_seqs && s->batch_pages && s->batch_windows && s->logits && s->draws &&
              s->picks && s->ends && s->no_ends && s->drawn && make_flight(&s->flights[0], running, s->logit_cap) &&
              make_flight(&s->flights[1], running, s->logit_cap);
    if (!ok) return PL_NO_MEMORY;
    PL_TRY(pl_grow(&s->made, &s->made_cap, s->table_cap + 1024, sizeof *s->made));
    PL_TRY(pl_grow(&s->taken, &s->taken_cap, s->table_cap + 1024, sizeof *s->taken));
    return pl_grow(&s->out, &s->out_cap, s->table_cap + 1024, sizeof *s->out);
}

static void free_service(struct pl_service *s) {
    pl_sched_destroy(s->sched);
    pl_prefix_destroy(s->tree);
    service_give_states(s);
    pl_free((void *)s->table);
    pl_free(s->batch_tokens);
    pl_free(s->batch_seqs);
    pl_free(s->batch_pages);
    pl_free(s->batch_windows);
    for (size_t i = 0; i < PL_COUNT_OF(s->flights); i++) free_flight(&s->flights[i]);
    pl_free(s->logits);
    pl_free(s->draws);
    pl_free(s->picks);
    pl_free(s->ends);
    pl_free((void *)s->no_ends);
    pl_free(s->drawn);
    pl_free(s->out);
    pl_free(s->made);
    pl_free(s->taken);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->out_lock);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->out_ready);
    pl_free(s);
}

static enum pl_status start_threads(struct pl_service *s, struct pl_err *err) {
    pl_pool_release_caller(); /* the engine thread takes this one's place in the pool */
    if (pthread_create(&s->delivery_thread, NULL, delivery_main, s) != 0)
        PL_FAIL(err, PL_NO_MEMORY, "the delivery thread could not be started");
    if (pthread_create(&s->engine_thread, NULL, service_engine_main, s) == 0) return PL_OK;
    pthread_mutex_lock(&s->out_lock);
    s->out_stop = true;
    pthread_cond_signal(&s->out_ready);
    pthread_mutex_unlock(&s->out_lock);
    pthread_join(s->delivery_thread, NULL);
    PL_FAIL(err, PL_NO_MEMORY, "the engine thread could not be started");
}

enum pl_status pl_service_create(struct plumb_engine *e, const struct pl_service_options *opt, struct pl_service **out,
                                 struct pl_err *err) {
    if (e->model == NULL) PL_FAIL(err, PL_INVALID, "the model is only open for inspection");
    struct pl_service *s = pl_calloc(1, sizeof *s);
    if (s == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for the service");
    s->engine = e;
    s->space = space_of(e);
    s->gap_ns = (uint64_t)opt->gap_ms * 1000000u;
    s->gap_least_ns = opt->gap_least_ms == 0 ? s->gap_ns : PL_MIN((uint64_t)opt->gap_least_ms * 1000000u, s->gap_ns);
    s->fail_step = opt->fail_step;
    options_with_defaults(e, opt, &s->config);
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->out_lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->out_ready, NULL);
    struct pl_sched_cache cache = {.user = s,
                                   .adopt = cache_adopt,
                                   .retire = cache_retire,
                                   .reclaim = cache_reclaim,
                                   .reclaimable = cache_reclaimable,
                                   .held = cache_held};
    enum pl_status st = make_buffers(s);
    bool prefixes = !opt->no_prefix_cache && !e->dense;
    if (st == PL_OK) st = service_take_states(s, prefixes);
    s->no_prefix = pl_engine_is_recurrent(e) && prefixes && s->kept.count == 0;
    if (s->no_prefix) pl_log("prefix cache: off: this engine has no slots for copies of recurrent state");
    if (st == PL_OK && prefixes && !s->no_prefix) st = pl_prefix_create(&e->pages, &s->tree);
    if (s->tree != NULL && e->pools.of[PL_PAGES_WINDOWED] != NULL) {
        pl_prefix_with_windows(s->tree, &e->window_pages, e->pools.window);
        cache.pass = cache_pass;
    }
    if (st == PL_OK && s->kept.count > 0) {
        pl_prefix_with_states(s->tree, &s->kept);
        cache.most = service_state_most;
    }
    if (st != PL_OK)
        (void)pl_err_set(err, __FILE__, __LINE__, st, "no memory for a service of %u sequences", s->config.max_running);
    if (st == PL_OK) st = pl_sched_create(&s->config, &e->pools, s->tree != NULL ? &cache : NULL, &s->sched, err);
    if (st == PL_OK && s->gap_ns > 0) pl_sched_limit_mixed(s->sched, FIRST_ROWS); /* until a step's time is known */
    if (st == PL_OK) st = start_threads(s, err);
    if (st != PL_OK) {
        free_service(s);
        return st;
    }
    *out = s;
    return PL_OK;
}

void pl_service_destroy(struct pl_service *s) {
    if (s == NULL) return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->engine_thread, NULL); /* it has cancelled and pushed the end of everything */
    pthread_mutex_lock(&s->out_lock);
    s->out_stop = true;
    pthread_cond_signal(&s->out_ready);
    pthread_mutex_unlock(&s->out_lock);
    pthread_join(s->delivery_thread, NULL);
    free_service(s);
}

/* ---------- submit, cancel ---------- */

static enum pl_status check_request(const struct pl_service *s, const struct pl_service_request *q, struct pl_err *err) {
    const struct plumb_engine *e = s->engine;
    if (q->prompt_count == 0) PL_FAIL(err, PL_INVALID, "the prompt has no tokens");
    if (q->no_answer && q->prompt_count > e->context)
        PL_FAIL(err, PL_LIMIT, "the prompt has %zu tokens, the context holds %u", q->prompt_count, e->context);
    if (!q->no_answer && q->prompt_count >= e->context)
        PL_FAIL(err, PL_LIMIT,
                "the prompt has %zu tokens, the context holds %u and needs room for at least one answer token",
                q->prompt_count, e->context);
    for (size_t i = 0; i < q->prompt_count; i++)
        if (q->prompt[i] >= e->config.vocab)
            PL_FAIL(err, PL_INVALID, "prompt token %zu is %u, the vocabulary has %u", i, q->prompt[i], e->config.vocab);
    if (q->top_logprobs > PL_EVENT_TOP_MAX)
        PL_FAIL(err, PL_INVALID, "top_logprobs is %u, expected 0 to %d", q->top_logprobs, PL_EVENT_TOP_MAX);
    if (q->score_prompt && s->config.score_tokens == 0)
        PL_FAIL(err, PL_UNSUPPORTED, "this engine was made without rows for the prompt's log-probabilities");
    return pl_sampling_check(&q->sampling, e->config.vocab, err);
}

static enum pl_status make_request(const struct pl_service *s, const struct pl_service_request *q, struct request **out,
                                   struct pl_err *err) {
    struct request *r = pl_calloc(1, sizeof *r);
    if (r == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for the request");
    uint32_t room = s->engine->context - (uint32_t)q->prompt_count;
    uint32_t fresh = q->no_answer ? 1 : q->max_tokens == 0 ? room : PL_MIN(q->max_tokens, room);
    *r = (struct request){.prompt = (uint32_t)q->prompt_count,
                          .known = (uint32_t)q->prompt_count,
                          .fresh_max = fresh,
                          .want_logprobs = q->want_logprobs,
                          .top_logprobs = q->top_logprobs,
                          .ignore_eos = q->ignore_eos,
                          .score_prompt = q->score_prompt && q->prompt_count > 1,
                          .no_answer = q->no_answer,
                          .group = q->group,
                          .scored = 1,
                          .restore = PL_STATE_NONE,
                          .on_event = q->on_event,
                          .user = q->user,
                          .submitted_ns = pl_clock_ns()};
    struct pl_sampling sampling = q->sampling;
    r->tokens = pl_alloc(q->prompt_count + fresh, sizeof *r->tokens);
    r->witness = pl_calloc(1, sizeof *r->witness);
    r->bias = pl_alloc(q->sampling.bias_count, sizeof *r->bias);
    enum pl_status st = r->tokens == NULL || r->bias == NULL ? PL_NO_MEMORY : PL_OK;
    if (st == PL_OK) {
        memcpy(r->tokens, q->prompt, q->prompt_count * sizeof *r->tokens);
        if (sampling.bias_count > 0) memcpy(r->bias, sampling.bias, sampling.bias_count * sizeof *r->bias);
        sampling.bias = r->bias;
        st = pl_sampler_create(&sampling, s->engine->config.vocab, &r->sampler, err);
    } else {
        (void)pl_err_set(err, __FILE__, __LINE__, st, "no memory for a request of %zu tokens", q->prompt_count + fresh);
    }
    for (uint32_t i = 0; st == PL_OK && i < r->prompt; i++) pl_sampler_accept(r->sampler, r->tokens[i]);
    if (st != PL_OK) {
        service_request_free(r);
        return st;
    }
    *out = r;
    return PL_OK;
}

/* A free place in the table, and with it the number: both tell each other apart from earlier users of the place. */
static bool take_place(struct pl_service *s, struct request *r) {
    for (uint32_t i = 0; i < s->table_cap; i++) {
        if (s->table[i] != NULL) continue;
        r->number = ++s->numbers * s->table_cap + i;
        s->table[i] = r;
        return true;
    }
    return false;
}

static enum pl_status enqueue(struct pl_service *s, struct request *r, int32_t priority, struct pl_err *err) {
    if (s->poisoned) PL_FAIL(err, PL_DEVICE, "the engine failed on its device: %.200s", s->poison.text);
    if (s->stop || s->draining) PL_FAIL(err, PL_BUSY, "the server is shutting down");
    if (s->made_cap - s->made_len < s->table_cap) PL_FAIL(err, PL_BUSY, "no memory for more answers: try again later");
    if (!take_place(s, r)) {
        s->info.refused++;
        PL_FAIL(err, PL_BUSY, "all %u places for requests are taken: try again later", s->table_cap);
    }
    enum pl_status st = pl_sched_submit(s->sched, r->number, r->prompt, r->fresh_max, priority, r->submitted_ns, err);
    if (st != PL_OK) {
        s->table[r->number % s->table_cap] = NULL;
        s->info.refused++;
        return st;
    }
    if (r->score_prompt) pl_sched_mark_scored(s->sched, r->number);
    if (r->group != 0) pl_sched_set_group(s->sched, r->number, r->group);
    s->info.requests++;
    s->info.prefix_declined += s->no_prefix;
    atomic_fetch_add(&s->undelivered, 1);
    pthread_cond_signal(&s->work);
    return PL_OK;
}

enum pl_status pl_service_submit(struct pl_service *s, const struct pl_service_request *q, uint64_t *number,
                                 struct pl_err *err) {
    struct request *r = NULL;
    PL_TRY(check_request(s, q, err));
    PL_TRY(make_request(s, q, &r, err));
    pl_engine_tell_written(s->engine);
    pthread_mutex_lock(&s->lock);
    enum pl_status st = enqueue(s, r, q->priority, err);
    if (st == PL_OK) {
        *number = r->number;
        r->constraint = q->constraint; /* under lock: the engine thread has not seen it yet */
    }
    pthread_mutex_unlock(&s->lock);
    if (st != PL_OK) service_request_free(r);
    return st;
}

void pl_service_cancel(struct pl_service *s, uint64_t number) {
    pthread_mutex_lock(&s->lock);
    struct request *r = service_request_of(s, number);
    if (r != NULL && pl_sched_cancel(s->sched, number, pl_clock_ns())) {
        r->cancelled = true;
        pthread_cond_signal(&s->work); /* the engine thread reports the end */
    }
    pthread_mutex_unlock(&s->lock);
}

bool pl_service_drain(struct pl_service *s, uint32_t timeout_ms) {
    pthread_mutex_lock(&s->lock);
    s->draining = true;
    pthread_mutex_unlock(&s->lock);
    uint64_t until = pl_clock_ns() + (uint64_t)timeout_ms * 1000000u;
    while (atomic_load(&s->undelivered) > 0) {
        if (pl_clock_ns() >= until) return false;
        struct timespec t = {0, 2 * 1000 * 1000};
        nanosleep(&t, NULL);
    }
    return true;
}
