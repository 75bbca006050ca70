/* Every format against golden values of independent implementations (tools/make_dequant_golden.py), bit for bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tensor/convert.h"
#include "tensor/iq.h"
#include "tensor/quant.h"

#define GOLDEN "tests/golden/dequant/"

static uint8_t *read_golden(const char *name, size_t *len) {
    char path[256];
    snprintf(path, sizeof path, GOLDEN "%s.bin", name);
    FILE *f = fopen(path, "rb");
    if (f == NULL) fail_msg("%s: run from the repository root", path);
    fseek(f, 0, SEEK_END);
    *len = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = malloc(*len);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *len, f), *len);
    fclose(f);
    return data;
}

static uint32_t u32_at(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static void expect_bits(const char *what, const float *got, const uint8_t *want, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        uint32_t a, b = u32_at(want + 4 * i);
        memcpy(&a, &got[i], 4);
        if (a != b) fail_msg("%s: element %llu is %08x, expected %08x", what, (unsigned long long)i, a, b);
    }
}

static void every_gguf_type_is_bit_exact(void **state) {
    (void)state;
    int types = 0;
    for (int t = 0; t < PL_DTYPE_COUNT; t++) {
        const struct pl_dtype_info *d = pl_dtype_info((enum pl_dtype)t);
        if (t == PL_MLX || t == PL_TERNARY || t == PL_I2_S || (d->block_elems == 1 && t > PL_BF16)) continue;
        size_t len;
        uint8_t *g = read_golden(d->name, &len);
        uint64_t blocks = u32_at(g), elems = blocks * d->block_elems;
        assert_int_equal(len, 4 + blocks * d->block_bytes + elems * 4);
        float *out = malloc(elems * sizeof *out);
        /* an odd address: packed bytes may have any alignment */
        uint8_t *packed = malloc(blocks * d->block_bytes + 1);
        memcpy(packed + 1, g + 4, blocks * d->block_bytes);
        assert_int_equal(pl_dequant_span((enum pl_dtype)t, packed + 1, elems, out), PL_OK);
        expect_bits(d->name, out, g + 4 + blocks * d->block_bytes, elems);
        types++;
        free(packed);
        free(out);
        free(g);
    }
    assert_int_equal(types, 25);
}

static void rows_are_spans(void **state) {
    (void)state;
    size_t len;
    uint8_t *g = read_golden("q4_k", &len);
    uint64_t blocks = u32_at(g);
    struct pl_tensor t = {
        .name = "t", .dtype = PL_Q4_K, .ndim = 3, .shape = {blocks / 2, 1, 512, 1}, .data = g + 4, .bytes = blocks * 144};
    float out[512];
    for (uint64_t r = 0; r < blocks / 2; r++) {
        assert_int_equal(pl_dequant_row(&t, r, out), PL_OK);
        expect_bits("row", out, g + 4 + blocks * 144 + r * 2048, 512);
    }
    assert_int_equal(pl_dequant_row(&t, blocks / 2, out), PL_INVALID);
    t.shape[2] = 500;
    assert_int_equal(pl_dequant_row(&t, 0, out), PL_INVALID);
    t.dtype = PL_I32;
    assert_int_equal(pl_dequant_row(&t, 0, out), PL_UNSUPPORTED);
    assert_int_equal(pl_dequant_span(PL_Q4_0, g, 31, out), PL_INVALID);
    assert_int_equal(pl_dequant_span((enum pl_dtype)999, g, 32, out), PL_INVALID);
    free(g);
}

static float scale_of(const struct pl_tensor *t, uint64_t row, uint64_t col) {
    uint64_t at = row * (t->shape[1] / t->group) + col / t->group;
    float v = 0;
    size_t size = pl_dtype_info(t->scale_dtype)->block_bytes;
    assert_int_equal(pl_dequant_span(t->scale_dtype, (const uint8_t *)t->scales + at * size, 1, &v), PL_OK);
    return v;
}

