/* unicode - character classes and case mappings exactly as Python's str has them: utf8proc's simple mappings with the
 * differences in generated tables. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "chat/rt.h"

struct case_row {
    uint32_t from, to[3];
};
#include "chat/unicode_tables.h"

static bool in_ranges(const uint32_t (*r)[2], size_t n, uint32_t cp) {
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (r[mid][1] < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && r[lo][0] <= cp;
}
#define IN(table, cp) in_ranges(table, PL_COUNT_OF(table), cp)

bool tj_is_alpha(uint32_t cp) { return cp < 128 ? (cp | 32) >= 'a' && (cp | 32) <= 'z' : IN(is_alpha_ranges, cp); }
bool tj_is_decimal(uint32_t cp) { return cp < 128 ? cp >= '0' && cp <= '9' : IN(is_decimal_ranges, cp); }
bool tj_is_digit(uint32_t cp) { return cp < 128 ? cp >= '0' && cp <= '9' : IN(is_digit_ranges, cp); }
bool tj_is_numeric(uint32_t cp) { return cp < 128 ? cp >= '0' && cp <= '9' : IN(is_numeric_ranges, cp); }
bool tj_is_alnum(uint32_t cp) { return tj_is_alpha(cp) || tj_is_numeric(cp) || tj_is_digit(cp); }
bool tj_is_upper(uint32_t cp) { return cp < 128 ? cp >= 'A' && cp <= 'Z' : IN(is_upper_ranges, cp); }
bool tj_is_lower(uint32_t cp) { return cp < 128 ? cp >= 'a' && cp <= 'z' : IN(is_lower_ranges, cp); }
bool tj_is_title(uint32_t cp) { return cp >= 128 && utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_LT; }
bool tj_is_printable(uint32_t cp) { return cp < 127 ? cp >= 32 : IN(is_printable_ranges, cp); }
bool tj_is_id_start(uint32_t cp) { return cp == '_' || (cp < 128 ? tj_is_alpha(cp) : IN(id_start_ranges, cp)); }
bool tj_is_id_continue(uint32_t cp) {
    return cp < 128 ? cp == '_' || tj_is_alpha(cp) || tj_is_decimal(cp) : IN(id_continue_ranges, cp);
}

bool tj_is_space(uint32_t cp) {
    if (cp < 128) return cp == ' ' || (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x1F);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

int tj_decimal_value(uint32_t cp) { /* decimal digits come in runs of ten that start at zero */
    if (cp < 128) return cp >= '0' && cp <= '9' ? (int)cp - '0' : -1;
    for (size_t i = 0; i < PL_COUNT_OF(is_decimal_ranges); i++)
        if (cp >= is_decimal_ranges[i][0] && cp <= is_decimal_ranges[i][1])
            return (int)((cp - is_decimal_ranges[i][0]) % 10);
    return -1;
}

size_t tj_utf8_put(uint32_t cp, char out[4]) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 63));
        cp >>= 6;
    }
    out[0] = (char)((n == 2 ? 0xC0 : n == 3 ? 0xE0 : 0xF0) | cp);
    return n;
}

uint32_t tj_cp_at(const char *s, size_t len, size_t at, size_t *next) {
    unsigned char c = (unsigned char)s[at];
    if (c < 0x80) {
        *next = at + 1;
        return c;
    }
    size_t n = pl_utf8_len(s + at, len - at);
    if (n == 0) { /* strings are valid UTF-8 by construction; stay safe all the same */
        *next = at + 1;
        return 0xFFFD;
    }
    *next = at + n;
    return pl_utf8_decode(s + at, n);
}

