/* sample - from logits to a token. Order: bias and penalties, then filters over the untempered distribution, and
 * temperature once, at the draw. Random numbers are Philox keyed by (seed, position): the same request gives the same
 * text whatever ran beside it. */
#ifndef PL_SAMPLE_SAMPLE_H
#define PL_SAMPLE_SAMPLE_H

#include <stdint.h>

#include "base/status.h"

struct pl_logit_bias {
    uint32_t id;
    float bias; /* -INFINITY bans */
};
struct pl_sampling {
    float temperature;                         /* 0 = greedy (lowest id wins ties); 0..100 */
    uint32_t top_k;                            /* 0 = off */
    float top_p;                               /* (0,1], 1 = off */
    float min_p;                               /* [0,1), 0 = off */
    float typical_p;                           /* (0,1], 1 = off */
    float repetition_penalty;                  /* > 0, 1 = off */
    float presence_penalty, frequency_penalty; /* -2..2 */
    int32_t penalty_last_n;                    /* tokens looked back on; -1 = all, 0 = off */
    uint64_t seed;
    const struct pl_logit_bias *bias;
    size_t bias_count;
};
void pl_sampling_default(struct pl_sampling *s); /* temperature 0.8, top_k 40, top_p 0.95, min_p 0.05, the rest off */
/* Names the parameter that is out of range. */
enum pl_status pl_sampling_check(const struct pl_sampling *s, uint32_t vocab, struct pl_err *err) PL_MUST_CHECK;

struct pl_sampler; /* parameters, penalty counts and scratch of one sequence */
enum pl_status pl_sampler_create(const struct pl_sampling *s, uint32_t vocab, struct pl_sampler **out,
                                 struct pl_err *err) PL_MUST_CHECK;
void pl_sampler_destroy(struct pl_sampler *s);
/* A token that became part of the sequence (prompt or generated). */
void pl_sampler_accept(struct pl_sampler *s, uint32_t id);
/* Bias, then per id seen in the window: repetition (positive logits divided, others multiplied), minus presence, minus
 * frequency x count; then the filters (filter.h), then the draw at temperature. Greedy needs no filter.
 * logits [V] is modified. NaN or +inf logits give PL_DEVICE, all -inf PL_INVALID. */
enum pl_status pl_sampler_draw(struct pl_sampler *s, float *logits, uint64_t position, uint32_t *id) PL_MUST_CHECK;
/* What a draw needs besides the row, its seed and its position: a device draws from rows that need nothing else. */
enum pl_sampler_need {
    PL_SAMPLER_NEEDS_ROW,
    PL_SAMPLER_NEEDS_BIAS,
    PL_SAMPLER_NEEDS_COUNTS, /* of penalties */
    PL_SAMPLER_NEEDS_TYPICAL /* the entropy, for typical_p */
};
enum pl_sampler_need pl_sampler_needs(const struct pl_sampler *s);
const struct pl_sampling *pl_sampler_params(const struct pl_sampler *s);
/* log(sum(exp(logits))). */
double pl_log_normalizer(const float *logits, uint32_t vocab);
/* log softmax(logits)[id], and the k most likely ids with theirs, from raw logits. */
double pl_logprob(const float *logits, uint32_t vocab, uint32_t id);
size_t pl_top_logprobs(const float *logits, uint32_t vocab, size_t k, uint32_t *ids, double *logprobs);

#endif
