/* Random steps against a naive reading of the block tables: every visible token in exactly one chunk of its row, equal
 * plans for equal input, reuse by epoch equal to a fresh plan, grid limits, invariance; planted faults the checker sees.
 * PLUMB_STEPS sets how many steps (soak runs use 10 million).
 *
 * test-timeout: 600 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/philox.h"
#include "plan/plan.h"

enum { ROWS_MAX = 24, PAGES_MAX = 40, POOL = 4000, TOKENS_MAX = 16 * PAGES_MAX };
enum fault { FAULT_NONE, FAULT_OVERLAP, FAULT_STALE_PAGE, FAULT_LOST_CHUNK, FAULT_MEMBER_ORDER, FAULT_LENGTH };

struct world {
    uint32_t seed, draws, rows, next_page;
    uint32_t tables[ROWS_MAX][PAGES_MAX];
    struct pl_plan_row list[ROWS_MAX];
    struct pl_plan_options opt;
};

static uint32_t draw(struct world *w, uint32_t below) {
    uint32_t c[4] = {w->draws++, 0, 0, 0}, k[2] = {w->seed, 11};
    return below == 0 ? 0 : pl_philox4x32(c, k).v[0] % below;
}

/* Lengths of all kinds: 0, 1, around page ends, anything. */
static uint32_t draw_length(struct world *w) {
    uint32_t size = w->opt.page_tokens, kind = draw(w, 8), most = size * PAGES_MAX;
    uint32_t pages = draw(w, PAGES_MAX) + 1;
    if (kind == 0) return draw(w, 3);
    if (kind == 1) return pages * size;
    if (kind == 2) return pages * size - 1;
    if (kind == 3) return PL_MIN(pages * size + 1, most);
    return draw(w, (kind < 6 ? 4 * size : most)) + 1;
}

/* Tables that share leading pages with an earlier row now and then. */
static void make_rows(struct world *w) {
    w->rows = draw(w, ROWS_MAX) + 1;
    for (uint32_t i = 0; i < w->rows; i++) {
        uint32_t shared = 0, from = 0;
        if (i > 0 && draw(w, 2) == 0) {
            from = draw(w, i);
            shared = draw(w, PAGES_MAX + 1);
        }
        for (uint32_t p = 0; p < PAGES_MAX; p++)
            w->tables[i][p] = p < shared ? w->tables[from][p] : (w->next_page++ * 2654435761u) >> 8;
        w->list[i] = (struct pl_plan_row){w->tables[i], draw_length(w)};
    }
}

static void make_options(struct world *w) {
    static const uint32_t sizes[] = {16, 32, 64, 1, 7}, lengths[] = {0, 0, 1, 2, 3, 4, 7, 16, 64};
    uint32_t kv = 1u << draw(w, 4);
    w->opt = (struct pl_plan_options){.page_tokens = sizes[draw(w, 5)],
                                      .kv_heads = kv,
                                      .heads = kv * (draw(w, 16) + 1),
                                      .window = draw(w, 3) == 0 ? draw(w, 200) + 1 : 0,
                                      .pages_per_chunk = lengths[draw(w, 9)],
                                      .rows_max = draw(w, 40),
                                      .span_min = draw(w, 4),
                                      .members_min = draw(w, 4),
                                      .split = draw(w, 4) > 0,
                                      .cascade = draw(w, 3) > 0,
                                      .cascade_always = draw(w, 2) == 0,
                                      .costs = {.slots = 1u << draw(w, 11),
                                                .chunk = (float)draw(w, 8) * 0.5f,
                                                .merge = (float)draw(w, 8) * 0.125f,
                                                .member = (float)draw(w, 5) * 0.25f,
                                                .wide = draw(w, 3)}};
    w->opt.invariant = w->opt.pages_per_chunk > 0 && draw(w, 3) == 0;
    if (draw(w, 4) == 0) w->opt.grid_max = draw(w, 60) + 1;
    w->opt.skip_empty = draw(w, 3) == 0;
}

