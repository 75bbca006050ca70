#include "ops/ship.h"

#include <string.h>

#include "base/mem.h"
#include "ops/bandwidth.h"
#include "ops/cuda_dense.h"
#include "ops/cuda_fast.h"
#include "ops/draw.h"
#include "ops/latent.h"
#include "ops/moe.h"
#include "ops/paged.h"
#include "ops/ssm.h"
#include "ops/ternary.h"

enum { SHIP_PAGE = 32 };
#define SHIP_TARGET "compute_80" /* runs on everything since: drivers translate it for their device */

/* Mamba's state of 16 and Mamba-2's of 128 and 256, in the form that published models have them. */
static enum pl_status recurrent(struct pl_kernels *ks, struct pl_err *err) {
    static const uint32_t states[] = {16, 128, 256};
    struct pl_kernel k = {0};
    PL_TRY(pl_kernel_causal_conv(ks, (struct pl_conv_kind){4, true, true}, &k, err));
    for (int gate = 0; gate < 2; gate++) PL_TRY(pl_kernel_gated_norm(ks, gate != 0, &k, err));
    for (size_t i = 0; i < PL_COUNT_OF(states); i++)
        for (int one = 0; one < 2; one++) {
            bool mamba = states[i] == 16;
            struct pl_ssm_kind kind = {states[i], mamba, true, true, mamba, one != 0};
            PL_TRY(pl_kernel_ssm(ks, kind, &k, err));
        }
    for (size_t i = 1; i < PL_COUNT_OF(states); i++) {
        struct pl_ssm_chunks chunks = {0};
        PL_TRY(pl_kernel_ssm_chunks(ks, (struct pl_ssm_kind){states[i], false, true, true, false, false}, &chunks, err));
    }
    return PL_OK;
}

/* Every constructor below only notes what it would compile: ks is planning. */
static enum pl_status common(struct pl_kernels *ks, struct pl_err *err) {
    struct pl_kernel k = {0};
    struct pl_jit_spec pack = {.file = "cuda/pack.k.c", .entry = "pk_pack"};
    for (int flag = 0; flag < 2; flag++) {
        PL_TRY(pl_kernel_norm(ks, flag != 0, &k, err));
        PL_TRY(pl_kernel_layer_norm(ks, flag != 0, &k, err));
    }
    for (int i = 0; i < PL_EW_COUNT; i++) PL_TRY(pl_kernel_elementwise(ks, (enum pl_elementwise)i, &k, err));
    for (uint32_t unroll = 4; unroll <= 8; unroll *= 2) PL_TRY(pl_kernel_read(ks, unroll, &k, err));
    for (int i = 0; i < PL_PICK_COUNT; i++) PL_TRY(pl_kernel_pick(ks, (enum pl_picking)i, &k, err));
    struct pl_draw_kernels draw = {0};
    PL_TRY(pl_kernel_draw(ks, PL_F32, &draw, err));
    PL_TRY(recurrent(ks, err));
    PL_TRY(pl_kernel_ternary_quantize(ks, &k, err));
    for (uint32_t tile = 0; tile < PL_TILE_COUNT; tile++) PL_TRY(pl_kernel_ternary(ks, tile, &k, err));
    pl_jit_set_u32(&pack, "GROUP", 256);
    PL_TRY(pl_kernel_make(ks, &pack, 256, "pack/bf16", &k, err));
    for (int i = 0; i < PL_PACK_COUNT; i++) PL_TRY(pl_kernel_pack(ks, (enum pl_pack)i, &k, err));
    return PL_OK;
}

static enum pl_status weights(struct pl_kernels *ks, const char *only, struct pl_err *err) {
    static const enum pl_dtype types[] = {PL_F32,  PL_F16,  PL_BF16, PL_Q4_0, PL_Q4_1, PL_Q5_0,   PL_Q5_1,  PL_Q8_0,
                                          PL_Q2_K, PL_Q3_K, PL_Q4_K, PL_Q5_K, PL_Q6_K, PL_IQ4_NL, PL_IQ4_XS};
    struct pl_kernel k = {0};
    bool any = false;
    for (size_t i = 0; i < PL_COUNT_OF(types); i++) {
        if (only != NULL && strcmp(only, pl_dtype_name(types[i])) != 0) continue;
        any = true;
        struct pl_device_weight w = {.dtype = types[i], .rows = 4096, .cols = 4096, .row_bytes = 16384};
        PL_TRY(pl_kernel_embed(ks, &w, &k, err));
        for (uint32_t tile = 0; tile < PL_TILE_COUNT; tile++) PL_TRY(pl_kernel_linear(ks, &w, tile, &k, err));
        if (types[i] != PL_BF16 && types[i] != PL_F32) PL_TRY(pl_kernel_unpack(ks, &w, &k, err));
        for (uint32_t rows = 1; rows <= PL_GEMV_ROWS_MAX; rows++) {
            if (pl_gemv_declines(ks, &w, rows) == NULL) PL_TRY(pl_kernel_gemv(ks, &w, rows, &k, err));
        }
    }
    if (!any) PL_FAIL(err, PL_USAGE, "--type: no kernels are shipped for weights of type '%.40s'", only);
    return PL_OK;
}

