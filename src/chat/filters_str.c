/* filters_str - filters over text. */
#include <stdio.h>
#include <string.h>

#include "chat/filters.h"

static struct tj_val method(struct tj_rt *R, struct tj_val v, const struct tj_args *a, const char *fname, int how) {
    tj_bind(R, fname, a, "", NULL);
    return tj_strv(tj_str_case(R, tj_to_str(R, v), how));
}
struct tj_val tj_f_upper(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    return method(R, v, a, "do_upper", 'u');
}
struct tj_val tj_f_lower(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    return method(R, v, a, "do_lower", 'l');
}
struct tj_val tj_f_capitalize(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    return method(R, v, a, "do_capitalize", 'c');
}

struct tj_val tj_f_string(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    tj_bind(R, "soft_str", a, "", NULL);
    return tj_strv(tj_to_str(R, v));
}

static bool breaks_word(uint32_t cp) {
    return cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<' || tj_is_space(cp);
}

struct tj_val tj_f_title(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    tj_bind(R, "do_title", a, "", NULL);
    struct tj_str *s = tj_to_str(R, v);
    struct tj_sb b;
    tj_sb_init(R, &b);
    for (size_t i = 0; i < s->len;) { /* runs of breaking characters and runs of others */
        size_t next, end = i, after;
        bool brk = breaks_word(tj_cp_at(s->data, s->len, i, &next));
        while (end < s->len && breaks_word(tj_cp_at(s->data, s->len, end, &after)) == brk) end = after;
        tj_sb_str(&b, tj_str_case(R, tj_str_sub(R, s, i, next), 'u'));
        tj_sb_str(&b, tj_str_case(R, tj_str_sub(R, s, next, end), 'l'));
        i = end;
    }
    return tj_strv(tj_sb_done(&b));
}

struct tj_val tj_f_trim(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val chars;
    tj_bind(R, "do_trim", a, "chars=", &chars);
    if (chars.type != TJ_MISSING && chars.type != TJ_NONE && chars.type != TJ_STR)
        tj_raise(R, PL_INVALID, "strip arg must be None or str");
    return tj_strv(tj_str_strip(R, tj_to_str(R, v), chars.type == TJ_STR ? chars.s : NULL, 3));
}

struct tj_val tj_f_center(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val width;
    tj_bind(R, "do_center", a, "width=", &width);
    int64_t w = width.type == TJ_MISSING ? 80 : tj_need_int(R, width);
    return tj_strv(tj_pad(R, tj_to_str(R, v), w, tj_str_borrow(R, " ", 1, false), 0));
}

struct tj_val tj_f_format(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    if (a->npos > 0 && a->nkw > 0) tj_raise(R, PL_INVALID, "can't handle positional and keyword arguments at the same time");
    struct tj_str *s = tj_to_str(R, v);
    if (a->nkw > 0) {
        struct tj_dict *d = tj_dict_new(R);
        for (size_t i = 0; i < a->nkw; i++) tj_dict_set(R, d, tj_strv(a->kwname[i]), a->kw[i]);
        return tj_strv(tj_percent_format(R, s, tj_dictv(d)));
    }
    struct tj_list *l = tj_list_new(R, a->npos);
    for (size_t i = 0; i < a->npos; i++) tj_list_add(R, l, a->pos[i]);
    return tj_strv(tj_percent_format(R, s, tj_tuplev(l)));
}

struct tj_val tj_f_replace(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val arg[3];
    tj_bind(R, "do_replace", a, "old new count=", arg);
    int64_t count = arg[2].type == TJ_MISSING || arg[2].type == TJ_NONE ? -1 : tj_need_int(R, arg[2]);
    struct tj_str *s = tj_str_plain(R, tj_to_str(R, v));
    return tj_strv(tj_str_replace(R, s, tj_to_str(R, arg[0]), tj_to_str(R, arg[1]), count));
}

