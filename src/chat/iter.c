/* iter - iteration, eager and lazy. Filters such as map and select give generators in jinja2: they run when consumed,
 * once, and have no length. */
#include <string.h>

#include "chat/ast.h"
#include "chat/filters.h"

struct tj_iter *tj_iter_new(struct tj_rt *R, int kind, struct tj_val src, const char *pyname) {
    struct tj_iter *it = tj_alloc(R, 1, sizeof *it);
    it->kind = kind;
    it->src = src;
    it->pyname = pyname;
    return it;
}

bool tj_iterable(struct tj_val v) { return v.type == TJ_ITER || tj_has_len(v); }

struct tj_iter *tj_iter(struct tj_rt *R, struct tj_val v) {
    struct tj_iter *it;
    switch (v.type) {
    case TJ_UNDEF: return tj_iter_new(R, TJ_IT_EMPTY, v, "generator");
    case TJ_STR:
        it = tj_iter_new(R, TJ_IT_SEQ, v, "str_iterator");
        it->end = INT64_MAX; /* ends with the bytes */
        return it;
    case TJ_LIST:
    case TJ_TUPLE:
    case TJ_RANGE:
        it = tj_iter_new(R, TJ_IT_SEQ, v,
                         v.type == TJ_RANGE  ? "range_iterator"
                         : v.type == TJ_LIST ? "list_iterator"
                                             : "tuple_iterator");
        it->end = tj_len(R, v);
        return it;
    case TJ_DICT:
        it = tj_iter_new(R, TJ_IT_DICT, v, "dict_keyiterator");
        it->end = (int64_t)v.d->n;
        return it;
    case TJ_VIEW:
        it = tj_iter_new(R, TJ_IT_DICT, tj_dictv(v.view->d), "dict_itemiterator");
        it->end = (int64_t)v.view->d->n;
        it->what = v.view->what;
        return it;
    case TJ_LOOP: return tj_iter_new(R, TJ_IT_LOOP, v, "LoopContext");
    case TJ_ITER: return v.it;
    default: tj_raise(R, PL_INVALID, "'%s' object is not iterable", tj_type_name(v));
    }
}

struct tj_iter *tj_reversed(struct tj_rt *R, struct tj_val v) {
    static const char *const dict_names[] = {"dict_reversekeyiterator", "dict_reversevalueiterator",
                                             "dict_reverseitemiterator"};
    struct tj_iter *it;
    int64_t n;
    switch (v.type) {
    case TJ_LIST: it = tj_iter_new(R, TJ_IT_SEQ, v, "list_reverseiterator"); break;
    case TJ_TUPLE: it = tj_iter_new(R, TJ_IT_SEQ, v, "reversed"); break;
    case TJ_RANGE: it = tj_iter_new(R, TJ_IT_SEQ, v, "range_iterator"); break;
    case TJ_STR: { /* by character: make a list of them */
        struct tj_list *l = tj_to_list(R, v);
        it = tj_iter_new(R, TJ_IT_SEQ, tj_listv(l), "reversed");
        v = tj_listv(l);
        break;
    }
    case TJ_DICT: it = tj_iter_new(R, TJ_IT_DICT, v, dict_names[0]); break;
    case TJ_VIEW:
        it = tj_iter_new(R, TJ_IT_DICT, tj_dictv(v.view->d), dict_names[v.view->what]);
        it->what = v.view->what;
        break;
    default: return NULL;
    }
    n = tj_len(R, v);
    it->end = n;
    it->pos = 0;
    it->reverse = true;
    return it;
}

static bool next_seq(struct tj_rt *R, struct tj_iter *it, struct tj_val *out) {
    if (it->src.type == TJ_STR) {
        const struct tj_str *s = it->src.s;
        if (it->offset >= s->len) return false;
        size_t next;
        tj_cp_at(s->data, s->len, it->offset, &next);
        struct tj_str *c = tj_str_sub(R, s, it->offset, next);
        c->markup = false;
        *out = tj_strv(c);
        it->offset = next;
        return true;
    }
    if (it->pos >= it->end) return false;
    *out = tj_seq_item(R, it->src, it->reverse ? it->end - 1 - it->pos : it->pos);
    it->pos++;
    return true;
}

static bool next_dict(struct tj_rt *R, struct tj_iter *it, struct tj_val *out) {
    const struct tj_dict *d = it->src.d;
    if (it->pos >= it->end || (size_t)it->pos >= d->n) return false;
    const struct tj_entry *e = &d->e[it->reverse ? it->end - 1 - it->pos : it->pos];
    it->pos++;
    *out = it->what == 0 ? e->k : it->what == 1 ? e->v : tj_pair(R, e->k, e->v);
    return true;
}

