#include "sample/schema_number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS = 16 };
static const uint64_t MOST = 9999999999999999u; /* DIGITS nines */
static const double EXACT = 9007199254740992.0; /* whole numbers are exact below */

/* ---------- whole numbers ---------- */

static bool all(const char *s, size_t n, char c) {
    for (size_t i = 0; i < n; i++)
        if (s[i] != c) return false;
    return true;
}

static void any_digits(struct pl_buf *b, size_t n) {
    if (n > 0) pl_buf_printf(b, " [0-9]{%zu}", n);
}

static void digit(struct pl_buf *b, char from, char to) {
    if (from == to)
        pl_buf_printf(b, " \"%c\"", from);
    else
        pl_buf_printf(b, " [%c-%c]", from, to);
}

/* Strings of n digits from lo to hi, which agree in length. */
static void between(struct pl_buf *b, const char *lo, const char *hi, size_t n) {
    if (n == 0) return;
    if (all(lo, n, '0') && all(hi, n, '9')) {
        any_digits(b, n);
        return;
    }
    if (lo[0] == hi[0]) {
        digit(b, lo[0], lo[0]);
        between(b, lo + 1, hi + 1, n - 1);
        return;
    }
    char zeros[DIGITS + 1], nines[DIGITS + 1];
    memset(zeros, '0', sizeof zeros);
    memset(nines, '9', sizeof nines);
    bool low_whole = all(lo + 1, n - 1, '0'), high_whole = all(hi + 1, n - 1, '9');
    char from = (char)(lo[0] + !low_whole), to = (char)(hi[0] - !high_whole);
    const char *bar = "";
    pl_buf_add_c(b, " (");
    if (!low_whole) {
        digit(b, lo[0], lo[0]);
        between(b, lo + 1, nines, n - 1);
        bar = " |";
    }
    if (from <= to) {
        pl_buf_add_c(b, bar);
        digit(b, from, to);
        any_digits(b, n - 1);
        bar = " |";
    }
    if (!high_whole) {
        pl_buf_add_c(b, bar);
        digit(b, hi[0], hi[0]);
        between(b, zeros, hi + 1, n - 1);
    }
    pl_buf_add_c(b, ")");
}

/* Decimal numbers from lo to hi, without leading zeros; lo <= hi. */
static void naturals(struct pl_buf *b, uint64_t lo, uint64_t hi) {
    const char *bar = "";
    uint64_t first = 0, last = 9;
    for (size_t n = 1; n <= DIGITS && first <= hi; n++, first = last + 1, last = last * 10 + 9) {
        if (last < lo) continue;
        char a[24], c[24];
        snprintf(a, sizeof a, "%llu", (unsigned long long)PL_MAX(lo, first));
        snprintf(c, sizeof c, "%llu", (unsigned long long)PL_MIN(hi, last));
        pl_buf_add_c(b, bar);
        between(b, a, c, n);
        bar = " |";
    }
}

/* ---------- bounds ---------- */

struct bound {
    bool given, open; /* open: the bound itself is not allowed */
    double value;
};

/* Of an inclusive and an exclusive bound the tighter one. */
static enum pl_status read_bound(const json_t *s, const char *key, const char *exclusive, int side, struct bound *out,
                                 struct pl_err *err) {
    const char *const keys[] = {key, exclusive};
    *out = (struct bound){0};
    for (int i = 0; i < 2; i++) {
        const json_t *v = json_object_get(s, keys[i]);
        if (v == NULL) continue;
        double d = json_number_value(v);
        if (!json_is_number(v) || !(fabs(d) < EXACT))
            PL_FAIL(err, PL_INVALID, "the schema's %s is no number of less than 2^53", keys[i]);
        bool tighter = !out->given || (d - out->value) * side > 0 || (d == out->value && i == 1);
        if (tighter) *out = (struct bound){true, i == 1, d};
    }
    return PL_OK;
}

static enum pl_status read_bounds(const json_t *s, struct bound *lo, struct bound *hi, struct pl_err *err) {
    PL_TRY(read_bound(s, "minimum", "exclusiveMinimum", 1, lo, err));
    return read_bound(s, "maximum", "exclusiveMaximum", -1, hi, err);
}

