/* pack - code compiled ahead of time, for machines with a driver and no compiler (inside src/jit).
 *
 * One file: head (magic, count, compiler, target), then for each kernel the lengths of key and image, their XXH3, key,
 * image. The key is a kernel's full key with the pack's target (a virtual one: "compute_80") and PL_JIT_SHIPPED_BY for
 * the compiler; it is compared in full. A damaged pack is no pack, with a warning. */
#ifndef PL_JIT_PACK_H
#define PL_JIT_PACK_H

#include "jit/jit.h"

#define PL_JIT_SHIPPED_BY "shipped"
struct pl_jit_pack {
    char *bytes; /* owned; NULL: not open */
    size_t len, count;
    char compiler[64], target[32];
};
/* $PLUMB_KERNEL_PACK, else beside the program: ../lib/plumb-kernels.pack, plumb-kernels.pack. False when there is none that
 * this device can run. */
bool pl_jit_pack_open(struct pl_jit_pack *p, const struct pl_device_info *info);
void pl_jit_pack_close(struct pl_jit_pack *p);
bool pl_jit_pack_find(const struct pl_jit_pack *p, const struct pl_buf *key, struct pl_buf *image);

#endif