struct tj_val tj_f_indent(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val arg[3];
    tj_bind(R, "do_indent", a, "width= first= blank=", arg);
    struct tj_str *pad, *nl = tj_str_borrow(R, "\n", 1, false);
    struct tj_sb b;
    tj_sb_init(R, &b);
    if (arg[0].type == TJ_STR) {
        pad = arg[0].s;
    } else {
        if (arg[0].type == TJ_UNDEF) tj_undef_fail(R, arg[0]);
        if (arg[0].type != TJ_MISSING && !tj_is_int(arg[0]))
            tj_raise(R, PL_INVALID, "can't multiply sequence by non-int of type '%s'", tj_type_name(arg[0]));
        tj_sb_repeat(&b, tj_str_borrow(R, " ", 1, false), arg[0].type == TJ_MISSING ? 4 : tj_as_int(arg[0]));
        pad = tj_sb_done(&b);
        tj_sb_init(R, &b);
    }
    if (v.type == TJ_UNDEF) tj_undef_fail(R, v);
    if (v.type == TJ_LIST) tj_raise(R, PL_INVALID, "'list' object has no attribute 'splitlines'");
    if (v.type != TJ_STR) tj_raise(R, PL_INVALID, "unsupported operand type(s) for +=: '%s' and 'str'", tj_type_name(v));
    if (v.s->markup) pad = tj_escape(R, tj_strv(pad));
    struct tj_list *lines = tj_str_splitlines(R, tj_str_concat(R, v.s, nl), false);
    bool blank = tj_truth(R, arg[2]);
    if (tj_truth(R, arg[1])) tj_sb_str(&b, pad);
    for (size_t i = 0; i < lines->n; i++) {
        if (i > 0) tj_sb_str(&b, nl);
        if (i > 0 && (blank || lines->v[i].s->len > 0)) tj_sb_str(&b, pad);
        tj_sb_str(&b, lines->v[i].s);
    }
    struct tj_str *r = tj_sb_done(&b);
    r->markup = v.s->markup;
    return tj_strv(r);
}

struct tj_val tj_f_truncate(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val arg[4];
    tj_bind(R, "do_truncate", a, "length= killwords= end= leeway=", arg);
    struct tj_str *end = arg[2].type == TJ_MISSING ? tj_str_borrow(R, "...", 3, false) : tj_need_str(R, arg[2], "end");
    int64_t length = arg[0].type == TJ_MISSING ? 255 : tj_need_int(R, arg[0]), dots = (int64_t)tj_str_chars(R, end);
    int64_t leeway = arg[3].type == TJ_MISSING || arg[3].type == TJ_NONE ? 5 : tj_need_int(R, arg[3]);
    if (length < dots) tj_raise(R, PL_INVALID, "expected length >= %lld, got %lld", (long long)dots, (long long)length);
    if (leeway < 0) tj_raise(R, PL_INVALID, "expected leeway >= 0, got %lld", (long long)leeway);
    if (tj_len(R, v) <= length + leeway) return v;
    if (v.type != TJ_STR)
        tj_raise(R, PL_INVALID, "can only concatenate %s (not \"str\") to %s", tj_type_name(v), tj_type_name(v));
    struct tj_str *s = tj_str_sub(R, v.s, 0, tj_str_offset(R, v.s, (size_t)(length - dots)));
    if (!tj_truth(R, arg[1])) {
        const char *space = s->len == 0 ? NULL : memrchr(s->data, ' ', s->len);
        if (space != NULL) s = tj_str_sub(R, s, 0, (size_t)(space - s->data));
    }
    struct tj_str *r = tj_str_concat(R, s, v.s->markup ? tj_escape(R, tj_strv(end)) : end);
    r->markup = v.s->markup;
    return tj_strv(r);
}

struct tj_val tj_f_wordcount(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    tj_bind(R, "do_wordcount", a, "", NULL);
    struct tj_str *s = tj_to_str(R, v);
    int64_t n = 0;
    bool in = false;
    for (size_t i = 0; i < s->len;) {
        uint32_t cp = tj_cp_at(s->data, s->len, i, &i);
        bool word = cp == '_' || tj_is_alnum(cp);
        n += word && !in;
        in = word;
    }
    return tj_tainted(tj_int(n), tj_str_any_taint(s));
}

/* --- wordwrap: textwrap.wrap on each line --- */

struct wrap {
    struct tj_rt *R;
    struct tj_str *s;
    struct tj_list *lines;
    int64_t width;
    bool long_words, hyphens;
};

static bool wordish(uint32_t cp) { return cp == '_' || tj_is_alnum(cp); }

