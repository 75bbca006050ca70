/* Forms of decode attention in whole models, on every device present: each form forced gives the golden logits; layer
 * steps add up to layers x steps; sequences that share pages run as a cascade; switches and refusals; invariant mode.
 * test-timeout: 900
 * test-variants: release (the forms are kernels of the OpenCL driver, which no sanitizer sees; model/test_device takes the
 * host code they go through to it sanitized) */
#include "golden.h"

#include <unistd.h>

#include "tests/devices.h"

enum { SEQS = 5 };
static float got[GOLD_TOKENS_MAX * GOLD_VOCAB_MAX], other[GOLD_TOKENS_MAX * GOLD_VOCAB_MAX];
enum { PLAIN = 3 }; /* the first so many have no quantised weights */
static const char *const models[] = {"llama3.gguf", "gemma3.gguf", "qwen2-window", "llama2-q.gguf", "llama3-mlx4"};
static const char *const goldens[] = {"llama3", "gemma3", "qwen2-window", "llama2-q", "llama3-mlx4"};

static int device_index;
static bool present(enum pl_backend *backend) {
    static const enum pl_backend backends[] = {PL_BACKEND_CUDA, PL_BACKEND_ROCM, PL_BACKEND_OPENCL};
    static const enum pl_device_kind kinds[] = {PL_DEVICE_CUDA, PL_DEVICE_ROCM, PL_DEVICE_OPENCL};
    for (size_t i = 0; i < PL_COUNT_OF(kinds); i++) {
        device_index = test_device_of(kinds[i]);
        if (device_index < 0) continue;
        *backend = backends[i];
        return true;
    }
    return false;
}

static void open_model(struct rig *r, struct pl_ops_options oo, size_t model, enum pl_dtype kv) {
    char path[256];
    snprintf(path, sizeof path, "tests/golden/model/%s", models[model]);
    oo.device = device_index;
    rig_open_with(r, &oo, path, kv, GOLD_TOKENS_MAX);
}

/* Layer steps of a form, of all its reasons or of one; the sum of all forms is layers x steps. */
static uint64_t steps_of(const struct rig *r, const char *form, const char *reason) {
    struct pl_ops_attention rows[32];
    struct pl_ops_attention_totals t;
    size_t n = pl_ops_attention_rows(r->ops, rows, PL_COUNT_OF(rows));
    uint64_t sum = 0, found = 0;
    assert_true(n <= PL_COUNT_OF(rows));
    for (size_t i = 0; i < n; i++) {
        sum += rows[i].layer_steps;
        bool it = strcmp(rows[i].form, form) == 0 && (reason == NULL || strcmp(rows[i].reason, reason) == 0);
        if (it) found += rows[i].layer_steps;
    }
    pl_ops_attention_totals(r->ops, &t);
    assert_true(sum == t.layer_steps);
    assert_true(t.layer_steps == t.steps * pl_model_config(r->model)->layers);
    assert_true(pl_ops_asked(r->ops, PL_OP_attention) == t.layer_steps && pl_ops_decisions_add_up(r->ops));
    return found;
}

static void forms_give_the_golden_logits(void **state) {
    (void)state;
    static const char *const forms[] = {"v1", "v2", "gather", "auto"};
    enum pl_backend backend = PL_BACKEND_CPU;
    if (!present(&backend)) SKIP("no such device here");
    for (size_t m = 0; m < PLAIN; m++) {
        static struct gold g;
        assert_true(gold_read(goldens[m], &g));
        for (size_t f = 0; f < PL_COUNT_OF(forms); f++) {
            struct rig r;
            struct pl_ops_options oo = {.backend = backend, .exact = true, .attn = forms[f]};
            open_model(&r, oo, m, PL_F32);
            rig_run(&r, g.ids, g.tokens, 1, got);
            double worst = 0;
            for (uint32_t t = 0; t < g.tokens; t++)
                worst = fmax(worst, gold_rms_distance(got + (size_t)t * g.vocab, g.logits[t], g.vocab));
            if (worst > 1e-4) fail_msg("%s, %s: %g from the golden logits", models[m], forms[f], worst);
            uint64_t all = (uint64_t)g.tokens * pl_model_config(r.model)->layers;
            if (strcmp(forms[f], "auto") != 0) assert_true(steps_of(&r, forms[f], "") == all);
            assert_true(steps_of(&r, "failed", NULL) == 0);
            rig_close(&r);
        }
    }
}

