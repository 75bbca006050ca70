/* Compile gates: every kernel for NVIDIA and AMD targets, on machines with the compilers and without the devices.
 *
 * For sm_90 and gfx90a all of it; for the other targets two variants of each kernel, all of them when PLUMB_TEST_GATES is
 * set.
 *
 * PLUMB_TEST_GATES  a folder: there each kernel's source and what came of it are left, TARGET.N.cu and TARGET.N.bin, for
 *                   tools/kernel_resources.py
 *
 * test-variants: release (the kernels are compiled by the OpenCL driver, which no sanitizer sees; the host code they go
 * through is sanitized in tests/device, tests/jit and tests/model)
 * test-timeout: 1200 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "jit/jit.h"
#include "ops/cuda_ternary.h"
#include "ops/expand.h"
#include "ops/launch.h"
#include "ops/paged.h"
#include "tests/devices.h"

static struct pl_err err;

enum { SPECS_MAX = 512 };
struct gate {
    enum pl_device_kind kind;
    const char *target;
    struct pl_jit_spec specs[SPECS_MAX];
    struct pl_err errs[SPECS_MAX];
    enum pl_status status[SPECS_MAX];
    size_t count, left_out;
    bool few; /* of each kernel */
    _Atomic size_t next;
};
static struct gate gated;
enum { FEW = 2 };

static void compile(struct gate *g, const struct pl_jit_spec *s) {
    size_t alike = 0;
    for (size_t i = 0; g->few && i < g->count; i++)
        alike += strcmp(g->specs[i].file, s->file) == 0 && strcmp(g->specs[i].entry, s->entry) == 0;
    if (g->few && alike >= FEW) {
        g->left_out++;
        return;
    }
    assert_true(g->count < SPECS_MAX);
    g->specs[g->count++] = *s;
}

static void leave(const struct gate *g, size_t index, const char *end, const void *data, size_t bytes) {
    const char *folder = getenv("PLUMB_TEST_GATES");
    char path[512];
    if (folder == NULL) return;
    snprintf(path, sizeof path, "%s/%s.%zu.%s", folder, g->target, index, end);
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0) fprintf(stderr, "# %s was not written\n", path);
}

static enum pl_status compile_one(const struct gate *g, size_t index, struct pl_err *e) {
    const struct pl_jit_spec *s = &g->specs[index];
    struct pl_buf text = {0}, image = {0}, log = {0};
    enum pl_status st = pl_jit_source(s, &text, e);
    struct pl_device_source src = {.name = s->file, .text = pl_buf_cstr(&text)};
    pl_jit_compile_options(g->kind, &src);
    if (st == PL_OK) st = pl_device_compile(NULL, g->kind, g->target, &src, &image, &log, e);
    if (st == PL_OK && image.len <= 100) st = PL_INTERNAL;
    if (st == PL_OK) leave(g, index, "cu", text.data, text.len), leave(g, index, "bin", image.data, image.len);
    pl_buf_deinit(&text);
    pl_buf_deinit(&image);
    pl_buf_deinit(&log);
    return st;
}
static void compile_worker(void *arg, int index, int count) {
    struct gate *g = arg;
    (void)index;
    (void)count;
    for (size_t i; (i = atomic_fetch_add(&g->next, 1)) < g->count;) g->status[i] = compile_one(g, i, &g->errs[i]);
}

static struct pl_jit_spec spec(const char *file, const char *entry, uint32_t group) {
    struct pl_jit_spec s = {.file = file, .entry = entry};
    pl_jit_set_u32(&s, "GROUP", group);
    return s;
}

static void weights(struct gate *g) {
    for (int t = 0; t < PL_DTYPE_COUNT; t++) {
        if (t >= PL_I8 && t < PL_IQ1_S) continue; /* no weights of products */
        struct pl_device_weight w = {.dtype = (enum pl_dtype)t, .bits = 3, .group = 64, .scale_dtype = PL_BF16};
        for (uint32_t tile = 0; tile < PL_TILE_COUNT; tile += 3) {
            struct pl_jit_spec s = spec("linear.k.c", "pk_linear", 128);
            pl_jit_set_u32(&s, "TEAM", 32);
            pl_jit_set_u32(&s, "ROWS", 1u << tile);
            pl_jit_set_weight(&s, &w);
            compile(g, &s);
        }
        struct pl_jit_spec s = spec("embed.k.c", "pk_embed", 128);
        pl_jit_set_weight(&s, &w);
        compile(g, &s);
    }
}

static void heads(struct gate *g) {
    static const enum pl_dtype types[] = {PL_F32, PL_F16, PL_BF16, PL_I8, PL_F8, PL_K8V4};
    for (size_t i = 0; i < PL_COUNT_OF(types); i++) {
        struct pl_jit_spec s = spec("rope.k.c", "pk_rope_append", 128), a = spec("attention.k.c", "pk_attention", 128);
        assert_int_equal(pl_jit_set_kv(&s, types[i], 64u << i % 3, 32), PL_OK);
        assert_int_equal(pl_jit_set_kv(&a, types[i], 64u << i % 3, 32), PL_OK);
        pl_jit_set(&s, "Q_NORM", "1");
        pl_jit_set(&s, "K_NORM", "1");
        pl_jit_set(&s, i == 0 ? "ROPE_PAIRS" : "ROPE_HALVES", "1");
        compile(g, &s);
        compile(g, &a);
    }
}