static uint32_t cp_before(const struct tj_str *s, size_t i) {
    size_t next;
    do i--;
    while (i > 0 && ((unsigned char)s->data[i] & 0xC0) == 0x80);
    return tj_cp_at(s->data, s->len, i, &next);
}

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* The end of the chunk that begins at i: blanks, or a word, broken after a hyphen between letters when asked. */
static size_t chunk_end(const struct wrap *w, size_t i) {
    const struct tj_str *s = w->s;
    size_t j = i;
    if (is_blank(s->data[i])) {
        while (j < s->len && is_blank(s->data[j])) j++;
        return j;
    }
    while (j < s->len && !is_blank(s->data[j])) {
        bool hyphen = w->hyphens && s->data[j] == '-' && j > i && j + 1 < s->len;
        if (hyphen) {
            size_t next;
            uint32_t before = cp_before(s, j), after = tj_cp_at(s->data, s->len, j + 1, &next);
            bool two = j >= i + 2 && wordish(cp_before(s, j - 1));
            if (tj_is_alpha(before) && wordish(after) && !tj_is_decimal(after) && (two || j == i + 1) && two) return j + 1;
        }
        j++;
    }
    return j;
}

static int64_t width_of(const struct wrap *w, size_t a, size_t b) {
    int64_t n = 0;
    for (size_t i = a; i < b; i++) n += ((unsigned char)w->s->data[i] & 0xC0) != 0x80;
    return n;
}

static bool blank_chunk(const struct wrap *w, size_t a, size_t b) {
    for (size_t i = a, next; i < b; i = next)
        if (!tj_is_space(tj_cp_at(w->s->data, b, i, &next))) return false;
    return true;
}

static void wrap_line(struct wrap *w) {
    size_t i = 0, len = w->s->len;
    while (i < len) {
        size_t begin = i, end = i;
        int64_t used = 0;
        if (w->lines->n > 0) { /* blanks at the start of a line go, except on the first */
            size_t e = chunk_end(w, i);
            if (blank_chunk(w, i, e)) {
                i = begin = end = e;
                if (i >= len) break;
            }
        }
        while (i < len) {
            size_t e = chunk_end(w, i);
            int64_t n = width_of(w, i, e);
            if (used + n > w->width) {
                if (n > w->width && w->long_words && used < w->width) {
                    for (int64_t room = PL_MAX(w->width - used, 1); room > 0; room--) tj_cp_at(w->s->data, len, i, &i);
                    end = i;
                } else if (n > w->width && end == begin) {
                    end = i = e;
                }
                break;
            }
            used += n;
            end = i = e;
        }
        if (end == begin) break;
        size_t cut = end; /* blanks at the end of a line go */
        while (cut > begin && tj_is_space((unsigned char)w->s->data[cut - 1])) cut--;
        if (cut > begin) tj_list_add(w->R, w->lines, tj_strv(tj_str_sub(w->R, w->s, begin, cut)));
        tj_charge(w->R, 1);
    }
}

struct tj_val tj_f_wordwrap(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val arg[4];
    tj_bind(R, "do_wordwrap", a, "width= break_long_words= wrapstring= break_on_hyphens=", arg);
    if (v.type == TJ_UNDEF) tj_undef_fail(R, v);
    if (v.type != TJ_STR) tj_raise(R, PL_INVALID, "'%s' object has no attribute 'splitlines'", tj_type_name(v));
    struct wrap w = {.R = R, .width = arg[0].type == TJ_MISSING ? 79 : tj_need_int(R, arg[0])};
    w.long_words = arg[1].type == TJ_MISSING || tj_truth(R, arg[1]);
    w.hyphens = arg[3].type == TJ_MISSING || tj_truth(R, arg[3]);
    struct tj_str *nl = arg[2].type == TJ_STR ? arg[2].s : tj_str_borrow(R, "\n", 1, false);
    struct tj_list *lines = tj_str_splitlines(R, v.s, false);
    if (w.width <= 0 && lines->n > 0) tj_raise(R, PL_INVALID, "invalid width %lld (must be > 0)", (long long)w.width);
    struct tj_sb b;
    tj_sb_init(R, &b);
    for (size_t i = 0; i < lines->n; i++) {
        w.s = lines->v[i].s;
        w.lines = tj_list_new(R, 0);
        wrap_line(&w);
        if (i > 0) tj_sb_str(&b, nl);
        for (size_t k = 0; k < w.lines->n; k++) {
            if (k > 0) tj_sb_str(&b, nl);
            tj_sb_str(&b, w.lines->v[k].s);
        }
    }
    return tj_strv(tj_sb_done(&b));
}

/* --- HTML --- */

