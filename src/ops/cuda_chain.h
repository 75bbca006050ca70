/* cuda_chain - what one row meets between two attentions as one launch on sm_90 and up (kernels/cuda/chain.k.c): the
 * attention's output product, norm, gate and up, down, and the norm and products before the next attention. */
#ifndef PL_OPS_CUDA_CHAIN_H
#define PL_OPS_CUDA_CHAIN_H

#include "ops/cuda_stream.h"

/* Taken by itself, or on request alone (docs/perf/h200.md). */
enum { PL_CHAIN_DEFAULT = true };
/* Its groups wait for each other, so that two of them may not share the device: every CUDA backend of the process says when
 * it begins and ends, and none takes chains while there are several. */
void pl_chain_backend(int step);

struct pl_launch_chain {
    /* Of one format, or strips of either type. */
    const struct pl_device_weight *o, *gate, *up, *down, *next[PL_STREAM_MATRICES_MAX];
    size_t count;                                                           /* of next; 0: nothing follows */
    pl_buffer_in *bias[PL_STREAM_MATRICES_MAX], *y[PL_STREAM_MATRICES_MAX]; /* of next */
    pl_buffer_in *from, *x, *h, *g;                                         /* h: where both norms leave their result */
    pl_buffer_in *norm, *next_norm;
    float eps, offset, next_eps, next_offset;
    pl_buffer_in *meet; /* PL_CHAIN_MEET_BYTES, zeros when it was made, for chains of one stream only */
};
enum { PL_CHAIN_MEET_BYTES = 256 };
/* Whether three products of these shapes (and what is next, may be NULL) can be one launch; NULL or why not. */
const char *pl_chain_declines(const struct pl_kernels *ks, const struct pl_launch_chain *l);
struct pl_chain_kind {
    bool gelu;  /* by its tanh form, else silu */
    bool mixed; /* strips of several types: what pl_chain_mixed says */
};
enum { PL_CHAIN_KINDS = 4 };
bool pl_chain_mixed(const struct pl_launch_chain *l);
/* Of `most` bytes of shared memory what a kernel of that kind takes, and the units of its ring; depth 0: there is no room.
 * A kernel of several types has units of the larger one, whatever types it meets. */
struct pl_chain_room {
    uint32_t depth, bytes;
};
struct pl_chain_room pl_chain_room(uint32_t most, struct pl_chain_kind kind, const struct pl_launch_chain *l);
enum pl_status pl_kernel_chain(struct pl_kernels *ks, const struct pl_device_weight *w, struct pl_chain_kind kind,
                               struct pl_kernel *out, struct pl_err *err) PL_MUST_CHECK;
/* kind: what k was made as. */
enum pl_status pl_launch_chain(struct pl_kernels *ks, struct pl_kernel *k, struct pl_chain_kind kind,
                               const struct pl_launch_chain *l) PL_MUST_CHECK;

#endif