/* The next token's page and slot that a state's chunk shows to its member. */
static const char *check_state(const struct world *w, const struct pl_plan *p, uint32_t row, const struct pl_plan_chunk *c,
                               uint32_t *next) {
    uint32_t size = w->opt.page_tokens, left = c->tokens;
    for (uint32_t i = 0; i < c->page_count; i++) {
        uint32_t skip = i == 0 ? c->skip : 0, n = PL_MIN(size - skip, left);
        uint32_t page = p->page_index[c->page_first + i];
        if (n > 0 && (*next % size != skip || page != w->list[row].pages[*next / size])) return "wrong page or slot";
        *next += n;
        left -= n;
    }
    return left == 0 ? NULL : "a chunk holds more tokens than its pages";
}

static const struct pl_plan_chunk *chunk_of_part(const struct pl_plan *p, uint32_t part) {
    for (uint32_t i = 0; i < p->chunk_count; i++) {
        const struct pl_plan_chunk *c = &p->chunks[i];
        if (c->part_first != PL_PLAN_DIRECT && part >= c->part_first && part < c->part_first + c->members) return c;
    }
    return NULL;
}

static const char *check_row(const struct world *w, const struct pl_plan *p, uint32_t row) {
    uint32_t len = w->list[row].len, window = w->opt.window, next = window > 0 && len > window ? len - window : 0, seen = 0;
    if (p->visible[row] != len - next) return "visible tokens are wrong";
    for (uint32_t i = 0; i < p->chunk_count; i++) {
        const struct pl_plan_chunk *c = &p->chunks[i];
        if (c->part_first != PL_PLAN_DIRECT || p->members[c->member_first] != row) continue;
        seen++;
        const char *why = c->members != 1 ? "a shared chunk writes directly" : check_state(w, p, row, c, &next);
        if (why != NULL) return why;
    }
    for (uint32_t m = 0; m < p->merge_count; m++) {
        if (p->merge_row[m] != row) continue;
        seen++;
        for (uint32_t i = p->merge_start[m]; i < p->merge_start[m + 1]; i++) {
            const struct pl_plan_state *s = &p->states[i];
            const struct pl_plan_chunk *c = chunk_of_part(p, s->part_first);
            if (c == NULL || c->part_first != s->part_first || s->member >= c->members || s->members != c->members)
                return "a state names no part";
            if (p->members[c->member_first + s->member] != row) return "a state is another row's";
            const char *why = check_state(w, p, row, c, &next);
            if (why != NULL) return why;
        }
    }
    if (w->opt.skip_empty && len == 0) return seen == 0 ? NULL : "a row that sees nothing has a chunk";
    if (seen != 1) return "a row is written not exactly once";
    return next == len ? NULL : "tokens are missing";
}

static const char *check(const struct world *w, const struct pl_plan *p) {
    uint64_t parts = 0;
    if (w->opt.grid_max > 0 && p->chunk_count > w->opt.grid_max) return "more chunks than the grid takes";
    for (uint32_t i = 0; i < p->chunk_count; i++) {
        const struct pl_plan_chunk *c = &p->chunks[i];
        if (c->page_first + c->page_count > p->page_entries) return "a chunk's pages lie outside the list";
        if (c->members == 0 || (c->members > 1 && c->members * (w->opt.heads / w->opt.kv_heads) > w->opt.rows_max))
            return "more members than a group takes";
        if (i < p->shared_count && c->part_first == PL_PLAN_DIRECT) return "a shared chunk writes directly";
        if (i >= p->shared_count && c->members > 1) return "a shared chunk behind the others";
        if (c->part_first == PL_PLAN_DIRECT) continue;
        if (c->part_first != parts) return "parts have holes";
        parts += c->members;
    }
    if (parts != p->part_count) return "the number of parts is wrong";
    for (uint32_t row = 0; row < w->rows; row++) {
        const char *why = check_row(w, p, row);
        if (why != NULL) return why;
    }
    return NULL;
}

