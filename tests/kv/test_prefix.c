/* The prefix tree against a naive twin (a list of remembered sequences) under random programs with little memory, and
 * together with the scheduler: adopted tokens are always tokens that were really computed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "kv/prefix.h"

enum { S = 4, PAGES = 24, WINDOWED = 14, SEQS = 6, MAX_LEN = 40 };

static uint64_t draws;
static uint32_t draw(uint32_t below) {
    uint32_t c[4] = {(uint32_t)draws++, 1, 2, 3}, k[2] = {42, 7};
    return pl_philox4x32(c, k).v[0] % below;
}

/* What each page physically holds: written when a sequence computes, read back at every adoption. */
struct page {
    uint32_t tokens[S];
    uint64_t space, prefix; /* hash of everything before the page: position matters too */
};
struct world {
    struct pl_page_pool pool, windowed;
    struct pl_page_pools pools; /* with the second only with a window */
    struct pl_prefix_tree *tree;
    struct page content[PL_PAGE_GROUPS][PAGES];
    uint64_t shorter; /* adoptions that ended before the last page found */
    struct seq {
        struct pl_block_tables tables;
        uint32_t tokens[MAX_LEN], len;
        uint64_t space;
        bool used;
    } seqs[SEQS];
};

static uint64_t prefix_hash(const uint32_t *tokens, uint32_t n) {
    uint64_t h = 1469598103934665603u;
    for (uint32_t i = 0; i < n; i++) h = (h ^ (tokens[i] + 1)) * 1099511628211u;
    return h;
}

static void compute(struct world *w, struct seq *q, uint32_t from) {
    for (uint32_t i = from; i < q->len; i++) {
        for (int g = 0; g < PL_PAGE_GROUPS; g++) {
            if (w->pools.of[g] == NULL) continue;
            uint32_t page = q->tables.of[g].pages[i / S];
            assert_int_equal(w->pools.of[g]->refs[page], 1); /* nobody writes a shared page */
            w->content[g][page].tokens[i % S] = q->tokens[i];
            w->content[g][page].space = q->space;
            w->content[g][page].prefix = prefix_hash(q->tokens, i / S * S);
        }
    }
}

static bool holds(const struct page *p, const struct seq *q, uint32_t at) {
    return p->space == q->space && p->prefix == prefix_hash(q->tokens, at * S) &&
           memcmp(p->tokens, q->tokens + at * S, sizeof p->tokens) == 0;
}

/* Naive: some page that the tree refers to, and not only tables, is the windowed one of these tokens. */
static bool tree_has(const struct world *w, const struct seq *q, uint32_t at) {
    for (uint32_t p = 0; p < WINDOWED; p++) {
        uint32_t tables = 0;
        for (uint32_t i = 0; i < SEQS; i++)
            for (uint32_t k = w->seqs[i].tables.of[1].gone; k < w->seqs[i].tables.of[1].count; k++)
                tables += w->seqs[i].tables.of[1].pages[k] == p;
        if (w->windowed.refs[p] > tables && holds(&w->content[1][p], q, at)) return true;
    }
    return false;
}
/* The longest run of pages, at most `pages`, all of whose last window is in the tree. */
static uint32_t naive_run(const struct world *w, const struct seq *q, uint32_t pages) {
    for (; pages > 0 && w->pools.window > 0; pages--) {
        bool whole = true;
        for (uint32_t t = pages * S; t-- > 0 && t + w->pools.window > pages * S;) whole = whole && tree_has(w, q, t / S);
        if (whole) break;
    }
    return pages;
}

static bool make_room(struct world *w, struct seq *q, uint32_t tokens) {
    struct pl_page_copy copies[PL_PAGE_GROUPS];
    uint32_t need = (q->len + S - 1) / S - q->tables.of[0].count;
    for (int g = 0; g < PL_PAGE_GROUPS; g++) {
        if (w->pools.of[g] == NULL || need <= w->pools.of[g]->free_count) continue;
        uint32_t can = pl_prefix_evictable(w->tree, (enum pl_page_group)g), want = need - w->pools.of[g]->free_count;
        assert_int_equal(pl_prefix_evict(w->tree, (enum pl_page_group)g, want), PL_MIN(can, want));
    }
    if (pl_block_tables_extend(&q->tables, &w->pools, tokens, copies) != PL_OK) return false;
    assert_true(copies[0].from == UINT32_MAX && copies[1].from == UINT32_MAX); /* only full pages are adopted */
    return true;
}

