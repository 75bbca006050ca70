/* Hugging Face and MLX directories: index, shards, JSON documents, chat templates, packed weights. */
#include "tests/file/craft.h"

#include "tensor/quant.h"

#define ENTRY(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define INDEX "model.safetensors.index.json"

static void put_weights(struct temp *t, const char *name, const char *header, size_t bytes) {
    struct pl_buf b = {0};
    craft_safetensors(&b, header, bytes);
    temp_buf(t, name, &b);
}

static struct pl_file *open_ok(const char *path) {
    struct pl_file *f = NULL;
    struct pl_err err = {0};
    if (pl_file_open(path, &f, &err) != PL_OK) fail_msg("%s", err.text);
    return f;
}

static void start(struct temp *t, const char *config) {
    temp_make(t);
    temp_text(t, "config.json", config);
}

static void start_sharded(struct temp *t) {
    start(t, "{\"model_type\":\"llama\"}");
    put_weights(t, "model-00001-of-00002.safetensors", "{" ENTRY("a", "F32", "[2,2]", "[0,16]") "}", 16);
    put_weights(t, "model-00002-of-00002.safetensors", "{" ENTRY("b", "F16", "[4]", "[0,8]") "}", 8);
    temp_text(t, INDEX,
              "{\"metadata\":{\"total_size\":24},\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
              "\"b\":\"model-00002-of-00002.safetensors\"}}");
}

static void a_single_file_opens_by_three_names(void **state) {
    (void)state;
    static const char *const names[] = {"", "config.json", "model.safetensors"};
    struct temp t;
    start(&t, "{\"model_type\":\"llama\",\"hidden_size\":2}");
    put_weights(&t, "model.safetensors", "{" ENTRY("a", "F32", "[2,2]", "[0,16]") "}", 16);
    temp_text(&t, "generation_config.json", "{\"eos_token_id\":[1,2]}");
    for (size_t i = 0; i < PL_COUNT_OF(names); i++) {
        struct pl_file *f = open_ok(temp_path(&t, names[i]));
        assert_int_equal(pl_file_kind(f), PL_FILE_HF);
        assert_int_equal(pl_file_tensor_count(f), 1);
        assert_int_equal(json_integer_value(json_object_get(pl_file_json(f, PL_JSON_CONFIG), "hidden_size")), 2);
        assert_int_equal(json_array_size(json_object_get(pl_file_json(f, PL_JSON_GENERATION), "eos_token_id")), 2);
        assert_null(pl_file_json(f, PL_JSON_TOKENIZER));
        assert_null(pl_file_json(f, PL_JSON_COUNT));
        struct pl_str text;
        assert_false(pl_file_chat_template(f, NULL, &text));
        pl_file_close(f);
    }
    temp_drop(&t);
}

static void shards_open_through_the_index(void **state) {
    (void)state;
    static const char *const names[] = {"", "config.json", INDEX, "model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors"};
    struct temp t;
    start_sharded(&t);
    for (size_t i = 0; i < PL_COUNT_OF(names); i++) {
        struct pl_file *f = open_ok(temp_path(&t, names[i]));
        assert_int_equal(pl_file_tensor_count(f), 2);
        assert_int_equal(pl_file_tensor(f, "b")->dtype, PL_F16);
        pl_file_close(f);
    }
    temp_drop(&t);
}

