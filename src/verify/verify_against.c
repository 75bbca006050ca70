/* verify_against - this report beside an earlier one, or this build beside another: only what is worse than noise is a
 * regression. Speeds of an earlier report are unpaired samples; another build is measured in alternation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "verify/counters.h"
#include "verify/stats.h"
#include "verify/verify.h"

static const double NOISE = 0.03; /* slower by less than this is not called slower, whatever the interval says */
enum { SAMPLES_MAX = 256 };

struct comparison {
    json_t *regressions, *notes, *speeds;
};

static void regression(struct comparison *c, const char *fmt, ...) PL_PRINTF(2, 3);
static void regression(struct comparison *c, const char *fmt, ...) {
    char text[500];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    json_t *v = json_string(text);
    json_array_append_new(c->regressions, v != NULL ? v : json_string("(no UTF-8 text)"));
}

static const json_t *item_of(const json_t *report, const char *name) {
    const json_t *items = json_object_get(report, "items");
    for (size_t i = 0; i < json_array_size(items); i++) {
        const char *n = json_string_value(json_object_get(json_array_get(items, i), "name"));
        if (n != NULL && strcmp(n, name) == 0) return json_array_get(items, i);
    }
    return NULL;
}
static const char *status_of(const json_t *item) {
    const char *s = json_string_value(json_object_get(item, "status"));
    return s != NULL ? s : "absent";
}

/* ---------- speeds ---------- */

static size_t samples(const json_t *bench, const char *name, double *out) {
    const json_t *list = json_object_get(bench, name);
    size_t n = PL_MIN(json_array_size(list), (size_t)SAMPLES_MAX);
    for (size_t i = 0; i < n; i++) out[i] = json_number_value(json_array_get(list, i));
    return n;
}

static void compare_speed(struct comparison *c, const char *what, const double *before, size_t nb, const double *now,
                          size_t nn, bool paired) {
    struct pl_interval ratio;
    if (nb < 2 || nn < 2) return;
    enum pl_status st =
        paired ? pl_stats_paired_ratio(before, now, nn, &ratio) : pl_stats_ratio(before, nb, now, nn, &ratio);
    if (st != PL_OK) return;
    bool slower = ratio.high < 1 - NOISE;
    json_array_append_new(c->speeds, json_pack("{s:b, s:s, s:f, s:f, s:f, s:I, s:I, s:b}", "paired", paired, "what", what,
                                               "ratio", ratio.value, "low", ratio.low, "high", ratio.high, "samples_before",
                                               (json_int_t)nb, "samples_now", (json_int_t)nn, "slower", slower));
    if (slower)
        regression(c, "%s runs at %.3f of its former speed (95%% interval %.3f to %.3f)", what, ratio.value, ratio.low,
                   ratio.high);
}

static void compare_bench(struct comparison *c, const json_t *before, const json_t *now) {
    static const char *const names[2][2] = {{"prompt", "prefill_tok_s_all"}, {"decode", "decode_tok_s_all"}};
    for (int k = 0; k < 2; k++) {
        double a[SAMPLES_MAX], b[SAMPLES_MAX];
        size_t na = samples(before, names[k][1], a), nb = samples(now, names[k][1], b);
        compare_speed(c, names[k][0], a, na, b, nb, false);
    }
}

/* Which sources are not the same: what was compiled anew. */
static void compare_sources(struct comparison *c, const json_t *before, const json_t *now, const char *what) {
    struct pl_buf text = {0};
    size_t n = 0;
    const char *path;
    json_t *hash;
    if (json_object_size(before) == 0 || json_object_size(now) == 0) {
        json_array_append_new(c->notes, json_sprintf("%s: one side does not say which it was built from", what));
        return;
    }
    json_object_foreach((json_t *)(uintptr_t)now, path, hash) {
        const json_t *then = json_object_get(before, path);
        if (then != NULL && json_equal(then, hash)) continue;
        if (n++ < 40) pl_buf_printf(&text, "%s %s%s", n == 1 ? ":" : ",", path, then == NULL ? " (new)" : "");
    }
    json_object_foreach((json_t *)(uintptr_t)before, path, hash) {
        if (json_object_get(now, path) == NULL && n++ < 40) pl_buf_printf(&text, "%s %s (gone)", n == 1 ? ":" : ",", path);
    }
    json_array_append_new(c->notes,
                          json_sprintf("%s: %zu of %zu files differ%s", what, n, json_object_size(now), pl_buf_cstr(&text)));
    pl_buf_deinit(&text);
}

