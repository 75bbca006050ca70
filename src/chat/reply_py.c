/* reply_py.c - calls in a body that is read as a whole: JSON, Python's notation with keyword arguments and literals, or
 * Gemma's, call:name{key:value, ..}, whose strings stand between marks and whose keys are bare. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "chat/reply_internal.h"

enum { LITERAL_DEPTH_MAX = 32 };

struct cursor {
    const char *at, *end;
    struct pl_buf out;
    bool bare_keys;
};

static bool name_char(char c, bool first) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (!first && ((c >= '0' && c <= '9') || c == '.'));
}

static void skip_space(struct cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r')) c->at++;
}

static bool take(struct cursor *c, char what) {
    skip_space(c);
    if (c->at == c->end || *c->at != what) return false;
    c->at++;
    return true;
}

static struct pl_str take_name(struct cursor *c) {
    skip_space(c);
    const char *begin = c->at;
    while (c->at < c->end && name_char(*c->at, c->at == begin)) c->at++;
    return (struct pl_str){begin, (size_t)(c->at - begin)};
}

/* 'text' or "text" with Python's common escapes, as a JSON string. */
static bool take_string(struct cursor *c) {
    char quote = *c->at++;
    pl_buf_add_char(&c->out, '"');
    for (; c->at < c->end && *c->at != quote; c->at++) {
        unsigned char b = (unsigned char)*c->at;
        if (b == '\\') {
            if (++c->at == c->end) return false;
            if (strchr("\"\\nrtu", *c->at) == NULL && *c->at != '\'') return false;
            if (*c->at != '\'') pl_buf_add_char(&c->out, '\\');
            pl_buf_add_char(&c->out, *c->at);
        } else if (b == '"') {
            pl_buf_add(&c->out, "\\\"", 2);
        } else if (b < 0x20) {
            pl_buf_printf(&c->out, "\\u%04x", b);
        } else {
            pl_buf_add_char(&c->out, (char)b);
        }
    }
    pl_buf_add_char(&c->out, '"');
    return c->at < c->end && *c->at++ == quote;
}

/* Text as it stands between two marks, as a JSON string. False: no such mark here. */
static bool take_marked(struct cursor *c, const char *mark, bool *ok) {
    size_t n = strlen(mark), left = (size_t)(c->end - c->at);
    if (left < n || memcmp(c->at, mark, n) != 0) return false;
    const char *begin = c->at + n, *end = memmem(begin, left - n, mark, n);
    *ok = end != NULL;
    if (end == NULL) return true;
    json_t *text = json_stringn(begin, (size_t)(end - begin));
    char *quoted = text == NULL ? NULL : pl_json_write(text, JSON_ENCODE_ANY);
    *ok = quoted != NULL;
    pl_buf_add_c(&c->out, quoted != NULL ? quoted : "");
    free(quoted);
    json_decref(text);
    c->at = end + n;
    return true;
}

static bool take_literal(struct cursor *c, int depth);

static bool take_key(struct cursor *c, int depth) {
    skip_space(c);
    if (!c->bare_keys || c->at == c->end || *c->at == '"' || *c->at == '<') return take_literal(c, depth);
    const char *end = memchr(c->at, ':', (size_t)(c->end - c->at));
    json_t *key = end == NULL ? NULL : json_stringn(c->at, (size_t)(end - c->at));
    char *quoted = key == NULL ? NULL : pl_json_write(key, JSON_ENCODE_ANY);
    pl_buf_add_c(&c->out, quoted != NULL ? quoted : "");
    c->at = end != NULL ? end : c->at;
    bool ok = quoted != NULL;
    free(quoted);
    json_decref(key);
    return ok;
}

static bool take_list(struct cursor *c, char close, bool pairs, int depth) {
    pl_buf_add_char(&c->out, *c->at++);
    for (bool first = true; !take(c, close); first = false) {
        if (!first && !take(c, ',')) return false;
        if (take(c, close)) break;
        if (!first) pl_buf_add_char(&c->out, ',');
        if (!(pairs ? take_key(c, depth + 1) : take_literal(c, depth + 1))) return false;
        if (!pairs) continue;
        if (!take(c, ':')) return false;
        pl_buf_add_char(&c->out, ':');
        if (!take_literal(c, depth + 1)) return false;
    }
    pl_buf_add_char(&c->out, close);
    return true;
}

static bool take_literal(struct cursor *c, int depth) {
    bool ok;
    skip_space(c);
    if (c->at == c->end || depth > LITERAL_DEPTH_MAX) return false;
    if (take_marked(c, "<escape>", &ok) || take_marked(c, "<|\"|>", &ok)) return ok;
    if (*c->at == '"' || *c->at == '\'') return take_string(c);
    if (*c->at == '[') return take_list(c, ']', false, depth);
    if (*c->at == '{') return take_list(c, '}', true, depth);
    if (name_char(*c->at, true)) {
        static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                               {"true", "true"}, {"false", "false"}, {"null", "null"}};
        struct pl_str w = take_name(c);
        for (size_t i = 0; i < PL_COUNT_OF(words); i++)
            if (pl_str_eq_c(w, words[i][0])) return pl_buf_add_c(&c->out, words[i][1]), true;
        return false;
    }
    const char *begin = c->at;
    while (c->at < c->end && strchr("+-0123456789.eE", *c->at) != NULL && *c->at != '\0') c->at++;
    pl_buf_add(&c->out, begin, (size_t)(c->at - begin));
    return c->at > begin;
}

