/* The GGUF reader: what a valid file gives, and that nothing hostile gets through. */
#include "tests/file/craft.h"
#include "tests/skip.h"

#include <math.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include "base/pool.h"

static const char *const words[] = {"a", "", "b\xC3\xA9", "<s>"};

static void craft_valid(struct craft *c) {
    static const int16_t numbers[] = {-3, 0, 32767};
    static const double pi = 3.25;
    static const int8_t minus = -5;
    static const uint64_t big = UINT64_MAX;
    static const uint8_t yes = 1;
    *c = craft_new();
    craft_string(c, "general.architecture", "llama");
    craft_u32(c, "general.alignment", 32);
    craft_value(c, "k.f64", PL_GGUF_F64, &pi, 8);
    craft_value(c, "k.i8", PL_GGUF_I8, &minus, 1);
    craft_value(c, "k.u64", PL_GGUF_U64, &big, 8);
    craft_value(c, "k.bool", PL_GGUF_BOOL, &yes, 1);
    craft_array(c, "k.numbers", PL_GGUF_I16, 3, numbers, sizeof numbers);
    craft_strings(c, "k.words", words, 4);
    craft_array(c, "k.none", PL_GGUF_STRING, 0, NULL, 0);
    craft_string(c, "tokenizer.chat_template", "{{ default }}");
    craft_string(c, "tokenizer.chat_template.tool_use", "{{ tools }}");
    craft_tensor(c, "q", 64, 3, PL_Q8_0);
    craft_tensor(c, "k", 256, 2, PL_Q4_K);
    craft_tensor(c, "norm", 8, 1, PL_F32); /* 32 bytes: the file ends with weights, not padding */
}

static void valid_bytes(struct pl_buf *out) {
    struct craft c;
    craft_valid(&c);
    craft_bytes(&c, out);
}

static void a_valid_file_reads_back(void **state) {
    (void)state;
    struct pl_buf b = {0};
    uint8_t *copy;
    struct pl_file *f;
    struct pl_err err;
    valid_bytes(&b);
    if (open_copy(pl_gguf_open_memory, b.data, b.len, &copy, &f, &err) != PL_OK) fail_msg("%s", err.text);
    assert_int_equal(pl_file_kind(f), PL_FILE_GGUF);
    assert_int_equal(pl_gguf_count(f), 11);
    double d = 0;
    uint64_t u = 0;
    bool flag = false;
    struct pl_str s;
    assert_int_equal(pl_gguf_f64(f, "k.f64", &d, &err), PL_OK);
    assert_true(d == 3.25);
    assert_int_equal(pl_gguf_f64(f, "k.i8", &d, &err), PL_OK);
    assert_true(d == -5.0);
    assert_int_equal(pl_gguf_u64(f, "k.u64", &u, &err), PL_OK);
    assert_true(u == UINT64_MAX);
    assert_int_equal(pl_gguf_u64(f, "k.i8", &u, &err), PL_FORMAT); /* negative */
    assert_int_equal(pl_gguf_u64(f, "k.f64", &u, &err), PL_FORMAT);
    assert_non_null(strstr(err.text, "k.f64"));
    assert_non_null(strstr(err.text, "has type f64; expected an integer"));
    assert_int_equal(pl_gguf_str(f, "k.numbers", &s, &err), PL_FORMAT);
    assert_non_null(strstr(err.text, "array of i16"));
    assert_int_equal(pl_gguf_bool(f, "k.bool", &flag, &err), PL_OK);
    assert_true(flag);
    err = (struct pl_err){0};
    assert_int_equal(pl_gguf_bool(f, "k.absent", &flag, &err), PL_NOT_FOUND);
    assert_string_equal(err.text, "");
    assert_int_equal(pl_gguf_str(f, "general.architecture", &s, &err), PL_OK);
    assert_true(pl_str_eq_c(s, "llama"));
    const struct pl_gguf_value *v = pl_gguf_find(f, "k.numbers");
    assert_int_equal(v->count, 3);
    assert_int_equal(pl_gguf_elem_i64(v, 0), -3);
    assert_int_equal(pl_gguf_elem_i64(v, 2), 32767);
    v = pl_gguf_find(f, "k.words");
    for (int i = 0; i < 4; i++) assert_true(pl_str_eq_c(v->strings[i], words[i]));
    assert_int_equal(pl_gguf_find(f, "k.none")->count, 0);
    assert_true(pl_file_chat_template(f, NULL, &s) && pl_str_eq_c(s, "{{ default }}"));
    assert_true(pl_file_chat_template(f, "tool_use", &s) && pl_str_eq_c(s, "{{ tools }}"));
    assert_false(pl_file_chat_template(f, "rag", &s));
    const struct pl_tensor *t = pl_file_tensor(f, "q");
    assert_int_equal(t->dtype, PL_Q8_0);
    assert_int_equal(t->shape[0], 3);
    assert_int_equal(t->shape[1], 64);
    assert_int_equal(t->shape[2], 1);
    assert_int_equal(t->bytes, 3 * 2 * 34);
    assert_int_equal(((const uint8_t *)t->data)[1], 1);
    assert_null(pl_file_tensor(f, "Q"));
    pl_walk_file(f, copy, b.len);
    pl_file_close(f);
    free(copy);
    pl_buf_deinit(&b);
}

