#include "ops/cuda_ssm.h"

#include <stdio.h>

#include "ops/cuda_fast.h"

/* As kernels/cuda/ssm_step.k.c has them. */
enum { GROUP = 288, ROWS = 32, LANES = 128, TAPS_MAX = 4 };

const char *pl_step_declines(const struct pl_kernels *ks, const struct pl_step_kind *kind, uint32_t head_dim,
                             uint64_t stride, uint64_t first) {
    if (pl_cuda_capability(ks) == 0) return "no NVIDIA device, or no compiler";
    if (kind->ssm.full) return "each value of the state has its own decay";
    if (kind->ssm.state % LANES != 0 || head_dim % ROWS != 0) return "shape of the state";
    if (kind->conv.kernel > TAPS_MAX) return "taps of the convolution";
    return stride % 4 != 0 || first % 4 != 0 ? "slots are no multiple of 16 bytes" : NULL;
}

enum pl_status pl_kernel_step(struct pl_kernels *ks, const struct pl_step_kind *kind, struct pl_kernel *out,
                              struct pl_err *err) {
    char name[40];
    struct pl_jit_spec s = {.file = "cuda/ssm_step.k.c", .entry = "pk_ssm_step"};
    pl_jit_set_u32(&s, "GROUP", GROUP);
    pl_jit_set_u32(&s, "STATE", kind->ssm.state);
    pl_jit_set_u32(&s, "K", kind->conv.kernel);
    if (kind->conv.bias) pl_jit_set(&s, "HAS_CONV_BIAS", "1");
    if (kind->conv.silu) pl_jit_set(&s, "ACT_SILU", "1");
    if (kind->ssm.bias) pl_jit_set(&s, "HAS_BIAS", "1");
    if (kind->ssm.skip) pl_jit_set(&s, "HAS_SKIP", "1");
    if (kind->ssm.gate) pl_jit_set(&s, "HAS_GATE", "1");
    snprintf(name, sizeof name, "ssm_step/n%u/k%u", kind->ssm.state, kind->conv.kernel);
    return pl_kernel_make(ks, &s, GROUP, name, out, err);
}

enum pl_status pl_launch_step(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_ssm *s,
                              const struct pl_launch_conv *c, pl_buffer_in *arrived) {
    struct pl_args_step a = {.heads = s->heads,
                             .head_dim = s->head_dim,
                             .groups = s->groups,
                             .channels = (u32)c->channels,
                             .x_first = s->x_first,
                             .b_first = s->b_first,
                             .c_first = s->c_first,
                             .dt_min = s->dt_min,
                             .dt_max = s->dt_max,
                             .slot_stride = s->slot_stride,
                             .state_first = s->state_first};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(c->x),        PL_ARG_BUFFER(c->w),    PL_ARG_BUFFER(c->bias),
                                   PL_ARG_BUFFER(s->dt),       PL_ARG_BUFFER(s->z),    PL_ARG_BUFFER(s->a),
                                   PL_ARG_BUFFER(s->dt_bias),  PL_ARG_BUFFER(s->skip), PL_ARG_BUFFER(s->state),
                                   PL_ARG_BUFFER(s->seqs),     PL_ARG_BUFFER(s->y),    PL_ARG_BUFFER(arrived),
                                   PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, s->heads * (s->head_dim / ROWS), (uint32_t)s->seq_count, 0, args, PL_COUNT_OF(args));
}
