/* Loading: what is wrong with a checkpoint is named, every failed allocation is survived, every launch is counted. */
#include "golden.h"

#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

static char dir[64], logged[1024];

static void keep_line(const char *line, void *user) {
    (void)user;
    snprintf(logged, sizeof logged, "%s", line);
}

static int make_dir(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/plumb-load-XXXXXX");
    pl_log_set_sink(keep_line, NULL);
    return mkdtemp(dir) != NULL ? 0 : -1;
}

static int remove_dir(void **state) {
    (void)state;
    pl_log_set_sink(NULL, NULL);
    char path[128];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    return rmdir(dir);
}

/* Copies one file of a golden checkpoint, the first occurrence of `from` replaced by `to` (same length; NULL: none). */
static void copy_file(const char *model, const char *name, const char *from, const char *to) {
    char path[256];
    snprintf(path, sizeof path, "tests/golden/model/%s/%s", model, name);
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    static char data[1 << 19];
    size_t len = fread(data, 1, sizeof data, in);
    fclose(in);
    if (from != NULL) {
        assert_int_equal(strlen(from), strlen(to));
        char *at = memmem(data, len, from, strlen(from));
        assert_non_null(at);
        memcpy(at, to, strlen(to));
    }
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, len, out), len);
    fclose(out);
}

/* Where a tensor's bytes begin in a safetensors file that is `data`. */
static size_t tensor_at(const char *data, size_t len, const char *name) {
    uint64_t header;
    memcpy(&header, data, sizeof header);
    const char *at = memmem(data, len, name, strlen(name)), *offsets = at != NULL ? strstr(at, "data_offsets\":[") : NULL;
    assert_non_null(offsets);
    return sizeof header + header + strtoul(offsets + strlen("data_offsets\":["), NULL, 10);
}

/* The output matrix of the copied checkpoint becomes its embeddings. */
static void make_head_the_embeddings(size_t bytes) {
    static char data[1 << 19];
    char path[128];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *io = fopen(path, "r+b");
    assert_non_null(io);
    size_t len = fread(data, 1, sizeof data, io);
    memcpy(data + tensor_at(data, len, "\"lm_head.weight\""), data + tensor_at(data, len, "\"model.embed_tokens.weight\""),
           bytes);
    rewind(io);
    assert_int_equal(fwrite(data, 1, len, io), len);
    fclose(io);
}

/* The fail_at-th allocation after the file's opening fails; 0: none. */
static enum pl_status load_failing(const char *path, size_t fail_at, struct pl_err *err) {
    struct pl_file *f = NULL;
    struct pl_ops *o = NULL;
    struct pl_model *m = NULL;
    *err = (struct pl_err){0};
    enum pl_status st = pl_file_open(path, &f, err);
    if (fail_at > 0) pl_mem_fail_at(fail_at);
    struct pl_ops_options oo = {.backend = PL_BACKEND_CPU, .threads = 1, .isa = "scalar"};
    if (st == PL_OK) st = pl_ops_create(&oo, &o, err);
    struct pl_model_options mo = {.max_context = 32, .max_rows = 8, .max_logits = 1};
    if (st == PL_OK) st = pl_model_create(f, o, &mo, &m, err);
    if (fail_at > 0) pl_mem_fail_at(0);
    pl_model_destroy(m);
    pl_ops_destroy(o);
    if (f != NULL) pl_file_close(f);
    return st;
}
static enum pl_status load(const char *path, struct pl_err *err) { return load_failing(path, 0, err); }

