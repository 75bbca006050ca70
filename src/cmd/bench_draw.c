#include "cmd/bench_draw.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/philox.h"
#include "cmd/cmd.h"
#include "cmd/common.h"
#include "cmd/out.h"
#include "ops/draw.h"
#include "plumb.h"

enum { AGAIN = 7, TOGETHER = 8 }; /* a time is of TOGETHER choices in a row, the median of AGAIN */

/* How logits are spread: as a model's (most far below few), and all alike. */
static const struct {
    const char *name;
    float scale;
} spreads[] = {{"peaked", 4}, {"flat", 0.5f}};
static const struct {
    const char *name;
    struct pl_draw draw;
    bool pick;
} kinds[] = {{"greedy", {.top_p = 1}, true},
             {"temperature", {.temperature = 0.8f, .top_p = 1}, false},
             {"top_k 40, top_p 0.95, min_p 0.05", {0.8f, 40, 0.95f, 0.05f, 0, 0}, false},
             {"top_k 50", {0.8f, 50, 1, 0, 0, 0}, false},
             {"top_p 0.9", {0.8f, 0, 0.9f, 0, 0, 0}, false}};
enum { CASES = PL_COUNT_OF(spreads) * PL_COUNT_OF(kinds) };

struct bed {
    struct pl_kernels ks;
    struct pl_draw_kernels draw;
    struct pl_draw_room room;
    struct pl_kernel pick;
    struct pl_device_buffer x, draws, out;
    struct pl_device_event from, to;
    float *logits;
    uint32_t *got;
    double us[CASES];
    uint32_t missed[CASES];
};

/* Nearly normal: the sum of four uniforms. */
static void fill(float *x, size_t n, float scale) {
    for (size_t i = 0; i < n; i++) {
        uint32_t c[4] = {(uint32_t)i, (uint32_t)(i >> 32), 0, 0}, k[2] = {11, 12};
        struct pl_philox p = pl_philox4x32(c, k);
        float sum = 0;
        for (int j = 0; j < 4; j++) sum += pl_uniform_open(p.v[j]) - 0.5f;
        x[i] = sum * 1.7320508f * scale;
    }
}

