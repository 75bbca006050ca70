/* verify_suite - results of the test suite, and whether a verdict depends on what ran before: operations and tests in
 * several orders, and each alone. */
#include <stdio.h>
#include <string.h>

#include "verify/junit.h"
#include "verify/optest.h"
#include "verify/verify.h"

/* ---------- results of the suite ---------- */

struct suite {
    json_t *cases; /* {group and name: verdict}, of equal names the worst */
    size_t count[3];
    char doubt[400]; /* why not all of it is known, "" */
};

static void add_case(void *user, const char *group, const char *name, enum pl_junit_verdict v) {
    static const char *const names[] = {"pass", "fail", "skipped"};
    struct suite *s = user;
    struct pl_buf key = {0};
    int verdict = v == PL_JUNIT_SKIPPED ? 2 : v != PL_JUNIT_PASS;
    pl_buf_printf(&key, "%s: %s", group, name);
    bool valid = pl_utf8_valid(pl_buf_cstr(&key), key.len);
    for (size_t i = 0; i < key.len && !valid; i++)
        if ((unsigned char)key.data[i] >= 0x80) key.data[i] = '?';
    const char *then = json_string_value(json_object_get(s->cases, pl_buf_cstr(&key)));
    bool worse = then == NULL || (strcmp(then, "fail") != 0 && verdict > 0);
    if (worse) json_object_set_new(s->cases, pl_buf_cstr(&key), json_string(names[verdict]));
    s->count[verdict]++;
    pl_buf_deinit(&key);
}

static void read_file(const char *path, struct suite *s) {
    FILE *f = fopen(path, "re");
    struct pl_buf text = {0};
    char block[65536];
    size_t before = s->count[0] + s->count[1] + s->count[2];
    for (size_t n; f != NULL && (n = fread(block, 1, sizeof block, f)) > 0 && text.len < 256 << 20;)
        pl_buf_add(&text, block, n);
    if (f != NULL) fclose(f);
    bool whole = pl_junit_read(pl_buf_cstr(&text), text.len, add_case, s);
    if (s->doubt[0] == '\0' && s->count[0] + s->count[1] + s->count[2] == before)
        snprintf(s->doubt, sizeof s->doubt, "%.300s holds no test cases (JUnit XML was expected)", path);
    if (s->doubt[0] == '\0' && !whole)
        snprintf(s->doubt, sizeof s->doubt, "%.300s ends in the middle: cases may be missing", path);
    pl_buf_deinit(&text);
}

/* All files of a list with commas. */
static struct suite read_junit(const char *list) {
    struct suite s = {.cases = json_object()};
    for (const char *at = list; *at != '\0';) {
        char path[1200];
        size_t len = strcspn(at, ",");
        snprintf(path, sizeof path, "%.*s", (int)PL_MIN(len, sizeof path - 1), at);
        read_file(path, &s);
        at += len + (at[len] == ',');
    }
    return s;
}

void pl_verify_tests(const struct pl_verify_options *o, struct pl_verify_result *r) {
    if (o->tests == NULL) {
        pl_verify_say(r, PL_VERIFY_SKIPPED, "no results were given: make check, then --tests build/test-report.xml");
        return;
    }
    struct suite s = read_junit(o->tests);
    if (s.count[1] == 0 && s.doubt[0] != '\0')
        pl_verify_say(r, PL_VERIFY_INCONCLUSIVE, "%s", s.doubt);
    else
        pl_verify_say(r, s.count[1] > 0 ? PL_VERIFY_FAIL : PL_VERIFY_PASS, "%zu passed, %zu failed, %zu skipped", s.count[0],
                      s.count[1], s.count[2]);
    r->evidence = json_pack("{s:I, s:I, s:I, s:o}", "passed", (json_int_t)s.count[0], "failed", (json_int_t)s.count[1],
                            "skipped", (json_int_t)s.count[2], "cases", s.cases);
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
    size_t differ = 0;
    char text[500] = "";
    struct suite s = read_junit(path);
    json_t *other = s.cases, *verdict;
    const char *name;
    if (s.doubt[0] != '\0') snprintf(text, sizeof text, "%s", s.doubt), differ++;
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
    size_t bad = 0;
    char path[1200];
    json_t *base = o->tests != NULL ? read_junit(o->tests).cases : NULL;
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
