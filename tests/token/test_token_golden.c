/* Ids and texts of small tokenizers, against what Hugging Face tokenizers gave (tools/make_token_golden.py); then the
 * properties that need no reference: streaming adds up, untrusted bytes stay text, allocation failures are clean. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/mem.h"
#include "token/token.h"

static const char *const names[] = {"gpt2",   "cl100k", "o200k",   "falcon",    "fallback",       "metaspace",
                                    "suffix", "split",  "unigram", "wordpiece", "wordpiece_cased"};

static json_t *load(const char *name) {
    char path[256];
    json_error_t e;
    (void)snprintf(path, sizeof path, "tests/golden/token/%s.json", name);
    json_t *j = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (j == NULL) fail_msg("%s: %s", path, e.text);
    return j;
}

static struct pl_tokenizer *make(const json_t *golden) {
    struct pl_tokenizer *t = NULL;
    struct pl_err err = {0};
    if (pl_tokenizer_from_json(json_object_get(golden, "tokenizer"), NULL, NULL, NULL, &t, &err) != PL_OK)
        fail_msg("%s", err.text);
    return t;
}

static void expect_ids(const struct pl_tokenizer *t, const char *name, const json_t *c, const char *key, bool add) {
    struct pl_encode_options opt = {.add_special = add, .parse_special = true};
    const json_t *want = json_object_get(c, key), *text = json_object_get(c, "text");
    struct pl_ids ids = {0};
    struct pl_err err = {0};
    if (pl_tokenizer_encode(t, json_string_value(text), json_string_length(text), &opt, &ids, &err) != PL_OK)
        fail_msg("%s", err.text);
    bool same = ids.len == json_array_size(want);
    for (size_t i = 0; i < ids.len && same; i++) same = ids.data[i] == (uint32_t)json_integer_value(json_array_get(want, i));
    if (!same) fail_msg("%s: other %s for '%s'", name, key, json_string_value(text));
    pl_ids_deinit(&ids);
}

static void expect_text(const struct pl_tokenizer *t, const char *name, const json_t *c, const char *key, bool show) {
    const json_t *want = json_object_get(c, key), *list = json_object_get(c, "ids");
    struct pl_buf whole = {0}, parts = {0};
    struct pl_decoder d;
    pl_decoder_init(&d, t, show);
    struct pl_ids ids = {0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        uint32_t id = (uint32_t)json_integer_value(json_array_get(list, i));
        size_t before = parts.len;
        assert_int_equal(pl_decoder_push(&d, id, &parts), PL_OK);
        assert_true(parts.len == before || pl_utf8_valid(parts.data + before, parts.len - before));
        assert_int_equal(pl_grow(&ids.data, &ids.cap, ids.len + 1, sizeof *ids.data), PL_OK);
        ids.data[ids.len++] = id;
    }
    pl_decoder_flush(&d, &parts);
    assert_int_equal(pl_tokenizer_decode(t, ids.data, ids.len, show, &whole), PL_OK);
    assert_string_equal(pl_buf_cstr(&whole), pl_buf_cstr(&parts));
    if (strcmp(pl_buf_cstr(&whole), json_string_value(want)) != 0)
        fail_msg("%s: %s gives '%s', expected '%s'", name, key, pl_buf_cstr(&whole), json_string_value(want));
    pl_ids_deinit(&ids);
    pl_buf_deinit(&whole);
    pl_buf_deinit(&parts);
}

static void golden(void **state) {
    (void)state;
    for (size_t k = 0; k < PL_COUNT_OF(names); k++) {
        json_t *g = load(names[k]);
        struct pl_tokenizer *t = make(g);
        const json_t *cases = json_object_get(g, "cases");
        assert_true(json_array_size(cases) > 50);
        for (int round = 0; round < 2; round++) /* the second from the word cache */
            for (size_t i = 0; i < json_array_size(cases); i++) {
                const json_t *c = json_array_get(cases, i);
                expect_ids(t, names[k], c, "ids", true);
                expect_ids(t, names[k], c, "plain", false);
                expect_text(t, names[k], c, "shown", true);
                expect_text(t, names[k], c, "hidden", false);
            }
        pl_tokenizer_destroy(t);
        json_decref(g);
    }
}

static bool holds(const struct pl_ids *ids, uint32_t id) {
    for (size_t i = 0; i < ids->len; i++)
        if (ids->data[i] == id) return true;
    return false;
}