/* The words of the record that name places: each chunk once, in whatever order, zeros behind the last. */
static const char *check_record(const struct pl_plan *p, const uint32_t *out) {
    const uint32_t *at = out + out[PL_PLAN_CHUNKS];
    uint64_t tokens = 0, parts = 0;
    if (out[PL_PLAN_CHUNKS] != PL_PLAN_HEADER_WORDS) return "chunks do not follow the header";
    if (out[PL_PLAN_SHARED_COUNT] != p->shared_count) return "another number of shared chunks";
    for (uint32_t i = 0; i < p->chunk_count; i++, at += PL_PLAN_CHUNK_WORDS) {
        const uint32_t *members = out + at[PL_CHUNK_MEMBERS_AT], *pages = out + at[PL_CHUNK_PAGES_AT], row = members[0];
        if (memcmp(pages, p->page_index + at[0], at[1] * sizeof *pages) != 0) return "a chunk's pages stand elsewhere";
        if (memcmp(members, p->members + at[4], at[5] * sizeof *members) != 0) return "a chunk's members stand elsewhere";
        if (at[PL_CHUNK_ROW] != row) return "a chunk's first member is another";
        if ((at[PL_CHUNK_LAST] != 0) != (at[0] + at[1] == p->page_start[row + 1]))
            return "a chunk that holds the last token is not marked";
        tokens += at[3];
        if (at[6] == PL_PLAN_DIRECT) {
            if (at[PL_CHUNK_ENTRY] != PL_PLAN_DIRECT || at[PL_CHUNK_STATE_COUNT] != 0) return "a whole row is merged";
            continue;
        }
        parts += at[5];
        uint32_t entry = at[PL_CHUNK_ENTRY], from = p->merge_start[entry];
        if (p->merge_row[entry] != row || out[out[PL_PLAN_ROW_MERGE] + row] != entry) return "another row's merge entry";
        if (at[PL_CHUNK_STATES_AT] != out[PL_PLAN_STATES] + from * PL_PLAN_STATE_WORDS) return "states stand elsewhere";
        if (at[PL_CHUNK_STATE_COUNT] != p->merge_start[entry + 1] - from) return "another number of states";
    }
    for (uint32_t i = 0; i < PL_PLAN_CHUNKS_SPARE * PL_PLAN_CHUNK_WORDS; i++)
        if (at[i] != 0) return "no zeros behind the last chunk";
    return tokens == p->tokens_read && parts == p->part_count ? NULL : "chunks are missing from the record";
}

static uint32_t *record(const struct pl_plan *p, size_t *words) {
    *words = pl_plan_words(p);
    uint32_t *out = malloc((*words + 1) * sizeof *out);
    assert_non_null(out);
    out[*words] = 0xA5A5A5A5u;
    memset(out, 0x5A, *words * sizeof *out);
    pl_plan_write(p, out);
    assert_int_equal(out[*words], 0xA5A5A5A5u);
    const char *why = check_record(p, out);
    if (why != NULL) fail_msg("record: %s", why);
    return out;
}

static bool equal(const struct pl_plan *a, const struct pl_plan *b) {
    size_t na, nb;
    uint32_t *x = record(a, &na), *y = record(b, &nb);
    bool same = na == nb && memcmp(x, y, na * sizeof *x) == 0 && a->part_count == b->part_count && a->tokens == b->tokens &&
                a->tokens_read == b->tokens_read && a->cascade == b->cascade;
    free(x);
    free(y);
    return same;
}

static void fail_at(const struct world *w, const char *why) {
    fail_msg("seed %u: %s (rows %u, page %u, chunk %u, window %u)", w->seed, why, w->rows, w->opt.page_tokens,
             w->opt.pages_per_chunk, w->opt.window);
}

/* Steps of one set of rows: lengths grow, now and then a page moves or a row changes; p keeps its epoch. */
static uint32_t walk(struct world *w, struct pl_plan *p, struct pl_plan *fresh) {
    uint64_t epoch = w->seed + 1ull;
    uint32_t reused = 0, steps = 1 + draw(w, 12);
    for (uint32_t step = 0; step < steps; step++) {
        enum pl_status st = pl_plan_make(p, &w->opt, w->list, w->rows, epoch);
        assert_int_equal(pl_plan_make(fresh, &w->opt, w->list, w->rows, 0), st);
        if (st != PL_OK) {
            assert_int_equal(st, PL_LIMIT);
            assert_true(w->opt.grid_max > 0);
            return reused;
        }
        const char *why = check(w, p);
        if (why != NULL) fail_at(w, why);
        if (!equal(p, fresh)) fail_at(w, "a kept plan differs from a new one");
        reused += p->reused;
        assert_false(fresh->reused);
        for (uint32_t i = 0; i < w->rows; i++)
            if (w->list[i].len < w->opt.page_tokens * PAGES_MAX) ((struct pl_plan_row *)w->list)[i].len++;
        if (draw(w, 6) == 0) { /* a page moves: the caller says so */
            w->tables[draw(w, w->rows)][draw(w, PAGES_MAX)] = w->next_page++;
            epoch += 1000000007ull;
        }
    }
    return reused;
}

