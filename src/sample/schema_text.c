#include "sample/schema_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sample/grammar_internal.h"
#include "sample/schema.h"

enum { DEPTH_MAX = 64, LAST = 0x10FFFF };

/* ---------- sets of characters ---------- */

struct set {
    uint32_t (*list)[2];
    size_t count, cap;
    bool failed;
};

static void add(struct set *s, uint32_t lo, uint32_t hi) {
    if (pl_grow(&s->list, &s->cap, s->count + 1, sizeof *s->list) != PL_OK) {
        s->failed = true;
        return;
    }
    s->list[s->count][0] = lo;
    s->list[s->count++][1] = hi;
}

/* Sorted and disjoint. */
static void tidy(struct set *s) {
    size_t n = 0;
    if (s->count == 0) return;
    qsort(s->list, s->count, sizeof *s->list, pl_range_order);
    for (size_t i = 1; i < s->count; i++) {
        if (s->list[i][0] <= s->list[n][1] + 1) {
            s->list[n][1] = PL_MAX(s->list[n][1], s->list[i][1]);
        } else {
            n++;
            memmove(s->list[n], s->list[i], sizeof s->list[n]);
        }
    }
    s->count = n + 1;
}

static void invert(struct set *s) {
    struct set out = {.failed = s->failed};
    uint32_t from = 0;
    tidy(s);
    for (size_t i = 0; i < s->count; i++) {
        if (s->list[i][0] > from) add(&out, from, s->list[i][0] - 1);
        from = s->list[i][1] + 1;
    }
    if (from <= LAST) add(&out, from, LAST);
    pl_free(s->list);
    *s = out;
}

static bool holds(const struct set *s, uint32_t c) {
    for (size_t i = 0; i < s->count; i++)
        if (c >= s->list[i][0] && c <= s->list[i][1]) return true;
    return false;
}

static void range(struct pl_buf *b, uint32_t lo, uint32_t hi) {
    const uint32_t ends[] = {lo, hi};
    for (int i = 0; i < (lo == hi ? 1 : 2); i++)
        pl_buf_printf(b, ends[i] > 0xFFFF ? "%s\\U%08X" : "%s\\u%04X", i == 0 ? "" : "-", ends[i]);
}

/* What must be escaped in JSON is written so; other control characters are left out. */
static bool emit_set(struct set *s, bool bare, struct pl_buf *b) {
    static const struct {
        uint32_t c;
        const char *text;
    } escaped[] = {{'"', "\\\""}, {'\\', "\\\\"}, {'\n', "\\n"}, {'\r', "\\r"}, {'\t', "\\t"}, {'\f', "\\f"}, {'\b', "\\b"}};
    static const uint32_t quoted[][2] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x7E}, {0x80, 0xD7FF}, {0xE000, LAST}};
    static const uint32_t itself[][2] = {{'\t', '\n'}, {0x20, '<' - 1}, {'<' + 1, 0x7E}, {0x80, 0xD7FF}, {0xE000, LAST}};
    const uint32_t(*plain)[2] = bare ? itself : quoted;
    bool any = false, open = false;
    tidy(s);
    pl_buf_add_c(b, "(");
    for (size_t i = 0; i < (bare ? 0 : PL_COUNT_OF(escaped)); i++) {
        if (!holds(s, escaped[i].c)) continue;
        pl_buf_add_c(b, any ? " | " : "");
        pl_schema_literal(b, escaped[i].text, 2);
        any = true;
    }
    for (size_t i = 0; i < s->count; i++)
        for (size_t k = 0; k < PL_COUNT_OF(quoted); k++) {
            uint32_t lo = PL_MAX(s->list[i][0], plain[k][0]), hi = PL_MIN(s->list[i][1], plain[k][1]);
            if (lo > hi) continue;
            if (!open) pl_buf_add_c(b, any ? " | [" : "[");
            open = any = true;
            range(b, lo, hi);
        }
    pl_buf_add_c(b, open ? "])" : ")");
    b->failed |= s->failed;
    return any;
}

