/* format - the % operator and str.format of Python, over values with taint. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/rt.h"

struct spec { /* both kinds of formatting end here */
    struct tj_str *fill;
    char align; /* '<' '>' '^' '=' or 0 */
    char sign;  /* '+' '-' ' ' or 0 */
    bool alt, zero, has_prec;
    char group; /* ',' '_' or 0 */
    int64_t width, prec;
    char type; /* 0: none */
};

enum { MAX_PREC = 1000 };

static void add_padded(struct tj_sb *b, struct tj_str *body, const struct spec *f, char dflt) {
    char align = f->align != 0 ? f->align : dflt;
    struct tj_str *fill = f->fill != NULL ? f->fill : tj_str_borrow(b->R, " ", 1, false);
    int64_t len = (int64_t)tj_str_chars(b->R, body), pad = f->width > len ? f->width - len : 0;
    int64_t left = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
    tj_sb_repeat(b, fill, left);
    tj_sb_str(b, body);
    tj_sb_repeat(b, fill, pad - left);
}

/* Digits with thousands separators. */
static void group_digits(char *out, size_t cap, const char *digits, char sep, int every) {
    size_t n = strspn(digits, "0123456789abcdefABCDEF"), o = 0;
    for (size_t i = 0; i < n && o + 2 < cap; i++) {
        if (i > 0 && (n - i) % (size_t)every == 0) out[o++] = sep;
        out[o++] = digits[i];
    }
    snprintf(out + o, cap - o, "%s", digits + n);
}

/* sign, prefix ("0x") and digits of a number, padded as the spec says */
static void add_number(struct tj_sb *b, bool neg, const char *prefix, const char *digits, const struct spec *f, bool taint) {
    char grouped[3 * 512];
    if (f->group != 0) {
        int every = f->type == 'x' || f->type == 'X' || f->type == 'b' || f->type == 'o' ? 4 : 3;
        group_digits(grouped, sizeof grouped, digits, f->group, every);
        digits = grouped;
    }
    char head[8];
    snprintf(head, sizeof head, "%s%s", neg ? "-" : f->sign == '+' ? "+" : f->sign == ' ' ? " " : "", prefix);
    bool inner = f->align == '=' || (f->align == 0 && f->zero);
    struct tj_sb body;
    tj_sb_init(b->R, &body);
    tj_sb_c(&body, head, taint);
    if (inner) {
        int64_t len = (int64_t)(strlen(head) + strlen(digits));
        struct tj_str *fill = f->fill != NULL ? f->fill : tj_str_borrow(b->R, f->zero ? "0" : " ", 1, false);
        if (f->group == 0) {
            tj_sb_repeat(&body, fill, f->width - len);
        } else if (f->width > len) { /* zeros are grouped too */
            char raw[1024];
            size_t n = 0;
            for (const char *p = digits; *p != '\0' && n < 400; p++)
                if (*p != f->group) raw[n++] = *p;
            raw[n] = '\0';
            if (f->zero && f->fill == NULL && f->width < 500) {
                for (int64_t have = len; have < f->width;) {
                    memmove(raw + 1, raw, strlen(raw) + 1);
                    raw[0] = '0';
                    group_digits(grouped, sizeof grouped, raw, f->group, 3);
                    have = (int64_t)(strlen(head) + strlen(grouped));
                }
                digits = grouped;
            } else {
                tj_sb_repeat(&body, fill, f->width - len);
            }
        }
    }
    tj_sb_c(&body, digits, taint);
    struct spec plain = *f;
    if (inner) plain.width = 0;
    if (plain.align == '=') plain.align = 0;
    add_padded(b, tj_sb_done(&body), &plain, '>');
}

