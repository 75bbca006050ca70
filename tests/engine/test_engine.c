/* Engine and sessions over tiny random models: limits, chunks, batches, threads, failure of every allocation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/philox.h"
#include "engine/engine.h"

#define LLAMA    "tests/golden/model/llama3.gguf"
#define GEMMA    "tests/golden/model/gemma3.gguf"
#define MAMBA    "tests/golden/model/mamba"
#define DEEPSEEK "tests/golden/model/deepseek2-lite" /* one key a token, which holds its value */

static char backend_line[256];
static void keep_line(const char *line, void *user) {
    (void)user;
    if (strstr(line, "kernel backend") != NULL) strncpy(backend_line, line, sizeof backend_line - 1);
}

static struct plumb_engine_options options(const char *model) {
    return (struct plumb_engine_options){
        .size = sizeof(struct plumb_engine_options), .model = model, .backend = "cpu", .threads = 1, .context = 96};
}

static struct plumb_engine *open_with(const struct plumb_engine_options *o) {
    struct plumb_engine *e = NULL;
    struct pl_err err = {0};
    if (pl_engine_create(o, &e, &err) != PL_OK) fail_msg("%s", err.text);
    return e;
}

static struct plumb_session *session_of(struct plumb_engine *e) {
    struct plumb_session *s = NULL;
    struct pl_err err = {0};
    if (pl_session_create(e, &s, &err) != PL_OK) fail_msg("%s", err.text);
    return s;
}

static void some_ids(uint32_t *ids, uint32_t count, uint32_t vocab, uint32_t seed) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t c[4] = {i, 0, 0, 0}, k[2] = {seed, 0};
        ids[i] = pl_philox4x32(c, k).v[0] % vocab;
    }
}

static void append(struct plumb_session *s, const uint32_t *ids, size_t count) {
    struct pl_err err = {0};
    if (pl_session_append(s, ids, count, NULL, NULL, &err) != PL_OK) fail_msg("%s", err.text);
}

/* Logits after appending ids to a fresh session of a fresh engine. */
static float *logits_with(const struct plumb_engine_options *o, const uint32_t *ids, size_t count) {
    struct plumb_engine *e = open_with(o);
    struct plumb_session *s = session_of(e);
    append(s, ids, count);
    float *copy = pl_alloc(e->config.vocab, sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, s->logits, e->config.vocab * sizeof *copy);
    plumb_session_destroy(s);
    plumb_engine_destroy(e);
    return copy;
}

static double relative_difference(const float *a, const float *b, uint32_t n) {
    double most = 0.0, scale = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
        scale = fmax(scale, fabs((double)b[i]));
    }
    return most / scale;
}

static uint32_t vocab_of(const char *model) {
    struct plumb_engine_options o = options(model);
    struct plumb_engine *e = open_with(&o);
    uint32_t vocab = e->config.vocab;
    plumb_engine_destroy(e);
    return vocab;
}

static void the_backend_line_is_always_printed(void **state) {
    (void)state;
    struct plumb_engine_options o = options(LLAMA);
    backend_line[0] = '\0';
    plumb_engine_destroy(open_with(&o));
    assert_non_null(strstr(backend_line, "plumb: kernel backend: cpu ("));
}

static void chunks_do_not_change_the_logits(void **state) {
    (void)state;
    const char *models[] = {LLAMA, GEMMA, DEEPSEEK};
    for (size_t m = 0; m < PL_COUNT_OF(models); m++) {
        uint32_t ids[75], vocab = vocab_of(models[m]);
        some_ids(ids, 75, vocab, 1);
        struct plumb_engine_options o = options(models[m]);
        o.batch_rows = 128;
        float *whole = logits_with(&o, ids, 75);
        uint32_t rows[] = {1, 3, 16, 33, 74};
        for (size_t i = 0; i < PL_COUNT_OF(rows); i++) {
            o.batch_rows = rows[i];
            float *cut = logits_with(&o, ids, 75);
            double d = relative_difference(cut, whole, vocab);
            if (!(d < 1e-4)) fail_msg("%s in chunks of %u differs by %g", models[m], rows[i], d);
            pl_free(cut);
        }
        pl_free(whole);
    }
}

