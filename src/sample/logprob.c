#include <math.h>

#include "sample/filter.h"
#include "sample/sample.h"

double pl_log_normalizer(const float *logits, uint32_t vocab) {
    float max = -INFINITY;
    for (uint32_t i = 0; i < vocab; i++) max = logits[i] > max ? logits[i] : max;
    if (isinf(max)) return (double)max;
    double total = 0.0;
    float part[256]; /* a block of exponentials that vectorises, then a sum in double */
    for (uint32_t i = 0; i < vocab; i += 256) {
        uint32_t n = PL_MIN(256u, vocab - i);
        for (uint32_t j = 0; j < n; j++) part[j] = pl_exp_neg(logits[i + j] - max);
        for (uint32_t j = 0; j < n; j++) total += (double)part[j];
    }
    return (double)max + log(total);
}

double pl_logprob(const float *logits, uint32_t vocab, uint32_t id) {
    PL_ASSERT(id < vocab);
    return (double)logits[id] - pl_log_normalizer(logits, vocab);
}

size_t pl_top_logprobs(const float *logits, uint32_t vocab, size_t k, uint32_t *ids, double *logprobs) {
    size_t count = 0;
    if (k == 0) return 0;
    for (uint32_t i = 0; i < vocab; i++) {
        if (count == k && !(logits[i] > logits[ids[count - 1]])) continue; /* equal: the lower id stays */
        size_t at = count < k ? count++ : k - 1;
        while (at > 0 && logits[i] > logits[ids[at - 1]]) {
            ids[at] = ids[at - 1];
            at--;
        }
        ids[at] = i;
    }
    double normalizer = pl_log_normalizer(logits, vocab);
    for (size_t i = 0; i < count; i++) logprobs[i] = (double)logits[ids[i]] - normalizer;
    return count;
}
