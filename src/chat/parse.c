/* parse - tokens to nodes: the grammar of jinja2, rule by rule, with its messages. Recursion is bounded by tj_enter. */
#include <stdio.h>
#include <string.h>

#include "chat/ast.h"
#include "chat/rt.h"

struct vec { /* nodes being collected */
    struct tj_node **v;
    size_t n, cap;
};

struct parser {
    struct tj_rt *R;
    struct tj_tokens t;
    size_t pos;
    struct pl_template *tpl;
    const char *const *ends[128]; /* what the open blocks wait for */
    size_t nends;
    const char *tags[128];
    size_t ntags;
};

_Noreturn void tj_syntax(struct tj_rt *R, uint32_t line, const char *fmt, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    R->line = line;
    tj_raise(R, PL_FORMAT, "%s", text);
}

static struct tj_node *parse_expression(struct parser *p);
static struct tj_node *parse_condexpr(struct parser *p, bool with_condexpr);
static struct tj_node *parse_primary(struct parser *p, bool with_namespace);
static struct tj_node *parse_postfix(struct parser *p, struct tj_node *n);
static struct tj_node *parse_unary(struct parser *p, bool with_filter);
static void subparse(struct parser *p, const char *const *ends, struct vec *out);

/* --- the token stream --- */

static const struct tj_token *cur(struct parser *p) {
    const struct tj_token *t = &p->t.v[p->pos];
    if (t->type == TJ_T_ERROR) tj_syntax(p->R, t->line, "%.*s", (int)t->val.s->len, t->val.s->data);
    return t;
}
static const struct tj_token *peek(struct parser *p) {
    if (cur(p)->type == TJ_T_EOF) return cur(p);
    p->pos++;
    const struct tj_token *t = cur(p);
    p->pos--;
    return t;
}
static const struct tj_token *take(struct parser *p) {
    const struct tj_token *t = cur(p);
    if (t->type != TJ_T_EOF) p->pos++;
    cur(p);
    return t;
}
static bool is_name(const struct tj_token *t, const char *name) { return t->type == TJ_T_NAME && tj_str_is(t->val.s, name); }
static bool skip_name(struct parser *p, const char *name) {
    if (!is_name(cur(p), name)) return false;
    take(p);
    return true;
}
static bool skip(struct parser *p, int type) {
    if (cur(p)->type != type) return false;
    take(p);
    return true;
}

static const char *type_text(int type) {
    static const char *const names[] = {"end of template",
                                        "template data / text",
                                        "begin of print statement",
                                        "end of print statement",
                                        "begin of statement block",
                                        "end of statement block",
                                        "name",
                                        "string",
                                        "integer",
                                        "float",
                                        "error",
                                        "+",
                                        "-",
                                        "/",
                                        "//",
                                        "*",
                                        "%",
                                        "**",
                                        "~",
                                        "[",
                                        "]",
                                        "(",
                                        ")",
                                        "{",
                                        "}",
                                        "==",
                                        "!=",
                                        ">",
                                        ">=",
                                        "<",
                                        "<=",
                                        "=",
                                        ".",
                                        ":",
                                        "|",
                                        ",",
                                        ";"};
    return names[type];
}
static struct tj_str *describe(struct parser *p, const struct tj_token *t) {
    if (t->type == TJ_T_NAME) return tj_to_repr(p->R, t->val);
    return tj_to_repr(p->R, tj_cstr(p->R, type_text(t->type)));
}

static const struct tj_token *expect(struct parser *p, int type, const char *name) {
    const struct tj_token *t = cur(p);
    if (t->type == type && (name == NULL || tj_str_is(t->val.s, name))) return take(p);
    struct tj_str *want = tj_to_repr(p->R, tj_cstr(p->R, name != NULL ? name : type_text(type)));
    if (t->type == TJ_T_EOF)
        tj_syntax(p->R, t->line, "unexpected end of template, expected %.*s.", (int)want->len, want->data);
    struct tj_str *got = describe(p, t);
    tj_syntax(p->R, t->line, "expected token %.*s, got %.*s", (int)want->len, want->data, (int)PL_MIN(got->len, 200),
              got->data);
}

/* --- nodes --- */

static struct tj_node *node(struct parser *p, int kind, uint32_t line) {
    struct tj_node *n = tj_alloc(p->R, 1, sizeof *n);
    n->kind = (uint8_t)kind;
    n->line = line;
    n->id = -1;
    return n;
}
static void add(struct parser *p, struct vec *v, struct tj_node *n) {
    if (v->n == v->cap) {
        size_t cap = v->cap == 0 ? 4 : v->cap * 2;
        struct tj_node **grown = tj_alloc(p->R, cap, sizeof(struct tj_node *));
        if (v->n > 0) memcpy(grown, v->v, v->n * sizeof(struct tj_node *));
        v->v = grown;
        v->cap = cap;
    }
    v->v[v->n++] = n;
}
static struct tj_node *binary(struct parser *p, int kind, int op, struct tj_node *a, struct tj_node *b, uint32_t line) {
    struct tj_node *n = node(p, kind, line);
    n->op = (uint8_t)op;
    n->a = a;
    n->b = b;
    return n;
}
static struct tj_node *constant(struct parser *p, struct tj_val v, uint32_t line) {
    struct tj_node *n = node(p, TJ_N_CONST, line);
    n->val = v;
    return n;
}