static const struct {
    const char *model, *file, *from, *to, *part;
} faults[] = {
    {"llama3", "model.safetensors", "model.norm.weight", "model.nobm.weight", "tensor model.norm.weight is missing"},
    {"qwen2", "model.safetensors", "layers.1.self_attn.k_proj.bias", "layers.1.self_attn.k_proj.bins",
     "tensor model.layers.1.self_attn.k_proj.bias is missing"},
    {"bitnet", "model.safetensors", "layers.1.mlp.up_proj.weight_scale", "layers.1.mlp.up_proj.weight_scala",
     "tensor model.layers.1.mlp.up_proj.weight_scale is missing"},
    {"bitnet", "config.json", "\"quant_method\": \"bitnet\"", "\"quant_method\": \"bitnot\"", "bitnot"},
    {"bitnet-auto", "config.json", "\"offline\"", "\"offlime\"", "quantization_mode 'offlime'"},
    {"bitnet-auto", "config.json", "autobitlinear", "autobitlinrar", "linear_class 'autobitlinrar'"},
    {"bitnet", "config.json", "relu2", "relu3", "'relu3' is not implemented"},
    {"bitnet", "config.json", "\"intermediate_size\": 96", "\"intermediate_size\": 97", "multiples of 32"},
    {"llama3", "model.safetensors", "model.embed_tokens", "model.embed_takens", "no tensor model.embed_tokens.weight"},
    {"llama3", "config.json", "\"intermediate_size\": 64", "\"intermediate_size\": 96",
     "gate_proj.weight has shape [64, 64]; the configuration expects [96, 64] (MLP width, width)"},
    {"llama3", "config.json", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4",
     "k_proj.weight has shape [32, 64]; the configuration expects [64, 64]"},
    {"llama3", "config.json", "\"vocab_size\": 96", "\"vocab_size\": 95", "expects [95, 64] (vocabulary, width)"},
    {"llama2", "config.json", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true ", NULL},
    {"gpt-oss-bf16", "model.safetensors", "[4,24,32]", "[4,32,24]",
     "experts.down_proj has shape [4, 32, 24]; the configuration expects [4, 24, 32] (experts, width of an expert, width)"},
    {"gpt-oss-bf16", "model.safetensors", "[4,32,48]", "[4,48,32]",
     "experts.gate_up_proj has shape [4, 48, 32]; the configuration expects [4, 32, 48] (experts, width, gate and up)"},
    {"gpt-oss", "model.safetensors", "[6,64,1,16]", "[6,64,16,1]",
     "has shape [6, 64, 16, 1] of u8 and its scales [6, 64, 1] of u8; the configuration expects [6, 64, 1, 16] and [6, 64, "
     "1]"},
    {"granite-hybrid-moe", "model.safetensors", "[6,32,32]", "[6,16,64]",
     "has shape [6, 16, 64]; the configuration expects [6, 32, 32] (experts, gate and up, width)"},
    {"qwen3", "config.json", "\"head_dim\": 32", "\"head_dim\": 16", "q_proj.weight has shape [64, 64]"},
};

static void faults_are_named(void **state) {
    (void)state;
    for (size_t i = 0; i < PL_COUNT_OF(faults); i++) {
        bool weights = strcmp(faults[i].file, "model.safetensors") == 0;
        copy_file(faults[i].model, "model.safetensors", weights ? faults[i].from : NULL, faults[i].to);
        copy_file(faults[i].model, "config.json", weights ? NULL : faults[i].from, faults[i].to);
        struct pl_err err;
        enum pl_status st = load(dir, &err);
        if (faults[i].part == NULL) {
            if (st != PL_OK) fail_msg("%s", err.text);
        } else if ((st != PL_FORMAT && st != PL_UNSUPPORTED) || strstr(err.text, faults[i].part) == NULL) {
            fail_msg("%s -> %s gave %s: %s", faults[i].from, faults[i].to, pl_status_name(st), err.text);
        }
    }
}

/* gpt-oss with experts of a type that nobody widens to: what is supported is said, not that a tensor is missing. */
static void plain_experts_of_other_types_are_refused(void **state) {
    (void)state;
    copy_file("gpt-oss", "model.safetensors", "layers.0.mlp.experts.down_proj_blocks\"",
              "layers.0.mlp.experts.down_proj\"       ");
    copy_file("gpt-oss", "config.json", NULL, NULL);
    struct pl_err err;
    assert_int_equal(load(dir, &err), PL_UNSUPPORTED);
    if (strstr(err.text, "model.layers.0.mlp.experts.down_proj holds experts as u8") == NULL ||
        strstr(err.text, "MXFP4") == NULL)
        fail_msg("%s", err.text);
}

#define TIED_OUTSIDE "\"tie_word_embeddings\": true,                               "
/* Where no level of config.json says whether the output matrix is the embeddings, or the two disagree, the tensors do. */
static void the_tensors_say_what_is_tied(void **state) {
    static const struct {
        const char *model, *from, *to;
        bool tied;
    } cases[] = {{"llama3", "\"tie_word_embeddings\": true", "\"tie_word_embedding_\": true", true},
                 {"llama2", "\"tie_word_embeddings\": false", "\"tie_word_embedding_\": false", false},
                 {"mistral3", "\"architectures\": [\n  \"Mistral3ForConditionalGeneration\"\n ],", TIED_OUTSIDE, false}};
    (void)state;
    for (size_t i = 0; i < PL_COUNT_OF(cases); i++) {
        static struct pl_model_config c;
        struct pl_err err;
        struct pl_file *f;
        copy_file(cases[i].model, "model.safetensors", NULL, NULL);
        copy_file(cases[i].model, "config.json", cases[i].from, cases[i].to);
        RIG_OK(pl_file_open(dir, &f, &err), err);
        RIG_OK(pl_model_config_read(f, &c, &err), err);
        assert_int_equal(c.tied_embeddings, cases[i].tied);
        pl_file_close(f);
        assert_int_equal(load(dir, &err), PL_OK);
    }
}

/* Said to be one, but not the same bytes: both are used, and that is told. With the same bytes the matrix is not loaded. */
static void a_head_that_differs_is_used(void **state) {
    (void)state;
    static struct pl_model_config c;
    for (int same = 0; same < 2; same++) {
        struct pl_err err;
        struct pl_file *f;
        copy_file("llama2", "config.json", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true ");
        copy_file("llama2", "model.safetensors", NULL, NULL);
        RIG_OK(pl_file_open(dir, &f, &err), err);
        size_t bytes = pl_file_tensor(f, "lm_head.weight")->bytes;
        pl_file_close(f);
        if (same) make_head_the_embeddings(bytes);
        logged[0] = 0;
        RIG_OK(pl_file_open(dir, &f, &err), err);
        RIG_OK(pl_model_config_read(f, &c, &err), err);
        pl_file_close(f);
        assert_int_equal(c.tied_embeddings, same);
        assert_true((strstr(logged, "lm_head.weight is not its embeddings") == NULL) == same);
        assert_int_equal(load(dir, &err), PL_OK);
    }
}

/* Past a length Ministral 3 computes something else. */
static void contexts_end_where_positions_scale(void **state) {
    static const char *const paths[] = {"tests/golden/model/ministral3", "tests/golden/model/ministral3.gguf"};
    (void)state;
    for (size_t i = 0; i < PL_COUNT_OF(paths); i++) {
        struct pl_err err = {0};
        struct pl_file *f;
        struct pl_ops *o;
        struct pl_model *m = NULL;
        struct pl_ops_options oo = {.backend = PL_BACKEND_CPU, .threads = 1, .isa = "scalar"};
        struct pl_model_options mo = {.max_context = 129, .max_rows = 8, .max_logits = 1};
        RIG_OK(pl_file_open(paths[i], &f, &err), err);
        RIG_OK(pl_ops_create(&oo, &o, &err), err);
        assert_int_equal(pl_model_create(f, o, &mo, &m, &err), PL_UNSUPPORTED);
        assert_non_null(strstr(err.text, "scales by position from 128 on"));
        mo.max_context = 0;
        RIG_OK(pl_model_create(f, o, &mo, &m, &err), err);
        assert_int_equal(pl_model_config(m)->context_train, 128); /* the file says 256 */
        pl_model_destroy(m);
        pl_ops_destroy(o);
        pl_file_close(f);
    }
}

static void leftovers_are_told(void **state) {
    (void)state;
    copy_file("llama2", "model.safetensors", NULL, NULL);
    copy_file("llama2", "config.json", "\"mlp_bias\": true", "\"mlp_bias\": null");
    struct pl_err err;
    logged[0] = 0;
    assert_int_equal(load(dir, &err), PL_OK);
    assert_non_null(strstr(logged, "6 tensors are not used"));
    assert_non_null(strstr(logged, "mlp."));
}

/* The output matrix's bias would be missed in every logit; whatever else stands beside the matrix is told. */
static void leftovers_beside_the_head_are_seen(void **state) {
    (void)state;
    static const char from[] = "\"model.layers.1.mlp.down_proj.bias\"";
    static const struct {
        const char *to, *told; /* told: NULL when refused */
    } cases[] = {{"\"lm_head.bias\"                     ", NULL},
                 {"\"language_model.lm_head.bias\"      ", NULL},
                 {"\"lm_head.scales\"                   ", "6 tensors are not used"},
                 {"\"lm_head.weight.scale\"             ", "6 tensors are not used"}};
    for (size_t i = 0; i < PL_COUNT_OF(cases); i++) {
        struct pl_err err;
        copy_file("llama2", "model.safetensors", from, cases[i].to);
        copy_file("llama2", "config.json", "\"mlp_bias\": true", "\"mlp_bias\": null");
        logged[0] = 0;
        enum pl_status st = load(dir, &err);
        if (cases[i].told == NULL)
            assert_true(st == PL_UNSUPPORTED && strstr(err.text, "lm_head.bias has no place in a llama model") != NULL);
        else
            assert_true(st == PL_OK && strstr(logged, cases[i].told) != NULL);
    }
}

/* A weight of a GGUF that the architecture does not use would change the result: no guess. */
static void leftovers_of_a_gguf_are_refused(void **state) {
    (void)state;
    copy_file(".", "llama3.gguf", "rope_freqs.weight", "blk.0.ffn.weight_");
    char path[128];
    snprintf(path, sizeof path, "%s/llama3.gguf", dir);
    struct pl_err err;
    assert_int_equal(load(path, &err), PL_UNSUPPORTED);
    assert_non_null(strstr(err.text, "tensor blk.0.ffn.weight_ has no place in a llama model"));
    copy_file(".", "llama3.gguf", "rope_freqs.weight", "mm.projector.bias");
    assert_int_equal(load(path, &err), PL_OK);
    unlink(path);
}

static void every_failed_allocation_is_survived(void **state) {
    (void)state;
    static const char *const paths[] = {"tests/golden/model/llama3", "tests/golden/model/gemma3.gguf",
                                        "tests/golden/model/bitnet", "tests/golden/model/bitnet.gguf"};
    for (size_t p = 0; p < PL_COUNT_OF(paths); p++) {
        struct pl_err err;
        size_t n = 1, failed = 0;
        for (size_t passed = 0; passed < 20; n++) { /* the threads of the scale check may fail, and nobody minds */
            pl_mem_fail_at(n);
            enum pl_status st = load(paths[p], &err);
            pl_mem_fail_at(0);
            if (st != PL_OK && st != PL_NO_MEMORY) fail_msg("allocation %zu: %s: %s", n, pl_status_name(st), err.text);
            passed = st == PL_OK ? passed + 1 : 0;
            failed += st != PL_OK;
        }
        print_message("# %s: %zu allocations failed\n", paths[p], failed);
        assert_true(failed > 150);
    }
}

/* Matrices in another order are memory of the model's own. */
static void failed_copies_are_survived(void **state) {
    (void)state;
    static const char *const paths[] = {"tests/golden/model/phi3-mlx-mxfp4", "tests/golden/model/gpt-oss",
                                        "tests/golden/model/gpt-oss-bf16"};
    for (size_t p = 0; p < PL_COUNT_OF(paths); p++) {
        struct pl_err err;
        size_t failed = 0;
        for (size_t n = 1, passed = 0; passed < 20; n++) {
            enum pl_status st = load_failing(paths[p], n, &err);
            if (st != PL_OK && st != PL_NO_MEMORY) fail_msg("allocation %zu: %s: %s", n, pl_status_name(st), err.text);
            passed = st == PL_OK ? passed + 1 : 0;
            failed += st != PL_OK;
        }
        print_message("# %s: %zu allocations failed\n", paths[p], failed);
        assert_true(failed > 50);
    }
}

/* Counts are steps x layers, whatever the context; a wrong route would show here. */
static void launches_are_counted(void **state) {
    (void)state;
    struct gold g;
    struct rig r;
    assert_true(gold_read("gemma3", &g));
    rig_open(&r, "tests/golden/model/gemma3.gguf", "scalar", PL_F32, 16);
    static float out[GOLD_TOKENS_MAX * GOLD_VOCAB_MAX];
    pl_ops_witness_reset(r.ops);
    rig_run(&r, g.ids, 48, 16, out); /* 3 steps of 6 layers */
    struct pl_ops_launches w[64];
    size_t n = pl_ops_witness(r.ops, w, 64), seen = 0;
    assert_true(n <= 64);
    uint64_t products = 0;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(w[i].op, "linear") == 0) products += w[i].launches;
        if (strcmp(w[i].op, "attention") != 0) continue;
        assert_int_equal(w[i].launches, 3 * 6);
        assert_string_equal(w[i].kernel, "scalar/attention");
        seen++;
    }
    assert_int_equal(seen, 1);
    assert_int_equal(products, 3 * (6 * 7 + 1)); /* q k v o gate up down, and the head */
    rig_close(&r);
}