static void widened(struct gate *g) {
    static const enum pl_dtype types[] = {PL_I8, PL_F8, PL_K8V4};
    struct pl_jit_spec back = spec("widen.k.c", "pk_values_turn_back", 128);
    for (size_t i = 0; i < PL_COUNT_OF(types); i++) {
        struct pl_jit_spec s = spec("widen.k.c", "pk_kv_widen", 128);
        pl_jit_set(&s, "WIDEN", "1");
        assert_int_equal(pl_jit_set_kv(&s, types[i], 64u << i % 2, 32), PL_OK);
        compile(g, &s);
    }
    pl_jit_set(&back, "TURN_BACK", "1");
    assert_int_equal(pl_jit_set_kv(&back, PL_K8V4, 128, 16), PL_OK);
    compile(g, &back);
}

static void latent(struct gate *g) {
    struct pl_device_weight w = {.dtype = PL_F16};
    struct pl_jit_spec h = spec("latent.k.c", "pk_heads_linear", 128), a = spec("latent.k.c", "pk_latent_append", 128);
    pl_jit_set(&h, "HEADS_LINEAR", "1");
    pl_jit_set_u32(&h, "TEAM", 32);
    pl_jit_set_u32(&h, "ROWS", 8);
    pl_jit_set_weight(&h, &w);
    compile(g, &h);
    struct pl_jit_spec tile = spec("latent.k.c", "pk_heads_tile", 256);
    pl_jit_set(&tile, "HEADS_LINEAR", "1");
    pl_jit_set(&tile, "HEADS_TILE", "1");
    pl_jit_set_weight(&tile, &w);
    compile(g, &tile);
    assert_int_equal(pl_jit_set_kv(&a, PL_F16, 576, 32), PL_OK);
    pl_jit_set_u32(&a, "VALUE_DIM", 512);
    pl_jit_set(&a, "ROPE_PAIRS", "1");
    compile(g, &a);
    struct pl_jit_spec p = spec("attention.k.c", "pk_attention", 128);
    assert_int_equal(pl_jit_set_kv(&p, PL_F16, 576, 32), PL_OK);
    pl_jit_set_u32(&p, "VALUE_DIM", 512);
    compile(g, &p);
}

static void expanded(struct gate *g) {
    static const struct pl_expand_shape s = {PL_F16, 128, 64, 128, 512, 32, 0};
    struct pl_expand_shape half = s;
    struct pl_device_weight w = {.dtype = PL_Q8_0};
    struct pl_jit_spec turn = spec("latent_expand.k.c", "pk_latent_turn", 256);
    pl_jit_set(&turn, "TURN", "1");
    pl_jit_set_weight(&turn, &w);
    compile(g, &turn);
    for (int i = 0; i < PL_EXPAND_COUNT; i++) {
        struct pl_jit_spec one;
        pl_expand_spec(&s, (enum pl_expand_kernel)i, 64, &one);
        compile(g, &one);
        half.halves = 1;
        if (g->kind != PL_DEVICE_CUDA || strcmp(g->target, "sm_90a") != 0 || i == PL_EXPAND_KEYS) continue;
        pl_expand_spec(&half, (enum pl_expand_kernel)i, 64, &one);
        compile(g, &one);
    }
}

static void paged(struct gate *g) {
    static const struct pl_paged_shape shapes[] = {{PL_F16, 128, 0, 0, 32, 32, 8},  {PL_BF16, 64, 0, 0, 16, 16, 1},
                                                   {PL_I8, 128, 0, 0, 32, 32, 8},   {PL_F8, 64, 0, 0, 32, 8, 2},
                                                   {PL_K8V4, 128, 0, 0, 32, 32, 8}, {PL_F16, 576, 512, 576, 64, 128, 1}};
    for (size_t i = 0; i < PL_COUNT_OF(shapes); i++) {
        struct pl_paged p;
        pl_paged_init(&p, &shapes[i]);
        for (int k = PL_PAGED_V1; k <= PL_PAGED_DENSE; k++) {
            struct pl_jit_spec s;
            pl_paged_spec(NULL, &p, (enum pl_paged_kernel)k, &s);
            compile(g, &s);
            if (i > 0 || k > PL_PAGED_V2) continue;
            p.sparse = true;
            pl_paged_spec(NULL, &p, (enum pl_paged_kernel)k, &s);
            compile(g, &s);
            p.sparse = false;
        }
    }
}

