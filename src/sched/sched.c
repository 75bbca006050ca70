#include "sched/sched.h"

#include <string.h>

#include "base/mem.h"

struct pl_sched {
    struct pl_sched_config c;
    struct pl_page_pools pools;
    struct pl_sched_cache cache;
    struct pl_sched_request *slots; /* [max_running]; PL_REQ_DONE = free */
    struct pl_sched_request *queue; /* waiting, first is next; preempted ones come back, hence the larger capacity */
    uint32_t queue_len;
    struct pl_sched_request *ended; /* ring of requests whose end the caller has not seen */
    size_t ended_cap, ended_first, ended_len;
    struct pl_sched_item *items;
    struct pl_page_copy *copies;
    uint32_t *order; /* scratch: occupied slots, first served first */
    uint64_t arrivals, epoch;
    uint32_t mixed_rows; /* of a step that decodes too */
    bool grouped;        /* some request had a group */
    struct pl_sched_stats stats;
};

/* The total order: who is served first. */
static bool before(const struct pl_sched_request *a, const struct pl_sched_request *b) {
    if (a->priority != b->priority) return a->priority > b->priority;
    return a->arrival < b->arrival;
}

static uint32_t page_tokens(const struct pl_sched *s) { return s->pools.of[PL_PAGES_FULL]->page_tokens; }
static uint32_t pages_for(const struct pl_sched *s, uint32_t tokens) {
    return tokens / page_tokens(s) + (tokens % page_tokens(s) != 0);
}
static const struct pl_block_table *full(const struct pl_sched_request *r) { return &r->tables.of[PL_PAGES_FULL]; }

/* Rows that a step has for one request at most. */
static uint32_t rows_max(const struct pl_sched_config *c) { return PL_MIN(c->prefill_tokens, c->step_tokens); }

static enum pl_status config_check(const struct pl_sched_config *c, const struct pl_page_pools *p, struct pl_err *err) {
    const struct pl_page_pool *w = p->of[PL_PAGES_WINDOWED];
    if (c->max_running == 0 || c->prefill_tokens == 0 || c->max_waiting == 0)
        PL_FAIL(err, PL_INVALID, "scheduler: slots, prefill tokens and queue length must be at least 1");
    if (c->step_tokens <= c->max_running)
        PL_FAIL(err, PL_INVALID,
                "scheduler: a step of %u tokens leaves no room beside %u running sequences: use at least %u", c->step_tokens,
                c->max_running, c->max_running + 1);
    if (w != NULL && w->page_count < pl_window_pages(p->window, w->page_tokens, rows_max(c)))
        PL_FAIL(err, PL_INVALID, "scheduler: a window of %u tokens and %u more need %u pages, there are %u", p->window,
                rows_max(c), pl_window_pages(p->window, w->page_tokens, rows_max(c)), w->page_count);
    return PL_OK;
}

