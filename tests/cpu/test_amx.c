/* The AMX table: the AVX-512 table's results bit for bit, the check that it must pass before it is used, and what is said
 * when it is not used. Where the CPU has no tiles its instructions are emulated (support.h); test_emulated.py runs these
 * cases where it has no AVX-512 either. test-timeout: 600 */
#include "cpu/amx.h"
#include "cpu/avx512_chunk.h"
#include "cpu/avx512_terms.h"
#include "cpu/wide.h"
#include "tensor/quant.h"
#include "tests/cpu/support.h"
#include "tests/skip.h"

#define NEEDS_AVX512() \
    if (!pl_cpu_isa_available(PL_ISA_AVX512)) SKIP("this CPU has no AVX-512 (or no bf16 in it)")

static bool allow_wide;
static void multiply(enum pl_isa isa, const struct pl_tensor *t, const float *x, size_t rows, bool fine, bool accumulate,
                     float *y, char kernel[64]) {
    struct pl_cpu *c = cpu_make(isa, 2);
    struct pl_err err = {0};
    const size_t in = (size_t)pl_tensor_cols(t), out = (size_t)pl_tensor_rows(t);
    pl_cpu_allow_wide(c, allow_wide);
    assert_int_equal(pl_cpu_reserve(c, rows, in, 128, &err), PL_OK);
    struct pl_cpu_weight *w = NULL;
    assert_int_equal(pl_cpu_weight_create(c, t, &w, &err), PL_OK);
    const struct pl_cpu_weight *one = w;
    struct pl_cpu_matmul m = {1, rows, &one, NULL, x, in, &y, &out, accumulate, fine, NULL};
    pl_cpu_matmul(c, &m);
    snprintf(kernel, 64, "%s", pl_cpu_weight_kernel(c, w, rows));
    pl_cpu_weight_destroy(w);
    pl_cpu_destroy(c);
}

/* 300 rows are three batches of groups and a rest; 40 blocks are five chunks, 3 a piece of one. */
static void the_bits_are_those_of_avx512(void **state) {
    (void)state;
    NEEDS_AVX512();
    static const size_t rows[] = {7, 16, 31, 32, 57, 300};
    for (size_t k = 0; k < WEIGHT_CASES; k++) {
        if (weight_cases[k].dtype <= PL_BF16 && weight_cases[k].dtype != PL_MLX)
            continue; /* floats: below, and test_matmul */
        for (size_t i = 0; i < PL_COUNT_OF(rows); i++) {
            const size_t grain = case_grain(&weight_cases[k]), in = i == 5 ? 1280 : i % 2 ? 3 * grain : 2 * grain, out = 37;
            struct pl_tensor t = tensor_random(&weight_cases[k], out, in, k + i);
            float *x = malloc(rows[i] * in * sizeof *x);
            uint64_t rng = k;
            rng_fill(&rng, x, rows[i] * in);
            struct guarded want = guarded_make(rows[i] * out), got = guarded_make(rows[i] * out);
            char kernel[64], name[64];
            snprintf(name, sizeof name, "%s/%s", rows[i] < 32 ? "avx512-vnni" : "avx512-amx", pl_dtype_name(t.dtype));
            for (int fine = 0; fine < 2; fine++) {
                multiply(PL_ISA_AVX512, &t, x, rows[i], fine, fine, want.x, kernel);
                multiply(PL_ISA_AMX, &t, x, rows[i], fine, fine, got.x, kernel);
                assert_memory_equal(want.x, got.x, rows[i] * out * sizeof(float));
            }
            assert_memory_equal(kernel, name, strlen(name));
            guarded_free(&want), guarded_free(&got);
            free(x);
            tensor_free(&t);
        }
    }
}

/* To bf16, of two equally near the one further from zero. */
static float away_from_zero(float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    bits = (bits + 0x8000u) & 0xFFFF0000u;
    memcpy(&v, &bits, 4);
    return v;
}

/* What a wide product must be: both sides rounded to bf16 once, with float weights neither; summed in double. And how far
 * off it may be: three weights, the weightiest, may round to the other side. */