static void the_fingerprint_sees_metadata_and_table(void **state) {
    (void)state;
    char first[33] = "";
    for (int i = 0; i < 4; i++) {
        struct craft c;
        struct pl_buf b = {0};
        struct pl_file *f;
        craft_valid(&c);
        if (i == 2) craft_u32(&c, "k.more", 1);
        if (i == 3) craft_tensor(&c, "more", 8, 1, PL_F32);
        craft_bytes(&c, &b);
        if (i == 1) b.data[b.len - 1] ^= 1; /* a weight */
        assert_int_equal(pl_gguf_open_memory(b.data, b.len, &f, NULL), PL_OK);
        if (i == 0) memcpy(first, pl_file_fingerprint(f), 33);
        assert_int_equal(strcmp(first, pl_file_fingerprint(f)) == 0, i <= 1);
        pl_file_close(f);
        pl_buf_deinit(&b);
    }
}

static void a_file_cut_anywhere_is_refused(void **state) {
    (void)state;
    struct pl_buf b = {0};
    valid_bytes(&b);
    for (size_t len = 0; len < b.len; len++) {
        uint8_t *copy;
        struct pl_file *f;
        struct pl_err err;
        enum pl_status status = open_copy(pl_gguf_open_memory, b.data, len, &copy, &f, &err);
        if (status != PL_FORMAT || f != NULL) fail_msg("cut at %zu: %s", len, pl_status_name(status));
        if (strstr(err.text, "memory") == NULL) fail_msg("cut at %zu: '%s' names no file", len, err.text);
        if (len > 0 && strstr(err.text, "byte") == NULL) fail_msg("cut at %zu: '%s' names no byte", len, err.text);
        free(copy);
    }
    pl_buf_deinit(&b);
}

static void a_file_with_any_byte_changed_never_breaks(void **state) {
    (void)state;
    struct pl_buf b = {0};
    valid_bytes(&b);
    size_t refused = 0, accepted = 0;
    for (size_t at = 0; at < b.len; at++) {
        for (int change = 0; change < 10; change++) {
            opens_or_is_refused(pl_gguf_open_memory, &b, at,
                                (char)(change < 8    ? b.data[at] ^ (1 << change)
                                       : change == 8 ? 0
                                                     : 0xFF),
                                &accepted, &refused);
        }
    }
    assert_true(refused > 1000 && accepted > 1000);
    pl_buf_deinit(&b);
}

