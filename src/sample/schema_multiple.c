/* schema_multiple.c - multipleOf where digits tell: few multiples within bounds are listed; without bounds the last digits
 * decide (divisors of 1000), or those after the point (what divides 1 in thousandths). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sample/schema_number.h"

enum { LISTED_MAX = 512, PLACES_MAX = 3 };

static enum pl_status refuse(double m, struct pl_err *err) {
    PL_FAIL(
        err, PL_INVALID,
        "the schema's multipleOf %.10g is not supported here: it can be a divisor of 1000 or of 1 in thousandths, without "
        "bounds, or an integer of which at most %d multiples lie between the bounds",
        m, LISTED_MAX);
}

static void list_multiples(struct pl_buf *b, int64_t first, int64_t last, int64_t m) {
    pl_buf_add_char(b, '(');
    for (int64_t v = first; v <= last; v += m) pl_buf_printf(b, "%s\"%lld\"", v == first ? "" : " | ", (long long)v);
    pl_buf_add_char(b, ')');
}

/* Endings of `places` digits that m divides, alone (without leading zeros) or after others. */
static void by_ending(struct pl_buf *b, int64_t m, int places) {
    int64_t span = places == 1 ? 10 : places == 2 ? 100 : 1000;
    pl_buf_add_c(b, "(\"0\" | \"-\"? (");
    for (int64_t v = m; v < span; v += m) pl_buf_printf(b, "\"%lld\" | ", (long long)v);
    pl_buf_printf(b, "[1-9] [0-9]{0,%d} (", 15 - places);
    for (int64_t v = 0; v < span; v += m) pl_buf_printf(b, "%s\"%0*lld\"", v == 0 ? "" : " | ", places, (long long)v);
    pl_buf_add_c(b, ")))");
}

/* 1/m is whole: what stands after the point decides. */
static void by_fraction(struct pl_buf *b, int64_t thousandths) {
    pl_buf_add_c(b, "js-integer (");
    for (int64_t v = thousandths; v < 1000; v += thousandths) {
        char text[24];
        snprintf(text, sizeof text, "%03lld", (long long)v);
        for (size_t n = strlen(text); n > 1 && text[n - 1] == '0'; n--) text[n - 1] = '\0';
        pl_buf_printf(b, "%s\".%s\"", v == thousandths ? "" : " | ", text);
    }
    pl_buf_add_c(b, ")?");
}

static bool bounds_of(const json_t *s, double m, int64_t *first, int64_t *last) {
    static const char *const keys[] = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"};
    double lo = -INFINITY, hi = INFINITY;
    for (int i = 0; i < 4; i++) {
        const json_t *v = json_object_get(s, keys[i]);
        if (v == NULL) continue;
        double q = json_number_value(v) / m;
        if (i < 2)
            lo = fmax(lo, i == 1 ? floor(q) + 1 : ceil(q));
        else
            hi = fmin(hi, i == 3 ? ceil(q) - 1 : floor(q));
    }
    if (!(fabs(lo) < 1e15 && fabs(hi) < 1e15)) return false;
    *first = (int64_t)lo;
    *last = (int64_t)hi;
    return true;
}

static bool is_bounded(const json_t *s) {
    return json_object_get(s, "minimum") || json_object_get(s, "exclusiveMinimum") || json_object_get(s, "maximum") ||
           json_object_get(s, "exclusiveMaximum");
}

enum pl_status pl_schema_multiple(const json_t *schema, bool integer, struct pl_buf *out, struct pl_err *err) {
    const json_t *v = json_object_get(schema, "multipleOf");
    double m = json_number_value(v), thousandths = round(m * 1000);
    if (!json_is_number(v) || !(m > 0 && m < 1e9)) PL_FAIL(err, PL_INVALID, "the schema's multipleOf is no number above 0");
    bool whole = m == floor(m), fine = fabs(m * 1000 - thousandths) < 1e-9 && thousandths >= 1;
    int64_t first = 0, last = 0;
    if (integer && !whole && fine && fmod(1000, thousandths) == 0) whole = (m = 1) > 0; /* every integer is a multiple */
    if (whole && is_bounded(schema)) {
        if (!bounds_of(schema, m, &first, &last) || last - first >= LISTED_MAX) return refuse(m, err);
        if (first > last) PL_FAIL(err, PL_INVALID, "the schema's bounds allow no multiple of %.10g", m);
        list_multiples(out, first * (int64_t)m, last * (int64_t)m, (int64_t)m);
        return PL_OK;
    }
    if (whole && m == 1) {
        pl_buf_add_c(out, "js-integer");
        return PL_OK;
    }
    for (int places = 1; whole && places <= PLACES_MAX; places++) {
        if (fmod(pow(10, places), m) != 0) continue;
        by_ending(out, (int64_t)m, places);
        return PL_OK;
    }
    if (whole || integer || is_bounded(schema) || !fine || fmod(1000, thousandths) != 0) return refuse(m, err);
    by_fraction(out, (int64_t)thousandths);
    return PL_OK;
}