/* One batch over n sequences; rows[i] rows of sequence i from ids[i], which holds past[i] already. Tables are SEQS lists
 * of PAGES_EACH pages. Logits of each sequence's last row. */
enum { PAGES_EACH = 16 };
struct world {
    uint32_t tables[SEQS][PAGES_EACH], past[SEQS];
    const uint32_t *ids[SEQS];
};
static void step(struct rig *r, struct world *w, const uint32_t *list, const uint32_t *rows, uint32_t n, float *out) {
    uint32_t tokens[GOLD_TOKENS_MAX], pages[SEQS * PAGES_EACH], logit_rows[SEQS];
    struct pl_batch_seq seqs[SEQS];
    struct pl_batch b = {.tokens = tokens, .seqs = seqs, .pages = pages, .logit_rows = logit_rows};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t s = list[i];
        seqs[i] =
            (struct pl_batch_seq){.first_row = b.rows, .rows = rows[i], .past = w->past[s], .page_first = b.page_entries};
        memcpy(tokens + b.rows, w->ids[s] + w->past[s], rows[i] * 4);
        memcpy(pages + b.page_entries, w->tables[s], sizeof w->tables[s]);
        b.rows += rows[i];
        b.page_entries += PAGES_EACH;
        logit_rows[b.logit_count++] = b.rows - 1;
        w->past[s] += rows[i];
    }
    b.seq_count = n;
    const struct pl_activation *logits;
    assert_int_equal(pl_model_forward(r->model, &b, r->kv, &logits), PL_OK);
    assert_int_equal(pl_ops_activation_read(r->ops, logits, 0, n, out), PL_OK);
}

static void cascade_of_shared_pages(void **state) {
    (void)state;
    enum pl_backend backend = PL_BACKEND_CPU;
    if (!present(&backend)) SKIP("no such device here");
    static struct gold g;
    assert_true(gold_read(goldens[0], &g));
    struct rig r;
    struct pl_ops_options oo = {.backend = backend, .exact = true, .attn = "cascade"};
    open_model(&r, oo, 0, PL_F32);
    uint32_t vocab = g.vocab, shared = 2 * GOLD_PAGE, ids[SEQS][64], zero = 0, list[] = {0, 1, 2}, one[] = {1, 1, 1};
    assert_true(g.tokens > shared + 4);
    struct world w = {0};
    for (uint32_t s = 0; s < 3; s++) {
        memcpy(ids[s], g.ids, (shared + 6) * 4);
        for (uint32_t t = shared; t < shared + 6; t++) ids[s][t] = (g.ids[t] + s * 7) % vocab;
        w.ids[s] = ids[s];
        for (uint32_t p = 0; p < PAGES_EACH; p++) w.tables[s][p] = p < 2 ? 40 + p : s * 8 + p % 8;
    }
    step(&r, &w, &zero, &shared, 1, got); /* the shared beginning, computed once */
    w.past[1] = w.past[2] = shared;
    pl_ops_witness_reset(r.ops);
    for (uint32_t t = 0; t < 5; t++) step(&r, &w, list, one, 3, got + (size_t)t * 3 * vocab);
    uint64_t layers = pl_model_config(r.model)->layers;
    struct pl_ops_attention_totals totals;
    assert_true(steps_of(&r, "cascade", "") == 5 * layers);
    pl_ops_attention_totals(r.ops, &totals);
    assert_true(totals.cascade_groups == 5 * layers && totals.cascade_members == 15 * layers);
    assert_true(totals.cascade_span_pages == 10 * layers && totals.cascade_tokens_saved == 2 * shared * 5 * layers);
    assert_true(totals.merged_rows == 15 * layers && totals.chunks >= 20 * layers);
    rig_close(&r);
    oo.attn = "v1"; /* each alone */
    open_model(&r, oo, 0, PL_F32);
    for (uint32_t s = 0; s < 3; s++) {
        rig_run(&r, ids[s], shared + 5, 1, other);
        for (uint32_t t = 0; t < 5; t++) {
            double d = gold_rms_distance(got + ((size_t)t * 3 + s) * vocab, other + (size_t)(shared + t) * vocab, vocab);
            assert_true(d < 1e-5);
        }
    }
    rig_close(&r);
}