static void wide_reference(const struct pl_tensor *t, const float *x, size_t x_stride, size_t rows, double *y,
                           double *bounds) {
    const size_t in = (size_t)pl_tensor_cols(t), out = (size_t)pl_tensor_rows(t);
    const bool is_float = t->dtype == PL_F16 || t->dtype == PL_BF16;
    float *row = malloc(in * sizeof *row);
    const struct pl_tensor exact = without_rounding(t);
    for (size_t o = 0; o < out; o++) {
        assert_int_equal(pl_dequant_row_product(&exact, o, row), PL_OK);
        for (size_t i = 0; i < in && !is_float; i++) row[i] = away_from_zero(row[i]);
        for (size_t r = 0; r < rows; r++) {
            double sum = 0, size = 0, largest = 0;
            for (size_t i = 0; i < in; i++) {
                const float at = x[r * x_stride + i], rounded = pl_bf16_to_f32(pl_f32_to_bf16(at));
                double v = (double)row[i] * (double)(is_float ? at : rounded);
                sum += v, size += fabs(v), largest = fmax(largest, fabs(v));
            }
            y[r * out + o] = sum;
            bounds[r * out + o] =
                is_float ? TOL_MATMUL_WIDE_FLOAT * (size + 1.0) : TOL_MATMUL_WIDE * (size + 1.0) + 3 * largest / 256;
        }
    }
    free(row);
    if (t->dtype == PL_MLX) free((void *)exact.scales), free((void *)exact.biases);
}

/* Every type; odd rows, outputs and ends of inputs; bias, sums added to; more rows than a pass; two matrices at once. The
 * same bits for one thread and three, and for a row among fewer rows. */
static void wide_products_are_right(void **state) {
    (void)state;
    NEEDS_AVX512();
    static const size_t rows_of[] = {48, 79, 97, 600};
    for (size_t k = 0; k < WEIGHT_CASES; k++) {
        if (weight_cases[k].dtype == PL_F32) continue;
        const bool is_float = weight_cases[k].dtype == PL_F16 || weight_cases[k].dtype == PL_BF16;
        for (size_t i = 0; i < PL_COUNT_OF(rows_of); i++) {
            if (i == 3 && k % 4 != 0) continue; /* the long ones for some */
            const size_t grain = case_grain(&weight_cases[k]), rows = rows_of[i], out = i == 1 ? 300 : 37, other = 16,
                         in = is_float ? (i == 1 ? 1111 : 96)
                              : i == 1 ? (1024 + grain - 1) / grain * grain
                                       : 2 * grain;
            struct pl_tensor t[2] = {tensor_random(&weight_cases[k], out, in, k + i),
                                     tensor_random(&weight_cases[k], other, in, 100 + k + i)};
            float *x = malloc(rows * (in + 3) * sizeof *x), bias[300];
            uint64_t rng = k;
            rng_fill(&rng, x, rows * (in + 3));
            rng_fill(&rng, bias, out);
            struct guarded y[3][2];
            for (int run = 0; run < 3; run++) {
                struct pl_cpu *c = cpu_make(PL_ISA_AMX, run == 1 ? 3 : 1);
                struct pl_err err = {0};
                pl_cpu_allow_wide(c, true);
                const size_t n = run == 2 ? 48 : rows;
                assert_int_equal(pl_cpu_reserve(c, rows, in, 128, &err), PL_OK);
                struct pl_cpu_weight *w[2] = {NULL, NULL};
                for (int j = 0; j < 2; j++) {
                    assert_int_equal(pl_cpu_weight_create(c, &t[j], &w[j], &err), PL_OK);
                    y[run][j] = guarded_make(n * (j == 0 ? out : other));
                    for (size_t e = 0; e < y[run][j].n; e++) y[run][j].x[e] = 0.25f;
                }
                assert_non_null(strstr(pl_cpu_weight_kernel(c, w[0], n), "/wide"));
                assert_null(strstr(pl_cpu_weight_kernel(c, w[0], 47), "/wide"));
                const struct pl_cpu_matmul m = {.count = 2,
                                                .rows = n,
                                                .w = (const struct pl_cpu_weight *const *)w,
                                                .bias = (const float *const[]){bias, NULL},
                                                .x = x,
                                                .x_stride = in + 3,
                                                .y = (float *const[]){y[run][0].x, y[run][1].x},
                                                .y_stride = (const size_t[]){out, other},
                                                .accumulate = true};
                pl_cpu_matmul(c, &m);
                for (int j = 0; j < 2; j++) {
                    guarded_check(&y[run][j]);
                    assert_memory_equal(y[0][j].x, y[run][j].x, y[run][j].n * sizeof(float));
                    pl_cpu_weight_destroy(w[j]);
                }
                pl_cpu_destroy(c);
            }
            double *want = malloc(rows * out * sizeof *want), *bounds = malloc(rows * out * sizeof *bounds);
            for (int j = 0; j < 2; j++) {
                const size_t outs = j == 0 ? out : other;
                wide_reference(&t[j], x, in + 3, rows, want, bounds);
                for (size_t e = 0; e < rows * outs; e++) {
                    double expected = want[e] + 0.25 + (j == 0 ? (double)bias[e % outs] : 0.0);
                    double off = fabs((double)y[0][j].x[e] - expected);
                    if (off > bounds[e])
                        fail_msg("%s: element %zu of %zu x %zu is off by %g, allowed %g", pl_dtype_name(t[j].dtype), e, rows,
                                 outs, off, bounds[e]);
                }
            }
            free(want), free(bounds), free(x);
            for (int run = 0; run < 3; run++) guarded_free(&y[run][0]), guarded_free(&y[run][1]);
            tensor_free(&t[0]), tensor_free(&t[1]);
        }
    }
}