static void bad_indexes_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *index;
        enum pl_status status;
        const char *part1, *part2;
    } cases[] = {
        {"{}", PL_FORMAT, "weight_map is missing", "expected {tensor: file}"},
        {"{\"weight_map\":{}}", PL_FORMAT, "weight_map", "empty"},
        {"{\"weight_map\":[]}", PL_FORMAT, "weight_map", "no object"},
        {"[]", PL_FORMAT, INDEX, "not an object"},
        {"{", PL_FORMAT, INDEX, "not valid JSON"},
        {"{\"weight_map\":{\"a\":1}}", PL_FORMAT, "weight_map entry a", "expected the name"},
        {"{\"weight_map\":{\"a\":\"\"}}", PL_FORMAT, "weight_map entry a", "expected the name"},
        {"{\"weight_map\":{\"a\":\"../x.safetensors\"}}", PL_FORMAT, "'../x.safetensors'", "same directory"},
        {"{\"weight_map\":{\"a\":\"/etc/x.safetensors\"}}", PL_FORMAT, "/etc/x.safetensors", "same directory"},
        {"{\"weight_map\":{\"a\":\"sub/x.safetensors\"}}", PL_FORMAT, "sub/x.safetensors", "same directory"},
        {"{\"weight_map\":{\"a\":\".x.safetensors\"}}", PL_FORMAT, ".x.safetensors", "same directory"},
        {"{\"weight_map\":{\"a\":\"..\"}}", PL_FORMAT, "'..'", "same directory"},
        {"{\"weight_map\":{\"a\":\"config.json\"}}", PL_FORMAT, "config.json", ".safetensors"},
        {"{\"weight_map\":{\"a\":\"x\\u0000.safetensors\"}}", PL_FORMAT, "weight_map entry a", "same directory"},
        {"{\"weight_map\":{\"a\":\"absent.safetensors\"}}", PL_NOT_FOUND, "absent.safetensors", "lists for tensor a"},
        {"{\"weight_map\":{\"c\":\"model-00001-of-00002.safetensors\"}}", PL_FORMAT, "stale", "tensor c is in model-00001"},
        {"{\"weight_map\":{\"a\":\"model-00002-of-00002.safetensors\"}}", PL_FORMAT, "stale", "in no shard"},
        {"{\"weight_map\":{\"a\":\"model-00002-of-00002.safetensors\",\"b\":\"model-00001-of-00002.safetensors\"}}",
         PL_FORMAT, "stale", "it is in /tmp"},
        {"{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"a\":\"model-00002-of-00002.safetensors\"}}",
         PL_FORMAT, INDEX, "duplicate"},
    };
    struct temp t;
    start_sharded(&t);
    for (size_t i = 0; i < PL_COUNT_OF(cases); i++) {
        temp_text(&t, INDEX, cases[i].index);
        expect_path_refused(t.dir, cases[i].status, cases[i].part1, cases[i].part2);
    }
    temp_text(&t, INDEX,
              "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"model-00002-of-00002.safetensors\"}}");
    put_weights(&t, "model-00002-of-00002.safetensors", "{" ENTRY("a", "F16", "[4]", "[0,8]") "}", 8);
    expect_path_refused(t.dir, PL_FORMAT, "tensor name a appears twice", "model-00001-of-00002");
    put_weights(&t, "model-00002-of-00002.safetensors", "{" ENTRY("b", "F16", "[4]", "[0,8]") "}", 7);
    expect_path_refused(t.dir, PL_FORMAT, "tensor b ends at byte", "reading shard model-00002-of-00002.safetensors");
    temp_drop(&t);
}

