/* strmeth - the methods of str. Positions are characters outside and bytes inside. */
#include <string.h>

#include "chat/rt.h"

enum sm {
    S_CAPITALIZE,
    S_CASEFOLD,
    S_CENTER,
    S_COUNT,
    S_ENCODE,
    S_ENDSWITH,
    S_EXPANDTABS,
    S_FIND,
    S_FORMAT,
    S_FORMAT_MAP,
    S_INDEX,
    S_ISALNUM,
    S_ISALPHA,
    S_ISASCII,
    S_ISDECIMAL,
    S_ISDIGIT,
    S_ISIDENTIFIER,
    S_ISLOWER,
    S_ISNUMERIC,
    S_ISPRINTABLE,
    S_ISSPACE,
    S_ISTITLE,
    S_ISUPPER,
    S_JOIN,
    S_LJUST,
    S_LOWER,
    S_LSTRIP,
    S_MAKETRANS,
    S_PARTITION,
    S_REMOVEPREFIX,
    S_REMOVESUFFIX,
    S_REPLACE,
    S_RFIND,
    S_RINDEX,
    S_RJUST,
    S_RPARTITION,
    S_RSPLIT,
    S_RSTRIP,
    S_SPLIT,
    S_SPLITLINES,
    S_STARTSWITH,
    S_STRIP,
    S_SWAPCASE,
    S_TITLE,
    S_TRANSLATE,
    S_UPPER,
    S_ZFILL,
};
static const char *const names[] = {
    "capitalize",   "casefold",   "center",    "count",       "encode",    "endswith",     "expandtabs",   "find",
    "format",       "format_map", "index",     "isalnum",     "isalpha",   "isascii",      "isdecimal",    "isdigit",
    "isidentifier", "islower",    "isnumeric", "isprintable", "isspace",   "istitle",      "isupper",      "join",
    "ljust",        "lower",      "lstrip",    "maketrans",   "partition", "removeprefix", "removesuffix", "replace",
    "rfind",        "rindex",     "rjust",     "rpartition",  "rsplit",    "rstrip",       "split",        "splitlines",
    "startswith",   "strip",      "swapcase",  "title",       "translate", "upper",        "zfill"};

int tj_str_method_find(const struct tj_str *name) {
    for (size_t i = 0; i < PL_COUNT_OF(names); i++)
        if (tj_str_is(name, names[i])) return (int)i;
    return -1;
}
const char *tj_str_method_name(int id) { return names[id]; }

/* --- shared with the filters --- */

static bool in_set(uint32_t cp, const struct tj_str *chars) {
    if (chars == NULL) return tj_is_space(cp);
    for (size_t i = 0; i < chars->len;)
        if (tj_cp_at(chars->data, chars->len, i, &i) == cp) return true;
    return false;
}

struct tj_str *tj_str_strip(struct tj_rt *R, struct tj_str *s, const struct tj_str *chars, int sides) {
    size_t begin = 0, end = s->len, next;
    while ((sides & 1) != 0 && begin < end && in_set(tj_cp_at(s->data, s->len, begin, &next), chars)) begin = next;
    while ((sides & 2) != 0 && end > begin) {
        size_t p = end - 1;
        while (p > begin && ((unsigned char)s->data[p] & 0xC0) == 0x80) p--;
        if (!in_set(tj_cp_at(s->data, s->len, p, &next), chars)) break;
        end = p;
    }
    tj_charge(R, (s->len - (end - begin)) / 16 * (chars == NULL ? 1 : chars->len + 1));
    struct tj_str *r = tj_str_sub(R, s, begin, end);
    r->markup = s->markup;
    return r;
}

struct tj_str *tj_str_replace(struct tj_rt *R, struct tj_str *s, struct tj_str *from, struct tj_str *to, int64_t count) {
    struct tj_sb b;
    tj_sb_init(R, &b);
    size_t at = 0;
    tj_charge(R, s->len / 16);
    if (from->len == 0) { /* between all characters */
        for (size_t next; count != 0; at = next) {
            tj_sb_str(&b, to);
            if (count > 0) count--;
            if (at >= s->len) break;
            tj_cp_at(s->data, s->len, at, &next);
            tj_sb_sub(&b, s, at, next);
        }
        tj_sb_sub(&b, s, PL_MIN(at, s->len), s->len);
    } else {
        for (size_t hit; count != 0 && (hit = tj_str_find(s, at, from->data, from->len)) != SIZE_MAX; at = hit + from->len) {
            tj_charge(R, 1);
            tj_sb_sub(&b, s, at, hit);
            tj_sb_str(&b, to);
            if (count > 0) count--;
        }
        tj_sb_sub(&b, s, at, s->len);
    }
    struct tj_str *r = tj_sb_done(&b);
    r->markup = s->markup;
    return r;
}

