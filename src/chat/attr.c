/* attr - attributes and items as jinja2's sandbox looks them up, slices, and calls. Methods that would change a list or
 * a dict exist and are refused, as are names that begin with an underscore. */
#include <string.h>

#include "chat/ast.h"
#include "chat/rt.h"

bool tj_index(struct tj_val v, int64_t *out) {
    if (!tj_is_int(v)) return false;
    *out = tj_as_int(v);
    return true;
}

int64_t tj_need_int(struct tj_rt *R, struct tj_val v) {
    int64_t i;
    if (v.type == TJ_UNDEF) tj_raise(R, PL_INVALID, "'Undefined' object cannot be interpreted as an integer");
    if (!tj_index(v, &i)) tj_raise(R, PL_INVALID, "'%s' object cannot be interpreted as an integer", tj_type_name(v));
    return i;
}

struct tj_str *tj_need_str(struct tj_rt *R, struct tj_val v, const char *what) {
    if (v.type != TJ_STR) tj_raise(R, PL_INVALID, "%s must be str, not %s", what, tj_type_name(v));
    return v.s;
}

/* --- methods of dict, list and tuple --- */

enum {
    M_COPY,
    M_GET,
    M_ITEMS,
    M_KEYS,
    M_VALUES,
    M_FROMKEYS,
    M_COUNT,
    M_INDEX,
    M_NEXT,
    M_RESET,
    M_CYCLE,
    M_CHANGED,
    M_INT_ONLY,
    M_BIT_LENGTH,
    M_IS_INTEGER,
    M_CONJUGATE,
    M_MUTATES = 900,
    M_STR = 1000
};

static const struct {
    const char *name;
    int type, id;
} methods[] = {
    {"copy", TJ_DICT, M_COPY},
    {"get", TJ_DICT, M_GET},
    {"items", TJ_DICT, M_ITEMS},
    {"keys", TJ_DICT, M_KEYS},
    {"values", TJ_DICT, M_VALUES},
    {"fromkeys", TJ_DICT, M_FROMKEYS},
    {"clear", TJ_DICT, M_MUTATES},
    {"pop", TJ_DICT, M_MUTATES},
    {"popitem", TJ_DICT, M_MUTATES},
    {"setdefault", TJ_DICT, M_MUTATES},
    {"update", TJ_DICT, M_MUTATES},
    {"copy", TJ_LIST, M_COPY},
    {"count", TJ_LIST, M_COUNT},
    {"index", TJ_LIST, M_INDEX},
    {"append", TJ_LIST, M_MUTATES},
    {"clear", TJ_LIST, M_MUTATES},
    {"pop", TJ_LIST, M_MUTATES},
    {"reverse", TJ_LIST, M_MUTATES},
    {"insert", TJ_LIST, M_MUTATES},
    {"sort", TJ_LIST, M_MUTATES},
    {"extend", TJ_LIST, M_MUTATES},
    {"remove", TJ_LIST, M_MUTATES},
    {"count", TJ_TUPLE, M_COUNT},
    {"index", TJ_TUPLE, M_INDEX},
    {"count", TJ_RANGE, M_COUNT},
    {"index", TJ_RANGE, M_INDEX},
    {"next", TJ_CYCLER, M_NEXT},
    {"reset", TJ_CYCLER, M_RESET},
    {"cycle", TJ_LOOP, M_CYCLE},
    {"changed", TJ_LOOP, M_CHANGED},
    {"bit_length", TJ_INT, M_BIT_LENGTH},
    {"bit_length", TJ_BOOL, M_BIT_LENGTH},
    {"is_integer", TJ_FLOAT, M_IS_INTEGER},
    {"conjugate", TJ_INT, M_CONJUGATE},
    {"conjugate", TJ_FLOAT, M_CONJUGATE},
    {"conjugate", TJ_BOOL, M_CONJUGATE},
    {"fromkeys", TJ_FUNC, M_FROMKEYS},
};