static void recurrent(struct gate *g) {
    struct pl_jit_spec conv = spec("ssm.k.c", "pk_causal_conv", 128), norm = spec("ssm.k.c", "pk_gated_norm", 256);
    pl_jit_set(&conv, "CONV", "1");
    pl_jit_set(&conv, "HAS_BIAS", "1");
    pl_jit_set(&conv, "ACT_SILU", "1");
    pl_jit_set_u32(&conv, "K", 4);
    pl_jit_set(&norm, "GATED_NORM", "1");
    pl_jit_set(&norm, "HAS_GATE", "1");
    struct pl_jit_spec rule = spec("delta.k.c", "pk_delta", 128);
    pl_jit_set_u32(&rule, "COLS", 32);
    pl_jit_set_u32(&rule, "PARTS", 4);
    pl_jit_set_u32(&rule, "PER", 32);
    pl_jit_set_u32(&rule, "STATE", 128);
    compile(g, &conv);
    compile(g, &norm);
    compile(g, &rule);
    for (uint32_t mamba2 = 0; mamba2 < 2; mamba2++) {
        static const char *const common[] = {"SSM", "HAS_BIAS", "HAS_SKIP"};
        struct pl_jit_spec s = spec("ssm.k.c", "pk_ssm", 128);
        pl_jit_set_u32(&s, "STATE", mamba2 != 0 ? 128 : 12); /* the second: no multiple of the team */
        pl_jit_set_u32(&s, "TEAM", mamba2 != 0 ? 32 : 8);
        for (size_t i = 0; i < PL_COUNT_OF(common); i++) pl_jit_set(&s, common[i], "1");
        if (mamba2 == 0) pl_jit_set(&s, "FULL", "1"), pl_jit_set(&s, "HAS_GATE", "1");
        compile(g, &s);
        pl_jit_set(&s, "ONE_ROW", "1");
        compile(g, &s);
    }
    for (uint32_t scan = 0; scan < 2; scan++) {
        struct pl_jit_spec s = spec("ssm_chunks.k.c", scan != 0 ? "pk_ssm_chunks" : "pk_ssm_dots", 128);
        pl_jit_set(&s, scan != 0 ? "CHUNKS" : "DOTS", "1");
        pl_jit_set(&s, scan != 0 ? "HAS_GATE" : "HAS_BIAS", "1");
        if (scan != 0) pl_jit_set(&s, "HAS_SKIP", "1");
        pl_jit_set_u32(&s, "STATE", 128);
        pl_jit_set_u32(&s, "Q", 64);
        if (scan != 0) pl_jit_set_u32(&s, "SLICE", 16);
        compile(g, &s);
    }
}

static void experts(struct gate *g) {
    static const char *const parts[] = {"MOE_ROUTE", "MOE_ORDER", "MOE_COMBINE"};
    static const char *const entries[] = {"pk_moe_route", "pk_moe_order", "pk_moe_combine"};
    for (size_t i = 0; i < PL_COUNT_OF(parts); i++) {
        struct pl_jit_spec s = spec("moe_route.k.c", entries[i], 128);
        pl_jit_set(&s, parts[i], "1");
        pl_jit_set_u32(&s, "EXPERTS", 128);
        pl_jit_set_u32(&s, "USED", 8);
        pl_jit_set_u32(&s, "TILE", 8);
        compile(g, &s);
    }
    static const struct {
        const char *entry, *part, *act;
        enum pl_dtype dtype;
        bool direct;
    } products[] = {{"pk_moe_pair", "MOE_PAIR", "ACT_SILU", PL_Q4_K, true},
                    {"pk_moe_pair", "MOE_PAIR", "ACT_SWIGLU_CLAMPED", PL_MXFP4, false},
                    {"pk_moe_one", "MOE_ONE", "ACT_GELU_TANH", PL_BF16, true},
                    {"pk_moe_one", "MOE_ONE", "ACT_SILU", PL_MLX, false},
                    {"pk_moe_pair", "MOE_PAIR", "ACT_SILU", PL_IQ2_XXS, false},
                    {"pk_moe_mix", "MOE_MIX", "ACT_SILU", PL_Q6_K, true}};
    for (size_t i = 0; i < PL_COUNT_OF(products); i++) {
        struct pl_jit_spec s = spec("moe.k.c", products[i].entry, 128);
        struct pl_device_weight w = {.dtype = products[i].dtype, .bits = 4, .group = 32, .scale_dtype = PL_F16};
        pl_jit_set_u32(&s, "TEAM", 32);
        pl_jit_set_u32(&s, "ROWS", products[i].direct ? 1 : 8);
        pl_jit_set(&s, products[i].part, "1");
        pl_jit_set(&s, products[i].act, "1");
        if (products[i].direct) pl_jit_set(&s, "MOE_DIRECT", "1");
        pl_jit_set_weight(&s, &w);
        compile(g, &s);
    }
}

static void ternary(struct gate *g) {
    struct pl_jit_spec q = spec("ternary.k.c", "pk_ternary_quantize", 256), e = spec("elementwise.k.c", "pk_glu", 256);
    compile(g, &q);
    for (uint32_t tile = 0; tile < PL_TILE_COUNT; tile += 3) {
        struct pl_jit_spec s = spec("ternary.k.c", "pk_ternary", 128);
        pl_jit_set_u32(&s, "TEAM", 32);
        pl_jit_set_u32(&s, "ROWS", 1u << tile);
        pl_jit_set_u32(&s, "PER", 4);
        compile(g, &s);
    }
    pl_jit_set(&e, "ACT_RELU2", "1");
    compile(g, &e);
    struct pl_jit_spec product = spec("elementwise.k.c", "pk_glu", 256);
    pl_jit_set(&product, "ACT_NONE", "1");
    compile(g, &product);
}

static void ternary_units(struct gate *g) {
    static const struct pl_ternary_kind kinds[] = {{.in = 2560, .split = 4, .norm = true},
                                                   {.in = 2560, .split = 4, .norm = true, .relu2 = true},
                                                   {.in = 2560, .split = 8, .norm = true, .add = true},
                                                   {.in = 6912, .split = 8, .norm = true, .add = true},
                                                   {.in = 192, .split = 4, .silu = true},
                                                   {.in = 2560, .split = 8, .rows_8 = 1},
                                                   {.in = 6912, .split = 8, .rows_8 = 2},
                                                   {.in = 6912, .split = 4, .rows_8 = 4}};
    for (size_t i = 0; i < PL_COUNT_OF(kinds); i++) {
        struct pl_jit_spec s;
        pl_ternaries_spec(&kinds[i], &s);
        compile(g, &s);
    }
}

