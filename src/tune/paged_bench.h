/* paged_bench - times the forms of decode attention on one device, over pages of random numbers.
 *
 * A bed holds the device, the kernels of one shape and the pages of one batch: `batch` sequences of `len` tokens whose first
 * `shared` tokens (whole pages) stand in the same pages. On devices with graphs there are as many copies of the pages as
 * push each other out of the cache, used in turn like the layers of a model, and a graph over them is timed by events.
 * Elsewhere launches are enqueued one after the other, caches as warm as the sizes allow. Median of several runs. */
#ifndef PL_TUNE_PAGED_BENCH_H
#define PL_TUNE_PAGED_BENCH_H

#include "ops/paged.h"

/* dense: over keys and values that are contiguous already. auto: v2, or the cascade where the planner takes it. */
enum pl_bench_form {
    PL_BENCH_V1,
    PL_BENCH_V2,
    PL_BENCH_CASCADE,
    PL_BENCH_GATHER,
    PL_BENCH_DENSE,
    PL_BENCH_AUTO,
    PL_BENCH_FORMS
};
const char *pl_bench_form_name(enum pl_bench_form f);

struct pl_paged_case {
    enum pl_dtype kv; /* f16 or bf16 */
    uint32_t batch, len, shared, page_tokens, heads, kv_heads, head_dim;
    uint32_t value_dim; /* not 0: a value is so many first numbers of its key */
    bool portable;      /* not what this kind of device has of its own */
    uint32_t stages;    /* of those; 0: as usual */
};
struct pl_paged_time {
    double us;      /* of one layer step */
    uint64_t bytes; /* keys and values read, each visible token of each row (shared pages once for cascade) */
    uint32_t launches, chunks, merged_rows, pages_per_chunk;
    uint32_t copies;      /* of the pages, used in turn; 1: the cache may hold them */
    char kernels[160];    /* in order, separated by " + " */
    const char *declined; /* not NULL: it does not apply, and why */
};

struct pl_paged_bed;
enum pl_status pl_paged_bed_open(enum pl_device_kind kind, int index, struct pl_paged_bed **out,
                                 struct pl_err *err) PL_MUST_CHECK;
void pl_paged_bed_close(struct pl_paged_bed *b);
const struct pl_device_info *pl_paged_bed_device(const struct pl_paged_bed *b);
/* Makes pages, tables and queries; what stood there before goes. */
enum pl_status pl_paged_bed_set(struct pl_paged_bed *b, const struct pl_paged_case *c, struct pl_err *err) PL_MUST_CHECK;
/* opt: split, costs, floors, pages_per_chunk; the rest is filled in. quick: fewer repeats. */
enum pl_status pl_paged_bed_time(struct pl_paged_bed *b, enum pl_bench_form form, const struct pl_plan_options *opt,
                                 bool quick, struct pl_paged_time *out, struct pl_err *err) PL_MUST_CHECK;

#endif
