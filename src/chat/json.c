/* json - json.dumps as transformers' tojson calls it. Structure is the template's; the text of strings keeps its origin. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "chat/rt.h"

struct dump {
    struct tj_sb b;
    bool ascii, sort, pretty;
    struct tj_str *indent, *item_sep, *key_sep;
};

static void dump(struct dump *d, struct tj_val v, int level);

static void dump_str(struct dump *d, const struct tj_str *s) {
    struct tj_sb *b = &d->b;
    tj_sb_char(b, '"', false);
    size_t plain = 0;
    for (size_t i = 0, next; i < s->len; i = next) {
        unsigned char c = (unsigned char)s->data[i];
        next = i + 1;
        if (c >= 0x20 && c != '"' && c != '\\' && (!d->ascii || c < 0x7F)) continue;
        char esc[32];
        uint32_t cp = c;
        if (c >= 0x80) cp = tj_cp_at(s->data, s->len, i, &next);
        switch (cp) {
        case '"': snprintf(esc, sizeof esc, "\\\""); break;
        case '\\': snprintf(esc, sizeof esc, "\\\\"); break;
        case '\n': snprintf(esc, sizeof esc, "\\n"); break;
        case '\r': snprintf(esc, sizeof esc, "\\r"); break;
        case '\t': snprintf(esc, sizeof esc, "\\t"); break;
        case '\f': snprintf(esc, sizeof esc, "\\f"); break;
        case '\b': snprintf(esc, sizeof esc, "\\b"); break;
        default:
            if (cp > 0xFFFF)
                snprintf(esc, sizeof esc, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10),
                         0xDC00 + ((cp - 0x10000) & 0x3FF));
            else
                snprintf(esc, sizeof esc, "\\u%04x", cp);
        }
        tj_sb_sub(b, s, plain, i);
        tj_sb_c(b, esc, tj_str_tainted_at(s, i));
        plain = next;
    }
    tj_sb_sub(b, s, plain, s->len);
    tj_sb_char(b, '"', false);
}

static void newline(struct dump *d, int level) {
    if (!d->pretty) return;
    tj_sb_char(&d->b, '\n', false);
    tj_sb_repeat(&d->b, d->indent, level);
}

static void dump_seq(struct dump *d, const struct tj_list *l, int level) {
    tj_sb_char(&d->b, '[', false);
    for (size_t i = 0; i < l->n; i++) {
        if (i > 0) tj_sb_str(&d->b, d->item_sep);
        newline(d, level + 1);
        dump(d, l->v[i], level + 1);
    }
    if (l->n > 0) newline(d, level);
    tj_sb_char(&d->b, ']', false);
}

static void dump_float(struct tj_sb *b, struct tj_val v) {
    char text[40];
    if (isnan(v.f))
        tj_sb_c(b, "NaN", v.taint);
    else if (isinf(v.f))
        tj_sb_c(b, v.f > 0 ? "Infinity" : "-Infinity", v.taint);
    else
        tj_sb_raw(b, text, tj_float_repr(v.f, text), v.taint);
}

static void dump_key(struct dump *d, struct tj_val k) {
    if (k.type == TJ_STR) {
        dump_str(d, k.s);
        return;
    }
    tj_sb_char(&d->b, '"', false);
    if (k.type == TJ_FLOAT)
        dump_float(&d->b, k);
    else if (k.type == TJ_BOOL)
        tj_sb_c(&d->b, k.b ? "true" : "false", k.taint);
    else if (k.type == TJ_NONE)
        tj_sb_c(&d->b, "null", false);
    else if (k.type == TJ_INT)
        tj_emit_repr(&d->b, k);
    else
        tj_raise(d->b.R, PL_INVALID, "keys must be str, int, float, bool or None, not %s", tj_type_name(k));
    tj_sb_char(&d->b, '"', false);
}

static void dump_dict(struct dump *d, const struct tj_dict *m, int level) {
    struct tj_list *order = NULL;
    if (d->sort) { /* sorted(items): keys decide, they are distinct */
        struct tj_list *keys = tj_list_new(d->b.R, m->n), *places = tj_list_new(d->b.R, m->n);
        for (size_t i = 0; i < m->n; i++) {
            tj_list_add(d->b.R, keys, m->e[i].k);
            tj_list_add(d->b.R, places, tj_int((int64_t)i));
        }
        order = tj_sorted(d->b.R, places, keys, false);
    }
    tj_sb_char(&d->b, '{', false);
    for (size_t i = 0; i < m->n; i++) {
        const struct tj_entry *e = &m->e[order == NULL ? i : (size_t)order->v[i].i];
        if (i > 0) tj_sb_str(&d->b, d->item_sep);
        newline(d, level + 1);
        dump_key(d, e->k);
        tj_sb_str(&d->b, d->key_sep);
        dump(d, e->v, level + 1);
    }
    if (m->n > 0) newline(d, level);
    tj_sb_char(&d->b, '}', false);
}

