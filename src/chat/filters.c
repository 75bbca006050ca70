/* filters - filters over sequences and mappings, and the table of all of them. */
#include "chat/filters.h"

#include <math.h>
#include <string.h>

static struct tj_val arg_or(struct tj_val v, struct tj_val dflt) { return v.type == TJ_MISSING ? dflt : v; }

/* --- sorting --- */

static void merge_sort(struct tj_rt *R, size_t *order, size_t *tmp, size_t n, const struct tj_list *keys, bool reverse) {
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = PL_MIN(lo + width, n), hi = PL_MIN(lo + 2 * width, n), i = lo, j = mid, o = lo;
            while (i < mid && j < hi) {
                struct tj_val a = keys->v[order[i]], b = keys->v[order[j]];
                bool right = reverse ? tj_order(R, a, b, "<") : tj_order(R, b, a, "<");
                tmp[o++] = right ? order[j++] : order[i++];
            }
            while (i < mid) tmp[o++] = order[i++];
            while (j < hi) tmp[o++] = order[j++];
        }
        memcpy(order, tmp, n * sizeof *order);
        tj_charge(R, n);
    }
}

struct tj_list *tj_sorted(struct tj_rt *R, struct tj_list *items, struct tj_list *keys, bool reverse) {
    size_t n = items->n, *order = tj_alloc(R, n, sizeof *order), *tmp = tj_alloc(R, n, sizeof *tmp);
    for (size_t i = 0; i < n; i++) order[i] = i;
    merge_sort(R, order, tmp, n, keys, reverse);
    struct tj_list *out = tj_list_new(R, n);
    for (size_t i = 0; i < n; i++) tj_list_add(R, out, items->v[order[i]]);
    return out;
}

static struct tj_val ignore_case(struct tj_rt *R, struct tj_val v, bool case_sensitive) {
    return case_sensitive || v.type != TJ_STR ? v : tj_strv(tj_str_case(R, v.s, 'l'));
}

static struct tj_val f_sort(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val arg[3];
    tj_bind(R, "do_sort", a, "reverse= case_sensitive= attribute=", arg);
    bool cs = tj_truth(R, arg[1]);
    struct tj_list *paths = tj_list_new(R, 0), *keys = tj_list_new(R, 0);
    struct tj_val attribute = arg_or(arg[2], tj_none());
    if (attribute.type == TJ_STR) {
        for (size_t i = 0; i <= attribute.s->len;) {
            size_t end = tj_str_find(attribute.s, i, ",", 1);
            if (end == SIZE_MAX) end = attribute.s->len;
            tj_list_add(R, paths, tj_listv(tj_attr_path(R, tj_strv(tj_str_sub(R, attribute.s, i, end)))));
            i = end + 1;
        }
    } else {
        tj_list_add(R, paths, tj_listv(tj_attr_path(R, attribute)));
    }
    struct tj_list *items = tj_to_list(R, v);
    for (size_t i = 0; i < items->n; i++) {
        struct tj_list *key = tj_list_new(R, paths->n);
        for (size_t k = 0; k < paths->n; k++)
            tj_list_add(R, key, ignore_case(R, tj_follow(R, items->v[i], paths->v[k].l, NULL), cs));
        tj_list_add(R, keys, tj_listv(key));
    }
    return tj_listv(tj_sorted(R, items, keys, tj_truth(R, arg[0])));
}

static struct tj_list *dict_items(struct tj_rt *R, struct tj_val v, const char *method) {
    if (v.type == TJ_UNDEF) tj_undef_fail(R, v);
    if (v.type != TJ_DICT) tj_raise(R, PL_INVALID, "'%s' object has no attribute '%s'", tj_type_name(v), method);
    struct tj_list *l = tj_list_new(R, v.d->n);
    for (size_t i = 0; i < v.d->n; i++) tj_list_add(R, l, tj_pair(R, v.d->e[i].k, v.d->e[i].v));
    return l;
}

