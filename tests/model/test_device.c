/* Every tiny checkpoint on every device present: logits of an independent implementation, fed as one prompt, in chunks
 * and token by token; then a witness that the device's own kernels did it.
 * test-kernels: shared
 * test-timeout: 600 */
#include "golden.h"

#include <unistd.h>

#include "tests/devices.h"

static const struct {
    const char *path, *expected;
    bool quantised;
    bool routed; /* experts: where rounding turns a near tie, a position is another model; the median position counts */
} cases[] = {
    {"llama2", "llama2", false, false},
    {"llama2-q.gguf", "llama2-q", true, false},
    {"llama3.gguf", "llama3", false, false},
    {"llama3-mlx4", "llama3-mlx4", true, false},
    {"mistral", "mistral", false, false},
    {"llama-dynamic", "llama-dynamic", false, false},
    {"qwen2.gguf", "qwen2", false, false},
    {"qwen2-mlx8", "qwen2-mlx8", true, false},
    {"qwen2-window", "qwen2-window", false, false},
    {"qwen3", "qwen3", false, false},
    {"qwen3-mlx3", "qwen3-mlx3", true, false},
    {"gemma3.gguf", "gemma3", false, false},
    {"gemma3-mlx6", "gemma3-mlx6", true, false},
    {"gemma3-nested", "gemma3-nested", false, false},
    {"gemma2", "gemma2", false, false},
#ifndef __SANITIZE_ADDRESS__ /* minutes more, for the host's code that the models above go through */
    {"llama-iq.gguf", "llama-iq", true, false},
    {"phi3", "phi3", false, false},
    {"smollm3", "smollm3", false, false},
    {"smollm3-mlx-mxfp4", "smollm3-mlx-mxfp4", true, false},
    {"granite", "granite", false, false},
    {"olmo2", "olmo2", false, false},
    {"olmo3", "olmo3", false, false},
    {"starcoder2", "starcoder2", false, false},
    {"cohere2", "cohere2", false, false},
    {"glm4", "glm4", false, false},
    {"gemma.gguf", "gemma", false, false},
    {"exaone4.gguf", "exaone4", false, false},
    {"ernie4_5", "ernie4_5", false, false},
    {"seed-oss", "seed-oss", false, false},
    {"glm4moe.gguf", "glm4moe", false, true},
    {"stablelm", "stablelm", false, false},
    {"granitemoe.gguf", "granitemoe", false, true},
    {"mistral3", "mistral3", false, false},
    {"ministral3.gguf", "ministral3", false, false},
#endif
    {"qwen3moe", "qwen3moe", false, true},
    {"qwen3moe-mixed", "qwen3moe-mixed", false, true},
    {"qwen2moe.gguf", "qwen2moe", false, true},
    {"mixtral", "mixtral", false, true},
    {"mixtral-q.gguf", "mixtral-q", true, true},
    {"olmoe.gguf", "olmoe", false, true},
    {"mixtral-mlx6", "mixtral-mlx6", true, true},
    {"bitnet", "bitnet", true, false},
    {"bitnet-auto", "bitnet-auto", true, false},
    {"bitnet-tq.gguf", "bitnet-tq", true, false},
    {"bitnet.gguf", "bitnet-silu", true, false},
    {"gpt-oss", "gpt-oss", true, true},
    {"gpt-oss.gguf", "gpt-oss", true, true},
    {"gpt-oss-mlx-mxfp4", "gpt-oss-mlx-mxfp4", true, true},
    {"mamba", "mamba", false, false},
    {"falcon-mamba.gguf", "falcon-mamba", false, false},
    {"mamba2.gguf", "mamba2", false, false},
    {"mamba2-limit", "mamba2-limit", false, false},
    {"granite-hybrid", "granite-hybrid", false, false},
    {"granite-hybrid-moe.gguf", "granite-hybrid-moe", false, true},
    {"falcon-h1", "falcon-h1", false, false},
    {"falcon-h1-norm", "falcon-h1-norm", false, false},
    {"falcon-h1-tied-mlx8", "falcon-h1-tied-mlx8", true, false},
    {"jamba", "jamba", false, true},
    {"nemotron-h", "nemotron-h", false, false},
    {"nemotron-h-moe.gguf", "nemotron-h-moe", false, true},
    {"nemotron-h-moe-mlx4", "nemotron-h-moe-mlx4", true, true},
    {"nemotron-h-groups", "nemotron-h-groups", false, true},
    {"qwen3-next", "qwen3-next", false, true},
    {"qwen3_5.gguf", "qwen3_5", false, false},
    {"lfm2", "lfm2", false, false},
    {"lfm2-moe.gguf", "lfm2-moe", false, true},
    {"plamo2.gguf", "plamo2", false, false},
    {"plamo2-window", "plamo2-window", false, false},
    {"plamo2-mlx4", "plamo2-mlx4", true, false},
    {"deepseek2-lite", "deepseek2-lite", false, true},
    {"deepseek2.gguf", "deepseek2", false, true},
    {"deepseek2-lite-mlx4", "deepseek2-lite-mlx4", true, true},
    {"deepseek3-q.gguf", "deepseek3-q", true, true},
};