/* --- hostile files by name --- */
static struct pl_buf built(struct craft *c) {
    struct pl_buf b = {0};
    craft_bytes(c, &b);
    return b;
}
#define REFUSE(c, status, ...)                                                      \
    do {                                                                            \
        struct pl_buf bytes_ = built(&(c));                                         \
        const char *parts_[] = {__VA_ARGS__, NULL};                                 \
        expect_refused(pl_gguf_open_memory, #__VA_ARGS__, &bytes_, status, parts_); \
    } while (0)

static void hostile_headers_are_refused(void **state) {
    (void)state;
    static const uint32_t versions[] = {0, 1, 4, 5, 100, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF};
    struct craft c;
    craft_valid(&c);
    c.magic = "GGML";
    REFUSE(c, PL_FORMAT, "magic at byte 0", "47 47 4d 4c", "expected 47 47 55 46");
    craft_valid(&c);
    c.magic = "FUGG";
    REFUSE(c, PL_UNSUPPORTED, "big-endian", "expected a little-endian");
    for (uint32_t v = 1; v <= 3; v++) {
        craft_valid(&c);
        c.version = v << 24;
        REFUSE(c, PL_UNSUPPORTED, "version at byte 4", "big-endian");
    }
    for (size_t i = 0; i < PL_COUNT_OF(versions); i++) {
        craft_valid(&c);
        c.version = versions[i];
        REFUSE(c, PL_UNSUPPORTED, "version at byte 4", "expected 2 or 3");
    }
    static const uint64_t counts[] = {1000,       1u << 31,   UINT32_MAX,     1ull << 61,
                                      1ull << 62, 1ull << 63, UINT64_MAX / 8, UINT64_MAX};
    for (size_t i = 0; i < PL_COUNT_OF(counts); i++) {
        craft_valid(&c);
        c.tensor_count = counts[i];
        REFUSE(c, PL_FORMAT, "tensor count at byte 8", pl_num(counts[i]).s);
        craft_valid(&c);
        c.value_count = counts[i];
        REFUSE(c, PL_FORMAT, "metadata count at byte 16", pl_num(counts[i]).s);
    }
    craft_valid(&c);
    c.value_count--; /* the last pair is taken for a tensor */
    REFUSE(c, PL_FORMAT, "memory");
}

static void hostile_metadata_is_refused(void **state) {
    (void)state;
    struct craft c;
    uint64_t lens[] = {1000, 1ull << 32, 1ull << 62, 1ull << 63, UINT64_MAX - 7, UINT64_MAX};
    for (size_t i = 0; i < PL_COUNT_OF(lens); i++) { /* strings without end */
        c = craft_new();
        craft_value(&c, "k", PL_GGUF_STRING, &lens[i], 8);
        put_zeros(&c.values, 40);
        REFUSE(c, PL_FORMAT, "key k", "at byte 45", pl_num(lens[i]).s);
        c = craft_new();
        put_u64(&c.values, lens[i]);
        put_zeros(&c.values, 40);
        c.value_count = 1;
        REFUSE(c, PL_FORMAT, "key", "at byte 32", pl_num(lens[i]).s);
        c = craft_new(); /* counts whose product overflows */
        craft_array(&c, "k", PL_GGUF_F64, lens[i], NULL, 0);
        put_zeros(&c.values, 40);
        REFUSE(c, PL_FORMAT, "key k", i == 1 ? "34,359,738,368" : "array");
        c = craft_new();
        craft_array(&c, "k", PL_GGUF_STRING, lens[i], NULL, 0);
        put_zeros(&c.values, 40);
        REFUSE(c, PL_FORMAT, "key k", "string at byte");
    }
    for (uint32_t type = 13; type < 16; type++) {
        c = craft_new();
        craft_value(&c, "k", type == 15 ? UINT32_MAX : type, "12345678", 8);
        REFUSE(c, PL_FORMAT, "key k: type at byte 33", "expected 0 to 12");
        c = craft_new();
        craft_array(&c, "k", type == 15 ? UINT32_MAX : type, 1, "12345678", 8);
        REFUSE(c, PL_FORMAT, "key k: element type at byte 37", "expected 0 to 12");
    }
    c = craft_new();
    craft_array(&c, "k", PL_GGUF_ARRAY, 1, "12345678", 8);
    REFUSE(c, PL_UNSUPPORTED, "key k", "arrays of arrays");
    c = craft_new();
    craft_value(&c, "k", PL_GGUF_BOOL, "\2", 1);
    REFUSE(c, PL_FORMAT, "key k: bool at byte 37 is 2; expected 0 or 1");
    c = craft_new();
    craft_array(&c, "k", PL_GGUF_BOOL, 3, "\0\1\377", 3);
    REFUSE(c, PL_FORMAT, "bool at byte 51 is 255");
    c = craft_new();
    craft_u32(&c, "same", 1);
    craft_u32(&c, "other", 1);
    craft_string(&c, "same", "x");
    REFUSE(c, PL_FORMAT, "key same at byte", "appears twice");
    c = craft_new();
    craft_u32(&c, "", 1);
    REFUSE(c, PL_FORMAT, "key at byte 24 has 0 bytes");
    c = craft_new();
    craft_u32(&c, "a\nb", 1);
    REFUSE(c, PL_FORMAT, "key at byte 24 is 'a?b'", "without control characters");
    c = craft_new();
    craft_u32(&c, "a\xFF", 1);
    REFUSE(c, PL_FORMAT, "expected UTF-8");
    c = craft_new();
    char *longest = malloc(65537);
    memset(longest, 'k', 65536);
    longest[65536] = '\0';
    craft_u32(&c, longest, 1);
    REFUSE(c, PL_FORMAT, "has 65,536 bytes; expected 1 to 65,535");
    free(longest);
}

static void hostile_alignments_are_refused(void **state) {
    (void)state;
    static const uint32_t bad[] = {0, 1, 2, 4, 3, 7, 12, 24, 31, 33, 48, 1000, UINT32_MAX};
    struct craft c;
    for (size_t i = 0; i < PL_COUNT_OF(bad); i++) {
        c = craft_new();
        craft_u32(&c, "general.alignment", bad[i]);
        craft_tensor(&c, "t", 8, 1, PL_F32);
        REFUSE(c, PL_FORMAT, "general.alignment", pl_num(bad[i]).s, "power of two");
    }
    c = craft_new();
    craft_i32(&c, "general.alignment", 32);
    REFUSE(c, PL_FORMAT, "general.alignment", "of type i32", "expected a u32");
    c = craft_new();
    craft_string(&c, "general.alignment", "32");
    REFUSE(c, PL_FORMAT, "general.alignment", "of type string");
    c = craft_new();
    craft_u32(&c, "general.alignment", 0x80000000);
    craft_tensor(&c, "t", 8, 1, PL_F32);
    REFUSE(c, PL_FORMAT, "tensor t ends at byte 2,147,483,680");
    for (uint32_t a = 8; a <= 4096; a *= 2) { /* and the good ones work */
        c = craft_new();
        c.alignment = a;
        craft_u32(&c, "general.alignment", a);
        craft_tensor(&c, "t", 8, 1, PL_F32);
        struct pl_buf b = built(&c);
        struct pl_file *f;
        assert_int_equal(pl_gguf_open_memory(b.data, b.len, &f, NULL), PL_OK);
        pl_file_close(f);
        pl_buf_deinit(&b);
    }
}

static void entry(struct craft *c, const char *name, uint32_t ndim, const uint64_t *extents, uint32_t type,
                  uint64_t offset) {
    *c = craft_new();
    craft_entry(c, name, ndim, extents, type, offset);
    put_zeros(&c->weights, 256);
}

static void hostile_shapes_are_refused(void **state) {
    (void)state;
    struct craft c;
    const uint64_t five[5] = {1, 1, 1, 1, 1};
    entry(&c, "t", 0, five, 0, 0);
    REFUSE(c, PL_FORMAT, "tensor t: dimension count at byte 33 is 0; expected 1 to 4");
    entry(&c, "t", 5, five, 0, 0);
    REFUSE(c, PL_FORMAT, "dimension count at byte 33 is 5");
    entry(&c, "t", 4, five, 0, 0);
    memset(c.table.data + 9, 0xFF, 4);
    REFUSE(c, PL_FORMAT, "dimension count at byte 33 is 4294967295");
    for (uint32_t ndim = 1; ndim <= 4; ndim++) {
        for (uint32_t zero = 0; zero < ndim; zero++) {
            uint64_t e[4] = {4, 4, 4, 4};
            e[zero] = 0;
            entry(&c, "t", ndim, e, 0, 0);
            REFUSE(c, PL_FORMAT, "tensor t: the extents at byte 37 contain a zero");
        }
    }
    static const uint64_t huge[][4] = {
        {1ull << 32, 1ull << 32, 1, 1}, {1ull << 63, 2, 1, 1},
        {UINT64_MAX, UINT64_MAX, 1, 1}, {1ull << 16, 1ull << 16, 1ull << 16, 1ull << 16},
        {3, 1ull << 62, 1, 1},          {1ull << 63, 1, 1, 1},
        {UINT64_MAX, 1, 1, 1},
    };
    for (size_t i = 0; i < PL_COUNT_OF(huge); i++) {
        entry(&c, "t", 4, huge[i], 0, 0);
        REFUSE(c, PL_FORMAT, "tensor t", "overflow");
    }
    entry(&c, "t", 1, (const uint64_t[]){1ull << 62}, 0, 0); /* elements fit, bytes do not */
    REFUSE(c, PL_FORMAT, "tensor t", "byte count that overflows");
    entry(&c, "t", 1, (const uint64_t[]){1ull << 61}, 0, 0); /* bytes fit, the end does not exist */
    REFUSE(c, PL_FORMAT, "tensor t ends at byte 9,223,372,036,854,775,8", "download is incomplete", "plumb pull");
    for (int i = 0; i < PL_DTYPE_COUNT; i++) {
        const struct pl_dtype_info *d = pl_dtype_info((enum pl_dtype)i);
        if (d->block_elems == 1 || d->ggml_type < 0) continue;
        uint64_t cols[] = {1, d->block_elems - 1, d->block_elems + 1, d->block_elems * 2 - 1};
        for (size_t k = 0; k < PL_COUNT_OF(cols); k++) {
            uint64_t e[2] = {cols[k], d->block_elems}; /* the product is a multiple, the rows are not */
            entry(&c, "t", 2, e, (uint32_t)d->ggml_type, 0);
            REFUSE(c, PL_FORMAT, "tensor t: rows have", d->name, "expected a multiple of", pl_num(d->block_elems).s);
        }
    }
}

/* Bytes of 256 elements of the types that are shown and not computed with. */
static uint64_t unread_bytes(uint32_t type) {
    static const uint32_t sizes[][2] = {{9, 288}, {15, 292}, {40, 144}, {41, 36}, {42, 72}};
    for (size_t i = 0; i < PL_COUNT_OF(sizes); i++)
        if (sizes[i][0] == type) return sizes[i][1];
    return 0;
}

static void types_without_a_reader_are_shown_and_refused_for_a_run(void **state) {
    (void)state;
    const uint64_t e[2] = {256, 3};
    for (uint32_t type = 0; type < 70; type++) {
        uint64_t row = unread_bytes(type);
        if (row == 0) continue;
        struct craft c = craft_new();
        craft_tensor(&c, "a", 32, 1, PL_Q8_0);
        craft_entry(&c, "t", 2, e, type, c.weights.len);
        put_zeros(&c.weights, (size_t)row * 3);
        uint64_t next = c.weights.len + (0 - c.weights.len) % c.alignment;
        put_zeros(&c.weights, next - c.weights.len);
        craft_tensor(&c, "z", 32, 1, PL_F32);
        struct pl_buf bytes = {0};
        craft_bytes(&c, &bytes);
        uint8_t *copy;
        struct pl_file *f;
        struct pl_err err;
        assert_int_equal(open_copy(pl_gguf_open_memory, pl_buf_cstr(&bytes), bytes.len, &copy, &f, &err), PL_OK);
        assert_int_equal(pl_file_tensor_count(f), 2);
        assert_null(pl_file_tensor(f, "t"));
        assert_int_equal(pl_file_tensor(f, "z")->dtype, PL_F32);
        assert_int_equal(pl_file_unread_count(f), 1);
        const struct pl_unread_tensor *u = pl_file_unread_at(f, 0);
        assert_string_equal(u->name, "t");
        assert_string_equal(u->dtype, pl_ggml_type_name(type));
        assert_int_equal(u->bytes, row * 3);
        assert_true(u->ndim == 2 && u->shape[0] == 3 && u->shape[1] == 256);
        assert_null(pl_file_unread_at(f, 1));
        assert_int_equal(pl_file_check_readable(f, &err), PL_UNSUPPORTED);
        assert_non_null(strstr(err.text, pl_ggml_type_name(type)));
        assert_non_null(strstr(err.text, "tensor t"));
        assert_non_null(strstr(err.text, "q4_k"));
        pl_file_close(f);
        free(copy);
        for (uint64_t cut = 1; cut < 64; cut += 9) { /* its span is checked like any other */
            c = craft_new();
            craft_entry(&c, "t", 2, e, type, 0);
            put_zeros(&c.weights, (size_t)(row * 3 - cut));
            REFUSE(c, PL_FORMAT, "tensor t ends at byte", "incomplete");
        }
        pl_buf_deinit(&bytes);
    }
}

static void hostile_types_are_refused(void **state) {
    (void)state;
    struct craft c;
    const uint64_t e[1] = {256};
    for (uint32_t type = 0; type < 70; type++) {
        enum pl_dtype d;
        if (pl_dtype_from_ggml(type, &d) || unread_bytes(type) != 0) continue;
        entry(&c, "t", 1, e, type, 0);
        const char *name = pl_ggml_type_name(type);
        REFUSE(c, name == NULL ? PL_FORMAT : PL_UNSUPPORTED, "tensor t: type at byte 45", name == NULL ? "unknown" : name,
               "q4_k", "mxfp4");
    }
    entry(&c, "t", 1, e, UINT32_MAX, 0);
    REFUSE(c, PL_FORMAT, "type at byte 45 is 4294967295 (unknown)");
}

static void hostile_spans_are_refused(void **state) {
    (void)state;
    struct craft c;
    const uint64_t e[1] = {16}; /* 64 bytes of f32 */
    static const uint64_t misaligned[] = {1, 4, 8, 16, 31, 33, 63, 97};
    for (size_t i = 0; i < PL_COUNT_OF(misaligned); i++) {
        entry(&c, "t", 1, e, 0, misaligned[i]);
        REFUSE(c, PL_FORMAT, "tensor t: offset at byte 49 is", "expected a multiple of the alignment 32");
    }
    static const uint64_t past[] = {224, 256, 288, 1u << 20, 1ull << 40, 1ull << 63, UINT64_MAX - 127};
    for (size_t i = 0; i < PL_COUNT_OF(past); i++) {
        entry(&c, "t", 1, e, 0, past[i]);
        REFUSE(c, PL_FORMAT, "tensor t", "byte");
    }
    entry(&c, "t", 1, e, 0, UINT64_MAX - 31);
    REFUSE(c, PL_FORMAT, "tensor t (table entry at byte 24)", "overflows");
    for (uint64_t second = 0; second < 64; second += 32) {
        entry(&c, "first", 1, e, 0, 32);
        craft_entry(&c, "second", 1, e, 0, 32 + second);
        REFUSE(c, PL_FORMAT, "first", "second", "overlap");
        entry(&c, "first", 1, e, 0, 32 + second);
        craft_entry(&c, "second", 1, e, 0, 32);
        REFUSE(c, PL_FORMAT, "first", "second", "overlap");
    }
    entry(&c, "same", 1, e, 0, 0);
    craft_entry(&c, "other", 1, e, 0, 64);
    craft_entry(&c, "same", 1, e, 0, 128);
    REFUSE(c, PL_FORMAT, "tensor name same appears twice");
    entry(&c, "", 1, e, 0, 0);
    REFUSE(c, PL_FORMAT, "tensor name at byte 24 has 0 bytes");
    entry(&c, "x\x1B[2J", 1, e, 0, 0);
    REFUSE(c, PL_FORMAT, "tensor name at byte 24 is 'x?[2J'");
    entry(&c, "\xC0\x80", 1, e, 0, 0);
    REFUSE(c, PL_FORMAT, "tensor name at byte 24", "UTF-8");
}

static void bad_scales_are_refused_on_request(void **state) {
    (void)state;
    struct craft c;
    struct pl_pool *pool;
    assert_int_equal(pl_pool_create(3, &pool, NULL), PL_OK);
    c = craft_new();
    for (int i = 0; i < 40; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        craft_tensor(&c, name, 256, 8, i % 2 ? PL_Q4_K : PL_Q8_0);
    }
    struct pl_buf b = built(&c);
    struct pl_file *f;
    assert_int_equal(pl_gguf_open_memory(b.data, b.len, &f, NULL), PL_OK);
    assert_int_equal(pl_file_check_scales(f, NULL, NULL), PL_OK);
    assert_int_equal(pl_file_check_scales(f, pool, NULL), PL_OK);
    for (int round = 0; round < 40; round += 3) { /* two bad tensors: the first in file order is named */
        char want[32];
        snprintf(want, sizeof want, "tensor t%d ", round);
        uint8_t *first = (uint8_t *)(uintptr_t)pl_file_tensor_at(f, (size_t)round)->data;
        uint8_t *last = (uint8_t *)(uintptr_t)pl_file_tensor_at(f, 39)->data + 7 * 144;
        uint8_t old[2] = {first[1], last[3]};
        first[1] = last[3] = 0x7E;
        struct pl_err err = {0};
        assert_int_equal(pl_file_check_scales(f, round % 2 ? pool : NULL, &err), PL_FORMAT);
        if (strstr(err.text, want) == NULL) fail_msg("'%s' does not say '%s'", err.text, want);
        assert_non_null(strstr(err.text, "memory"));
        last[3] = old[1];
        first[1] = old[0];
    }
    pl_file_close(f);
    pl_buf_deinit(&b);
    pl_pool_destroy(pool);
}

/* --- files --- */
static void only_regular_files_are_opened(void **state) {
    (void)state;
    struct temp t;
    temp_make(&t);
    temp_write(&t, "empty.gguf", "", 0);
    expect_path_refused(temp_path(&t, "empty.gguf"), PL_FORMAT, "empty.gguf", "is empty");
    expect_path_refused(temp_path(&t, "absent.gguf"), PL_NOT_FOUND, "absent.gguf", "No such file");
    expect_path_refused("/dev/zero", PL_INVALID, "/dev/zero", "character device");
    expect_path_refused(t.dir, PL_NOT_FOUND, "without config.json", "model.safetensors.index.json");
    assert_int_equal(mkfifo(temp_path(&t, "fifo.gguf"), 0600), 0);
    expect_path_refused(temp_path(&t, "fifo.gguf"), PL_INVALID, "fifo.gguf", "FIFO"); /* must not hang */
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s/s.gguf", t.dir);
    assert_int_equal(bind(s, (struct sockaddr *)&a, sizeof a), 0);
    expect_path_refused(a.sun_path, PL_IO, "s.gguf", "cannot open");
    close(s);
    temp_text(&t, "notes.txt", "hello, this is no model");
    expect_path_refused(temp_path(&t, "notes.txt"), PL_FORMAT, "68 65 6c 6c", "not a GGUF file");
    temp_text(&t, "secret.gguf", "GGUF");
    assert_int_equal(chmod(temp_path(&t, "secret.gguf"), 0), 0);
    if (geteuid() != 0) expect_path_refused(temp_path(&t, "secret.gguf"), PL_IO, "secret.gguf", "Permission denied");
    temp_drop(&t);
}

static void names_are_made_fit_for_messages(void **state) {
    (void)state;
    static const struct {
        const char *name, *shown;
    } cases[] = {
        {"", ""},
        {"blk.0.attn_q.weight", "blk.0.attn_q.weight"},
        {"a\tb\x1B[31m\x7F", "a?b?[31m?"},
        {"\xC3\xA9\xF0\x9F\x98\x80", "\xC3\xA9\xF0\x9F\x98\x80"},
        {"x\xC2\x9Bz", "x?z"}, /* a C1 control character */
        {"\xFF\xC0\x80", "???"},
        {"cut \xE2\x82", "cut ??"},
    };
    for (size_t i = 0; i < PL_COUNT_OF(cases); i++) assert_string_equal(PL_SHOWN_C(cases[i].name), cases[i].shown);
    char text[400];
    for (size_t len = 90; len < 399; len++) { /* two-byte characters: the cut falls between them at every length */
        for (size_t i = 0; i + 1 < len; i += 2) memcpy(text + i, "\xC3\xA9", 2);
        text[len / 2 * 2] = '\0';
        struct pl_shown_text shown = pl_shown(pl_str_from(text));
        size_t n = strlen(shown.s);
        assert_true(n < sizeof shown.s && pl_utf8_valid(shown.s, n));
        assert_int_equal(strcmp(shown.s, text) == 0, strstr(shown.s, "...") == NULL);
    }
    static const struct {
        uint64_t v;
        const char *s;
    } numbers[] = {
        {0, "0"}, {999, "999"}, {1000, "1,000"}, {91750400, "91,750,400"}, {UINT64_MAX, "18,446,744,073,709,551,615"}};
    for (size_t i = 0; i < PL_COUNT_OF(numbers); i++) assert_string_equal(pl_num(numbers[i].v).s, numbers[i].s);
    for (size_t len = 180; len < 220; len++) { /* labels of long paths keep the end */
        memset(text, 'p', sizeof text);
        memcpy(text + len - 5, "/f.gg", 6);
        struct pl_part part;
        assert_int_equal(pl_part_borrow(text, "x", 1, &part, NULL), PL_OK);
        assert_true(strlen(part.label) < sizeof part.label);
        assert_true(pl_str_ends(pl_str_from(part.label), "p/f.gg"));
        assert_int_equal(strncmp(part.label, "...", 3) == 0, len > sizeof part.label - 4);
        pl_part_unmap(&part);
    }
    expect_path_refused("", PL_INVALID, "path of the model is empty", "expected");
}

static void a_file_bigger_than_memory_opens(void **state) {
    (void)state;
    enum { ROWS = 1 << 20 };
    struct craft c = craft_new();
    const uint64_t e[2] = {1 << 16, ROWS}; /* 64 Gi elements of q8_0: 68 GiB, all holes */
    craft_entry(&c, "w", 2, e, 8, 0);
    struct pl_buf b = built(&c);
    struct temp t;
    temp_make(&t);
    size_t head = b.len;
    temp_buf(&t, "big.gguf", &b);
    uint64_t size = head + (uint64_t)ROWS * (1 << 16) / 32 * 34;
    if (truncate(temp_path(&t, "big.gguf"), (off_t)size) != 0) {
        temp_drop(&t);
        SKIP("a file system without sparse files of this size");
    }
    struct pl_file *f;
    struct pl_err err = {0};
    if (pl_file_open(temp_path(&t, "big.gguf"), &f, &err) != PL_OK) fail_msg("%s", err.text);
    assert_true(pl_file_bytes(f) == size);
    float *row = malloc((1 << 16) * sizeof *row);
    row[(1 << 16) - 1] = 1;
    assert_int_equal(pl_dequant_row(pl_file_tensor(f, "w"), ROWS - 1, row), PL_OK);
    assert_true(row[(1 << 16) - 1] == 0.0f);
    free(row);
    pl_file_close(f);
    assert_int_equal(truncate(temp_path(&t, "big.gguf"), (off_t)size - 1), 0);
    expect_path_refused(t.path, PL_FORMAT, "tensor w ends at byte 73,014,444,", "plumb pull");
    temp_drop(&t);
}

static void a_large_vocabulary_costs_few_allocations(void **state) {
    (void)state;
    enum { TOKENS = 262144 };
    struct craft c = craft_new();
    craft_array(&c, "tokenizer.ggml.tokens", PL_GGUF_STRING, TOKENS, NULL, 0);
    for (int i = 0; i < TOKENS; i++) {
        char token[16];
        snprintf(token, sizeof token, "t%d", i);
        put_string(&c.values, token);
    }
    struct pl_buf b = built(&c);
    uint64_t before = pl_mem_calls();
    struct pl_file *f;
    clock_t start = clock(); /* of this process, not of the wall: others take their share */
    assert_int_equal(pl_gguf_open_memory(b.data, b.len, &f, NULL), PL_OK);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    assert_true(pl_mem_calls() - before < 20);
    assert_true(seconds < 1.0); /* a few milliseconds; the bound only catches quadratic time, also under sanitizers */
    assert_true(pl_str_eq_c(pl_gguf_find(f, "tokenizer.ggml.tokens")->strings[TOKENS - 1], "t262143"));
    pl_file_close(f);
    pl_buf_deinit(&b);
}

/* --- parts --- */
struct part_spec {
    uint16_t no, count;
    int32_t total;
    const char *arch, *tensor;
};
static void write_part(struct temp *t, const char *name, struct part_spec s) {
    struct craft c = craft_new();
    struct pl_buf b = {0};
    if (s.arch != NULL) craft_string(&c, "general.architecture", s.arch);
    if (s.count != 0) {
        craft_u16(&c, "split.no", s.no);
        craft_u16(&c, "split.count", s.count);
        craft_i32(&c, "split.tensors.count", s.total);
    }
    craft_tensor(&c, s.tensor, 32, 1, PL_Q8_0);
    craft_bytes(&c, &b);
    temp_buf(t, name, &b);
}
static void write_three(struct temp *t) {
    write_part(t, "m-00001-of-00003.gguf", (struct part_spec){0, 3, 3, "llama", "a"});
    write_part(t, "m-00002-of-00003.gguf", (struct part_spec){1, 3, 3, NULL, "b"});
    write_part(t, "m-00003-of-00003.gguf", (struct part_spec){2, 3, 3, NULL, "c"});
}

static void parts_open_by_any_name(void **state) {
    (void)state;
    struct temp t;
    temp_make(&t);
    write_three(&t);
    char print[33] = "";
    for (int i = 1; i <= 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "m-%05d-of-00003.gguf", i);
        struct pl_file *f;
        struct pl_err err = {0};
        if (pl_file_open(temp_path(&t, name), &f, &err) != PL_OK) fail_msg("%s", err.text);
        assert_int_equal(pl_file_tensor_count(f), 3);
        assert_string_equal(pl_file_tensor_at(f, 1)->name, "b");
        struct pl_str arch;
        assert_int_equal(pl_gguf_str(f, "general.architecture", &arch, NULL), PL_OK);
        if (i == 1) memcpy(print, pl_file_fingerprint(f), 33);
        assert_string_equal(print, pl_file_fingerprint(f));
        pl_file_will_need(f);
        pl_file_close(f);
    }
    temp_drop(&t);
}

