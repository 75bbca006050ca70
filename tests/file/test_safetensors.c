/* The safetensors reader: what a valid file gives, and that nothing hostile gets through. */
#include "tests/file/craft.h"

static const char valid_header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                   "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                                   "\"s\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[24,26]},"
                                   "\"u\":{\"dtype\":\"U32\",\"shape\":[1,1,1,4],\"data_offsets\":[26,42]}}   ";

static void a_valid_file_reads_back(void **state) {
    (void)state;
    struct pl_buf b = {0};
    uint8_t *copy;
    struct pl_file *f;
    struct pl_err err;
    craft_safetensors(&b, valid_header, 42);
    if (open_copy(pl_safetensors_open_memory, b.data, b.len, &copy, &f, &err) != PL_OK) fail_msg("%s", err.text);
    assert_int_equal(pl_file_kind(f), PL_FILE_HF);
    assert_int_equal(pl_file_tensor_count(f), 3);
    const struct pl_tensor *t = pl_file_tensor(f, "a");
    assert_int_equal(t->dtype, PL_F32);
    assert_int_equal(t->ndim, 2);
    assert_int_equal(t->shape[0], 2);
    assert_int_equal(t->shape[1], 3);
    assert_int_equal(t->bytes, 24);
    assert_ptr_equal(t->data, copy + b.len - 42);
    t = pl_file_tensor(f, "s");
    assert_int_equal(t->ndim, 0);
    assert_int_equal(pl_tensor_cols(t) * pl_tensor_rows(t), 1);
    assert_int_equal(pl_gguf_count(f), 0);
    uint64_t u;
    assert_int_equal(pl_gguf_u64(f, "k", &u, &err), PL_NOT_FOUND);
    pl_walk_file(f, copy, b.len);
    pl_file_close(f);
    free(copy);
    pl_buf_deinit(&b);
}

#define ENTRY(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}"

/* A convolution over time of a vision part must not stand before what the model is called. */
static void surplus_extents_become_one(void **state) {
    (void)state;
    struct pl_buf b = {0};
    uint8_t *copy;
    struct pl_file *f;
    struct pl_err err;
    craft_safetensors(&b, "{" ENTRY("a", "\"F32\"", "[2,1,3,5,7]", "[0,840]") "}", 840);
    if (open_copy(pl_safetensors_open_memory, b.data, b.len, &copy, &f, &err) != PL_OK) fail_msg("%s", err.text);
    const struct pl_tensor *t = pl_file_tensor(f, "a");
    assert_true(t->ndim == 4 && t->shape[0] == 2 && t->shape[1] == 3 && t->shape[2] == 5 && t->shape[3] == 7);
    pl_walk_file(f, copy, b.len);
    pl_file_close(f);
    free(copy);
    pl_buf_deinit(&b);
}

static void a_file_cut_anywhere_is_refused(void **state) {
    (void)state;
    struct pl_buf b = {0};
    craft_safetensors(&b, valid_header, 42);
    for (size_t len = 0; len < b.len; len++) {
        uint8_t *copy;
        struct pl_file *f;
        struct pl_err err;
        enum pl_status status = open_copy(pl_safetensors_open_memory, b.data, len, &copy, &f, &err);
        if (status != PL_FORMAT || f != NULL) fail_msg("cut at %zu: %s", len, pl_status_name(status));
        if (strstr(err.text, "memory") == NULL) fail_msg("cut at %zu: '%s' names no file", len, err.text);
        if (len > 0 && len < 8) assert_non_null(strstr(err.text, "memory: header: length at byte 0 needs 8 bytes"));
        free(copy);
    }
    pl_buf_deinit(&b);
}

static void a_file_with_any_byte_changed_never_breaks(void **state) {
    (void)state;
    struct pl_buf b = {0};
    craft_safetensors(&b, valid_header, 42);
    size_t refused = 0, accepted = 0;
    for (size_t at = 0; at < b.len; at++) {
        for (int value = 0; value < 256; value += at < 8 ? 1 : 3) {
            opens_or_is_refused(pl_safetensors_open_memory, &b, at, (char)value, &accepted, &refused);
        }
    }
    assert_true(refused > 1000 && accepted > 1000);
    pl_buf_deinit(&b);
}

/* --- one hostile header after the other, each with 64 bytes of weights behind it --- */

