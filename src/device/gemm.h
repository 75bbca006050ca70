/* gemm - dense products of the vendor's library (NVIDIA: cuBLASLt), opened with dlopen when first asked for.
 *
 * D [n, m] f32 or bf16 = X [n, k] bf16 * W [m, k]^T bf16 (+ D) (+ bias [m] f32), f32 accumulation. Enqueued on a stream,
 * also while it is being captured. A plan is found once per shape and kept. */
#ifndef PL_DEVICE_GEMM_H
#define PL_DEVICE_GEMM_H

#include "device/device.h"

struct pl_gemm;
/* PL_NOT_FOUND or PL_UNSUPPORTED names what is missing. d outlives the result. */
enum pl_status pl_gemm_open(struct pl_device *d, struct pl_gemm **out, struct pl_err *err) PL_MUST_CHECK;
void pl_gemm_close(struct pl_gemm *g); /* NULL is allowed */

struct pl_gemm_call {
    const void *w, *x, *bias; /* device addresses; bias NULL: none */
    void *y;
    uint32_t m, n, k, ldy; /* ldy: numbers from one row of y to the next */
    uint32_t add;          /* y is added to */
    uint32_t half;         /* y is bf16; without bias */
};
enum pl_status pl_gemm_run(struct pl_gemm *g, struct pl_device_stream s, const struct pl_gemm_call *c,
                           struct pl_err *err) PL_MUST_CHECK;

#endif
