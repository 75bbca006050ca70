#include "tune/linear_bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/philox.h"
#include "tensor/convert.h"
#include "tensor/quant.h"

enum { MATRICES_MAX = 64, REPEATS_MAX = 9, SPAN = 8192, PAGE = 32 };

struct pl_linear_bed {
    struct pl_ops *o;
    struct pl_kv_store *kv; /* a step needs one */
    uint32_t rows_max;
    uint64_t least_bytes;
    uint32_t *tokens, *pages;
    struct pl_batch_seq seq;
    struct pl_batch batch;
    /* of the case that is set */
    struct pl_linear_case set;
    struct pl_weight *w[MATRICES_MAX];
    size_t count;
    void *raw;
    struct pl_weight *table;
    struct pl_activation *x, *y;
    float *row, *out; /* the table's only row, which some backends read where it lies; a row of y */
};

static float value(uint32_t i) { /* in (-0.05, 0.05) */
    const uint32_t counter[4] = {i, 0, 0, 0}, key[2] = {21, 22};
    return 0.1f * pl_uniform_open(pl_philox4x32(counter, key).v[0]) - 0.05f;
}

/* A type nothing here quantises to: random blocks, those whose values are sane. */
static bool random_blocks(enum pl_dtype t, uint8_t *raw, size_t bytes) {
    const struct pl_dtype_info *info = pl_dtype_info(t);
    float out[256];
    uint32_t at = 0;
    if (info->block_elems > PL_COUNT_OF(out)) return false;
    for (uint8_t *block = raw; block < raw + bytes; block += info->block_bytes) {
        bool sane = false;
        for (int tries = 0; tries < 4000 && !sane; tries++) {
            for (uint32_t k = 0; k < info->block_bytes; k++) block[k] = (uint8_t)(int)(2560 * (value(at++) + 0.05f));
            if (pl_dequant_span(t, block, info->block_elems, out) != PL_OK) return false;
            float top = 0;
            for (uint32_t k = 0; k < info->block_elems; k++) top = fmaxf(top, isfinite(out[k]) ? fabsf(out[k]) : HUGE_VALF);
            sane = top > 0.005f && top < 1;
        }
        if (!sane) return false;
    }
    return true;
}

/* One matrix's bytes: a span of random weights, again and again. NULL: no memory, or no such type. */
static void *make_bytes(enum pl_dtype t, size_t n, size_t bytes) {
    float span[SPAN];
    size_t unit = 0;
    if (n % SPAN != 0 || !pl_dtype_row_bytes(t, SPAN, &unit) || unit * (n / SPAN) != bytes) return NULL;
    for (uint32_t i = 0; i < SPAN; i++) span[i] = value(i);
    uint8_t *raw = pl_alloc(bytes, 1);
    if (raw == NULL) return NULL;
    if (t == PL_F32) {
        memcpy(raw, span, unit);
    } else if (t == PL_F16 || t == PL_BF16) {
        for (size_t i = 0; i < SPAN; i++) {
            uint16_t h = t == PL_F16 ? pl_f32_to_f16(span[i]) : pl_f32_to_bf16(span[i]);
            memcpy(raw + 2 * i, &h, 2);
        }
    } else if (pl_quantize_span(t, span, SPAN, raw) != PL_OK && !random_blocks(t, raw, unit)) {
        pl_free(raw);
        return NULL;
    }
    for (size_t i = 1; i < n / SPAN; i++) memcpy(raw + i * unit, raw, unit);
    return raw;
}

static void clear(struct pl_linear_bed *b) {
    for (size_t i = 0; i < b->count; i++) pl_ops_weight_destroy(b->o, b->w[i]);
    pl_ops_weight_destroy(b->o, b->table);
    pl_ops_activation_destroy(b->o, b->x);
    pl_ops_activation_destroy(b->o, b->y);
    pl_free(b->raw);
    pl_free(b->row);
    pl_free(b->out);
    b->count = 0;
    b->table = NULL;
    b->x = b->y = NULL;
    b->raw = NULL;
    b->row = b->out = NULL;
    b->set = (struct pl_linear_case){0};
}