static const struct {
    const char *header;
    enum pl_status status;
    const char *part1, *part2;
} hostile[] = {
    /* not JSON, or not the right JSON */
    {"[]", PL_FORMAT, "header at byte 8", "expected 7b"},
    {"xx", PL_FORMAT, "begins with byte 78", "expected 7b"},
    {"{", PL_FORMAT, "header length at byte 0 is 1", "expected 2"},
    {"{x", PL_FORMAT, "not valid JSON", "header (bytes 8 to 10)"},
    {"{} x", PL_FORMAT, "not valid JSON", "memory"},
    {"{\"a\":1}", PL_FORMAT, "tensor a", "expected {dtype, shape, data_offsets}"},
    {"{\"a\":null}", PL_FORMAT, "tensor a", "not an object"},
    {"{\"a\":{}}", PL_FORMAT, "tensor a", "dtype is missing"},
    {"{\"__metadata__\":[]}", PL_FORMAT, "__metadata__", "expected an object"},
    {"{\"__metadata__\":\"x\"}", PL_FORMAT, "__metadata__", "not an object"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F16\"}}", PL_FORMAT, "not valid JSON", "duplicate"},
    {"{\"\\u0001\":{}}", PL_FORMAT, "tensor ?", "control characters"},
    {"{\"\":{}}", PL_FORMAT, "name", "empty"},
    {"{\"a\\u0000b\":{}}", PL_FORMAT, "not valid JSON", "NUL"},
    {"{\"\xFF\":{}}", PL_FORMAT, "not valid JSON", "decode"},
    {"{\"\\ud800\":{}}", PL_FORMAT, "not valid JSON", "invalid Unicode"},
    /* dtypes */
    {"{" ENTRY("a", "\"F8_E9M9\"", "[64]", "[0,64]") "}", PL_UNSUPPORTED, "dtype is F8_E9M9", "expected one of F32"},
    {"{" ENTRY("a", "\"F8_E4M3\"", "[63]", "[0,64]") "}", PL_FORMAT, "hold 64 bytes", "expected 63"},
    {"{" ENTRY("a", "\"F4\"", "[127]", "[0,64]") "}", PL_FORMAT, "shape", "middle of a byte"},
    {"{" ENTRY("a", "\"F8_E4M3\"", "[64]", "[0,64]") "," ENTRY("b", "\"F32\"", "[16]", "[0,64]") "}", PL_FORMAT, "overlap",
     "disjoint"},
    {"{" ENTRY("a", "\"f32\"", "[16]", "[0,64]") "}", PL_UNSUPPORTED, "dtype is f32", "expected one of"},
    {"{" ENTRY("a", "\"\"", "[16]", "[0,64]") "}", PL_UNSUPPORTED, "dtype is", "expected one of"},
    {"{" ENTRY("a", "\"BOOLEAN\"", "[64]", "[0,64]") "}", PL_UNSUPPORTED, "dtype is BOOLEAN", "expected one of"},
    {"{" ENTRY("a", "\"F32\\u0000\"", "[16]", "[0,64]") "}", PL_UNSUPPORTED, "dtype is F32?", "expected one of"},
    {"{" ENTRY("a", "7", "[16]", "[0,64]") "}", PL_FORMAT, "dtype is missing or not a string", "tensor a"},
    /* shapes */
    {"{" ENTRY("a", "\"F32\"", "16", "[0,64]") "}", PL_FORMAT, "shape is missing or not an array", "tensor a"},
    {"{" ENTRY("a", "\"F32\"", "[1,1,1,1,1,1,1,1,16]", "[0,64]") "}", PL_FORMAT, "too many dimensions", "at most 8"},
    {"{" ENTRY("a", "\"F32\"", "[0]", "[0,0]") "}", PL_FORMAT, "extent", "at least 1"},
    {"{" ENTRY("a", "\"F32\"", "[16,0]", "[0,0]") "}", PL_FORMAT, "extent", "at least 1"},
    {"{" ENTRY("a", "\"F32\"", "[-16]", "[0,64]") "}", PL_FORMAT, "extent", "at least 1"},
    {"{" ENTRY("a", "\"F32\"", "[16.0]", "[0,64]") "}", PL_FORMAT, "extent", "no integer"},
    {"{" ENTRY("a", "\"F32\"", "[\"16\"]", "[0,64]") "}", PL_FORMAT, "extent", "no integer"},
    {"{" ENTRY("a", "\"F32\"", "[true]", "[0,64]") "}", PL_FORMAT, "extent", "no integer"},
    {"{" ENTRY("a", "\"F32\"", "[4294967296,4294967296]", "[0,64]") "}", PL_FORMAT, "overflows", "tensor a"},
    {"{" ENTRY("a", "\"F32\"", "[9223372036854775807,2]", "[0,64]") "}", PL_FORMAT, "overflows", "2^63"},
    {"{" ENTRY("a", "\"F32\"", "[9223372036854775807]", "[0,64]") "}", PL_FORMAT, "overflows", "tensor a"},
    {"{" ENTRY("a", "\"F32\"", "[9223372036854775808]", "[0,64]") "}", PL_FORMAT, "not valid JSON", "too big"},
    /* spans */
    {"{" ENTRY("a", "\"F32\"", "[16]", "[0]") "}", PL_FORMAT, "data_offsets", "[begin, end]"},
    {"{" ENTRY("a", "\"F32\"", "[16]", "[0,32,64]") "}", PL_FORMAT, "data_offsets", "pair"},
    {"{" ENTRY("a", "\"F32\"", "[16]", "{}") "}", PL_FORMAT, "data_offsets", "pair"},
    {"{" ENTRY("a", "\"F32\"", "[16]", "[0,64.0]") "}", PL_FORMAT, "data_offsets", "pair of integers"},
    {"{" ENTRY("a", "\"F32\"", "[16]", "[-64,0]") "}", PL_FORMAT, "data_offsets", "at least 0"},
    {"{" ENTRY("a", "\"F32\"", "[16]", "[64,0]") "}", PL_FORMAT, "[64, 0]", "end comes before"},
    {"{" ENTRY("a", "\"F32\"", "[16]", "[0,60]") "}", PL_FORMAT, "hold 60 bytes; expected 64", "tensor a"},
    {"{" ENTRY("a", "\"F16\"", "[16]", "[0,64]") "}", PL_FORMAT, "hold 64 bytes; expected 32", "dtype and shape"},
    {"{" ENTRY("a", "\"F32\"", "[16]", "[64,128]") "}", PL_FORMAT, "ends at byte", "plumb pull"},
    {"{" ENTRY("a", "\"F32\"", "[16]", "[9223372036854775743,9223372036854775807]") "}", PL_FORMAT, "ends at byte",
     "incomplete"},
    {"{" ENTRY("a", "\"F32\"", "[8]", "[0,32]") "}", PL_FORMAT, "last tensor ends at byte", "equal"},
    {"{" ENTRY("a", "\"F32\"", "[8]", "[32,64]") "}", PL_FORMAT, "tensor a begins at byte", "no holes"},
    {"{" ENTRY("a", "\"F32\"", "[4]", "[0,16]") "," ENTRY("b", "\"F32\"", "[4]", "[48,64]") "}", PL_FORMAT,
     "tensor b begins", "no holes"},
    {"{" ENTRY("a", "\"F32\"", "[8]", "[0,32]") "," ENTRY("b", "\"F32\"", "[9]", "[28,64]") "}", PL_FORMAT, "a", "overlap"},
    {"{" ENTRY("a", "\"F32\"", "[16]", "[0,64]") "," ENTRY("b", "\"F32\"", "[16]", "[0,64]") "}", PL_FORMAT, "b", "overlap"},
    {"{" ENTRY("b", "\"F32\"", "[4]", "[16,32]") "," ENTRY("a", "\"F32\"", "[16]", "[0,64]") "}", PL_FORMAT, "b", "overlap"},
    {"{" ENTRY("a", "\"F32\"", "[16]", "[0,64]") "," ENTRY("a", "\"F32\"", "[16]", "[0,64]") "}", PL_FORMAT, "duplicate",
     "memory"},
    {"{}", PL_FORMAT, "last tensor ends", "equal"},
};

