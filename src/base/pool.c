#include "base/pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/mem.h"

enum { SPINS_BEFORE_SLEEP = 4000, MAX_THREADS = 512 };

struct pl_pool {
    alignas(64) _Atomic uint32_t epoch; /* bumped for every run; workers wait for a change */
    alignas(64) _Atomic uint32_t sleepers;
    alignas(64) _Atomic uint32_t arrived; /* barrier: threads that have come */
    alignas(64) _Atomic uint32_t phase;   /* barrier: bumped when all have come */
    alignas(64) pl_pool_fn fn;
    void *arg;
    int count;
    bool stop;
    struct worker {
        struct pl_pool *pool;
        pthread_t thread;
        int index;
    } * workers;
};

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}
static void futex_wake_all(_Atomic uint32_t *word) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Spin a while, then sleep until *word differs from seen. The sleeper count is raised before the last look, and the
 * waker changes the word before it reads the count, so no wake-up is lost. */
static void wait_change(struct pl_pool *p, _Atomic uint32_t *word, uint32_t seen) {
    for (int i = 0; i < SPINS_BEFORE_SLEEP; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != seen) return;
        relax();
    }
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(word) == seen) futex_wait(word, seen);
    atomic_fetch_sub(&p->sleepers, 1);
}

static void change(struct pl_pool *p, _Atomic uint32_t *word) {
    atomic_fetch_add(word, 1);
    if (atomic_load(&p->sleepers) != 0) futex_wake_all(word);
}

void pl_pool_barrier(struct pl_pool *p) {
    if (p->count == 1) return;
    uint32_t seen = atomic_load_explicit(&p->phase, memory_order_acquire);
    if (atomic_fetch_add(&p->arrived, 1) + 1 == (uint32_t)p->count) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        change(p, &p->phase);
    } else {
        wait_change(p, &p->phase, seen);
    }
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct pl_pool *p = w->pool;
    uint32_t seen = 0;
    for (;;) {
        wait_change(p, &p->epoch, seen);
        seen = atomic_load(&p->epoch);
        if (p->stop) return NULL;
        p->fn(p->arg, w->index, p->count);
        pl_pool_barrier(p);
    }
}

void pl_pool_run(struct pl_pool *p, pl_pool_fn fn, void *arg) {
    if (p->count == 1) {
        fn(arg, 0, 1);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    change(p, &p->epoch);
    fn(arg, 0, p->count);
    pl_pool_barrier(p);
}

int pl_pool_threads(const struct pl_pool *p) { return p->count; }

static int cgroup_quota(void) {
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (f == NULL) return INT_MAX;
    char quota[32];
    long period;
    int n = fscanf(f, "%31s %ld", quota, &period);
    fclose(f);
    if (n != 2 || period <= 0 || strcmp(quota, "max") == 0) return INT_MAX;
    long q = 0;
    if (sscanf(quota, "%ld", &q) != 1 || q <= 0) return INT_MAX;
    return (int)PL_MAX(1, (q + period - 1) / period);
}

int pl_cpu_count(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    int quota = cgroup_quota();
    return PL_MAX(1, PL_MIN(n, quota));
}

void pl_pool_destroy(struct pl_pool *p) {
    if (p == NULL) return;
    if (p->count > 1) {
        p->stop = true;
        change(p, &p->epoch);
        for (int i = 1; i < p->count; i++) pthread_join(p->workers[i].thread, NULL);
    }
    pl_free(p->workers);
    pl_free(p);
}

enum pl_status pl_pool_create(int threads, struct pl_pool **out, struct pl_err *err) {
    if (threads < 0 || threads > MAX_THREADS)
        PL_FAIL(err, PL_INVALID, "threads is %d, expected 0 (all CPUs) to %d", threads, MAX_THREADS);
    if (threads == 0) threads = PL_MIN(pl_cpu_count(), (int)MAX_THREADS);
    struct pl_pool *p = pl_alloc_aligned(sizeof *p, alignof(struct pl_pool));
    if (p == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a thread pool");
    memset(p, 0, sizeof *p);
    p->workers = pl_calloc((size_t)threads, sizeof *p->workers);
    if (p->workers == NULL) {
        pl_free(p);
        PL_FAIL(err, PL_NO_MEMORY, "no memory for %d threads", threads);
    }
    /* Workers see the final count: none runs before the first epoch change. */
    p->count = threads;
    for (int i = 1; i < threads; i++) {
        p->workers[i] = (struct worker){.pool = p, .index = i};
        int rc = pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]);
        if (rc != 0) {
            p->count = i; /* joined by destroy */
            pl_pool_destroy(p);
            PL_FAIL(err, PL_NO_MEMORY, "thread %d of %d could not be started: %s", i + 1, threads, strerror(rc));
        }
    }
    *out = p;
    return PL_OK;
}
