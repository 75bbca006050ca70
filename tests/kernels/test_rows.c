/* Row and element kernels against src/ref: widths around every border, poisoned outputs, sentinels.
 *
 * test-variants: release (the kernels are compiled by the OpenCL driver, which no sanitizer sees; the host code they go
 * through is sanitized in tests/device, tests/jit and tests/model)
 * test-timeout: 600 */
#include "kit.h"

#include "ops/bandwidth.h"

static const size_t widths[] = {1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 127, 255, 256, 257, 509, 576, 1021, 1024, 1025};
static const size_t row_counts[] = {1, 2, 3, 5, 17};

static void one_norm(struct pl_kernel *plain, struct pl_kernel *added, size_t rows, size_t cols) {
    size_t n = rows * cols;
    float *x = kit_random(n, 3), *a = kit_random(n, 2), *w = kit_random(cols, 1), *want = kit_random(n, 0);
    struct pl_device_buffer bx = kit_up(x, n * 4), ba = kit_up(a, n * 4), bw = kit_up(w, cols * 4), by = kit_out(n * 4);
    CHECK(pl_launch_norm(&ks, plain, &bx, NULL, &bw, &by, rows, cols, 1e-5f, 1.0f));
    for (size_t r = 0; r < rows; r++) pl_ref_rmsnorm(x + r * cols, w, cols, 1e-5, 1.0, want + r * cols);
    float *y = kit_down(&by);
    kit_near("norm", y, want, n, 2e-6, 0.01);
    free(y);
    by = kit_out(n * 4);
    CHECK(pl_launch_norm(&ks, added, &bx, &ba, &bw, &by, rows, cols, 1e-5f, 0.0f));
    for (size_t i = 0; i < n; i++) x[i] += a[i];
    for (size_t r = 0; r < rows; r++) pl_ref_rmsnorm(x + r * cols, w, cols, 1e-5, 0.0, want + r * cols);
    y = kit_down(&by);
    kit_near("add_norm", y, want, n, 2e-6, 0.01);
    free(y);
    y = kit_down(&bx);
    assert_memory_equal(y, x, n * 4); /* the sum is one rounding: exact */
    free(y);
    kit_drop(&ba);
    kit_drop(&bw);
    free(x), free(a), free(w), free(want);
}

static void norms(void) {
    enum { WIDEST = 1025, MOST_ROWS = 64 };
    struct pl_kernel plain = {0}, added = {0};
    CHECK(pl_kernel_norm(&ks, false, &plain, &err));
    CHECK(pl_kernel_norm(&ks, true, &added, &err));
    for (size_t wi = 0; wi < PL_COUNT_OF(widths); wi++) {
        for (size_t ri = 0; ri < PL_COUNT_OF(row_counts); ri++) one_norm(&plain, &added, row_counts[ri], widths[wi]);
    }
    for (size_t cols = 1; cols <= WIDEST; cols++)
        one_norm(&plain, &added, 1 + cols % MOST_ROWS, cols); /* every one of both */
    uint64_t counted = 0;
    CHECK(pl_kernel_counted(&ks, &plain, &counted, &err));
    assert_int_equal(counted, plain.record->eager);
    assert_int_equal(counted, PL_COUNT_OF(widths) * PL_COUNT_OF(row_counts) + WIDEST);
    pl_kernel_free(&ks, &plain);
    pl_kernel_free(&ks, &added);
}

static void layer_norms(void) {
    for (int biased = 0; biased < 2; biased++) {
        struct pl_kernel k = {0};
        CHECK(pl_kernel_layer_norm(&ks, biased != 0, &k, &err));
        for (size_t wi = 0; wi < PL_COUNT_OF(widths); wi++) {
            size_t cols = widths[wi], rows = row_counts[wi % PL_COUNT_OF(row_counts)], n = rows * cols;
            float *x = kit_random(n, 3), *w = kit_random(cols, 1), *b = kit_random(cols, 1), *want = kit_random(n, 0);
            struct pl_device_buffer bx = kit_up(x, n * 4), bw = kit_up(w, cols * 4), bb = kit_up(b, cols * 4),
                                    by = kit_out(n * 4);
            CHECK(pl_launch_layer_norm(&ks, &k, &bx, &bw, biased ? &bb : NULL, &by, rows, cols, 1e-5f));
            for (size_t r = 0; r < rows; r++)
                pl_ref_layernorm(x + r * cols, w, biased ? b : NULL, cols, 1e-5, want + r * cols);
            float *y = kit_down(&by);
            kit_near("layer_norm", y, want, n, 4e-6, cols < 8 ? 20 : 1.0); /* few columns may have no deviation */
            free(y);
            kit_drop(&bx);
            kit_drop(&bw);
            kit_drop(&bb);
            free(x), free(w), free(b), free(want);
        }
        pl_kernel_free(&ks, &k);
    }
}

