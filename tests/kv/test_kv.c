/* Random programs over the page pool against twins that hold plain arrays; planted faults the checker has to see. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/philox.h"
#include "kv/kv.h"

enum { TABLES = 6, TOKENS_MAX = 200, PAGES_MAX = 64 };
enum fault { FAULT_NONE, FAULT_NO_COPY, FAULT_LEAK, FAULT_DOUBLE_USE };

struct world {
    struct pl_page_pool pool;
    struct pl_block_table tables[TABLES];
    uint32_t twin[TABLES][TOKENS_MAX];          /* what each sequence should read */
    uint32_t twin_len[TABLES], trimmed[TABLES]; /* tokens before trimmed may be gone */
    uint32_t store[PAGES_MAX][64];              /* the "device": page, slot */
    uint32_t next_value, seed, draws;
    enum fault fault;
};

static uint32_t draw(struct world *w, uint32_t below) {
    uint32_t c[4] = {w->draws++, 0, 0, 0}, k[2] = {w->seed, 7};
    return pl_philox4x32(c, k).v[0] % below;
}

static void write_tokens(struct world *w, uint32_t i, uint32_t n) {
    struct pl_block_table *t = &w->tables[i];
    for (uint32_t j = 0; j < n; j++) {
        uint32_t at = t->len + j, s = w->pool.page_tokens;
        w->store[t->pages[at / s]][at % s] = w->twin[i][at] = w->next_value++;
    }
    t->len += n;
    w->twin_len[i] = t->len;
}

static void op_extend(struct world *w, uint32_t i) {
    struct pl_block_table *t = &w->tables[i];
    uint32_t n = draw(w, 20), from, to, free_before = w->pool.free_count, count_before = t->count;
    if (t->len + n > TOKENS_MAX) return;
    enum pl_status s = pl_block_table_extend(t, &w->pool, n, &from, &to);
    if (s != PL_OK) { /* all or none */
        assert_int_equal(s, PL_NO_MEMORY);
        assert_int_equal(w->pool.free_count, free_before);
        assert_int_equal(t->count, count_before);
        return;
    }
    if (from != UINT32_MAX && w->fault != FAULT_NO_COPY) memcpy(w->store[to], w->store[from], sizeof w->store[to]);
    if (draw(w, 8) == 0) { /* the step failed: give back */
        pl_block_table_truncate(t, &w->pool, t->len);
        return;
    }
    write_tokens(w, i, n);
}

static void op_fork(struct world *w, uint32_t i, uint32_t src) {
    if (i == src) return;
    uint32_t len = draw(w, w->tables[src].len + 1);
    enum pl_status s = pl_block_table_fork(&w->tables[i], &w->tables[src], &w->pool, len);
    assert_int_equal(s, w->tables[src].gone > 0 ? PL_UNSUPPORTED : PL_OK);
    if (s != PL_OK) return;
    w->trimmed[i] = 0;
    memcpy(w->twin[i], w->twin[src], len * sizeof w->twin[i][0]);
    w->twin_len[i] = len;
    if (w->fault == FAULT_LEAK && len > 0) pl_page_ref(&w->pool, w->tables[i].pages[0]);
    if (w->fault == FAULT_DOUBLE_USE && len > 0 && w->pool.free_count > 0)
        w->pool.free_list[w->pool.free_count - 1] = w->tables[i].pages[0];
}

static bool contents_hold(const struct world *w) {
    for (uint32_t i = 0; i < TABLES; i++) {
        const struct pl_block_table *t = &w->tables[i];
        uint32_t s = w->pool.page_tokens;
        if (t->gone * s > w->trimmed[i] || t->gone > t->count) return false;
        if (t->len != w->twin_len[i] || t->count != (t->len + s - 1) / s) return false;
        for (uint32_t j = t->gone * s; j < t->len; j++) {
            if (w->store[t->pages[j / s]][j % s] != w->twin[i][j]) return false;
        }
    }
    return true;
}

static bool counts_hold(const struct world *w) {
    uint32_t expect[PAGES_MAX] = {0}, used = 0;
    for (uint32_t i = 0; i < TABLES; i++) {
        for (uint32_t j = w->tables[i].gone; j < w->tables[i].count; j++) expect[w->tables[i].pages[j]]++;
    }
    for (uint32_t p = 0; p < w->pool.page_count; p++) {
        if (w->pool.refs[p] != expect[p]) return false;
        used += expect[p] > 0;
    }
    bool listed[PAGES_MAX] = {false};
    for (uint32_t i = 0; i < w->pool.free_count; i++) {
        uint32_t p = w->pool.free_list[i];
        if (listed[p] || expect[p] > 0) return false;
        listed[p] = true;
    }
    return used + w->pool.free_count == w->pool.page_count;
}

