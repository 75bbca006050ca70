/* ab - compare two builds, configurations or servers by what they generate. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "cmd/ab.h"
#include "cmd/cmd.h"
#include "cmd/common.h"
#include "cmd/out.h"
#include "verify/ab.h"

static enum pl_status list_add(struct list *l, const char *value, size_t len, struct pl_err *err) {
    char *copy = pl_strndup(value, len);
    if (copy == NULL || pl_grow(&l->item, &l->cap, l->count + 1, sizeof *l->item) != PL_OK) {
        pl_free(copy);
        PL_FAIL(err, PL_NO_MEMORY, "no memory for arguments");
    }
    l->item[l->count++] = copy;
    return PL_OK;
}
static enum pl_status add_text(void *out, const char *value, struct pl_err *err) {
    return list_add(out, value, strlen(value), err);
}
static enum pl_status add_env(void *out, const char *value, struct pl_err *err) {
    if (strchr(value, '=') == NULL || value[0] == '=') PL_FAIL(err, PL_USAGE, "'%.100s' is no NAME=VALUE", value);
    return list_add(out, value, strlen(value), err);
}
static enum pl_status add_tolerance(void *out, const char *value, struct pl_err *err) {
    struct pl_ab_options *o = out;
    if (strncmp(value, "near-tie=", 9) == 0 && pl_parse_f64(value + 9, 0, 100, &o->near_tie)) return PL_OK;
    if (strncmp(value, "logprob=", 8) == 0 && pl_parse_f64(value + 8, 1e-9, 100, &o->drift)) return PL_OK;
    PL_FAIL(err, PL_USAGE, "'%.60s' is not near-tie=X or logprob=X with X up to 100", value);
}
static void list_deinit(struct list *l) {
    for (size_t i = 0; i < l->count; i++) pl_free(l->item[i]);
    pl_free((void *)l->item);
}

static int parse(struct ab *a, int argc, char **argv) {
    struct pl_ab_options *o = &a->o;
    const struct pl_arg own[] = {
        {0, "base", "COMMAND", PL_ARG_STR, &o->base.command,
         "the baseline; {prompt} and {n} are filled in, else -p, -n, --temp 0 appended", 0, 0, NULL},
        {0, "arm", "COMMAND", PL_ARG_STR, &o->arm.command, "what is compared with it", 0, 0, NULL},
        {0, "base-url", "URL", PL_ARG_STR, &o->base.url, "the baseline is an OpenAI-compatible server", 0, 0, NULL},
        {0, "arm-url", "URL", PL_ARG_STR, &o->arm.url, "the arm is one", 0, 0, NULL},
        {'m', "model", "MODEL", PL_ARG_STR, &a->model, "compare two configurations of this binary on this model", 0, 0,
         NULL},
        {0, "base-flags", "FLAGS", PL_ARG_STR, &a->base_flags, "with -m: options of generate (or serve) on the base side", 0,
         0, NULL},
        {0, "arm-flags", "FLAGS", PL_ARG_STR, &a->arm_flags, "with -m: the same on the arm side", 0, 0, NULL},
        {0, "base-env", "NAME=VALUE", PL_ARG_EACH, &a->base_env, "environment of the base side; may be given several times",
         0, 0, add_env},
        {0, "arm-env", "NAME=VALUE", PL_ARG_EACH, &a->arm_env, "environment of the arm side", 0, 0, add_env},
        {'p', "prompt", "TEXT", PL_ARG_EACH, &a->prompts, "a prompt; may be given several times", 0, 0, add_text},
        {0, "prompts", "FILE", PL_ARG_STR, &a->prompts_file, "prompts: one a line, or a JSON list of strings", 0, 0, NULL},
        {'n', "n", "N", PL_ARG_U32, &o->n, "tokens to generate for each (64)", 1, 1000000, NULL},
        {0, "min-tokens", "N", PL_ARG_U32, &a->min_tokens, "fewer than this on a side prove nothing (8, or N if smaller)", 0,
         1000000000, NULL},
        {0, "tolerance", "WHAT=X", PL_ARG_EACH, o,
         "near-tie=X: how near is a near-tie; logprob=X: how far an equal token's logprob may move", 0, 0, add_tolerance},
        {0, "expect-kernel", "[OP=]NAME", PL_ARG_EACH, &a->expect,
         "must have run on both sides (base:NAME, arm:NAME: on one)", 0, 0, add_text},
        {0, "concurrency", "K", PL_ARG_U32, &o->concurrency, "also send the arm K prompts at a time (1; with --counters 4)",
         1, 256, NULL},
        {0, "invariant", NULL, PL_ARG_FLAG, &o->invariant, "with --concurrency: an answer that changes is a difference", 0,
         0, NULL},
        {0, "allow-different-models", NULL, PL_ARG_FLAG, &o->allow_different_models,
         "the sides may have different vocabularies or templates", 0, 0, NULL},
        {0, "allow-identical", NULL, PL_ARG_FLAG, &o->allow_identical, "both sides may be the same build", 0, 0, NULL},
        {0, "without-witness", NULL, PL_ARG_FLAG, &o->without_witness, "accept sides that do not say which kernels ran", 0,
         0, NULL},
        {0, "timeout", "SECONDS", PL_ARG_U32, &o->timeout_s, "of one answer (600)", 1, 86400, NULL},
        {0, "api-key", "KEY", PL_ARG_STR, &o->base.api_key, "sent to both servers", 0, 0, NULL},
        {0, "counters", NULL, PL_ARG_FLAG, &a->counters, "compare the counters of two servers under concurrent requests", 0,
         0, NULL},
        {0, "rounds", "N", PL_ARG_U32, &a->rounds, "with --counters: every prompt N times (2)", 1, 1000, NULL},
        {0, "require-merge", NULL, PL_ARG_FLAG, &a->require_merge,
         "with --counters: a server without a counter of merges is inconclusive", 0, 0, NULL},
        {0, "allow-declined", "TEXT", PL_ARG_EACH, &a->allow_declined,
         "with --counters: reasons with this text may come on one side alone", 0, 0, add_text},
        {0, "report", "DIR", PL_ARG_STR, &a->report_dir, "write ab.md, ab.json and ab.xml (JUnit) there", 0, 0, NULL},
        {0},
    };
    const struct pl_arg *groups[] = {own, NULL};
    struct pl_args args = {
        .command = "ab",
        .synopsis = "--base COMMAND --arm COMMAND (-p TEXT ... | --prompts FILE) [-n N]",
        .about = "Sends the same prompts through a baseline (twice) and an arm. Exit code 0: equal, 1: differs,\n"
                 "2: inconclusive (every reason is named), 64: wrong usage.",
        .examples = "plumb ab --base 'old/plumb generate -m M' --arm 'new/plumb generate -m M' -p 'Hello' -n 64\n"
                    "plumb ab -m M --arm-flags '--isa avx2' --prompts prompts.txt -n 32\n"
                    "plumb ab --base-url http://127.0.0.1:8080 --arm-url http://127.0.0.1:8081 -p Hello "
                    "--without-witness\n"
                    "plumb ab --counters -m M --arm-flags '--disable-kernel attention=..' --prompts prompts.txt",
        .groups = groups};
    return pl_args_parse(&args, argc, argv);
}

/* ---------- prompts ---------- */