static void elements(void) {
    struct pl_kernel k[PL_EW_COUNT];
    for (int i = 0; i < PL_EW_COUNT; i++) CHECK(pl_kernel_elementwise(&ks, (enum pl_elementwise)i, &k[i], &err));
    for (size_t wi = 0; wi < PL_COUNT_OF(widths); wi++) {
        size_t cols = widths[wi], rows = row_counts[wi % PL_COUNT_OF(row_counts)], n = rows * cols;
        float *x = kit_random(n, 8), *u = kit_random(n, 4), *want = kit_random(n, 0), *ones = kit_random(n, 0), *y;
        struct pl_device_buffer bx = kit_up(x, n * 4), bu = kit_up(u, n * 4), by = kit_out(n * 4);
        CHECK(pl_launch_glu(&ks, &k[PL_EW_SILU], &bx, &bu, &by, rows, cols));
        pl_ref_glu(PL_REF_SILU, x, u, want, n);
        y = kit_down(&by);
        kit_near("silu", y, want, n, 4e-6, 1e-3);
        free(y);
        by = kit_out(n * 4);
        CHECK(pl_launch_glu(&ks, &k[PL_EW_GELU_TANH], &bx, &bu, &by, rows, cols));
        pl_ref_glu(PL_REF_GELU_TANH, x, u, want, n);
        y = kit_down(&by);
        kit_near("gelu", y, want, n, 4e-6, 0.3); /* 1 + tanh cancels for large negative inputs */
        free(y);
        by = kit_out(n * 4);
        CHECK(pl_launch_act(&ks, &k[PL_EW_SILU_ALONE], &bx, &by, rows, cols));
        for (size_t i = 0; i < n; i++) ones[i] = 1;
        pl_ref_glu(PL_REF_SILU, x, ones, want, n);
        y = kit_down(&by);
        kit_near("silu alone", y, want, n, 4e-6, 1e-3);
        free(y);
        by = kit_out(n * 4);
        CHECK(pl_launch_act(&ks, &k[PL_EW_GELU_TANH_ALONE], &bx, &by, rows, cols));
        pl_ref_glu(PL_REF_GELU_TANH, x, ones, want, n);
        y = kit_down(&by);
        kit_near("gelu alone", y, want, n, 4e-6, 0.3);
        free(y);
        struct pl_device_buffer bs = kit_up(x, n * 4);
        CHECK(pl_launch_softcap(&ks, &k[PL_EW_SCALE], &bs, rows, cols, 0.3f));
        for (size_t i = 0; i < n; i++) want[i] = x[i] * 0.3f;
        y = kit_down(&bs);
        assert_memory_equal(y, want, n * 4);
        free(y);
        struct pl_device_buffer bg = kit_up(x, n * 4);
        CHECK(pl_launch_add(&ks, &k[PL_EW_GATE_ROWS], &bg, &bu, rows, cols));
        for (size_t i = 0; i < n; i++) want[i] = (float)((double)x[i] / (1 + exp(-(double)u[i / cols])));
        y = kit_down(&bg);
        kit_near("gate_rows", y, want, n, 4e-6, 1e-3);
        free(y);
        CHECK(pl_launch_add(&ks, &k[PL_EW_ADD], &bu, &bx, rows, cols));
        for (size_t i = 0; i < n; i++) want[i] = u[i] + x[i];
        y = kit_down(&bu);
        assert_memory_equal(y, want, n * 4);
        free(y);
        CHECK(pl_launch_softcap(&ks, &k[PL_EW_SOFTCAP], &bx, rows, cols, 5.0f));
        memcpy(want, x, n * 4);
        pl_ref_softcap(want, n, 5.0);
        y = kit_down(&bx);
        kit_near("softcap", y, want, n, 4e-6, 1e-3);
        free(y);
        free(x), free(u), free(want), free(ones);
    }
    for (int i = 0; i < PL_EW_COUNT; i++) pl_kernel_free(&ks, &k[i]);
}

