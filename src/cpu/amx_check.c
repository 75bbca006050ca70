/* The product of every packed format, tried before it is trusted. */
#if defined(__x86_64__)
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "cpu/amx.h"
#include "cpu/avx512_chunk.h"
#include "cpu/avx512_terms.h"
#include "cpu/wide.h"
#include "tensor/convert.h"
#include "tensor/iq.h"
#include "tensor/quant.h"

enum {
    IN = 512,
    ROWS = 24,
    GROUPS = 2,
    W_ROWS = 40,
    W_TILES = 2,
    ROW_MAX = IN / 32 * 36,
    TILE_MAX = IN / 32 * (512 + 128) + 256
};

/* Offsets of the f16 fields of a block of the file; e8m0: the scale is an exponent. */
static const struct check_format {
    enum pl_dtype dtype;
    uint32_t bits;
    int16_t f16[2];
} check_formats[] = {
    {PL_Q4_0, 0, {0, -1}},    {PL_Q4_1, 0, {0, 2}},     {PL_Q5_0, 0, {0, -1}},   {PL_Q5_1, 0, {0, 2}},
    {PL_Q8_0, 0, {0, -1}},    {PL_Q2_K, 0, {80, 82}},   {PL_Q3_K, 0, {108, -1}}, {PL_Q4_K, 0, {0, 2}},
    {PL_Q5_K, 0, {0, 2}},     {PL_Q6_K, 0, {208, -1}},  {PL_IQ4_NL, 0, {0, -1}}, {PL_IQ4_XS, 0, {0, -1}},
    {PL_MXFP4, 0, {-1, -1}},  {PL_TQ1_0, 0, {52, -1}},  {PL_TQ2_0, 0, {64, -1}}, {PL_IQ1_S, 0, {0, -1}},
    {PL_IQ1_M, 0, {-1, -1}},  {PL_IQ2_XXS, 0, {0, -1}}, {PL_IQ2_XS, 0, {0, -1}}, {PL_IQ2_S, 0, {0, -1}},
    {PL_IQ3_XXS, 0, {0, -1}}, {PL_IQ3_S, 0, {0, -1}},   {PL_MLX, 2, {-1, -1}},   {PL_MLX, 3, {-1, -1}},
    {PL_MLX, 4, {-1, -1}},    {PL_MLX, 5, {-1, -1}},    {PL_MLX, 6, {-1, -1}},   {PL_MLX, 8, {-1, -1}},
};

/* Everything of one comparison; static, for it runs once and may not allocate. */
static struct check {
    uint32_t seed;
    _Alignas(64) unsigned char file[16 * 1024], tile[W_TILES * TILE_MAX],
        acts[(W_ROWS + 15) / 16 * IN / 32 * 2 * WIDE_BLOCK];
    float mlx[2][TILE_ROWS * IN / 64], x[W_ROWS * IN], row[IN], y[W_ROWS * W_TILES * TILE_ROWS], same[ROWS * TILE_ROWS];
    struct wide_scratch wide;
} check;

static uint32_t draw(void) {
    check.seed = check.seed * 1664525u + 1013904223u;
    return check.seed >> 8;
}
static float draw_float(void) { return (float)(draw() & 0xFFFF) / 32768.0f - 1.0f; }

static struct pl_tensor make_tensor(const struct check_format *f) {
    struct pl_tensor t = {.name = "check", .dtype = f->dtype, .ndim = 2, .shape = {TILE_ROWS, IN, 1, 1}, .data = check.file};
    uint64_t row = (uint64_t)IN * f->bits / 8;
    if (f->dtype != PL_MLX) PL_ASSERT(pl_dtype_row_bytes(f->dtype, IN, &row));
    PL_ASSERT(row <= ROW_MAX);
    t.bytes = row * TILE_ROWS;
    for (size_t i = 0; i < t.bytes; i++) check.file[i] = (unsigned char)draw();
    if (f->dtype == PL_MLX) {
        for (size_t i = 0; i < 2 * PL_COUNT_OF(check.mlx[0]); i++) check.mlx[i % 2][i / 2] = draw_float();
        t.scales = check.mlx[0], t.biases = check.mlx[1], t.scale_dtype = PL_F32, t.bits = f->bits, t.group = 64;
        return t;
    }
    const size_t block = pl_dtype_info(f->dtype)->block_bytes;
    for (size_t at = 0; at < t.bytes; at += block) {
        if (f->dtype == PL_MXFP4) check.file[at] = (unsigned char)(124 + draw() % 4);
        for (int k = 0; k < 2; k++) {
            uint16_t scale = (uint16_t)(0x2400u | (draw() & 0x83FFu)); /* 1/64 to 1/32, either sign */
            if (f->f16[k] >= 0) memcpy(check.file + at + f->f16[k], &scale, 2);
            if (f->dtype == PL_IQ1_M) pl_iq1_m_put_d(check.file + at, scale);
        }
    }
    return t;
}

