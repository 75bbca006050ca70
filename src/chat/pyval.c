/* pyval - how Python compares, orders, measures and prints values. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/ast.h"
#include "chat/rt.h"

const char *tj_type_name(struct tj_val v) {
    static const char *const view_names[] = {"dict_keys", "dict_values", "dict_items"};
    switch ((enum tj_type)v.type) {
    case TJ_MISSING:
    case TJ_UNDEF: return "Undefined";
    case TJ_NONE: return "NoneType";
    case TJ_BOOL: return "bool";
    case TJ_INT: return "int";
    case TJ_FLOAT: return "float";
    case TJ_STR: return v.s->markup ? "Markup" : "str";
    case TJ_LIST: return "list";
    case TJ_TUPLE: return v.l->group ? "_GroupTuple" : "tuple";
    case TJ_DICT: return "dict";
    case TJ_RANGE: return "range";
    case TJ_VIEW: return view_names[v.view->what];
    case TJ_NS: return "TemplateNamespace";
    case TJ_MACRO: return "Macro";
    case TJ_FUNC: return v.func == 1 ? "TemplateDict" : "function";
    case TJ_METHOD: return "builtin_function_or_method";
    case TJ_LOOP: return "LoopContext";
    case TJ_ITER: return v.it->pyname;
    case TJ_CYCLER: return "Cycler";
    case TJ_JOINER: return "Joiner";
    case TJ_SLICE: return "slice";
    case TJ_SELF: return "TemplateReference";
    case TJ_BLOCKREF: return "BlockReference";
    }
    return "object";
}

double tj_as_float(struct tj_val v) { return v.type == TJ_FLOAT ? v.f : (double)tj_as_int(v); }

bool tj_has_len(struct tj_val v) {
    switch (v.type) {
    case TJ_UNDEF:
    case TJ_STR:
    case TJ_LIST:
    case TJ_TUPLE:
    case TJ_DICT:
    case TJ_RANGE:
    case TJ_VIEW:
    case TJ_LOOP: return true;
    default: return false;
    }
}

int64_t tj_len(struct tj_rt *R, struct tj_val v) {
    switch (v.type) {
    case TJ_UNDEF: return 0;
    case TJ_STR: return (int64_t)tj_str_chars(R, v.s);
    case TJ_LIST:
    case TJ_TUPLE: return (int64_t)v.l->n;
    case TJ_DICT: return (int64_t)v.d->n;
    case TJ_RANGE: return v.r->len;
    case TJ_VIEW: return (int64_t)v.view->d->n;
    case TJ_LOOP: return tj_loop_length(R, v.loop);
    default: tj_raise(R, PL_INVALID, "object of type '%s' has no len()", tj_type_name(v));
    }
}

bool tj_truth(struct tj_rt *R, struct tj_val v) {
    switch (v.type) {
    case TJ_MISSING:
    case TJ_UNDEF:
    case TJ_NONE: return false;
    case TJ_BOOL: return v.b;
    case TJ_INT: return v.i != 0;
    case TJ_FLOAT: return v.f != 0;
    case TJ_STR: return v.s->len > 0;
    default: return tj_has_len(v) ? tj_len(R, v) != 0 : true;
    }
}

bool tj_same(struct tj_val a, struct tj_val b) {
    if (a.type != b.type) return false;
    switch (a.type) {
    case TJ_NONE: return true;
    case TJ_BOOL: return a.b == b.b;
    case TJ_INT: return a.i == b.i && a.i >= -5 && a.i <= 256; /* CPython's small integers */
    case TJ_FLOAT: return false;
    case TJ_STR: return a.s == b.s || (a.s->len <= 1 && tj_str_eq(a.s, b.s));
    case TJ_FUNC: return a.func == b.func;
    case TJ_TUPLE: return a.l == b.l || (a.l->n == 0 && b.l->n == 0);
    default: return a.s == b.s; /* any pointer member */
    }
}