/* ---------- an earlier report ---------- */

static void compare_tests(struct comparison *c, const json_t *before, const json_t *now) {
    const char *name;
    json_t *verdict;
    json_object_foreach((json_t *)(uintptr_t)before, name, verdict) {
        const char *then = json_string_value(verdict), *today = json_string_value(json_object_get(now, name));
        if (then == NULL || strcmp(then, "pass") != 0 || (today != NULL && strcmp(today, "pass") == 0)) continue;
        regression(c, "test '%.300s' passed before and is %s now", name, today == NULL ? "gone" : today);
    }
}

static void case_key(const json_t *k, char *out, size_t cap) {
    const char *op = json_string_value(json_object_get(k, "op")), *what = json_string_value(json_object_get(k, "case"));
    snprintf(out, cap, "%.40s, %.120s", op != NULL ? op : "?", what != NULL ? what : "?");
}

/* Cases of one backend by name. */
static json_t *cases_of(const json_t *backends, const char *backend) {
    json_t *o = json_object();
    for (size_t i = 0; i < json_array_size(backends); i++) {
        const json_t *b = json_array_get(backends, i), *list = json_object_get(b, "list");
        const char *name = json_string_value(json_object_get(b, "backend"));
        if (name == NULL || strcmp(name, backend) != 0) continue;
        for (size_t k = 0; k < json_array_size(list); k++) {
            char key[200];
            case_key(json_array_get(list, k), key, sizeof key);
            json_object_set(o, key, json_object_get(json_array_get(list, k), "status"));
        }
    }
    return o;
}

static void compare_operations(struct comparison *c, const json_t *before, const json_t *now) {
    const json_t *was = json_object_get(before, "backends"), *is = json_object_get(now, "backends");
    for (size_t i = 0; i < json_array_size(was); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(was, i), "backend"));
        if (name == NULL) continue;
        json_t *a = cases_of(was, name), *b = cases_of(is, name);
        if (json_object_size(b) == 0)
            json_array_append_new(c->notes, json_sprintf("operations on '%s' were tested before and are not now", name));
        else
            compare_tests(c, a, b);
        json_decref(a);
        json_decref(b);
    }
}

static void compare_items(struct comparison *c, const json_t *before, const json_t *now) {
    const json_t *items = json_object_get(before, "items");
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *then = json_array_get(items, i);
        const char *name = json_string_value(json_object_get(then, "name"));
        if (name == NULL || strcmp(name, "against") == 0 || strcmp(status_of(then), "pass") != 0) continue;
        const json_t *today = item_of(now, name);
        if (today == NULL || strcmp(status_of(today), "pass") != 0)
            regression(c, "item %s passed before and is %s now", name, status_of(today));
    }
}

static void compare_report(struct comparison *c, const json_t *before, const json_t *now) {
    static const char *const which[] = {"tests", "operations", "bench"};
    compare_items(c, before, now);
    const json_t *x = json_object_get(item_of(before, "build"), "evidence"),
                 *y = json_object_get(item_of(now, "build"), "evidence");
    if (x != NULL && y != NULL)
        compare_sources(c, json_object_get(x, "sources"), json_object_get(y, "sources"), "kernel sources");
    for (size_t i = 0; i < PL_COUNT_OF(which); i++) {
        const json_t *a = json_object_get(item_of(before, which[i]), "evidence"),
                     *b = json_object_get(item_of(now, which[i]), "evidence");
        if (!json_is_object(a) || !json_is_object(b)) continue;
        if (i == 0) compare_tests(c, json_object_get(a, "cases"), json_object_get(b, "cases"));
        if (i == 1) compare_operations(c, a, b);
        if (i == 2) compare_bench(c, a, b);
    }
}

/* ---------- another build ---------- */

static bool bench_once(const struct pl_verify_options *o, const char *program, double *prompt, double *decode) {
    struct pl_verify_options other = *o;
    struct pl_buf said = {0};
    struct pl_err err = {0};
    json_t *out = NULL;
    int code = 0;
    other.self = program;
    const char *const words[] = {"bench", "-m", o->model, "-p", o->quick ? "64" : "128", "-n", o->quick ? "16" : "32",
                                 "-r",    "1",  "--json", NULL};
    bool ok = pl_verify_self(&other, words, &out, &said, &code, &err) == PL_OK && code == 0;
    *prompt = json_number_value(json_object_get(out, "prefill_tok_s"));
    *decode = json_number_value(json_object_get(out, "decode_tok_s"));
    json_decref(out);
    pl_buf_deinit(&said);
    return ok && *prompt > 0 && *decode > 0;
}

