/* ship - the kernels that an archive carries compiled (as PTX), for machines with NVIDIA's driver and no NVRTC. */
#ifndef PL_OPS_SHIP_H
#define PL_OPS_SHIP_H

#include <stdint.h>

#include "base/status.h"

struct pl_ship {
    uint32_t heads, kv_heads, head_dim;              /* heads 0: those of the known families */
    const char *type;                                /* of weights, by name; NULL: those of common files */
    void (*progress)(uint64_t done, uint64_t total); /* kernels compiled so far; NULL: nobody listens */
};
/* Writes what models need on CUDA devices by default: pages of 32 tokens, caches of f16 and bf16, any row count. */
enum pl_status pl_ops_ship(const char *path, const struct pl_ship *what, size_t *count, struct pl_err *err) PL_MUST_CHECK;

#endif
