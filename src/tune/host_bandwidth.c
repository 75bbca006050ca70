#include "tune/host_bandwidth.h"

#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"

enum { PASSES = 24, HUGE_PAGE = 2 << 20 /* what packed weights lie in too */ };

struct read_job {
    const uint64_t *data;
    size_t count;
    _Atomic uint64_t sink;
};

static void read_share(void *arg, int index, int count) {
    struct read_job *j = arg;
    size_t begin, end;
    uint64_t sum[8] = {0};
    pl_pool_share(j->count, 4096, index, count, &begin, &end);
    for (size_t i = begin; i + 8 <= end; i += 8) {
        __builtin_prefetch(j->data + i + 512); /* as the kernels do */
        for (size_t k = 0; k < 8; k++) sum[k] ^= j->data[i + k];
    }
    for (size_t k = 1; k < 8; k++) sum[0] ^= sum[k];
    j->sink ^= sum[0];
}

enum pl_status pl_host_read_bandwidth(int threads, size_t bytes, double *out, struct pl_err *err) {
    struct pl_pool *pool = NULL;
    bytes = (PL_MAX(bytes, (size_t)1 << 20) + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    PL_TRY(pl_pool_create(threads > 0 ? threads : pl_cpu_count(), &pool, err));
    struct read_job job = {.data = pl_alloc_aligned(bytes, HUGE_PAGE), .count = bytes / 8};
    if (job.data == NULL) {
        pl_pool_destroy(pool);
        PL_FAIL(err, PL_NO_MEMORY, "out of memory for the bandwidth measurement (%zu bytes)", bytes);
    }
    (void)madvise((void *)(uintptr_t)job.data, bytes, MADV_HUGEPAGE);
    memset((void *)(uintptr_t)job.data, 1, bytes);
    *out = 0;
    for (int i = 0; i < PASSES; i++) {
        uint64_t start = pl_clock_ns();
        pl_pool_run(pool, read_share, &job);
        *out = PL_MAX(*out, (double)bytes * 1e9 / (double)(pl_clock_ns() - start));
    }
    pl_free((void *)(uintptr_t)job.data);
    pl_pool_destroy(pool);
    return PL_OK;
}