/* Where wide products are allowed, fewer rows of float weights are AVX-512's, bit for bit; where they are not, terms. */
static void few_rows_of_floats_are_vectors(void **state) {
    (void)state;
    NEEDS_AVX512();
    static const enum pl_dtype types[] = {PL_F32, PL_F16, PL_BF16};
    enum { OUT = 37, IN = 301, MOST = 47 };
    float *x = malloc(MOST * IN * sizeof *x), *want = malloc(MOST * OUT * sizeof *want),
          *got = malloc(MOST * OUT * sizeof *got);
    uint64_t rng = 9;
    rng_fill(&rng, x, MOST * IN);
    for (size_t k = 0; k < PL_COUNT_OF(types); k++)
        for (size_t rows = 1; rows <= MOST; rows += 23) {
            const struct weight_case one = {types[k], 0, 0, 0};
            struct pl_tensor t = tensor_random(&one, OUT, IN, k);
            char kernel[64];
            multiply(PL_ISA_AVX512, &t, x, rows, false, false, want, kernel);
            for (int wide = 0; wide < 2; wide++) {
                allow_wide = wide != 0;
                multiply(PL_ISA_AMX, &t, x, rows, false, false, got, kernel);
                allow_wide = false;
                assert_int_equal(memcmp(want, got, rows * OUT * sizeof *got) == 0, wide);
                assert_int_equal(strncmp(kernel, "avx512/", 7) == 0, wide);
            }
            tensor_free(&t);
        }
    free(x), free(want), free(got);
}

/* Where rounding is an instruction, it rounds as the other words for it do. */
static void both_ways_round_alike(void **state) {
    (void)state;
    enum { ROWS = 13, IN = 301, BYTES = (IN + 31) / 32 * 2 * WIDE_BLOCK };
    if (!pl_cpu_isa_available(PL_ISA_AVX512) || (!TEST_EMULATED && !__builtin_cpu_supports("avx512bf16")))
        SKIP("this CPU has no AVX-512 (or no bf16 in it)");
    float *x = malloc(ROWS * IN * sizeof *x);
    uint64_t rng = 5;
    rng_fill(&rng, x, ROWS * IN);
    const uint32_t odd[] = {0x7F800000, 0xFF800000, 0x7FC00001, 0x7F7FFFFF, 0x3F808000, 0x3F818000, 0x80000000, 0x3F807FFF};
    memcpy(x + 40, odd, sizeof odd);
    unsigned char *a = aligned_alloc(64, BYTES), *b = aligned_alloc(64, BYTES);
    avx512_wide_group(x, IN, IN, &(struct wide_rows){ROWS, (IN + 31) / 32, 2, a}, 0);
    avx512_wide_group_emulated(x, IN, IN, &(struct wide_rows){ROWS, (IN + 31) / 32, 2, b}, 0);
    assert_memory_equal(a, b, BYTES);
    free(a), free(b), free(x);
}

