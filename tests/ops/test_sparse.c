/* Sparse values: with V = identity attention's output is its weights, so what was passed over shows as zeros. Every weight
 * at or above the bound is there, unchanged; what is missing lay below it; the counters say how much was missing: on every
 * instruction set and device, in every form of decode attention. A bound that were ten times the one asked for would be
 * seen.
 * test-kernels: shared
 * test-timeout: 600 */
#include "tests/ops/kv_bed.h"
#include "tests/skip.h"

enum { D = 64, FIRST_DECODED = 35 };

/* bed.got over V = identity, with values below `least` passed over; counts of the single-token steps. */
static void run_steps(const struct pl_ops_options *opt, float least, struct pl_ops_attention_totals *t, bool *by_head) {
    struct pl_ops_options with = *opt;
    struct handles h = {0};
    uint32_t pages[3] = {4, 0, 2};
    with.sparse_values = least;
    bed_make(&h, &with, D, PL_F32);
    bed_step(&h, pages, 0, FIRST_DECODED, D);
    pl_ops_witness_reset(h.o);
    for (uint32_t past = FIRST_DECODED; past < T; past++) bed_step(&h, pages, past, 1, D);
    assert_int_equal(pl_ops_attention_settle(h.o), PL_OK);
    pl_ops_attention_totals(h.o, t);
    struct pl_ops_attention forms[8];
    size_t n = pl_ops_attention_rows(h.o, forms, PL_COUNT_OF(forms)), ran = 0;
    for (size_t i = 0; i < n; i++) {
        if (forms[i].layer_steps == 0) continue;                                          /* of the prompt */
        *by_head = strcmp(forms[i].form, "v2") != 0 && strcmp(forms[i].form, "cpu") != 0; /* those read once for several */
        ran++;
    }
    assert_int_equal(ran, 1);
    bed_drop(&h);
}

/* Weights of bed.got that are missing; fails where one at or above `bound` is, or where one that is there is another. */
struct missing {
    size_t all, late, late_rows; /* of all rows; of the single-token steps, and rows of values that nobody weighed there */
    double largest;
    bool wrong;
};
static struct missing look(double bound, bool by_head) {
    struct missing m = {0};
    for (size_t row = 0; row < T; row++) {
        for (size_t t = 0; t <= row; t++) {
            size_t gone[G] = {0};
            for (size_t head = 0; head < H; head++) {
                size_t at = (row * H + head) * D + t;
                double want = (double)bed.whole[at], got = (double)bed.got[at];
                if (got != 0) {
                    m.wrong |= fabs(got - want) > 2e-5;
                    continue;
                }
                m.wrong |= want >= bound * 1.0001;
                m.all++;
                m.largest = fmax(m.largest, want);
                m.late += row >= FIRST_DECODED;
                gone[head / (H / G)]++;
            }
            for (size_t g = 0; g < G && row >= FIRST_DECODED; g++) m.late_rows += by_head ? gone[g] : gone[g] / (H / G);
        }
    }
    return m;
}

static void run(const struct pl_ops_options *opt, const char *what) {
    static const float bounds[] = {0.02f, 0.002f};
    struct pl_ops_attention_totals t;
    bool by_head;
    bed_fill(D);
    memset(bed.v, 0, sizeof bed.v);
    for (size_t i = 0; i < (size_t)T * G; i++) bed.v[i * D + i / G] = 1;
    bed_reference(D, bed.k, bed.v, bed.whole);
    run_steps(opt, 0, &t, &by_head);
    assert_true(look(1e-30, by_head).all == 0 && t.value_rows == 0 && t.value_rows_skipped == 0);
    for (size_t i = 0; i < PL_COUNT_OF(bounds); i++) {
        run_steps(opt, bounds[i], &t, &by_head);
        struct missing m = look((double)bounds[i], by_head);
        uint64_t due = 0;
        for (uint64_t row = FIRST_DECODED; row < T; row++) due += (row + 1) * (by_head ? H : G);
        print_message("# %s, below %g: %zu weights are missing, the largest %.2g; %llu of %llu rows of values not read\n",
                      what, (double)bounds[i], m.all, m.largest, (unsigned long long)t.value_rows_skipped,
                      (unsigned long long)t.value_rows);
        assert_false(m.wrong);
        assert_true(m.all > 500 && m.largest > 0.1 * (double)bounds[i]);
        assert_int_equal(t.value_rows, due);
        assert_int_equal(t.value_rows_skipped, m.late_rows);
        assert_true(m.late_rows > 0 && m.late >= m.late_rows);
        assert_true(look((double)bounds[i] / 10, by_head).wrong);
    }
}

static void on_the_cpu(void **state) {
    (void)state;
    bed_on_the_cpu(run);
}

static void on_devices(void **state) {
    (void)state;
    if (bed_on_devices(run) == 0) SKIP("no such device here");
}

int main(void) {
    test_own_cache();
    struct CMUnitTest tests[] = {cmocka_unit_test(on_the_cpu), cmocka_unit_test(on_devices)};
    return TEST_RUN("sparse", tests);
}
