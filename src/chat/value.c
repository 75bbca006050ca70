#include "chat/value.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "chat/rt.h"

/* --- errors and bounds --- */

static _Noreturn void leave(struct tj_rt *R, enum pl_status status) {
    R->status = status;
    longjmp(R->out, 1);
}

_Noreturn void tj_raise(struct tj_rt *R, enum pl_status status, const char *fmt, ...) {
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    (void)pl_err_set(R->err, __FILE__, __LINE__, status, "%s", text);
    leave(R, status);
}

_Noreturn void tj_raise_str(struct tj_rt *R, struct tj_str *message) {
    (void)pl_err_set(R->err, __FILE__, __LINE__, PL_INVALID, "%.*s", (int)PL_MIN(message->len, 4096), message->data);
    leave(R, PL_INVALID);
}

bool tj_protect(struct tj_rt *R, void (*fn)(struct tj_rt *, void *), void *arg) {
    if (setjmp(R->out) != 0) return false;
    fn(R, arg);
    return true;
}

void *tj_alloc(struct tj_rt *R, size_t count, size_t size) {
    size_t bytes;
    if (!pl_mul_size(count, size, &bytes) ||
        (R->arena.limit_bytes != 0 && (bytes > R->arena.limit_bytes || R->arena.used_bytes > R->arena.limit_bytes - bytes)))
        tj_raise(R, PL_LIMIT, "the template needs more than %zu bytes of memory; it is hostile or the limit is too low",
                 R->arena.limit_bytes);
    void *p = pl_arena_calloc(&R->arena, count, size);
    if (p == NULL) tj_raise(R, PL_NO_MEMORY, "out of memory in a chat template (%zu bytes asked for)", bytes);
    return p;
}

void tj_charge(struct tj_rt *R, uint64_t steps) {
    R->steps += steps;
    if (R->steps > R->steps_max)
        tj_raise(R, PL_LIMIT, "the template did not finish within %llu steps; it is hostile or the limit is too low",
                 (unsigned long long)R->steps_max);
}

void tj_enter(struct tj_rt *R) {
    if (++R->nest > R->nest_max) tj_raise(R, PL_LIMIT, "the template is nested deeper than %u levels", R->nest_max);
}

/* --- string builder --- */

void tj_sb_init(struct tj_rt *R, struct tj_sb *b) { *b = (struct tj_sb){.R = R}; }

static void *uninit_alloc(struct tj_rt *R, size_t bytes) {
    if (R->arena.limit_bytes != 0 && (bytes > R->arena.limit_bytes || R->arena.used_bytes > R->arena.limit_bytes - bytes))
        tj_raise(R, PL_LIMIT, "the template needs more than %zu bytes of memory; it is hostile or the limit is too low",
                 R->arena.limit_bytes);
    void *p = pl_arena_alloc(&R->arena, bytes, 1);
    if (p == NULL) tj_raise(R, PL_NO_MEMORY, "out of memory in a chat template (%zu bytes asked for)", bytes);
    return p;
}

static void sb_reserve(struct tj_sb *b, size_t extra) {
    if (extra <= b->cap - b->len) return;
    if (b == b->R->root && extra > b->R->output_max - PL_MIN(b->len, b->R->output_max))
        tj_raise(b->R, PL_LIMIT, "the rendered prompt is longer than %zu bytes", b->R->output_max);
    size_t need, cap;
    if (!pl_add_size(b->len, extra, &need) || !pl_mul_size(need, 2, &cap)) tj_raise(b->R, PL_LIMIT, "string too long");
    if (b->cap == 0) cap = PL_MAX(need, 32);
    char *grown = uninit_alloc(b->R, cap);
    if (b->len > 0) memcpy(grown, b->data, b->len);
    b->data = grown;
    b->cap = cap;
    tj_charge(b->R, b->len / 64);
}

