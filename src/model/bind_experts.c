/* Binding of experts: one tensor of all (GGUF; MLX's switch_mlp), one of each, or gpt-oss's ways of keeping them. */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "model/binder.h"
#include "tensor/quant.h"

/* Expert i of a stacked tensor. */
static struct pl_tensor expert_of(const struct pl_tensor *t, uint64_t i) {
    struct pl_tensor e = pl_expert_of(t, i);
    if (t->dtype != PL_MLX) return e;
    uint64_t scales = t->shape[1] * (t->shape[2] / t->group) * pl_dtype_info(t->scale_dtype)->block_bytes;
    e.scales = (const char *)t->scales + i * scales;
    e.biases = (const char *)t->biases + i * scales;
    return e;
}

/* The file would hold so many experts of [rows, cols]; both said in words too. */
static enum pl_status wrong_shape(const struct binder *d, const struct pl_tensor *t, uint64_t rows, const char *rows_text,
                                  uint64_t cols, const char *cols_text) {
    char found[96];
    pl_bind_shape_text(t, found, sizeof found);
    PL_FAIL(d->err, PL_FORMAT, "tensor %s has shape [%s]; the configuration expects [%u, %llu, %llu] (experts, %s, %s)",
            t->name, found, d->m->cfg.experts, (unsigned long long)rows, (unsigned long long)cols, rows_text, cols_text);
}

/* many: the rows of gate and up stand together. */
static const char *rows_text(const struct pl_binding *b, bool many) {
    return many ? "gate and up" : pl_bind_dim_text(b->rows);
}

static enum pl_status cut_stack(struct binder *d, const struct pl_binding *b, const struct pl_tensor *t,
                                struct pl_tensor *out) {
    const struct pl_model_config *c = &d->m->cfg;
    if (t->ndim != 3 || t->shape[0] != c->experts || t->shape[1] != pl_bind_dim(c, b->rows) ||
        t->shape[2] != pl_bind_dim(c, b->cols))
        return wrong_shape(d, t, pl_bind_dim(c, b->rows), rows_text(b, false), pl_bind_dim(c, b->cols),
                           pl_bind_dim_text(b->cols));
    for (uint32_t i = 0; i < c->experts; i++) out[i] = expert_of(t, i);
    return PL_OK;
}

/* Of a stack whose experts hold gate and up, one after the other. */
static enum pl_status cut_fused_stack(struct binder *d, const struct pl_binding *b, const struct pl_tensor *t,
                                      struct pl_tensor *out) {
    const struct pl_model_config *c = &d->m->cfg;
    const struct span s = pl_bind_span(c, b, true);
    if (t->ndim != 3 || t->shape[0] != c->experts || t->shape[1] != s.total || t->shape[2] != pl_bind_dim(c, b->cols) ||
        t->dtype == PL_MLX)
        return wrong_shape(d, t, s.total, rows_text(b, s.total > s.n), pl_bind_dim(c, b->cols), pl_bind_dim_text(b->cols));
    for (uint32_t i = 0; i < c->experts; i++) {
        out[i] = expert_of(t, i);
        uint64_t row = out[i].bytes / s.total;
        out[i].data = (const char *)out[i].data + s.first * row;
        out[i].bytes = s.n * row;
        out[i].shape[0] = s.n;
    }
    return PL_OK;
}

static enum pl_status find_each(struct binder *d, const struct pl_binding *b, uint32_t layer, struct pl_tensor *out) {
    const char *place = strstr(b->hf, "%u");
    const struct pl_model_config *c = &d->m->cfg;
    for (uint32_t i = 0; i < c->experts; i++) {
        char tail[96];
        snprintf(tail, sizeof tail, "%.*s%u%s", (int)(place - b->hf), b->hf, i, place + 2);
        struct pl_binding one = *b;
        one.hf = tail;
        one.hf_fused = NULL;
        const struct pl_tensor *t = NULL;
        bool fused;
        PL_TRY(pl_bind_find(d, &one, layer, &fused, &t));
        const struct span s = pl_bind_span(c, b, false);
        PL_TRY(pl_bind_check_shape(d, &one, &s, t));
        if (i > 0 && t->dtype != out[0].dtype)
            PL_FAIL(d->err, PL_UNSUPPORTED,
                    "tensor %s is of type %s, the first expert's of %s: experts of one type are implemented", t->name,
                    pl_dtype_name(t->dtype), pl_dtype_name(out[0].dtype));
        out[i] = *t;
    }
    return PL_OK;
}