static enum pl_status open_bed(struct bed *b, const struct pl_bench_op *o, struct pl_err *err) {
    enum pl_device_kind kind;
    struct pl_jit_options jit = {.mode = PL_JIT_ON};
    size_t n = (size_t)o->batch * o->vocab;
    PL_TRY(pl_cmd_pick_device(o->backend, &kind, err));
    PL_TRY(pl_kernels_open(kind, (int)o->device, &jit, &b->ks, err));
    PL_TRY(pl_kernel_draw(&b->ks, PL_F32, &b->draw, err));
    PL_TRY(pl_kernel_pick(&b->ks, PL_PICK_ROWS, &b->pick, err));
    PL_TRY(pl_device_alloc(b->ks.device, n * sizeof(float), &b->x, err));
    PL_TRY(pl_device_alloc(b->ks.device, o->batch * sizeof(struct pl_args_draw), &b->draws, err));
    PL_TRY(pl_device_alloc(b->ks.device, 2 * o->batch * sizeof(uint32_t), &b->out, err));
    PL_TRY(pl_device_event_create(b->ks.device, &b->from, err));
    PL_TRY(pl_device_event_create(b->ks.device, &b->to, err));
    b->logits = pl_alloc(n, sizeof *b->logits);
    b->got = pl_alloc(2 * (size_t)o->batch, sizeof *b->got);
    if (b->logits == NULL || b->got == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for %zu logits", n);
    enum pl_status st = pl_draw_reserve(&b->ks, &b->room, o->batch);
    if (st != PL_OK) *err = b->ks.err;
    return st;
}

static void close_bed(struct bed *b) {
    if (b->ks.device == NULL) return;
    pl_device_settle(b->ks.device);
    pl_draw_release(&b->ks, &b->room);
    pl_device_free(b->ks.device, &b->x);
    pl_device_free(b->ks.device, &b->draws);
    pl_device_free(b->ks.device, &b->out);
    pl_device_event_destroy(b->ks.device, &b->from);
    pl_device_event_destroy(b->ks.device, &b->to);
    pl_free(b->logits);
    pl_free(b->got);
    pl_kernels_close(&b->ks);
}

static enum pl_status launch(struct bed *b, const struct pl_bench_op *o, size_t kind) {
    if (kinds[kind].pick) return pl_launch_pick(&b->ks, PL_PICK_ROWS, &b->pick, &b->x, &b->out, o->batch, o->vocab);
    return pl_launch_draw(&b->ks, &b->draw, &b->room, &b->x, &b->draws, &b->out, o->batch, o->vocab,
                          pl_draw_ways_of(&kinds[kind].draw, 1), PL_DRAW_LIST);
}

/* As in a step: replayed as a graph where the device has graphs. */
static enum pl_status time_once(struct bed *b, const struct pl_bench_op *o, size_t kind, double *us) {
    struct pl_kernels *ks = &b->ks;
    enum pl_status st = PL_OK;
    PL_TRY(pl_device_event_record(ks->device, &b->from, ks->stream, &ks->err));
    pl_kernels_record_begin(ks);
    for (int i = 0; i < TOGETHER && st == PL_OK; i++) st = launch(b, o, kind);
    enum pl_status end = pl_kernels_record_end(ks);
    PL_TRY(st != PL_OK ? st : end);
    PL_TRY(pl_device_event_record(ks->device, &b->to, ks->stream, &ks->err));
    PL_TRY(pl_device_stream_wait(ks->device, ks->stream, &ks->err));
    PL_TRY(pl_device_event_elapsed_us(ks->device, &b->from, &b->to, us, &ks->err));
    *us /= TOGETHER;
    return PL_OK;
}

static int by_value(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static enum pl_status time_case(struct bed *b, const struct pl_bench_op *o, size_t kind, double *us, uint32_t *missed) {
    struct pl_kernels *ks = &b->ks;
    double all[AGAIN];
    struct pl_args_draw *args = pl_alloc(o->batch, sizeof *args);
    if (args == NULL) return PL_NO_MEMORY;
    for (uint32_t r = 0; r < o->batch; r++) {
        struct pl_draw d = kinds[kind].draw;
        d.seed = r;
        args[r] = pl_draw_args(&d, o->vocab);
    }
    enum pl_status st = pl_device_upload(ks->device, ks->stream, &b->draws, 0, args, o->batch * sizeof *args, &ks->err),
                   waited;
    waited = pl_device_stream_wait(ks->device, ks->stream, &ks->err);
    pl_free(args);
    if (st == PL_OK) st = waited;
    for (int i = 0; st == PL_OK && i < 2; i++) st = time_once(b, o, kind, &all[0]); /* the graph is made */
    for (int i = 0; st == PL_OK && i < AGAIN; i++) st = time_once(b, o, kind, &all[i]);
    if (st == PL_OK)
        st = pl_device_download(ks->device, ks->stream, b->got, &b->out, 0, 2 * o->batch * sizeof *b->got, &ks->err);
    if (st == PL_OK) st = pl_device_stream_wait(ks->device, ks->stream, &ks->err);
    if (st != PL_OK) return st;
    qsort(all, AGAIN, sizeof *all, by_value);
    *us = all[AGAIN / 2];
    *missed = 0;
    for (uint32_t r = 0; r < o->batch && !kinds[kind].pick; r++) *missed += b->got[o->batch + r];
    return PL_OK;
}

static enum pl_status measure(struct bed *b, const struct pl_bench_op *o, struct pl_err *err) {
    size_t n = (size_t)o->batch * o->vocab, at = 0;
    PL_TRY(open_bed(b, o, err));
    for (size_t s = 0; s < PL_COUNT_OF(spreads); s++) {
        fill(b->logits, n, spreads[s].scale);
        PL_TRY(pl_device_upload(b->ks.device, b->ks.stream, &b->x, 0, b->logits, n * sizeof(float), err));
        PL_TRY(pl_device_stream_wait(b->ks.device, b->ks.stream, err));
        for (size_t k = 0; k < PL_COUNT_OF(kinds); k++, at++) {
            enum pl_status st = time_case(b, o, k, &b->us[at], &b->missed[at]);
            if (st != PL_OK) *err = b->ks.err;
            if (st != PL_OK) return st;
        }
    }
    return PL_OK;
}

static json_t *as_json(const struct bed *b, const struct pl_bench_op *o, const char *device) {
    json_t *rows = json_array();
    for (size_t i = 0; i < CASES; i++)
        json_array_append_new(rows, json_pack("{s:s, s:s, s:f, s:I}", "logits", spreads[i / PL_COUNT_OF(kinds)].name,
                                              "choice", kinds[i % PL_COUNT_OF(kinds)].name, "us", b->us[i], "unconverged",
                                              (json_int_t)b->missed[i]));
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:o}", "op", o->op, "device", device, "build_id", plumb_build_id(), "batch",
                     (json_int_t)o->batch, "vocab", (json_int_t)o->vocab, "rows", rows);
}

