/* sampler - one sequence's parameters, penalty counts and scratch; the order of processing is in pl_sampler_draw. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "sample/filter.h"
#include "base/noise.h"
#include "sample/sample.h"

struct pl_sampler {
    struct pl_sampling params;
    struct pl_logit_bias *bias;
    uint32_t vocab;
    uint32_t *counts;  /* [V] of the penalty window; NULL when no penalty is on */
    uint32_t *history; /* ring of penalty_last_n ids; NULL when the window is everything */
    size_t history_len, history_at;
    struct pl_filter_scratch scratch; /* empty when greedy */
};

void pl_sampling_default(struct pl_sampling *s) {
    *s = (struct pl_sampling){
        .temperature = 0.8f,
        .top_k = 40,
        .top_p = 0.95f,
        .min_p = 0.05f,
        .typical_p = 1.0f,
        .repetition_penalty = 1.0f,
        .penalty_last_n = 64,
    };
}

static enum pl_status check_bias(const struct pl_sampling *s, uint32_t vocab, struct pl_err *err) {
    for (size_t i = 0; i < s->bias_count; i++) {
        const struct pl_logit_bias *b = &s->bias[i];
        if (b->id >= vocab)
            PL_FAIL(err, PL_INVALID, "logit_bias names token %u but the vocabulary has %u tokens", b->id, vocab);
        bool ban = isinf(b->bias) && b->bias < 0;
        if (!ban && !(b->bias >= -1000.0f && b->bias <= 1000.0f))
            PL_FAIL(err, PL_INVALID, "logit_bias of token %u is %g but must be from -1000 to 1000, or -inf to ban it", b->id,
                    (double)b->bias);
    }
    return PL_OK;
}

