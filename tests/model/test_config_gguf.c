/* Configurations from GGUF metadata: the keys that converters write for published models, what a missing one means, and
 * what must be refused by name. */
#include "tests/file/craft.h"

#include <math.h>

#include "model/model.h"

#define ASSERT_NEAR(a, b) assert_true(fabs((double)(a) - (double)(b)) <= 1e-6 * fabs((double)(b)))

static void craft_f32(struct craft *c, const char *key, float v) { craft_value(c, key, PL_GGUF_F32, &v, 4); }

struct sizes {
    const char *arch;
    uint32_t layers, width, heads, kv_heads;
};
static const char *arch_key(const char *arch, const char *name) {
    static char key[8][96];
    static unsigned turn;
    char *k = key[turn++ % 8];
    snprintf(k, sizeof key[0], "%s.%s", arch, name);
    return k;
}

/* What every converter writes; the caller adds the rest. */
static struct craft sound(struct sizes s) {
    struct craft c = craft_new();
    craft_string(&c, "general.architecture", s.arch);
    craft_u32(&c, arch_key(s.arch, "block_count"), s.layers);
    craft_u32(&c, arch_key(s.arch, "context_length"), 32768);
    craft_u32(&c, arch_key(s.arch, "embedding_length"), s.width);
    craft_u32(&c, arch_key(s.arch, "feed_forward_length"), 4 * s.width);
    craft_u32(&c, arch_key(s.arch, "attention.head_count"), s.heads);
    craft_u32(&c, arch_key(s.arch, "attention.head_count_kv"), s.kv_heads);
    craft_f32(&c, arch_key(s.arch, "attention.layer_norm_rms_epsilon"), 1e-5f);
    craft_tensor(&c, "token_embd.weight", s.width, 96, PL_F16);
    return c;
}

static enum pl_status read_craft(struct craft *c, struct pl_model_config *out, struct pl_err *err) {
    struct pl_buf bytes = {0};
    craft_bytes(c, &bytes);
    struct pl_file *f = NULL;
    *err = (struct pl_err){0};
    enum pl_status st = pl_gguf_open_memory(pl_buf_cstr(&bytes), bytes.len, &f, err);
    if (st == PL_OK) st = pl_model_config_read(f, out, err);
    if (f != NULL) pl_file_close(f);
    pl_buf_deinit(&bytes);
    return st;
}

static struct pl_model_config must_read(struct craft *c) {
    struct pl_model_config out;
    struct pl_err err;
    if (read_craft(c, &out, &err) != PL_OK) fail_msg("%s", err.text);
    return out;
}

static void llama_3_and_its_tensor(void **state) {
    (void)state;
    struct craft c = sound((struct sizes){"llama", 2, 256, 4, 1});
    craft_u32(&c, "llama.vocab_size", 96);
    craft_u32(&c, "llama.rope.dimension_count", 64);
    craft_f32(&c, "llama.rope.freq_base", 500000);
    craft_u32(&c, "llama.expert_count", 0); /* older converters write zeros */
    craft_u32(&c, "llama.expert_used_count", 0);
    craft_tensor(&c, "rope_freqs.weight", 32, 1, PL_F32);
    struct pl_model_config m = must_read(&c);
    assert_int_equal(m.arch, PL_ARCH_LLAMA);
    assert_int_equal(m.kv_heads, 1);
    assert_int_equal(m.head_dim, 64);
    assert_true(m.rope_freq_tensor && m.tied_embeddings && !m.rope_halves && !m.qkv_bias);
    assert_int_equal(m.rope_scaling, PL_ROPE_NONE);
    ASSERT_NEAR(m.rope_base, 500000);
}

/* Mistral Nemo: heads that do not add up to the width. */
static void head_size_of_its_own(void **state) {
    (void)state;
    struct craft c = sound((struct sizes){"llama", 2, 320, 4, 2});
    craft_u32(&c, "llama.attention.key_length", 64);
    craft_u32(&c, "llama.attention.value_length", 64);
    craft_u32(&c, "llama.rope.dimension_count", 64);
    craft_f32(&c, "llama.rope.freq_base", 1e6f);
    craft_tensor(&c, "output.weight", 320, 96, PL_F16);
    struct pl_model_config m = must_read(&c);
    assert_int_equal(m.head_dim, 64);
    ASSERT_NEAR(m.attn_scale, 0.125);
    assert_false(m.tied_embeddings);
}

