/* ast - the parsed template. Nodes live in the template's arena and never change after pl_template_parse, so one
 * template may be rendered by many threads at once. */
#ifndef PL_CHAT_AST_H
#define PL_CHAT_AST_H

#include "chat/rt.h"
#include "chat/value.h"

enum tj_kind {
    /* expressions */
    TJ_N_CONST,
    TJ_N_NAME,
    TJ_N_NSREF,
    TJ_N_TUPLE,
    TJ_N_LIST,
    TJ_N_DICT,
    TJ_N_COND,
    TJ_N_AND,
    TJ_N_OR,
    TJ_N_NOT,
    TJ_N_NEG,
    TJ_N_POS,
    TJ_N_BIN,
    TJ_N_CONCAT,
    TJ_N_COMPARE,
    TJ_N_GETATTR,
    TJ_N_GETITEM,
    TJ_N_SLICE,
    TJ_N_CALL,
    TJ_N_FILTER,
    TJ_N_TEST,
    TJ_N_DATA,
    /* statements */
    TJ_N_OUTPUT,
    TJ_N_FOR,
    TJ_N_IF,
    TJ_N_SET,
    TJ_N_SETBLOCK,
    TJ_N_MACRO,
    TJ_N_CALLBLOCK,
    TJ_N_GENERATION,
    TJ_N_FILTERBLOCK,
    TJ_N_WITH,
    TJ_N_BLOCK,
    TJ_N_BREAK,
    TJ_N_CONTINUE,
    TJ_N_REFUSED, /* include, import, extends: an error when reached */
};

enum tj_op { /* binary operators and comparisons */
             TJ_OP_ADD,
             TJ_OP_SUB,
             TJ_OP_MUL,
             TJ_OP_DIV,
             TJ_OP_FLOORDIV,
             TJ_OP_MOD,
             TJ_OP_POW,
             TJ_OP_EQ,
             TJ_OP_NE,
             TJ_OP_LT,
             TJ_OP_LE,
             TJ_OP_GT,
             TJ_OP_GE,
             TJ_OP_IN,
             TJ_OP_NOTIN,
};

struct tj_slot { /* hops function activations outward, then a slot there */
    uint32_t hops, index;
};

enum tj_load_kind { TJ_LOAD_RESOLVE, TJ_LOAD_ALIAS, TJ_LOAD_UNDEFINED };
struct tj_load { /* what entering a scope does to one of its slots */
    struct tj_slot to, from;
    struct tj_str *name;
    int kind;
};
struct tj_scope {
    struct tj_load *loads;
    size_t nloads;
    size_t nslots; /* of the function that begins here; 0 when the scope is part of a function */
};

struct tj_node {
    uint8_t kind, op;
    bool store, param, recursive, extended, toplevel;
    bool wants_caller, wants_kwargs, wants_varargs; /* macros */
    bool folded;                                    /* fold.c has been here */
    uint32_t line;
    int id; /* filter or test number, -1 unknown */
    struct tj_str *name;
    struct tj_val val; /* constants, data */
    struct tj_node *a, *b, *c, *d;
    struct tj_node **kids, **kids2, **kids3;
    size_t nkids, nkids2, nkids3;
    struct tj_str **names; /* keyword arguments; block targets */
    size_t nnames;
    uint8_t *ops;                             /* comparison chain */
    struct tj_slot slot, slot2, slot3, slot4; /* name; loop or caller, kwargs, varargs */
    struct tj_scope *scope, *scope2, *scope3;
};
/* Which field means what, per kind:
 *  TUPLE LIST CONCAT   kids
 *  DICT                kids keys, kids2 values
 *  COND                a test, b then, c else or NULL
 *  BIN AND OR NOT ...  a, b
 *  COMPARE             a, kids with ops
 *  GETATTR             a, name            GETITEM  a, b
 *  SLICE               a start, b stop, c step
 *  CALL FILTER TEST    a callee or value (NULL in filter blocks), kids positional, names + kids2 keywords, b *args, c
 * **kwargs OUTPUT              kids FOR                 a target, b iter, c test, d target as the test sees it, kids body,
 * kids2 else; scope body, scope2 else, scope3 test IF                  a test, kids body, kids2 elif nodes, kids3 else SET
 * a target, b value  SETBLOCK a target, b filter, kids body MACRO               name, kids args, kids2 defaults, kids3 body
 *  CALLBLOCK           as MACRO, a the call; slot4 unused
 *  FILTERBLOCK         a filter, kids body
 *  WITH                kids targets, kids2 values, kids3 body
 *  BLOCK               name, kids body */

struct pl_template {
    struct pl_arena arena;
    struct tj_node **body;
    size_t nbody;
    struct tj_scope *scope;
    struct tj_node **blocks;
    size_t nblocks;
    bool uses_self;
    struct tj_slot self;
    size_t source_len;
};

/* lexing */
enum tj_tok {
    TJ_T_EOF,
    TJ_T_DATA,
    TJ_T_VAR_BEGIN,
    TJ_T_VAR_END,
    TJ_T_BLOCK_BEGIN,
    TJ_T_BLOCK_END,
    TJ_T_NAME,
    TJ_T_STRING,
    TJ_T_INT,
    TJ_T_FLOAT,
    TJ_T_ERROR, /* val is the message: raised when the parser gets here */
    TJ_T_ADD,
    TJ_T_SUB,
    TJ_T_DIV,
    TJ_T_FLOORDIV,
    TJ_T_MUL,
    TJ_T_MOD,
    TJ_T_POW,
    TJ_T_TILDE,
    TJ_T_LBRACKET,
    TJ_T_RBRACKET,
    TJ_T_LPAREN,
    TJ_T_RPAREN,
    TJ_T_LBRACE,
    TJ_T_RBRACE,
    TJ_T_EQ,
    TJ_T_NE,
    TJ_T_GT,
    TJ_T_GE,
    TJ_T_LT,
    TJ_T_LE,
    TJ_T_ASSIGN,
    TJ_T_DOT,
    TJ_T_COLON,
    TJ_T_PIPE,
    TJ_T_COMMA,
    TJ_T_SEMICOLON,
};
struct tj_token {
    int type;
    uint32_t line;
    struct tj_val val;
};
struct tj_tokens {
    struct tj_token *v;
    size_t n, cap;
};
void tj_lex(struct tj_rt *R, const char *source, size_t len, struct tj_tokens *out);
void tj_parse(struct tj_rt *R, const char *source, size_t len, struct pl_template *t);
void tj_resolve(struct tj_rt *R, struct pl_template *t);
_Noreturn void tj_syntax(struct tj_rt *R, uint32_t line, const char *fmt, ...) PL_PRINTF(3, 4);

/* fold.c: constant parts of an expression, and a whole output when it is constant */
void tj_fold(struct tj_rt *R, struct tj_node *n);
void tj_fold_output(struct tj_rt *R, struct tj_node *n);

/* evaluation */
struct tj_val tj_eval(struct tj_rt *R, const struct tj_node *n);
void tj_run(struct tj_rt *R, const struct pl_template *t);
void tj_eval_args(struct tj_rt *R, const struct tj_node *n, struct tj_args *out);
struct tj_val tj_eval_filter(struct tj_rt *R, const struct tj_node *n, struct tj_val input);
struct tj_env *tj_env_new(struct tj_rt *R, struct tj_env *up, size_t nslots);
struct tj_val *tj_slot_at(struct tj_rt *R, struct tj_slot s);

#endif