static bool num_eq(struct tj_val a, struct tj_val b) {
    if (a.type != TJ_FLOAT && b.type != TJ_FLOAT) return tj_as_int(a) == tj_as_int(b);
    if (a.type == TJ_FLOAT && b.type == TJ_FLOAT) return a.f == b.f;
    double f = a.type == TJ_FLOAT ? a.f : b.f;
    int64_t i = a.type == TJ_FLOAT ? tj_as_int(b) : tj_as_int(a);
    if (!(f >= -9223372036854775808.0 && f < 9223372036854775808.0)) return false;
    return f == floor(f) && (int64_t)f == i;
}

static bool list_eq(struct tj_rt *R, const struct tj_list *a, const struct tj_list *b) {
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!tj_eq(R, a->v[i], b->v[i])) return false;
    return true;
}

static bool dict_eq(struct tj_rt *R, const struct tj_dict *a, const struct tj_dict *b) {
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        struct tj_val *other = tj_dict_get(R, b, a->e[i].k);
        if (other == NULL || !tj_eq(R, a->e[i].v, *other)) return false;
    }
    return true;
}

static bool range_eq(const struct tj_range *a, const struct tj_range *b) {
    if (a->len != b->len) return false;
    return a->len == 0 || (a->start == b->start && (a->len == 1 || a->step == b->step));
}

static bool view_eq(struct tj_rt *R, const struct tj_view *a, const struct tj_view *b) {
    if (a->what == 1 || b->what == 1) return a == b;
    if (a->d->n != b->d->n || a->what != b->what) return false;
    for (size_t i = 0; i < a->d->n; i++) {
        struct tj_val *other = tj_dict_get(R, b->d, a->d->e[i].k);
        if (other == NULL || (a->what == 2 && !tj_eq(R, a->d->e[i].v, *other))) return false;
    }
    return true;
}

bool tj_eq(struct tj_rt *R, struct tj_val a, struct tj_val b) {
    if (tj_is_num(a) && tj_is_num(b)) return num_eq(a, b);
    if (a.type != b.type) return false;
    bool equal;
    tj_charge(R, 1);
    switch (a.type) {
    case TJ_UNDEF:
    case TJ_NONE: return true;
    case TJ_STR:
        if (a.s->len == b.s->len) tj_charge(R, a.s->len / 64);
        return tj_str_eq(a.s, b.s);
    case TJ_LIST:
    case TJ_TUPLE:
        if (a.l == b.l) return true;
        tj_enter(R);
        equal = list_eq(R, a.l, b.l);
        tj_leave(R);
        return equal;
    case TJ_DICT:
        if (a.d == b.d) return true;
        tj_enter(R);
        equal = dict_eq(R, a.d, b.d);
        tj_leave(R);
        return equal;
    case TJ_RANGE: return range_eq(a.r, b.r);
    case TJ_VIEW: return view_eq(R, a.view, b.view);
    case TJ_FUNC: return a.func == b.func;
    case TJ_METHOD: return a.meth->id == b.meth->id && tj_same(a.meth->self, b.meth->self);
    default: return a.s == b.s;
    }
}

static int num_cmp(struct tj_val a, struct tj_val b, bool *nan) {
    if (a.type != TJ_FLOAT && b.type != TJ_FLOAT) {
        int64_t x = tj_as_int(a), y = tj_as_int(b);
        return (x > y) - (x < y);
    }
    if (a.type == TJ_FLOAT && b.type == TJ_FLOAT) {
        *nan = isnan(a.f) || isnan(b.f);
        return (a.f > b.f) - (a.f < b.f);
    }
    bool flip = b.type == TJ_FLOAT;
    double f = flip ? b.f : a.f;
    int64_t i = tj_as_int(flip ? a : b);
    *nan = isnan(f);
    int c; /* f against i, exactly */
    if (f >= 9223372036854775808.0)
        c = 1;
    else if (f < -9223372036854775808.0)
        c = -1;
    else {
        double whole = floor(f);
        int64_t w = (int64_t)whole;
        c = w != i ? (w > i ? 1 : -1) : f > whole;
    }
    return flip ? -c : c;
}