static void qwen_biases_and_norms_are_seen(void **state) {
    (void)state;
    struct craft c = sound((struct sizes){"qwen2", 1, 128, 2, 1});
    craft_tensor(&c, "blk.0.attn_q.bias", 128, 1, PL_F32);
    struct pl_model_config m = must_read(&c);
    assert_true(m.qkv_bias && m.rope_halves && !m.qk_norm);
    ASSERT_NEAR(m.rope_base, 10000); /* where the file does not say */
    c = sound((struct sizes){"qwen3", 1, 128, 2, 1});
    craft_u32(&c, "qwen3.attention.key_length", 128);
    craft_u32(&c, "qwen3.attention.value_length", 128);
    craft_tensor(&c, "blk.0.attn_q_norm.weight", 128, 1, PL_F32);
    m = must_read(&c);
    assert_true(!m.qkv_bias && m.qk_norm);
    assert_int_equal(m.head_dim, 128);
}

static uint32_t windowed(const struct pl_model_config *m) {
    uint32_t n = 0;
    for (uint32_t l = 0; l < m->layers; l++) n += m->layer_windowed[l];
    return n;
}

static struct craft gemma(void) {
    struct craft c = sound((struct sizes){"gemma3", 13, 64, 4, 1});
    craft_u32(&c, "gemma3.attention.key_length", 32);
    craft_u32(&c, "gemma3.attention.value_length", 32);
    craft_u32(&c, "gemma3.attention.sliding_window", 512);
    return c;
}

static void gemma_2(void **state) {
    (void)state;
    struct craft c = sound((struct sizes){"gemma2", 4, 64, 4, 2});
    struct pl_model_config m = must_read(&c);
    assert_int_equal(windowed(&m), 2);
    assert_true(m.layer_windowed[0] && !m.layer_windowed[1] && m.window == 4096);
    ASSERT_NEAR(m.attn_softcap, 50);
    ASSERT_NEAR(m.logit_softcap, 30);
    ASSERT_NEAR(m.attn_scale, 0.25);
    c = sound((struct sizes){"gemma2", 46, 64, 4, 2}); /* 27B: by width over heads, whatever the head size */
    craft_u32(&c, "gemma2.attention.key_length", 64);
    craft_u32(&c, "gemma2.attention.value_length", 64);
    craft_f32(&c, "gemma2.attn_logit_softcapping", 20);
    m = must_read(&c);
    ASSERT_NEAR(m.attn_scale, 0.25);
    ASSERT_NEAR(m.attn_softcap, 20);
}

static void gemma_3(void **state) {
    (void)state;
    struct craft c = gemma();
    craft_f32(&c, "gemma3.rope.freq_base", 1e6f);
    craft_string(&c, "gemma3.rope.scaling.type", "linear");
    craft_f32(&c, "gemma3.rope.scaling.factor", 8);
    struct pl_model_config m = must_read(&c);
    assert_int_equal(windowed(&m), 11); /* layers 6 and 12 are global */
    assert_false(m.layer_windowed[5]);
    assert_int_equal(m.rope_scaling, PL_ROPE_LINEAR);
    ASSERT_NEAR(m.rope_base_local, 10000);
    ASSERT_NEAR(m.embed_scale, 8);
    ASSERT_NEAR(m.norm_offset + 1, 1); /* the converter has added the one */
    c = gemma();
    craft_u32(&c, "gemma3.attention.sliding_window_pattern", 0);
    m = must_read(&c);
    assert_int_equal(windowed(&m), 13);
    c = gemma();
    const uint8_t flags[13] = {1, 0, 1};
    craft_array(&c, "gemma3.attention.sliding_window_pattern", PL_GGUF_BOOL, 13, flags, 13);
    m = must_read(&c);
    assert_true(m.layer_windowed[0] && !m.layer_windowed[1] && m.layer_windowed[2] && windowed(&m) == 2);
}