static enum pl_dtype broken;
static uint32_t broken_bits;
static bool last_row;
static void groups_with_a_fault(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n,
                                float *y, size_t y_stride, const float *bias, bool accumulate) {
    avx512_amx_emulated_groups(w, tile, g, n, y, y_stride, bias, accumulate);
    if (w->t.dtype != broken || w->t.bits != broken_bits) return;
    float *at = last_row ? y + (g[n - 1].first + g[n - 1].rows - 1) * y_stride + 15 : y;
    *at = last_row ? *at * 1.0000002f : -*at; /* a last bit, or plainly wrong */
}

static void floats_with_a_fault(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n,
                                float *y, size_t y_stride, const float *bias, bool accumulate) {
    avx512_amx_emulated_float_groups(w, tile, g, n, y, y_stride, bias, accumulate);
    float *at = last_row ? y + 20 * y_stride + 12 : y;
    if (w->t.dtype == broken) *at = last_row ? *at + 0.001f : -*at;
}

static void wide_with_a_fault(const struct pl_cpu_weight *w, size_t tile, size_t tiles, const struct wide_rows *rows,
                              float *y, size_t y_stride, const float *bias, bool accumulate, struct wide_scratch *s) {
    avx512_amx_emulated_wide_tiles(w, tile, tiles, rows, y, y_stride, bias, accumulate, s);
    if (w->t.dtype != broken || w->t.bits != broken_bits) return;
    float *at = last_row ? y + (rows->rows - 1) * y_stride + w->out - 1 : y;
    *at = last_row ? 1.5f * *at : -*at;
}

static void a_wrong_product_of_any_format_is_found(void **state) {
    (void)state;
    NEEDS_AVX512();
    char why[200] = "";
    const struct cpu_amx_kernels right = {avx512_amx_emulated_groups, avx512_amx_emulated_float_groups,
                                          avx512_wide_group_emulated, avx512_amx_emulated_wide_tiles},
                                 wrong = {groups_with_a_fault, floats_with_a_fault, NULL, NULL},
                                 wide = {avx512_amx_emulated_groups, avx512_amx_emulated_float_groups,
                                         avx512_wide_group_emulated, wide_with_a_fault};
    assert_true(cpu_amx_check(&right, why, sizeof why));
    assert_string_equal(why, "");
    size_t found = 0;
    for (size_t k = 0; k < WEIGHT_CASES; k++) {
        broken = weight_cases[k].dtype, broken_bits = weight_cases[k].bits, last_row = k % 2;
        bool floats = broken == PL_F32 || broken == PL_F16 || broken == PL_BF16;
        assert_false(cpu_amx_check(&wrong, why, sizeof why));
        assert_non_null(strstr(why, pl_dtype_name(broken)));
        assert_non_null(strstr(why, !last_row ? "row 0, output 0" : floats ? "row 20, output 12" : "row 23, output 15"));
        if (broken != PL_F32) {
            assert_false(cpu_amx_check(&wide, why, sizeof why));
            assert_non_null(strstr(why, "wide product"));
            assert_non_null(strstr(why, pl_dtype_name(broken)));
            assert_non_null(strstr(why, last_row ? "row 39" : "row 0, output 0"));
        }
        found++;
    }
    assert_int_equal(found, WEIGHT_CASES);
}

static void what_is_declined_says_why(void **state) {
    (void)state;
    NEEDS_AVX512();
    assert_null(pl_cpu_isa_declined(PL_ISA_AMX));
    cpu_amx_pretend_declined("the system refuses");
    assert_string_equal(pl_cpu_isa_declined(PL_ISA_AMX), "the system refuses");
    assert_null(pl_cpu_isa_declined(PL_ISA_AVX512));
    assert_int_equal(pl_cpu_best_isa(), PL_ISA_AVX512);
    struct pl_cpu *c = NULL;
    struct pl_err err = {0};
    assert_int_equal(pl_cpu_create(PL_ISA_AMX, 1, &c, &err), PL_UNSUPPORTED);
    cpu_amx_pretend_declined(NULL);
    assert_int_equal(pl_cpu_best_isa(), PL_ISA_AMX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_avx512),   cmocka_unit_test(wide_products_are_right),
        cmocka_unit_test(both_ways_round_alike),          cmocka_unit_test(a_wrong_product_of_any_format_is_found),
        cmocka_unit_test(few_rows_of_floats_are_vectors), cmocka_unit_test(what_is_declined_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
