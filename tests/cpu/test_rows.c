/* Row operations of every table against src/ref: widths 1..1025 and primes, in place and with strides, any threads. */
#include "tests/cpu/support.h"
#include "base/mem.h"

static const size_t widths[] = {1,  2,  3,   7,   8,   15,  16,  17,   31,   32,   33,  63,
                                64, 65, 127, 251, 256, 509, 576, 1021, 1024, 1025, 4099};

static __attribute__((noinline)) float *floats(size_t n) {
    float *p = calloc(n, sizeof *p);
    assert_non_null(p);
    return p;
}

static void norms(void **state) {
    (void)state;
    uint64_t s = 1;
    FOR_EACH_ISA(isa) {
        struct pl_cpu *c = cpu_make(isa, 2);
        for (size_t k = 0; k < 1025 + PL_COUNT_OF(widths); k++) {
            size_t n = k < 1025 ? k + 1 : widths[k - 1025], rows = k % 5 + 1, stride = n + k % 3;
            struct guarded x = guarded_make(rows * stride), y = guarded_make(rows * n), add = guarded_make(rows * n);
            float *w = floats(n), *want = floats(n), *sum = floats(rows * stride);
            rng_fill(&s, w, n);
            rng_fill(&s, add.x, rows * n);
            for (size_t r = 0; r < rows; r++) rng_fill(&s, x.x + r * stride, n);
            for (size_t r = 0; r < rows; r++)
                for (size_t i = 0; i < n; i++) sum[r * stride + i] = x.x[r * stride + i] + (k % 2 ? add.x[r * n + i] : 0.0f);
            struct pl_cpu_norm p = {rows, n, x.x,   stride, k % 2 ? add.x : NULL, n, w, 1e-5f, k % 4 < 2 ? 0.0f : 1.0f,
                                    y.x,  n, false, NULL};
            if (k % 7 == 3) p.y = x.x, p.y_stride = stride;
            pl_cpu_rmsnorm(c, &p);
            for (size_t r = 0; r < rows; r++) {
                pl_ref_rmsnorm(sum + r * stride, w, n, 1e-5, (double)p.offset, want);
                for (size_t i = 0; i < n; i++) check_close("norm", p.y[r * p.y_stride + i], (double)want[i], TOL_NORM, 1e-7);
                if (p.y != x.x)
                    for (size_t i = 0; i < n; i++) assert_true(x.x[r * stride + i] == sum[r * stride + i]);
            }
            guarded_free(&x), guarded_free(&y), guarded_free(&add);
            free(w), free(want), free(sum);
        }
        pl_cpu_destroy(c);
    }
}

static void layer_norms(void **state) {
    (void)state;
    uint64_t s = 5;
    FOR_EACH_ISA(isa) {
        struct pl_cpu *c = cpu_make(isa, 2);
        for (size_t k = 0; k < 2 * PL_COUNT_OF(widths); k++) {
            size_t n = widths[k / 2], rows = k % 3 + 1;
            struct guarded y = guarded_make(rows * n);
            float *x = floats(rows * n), *w = floats(n), *b = floats(n), *want = floats(n);
            rng_fill(&s, x, rows * n), rng_fill(&s, w, n), rng_fill(&s, b, n);
            for (size_t i = 0; i < rows * n; i++) x[i] += 3.0f; /* the mean is what it takes away */
            struct pl_cpu_norm p = {.rows = rows,
                                    .cols = n,
                                    .x = x,
                                    .x_stride = n,
                                    .w = w,
                                    .eps = 1e-5f,
                                    .y = y.x,
                                    .y_stride = n,
                                    .center = true,
                                    .bias = k % 2 ? b : NULL};
            pl_cpu_rmsnorm(c, &p);
            for (size_t r = 0; r < rows; r++) {
                /* What the mean lost in rounding grows by the inverse deviation. */
                double mean = 0, squares = 0;
                for (size_t i = 0; i < n; i++) mean += (double)x[r * n + i] / (double)n;
                for (size_t i = 0; i < n; i++) squares += pow((double)x[r * n + i] - mean, 2);
                double spread = 1 + 1 / sqrt(squares / (double)n + 1e-5);
                pl_ref_layernorm(x + r * n, w, p.bias, n, 1e-5, want);
                for (size_t i = 0; i < n; i++)
                    check_close("layer_norm", y.x[r * n + i], (double)want[i], 1e-6, 1e-6 * spread);
            }
            guarded_free(&y);
            free(x), free(w), free(b), free(want);
        }
        pl_cpu_destroy(c);
    }
}