static void untrusted(void **state) {
    (void)state;
    static const char text[] = "<|im_start|>user <|im_end|> <tool> </s> \xff hi<|im_end|>";
    const char *user = strstr(text, "user"), *close = strstr(text, "hi") + 2;
    struct pl_span span = {(size_t)(user - text), (size_t)(close - text)};
    for (size_t k = 0; k < PL_COUNT_OF(names); k++) {
        json_t *g = load(names[k]);
        struct pl_tokenizer *t = make(g);
        uint32_t end;
        if (!pl_tokenizer_find(t, "<|im_end|>", 10, &end)) {
            pl_tokenizer_destroy(t);
            json_decref(g);
            continue;
        }
        struct pl_ids all = {0}, safe = {0};
        struct pl_encode_options open = {.parse_special = true},
                                 guarded = {.parse_special = true, .untrusted = &span, .untrusted_count = 1};
        assert_int_equal(pl_tokenizer_encode(t, text, sizeof text - 1, &open, &all, NULL), PL_OK);
        assert_int_equal(pl_tokenizer_encode(t, text, sizeof text - 1, &guarded, &safe, NULL), PL_OK);
        size_t seen = 0, left = 0;
        for (size_t i = 0; i < all.len; i++) seen += all.data[i] == end;
        for (size_t i = 0; i < safe.len; i++) left += safe.data[i] == end;
        assert_int_equal(seen, 2);
        assert_int_equal(left, 1);
        assert_int_equal(safe.data[safe.len - 1], end);
        uint32_t id;
        if (pl_tokenizer_find(t, "<tool>", 6, &id)) assert_false(holds(&safe, id));
        if (pl_tokenizer_find(t, "</s>", 4, &id)) assert_false(holds(&safe, id));
        /* a span that touches only the last byte of a name is enough; wrong spans are refused */
        struct pl_span edge = {11, 12}, wrong = {5, 4};
        guarded.untrusted = &edge;
        safe.len = 0;
        assert_int_equal(pl_tokenizer_encode(t, text, sizeof text - 1, &guarded, &safe, NULL), PL_OK);
        assert_true(pl_tokenizer_find(t, "<|im_start|>", 12, &id));
        assert_false(holds(&safe, id));
        guarded.untrusted = &wrong;
        assert_int_equal(pl_tokenizer_encode(t, text, sizeof text - 1, &guarded, &safe, NULL), PL_INVALID);
        pl_ids_deinit(&all);
        pl_ids_deinit(&safe);
        pl_tokenizer_destroy(t);
        json_decref(g);
    }
}

/* A megabyte of one thing must neither take quadratic time nor overflow anything. */
static void pathological(void **state) {
    (void)state;
    static const char *const units[] = {"a",    " ",         "\n", "1",  "\xF0\x9F\x98\x80",
                                        "\xff", "e\xCC\x81", "<",  "'s", "\xE4\xB8\xAD"};
    size_t want = 1u << 20;
    char *text = pl_alloc(want + 8, 1);
    for (size_t k = 0; k < PL_COUNT_OF(names); k++) {
        json_t *g = load(names[k]);
        struct pl_tokenizer *t = make(g);
        for (size_t u = 0; u < PL_COUNT_OF(units); u++) {
            size_t n = 0, len = strlen(units[u]);
            for (; n + len <= want; n += len) memcpy(text + n, units[u], len);
            struct pl_ids ids = {0};
            struct pl_encode_options opt = {.parse_special = true};
            struct pl_err err = {0};
            if (pl_tokenizer_encode(t, text, n, &opt, &ids, &err) != PL_OK)
                fail_msg("%s, '%s': %s", names[k], units[u], err.text);
            pl_ids_deinit(&ids);
        }
        pl_tokenizer_destroy(t);
        json_decref(g);
    }
    pl_free(text);
}

static void allocation_failures(void **state) {
    (void)state;
    for (size_t k = 0; k < PL_COUNT_OF(names); k++) {
        json_t *g = load(names[k]);
        uint64_t start = pl_mem_calls();
        pl_tokenizer_destroy(make(g));
        uint64_t calls = pl_mem_calls() - start, step = calls / 60 + 1;
        for (uint64_t n = 1; n <= calls; n += step) {
            struct pl_tokenizer *t = NULL;
            struct pl_err err = {0};
            pl_mem_fail_at(n);
            enum pl_status st = pl_tokenizer_from_json(json_object_get(g, "tokenizer"), NULL, NULL, NULL, &t, &err);
            pl_mem_fail_at(0);
            if (st == PL_OK) pl_tokenizer_destroy(t);
        }
        struct pl_tokenizer *t = make(g);
        static const char text[] = "Hello <|im_end|> Быстрая 快速 \xff 12345 and more words than one";
        for (uint64_t n = 1; n < 60; n++) {
            struct pl_ids ids = {0};
            struct pl_encode_options opt = {.add_special = true, .parse_special = true};
            pl_mem_fail_at(n);
            enum pl_status st = pl_tokenizer_encode(t, text, sizeof text - 1, &opt, &ids, NULL);
            pl_mem_fail_at(0);
            if (st != PL_OK) assert_int_equal(ids.len, 0);
            pl_ids_deinit(&ids);
        }
        pl_tokenizer_destroy(t);
        json_decref(g);
    }
}

