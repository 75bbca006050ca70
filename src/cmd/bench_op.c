#include "cmd/bench_op.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "cmd/bench_draw.h"
#include "cmd/bench_linear.h"
#include "cmd/cmd.h"
#include "cmd/common.h"
#include "cmd/out.h"
#include "plumb.h"
#include "tune/paged_bench.h"
#include "tune/table.h"

void pl_bench_op_args(struct pl_bench_op *o, struct pl_arg rows[PL_BENCH_OP_ARG_ROWS]) {
    *o = (struct pl_bench_op){.batch = 1, .len = 4096, .page = 32, .heads = 32, .kv_heads = 8, .dim = 128, .vocab = 151936};
    const struct pl_arg list[PL_BENCH_OP_ARG_ROWS] = {
        {0, "op", "NAME", PL_ARG_STR, &o->op, "measure one operation instead of a model: paged-decode, linear, sample", 0, 0,
         NULL},
        {0, "batch", "N", PL_ARG_U32, &o->batch, "--op: sequences (1)", 1, 4096, NULL},
        {0, "len", "N", PL_ARG_U32, &o->len, "--op: tokens of each (4096)", 1, 1 << 24, NULL},
        {0, "shared", "N", PL_ARG_U32, &o->shared, "--op: of them in pages that all share (0)", 0, 1 << 24, NULL},
        {0, "page", "N", PL_ARG_U32, &o->page, "--op: tokens of a page (32)", 1, 1024, NULL},
        {0, "heads", "N", PL_ARG_U32, &o->heads, "--op: query heads (32)", 1, 65535, NULL},
        {0, "kv-heads", "N", PL_ARG_U32, &o->kv_heads, "--op: key and value heads (8)", 1, 65535, NULL},
        {0, "dim", "N", PL_ARG_U32, &o->dim, "--op: head size (128)", 1, 576, NULL},
        {0, "values", "N", PL_ARG_U32, &o->values, "--op: a value is the first N numbers of its key (0 = values apart)", 0,
         576, NULL},
        {0, "chunk", "N", PL_ARG_U32, &o->pages_per_chunk, "--op: pages of a chunk (0 = planned)", 0, 1 << 20, NULL},
        {0, "compare", "LIST", PL_ARG_STR, &o->compare, "--op: of auto,v1,v2,cascade,gather,dense; of implementations (all)",
         0, 0, NULL},
        {0, "vocab", "N", PL_ARG_U32, &o->vocab, "--op sample: logits of a row (151936)", 1, 1 << 24, NULL},
        {0, "types", "LIST", PL_ARG_STR, &o->types, "--op linear: weight types (f16,q8_0,q4_0,q4_k)", 0, 0, NULL},
        {0, "rows", "LIST", PL_ARG_STR, &o->rows, "--op linear: rows of the product (1,2,4,8,16,32,64,128)", 0, 0, NULL},
        {0, "shape", "OUTxIN", PL_ARG_STR, &o->shape, "--op linear: of each matrix (4096x4096; CPU 1024x4096)", 0, 0, NULL},
        {0, "quick", NULL, PL_ARG_FLAG, &o->quick, "--op linear: fewer repeats", 0, 0, NULL},
        {0, "portable", NULL, PL_ARG_FLAG, &o->portable, "--op: not the kernels that only this device has", 0, 0, NULL},
        {0, "sweep", NULL, PL_ARG_FLAG, &o->sweep, "--op: lengths from 64 doubling to --len", 0, 0, NULL},
        {0, "svg", "FILE", PL_ARG_STR, &o->svg, "--op --sweep: time over length as a picture", 0, 0, NULL},
        {0},
    };
    memcpy(rows, list, sizeof list);
}

enum pl_status pl_cmd_pick_device(const char *name, enum pl_device_kind *out, struct pl_err *err) {
    static const enum pl_device_kind kinds[] = {PL_DEVICE_CUDA, PL_DEVICE_ROCM, PL_DEVICE_OPENCL};
    bool any = name == NULL || strcmp(name, "auto") == 0;
    for (size_t i = 0; i < PL_COUNT_OF(kinds); i++) {
        int n = 0;
        struct pl_err why = {0};
        if (!any && strcmp(name, pl_device_kind_name(kinds[i])) != 0) continue;
        enum pl_status st = pl_device_count(kinds[i], &n, &why);
        if (st == PL_OK && n > 0) return *out = kinds[i], PL_OK;
        if (!any) PL_FAIL(err, PL_NOT_FOUND, "%s: %.300s", name, st != PL_OK ? why.text : "no device");
    }
    if (!any) PL_FAIL(err, PL_USAGE, "--backend is '%.40s' but must be cuda, rocm or opencl here", name);
    PL_FAIL(err, PL_NOT_FOUND, "there is no CUDA, ROCm or OpenCL device here ('plumb devices' says what is missing)");
}