/* The greedy choice: lowest of equals, and rows that have none. */
static void check_pick(const float *from, size_t rows, size_t cols) {
    struct pl_kernel k = {0};
    CHECK(pl_kernel_pick(&ks, &k, &err));
    float *x = malloc(rows * cols * sizeof *x);
    memcpy(x, from, rows * cols * sizeof *x);
    uint32_t want[16];
    assert_true(rows >= 4 && rows <= 16);
    for (size_t r = 0; r < rows; r++) {
        size_t top = pl_ref_argmax(x + r * cols, cols);
        if (cols > 2) x[r * cols + cols - 1] = x[r * cols + top]; /* an equal further on */
        want[r] = (uint32_t)pl_ref_argmax(x + r * cols, cols);
    }
    x[1 * cols + cols / 2] = NAN, want[1] = PL_PICK_BROKEN;
    x[2 * cols + cols - 1] = INFINITY, want[2] = PL_PICK_BROKEN;
    for (size_t i = 0; i < cols; i++) x[3 * cols + i] = -INFINITY;
    want[3] = PL_PICK_NONE;
    struct pl_device_buffer bx = kit_up(x, rows * cols * 4), best = kit_out(rows * 4);
    CHECK(pl_launch_pick(&ks, &k, &bx, &best, rows, cols));
    uint32_t *got = kit_down(&best);
    for (size_t r = 0; r < rows; r++) {
        if (got[r] != want[r]) print_message("# pick of %zu columns, row %zu: %u, expected %u\n", cols, r, got[r], want[r]);
    }
    for (size_t r = 0; r < rows; r++) assert_int_equal(got[r], want[r]);
    free(got), free(x);
    kit_drop(&bx);
    pl_kernel_free(&ks, &k);
}

static void picks(void) {
    struct pl_kernel gather = {0}, argmax = {0};
    CHECK(pl_kernel_elementwise(&ks, PL_EW_GATHER, &gather, &err));
    CHECK(pl_kernel_elementwise(&ks, PL_EW_ARGMAX, &argmax, &err));
    for (size_t wi = 0; wi < PL_COUNT_OF(widths); wi++) {
        enum { ROWS = 9, STRIDE = 16, PICKED = 4 };
        static const uint32_t picked[PICKED] = {0, 3, 4, 8};
        size_t cols = widths[wi];
        uint32_t step[5 * STRIDE] = {0};
        float *x = kit_random(ROWS * cols, 1);
        for (size_t i = 0; i < ROWS * cols; i++) x[i] = roundf(x[i] * 8); /* equal elements: the first must win */
        for (size_t i = 0; i < PICKED; i++) step[PL_STEP_LOGIT(STRIDE) + i] = picked[i];
        struct pl_device_buffer bx = kit_up(x, ROWS * cols * 4), bs = kit_up(step, sizeof step),
                                by = kit_out(PICKED * cols * 4);
        CHECK(pl_launch_gather(&ks, &gather, &bx, &bs, STRIDE, &by, PICKED, cols));
        float *y = kit_down(&by);
        for (size_t i = 0; i < PICKED; i++) assert_memory_equal(y + i * cols, x + picked[i] * cols, cols * 4);
        free(y);
        struct pl_device_buffer best = kit_out(ROWS * 4);
        CHECK(pl_launch_argmax(&ks, &argmax, &bx, &best, ROWS, cols));
        uint32_t *at = kit_down(&best);
        for (size_t r = 0; r < ROWS; r++) assert_int_equal(at[r], pl_ref_argmax(x + r * cols, cols));
        check_pick(x, ROWS, cols);
        free(at);
        kit_drop(&bx);
        kit_drop(&bs);
        free(x);
    }
    pl_kernel_free(&ks, &gather);
    pl_kernel_free(&ks, &argmax);
}

/* Every word is read exactly once, whatever the number of groups. */
static void reads(void) {
    for (uint32_t unroll = 4; unroll <= 8; unroll += 4) {
        struct pl_kernel k = {0};
        CHECK(pl_kernel_read(&ks, unroll, &k, &err));
        for (uint32_t groups = 1; groups <= 7; groups += 3) {
            size_t bytes = 5 * (size_t)pl_read_tile(&ks, unroll);
            uint32_t *x = malloc(bytes), want = 0, got = 0;
            for (size_t i = 0; i < bytes / 4; i++) want ^= x[i] = kit_u32() * 2654435761u + kit_u32();
            struct pl_device_buffer bx = kit_up(x, bytes), sink = kit_out(groups * 4);
            CHECK(pl_launch_read(&ks, &k, &bx, &sink, bytes, unroll, groups));
            uint32_t *each = kit_down(&sink);
            for (uint32_t i = 0; i < groups; i++) got ^= each[i];
            assert_int_equal(got, want);
            free(each);
            free(x);
            kit_drop(&bx);
        }
        pl_kernel_free(&ks, &k);
    }
}
static void test_reads(void **state) {
    (void)state;
    kit_each(reads);
}
static void test_norms(void **state) {
    (void)state;
    kit_each(norms);
}
static void test_layer_norms(void **state) {
    (void)state;
    kit_each(layer_norms);
}
static void test_elements(void **state) {
    (void)state;
    kit_each(elements);
}
static void test_picks(void **state) {
    (void)state;
    kit_each(picks);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_norms), cmocka_unit_test(test_layer_norms),
                                       cmocka_unit_test(test_elements), cmocka_unit_test(test_picks),
                                       cmocka_unit_test(test_reads)};
    return cmocka_run_group_tests_name("row kernels", tests, NULL, NULL);
}