enum pl_status pl_sched_create(const struct pl_sched_config *c, const struct pl_page_pools *pools,
                               const struct pl_sched_cache *cache, struct pl_sched **out, struct pl_err *err) {
    PL_TRY(config_check(c, pools, err));
    struct pl_sched *s = pl_calloc(1, sizeof *s);
    if (s == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for the scheduler");
    size_t live = (size_t)c->max_waiting + c->max_running;
    *s = (struct pl_sched){.c = *c, .pools = *pools, .ended_cap = 2 * live, .mixed_rows = UINT32_MAX};
    if (cache != NULL) s->cache = *cache;
    s->slots = pl_calloc(c->max_running, sizeof *s->slots);
    s->queue = pl_calloc(live, sizeof *s->queue);
    s->items = pl_calloc(c->max_running, sizeof *s->items);
    s->copies = pl_calloc(c->max_running, PL_PAGE_GROUPS * sizeof *s->copies);
    s->order = pl_calloc(c->max_running, sizeof *s->order);
    s->ended = pl_calloc(s->ended_cap, sizeof *s->ended);
    if (!s->slots || !s->queue || !s->items || !s->copies || !s->order || !s->ended) {
        pl_sched_destroy(s);
        PL_FAIL(err, PL_NO_MEMORY, "no memory for a scheduler of %u slots and %u waiting requests", c->max_running,
                c->max_waiting);
    }
    *out = s;
    return PL_OK;
}

void pl_sched_destroy(struct pl_sched *s) {
    if (s == NULL) return;
    for (uint32_t i = 0; s->slots != NULL && i < s->c.max_running; i++)
        if (s->slots[i].phase == PL_REQ_RUNNING) pl_block_tables_deinit(&s->slots[i].tables, &s->pools);
    pl_free(s->slots);
    pl_free(s->queue);
    pl_free(s->items);
    pl_free(s->copies);
    pl_free(s->order);
    pl_free(s->ended);
    pl_free(s);
}

static void enqueue(struct pl_sched *s, const struct pl_sched_request *r) {
    uint32_t at = s->queue_len;
    while (at > 0 && before(r, &s->queue[at - 1])) at--;
    memmove(&s->queue[at + 1], &s->queue[at], (s->queue_len - at) * sizeof *s->queue);
    s->queue[at] = *r;
    s->queue_len++;
}

static void remove_waiting(struct pl_sched *s, uint32_t at) {
    s->queue_len--;
    memmove(&s->queue[at], &s->queue[at + 1], (s->queue_len - at) * sizeof *s->queue);
}

/* A caller that never pops loses the oldest reports and nothing else. */
static void report_end(struct pl_sched *s, struct pl_sched_request r, uint64_t now) {
    r.phase = PL_REQ_DONE;
    r.ended_at = now;
    r.tables = (struct pl_block_tables){0};
    if (s->ended_len == s->ended_cap) {
        s->ended_first = (s->ended_first + 1) % s->ended_cap;
        s->ended_len--;
    }
    s->ended[(s->ended_first + s->ended_len++) % s->ended_cap] = r;
}

bool pl_sched_pop_ended(struct pl_sched *s, struct pl_sched_request *out) {
    if (s->ended_len == 0) return false;
    *out = s->ended[s->ended_first];
    s->ended_first = (s->ended_first + 1) % s->ended_cap;
    s->ended_len--;
    return true;
}

static enum pl_status submit_check(const struct pl_sched *s, uint32_t prompt, uint32_t new_max, struct pl_err *err) {
    if (prompt == 0) PL_FAIL(err, PL_INVALID, "the prompt has no tokens");
    if (new_max == 0) PL_FAIL(err, PL_INVALID, "the number of tokens to generate is 0, expected at least 1");
    uint64_t limit = (uint64_t)prompt + new_max,
             capacity = (uint64_t)s->pools.of[PL_PAGES_FULL]->page_count * page_tokens(s);
    if (limit - 1 > capacity || limit > UINT32_MAX) /* the last new token is never computed */
        PL_FAIL(err, PL_LIMIT, "a prompt of %u tokens and %u new ones need room for %llu, the KV cache holds %llu", prompt,
                new_max, (unsigned long long)limit - 1, (unsigned long long)capacity);
    /* What comes between two steps waits for a free slot, not for another request: it does not fill the queue. */
    uint32_t running = pl_sched_running(s);
    if (running + s->queue_len >= s->c.max_running + s->c.max_waiting)
        PL_FAIL(err, PL_BUSY, "%u requests are running and %u waiting already, %u may run and %u wait: try again later",
                running, s->queue_len, s->c.max_running, s->c.max_waiting);
    return PL_OK;
}

enum pl_status pl_sched_submit(struct pl_sched *s, uint64_t id, uint32_t prompt, uint32_t new_max, int32_t priority,
                               uint64_t now, struct pl_err *err) {
    enum pl_status st = submit_check(s, prompt, new_max, err);
    if (st != PL_OK) {
        s->stats.refused++;
        return st;
    }
    struct pl_sched_request r = {.id = id,
                                 .arrival = s->arrivals++,
                                 .priority = priority,
                                 .phase = PL_REQ_WAITING,
                                 .known = prompt,
                                 .prompt = prompt,
                                 .limit = prompt + new_max,
                                 .submitted_at = now};
    enqueue(s, &r);
    s->stats.submitted++;
    return PL_OK;
}

void pl_sched_mark_scored(struct pl_sched *s, uint64_t id) {
    for (uint32_t i = s->queue_len; i-- > 0;)
        if (s->queue[i].id == id) s->queue[i].scored = true;
}

void pl_sched_set_group(struct pl_sched *s, uint64_t id, uint32_t group) {
    for (uint32_t i = s->queue_len; i-- > 0;)
        if (s->queue[i].id == id) s->queue[i].group = group;
    s->grouped |= group != 0;
}

void pl_sched_limit_mixed(struct pl_sched *s, uint32_t rows) { s->mixed_rows = rows; }

static void release(struct pl_sched *s, struct pl_sched_request *r) {
    if (s->cache.retire != NULL && r->computed > 0) s->cache.retire(s->cache.user, r->id, &r->tables, r->computed);
    pl_block_tables_deinit(&r->tables, &s->pools);
    r->tables = (struct pl_block_tables){0};
    r->phase = PL_REQ_DONE;
    s->epoch++;
}

/* Takes a request out, waiting or running: its pages are free and its end is reported. */
static bool take_out(struct pl_sched *s, uint64_t id, bool cancelled, uint64_t now) {
    for (uint32_t i = 0; i < s->queue_len; i++) {
        if (s->queue[i].id != id) continue;
        s->queue[i].cancelled = cancelled;
        report_end(s, s->queue[i], now);
        remove_waiting(s, i);
        return true;
    }
    for (uint32_t i = 0; i < s->c.max_running; i++) {
        struct pl_sched_request *r = &s->slots[i];
        if (r->phase != PL_REQ_RUNNING || r->id != id) continue;
        release(s, r);
        r->cancelled = cancelled;
        report_end(s, *r, now);
        return true;
    }
    return false;
}

bool pl_sched_cancel(struct pl_sched *s, uint64_t id, uint64_t now) {
    bool out = take_out(s, id, true, now);
    s->stats.cancelled += out;
    return out;
}

bool pl_sched_finish(struct pl_sched *s, uint64_t id, uint64_t now) {
    bool out = take_out(s, id, false, now);
    s->stats.finished += out;
    return out;
}

static void preempt(struct pl_sched *s, struct pl_sched_request *victim) {
    release(s, victim);
    struct pl_sched_request r = *victim;
    r.phase = PL_REQ_WAITING;
    r.computed = 0;
    r.preemptions++;
    enqueue(s, &r);
    s->stats.preempted++;
}

/* The last-served running request that comes after r; NULL when r itself is the last. */
static struct pl_sched_request *victim_after(struct pl_sched *s, const struct pl_sched_request *r) {
    struct pl_sched_request *worst = NULL;
    for (uint32_t i = 0; i < s->c.max_running; i++) {
        struct pl_sched_request *q = &s->slots[i];
        if (q->phase != PL_REQ_RUNNING || q == r || before(q, r)) continue;
        if (worst == NULL || before(worst, q)) worst = q;
    }
    return worst;
}

/* Asks the cache for the pages that are missing (and one for a shared last page). True: it freed some. */
static bool reclaim_for(struct pl_sched *s, const struct pl_sched_request *r, uint32_t count) {
    bool freed = false;
    if (s->cache.reclaim == NULL) return false;
    uint32_t need = pages_for(s, full(r)->len + count) - full(r)->count + 1; /* the same in both groups */
    for (int g = 0; g < PL_PAGE_GROUPS; g++) {
        const struct pl_page_pool *p = s->pools.of[g];
        if (p == NULL || need <= p->free_count) continue;
        freed |= s->cache.reclaim(s->cache.user, (enum pl_page_group)g, need - p->free_count) > 0;
    }
    return freed;
}

/* Pages for `count` more tokens of r, taken from later-served requests if need be. False: not even that was enough. */
static bool make_room(struct pl_sched *s, struct pl_sched_request *r, uint32_t count, struct pl_sched_plan *out) {
    for (;;) {
        struct pl_page_copy copies[PL_PAGE_GROUPS];
        if (pl_block_tables_extend(&r->tables, &s->pools, count, copies) == PL_OK) {
            for (int g = 0; g < PL_PAGE_GROUPS; g++)
                if (copies[g].from != UINT32_MAX) out->copies[out->copy_count++] = copies[g];
            return true;
        }
        if (reclaim_for(s, r, count)) continue;
        struct pl_sched_request *victim = victim_after(s, r);
        if (victim == NULL) return false;
        preempt(s, victim);
    }
}

/* Pages of a group that a request needs for the tokens it has and the next one; of windowed ones when it is computed. */
static uint32_t pages_of(const struct pl_sched *s, enum pl_page_group g, const struct pl_sched_request *r) {
    uint32_t all = pages_for(s, PL_MIN(r->known + 1, r->limit - 1));
    return g == PL_PAGES_FULL ? all : PL_MIN(all, pl_window_pages(s->pools.window, page_tokens(s), 1));
}

/* Pages that running requests still need; windowed ones for the rows of one step as well, which they share. */
static uint64_t promised_pages(const struct pl_sched *s, enum pl_page_group g) {
    uint64_t sum = g == PL_PAGES_FULL ? 0 : pages_for(s, rows_max(&s->c));
    for (uint32_t i = 0; i < s->c.max_running; i++) {
        const struct pl_sched_request *q = &s->slots[i];
        if (q->phase != PL_REQ_RUNNING) continue;
        uint32_t need = pages_of(s, g, q), own = q->tables.of[g].count - q->tables.of[g].gone;
        sum += need - PL_MIN(need, own);
    }
    return sum;
}

/* Whether both groups have the pages that r needs, and some for those that run already. */
static bool has_room(const struct pl_sched *s, const struct pl_sched_request *r) {
    for (int g = 0; g < PL_PAGE_GROUPS; g++) {
        if (s->pools.of[g] == NULL) continue;
        enum pl_page_group group = (enum pl_page_group)g;
        uint64_t need = (uint64_t)pages_of(s, group, r) + s->c.reserve_pages + promised_pages(s, group);
        uint64_t have = s->pools.of[g]->free_count;
        if (need > have && s->cache.reclaimable != NULL) have += s->cache.reclaimable(s->cache.user, group);
        if (need > have) return false;
    }
    return true;
}

static void start(struct pl_sched *s, struct pl_sched_request *r) {
    r->phase = PL_REQ_RUNNING;
    if (s->cache.adopt == NULL) return;
    r->adopted = r->computed = s->cache.adopt(s->cache.user, r->id, &r->tables);
    PL_ASSERT(r->computed < r->known && full(r)->len == r->computed);
}

static uint32_t running_of(const struct pl_sched *s, uint32_t group) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->c.max_running; i++) n += s->slots[i].phase == PL_REQ_RUNNING && s->slots[i].group == group;
    return n;
}

