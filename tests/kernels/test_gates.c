/* Compile gates: every kernel for NVIDIA and AMD targets, on machines with the compilers and without the devices.
 *
 * test-variants: release (the kernels are compiled by the OpenCL driver, which no sanitizer sees; the host code they go
 * through is sanitized in tests/device, tests/jit and tests/model)
 * test-timeout: 600 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "device/device.h"
#include "jit/jit.h"
#include "ops/launch.h"
#include "ops/paged.h"

static struct pl_err err;

struct gate {
    enum pl_device_kind kind;
    const char *target;
    bool every; /* all weight types and tiles, or a sample */
    int compiled;
};

static void compile(struct gate *g, const struct pl_jit_spec *s) {
    struct pl_buf text = {0}, image = {0}, log = {0};
    assert_int_equal(pl_jit_source(s, &text, &err), PL_OK);
    struct pl_device_source src = {.name = s->file, .text = pl_buf_cstr(&text)};
    pl_jit_compile_options(g->kind, &src);
    if (pl_device_compile(NULL, g->kind, g->target, &src, &image, &log, &err) != PL_OK) fail_msg("%s", err.text);
    assert_true(image.len > 100);
    g->compiled++;
    pl_buf_deinit(&text);
    pl_buf_deinit(&image);
    pl_buf_deinit(&log);
}

static struct pl_jit_spec spec(const char *file, const char *entry, uint32_t group) {
    struct pl_jit_spec s = {.file = file, .entry = entry};
    pl_jit_set_u32(&s, "GROUP", group);
    return s;
}

static void weights(struct gate *g) {
    for (int t = 0; t < PL_I8; t++) {
        struct pl_device_weight w = {.dtype = (enum pl_dtype)t, .bits = 3, .group = 64, .scale_dtype = PL_BF16};
        for (uint32_t tile = 0; tile < PL_TILE_COUNT; tile += 3) {
            if (!g->every && (tile > 0 || (t != PL_BF16 && t != PL_Q6_K))) continue;
            struct pl_jit_spec s = spec("linear.k.c", "pk_linear", 128);
            pl_jit_set_u32(&s, "TEAM", 32);
            pl_jit_set_u32(&s, "ROWS", 1u << tile);
            pl_jit_set_weight(&s, &w);
            compile(g, &s);
        }
        if (!g->every && t != PL_F16) continue;
        struct pl_jit_spec s = spec("embed.k.c", "pk_embed", 128);
        pl_jit_set_weight(&s, &w);
        compile(g, &s);
    }
}

static void heads(struct gate *g) {
    static const enum pl_dtype types[] = {PL_F32, PL_F16, PL_BF16};
    for (size_t i = 0; i < PL_COUNT_OF(types); i++) {
        struct pl_jit_spec s = spec("rope.k.c", "pk_rope_append", 128), a = spec("attention.k.c", "pk_attention", 128);
        assert_int_equal(pl_jit_set_kv(&s, types[i], 64 << i, 32), PL_OK);
        assert_int_equal(pl_jit_set_kv(&a, types[i], 64 << i, 32), PL_OK);
        pl_jit_set(&s, "Q_NORM", "1");
        pl_jit_set(&s, "K_NORM", "1");
        pl_jit_set(&s, i == 0 ? "ROPE_PAIRS" : "ROPE_HALVES", "1");
        compile(g, &s);
        compile(g, &a);
    }
}

static void paged(struct gate *g) {
    static const struct pl_paged_shape shapes[] = {
        {PL_F16, 128, 0, 0, 32, 32, 8}, {PL_BF16, 64, 0, 0, 16, 16, 1}, {PL_F16, 576, 512, 576, 64, 128, 1}};
    for (size_t i = 0; i < PL_COUNT_OF(shapes); i++) {
        struct pl_paged p;
        pl_paged_init(&p, &shapes[i]);
        for (int k = PL_PAGED_V1; k <= PL_PAGED_DENSE; k++) {
            struct pl_jit_spec s;
            pl_paged_spec(NULL, &p, (enum pl_paged_kernel)k, &s);
            compile(g, &s);
        }
    }
}