/* In alternation, and which goes first alternates too: what drifts, drifts for both. */
static void paired_bench(const struct pl_verify_options *o, struct comparison *c) {
    double p[2][SAMPLES_MAX], d[2][SAMPLES_MAX];
    const char *program[2] = {o->against, o->self};
    size_t rounds = o->quick ? 4 : 9;
    for (size_t i = 0; i < rounds; i++) {
        for (size_t k = 0; k < 2; k++) {
            size_t which = (k + i) % 2;
            if (bench_once(o, program[which], &p[which][i], &d[which][i])) continue;
            regression(c, "%s cannot be measured", program[which]);
            return;
        }
    }
    compare_speed(c, "prompt", p[0], rounds, p[1], rounds, true);
    compare_speed(c, "decode", d[0], rounds, d[1], rounds, true);
}

static void compare_outputs(const struct pl_verify_options *o, struct comparison *c) {
    struct pl_buf base = {0}, arm = {0};
    struct pl_err err = {0};
    struct pl_ab_report *r = pl_calloc(1, sizeof *r);
    pl_verify_command(o, o->against, "generate", "--ignore-eos", &base);
    pl_verify_command(o, o->self, "generate", "--ignore-eos", &arm);
    struct pl_ab_options ab = {.base = {.name = "base", .command = pl_buf_cstr(&base)},
                               .arm = {.name = "arm", .command = pl_buf_cstr(&arm)},
                               .prompts = pl_verify_prompts,
                               .prompt_count = PL_VERIFY_PROMPTS,
                               .n = o->quick ? 12 : 48,
                               .min_tokens = 8,
                               .concurrency = 1,
                               .timeout_s = o->timeout_s,
                               .near_tie = 0.25};
    if (r == NULL || pl_ab_run(&ab, r, &err) != PL_OK)
        regression(c, "answers: %.400s", err.text);
    else if (r->verdict == PL_AB_INCONCLUSIVE)
        regression(c, "answers are inconclusive: %.400s", r->reason[0]);
    else if (r->verdict == PL_AB_DIFFERS)
        regression(c, "answers differ on %zu of %zu prompts (%zu near-ties): %s", r->prompts_different, r->prompt_count,
                   r->near_ties, pl_buf_cstr(&arm));
    else
        json_array_append_new(c->notes, json_sprintf("answers: EQUAL, %zu tokens", r->arm_tokens));
    if (r != NULL) pl_ab_report_deinit(r);
    pl_free(r);
    pl_buf_deinit(&base);
    pl_buf_deinit(&arm);
}

static void compare_counters(const struct pl_verify_options *o, struct comparison *c) {
    struct pl_buf base = {0}, arm = {0};
    struct pl_err err = {0};
    struct pl_counters_report *r = pl_calloc(1, sizeof *r);
    pl_verify_command(o, o->against, "serve", "--parallel 4", &base);
    pl_verify_command(o, o->self, "serve", "--parallel 4", &arm);
    struct pl_counters_options opt = {.base = {.name = "base", .command = pl_buf_cstr(&base)},
                                      .arm = {.name = "arm", .command = pl_buf_cstr(&arm)},
                                      .prompts = pl_verify_prompts,
                                      .prompt_count = PL_VERIFY_PROMPTS,
                                      .n = 16,
                                      .concurrency = 4,
                                      .rounds = 2,
                                      .timeout_s = o->timeout_s};
    if (r == NULL || pl_counters_run(&opt, r, &err) != PL_OK)
        regression(c, "counters: %.400s", err.text);
    else if (r->verdict != PL_AB_EQUAL)
        regression(c, "counters: %s: %.400s", pl_ab_verdict_name(r->verdict), r->finding[0].text);
    else
        json_array_append_new(c->notes, json_string("counters: EQUAL"));
    if (r != NULL) pl_counters_deinit(r);
    pl_free(r);
    pl_buf_deinit(&base);
    pl_buf_deinit(&arm);
}

