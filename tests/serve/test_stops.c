/* Stop strings over any split of the text, against a naive search in the whole; JSON strings of hostile bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <string.h>

#include "base/philox.h"
#include "serve/json_out.h"
#include "serve/stops.h"

static uint64_t draws;
static uint32_t draw(uint32_t below) {
    uint32_t c[4] = {(uint32_t)draws++, 5, 0, 0}, k[2] = {1, 2};
    return pl_philox4x32(c, k).v[0] % below;
}

/* What a client may see of text: everything before the stop string that completes first. */
static size_t visible(const char *text, const struct pl_stops *s, bool *stopped) {
    size_t len = strlen(text);
    for (size_t end = 1; end <= len; end++) {
        size_t longest = 0;
        for (uint32_t i = 0; i < s->count; i++)
            if (s->len[i] <= end && memcmp(text + end - s->len[i], s->text[i], s->len[i]) == 0)
                longest = PL_MAX(longest, s->len[i]);
        *stopped = longest > 0;
        if (*stopped) return end - longest;
    }
    *stopped = false;
    return len;
}

static void any_split_shows_the_same(void **state) {
    (void)state;
    for (int round = 0; round < 20000; round++) {
        struct pl_stops s = {0};
        char text[64] = "", stop[8];
        for (uint32_t i = 0, n = 1 + draw(3); i < n; i++) {
            size_t len = 1 + draw(4);
            for (size_t k = 0; k < len; k++) stop[k] = (char)('a' + draw(2));
            assert_int_equal(pl_stops_add(&s, stop, len, NULL), PL_OK);
        }
        size_t total = draw(40);
        for (size_t k = 0; k < total; k++) text[k] = (char)('a' + draw(k % 3 == 0 ? 3 : 2));
        bool want_stop, stopped = false;
        size_t want = visible(text, &s, &want_stop);
        struct pl_buf held = {0}, seen = {0};
        for (size_t at = 0; at < total && !stopped;) {
            size_t n = 1 + draw(5), release;
            if (n > total - at) n = total - at;
            uint32_t which;
            pl_buf_add(&held, text + at, n);
            at += n;
            stopped = pl_stops_scan(&s, &held, &release, &which);
            pl_buf_add(&seen, pl_buf_cstr(&held), release);
            memmove(held.data, held.data + release, held.len - release + 1);
            held.len -= release;
            /* Nothing shown is ever taken back, and no part of a stop string is shown. */
            assert_true(seen.len <= want);
        }
        if (!stopped) pl_buf_add(&seen, pl_buf_cstr(&held), held.len);
        assert_int_equal(stopped, want_stop);
        assert_int_equal(seen.len, want);
        assert_memory_equal(pl_buf_cstr(&seen), text, want);
        pl_buf_deinit(&held);
        pl_buf_deinit(&seen);
        pl_stops_deinit(&s);
    }
}

static void limits_are_errors(void **state) {
    (void)state;
    struct pl_stops s = {0};
    struct pl_err err = {0};
    assert_int_equal(pl_stops_add(&s, "", 0, &err), PL_INVALID);
    for (int i = 0; i < PL_STOPS_MAX; i++) assert_int_equal(pl_stops_add(&s, "x", 1, &err), PL_OK);
    assert_int_equal(pl_stops_add(&s, "x", 1, &err), PL_INVALID);
    pl_stops_deinit(&s);
}

static void every_byte_string_is_valid_json(void **state) {
    (void)state;
    for (int round = 0; round < 20000; round++) {
        char bytes[24];
        size_t len = draw(sizeof bytes);
        for (size_t i = 0; i < len; i++) {
            static const char pick[] = "\"\\\n\t\x7f\xC3\xA9\xF0\x9F\x98\x80z";
            bytes[i] = draw(4) == 0 ? (char)draw(256) : pick[draw(12)];
        }
        struct pl_buf b = {0};
        pl_json_add_string(&b, bytes, len);
        json_error_t e;
        json_t *v = json_loadb(b.data, b.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
        assert_non_null(v);
        if (pl_utf8_valid(bytes, len)) {
            assert_int_equal(json_string_length(v), len);
            assert_memory_equal(json_string_value(v), bytes, len);
        }
        json_decref(v);
        pl_buf_deinit(&b);
    }
}

/* Clients that read events with a Unicode-aware split into lines must not find one inside a string. */
static void no_string_holds_an_end_of_line(void **state) {
    (void)state;
    const char text[] = "a\xC2\x85\xC2\xA0"
                        "b\xE2\x80\xA7\xE2\x80\xA8\xE2\x80\xA9\xE2\x80\xAA\x0B\x0C\x1C\x1Dz\xE2\x80";
    struct pl_buf b = {0};
    pl_json_add_string(&b, text, sizeof text - 1);
    const char want[] = "\"a\\u0085\xC2\xA0"
                        "b\xE2\x80\xA7\\u2028\\u2029\xE2\x80\xAA\\u000b\\u000c\\u001c\\u001dz\xEF\xBF\xBD\xEF\xBF\xBD\"";
    assert_int_equal(b.len, sizeof want - 1);
    assert_memory_equal(b.data, want, b.len);
    pl_buf_deinit(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_split_shows_the_same),
        cmocka_unit_test(limits_are_errors),
        cmocka_unit_test(every_byte_string_is_valid_json),
        cmocka_unit_test(no_string_holds_an_end_of_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