/* The parts of a generator function's body that run at the first step. */
static bool start(struct tj_rt *R, struct tj_iter *it) {
    if (it->started) return true;
    it->started = true;
    if (it->kind == TJ_IT_ITEMS) {
        if (it->src.type == TJ_UNDEF) return false;
        if (it->src.type != TJ_DICT) tj_raise(R, PL_INVALID, "Can only get item pairs from a mapping.");
        it->end = (int64_t)it->src.d->n;
        it->what = 2;
        return true;
    }
    if (it->kind == TJ_IT_MAP || it->kind == TJ_IT_SELECT) {
        if (!tj_truth(R, it->src)) return false;
        tj_prepare(R, it);
    }
    it->inner = tj_iter(R, it->src);
    return true;
}

static int find_callable(struct tj_rt *R, struct tj_val name, bool filter) {
    int id = -1;
    if (name.type == TJ_STR)
        id = filter ? tj_filter_find(name.s->data, name.s->len) : tj_test_find(name.s->data, name.s->len);
    if (id >= 0) return id;
    if (!tj_hashable(name)) tj_raise(R, PL_INVALID, "unhashable type: '%s'", tj_type_name(name));
    struct tj_str *r = tj_to_repr(R, name);
    if (name.type == TJ_UNDEF && name.u->hint == NULL && name.u->obj.type == TJ_MISSING) {
        struct tj_str *u = tj_to_repr(R, name.u->name);
        tj_raise(R, PL_INVALID, "No %s named Undefined. (%.*s is undefined; did you forget to quote the callable name?)",
                 filter ? "filter" : "test", (int)PL_MIN(u->len, 200), u->data);
    }
    tj_raise(R, PL_INVALID, "No %s named %.*s.", filter ? "filter" : "test", (int)PL_MIN(r->len, 200), r->data);
}

static bool next_map(struct tj_rt *R, struct tj_iter *it, struct tj_val *out) {
    struct tj_val v;
    if (!tj_next(R, it->inner, &v)) return false;
    if (it->path != NULL) {
        *out = tj_follow(R, v, it->path, it->has_dflt ? &it->dflt : NULL);
        return true;
    }
    *out = tj_filter_call(R, find_callable(R, it->name, true), v, &it->args);
    return true;
}

static bool next_select(struct tj_rt *R, struct tj_iter *it, struct tj_val *out) {
    struct tj_val v;
    while (tj_next(R, it->inner, &v)) {
        struct tj_val subject = it->path != NULL ? tj_follow(R, v, it->path, NULL) : v;
        bool yes = it->name.type == TJ_MISSING ? tj_truth(R, subject)
                                               : tj_test_call(R, find_callable(R, it->name, false), subject, &it->args);
        if (yes == it->reject) continue;
        *out = v;
        return true;
    }
    return false;
}

static bool next_unique(struct tj_rt *R, struct tj_iter *it, struct tj_val *out) {
    struct tj_val v;
    while (tj_next(R, it->inner, &v)) {
        struct tj_val key = tj_follow(R, v, it->path, NULL);
        if (!it->case_sensitive && key.type == TJ_STR) key = tj_strv(tj_str_case(R, key.s, 'l'));
        if (!tj_hashable(key)) tj_raise(R, PL_INVALID, "unhashable type: '%s'", tj_type_name(key));
        if (tj_dict_get(R, it->seen, key) != NULL) continue;
        tj_dict_set(R, it->seen, key, tj_none());
        *out = v;
        return true;
    }
    return false;
}

static bool next_batch(struct tj_rt *R, struct tj_iter *it, struct tj_val *out) {
    struct tj_list *l = it->path; /* the batch that is filling */
    struct tj_val v;
    if (it->done) return false;
    if (l == NULL) l = tj_list_new(R, 0);
    while (tj_next(R, it->inner, &v)) {
        if ((int64_t)l->n == it->n) {
            it->path = tj_list_new(R, 0);
            tj_list_add(R, it->path, v);
            *out = tj_listv(l);
            return true;
        }
        tj_list_add(R, l, v);
    }
    it->done = true;
    if (l->n == 0) return false;
    if (it->fill.type != TJ_NONE)
        while ((int64_t)l->n < it->n) {
            tj_charge(R, 1);
            tj_list_add(R, l, it->fill);
        }
    *out = tj_listv(l);
    return true;
}

