/* reply_tagged.c - calls told by tags, as a row of the table in reply_tags.c says: a section holds calls, a call a name and
 * then keys and values, or an object. Whatever a state waits for is looked for in a bounded window, so that parts do not
 * depend on where the text was cut. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "chat/reply_internal.h"

enum { NAME_WINDOW = 256, MARK_MAX = 64 };

/* What was read since the mark is text after all. */
static bool as_text(struct pl_reply *r) {
    if (r->lead.len > 0) r->strip = false;
    reply_text(r, pl_buf_cstr(&r->lead), r->lead.len);
    pl_buf_clear(&r->lead);
    r->state = REPLY_TEXT;
    return true;
}

static void eat(struct pl_reply *r, size_t n) {
    pl_buf_add(&r->lead, pl_buf_cstr(&r->in) + r->at, n);
    r->at += n;
}

bool reply_tagged_call(struct pl_reply *r, const char *name, size_t len) {
    size_t skip = reply_spaces(name, len);
    while (len > skip && reply_is_space(name[len - 1])) len--;
    if (len == skip || memchr(name + skip, '\n', len - skip) != NULL || memchr(name + skip, '<', len - skip) != NULL)
        return false;
    r->strict = r->tags != NULL && r->tags->prompted;
    pl_buf_clear(&r->scan.function);
    pl_buf_add(&r->scan.function, name + skip, len - skip);
    return reply_begin(r, name + skip, len - skip);
}

/* The reply ends in the middle of a mark that would have gone on with the call: what came stands. */
static bool cut_in_mark(const char *data, size_t len, const char *const *marks, size_t count, bool last) {
    return last && reply_which(data, len, marks, count, false) == -2;
}

/* ---------- from the section's mark to the arguments ---------- */

static bool section(struct pl_reply *r, bool last) {
    const struct pl_reply_tags *t = r->tags;
    const char *const next[] = {t->call, t->end_section, t->end_call, "{", "["};
    size_t len;
    const char *data = reply_rest(r, &len);
    size_t skip = reply_spaces(data, len);
    bool none = r->lead.len > 0; /* since the mark */
    if (skip == len && !(last && none)) return false;
    int w = reply_which(data + skip, len - skip, next, none ? 5 : 3, last);
    if (w == -2 || (!none && cut_in_mark(data + skip, len - skip, next, 3, last))) return false;
    if (w == 0) {
        eat(r, skip + strlen(t->call));
        r->state = REPLY_TAG_NAME;
        r->tag_open = false;
    } else if (w > 2) {
        reply_enter_objects(r, r->mark, t->end_section != NULL ? t->end_section : "");
    } else if (none) {
        return as_text(r);
    } else if (w == 2) {
        r->at += skip + strlen(t->end_call);
    } else {
        if (w == 1) r->at += skip + strlen(t->end_section);
        reply_leave(r);
    }
    return true;
}

/* functions.NAME:0 is NAME. */
static bool named(struct pl_reply *r, const char *name, size_t len) {
    const struct pl_reply_tags *t = r->tags;
    if (reply_begins(name, len, t->prefix) == REPLY_YES) name += strlen(t->prefix), len -= strlen(t->prefix);
    const char *colon = t->numbered && len > 0 ? memchr(name, ':', len) : NULL;
    return reply_tagged_call(r, name, colon != NULL ? (size_t)(colon - name) : len);
}

static bool is_word(const char *word, const char *data, size_t len) {
    return word != NULL && strlen(word) == len && memcmp(data, word, len) == 0;
}

/* The name ends at its own mark or where arguments or the call's end begin; after a type it ends with the line. */
static bool name(struct pl_reply *r, bool last) {
    const struct pl_reply_tags *t = r->tags;
    const char *const ends[] = {r->tag_open ? "\n" : t->end_name, t->key, t->end_call};
    size_t len, mark = 0, hold;
    const char *data = reply_rest(r, &len);
    size_t skip = reply_spaces(data, len);
    if (skip == len && !last) return false;
    bool object = skip < len && (data[skip] == '{' || data[skip] == '[');
    if (object && t->section == NULL && t->key != NULL && r->lead.len == strlen(r->mark)) {
        reply_enter_objects(r, r->mark, t->end_call);
        return true;
    }
    size_t seen = PL_MIN(len - skip, (size_t)NAME_WINDOW), n = reply_earliest(data + skip, seen, ends, 3, &mark, &hold);
    if (n == SIZE_MAX && seen < NAME_WINDOW && !last) return false;
    if (n == SIZE_MAX) return as_text(r);
    if (is_word(t->to_all, data + skip, n)) {
        r->at += skip + n + strlen(t->end_name);
        reply_leave(r);
        return true;
    }
    if (!r->tag_open && is_word(t->type, data + skip, n) && mark == 0) {
        eat(r, skip + n + strlen(ends[0]));
        r->tag_open = true;
        return true;
    }
    if (!r->opt.tools || !named(r, data + skip, n)) return as_text(r);
    r->at += skip + n + (mark == 0 ? strlen(ends[0]) : 0);
    r->tag_count = 0;
    r->state = REPLY_TAG_FIRST;
    return true;
}

