/* verify - the whole verification pass: lists its plan, runs each item in a process of its own, writes one report. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cmd/ab.h"
#include "cmd/cmd.h"
#include "cmd/common.h"
#include "cmd/out.h"
#include "cmd/store.h"
#include "verify/spawn.h"
#include "verify/verify.h"

struct verify {
    struct pl_verify_options o;
    const char *model, *threads, *item, *only;
    bool plan, resume, json;
    uint32_t budget_s; /* 0: none */
    double deadline;   /* when the budget is used up */
    char self[1024];
    struct pl_buf flags;
    char *path; /* of the model, owned; of the others likewise */
    const char *route_models[PL_VERIFY_ROUTE_MODELS];
    char *route_paths[PL_VERIFY_ROUTE_MODELS];
    size_t route_model_count;
    json_t *report;
    int argc;
    char **argv;
};

static enum pl_status add_route_model(void *out, const char *value, struct pl_err *err) {
    struct verify *v = out;
    if (v->route_model_count == PL_VERIFY_ROUTE_MODELS)
        PL_FAIL(err, PL_USAGE, "--route-model was given more than %d times", PL_VERIFY_ROUTE_MODELS);
    v->route_models[v->route_model_count++] = value;
    return PL_OK;
}

static int parse(struct verify *v, int argc, char **argv) {
    struct pl_verify_options *o = &v->o;
    const struct pl_arg own[] = {
        {'m', "model", "MODEL", PL_ARG_STR, &v->model, "the model to verify with; without one only what needs none", 0, 0,
         NULL},
        {0, "backend", "NAME", PL_ARG_STR, &o->backend, "must be what runs: cpu, cuda, rocm, opencl", 0, 0, NULL},
        {'t', "threads", "N", PL_ARG_STR, &v->threads, "CPU threads", 0, 0, NULL},
        {'c', "context", "N", PL_ARG_U32, &o->context, "tokens a sequence may hold (0 = the model's own, at most 4096)", 0,
         1 << 20, NULL},
        {0, "flags", "FLAGS", PL_ARG_STR, &o->flags, "further options of the engine, for every item", 0, 0, NULL},
        {0, "url", "URL", PL_ARG_STR, &o->url, "anyone's server instead: what can be known from outside", 0, 0, NULL},
        {0, "api-key", "KEY", PL_ARG_STR, &o->api_key, "sent to the server", 0, 0, NULL},
        {0, "quick", NULL, PL_ARG_FLAG, &o->quick, "a small selection of each item: under two minutes on a CPU", 0, 0, NULL},
        {0, "plan", NULL, PL_ARG_FLAG, &v->plan, "only list the items", 0, 0, NULL},
        {0, "only", "ITEM,..", PL_ARG_STR, &v->only, "these items", 0, 0, NULL},
        {0, "report", "DIR", PL_ARG_STR, &o->dir, "where verify.md and verify.json go (plumb-verify)", 0, 0, NULL},
        {0, "resume", NULL, PL_ARG_FLAG, &v->resume, "keep the items that an interrupted run finished", 0, 0, NULL},
        {0, "against", "FILE|BUILD", PL_ARG_STR, &o->against,
         "fail on what is worse than in this report, or with this plumb", 0, 0, NULL},
        {0, "tests", "JUNIT.xml,..", PL_ARG_STR, &o->tests, "results of the test suite, for the report and --against", 0, 0,
         NULL},
        {0, "order", "JUNIT.xml,..", PL_ARG_STR, &o->order,
         "results of the same suite in other orders: every test must end as in --tests", 0, 0, NULL},
        {0, "route-model", "MODEL", PL_ARG_EACH, v,
         "a further model for routes that MODEL does not reach; may be given several times", 0, 0, add_route_model},
        {0, "floor", "PERCENT", PL_ARG_U32, &o->floor, "decoding below this part of the read ceiling is a failure", 0, 1000,
         NULL},
        {0, "jobs", "N", PL_ARG_U32, &o->jobs,
         "items at once, but for those that measure time (0 = a quarter of the CPUs, up to 4, as memory allows)", 0, 16,
         NULL},
        {0, "timeout", "SECONDS", PL_ARG_U32, &o->timeout_s, "of one item (3600)", 1, 86400, NULL},
        {0, "budget", "SECONDS", PL_ARG_U32, &v->budget_s,
         "begin nothing after so long, and keep nothing that did not end: --resume goes on (0 = no end)", 0, 1 << 30, NULL},
        {0, "json", NULL, PL_ARG_FLAG, &v->json, "print the report as JSON instead of Markdown", 0, 0, NULL},
        {0, "item", "ITEM", PL_ARG_STR, &v->item, "run one item here and print its result as JSON", 0, 0, NULL},
        {0},
    };
    struct pl_args args = {
        .command = "verify",
        .synopsis = "[-m MODEL | --url URL] [--quick] [--report DIR] [--against FILE|BUILD]",
        .about = "Answers, item by item and with evidence, which backend and kernels run, whether operations are right,\n"
                 "outputs equal, counters as expected, nothing slower. Exit code 0: all passed or skipped with a\n"
                 "reason, 1: something failed, 2: something is inconclusive, 64: wrong usage.",
        .examples = "  plumb verify -m model.gguf --quick\n"
                    "  plumb verify -m model.gguf --backend cuda --report before\n"
                    "  plumb verify -m model.gguf --backend cuda --report after --against before/verify.json\n"
                    "  plumb verify -m model.gguf --against old/plumb\n"
                    "  plumb verify --url http://127.0.0.1:8080\n",
        .groups = (const struct pl_arg *const[]){own, NULL}};
    return pl_args_parse(&args, argc, argv);
}

