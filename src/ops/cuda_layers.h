/* cuda_layers - one token through neighbouring Mamba-2 layers in one launch on sm_90 and up (kernels/cuda/ssm_layers.k.c).
 */
#ifndef PL_OPS_CUDA_LAYERS_H
#define PL_OPS_CUDA_LAYERS_H

#include "ops/cuda_chain.h"
#include "ops/cuda_ssm.h"

/* Taken by itself, or on request alone. */
enum { PL_LAYERS_DEFAULT = true };
enum { PL_LAYERS_MAX = 128, PL_LAYERS_LEAST = 2 };

/* A layer as its three launches: products of the normed x (z; x, B and C; dt), ssm_step into z's place, the output product
 * of what the norm makes of that, added to x. */
struct pl_layer_launches {
    struct pl_launch_stream in, out;
    struct pl_launch_conv conv;
    struct pl_launch_ssm ssm;
    struct pl_step_kind kind;
};
/* NULL, or why these layers cannot be one launch. */
const char *pl_layers_declines(const struct pl_kernels *ks, const struct pl_layer_launches *layer, size_t count);
enum pl_status pl_kernel_layers(struct pl_kernels *ks, const struct pl_layer_launches *layer, struct pl_kernel *out,
                                struct pl_err *err) PL_MUST_CHECK;
/* What stands in the launch's table of layers: addresses. */
enum { PL_LAYERS_WORDS = 12 };
void pl_layers_fill(const struct pl_layer_launches *layer, size_t count, uint64_t (*table)[PL_LAYERS_WORDS]);
/* meet: as for chains (cuda_chain.h), which run in the same stream. Leaves x and the states; cx, dt and z's place hold what
 * lies between, the results of norms are not left. */
enum pl_status pl_launch_layers(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_layer_launches *layer,
                                size_t count, pl_buffer_in *table, pl_buffer_in *meet) PL_MUST_CHECK;

#endif