enum pl_status pl_schema_integer(const json_t *schema, struct pl_buf *out, struct pl_err *err) {
    struct bound l, h;
    PL_TRY(read_bounds(schema, &l, &h, err));
    if (!l.given && !h.given) {
        pl_buf_add_c(out, "js-integer");
        return PL_OK;
    }
    int64_t lo = l.given ? (int64_t)(l.open ? floor(l.value) + 1 : ceil(l.value)) : -(int64_t)MOST;
    int64_t hi = h.given ? (int64_t)(h.open ? ceil(h.value) - 1 : floor(h.value)) : (int64_t)MOST;
    if (lo > hi) PL_FAIL(err, PL_INVALID, "the schema's bounds allow no integer");
    pl_buf_add_c(out, "(");
    if (lo < 0) {
        pl_buf_add_c(out, "\"-\" (");
        naturals(out, hi < 0 ? (uint64_t)-hi : 1, (uint64_t)-lo);
        pl_buf_add_c(out, hi >= 0 ? ") |" : ")");
    }
    if (hi >= 0) naturals(out, lo > 0 ? (uint64_t)lo : 0, (uint64_t)hi);
    pl_buf_add_c(out, ")");
    return PL_OK;
}

/* ---------- decimals ---------- */

struct decimal {
    uint64_t whole;
    char fraction[32]; /* digits after the point, without zeros at the end */
    bool open;
};

static enum pl_status split(double v, bool open, struct decimal *out, struct pl_err *err) {
    char text[48];
    snprintf(text, sizeof text, "%.15g", v);
    if (strtod(text, NULL) != v) snprintf(text, sizeof text, "%.17g", v);
    const char *dot = strchr(text, '.');
    if (strpbrk(text, "eE") != NULL) PL_FAIL(err, PL_INVALID, "the schema's bound %s is too small to be written out", text);
    *out = (struct decimal){.whole = (uint64_t)v, .open = open};
    if (dot != NULL) snprintf(out->fraction, sizeof out->fraction, "%s", dot + 1);
    return PL_OK;
}

static const char MORE[] = " [0-9]{0,15}", SOME[] = " \"0\"{0,15} [1-9] [0-9]{0,15}";

/* Digits after the point that make no less than f does (open: more). `some`: at least one digit. */
static void at_least(struct pl_buf *b, const char *f, bool open, bool some) {
    if (*f == '\0') {
        pl_buf_add_c(b, open ? SOME : some ? " [0-9]{1,16}" : MORE);
        return;
    }
    pl_buf_add_c(b, " (");
    if (*f < '9') {
        digit(b, (char)(*f + 1), '9');
        pl_buf_printf(b, "%s |", MORE);
    }
    digit(b, *f, *f);
    at_least(b, f + 1, open, false);
    pl_buf_add_c(b, ")");
}

/* No more than f does (open: less). False: there are none. */
static void at_most(struct pl_buf *b, const char *f, bool open, bool some) {
    if (*f == '\0') { /* never reached when open: see below */
        pl_buf_add_c(b, some ? " \"0\"{1,16}" : " \"0\"{0,15}");
        return;
    }
    const char *bar = "";
    pl_buf_add_c(b, " (");
    if (*f > '0') {
        digit(b, '0', (char)(*f - 1));
        pl_buf_add_c(b, MORE);
        bar = " |";
    }
    if (!open || f[1] != '\0') {
        pl_buf_add_c(b, bar);
        digit(b, *f, *f);
        at_most(b, f + 1, open, false);
    }
    pl_buf_add_c(b, some ? ")" : ")?");
}

/* Both at once, for n digits after the point of one whole part. */
static void within(struct pl_buf *b, const char *lo, const char *hi, size_t n) {
    if (n == 0) {
        pl_buf_add_c(b, " \"0\"{0,15}");
        return;
    }
    if (*lo == *hi) {
        digit(b, *lo, *lo);
        within(b, lo + 1, hi + 1, n - 1);
        return;
    }
    pl_buf_add_c(b, " (");
    digit(b, *lo, *lo);
    at_least(b, lo + 1, false, false);
    if (*hi - *lo > 1) {
        pl_buf_add_c(b, " |");
        digit(b, (char)(*lo + 1), (char)(*hi - 1));
        pl_buf_add_c(b, MORE);
    }
    pl_buf_add_c(b, " |");
    digit(b, *hi, *hi);
    at_most(b, hi + 1, false, false);
    pl_buf_add_c(b, ")");
}

