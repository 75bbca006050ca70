#include "base/json.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"

enum { DEPTH_MAX = 2048 }; /* as jansson has it */

static _Thread_local bool starved;

static void *watched_alloc(size_t n) {
    void *p = pl_alloc(n, 1);
    if (p == NULL) starved = true;
    return p;
}

/* At load, before any thread exists. */
__attribute__((constructor)) static void watch_jansson(void) {
    json_malloc_t have_alloc;
    json_free_t have_free;
    json_get_alloc_funcs(&have_alloc, &have_free);
    if (have_alloc == malloc && have_free == free) json_set_alloc_funcs(watched_alloc, pl_free);
}

void pl_json_watch(void) { starved = false; }
bool pl_json_starved(void) { return starved; }
void pl_json_starve(void) { starved = true; }

char *pl_json_write(const json_t *value, size_t flags) {
    bool before = starved;
    starved = false;
    char *text = json_dumps(value, flags);
    if (starved) {
        pl_free(text);
        text = NULL;
    }
    starved |= before;
    return text;
}

struct reader {
    const char *s;
    size_t len, at, flags;
    int depth;
    struct pl_buf text; /* of the string, name or number that is read */
    struct pl_json_fault *why;
};

static json_t *value(struct reader *r);

/* NULL, for the caller to return. */
PL_PRINTF(2, 3) static json_t *fault(struct reader *r, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->why->text, sizeof r->why->text, fmt, ap);
    va_end(ap);
    r->why->at = r->at;
    return NULL;
}

static json_t *no_memory(struct reader *r) {
    starved = true;
    r->why->no_memory = true;
    return fault(r, "out of memory");
}

static int peek(const struct reader *r) { return r->at < r->len ? (unsigned char)r->s[r->at] : -1; }

static int skip_space(struct reader *r) {
    while (r->at < r->len && strchr(" \t\n\r", r->s[r->at]) != NULL && r->s[r->at] != '\0') r->at++;
    return peek(r);
}

static json_t *expected(struct reader *r, const char *what) {
    int c = peek(r);
    if (c < 0) return fault(r, "%s expected, but the text ends", what);
    return c > 0x20 && c < 0x7F ? fault(r, "%s expected near '%c'", what, c)
                                : fault(r, "%s expected near byte 0x%02x", what, c);
}

/* ---------- strings ---------- */