/* How often the rows are read, at least. */
static int passes_of(size_t kind) {
    struct pl_draw_ways w = pl_draw_ways_of(&kinds[kind].draw, 1);
    return kinds[kind].pick || !w.lists ? w.weighs ? 2 : 1 : 2;
}
static const char *kernels_of(const struct bed *b, size_t kind, char *out, size_t size) {
    const struct pl_draw_kernels *k = &b->draw;
    struct pl_draw_ways w = pl_draw_ways_of(&kinds[kind].draw, 1);
    if (kinds[kind].pick) return b->pick.name;
    const char *first = w.climbs ? k->climb.name : k->scan.name, *second = w.weighs ? k->weigh.name : k->gather.name;
    bool two = w.lists || w.weighs;
    snprintf(out, size, "%s, %s%s%s", first, two ? second : "", two ? ", " : "", k->choose.name);
    return out;
}

static void print_rows(const struct bed *b, const struct pl_bench_op *o, const char *device) {
    double bytes = (double)o->batch * o->vocab * sizeof(float);
    char names[240];
    pl_out_printf("device   %s\nshape    %u rows of %u logits, f32, %.1f MB\n\n%-8s %-34s %9s %12s %8s  %s\n", device,
                  o->batch, o->vocab, bytes / 1e6, "logits", "choice", "us", "unconverged", "GB/s", "kernels");
    for (size_t i = 0; i < CASES; i++) {
        size_t kind = i % PL_COUNT_OF(kinds);
        pl_out_printf("%-8s %-34s %9.1f %12u %8.1f  %s\n", spreads[i / PL_COUNT_OF(kinds)].name, kinds[kind].name, b->us[i],
                      b->missed[i], bytes * passes_of(kind) / b->us[i] / 1e3, kernels_of(b, kind, names, sizeof names));
    }
}

int pl_bench_draw_run(struct pl_bench_op *o) {
    struct pl_err err = {0};
    struct bed b = {0};
    char device[400] = "";
    enum pl_status st = measure(&b, o, &err);
    if (st == PL_OK) pl_device_line(pl_device_info(b.ks.device), device, sizeof device);
    if (st == PL_OK && o->json) st = pl_cmd_print_json(as_json(&b, o, device), &err);
    if (st == PL_OK && !o->json) print_rows(&b, o, device);
    close_bed(&b);
    if (st == PL_OK) return pl_out_close();
    err.status = st;
    return pl_cmd_fail("bench", &err);
}