/* --- gpt-oss. Published: MXFP4 as [experts, rows, columns / 32, 16] bytes, two neighbours a byte, and as many exponents;
 * widened: [experts, columns, rows]. Both have gate and up row by row in turn. MLX: stacks of rows, apart. --- */

/* Of all experts, one after the other: rows first, first + step, ... of those that the tensor has. */
static void describe(const char *name, enum pl_dtype type, const void *data, uint64_t rows, uint64_t cols, uint32_t experts,
                     struct pl_tensor *out) {
    uint64_t row = 0;
    (void)pl_dtype_row_bytes(type, cols, &row); /* it was made of such rows */
    for (uint32_t i = 0; i < experts; i++)
        out[i] = (struct pl_tensor){.name = name,
                                    .dtype = type,
                                    .ndim = 2,
                                    .shape = {rows, cols, 1, 1},
                                    .data = (const char *)data + i * rows * row,
                                    .bytes = rows * row};
}

static enum pl_status find_part(struct binder *d, const struct pl_binding *b, uint32_t layer, const char *suffix,
                                const struct pl_tensor **out) {
    char tail[96];
    struct pl_binding part = *b;
    bool fused;
    snprintf(tail, sizeof tail, "%s%s", b->hf, suffix);
    part.hf = tail;
    return pl_bind_find(d, &part, layer, &fused, out);
}

static uint64_t step_of(const struct pl_binding *b) { return b->part == PL_PART_WHOLE ? 1 : 2; }
static uint64_t first_of(const struct pl_binding *b) { return b->part == PL_PART_UP ? 1 : 0; }

static enum pl_status wrong_blocks(const struct binder *d, const struct pl_tensor *blocks, const struct pl_tensor *scales,
                                   uint64_t rows, uint64_t cols) {
    unsigned long long x = d->m->cfg.experts, r = rows, units = cols / 32;
    char found[2][96];
    pl_bind_shape_text(blocks, found[0], sizeof found[0]);
    pl_bind_shape_text(scales, found[1], sizeof found[1]);
    PL_FAIL(d->err, PL_FORMAT,
            "tensor %s has shape [%s] of %s and its scales [%s] of %s; the configuration expects [%llu, %llu, %llu, 16] and "
            "[%llu, %llu, %llu] of u8, for rows of %llu in whole blocks of 32",
            blocks->name, found[0], pl_dtype_name(blocks->dtype), found[1], pl_dtype_name(scales->dtype), x, r, units, x, r,
            units, (unsigned long long)cols);
}

static enum pl_status find_blocks(struct binder *d, const struct pl_binding *b, uint32_t layer, struct pl_tensor *out) {
    const struct pl_model_config *c = &d->m->cfg;
    const struct pl_tensor *blocks = NULL, *scales = NULL;
    uint64_t step = step_of(b), rows = pl_bind_dim(c, b->rows), cols = pl_bind_dim(c, b->cols);
    const void *data = NULL;
    PL_TRY(find_part(d, b, layer, "_blocks", &blocks));
    PL_TRY(find_part(d, b, layer, "_scales", &scales));
    bool fits = cols % 32 == 0 && blocks->dtype == PL_U8 && scales->dtype == PL_U8 && blocks->ndim == 4 &&
                scales->ndim == 3 && blocks->shape[3] == 16;
    for (uint32_t i = 0; i < 3 && fits; i++) {
        const uint64_t want[] = {c->experts, step * rows, cols / 32};
        fits = blocks->shape[i] == want[i] && scales->shape[i] == want[i];
    }
    if (!fits) return wrong_blocks(d, blocks, scales, step * rows, cols);
    PL_TRY(pl_bind_mxfp4(d, blocks->name, blocks->data, scales->data, first_of(b), step, c->experts * rows, cols, &data));
    describe(blocks->name, PL_MXFP4, data, rows, cols, c->experts, out);
    return PL_OK;
}