static bool take_arguments(struct cursor *c) {
    pl_buf_add_char(&c->out, '{');
    for (bool first = true; !take(c, ')'); first = false) {
        if (!first && !take(c, ',')) return false;
        if (take(c, ')')) break;
        struct pl_str key = take_name(c);
        if (key.len == 0 || !take(c, '=')) return false;
        pl_buf_printf(&c->out, "%s\"%.*s\":", first ? "" : ",", (int)key.len, key.data);
        if (!take_literal(c, 0)) return false;
    }
    pl_buf_add_char(&c->out, '}');
    return true;
}

/* One call; the text of its arguments replaces c->out. */
static bool take_call(struct cursor *c, struct pl_str *name) {
    *name = take_name(c);
    bool printed = pl_str_eq_c(*name, "print") && take(c, '(');
    if (printed) *name = take_name(c);
    pl_buf_clear(&c->out);
    c->bare_keys = pl_str_eq_c(*name, "call") && take(c, ':');
    if (c->bare_keys) {
        *name = take_name(c);
        skip_space(c);
        if (name->len == 0 || c->at == c->end || *c->at != '{' || !take_list(c, '}', true, 0)) return false;
    } else if (name->len == 0 || name->len > 128 || !take(c, '(') || !take_arguments(c)) {
        return false;
    }
    json_t *check = pl_buf_ok(&c->out) ? pl_json_read(pl_buf_cstr(&c->out), c->out.len, 0, NULL) : NULL;
    bool ok = check != NULL && (!printed || take(c, ')'));
    json_decref(check);
    return ok;
}

bool reply_literal(const char *data, size_t len, struct pl_buf *json) {
    struct cursor c = {.at = data, .end = data + len};
    bool ok = take_literal(&c, 0) && c.at == c.end && pl_buf_ok(&c.out);
    json_t *check = ok ? pl_json_read(pl_buf_cstr(&c.out), c.out.len, 0, NULL) : NULL;
    ok = check != NULL;
    json_decref(check);
    if (ok) pl_buf_add(json, c.out.data, c.out.len);
    pl_buf_deinit(&c.out);
    return ok && pl_buf_ok(json);
}

bool reply_python(struct pl_reply *r, const char *body, size_t len) {
    struct cursor c = {.at = body, .end = body + len};
    bool any = false, list = take(&c, '[');
    for (;;) {
        (void)(take(&c, ';') || (list && any && take(&c, ',')));
        skip_space(&c);
        struct pl_str name;
        if (c.at == c.end || !take_call(&c, &name) || !reply_begin(r, name.data, name.len)) break;
        reply_arguments(r, c.out.data, c.out.len);
        any = true;
    }
    pl_buf_deinit(&c.out);
    return any;
}

static bool announced(struct pl_reply *r, const char *name, size_t len, const json_t *args) {
    if (!reply_begin(r, name, len)) return false;
    char *text = json_is_object(args) ? pl_json_write(args, JSON_COMPACT) : NULL;
    const char *given = text != NULL ? text : json_is_string(args) ? json_string_value(args) : "{}";
    reply_arguments(r, given, strlen(given));
    free(text);
    return true;
}

static bool keyed_calls(struct pl_reply *r, json_t *calls) {
    const char *key;
    json_t *args;
    bool any = false;
    json_object_foreach(calls, key, args) {
        if (key[0] != '\0' && json_is_object(args)) any |= announced(r, key, strlen(key), args);
    }
    return any;
}

static bool json_call(struct pl_reply *r, json_t *call) {
    const json_t *inner = json_object_get(call, "function"), *o = json_is_object(inner) ? inner : call;
    const json_t *name = json_object_get(o, "name"), *args = json_object_get(o, "arguments");
    if (name == NULL) name = json_is_string(inner) ? inner : json_object_get(o, "tool_name");
    if (args == NULL) args = json_object_get(o, "parameters");
    if (args == NULL) args = json_object_get(o, "args");
    if (!json_is_string(name)) return r->keyed && keyed_calls(r, call);
    return json_string_length(name) > 0 && announced(r, json_string_value(name), json_string_length(name), args);
}

bool reply_fence(struct pl_reply *r, const char *body, size_t len) {
    json_t *v = len == 0 ? NULL : pl_json_read(body, len, 0, NULL);
    if (v == NULL) return (!r->strict || r->close[0] == '\0') && reply_python(r, body, len);
    bool any = false;
    if (json_is_object(v)) any = json_call(r, v);
    for (size_t i = 0; json_is_array(v) && i < json_array_size(v); i++) any |= json_call(r, json_array_get(v, i));
    json_decref(v);
    return any;
}