static const struct case_row *find_row(const struct case_row *rows, size_t n, uint32_t cp) {
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (rows[mid].from < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && rows[lo].from == cp ? &rows[lo] : NULL;
}

size_t tj_map_case(uint32_t cp, enum tj_case how, uint32_t out[3]) {
    if (cp < 128) {
        bool up = how == TJ_UPPER || how == TJ_TITLECASE;
        out[0] = up ? (cp >= 'a' && cp <= 'z' ? cp - 32 : cp) : (cp >= 'A' && cp <= 'Z' ? cp + 32 : cp);
        return 1;
    }
    const struct case_row *row = how == TJ_UPPER       ? find_row(upper_rows, PL_COUNT_OF(upper_rows), cp)
                                 : how == TJ_LOWER     ? find_row(lower_rows, PL_COUNT_OF(lower_rows), cp)
                                 : how == TJ_TITLECASE ? find_row(title_rows, PL_COUNT_OF(title_rows), cp)
                                                       : find_row(fold_rows, PL_COUNT_OF(fold_rows), cp);
    if (row == NULL) {
        utf8proc_int32_t c = (utf8proc_int32_t)cp;
        out[0] = (uint32_t)(how == TJ_UPPER       ? utf8proc_toupper(c)
                            : how == TJ_TITLECASE ? utf8proc_totitle(c)
                                                  : utf8proc_tolower(c));
        return 1;
    }
    size_t n = 0;
    while (n < 3 && row->to[n] != 0) {
        out[n] = row->to[n];
        n++;
    }
    return n;
}

/* Capital sigma at the end of a word lowers to the final form. */
static bool final_sigma(const struct tj_str *s, size_t at, size_t next) {
    size_t i = at;
    bool before = false;
    while (i > 0) {
        do i--;
        while (i > 0 && ((unsigned char)s->data[i] & 0xC0) == 0x80);
        size_t n;
        uint32_t cp = tj_cp_at(s->data, s->len, i, &n);
        if (IN(case_ignorable_ranges, cp)) continue;
        before = IN(cased_ranges, cp);
        break;
    }
    if (!before) return false;
    for (i = next; i < s->len;) {
        uint32_t cp = tj_cp_at(s->data, s->len, i, &i);
        if (!IN(case_ignorable_ranges, cp)) return !IN(cased_ranges, cp);
    }
    return true;
}

static bool is_cased(uint32_t cp) { return tj_is_upper(cp) || tj_is_lower(cp) || tj_is_title(cp); }

struct tj_str *tj_str_case(struct tj_rt *R, const struct tj_str *s, int how) {
    struct tj_sb b;
    tj_sb_init(R, &b);
    bool in_word = false;
    tj_charge(R, s->len / 16);
    for (size_t i = 0, next; i < s->len; i = next) {
        uint32_t cp = tj_cp_at(s->data, s->len, i, &next), out[3];
        enum tj_case c = how == 'u' ? TJ_UPPER : how == 'l' ? TJ_LOWER : how == 'f' ? TJ_FOLD : TJ_LOWER;
        if (how == 't') {
            c = in_word ? TJ_LOWER : TJ_TITLECASE;
            in_word = is_cased(cp);
        } else if (how == 'c') {
            c = i == 0 ? TJ_TITLECASE : TJ_LOWER;
        } else if (how == 's') {
            c = tj_is_upper(cp) ? TJ_LOWER : TJ_UPPER;
        }
        size_t n = tj_map_case(cp, c, out);
        if (how == 's' && !tj_is_upper(cp) && !tj_is_lower(cp)) {
            out[0] = cp;
            n = 1;
        }
        if (cp == 0x3A3 && c == TJ_LOWER && final_sigma(s, i, next)) out[0] = 0x3C2;
        bool taint = tj_str_tainted_at(s, i);
        for (size_t k = 0; k < n; k++) tj_sb_cp(&b, out[k], taint);
    }
    struct tj_str *r = tj_sb_done(&b);
    r->markup = s->markup;
    return r;
}

/* --- numbers in strings --- */

/* Trims blanks, turns every decimal digit into ASCII and drops single underscores between digits. false: not a
 * number's characters. */
static bool ascii_number(const struct tj_str *s, char *out, size_t cap, size_t *len) {
    size_t begin = 0, end = s->len, n = 0, next;
    while (begin < end && tj_is_space(tj_cp_at(s->data, s->len, begin, &next))) begin = next;
    while (end > begin) {
        size_t p = end - 1;
        while (p > begin && ((unsigned char)s->data[p] & 0xC0) == 0x80) p--;
        if (!tj_is_space(tj_cp_at(s->data, s->len, p, &next))) break;
        end = p;
    }
    for (size_t i = begin; i < end; i = next) {
        uint32_t cp = tj_cp_at(s->data, s->len, i, &next);
        int d = cp < 128 ? -1 : tj_decimal_value(cp);
        if (cp >= 128 && d < 0) return false;
        if (n + 1 >= cap) return false;
        out[n++] = d >= 0 ? (char)('0' + d) : (char)cp;
    }
    out[n] = '\0';
    *len = n;
    return n > 0 && memchr(out, '\0', n) == NULL;
}

static int digit_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if ((c | 32) >= 'a' && (c | 32) <= 'z') return (c | 32) - 'a' + 10;
    return 99;
}