static void mlx_affine_is_bit_exact(void **state) {
    (void)state;
    static const enum pl_dtype scale_types[3] = {PL_F16, PL_BF16, PL_F32};
    size_t len;
    uint8_t *g = read_golden("mlx", &len), *p = g + 4;
    uint32_t cases = u32_at(g);
    uint64_t differ = 0;
    assert_int_equal(cases, 54);
    for (uint32_t c = 0; c < cases; c++) {
        struct pl_tensor t = {.name = "m", .dtype = PL_MLX, .ndim = 2, .shape = {0, 0, 1, 1}};
        t.bits = u32_at(p);
        t.group = u32_at(p + 4);
        t.scale_dtype = scale_types[u32_at(p + 8)];
        t.shape[0] = u32_at(p + 12);
        t.shape[1] = u32_at(p + 16);
        t.data = p += 20;
        t.bytes = t.shape[0] * t.shape[1] * t.bits / 8;
        uint64_t scale_bytes = t.shape[0] * t.shape[1] / t.group * pl_dtype_info(t.scale_dtype)->block_bytes;
        t.scales = p += t.bytes;
        t.biases = p += scale_bytes;
        p += scale_bytes;
        char what[64];
        snprintf(what, sizeof what, "mlx %u bits, group %u, %s", t.bits, t.group, pl_dtype_name(t.scale_dtype));
        float out[256];
        assert_true(t.shape[1] <= 256);
        for (uint64_t r = 0; r < t.shape[0]; r++, p += 4 * t.shape[1]) {
            assert_int_equal(pl_dequant_row(&t, r, out), PL_OK);
            expect_bits(what, out, p, t.shape[1]);
            float plain[256]; /* for products: the same when the scales are f32, at most two roundings away otherwise */
            assert_int_equal(pl_dequant_row_product(&t, r, plain), PL_OK);
            if (t.scale_dtype == PL_F32) expect_bits(what, plain, p, t.shape[1]);
            float unit = t.scale_dtype == PL_BF16 ? 0x1p-8f : 0x1p-11f;
            for (uint64_t i = 0; i < t.shape[1]; i++) differ += out[i] != plain[i];
            for (uint64_t i = 0; i < t.shape[1]; i++) {
                float largest = fabsf(plain[i]) + 512.0f * fabsf(scale_of(&t, r, i));
                assert_true(fabsf(out[i] - plain[i]) <= unit * largest);
            }
        }
        assert_int_equal(pl_tensor_check_scales(&t, NULL), PL_OK);
    }
    assert_int_equal(p - g, len);
    assert_true(differ > 1000); /* the two really are different functions */
    free(g);
}

static void quantisers_match_the_reference(void **state) {
    (void)state;
    static const enum pl_dtype types[] = {PL_Q8_0, PL_Q4_0, PL_Q4_1, PL_Q5_0, PL_Q5_1};
    size_t len;
    uint8_t *g = read_golden("quantize", &len), *p;
    uint32_t n = u32_at(g);
    float *x = malloc(n * sizeof *x);
    memcpy(x, g + 4, n * sizeof *x);
    p = g + 4 + n * sizeof *x;
    for (size_t i = 0; i < PL_COUNT_OF(types); i++) {
        uint32_t size = pl_dtype_info(types[i])->block_bytes;
        uint8_t *out = malloc((size_t)n / 32 * size);
        assert_int_equal(pl_quantize_span(types[i], x, n, out), PL_OK);
        for (uint32_t b = 0; b < n / 32; b++, p += size) {
            if (memcmp(out + b * size, p, size) != 0) fail_msg("%s: block %u differs", pl_dtype_name(types[i]), b);
        }
        free(out);
    }
    assert_int_equal(p - g, len);
    uint8_t out[34];
    x[3] = 1e30f; /* no f16 scale can hold it */
    assert_int_equal(pl_quantize_span(PL_Q8_0, x, 32, out), PL_INVALID);
    x[3] = (float)(0.0 / 0.0 * 1.0);
    assert_int_equal(pl_quantize_span(PL_Q4_1, x, 32, out), PL_INVALID);
    assert_int_equal(pl_quantize_span(PL_Q4_K, x, 32, out), PL_UNSUPPORTED);
    assert_int_equal(pl_quantize_span(PL_Q8_0, x, 33, out), PL_INVALID);
    free(x);
    free(g);
}