static void format_int(struct tj_sb *b, int64_t i, const struct spec *f, bool taint) {
    char digits[80];
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    const char *prefix = "";
    size_t n = 0;
    switch (f->type) {
    case 'x':
    case 'X':
        snprintf(digits, sizeof digits, f->type == 'x' ? "%llx" : "%llX", (unsigned long long)u);
        prefix = f->type == 'x' ? "0x" : "0X";
        break;
    case 'o':
        snprintf(digits, sizeof digits, "%llo", (unsigned long long)u);
        prefix = "0o";
        break;
    case 'b':
        for (int k = 63; k >= 0; k--)
            if (n > 0 || (u >> k & 1) != 0 || k == 0) digits[n++] = (char)('0' + (u >> k & 1));
        digits[n] = '\0';
        prefix = "0b";
        break;
    default: snprintf(digits, sizeof digits, "%llu", (unsigned long long)u);
    }
    char zeros[600];
    if (f->has_prec && f->prec > (int64_t)strlen(digits)) { /* only % formatting */
        snprintf(zeros, sizeof zeros, "%0*d%s", (int)PL_MIN(f->prec - (int64_t)strlen(digits), 500), 0, digits);
        add_number(b, i < 0, f->alt ? prefix : "", zeros, f, taint);
        return;
    }
    add_number(b, i < 0, f->alt ? prefix : "", digits, f, taint);
}

static void format_float(struct tj_sb *b, double v, const struct spec *f, bool taint) {
    char text[1600], fmt[16];
    char type = f->type == 0 ? 'g' : f->type == 'F' && !isfinite(v) ? 'F' : f->type;
    int prec = f->has_prec ? (int)f->prec : 6;
    bool neg = signbit(v) && !isnan(v);
    double a = fabs(v);
    if (!isfinite(a)) {
        bool up = type == 'E' || type == 'F' || type == 'G';
        add_number(b, neg, "", isnan(a) ? (up ? "NAN" : "nan") : (up ? "INF" : "inf"), f, taint);
        return;
    }
    if (f->type == 0 && !f->has_prec) {
        tj_float_repr(a, text);
        text[tj_float_repr(a, text)] = '\0';
        add_number(b, neg, "", text, f, taint);
        return;
    }
    if (type == '%') {
        snprintf(text, sizeof text, "%.*f%%", prec, a * 100);
        add_number(b, neg, "", text, f, taint);
        return;
    }
    if (type == 'n') type = 'g';
    snprintf(fmt, sizeof fmt, "%%%s.*%c", f->alt ? "#" : "", type);
    if ((type == 'g' || type == 'G') && prec == 0) prec = 1;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(text, sizeof text, fmt, prec, a);
#pragma GCC diagnostic pop
    if (f->type == 0) { /* like g, but with a digit after the point and repr's switch to exponents */
        char *e = strchr(text, 'e');
        if (e == NULL && strchr(text, '.') == NULL) {
            int digits = (int)strlen(text);
            if (digits >= prec && prec > 0 && digits > 1 && digits == prec)
                snprintf(text, sizeof text, "%.*e", prec - 1, a);
            else
                strcat(text, ".0");
            if (strchr(text, 'e') != NULL) { /* trailing zeros of the mantissa go */
                char *ex = strchr(text, 'e'), tail[16];
                snprintf(tail, sizeof tail, "%s", ex);
                char *p = ex;
                while (p > text && p[-1] == '0') p--;
                if (p > text && p[-1] == '.') p--;
                snprintf(p, 16, "%s", tail);
            }
        }
    }
    add_number(b, neg, "", text, f, taint);
}

/* --- % --- */

struct percent {
    struct tj_rt *R;
    struct tj_str *s;
    struct tj_val args;
    size_t used, pos;
    bool tuple, mapping, used_mapping;
};

static struct tj_val next_arg(struct percent *p) {
    size_t n = p->tuple ? p->args.l->n : 1;
    if (p->used >= n) tj_raise(p->R, PL_INVALID, "not enough arguments for format string");
    return p->tuple ? p->args.l->v[p->used++] : (p->used++, p->args);
}

static char peek(const struct percent *p) { return p->pos < p->s->len ? p->s->data[p->pos] : '\0'; }

