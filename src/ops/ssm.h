/* ssm - the portable kernels of state-space layers (kernels/ssm.k.c): specialisation and launch. */
#ifndef PL_OPS_SSM_H
#define PL_OPS_SSM_H

#include "ops/launch.h"

/* What a convolution is compiled for. */
struct pl_conv_kind {
    uint32_t kernel;
    bool bias, silu;
};
enum pl_status pl_kernel_causal_conv(struct pl_kernels *ks, struct pl_conv_kind kind, struct pl_kernel *out,
                                     struct pl_err *err) PL_MUST_CHECK;
/* state: of one layer, slot_stride values a slot, the convolution's first; seqs: PL_SEQ_WORDS of each sequence. */
struct pl_launch_conv {
    pl_buffer_in *x, *w, *bias, *state, *seqs, *y;
    size_t channels, seq_count, longest; /* longest: most rows of a sequence */
    uint64_t slot_stride;
};
enum pl_status pl_launch_causal_conv(struct pl_kernels *ks, struct pl_kernel *k,
                                     const struct pl_launch_conv *c) PL_MUST_CHECK;

struct pl_ssm_kind {
    uint32_t state;
    bool full, bias, skip, gate, one_row;
};
enum pl_status pl_kernel_ssm(struct pl_kernels *ks, struct pl_ssm_kind kind, struct pl_kernel *out,
                             struct pl_err *err) PL_MUST_CHECK;
struct pl_launch_ssm {
    pl_buffer_in *x, *b, *c, *dt, *z, *a, *dt_bias, *skip, *state, *seqs, *y;
    uint32_t heads, head_dim, groups, n, x_stride, b_stride, c_stride, x_first, b_first, c_first;
    float dt_min, dt_max;
    size_t seq_count;
    uint64_t slot_stride, state_first;
    uint32_t split; /* sequences of so many rows and more are left to the chunks; 0: none */
};
enum pl_status pl_launch_ssm(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_ssm *s) PL_MUST_CHECK;

/* The recurrence by chunks (kernels/ssm_chunks.k.c): Mamba-2's sequences of s->split rows and more, the others are not
 * touched. PL_SSM_CHUNK_ROWS: from so many rows of a sequence on it is the faster form. */
enum { PL_SSM_CHUNK = 64, PL_SSM_CHUNK_ROWS = 32 };
struct pl_ssm_chunks {
    struct pl_kernel dots, scan;
};
/* NULL, or why not. */
const char *pl_ssm_chunks_declines(const struct pl_ssm_kind *kind);
enum pl_status pl_kernel_ssm_chunks(struct pl_kernels *ks, struct pl_ssm_kind kind, struct pl_ssm_chunks *out,
                                    struct pl_err *err) PL_MUST_CHECK;
/* dots [rows, groups, PL_SSM_CHUNK] and steps [rows, 3, heads], f32, of all rows of the step; longest: most rows of a
 * sequence. */
enum pl_status pl_launch_ssm_dots(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_ssm *s,
                                  pl_buffer_in *dots, pl_buffer_in *steps, size_t longest) PL_MUST_CHECK;
enum pl_status pl_launch_ssm_chunks(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_ssm *s,
                                    pl_buffer_in *dots, pl_buffer_in *steps) PL_MUST_CHECK;

/* The gated delta rule (kernels/delta.k.c): q, k [groups * n] and v [heads * head_dim] are columns of x; dt, beta [rows,
 * heads]; y [rows, heads * head_dim]. in_turn: struct pl_delta. */
struct pl_delta_kind {
    uint32_t state, cols, parts; /* a group: so many columns, each by so many threads, a power of two */
    bool in_turn;
};
/* cpu: the device is a processor, where threads of a group follow each other. */
struct pl_delta_kind pl_delta_kind_for(uint32_t state, bool in_turn, bool cpu);
enum pl_status pl_kernel_delta(struct pl_kernels *ks, struct pl_delta_kind kind, struct pl_kernel *out,
                               struct pl_err *err) PL_MUST_CHECK;
struct pl_launch_delta {
    pl_buffer_in *x, *dt, *beta, *a, *dt_bias, *state, *seqs, *y;
    uint32_t heads, head_dim, groups, x_stride, q_first, k_first, v_first, cols;
    size_t seq_count;
    uint64_t slot_stride, state_first;
};
enum pl_status pl_launch_delta(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_delta *s) PL_MUST_CHECK;

enum pl_status pl_kernel_gated_norm(struct pl_kernels *ks, bool gate, struct pl_kernel *out,
                                    struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_launch_gated_norm(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x, pl_buffer_in *z,
                                    pl_buffer_in *w, pl_buffer_in *y, size_t rows, size_t cols, uint32_t norm_groups,
                                    bool norm_first, float eps) PL_MUST_CHECK;

#endif