static void incomplete_directories_are_refused(void **state) {
    (void)state;
    struct temp t;
    temp_make(&t);
    expect_path_refused(t.dir, PL_NOT_FOUND, "without config.json",
                        "model.safetensors.index.json, model.safetensors, tokenizer.json");
    temp_text(&t, "some.gguf", "");
    expect_path_refused(t.dir, PL_NOT_FOUND, "without config.json", "it holds some.gguf: name that file");
    unlink(temp_path(&t, "some.gguf"));
    temp_text(&t, "config.json", "{}");
    expect_path_refused(t.dir, PL_NOT_FOUND, "no weights", "looked for model.safetensors.index.json and model.safetensors");
    temp_text(&t, "pytorch_model.bin", "");
    expect_path_refused(t.dir, PL_NOT_FOUND, "no weights", "pickled weights are not read");
    temp_text(&t, "gptq-4bit.safetensors", "");
    expect_path_refused(t.dir, PL_NOT_FOUND, "no weights", "it holds gptq-4bit.safetensors: name that file if");
    temp_text(&t, "consolidated.safetensors", "");
    expect_path_refused(t.dir, PL_NOT_FOUND, "no weights", "consolidated.safetensors: Mistral's own layout");
    temp_text(&t, "adapter_config.json", "{}");
    expect_path_refused(t.dir, PL_NOT_FOUND, "no weights", "adapter_config.json: an adapter");
    put_weights(&t, "model-00001-of-00002.safetensors", "{" ENTRY("a", "F32", "[2,2]", "[0,16]") "}", 16);
    expect_path_refused(temp_path(&t, "model-00001-of-00002.safetensors"), PL_NOT_FOUND, "one shard of several", INDEX);
    expect_path_refused(temp_path(&t, INDEX), PL_NOT_FOUND, "no model.safetensors.index.json", INDEX);
    expect_path_refused(temp_path(&t, "other.safetensors"), PL_NOT_FOUND, "other.safetensors", "cannot open");
    temp_text(&t, INDEX, "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\"}}");
    put_weights(&t, "model.safetensors", "{" ENTRY("z", "F32", "[1]", "[0,4]") "}", 4);
    expect_path_refused(t.dir, PL_FORMAT, "holds both model.safetensors and", "name one");
    struct pl_file *f = open_ok(temp_path(&t, "model.safetensors"));
    assert_non_null(pl_file_tensor(f, "z"));
    pl_file_close(f);
    f = open_ok(temp_path(&t, INDEX));
    assert_non_null(pl_file_tensor(f, "a"));
    pl_file_close(f);
    temp_text(&t, "model.safetensors", "");
    expect_path_refused(temp_path(&t, "model.safetensors"), PL_FORMAT, "model.safetensors", "is empty");
    temp_drop(&t);
}

static void bad_documents_are_refused(void **state) {
    (void)state;
    static const char *const names[] = {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
                                        "chat_template.json"};
    struct temp t;
    start(&t, "{}");
    put_weights(&t, "model.safetensors", "{" ENTRY("a", "F32", "[1]", "[0,4]") "}", 4);
    for (size_t i = 0; i < PL_COUNT_OF(names); i++) {
        static const char *const texts[] = {"", "{", "[]", "{} {}", "{\"a\":1,\"a\":2}", "{\"a\":NaN}"};
        for (size_t k = 0; k < PL_COUNT_OF(texts); k++) {
            temp_text(&t, names[i], texts[k]);
            expect_path_refused(t.dir, PL_FORMAT, names[i], "byte");
        }
        temp_text(&t, names[i], "{}");
        if (i == 0) continue;
        unlink(temp_path(&t, names[i]));
        assert_int_equal(mkfifo(temp_path(&t, names[i]), 0600), 0);
        expect_path_refused(t.dir, PL_INVALID, names[i], "FIFO");
        unlink(temp_path(&t, names[i]));
    }
    temp_text(&t, "big.json", "{\"a\":\"0123456789\"}");
    json_t *root = NULL;
    struct pl_err err = {0};
    assert_int_equal(pl_json_load(temp_path(&t, "big.json"), 10, &root, &err), PL_LIMIT);
    assert_non_null(strstr(err.text, "has 18 bytes; at most 10"));
    temp_drop(&t);
}