bool tj_parse_int(const struct tj_str *s, int base, int64_t *out, bool *overflow) {
    char t[512];
    size_t n, i = 0;
    *overflow = false;
    if (!ascii_number(s, t, sizeof t, &n)) return false;
    bool neg = t[i] == '-';
    if (t[i] == '-' || t[i] == '+') i++;
    int prefix = 0;
    if (t[i] == '0' && t[i + 1] != '\0') {
        char p = (char)(t[i + 1] | 32);
        prefix = p == 'x' ? 16 : p == 'o' ? 8 : p == 'b' ? 2 : 0;
    }
    bool zero_only = false;
    if (base == 0) {
        base = prefix != 0 ? prefix : 10;
        zero_only = prefix == 0 && t[i] == '0';
    }
    if (prefix != 0 && prefix == base) {
        i += 2;
        if (t[i] == '_') i++;
    }
    uint64_t v = 0;
    bool digits = false, under = false;
    for (; t[i] != '\0'; i++) {
        if (t[i] == '_') {
            if (!digits || under) return false;
            under = true;
            continue;
        }
        int d = digit_value(t[i]);
        if (d >= base) return false;
        if (zero_only && d != 0) return false;
        digits = true;
        under = false;
        if (__builtin_mul_overflow(v, (uint64_t)base, &v) || __builtin_add_overflow(v, (uint64_t)d, &v)) *overflow = true;
    }
    if (!digits || under) return false;
    if (v > (uint64_t)INT64_MAX + (neg ? 1 : 0)) *overflow = true;
    *out = neg ? (int64_t)(0 - v) : (int64_t)v;
    return true;
}

static bool float_shape(const char *t) { /* [digits][.digits][e[+-]digits] with underscores between digits */
    size_t digits = 0;
    if (*t == '+' || *t == '-') t++;
    if (strcasecmp(t, "inf") == 0 || strcasecmp(t, "infinity") == 0 || strcasecmp(t, "nan") == 0) return true;
    for (; (*t >= '0' && *t <= '9') || *t == '.'; t++) digits += *t != '.';
    if (digits == 0) return false;
    if (*t == 'e' || *t == 'E') {
        t++;
        if (*t == '+' || *t == '-') t++;
        if (!(*t >= '0' && *t <= '9')) return false;
        while (*t >= '0' && *t <= '9') t++;
    }
    return *t == '\0';
}

bool tj_parse_float(const struct tj_str *s, double *out) {
    char t[1024];
    size_t n, o = 0;
    if (!ascii_number(s, t, sizeof t, &n)) return false;
    for (size_t i = 0; i < n; i++) {
        bool between = i > 0 && i + 1 < n && t[i - 1] >= '0' && t[i - 1] <= '9' && t[i + 1] >= '0' && t[i + 1] <= '9';
        if (t[i] == '_' && !between) return false;
        if (t[i] != '_' || !between) t[o++] = t[i];
    }
    t[o] = '\0';
    if (!float_shape(t)) return false;
    const char *dot = strchr(t, '.');
    if (dot != NULL && strchr(dot + 1, '.') != NULL) return false;
    *out = strtod(t, NULL);
    return true;
}