static void hostile_headers_are_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < PL_COUNT_OF(hostile); i++) {
        struct pl_buf b = {0};
        const char *parts[] = {hostile[i].part1, hostile[i].part2, NULL};
        craft_safetensors(&b, hostile[i].header, 64);
        expect_refused(pl_safetensors_open_memory, hostile[i].header, &b, hostile[i].status, parts);
    }
}

static void hostile_lengths_are_refused(void **state) {
    (void)state;
    static const uint64_t lens[] = {0, 1, 1000, 100000001, 1ull << 32, 1ull << 63, UINT64_MAX - 7, UINT64_MAX};
    for (size_t i = 0; i < PL_COUNT_OF(lens); i++) {
        struct pl_buf b = {0};
        const char *parts[] = {"memory", "byte", pl_num(lens[i]).s, NULL};
        put_u64(&b, lens[i]);
        pl_buf_add_c(&b, "{}");
        struct pl_shown_num shown = pl_num(lens[i]);
        parts[2] = shown.s;
        expect_refused(pl_safetensors_open_memory, "length", &b, PL_FORMAT, parts);
    }
}

static void deep_json_is_refused_quickly(void **state) {
    (void)state;
    static const int depths[] = {65, 66, 100, 1000, 100000, 3000000};
    for (size_t i = 0; i < PL_COUNT_OF(depths); i++) {
        for (int shape = 0; shape < 2; shape++) {
            struct pl_buf text = {0};
            pl_buf_add_c(&text, shape == 0 ? "{\"a\":" : "");
            for (int k = shape == 0 ? 1 : 0; k < depths[i]; k++) pl_buf_add_c(&text, shape == 0 ? "[" : "{\"a\":");
            json_t *root = NULL;
            struct pl_err err = {0};
            assert_int_equal(pl_json_parse("deep.json", text.data, text.len, &root, &err), PL_FORMAT);
            assert_non_null(strstr(err.text, "deep.json"));
            assert_non_null(strstr(err.text, "deeper than 64 levels at byte"));
            pl_buf_deinit(&text);
        }
    }
}