static int64_t percent_number(struct percent *p, const char *what) {
    if (peek(p) == '*') {
        p->pos++;
        struct tj_val v = next_arg(p);
        if (!tj_is_int(v)) tj_raise(p->R, PL_INVALID, "* wants int");
        int64_t n = tj_as_int(v);
        if (n > INT32_MAX || n < -INT32_MAX) tj_raise(p->R, PL_INVALID, "%s too big", what);
        return n;
    }
    int64_t n = 0;
    while (isdigit((unsigned char)peek(p))) {
        n = n * 10 + (peek(p) - '0');
        if (n > INT32_MAX) tj_raise(p->R, PL_INVALID, "%s too big", what);
        p->pos++;
    }
    return n;
}

static struct tj_val mapping_key(struct percent *p) {
    size_t begin = ++p->pos, depth = 1;
    if (!p->mapping) tj_raise(p->R, PL_INVALID, "format requires a mapping");
    for (; p->pos < p->s->len && depth > 0; p->pos++) {
        char c = p->s->data[p->pos];
        depth += c == '(';
        depth -= c == ')';
    }
    if (depth > 0) tj_raise(p->R, PL_INVALID, "incomplete format key");
    struct tj_str *key = tj_str_sub(p->R, p->s, begin, p->pos - 1);
    p->used_mapping = true;
    if (p->args.type == TJ_UNDEF) tj_undef_fail(p->R, p->args);
    if (p->args.type != TJ_DICT) {
        if (p->args.type == TJ_LIST || p->args.type == TJ_RANGE)
            tj_raise(p->R, PL_INVALID, "%s indices must be integers or slices, not str", tj_type_name(p->args));
        tj_raise(p->R, PL_INVALID, "format requires a mapping");
    }
    struct tj_val *v = tj_dict_get(p->R, p->args.d, tj_strv(key));
    if (v == NULL) {
        struct tj_str *r = tj_to_repr(p->R, tj_strv(key));
        tj_raise(p->R, PL_INVALID, "%.*s", (int)PL_MIN(r->len, 500), r->data);
    }
    return *v;
}

/* The character of that number. */
static struct tj_str *character(struct tj_rt *R, struct tj_val v) {
    int64_t cp = tj_as_int(v);
    if (cp < 0 || cp > 0x10FFFF) tj_raise(R, PL_INVALID, "%%c arg not in range(0x110000)");
    if (cp >= 0xD800 && cp <= 0xDFFF) tj_raise(R, PL_INVALID, "surrogates not allowed");
    struct tj_sb one;
    tj_sb_init(R, &one);
    tj_sb_cp(&one, (uint32_t)cp, v.taint);
    return tj_sb_done(&one);
}

static void percent_text(struct percent *p, struct tj_sb *b, struct tj_val v, struct spec *f) {
    struct tj_rt *R = p->R;
    struct tj_str *t;
    if (f->type == 'c') {
        if (v.type == TJ_STR) {
            if (tj_str_chars(R, v.s) != 1) tj_raise(R, PL_INVALID, "%%c requires int or char");
            t = v.s;
        } else {
            if (!tj_is_int(v)) tj_raise(R, PL_INVALID, "%%c requires int or char");
            t = character(R, v);
        }
        f->has_prec = false;
    } else if (f->type == 's') {
        t = p->s->markup ? tj_escape(R, v) : tj_to_str(R, v);
    } else {
        t = tj_to_repr(R, v);
        if (f->type == 'a') t = tj_to_str(R, tj_json_dumps(R, tj_strv(t), true, tj_none(), tj_none(), false));
        if (f->type == 'a') t = tj_str_sub(R, t, 1, t->len - 1);
    }
    if (f->has_prec && f->prec < (int64_t)tj_str_chars(R, t)) t = tj_str_sub(R, t, 0, tj_str_offset(R, t, (size_t)f->prec));
    add_padded(b, t, f, '>');
}

