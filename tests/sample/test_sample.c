/* Samplers against a twin that sorts and adds in double: sets kept, frequencies drawn, penalties, ranges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/philox.h"
#include "sample/filter.h"
#include "sample/sample.h"

enum { V_SMALL = 64 };

static uint32_t rand_bits(uint32_t seed, uint32_t i) {
    uint32_t c[4] = {i, 99, 0, 0}, k[2] = {seed, 3};
    return pl_philox4x32(c, k).v[0];
}
static double rand_unit(uint32_t seed, uint32_t i) { return ((double)rand_bits(seed, i) + 0.5) * 0x1p-32; }

static void random_logits(float *x, uint32_t n, uint32_t seed, double spread) {
    for (uint32_t i = 0; i < n; i++) {
        double u = rand_unit(seed, 2 * i), v = rand_unit(seed, 2 * i + 1);
        x[i] = (float)(spread * sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
    }
}

/* --- the twin --- */
struct twin {
    uint32_t vocab;
    double p[4096]; /* untempered */
    bool keep[4096];
    double margin; /* how near any token was to a border, relative */
};

static void border(struct twin *t, double value, double limit) {
    double d = fabs(value - limit) / (fabs(limit) + 1e-12);
    if (d < t->margin) t->margin = d;
}

static void twin_filter(struct twin *t, const struct pl_sampling *s, const float *logits, uint32_t vocab) {
    double max = -INFINITY, total = 0.0, entropy = 0.0;
    t->vocab = vocab;
    t->margin = 1.0;
    for (uint32_t i = 0; i < vocab; i++) max = fmax(max, (double)logits[i]);
    for (uint32_t i = 0; i < vocab; i++) total += t->p[i] = exp((double)logits[i] - max);
    for (uint32_t i = 0; i < vocab; i++) t->p[i] /= total;
    for (uint32_t i = 0; i < vocab; i++) entropy -= t->p[i] > 0 ? t->p[i] * log(t->p[i]) : 0;
    for (uint32_t i = 0; i < vocab; i++) {
        double nearer = 0.0, d = fabs(-log(t->p[i]) - entropy);
        for (uint32_t j = 0; j < vocab; j++) nearer += fabs(-log(t->p[j]) - entropy) < d ? t->p[j] : 0.0;
        t->keep[i] = t->p[i] > 0 && (s->typical_p == 1.0f || nearer <= (double)s->typical_p);
        if (s->typical_p < 1.0f) border(t, nearer, (double)s->typical_p);
    }
    double mass = 0.0, top = 0.0;
    for (uint32_t i = 0; i < vocab; i++) {
        if (!t->keep[i]) t->p[i] = 0;
        mass += t->p[i];
        top = fmax(top, t->p[i]);
    }
    bool keep[4096];
    for (uint32_t i = 0; i < vocab; i++) {
        double above = 0.0;
        uint32_t larger = 0;
        for (uint32_t j = 0; j < vocab; j++) {
            if (!t->keep[j] || !(logits[j] > logits[i])) continue;
            above += t->p[j] / mass;
            larger++;
        }
        keep[i] = t->keep[i] && (s->top_k == 0 || larger < s->top_k) && (s->top_p == 1.0f || above <= (double)s->top_p) &&
                  (s->min_p == 0.0f || t->p[i] >= (double)s->min_p * top);
        if (s->top_p < 1.0f) border(t, above, (double)s->top_p);
        if (s->min_p > 0.0f) border(t, t->p[i], (double)s->min_p * top);
    }
    memcpy(t->keep, keep, vocab * sizeof keep[0]);
}

static struct pl_sampling plain(float temperature, uint64_t seed) {
    struct pl_sampling s;
    pl_sampling_default(&s);
    s.temperature = temperature;
    s.top_k = 0;
    s.top_p = 1.0f;
    s.min_p = 0.0f;
    s.seed = seed;
    return s;
}

static void random_filters(struct pl_sampling *s, uint32_t seed, uint32_t vocab) {
    *s = plain(1.0f, seed);
    uint32_t which = rand_bits(seed, 1000000) % 16;
    if (which & 1) s->top_k = 1 + rand_bits(seed, 1000001) % (vocab + 5);
    if (which & 2) s->top_p = (float)(0.05 + 0.94 * rand_unit(seed, 1000002));
    if (which & 4) s->min_p = (float)(0.3 * rand_unit(seed, 1000003));
    if (which & 8) s->typical_p = (float)(0.05 + 0.94 * rand_unit(seed, 1000004));
}

