#include "cmd/bench_linear.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/common.h"
#include "cmd/out.h"
#include "ops/choose.h"
#include "plumb.h"
#include "tune/host_bandwidth.h"
#include "tune/linear_bench.h"

enum { TYPES_MAX = 16, ROWS_MAX = 16, WAYS_MAX = 8, ROWS_LIMIT = 4096 };
static const double SAME = 0.05; /* times nearer than this are not called faster */

struct cell {
    bool done, declined;
    struct pl_linear_time t;
    char why[200];
};
struct table {
    enum pl_dtype type[TYPES_MAX];
    uint32_t rows[ROWS_MAX], out, in;
    size_t types, row_count, ways;
    enum pl_impl way[WAYS_MAX]; /* way 0: as planned */
    struct cell cell[TYPES_MAX][ROWS_MAX][WAYS_MAX];
    char backend[256];
    double ceiling; /* bytes/s */
};

static const char *way_name(const struct table *t, size_t w) { return w == 0 ? "planned" : pl_impl_name(t->way[w]); }

/* ---------- what is asked for ---------- */

static enum pl_status parse_types(const char *list, struct table *t, struct pl_err *err) {
    if (list == NULL) list = "f16,q8_0,q4_0,q4_k";
    for (const char *at = list; *at != '\0';) {
        char name[24];
        size_t len = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)PL_MIN(len, sizeof name - 1), at);
        if (t->types == TYPES_MAX) PL_FAIL(err, PL_USAGE, "--types: more than %d", TYPES_MAX);
        if (!pl_dtype_from_name(name, &t->type[t->types])) PL_FAIL(err, PL_USAGE, "--types: there is no type '%s'", name);
        t->types++;
        at += len + (at[len] == ',');
    }
    return PL_OK;
}

static enum pl_status parse_rows(const char *list, struct table *t, struct pl_err *err) {
    if (list == NULL) list = "1,2,4,8,16,32,64,128";
    for (const char *at = list; *at != '\0';) {
        char *end;
        unsigned long n = strtoul(at, &end, 10);
        if (end == at || (*end != ',' && *end != '\0') || n < 1 || n > ROWS_LIMIT || t->row_count == ROWS_MAX)
            PL_FAIL(err, PL_USAGE, "--rows '%.60s' must be up to %d numbers from 1 to %d, with commas", list, ROWS_MAX,
                    ROWS_LIMIT);
        t->rows[t->row_count++] = (uint32_t)n;
        at = end + (*end == ',');
    }
    return PL_OK;
}

static enum pl_status parse_shape(const char *shape, bool cpu, struct table *t, struct pl_err *err) {
    unsigned out = cpu ? 1024 : 4096, in = 4096;
    char rest;
    if (shape != NULL && (sscanf(shape, "%ux%u%c", &out, &in, &rest) != 2 || out < 32 || in < 256 || in % 256 != 0 ||
                          (uint64_t)out * in % 8192 != 0 || (uint64_t)out * in > 1u << 30))
        PL_FAIL(err, PL_USAGE, "--shape '%.40s' must be OUTxIN, IN a multiple of 256, together a multiple of 8192", shape);
    t->out = out;
    t->in = in;
    return PL_OK;
}

/* Besides the plan, every implementation of the backend; on a CPU those differ by instruction set and are asked for by name.
 */
static enum pl_status choose_ways(const struct pl_bench_op *o, enum pl_backend b, struct table *t, struct pl_err *err) {
    enum pl_impl list[PL_IMPL_COUNT];
    size_t n = pl_impl_ranked(b, PL_OP_linear, list), found = 0, wanted = 0;
    t->ways = 1;
    for (const char *at = o->compare; at != NULL && *at != '\0'; at += strcspn(at, ","), at += *at == ',') wanted++;
    for (size_t i = 0; i < n && t->ways < WAYS_MAX; i++) {
        const char *name = pl_impl_name(list[i]);
        size_t len = strlen(name);
        bool named = false;
        for (const char *at = o->compare; at != NULL && *at != '\0'; at += strcspn(at, ","), at += *at == ',')
            named |= strncmp(at, name, len) == 0 && (at[len] == '\0' || at[len] == ',');
        found += named;
        if (named || (o->compare == NULL && b != PL_BACKEND_CPU && n > 1)) t->way[t->ways++] = list[i];
    }
    if (found < wanted) PL_FAIL(err, PL_USAGE, "--compare '%.60s': unknown implementation of products", o->compare);
    return PL_OK;
}

/* ---------- measuring ---------- */