static void test_random(void **state) {
    (void)state;
    const char *wanted = getenv("PLUMB_STEPS");
    uint64_t steps = wanted != NULL ? strtoull(wanted, NULL, 10) : 4000, reused = 0, shared = 0;
    struct pl_plan p, fresh;
    pl_plan_init(&p);
    pl_plan_init(&fresh);
    for (uint64_t i = 0; i < steps; i++) {
        struct world w = {.seed = (uint32_t)i};
        make_options(&w);
        make_rows(&w);
        reused += walk(&w, &p, &fresh);
        shared += p.cascade == PL_CASCADE_USED;
    }
    assert_true(reused > steps / 4); /* the paths were taken */
    assert_true(shared > steps / 20);
    pl_plan_deinit(&p);
    pl_plan_deinit(&fresh);
}

/* A row's chunks as (first page, tokens) pairs, whatever stands beside it. */
static uint32_t chunks_of(const struct pl_plan *p, uint32_t row, uint32_t out[2 * PAGES_MAX]) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->chunk_count; i++) {
        if (p->chunks[i].row != row) continue;
        out[n++] = p->chunks[i].page_first - p->page_start[row];
        out[n++] = p->chunks[i].tokens;
    }
    return n;
}

static void test_invariant(void **state) {
    (void)state;
    struct pl_plan p, alone;
    pl_plan_init(&p);
    pl_plan_init(&alone);
    for (uint32_t seed = 0; seed < 2000; seed++) {
        struct world w = {.seed = seed};
        uint32_t a[2 * PAGES_MAX], b[2 * PAGES_MAX];
        make_options(&w);
        make_rows(&w);
        w.opt.grid_max = 0;
        w.opt.invariant = true;
        if (w.opt.pages_per_chunk == 0) w.opt.pages_per_chunk = 5;
        uint32_t row = draw(&w, w.rows);
        assert_int_equal(pl_plan_make(&p, &w.opt, w.list, w.rows, 0), PL_OK);
        w.opt.costs.slots = 1 + draw(&w, 5000);
        assert_int_equal(pl_plan_make(&alone, &w.opt, &w.list[row], 1, 0), PL_OK);
        uint32_t na = chunks_of(&p, row, a), nb = chunks_of(&alone, 0, b);
        assert_int_equal(na, nb);
        assert_memory_equal(a, b, na * sizeof *a);
    }
    pl_plan_deinit(&p);
    pl_plan_deinit(&alone);
}

/* Each planted fault has to be seen, in some step that can show it. */
static bool plant(struct world *w, struct pl_plan *p, enum fault f) {
    for (uint32_t i = 0; i < p->chunk_count; i++) {
        struct pl_plan_chunk *c = &p->chunks[i];
        if (f == FAULT_OVERLAP && c->page_first > p->page_start[c->row] && c->tokens > 0) { /* by one token */
            c->page_first--;
            c->page_count++;
            c->skip = w->opt.page_tokens - 1;
            c->tokens++;
            return true;
        }
        if (f == FAULT_LENGTH && c->tokens > 1) {
            c->tokens--;
            return true;
        }
        if (f == FAULT_MEMBER_ORDER && c->members > 1) {
            uint32_t *m = &p->members[c->member_first], t = m[0];
            m[0] = m[1];
            m[1] = t;
            return true;
        }
    }
    if (f == FAULT_LOST_CHUNK && p->merge_count > 0 && p->states[0].members == 1) {
        p->merge_start[0]++;
        return true;
    }
    if (f == FAULT_STALE_PAGE && p->page_entries > 0) { /* moved, and nobody raised the epoch */
        uint32_t row = 0;
        while (p->page_start[row + 1] == 0) row++;
        w->tables[row][p->first_page[row]] ^= 1u;
        assert_int_equal(pl_plan_make(p, &w->opt, w->list, w->rows, 77), PL_OK);
        return p->reused;
    }
    return false;
}

