#include "ops/ops.h"
#include "ops/paged.h"

#include <stdio.h>
#include <string.h>

#include "ops/cuda_fast.h"
#include "tensor/kv8.h"

enum { SHARED_ROWS = 16, CPU_V1_GROUP = 8, GPU_V1_GROUP = 256 };
enum { MLA_WIDE_GROUP = 384 };
enum { MLA_GROUP = 256, MLA_TILE = 32, MLA_SLICE = 128 };
enum { MMA_GROUP = 128, MMA_TILE = 64, MMA_STAGES_MAX = 4, MMA_PAIR_BYTES = 113 * 1024 };
enum { WIDE_GROUP = 384, WIDE_ROWS = 128, WIDE_STAGES = 3, WIDE_RING_BYTES = 192 * 1024, WIDE_RING_MAX = 8 };

struct pl_attn_table pl_attn_built_in(uint32_t units, bool is_cpu, uint32_t capability) {
    if (capability == 90) { /* the cascade's numbers: kernels/cuda/paged_wide.k.c */
        return (struct pl_attn_table){.slots = 2 * units,
                                      .chunk_cost = 0.0f,
                                      .merge_cost = 0.1f,
                                      .member_cost = 0.012f,
                                      .span_min = 16,
                                      .members_min = 2,
                                      .source = "built in"};
    }
    if (capability >= 80) { /* measured on an NVIDIA H200 (docs/perf/h200.md) */
        return (struct pl_attn_table){.slots = 2 * units,
                                      .chunk_cost = 0.0f,
                                      .merge_cost = 0.1f,
                                      .member_cost = 0.1f,
                                      .span_min = 256,
                                      .members_min = 16,
                                      .source = "built in"};
    }
    return (struct pl_attn_table){.slots = is_cpu ? units : 8 * units,
                                  .chunk_cost = is_cpu ? 0.25f : 0.5f,
                                  .merge_cost = is_cpu ? 0.05f : 0.01f,
                                  .member_cost = is_cpu ? 0.9f : 0.4f,
                                  .span_min = 4,
                                  .members_min = 2,
                                  .source = "built in"};
}

const char *pl_paged_declines(const struct pl_paged_shape *s) {
    if (s->kv != PL_F16 && s->kv != PL_BF16 && s->kv != PL_F32 && !pl_is_kv8(s->kv)) return "dtype";
    if (pl_is_kv8(s->kv) && (s->head_dim % pl_kv_multiple(s->kv) != 0 || (s->value_dim != 0 && s->value_dim != s->head_dim)))
        return "geometry";
    if (s->kv_heads == 0 || s->heads == 0 || s->heads % s->kv_heads != 0) return "geometry";
    if (s->head_dim == 0 || s->head_dim > 576 || s->page_tokens == 0 || s->heads > 65535) return "geometry";
    return NULL;
}

/* Query heads of a KV head taken together: the largest divisor of the group that a thread's registers hold. */
static uint32_t heads_together(uint32_t group) {
    for (uint32_t n = SHARED_ROWS; n > 1; n--)
        if (group % n == 0) return n;
    return 1;
}

void pl_paged_init(struct pl_paged *p, const struct pl_paged_shape *s) {
    PL_ASSERT(pl_paged_declines(s) == NULL);
    *p = (struct pl_paged){.shape = *s};
    if (p->shape.value_dim == 0) p->shape.value_dim = s->head_dim;
    if (p->shape.value_stride == 0) p->shape.value_stride = p->shape.value_dim;
    if (pl_is_kv8(s->kv)) p->shape.value_stride = (uint32_t)pl_kv_value_bytes(s->kv, s->head_dim); /* with the scale */
    p->heads_together = heads_together(s->heads / s->kv_heads);
    p->rows = SHARED_ROWS / p->heads_together * p->heads_together;
}

/* --- on tensor cores, latent keys --- */

