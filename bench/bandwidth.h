/* bandwidth - what this machine's threads can read from memory: the ceiling of a product of one row. */
#ifndef PL_BENCH_BANDWIDTH_H
#define PL_BENCH_BANDWIDTH_H

#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include "base/mem.h"
#include "base/pool.h"

struct read_job {
    const uint64_t *data;
    size_t words;
    uint64_t sums[512];
};

/* The clock of every bench: CLOCK_PROCESS_CPUTIME_ID counts CPU seconds, which other processes do not stretch. */
static clockid_t bench_clock = CLOCK_MONOTONIC;

static inline double bench_now(void) {
    struct timespec t;
    clock_gettime(bench_clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Each thread adds up its part in eight sums, which the compiler turns into vectors. */
static inline void read_worker(void *arg, int index, int count) {
    struct read_job *j = arg;
    size_t begin, end;
    pl_pool_share(j->words, 512, index, count, &begin, &end);
    uint64_t s[32] = {0}, all = 0;
    for (size_t i = begin; i + 32 <= end; i += 32) {
        for (size_t k = 0; k < 32; k += 8) __builtin_prefetch(j->data + i + k + 512); /* as the kernels do */
        for (size_t k = 0; k < 32; k++) s[k] += j->data[i + k];
    }
    for (size_t k = 0; k < 32; k++) all += s[k];
    j->sums[index] = all;
}

/* Best of `repeats` passes over `bytes` of memory, in bytes per second; 0 without memory. */
static inline double read_bandwidth(struct pl_pool *pool, size_t bytes, int repeats) {
    uint64_t *data = pl_alloc_aligned(bytes, 4096);
    if (data == NULL) return 0;
    for (size_t i = 0; i < bytes / 8; i++) data[i] = i * 0x9E3779B97F4A7C15u;
    struct read_job j = {.data = data, .words = bytes / 8};
    double best = 1e9;
    for (int r = 0; r < repeats; r++) {
        double t = bench_now();
        pl_pool_run(pool, read_worker, &j);
        t = bench_now() - t;
        if (t < best) best = t;
    }
    static volatile uint64_t keep;
    keep += j.sums[0];
    pl_free(data);
    return (double)bytes / best;
}

#endif