enum pl_status pl_sampling_check(const struct pl_sampling *s, uint32_t vocab, struct pl_err *err) {
#define RANGE(name, ok, text) \
    if (!(ok)) PL_FAIL(err, PL_INVALID, #name " is %g but must be " text, (double)s->name)
    RANGE(temperature, s->temperature >= 0.0f && s->temperature <= 100.0f, "from 0 (greedy) to 100");
    RANGE(top_p, s->top_p > 0.0f && s->top_p <= 1.0f, "above 0 and at most 1 (1 = off)");
    RANGE(min_p, s->min_p >= 0.0f && s->min_p < 1.0f, "at least 0 (off) and below 1");
    RANGE(typical_p, s->typical_p > 0.0f && s->typical_p <= 1.0f, "above 0 and at most 1 (1 = off)");
    RANGE(repetition_penalty, s->repetition_penalty > 0.0f && s->repetition_penalty <= 100.0f,
          "above 0 and at most 100 (1 = off)");
    RANGE(presence_penalty, s->presence_penalty >= -2.0f && s->presence_penalty <= 2.0f, "from -2 to 2");
    RANGE(frequency_penalty, s->frequency_penalty >= -2.0f && s->frequency_penalty <= 2.0f, "from -2 to 2");
#undef RANGE
    if (s->penalty_last_n < -1 || s->penalty_last_n > 1 << 24)
        PL_FAIL(err, PL_INVALID, "penalty_last_n is %d but must be -1 (all), 0 (off) or up to %d", s->penalty_last_n,
                1 << 24);
    return check_bias(s, vocab, err);
}

static bool penalises(const struct pl_sampling *s) {
    return s->penalty_last_n != 0 &&
           (s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f);
}

static enum pl_status allocate(struct pl_sampler *p) {
    const struct pl_sampling *s = &p->params;
    if (s->bias_count > 0) {
        p->bias = pl_alloc(s->bias_count, sizeof *p->bias);
        if (p->bias == NULL) return PL_NO_MEMORY;
        memcpy(p->bias, s->bias, s->bias_count * sizeof *p->bias);
    }
    p->params.bias = p->bias;
    if (penalises(s)) {
        p->counts = pl_calloc(p->vocab, sizeof *p->counts);
        if (p->counts == NULL) return PL_NO_MEMORY;
        if (s->penalty_last_n > 0) {
            p->history = pl_alloc((size_t)s->penalty_last_n, sizeof *p->history);
            if (p->history == NULL) return PL_NO_MEMORY;
        }
    }
    return s->temperature > 0.0f ? pl_filter_scratch_init(&p->scratch, p->vocab) : PL_OK;
}

enum pl_status pl_sampler_create(const struct pl_sampling *s, uint32_t vocab, struct pl_sampler **out, struct pl_err *err) {
    PL_TRY(pl_sampling_check(s, vocab, err));
    struct pl_sampler *p = pl_calloc(1, sizeof *p);
    if (p == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for a sampler");
    p->params = *s;
    p->vocab = vocab;
    if (allocate(p) != PL_OK) {
        pl_sampler_destroy(p);
        PL_FAIL(err, PL_NO_MEMORY, "out of memory for a sampler over %u tokens", vocab);
    }
    *out = p;
    return PL_OK;
}

void pl_sampler_destroy(struct pl_sampler *s) {
    if (s == NULL) return;
    pl_free(s->bias);
    pl_free(s->counts);
    pl_free(s->history);
    pl_filter_scratch_deinit(&s->scratch);
    pl_free(s);
}

enum pl_sampler_need pl_sampler_needs(const struct pl_sampler *s) {
    if (s->params.bias_count > 0) return PL_SAMPLER_NEEDS_BIAS;
    if (s->counts != NULL) return PL_SAMPLER_NEEDS_COUNTS;
    if (s->params.temperature > 0.0f && s->params.typical_p < 1.0f) return PL_SAMPLER_NEEDS_TYPICAL;
    return PL_SAMPLER_NEEDS_ROW;
}

const struct pl_sampling *pl_sampler_params(const struct pl_sampler *s) { return &s->params; }

void pl_sampler_accept(struct pl_sampler *s, uint32_t id) {
    if (s->counts == NULL || id >= s->vocab) return;
    if (s->history != NULL) {
        size_t n = (size_t)s->params.penalty_last_n;
        if (s->history_len == n)
            s->counts[s->history[s->history_at]]--;
        else
            s->history_len++;
        s->history[s->history_at] = id;
        s->history_at = (s->history_at + 1) % n;
    }
    s->counts[id]++;
}

static void apply_bias_and_penalties(const struct pl_sampler *s, float *logits) {
    const struct pl_sampling *p = &s->params;
    for (size_t i = 0; i < p->bias_count; i++) logits[p->bias[i].id] += p->bias[i].bias;
    if (s->counts == NULL) return;
    for (uint32_t id = 0; id < s->vocab; id++) {
        if (s->counts[id] == 0) continue;
        float x = logits[id];
        x = x > 0.0f ? x / p->repetition_penalty : x * p->repetition_penalty;
        logits[id] = x - p->presence_penalty - p->frequency_penalty * (float)s->counts[id];
    }
}

enum { MAX_LANES = 32 }; /* independent maxima, so that the compiler makes vectors of them */

/* The largest logit; false when one is NaN or +inf. */
static bool largest(const float *logits, uint32_t vocab, float *out) {
    float max[MAX_LANES], top = -INFINITY;
    uint32_t bad[MAX_LANES] = {0}, any = 0, i = 0;
    for (uint32_t k = 0; k < MAX_LANES; k++) max[k] = -INFINITY;
    for (; i + MAX_LANES <= vocab; i += MAX_LANES)
        for (uint32_t k = 0; k < MAX_LANES; k++) {
            float x = logits[i + k];
            bad[k] |= x < INFINITY ? 0u : 1u;
            max[k] = x > max[k] ? x : max[k];
        }
    for (; i < vocab; i++) {
        any |= logits[i] < INFINITY ? 0u : 1u;
        max[0] = logits[i] > max[0] ? logits[i] : max[0];
    }
    for (uint32_t k = 0; k < MAX_LANES; k++) {
        any |= bad[k];
        top = max[k] > top ? max[k] : top;
    }
    *out = top;
    return any == 0;
}

/* The largest logit's lowest id. */
static enum pl_status find_max(const float *logits, uint32_t vocab, uint32_t *id) {
    float max;
    uint32_t i = 0;
    if (!largest(logits, vocab, &max)) return PL_DEVICE; /* NaN or +inf: the model or its kernel is broken */
    if (max == -INFINITY) return PL_INVALID;
    for (; i + MAX_LANES <= vocab; i += MAX_LANES) {
        uint32_t found = 0;
        for (uint32_t k = 0; k < MAX_LANES; k++) found |= logits[i + k] == max ? 1u : 0u;
        if (found != 0) break;
    }
    while (logits[i] != max) i++;
    *id = i;
    return PL_OK;
}

/* argmax(logit / T + g). Ids too far below the best so far need no random number. */
static uint32_t draw_gumbel(const struct pl_sampler *s, uint64_t position, float max, uint32_t start) {
    const struct pl_filter_scratch *f = &s->scratch;
    float inverse_t = 1.0f / s->params.temperature;
    float best = pl_tempered(f->logits[start], max, inverse_t) + pl_gumbel(s->params.seed, position, f->ids[start]);
    uint32_t best_id = f->ids[start];
    for (uint32_t i = 0; i < f->count; i++) {
        float x = pl_tempered(f->logits[i], max, inverse_t);
        if (i == start || x + PL_GUMBEL_MAX < best) continue;
        x += pl_gumbel(s->params.seed, position, f->ids[i]);
        if (x > best || (x == best && f->ids[i] < best_id)) {
            best = x;
            best_id = f->ids[i];
        }
    }
    return best_id;
}

enum pl_status pl_sampler_draw(struct pl_sampler *s, float *logits, uint64_t position, uint32_t *id) {
    uint32_t top = 0;
    apply_bias_and_penalties(s, logits);
    PL_TRY(find_max(logits, s->vocab, &top));
    if (s->params.temperature == 0.0f) {
        *id = top;
        if (pl_fault("sampler-bit") && position % 5 == 4) *id ^= 1;
        if (pl_fault("unsteady") && pl_clock_ns() / 64 % 2 == 0) *id ^= 1;
        return PL_OK;
    }
    float max = logits[top];
    uint32_t start = pl_filter_apply(&s->scratch, &s->params, logits, s->vocab, max);
    *id = draw_gumbel(s, position, max, start);
    return PL_OK;
}
