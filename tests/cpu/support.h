/* support - what the tests of the CPU kernels share: random data, guarded buffers, random weights of every type. */
#ifndef PL_TESTS_CPU_SUPPORT_H
#define PL_TESTS_CPU_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "ref/ref.h"
#include "tensor/convert.h"
#include "tensor/iq.h"
#include "tests/cpu/tolerance.h"

/* splitmix64: the same data on every machine. */
static inline uint64_t rng_next(uint64_t *s) {
    uint64_t z = (*s += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
static inline float rng_uniform(uint64_t *s) { return (float)(rng_next(s) >> 40) * 0x1p-24f * 2.0f - 1.0f; }
/* Roughly normal, with the odd large value that real activations have. */
static inline float rng_value(uint64_t *s) {
    float v = rng_uniform(s) + rng_uniform(s) + rng_uniform(s);
    return rng_next(s) % 97 == 0 ? 8.0f * v : v;
}
static inline void rng_fill(uint64_t *s, float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = rng_value(s);
}

/* Where the CPU has no tiles, the AMX table runs with its instructions in C, so that it is tested everywhere; and always
 * where the vectors are emulated too (emulated/). */
#if defined(PL_AVX512_EMULATED)
enum { TEST_EMULATED = 1 };
#else
enum { TEST_EMULATED = 0 };
#endif
#ifndef PL_TEST_REAL_ONLY
__attribute__((constructor)) static void emulate_amx(void) {
    if (TEST_EMULATED || !pl_cpu_isa_available(PL_ISA_AMX)) pl_cpu_emulate_amx(true);
}
#endif

/* A matrix of floats between two guards, poisoned: a write outside and an element left out are both seen. */
enum { GUARD = 64 };
#define POISON 12345.678f
struct guarded {
    float *base, *x;
    size_t n;
};
static inline struct guarded guarded_make(size_t n) {
    struct guarded g = {malloc((n + 2 * GUARD) * sizeof(float)), NULL, n};
    assert_non_null(g.base);
    g.x = g.base + GUARD;
    for (size_t i = 0; i < n + 2 * GUARD; i++) g.base[i] = POISON;
    return g;
}
static inline void guarded_check(const struct guarded *g) {
    for (size_t i = 0; i < GUARD; i++) {
        assert_true(g->base[i] == POISON);
        assert_true(g->x[g->n + i] == POISON);
    }
}
static inline void guarded_free(struct guarded *g) {
    guarded_check(g);
    free(g->base);
}

static inline struct pl_cpu *cpu_make(enum pl_isa isa, int threads) {
    struct pl_cpu *c = NULL;
    struct pl_err err = {0};
    if (pl_cpu_create(isa, threads, &c, &err) != PL_OK) fail_msg("%s", err.text);
    return c;
}

/* Runs body once for each instruction set of this machine, from the plainest on. Under an emulator (test_aarch64.py,
 * test_emulated.py) from the first that it is there for, and over fewer sizes. */
#if defined(PL_AVX512_EMULATED)
#define PL_TEST_FIRST_ISA PL_ISA_AVX_VNNI
#elif defined(PL_TEST_EMULATED)
#define PL_TEST_FIRST_ISA (pl_cpu_best_isa() < PL_ISA_NEON ? PL_ISA_SCALAR : PL_ISA_NEON)
#else
#define PL_TEST_FIRST_ISA PL_ISA_SCALAR
#endif
#ifdef PL_TEST_EMULATED
enum { PL_TEST_ROW_STEP = 3, PL_TEST_SHARE = 4 };
#else
enum { PL_TEST_ROW_STEP = 1, PL_TEST_SHARE = 1 }; /* between row counts, where every one is tried; 1/share of the width */
#endif
#define FOR_EACH_ISA(isa)                                                \
    for (enum pl_isa isa = PL_TEST_FIRST_ISA; isa < PL_ISA_COUNT; isa++) \
        if (pl_cpu_isa_available(isa))

static inline void check_close(const char *what, float got, double want, double rel, double abs_bound) {
    if (!(fabs((double)got - want) <= rel * fabs(want) + abs_bound))
        fail_msg("%s: got %.9g, expected %.9g", what, (double)got, want);
}

/* --- random weights --- */
struct weight_case {
    enum pl_dtype dtype;
    uint32_t bits, group; /* PL_MLX */
    enum pl_dtype scale_dtype;
};
static const struct weight_case weight_cases[] = {
    {PL_F32, 0, 0, 0},        {PL_F16, 0, 0, 0},        {PL_BF16, 0, 0, 0},       {PL_Q4_0, 0, 0, 0},
    {PL_Q4_1, 0, 0, 0},       {PL_Q5_0, 0, 0, 0},       {PL_Q5_1, 0, 0, 0},       {PL_Q8_0, 0, 0, 0},
    {PL_Q2_K, 0, 0, 0},       {PL_Q3_K, 0, 0, 0},       {PL_Q4_K, 0, 0, 0},       {PL_Q5_K, 0, 0, 0},
    {PL_Q6_K, 0, 0, 0},       {PL_IQ4_NL, 0, 0, 0},     {PL_IQ4_XS, 0, 0, 0},     {PL_MXFP4, 0, 0, 0},
    {PL_TQ1_0, 0, 0, 0},      {PL_TQ2_0, 0, 0, 0},      {PL_MLX, 2, 64, PL_F16},  {PL_MLX, 3, 64, PL_BF16},
    {PL_MLX, 4, 32, PL_F16},  {PL_MLX, 4, 64, PL_BF16}, {PL_MLX, 4, 128, PL_F32}, {PL_MLX, 6, 64, PL_F16},
    {PL_MLX, 8, 32, PL_BF16}, {PL_MLX, 8, 128, PL_F16}, {PL_MLX, 2, 32, PL_F32},  {PL_MLX, 6, 128, PL_BF16},
    {PL_MLX, 5, 64, PL_F16},  {PL_MLX, 5, 32, PL_BF16}, {PL_IQ1_S, 0, 0, 0},      {PL_IQ1_M, 0, 0, 0},
    {PL_IQ2_XXS, 0, 0, 0},    {PL_IQ2_XS, 0, 0, 0},     {PL_IQ2_S, 0, 0, 0},      {PL_IQ3_XXS, 0, 0, 0},
    {PL_IQ3_S, 0, 0, 0},
};
enum { WEIGHT_CASES = sizeof weight_cases / sizeof *weight_cases };

/* Columns must be a multiple of this. */
static inline size_t case_grain(const struct weight_case *w) {
    return w->dtype == PL_MLX ? w->group : pl_dtype_info(w->dtype)->block_elems;
}

static inline void put16(unsigned char *p, uint16_t v) { memcpy(p, &v, 2); }
static inline uint16_t small_f16(uint64_t *s) { return pl_f32_to_f16(rng_uniform(s) * 0.05f); }

/* Where the f16 scales of a block lie; -1: none. */
static inline void block_scale_offsets(enum pl_dtype t, int *a, int *b) {
    *b = -1;
    switch (t) {
    case PL_Q4_1:
    case PL_Q5_1:
    case PL_Q4_K:
    case PL_Q5_K: *a = 0, *b = 2; break;
    case PL_Q2_K: *a = 80, *b = 82; break;
    case PL_Q3_K: *a = 108; break;
    case PL_Q6_K: *a = 208; break;
    case PL_TQ1_0: *a = 52; break;
    case PL_TQ2_0: *a = 64; break;
    default: *a = 0; break;
    }
}

static inline void fill_scales(enum pl_dtype t, uint64_t *s, void *dst, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float v = rng_uniform(s) * 0.05f;
        uint16_t h = t == PL_F16 ? pl_f32_to_f16(v) : pl_f32_to_bf16(v);
        if (t == PL_F32)
            memcpy((unsigned char *)dst + 4 * i, &v, 4);
        else
            memcpy((unsigned char *)dst + 2 * i, &h, 2);
    }
}

/* A tensor of random contents; its arrays are freed by tensor_free. */
static inline struct pl_tensor tensor_random(const struct weight_case *w, size_t rows, size_t cols, uint64_t seed) {
    struct pl_tensor t = {.name = "w", .dtype = w->dtype, .ndim = 2, .shape = {rows, cols, 1, 1}};
    uint64_t s = seed;
    const struct pl_dtype_info *info = pl_dtype_info(w->dtype);
    t.bytes = w->dtype == PL_MLX ? rows * (cols * w->bits / 32) * 4 : rows * cols / info->block_elems * info->block_bytes;
    unsigned char *d = malloc((size_t)t.bytes + 1);
    assert_non_null(d);
    for (size_t i = 0; i < t.bytes; i++) d[i] = (unsigned char)rng_next(&s);
    t.data = d;
    if (w->dtype == PL_F32 || w->dtype == PL_F16 || w->dtype == PL_BF16) {
        fill_scales(w->dtype, &s, d, rows * cols);
    } else if (w->dtype == PL_MLX) {
        size_t n = rows * (cols / w->group), each = w->scale_dtype == PL_F32 ? 4 : 2;
        void *sc = malloc(n * each), *bi = malloc(n * each);
        fill_scales(w->scale_dtype, &s, sc, n);
        fill_scales(w->scale_dtype, &s, bi, n);
        t.scales = sc, t.biases = bi, t.scale_dtype = w->scale_dtype, t.bits = w->bits, t.group = w->group;
    } else {
        int a, b;
        block_scale_offsets(w->dtype, &a, &b);
        for (unsigned char *p = d; p < d + t.bytes; p += info->block_bytes) {
            if (w->dtype == PL_MXFP4)
                p[0] = (unsigned char)(118 + rng_next(&s) % 8);
            else if (w->dtype == PL_IQ1_M)
                pl_iq1_m_put_d(p, small_f16(&s));
            else
                put16(p + a, small_f16(&s));
            if (b >= 0) put16(p + b, small_f16(&s));
        }
    }
    return t;
}
static inline void tensor_free(struct pl_tensor *t) {
    free((void *)(uintptr_t)t->data);
    free((void *)(uintptr_t)t->scales);
    free((void *)(uintptr_t)t->biases);
}

/* Packed kernels use scale * q + bias without MLX's rounding of each weight to 16 bits: the same scales in f32. */
static inline struct pl_tensor without_rounding(const struct pl_tensor *t) {
    struct pl_tensor r = *t;
    if (t->dtype != PL_MLX) return r;
    size_t n = (size_t)(pl_tensor_rows(t) * (pl_tensor_cols(t) / t->group));
    float *s = malloc(n * sizeof *s), *b = malloc(n * sizeof *b);
    for (size_t i = 0; i < n; i++) {
        const uint16_t *hs = t->scales, *hb = t->biases;
        bool f16 = t->scale_dtype == PL_F16, f32 = t->scale_dtype == PL_F32;
        s[i] = f32 ? ((const float *)t->scales)[i] : f16 ? pl_f16_to_f32(hs[i]) : pl_bf16_to_f32(hs[i]);
        b[i] = f32 ? ((const float *)t->biases)[i] : f16 ? pl_f16_to_f32(hb[i]) : pl_bf16_to_f32(hb[i]);
    }
    r.scales = s, r.biases = b, r.scale_dtype = PL_F32;
    return r;
}

#endif
