/* cmocka - the few words of cmocka that the tests of src/cpu use, for a target whose cmocka is not installed. A failed
 * assertion ends the program: one failure is enough to see under an emulator. */
#ifndef PL_TESTS_CPU_CROSS_CMOCKA_H
#define PL_TESTS_CPU_CROSS_CMOCKA_H

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static jmp_buf cross_skipped;

static inline void cross_check(int good, const char *what, const char *file, int line) {
    if (good) return;
    printf("not ok - %s:%d: %s\n", file, line, what);
    exit(1);
}
#define cross_at(good, what)         cross_check(good, what, __FILE__, __LINE__)
#define assert_true(c)               cross_at((c) ? 1 : 0, #c)
#define assert_false(c)              cross_at((c) ? 0 : 1, "not: " #c)
#define assert_null(p)               cross_at((p) == NULL, #p " is NULL")
#define assert_non_null(p)           cross_at((p) != NULL, #p " is not NULL")
#define assert_int_equal(a, b)       cross_at((long long)(a) == (long long)(b), #a " equals " #b)
#define assert_ptr_equal(a, b)       cross_at((const void *)(a) == (const void *)(b), #a " equals " #b)
#define assert_string_equal(a, b)    cross_at(strcmp(a, b) == 0, #a " equals " #b)
#define assert_memory_equal(a, b, n) cross_at(memcmp(a, b, n) == 0, #a " equals " #b)
#define fail_msg(...)                (printf("not ok - " __VA_ARGS__), printf("\n"), exit(1))
#define print_message(...)           printf(__VA_ARGS__)
#define skip()                       longjmp(cross_skipped, 1)

struct CMUnitTest {
    const char *name;
    void (*test)(void **state);
};
#define cmocka_unit_test(f) \
    { #f, f }
#define cmocka_run_group_tests(tests, setup, teardown) cross_run(tests, sizeof(tests) / sizeof *(tests))
static inline int cross_run(const struct CMUnitTest *tests, size_t count) {
    for (size_t i = 0; i < count; i++) {
        void *state = NULL;
        if (setjmp(cross_skipped) == 0)
            tests[i].test(&state);
        else
            printf("# skipped: %s\n", tests[i].name);
        printf("ok %zu - %s\n", i + 1, tests[i].name);
        fflush(stdout);
    }
    return 0;
}

#endif
