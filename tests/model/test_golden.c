/* Tiny random checkpoints of every architecture and file kind against the logits that transformers computed in f32
 * (tools/make_golden.py), through every instruction set of this machine. */
#include "golden.h"

#include "cpu/cpu.h"
#include "tests/skip.h"

struct golden_case {
    const char *path, *expected;
    bool quantised;
    bool routed; /* experts: where rounding turns a near tie, a position is another model; the median position counts */
};
static const struct golden_case cases[] = {
    {"llama2", "llama2", false, false},
    {"llama2.gguf", "llama2", false, false},
    {"llama2-q.gguf", "llama2-q", true, false},
    {"llama-iq.gguf", "llama-iq", true, false},
    {"llama3", "llama3", false, false},
    {"llama3.gguf", "llama3", false, false},
    {"llama3-mlx4", "llama3-mlx4", true, false},
    {"smollm3-mlx-mxfp4", "smollm3-mlx-mxfp4", true, false},
    {"llama-dynamic", "llama-dynamic", false, false},
    {"mistral", "mistral", false, false},
    {"mistral.gguf", "mistral", false, false},
    {"qwen2", "qwen2", false, false},
    {"qwen2.gguf", "qwen2", false, false},
    {"qwen2-mlx8", "qwen2-mlx8", true, false},
    {"qwen2-window", "qwen2-window", false, false},
    {"qwen3", "qwen3", false, false},
    {"qwen3.gguf", "qwen3", false, false},
    {"qwen3-mlx3", "qwen3-mlx3", true, false},
    {"gemma3", "gemma3", false, false},
    {"gemma3.gguf", "gemma3", false, false},
    {"qwen3-mlx5", "qwen3-mlx5", true, false},
    {"gemma3-mlx6", "gemma3-mlx6", true, false},
    {"gemma3-nested", "gemma3-nested", false, false},
    {"gemma3-nested-mlx4", "gemma3-nested-mlx4", true, false},
    {"gemma2", "gemma2", false, false},
    {"gemma2.gguf", "gemma2", false, false},
    {"phi3", "phi3", false, false},
    {"phi3.gguf", "phi3", false, false},
    {"phi3-long", "phi3-long", false, false},
    {"phi3-long.gguf", "phi3-long", false, false},
    {"smollm3", "smollm3", false, false},
    {"smollm3.gguf", "smollm3", false, false},
    {"granite", "granite", false, false},
    {"granite.gguf", "granite", false, false},
    {"olmo2", "olmo2", false, false},
    {"olmo2.gguf", "olmo2", false, false},
    {"olmo3", "olmo3", false, false},
    {"olmo3.gguf", "olmo3", false, false},
    {"starcoder2", "starcoder2", false, false},
    {"starcoder2.gguf", "starcoder2", false, false},
    {"cohere", "cohere", false, false},
    {"cohere.gguf", "cohere", false, false},
    {"cohere2", "cohere2", false, false},
    {"cohere2.gguf", "cohere2", false, false},
    {"glm", "glm", false, false},
    {"glm.gguf", "glm", false, false},
    {"glm4", "glm4", false, false},
    {"glm4.gguf", "glm4", false, false},
    {"qwen2_5-vl", "qwen2_5-vl", false, false},
    {"qwen2_5-vl.gguf", "qwen2_5-vl", false, false},
    {"qwen3-vl", "qwen3-vl", false, false},
    {"qwen3-vl.gguf", "qwen3-vl", false, false},
    {"qwen3-vl-mlx4", "qwen3-vl-mlx4", true, false},
    {"stablelm", "stablelm", false, false},
    {"stablelm.gguf", "stablelm", false, false},
    {"stablelm-mlx4", "stablelm-mlx4", true, false},
    {"granitemoe", "granitemoe", false, true},
    {"granitemoe.gguf", "granitemoe", false, true},
    {"granitemoe-mlx8", "granitemoe-mlx8", true, true},
    {"gemma", "gemma", false, false},
    {"gemma.gguf", "gemma", false, false},
    {"exaone4", "exaone4", false, false},
    {"exaone4.gguf", "exaone4", false, false},
    {"exaone4-small", "exaone4-small", false, false},
    {"exaone4-small.gguf", "exaone4-small", false, false},
    {"ernie4_5", "ernie4_5", false, false},
    {"ernie4_5.gguf", "ernie4_5", false, false},
    {"seed-oss", "seed-oss", false, false},
    {"seed-oss.gguf", "seed-oss", false, false},
    {"glm4moe", "glm4moe", false, true},
    {"glm4moe.gguf", "glm4moe", false, true},
    {"glm4moe-air", "glm4moe-air", false, true},
    {"gemma-mlx4", "gemma-mlx4", true, false},
    {"exaone4-mlx4", "exaone4-mlx4", true, false},
    {"ernie4_5-mlx8", "ernie4_5-mlx8", true, false},
    {"seed-oss-mlx4", "seed-oss-mlx4", true, false},
    {"glm4moe-mlx4", "glm4moe-mlx4", true, true},
    {"ministral", "ministral", false, false},
    {"mistral3", "mistral3", false, false},
    {"mistral3.gguf", "mistral3", false, false},
    {"mistral3-late", "mistral3-late", false, false},
    {"ministral3", "ministral3", false, false},
    {"ministral3.gguf", "ministral3", false, false},
    {"ministral3-mlx4", "ministral3-mlx4", true, false},
    {"qwen3moe", "qwen3moe", false, true},
    {"qwen3moe.gguf", "qwen3moe", false, true},
    {"qwen3moe-mixed", "qwen3moe-mixed", false, true},
    {"qwen2moe", "qwen2moe", false, true},
    {"qwen2moe.gguf", "qwen2moe", false, true},
    {"mixtral", "mixtral", false, true},
    {"mixtral.gguf", "mixtral", false, true},
    {"mixtral-q.gguf", "mixtral-q", true, true},
    {"olmoe", "olmoe", false, true},
    {"olmoe.gguf", "olmoe", false, true},
    {"mamba", "mamba", false, false},
    {"mamba.gguf", "mamba", false, false},
    {"mamba2", "mamba2", false, false},
    {"mamba2.gguf", "mamba2", false, false},
    {"mamba2-limit", "mamba2-limit", false, false},
    {"granite-hybrid", "granite-hybrid", false, false},
    {"granite-hybrid.gguf", "granite-hybrid", false, false},
    {"granite-hybrid-dense", "granite-hybrid-dense", false, false},
    {"granite-hybrid-dense-mlx8", "granite-hybrid-dense-mlx8", true, false},
    {"granite-hybrid-moe", "granite-hybrid-moe", false, true},
    {"granite-hybrid-moe.gguf", "granite-hybrid-moe", false, true},
    {"falcon-h1", "falcon-h1", false, false},
    {"falcon-h1.gguf", "falcon-h1", false, false},
    {"falcon-h1-norm", "falcon-h1-norm", false, false},
    {"falcon-h1-tied", "falcon-h1-tied", false, false},
    {"falcon-h1-mlx4", "falcon-h1-mlx4", true, false},
    {"falcon-h1-tied-mlx8", "falcon-h1-tied-mlx8", true, false},
    {"jamba", "jamba", false, true},
    {"jamba.gguf", "jamba", false, true},
    {"nemotron-h", "nemotron-h", false, false},
    {"nemotron-h.gguf", "nemotron-h", false, false},
    {"nemotron-h-moe", "nemotron-h-moe", false, true},
    {"nemotron-h-moe.gguf", "nemotron-h-moe", false, true},
    {"nemotron-h-moe-mlx4", "nemotron-h-moe-mlx4", true, true},
    {"nemotron-h-groups", "nemotron-h-groups", false, true},
    {"qwen3-next", "qwen3-next", false, true},
    {"qwen3-next.gguf", "qwen3-next", false, true},
    {"qwen3-next-mlx8", "qwen3-next-mlx8", true, true},
    {"qwen3_5", "qwen3_5", false, false},
    {"qwen3_5.gguf", "qwen3_5", false, false},
    {"lfm2", "lfm2", false, false},
    {"lfm2.gguf", "lfm2", false, false},
    {"lfm2-mlx4", "lfm2-mlx4", true, false},
    {"lfm2-moe", "lfm2-moe", false, true},
    {"lfm2-moe.gguf", "lfm2-moe", false, true},
    {"lfm2-moe-mlx8", "lfm2-moe-mlx8", true, true},
    {"plamo2", "plamo2", false, false},
    {"plamo2.gguf", "plamo2", false, false},
    {"plamo2-window", "plamo2-window", false, false},
    {"plamo2-mlx4", "plamo2-mlx4", true, false},
    {"mamba-mlx4", "mamba-mlx4", true, false},
    {"mamba2-mlx4", "mamba2-mlx4", true, false},
    {"falcon-mamba-mlx4", "falcon-mamba-mlx4", true, false},
    {"granite-hybrid-mlx4", "granite-hybrid-mlx4", true, false},
    {"granite-hybrid-moe-mlx4", "granite-hybrid-moe-mlx4", true, true},
    {"jamba-mlx4", "jamba-mlx4", true, true},
    {"nemotron-h-mlx4", "nemotron-h-mlx4", true, false},
    {"falcon-mamba", "falcon-mamba", false, false},
    {"falcon-mamba.gguf", "falcon-mamba", false, false},
    {"gpt-oss", "gpt-oss", true, true},
    {"gpt-oss.gguf", "gpt-oss", true, true},
    {"gpt-oss-mlx-mxfp4", "gpt-oss-mlx-mxfp4", true, true},
    {"gpt-oss-mlx8", "gpt-oss-mlx8", true, true},
    {"gpt-oss-bf16", "gpt-oss-bf16", false, true},
    {"deepseek2-lite", "deepseek2-lite", false, true},
    {"deepseek2-lite.gguf", "deepseek2-lite", false, true},
    {"deepseek2-lite-q.gguf", "deepseek2-lite-q", true, true},
    {"deepseek2-lite-mlx4", "deepseek2-lite-mlx4", true, true},
    {"deepseek2", "deepseek2", false, true},
    {"deepseek2.gguf", "deepseek2", false, true},
    {"deepseek3", "deepseek3", false, true},
    {"deepseek3.gguf", "deepseek3", false, true},
    {"deepseek3-q.gguf", "deepseek3-q", true, true},
    {"deepseek3-mlx8", "deepseek3-mlx8", true, true},
    {"bitnet", "bitnet", true, false},
    {"bitnet-auto", "bitnet-auto", true, false},
    {"bitnet-mlx4", "bitnet-mlx4", true, false},
    {"bitnet-online", "bitnet-online", true, false},
    {"bitnet-tq.gguf", "bitnet-tq", true, false},
    {"bitnet.gguf", "bitnet-silu", true, false},
    {"qwen3moe-mlx4", "qwen3moe-mlx4", true, true},
    {"qwen3moe-mlx-mxfp4", "qwen3moe-mlx-mxfp4", true, true},
    {"qwen2moe-mlx8", "qwen2moe-mlx8", true, true},
    {"mixtral-mlx6", "mixtral-mlx6", true, true},
    {"olmoe-mlx4", "olmoe-mlx4", true, true},
    {"mistral-mlx4", "mistral-mlx4", true, false},
    {"mistral3-mlx4", "mistral3-mlx4", true, false},
    {"ministral-mlx8", "ministral-mlx8", true, false},
    {"gemma2-mlx4", "gemma2-mlx4", true, false},
    {"phi3-mlx5", "phi3-mlx5", true, false},
    {"phi3-mlx-mxfp4", "phi3-mlx-mxfp4", true, false},
    {"smollm3-mlx4", "smollm3-mlx4", true, false},
    {"granite-mlx8", "granite-mlx8", true, false},
    {"olmo2-mlx4", "olmo2-mlx4", true, false},
    {"olmo3-mlx6", "olmo3-mlx6", true, false},
    {"starcoder2-mlx4", "starcoder2-mlx4", true, false},
    {"cohere-mlx8", "cohere-mlx8", true, false},
    {"cohere2-mlx4", "cohere2-mlx4", true, false},
    {"glm-mlx4", "glm-mlx4", true, false},
    {"glm4-mlx3", "glm4-mlx3", true, false},
};

