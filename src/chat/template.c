/* template - the way in: parse, render, and how the caller's JSON becomes values. */
#include "chat/template.h"

#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "chat/ast.h"
#include "chat/rt.h"

enum {
    PARSE_STEPS = 50000000,
    PARSE_DEPTH = 400,
    MAX_SOURCE = 4 << 20,
    JSON_DEPTH = 500,
};

struct parse_job {
    const char *source;
    size_t len;
    struct pl_template *t;
};

static void parse_job(struct tj_rt *R, void *arg) {
    struct parse_job *j = arg;
    tj_parse(R, j->source, j->len, j->t);
    tj_resolve(R, j->t);
}

static enum pl_status check_source(const char *source, size_t len, struct pl_err *err) {
    if (len > MAX_SOURCE)
        PL_FAIL(err, PL_LIMIT, "the chat template has %zu bytes; at most %d are accepted", len, MAX_SOURCE);
    if (!pl_utf8_valid(source, len)) PL_FAIL(err, PL_FORMAT, "the chat template is not valid UTF-8");
    return PL_OK;
}

enum pl_status pl_template_parse(const char *source, size_t len, struct pl_template **out, struct pl_err *err) {
    PL_TRY(check_source(source, len, err));
    struct pl_template *t = pl_calloc(1, sizeof *t);
    struct tj_rt *R = pl_calloc(1, sizeof *R);
    if (t == NULL || R == NULL) {
        pl_free(t);
        pl_free(R);
        PL_FAIL(err, PL_NO_MEMORY, "out of memory while parsing a chat template");
    }
    pl_arena_init(&R->arena, (size_t)256 << 20);
    R->err = err;
    R->line = 1;
    R->steps_max = PARSE_STEPS;
    R->nest_max = PARSE_DEPTH;
    t->source_len = len;
    struct parse_job job = {source, len, t};
    bool ok = tj_protect(R, parse_job, &job);
    enum pl_status status = ok ? PL_OK : R->status;
    if (ok) {
        t->arena = R->arena;
        *out = t;
    } else {
        (void)pl_err_note(err, "reading line %u of the chat template", R->line);
        pl_arena_deinit(&R->arena);
        pl_free(t);
    }
    pl_free(R);
    return status;
}

void pl_template_destroy(struct pl_template *t) {
    if (t == NULL) return;
    pl_arena_deinit(&t->arena);
    pl_free(t);
}

void pl_rendered_deinit(struct pl_rendered *r) {
    pl_buf_deinit(&r->text);
    pl_free(r->content);
    *r = (struct pl_rendered){0};
}

/* --- JSON to values --- */

/* Role names that conversations are made of. Templates build markers from them ('<|' + role + '|>'), and none of them
 * can carry anything, so they count as the template's own words. */
static bool plain_role(const char *key, const json_t *v) {
    static const char *const roles[] = {"system",      "user",          "assistant",   "tool",      "developer", "function",
                                        "ipython",     "model",         "observation", "human",     "gpt",       "bot",
                                        "environment", "tool_response", "tool_result", "documents", "context"};
    if (strcmp(key, "role") != 0 || !json_is_string(v)) return false;
    for (size_t i = 0; i < PL_COUNT_OF(roles); i++)
        if (strcmp(json_string_value(v), roles[i]) == 0 && json_string_length(v) == strlen(roles[i])) return true;
    return false;
}

static struct tj_val convert(struct tj_rt *R, const json_t *j, bool taint, int depth) {
    if (depth > JSON_DEPTH) tj_raise(R, PL_LIMIT, "the template's variables are nested deeper than %d", JSON_DEPTH);
    switch (json_typeof(j)) {
    case JSON_NULL: return tj_none();
    case JSON_TRUE: return tj_tainted(tj_bool(true), taint);
    case JSON_FALSE: return tj_tainted(tj_bool(false), taint);
    case JSON_INTEGER: return tj_tainted(tj_int(json_integer_value(j)), taint);
    case JSON_REAL: return tj_tainted(tj_float(json_real_value(j)), taint);
    case JSON_STRING: return tj_strv(tj_str_borrow(R, json_string_value(j), json_string_length(j), taint));
    case JSON_ARRAY: {
        struct tj_list *l = tj_list_new(R, json_array_size(j));
        for (size_t i = 0; i < json_array_size(j); i++)
            tj_list_add(R, l, convert(R, json_array_get(j, i), taint, depth + 1));
        return tj_listv(l);
    }
    case JSON_OBJECT: break;
    }
    struct tj_dict *d = tj_dict_new(R);
    json_t *object = (json_t *)(uintptr_t)j; /* jansson's iterators take a plain pointer and change nothing */
    for (void *it = json_object_iter(object); it != NULL; it = json_object_iter_next(object, it)) {
        const char *key = json_object_iter_key(it);
        const json_t *v = json_object_iter_value(it);
        struct tj_str *k = tj_str_borrow(R, key, strlen(key), taint);
        tj_dict_set(R, d, tj_strv(k), convert(R, v, taint && !plain_role(key, v), depth + 1));
    }
    return tj_dictv(d);
}