static void paged_units(struct gate *g) {
    static const struct pl_paged_shape shapes[] = {{PL_BF16, 128, 0, 0, 32, 32, 8}, {PL_F16, 64, 0, 0, 16, 9, 3},
                                                   {PL_F16, 256, 0, 0, 64, 16, 1},  {PL_BF16, 80, 0, 0, 16, 12, 1},
                                                   {PL_I8, 128, 0, 0, 32, 32, 8},   {PL_F8, 80, 0, 0, 16, 12, 1},
                                                   {PL_K8V4, 128, 0, 0, 32, 32, 8}, {PL_K8V4, 64, 0, 0, 32, 12, 1}};
    for (size_t i = 0; i < PL_COUNT_OF(shapes); i++) {
        struct pl_paged p;
        pl_paged_init_best(NULL, &p, &shapes[i]);
        assert_true(pl_paged_merges(&p));
        for (int k = PL_PAGED_V2; k <= PL_PAGED_CASCADE; k++) {
            struct pl_jit_spec s;
            pl_paged_spec(NULL, &p, (enum pl_paged_kernel)k, &s);
            compile(g, &s);
        }
        if (strcmp(g->target, "sm_90a") != 0) continue;
        pl_paged_widen(&p);
        struct pl_jit_spec wide;
        pl_paged_spec(NULL, &p, PL_PAGED_CASCADE, &wide);
        if (p.ring > 0) compile(g, &wide);
    }
}

static void latent_units(struct gate *g) {
    static const uint32_t heads[] = {16, 32, 128};
    for (size_t i = 0; i < PL_COUNT_OF(heads); i++) {
        const struct pl_paged_shape shape = {i == 1 ? PL_BF16 : PL_F16, 576, 512, 576, 32, heads[i], 1};
        struct pl_paged p;
        pl_paged_init_best(NULL, &p, &shape);
        assert_true(p.latent);
        if (heads[i] == 128 && strcmp(g->target, "sm_90a") == 0) { /* Hopper's own */
            struct pl_paged wide = p;
            struct pl_jit_spec s;
            pl_paged_widen_latent(&wide);
            assert_true(wide.latent_wide);
            pl_paged_spec(NULL, &wide, PL_PAGED_V2, &s);
            compile(g, &s);
        }
        for (int k = PL_PAGED_V2; k <= PL_PAGED_MERGE; k += PL_PAGED_MERGE - PL_PAGED_V2) {
            struct pl_jit_spec s;
            pl_paged_spec(NULL, &p, (enum pl_paged_kernel)k, &s);
            compile(g, &s);
        }
    }
}

/* Products that add in one order for any number of rows: few from registers, many and bf16 by bulk copies. */
static void fixed_order(struct gate *g, enum pl_dtype dtype, uint32_t rows_8) {
    bool plain = dtype == PL_BF16, few = !plain && rows_8 <= 2;
    struct pl_device_weight w = {.dtype = dtype};
    struct pl_jit_spec s = spec("cuda/mma.k.c", "pk_mma", 256);
    if (!few && strcmp(g->target, "sm_80") == 0) return;
    pl_jit_set(&s, "FIXED", "1");
    pl_jit_set(&s, "WM", few ? "1" : "8");
    pl_jit_set(&s, "WK", few ? "8" : "1");
    pl_jit_set_u32(&s, "ROWS_8", rows_8);
    pl_jit_set_u32(&s, "EACH", 1);
    pl_jit_set_u32(&s, "DEPTH", 2);
    pl_jit_set_u32(&s, "HOLD", few ? 8 : 1);
    if (!few) pl_jit_set(&s, "BULK", "1"), pl_jit_set(&s, "X_STAGES", "2");
    if (plain) pl_jit_set(&s, "WIDE", "1");
    pl_jit_set_weight(&s, &w);
    compile(g, &s);
}