/* --- expressions --- */

static bool tuple_end(struct parser *p, const char *end) {
    const struct tj_token *t = cur(p);
    if (t->type == TJ_T_VAR_END || t->type == TJ_T_BLOCK_END || t->type == TJ_T_RPAREN) return true;
    return end != NULL && is_name(t, end);
}

struct tuple_opts {
    bool simplified, no_condexpr, parens, ns;
    const char *end;
};

static struct tj_node *parse_tuple(struct parser *p, struct tuple_opts o) {
    uint32_t line = cur(p)->line;
    struct vec args = {0};
    bool is_tuple = false;
    for (;;) {
        if (args.n > 0) expect(p, TJ_T_COMMA, NULL);
        if (tuple_end(p, o.end)) break;
        add(p, &args, o.simplified ? parse_primary(p, o.ns) : parse_condexpr(p, !o.no_condexpr));
        if (cur(p)->type != TJ_T_COMMA) break;
        is_tuple = true;
        line = cur(p)->line;
    }
    if (!is_tuple && args.n > 0) return args.v[0];
    if (!is_tuple && !o.parens) {
        struct tj_str *got = describe(p, cur(p));
        tj_syntax(p->R, cur(p)->line, "Expected an expression, got %.*s", (int)PL_MIN(got->len, 200), got->data);
    }
    struct tj_node *n = node(p, TJ_N_TUPLE, line);
    n->kids = args.v;
    n->nkids = args.n;
    return n;
}

static struct tj_node *parse_expression(struct parser *p) { return parse_condexpr(p, true); }

static struct tj_node *parse_compare(struct parser *p);

static struct tj_node *parse_not(struct parser *p) {
    if (!is_name(cur(p), "not")) return parse_compare(p);
    uint32_t line = take(p)->line;
    tj_enter(p->R);
    struct tj_node *n = binary(p, TJ_N_NOT, 0, parse_not(p), NULL, line);
    tj_leave(p->R);
    return n;
}

/* A left-associative chain nests as deep as it is long: charge its length against the depth limit. */
static void chain(struct parser *p, size_t *length) {
    if (++*length > p->R->nest_max) tj_raise(p->R, PL_LIMIT, "an expression with more than %u operators", p->R->nest_max);
}

static struct tj_node *parse_and(struct parser *p) {
    uint32_t line = cur(p)->line;
    struct tj_node *left = parse_not(p);
    size_t n = 0;
    while (skip_name(p, "and")) {
        chain(p, &n);
        left = binary(p, TJ_N_AND, 0, left, parse_not(p), line);
        line = cur(p)->line;
    }
    return left;
}

static struct tj_node *parse_or(struct parser *p) {
    uint32_t line = cur(p)->line;
    struct tj_node *left = parse_and(p);
    size_t n = 0;
    while (skip_name(p, "or")) {
        chain(p, &n);
        left = binary(p, TJ_N_OR, 0, left, parse_and(p), line);
        line = cur(p)->line;
    }
    return left;
}

static struct tj_node *parse_condexpr(struct parser *p, bool with_condexpr) {
    tj_enter(p->R);
    uint32_t line = cur(p)->line;
    struct tj_node *e = parse_or(p);
    size_t len = 0;
    while (with_condexpr && skip_name(p, "if")) {
        chain(p, &len);
        struct tj_node *n = node(p, TJ_N_COND, line);
        n->b = e;
        n->a = parse_or(p);
        if (skip_name(p, "else")) n->c = parse_condexpr(p, true);
        e = n;
        line = cur(p)->line;
    }
    tj_leave(p->R);
    return e;
}

static struct tj_node *parse_math2(struct parser *p) {
    static const struct {
        int token, op;
    } ops[] = {{TJ_T_MUL, TJ_OP_MUL}, {TJ_T_DIV, TJ_OP_DIV}, {TJ_T_FLOORDIV, TJ_OP_FLOORDIV}, {TJ_T_MOD, TJ_OP_MOD}};
    uint32_t line = cur(p)->line;
    struct tj_node *left = NULL;
    size_t len = 0;
    for (int op = -1;;) {
        uint32_t at = cur(p)->line;
        struct tj_node *right = parse_unary(p, true);
        size_t n = 0;
        while (skip(p, TJ_T_POW)) { /* left-associative in jinja2 */
            chain(p, &n);
            right = binary(p, TJ_N_BIN, TJ_OP_POW, right, parse_unary(p, true), at);
            at = cur(p)->line;
        }
        left = left == NULL ? right : binary(p, TJ_N_BIN, op, left, right, line);
        line = left == right ? line : cur(p)->line;
        op = -1;
        for (size_t i = 0; i < PL_COUNT_OF(ops); i++)
            if (cur(p)->type == ops[i].token) op = ops[i].op;
        if (op < 0) return left;
        chain(p, &len);
        take(p);
    }
}