static void parts_that_do_not_fit_are_refused(void **state) {
    (void)state;
    struct temp t;
    temp_make(&t);
    write_three(&t);
    unlink(temp_path(&t, "m-00002-of-00003.gguf"));
    expect_path_refused(temp_path(&t, "m-00001-of-00003.gguf"), PL_NOT_FOUND, "m-00002-of-00003.gguf", "part 2 of 3");
    write_part(&t, "m-00002-of-00003.gguf", (struct part_spec){1, 3, 3, "gemma3", "b"});
    expect_path_refused(temp_path(&t, "m-00001-of-00003.gguf"), PL_FORMAT, "general.architecture differs", "one model");
    write_part(&t, "m-00002-of-00003.gguf", (struct part_spec){1, 3, 3, NULL, "a"});
    expect_path_refused(temp_path(&t, "m-00003-of-00003.gguf"), PL_FORMAT, "tensor name a appears twice",
                        "m-00001-of-00003.gguf");
    write_part(&t, "m-00002-of-00003.gguf", (struct part_spec){2, 3, 3, NULL, "b"});
    expect_path_refused(temp_path(&t, "m-00001-of-00003.gguf"), PL_FORMAT, "split.no is 2", "expected 1 and 3");
    write_part(&t, "m-00002-of-00003.gguf", (struct part_spec){0, 0, 0, NULL, "b"});
    expect_path_refused(temp_path(&t, "m-00001-of-00003.gguf"), PL_FORMAT, "split.no is absent", "mixed parts");
    write_part(&t, "m-00002-of-00003.gguf", (struct part_spec){1, 4, 3, NULL, "b"});
    expect_path_refused(temp_path(&t, "m-00001-of-00003.gguf"), PL_FORMAT, "split.count", "m-00002");
    write_part(&t, "m-00002-of-00003.gguf", (struct part_spec){1, 3, 4, NULL, "b"});
    expect_path_refused(temp_path(&t, "m-00001-of-00003.gguf"), PL_FORMAT, "split.tensors.count differs", "m-00002");
    write_part(&t, "n-00001-of-00002.gguf", (struct part_spec){0, 2, 5, "llama", "a"});
    write_part(&t, "n-00002-of-00002.gguf", (struct part_spec){1, 2, 5, NULL, "b"});
    expect_path_refused(temp_path(&t, "n-00001-of-00002.gguf"), PL_FORMAT, "split.tensors.count is 5", "hold 2 tensors");
    write_part(&t, "renamed.gguf", (struct part_spec){1, 2, 5, NULL, "b"});
    expect_path_refused(temp_path(&t, "renamed.gguf"), PL_FORMAT, "part 2 of 2", "-00002-of-00002.gguf");
    expect_path_refused(temp_path(&t, "m-00000-of-00003.gguf"), PL_INVALID, "part 0 of 3", "expected 1 to 3");
    expect_path_refused(temp_path(&t, "m-00004-of-00003.gguf"), PL_INVALID, "part 4 of 3", "expected 1 to 3");
    expect_path_refused(temp_path(&t, "m-00001-of-00000.gguf"), PL_INVALID, "part 1 of 0", "expected");
    temp_drop(&t);
}