/* The other build's own pass over the same items, so that the report holds all answers for each side. */
static void other_pass(const struct pl_verify_options *o, const json_t *now, struct comparison *c) {
    struct pl_verify_options other = *o;
    struct pl_buf only = {0}, said = {0};
    struct pl_err err = {0};
    char dir[1100], path[1200];
    int code = 0;
    const json_t *items = json_object_get(now, "items");
    for (size_t i = 0; i < json_array_size(items); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(items, i), "name"));
        bool timed = strcmp(name, "bench") == 0 || strcmp(name, "tests") == 0; /* in pairs below; of this build alone */
        if (!timed) pl_buf_printf(&only, "%s%s", only.len > 0 ? "," : "", name);
    }
    snprintf(dir, sizeof dir, "%.1000s/other", o->dir);
    snprintf(path, sizeof path, "%s/verify.json", dir);
    other.self = o->against;
    other.timeout_s = o->timeout_s * 4;
    const char *words[14] = {"verify",
                             "--report",
                             dir,
                             "-m",
                             o->model,
                             "--only",
                             pl_buf_cstr(&only),
                             "--flags",
                             o->flags != NULL ? o->flags : ""};
    size_t n = 9;
    if (o->quick) words[n++] = "--quick";
    if (o->backend != NULL) {
        words[n++] = "--backend";
        words[n++] = o->backend;
    }
    enum pl_status st = pl_verify_self(&other, words, NULL, &said, &code, &err);
    json_t *theirs = st == PL_OK && code != 64 ? json_load_file(path, 0, NULL) : NULL;
    if (theirs == NULL) {
        json_array_append_new(c->notes, json_sprintf("the other build's own pass did not run (exit code %d): %.200s", code,
                                                     st != PL_OK ? err.text : pl_buf_cstr(&said)));
    } else {
        json_array_append_new(c->notes, json_sprintf("the other build's own pass: %s (%s)",
                                                     json_string_value(json_object_get(theirs, "verdict")), path));
        compare_items(c, theirs, now);
        compare_operations(c, json_object_get(item_of(theirs, "operations"), "evidence"),
                           json_object_get(item_of(now, "operations"), "evidence"));
    }
    json_decref(theirs);
    pl_buf_deinit(&only);
    pl_buf_deinit(&said);
}

static void compare_build(const struct pl_verify_options *o, const json_t *report, struct comparison *c) {
    if (o->model == NULL) {
        regression(c, "another build can only be compared on a model (-m)");
        return;
    }
    json_t *before = pl_verify_sources_of(o->against), *now = pl_verify_sources_of(o->self);
    compare_sources(c, before, now, "sources");
    json_decref(before);
    json_decref(now);
    other_pass(o, report, c);
    compare_outputs(o, c);
    compare_counters(o, c);
    paired_bench(o, c);
}

/* ---------- */

void pl_verify_against(const struct pl_verify_options *o, const json_t *report, struct pl_verify_result *r) {
    struct comparison c = {.regressions = json_array(), .notes = json_array(), .speeds = json_array()};
    struct stat st;
    bool build = stat(o->against, &st) == 0 && S_ISREG(st.st_mode) && access(o->against, X_OK) == 0;
    json_t *before = build ? NULL : json_load_file(o->against, 0, NULL);
    const char *schema = json_string_value(json_object_get(before, "schema"));
    *r = (struct pl_verify_result){0};
    if (!build && (schema == NULL || strcmp(schema, "plumb-verify-1") != 0)) {
        pl_verify_say(r, PL_VERIFY_INCONCLUSIVE, "%.300s is neither a report of plumb verify nor a program", o->against);
    } else {
        if (build)
            compare_build(o, report, &c);
        else
            compare_report(&c, before, report);
        size_t n = json_array_size(c.regressions);
        if (n == 0)
            pl_verify_say(r, PL_VERIFY_PASS, "nothing is worse than in %.300s beyond noise", o->against);
        else
            pl_verify_say(r, PL_VERIFY_FAIL, "%zu regression%s: %.400s", n, n == 1 ? "" : "s",
                          json_string_value(json_array_get(c.regressions, 0)));
    }
    r->evidence = json_pack("{s:s, s:s, s:f, s:o, s:o, s:o}", "with", o->against, "kind", build ? "build" : "report",
                            "noise", NOISE, "regressions", c.regressions, "speeds", c.speeds, "notes", c.notes);
    json_decref(before);
}
