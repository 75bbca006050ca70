/* bench_linear - `plumb bench --op linear`: matrix products by type and rows, each implementation beside the planned one. */
#ifndef PL_CMD_BENCH_LINEAR_H
#define PL_CMD_BENCH_LINEAR_H

#include "cmd/bench_op.h"

/* Prints the table or JSON; returns the exit code. */
int pl_bench_linear_run(const struct pl_bench_op *o);

#endif