static void kept_sets_match_the_twin(void **state) {
    (void)state;
    static struct twin t;
    static float logits[600];
    uint32_t compared = 0;
    for (uint32_t seed = 0; seed < 1500; seed++) {
        uint32_t vocab = 1 + rand_bits(seed, 2000000) % (seed % 10 == 0 ? 600 : 90);
        random_logits(logits, vocab, seed, 0.2 + 4.0 * rand_unit(seed, 2000001));
        if (seed % 7 == 0) {
            for (uint32_t i = 0; i < vocab; i += 3) logits[i] = floorf(logits[i]); /* ties */
        }
        if (seed % 5 == 0) logits[vocab / 2] = vocab > 1 ? -INFINITY : 0.0f;
        struct pl_sampling s;
        random_filters(&s, seed, vocab);
        twin_filter(&t, &s, logits, vocab);
        if (t.margin < 1e-5) continue;
        struct pl_filter_scratch f = {0};
        assert_int_equal(pl_filter_scratch_init(&f, vocab), PL_OK);
        float max = -INFINITY;
        for (uint32_t i = 0; i < vocab; i++) max = fmaxf(max, logits[i]);
        uint32_t top = pl_filter_apply(&f, &s, logits, vocab, max), at = 0;
        assert_true(f.count > 0 && top < f.count);
        for (uint32_t i = 0; i < vocab; i++) {
            bool kept = at < f.count && f.ids[at] == i;
            if (kept != t.keep[i])
                fail_msg("seed %u token %u: kept %d, twin %d (k %u p %g min %g typ %g)", seed, i, kept, t.keep[i], s.top_k,
                         (double)s.top_p, (double)s.min_p, (double)s.typical_p);
            at += kept;
        }
        compared++;
        pl_filter_scratch_deinit(&f);
    }
    assert_true(compared > 900);
}

/* (chi2 - df) / sqrt(2 df) of n draws against the twin's tempered probabilities over its kept set. */
static double chi_square_z(const struct pl_sampling *s, const float *logits, uint32_t vocab, uint32_t n, double exponent) {
    static struct twin t;
    static double q[4096];
    static uint32_t seen[4096];
    twin_filter(&t, s, logits, vocab);
    double max = -INFINITY, total = 0.0;
    for (uint32_t i = 0; i < vocab; i++) max = t.keep[i] ? fmax(max, (double)logits[i]) : max;
    for (uint32_t i = 0; i < vocab; i++)
        total += q[i] = t.keep[i] ? exp(exponent * ((double)logits[i] - max) / (double)s->temperature) : 0.0;
    memset(seen, 0, sizeof seen);
    struct pl_sampler *p = NULL;
    assert_int_equal(pl_sampler_create(s, vocab, &p, NULL), PL_OK);
    static float copy[4096];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = UINT32_MAX;
        memcpy(copy, logits, vocab * sizeof *copy);
        assert_int_equal(pl_sampler_draw(p, copy, i, &id), PL_OK);
        assert_true(id < vocab && t.keep[id]);
        seen[id]++;
    }
    pl_sampler_destroy(p);
    double chi2 = 0.0, rest_want = 0.0, rest_seen = 0.0, cells = -1.0;
    for (uint32_t i = 0; i < vocab; i++) {
        double want = (double)n * q[i] / total;
        if (want < 10.0) {
            rest_want += want;
            rest_seen += seen[i];
            continue;
        }
        chi2 += ((double)seen[i] - want) * ((double)seen[i] - want) / want;
        cells++;
    }
    if (rest_want >= 10.0) {
        chi2 += (rest_seen - rest_want) * (rest_seen - rest_want) / rest_want;
        cells++;
    }
    return cells <= 0 ? 0.0 : (chi2 - cells) / sqrt(2.0 * cells);
}

static void frequencies_match_the_twin(void **state) {
    (void)state;
    float logits[V_SMALL];
    float temperatures[] = {0.3f, 0.8f, 1.0f, 1.7f};
    for (uint32_t seed = 0; seed < 24; seed++) {
        random_logits(logits, V_SMALL, seed, 1.5);
        struct pl_sampling s;
        random_filters(&s, seed * 5 + 1, V_SMALL);
        s.temperature = temperatures[seed % 4];
        double z = chi_square_z(&s, logits, V_SMALL, 40000, 1.0);
        if (!(fabs(z) < 5.0)) fail_msg("seed %u: z = %g", seed, z);
    }
}