static void percent_value(struct percent *p, struct tj_sb *b, struct tj_val v, struct spec *f) {
    struct tj_rt *R = p->R;
    switch (f->type) {
    case 's':
    case 'r':
    case 'a':
    case 'c':
        f->zero = false;
        percent_text(p, b, v, f);
        return;
    case 'd':
    case 'i':
    case 'u':
        if (v.type == TJ_FLOAT) {
            if (isnan(v.f)) tj_raise(R, PL_INVALID, "cannot convert float NaN to integer");
            if (isinf(v.f)) tj_raise(R, PL_INVALID, "cannot convert float infinity to integer");
            if (fabs(v.f) >= 9.2e18) tj_raise(R, PL_LIMIT, "an integer in the template does not fit 64 bits");
            v = tj_tainted(tj_int((int64_t)v.f), v.taint);
        }
        if (v.type == TJ_UNDEF) tj_undef_fail(R, v);
        if (!tj_is_int(v))
            tj_raise(R, PL_INVALID, "%%%c format: a real number is required, not %s", f->type, tj_type_name(v));
        f->type = 'd';
        format_int(b, tj_as_int(v), f, v.taint);
        return;
    case 'x':
    case 'X':
    case 'o':
        if (!tj_is_int(v)) tj_raise(R, PL_INVALID, "%%%c format: an integer is required, not %s", f->type, tj_type_name(v));
        format_int(b, tj_as_int(v), f, v.taint);
        return;
    default:
        if (v.type == TJ_UNDEF) tj_undef_fail(R, v);
        if (!tj_is_num(v)) tj_raise(R, PL_INVALID, "must be real number, not %s", tj_type_name(v));
        if (f->has_prec && f->prec > MAX_PREC) tj_raise(R, PL_LIMIT, "a precision above %d", MAX_PREC);
        format_float(b, tj_as_float(v), f, v.taint);
    }
}

static void percent_one(struct percent *p, struct tj_sb *b) {
    struct spec f = {0};
    struct tj_val v = tj_missing();
    if (peek(p) == '(') v = mapping_key(p);
    for (char c; (c = peek(p)) != '\0' && strchr("-+ #0", c) != NULL; p->pos++) {
        if (c == '-') f.align = '<';
        if (c == '+') f.sign = '+';
        if (c == ' ' && f.sign == 0) f.sign = ' ';
        if (c == '#') f.alt = true;
        if (c == '0') f.zero = true;
    }
    f.width = percent_number(p, "width");
    if (f.width < 0) {
        f.align = '<';
        f.width = -f.width;
    }
    if (peek(p) == '.') {
        p->pos++;
        f.has_prec = true;
        f.prec = percent_number(p, "precision");
        if (f.prec < 0) f.prec = 0;
    }
    while (peek(p) == 'l' || peek(p) == 'h' || peek(p) == 'L') p->pos++;
    if (p->pos >= p->s->len) tj_raise(p->R, PL_INVALID, "incomplete format");
    f.type = p->s->data[p->pos++];
    if (f.type == '%') {
        tj_sb_char(b, '%', false);
        return;
    }
    if (strchr("sraciduoxXeEfFgG", f.type) == NULL) {
        size_t next;
        uint32_t cp = tj_cp_at(p->s->data, p->s->len, p->pos - 1, &next);
        tj_raise(p->R, PL_INVALID, "unsupported format character '%c' (0x%x) at index %lld",
                 cp < 128 && cp > 31 ? (char)cp : '?', cp, (long long)p->pos - 1);
    }
    if (v.type == TJ_MISSING) v = next_arg(p);
    percent_value(p, b, v, &f);
}