/* --- the rows --- */

enum { ROWS_MAX = 24 };
struct row {
    uint32_t len;
    bool done[PL_BENCH_FORMS];
    struct pl_paged_time t[PL_BENCH_FORMS];
};
struct table {
    struct row rows[ROWS_MAX];
    size_t count;
    unsigned forms; /* bits */
    double ceiling; /* bytes/s */
    char device[400], source[64];
};

static enum pl_status parse_forms(const char *list, unsigned *out, struct pl_err *err) {
    *out = 0;
    if (list == NULL) list = "v1,v2,cascade,gather,dense";
    for (const char *at = list;; at++) {
        size_t len = strcspn(at, ",");
        int found = -1;
        for (int f = 0; f < PL_BENCH_FORMS; f++) {
            const char *name = pl_bench_form_name((enum pl_bench_form)f);
            if (strlen(name) == len && memcmp(name, at, len) == 0) found = f;
        }
        if (found < 0)
            PL_FAIL(err, PL_USAGE, "--compare: '%.*s' is none of auto, v1, v2, cascade, gather, dense",
                    (int)PL_MIN(len, (size_t)40), at);
        *out |= 1u << found;
        at += len;
        if (*at == 0) return PL_OK;
    }
}

static enum pl_status time_row(struct pl_paged_bed *b, const struct pl_bench_op *o, const struct pl_attn_table *at,
                               enum pl_dtype kv, struct table *t, struct row *r, struct pl_err *err) {
    struct pl_paged_case c = {.kv = kv,
                              .batch = o->batch,
                              .len = r->len,
                              .shared = PL_MIN(o->shared, r->len),
                              .page_tokens = o->page,
                              .heads = o->heads,
                              .kv_heads = o->kv_heads,
                              .head_dim = o->dim,
                              .value_dim = o->values,
                              .portable = o->portable};
    struct pl_plan_options opt = {.split = true,
                                  .pages_per_chunk = o->pages_per_chunk,
                                  .span_min = at->span_min,
                                  .members_min = at->members_min,
                                  .costs = {at->slots, at->chunk_cost, at->merge_cost, at->member_cost, 0}};
    PL_TRY(pl_paged_bed_set(b, &c, err));
    for (int f = 0; f < PL_BENCH_FORMS; f++) {
        if ((t->forms >> f & 1u) == 0) continue;
        PL_TRY(pl_paged_bed_time(b, (enum pl_bench_form)f, &opt, false, &r->t[f], err));
        r->done[f] = true;
    }
    return PL_OK;
}

static double percent(const struct table *t, const struct pl_paged_time *p) {
    return t->ceiling > 0 && p->us > 0 ? 100.0 * ((double)p->bytes / (p->us * 1e-6)) / t->ceiling : 0;
}

static void print_table(const struct pl_bench_op *o, const struct table *t) {
    pl_out_printf("device   %s\nshape    batch %u, shared %u, %u heads of %u, %u KV heads, pages of %u; planner's costs %s\n"
                  "ceiling  %.1f GB/s read here\n\n%8s %-8s %10s %9s %6s %8s  %s\n",
                  t->device, o->batch, o->shared, o->heads, o->dim, o->kv_heads, o->page, t->source, t->ceiling / 1e9, "len",
                  "form", "us", "GB/s", "%", "chunks", "kernels");
    for (size_t i = 0; i < t->count; i++) {
        for (int f = 0; f < PL_BENCH_FORMS; f++) {
            const struct pl_paged_time *p = &t->rows[i].t[f];
            if (!t->rows[i].done[f]) continue;
            if (p->declined != NULL) {
                pl_out_printf("%8u %-8s declined: %s\n", t->rows[i].len, pl_bench_form_name((enum pl_bench_form)f),
                              p->declined);
                continue;
            }
            pl_out_printf("%8u %-8s %10.1f %9.1f %6.1f %8u  %s\n", t->rows[i].len, pl_bench_form_name((enum pl_bench_form)f),
                          p->us, (double)p->bytes / p->us / 1e3, percent(t, p), p->chunks, p->kernels);
        }
    }
}