/* Python writes 10^30 as an integer into tokenizer_config.json; it must not stop a model. */
static void integers_of_any_size_are_read(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double want;
        bool whole;
    } cases[] = {
        {"[1000000000000000019884624838656]", 1e30, false},
        {"[-1000000000000000019884624838656]", -1e30, false},
        {"[9223372036854775808 ]", 9223372036854775808.0, false},
        {"[9223372036854775807]", 9223372036854775807.0, true},
        {"[-9223372036854775807]", -9223372036854775807.0, true},
        {"[0.12345678901234567890123]", 0.12345678901234567890123, false},
        {"[12345678901234567890123.5]", 12345678901234567890123.5, false},
        {"[12345678901234567890123E1]", 12345678901234567890123e1, false},
        {"[3,\"\\\"99999999999999999999\",99999999999999999999]", 3.0, true},
    };
    struct temp t;
    temp_make(&t);
    for (size_t i = 0; i < PL_COUNT_OF(cases); i++) {
        struct pl_err err = {0};
        json_t *root = NULL;
        temp_text(&t, "n.json", cases[i].text);
        if (pl_json_load(temp_path(&t, "n.json"), 1000, &root, &err) != PL_OK) fail_msg("%s: %s", cases[i].text, err.text);
        json_t *v = json_array_get(root, 0);
        assert_int_equal(json_is_integer(v), cases[i].whole);
        double got = json_number_value(v), off = got / cases[i].want - 1.0;
        if (!(off < 1e-15 && off > -1e-15)) fail_msg("%s: %.17g", cases[i].text, got);
        if (json_array_size(root) > 1)
            assert_string_equal(json_string_value(json_array_get(root, 1)), "\"99999999999999999999");
        json_decref(root);
    }
    temp_drop(&t);
}

/* --- chat templates --- */
static void expect_template(const char *dir, const char *name, const char *want) {
    struct pl_file *f = open_ok(dir);
    struct pl_str text = {0};
    bool found = pl_file_chat_template(f, name, &text);
    if (found != (want != NULL)) fail_msg("template %s: %s", name, found ? "found" : "not found");
    if (found && !pl_str_eq_c(text, want))
        fail_msg("template %s is '%.*s', expected '%s'", name, (int)text.len, text.data, want);
    pl_file_close(f);
}

static void chat_templates_come_from_the_first_place(void **state) {
    (void)state;
    struct temp t;
    start(&t, "{}");
    put_weights(&t, "model.safetensors", "{" ENTRY("a", "F32", "[1]", "[0,4]") "}", 4);
    expect_template(t.dir, NULL, NULL);
    temp_text(&t, "tokenizer_config.json", "{\"chat_template\":\"in config\"}");
    expect_template(t.dir, NULL, "in config");
    expect_template(t.dir, "default", "in config");
    temp_text(&t, "tokenizer_config.json",
              "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"tools\"},{\"name\":\"default\",\"template\":"
              "\"listed\"}]}");
    expect_template(t.dir, NULL, "listed");
    expect_template(t.dir, "tool_use", "tools");
    expect_template(t.dir, "rag", NULL);
    temp_text(&t, "chat_template.json", "{\"chat_template\":\"in json\"}");
    expect_template(t.dir, NULL, "in json");
    expect_template(t.dir, "tool_use", "tools");
    temp_text(&t, "chat_template.json", "{\"chat_template\":{\"default\":\"mapped\",\"rag\":\"r\"}}");
    expect_template(t.dir, NULL, "mapped");
    expect_template(t.dir, "rag", "r");
    temp_text(&t, "chat_template.jinja", "in jinja\n");
    expect_template(t.dir, NULL, "in jinja\n");
    assert_int_equal(mkdir(temp_path(&t, "additional_chat_templates"), 0700), 0);
    temp_text(&t, "additional_chat_templates/rag.jinja", "from file");
    temp_text(&t, "additional_chat_templates/notes.txt", "ignored");
    expect_template(t.dir, "rag", "from file");
    expect_template(t.dir, "notes", NULL);
    temp_text(&t, "tokenizer_config.json", "{\"chat_template\":[{\"name\":\"x\"}]}");
    expect_path_refused(t.dir, PL_FORMAT, "chat_template entry 0", "expected {name, template}");
    temp_drop(&t);
}

/* --- MLX --- */
#define TRIPLET                                 \
    ENTRY("l.weight", "U32", "[2,8]", "[0,64]") \
    "," ENTRY("l.scales", "F16", "[2,1]", "[64,68]") "," ENTRY("l.biases", "F16", "[2,1]", "[68,72]")

