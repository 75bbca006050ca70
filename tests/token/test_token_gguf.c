/* Tokenizers from GGUF metadata made here: what ends a text, what is refused, and one tokenizer under many threads. */
#include <math.h>
#include <pthread.h>

#include "tests/file/craft.h"
#include "token/token.h"

static const char *const letters[] = {"a", "b", "c", "ab", "abc", "\xC4\xA0"}; /* the last: a space */
#define LETTERS ((uint32_t)PL_COUNT_OF(letters))
static const char *const merges[] = {"a b", "ab c"};

/* The letters, then one more token of the given type (3: control). */
static void bpe(struct craft *c, const char *extra, int32_t type) {
    const char *tokens[LETTERS + 1];
    int32_t types[LETTERS + 1];
    for (uint32_t i = 0; i < LETTERS; i++) {
        tokens[i] = letters[i];
        types[i] = 1;
    }
    tokens[LETTERS] = extra;
    types[LETTERS] = type;
    craft_string(c, "tokenizer.ggml.model", "gpt2");
    craft_string(c, "tokenizer.ggml.pre", "gpt-2");
    craft_strings(c, "tokenizer.ggml.tokens", tokens, LETTERS + 1);
    craft_array(c, "tokenizer.ggml.token_type", PL_GGUF_I32, LETTERS + 1, types, sizeof types);
    craft_strings(c, "tokenizer.ggml.merges", merges, PL_COUNT_OF(merges));
}

/* The tokenizer of a crafted file; the file is closed again, since a tokenizer keeps what it needs. */
static enum pl_status make(struct craft *c, struct pl_tokenizer **t, struct pl_err *err) {
    struct pl_buf b = {0};
    uint8_t *copy;
    struct pl_file *f;
    craft_bytes(c, &b);
    if (open_copy(pl_gguf_open_memory, pl_buf_cstr(&b), b.len, &copy, &f, err) != PL_OK) fail_msg("open: %s", err->text);
    *t = NULL;
    enum pl_status st = pl_tokenizer_create(f, t, err);
    pl_file_close(f);
    free(copy);
    pl_buf_deinit(&b);
    return st;
}

static struct pl_tokenizer *must(struct craft *c) {
    struct pl_tokenizer *t;
    struct pl_err err = {0};
    if (make(c, &t, &err) != PL_OK) fail_msg("%s", err.text);
    return t;
}

static void ends_by_name(void **state) {
    (void)state;
    static const char *const names[] = {"<|im_end|>",
                                        "<|eot_id|>",
                                        "<end_of_turn>",
                                        "<|endoftext|>",
                                        "<|end|>",
                                        "</s>",
                                        "<|eom_id|>",
                                        "<|end_of_text|>",
                                        "<|return|>",
                                        "<eos>",
                                        "[EOS]",
                                        "<\xEF\xBD\x9C"
                                        "end\xE2\x96\x81of\xE2\x96\x81"
                                        "sentence\xEF\xBD\x9C>"};
    for (size_t i = 0; i < PL_COUNT_OF(names); i++) {
        struct craft c = craft_new();
        bpe(&c, names[i], 3);
        struct pl_tokenizer *t = must(&c);
        if (!pl_tokenizer_is_eog(t, LETTERS)) fail_msg("%s does not end a text", names[i]);
        for (uint32_t id = 0; id < LETTERS; id++) assert_false(pl_tokenizer_is_eog(t, id));
        assert_true(pl_tokenizer_is_special(t, LETTERS));
        assert_false(pl_tokenizer_is_eog(t, LETTERS + 1));
        pl_tokenizer_destroy(t);
    }
    static const char *const others[] = {"<|im_start|>", "<s>", "<|begin_of_text|>", "<start_of_turn>", "<unk>", "im_end"};
    for (size_t i = 0; i < PL_COUNT_OF(others); i++) {
        struct craft c = craft_new();
        bpe(&c, others[i], 3);
        struct pl_tokenizer *t = must(&c);
        if (pl_tokenizer_is_eog(t, LETTERS)) fail_msg("%s ends a text", others[i]);
        pl_tokenizer_destroy(t);
    }
}

