/* verify_suite - results of the test suite, and whether a verdict depends on what ran before: operations and tests in
 * several orders, and each alone. */
#include <stdio.h>
#include <string.h>

#include "verify/optest.h"
#include "verify/verify.h"

/* ---------- results of the suite ---------- */

static void attribute(const char *tag, size_t len, const char *name, char *out, size_t cap) {
    char want[40];
    size_t n = (size_t)snprintf(want, sizeof want, " %s=\"", name);
    out[0] = '\0';
    for (size_t i = 0; i + n < len; i++) {
        if (memcmp(tag + i, want, n) != 0) continue;
        snprintf(out, cap, "%.*s", (int)PL_MIN(strcspn(tag + i + n, "\""), cap - 1), tag + i + n);
        return;
    }
}

/* <testcase classname= name=> with <failure>, <error> or <skipped> inside: what every JUnit writer agrees on. */
static void add_junit(const char *text, json_t *cases, size_t count[3]) {
    for (const char *at = strstr(text, "<testcase"); at != NULL; at = strstr(at + 1, "<testcase")) {
        size_t tag = strcspn(at, ">");
        bool closed = tag > 0 && at[tag - 1] == '/';
        const char *end = closed ? at + tag : strstr(at, "</testcase>");
        char group[200], name[300], key[520];
        if (end == NULL) break;
        attribute(at, tag, "classname", group, sizeof group);
        attribute(at, tag, "name", name, sizeof name);
        snprintf(key, sizeof key, "%s: %s", group, name);
        const char *bad = strstr(at, "<failure"), *broken = strstr(at, "<error"), *skip = strstr(at, "<skipped");
        int verdict = (bad != NULL && bad < end) || (broken != NULL && broken < end) ? 1
                      : skip != NULL && skip < end                                   ? 2
                                                                                     : 0;
        static const char *const names[] = {"pass", "fail", "skipped"};
        json_object_set_new(cases, key, json_string(names[verdict]));
        count[verdict]++;
    }
}

static void read_file(const char *path, json_t *cases, size_t count[3]) {
    FILE *f = fopen(path, "re");
    struct pl_buf text = {0};
    char block[65536];
    for (size_t n; f != NULL && (n = fread(block, 1, sizeof block, f)) > 0 && text.len < 256 << 20;)
        pl_buf_add(&text, block, n);
    if (f != NULL) fclose(f);
    add_junit(pl_buf_cstr(&text), cases, count);
    pl_buf_deinit(&text);
}

/* {group and name: verdict} of all files of a list with commas. */
static json_t *read_junit(const char *list, size_t count[3]) {
    json_t *cases = json_object();
    for (const char *at = list; *at != '\0';) {
        char path[1200];
        size_t len = strcspn(at, ",");
        snprintf(path, sizeof path, "%.*s", (int)PL_MIN(len, sizeof path - 1), at);
        read_file(path, cases, count);
        at += len + (at[len] == ',');
    }
    return cases;
}

void pl_verify_tests(const struct pl_verify_options *o, struct pl_verify_result *r) {
    size_t count[3] = {0};
    if (o->tests == NULL) {
        pl_verify_say(r, PL_VERIFY_SKIPPED, "no results were given: make check, then --tests build/test-report.xml");
        return;
    }
    json_t *cases = read_junit(o->tests, count);
    if (count[0] + count[1] + count[2] == 0)
        pl_verify_say(r, PL_VERIFY_INCONCLUSIVE, "%.300s holds no test cases (JUnit XML was expected)", o->tests);
    else
        pl_verify_say(r, count[1] > 0 ? PL_VERIFY_FAIL : PL_VERIFY_PASS, "%zu passed, %zu failed, %zu skipped", count[0],
                      count[1], count[2]);
    r->evidence = json_pack("{s:I, s:I, s:I, s:o}", "passed", (json_int_t)count[0], "failed", (json_int_t)count[1],
                            "skipped", (json_int_t)count[2], "cases", cases);
}

/* ---------- orders ---------- */

static json_t *order_row(const char *what, const char *order, size_t cases, size_t differ, const char *first) {
    json_t *said = json_string(first);
    return json_pack("{s:s, s:s, s:I, s:I, s:s, s:o}", "what", what, "order", order, "cases", (json_int_t)cases, "different",
                     (json_int_t)differ, "status", differ > 0 ? "fail" : "pass", "first",
                     said != NULL ? said : json_string("(no UTF-8 text)"));
}

