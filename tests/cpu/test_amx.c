/* The AMX table: the AVX-512 table's results bit for bit, the check that it must pass before it is used, and what is said
 * when it is not used. Where the CPU has no tiles its instructions are emulated (support.h). test-timeout: 600 */
#include "cpu/amx.h"
#include "cpu/avx512_chunk.h"
#include "cpu/avx512_terms.h"
#include "tests/cpu/support.h"

#define NEEDS_AVX512() \
    if (!pl_cpu_isa_available(PL_ISA_AVX512)) skip()

static void multiply(enum pl_isa isa, const struct pl_tensor *t, const float *x, size_t rows, bool fine, bool accumulate,
                     float *y, char kernel[64]) {
    struct pl_cpu *c = cpu_make(isa, 2);
    struct pl_err err = {0};
    const size_t in = (size_t)pl_tensor_cols(t), out = (size_t)pl_tensor_rows(t);
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
    static const size_t rows[] = {7, 8, 15, 16, 25, 300};
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
            snprintf(name, sizeof name, "%s/%s", rows[i] < 8 ? "avx512-vnni" : "avx512-amx", pl_dtype_name(t.dtype));
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

static void a_wrong_product_of_any_format_is_found(void **state) {
    (void)state;
    NEEDS_AVX512();
    char why[200] = "";
    const struct cpu_amx_kernels right = {avx512_amx_emulated_groups, avx512_amx_emulated_float_groups},
                                 wrong = {groups_with_a_fault, floats_with_a_fault};
    assert_true(cpu_amx_check(&right, why, sizeof why));
    assert_string_equal(why, "");
    size_t found = 0;
    for (size_t k = 0; k < WEIGHT_CASES; k++) {
        broken = weight_cases[k].dtype, broken_bits = weight_cases[k].bits, last_row = k % 2;
        bool floats = broken == PL_F32 || broken == PL_F16 || broken == PL_BF16;
        assert_false(cpu_amx_check(&wrong, why, sizeof why));
        assert_non_null(strstr(why, pl_dtype_name(broken)));
        assert_non_null(strstr(why, !last_row ? "row 0, output 0" : floats ? "row 20, output 12" : "row 23, output 15"));
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
        cmocka_unit_test(the_bits_are_those_of_avx512),
        cmocka_unit_test(a_wrong_product_of_any_format_is_found),
        cmocka_unit_test(what_is_declined_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