static void rotary_scaling(void **state) {
    (void)state;
    const struct sizes s = {"llama", 1, 64, 2, 1};
    struct craft c = sound(s);
    craft_f32(&c, "llama.rope.scale_linear", 4); /* before there were types */
    struct pl_model_config m = must_read(&c);
    assert_int_equal(m.rope_scaling, PL_ROPE_LINEAR);
    ASSERT_NEAR(m.rope_factor, 4);
    c = sound(s);
    craft_f32(&c, "llama.rope.scaling.factor", 2); /* no type: linear */
    m = must_read(&c);
    assert_int_equal(m.rope_scaling, PL_ROPE_LINEAR);
    c = sound(s);
    craft_string(&c, "llama.rope.scaling.type", "linear");
    craft_f32(&c, "llama.rope.scaling.factor", 0); /* nothing */
    m = must_read(&c);
    assert_int_equal(m.rope_scaling, PL_ROPE_NONE);
    c = sound(s);
    craft_string(&c, "llama.rope.scaling.type", "none");
    craft_f32(&c, "llama.rope.scaling.factor", 8);
    m = must_read(&c);
    assert_int_equal(m.rope_scaling, PL_ROPE_NONE);
    c = sound(s);
    craft_string(&c, "llama.rope.scaling.type", "yarn");
    craft_f32(&c, "llama.rope.scaling.factor", 4);
    craft_u32(&c, "llama.rope.scaling.original_context_length", 8192);
    m = must_read(&c);
    assert_int_equal(m.rope_scaling, PL_ROPE_YARN);
    assert_int_equal(m.rope_context_orig, 8192);
    ASSERT_NEAR(m.rope_attn_factor, 1.13862944);
    c = sound(s);
    craft_string(&c, "llama.rope.scaling.type", "yarn");
    craft_f32(&c, "llama.rope.scaling.factor", 4);
    craft_f32(&c, "llama.rope.scaling.yarn_attn_factor", 1.5f); /* as config.json's attention_factor */
    craft_f32(&c, "llama.rope.scaling.yarn_beta_fast", 16);
    m = must_read(&c);
    ASSERT_NEAR(m.rope_attn_factor, 1.5);
    ASSERT_NEAR(m.rope_beta_fast, 16);
    assert_int_equal(m.rope_context_orig, 32768);
}

/* A vocabulary that was resized after the number was written: the matrix counts. */
static void vocabulary_is_the_matrix(void **state) {
    (void)state;
    struct craft c = sound((struct sizes){"llama", 1, 64, 2, 1});
    craft_u32(&c, "llama.vocab_size", 90);
    struct pl_model_config m = must_read(&c);
    assert_int_equal(m.vocab, 96);
}

/* --- refusals --- */

static const char *const foreign[] = {"llama4", "deepseek", "kimi-linear", "gpt2",    "zamba",
                                      "bert",   "falcon",   "rwkv7",       "minicpm3"};

static void other_architectures(void **state) {
    (void)state;
    for (size_t i = 0; i < PL_COUNT_OF(foreign); i++) {
        struct craft c = sound((struct sizes){foreign[i], 1, 64, 2, 1});
        struct pl_model_config m;
        struct pl_err err;
        assert_int_equal(read_craft(&c, &m, &err), PL_UNSUPPORTED);
        assert_non_null(strstr(err.text, foreign[i]));
        assert_non_null(strstr(err.text, "known: llama"));
    }
}