/* Who is admitted next: of the highest priority the first request of the group that runs the fewest. */
static uint32_t next_waiting(const struct pl_sched *s) {
    uint32_t best = 0, fewest = UINT32_MAX, group = 0, running = 0;
    if (!s->grouped) return 0;
    for (uint32_t i = 0; i < s->queue_len && s->queue[i].priority == s->queue[0].priority; i++) {
        if (i == 0 || s->queue[i].group != group) running = running_of(s, group = s->queue[i].group);
        if (running >= fewest) continue;
        fewest = running;
        best = i;
        if (fewest == 0) break;
    }
    return best;
}

static void admit(struct pl_sched *s) {
    for (uint32_t i = 0; i < s->c.max_running && s->queue_len > 0; i++) {
        if (s->slots[i].phase == PL_REQ_RUNNING) continue;
        uint32_t next = next_waiting(s);
        const struct pl_sched_request *r = &s->queue[next];
        if (pl_sched_running(s) > 0 && !has_room(s, r)) return; /* alone it may use the reserve too */
        s->slots[i] = *r;
        remove_waiting(s, next);
        start(s, &s->slots[i]);
    }
}

/* Occupied slots, first served first: insertion sort over at most max_running entries. */
static uint32_t sort_running(struct pl_sched *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->c.max_running; i++) {
        if (s->slots[i].phase != PL_REQ_RUNNING) continue;
        uint32_t at = n++;
        for (; at > 0 && before(&s->slots[i], &s->slots[s->order[at - 1]]); at--) s->order[at] = s->order[at - 1];
        s->order[at] = i;
    }
    return n;
}

