/* keep - weights that products of many rows unpack to bf16 each time (NVIDIA), unpacked once and kept beside the others. */
#ifndef PL_OPS_KEEP_H
#define PL_OPS_KEEP_H

#include "ops/ops.h"

#define PL_KEEP_AUTO UINT64_MAX
/* After the model is loaded, before its first step. most: bytes it may take, PL_KEEP_AUTO: what leaves a quarter of the
 * device's memory free. *kept: what it took; 0 on devices without such products, or where there is no room. Texts stay the
 * same bit for bit. */
enum pl_status pl_ops_keep_unpacked(struct pl_ops *o, uint64_t most, uint64_t *kept, struct pl_err *err) PL_MUST_CHECK;

#endif