static struct tj_node *parse_concat(struct parser *p) {
    uint32_t line = cur(p)->line;
    struct vec args = {0};
    do add(p, &args, parse_math2(p));
    while (skip(p, TJ_T_TILDE));
    if (args.n == 1) return args.v[0];
    struct tj_node *n = node(p, TJ_N_CONCAT, line);
    n->kids = args.v;
    n->nkids = args.n;
    return n;
}

static struct tj_node *parse_math1(struct parser *p) {
    uint32_t line = cur(p)->line;
    struct tj_node *left = parse_concat(p);
    size_t len = 0;
    while (cur(p)->type == TJ_T_ADD || cur(p)->type == TJ_T_SUB) {
        int op = take(p)->type == TJ_T_ADD ? TJ_OP_ADD : TJ_OP_SUB;
        chain(p, &len);
        left = binary(p, TJ_N_BIN, op, left, parse_concat(p), line);
        line = cur(p)->line;
    }
    return left;
}

static int compare_op(struct parser *p) { /* -1: none; consumes it otherwise */
    int type = cur(p)->type;
    if (type == TJ_T_EQ || type == TJ_T_NE || type == TJ_T_LT || type == TJ_T_LE || type == TJ_T_GT || type == TJ_T_GE) {
        take(p);
        return type == TJ_T_EQ   ? TJ_OP_EQ
               : type == TJ_T_NE ? TJ_OP_NE
               : type == TJ_T_LT ? TJ_OP_LT
               : type == TJ_T_LE ? TJ_OP_LE
               : type == TJ_T_GT ? TJ_OP_GT
                                 : TJ_OP_GE;
    }
    if (skip_name(p, "in")) return TJ_OP_IN;
    if (is_name(cur(p), "not") && is_name(peek(p), "in")) {
        take(p);
        take(p);
        return TJ_OP_NOTIN;
    }
    return -1;
}

static struct tj_node *parse_compare(struct parser *p) {
    uint32_t line = cur(p)->line;
    struct tj_node *e = parse_math1(p);
    struct vec kids = {0};
    uint8_t ops[64];
    for (int op; (op = compare_op(p)) >= 0;) {
        if (kids.n == sizeof ops) tj_raise(p->R, PL_LIMIT, "a comparison chain longer than %zu", sizeof ops);
        ops[kids.n] = (uint8_t)op;
        add(p, &kids, parse_math1(p));
        line = cur(p)->line;
    }
    if (kids.n == 0) return e;
    struct tj_node *n = node(p, TJ_N_COMPARE, line);
    n->a = e;
    n->kids = kids.v;
    n->nkids = kids.n;
    n->ops = tj_alloc(p->R, kids.n, 1);
    memcpy(n->ops, ops, kids.n);
    return n;
}

static struct tj_node *parse_list(struct parser *p) {
    struct tj_node *n = node(p, TJ_N_LIST, take(p)->line);
    struct vec items = {0};
    while (cur(p)->type != TJ_T_RBRACKET) {
        if (items.n > 0) expect(p, TJ_T_COMMA, NULL);
        if (cur(p)->type == TJ_T_RBRACKET) break;
        add(p, &items, parse_expression(p));
    }
    expect(p, TJ_T_RBRACKET, NULL);
    n->kids = items.v;
    n->nkids = items.n;
    return n;
}

static struct tj_node *parse_dict(struct parser *p) {
    struct tj_node *n = node(p, TJ_N_DICT, take(p)->line);
    struct vec keys = {0}, values = {0};
    while (cur(p)->type != TJ_T_RBRACE) {
        if (keys.n > 0) expect(p, TJ_T_COMMA, NULL);
        if (cur(p)->type == TJ_T_RBRACE) break;
        add(p, &keys, parse_expression(p));
        expect(p, TJ_T_COLON, NULL);
        add(p, &values, parse_expression(p));
    }
    expect(p, TJ_T_RBRACE, NULL);
    n->kids = keys.v;
    n->kids2 = values.v;
    n->nkids = n->nkids2 = keys.n;
    return n;
}

static struct tj_node *parse_name(struct parser *p, bool with_namespace) {
    const struct tj_token *t = take(p);
    struct tj_str *s = t->val.s;
    if (tj_str_is(s, "true") || tj_str_is(s, "True")) return constant(p, tj_bool(true), t->line);
    if (tj_str_is(s, "false") || tj_str_is(s, "False")) return constant(p, tj_bool(false), t->line);
    if (tj_str_is(s, "none") || tj_str_is(s, "None")) return constant(p, tj_none(), t->line);
    struct tj_node *n = node(p, TJ_N_NAME, t->line);
    n->name = s;
    if (with_namespace && cur(p)->type == TJ_T_DOT) {
        take(p);
        n->kind = TJ_N_NSREF;
        n->val = expect(p, TJ_T_NAME, NULL)->val;
    }
    return n;
}