static void triplets_become_one_tensor(void **state) {
    (void)state;
    struct temp t;
    start(&t, "{\"quantization\":{\"group_size\":64,\"bits\":4}}");
    put_weights(&t, "model.safetensors", "{" TRIPLET "," ENTRY("n.weight", "F32", "[2]", "[72,80]") "}", 80);
    struct pl_file *f = open_ok(t.dir);
    assert_int_equal(pl_file_tensor_count(f), 2);
    const struct pl_tensor *w = pl_file_tensor(f, "l.weight");
    assert_int_equal(w->dtype, PL_MLX);
    assert_int_equal(w->shape[0], 2);
    assert_int_equal(w->shape[1], 64);
    assert_int_equal(w->bits, 4);
    assert_int_equal(w->group, 64);
    assert_int_equal(w->scale_dtype, PL_F16);
    assert_ptr_equal(w->scales, (const uint8_t *)w->data + 64);
    assert_null(pl_file_tensor(f, "l.scales"));
    assert_null(pl_file_tensor(f, "l.biases"));
    assert_int_equal(pl_file_tensor(f, "n.weight")->dtype, PL_F32);
    float row[64];
    assert_int_equal(pl_dequant_row(w, 1, row), PL_OK);
    assert_int_equal(pl_file_check_scales(f, NULL, NULL), PL_OK);
    pl_file_close(f);
    /* the same bytes as eight bits in groups of 32, by an entry for this layer alone */
    temp_text(&t, "config.json", "{\"quantization\":{\"group_size\":64,\"bits\":4,\"l\":{\"group_size\":32,\"bits\":8}}}");
    f = open_ok(t.dir);
    assert_int_equal(pl_file_tensor(f, "l.weight")->bits, 8);
    assert_int_equal(pl_file_tensor(f, "l.weight")->shape[1], 32);
    pl_file_close(f);
    temp_text(&t, "config.json", "{\"quantization\":{\"group_size\":64.0,\"bits\":4e0}}"); /* whole, though real */
    f = open_ok(t.dir);
    assert_int_equal(pl_file_tensor(f, "l.weight")->group, 64);
    assert_int_equal(pl_file_tensor(f, "l.weight")->bits, 4);
    pl_file_close(f);
    temp_text(&t, "config.json", "{\"quantization_config\":{\"group_size\":64,\"bits\":4,\"mode\":\"affine\",\"n\":false}}");
    f = open_ok(t.dir);
    assert_int_equal(pl_file_tensor(f, "l.weight")->bits, 4);
    pl_file_close(f);
    temp_drop(&t);
}

#define MX_PAIR ENTRY("l.weight", "U32", "[2,8]", "[0,64]") "," ENTRY("l.scales", "U8", "[2,2]", "[64,68]")

static void pairs_of_mxfp4_become_one_tensor(void **state) {
    (void)state;
    struct temp t;
    start(&t, "{\"quantization\":{\"group_size\":64,\"bits\":4,\"l\":{\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\"}}}");
    put_weights(&t, "model.safetensors", "{" MX_PAIR "}", 68);
    struct pl_file *f = open_ok(t.dir);
    assert_int_equal(pl_file_tensor_count(f), 1);
    const struct pl_tensor *w = pl_file_tensor(f, "l.weight");
    assert_true(w->dtype == PL_MLX_MXFP4 && w->shape[0] == 2 && w->shape[1] == 64 && w->scale_dtype == PL_U8);
    assert_ptr_equal(w->scales, (const uint8_t *)w->data + 64);
    assert_null(w->biases);
    float row[64];
    assert_int_not_equal(pl_dequant_row(w, 0, row), PL_OK); /* no product reads it so */
    pl_file_forget(f, w);
    pl_file_close(f);
    temp_drop(&t);
}

