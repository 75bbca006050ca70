/* bandwidth - what memory gives on a device: the ceiling that receipts are held against. */
#ifndef PL_OPS_BANDWIDTH_H
#define PL_OPS_BANDWIDTH_H

#include "ops/launch.h"

struct pl_bandwidth {
    double copy_gbs, read_gbs; /* bytes read plus bytes written; bytes read */
    uint64_t bytes;            /* of one pass */
    char kernel[48];           /* the fastest reading kernel and its grid: "read/u8 x 1056 groups" */
};
/* Best of a few passes of the driver's copy, and of our reading kernel in a few shapes, over a buffer far larger than the
 * caches. */
enum pl_status pl_bandwidth_measure(struct pl_kernels *ks, struct pl_bandwidth *out, struct pl_err *err) PL_MUST_CHECK;

/* The kernel alone, for tests: sink [groups] receives each group's exclusive or. bytes is a multiple of pl_read_tile. */
enum pl_status pl_kernel_read(struct pl_kernels *ks, uint32_t unroll, struct pl_kernel *out,
                              struct pl_err *err) PL_MUST_CHECK;
uint32_t pl_read_tile(const struct pl_kernels *ks, uint32_t unroll);
enum pl_status pl_launch_read(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x, pl_buffer_in *sink,
                              uint64_t bytes, uint32_t unroll, uint32_t groups) PL_MUST_CHECK;

#endif
