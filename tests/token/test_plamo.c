/* PLaMo 2's tokenizer against the ids that its own library gave (tools/make_plamo2_token_golden.py): from lines, from a
 * directory and from GGUF; special tokens, refusals, long texts, allocation failures. */
#include "tests/file/craft.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "token/token.h"

static json_t *golden, *lines;

static struct pl_tokenizer *from_lines(void) {
    struct pl_tokenizer *t = NULL;
    struct pl_err err = {0};
    if (pl_tokenizer_from_lines(lines, NULL, NULL, NULL, &t, &err) != PL_OK) fail_msg("%s", err.text);
    return t;
}

static void same_ids(const struct pl_tokenizer *t, const json_t *one) {
    const json_t *text = json_object_get(one, "text"), *want = json_object_get(one, "plain");
    struct pl_encode_options opt = {.parse_special = true};
    struct pl_ids ids = {0};
    struct pl_err err = {0};
    if (pl_tokenizer_encode(t, json_string_value(text), json_string_length(text), &opt, &ids, &err) != PL_OK)
        fail_msg("%s", err.text);
    assert_int_equal(ids.len, json_array_size(want));
    for (size_t i = 0; i < ids.len; i++)
        if (ids.data[i] != (uint32_t)json_integer_value(json_array_get(want, i)))
            fail_msg("token %zu of '%s' is %u", i, json_string_value(text), ids.data[i]);
    struct pl_decoder d;
    struct pl_buf back = {0};
    pl_decoder_init(&d, t, false);
    for (size_t i = 0; i < ids.len; i++) assert_int_equal(pl_decoder_push(&d, ids.data[i], &back), PL_OK);
    pl_decoder_flush(&d, &back);
    assert_int_equal(back.len, json_string_length(text));
    if (back.len > 0) assert_memory_equal(back.data, json_string_value(text), back.len);
    pl_buf_deinit(&back);
    pl_ids_deinit(&ids);
}

static void all_cases(struct pl_tokenizer *t) {
    const json_t *cases = json_object_get(golden, "cases");
    assert_true(json_array_size(cases) > 50);
    for (size_t i = 0; i < json_array_size(cases); i++) same_ids(t, json_array_get(cases, i));
    assert_true(pl_tokenizer_bos(t) == -1 || pl_tokenizer_bos(t) == 1);
    pl_tokenizer_destroy(t);
}

static void lines_give_the_ids(void **state) {
    (void)state;
    all_cases(from_lines());
}

static void gguf_gives_the_ids(void **state) {
    (void)state;
    enum { MAX = 2048 };
    static const char *tokens[MAX];
    static float scores[MAX];
    static int32_t types[MAX];
    uint32_t n = (uint32_t)json_array_size(lines);
    assert_true(n <= MAX);
    for (uint32_t i = 0; i < n; i++) {
        const json_t *row = json_array_get(lines, i);
        const char *kind = json_string_value(json_array_get(row, 2));
        tokens[i] = json_string_value(json_array_get(row, 0));
        scores[i] = (float)json_number_value(json_array_get(row, 1));
        types[i] = strcmp(kind, "BYTE") == 0 ? 6 : strcmp(kind, "NORMAL") == 0 ? 1 : strcmp(kind, "UNKNOWN") == 0 ? 2 : 3;
    }
    struct craft c = craft_new();
    craft_string(&c, "general.architecture", "plamo2");
    craft_string(&c, "tokenizer.ggml.model", "plamo2");
    craft_strings(&c, "tokenizer.ggml.tokens", tokens, n);
    craft_array(&c, "tokenizer.ggml.scores", PL_GGUF_F32, n, scores, n * sizeof *scores);
    craft_array(&c, "tokenizer.ggml.token_type", PL_GGUF_I32, n, types, n * sizeof *types);
    craft_u32(&c, "tokenizer.ggml.eot_token_id", 4);
    struct pl_buf b = {0};
    uint8_t *copy;
    struct pl_file *f;
    struct pl_err err = {0};
    struct pl_tokenizer *t = NULL;
    craft_bytes(&c, &b);
    if (open_copy(pl_gguf_open_memory, pl_buf_cstr(&b), b.len, &copy, &f, &err) != PL_OK) fail_msg("open: %s", err.text);
    if (pl_tokenizer_create(f, &t, &err) != PL_OK) fail_msg("%s", err.text);
    assert_true(pl_tokenizer_is_eog(t, 2) && pl_tokenizer_is_eog(t, 4) && !pl_tokenizer_is_eog(t, 1));
    assert_true(pl_tokenizer_is_special(t, 3) && pl_tokenizer_eos(t) == 2 && pl_tokenizer_pad(t) == 3);
    pl_file_close(f);
    free(copy);
    pl_buf_deinit(&b);
    all_cases(t);
}