enum pl_status pl_linear_bed_open(const struct pl_ops_options *opt, uint32_t rows_max, uint64_t least_bytes,
                                  struct pl_linear_bed **out, struct pl_err *err) {
    struct pl_linear_bed *b = pl_calloc(1, sizeof *b);
    if (b == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a benchmark");
    b->rows_max = rows_max;
    b->least_bytes = least_bytes;
    b->tokens = pl_calloc(rows_max, sizeof *b->tokens);
    b->pages = pl_calloc(rows_max / PAGE + 1, sizeof *b->pages);
    struct pl_kv_shape shape = {
        .layers = 1, .page_count = rows_max / PAGE + 1, .page_tokens = PAGE, .kv_heads = 1, .head_dim = 64, .dtype = PL_F16};
    enum pl_status st = b->tokens == NULL || b->pages == NULL ? PL_NO_MEMORY : pl_ops_create(opt, &b->o, err);
    if (st == PL_OK) st = pl_ops_kv_create(b->o, &shape, &b->kv, err);
    for (uint32_t i = 0; st == PL_OK && i < shape.page_count; i++) b->pages[i] = i;
    if (st != PL_OK) {
        pl_linear_bed_close(b);
        return st == PL_NO_MEMORY ? pl_err_set(err, __FILE__, __LINE__, st, "no memory for a benchmark") : st;
    }
    *out = b;
    return PL_OK;
}

void pl_linear_bed_close(struct pl_linear_bed *b) {
    if (b == NULL) return;
    if (b->o != NULL) {
        clear(b);
        if (b->kv != NULL) pl_ops_kv_destroy(b->o, b->kv);
        pl_ops_destroy(b->o);
    }
    pl_free(b->tokens);
    pl_free(b->pages);
    pl_free(b);
}

const char *pl_linear_bed_describe(const struct pl_linear_bed *b) { return pl_ops_describe(b->o); }

static struct pl_tensor tensor_of(const struct pl_linear_bed *b, const struct pl_linear_case *c) {
    struct pl_tensor t = {.name = "benchmark", .dtype = c->type, .ndim = 2, .shape = {c->out, c->in, 1, 1}, .data = b->raw};
    if (!pl_dtype_row_bytes(c->type, c->in, &t.bytes)) t.bytes = 0;
    t.bytes *= c->out;
    return t;
}

/* Matrices, and activations that are filled from a table. */
static enum pl_status set(struct pl_linear_bed *b, const struct pl_linear_case *c, struct pl_err *err) {
    if (b->count > 0 && b->set.type == c->type && b->set.out == c->out && b->set.in == c->in) return PL_OK;
    clear(b);
    struct pl_tensor t = tensor_of(b, c);
    if (t.bytes == 0) PL_FAIL(err, PL_INVALID, "%u columns are no whole blocks of %s", c->in, pl_dtype_name(c->type));
    b->raw = make_bytes(c->type, (size_t)c->out * c->in, t.bytes);
    b->out = pl_alloc(c->out, sizeof *b->out);
    b->row = pl_alloc(c->in, sizeof *b->row);
    enum pl_status st = PL_OK;
    if (b->raw == NULL || b->out == NULL || b->row == NULL) {
        clear(b);
        PL_FAIL(err, PL_UNSUPPORTED, "no weights of type %s can be made here", pl_dtype_name(c->type));
    }
    t.data = b->raw;
    size_t want = PL_MIN((size_t)(b->least_bytes / t.bytes) + 1, (size_t)MATRICES_MAX);
    for (; b->count < want && st == PL_OK; b->count += st == PL_OK)
        st = pl_ops_weight_create(b->o, &t, PL_WEIGHT_MATRIX, &b->w[b->count], err);
    for (uint32_t i = 0; i < c->in; i++) b->row[i] = 20 * value(i + SPAN);
    struct pl_tensor one = {.name = "row", .dtype = PL_F32, .ndim = 2, .shape = {1, c->in, 1, 1}, .data = b->row};
    one.bytes = c->in * sizeof *b->row;
    if (st == PL_OK) st = pl_ops_weight_create(b->o, &one, PL_WEIGHT_EMBED, &b->table, err);
    if (st == PL_OK) st = pl_ops_activation_create(b->o, b->rows_max, c->in, &b->x, err);
    if (st == PL_OK) st = pl_ops_activation_create(b->o, b->rows_max, c->out, &b->y, err);
    b->set = *c;
    if (st != PL_OK) clear(b);
    return st;
}

/* `products` products in one step, with the wait for the last one. */
static enum pl_status step(struct pl_linear_bed *b, uint32_t rows, uint32_t products, double *us) {
    b->seq = (struct pl_batch_seq){.rows = rows};
    b->batch = (struct pl_batch){.rows = rows, .tokens = b->tokens, .seq_count = 1, .seqs = &b->seq, .pages = b->pages};
    b->batch.page_entries = b->rows_max / PAGE + 1;
    uint64_t start = pl_clock_ns();
    PL_TRY(pl_ops_begin(b->o, &b->batch, b->kv));
    enum pl_status st = pl_ops_embed(b->o, b->table, 1.0f, b->x); /* every row is the table's */
    for (uint32_t i = 0; i < products && st == PL_OK; i++) {
        const struct pl_weight *w = b->w[i % b->count];
        st = pl_ops_linear(b->o, 1, &w, NULL, b->x, &b->y);
    }
    if (st == PL_OK) st = pl_ops_activation_read(b->o, b->y, 0, 1, b->out);
    enum pl_status end = pl_ops_end(b->o);
    *us = (double)(pl_clock_ns() - start) * 1e-3;
    return st != PL_OK ? st : end;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The slope; a step of few that took no less than one of many (noise) counts as none. */
static enum pl_status slope(struct pl_linear_bed *b, uint32_t rows, uint32_t few, uint32_t many, int repeats, double *us) {
    double t[REPEATS_MAX];
    for (int i = 0; i < repeats; i++) {
        double less, more;
        PL_TRY(step(b, rows, few, &less));
        PL_TRY(step(b, rows, many, &more));
        t[i] = more > less ? (more - less) / (many - few) : more / many;
    }
    qsort(t, (size_t)repeats, sizeof *t, ascending);
    *us = t[repeats / 2];
    return PL_OK;
}

static void name_kernels(struct pl_linear_bed *b, char *out, size_t cap) {
    struct pl_ops_launches list[128];
    size_t n = PL_MIN(pl_ops_witness(b->o, list, PL_COUNT_OF(list)), PL_COUNT_OF(list)), used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < n && used < cap; i++) {
        if (strcmp(list[i].op, "linear") != 0 || list[i].launches == 0 || strncmp(list[i].kernel, "declined", 8) == 0)
            continue;
        used += (size_t)snprintf(out + used, cap - used, "%s%s", used > 0 ? " + " : "", list[i].kernel);
    }
}

enum pl_status pl_linear_bed_time(struct pl_linear_bed *b, const struct pl_linear_case *c, bool quick,
                                  struct pl_linear_time *out, struct pl_err *err) {
    if (c->rows == 0 || c->rows > b->rows_max) PL_FAIL(err, PL_INVALID, "%u rows of at most %u", c->rows, b->rows_max);
    PL_TRY(set(b, c, err));
    struct pl_tensor t = tensor_of(b, c);
    double once = 0;
    uint32_t cycle = (uint32_t)PL_MAX(b->count, (size_t)4);
    enum pl_status st = step(b, c->rows, cycle, &once); /* compiled, packed, warm */
    if (st == PL_OK) st = step(b, c->rows, cycle, &once);
    pl_ops_witness_reset(b->o);
    if (st == PL_OK) {
        /* Long enough for the clock, short enough for a table: about 20 ms a step. */
        double one = once / cycle, many = 20e3 / PL_MAX(one, 1.0);
        uint32_t few = cycle, more = 3 * cycle;
        if (many > more) more = (uint32_t)PL_MIN(many, 400.0);
        if (once > 200e3) few = 1, more = 3;
        st = slope(b, c->rows, few, PL_MAX(more, few + 2), quick ? 3 : 7, &out->us);
    }
    if (st != PL_OK) {
        const char *why = pl_ops_refusal(b->o);
        PL_FAIL(err, st, "%s product of %u rows: %.300s", pl_dtype_name(c->type), c->rows,
                why[0] != '\0' ? why : pl_status_text(st));
    }
    out->bytes = t.bytes;
    out->flops = 2.0 * c->rows * c->out * c->in;
    name_kernels(b, out->kernel, sizeof out->kernel);
    return PL_OK;
}
