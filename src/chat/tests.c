/* tests - what may stand after `is`. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "chat/ast.h"
#include "chat/rt.h"

enum {
    T_ODD,
    T_EVEN,
    T_DIVISIBLEBY,
    T_DEFINED,
    T_UNDEFINED,
    T_FILTER,
    T_TEST,
    T_NONE,
    T_BOOLEAN,
    T_FALSE,
    T_TRUE,
    T_INTEGER,
    T_FLOAT,
    T_LOWER,
    T_UPPER,
    T_STRING,
    T_MAPPING,
    T_NUMBER,
    T_SEQUENCE,
    T_ITERABLE,
    T_CALLABLE,
    T_SAMEAS,
    T_ESCAPED,
    T_IN,
    T_EQ,
    T_NE,
    T_GT,
    T_GE,
    T_LT,
    T_LE,
};
static const struct {
    const char *name;
    int id;
} tests[] = {
    {"!=", T_NE},
    {"<", T_LT},
    {"<=", T_LE},
    {"==", T_EQ},
    {">", T_GT},
    {">=", T_GE},
    {"boolean", T_BOOLEAN},
    {"callable", T_CALLABLE},
    {"defined", T_DEFINED},
    {"divisibleby", T_DIVISIBLEBY},
    {"eq", T_EQ},
    {"equalto", T_EQ},
    {"escaped", T_ESCAPED},
    {"even", T_EVEN},
    {"false", T_FALSE},
    {"filter", T_FILTER},
    {"float", T_FLOAT},
    {"ge", T_GE},
    {"greaterthan", T_GT},
    {"gt", T_GT},
    {"in", T_IN},
    {"integer", T_INTEGER},
    {"iterable", T_ITERABLE},
    {"le", T_LE},
    {"lessthan", T_LT},
    {"lower", T_LOWER},
    {"lt", T_LT},
    {"mapping", T_MAPPING},
    {"ne", T_NE},
    {"none", T_NONE},
    {"number", T_NUMBER},
    {"odd", T_ODD},
    {"sameas", T_SAMEAS},
    {"sequence", T_SEQUENCE},
    {"string", T_STRING},
    {"test", T_TEST},
    {"true", T_TRUE},
    {"undefined", T_UNDEFINED},
    {"upper", T_UPPER},
};

int tj_test_find(const char *name, size_t len) {
    for (size_t i = 0; i < PL_COUNT_OF(tests); i++)
        if (strlen(tests[i].name) == len && memcmp(tests[i].name, name, len) == 0) return (int)i;
    return -1;
}

static bool modulo(struct tj_rt *R, struct tj_val v, struct tj_val by, int64_t want) {
    struct tj_val m = tj_binary(R, TJ_OP_MOD, v, by);
    return tj_eq(R, m, tj_int(want));
}

static struct tj_val one_arg(struct tj_rt *R, const struct tj_args *a, const char *name, const char *spec) {
    struct tj_val v;
    tj_bind(R, name, a, spec, &v);
    return v;
}

static struct tj_val operand(struct tj_rt *R, const struct tj_args *a, const char *name) {
    if (a->nkw > 0) tj_raise(R, PL_INVALID, "%s() takes no keyword arguments", name);
    if (a->npos != 1) tj_raise(R, PL_INVALID, "%s expected 2 arguments, got %zu", name, a->npos + 1);
    return a->pos[0];
}

static bool is_case(struct tj_rt *R, struct tj_val v, const char *method) {
    struct tj_str *s = tj_to_str(R, v);
    struct tj_args none = {0};
    struct tj_str name = {.data = method, .len = strlen(method), .chars = SIZE_MAX};
    return tj_str_method(R, s, tj_str_method_find(&name), &none).b;
}

static bool is_sequence(struct tj_val v) {
    switch (v.type) {
    case TJ_UNDEF: return true; /* len() is 0 and __getitem__ exists */
    case TJ_STR:
    case TJ_LIST:
    case TJ_TUPLE:
    case TJ_DICT:
    case TJ_RANGE: return true;
    default: return false;
    }
}

static bool name_known(struct tj_rt *R, struct tj_val v, bool filter) {
    if (!tj_hashable(v)) tj_raise(R, PL_INVALID, "unhashable type: '%s'", tj_type_name(v));
    if (v.type != TJ_STR) return false;
    return (filter ? tj_filter_find(v.s->data, v.s->len) : tj_test_find(v.s->data, v.s->len)) >= 0;
}

static bool unary_test(struct tj_rt *R, int id, struct tj_val v) {
    switch (id) {
    case T_ODD: return modulo(R, v, tj_int(2), 1);
    case T_EVEN: return modulo(R, v, tj_int(2), 0);
    case T_DEFINED: return v.type != TJ_UNDEF;
    case T_UNDEFINED: return v.type == TJ_UNDEF;
    case T_FILTER: return name_known(R, v, true);
    case T_TEST: return name_known(R, v, false);
    case T_NONE: return v.type == TJ_NONE;
    case T_BOOLEAN: return v.type == TJ_BOOL;
    case T_FALSE: return v.type == TJ_BOOL && !v.b;
    case T_TRUE: return v.type == TJ_BOOL && v.b;
    case T_INTEGER: return v.type == TJ_INT;
    case T_FLOAT: return v.type == TJ_FLOAT;
    case T_LOWER: return is_case(R, v, "islower");
    case T_UPPER: return is_case(R, v, "isupper");
    case T_STRING: return v.type == TJ_STR;
    case T_MAPPING: return v.type == TJ_DICT;
    case T_NUMBER: return tj_is_num(v);
    case T_SEQUENCE: return is_sequence(v);
    case T_ITERABLE: return tj_iterable(v) || v.type == TJ_SELF;
    case T_CALLABLE: return tj_callable(v);
    default: return v.type == TJ_STR && v.s->markup;
    }
}

bool tj_test_call(struct tj_rt *R, int index, struct tj_val v, const struct tj_args *a) {
    const char *name = tests[index].name;
    int id = tests[index].id;
    tj_charge(R, 1);
    switch (id) {
    case T_DIVISIBLEBY: return modulo(R, v, one_arg(R, a, "test_divisibleby", "num"), 0);
    case T_SAMEAS: return tj_same(v, one_arg(R, a, "test_sameas", "other"));
    case T_IN: return tj_contains(R, v, one_arg(R, a, "test_in", "seq"));
    case T_EQ: return tj_eq(R, v, operand(R, a, "eq"));
    case T_NE: return !tj_eq(R, v, operand(R, a, "ne"));
    case T_GT: return tj_order(R, v, operand(R, a, "gt"), ">");
    case T_GE: return tj_order(R, v, operand(R, a, "ge"), ">=");
    case T_LT: return tj_order(R, v, operand(R, a, "lt"), "<");
    case T_LE: return tj_order(R, v, operand(R, a, "le"), "<=");
    default:
        if (a->npos > 0 || a->nkw > 0)
            tj_raise(R, PL_INVALID, "test_%s() takes 1 positional argument but %zu were given", name, a->npos + a->nkw + 1);
        return unary_test(R, id, v);
    }
}