enum change { SET_U32, SET_F32, SET_TEXT, SET_ARRAY, SET_I32, ADD_TENSOR };
static const struct {
    enum change change;
    const char *key;
    double number;
    const char *text, *part;
    enum pl_status status;
} refused[] = {
    {SET_U32, "llama.expert_count", 8, NULL, "expert_used_count is missing", PL_FORMAT},
    {SET_TEXT, "llama.rope.scaling.type", 0, "longrope", "'longrope' is not implemented; known: none", PL_UNSUPPORTED},
    {SET_TEXT, "llama.rope.scaling.type", 0, "dynamic", "'dynamic'", PL_UNSUPPORTED},
    {SET_U32, "llama.rope.scaling.type", 1, NULL, "llama.rope.scaling.type", PL_FORMAT},
    {SET_F32, "llama.rope.scaling.factor", -2, NULL, "factor -2", PL_FORMAT},
    {SET_F32, "llama.rope.scaling.factor", INFINITY, NULL, "expected a finite number", PL_FORMAT},
    {SET_F32, "llama.rope.scaling.factor", NAN, NULL, "llama.rope.scaling.factor", PL_FORMAT},
    {SET_TEXT, "llama.rope.freq_base", 0, "10000", "llama.rope.freq_base", PL_FORMAT},
    {SET_F32, "llama.rope.freq_base", 0, NULL, "rotary bases", PL_FORMAT},
    {SET_U32, "llama.attention.key_length", 5000, NULL, "key_length is 5000; 1 to 1024", PL_FORMAT},
    {SET_U32, "llama.attention.key_length", 16, NULL, "values", PL_UNSUPPORTED},
    {SET_U32, "llama.rope.dimension_count", 64, NULL, "dimension_count is 64", PL_FORMAT},
    {SET_U32, "llama.rope.dimension_count", 15, NULL, "even number", PL_FORMAT},
    {SET_TEXT, "llama.vocab_size", 0, "many", "llama.vocab_size", PL_FORMAT},
    {SET_I32, "llama.vocab_size", -1, NULL, "llama.vocab_size", PL_FORMAT},
    {SET_ARRAY, "llama.rope.dimension_count", 2, NULL, "llama.rope.dimension_count", PL_FORMAT},
    {SET_ARRAY, "llama.attention.sliding_window_pattern", 2, NULL, "one number per layer (1)", PL_FORMAT},
    {SET_TEXT, "llama.attention.causal", 0, "no", "llama.attention.causal", PL_FORMAT},
    {SET_F32, "llama.attention.temperature_scale", 0.1, NULL, "by position (llama.attention.temperature_scale)",
     PL_UNSUPPORTED},
    {ADD_TENSOR, "rope_factors_long.weight", 0, NULL, "LongRoPE", PL_UNSUPPORTED},
    {ADD_TENSOR, "rope_factors_short.weight", 0, NULL, "LongRoPE", PL_UNSUPPORTED},
};

static void refusals_name_the_key(void **state) {
    (void)state;
    const uint32_t pair[2] = {1, 1};
    for (size_t i = 0; i < PL_COUNT_OF(refused); i++) {
        struct craft c = sound((struct sizes){"llama", 1, 64, 2, 1});
        const char *key = refused[i].key;
        craft_u32(&c, "llama.attention.value_length", 32);
        switch (refused[i].change) {
        case SET_U32: craft_u32(&c, key, (uint32_t)refused[i].number); break;
        case SET_I32: craft_i32(&c, key, (int32_t)refused[i].number); break;
        case SET_F32: craft_f32(&c, key, (float)refused[i].number); break;
        case SET_TEXT: craft_string(&c, key, refused[i].text); break;
        case SET_ARRAY: craft_array(&c, key, PL_GGUF_U32, 2, pair, sizeof pair); break;
        case ADD_TENSOR: craft_tensor(&c, key, 16, 1, PL_F32); break;
        }
        struct pl_model_config m;
        struct pl_err err;
        enum pl_status st = read_craft(&c, &m, &err);
        if (st != refused[i].status || strstr(err.text, refused[i].part) == NULL)
            fail_msg("%s gave %s: %s", key, pl_status_name(st), err.text);
    }
}

static void craft_list(struct craft *c, const char *key, uint32_t a, uint32_t b, uint32_t d) {
    const uint32_t three[] = {a, b, d};
    craft_array(c, key, PL_GGUF_U32, 3, three, sizeof three);
}