static void threads_do_not_change_a_bit(void **state) {
    (void)state;
    uint32_t ids[40], vocab = vocab_of(GEMMA);
    some_ids(ids, 40, vocab, 2);
    struct plumb_engine_options o = options(GEMMA);
    float *one = logits_with(&o, ids, 40);
    for (int32_t t = 2; t <= 3; t++) {
        o.threads = t;
        float *more = logits_with(&o, ids, 40);
        assert_memory_equal(one, more, vocab * sizeof *one);
        pl_free(more);
    }
    pl_free(one);
}

/* Three sequences of different lengths in one step, prefill beside decode, give what each gives alone. */
static void shared_step_of(const char *model) {
    uint32_t ids[3][40], lens[3] = {1, 17, 36};
    struct plumb_engine_options o = options(model);
    o.max_sessions = 3;
    struct plumb_engine *e = open_with(&o);
    struct plumb_session *s[3];
    struct pl_err err = {0};
    for (uint32_t i = 0; i < 3; i++) {
        some_ids(ids[i], 40, e->config.vocab, 10 + i);
        s[i] = session_of(e);
        if (lens[i] > 1) append(s[i], ids[i], lens[i] - 1);
    }
    struct pl_step_part parts[3] = {{.session = s[0], .ids = ids[0], .count = 1, .logits = 1},
                                    {.session = s[1], .ids = ids[1] + 16, .count = 3, .logits = 1},
                                    {.session = s[2], .ids = ids[2] + 35, .count = 1, .logits = 1}};
    assert_int_equal(pl_engine_step(e, parts, 3, NULL, &err), PL_OK);
    uint32_t totals[3] = {1, 19, 36};
    for (uint32_t i = 0; i < 3; i++) {
        struct plumb_engine_options single = options(model);
        assert_int_equal(pl_session_held(s[i]), totals[i]);
        float *alone = logits_with(&single, ids[i], totals[i]);
        double d = relative_difference(s[i]->logits, alone, e->config.vocab);
        if (!(d < 1e-4)) fail_msg("sequence %u differs by %g", i, d);
        pl_free(alone);
        plumb_session_destroy(s[i]);
    }
    assert_int_equal(e->pages.free_count, e->pages.page_count);
    plumb_engine_destroy(e);
}
static void a_shared_step_equals_single_steps(void **state) {
    (void)state;
    shared_step_of(LLAMA);
    shared_step_of(DEEPSEEK);
}

static void truncation_of(const char *model) {
    uint32_t ids[60];
    struct plumb_engine_options o = options(model);
    struct plumb_engine *e = open_with(&o);
    struct plumb_session *s = session_of(e);
    struct pl_err err = {0};
    some_ids(ids, 60, e->config.vocab, 3);
    append(s, ids, 60);
    float *first = pl_alloc(e->config.vocab, sizeof *first);
    memcpy(first, s->logits, e->config.vocab * sizeof *first);
    assert_int_equal(pl_session_truncate(s, 61, &err), PL_INVALID);
    assert_non_null(strstr(err.text, "61"));
    assert_int_equal(pl_session_truncate(s, 33, &err), PL_OK);
    assert_null(plumb_session_logits(s, NULL));
    uint32_t other[20];
    some_ids(other, 20, e->config.vocab, 4);
    append(s, other, 20); /* overwrites slots of the same page */
    assert_int_equal(pl_session_truncate(s, 33, &err), PL_OK);
    append(s, ids + 33, 27);
    double d = relative_difference(s->logits, first, e->config.vocab);
    if (!(d < 1e-4)) fail_msg("differs by %g", d);
    pl_free(first);
    plumb_session_destroy(s);
    plumb_engine_destroy(e);
}

static void truncation_forgets(void **state) {
    (void)state;
    truncation_of(LLAMA);
    truncation_of(DEEPSEEK);
    truncation_of(MAMBA); /* a state cannot go back: computed again */
}

/* Each session has its own state, also where it takes the place of one that is gone; there are as many as sessions. */
static void states_are_kept_apart(void **state) {
    (void)state;
    struct plumb_engine_options o = options(MAMBA);
    o.max_sessions = 2;
    struct plumb_engine *e = open_with(&o);
    uint32_t ids[24];
    some_ids(ids, 24, e->config.vocab, 8);
    struct plumb_session *a = session_of(e), *b = session_of(e);
    append(a, ids, 10);
    append(b, ids + 4, 7);
    plumb_session_destroy(b);
    b = session_of(e); /* in the slot of the last one */
    append(b, ids, 10);
    append(a, ids + 10, 14);
    append(b, ids + 10, 14);
    assert_memory_equal(a->logits, b->logits, e->config.vocab * sizeof(float));
    assert_int_equal(e->state_recomputed, 0);
    plumb_session_destroy(a);
    plumb_session_destroy(b);
    plumb_engine_destroy(e);
}