static struct tj_node *parse_primary(struct parser *p, bool with_namespace) {
    const struct tj_token *t = cur(p);
    struct tj_node *n;
    switch (t->type) {
    case TJ_T_NAME: return parse_name(p, with_namespace);
    case TJ_T_STRING: {
        struct tj_str *s = take(p)->val.s;
        while (cur(p)->type == TJ_T_STRING) s = tj_str_concat(p->R, s, take(p)->val.s);
        tj_str_chars(p->R, s);
        return constant(p, tj_strv(s), t->line);
    }
    case TJ_T_INT:
    case TJ_T_FLOAT: return constant(p, take(p)->val, t->line);
    case TJ_T_LPAREN:
        take(p);
        n = parse_tuple(p, (struct tuple_opts){.parens = true});
        expect(p, TJ_T_RPAREN, NULL);
        return n;
    case TJ_T_LBRACKET: return parse_list(p);
    case TJ_T_LBRACE: return parse_dict(p);
    default: break;
    }
    struct tj_str *got = describe(p, t);
    tj_syntax(p->R, t->line, "unexpected %.*s", (int)PL_MIN(got->len, 200), got->data);
}

static struct tj_node *parse_subscribed(struct parser *p) {
    uint32_t line = cur(p)->line;
    struct tj_node *part[3] = {0};
    if (cur(p)->type != TJ_T_COLON) {
        part[0] = parse_expression(p);
        if (cur(p)->type != TJ_T_COLON) return part[0];
    }
    take(p);
    int type = cur(p)->type;
    if (type != TJ_T_COLON && type != TJ_T_RBRACKET && type != TJ_T_COMMA) part[1] = parse_expression(p);
    if (skip(p, TJ_T_COLON)) {
        type = cur(p)->type;
        if (type != TJ_T_RBRACKET && type != TJ_T_COMMA) part[2] = parse_expression(p);
    }
    struct tj_node *n = node(p, TJ_N_SLICE, line);
    n->a = part[0];
    n->b = part[1];
    n->c = part[2];
    return n;
}

static struct tj_node *parse_subscript(struct parser *p, struct tj_node *base) {
    const struct tj_token *t = take(p);
    if (t->type == TJ_T_DOT) {
        const struct tj_token *attr = take(p);
        if (attr->type == TJ_T_NAME) {
            struct tj_node *n = node(p, TJ_N_GETATTR, t->line);
            n->a = base;
            n->name = attr->val.s;
            return n;
        }
        if (attr->type != TJ_T_INT) tj_syntax(p->R, attr->line, "expected name or number");
        return binary(p, TJ_N_GETITEM, 0, base, constant(p, attr->val, attr->line), t->line);
    }
    struct vec args = {0};
    while (cur(p)->type != TJ_T_RBRACKET) {
        if (args.n > 0) expect(p, TJ_T_COMMA, NULL);
        add(p, &args, parse_subscribed(p));
    }
    expect(p, TJ_T_RBRACKET, NULL);
    struct tj_node *arg = args.n == 1 ? args.v[0] : node(p, TJ_N_TUPLE, t->line);
    if (args.n != 1) {
        arg->kids = args.v;
        arg->nkids = args.n;
    }
    return binary(p, TJ_N_GETITEM, 0, base, arg, t->line);
}

static void call_arg(struct parser *p, struct tj_node *n, struct vec *args, struct vec *kwargs, struct vec *names,
                     uint32_t line) {
    bool ok = true;
    if (skip(p, TJ_T_MUL)) {
        ok = n->b == NULL && n->c == NULL;
        n->b = parse_expression(p);
    } else if (skip(p, TJ_T_POW)) {
        ok = n->c == NULL;
        n->c = parse_expression(p);
    } else if (cur(p)->type == TJ_T_NAME && peek(p)->type == TJ_T_ASSIGN) {
        ok = n->c == NULL;
        struct tj_node *key = node(p, TJ_N_NAME, cur(p)->line);
        key->name = take(p)->val.s;
        take(p);
        for (size_t i = 0; i < names->n; i++)
            if (tj_str_eq(names->v[i]->name, key->name))
                tj_syntax(p->R, key->line, "keyword argument repeated: %.*s", (int)PL_MIN(key->name->len, 200),
                          key->name->data);
        add(p, names, key);
        add(p, kwargs, parse_expression(p));
    } else {
        ok = n->b == NULL && n->c == NULL && kwargs->n == 0;
        add(p, args, parse_expression(p));
    }
    if (!ok) tj_syntax(p->R, line, "invalid syntax for function call expression");
}

/* The parenthesised arguments of a call, filter or test, into n. */
static void parse_call_args(struct parser *p, struct tj_node *n) {
    uint32_t line = expect(p, TJ_T_LPAREN, NULL)->line;
    struct vec args = {0}, kwargs = {0}, names = {0};
    for (bool comma = false; cur(p)->type != TJ_T_RPAREN; comma = true) {
        if (comma) {
            expect(p, TJ_T_COMMA, NULL);
            if (cur(p)->type == TJ_T_RPAREN) break;
        }
        call_arg(p, n, &args, &kwargs, &names, line);
    }
    expect(p, TJ_T_RPAREN, NULL);
    n->kids = args.v;
    n->nkids = args.n;
    n->kids2 = kwargs.v;
    n->nkids2 = n->nnames = kwargs.n;
    n->names = tj_alloc(p->R, names.n, sizeof *n->names);
    for (size_t i = 0; i < names.n; i++) n->names[i] = names.v[i]->name;
}