struct tj_str *tj_percent_format(struct tj_rt *R, struct tj_str *s, struct tj_val args) {
    struct percent p = {.R = R, .s = s, .args = args};
    p.tuple = args.type == TJ_TUPLE;
    p.mapping = args.type == TJ_DICT || args.type == TJ_UNDEF || args.type == TJ_LIST || args.type == TJ_RANGE;
    struct tj_sb b;
    tj_sb_init(R, &b);
    while (p.pos < s->len) {
        const char *hit = memchr(s->data + p.pos, '%', s->len - p.pos);
        size_t end = hit == NULL ? s->len : (size_t)(hit - s->data);
        tj_sb_sub(&b, s, p.pos, end);
        p.pos = end + 1;
        if (hit == NULL) break;
        tj_charge(R, 1);
        percent_one(&p, &b);
    }
    size_t n = p.tuple ? args.l->n : 1;
    if (p.used < n && !p.mapping) tj_raise(R, PL_INVALID, "not all arguments converted during string formatting");
    struct tj_str *r = tj_sb_done(&b);
    r->markup = s->markup;
    return r;
}

/* --- {} --- */

struct brace {
    struct tj_rt *R;
    const struct tj_args *a;
    int64_t next; /* automatic numbering; -1 once a field was numbered by hand */
    bool markup;
};

static void parse_spec(struct tj_rt *R, struct tj_str *s, struct spec *f) {
    size_t i = 0, next;
    *f = (struct spec){0};
    if (s->len > 0) {
        tj_cp_at(s->data, s->len, 0, &next);
        if (next < s->len && strchr("<>=^", s->data[next]) != NULL) {
            f->fill = tj_str_sub(R, s, 0, next);
            f->align = s->data[next];
            i = next + 1;
        } else if (strchr("<>=^", s->data[0]) != NULL) {
            f->align = s->data[0];
            i = 1;
        }
    }
    if (i < s->len && strchr("+- ", s->data[i]) != NULL) f->sign = s->data[i++];
    if (i < s->len && s->data[i] == 'z') i++;
    if (i < s->len && s->data[i] == '#') f->alt = s->data[i++] == '#';
    if (i < s->len && s->data[i] == '0') {
        f->zero = f->fill == NULL;
        i++;
    }
    for (; i < s->len && isdigit((unsigned char)s->data[i]); i++) {
        f->width = f->width * 10 + (s->data[i] - '0');
        if (f->width > INT32_MAX) tj_raise(R, PL_INVALID, "Too many decimal digits in format string");
    }
    if (i < s->len && (s->data[i] == ',' || s->data[i] == '_')) f->group = s->data[i++];
    if (i < s->len && s->data[i] == '.') {
        size_t begin = ++i;
        f->has_prec = true;
        for (; i < s->len && isdigit((unsigned char)s->data[i]); i++) {
            f->prec = f->prec * 10 + (s->data[i] - '0');
            if (f->prec > INT32_MAX) tj_raise(R, PL_INVALID, "Too many decimal digits in format string");
        }
        if (i == begin) tj_raise(R, PL_INVALID, "Format specifier missing precision");
    }
    if (i < s->len) f->type = s->data[i++];
    if (i < s->len) tj_raise(R, PL_INVALID, "Invalid format specifier '%.*s'", (int)PL_MIN(s->len, 200), s->data);
}

static _Noreturn void bad_code(struct tj_rt *R, char c, struct tj_val v) {
    tj_raise(R, PL_INVALID, "Unknown format code '%c' for object of type '%s'", c, tj_type_name(v));
}