static void ends_by_key(void **state) {
    (void)state;
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    for (size_t i = 0; i < PL_COUNT_OF(keys); i++) {
        struct craft c = craft_new();
        bpe(&c, "<|stop|>", 3);
        craft_u32(&c, keys[i], LETTERS);
        struct pl_tokenizer *t = must(&c);
        if (!pl_tokenizer_is_eog(t, LETTERS)) fail_msg("%s is not heeded", keys[i]);
        assert_int_equal(pl_tokenizer_eos(t), i == 0 ? (int64_t)LETTERS : -1);
        pl_tokenizer_destroy(t);
        c = craft_new();
        bpe(&c, "<|stop|>", 3);
        craft_u32(&c, keys[i], 4000000); /* no such token: ignored with a warning */
        t = must(&c);
        for (uint32_t id = 0; id <= LETTERS; id++) assert_false(pl_tokenizer_is_eog(t, id));
        pl_tokenizer_destroy(t);
    }
}

/* Directories: generation_config.json may list several ids; config.json and the names count too. */
static void ends_in_directories(void **state) {
    (void)state;
    json_t *tok =
        json_loads("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"d\":3,\"e\":4},\"merges\":[]},"
                   "\"added_tokens\":[{\"id\":5,\"content\":\"<|im_end|>\",\"special\":true},"
                   "{\"id\":6,\"content\":\"<|eot_id|>\",\"special\":false}]}",
                   0, NULL);
    json_t *generation = json_loads("{\"eos_token_id\":[1,3,-1,99,\"x\"]}", 0, NULL),
           *config = json_loads("{\"eos_token_id\":2}", 0, NULL);
    struct pl_tokenizer *t = NULL;
    struct pl_err err = {0};
    if (pl_tokenizer_from_json(tok, NULL, config, generation, &t, &err) != PL_OK) fail_msg("%s", err.text);
    static const bool want[] = {false, true, true, true, false, true, false};
    for (uint32_t id = 0; id < PL_COUNT_OF(want); id++)
        if (pl_tokenizer_is_eog(t, id) != want[id]) fail_msg("id %u", id);
    assert_int_equal(pl_tokenizer_eos(t), 1);
    pl_tokenizer_destroy(t);
    json_decref(tok);
    json_decref(generation);
    json_decref(config);
}

static void refuse(struct craft *c, enum pl_status want, const char *part) {
    struct pl_tokenizer *t;
    struct pl_err err = {0};
    enum pl_status st = make(c, &t, &err);
    if (st != want || t != NULL || strstr(err.text, part) == NULL)
        fail_msg("%s ('%s'), expected %s with '%s'", pl_status_name(st), err.text, pl_status_name(want), part);
}

/* A SentencePiece vocabulary with the given scores. */
static void spm(struct craft *c, const float *scores, uint64_t count) {
    craft_string(c, "tokenizer.ggml.model", "llama");
    craft_strings(c, "tokenizer.ggml.tokens", letters, LETTERS);
    if (scores != NULL) craft_array(c, "tokenizer.ggml.scores", PL_GGUF_F32, count, scores, count * sizeof *scores);
}

static void hostile(void **state) {
    (void)state;
    static const char *const twice[] = {"a", "b", "a"};
    static const char *const bad_merges[] = {"ab", "a ", " a", ""};
    static const float scores[LETTERS] = {0};
    const float nan_scores[LETTERS] = {0, NAN};
    struct craft c = craft_new();
    refuse(&c, PL_NOT_FOUND, "no tokenizer");
    c = craft_new();
    craft_u32(&c, "tokenizer.ggml.model", 7);
    refuse(&c, PL_FORMAT, "tokenizer.ggml.model");
    c = craft_new();
    craft_string(&c, "tokenizer.ggml.model", "rwkv");
    refuse(&c, PL_UNSUPPORTED, "expected one of gpt2");
    c = craft_new();
    craft_string(&c, "tokenizer.ggml.model", "gpt2");
    craft_string(&c, "tokenizer.ggml.pre", "tarot");
    refuse(&c, PL_UNSUPPORTED, "llama-bpe");
    c = craft_new();
    craft_string(&c, "tokenizer.ggml.model", "gpt2");
    refuse(&c, PL_FORMAT, "tokenizer.ggml.tokens is missing");
    c = craft_new();
    craft_string(&c, "tokenizer.ggml.model", "gpt2");
    craft_u32(&c, "tokenizer.ggml.tokens", 3);
    refuse(&c, PL_FORMAT, "wrong type");
    c = craft_new();
    craft_string(&c, "tokenizer.ggml.model", "gpt2");
    craft_strings(&c, "tokenizer.ggml.tokens", twice, 3);
    craft_strings(&c, "tokenizer.ggml.merges", merges, 0);
    refuse(&c, PL_FORMAT, "each text once");
    c = craft_new();
    craft_string(&c, "tokenizer.ggml.model", "gpt2");
    craft_strings(&c, "tokenizer.ggml.tokens", letters, 0);
    craft_strings(&c, "tokenizer.ggml.merges", merges, 0);
    refuse(&c, PL_FORMAT, "empty");
    c = craft_new();
    craft_string(&c, "tokenizer.ggml.model", "gpt2");
    craft_strings(&c, "tokenizer.ggml.tokens", letters, LETTERS);
    refuse(&c, PL_FORMAT, "tokenizer.ggml.merges is missing");
    for (size_t i = 0; i < PL_COUNT_OF(bad_merges); i++) {
        c = craft_new();
        craft_string(&c, "tokenizer.ggml.model", "gpt2");
        craft_strings(&c, "tokenizer.ggml.tokens", letters, LETTERS);
        craft_strings(&c, "tokenizer.ggml.merges", &bad_merges[i], 1);
        refuse(&c, PL_FORMAT, "expected two symbols");
    }
    c = craft_new();
    spm(&c, NULL, 0);
    refuse(&c, PL_FORMAT, "scores is missing");
    c = craft_new();
    spm(&c, scores, LETTERS - 1);
    refuse(&c, PL_FORMAT, "fewer elements");
    c = craft_new();
    spm(&c, nan_scores, LETTERS);
    refuse(&c, PL_FORMAT, "not a number");
}

