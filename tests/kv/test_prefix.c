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

enum { S = 4, PAGES = 24, SEQS = 6, MAX_LEN = 40 };

static uint64_t draws;
static uint32_t draw(uint32_t below) {
    uint32_t c[4] = {(uint32_t)draws++, 1, 2, 3}, k[2] = {42, 7};
    return pl_philox4x32(c, k).v[0] % below;
}

/* What each page physically holds: written when a sequence computes, read back at every adoption. */
struct world {
    struct pl_page_pool pool;
    struct pl_prefix_tree *tree;
    uint32_t content[PAGES][S];
    uint64_t content_space[PAGES], content_prefix[PAGES]; /* hash of everything before the page: position matters too */
    struct seq {
        struct pl_block_table table;
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
        uint32_t page = q->table.pages[i / S];
        assert_int_equal(w->pool.refs[page], 1); /* nobody writes a shared page */
        w->content[page][i % S] = q->tokens[i];
        w->content_space[page] = q->space;
        w->content_prefix[page] = prefix_hash(q->tokens, i / S * S);
    }
}

static void start(struct world *w, struct seq *q) {
    *q = (struct seq){.used = true, .len = 1 + draw(MAX_LEN), .space = draw(2)};
    for (uint32_t i = 0; i < q->len; i++) q->tokens[i] = draw(i < 12 ? 2 : 3); /* few values: many shared beginnings */
    uint32_t peek = pl_prefix_peek(w->tree, q->space, q->tokens, q->len);
    uint32_t got = pl_prefix_adopt(w->tree, q->space, q->tokens, q->len, &q->table);
    assert_int_equal(peek, got);
    assert_true(got < q->len && got % S == 0 && q->table.count == got / S && q->table.len == got);
    for (uint32_t i = 0; i < got; i++) {
        uint32_t page = q->table.pages[i / S];
        assert_int_equal(w->content[page][i % S], q->tokens[i]);
        assert_int_equal(w->content_space[page], q->space);
        assert_true(w->content_prefix[page] == prefix_hash(q->tokens, i / S * S));
    }
    uint32_t from, to;
    uint32_t need = (q->len + S - 1) / S - q->table.count;
    if (need > w->pool.free_count) {
        uint32_t can = pl_prefix_evictable(w->tree), want = need - w->pool.free_count;
        assert_int_equal(pl_prefix_evict(w->tree, want), PL_MIN(can, want));
    }
    if (pl_block_table_extend(&q->table, &w->pool, q->len - got, &from, &to) != PL_OK) {
        pl_block_table_deinit(&q->table, &w->pool);
        q->used = false;
        return;
    }
    assert_int_equal(from, UINT32_MAX); /* only full pages are adopted */
    q->table.len = q->len;
    compute(w, q, got);
}

static void check(struct world *w) {
    assert_null(pl_prefix_check(w->tree));
    uint64_t refs = 0, owned = pl_prefix_pages(w->tree);
    for (uint32_t i = 0; i < PAGES; i++) refs += w->pool.refs[i];
    for (uint32_t i = 0; i < SEQS; i++) owned += w->seqs[i].table.count;
    assert_true(refs == owned);
    assert_true(pl_prefix_evictable(w->tree) <= pl_prefix_pages(w->tree));
}

static void random_programs(void **state) {
    (void)state;
    static struct world w;
    assert_int_equal(pl_page_pool_init(&w.pool, PAGES, S), PL_OK);
    assert_int_equal(pl_prefix_create(&w.pool, &w.tree), PL_OK);
    for (uint32_t step = 0; step < 300000; step++) {
        struct seq *q = &w.seqs[draw(SEQS)];
        if (!q->used) {
            start(&w, q);
        } else if (draw(3) == 0) {
            pl_prefix_insert(w.tree, q->space, q->tokens, q->len, &q->table); /* remembered while running */
        } else {
            if (draw(4) != 0) pl_prefix_insert(w.tree, q->space, q->tokens, q->len, &q->table);
            pl_block_table_deinit(&q->table, &w.pool);
            q->used = false;
        }
        if (step % 5000 == 4999) pl_prefix_clear(w.tree);
        check(&w);
    }
    struct pl_prefix_stats st = pl_prefix_stats(w.tree);
    printf("# adopted %llu tokens, evicted %llu pages\n", (unsigned long long)st.tokens_adopted,
           (unsigned long long)st.pages_evicted);
    assert_true(st.tokens_adopted > 20000 && st.pages_evicted > 10000); /* both paths were really taken */
    for (uint32_t i = 0; i < SEQS; i++) pl_block_table_deinit(&w.seqs[i].table, &w.pool);
    pl_prefix_destroy(w.tree);
    assert_int_equal(w.pool.free_count, PAGES);
    pl_page_pool_deinit(&w.pool);
}