/* The cases of one backend: in order, then shuffled and each alone, with the same verdict, kernel and bits. */
static size_t operation_orders(const struct pl_ops_options *opt, bool quick, json_t *rows, char *first, size_t cap) {
    static const struct {
        const char *name;
        uint32_t shuffle;
        bool alone, quick;
    } orders[] = {{"in order, once more", 0, false, false},
                  {"shuffled (seed 1)", 1, false, true},
                  {"shuffled (seed 2)", 2, false, false},
                  {"each alone", 0, true, true}};
    struct pl_optest base = {0}, other = {0};
    struct pl_optest_options how = {.ops = *opt, .quick = quick};
    struct pl_err err = {0};
    size_t bad = 0;
    char what[200], text[500] = "";
    if (pl_optest_run(&how, &base, &err) != PL_OK) bad++, snprintf(text, sizeof text, "%.480s", err.text);
    snprintf(what, sizeof what, "operations on %s", pl_backend_name(opt->backend));
    for (size_t i = 0; i < PL_COUNT_OF(orders) && bad == 0; i++) {
        if (quick && !orders[i].quick) continue;
        how.shuffle = orders[i].shuffle;
        how.alone = orders[i].alone;
        text[0] = '\0';
        enum pl_status st = pl_optest_run(&how, &other, &err);
        size_t differ = st == PL_OK ? pl_optest_compare(&base, &other, text, sizeof text) : 1;
        if (st != PL_OK) snprintf(text, sizeof text, "%.480s", err.text);
        json_array_append_new(rows, order_row(what, orders[i].name, base.count, differ, text));
        if (differ > 0 && bad++ == 0) snprintf(first, cap, "%.160s, %s: %.350s", what, orders[i].name, text);
        pl_optest_deinit(&other);
    }
    if (base.count == 0) snprintf(first, cap, "%.400s", text);
    pl_optest_deinit(&base);
    return bad;
}

/* One run of the suite beside another: every test must have ended the same. */
static size_t suite_order(const json_t *base, const char *path, json_t *rows, char *first, size_t cap) {
    size_t count[3] = {0}, differ = 0;
    char text[500] = "";
    json_t *other = read_junit(path, count), *verdict;
    const char *name;
    json_object_foreach((json_t *)(uintptr_t)base, name, verdict) {
        const char *then = json_string_value(verdict), *now = json_string_value(json_object_get(other, name));
        if (now != NULL && strcmp(then, now) == 0) continue;
        if (differ++ == 0) snprintf(text, sizeof text, "%.300s: %s, then %s", name, then, now != NULL ? now : "absent");
    }
    json_object_foreach(other, name, verdict) {
        if (json_object_get(base, name) != NULL) continue;
        if (differ++ == 0) snprintf(text, sizeof text, "%.300s: absent, then %s", name, json_string_value(verdict));
    }
    json_array_append_new(rows, order_row("the test suite", path, json_object_size(base), differ, text));
    if (differ > 0) snprintf(first, cap, "the test suite as in %.200s: %.280s", path, text);
    json_decref(other);
    return differ;
}

static size_t suite_orders(const struct pl_verify_options *o, json_t *rows, size_t *compared, char *first, size_t cap) {
    size_t count[3] = {0}, bad = 0;
    char path[1200];
    json_t *base = o->tests != NULL ? read_junit(o->tests, count) : NULL;
    for (const char *at = o->order; base != NULL && at != NULL && *at != '\0'; (*compared)++) {
        size_t len = strcspn(at, ",");
        snprintf(path, sizeof path, "%.*s", (int)PL_MIN(len, sizeof path - 1), at);
        bad += suite_order(base, path, rows, bad == 0 ? first : path, bad == 0 ? cap : sizeof path) > 0;
        at += len + (at[len] == ',');
    }
    json_decref(base);
    return bad;
}

void pl_verify_order(const struct pl_verify_options *o, struct pl_verify_result *r) {
    struct pl_ops_options backend[PL_VERIFY_BACKENDS_MAX];
    json_t *rows = json_array();
    char first[560] = "";
    size_t bad = 0, compared = 0, n = pl_verify_backends(o, backend);
    for (size_t i = 0; i < n; i++) {
        char said[560] = "";
        size_t wrong = operation_orders(&backend[i], o->quick, rows, said, sizeof said);
        if (wrong > 0 && bad == 0) snprintf(first, sizeof first, "%s", said);
        bad += wrong;
    }
    char said[560] = "";
    size_t wrong = suite_orders(o, rows, &compared, said, sizeof said);
    if (wrong > 0 && bad == 0) snprintf(first, sizeof first, "%s", said);
    bad += wrong;
    if (bad > 0)
        pl_verify_say(r, PL_VERIFY_FAIL, "%s", first);
    else
        pl_verify_say(r, PL_VERIFY_PASS, "%zu orders of operations, each alone among them, with the same bits; %s",
                      json_array_size(rows) - compared,
                      compared > 0 ? "the test suite with the same verdicts in every order given"
                                   : "the test suite was not asked (make check-order, then --tests and --order)");
    r->evidence = json_pack("{s:o}", "orders", rows);
}