/* Mixtures: the routers of published shapes, and products of the types that experts are published in. Without a compiler on
 * the machine weights are not rearranged, so the portable kernels are what runs. */
static enum pl_status experts(struct pl_kernels *ks, const char *only, struct pl_err *err) {
    static const struct {
        uint32_t experts, used;
    } routers[] = {{128, 8}, {60, 4}, {64, 8}, {8, 2}, {32, 4}, {128, 4}, {64, 6}, {256, 8}, {128, 6}};
    static const enum pl_dtype types[] = {PL_F16, PL_BF16, PL_Q4_0, PL_Q5_0, PL_Q8_0, PL_Q4_K, PL_Q5_K, PL_Q6_K, PL_MXFP4};
    for (size_t i = 0; i < PL_COUNT_OF(routers); i++) {
        struct pl_moe_route r;
        PL_TRY(pl_kernel_moe_route(ks, routers[i].experts, routers[i].used, PL_MOE_TILE, &r, err));
    }
    for (size_t i = 0; i < PL_COUNT_OF(types); i++) {
        if (only != NULL && strcmp(only, pl_dtype_name(types[i])) != 0) continue;
        struct pl_device_weight w = {.dtype = types[i], .rows = 4096, .cols = 4096, .row_bytes = 16384};
        struct pl_kernel k = {0};
        int act = types[i] == PL_MXFP4 ? 2 : 0; /* gpt-oss: clamped */
        PL_TRY(pl_kernel_moe(ks, &w, PL_MOE_PAIR, act, true, &k, err));
        PL_TRY(pl_kernel_moe(ks, &w, PL_MOE_PAIR, act, false, &k, err));
        PL_TRY(pl_kernel_moe(ks, &w, PL_MOE_ONE, 0, false, &k, err));
        PL_TRY(pl_kernel_moe(ks, &w, PL_MOE_MIX, 0, true, &k, err));
        for (int direct = 0; act == 0 && direct < 2; direct++) /* Nemotron 3: without gates */
            PL_TRY(pl_kernel_moe(ks, &w, PL_MOE_ONE, 3, direct != 0, &k, err));
    }
    return PL_OK;
}

struct family {
    uint32_t heads, kv_heads, head_dim;
    bool norm; /* of each head's q and k */
};

static enum pl_status heads(struct pl_kernels *ks, const struct family *f, enum pl_dtype kv, struct pl_err *err) {
    struct pl_kernel k = {0};
    struct pl_split_attention split = {0};
    struct pl_paged paged = {0};
    struct pl_paged_shape shape = {
        .kv = kv, .head_dim = f->head_dim, .page_tokens = SHIP_PAGE, .heads = f->heads, .kv_heads = f->kv_heads};
    for (int halves = 0; halves < 2; halves++) {
        struct pl_rope_kind kind = {f->norm, f->norm, true, halves != 0};
        PL_TRY(pl_kernel_rope(ks, kv, f->head_dim, SHIP_PAGE, kind, &k, err));
        if (pl_rope_by_warps(ks, kv, f->head_dim, kind, f->head_dim))
            PL_TRY(pl_kernel_rope_warps(ks, kv, f->head_dim, SHIP_PAGE, kind, &k, err));
    }
    PL_TRY(pl_kernel_attention(ks, kv, f->head_dim, f->head_dim, SHIP_PAGE, false, false, &k, err));
    if (pl_split_declines(ks, kv, f->head_dim, f->heads, f->kv_heads, 1) == NULL)
        PL_TRY(pl_kernel_split(ks, kv, f->head_dim, SHIP_PAGE, f->heads / f->kv_heads, true, &split, err));
    if (pl_tiles_declines(ks, kv, f->head_dim, f->heads, f->kv_heads) == NULL)
        PL_TRY(pl_kernel_tiles(ks, kv, f->head_dim, SHIP_PAGE, PL_TILES_PLAIN, &k, err));
    if (pl_paged_declines(&shape) != NULL) return PL_OK;
    pl_paged_init(&paged, &shape);
    for (int which = PL_PAGED_V1; which <= PL_PAGED_DENSE; which++)
        PL_TRY(pl_paged_make(ks, &paged, (enum pl_paged_kernel)which, err));
    return PL_OK;
}