/* \d \w \s and their opposites. */
static bool add_named(struct set *s, char name) {
    static const uint32_t digits[][2] = {{'0', '9'}}, words[][2] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                          spaces[][2] = {{'\t', '\r'}, {' ', ' '}, {0xA0, 0xA0}, {0x2028, 0x2029}, {0x3000, 0x3000}};
    char lower = (char)(name | 0x20);
    const uint32_t(*list)[2] = lower == 'd' ? digits : lower == 'w' ? words : spaces;
    size_t count = lower == 'd' ? PL_COUNT_OF(digits) : lower == 'w' ? PL_COUNT_OF(words) : PL_COUNT_OF(spaces);
    if (lower != 'd' && lower != 'w' && lower != 's') return false;
    struct set own = {0};
    for (size_t i = 0; i < count; i++) add(&own, list[i][0], list[i][1]);
    if (name != lower) invert(&own);
    for (size_t i = 0; i < own.count; i++) add(s, own.list[i][0], own.list[i][1]);
    s->failed |= own.failed;
    pl_free(own.list);
    return true;
}

/* ---------- the pattern ---------- */

struct pattern {
    const char *at, *end;
    struct pl_buf *out;
    struct pl_err *err;
    uint32_t depth;
    bool bare;
};

#define REFUSE(p, ...) PL_FAIL((p)->err, PL_INVALID, "the schema's pattern: " __VA_ARGS__)

static bool next_is(const struct pattern *p, char c) { return p->at < p->end && *p->at == c; }

static enum pl_status plain_char(struct pattern *p, uint32_t *out) {
    size_t n = pl_utf8_len(p->at, (size_t)(p->end - p->at));
    if (n == 0) REFUSE(p, "invalid UTF-8");
    *out = pl_utf8_decode(p->at, n);
    p->at += n;
    return PL_OK;
}

static enum pl_status hex(struct pattern *p, size_t digits, uint32_t *out) {
    char text[9] = "";
    size_t left = (size_t)(p->end - p->at);
    if (left < digits || digits > 8) REFUSE(p, "an escape lacks hexadecimal digits");
    memcpy(text, p->at, digits);
    if (strspn(text, "0123456789abcdefABCDEF") != digits) REFUSE(p, "an escape lacks hexadecimal digits");
    *out = (uint32_t)strtoul(text, NULL, 16);
    if (*out > LAST || (*out >= 0xD800 && *out < 0xE000)) REFUSE(p, "an escape is no Unicode character");
    p->at += digits;
    return PL_OK;
}

