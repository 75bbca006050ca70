/* paged - decode attention by plan (kernels/paged.k.c) as functions: v1, v2 with merge, cascade, gather with dense.
 * Contract of the plan record: kernels/args/args.h. Each question "does it apply" answers NULL or the reason why not.
 * NVIDIA devices have v2 and cascade on tensor cores (kernels/cuda/paged_mma.k.c, paged_wide.k.c); v2 merges in the same
 * launch. Latent keys have a v2 and a merge of their own (kernels/cuda/mla.k.c) and share nothing between rows. */
#ifndef PL_OPS_PAGED_H
#define PL_OPS_PAGED_H

#include "ops/launch.h"
#include "plan/plan.h"

struct pl_paged_shape {
    enum pl_dtype kv;
    uint32_t head_dim, value_dim, value_stride; /* value_*: 0 as head_dim */
    uint32_t page_tokens, heads, kv_heads;
};
/* Kernels of one shape, each made when first asked for. */
struct pl_paged {
    struct pl_paged_shape shape;
    uint32_t heads_together; /* query heads that share a load: HEADS */
    uint32_t rows;           /* of a shared chunk: ROWS, a multiple of HEADS */
    uint32_t stages, tiles;  /* on tensor cores: tiles of tokens on their way; of rows, a warp (0: portable kernels) */
    uint32_t ring;           /* the cascade on Hopper's (kernels/cuda/paged_wide.k.c): tiles of its ring; 0: as elsewhere */
    bool latent;             /* on tensor cores, values a part of keys: kernels/cuda/mla.k.c */
    bool latent_wide;        /* likewise, on Hopper's: kernels/cuda/mla_wide.k.c */
    bool few;                /* on tensor cores, in few bits: v2 alone */
    bool sparse;             /* SPARSE_V: the portable kernels, values of little weight are not read */
    struct pl_kernel v1, v2, cascade, merge, gather, dense;
};
enum pl_paged_kernel { PL_PAGED_V1, PL_PAGED_V2, PL_PAGED_CASCADE, PL_PAGED_MERGE, PL_PAGED_GATHER, PL_PAGED_DENSE };

const char *pl_paged_declines(const struct pl_paged_shape *s);
void pl_paged_init(struct pl_paged *p, const struct pl_paged_shape *s); /* the portable ones; nothing is compiled yet */
/* Why v2 and cascade are not on tensor cores here. */
const char *pl_paged_mma_declines(const struct pl_kernels *ks, const struct pl_paged_shape *s);
void pl_paged_widen_latent(struct pl_paged *p); /* for Hopper, where it takes the shape */
void pl_paged_init_best(const struct pl_kernels *ks, struct pl_paged *p, const struct pl_paged_shape *s);
/* The cascade of sm_90a from here on, where the shape allows: as pl_paged_init_best does on such devices. For compile gates.
 */
void pl_paged_widen(struct pl_paged *p);
/* Whether a launch of v2 merges, given `arrived`: then PL_PAGED_MERGE is not launched. */
static inline bool pl_paged_merges(const struct pl_paged *p) { return p->tiles > 0; }
uint64_t pl_paged_arrived_bytes(const struct pl_paged *p, uint32_t rows);
enum pl_status pl_paged_make(struct pl_kernels *ks, struct pl_paged *p, enum pl_paged_kernel which,
                             struct pl_err *err) PL_MUST_CHECK;
void pl_paged_spec(const struct pl_kernels *ks, const struct pl_paged *p, enum pl_paged_kernel which,
                   struct pl_jit_spec *spec); /* ks NULL: a GPU's, for compile gates */
void pl_paged_free(struct pl_kernels *ks, struct pl_paged *p);
/* What a plan for these kernels has to be made with: tiles of heads count as KV heads of their own. */
void pl_paged_plan_options(const struct pl_paged *p, struct pl_plan_options *opt);

/* The device side of one plan and what its launches write. */
struct pl_paged_launch {
    pl_buffer_in *q, *k_pages, *v_pages, *plan, *out;
    pl_buffer_in *parts, *lse; /* [part_count, H, V], [part_count, H]; used when part_count > 0 */
    pl_buffer_in *arrived;     /* pl_paged_merges: zeros, pl_paged_arrived_bytes of them; NULL: PL_PAGED_MERGE follows */
    uint32_t fresh;            /* tokens at each row's end that launches of this step wrote; PL_PAGED_ALL_FRESH: any */
    pl_buffer_in *dense_k, *dense_v; /* gather only: [tokens, G, D or V stride] of the KV type */
    uint32_t rows, chunks, merges;   /* chunks may be more than the plan has */
    uint32_t shared;                 /* the plan's shared_count; cascade only */
    uint32_t pages_longest;          /* gather only */
    float scale, softcap;
    float least; /* sparse only */
};
enum pl_status pl_launch_paged(struct pl_kernels *ks, struct pl_paged *p, enum pl_paged_kernel which,
                               const struct pl_paged_launch *l) PL_MUST_CHECK;

#endif