/* Inputs in 8 bits everywhere: one between two steps may go either way, and moves all that follows. */
static bool is_stepped(const char *path) { return strncmp(path, "bitnet", 6) == 0; }

static float got[GOLD_TOKENS_MAX * GOLD_VOCAB_MAX];

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void witness_names_device(struct rig *r, const char *kind, bool routed) {
    struct pl_ops_launches rows[64];
    size_t n = pl_ops_witness(r->ops, rows, PL_COUNT_OF(rows)), linear = 0, attention = 0, moe = 0, conv = 0, update = 0,
           scan = 0, delta = 0;
    const struct pl_model_config *c = pl_model_config(r->model);
    assert_true(n <= PL_COUNT_OF(rows));
    for (size_t i = 0; i < n; i++) {
        assert_true(strncmp(rows[i].kernel, kind, strlen(kind)) == 0);
        if (strcmp(rows[i].op, "linear") == 0) linear += rows[i].launches;
        if (strcmp(rows[i].op, "attention") == 0) attention += rows[i].launches;
        if (strcmp(rows[i].op, "moe") == 0) moe += rows[i].launches;
        if (strcmp(rows[i].op, "causal_conv") == 0) conv += rows[i].launches;
        if (strcmp(rows[i].op, "delta") == 0) delta += rows[i].launches;
        if (strcmp(rows[i].op, "ssm_update") == 0) update += rows[i].launches;
        if (strcmp(rows[i].op, "ssm_scan") == 0) scan += rows[i].launches;
    }
    assert_true(linear > 0 && (attention > 0) == (c->kv_layers > 0) && (moe > 0) == routed);
    bool rule = c->state_layers > 0 && c->ssm.kind == PL_SSM_DELTA, scans = c->state_layers > 0 && c->ssm.state > 0 && !rule;
    assert_true((conv > 0) == (c->state_layers > 0) && (update > 0 && scan > 0) == scans && (delta > 0) == rule);
}

