/* JSON that is read here, against jansson's own reader: the same texts are taken, with equal values; and with every
 * allocation failing in turn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/mem.h"

static const char *const texts[] = {
    "{}",
    "[]",
    " [ ] ",
    "{\"a\":1}",
    "[1,-2,0,-0,9223372036854775807,-9223372036854775808]",
    "[9223372036854775808]",
    "[-9223372036854775809]",
    "[1.5,-0.0,1e3,1E+3,2e-3,0.1,123456789.123456789e-20,1e308,5e-324,1e-400]",
    "[1e309]",
    "[-1e999]",
    "[01]",
    "[-]",
    "[1.]",
    "[.5]",
    "[1e]",
    "[1e+]",
    "[+1]",
    "[0x1]",
    "[1",
    "[1,]",
    "[,1]",
    "[1 2]",
    "[1]]",
    "{\"a\":1,}",
    "{\"a\"}",
    "{\"a\":}",
    "{a:1}",
    "{1:2}",
    "{\"a\":1 \"b\":2}",
    "{\"a\":1,\"a\":2}",
    "{\"a\":{\"b\":[{}]}}",
    "[true,false,null]",
    "[tru]",
    "[truex]",
    "[nul]",
    "[True]",
    "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20ac\\ud83d\\ude00\"]",
    "[\"\\u0000\"]",
    "[\"\\ud800\"]",
    "[\"\\ud800x\"]",
    "[\"\\ud800\\u0041\"]",
    "[\"\\ude00\"]",
    "[\"\\u12\"]",
    "[\"\\u12g4\"]",
    "[\"\\x\"]",
    "[\"\\",
    "[\"a",
    "[\"a\nb\"]",
    "[\"\x7f\"]",
    "[\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"]",
    "[\"\xFF\"]",
    "[\"\xC0\x80\"]",
    "[\"\xED\xA0\x80\"]",
    "[\"\xF4\x90\x80\x80\"]",
    "[\"\xE2\x82\"]",
    "{\"\\u0000a\":1}",
    "{\"\":1}",
    "\"text\"",
    "12",
    "1.5",
    "null",
    "",
    "   ",
    "\xEF\xBB\xBF[]",
    "[]x",
    "[] []",
    "[\"a long text that does not fit a small buffer \\u00e9 and goes on\"]",
    "{\"a\":\"b\",\"c\":[\"d\",{\"e\":null}],\"f\":-12.75,\"g\":\"\\n\"}",
    "[[[[[[[[[[[[1]]]]]]]]]]]]",
    "[1\f]",
    "[\v]",
    "\t\r\n[]\t\r\n",
};
static const size_t flags[] = {0, JSON_REJECT_DUPLICATES, JSON_DECODE_ANY, JSON_ALLOW_NUL,
                               JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES};

static void expect_same(const char *text, size_t len, size_t f) {
    json_error_t e;
    struct pl_json_fault why;
    json_t *theirs = json_loadb(text, len, f, &e), *ours = pl_json_read(text, len, f, &why);
    if ((theirs == NULL) != (ours == NULL))
        fail_msg("'%.*s' (%zu): %s; jansson: %s", (int)len, text, f, ours != NULL ? "taken" : why.text,
                 theirs != NULL ? "taken" : e.text);
    if (ours != NULL && !json_equal(ours, theirs)) fail_msg("'%.*s' differs", (int)len, text);
    if (ours == NULL) assert_true(why.text[0] != '\0' && why.at <= len && why.line >= 1 && !why.no_memory);
    json_decref(ours);
    json_decref(theirs);
}

static void what_jansson_takes_is_taken(void **state) {
    (void)state;
    for (size_t i = 0; i < PL_COUNT_OF(texts); i++)
        for (size_t k = 0; k < PL_COUNT_OF(flags); k++) expect_same(texts[i], strlen(texts[i]), flags[k]);
    expect_same("[\"a\0b\"]", 7, JSON_ALLOW_NUL);
    expect_same("[1]\0", 4, 0);
}

/* Every text cut at every byte, and with every byte replaced by others that matter. */
static void broken_texts_end_alike(void **state) {
    (void)state;
    static const char others[] = "\"\\{}[],:0-1.eEu \n\x80\xC3\xFF";
    char copy[256];
    for (size_t i = 0; i < PL_COUNT_OF(texts); i++) {
        size_t len = strlen(texts[i]);
        memcpy(copy, texts[i], len);
        for (size_t n = 0; n < len; n++) expect_same(copy, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES);
        for (size_t n = 0; n < len; n++) {
            for (size_t k = 0; k < sizeof others - 1; k++) {
                copy[n] = others[k];
                expect_same(copy, len, JSON_ALLOW_NUL | JSON_DECODE_ANY);
            }
            copy[n] = texts[i][n];
        }
    }
}

static void depth_is_bounded(void **state) {
    (void)state;
    static char text[6000];
    for (size_t depth = 2040; depth <= 2056; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        expect_same(text, 2 * depth, 0);
    }
}

static void places_are_told(void **state) {
    (void)state;
    struct pl_json_fault why;
    assert_null(pl_json_read("{\n \"a\": 1,\n \"a\": 2}", 20, JSON_REJECT_DUPLICATES, &why));
    assert_int_equal(why.line, 3);
    assert_true(why.at >= 13 && why.at <= 16);
    assert_string_equal(why.text, "duplicate object key");
    assert_null(pl_json_read("[1,", 3, 0, NULL));
}

/* A failed allocation gives nothing, and says so; without one the value is whole. */
static void every_allocation_may_fail(void **state) {
    (void)state;
    static const char text[] =
        "{\"name\":\"a text of more than sixteen bytes \\u00e9\",\"b\":[1,2,3,4,5,6,7,8,9,10,\"x\",1.5],\"c\":{\"d\":"
        "{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1}}}";
    json_t *whole = pl_json_read(text, sizeof text - 1, 0, NULL);
    char *written = pl_json_write(whole, JSON_COMPACT);
    assert_non_null(written);
    uint64_t failed = 0;
    for (uint64_t n = 1;; n++) {
        struct pl_json_fault why = {0};
        uint64_t before = pl_mem_calls();
        pl_json_watch();
        pl_mem_fail_at(n);
        json_t *v = pl_json_read(text, sizeof text - 1, 0, &why);
        bool reached = pl_mem_calls() - before >= n;
        pl_mem_fail_at(0);
        assert_int_equal(v == NULL, reached);
        assert_int_equal(pl_json_starved(), reached);
        assert_int_equal(why.no_memory, reached);
        if (v != NULL) assert_true(json_equal(v, whole));
        json_decref(v);
        failed += reached;
        if (!reached) break;
    }
    assert_true(failed > 40);
    for (uint64_t n = 1;; n++) {
        uint64_t before = pl_mem_calls();
        pl_mem_fail_at(n);
        char *again = pl_json_write(whole, JSON_COMPACT);
        bool reached = pl_mem_calls() - before >= n;
        pl_mem_fail_at(0);
        assert_int_equal(again == NULL, reached);
        if (again != NULL) assert_string_equal(again, written);
        pl_free(again);
        if (!reached) break;
    }
    pl_free(written);
    json_decref(whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_jansson_takes_is_taken),
        cmocka_unit_test(broken_texts_end_alike),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(places_are_told),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
