/* rt - what the parts of the engine offer one another: calls, attributes, iteration, operators. */
#ifndef PL_CHAT_RT_H
#define PL_CHAT_RT_H

#include "chat/value.h"

struct tj_node;

/* Arguments of a call as Python has them. */
struct tj_args {
    struct tj_val *pos;
    size_t npos;
    struct tj_str **kwname;
    struct tj_val *kw;
    size_t nkw;
};

/* Binds arguments to names. spec is "a b c=d e=" : names separated by blanks, '=' after a name says it may be absent
 * (out is TJ_MISSING then), a leading '*' collects nothing and stands for "no more positional". first_given counts
 * arguments already bound by the caller (the filtered value), only for messages. */
void tj_bind(struct tj_rt *R, const char *fname, const struct tj_args *a, const char *spec, struct tj_val *out);
bool tj_index(struct tj_val v, int64_t *out);          /* Python's __index__: int or bool */
int64_t tj_need_int(struct tj_rt *R, struct tj_val v); /* "'str' object cannot be interpreted as an integer" */
struct tj_str *tj_need_str(struct tj_rt *R, struct tj_val v, const char *what);

/* attributes and items, as the sandboxed environment looks them up */
struct tj_val tj_getattr(struct tj_rt *R, struct tj_val obj, struct tj_str *name);
struct tj_val tj_getitem(struct tj_rt *R, struct tj_val obj, struct tj_val key);
struct tj_val tj_subscript_slice(struct tj_rt *R, struct tj_val obj, const struct tj_slice *s);
struct tj_val tj_seq_item(struct tj_rt *R, struct tj_val seq, int64_t i); /* in range only */
/* getattr(obj, name) alone: false when there is no such attribute */
bool tj_native_attr(struct tj_rt *R, struct tj_val obj, struct tj_str *name, struct tj_val *out);
int tj_method_find(struct tj_val obj, const struct tj_str *name); /* -1: none */
struct tj_val tj_method_call(struct tj_rt *R, const struct tj_method *m, const struct tj_args *a);
struct tj_val tj_str_method(struct tj_rt *R, struct tj_str *self, int id, const struct tj_args *a);
const char *tj_str_method_name(int id);
int tj_str_method_find(const struct tj_str *name);

/* calls */
struct tj_val tj_call(struct tj_rt *R, struct tj_val callee, const struct tj_args *a);
int tj_func_find(const struct tj_str *name);
struct tj_val tj_func_call(struct tj_rt *R, int id, const struct tj_args *a);
const char *tj_func_name(int id);
struct tj_val tj_macro_call(struct tj_rt *R, struct tj_macro *m, const struct tj_args *a);
struct tj_val tj_loop_call(struct tj_rt *R, struct tj_loop *l, struct tj_val iterable);
struct tj_val tj_block_call(struct tj_rt *R, const struct tj_node *block);
bool tj_callable(struct tj_val v);

/* filters and tests */
int tj_filter_find(const char *name, size_t len); /* -1: none */
bool tj_filter_needs_run(int id);                 /* never computed while parsing */
struct tj_val tj_filter_call(struct tj_rt *R, int id, struct tj_val v, const struct tj_args *a);
int tj_test_find(const char *name, size_t len);
bool tj_test_call(struct tj_rt *R, int id, struct tj_val v, const struct tj_args *a);
struct tj_val tj_json_dumps(struct tj_rt *R, struct tj_val v, bool ensure_ascii, struct tj_val indent,
                            struct tj_val separators, bool sort_keys);
struct tj_str *tj_pformat(struct tj_rt *R, struct tj_val v);
struct tj_str *tj_percent_format(struct tj_rt *R, struct tj_str *fmt, struct tj_val args);
struct tj_str *tj_brace_format(struct tj_rt *R, struct tj_str *fmt, const struct tj_args *a, bool auto_ok);
struct tj_str *tj_escape(struct tj_rt *R, struct tj_val v); /* HTML, result is markup */
struct tj_list *tj_sorted(struct tj_rt *R, struct tj_list *items, struct tj_list *keys, bool reverse);

/* operators */
struct tj_val tj_binary(struct tj_rt *R, int op, struct tj_val a, struct tj_val b);
bool tj_contains(struct tj_rt *R, struct tj_val item, struct tj_val container);