static bool is_latent(const struct pl_paged_shape *s) {
    return s->value_dim > 0 && s->value_dim < s->head_dim && s->value_stride == s->head_dim && s->kv_heads == 1;
}
static uint32_t mla_shared_bytes(const struct pl_paged_shape *s, uint32_t heads, uint32_t stages) {
    return stages * MLA_TILE * ((s->head_dim / 8) | 1) * 16 + heads * (2 * 40 * 4 + 80 + 4); /* as in the kernel */
}
/* q, four tiles, weights of two; from a multiple of 1024 on. */
static uint32_t mla_wide_shared_bytes(const struct pl_paged_shape *s) {
    return 1024 + 64 * s->head_dim * 2 + 4 * MLA_TILE * s->head_dim * 2 + 64 * 128;
}
/* The most heads of a group that leave room for three tiles of tokens, five where there is room; false: there is none. */
static bool mla_fit(const struct pl_kernels *ks, const struct pl_paged_shape *s, uint32_t *heads, uint32_t *stages) {
    uint32_t room = ks != NULL ? pl_device_info(ks->device)->shared_optin_bytes - 1024 : 2 * MMA_PAIR_BYTES;
    for (*heads = 64; *heads >= 16; *heads /= 2)
        for (*stages = 5; *stages >= 3 && s->heads % *heads == 0; --*stages)
            if (mla_shared_bytes(s, *heads, *stages) <= room) return true;
    return false;
}
static const char *mla_declines(const struct pl_kernels *ks, const struct pl_paged_shape *s) {
    if (s->kv == PL_F32) return "dtype";
    if (s->head_dim % 64 != 0 || s->value_dim % 128 != 0 || s->page_tokens % 16 != 0 || s->heads % 16 != 0)
        return "geometry";
    uint32_t heads, stages;
    return mla_fit(ks, s, &heads, &stages) ? NULL : "geometry";
}

/* --- on tensor cores --- */

static uint32_t mma_stage_bytes(uint32_t head_dim) { return 2 * MMA_TILE * (head_dim / 8 + 1) * 16; }
/* In few bits: whole units of 16 bytes that hold a vector, for each token of a tile; the widened tiles come once. */
static uint32_t few_stage_bytes(const struct pl_paged_shape *s) {
    size_t k = (pl_kv_key_bytes(s->kv, s->head_dim) + 27) / 16, v = (pl_kv_value_bytes(s->kv, s->head_dim) + 27) / 16;
    return (uint32_t)(MMA_TILE * 16 * (k + v));
}
static uint32_t few_shared_bytes(const struct pl_paged *p) {
    uint32_t low = p->heads_together > 8 ? 16 * (p->shape.head_dim / 8 + 1) * 16 : 0;
    return p->stages * few_stage_bytes(&p->shape) + mma_stage_bytes(p->shape.head_dim) + low;
}
static uint32_t mma_shared_bytes(const struct pl_paged *p, bool cascade) {
    if (p->few) return few_shared_bytes(p);
    uint32_t row = (p->shape.head_dim / 8 + 1) * 16, rows = cascade ? p->tiles * MMA_TILE : p->heads_together > 8 ? 16 : 0;
    if (cascade && p->shape.kv == PL_BF16) rows *= 2; /* what q loses by rounding */
    return (cascade ? 2 : p->stages) * mma_stage_bytes(p->shape.head_dim) + rows * row;
}
static uint32_t mma_room(const struct pl_kernels *ks) {
    return ks != NULL ? pl_device_info(ks->device)->shared_optin_bytes - 1024 : 2 * MMA_PAIR_BYTES;
}
/* Tiles of 16 rows of a shared chunk that a warp holds: as registers and shared memory allow; 0: none. */
static uint32_t mma_tiles(const struct pl_kernels *ks, const struct pl_paged_shape *s) {
    for (uint32_t n = s->head_dim <= 128 && s->kv == PL_F16 ? 2 : 1; n > 0; n--) {
        struct pl_paged p = {.shape = *s, .stages = 2, .tiles = n, .heads_together = SHARED_ROWS};
        if (mma_shared_bytes(&p, true) <= mma_room(ks)) return n;
    }
    return 0;
}