static struct tj_val f_dictsort(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val arg[3];
    tj_bind(R, "do_dictsort", a, "case_sensitive= by= reverse=", arg);
    struct tj_val by = arg_or(arg[1], tj_cstr(R, "key"));
    bool by_value = by.type == TJ_STR && tj_str_is(by.s, "value");
    if (!by_value && !(by.type == TJ_STR && tj_str_is(by.s, "key")))
        tj_raise(R, PL_INVALID, "You can only sort by either \"key\" or \"value\"");
    struct tj_list *items = dict_items(R, v, "items"), *keys = tj_list_new(R, items->n);
    for (size_t i = 0; i < items->n; i++)
        tj_list_add(R, keys, ignore_case(R, items->v[i].l->v[by_value], tj_truth(R, arg[0])));
    return tj_listv(tj_sorted(R, items, keys, tj_truth(R, arg[2])));
}

static struct tj_val f_groupby(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val arg[3];
    tj_bind(R, "do_groupby", a, "attribute default= case_sensitive=", arg);
    struct tj_list *path = tj_attr_path(R, arg[0]), *keys = tj_list_new(R, 0), *out = tj_list_new(R, 0);
    struct tj_val *dflt = arg[1].type == TJ_MISSING || arg[1].type == TJ_NONE ? NULL : &arg[1];
    bool cs = tj_truth(R, arg[2]);
    struct tj_list *items = tj_to_list(R, v), *values = NULL;
    for (size_t i = 0; i < items->n; i++) tj_list_add(R, keys, ignore_case(R, tj_follow(R, items->v[i], path, dflt), cs));
    struct tj_list *sorted = tj_sorted(R, items, keys, false), *sorted_keys = tj_sorted(R, keys, keys, false);
    for (size_t i = 0; i < sorted->n; i++) {
        if (i == 0 || !tj_eq(R, sorted_keys->v[i - 1], sorted_keys->v[i])) {
            values = tj_list_new(R, 0);
            struct tj_val key = cs ? sorted_keys->v[i] : tj_follow(R, sorted->v[i], path, dflt);
            struct tj_val t = tj_pair(R, key, tj_listv(values));
            t.l->group = true;
            tj_list_add(R, out, t);
        }
        tj_list_add(R, values, sorted->v[i]);
    }
    return tj_listv(out);
}

static struct tj_val extreme(struct tj_rt *R, struct tj_val v, const struct tj_args *a, const char *op) {
    struct tj_val arg[2], item, best, best_key;
    tj_bind(R, op[0] == '<' ? "do_min" : "do_max", a, "case_sensitive= attribute=", arg);
    struct tj_iter *it = tj_iter(R, v);
    if (!tj_next(R, it, &item)) return tj_undef_hint(R, "No aggregated item, sequence was empty.");
    struct tj_list *path = tj_attr_path(R, arg_or(arg[1], tj_none()));
    bool cs = tj_truth(R, arg[0]);
    best = item;
    best_key = ignore_case(R, tj_follow(R, item, path, NULL), cs);
    while (tj_next(R, it, &item)) {
        struct tj_val key = ignore_case(R, tj_follow(R, item, path, NULL), cs);
        if (!tj_order(R, key, best_key, op)) continue;
        best = item;
        best_key = key;
    }
    return best;
}
static struct tj_val f_min(struct tj_rt *R, struct tj_val v, const struct tj_args *a) { return extreme(R, v, a, "<"); }
static struct tj_val f_max(struct tj_rt *R, struct tj_val v, const struct tj_args *a) { return extreme(R, v, a, ">"); }

/* --- lazy --- */

enum { G_MAP, G_SELECT, G_REJECT, G_SELECTATTR, G_REJECTATTR };

