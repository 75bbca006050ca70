/* verify_report - the report as Markdown: a table of items, then the evidence of each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verify/junit.h"
#include "verify/verify.h"

static const char *text_of(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s != NULL ? s : "";
}

/* One line of a table: no bars, no line ends. */
static void cell(struct pl_buf *out, const char *text) {
    for (; *text != '\0'; text++) {
        if (*text == '|')
            pl_buf_add_c(out, "\\|");
        else
            pl_buf_add_char(out, *text == '\n' ? ' ' : *text);
    }
}

/* A list in a cell: the names of its objects, or its values. */
static void listed(struct pl_buf *out, const json_t *list) {
    struct pl_buf text = {0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        const char *name = json_is_object(v) ? text_of(v, "name") : json_string_value(v);
        char *whole = name == NULL || name[0] == '\0' ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
        pl_buf_printf(&text, "%s%.300s", i > 0 ? "; " : "", whole != NULL ? whole : name != NULL ? name : "");
        free(whole);
    }
    if (json_array_size(list) == 0) pl_buf_add_c(&text, "none");
    cell(out, pl_buf_cstr(&text));
    pl_buf_deinit(&text);
}

static void value(struct pl_buf *out, const json_t *v) {
    if (json_is_string(v)) {
        cell(out, json_string_value(v));
    } else if (json_is_integer(v)) {
        pl_buf_printf(out, "%lld", (long long)json_integer_value(v));
    } else if (json_is_number(v)) {
        pl_buf_printf(out, "%.5g", json_number_value(v));
    } else if (json_is_boolean(v)) {
        pl_buf_add_c(out, json_is_true(v) ? "yes" : "no");
    } else if (json_is_array(v)) {
        listed(out, v);
    } else if (json_is_object(v) && json_object_get(v, "value") != NULL) { /* an interval */
        pl_buf_printf(out, "%.5g [%.5g, %.5g]", json_number_value(json_object_get(v, "value")),
                      json_number_value(json_object_get(v, "low")), json_number_value(json_object_get(v, "high")));
    } else if (v != NULL && !json_is_null(v)) {
        char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
        if (text != NULL && strlen(text) > 300) snprintf(text + 296, 5, "...");
        cell(out, text != NULL ? text : "");
        free(text);
    }
}

/* Every key that a row has, in the order in which they come; figures within figures stay in the JSON. */
static json_t *columns_of(const json_t *list) {
    json_t *columns = json_object(), *v;
    const char *key;
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_object_foreach(json_array_get(list, i), key, v) {
            bool deep = json_is_object(v) && json_object_get(v, "value") == NULL;
            if (!deep && json_object_get(columns, key) == NULL) json_object_set_new(columns, key, json_null());
        }
    }
    return columns;
}

/* A list of objects as a table. */
static void table(struct pl_buf *out, const json_t *list) {
    enum { ROWS_MAX = 400 };
    const char *key;
    json_t *v, *columns = columns_of(list);
    pl_buf_add_c(out, "\n|");
    json_object_foreach(columns, key, v) pl_buf_printf(out, " %s |", key);
    pl_buf_add_c(out, "\n|");
    for (size_t i = 0; i < json_object_size(columns); i++) pl_buf_add_c(out, "---|");
    pl_buf_add_char(out, '\n');
    for (size_t i = 0; i < json_array_size(list) && i < ROWS_MAX; i++) {
        pl_buf_add_c(out, "|");
        json_object_foreach(columns, key, v) {
            pl_buf_add_char(out, ' ');
            value(out, json_object_get(json_array_get(list, i), key));
            pl_buf_add_c(out, " |");
        }
        pl_buf_add_char(out, '\n');
    }
    if (json_array_size(list) > ROWS_MAX)
        pl_buf_printf(out, "\n%zu further rows are in the JSON.\n", json_array_size(list) - ROWS_MAX);
    json_decref(columns);
}