static struct tj_node *parse_call(struct parser *p, struct tj_node *callee) {
    struct tj_node *n = node(p, TJ_N_CALL, cur(p)->line);
    n->a = callee;
    parse_call_args(p, n);
    return n;
}

static struct tj_str *dotted_name(struct parser *p) {
    struct tj_str *name = expect(p, TJ_T_NAME, NULL)->val.s;
    while (skip(p, TJ_T_DOT)) {
        name = tj_str_concat(p->R, name, tj_str_borrow(p->R, ".", 1, false));
        name = tj_str_concat(p->R, name, expect(p, TJ_T_NAME, NULL)->val.s);
    }
    return name;
}

static struct tj_node *parse_filter(struct parser *p, struct tj_node *value, bool start_inline) {
    size_t len = 0;
    while (cur(p)->type == TJ_T_PIPE || start_inline) {
        if (!start_inline) take(p);
        chain(p, &len);
        struct tj_node *n = node(p, TJ_N_FILTER, cur(p)->line);
        n->name = dotted_name(p);
        n->id = tj_filter_find(n->name->data, n->name->len);
        n->a = value;
        if (cur(p)->type == TJ_T_LPAREN) parse_call_args(p, n);
        value = n;
        start_inline = false;
    }
    return value;
}

static bool starts_test_arg(struct parser *p) {
    const struct tj_token *t = cur(p);
    switch (t->type) {
    case TJ_T_STRING:
    case TJ_T_INT:
    case TJ_T_FLOAT:
    case TJ_T_LBRACKET:
    case TJ_T_LBRACE: return true;
    case TJ_T_NAME: return !is_name(t, "else") && !is_name(t, "or") && !is_name(t, "and");
    default: return false;
    }
}

static struct tj_node *parse_test(struct parser *p, struct tj_node *value) {
    uint32_t line = take(p)->line;
    bool negated = skip_name(p, "not");
    struct tj_node *n = node(p, TJ_N_TEST, line);
    n->name = dotted_name(p);
    n->id = tj_test_find(n->name->data, n->name->len);
    n->a = value;
    if (cur(p)->type == TJ_T_LPAREN) {
        parse_call_args(p, n);
    } else if (starts_test_arg(p)) {
        if (is_name(cur(p), "is")) tj_syntax(p->R, cur(p)->line, "You cannot chain multiple tests with is");
        struct vec args = {0};
        add(p, &args, parse_postfix(p, parse_primary(p, false)));
        n->kids = args.v;
        n->nkids = 1;
    }
    return negated ? binary(p, TJ_N_NOT, 0, n, NULL, line) : n;
}

static struct tj_node *parse_postfix(struct parser *p, struct tj_node *n) {
    for (size_t len = 0;;) {
        chain(p, &len);
        int type = cur(p)->type;
        if (type == TJ_T_DOT || type == TJ_T_LBRACKET)
            n = parse_subscript(p, n);
        else if (type == TJ_T_LPAREN)
            n = parse_call(p, n);
        else
            return n;
    }
}

static struct tj_node *parse_unary(struct parser *p, bool with_filter) {
    int type = cur(p)->type;
    uint32_t line = cur(p)->line;
    struct tj_node *n;
    tj_enter(p->R);
    if (type == TJ_T_SUB || type == TJ_T_ADD) {
        take(p);
        n = binary(p, type == TJ_T_SUB ? TJ_N_NEG : TJ_N_POS, 0, parse_unary(p, false), NULL, line);
    } else {
        n = parse_primary(p, false);
    }
    n = parse_postfix(p, n);
    for (size_t len = 0; with_filter;) {
        chain(p, &len);
        if (cur(p)->type == TJ_T_PIPE)
            n = parse_filter(p, n, false);
        else if (is_name(cur(p), "is"))
            n = parse_test(p, n);
        else if (cur(p)->type == TJ_T_LPAREN)
            n = parse_call(p, n);
        else
            break;
    }
    tj_leave(p->R);
    return n;
}

/* --- statements --- */

static const char *const end_for_else[] = {"endfor", "else", NULL}, *const end_for[] = {"endfor", NULL};
static const char *const end_if_any[] = {"elif", "else", "endif", NULL}, *const end_if[] = {"endif", NULL};
static const char *const end_set[] = {"endset", NULL}, *const end_macro[] = {"endmacro", NULL};
static const char *const end_call[] = {"endcall", NULL}, *const end_filter[] = {"endfilter", NULL};
static const char *const end_with[] = {"endwith", NULL}, *const end_block[] = {"endblock", NULL};
static const char *const end_generation[] = {"endgeneration", NULL};

