/* Every tiny checkpoint on every device present: logits of an independent implementation, fed as one prompt, in chunks
 * and token by token; then a witness that the device's own kernels did it.
 * test-timeout: 600 */
#include "golden.h"

#include <unistd.h>

#include "tests/devices.h"

static const struct {
    const char *path, *expected;
    bool quantised;
} cases[] = {
    {"llama2", "llama2", false},
    {"llama2-q.gguf", "llama2-q", true},
    {"llama3.gguf", "llama3", false},
    {"llama3-mlx4", "llama3-mlx4", true},
    {"mistral", "mistral", false},
    {"qwen2.gguf", "qwen2", false},
    {"qwen2-mlx8", "qwen2-mlx8", true},
    {"qwen2-window", "qwen2-window", false},
    {"qwen3", "qwen3", false},
    {"qwen3-mlx3", "qwen3-mlx3", true},
    {"gemma3.gguf", "gemma3", false},
    {"gemma3-mlx6", "gemma3-mlx6", true},
    {"gemma3-nested", "gemma3-nested", false},
    {"gemma2", "gemma2", false},
#ifndef __SANITIZE_ADDRESS__ /* minutes more, for the host's code that the models above go through */
    {"phi3", "phi3", false},
    {"smollm3", "smollm3", false},
    {"granite", "granite", false},
    {"olmo2", "olmo2", false},
    {"olmo3", "olmo3", false},
    {"starcoder2", "starcoder2", false},
    {"cohere2", "cohere2", false},
    {"glm4", "glm4", false},
    {"mistral3", "mistral3", false},
#endif
};

static float got[GOLD_TOKENS_MAX * GOLD_VOCAB_MAX];

static void witness_names_device(struct rig *r, const char *kind) {
    struct pl_ops_launches rows[64];
    size_t n = pl_ops_witness(r->ops, rows, PL_COUNT_OF(rows)), linear = 0, attention = 0;
    assert_true(n <= PL_COUNT_OF(rows));
    for (size_t i = 0; i < n; i++) {
        assert_true(strncmp(rows[i].kernel, kind, strlen(kind)) == 0);
        if (strcmp(rows[i].op, "linear") == 0) linear += rows[i].launches;
        if (strcmp(rows[i].op, "attention") == 0) attention += rows[i].launches;
    }
    assert_true(linear > 0 && attention > 0);
}

static void one_backend(enum pl_backend backend, enum pl_device_kind kind, bool exact_products, enum pl_dtype kv,
                        double exact, double quantised) {
    static const uint32_t chunks[] = {GOLD_TOKENS_MAX, 7, 1};
    int index = test_device_of(kind);
    bool good = true;
    if (index < 0) skip();
    for (size_t i = 0; i < PL_COUNT_OF(cases); i += test_small() ? 5 : 1) {
        static struct gold g;
        char path[256];
        snprintf(path, sizeof path, "tests/golden/model/%s", cases[i].path);
        if (!gold_read(cases[i].expected, &g)) fail_msg("cannot read tests/golden/model/%s.bin", cases[i].expected);
        struct rig r;
        struct pl_ops_options oo = {.backend = backend, .device = index, .threads = 2, .exact = exact_products};
        rig_open_with(&r, &oo, path, kv, GOLD_TOKENS_MAX);
        double limit = cases[i].quantised ? quantised : exact, worst = 0;
        for (size_t c = 0; c < PL_COUNT_OF(chunks); c++) {
            rig_run(&r, g.ids, g.tokens, chunks[c], got);
            for (uint32_t t = 0; t < g.tokens; t++) {
                worst = fmax(worst, gold_rms_distance(got + (size_t)t * g.vocab, g.logits[t], g.vocab));
            }
        }
        witness_names_device(&r, pl_device_kind_name(kind));
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

/* An operation without a port on the backend stops the model from loading, by name. */
static void experts_are_refused_by_name(void **state) {
    (void)state;
    struct pl_err err = {0};
    int index = test_device_of(PL_DEVICE_OPENCL);
    if (index < 0) skip();
    struct pl_file *f = NULL;
    struct pl_ops *o = NULL;
    struct pl_model *m = NULL;
    struct pl_ops_options oo = {.backend = PL_BACKEND_OPENCL, .device = index};
    struct pl_model_options mo = {.max_context = 64, .max_rows = 4};
    RIG_OK(pl_file_open("tests/golden/model/mixtral.gguf", &f, &err), err);
    RIG_OK(pl_ops_create(&oo, &o, &err), err);
    assert_int_equal(pl_model_create(f, o, &mo, &m, &err), PL_UNSUPPORTED);
    assert_non_null(strstr(err.text, "backend opencl has no port of moe"));
    pl_ops_destroy(o);
    pl_file_close(f);
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
    char cache[4096]; /* not the user's */
    if (getcwd(cache, sizeof cache - 16) == NULL) return 1;
    strcat(cache, "/build/test-cache");
    setenv("XDG_CACHE_HOME", cache, 1);
    struct CMUnitTest tests[] = {cmocka_unit_test(opencl),
                                 cmocka_unit_test(opencl_half),
                                 cmocka_unit_test(cuda),
                                 cmocka_unit_test(cuda_half),
                                 cmocka_unit_test(cuda_tensor_cores),
                                 cmocka_unit_test(absent_is_an_error),
                                 cmocka_unit_test(experts_are_refused_by_name)};
    return TEST_RUN("models on devices", tests);
}