struct tj_str *tj_escape(struct tj_rt *R, struct tj_val v) {
    struct tj_str *s = tj_to_str(R, v);
    if (s->markup) return s;
    struct tj_sb b;
    tj_sb_init(R, &b);
    size_t plain = 0;
    for (size_t i = 0; i < s->len; i++) {
        char c = s->data[i];
        const char *e = c == '&'    ? "&amp;"
                        : c == '<'  ? "&lt;"
                        : c == '>'  ? "&gt;"
                        : c == '\'' ? "&#39;"
                        : c == '"'  ? "&#34;"
                                    : NULL;
        if (e == NULL) continue;
        tj_sb_sub(&b, s, plain, i);
        tj_sb_c(&b, e, tj_str_tainted_at(s, i));
        plain = i + 1;
    }
    tj_sb_sub(&b, s, plain, s->len);
    struct tj_str *r = tj_sb_done(&b);
    r->markup = true;
    return r;
}

struct tj_val tj_f_escape(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    if (a->npos > 0 || a->nkw > 0)
        tj_raise(R, PL_INVALID, "escape() takes exactly one argument (%zu given)", a->npos + a->nkw + 1);
    return tj_strv(tj_escape(R, v));
}
struct tj_val tj_f_forceescape(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    tj_bind(R, "do_forceescape", a, "", NULL);
    return tj_strv(tj_escape(R, tj_strv(tj_str_plain(R, tj_to_str(R, v)))));
}
struct tj_val tj_f_safe(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    tj_bind(R, "do_mark_safe", a, "", NULL);
    struct tj_str *s = tj_to_str(R, v), *r = tj_str_sub(R, s, 0, s->len);
    r->markup = true;
    return tj_strv(r);
}

static struct tj_str *strip_tags(struct tj_rt *R, struct tj_str *s) {
    struct tj_sb b;
    tj_sb_init(R, &b);
    size_t pos = 0, start;
    while ((start = tj_str_find(s, pos, "<", 1)) != SIZE_MAX) {
        bool comment = start + 4 <= s->len && memcmp(s->data + start, "<!--", 4) == 0;
        size_t end = comment ? tj_str_find(s, start + 4, "-->", 3) : tj_str_find(s, start, ">", 1);
        if (end == SIZE_MAX) break;
        tj_sb_sub(&b, s, pos, start);
        pos = end + (comment ? 3 : 1);
    }
    tj_sb_sub(&b, s, pos, s->len);
    return tj_sb_done(&b);
}

/* One character reference at i; returns its end, or i when there is none. Named ones: the five of XML and nbsp. */
static size_t unescape_one(struct tj_sb *b, const struct tj_str *s, size_t i) {
    static const struct {
        const char *name;
        uint32_t cp;
    } named[] = {{"&amp;", '&'},    {"&lt;", '<'},        {"&gt;", '>'},       {"&quot;", '"'},
                 {"&apos;", '\''},  {"&nbsp;", 0xA0},     {"&copy;", 0xA9},    {"&raquo;", 0xBB},
                 {"&laquo;", 0xAB}, {"&hellip;", 0x2026}, {"&mdash;", 0x2014}, {"&ndash;", 0x2013}};
    bool taint = tj_str_tainted_at(s, i);
    for (size_t k = 0; k < PL_COUNT_OF(named); k++) {
        size_t n = strlen(named[k].name);
        if (i + n > s->len || memcmp(s->data + i, named[k].name, n) != 0) continue;
        tj_sb_cp(b, named[k].cp, taint);
        return i + n;
    }
    if (i + 2 >= s->len || s->data[i + 1] != '#') return i;
    bool hex = (s->data[i + 2] | 32) == 'x';
    size_t j = i + 2 + hex, begin = j;
    uint32_t cp = 0;
    for (; j < s->len && cp < 0x110000; j++) {
        char c = s->data[j];
        int d = c >= '0' && c <= '9' ? c - '0' : hex && (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (d < 0) break;
        cp = cp * (hex ? 16 : 10) + (uint32_t)d;
    }
    if (j == begin) return i;
    if (j < s->len && s->data[j] == ';') j++;
    bool bad = cp == 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF);
    tj_sb_cp(b, bad ? 0xFFFD : cp, taint);
    return j;
}