/* Plants a bad scale in every block and every field in turn and asks for its place. */
static void bad_scales_are_found(void **state) {
    (void)state;
    static const struct {
        enum pl_dtype t;
        int fields[2];
    } cases[] = {
        {PL_Q4_0, {0, -1}},    {PL_Q4_1, {0, 2}},    {PL_Q5_0, {0, -1}},   {PL_Q5_1, {0, 2}},     {PL_Q8_0, {0, -1}},
        {PL_Q2_K, {80, 82}},   {PL_Q3_K, {108, -1}}, {PL_Q4_K, {0, 2}},    {PL_Q5_K, {0, 2}},     {PL_Q6_K, {208, -1}},
        {PL_IQ4_NL, {0, -1}},  {PL_IQ4_XS, {0, -1}}, {PL_TQ1_0, {52, -1}}, {PL_TQ2_0, {64, -1}},  {PL_IQ1_S, {0, -1}},
        {PL_IQ2_XXS, {0, -1}}, {PL_IQ2_XS, {0, -1}}, {PL_IQ2_S, {0, -1}},  {PL_IQ3_XXS, {0, -1}}, {PL_IQ3_S, {0, -1}},
    };
    enum { BLOCKS = 600, PER_ROW = 3 };
    for (size_t c = 0; c < PL_COUNT_OF(cases); c++) {
        const struct pl_dtype_info *d = pl_dtype_info(cases[c].t);
        uint8_t *data = malloc(BLOCKS * (size_t)d->block_bytes);
        memset(data, 0xFF, BLOCKS * (size_t)d->block_bytes); /* everything but the scales looks like NaN */
        for (int f = 0; f < 2 && cases[c].fields[f] >= 0; f++) {
            for (size_t b = 0; b < BLOCKS; b++) memset(data + b * d->block_bytes + cases[c].fields[f], 0x3C, 2);
        }
        struct pl_tensor t = {
            .name = "w", .dtype = cases[c].t, .ndim = 2, .data = data, .bytes = BLOCKS * (size_t)d->block_bytes};
        t.shape[0] = BLOCKS / PER_ROW;
        t.shape[1] = (uint64_t)PER_ROW * d->block_elems;
        t.shape[2] = t.shape[3] = 1;
        assert_int_equal(pl_tensor_check_scales(&t, NULL), PL_OK);
        for (size_t b = 0; b < BLOCKS; b += 7) {
            for (int f = 0; f < 2 && cases[c].fields[f] >= 0; f++) {
                static const uint16_t poison[] = {0x7C00, 0xFC00, 0x7E00, 0xFFFF};
                uint8_t *at = data + b * d->block_bytes + cases[c].fields[f];
                memcpy(at, &poison[b % 4], 2);
                assert_int_equal(pl_scales_first_bad(cases[c].t, data, BLOCKS), b);
                struct pl_err err = {0};
                char want[64];
                snprintf(want, sizeof want, "block %zu of row %zu", b % PER_ROW, b / PER_ROW);
                assert_int_equal(pl_tensor_check_scales(&t, &err), PL_FORMAT);
                if (strstr(err.text, want) == NULL) fail_msg("'%s' does not say '%s'", err.text, want);
                assert_int_equal(pl_tensor_check_scales_rows(&t, b / PER_ROW + 1, t.shape[0], NULL), PL_OK);
                memset(at, 0x3C, 2);
            }
        }
        free(data);
    }
}

static void bad_mx_and_mlx_scales_are_found(void **state) {
    (void)state;
    uint8_t mx[17 * 4] = {0};
    for (int e = 0; e < 256; e++) {
        mx[34] = (uint8_t)e;
        assert_int_equal(pl_scales_first_bad(PL_MXFP4, mx, 4), e <= 252 ? 4 : 2);
    }
    uint32_t words[8] = {0};
    uint16_t scales[4] = {0x3F80, 0x7F80, 0, 0}, biases[4] = {0, 0, 0, 0x7FC0};
    struct pl_tensor t = {.name = "m", .dtype = PL_MLX, .ndim = 2, .shape = {2, 64, 1, 1}, .data = words, .bytes = 32};
    t.bits = 2;
    t.group = 32;
    t.scales = scales;
    t.biases = biases;
    t.scale_dtype = PL_BF16;
    struct pl_err err = {0};
    const uint8_t exponents[4] = {0, 252, 253, 1};
    struct pl_tensor pair = {
        .name = "x", .dtype = PL_MLX_MXFP4, .ndim = 2, .shape = {2, 64, 1, 1}, .data = words, .bytes = 64, .group = 32};
    pair.scales = exponents;
    assert_int_equal(pl_tensor_check_scales(&pair, &err), PL_FORMAT);
    assert_non_null(strstr(err.text, "row 1, group 0 has the exponent 253"));
    assert_int_equal(pl_tensor_check_scales_rows(&pair, 0, 1, NULL), PL_OK);
    assert_int_equal(pl_tensor_check_scales(&t, &err), PL_FORMAT);
    assert_non_null(strstr(err.text, "row 0, group 1 has a scale"));
    scales[1] = 0;
    assert_int_equal(pl_tensor_check_scales(&t, &err), PL_FORMAT);
    assert_non_null(strstr(err.text, "row 1, group 1 has a bias"));
    t.scale_dtype = PL_F16; /* the same bits are finite there but for the bias */
    assert_int_equal(pl_tensor_check_scales_rows(&t, 0, 1, &err), PL_OK);
}

