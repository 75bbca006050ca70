/* filters_num - filters over numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/ast.h"
#include "chat/filters.h"

static _Noreturn void overflow(struct tj_rt *R) { tj_raise(R, PL_LIMIT, "an integer in the template does not fit 64 bits"); }

struct tj_val tj_f_abs(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    if (a->npos > 0 || a->nkw > 0)
        tj_raise(R, PL_INVALID, "abs() takes exactly one argument (%zu given)", a->npos + a->nkw + 1);
    if (v.type == TJ_FLOAT) return tj_tainted(tj_float(fabs(v.f)), v.taint);
    if (!tj_is_int(v)) tj_raise(R, PL_INVALID, "bad operand type for abs(): '%s'", tj_type_name(v));
    if (tj_as_int(v) == INT64_MIN) overflow(R);
    return tj_tainted(tj_int(llabs(tj_as_int(v))), v.taint);
}

static struct tj_val float_to_int(struct tj_rt *R, double f, bool taint) {
    if (fabs(f) >= 9223372036854775808.0) overflow(R);
    return tj_tainted(tj_int((int64_t)f), taint);
}

struct tj_val tj_f_int(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val arg[2];
    tj_bind(R, "do_int", a, "default= base=", arg);
    struct tj_val dflt = arg[0].type == TJ_MISSING ? tj_int(0) : arg[0];
    int64_t base = 10, i;
    bool over;
    if (v.type == TJ_UNDEF) tj_undef_fail(R, v);
    if (tj_is_int(v)) return tj_tainted(tj_int(tj_as_int(v)), v.taint);
    if (v.type == TJ_FLOAT) {
        if (isinf(v.f)) tj_raise(R, PL_INVALID, "cannot convert float infinity to integer");
        return isnan(v.f) ? dflt : float_to_int(R, v.f, v.taint);
    }
    if (v.type != TJ_STR) return dflt;
    bool taint = tj_str_any_taint(v.s), base_ok = true;
    if (arg[1].type != TJ_MISSING) base_ok = tj_index(arg[1], &base) && (base == 0 || (base >= 2 && base <= 36));
    if (base_ok && tj_parse_int(v.s, (int)base, &i, &over)) {
        if (over) overflow(R);
        return tj_tainted(tj_int(i), taint);
    }
    double f;
    if (!tj_parse_float(v.s, &f) || isnan(f) || isinf(f)) return dflt;
    return float_to_int(R, f, taint);
}

struct tj_val tj_f_float(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val dflt;
    double f;
    tj_bind(R, "do_float", a, "default=", &dflt);
    if (v.type == TJ_UNDEF) tj_undef_fail(R, v);
    if (tj_is_num(v)) return tj_tainted(tj_float(tj_as_float(v)), v.taint);
    if (v.type == TJ_STR && tj_parse_float(v.s, &f)) return tj_tainted(tj_float(f), tj_str_any_taint(v.s));
    return dflt.type == TJ_MISSING ? tj_float(0) : dflt;
}

/* Python's round(): exact decimal value, half to even. */
static double round_float(struct tj_rt *R, double v, int64_t digits) {
    char text[1400];
    if (!isfinite(v) || digits > 323) return v;
    if (digits < -308) return copysign(0.0, v);
    if (digits >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)digits, v);
        double r = strtod(text, NULL);
        if (isinf(r)) tj_raise(R, PL_INVALID, "rounded value too large to represent");
        return r;
    }
    double scale = pow(10, (double)-digits), q = v / scale; /* exact enough: ties are decided on the integer part */
    double r = nearbyint(q) * scale;
    if (isinf(r)) tj_raise(R, PL_INVALID, "rounded value too large to represent");
    return r;
}

static int64_t round_int(struct tj_rt *R, int64_t v, int64_t digits) {
    if (digits >= 0) return v;
    if (digits < -18) return 0;
    int64_t unit = 1;
    for (int64_t i = 0; i < -digits; i++) unit *= 10;
    int64_t q = v / unit, r = v % unit;
    if (r < 0) {
        r += unit;
        q--;
    }
    if (r * 2 > unit || (r * 2 == unit && (q & 1) != 0)) q++;
    int64_t out;
    if (__builtin_mul_overflow(q, unit, &out)) overflow(R);
    return out;
}