/* iteration */
enum tj_iter_kind {
    TJ_IT_SEQ,  /* list, tuple, string, range by index */
    TJ_IT_DICT, /* keys, values or items by position */
    TJ_IT_EMPTY,
    TJ_IT_MAP,    /* lazily: a filter or an attribute path */
    TJ_IT_SELECT, /* lazily: select, reject, selectattr, rejectattr */
    TJ_IT_UNIQUE,
    TJ_IT_BATCH,
    TJ_IT_LOOPTEST, /* the `if` of a for loop */
    TJ_IT_LOOP,     /* iterating a loop object itself */
    TJ_IT_SLICE,
    TJ_IT_ITEMS,
};
struct tj_iter {
    int kind;
    const char *pyname; /* "generator", "list_reverseiterator", ... */
    struct tj_val src;
    struct tj_iter *inner;
    int64_t pos, end;
    bool reverse, started, done, reject, with_attr;
    int what;
    size_t offset; /* byte offset when src is a string */
    const struct tj_node *node;
    struct tj_env *env;
    struct tj_args args;
    struct tj_list *path; /* attribute path */
    struct tj_val dflt, name;
    bool has_dflt, case_sensitive;
    struct tj_dict *seen;
    int64_t n;
    struct tj_val fill;
};
bool tj_iterable(struct tj_val v);
struct tj_iter *tj_iter(struct tj_rt *R, struct tj_val v); /* raises "'int' object is not iterable" */
bool tj_next(struct tj_rt *R, struct tj_iter *it, struct tj_val *out);
struct tj_list *tj_to_list(struct tj_rt *R, struct tj_val v);
struct tj_iter *tj_iter_new(struct tj_rt *R, int kind, struct tj_val src, const char *pyname);
struct tj_iter *tj_reversed(struct tj_rt *R, struct tj_val v); /* NULL: not reversible */
struct tj_list *tj_attr_path(struct tj_rt *R, struct tj_val attribute);
struct tj_val tj_follow(struct tj_rt *R, struct tj_val v, const struct tj_list *path, const struct tj_val *dflt);
bool tj_loop_test(struct tj_rt *R, struct tj_iter *it, struct tj_val item); /* exec.c */
bool tj_loop_next(struct tj_rt *R, struct tj_loop *l, struct tj_val *out);
bool tj_loop_attr(struct tj_rt *R, struct tj_loop *l, const struct tj_str *name, struct tj_val *out);
int64_t tj_loop_length(struct tj_rt *R, struct tj_loop *l);

/* Unicode as Python sees it */
size_t tj_utf8_put(uint32_t cp, char out[4]);
uint32_t tj_cp_at(const char *s, size_t len, size_t at, size_t *next);
bool tj_is_space(uint32_t cp);
bool tj_is_alpha(uint32_t cp);
bool tj_is_decimal(uint32_t cp);
bool tj_is_digit(uint32_t cp);
bool tj_is_numeric(uint32_t cp);
bool tj_is_alnum(uint32_t cp);
bool tj_is_upper(uint32_t cp);
bool tj_is_lower(uint32_t cp);
bool tj_is_title(uint32_t cp);
bool tj_is_printable(uint32_t cp);
bool tj_is_id_start(uint32_t cp);
bool tj_is_id_continue(uint32_t cp);
int tj_decimal_value(uint32_t cp); /* -1: none */
enum tj_case { TJ_UPPER, TJ_LOWER, TJ_TITLECASE, TJ_FOLD };
size_t tj_map_case(uint32_t cp, enum tj_case how, uint32_t out[3]);
bool tj_parse_int(const struct tj_str *s, int base, int64_t *out, bool *overflow); /* Python's int(str, base) */
bool tj_parse_float(const struct tj_str *s, double *out);

/* whole-string casing with taint */
struct tj_str *tj_str_case(struct tj_rt *R, const struct tj_str *s, int how); /* 'u' 'l' 't' 'c' 's' 'f' */
struct tj_str *tj_str_strip(struct tj_rt *R, struct tj_str *s, const struct tj_str *chars, int sides);
struct tj_str *tj_str_replace(struct tj_rt *R, struct tj_str *s, struct tj_str *from, struct tj_str *to, int64_t count);
struct tj_list *tj_str_splitlines(struct tj_rt *R, struct tj_str *s, bool keep);
struct tj_str *tj_str_slice_step(struct tj_rt *R, struct tj_str *s, int64_t start, int64_t n, int64_t step);
struct tj_str *tj_pad(struct tj_rt *R, struct tj_str *s, int64_t width, struct tj_str *fill, int align);

#endif
