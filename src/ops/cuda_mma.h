/* cuda_mma - products of 1 to PL_MMA_ROWS rows with packed weights on NVIDIA's tensor cores (kernels/cuda/mma.k.c). The
 * weights are rearranged once, when they are loaded (retile.k.c); the inputs are made ready by the operation that makes them
 * (prepare.k.c). "Does it apply" answers NULL or the reason why not.
 *
 * With ks->fixed a row's result has the same bits whatever the other rows are, how many, and where it stands: kernels of all
 * sizes add in one order (mma.k.c, FIXED). Rearranged weights meet all rows by m16n8k16, bf16 weights by wgmma. */
#ifndef PL_OPS_CUDA_MMA_H
#define PL_OPS_CUDA_MMA_H

#include "ops/cuda_fast.h"

enum {
    PL_MMA_ROWS = 64,      /* of one launch */
    PL_MMA_ROWS_MAX = 128, /* made ready at once; more are cheaper unpacked once: cuda_dense */
    PL_MMA_WIDE_ROWS = 17, /* from so many on four warps multiply together where the device can */
    PL_MMA_MATRICES_MAX = 3,
    PL_MMA_SEGMENTS = 8,       /* of the inputs, where ks->fixed: mma.k.c with FIXED */
    PL_MMA_FIXED_ROWS = 65535, /* made ready at once then, so that no number of rows changes what makes them ready */
    PL_MMA_SIZES = 5           /* kernels for 1, 8, 16, 32, 64 rows */
};
/* Whether the format can be rearranged. */
const char *pl_strips_decline(const struct pl_kernels *ks, const struct pl_device_weight *w);
const char *pl_mma_declines(const struct pl_kernels *ks, const struct pl_device_weight *w);
uint64_t pl_strips_bytes(const struct pl_device_weight *w);
enum pl_status pl_kernel_retile(struct pl_kernels *ks, const struct pl_device_weight *w, struct pl_kernel *out,
                                struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_launch_retile(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_device_weight *w,
                                pl_buffer_in *to) PL_MUST_CHECK;

/* Inputs made ready, and scratch of the products. */
struct pl_mma_room {
    struct pl_device_buffer x, partial, arrived;
};
uint64_t pl_mma_input_bytes(size_t rows, size_t cols);
/* Rows of one launch, and rows made ready at once. */
uint32_t pl_mma_rows(const struct pl_kernels *ks);
size_t pl_mma_ready_rows(const struct pl_kernels *ks);
/* Makes room for products of so many rows with inputs so wide and, together, so many outputs. */
enum pl_status pl_mma_ready(struct pl_kernels *ks, struct pl_mma_room *room, size_t rows, size_t cols, size_t outputs,
                            struct pl_err *err) PL_MUST_CHECK;
void pl_mma_deinit(struct pl_kernels *ks, struct pl_mma_room *room);

enum pl_prepare {
    PL_PREPARE_COPY,
    PL_PREPARE_NORM,
    PL_PREPARE_ADD_NORM,
    PL_PREPARE_SILU,
    PL_PREPARE_GELU_TANH,
    PL_PREPARE_MERGE,
    PL_PREPARE_COUNT
};
/* The order in which inputs stand ready: for rearranged weights, for wide products with them, for weights as the file has
 * them. */
enum pl_inputs { PL_INPUTS_FEW, PL_INPUTS_WIDE, PL_INPUTS_PLAIN, PL_INPUTS_COUNT };
enum pl_inputs pl_mma_inputs(const struct pl_kernels *ks, bool plain, size_t ready);
enum pl_status pl_kernel_prepare(struct pl_kernels *ks, enum pl_prepare which, enum pl_inputs inputs, struct pl_kernel *out,
                                 struct pl_err *err) PL_MUST_CHECK;
struct pl_launch_prepare {
    pl_buffer_in *x, *second, *w, *y; /* second: add or up; w: of the norm; y: the f32 result, NULL for a copy */
    size_t rows, cols;
    float eps, offset;
    uint32_t splits, head_dim; /* of a merge: x are the parts of split attention, second their weights */
};
enum pl_status pl_launch_prepare(struct pl_kernels *ks, enum pl_prepare which, struct pl_kernel *k, struct pl_mma_room *room,
                                 const struct pl_launch_prepare *p) PL_MUST_CHECK;

/* Kernel geometry for so many pieces of eight rows. */
struct pl_mma_shape {
    uint32_t rows_8, wm, wk, each, depth, x_stages, hold;
    uint32_t per_unit; /* groups of threads that a multiprocessor holds */
    bool split;        /* a group of outputs may be shared by several groups of threads */
    bool wide;         /* four warps multiply together, inputs stand ready in another order: sm_90a */
    bool bulk;         /* weights, and inputs where x_stages > 0, come through shared memory: sm_90 and up */
};
/* Whether so many rows are made ready for, and multiplied by, wide products. */
bool pl_mma_wide(const struct pl_kernels *ks, size_t ready);
/* Whether bf16 weights are taken as they are, by wide products; their inputs are rounded to bf16. */
bool pl_mma_plain(const struct pl_kernels *ks, const struct pl_device_weight *w);
uint32_t pl_mma_size(size_t rows, enum pl_inputs inputs); /* index of the kernel */
struct pl_mma_shape pl_mma_shape_of(const struct pl_kernels *ks, bool plain, uint32_t size);
void pl_kernel_mma_name(const struct pl_kernels *ks, const struct pl_device_weight *w, uint32_t size, char out[48]);
enum pl_status pl_kernel_mma(struct pl_kernels *ks, const struct pl_device_weight *w, const struct pl_mma_shape *shape,
                             struct pl_kernel *out, struct pl_err *err) PL_MUST_CHECK;
struct pl_launch_mma {
    size_t count; /* matrices of one format and input width */
    const struct pl_device_weight *w[PL_MMA_MATRICES_MAX];
    pl_buffer_in *bias[PL_MMA_MATRICES_MAX], *y[PL_MMA_MATRICES_MAX];
    size_t ready; /* rows that were made ready */
    uint32_t from, rows,
        row0; /* rows [from, from + rows) of them to rows row0 and up of y; from % 8 == 0, rows <= PL_MMA_ROWS */
    bool add;
};
enum pl_status pl_launch_mma(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_mma_shape *shape,
                             struct pl_mma_room *room, const struct pl_launch_mma *m) PL_MUST_CHECK;

#endif