static void test_planted_faults(void **state) {
    (void)state;
    struct pl_plan p;
    pl_plan_init(&p);
    for (enum fault f = FAULT_OVERLAP; f <= FAULT_LENGTH; f++) {
        uint32_t planted = 0, missed = 0;
        for (uint32_t seed = 0; planted < 50 && seed < 20000; seed++) {
            struct world w = {.seed = seed};
            make_options(&w);
            w.opt.cascade_always = w.opt.cascade = w.opt.split = true;
            w.opt.invariant = false;
            make_rows(&w);
            p.epoch = 0;
            if (pl_plan_make(&p, &w.opt, w.list, w.rows, 77) != PL_OK) continue;
            assert_null(check(&w, &p));
            if (!plant(&w, &p, f)) continue;
            planted++;
            missed += check(&w, &p) == NULL;
        }
        if (planted < 50 || missed > 0) fail_msg("fault %d: planted %u, missed %u", (int)f, planted, missed);
    }
    pl_plan_deinit(&p);
}

/* By hand: 3 rows of 4 pages share 2 pages; two chunks of the span, one suffix each, three states a row. */
static void test_cascade_by_hand(void **state) {
    (void)state;
    uint32_t t[3][4] = {{5, 6, 1, 2}, {5, 6, 9, 8}, {5, 6, 3, 4}};
    struct pl_plan_row rows[3] = {{t[0], 60}, {t[1], 50}, {t[2], 64}};
    struct pl_plan_options opt = {
        .page_tokens = 16, .heads = 8, .kv_heads = 2, .pages_per_chunk = 1, .rows_max = 16, .split = true, .cascade = true};
    struct pl_plan p;
    pl_plan_init(&p);
    assert_int_equal(pl_plan_make(&p, &opt, rows, 3, 1), PL_OK);
    assert_int_equal(p.cascade, PL_CASCADE_USED);
    assert_int_equal(p.groups, 1);
    assert_int_equal(p.group_members, 3);
    assert_int_equal(p.span_pages, 2);
    assert_int_equal(p.merge_count, 3);
    assert_int_equal(p.chunks[0].members, 3);
    assert_int_equal(p.chunks[0].tokens, 16);
    assert_int_equal(p.part_count, 3 + 3 + 2 + 2 + 2);
    assert_true(p.tokens == 174 && p.tokens_read == 174 - 2 * 32);
    opt.span_min = 3;
    assert_int_equal(pl_plan_make(&p, &opt, rows, 3, 1), PL_OK);
    assert_int_equal(p.cascade, PL_CASCADE_FLOOR);
    opt.span_min = 0;
    opt.window = 40;
    assert_int_equal(pl_plan_make(&p, &opt, rows, 3, 1), PL_OK);
    assert_int_equal(p.cascade, PL_CASCADE_WINDOW);
    pl_plan_deinit(&p);
}

/* One long row is split until the device is full; many equal rows are not split at all; grid limits hold. */
static void test_cost_model(void **state) {
    (void)state;
    uint32_t *pages = calloc(70000, sizeof *pages);
    assert_non_null(pages);
    struct pl_plan_row rows[512];
    struct pl_plan_options opt = {.page_tokens = 32,
                                  .heads = 32,
                                  .kv_heads = 8,
                                  .rows_max = 4,
                                  .split = true,
                                  .costs = {.slots = 264, .chunk = 2.0f, .merge = 0.05f, .member = 0.5f}};
    struct pl_plan p;
    pl_plan_init(&p);
    for (uint32_t i = 0; i < 512; i++) rows[i] = (struct pl_plan_row){pages, 1000};
    rows[0].len = 131072;
    assert_int_equal(pl_plan_make(&p, &opt, rows, 1, 0), PL_OK);
    assert_in_range(p.chunk_count, 20, 140);
    assert_int_equal(pl_plan_make(&p, &opt, rows + 1, 64, 0), PL_OK);
    assert_int_equal(p.chunk_count, 64);
    assert_int_equal(p.merge_count, 0);
    assert_int_equal(pl_plan_make(&p, &opt, rows, 64, 0), PL_OK); /* filled, but one row is far longer: it is split */
    assert_in_range(p.chunk_count, 70, 4096);
    opt.page_tokens = 2; /* 65,536 pages of one row; more than 65,535 in a list is nothing special */
    assert_int_equal(pl_plan_make(&p, &opt, rows, 1, 0), PL_OK);
    assert_int_equal(p.page_entries, 65536);
    opt.grid_max = 3;
    assert_int_equal(pl_plan_make(&p, &opt, rows, 1, 0), PL_OK);
    assert_in_range(p.chunk_count, 1, 3);
    assert_int_equal(pl_plan_make(&p, &opt, rows, 4, 0), PL_LIMIT);
    assert_int_equal(p.rows, 0);
    free(pages);
    pl_plan_deinit(&p);
}