static void a_warm_up_leaves_nothing_behind(void **state) {
    (void)state;
    struct plumb_engine_options o = options(GEMMA);
    struct plumb_engine *e = open_with(&o);
    struct pl_err err = {0};
    struct pl_ops_launches one;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pl_engine_warm_up(e, &err), PL_OK);
        assert_int_equal(e->session_count, 0);
        assert_int_equal(e->pages.free_count, e->pages.page_count);
        assert_true(pl_ops_witness(e->ops, &one, 1) == 0 || one.launches == 0);
    }
    plumb_session_destroy(session_of(e));
    plumb_engine_destroy(e);
}

static void limits_are_errors_with_numbers(void **state) {
    (void)state;
    uint32_t ids[200];
    struct plumb_engine_options o = options(LLAMA);
    struct plumb_engine *e = open_with(&o);
    struct plumb_session *s = session_of(e), *second = NULL;
    struct pl_err err = {0};
    some_ids(ids, 200, e->config.vocab, 5);
    assert_int_equal(pl_session_append(s, ids, 97, NULL, NULL, &err), PL_LIMIT);
    assert_true(strstr(err.text, "97") != NULL && strstr(err.text, "96") != NULL);
    assert_int_equal(plumb_session_length(s), 0);
    append(s, ids, 90);
    assert_int_equal(pl_session_append(s, ids, 7, NULL, NULL, &err), PL_LIMIT);
    assert_int_equal(plumb_session_length(s), 90);
    ids[3] = e->config.vocab;
    assert_int_equal(pl_session_append(s, ids, 5, NULL, NULL, &err), PL_INVALID);
    assert_non_null(strstr(err.text, "token 3"));
    assert_int_equal(pl_session_create(e, &second, &err), PL_LIMIT);
    assert_null(second);
    plumb_session_destroy(s);
    plumb_engine_destroy(e);
}

static void wrong_options_are_named(void **state) {
    (void)state;
    const struct {
        const char *expect;
        size_t offset;
        const char *text;
        uint32_t number;
    } rows[] = {
        {"kv_dtype", offsetof(struct plumb_engine_options, kv_dtype), "q4_0", 0},
        {"backend", offsetof(struct plumb_engine_options, backend), "quantum", 0},
        {"avx9", offsetof(struct plumb_engine_options, isa), "avx9", 0},
        {"page_tokens", offsetof(struct plumb_engine_options, page_tokens), NULL, 7},
        {"context", offsetof(struct plumb_engine_options, context), NULL, 1u << 30},
        {"max_sessions", offsetof(struct plumb_engine_options, max_sessions), NULL, 5000},
        {"batch_rows", offsetof(struct plumb_engine_options, batch_rows), NULL, 70000},
        {"no-such-model", offsetof(struct plumb_engine_options, model), "no-such-model.gguf", 0},
        {"model", offsetof(struct plumb_engine_options, model), "", 0},
    };
    for (size_t i = 0; i < PL_COUNT_OF(rows); i++) {
        struct plumb_engine_options o = options(LLAMA);
        struct plumb_engine *e = NULL;
        struct plumb_error err = {0};
        if (rows[i].text != NULL)
            memcpy((char *)&o + rows[i].offset, &rows[i].text, sizeof rows[i].text);
        else
            memcpy((char *)&o + rows[i].offset, &rows[i].number, sizeof rows[i].number);
        assert_int_not_equal(plumb_engine_create(&o, &e, &err), PLUMB_OK);
        assert_null(e);
        if (strstr(err.text, rows[i].expect) == NULL) fail_msg("'%s' does not name %s", err.text, rows[i].expect);
    }
    struct plumb_engine_options o = options(LLAMA);
    struct plumb_engine *e = NULL;
    struct plumb_error err = {0};
    o.size = 3;
    assert_int_equal(plumb_engine_create(&o, &e, &err), PLUMB_INVALID);
    o.size = 64; /* an older caller, who knew fewer fields */
    assert_int_equal(plumb_engine_create(&o, &e, &err), PLUMB_OK);
    plumb_engine_destroy(e);
}

