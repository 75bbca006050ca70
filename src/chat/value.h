/* value - what a template computes with: Python-like values, all in the arena of one run.
 *
 * Nothing here is freed one by one and nothing is reference counted: a run owns one arena (tj_rt.arena) and drops it
 * whole. Errors leave by longjmp to the entry point (tj_protect), which is why no function here returns a status; no
 * code in this folder may hold heap memory outside the arena across a call that takes a tj_rt.
 *
 * Every string carries the byte ranges (spans) that came from the caller; numbers and booleans carry one flag. Strings
 * are immutable once finished, so views may share bytes. */
#ifndef PL_CHAT_VALUE_H
#define PL_CHAT_VALUE_H

#include <setjmp.h>

#include "base/arena.h"
#include "base/str.h"
#include "chat/template.h"

enum tj_type {
    TJ_MISSING, /* never seen by templates: an unset variable or argument */
    TJ_UNDEF,
    TJ_NONE,
    TJ_BOOL,
    TJ_INT,
    TJ_FLOAT,
    TJ_STR,
    TJ_LIST,
    TJ_TUPLE,
    TJ_DICT,
    TJ_RANGE,
    TJ_VIEW,
    TJ_NS,
    TJ_MACRO,
    TJ_FUNC,
    TJ_METHOD,
    TJ_LOOP,
    TJ_ITER,
    TJ_CYCLER,
    TJ_JOINER,
    TJ_SLICE,
    TJ_SELF,
    TJ_BLOCKREF,
};

struct tj_str {
    const char *data;  /* UTF-8, not terminated */
    size_t len, chars; /* bytes; code points, SIZE_MAX while not counted */
    const struct pl_text_span *spans;
    size_t nspans;
    struct pl_text_span one; /* storage for the common single span */
    bool markup;
};

struct tj_val {
    uint8_t type;
    bool taint; /* for numbers and booleans: came from the caller */
    union {
        bool b;
        int64_t i;
        double f;
        struct tj_str *s;
        struct tj_list *l;
        struct tj_dict *d;
        struct tj_range *r;
        struct tj_view *view;
        struct tj_undef *u;
        struct tj_macro *m;
        struct tj_method *meth;
        struct tj_loop *loop;
        struct tj_iter *it;
        struct tj_cycler *cyc;
        struct tj_joiner *join;
        struct tj_slice *slice;
        const struct tj_node *block;
        int func;
    };
};

struct tj_list { /* list and tuple */
    struct tj_val *v;
    size_t n, cap;
    bool group; /* a tuple made by groupby: has .grouper and .list */
};
struct tj_entry {
    struct tj_val k, v;
    uint64_t hash;
};
struct tj_dict { /* insertion order; also the attributes of a namespace */
    struct tj_entry *e;
    size_t n, cap;
    uint32_t *index; /* open addressing, entry number + 1; NULL while small */
    size_t icap;
};
struct tj_range {
    int64_t start, step, len;
    int64_t stop;
    bool taint;
};
struct tj_view {
    struct tj_dict *d;
    int what; /* 0 keys, 1 values, 2 items */
};
struct tj_undef {
    struct tj_str *hint; /* whole message, or NULL */
    struct tj_val obj;   /* TJ_MISSING for plain names */
    struct tj_val name;
};
struct tj_env {
    struct tj_env *up;
    struct tj_val slot[];
};
struct tj_macro {
    const struct tj_node *node;
    struct tj_env *env;
};
struct tj_method {
    struct tj_val self;
    int id;
};
struct tj_cycler {
    struct tj_list *items;
    size_t pos;
};
struct tj_joiner {
    struct tj_val sep;
    bool used;
};
struct tj_slice {
    struct tj_val start, stop, step;
};
struct tj_loop {
    struct tj_iter *it;
    struct tj_val iterable, after, current, before, changed;
    int64_t index0, length, depth0;
    const struct tj_node *node; /* recursive loops */
    struct tj_env *env;         /* where the loop function was defined */
};