static void start(struct world *w, struct seq *q) {
    *q = (struct seq){.used = true, .len = 1 + draw(MAX_LEN), .space = draw(2)};
    for (uint32_t i = 0; i < q->len; i++) q->tokens[i] = draw(i < 12 ? 2 : 3); /* few values: many shared beginnings */
    uint32_t peek = pl_prefix_peek(w->tree, q->space, q->tokens, q->len);
    uint32_t matched, got = pl_prefix_adopt(w->tree, q->space, q->tokens, q->len, &q->tables, &matched);
    const struct pl_block_table *full = &q->tables.of[0], *windowed = &q->tables.of[1];
    assert_true(peek == got && got == naive_run(w, q, matched / S) * S);
    w->shorter += got < matched;
    assert_true(got < q->len && got % S == 0 && full->count == got / S && full->len == got);
    for (uint32_t i = 0; i < got / S; i++) assert_true(holds(&w->content[0][full->pages[i]], q, i));
    if (w->pools.window > 0) {
        assert_true(windowed->count == got / S && windowed->len == got);
        assert_true(windowed->gone == 0 || windowed->gone * S + w->pools.window <= got + 1);
        for (uint32_t i = windowed->gone; i < got / S; i++) assert_true(holds(&w->content[1][windowed->pages[i]], q, i));
    }
    if (!make_room(w, q, q->len - got)) {
        pl_block_tables_deinit(&q->tables, &w->pools);
        q->used = false;
        return;
    }
    pl_block_tables_set_length(&q->tables, &w->pools, q->len);
    compute(w, q, got);
    if (draw(2) == 0) pl_block_tables_trim(&q->tables, &w->pools, q->len / S * S);
}

static void check(struct world *w) {
    assert_null(pl_prefix_check(w->tree));
    for (int g = 0; g < PL_PAGE_GROUPS; g++) {
        if (w->pools.of[g] == NULL) continue;
        uint64_t refs = 0, owned = pl_prefix_pages(w->tree, (enum pl_page_group)g);
        assert_true(pl_prefix_evictable(w->tree, (enum pl_page_group)g) <= owned);
        for (uint32_t i = 0; i < w->pools.of[g]->page_count; i++) refs += w->pools.of[g]->refs[i];
        for (uint32_t i = 0; i < SEQS; i++) owned += w->seqs[i].tables.of[g].count - w->seqs[i].tables.of[g].gone;
        assert_true(refs == owned);
    }
}

/* Remembers a part of what it holds, as at a boundary of its prompt, or all. */
static void remember(struct world *w, const struct seq *q) {
    uint32_t count = draw(3) == 0 ? draw(q->len + 1) : q->len;
    pl_prefix_insert(w->tree, q->space, q->tokens, count, &q->tables);
}

static void random_program(uint32_t window, uint32_t steps) {
    static struct world w;
    memset(&w, 0, sizeof w);
    assert_int_equal(pl_page_pool_init(&w.pool, PAGES, S), PL_OK);
    assert_int_equal(pl_page_pool_init(&w.windowed, WINDOWED, S), PL_OK);
    assert_int_equal(pl_prefix_create(&w.pool, &w.tree), PL_OK);
    w.pools = (struct pl_page_pools){{&w.pool, window > 0 ? &w.windowed : NULL}, window};
    if (window > 0) pl_prefix_with_windows(w.tree, &w.windowed, window);
    for (uint32_t step = 0; step < steps; step++) {
        struct seq *q = &w.seqs[draw(SEQS)];
        if (!q->used) {
            start(&w, q);
        } else if (draw(3) == 0) {
            remember(&w, q); /* while running */
        } else {
            if (draw(4) != 0) remember(&w, q);
            pl_block_tables_deinit(&q->tables, &w.pools);
            q->used = false;
        }
        if (step % 5000 == 4999) pl_prefix_clear(w.tree);
        check(&w);
    }
    struct pl_prefix_stats st = pl_prefix_stats(w.tree);
    printf("# window %u: adopted %llu tokens, %llu times less than was found, evicted %llu pages and %llu windowed ones\n",
           window, (unsigned long long)st.tokens_adopted, (unsigned long long)w.shorter,
           (unsigned long long)st.pages_evicted, (unsigned long long)st.window_evicted);
    assert_true(st.tokens_adopted > steps / (window > 1 ? 100 : 15) && st.pages_evicted > steps / 30); /* both were taken */
    if (window > 1) assert_true(w.shorter > steps / 300 && st.window_evicted > steps / 100);
    for (uint32_t i = 0; i < SEQS; i++) pl_block_tables_deinit(&w.seqs[i].tables, &w.pools);
    pl_prefix_destroy(w.tree);
    assert_true(w.pool.free_count == PAGES && w.windowed.free_count == WINDOWED);
    pl_page_pool_deinit(&w.pool);
    pl_page_pool_deinit(&w.windowed);
}