/* What the threads share: a unit is so many rows of an expert, whose neighbours are neighbours in the source too. */
struct turning {
    const char *from;
    char *to;
    uint64_t rows, cols, first, step, per_expert;
};
enum { TURN_ROWS = 32 };

static void turn_some(void *arg, size_t unit) {
    const struct turning *j = arg;
    uint64_t e = unit / j->per_expert, begin = unit % j->per_expert * TURN_ROWS, end = PL_MIN(j->rows, begin + TURN_ROWS);
    const char *from = j->from + e * j->cols * j->step * j->rows * 2;
    char *to = j->to + e * j->rows * j->cols * 2;
    for (uint64_t i = 0; i < j->cols; i++)
        for (uint64_t r = begin; r < end; r++)
            memcpy(to + (r * j->cols + i) * 2, from + (i * j->step * j->rows + j->first + j->step * r) * 2, 2);
}

/* Experts that somebody widened, turned into rows. */
static enum pl_status find_plain(struct binder *d, const struct pl_binding *b, const struct pl_tensor *t,
                                 struct pl_tensor *out) {
    const struct pl_model_config *c = &d->m->cfg;
    uint64_t step = step_of(b), first = first_of(b), rows = pl_bind_dim(c, b->rows), cols = pl_bind_dim(c, b->cols), all;
    if (t->dtype != PL_BF16 && t->dtype != PL_F16)
        PL_FAIL(d->err, PL_UNSUPPORTED,
                "tensor %s holds experts as %s: MXFP4 (%s_blocks and _scales), bf16 and f16 are read", t->name,
                pl_dtype_name(t->dtype), b->hf);
    if (t->ndim != 3 || t->shape[0] != c->experts || t->shape[1] != cols || t->shape[2] != step * rows)
        return wrong_shape(d, t, cols, pl_bind_dim_text(b->cols), step * rows, rows_text(b, step > 1));
    if (!pl_mul_u64(c->experts * rows, cols * 2, &all))
        PL_FAIL(d->err, PL_LIMIT, "tensor %s is larger than any memory", t->name);
    struct turning j = {t->data, pl_alloc(all, 1), rows, cols, first, step, (rows + TURN_ROWS - 1) / TURN_ROWS};
    PL_TRY(pl_bind_remember(d, j.to));
    pl_bind_share(d->m, (size_t)(c->experts * j.per_expert), turn_some, &j);
    d->m->bytes_owned += all;
    describe(t->name, t->dtype, j.to, rows, cols, c->experts, out);
    return PL_OK;
}

/* The tensor of that binding if the file has it, else NULL. */
static enum pl_status find_if(struct binder *d, const struct pl_binding *b, uint32_t layer, bool *fused,
                              const struct pl_tensor **out) {
    struct pl_err *err = d->err, found = {0};
    d->err = &found;
    enum pl_status st = pl_bind_find(d, b, layer, fused, out);
    d->err = err;
    if (st == PL_OK || st == PL_FORMAT) return PL_OK; /* PL_FORMAT: it is missing */
    if (err != NULL) *err = found;
    return st;
}

static enum pl_status find_gpt_oss(struct binder *d, const struct pl_binding *b, uint32_t layer, struct pl_tensor *out) {
    const struct pl_tensor *t = NULL;
    bool fused = false;
    PL_TRY(find_if(d, b, layer, &fused, &t));
    if (t == NULL) return find_blocks(d, b, layer, out);
    return fused ? cut_stack(d, b, t, out) : find_plain(d, b, t, out);
}

