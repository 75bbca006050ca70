/* traits.c - what a chat template can show, tried out, and conversations put into what it can. */
#include "chat/traits.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"

static const char SEEN[] = "qzx7seen", RESULT[] = "qzx7result", TOOL[] = "qzx7tool";

struct probe {
    const struct pl_traits *t; /* as far as they are known */
    pl_traits_render *render;
    void *user;
};

/* ---------- trying out ---------- */

static json_t *content(const struct pl_traits *t, const char *text) {
    return t->parts ? json_pack("[{s:s, s:s}]", "type", "text", "text", text) : json_string(text);
}

static json_t *message(const struct pl_traits *t, const char *role, const char *text) {
    return json_pack("{s:s, s:o}", "role", role, "content", content(t, text));
}

static json_t *probe_tools(void) {
    return json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}}, s:[s]}}}]", "type", "function", "function", "name", TOOL,
                     "description", "x", "parameters", "type", "object", "properties", "x", "type", "string", "description",
                     "x", "required", "x");
}

/* Whether the template renders this (both are taken over) and its text holds the marks. */
static bool shows(const struct probe *p, json_t *messages, json_t *tools, const char *first, const char *second,
                  bool *rendered) {
    struct pl_rendered r = {0};
    struct pl_err ignored = {0};
    bool ok = messages != NULL && p->render(p->user, messages, tools, &r, &ignored) == PL_OK;
    const char *text = ok ? pl_buf_cstr(&r.text) : "";
    bool found = ok && strstr(text, first) != NULL && strstr(text, second) != NULL;
    if (rendered != NULL) *rendered = ok;
    pl_rendered_deinit(&r);
    json_decref(messages);
    json_decref(tools);
    return found;
}

static json_t *user(const struct pl_traits *t) { return message(t, "user", "x"); }

static enum pl_tools_place try_tools(const struct probe *p, const struct pl_traits *t) {
    if (shows(p, json_pack("[o]", user(t)), probe_tools(), TOOL, "", NULL) ||
        shows(p, json_pack("[o, o]", message(t, "system", "x"), user(t)), probe_tools(), TOOL, "", NULL))
        return PL_TOOLS_VARIABLE;
    for (enum pl_tools_place place = PL_TOOLS_SYSTEM_TEXT; place <= PL_TOOLS_SYSTEM_LIST; place++) {
        json_t *m = message(t, "system", "x");
        json_object_set_new(m, "tools", place == PL_TOOLS_SYSTEM_TEXT ? json_string(TOOL) : probe_tools());
        if (shows(p, json_pack("[o, o]", m, user(t)), NULL, TOOL, "", NULL)) return place;
    }
    return PL_TOOLS_DESCRIBED;
}

static json_t *history(const struct pl_traits *t, bool text) {
    json_t *args = text ? json_pack("s", "{\"x\": \"qzx7seen\"}") : json_pack("{s:s}", "x", SEEN);
    json_t *none = t->null_content ? json_null() : json_string("");
    json_t *call = json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", "abcdefgh1", "type", "function", "function", "name", TOOL,
                             "arguments", args);
    json_t *result = message(t, "tool", RESULT);
    json_object_set_new(result, "tool_call_id", json_string("abcdefgh1"));
    json_object_set_new(result, "name", json_string(TOOL));
    return json_pack("[o, {s:s, s:o, s:[o]}, o]", user(t), "role", "assistant", "content", none, "tool_calls", call, result);
}

static void try_history(const struct probe *p, struct pl_traits *t) {
    bool rendered = false;
    for (int text = 0; text < 2 && !rendered; text++) {
        t->calls = shows(p, history(t, text != 0), probe_tools(), SEEN, "", &rendered);
        t->results = shows(p, history(t, text != 0), probe_tools(), RESULT, "", NULL);
    }
    if (t->calls && t->results) return;
    json_t *call = message(t, "assistant", SEEN), *result = message(t, "observation", RESULT);
    json_object_set_new(call, "metadata", json_string(TOOL));
    t->observations =
        shows(p, json_pack("[o, o, o]", user(t), call, result), NULL, SEEN, RESULT, NULL) && t->kind == PL_REPLY_GLM;
}

static bool contains(struct pl_str text, const char *what) {
    return text.len > 0 && memmem(text.data, text.len, what, strlen(what)) != NULL;
}

void pl_traits_read(struct pl_traits *out, struct pl_str source, pl_traits_render *render, void *data) {
    static const char *const none[] = {"content is none", "content'] is none", "content\"] is none", "content == none"};
    const struct probe probe = {out, render, data}, *p = &probe;
    bool knows;
    struct pl_traits t = {.system = true, .calls = true, .results = true}, parts = {.parts = true};
    t.kind = pl_reply_format(source.data, source.len, &knows);
    t.tools = knows ? PL_TOOLS_VARIABLE : PL_TOOLS_DESCRIBED;
    for (size_t i = 0; i < PL_COUNT_OF(none); i++) t.null_content |= contains(source, none[i]);
    *out = t;
    (void)shows(p, json_pack("[o]", user(&t)), probe_tools(), "", "", NULL); /* parses what several threads will read */
    if (!shows(p, json_pack("[o]", message(&t, "user", SEEN)), NULL, SEEN, "", NULL)) {
        t.parts = shows(p, json_pack("[o]", message(&parts, "user", SEEN)), NULL, SEEN, "", NULL);
        if (!t.parts) return; /* it wants more than a user's message: nothing is known of it */
    }
    t.system = shows(p, json_pack("[o, o]", message(&t, "system", SEEN), user(&t)), NULL, SEEN, "", NULL);
    t.tools = knows ? try_tools(p, &t) : PL_TOOLS_DESCRIBED;
    try_history(p, &t);
    t.tools_unseen = knows && t.tools == PL_TOOLS_DESCRIBED;
    *out = t;
}

