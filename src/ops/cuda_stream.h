/* cuda_stream - products of one row at the speed of the memory on sm_90 and up (kernels/cuda/stream.k.c): rearranged weights
 * (cuda_mma.h) and bf16 and f16 ones, optionally behind a norm and before a gate. */
#ifndef PL_OPS_CUDA_STREAM_H
#define PL_OPS_CUDA_STREAM_H

#include "ops/cuda_fast.h"

/* Rearranged weights are faster through cuda_mma (docs/perf/h200.md) but in models whose products have no wider inputs than
 * PL_STREAM_NARROW: otherwise only what is asked for. */
enum { PL_STREAM_STRIPS = false, PL_STREAM_NARROW = 4096 };
enum { PL_STREAM_MATRICES_MAX = 3, PL_STREAM_GATES = 3 };
struct pl_stream_kind {
    bool norm;      /* the input is normed first */
    bool glu, gelu; /* two matrices become act(first) * second: silu, or gelu by its tanh form */
};
enum { PL_STREAM_KINDS = 6, PL_STREAM_CHUNKS = 8 };
/* Of weights so wide: which of PL_STREAM_CHUNKS kernels of a kind. */
uint32_t pl_stream_chunk_index(const struct pl_device_weight *w);
uint32_t pl_stream_index(struct pl_stream_kind kind);
const char *pl_stream_declines(const struct pl_kernels *ks, const struct pl_device_weight *w, size_t rows);
void pl_kernel_stream_name(const struct pl_device_weight *w, struct pl_stream_kind kind, char out[48]);
enum pl_status pl_kernel_stream(struct pl_kernels *ks, const struct pl_device_weight *w, struct pl_stream_kind kind,
                                struct pl_kernel *out, struct pl_err *err) PL_MUST_CHECK;
struct pl_launch_stream {
    size_t count; /* matrices of one format and input width */
    const struct pl_device_weight *w[PL_STREAM_MATRICES_MAX];
    pl_buffer_in *bias[PL_STREAM_MATRICES_MAX], *y[PL_STREAM_MATRICES_MAX]; /* glu: y[0] alone is written */
    pl_buffer_in *x, *norm, *h; /* h: what the norm makes of x is left there; not x */
    float eps, offset;
    bool add;
};
enum pl_status pl_launch_stream(struct pl_kernels *ks, struct pl_kernel *k, struct pl_stream_kind kind,
                                const struct pl_launch_stream *l) PL_MUST_CHECK;

#endif