static json_t *rows_json(const struct table *t) {
    json_t *rows = json_array();
    for (size_t i = 0; i < t->count; i++) {
        for (int f = 0; f < PL_BENCH_FORMS; f++) {
            const struct pl_paged_time *p = &t->rows[i].t[f];
            if (!t->rows[i].done[f]) continue;
            json_t *row = json_pack("{s:I, s:s}", "len", (json_int_t)t->rows[i].len, "form",
                                    pl_bench_form_name((enum pl_bench_form)f));
            if (p->declined != NULL) {
                json_object_set_new(row, "declined", json_string(p->declined));
            } else {
                json_object_update_new(row,
                                       json_pack("{s:f, s:I, s:f, s:f, s:I, s:I, s:I, s:I, s:s}", "us", p->us, "bytes",
                                                 (json_int_t)p->bytes, "gb_s", (double)p->bytes / p->us / 1e3,
                                                 "percent_of_ceiling", percent(t, p), "launches", (json_int_t)p->launches,
                                                 "chunks", (json_int_t)p->chunks, "merged_rows", (json_int_t)p->merged_rows,
                                                 "pages_per_chunk", (json_int_t)p->pages_per_chunk, "kernels", p->kernels));
            }
            json_array_append_new(rows, row);
        }
    }
    return rows;
}

static json_t *table_json(const struct pl_bench_op *o, const struct table *t) {
    return json_pack("{s:s, s:s, s:s, s:s, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "op", o->op, "device", t->device,
                     "build_id", plumb_build_id(), "costs", t->source, "read_ceiling_gb_s", t->ceiling / 1e9, "batch",
                     (json_int_t)o->batch, "shared", (json_int_t)o->shared, "page_tokens", (json_int_t)o->page, "heads",
                     (json_int_t)o->heads, "kv_heads", (json_int_t)o->kv_heads, "head_dim", (json_int_t)o->dim, "rows",
                     rows_json(t));
}

/* --- the picture: both axes by powers of two --- */

enum { WIDTH = 720, HEIGHT = 440, LEFT = 70, RIGHT = 110, TOP = 30, BOTTOM = 50 };
struct frame {
    double x0, x1, y0, y1;
};
static double px(const struct frame *f, double len) {
    return LEFT + (WIDTH - LEFT - RIGHT) * (log2(len) - f->x0) / PL_MAX(f->x1 - f->x0, 1e-9);
}
static double py(const struct frame *f, double us) {
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (log2(us) - f->y0) / PL_MAX(f->y1 - f->y0, 1e-9);
}

static bool has(const struct row *r, int f) { return r->done[f] && r->t[f].declined == NULL && r->t[f].us > 0; }

static struct frame frame_of(const struct table *t) {
    struct frame f = {log2(t->rows[0].len), log2(t->rows[t->count - 1].len), 1e9, -1e9};
    for (size_t i = 0; i < t->count; i++) {
        for (int k = 0; k < PL_BENCH_FORMS; k++) {
            if (!has(&t->rows[i], k)) continue;
            f.y0 = PL_MIN(f.y0, floor(log2(t->rows[i].t[k].us)));
            f.y1 = PL_MAX(f.y1, ceil(log2(t->rows[i].t[k].us)));
        }
    }
    return f;
}

