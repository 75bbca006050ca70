/* reply_call.c - one object that may be a tool call, byte by byte: the name first makes it a call, then its arguments
 * stream. Arguments that come before the name wait for it. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "chat/reply_internal.h"

void scan_reset(struct scan *s) {
    struct pl_buf raw = s->raw, value = s->value, args = s->args, function = s->function;
    pl_buf_clear(&raw);
    pl_buf_clear(&value);
    pl_buf_clear(&args);
    pl_buf_clear(&function);
    *s = (struct scan){.raw = raw, .value = value, .args = args, .function = function};
}

void scan_deinit(struct scan *s) {
    pl_buf_deinit(&s->raw);
    pl_buf_deinit(&s->value);
    pl_buf_deinit(&s->args);
    pl_buf_deinit(&s->function);
}

void scan_args_only(struct scan *s) {
    scan_reset(s);
    s->args_only = s->begun = true;
    s->phase = SCAN_VALUE;
    s->field = FIELD_ARGUMENTS;
}

static bool value_is(const struct pl_buf *b, const char *text) { return strcmp(pl_buf_cstr(b), text) == 0; }

static enum scan_field field_of(const struct pl_buf *key) {
    if (value_is(key, "\"name\"") || value_is(key, "\"tool_name\"")) return FIELD_NAME;
    if (value_is(key, "\"arguments\"") || value_is(key, "\"parameters\"") || value_is(key, "\"args\""))
        return FIELD_ARGUMENTS;
    if (value_is(key, "\"function\"")) return FIELD_FUNCTION;
    return FIELD_OTHER;
}

/* Decodes a JSON string value; NULL when it is none. */
static json_t *as_string(const struct pl_buf *b) {
    json_t *v = b->len == 0 ? NULL : pl_json_read(b->data, b->len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (json_is_string(v)) return v;
    json_decref(v);
    return NULL;
}

static void give_kept_arguments(struct pl_reply *r) {
    struct scan *s = &r->scan;
    if (s->args.len == 0 || s->has_args) return;
    json_t *inner = as_string(&s->args); /* some models quote their arguments */
    if (inner != NULL)
        reply_arguments(r, json_string_value(inner), json_string_length(inner));
    else if (strcmp(pl_buf_cstr(&s->args), "null") != 0)
        reply_arguments(r, s->args.data, s->args.len);
    else
        reply_arguments(r, "{}", 2);
    json_decref(inner);
    s->has_args = true;
}

static void begin(struct pl_reply *r, const struct pl_buf *quoted) {
    struct scan *s = &r->scan;
    json_t *name = as_string(quoted);
    if (name == NULL || json_string_length(name) == 0 || s->begun ||
        !reply_begin(r, json_string_value(name), json_string_length(name))) {
        s->phase = SCAN_BROKEN;
    } else {
        s->begun = true;
        pl_buf_clear(&s->raw);
        give_kept_arguments(r);
    }
    json_decref(name);
}

/* {"type":"function","function":{"name":..,"arguments":..}} */
static void begin_nested(struct pl_reply *r) {
    struct scan *s = &r->scan;
    json_t *f = s->function.len == 0 ? NULL : pl_json_read(s->function.data, s->function.len, 0, NULL);
    const json_t *name = json_object_get(f, "name"), *args = json_object_get(f, "arguments");
    if (args == NULL) args = json_object_get(f, "parameters");
    if (json_is_string(name) && reply_begin(r, json_string_value(name), json_string_length(name))) {
        s->begun = true;
        char *text = json_is_object(args) ? pl_json_write(args, JSON_COMPACT) : NULL;
        if (text != NULL) pl_buf_add_c(&s->args, text);
        if (json_is_string(args)) pl_buf_add_c(&s->args, json_string_value(args));
        free(text);
        give_kept_arguments(r);
    }
    json_decref(f);
}

static void end_value(struct pl_reply *r) {
    struct scan *s = &r->scan;
    s->phase = s->args_only ? SCAN_DONE : SCAN_AFTER;
    if (s->streams) {
        s->streams = false;
        s->has_args = true;
        return;
    }
    if (s->field == FIELD_NAME || (s->field == FIELD_FUNCTION && s->value_string)) {
        begin(r, &s->value);
    } else if (s->field == FIELD_FUNCTION) {
        pl_buf_add(&s->function, pl_buf_cstr(&s->value), s->value.len);
    } else if (s->field == FIELD_ARGUMENTS && !s->has_args && s->args.len == 0) {
        pl_buf_add(&s->args, pl_buf_cstr(&s->value), s->value.len);
        if (s->begun) give_kept_arguments(r);
    }
}

static void end_object(struct pl_reply *r) {
    struct scan *s = &r->scan;
    if (!s->begun) begin_nested(r);
    s->phase = s->begun ? SCAN_DONE : SCAN_BROKEN;
    if (s->begun && !s->has_args) reply_arguments(r, "{}", 2);
}

static void keep(struct pl_reply *r, char c) {
    struct scan *s = &r->scan;
    if (s->streams)
        reply_arguments(r, &c, 1);
    else if (s->field != FIELD_OTHER || s->phase == SCAN_IN_KEY)
        pl_buf_add_char(&s->value, c);
}

static void start_value(struct pl_reply *r, char c) {
    struct scan *s = &r->scan;
    pl_buf_clear(&s->value);
    s->value_string = s->in_string = c == '"';
    s->escape = false;
    s->depth = c == '{' || c == '[';
    s->streams = s->field == FIELD_ARGUMENTS && s->begun && c == '{' && !s->has_args;
    s->phase = SCAN_IN_VALUE;
    if (s->args_only && c != '{') s->phase = SCAN_BROKEN;
}

/* One byte of a value; false: the value ended before it. */
static bool value_byte(struct pl_reply *r, char c) {
    struct scan *s = &r->scan;
    if (s->in_string) {
        if (s->escape)
            s->escape = false;
        else if (c == '\\')
            s->escape = true;
        else if (c == '"')
            s->in_string = false;
        keep(r, c);
        if (!s->in_string && s->depth == 0) end_value(r);
        return true;
    }
    if (s->depth == 0 && (c == ',' || c == '}' || c == ']' || reply_is_space(c))) {
        end_value(r);
        return false;
    }
    keep(r, c);
    if (c == '"') s->in_string = true;
    if (c == '{' || c == '[') s->depth++;
    if ((c == '}' || c == ']') && --s->depth == 0) end_value(r);
    return true;
}

/* One byte; false: look at it again in the new phase. */
static bool scan_byte(struct pl_reply *r, char c) {
    struct scan *s = &r->scan;
    if (reply_is_space(c) && s->phase != SCAN_IN_KEY && s->phase != SCAN_IN_VALUE) return true;
    switch (s->phase) {
    case SCAN_OPEN: s->phase = c == '{' ? SCAN_KEY : SCAN_BROKEN; break;
    case SCAN_KEY:
        pl_buf_clear(&s->value);
        s->escape = false;
        s->phase = c == '"' ? SCAN_IN_KEY : SCAN_BROKEN;
        if (c == '"') pl_buf_add_char(&s->value, c);
        if (c == '}') end_object(r);
        break;
    case SCAN_IN_KEY:
        pl_buf_add_char(&s->value, c);
        if (!s->escape && c == '"') s->phase = SCAN_COLON;
        s->escape = !s->escape && c == '\\';
        break;
    case SCAN_COLON:
        s->field = field_of(&s->value);
        s->phase = c == ':' ? SCAN_VALUE : SCAN_BROKEN;
        break;
    case SCAN_VALUE:
        start_value(r, c);
        if (s->phase == SCAN_IN_VALUE) keep(r, c);
        break;
    case SCAN_IN_VALUE: return value_byte(r, c);
    case SCAN_AFTER:
        s->phase = c == ',' ? SCAN_KEY : SCAN_BROKEN;
        if (c == '}') end_object(r);
        break;
    case SCAN_DONE:
    case SCAN_BROKEN: break;
    }
    return true;
}

/* Runs of string bytes inside streamed arguments go out in one piece. */
static size_t fast_run(struct pl_reply *r, const char *data, size_t len) {
    const struct scan *s = &r->scan;
    if (!s->streams || !s->in_string || s->escape) return 0;
    size_t n = 0;
    while (n < len && data[n] != '"' && data[n] != '\\') n++;
    if (n > 0) reply_arguments(r, data, n);
    return n;
}

size_t scan_push(struct pl_reply *r, const char *data, size_t len) {
    struct scan *s = &r->scan;
    size_t i = 0;
    while (i < len && s->phase != SCAN_DONE && s->phase != SCAN_BROKEN) {
        size_t run = fast_run(r, data + i, len - i);
        if (run > 0) {
            i += run;
            continue;
        }
        bool was_begun = s->begun;
        if (!scan_byte(r, data[i])) continue;
        if (!was_begun && !s->begun) pl_buf_add_char(&s->raw, data[i]);
        i++;
    }
    return i;
}