static uint32_t wide_tile_bytes(const struct pl_paged_shape *s) { return 2 * MMA_TILE * s->head_dim * 2; }
/* Two teams with chunks of one member each, or a ring and what q lost. */
static uint32_t wide_shared_bytes(const struct pl_paged *p) {
    uint32_t row = (p->shape.head_dim / 8 + 1) * 16, low = p->shape.kv == PL_BF16 ? WIDE_ROWS * p->shape.head_dim * 2 : 0;
    uint32_t teams = 2 * (WIDE_STAGES * mma_stage_bytes(p->shape.head_dim) + (p->heads_together > 8 ? 16 * row : 0));
    return PL_MAX(teams, p->ring * wide_tile_bytes(&p->shape) + low + 1024);
}

/* As many stages as leave room for two groups, else for one; 0: there is no room. */
static struct pl_paged few_fit(const struct pl_kernels *ks, const struct pl_paged_shape *s) {
    struct pl_paged p = {.shape = *s, .few = true, .heads_together = heads_together(s->heads / s->kv_heads)};
    for (p.stages = MMA_STAGES_MAX; p.stages >= 3; p.stages--)
        if (few_shared_bytes(&p) <= PL_MIN((uint32_t)MMA_PAIR_BYTES, mma_room(ks))) return p;
    for (p.stages = MMA_STAGES_MAX; p.stages >= 2; p.stages--)
        if (few_shared_bytes(&p) <= mma_room(ks)) return p;
    p.stages = 0;
    return p;
}

const char *pl_paged_mma_declines(const struct pl_kernels *ks, const struct pl_paged_shape *s) {
    if (ks != NULL && pl_cuda_capability(ks) < 80) return "no port";
    if (pl_paged_declines(s) != NULL) return pl_paged_declines(s);
    if (is_latent(s)) return mla_declines(ks, s);
    if (s->kv == PL_F32) return "dtype";
    bool plain =
        (s->value_dim == 0 || s->value_dim == s->head_dim) && (s->value_stride == 0 || s->value_stride == s->head_dim);
    if (!plain || s->head_dim % 16 != 0 || s->head_dim < 32 || s->head_dim > 256 || s->page_tokens % 16 != 0)
        return "geometry";
    if (s->kv == PL_K8V4 && s->head_dim != 32 && s->head_dim != 64 && s->head_dim != 128) return "geometry";
    if (pl_is_kv8(s->kv)) return few_fit(ks, s).stages == 0 ? "geometry" : NULL;
    return mma_tiles(ks, s) == 0 ? "geometry" : NULL;
}

void pl_paged_widen_latent(struct pl_paged *p) {
    p->latent_wide = p->latent && p->heads_together == 64 && p->shape.value_dim == 512;
}

void pl_paged_init_best(const struct pl_kernels *ks, struct pl_paged *p, const struct pl_paged_shape *s) {
    pl_paged_init(p, s);
    if (pl_paged_mma_declines(ks, s) != NULL) return;
    if (is_latent(s)) {
        p->latent = true;
        (void)mla_fit(ks, s, &p->heads_together, &p->stages);
        p->rows = p->heads_together;
        if (ks != NULL && strcmp(pl_device_info(ks->device)->target, "sm_90a") == 0) pl_paged_widen_latent(p);
        return;
    }
    if (pl_is_kv8(s->kv)) { /* cascade, merge and the others stay portable */
        p->few = true;
        p->tiles = 1;
        p->stages = few_fit(ks, s).stages;
        return;
    }
    uint32_t stage = mma_stage_bytes(s->head_dim), room = mma_room(ks) - 16 * (s->head_dim / 8 + 1) * 16;
    uint32_t most = stage * 2 > MMA_PAIR_BYTES ? room : PL_MIN((uint32_t)MMA_PAIR_BYTES, room); /* of one group of two */
    p->tiles = mma_tiles(ks, s);
    p->rows = p->tiles * MMA_TILE / p->heads_together * p->heads_together;
    p->stages = PL_MIN((uint32_t)MMA_STAGES_MAX, PL_MAX(2u, most / stage));
    if (ks != NULL && strcmp(pl_device_info(ks->device)->target, "sm_90a") == 0) pl_paged_widen(p);
}