/* A build for an emulator (tests/cpu/test_aarch64.py) has no JSON. */
static bool readable(const char *path) {
#ifdef PL_TEST_EMULATED
    return strstr(path, ".gguf") != NULL;
#else
    return path != NULL;
#endif
}

static float got[GOLD_TOKENS_MAX * GOLD_VOCAB_MAX];

struct distance {
    double max, rms; /* worst position */
    double median_max, median_rms;
};

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct distance distance_of(const struct golden_case *c, const char *isa, enum pl_dtype kv) {
    static struct gold g;
    char path[256];
    snprintf(path, sizeof path, "tests/golden/model/%s", c->path);
    if (!gold_read(c->expected, &g)) fail_msg("cannot read tests/golden/model/%s.bin", c->expected);
    struct rig r;
    rig_open(&r, path, isa, kv, GOLD_TOKENS_MAX);
    assert_int_equal(pl_model_config(r.model)->vocab, g.vocab);
    rig_run(&r, g.ids, g.tokens, GOLD_TOKENS_MAX, got);
    rig_close(&r);
    double max[GOLD_TOKENS_MAX], rms[GOLD_TOKENS_MAX];
    for (uint32_t t = 0; t < g.tokens; t++) {
        max[t] = gold_distance(got + (size_t)t * g.vocab, g.logits[t], g.vocab);
        rms[t] = gold_rms_distance(got + (size_t)t * g.vocab, g.logits[t], g.vocab);
    }
    qsort(max, g.tokens, sizeof *max, by_value);
    qsort(rms, g.tokens, sizeof *rms, by_value);
    return (struct distance){max[g.tokens - 1], rms[g.tokens - 1], max[g.tokens / 2], rms[g.tokens / 2]};
}