/* Every file of a list with commas can be read. */
static enum pl_status check_files(const char *option, const char *list, struct pl_err *err) {
    for (const char *at = list; at != NULL && *at != '\0';) {
        char path[1200];
        size_t len = strcspn(at, ",");
        snprintf(path, sizeof path, "%.*s", (int)PL_MIN(len, sizeof path - 1), at);
        if (access(path, R_OK) != 0) PL_FAIL(err, PL_USAGE, "%s %.300s: %s", option, path, strerror(errno));
        at += len + (at[len] == ',');
    }
    return PL_OK;
}

static enum pl_status prepare(struct verify *v, struct pl_err *err) {
    struct pl_verify_options *o = &v->o;
    ssize_t n = readlink("/proc/self/exe", v->self, sizeof v->self - 1);
    if (n <= 0) PL_FAIL(err, PL_IO, "cannot find this program's own path: %s", strerror(errno));
    v->self[n] = '\0';
    o->self = v->self;
    enum pl_backend ignored;
    if (o->backend != NULL && !pl_backend_from_name(o->backend, &ignored))
        PL_FAIL(err, PL_USAGE, "--backend '%.40s' is not known: cpu, cuda, rocm, opencl", o->backend);
    if (o->url != NULL && strncmp(o->url, "http://", 7) != 0 && strncmp(o->url, "https://", 8) != 0)
        PL_FAIL(err, PL_USAGE, "'%.200s' is no http:// or https:// address", o->url);
    if (o->url != NULL && v->model != NULL) PL_FAIL(err, PL_USAGE, "-m and --url exclude each other");
    if (o->against != NULL && access(o->against, F_OK) != 0)
        PL_FAIL(err, PL_USAGE, "--against %.300s: %s", o->against, strerror(errno));
    PL_TRY(check_files("--tests", o->tests, err));
    PL_TRY(check_files("--order", o->order, err));
    if (o->order != NULL && o->tests == NULL)
        PL_FAIL(err, PL_USAGE, "--order needs --tests: the results in the usual order, to compare with");
    if (v->item != NULL && pl_verify_item_find(v->item) == NULL)
        PL_FAIL(err, PL_USAGE, "there is no item '%.40s' ('plumb verify --plan' lists them)", v->item);
    if (o->backend != NULL) pl_buf_printf(&v->flags, "--backend %s ", o->backend);
    if (o->context != 0) pl_buf_printf(&v->flags, "-c %u ", o->context);
    if (v->threads != NULL) pl_buf_printf(&v->flags, "-t %s ", v->threads);
    if (o->flags != NULL) pl_buf_add_c(&v->flags, o->flags);
    while (v->flags.len > 0 && v->flags.data[v->flags.len - 1] == ' ') v->flags.data[--v->flags.len] = '\0';
    o->flags = pl_buf_cstr(&v->flags);
    if (v->route_model_count > 0 && v->model == NULL)
        PL_FAIL(err, PL_USAGE, "--route-model needs -m: the model whose routes it adds to");
    if (v->model != NULL && !v->plan) {
        PL_TRY(pl_store_resolve(v->model, &v->path, err));
        o->model = v->path;
        for (size_t i = 0; i < v->route_model_count; i++) {
            PL_TRY(pl_store_resolve(v->route_models[i], &v->route_paths[i], err));
            o->route_models[o->route_model_count++] = v->route_paths[i];
        }
    } else {
        o->model = v->model;
    }
    return PL_OK;
}

