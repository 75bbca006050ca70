#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

static _Atomic uint64_t alloc_calls;
static _Atomic uint64_t alloc_fail_at; /* absolute call number, 0 = never */

static bool refused(void) {
    uint64_t n = atomic_fetch_add_explicit(&alloc_calls, 1, memory_order_relaxed) + 1;
    return n == atomic_load_explicit(&alloc_fail_at, memory_order_relaxed);
}

void pl_mem_fail_at(uint64_t nth) { atomic_store(&alloc_fail_at, nth == 0 ? 0 : atomic_load(&alloc_calls) + nth); }
uint64_t pl_mem_calls(void) { return atomic_load(&alloc_calls); }

void *pl_calloc(size_t count, size_t size) {
    if (refused()) return NULL;
    return calloc(count == 0 ? 1 : count, size == 0 ? 1 : size);
}

void *pl_alloc(size_t count, size_t size) {
    size_t bytes;
    if (refused() || !pl_mul_size(count, size, &bytes)) return NULL;
    return malloc(bytes == 0 ? 1 : bytes);
}

void *pl_realloc(void *p, size_t count, size_t size) {
    size_t bytes;
    if (refused() || !pl_mul_size(count, size, &bytes)) return NULL;
    return realloc(p, bytes == 0 ? 1 : bytes);
}

void *pl_alloc_aligned(size_t bytes, size_t align) {
    size_t rounded;
    if (refused() || !pl_align_up(bytes == 0 ? 1 : bytes, align, &rounded)) return NULL;
    return aligned_alloc(align, rounded);
}

char *pl_strndup(const char *s, size_t len) {
    size_t bytes;
    if (!pl_add_size(len, 1, &bytes)) return NULL;
    char *copy = pl_alloc(bytes, 1);
    if (copy == NULL) return NULL;
    if (len > 0) memcpy(copy, s, len);
    copy[len] = '\0';
    return copy;
}

char *pl_strdup(const char *s) { return pl_strndup(s, strlen(s)); }

void pl_free(void *p) { free(p); }

enum pl_status pl_grow(void *ptr_to_ptr, size_t *cap, size_t need, size_t elem_size) {
    if (need <= *cap) return PL_OK;
    size_t want = *cap < 8 ? 8 : *cap;
    while (want < need) {
        if (!pl_mul_size(want, 2, &want)) return PL_NO_MEMORY;
    }
    void *old;
    memcpy(&old, ptr_to_ptr, sizeof old);
    void *grown = pl_realloc(old, want, elem_size);
    if (grown == NULL) return PL_NO_MEMORY;
    memcpy(ptr_to_ptr, &grown, sizeof grown);
    *cap = want;
    return PL_OK;
}
