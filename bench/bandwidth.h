/* bandwidth - what this machine's threads can read from memory: the ceiling of a product of one row. */
#ifndef PL_BENCH_BANDWIDTH_H
#define PL_BENCH_BANDWIDTH_H

#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include "base/mem.h"
#include "base/pool.h"
#include "cpu/tile.h"

struct read_job {
    const uint64_t *data;
    size_t words, places;
    uint64_t sums[512];
};

/* The clock of every bench: CLOCK_PROCESS_CPUTIME_ID counts CPU seconds, which other processes do not stretch. */
static clockid_t bench_clock = CLOCK_MONOTONIC;

static inline double bench_now(void) {
    struct timespec t;
    clock_gettime(bench_clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The widest vectors of the machine: in a cache, bytes an instruction decide. */
#if defined(__x86_64__) && defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define READ_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define READ_CLONES
#endif

/* Each thread adds up its part in sums that the compiler turns into vectors, from several places of it at once: what memory
 * gives one thread depends on that, and packed weights are read from two or three. */
static inline __attribute__((always_inline)) uint64_t read_part(const uint64_t *data, size_t words, const size_t places) {
    uint64_t s[32] = {0}, all = 0;
    const size_t each = words / places;
    for (size_t i = 0; i + 32 <= each; i += 32)
#pragma GCC unroll 4
        for (size_t p = 0; p < places; p++) {
            const uint64_t *from = data + p * each + i;
            for (size_t k = 0; k < 32; k += 8) __builtin_prefetch(from + k + 512); /* as the kernels do */
            for (size_t k = 0; k < 32; k++) s[k] += from[k];
        }
    for (size_t k = 0; k < 32; k++) all += s[k];
    return all;
}
READ_CLONES static void read_worker(void *arg, int index, int count) {
    struct read_job *j = arg;
    size_t begin, end;
    pl_pool_share(j->words, 512, index, count, &begin, &end);
    if (j->places == 1)
        j->sums[index] = read_part(j->data + begin, end - begin, 1);
    else if (j->places == 2)
        j->sums[index] = read_part(j->data + begin, end - begin, 2);
    else
        j->sums[index] = read_part(j->data + begin, end - begin, 4);
}

/* Best of `repeats` times `passes` over `bytes` of memory, from one, two and four places, in bytes per second; 0 without
 * memory. */
static inline double read_bandwidth(struct pl_pool *pool, size_t bytes, int passes, int repeats) {
    uint64_t *data = cpu_huge_alloc(bytes); /* as packed weights are held */
    if (data == NULL) return 0;
    for (size_t i = 0; i < bytes / 8; i++) data[i] = i * 0x9E3779B97F4A7C15u;
    struct read_job j = {.data = data, .words = bytes / 8};
    double best = 1e9;
    for (int r = 0; r < 3 * repeats; r++) {
        j.places = (size_t)1 << r % 3;
        double t = bench_now();
        for (int i = 0; i < passes; i++) pl_pool_run(pool, read_worker, &j);
        t = (bench_now() - t) / passes;
        if (t < best) best = t;
    }
    static volatile uint64_t keep;
    keep += j.sums[0];
    pl_free(data);
    return (double)bytes / best;
}

#endif
