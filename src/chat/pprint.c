/* pprint - Python's pprint.pformat at its default width of 80: one line when it fits, else one item a line. */
#include <string.h>

#include "chat/filters.h"

enum { WIDTH = 80 };

static struct tj_val sorted_dict(struct tj_rt *R, struct tj_val v);

/* The same value with every dict sorted by key, as pprint shows it. */
static struct tj_val sorted_value(struct tj_rt *R, struct tj_val v) {
    tj_charge(R, 1);
    tj_enter(R);
    if (v.type == TJ_DICT) {
        v = sorted_dict(R, v);
    } else if (v.type == TJ_LIST || v.type == TJ_TUPLE) {
        struct tj_list *l = tj_list_new(R, v.l->n);
        for (size_t i = 0; i < v.l->n; i++) tj_list_add(R, l, sorted_value(R, v.l->v[i]));
        v = (struct tj_val){.type = v.type, .l = l};
    }
    tj_leave(R);
    return v;
}

static struct tj_val sorted_dict(struct tj_rt *R, struct tj_val v) {
    struct tj_list *keys = tj_list_new(R, v.d->n), *items = tj_list_new(R, v.d->n);
    bool strings = true, numbers = true;
    for (size_t i = 0; i < v.d->n; i++) {
        tj_list_add(R, keys, v.d->e[i].k);
        tj_list_add(R, items, tj_int((int64_t)i));
        strings = strings && v.d->e[i].k.type == TJ_STR;
        numbers = numbers && tj_is_num(v.d->e[i].k);
    }
    if (strings || numbers) items = tj_sorted(R, items, keys, false); /* mixed keys keep their order here */
    struct tj_dict *d = tj_dict_new(R);
    for (size_t i = 0; i < items->n; i++) {
        const struct tj_entry *e = &v.d->e[items->v[i].i];
        tj_dict_set(R, d, e->k, sorted_value(R, e->v));
    }
    return tj_dictv(d);
}

static void pad(struct tj_sb *b, int64_t n) { tj_sb_repeat(b, tj_str_borrow(b->R, " ", 1, false), n); }

static void fmt(struct tj_sb *b, struct tj_val v, int64_t indent, int64_t allowance);

static void fmt_items(struct tj_sb *b, struct tj_val v, int64_t indent, int64_t allowance) {
    size_t n = v.type == TJ_DICT ? v.d->n : v.l->n;
    for (size_t i = 0; i < n; i++) {
        bool last = i + 1 == n;
        int64_t room = last ? allowance : 1, at = indent;
        if (i > 0) {
            tj_sb_c(b, ",\n", false);
            pad(b, indent);
        }
        if (v.type == TJ_DICT) {
            struct tj_str *k = tj_to_repr(b->R, v.d->e[i].k);
            tj_sb_str(b, k);
            tj_sb_c(b, ": ", false);
            at += (int64_t)tj_str_chars(b->R, k) + 2;
            fmt(b, v.d->e[i].v, at, room);
        } else {
            fmt(b, v.l->v[i], at, room);
        }
    }
}

/* A long string is broken at blanks into adjacent literals in parentheses when it stands alone or deep inside. */
static void fmt(struct tj_sb *b, struct tj_val v, int64_t indent, int64_t allowance) {
    struct tj_str *rep = tj_to_repr(b->R, v);
    tj_enter(b->R);
    bool seq = (v.type == TJ_LIST || v.type == TJ_TUPLE) && v.l->n > 0, map = v.type == TJ_DICT && v.d->n > 0;
    if ((int64_t)tj_str_chars(b->R, rep) <= WIDTH - indent - allowance || (!seq && !map)) {
        tj_sb_str(b, rep);
    } else {
        const char *open = map ? "{" : v.type == TJ_LIST ? "[" : "(";
        const char *close = map ? "}" : v.type == TJ_LIST ? "]" : v.l->n == 1 ? ",)" : ")";
        tj_sb_c(b, open, false);
        fmt_items(b, v, indent + 1, allowance + (int64_t)strlen(close));
        tj_sb_c(b, close, false);
    }
    tj_leave(b->R);
}

struct tj_str *tj_pformat(struct tj_rt *R, struct tj_val v) {
    struct tj_sb b;
    tj_sb_init(R, &b);
    fmt(&b, sorted_value(R, v), 0, 0);
    return tj_sb_done(&b);
}
