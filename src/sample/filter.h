/* filter - which tokens a draw may choose from. Filters see the untempered distribution (T = 1).
 *
 * typical_p first; top_k, top_p and min_p then all judge the same distribution, that of what typical_p kept:
 * p >= the k-th largest (ties stay), mass strictly above p <= top_p, p >= min_p * largest. At least one token stays. */
#ifndef PL_SAMPLE_FILTER_H
#define PL_SAMPLE_FILTER_H

#include "sample/sample.h"

struct pl_filter_scratch {
    uint32_t *ids;  /* [V] survivors, ascending */
    float *logits;  /* [V] theirs */
    float *weights; /* [V] exp(logit - max) */
    float *keys;    /* [V] what a selection orders by */
    float *masses;  /* [V] what it adds up */
    uint32_t count;
};

enum pl_status pl_filter_scratch_init(struct pl_filter_scratch *f, uint32_t vocab) PL_MUST_CHECK;
void pl_filter_scratch_deinit(struct pl_filter_scratch *f);
/* Fills ids, logits and count from logits [V], whose largest is max; returns the index of the largest survivor. */
uint32_t pl_filter_apply(struct pl_filter_scratch *f, const struct pl_sampling *p, const float *logits, uint32_t vocab,
                         float max);

/* The smallest key such that the mass of all strictly larger keys is <= budget. Reorders both arrays; expected O(n).
 * n > 0, budget >= 0. */
float pl_select_threshold(float *keys, float *masses, uint32_t n, double budget);

/* e^x for x <= 0, relative error below 3e-7; 0 below -87. Plain arithmetic, so that loops over it vectorise. */
static inline float pl_exp_neg(float x) {
    float clamped = x < -87.0f ? -87.0f : x;
    float k = clamped * 1.44269504f + 12582912.0f; /* round to nearest by the magic number 1.5 * 2^23 */
    float n = k - 12582912.0f;
    float r = clamped - n * 0.693359375f + n * 2.12194440e-4f; /* ln 2 in two parts */
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    union {
        int32_t i;
        float f;
    } two_n = {.i = ((int32_t)n + 127) << 23};
    return x < -87.0f ? 0.0f : y * two_n.f;
}

/* The same as a multiple of 2^-34 (nearest, ties to even): up to 2^18 of them add up exactly in a double, in any order. */
static inline float pl_mass(float x) { return (float)(((double)pl_exp_neg(x) + 393216.0) - 393216.0); }

#endif
