/* optest - every operation of one backend against the oracle (src/ref), through the same calls that models make.
 *
 * Small shapes, random values from a fixed seed, every weight type the backend takes, one and several rows, contexts of
 * several pages and sequences at once. The error is the root mean square of the difference over that of the result: rounding
 * gives its bound, a wrong formula gives one near 1. */
#ifndef PL_VERIFY_OPTEST_H
#define PL_VERIFY_OPTEST_H

#include <jansson.h>

#include "ops/ops.h"

struct pl_optest_case {
    char op[24], what[96], kernel[96];
    double error, bound;
    bool passed, skipped;
    char why[200]; /* skipped or failed without a number */
};
struct pl_optest {
    struct pl_optest_case *cases;
    size_t count, cap, failed, skipped;
    char backend[256];
};

struct pl_optest_options {
    struct pl_ops_options ops;
    bool quick;       /* a few weight types and one cache type */
    bool alone;       /* the backend is opened anew for every case, so that nothing can be left over from another */
    uint32_t shuffle; /* 0: in the usual order; else the seed of another */
};
/* Opens the backend by itself. PL_OK also when cases failed: they are in the list. */
enum pl_status pl_optest_run(const struct pl_optest_options *how, struct pl_optest *out, struct pl_err *err) PL_MUST_CHECK;
/* How many cases did not end the same (verdict, kernel, every bit of the error); the first one in words. */
size_t pl_optest_compare(const struct pl_optest *a, const struct pl_optest *b, char *first, size_t cap);
void pl_optest_deinit(struct pl_optest *t);
json_t *pl_optest_json(const struct pl_optest *t) PL_MUST_CHECK;

#endif
