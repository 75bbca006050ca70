/* messages.c - messages in the form that chat templates expect: content one string, tool arguments objects. */
#include "serve/internal.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "file/file.h"

/* [{"type":"text","text":..}, ..] to one string; parts this server cannot show to a model are refused by name. */
static enum pl_status join_parts(size_t message, const json_t *parts, json_t **out, struct param_error *pe) {
    struct pl_buf b = {0};
    enum pl_status st = PL_OK;
    for (size_t i = 0; i < json_array_size(parts) && st == PL_OK; i++) {
        const json_t *p = json_array_get(parts, i), *text = json_object_get(p, "text");
        const char *type = json_string_value(json_object_get(p, "type"));
        bool is_text = type != NULL && (strcmp(type, "text") == 0 || strcmp(type, "input_text") == 0 ||
                                        strcmp(type, "output_text") == 0 || strcmp(type, "refusal") == 0);
        if (text == NULL) text = json_object_get(p, "refusal");
        if (is_text && json_is_string(text))
            pl_buf_add(&b, json_string_value(text), json_string_length(text));
        else if (is_text)
            st = param_bad(pe, "messages", PL_INVALID, "message %zu has a content part of type '%s' whose text is %s",
                           message, type, text == NULL ? "missing" : "no string");
        else
            st = param_bad(pe, "messages", PL_INVALID,
                           "message %zu has a content part of type '%.40s'; this server takes parts of type text", message,
                           type != NULL ? type : "unknown");
    }
    if (st == PL_OK && !pl_buf_ok(&b)) st = param_bad(pe, "messages", PL_NO_MEMORY, "no memory for the messages");
    if (st == PL_OK) *out = json_stringn(pl_buf_cstr(&b), b.len);
    pl_buf_deinit(&b);
    return st;
}

static enum pl_status content_string(const struct pl_server *s, size_t i, json_t *m, struct param_error *pe) {
    const json_t *content = json_object_get(m, "content");
    json_t *joined = NULL;
    if (json_is_string(content)) return PL_OK;
    if (json_is_array(content)) {
        PL_TRY(join_parts(i, content, &joined, pe));
        return json_object_set_new(m, "content", joined) == 0
                   ? PL_OK
                   : param_bad(pe, "messages", PL_NO_MEMORY, "no memory for the messages");
    }
    if (content != NULL && !json_is_null(content))
        return param_bad(pe, "messages", PL_INVALID, "content of message %zu is no string or list of parts", i);
    bool calls = json_array_size(json_object_get(m, "tool_calls")) > 0;
    const char *role = json_string_value(json_object_get(m, "role"));
    if (!calls && strcmp(role, "assistant") != 0)
        return param_bad(pe, "messages", PL_INVALID, "message %zu (%.40s) has no content", i, role);
    json_t *empty = calls && s->traits.null_content ? json_null() : json_string("");
    return json_object_set_new(m, "content", empty) == 0
               ? PL_OK
               : param_bad(pe, "messages", PL_NO_MEMORY, "no memory for the messages");
}

/* {"id","type":"function","function":{"name","arguments": text}}: templates want the arguments as an object. */
static enum pl_status call_arguments(size_t i, json_t *m, struct param_error *pe) {
    json_t *calls = json_object_get(m, "tool_calls");
    if (calls == NULL || json_is_null(calls) || (json_is_array(calls) && json_array_size(calls) == 0)) {
        json_object_del(m, "tool_calls");
        return PL_OK;
    }
    if (!json_is_array(calls)) return param_bad(pe, "messages", PL_INVALID, "tool_calls of message %zu is no list", i);
    for (size_t k = 0; k < json_array_size(calls); k++) {
        json_t *f = json_object_get(json_array_get(calls, k), "function");
        const json_t *args = json_object_get(f, "arguments");
        if (!json_is_string(json_object_get(f, "name")))
            return param_bad(pe, "messages", PL_INVALID, "tool call %zu of message %zu names no function", k, i);
        if (!json_is_string(args)) continue;
        json_t *parsed = NULL;
        struct pl_err ignored = {0};
        if (pl_json_parse("arguments", json_string_value(args), json_string_length(args), &parsed, &ignored) != PL_OK)
            continue; /* a call that was cut: it stays text */
        json_object_set_new(f, "arguments", parsed);
    }
    return PL_OK;
}