/* Worst over positions. Exact cases: the largest difference over the largest logit; quantised ones: Euclidean too. */
struct bound {
    double exact_max, quantised_max, quantised_rms;
};

/* Inputs in 8 bits in every implementation: one between two steps may go either way, and moves all that follows. The median
 * position counts, the worst has a bound of its own. */
static bool is_stepped(const char *path) { return strncmp(path, "bitnet", 6) == 0; }
#define STEPPED_MAX 1e-1

static void check(const char *isa, enum pl_dtype kv, struct bound b) {
    bool good = true;
    for (size_t i = 0; i < PL_COUNT_OF(cases); i++) {
        if (!readable(cases[i].path)) continue;
        struct distance d = distance_of(&cases[i], isa, kv);
        double max = cases[i].quantised ? b.quantised_max : b.exact_max, rms = cases[i].quantised ? b.quantised_rms : max;
        print_message("# %-12s %-16s kv %-4s worst position: max %.2e (limit %.0e), rms %.2e (limit %.0e)\n", isa,
                      cases[i].path, pl_dtype_name(kv), d.max, max, d.rms, rms);
        bool rounded = max > 1e-4; /* these bounds allow for rounding that may turn a choice */
        if (cases[i].routed && rounded)
            print_message("#   experts: median position %.2e, rms %.2e\n", d.median_max, d.median_rms);
        if (cases[i].routed && rounded) d = (struct distance){d.median_max, d.median_rms, 0, 0};
        if (is_stepped(cases[i].path)) {
            if (!(d.max <= STEPPED_MAX)) good = false;
            print_message("#   steps: median position %.2e, rms %.2e\n", d.median_max, d.median_rms);
            d = (struct distance){d.median_max, d.median_rms, 0, 0};
            if (kv != PL_F32) max = rms = STEPPED_MAX; /* the cache moves every input a little */
        }
        if (!(d.max <= max) || !(d.rms <= rms)) good = false;
    }
    assert_true(good);
}