static void budgets_add_up(void **state) {
    (void)state;
    struct pl_file *f;
    struct pl_err err = {0};
    RIG_OK(pl_file_open("tests/golden/model/llama3.gguf", &f, &err), err);
    struct pl_model_config c;
    RIG_OK(pl_model_config_read(f, &c, &err), err);
    struct pl_model_options mo = {.max_context = 64, .max_rows = 8, .max_logits = 2};
    struct pl_kv_shape kv = {
        .layers = c.layers, .page_count = 2, .page_tokens = 32, .kv_heads = 2, .head_dim = 16, .dtype = PL_F16};
    struct pl_memory_budget b;
    RIG_OK(pl_model_budget(f, &c, &mo, &kv, &b, &err), err);
    assert_int_equal(b.kv_bytes, 2 * 2 * 2 * 32 * 2 * 16 * 2); /* layers, sides, pages, tokens, heads, size, bytes */
    uint64_t row = 64 + 64 + 64 + 32 + 32 + 64 + 64 + 64, logit = 64 + 64 + 96;
    assert_int_equal(b.scratch_bytes, 4 * (8 * row + 2 * logit) + 64 * 16 * 4);
    assert_true(b.weight_bytes_mapped > 0 && b.weight_bytes_mapped <= pl_file_bytes(f));
    assert_int_equal(b.weight_bytes_owned, 0); /* f16 and f32 stay where they are */
    assert_int_equal(b.weight_bytes_resident, b.weight_bytes_mapped);
    kv.page_count = SIZE_MAX / 2;
    assert_int_equal(pl_model_budget(f, &c, &mo, &kv, &b, &err), PL_LIMIT);
    pl_file_close(f);
}

