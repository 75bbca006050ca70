/* eval - expressions: names, operators, calls. Results follow Python; integers are 64 bits and refuse to overflow. */
#include <math.h>
#include <string.h>

#include "chat/ast.h"
#include "chat/rt.h"

struct tj_val *tj_slot_at(struct tj_rt *R, struct tj_slot s) {
    struct tj_env *e = R->env;
    for (uint32_t i = 0; i < s.hops; i++) e = e->up;
    return &e->slot[s.index];
}

static _Noreturn void overflow(struct tj_rt *R) { tj_raise(R, PL_LIMIT, "an integer in the template does not fit 64 bits"); }

static _Noreturn void bad_operands(struct tj_rt *R, const char *op, struct tj_val a, struct tj_val b) {
    if (a.type == TJ_UNDEF) tj_undef_fail(R, a);
    if (b.type == TJ_UNDEF) tj_undef_fail(R, b);
    tj_raise(R, PL_INVALID, "unsupported operand type(s) for %s: '%s' and '%s'", op, tj_type_name(a), tj_type_name(b));
}

/* While the template is parsed (fold.c): this part needs a run. */
static _Noreturn void not_constant(struct tj_rt *R) { tj_raise(R, PL_INVALID, "not a constant"); }

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

static double float_mod(double a, double b) {
    double m = fmod(a, b);
    if (m != 0) return (b < 0) != (m < 0) ? m + b : m;
    return copysign(0.0, b);
}

static double float_floordiv(double a, double b) {
    double m = fmod(a, b), d = (a - m) / b;
    if (m != 0 && (b < 0) != (m < 0)) d -= 1;
    if (d == 0) return copysign(0.0, a / b);
    double f = floor(d);
    return d - f > 0.5 ? f + 1 : f;
}

static struct tj_val int_pow(struct tj_rt *R, int64_t a, int64_t b) {
    if (b < 0) {
        if (a == 0) tj_raise(R, PL_INVALID, "0.0 cannot be raised to a negative power");
        return tj_float(pow((double)a, (double)b));
    }
    int64_t r = 1;
    if (a == 0 || a == 1) return tj_int(b == 0 ? 1 : a);
    if (a == -1) return tj_int(b % 2 == 0 ? 1 : -1);
    if (b > 64) overflow(R);
    for (int64_t i = 0; i < b; i++)
        if (__builtin_mul_overflow(r, a, &r)) overflow(R);
    return tj_int(r);
}

static struct tj_val int_op(struct tj_rt *R, int op, int64_t a, int64_t b) {
    int64_t r = 0;
    switch (op) {
    case TJ_OP_ADD:
        if (__builtin_add_overflow(a, b, &r)) overflow(R);
        return tj_int(r);
    case TJ_OP_SUB:
        if (__builtin_sub_overflow(a, b, &r)) overflow(R);
        return tj_int(r);
    case TJ_OP_MUL:
        if (__builtin_mul_overflow(a, b, &r)) overflow(R);
        return tj_int(r);
    case TJ_OP_DIV:
        if (b == 0) tj_raise(R, PL_INVALID, "division by zero");
        return tj_float((double)((long double)a / (long double)b));
    case TJ_OP_FLOORDIV:
    case TJ_OP_MOD:
        if (b == 0)
            tj_raise(R, PL_INVALID, op == TJ_OP_MOD ? "integer modulo by zero" : "integer division or modulo by zero");
        if (a == INT64_MIN && b == -1) {
            if (op == TJ_OP_FLOORDIV) overflow(R);
            return tj_int(0);
        }
        r = floor_div(a, b);
        return tj_int(op == TJ_OP_MOD ? a - r * b : r);
    default: return int_pow(R, a, b);
    }
}