/* {"function_call": {..}} and the role "function", which tool_calls and "tool" replaced: the call gets an id of its own,
 * which the message that answers it, the next one, is given too. */
static enum pl_status modernise(json_t *messages, struct param_error *pe) {
    char id[32];
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *m = json_array_get(messages, i), *call = json_object_get(m, "function_call");
        const char *role = json_string_value(json_object_get(m, "role"));
        bool old_call = json_is_object(call) && json_array_size(json_object_get(m, "tool_calls")) == 0;
        snprintf(id, sizeof id, "function_%zu", old_call ? i + 1 : i);
        int bad = 0;
        if (old_call)
            bad = json_object_set_new(m, "tool_calls",
                                      json_pack("[{s:s, s:s, s:O}]", "id", id, "type", "function", "function", call));
        if (json_is_object(m)) json_object_del(m, "function_call");
        if (role != NULL && strcmp(role, "function") == 0) {
            bad |= json_object_set_new(m, "tool_call_id", json_string(id));
            bad |= json_object_set_new(m, "role", json_string("tool"));
        }
        if (bad != 0) return param_bad(pe, "messages", PL_NO_MEMORY, "no memory for the messages");
    }
    return PL_OK;
}

/* Reasoning comes back under the name of whoever made the client; templates look for it under others (transformers fills in
 * the first two; Solar's knows the third alone). gpt-oss's refuses to have `thinking` beside both text and calls. */
static enum pl_status name_reasoning(json_t *m, struct param_error *pe) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *found = NULL;
    for (size_t i = 0; i < PL_COUNT_OF(names) && found == NULL; i++)
        if (json_is_string(json_object_get(m, names[i]))) found = json_object_get(m, names[i]);
    if (found == NULL) return PL_OK;
    bool both = json_string_length(json_object_get(m, "content")) > 0 && json_object_get(m, "tool_calls") != NULL;
    int bad = json_object_set(m, "reasoning_content", found);
    for (size_t i = both ? 2 : 1; i < PL_COUNT_OF(names); i++)
        if (json_object_get(m, names[i]) == NULL) bad |= json_object_set(m, names[i], found);
    return bad == 0 ? PL_OK : param_bad(pe, "messages", PL_NO_MEMORY, "no memory for the messages");
}

static enum pl_status normalise_one(const struct pl_server *s, size_t i, json_t *m, struct param_error *pe) {
    static const char *const roles[] = {"system", "user", "assistant", "tool", "developer"};
    const char *role = json_string_value(json_object_get(m, "role"));
    if (!json_is_object(m)) return param_bad(pe, "messages", PL_INVALID, "message %zu is no object", i);
    if (role == NULL) return param_bad(pe, "messages", PL_INVALID, "message %zu has no role", i);
    bool known = false;
    for (size_t k = 0; k < PL_COUNT_OF(roles); k++) known |= strcmp(role, roles[k]) == 0;
    if (!known)
        return param_bad(pe, "messages", PL_INVALID,
                         "message %zu has the role '%.40s', expected system, developer, user, assistant or tool", i, role);
    static const char *const strings[] = {"name", "tool_call_id"};
    for (size_t k = 0; k < PL_COUNT_OF(strings); k++) {
        const json_t *v = json_object_get(m, strings[k]);
        if (v != NULL && !json_is_string(v) && !json_is_null(v))
            return param_bad(pe, "messages", PL_INVALID, "%s of message %zu is no string", strings[k], i);
    }
    PL_TRY(content_string(s, i, m, pe));
    PL_TRY(call_arguments(i, m, pe));
    PL_TRY(name_reasoning(m, pe));
    /* Newer name of the same role; templates know the older one. */
    if (strcmp(role, "developer") == 0 && json_object_set_new(m, "role", json_string("system")) != 0)
        return param_bad(pe, "messages", PL_NO_MEMORY, "no memory for the messages");
    return PL_OK;
}

static bool is_role(const json_t *m, const char *role) {
    const char *has = json_string_value(json_object_get(m, "role"));
    return has != NULL && strcmp(has, role) == 0;
}

