/* Intervals that hold what they should, divergences that are what their definition says, references that survive memory
 * running out. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/philox.h"
#include "verify/reference.h"
#include "verify/stats.h"

static uint32_t counter;
static double uniform(void) {
    const uint32_t c[4] = {counter++, 0, 0, 0}, key[2] = {1, 2};
    return pl_uniform_open(pl_philox4x32(c, key).v[0]);
}
static double normal(void) { return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()); }

/* Of 200 sets of samples with mean 3 about 190 intervals must hold it, also when neighbours are correlated. */
static void intervals_hold_the_mean(void **state) {
    (void)state;
    enum { N = 400, SETS = 200 };
    for (int correlated = 0; correlated < 2; correlated++) {
        int held = 0;
        for (int k = 0; k < SETS; k++) {
            double x[N], last = normal();
            struct pl_interval v;
            for (int i = 0; i < N; i++) {
                last = correlated ? 0.6 * last + 0.8 * normal() : normal();
                x[i] = 3 + last;
            }
            assert_int_equal(pl_stats_mean(x, N, &v), PL_OK);
            assert_true(v.low <= v.value && v.value <= v.high);
            held += v.low <= 3 && 3 <= v.high;
        }
        assert_in_range(held, 165, 199); /* independent draws would hold it in less than 140 of the correlated sets */
    }
}

static void quantiles_of_known_samples(void **state) {
    (void)state;
    double x[101];
    const double p[3] = {0.5, 0.9, 0.99};
    struct pl_interval v[3];
    for (int i = 0; i <= 100; i++) x[i] = (i * 37) % 101;
    assert_int_equal(pl_stats_quantiles(x, 101, p, 3, v), PL_OK);
    assert_true(v[0].value == 50 && v[1].value == 90 && v[2].value == 99);
    assert_true(v[0].low < 50 && 50 < v[0].high && v[2].high <= 100);
}

static void a_ratio_tells_slower_from_noise(void **state) {
    (void)state;
    double a[9], b[9];
    struct pl_interval v;
    for (int i = 0; i < 9; i++) a[i] = 100 + 2 * normal(), b[i] = 100 + 2 * normal();
    assert_int_equal(pl_stats_ratio(a, 9, b, 9, &v), PL_OK);
    assert_true(v.low <= 1 && 1 <= v.high);
    for (int i = 0; i < 9; i++) b[i] *= 1.2;
    assert_int_equal(pl_stats_ratio(a, 9, b, 9, &v), PL_OK);
    assert_true(v.low > 1.05 && v.high < 1.4);
}

enum { V = 500, K = 8 };

static void random_row(float *row, double sharp) {
    float logits[V];
    for (int i = 0; i < V; i++) logits[i] = (float)(sharp * normal());
    pl_row_normalise(logits, V, row);
}

static void top_of(const float *full, uint32_t *ids, float *top) {
    float copy[V];
    for (int i = 0; i < V; i++) copy[i] = full[i];
    for (uint32_t k = 0; k < K; k++) {
        ids[k] = 0;
        for (uint32_t i = 1; i < V; i++)
            if (copy[i] > copy[ids[k]]) ids[k] = i;
        top[k] = full[ids[k]];
        copy[ids[k]] = -INFINITY;
    }
}