int tj_method_find(struct tj_val obj, const struct tj_str *name) {
    if (obj.type == TJ_STR) {
        int id = tj_str_method_find(name);
        return id < 0 ? -1 : M_STR + id;
    }
    if (obj.type == TJ_FUNC && obj.func != 1) return -1;
    for (size_t i = 0; i < PL_COUNT_OF(methods); i++)
        if (methods[i].type == obj.type && tj_str_is(name, methods[i].name)) return methods[i].id;
    return -1;
}

static struct tj_val view_of(struct tj_rt *R, struct tj_dict *d, int what) {
    struct tj_view *v = tj_alloc(R, 1, sizeof *v);
    *v = (struct tj_view){d, what};
    return (struct tj_val){.type = TJ_VIEW, .view = v};
}

static void no_args(struct tj_rt *R, const char *name, const struct tj_args *a) {
    if (a->nkw > 0) tj_raise(R, PL_INVALID, "%s() takes no keyword arguments", name);
    if (a->npos > 0) tj_raise(R, PL_INVALID, "%s() takes no arguments (%zu given)", name, a->npos);
}

static struct tj_val dict_get(struct tj_rt *R, struct tj_dict *d, const struct tj_args *a) {
    if (a->nkw > 0) tj_raise(R, PL_INVALID, "dict.get() takes no keyword arguments");
    if (a->npos < 1) tj_raise(R, PL_INVALID, "get expected at least 1 argument, got 0");
    if (a->npos > 2) tj_raise(R, PL_INVALID, "get expected at most 2 arguments, got %zu", a->npos);
    if (!tj_hashable(a->pos[0])) tj_raise(R, PL_INVALID, "unhashable type: '%s'", tj_type_name(a->pos[0]));
    struct tj_val *v = tj_dict_get(R, d, a->pos[0]);
    return v != NULL ? *v : a->npos == 2 ? a->pos[1] : tj_none();
}

static struct tj_val dict_copy(struct tj_rt *R, const struct tj_dict *d) {
    struct tj_dict *r = tj_dict_new(R);
    for (size_t i = 0; i < d->n; i++) tj_dict_set(R, r, d->e[i].k, d->e[i].v);
    return tj_dictv(r);
}

static struct tj_val dict_fromkeys(struct tj_rt *R, const struct tj_args *a) {
    struct tj_dict *d = tj_dict_new(R);
    struct tj_val k;
    if (a->nkw > 0) tj_raise(R, PL_INVALID, "dict.fromkeys() takes no keyword arguments");
    if (a->npos < 1) tj_raise(R, PL_INVALID, "fromkeys expected at least 1 argument, got 0");
    if (a->npos > 2) tj_raise(R, PL_INVALID, "fromkeys expected at most 2 arguments, got %zu", a->npos);
    for (struct tj_iter *it = tj_iter(R, a->pos[0]); tj_next(R, it, &k);)
        tj_dict_set(R, d, k, a->npos == 2 ? a->pos[1] : tj_none());
    return tj_dictv(d);
}

static struct tj_val seq_count(struct tj_rt *R, struct tj_val self, const struct tj_args *a) {
    int64_t n = 0;
    struct tj_val v;
    if (a->nkw > 0) tj_raise(R, PL_INVALID, "%s.count() takes no keyword arguments", tj_type_name(self));
    if (a->npos != 1)
        tj_raise(R, PL_INVALID, "%s.count() takes exactly one argument (%zu given)", tj_type_name(self), a->npos);
    for (struct tj_iter *it = tj_iter(R, self); tj_next(R, it, &v);) n += tj_same(v, a->pos[0]) || tj_eq(R, v, a->pos[0]);
    return tj_int(n);
}

