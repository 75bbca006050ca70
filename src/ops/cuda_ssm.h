/* cuda_ssm - one token of a Mamba-2 layer in one launch (kernels/cuda/ssm_step.k.c): convolution, recurrence and gate. */
#ifndef PL_OPS_CUDA_SSM_H
#define PL_OPS_CUDA_SSM_H

#include "ops/ssm.h"

struct pl_step_kind {
    struct pl_ssm_kind ssm;
    struct pl_conv_kind conv;
};
/* NULL, or why not. stride, first: of slots and of the recurrence's part in them, in f32. */
const char *pl_step_declines(const struct pl_kernels *ks, const struct pl_step_kind *kind, uint32_t head_dim,
                             uint64_t stride, uint64_t first);
enum pl_status pl_kernel_step(struct pl_kernels *ks, const struct pl_step_kind *kind, struct pl_kernel *out,
                              struct pl_err *err) PL_MUST_CHECK;
/* s->x, b, c are the convolution's input and *_first its channels; arrived [sequences, groups]: zeros before and after. */
enum pl_status pl_launch_step(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_ssm *s,
                              const struct pl_launch_conv *c, pl_buffer_in *arrived) PL_MUST_CHECK;

#endif
