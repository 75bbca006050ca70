/* A tiny checkpoint opened on the CPU backend, with pages handed out in a scrambled order. */
#ifndef TESTS_MODEL_GOLDEN_H
#define TESTS_MODEL_GOLDEN_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/model.h"

enum { GOLD_PAGE = 4, GOLD_PAGES = 64, GOLD_TOKENS_MAX = 64, GOLD_VOCAB_MAX = 128, GOLD_STATES = 3 };

struct gold {
    uint32_t tokens, vocab;
    uint32_t ids[GOLD_TOKENS_MAX];
    float logits[GOLD_TOKENS_MAX][GOLD_VOCAB_MAX];
};

struct rig {
    struct pl_file *file;
    struct pl_ops *ops;
    struct pl_model *model;
    struct pl_kv_store *kv;
    uint32_t pages[GOLD_PAGES]; /* a permutation */
};

static inline bool gold_read(const char *name, struct gold *g) {
    char path[256], magic[8];
    snprintf(path, sizeof path, "tests/golden/model/%s.bin", name);
    FILE *f = fopen(path, "rb");
    if (f == NULL) return false;
    bool ok = fread(magic, 1, 8, f) == 8 && memcmp(magic, "PLGOLD1", 8) == 0 && fread(&g->tokens, 4, 1, f) == 1 &&
              fread(&g->vocab, 4, 1, f) == 1 && g->tokens <= GOLD_TOKENS_MAX && g->vocab <= GOLD_VOCAB_MAX &&
              fread(g->ids, 4, g->tokens, f) == g->tokens;
    for (uint32_t t = 0; ok && t < g->tokens; t++) ok = fread(g->logits[t], 4, g->vocab, f) == g->vocab;
    fclose(f);
    return ok;
}

#define RIG_OK(call, err)                                           \
    do {                                                            \
        if ((call) != PL_OK) fail_msg("%s: %s", #call, (err).text); \
    } while (0)

static inline void rig_open_with(struct rig *r, const struct pl_ops_options *oo, const char *path, enum pl_dtype kv_dtype,
                                 uint32_t max_rows) {
    struct pl_err err = {0};
    *r = (struct rig){0};
    RIG_OK(pl_file_open(path, &r->file, &err), err);
    RIG_OK(pl_ops_create(oo, &r->ops, &err), err);
    struct pl_model_options mo = {.max_context = 128, .max_rows = max_rows, .max_logits = max_rows};
    RIG_OK(pl_model_create(r->file, r->ops, &mo, &r->model, &err), err);
    const struct pl_model_config *c = pl_model_config(r->model);
    struct pl_kv_shape shape = {
        .page_count = GOLD_PAGES, .page_tokens = GOLD_PAGE, .dtype = kv_dtype, .state_slots = GOLD_STATES};
    pl_model_cache_shape(c, &shape);
    RIG_OK(pl_ops_kv_create(r->ops, &shape, &r->kv, &err), err);
    for (uint32_t i = 0; i < GOLD_PAGES; i++) r->pages[i] = (i * 37 + 11) % GOLD_PAGES;
}

static inline void rig_open_on(struct rig *r, enum pl_backend backend, bool exact, const char *path, const char *isa,
                               enum pl_dtype kv_dtype, uint32_t max_rows) {
    struct pl_ops_options oo = {.backend = backend, .threads = 2, .isa = isa, .exact = exact};
    rig_open_with(r, &oo, path, kv_dtype, max_rows);
}

/* On the CPU, invariant: wide products (AMX) have bounds of their own in test_properties. */
static inline void rig_open(struct rig *r, const char *path, const char *isa, enum pl_dtype kv_dtype, uint32_t max_rows) {
    const struct pl_ops_options oo = {.backend = PL_BACKEND_CPU, .threads = 2, .isa = isa, .invariant = true};
    rig_open_with(r, &oo, path, kv_dtype, max_rows);
}

static inline void rig_close(struct rig *r) {
    if (r->kv != NULL) pl_ops_kv_destroy(r->ops, r->kv);
    pl_model_destroy(r->model);
    pl_ops_destroy(r->ops);
    pl_file_close(r->file);
}

/* ids[0..count) of one sequence in steps of chunk; logits of every position into out[count][vocab]. */
static inline void rig_run(struct rig *r, const uint32_t *ids, uint32_t count, uint32_t chunk, float *out) {
    uint32_t vocab = pl_model_config(r->model)->vocab, rows_wanted[GOLD_TOKENS_MAX];
    for (uint32_t i = 0; i < GOLD_TOKENS_MAX; i++) rows_wanted[i] = i;
    for (uint32_t done = 0; done < count;) {
        uint32_t rows = count - done < chunk ? count - done : chunk;
        struct pl_batch_seq seq = {.first_row = 0, .rows = rows, .past = done, .page_first = 0};
        struct pl_batch b = {.rows = rows,
                             .tokens = ids + done,
                             .seq_count = 1,
                             .seqs = &seq,
                             .pages = r->pages,
                             .page_entries = GOLD_PAGES,
                             .logit_count = rows,
                             .logit_rows = rows_wanted};
        const struct pl_activation *logits;
        assert_int_equal(pl_model_forward(r->model, &b, r->kv, &logits), PL_OK);
        assert_int_equal(pl_ops_activation_read(r->ops, logits, 0, rows, out + (size_t)done * vocab), PL_OK);
        done += rows;
    }
}

/* max |a - b| / max |b| over n values. NaN counts as infinite. */
static inline double gold_distance(const float *a, const float *b, size_t n) {
    double diff = 0, top = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (isnan(d)) return INFINITY;
        diff = fmax(diff, d);
        top = fmax(top, fabs((double)b[i]));
    }
    return diff / top;
}

/* |a - b| / |b| over n values, Euclidean. */
static inline double gold_rms_distance(const float *a, const float *b, size_t n) {
    double diff = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        all += (double)b[i] * (double)b[i];
    }
    return isnan(diff) ? INFINITY : sqrt(diff / all);
}

#endif
