/* stats - intervals for figures that come from correlated samples.
 *
 * Neighbouring tokens of a text are not independent, so intervals come from a block bootstrap: blocks of consecutive
 * samples are drawn with replacement. The random numbers are counted from a fixed key, so the same samples give the same
 * interval everywhere. All intervals are 95 percent. */
#ifndef PL_VERIFY_STATS_H
#define PL_VERIFY_STATS_H

#include <stddef.h>

#include "base/status.h"

struct pl_interval {
    double value, low, high;
};

/* How long a block should be for n samples: grows with the cube root, at least 1 and at most n/4. */
size_t pl_stats_block(size_t n);
/* Mean of x. n 0 gives zeros; n 1 an interval of NaN, below 2 blocks one as wide as the samples. PL_NO_MEMORY. */
enum pl_status pl_stats_mean(const double *x, size_t n, struct pl_interval *out) PL_MUST_CHECK;
/* Quantiles of x at p[0..count), each with its interval (fewer resamples: sorting costs). */
enum pl_status pl_stats_quantiles(const double *x, size_t n, const double *p, size_t count,
                                  struct pl_interval *out) PL_MUST_CHECK;
/* Ratio of the medians of two unpaired sets of measurements, b over a. */
enum pl_status pl_stats_ratio(const double *a, size_t na, const double *b, size_t nb, struct pl_interval *out) PL_MUST_CHECK;
/* Median of b[i]/a[i]: what drifts, drifts in both of a pair. */
enum pl_status pl_stats_paired_ratio(const double *a, const double *b, size_t n, struct pl_interval *out) PL_MUST_CHECK;
/* The interval of a monotone function of a mean, such as exp(-mean): maps all three and sorts the ends. */
struct pl_interval pl_stats_map(struct pl_interval v, double (*f)(double));

#endif