static void a_budget_beyond_the_limit_is_refused_before_loading(void **state) {
    (void)state;
    struct plumb_engine_options o = options(LLAMA);
    struct plumb_engine *e = NULL;
    struct pl_err err = {0};
    o.memory_limit = 100000;
    assert_int_equal(pl_engine_create(&o, &e, &err), PL_LIMIT);
    assert_true(strstr(err.text, "MB") != NULL && strstr(err.text, "--context") != NULL);
    assert_true(pl_engine_memory_limit(0) > 1u << 20);
    assert_int_equal(pl_engine_memory_limit(4096), 4096);
    assert_int_equal(pl_engine_open(&o, &e, &err), PL_OK); /* looking is free */
    struct plumb_session *s = NULL;
    assert_int_equal(pl_session_create(e, &s, &err), PL_INVALID);
    plumb_engine_destroy(e);
}

struct heard {
    uint32_t ids[128], count, stop_after;
    double logprob;
};
static bool listen(void *user, uint32_t id, const char *text, size_t len, double logprob, const uint32_t *top_ids,
                   const double *top_logprobs, size_t top_count) {
    (void)text, (void)len;
    struct heard *h = user;
    assert_true(top_count == 0 || top_logprobs[0] >= logprob);
    (void)top_ids;
    h->ids[h->count++] = id;
    h->logprob = logprob;
    return h->count != h->stop_after;
}

static struct heard generate(const char *model, float temperature, uint64_t seed, uint32_t max, uint32_t stop_after,
                             enum plumb_finish *finish) {
    struct heard h = {.stop_after = stop_after};
    struct plumb_engine_options o = options(model);
    struct plumb_engine *e = open_with(&o);
    struct plumb_session *s = session_of(e);
    struct plumb_error err = {0};
    uint32_t ids[20], generated = 0;
    some_ids(ids, 20, e->config.vocab, 6);
    struct plumb_generate_options g = {.size = sizeof g, .max_tokens = max, .logprobs = 3, .on_token = listen, .user = &h};
    plumb_sampling_default(&g.sampling);
    g.sampling.temperature = temperature;
    g.sampling.seed = seed;
    if (max > 0) assert_int_equal(plumb_session_generate(s, &g, NULL, NULL, &err), PLUMB_INVALID); /* nothing appended yet */
    assert_int_equal(plumb_session_append(s, ids, 20, &err), 0);
    if (plumb_session_generate(s, &g, &generated, finish, &err) != 0) fail_msg("%s", err.text);
    assert_int_equal(generated, h.count);
    assert_int_equal(plumb_session_length(s), 20 + generated);
    plumb_session_destroy(s);
    plumb_engine_destroy(e);
    return h;
}

static void generation_ends_for_the_stated_reason(void **state) {
    (void)state;
    enum plumb_finish f;
    assert_int_equal(generate(LLAMA, 0.0f, 0, 10, 0, &f).count, 10);
    assert_int_equal(f, PLUMB_FINISH_LENGTH);
    assert_int_equal(generate(LLAMA, 0.0f, 0, 10, 4, &f).count, 4);
    assert_int_equal(f, PLUMB_FINISH_CALLBACK);
    assert_int_equal(generate(LLAMA, 0.0f, 0, 100, 0, &f).count, 76);
    assert_int_equal(f, PLUMB_FINISH_CONTEXT);
    assert_int_equal(generate(LLAMA, 0.0f, 0, 0, 0, &f).count, 0);
    assert_int_equal(f, PLUMB_FINISH_LENGTH);
}

static void seeds_decide_the_text(void **state) {
    (void)state;
    enum plumb_finish f;
    struct heard a = generate(LLAMA, 1.0f, 7, 30, 0, &f), b = generate(LLAMA, 1.0f, 7, 30, 0, &f);
    struct heard c = generate(LLAMA, 1.0f, 8, 30, 0, &f), d = generate(LLAMA, 0.0f, 7, 30, 0, &f);
    struct heard g = generate(LLAMA, 0.0f, 8, 30, 0, &f);
    assert_memory_equal(a.ids, b.ids, sizeof a.ids);
    assert_memory_not_equal(a.ids, c.ids, 30 * sizeof *a.ids);
    assert_memory_equal(d.ids, g.ids, sizeof d.ids);
    assert_true(a.logprob < 0.0 && isfinite(a.logprob));
}