static void only_cuda(struct gate *g) {
    paged_units(g);
    latent_units(g);
    static const enum pl_dtype types[] = {PL_F32, PL_F16, PL_BF16, PL_Q4_0, PL_Q4_1, PL_Q5_0, PL_Q8_0, PL_Q4_K, PL_Q6_K};
    for (size_t i = 0; i < PL_COUNT_OF(types); i++) {
        for (uint32_t rows = 1; rows <= 8; rows += 7) {
            struct pl_device_weight w = {.dtype = types[i]};
            struct pl_jit_spec s = spec("cuda/gemv.k.c", "pk_gemv", 256);
            pl_jit_set_u32(&s, "PER_WARP", 2);
            pl_jit_set_u32(&s, "ROWS", rows);
            pl_jit_set_weight(&s, &w);
            compile(g, &s);
        }
    }
    static const enum pl_dtype strips[] = {PL_Q4_K, PL_Q6_K};
    for (size_t i = 0; i < PL_COUNT_OF(strips); i++) { /* few rows from registers, many by bulk copies */
        struct pl_device_weight w = {.dtype = strips[i]};
        struct pl_jit_spec s = spec("cuda/mma.k.c", "pk_mma", i == 0 ? 512 : 256),
                           r = spec("cuda/retile.k.c", "pk_retile", 128);
        pl_jit_set_u32(&s, "ROWS_8", i == 0 ? 1 : 4);
        pl_jit_set(&s, "WM", i == 0 ? "2" : "8");
        pl_jit_set(&s, "WK", i == 0 ? "8" : "1");
        pl_jit_set_u32(&s, "EACH", 1);
        pl_jit_set_u32(&s, "DEPTH", 2);
        pl_jit_set_u32(&s, "HOLD", 2);
        if (i == 1 && strcmp(g->target, "sm_80") != 0) pl_jit_set(&s, "BULK", "1"), pl_jit_set(&s, "X_STAGES", "2");
        for (uint32_t n = 1; strcmp(g->target, "sm_90a") == 0 && n <= 8; n *= 2) { /* four warps together */
            struct pl_jit_spec x = spec("cuda/mma.k.c", "pk_mma", 256);
            const char *const values[][2] = {{"WIDE", "1"}, {"BULK", "1"}, {"X_STAGES", "3"}, {"WM", "8"}, {"WK", "1"}};
            for (size_t v = 0; v < PL_COUNT_OF(values); v++) pl_jit_set(&x, values[v][0], values[v][1]);
            pl_jit_set_u32(&x, "ROWS_8", n);
            pl_jit_set_u32(&x, "EACH", 1);
            pl_jit_set_u32(&x, "DEPTH", 4);
            pl_jit_set_u32(&x, "HOLD", 1);
            struct pl_jit_spec y = x;
            pl_jit_set_weight(&x, &w);
            compile(g, &x);
            w.dtype = PL_BF16;
            pl_jit_set_weight(&y, &w);
            if (i == 0) compile(g, &y);
            w.dtype = strips[i];
        }
        pl_jit_set_weight(&s, &w);
        pl_jit_set_weight(&r, &w);
        compile(g, &s);
        compile(g, &r);
        fixed_order(g, strips[i], i == 0 ? 1 : 8);
    }
    if (strcmp(g->target, "sm_90a") == 0) fixed_order(g, PL_BF16, 1), fixed_order(g, PL_BF16, 8);
    for (size_t i = 0; i < 2 * PL_COUNT_OF(strips) && strcmp(g->target, "sm_80") != 0; i++) { /* asks for sm_90 */
        struct pl_device_weight w = {.dtype = strips[i / 2]};
        struct pl_jit_spec s = spec("cuda/moe_one.k.c", "pk_moe_one", i % 2 == 0 ? 128 : 384),
                           r = spec("cuda/moe_router.k.c", "pk_moe_router", 128);
        if (i % 2 == 0) pl_jit_set(&s, "MOE_UP", "1");
        pl_jit_set_u32(&s, "EXPERTS", 128);
        pl_jit_set_u32(&s, "USED", 8);
        pl_jit_set_weight(&s, &w);
        compile(g, &s);
        if (i == 0) compile(g, &r);
        struct pl_jit_spec bulk = spec("cuda/moe.k.c", i % 2 == 0 ? "pk_moe_up" : "pk_moe_down", 128);
        pl_jit_set(&bulk, i % 2 == 0 ? "MOE_UP" : "MOE_DOWN", "1");
        pl_jit_set(&bulk, "BULK", "1");
        pl_jit_set_u32(&bulk, "SPAN", 3);
        pl_jit_set_weight(&bulk, &w);
        compile(g, &bulk);
    }
    for (uint32_t order = 0; order < 2; order++) {
        struct pl_jit_spec s = spec("cuda/moe_choose.k.c", "pk_moe_choose", order != 0 ? 1024 : 128);
        pl_jit_set_u32(&s, "EXPERTS", 128);
        pl_jit_set_u32(&s, "USED", 8);
        if (order != 0) pl_jit_set(&s, "CHOOSE_ORDER", "1");
        pl_jit_set_u32(&s, "TILE", 8);
        pl_jit_set_u32(&s, "ROWS_MAX", 64);
        compile(g, &s);
    }
    for (size_t i = 0; i < PL_COUNT_OF(strips); i++) {
        static const char *const entries[] = {"pk_moe_up", "pk_moe_mix", "pk_moe_down"};
        static const char *const parts[] = {"MOE_UP", "MOE_MIX", "MOE_DOWN"};
        struct pl_device_weight w = {.dtype = strips[i]};
        for (size_t k = 0; k < PL_COUNT_OF(entries); k++) {
            struct pl_jit_spec s = spec("cuda/moe.k.c", entries[k], 256);
            pl_jit_set(&s, parts[k], "1");
            if (i == 0 && k < 2) pl_jit_set(&s, "MOE_DIRECT", "1");
            pl_jit_set_u32(&s, "SPAN", 4);
            pl_jit_set_weight(&s, &w);
            compile(g, &s);
        }
        struct pl_jit_spec s = spec("cuda/moe_dense.k.c", "pk_moe_dense", 128);
        pl_jit_set(&s, "STAGES", "3");
        if (i == 0) pl_jit_set(&s, "MOE_PAIR", "1");
        compile(g, &s);
    }
    for (int pair = 0; pair < 2 && strcmp(g->target, "sm_90a") == 0; pair++) {
        struct pl_jit_spec s = spec("cuda/moe_wide.k.c", "pk_moe_wide", 256);
        if (pair != 0) pl_jit_set(&s, "MOE_PAIR", "1");
        compile(g, &s);
    }
    struct pl_jit_spec fma = spec("cuda/fma.k.c", "pk_fma", 256);
    compile(g, &fma);
}