static enum pl_status time_way(struct pl_ops_options opt, size_t way, bool quick, struct table *t, struct pl_err *err) {
    struct pl_linear_bed *bed = NULL;
    char force[64];
    uint32_t most = 1;
    for (size_t r = 0; r < t->row_count; r++) most = PL_MAX(most, t->rows[r]);
    snprintf(force, sizeof force, "linear=%s", pl_impl_name(t->way[way]));
    if (way > 0) opt.force = force;
    PL_TRY(pl_linear_bed_open(&opt, most, opt.backend == PL_BACKEND_CPU ? 32u << 20 : 160u << 20, &bed, err));
    if (way == 0) snprintf(t->backend, sizeof t->backend, "%s", pl_linear_bed_describe(bed));
    for (size_t i = 0; i < t->types; i++) {
        for (size_t r = 0; r < t->row_count; r++) {
            struct cell *c = &t->cell[i][r][way];
            struct pl_linear_case k = {t->type[i], t->out, t->in, t->rows[r]};
            struct pl_err why = {0};
            enum pl_status st = pl_linear_bed_time(bed, &k, quick, &c->t, &why);
            c->done = true;
            c->declined = st != PL_OK;
            snprintf(c->why, sizeof c->why, "%.190s", why.text);
            if (st != PL_OK &&
                (st == PL_DEVICE || (way == 0 && st != PL_UNSUPPORTED))) { /* nothing after it can be trusted */
                *err = why;
                pl_linear_bed_close(bed);
                return st;
            }
        }
    }
    pl_linear_bed_close(bed);
    return PL_OK;
}

static enum pl_status measure(const struct pl_bench_op *o, struct table *t, struct pl_err *err) {
    static const enum pl_device_kind kinds[PL_BACKEND_COUNT] = {
        [PL_BACKEND_CUDA] = PL_DEVICE_CUDA, [PL_BACKEND_ROCM] = PL_DEVICE_ROCM, [PL_BACKEND_OPENCL] = PL_DEVICE_OPENCL};
    struct pl_ops_options opt = {.device = (int)o->device,
                                 .threads = o->threads,
                                 .pin = o->pin,
                                 .isa = o->isa,
                                 .force = o->force,
                                 .disable = o->disable};
    char why[200];
    if (o->backend == NULL || strcmp(o->backend, "auto") == 0)
        opt.backend = o->isa != NULL ? PL_BACKEND_CPU : pl_ops_auto(why, sizeof why); /* a set asks for the CPU */
    else if (!pl_backend_from_name(o->backend, &opt.backend) || opt.backend == PL_BACKEND_METAL)
        PL_FAIL(err, PL_USAGE, "--backend is '%.40s' but must be cpu, cuda, rocm or opencl", o->backend);
    bool cpu = opt.backend == PL_BACKEND_CPU;
    PL_TRY(parse_types(o->types, t, err));
    PL_TRY(parse_rows(o->rows, t, err));
    PL_TRY(parse_shape(o->shape, cpu, t, err));
    PL_TRY(choose_ways(o, opt.backend, t, err));
    PL_TRY(cpu ? pl_host_read_bandwidth(o->threads, 32u << 20, &t->ceiling, err)
               : pl_cmd_read_bandwidth(kinds[opt.backend], opt.device, &t->ceiling, err));
    for (size_t w = 0; w < t->ways; w++) {
        PL_TRY(time_way(opt, w, o->quick, t, err));
        pl_progress("products", w + 1, t->ways, false);
    }
    pl_progress_end();
    return PL_OK;
}

/* ---------- judging ---------- */

static bool ran(const struct cell *c) { return c->done && !c->declined && c->t.us > 0; }

/* The fastest way of a cell; the plan where nothing is clearly faster. */
static size_t fastest(const struct table *t, size_t type, size_t row) {
    size_t best = 0;
    for (size_t w = 1; w < t->ways; w++) {
        const struct cell *c = &t->cell[type][row][w], *b = &t->cell[type][row][best];
        if (ran(c) && (!ran(b) || c->t.us < b->t.us * (1 - SAME))) best = w;
    }
    return best;
}