static struct tj_val float_op(struct tj_rt *R, int op, double a, double b) {
    switch (op) {
    case TJ_OP_ADD: return tj_float(a + b);
    case TJ_OP_SUB: return tj_float(a - b);
    case TJ_OP_MUL: return tj_float(a * b);
    case TJ_OP_DIV:
        if (b == 0) tj_raise(R, PL_INVALID, "float division by zero");
        return tj_float(a / b);
    case TJ_OP_FLOORDIV:
        if (b == 0) tj_raise(R, PL_INVALID, "float floor division by zero");
        return tj_float(float_floordiv(a, b));
    case TJ_OP_MOD:
        if (b == 0) tj_raise(R, PL_INVALID, "float modulo");
        return tj_float(float_mod(a, b));
    default: {
        if (a == 0 && b < 0) tj_raise(R, PL_INVALID, "0.0 cannot be raised to a negative power");
        if (a < 0 && b != floor(b) && isfinite(a) && isfinite(b))
            tj_raise(R, PL_UNSUPPORTED, "complex numbers are not supported in chat templates");
        double r = pow(a, b);
        if (isinf(r) && isfinite(a) && isfinite(b)) tj_raise(R, PL_INVALID, "(34, 'Numerical result out of range')");
        return tj_float(r);
    }
    }
}

static struct tj_val repeat(struct tj_rt *R, struct tj_val seq, struct tj_val count) {
    int64_t n = tj_as_int(count);
    if (seq.type == TJ_STR) {
        struct tj_sb b;
        tj_sb_init(R, &b);
        tj_sb_repeat(&b, seq.s, n);
        struct tj_str *s = tj_sb_done(&b);
        s->markup = seq.s->markup;
        return tj_strv(s);
    }
    size_t times = n <= 0 ? 0 : (size_t)n, total;
    if (__builtin_mul_overflow(times, seq.l->n, &total)) tj_raise(R, PL_LIMIT, "a list repeated too often");
    tj_charge(R, total);
    struct tj_list *l = tj_list_new(R, total);
    for (size_t i = 0; i < total; i++) l->v[i] = seq.l->v[i % seq.l->n];
    l->n = total;
    return (struct tj_val){.type = seq.type, .l = l};
}

static struct tj_val join_lists(struct tj_rt *R, struct tj_val a, struct tj_val b) {
    struct tj_list *l = tj_list_new(R, a.l->n + b.l->n);
    tj_charge(R, a.l->n + b.l->n);
    if (a.l->n > 0) memcpy(l->v, a.l->v, a.l->n * sizeof *l->v);
    if (b.l->n > 0) memcpy(l->v + a.l->n, b.l->v, b.l->n * sizeof *l->v);
    l->n = a.l->n + b.l->n;
    return (struct tj_val){.type = a.type, .l = l};
}

static struct tj_val add_strings(struct tj_rt *R, struct tj_str *a, struct tj_str *b) {
    bool markup = a->markup || b->markup;
    if (markup && !a->markup) a = tj_escape(R, tj_strv(a));
    if (markup && !b->markup) b = tj_escape(R, tj_strv(b));
    struct tj_str *s = tj_str_concat(R, a, b);
    s->markup = markup;
    return tj_strv(s);
}

static bool is_seq(struct tj_val v) { return v.type == TJ_STR || v.type == TJ_LIST || v.type == TJ_TUPLE; }

struct tj_val tj_binary(struct tj_rt *R, int op, struct tj_val a, struct tj_val b) {
    static const char *const text[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};
    if (tj_is_num(a) && tj_is_num(b)) {
        bool taint = a.taint || b.taint;
        if (a.type == TJ_FLOAT || b.type == TJ_FLOAT)
            return tj_tainted(float_op(R, op, tj_as_float(a), tj_as_float(b)), taint);
        return tj_tainted(int_op(R, op, tj_as_int(a), tj_as_int(b)), taint);
    }
    if (op == TJ_OP_MOD && a.type == TJ_STR) return tj_strv(tj_percent_format(R, a.s, b));
    if (op == TJ_OP_ADD) {
        if (a.type == TJ_STR && b.type == TJ_STR) return add_strings(R, a.s, b.s);
        if ((a.type == TJ_LIST || a.type == TJ_TUPLE) && a.type == b.type) return join_lists(R, a, b);
        if (a.type == TJ_UNDEF || b.type == TJ_UNDEF) bad_operands(R, "+", a, b);
        if (a.type == TJ_STR) tj_raise(R, PL_INVALID, "can only concatenate str (not \"%s\") to str", tj_type_name(b));
        if (a.type == TJ_LIST || a.type == TJ_TUPLE)
            tj_raise(R, PL_INVALID, "can only concatenate %s (not \"%s\") to %s", tj_type_name(a), tj_type_name(b),
                     tj_type_name(a));
    }
    if (op == TJ_OP_MUL) {
        if (is_seq(a) && tj_is_int(b)) return repeat(R, a, b);
        if (is_seq(b) && tj_is_int(a)) return repeat(R, b, a);
        if (a.type != TJ_UNDEF && b.type != TJ_UNDEF && (is_seq(a) || is_seq(b)))
            tj_raise(R, PL_INVALID, "can't multiply sequence by non-int of type '%s'", tj_type_name(is_seq(a) ? b : a));
    }
    bad_operands(R, text[op], a, b);
}