static struct tj_val seq_index(struct tj_rt *R, struct tj_val self, const struct tj_args *a) {
    int64_t n = tj_len(R, self), from = 0, to = n;
    if (a->nkw > 0) tj_raise(R, PL_INVALID, "%s.index() takes no keyword arguments", tj_type_name(self));
    if (a->npos < 1) tj_raise(R, PL_INVALID, "index expected at least 1 argument, got 0");
    if (a->npos > (self.type == TJ_RANGE ? 1u : 3u))
        tj_raise(R, PL_INVALID, "index expected at most 3 arguments, got %zu", a->npos);
    if (a->npos > 1) from = tj_need_int(R, a->pos[1]);
    if (a->npos > 2) to = tj_need_int(R, a->pos[2]);
    from = from < 0 ? PL_MAX(from + n, 0) : from;
    to = to < 0 ? PL_MAX(to + n, 0) : PL_MIN(to, n);
    for (int64_t i = from; i < to; i++) {
        struct tj_val v = tj_seq_item(R, self, i);
        if (tj_same(v, a->pos[0]) || tj_eq(R, v, a->pos[0])) return tj_int(i);
    }
    struct tj_str *r = tj_to_repr(R, a->pos[0]);
    if (self.type == TJ_TUPLE) tj_raise(R, PL_INVALID, "tuple.index(x): x not in tuple");
    tj_raise(R, PL_INVALID, self.type == TJ_RANGE ? "%.*s is not in range" : "%.*s is not in list", (int)PL_MIN(r->len, 500),
             r->data);
}

static struct tj_val loop_cycle(struct tj_rt *R, const struct tj_loop *l, const struct tj_args *a) {
    if (a->nkw > 0) tj_raise(R, PL_INVALID, "LoopContext.cycle() got an unexpected keyword argument");
    if (a->npos == 0) tj_raise(R, PL_INVALID, "no items for cycling given");
    int64_t n = (int64_t)a->npos;
    return a->pos[((l->index0 % n) + n) % n];
}

static struct tj_val loop_changed(struct tj_rt *R, struct tj_loop *l, const struct tj_args *a) {
    struct tj_list *now = tj_list_new(R, a->npos);
    for (size_t i = 0; i < a->npos; i++) tj_list_add(R, now, a->pos[i]);
    if (l->changed.type != TJ_MISSING && tj_eq(R, l->changed, tj_tuplev(now))) return tj_bool(false);
    l->changed = tj_tuplev(now);
    return tj_bool(true);
}

static struct tj_val bit_length(struct tj_val v) {
    int64_t i = tj_as_int(v), n = 0;
    for (uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i; u != 0; u >>= 1) n++;
    return tj_tainted(tj_int(n), v.taint);
}

struct tj_val tj_method_call(struct tj_rt *R, const struct tj_method *m, const struct tj_args *a) {
    struct tj_val self = m->self;
    if (m->id >= M_STR) return tj_str_method(R, self.s, m->id - M_STR, a);
    switch (m->id) {
    case M_GET: return dict_get(R, self.d, a);
    case M_COPY:
        no_args(R, self.type == TJ_DICT ? "dict.copy" : "list.copy", a);
        return self.type == TJ_DICT ? dict_copy(R, self.d) : tj_listv(tj_to_list(R, self));
    case M_ITEMS: no_args(R, "dict.items", a); return view_of(R, self.d, 2);
    case M_KEYS: no_args(R, "dict.keys", a); return view_of(R, self.d, 0);
    case M_VALUES: no_args(R, "dict.values", a); return view_of(R, self.d, 1);
    case M_FROMKEYS: return dict_fromkeys(R, a);
    case M_COUNT: return seq_count(R, self, a);
    case M_INDEX: return seq_index(R, self, a);
    case M_CYCLE: return loop_cycle(R, self.loop, a);
    case M_CHANGED: return loop_changed(R, self.loop, a);
    case M_BIT_LENGTH: no_args(R, "int.bit_length", a); return bit_length(self);
    case M_IS_INTEGER:
        no_args(R, "float.is_integer", a);
        return tj_bool(self.f - self.f == 0 && self.f == __builtin_floor(self.f));
    case M_CONJUGATE:
        no_args(R, "conjugate", a);
        return tj_is_int(self) ? tj_tainted(tj_int(tj_as_int(self)), self.taint) : self;
    case M_NEXT: {
        no_args(R, "next", a);
        struct tj_cycler *c = self.cyc;
        struct tj_val v = c->items->v[c->pos];
        c->pos = (c->pos + 1) % c->items->n;
        return v;
    }
    case M_RESET:
        no_args(R, "reset", a);
        self.cyc->pos = 0;
        return tj_none();
    default: tj_raise(R, PL_INVALID, "this method is not available in chat templates");
    }
}