/* Norms, routers and experts of many rows. */
static void cuda_many_rows(struct gate *g) {
    static const enum pl_dtype strips[] = {PL_Q4_K, PL_Q6_K};
    for (size_t i = 0; i < 2 * PL_COUNT_OF(strips) && strcmp(g->target, "sm_90a") == 0; i++) {
        struct pl_device_weight w = {.dtype = strips[i / 2]};
        struct pl_jit_spec s = spec("cuda/moe_tall.k.c", "pk_moe_tall", 256);
        if (i % 2 == 0) pl_jit_set(&s, "MOE_PAIR", "1");
        if (i == 2) pl_jit_set(&s, "ACT_GELU_TANH", "1");
        pl_jit_set_weight(&s, &w);
        compile(g, &s);
    }
    struct pl_jit_spec pack = spec("cuda/pack.k.c", "pk_pack", 256);
    pl_jit_set(&pack, "IN_ORDER", "1");
    compile(g, &pack);
    struct pl_jit_spec sum = spec("cuda/moe_combine.k.c", "pk_moe_combine", 128);
    pl_jit_set_u32(&sum, "USED", 8);
    compile(g, &sum);
    struct pl_jit_spec sort = spec("cuda/moe_sort.k.c", "pk_moe_sort", 1024);
    pl_jit_set_u32(&sort, "EXPERTS", 60);
    pl_jit_set_u32(&sort, "TILE", 128);
    compile(g, &sort);
    struct pl_jit_spec norm = spec("cuda/norm_rows.k.c", "pk_norm_rows", 128);
    pl_jit_set_u32(&norm, "PER", 16);
    compile(g, &norm);
    for (uint32_t outs = 16; outs <= 128; outs *= 8) {
        struct pl_jit_spec s = spec("cuda/tf32x3.k.c", "pk_tf32x3", 512);
        pl_jit_set_u32(&s, "OUTS", outs);
        compile(g, &s);
    }
    for (uint32_t rows = 1; rows <= 2; rows++) {
        struct pl_jit_spec s = spec("cuda/tf32x3_few.k.c", "pk_tf32x3", 512);
        pl_jit_set_u32(&s, "ROWS_8", rows);
        compile(g, &s);
    }
}

static const enum pl_dtype streamed[] = {PL_Q4_K, PL_Q6_K, PL_BF16, PL_F16, PL_Q8_0, PL_Q4_0, PL_Q4_1, PL_Q5_0};

static void cuda_chains(struct gate *g) {
    for (uint32_t i = 0; i <= PL_COUNT_OF(streamed) && strcmp(g->target, "sm_80") != 0; i++) { /* asks for sm_90 */
        bool mixed = i == PL_COUNT_OF(streamed);
        struct pl_device_weight w = {.dtype = streamed[mixed ? 0 : i]};
        struct pl_jit_spec s = spec("cuda/chain.k.c", "pk_chain", i < 2 || mixed ? 544 : 288);
        if (i % 2 == 1) pl_jit_set(&s, "ACT_GELU_TANH", "1");
        if (mixed) pl_jit_set(&s, "WTYPE_STRIPS", "1");
        if (!mixed) pl_jit_set_weight(&s, &w);
        compile(g, &s);
    }
}

static void cuda_ssm_layers(struct gate *g) {
    for (int i = 0; i < 2 && strcmp(g->target, "sm_80") != 0; i++) { /* asks for sm_90 */
        struct pl_device_weight w = {.dtype = i == 0 ? PL_BF16 : PL_F16};
        struct pl_jit_spec s = spec("cuda/ssm_layers.k.c", "pk_ssm_layers", i == 0 ? 352 : 160);
        pl_jit_set_u32(&s, "WIDTH", i == 0 ? 2560 : 1024);
        pl_jit_set_u32(&s, "INNER", i == 0 ? 5120 : 2048);
        pl_jit_set_u32(&s, "STATE", i == 0 ? 128 : 256);
        pl_jit_set_u32(&s, "K", 4);
        pl_jit_set_u32(&s, "EACH", 4);
        if (i == 0) pl_jit_set(&s, "HAS_CONV_BIAS", "1"), pl_jit_set(&s, "HAS_BIAS", "1"), pl_jit_set(&s, "HAS_SKIP", "1");
        pl_jit_set_weight(&s, &w);
        compile(g, &s);
    }
}