/* True when every check held after every operation. */
static bool run_program(uint32_t seed, enum fault fault, uint32_t steps) {
    static struct world w;
    memset(&w, 0, sizeof w);
    w.seed = seed;
    w.fault = fault;
    uint32_t sizes[] = {1, 3, 16, 32};
    uint32_t page_tokens = sizes[seed % 4], pages = 4 + draw(&w, PAGES_MAX - 4);
    assert_int_equal(pl_page_pool_init(&w.pool, pages, page_tokens), PL_OK);
    bool ok = true;
    for (uint32_t n = 0; n < steps && ok; n++) {
        uint32_t i = draw(&w, TABLES);
        switch (draw(&w, 7)) {
        case 0: op_fork(&w, i, draw(&w, TABLES)); break;
        case 1:
            w.twin_len[i] = draw(&w, w.tables[i].len + 1);
            if (w.twin_len[i] < w.tables[i].gone * page_tokens) w.twin_len[i] = 0; /* what is left is emptied only */
            if (w.twin_len[i] == 0) w.trimmed[i] = 0;
            pl_block_table_truncate(&w.tables[i], &w.pool, w.twin_len[i]);
            break;
        case 2:
            if (draw(&w, 4) != 0) break;
            pl_block_table_deinit(&w.tables[i], &w.pool);
            w.twin_len[i] = w.trimmed[i] = 0;
            break;
        case 3: {
            uint32_t first = draw(&w, w.tables[i].len + 1);
            if (seed % 2 == 0 || draw(&w, 4) != 0) break; /* in half of the programs, now and then */
            w.trimmed[i] = PL_MAX(w.trimmed[i], first);
            pl_block_table_trim(&w.tables[i], &w.pool, first);
            if (w.tables[i].gone < first / page_tokens) ok = false;
            break;
        }
        default: op_extend(&w, i);
        }
        ok = ok && contents_hold(&w) && counts_hold(&w);
    }
    for (uint32_t i = 0; i < TABLES; i++) pl_free(w.tables[i].pages);
    if (ok) assert_true(w.pool.free_count <= w.pool.page_count);
    pl_page_pool_deinit(&w.pool);
    return ok;
}

/* Ten million steps where nothing slows them down. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STEPS = 1000000 };
#else
enum { STEPS = 10000000 };
#endif

static void random_programs_match_their_twins(void **state) {
    (void)state;
    const char *wanted = getenv("PLUMB_STEPS");
    uint64_t programs = (wanted != NULL ? PL_MAX(strtoull(wanted, NULL, 10), (uint64_t)STEPS) : STEPS) / 500;
    for (uint32_t seed = 0; seed < programs; seed++) {
        if (!run_program(seed, FAULT_NONE, 500)) fail_msg("seed %u", seed);
    }
}

static void planted_faults_are_seen(void **state) {
    (void)state;
    enum fault faults[] = {FAULT_NO_COPY, FAULT_LEAK, FAULT_DOUBLE_USE};
    for (size_t f = 0; f < PL_COUNT_OF(faults); f++) {
        uint32_t seen = 0;
        for (uint32_t seed = 0; seed < 20; seed++) seen += !run_program(seed, faults[f], 500);
        assert_true(seen >= 10); /* page size 1 never shares a partial page: a quarter of the seeds cannot see NO_COPY */
    }
}

