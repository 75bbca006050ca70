/* The scheduler simulated with random arrivals, lengths, cancellations and a page pool that is too small, from one
 * seed, with every promise of sched.h checked after every step; and its checker shown to see planted faults. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "sched/sched.h"

enum { MAX_LIVE = 4096 };

struct sim {
    struct pl_sched *s;
    struct pl_page_pool pool;
    struct pl_sched_config c;
    uint64_t seed, draws, now;
    uint64_t submitted, ended, busy;
    uint64_t longest_first_token, most_preemptions;
    bool same_priority;
    uint32_t mixed; /* rows of a step that decodes too; 0: no such limit */
};

static uint32_t draw(struct sim *m, uint32_t below) {
    uint32_t counter[4] = {(uint32_t)m->draws, (uint32_t)(m->draws >> 32), 0, 0};
    uint32_t key[2] = {(uint32_t)m->seed, (uint32_t)(m->seed >> 32)};
    m->draws++;
    return pl_philox4x32(counter, key).v[0] % below;
}

static void sim_init(struct sim *m, uint64_t seed, uint32_t pages, struct pl_sched_config c) {
    *m = (struct sim){.seed = seed, .c = c, .same_priority = true, .now = 1};
    assert_int_equal(pl_page_pool_init(&m->pool, pages, 16), PL_OK);
    const struct pl_page_pools pools = {{&m->pool, NULL}, 0};
    assert_int_equal(pl_sched_create(&c, &pools, NULL, &m->s, NULL), PL_OK);
}

static void sim_deinit(struct sim *m) {
    pl_sched_destroy(m->s);
    assert_int_equal(m->pool.free_count, m->pool.page_count);
    pl_page_pool_deinit(&m->pool);
}

static void submit_some(struct sim *m, uint64_t total) {
    while (m->submitted < total && draw(m, 3) != 0) {
        uint32_t prompt = 1 + draw(m, draw(m, 8) == 0 ? 400 : 60), fresh = 1 + draw(m, 80);
        int32_t priority = m->same_priority ? 0 : (int32_t)draw(m, 3);
        enum pl_status st = pl_sched_submit(m->s, m->submitted, prompt, fresh, priority, m->now, NULL);
        if (st == PL_BUSY) {
            m->busy++;
            return;
        }
        assert_int_equal(st, PL_OK);
        if (m->c.score_tokens > 0 && draw(m, 3) == 0) pl_sched_mark_scored(m->s, m->submitted);
        m->submitted++;
    }
}

/* Requests one token behind before the step must be in it, unless they were preempted by it. */
static void check_plan(struct sim *m, const struct pl_sched_plan *p) {
    bool in_plan[64] = {false};
    uint32_t rows = 0, prefill = 0, scored = 0;
    assert_true(m->c.max_running <= 64);
    for (uint32_t i = 0; i < p->item_count; i++) {
        const struct pl_sched_item *it = &p->items[i];
        const struct pl_sched_request *r = pl_sched_slot(m->s, it->slot);
        assert_int_equal(it->row, rows);
        assert_int_equal(it->first, r->computed);
        assert_true(it->count >= 1 && it->first + it->count <= r->known);
        assert_int_equal(it->wants_token, it->first + it->count == r->known);
        assert_true((uint64_t)r->tables.of[PL_PAGES_FULL].count * 16 >= it->first + it->count);
        assert_false(in_plan[it->slot]);
        in_plan[it->slot] = true;
        rows += it->count;
        if (r->known - r->computed > 1) prefill += it->count;
        if (r->known - r->computed > 1 && r->scored) scored += it->count;
    }
    assert_int_equal(rows, p->rows);
    if (m->mixed > 0 && rows > prefill) assert_true(rows <= m->mixed || prefill <= 1);
    assert_true(rows <= m->c.step_tokens && prefill <= m->c.prefill_tokens && scored <= m->c.score_tokens);
    for (uint32_t i = 0; i < m->c.max_running; i++) {
        const struct pl_sched_request *r = pl_sched_slot(m->s, i);
        if (r->phase == PL_REQ_RUNNING && r->known - r->computed == 1) assert_true(in_plan[i]);
    }
}

static void drain_ended(struct sim *m) {
    struct pl_sched_request r;
    while (pl_sched_pop_ended(m->s, &r)) {
        m->ended++;
        if (r.first_token_at != 0) {
            uint64_t wait = r.first_token_at - r.submitted_at;
            if (wait > m->longest_first_token) m->longest_first_token = wait;
        }
        if (r.preemptions > m->most_preemptions) m->most_preemptions = r.preemptions;
        if (!r.cancelled) assert_true(r.known > r.prompt && r.known <= r.limit);
    }
}