static void info_and_witness_are_json(void **state) {
    (void)state;
    struct plumb_engine_options o = options(LLAMA);
    struct plumb_engine *e = open_with(&o);
    struct plumb_session *s = session_of(e);
    uint32_t ids[3] = {1, 2, 3};
    append(s, ids, 3);
    char *text = NULL;
    assert_int_equal(plumb_engine_info(e, &text, NULL), 0);
    json_t *j = json_loads(text, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(j, "context")), 96);
    assert_true(json_integer_value(json_object_get(json_object_get(j, "memory"), "kv_bytes")) > 0);
    json_decref(j);
    plumb_string_free(text);
    assert_int_equal(plumb_engine_witness(e, true, &text, NULL), 0);
    j = json_loads(text, 0, NULL);
    json_t *kernels = json_object_get(j, "kernels"), *k;
    size_t i;
    json_int_t attention = 0;
    json_array_foreach(kernels, i, k) {
        if (strcmp(json_string_value(json_object_get(k, "op")), "attention") == 0)
            attention += json_integer_value(json_object_get(k, "launches"));
    }
    assert_int_equal(attention, e->config.layers); /* one for each layer: it really ran */
    json_decref(j);
    plumb_string_free(text);
    plumb_session_destroy(s);
    plumb_engine_destroy(e);
}

static bool cancel_now(struct plumb_engine *e) {
    atomic_store(&e->cancel, true);
    return true;
}
static void null_pointers_are_invalid_values(void **state) {
    (void)state;
    struct plumb_engine_options o = options(LLAMA);
    struct plumb_engine *e = open_with(&o);
    struct plumb_session *s = session_of(e), *other;
    struct plumb_error err = {0};
    struct plumb_generate_options g = {.size = sizeof g, .max_tokens = 1};
    uint32_t id = 1;
    size_t count;
    char *text;
#define INVALID(call, name)                          \
    do {                                             \
        assert_int_equal(call, PLUMB_INVALID);       \
        assert_non_null(strstr(err.text, name));     \
        assert_int_equal(err.status, PLUMB_INVALID); \
    } while (0)
    INVALID(plumb_engine_create(NULL, &e, &err), "opt");
    INVALID(plumb_engine_create(&o, NULL, &err), "out");
    INVALID(plumb_engine_info(NULL, &text, &err), "e is");
    INVALID(plumb_engine_info(e, NULL, &err), "json");
    INVALID(plumb_engine_witness(NULL, true, &text, &err), "e is");
    INVALID(plumb_engine_witness(e, true, NULL, &err), "json");
    INVALID(plumb_tokenize(NULL, "a", 1, true, true, &id, 1, &count, &err), "e is");
    INVALID(plumb_tokenize(e, NULL, 1, true, true, &id, 1, &count, &err), "text");
    INVALID(plumb_tokenize(e, "a", 1, true, true, NULL, 1, &count, &err), "ids");
    INVALID(plumb_tokenize(e, "a", 1, true, true, &id, 1, NULL, &err), "count");
    INVALID(plumb_detokenize(NULL, &id, 1, true, &text, &err), "e is");
    INVALID(plumb_detokenize(e, NULL, 1, true, &text, &err), "ids");
    INVALID(plumb_detokenize(e, &id, 1, true, NULL, &err), "text");
    INVALID(plumb_chat_render(NULL, "[]", NULL, true, &text, &err), "e is");
    INVALID(plumb_chat_render(e, "[]", NULL, true, NULL, &err), "text");
    INVALID(plumb_chat_tokenize(NULL, "[]", NULL, true, &id, 1, &count, &err), "e is");
    INVALID(plumb_chat_tokenize(e, "[]", NULL, true, NULL, 1, &count, &err), "ids");
    INVALID(plumb_session_create(NULL, &other, &err), "e is");
    INVALID(plumb_session_create(e, NULL, &err), "out");
    INVALID(plumb_session_truncate(NULL, 0, &err), "s is");
    INVALID(plumb_session_append(NULL, &id, 1, &err), "s is");
    INVALID(plumb_session_append(s, NULL, 1, &err), "ids");
    INVALID(plumb_session_generate(NULL, &g, NULL, NULL, &err), "s is");
    INVALID(plumb_session_generate(s, NULL, NULL, NULL, &err), "opt");
    assert_int_equal(plumb_session_append(s, &id, 1, &err), PLUMB_OK);
    plumb_sampling_default(&g.sampling);
    g.sampling.bias_count = 2;
    INVALID(plumb_session_generate(s, &g, NULL, NULL, &err), "bias is NULL");
#undef INVALID
    assert_int_equal(plumb_session_append(s, NULL, 0, &err), PLUMB_OK);
    assert_int_equal(plumb_session_length(NULL), 0);
    assert_null(plumb_session_logits(NULL, NULL));
    plumb_sampling_default(NULL);
    plumb_session_destroy(NULL);
    plumb_session_destroy(s);
    plumb_engine_destroy(NULL);
    plumb_engine_destroy(e);
    plumb_string_free(NULL);
}