/* Latent attention: products of each head in what kv_b is kept in, the append, and decode for 16, 32 and 64 heads a group.
 */
static enum pl_status latents(struct pl_kernels *ks, enum pl_dtype kv, struct pl_err *err) {
    static const enum pl_dtype types[] = {PL_F32, PL_F16, PL_BF16, PL_Q8_0, PL_Q4_K, PL_Q6_K};
    static const uint32_t heads[] = {16, 32, 128};
    struct pl_kernel k = {0};
    for (size_t i = 0; i < PL_COUNT_OF(types) && kv == PL_F16; i++) {
        struct pl_device_weight w = {.dtype = types[i], .rows = 8192, .cols = 512, .row_bytes = 2048};
        for (uint32_t tile = 0; tile <= PL_HEADS_TILE; tile++) PL_TRY(pl_kernel_heads(ks, &w, tile, &k, err));
    }
    PL_TRY(pl_kernel_latent_append(ks, kv, 576, 512, SHIP_PAGE, PL_TILES_PLAIN, &k, err));
    for (size_t i = 0; i < PL_COUNT_OF(heads); i++) {
        struct pl_paged paged;
        const struct pl_paged_shape shape = {kv, 576, 512, 576, SHIP_PAGE, heads[i], 1};
        pl_paged_init_best(NULL, &paged, &shape);
        PL_TRY(pl_paged_make(ks, &paged, PL_PAGED_V2, err));
        PL_TRY(pl_paged_make(ks, &paged, PL_PAGED_MERGE, err));
    }
    return PL_OK;
}

static enum pl_status everything(struct pl_kernels *ks, const struct pl_ship *what, struct pl_err *err) {
    static const struct family families[] = {
        {32, 8, 128, false}, {32, 8, 64, false},  {24, 8, 128, false}, {9, 3, 64, false},   {15, 5, 64, false},
        {32, 32, 64, false}, {14, 2, 64, false},  {12, 2, 128, false}, {28, 4, 128, false}, {16, 2, 128, false},
        {40, 8, 128, false}, {64, 8, 128, false}, {16, 8, 128, true},  {32, 8, 128, true},  {40, 8, 128, true},
        {4, 1, 256, true},   {8, 4, 256, true},   {16, 8, 256, true},  {32, 4, 128, true},  {16, 16, 128, true},
    };
    static const enum pl_dtype caches[] = {PL_F16, PL_BF16};
    struct pl_draw_kernels draw = {0};
    PL_TRY(common(ks, err));
    PL_TRY(weights(ks, what->type, err));
    PL_TRY(experts(ks, what->type, err));
    const struct family own = {what->heads, what->kv_heads, what->head_dim, false};
    for (size_t i = 0; i < (what->heads > 0 ? 1 : PL_COUNT_OF(families)); i++) {
        const struct family *f = what->heads > 0 ? &own : &families[i];
        for (size_t c = 0; c < PL_COUNT_OF(caches); c++) PL_TRY(heads(ks, f, caches[c], err));
    }
    for (size_t c = 0; c < (what->heads > 0 ? 0 : PL_COUNT_OF(caches)); c++) PL_TRY(latents(ks, caches[c], err));
    return pl_kernel_draw(ks, PL_F32, &draw, err);
}

enum pl_status pl_ops_ship(const char *path, const struct pl_ship *what, size_t *count, struct pl_err *err) {
    struct pl_kernels ks = {0};
    PL_TRY(pl_device_paper(PL_DEVICE_CUDA, SHIP_TARGET, &ks.device, err));
    pl_kernels_sizes(&ks);
    pl_kernels_plan_begin(&ks);
    enum pl_status st = everything(&ks, what, err);
    if (st == PL_OK) st = pl_jit_pack_write(ks.device, ks.wanted, ks.wanted_count, path, what->progress, err);
    *count = ks.wanted_count;
    pl_free(ks.wanted);
    pl_device_close(ks.device);
    return st;
}