static uint64_t simulate(struct sim *m, uint64_t total, uint32_t cancel_one_in) {
    uint64_t trace = 1469598103934665603u;
    for (uint64_t step = 0; m->ended < total; step++) {
        assert_true(step < 200 * total + 100000); /* progress */
        m->now++;
        submit_some(m, total);
        if (draw(m, 16) == 0) pl_sched_limit_mixed(m->s, m->mixed = 1 + draw(m, 100));
        struct pl_sched_plan p;
        pl_sched_plan(m->s, &p);
        check_plan(m, &p);
        bool ends[64];
        for (uint32_t i = 0; i < p.item_count; i++) {
            ends[i] = draw(m, 50) == 0;
            trace = (trace ^ (p.items[i].slot * 131071u + p.items[i].count)) * 1099511628211u;
        }
        if (cancel_one_in != 0 && m->submitted > 0 && draw(m, cancel_one_in) == 0)
            pl_sched_cancel(m->s, m->submitted - 1 - draw(m, (uint32_t)PL_MIN(m->submitted, 100)), m->now);
        pl_sched_commit(m->s, &p, ends, m->now);
        const char *wrong = pl_sched_check(m->s);
        if (wrong != NULL) fail_msg("seed %llu step %llu: %s", (unsigned long long)m->seed, (unsigned long long)step, wrong);
        drain_ended(m);
    }
    return trace;
}

static const struct pl_sched_config small = {
    .max_running = 16, .step_tokens = 96, .prefill_tokens = 64, .max_waiting = 64, .reserve_pages = 4};

static void a_hundred_thousand_requests(void **state) {
    (void)state;
    struct sim m;
    sim_init(&m, 20261130, 40, small); /* 640 tokens for 16 slots of up to 480: preemption is certain */
    simulate(&m, 100000, 7);
    struct pl_sched_stats st = pl_sched_stats(m.s);
    assert_true(st.preempted > 1000 && st.cancelled > 1000 && m.busy > 0);
    assert_int_equal(st.finished + st.cancelled, 100000);
    /* Waiting is bounded: the queue ahead is at most 64 + 16 requests of at most 480 tokens, one advances every step. */
    assert_true(m.longest_first_token < (64 + 16) * 480);
    printf("# seed 20261130: %llu steps, %llu preemptions, first token after at most %llu steps\n",
           (unsigned long long)st.steps, (unsigned long long)st.preempted, (unsigned long long)m.longest_first_token);
    sim_deinit(&m);
}

static void equal_seeds_give_equal_plans(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct sim a, b;
        uint32_t pages = 31 + (uint32_t)seed;
        sim_init(&a, seed, pages, small);
        sim_init(&b, seed, pages, small);
        a.same_priority = b.same_priority = seed % 2 == 0;
        assert_true(simulate(&a, 500, 5) == simulate(&b, 500, 5));
        sim_deinit(&a);
        sim_deinit(&b);
    }
}

/* With one priority no running request stands behind a waiting one in the total order. */
static void nobody_is_overtaken(void **state) {
    (void)state;
    struct sim m;
    sim_init(&m, 7, 36, small);
    uint64_t next_first =
        0; /* first tokens of never-cancelled, equal-priority requests of one token prompts come in order */
    for (uint64_t i = 0; i < 40; i++) assert_int_equal(pl_sched_submit(m.s, i, 30, 20, 0, 1, NULL), PL_OK);
    bool seen[40] = {false};
    while (pl_sched_running(m.s) + pl_sched_waiting(m.s) > 0) {
        struct pl_sched_plan p;
        pl_sched_plan(m.s, &p);
        bool ends[64] = {false};
        for (uint32_t i = 0; i < p.item_count; i++) {
            const struct pl_sched_request *r = pl_sched_slot(m.s, p.items[i].slot);
            if (!p.items[i].wants_token || seen[r->id]) continue;
            seen[r->id] = true;
            assert_true(r->id <= next_first + 1); /* two may get their first token in one step, in either slot */
            next_first = PL_MAX(next_first, r->id);
        }
        pl_sched_commit(m.s, &p, ends, ++m.now);
        assert_null(pl_sched_check(m.s));
    }
    for (int i = 0; i < 40; i++) assert_true(seen[i]);
    sim_deinit(&m);
}

/* One group fills the queue, then another asks: it does not stand behind all of the first. Both ask for more than there are
 * places: they share them evenly. */