struct tj_val tj_f_striptags(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    tj_bind(R, "do_striptags", a, "", NULL);
    struct tj_str *s = strip_tags(R, tj_to_str(R, v));
    struct tj_args none = {0};
    struct tj_str name = {.data = "split", .len = 5, .chars = SIZE_MAX};
    struct tj_val words = tj_str_method(R, s, tj_str_method_find(&name), &none);
    struct tj_sb b;
    tj_sb_init(R, &b);
    for (size_t i = 0; i < words.l->n; i++) {
        if (i > 0) tj_sb_c(&b, " ", false);
        tj_sb_str(&b, words.l->v[i].s);
    }
    s = tj_sb_done(&b);
    tj_sb_init(R, &b);
    for (size_t i = 0; i < s->len;) {
        size_t end = s->data[i] == '&' ? unescape_one(&b, s, i) : i;
        if (end == i) {
            tj_sb_sub(&b, s, i, i + 1);
            end = i + 1;
        }
        i = end;
    }
    return tj_strv(tj_sb_done(&b));
}

struct tj_val tj_f_xmlattr(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val autospace;
    tj_bind(R, "do_xmlattr", a, "autospace=", &autospace);
    if (v.type == TJ_UNDEF) tj_undef_fail(R, v);
    if (v.type != TJ_DICT) tj_raise(R, PL_INVALID, "'%s' object has no attribute 'items'", tj_type_name(v));
    struct tj_sb b;
    tj_sb_init(R, &b);
    bool any = false, space = autospace.type == TJ_MISSING || tj_truth(R, autospace);
    for (size_t i = 0; i < v.d->n; i++) {
        struct tj_val k = v.d->e[i].k, x = v.d->e[i].v;
        if (x.type == TJ_NONE || x.type == TJ_UNDEF) continue;
        if (k.type != TJ_STR) tj_raise(R, PL_INVALID, "expected string or bytes-like object, got '%s'", tj_type_name(k));
        for (size_t j = 0; j < k.s->len; j++)
            if (k.s->data[j] != '\0' && strchr("\t\n\v\f\r />=", k.s->data[j]) != NULL) {
                struct tj_str *r = tj_to_repr(R, k);
                tj_raise(R, PL_INVALID, "Invalid character in attribute name: %.*s", (int)PL_MIN(r->len, 300), r->data);
            }
        if (any || space) tj_sb_c(&b, " ", false);
        any = true;
        tj_sb_str(&b, tj_escape(R, k));
        tj_sb_c(&b, "=\"", false);
        tj_sb_str(&b, tj_escape(R, x));
        tj_sb_c(&b, "\"", false);
    }
    return tj_strv(tj_sb_done(&b));
}

/* --- URLs --- */

static void quote(struct tj_sb *b, struct tj_val v, bool query) {
    struct tj_str *s = tj_to_str(b->R, v);
    for (size_t i = 0; i < s->len; i++) {
        unsigned char c = (unsigned char)s->data[i];
        bool taint = tj_str_tainted_at(s, i);
        bool safe = c < 128 && (tj_is_alnum(c) || strchr("_.-~", c) != NULL || (c == '/' && !query)) && c != 0;
        char esc[8];
        if (safe) {
            tj_sb_char(b, (char)c, taint);
        } else if (c == ' ' && query) {
            tj_sb_char(b, '+', taint);
        } else {
            snprintf(esc, sizeof esc, "%%%02X", c);
            tj_sb_c(b, esc, taint);
        }
    }
}

struct tj_val tj_f_urlencode(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    tj_bind(R, "do_urlencode", a, "", NULL);
    struct tj_sb b;
    tj_sb_init(R, &b);
    if (v.type == TJ_STR || !tj_iterable(v)) {
        quote(&b, v, false);
        return tj_strv(tj_sb_done(&b));
    }
    struct tj_view items = {v.d, 2};
    struct tj_val src = v.type == TJ_DICT ? (struct tj_val){.type = TJ_VIEW, .view = &items} : v, pair;
    struct tj_iter *it = tj_iter(R, src);
    for (bool first = true; tj_next(R, it, &pair); first = false) {
        if (!tj_iterable(pair)) tj_raise(R, PL_INVALID, "cannot unpack non-iterable %s object", tj_type_name(pair));
        struct tj_list *kv = tj_to_list(R, pair);
        if (kv->n < 2) tj_raise(R, PL_INVALID, "not enough values to unpack (expected 2, got %zu)", kv->n);
        if (kv->n > 2) tj_raise(R, PL_INVALID, "too many values to unpack (expected 2)");
        if (!first) tj_sb_char(&b, '&', false);
        quote(&b, kv->v[0], true);
        tj_sb_char(&b, '=', false);
        quote(&b, kv->v[1], true);
    }
    return tj_strv(tj_sb_done(&b));
}

struct tj_val tj_f_pprint(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    tj_bind(R, "do_pprint", a, "", NULL);
    return tj_strv(tj_pformat(R, v));
}
