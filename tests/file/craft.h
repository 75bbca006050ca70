/* craft - small GGUF and safetensors files in memory, valid or broken, and temporary directories to put them in. */
#ifndef PL_TESTS_FILE_CRAFT_H
#define PL_TESTS_FILE_CRAFT_H

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/str.h"
#include "file/file.h"
#include "file/reader.h"
#include "fuzz/file_walk.h"

/* --- bytes --- */
static inline void put_u32(struct pl_buf *b, uint32_t v) { pl_buf_add(b, &v, 4); }
static inline void put_u64(struct pl_buf *b, uint64_t v) { pl_buf_add(b, &v, 8); }
static inline void put_bytes(struct pl_buf *b, const void *s, size_t n) {
    put_u64(b, n);
    pl_buf_add(b, s, n);
}
static inline void put_string(struct pl_buf *b, const char *s) { put_bytes(b, s, strlen(s)); }
static inline void put_zeros(struct pl_buf *b, size_t n) {
    for (size_t i = 0; i < n; i++) pl_buf_add_char(b, '\0');
}

/* --- GGUF: fill in, change what should be broken, then craft_bytes --- */
struct craft {
    const char *magic;
    uint32_t version, alignment;
    uint64_t value_count, tensor_count;
    struct pl_buf values, table, weights;
};

static inline struct craft craft_new(void) { return (struct craft){.magic = "GGUF", .version = 3, .alignment = 32}; }

static inline void craft_value(struct craft *c, const char *key, uint32_t type, const void *data, size_t n) {
    put_string(&c->values, key);
    put_u32(&c->values, type);
    pl_buf_add(&c->values, data, n);
    c->value_count++;
}
static inline void craft_u32(struct craft *c, const char *key, uint32_t v) { craft_value(c, key, PL_GGUF_U32, &v, 4); }
static inline void craft_u16(struct craft *c, const char *key, uint16_t v) { craft_value(c, key, PL_GGUF_U16, &v, 2); }
static inline void craft_i32(struct craft *c, const char *key, int32_t v) { craft_value(c, key, PL_GGUF_I32, &v, 4); }
static inline void craft_string(struct craft *c, const char *key, const char *s) {
    craft_value(c, key, PL_GGUF_STRING, NULL, 0);
    put_string(&c->values, s);
}
static inline void craft_array(struct craft *c, const char *key, uint32_t elem_type, uint64_t count, const void *data,
                               size_t n) {
    craft_value(c, key, PL_GGUF_ARRAY, NULL, 0);
    put_u32(&c->values, elem_type);
    put_u64(&c->values, count);
    pl_buf_add(&c->values, data, n);
}
static inline void craft_strings(struct craft *c, const char *key, const char *const *s, uint64_t count) {
    craft_array(c, key, PL_GGUF_STRING, count, NULL, 0);
    for (uint64_t i = 0; i < count; i++) put_string(&c->values, s[i]);
}
/* A table entry with everything given; extents fastest first. */
static inline void craft_entry(struct craft *c, const char *name, uint32_t ndim, const uint64_t *extents, uint32_t type,
                               uint64_t offset) {
    put_string(&c->table, name);
    put_u32(&c->table, ndim);
    for (uint32_t i = 0; i < ndim; i++) put_u64(&c->table, extents[i]);
    put_u32(&c->table, type);
    put_u64(&c->table, offset);
    c->tensor_count++;
}
/* An entry at the next free offset, with weights of n bytes. */
static inline void craft_tensor(struct craft *c, const char *name, uint64_t cols, uint64_t rows, enum pl_dtype dtype) {
    uint64_t bytes = 0, extents[2] = {cols, rows};
    if (!pl_dtype_row_bytes(dtype, cols, &bytes)) fail_msg("%s: bad shape in the test", name);
    craft_entry(c, name, 2, extents, (uint32_t)pl_dtype_info(dtype)->ggml_type, c->weights.len);
    for (uint64_t i = 0; i < bytes * rows; i++) pl_buf_add_char(&c->weights, (char)(i % 60)); /* scales stay finite */
    put_zeros(&c->weights, (0 - c->weights.len) % c->alignment);
}
/* The whole file appended to out; the craft is emptied. */
static inline void craft_bytes(struct craft *c, struct pl_buf *out) {
    size_t start = out->len;
    pl_buf_add(out, c->magic, 4);
    put_u32(out, c->version);
    put_u64(out, c->tensor_count);
    put_u64(out, c->value_count);
    pl_buf_add(out, pl_buf_cstr(&c->values), c->values.len);
    pl_buf_add(out, pl_buf_cstr(&c->table), c->table.len);
    if (c->alignment != 0) put_zeros(out, (0 - (out->len - start)) % c->alignment);
    pl_buf_add(out, pl_buf_cstr(&c->weights), c->weights.len);
    pl_buf_deinit(&c->values);
    pl_buf_deinit(&c->table);
    pl_buf_deinit(&c->weights);
    assert_true(pl_buf_ok(out));
}

/* --- safetensors: header text and n bytes of weights --- */
static inline void craft_safetensors(struct pl_buf *out, const char *header, size_t weight_bytes) {
    put_string(out, header);
    for (size_t i = 0; i < weight_bytes; i++) pl_buf_add_char(out, (char)(i % 60));
}

