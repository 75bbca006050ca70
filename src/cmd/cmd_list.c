/* plumb list - what is in the store; plumb rm - takes a model out of it. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cmd/args.h"
#include "cmd/cmd.h"
#include "cmd/out.h"
#include "cmd/sources.h"
#include "cmd/store.h"

/* A pull that ended before its first byte. */
static bool is_nothing(const struct pl_stored *s) { return !s->complete && s->bytes == 0; }

static bool print_line(void *user, const struct pl_stored *s) {
    size_t *count = user;
    if (is_nothing(s)) return true;
    if ((*count)++ == 0) pl_out_printf("%-44s %9s  %s\n", "NAME", "MB", "SOURCE");
    pl_out_printf("%-44s %9.1f  %s\n", s->name, (double)s->bytes / 1e6,
                  s->complete ? s->source : "(unfinished: pull it again or rm it)");
    return true;
}

static bool add_json(void *user, const struct pl_stored *s) {
    if (is_nothing(s)) return true;
    json_t *row = json_pack("{s:s, s:s, s:I, s:b, s:s}", "name", s->name, "source", s->source, "bytes", (json_int_t)s->bytes,
                            "complete", s->complete, "directory", s->dir);
    return json_array_append_new(user, row) == 0;
}

static int list_known(void) {
    const char *about;
    for (size_t i = 0; pl_pull_known_at(i, &about) != NULL; i++)
        pl_out_printf("%-24s %s\n", pl_pull_known_at(i, NULL), about);
    return pl_out_close();
}

static int list_json(void) {
    struct pl_err err = {0};
    json_t *rows = json_array();
    if (pl_store_each(add_json, rows, &err) != PL_OK) {
        json_decref(rows);
        return pl_cmd_fail("list", &err);
    }
    char *text = json_dumps(rows, JSON_INDENT(2));
    json_decref(rows);
    if (text == NULL) return PL_EXIT_FAILED;
    pl_out_printf("%s\n", text);
    free(text);
    return pl_out_close();
}

int pl_cmd_list(int argc, char **argv) {
    bool json = false, known = false;
    const struct pl_arg options[] = {
        {0, "json", NULL, PL_ARG_FLAG, &json, "as a JSON array", 0, 0, NULL},
        {0, "known", NULL, PL_ARG_FLAG, &known, "the models that plumb knows by name", 0, 0, NULL},
        {0},
    };
    struct pl_args args = {
        .command = "list",
        .synopsis = "[--json | --known]",
        .about = "Lists the stored models.",
        .examples = "  plumb list\n  plumb list --json | jq -r '.[].name'\n",
        .groups = (const struct pl_arg *const[]){options, NULL},
    };
    int code = pl_args_parse(&args, argc, argv);
    if (code != -1) return code;
    if (json && known) return pl_cmd_usage("list", "--json and --known exclude each other");
    if (known) return list_known();
    if (json) return list_json();
    struct pl_err err = {0};
    size_t count = 0;
    if (pl_store_each(print_line, &count, &err) != PL_OK) return pl_cmd_fail("list", &err);
    if (count == 0) pl_out_str("no models are stored yet; 'plumb pull smollm2-135m-instruct' fetches a small one\n");
    return pl_out_close();
}

static enum pl_status remove_one(const char *name, struct pl_err *err) {
    char *dir;
    struct pl_stored s;
    PL_TRY(pl_store_model_dir(strncmp(name, "hf:", 3) == 0 ? name + 3 : name, &dir, err));
    enum pl_status st = pl_stored_read(dir, &s, err);
    pl_free(dir);
    if (st == PL_NOT_FOUND) PL_FAIL(err, st, "%.200s: no stored model has that name ('plumb list' shows them)", name);
    PL_TRY(st);
    st = pl_stored_remove(&s, err);
    pl_stored_deinit(&s);
    return st;
}

int pl_cmd_rm(int argc, char **argv) {
    enum { MAX = 64 };
    const char *names[MAX];
    const struct pl_arg options[] = {{0}};
    struct pl_args args = {
        .command = "rm",
        .synopsis = "NAME...",
        .about = "Removes models from the store, finished or not.",
        .examples = "  plumb rm smollm2-135m-instruct\n",
        .groups = (const struct pl_arg *const[]){options, NULL},
        .positional_max = MAX,
        .positional = names,
    };
    int code = pl_args_parse(&args, argc, argv);
    if (code != -1) return code;
    if (args.positional_count == 0) return pl_cmd_usage("rm", "which model? ('plumb list' shows them)");
    for (size_t i = 0; i < args.positional_count; i++) {
        struct pl_err err = {0};
        if (remove_one(names[i], &err) != PL_OK) return pl_cmd_fail("rm", &err);
    }
    return pl_out_close();
}
