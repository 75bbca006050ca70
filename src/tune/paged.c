#include "tune/paged.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { LENGTHS_MAX = 10, CELLS_MAX = 32 };

struct cell { /* chunk lengths timed for one batch and length */
    uint32_t batch, len;
    uint32_t pages[LENGTHS_MAX];
    double us[LENGTHS_MAX];
    size_t count;
};

static void say(const struct pl_tune_options *o, const char *what) {
    if (o->progress != NULL) o->progress(o->user, what);
}

static void note(json_t *report, const struct pl_paged_case *c, enum pl_bench_form form, const struct pl_paged_time *t) {
    json_t *row =
        json_pack("{s:s, s:I, s:I, s:I, s:f, s:I, s:s}", "form", pl_bench_form_name(form), "batch", (json_int_t)c->batch,
                  "len", (json_int_t)c->len, "shared", (json_int_t)c->shared, "us", t->us, "pages_per_chunk",
                  (json_int_t)t->pages_per_chunk, "declined", t->declined != NULL ? t->declined : "");
    json_array_append_new(report, row);
}

static struct pl_plan_options options_of(const struct pl_attn_table *t, uint32_t pages) {
    return (struct pl_plan_options){
        .split = true,
        .pages_per_chunk = pages,
        .span_min = 1,
        .members_min = 2,
        .costs = {.slots = t->slots, .chunk = t->chunk_cost, .merge = t->merge_cost, .member = t->member_cost}};
}

/* --- chunk length --- */

static enum pl_status time_cell(struct pl_paged_bed *b, const struct pl_tune_options *o, const struct pl_attn_table *t,
                                struct cell *cell, json_t *report, struct pl_err *err) {
    struct pl_paged_case c = o->shape;
    c.batch = cell->batch;
    c.len = cell->len;
    c.shared = 0;
    PL_TRY(pl_paged_bed_set(b, &c, err));
    uint32_t longest = (c.len - 1) / c.page_tokens + 1;
    for (uint32_t n = 1; cell->count < LENGTHS_MAX; n = n < 4 ? 4 : 2 * n) {
        struct pl_paged_time time;
        uint32_t pages = PL_MIN(n, longest);
        struct pl_plan_options opt = options_of(t, pages);
        PL_TRY(pl_paged_bed_time(b, PL_BENCH_V2, &opt, true, &time, err));
        note(report, &c, PL_BENCH_V2, &time);
        cell->pages[cell->count] = pages;
        cell->us[cell->count++] = time.us;
        if (pages == longest) break;
    }
    return PL_OK;
}

/* What the planner would choose, looked up among the lengths that were timed (the nearest). */
static enum pl_status chosen_us(const struct pl_tune_options *o, const struct pl_attn_table *t, const struct cell *cell,
                                struct pl_plan *plan, const uint32_t *pages, double *us) {
    struct pl_plan_row rows[64];
    struct pl_paged paged;
    struct pl_paged_shape s = {.kv = o->shape.kv,
                               .head_dim = o->shape.head_dim,
                               .page_tokens = o->shape.page_tokens,
                               .heads = o->shape.heads,
                               .kv_heads = o->shape.kv_heads};
    struct pl_plan_options opt = options_of(t, 0);
    pl_paged_init(&paged, &s);
    pl_paged_plan_options(&paged, &opt);
    for (uint32_t i = 0; i < cell->batch; i++) rows[i] = (struct pl_plan_row){pages, cell->len};
    PL_TRY(pl_plan_make(plan, &opt, rows, cell->batch, 0));
    size_t best = 0;
    for (size_t i = 1; i < cell->count; i++) {
        uint32_t now = plan->pages_per_chunk, a = cell->pages[i], was = cell->pages[best];
        if ((a > now ? a - now : now - a) < (was > now ? was - now : now - was)) best = i;
    }
    *us = cell->us[best];
    return PL_OK;
}

static double best_us(const struct cell *cell) {
    double best = cell->us[0];
    for (size_t i = 1; i < cell->count; i++) best = PL_MIN(best, cell->us[i]);
    return best;
}

/* Sum over cells of what a choice loses, as a share of the best. */
static enum pl_status regret(const struct pl_tune_options *o, const struct pl_attn_table *t, const struct cell *cells,
                             size_t count, struct pl_plan *plan, const uint32_t *pages, double *out) {
    *out = 0;
    for (size_t i = 0; i < count; i++) {
        double us;
        PL_TRY(chosen_us(o, t, &cells[i], plan, pages, &us));
        *out += us / best_us(&cells[i]) - 1.0;
    }
    return PL_OK;
}

