/* store - compiled kernels on disk: one file per key, the key inside it and compared in full.
 *
 * File: magic, 64-bit lengths of key and image, XXH3 of key and image together, key, image. Written to a temporary name
 * under a lock and renamed. The folder is 0700 and ours, or it is not used. */
#ifndef PL_JIT_STORE_H
#define PL_JIT_STORE_H

#include "base/str.h"
#include "jit/jit.h"

struct pl_jit_store {
    char dir[1024]; /* "" when nothing is stored */
    uint64_t max_bytes;
    bool warned;
    struct pl_jit_stats *stats;
};
/* Never fails: without a usable folder the store stays off, after one warning. */
void pl_jit_store_open(struct pl_jit_store *s, const struct pl_jit_options *opt, struct pl_jit_stats *stats);
/* True and the image when a sound file holds exactly this key. */
bool pl_jit_store_find(struct pl_jit_store *s, const struct pl_buf *key, const char *hash, struct pl_buf *image);
void pl_jit_store_put(struct pl_jit_store *s, const struct pl_buf *key, const char *hash, const struct pl_buf *image);

#endif
