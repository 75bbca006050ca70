/* latent - the portable kernels of latent attention (kernels/latent.k.c): specialisation and launch. */
#ifndef PL_OPS_LATENT_H
#define PL_OPS_LATENT_H

#include "ops/launch.h"

/* tile: as pl_tile_of. w holds the matrices of all heads, one after the other. */
/* Many rows meet a head's matrix in tiles of 64 x 64: the form after those by rows. */
enum { PL_HEADS_TILE = PL_TILE_COUNT, PL_HEADS_TILE_ROWS = 64, PL_HEADS_TILE_FROM = 16 };
/* tile: by rows, below PL_TILE_COUNT (pl_tile_of), or PL_HEADS_TILE. */
enum pl_status pl_kernel_heads(struct pl_kernels *ks, const struct pl_device_weight *w, uint32_t tile, struct pl_kernel *out,
                               struct pl_err *err) PL_MUST_CHECK;
struct pl_launch_heads {
    const struct pl_device_weight *w;
    pl_buffer_in *x, *y;
    size_t heads, rows, x_head, y_head; /* numbers of a head in a row of x, of y */
};
enum pl_status pl_launch_heads(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_heads *h,
                               uint32_t tile_rows) PL_MUST_CHECK;

enum pl_status pl_kernel_latent_append(struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t value_dim,
                                       size_t page_tokens, bool halves, struct pl_kernel *out,
                                       struct pl_err *err) PL_MUST_CHECK;
struct pl_launch_latent {
    pl_buffer_in *q, *latent, *qa, *norm, *cos_sin, *step, *pages;
    uint32_t rows, heads, q_head, turned, stride;
    float norm_eps;
};
enum pl_status pl_launch_latent_append(struct pl_kernels *ks, struct pl_kernel *k,
                                       const struct pl_launch_latent *l) PL_MUST_CHECK;

#endif