static void one_backend(enum pl_backend backend, enum pl_device_kind kind, bool exact_products, enum pl_dtype kv,
                        double exact, double quantised) {
    static const uint32_t chunks[] = {GOLD_TOKENS_MAX, 7, 1};
    int index = test_device_of(kind);
    bool good = true;
    const char *model = getenv("PLUMB_TEST_MODELS"); /* those whose names hold it */
    if (model != NULL && model[0] == 0) model = NULL;
    if (index < 0) SKIP("no such device here");
    for (size_t i = 0; i < PL_COUNT_OF(cases); i += test_small() && model == NULL ? 5 : 1) {
        static struct gold g;
        char path[256];
        if (model != NULL && strstr(cases[i].path, model) == NULL) continue;
        snprintf(path, sizeof path, "tests/golden/model/%s", cases[i].path);
        if (!gold_read(cases[i].expected, &g)) fail_msg("cannot read tests/golden/model/%s.bin", cases[i].expected);
        struct rig r;
        struct pl_ops_options oo = {.backend = backend, .device = index, .threads = 2, .exact = exact_products};
        rig_open_with(&r, &oo, path, kv, GOLD_TOKENS_MAX);
        double limit = cases[i].quantised ? quantised : exact, worst = 0;
        if (is_stepped(cases[i].path) && kv != PL_F32) limit = 1e-1; /* the cache moves every input a little */
        for (size_t c = 0; c < PL_COUNT_OF(chunks); c++) {
            double off[GOLD_TOKENS_MAX];
            rig_run(&r, g.ids, g.tokens, chunks[c], got);
            for (uint32_t t = 0; t < g.tokens; t++)
                off[t] = gold_rms_distance(got + (size_t)t * g.vocab, g.logits[t], g.vocab);
            qsort(off, g.tokens, sizeof *off, by_value);
            bool median = is_stepped(cases[i].path) || (cases[i].routed && limit > 1e-4);
            worst = fmax(worst, off[median ? g.tokens / 2 : g.tokens - 1]);
        }
        witness_names_device(&r, pl_device_kind_name(kind), cases[i].routed);
        rig_close(&r);
        print_message("# %s %-16s kv %-4s worst position: rms %.2e (limit %.0e)\n", pl_device_kind_name(kind), cases[i].path,
                      pl_dtype_name(kv), worst, limit);
        good = good && worst <= limit;
    }
    assert_true(good);
}

static void opencl(void **state) {
    (void)state;
    one_backend(PL_BACKEND_OPENCL, PL_DEVICE_OPENCL, false, PL_F32, 1e-4, 1e-4);
}
static void opencl_half(void **state) {
    (void)state;
    one_backend(PL_BACKEND_OPENCL, PL_DEVICE_OPENCL, false, PL_F16, 4e-3, 4e-3);
}
/* CUDA twice: with f32 inputs everywhere (8-bit for quantised weights), and with tensor cores, whose bf16 inputs these
 * small models amplify, as they do those of a bf16 cache. */
static void cuda(void **state) {
    (void)state;
    one_backend(PL_BACKEND_CUDA, PL_DEVICE_CUDA, true, PL_F32, 1e-4, 1e-1);
}
static void cuda_half(void **state) {
    (void)state;
    one_backend(PL_BACKEND_CUDA, PL_DEVICE_CUDA, true, PL_F16, 4e-3, 1e-1);
}
static void cuda_tensor_cores(void **state) {
    (void)state;
    one_backend(PL_BACKEND_CUDA, PL_DEVICE_CUDA, false, PL_F16, 5e-2, 1e-1);
}

static uint64_t taken(const struct rig *r, const char *op, const char *impl) {
    struct pl_ops_decision rows[64];
    size_t n = pl_ops_decisions(r->ops, rows, PL_COUNT_OF(rows));
    uint64_t count = 0;
    assert_true(n <= PL_COUNT_OF(rows));
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].op, op) == 0 && strcmp(rows[i].taken, impl) == 0) count += rows[i].count;
    return count;
}