static void can_assign(struct parser *p, const struct tj_node *n) {
    static const char *const kinds[] = {"const", "name", "nsref", "tuple", "list", "dict"};
    if (n->kind == TJ_N_NAME || n->kind == TJ_N_NSREF) return;
    if (n->kind == TJ_N_TUPLE) {
        for (size_t i = 0; i < n->nkids; i++)
            if (n->kids[i]->kind != TJ_N_NAME && n->kids[i]->kind != TJ_N_NSREF) {
                tj_enter(p->R);
                if (n->kids[i]->kind != TJ_N_TUPLE) tj_syntax(p->R, n->line, "can't assign to 'tuple'");
                can_assign(p, n->kids[i]);
                tj_leave(p->R);
            }
        return;
    }
    tj_syntax(p->R, n->line, "can't assign to '%s'", n->kind < PL_COUNT_OF(kinds) ? kinds[n->kind] : "expression");
}
static void mark_store(struct tj_node *n) {
    n->store = true;
    for (size_t i = 0; n->kind == TJ_N_TUPLE && i < n->nkids; i++) mark_store(n->kids[i]);
}
static void mark_param(struct tj_node *n) {
    n->param = true;
    for (size_t i = 0; n->kind == TJ_N_TUPLE && i < n->nkids; i++) mark_param(n->kids[i]);
}
static struct tj_node *parse_target(struct parser *p, const char *end, bool with_namespace) {
    struct tj_node *n = parse_tuple(p, (struct tuple_opts){.simplified = true, .end = end, .ns = with_namespace});
    can_assign(p, n);
    mark_store(n);
    return n;
}
static struct tj_node *name_target(struct parser *p) {
    const struct tj_token *t = expect(p, TJ_T_NAME, NULL);
    static const char *const reserved[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < PL_COUNT_OF(reserved); i++)
        if (tj_str_is(t->val.s, reserved[i])) tj_syntax(p->R, t->line, "can't assign to 'name'");
    struct tj_node *n = node(p, TJ_N_NAME, t->line);
    n->name = t->val.s;
    n->store = true;
    return n;
}

/* The body up to one of ends, which stays the current token. */
static struct vec statements(struct parser *p, const char *const *ends) {
    struct vec body = {0};
    skip(p, TJ_T_COLON);
    expect(p, TJ_T_BLOCK_END, NULL);
    subparse(p, ends, &body);
    return body;
}
static struct vec statements_drop(struct parser *p, const char *const *ends) {
    struct vec body = statements(p, ends);
    take(p);
    return body;
}

static struct tj_node *parse_for(struct parser *p) {
    struct tj_node *n = node(p, TJ_N_FOR, take(p)->line);
    n->a = parse_target(p, "in", false);
    expect(p, TJ_T_NAME, "in");
    n->b = parse_tuple(p, (struct tuple_opts){.no_condexpr = true, .end = "recursive"});
    if (skip_name(p, "if")) n->c = parse_expression(p);
    n->recursive = skip_name(p, "recursive");
    struct vec body = statements(p, end_for_else), other = {0};
    if (is_name(take(p), "else")) other = statements_drop(p, end_for);
    n->kids = body.v;
    n->nkids = body.n;
    n->kids2 = other.v;
    n->nkids2 = other.n;
    return n;
}

static struct tj_node *parse_if(struct parser *p) {
    struct tj_node *result = node(p, TJ_N_IF, take(p)->line), *n = result;
    struct vec elifs = {0}, other = {0};
    for (;;) {
        n->a = parse_tuple(p, (struct tuple_opts){.no_condexpr = true});
        struct vec body = statements(p, end_if_any);
        n->kids = body.v;
        n->nkids = body.n;
        const struct tj_token *t = take(p);
        if (is_name(t, "elif")) {
            n = node(p, TJ_N_IF, cur(p)->line);
            add(p, &elifs, n);
            continue;
        }
        if (is_name(t, "else")) other = statements_drop(p, end_if);
        break;
    }
    result->kids2 = elifs.v;
    result->nkids2 = elifs.n;
    result->kids3 = other.v;
    result->nkids3 = other.n;
    return result;
}

static struct tj_node *parse_set(struct parser *p) {
    struct tj_node *n = node(p, TJ_N_SET, take(p)->line);
    n->a = parse_target(p, NULL, true);
    if (skip(p, TJ_T_ASSIGN)) {
        n->b = parse_tuple(p, (struct tuple_opts){0});
        return n;
    }
    n->kind = TJ_N_SETBLOCK;
    n->b = parse_filter(p, NULL, false);
    struct vec body = statements_drop(p, end_set);
    n->kids = body.v;
    n->nkids = body.n;
    return n;
}

static void parse_signature(struct parser *p, struct tj_node *n) {
    struct vec args = {0}, defaults = {0};
    expect(p, TJ_T_LPAREN, NULL);
    while (cur(p)->type != TJ_T_RPAREN) {
        if (args.n > 0) expect(p, TJ_T_COMMA, NULL);
        struct tj_node *arg = name_target(p);
        arg->param = true;
        for (size_t i = 0; i < args.n; i++)
            if (tj_str_eq(args.v[i]->name, arg->name))
                tj_syntax(p->R, arg->line, "duplicate argument in function definition");
        if (skip(p, TJ_T_ASSIGN))
            add(p, &defaults, parse_expression(p));
        else if (defaults.n > 0)
            tj_syntax(p->R, cur(p)->line, "non-default argument follows default argument");
        add(p, &args, arg);
    }
    expect(p, TJ_T_RPAREN, NULL);
    n->kids = args.v;
    n->nkids = args.n;
    n->kids2 = defaults.v;
    n->nkids2 = defaults.n;
}