/* Some write an object where others write keys, or fence it. */
static bool first(struct pl_reply *r, bool last) {
    static const char *const next[] = {"{", "```json", "```"};
    size_t len;
    const char *data = reply_rest(r, &len);
    size_t skip = reply_spaces(data, len);
    bool keys = r->tags->key != NULL;
    if (skip == len && !(last && keys)) return false;
    int w = reply_which(data + skip, len - skip, next, 3, last);
    if (w == -2 || (skip < len && cut_in_mark(data + skip, len - skip, next, 3, last))) return false;
    r->at += skip;
    if (w == 0) {
        reply_enter_arguments(r);
    } else if (w > 0) {
        r->at += strlen(next[w]);
    } else {
        reply_arguments(r, keys ? "{" : "{}", keys ? 1 : 2);
        r->state = keys ? REPLY_TAG_KEY : REPLY_TAG_AFTER;
    }
    return true;
}

/* After an object: its fence and the end of the call. */
static bool after(struct pl_reply *r, bool last) {
    const char *const next[] = {"```", r->tags->end_call};
    size_t len;
    const char *data = reply_rest(r, &len);
    size_t skip = reply_spaces(data, len);
    if (skip == len) return false;
    int w = reply_which(data + skip, len - skip, next, 2, last);
    if (w == -2 || cut_in_mark(data + skip, len - skip, next, 2, last)) return false;
    if (w >= 0) r->at += skip + strlen(next[w]);
    if (w != 0) r->state = REPLY_TAG_SECTION;
    return true;
}

/* ---------- keys and values ---------- */

static void add_escaped(struct pl_buf *b, const char *data, size_t len) {
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)data[i];
        if (c == '"' || c == '\\') pl_buf_add_char(b, '\\');
        if (c == '\n')
            pl_buf_add_c(b, "\\n");
        else if (c == '\t')
            pl_buf_add_c(b, "\\t");
        else if (c < 0x20)
            pl_buf_printf(b, "\\u%04x", c);
        else
            pl_buf_add_char(b, (char)c);
    }
}

static void send_string(struct pl_reply *r, const char *before, const char *data, size_t len, const char *after) {
    struct pl_buf b = {0};
    pl_buf_add_c(&b, before);
    add_escaped(&b, data, len);
    pl_buf_add_c(&b, after);
    if (pl_buf_ok(&b))
        reply_arguments(r, b.data, b.len);
    else
        r->in.failed = true;
    pl_buf_deinit(&b);
}

/* What the tool's schema wants here: text is taken as it stands. */
static enum pl_reply_value wanted(const struct pl_reply *r, const char *key) {
    for (size_t i = 0; i < json_array_size(r->opt.tools_json); i++) {
        const json_t *f = json_object_get(json_array_get(r->opt.tools_json, i), "function");
        const char *called = json_string_value(json_object_get(f, "name"));
        if (called == NULL || strcmp(called, pl_buf_cstr(&r->scan.function)) != 0) continue;
        const json_t *document = json_object_get(f, "parameters");
        return pl_reply_value(document, json_object_get(json_object_get(document, "properties"), key));
    }
    return PL_REPLY_VALUE_JSON;
}

static bool end_keys(struct pl_reply *r, size_t eaten, uint32_t state) {
    r->at += eaten;
    reply_arguments(r, "}", 1);
    if (state == REPLY_TEXT)
        reply_leave(r);
    else
        r->state = state;
    return true;
}

/* What the key's tag says of the value, where it says it. */
static size_t key_attributes(struct pl_reply *r, const char *data, size_t len, bool *more) {
    const struct pl_reply_tags *t = r->tags;
    *more = false;
    if (t->text_key == NULL) return 0;
    const char *end = reply_closes(data, len, ">", NAME_WINDOW, false, more);
    if (end == NULL) return 0;
    r->tag_value = reply_begins(data, len, t->text_key) == REPLY_YES    ? VALUE_TEXT
                   : reply_begins(data, len, t->other_key) == REPLY_YES ? VALUE_HELD
                                                                        : r->tag_value;
    return (size_t)(end - data) + 1;
}