/* ---------- which items ---------- */

static bool chosen(const struct verify *v, const struct pl_verify_item *i) {
    if (!pl_verify_item_planned(&v->o, i)) return false;
    if (v->only == NULL) return true;
    size_t len = strlen(i->name);
    for (const char *at = v->only; at != NULL; at = strchr(at, ',') != NULL ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, i->name, len) == 0 && (at[len] == '\0' || at[len] == ',')) return true;
    return false;
}

static enum pl_status check_only(const struct verify *v, struct pl_err *err) {
    if (v->only != NULL && v->only[strspn(v->only, ",")] == '\0') PL_FAIL(err, PL_USAGE, "--only names no item");
    for (const char *at = v->only; at != NULL && *at != '\0';) {
        char name[40];
        size_t len = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)PL_MIN(len, sizeof name - 1), at);
        const struct pl_verify_item *i = pl_verify_item_find(name);
        if (i == NULL || !pl_verify_item_planned(&v->o, i))
            PL_FAIL(err, PL_USAGE, "--only: there is no item '%s' here ('plumb verify --plan' lists them)", name);
        at += len + (at[len] == ',');
    }
    return PL_OK;
}

/* The items that run a model give it text: one that cannot take any ends all of it here, not item by item. */
static enum pl_status check_text(const struct verify *v, struct pl_err *err) {
    const struct plumb_engine_options opt = {.size = sizeof opt, .model = v->o.model};
    struct plumb_engine *e;
    bool asked = false;
    for (size_t i = 0; i < pl_verify_item_count; i++)
        asked |= pl_verify_items[i].needs_model && chosen(v, &pl_verify_items[i]);
    if (!asked || v->o.model == NULL) return PL_OK;
    PL_TRY(pl_engine_open(&opt, &e, err));
    enum pl_status st = pl_engine_need_text(e, err);
    plumb_engine_destroy(e);
    return st;
}

static void print_plan(FILE *to, const struct verify *v) {
    size_t n = 0;
    for (size_t i = 0; i < pl_verify_item_count; i++) {
        const struct pl_verify_item *it = &pl_verify_items[i];
        if (!chosen(v, it)) continue;
        fprintf(to, "%2zu. %-16s %s%s\n", ++n, it->name, it->what,
                it->needs_model && v->o.model == NULL ? " (will be skipped: needs -m MODEL)" : "");
    }
    if (v->o.against != NULL) fprintf(to, "%2zu. %-16s beside %s\n", ++n, "against", v->o.against);
}

/* ---------- the report on disk ---------- */

static const json_t *done(const struct verify *v, const char *name) {
    const json_t *items = json_object_get(v->report, "items");
    for (size_t i = 0; i < json_array_size(items); i++) {
        const char *n = json_string_value(json_object_get(json_array_get(items, i), "name"));
        if (n != NULL && strcmp(n, name) == 0) return json_array_get(items, i);
    }
    return NULL;
}

/* Items of the plan that have no result; said in the report. */
static size_t add_open_items(const struct verify *v) {
    json_t *open = json_object_get(v->report, "not_measured");
    size_t n = 0;
    for (size_t i = 0; i < pl_verify_item_count; i++) {
        const char *name = pl_verify_items[i].name;
        if (!chosen(v, &pl_verify_items[i]) || done(v, name) != NULL) continue;
        json_array_append_new(open, json_sprintf("%s: has not ended yet; --resume goes on", name));
        n++;
    }
    return n;
}

