/* 16-bit floats against an independent definition, over every pattern and around every rounding border; the type list. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tensor/convert.h"
#include "tensor/dtype.h"

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* The value of a small float from its definition, in double: exact for all of them. */
static double value_of(uint32_t bits, int exp_bits, int man_bits) {
    int bias = (1 << (exp_bits - 1)) - 1, top = (1 << exp_bits) - 1;
    int exp = (int)(bits >> man_bits) & top, man = (int)(bits & ((1u << man_bits) - 1));
    double sign = bits >> (exp_bits + man_bits) ? -1.0 : 1.0;
    if (exp == top) return man != 0 ? NAN : sign * INFINITY;
    if (exp == 0) return sign * ldexp(man, 1 - bias - man_bits);
    return sign * ldexp(1.0 + man / (double)(1 << man_bits), exp - bias);
}

/* Rounds to nearest even by search in the ordered list of non-negative patterns. */
static uint32_t nearest(double v, int exp_bits, int man_bits) {
    uint32_t sign = signbit(v) ? 1u << (exp_bits + man_bits) : 0, inf = ((1u << exp_bits) - 1) << man_bits;
    double a = fabs(v);
    uint32_t lo = 0, hi = inf;
    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        if (value_of(mid, exp_bits, man_bits) <= a)
            lo = mid;
        else
            hi = mid;
    }
    double below = value_of(lo, exp_bits, man_bits);
    /* past the largest finite value the border is where the next step would be */
    double above = hi == inf ? below + ldexp(1.0, (1 << (exp_bits - 1)) - 1 - man_bits) : value_of(hi, exp_bits, man_bits);
    double middle = below + (above - below) / 2;
    if (isinf(a)) return sign | inf;
    return sign | (a > middle || (a == middle && (lo & 1u)) ? hi : lo);
}

static void every_pattern_widens_exactly(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = pl_f16_to_f32((uint16_t)h), b = pl_bf16_to_f32((uint16_t)h);
        double want_f = value_of(h, 5, 10), want_b = value_of(h, 8, 7);
        if (isnan(want_f))
            assert_true(isnan(f));
        else
            assert_int_equal(bits_of(f), bits_of((float)want_f));
        if (isnan(want_b))
            assert_true(isnan(b));
        else
            assert_int_equal(bits_of(b), bits_of((float)want_b));
    }
}

static void every_pattern_comes_back(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = pl_f16_to_f32((uint16_t)h), b = pl_bf16_to_f32((uint16_t)h);
        if (isnan(f))
            assert_true(isnan(pl_f16_to_f32(pl_f32_to_f16(f))));
        else
            assert_int_equal(pl_f32_to_f16(f), h);
        if (isnan(b))
            assert_true(isnan(pl_bf16_to_f32(pl_f32_to_bf16(b))));
        else
            assert_int_equal(pl_f32_to_bf16(b), h);
    }
}

static void check_narrowing(uint32_t u) {
    float f = float_of(u);
    if (isnan(f)) {
        assert_true(isnan(pl_f16_to_f32(pl_f32_to_f16(f))));
        assert_true(isnan(pl_bf16_to_f32(pl_f32_to_bf16(f))));
        return;
    }
    if (pl_f32_to_f16(f) != nearest(f, 5, 10))
        fail_msg("f16 of %08x is %04x, expected %04x", u, pl_f32_to_f16(f), nearest(f, 5, 10));
    if (pl_f32_to_bf16(f) != nearest(f, 8, 7))
        fail_msg("bf16 of %08x is %04x, expected %04x", u, pl_f32_to_bf16(f), nearest(f, 8, 7));
}

static void narrowing_rounds_to_nearest_even(void **state) {
    (void)state;
    /* around every f16 and bf16 value and every middle between two neighbours */
    for (uint32_t h = 0; h < 65535; h++) {
        if (h % 3 != 0 && (h & 0x3FF) > 4 && (h & 0x3FF) < 0x3FC) continue; /* a third, and all exponent borders */
        float f = pl_f16_to_f32((uint16_t)h), g = pl_f16_to_f32((uint16_t)(h + 1));
        if (isfinite(f) && isfinite(g)) {
            uint32_t mid = bits_of((f + g) / 2);
            for (uint32_t d = 0; d < 3; d++) check_narrowing(mid - 1 + d);
        }
        for (uint32_t low = 0x7FFF; low <= 0x8001; low++) check_narrowing(h << 16 | low);
    }
    static const uint32_t edges[] = {0,          0x80000000, 1,          0x477FEFFF, 0x477FF000,
                                     0x477FF001, 0x33000000, 0x33000001, 0x7F7FFFFF, 0x7F800000,
                                     0xFF800000, 0x7F800001, 0x7FC00000, 0x7F7F7FFF, 0x7F7F8000};
    for (size_t i = 0; i < PL_COUNT_OF(edges); i++) check_narrowing(edges[i]);
}

static void the_type_list_is_consistent(void **state) {
    (void)state;
    for (int i = 0; i < PL_DTYPE_COUNT; i++) {
        const struct pl_dtype_info *d = pl_dtype_info((enum pl_dtype)i);
        enum pl_dtype back;
        assert_true(pl_dtype_from_name(d->name, &back));
        assert_int_equal(back, i);
        if (d->ggml_type >= 0) {
            assert_true(pl_dtype_from_ggml((uint32_t)d->ggml_type, &back));
            assert_int_equal(back, i);
            assert_string_equal(pl_ggml_type_name((uint32_t)d->ggml_type), d->name);
        }
        uint64_t bytes = 77;
        if (i == PL_MLX || i == PL_MLX_MXFP4) { /* spread over several arrays */
            assert_false(pl_dtype_row_bytes((enum pl_dtype)i, 64, &bytes));
            continue;
        }
        assert_true(pl_dtype_row_bytes((enum pl_dtype)i, 512, &bytes));
        assert_int_equal(bytes, 512 / d->block_elems * d->block_bytes);
        bytes = 77;
        if (d->block_elems > 1) assert_false(pl_dtype_row_bytes((enum pl_dtype)i, 511, &bytes));
        if (d->block_bytes > d->block_elems)
            assert_false(pl_dtype_row_bytes((enum pl_dtype)i, UINT64_MAX / 256 * 256, &bytes));
        assert_int_equal(bytes, d->block_elems > 1 || d->block_bytes > d->block_elems ? 77 : bytes);
    }
    enum pl_dtype t = PL_F32;
    assert_false(pl_dtype_from_name("q9_z", &t));
    assert_false(pl_dtype_from_ggml(40, &t)); /* nvfp4: known by name, not readable */
    assert_string_equal(pl_ggml_type_name(40), "nvfp4");
    assert_false(pl_dtype_from_ggml(UINT32_MAX, &t));
    assert_null(pl_ggml_type_name(1000));
    assert_string_equal(pl_dtype_name((enum pl_dtype)1234), "?");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_widens_exactly),
        cmocka_unit_test(every_pattern_comes_back),
        cmocka_unit_test(narrowing_rounds_to_nearest_even),
        cmocka_unit_test(the_type_list_is_consistent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