/* Adds one request's tokens to the step. When even preempting all later ones leaves no room, r gives its own pages up
 * and waits at its place in the queue. */
static bool plan_item(struct pl_sched *s, uint32_t slot, uint32_t count, struct pl_sched_plan *out) {
    struct pl_sched_request *r = &s->slots[slot];
    if (!make_room(s, r, count, out)) {
        preempt(s, r);
        return false;
    }
    out->items[out->item_count++] = (struct pl_sched_item){
        .slot = slot, .first = r->computed, .count = count, .wants_token = r->computed + count == r->known};
    out->rows += count;
    return true;
}

/* Making room for one request may have preempted another that was planned before it: its item leaves the step. */
static void drop_preempted(const struct pl_sched *s, struct pl_sched_plan *out) {
    uint32_t kept = 0, row = 0;
    for (uint32_t i = 0; i < out->item_count; i++) {
        struct pl_sched_item it = out->items[i];
        if (s->slots[it.slot].phase != PL_REQ_RUNNING) continue;
        it.row = row;
        row += it.count;
        out->items[kept++] = it;
    }
    out->item_count = kept;
    out->rows = row;
}

void pl_sched_plan(struct pl_sched *s, struct pl_sched_plan *out) {
    *out = (struct pl_sched_plan){.items = s->items, .copies = s->copies};
    admit(s);
    uint32_t n = sort_running(s);
    for (uint32_t i = 0; i < n; i++) { /* decode: one token behind */
        const struct pl_sched_request *r = &s->slots[s->order[i]];
        if (r->phase == PL_REQ_RUNNING && r->known - r->computed == 1) plan_item(s, s->order[i], 1, out);
    }
    uint32_t most = out->rows > 0 ? PL_MIN(s->mixed_rows, s->c.step_tokens) : s->c.step_tokens;
    uint32_t budget = PL_MIN(s->c.prefill_tokens, PL_MAX(most, out->rows + 1) - out->rows), score = s->c.score_tokens;
    for (uint32_t i = 0; i < n && budget > 0; i++) { /* prefill, in chunks */
        const struct pl_sched_request *r = &s->slots[s->order[i]];
        if (r->phase != PL_REQ_RUNNING || r->known - r->computed <= 1) continue;
        uint32_t count = PL_MIN(budget, r->known - r->computed);
        if (r->scored) count = PL_MIN(count, score);
        if (count > 0 && s->cache.most != NULL) count = s->cache.most(s->cache.user, r->id, r->computed, count);
        if (count == 0 || !plan_item(s, s->order[i], count, out)) continue;
        budget -= count;
        if (r->scored) score -= count;
    }
    drop_preempted(s, out);
    out->epoch = s->epoch;
}