struct tj_rt {
    struct pl_arena arena;
    jmp_buf out;
    struct pl_err *err;
    enum pl_status status;
    uint32_t line;
    bool folding, fold_fatal; /* fold.c: computing constants while parsing; an error that parsing does not survive */
    size_t fold_bytes;
    uint64_t fold_steps;
    uint64_t steps, steps_max;
    uint32_t nest, nest_max, calls, calls_max;
    size_t output_max;
    uint64_t seed;
    int64_t now;
    struct tj_env *env;
    struct tj_sb *sb; /* where output goes */
    struct tj_dict *vars, *exported;
    struct tj_sb *root;
    const struct pl_template *t;
};

/* --- errors and bounds --- */
_Noreturn void tj_raise(struct tj_rt *R, enum pl_status status, const char *fmt, ...) PL_PRINTF(3, 4);
_Noreturn void tj_raise_str(struct tj_rt *R, struct tj_str *message);
bool tj_protect(struct tj_rt *R, void (*fn)(struct tj_rt *, void *), void *arg);
void *tj_alloc(struct tj_rt *R, size_t count, size_t size);
void tj_charge(struct tj_rt *R, uint64_t steps);
void tj_enter(struct tj_rt *R); /* one level of nesting; pairs with tj_leave */
static inline void tj_leave(struct tj_rt *R) { R->nest--; }

/* --- string builder --- */
struct tj_sb {
    struct tj_rt *R;
    char *data;
    size_t len, cap;
    struct pl_text_span *spans;
    size_t nspans, spans_cap;
};
void tj_sb_init(struct tj_rt *R, struct tj_sb *b);
void tj_sb_raw(struct tj_sb *b, const char *data, size_t len, bool taint);
void tj_sb_sub(struct tj_sb *b, const struct tj_str *s, size_t from, size_t to);
void tj_sb_str(struct tj_sb *b, const struct tj_str *s);
void tj_sb_c(struct tj_sb *b, const char *c, bool taint);
void tj_sb_char(struct tj_sb *b, char c, bool taint);
void tj_sb_cp(struct tj_sb *b, uint32_t cp, bool taint);
void tj_sb_repeat(struct tj_sb *b, const struct tj_str *s, int64_t count);
struct tj_str *tj_sb_done(struct tj_sb *b);

/* --- strings --- */
struct tj_str *tj_str_new(struct tj_rt *R, const char *data, size_t len, bool taint);       /* copies */
struct tj_str *tj_str_borrow(struct tj_rt *R, const char *data, size_t len, bool taint);    /* bytes outlive the run */
struct tj_str *tj_str_sub(struct tj_rt *R, const struct tj_str *s, size_t from, size_t to); /* shares bytes */
struct tj_str *tj_str_plain(struct tj_rt *R, struct tj_str *s);                             /* without the markup mark */
struct tj_str *tj_str_printf(struct tj_rt *R, bool taint, const char *fmt, ...) PL_PRINTF(3, 4);
size_t tj_str_chars(struct tj_rt *R, struct tj_str *s);
size_t tj_str_offset(struct tj_rt *R, struct tj_str *s, size_t char_index); /* byte offset of a character */
bool tj_str_tainted_at(const struct tj_str *s, size_t offset);
bool tj_str_any_taint(const struct tj_str *s);
bool tj_str_eq(const struct tj_str *a, const struct tj_str *b);
bool tj_str_is(const struct tj_str *a, const char *c);
int tj_str_cmp(const struct tj_str *a, const struct tj_str *b);
size_t tj_str_find(const struct tj_str *s, size_t from, const char *needle, size_t len); /* SIZE_MAX: none */
struct tj_str *tj_str_concat(struct tj_rt *R, const struct tj_str *a, const struct tj_str *b);