static void activations(void **state) {
    (void)state;
    uint64_t s = 2;
    FOR_EACH_ISA(isa) {
        struct pl_cpu *c = cpu_make(isa, 2);
        for (size_t k = 0; k < 4 * PL_COUNT_OF(widths); k++) {
            size_t n = widths[k / 4 % PL_COUNT_OF(widths)], rows = k % 3 + 1;
            struct guarded y = guarded_make(rows * n);
            float *g = floats(rows * n), *u = floats(rows * n), *want = floats(n);
            for (size_t i = 0; i < rows * n; i++) g[i] = 6.0f * rng_value(&s);
            rng_fill(&s, u, rows * n);
            g[0] = k % 5 == 0 ? -200.0f : k % 5 == 1 ? 200.0f : g[0];
            pl_cpu_glu(c, (enum pl_act)(k % 6), g, u, y.x, rows, n, n, n, n);
            for (size_t r = 0; r < rows; r++) {
                pl_ref_glu((enum pl_ref_act)(k % 6), g + r * n, u + r * n, want, n);
                for (size_t i = 0; i < n; i++) check_close("glu", y.x[r * n + i], (double)want[i], TOL_GLU, TOL_SMALL);
            }
            for (size_t i = 0; i < rows * n; i++) u[i] = 1;
            pl_cpu_glu(c, (enum pl_act)(k % 6), g, NULL, y.x, rows, n, n, 0, n);
            for (size_t r = 0; r < rows; r++) {
                pl_ref_glu((enum pl_ref_act)(k % 6), g + r * n, u + r * n, want, n);
                for (size_t i = 0; i < n; i++) check_close("act", y.x[r * n + i], (double)want[i], TOL_GLU, TOL_SMALL);
            }
            guarded_free(&y);
            free(g), free(u), free(want);
        }
        pl_cpu_destroy(c);
    }
}

static void softcap_and_add(void **state) {
    (void)state;
    uint64_t s = 3;
    FOR_EACH_ISA(isa) {
        struct pl_cpu *c = cpu_make(isa, 2);
        for (size_t k = 0; k < PL_COUNT_OF(widths); k++) {
            size_t n = widths[k];
            struct guarded x = guarded_make(2 * n);
            float *want = floats(2 * n), *add = floats(2 * n);
            for (size_t i = 0; i < 2 * n; i++) want[i] = x.x[i] = 20.0f * rng_value(&s);
            pl_cpu_softcap(c, x.x, 2, n, n, 30.0f);
            pl_ref_softcap(want, 2 * n, 30.0);
            for (size_t i = 0; i < 2 * n; i++) check_close("softcap", x.x[i], (double)want[i], TOL_SOFTCAP, TOL_SMALL);
            rng_fill(&s, add, 2 * n);
            memcpy(want, x.x, 2 * n * sizeof *want);
            pl_cpu_add(c, x.x, add, 2, n, n, n);
            for (size_t i = 0; i < 2 * n; i++) assert_true(x.x[i] == want[i] + add[i]);
            memcpy(want, x.x, 2 * n * sizeof *want);
            pl_cpu_scale(c, x.x, 2, n, n, 0.3f);
            for (size_t i = 0; i < 2 * n; i++) assert_true(x.x[i] == want[i] * 0.3f);
            guarded_free(&x);
            free(want), free(add);
        }
        pl_cpu_destroy(c);
    }
}