void pl_paged_widen(struct pl_paged *p) {
    if (p->tiles == 0 || p->few || p->shape.head_dim != 128) return; /* why: kernels/cuda/paged_wide.k.c */
    p->ring = PL_MIN((uint32_t)WIDE_RING_MAX, WIDE_RING_BYTES / wide_tile_bytes(&p->shape) / 2 * 2);
    p->rows = WIDE_ROWS / p->heads_together * p->heads_together;
}

uint64_t pl_paged_arrived_bytes(const struct pl_paged *p, uint32_t rows) {
    return sizeof(uint32_t) * (uint64_t)PL_MAX(rows, 1u) * (p->shape.heads / p->heads_together);
}

static bool on_mla(const struct pl_paged *p, enum pl_paged_kernel which) {
    return p->latent && (which == PL_PAGED_V2 || which == PL_PAGED_MERGE);
}
static void mla_spec(const struct pl_paged *p, enum pl_paged_kernel which, struct pl_jit_spec *spec) {
    bool merge = which == PL_PAGED_MERGE, wide = p->latent_wide && !merge;
    *spec = (struct pl_jit_spec){.file = wide ? "cuda/mla_wide.k.c" : "cuda/mla.k.c",
                                 .entry = merge  ? "pk_mla_merge"
                                          : wide ? "pk_mla_wide"
                                                 : "pk_mla"};
    if (merge) pl_jit_set(spec, "MERGE_ALONE", "1");
    pl_jit_set_u32(spec, "GROUP", wide ? MLA_WIDE_GROUP : MLA_GROUP);
    enum pl_status st = pl_jit_set_kv(spec, p->shape.kv, p->shape.head_dim, p->shape.page_tokens);
    PL_ASSERT(st == PL_OK);
    pl_jit_set_u32(spec, "VALUE_DIM", p->shape.value_dim);
    if (merge) return;
    pl_jit_set_u32(spec, "HEADS", p->heads_together);
    if (!wide) pl_jit_set_u32(spec, "STAGES", p->stages);
}

static bool on_mma(const struct pl_paged *p, enum pl_paged_kernel which) {
    if (p->few) return which == PL_PAGED_V2;
    return p->tiles > 0 && (which == PL_PAGED_V2 || which == PL_PAGED_CASCADE || which == PL_PAGED_MERGE);
}
static bool on_wide(const struct pl_paged *p, enum pl_paged_kernel which) {
    return p->ring > 0 && which == PL_PAGED_CASCADE;
}
static void wide_spec(const struct pl_paged *p, struct pl_jit_spec *spec) {
    *spec = (struct pl_jit_spec){.file = "cuda/paged_wide.k.c", .entry = "pk_paged_wide"};
    pl_jit_set_u32(spec, "GROUP", WIDE_GROUP);
    pl_jit_set(spec, "GROUPS_HELD", "1");
    enum pl_status st = pl_jit_set_kv(spec, p->shape.kv, p->shape.head_dim, p->shape.page_tokens);
    PL_ASSERT(st == PL_OK);
    pl_jit_set_u32(spec, "HEADS", p->heads_together);
    pl_jit_set_u32(spec, "STAGES", WIDE_STAGES);
    pl_jit_set_u32(spec, "RING", p->ring);
    if (p->shape.kv == PL_BF16) pl_jit_set(spec, "TWICE", "1");
}
static void mma_spec(const struct pl_paged *p, enum pl_paged_kernel which, struct pl_jit_spec *spec) {
    bool cascade = which == PL_PAGED_CASCADE, merge = which == PL_PAGED_MERGE;
    *spec = (struct pl_jit_spec){.file = "cuda/paged_mma.k.c", .entry = merge ? "pk_paged_mma_merge" : "pk_paged_mma"};
    if (merge) pl_jit_set(spec, "MERGE_ALONE", "1");
    pl_jit_set_u32(spec, "GROUP", MMA_GROUP);
    enum pl_status st = pl_jit_set_kv(spec, p->shape.kv, p->shape.head_dim, p->shape.page_tokens);
    PL_ASSERT(st == PL_OK);
    pl_jit_set_u32(spec, "HEADS", p->heads_together);
    pl_jit_set_u32(spec, "ROWS", cascade ? p->rows : p->heads_together);
    pl_jit_set_u32(spec, "TILES_M", cascade ? p->tiles : 0);
    pl_jit_set_u32(spec, "STAGES", cascade ? 2 : p->stages);
    if (cascade && p->shape.kv == PL_BF16) pl_jit_set(spec, "TWICE", "1");
}