static void set_body(struct tj_node *n, struct vec body) {
    n->kids3 = body.v;
    n->nkids3 = body.n;
}

static struct tj_node *parse_macro(struct parser *p) {
    struct tj_node *n = node(p, TJ_N_MACRO, take(p)->line);
    n->name = name_target(p)->name;
    parse_signature(p, n);
    set_body(n, statements_drop(p, end_macro));
    return n;
}

static struct tj_node *parse_call_block(struct parser *p) {
    struct tj_node *n = node(p, TJ_N_CALLBLOCK, take(p)->line);
    if (cur(p)->type == TJ_T_LPAREN) parse_signature(p, n);
    n->a = parse_expression(p);
    if (n->a->kind != TJ_N_CALL) tj_syntax(p->R, n->line, "expected call");
    set_body(n, statements_drop(p, end_call));
    return n;
}

static struct tj_node *parse_generation(struct parser *p) {
    struct tj_node *n = node(p, TJ_N_GENERATION, take(p)->line);
    set_body(n, statements_drop(p, end_generation));
    return n;
}

static struct tj_node *parse_filter_block(struct parser *p) {
    struct tj_node *n = node(p, TJ_N_FILTERBLOCK, take(p)->line);
    n->a = parse_filter(p, NULL, true);
    struct vec body = statements_drop(p, end_filter);
    n->kids = body.v;
    n->nkids = body.n;
    return n;
}

static struct tj_node *parse_with(struct parser *p) {
    struct tj_node *n = node(p, TJ_N_WITH, take(p)->line);
    struct vec targets = {0}, values = {0};
    while (cur(p)->type != TJ_T_BLOCK_END) {
        if (targets.n > 0) expect(p, TJ_T_COMMA, NULL);
        struct tj_node *target = parse_target(p, NULL, false);
        mark_param(target);
        add(p, &targets, target);
        expect(p, TJ_T_ASSIGN, NULL);
        add(p, &values, parse_expression(p));
    }
    n->kids = targets.v;
    n->kids2 = values.v;
    n->nkids = n->nkids2 = targets.n;
    set_body(n, statements_drop(p, end_with));
    return n;
}

static struct tj_node *parse_block(struct parser *p) {
    struct tj_node *n = node(p, TJ_N_BLOCK, take(p)->line);
    n->name = expect(p, TJ_T_NAME, NULL)->val.s;
    bool scoped = skip_name(p, "scoped"), required = skip_name(p, "required");
    if (cur(p)->type == TJ_T_SUB) tj_syntax(p->R, cur(p)->line, "Block names in Jinja may not contain hyphens");
    if (scoped || required) tj_raise(p->R, PL_UNSUPPORTED, "scoped and required blocks are not supported in chat templates");
    for (size_t i = 0; i < p->tpl->nblocks; i++)
        if (tj_str_eq(p->tpl->blocks[i]->name, n->name))
            tj_syntax(p->R, n->line, "block '%.*s' defined twice", (int)PL_MIN(n->name->len, 200), n->name->data);
    struct tj_node **grown = tj_alloc(p->R, p->tpl->nblocks + 1, sizeof(struct tj_node *));
    if (p->tpl->nblocks > 0) memcpy(grown, p->tpl->blocks, p->tpl->nblocks * sizeof(struct tj_node *));
    grown[p->tpl->nblocks++] = n;
    p->tpl->blocks = grown;
    struct vec body = statements_drop(p, end_block);
    n->kids = body.v;
    n->nkids = body.n;
    if (cur(p)->type == TJ_T_NAME && tj_str_eq(cur(p)->val.s, n->name)) take(p);
    return n;
}

static struct tj_node *parse_print(struct parser *p) {
    struct tj_node *n = node(p, TJ_N_OUTPUT, take(p)->line);
    struct vec kids = {0};
    while (cur(p)->type != TJ_T_BLOCK_END) {
        if (kids.n > 0) expect(p, TJ_T_COMMA, NULL);
        add(p, &kids, parse_expression(p));
    }
    n->kids = kids.v;
    n->nkids = kids.n;
    return n;
}

/* include, import, from, extends: accepted and refused when reached, because a template of one file has no loader. */
static struct tj_node *parse_refused(struct parser *p) {
    struct tj_node *n = node(p, TJ_N_REFUSED, cur(p)->line);
    n->name = take(p)->val.s;
    while (cur(p)->type != TJ_T_BLOCK_END && cur(p)->type != TJ_T_EOF) take(p);
    return n;
}
static struct tj_node *parse_break(struct parser *p) { return node(p, TJ_N_BREAK, take(p)->line); }
static struct tj_node *parse_continue(struct parser *p) { return node(p, TJ_N_CONTINUE, take(p)->line); }

