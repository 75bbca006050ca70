/* Units of src/base: arithmetic, strings, arena, map, Philox known answers, pool. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/philox.h"
#include "base/pool.h"
#include "base/str.h"

static void checked_arithmetic(void **state) {
    (void)state;
    size_t v = 7;
    assert_false(pl_mul_size(SIZE_MAX, 2, &v));
    assert_false(pl_add_size(SIZE_MAX, 1, &v));
    assert_int_equal(v, 7);
    assert_true(pl_align_up(33, 32, &v));
    assert_int_equal(v, 64);
    assert_false(pl_align_up(1, 3, &v));
    assert_false(pl_align_up(1, 0, &v));
}

static void numbers_are_parsed_strictly(void **state) {
    (void)state;
    int64_t i;
    assert_true(pl_parse_i64("-12", -100, 100, &i));
    assert_int_equal(i, -12);
    assert_false(pl_parse_i64("12 ", -100, 100, &i));
    assert_false(pl_parse_i64(" 12", -100, 100, &i));
    assert_false(pl_parse_i64("", -100, 100, &i));
    assert_false(pl_parse_i64("99999999999999999999", INT64_MIN, INT64_MAX, &i));
    double d;
    assert_false(pl_parse_f64("nan", -1, 1, &d));
    assert_false(pl_parse_f64("1e999", -1e300, 1e300, &d));
    assert_true(pl_parse_f64(".5", 0, 1, &d));
}

static void utf8_borders(void **state) {
    (void)state;
    assert_int_equal(pl_utf8_len("\xF4\x8F\xBF\xBF", 4), 4);
    assert_int_equal(pl_utf8_len("\xF4\x90\x80\x80", 4), 0);
    assert_int_equal(pl_utf8_len("\xED\xA0\x80", 3), 0);
    assert_int_equal(pl_utf8_len("\xC0\x80", 2), 0);
    assert_int_equal(pl_utf8_incomplete_tail("a\xE2\x82", 3), 2);
    assert_int_equal(pl_utf8_incomplete_tail("a\xE2\x82\xAC", 4), 0);
    struct pl_buf b = {0};
    for (uint32_t cp = 0; cp < 0x110000; cp += 97) {
        if (cp >= 0xD800 && cp < 0xE000) continue;
        pl_buf_clear(&b);
        pl_buf_add_utf8(&b, cp);
        assert_int_equal(pl_utf8_len(b.data, b.len), b.len);
        assert_int_equal(pl_utf8_decode(b.data, b.len), cp);
    }
    pl_buf_deinit(&b);
}

static void philox_known_answers(void **state) {
    (void)state; /* the three published vectors of Random123 */
    const struct {
        uint32_t c[4], k[2], r[4];
    } kat[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < PL_COUNT_OF(kat); i++) {
        struct pl_philox r = pl_philox4x32(kat[i].c, kat[i].k);
        assert_memory_equal(r.v, kat[i].r, sizeof r.v);
    }
    assert_true(pl_uniform_open(UINT32_MAX) < 1.0f);
    assert_true(pl_uniform_open(0) > 0.0f);
}

static void map_against_many_keys(void **state) {
    (void)state;
    struct pl_map m;
    pl_map_init(&m);
    static char keys[5000][8];
    for (uint32_t i = 0; i < 5000; i++) {
        snprintf(keys[i], sizeof keys[i], "k%u", i);
        bool existed;
        assert_int_equal(pl_map_put(&m, keys[i], strlen(keys[i]), i, &existed), PL_OK);
        assert_false(existed);
    }
    bool existed;
    assert_int_equal(pl_map_put(&m, "k7", 2, 1, &existed), PL_OK);
    assert_true(existed);
    for (uint32_t i = 0; i < 5000; i++) {
        uint32_t v = 0;
        assert_true(pl_map_get(&m, keys[i], strlen(keys[i]), &v));
        assert_int_equal(v, i);
    }
    uint32_t v;
    assert_false(pl_map_get(&m, "k", 1, &v));
    pl_map_deinit(&m);
}

static void arena_limit_and_failure(void **state) {
    (void)state;
    struct pl_arena a;
    pl_arena_init(&a, 1 << 20);
    assert_non_null(pl_arena_alloc(&a, 1000, 1000));
    assert_null(pl_arena_alloc(&a, 1000, 1000));
    assert_null(pl_arena_alloc(&a, SIZE_MAX, 2));
    pl_arena_reset(&a);
    char *s = pl_arena_strndup(&a, "hello", 5);
    assert_string_equal(s, "hello");
    pl_arena_deinit(&a);
    pl_mem_fail_at(1);
    assert_null(pl_alloc(1, 1));
    void *p = pl_alloc(1, 1);
    assert_non_null(p);
    pl_free(p);
}

struct count_job {
    struct pl_pool *pool;
    _Atomic int hits;
    int after_barrier[16];
};
static void count_job(void *arg, int index, int count) {
    struct count_job *j = arg;
    j->hits++;
    pl_pool_barrier(j->pool);
    j->after_barrier[index] = j->hits;
    (void)count;
}

static void pool_runs_every_thread_once(void **state) {
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        struct pl_pool *p;
        assert_int_equal(pl_pool_create(threads, &p, NULL), PL_OK);
        for (int round = 0; round < 300; round++) {
            struct count_job j = {.pool = p};
            pl_pool_run(p, count_job, &j);
            for (int i = 0; i < threads; i++) assert_int_equal(j.after_barrier[i], threads);
        }
        pl_pool_destroy(p);
    }
    struct pl_err err = {0};
    struct pl_pool *none = NULL;
    assert_int_equal(pl_pool_create(-1, &none, &err), PL_INVALID);
    assert_non_null(strstr(err.text, "-1"));
}

/* Units of work taken from a counter: each is done once, whoever came, also between runs that all must join. */
struct take_job {
    _Atomic size_t next;
    _Atomic int done[64];
};
static void take_job(void *arg, int index, int count) {
    (void)index;
    (void)count;
    struct take_job *j = arg;
    for (size_t i; (i = j->next++) < 64;) j->done[i]++;
}

static void pool_runs_with_whoever_comes(void **state) {
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        struct pl_pool *p;
        assert_int_equal(pl_pool_create(threads, &p, NULL), PL_OK);
        for (int round = 0; round < 2000; round++) {
            struct take_job j = {0};
            pl_pool_run_any(p, take_job, &j);
            for (int i = 0; i < 64; i++) assert_int_equal(j.done[i], 1);
            memset(&j, 0, sizeof j); /* nobody may still be inside */
            struct count_job all = {.pool = p};
            if (round % 7 == 0) pl_pool_run(p, count_job, &all);
            if (round % 7 == 0) assert_int_equal(all.hits, threads);
        }
        pl_pool_destroy(p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checked_arithmetic),
        cmocka_unit_test(numbers_are_parsed_strictly),
        cmocka_unit_test(utf8_borders),
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(map_against_many_keys),
        cmocka_unit_test(arena_limit_and_failure),
        cmocka_unit_test(pool_runs_every_thread_once),
        cmocka_unit_test(pool_runs_with_whoever_comes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