static bool cmp_op(int c, const char *op) {
    if (op[0] == '<') return op[1] == '=' ? c <= 0 : c < 0;
    return op[1] == '=' ? c >= 0 : c > 0;
}

static bool list_order(struct tj_rt *R, struct tj_val a, struct tj_val b, const char *op) {
    size_t n = PL_MIN(a.l->n, b.l->n);
    for (size_t i = 0; i < n; i++) {
        if (!tj_eq(R, a.l->v[i], b.l->v[i])) {
            tj_enter(R);
            bool r = tj_order(R, a.l->v[i], b.l->v[i], op);
            tj_leave(R);
            return r;
        }
    }
    return cmp_op((a.l->n > b.l->n) - (a.l->n < b.l->n), op);
}

bool tj_order(struct tj_rt *R, struct tj_val a, struct tj_val b, const char *op) {
    tj_charge(R, 1);
    if (tj_is_num(a) && tj_is_num(b)) {
        bool nan = false;
        int c = num_cmp(a, b, &nan);
        return !nan && cmp_op(c, op);
    }
    if (a.type == TJ_STR && b.type == TJ_STR) return cmp_op(tj_str_cmp(a.s, b.s), op);
    if ((a.type == TJ_LIST || a.type == TJ_TUPLE) && a.type == b.type) return list_order(R, a, b, op);
    if (a.type == TJ_UNDEF) tj_undef_fail(R, a);
    if (b.type == TJ_UNDEF) tj_undef_fail(R, b);
    tj_raise(R, PL_INVALID, "'%s' not supported between instances of '%s' and '%s'", op, tj_type_name(a), tj_type_name(b));
}

bool tj_any_taint(struct tj_val v) {
    switch (v.type) {
    case TJ_BOOL:
    case TJ_INT:
    case TJ_FLOAT: return v.taint;
    case TJ_STR: return v.s->nspans > 0;
    case TJ_RANGE: return v.r->taint;
    case TJ_LIST:
    case TJ_TUPLE: return v.taint || v.l->n > 0;
    case TJ_DICT:
    case TJ_VIEW: return true;
    default: return false;
    }
}

/* --- printing --- */

size_t tj_float_repr(double f, char out[40]) {
    if (isnan(f)) return (size_t)snprintf(out, 40, "nan");
    if (isinf(f)) return (size_t)snprintf(out, 40, f < 0 ? "-inf" : "inf");
    char sci[40];
    int prec = 0;
    for (; prec < 17; prec++) { /* shortest digits that read back the same */
        snprintf(sci, sizeof sci, "%.*e", prec, f);
        if (strtod(sci, NULL) == f) break;
    }
    char digits[24] = {0};
    size_t n = 0;
    const char *p = sci;
    bool neg = *p == '-';
    for (; *p != 'e'; p++)
        if (*p >= '0' && *p <= '9') digits[n++] = *p;
    int exp10 = atoi(p + 1);
    size_t o = 0;
    if (neg) out[o++] = '-';
    if (exp10 < -4 || exp10 >= 16) {
        out[o++] = digits[0];
        if (n > 1) {
            out[o++] = '.';
            memcpy(out + o, digits + 1, n - 1);
            o += n - 1;
        }
        return o + (size_t)snprintf(out + o, 40 - o, "e%c%02d", exp10 < 0 ? '-' : '+', abs(exp10));
    }
    if (exp10 < 0) {
        out[o++] = '0';
        out[o++] = '.';
        for (int i = -1; i > exp10; i--) out[o++] = '0';
        memcpy(out + o, digits, n);
        o += n;
    } else {
        for (size_t i = 0; i < PL_MAX(n, (size_t)exp10 + 1); i++) {
            if (i == (size_t)exp10 + 1) out[o++] = '.';
            out[o++] = i < n ? digits[i] : '0';
        }
        if (n <= (size_t)exp10 + 1) {
            out[o++] = '.';
            out[o++] = '0';
        }
    }
    out[o] = '\0';
    return o;
}

