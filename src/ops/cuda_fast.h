/* cuda_fast - kernels that only NVIDIA devices have, ranked before the portable ones where they apply: products of at
 * most eight rows (kernels/cuda/gemv.k.c) and split decode attention (kernels/cuda/attention_split.k.c). Each question
 * "does it apply" answers with NULL or the reason why not. */
#ifndef PL_OPS_CUDA_FAST_H
#define PL_OPS_CUDA_FAST_H

#include "ops/launch.h"

enum { PL_GEMV_ROWS_MAX = 8, PL_GEMV_MATRICES_MAX = 3, PL_SPLITS_MAX = 64 };

uint32_t pl_cuda_capability(const struct pl_kernels *ks); /* 90 of sm_90; 0: no NVIDIA device, or no compiler for it */
const char *pl_gemv_declines(const struct pl_kernels *ks, const struct pl_device_weight *w, size_t rows);
/* w: the format; exactly so many rows, at most PL_GEMV_ROWS_MAX. */
enum pl_status pl_kernel_gemv(struct pl_kernels *ks, const struct pl_device_weight *w, uint32_t rows, struct pl_kernel *out,
                              struct pl_err *err) PL_MUST_CHECK;
void pl_kernel_gemv_name(const struct pl_device_weight *w, uint32_t rows, char out[48]);
struct pl_launch_gemv {
    size_t count; /* matrices of one format and input width */
    const struct pl_device_weight *w[PL_GEMV_MATRICES_MAX];
    pl_buffer_in *bias[PL_GEMV_MATRICES_MAX], *y[PL_GEMV_MATRICES_MAX], *x;
    uint32_t row0, rows; /* rows [row0, row0 + rows) of x and y; rows as in the kernel */
    bool add;
};
enum pl_status pl_launch_gemv(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_gemv *g) PL_MUST_CHECK;

struct pl_split_attention {
    struct pl_kernel split, merge;
    uint32_t heads_together;
};
const char *pl_split_declines(const struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t heads, size_t kv_heads,
                              size_t rows);
/* exact: q and the weights of the softmax stay f32; else they meet the cache on tensor cores where the device has them. */
enum pl_status pl_kernel_split(struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t page_tokens, size_t group,
                               bool exact, struct pl_split_attention *out, struct pl_err *err) PL_MUST_CHECK;
/* How many parts for the longest visible length: a power of two, 1 when the rows fill the device anyway. */
uint32_t pl_split_count(const struct pl_kernels *ks, uint32_t rows, uint32_t groups, uint32_t tokens);
/* parts [rows, heads, splits, D] and lse [rows, heads, splits] are scratch; one part alone is the result, more are to be
 * merged. */
enum pl_status pl_launch_split(struct pl_kernels *ks, struct pl_split_attention *k, const struct pl_launch_attention *a,
                               uint32_t splits, pl_buffer_in *parts, pl_buffer_in *lse) PL_MUST_CHECK;
enum pl_status pl_launch_merge(struct pl_kernels *ks, struct pl_split_attention *k, const struct pl_launch_attention *a,
                               uint32_t splits, pl_buffer_in *parts, pl_buffer_in *lse) PL_MUST_CHECK;

/* Norms of many rows (pl_launch_norm without a second input), values in registers. */
enum { PL_NORM_ROWS = 128 }; /* from so many on they are taken */
bool pl_norm_rows(const struct pl_kernels *ks, size_t cols);
enum pl_status pl_kernel_norm_rows(struct pl_kernels *ks, size_t cols, struct pl_kernel *out,
                                   struct pl_err *err) PL_MUST_CHECK;

/* The same with the rotation and the append before it, and optionally the merge, in one launch: one token a sequence. */
const char *pl_whole_declines(const struct pl_kernels *ks, struct pl_rope_kind kind, size_t head_dim, size_t rope_dim,
                              bool exact);
enum pl_status pl_kernel_whole(struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t page_tokens, size_t group,
                               struct pl_rope_kind kind, bool cluster, struct pl_kernel *out,
                               struct pl_err *err) PL_MUST_CHECK;
enum { PL_WHOLE_TOKENS = 1024 }; /* up to so many cached tokens it is taken for one row (docs/perf/h200.md) */
struct pl_launch_whole {
    const struct pl_launch_attention *a;
    const struct pl_launch_rope *rope; /* of the same q, pages and step; q stays as it is */
    uint32_t splits;
    pl_buffer_in *parts, *lse;
    pl_buffer_in *arrived; /* zeros, one word per row and heads together: the parts are merged; NULL: they are left */
};
/* cluster: the parts, so many, are joined in shared memory; parts, lse and arrived are not used then. Where it can be, and
 * is worth it from so many tokens on. */
enum { PL_WHOLE_CLUSTER = 8, PL_CLUSTER_TOKENS = 128 };
bool pl_whole_clusters(const struct pl_kernels *ks, size_t head_dim, size_t group);
enum pl_status pl_launch_whole(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_whole *l) PL_MUST_CHECK;
uint32_t pl_heads_together(size_t group); /* of a KV head, by one group of threads */
/* The same where rotation, append and merge are in the launch: four of eight, done sooner (docs/perf/h200.md). */
uint32_t pl_whole_heads(size_t group);

#endif