static void format_value(struct brace *x, struct tj_sb *b, struct tj_val v, struct tj_str *spec) {
    struct tj_rt *R = x->R;
    if (spec->len == 0) {
        if (x->markup)
            tj_sb_str(b, tj_escape(R, v));
        else
            tj_emit_str(b, v);
        return;
    }
    struct spec f;
    if (v.type == TJ_STR) {
        parse_spec(R, spec, &f);
        if (f.type != 0 && f.type != 's') bad_code(R, f.type, v);
        if (f.sign != 0) tj_raise(R, PL_INVALID, "Sign not allowed in string format specifier");
        if (f.alt) tj_raise(R, PL_INVALID, "Alternate form (#) not allowed in string format specifier");
        if (f.align == '=') tj_raise(R, PL_INVALID, "'=' alignment not allowed in string format specifier");
        if (f.group != 0) tj_raise(R, PL_INVALID, "Cannot specify '%c' with 's'.", f.group);
        if (f.zero && f.align == 0) f.align = '<';
        if (f.zero && f.fill == NULL) f.fill = tj_str_borrow(R, "0", 1, false);
        struct tj_str *t = v.s;
        if (f.has_prec && f.prec < (int64_t)tj_str_chars(R, t)) t = tj_str_sub(R, t, 0, tj_str_offset(R, t, (size_t)f.prec));
        add_padded(b, t, &f, '<');
        return;
    }
    if (!tj_is_num(v)) tj_raise(R, PL_INVALID, "unsupported format string passed to %s.__format__", tj_type_name(v));
    parse_spec(R, spec, &f);
    if (f.zero && f.align != 0 && f.fill == NULL) f.fill = tj_str_borrow(R, "0", 1, false);
    if (f.has_prec && f.prec > MAX_PREC) tj_raise(R, PL_LIMIT, "a precision above %d", MAX_PREC);
    bool float_code = f.type != 0 && strchr("eEfFgG%", f.type) != NULL;
    if (v.type == TJ_FLOAT || float_code) {
        if (f.type != 0 && !float_code && f.type != 'n') bad_code(R, f.type, v);
        format_float(b, tj_as_float(v), &f, v.taint);
        return;
    }
    if (f.has_prec) tj_raise(R, PL_INVALID, "Precision not allowed in integer format specifier");
    if (f.type == 'c') {
        add_padded(b, character(R, v), &f, '<');
        return;
    }
    if (f.type != 0 && strchr("bdnoxX", f.type) == NULL) bad_code(R, f.type, v);
    if (f.group == ',' && f.type != 0 && f.type != 'd') tj_raise(R, PL_INVALID, "Cannot specify ',' with '%c'.", f.type);
    format_int(b, tj_as_int(v), &f, v.taint);
}

static struct tj_val field_value(struct brace *x, struct tj_str *name) {
    struct tj_rt *R = x->R;
    size_t end = 0;
    while (end < name->len && name->data[end] != '.' && name->data[end] != '[') end++;
    struct tj_str *first = tj_str_sub(R, name, 0, end);
    int64_t index = -1;
    bool over;
    struct tj_val v = tj_missing();
    if (end == 0) {
        if (x->next < 0)
            tj_raise(R, PL_INVALID, "cannot switch from manual field specification to automatic field numbering");
        index = x->next++;
    } else if (strspn(first->data, "0123456789") >= end && tj_parse_int(first, 10, &index, &over)) {
        if (x->next > 0)
            tj_raise(R, PL_INVALID, "cannot switch from automatic field numbering to manual field specification");
        x->next = -1;
        if (over) index = INT64_MAX;
    }
    if (index >= 0) {
        if ((uint64_t)index >= x->a->npos)
            tj_raise(R, PL_INVALID, "Replacement index %lld out of range for positional args tuple", (long long)index);
        v = x->a->pos[index];
    } else {
        for (size_t i = 0; i < x->a->nkw; i++)
            if (tj_str_eq(x->a->kwname[i], first)) v = x->a->kw[i];
        if (v.type == TJ_MISSING) {
            struct tj_str *r = tj_to_repr(R, tj_strv(first));
            tj_raise(R, PL_INVALID, "%.*s", (int)PL_MIN(r->len, 500), r->data);
        }
    }
    while (end < name->len) {
        bool attr = name->data[end] == '.';
        size_t begin = end + 1, stop = begin;
        if (!attr && name->data[end] != '[')
            tj_raise(R, PL_INVALID, "Only '.' or '[' may follow ']' in format field specifier");
        while (stop < name->len && (attr ? name->data[stop] != '.' && name->data[stop] != '[' : name->data[stop] != ']'))
            stop++;
        if (!attr && stop >= name->len) tj_raise(R, PL_INVALID, "Missing ']' in format string");
        if (stop == begin) tj_raise(R, PL_INVALID, "Empty attribute in format string");
        struct tj_str *key = tj_str_sub(R, name, begin, stop);
        int64_t n;
        if (attr)
            v = tj_getattr(R, v, key);
        else if (strspn(key->data, "0123456789") >= key->len && tj_parse_int(key, 10, &n, &over))
            v = tj_getitem(R, v, tj_int(over ? INT64_MAX : n));
        else
            v = tj_getitem(R, v, tj_strv(key));
        end = attr ? stop : stop + 1;
    }
    return v;
}

