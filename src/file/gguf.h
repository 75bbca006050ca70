/* gguf - what the GGUF reader's files share. Inside this folder only. */
#ifndef PL_FILE_GGUF_H
#define PL_FILE_GGUF_H

#include "file/cursor.h"

/* The metadata of one part while it is read. */
struct pl_gguf_values {
    struct pl_gguf_value *at;
    size_t count, cap;
    struct pl_map by_key;
};

/* Reads count key-value pairs; string tables go to the arena. Duplicate keys are refused. */
enum pl_status pl_gguf_values_read(struct pl_cursor *c, uint64_t count, struct pl_arena *arena,
                                   struct pl_gguf_values *out) PL_MUST_CHECK;
void pl_gguf_values_deinit(struct pl_gguf_values *v);
/* Part 0's values become the file's (and leave v empty); a later part's must agree with them where both have the key. */
enum pl_status pl_gguf_values_merge(struct pl_file *f, size_t part, struct pl_gguf_values *v,
                                    struct pl_err *err) PL_MUST_CHECK;

/* Refuses a file that says it is one part of several. */
enum pl_status pl_gguf_split_check_single(const struct pl_file *f, struct pl_err *err) PL_MUST_CHECK;

#endif
