/* noise - the Gumbel noise of a token and the arithmetic of its score, the same bits on every host and device.
 *
 * Plain f32 arithmetic, each product and sum rounded on its own (the build has -ffp-contract=off): kernels/draw.k.c repeats
 * it operation by operation. Four ids share one Philox block; nothing but (seed, position, id) decides the noise. */
#ifndef PL_BASE_NOISE_H
#define PL_BASE_NOISE_H

#include "base/philox.h"

/* log(x) for a normal x > 0; error below 1e-7 of max(|log x|, |x - 1|). */
static inline float pl_log_pos(float x) {
    union {
        float f;
        uint32_t u;
    } b = {.f = x};
    int32_t e = (int32_t)(b.u >> 23) - 127;
    b.u = (b.u & 0x7FFFFFu) | 0x3F800000u;
    float m = b.f;
    if (m > 1.41421356f) {
        m *= 0.5f;
        e++;
    }
    float f = m - 1.0f, z = f * f, y = 7.0376836292e-2f;
    y = y * f + -1.1514610310e-1f;
    y = y * f + 1.1676998740e-1f;
    y = y * f + -1.2420140846e-1f;
    y = y * f + 1.4249322787e-1f;
    y = y * f + -1.6668057665e-1f;
    y = y * f + 2.0000714765e-1f;
    y = y * f + -2.4999993993e-1f;
    y = y * f + 3.3333331174e-1f;
    y = y * f * z;
    y = y + (float)e * -2.12194440e-4f;
    y = y - 0.5f * z;
    return f + y + (float)e * 0.693359375f;
}

static inline float pl_gumbel(uint64_t seed, uint64_t position, uint32_t id) {
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t counter[4] = {id >> 2, (uint32_t)(position >> 32), 0, (uint32_t)position};
    return -pl_log_pos(-pl_log_pos(pl_uniform_open(pl_philox4x32(counter, key).v[id & 3])));
}

/* logit / T, from the largest logit on so that what matters is small; no noise exceeds PL_GUMBEL_MAX. */
static inline float pl_tempered(float logit, float max, float inverse_t) { return (logit - max) * inverse_t; }
#define PL_GUMBEL_MAX 16.7f

/* top_p as the kernels take it: a fraction of 2^32, at least 1. And its share of a mass that is an integer of 2^-34. */
static inline uint32_t pl_top_p_fixed(float top_p) {
    double v = (double)top_p * 4294967296.0;
    return v < 1.0 ? 1u : v >= 4294967295.0 ? 4294967295u : (uint32_t)v;
}
static inline uint64_t pl_top_p_budget(uint64_t total, uint32_t top_p) {
    return (total >> 32) * top_p + (((total & 0xFFFFFFFFu) * top_p) >> 32);
}

#endif
