/* host_bandwidth - what reading memory runs at on the CPU: the ceiling of everything that reads weights once. */
#ifndef PL_TUNE_HOST_BANDWIDTH_H
#define PL_TUNE_HOST_BANDWIDTH_H

#include "base/status.h"

/* Best of a few passes over `bytes` (at least a MiB), so that caches help as they help what is compared with it. threads 0:
 * all. Bytes a second. */
enum pl_status pl_host_read_bandwidth(int threads, size_t bytes, double *out, struct pl_err *err) PL_MUST_CHECK;

#endif
