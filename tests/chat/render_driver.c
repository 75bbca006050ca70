/* render_driver - the template engine behind a pipe, for tests written in Python.
 * One JSON object a line in: {"template": TEXT, "vars": {...}, "trusted": [names], "now": seconds, "steps": n, "memory": n}.
 * One a line out: {"status": name, "text": TEXT, "spans": [[begin, end], ...], "error": TEXT, "ms": time}. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "chat/template.h"

static const char *status_name(enum pl_status s) {
    static const char *const names[] = {
#define NAME(name, text, http, code) #name,
        PL_STATUS_LIST(NAME)
#undef NAME
    };
    return names[s];
}

static json_t *spans_json(const struct pl_rendered *r) {
    json_t *a = json_array();
    for (size_t i = 0; i < r->content_count; i++)
        json_array_append_new(a, json_pack("[I,I]", (json_int_t)r->content[i].begin, (json_int_t)r->content[i].end));
    return a;
}

static json_t *answer(json_t *in) {
    struct pl_err err = {0};
    struct pl_template *t = NULL;
    struct pl_rendered r = {0};
    json_t *source = json_object_get(in, "template"), *trusted = json_object_get(in, "trusted"),
           *now = json_object_get(in, "now");
    const char *names[64] = {0};
    for (size_t i = 0; i < json_array_size(trusted) && i < 63; i++) names[i] = json_string_value(json_array_get(trusted, i));
    struct pl_template_limits limits = {.steps = (uint64_t)json_integer_value(json_object_get(in, "steps")),
                                        .memory_bytes = (size_t)json_integer_value(json_object_get(in, "memory"))};
    uint64_t start = pl_clock_ns();
    enum pl_status s = pl_template_parse(json_string_value(source), json_string_length(source), &t, &err);
    uint64_t parsed = pl_clock_ns();
    if (s == PL_OK)
        s = pl_template_render(t, json_object_get(in, "vars"), names, &limits, now == NULL ? -1 : json_integer_value(now),
                               &r, &err);
    uint64_t done = pl_clock_ns();
    json_t *out = json_pack("{s:s,s:f,s:f}", "status", status_name(s), "parse_ms", (double)(parsed - start) * 1e-6,
                            "render_ms", (double)(done - parsed) * 1e-6);
    if (s == PL_OK) {
        json_object_set_new(out, "text", json_stringn(pl_buf_cstr(&r.text), r.text.len));
        json_object_set_new(out, "spans", spans_json(&r));
    } else {
        json_t *text = json_string(err.text);
        json_object_set_new(out, "error", text != NULL ? text : json_string("(not UTF-8)"));
    }
    pl_rendered_deinit(&r);
    pl_template_destroy(t);
    return out;
}

int main(void) {
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) {
        json_error_t e;
        json_t *in = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, &e);
        json_t *out = in == NULL ? json_pack("{s:s,s:s}", "status", "BAD_REQUEST", "error", e.text) : answer(in);
        char *text = json_dumps(out, JSON_COMPACT | JSON_REAL_PRECISION(9));
        puts(text);
        fflush(stdout);
        free(text);
        json_decref(out);
        json_decref(in);
    }
    free(line);
    return 0;
}
