/* mem - the only door to the heap, so that tests can make the n-th allocation fail.
 *
 * pl_alloc* return NULL on failure (never abort); sizes are products checked for overflow; memory from pl_calloc is
 * zero. pl_alloc_aligned gives memory for vector code (64-byte aligned or more) and is released with pl_free too.
 * pl_mem_fail_at(n): the n-th call from now (1 = the next) in this process fails once; 0 switches injection off. */
#ifndef PL_BASE_MEM_H
#define PL_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

void *pl_calloc(size_t count, size_t size) PL_MUST_CHECK;
void *pl_alloc(size_t count, size_t size) PL_MUST_CHECK;
void *pl_realloc(void *p, size_t count, size_t size) PL_MUST_CHECK; /* on failure p stays valid */
void *pl_alloc_aligned(size_t bytes, size_t align) PL_MUST_CHECK;
char *pl_strdup(const char *s) PL_MUST_CHECK;
char *pl_strndup(const char *s, size_t len) PL_MUST_CHECK; /* copies exactly len bytes and terminates */
void pl_free(void *p);

void pl_mem_fail_at(uint64_t nth);
uint64_t pl_mem_calls(void); /* allocations asked for since process start */

/* Grows an array to hold at least need elements (doubling). *ptr, *cap are updated on success only. */
enum pl_status pl_grow(void *ptr_to_ptr, size_t *cap, size_t need, size_t elem_size) PL_MUST_CHECK;

#endif