/* Groups that take two slots: one wave of equal shared chunks, 32 members each, the rows' own chunks behind them. */
static void test_wide_groups(void **state) {
    (void)state;
    enum { ROWS = 64, SPAN = 1024, PAGES = SPAN + 8 };
    static uint32_t tables[ROWS][PAGES];
    struct pl_plan_row rows[ROWS];
    struct pl_plan_options opt = {.page_tokens = 32,
                                  .heads = 32,
                                  .kv_heads = 8,
                                  .rows_max = 128,
                                  .split = true,
                                  .cascade = true,
                                  .costs = {.slots = 264, .merge = 0.1f, .member = 0.012f, .wide = 2}};
    struct pl_plan p;
    pl_plan_init(&p);
    for (uint32_t r = 0; r < ROWS; r++) {
        for (uint32_t i = 0; i < PAGES; i++) tables[r][i] = i < SPAN ? i : SPAN + r * 8 + i;
        rows[r] = (struct pl_plan_row){tables[r], 32 * PAGES};
    }
    assert_int_equal(pl_plan_make(&p, &opt, rows, ROWS, 0), PL_OK);
    assert_int_equal(p.cascade, PL_CASCADE_USED);
    assert_int_equal(p.shared_count % 2, 0);
    assert_in_range(p.shared_count * opt.kv_heads, 100, 132);
    assert_int_equal(p.chunk_count - p.shared_count, ROWS);
    for (uint32_t i = 0; i < p.shared_count; i++) {
        assert_int_equal(p.chunks[i].members, 32);
        assert_in_range(p.chunks[i].page_count, SPAN / (p.shared_count / 2) - p.shared_count,
                        SPAN / (p.shared_count / 2) + 1);
    }
    rows[0].len = 32; /* nothing shared is worth it among few short ones: they have chunks of their own */
    assert_int_equal(pl_plan_make(&p, &opt, rows, 1, 0), PL_OK);
    assert_int_equal(p.shared_count, 0);
    pl_plan_deinit(&p);
}

static void test_no_memory(void **state) {
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct world w = {.seed = 3};
        struct pl_plan p;
        make_options(&w);
        make_rows(&w);
        w.opt.grid_max = 0;
        pl_plan_init(&p);
        pl_mem_fail_at(n);
        enum pl_status st = pl_plan_make(&p, &w.opt, w.list, w.rows, 5);
        pl_mem_fail_at(0);
        if (st == PL_OK) {
            assert_null(check(&w, &p));
            uint64_t before = pl_mem_calls();
            assert_int_equal(pl_plan_make(&p, &w.opt, w.list, w.rows, 6), PL_OK); /* nothing new is allocated */
            assert_true(pl_mem_calls() == before);
            pl_plan_deinit(&p);
            return;
        }
        assert_int_equal(st, PL_NO_MEMORY);
        assert_int_equal(p.rows, 0);
        assert_int_equal(pl_plan_make(&p, &w.opt, w.list, w.rows, 5), PL_OK); /* and it works afterwards */
        assert_null(check(&w, &p));
        pl_plan_deinit(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random),         cmocka_unit_test(test_invariant),
                                       cmocka_unit_test(test_planted_faults), cmocka_unit_test(test_cascade_by_hand),
                                       cmocka_unit_test(test_cost_model),     cmocka_unit_test(test_wide_groups),
                                       cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
