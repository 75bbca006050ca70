/* fault - places where a test build does one thing wrong on purpose, so that the verification tools can be shown to see it.
 *
 * Only objects compiled with PL_FAULTS look (make build/release/plumb-faults): there the environment variable PLUMB_FAULT
 * names the one fault that is on. In every other build pl_fault is the constant false and leaves no code behind. The list,
 * and what each must lead to, is in tests/verify/test_mutants.py and docs/verify.md. */
#ifndef PL_BASE_FAULT_H
#define PL_BASE_FAULT_H

#include <stdbool.h>

#ifdef PL_FAULTS
#include <stdlib.h>
#include <string.h>

static inline bool pl_fault(const char *name) {
    const char *on = getenv("PLUMB_FAULT");
    return on != NULL && strcmp(on, name) == 0;
}
#else
#define pl_fault(name) false
#endif

#endif
