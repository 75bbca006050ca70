/* file_walk - what every file fuzzer asks of a file that opened: the promises of src/file/README.md, checked. */
#ifndef PL_FUZZ_FILE_WALK_H
#define PL_FUZZ_FILE_WALK_H

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "file/file.h"
#include "tensor/quant.h"

static inline void pl_walk_tensor(const struct pl_file *f, const struct pl_tensor *t, const uint8_t *data, size_t len) {
    const uint8_t *begin = t->data;
    PL_ASSERT(t->ndim <= PL_MAX_DIMS && t->bytes > 0);
    PL_ASSERT(begin >= data && t->bytes <= len && (size_t)(begin - data) <= len - t->bytes);
    PL_ASSERT(pl_file_tensor(f, t->name) == t);
    uint64_t rows = pl_tensor_rows(t), cols = pl_tensor_cols(t);
    PL_ASSERT(rows > 0 && cols > 0);
    float *out = pl_alloc(cols, sizeof *out);
    if (out == NULL) return; /* cols is bounded by 16 times the input: ternary types */
    (void)!pl_dequant_row(t, 0, out);
    (void)!pl_dequant_row(t, rows - 1, out);
    pl_free(out);
}

static inline void pl_walk_values(const struct pl_file *f) {
    struct pl_err err = {0};
    for (size_t i = 0; i < pl_gguf_count(f); i++) {
        const struct pl_gguf_value *v = pl_gguf_at(f, i);
        char key[256];
        uint64_t u, sum = 0;
        double d;
        bool b;
        struct pl_str s;
        for (uint64_t k = 0; k < v->count; k++) {
            if (v->strings != NULL)
                sum += pl_hash64(v->strings[k].data, v->strings[k].len, 0);
            else
                sum += (uint64_t)pl_gguf_elem_i64(v, k) + (pl_gguf_elem_f64(v, k) > 0);
        }
        if (v->key.len >= sizeof key) continue;
        memcpy(key, v->key.data, v->key.len);
        key[v->key.len] = '\0';
        PL_ASSERT(pl_gguf_find(f, key) == v);
        (void)!pl_gguf_u64(f, key, &u, &err);
        (void)!pl_gguf_f64(f, key, &d, &err);
        (void)!pl_gguf_bool(f, key, &b, &err);
        (void)!pl_gguf_str(f, key, &s, &err);
        (void)sum;
    }
}

static inline void pl_walk_file(const struct pl_file *f, const uint8_t *data, size_t len) {
    struct pl_err err = {0};
    struct pl_str text;
    for (size_t i = 0; i < pl_file_tensor_count(f); i++) pl_walk_tensor(f, pl_file_tensor_at(f, i), data, len);
    pl_walk_values(f);
    if (pl_file_check_scales(f, NULL, &err) != PL_OK) PL_ASSERT(err.text[0] != '\0');
    (void)pl_file_chat_template(f, NULL, &text);
    PL_ASSERT(strlen(pl_file_fingerprint(f)) == 32);
}

#endif