/* --- attributes --- */

static bool is_dunder(const struct tj_str *name) { /* attributes every Python object has; all of them unsafe */
    static const char *const names[] = {
        "__class__",   "__doc__",           "__dict__",         "__init__",         "__eq__",
        "__ne__",      "__hash__",          "__repr__",         "__str__",          "__new__",
        "__dir__",     "__format__",        "__ge__",           "__gt__",           "__le__",
        "__lt__",      "__reduce__",        "__sizeof__",       "__getattribute__", "__setattr__",
        "__delattr__", "__init_subclass__", "__subclasshook__", "__reduce_ex__"};
    for (size_t i = 0; i < PL_COUNT_OF(names); i++)
        if (tj_str_is(name, names[i])) return !tj_str_is(name, "__dict__");
    return false;
}

static bool number_attr(struct tj_val obj, const struct tj_str *name, struct tj_val *out) {
    bool f = obj.type == TJ_FLOAT;
    if (tj_str_is(name, "real"))
        *out = f ? obj : tj_tainted(tj_int(tj_as_int(obj)), obj.taint);
    else if (tj_str_is(name, "imag"))
        *out = f ? tj_float(0) : tj_int(0);
    else if (!f && tj_str_is(name, "numerator"))
        *out = tj_tainted(tj_int(tj_as_int(obj)), obj.taint);
    else if (!f && tj_str_is(name, "denominator"))
        *out = tj_int(1);
    else
        return false;
    return true;
}

static bool macro_attr(struct tj_rt *R, const struct tj_macro *m, const struct tj_str *name, struct tj_val *out) {
    const struct tj_node *n = m->node;
    if (tj_str_is(name, "name")) {
        *out = n->name == NULL ? tj_none() : tj_strv(n->name);
    } else if (tj_str_is(name, "arguments")) {
        struct tj_list *l = tj_list_new(R, n->nkids);
        for (size_t i = 0; i < n->nkids; i++) tj_list_add(R, l, tj_strv(n->kids[i]->name));
        *out = tj_tuplev(l);
    } else if (tj_str_is(name, "catch_kwargs")) {
        *out = tj_bool(n->wants_kwargs);
    } else if (tj_str_is(name, "catch_varargs")) {
        *out = tj_bool(n->wants_varargs);
    } else if (tj_str_is(name, "caller")) {
        *out = tj_bool(n->wants_caller);
    } else if (tj_str_is(name, "explicit_caller")) {
        bool yes = false;
        for (size_t i = 0; i < n->nkids; i++) yes = yes || tj_str_is(n->kids[i]->name, "caller");
        *out = tj_bool(yes);
    } else {
        return false;
    }
    return true;
}

bool tj_native_attr(struct tj_rt *R, struct tj_val obj, struct tj_str *name, struct tj_val *out) {
    if (obj.type == TJ_NS) {
        struct tj_val *v = tj_dict_get(R, obj.d, tj_strv(name));
        if (v != NULL) *out = *v;
        return v != NULL;
    }
    int id = tj_method_find(obj, name);
    if (id >= 0) {
        struct tj_method *m = tj_alloc(R, 1, sizeof *m);
        *m = (struct tj_method){obj, id};
        *out = (struct tj_val){.type = TJ_METHOD, .meth = m};
        return true;
    }
    switch (obj.type) {
    case TJ_BOOL:
    case TJ_INT:
    case TJ_FLOAT: return number_attr(obj, name, out);
    case TJ_LOOP: return tj_loop_attr(R, obj.loop, name, out);
    case TJ_MACRO: return macro_attr(R, obj.m, name, out);
    case TJ_TUPLE:
        if (!obj.l->group || (!tj_str_is(name, "grouper") && !tj_str_is(name, "list"))) return false;
        *out = obj.l->v[tj_str_is(name, "list")];
        return true;
    case TJ_RANGE:
        if (tj_str_is(name, "start"))
            *out = tj_int(obj.r->start);
        else if (tj_str_is(name, "stop"))
            *out = tj_int(obj.r->stop);
        else if (tj_str_is(name, "step"))
            *out = tj_int(obj.r->step);
        else
            return false;
        return true;
    case TJ_CYCLER:
        if (tj_str_is(name, "current"))
            *out = obj.cyc->items->v[obj.cyc->pos];
        else if (tj_str_is(name, "pos"))
            *out = tj_int((int64_t)obj.cyc->pos);
        else if (tj_str_is(name, "items"))
            *out = tj_tuplev(obj.cyc->items);
        else
            return false;
        return true;
    case TJ_JOINER:
        if (tj_str_is(name, "sep"))
            *out = obj.join->sep;
        else if (tj_str_is(name, "used"))
            *out = tj_bool(obj.join->used);
        else
            return false;
        return true;
    default: return false;
    }
}