struct packing {
    const char *config, *header;
    size_t bytes;
    enum pl_status status;
    const char *part1, *part2;
};

static void refuse_all(const struct packing *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        struct temp t;
        start(&t, cases[i].config);
        put_weights(&t, "model.safetensors", cases[i].header, cases[i].bytes);
        expect_path_refused(t.dir, cases[i].status, cases[i].part1, cases[i].part2);
        temp_drop(&t);
    }
}

static void packings_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static const char q44[] = "{\"quantization\":{\"group_size\":64,\"bits\":4}}";
    static const struct packing cases[] = {
        {"{}", "{" TRIPLET "}", 72, PL_FORMAT, "l.weight is packed", "no quantization"},
        {"{\"quantization\":null}", "{" TRIPLET "}", 72, PL_FORMAT, "l.weight is packed", "no quantization"},
        {"{\"quantization\":[]}", "{" TRIPLET "}", 72, PL_FORMAT, "quantization is no object", "config.json"},
        {"{\"quantization\":{}}", "{" TRIPLET "}", 72, PL_UNSUPPORTED, "without group_size and bits", "MLX affine"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":7}}", "{" TRIPLET "}", 72, PL_UNSUPPORTED, "bits",
         "is 7; expected 2, 3, 4, 5, 6 or 8"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":\"4\"}}", "{" TRIPLET "}", 72, PL_UNSUPPORTED, "bits", "expected 2"},
        {"{\"quantization\":{\"group_size\":16,\"bits\":4}}", "{" TRIPLET "}", 72, PL_UNSUPPORTED, "group_size",
         "is 16; expected 32"},
        {"{\"quantization\":{\"group_size\":-64,\"bits\":4}}", "{" TRIPLET "}", 72, PL_UNSUPPORTED, "group_size", "is -64"},
        {"{\"quantization\":{\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\"}}", "{" TRIPLET "}", 72, PL_FORMAT,
         "scales of type f16 and biases", "in mode mxfp4 u8"},
        {"{\"quantization\":{\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\"}}",
         "{" ENTRY("l.weight", "U32", "[2,8]", "[0,64]") "," ENTRY("l.scales", "U8", "[2,1]", "[64,66]") "}", 66, PL_FORMAT,
         "scales have shape [2, 1]; expected [2, 2] (", "(64 elements of 4 bits in groups of 32)"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"mode\":\"mxfp4\"}}", "{" MX_PAIR "}", 68, PL_UNSUPPORTED,
         "is mxfp4 with group_size 64 and bits 4", "32 and 4"},
        {"{\"quantization\":{\"group_size\":32,\"bits\":8,\"mode\":\"mxfp8\"}}", "{" MX_PAIR "}", 68, PL_UNSUPPORTED,
         "mode is 'mxfp8'", "mxfp4"},
        {"{\"quantization\":{\"group_size\":32,\"bits\":4}}", "{" MX_PAIR "}", 68, PL_FORMAT, "l.weight", "no biases"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"l\":{\"group_size\":64,\"bits\":4,\"mode\":\"nvfp4\"}}}",
         "{" TRIPLET "}", 72, PL_UNSUPPORTED, "nvfp4", "affine"},
        {"{\"quantization\":{\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\"}}",
         "{" ENTRY("l.weight", "U32", "[2,8]", "[0,64]") "}", 64, PL_FORMAT, "l.weight is u32 but has no scales",
         "expected MLX mxfp4 weight and scales"},
        {"{\"quantization\":{\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\"}}",
         "{" ENTRY("l.weight", "U32", "[2,8]", "[0,64]") "," ENTRY("l.scales", "U8", "[1,2]", "[64,66]") "}", 66, PL_FORMAT,
         "scales have shape [1, 2]; expected [2, 2]", "groups of 32"},
        {"{\"quantization\":{\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\"}}",
         "{" ENTRY("l.weight", "U32", "[2,8]", "[0,64]") "," ENTRY("l.scales", "F8_E8M0", "[2,2]", "[64,68]") "}", 68,
         PL_FORMAT, "l.weight has scales of type F8_E8M0", "expected u8"},
        {q44, "{" ENTRY("l.weight", "U32", "[2,8]", "[0,64]") "," ENTRY("l.scales", "BOOL", "[2,1]", "[64,66]") "}", 66,
         PL_FORMAT, "l.weight has scales of type BOOL", "expected f16, bf16 or f32"},
        {q44,
         "{" ENTRY("l.weight", "U32", "[2,8]", "[0,64]") "," ENTRY("l.scales", "F16", "[2,1]", "[64,68]") "," ENTRY(
             "l.biases", "F8_E4M3", "[2,1]", "[68,70]") "}",
         70, PL_FORMAT, "l.weight has biases of type F8_E4M3", "expected f16, bf16 or f32"},
        {"{\"quantization\":{\"group_size\":32,\"bits\":4}}", "{" TRIPLET "}", 72, PL_FORMAT,
         "scales have shape [2, 1] and biases [2, 1]", "expected [2, 2]"},
        {"{\"quantization\":{\"group_size\":128,\"bits\":4}}", "{" TRIPLET "}", 72, PL_FORMAT, "rows of 8 words",
         "whole groups of 128"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":3}}", "{" TRIPLET "}", 72, PL_FORMAT, "rows of 8 words", "3 bits"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":2}}", "{" TRIPLET "}", 72, PL_FORMAT,
         "scales have shape [2, 1] and biases [2, 1]", "expected [2, 2] (128 elements"},
        {q44, "{" ENTRY("l.weight", "U32", "[2,8]", "[0,64]") "}", 64, PL_FORMAT, "l.weight is u32", "no scales"},
        {q44, "{" ENTRY("l.weight", "U32", "[2,8]", "[0,64]") "," ENTRY("l.scales", "F16", "[2,1]", "[64,68]") "}", 68,
         PL_FORMAT, "l.weight", "no biases"},
        {q44,
         "{" ENTRY("l.weight", "U32", "[2,8]", "[0,64]") "," ENTRY("l.scales", "F16", "[2,1]", "[64,68]") "," ENTRY(
             "l.biases", "BF16", "[2,1]", "[68,72]") "}",
         72, PL_FORMAT, "scales of type f16", "biases of type bf16"},
        {q44,
         "{" ENTRY("l.weight", "U32", "[2,8]", "[0,64]") "," ENTRY("l.scales", "U8", "[2,1]", "[64,66]") "," ENTRY(
             "l.biases", "U8", "[2,1]", "[66,68]") "}",
         68, PL_FORMAT, "scales of type u8", "expected both"},
        {q44,
         "{" ENTRY("l.weight", "U32", "[2,8]", "[0,64]") "," ENTRY("l.scales", "F16", "[1,2]", "[64,68]") "," ENTRY(
             "l.biases", "F16", "[2,1]", "[68,72]") "}",
         72, PL_FORMAT, "scales have shape [1, 2] and biases [2, 1]", "expected [2, 1] (64"},
        {q44,
         "{" ENTRY("l.weight", "U32", "[8]", "[0,32]") "," ENTRY("l.scales", "F16", "[1]", "[32,34]") "," ENTRY(
             "l.biases", "F16", "[1]", "[34,36]") "}",
         36, PL_FORMAT, "l.weight", "rows of 8 words"},
        {"{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}}", "{" TRIPLET "}", 72, PL_UNSUPPORTED,
         "quant_method is 'gptq'", "GGUF"},
        {"{\"quantization_config\":{\"quant_method\":\"awq\"}}", "{}", 0, PL_UNSUPPORTED, "quant_method is 'awq'",
         "MLX affine"},
        {"{\"quantization_config\":{\"quant_method\":\"fp8\"}}", "{}", 0, PL_UNSUPPORTED, "quant_method is 'fp8'",
         "config.json"},
        {"{\"quantization_config\":{\"quant_method\":7}}", "{}", 0, PL_UNSUPPORTED, "quant_method", "config.json"},
        {"{\"quantization_config\":{\"load_in_8bit\":true}}", "{}", 0, PL_UNSUPPORTED, "without group_size and bits",
         "config.json"},
    };
    refuse_all(cases, PL_COUNT_OF(cases));
}

