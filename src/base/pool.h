/* pool - a fixed set of worker threads that run one function together (fork and join).
 *
 * pl_pool_run(pool, fn, arg) calls fn(arg, index, count) once on every thread, index 0 being the caller, and returns
 * when all are done. Inside fn, pl_pool_barrier(pool) waits for all. Workers spin for a bounded time, then sleep.
 * pl_pool_run_any(pool, fn, arg) does not insist: fn runs on the caller and on every worker that comes while the caller
 * is still inside fn; then the gate closes. For work that is taken piece by piece from a counter: a worker that the
 * system has not scheduled is not waited for. No barrier inside.
 * One run at a time; runs are not reentrant. With count 1 no thread exists and run is a plain call.
 * Results must not depend on count: split work by output element, never by reduction. */
#ifndef PL_BASE_POOL_H
#define PL_BASE_POOL_H

#include <stddef.h>

#include "base/status.h"

struct pl_pool;

typedef void (*pl_pool_fn)(void *arg, int index, int count);

/* threads 0 = the CPUs this process may use (affinity and cgroup quota). */
enum pl_status pl_pool_create(int threads, struct pl_pool **out, struct pl_err *err) PL_MUST_CHECK;
void pl_pool_destroy(struct pl_pool *pool);
int pl_pool_threads(const struct pl_pool *pool);
void pl_pool_run(struct pl_pool *pool, pl_pool_fn fn, void *arg);
void pl_pool_run_any(struct pl_pool *pool, pl_pool_fn fn, void *arg);
void pl_pool_barrier(struct pl_pool *pool);
int pl_cpu_count(void); /* usable CPUs: affinity mask limited by the cgroup quota, at least 1 */

/* The half-open share [*begin,*end) of n items for one thread, in multiples of grain. */
static inline void pl_pool_share(size_t n, size_t grain, int index, int count, size_t *begin, size_t *end) {
    size_t units = (n + grain - 1) / grain;
    size_t b = units * (size_t)index / (size_t)count * grain, e = units * ((size_t)index + 1) / (size_t)count * grain;
    *begin = b < n ? b : n;
    *end = e < n ? e : n;
}

#endif
