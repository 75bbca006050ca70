/* traits.c - what the model's chat template can show, tried out once when the server starts, and conversations put into
 * what it can: calls, results and system texts that it would pass over, or refuse, become text of the turns it knows. */
#include "serve/internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"

static const char SEEN[] = "qzx7seen", RESULT[] = "qzx7result", TOOL[] = "qzx7tool";

/* ---------- trying out ---------- */

static json_t *content(const struct template_traits *t, const char *text) {
    return t->parts ? json_pack("[{s:s, s:s}]", "type", "text", "text", text) : json_string(text);
}

static json_t *message(const struct template_traits *t, const char *role, const char *text) {
    return json_pack("{s:s, s:o}", "role", role, "content", content(t, text));
}

static json_t *probe_tools(void) {
    return json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}}, s:[s]}}}]", "type", "function", "function", "name", TOOL,
                     "description", "x", "parameters", "type", "object", "properties", "x", "type", "string", "description",
                     "x", "required", "x");
}

/* Whether the template renders this (both are taken over) and its text holds the marks. */
static bool shows(const struct pl_server *s, json_t *messages, json_t *tools, const char *first, const char *second,
                  bool *rendered) {
    struct pl_rendered r = {0};
    struct pl_err ignored = {0};
    bool ok = messages != NULL && pl_engine_render(s->engine, messages, tools, true, NULL, &r, &ignored) == PL_OK;
    const char *text = ok ? pl_buf_cstr(&r.text) : "";
    bool found = ok && strstr(text, first) != NULL && strstr(text, second) != NULL;
    if (rendered != NULL) *rendered = ok;
    pl_rendered_deinit(&r);
    json_decref(messages);
    json_decref(tools);
    return found;
}

static json_t *user(const struct template_traits *t) { return message(t, "user", "x"); }

static enum tools_place try_tools(const struct pl_server *s, const struct template_traits *t) {
    if (shows(s, json_pack("[o]", user(t)), probe_tools(), TOOL, "", NULL) ||
        shows(s, json_pack("[o, o]", message(t, "system", "x"), user(t)), probe_tools(), TOOL, "", NULL))
        return TOOLS_VARIABLE;
    for (enum tools_place place = TOOLS_SYSTEM_TEXT; place <= TOOLS_SYSTEM_LIST; place++) {
        json_t *m = message(t, "system", "x");
        json_object_set_new(m, "tools", place == TOOLS_SYSTEM_TEXT ? json_string(TOOL) : probe_tools());
        if (shows(s, json_pack("[o, o]", m, user(t)), NULL, TOOL, "", NULL)) return place;
    }
    return TOOLS_DESCRIBED;
}

static json_t *history(const struct pl_server *s, const struct template_traits *t, bool text) {
    json_t *args = text ? json_pack("s", "{\"x\": \"qzx7seen\"}") : json_pack("{s:s}", "x", SEEN);
    json_t *none = s->null_content ? json_null() : json_string("");
    json_t *call = json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", "abcdefgh1", "type", "function", "function", "name", TOOL,
                             "arguments", args);
    json_t *result = message(t, "tool", RESULT);
    json_object_set_new(result, "tool_call_id", json_string("abcdefgh1"));
    json_object_set_new(result, "name", json_string(TOOL));
    return json_pack("[o, {s:s, s:o, s:[o]}, o]", user(t), "role", "assistant", "content", none, "tool_calls", call, result);
}

static void try_history(const struct pl_server *s, struct template_traits *t) {
    bool rendered = false;
    for (int text = 0; text < 2 && !rendered; text++) {
        t->calls = shows(s, history(s, t, text != 0), probe_tools(), SEEN, "", &rendered);
        t->results = shows(s, history(s, t, text != 0), probe_tools(), RESULT, "", NULL);
    }
    if (t->calls && t->results) return;
    json_t *call = message(t, "assistant", SEEN), *result = message(t, "observation", RESULT);
    json_object_set_new(call, "metadata", json_string(TOOL));
    t->observations =
        shows(s, json_pack("[o, o, o]", user(t), call, result), NULL, SEEN, RESULT, NULL) && s->reply_kind == PL_REPLY_GLM;
}

static void tell(bool shown, const char *what, const char *instead) {
    if (!shown) pl_log(PL_LOG_INFO, "the chat template shows no %s: %s", what, instead);
}