uint32_t pl_traits_missing(const struct pl_traits *t) {
    return (t->system ? 0 : PL_UNSEEN_SYSTEM) | (t->tools_unseen ? PL_UNSEEN_TOOLS : 0) |
           (t->calls || t->observations ? 0 : PL_UNSEEN_CALLS) | (t->results || t->observations ? 0 : PL_UNSEEN_RESULTS);
}

const char *pl_traits_missing_text(uint32_t one) {
    switch (one) {
    case PL_UNSEEN_SYSTEM: return "system messages: they begin the user's message that follows";
    case PL_UNSEEN_TOOLS: return "tools, though it speaks of them: they are described in the system message";
    case PL_UNSEEN_CALLS: return "tool calls: earlier ones are written as the assistant's text";
    default: return "tool results: they are written as the user's text";
    }
}

json_t *pl_traits_json(const struct pl_traits *t) {
    static const char *const places[] = {"described", "variable", "system text", "system list"};
    return json_pack("{s:b, s:s, s:b, s:b, s:b}", "system", (int)t->system, "tools", places[t->tools], "tool_calls",
                     (int)(t->calls || t->observations), "tool_results", (int)(t->results || t->observations), "parts_only",
                     (int)t->parts);
}

/* ---------- putting into it ---------- */

static bool is_role(const json_t *m, const char *role) {
    const char *has = json_string_value(json_object_get(m, "role"));
    return has != NULL && strcmp(has, role) == 0;
}

static void add_text(struct pl_buf *b, const json_t *text) {
    if (json_is_string(text)) pl_buf_add(b, json_string_value(text), json_string_length(text));
}

static void add_value(struct pl_buf *b, const json_t *v) {
    char *text = json_is_string(v) ? NULL : pl_json_write(v, JSON_ENCODE_ANY);
    if (text != NULL)
        pl_buf_add_c(b, text);
    else
        add_text(b, v);
    free(text);
}

static int set_content(json_t *m, struct pl_buf *b) {
    if (!pl_buf_ok(b)) pl_json_starve();
    json_t *text = pl_buf_ok(b) ? json_stringn(pl_buf_cstr(b), b->len) : NULL;
    pl_buf_clear(b);
    return text == NULL ? -1 : json_object_set_new(m, "content", text);
}

/* As the model is told to write them, or writes them by itself. */
static void add_calls(struct pl_buf *b, const json_t *calls, enum pl_reply_kind kind) {
    const char *before = kind == PL_REPLY_GRANITE ? "<|tool_call|>" : kind == PL_REPLY_NEMOTRON ? "<TOOLCALL>" : "";
    const char *after = kind == PL_REPLY_NEMOTRON ? "</TOOLCALL>" : "";
    size_t count = json_array_size(calls);
    bool list = count > 1 || before[0] != '\0', each = kind == PL_REPLY_HERMES;
    pl_buf_add_c(b, before);
    if (list && !each) pl_buf_add_char(b, '[');
    for (size_t i = 0; i < count; i++) {
        const json_t *f = json_object_get(json_array_get(calls, i), "function");
        pl_buf_add_c(b, i == 0 ? "" : each ? "\n" : ", ");
        pl_buf_add_c(b, each ? "<tool_call>\n{\"name\": \"" : "{\"name\": \"");
        add_text(b, json_object_get(f, "name"));
        pl_buf_add_c(b, kind == PL_REPLY_LLAMA ? "\", \"parameters\": " : "\", \"arguments\": ");
        add_value(b, json_object_get(f, "arguments"));
        pl_buf_add_c(b, each ? "}\n</tool_call>" : "}");
    }
    if (list && !each) pl_buf_add_char(b, ']');
    pl_buf_add_c(b, after);
}

static int take_calls(json_t *m, enum pl_reply_kind kind, struct pl_buf *b) {
    add_text(b, json_object_get(m, "content"));
    if (b->len > 0) pl_buf_add_char(b, '\n');
    add_calls(b, json_object_get(m, "tool_calls"), kind);
    json_object_del(m, "tool_calls");
    return set_content(m, b);
}

