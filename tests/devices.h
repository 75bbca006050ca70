/* Which devices a test runs on, how large its shapes are, and in which order its cases run. The environment says:
 *   PLUMB_TEST_DEVICE   cuda, rocm, opencl or opencl:1: only that one (default: the first device of every kind)
 *   PLUMB_TEST_SMALL    set: the smallest shapes that still reach every kernel, for compute-sanitizer; so in sanitized
 * builds PLUMB_TEST_RACECHECK  set: kernels are built so that racecheck can follow them PLUMB_TEST_SHUFFLE  seed: the cases
 * in a random order PLUMB_TEST_ONLY     pattern: only cases of that name */
#ifndef TESTS_DEVICES_H
#define TESTS_DEVICES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/device.h"
#include "tests/skip.h"

/* Sanitized programs always take the small shapes: it is the host code they look at, and all shapes run optimised. */
static inline bool test_small(void) {
#ifdef __SANITIZE_ADDRESS__
    return true;
#else
    return getenv("PLUMB_TEST_SMALL") != NULL;
#endif
}

/* Compiled kernels go under build/ and not into the user's cache. */
static inline void test_own_cache(void) {
    char cache[4096];
    assert_non_null(getcwd(cache, sizeof cache - sizeof "/build/test-cache"));
    setenv("XDG_CACHE_HOME", strcat(cache, "/build/test-cache"), 1);
}

/* The device of that kind to test; -1 where there is none or another was asked for. */
static inline int test_device_of(enum pl_device_kind kind) {
    const char *only = getenv("PLUMB_TEST_DEVICE"), *name = pl_device_kind_name(kind);
    int n = 0, index = 0;
    struct pl_err why = {0};
    if (only != NULL) {
        size_t len = strcspn(only, ":");
        if (strlen(name) != len || strncmp(only, name, len) != 0) return -1;
        if (only[len] == ':') index = (int)strtol(only + len + 1, NULL, 10);
    }
    return pl_device_count(kind, &n, &why) == PL_OK && index < n ? index : -1;
}

/* No case may lean on what an earlier one left. */
static inline int test_run(const char *name, struct CMUnitTest *tests, size_t count) {
    const char *seed = getenv("PLUMB_TEST_SHUFFLE"), *only = getenv("PLUMB_TEST_ONLY");
    unsigned state = seed != NULL ? (unsigned)strtoul(seed, NULL, 10) : 0;
    for (size_t i = count - 1; seed != NULL && i > 0; i--) {
        state = state * 1103515245u + 12345u;
        size_t k = state / 65536u % (i + 1);
        struct CMUnitTest t = tests[i];
        tests[i] = tests[k];
        tests[k] = t;
    }
    if (only != NULL) cmocka_set_test_filter(only);
    return _cmocka_run_group_tests(name, tests, count, NULL, NULL);
}
#define TEST_RUN(name, tests) test_run(name, tests, sizeof(tests) / sizeof((tests)[0]))

#endif