/* The checker must see a draw from a slightly different temperature. */
static void a_wrong_temperature_is_seen(void **state) {
    (void)state;
    float logits[V_SMALL];
    random_logits(logits, V_SMALL, 1, 1.5);
    struct pl_sampling s = plain(1.0f, 1);
    assert_true(chi_square_z(&s, logits, V_SMALL, 40000, 1.0) < 5.0);
    assert_true(chi_square_z(&s, logits, V_SMALL, 40000, 1.05) > 5.0);
}

/* A uniform that can round to 1.0 gives infinite noise and a random token. */
static void logits_100_apart_are_certain(void **state) {
    (void)state;
    enum { V = 152000 };
    float *logits = pl_calloc(V, sizeof *logits);
    assert_non_null(logits);
    struct pl_sampling s = plain(1.0f, 5);
    struct pl_sampler *p = NULL;
    assert_int_equal(pl_sampler_create(&s, V, &p, NULL), PL_OK);
    for (uint32_t i = 0; i < 500; i++) {
        memset(logits, 0, V * sizeof *logits);
        logits[77777] = 100.0f;
        uint32_t id = 0;
        assert_int_equal(pl_sampler_draw(p, logits, i, &id), PL_OK);
        assert_int_equal(id, 77777);
    }
    pl_sampler_destroy(p);
    pl_free(logits);
    /* Every one of the 2^23 values, and the control: with 24 bits the largest rounds to 1. */
    for (uint32_t b = 0; b < 1u << 23; b++) {
        float u = pl_uniform_open(b << 9);
        if (!(u > 0.0f && u < 1.0f)) fail_msg("%u", b);
    }
    volatile float control = ((float)(UINT32_MAX >> 8) + 0.5f) * 0x1p-24f;
    assert_true(control == 1.0f);
    assert_true(isinf(-log(-log((double)control))));
}

/* Noise without the shortcut that skips hopeless ids: the drawn id is the argmax over all of them. */
static void skipping_changes_nothing(void **state) {
    (void)state;
    enum { V = 5000 };
    static float logits[V], copy[V];
    for (uint32_t n = 0; n < 200; n++) {
        random_logits(logits, V, n, 3.0);
        struct pl_sampling s = plain(0.7f, 1234567890123u + n);
        double best = -INFINITY;
        uint32_t want = 0, id = 0;
        for (uint32_t i = 0; i < V; i++) {
            uint32_t c[4] = {i >> 2, 0, 0, n}, k[2] = {(uint32_t)s.seed, (uint32_t)(s.seed >> 32)};
            double u = (double)pl_uniform_open(pl_philox4x32(c, k).v[i & 3]);
            double x = (double)logits[i] / (double)s.temperature - log(-log(u));
            if (x > best) {
                best = x;
                want = i;
            }
        }
        struct pl_sampler *p = NULL;
        assert_int_equal(pl_sampler_create(&s, V, &p, NULL), PL_OK);
        memcpy(copy, logits, sizeof copy);
        assert_int_equal(pl_sampler_draw(p, copy, n, &id), PL_OK);
        assert_int_equal(id, want);
        pl_sampler_destroy(p);
    }
}

static void greedy_takes_the_lowest_of_equals(void **state) {
    (void)state;
    float logits[5] = {1, 3, 2, 3, 3};
    struct pl_sampling s = plain(0.0f, 0);
    struct pl_sampler *p = NULL;
    uint32_t id = 9;
    assert_int_equal(pl_sampler_create(&s, 5, &p, NULL), PL_OK);
    assert_int_equal(pl_sampler_draw(p, logits, 0, &id), PL_OK);
    assert_int_equal(id, 1);
    logits[1] = NAN;
    assert_int_equal(pl_sampler_draw(p, logits, 0, &id), PL_DEVICE);
    logits[1] = INFINITY;
    assert_int_equal(pl_sampler_draw(p, logits, 0, &id), PL_DEVICE);
    for (int i = 0; i < 5; i++) logits[i] = -INFINITY;
    assert_int_equal(pl_sampler_draw(p, logits, 0, &id), PL_INVALID);
    pl_sampler_destroy(p);
}