/* Element (r, o) as the plain kernels see it: weights widened, activations as their 8 bits say. */
static bool is_near(const struct pl_tensor *t, const struct cpu_act_group *g, size_t r, size_t o, double *want) {
    double sum = 0, size = 0;
    PL_ASSERT(pl_dequant_row_product(t, o, check.row) == PL_OK);
    for (size_t i = 0; i < IN; i++) {
        const unsigned char *block = g->data + i / 32 * g->rows * ACT_ROW_BYTES;
        float scale;
        memcpy(&scale, block + 32 * g->rows + 4 * r, 4);
        double v = (double)check.row[i] * (double)scale * ((const int8_t *)block)[32 * r + i % 32];
        sum += v, size += fabs(v);
    }
    *want = sum;
    return fabs((double)check.y[(g->first + r) * TILE_ROWS + o] - sum) <= 1e-5 * size;
}

/* A weight as wide products round it: of two equally near the one further from zero. */
static float wide_weight(float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    bits = (bits + 0x8000u) & 0xFFFF0000u;
    memcpy(&v, &bits, 4);
    return v;
}

/* The wide product of w's tile, twice beside itself, and 40 rows. */
static bool check_wide(const struct cpu_amx_kernels *k, const struct pl_cpu_weight *w, char *why, size_t size) {
    enum { Y_STRIDE = W_TILES * TILE_ROWS };
    if (k->wide_tiles == NULL) return true;
    struct pl_cpu_weight twice = *w;
    twice.out = w->kind == KIND_Q8 ? Y_STRIDE : w->out;
    if (w->kind == KIND_Q8) memcpy(check.tile + w->layout.bytes, check.tile, w->layout.bytes);
    const struct wide_rows rows = {W_ROWS, (w->in + 31) / 32, cpu_wide_terms(w), check.acts};
    for (size_t r = 0; r < W_ROWS; r += 16) k->wide_group(check.x + r * w->in, w->in, w->in, &rows, r / 16);
    memset(check.y, 0xFF, sizeof check.y);
    k->wide_tiles(&twice, 0, w->kind == KIND_Q8 ? W_TILES : 1, &rows, check.y, Y_STRIDE, NULL, false, &check.wide);
    for (size_t o = 0; o < twice.out; o++) {
        PL_ASSERT(pl_dequant_row_product(&w->t, o % TILE_ROWS, check.row) == PL_OK);
        for (size_t i = 0; i < w->in && w->kind == KIND_Q8; i++) check.row[i] = wide_weight(check.row[i]);
        for (size_t r = 0; r < W_ROWS; r++) {
            double sum = 0, sizes = 0, got = (double)check.y[r * Y_STRIDE + o];
            for (size_t i = 0; i < w->in; i++) {
                const float x = check.x[r * w->in + i], rounded = pl_bf16_to_f32(pl_f32_to_bf16(x));
                double v = (double)check.row[i] * (double)(w->kind == KIND_Q8 ? rounded : x);
                sum += v, sizes += fabs(v);
            }
            if (fabs(got - sum) <= 5e-5 * sizes) continue; /* a weight may round to either side */
            snprintf(why, size, "its wide product of %s with tiles is wrong: row %zu, output %zu is %.9g, expected %.9g",
                     pl_dtype_name(w->t.dtype), r, o, got, sum);
            return false;
        }
    }
    return true;
}