static bool is_trusted(const char *const *trusted, const char *key) {
    for (; trusted != NULL && *trusted != NULL; trusted++)
        if (strcmp(*trusted, key) == 0) return true;
    return false;
}

static struct tj_dict *convert_vars(struct tj_rt *R, const json_t *vars, const char *const *trusted) {
    struct tj_dict *d = tj_dict_new(R);
    json_t *object = (json_t *)(uintptr_t)vars;
    for (void *it = json_object_iter(object); it != NULL; it = json_object_iter_next(object, it)) {
        const char *key = json_object_iter_key(it);
        struct tj_str *k = tj_str_borrow(R, key, strlen(key), true);
        tj_dict_set(R, d, tj_strv(k), convert(R, json_object_iter_value(it), !is_trusted(trusted, key), 0));
    }
    return d;
}

/* --- rendering --- */

struct render_job {
    const struct pl_template *t;
    const json_t *vars;
    const char *const *trusted;
    struct tj_sb out;
};

static void render_job(struct tj_rt *R, void *arg) {
    struct render_job *j = arg;
    R->vars = convert_vars(R, j->vars, j->trusted);
    R->exported = tj_dict_new(R);
    tj_sb_init(R, &j->out);
    R->sb = R->root = &j->out;
    tj_run(R, j->t);
}

static enum pl_status deliver(const struct tj_sb *b, struct pl_rendered *out, struct pl_err *err) {
    struct pl_rendered r = {0};
    pl_buf_add(&r.text, b->data, b->len);
    if (b->nspans > 0) r.content = pl_alloc(b->nspans, sizeof *r.content);
    if (!pl_buf_ok(&r.text) || (b->nspans > 0 && r.content == NULL)) {
        pl_rendered_deinit(&r);
        PL_FAIL(err, PL_NO_MEMORY, "out of memory for a rendered prompt of %zu bytes", b->len);
    }
    if (b->nspans > 0) memcpy(r.content, b->spans, b->nspans * sizeof *r.content);
    r.content_count = r.content_cap = b->nspans;
    *out = r;
    return PL_OK;
}

static void set_limits(struct tj_rt *R, const struct pl_template_limits *l) {
    static const struct pl_template_limits none = {0};
    if (l == NULL) l = &none;
    R->steps_max = l->steps != 0 ? l->steps : 10000000;
    R->output_max = l->output_bytes != 0 ? l->output_bytes : (size_t)64 << 20;
    R->calls_max = l->depth != 0 ? l->depth : 200;
    R->nest_max = R->calls_max > 1000 ? 11000 : R->calls_max * 10 + 1000;
    pl_arena_init(&R->arena, l->memory_bytes != 0 ? l->memory_bytes : (size_t)512 << 20);
}

enum pl_status pl_template_render(const struct pl_template *t, const json_t *vars, const char *const *trusted,
                                  const struct pl_template_limits *limits, int64_t now_unix, struct pl_rendered *out,
                                  struct pl_err *err) {
    if (!json_is_object(vars)) PL_FAIL(err, PL_INVALID, "a template's variables must be a JSON object");
    struct tj_rt *R = pl_calloc(1, sizeof *R);
    if (R == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory while rendering a chat template");
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    set_limits(R, limits);
    R->err = err;
    R->line = 1;
    R->now = now_unix;
    R->seed = (uint64_t)ts.tv_nsec ^ (uint64_t)(uintptr_t)R;
    R->t = t;
    struct render_job job = {.t = t, .vars = vars, .trusted = trusted};
    enum pl_status status;
    if (tj_protect(R, render_job, &job)) {
        status = deliver(&job.out, out, err);
    } else {
        status = R->status;
        (void)pl_err_note(err, "rendering line %u of the chat template", R->line);
    }
    pl_arena_deinit(&R->arena);
    pl_free(R);
    return status;
}