static void random_programs(void **state) {
    (void)state;
    random_program(0, 300000);
}
static void random_programs_with_windows(void **state) {
    (void)state;
    static const uint32_t windows[] = {1, 3, 6, 8, 9, 20};
    for (size_t i = 0; i < PL_COUNT_OF(windows); i++) random_program(windows[i], 40000);
}

static void the_last_token_is_never_adopted(void **state) {
    (void)state;
    struct pl_page_pool pool;
    struct pl_prefix_tree *t;
    assert_int_equal(pl_page_pool_init(&pool, 8, S), PL_OK);
    assert_int_equal(pl_prefix_create(&pool, &t), PL_OK);
    uint32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, from, to, matched;
    struct pl_block_tables tables = {0}, other = {0};
    struct pl_block_table *a = &tables.of[0];
    assert_int_equal(pl_block_table_extend(a, &pool, 8, &from, &to), PL_OK);
    a->len = 8;
    pl_prefix_insert(t, 0, tokens, 8, &tables);
    pl_block_table_deinit(a, &pool);
    assert_int_equal(pl_prefix_peek(t, 0, tokens, 8), 4);
    assert_int_equal(pl_prefix_peek(t, 0, tokens, 9), 8);
    assert_int_equal(pl_prefix_peek(t, 0, tokens, 4), 0);
    assert_int_equal(pl_prefix_peek(t, 0, tokens, 0), 0);
    assert_int_equal(pl_prefix_peek(t, 1, tokens, 9), 0); /* another space */
    assert_int_equal(pl_prefix_adopt(t, 0, tokens, 9, &other, &matched), 8);
    assert_int_equal(pl_prefix_evict(t, PL_PAGES_FULL, 8), 0); /* in use */
    assert_int_equal(pl_prefix_evictable(t, PL_PAGES_FULL), 0);
    pl_block_table_deinit(&other.of[0], &pool);
    assert_int_equal(pl_prefix_evict(t, PL_PAGES_FULL, 8), 2);
    pl_prefix_destroy(t);
    pl_page_pool_deinit(&pool);
}

/* Adoption ends where a state is kept; states go with their nodes, the least used first, and never while somebody needs
 * them. */