static void cuda_rotations(struct gate *g) {
    static const char *const ropes[] = {"ROPE_HALVES", "ROPE_PAIRS", NULL};
    for (size_t i = 0; i < PL_COUNT_OF(ropes); i++) {
        struct pl_jit_spec r = spec("cuda/rope_warps.k.c", "pk_rope_append", 256);
        if (ropes[i] != NULL) pl_jit_set(&r, ropes[i], "1");
        if (i == 1) pl_jit_set(&r, "Q_NORM", "1"), pl_jit_set(&r, "K_NORM", "1");
        assert_int_equal(pl_jit_set_kv(&r, i == 0 ? PL_F16 : PL_BF16, (size_t)64 << i, 32), PL_OK);
        compile(g, &r);
        struct pl_jit_spec s = spec("cuda/attention_group.k.c", "pk_attention_group", 256);
        pl_jit_set_u32(&s, "HEADS", 4);
        pl_jit_set(&s, "WHOLE", "1");
        if (ropes[i] != NULL) pl_jit_set(&s, ropes[i], "1");
        if (i == 1) pl_jit_set(&s, "Q_NORM", "1"), pl_jit_set(&s, "K_NORM", "1");
        assert_int_equal(pl_jit_set_kv(&s, i == 0 ? PL_F16 : PL_BF16, (size_t)64 << i, 32), PL_OK);
        compile(g, &s);
        if (strcmp(g->target, "sm_80") == 0) continue;
        pl_jit_set_u32(&s, "CLUSTER", 8);
        compile(g, &s);
    }
}
static void cuda_inputs_and_attention(struct gate *g) {
    cuda_chains(g);
    cuda_ssm_layers(g);
    for (uint32_t i = 0; i < 2 * PL_COUNT_OF(streamed) && strcmp(g->target, "sm_80") != 0; i++) { /* asks for sm_90 */
        struct pl_device_weight w = {.dtype = streamed[i / 2]};
        struct pl_jit_spec s = spec("cuda/stream.k.c", "pk_stream", 288);
        if (i % 2 == 0) pl_jit_set(&s, "HAS_NORM", "1"), pl_jit_set(&s, "HAS_GLU", "1");
        if (i % 4 == 0) pl_jit_set(&s, "ACT_GELU_TANH", "1");
        pl_jit_set_weight(&s, &w);
        compile(g, &s);
    }
    static const char *const prepares[] = {"PREPARE_COPY", "PREPARE_NORM", "PREPARE_GLU"};
    for (size_t i = 0; i < PL_COUNT_OF(prepares); i++) {
        struct pl_jit_spec s = spec("cuda/prepare.k.c", "pk_prepare", 512);
        pl_jit_set(&s, prepares[i], "1");
        compile(g, &s);
    }
    static const char *const orders[] = {"WIDE", "PLAIN"};
    for (size_t i = 0; i < PL_COUNT_OF(orders); i++) {
        struct pl_jit_spec s = spec("cuda/prepare.k.c", "pk_prepare", 512);
        pl_jit_set(&s, "PREPARE_NORM", "1");
        pl_jit_set(&s, orders[i], "1");
        compile(g, &s);
    }
    for (uint32_t state = 128; state <= 256; state *= 2) {
        static const char *const flags[] = {"HAS_CONV_BIAS", "ACT_SILU", "HAS_BIAS", "HAS_SKIP", "HAS_GATE"};
        struct pl_jit_spec s = spec("cuda/ssm_step.k.c", "pk_ssm_step", 288);
        pl_jit_set_u32(&s, "STATE", state);
        pl_jit_set_u32(&s, "K", 4);
        for (size_t i = 0; i < PL_COUNT_OF(flags) && state == 128; i++) pl_jit_set(&s, flags[i], "1");
        compile(g, &s);
    }
    static const char *const packs[] = {NULL, "PACK_NORM", "PACK_GLU", "PACK_WIDEN"};
    for (size_t i = 0; i < PL_COUNT_OF(packs); i++) {
        struct pl_jit_spec pack = spec("cuda/pack.k.c", "pk_pack", i == 1 ? 512 : i == 3 ? 1024 : 256);
        if (packs[i] != NULL) pl_jit_set(&pack, packs[i], "1");
        compile(g, &pack);
    }
    static const enum pl_dtype packed[] = {PL_F16, PL_Q4_0, PL_Q4_K, PL_Q6_K, PL_IQ4_XS, PL_MXFP4, PL_IQ1_M, PL_IQ3_S};
    for (size_t i = 0; i < PL_COUNT_OF(packed); i++) {
        struct pl_device_weight w = {.dtype = packed[i]};
        struct pl_jit_spec s = spec("cuda/pack.k.c", "pk_unpack", 256);
        pl_jit_set(&s, "UNPACK", "1");
        pl_jit_set_weight(&s, &w);
        compile(g, &s);
        pl_jit_set(&s, "CHOSEN", "1");
        compile(g, &s);
        s.value_count--;
        if (packed[i] != PL_Q4_K && packed[i] != PL_Q6_K) continue;
        pl_jit_set(&s, "STRIPS", "1");
        compile(g, &s);
    }
    for (uint32_t d = 64; d <= 128; d *= 2) {
        struct pl_jit_spec s = spec("cuda/attention_tiles.k.c", "pk_attention_tiles", 128);
        assert_int_equal(pl_jit_set_kv(&s, d == 128 ? PL_F16 : PL_BF16, d, 32), PL_OK);
        compile(g, &s);
    }
    for (uint32_t i = 0; i < 3 && strcmp(g->target, "sm_90a") == 0; i++) {
        struct pl_jit_spec s = spec("cuda/attention_wide.k.c", "pk_attention_wide", 384);
        assert_int_equal(pl_jit_set_kv(&s, i == 1 ? PL_BF16 : PL_F16, 128, 32), PL_OK);
        if (i == 1) pl_jit_set(&s, "HALF_OUT", "1");
        if (i == 2) pl_jit_set(&s, "PAGES_IN_ORDER", "1");
        pl_jit_set_u32(&s, "BLOCK", 64);
        pl_jit_set_u32(&s, "RING", 6);
        compile(g, &s);
    }
    for (uint32_t d = 64; d <= 256; d *= 2) {
        struct pl_jit_spec s = spec("cuda/attention_group.k.c", "pk_attention_group", 128);
        pl_jit_set_u32(&s, "HEADS", d == 64 ? 8 : 4);
        assert_int_equal(pl_jit_set_kv(&s, d == 128 ? PL_F16 : PL_BF16, d, 32), PL_OK);
        compile(g, &s);
    }
    cuda_rotations(g);
    for (uint32_t d = 64; d <= 256; d *= 2) {
        struct pl_jit_spec s = spec("cuda/attention_split.k.c", "pk_attention_split", 128);
        pl_jit_set_u32(&s, "HEADS", d == 64 ? 8 : 4);
        assert_int_equal(pl_jit_set_kv(&s, d == 128 ? PL_F16 : PL_BF16, d, 32), PL_OK);
        compile(g, &s);
    }
}