/* What is known of the most likely tokens only may show less divergence than there is, never more. */
static void coarse_divergence_is_a_lower_bound(void **state) {
    (void)state;
    for (int round = 0; round < 100; round++) {
        float p[V], q[V], pt[K], qt[K];
        uint32_t pi[K], qi[K];
        bool bound;
        random_row(p, 2);
        for (int i = 0; i < V; i++) q[i] = p[i] + (float)(0.3 * normal());
        pl_row_normalise(q, V, q);
        top_of(p, pi, pt);
        top_of(q, qi, qt);
        struct pl_row fp = {.full = p}, fq = {.full = q}, tp = {.top = pt, .top_ids = pi, .top_count = K},
                      tq = {.top = qt, .top_ids = qi, .top_count = K};
        double exact = pl_row_kl(&fp, &fq, V, &bound), by_hand = 0;
        assert_false(bound);
        for (int i = 0; i < V; i++) by_hand += exp(p[i]) * ((double)p[i] - q[i]);
        assert_true(exact > 0 && fabs(exact - by_hand) < 1e-12);
        const struct pl_row *pair[3][2] = {{&tp, &fq}, {&fp, &tq}, {&tp, &tq}};
        for (int k = 0; k < 3; k++) {
            double coarse = pl_row_kl(pair[k][0], pair[k][1], V, &bound);
            assert_true(bound && coarse >= 0 && coarse <= exact + 1e-6);
        }
        assert_true(pl_row_kl(&tp, &tp, V, &bound) < 1e-9 && pl_row_kl(&fp, &fp, V, &bound) == 0);
        assert_int_equal(pl_row_best(&fp, V), pl_row_best(&tp, V));
    }
}

static void pairs_do_not_see_what_drifts(void **state) {
    (void)state;
    double a[9], b[9];
    struct pl_interval paired, apart;
    for (int i = 0; i < 9; i++) {
        a[i] = 100.0 * (1 + i); /* a machine that gets faster all the time */
        b[i] = a[i] * (0.9 + 0.001 * (i % 3));
    }
    assert_int_equal(pl_stats_paired_ratio(a, b, 9, &paired), PL_OK);
    assert_int_equal(pl_stats_ratio(a, 9, b, 9, &apart), PL_OK);
    assert_true(fabs(paired.value - 0.901) < 1e-9 && paired.low >= 0.9 - 1e-9 && paired.high <= 0.902 + 1e-9);
    assert_true(apart.high > 1 && apart.low < 0.8); /* which finds nothing */
    assert_int_equal(pl_stats_paired_ratio(a, b, 0, &paired), PL_OK);
    assert_true(paired.value == 0);
    pl_mem_fail_at(1);
    assert_int_equal(pl_stats_paired_ratio(a, b, 9, &paired), PL_NO_MEMORY);
    pl_mem_fail_at(0);
}

static enum pl_status write_rows(const char *path, const uint32_t *ids, const float *row) {
    struct pl_reference_about about = {.vocab = V, .window = 4, .stride = 2, .id_count = 3, .form = PL_REFERENCE_F16};
    struct pl_reference *r;
    struct pl_row in = {.full = row, .logprob = -1};
    json_t *origin = json_pack("{s:s}", "build", "test");
    enum pl_status st = origin == NULL ? PL_NO_MEMORY : pl_reference_create(path, &about, ids, origin, &r, NULL);
    json_decref(origin);
    PL_TRY(st);
    for (int i = 0; st == PL_OK && i < 2; i++) st = pl_reference_append(r, &in, NULL);
    enum pl_status closed = pl_reference_close(r, NULL);
    PL_TRY(st);
    PL_TRY(closed);
    return PL_OK;
}

static void memory_may_run_out_anywhere(void **state) {
    (void)state;
    char path[] = "/tmp/plumb-reference-XXXXXX";
    int fd = mkstemp(path);
    uint32_t ids[3] = {1, 2, 3};
    float row[V];
    assert_true(fd >= 0);
    close(fd);
    random_row(row, 1);
    int failures = 0;
    for (uint64_t n = 1; n < 100; n++) {
        pl_mem_fail_at(n);
        enum pl_status st = write_rows(path, ids, row);
        pl_mem_fail_at(0);
        if (st == PL_OK) break;
        assert_int_equal(st, PL_NO_MEMORY);
        failures++;
    }
    assert_in_range(failures, 3, 50);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(intervals_hold_the_mean),         cmocka_unit_test(quantiles_of_known_samples),
        cmocka_unit_test(a_ratio_tells_slower_from_noise), cmocka_unit_test(coarse_divergence_is_a_lower_bound),
        cmocka_unit_test(pairs_do_not_see_what_drifts),    cmocka_unit_test(memory_may_run_out_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