static void merges_that_name_no_token(void **state) {
    (void)state;
    static const char *const odd[] = {"x y", "xy z", "a b"};
    struct craft c = craft_new();
    craft_string(&c, "tokenizer.ggml.model", "gpt2");
    craft_string(&c, "tokenizer.ggml.pre", "gpt-2");
    craft_strings(&c, "tokenizer.ggml.tokens", letters, LETTERS);
    craft_strings(&c, "tokenizer.ggml.merges", odd, PL_COUNT_OF(odd));
    struct pl_tokenizer *t = must(&c);
    struct pl_ids ids = {0};
    struct pl_encode_options opt = {0};
    assert_int_equal(pl_tokenizer_vocab_size(t), LETTERS);
    assert_int_equal(pl_tokenizer_encode(t, "xyzabq", 6, &opt, &ids, NULL), PL_OK);
    for (size_t i = 0; i < ids.len; i++) assert_true(ids.data[i] < LETTERS);
    assert_true(ids.len >= 1 && ids.data[ids.len - 1] == 3);
    pl_ids_deinit(&ids);
    pl_tokenizer_destroy(t);
}

struct shared {
    const struct pl_tokenizer *t;
    const struct pl_ids *want;
    const char *text;
    bool same;
};

static void *encode_often(void *arg) {
    struct shared *s = arg;
    s->same = true;
    for (int i = 0; i < 200; i++) {
        struct pl_ids ids = {0};
        struct pl_buf text = {0};
        struct pl_encode_options opt = {.parse_special = true};
        bool ok = pl_tokenizer_encode(s->t, s->text, strlen(s->text), &opt, &ids, NULL) == PL_OK;
        ok = ok && ids.len == s->want->len && memcmp(ids.data, s->want->data, ids.len * sizeof *ids.data) == 0;
        ok = ok && pl_tokenizer_decode(s->t, ids.data, ids.len, true, &text) == PL_OK;
        s->same &= ok && text.len == strlen(s->text) && memcmp(text.data, s->text, text.len) == 0;
        pl_ids_deinit(&ids);
        pl_buf_deinit(&text);
    }
    return NULL;
}

static void many_threads(void **state) {
    (void)state;
    static const char text[] = "abc ab a<|im_end|> cab abcabc b a";
    struct craft c = craft_new();
    bpe(&c, "<|im_end|>", 3);
    struct pl_tokenizer *t = must(&c);
    struct pl_ids want = {0};
    struct pl_encode_options opt = {.parse_special = true};
    assert_int_equal(pl_tokenizer_encode(t, text, sizeof text - 1, &opt, &want, NULL), PL_OK);
    struct shared jobs[8];
    pthread_t threads[PL_COUNT_OF(jobs)];
    for (size_t i = 0; i < PL_COUNT_OF(jobs); i++) {
        jobs[i] = (struct shared){.t = t, .want = &want, .text = text};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, &jobs[i]), 0);
    }
    for (size_t i = 0; i < PL_COUNT_OF(jobs); i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(jobs[i].same);
    }
    pl_ids_deinit(&want);
    pl_tokenizer_destroy(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ends_by_name),
                                       cmocka_unit_test(ends_by_key),
                                       cmocka_unit_test(ends_in_directories),
                                       cmocka_unit_test(hostile),
                                       cmocka_unit_test(merges_that_name_no_token),
                                       cmocka_unit_test(many_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
