/* bench_draw - drawing tokens on a device: `plumb bench --op sample`. */
#ifndef PL_CMD_BENCH_DRAW_H
#define PL_CMD_BENCH_DRAW_H

#include "cmd/bench_op.h"

int pl_bench_draw_run(struct pl_bench_op *o); /* prints the table or JSON; returns the exit code */

#endif