static enum pl_status find_all(struct binder *d, const struct pl_binding *b, uint32_t layer, struct pl_tensor *out) {
    const struct pl_tensor *t = NULL;
    bool fused;
    if (pl_file_kind(d->f) == PL_FILE_GGUF) {
        PL_TRY(pl_bind_find(d, b, layer, &fused, &t));
        return fused ? cut_fused_stack(d, b, t, out) : cut_stack(d, b, t, out);
    }
    if (d->m->def->mxfp4) return find_gpt_oss(d, b, layer, out);
    if (strstr(b->hf, "%u") == NULL) {
        PL_TRY(pl_bind_find(d, b, layer, &fused, &t));
        return fused ? cut_fused_stack(d, b, t, out) : cut_stack(d, b, t, out);
    }
    struct pl_binding stacked = *b;
    stacked.hf = NULL;
    PL_TRY(find_if(d, &stacked, layer, &fused, &t));
    return t != NULL ? cut_stack(d, b, t, out) : find_each(d, b, layer, out);
}

enum pl_status pl_bind_experts(struct binder *d, const struct pl_binding *b, uint32_t layer) {
    uint32_t n = d->m->cfg.experts;
    struct pl_tensor *list = pl_alloc(n, sizeof *list);
    if (list == NULL) PL_FAIL(d->err, PL_NO_MEMORY, "no memory for %u experts", n);
    enum pl_status st = find_all(d, b, layer, list);
    struct pl_weight *w = NULL;
    if (st == PL_OK) st = pl_ops_experts_create(d->m->ops, list, n, &w, d->err);
    if (st == PL_OK) pl_bind_keep(d, b, layer, w, list, n);
    pl_free(list);
    return st;
}

/* --- biases --- */

enum pl_status pl_bind_experts_bias(struct binder *d, const struct pl_binding *b, uint32_t layer) {
    const struct pl_model_config *c = &d->m->cfg;
    const struct pl_tensor *t = NULL;
    bool fused;
    PL_TRY(pl_bind_find(d, b, layer, &fused, &t));
    bool halves = pl_file_kind(d->f) == PL_FILE_HF && b->part != PL_PART_WHOLE && !fused;
    uint64_t n = pl_bind_dim(c, b->cols), each = n / c->experts, found = halves ? 2 * each : each;
    if (t->ndim != 2 || t->shape[0] != c->experts || t->shape[1] != found) {
        char text[96];
        pl_bind_shape_text(t, text, sizeof text);
        PL_FAIL(d->err, PL_FORMAT, "tensor %s has shape [%s]; the configuration expects [%u, %llu]", t->name, text,
                c->experts, (unsigned long long)found);
    }
    float *v = pl_alloc(n + found, sizeof *v), *row = v != NULL ? v + n : NULL;
    if (v == NULL) PL_FAIL(d->err, PL_NO_MEMORY, "no memory for %s", t->name);
    enum pl_status st = PL_OK;
    for (uint64_t e = 0; e < c->experts && st == PL_OK; e++) {
        st = pl_dequant_row(t, e, row);
        for (uint64_t i = 0; i < each; i++) v[e * each + i] = halves ? row[2 * i + (b->part == PL_PART_UP)] : row[i];
    }
    if (st != PL_OK) st = pl_err_set(d->err, __FILE__, __LINE__, st, "tensor %s is no vector of weights", t->name);
    struct pl_tensor flat = {
        .name = t->name, .dtype = PL_F32, .ndim = 1, .shape = {n, 1, 1, 1}, .data = v, .bytes = n * sizeof *v};
    struct pl_weight *w = NULL;
    if (st == PL_OK) st = pl_ops_weight_create(d->m->ops, &flat, PL_WEIGHT_VECTOR, &w, d->err);
    if (st == PL_OK) pl_bind_keep(d, b, layer, w, t, 1);
    pl_free(v);
    return st;
}