/* What the calls of a message are named, by their ids; of equal ids the last counts. One look for each answer: a request may
 * have a hundred thousand of them. */
static json_t *names_by_id(const json_t *calls) {
    json_t *names = json_object();
    for (size_t k = 0; names != NULL && k < json_array_size(calls); k++) {
        const json_t *call = json_array_get(calls, k);
        const char *id = json_string_value(json_object_get(call, "id"));
        if (id == NULL || json_object_set(names, id, json_object_get(json_object_get(call, "function"), "name")) == 0)
            continue;
        json_decref(names);
        return NULL;
    }
    return names;
}

/* Every call of message `i` has one of the tools' messages right behind it. */
static enum pl_status check_calls(const json_t *messages, size_t i, struct param_error *pe) {
    const json_t *calls = json_object_get(json_array_get(messages, i), "tool_calls"), *m;
    if (calls == NULL) return PL_OK;
    json_t *answered = json_object();
    int bad = answered == NULL;
    for (size_t at = i + 1; is_role(m = json_array_get(messages, at), "tool"); at++) {
        const char *id = json_string_value(json_object_get(m, "tool_call_id"));
        if (id != NULL) bad |= json_object_set(answered, id, json_true());
    }
    enum pl_status st = bad == 0 ? PL_OK : param_bad(pe, "messages", PL_NO_MEMORY, "no memory for the messages");
    for (size_t k = 0; st == PL_OK && k < json_array_size(calls); k++) {
        const char *id = json_string_value(json_object_get(json_array_get(calls, k), "id"));
        if (id != NULL && json_object_get(answered, id) == NULL)
            st = param_bad(pe, "messages", PL_INVALID,
                           "message %zu makes the call '%.60s', which no tool message right after it answers", i, id);
    }
    json_decref(answered);
    return st;
}

/* A tool's message answers one of `names`, the calls before it, and gets that function's name where it has none: some
 * templates print it. */
static enum pl_status check_answer(json_t *m, size_t i, const json_t *names, struct param_error *pe) {
    const char *id = json_string_value(json_object_get(m, "tool_call_id"));
    if (id == NULL) return param_bad(pe, "messages", PL_INVALID, "message %zu (tool) has no tool_call_id", i);
    json_t *name = json_object_get(names, id);
    if (name == NULL)
        return param_bad(pe, "messages", PL_INVALID,
                         "message %zu (tool) answers the call '%.60s', which the message before the tools' does not make", i,
                         id);
    if (json_object_get(m, "name") == NULL && json_object_set(m, "name", name) != 0)
        return param_bad(pe, "messages", PL_NO_MEMORY, "no memory for the messages");
    return PL_OK;
}

/* Documented: tools' messages answer the calls of the assistant's message right before them, and every call is answered. */
static enum pl_status check_answers(json_t *messages, struct param_error *pe) {
    json_t *names = NULL; /* of the calls before the tools' messages */
    enum pl_status st = PL_OK;
    for (size_t i = 0; st == PL_OK && i < json_array_size(messages); i++) {
        json_t *m = json_array_get(messages, i);
        const json_t *calls = json_object_get(m, "tool_calls");
        if (is_role(m, "tool")) {
            st = calls != NULL ? param_bad(pe, "messages", PL_INVALID, "message %zu (tool) makes calls itself", i)
                               : check_answer(m, i, names, pe);
            continue;
        }
        json_decref(names);
        names = calls == NULL ? NULL : names_by_id(calls);
        st = calls != NULL && names == NULL ? param_bad(pe, "messages", PL_NO_MEMORY, "no memory for the messages")
                                            : check_calls(messages, i, pe);
    }
    json_decref(names);
    return st;
}

enum pl_status messages_normalise(const struct pl_server *s, json_t *messages, struct param_error *pe) {
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return param_bad(pe, "messages", PL_INVALID, "messages is missing or no list of messages");
    PL_TRY(modernise(messages, pe));
    for (size_t i = 0; i < json_array_size(messages); i++) PL_TRY(normalise_one(s, i, json_array_get(messages, i), pe));
    return check_answers(messages, pe);
}