static void only_cuda(struct gate *g) {
    static const enum pl_dtype types[] = {PL_F32, PL_F16, PL_BF16, PL_Q4_0, PL_Q4_1, PL_Q5_0, PL_Q8_0, PL_Q4_K, PL_Q6_K};
    for (size_t i = 0; i < PL_COUNT_OF(types); i++) {
        for (uint32_t rows = 1; rows <= 8; rows += 7) {
            if (!g->every && rows > 1) continue;
            struct pl_device_weight w = {.dtype = types[i]};
            struct pl_jit_spec s = spec("cuda/gemv.k.c", "pk_gemv", 256);
            pl_jit_set_u32(&s, "PER_WARP", 2);
            pl_jit_set_u32(&s, "ROWS", rows);
            pl_jit_set_weight(&s, &w);
            compile(g, &s);
        }
    }
    struct pl_jit_spec pack = spec("cuda/pack.k.c", "pk_pack", 256);
    compile(g, &pack);
    static const enum pl_dtype packed[] = {PL_F16, PL_Q4_0, PL_Q4_K, PL_Q6_K, PL_IQ4_XS, PL_MXFP4};
    for (size_t i = 0; i < PL_COUNT_OF(packed); i++) {
        struct pl_device_weight w = {.dtype = packed[i]};
        struct pl_jit_spec s = spec("cuda/pack.k.c", "pk_unpack", 256);
        pl_jit_set(&s, "UNPACK", "1");
        pl_jit_set_weight(&s, &w);
        compile(g, &s);
    }
    for (uint32_t d = 64; d <= 128; d *= 2) {
        struct pl_jit_spec s = spec("cuda/attention_tiles.k.c", "pk_attention_tiles", 128);
        assert_int_equal(pl_jit_set_kv(&s, d == 128 ? PL_F16 : PL_BF16, d, 32), PL_OK);
        compile(g, &s);
    }
    for (uint32_t d = 64; d <= 256; d *= 2) {
        struct pl_jit_spec s = spec("cuda/attention_split.k.c", "pk_attention_split", 128);
        pl_jit_set_u32(&s, "HEADS", d == 64 ? 8 : 4);
        assert_int_equal(pl_jit_set_kv(&s, d == 128 ? PL_F16 : PL_BF16, d, 32), PL_OK);
        compile(g, &s);
    }
}

static void gate(enum pl_device_kind kind, const char *target, bool every) {
    char version[64];
    if (pl_device_compiler(NULL, kind, version, sizeof version, &err) != PL_OK) {
        print_message("# %s: no compiler here: %s\n", target, err.text);
        skip();
    }
    struct gate g = {kind, target, every, 0};
    struct pl_jit_spec n = spec("norm.k.c", "pk_norm", 256), e = spec("elementwise.k.c", "pk_argmax", 256);
    compile(&g, &n);
    compile(&g, &e);
    pl_jit_set(&n, "HAS_ADD", "1");
    pl_jit_set(&e, "ACT_GELU_TANH", "1");
    compile(&g, &n);
    compile(&g, &e);
    weights(&g);
    heads(&g);
    paged(&g);
    if (kind == PL_DEVICE_CUDA) only_cuda(&g);
    print_message("# %s, %s: %d kernels compiled\n", version, target, g.compiled);
}

static void sm_80(void **state) {
    (void)state;
    gate(PL_DEVICE_CUDA, "sm_80", false);
}
static void sm_90(void **state) {
    (void)state;
    gate(PL_DEVICE_CUDA, "sm_90", true);
}
static void sm_100(void **state) {
    (void)state;
    gate(PL_DEVICE_CUDA, "sm_100", false);
}
static void gfx90a(void **state) {
    (void)state;
    gate(PL_DEVICE_ROCM, "gfx90a", false);
}
static void gfx1030(void **state) {
    (void)state;
    gate(PL_DEVICE_ROCM, "gfx1030", true);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sm_80), cmocka_unit_test(sm_90), cmocka_unit_test(sm_100),
                                       cmocka_unit_test(gfx90a), cmocka_unit_test(gfx1030)};
    return cmocka_run_group_tests_name("compile gates", tests, NULL, NULL);
}