static enum pl_status prompts_from_json(struct ab *a, const json_t *v, struct pl_err *err) {
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *p = json_array_get(v, i);
        if (!json_is_string(p)) PL_FAIL(err, PL_USAGE, "%s: entry %zu is no string", a->prompts_file, i);
        PL_TRY(list_add(&a->prompts, json_string_value(p), json_string_length(p), err));
    }
    return PL_OK;
}

static enum pl_status read_prompts(struct ab *a, struct pl_err *err) {
    if (a->prompts_file == NULL) return PL_OK;
    struct pl_buf text = {0};
    enum pl_status st = pl_cmd_read_file(a->prompts_file, 64 << 20, &text, err);
    json_error_t at;
    json_t *v = st == PL_OK ? json_loadb(pl_buf_cstr(&text), text.len, 0, &at) : NULL;
    size_t name = strlen(a->prompts_file);
    bool named_json = name > 5 && strcmp(a->prompts_file + name - 5, ".json") == 0;
    if (st == PL_OK && named_json && !json_is_array(v)) {
        st = pl_err_set(err, __FILE__, __LINE__, PL_USAGE, "%.300s is no JSON list of strings%s%.100s", a->prompts_file,
                        v == NULL ? ": " : "", v == NULL ? at.text : "");
    } else if (st == PL_OK && memchr(pl_buf_cstr(&text), '\0', text.len) != NULL) {
        st = pl_err_set(err, __FILE__, __LINE__, PL_USAGE, "%.300s holds a zero byte: prompts are text", a->prompts_file);
    } else if (json_is_array(v)) {
        st = prompts_from_json(a, v, err);
    } else if (st == PL_OK) {
        char *rest = text.data;
        for (char *line; st == PL_OK && rest != NULL && (line = strsep(&rest, "\n")) != NULL;)
            if (line[strspn(line, " \t\r")] != '\0') st = list_add(&a->prompts, line, strlen(line), err);
    }
    json_decref(v);
    pl_buf_deinit(&text);
    return st;
}

