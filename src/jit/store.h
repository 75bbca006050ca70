/* store - compiled kernels on disk: one file per key, the key inside it and compared in full.
 *
 * File: magic, 64-bit lengths of key and image, XXH3 of key and image together, key, image. Written to a temporary name
 * under a lock and renamed. The folder is 0700 and ours, or it is not used. */
#ifndef PL_JIT_STORE_H
#define PL_JIT_STORE_H

#include <time.h>

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
/* Opens without making a folder; dir "" when there is none. */
void pl_jit_store_look(struct pl_jit_store *s, const struct pl_jit_options *opt, struct pl_jit_stats *stats);
/* An entry's key; false when damaged. */
bool pl_jit_store_key(const struct pl_jit_store *s, const char *file, struct pl_buf *key);
struct pl_jit_file_info {
    char name[64];
    uint64_t bytes;
    struct timespec used;
};
/* Files of the folder whose name ends with suffix; caller frees *out with pl_free. */
size_t pl_jit_store_files(const struct pl_jit_store *s, const char *suffix, struct pl_jit_file_info **out);
bool pl_jit_store_remove(const struct pl_jit_store *s, const char *file);
void pl_jit_store_put(struct pl_jit_store *s, const struct pl_buf *key, const char *hash, const struct pl_buf *image);

#endif
