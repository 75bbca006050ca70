/* expand - the kernels of latent attention by keys and values of each head, portable (kernels/latent_expand.k.c) and
 * Hopper's (kernels/cuda/attention_wide.k.c): specialisation and launch. */
#ifndef PL_OPS_EXPAND_H
#define PL_OPS_EXPAND_H

#include "ops/launch.h"

/* What kernels are made for. */
struct pl_expand_shape {
    enum pl_dtype kv;
    uint32_t nope, rope, value, latent, page_tokens;
    uint32_t halves; /* bf16 on Hopper's tensor cores: keys by the vendor's product, attention_wide */
};
enum pl_expand_kernel { PL_EXPAND_WIDEN, PL_EXPAND_KEYS, PL_EXPAND_ATTEND, PL_EXPAND_COUNT };

/* Why the kernels do not take the shape: static text, or NULL. */
const char *pl_expand_declines(const struct pl_kernels *ks, const struct pl_expand_shape *s);
uint32_t pl_expand_vector(const struct pl_expand_shape *s); /* numbers of one token and head: f32, or bf16 */
/* Whether halves serve: sm_90a, the library open (cuda_dense.h), heads of 128 + 64 and 128. */
bool pl_expand_halves(const struct pl_kernels *ks, const struct pl_expand_shape *s);

void pl_expand_spec(const struct pl_expand_shape *s, enum pl_expand_kernel which, uint32_t group, struct pl_jit_spec *out);
enum pl_status pl_kernel_expand(struct pl_kernels *ks, const struct pl_expand_shape *s, enum pl_expand_kernel which,
                                struct pl_kernel *out, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_kernel_turn(struct pl_kernels *ks, const struct pl_device_weight *w, bool halves, struct pl_kernel *out,
                              struct pl_err *err) PL_MUST_CHECK;

/* Matrices of `heads` heads, one after the other, into f32 or (halves) bf16 [heads, nope + value, latent]: keys [latent,
 * nope] are turned on the way, values [value, latent] come behind them. */
enum pl_status pl_launch_turn(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_expand_shape *s,
                              const struct pl_device_weight *w, bool values, pl_buffer_in *to, uint32_t heads) PL_MUST_CHECK;

/* Rows [row0, row0 + rows) of the step, one sequence with `past` tokens before them, and its tokens [first, first + tokens):
 * a chunk, which begins with the sequence's or where another one ended. */
struct pl_launch_expand {
    pl_buffer_in *pages, *step, *w, *q, *qa; /* w: what pl_launch_turn left */
    pl_buffer_in *latents, *rotated, *kv;    /* scratch for the chunk: latent, rope, heads * vector numbers a token */
    pl_buffer_in *out, *lse;                 /* lse [rows of the step, heads] */
    uint32_t heads, stride, row0, rows, past, first, tokens;
    float scale;
};
enum pl_status pl_launch_expand(struct pl_kernels *ks, const struct pl_expand_shape *s, enum pl_expand_kernel which,
                                struct pl_kernel *k, const struct pl_launch_expand *l) PL_MUST_CHECK;

#endif