static void switches(void **state) {
    (void)state;
    enum pl_backend backend = PL_BACKEND_CPU;
    struct pl_err err = {0};
    struct pl_ops *o = NULL;
    if (!present(&backend)) SKIP("no such device here");
    static struct gold g;
    assert_true(gold_read(goldens[0], &g));
    struct rig r;
    struct pl_ops_options oo = {.backend = backend, .exact = true, .attn_off = "v2,cascade", .attn = "gather"};
    open_model(&r, oo, 0, PL_F16);
    assert_non_null(strstr(pl_ops_forced(r.ops), "decode attention gather"));
    assert_non_null(strstr(pl_ops_forced(r.ops), "attention off cascade, v2"));
    rig_run(&r, g.ids, 8, 4, got); /* two steps of several rows: another question */
    assert_true(steps_of(&r, "gather", NULL) == 0 &&
                steps_of(&r, "portable", NULL) + steps_of(&r, "tiles", NULL) + steps_of(&r, "split", NULL) > 0);
    rig_run(&r, g.ids, 8, 1, got);
    assert_true(steps_of(&r, "gather", "") == 8 * pl_model_config(r.model)->layers);
    rig_close(&r);
    oo.attn = "cascade"; /* nothing to share: counted, another form serves */
    oo.attn_off = NULL;
    open_model(&r, oo, 0, PL_F16);
    rig_run(&r, g.ids, 3, 1, got);
    assert_true(steps_of(&r, "cascade", NULL) == 0);
    uint64_t layers = pl_model_config(r.model)->layers;
    assert_true(steps_of(&r, "v2", "nothing shared") + steps_of(&r, "v1", "nothing shared") +
                    steps_of(&r, "split", "nothing shared") ==
                3 * layers);
    rig_close(&r);
    oo.strict = true; /* and under strict an error */
    open_model(&r, oo, 0, PL_F16);
    uint32_t page = 0, row = 0;
    struct pl_batch_seq seq = {.rows = 1};
    struct pl_batch b = {1, g.ids, 1, &seq, &page, 1, NULL, 1, &row, 0};
    const struct pl_activation *logits;
    assert_int_equal(pl_model_forward(r.model, &b, r.kv, &logits), PL_UNSUPPORTED);
    assert_non_null(strstr(pl_ops_refusal(r.ops), "nothing shared"));
    rig_close(&r);
    oo.attn = "v3";
    assert_int_equal(pl_ops_create(&oo, &o, &err), PL_USAGE);
    oo.attn = "v2";
    oo.attn_off = "v2";
    assert_int_equal(pl_ops_create(&oo, &o, &err), PL_USAGE);
    assert_null(o);
}