static void cancel_at_half(void *user, uint64_t done, uint64_t total) {
    if (done * 2 >= total) (void)cancel_now(user);
}

static void a_cancelled_prefill_leaves_the_session_as_it_was(void **state) {
    (void)state;
    struct plumb_engine_options o = options(LLAMA);
    o.batch_rows = 10;
    struct plumb_engine *e = open_with(&o);
    struct plumb_session *s = session_of(e);
    struct pl_err err = {0};
    uint32_t ids[80];
    some_ids(ids, 80, e->config.vocab, 9);
    append(s, ids, 5);
    assert_int_equal(pl_session_append(s, ids, 80, cancel_at_half, e, &err), PL_CANCELLED);
    assert_int_equal(plumb_session_length(s), 5);
    assert_int_equal(s->tables.of[PL_PAGES_FULL].count, 1);
    atomic_store(&e->cancel, false);
    append(s, ids, 80);
    plumb_session_destroy(s);
    plumb_engine_destroy(e);
}

/* Everything from opening to a generated token, with the n-th allocation failing, for every n. */
static enum pl_status whole_life(struct pl_err *err) {
    struct plumb_engine_options o = options(LLAMA);
    struct plumb_engine *e = NULL;
    struct plumb_session *s = NULL;
    uint32_t ids[40];
    PL_TRY(pl_engine_create(&o, &e, err));
    enum pl_status st = pl_session_create(e, &s, err);
    some_ids(ids, 40, e->config.vocab, 2);
    if (st == PL_OK) st = pl_session_append(s, ids, 40, NULL, NULL, err);
    struct plumb_generate_options g = {.size = sizeof g, .max_tokens = 2, .ignore_eos = true};
    if (st == PL_OK) st = pl_session_generate(s, &g, NULL, NULL, err);
    plumb_session_destroy(s);
    if (st == PL_OK) assert_int_equal(e->pages.free_count, e->pages.page_count);
    plumb_engine_destroy(e);
    return st;
}

static void every_failed_allocation_is_a_clear_error(void **state) {
    (void)state;
    struct pl_err first = {0};
    uint64_t calls = pl_mem_calls(), failed = 0;
    assert_int_equal(whole_life(&first), PL_OK);
    calls = pl_mem_calls() - calls;
    for (uint64_t n = 1; n <= calls; n++) {
        struct pl_err err = {0};
        pl_mem_fail_at(n);
        enum pl_status s = whole_life(&err);
        pl_mem_fail_at(0);
        if (s == PL_OK) {
            print_message("allocation %lu is survived\n", (unsigned long)n);
            continue;
        }
        failed++;
        if (s != PL_NO_MEMORY) fail_msg("allocation %lu: %s: %s", (unsigned long)n, pl_status_name(s), err.text);
        if (err.text[0] == '\0') fail_msg("allocation %lu: no sentence", (unsigned long)n);
    }
    assert_true(calls > 50 && failed > calls / 2);
}

int main(void) {
    pl_log_set_sink(keep_line, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_backend_line_is_always_printed),
        cmocka_unit_test(chunks_do_not_change_the_logits),
        cmocka_unit_test(threads_do_not_change_a_bit),
        cmocka_unit_test(a_shared_step_equals_single_steps),
        cmocka_unit_test(truncation_forgets),
        cmocka_unit_test(states_are_kept_apart),
        cmocka_unit_test(a_warm_up_leaves_nothing_behind),
        cmocka_unit_test(limits_are_errors_with_numbers),
        cmocka_unit_test(wrong_options_are_named),
        cmocka_unit_test(a_budget_beyond_the_limit_is_refused_before_loading),
        cmocka_unit_test(generation_ends_for_the_stated_reason),
        cmocka_unit_test(seeds_decide_the_text),
        cmocka_unit_test(info_and_witness_are_json),
        cmocka_unit_test(null_pointers_are_invalid_values),
        cmocka_unit_test(a_cancelled_prefill_leaves_the_session_as_it_was),
        cmocka_unit_test(every_failed_allocation_is_a_clear_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