/* --- making values --- */
static inline struct tj_val tj_none(void) { return (struct tj_val){.type = TJ_NONE}; }
static inline struct tj_val tj_missing(void) { return (struct tj_val){.type = TJ_MISSING}; }
static inline struct tj_val tj_bool(bool b) { return (struct tj_val){.type = TJ_BOOL, .b = b}; }
static inline struct tj_val tj_int(int64_t i) { return (struct tj_val){.type = TJ_INT, .i = i}; }
static inline struct tj_val tj_float(double f) { return (struct tj_val){.type = TJ_FLOAT, .f = f}; }
static inline struct tj_val tj_strv(struct tj_str *s) { return (struct tj_val){.type = TJ_STR, .s = s}; }
static inline struct tj_val tj_dictv(struct tj_dict *d) { return (struct tj_val){.type = TJ_DICT, .d = d}; }
static inline struct tj_val tj_listv(struct tj_list *l) { return (struct tj_val){.type = TJ_LIST, .l = l}; }
static inline struct tj_val tj_tuplev(struct tj_list *l) { return (struct tj_val){.type = TJ_TUPLE, .l = l}; }
static inline struct tj_val tj_tainted(struct tj_val v, bool taint) {
    v.taint = v.taint || taint;
    return v;
}
struct tj_val tj_cstr(struct tj_rt *R, const char *c);
struct tj_val tj_undef_name(struct tj_rt *R, struct tj_str *name);
struct tj_val tj_undef_hint(struct tj_rt *R, const char *hint);
struct tj_val tj_undef_attr(struct tj_rt *R, struct tj_val obj, struct tj_val name);
_Noreturn void tj_undef_fail(struct tj_rt *R, struct tj_val v);

struct tj_list *tj_list_new(struct tj_rt *R, size_t cap);
void tj_list_add(struct tj_rt *R, struct tj_list *l, struct tj_val v);
struct tj_val tj_pair(struct tj_rt *R, struct tj_val a, struct tj_val b);
struct tj_dict *tj_dict_new(struct tj_rt *R);
void tj_dict_set(struct tj_rt *R, struct tj_dict *d, struct tj_val k, struct tj_val v);
struct tj_val *tj_dict_get(struct tj_rt *R, const struct tj_dict *d, struct tj_val k); /* NULL: absent */
struct tj_val *tj_dict_get_c(struct tj_rt *R, const struct tj_dict *d, const char *key);

/* --- Python's view of values --- */
const char *tj_type_name(struct tj_val v);
bool tj_truth(struct tj_rt *R, struct tj_val v);
bool tj_eq(struct tj_rt *R, struct tj_val a, struct tj_val b);
/* op is one of "<", "<=", ">", ">="; raises TypeError when the types have no order */
bool tj_order(struct tj_rt *R, struct tj_val a, struct tj_val b, const char *op);
bool tj_hashable(struct tj_val v);
bool tj_same(struct tj_val a, struct tj_val b);   /* Python's `is` */
int64_t tj_len(struct tj_rt *R, struct tj_val v); /* raises TypeError */
bool tj_has_len(struct tj_val v);
static inline bool tj_is_int(struct tj_val v) { return v.type == TJ_INT || v.type == TJ_BOOL; }
static inline bool tj_is_num(struct tj_val v) { return tj_is_int(v) || v.type == TJ_FLOAT; }
static inline int64_t tj_as_int(struct tj_val v) { return v.type == TJ_BOOL ? v.b : v.i; }
double tj_as_float(struct tj_val v);
bool tj_any_taint(struct tj_val v); /* conservative for containers */

/* str() and repr() */
void tj_emit_str(struct tj_sb *b, struct tj_val v);
void tj_emit_repr(struct tj_sb *b, struct tj_val v);
struct tj_str *tj_to_str(struct tj_rt *R, struct tj_val v); /* keeps markup (soft_str) */
struct tj_str *tj_to_repr(struct tj_rt *R, struct tj_val v);
size_t tj_float_repr(double f, char out[40]);

#endif
