/* A case that ends as skipped says why; tools/run_tests.py and tools/check_gpu.sh read the line. */
#ifndef TESTS_SKIP_H
#define TESTS_SKIP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define SKIP(why)                          \
    do {                                   \
        print_message("# SKIP %s\n", why); \
        skip();                            \
    } while (0)

#endif
