/* bench_op - one operation on one device: `plumb bench --op paged-decode`, `--op linear`, `--op sample`. */
#ifndef PL_CMD_BENCH_OP_H
#define PL_CMD_BENCH_OP_H

#include "base/status.h"
#include "cmd/args.h"
#include "device/device.h"

struct pl_bench_op {
    const char *op, *backend, *compare, *svg, *kv_dtype, *force, *disable, *isa;
    const char *types, *rows, *shape; /* of products */
    int threads;
    uint32_t vocab, device, batch, len, shared, page, heads, kv_heads, dim, values, pages_per_chunk;
    bool pin, sweep, quick, json, portable;
};
#define PL_BENCH_OP_ARG_ROWS 20
void pl_bench_op_args(struct pl_bench_op *o, struct pl_arg rows[PL_BENCH_OP_ARG_ROWS]);
/* backend NULL: what is there, OpenCL last. Prints the table or JSON; returns the exit code. */
int pl_bench_op_run(struct pl_bench_op *o);
/* "auto" (NULL) or a device kind by name. */
enum pl_status pl_cmd_pick_device(const char *name, enum pl_device_kind *out, struct pl_err *err) PL_MUST_CHECK;

#endif