void traits_read(struct pl_server *s) {
    struct template_traits t = {.system = true, .calls = true, .results = true}, parts = {.parts = true};
    bool knows = s->traits.tools == TOOLS_VARIABLE; /* its text speaks of tools */
    s->traits = t;
    s->traits.tools = knows ? TOOLS_VARIABLE : TOOLS_DESCRIBED;
    (void)shows(s, json_pack("[o]", user(&t)), probe_tools(), "", "", NULL); /* parses what several threads will read */
    if (!shows(s, json_pack("[o]", message(&t, "user", SEEN)), NULL, SEEN, "", NULL)) {
        t.parts = shows(s, json_pack("[o]", message(&parts, "user", SEEN)), NULL, SEEN, "", NULL);
        if (!t.parts) return; /* it wants more than a user's message: nothing is known of it */
    }
    t.system = shows(s, json_pack("[o, o]", message(&t, "system", SEEN), user(&t)), NULL, SEEN, "", NULL);
    t.tools = knows ? try_tools(s, &t) : TOOLS_DESCRIBED;
    try_history(s, &t);
    tell(t.system, "system messages", "they begin the user's message that follows");
    tell(!knows || t.tools != TOOLS_DESCRIBED, "tools, though it speaks of them",
         "they are described in the system message");
    tell(t.calls || t.observations, "tool calls", "earlier ones are written as the assistant's text");
    tell(t.results || t.observations, "tool results", "they are written as the user's text");
    s->traits = t;
}

json_t *traits_json(const struct template_traits *t) {
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

static int take_message(const struct template_traits *t, enum pl_reply_kind kind, json_t *out, json_t *m,
                        struct pl_buf *waiting, struct pl_buf *b) {
    if (t->observations && (is_role(m, "tool") || json_object_get(m, "tool_calls") != NULL)) return observe(out, m, b);
    bool result = is_role(m, "tool") && !t->results;
    if (result || (is_role(m, "system") && !t->system)) {
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
    bad |= flush(out, waiting);
    if (json_object_get(m, "tool_calls") != NULL && !t->calls) bad |= take_calls(m, kind, b);
    return bad | json_array_append(out, m);
}

enum pl_status traits_apply(const struct pl_server *s, struct chat_request *q, struct param_error *pe) {
    const struct template_traits *t = &s->traits;
    if (t->system && t->calls && t->results) return PL_OK;
    struct pl_buf waiting = {0}, b = {0};
    json_t *out = json_array();
    int bad = out == NULL;
    for (size_t i = 0; i < json_array_size(q->messages); i++)
        bad |= take_message(t, t->tools == TOOLS_DESCRIBED ? PL_REPLY_JSON : s->reply_kind, out,
                            json_array_get(q->messages, i), &waiting, &b);
    bad |= flush(out, &waiting);
    bool ok = bad == 0 && pl_buf_ok(&waiting) && pl_buf_ok(&b);
    pl_buf_deinit(&waiting);
    pl_buf_deinit(&b);
    json_decref(ok ? q->messages : out);
    if (!ok) return param_bad(pe, "messages", PL_NO_MEMORY, "no memory for the messages");
    q->messages = out;
    return PL_OK;
}

/* Tools as a part of the system message: their functions as text, or the list itself. */
enum pl_status traits_place_tools(const struct pl_server *s, struct chat_request *q, struct param_error *pe) {
    json_t *first = json_array_get(q->messages, 0), *tools = NULL;
    int bad = 0;
    if (!is_role(first, "system")) {
        bad = json_array_insert_new(q->messages, 0, json_pack("{s:s, s:s}", "role", "system", "content", ""));
        first = json_array_get(q->messages, 0);
    }
    if (s->traits.tools == TOOLS_SYSTEM_LIST) {
        tools = json_incref(q->tools);
    } else {
        json_t *functions = json_array();
        for (size_t i = 0; i < json_array_size(q->tools); i++)
            bad |= json_array_append(functions, json_object_get(json_array_get(q->tools, i), "function"));
        char *text = pl_json_write(functions, 0);
        tools = text == NULL ? NULL : json_string(text);
        free(text);
        json_decref(functions);
    }
    bad |= tools == NULL || json_object_set_new(first, "tools", tools) != 0;
    return bad == 0 ? PL_OK : param_bad(pe, "tools", PL_NO_MEMORY, "no memory for the tools");
}

json_t *traits_messages(const struct template_traits *t, json_t *messages) {
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
