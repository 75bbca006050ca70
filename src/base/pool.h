/* pool - a fixed set of worker threads that run one function together (fork and join).
 *
 * pl_pool_run(pool, fn, arg) calls fn(arg, index, count) once on every thread, index 0 being the caller, and returns
 * when all are done. Inside fn, pl_pool_barrier(pool) waits for all. Workers spin for a bounded time, then sleep; more
 * threads than CPUs or than the quota grants hardly spin, since that would take the time of those that work.
 * pl_pool_run_any(pool, fn, arg) does not insist: fn runs on the caller and on every worker that comes while the caller
 * is still inside fn; then the gate closes. For work that is taken piece by piece from a counter: a worker that the
 * system has not scheduled is not waited for. No barrier inside.
 * One run at a time; runs are not reentrant. With count 1 no thread exists and run is a plain call.
 * Results must not depend on count: split work by output element, never by reduction. */
#ifndef PL_BASE_POOL_H
#define PL_BASE_POOL_H

#include <stddef.h>

#include "base/status.h"
#include "base/topology.h"

struct pl_pool;

typedef void (*pl_pool_fn)(void *arg, int index, int count);

struct pl_pool_options {
    int threads;                        /* 0 = one for each core this process may use, as far as its cgroup's quota goes */
    bool pin;                           /* each thread stays on one CPU; the caller of a run too, from its first run on */
    const struct pl_topology *topology; /* NULL: this machine's. It outlives the pool. */
};
enum pl_status pl_pool_create_with(const struct pl_pool_options *opt, struct pl_pool **out,
                                   struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_pool_create(int threads, struct pl_pool **out, struct pl_err *err) PL_MUST_CHECK; /* not pinned */
void pl_pool_destroy(struct pl_pool *pool);
int pl_pool_threads(const struct pl_pool *pool);
/* Memory nodes under the threads, and the one of a thread. On more than one node every thread stays on its own, so that
 * memory first touched by the thread that will read it is near. */
int pl_pool_nodes(const struct pl_pool *pool);
int pl_pool_node(const struct pl_pool *pool, int index);
void pl_pool_run(struct pl_pool *pool, pl_pool_fn fn, void *arg);
void pl_pool_run_any(struct pl_pool *pool, pl_pool_fn fn, void *arg);
void pl_pool_barrier(struct pl_pool *pool);
/* The calling thread may use every CPU again, if a run pinned it: before it starts threads that would inherit its place. */
void pl_pool_release_caller(void);
int pl_cpu_count(void); /* threads that a pool of 0 has */

/* The half-open share [*begin,*end) of n items for one thread, in multiples of grain. */
static inline void pl_pool_share(size_t n, size_t grain, int index, int count, size_t *begin, size_t *end) {
    size_t units = (n + grain - 1) / grain;
    size_t b = units * (size_t)index / (size_t)count * grain, e = units * ((size_t)index + 1) / (size_t)count * grain;
    *begin = b < n ? b : n;
    *end = e < n ? e : n;
}

#endif
