/* step - sessions, and the one function that runs tokens through the model. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/engine.h"

/* --- recurrent state: a slot a session, or of a service a slot for each that may run --- */

bool pl_engine_is_recurrent(const struct plumb_engine *e) { return e->config.state_layers > 0; }

enum pl_status pl_engine_take_state(struct plumb_engine *e, uint32_t *slot, struct pl_err *err) {
    for (uint32_t i = 0; i < e->max_sessions; i++) {
        if (e->state_used[i]) continue;
        e->state_used[i] = true;
        *slot = i;
        return PL_OK;
    }
    PL_FAIL(err, PL_LIMIT, "all %u slots of recurrent state are in use: create the engine with a larger max_sessions",
            e->max_sessions);
}

void pl_engine_give_state(struct plumb_engine *e, uint32_t slot) { e->state_used[slot] = false; }

enum pl_status pl_session_create(struct plumb_engine *e, struct plumb_session **out, struct pl_err *err) {
    if (e->model == NULL) PL_FAIL(err, PL_INVALID, "the model is only open for inspection");
    if (e->session_count >= e->max_sessions)
        PL_FAIL(err, PL_LIMIT, "all %u sessions of this engine are in use: create it with a larger max_sessions",
                e->max_sessions);
    struct plumb_session *s = pl_calloc(1, sizeof *s);
    if (s == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for a session");
    s->engine = e;
    s->ids = pl_alloc(e->context, sizeof *s->ids);
    s->logits = pl_alloc(e->config.vocab, sizeof *s->logits);
    if (s->ids == NULL || s->logits == NULL) {
        pl_free(s->ids);
        pl_free(s->logits);
        pl_free(s);
        PL_FAIL(err, PL_NO_MEMORY, "out of memory for a session of %u tokens", e->context);
    }
    enum pl_status st = pl_engine_is_recurrent(e) ? pl_engine_take_state(e, &s->state, err) : PL_OK;
    if (st != PL_OK) {
        pl_free(s->ids);
        pl_free(s->logits);
        pl_free(s);
        return st;
    }
    e->session_count++;
    *out = s;
    return PL_OK;
}

void plumb_session_destroy(struct plumb_session *s) {
    if (s == NULL) return;
    pl_block_tables_deinit(&s->tables, &s->engine->pools);
    if (pl_engine_is_recurrent(s->engine)) pl_engine_give_state(s->engine, s->state);
    s->engine->session_count--;
    pl_free(s->ids);
    pl_free(s->logits);
    pl_free(s);
}

/* Where the window of its next row was given back, the windowed pages are let go of, and its tokens are computed again
 * before the next step. */
static void cut(struct plumb_session *s, uint32_t len) {
    struct plumb_engine *e = s->engine;
    s->has_logits = false;
    if (len == pl_session_held(s)) return;
    if (!s->window_lost && pl_block_tables_truncate(&s->tables, &e->pools, len)) return;
    if (!s->window_lost) pl_block_table_truncate(&s->tables.of[PL_PAGES_WINDOWED], &e->window_pages, 0);
    pl_block_table_truncate(&s->tables.of[PL_PAGES_FULL], &e->pages, len);
    s->window_lost = len > 0;
}

enum pl_status pl_session_truncate(struct plumb_session *s, uint32_t len, struct pl_err *err) {
    if (len > pl_session_held(s))
        PL_FAIL(err, PL_INVALID, "cannot truncate to %u tokens: the session holds %u", len, pl_session_held(s));
    if (len < pl_session_held(s)) cut(s, len);
    return PL_OK;
}

static enum pl_status check_ids(const struct plumb_engine *e, const uint32_t *ids, size_t count, struct pl_err *err) {
    for (size_t i = 0; i < count; i++) {
        if (!pl_ops_is_token(e->ops, ids[i], e->config.vocab))
            PL_FAIL(err, PL_INVALID, "token %zu is %u but the vocabulary has %u tokens", i, ids[i], e->config.vocab);
    }
    return PL_OK;
}

static enum pl_status check_room_beside(const struct plumb_engine *e, uint32_t held, size_t count, struct pl_err *err) {
    if (count <= e->context - held) return PL_OK;
    const uint32_t most = e->config.context_train;
    char help[64] = "";
    if (most > e->context) snprintf(help, sizeof help, "raise --context (this model goes to %u) or ", most);
    PL_FAIL(err, PL_LIMIT, "%zu tokens do not fit: the context holds %u%s and %u are used; %sshorten the text", count,
            e->context, most <= e->context ? ", all that the model was made for," : "", held, help);
}

static enum pl_status check_room(const struct plumb_session *s, size_t count, struct pl_err *err) {
    return check_room_beside(s->engine, pl_session_held(s), count, err);
}

enum pl_status pl_engine_need_room(const struct plumb_engine *e, size_t count, struct pl_err *err) {
    return check_room_beside(e, 0, count, err);
}

static enum pl_status check_engine(const struct plumb_engine *e, struct pl_err *err) {
    if (e->poisoned) PL_FAIL(err, PL_DEVICE, "the engine failed on its device earlier and must be created anew");
    return PL_OK;
}

static enum pl_status check_parts(const struct plumb_engine *e, const struct pl_step_part *parts, size_t part_count,
                                  struct pl_err *err) {
    uint64_t rows = 0, logits = 0;
    PL_TRY(check_engine(e, err));
    for (size_t i = 0; i < part_count; i++) {
        const struct pl_step_part *p = &parts[i];
        PL_ASSERT(p->session->engine == e && p->count > 0 && p->logits <= p->count);
        PL_TRY(check_ids(e, p->ids, p->count, err));
        PL_TRY(check_room(p->session, p->count, err));
        rows += p->count;
        logits += p->logits;
    }
    PL_ASSERT(part_count > 0 && part_count <= e->max_sessions && rows <= e->batch_rows && logits <= e->logit_rows);
    return PL_OK;
}

static void roll_back(struct plumb_engine *e, const struct pl_step_part *parts, size_t part_count) {
    for (size_t i = 0; i < part_count; i++) pl_block_tables_undo(&parts[i].session->tables, &e->pools);
}

/* Pages for every part; a shared page that will be written is copied first. */
static enum pl_status take_pages(struct plumb_engine *e, const struct pl_step_part *parts, size_t part_count,
                                 struct pl_err *err) {
    for (size_t i = 0; i < part_count; i++) {
        struct pl_page_copy c[PL_PAGE_GROUPS];
        enum pl_status s = pl_block_tables_extend(&parts[i].session->tables, &e->pools, parts[i].count, c);
        for (int g = 0; g < PL_PAGE_GROUPS && s == PL_OK; g++)
            if (c[g].from != UINT32_MAX)
                s = pl_ops_kv_copy_page(e->ops, e->kv, c[g].group == PL_PAGES_WINDOWED, c[g].from, c[g].to);
        if (s == PL_OK) continue;
        PL_FAIL(err, s, "no KV pages for %u more tokens (%u of %u pages are free)", parts[i].count, e->pages.free_count,
                e->pages.page_count);
    }
    return PL_OK;
}

uint64_t pl_engine_epoch(struct plumb_engine *e, const struct pl_epoch_part *parts, size_t count) {
    uint64_t pools = pl_page_pools_epoch(&e->pools);
    bool same = e->last.epoch != 0 && e->last.pool == pools && e->last.count == count;
    for (size_t i = 0; same && i < count; i++)
        same = e->last.parts[i].id == parts[i].id && e->last.parts[i].rows == parts[i].rows;
    if (same) return e->last.epoch;
    if (pl_grow(&e->last.parts, &e->last.cap, count, sizeof *parts) != PL_OK) return 0; /* never reused */
    memcpy(e->last.parts, parts, count * sizeof *parts);
    e->last.count = count;
    e->last.pool = pools;
    return ++e->last.epoch;
}

static struct pl_batch describe(struct plumb_engine *e, const struct pl_step_part *parts, size_t part_count) {
    struct pl_batch b = {
        .tokens = e->step.tokens, .seqs = e->step.seqs, .pages = e->step.pages, .logit_rows = e->step.logit_rows};
    if (e->pools.of[PL_PAGES_WINDOWED] != NULL) b.window_pages = e->step.window_pages;
    for (size_t i = 0; i < part_count; i++) {
        const struct pl_step_part *p = &parts[i];
        const struct pl_block_table *t = &p->session->tables.of[PL_PAGES_FULL],
                                    *w = &p->session->tables.of[PL_PAGES_WINDOWED];
        e->step.who[i] = (struct pl_epoch_part){(uintptr_t)p->session, p->count};
        e->step.seqs[b.seq_count++] = (struct pl_batch_seq){
            .first_row = b.rows, .rows = p->count, .past = t->len, .page_first = b.page_entries, .state = p->session->state};
        memcpy(e->step.tokens + b.rows, p->ids, p->count * sizeof *p->ids);
        memcpy(e->step.pages + b.page_entries, t->pages, t->count * sizeof *t->pages);
        if (w->count > 0) memcpy(e->step.window_pages + b.page_entries, w->pages, w->count * sizeof *w->pages);
        b.rows += p->count;
        b.page_entries += t->count;
        for (uint32_t j = 0; j < p->logits; j++) e->step.logit_rows[b.logit_count++] = b.rows - p->logits + j;
    }
    b.epoch = pl_engine_epoch(e, e->step.who, part_count);
    return b;
}

static enum pl_status read_logits(struct plumb_engine *e, const struct pl_step_part *parts, size_t part_count,
                                  const struct pl_activation *logits, float *all_logits) {
    size_t row = 0;
    for (size_t i = 0; i < part_count; i++) {
        struct plumb_session *s = parts[i].session;
        s->has_logits = false;
        if (parts[i].logits == 0) continue;
        row += parts[i].logits;
        if (parts[i].choice != NULL) {
            PL_ASSERT(part_count == 1 && parts[i].logits == 1);
            e->picked_from = logits;
            PL_TRY(pl_ops_choose(e->ops, logits, 1, parts[i].draw, parts[i].choice));
            continue;
        }
        PL_TRY(pl_ops_activation_read(e->ops, logits, row - 1, 1, s->logits));
        s->has_logits = true;
    }
    return all_logits == NULL || row == 0 ? PL_OK : pl_ops_activation_read(e->ops, logits, 0, row, all_logits);
}

static void give_back(struct plumb_session *s, struct pl_block_tables *t, uint32_t len) {
    pl_block_tables_trim(t, &s->engine->pools, len > PL_SESSION_BACK ? len - PL_SESSION_BACK : 0);
}

static void commit(const struct pl_step_part *parts, size_t part_count) {
    for (size_t i = 0; i < part_count; i++) {
        struct plumb_session *s = parts[i].session;
        uint32_t held = pl_session_held(s);
        memcpy(s->ids + held, parts[i].ids, parts[i].count * sizeof *s->ids);
        s->state_len = held + parts[i].count;
        pl_block_tables_set_length(&s->tables, &s->engine->pools, s->state_len);
        give_back(s, &s->tables, s->state_len);
    }
}

/* A recurrent state cannot go back, nor a window whose pages were given back: where a session was truncated, or a step
 * failed, its tokens are computed again. Windowed pages are taken anew. */
static enum pl_status recompute_rows(struct plumb_engine *e, struct plumb_session *s, uint32_t rows) {
    const struct pl_block_table *full = &s->tables.of[PL_PAGES_FULL];
    struct pl_block_table *windowed = &s->tables.of[PL_PAGES_WINDOWED];
    struct pl_batch_seq seq = {.rows = rows, .past = s->state_len, .state = s->state};
    struct pl_batch b = {.rows = rows,
                         .tokens = s->ids + s->state_len,
                         .seq_count = 1,
                         .seqs = &seq,
                         .pages = full->pages,
                         .page_entries = full->count,
                         .logit_rows = e->step.logit_rows};
    if (e->pools.of[PL_PAGES_WINDOWED] != NULL) {
        uint32_t from, to;
        PL_TRY(pl_block_table_extend(windowed, &e->window_pages, rows, &from, &to));
        b.window_pages = windowed->pages;
        b.page_entries = windowed->count;
    }
    const struct pl_activation *logits = NULL;
    PL_TRY(pl_model_forward(e->model, &b, e->kv, &logits));
    s->state_len += rows;
    e->state_recomputed += rows;
    if (b.window_pages == NULL) return PL_OK;
    windowed->len = s->state_len;
    give_back(s, &s->tables, s->state_len);
    return PL_OK;
}

static enum pl_status recompute(struct plumb_engine *e, struct plumb_session *s, struct pl_err *err) {
    s->state_len = 0;
    s->window_lost = e->pools.of[PL_PAGES_WINDOWED] != NULL;
    if (s->window_lost) pl_block_table_truncate(&s->tables.of[PL_PAGES_WINDOWED], &e->window_pages, 0);
    while (s->state_len < pl_session_held(s)) {
        uint32_t rows = PL_MIN(pl_session_held(s) - s->state_len, e->batch_rows);
        enum pl_status st = recompute_rows(e, s, rows);
        if (st == PL_DEVICE) e->poisoned = true;
        if (st == PL_OK) continue;
        if (s->window_lost) pl_block_table_truncate(&s->tables.of[PL_PAGES_WINDOWED], &e->window_pages, 0);
        PL_FAIL(err, st, "computing %u tokens again failed on %s", rows, pl_ops_describe(e->ops));
    }
    s->window_lost = false;
    return PL_OK;
}

/* The states of a step's sessions stand where their tables do, and their windows are there; the step will move the states,
 * whether it ends well or not. */
static enum pl_status prepare(struct plumb_engine *e, const struct pl_step_part *parts, size_t part_count,
                              struct pl_err *err) {
    bool recurrent = pl_engine_is_recurrent(e);
    for (size_t i = 0; i < part_count; i++) {
        struct plumb_session *s = parts[i].session;
        bool behind = recurrent && pl_session_held(s) > 0 && s->state_len != pl_session_held(s);
        if (behind || s->window_lost) PL_TRY(recompute(e, s, err));
    }
    for (size_t i = 0; i < part_count && recurrent; i++) parts[i].session->state_len = UINT32_MAX;
    return PL_OK;
}

enum pl_status pl_engine_step(struct plumb_engine *e, const struct pl_step_part *parts, size_t part_count, float *all_logits,
                              struct pl_err *err) {
    PL_TRY(check_parts(e, parts, part_count, err));
    PL_TRY(prepare(e, parts, part_count, err));
    enum pl_status s = take_pages(e, parts, part_count, err);
    if (s != PL_OK) {
        roll_back(e, parts, part_count);
        return s;
    }
    struct pl_batch b = describe(e, parts, part_count);
    const struct pl_activation *logits = NULL;
    s = pl_model_forward(e->model, &b, e->kv, &logits);
    if (s == PL_OK) s = read_logits(e, parts, part_count, logits, all_logits);
    if (s != PL_OK) {
        roll_back(e, parts, part_count);
        if (s == PL_DEVICE) e->poisoned = true;
        if (s == PL_UNSUPPORTED && pl_ops_refusal(e->ops)[0] != 0) PL_FAIL(err, s, "%s", pl_ops_refusal(e->ops));
        PL_FAIL(err, s, "a step of %u rows over %u sequences failed on %s: %s", b.rows, b.seq_count, pl_ops_describe(e->ops),
                pl_status_text(s));
    }
    commit(parts, part_count);
    return PL_OK;
}

bool pl_engine_chooses(const struct plumb_engine *e) { return pl_ops_chooses(e->ops); }

enum pl_status pl_engine_chosen(struct plumb_engine *e, uint32_t choice, uint32_t *id, struct pl_err *err) {
    enum pl_status st = pl_ops_chosen(e->ops, choice, id, 1);
    if (st == PL_DEVICE) e->poisoned = true;
    if (st != PL_OK) PL_FAIL(err, st, "a step failed on %s: %s", pl_ops_describe(e->ops), pl_status_text(st));
    return PL_OK;
}

enum pl_status pl_engine_fetch_logits(struct plumb_session *s, struct pl_err *err) {
    struct plumb_engine *e = s->engine;
    PL_ASSERT(e->picked_from != NULL);
    enum pl_status st = pl_ops_activation_read(e->ops, e->picked_from, 0, 1, s->logits);
    if (st == PL_DEVICE) e->poisoned = true;
    if (st != PL_OK) PL_FAIL(err, st, "the logits cannot be read from %s", pl_ops_describe(e->ops));
    s->has_logits = true;
    return PL_OK;
}

static enum pl_status append_chunks(struct plumb_session *s, const uint32_t *ids, size_t count,
                                    void (*progress)(void *user, uint64_t done, uint64_t total), void *user,
                                    struct pl_err *err) {
    struct plumb_engine *e = s->engine;
    for (size_t done = 0; done < count;) {
        if (atomic_load(&e->cancel)) PL_FAIL(err, PL_CANCELLED, "cancelled after %zu of %zu tokens", done, count);
        uint32_t n = (uint32_t)PL_MIN(count - done, (size_t)e->batch_rows);
        struct pl_step_part part = {.session = s, .ids = ids + done, .count = n, .logits = done + n == count};
        PL_TRY(pl_engine_step(e, &part, 1, NULL, err));
        done += n;
        if (progress != NULL) progress(user, done, count);
    }
    return PL_OK;
}

enum pl_status pl_session_append(struct plumb_session *s, const uint32_t *ids, size_t count,
                                 void (*progress)(void *user, uint64_t done, uint64_t total), void *user,
                                 struct pl_err *err) {
    PL_TRY(check_engine(s->engine, err));
    for (size_t i = 0; i < count; i++) /* all of it before any work; no choices here */
        if (ids[i] >= s->engine->config.vocab)
            PL_FAIL(err, PL_INVALID, "token %zu is %u but the vocabulary has %u tokens", i, ids[i], s->engine->config.vocab);
    PL_TRY(check_room(s, count, err));
    uint32_t before = pl_session_held(s);
    enum pl_status st = append_chunks(s, ids, count, progress, user, err);
    if (st == PL_OK) return PL_OK;
    cut(s, before);
    return st;
}