static void states_bound_adoption(void **state) {
    (void)state;
    struct pl_page_pool pool;
    struct pl_state_pool kept;
    struct pl_prefix_tree *t;
    uint32_t tokens[3 * S + 1], from, to, got, matched;
    for (uint32_t i = 0; i < PL_COUNT_OF(tokens); i++) tokens[i] = i + 1;
    assert_int_equal(pl_page_pool_init(&pool, 8, S), PL_OK);
    assert_int_equal(pl_state_pool_init(&kept, 2), PL_OK);
    assert_int_equal(pl_prefix_create(&pool, &t), PL_OK);
    pl_prefix_with_states(t, &kept);
    struct pl_block_tables tables = {0}, other = {0};
    struct pl_block_table *a = &tables.of[0], *b = &other.of[0];
    assert_int_equal(pl_block_table_extend(a, &pool, 3 * S, &from, &to), PL_OK);
    a->len = 3 * S;
    pl_prefix_insert(t, 0, tokens, 3 * S, &tables);
    pl_block_table_deinit(a, &pool);
    assert_int_equal(pl_prefix_adopt_state(t, 0, tokens, 3 * S + 1, &other, &got, &matched), 0);
    assert_true(matched == 3 * S && got == PL_STATE_NONE && b->count == 0);
    uint32_t one = pl_state_take(&kept), two = pl_state_take(&kept);
    assert_int_equal(pl_state_take(&kept), PL_STATE_NONE);
    pl_prefix_attach(t, 0, tokens, 2 * S, one);
    pl_prefix_attach(t, 0, tokens, 2 * S, two); /* has one */
    pl_prefix_attach(t, 1, tokens, S, two);     /* no such node */
    assert_true(kept.refs[one] == 2 && kept.refs[two] == 1);
    assert_false(pl_prefix_drop_state(t)); /* the taker still holds it */
    pl_state_unref(&kept, one);
    pl_state_unref(&kept, two);
    assert_int_equal(pl_prefix_adopt_state(t, 0, tokens, 3 * S + 1, &other, &got, &matched), 2 * S);
    assert_true(got == one && matched == 3 * S && kept.refs[one] == 2 && b->count == 2);
    assert_null(pl_prefix_check(t));
    assert_int_equal(pl_prefix_evict(t, PL_PAGES_FULL, 8), 1); /* the last page; the others are adopted */
    pl_block_table_deinit(b, &pool);
    pl_state_unref(&kept, got);
    assert_int_equal(pl_prefix_evict(t, PL_PAGES_FULL, 1), 1); /* takes its state along */
    assert_int_equal(kept.free_count, 2);
    one = pl_state_take(&kept);
    pl_prefix_attach(t, 0, tokens, S, one);
    pl_state_unref(&kept, one);
    assert_true(pl_prefix_drop_state(t) && kept.free_count == 2);
    one = pl_state_take(&kept);
    pl_prefix_attach(t, 0, tokens, S, one);
    pl_state_unref(&kept, one);
    kept.refs[one] = 0; /* planted: the checker must see it */
    assert_non_null(pl_prefix_check(t));
    kept.refs[one] = 1;
    pl_prefix_destroy(t);
    assert_int_equal(kept.free_count, 2);
    pl_state_pool_deinit(&kept);
    pl_page_pool_deinit(&pool);
}

static void a_planted_fault_is_seen(void **state) {
    (void)state;
    struct pl_page_pool pool;
    struct pl_prefix_tree *t;
    assert_int_equal(pl_page_pool_init(&pool, 8, S), PL_OK);
    assert_int_equal(pl_prefix_create(&pool, &t), PL_OK);
    uint32_t tokens[4] = {1, 2, 3, 4};
    struct pl_page_pool windowed;
    const struct pl_page_pools pools = {{&pool, &windowed}, 3};
    struct pl_block_tables a = {0};
    struct pl_page_copy copies[PL_PAGE_GROUPS];
    assert_int_equal(pl_page_pool_init(&windowed, 8, S), PL_OK);
    pl_prefix_with_windows(t, &windowed, 3);
    assert_int_equal(pl_block_tables_extend(&a, &pools, 4, copies), PL_OK);
    pl_block_tables_set_length(&a, &pools, 4);
    pl_prefix_insert(t, 0, tokens, 4, &a);
    assert_null(pl_prefix_check(t));
    for (int g = 0; g < PL_PAGE_GROUPS; g++) {
        uint32_t page = a.of[g].pages[0], refs = pools.of[g]->refs[page];
        pools.of[g]->refs[page] = 0;
        assert_non_null(pl_prefix_check(t));
        pools.of[g]->refs[page] = refs;
    }
    pl_block_tables_deinit(&a, &pools);
    pl_prefix_destroy(t);
    assert_int_equal(windowed.free_count, 8);
    pl_page_pool_deinit(&pool);
    pl_page_pool_deinit(&windowed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_programs),
        cmocka_unit_test(random_programs_with_windows),
        cmocka_unit_test(the_last_token_is_never_adopted),
        cmocka_unit_test(states_bound_adoption),
        cmocka_unit_test(a_planted_fault_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