static void emit_hex_escape(struct tj_sb *b, uint32_t cp, bool taint) {
    char text[16];
    int n = cp <= 0xFF     ? snprintf(text, sizeof text, "\\x%02x", cp)
            : cp <= 0xFFFF ? snprintf(text, sizeof text, "\\u%04x", cp)
                           : snprintf(text, sizeof text, "\\U%08x", cp);
    tj_sb_raw(b, text, (size_t)n, taint);
}

static void emit_str_repr(struct tj_sb *b, const struct tj_str *s) {
    bool single = memchr(s->data, '\'', s->len) != NULL, dbl = memchr(s->data, '"', s->len) != NULL;
    char quote = single && !dbl ? '"' : '\'';
    tj_sb_char(b, quote, false);
    size_t plain = 0;
    for (size_t i = 0, next; i < s->len; i = next) {
        uint32_t cp = tj_cp_at(s->data, s->len, i, &next);
        const char *esc = cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : cp == '\t' ? "\\t" : cp == '\\' ? "\\\\" : NULL;
        if (cp == (uint32_t)quote) esc = quote == '"' ? "\\\"" : "\\'";
        bool printable = cp >= 32 && cp < 127 ? true : tj_is_printable(cp);
        if (esc == NULL && printable) continue;
        tj_sb_sub(b, s, plain, i);
        plain = next;
        if (esc != NULL)
            tj_sb_c(b, esc, tj_str_tainted_at(s, i));
        else
            emit_hex_escape(b, cp, tj_str_tainted_at(s, i));
    }
    tj_sb_sub(b, s, plain, s->len);
    tj_sb_char(b, quote, false);
}

static void emit_seq_repr(struct tj_sb *b, const struct tj_list *l, char open, char close) {
    tj_sb_char(b, open, false);
    for (size_t i = 0; i < l->n; i++) {
        if (i > 0) tj_sb_c(b, ", ", false);
        tj_emit_repr(b, l->v[i]);
    }
    if (open == '(' && l->n == 1) tj_sb_char(b, ',', false);
    tj_sb_char(b, close, false);
}

static void emit_dict_repr(struct tj_sb *b, const struct tj_dict *d) {
    tj_sb_char(b, '{', false);
    for (size_t i = 0; i < d->n; i++) {
        if (i > 0) tj_sb_c(b, ", ", false);
        tj_emit_repr(b, d->e[i].k);
        tj_sb_c(b, ": ", false);
        tj_emit_repr(b, d->e[i].v);
    }
    tj_sb_char(b, '}', false);
}

static void emit_view_repr(struct tj_sb *b, const struct tj_view *v) {
    tj_sb_c(b, tj_type_name((struct tj_val){.type = TJ_VIEW, .view = (struct tj_view *)(uintptr_t)v}), false);
    tj_sb_c(b, "([", false);
    for (size_t i = 0; i < v->d->n; i++) {
        if (i > 0) tj_sb_c(b, ", ", false);
        if (v->what == 2) tj_sb_c(b, "(", false);
        if (v->what != 1) tj_emit_repr(b, v->d->e[i].k);
        if (v->what == 2) tj_sb_c(b, ", ", false);
        if (v->what != 0) tj_emit_repr(b, v->d->e[i].v);
        if (v->what == 2) tj_sb_c(b, ")", false);
    }
    tj_sb_c(b, "])", false);
}

static void emit_range_repr(struct tj_sb *b, const struct tj_range *r) {
    char text[96];
    if (r->step == 1)
        snprintf(text, sizeof text, "range(%lld, %lld)", (long long)r->start, (long long)r->stop);
    else
        snprintf(text, sizeof text, "range(%lld, %lld, %lld)", (long long)r->start, (long long)r->stop, (long long)r->step);
    tj_sb_c(b, text, r->taint);
}