static void the_last_token_is_never_adopted(void **state) {
    (void)state;
    struct pl_page_pool pool;
    struct pl_prefix_tree *t;
    assert_int_equal(pl_page_pool_init(&pool, 8, S), PL_OK);
    assert_int_equal(pl_prefix_create(&pool, &t), PL_OK);
    uint32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, from, to;
    struct pl_block_table a = {0}, b = {0};
    assert_int_equal(pl_block_table_extend(&a, &pool, 8, &from, &to), PL_OK);
    a.len = 8;
    pl_prefix_insert(t, 0, tokens, 8, &a);
    pl_block_table_deinit(&a, &pool);
    assert_int_equal(pl_prefix_peek(t, 0, tokens, 8), 4);
    assert_int_equal(pl_prefix_peek(t, 0, tokens, 9), 8);
    assert_int_equal(pl_prefix_peek(t, 0, tokens, 4), 0);
    assert_int_equal(pl_prefix_peek(t, 0, tokens, 0), 0);
    assert_int_equal(pl_prefix_peek(t, 1, tokens, 9), 0); /* another space */
    assert_int_equal(pl_prefix_adopt(t, 0, tokens, 9, &b), 8);
    assert_int_equal(pl_prefix_evict(t, 8), 0); /* in use */
    assert_int_equal(pl_prefix_evictable(t), 0);
    pl_block_table_deinit(&b, &pool);
    assert_int_equal(pl_prefix_evict(t, 8), 2);
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
    struct pl_block_table a = {0}, b = {0};
    assert_int_equal(pl_block_table_extend(&a, &pool, 3 * S, &from, &to), PL_OK);
    a.len = 3 * S;
    pl_prefix_insert(t, 0, tokens, 3 * S, &a);
    pl_block_table_deinit(&a, &pool);
    assert_int_equal(pl_prefix_adopt_state(t, 0, tokens, 3 * S + 1, &b, &got, &matched), 0);
    assert_true(matched == 3 * S && got == PL_STATE_NONE && b.count == 0);
    uint32_t one = pl_state_take(&kept), two = pl_state_take(&kept);
    assert_int_equal(pl_state_take(&kept), PL_STATE_NONE);
    pl_prefix_attach(t, 0, tokens, 2 * S, one);
    pl_prefix_attach(t, 0, tokens, 2 * S, two); /* has one */
    pl_prefix_attach(t, 1, tokens, S, two);     /* no such node */
    assert_true(kept.refs[one] == 2 && kept.refs[two] == 1);
    assert_false(pl_prefix_drop_state(t)); /* the taker still holds it */
    pl_state_unref(&kept, one);
    pl_state_unref(&kept, two);
    assert_int_equal(pl_prefix_adopt_state(t, 0, tokens, 3 * S + 1, &b, &got, &matched), 2 * S);
    assert_true(got == one && matched == 3 * S && kept.refs[one] == 2 && b.count == 2);
    assert_null(pl_prefix_check(t));
    assert_int_equal(pl_prefix_evict(t, 8), 1); /* the last page; the others are adopted */
    pl_block_table_deinit(&b, &pool);
    pl_state_unref(&kept, got);
    assert_int_equal(pl_prefix_evict(t, 1), 1); /* takes its state along */
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
    uint32_t tokens[4] = {1, 2, 3, 4}, from, to;
    struct pl_block_table a = {0};
    assert_int_equal(pl_block_table_extend(&a, &pool, 4, &from, &to), PL_OK);
    pl_prefix_insert(t, 0, tokens, 4, &a);
    assert_null(pl_prefix_check(t));
    uint32_t page = a.pages[0], refs = pool.refs[page];
    pool.refs[page] = 0;
    assert_non_null(pl_prefix_check(t));
    pool.refs[page] = refs;
    pl_block_table_deinit(&a, &pool);
    pl_prefix_destroy(t);
    pl_page_pool_deinit(&pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_programs),
        cmocka_unit_test(the_last_token_is_never_adopted),
        cmocka_unit_test(states_bound_adoption),
        cmocka_unit_test(a_planted_fault_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