/* A row's bits alone and beside others: lengths, order, prompts in chunks. */
static bool neighbours_change_nothing(enum pl_backend backend, size_t model, bool invariant, bool exact) {
    static struct gold g;
    struct rig r;
    struct pl_ops_options oo = {.backend = backend, .threads = 2, .exact = exact, .invariant = invariant};
    assert_true(gold_read(goldens[model], &g));
    open_model(&r, oo, model, PL_F16);
    uint32_t vocab = g.vocab, rng = 12345, n = PL_MIN(g.tokens, 40u), mine = 0;
    static uint32_t ids[SEQS][GOLD_TOKENS_MAX];
    struct world w = {0};
    for (uint32_t s = 0; s < SEQS; s++) {
        for (uint32_t t = 0; t < g.tokens; t++) ids[s][t] = (g.ids[t] + s * 31 * (t + 1)) % vocab;
        w.ids[s] = ids[s];
        for (uint32_t p = 0; p < PAGES_EACH; p++) w.tables[s][p] = s * 10 + p % 10;
    }
    struct world alone = w;
    for (uint32_t t = 0; t < n; t++) {
        uint32_t one = 1;
        step(&r, &alone, &mine, &one, 1, got + (size_t)t * vocab);
    }
    for (uint32_t t = 0; t < n;) { /* sequence 0 in steps of 1..3 rows, the others as it comes */
        uint32_t list[SEQS], rows[SEQS], count = 0, at = 0;
        for (uint32_t s = 0; s < SEQS; s++) {
            rng = rng * 1664525u + 1013904223u;
            uint32_t want = s == 0 ? PL_MIN(1 + (rng >> 16) % 3, n - t) : (rng >> 16) % (t % 3 == 0 ? 14 : 4);
            if (s > 0 && w.past[s] + want > n) w.past[s] = 0; /* begins anew */
            if (want == 0) continue;
            list[count] = s;
            rows[count++] = want;
        }
        rng = rng * 1664525u + 1013904223u;
        at = (rng >> 16) % count; /* sequence 0 changes its place */
        uint32_t l = list[at], k = rows[at];
        list[at] = list[0], rows[at] = rows[0], list[0] = l, rows[0] = k;
        step(&r, &w, list, rows, count, other);
        t = w.past[0];
        if (memcmp(other + (size_t)at * vocab, got + (size_t)(t - 1) * vocab, vocab * 4) == 0) continue;
        print_message("# %s: the logits of token %u differ beside %u neighbours\n", models[model], t - 1, count - 1);
        rig_close(&r);
        return false;
    }
    rig_close(&r);
    return true;
}
static void invariant_on_device(void **state) {
    (void)state;
    enum pl_backend backend = PL_BACKEND_CPU;
    if (!present(&backend)) SKIP("no such device here");
    /* As users run it, and where that rounds inputs (CUDA) with f32 inputs too. */
    for (size_t m = 0; m < PL_COUNT_OF(models); m++) assert_true(neighbours_change_nothing(backend, m, true, false));
    for (size_t m = 0; m < PL_COUNT_OF(models) && backend == PL_BACKEND_CUDA; m++)
        assert_true(neighbours_change_nothing(backend, m, true, true));
}
/* The control: without it prompts and single tokens run other kernels, and the comparison sees that. */
static void neighbours_are_seen_without(void **state) {
    (void)state;
    enum pl_backend backend = PL_BACKEND_CPU;
    if (!present(&backend)) SKIP("no such device here");
    assert_false(neighbours_change_nothing(backend, 0, false, true));
}
static void invariant_on_the_cpu(void **state) {
    (void)state;
    for (size_t m = 0; m < PL_COUNT_OF(models); m++) assert_true(neighbours_change_nothing(PL_BACKEND_CPU, m, true, true));
}

/* The CPU has one form; asking for another is counted, or refused. */
static void one_form_on_the_cpu(void **state) {
    (void)state;
    static struct gold g;
    struct pl_err err = {0};
    struct pl_ops *o = NULL;
    struct rig r;
    struct pl_ops_options oo = {.backend = PL_BACKEND_CPU, .exact = true, .threads = 1};
    assert_true(gold_read(goldens[0], &g));
    open_model(&r, oo, 0, PL_BF16);
    rig_run(&r, g.ids, 9, 4, got);
    assert_true(steps_of(&r, "cpu", "") == 3 * pl_model_config(r.model)->layers);
    rig_close(&r);
    oo.attn = "v2";
    open_model(&r, oo, 0, PL_F16);
    rig_run(&r, g.ids, 9, 4, got);
    assert_true(steps_of(&r, "cpu", "no port") == 3 * pl_model_config(r.model)->layers);
    rig_close(&r);
    oo.strict = true;
    assert_int_equal(pl_ops_create(&oo, &o, &err), PL_UNSUPPORTED);
    assert_non_null(strstr(err.text, "no port"));
}

int main(void) {
    test_own_cache();
    struct CMUnitTest tests[] = {cmocka_unit_test(one_form_on_the_cpu),
                                 cmocka_unit_test(invariant_on_the_cpu),
                                 cmocka_unit_test(switches),
                                 cmocka_unit_test(cascade_of_shared_pages),
                                 cmocka_unit_test(forms_give_the_golden_logits),
                                 cmocka_unit_test(invariant_on_device),
                                 cmocka_unit_test(neighbours_are_seen_without)};
    return TEST_RUN("decode attention in models", tests);
}