static void threads_change_nothing(void **state) {
    (void)state;
    enum { N = 4099, ROWS = 9 };
    FOR_EACH_ISA(isa) {
        float *first = NULL;
        for (int threads = 1; threads <= 5; threads++) {
            struct pl_cpu *c = cpu_make(isa, threads);
            uint64_t s = 4;
            float *x = floats(ROWS * N), *w = floats(N);
            rng_fill(&s, x, ROWS * N);
            rng_fill(&s, w, N);
            struct pl_cpu_norm p = {ROWS, N, x, N, NULL, 0, w, 1e-6f, 0.0f, x, N, false, NULL};
            pl_cpu_rmsnorm(c, &p);
            pl_cpu_glu(c, PL_ACT_SILU, x, x, x, ROWS, N, N, N, N);
            pl_cpu_glu(c, PL_ACT_GELU_TANH, x, x, x, 1, N, N, N, N);
            pl_cpu_softcap(c, x, 1, ROWS * N, ROWS * N, 5.0f);
            if (first == NULL)
                first = x;
            else
                assert_memory_equal(x, first, ROWS * N * sizeof *x);
            if (first != x) free(x);
            free(w);
            pl_cpu_destroy(c);
        }
        free(first);
    }
}

static void names_and_refusals(void **state) {
    (void)state;
    enum pl_isa isa = PL_ISA_COUNT;
    for (enum pl_isa i = 0; i < PL_ISA_COUNT; i++) {
        assert_true(pl_isa_from_name(pl_isa_name(i), &isa));
        assert_int_equal(isa, i);
    }
    assert_false(pl_isa_from_name("avx9000", &isa));
    assert_true(pl_cpu_isa_available(pl_cpu_best_isa()));
    printf("# the best table here is %s\n", pl_isa_name(pl_cpu_best_isa()));
    struct pl_cpu *c = NULL;
    struct pl_err err = {0};
    assert_int_equal(pl_cpu_create(PL_ISA_COUNT, 1, &c, &err), PL_UNSUPPORTED);
    assert_null(c);
    c = cpu_make(PL_ISA_SCALAR, 1);
    struct pl_tensor t = {.name = "ids", .dtype = PL_I32, .ndim = 2, .shape = {4, 4, 1, 1}};
    struct pl_cpu_weight *w = NULL;
    assert_int_equal(pl_cpu_weight_create(c, &t, &w, &err), PL_UNSUPPORTED);
    t.dtype = PL_Q4_0;
    assert_int_equal(pl_cpu_weight_create(c, &t, &w, &err), PL_FORMAT);
    assert_null(w);
    pl_cpu_destroy(c);
}

/* Every allocation of start-up fails once: a clean refusal each time, nothing leaked (asan), then success. */
static void failed_allocations(void **state) {
    (void)state;
    struct pl_tensor t = tensor_random(&weight_cases[4], 40, 64, 1);
    bool done = false;
    for (uint64_t n = 1; !done && n < 100; n++) {
        struct pl_cpu *c = NULL;
        struct pl_cpu_weight *w = NULL;
        struct pl_err err = {0};
        pl_mem_fail_at(n);
        enum pl_status s = pl_cpu_create(pl_cpu_best_isa(), 2, &c, &err);
        if (s == PL_OK) s = pl_cpu_weight_create(c, &t, &w, &err);
        if (s == PL_OK) s = pl_cpu_reserve(c, 100, 4096, 1000, &err);
        pl_mem_fail_at(0);
        assert_true(s == PL_OK || s == PL_NO_MEMORY);
        done = s == PL_OK;
        pl_cpu_weight_destroy(w);
        pl_cpu_destroy(c);
    }
    assert_true(done);
    tensor_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms),
        cmocka_unit_test(layer_norms),
        cmocka_unit_test(activations),
        cmocka_unit_test(softcap_and_add),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(names_and_refusals),
        cmocka_unit_test(failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