static struct tj_val unsafe(struct tj_rt *R, struct tj_val obj, const struct tj_str *name) {
    struct tj_sb b;
    tj_sb_init(R, &b);
    tj_sb_c(&b, "access to attribute ", false);
    tj_emit_repr(&b, tj_strv((struct tj_str *)(uintptr_t)name));
    tj_sb_c(&b, " of '", false);
    tj_sb_c(&b, tj_type_name(obj), false);
    tj_sb_c(&b, "' object is unsafe.", false);
    struct tj_val u = tj_undef_hint(R, "");
    u.u->hint = tj_sb_done(&b);
    return u;
}

/* getattr with the sandbox's checks; false: no such attribute */
static bool safe_attr(struct tj_rt *R, struct tj_val obj, struct tj_str *name, struct tj_val *out) {
    if (obj.type == TJ_UNDEF) {
        bool dunder = name->len > 3 && memcmp(name->data, "__", 2) == 0 && memcmp(name->data + name->len - 2, "__", 2) == 0;
        if (is_dunder(name)) {
            *out = unsafe(R, obj, name);
            return true;
        }
        if (dunder) return false;
        tj_undef_fail(R, obj);
    }
    if (is_dunder(name)) {
        *out = unsafe(R, obj, name);
        return true;
    }
    if (!tj_native_attr(R, obj, name, out)) return false;
    bool mutates = out->type == TJ_METHOD && out->meth->id == M_MUTATES && obj.type != TJ_NS;
    if (mutates || (name->len > 0 && name->data[0] == '_')) *out = unsafe(R, obj, name);
    return true;
}

/* obj[key] in plain Python: false where Python raises TypeError or LookupError */
static bool plain_item(struct tj_rt *R, struct tj_val obj, struct tj_val key, struct tj_val *out) {
    int64_t i;
    if (obj.type == TJ_DICT) {
        struct tj_val *v = tj_dict_get(R, obj.d, key);
        if (v != NULL) *out = *v;
        return v != NULL;
    }
    if (obj.type == TJ_UNDEF) tj_undef_fail(R, obj);
    if (obj.type == TJ_SELF) {
        for (size_t k = 0; key.type == TJ_STR && k < R->t->nblocks; k++)
            if (tj_str_eq(R->t->blocks[k]->name, key.s)) {
                *out = (struct tj_val){.type = TJ_BLOCKREF, .block = R->t->blocks[k]};
                return true;
            }
        return false;
    }
    if (obj.type != TJ_STR && obj.type != TJ_LIST && obj.type != TJ_TUPLE && obj.type != TJ_RANGE) return false;
    if (key.type == TJ_SLICE) {
        *out = tj_subscript_slice(R, obj, key.slice);
        return true;
    }
    if (!tj_index(key, &i)) return false;
    int64_t n = tj_len(R, obj);
    if (i < 0) i += n;
    if (i < 0 || i >= n) return false;
    *out = tj_seq_item(R, obj, i);
    return true;
}