/* Opens a copy of exactly len bytes, so that the sanitizer sees one byte too many. The copy is returned in *copy. */
typedef enum pl_status (*open_fn)(const void *, size_t, struct pl_file **, struct pl_err *);
static inline enum pl_status open_copy(open_fn open_memory, const void *data, size_t len, uint8_t **copy, struct pl_file **f,
                                       struct pl_err *err) {
    *copy = malloc(len == 0 ? 1 : len);
    assert_non_null(*copy);
    if (len > 0) memcpy(*copy, data, len);
    *f = NULL;
    *err = (struct pl_err){0};
    return open_memory(*copy, len, f, err);
}

/* One byte changed: either the file opens and can be read through, or it is refused with a message. */
static inline void opens_or_is_refused(open_fn open_memory, struct pl_buf *b, size_t at, char changed, size_t *accepted,
                                       size_t *refused) {
    uint8_t *copy;
    struct pl_file *f;
    struct pl_err err;
    char old = b->data[at];
    b->data[at] = changed;
    if (open_copy(open_memory, b->data, b->len, &copy, &f, &err) == PL_OK) {
        pl_walk_file(f, copy, b->len);
        pl_file_close(f);
        ++*accepted;
    } else {
        assert_true(f == NULL && err.text[0] != '\0');
        ++*refused;
    }
    b->data[at] = old;
    free(copy);
}

/* The bytes must be refused with this status and a message that contains every one of the parts (NULL ends). */
static inline void expect_refused(open_fn open_memory, const char *what, struct pl_buf *bytes, enum pl_status status,
                                  const char *const *parts) {
    uint8_t *copy;
    struct pl_file *f;
    struct pl_err err;
    enum pl_status got = open_copy(open_memory, pl_buf_cstr(bytes), bytes->len, &copy, &f, &err);
    if (got != status || f != NULL)
        fail_msg("%s: %s (%s), expected %s", what, pl_status_name(got), err.text, pl_status_name(status));
    for (; *parts != NULL; parts++) {
        if (strstr(err.text, *parts) == NULL) fail_msg("%s: '%s' does not say '%s'", what, err.text, *parts);
    }
    free(copy);
    pl_buf_deinit(bytes);
}

/* --- temporary directories --- */
struct temp {
    char dir[64], path[512];
};
static inline void temp_make(struct temp *t) {
    snprintf(t->dir, sizeof t->dir, "/tmp/plumb-test-XXXXXX");
    assert_non_null(mkdtemp(t->dir));
}
static inline const char *temp_path(struct temp *t, const char *name) {
    snprintf(t->path, sizeof t->path, "%s/%s", t->dir, name);
    return t->path;
}
static inline void temp_write(struct temp *t, const char *name, const void *data, size_t len) {
    FILE *f = fopen(temp_path(t, name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}
static inline void temp_text(struct temp *t, const char *name, const char *text) { temp_write(t, name, text, strlen(text)); }
static inline void temp_buf(struct temp *t, const char *name, struct pl_buf *b) {
    temp_write(t, name, pl_buf_cstr(b), b->len);
    pl_buf_deinit(b);
}
static inline int temp_remove(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}
static inline void temp_drop(struct temp *t) { nftw(t->dir, temp_remove, 8, FTW_DEPTH | FTW_PHYS); }

/* The path must be refused with this status and a message that contains each of the two parts. */
static inline void expect_path_refused(const char *path, enum pl_status status, const char *part1, const char *part2) {
    struct pl_file *f = NULL;
    struct pl_err err = {0};
    enum pl_status got = pl_file_open(path, &f, &err);
    if (got == PL_OK && (got = pl_file_check_readable(f, &err)) != PL_OK) { /* opened to be shown, refused for a run */
        pl_file_close(f);
        f = NULL;
    }
    if (got != status || f != NULL)
        fail_msg("%s: %s (%s), expected %s", path, pl_status_name(got), err.text, pl_status_name(status));
    if (strstr(err.text, part1) == NULL) fail_msg("%s: '%s' does not say '%s'", path, err.text, part1);
    if (strstr(err.text, part2) == NULL) fail_msg("%s: '%s' does not say '%s'", path, err.text, part2);
}

/* Makes every allocation, then every system call of opening path fail in turn. Both must end in an error or, for
 * allocations whose failure is survivable, in a working file; never in a crash or a leak. */
static inline void fail_everything(const char *path) {
    for (int kind = 0; kind < 2; kind++) {
        void (*fail_at)(uint64_t) = kind == 0 ? pl_mem_fail_at : pl_io_fail_at;
        for (uint64_t n = 1;; n++) {
            struct pl_file *f = NULL;
            struct pl_err err = {0};
            uint64_t before = kind == 0 ? pl_mem_calls() : pl_io_calls();
            fail_at(n);
            enum pl_status status = pl_file_open(path, &f, &err);
            uint64_t used = (kind == 0 ? pl_mem_calls() : pl_io_calls()) - before;
            fail_at(0);
            if (status == PL_OK) pl_file_close(f);
            if (used < n) {
                assert_int_equal(status, PL_OK);
                assert_true(n > 3); /* something was really made to fail */
                break;
            }
            if (status != (kind == 0 ? PL_NO_MEMORY : PL_IO)) {
                fail_msg("failure %d/%llu: %s (%s)", kind, (unsigned long long)n, pl_status_name(status), err.text);
            }
            assert_null(f);
            assert_true(err.text[0] != '\0');
        }
    }
}

#endif