void pl_paged_plan_options(const struct pl_paged *p, struct pl_plan_options *opt) {
    opt->page_tokens = p->shape.page_tokens;
    opt->heads = p->shape.heads;
    opt->kv_heads = p->shape.heads / p->heads_together;
    opt->rows_max = p->rows;
    opt->costs.wide = p->ring > 0 ? 2 : 1;                            /* a multiprocessor has two slots */
    if (p->ring > 0 && p->shape.kv == PL_F16) opt->costs.member /= 2; /* multiplied once */
    if (!p->latent) return;
    opt->costs.slots = PL_MAX(1u, opt->costs.slots / 2); /* a group fills a multiprocessor, instead of half of one */
    opt->costs.merge /= 4;                               /* many groups join a row */
}

/* Shuffles need threads that run in step: not promised by OpenCL C 1.2. */
static bool has_teams(const struct pl_kernels *ks) {
    return ks == NULL || pl_device_info(ks->device)->kind != PL_DEVICE_OPENCL;
}
static uint32_t group_of(const struct pl_kernels *ks, const struct pl_paged *p, enum pl_paged_kernel which) {
    if (on_wide(p, which)) return WIDE_GROUP;
    if (on_mla(p, which)) return p->latent_wide && which == PL_PAGED_V2 ? MLA_WIDE_GROUP : MLA_GROUP;
    if (on_mma(p, which)) return MMA_GROUP;
    bool one_pass = which == PL_PAGED_V1 || which == PL_PAGED_DENSE;
    if (ks == NULL) return one_pass ? GPU_V1_GROUP : 128;
    if (one_pass) return pl_device_info(ks->device)->is_cpu ? CPU_V1_GROUP : has_teams(ks) ? GPU_V1_GROUP : 64;
    uint32_t dim = p->shape.value_dim > 0 ? p->shape.value_dim : p->shape.head_dim;
    /* No thread without a number of its own: of heads of 16 in 4 bits PoCL's optimiser otherwise makes wrong sums. */
    return pl_device_info(ks->device)->is_cpu ? PL_MIN(ks->head, dim) : ks->head;
}

/* Which of the kernels read values to sum them. */
static bool weighs(enum pl_paged_kernel which) { return which != PL_PAGED_MERGE && which != PL_PAGED_GATHER; }

