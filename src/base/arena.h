/* arena - memory that dies together. Blocks are chained, never moved, so pointers stay valid until deinit.
 * Lifetimes: model, request, step. Not thread safe. pl_arena_reset keeps the largest block for reuse. */
#ifndef PL_BASE_ARENA_H
#define PL_BASE_ARENA_H

#include <stddef.h>

#include "base/status.h"

struct pl_arena_block;
struct pl_arena {
    struct pl_arena_block *head;
    size_t used_bytes;  /* handed out since the last reset */
    size_t limit_bytes; /* 0 = none; past it allocations return NULL */
};

void pl_arena_init(struct pl_arena *a, size_t limit_bytes);
void pl_arena_deinit(struct pl_arena *a);
void pl_arena_reset(struct pl_arena *a);
void *pl_arena_alloc(struct pl_arena *a, size_t count, size_t size) PL_MUST_CHECK;  /* 16-byte aligned, uninitialised */
void *pl_arena_calloc(struct pl_arena *a, size_t count, size_t size) PL_MUST_CHECK; /* zeroed */
char *pl_arena_strndup(struct pl_arena *a, const char *s, size_t len) PL_MUST_CHECK;

#endif
