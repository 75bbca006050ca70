/* linear_bench - times matrix products of one backend by the number of rows, through the calls that models make.
 *
 * A bed holds one backend and several matrices of one type and shape, more bytes than caches hold, which take turns as a
 * model's layers do. A time is the slope between many products and few in one step: what a step costs once drops out. */
#ifndef PL_TUNE_LINEAR_BENCH_H
#define PL_TUNE_LINEAR_BENCH_H

#include "ops/ops.h"

struct pl_linear_case {
    enum pl_dtype type;
    uint32_t out, in; /* of each matrix */
    uint32_t rows;
};
struct pl_linear_time {
    double us;      /* of one product */
    uint64_t bytes; /* of one matrix, read once */
    double flops;
    char kernel[160];
};

struct pl_linear_bed;
/* rows_max: of any case. least_bytes: as many matrices as hold so much together. */
enum pl_status pl_linear_bed_open(const struct pl_ops_options *opt, uint32_t rows_max, uint64_t least_bytes,
                                  struct pl_linear_bed **out, struct pl_err *err) PL_MUST_CHECK;
void pl_linear_bed_close(struct pl_linear_bed *b);
const char *pl_linear_bed_describe(const struct pl_linear_bed *b);
/* PL_UNSUPPORTED, with the reason: the backend has no port for this type, or an implementation was forced that cannot. */
enum pl_status pl_linear_bed_time(struct pl_linear_bed *b, const struct pl_linear_case *c, bool quick,
                                  struct pl_linear_time *out, struct pl_err *err) PL_MUST_CHECK;

#endif