void pl_paged_spec(const struct pl_kernels *ks, const struct pl_paged *p, enum pl_paged_kernel which,
                   struct pl_jit_spec *spec) {
    static const char *const entries[] = {"pk_paged_v1",    "pk_paged_v2",     "pk_paged_v2",
                                          "pk_paged_merge", "pk_paged_gather", "pk_paged_dense"};
    static const char *const parts[] = {"PAGED_V1", "PAGED_V2", "PAGED_V2", "PAGED_MERGE", "PAGED_GATHER", "PAGED_DENSE"};
    const struct pl_paged_shape *s = &p->shape;
    if (on_wide(p, which)) {
        wide_spec(p, spec);
        return;
    }
    if (on_mla(p, which)) {
        mla_spec(p, which, spec);
        return;
    }
    if (on_mma(p, which)) {
        mma_spec(p, which, spec);
        return;
    }
    *spec = (struct pl_jit_spec){.file = "paged.k.c", .entry = entries[which]};
    pl_jit_set_u32(spec, "GROUP", group_of(ks, p, which));
    pl_jit_set(spec, parts[which], "1");
    enum pl_status st = pl_jit_set_kv(spec, s->kv, s->head_dim, s->page_tokens);
    PL_ASSERT(st == PL_OK);
    bool tiled = which == PL_PAGED_V2 || which == PL_PAGED_CASCADE || which == PL_PAGED_MERGE;
    if (p->sparse && weighs(which)) pl_jit_set(spec, "SPARSE_V", "1");
    if (which != PL_PAGED_MERGE && which != PL_PAGED_GATHER) pl_jit_set_u32(spec, "TEAM", has_teams(ks) ? 32 : 1);
    if (tiled) pl_jit_set_u32(spec, "HEADS", p->heads_together);
    if (tiled && which != PL_PAGED_MERGE)
        pl_jit_set_u32(spec, "ROWS", which == PL_PAGED_CASCADE ? p->rows : p->heads_together);
    pl_jit_set_u32(spec, "VALUE_DIM", s->value_dim);
    pl_jit_set_u32(spec, "VALUE_STRIDE", s->value_stride);
}

static struct pl_kernel *kernel_of(struct pl_paged *p, enum pl_paged_kernel which) {
    struct pl_kernel *const all[] = {&p->v1, &p->v2, &p->cascade, &p->merge, &p->gather, &p->dense};
    return all[which];
}

enum pl_status pl_paged_make(struct pl_kernels *ks, struct pl_paged *p, enum pl_paged_kernel which, struct pl_err *err) {
    static const char *const names[] = {"paged_v1",    "paged_v2",     "paged_cascade",
                                        "paged_merge", "paged_gather", "paged_dense"};
    struct pl_kernel *k = kernel_of(p, which);
    struct pl_jit_spec spec;
    char name[80], tail[26] = "";
    if (k->jit != NULL) return PL_OK;
    if (which == PL_PAGED_V2 || which == PL_PAGED_MERGE) snprintf(tail, sizeof tail, "/h%u", p->heads_together);
    if (which == PL_PAGED_CASCADE) snprintf(tail, sizeof tail, "/h%ux%u", p->heads_together, p->rows / p->heads_together);
    snprintf(name, sizeof name, "%s%s/%s/d%u%s%s", names[which],
             on_wide(p, which)  ? "_wide"
             : on_mla(p, which) ? p->latent_wide && which == PL_PAGED_V2 ? "_mla_wide" : "_mla"
             : on_mma(p, which) ? "_mma"
                                : "",
             pl_dtype_name(p->shape.kv), p->shape.head_dim, tail, p->sparse && weighs(which) ? "/sparse" : "");
    pl_paged_spec(ks, p, which, &spec);
    return pl_kernel_make(ks, &spec, group_of(ks, p, which), name, k, err);
}

void pl_paged_free(struct pl_kernels *ks, struct pl_paged *p) {
    for (int i = PL_PAGED_V1; i <= PL_PAGED_DENSE; i++) pl_kernel_free(ks, kernel_of(p, (enum pl_paged_kernel)i));
}

