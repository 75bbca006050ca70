/* The two block tables of sequences against naive twins under random programs with little memory: what every row may see is
 * what was written, both groups take their pages together, and no sequence owns more windowed pages than its window. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "base/philox.h"
#include "kv/tables.h"

enum { SEQS = 5, TOKENS_MAX = 160, FULL = 60, WINDOWED = 24, S = 4, ROWS = 12 };
enum fault { FAULT_NONE, FAULT_EARLY, FAULT_LATE, FAULT_LEAK, FAULT_ONE_TABLE };

struct world {
    struct pl_page_pool pool[PL_PAGE_GROUPS];
    struct pl_page_pools pools;
    struct pl_block_tables tables[SEQS];
    uint32_t twin[SEQS][TOKENS_MAX], twin_len[SEQS], twin_seen[SEQS]; /* what it should read; windowed from there on */
    uint32_t store[PL_PAGE_GROUPS][FULL][S];
    uint32_t next_value, seed, draws, refused;
    enum fault fault;
};

static uint32_t draw(struct world *w, uint32_t below) {
    uint32_t c[4] = {w->draws++, 0, 0, 4}, k[2] = {w->seed, 7};
    return pl_philox4x32(c, k).v[0] % below;
}

static void give_back(struct world *w, uint32_t i) {
    uint32_t next = w->twin_len[i] / S * S, window = w->pools.window;
    w->twin_seen[i] = PL_MAX(w->twin_seen[i], next >= window ? next - window + 1 : 0);
    pl_block_tables_trim(&w->tables[i], &w->pools, w->fault == FAULT_EARLY ? next + S : next);
    struct pl_block_table *t = &w->tables[i].of[PL_PAGES_WINDOWED];
    if (w->fault == FAULT_LEAK && t->count > t->gone && draw(w, 4) == 0) pl_page_ref(&w->pool[1], t->pages[t->gone]);
}

static void op_step(struct world *w, uint32_t i) {
    struct pl_block_tables *t = &w->tables[i];
    struct pl_page_copy copies[PL_PAGE_GROUPS];
    uint32_t n = 1 + draw(w, ROWS), len = t->of[0].len, free0 = w->pool[0].free_count, free1 = w->pool[1].free_count;
    if (len + n > TOKENS_MAX) return;
    if (pl_block_tables_extend(t, &w->pools, n, copies) != PL_OK) {
        assert_true(w->pool[0].free_count == free0 && w->pool[1].free_count == free1);
        w->refused++;
        return;
    }
    if (w->fault != FAULT_LEAK) assert_true(copies[0].from == UINT32_MAX && copies[1].from == UINT32_MAX);
    if (draw(w, 8) == 0) { /* the step failed */
        pl_block_tables_undo(t, &w->pools);
        if (w->fault != FAULT_LEAK) assert_true(w->pool[0].free_count == free0 && w->pool[1].free_count == free1);
        return;
    }
    for (uint32_t at = len; at < len + n; at++) {
        w->twin[i][at] = w->next_value++;
        for (int g = 0; g < PL_PAGE_GROUPS; g++) w->store[g][t->of[g].pages[at / S]][at % S] = w->twin[i][at];
    }
    if (w->fault == FAULT_ONE_TABLE)
        t->of[0].len = len + n;
    else
        pl_block_tables_set_length(t, &w->pools, len + n);
    w->twin_len[i] = len + n;
    if (w->fault != FAULT_LATE) give_back(w, i);
}

static void op_truncate(struct world *w, uint32_t i) {
    uint32_t len = draw(w, w->twin_len[i] + 1), first = len >= w->pools.window ? len - w->pools.window + 1 : 0;
    bool ok = pl_block_tables_truncate(&w->tables[i], &w->pools, len);
    assert_true(ok || first / S < w->tables[i].of[PL_PAGES_WINDOWED].gone);
    if (ok && w->fault == FAULT_NONE) assert_true(len == 0 || first >= w->twin_seen[i] / S * S);
    if (!ok) return;
    w->twin_len[i] = len;
    if (len == 0) w->twin_seen[i] = 0;
}

static bool holds(const struct world *w) {
    uint32_t owned[PL_PAGE_GROUPS] = {0};
    for (uint32_t i = 0; i < SEQS; i++) {
        const struct pl_block_table *full = &w->tables[i].of[0], *win = &w->tables[i].of[1];
        if (full->len != w->twin_len[i] || win->len != full->len || win->count != full->count) return false;
        if (win->count - win->gone > pl_window_pages(w->pools.window, S, 1)) return false;
        for (uint32_t at = 0; at < full->len; at++)
            if (w->store[0][full->pages[at / S]][at % S] != w->twin[i][at]) return false;
        for (uint32_t at = w->twin_seen[i]; at < win->len; at++)
            if (w->store[1][win->pages[at / S]][at % S] != w->twin[i][at]) return false;
        for (uint32_t k = 0; k < win->count; k++)
            if (win->pages[k] >= WINDOWED) return false; /* gone or not: the number of a page */
        owned[0] += full->count;
        owned[1] += win->count - win->gone;
    }
    return owned[0] + w->pool[0].free_count == FULL && owned[1] + w->pool[1].free_count == WINDOWED;
}