struct tj_val tj_getattr(struct tj_rt *R, struct tj_val obj, struct tj_str *name) {
    struct tj_val out;
    if (safe_attr(R, obj, name, &out)) return out;
    if (plain_item(R, obj, tj_strv(name), &out)) return out;
    return tj_undef_attr(R, obj, tj_strv(name));
}

struct tj_val tj_getitem(struct tj_rt *R, struct tj_val obj, struct tj_val key) {
    struct tj_val out;
    if (plain_item(R, obj, key, &out)) return out;
    if (key.type == TJ_STR && safe_attr(R, obj, key.s, &out)) return out;
    return tj_undef_attr(R, obj, key);
}

struct tj_val tj_seq_item(struct tj_rt *R, struct tj_val seq, int64_t i) {
    if (seq.type == TJ_RANGE) return tj_tainted(tj_int(seq.r->start + i * seq.r->step), seq.r->taint);
    if (seq.type != TJ_STR) return seq.l->v[i];
    size_t from = tj_str_offset(R, seq.s, (size_t)i), to;
    tj_cp_at(seq.s->data, seq.s->len, from, &to);
    struct tj_str *s = tj_str_sub(R, seq.s, from, to);
    s->markup = seq.s->markup;
    return tj_strv(s);
}

/* --- slices --- */

static bool slice_index(struct tj_rt *R, struct tj_val v, int64_t *out) {
    if (v.type == TJ_NONE) return false;
    if (v.type == TJ_UNDEF || !tj_index(v, out))
        tj_raise(R, PL_INVALID, "slice indices must be integers or None or have an __index__ method");
    return true;
}

static void slice_bounds(struct tj_rt *R, const struct tj_slice *s, int64_t len, int64_t *start, int64_t *count,
                         int64_t *step, int64_t *stop_out) {
    int64_t stop;
    *step = 1;
    if (slice_index(R, s->step, step) && *step == 0) tj_raise(R, PL_INVALID, "slice step cannot be zero");
    if (*step == INT64_MIN) *step = -INT64_MAX;
    bool back = *step < 0;
    int64_t lo = back ? -1 : 0, hi = back ? len - 1 : len;
    if (slice_index(R, s->start, start))
        *start = *start < 0 ? PL_MAX(*start + len, lo) : PL_MIN(*start, hi);
    else
        *start = back ? hi : lo;
    if (slice_index(R, s->stop, &stop))
        stop = stop < 0 ? PL_MAX(stop + len, lo) : PL_MIN(stop, hi);
    else
        stop = back ? lo : hi;
    *stop_out = stop;
    *count = 0;
    if (!back && *start < stop) *count = (stop - *start - 1) / *step + 1;
    if (back && stop < *start) *count = (*start - stop - 1) / -*step + 1;
}

struct tj_val tj_subscript_slice(struct tj_rt *R, struct tj_val obj, const struct tj_slice *s) {
    int64_t start, count, step, stop;
    if (obj.type == TJ_UNDEF) tj_undef_fail(R, obj);
    if (obj.type == TJ_DICT) tj_raise(R, PL_INVALID, "unhashable type: 'slice'");
    if (obj.type != TJ_STR && obj.type != TJ_LIST && obj.type != TJ_TUPLE && obj.type != TJ_RANGE)
        tj_raise(R, PL_INVALID, "'%s' object is not subscriptable", tj_type_name(obj));
    slice_bounds(R, s, tj_len(R, obj), &start, &count, &step, &stop);
    if (obj.type == TJ_STR) return tj_strv(tj_str_slice_step(R, obj.s, start, count, step));
    if (obj.type == TJ_RANGE) {
        struct tj_range *r = tj_alloc(R, 1, sizeof *r);
        r->start = obj.r->start + start * obj.r->step;
        r->step = obj.r->step * step;
        r->len = count;
        r->stop = obj.r->start + stop * obj.r->step;
        r->taint = obj.r->taint;
        return (struct tj_val){.type = TJ_RANGE, .r = r};
    }
    struct tj_list *l = tj_list_new(R, (size_t)count);
    tj_charge(R, (uint64_t)count / 4);
    for (int64_t i = 0; i < count; i++) l->v[i] = obj.l->v[start + i * step];
    l->n = (size_t)count;
    return (struct tj_val){.type = obj.type, .l = l};
}