static enum pl_status one_whole(struct pl_buf *b, struct decimal lo, struct decimal hi, struct pl_err *err) {
    size_t l = strlen(lo.fraction), h = strlen(hi.fraction), n = PL_MAX(l, h);
    if (lo.open || hi.open)
        PL_FAIL(err, PL_INVALID, "exclusive bounds of numbers are supported when a whole number lies between them");
    memset(lo.fraction + l, '0', n - l);
    memset(hi.fraction + h, '0', n - h);
    if (strcmp(lo.fraction, hi.fraction) > 0) PL_FAIL(err, PL_INVALID, "the schema's bounds allow no number");
    pl_buf_printf(b, " \"%llu.\"", (unsigned long long)lo.whole);
    within(b, lo.fraction, hi.fraction, n);
    return PL_OK;
}

/* Magnitudes from lo to hi; NULL: any more. */
static enum pl_status magnitudes(struct pl_buf *b, const struct decimal *lo, const struct decimal *hi, struct pl_err *err) {
    const char *bar = "";
    bool part = lo->open || lo->fraction[0] != '\0'; /* of its own whole part not everything is allowed */
    uint64_t from = lo->whole + part, to = hi == NULL ? MOST : hi->whole;
    if (hi != NULL && (lo->whole > hi->whole || (lo->whole == hi->whole && hi->open && hi->fraction[0] == '\0')))
        PL_FAIL(err, PL_INVALID, "the schema's bounds allow no number");
    if (hi != NULL && lo->whole == hi->whole && part) return one_whole(b, *lo, *hi, err);
    if (part) {
        pl_buf_printf(b, " \"%llu.\"", (unsigned long long)lo->whole);
        at_least(b, lo->fraction, lo->open, true);
        bar = " |";
    }
    if (hi == NULL || from < to) { /* whole parts with any fraction */
        pl_buf_printf(b, "%s (", bar);
        naturals(b, from, hi == NULL ? to : to - 1);
        pl_buf_add_c(b, ") (\".\" [0-9]{1,16})?");
        bar = " |";
    }
    if (hi == NULL || (hi->open && hi->fraction[0] == '\0')) return PL_OK;
    pl_buf_printf(b, "%s \"%llu\" (\".\"", bar, (unsigned long long)hi->whole);
    at_most(b, hi->fraction, hi->open, true);
    pl_buf_add_c(b, ")?");
    return PL_OK;
}

enum pl_status pl_schema_number(const json_t *schema, struct pl_buf *out, struct pl_err *err) {
    struct bound l, h;
    struct decimal a, c;
    PL_TRY(read_bounds(schema, &l, &h, err));
    if (!l.given && !h.given) {
        pl_buf_add_c(out, "js-number");
        return PL_OK;
    }
    if (l.given && h.given && (l.value > h.value || (l.value == h.value && (l.open || h.open))))
        PL_FAIL(err, PL_INVALID, "the schema's bounds allow no number");
    bool negative = !l.given || l.value < 0, positive = !h.given || h.value > 0 || (h.value == 0 && !h.open);
    pl_buf_add_c(out, "(");
    if (negative) {
        bool below = h.given && h.value <= 0; /* all of it is: zero is the least magnitude, or h is */
        PL_TRY(split(below ? -h.value : 0, below && h.open, &a, err));
        if (l.given) PL_TRY(split(-l.value, l.open, &c, err));
        pl_buf_add_c(out, "\"-\" (");
        PL_TRY(magnitudes(out, &a, l.given ? &c : NULL, err));
        pl_buf_add_c(out, positive ? ") |" : ")");
    }
    if (positive) {
        bool above = l.given && l.value >= 0;
        PL_TRY(split(above ? l.value : 0, above && l.open, &a, err));
        if (h.given) PL_TRY(split(h.value, h.open, &c, err));
        PL_TRY(magnitudes(out, &a, h.given ? &c : NULL, err));
    }
    pl_buf_add_c(out, ")");
    return PL_OK;
}