static void draw_line(struct pl_buf *b, const struct table *t, const struct frame *f, int form) {
    static const char *const colours[PL_BENCH_FORMS] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#7f7f7f", "#000000"};
    double x = 0, y = 0;
    pl_buf_printf(b, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", colours[form]);
    for (size_t i = 0; i < t->count; i++) {
        if (!has(&t->rows[i], form)) continue;
        x = px(f, t->rows[i].len);
        y = py(f, t->rows[i].t[form].us);
        pl_buf_printf(b, "%.1f,%.1f ", x, y);
    }
    pl_buf_printf(b, "\"/>\n<text x=\"%.1f\" y=\"%.1f\" fill=\"%s\">%s</text>\n", x + 6, y + 4, colours[form],
                  pl_bench_form_name((enum pl_bench_form)form));
}

static void draw(const struct pl_bench_op *o, const struct table *t, struct pl_buf *b) {
    struct frame f = frame_of(t);
    pl_buf_printf(b,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
                  "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
                  "<text x=\"%d\" y=\"18\">decode attention: batch %u, %u heads of %u, %u KV heads, pages of %u</text>\n",
                  WIDTH, HEIGHT, LEFT, o->batch, o->heads, o->dim, o->kv_heads, o->page);
    for (size_t i = 0; i < t->count; i++) {
        double x = px(&f, t->rows[i].len);
        pl_buf_printf(b,
                      "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#ddd\"/>\n"
                      "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%u</text>\n",
                      x, TOP, x, HEIGHT - BOTTOM, x, HEIGHT - BOTTOM + 16, t->rows[i].len);
    }
    for (double y = f.y0; y <= f.y1 + 0.5; y += 1) {
        double at = py(&f, exp2(y));
        pl_buf_printf(b,
                      "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#ddd\"/>\n"
                      "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                      LEFT, at, WIDTH - RIGHT, at, LEFT - 6, at + 4, exp2(y));
    }
    pl_buf_printf(b,
                  "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">tokens of each sequence</text>\n"
                  "<text transform=\"translate(16 %d) rotate(-90)\" text-anchor=\"middle\">microseconds a layer</text>\n",
                  (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, HEIGHT / 2);
    for (int form = 0; form < PL_BENCH_FORMS; form++)
        if ((t->forms >> form & 1u) != 0 && has(&t->rows[t->count - 1], form)) draw_line(b, t, &f, form);
    pl_buf_printf(b, "</svg>\n");
}

static enum pl_status write_svg(const struct pl_bench_op *o, const struct table *t, struct pl_err *err) {
    struct pl_buf b = {0};
    draw(o, t, &b);
    FILE *out = pl_buf_ok(&b) ? fopen(o->svg, "we") : NULL;
    bool ok = out != NULL && fwrite(b.data, 1, b.len, out) == b.len;
    if (out != NULL) ok = fclose(out) == 0 && ok;
    pl_buf_deinit(&b);
    if (ok) return PL_OK;
    PL_FAIL(err, PL_IO, "%.300s: cannot write the picture: %s", o->svg, strerror(errno));
}

/* --- running --- */

static enum pl_status check(const struct pl_bench_op *o, enum pl_dtype *kv, struct pl_err *err) {
    if (strcmp(o->op, "paged-decode") != 0)
        PL_FAIL(err, PL_USAGE, "--op '%.40s' is not known: paged-decode, linear, sample", o->op);
    if (o->heads % o->kv_heads != 0)
        PL_FAIL(err, PL_USAGE, "--heads %u is no multiple of --kv-heads %u", o->heads, o->kv_heads);
    if (o->values > o->dim || (o->values > 0 && o->kv_heads != 1))
        PL_FAIL(err, PL_USAGE, "--values %u needs --dim of at least as many and --kv-heads 1", o->values);
    if (o->svg != NULL && !o->sweep) PL_FAIL(err, PL_USAGE, "--svg needs --sweep");
    const char *name = o->kv_dtype == NULL ? "f16" : o->kv_dtype;
    if (!pl_dtype_from_name(name, kv) || (*kv != PL_F16 && *kv != PL_BF16 && *kv != PL_F32))
        PL_FAIL(err, PL_USAGE, "--kv-dtype is '%.40s' but must be f16, bf16 or f32", name);
    return PL_OK;
}

static enum pl_status measure(struct pl_bench_op *o, enum pl_dtype kv, struct table *t, struct pl_err *err) {
    enum pl_device_kind kind;
    struct pl_paged_bed *bed = NULL;
    PL_TRY(pl_cmd_pick_device(o->backend, &kind, err));
    PL_TRY(pl_cmd_read_bandwidth(kind, (int)o->device, &t->ceiling, err));
    PL_TRY(pl_paged_bed_open(kind, (int)o->device, &bed, err));
    pl_device_line(pl_paged_bed_device(bed), t->device, sizeof t->device);
    struct pl_attn_table costs;
    pl_tune_or_built_in(pl_paged_bed_device(bed), &costs);
    snprintf(t->source, sizeof t->source, "%s", costs.source);
    enum pl_status st = PL_OK;
    for (uint32_t len = o->sweep ? PL_MIN(64u, o->len) : o->len; st == PL_OK && t->count < ROWS_MAX;
         len = PL_MIN(2 * len, o->len)) {
        struct row *r = &t->rows[t->count++];
        r->len = len;
        st = time_row(bed, o, &costs, kv, t, r, err);
        if (len == o->len) break;
    }
    pl_paged_bed_close(bed);
    return st;
}

int pl_bench_op_run(struct pl_bench_op *o) {
    struct pl_err err = {0};
    static struct table t;
    enum pl_dtype kv = PL_F16;
    if (strcmp(o->op, "linear") == 0) return pl_bench_linear_run(o);
    if (strcmp(o->op, "sample") == 0) return pl_bench_draw_run(o);
    t = (struct table){0};
    enum pl_status st = check(o, &kv, &err);
    if (st == PL_OK) st = parse_forms(o->compare, &t.forms, &err);
    if (st != PL_OK) return pl_cmd_usage("bench", "%s", err.text);
    st = pl_cmd_can_write(o->svg, "picture", &err);
    if (st == PL_OK) st = measure(o, kv, &t, &err);
    if (st == PL_OK && o->svg != NULL) st = write_svg(o, &t, &err);
    if (st == PL_OK && o->json) st = pl_cmd_print_json(table_json(o, &t), &err);
    if (st == PL_OK && !o->json) print_table(o, &t);
    if (st == PL_OK) return pl_out_close();
    err.status = st;
    return pl_cmd_fail("bench", &err);
}