static void every_failure_is_survived(void **state) {
    (void)state;
    struct temp t;
    struct pl_buf b = {0};
    temp_make(&t);
    valid_bytes(&b);
    temp_buf(&t, "valid.gguf", &b);
    fail_everything(temp_path(&t, "valid.gguf"));
    write_three(&t);
    fail_everything(temp_path(&t, "m-00002-of-00003.gguf"));
    temp_drop(&t);
}

/* --- forgetting --- */

static long resident_kib(void) {
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    char line[256];
    long kib = -1;
    while (fgets(line, sizeof line, f) != NULL) sscanf(line, "RssFile: %ld kB", &kib);
    fclose(f);
    return kib;
}

static uint64_t sum_of(const struct pl_tensor *t) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < t->bytes; i++) sum = sum * 31 + ((const uint8_t *)t->data)[i];
    return sum;
}

/* Its pages leave, the neighbours' do not, and what is read afterwards is what was there. */
static void forgotten_tensors_come_back(void **state) {
    (void)state;
    struct craft c = craft_new();
    craft_string(&c, "general.architecture", "llama");
    craft_tensor(&c, "small", 33, 3, PL_F32);
    craft_tensor(&c, "large", 4096, 512, PL_F32);
    craft_tensor(&c, "other", 4096, 512, PL_F32);
    struct pl_buf bytes = {0};
    craft_bytes(&c, &bytes);
    struct pl_file *in_memory = NULL, *f = NULL;
    struct pl_err err = {0};
    assert_int_equal(pl_gguf_open_memory(pl_buf_cstr(&bytes), bytes.len, &in_memory, &err), PL_OK);
    const struct pl_tensor *t = pl_file_tensor(in_memory, "large");
    uint64_t before = sum_of(t);
    pl_file_forget(in_memory, t); /* memory of our own: it must not be touched */
    assert_true(sum_of(t) == before);
    pl_file_close(in_memory);
    struct temp temp;
    temp_make(&temp);
    temp_buf(&temp, "m.gguf", &bytes);
    assert_int_equal(pl_file_open(temp_path(&temp, "m.gguf"), &f, &err), PL_OK);
    uint64_t small = sum_of(pl_file_tensor(f, "small")), other = sum_of(pl_file_tensor(f, "other"));
    t = pl_file_tensor(f, "large");
    assert_true(sum_of(t) == before);
    long full = resident_kib();
    pl_file_forget(f, t);
    long less = resident_kib();
    if (full >= 0 && !(full - less > 7000 && full - less < 8300)) fail_msg("%ld KiB before, %ld after", full, less);
    pl_file_forget(f, pl_file_tensor(f, "small"));
    assert_true(sum_of(t) == before);
    assert_true(sum_of(pl_file_tensor(f, "small")) == small && sum_of(pl_file_tensor(f, "other")) == other);
    pl_file_close(f);
    temp_drop(&temp);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_valid_file_reads_back),
        cmocka_unit_test(the_fingerprint_sees_metadata_and_table),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(a_file_with_any_byte_changed_never_breaks),
        cmocka_unit_test(hostile_headers_are_refused),
        cmocka_unit_test(hostile_metadata_is_refused),
        cmocka_unit_test(hostile_alignments_are_refused),
        cmocka_unit_test(hostile_shapes_are_refused),
        cmocka_unit_test(types_without_a_reader_are_shown_and_refused_for_a_run),
        cmocka_unit_test(hostile_types_are_refused),
        cmocka_unit_test(hostile_spans_are_refused),
        cmocka_unit_test(bad_scales_are_refused_on_request),
        cmocka_unit_test(only_regular_files_are_opened),
        cmocka_unit_test(names_are_made_fit_for_messages),
        cmocka_unit_test(a_file_bigger_than_memory_opens),
        cmocka_unit_test(a_large_vocabulary_costs_few_allocations),
        cmocka_unit_test(parts_open_by_any_name),
        cmocka_unit_test(parts_that_do_not_fit_are_refused),
        cmocka_unit_test(every_failure_is_survived),
        cmocka_unit_test(forgotten_tensors_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