static struct tj_val generator(struct tj_rt *R, struct tj_val v, const struct tj_args *a, int what) {
    struct tj_iter *it = tj_iter_new(R, what == G_MAP ? TJ_IT_MAP : TJ_IT_SELECT, v, "generator");
    it->args = *a;
    it->what = what;
    return (struct tj_val){.type = TJ_ITER, .it = it};
}
static struct tj_val f_map(struct tj_rt *R, struct tj_val v, const struct tj_args *a) { return generator(R, v, a, G_MAP); }
static struct tj_val f_select(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    return generator(R, v, a, G_SELECT);
}
static struct tj_val f_reject(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    return generator(R, v, a, G_REJECT);
}
static struct tj_val f_selectattr(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    return generator(R, v, a, G_SELECTATTR);
}
static struct tj_val f_rejectattr(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    return generator(R, v, a, G_REJECTATTR);
}

static void prepare_map(struct tj_rt *R, struct tj_iter *it) {
    struct tj_args *a = &it->args;
    struct tj_val attribute = tj_missing();
    for (size_t i = 0; i < a->nkw; i++)
        if (tj_str_is(a->kwname[i], "attribute")) attribute = a->kw[i];
    if (a->npos == 0 && attribute.type != TJ_MISSING) {
        for (size_t i = 0; i < a->nkw; i++) {
            if (tj_str_is(a->kwname[i], "default")) {
                it->dflt = a->kw[i];
                it->has_dflt = true;
            } else if (!tj_str_is(a->kwname[i], "attribute")) {
                struct tj_str *r = tj_to_repr(R, tj_strv(a->kwname[i]));
                tj_raise(R, PL_INVALID, "Unexpected keyword argument %.*s", (int)PL_MIN(r->len, 200), r->data);
            }
        }
        it->path = tj_attr_path(R, attribute);
        return;
    }
    if (a->npos == 0) tj_raise(R, PL_INVALID, "map requires a filter argument");
    it->name = a->pos[0];
    a->pos++;
    a->npos--;
}

void tj_prepare(struct tj_rt *R, struct tj_iter *it) {
    struct tj_args *a = &it->args;
    if (it->kind == TJ_IT_MAP) {
        prepare_map(R, it);
        return;
    }
    it->reject = it->what == G_REJECT || it->what == G_REJECTATTR;
    if (it->what == G_SELECTATTR || it->what == G_REJECTATTR) {
        if (a->npos == 0) tj_raise(R, PL_INVALID, "Missing parameter for attribute name");
        it->path = tj_attr_path(R, a->pos[0]);
        a->pos++;
        a->npos--;
    }
    it->name = tj_missing();
    if (a->npos == 0) return; /* truth decides */
    it->name = a->pos[0];
    a->pos++;
    a->npos--;
}

static struct tj_val f_unique(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val arg[2];
    tj_bind(R, "do_unique", a, "case_sensitive= attribute=", arg);
    struct tj_iter *it = tj_iter_new(R, TJ_IT_UNIQUE, v, "generator");
    it->case_sensitive = tj_truth(R, arg[0]);
    it->path = tj_attr_path(R, arg_or(arg[1], tj_none()));
    it->seen = tj_dict_new(R);
    return (struct tj_val){.type = TJ_ITER, .it = it};
}

static struct tj_val f_batch(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val arg[2];
    tj_bind(R, "do_batch", a, "linecount fill_with=", arg);
    struct tj_iter *it = tj_iter_new(R, TJ_IT_BATCH, v, "generator");
    it->n = tj_is_int(arg[0]) ? tj_as_int(arg[0]) : -1;
    it->fill = arg_or(arg[1], tj_none());
    return (struct tj_val){.type = TJ_ITER, .it = it};
}

static struct tj_val f_slice(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val arg[2];
    tj_bind(R, "do_slice", a, "slices fill_with=", arg);
    struct tj_iter *it = tj_iter_new(R, TJ_IT_SLICE, v, "generator");
    it->n = tj_need_int(R, arg[0]);
    it->fill = arg_or(arg[1], tj_none());
    return (struct tj_val){.type = TJ_ITER, .it = it};
}