/* GLM-4: each call is a message whose metadata is the name, results come from the role observation. */
static int observe(json_t *out, json_t *m, struct pl_buf *b) {
    json_t *calls = json_object_get(m, "tool_calls");
    if (is_role(m, "tool")) return json_object_set_new(m, "role", json_string("observation")) | json_array_append(out, m);
    int bad = 0;
    if (calls == NULL || json_string_length(json_object_get(m, "content")) > 0) bad = json_array_append(out, m);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *f = json_object_get(json_array_get(calls, i), "function");
        json_t *one = json_pack("{s:s, s:O}", "role", "assistant", "metadata", json_object_get(f, "name"));
        add_value(b, json_object_get(f, "arguments"));
        bad |= set_content(one, b) | json_array_append_new(out, one);
    }
    json_object_del(m, "tool_calls");
    return bad;
}

/* What waited for a user's message becomes one. */
static int flush(json_t *out, struct pl_buf *waiting) {
    while (waiting->len > 0 && waiting->data[waiting->len - 1] == '\n') waiting->len--;
    if (waiting->len == 0) return 0;
    json_t *m = json_pack("{s:s}", "role", "user");
    return set_content(m, waiting) | json_array_append_new(out, m);
}

/* A conversation on its way into what the template shows. */
struct rewriting {
    const struct pl_traits *t;
    json_t *out;
    struct pl_buf waiting, b; /* text of the user's next message; scratch */
    uint32_t rewritten;
};

static int take_message(struct rewriting *w, json_t *m) {
    const struct pl_traits *t = w->t;
    struct pl_buf *waiting = &w->waiting;
    if (t->observations && (is_role(m, "tool") || json_object_get(m, "tool_calls") != NULL))
        return observe(w->out, m, &w->b);
    bool result = is_role(m, "tool") && !t->results;
    if (result || (is_role(m, "system") && !t->system)) {
        w->rewritten |= result ? PL_UNSEEN_RESULTS : PL_UNSEEN_SYSTEM;
        if (result) pl_buf_add_c(waiting, "Result of ");
        if (result) add_text(waiting, json_object_get(m, "name"));
        if (result) pl_buf_add_c(waiting, ":\n");
        add_text(waiting, json_object_get(m, "content"));
        pl_buf_add_c(waiting, "\n\n");
        return 0;
    }
    int bad = 0;
    if (is_role(m, "user") && waiting->len > 0) {
        add_text(waiting, json_object_get(m, "content"));
        bad = set_content(m, waiting);
    }
    bad |= flush(w->out, waiting);
    if (json_object_get(m, "tool_calls") != NULL && !t->calls) {
        w->rewritten |= PL_UNSEEN_CALLS;
        bad |= take_calls(m, t->tools == PL_TOOLS_DESCRIBED ? PL_REPLY_JSON : t->kind, &w->b);
    }
    return bad | json_array_append(w->out, m);
}

enum pl_status pl_traits_apply(const struct pl_traits *t, json_t **messages, uint32_t *rewritten) {
    struct rewriting w = {.t = t};
    *rewritten = 0;
    if (t->system && t->calls && t->results) return PL_OK;
    w.out = json_array();
    int bad = w.out == NULL;
    for (size_t i = 0; i < json_array_size(*messages); i++) bad |= take_message(&w, json_array_get(*messages, i));
    bad |= flush(w.out, &w.waiting);
    bool ok = bad == 0 && pl_buf_ok(&w.waiting) && pl_buf_ok(&w.b);
    pl_buf_deinit(&w.waiting);
    pl_buf_deinit(&w.b);
    json_decref(ok ? *messages : w.out);
    if (!ok) return PL_NO_MEMORY;
    *messages = w.out;
    *rewritten = w.rewritten;
    return PL_OK;
}

/* Tools as a part of the system message: their functions as text, or the list itself. */
enum pl_status pl_traits_place_tools(const struct pl_traits *t, json_t *messages, json_t *tools_list) {
    json_t *first = json_array_get(messages, 0), *tools = NULL;
    int bad = 0;
    if (!is_role(first, "system")) {
        bad = json_array_insert_new(messages, 0, json_pack("{s:s, s:s}", "role", "system", "content", ""));
        first = json_array_get(messages, 0);
    }
    if (t->tools == PL_TOOLS_SYSTEM_LIST) {
        tools = json_incref(tools_list);
    } else {
        json_t *functions = json_array();
        for (size_t i = 0; i < json_array_size(tools_list); i++)
            bad |= json_array_append(functions, json_object_get(json_array_get(tools_list, i), "function"));
        char *text = pl_json_write(functions, 0);
        tools = text == NULL ? NULL : json_string(text);
        free(text);
        json_decref(functions);
    }
    bad |= tools == NULL || json_object_set_new(first, "tools", tools) != 0;
    return bad == 0 ? PL_OK : PL_NO_MEMORY;
}

json_t *pl_traits_messages(const struct pl_traits *t, json_t *messages) {
    if (!t->parts) return json_incref(messages);
    json_t *out = json_deep_copy(messages);
    for (size_t i = 0; i < json_array_size(out); i++) {
        json_t *m = json_array_get(out, i), *text = json_object_get(m, "content");
        if (json_is_string(text) &&
            json_object_set_new(m, "content", json_pack("[{s:s, s:O}]", "type", "text", "text", text)) != 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}