static void groups_share_the_places(void **state) {
    (void)state;
    struct sim m;
    sim_init(&m, 7, 400, small);
    for (uint64_t i = 0; i < 50; i++) { /* longer and longer, so that places become free one by one */
        assert_int_equal(pl_sched_submit(m.s, i, 20, 5 + (uint32_t)i, 0, 1, NULL), PL_OK);
        pl_sched_set_group(m.s, i, 1);
    }
    uint64_t step = 0, late_first = 0;
    uint32_t most_apart = 0;
    while (pl_sched_running(m.s) + pl_sched_waiting(m.s) > 0) {
        struct pl_sched_plan p;
        if (step == 8)
            for (uint64_t i = 50; i < 80; i++) {
                assert_int_equal(pl_sched_submit(m.s, i, 20, 40, 0, 1, NULL), PL_OK);
                pl_sched_set_group(m.s, i, 2);
            }
        pl_sched_plan(m.s, &p);
        bool ends[64] = {false};
        uint32_t of[3] = {0};
        for (uint32_t i = 0; i < p.item_count; i++) {
            const struct pl_sched_request *r = pl_sched_slot(m.s, p.items[i].slot);
            of[r->group]++;
            if (r->group == 2 && late_first == 0) late_first = step;
        }
        if (step > 60 && step < 70) most_apart = PL_MAX(most_apart, of[1] > of[2] ? of[1] - of[2] : of[2] - of[1]);
        pl_sched_commit(m.s, &p, ends, ++m.now);
        assert_null(pl_sched_check(m.s));
        step++;
    }
    printf("# a late group waited %llu steps; places of the two differ by %u\n", (unsigned long long)late_first - 8,
           most_apart);
    assert_true(late_first > 0 && late_first <= 8 + 8); /* the first place that became free */
    assert_true(most_apart <= 4);
    sim_deinit(&m);
}

/* A more urgent request is admitted first and, where pages are short, takes them from less urgent ones. */
static void urgent_requests_come_first(void **state) {
    (void)state;
    struct sim m;
    sim_init(&m, 7, 40, small);
    for (uint64_t i = 0; i < 60; i++) assert_int_equal(pl_sched_submit(m.s, i, 40, 100, 0, 1, NULL), PL_OK);
    uint64_t step = 0, submitted = 30, first = 0;
    for (; pl_sched_running(m.s) + pl_sched_waiting(m.s) > 0; step++) {
        struct pl_sched_plan p;
        if (step == submitted) assert_int_equal(pl_sched_submit(m.s, 99, 40, 100, 5, 1, NULL), PL_OK);
        pl_sched_plan(m.s, &p);
        bool ends[64] = {false};
        for (uint32_t i = 0; i < p.item_count; i++)
            if (pl_sched_slot(m.s, p.items[i].slot)->id == 99 && p.items[i].wants_token && first == 0) first = step;
        pl_sched_commit(m.s, &p, ends, ++m.now);
        assert_null(pl_sched_check(m.s));
    }
    printf("# an urgent request among 60 others waited %llu steps for its first token\n",
           (unsigned long long)(first - submitted));
    assert_true(first - submitted <= 200); /* one place and its pages, not the queue */
    sim_deinit(&m);
}

static void scored_requests_share_their_rows(void **state) {
    (void)state;
    struct sim m;
    struct pl_sched_config c = small;
    c.score_tokens = 10;
    sim_init(&m, 7, 200, c);
    simulate(&m, 3000, 7);
    sim_deinit(&m);
}

static void refusals_name_the_numbers(void **state) {
    (void)state;
    struct sim m;
    sim_init(&m, 1, 10, small);
    struct pl_err err = {0};
    assert_int_equal(pl_sched_submit(m.s, 1, 100, 62, 0, 1, &err), PL_LIMIT);
    assert_non_null(strstr(err.text, "161")); /* the last new token is never computed */
    assert_non_null(strstr(err.text, "160"));
    assert_int_equal(pl_sched_submit(m.s, 1, UINT32_MAX, UINT32_MAX, 0, 1, &err), PL_LIMIT);
    assert_int_equal(pl_sched_submit(m.s, 1, 0, 1, 0, 1, &err), PL_INVALID);
    assert_int_equal(pl_sched_submit(m.s, 1, 1, 0, 0, 1, &err), PL_INVALID);
    for (uint64_t i = 0; i < 64 + 16; i++) /* the queue, and all slots are free */
        assert_int_equal(pl_sched_submit(m.s, i, 1, 1, 0, 1, &err), PL_OK);
    assert_int_equal(pl_sched_submit(m.s, 99, 1, 1, 0, 1, &err), PL_BUSY);
    assert_false(pl_sched_cancel(m.s, 12345, 2));
    struct pl_sched_config bad = small;
    bad.step_tokens = 16;
    struct pl_sched *none;
    struct pl_page_pools pools = {{&m.pool, NULL}, 0};
    assert_int_equal(pl_sched_create(&bad, &pools, NULL, &none, &err), PL_INVALID);
    pools = (struct pl_page_pools){{&m.pool, &m.pool}, 1000}; /* a window that does not fit its pages */
    assert_int_equal(pl_sched_create(&small, &pools, NULL, &none, &err), PL_INVALID);
    assert_non_null(strstr(err.text, "1000"));
    sim_deinit(&m);
}