static void settings_of_other_types_are_refused(void **state) {
    (void)state;
    static const struct packing cases[] = {
        {"{\"quantization\":{\"group_size\":\"32\",\"bits\":4,\"mode\":\"mxfp4\"}}", "{" MX_PAIR "}", 68, PL_UNSUPPORTED,
         "group_size of quantization of the model is a string '32';", "expected 32, 64 or 128"},
        {"{\"quantization\":{\"group_size\":32.5,\"bits\":4,\"mode\":\"mxfp4\"}}", "{" MX_PAIR "}", 68, PL_UNSUPPORTED,
         "group_size of quantization of the model is a real number 32.5", "expected 32"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"l\":{\"bits\":4}}}", "{" TRIPLET "}", 72, PL_UNSUPPORTED,
         "group_size of quantization of l is missing", "expected 32"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"mode\":\"affine\\u0000\"}}", "{" TRIPLET "}", 72, PL_UNSUPPORTED,
         "mode is 'affine?'", "mxfp4"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"l\":true}}", "{" TRIPLET "}", 72, PL_FORMAT,
         "quantization of l is true", "expected {group_size, bits}"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"l\":null}}", "{" TRIPLET "}", 72, PL_FORMAT,
         "quantization of l is null", "expected {group_size, bits}"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"l\":\"x\"}}", "{" TRIPLET "}", 72, PL_FORMAT,
         "quantization of l is a string", "expected {group_size, bits}"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"l\":false}}", "{" TRIPLET "}", 72, PL_FORMAT,
         "quantization of l is false", "its weight is packed"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"n\":true}}", "{" ENTRY("n.weight", "F32", "[2]", "[0,8]") "}", 8,
         PL_FORMAT, "quantization of n is true", "expected false"},
    };
    refuse_all(cases, PL_COUNT_OF(cases));
}