/* The four digits behind \u, or -1. */
static int32_t hex4(const struct reader *r, size_t at) {
    int32_t v = 0;
    for (size_t i = at; i < at + 4; i++) {
        char c = i < r->len ? r->s[i] : '\0';
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* r->at is behind the u. */
static bool unicode_escape(struct reader *r) {
    int32_t v = hex4(r, r->at), low = -1;
    if (v < 0) {
        fault(r, "invalid escape: four digits must follow \\u");
        return false;
    }
    r->at += 4;
    bool pair = v >= 0xD800 && v <= 0xDBFF;
    if (pair && r->at + 1 < r->len && r->s[r->at] == '\\' && r->s[r->at + 1] == 'u') low = hex4(r, r->at + 2);
    if ((v >= 0xDC00 && v <= 0xDFFF) || (pair && (low < 0xDC00 || low > 0xDFFF))) {
        fault(r, "invalid Unicode '\\u%04X': half of a pair", (unsigned)v);
        return false;
    }
    if (pair) r->at += 6;
    if (v == 0 && (r->flags & JSON_ALLOW_NUL) == 0) {
        fault(r, "\\u0000 is not allowed");
        return false;
    }
    pl_buf_add_utf8(&r->text, pair ? 0x10000 + (((uint32_t)v & 0x3FF) << 10) + ((uint32_t)low & 0x3FF) : (uint32_t)v);
    return true;
}

static bool escape(struct reader *r) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    int c = peek(r);
    r->at += c >= 0;
    if (c == 'u') return unicode_escape(r);
    const char *found = c > 0 ? strchr(from, c) : NULL;
    if (found == NULL) {
        fault(r, "invalid escape");
        return false;
    }
    pl_buf_add_char(&r->text, to[found - from]);
    return true;
}

/* Into r->text; r->at is on the opening quote and then behind the closing one. */
static bool string(struct reader *r) {
    pl_buf_clear(&r->text);
    r->at++;
    for (;;) {
        size_t from = r->at, n;
        while (r->at < r->len && r->s[r->at] != '"' && r->s[r->at] != '\\' && (unsigned char)r->s[r->at] >= 0x20 &&
               (n = pl_utf8_len(r->s + r->at, r->len - r->at)) > 0)
            r->at += n;
        pl_buf_add(&r->text, r->s + from, r->at - from);
        int c = peek(r);
        if (c == '"') break;
        if (c == '\\') {
            r->at++;
            if (!escape(r)) return false;
            continue;
        }
        if (c < 0)
            fault(r, "premature end of input in a string");
        else if (c < 0x20)
            fault(r, "control character 0x%x in a string", c);
        else
            fault(r, "unable to decode byte 0x%x: no UTF-8", c);
        return false;
    }
    r->at++;
    if (pl_buf_ok(&r->text)) return true;
    no_memory(r);
    return false;
}

/* ---------- numbers ---------- */

static size_t digits(struct reader *r) {
    size_t from = r->at;
    while (r->at < r->len && r->s[r->at] >= '0' && r->s[r->at] <= '9') r->at++;
    return r->at - from;
}

static json_t *integer(struct reader *r, size_t from) {
    bool minus = r->s[from] == '-';
    int64_t v = 0;
    for (size_t i = from + minus; i < r->at; i++) {
        int d = r->s[i] - '0';
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_sub_overflow(v, d, &v)) /* below zero there is one more */
            return fault(r, minus ? "too big negative integer" : "too big integer");
    }
    if (!minus && v == INT64_MIN) return fault(r, "too big integer");
    json_t *made = json_integer(minus ? v : -v);
    return made != NULL ? made : no_memory(r);
}

static json_t *real(struct reader *r, size_t from) {
    pl_buf_clear(&r->text);
    pl_buf_add(&r->text, r->s + from, r->at - from);
    if (!pl_buf_ok(&r->text)) return no_memory(r);
    char *point = strchr(r->text.data, '.');
    if (point != NULL) *point = localeconv()->decimal_point[0];
    double v = strtod(r->text.data, NULL);
    if (!isfinite(v)) return fault(r, "real number overflow");
    json_t *made = json_real(v);
    return made != NULL ? made : no_memory(r);
}

static json_t *number(struct reader *r) {
    size_t from = r->at;
    bool whole = true;
    if (peek(r) == '-') r->at++;
    if (peek(r) == '0')
        r->at++;
    else if (digits(r) == 0)
        return expected(r, "a digit");
    if (peek(r) >= '0' && peek(r) <= '9') return fault(r, "a number begins with 0");
    if (peek(r) == '.') {
        whole = false;
        r->at++;
        if (digits(r) == 0) return expected(r, "a digit");
    }
    if (peek(r) == 'e' || peek(r) == 'E') {
        whole = false;
        r->at++;
        if (peek(r) == '+' || peek(r) == '-') r->at++;
        if (digits(r) == 0) return expected(r, "a digit");
    }
    return whole ? integer(r, from) : real(r, from);
}

/* ---------- arrays, objects, words ---------- */

static json_t *word(struct reader *r) {
    static const char *const words[] = {"null", "true", "false"};
    for (size_t i = 0; i < PL_COUNT_OF(words); i++) {
        size_t n = strlen(words[i]);
        if (r->len - r->at < n || memcmp(r->s + r->at, words[i], n) != 0) continue;
        r->at += n;
        return i == 0 ? json_null() : json_boolean(i == 1);
    }
    return expected(r, "a value");
}