static void penalties_and_bias_change_the_greedy_choice(void **state) {
    (void)state;
    const struct pl_logit_bias bias[] = {{4, -INFINITY}, {2, 0.25f}};
    struct pl_sampling s = plain(0.0f, 0);
    s.bias = bias;
    s.bias_count = 2;
    s.repetition_penalty = 2.0f;
    s.presence_penalty = 0.5f;
    s.frequency_penalty = 0.25f;
    s.penalty_last_n = 3;
    struct pl_sampler *p = NULL;
    assert_int_equal(pl_sampler_create(&s, 6, &p, NULL), PL_OK);
    uint32_t history[] = {0, 1, 1, 3}; /* 0 leaves the window of three */
    for (size_t i = 0; i < 4; i++) pl_sampler_accept(p, history[i]);
    float logits[6] = {1.0f, 4.0f, 0.5f, -1.0f, 9.0f, 0.0f};
    uint32_t id = 0;
    assert_int_equal(pl_sampler_draw(p, logits, 0, &id), PL_OK);
    assert_int_equal(id, 0);
    const float want[6] = {1.0f, 4.0f / 2 - 0.5f - 0.5f, 0.75f, -2.0f - 0.5f - 0.25f, -INFINITY, 0.0f};
    for (int i = 0; i < 6; i++) assert_true(logits[i] == want[i]);
    pl_sampler_destroy(p);
}

static void seed_and_position_decide_alone(void **state) {
    (void)state;
    static float logits[3000], copy[3000];
    random_logits(logits, 3000, 8, 1.0);
    struct pl_sampling s = plain(1.0f, 42), other = plain(1.0f, 43);
    struct pl_sampler *a = NULL, *b = NULL, *c = NULL;
    assert_int_equal(pl_sampler_create(&s, 3000, &a, NULL), PL_OK);
    assert_int_equal(pl_sampler_create(&s, 3000, &b, NULL), PL_OK);
    assert_int_equal(pl_sampler_create(&other, 3000, &c, NULL), PL_OK);
    uint32_t ids[3][50], differ_seed = 0, differ_position = 0;
    for (uint32_t i = 0; i < 50; i++) {
        struct pl_sampler *which[3] = {a, b, c};
        for (int w = 0; w < 3; w++) {
            uint32_t position = w == 1 ? 49 - i : i; /* b in reverse order */
            memcpy(copy, logits, sizeof copy);
            assert_int_equal(pl_sampler_draw(which[w], copy, position, &ids[w][position]), PL_OK);
        }
    }
    for (uint32_t i = 0; i < 50; i++) {
        assert_int_equal(ids[0][i], ids[1][i]);
        differ_seed += ids[0][i] != ids[2][i];
        differ_position += ids[0][i] != ids[0][(i + 1) % 50];
    }
    assert_true(differ_seed > 40 && differ_position > 40);
    pl_sampler_destroy(a);
    pl_sampler_destroy(b);
    pl_sampler_destroy(c);
}

static void ranges_are_named(void **state) {
    (void)state;
    const struct {
        const char *name;
        size_t offset;
        float bad[4];
    } rows[] = {
        {"temperature", offsetof(struct pl_sampling, temperature), {-0.1f, 101.0f, NAN, INFINITY}},
        {"top_p", offsetof(struct pl_sampling, top_p), {0.0f, 1.1f, NAN, -1.0f}},
        {"min_p", offsetof(struct pl_sampling, min_p), {1.0f, -0.1f, NAN, INFINITY}},
        {"typical_p", offsetof(struct pl_sampling, typical_p), {0.0f, 1.1f, NAN, -1.0f}},
        {"repetition_penalty", offsetof(struct pl_sampling, repetition_penalty), {0.0f, -1.0f, NAN, 101.0f}},
        {"presence_penalty", offsetof(struct pl_sampling, presence_penalty), {-2.1f, 2.1f, NAN, INFINITY}},
        {"frequency_penalty", offsetof(struct pl_sampling, frequency_penalty), {-2.1f, 2.1f, NAN, -INFINITY}},
    };
    for (size_t r = 0; r < PL_COUNT_OF(rows); r++) {
        for (size_t i = 0; i < 4; i++) {
            struct pl_sampling s;
            struct pl_err err = {0};
            pl_sampling_default(&s);
            memcpy((char *)&s + rows[r].offset, &rows[r].bad[i], sizeof(float));
            assert_int_equal(pl_sampling_check(&s, 10, &err), PL_INVALID);
            assert_non_null(strstr(err.text, rows[r].name));
        }
    }
    struct pl_logit_bias bias[] = {{10, 1.0f}, {1, NAN}, {1, INFINITY}, {1, 1001.0f}};
    for (size_t i = 0; i < 4; i++) {
        struct pl_sampling s = plain(1.0f, 0);
        struct pl_err err = {0};
        s.bias = &bias[i];
        s.bias_count = 1;
        assert_int_equal(pl_sampling_check(&s, 10, &err), PL_INVALID);
        assert_non_null(strstr(err.text, "logit_bias"));
    }
    struct pl_sampling s = plain(1.0f, 0);
    struct pl_err err = {0};
    s.penalty_last_n = -2;
    assert_int_equal(pl_sampling_check(&s, 10, &err), PL_INVALID);
    assert_non_null(strstr(err.text, "penalty_last_n"));
}