bool tj_contains(struct tj_rt *R, struct tj_val item, struct tj_val c) {
    struct tj_val v;
    switch (c.type) {
    case TJ_STR:
        if (item.type != TJ_STR)
            tj_raise(R, PL_INVALID, "'in <string>' requires string as left operand, not %s", tj_type_name(item));
        tj_charge(R, c.s->len / 16);
        return tj_str_find(c.s, 0, item.s->data, item.s->len) != SIZE_MAX;
    case TJ_DICT:
        if (!tj_hashable(item)) tj_raise(R, PL_INVALID, "unhashable type: '%s'", tj_type_name(item));
        return tj_dict_get(R, c.d, item) != NULL;
    case TJ_NS:
    case TJ_SLICE: tj_raise(R, PL_INVALID, "argument of type '%s' is not iterable", tj_type_name(c));
    default:
        if (!tj_iterable(c)) tj_raise(R, PL_INVALID, "argument of type '%s' is not iterable", tj_type_name(c));
        for (struct tj_iter *it = tj_iter(R, c); tj_next(R, it, &v);)
            if (tj_same(v, item) || tj_eq(R, v, item)) return true;
        return false;
    }
}

static bool compare_one(struct tj_rt *R, int op, struct tj_val a, struct tj_val b) {
    switch (op) {
    case TJ_OP_EQ: return tj_eq(R, a, b);
    case TJ_OP_NE: return !tj_eq(R, a, b);
    case TJ_OP_LT: return tj_order(R, a, b, "<");
    case TJ_OP_LE: return tj_order(R, a, b, "<=");
    case TJ_OP_GT: return tj_order(R, a, b, ">");
    case TJ_OP_GE: return tj_order(R, a, b, ">=");
    case TJ_OP_IN: return tj_contains(R, a, b);
    default: return !tj_contains(R, a, b);
    }
}

static struct tj_val eval_compare(struct tj_rt *R, const struct tj_node *n) {
    struct tj_val left = tj_eval(R, n->a);
    bool r = true;
    for (size_t i = 0; i < n->nkids && r; i++) {
        struct tj_val right = tj_eval(R, n->kids[i]);
        r = compare_one(R, n->ops[i], left, right);
        left = right;
    }
    return tj_bool(r);
}

static struct tj_val eval_unary(struct tj_rt *R, const struct tj_node *n) {
    struct tj_val v = tj_eval(R, n->a);
    bool neg = n->kind == TJ_N_NEG;
    if (v.type == TJ_FLOAT) return tj_tainted(tj_float(neg ? -v.f : v.f), v.taint);
    if (tj_is_int(v)) {
        int64_t i = tj_as_int(v);
        if (neg && i == INT64_MIN) overflow(R);
        return tj_tainted(tj_int(neg ? -i : i), v.taint);
    }
    if (v.type == TJ_UNDEF) tj_undef_fail(R, v);
    tj_raise(R, PL_INVALID, "bad operand type for unary %s: '%s'", neg ? "-" : "+", tj_type_name(v));
}

static struct tj_list *eval_list(struct tj_rt *R, const struct tj_node *n) {
    struct tj_list *l = tj_list_new(R, n->nkids);
    for (size_t i = 0; i < n->nkids; i++) l->v[i] = tj_eval(R, n->kids[i]);
    l->n = n->nkids;
    return l;
}

static struct tj_val eval_dict(struct tj_rt *R, const struct tj_node *n) {
    struct tj_dict *d = tj_dict_new(R);
    for (size_t i = 0; i < n->nkids; i++) {
        struct tj_val k = tj_eval(R, n->kids[i]), v = tj_eval(R, n->kids2[i]);
        R->fold_fatal = R->folding && !tj_hashable(k);
        tj_dict_set(R, d, k, v);
    }
    return tj_dictv(d);
}