static bool check_format(const struct cpu_amx_kernels *k, const struct check_format *f, char *why, size_t size) {
    struct pl_tensor t = make_tensor(f);
    struct pl_cpu_weight w = {.t = t, .out = TILE_ROWS, .in = IN, .kind = KIND_Q8, .format = cpu_tile_format(&t)};
    w.layout = cpu_tile_layout(w.format, &t);
    w.tiles = check.tile;
    PL_ASSERT(w.layout.bytes <= TILE_MAX);
    cpu_tile_pack(w.format, &w.layout, &t, 0, check.tile);
    for (size_t i = 0; i < PL_COUNT_OF(check.x); i++) check.x[i] = draw_float();
    if (!check_wide(k, &w, why, size)) return false;
    const struct cpu_act_group g[GROUPS] = {{0, 16, check.acts}, {16, 8, check.acts + 16 * IN / 32 * ACT_ROW_BYTES}};
    for (int i = 0; i < GROUPS; i++) {
        cpu_table_avx512.quantize(check.x + g[i].first * IN, IN, g[i].rows, IN, (unsigned char *)g[i].data);
        avx512_q8_tile(&w, 0, &g[i], check.same + g[i].first * TILE_ROWS, TILE_ROWS, NULL, false);
    }
    memset(check.y, 0xFF, sizeof check.y);
    k->groups(&w, 0, g, GROUPS, check.y, TILE_ROWS, NULL, false);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t o = 0; o < TILE_ROWS; o++) {
            double want, got = (double)check.y[r * TILE_ROWS + o];
            bool near = is_near(&t, &g[r / 16], r % 16, o, &want);
            if (near && memcmp(&check.y[r * TILE_ROWS + o], &check.same[r * TILE_ROWS + o], sizeof(float)) == 0) continue;
            snprintf(why, size, "its product of %s with tiles is wrong: row %zu, output %zu is %.9g, expected %.9g",
                     pl_dtype_name(f->dtype), r, o, got, near ? (double)check.same[r * TILE_ROWS + o] : want);
            return false;
        }
    return true;
}

/* A product of float weights: 13 outputs, an odd end of inputs, groups of 16 and of 5 rows. */
static bool check_float(const struct cpu_amx_kernels *k, enum pl_dtype dtype, char *why, size_t size) {
    enum { OUT = 13, ODD = 301, FLOAT_ROWS = 21 };
    struct pl_tensor t = {.name = "check", .dtype = dtype, .ndim = 2, .shape = {OUT, ODD, 1, 1}, .data = check.file};
    const size_t each = dtype == PL_F32 ? 4 : 2;
    _Static_assert(sizeof check.file >= OUT * ODD * 4, "the weights fit");
    _Static_assert(sizeof check.acts >= FLOAT_ROWS * 320 * 6 && sizeof check.x / sizeof *check.x >= FLOAT_ROWS * ODD,
                   "so do rows");
    for (size_t i = 0; i < (size_t)OUT * ODD; i++) {
        float v = draw_float();
        uint16_t h = dtype == PL_F16 ? pl_f32_to_f16(v) : pl_f32_to_bf16(v);
        memcpy(check.file + i * each, dtype == PL_F32 ? (const void *)&v : &h, each);
    }
    for (size_t i = 0; i < (size_t)W_ROWS * ODD; i++) check.x[i] = draw_float();
    const struct pl_cpu_weight w = {.t = t, .out = OUT, .in = ODD, .kind = KIND_FLOAT};
    if (dtype != PL_F32 && !check_wide(k, &w, why, size)) return false;
    const struct cpu_act_group g[GROUPS] = {{0, 16, check.acts}, {16, 5, check.acts + 16 * 320 * 6}};
    for (int i = 0; i < GROUPS; i++)
        avx512_float_terms(check.x + g[i].first * ODD, ODD, g[i].rows, ODD, (unsigned char *)g[i].data);
    memset(check.y, 0xFF, sizeof check.y);
    k->float_groups(&w, 0, g, GROUPS, check.y, TILE_ROWS, NULL, false);
    for (size_t o = 0; o < OUT; o++) {
        PL_ASSERT(pl_dequant_row_product(&t, o, check.row) == PL_OK);
        for (size_t r = 0; r < FLOAT_ROWS; r++) {
            double sum = 0, sizes = 0, got = (double)check.y[r * TILE_ROWS + o];
            for (size_t i = 0; i < ODD; i++) {
                double v = (double)check.row[i] * (double)check.x[r * ODD + i];
                sum += v, sizes += fabs(v);
            }
            if (fabs(got - sum) <= 2e-6 * sizes) continue;
            snprintf(why, size, "its product of %s with tiles is wrong: row %zu, output %zu is %.9g, expected %.9g",
                     pl_dtype_name(dtype), r, o, got, sum);
            return false;
        }
    }
    return true;
}

bool cpu_amx_check(const struct cpu_amx_kernels *k, char *why, size_t size) {
    static const enum pl_dtype floats[] = {PL_F32, PL_F16, PL_BF16};
    check.seed = 1;
    for (size_t i = 0; i < PL_COUNT_OF(floats); i++)
        if (!check_float(k, floats[i], why, size)) return false;
    for (size_t i = 0; i < PL_COUNT_OF(check_formats); i++)
        if (!check_format(k, &check_formats[i], why, size)) return false;
    return true;
}
#else
typedef int cpu_amx_check_has_nothing_to_do_here;
#endif