static void scalar_is_exact(void **state) {
    (void)state;
    check("scalar", PL_F32, (struct bound){1e-4, 1e-4, 1e-4});
}

/* Vector tables quantise activations to 8 bits where the weights are quantised. */
static void vector_tables(void **state) {
    (void)state;
    size_t ran = 0;
    for (int isa = PL_ISA_SCALAR + 1; isa < PL_ISA_COUNT; isa++) {
        if (!pl_cpu_isa_available((enum pl_isa)isa)) continue;
        check(pl_isa_name((enum pl_isa)isa), PL_F32, (struct bound){1e-4, 1.5e-1, 1e-1});
        ran++;
    }
    if (ran == 0) SKIP("PLUMB_TEST_MODELS names none of these models");
}

/* What users run: a cache of 16-bit keys and values. */
static void half_precision_cache(void **state) {
    (void)state;
    check("scalar", PL_F16, (struct bound){4e-3, 4e-3, 4e-3});
    check("scalar", PL_BF16, (struct bound){3e-2, 3e-2, 3e-2});
}

int main(void) {
    if (!pl_cpu_isa_available(PL_ISA_AMX)) pl_cpu_emulate_amx(true); /* tiles in C where AVX-512 is */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalar_is_exact),
        cmocka_unit_test(vector_tables),
        cmocka_unit_test(half_precision_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