static void logprobs_match_double(void **state) {
    (void)state;
    static float logits[3000];
    for (uint32_t seed = 0; seed < 50; seed++) {
        uint32_t vocab = 1 + rand_bits(seed, 77) % 3000;
        random_logits(logits, vocab, seed, 0.5 + (double)(seed % 10) * 4.0);
        if (seed % 3 == 0 && vocab > 20) logits[3] = logits[17];
        double max = -INFINITY, total = 0.0;
        for (uint32_t i = 0; i < vocab; i++) max = fmax(max, (double)logits[i]);
        for (uint32_t i = 0; i < vocab; i++) total += exp((double)logits[i] - max);
        double z = max + log(total);
        assert_true(fabs(pl_logprob(logits, vocab, vocab / 2) - ((double)logits[vocab / 2] - z)) < 1e-6);
        uint32_t ids[20];
        double lp[20];
        size_t n = pl_top_logprobs(logits, vocab, 20, ids, lp);
        assert_int_equal(n, PL_MIN(vocab, 20u));
        for (size_t i = 0; i < n; i++) {
            assert_true(fabs(lp[i] - ((double)logits[ids[i]] - z)) < 1e-6);
            uint32_t before = 0; /* its rank: larger logits, or equal with a lower id */
            for (uint32_t j = 0; j < vocab; j++)
                before += logits[j] > logits[ids[i]] || (logits[j] == logits[ids[i]] && j < ids[i]);
            assert_int_equal(before, i);
        }
    }
    for (double x = 0.0; x > -90.0; x -= 0.0137) {
        double want = (double)(float)x < -87.0 ? 0.0 : exp((double)(float)x);
        if (fabs((double)pl_exp_neg((float)x) - want) > 3e-7 * want) fail_msg("exp(%g)", x);
    }
}

static void failed_allocations_are_errors(void **state) {
    (void)state;
    struct pl_logit_bias bias = {1, 1.0f};
    struct pl_sampling s = plain(1.0f, 0);
    s.presence_penalty = 1.0f;
    s.bias = &bias;
    s.bias_count = 1;
    uint64_t n = 1;
    for (;; n++) {
        struct pl_sampler *p = NULL;
        struct pl_err err = {0};
        pl_mem_fail_at(n);
        enum pl_status st = pl_sampler_create(&s, 100, &p, &err);
        pl_mem_fail_at(0);
        if (st == PL_OK) {
            pl_sampler_destroy(p);
            break;
        }
        assert_int_equal(st, PL_NO_MEMORY);
        assert_null(p);
        assert_non_null(strstr(err.text, "memory"));
    }
    assert_true(n > 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_sets_match_the_twin),
        cmocka_unit_test(frequencies_match_the_twin),
        cmocka_unit_test(a_wrong_temperature_is_seen),
        cmocka_unit_test(logits_100_apart_are_certain),
        cmocka_unit_test(skipping_changes_nothing),
        cmocka_unit_test(greedy_takes_the_lowest_of_equals),
        cmocka_unit_test(penalties_and_bias_change_the_greedy_choice),
        cmocka_unit_test(seed_and_position_decide_alone),
        cmocka_unit_test(ranges_are_named),
        cmocka_unit_test(logprobs_match_double),
        cmocka_unit_test(failed_allocations_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