static void vformat(struct brace *x, struct tj_sb *b, struct tj_str *s, int depth);

static void format_field(struct brace *x, struct tj_sb *b, struct tj_str *s, int depth) {
    struct tj_rt *R = x->R;
    size_t i = 0, brackets = 0;
    while (i < s->len && (brackets > 0 || (s->data[i] != '!' && s->data[i] != ':'))) {
        brackets += s->data[i] == '[';
        if (s->data[i] == ']' && brackets > 0) brackets--;
        i++;
    }
    struct tj_str *name = tj_str_sub(R, s, 0, i), *spec = tj_str_borrow(R, "", 0, false);
    char conv = 0;
    if (i < s->len && s->data[i] == '!') {
        if (i + 1 >= s->len) tj_raise(R, PL_INVALID, "unmatched '{' in format spec");
        conv = s->data[i + 1];
        i += 2;
        if (i < s->len && s->data[i] != ':') tj_raise(R, PL_INVALID, "expected ':' after conversion specifier");
    }
    if (i < s->len) spec = tj_str_sub(R, s, i + 1, s->len);
    struct tj_val v = field_value(x, name);
    if (conv == 'r' || conv == 'a')
        v = tj_strv(tj_to_repr(R, v));
    else if (conv == 's')
        v = tj_strv(tj_to_str(R, v));
    else if (conv != 0)
        tj_raise(R, PL_INVALID, "Unknown conversion specifier %c", conv);
    struct tj_sb sb;
    tj_sb_init(R, &sb);
    vformat(x, &sb, spec, depth - 1);
    format_value(x, b, v, tj_sb_done(&sb));
}

static void vformat(struct brace *x, struct tj_sb *b, struct tj_str *s, int depth) {
    if (depth < 0) tj_raise(x->R, PL_INVALID, "Max string recursion exceeded");
    for (size_t i = 0; i < s->len;) {
        char c = s->data[i];
        if (c != '{' && c != '}') {
            size_t j = i;
            while (j < s->len && s->data[j] != '{' && s->data[j] != '}') j++;
            tj_sb_sub(b, s, i, j);
            i = j;
            continue;
        }
        if (i + 1 < s->len && s->data[i + 1] == c) {
            tj_sb_sub(b, s, i, i + 1);
            i += 2;
            continue;
        }
        if (c == '}') tj_raise(x->R, PL_INVALID, "Single '}' encountered in format string");
        size_t j = i + 1, level = 1;
        for (; j < s->len && level > 0; j++) {
            level += s->data[j] == '{';
            level -= s->data[j] == '}';
        }
        if (i + 1 >= s->len) tj_raise(x->R, PL_INVALID, "Single '{' encountered in format string");
        if (level > 0) tj_raise(x->R, PL_INVALID, "expected '}' before end of string");
        tj_charge(x->R, 1);
        format_field(x, b, tj_str_sub(x->R, s, i + 1, j - 1), depth);
        i = j;
    }
}

struct tj_str *tj_brace_format(struct tj_rt *R, struct tj_str *s, const struct tj_args *a, bool auto_ok) {
    struct brace x = {.R = R, .a = a, .next = auto_ok ? 0 : -1, .markup = s->markup};
    struct tj_sb b;
    tj_sb_init(R, &b);
    vformat(&x, &b, s, 2);
    struct tj_str *r = tj_sb_done(&b);
    r->markup = s->markup;
    return r;
}
