/* The rows of a step that takes about a given time: learned from invented machines whose times are known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/status.h"
#include "engine/pace.h"

static uint64_t cost(double fixed_us, double row_us, uint32_t rows) { return (uint64_t)((fixed_us + row_us * rows) * 1000); }

/* From a first guess the answers themselves are tried, as the service does; after a few steps they take what was asked. */
static double settle(double fixed_us, double row_us, double target_us, int steps) {
    struct pl_pace p = {0};
    uint32_t rows = 400;
    for (int i = 0; i < steps; i++) {
        pl_pace_note(&p, rows, cost(fixed_us, row_us, rows));
        uint32_t wanted = pl_pace_rows(&p, target_us * 1000);
        if (wanted > 0) rows = wanted; /* the first steps are passed over */
    }
    return fixed_us + row_us * rows;
}

static void steps_take_what_was_asked(void **state) {
    (void)state;
    static const double fixed[] = {0, 500, 7000, 20000}, row[] = {0.5, 28, 700};
    for (size_t i = 0; i < PL_COUNT_OF(fixed); i++)
        for (size_t k = 0; k < PL_COUNT_OF(row); k++) {
            double took = settle(fixed[i], row[k], 40000, 12);
            assert_true(took > 36000 - row[k] && took < 42000);
        }
}

/* The first steps load code; one that was held up is no rule. */
static void outliers_do_little(void **state) {
    (void)state;
    struct pl_pace p = {0};
    for (int i = 0; i < 2; i++) pl_pace_note(&p, 300, 3000000000u);
    for (uint32_t i = 0; i < 12; i++) pl_pace_note(&p, 500 + 100 * (i % 4), cost(2000, 30, 500 + 100 * (i % 4)));
    uint32_t before = pl_pace_rows(&p, 20e6);
    assert_true(before > 590 && before < 610);
    pl_pace_note(&p, 600, 5000000000u);
    for (uint32_t i = 0; i < 6; i++) pl_pace_note(&p, 500 + 100 * (i % 4), cost(2000, 30, 500 + 100 * (i % 4)));
    assert_true(pl_pace_rows(&p, 20e6) > before * 8 / 10);
}

static void nothing_is_known_before_the_first_step(void **state) {
    (void)state;
    struct pl_pace p = {0};
    assert_int_equal(pl_pace_rows(&p, 1e6), 0);
    for (int i = 0; i < 4; i++) pl_pace_note(&p, 0, 1000);
    assert_int_equal(pl_pace_rows(&p, 1e6), 0);
}

static void far_away_is_not_guessed(void **state) {
    (void)state;
    struct pl_pace p = {0};
    for (int i = 0; i < 3; i++) pl_pace_note(&p, 16, cost(100, 1, 16));
    assert_int_equal(pl_pace_rows(&p, 1e12), 64);
    assert_int_equal(pl_pace_rows(&p, 1), 1); /* less than a row can take: one row, never none */
}

/* A machine that becomes half as fast is noticed within some steps, and times that shake do no harm. */
static void it_follows(void **state) {
    (void)state;
    struct pl_pace p = {0};
    uint32_t rows = 400, noise = 12345;
    double took = 0;
    for (int i = 0; i < 60; i++) {
        noise = noise * 1664525u + 1013904223u;
        double shake = 0.9 + 0.2 * (noise >> 16) / 65536.0, slow = i < 30 ? 1 : 2;
        took = slow * (5000 + 25.0 * rows);
        pl_pace_note(&p, rows, (uint64_t)(took * shake * 1000));
        uint32_t wanted = pl_pace_rows(&p, 40e6);
        if (wanted > 0) rows = wanted;
        if (i > 10 && i < 30) assert_true(took > 32000 && took < 50000);
        if (i > 45) assert_true(took > 32000 && took < 50000);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_take_what_was_asked),
        cmocka_unit_test(outliers_do_little),
        cmocka_unit_test(nothing_is_known_before_the_first_step),
        cmocka_unit_test(far_away_is_not_guessed),
        cmocka_unit_test(it_follows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