/* The checker must see what it exists for. */
static void planted_faults_are_seen(void **state) {
    (void)state;
    struct sim m;
    sim_init(&m, 3, 40, small);
    assert_int_equal(pl_sched_submit(m.s, 1, 40, 10, 0, 1, NULL), PL_OK);
    struct pl_sched_plan p;
    pl_sched_plan(m.s, &p);
    assert_null(pl_sched_check(m.s));
    uint32_t stolen;
    assert_int_equal(pl_page_take(&m.pool, &stolen), PL_OK);
    assert_non_null(pl_sched_check(m.s)); /* a page lost */
    pl_page_unref(&m.pool, stolen);
    assert_null(pl_sched_check(m.s));
    struct pl_sched_request *r = (struct pl_sched_request *)(uintptr_t)pl_sched_slot(m.s, p.items[0].slot);
    r->computed = r->known;
    assert_non_null(pl_sched_check(m.s)); /* nothing left to compute */
    r->computed = 0;
    uint32_t limit = r->limit;
    r->limit = r->known - 1;
    assert_non_null(pl_sched_check(m.s)); /* past its limit */
    r->limit = limit;
    bool ends[1] = {false};
    pl_sched_commit(m.s, &p, ends, 2);
    sim_deinit(&m);
}

/* The same for windowed pages: lost ones, those of a window given back, those before it kept. */
static void planted_faults_of_windows_are_seen(void **state) {
    (void)state;
    struct pl_page_pool full, windowed;
    struct pl_sched *s;
    struct pl_sched_plan p;
    const bool ends[1] = {false};
    assert_int_equal(pl_page_pool_init(&full, 40, 16), PL_OK);
    assert_int_equal(pl_page_pool_init(&windowed, 20, 16), PL_OK);
    const struct pl_page_pools pools = {{&full, &windowed}, 40};
    struct pl_sched_config c = small;
    c.prefill_tokens = 32;
    assert_int_equal(pl_sched_create(&c, &pools, NULL, &s, NULL), PL_OK);
    assert_int_equal(pl_sched_submit(s, 1, 200, 10, 0, 1, NULL), PL_OK);
    for (uint64_t now = 2; now < 6; now++) {
        pl_sched_plan(s, &p);
        assert_null(pl_sched_check(s));
        pl_sched_commit(s, &p, ends, now);
        assert_null(pl_sched_check(s));
    }
    struct pl_sched_request *r = (struct pl_sched_request *)(uintptr_t)pl_sched_slot(s, p.items[0].slot);
    struct pl_block_table *t = &r->tables.of[PL_PAGES_WINDOWED];
    assert_true(r->computed == 128 && t->count == 8 && t->gone == (128 - 39) / 16 && windowed.free_count == 17);
    uint32_t stolen;
    assert_int_equal(pl_page_take(&windowed, &stolen), PL_OK);
    assert_non_null(pl_sched_check(s));
    pl_page_unref(&windowed, stolen);
    pl_block_table_trim(t, &windowed, 112);
    assert_non_null(pl_sched_check(s));
    while (t->gone > 0) windowed.refs[t->pages[--t->gone]]++; /* as if none had been given back */
    windowed.free_count = 0;
    for (uint32_t i = 0; i < windowed.page_count; i++) windowed.free_count += windowed.refs[i] == 0;
    assert_string_equal(pl_sched_check(s), "pages before a window were not given back");
    pl_sched_destroy(s);
    pl_page_pool_deinit(&full);
    pl_page_pool_deinit(&windowed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planted_faults_of_windows_are_seen),
        cmocka_unit_test(a_hundred_thousand_requests),
        cmocka_unit_test(equal_seeds_give_equal_plans),
        cmocka_unit_test(groups_share_the_places),
        cmocka_unit_test(urgent_requests_come_first),
        cmocka_unit_test(nobody_is_overtaken),
        cmocka_unit_test(scored_requests_share_their_rows),
        cmocka_unit_test(refusals_name_the_numbers),
        cmocka_unit_test(planted_faults_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