static bool key(struct pl_reply *r, bool last) {
    const struct pl_reply_tags *t = r->tags;
    const char *const next[] = {t->key, t->end_call, t->end_section, t->end_value};
    size_t len;
    bool more;
    const char *data = reply_rest(r, &len);
    size_t skip = reply_spaces(data, len);
    if (skip == len) return false; /* at the end: cut, what came stands */
    int w = reply_which(data + skip, len - skip, next, 4, last);
    if (w == -2 || cut_in_mark(data + skip, len - skip, next, 4, last)) return false;
    if (w == 1) return end_keys(r, skip + strlen(t->end_call), REPLY_TAG_SECTION);
    if (w == 3) {
        r->at += skip + strlen(t->end_value);
        return true;
    }
    if (w != 0) return end_keys(r, w == 2 ? skip + strlen(t->end_section) : 0, REPLY_TEXT);
    const char *text = data + skip + strlen(t->key);
    size_t left = len - (size_t)(text - data);
    const char *end = reply_closes(text, left, t->end_key, NAME_WINDOW, last, &more);
    if (more || (last && end == NULL && left < NAME_WINDOW)) return false;
    if (end == NULL) return end_keys(r, 0, REPLY_TEXT);
    size_t n = (size_t)(end - text), used = n + strlen(t->end_key);
    pl_buf_clear(&r->scan.value);
    pl_buf_add(&r->scan.value, text, n);
    enum pl_reply_value wants = wanted(r, pl_buf_cstr(&r->scan.value));
    r->tag_value = wants == PL_REPLY_VALUE_TEXT ? VALUE_TEXT : wants == PL_REPLY_VALUE_JSON ? VALUE_HELD : VALUE_NULLABLE;
    used += key_attributes(r, text + used, left - used, &more);
    if (more) return false;
    r->tag_open = false;
    r->tag_seen = 0;
    send_string(r, r->tag_count++ > 0 ? ", \"" : "\"", text, n, "\": ");
    r->at += (size_t)(text - data) + used;
    r->state = REPLY_TAG_VALUE;
    return true;
}