/* True when every check held after every operation. */
static bool run_program(uint32_t seed, enum fault fault, uint32_t steps, uint32_t *refused) {
    static const uint32_t windows[] = {1, 2, 4, 5, 13, 17};
    static struct world w;
    memset(&w, 0, sizeof w);
    w.seed = seed;
    w.fault = fault;
    assert_int_equal(pl_page_pool_init(&w.pool[0], FULL, S), PL_OK);
    assert_int_equal(pl_page_pool_init(&w.pool[1], WINDOWED, S), PL_OK);
    w.pools = (struct pl_page_pools){{&w.pool[0], &w.pool[1]}, windows[seed % PL_COUNT_OF(windows)]};
    bool ok = true;
    for (uint32_t n = 0; n < steps && ok; n++) {
        uint32_t i = draw(&w, SEQS), what = draw(&w, 12);
        uint64_t epoch = pl_page_pools_epoch(&w.pools);
        uint32_t free0 = w.pool[0].free_count, free1 = w.pool[1].free_count;
        if (what == 0) {
            op_truncate(&w, i);
        } else if (what == 1 && draw(&w, 3) == 0) {
            pl_block_tables_deinit(&w.tables[i], &w.pools);
            w.twin_len[i] = w.twin_seen[i] = 0;
        } else {
            op_step(&w, i);
        }
        assert_true(pl_page_pools_epoch(&w.pools) > epoch ||
                    (w.pool[0].free_count == free0 && w.pool[1].free_count == free1));
        ok = holds(&w);
    }
    *refused += w.refused;
    for (uint32_t i = 0; i < SEQS; i++) {
        pl_free(w.tables[i].of[0].pages);
        pl_free(w.tables[i].of[1].pages);
    }
    pl_page_pool_deinit(&w.pool[0]);
    pl_page_pool_deinit(&w.pool[1]);
    return ok;
}

static void random_programs_match_their_twins(void **state) {
    (void)state;
    uint32_t refused = 0;
    for (uint32_t seed = 0; seed < 600; seed++)
        if (!run_program(seed, FAULT_NONE, 500, &refused)) fail_msg("seed %u", seed);
    assert_true(refused > 1000);
}

static void planted_faults_are_seen(void **state) {
    (void)state;
    for (enum fault f = FAULT_EARLY; f <= FAULT_ONE_TABLE; f++) {
        uint32_t seen = 0, refused = 0;
        for (uint32_t seed = 0; seed < 24; seed++) seen += !run_program(seed, f, 500, &refused);
        if (seen < 12) fail_msg("fault %d was seen in %u of 24 programs", (int)f, seen);
    }
}

/* What a step of so many rows needs at most, counted page by page. */
static void the_bound_is_the_most_that_is_needed(void **state) {
    (void)state;
    for (uint32_t window = 1; window < 40; window++) {
        for (uint32_t rows = 1; rows < 40; rows++) {
            uint32_t most = 0;
            for (uint32_t len = 0; len < 100; len++) {
                uint32_t next = len / S * S, first = next >= window ? next - window + 1 : 0;
                most = PL_MAX(most, (len + rows - 1) / S - first / S + 1);
            }
            uint32_t bound = pl_window_pages(window, S, rows);
            assert_true(bound == most);
        }
    }
    assert_int_equal(pl_window_pages(UINT32_MAX, 16, UINT32_MAX), 2 * (UINT32_MAX / 16 + 1) + 1);
}

static void one_group_alone(void **state) {
    (void)state;
    struct pl_page_pool p;
    struct pl_block_tables t = {0};
    struct pl_page_copy copies[PL_PAGE_GROUPS];
    assert_int_equal(pl_page_pool_init(&p, 4, S), PL_OK);
    const struct pl_page_pools pools = {{&p, NULL}, 0};
    assert_int_equal(pl_block_tables_extend(&t, &pools, 10, copies), PL_OK);
    pl_block_tables_set_length(&t, &pools, 10);
    pl_block_tables_trim(&t, &pools, 8);
    assert_true(t.of[0].count == 3 && t.of[0].gone == 0 && t.of[1].count == 0 && t.of[1].len == 0);
    assert_true(pl_block_tables_truncate(&t, &pools, 3));
    assert_int_equal(p.free_count, 3);
    assert_int_equal(pl_block_tables_extend(&t, &pools, 14, copies), PL_NO_MEMORY);
    pl_block_tables_deinit(&t, &pools);
    assert_int_equal(p.free_count, 4);
    pl_page_pool_deinit(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_programs_match_their_twins),
        cmocka_unit_test(planted_faults_are_seen),
        cmocka_unit_test(the_bound_is_the_most_that_is_needed),
        cmocka_unit_test(one_group_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