static enum pl_status launch_gather(struct pl_kernels *ks, struct pl_paged *p, const struct pl_paged_launch *l,
                                    struct pl_args_paged a) {
    struct pl_device_arg args[] = {
        PL_ARG_BUFFER(l->k_pages), PL_ARG_BUFFER(l->v_pages),         PL_ARG_BUFFER(l->plan), PL_ARG_BUFFER(l->dense_k),
        PL_ARG_BUFFER(l->dense_v), PL_ARG_BUFFER(&p->gather.counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, &p->gather, l->pages_longest, l->rows, 0, args, PL_COUNT_OF(args));
}
static enum pl_status launch_rows(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_paged_launch *l,
                                  pl_buffer_in *keys, pl_buffer_in *values, struct pl_args_paged a) {
    struct pl_device_arg args[] = {PL_ARG_BUFFER(l->q),    PL_ARG_BUFFER(keys),   PL_ARG_BUFFER(values),
                                   PL_ARG_BUFFER(l->plan), PL_ARG_BUFFER(l->out), PL_ARG_BUFFER(&k->counter),
                                   PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, a.heads, l->rows, 0, args, PL_COUNT_OF(args));
}
static enum pl_status launch_chunks(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_paged_launch *l,
                                    struct pl_args_paged a, uint32_t tiles) {
    struct pl_device_arg args[] = {PL_ARG_BUFFER(l->q),    PL_ARG_BUFFER(l->k_pages),  PL_ARG_BUFFER(l->v_pages),
                                   PL_ARG_BUFFER(l->plan), PL_ARG_BUFFER(l->out),      PL_ARG_BUFFER(l->parts),
                                   PL_ARG_BUFFER(l->lse),  PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, l->chunks, tiles, 0, args, PL_COUNT_OF(args));
}
static enum pl_status launch_mma(struct pl_kernels *ks, struct pl_paged *p, enum pl_paged_kernel which,
                                 const struct pl_paged_launch *l, struct pl_args_paged a, uint32_t tiles) {
    static const struct pl_device_buffer none;
    struct pl_kernel *k = kernel_of(p, which);
    struct pl_device_arg args[] = {PL_ARG_BUFFER(l->q),        PL_ARG_BUFFER(l->k_pages),
                                   PL_ARG_BUFFER(l->v_pages),  PL_ARG_BUFFER(l->plan),
                                   PL_ARG_BUFFER(l->out),      PL_ARG_BUFFER(l->parts),
                                   PL_ARG_BUFFER(l->lse),      PL_ARG_BUFFER(l->arrived != NULL ? l->arrived : &none),
                                   PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, l->chunks * tiles, 1, mma_shared_bytes(p, which == PL_PAGED_CASCADE), args,
                            PL_COUNT_OF(args));
}
/* Groups of the shared chunks, then pairs of the others. */
static enum pl_status launch_wide(struct pl_kernels *ks, struct pl_paged *p, const struct pl_paged_launch *l,
                                  struct pl_args_paged a, uint32_t tiles) {
    uint32_t groups = l->shared * tiles + ((l->chunks - l->shared) * tiles + 1) / 2;
    struct pl_device_arg args[] = {
        PL_ARG_BUFFER(l->q),   PL_ARG_BUFFER(l->k_pages), PL_ARG_BUFFER(l->v_pages), PL_ARG_BUFFER(l->plan),
        PL_ARG_BUFFER(l->out), PL_ARG_BUFFER(l->parts),   PL_ARG_BUFFER(l->lse),     PL_ARG_BUFFER(&p->cascade.counter),
        PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, &p->cascade, groups, 1, wide_shared_bytes(p), args, PL_COUNT_OF(args));
}
static enum pl_status launch_mla(struct pl_kernels *ks, struct pl_paged *p, const struct pl_paged_launch *l,
                                 struct pl_args_paged a, uint32_t tiles) {
    struct pl_device_arg args[] = {
        PL_ARG_BUFFER(l->q),     PL_ARG_BUFFER(l->k_pages), PL_ARG_BUFFER(l->plan),        PL_ARG_BUFFER(l->out),
        PL_ARG_BUFFER(l->parts), PL_ARG_BUFFER(l->lse),     PL_ARG_BUFFER(&p->v2.counter), PL_ARG_VALUE(a)};
    uint32_t shared =
        p->latent_wide ? mla_wide_shared_bytes(&p->shape) : mla_shared_bytes(&p->shape, p->heads_together, p->stages);
    return pl_kernel_launch(ks, &p->v2, l->chunks * tiles, 1, shared, args, PL_COUNT_OF(args));
}
static enum pl_status launch_mla_merge(struct pl_kernels *ks, struct pl_paged *p, const struct pl_paged_launch *l,
                                       struct pl_args_paged a) {
    struct pl_device_arg args[] = {PL_ARG_BUFFER(l->parts),          PL_ARG_BUFFER(l->lse),
                                   PL_ARG_BUFFER(l->plan),           PL_ARG_BUFFER(l->out),
                                   PL_ARG_BUFFER(&p->merge.counter), PL_ARG_VALUE(a)};
    if (l->merges == 0) return PL_OK;
    return pl_kernel_launch(ks, &p->merge, l->merges * a.heads * (p->shape.value_dim / MLA_SLICE), 1, 0, args,
                            PL_COUNT_OF(args));
}
enum { MMA_PLACES_BYTES = 1024 };
static enum pl_status launch_mma_merge(struct pl_kernels *ks, struct pl_paged *p, const struct pl_paged_launch *l,
                                       struct pl_args_paged a, uint32_t tiles) {
    struct pl_device_arg args[] = {PL_ARG_BUFFER(l->parts),          PL_ARG_BUFFER(l->lse),
                                   PL_ARG_BUFFER(l->plan),           PL_ARG_BUFFER(l->out),
                                   PL_ARG_BUFFER(&p->merge.counter), PL_ARG_VALUE(a)};
    if (l->merges == 0) return PL_OK;
    return pl_kernel_launch(ks, &p->merge, l->merges * tiles, 1, MMA_PLACES_BYTES, args, PL_COUNT_OF(args));
}
static enum pl_status launch_merge(struct pl_kernels *ks, struct pl_paged *p, const struct pl_paged_launch *l,
                                   struct pl_args_paged a) {
    struct pl_device_arg args[] = {PL_ARG_BUFFER(l->parts),          PL_ARG_BUFFER(l->lse),
                                   PL_ARG_BUFFER(l->plan),           PL_ARG_BUFFER(l->out),
                                   PL_ARG_BUFFER(&p->merge.counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, &p->merge, l->merges, a.heads, 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_launch_paged(struct pl_kernels *ks, struct pl_paged *p, enum pl_paged_kernel which,
                               const struct pl_paged_launch *l) {
    const struct pl_paged_shape *s = &p->shape;
    struct pl_args_paged a = {s->heads,  s->kv_heads, l->scale, l->softcap, l->chunks,
                              l->merges, l->rows,     l->fresh, l->least,   0};
    uint32_t tiles = s->heads / p->heads_together;
    if (on_wide(p, which)) return launch_wide(ks, p, l, a, tiles);
    if (on_mla(p, which)) return which == PL_PAGED_MERGE ? launch_mla_merge(ks, p, l, a) : launch_mla(ks, p, l, a, tiles);
    if (on_mma(p, which) && which == PL_PAGED_MERGE) return launch_mma_merge(ks, p, l, a, tiles);
    if (on_mma(p, which)) return launch_mma(ks, p, which, l, a, tiles);
    switch (which) {
    case PL_PAGED_V1: return launch_rows(ks, &p->v1, l, l->k_pages, l->v_pages, a);
    case PL_PAGED_V2: return launch_chunks(ks, &p->v2, l, a, tiles);
    case PL_PAGED_CASCADE: return launch_chunks(ks, &p->cascade, l, a, tiles);
    case PL_PAGED_MERGE: return l->merges > 0 ? launch_merge(ks, p, l, a) : PL_OK;
    case PL_PAGED_GATHER: return l->pages_longest > 0 ? launch_gather(ks, p, l, a) : PL_OK;
    case PL_PAGED_DENSE: return launch_rows(ks, &p->dense, l, l->dense_k, l->dense_v, a);
    }
    return PL_INVALID;
}