static void add_span(struct tj_sb *b, size_t begin, size_t end) {
    if (begin == end) return;
    if (b->nspans > 0 && b->spans[b->nspans - 1].end == begin) {
        b->spans[b->nspans - 1].end = end;
        return;
    }
    if (b->nspans == b->spans_cap) {
        size_t cap = b->spans_cap == 0 ? 4 : b->spans_cap * 2;
        struct pl_text_span *grown = uninit_alloc(b->R, cap * sizeof *grown);
        if (b->nspans > 0) memcpy(grown, b->spans, b->nspans * sizeof *grown);
        b->spans = grown;
        b->spans_cap = cap;
    }
    b->spans[b->nspans++] = (struct pl_text_span){begin, end};
}

void tj_sb_raw(struct tj_sb *b, const char *data, size_t len, bool taint) {
    if (len == 0) return;
    sb_reserve(b, len);
    memcpy(b->data + b->len, data, len);
    if (taint) add_span(b, b->len, b->len + len);
    b->len += len;
}

/* The first span that ends after offset. */
static size_t span_after(const struct tj_str *s, size_t offset) {
    size_t lo = 0, hi = s->nspans;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (s->spans[mid].end > offset)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

void tj_sb_sub(struct tj_sb *b, const struct tj_str *s, size_t from, size_t to) {
    if (from >= to) return;
    size_t base = b->len;
    tj_sb_raw(b, s->data + from, to - from, false);
    for (size_t i = span_after(s, from); i < s->nspans && s->spans[i].begin < to; i++)
        add_span(b, base + PL_MAX(s->spans[i].begin, from) - from, base + PL_MIN(s->spans[i].end, to) - from);
}

void tj_sb_str(struct tj_sb *b, const struct tj_str *s) { tj_sb_sub(b, s, 0, s->len); }
void tj_sb_c(struct tj_sb *b, const char *c, bool taint) { tj_sb_raw(b, c, strlen(c), taint); }
void tj_sb_char(struct tj_sb *b, char c, bool taint) { tj_sb_raw(b, &c, 1, taint); }

void tj_sb_cp(struct tj_sb *b, uint32_t cp, bool taint) {
    char s[4];
    size_t n = tj_utf8_put(cp, s);
    tj_sb_raw(b, s, n, taint);
}

void tj_sb_repeat(struct tj_sb *b, const struct tj_str *s, int64_t count) {
    size_t total;
    if (count <= 0 || s->len == 0) return;
    if (!pl_mul_size(s->len, (size_t)count, &total)) tj_raise(b->R, PL_LIMIT, "string repeated too often");
    tj_charge(b->R, (uint64_t)count / 4 + total / 64);
    sb_reserve(b, total);
    for (int64_t i = 0; i < count; i++) tj_sb_str(b, s);
}

static struct tj_str *str_header(struct tj_rt *R) {
    struct tj_str *s = tj_alloc(R, 1, sizeof *s);
    s->chars = SIZE_MAX;
    s->data = "";
    return s;
}

static void set_spans(struct tj_rt *R, struct tj_str *s, const struct pl_text_span *spans, size_t n) {
    s->nspans = n;
    if (n == 1) {
        s->one = spans[0];
        s->spans = &s->one;
    } else if (n > 1) {
        struct pl_text_span *copy = uninit_alloc(R, n * sizeof *copy);
        memcpy(copy, spans, n * sizeof *copy);
        s->spans = copy;
    }
}

struct tj_str *tj_sb_done(struct tj_sb *b) {
    struct tj_str *s = str_header(b->R);
    if (b->len > 0) s->data = b->data;
    s->len = b->len;
    set_spans(b->R, s, b->spans, b->nspans);
    return s;
}

/* --- strings --- */

struct tj_str *tj_str_borrow(struct tj_rt *R, const char *data, size_t len, bool taint) {
    struct tj_str *s = str_header(R);
    s->data = data;
    s->len = len;
    if (taint && len > 0) {
        s->one = (struct pl_text_span){0, len};
        s->spans = &s->one;
        s->nspans = 1;
    }
    return s;
}

struct tj_str *tj_str_new(struct tj_rt *R, const char *data, size_t len, bool taint) {
    char *copy = uninit_alloc(R, len);
    if (len > 0) memcpy(copy, data, len);
    return tj_str_borrow(R, copy, len, taint);
}

struct tj_str *tj_str_sub(struct tj_rt *R, const struct tj_str *s, size_t from, size_t to) {
    struct tj_str *r = str_header(R);
    if (from >= to) return r;
    r->data = s->data + from;
    r->len = to - from;
    if (s->chars == s->len) r->chars = r->len;
    size_t first = span_after(s, from), last = first;
    while (last < s->nspans && s->spans[last].begin < to) last++;
    if (last == first) return r;
    set_spans(R, r, s->spans + first, last - first);
    struct pl_text_span *out = r->nspans == 1 ? &r->one : (struct pl_text_span *)(uintptr_t)r->spans;
    for (size_t i = 0; i < r->nspans; i++) {
        out[i].begin = PL_MAX(out[i].begin, from) - from;
        out[i].end = PL_MIN(out[i].end, to) - from;
    }
    return r;
}

struct tj_str *tj_str_plain(struct tj_rt *R, struct tj_str *s) {
    if (!s->markup) return s;
    struct tj_str *r = tj_str_sub(R, s, 0, s->len);
    return r;
}

struct tj_str *tj_str_printf(struct tj_rt *R, bool taint, const char *fmt, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return tj_str_new(R, text, n < 0 ? 0 : PL_MIN((size_t)n, sizeof text - 1), taint);
}

size_t tj_str_chars(struct tj_rt *R, struct tj_str *s) {
    if (s->chars != SIZE_MAX) return s->chars;
    size_t n = 0;
    for (size_t i = 0; i < s->len; i++) n += ((unsigned char)s->data[i] & 0xC0) != 0x80;
    tj_charge(R, s->len / 64);
    return s->chars = n;
}

size_t tj_str_offset(struct tj_rt *R, struct tj_str *s, size_t char_index) {
    size_t chars = tj_str_chars(R, s), at = 0;
    if (chars == s->len) return PL_MIN(char_index, s->len);
    if (char_index >= chars) return s->len;
    for (size_t k = 0; k < char_index; k++) {
        at++;
        while (at < s->len && ((unsigned char)s->data[at] & 0xC0) == 0x80) at++;
    }
    tj_charge(R, at / 64);
    return at;
}

bool tj_str_tainted_at(const struct tj_str *s, size_t offset) {
    size_t i = span_after(s, offset);
    return i < s->nspans && s->spans[i].begin <= offset;
}
bool tj_str_any_taint(const struct tj_str *s) { return s->nspans > 0; }
bool tj_str_eq(const struct tj_str *a, const struct tj_str *b) {
    return a->len == b->len && memcmp(a->data, b->data, a->len) == 0;
}
bool tj_str_is(const struct tj_str *a, const char *c) { return a->len == strlen(c) && memcmp(a->data, c, a->len) == 0; }

int tj_str_cmp(const struct tj_str *a, const struct tj_str *b) { /* UTF-8 byte order is code point order */
    int c = memcmp(a->data, b->data, PL_MIN(a->len, b->len));
    return c != 0 ? c : (a->len > b->len) - (a->len < b->len);
}

size_t tj_str_find(const struct tj_str *s, size_t from, const char *needle, size_t len) {
    if (from > s->len) return SIZE_MAX;
    if (len == 0) return from;
    const char *p = memmem(s->data + from, s->len - from, needle, len);
    return p == NULL ? SIZE_MAX : (size_t)(p - s->data);
}

struct tj_str *tj_str_concat(struct tj_rt *R, const struct tj_str *a, const struct tj_str *b) {
    struct tj_sb sb;
    tj_sb_init(R, &sb);
    sb_reserve(&sb, a->len + b->len);
    tj_sb_str(&sb, a);
    tj_sb_str(&sb, b);
    return tj_sb_done(&sb);
}

/* --- making values --- */

struct tj_val tj_cstr(struct tj_rt *R, const char *c) {
    return tj_strv(tj_str_borrow(R, c, strlen(c), false));
}

static struct tj_val undef(struct tj_rt *R, struct tj_str *hint, struct tj_val obj, struct tj_val name) {
    struct tj_undef *u = tj_alloc(R, 1, sizeof *u);
    *u = (struct tj_undef){.hint = hint, .obj = obj, .name = name};
    return (struct tj_val){.type = TJ_UNDEF, .u = u};
}
struct tj_val tj_undef_name(struct tj_rt *R, struct tj_str *name) {
    return undef(R, NULL, tj_missing(), tj_strv(name));
}
struct tj_val tj_undef_hint(struct tj_rt *R, const char *hint) {
    return undef(R, tj_str_new(R, hint, strlen(hint), false), tj_missing(), tj_none());
}
struct tj_val tj_undef_attr(struct tj_rt *R, struct tj_val obj, struct tj_val name) {
    return undef(R, NULL, obj, name);
}

static void emit_object_type(struct tj_sb *b, struct tj_val v, bool quote) { /* jinja2's object_type_repr */
    if (v.type == TJ_NONE) {
        tj_sb_c(b, quote ? "'None'" : "None", false);
        return;
    }
    const char *name = tj_type_name(v);
    if (quote) tj_sb_c(b, "'", false);
    if (v.type == TJ_STR && v.s->markup) tj_sb_c(b, "markupsafe.", false);
    if (v.type == TJ_UNDEF) tj_sb_c(b, "jinja2.runtime.", false);
    if (v.type == TJ_LOOP || v.type == TJ_MACRO) tj_sb_c(b, "jinja2.runtime.", false);
    if (v.type == TJ_CYCLER || v.type == TJ_JOINER) tj_sb_c(b, "jinja2.utils.", false);
    tj_sb_c(b, name, false);
    tj_sb_c(b, quote ? " object'" : " object", false);
}

_Noreturn void tj_undef_fail(struct tj_rt *R, struct tj_val v) {
    const struct tj_undef *u = v.u;
    if (u->hint != NULL && u->hint->len > 0) tj_raise_str(R, u->hint);
    struct tj_sb b;
    tj_sb_init(R, &b);
    if (u->obj.type == TJ_MISSING) {
        tj_emit_repr(&b, u->name);
        tj_sb_c(&b, " is undefined", false);
    } else if (u->name.type != TJ_STR) {
        emit_object_type(&b, u->obj, false);
        tj_sb_c(&b, " has no element ", false);
        tj_emit_repr(&b, u->name);
    } else {
        emit_object_type(&b, u->obj, true);
        tj_sb_c(&b, " has no attribute ", false);
        tj_emit_repr(&b, u->name);
    }
    tj_raise_str(R, tj_sb_done(&b));
}

struct tj_list *tj_list_new(struct tj_rt *R, size_t cap) {
    struct tj_list *l = tj_alloc(R, 1, sizeof *l);
    if (cap > 0) l->v = tj_alloc(R, cap, sizeof *l->v);
    l->cap = cap;
    return l;
}

void tj_list_add(struct tj_rt *R, struct tj_list *l, struct tj_val v) {
    if (l->n == l->cap) {
        size_t cap = l->cap < 4 ? 8 : l->cap * 2;
        struct tj_val *grown = tj_alloc(R, cap, sizeof *grown);
        if (l->n > 0) memcpy(grown, l->v, l->n * sizeof *grown);
        l->v = grown;
        l->cap = cap;
    }
    l->v[l->n++] = v;
}

struct tj_val tj_pair(struct tj_rt *R, struct tj_val a, struct tj_val b) {
    struct tj_list *l = tj_list_new(R, 2);
    l->v[0] = a;
    l->v[1] = b;
    l->n = 2;
    return tj_tuplev(l);
}

struct tj_dict *tj_dict_new(struct tj_rt *R) {
    return tj_alloc(R, 1, sizeof(struct tj_dict));
}

bool tj_hashable(struct tj_val v) {
    if (v.type == TJ_TUPLE) {
        for (size_t i = 0; i < v.l->n; i++)
            if (!tj_hashable(v.l->v[i])) return false;
        return true;
    }
    return v.type != TJ_LIST && v.type != TJ_DICT && v.type != TJ_SLICE && v.type != TJ_VIEW;
}

static const char *unhashable_name(struct tj_val v) {
    if (v.type == TJ_TUPLE) {
        for (size_t i = 0; i < v.l->n; i++)
            if (!tj_hashable(v.l->v[i])) return unhashable_name(v.l->v[i]);
    }
    return tj_type_name(v);
}

static uint64_t hash_val(struct tj_rt *R, struct tj_val v) {
    if (v.type == TJ_STR) return pl_hash64(v.s->data, v.s->len, R->seed);
    if (v.type == TJ_FLOAT && (v.f != floor(v.f) || fabs(v.f) > 9e18)) return pl_hash64(&v.f, sizeof v.f, R->seed);
    if (tj_is_num(v)) {
        int64_t i = v.type == TJ_FLOAT ? (int64_t)v.f : tj_as_int(v);
        return pl_hash64(&i, sizeof i, R->seed);
    }
    if (v.type == TJ_TUPLE) {
        uint64_t h = 1;
        for (size_t i = 0; i < v.l->n; i++) h = h * 1000003u ^ hash_val(R, v.l->v[i]);
        return h;
    }
    return v.type; /* None, undefined and the odd objects share buckets; equality decides */
}

static struct tj_entry *find_entry(struct tj_rt *R, const struct tj_dict *d, struct tj_val k, uint64_t hash) {
    if (d->index == NULL) {
        for (size_t i = 0; i < d->n; i++)
            if (d->e[i].hash == hash && tj_eq(R, d->e[i].k, k)) return &d->e[i];
        return NULL;
    }
    for (size_t i = hash & (d->icap - 1); d->index[i] != 0; i = (i + 1) & (d->icap - 1)) {
        struct tj_entry *e = &d->e[d->index[i] - 1];
        if (e->hash == hash && tj_eq(R, e->k, k)) return e;
    }
    return NULL;
}

static void rebuild_index(struct tj_rt *R, struct tj_dict *d) {
    d->icap = d->cap * 2;
    size_t cap = 32;
    while (cap < d->icap) cap *= 2;
    d->icap = cap;
    d->index = tj_alloc(R, cap, sizeof *d->index);
    for (size_t j = 0; j < d->n; j++) {
        size_t i = d->e[j].hash & (cap - 1);
        while (d->index[i] != 0) i = (i + 1) & (cap - 1);
        d->index[i] = (uint32_t)j + 1;
    }
}

void tj_dict_set(struct tj_rt *R, struct tj_dict *d, struct tj_val k, struct tj_val v) {
    if (!tj_hashable(k)) tj_raise(R, PL_INVALID, "unhashable type: '%s'", unhashable_name(k));
    uint64_t hash = hash_val(R, k);
    struct tj_entry *e = find_entry(R, d, k, hash);
    if (e != NULL) {
        e->v = v;
        return;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap == 0 ? 8 : d->cap * 2;
        if (cap > UINT32_MAX / 4) tj_raise(R, PL_LIMIT, "a dict with more than %zu entries", d->n);
        struct tj_entry *grown = tj_alloc(R, cap, sizeof *grown);
        if (d->n > 0) memcpy(grown, d->e, d->n * sizeof *grown);
        d->e = grown;
        d->cap = cap;
        if (cap > 8) rebuild_index(R, d);
    }
    d->e[d->n++] = (struct tj_entry){k, v, hash};
    if (d->index != NULL) {
        size_t i = hash & (d->icap - 1);
        while (d->index[i] != 0) i = (i + 1) & (d->icap - 1);
        d->index[i] = (uint32_t)d->n;
    }
}

struct tj_val *tj_dict_get(struct tj_rt *R, const struct tj_dict *d, struct tj_val k) {
    if (!tj_hashable(k)) return NULL;
    struct tj_entry *e = find_entry(R, d, k, hash_val(R, k));
    return e == NULL ? NULL : &e->v;
}

struct tj_val *tj_dict_get_c(struct tj_rt *R, const struct tj_dict *d, const char *key) {
    struct tj_str s = {.data = key, .len = strlen(key), .chars = SIZE_MAX};
    return tj_dict_get(R, d, tj_strv(&s));
}