/* ---------- sides ---------- */

/* -m MODEL: both sides are this binary, and something must be different. */
static enum pl_status own_commands(struct ab *a, struct pl_err *err) {
    char self[1024];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) PL_FAIL(err, PL_IO, "cannot find this program's own path: %s", strerror(errno));
    self[n] = '\0';
    struct pl_buf *commands[2] = {&a->base_command, &a->arm_command};
    const char *flags[2] = {a->base_flags, a->arm_flags};
    for (int i = 0; i < 2; i++) {
        pl_buf_add_word(commands[i], self);
        pl_buf_add_c(commands[i], a->counters ? " serve -m" : " generate -m");
        pl_buf_add_word(commands[i], a->model);
        if (flags[i] != NULL) pl_buf_printf(commands[i], " %s", flags[i]);
        if (!pl_buf_ok(commands[i])) PL_FAIL(err, PL_NO_MEMORY, "no memory for a command");
    }
    a->o.base.command = a->base_command.data;
    a->o.arm.command = a->arm_command.data;
    a->o.same_binary_meant = strcmp(a->o.base.command, a->o.arm.command) != 0 || a->base_env.count + a->arm_env.count > 0;
    return PL_OK;
}

static enum pl_status check_side(const struct pl_ab_side *s, struct pl_err *err) {
    if ((s->command != NULL) == (s->url != NULL))
        PL_FAIL(err, PL_USAGE, "%s needs exactly one of --%s COMMAND and --%s-url URL (or -m MODEL for both sides)", s->name,
                s->name, s->name);
    if (s->url != NULL && strncmp(s->url, "http://", 7) != 0 && strncmp(s->url, "https://", 8) != 0)
        PL_FAIL(err, PL_USAGE, "'%.200s' is no http:// or https:// address", s->url);
    return PL_OK;
}

static enum pl_status prepare(struct ab *a, struct pl_err *err) {
    struct pl_ab_options *o = &a->o;
    if (!a->counters && (a->require_merge || a->allow_declined.count > 0))
        PL_FAIL(err, PL_USAGE, "--require-merge and --allow-declined need --counters");
    if (o->concurrency == 0) o->concurrency = a->counters ? 4 : 1;
    o->base.name = "base";
    o->arm.name = "arm";
    o->arm.api_key = o->base.api_key;
    if (a->model != NULL) {
        if (o->base.command || o->arm.command || o->base.url || o->arm.url)
            PL_FAIL(err, PL_USAGE, "-m MODEL makes both sides: it does not go with --base, --arm or their URLs");
        PL_TRY(own_commands(a, err));
    } else if (a->base_flags != NULL || a->arm_flags != NULL) {
        PL_FAIL(err, PL_USAGE, "--base-flags and --arm-flags need -m MODEL");
    }
    PL_TRY(check_side(&o->base, err));
    PL_TRY(check_side(&o->arm, err));
    if (a->counters && o->concurrency < 2) PL_FAIL(err, PL_USAGE, "--counters needs --concurrency of 2 or more");
    if (a->prompts.count == 0 && a->prompts_file == NULL)
        PL_FAIL(err, PL_USAGE, "no prompts: give --prompt TEXT or --prompts FILE");
    PL_TRY(read_prompts(a, err));
    if (a->expect.count > PL_AB_EXPECT_MAX)
        PL_FAIL(err, PL_USAGE, "%zu kernels are expected, at most %d may be", a->expect.count, PL_AB_EXPECT_MAX);
    if (o->invariant && o->concurrency < 2) PL_FAIL(err, PL_USAGE, "--invariant needs --concurrency of 2 or more");
    o->min_tokens = a->min_tokens == UINT32_MAX ? PL_MIN(8u, o->n) : a->min_tokens;
    o->base.env = (const char *const *)a->base_env.item;
    o->base.env_count = a->base_env.count;
    o->arm.env = (const char *const *)a->arm_env.item;
    o->arm.env_count = a->arm_env.count;
    o->prompts = (const char *const *)a->prompts.item;
    o->prompt_count = a->prompts.count;
    o->expect = (const char *const *)a->expect.item;
    o->expect_count = a->expect.count;
    return PL_OK;
}