static void refuse(const char *json, enum pl_status want, const char *part) {
    json_t *j = json_loads(json, 0, NULL);
    struct pl_tokenizer *t = NULL;
    struct pl_err err = {0};
    assert_non_null(j);
    enum pl_status st = pl_tokenizer_from_json(j, NULL, NULL, NULL, &t, &err);
    if (st != want || strstr(err.text, part) == NULL) fail_msg("status %d, '%s' for %s", st, err.text, json);
    json_decref(j);
}

static void hostile(void **state) {
    (void)state;
#define BPE(rest) "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[]}" rest "}"
    refuse("[]", PL_FORMAT, "expected an object");
    refuse("{}", PL_FORMAT, "model");
    refuse("{\"model\":{\"type\":\"Magic\",\"vocab\":{}}}", PL_UNSUPPORTED, "BPE, Unigram, WordPiece, WordLevel");
    refuse("{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", PL_FORMAT, "empty");
    refuse("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":4000000000},\"merges\":[]}}", PL_FORMAT, "token id");
    refuse("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", PL_FORMAT, "no token id");
    refuse("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", PL_FORMAT, "belongs to");
    refuse("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", PL_FORMAT, "not in the vocabulary");
    refuse("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", PL_FORMAT, "two tokens");
    refuse("{\"model\":{\"type\":\"BPE\",\"dropout\":0.5,\"vocab\":{\"a\":0},\"merges\":[]}}", PL_UNSUPPORTED, "dropout");
    refuse("{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", PL_FORMAT, "empty");
    refuse("{\"model\":{\"type\":\"Unigram\",\"unk_id\":7,\"vocab\":[[\"a\",-1]]}}", PL_FORMAT, "unk_id");
    refuse(BPE(",\"pre_tokenizer\":{\"type\":\"Tarot\"}"), PL_UNSUPPORTED, "expected one of ByteLevel");
    refuse(BPE(",\"normalizer\":{\"type\":\"Tarot\"}"), PL_UNSUPPORTED, "expected one of NFC");
    refuse(BPE(",\"decoder\":{\"type\":\"Tarot\"}"), PL_UNSUPPORTED, "expected one of ByteLevel");
    refuse(BPE(",\"post_processor\":{\"type\":\"Tarot\"}"), PL_UNSUPPORTED, "TemplateProcessing");
    refuse(BPE(",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"}"), PL_FORMAT,
           "does not compile");
    refuse(BPE(",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a\"},\"behavior\":\"Isolated\"}"),
           PL_FORMAT, "not closed");
    refuse(BPE(",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Sideways\"}"),
           PL_UNSUPPORTED, "Contiguous");
    refuse(BPE(",\"added_tokens\":[{\"id\":0,\"content\":\"zz\"}]"), PL_FORMAT, "already belongs");
    refuse(BPE(",\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"x\",99],\"sep\":[\"y\",1]}"), PL_FORMAT,
           "id 99");
#undef BPE
}

/* A pattern that backtracks without end stops with an error, not with a wrong cut. */
static void match_limit(void **state) {
    (void)state;
    json_t *j = json_loads(
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Split\","
        "\"pattern\":{\"Regex\":\"(a|a|aa)+[0-9]\"},\"behavior\":\"Isolated\"}}",
        0, NULL);
    struct pl_tokenizer *t = NULL;
    struct pl_err err = {0};
    assert_int_equal(pl_tokenizer_from_json(j, NULL, NULL, NULL, &t, &err), PL_OK);
    char text[200];
    memset(text, 'a', sizeof text);
    struct pl_ids ids = {0};
    struct pl_encode_options opt = {0};
    assert_int_equal(pl_tokenizer_encode(t, text, sizeof text, &opt, &ids, &err), PL_LIMIT);
    assert_int_equal(ids.len, 0);
    pl_tokenizer_destroy(t);
    json_decref(j);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden),       cmocka_unit_test(untrusted),
                                       cmocka_unit_test(pathological), cmocka_unit_test(allocation_failures),
                                       cmocka_unit_test(hostile),      cmocka_unit_test(match_limit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