/* Whole at any time: after a kill, or at the end of its budget, it says UNFINISHED. */
static enum pl_status write_report(const struct verify *v, bool finished, struct pl_err *err) {
    struct pl_buf markdown = {0};
    pl_verify_report_finish(v->report);
    if (add_open_items(v) > 0 || !finished) {
        json_object_set_new(v->report, "verdict", json_string("UNFINISHED"));
        json_object_set_new(v->report, "exit_code", json_integer(PL_EXIT_INCONCLUSIVE));
    }
    char *json = json_dumps(v->report, JSON_INDENT(1));
    if (json == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for the report");
    pl_verify_report_markdown(v->report, &markdown);
    enum pl_status st = ab_write_file(v->o.dir, "verify.json.tmp", json, strlen(json), err);
    free(json);
    if (st == PL_OK) st = ab_write_file(v->o.dir, "verify.md", pl_buf_cstr(&markdown), markdown.len, err);
    pl_buf_clear(&markdown);
    pl_verify_report_junit(v->report, &markdown);
    if (st == PL_OK) st = ab_write_file(v->o.dir, "verify.xml", pl_buf_cstr(&markdown), markdown.len, err);
    pl_buf_deinit(&markdown);
    char from[1200], to[1200];
    snprintf(from, sizeof from, "%s/verify.json.tmp", v->o.dir);
    snprintf(to, sizeof to, "%s/verify.json", v->o.dir);
    if (st == PL_OK && rename(from, to) != 0) PL_FAIL(err, PL_IO, "cannot write %s: %s", to, strerror(errno));
    return st;
}

/* Results as this program writes them. */
static bool are_items(const json_t *items) {
    static const char *const texts[] = {"name", "what", "status", "summary"};
    bool good = json_is_array(items);
    for (size_t i = 0; i < json_array_size(items) && good; i++) {
        const json_t *item = json_array_get(items, i), *e = json_object_get(item, "evidence");
        const char *status = json_string_value(json_object_get(item, "status"));
        bool known = false;
        for (int s = 0; s < PL_VERIFY_STATUSES && status != NULL; s++)
            known |= strcmp(status, pl_verify_status_name((enum pl_verify_status)s)) == 0;
        for (size_t k = 0; k < PL_COUNT_OF(texts); k++) good = good && json_is_string(json_object_get(item, texts[k]));
        good = good && known && json_is_integer(json_object_get(item, "question")) &&
               json_is_number(json_object_get(item, "seconds")) && (json_is_object(e) || json_is_null(e));
    }
    return good;
}

/* Items of an interrupted run, if it was the same run. */
static enum pl_status take_back(struct verify *v, struct pl_err *err) {
    char path[1200];
    snprintf(path, sizeof path, "%s/verify.json", v->o.dir);
    json_t *old = json_load_file(path, 0, NULL);
    if (old == NULL) return PL_OK;
    bool whole = are_items(json_object_get(old, "items"));
    bool same = json_equal(json_object_get(old, "options"), json_object_get(v->report, "options")) &&
                json_equal(json_object_get(old, "build_id"), json_object_get(v->report, "build_id"));
    if (same && whole) {
        json_object_set(v->report, "items", json_object_get(old, "items"));
        json_object_set(v->report, "started", json_object_get(old, "started"));
    }
    json_decref(old);
    if (!same) PL_FAIL(err, PL_INVALID, "%s is of another build or other options: leave --resume out", path);
    if (!whole) PL_FAIL(err, PL_INVALID, "%s was changed by somebody: its items are none. Leave --resume out", path);
    return PL_OK;
}

/* ---------- running ---------- */

/* What shows this result again, as typed in a shell. */
static void add_command(json_t *result, char *const *argv) {
    struct pl_buf line = {0};
    for (size_t i = 0; argv[i] != NULL; i++) {
        bool plain = argv[i][0] != '\0' && argv[i][strspn(argv[i], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                                                   "0123456789-_=.,:/+@%")] == '\0';
        pl_buf_printf(&line, "%s%s", i > 0 ? " " : "", plain ? argv[i] : "'");
        for (const char *c = argv[i]; !plain && *c != '\0'; c++)
            if (*c == '\'')
                pl_buf_add_c(&line, "'\\''");
            else
                pl_buf_add_char(&line, *c);
        if (!plain) pl_buf_add_char(&line, '\'');
    }
    json_t *text = json_string(pl_buf_cstr(&line));
    if (text != NULL) json_object_set_new(result, "command", text);
    pl_buf_deinit(&line);
}

/* The item in a process of its own; what that process cannot say for itself is said here. out_of_time: the budget ended
 * before it did, and there is no result. */
static json_t *run_apart(const struct verify *v, const struct pl_verify_item *item, bool *out_of_time) {
    char *argv[80], flag[] = "--item";
    size_t n = 0;
    double left = v->budget_s > 0 ? PL_MAX(v->deadline - pl_clock_s(), 1) : v->o.timeout_s;
    bool cut = left < v->o.timeout_s;
    uint32_t limit = cut ? (uint32_t)ceil(left) : v->o.timeout_s; /* so that it ends with the budget, not before */
    argv[n++] = (char *)(uintptr_t)v->self;
    for (int i = 0; i < v->argc && n < 70; i++) argv[n++] = v->argv[i];
    argv[n++] = flag;
    argv[n++] = (char *)(uintptr_t)item->name;
    argv[n] = NULL;
    struct pl_spawned run = {0};
    struct pl_err err = {0};
    struct pl_verify_result r = {0};
    enum pl_status st = pl_spawn(argv, NULL, 0, limit, &run, &err);
    json_t *result = st == PL_OK ? json_loadb(pl_buf_cstr(&run.out), run.out.len, 0, NULL) : NULL;
    *out_of_time = cut && st == PL_OK && run.timed_out && !json_is_object(result);
    if (!json_is_object(result) && !*out_of_time) {
        json_decref(result);
        if (st != PL_OK)
            pl_verify_say(&r, PL_VERIFY_FAIL, "%.500s", err.text);
        else if (run.timed_out)
            pl_verify_say(&r, PL_VERIFY_FAIL, "no end after %u s", v->o.timeout_s);
        else
            pl_verify_say(&r, PL_VERIFY_FAIL, "the item's process ended with exit code %d and no result: %.300s",
                          run.exit_code, pl_buf_cstr(&run.err));
        result = pl_verify_result_json(item, &r, run.seconds);
    }
    if (st == PL_OK) pl_spawned_deinit(&run);
    if (result != NULL) add_command(result, argv);
    return result;
}

static int run_here(struct verify *v) {
    const struct pl_verify_item *item = pl_verify_item_find(v->item);
    struct pl_verify_result r;
    struct pl_err err = {0};
    double start = pl_clock_s();
    pl_verify_run_item(&v->o, item, &r);
    enum pl_status st = pl_cmd_print_json(pl_verify_result_json(item, &r, pl_clock_s() - start), &err);
    json_decref(r.evidence);
    return st == PL_OK ? pl_out_close() : pl_cmd_fail("verify", &err);
}

static void tell(const json_t *result) {
    fprintf(stderr, "plumb verify: %-16s %-12s %6.1f s  %.200s\n", json_string_value(json_object_get(result, "name")),
            json_string_value(json_object_get(result, "status")), json_number_value(json_object_get(result, "seconds")),
            json_string_value(json_object_get(result, "summary")));
}

enum { PLAN_MAX = 64 };

/* A run through the plan: every item that is chosen, with its result as soon as there is one. */
struct turn {
    const struct verify *v;
    const struct pl_verify_item *item[PLAN_MAX];
    json_t *result[PLAN_MAX]; /* NULL: not yet */
    size_t count, next, end;  /* of the part that runs now */
    pthread_mutex_t lock;
    enum pl_status st;
    struct pl_err err;
};

/* The report holds results in the order of the plan, whichever came first. */
static enum pl_status add_results(struct turn *t, struct pl_err *err) {
    json_t *items = json_array();
    int bad = items == NULL;
    for (size_t i = 0; i < t->count && !bad; i++)
        if (t->result[i] != NULL) bad = json_array_append(items, t->result[i]);
    if (bad || json_object_set_new(t->v->report, "items", items) != 0)
        PL_FAIL(err, PL_NO_MEMORY, "no memory for the report");
    return write_report(t->v, false, err);
}

static const char *status_of(const json_t *result) {
    const char *s = json_string_value(json_object_get(result, "status"));
    return s != NULL ? s : "";
}

/* Nothing of a process that does not say what it runs on can be trusted: that is the report. */
static json_t *not_run(const struct pl_verify_item *item) {
    struct pl_verify_result r = {0};
    pl_verify_say(&r, PL_VERIFY_SKIPPED, "not run: the item 'backend' failed, so nothing else could be trusted");
    return pl_verify_result_json(item, &r, 0);
}

static bool backend_failed(const struct turn *t) {
    for (size_t i = 0; i < t->count; i++)
        if (strcmp(t->item[i]->name, "backend") == 0) return strcmp(status_of(t->result[i]), "fail") == 0;
    return false;
}

static void *turn_worker(void *arg) {
    struct turn *t = arg;
    for (;;) {
        pthread_mutex_lock(&t->lock);
        while (t->next < t->end && t->result[t->next] != NULL) t->next++;
        size_t i = t->st == PL_OK ? t->next++ : t->end;
        bool useless = i < t->end && t->item[i]->needs_model && backend_failed(t);
        bool late = t->v->budget_s > 0 && pl_clock_s() >= t->v->deadline, out_of_time = false;
        pthread_mutex_unlock(&t->lock);
        if (i >= t->end || late) return NULL;
        json_t *result = useless ? not_run(t->item[i]) : run_apart(t->v, t->item[i], &out_of_time);
        if (out_of_time) return NULL;
        pthread_mutex_lock(&t->lock);
        t->result[i] = result;
        if (t->st == PL_OK && result == NULL)
            t->st = pl_err_set(&t->err, __FILE__, __LINE__, PL_NO_MEMORY, "no memory for the report");
        if (t->st == PL_OK) t->st = add_results(t, &t->err);
        if (t->st == PL_OK) tell(result);
        pthread_mutex_unlock(&t->lock);
    }
}

/* Items [from, end) beside each other. */
static void run_part(struct turn *t, size_t from, size_t end) {
    pthread_t thread[PLAN_MAX];
    size_t started = 0, want = PL_MIN((size_t)pl_verify_jobs(&t->v->o), end - from);
    t->next = from;
    t->end = end;
    for (; started + 1 < want; started++)
        if (pthread_create(&thread[started], NULL, turn_worker, t) != 0) break;
    turn_worker(t);
    for (size_t i = 0; i < started; i++) pthread_join(thread[i], NULL);
}

/* Which backend runs is known before anything else is asked, and what measures time has the machine for itself. */
static bool runs_alone(const struct pl_verify_item *i) { return i->timed || strcmp(i->name, "backend") == 0; }

static enum pl_status run_plan(struct verify *v, struct pl_err *err) {
    struct turn t = {.v = v, .lock = PTHREAD_MUTEX_INITIALIZER};
    for (size_t i = 0; i < pl_verify_item_count && t.count < PLAN_MAX; i++) {
        if (!chosen(v, &pl_verify_items[i])) continue;
        t.item[t.count] = &pl_verify_items[i];
        t.result[t.count++] = json_incref((json_t *)(uintptr_t)done(v, pl_verify_items[i].name));
    }
    for (size_t from = 0, end; from < t.count && t.st == PL_OK; from = end) {
        for (end = from + 1; end < t.count && !runs_alone(t.item[from]) && !runs_alone(t.item[end]);) end++;
        run_part(&t, from, end);
    }
    if (t.st == PL_OK) t.st = add_results(&t, &t.err);
    for (size_t i = 0; i < t.count; i++) json_decref(t.result[i]);
    if (t.st != PL_OK) *err = t.err;
    return t.st;
}

static json_t *run_against(struct verify *v) {
    static const struct pl_verify_item against = {
        "against", "beside an earlier report or another build", 2, true, true, false, true, NULL};
    struct pl_verify_result r;
    double start = pl_clock_s();
    pl_verify_against(&v->o, v->report, &r);
    json_t *result = pl_verify_result_json(&against, &r, pl_clock_s() - start);
    json_decref(r.evidence);
    if (result != NULL) tell(result);
    return result;
}

static bool is_whole(const struct verify *v) {
    for (size_t i = 0; i < pl_verify_item_count; i++)
        if (chosen(v, &pl_verify_items[i]) && done(v, pl_verify_items[i].name) == NULL) return false;
    return true;
}

static enum pl_status run_items(struct verify *v, struct pl_err *err) {
    json_t *beside = v->o.against != NULL ? json_incref((json_t *)(uintptr_t)done(v, "against")) : NULL;
    enum pl_status st = run_plan(v, err);
    if (st != PL_OK) {
        json_decref(beside);
        return st;
    }
    bool whole = is_whole(v);
    if (v->o.against != NULL && beside == NULL && whole) beside = run_against(v);
    if (v->o.against != NULL && !whole) {
        json_decref(beside);
        return write_report(v, false, err);
    }
    if (v->o.against != NULL && (beside == NULL || json_array_append_new(json_object_get(v->report, "items"), beside) != 0))
        PL_FAIL(err, PL_NO_MEMORY, "no memory for the report");
    return write_report(v, true, err);
}

static int exit_code(const struct verify *v) { return (int)json_integer_value(json_object_get(v->report, "exit_code")); }

static enum pl_status run_all(struct verify *v, struct pl_err *err) {
    if (mkdir(v->o.dir, 0777) != 0 && errno != EEXIST)
        PL_FAIL(err, PL_IO, "cannot make the folder %.300s: %s", v->o.dir, strerror(errno));
    v->report = pl_verify_report_begin(&v->o);
    if (v->report == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for the report");
    json_object_set_new(v->report, "build_id", json_string(plumb_build_id()));
    if (v->resume) PL_TRY(take_back(v, err));
    print_plan(stderr, v);
    v->deadline = pl_clock_s() + v->budget_s;
    PL_TRY(run_items(v, err));
    pl_out_verdict(exit_code(v));
    if (v->json) return pl_cmd_print_json(json_incref(v->report), err);
    struct pl_buf markdown = {0};
    pl_verify_report_markdown(v->report, &markdown);
    const char *evidence = strstr(pl_buf_cstr(&markdown), "\n## ");
    const char *second =
        evidence != NULL && strncmp(evidence, "\n## Not measured", 16) == 0 ? strstr(evidence + 4, "\n## ") : evidence;
    pl_out_write(pl_buf_cstr(&markdown), second != NULL ? (size_t)(second - pl_buf_cstr(&markdown)) : markdown.len);
    pl_out_printf("\nThe evidence is in %s/verify.md and verify.json.\n", v->o.dir);
    pl_buf_deinit(&markdown);
    return PL_OK;
}

static int run(struct verify *v) {
    struct pl_err err = {0};
    enum pl_status st = prepare(v, &err);
    if (st == PL_OK) st = check_only(v, &err);
    if (st == PL_OK && v->plan) {
        print_plan(stdout, v);
        return pl_out_close();
    }
    if (st == PL_OK && v->item != NULL) return run_here(v);
    if (st == PL_OK) st = check_text(v, &err);
    if (st == PL_OK) st = run_all(v, &err);
    if (st == PL_OK) {
        int code = pl_out_close();
        return code != PL_EXIT_OK ? code : exit_code(v);
    }
    err.status = st;
    if (st == PL_USAGE) return pl_cmd_usage("verify", "%s", err.text);
    (void)pl_cmd_fail("verify", &err);
    return PL_EXIT_INCONCLUSIVE; /* nothing could be said at all */
}

int pl_cmd_verify(int argc, char **argv) {
    struct verify v = {.o = {.dir = "plumb-verify", .timeout_s = 3600}, .argc = argc, .argv = argv};
    int code = parse(&v, argc, argv);
    if (code == -1) code = run(&v);
    json_decref(v.report);
    pl_buf_deinit(&v.flags);
    pl_free(v.path);
    for (size_t i = 0; i < v.route_model_count; i++) pl_free(v.route_paths[i]);
    return code;
}