/* Two sequences in one step, one with a past: rms of their logits from those of each alone. */
static double together_from_alone(struct rig *r, const uint32_t *ids, uint32_t vocab) {
    enum { PAST = 9, A = 21, B = 17, SECOND = GOLD_PAGES / 2 };
    static float alone[(A + B) * GOLD_VOCAB_MAX];
    uint32_t tokens[A + B], wanted[A + B];
    const struct pl_activation *logits;
    double worst = 0;
    rig_run(r, ids, PAST + A, PAST + A, got);
    memcpy(alone, got + (size_t)PAST * vocab, (size_t)A * vocab * sizeof *got);
    rig_run(r, ids + 5, B, B, alone + (size_t)A * vocab);
    rig_run(r, ids, PAST, PAST, got);
    for (uint32_t i = 0; i < A + B; i++) {
        tokens[i] = i < A ? ids[PAST + i] : ids[5 + i - A];
        wanted[i] = i;
    }
    const struct pl_batch_seq seqs[] = {{.rows = A, .past = PAST}, {.first_row = A, .rows = B, .page_first = SECOND}};
    const struct pl_batch b = {.rows = A + B,
                               .tokens = tokens,
                               .seq_count = 2,
                               .seqs = seqs,
                               .pages = r->pages,
                               .page_entries = GOLD_PAGES,
                               .logit_count = A + B,
                               .logit_rows = wanted};
    assert_int_equal(pl_model_forward(r->model, &b, r->kv, &logits), PL_OK);
    assert_int_equal(pl_ops_activation_read(r->ops, logits, 0, A + B, got), PL_OK);
    for (size_t i = 0; i < A + B; i++) worst = fmax(worst, gold_rms_distance(got + i * vocab, alone + i * vocab, vocab));
    return worst;
}

/* Latent attention by keys and values of each head, asked for: every step of more rows than one, and no step under
 * --invariant; the logits are those of the checkpoint either way. */
static void keys_of_heads(void **state) {
    static const enum pl_device_kind kinds[] = {PL_DEVICE_OPENCL, PL_DEVICE_CUDA};
    static const enum pl_backend backends[] = {PL_BACKEND_OPENCL, PL_BACKEND_CUDA};
    static const char *const paths[] = {"deepseek2-lite", "deepseek2-lite-mlx4", "deepseek2.gguf", "deepseek3"};
    static const uint32_t chunks[] = {GOLD_TOKENS_MAX, 7, 1};
    static struct gold g;
    size_t ran = 0;
    (void)state;
    for (size_t i = 0; i < PL_COUNT_OF(kinds) * PL_COUNT_OF(paths); i++) {
        const char *path = paths[i / PL_COUNT_OF(kinds)], *dot = strchr(path, '.');
        int index = test_device_of(kinds[i % PL_COUNT_OF(kinds)]);
        char full[256], gold[64];
        struct rig r;
        if (index < 0) continue;
        snprintf(full, sizeof full, "tests/golden/model/%s", path);
        snprintf(gold, sizeof gold, "%.*s", dot != NULL ? (int)(dot - path) : (int)strlen(path), path);
        if (!gold_read(gold, &g)) fail_msg("cannot read tests/golden/model/%s.bin", gold);
        struct pl_ops_options oo = {.backend = backends[i % PL_COUNT_OF(kinds)],
                                    .device = index,
                                    .threads = 2,
                                    .exact = true,
                                    .force = "attention=expanded"};
        rig_open_with(&r, &oo, full, PL_F32, GOLD_TOKENS_MAX);
        uint64_t before = 0, layers = pl_model_config(r.model)->layers;
        for (size_t c = 0; c < PL_COUNT_OF(chunks); c++) {
            double worst = 0;
            rig_run(&r, g.ids, g.tokens, chunks[c], got);
            for (uint32_t t = 0; t < g.tokens; t++)
                worst = fmax(worst, gold_rms_distance(got + (size_t)t * g.vocab, g.logits[t], g.vocab));
            uint64_t steps = taken(&r, "attention", "expanded") - before;
            before += steps;
            print_message("# %s %-20s steps of %2u: rms %.2e\n", pl_device_kind_name(kinds[i % 2]), path, chunks[c], worst);
            bool rounds = kinds[i % 2] == PL_DEVICE_CUDA && (strstr(path, "mlx") != NULL || strstr(path, "-q") != NULL);
            assert_true(worst <= (rounds ? 1e-1 : 1e-4)); /* there inputs of quantised weights are of 8 bits */
            assert_int_equal(steps, chunks[c] == 1 ? 0 : layers * (g.tokens / chunks[c] + (g.tokens % chunks[c] > 1)));
        }
        assert_true(together_from_alone(&r, g.ids, g.vocab) < 1e-5);
        assert_int_equal(taken(&r, "attention", "expanded") - before, 4 * layers);
        rig_close(&r);
        oo.invariant = true;
        rig_open_with(&r, &oo, full, PL_F32, GOLD_TOKENS_MAX);
        rig_run(&r, g.ids, g.tokens, GOLD_TOKENS_MAX, got);
        assert_int_equal(taken(&r, "attention", "expanded"), 0);
        rig_close(&r);
        ran++;
    }
    if (ran == 0) SKIP("no such device here");
}

