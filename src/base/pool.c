#include "base/pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/mem.h"

enum { SPINS_BEFORE_SLEEP = 4000, SPINS_CROWDED = 16, MAX_THREADS = 512 };

struct pl_pool {
    alignas(64) _Atomic uint32_t epoch;  /* changed by every run, odd when all must come; workers wait for a change */
    alignas(64) _Atomic uint32_t open;   /* run_any: the epoch that may be joined, 0 when the gate is closed */
    alignas(64) _Atomic uint32_t inside; /* run_any: workers past the gate or looking at it */
    _Atomic uint32_t leader_sleeps;
    alignas(64) _Atomic uint32_t sleepers;
    alignas(64) _Atomic uint32_t arrived; /* barrier: threads that have come */
    alignas(64) _Atomic uint32_t phase;   /* barrier: bumped when all have come */
    alignas(64) pl_pool_fn fn;
    void *arg;
    int count, spins, nodes;
    uint64_t serial; /* of this pool in the process, from 1 */
    bool pin;
    const struct pl_topology *topology;
    _Atomic bool stop;
    struct worker {
        struct pl_pool *pool;
        pthread_t thread;
        int index;
        bool free_first; /* its creator, whose CPUs it inherits, is pinned */
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
    for (int i = 0; i < p->spins; i++) {
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

/* A worker counts itself in before it looks at the gate, and the leader closes the gate before it looks at the count:
 * so either the leader waits for the worker or the worker sees the gate closed. What is written on either side is an
 * exchange or an addition, and what is read is seq_cst: an acquire may pass the write before it, and emulators of aarch64
 * let a plain load-acquire pass a store-release as well. */
static uint32_t join(struct pl_pool *p, int index) {
    atomic_fetch_add(&p->inside, 1);
    uint32_t open = atomic_load(&p->open);
    if (open != 0) p->fn(p->arg, index, p->count);
    if (atomic_fetch_sub(&p->inside, 1) == 1 && atomic_load(&p->leader_sleeps) != 0) futex_wake_all(&p->inside);
    return open;
}

/* --- where threads run --- */
static const struct pl_topology_cpu *place(const struct pl_pool *p, int index) {
    return &p->topology->cpus[index % p->topology->count];
}
int pl_pool_nodes(const struct pl_pool *p) { return p->nodes; }
int pl_pool_node(const struct pl_pool *p, int index) { return p->nodes > 1 ? place(p, index)->node : 0; }

/* One CPU, or the CPUs of the thread's node. A CPU that is not there (a made-up topology, a narrowed cpuset) is refused
 * by the system, and the thread stays where it was. */
static bool settles(const struct pl_pool *p) { return (p->pin || p->nodes > 1) && p->topology->count > 0; }
static void settle(const struct pl_pool *p, int index) {
    if (!settles(p)) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < p->topology->count; i++) {
        const struct pl_topology_cpu *c = &p->topology->cpus[i];
        if (p->pin ? c == place(p, index) : c->node == place(p, index)->node) CPU_SET(c->cpu, &set);
    }
    (void)sched_setaffinity(0, sizeof set, &set);
}

/* The caller of a run is thread 0, whoever it is; it is settled when this thread first runs this pool. */
static _Thread_local uint64_t settled_in; /* serial of a pool */
static void settle_caller(const struct pl_pool *p) {
    if (settled_in == p->serial || !settles(p)) return;
    settled_in = p->serial;
    settle(p, 0);
}
void pl_pool_release_caller(void) {
    if (settled_in == 0) return;
    settled_in = 0;
    pl_topology_free_thread();
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct pl_pool *p = w->pool;
    if (w->free_first) pl_topology_free_thread();
    settle(p, w->index);
    uint32_t seen = 0;
    for (;;) {
        wait_change(p, &p->epoch, seen);
        seen = atomic_load(&p->epoch);
        if (p->stop) return NULL;
        if (seen % 2 == 0) {
            uint32_t joined = join(p, w->index);
            if (joined != 0) seen = joined; /* a later run than the one that woke it, perhaps */
            continue;
        }
        p->fn(p->arg, w->index, p->count);
        pl_pool_barrier(p);
    }
}

/* The next epoch: odd when all workers must come, never 0. */
static uint32_t next_epoch(const struct pl_pool *p, bool all) {
    uint32_t e = (atomic_load_explicit(&p->epoch, memory_order_relaxed) | 1u) + (all ? 2u : 1u);
    return e == 0 ? 2 : e;
}

static void announce(struct pl_pool *p, uint32_t epoch) {
    (void)atomic_exchange(&p->epoch, epoch);
    if (atomic_load(&p->sleepers) != 0) futex_wake_all(&p->epoch);
}

void pl_pool_run(struct pl_pool *p, pl_pool_fn fn, void *arg) {
    settle_caller(p);
    if (p->count == 1) {
        fn(arg, 0, 1);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    announce(p, next_epoch(p, true));
    fn(arg, 0, p->count);
    pl_pool_barrier(p);
}

static void wait_empty(struct pl_pool *p) {
    for (int i = 0; i < p->spins; i++) {
        if (atomic_load(&p->inside) == 0) return;
        relax();
    }
    (void)atomic_exchange(&p->leader_sleeps, 1);
    for (uint32_t n; (n = atomic_load(&p->inside)) != 0;) futex_wait(&p->inside, n);
    atomic_store(&p->leader_sleeps, 0);
}

void pl_pool_run_any(struct pl_pool *p, pl_pool_fn fn, void *arg) {
    settle_caller(p);
    if (p->count == 1) {
        fn(arg, 0, 1);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    uint32_t epoch = next_epoch(p, false);
    atomic_store(&p->open, epoch);
    announce(p, epoch);
    fn(arg, 0, p->count);
    (void)atomic_exchange(&p->open, 0);
    wait_empty(p);
}

int pl_pool_threads(const struct pl_pool *p) { return p->count; }

int pl_cpu_count(void) { return pl_topology_threads(pl_topology_here()); }

void pl_pool_destroy(struct pl_pool *p) {
    if (p == NULL) return;
    if (p->count > 1) {
        p->stop = true;
        announce(p, next_epoch(p, true));
        for (int i = 1; i < p->count; i++) pthread_join(p->workers[i].thread, NULL);
    }
    if (settled_in == p->serial) pl_pool_release_caller();
    pl_free(p->workers);
    pl_free(p);
}

static void lay_out(struct pl_pool *p, const struct pl_pool_options *opt, int threads) {
    static _Atomic uint64_t serial;
    p->serial = ++serial;
    p->topology = opt->topology != NULL ? opt->topology : pl_topology_here();
    p->pin = opt->pin;
    p->nodes = PL_MIN(p->topology->nodes, threads);
    bool crowded = threads > p->topology->count || (p->topology->quota > 0 && threads > p->topology->quota);
    p->spins = crowded ? SPINS_CROWDED : SPINS_BEFORE_SLEEP;
}

enum pl_status pl_pool_create_with(const struct pl_pool_options *opt, struct pl_pool **out, struct pl_err *err) {
    int threads = opt->threads;
    if (threads < 0 || threads > MAX_THREADS)
        PL_FAIL(err, PL_INVALID, "threads is %d, expected 0 (all CPUs) to %d", threads, MAX_THREADS);
    if (threads == 0)
        threads = PL_MIN(pl_topology_threads(opt->topology != NULL ? opt->topology : pl_topology_here()), (int)MAX_THREADS);
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
    lay_out(p, opt, threads);
    for (int i = 1; i < threads; i++) {
        p->workers[i] = (struct worker){.pool = p, .index = i, .free_first = settled_in != 0};
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

enum pl_status pl_pool_create(int threads, struct pl_pool **out, struct pl_err *err) {
    const struct pl_pool_options opt = {.threads = threads};
    return pl_pool_create_with(&opt, out, err);
}