static _Noreturn void unknown_tag(struct parser *p, const struct tj_token *t, bool eof) {
    struct tj_sb b;
    tj_sb_init(p->R, &b);
    bool nesting = false;
    if (eof) {
        tj_sb_c(&b, "Unexpected end of template.", false);
    } else {
        tj_sb_c(&b, "Encountered unknown tag ", false);
        tj_emit_repr(&b, t->val);
        tj_sb_c(&b, ".", false);
        for (size_t i = 0; i < p->nends; i++)
            for (const char *const *e = p->ends[i]; *e != NULL; e++) nesting = nesting || tj_str_is(t->val.s, *e);
    }
    if (p->nends > 0) {
        tj_sb_c(&b,
                nesting ? " You probably made a nesting mistake. Jinja is expecting this tag, but currently looking for "
                        : " Jinja was looking for the following tags: ",
                false);
        for (const char *const *e = p->ends[p->nends - 1]; *e != NULL; e++) {
            if (e != p->ends[p->nends - 1]) tj_sb_c(&b, " or ", false);
            tj_emit_repr(&b, tj_cstr(p->R, *e));
        }
        tj_sb_c(&b, ".", false);
    }
    if (p->ntags > 0) {
        tj_sb_c(&b, " The innermost block that needs to be closed is '", false);
        tj_sb_c(&b, p->tags[p->ntags - 1], false);
        tj_sb_c(&b, "'.", false);
    }
    struct tj_str *s = tj_sb_done(&b);
    tj_syntax(p->R, t->line, "%.*s", (int)PL_MIN(s->len, 1000), s->data);
}

static const struct {
    const char *tag;
    struct tj_node *(*fn)(struct parser *p);
} tags[] = {
    {"for", parse_for},         {"if", parse_if},
    {"set", parse_set},         {"macro", parse_macro},
    {"call", parse_call_block}, {"filter", parse_filter_block},
    {"with", parse_with},       {"block", parse_block},
    {"print", parse_print},     {"generation", parse_generation},
    {"break", parse_break},     {"continue", parse_continue},
    {"include", parse_refused}, {"import", parse_refused},
    {"from", parse_refused},    {"extends", parse_refused},
};

static struct tj_node *parse_statement(struct parser *p) {
    const struct tj_token *t = cur(p);
    if (t->type != TJ_T_NAME) tj_syntax(p->R, t->line, "tag name expected");
    if (tj_str_is(t->val.s, "autoescape"))
        tj_raise(p->R, PL_UNSUPPORTED, "autoescape blocks are not supported in chat templates");
    for (size_t i = 0; i < PL_COUNT_OF(tags); i++) {
        if (!tj_str_is(t->val.s, tags[i].tag)) continue;
        if (p->ntags == PL_COUNT_OF(p->tags)) tj_raise(p->R, PL_LIMIT, "blocks are nested deeper than %zu", p->ntags);
        p->tags[p->ntags++] = tags[i].tag;
        tj_enter(p->R);
        struct tj_node *n = tags[i].fn(p);
        tj_leave(p->R);
        p->ntags--;
        return n;
    }
    unknown_tag(p, t, false);
}

static void flush(struct parser *p, struct vec *data, struct vec *out) {
    if (data->n == 0) return;
    struct tj_node *n = node(p, TJ_N_OUTPUT, data->v[0]->line);
    n->kids = data->v;
    n->nkids = data->n;
    add(p, out, n);
    *data = (struct vec){0};
}

static void subparse(struct parser *p, const char *const *ends, struct vec *out) {
    struct vec data = {0};
    if (ends != NULL) {
        if (p->nends == PL_COUNT_OF(p->ends)) tj_raise(p->R, PL_LIMIT, "blocks are nested deeper than %zu", p->nends);
        p->ends[p->nends++] = ends;
    }
    while (cur(p)->type != TJ_T_EOF) {
        const struct tj_token *t = cur(p);
        if (t->type == TJ_T_DATA) {
            struct tj_node *n = node(p, TJ_N_DATA, t->line);
            n->val = take(p)->val;
            add(p, &data, n);
        } else if (t->type == TJ_T_VAR_BEGIN) {
            take(p);
            add(p, &data, parse_tuple(p, (struct tuple_opts){0}));
            expect(p, TJ_T_VAR_END, NULL);
        } else {
            flush(p, &data, out);
            take(p);
            for (const char *const *e = ends; e != NULL && *e != NULL; e++)
                if (is_name(cur(p), *e)) {
                    p->nends--;
                    return;
                }
            add(p, out, parse_statement(p));
            expect(p, TJ_T_BLOCK_END, NULL);
        }
    }
    flush(p, &data, out);
    if (ends != NULL) unknown_tag(p, cur(p), true);
}

void tj_parse(struct tj_rt *R, const char *source, size_t len, struct pl_template *t) {
    struct parser *p = tj_alloc(R, 1, sizeof *p);
    p->R = R;
    p->tpl = t;
    tj_lex(R, source, len, &p->t);
    struct vec body = {0};
    subparse(p, NULL, &body);
    t->body = body.v;
    t->nbody = body.n;
}
