/* check - arithmetic that says when it does not fit. All return false on overflow and leave *out alone. */
#ifndef PL_BASE_CHECK_H
#define PL_BASE_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool pl_add_size(size_t a, size_t b, size_t *out) {
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}
static inline bool pl_mul_size(size_t a, size_t b, size_t *out) {
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}
static inline bool pl_add_u64(uint64_t a, uint64_t b, uint64_t *out) {
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}
static inline bool pl_mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}
/* Rounds up to a power-of-two multiple. */
static inline bool pl_align_up(size_t v, size_t align, size_t *out) {
    size_t r;
    if (align == 0 || (align & (align - 1)) != 0 || __builtin_add_overflow(v, align - 1, &r)) return false;
    *out = r & ~(align - 1);
    return true;
}

#endif