static struct tj_val eval_slice(struct tj_rt *R, const struct tj_node *n) {
    struct tj_slice *s = tj_alloc(R, 1, sizeof *s);
    s->start = n->a == NULL ? tj_none() : tj_eval(R, n->a);
    s->stop = n->b == NULL ? tj_none() : tj_eval(R, n->b);
    s->step = n->c == NULL ? tj_none() : tj_eval(R, n->c);
    return (struct tj_val){.type = TJ_SLICE, .slice = s};
}

static struct tj_val eval_concat(struct tj_rt *R, const struct tj_node *n) {
    struct tj_list *parts = eval_list(R, n);
    struct tj_sb b;
    tj_sb_init(R, &b);
    for (size_t i = 0; i < parts->n; i++) tj_emit_str(&b, parts->v[i]);
    return tj_strv(tj_sb_done(&b));
}

static struct tj_val eval_cond(struct tj_rt *R, const struct tj_node *n) {
    if (tj_truth(R, tj_eval(R, n->a))) return tj_eval(R, n->b);
    if (n->c != NULL) return tj_eval(R, n->c);
    if (R->folding) not_constant(R);
    struct tj_str *hint = tj_str_printf(
        R, false, "the inline if-expression on line %u evaluated to false and no else section was defined.", n->line);
    struct tj_val u = tj_undef_hint(R, "");
    u.u->hint = hint;
    return u;
}

static void add_kw(struct tj_rt *R, struct tj_args *a, size_t *cap, struct tj_str *name, struct tj_val v) {
    if (a->nkw == *cap) {
        size_t grown = *cap < 4 ? 8 : *cap * 2;
        struct tj_str **names = tj_alloc(R, grown, sizeof(struct tj_str *));
        struct tj_val *vals = tj_alloc(R, grown, sizeof *vals);
        if (a->nkw > 0) {
            memcpy(names, a->kwname, a->nkw * sizeof(struct tj_str *));
            memcpy(vals, a->kw, a->nkw * sizeof *vals);
        }
        a->kwname = names;
        a->kw = vals;
        *cap = grown;
    }
    a->kwname[a->nkw] = name;
    a->kw[a->nkw++] = v;
}

static void spread_mapping(struct tj_rt *R, struct tj_args *a, size_t *cap, struct tj_val m) {
    if (m.type == TJ_UNDEF) tj_undef_fail(R, m);
    if (m.type != TJ_DICT) tj_raise(R, PL_INVALID, "argument after ** must be a mapping, not %s", tj_type_name(m));
    tj_charge(R, m.d->n);
    for (size_t i = 0; i < m.d->n; i++) {
        if (m.d->e[i].k.type != TJ_STR) tj_raise(R, PL_INVALID, "keywords must be strings");
        for (size_t k = 0; k < a->nkw; k++)
            if (tj_str_eq(a->kwname[k], m.d->e[i].k.s))
                tj_raise(R, PL_INVALID, "got multiple values for keyword argument '%.*s'",
                         (int)PL_MIN(m.d->e[i].k.s->len, 200), m.d->e[i].k.s->data);
        add_kw(R, a, cap, m.d->e[i].k.s, m.d->e[i].v);
    }
}

void tj_eval_args(struct tj_rt *R, const struct tj_node *n, struct tj_args *out) {
    *out = (struct tj_args){0};
    struct tj_list *pos = tj_list_new(R, n->nkids);
    for (size_t i = 0; i < n->nkids; i++) tj_list_add(R, pos, tj_eval(R, n->kids[i]));
    size_t cap = n->nnames;
    if (cap > 0) {
        out->kwname = tj_alloc(R, cap, sizeof(struct tj_str *));
        out->kw = tj_alloc(R, cap, sizeof *out->kw);
    }
    if (n->b != NULL && n->kind != TJ_N_GETITEM) {
        struct tj_val seq = tj_eval(R, n->b), v;
        if (!tj_iterable(seq)) tj_raise(R, PL_INVALID, "argument after * must be an iterable, not %s", tj_type_name(seq));
        for (struct tj_iter *it = tj_iter(R, seq); tj_next(R, it, &v);) tj_list_add(R, pos, v);
    }
    for (size_t i = 0; i < n->nnames; i++) add_kw(R, out, &cap, n->names[i], tj_eval(R, n->kids2[i]));
    if (n->c != NULL) spread_mapping(R, out, &cap, tj_eval(R, n->c));
    out->pos = pos->v;
    out->npos = pos->n;
}