static void emit_object_repr(struct tj_sb *b, struct tj_val v) {
    char text[128];
    switch (v.type) {
    case TJ_MACRO:
        if (v.m->node->name == NULL) {
            tj_sb_c(b, "<Macro anonymous>", false);
        } else {
            tj_sb_c(b, "<Macro ", false);
            emit_str_repr(b, v.m->node->name);
            tj_sb_c(b, ">", false);
        }
        return;
    case TJ_LOOP:
        snprintf(text, sizeof text, "<LoopContext %lld/%lld>", (long long)v.loop->index0 + 1,
                 (long long)tj_loop_length(b->R, v.loop));
        tj_sb_c(b, text, false);
        return;
    case TJ_SELF: tj_sb_c(b, "<TemplateReference None>", false); return;
    default: /* Python prints an address, which no template can rely on */
        snprintf(text, sizeof text, "<%s object>", tj_type_name(v));
        tj_sb_c(b, text, false);
    }
}

void tj_emit_repr(struct tj_sb *b, struct tj_val v) {
    char text[40];
    tj_charge(b->R, 1);
    tj_enter(b->R);
    switch (v.type) {
    case TJ_MISSING:
    case TJ_UNDEF: tj_sb_c(b, "Undefined", false); break;
    case TJ_NONE: tj_sb_c(b, "None", false); break;
    case TJ_BOOL: tj_sb_c(b, v.b ? "True" : "False", v.taint); break;
    case TJ_INT:
        snprintf(text, sizeof text, "%lld", (long long)v.i);
        tj_sb_c(b, text, v.taint);
        break;
    case TJ_FLOAT: tj_sb_raw(b, text, tj_float_repr(v.f, text), v.taint); break;
    case TJ_STR:
        if (v.s->markup) tj_sb_c(b, "Markup(", false);
        emit_str_repr(b, v.s);
        if (v.s->markup) tj_sb_c(b, ")", false);
        break;
    case TJ_LIST: emit_seq_repr(b, v.l, '[', ']'); break;
    case TJ_TUPLE: emit_seq_repr(b, v.l, '(', ')'); break;
    case TJ_DICT: emit_dict_repr(b, v.d); break;
    case TJ_RANGE: emit_range_repr(b, v.r); break;
    case TJ_VIEW: emit_view_repr(b, v.view); break;
    case TJ_NS:
        tj_sb_c(b, "<Namespace ", false);
        emit_dict_repr(b, v.d);
        tj_sb_c(b, ">", false);
        break;
    case TJ_SLICE:
        tj_sb_c(b, "slice(", false);
        tj_emit_repr(b, v.slice->start);
        tj_sb_c(b, ", ", false);
        tj_emit_repr(b, v.slice->stop);
        tj_sb_c(b, ", ", false);
        tj_emit_repr(b, v.slice->step);
        tj_sb_c(b, ")", false);
        break;
    default: emit_object_repr(b, v);
    }
    tj_leave(b->R);
}

void tj_emit_str(struct tj_sb *b, struct tj_val v) {
    if (v.type == TJ_STR)
        tj_sb_str(b, v.s);
    else if (v.type != TJ_UNDEF)
        tj_emit_repr(b, v);
}

struct tj_str *tj_to_str(struct tj_rt *R, struct tj_val v) {
    if (v.type == TJ_STR) return v.s;
    struct tj_sb b;
    tj_sb_init(R, &b);
    tj_emit_str(&b, v);
    return tj_sb_done(&b);
}

struct tj_str *tj_to_repr(struct tj_rt *R, struct tj_val v) {
    struct tj_sb b;
    tj_sb_init(R, &b);
    tj_emit_repr(&b, v);
    return tj_sb_done(&b);
}