/* iq1_m keeps the digits of its f16 above the scales of four words. */
static void bad_scales_of_iq1_m_are_found(void **state) {
    (void)state;
    enum { BLOCKS = 5, BYTES = 56 };
    uint8_t data[BLOCKS * BYTES];
    for (uint32_t d = 0; d < 0x10000; d += 0x5) {
        memset(data, 0xFF, sizeof data);
        for (int b = 0; b < BLOCKS; b++) data[b * BYTES + 55] = 0x0F; /* bits 12 to 15: a number below 1/1024 */
        pl_iq1_m_put_d(data + 3 * BYTES, (uint16_t)d);
        const uint64_t want = (d & 0x7C00) == 0x7C00 ? 3 : BLOCKS;
        if (pl_scales_first_bad(PL_IQ1_M, data, BLOCKS) != want) fail_msg("scale %04x", (unsigned)d);
    }
}

/* Whatever the bytes are, as long as the scale is a number: every value lies within the largest scale and magnitude. */
static void hostile_blocks_stay_within_bounds(void **state) {
    (void)state;
    static const struct {
        enum pl_dtype t;
        float largest; /* with d = 1 */
    } cases[] = {{PL_IQ1_S, 15 * 1.125f},     {PL_IQ1_M, 15 * 1.125f},    {PL_IQ2_XXS, 31 * 43 / 8.0f},
                 {PL_IQ2_XS, 31 * 43 / 8.0f}, {PL_IQ2_S, 31 * 43 / 8.0f}, {PL_IQ3_XXS, 31 * 62 / 4.0f},
                 {PL_IQ3_S, 31 * 15.0f}};
    uint32_t seed = 1;
    for (size_t c = 0; c < PL_COUNT_OF(cases); c++) {
        const size_t bytes = pl_dtype_info(cases[c].t)->block_bytes;
        float most = 0, y[256];
        for (int turn = 0; turn < 300; turn++) {
            uint8_t *b = malloc(bytes); /* of just that size: reading past it is seen */
            assert_non_null(b);
            for (size_t i = 0; i < bytes; i++) {
                seed = seed * 1664525u + 1013904223u;
                b[i] = turn == 0 ? 0xFF : turn == 1 ? 0 : (uint8_t)(seed >> 24);
            }
            if (cases[c].t == PL_IQ1_M)
                pl_iq1_m_put_d(b, 0x3C00);
            else
                memcpy(b, &(const uint16_t){0x3C00}, 2);
            assert_int_equal(pl_dequant_span(cases[c].t, b, 256, y), PL_OK);
            for (int i = 0; i < 256; i++) most = fabsf(y[i]) > most ? fabsf(y[i]) : most;
            free(b);
        }
        if (most > cases[c].largest || most < 0.5f * cases[c].largest)
            fail_msg("%s: the largest value is %g, expected %g", pl_dtype_name(cases[c].t), (double)most,
                     (double)cases[c].largest);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_gguf_type_is_bit_exact),  cmocka_unit_test(rows_are_spans),
        cmocka_unit_test(mlx_affine_is_bit_exact),       cmocka_unit_test(quantisers_match_the_reference),
        cmocka_unit_test(bad_scales_are_found),          cmocka_unit_test(bad_mx_and_mlx_scales_are_found),
        cmocka_unit_test(bad_scales_of_iq1_m_are_found), cmocka_unit_test(hostile_blocks_stay_within_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