static enum pl_status fit(const struct pl_tune_options *o, uint32_t units, const struct cell *cells, size_t count,
                          struct pl_attn_table *out, struct pl_err *err) {
    static const float chunk[] = {0, 0.25f, 0.5f, 1, 2, 4, 8}, merge[] = {0, 0.005f, 0.02f, 0.05f, 0.2f};
    uint32_t *pages = pl_calloc(o->len_max / o->shape.page_tokens + 2, sizeof *pages);
    struct pl_plan plan;
    struct pl_attn_table best = *out;
    double least = -1;
    enum pl_status st = pages != NULL ? PL_OK : PL_NO_MEMORY;
    pl_plan_init(&plan);
    for (uint32_t slots = 1; slots <= 16 && st == PL_OK; slots *= 2) {
        for (size_t i = 0; i < PL_COUNT_OF(chunk) * PL_COUNT_OF(merge) && st == PL_OK; i++) {
            struct pl_attn_table t = *out;
            double loss;
            t.slots = slots * units;
            t.chunk_cost = chunk[i % PL_COUNT_OF(chunk)];
            t.merge_cost = o->merge ? merge[i / PL_COUNT_OF(chunk)] : out->merge_cost;
            st = regret(o, &t, cells, count, &plan, pages, &loss);
            if (st != PL_OK || (least >= 0 && loss >= least)) continue;
            least = loss;
            best = t;
        }
    }
    pl_plan_deinit(&plan);
    pl_free(pages);
    if (st != PL_OK) PL_FAIL(err, st, "no plan for a measured cell: %s", pl_status_text(st));
    *out = best;
    return PL_OK;
}

static enum pl_status tune_chunks(struct pl_paged_bed *b, const struct pl_tune_options *o, struct pl_attn_table *out,
                                  json_t *report, struct pl_err *err) {
    static const uint32_t batches[] = {1, 4, 16, 64}, shares[] = {64, 16, 4, 1};
    struct cell cells[CELLS_MAX];
    size_t count = 0;
    for (size_t i = 0; i < PL_COUNT_OF(batches); i++) {
        for (size_t k = 0; k < PL_COUNT_OF(shares) && count < CELLS_MAX; k++) {
            uint32_t len = o->len_max / shares[k];
            if (len < o->shape.page_tokens || (uint64_t)batches[i] * len > 4ull * o->len_max) continue;
            char what[96];
            snprintf(what, sizeof what, "chunks: %u sequences of %u tokens", batches[i], len);
            say(o, what);
            cells[count] = (struct cell){.batch = batches[i], .len = len};
            PL_TRY(time_cell(b, o, out, &cells[count], report, err));
            count++;
        }
    }
    return count == 0 ? PL_OK : fit(o, pl_paged_bed_device(b)->units, cells, count, out, err);
}

/* --- one pass --- */

static enum pl_status tune_v1(struct pl_paged_bed *b, const struct pl_tune_options *o, struct pl_attn_table *out,
                              json_t *report, struct pl_err *err) {
    uint32_t limit = 0;
    for (uint32_t len = o->shape.page_tokens; len <= o->len_max; len *= 4) {
        struct pl_paged_case c = o->shape;
        struct pl_paged_time one, chunks;
        c.batch = 16;
        c.len = len;
        c.shared = 0;
        if ((uint64_t)c.batch * len > 4ull * o->len_max) break;
        say(o, "one pass against chunks");
        PL_TRY(pl_paged_bed_set(b, &c, err));
        struct pl_plan_options opt = options_of(out, (len - 1) / c.page_tokens + 1);
        PL_TRY(pl_paged_bed_time(b, PL_BENCH_V1, &opt, true, &one, err));
        PL_TRY(pl_paged_bed_time(b, PL_BENCH_V2, &opt, true, &chunks, err));
        note(report, &c, PL_BENCH_V1, &one);
        note(report, &c, PL_BENCH_V2, &chunks);
        if (one.us >= chunks.us) break;
        limit = len;
    }
    out->v1_tokens_max = limit;
    return PL_OK;
}

/* --- cascade --- */

struct shared_cell { /* the same rows with chunks of their own and with shared ones */
    uint32_t members, pages;
    double apart, shared;
};
enum { SHARED_CELLS_MAX = 24 };