static void json_is_strict(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",
        " ",
        "{",
        "{}x",
        "{\"a\":1,}",
        "[1,]",
        "{'a':1}",
        "{\"a\":01}",
        "{\"a\":NaN}",
        "{\"a\":Infinity}",
        "\"a\"",
        "1",
        "nul",
        "{\"a\":1e999}",
        "{\"a\":+1}",
        "{\"a\":.5}",
        "[\"\\x\"]",
        "[\"\n\"]",
        "[\"\xC0\xAF\"]",
        "{\"a\":1,\"a\":1}",
        "[\"a",
        "[\"\\",
        "[\"\\u12",
        "[18446744073709551616]",
        "[-9223372036854775809]",
        "// c\n{}",
        "{\"a\":1}}",
    };
    for (size_t i = 0; i < PL_COUNT_OF(bad); i++) {
        json_t *root = NULL;
        struct pl_err err = {0};
        if (pl_json_parse("x.json", bad[i], strlen(bad[i]), &root, &err) != PL_FORMAT) fail_msg("accepted: %s", bad[i]);
        assert_null(root);
        assert_non_null(strstr(err.text, "x.json: not valid JSON at byte"));
    }
    struct pl_buf text = {0}; /* 64 levels are fine, and brackets inside strings do not count */
    for (int i = 0; i < 63; i++) pl_buf_add_c(&text, "[");
    pl_buf_add_c(&text, "[\"[[[[{{{{\\\"[[\"]");
    for (int i = 0; i < 63; i++) pl_buf_add_c(&text, "]");
    json_t *root = NULL;
    assert_int_equal(pl_json_parse("x.json", text.data, text.len, &root, NULL), PL_OK);
    json_decref(root);
    pl_buf_deinit(&text);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    struct pl_buf b = {0};
    craft_safetensors(&b, valid_header, 42);
    for (uint64_t n = 1;; n++) {
        struct pl_file *f = NULL;
        struct pl_err err = {0};
        uint64_t before = pl_mem_calls();
        pl_mem_fail_at(n);
        enum pl_status status = pl_safetensors_open_memory(b.data, b.len, &f, &err);
        bool done = pl_mem_calls() - before < n;
        pl_mem_fail_at(0);
        if (status == PL_OK)
            pl_file_close(f);
        else
            assert_true(f == NULL && status == PL_NO_MEMORY && err.text[0] != '\0');
        if (!done) continue;
        assert_int_equal(status, PL_OK);
        assert_true(n > 20);
        break;
    }
    pl_buf_deinit(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_valid_file_reads_back),
        cmocka_unit_test(surplus_extents_become_one),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(hostile_headers_are_refused),
        cmocka_unit_test(a_file_with_any_byte_changed_never_breaks),
        cmocka_unit_test(hostile_lengths_are_refused),
        cmocka_unit_test(deep_json_is_refused_quickly),
        cmocka_unit_test(json_is_strict),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