static struct tj_val f_items(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    tj_bind(R, "do_items", a, "", NULL);
    return (struct tj_val){.type = TJ_ITER, .it = tj_iter_new(R, TJ_IT_ITEMS, v, "generator")};
}

/* --- the rest --- */

static struct tj_val f_default(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val arg[2];
    tj_bind(R, "do_default", a, "default_value= boolean=", arg);
    bool use = v.type == TJ_UNDEF || (tj_truth(R, arg[1]) && !tj_truth(R, v));
    return use ? arg_or(arg[0], tj_cstr(R, "")) : v;
}

static struct tj_val f_attr(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val name, out;
    tj_bind(R, "do_attr", a, "name", &name);
    if (name.type != TJ_STR) tj_raise(R, PL_INVALID, "attribute name must be string, not '%s'", tj_type_name(name));
    if (v.type == TJ_UNDEF) return tj_getattr(R, v, name.s);
    if (tj_native_attr(R, v, name.s, &out)) return tj_getattr(R, v, name.s);
    if (name.s->len > 2 && memcmp(name.s->data, "__", 2) == 0 && v.type != TJ_DICT) return tj_getattr(R, v, name.s);
    return tj_undef_attr(R, v, name);
}

static struct tj_val f_first(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val out;
    tj_bind(R, "do_first", a, "", NULL);
    return tj_next(R, tj_iter(R, v), &out) ? out : tj_undef_hint(R, "No first item, sequence was empty.");
}

static struct tj_val f_last(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val out;
    tj_bind(R, "do_last", a, "", NULL);
    if (v.type == TJ_STR && v.s->len > 0) return tj_seq_item(R, v, tj_len(R, v) - 1);
    struct tj_iter *it = v.type == TJ_UNDEF || v.type == TJ_STR ? NULL : tj_reversed(R, v);
    if (it == NULL && v.type != TJ_UNDEF && v.type != TJ_STR)
        tj_raise(R, PL_INVALID, "'%s' object is not reversible", tj_type_name(v));
    return it != NULL && tj_next(R, it, &out) ? out : tj_undef_hint(R, "No last item, sequence was empty.");
}

static struct tj_val f_join(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val arg[2], item;
    tj_bind(R, "do_join", a, "d= attribute=", arg);
    struct tj_list *path = arg[1].type == TJ_MISSING || arg[1].type == TJ_NONE ? NULL : tj_attr_path(R, arg[1]);
    struct tj_str *sep = tj_to_str(R, arg_or(arg[0], tj_cstr(R, "")));
    struct tj_sb b;
    tj_sb_init(R, &b);
    struct tj_iter *it = tj_iter(R, v);
    for (bool first = true; tj_next(R, it, &item); first = false) {
        if (!first) tj_sb_str(&b, sep);
        tj_emit_str(&b, path == NULL ? item : tj_follow(R, item, path, NULL));
    }
    return tj_strv(tj_sb_done(&b));
}

static struct tj_val f_length(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    if (a->npos > 0 || a->nkw > 0)
        tj_raise(R, PL_INVALID, "len() takes exactly one argument (%zu given)", a->npos + a->nkw + 1);
    return tj_tainted(tj_int(tj_len(R, v)), v.type == TJ_STR && tj_str_any_taint(v.s));
}

static struct tj_val f_list(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    tj_bind(R, "do_list", a, "", NULL);
    return tj_listv(tj_to_list(R, v));
}