/* A llama of three layers whose sizes are lists; the last entry of each is told. */
static enum pl_status read_lists(uint32_t heads, uint32_t kv_heads, uint32_t mlp, struct pl_model_config *m,
                                 struct pl_err *err) {
    struct craft c = craft_new();
    craft_string(&c, "general.architecture", "llama");
    craft_u32(&c, "llama.block_count", 3);
    craft_u32(&c, "llama.context_length", 4096);
    craft_u32(&c, "llama.embedding_length", 64);
    craft_list(&c, "llama.attention.head_count", 4, 4, heads);
    craft_list(&c, "llama.attention.head_count_kv", 2, 2, kv_heads);
    craft_list(&c, "llama.feed_forward_length", 96, 96, mlp);
    craft_f32(&c, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    craft_tensor(&c, "token_embd.weight", 64, 96, PL_F16);
    return read_craft(&c, m, err);
}

static void lists_of_one_number_are_that_number(void **state) {
    struct pl_model_config m;
    struct pl_err err;
    (void)state;
    if (read_lists(4, 2, 96, &m, &err) != PL_OK) fail_msg("%s", err.text);
    assert_true(m.heads == 4 && m.kv_heads == 2 && m.mlp_width == 96 && m.head_dim == 16);
    assert_int_equal(read_lists(8, 2, 96, &m, &err), PL_UNSUPPORTED);
    assert_non_null(strstr(err.text, "attention.head_count says 4 for layer 0 and 8 for layer 2"));
    assert_int_equal(read_lists(4, 1, 96, &m, &err), PL_UNSUPPORTED);
    assert_non_null(strstr(err.text, "head_count_kv says 2"));
    assert_int_equal(read_lists(4, 2, 0, &m, &err), PL_UNSUPPORTED);
    assert_non_null(strstr(err.text, "feed_forward_length says 96"));
}

/* A list that is no list of integers: fractions, flags, text. */
static void lists_are_of_integers(void **state) {
    (void)state;
    static const struct {
        const char *arch, *key;
    } lists[] = {{"llama", "attention.head_count"},    {"llama", "attention.head_count_kv"},
                 {"llama", "feed_forward_length"},     {"llama", "attention.sliding_window_pattern"},
                 {"plamo2", "attention.head_count"},   {"jamba", "attention.head_count_kv"},
                 {"nemotron_h", "feed_forward_length"}};
    const float fractions[2] = {2.9f, 2.1f};
    const uint8_t flags[2] = {1, 1};
    for (size_t i = 0; i < 2 * PL_COUNT_OF(lists); i++) {
        const char *arch = lists[i / 2].arch, *key = arch_key(arch, lists[i / 2].key);
        bool bools = i % 2 != 0, pattern = strstr(key, "pattern") != NULL;
        struct craft c = craft_new();
        craft_string(&c, "general.architecture", arch);
        static const char *const sizes[] = {"block_count",         "context_length",       "embedding_length",
                                            "feed_forward_length", "attention.head_count", "attention.head_count_kv"};
        for (size_t k = 0; k < PL_COUNT_OF(sizes); k++)
            if (strcmp(sizes[k], lists[i / 2].key) != 0) craft_u32(&c, arch_key(arch, sizes[k]), k == 2 ? 64 : 2);
        craft_f32(&c, arch_key(arch, "attention.layer_norm_rms_epsilon"), 1e-5f);
        craft_tensor(&c, "token_embd.weight", 64, 96, PL_F16);
        if (bools)
            craft_array(&c, key, PL_GGUF_BOOL, 2, flags, sizeof flags);
        else
            craft_array(&c, key, PL_GGUF_F32, 2, fractions, sizeof fractions);
        struct pl_model_config m;
        struct pl_err err;
        enum pl_status st = read_craft(&c, &m, &err);
        if (pattern && bools ? st != PL_OK
                             : st != PL_FORMAT || strstr(err.text, bools ? "is a list of bool; integers"
                                                                         : "is a list of f32; integers") == NULL)
            fail_msg("%s of %s gave %s: %s", key, bools ? "bools" : "fractions", pl_status_name(st), err.text);
    }
}

/* Models whose every layer has experts need no width of an MLP; the experts' own, or the shared one's, they do. */
static void experts_without_mlp_width(void **state) {
    (void)state;
    static const struct {
        const char *arch;
        uint32_t shared;
        const char *missing;
    } files[] = {{"qwen2moe", 48, NULL},
                 {"qwen2moe", 0, "qwen2moe.expert_shared_feed_forward_length is missing"},
                 {"qwen3moe", 0, NULL},
                 {"gpt-oss", 0, NULL}};
    for (size_t i = 0; i < 2 * PL_COUNT_OF(files); i++) {
        const char *arch = files[i / 2].arch, *missing = files[i / 2].missing;
        const uint32_t shared = files[i / 2].shared;
        struct craft c = craft_new();
        craft_string(&c, "general.architecture", arch);
        craft_u32(&c, arch_key(arch, "block_count"), 2);
        craft_u32(&c, arch_key(arch, "context_length"), 4096);
        craft_u32(&c, arch_key(arch, "embedding_length"), 64);
        craft_u32(&c, arch_key(arch, "attention.head_count"), 4);
        craft_u32(&c, arch_key(arch, "expert_count"), 8);
        craft_u32(&c, arch_key(arch, "expert_used_count"), 2);
        if (i % 2 == 0) craft_u32(&c, arch_key(arch, "expert_feed_forward_length"), 32);
        if (shared > 0) craft_u32(&c, arch_key(arch, "expert_shared_feed_forward_length"), shared);
        craft_f32(&c, arch_key(arch, "attention.layer_norm_rms_epsilon"), 1e-5f);
        craft_tensor(&c, "token_embd.weight", 64, 96, PL_F16);
        if (strcmp(arch, "gpt-oss") == 0) craft_tensor(&c, "blk.0.attn_q.bias", 64, 1, PL_F32);
        if (strcmp(arch, "gpt-oss") == 0) craft_tensor(&c, "blk.0.attn_output.bias", 64, 1, PL_F32);
        struct pl_model_config m;
        struct pl_err err;
        enum pl_status st = read_craft(&c, &m, &err);
        if (i % 2 == 1) missing = ".expert_feed_forward_length is missing, and so is feed_forward_length";
        if (missing != NULL && (st != PL_FORMAT || strstr(err.text, missing) == NULL))
            fail_msg("%s gave %s", arch, err.text);
        if (missing == NULL && st != PL_OK) fail_msg("%s: %s", arch, err.text);
        if (missing == NULL) assert_true(m.mlp_width == 0 && m.expert_width == 32 && m.shared_width == shared);
    }
}

/* GLM-4.5: the file counts layers that predict further tokens among its own, and need not say what the scores are. */
static void layers_that_are_left_out(void **state) {
    (void)state;
    struct craft c = sound((struct sizes){"glm4moe", 4, 64, 4, 2});
    craft_u32(&c, "glm4moe.nextn_predict_layers", 1);
    craft_u32(&c, "glm4moe.expert_count", 8);
    craft_u32(&c, "glm4moe.expert_used_count", 2);
    craft_u32(&c, "glm4moe.expert_shared_count", 1);
    craft_u32(&c, "glm4moe.expert_feed_forward_length", 32);
    craft_u32(&c, "glm4moe.leading_dense_block_count", 1);
    craft_u32(&c, "glm4moe.rope.dimension_count", 8);
    craft_tensor(&c, "blk.1.exp_probs_b.bias", 8, 1, PL_F32);
    struct pl_model_config m = must_read(&c);
    assert_true(m.layers == 3 && m.extra_layers == 1 && !m.layer_moe[0] && m.layer_moe[1] && m.layer_moe[2]);
    assert_true(m.experts_sigmoid && m.experts_bias && m.shared_width == 32 && m.rope_dim == 8 &&
                m.arch == PL_ARCH_GLM4_MOE);
    c = sound((struct sizes){"glm4moe", 4, 64, 4, 2});
    craft_u32(&c, "glm4moe.nextn_predict_layers", 4);
    struct pl_err err;
    assert_int_equal(read_craft(&c, &m, &err), PL_FORMAT);
    assert_non_null(strstr(err.text, "nextn_predict_layers is 4; 0 to 3"));
}

/* The small EXAONE 4 says no window and has none; of the large one the layers without rotate nothing. Positions of text are
 * the same in all sections that images need. */
static void windows_and_sections(void **state) {
    (void)state;
    struct craft c = sound((struct sizes){"exaone4", 4, 64, 4, 2});
    struct pl_model_config m = must_read(&c);
    assert_true(windowed(&m) == 0 && !m.layer_nope[0] && !m.layer_nope[3]);
    c = sound((struct sizes){"exaone4", 4, 64, 4, 2});
    craft_u32(&c, "exaone4.attention.sliding_window", 4096);
    m = must_read(&c);
    assert_true(windowed(&m) == 3 && !m.layer_nope[0] && m.layer_nope[3]);
    const uint32_t sections[] = {1, 1, 2, 0};
    c = sound((struct sizes){"qwen3vl", 2, 64, 4, 2});
    craft_array(&c, "qwen3vl.rope.dimension_sections", PL_GGUF_U32, 4, sections, sizeof sections);
    assert_int_equal(must_read(&c).arch, PL_ARCH_QWEN3);
}

/* What converters write for a Nemotron 3: a state, experts, attention. */
static struct craft nemotron(const char *extra, uint32_t value) {
    struct craft c = craft_new();
    craft_string(&c, "general.architecture", "nemotron_h_moe");
    const struct {
        const char *key;
        uint32_t value;
    } keys[] = {{"block_count", 3},
                {"context_length", 4096},
                {"embedding_length", 64},
                {"attention.head_count", 4},
                {"attention.key_length", 16},
                {"attention.value_length", 16},
                {"ssm.state_size", 16},
                {"ssm.conv_kernel", 4},
                {"ssm.inner_size", 64},
                {"ssm.time_step_rank", 4},
                {"ssm.group_count", 2},
                {"expert_count", 8},
                {"expert_used_count", 3},
                {"expert_feed_forward_length", 32},
                {"expert_shared_feed_forward_length", 48}};
    for (size_t i = 0; i < PL_COUNT_OF(keys); i++) craft_u32(&c, arch_key("nemotron_h_moe", keys[i].key), keys[i].value);
    if (extra != NULL) craft_u32(&c, arch_key("nemotron_h_moe", extra), value);
    craft_list(&c, "nemotron_h_moe.attention.head_count_kv", 0, 0, 2);
    craft_list(&c, "nemotron_h_moe.feed_forward_length", 0, 32, 0);
    craft_f32(&c, "nemotron_h_moe.attention.layer_norm_rms_epsilon", 1e-5f);
    craft_f32(&c, "nemotron_h_moe.expert_weights_scale", 2.5f);
    craft_tensor(&c, "token_embd.weight", 64, 96, PL_F16);
    craft_tensor(&c, "blk.1.ffn_gate_inp.weight", 64, 8, PL_F16);
    return c;
}

static void experts_without_gates(void **state) {
    (void)state;
    struct craft c = nemotron("expert_group_count", 1);
    struct pl_model_config m = must_read(&c);
    assert_true(m.layer_ssm[0] && m.layer_moe[1] && !m.layer_ssm[1] && m.kv_layers == 1 && m.state_layers == 1);
    assert_true(m.experts_sigmoid && m.expert_groups == 0 && m.shared_width == 48 && m.experts_used == 3);
    ASSERT_NEAR(m.experts_scale, 2.5f);
    static const struct {
        const char *key;
        uint32_t value;
        const char *part;
        enum pl_status status;
    } wrong[] = {{"moe_latent_size", 32, "latent space", PL_UNSUPPORTED},
                 {"expert_gating_func", 1, "gating function 1", PL_UNSUPPORTED},
                 {"expert_group_count", 2, "expert_group_used_count is missing", PL_FORMAT}};
    for (size_t i = 0; i < PL_COUNT_OF(wrong); i++) {
        struct pl_err err;
        c = nemotron(wrong[i].key, wrong[i].value);
        enum pl_status st = read_craft(&c, &m, &err);
        if (st != wrong[i].status || strstr(err.text, wrong[i].part) == NULL) fail_msg("%s gave %s", wrong[i].key, err.text);
    }
}

/* PLaMo 2 says the heads of each layer, none where it has a state. */
static void heads_of_each_layer(void **state) {
    (void)state;
    for (uint32_t other = 4; other <= 5; other++) {
        struct craft c = craft_new();
        craft_string(&c, "general.architecture", "plamo2");
        static const struct {
            const char *key;
            uint32_t value;
        } keys[] = {{"block_count", 3},          {"context_length", 4096},     {"embedding_length", 2048},
                    {"feed_forward_length", 96}, {"attention.key_length", 16}, {"attention.value_length", 16},
                    {"ssm.state_size", 16},      {"ssm.conv_kernel", 4},       {"ssm.inner_size", 64},
                    {"ssm.time_step_rank", 4},   {"ssm.group_count", 0}};
        for (size_t i = 0; i < PL_COUNT_OF(keys); i++) craft_u32(&c, arch_key("plamo2", keys[i].key), keys[i].value);
        craft_list(&c, "plamo2.attention.head_count", 4, 0, other);
        craft_list(&c, "plamo2.attention.head_count_kv", 2, 0, 2);
        craft_f32(&c, "plamo2.attention.layer_norm_rms_epsilon", 1e-6f);
        craft_tensor(&c, "token_embd.weight", 2048, 96, PL_F16);
        struct pl_model_config m;
        struct pl_err err;
        enum pl_status st = read_craft(&c, &m, &err);
        if (other == 5) {
            assert_true(st == PL_FORMAT && strstr(err.text, "5 for layer 2") != NULL);
            continue;
        }
        if (st != PL_OK) fail_msg("%s", err.text);
        assert_true(m.heads == 4 && m.kv_heads == 2 && m.layer_ssm[1] && m.kv_layers == 2 && m.window == 0);
        assert_true(m.ssm.heads == 4 && m.ssm.head_dim == 16 && m.ssm.dt_rank == 128);
    }
}

/* Each key that must be there, left out. */
static void missing_keys_are_named(void **state) {
    (void)state;
    static const char *const needed[] = {"block_count",         "context_length",       "embedding_length",
                                         "feed_forward_length", "attention.head_count", "attention.layer_norm_rms_epsilon"};
    for (size_t left_out = 0; left_out < PL_COUNT_OF(needed); left_out++) {
        struct craft c = craft_new();
        craft_string(&c, "general.architecture", "qwen3");
        for (size_t i = 0; i < PL_COUNT_OF(needed); i++) {
            if (i == left_out) continue;
            if (i + 1 == PL_COUNT_OF(needed))
                craft_f32(&c, arch_key("qwen3", needed[i]), 1e-6f);
            else
                craft_u32(&c, arch_key("qwen3", needed[i]), i == 2 ? 64 : 2);
        }
        craft_tensor(&c, "token_embd.weight", 64, 96, PL_F16);
        struct pl_model_config m;
        struct pl_err err;
        assert_int_equal(read_craft(&c, &m, &err), PL_FORMAT);
        if (strstr(err.text, needed[left_out]) == NULL) fail_msg("without %s: %s", needed[left_out], err.text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_3_and_its_tensor),
        cmocka_unit_test(head_size_of_its_own),
        cmocka_unit_test(qwen_biases_and_norms_are_seen),
        cmocka_unit_test(gemma_2),
        cmocka_unit_test(gemma_3),
        cmocka_unit_test(rotary_scaling),
        cmocka_unit_test(vocabulary_is_the_matrix),
        cmocka_unit_test(other_architectures),
        cmocka_unit_test(refusals_name_the_key),
        cmocka_unit_test(lists_of_one_number_are_that_number),
        cmocka_unit_test(lists_are_of_integers),
        cmocka_unit_test(experts_without_gates),
        cmocka_unit_test(heads_of_each_layer),
        cmocka_unit_test(experts_without_mlp_width),
        cmocka_unit_test(layers_that_are_left_out),
        cmocka_unit_test(windows_and_sections),
        cmocka_unit_test(missing_keys_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
