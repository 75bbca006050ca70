/* reply_driver - the reading of replies behind a pipe, for tests written in Python.
 * One JSON object a line in: {"template": TEXT, "prompt": TEXT, "reply": TEXT, "tools": [..], "step": bytes at a time}.
 * One a line out: {"kind": name, "text": TEXT, "reasoning": TEXT, "calls": [[name, arguments], ..]}. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "chat/reply.h"

enum { TOOLS_MAX = 16 };

static const char *kind_name(enum pl_reply_kind k) {
    static const char *const names[] = {
        "json",    "hermes",        "llama",   "mistral", "gemma",    "granite", "nemotron", "jamba",      "command",
        "olmo",    "functiongemma", "glm",     "xml",     "deepseek", "harmony", "arg_key",  "hunyuan",    "seed",
        "minimax", "dsml",          "dsml_v4", "kimi",    "minicpm",  "apertus", "gigachat", "functionary"};
    _Static_assert(PL_COUNT_OF(names) == PL_REPLY_KINDS, "every kind has a name");
    return names[k];
}

struct parts {
    struct pl_buf text, reasoning, arguments;
    json_t *calls;
};

static void end_call(struct parts *p) {
    if (json_array_size(p->calls) > 0)
        json_array_append_new(json_array_get(p->calls, json_array_size(p->calls) - 1),
                              json_stringn(pl_buf_cstr(&p->arguments), p->arguments.len));
    pl_buf_clear(&p->arguments);
}

static void on_text(void *user, const char *data, size_t len) { pl_buf_add(&((struct parts *)user)->text, data, len); }
static void on_reasoning(void *user, const char *data, size_t len) {
    pl_buf_add(&((struct parts *)user)->reasoning, data, len);
}
static void on_arguments(void *user, const char *data, size_t len) {
    pl_buf_add(&((struct parts *)user)->arguments, data, len);
}
static void on_call(void *user, const char *name, size_t len) {
    struct parts *p = user;
    end_call(p);
    json_array_append_new(p->calls, json_pack("[s%]", name, len));
}

static json_t *answer(const json_t *in) {
    const json_t *source = json_object_get(in, "template"), *reply = json_object_get(in, "reply"),
                 *tools = json_object_get(in, "tools"), *prompt = json_object_get(in, "prompt");
    struct parts p = {.calls = json_array()};
    const struct pl_reply_sink sink = {&p, on_text, on_reasoning, on_call, on_arguments};
    const char *names[TOOLS_MAX];
    struct pl_reply_options o = {.tools = true, .reasoning = true, .names = names, .tools_json = tools};
    bool knows;
    o.kind = pl_reply_format(json_string_value(source), json_string_length(source), &knows);
    o.in_reasoning = pl_reply_opens_reasoning(json_string_value(prompt), json_string_length(prompt));
    for (; o.name_count < json_array_size(tools) && o.name_count < TOOLS_MAX; o.name_count++)
        names[o.name_count] =
            json_string_value(json_object_get(json_object_get(json_array_get(tools, o.name_count), "function"), "name"));
    size_t len = json_string_length(reply), step = (size_t)json_integer_value(json_object_get(in, "step"));
    struct pl_reply *r = NULL;
    if (pl_reply_create(&o, &sink, &r) != PL_OK) abort();
    for (size_t at = 0; at < len; at += step)
        if (pl_reply_push(r, json_string_value(reply) + at, PL_MIN(step, len - at)) != PL_OK) abort();
    if (pl_reply_finish(r) != PL_OK) abort();
    pl_reply_destroy(r);
    end_call(&p);
    json_t *out =
        json_pack("{s:s, s:o, s:o, s:o}", "kind", kind_name(o.kind), "text", json_stringn(pl_buf_cstr(&p.text), p.text.len),
                  "reasoning", json_stringn(pl_buf_cstr(&p.reasoning), p.reasoning.len), "calls", p.calls);
    pl_buf_deinit(&p.text);
    pl_buf_deinit(&p.reasoning);
    pl_buf_deinit(&p.arguments);
    return out;
}

int main(void) {
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) {
        json_t *in = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL), *out = answer(in);
        char *text = json_dumps(out, JSON_COMPACT);
        puts(text);
        fflush(stdout);
        free(text);
        json_decref(out);
        json_decref(in);
    }
    free(line);
    return 0;
}
