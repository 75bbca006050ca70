#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "meter/meter.h"

static void rows_are_unique_by_text(void **state) {
    (void)state;
    struct pl_meter m;
    pl_meter_init(&m);
    char copy[] = "gemv";
    size_t a = pl_meter_row(&m, "linear", "gemv", ""), b = pl_meter_row(&m, "linear", copy, "");
    assert_int_equal(a, b);
    size_t c = pl_meter_row(&m, "linear", "gemv", "no port");
    assert_int_not_equal(a, c);
    pl_meter_add(&m, a, 2, 100);
    pl_meter_add(&m, c, 1, 0);
    assert_int_equal(pl_meter_find(&m, "linear", "gemv", "")->count, 2);
    assert_int_equal(pl_meter_find(&m, "linear", "gemv", "")->bytes, 100);
    assert_int_equal(pl_meter_find(&m, "linear", "gemv", "no port")->count, 1);
    assert_null(pl_meter_find(&m, "linear", "gemm", ""));
    pl_meter_reset(&m);
    assert_int_equal(pl_meter_find(&m, "linear", "gemv", "no port")->count, 0);
    pl_meter_deinit(&m);
}

static void a_failed_allocation_makes_no_row(void **state) {
    (void)state;
    struct pl_meter m;
    pl_meter_init(&m);
    pl_mem_fail_at(1);
    assert_true(pl_meter_row(&m, "a", "b", "") == PL_METER_NONE);
    pl_mem_fail_at(0);
    assert_int_equal(m.count, 0);
    assert_int_equal(pl_meter_row(&m, "a", "b", ""), 0);
    pl_meter_deinit(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_unique_by_text),
        cmocka_unit_test(a_failed_allocation_makes_no_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
