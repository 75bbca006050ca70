/* Decisions: one outcome each, one row per reason, and sums that can be proved. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "meter/outcome.h"

static struct pl_outcome row(enum pl_outcome_kind kind, const char *taken, const char *reason) {
    return (struct pl_outcome){.subject = 3, .kind = kind, .taken = taken, .planned = "fast", .reason = reason};
}

static void reasons_do_not_hide_each_other(void **state) {
    (void)state;
    struct pl_outcomes o;
    pl_outcomes_init(&o);
    struct pl_outcome chosen = row(PL_OUTCOME_CHOSEN, "fast", ""), width = row(PL_OUTCOME_FALLBACK, "slow", "width"),
                      type = row(PL_OUTCOME_FALLBACK, "slow", "type"), none = row(PL_OUTCOME_DECLINED, "", "strict");
    pl_outcomes_ask(&o, 3, 9);
    pl_outcomes_end(&o, &chosen, 4);
    pl_outcomes_end(&o, &width, 2);
    pl_outcomes_end(&o, &type, 1);
    pl_outcomes_end(&o, &width, 1);
    assert_int_equal(pl_outcomes_open(&o, 3), 1);
    assert_false(pl_outcomes_add_up(&o));
    pl_outcomes_end(&o, &none, 1);
    assert_true(pl_outcomes_add_up(&o));
    assert_int_equal(o.count, 4);
    assert_int_equal(o.rows[1].count, 3);
    assert_int_equal(o.rows[2].count, 1);
    o.rows[1].count--; /* a row that lost one is seen */
    assert_false(pl_outcomes_add_up(&o));
    pl_outcomes_reset(&o);
    assert_true(pl_outcomes_add_up(&o));
    assert_int_equal(o.count, 4);
    pl_outcomes_end(&o, &chosen, 1); /* an end without a question is seen too */
    assert_false(pl_outcomes_add_up(&o));
    pl_outcomes_deinit(&o);
}

static void a_lost_row_still_adds_up(void **state) {
    (void)state;
    struct pl_outcomes o;
    pl_outcomes_init(&o);
    struct pl_outcome chosen = row(PL_OUTCOME_CHOSEN, "fast", "");
    pl_outcomes_ask(&o, 3, 5);
    pl_mem_fail_at(1);
    pl_outcomes_end(&o, &chosen, 5);
    pl_mem_fail_at(0);
    assert_int_equal(o.count, 0);
    assert_int_equal(o.lost, 5);
    assert_true(pl_outcomes_add_up(&o));
    pl_outcomes_deinit(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(reasons_do_not_hide_each_other),
                                       cmocka_unit_test(a_lost_row_still_adds_up)};
    return cmocka_run_group_tests_name("outcomes", tests, NULL, NULL);
}
