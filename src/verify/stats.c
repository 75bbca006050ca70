#include "verify/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/philox.h"

enum { RESAMPLES = 1000, RESAMPLES_SORTED = 200 };

/* Counted random numbers below a bound. */
struct draw {
    uint32_t at;
};
static size_t below(struct draw *d, size_t bound) {
    const uint32_t counter[4] = {d->at++, 0, 0, 0}, key[2] = {0x706C756Du, 0x62303031u};
    struct pl_philox r = pl_philox4x32(counter, key);
    return (size_t)(((uint64_t)r.v[0] << 32 | r.v[1]) % bound);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

size_t pl_stats_block(size_t n) {
    size_t b = (size_t)ceil(2.0 * cbrt((double)n));
    return PL_MAX((size_t)1, PL_MIN(b, n / 4));
}

/* The ends of the middle 95 percent of sorted statistics. */
static void ends(double *stat, size_t n, struct pl_interval *out) {
    qsort(stat, n, sizeof *stat, ascending);
    out->low = PL_MIN(stat[(size_t)(0.025 * (double)(n - 1))], out->value);
    out->high = PL_MAX(stat[(size_t)ceil(0.975 * (double)(n - 1))], out->value);
}

enum pl_status pl_stats_mean(const double *x, size_t n, struct pl_interval *out) {
    *out = (struct pl_interval){0};
    if (n == 0) return PL_OK;
    size_t block = pl_stats_block(n), starts = n - block + 1, blocks = (n + block - 1) / block;
    double *prefix = pl_alloc(n + 1, sizeof *prefix), stat[RESAMPLES];
    if (prefix == NULL) return PL_NO_MEMORY;
    prefix[0] = 0;
    for (size_t i = 0; i < n; i++) prefix[i + 1] = prefix[i] + x[i];
    out->value = prefix[n] / (double)n;
    struct draw d = {0};
    for (size_t r = 0; r < RESAMPLES; r++) {
        double sum = 0;
        for (size_t b = 0; b < blocks; b++) {
            size_t s = below(&d, starts);
            sum += prefix[s + block] - prefix[s];
        }
        stat[r] = sum / (double)(blocks * block);
    }
    ends(stat, RESAMPLES, out);
    if (n == 1) out->low = out->high = NAN; /* one value says nothing of how values spread */
    pl_free(prefix);
    return PL_OK;
}

static double quantile(const double *sorted, size_t n, double p) {
    double at = p * (double)(n - 1);
    size_t i = (size_t)at;
    return i + 1 < n ? sorted[i] + (at - (double)i) * (sorted[i + 1] - sorted[i]) : sorted[n - 1];
}

enum pl_status pl_stats_quantiles(const double *x, size_t n, const double *p, size_t count, struct pl_interval *out) {
    for (size_t k = 0; k < count; k++) out[k] = (struct pl_interval){0};
    if (n == 0 || count == 0) return PL_OK;
    size_t block = pl_stats_block(n), starts = n - block + 1;
    double *work = pl_alloc(n, sizeof *work), *stat = pl_alloc(count * RESAMPLES_SORTED, sizeof *stat);
    if (work == NULL || stat == NULL) {
        pl_free(work);
        pl_free(stat);
        return PL_NO_MEMORY;
    }
    memcpy(work, x, n * sizeof *work);
    qsort(work, n, sizeof *work, ascending);
    for (size_t k = 0; k < count; k++) out[k].value = quantile(work, n, p[k]);
    struct draw d = {0};
    for (size_t r = 0; r < RESAMPLES_SORTED; r++) {
        for (size_t at = 0; at < n; at += block)
            memcpy(work + at, x + below(&d, starts), PL_MIN(block, n - at) * sizeof *work);
        qsort(work, n, sizeof *work, ascending);
        for (size_t k = 0; k < count; k++) stat[k * RESAMPLES_SORTED + r] = quantile(work, n, p[k]);
    }
    for (size_t k = 0; k < count; k++) ends(stat + k * RESAMPLES_SORTED, RESAMPLES_SORTED, &out[k]);
    pl_free(work);
    pl_free(stat);
    return PL_OK;
}

static double resampled_median(const double *x, size_t n, struct draw *d, double *work) {
    for (size_t i = 0; i < n; i++) work[i] = d == NULL ? x[i] : x[below(d, n)];
    qsort(work, n, sizeof *work, ascending);
    return quantile(work, n, 0.5);
}

enum pl_status pl_stats_ratio(const double *a, size_t na, const double *b, size_t nb, struct pl_interval *out) {
    *out = (struct pl_interval){0};
    if (na == 0 || nb == 0) return PL_OK;
    double stat[RESAMPLES], *work = pl_alloc(PL_MAX(na, nb), sizeof *work);
    if (work == NULL) return PL_NO_MEMORY;
    struct draw d = {0};
    out->value = resampled_median(b, nb, NULL, work) / resampled_median(a, na, NULL, work);
    for (size_t r = 0; r < RESAMPLES; r++) {
        double under = resampled_median(a, na, &d, work);
        stat[r] = resampled_median(b, nb, &d, work) / under;
    }
    ends(stat, RESAMPLES, out);
    pl_free(work);
    return PL_OK;
}

enum pl_status pl_stats_paired_ratio(const double *a, const double *b, size_t n, struct pl_interval *out) {
    *out = (struct pl_interval){0};
    if (n == 0) return PL_OK;
    double stat[RESAMPLES], *ratio = pl_alloc(n, sizeof *ratio), *work = pl_alloc(n, sizeof *work);
    if (ratio == NULL || work == NULL) {
        pl_free(ratio);
        pl_free(work);
        return PL_NO_MEMORY;
    }
    struct draw d = {0};
    for (size_t i = 0; i < n; i++) ratio[i] = b[i] / a[i];
    out->value = resampled_median(ratio, n, NULL, work);
    for (size_t r = 0; r < RESAMPLES; r++) stat[r] = resampled_median(ratio, n, &d, work);
    ends(stat, RESAMPLES, out);
    pl_free(ratio);
    pl_free(work);
    return PL_OK;
}

struct pl_interval pl_stats_map(struct pl_interval v, double (*f)(double)) {
    double a = f(v.low), b = f(v.high);
    return (struct pl_interval){.value = f(v.value), .low = PL_MIN(a, b), .high = PL_MAX(a, b)};
}