/* A value that need not be a string: JSON stands for itself, Python's literals for JSON's, anything else is a string. */
static void send_value(struct pl_reply *r, const char *data, size_t len) {
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    size_t skip = reply_spaces(data, len);
    while (len > skip && reply_is_space(data[len - 1])) len--;
    data += skip;
    len -= skip;
    for (size_t i = 0; i < PL_COUNT_OF(words); i++)
        if (strlen(words[i][0]) == len && memcmp(words[i][0], data, len) == 0) {
            reply_arguments(r, words[i][1], strlen(words[i][1]));
            return;
        }
    json_t *v = len == 0 ? NULL : pl_json_read(data, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    struct pl_buf literal = {0};
    if (v != NULL)
        reply_arguments(r, data, len);
    else if (len > 0 && (*data == '[' || *data == '{') && reply_literal(data, len, &literal))
        reply_arguments(r, literal.data, literal.len);
    else
        send_string(r, "\"", data, len, "\"");
    pl_buf_deinit(&literal);
    json_decref(v);
}

/* The marks and the line break that stand before a value. False: wait; at the end: cut, what came stands. */
static bool open_value(struct pl_reply *r) {
    const struct pl_reply_tags *t = r->tags;
    size_t len;
    const char *data = reply_rest(r, &len);
    if (t->value != NULL && !r->tag_marked) {
        size_t skip = reply_spaces(data, len);
        enum reply_match m = skip == len ? REPLY_MAYBE : reply_begins(data + skip, len - skip, t->value);
        if (m == REPLY_MAYBE) return false;
        if (m == REPLY_YES) r->at += skip + strlen(t->value);
        data = reply_rest(r, &len);
    }
    r->tag_marked = true;
    if (len == 0) return false;
    enum reply_match quoted = reply_begins(data, len, t->quote);
    if (quoted == REPLY_MAYBE) return false;
    r->tag_quoted = quoted == REPLY_YES;
    if (r->tag_quoted) r->tag_value = VALUE_TEXT;
    r->at += r->tag_quoted ? strlen(t->quote) : t->lines && *data == '\n';
    if (r->tag_value == VALUE_TEXT) reply_arguments(r, "\"", 1);
    r->tag_open = true;
    r->tag_marked = false;
    return true;
}

/* A value that is too long to be held goes out as it is when it looks like JSON, otherwise as a string. */
static void stop_holding(struct pl_reply *r, const char *data, size_t len) {
    size_t skip = reply_spaces(data, len);
    bool json = skip < len && (data[skip] == '{' || data[skip] == '[');
    r->tag_value = json ? VALUE_RAW : VALUE_TEXT;
    if (!json) reply_arguments(r, "\"", 1);
}

/* A text that may be null is held while it may be that word. */
static void tell_null(struct pl_reply *r, const char *data, size_t len, bool found) {
    static const char *const words[] = {"null", "None"};
    size_t skip = reply_spaces(data, len), end = len;
    while (end > skip && reply_is_space(data[end - 1])) end--;
    for (size_t i = 0; i < PL_COUNT_OF(words); i++) {
        bool whole = end - skip == 4 && memcmp(data + skip, words[i], 4) == 0;
        if (found ? whole : end - skip <= 4 && memcmp(data + skip, words[i], end - skip) == 0 && (whole || end == len)) {
            if (found) r->tag_value = VALUE_HELD;
            return;
        }
    }
    r->tag_value = VALUE_TEXT;
    reply_arguments(r, "\"", 1);
}

/* The first end of the value in what has not been looked at yet. */
static size_t value_end(struct pl_reply *r, const char *data, size_t len, size_t *mark, size_t *hold) {
    const struct pl_reply_tags *t = r->tags;
    const char *const ends[] = {r->tag_quoted ? t->end_quote : t->end_value, r->tag_quoted ? NULL : t->key,
                                r->tag_quoted ? NULL : t->end_call};
    size_t from = r->tag_seen > MARK_MAX ? r->tag_seen - MARK_MAX : 0;
    size_t at = reply_earliest(data + from, len - from, ends, PL_COUNT_OF(ends), mark, hold);
    r->tag_seen = len;
    return at == SIZE_MAX ? at : at + from;
}

static bool value(struct pl_reply *r, bool last) {
    const struct pl_reply_tags *t = r->tags;
    size_t len, mark = 0, hold;
    if (!r->tag_open && !open_value(r)) return false;
    const char *data = reply_rest(r, &len);
    size_t at = value_end(r, data, len, &mark, &hold);
    bool found = at != SIZE_MAX;
    if (r->tag_value == VALUE_NULLABLE) tell_null(r, data, found ? at : len - hold, found);
    if (r->tag_value == VALUE_NULLABLE && !last) return false;
    if (r->tag_value == VALUE_HELD && (found ? at : len) >= REPLY_HELD_MAX) stop_holding(r, data, len);
    if (r->tag_value == VALUE_HELD && !found && !last) return false;
    size_t n = found ? at : last ? len : len - hold;
    if (t->lines && !r->tag_quoted && n > 0 && data[n - 1] == '\n' && (found || !last)) n--; /* it belongs to the tag */
    if (r->tag_value == VALUE_TEXT)
        send_string(r, "", data, n, found ? "\"" : "");
    else if (r->tag_value == VALUE_HELD && found)
        send_value(r, data, n);
    else
        reply_arguments(r, data, n); /* cut: what came stands */
    size_t end = mark == 0 ? strlen(r->tag_quoted ? t->end_quote : t->end_value) : 0;
    r->at += found ? at + end : n;
    r->tag_seen = 0;
    if (!found) return false;
    r->state = REPLY_TAG_KEY;
    return true;
}

/* ---------- the way in ---------- */

const char *reply_tag_mark(const struct pl_reply_tags *t, size_t i) {
    const char *const marks[] = {t->section != NULL ? t->section : t->call, t->section != NULL ? t->call : NULL};
    return i < PL_COUNT_OF(marks) ? marks[i] : NULL;
}

void reply_enter_tag(struct pl_reply *r, const char *mark) {
    r->tags = pl_reply_tags(r->opt.kind);
    pl_buf_clear(&r->lead);
    pl_buf_add_c(&r->lead, mark);
    r->mark = mark;
    r->tag_open = r->tag_marked = false;
    r->state = mark == r->tags->section ? REPLY_TAG_SECTION : REPLY_TAG_NAME;
}

bool reply_step_tags(struct pl_reply *r, bool last) {
    switch (r->state) {
    case REPLY_TAG_SECTION: return section(r, last);
    case REPLY_TAG_NAME: return name(r, last);
    case REPLY_TAG_FIRST: return first(r, last);
    case REPLY_TAG_AFTER: return after(r, last);
    case REPLY_TAG_KEY: return key(r, last);
    case REPLY_TAG_VALUE: return value(r, last);
    case REPLY_HEADER: return reply_header(r, last);
    case REPLY_BODY: return reply_body(r, last);
    default: return false;
    }
}