struct tj_val tj_f_round(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val arg[2];
    tj_bind(R, "do_round", a, "precision= method=", arg);
    struct tj_str *method = arg[1].type == TJ_STR ? arg[1].s : tj_str_borrow(R, "common", 6, false);
    bool ceil_it = tj_str_is(method, "ceil"), floor_it = tj_str_is(method, "floor");
    if ((arg[1].type != TJ_MISSING && arg[1].type != TJ_STR) || (!ceil_it && !floor_it && !tj_str_is(method, "common")))
        tj_raise(R, PL_INVALID, "method must be common, ceil or floor");
    if (!ceil_it && !floor_it) {
        if (!tj_is_num(v)) {
            tj_raise(R, PL_INVALID, "type %s doesn't define __round__ method", tj_type_name(v));
        }
        if (arg[0].type == TJ_NONE) { /* round(x, None) gives an integer */
            if (v.type != TJ_FLOAT) return tj_tainted(tj_int(tj_as_int(v)), v.taint);
            if (isnan(v.f)) tj_raise(R, PL_INVALID, "cannot convert float NaN to integer");
            if (isinf(v.f)) tj_raise(R, PL_INVALID, "cannot convert float infinity to integer");
            return float_to_int(R, nearbyint(v.f), v.taint);
        }
        int64_t digits = arg[0].type == TJ_MISSING ? 0 : tj_need_int(R, arg[0]);
        if (v.type != TJ_FLOAT) return tj_tainted(tj_int(round_int(R, tj_as_int(v), digits)), v.taint);
        return tj_tainted(tj_float(round_float(R, v.f, digits)), v.taint);
    }
    struct tj_val precision = arg[0].type == TJ_MISSING ? tj_int(0) : arg[0];
    struct tj_val scale = tj_binary(R, TJ_OP_POW, tj_int(10), precision), x = tj_binary(R, TJ_OP_MUL, v, scale);
    if (!tj_is_num(x)) tj_raise(R, PL_INVALID, "must be real number, not %s", tj_type_name(x));
    if (x.type == TJ_FLOAT) {
        if (isnan(x.f)) tj_raise(R, PL_INVALID, "cannot convert float NaN to integer");
        if (isinf(x.f)) tj_raise(R, PL_INVALID, "cannot convert float infinity to integer");
        x = float_to_int(R, ceil_it ? ceil(x.f) : floor(x.f), x.taint);
    }
    return tj_binary(R, TJ_OP_DIV, x, scale);
}

struct tj_val tj_f_sum(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val arg[2], item;
    tj_bind(R, "do_sum", a, "attribute= start=", arg);
    struct tj_val total = arg[1].type == TJ_MISSING ? tj_int(0) : arg[1];
    struct tj_list *path = arg[0].type == TJ_MISSING || arg[0].type == TJ_NONE ? NULL : tj_attr_path(R, arg[0]);
    struct tj_iter *it = tj_iter(R, v);
    if (total.type == TJ_STR) tj_raise(R, PL_INVALID, "sum() can't sum strings [use ''.join(seq) instead]");
    while (tj_next(R, it, &item))
        total = tj_binary(R, TJ_OP_ADD, total, path == NULL ? item : tj_follow(R, item, path, NULL));
    return total;
}

struct tj_val tj_f_filesizeformat(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val binary;
    tj_bind(R, "do_filesizeformat", a, "binary=", &binary);
    bool bin = tj_truth(R, binary), taint = v.type == TJ_STR ? tj_str_any_taint(v.s) : v.taint;
    double bytes, base = bin ? 1024 : 1000, unit = base;
    if (v.type == TJ_UNDEF) tj_undef_fail(R, v);
    if (tj_is_num(v)) {
        bytes = tj_as_float(v);
    } else if (v.type != TJ_STR) {
        tj_raise(R, PL_INVALID, "float() argument must be a string or a real number, not '%s'", tj_type_name(v));
    } else if (!tj_parse_float(v.s, &bytes)) {
        struct tj_str *r = tj_to_repr(R, v);
        tj_raise(R, PL_INVALID, "could not convert string to float: %.*s", (int)PL_MIN(r->len, 300), r->data);
    }
    if (bytes == 1) return tj_strv(tj_str_printf(R, taint, "1 Byte"));
    if (bytes < base) {
        if (isinf(bytes)) tj_raise(R, PL_INVALID, "cannot convert float infinity to integer");
        return tj_strv(tj_str_printf(R, taint, "%.0f Bytes", trunc(bytes) + 0.0));
    }
    static const char prefixes[] = "kMGTPEZY";
    for (size_t i = 0; i < 8; i++) {
        unit *= base;
        if (bytes < unit || i == 7)
            return tj_strv(tj_str_printf(R, taint, "%.1f %c%sB", base * bytes / unit, bin && i == 0 ? 'K' : prefixes[i],
                                         bin ? "i" : ""));
    }
    return tj_none();
}