/* Mamba-2's prompts go by chunks of the recurrence, whose rounding knows where a step began; under --invariant a prompt cut
 * anywhere gives the same bits, token by token. */
static void scans(void **state) {
    static const enum pl_device_kind kinds[] = {PL_DEVICE_OPENCL, PL_DEVICE_CUDA};
    static const enum pl_backend backends[] = {PL_BACKEND_OPENCL, PL_BACKEND_CUDA};
    static float whole[GOLD_TOKENS_MAX * GOLD_VOCAB_MAX];
    static struct gold g;
    size_t ran = 0;
    (void)state;
    if (!gold_read("mamba2", &g)) fail_msg("cannot read tests/golden/model/mamba2.bin");
    for (size_t i = 0; i < PL_COUNT_OF(kinds) * 2; i++) {
        const bool invariant = i % 2 == 1;
        int index = test_device_of(kinds[i / 2]);
        struct rig r;
        if (index < 0) continue;
        struct pl_ops_options oo = {
            .backend = backends[i / 2], .device = index, .threads = 2, .invariant = invariant, .exact = true};
        rig_open_with(&r, &oo, "tests/golden/model/mamba2.gguf", PL_F32, GOLD_TOKENS_MAX);
        rig_run(&r, g.ids, g.tokens, g.tokens, whole);
        uint64_t layers = pl_model_config(r.model)->state_layers;
        assert_int_equal(taken(&r, "ssm_scan", "chunks"), invariant ? 0 : layers);
        assert_int_equal(taken(&r, "ssm_scan", "portable"), invariant ? layers : 0);
        rig_run(&r, g.ids, g.tokens, 21, got);
        bool same = memcmp(got, whole, (size_t)g.tokens * g.vocab * sizeof *got) == 0;
        assert_true(same == invariant); /* else this could not fail */
        rig_close(&r);
        ran++;
    }
    if (ran == 0) SKIP("no such device here");
}

/* Asking for what is not there is an error that says what is missing. */
static void absent_is_an_error(void **state) {
    (void)state;
    static const struct {
        enum pl_backend backend;
        enum pl_device_kind kind;
    } kinds[] = {
        {PL_BACKEND_CUDA, PL_DEVICE_CUDA}, {PL_BACKEND_ROCM, PL_DEVICE_ROCM}, {PL_BACKEND_OPENCL, PL_DEVICE_OPENCL}};
    for (size_t i = 0; i < PL_COUNT_OF(kinds); i++) {
        struct pl_err err = {0};
        struct pl_ops *o = NULL;
        struct pl_ops_options oo = {.backend = kinds[i].backend, .device = 4321};
        assert_int_equal(pl_ops_create(&oo, &o, &err), PL_NOT_FOUND);
        assert_null(o);
        assert_true(strlen(err.text) > 20);
    }
    struct pl_err err = {0};
    struct pl_ops *o = NULL;
    struct pl_ops_options oo = {.backend = PL_BACKEND_METAL};
    assert_int_equal(pl_ops_create(&oo, &o, &err), PL_UNSUPPORTED);
    assert_non_null(strstr(err.text, "no port"));
}

int main(void) {
    test_own_cache();
    struct CMUnitTest tests[] = {
        cmocka_unit_test(opencl),    cmocka_unit_test(opencl_half),       cmocka_unit_test(cuda),
        cmocka_unit_test(cuda_half), cmocka_unit_test(cuda_tensor_cores), cmocka_unit_test(keys_of_heads),
        cmocka_unit_test(scans),     cmocka_unit_test(absent_is_an_error)};
    return TEST_RUN("models on devices", tests);
}