static void write_text(const char *path, const char *text, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* A directory as published: no tokenizer.json, and tokenizer_config.json asks for the first token. */
static void directory_gives_the_ids(void **state) {
    (void)state;
    static const char config[] = "{\"bos_token\":\"<|plamo:bos|>\",\"eos_token\":\"<|plamo:eos|>\",\"add_bos_token\":true}";
    char dir[] = "/tmp/plumb-plamo-XXXXXX", path[128], here[2048];
    assert_non_null(mkdtemp(dir));
    assert_non_null(getcwd(here, sizeof here - 64));
    static const char *const names[] = {"config.json", "model.safetensors"};
    for (size_t i = 0; i < 2; i++) {
        char from[2200];
        snprintf(from, sizeof from, "%s/tests/golden/model/plamo2/%s", here, names[i]);
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        assert_int_equal(symlink(from, path), 0);
    }
    struct pl_buf text = {0};
    for (size_t i = 0; i < json_array_size(lines); i++) {
        char *one = json_dumps(json_array_get(lines, i), JSON_COMPACT);
        pl_buf_printf(&text, "%s\n", one);
        free(one);
    }
    snprintf(path, sizeof path, "%s/tokenizer.jsonl", dir);
    write_text(path, text.data, text.len);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    write_text(path, config, sizeof config - 1);
    struct pl_file *f = NULL;
    struct pl_tokenizer *t = NULL;
    struct pl_err err = {0};
    if (pl_file_open(dir, &f, &err) != PL_OK || pl_tokenizer_create(f, &t, &err) != PL_OK) fail_msg("%s", err.text);
    struct pl_ids ids = {0};
    struct pl_encode_options opt = {.add_special = true, .parse_special = true};
    assert_int_equal(pl_tokenizer_encode(t, "<|plamo:op|>", 12, &opt, &ids, &err), PL_OK);
    assert_true(ids.len == 2 && ids.data[0] == 1 && ids.data[1] == 4 && pl_tokenizer_is_eog(t, 2));
    pl_ids_deinit(&ids);
    all_cases(t);
    pl_file_close(f);
    snprintf(path, sizeof path, "%s/tokenizer.jsonl", dir);
    write_text(path, "[\"a\",0]\n[\"b\"\n", 13); /* cut short: the line is named */
    assert_int_equal(pl_file_open(dir, &f, &err), PL_FORMAT);
    assert_non_null(strstr(err.text, "line 2"));
    static const char *const all[] = {"config.json", "model.safetensors", "tokenizer.jsonl", "tokenizer_config.json"};
    for (size_t i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, all[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(dir), 0);
    pl_buf_deinit(&text);
}

static void refuse(json_t *list, const char *part) {
    struct pl_tokenizer *t = NULL;
    struct pl_err err = {0};
    enum pl_status st = pl_tokenizer_from_lines(list, NULL, NULL, NULL, &t, &err);
    if (st != PL_FORMAT || strstr(err.text, part) == NULL) fail_msg("%s gave %s: %s", part, pl_status_name(st), err.text);
    json_decref(list);
}

static void refusals_and_untrusted_bytes(void **state) {
    (void)state;
    json_t *without = json_copy(lines), *twice = json_copy(lines), *wrong = json_copy(lines);
    json_array_remove(without, 5 + 'x');
    json_array_append_new(twice, json_pack("[s,i,s]", "<0x41>", 0, "BYTE"));
    json_array_append_new(wrong, json_pack("[i,i]", 1, 2));
    refuse(without, "no token <0x78>");
    refuse(twice, "are the same token");
    refuse(wrong, "expected [token, score, type]");
    refuse(json_array(), "0 lines");
    struct pl_tokenizer *t = from_lines();
    struct pl_span span = {0, 12};
    struct pl_encode_options opt = {.parse_special = true, .untrusted = &span, .untrusted_count = 1};
    struct pl_ids ids = {0};
    assert_int_equal(pl_tokenizer_encode(t, "<|plamo:op|>", 12, &opt, &ids, NULL), PL_OK);
    assert_true(ids.len > 1);
    for (size_t i = 0; i < ids.len; i++) assert_false(pl_tokenizer_is_special(t, ids.data[i]));
    pl_ids_deinit(&ids);
    pl_tokenizer_destroy(t);
}

static void long_texts_and_no_memory(void **state) {
    (void)state;
    static const char *const units[] = {"a", "\xFF", "\x80", "\xF0\x9F\x98\x80", " "};
    struct pl_encode_options opt = {.parse_special = true};
    struct pl_tokenizer *t = from_lines();
    for (size_t u = 0; u < 5; u++) {
        struct pl_buf text = {0};
        struct pl_ids ids = {0};
        while (text.len < 300000) pl_buf_add(&text, units[u], strlen(units[u]));
        assert_int_equal(pl_tokenizer_encode(t, text.data, text.len, &opt, &ids, NULL), PL_OK);
        assert_true(ids.len > 10000);
        pl_ids_deinit(&ids);
        pl_buf_deinit(&text);
    }
    pl_tokenizer_destroy(t);
    uint64_t start = pl_mem_calls();
    pl_tokenizer_destroy(from_lines());
    uint64_t calls = pl_mem_calls() - start;
    for (uint64_t n = 1; n <= calls; n++) {
        struct pl_err err = {0};
        struct pl_tokenizer *made = NULL;
        pl_mem_fail_at(n);
        enum pl_status st = pl_tokenizer_from_lines(lines, NULL, NULL, NULL, &made, &err);
        pl_mem_fail_at(0);
        if (st == PL_OK) pl_tokenizer_destroy(made);
    }
}

static int load(void **state) {
    (void)state;
    golden = json_load_file("tests/golden/token/plamo2.json", JSON_ALLOW_NUL, NULL);
    lines = json_object_get(golden, "lines");
    return lines == NULL ? 1 : 0;
}
static int drop(void **state) {
    (void)state;
    json_decref(golden);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_give_the_ids),       cmocka_unit_test(gguf_gives_the_ids),
        cmocka_unit_test(directory_gives_the_ids),  cmocka_unit_test(refusals_and_untrusted_bytes),
        cmocka_unit_test(long_texts_and_no_memory),
    };
    return cmocka_run_group_tests(tests, load, drop);
}