static struct tj_val f_reverse(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    tj_bind(R, "do_reverse", a, "", NULL);
    if (v.type == TJ_STR) return tj_strv(tj_str_slice_step(R, v.s, tj_len(R, v) - 1, tj_len(R, v), -1));
    struct tj_iter *it = v.type == TJ_UNDEF ? tj_iter_new(R, TJ_IT_EMPTY, v, "reversed") : tj_reversed(R, v);
    if (it != NULL) return (struct tj_val){.type = TJ_ITER, .it = it};
    if (!tj_iterable(v)) tj_raise(R, PL_INVALID, "argument must be iterable");
    struct tj_list *l = tj_to_list(R, v), *r = tj_list_new(R, l->n);
    for (size_t i = l->n; i-- > 0;) tj_list_add(R, r, l->v[i]);
    return tj_listv(r);
}

static struct tj_val f_refused(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    (void)v;
    (void)a;
    tj_raise(R, PL_UNSUPPORTED, "the filters random and urlize are refused in chat templates");
}

static struct tj_val f_tojson(struct tj_rt *R, struct tj_val v, const struct tj_args *a) {
    struct tj_val arg[4];
    tj_bind(R, "tojson", a, "ensure_ascii= indent= separators= sort_keys=", arg);
    return tj_json_dumps(R, v, tj_truth(R, arg[0]), arg_or(arg[1], tj_none()), arg_or(arg[2], tj_none()),
                         tj_truth(R, arg[3]));
}

static const struct {
    const char *name;
    tj_filter_fn fn;
} filters[] = {
    {"abs", tj_f_abs},
    {"attr", f_attr},
    {"batch", f_batch},
    {"capitalize", tj_f_capitalize},
    {"center", tj_f_center},
    {"count", f_length},
    {"d", f_default},
    {"default", f_default},
    {"dictsort", f_dictsort},
    {"e", tj_f_escape},
    {"escape", tj_f_escape},
    {"filesizeformat", tj_f_filesizeformat},
    {"first", f_first},
    {"float", tj_f_float},
    {"forceescape", tj_f_forceescape},
    {"format", tj_f_format},
    {"groupby", f_groupby},
    {"indent", tj_f_indent},
    {"int", tj_f_int},
    {"items", f_items},
    {"join", f_join},
    {"last", f_last},
    {"length", f_length},
    {"list", f_list},
    {"lower", tj_f_lower},
    {"map", f_map},
    {"max", f_max},
    {"min", f_min},
    {"pprint", tj_f_pprint},
    {"random", f_refused},
    {"reject", f_reject},
    {"rejectattr", f_rejectattr},
    {"replace", tj_f_replace},
    {"reverse", f_reverse},
    {"round", tj_f_round},
    {"safe", tj_f_safe},
    {"select", f_select},
    {"selectattr", f_selectattr},
    {"slice", f_slice},
    {"sort", f_sort},
    {"string", tj_f_string},
    {"striptags", tj_f_striptags},
    {"sum", tj_f_sum},
    {"title", tj_f_title},
    {"tojson", f_tojson},
    {"trim", tj_f_trim},
    {"truncate", tj_f_truncate},
    {"unique", f_unique},
    {"upper", tj_f_upper},
    {"urlencode", tj_f_urlencode},
    {"urlize", f_refused},
    {"wordcount", tj_f_wordcount},
    {"wordwrap", tj_f_wordwrap},
    {"xmlattr", tj_f_xmlattr},
};

int tj_filter_find(const char *name, size_t len) {
    for (size_t i = 0; i < PL_COUNT_OF(filters); i++)
        if (strlen(filters[i].name) == len && memcmp(filters[i].name, name, len) == 0) return (int)i;
    return -1;
}

bool tj_filter_needs_run(int id) {
    static const tj_filter_fn contextual[] = {f_map, f_refused, f_select, f_selectattr, f_reject, f_rejectattr};
    for (size_t i = 0; i < PL_COUNT_OF(contextual); i++)
        if (filters[id].fn == contextual[i]) return true;
    return false;
}

struct tj_val tj_filter_call(struct tj_rt *R, int id, struct tj_val v, const struct tj_args *a) {
    tj_charge(R, 1);
    return filters[id].fn(R, v, a);
}
