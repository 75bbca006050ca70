/* plumb cache - the folder of compiled kernels: what is in it, how large it is, and emptying it. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/mem.h"
#include "cmd/args.h"
#include "cmd/cmd.h"
#include "cmd/common.h"
#include "cmd/out.h"
#include "jit/jit.h"
#include "ops/ship.h"

struct cache {
    bool json, clear;
    const char *ship, *shape, *type;
    char dir[1024];
    struct pl_jit_entry *entries;
    size_t count;
    uint64_t bytes;
};

static int print_json(const struct cache *c) {
    json_t *rows = json_array(), *o;
    for (size_t i = 0; i < c->count; i++) {
        const struct pl_jit_entry *e = &c->entries[i];
        json_array_append_new(rows, json_pack("{s:s, s:I, s:I, s:b, s:s, s:s, s:s, s:s, s:s}", "file", e->file, "bytes",
                                              (json_int_t)e->bytes, "used", (json_int_t)e->used_s, "sound", e->sound, "kind",
                                              e->kind, "target", e->target, "compiler", e->compiler, "entry", e->entry,
                                              "values", e->values));
    }
    o = json_pack("{s:s, s:I, s:I, s:o}", "dir", c->dir, "bytes", (json_int_t)c->bytes, "count", (json_int_t)c->count,
                  "entries", rows);
    char *text = json_dumps(o, JSON_INDENT(2));
    json_decref(o);
    if (text == NULL) return PL_EXIT_FAILED;
    pl_out_printf("%s\n", text);
    free(text);
    return pl_out_close();
}

static int print_text(const struct cache *c) {
    for (size_t i = 0; i < c->count; i++) {
        const struct pl_jit_entry *e = &c->entries[i];
        char day[32] = "";
        time_t t = (time_t)e->used_s;
        struct tm tm;
        if (localtime_r(&t, &tm) != NULL) strftime(day, sizeof day, "%Y-%m-%d %H:%M", &tm);
        if (e->sound) {
            pl_out_printf("%8.1f KB  %s  %-6s %-20s %s  (%.40s)\n", (double)e->bytes / 1e3, day, e->kind, e->entry,
                          e->values, e->target);
        } else {
            pl_out_printf("%8.1f KB  %s  damaged: %s\n", (double)e->bytes / 1e3, day, e->file);
        }
    }
    if (c->dir[0] == 0) {
        pl_out_printf("there is no kernel cache yet\n");
    } else {
        pl_out_printf("%zu kernel%s, %.1f MB in %s\n", c->count, c->count == 1 ? "" : "s", (double)c->bytes / 1e6, c->dir);
    }
    return pl_out_close();
}

static int clear(void) {
    struct pl_jit_options opt = {.mode = PL_JIT_ON};
    struct pl_err err = {0};
    size_t removed = 0;
    uint64_t bytes = 0;
    if (pl_jit_cache_clear(&opt, &removed, &bytes, &err) != PL_OK) return pl_cmd_fail("cache", &err);
    pl_out_printf("removed %zu file%s, %.1f MB\n", removed, removed == 1 ? "" : "s", (double)bytes / 1e6);
    return pl_out_close();
}

static void show_compiling(uint64_t done, uint64_t total) { pl_progress("compiling kernels", done, total, false); }

static int ship(const struct cache *c) {
    struct pl_err err = {0};
    size_t count = 0;
    struct pl_ship what = {.type = c->type, .progress = show_compiling};
    const char *path = c->ship;
    int end = 0;
    if (c->shape != NULL && (sscanf(c->shape, "%3u,%3u,%4u%n", &what.heads, &what.kv_heads, &what.head_dim, &end) != 3 ||
                             c->shape[end] != 0 || what.kv_heads == 0 || what.heads % what.kv_heads != 0 ||
                             what.heads == 0 || what.head_dim == 0 || what.head_dim > 1024))
        return pl_cmd_usage("cache", "--shape is '%.40s', expected heads, KV heads and head size: 32,8,128", c->shape);
    if (pl_cmd_can_write(path, "kernels", &err) != PL_OK) return pl_cmd_fail("cache", &err);
    enum pl_status s = pl_ops_ship(path, &what, &count, &err);
    pl_progress_end();
    if (s != PL_OK) return pl_cmd_fail("cache", &err);
    pl_out_printf("%zu kernels in %s\n", count, path);
    return pl_out_close();
}

int pl_cmd_cache(int argc, char **argv) {
    struct cache c = {0};
    struct pl_err err = {0};
    const struct pl_arg options[] = {
        {0, "clear", NULL, PL_ARG_FLAG, &c.clear, "remove every kernel", 0, 0, NULL},
        {0, "json", NULL, PL_ARG_FLAG, &c.json, "as a JSON object", 0, 0, NULL},
        {0, "ship", "FILE", PL_ARG_STR, &c.ship, "compile the default CUDA kernels into FILE, for machines without NVRTC", 0,
         0, NULL},
        {0, "shape", "H,G,D", PL_ARG_STR, &c.shape, "with --ship: heads, KV heads and head size, not the known families'", 0,
         0, NULL},
        {0, "type", "TYPE", PL_ARG_STR, &c.type, "with --ship: this weight type alone", 0, 0, NULL},
        {0},
    };
    struct pl_args args = {
        .command = "cache",
        .synopsis = "[--clear | --json | --ship FILE]",
        .about = "Lists the compiled kernels that are kept on disk, last used first.",
        .examples = "  plumb cache\n  plumb cache --json | jq .bytes\n  plumb cache --clear\n",
        .groups = (const struct pl_arg *const[]){options, NULL},
    };
    int code = pl_args_parse(&args, argc, argv);
    if (code != -1) return code;
    if (c.clear + c.json + (c.ship != NULL) > 1)
        return pl_cmd_usage("cache", "--clear, --json and --ship exclude each other");
    if (c.ship == NULL && (c.shape != NULL || c.type != NULL))
        return pl_cmd_usage("cache", "--shape and --type need --ship");
    if (c.ship != NULL) return ship(&c);
    if (c.clear) return clear();
    struct pl_jit_options opt = {.mode = PL_JIT_ON};
    if (pl_jit_cache_list(&opt, c.dir, sizeof c.dir, &c.entries, &c.count, &err) != PL_OK) return pl_cmd_fail("cache", &err);
    for (size_t i = 0; i < c.count; i++) c.bytes += c.entries[i].bytes;
    code = c.json ? print_json(&c) : print_text(&c);
    pl_free(c.entries);
    return code;
}