void pl_sched_commit(struct pl_sched *s, const struct pl_sched_plan *plan, const bool *ends, uint64_t now) {
    s->stats.steps += plan->item_count > 0;
    for (uint32_t i = 0; i < plan->item_count; i++) {
        const struct pl_sched_item *it = &plan->items[i];
        struct pl_sched_request *r = &s->slots[it->slot];
        if (r->phase != PL_REQ_RUNNING) continue; /* cancelled in between */
        r->computed += it->count;
        pl_block_tables_set_length(&r->tables, &s->pools, r->computed);
        if (s->cache.pass != NULL) s->cache.pass(s->cache.user, r->id, &r->tables, it->first, r->computed);
        /* From the last whole page on: others may go on from there. */
        pl_block_tables_trim(&r->tables, &s->pools, r->computed / page_tokens(s) * page_tokens(s));
        s->stats.tokens_computed += it->count;
        if (!it->wants_token) continue;
        r->known++;
        s->stats.tokens_generated++;
        if (r->first_token_at == 0) r->first_token_at = now;
        if (!ends[i] && r->known < r->limit) continue;
        release(s, r);
        report_end(s, *r, now);
        s->stats.finished++;
    }
}

const struct pl_sched_request *pl_sched_slot(const struct pl_sched *s, uint32_t slot) {
    return slot < s->c.max_running ? &s->slots[slot] : NULL;
}
uint32_t pl_sched_running(const struct pl_sched *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->c.max_running; i++) n += s->slots[i].phase == PL_REQ_RUNNING;
    return n;
}
uint32_t pl_sched_waiting(const struct pl_sched *s) { return s->queue_len; }
struct pl_sched_stats pl_sched_stats(const struct pl_sched *s) {
    return s->stats;
}

