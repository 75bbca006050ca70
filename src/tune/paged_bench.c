#include "tune/paged_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/philox.h"
#include "tensor/convert.h"

enum { FILL_BYTES = 1 << 20, RUNS = 5, COPIES_MAX = 64, GRAPH_LAUNCHES_MAX = 512 };

struct pl_paged_bed {
    struct pl_kernels ks;
    struct pl_paged_case c;
    struct pl_paged paged;
    struct pl_plan plan;
    struct pl_plan_row *rows;
    uint32_t *tables, *record;
    struct pl_device_buffer q, out, k, v, plan_words, parts, lse, arrived, dense_k, dense_v;
    uint32_t copies; /* of k and v in their buffers */
};

const char *pl_bench_form_name(enum pl_bench_form f) {
    static const char *const names[PL_BENCH_FORMS] = {"v1", "v2", "cascade", "gather", "dense", "auto"};
    return f < PL_BENCH_FORMS ? names[f] : "?";
}

enum pl_status pl_paged_bed_open(enum pl_device_kind kind, int index, struct pl_paged_bed **out, struct pl_err *err) {
    struct pl_jit_options jit = {.mode = PL_JIT_ON};
    struct pl_paged_bed *b = pl_calloc(1, sizeof *b);
    if (b == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a measurement");
    pl_plan_init(&b->plan);
    enum pl_status st = pl_kernels_open(kind, index, &jit, &b->ks, err);
    if (st != PL_OK) {
        pl_free(b);
        return st;
    }
    *out = b;
    return PL_OK;
}

const struct pl_device_info *pl_paged_bed_device(const struct pl_paged_bed *b) { return pl_device_info(b->ks.device); }

static void clear(struct pl_paged_bed *b) {
    struct pl_device_buffer *const all[] = {&b->q,     &b->out, &b->k,       &b->v,       &b->plan_words,
                                            &b->parts, &b->lse, &b->arrived, &b->dense_k, &b->dense_v};
    pl_device_settle(b->ks.device);
    for (size_t i = 0; i < PL_COUNT_OF(all); i++) pl_device_free(b->ks.device, all[i]);
    if (b->paged.shape.heads > 0) pl_paged_free(&b->ks, &b->paged);
    pl_free(b->rows);
    pl_free(b->tables);
    pl_free(b->record);
    b->rows = NULL;
    b->tables = b->record = NULL;
    b->paged = (struct pl_paged){0};
}

void pl_paged_bed_close(struct pl_paged_bed *b) {
    if (b == NULL) return;
    clear(b);
    pl_plan_deinit(&b->plan);
    pl_kernels_close(&b->ks);
    pl_free(b);
}

/* Random numbers of the type in [-1, 1), the same block again and again. */
static enum pl_status fill(struct pl_paged_bed *b, struct pl_device_buffer *to, uint64_t bytes, enum pl_dtype type,
                           struct pl_err *err) {
    uint64_t block = PL_MIN(bytes, (uint64_t)FILL_BYTES);
    uint16_t *half = pl_alloc(block + 16, 1);
    if (half == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a measurement");
    enum pl_status st = pl_device_alloc(b->ks.device, bytes, to, err);
    for (uint32_t i = 0; i < block / 4 + 1; i++) {
        uint32_t c[4] = {i, 0, 0, 0}, k[2] = {5, (uint32_t)type};
        float v = (float)(pl_philox4x32(c, k).v[0] >> 8) * 0x1p-23f - 1.0f;
        if (type == PL_F32) memcpy((char *)half + 4 * (size_t)i, &v, 4);
        if (type == PL_F32) continue;
        half[2 * i] = type == PL_F16 ? pl_f32_to_f16(v) : pl_f32_to_bf16(v);
        half[2 * i + 1] = half[2 * i] ^ 0x8000u;
    }
    for (uint64_t at = 0; at < bytes && st == PL_OK; at += block)
        st = pl_device_upload(b->ks.device, b->ks.stream, to, at, half, PL_MIN(block, bytes - at), err);
    if (st == PL_OK) st = pl_device_stream_wait(b->ks.device, b->ks.stream, err);
    if (st != PL_OK) pl_device_settle(b->ks.device);
    pl_free(half);
    return st;
}

static uint64_t common_factor(uint64_t a, uint64_t b) { return b == 0 ? a : common_factor(b, a % b); }

/* Physical pages in an order that is not that of the tables; the first `shared` belong to everyone. */
static enum pl_status make_tables(struct pl_paged_bed *b, uint32_t pages, uint32_t shared, uint64_t total,
                                  struct pl_err *err) {
    const struct pl_paged_case *c = &b->c;
    b->tables = pl_alloc((size_t)c->batch * pages, sizeof *b->tables);
    b->rows = pl_alloc(c->batch, sizeof *b->rows);
    if (b->tables == NULL || b->rows == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for %u block tables", c->batch);
    uint64_t next = 0, step = PL_MAX(2654435761u % total, (uint64_t)1);
    while (common_factor(step, total) != 1) step++; /* then every page is visited once */
    for (uint32_t r = 0; r < c->batch; r++) {
        for (uint32_t p = 0; p < pages; p++) {
            uint64_t n = p < shared ? p : shared + next++;
            b->tables[(size_t)r * pages + p] = (uint32_t)(n % total * step % total);
        }
        b->rows[r] = (struct pl_plan_row){b->tables + (size_t)r * pages, c->len};
    }
    return PL_OK;
}

/* Of a page: keys and values, or keys that hold their values. */
static uint64_t sides(const struct pl_paged_case *c) { return c->value_dim > 0 ? 1 : 2; }

/* So many that the last one in turn has left the cache when it is its turn again. */
static uint32_t copies_of(const struct pl_paged_bed *b, uint64_t bytes) {
    const struct pl_device_info *info = pl_device_info(b->ks.device);
    if (info->kind != PL_DEVICE_CUDA || !info->graphs) return 1; /* handles of parts: addresses are needed */
    uint64_t n = (3ull * info->l2_bytes + bytes - 1) / bytes;
    return (uint32_t)PL_MAX(1u, PL_MIN(n, (uint64_t)COPIES_MAX));
}

enum pl_status pl_paged_bed_set(struct pl_paged_bed *b, const struct pl_paged_case *c, struct pl_err *err) {
    struct pl_paged_shape s = {
        .kv = c->kv, .head_dim = c->head_dim, .page_tokens = c->page_tokens, .heads = c->heads, .kv_heads = c->kv_heads};
    if (c->value_dim > 0) s.value_dim = c->value_dim, s.value_stride = c->head_dim;
    if (c->batch == 0 || c->len == 0 || c->page_tokens == 0)
        PL_FAIL(err, PL_INVALID, "batch, length and page are at least 1");
    const char *why = pl_paged_declines(&s);
    if (why != NULL) PL_FAIL(err, PL_UNSUPPORTED, "decode attention by plan does not take this shape: %s", why);
    clear(b);
    b->c = *c;
    if (c->portable) {
        pl_paged_init(&b->paged, &s);
    } else {
        pl_paged_init_best(&b->ks, &b->paged, &s);
    }
    if (c->stages > 0 && b->paged.stages > 0) b->paged.stages = c->stages;
    uint32_t pages = (c->len - 1) / c->page_tokens + 1, shared = PL_MIN(c->shared / c->page_tokens, pages - 1);
    uint64_t total = shared + (uint64_t)c->batch * (pages - shared);
    uint64_t side = total * c->page_tokens * c->kv_heads * c->head_dim * pl_dtype_info(c->kv)->block_bytes;
    uint64_t q = (uint64_t)c->batch * c->heads * c->head_dim * sizeof(float);
    if (total > UINT32_MAX) PL_FAIL(err, PL_LIMIT, "more pages than can be counted");
    PL_TRY(make_tables(b, pages, shared, total, err));
    b->copies = copies_of(b, sides(c) * side);
    PL_TRY(fill(b, &b->k, side * b->copies, c->kv, err));
    if (sides(c) > 1) PL_TRY(fill(b, &b->v, side * b->copies, c->kv, err));
    PL_TRY(fill(b, &b->q, q, PL_F32, err));
    return pl_device_alloc(b->ks.device, q, &b->out, err);
}

static enum pl_status room(struct pl_paged_bed *b, struct pl_device_buffer *to, uint64_t bytes, struct pl_err *err) {
    if (to->bytes >= bytes) return PL_OK;
    pl_device_settle(b->ks.device);
    pl_device_free(b->ks.device, to);
    return pl_device_alloc(b->ks.device, bytes, to, err);
}

static enum pl_status make_plan(struct pl_paged_bed *b, struct pl_plan_options opt, struct pl_err *err) {
    pl_paged_plan_options(&b->paged, &opt);
    if (pl_plan_make(&b->plan, &opt, b->rows, b->c.batch, 0) != PL_OK) PL_FAIL(err, PL_LIMIT, "there is no plan for this");
    size_t words = pl_plan_words(&b->plan);
    pl_free(b->record);
    b->record = pl_alloc(words, sizeof *b->record);
    if (b->record == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a plan of %zu words", words);
    pl_plan_write(&b->plan, b->record);
    uint64_t parts = PL_MAX((uint64_t)b->plan.part_count * b->c.heads, (uint64_t)1);
    PL_TRY(room(b, &b->plan_words, words * sizeof *b->record, err));
    PL_TRY(room(b, &b->parts, parts * b->c.head_dim * sizeof(float), err));
    PL_TRY(room(b, &b->lse, parts * sizeof(float), err));
    if (pl_paged_merges(&b->paged)) {
        PL_TRY(room(b, &b->arrived, pl_paged_arrived_bytes(&b->paged, b->c.batch), err));
        PL_TRY(pl_device_fill(b->ks.device, b->ks.stream, &b->arrived, 0, err));
    }
    return pl_device_upload(b->ks.device, b->ks.stream, &b->plan_words, 0, b->record, words * sizeof *b->record, err);
}

/* The launches of a form, in order. */
static size_t launches_of(const struct pl_paged_bed *b, enum pl_bench_form form, enum pl_paged_kernel out[2]) {
    switch (form) {
    case PL_BENCH_V1: out[0] = PL_PAGED_V1; return 1;
    case PL_BENCH_DENSE: out[0] = PL_PAGED_DENSE; return 1;
    case PL_BENCH_GATHER:
        out[0] = PL_PAGED_GATHER;
        out[1] = PL_PAGED_DENSE;
        return 2;
    default:
        out[0] = form == PL_BENCH_CASCADE ? PL_PAGED_CASCADE : PL_PAGED_V2;
        out[1] = PL_PAGED_MERGE;
        return b->plan.merge_count > 0 && !(pl_paged_merges(&b->paged) && form == PL_BENCH_V2) ? 2 : 1;
    }
}

static const char *kernel_name(const struct pl_paged_bed *b, enum pl_paged_kernel k) {
    const struct pl_kernel *const all[] = {&b->paged.v1,    &b->paged.v2,     &b->paged.cascade,
                                           &b->paged.merge, &b->paged.gather, &b->paged.dense};
    return all[k]->name;
}

/* Copy `index` of the pages: CUDA's handles are addresses. */
static struct pl_device_buffer copy_of(const struct pl_device_buffer *all, uint32_t copies, uint32_t index) {
    uint64_t bytes = all->bytes / copies;
    if (copies == 1) return *all;
    return (struct pl_device_buffer){(char *)all->handle + bytes * index, bytes};
}

static enum pl_status launch_all(struct pl_paged_bed *b, const enum pl_paged_kernel *list, size_t count, uint32_t times) {
    struct pl_device_buffer k, v;
    struct pl_paged_launch l = {.q = &b->q,
                                .k_pages = &k,
                                .v_pages = &v,
                                .plan = &b->plan_words,
                                .out = &b->out,
                                .parts = &b->parts,
                                .lse = &b->lse,
                                .arrived = pl_paged_merges(&b->paged) && count == 1 ? &b->arrived : NULL,
                                .fresh = 1,
                                .dense_k = &b->dense_k,
                                .dense_v = &b->dense_v,
                                .rows = b->c.batch,
                                .chunks = b->plan.chunk_count,
                                .merges = b->plan.merge_count,
                                .shared = b->plan.shared_count,
                                .pages_longest = (b->c.len - 1) / b->c.page_tokens + 1,
                                .scale = 0.088f};
    for (uint32_t i = 0; i < times; i++) {
        k = copy_of(&b->k, b->copies, i % b->copies);
        v = sides(&b->c) > 1 ? copy_of(&b->v, b->copies, i % b->copies) : k;
        for (size_t n = 0; n < count; n++) PL_TRY(pl_launch_paged(&b->ks, &b->paged, list[n], &l));
    }
    return PL_OK;
}

static enum pl_status run(struct pl_paged_bed *b, const enum pl_paged_kernel *list, size_t count, uint32_t times,
                          double *us) {
    uint64_t start = pl_clock_ns();
    PL_TRY(launch_all(b, list, count, times));
    PL_TRY(pl_device_stream_wait(b->ks.device, b->ks.stream, &b->ks.err));
    *us = (double)(pl_clock_ns() - start) * 1e-3 / times;
    return PL_OK;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum pl_status time_graph(struct pl_paged_bed *b, struct pl_device_graph g, uint32_t times, int runs, double *us) {
    struct pl_device *d = b->ks.device;
    struct pl_device_event from = {0}, to = {0};
    double all[RUNS] = {0};
    enum pl_status st = pl_device_event_create(d, &from, &b->ks.err);
    if (st == PL_OK) st = pl_device_event_create(d, &to, &b->ks.err);
    for (int i = -1; i < runs && st == PL_OK; i++) { /* the first is not counted */
        st = pl_device_event_record(d, &from, b->ks.stream, &b->ks.err);
        if (st == PL_OK) st = pl_device_graph_launch(d, b->ks.stream, g, &b->ks.err);
        if (st == PL_OK) st = pl_device_event_record(d, &to, b->ks.stream, &b->ks.err);
        if (st == PL_OK) st = pl_device_stream_wait(d, b->ks.stream, &b->ks.err);
        if (st == PL_OK) st = pl_device_event_elapsed_us(d, &from, &to, &all[PL_MAX(i, 0)], &b->ks.err);
    }
    pl_device_event_destroy(d, &from);
    pl_device_event_destroy(d, &to);
    qsort(all, (size_t)runs, sizeof *all, by_value);
    *us = all[runs / 2] / times;
    return st;
}

static enum pl_status measure_graph(struct pl_paged_bed *b, const enum pl_paged_kernel *list, size_t count, double once,
                                    bool quick, double *us) {
    struct pl_device *d = b->ks.device;
    struct pl_device_graph g = {0};
    double wanted = (quick ? 1000.0 : 4000.0) / PL_MAX(once, 0.1);
    uint32_t most = GRAPH_LAUNCHES_MAX / (uint32_t)count / b->copies, turns = (uint32_t)(wanted / b->copies);
    uint32_t times = b->copies * PL_MAX(1u, PL_MIN(turns, most));
    PL_TRY(pl_device_capture_begin(d, b->ks.stream, &b->ks.err));
    enum pl_status st = launch_all(b, list, count, times);
    enum pl_status end = pl_device_capture_end(d, b->ks.stream, &g, &b->ks.err);
    if (st == PL_OK) st = end;
    if (st == PL_OK) st = time_graph(b, g, times, quick ? 3 : RUNS, us);
    pl_device_graph_destroy(d, &g);
    return st;
}

static enum pl_status measure(struct pl_paged_bed *b, const enum pl_paged_kernel *list, size_t count, bool quick,
                              double *us) {
    double all[RUNS], once;
    PL_TRY(run(b, list, count, 1, &once)); /* compiled and warm */
    PL_TRY(run(b, list, count, 1, &once));
    if (pl_device_info(b->ks.device)->graphs) return measure_graph(b, list, count, once, quick, us);
    double wanted = (quick ? 2000.0 : 20000.0) / PL_MAX(once, 0.1); /* microseconds of one run */
    uint32_t times = wanted < 1 ? 1 : wanted > 2000 ? 2000 : (uint32_t)wanted;
    int runs = quick ? 3 : RUNS;
    for (int i = 0; i < runs; i++) PL_TRY(run(b, list, count, times, &all[i]));
    qsort(all, (size_t)runs, sizeof *all, by_value);
    *us = all[runs / 2];
    return PL_OK;
}

enum pl_status pl_paged_bed_time(struct pl_paged_bed *b, enum pl_bench_form form, const struct pl_plan_options *opt,
                                 bool quick, struct pl_paged_time *out, struct pl_err *err) {
    enum pl_paged_kernel list[2];
    struct pl_plan_options o = *opt;
    uint64_t token = sides(&b->c) * b->c.kv_heads * b->c.head_dim * pl_dtype_info(b->c.kv)->block_bytes;
    o.cascade_always = form == PL_BENCH_CASCADE;
    o.cascade = o.cascade_always || form == PL_BENCH_AUTO;
    *out = (struct pl_paged_time){0};
    PL_TRY(make_plan(b, o, err));
    if (form == PL_BENCH_AUTO) form = b->plan.cascade == PL_CASCADE_USED ? PL_BENCH_CASCADE : PL_BENCH_V2;
    if (form == PL_BENCH_CASCADE && b->plan.cascade != PL_CASCADE_USED) {
        out->declined = pl_plan_cascade_text(b->plan.cascade);
        return PL_OK;
    }
    if (form == PL_BENCH_GATHER || form == PL_BENCH_DENSE) {
        PL_TRY(room(b, &b->dense_k, b->plan.tokens * token / sides(&b->c), err));
        PL_TRY(room(b, &b->dense_v, b->plan.tokens * token / sides(&b->c), err));
    }
    size_t n = launches_of(b, form, list);
    for (size_t i = 0; i < n; i++) {
        PL_TRY(pl_paged_make(&b->ks, &b->paged, list[i], err));
        size_t at = strlen(out->kernels);
        snprintf(out->kernels + at, sizeof out->kernels - at, "%s%s", at > 0 ? " + " : "", kernel_name(b, list[i]));
    }
    enum pl_status st = measure(b, list, n, quick, &out->us);
    if (st != PL_OK) {
        if (err != NULL) *err = b->ks.err;
        return st;
    }
    bool chunks = form == PL_BENCH_V2 || form == PL_BENCH_CASCADE;
    out->bytes = (chunks ? b->plan.tokens_read : b->plan.tokens) * token;
    out->launches = (uint32_t)n;
    out->copies = b->copies;
    out->chunks = chunks ? b->plan.chunk_count : 0;
    out->merged_rows = chunks ? b->plan.merge_count : 0;
    out->pages_per_chunk = chunks ? b->plan.pages_per_chunk : 0;
    return PL_OK;
}
