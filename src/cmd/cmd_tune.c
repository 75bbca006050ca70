/* plumb tune - measures what the planner of decode attention should know of a device, and keeps it for that device. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "cmd/bench_op.h"
#include "cmd/cmd.h"
#include "cmd/common.h"
#include "cmd/out.h"
#include "tune/paged.h"
#include "tune/table.h"

struct tune {
    const char *op, *backend, *file;
    uint32_t device, len, page, heads, kv_heads, dim;
    bool report, dry;
};

static void show(void *user, const char *what) {
    (void)user;
    fprintf(stderr, "plumb tune: %s\n", what);
}

static enum pl_status check(const struct tune *t, struct pl_tune_options *o, struct pl_err *err) {
    bool all = t->op == NULL || strcmp(t->op, "all") == 0;
    *o = (struct pl_tune_options){
        .shape = {.kv = PL_F16, .page_tokens = t->page, .heads = t->heads, .kv_heads = t->kv_heads, .head_dim = t->dim},
        .len_max = t->len,
        .decode = all || strcmp(t->op, "paged-decode") == 0,
        .merge = all || strcmp(t->op, "merge") == 0,
        .cascade = all || strcmp(t->op, "cascade") == 0,
        .progress = show};
    if (!o->decode && !o->merge && !o->cascade)
        PL_FAIL(err, PL_USAGE, "--op '%.40s' is not known: paged-decode, merge, cascade, all", t->op);
    if (t->heads % t->kv_heads != 0)
        PL_FAIL(err, PL_USAGE, "--heads %u is no multiple of --kv-heads %u", t->heads, t->kv_heads);
    return PL_OK;
}

static json_t *values(const struct pl_attn_table *a) {
    return json_pack("{s:I, s:f, s:f, s:f, s:I, s:I, s:I}", "slots", (json_int_t)a->slots, "chunk_cost",
                     (double)a->chunk_cost, "merge_cost", (double)a->merge_cost, "member_cost", (double)a->member_cost,
                     "span_min", (json_int_t)a->span_min, "members_min", (json_int_t)a->members_min, "v1_tokens_max",
                     (json_int_t)a->v1_tokens_max);
}

static enum pl_status measure(const struct tune *t, const struct pl_tune_options *o, struct pl_paged_bed *bed,
                              struct pl_err *err) {
    const struct pl_device_info *d = pl_paged_bed_device(bed);
    struct pl_attn_table table;
    char path[1024];
    json_t *rows = NULL;
    if (t->file != NULL)
        snprintf(path, sizeof path, "%s", t->file);
    else
        PL_TRY(pl_tune_path(d, path, sizeof path, err));
    pl_tune_or_built_in(d, &table);
    PL_TRY(pl_tune_paged(bed, o, &table, &rows, err));
    enum pl_status st = t->dry ? PL_OK : pl_tune_store(d, path, &table, rows, err);
    if (st == PL_OK && t->report)
        st = pl_cmd_print_json(
            json_pack("{s:s, s:o, s:O}", "file", t->dry ? "" : path, "attention", values(&table), "report", rows), err);
    json_decref(rows);
    if (st == PL_OK && !t->report) {
        pl_out_printf(
            "slots %u, chunk %.3g, merge %.3g, member %.3g; cascade from %u pages and %u sequences; one pass up to "
            "%u tokens\n%s%s\n",
            table.slots, (double)table.chunk_cost, (double)table.merge_cost, (double)table.member_cost, table.span_min,
            table.members_min, table.v1_tokens_max, t->dry ? "not kept" : "kept in ", t->dry ? "" : path);
    }
    return st;
}

static int run(const struct tune *t) {
    struct pl_err err = {0};
    struct pl_tune_options o;
    struct pl_paged_bed *bed = NULL;
    enum pl_device_kind kind;
    if (check(t, &o, &err) != PL_OK) return pl_cmd_usage("tune", "%s", err.text);
    enum pl_status st = pl_cmd_can_write(t->dry ? NULL : t->file, "table", &err);
    if (st == PL_OK) st = pl_cmd_pick_device(t->backend, &kind, &err);
    if (st == PL_OK) st = pl_paged_bed_open(kind, (int)t->device, &bed, &err);
    if (st == PL_OK) {
        char line[400];
        pl_device_line(pl_paged_bed_device(bed), line, sizeof line);
        fprintf(stderr, "plumb tune: %s\n", line);
        st = measure(t, &o, bed, &err);
    }
    pl_paged_bed_close(bed);
    if (st == PL_OK) return pl_out_close();
    err.status = st;
    return pl_cmd_fail("tune", &err);
}

int pl_cmd_tune(int argc, char **argv) {
    struct tune t = {.len = 8192, .page = 32, .heads = 32, .kv_heads = 8, .dim = 128};
    const struct pl_arg own[] = {
        {0, "op", "NAME", PL_ARG_STR, &t.op, "paged-decode, merge, cascade or all (default)", 0, 0, NULL},
        {0, "backend", "NAME", PL_ARG_STR, &t.backend, "auto, cuda, rocm, opencl", 0, 0, NULL},
        {0, "device", "N", PL_ARG_U32, &t.device, "index of the device on that backend", 0, 1024, NULL},
        {0, "len", "N", PL_ARG_U32, &t.len, "longest sequence timed (8192)", 64, 1 << 20, NULL},
        {0, "page", "N", PL_ARG_U32, &t.page, "tokens of a page (32)", 16, 64, NULL},
        {0, "heads", "N", PL_ARG_U32, &t.heads, "query heads (32)", 1, 65535, NULL},
        {0, "kv-heads", "N", PL_ARG_U32, &t.kv_heads, "key and value heads (8)", 1, 65535, NULL},
        {0, "dim", "N", PL_ARG_U32, &t.dim, "head size (128)", 1, 576, NULL},
        {0, "file", "FILE", PL_ARG_STR, &t.file, "keep the table here instead of the user's data directory", 0, 0, NULL},
        {0, "report", NULL, PL_ARG_FLAG, &t.report, "print what was timed and chosen as JSON", 0, 0, NULL},
        {0, "dry-run", NULL, PL_ARG_FLAG, &t.dry, "keep nothing", 0, 0, NULL},
        {0},
    };
    struct pl_args args = {
        .command = "tune",
        .synopsis = "[--op NAME] [--backend NAME] [--report]",
        .about =
            "Times decode attention on a device and keeps the planner's constants and floors for that device, driver and\n"
            "build. Without a table the built-in ones are used.",
        .examples = "  plumb tune\n  plumb tune --backend opencl --op cascade --report\n",
        .groups = (const struct pl_arg *const[]){own, NULL},
    };
    int code = pl_args_parse(&args, argc, argv);
    return code == -1 ? run(&t) : code;
}