static void evidence(struct pl_buf *out, const json_t *e, int depth) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)e, key, v) {
        /* Thousands of tests and hundreds of files: in the JSON. */
        if ((strcmp(key, "cases") == 0 || strcmp(key, "sources") == 0) && json_is_object(v)) continue;
        if (json_is_array(v) && json_is_object(json_array_get(v, 0))) {
            pl_buf_printf(out, "\n%s:\n", key);
            bool nested = json_is_array(json_object_get(json_array_get(v, 0), "list")) ||
                          json_is_array(json_object_get(json_array_get(v, 0), "checks"));
            for (size_t i = 0; nested && i < json_array_size(v) && depth < 3; i++)
                evidence(out, json_array_get(v, i), depth + 1);
            if (!nested) table(out, v);
        } else if (json_is_object(v) && json_object_get(v, "value") == NULL && depth < 3) {
            pl_buf_printf(out, "\n%s:\n\n", key);
            evidence(out, v, depth + 1);
        } else if (!json_is_null(v)) {
            pl_buf_printf(out, "- %s: ", key);
            value(out, v);
            pl_buf_add_char(out, '\n');
        }
    }
}

void pl_verify_report_markdown(const json_t *report, struct pl_buf *out) {
    const json_t *items = json_object_get(report, "items"), *options = json_object_get(report, "options"),
                 *open = json_object_get(report, "not_measured");
    const char *url = text_of(options, "url"), *model = text_of(options, "model");
    pl_buf_printf(out, "# Verification: %s\n\n%s, %s%s%s%s%s\n\n", text_of(report, "verdict"), text_of(report, "started"),
                  url[0] != '\0'     ? url
                  : model[0] != '\0' ? model
                                     : "no model",
                  text_of(options, "flags")[0] != '\0' ? ", " : "", text_of(options, "flags"),
                  json_is_true(json_object_get(options, "quick")) ? ", quick" : "", url[0] != '\0' ? ", from outside" : "");
    pl_buf_add_c(out, "| item | question | status | seconds | finding |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i);
        json_int_t q = json_integer_value(json_object_get(item, "question"));
        pl_buf_printf(out, "| %s | ", text_of(item, "name"));
        if (q > 0) pl_buf_printf(out, "%lld", (long long)q);
        pl_buf_printf(out, " | %s | %.1f | ", text_of(item, "status"), json_number_value(json_object_get(item, "seconds")));
        cell(out, text_of(item, "summary"));
        pl_buf_add_c(out, " |\n");
    }
    pl_buf_add_c(
        out,
        "\nThe questions, from 1 to 9, and what an item asks are in docs/verify.md; evidence and commands stand below.\n");
    if (json_array_size(open) > 0) pl_buf_add_c(out, "\n## Not measured\n\n");
    for (size_t i = 0; i < json_array_size(open); i++) {
        pl_buf_add_c(out, "- ");
        cell(out, json_string_value(json_array_get(open, i)));
        pl_buf_add_char(out, '\n');
    }
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i), *e = json_object_get(item, "evidence");
        if (!json_is_object(e)) continue;
        pl_buf_printf(out, "\n## %s: %s\n\n", text_of(item, "name"), text_of(item, "what"));
        if (text_of(item, "command")[0] != '\0')
            pl_buf_printf(out, "%s. What shows it again: `%s`\n\n", text_of(item, "status"), text_of(item, "command"));
        evidence(out, e, 0);
    }
}

/* One case per item; inconclusive is an error, because nobody may take it for a pass. */
void pl_verify_report_junit(const json_t *report, struct pl_buf *out) {
    static const enum pl_junit_verdict verdicts[PL_VERIFY_STATUSES] = {[PL_VERIFY_PASS] = PL_JUNIT_PASS,
                                                                       [PL_VERIFY_FAIL] = PL_JUNIT_FAILURE,
                                                                       [PL_VERIFY_INCONCLUSIVE] = PL_JUNIT_ERROR,
                                                                       [PL_VERIFY_SKIPPED] = PL_JUNIT_SKIPPED};
    const json_t *items = json_object_get(report, "items");
    struct pl_junit j = {0};
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i);
        enum pl_junit_verdict v = PL_JUNIT_ERROR;
        for (int s = 0; s < PL_VERIFY_STATUSES; s++)
            if (strcmp(text_of(item, "status"), pl_verify_status_name((enum pl_verify_status)s)) == 0) v = verdicts[s];
        pl_junit_add(&j, "plumb verify", text_of(item, "name"), v, text_of(item, "summary"),
                     json_number_value(json_object_get(item, "seconds")));
    }
    pl_junit_finish(&j, "plumb verify", out);
}