/* Dense: every table is one run of its own, whatever was taken and given back before; nothing is shared or lost. */
static void dense_tables_are_runs(void **state) {
    (void)state;
    enum { LANES = 3, EACH = 5, SIZE = 4 };
    struct pl_page_pool p;
    struct pl_block_table t[LANES + 1] = {0};
    struct world w = {.seed = 99};
    assert_int_equal(pl_page_pool_init_dense(&p, LANES, EACH, SIZE), PL_OK);
    for (uint32_t step = 0; step < 20000; step++) {
        uint32_t i = draw(&w, LANES + 1), from, to, used = 0, held = 0, n = draw(&w, 9);
        for (uint32_t k = 0; k <= LANES; k++) used += k != i && t[k].count > 0;
        if (draw(&w, 3) == 0) {
            pl_block_table_truncate(&t[i], &p, draw(&w, t[i].len + 1));
        } else {
            enum pl_status s = pl_block_table_extend(&t[i], &p, n, &from, &to);
            bool fits = t[i].len + n <= EACH * SIZE && (t[i].count > 0 || used < LANES || n == 0);
            assert_int_equal(s, fits ? PL_OK : PL_NO_MEMORY);
            assert_true(from == UINT32_MAX);
            if (s == PL_OK) t[i].len += n;
        }
        for (uint32_t k = 0; k <= LANES; k++) {
            assert_int_equal(t[k].count, (t[k].len + SIZE - 1) / SIZE);
            held += t[k].count;
            for (uint32_t q = 0; q < t[k].count; q++) {
                assert_int_equal(t[k].pages[q], t[k].pages[0] + q);
                assert_int_equal(p.refs[t[k].pages[q]], 1); /* nobody else's */
            }
            if (t[k].count > 0) assert_int_equal(t[k].pages[0] % EACH, 0);
        }
        assert_int_equal(held + p.free_count, LANES * EACH);
    }
    pl_block_table_truncate(&t[1], &p, 0);
    pl_block_table_truncate(&t[0], &p, 0);
    assert_int_equal(pl_block_table_extend(&t[0], &p, 3, &w.next_value, &w.draws), PL_OK);
    t[0].len = 3;
    assert_int_equal(pl_block_table_fork(&t[1], &t[0], &p, 2), PL_UNSUPPORTED);
    for (uint32_t k = 0; k <= LANES; k++) pl_block_table_deinit(&t[k], &p);
    assert_int_equal(p.free_count, LANES * EACH);
    pl_page_pool_deinit(&p);
}

static void generations_grow_and_order_is_fixed(void **state) {
    (void)state;
    struct pl_page_pool p;
    assert_int_equal(pl_page_pool_init(&p, 3, 16), PL_OK);
    uint32_t a, b;
    assert_int_equal(pl_page_take(&p, &a), PL_OK);
    assert_int_equal(a, 0);
    pl_page_ref(&p, a);
    pl_page_unref(&p, a);
    assert_int_equal(p.generation[a], 0);
    pl_page_unref(&p, a);
    assert_int_equal(p.generation[a], 1);
    assert_int_equal(pl_page_take(&p, &b), PL_OK);
    assert_int_equal(b, a);
    assert_int_equal(pl_page_take(&p, &b), PL_OK);
    assert_int_equal(pl_page_take(&p, &b), PL_OK);
    assert_int_equal(pl_page_take(&p, &b), PL_NO_MEMORY);
    pl_page_pool_deinit(&p);
}

static void lengths_that_overflow_are_refused(void **state) {
    (void)state;
    struct pl_page_pool p;
    struct pl_block_table t = {0};
    uint32_t from, to;
    assert_int_equal(pl_page_pool_init(&p, 4, 16), PL_OK);
    assert_int_equal(pl_block_table_extend(&t, &p, 20, &from, &to), PL_OK);
    t.len = 20;
    assert_int_equal(pl_block_table_extend(&t, &p, UINT32_MAX, &from, &to), PL_LIMIT);
    assert_int_equal(pl_block_table_extend(&t, &p, UINT32_MAX - 20, &from, &to), PL_NO_MEMORY);
    assert_int_equal(t.count, 2);
    pl_block_table_deinit(&t, &p);
    assert_int_equal(p.free_count, 4);
    pl_page_pool_deinit(&p);
}

static void failed_allocations_change_nothing(void **state) {
    (void)state;
    struct pl_page_pool p;
    for (uint64_t n = 1; n <= 3; n++) {
        pl_mem_fail_at(n);
        assert_int_equal(pl_page_pool_init(&p, 4, 16), PL_NO_MEMORY);
    }
    pl_mem_fail_at(0);
    assert_int_equal(pl_page_pool_init(&p, 4, 16), PL_OK);
    struct pl_block_table t = {0}, u = {0};
    uint32_t from, to;
    pl_mem_fail_at(1);
    assert_int_equal(pl_block_table_extend(&t, &p, 20, &from, &to), PL_NO_MEMORY);
    assert_int_equal(p.free_count, 4);
    assert_int_equal(pl_block_table_extend(&t, &p, 20, &from, &to), PL_OK);
    t.len = 20;
    pl_mem_fail_at(1);
    assert_int_equal(pl_block_table_fork(&u, &t, &p, 20), PL_NO_MEMORY);
    assert_int_equal(p.refs[t.pages[0]], 1);
    pl_block_table_deinit(&t, &p);
    pl_page_pool_deinit(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_programs_match_their_twins),
        cmocka_unit_test(planted_faults_are_seen),
        cmocka_unit_test(dense_tables_are_runs),
        cmocka_unit_test(generations_grow_and_order_is_fixed),
        cmocka_unit_test(lengths_that_overflow_are_refused),
        cmocka_unit_test(failed_allocations_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