static const char *slot_check(const struct pl_sched *s, const struct pl_sched_request *r) {
    const struct pl_block_table *w = &r->tables.of[PL_PAGES_WINDOWED];
    if (r->phase != PL_REQ_RUNNING) return full(r)->count + w->count != 0 ? "a free slot owns pages" : NULL;
    if (r->computed >= r->known) return "a running request has nothing left to compute";
    if (r->known > r->limit) return "a request passed its limit";
    if (full(r)->count < pages_for(s, r->computed)) return "computed tokens are not covered by pages";
    if (s->pools.of[PL_PAGES_WINDOWED] == NULL) return NULL;
    if (w->len != full(r)->len || w->count != full(r)->count) return "the two block tables cover different tokens";
    if (w->gone > pl_window_first(s->pools.window, r->computed) / page_tokens(s)) return "a window has lost pages";
    if (w->count - w->gone > pl_window_pages(s->pools.window, page_tokens(s), rows_max(&s->c)))
        return "pages before a window were not given back";
    return NULL;
}

static const char *group_check(const struct pl_sched *s, enum pl_page_group g) {
    const struct pl_page_pool *p = s->pools.of[g];
    uint64_t owned = s->cache.held != NULL ? s->cache.held(s->cache.user, g) : 0, refs = 0, unused = 0;
    for (uint32_t i = 0; i < s->c.max_running; i++) owned += s->slots[i].tables.of[g].count - s->slots[i].tables.of[g].gone;
    for (uint32_t i = 0; i < p->page_count; i++) {
        refs += p->refs[i];
        unused += p->refs[i] == 0;
    }
    if (refs != owned) return "pages were lost or are owned twice";
    return unused != p->free_count ? "the free list and the reference counts differ" : NULL;
}

const char *pl_sched_check(const struct pl_sched *s) {
    for (uint32_t i = 0; i < s->c.max_running; i++) {
        const char *wrong = slot_check(s, &s->slots[i]);
        if (wrong != NULL) return wrong;
    }
    for (uint32_t i = 0; i < s->queue_len; i++) {
        if (full(&s->queue[i])->count != 0) return "a waiting request owns pages";
        if (i > 0 && !before(&s->queue[i - 1], &s->queue[i])) return "the queue is out of order";
    }
    for (int g = 0; g < PL_PAGE_GROUPS; g++) {
        const char *wrong = s->pools.of[g] != NULL ? group_check(s, (enum pl_page_group)g) : NULL;
        if (wrong != NULL) return wrong;
    }
    return NULL;
}