/* What came out of the loop of a list: itself, or nothing. */
static json_t *ended(json_t *list, bool ok) {
    if (ok) return list;
    json_decref(list);
    return NULL;
}

/* Behind an item: the list goes on (true), ends (*closed), or is broken (false). */
static bool goes_on(struct reader *r, char close, bool *closed) {
    int c = skip_space(r);
    if (c != ',' && c != close) {
        expected(r, close == ']' ? "',' or ']'" : "',' or '}'");
        return false;
    }
    r->at++;
    *closed = c == close;
    return !*closed;
}

static json_t *array(struct reader *r) {
    json_t *list = json_array();
    bool closed = false;
    if (list == NULL) return no_memory(r);
    r->at++;
    if (skip_space(r) == ']') {
        r->at++;
        return list;
    }
    do {
        json_t *item = value(r);
        if (item == NULL) return ended(list, false);
        if (json_array_append_new(list, item) != 0) {
            json_decref(list);
            return no_memory(r);
        }
    } while (goes_on(r, ']', &closed));
    return ended(list, closed);
}

/* One member: name, colon, value. */
static bool member(struct reader *r, json_t *object) {
    if (skip_space(r) != '"') return expected(r, "a name in quotes") != NULL;
    if (!string(r)) return false;
    if (strlen(r->text.data == NULL ? "" : r->text.data) != r->text.len)
        return fault(r, "NUL byte in the name of a member") != NULL;
    if ((r->flags & JSON_REJECT_DUPLICATES) != 0 && json_object_get(object, pl_buf_cstr(&r->text)) != NULL)
        return fault(r, "duplicate object key") != NULL;
    char *name = pl_strndup(pl_buf_cstr(&r->text), r->text.len);
    if (name == NULL) return no_memory(r) != NULL;
    json_t *v = NULL;
    if (skip_space(r) == ':') {
        r->at++;
        v = value(r);
    } else {
        expected(r, "':'");
    }
    bool kept = v != NULL && json_object_set_new_nocheck(object, name, v) == 0;
    if (v != NULL && !kept) no_memory(r);
    pl_free(name);
    return kept;
}

static json_t *object(struct reader *r) {
    json_t *made = json_object();
    bool closed = false;
    if (made == NULL) return no_memory(r);
    r->at++;
    if (skip_space(r) == '}') {
        r->at++;
        return made;
    }
    do {
        if (!member(r, made)) return ended(made, false);
    } while (goes_on(r, '}', &closed));
    return ended(made, closed);
}

static json_t *text_value(struct reader *r) {
    if (!string(r)) return NULL;
    json_t *made = json_stringn_nocheck(pl_buf_cstr(&r->text), r->text.len);
    return made != NULL ? made : no_memory(r);
}

static json_t *value(struct reader *r) {
    int c = skip_space(r);
    if (c == '"') return text_value(r);
    if (c == '-' || (c >= '0' && c <= '9')) return number(r);
    if (c != '[' && c != '{') return word(r);
    if (++r->depth > DEPTH_MAX) return fault(r, "maximum parsing depth reached");
    json_t *list = c == '[' ? array(r) : object(r);
    r->depth--;
    return list;
}

json_t *pl_json_read(const char *data, size_t len, size_t flags, struct pl_json_fault *why) {
    struct pl_json_fault ignored;
    struct reader r = {.s = data, .len = len, .flags = flags, .why = why != NULL ? why : &ignored};
    *r.why = (struct pl_json_fault){.line = 1};
    int first = skip_space(&r);
    json_t *v = first == '[' || first == '{' || (flags & JSON_DECODE_ANY) != 0 ? value(&r) : expected(&r, "'[' or '{'");
    if (v != NULL && skip_space(&r) >= 0) {
        json_decref(v);
        v = expected(&r, "end of text");
    }
    for (size_t i = 0; v == NULL && i < r.why->at; i++) r.why->line += data[i] == '\n';
    pl_buf_deinit(&r.text);
    return v;
}