/* --- calls --- */

bool tj_callable(struct tj_val v) {
    switch (v.type) {
    case TJ_UNDEF:
    case TJ_MACRO:
    case TJ_FUNC:
    case TJ_METHOD:
    case TJ_LOOP:
    case TJ_JOINER:
    case TJ_BLOCKREF: return true;
    default: return false;
    }
}

static struct tj_val call_loop(struct tj_rt *R, struct tj_loop *l, const struct tj_args *a) {
    struct tj_val v;
    tj_bind(R, "LoopContext.__call__", a, "iterable", &v);
    return tj_loop_call(R, l, v);
}

static struct tj_val dispatch(struct tj_rt *R, struct tj_val f, const struct tj_args *a) {
    switch (f.type) {
    case TJ_UNDEF: tj_undef_fail(R, f);
    case TJ_MACRO: return tj_macro_call(R, f.m, a);
    case TJ_FUNC: return tj_func_call(R, f.func, a);
    case TJ_METHOD: return tj_method_call(R, f.meth, a);
    case TJ_LOOP: return call_loop(R, f.loop, a);
    case TJ_BLOCKREF: no_args(R, "BlockReference.__call__", a); return tj_block_call(R, f.block);
    case TJ_JOINER:
        no_args(R, "Joiner.__call__", a);
        if (f.join->used) return f.join->sep;
        f.join->used = true;
        return tj_cstr(R, "");
    default: tj_raise(R, PL_INVALID, "'%s' object is not callable", tj_type_name(f));
    }
}

struct tj_val tj_call(struct tj_rt *R, struct tj_val f, const struct tj_args *a) {
    if (++R->calls > R->calls_max) tj_raise(R, PL_LIMIT, "calls are nested deeper than %u levels", R->calls_max);
    tj_charge(R, 1);
    struct tj_val v = dispatch(R, f, a);
    R->calls--;
    return v;
}

static int spec_find(const char *spec, const char *name, size_t len) {
    int k = 0;
    for (const char *p = spec; *p != '\0'; k++) {
        size_t n = strcspn(p, " ");
        size_t w = p[n - 1] == '=' ? n - 1 : n;
        if (w == len && memcmp(p, name, len) == 0) return k;
        p += n;
        p += *p == ' ';
    }
    return -1;
}

void tj_bind(struct tj_rt *R, const char *fname, const struct tj_args *a, const char *spec, struct tj_val *out) {
    size_t total = 0;
    for (const char *p = spec; *p != '\0'; total++) {
        p += strcspn(p, " ");
        p += *p == ' ';
        out[total] = tj_missing();
    }
    if (a->npos > total) tj_raise(R, PL_INVALID, "%s() takes at most %zu arguments (%zu given)", fname, total, a->npos);
    for (size_t i = 0; i < a->npos; i++) out[i] = a->pos[i];
    for (size_t i = 0; i < a->nkw; i++) {
        int k = spec_find(spec, a->kwname[i]->data, a->kwname[i]->len);
        int len = (int)PL_MIN(a->kwname[i]->len, 200);
        if (k < 0) tj_raise(R, PL_INVALID, "%s() got an unexpected keyword argument '%.*s'", fname, len, a->kwname[i]->data);
        if (out[k].type != TJ_MISSING)
            tj_raise(R, PL_INVALID, "%s() got multiple values for argument '%.*s'", fname, len, a->kwname[i]->data);
        out[k] = a->kw[i];
    }
    const char *p = spec;
    for (size_t k = 0; k < total; k++) {
        size_t n = strcspn(p, " ");
        if (out[k].type == TJ_MISSING && p[n - 1] != '=')
            tj_raise(R, PL_INVALID, "%s() missing 1 required positional argument: '%.*s'", fname, (int)n, p);
        p += n;
        p += *p == ' ';
    }
}
