/* clock - monotonic time in nanoseconds. */
#ifndef PL_BASE_CLOCK_H
#define PL_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t pl_clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
static inline double pl_clock_s(void) { return (double)pl_clock_ns() * 1e-9; }

#endif