struct tj_val tj_eval_filter(struct tj_rt *R, const struct tj_node *n, struct tj_val input) {
    struct tj_args args;
    if (R->folding && (n->id < 0 || tj_filter_needs_run(n->id))) not_constant(R);
    if (n->id < 0) tj_raise(R, PL_INVALID, "No filter named '%.*s' found.", (int)PL_MIN(n->name->len, 200), n->name->data);
    tj_eval_args(R, n, &args);
    return tj_filter_call(R, n->id, input, &args);
}

static struct tj_val eval_filter(struct tj_rt *R, const struct tj_node *n) {
    if (n->a == NULL) tj_raise(R, PL_INTERNAL, "a filter without a value");
    return tj_eval_filter(R, n, tj_eval(R, n->a));
}

static struct tj_val eval_test(struct tj_rt *R, const struct tj_node *n) {
    struct tj_args args;
    struct tj_val v = tj_eval(R, n->a);
    tj_eval_args(R, n, &args);
    if (n->id < 0) tj_raise(R, PL_INVALID, "No test named '%.*s' found.", (int)PL_MIN(n->name->len, 200), n->name->data);
    return tj_bool(tj_test_call(R, n->id, v, &args));
}

static struct tj_val eval_name(struct tj_rt *R, const struct tj_node *n) {
    if (R->folding) not_constant(R);
    struct tj_val v = *tj_slot_at(R, n->slot);
    return v.type == TJ_MISSING ? tj_undef_name(R, n->name) : v;
}

static struct tj_val eval_getitem(struct tj_rt *R, const struct tj_node *n) {
    struct tj_val obj = tj_eval(R, n->a), key = tj_eval(R, n->b);
    if (n->b->kind == TJ_N_SLICE && !R->folding) return tj_subscript_slice(R, obj, key.slice);
    return tj_getitem(R, obj, key);
}

static struct tj_val eval_call(struct tj_rt *R, const struct tj_node *n) {
    struct tj_args args;
    if (R->folding) not_constant(R);
    struct tj_val callee = tj_eval(R, n->a);
    tj_eval_args(R, n, &args);
    uint32_t line = R->line;
    struct tj_val v = tj_call(R, callee, &args);
    R->line = line;
    return v;
}

static struct tj_val eval_node(struct tj_rt *R, const struct tj_node *n) {
    struct tj_val v;
    switch (n->kind) {
    case TJ_N_CONST:
    case TJ_N_DATA: return n->val;
    case TJ_N_NAME: return eval_name(R, n);
    case TJ_N_TUPLE: return tj_tuplev(eval_list(R, n));
    case TJ_N_LIST: return tj_listv(eval_list(R, n));
    case TJ_N_DICT: return eval_dict(R, n);
    case TJ_N_COND: return eval_cond(R, n);
    case TJ_N_AND: v = tj_eval(R, n->a); return tj_truth(R, v) ? tj_eval(R, n->b) : v;
    case TJ_N_OR: v = tj_eval(R, n->a); return tj_truth(R, v) ? v : tj_eval(R, n->b);
    case TJ_N_NOT: return tj_bool(!tj_truth(R, tj_eval(R, n->a)));
    case TJ_N_NEG:
    case TJ_N_POS: return eval_unary(R, n);
    case TJ_N_BIN: v = tj_eval(R, n->a); return tj_binary(R, n->op, v, tj_eval(R, n->b));
    case TJ_N_CONCAT: return eval_concat(R, n);
    case TJ_N_COMPARE: return eval_compare(R, n);
    case TJ_N_GETATTR: return tj_getattr(R, tj_eval(R, n->a), n->name);
    case TJ_N_GETITEM: return eval_getitem(R, n);
    case TJ_N_SLICE: return eval_slice(R, n);
    case TJ_N_CALL: return eval_call(R, n);
    case TJ_N_FILTER: return eval_filter(R, n);
    case TJ_N_TEST: return eval_test(R, n);
    default: tj_raise(R, PL_INTERNAL, "unexpected node kind %d", n->kind);
    }
}

struct tj_val tj_eval(struct tj_rt *R, const struct tj_node *n) {
    tj_charge(R, 1);
    tj_enter(R);
    struct tj_val v = eval_node(R, n);
    tj_leave(R);
    return v;
}