/* ---------- results ---------- */

enum pl_status ab_write_file(const char *dir, const char *name, const char *data, size_t len, struct pl_err *err) {
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "we");
    bool ok = f != NULL && fwrite(data, 1, len, f) == len;
    if (f != NULL && fclose(f) != 0) ok = false;
    if (!ok) PL_FAIL(err, PL_IO, "cannot write %s: %s", path, strerror(errno));
    return PL_OK;
}

static enum pl_status write_reports(const struct ab *a, const struct pl_ab_report *r, const struct pl_buf *markdown,
                                    struct pl_err *err) {
    if (a->report_dir == NULL) return PL_OK;
    if (mkdir(a->report_dir, 0777) != 0 && errno != EEXIST)
        PL_FAIL(err, PL_IO, "cannot make the folder %s: %s", a->report_dir, strerror(errno));
    struct pl_buf junit = {0};
    pl_ab_report_junit(&a->o, r, &junit);
    json_t *v = pl_ab_report_json(&a->o, r);
    char *json = v == NULL ? NULL : json_dumps(v, JSON_INDENT(2));
    json_decref(v);
    enum pl_status st = json == NULL || !pl_buf_ok(&junit)
                            ? pl_err_set(err, __FILE__, __LINE__, PL_NO_MEMORY, "no memory for the report")
                            : PL_OK;
    if (st == PL_OK) st = ab_write_file(a->report_dir, "ab.md", pl_buf_cstr(markdown), markdown->len, err);
    if (st == PL_OK) st = ab_write_file(a->report_dir, "ab.json", json, strlen(json), err);
    if (st == PL_OK) st = ab_write_file(a->report_dir, "ab.xml", pl_buf_cstr(&junit), junit.len, err);
    free(json);
    pl_buf_deinit(&junit);
    return st;
}

void ab_progress(void *user, const char *what, size_t done, size_t total) {
    (void)user;
    pl_progress(what, done, total, false);
}

/* An error says nothing about the sides: its code must not be that of a difference. */
int ab_fail(const struct pl_err *err) {
    (void)pl_cmd_fail("ab", err);
    return err->status == PL_USAGE ? PL_EXIT_USAGE : PL_EXIT_INCONCLUSIVE;
}

int ab_print(const struct pl_buf *markdown, int verdict) {
    pl_out_verdict(verdict);
    pl_out_write(pl_buf_cstr(markdown), markdown->len);
    (void)pl_out_close();
    return verdict;
}

static int compare(struct ab *a) {
    struct pl_ab_report *r = pl_calloc(1, sizeof *r);
    struct pl_err err = {0};
    if (r == NULL) {
        (void)pl_err_set(&err, __FILE__, __LINE__, PL_NO_MEMORY, "no memory for the report");
        return ab_fail(&err);
    }
    a->o.progress = ab_progress;
    enum pl_status st = pl_ab_run(&a->o, r, &err);
    pl_progress_end();
    struct pl_buf markdown = {0};
    if (st == PL_OK) {
        pl_ab_report_markdown(&a->o, r, &markdown);
        st = write_reports(a, r, &markdown, &err);
    }
    int code = st == PL_OK ? ab_print(&markdown, (int)r->verdict) : ab_fail(&err);
    pl_buf_deinit(&markdown);
    pl_ab_report_deinit(r);
    pl_free(r);
    return code;
}

int pl_cmd_ab(int argc, char **argv) {
    struct ab a = {.o = {.n = 64, .timeout_s = 600}, .min_tokens = UINT32_MAX, .rounds = 2};
    struct pl_err err = {0};
    int code = parse(&a, argc, argv);
    if (code < 0) {
        if (prepare(&a, &err) == PL_OK)
            code = a.counters ? ab_counters(&a) : compare(&a);
        else
            code = err.status == PL_USAGE ? pl_cmd_usage("ab", "%s", err.text) : ab_fail(&err);
    }
    list_deinit(&a.prompts);
    list_deinit(&a.base_env);
    list_deinit(&a.arm_env);
    list_deinit(&a.expect);
    list_deinit(&a.allow_declined);
    pl_buf_deinit(&a.base_command);
    pl_buf_deinit(&a.arm_command);
    return code;
}