/* What repacked weights really take stays within what was announced, and a weight is counted once. */
static void budgets_hold(void **state) {
    (void)state;
    static const char *const paths[] = {"tests/golden/model/llama2-q.gguf",     "tests/golden/model/qwen3-mlx3",
                                        "tests/golden/model/gemma3-mlx6",       "tests/golden/model/llama3-mlx4",
                                        "tests/golden/model/gpt-oss",           "tests/golden/model/gpt-oss-bf16",
                                        "tests/golden/model/gpt-oss-mlx-mxfp4", "tests/golden/model/phi3-mlx-mxfp4"};
    for (size_t i = 0; i < PL_COUNT_OF(paths); i++) {
        struct rig r;
        struct pl_err err = {0};
        rig_open(&r, paths[i], NULL, PL_F16, 32);
        struct pl_model_options mo = {.max_context = 128, .max_rows = 32, .max_logits = 32};
        struct pl_memory_budget b;
        RIG_OK(pl_model_budget(r.file, pl_model_config(r.model), &mo, NULL, &b, &err), err);
        uint64_t owned = pl_model_bytes_owned(r.model);
        if (owned > b.weight_bytes_owned + b.scratch_bytes + (1u << 13)) /* vectors become f32 */
            fail_msg("%s: %llu bytes owned, %llu announced", paths[i], (unsigned long long)owned,
                     (unsigned long long)(b.weight_bytes_owned + b.scratch_bytes));
        assert_true(b.weight_bytes_resident < b.weight_bytes_mapped + b.weight_bytes_owned);
        rig_close(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(plain_experts_of_other_types_are_refused),
        cmocka_unit_test(leftovers_are_told),
        cmocka_unit_test(leftovers_beside_the_head_are_seen),
        cmocka_unit_test(leftovers_of_a_gguf_are_refused),
        cmocka_unit_test(launches_are_counted),
        cmocka_unit_test(every_failed_allocation_is_survived),
        cmocka_unit_test(budgets_add_up),
        cmocka_unit_test(budgets_hold),
        cmocka_unit_test(failed_copies_are_survived),
        cmocka_unit_test(contexts_end_where_positions_scale),
        cmocka_unit_test(the_tensors_say_what_is_tied),
        cmocka_unit_test(a_head_that_differs_is_used),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
