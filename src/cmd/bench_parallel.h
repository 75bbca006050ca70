/* bench_parallel - many sequences at once through the service: prefill together, then decode together. */
#ifndef PL_CMD_BENCH_PARALLEL_H
#define PL_CMD_BENCH_PARALLEL_H

#include <jansson.h>

#include "cmd/common.h"

enum { PL_BENCH_PARALLEL_MAX = 16 };

struct pl_bench_parallel {
    uint32_t sequences;                                         /* in */
    double prefill_tok_s, decode_tok_s, gap_ms_p50, gap_ms_p99; /* out: decode counts from when all have begun */
    double full_tok_s; /* out: from when all have begun until the first ends; 0 when that is less than two tokens each */
    uint64_t steps, steps_ahead, steps_late; /* out: of the run; late: the device had nothing to do for a moment */
    struct pl_cmd_made before, within;       /* out: kernels made until the measurement began, and within it */
    json_t *kernels;                         /* out, new reference */
};

/* "1,8,64" to counts; an error names what is wrong. */
enum pl_status pl_bench_parallel_parse(const char *list, uint32_t counts[PL_BENCH_PARALLEL_MAX], size_t *n,
                                       struct pl_err *err) PL_MUST_CHECK;
/* Every sequence has its own random prompt of `prompt` ids and generates `generate` tokens greedily. A run within which
 * kernels were made is thrown away and done again; should the last one have made some, too, b->within says so. */
enum pl_status pl_bench_parallel_run(struct plumb_engine *e, uint32_t prompt, uint32_t generate, struct pl_bench_parallel *b,
                                     struct pl_err *err) PL_MUST_CHECK;

#endif