static void dump(struct dump *d, struct tj_val v, int level) {
    struct tj_rt *R = d->b.R;
    tj_charge(R, 1);
    tj_enter(R);
    switch (v.type) {
    case TJ_NONE: tj_sb_c(&d->b, "null", false); break;
    case TJ_BOOL: tj_sb_c(&d->b, v.b ? "true" : "false", v.taint); break;
    case TJ_INT: tj_emit_repr(&d->b, v); break;
    case TJ_FLOAT: dump_float(&d->b, v); break;
    case TJ_STR: dump_str(d, v.s); break;
    case TJ_LIST:
    case TJ_TUPLE: dump_seq(d, v.l, level); break;
    case TJ_DICT: dump_dict(d, v.d, level); break;
    default: tj_raise(R, PL_INVALID, "Object of type %s is not JSON serializable", tj_type_name(v));
    }
    tj_leave(R);
}

static void set_separators(struct tj_rt *R, struct dump *d, struct tj_val separators) {
    d->item_sep = tj_str_borrow(R, d->pretty ? "," : ", ", d->pretty ? 1 : 2, false);
    d->key_sep = tj_str_borrow(R, ": ", 2, false);
    if (separators.type == TJ_NONE) return;
    if (!tj_iterable(separators)) tj_raise(R, PL_INVALID, "cannot unpack non-iterable %s object", tj_type_name(separators));
    struct tj_list *l = tj_to_list(R, separators);
    if (l->n < 2) tj_raise(R, PL_INVALID, "not enough values to unpack (expected 2, got %zu)", l->n);
    if (l->n > 2) tj_raise(R, PL_INVALID, "too many values to unpack (expected 2)");
    if (l->v[0].type != TJ_STR || l->v[1].type != TJ_STR)
        tj_raise(R, PL_INVALID, "make_encoder() argument %d must be str, not %s", l->v[1].type != TJ_STR ? 5 : 6,
                 tj_type_name(l->v[l->v[1].type != TJ_STR]));
    d->item_sep = l->v[0].s;
    d->key_sep = l->v[1].s;
}

struct tj_val tj_json_dumps(struct tj_rt *R, struct tj_val v, bool ensure_ascii, struct tj_val indent,
                            struct tj_val separators, bool sort_keys) {
    struct dump d = {.ascii = ensure_ascii, .sort = sort_keys};
    tj_sb_init(R, &d.b);
    if (indent.type == TJ_STR) {
        d.indent = indent.s;
    } else if (indent.type != TJ_NONE) {
        if (!tj_is_int(indent))
            tj_raise(R, PL_INVALID, "can't multiply sequence by non-int of type '%s'", tj_type_name(indent));
        struct tj_sb b;
        tj_sb_init(R, &b);
        tj_sb_repeat(&b, tj_str_borrow(R, " ", 1, false), tj_as_int(indent));
        d.indent = tj_sb_done(&b);
    }
    d.pretty = d.indent != NULL;
    set_separators(R, &d, separators);
    dump(&d, v, 0);
    return tj_strv(tj_sb_done(&d.b));
}