static bool is_line_end(uint32_t cp) {
    return (cp >= 10 && cp <= 13) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

static struct tj_val part(struct tj_rt *R, struct tj_str *s, size_t from, size_t to) {
    struct tj_str *r = tj_str_sub(R, s, from, to);
    r->markup = s->markup;
    return tj_strv(r);
}

struct tj_list *tj_str_splitlines(struct tj_rt *R, struct tj_str *s, bool keep) {
    struct tj_list *l = tj_list_new(R, 0);
    size_t begin = 0;
    tj_charge(R, s->len / 16);
    for (size_t i = 0, next; i < s->len; i = next) {
        if (!is_line_end(tj_cp_at(s->data, s->len, i, &next))) continue;
        if (s->data[i] == '\r' && next < s->len && s->data[next] == '\n') next++;
        tj_list_add(R, l, part(R, s, begin, keep ? next : i));
        begin = next;
    }
    if (begin < s->len) tj_list_add(R, l, part(R, s, begin, s->len));
    return l;
}

struct tj_str *tj_str_slice_step(struct tj_rt *R, struct tj_str *s, int64_t start, int64_t n, int64_t step) {
    if (n <= 0) {
        struct tj_str *empty = tj_str_borrow(R, "", 0, false);
        empty->markup = s->markup;
        return empty;
    }
    if (step == 1) {
        size_t from = tj_str_offset(R, s, (size_t)start);
        return part(R, s, from, tj_str_offset(R, s, (size_t)(start + n))).s;
    }
    struct tj_sb b;
    tj_sb_init(R, &b);
    tj_charge(R, (uint64_t)n / 4);
    if (tj_str_chars(R, s) == s->len) {
        for (int64_t i = 0; i < n; i++) tj_sb_sub(&b, s, (size_t)(start + i * step), (size_t)(start + i * step) + 1);
    } else {
        size_t chars = tj_str_chars(R, s), *at = tj_alloc(R, chars + 1, sizeof *at), k = 0;
        for (size_t i = 0, next; i < s->len; i = next) {
            tj_cp_at(s->data, s->len, i, &next);
            at[k++] = i;
        }
        at[k] = s->len;
        for (int64_t i = 0; i < n; i++) tj_sb_sub(&b, s, at[start + i * step], at[start + i * step + 1]);
    }
    struct tj_str *r = tj_sb_done(&b);
    r->markup = s->markup;
    return r;
}

/* align: -1 text left, 0 centre, 1 text right */
struct tj_str *tj_pad(struct tj_rt *R, struct tj_str *s, int64_t width, struct tj_str *fill, int align) {
    int64_t len = (int64_t)tj_str_chars(R, s);
    if (width <= len) return s;
    int64_t pad = width - len, left = align > 0 ? pad : align < 0 ? 0 : pad / 2 + (pad & width & 1);
    struct tj_sb b;
    tj_sb_init(R, &b);
    tj_sb_repeat(&b, fill, left);
    tj_sb_str(&b, s);
    tj_sb_repeat(&b, fill, pad - left);
    struct tj_str *r = tj_sb_done(&b);
    r->markup = s->markup;
    return r;
}

/* --- arguments --- */

static void count_args(struct tj_rt *R, const struct tj_args *a, const char *name, size_t min, size_t max) {
    if (a->nkw > 0) tj_raise(R, PL_INVALID, "str.%s() takes no keyword arguments", name);
    if (a->npos >= min && a->npos <= max) return;
    if (max == 0) tj_raise(R, PL_INVALID, "str.%s() takes no arguments (%zu given)", name, a->npos);
    if (min == max)
        tj_raise(R, PL_INVALID, "str.%s() takes exactly %zu argument%s (%zu given)", name, min, min == 1 ? "" : "s",
                 a->npos);
    if (a->npos < min)
        tj_raise(R, PL_INVALID, "%s expected at least %zu argument%s, got %zu", name, min, min == 1 ? "" : "s", a->npos);
    tj_raise(R, PL_INVALID, "%s expected at most %zu argument%s, got %zu", name, max, max == 1 ? "" : "s", a->npos);
}

static struct tj_str *arg_str(struct tj_rt *R, const struct tj_args *a, size_t i, const char *name) {
    if (a->pos[i].type != TJ_STR)
        tj_raise(R, PL_INVALID, "%s() argument %zu must be str, not %s", name, i + 1, tj_type_name(a->pos[i]));
    return a->pos[i].s;
}

/* Optional start and end arguments from index first on; byte range out. false: start lies past the end. */
static bool arg_range(struct tj_rt *R, struct tj_str *s, const struct tj_args *a, size_t first, size_t *from, size_t *to) {
    int64_t len = (int64_t)tj_str_chars(R, s), v[2] = {0, len};
    for (size_t i = 0; i < 2; i++) {
        if (a->npos <= first + i || a->pos[first + i].type == TJ_NONE) continue;
        if (!tj_index(a->pos[first + i], &v[i]))
            tj_raise(R, PL_INVALID, "slice indices must be integers or None or have an __index__ method");
        if (v[i] < 0) v[i] = PL_MAX(v[i] + len, 0);
    }
    v[1] = PL_MIN(v[1], len);
    if (v[0] > v[1]) return false;
    *from = tj_str_offset(R, s, (size_t)v[0]);
    *to = tj_str_offset(R, s, (size_t)v[1]);
    return true;
}

static int64_t chars_before(const struct tj_str *s, size_t offset) {
    int64_t n = 0;
    for (size_t i = 0; i < offset; i++) n += ((unsigned char)s->data[i] & 0xC0) != 0x80;
    return n;
}

/* --- searching --- */

static size_t rfind(const struct tj_str *s, size_t from, size_t to, const struct tj_str *needle) {
    if (needle->len > to - from) return SIZE_MAX;
    for (size_t i = to - needle->len + 1; i-- > from;)
        if (memcmp(s->data + i, needle->data, needle->len) == 0) return i;
    return SIZE_MAX;
}

static struct tj_val find(struct tj_rt *R, struct tj_str *s, const struct tj_args *a, int id) {
    count_args(R, a, names[id], 1, 3);
    bool must = id == S_INDEX || id == S_RINDEX;
    if (a->pos[0].type != TJ_STR) tj_raise(R, PL_INVALID, "must be str, not %s", tj_type_name(a->pos[0]));
    struct tj_str *needle = a->pos[0].s;
    size_t from, to, hit = SIZE_MAX;
    tj_charge(R, s->len / 16);
    if (arg_range(R, s, a, 1, &from, &to)) {
        if (id == S_RFIND || id == S_RINDEX) {
            tj_charge(R, s->len / 16 * (needle->len / 16 + 1));
            hit = rfind(s, from, to, needle);
        } else {
            hit = tj_str_find(s, from, needle->data, needle->len);
            if (hit != SIZE_MAX && hit + needle->len > to) hit = SIZE_MAX;
        }
    }
    if (hit == SIZE_MAX && must) tj_raise(R, PL_INVALID, "substring not found");
    return tj_tainted(tj_int(hit == SIZE_MAX ? -1 : chars_before(s, hit)), tj_str_any_taint(s));
}

static struct tj_val count(struct tj_rt *R, struct tj_str *s, const struct tj_args *a) {
    count_args(R, a, "count", 1, 3);
    if (a->pos[0].type != TJ_STR) tj_raise(R, PL_INVALID, "must be str, not %s", tj_type_name(a->pos[0]));
    struct tj_str *needle = a->pos[0].s;
    size_t from, to;
    int64_t n = 0;
    tj_charge(R, s->len / 16);
    if (!arg_range(R, s, a, 1, &from, &to)) return tj_int(0);
    if (needle->len == 0) return tj_tainted(tj_int(chars_before(s, to) - chars_before(s, from) + 1), tj_str_any_taint(s));
    for (size_t hit; (hit = tj_str_find(s, from, needle->data, needle->len)) != SIZE_MAX && hit + needle->len <= to;
         from = hit + needle->len)
        n++;
    return tj_tainted(tj_int(n), tj_str_any_taint(s));
}

static bool affix(const struct tj_str *s, size_t from, size_t to, const struct tj_str *p, bool start) {
    if (p->len > to - from) return false;
    return memcmp(s->data + (start ? from : to - p->len), p->data, p->len) == 0;
}

static struct tj_val starts_ends(struct tj_rt *R, struct tj_str *s, const struct tj_args *a, int id) {
    count_args(R, a, names[id], 1, 3);
    bool start = id == S_STARTSWITH, ok;
    size_t from = 0, to = 0;
    ok = arg_range(R, s, a, 1, &from, &to);
    if (a->pos[0].type == TJ_STR) return tj_bool(ok && affix(s, from, to, a->pos[0].s, start));
    if (a->pos[0].type != TJ_TUPLE)
        tj_raise(R, PL_INVALID, "%s first arg must be str or a tuple of str, not %s", names[id], tj_type_name(a->pos[0]));
    for (size_t i = 0; i < a->pos[0].l->n; i++) {
        struct tj_val p = a->pos[0].l->v[i];
        if (p.type != TJ_STR)
            tj_raise(R, PL_INVALID, "tuple for %s must only contain str, not %s", names[id], tj_type_name(p));
        if (ok && affix(s, from, to, p.s, start)) return tj_bool(true);
    }
    return tj_bool(false);
}

/* --- splitting and joining --- */

static void reverse_list(struct tj_list *l) {
    for (size_t i = 0; i < l->n / 2; i++) {
        struct tj_val t = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = t;
    }
}

static struct tj_list *split_space(struct tj_rt *R, struct tj_str *s, int64_t max) {
    struct tj_list *l = tj_list_new(R, 0);
    size_t i = 0, next;
    for (;;) {
        while (i < s->len && tj_is_space(tj_cp_at(s->data, s->len, i, &next))) i = next;
        if (i >= s->len) return l;
        if (max == 0) {
            size_t end = tj_str_strip(R, tj_str_sub(R, s, i, s->len), NULL, 2)->len;
            tj_list_add(R, l, part(R, s, i, i + end));
            return l;
        }
        size_t begin = i;
        while (i < s->len && !tj_is_space(tj_cp_at(s->data, s->len, i, &next))) i = next;
        tj_list_add(R, l, part(R, s, begin, i));
        if (max > 0) max--;
    }
}

static size_t back_up(const struct tj_str *s, size_t i) {
    do i--;
    while (i > 0 && ((unsigned char)s->data[i] & 0xC0) == 0x80);
    return i;
}

static bool space_before(const struct tj_str *s, size_t i) {
    size_t next;
    return tj_is_space(tj_cp_at(s->data, s->len, back_up(s, i), &next));
}

static struct tj_list *rsplit_space(struct tj_rt *R, struct tj_str *s, int64_t max) {
    struct tj_list *l = tj_list_new(R, 0);
    size_t i = s->len;
    for (;;) {
        while (i > 0 && space_before(s, i)) i = back_up(s, i);
        if (i == 0) break;
        size_t end = i;
        if (max == 0) {
            size_t begin = 0, next;
            while (begin < end && tj_is_space(tj_cp_at(s->data, s->len, begin, &next))) begin = next;
            tj_list_add(R, l, part(R, s, begin, end));
            break;
        }
        while (i > 0 && !space_before(s, i)) i = back_up(s, i);
        tj_list_add(R, l, part(R, s, i, end));
        if (max > 0) max--;
    }
    reverse_list(l);
    return l;
}

static struct tj_val split(struct tj_rt *R, struct tj_str *s, const struct tj_args *a, bool right) {
    struct tj_val v[2];
    tj_bind(R, right ? "rsplit" : "split", a, "sep= maxsplit=", v);
    int64_t max = v[1].type == TJ_MISSING ? -1 : tj_need_int(R, v[1]);
    tj_charge(R, s->len / 8);
    if (v[0].type == TJ_MISSING || v[0].type == TJ_NONE)
        return tj_listv(right ? rsplit_space(R, s, max) : split_space(R, s, max));
    if (v[0].type != TJ_STR) tj_raise(R, PL_INVALID, "must be str or None, not %s", tj_type_name(v[0]));
    struct tj_str *sep = v[0].s;
    if (sep->len == 0) tj_raise(R, PL_INVALID, "empty separator");
    struct tj_list *l = tj_list_new(R, 0);
    size_t hit;
    if (right) {
        size_t end = s->len;
        for (; max != 0 && (hit = rfind(s, 0, end, sep)) != SIZE_MAX; end = hit, max -= max > 0)
            tj_list_add(R, l, part(R, s, hit + sep->len, end));
        tj_list_add(R, l, part(R, s, 0, end));
        reverse_list(l);
    } else {
        size_t at = 0;
        for (; max != 0 && (hit = tj_str_find(s, at, sep->data, sep->len)) != SIZE_MAX; at = hit + sep->len, max -= max > 0)
            tj_list_add(R, l, part(R, s, at, hit));
        tj_list_add(R, l, part(R, s, at, s->len));
    }
    return tj_listv(l);
}

static struct tj_val partition(struct tj_rt *R, struct tj_str *s, const struct tj_args *a, bool right) {
    count_args(R, a, right ? "rpartition" : "partition", 1, 1);
    if (a->pos[0].type != TJ_STR) tj_raise(R, PL_INVALID, "must be str, not %s", tj_type_name(a->pos[0]));
    struct tj_str *sep = a->pos[0].s;
    if (sep->len == 0) tj_raise(R, PL_INVALID, "empty separator");
    size_t hit = right ? rfind(s, 0, s->len, sep) : tj_str_find(s, 0, sep->data, sep->len);
    struct tj_list *l = tj_list_new(R, 3);
    bool none = hit == SIZE_MAX;
    size_t cut1 = none ? (right ? 0 : s->len) : hit, cut2 = none ? cut1 : hit + sep->len;
    tj_list_add(R, l, part(R, s, 0, cut1));
    tj_list_add(R, l, part(R, s, cut1, cut2));
    tj_list_add(R, l, part(R, s, cut2, s->len));
    return tj_tuplev(l);
}

static struct tj_val join(struct tj_rt *R, struct tj_str *s, const struct tj_args *a) {
    count_args(R, a, "join", 1, 1);
    if (!tj_iterable(a->pos[0])) tj_raise(R, PL_INVALID, "can only join an iterable");
    struct tj_list *l = tj_to_list(R, a->pos[0]);
    struct tj_sb b;
    tj_sb_init(R, &b);
    for (size_t i = 0; i < l->n; i++) {
        if (l->v[i].type != TJ_STR && !s->markup) /* markup escapes the items, which makes texts of them */
            tj_raise(R, PL_INVALID, "sequence item %zu: expected str instance, %s found", i, tj_type_name(l->v[i]));
        if (i > 0) tj_sb_str(&b, s);
        tj_sb_str(&b, s->markup ? tj_escape(R, l->v[i]) : l->v[i].s);
    }
    struct tj_str *r = tj_sb_done(&b);
    r->markup = s->markup;
    return tj_strv(r);
}

/* --- predicates --- */

static bool all_chars(const struct tj_str *s, bool (*test)(uint32_t), bool empty) {
    for (size_t i = 0; i < s->len;)
        if (!test(tj_cp_at(s->data, s->len, i, &i))) return false;
    return s->len > 0 || empty;
}
static bool is_ascii(uint32_t cp) { return cp < 128; }

static bool cased(const struct tj_str *s, bool upper) {
    bool any = false;
    for (size_t i = 0; i < s->len;) {
        uint32_t cp = tj_cp_at(s->data, s->len, i, &i);
        if (upper ? tj_is_lower(cp) || tj_is_title(cp) : tj_is_upper(cp) || tj_is_title(cp)) return false;
        any = any || (upper ? tj_is_upper(cp) : tj_is_lower(cp));
    }
    return any;
}

static bool istitle(const struct tj_str *s) {
    bool in_word = false, any = false;
    for (size_t i = 0; i < s->len;) {
        uint32_t cp = tj_cp_at(s->data, s->len, i, &i);
        if (tj_is_upper(cp) || tj_is_title(cp)) {
            if (in_word) return false;
            in_word = any = true;
        } else if (tj_is_lower(cp)) {
            if (!in_word) return false;
            any = true;
        } else {
            in_word = false;
        }
    }
    return any;
}

static bool isidentifier(const struct tj_str *s) {
    for (size_t i = 0; i < s->len;) {
        bool first = i == 0;
        uint32_t cp = tj_cp_at(s->data, s->len, i, &i);
        if (first ? !tj_is_id_start(cp) : !tj_is_id_continue(cp)) return false;
    }
    return s->len > 0;
}

static bool predicate(const struct tj_str *s, int id) {
    switch (id) {
    case S_ISALNUM: return all_chars(s, tj_is_alnum, false);
    case S_ISALPHA: return all_chars(s, tj_is_alpha, false);
    case S_ISASCII: return all_chars(s, is_ascii, true);
    case S_ISDECIMAL: return all_chars(s, tj_is_decimal, false);
    case S_ISDIGIT: return all_chars(s, tj_is_digit, false);
    case S_ISIDENTIFIER: return isidentifier(s);
    case S_ISLOWER: return cased(s, false);
    case S_ISUPPER: return cased(s, true);
    case S_ISNUMERIC: return all_chars(s, tj_is_numeric, false);
    case S_ISPRINTABLE: return all_chars(s, tj_is_printable, true);
    case S_ISSPACE: return all_chars(s, tj_is_space, false);
    default: return istitle(s);
    }
}

/* --- the rest --- */

static struct tj_val strip(struct tj_rt *R, struct tj_str *s, const struct tj_args *a, int id) {
    count_args(R, a, names[id], 0, 1);
    struct tj_str *chars = NULL;
    if (a->npos == 1 && a->pos[0].type != TJ_NONE) {
        if (a->pos[0].type != TJ_STR) tj_raise(R, PL_INVALID, "%s arg must be None or str", names[id]);
        chars = a->pos[0].s;
    }
    return tj_strv(tj_str_strip(R, s, chars, id == S_STRIP ? 3 : id == S_LSTRIP ? 1 : 2));
}

static struct tj_val justify(struct tj_rt *R, struct tj_str *s, const struct tj_args *a, int id) {
    count_args(R, a, names[id], 1, 2);
    int64_t width = tj_need_int(R, a->pos[0]);
    struct tj_str *fill = tj_str_borrow(R, " ", 1, false);
    if (a->npos == 2) {
        if (a->pos[1].type != TJ_STR)
            tj_raise(R, PL_INVALID, "The fill character must be a unicode character, not %s", tj_type_name(a->pos[1]));
        fill = s->markup ? tj_escape(R, a->pos[1]) : a->pos[1].s; /* markup's fill '<' has four characters */
        if (tj_str_chars(R, fill) != 1) tj_raise(R, PL_INVALID, "The fill character must be exactly one character long");
    }
    return tj_strv(tj_pad(R, s, width, fill, id == S_CENTER ? 0 : id == S_LJUST ? -1 : 1));
}

static struct tj_val zfill(struct tj_rt *R, struct tj_str *s, const struct tj_args *a) {
    count_args(R, a, "zfill", 1, 1);
    int64_t width = tj_need_int(R, a->pos[0]), len = (int64_t)tj_str_chars(R, s);
    if (width <= len) return tj_strv(s);
    bool sign = s->len > 0 && (s->data[0] == '+' || s->data[0] == '-');
    struct tj_sb b;
    tj_sb_init(R, &b);
    tj_sb_sub(&b, s, 0, sign);
    tj_sb_repeat(&b, tj_str_borrow(R, "0", 1, false), width - len);
    tj_sb_sub(&b, s, sign, s->len);
    struct tj_str *r = tj_sb_done(&b);
    r->markup = s->markup;
    return tj_strv(r);
}

static struct tj_val expandtabs(struct tj_rt *R, struct tj_str *s, const struct tj_args *a) {
    struct tj_val v;
    tj_bind(R, "expandtabs", a, "tabsize=", &v);
    int64_t size = v.type == TJ_MISSING ? 8 : tj_need_int(R, v), col = 0;
    struct tj_sb b;
    tj_sb_init(R, &b);
    struct tj_str *space = tj_str_borrow(R, " ", 1, false);
    for (size_t i = 0, next; i < s->len; i = next) {
        uint32_t cp = tj_cp_at(s->data, s->len, i, &next);
        if (cp == '\t') {
            int64_t n = size > 0 ? size - col % size : 0;
            tj_sb_repeat(&b, space, n);
            col += n;
            continue;
        }
        col = cp == '\n' || cp == '\r' ? 0 : col + 1;
        tj_sb_sub(&b, s, i, next);
    }
    struct tj_str *r = tj_sb_done(&b);
    r->markup = s->markup;
    return tj_strv(r);
}

static struct tj_val replace(struct tj_rt *R, struct tj_str *s, const struct tj_args *a) {
    count_args(R, a, "replace", 2, 3);
    struct tj_str *from = arg_str(R, a, 0, "replace"), *to = arg_str(R, a, 1, "replace");
    if (s->markup) to = tj_escape(R, tj_strv(to));
    return tj_strv(tj_str_replace(R, s, from, to, a->npos == 3 ? tj_need_int(R, a->pos[2]) : -1));
}

static struct tj_val remove_affix(struct tj_rt *R, struct tj_str *s, const struct tj_args *a, int id) {
    count_args(R, a, names[id], 1, 1);
    struct tj_str *p = arg_str(R, a, 0, names[id]);
    bool prefix = id == S_REMOVEPREFIX;
    if (p->len == 0 || !affix(s, 0, s->len, p, prefix)) return tj_strv(s);
    return prefix ? part(R, s, p->len, s->len) : part(R, s, 0, s->len - p->len);
}

static struct tj_val format_map(struct tj_rt *R, struct tj_str *s, const struct tj_args *a) {
    if (a->nkw > 0) tj_raise(R, PL_INVALID, "format_map() takes no keyword arguments");
    if (a->npos != 1) tj_raise(R, PL_INVALID, "format_map() takes exactly one argument (%zu given)", a->npos);
    if (a->pos[0].type != TJ_DICT) tj_raise(R, PL_INVALID, "format_map() needs a mapping, not %s", tj_type_name(a->pos[0]));
    struct tj_dict *d = a->pos[0].d;
    struct tj_args args = {.nkw = 0};
    args.kwname = tj_alloc(R, d->n, sizeof(struct tj_str *));
    args.kw = tj_alloc(R, d->n, sizeof *args.kw);
    for (size_t i = 0; i < d->n; i++) {
        if (d->e[i].k.type != TJ_STR) continue;
        args.kwname[args.nkw] = d->e[i].k.s;
        args.kw[args.nkw++] = d->e[i].v;
    }
    return tj_strv(tj_brace_format(R, s, &args, true));
}

struct tj_val tj_str_method(struct tj_rt *R, struct tj_str *s, int id, const struct tj_args *a) {
    struct tj_val v;
    switch (id) {
    case S_UPPER:
    case S_LOWER:
    case S_TITLE:
    case S_CAPITALIZE:
    case S_SWAPCASE:
    case S_CASEFOLD:
        count_args(R, a, names[id], 0, 0);
        return tj_strv(tj_str_case(R, s,
                                   id == S_UPPER        ? 'u'
                                   : id == S_LOWER      ? 'l'
                                   : id == S_TITLE      ? 't'
                                   : id == S_CAPITALIZE ? 'c'
                                   : id == S_SWAPCASE   ? 's'
                                                        : 'f'));
    case S_STRIP:
    case S_LSTRIP:
    case S_RSTRIP: return strip(R, s, a, id);
    case S_CENTER:
    case S_LJUST:
    case S_RJUST: return justify(R, s, a, id);
    case S_FIND:
    case S_RFIND:
    case S_INDEX:
    case S_RINDEX: return find(R, s, a, id);
    case S_COUNT: return count(R, s, a);
    case S_STARTSWITH:
    case S_ENDSWITH: return starts_ends(R, s, a, id);
    case S_SPLIT: return split(R, s, a, false);
    case S_RSPLIT: return split(R, s, a, true);
    case S_SPLITLINES:
        tj_bind(R, "splitlines", a, "keepends=", &v);
        if (v.type != TJ_MISSING && !tj_is_int(v)) tj_need_int(R, v);
        return tj_listv(tj_str_splitlines(R, s, v.type != TJ_MISSING && tj_truth(R, v)));
    case S_PARTITION: return partition(R, s, a, false);
    case S_RPARTITION: return partition(R, s, a, true);
    case S_JOIN: return join(R, s, a);
    case S_REPLACE: return replace(R, s, a);
    case S_REMOVEPREFIX:
    case S_REMOVESUFFIX: return remove_affix(R, s, a, id);
    case S_ZFILL: return zfill(R, s, a);
    case S_EXPANDTABS: return expandtabs(R, s, a);
    case S_FORMAT: return tj_strv(tj_brace_format(R, s, a, true));
    case S_FORMAT_MAP: return format_map(R, s, a);
    case S_ENCODE:
    case S_MAKETRANS:
    case S_TRANSLATE: tj_raise(R, PL_UNSUPPORTED, "str.%s() is not supported in chat templates", names[id]);
    default: count_args(R, a, names[id], 0, 0); return tj_bool(predicate(s, id));
    }
}