/* The cascade of one cell at each of three costs of a member; shared[i] is 0 where none could be planned. */
enum { MEMBER_COSTS = 3 };
static enum pl_status time_shared(struct pl_paged_bed *b, const struct pl_tune_options *o, const struct pl_attn_table *t,
                                  uint32_t members, uint32_t pages, const float cost[MEMBER_COSTS], double *apart,
                                  double shared[MEMBER_COSTS], json_t *report, struct pl_err *err) {
    struct pl_paged_case c = o->shape;
    struct pl_paged_time time;
    struct pl_attn_table with = *t;
    c.batch = members;
    c.shared = pages * c.page_tokens;
    c.len = c.shared + 2 * c.page_tokens;
    PL_TRY(pl_paged_bed_set(b, &c, err));
    struct pl_plan_options opt = options_of(t, 0);
    PL_TRY(pl_paged_bed_time(b, PL_BENCH_V2, &opt, true, &time, err));
    note(report, &c, PL_BENCH_V2, &time);
    *apart = time.us;
    for (size_t i = 0; i < MEMBER_COSTS; i++) {
        with.member_cost = cost[i];
        opt = options_of(&with, 0);
        PL_TRY(pl_paged_bed_time(b, PL_BENCH_CASCADE, &opt, true, &time, err));
        note(report, &c, PL_BENCH_CASCADE, &time);
        shared[i] = time.declined != NULL ? 0 : time.us;
    }
    return PL_OK;
}

/* What floors of so many pages and members make of the cells: the sum of each as a share of its better form. */
static double with_floors(const struct shared_cell *cells, size_t count, uint32_t pages, uint32_t members) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        bool share = cells[i].pages >= pages && cells[i].members >= members;
        sum += (share ? cells[i].shared : cells[i].apart) / PL_MIN(cells[i].shared, cells[i].apart);
    }
    return sum;
}

/* Floors are those of the cells' own sizes that lose least; none of them when sharing never wins. */
static void fit_floors(const struct shared_cell *cells, size_t count, struct pl_attn_table *out) {
    double least = with_floors(cells, count, UINT32_MAX, UINT32_MAX);
    out->span_min = out->members_min = UINT32_MAX;
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < count; k++) {
            double sum = with_floors(cells, count, cells[i].pages, cells[k].members);
            if (sum >= least) continue;
            least = sum;
            out->span_min = cells[i].pages;
            out->members_min = cells[k].members;
        }
    }
}

static enum pl_status tune_cascade(struct pl_paged_bed *b, const struct pl_tune_options *o, struct pl_attn_table *out,
                                   json_t *report, struct pl_err *err) {
    static const uint32_t members[] = {2, 4, 8, 16, 64};
    const float was = out->member_cost > 0 ? out->member_cost : 0.01f;
    const float cost[MEMBER_COSTS] = {was / 2, was, PL_MIN(1.0f, was * 2)};
    struct shared_cell cells[MEMBER_COSTS][SHARED_CELLS_MAX];
    double sum[MEMBER_COSTS] = {0};
    size_t count = 0, best = 1;
    for (size_t m = 0; m < PL_COUNT_OF(members); m++) {
        for (uint32_t pages = 2; pages * o->shape.page_tokens <= o->len_max; pages *= 4) {
            double apart, shared[MEMBER_COSTS];
            if (count == SHARED_CELLS_MAX || (uint64_t)members[m] * pages * o->shape.page_tokens > 64ull * o->len_max) break;
            say(o, "cascade against chunks");
            PL_TRY(time_shared(b, o, out, members[m], pages, cost, &apart, shared, report, err));
            if (shared[0] <= 0 || shared[1] <= 0 || shared[2] <= 0) continue;
            for (size_t i = 0; i < MEMBER_COSTS; i++) {
                cells[i][count] = (struct shared_cell){members[m], pages, apart, shared[i]};
                sum[i] += shared[i] / apart;
            }
            count++;
        }
    }
    for (size_t i = 0; i < MEMBER_COSTS; i++)
        if (sum[i] < sum[best] * 0.99) best = i; /* what stood there, unless another is better by more than chance */
    out->member_cost = cost[best];
    fit_floors(cells[best], count, out);
    return PL_OK;
}

enum pl_status pl_tune_paged(struct pl_paged_bed *b, const struct pl_tune_options *opt, struct pl_attn_table *out,
                             json_t **report, struct pl_err *err) {
    json_t *rows = json_array();
    struct pl_attn_table t = *out;
    if (t.slots == 0) t.slots = 2 * pl_paged_bed_device(b)->units;
    enum pl_status st = rows != NULL ? PL_OK : pl_err_set(err, __FILE__, __LINE__, PL_NO_MEMORY, "out of memory");
    if (st == PL_OK && (opt->decode || opt->merge)) st = tune_chunks(b, opt, &t, rows, err);
    if (st == PL_OK && opt->decode) st = tune_v1(b, opt, &t, rows, err);
    if (st == PL_OK && opt->cascade) st = tune_cascade(b, opt, &t, rows, err);
    if (st != PL_OK) {
        json_decref(rows);
        return st;
    }
    snprintf(t.source, sizeof t.source, "measured");
    *out = t;
    *report = rows;
    return PL_OK;
}