static void every_failure_is_survived(void **state) {
    (void)state;
    struct temp t;
    start_sharded(&t);
    temp_text(&t, "tokenizer_config.json", "{\"chat_template\":[{\"name\":\"default\",\"template\":\"x\"}]}");
    temp_text(&t, "tokenizer.json", "{\"model\":{\"vocab\":{\"a\":0}}}");
    temp_text(&t, "chat_template.jinja", "y");
    assert_int_equal(mkdir(temp_path(&t, "additional_chat_templates"), 0700), 0);
    temp_text(&t, "additional_chat_templates/rag.jinja", "z");
    fail_everything(t.dir);
    temp_drop(&t);
    start(&t, "{\"quantization\":{\"group_size\":64,\"bits\":4}}");
    put_weights(&t, "model.safetensors", "{" TRIPLET "}", 72);
    fail_everything(temp_path(&t, "config.json"));
    temp_drop(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_single_file_opens_by_three_names),
        cmocka_unit_test(shards_open_through_the_index),
        cmocka_unit_test(bad_indexes_are_refused),
        cmocka_unit_test(incomplete_directories_are_refused),
        cmocka_unit_test(bad_documents_are_refused),
        cmocka_unit_test(integers_of_any_size_are_read),
        cmocka_unit_test(chat_templates_come_from_the_first_place),
        cmocka_unit_test(triplets_become_one_tensor),
        cmocka_unit_test(pairs_of_mxfp4_become_one_tensor),
        cmocka_unit_test(packings_that_do_not_fit_are_refused),
        cmocka_unit_test(settings_of_other_types_are_refused),
        cmocka_unit_test(every_failure_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