/* Where the fastest implementation changes as rows grow, and how much the plan loses at worst. */
static json_t *crossings(const struct table *t) {
    json_t *list = json_array();
    for (size_t i = 0; i < t->types; i++) {
        char before[160] = "";
        for (size_t r = 0; r < t->row_count; r++) {
            const struct cell *best = &t->cell[i][r][fastest(t, i, r)], *plan = &t->cell[i][r][0];
            if (!ran(best) || strcmp(best->t.kernel, before) == 0) continue;
            snprintf(before, sizeof before, "%s", best->t.kernel);
            json_array_append_new(list, json_pack("{s:s, s:I, s:s, s:s, s:f}", "type", pl_dtype_name(t->type[i]),
                                                  "from_rows", (json_int_t)t->rows[r], "fastest", best->t.kernel, "planned",
                                                  ran(plan) ? plan->t.kernel : "declined", "planned_over_fastest",
                                                  ran(plan) ? plan->t.us / best->t.us : 0.0));
        }
    }
    return list;
}

static double worst_plan(const struct table *t) {
    double worst = 1;
    for (size_t i = 0; i < t->types; i++) {
        for (size_t r = 0; r < t->row_count; r++) {
            const struct cell *best = &t->cell[i][r][fastest(t, i, r)], *plan = &t->cell[i][r][0];
            if (ran(best) && ran(plan)) worst = PL_MAX(worst, plan->t.us / best->t.us);
        }
    }
    return worst;
}

static double gb_s(const struct cell *c) { return (double)c->t.bytes / c->t.us / 1e3; }
static double percent(const struct table *t, const struct cell *c) {
    return t->ceiling > 0 ? 100e9 * gb_s(c) / t->ceiling : 0;
}

static json_t *cells_json(const struct table *t) {
    json_t *list = json_array();
    for (size_t i = 0; i < t->types; i++) {
        for (size_t r = 0; r < t->row_count; r++) {
            for (size_t w = 0; w < t->ways; w++) {
                const struct cell *c = &t->cell[i][r][w];
                json_t *row = json_pack("{s:s, s:I, s:s}", "type", pl_dtype_name(t->type[i]), "rows", (json_int_t)t->rows[r],
                                        "way", way_name(t, w));
                if (c->declined)
                    json_object_set_new(row, "declined", json_string(c->why));
                else
                    json_object_update_new(row, json_pack("{s:f, s:f, s:f, s:f, s:s}", "us", c->t.us, "gb_s", gb_s(c),
                                                          "percent_of_ceiling", percent(t, c), "gflop_s",
                                                          c->t.flops / c->t.us / 1e3, "kernel", c->t.kernel));
                json_array_append_new(list, row);
            }
        }
    }
    return list;
}

static void print_table(const struct table *t) {
    pl_out_printf(
        "backend  %s\nshape    %u x %u, matrices in turn\nceiling  %.1f GB/s read here\n\n%-8s %5s %-12s %10s %9s %6s "
        "%10s  %s\n",
        t->backend, t->out, t->in, t->ceiling / 1e9, "type", "rows", "way", "us", "GB/s", "%", "GFLOP/s", "kernel");
    for (size_t i = 0; i < t->types; i++) {
        for (size_t r = 0; r < t->row_count; r++) {
            for (size_t w = 0; w < t->ways; w++) {
                const struct cell *c = &t->cell[i][r][w];
                pl_out_printf("%-8s %5u %-12s ", pl_dtype_name(t->type[i]), t->rows[r], way_name(t, w));
                if (c->declined)
                    pl_out_printf("declined: %s\n", c->why);
                else
                    pl_out_printf("%10.1f %9.1f %6.1f %10.1f  %s\n", c->t.us, gb_s(c), percent(t, c),
                                  c->t.flops / c->t.us / 1e3, c->t.kernel);
            }
        }
    }
    pl_out_printf("\nthe plan takes at most %.2f times as long as the fastest\n", worst_plan(t));
}

int pl_bench_linear_run(const struct pl_bench_op *o) {
    struct pl_err err = {0};
    static struct table t;
    t = (struct table){0};
    enum pl_status st = measure(o, &t, &err);
    if (st == PL_USAGE) return pl_cmd_usage("bench", "%s", err.text);
    if (st == PL_OK && o->json)
        st = pl_cmd_print_json(json_pack("{s:s, s:s, s:s, s:f, s:I, s:I, s:f, s:o, s:o}", "op", "linear", "backend",
                                         t.backend, "build_id", plumb_build_id(), "read_ceiling_gb_s", t.ceiling / 1e9,
                                         "out", (json_int_t)t.out, "in", (json_int_t)t.in, "planned_over_fastest_max",
                                         worst_plan(&t), "cross_over", crossings(&t), "rows", cells_json(&t)),
                               &err);
    if (st == PL_OK && !o->json) print_table(&t);
    if (st == PL_OK) return pl_out_close();
    err.status = st;
    return pl_cmd_fail("bench", &err);
}
