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

/* Opens the backend by itself. quick: a few weight types and one cache type. PL_OK also when cases failed: they are in the
 * list. */
enum pl_status pl_optest_run(const struct pl_ops_options *opt, bool quick, struct pl_optest *out,
                             struct pl_err *err) PL_MUST_CHECK;
void pl_optest_deinit(struct pl_optest *t);
json_t *pl_optest_json(const struct pl_optest *t) PL_MUST_CHECK;

#endif