/* After the backslash, one character. */
static enum pl_status escape(struct pattern *p, uint32_t *out) {
    if (p->at == p->end) REFUSE(p, "it ends in a backslash");
    char c = *p->at;
    static const char from[] = "nrtfv0", to[] = "\n\r\t\f\v";
    const char *simple = strchr(from, c);
    if (simple != NULL && c != '\0') {
        p->at++;
        *out = (uint32_t)(unsigned char)to[simple - from];
        return PL_OK;
    }
    if (c == 'x' || c == 'u') {
        p->at++;
        if (c == 'u' && next_is(p, '{')) {
            const char *close = memchr(p->at, '}', (size_t)(p->end - p->at));
            if (close == NULL) REFUSE(p, "an escape is not closed");
            p->at++;
            PL_TRY(hex(p, (size_t)(close - p->at), out));
            p->at++;
            return PL_OK;
        }
        return hex(p, c == 'x' ? 2 : 4, out);
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9')) REFUSE(p, "\\%c is not supported", c);
    return plain_char(p, out);
}

static enum pl_status class_member(struct pattern *p, struct set *s, bool *named, uint32_t *out) {
    *named = false;
    if (!next_is(p, '\\')) return plain_char(p, out);
    p->at++;
    if (p->at < p->end && add_named(s, *p->at)) {
        *named = true;
        p->at++;
        return PL_OK;
    }
    if (next_is(p, 'b')) { /* in a class it is the backspace */
        p->at++;
        *out = '\b';
        return PL_OK;
    }
    return escape(p, out);
}

static enum pl_status read_class(struct pattern *p, struct set *s) {
    bool inverted = next_is(p, '^'), named = false;
    p->at += inverted;
    while (p->at < p->end && *p->at != ']') {
        uint32_t lo = 0, hi = 0;
        PL_TRY(class_member(p, s, &named, &lo));
        if (named) continue;
        hi = lo;
        if (next_is(p, '-') && p->at + 1 < p->end && p->at[1] != ']') {
            p->at++;
            PL_TRY(class_member(p, s, &named, &hi));
            if (named || hi < lo) REFUSE(p, "a range in a class ends before it begins");
        }
        add(s, lo, hi);
    }
    if (p->at == p->end) REFUSE(p, "a class is not closed");
    p->at++;
    if (inverted) invert(s);
    return PL_OK;
}

static enum pl_status alternatives(struct pattern *p, bool top);

static enum pl_status group(struct pattern *p) {
    if (++p->depth > DEPTH_MAX) REFUSE(p, "groups are nested deeper than %d", DEPTH_MAX);
    if (next_is(p, '?')) {
        p->at++;
        bool name = p->end - p->at > 1 && p->at[0] == '<' && p->at[1] != '=' && p->at[1] != '!';
        const char *close = name ? memchr(p->at, '>', (size_t)(p->end - p->at)) : NULL;
        if (!next_is(p, ':') && close == NULL) REFUSE(p, "look-around is not supported");
        p->at = close != NULL ? close + 1 : p->at + 1;
    }
    pl_buf_add_c(p->out, "(");
    PL_TRY(alternatives(p, false));
    if (!next_is(p, ')')) REFUSE(p, "a group is not closed");
    p->at++;
    pl_buf_add_c(p->out, ")");
    p->depth--;
    return PL_OK;
}

static enum pl_status atom(struct pattern *p) {
    struct set s = {0};
    enum pl_status st = PL_OK;
    char c = *p->at++;
    uint32_t one = 0;
    if (c == '(') return group(p);
    if (c == '^' || c == '$')
        REFUSE(p, "%c is supported only at the %s of an alternative", c, c == '^' ? "beginning" : "end");
    if (c == '*' || c == '+' || c == '?' || c == '{') REFUSE(p, "%c repeats nothing", c);
    if (c == '.') { /* all but the ends of lines */
        add(&s, '\n', '\n');
        add(&s, '\r', '\r');
        add(&s, 0x2028, 0x2029);
        invert(&s);
    } else if (c == '[') {
        st = read_class(p, &s);
    } else if (c == '\\') {
        if (p->at < p->end && add_named(&s, *p->at))
            p->at++;
        else
            st = escape(p, &one), add(&s, one, one);
    } else {
        p->at--;
        st = plain_char(p, &one);
        add(&s, one, one);
    }
    if (st == PL_OK && !emit_set(&s, p->bare, p->out))
        st = pl_err_set(p->err, __FILE__, __LINE__, PL_INVALID, "the schema's pattern has a part that %s cannot hold",
                        p->bare ? "a text between tags" : "JSON");
    pl_free(s.list);
    return st;
}

/* * + ? {m} {m,} {m,n}, lazily or not: the texts are the same. */
static enum pl_status quantifier(struct pattern *p) {
    char text[32];
    if (p->at == p->end || strchr("*+?{", *p->at) == NULL) return PL_OK;
    if (*p->at != '{') {
        pl_buf_add_char(p->out, *p->at++);
    } else {
        const char *close = memchr(p->at, '}', (size_t)(p->end - p->at));
        size_t n = close == NULL ? 0 : (size_t)(close - p->at) + 1;
        if (n < 3 || n >= sizeof text) REFUSE(p, "a repetition is no {m}, {m,} or {m,n}");
        memcpy(text, p->at, n);
        text[n] = '\0';
        size_t first = strspn(text + 1, "0123456789"), comma = text[1 + first] == ',';
        size_t second = comma ? strspn(text + 2 + first, "0123456789") : 0;
        if (first == 0 || 2 + first + comma + second != n) REFUSE(p, "a repetition is no {m}, {m,} or {m,n}");
        p->at += n;
        if (strcmp(text, "{0}") == 0 || strcmp(text, "{0,0}") == 0) REFUSE(p, "a repetition allows nothing");
        pl_buf_add_c(p->out, text);
    }
    if (next_is(p, '?')) p->at++;
    return PL_OK;
}

static const char *anything(const struct pattern *p) { return p->bare ? "[^<]*" : "js-char*"; }

static enum pl_status sequence(struct pattern *p, bool top) {
    bool begins = top && next_is(p, '^'), ends = false, any = false;
    p->at += begins;
    if (top && !begins) pl_buf_add_c(p->out, anything(p)), any = true;
    while (p->at < p->end && *p->at != '|' && *p->at != ')') {
        ends = top && *p->at == '$' && (p->at + 1 == p->end || p->at[1] == '|');
        if (ends) {
            p->at++;
            break;
        }
        if (any) pl_buf_add_char(p->out, ' ');
        if (p->out->len > PL_GRAMMAR_TEXT_MAX)
            PL_FAIL(p->err, PL_LIMIT, "the schema's pattern is too large: its grammar has more than %d bytes",
                    PL_GRAMMAR_TEXT_MAX);
        PL_TRY(atom(p));
        PL_TRY(quantifier(p));
        any = true;
    }
    if (top && !ends) pl_buf_printf(p->out, "%s%s", any ? " " : "", anything(p)), any = true;
    if (!any) pl_buf_add_c(p->out, "\"\"");
    return PL_OK;
}

static enum pl_status alternatives(struct pattern *p, bool top) {
    for (;;) {
        PL_TRY(sequence(p, top));
        if (!next_is(p, '|')) return PL_OK;
        p->at++;
        pl_buf_add_c(p->out, " | ");
    }
}

enum pl_status pl_schema_pattern(const char *pattern, size_t len, bool bare, struct pl_buf *out, struct pl_err *err) {
    struct pattern p = {pattern, pattern + len, out, err, 0, bare};
    if (len > PL_GRAMMAR_TEXT_MAX) /* each of its characters takes one of the grammar's at least */
        PL_FAIL(err, PL_LIMIT, "the schema's pattern has %zu bytes, at most %d are taken", len, PL_GRAMMAR_TEXT_MAX);
    pl_buf_add_c(out, "(");
    PL_TRY(alternatives(&p, true));
    if (p.at != p.end) REFUSE(&p, "a group is closed that was not opened");
    pl_buf_add_c(out, ")");
    return PL_OK;
}

/* ---------- formats ---------- */

#define DATE                                                                                             \
    "[12] [0-9]{3} \"-\" ((\"0\" [13578] | \"1\" [02]) \"-\" (\"0\" [1-9] | [12] [0-9] | \"3\" [01]) | " \
    "(\"0\" [469] | \"11\") \"-\" (\"0\" [1-9] | [12] [0-9] | \"30\") | \"02-\" (\"0\" [1-9] | \"1\" [0-9] | \"2\" [0-8]))"
#define HOUR  "([01] [0-9] | \"2\" [0-3])"
#define TIME  HOUR " \":\" [0-5] [0-9] \":\" [0-5] [0-9] (\".\" [0-9]{1,6})? (\"Z\" | [+-] " HOUR " \":\" [0-5] [0-9])"
#define OCTET "(\"25\" [0-5] | \"2\" [0-4] [0-9] | \"1\" [0-9]{2} | [1-9] [0-9] | [0-9])"
#define LABEL "[a-z0-9] ([a-z0-9-]{0,30} [a-z0-9])?"
#define HOST  LABEL " (\".\" " LABEL "){0,5}"

bool pl_schema_format(const char *format, struct pl_buf *out) {
    static const struct {
        const char *name, *rule;
    } known[] = {
        {"date", DATE},
        {"time", TIME},
        {"date-time", DATE " \"T\" " TIME},
        {"uuid", "[0-9a-f]{8} \"-\" [0-9a-f]{4} \"-\" [0-9a-f]{4} \"-\" [0-9a-f]{4} \"-\" [0-9a-f]{12}"},
        {"ipv4", OCTET " \".\" " OCTET " \".\" " OCTET " \".\" " OCTET},
        {"ipv6", "[0-9a-f]{1,4} (\":\" [0-9a-f]{1,4}){7}"},
        {"hostname", HOST},
        {"email", "[a-z0-9_+-]{1,30} (\".\" [a-z0-9_+-]{1,30}){0,3} \"@\" " LABEL " (\".\" " LABEL "){1,4}"},
        {"duration", "\"P\" ([0-9]{1,4} \"D\" (\"T\" [0-9]{1,4} [HMS])? | \"T\" [0-9]{1,4} [HMS] | [0-9]{1,4} \"W\" | "
                     "[0-9]{1,4} \"Y\" ([0-9]{1,2} \"M\")? | [0-9]{1,4} \"M\")"},
    };
    for (size_t i = 0; i < PL_COUNT_OF(known); i++) {
        if (strcmp(format, known[i].name) != 0) continue;
        pl_buf_printf(out, "(%s)", known[i].rule);
        return true;
    }
    return false;
}