static bool next_slice(struct tj_rt *R, struct tj_iter *it, struct tj_val *out) {
    if (it->path == NULL) {
        it->path = tj_to_list(R, it->src);
        if (it->n == 0) tj_raise(R, PL_INVALID, "integer division or modulo by zero");
    }
    if (it->pos >= it->n) return false;
    int64_t len = (int64_t)it->path->n, each = len / it->n, extra = len % it->n, k = it->pos++;
    int64_t begin = k * each + PL_MIN(k, extra), end = begin + each + (k < extra);
    struct tj_list *l = tj_list_new(R, (size_t)(end - begin) + 1);
    for (int64_t i = begin; i < end; i++) tj_list_add(R, l, it->path->v[i]);
    if (it->fill.type != TJ_NONE && k >= extra) tj_list_add(R, l, it->fill);
    *out = tj_listv(l);
    return true;
}

static bool step(struct tj_rt *R, struct tj_iter *it, struct tj_val *out) {
    struct tj_val v;
    switch (it->kind) {
    case TJ_IT_SEQ: return next_seq(R, it, out);
    case TJ_IT_DICT: return next_dict(R, it, out);
    case TJ_IT_ITEMS: return start(R, it) && next_dict(R, it, out);
    case TJ_IT_MAP: return start(R, it) && next_map(R, it, out);
    case TJ_IT_SELECT: return start(R, it) && next_select(R, it, out);
    case TJ_IT_UNIQUE: return start(R, it) && next_unique(R, it, out);
    case TJ_IT_BATCH: return start(R, it) && next_batch(R, it, out);
    case TJ_IT_SLICE: return next_slice(R, it, out);
    case TJ_IT_LOOPTEST:
        while (tj_next(R, it->inner, &v))
            if (tj_loop_test(R, it, v)) {
                *out = v;
                return true;
            }
        return false;
    case TJ_IT_LOOP:
        if (!tj_loop_next(R, it->src.loop, &v)) return false;
        *out = tj_pair(R, v, it->src);
        return true;
    default: return false;
    }
}

bool tj_next(struct tj_rt *R, struct tj_iter *it, struct tj_val *out) {
    tj_charge(R, 1);
    if (it->done && it->kind != TJ_IT_BATCH) return false;
    tj_enter(R);
    bool more = step(R, it, out);
    tj_leave(R);
    if (!more) it->done = true;
    return more;
}

struct tj_list *tj_to_list(struct tj_rt *R, struct tj_val v) {
    struct tj_val item;
    struct tj_iter *it = tj_iter(R, v);
    struct tj_list *l = tj_list_new(R, v.type == TJ_LIST || v.type == TJ_TUPLE ? v.l->n : 0);
    while (tj_next(R, it, &item)) tj_list_add(R, l, item);
    return l;
}

/* --- attribute paths: "a.b.0" --- */

static bool all_digits(const char *s, size_t n) {
    bool any = n > 0;
    for (size_t i = 0; i < n && any; i++) any = s[i] >= '0' && s[i] <= '9';
    return any;
}

struct tj_list *tj_attr_path(struct tj_rt *R, struct tj_val attribute) {
    struct tj_list *path = tj_list_new(R, 0);
    if (attribute.type == TJ_NONE || attribute.type == TJ_MISSING) return path;
    if (attribute.type != TJ_STR) {
        tj_list_add(R, path, attribute);
        return path;
    }
    struct tj_str *s = attribute.s;
    for (size_t i = 0; i <= s->len;) {
        size_t end = tj_str_find(s, i, ".", 1);
        if (end == SIZE_MAX) end = s->len;
        struct tj_str *part = tj_str_sub(R, s, i, end);
        int64_t n;
        bool over;
        if (all_digits(part->data, part->len) && tj_parse_int(part, 10, &n, &over))
            tj_list_add(R, path, tj_int(over ? INT64_MAX : n));
        else
            tj_list_add(R, path, tj_strv(part));
        i = end + 1;
    }
    return path;
}

struct tj_val tj_follow(struct tj_rt *R, struct tj_val v, const struct tj_list *path, const struct tj_val *dflt) {
    for (size_t i = 0; i < path->n; i++) {
        v = tj_getitem(R, v, path->v[i]);
        if (v.type == TJ_UNDEF && dflt != NULL && dflt->type != TJ_NONE) v = *dflt;
    }
    return v;
}