static void draws(struct gate *g) {
    static const char *const parts[][2] = {{"pk_draw_scan", "DRAW_SCAN"},
                                           {"pk_draw_climb", "DRAW_CLIMB"},
                                           {"pk_draw_weigh", "DRAW_WEIGH"},
                                           {"pk_draw_gather", "DRAW_GATHER"},
                                           {"pk_draw_choose", "DRAW_CHOOSE"}};
    static const char *const types[] = {"LOGITS_F32", "LOGITS_F16", "LOGITS_BF16"};
    struct pl_jit_spec pick = spec("pick.k.c", "pk_pick", 1024);
    compile(g, &pick);
    for (size_t i = 0; i < PL_COUNT_OF(parts); i++) {
        for (size_t t = 0; t < PL_COUNT_OF(types); t++) {
            struct pl_jit_spec s = spec("draw.k.c", parts[i][0], 256);
            pl_jit_set(&s, parts[i][1], "1");
            pl_jit_set(&s, types[t], "1");
            compile(g, &s);
        }
    }
}

static void gate(enum pl_device_kind kind, const char *target) {
    char version[64];
    if (pl_device_compiler(NULL, kind, version, sizeof version, &err) != PL_OK) {
        print_message("# %s: no compiler here: %s\n", target, err.text);
        SKIP(err.text);
    }
    bool all = strcmp(target, "sm_90a") == 0 || strcmp(target, "gfx90a") == 0 || getenv("PLUMB_TEST_GATES") != NULL;
    gated = (struct gate){.kind = kind, .target = target, .few = !all};
    struct pl_jit_spec n = spec("norm.k.c", "pk_norm", 256), e = spec("elementwise.k.c", "pk_argmax", 256);
    compile(&gated, &n);
    compile(&gated, &e);
    pl_jit_set(&n, "HAS_ADD", "1");
    pl_jit_set(&e, "ACT_GELU_TANH", "1");
    compile(&gated, &n);
    compile(&gated, &e);
    struct pl_jit_spec r = spec("bandwidth.k.c", "pk_read", 256);
    pl_jit_set_u32(&r, "UNROLL", 8);
    compile(&gated, &r);
    weights(&gated);
    heads(&gated);
    paged(&gated);
    recurrent(&gated);
    widened(&gated);
    latent(&gated);
    expanded(&gated);
    experts(&gated);
    ternary(&gated);
    draws(&gated);
    if (kind == PL_DEVICE_CUDA)
        ternary_units(&gated), only_cuda(&gated), cuda_many_rows(&gated), cuda_inputs_and_attention(&gated);
    struct pl_pool *pool = NULL;
    int threads = kind == PL_DEVICE_ROCM ? 1 : 0; /* hipRTC 5.2 dies when two compile at once */
    assert_int_equal(pl_pool_create(threads, &pool, &err), PL_OK);
    pl_pool_run(pool, compile_worker, &gated);
    pl_pool_destroy(pool);
    for (size_t i = 0; i < gated.count; i++) {
        if (gated.status[i] != PL_OK) fail_msg("%s for %s: %s", gated.specs[i].entry, target, gated.errs[i].text);
    }
    print_message("# %s, %s: %zu kernels compiled, %zu more variants of them left out\n", version, target, gated.count,
                  gated.left_out);
}

static void sm_80(void **state) {
    (void)state;
    gate(PL_DEVICE_CUDA, "sm_80");
}
static void sm_90(void **state) {
    (void)state;
    gate(PL_DEVICE_CUDA, "sm_90a");
}
static void sm_100(void **state) {
    (void)state;
    gate(PL_DEVICE_CUDA, "sm_100");
}
static void gfx90a(void **state) {
    (void)state;
    gate(PL_DEVICE_ROCM, "gfx90a");
}
static void gfx1030(void **state) {
    (void)state;
    gate(PL_DEVICE_ROCM, "gfx1030");
}

int main(void) {
    struct CMUnitTest tests[] = {cmocka_unit_test(sm_80), cmocka_unit_test(sm_90), cmocka_unit_test(sm_100),
                                 cmocka_unit_test(gfx90a), cmocka_unit_test(gfx1030)};
    return TEST_RUN("compile gates", tests);
}
