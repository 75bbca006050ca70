/* func - the names every template can call: range, dict, cycler, joiner, namespace, raise_exception, strftime_now. */
#include <string.h>
#include <time.h>

#include "chat/rt.h"

enum { F_RANGE, F_DICT, F_LIPSUM, F_CYCLER, F_JOINER, F_NAMESPACE, F_RAISE, F_STRFTIME };
static const char *const names[] = {"range",  "dict",      "lipsum",          "cycler",
                                    "joiner", "namespace", "raise_exception", "strftime_now"};
enum { MAX_RANGE = 100000 };

int tj_func_find(const struct tj_str *name) {
    for (size_t i = 0; i < PL_COUNT_OF(names); i++)
        if (tj_str_is(name, names[i])) return (int)i;
    return -1;
}
const char *tj_func_name(int id) { return names[id]; }

static struct tj_val make_range(struct tj_rt *R, const struct tj_args *a) {
    if (a->nkw > 0) tj_raise(R, PL_INVALID, "range() takes no keyword arguments");
    if (a->npos < 1) tj_raise(R, PL_INVALID, "range expected at least 1 argument, got 0");
    if (a->npos > 3) tj_raise(R, PL_INVALID, "range expected at most 3 arguments, got %zu", a->npos);
    struct tj_range *r = tj_alloc(R, 1, sizeof *r);
    int64_t v[3] = {0, 0, 1};
    for (size_t i = 0; i < a->npos; i++) {
        v[a->npos == 1 ? 1 : i] = tj_need_int(R, a->pos[i]);
        r->taint = r->taint || a->pos[i].taint;
    }
    if (v[2] == 0) tj_raise(R, PL_INVALID, "range() arg 3 must not be zero");
    __int128 span = v[2] > 0 ? (__int128)v[1] - v[0] : (__int128)v[0] - v[1];
    __int128 step = v[2] > 0 ? v[2] : -(__int128)v[2];
    __int128 len = span <= 0 ? 0 : (span - 1) / step + 1;
    if (len > MAX_RANGE)
        tj_raise(R, PL_INVALID, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", MAX_RANGE);
    r->start = v[0];
    r->stop = v[1];
    r->step = v[2];
    r->len = (int64_t)len;
    return (struct tj_val){.type = TJ_RANGE, .r = r};
}

static void dict_from_pairs(struct tj_rt *R, struct tj_dict *d, struct tj_val pairs) {
    struct tj_val item;
    size_t n = 0;
    for (struct tj_iter *it = tj_iter(R, pairs); tj_next(R, it, &item); n++) {
        if (!tj_iterable(item))
            tj_raise(R, PL_INVALID, "cannot convert dictionary update sequence element #%zu to a sequence", n);
        struct tj_list *l = tj_to_list(R, item);
        if (l->n != 2)
            tj_raise(R, PL_INVALID, "dictionary update sequence element #%zu has length %zu; 2 is required", n, l->n);
        tj_dict_set(R, d, l->v[0], l->v[1]);
    }
}

static struct tj_dict *make_dict(struct tj_rt *R, const struct tj_args *a) {
    struct tj_dict *d = tj_dict_new(R);
    if (a->npos > 1) tj_raise(R, PL_INVALID, "dict expected at most 1 argument, got %zu", a->npos);
    if (a->npos == 1) {
        struct tj_val src = a->pos[0];
        if (src.type == TJ_DICT)
            for (size_t i = 0; i < src.d->n; i++) tj_dict_set(R, d, src.d->e[i].k, src.d->e[i].v);
        else if (src.type == TJ_UNDEF)
            tj_undef_fail(R, src);
        else
            dict_from_pairs(R, d, src);
    }
    for (size_t i = 0; i < a->nkw; i++) tj_dict_set(R, d, tj_strv(a->kwname[i]), a->kw[i]);
    return d;
}

static struct tj_val make_namespace(struct tj_rt *R, const struct tj_args *a) {
    struct tj_dict *d = make_dict(R, a);
    for (size_t i = 0; i < d->n; i++) {
        struct tj_val k = d->e[i].k;
        if (k.type != TJ_STR || k.s->len == 0 || k.s->data[0] != '_') continue;
        struct tj_str *r = tj_to_repr(R, k);
        tj_raise(
            R, PL_INVALID,
            "Chat templates cannot store underscore-prefixed attributes on a namespace, but got %.*s. Please rename the "
            "attribute.",
            (int)PL_MIN(r->len, 500), r->data);
    }
    return (struct tj_val){.type = TJ_NS, .d = d};
}

static struct tj_val make_cycler(struct tj_rt *R, const struct tj_args *a) {
    if (a->nkw > 0) tj_raise(R, PL_INVALID, "Cycler.__init__() got an unexpected keyword argument");
    if (a->npos == 0) tj_raise(R, PL_INVALID, "at least one item has to be provided");
    struct tj_cycler *c = tj_alloc(R, 1, sizeof *c);
    c->items = tj_list_new(R, a->npos);
    for (size_t i = 0; i < a->npos; i++) tj_list_add(R, c->items, a->pos[i]);
    return (struct tj_val){.type = TJ_CYCLER, .cyc = c};
}

static struct tj_val make_joiner(struct tj_rt *R, const struct tj_args *a) {
    struct tj_val sep;
    tj_bind(R, "Joiner.__init__", a, "sep=", &sep);
    struct tj_joiner *j = tj_alloc(R, 1, sizeof *j);
    j->sep = sep.type == TJ_MISSING ? tj_cstr(R, ", ") : sep;
    return (struct tj_val){.type = TJ_JOINER, .join = j};
}

static _Noreturn void raise_exception(struct tj_rt *R, const struct tj_args *a) {
    struct tj_val m;
    tj_bind(R, "raise_exception", a, "message", &m);
    tj_raise_str(R, tj_to_str(R, m));
}

static struct tj_val strftime_now(struct tj_rt *R, const struct tj_args *a) {
    struct tj_val f;
    tj_bind(R, "strftime_now", a, "format", &f);
    if (f.type != TJ_STR) tj_raise(R, PL_INVALID, "strftime() argument 1 must be str, not %s", tj_type_name(f));
    time_t now = R->now == -1 ? time(NULL) : (time_t)R->now;
    struct tm tm;
    if (localtime_r(&now, &tm) == NULL) tj_raise(R, PL_INVALID, "the clock is outside the calendar");
    struct tj_sb b;
    tj_sb_init(R, &b);
    bool taint = tj_str_any_taint(f.s);
    for (size_t i = 0; i < f.s->len; i++) { /* one directive at a time, so that no format can overrun the buffer */
        char c = f.s->data[i], fmt[4] = {'%', 0, 0, 0}, text[128];
        if (c != '%' || i + 1 >= f.s->len) {
            tj_sb_char(&b, c, taint);
            continue;
        }
        size_t k = 1;
        fmt[k++] = f.s->data[++i];
        if (fmt[1] == '-' && i + 1 < f.s->len) fmt[k++] = f.s->data[++i]; /* glibc: no padding */
        if (fmt[1] == 'f') {
            tj_sb_c(&b, "000000", taint);
            continue;
        }
        if (fmt[1] == 'z' || fmt[1] == 'Z') continue; /* a naive datetime has no zone */
        size_t n = strftime(text, sizeof text, fmt, &tm);
        tj_sb_raw(&b, text, n, taint);
    }
    return tj_strv(tj_sb_done(&b));
}

struct tj_val tj_func_call(struct tj_rt *R, int id, const struct tj_args *a) {
    switch (id) {
    case F_RANGE: return make_range(R, a);
    case F_DICT: return tj_dictv(make_dict(R, a));
    case F_CYCLER: return make_cycler(R, a);
    case F_JOINER: return make_joiner(R, a);
    case F_NAMESPACE: return make_namespace(R, a);
    case F_RAISE: raise_exception(R, a);
    case F_STRFTIME: return strftime_now(R, a);
    default: tj_raise(R, PL_UNSUPPORTED, "%s() is refused in chat templates: its result is random", names[id]);
    }
}
