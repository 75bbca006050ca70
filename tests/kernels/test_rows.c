/* Row and element kernels against src/ref: every width 1..1025 and every row count 1..64, poisoned outputs, sentinels.
 *
 * test-variants: release (the kernels are compiled by the OpenCL driver, which no sanitizer sees; the host code they go
 * through is sanitized in tests/device, tests/jit and tests/model)
 * test-timeout: 600 */
#include "kit.h"

#include "ops/cuda_fast.h"

#include "ops/bandwidth.h"

/* Every width, every row count, and both at their ends; a handful of them for sanitizers. */
enum { WIDEST = 1025, MOST_ROWS = 64 };
static size_t grid(void (*fn)(size_t rows, size_t cols)) {
    static const size_t few[][2] = {{1, 1}, {2, 33}, {3, 257}, {5, 1025}};
    static const size_t corners[][2] = {{64, 1},   {64, 31}, {64, 1021}, {64, 1025},
                                        {17, 509}, {5, 576}, {2, 1024},  {33, 256}};
    size_t n = 0;
    for (size_t i = 0; i < PL_COUNT_OF(few); i++, n++) fn(few[i][0], few[i][1]);
    if (test_small()) return n;
    for (size_t cols = 1; cols <= WIDEST; cols++, n++) fn(1 + cols % 5, cols);
    for (size_t rows = 1; rows <= MOST_ROWS; rows++, n++) fn(rows, 1 + rows * 37 % 131);
    for (size_t i = 0; i < PL_COUNT_OF(corners); i++, n++) fn(corners[i][0], corners[i][1]);
    return n;
}

static struct pl_kernel plain, added, layer, element[PL_EW_COUNT], pick[PL_PICK_COUNT];
static bool layer_biased;

static void one_norm(size_t rows, size_t cols) {
    size_t n = rows * cols;
    float *x = kit_random(n, 3), *a = kit_random(n, 2), *w = kit_random(cols, 1), *want = kit_random(n, 0);
    struct pl_device_buffer bx = kit_up(x, n * 4), ba = kit_up(a, n * 4), bw = kit_up(w, cols * 4), by = kit_out(n * 4);
    CHECK(pl_launch_norm(&ks, &plain, &bx, NULL, &bw, &by, rows, cols, 1e-5f, 1.0f));
    for (size_t r = 0; r < rows; r++) pl_ref_rmsnorm(x + r * cols, w, cols, 1e-5, 1.0, want + r * cols);
    float *y = kit_down(&by);
    kit_near("norm", y, want, n, 2e-6, 0.01);
    free(y);
    by = kit_out(n * 4);
    CHECK(pl_launch_norm(&ks, &added, &bx, &ba, &bw, &by, rows, cols, 1e-5f, 0.0f));
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
    CHECK(pl_kernel_norm(&ks, false, &plain, &err));
    CHECK(pl_kernel_norm(&ks, true, &added, &err));
    size_t ran = grid(one_norm);
    uint64_t counted = 0;
    CHECK(pl_kernel_counted(&ks, &plain, &counted, &err));
    assert_int_equal(counted, plain.record->eager);
    assert_int_equal(counted, ran);
    pl_kernel_free(&ks, &plain);
    pl_kernel_free(&ks, &added);
}

static int rows_ran;
/* The form that NVIDIA devices take for many rows; in place as well. */
static void norms_in_registers(void) {
    static const size_t shapes[][2] = {{1, 4}, {130, 2048}, {3, 8192}, {5, 516}, {9, 4096}, {2, 5120}};
    for (size_t i = 0; i < PL_COUNT_OF(shapes) && pl_norm_rows(&ks, shapes[i][1]); i++, rows_ran++) {
        size_t rows = shapes[i][0], cols = shapes[i][1], n = rows * cols;
        struct pl_kernel k = {0};
        float *x = kit_random(n, 3), *w = kit_random(cols, 1), *want = kit_random(n, 0);
        struct pl_device_buffer bx = kit_up(x, n * 4), bw = kit_up(w, cols * 4), by = kit_out(n * 4);
        CHECK(pl_kernel_norm_rows(&ks, cols, &k, &err));
        CHECK(pl_launch_norm(&ks, &k, &bx, NULL, &bw, &by, rows, cols, 1e-5f, 1.0f));
        CHECK(pl_launch_norm(&ks, &k, &bx, NULL, &bw, &bx, rows, cols, 1e-5f, 1.0f));
        for (size_t r = 0; r < rows; r++) pl_ref_rmsnorm(x + r * cols, w, cols, 1e-5, 1.0, want + r * cols);
        float *y = kit_down(&by), *z = kit_down(&bx);
        kit_near(k.name, y, want, n, 2e-6, 0.01);
        assert_memory_equal(y, z, n * 4);
        free(x), free(w), free(want), free(y), free(z);
        kit_drop(&bw);
        pl_kernel_free(&ks, &k);
    }
}
static void test_norms_in_registers(void **state) {
    (void)state;
    rows_ran = 0;
    kit_each(norms_in_registers);
    if (rows_ran == 0) SKIP("no CUDA device of sm_80 or later here");
}

static void one_layer_norm(size_t rows, size_t cols) {
    size_t n = rows * cols;
    float *x = kit_random(n, 3), *w = kit_random(cols, 1), *b = kit_random(cols, 1), *want = kit_random(n, 0);
    struct pl_device_buffer bx = kit_up(x, n * 4), bw = kit_up(w, cols * 4), bb = kit_up(b, cols * 4), by = kit_out(n * 4);
    CHECK(pl_launch_layer_norm(&ks, &layer, &bx, &bw, layer_biased ? &bb : NULL, &by, rows, cols, 1e-5f));
    for (size_t r = 0; r < rows; r++)
        pl_ref_layernorm(x + r * cols, w, layer_biased ? b : NULL, cols, 1e-5, want + r * cols);
    float *y = kit_down(&by);
    kit_near("layer_norm", y, want, n, 4e-6, cols < 8 ? 20 : 1.0); /* few columns may have no deviation */
    free(y);
    kit_drop(&bx);
    kit_drop(&bw);
    kit_drop(&bb);
    free(x), free(w), free(b), free(want);
}

static void layer_norms(void) {
    for (int biased = 0; biased < 2; biased++) {
        layer_biased = biased != 0;
        CHECK(pl_kernel_layer_norm(&ks, layer_biased, &layer, &err));
        grid(one_layer_norm);
        pl_kernel_free(&ks, &layer);
    }
}

/* long function: every element kernel on one shape, each three lines */
static void one_elements(size_t rows, size_t cols) {
    size_t n = rows * cols;
    float *x = kit_random(n, 8), *u = kit_random(n, 4), *want = kit_random(n, 0), *ones = kit_random(n, 0), *y;
    struct pl_device_buffer bx = kit_up(x, n * 4), bu = kit_up(u, n * 4), by = kit_out(n * 4);
    CHECK(pl_launch_glu(&ks, &element[PL_EW_SILU], &bx, &bu, &by, rows, cols));
    pl_ref_glu(PL_REF_SILU, x, u, want, n);
    y = kit_down(&by);
    kit_near("silu", y, want, n, 4e-6, 1e-3);
    free(y);
    by = kit_out(n * 4);
    CHECK(pl_launch_glu(&ks, &element[PL_EW_GELU_TANH], &bx, &bu, &by, rows, cols));
    pl_ref_glu(PL_REF_GELU_TANH, x, u, want, n);
    y = kit_down(&by);
    kit_near("gelu", y, want, n, 4e-6, 0.3); /* 1 + tanh cancels for large negative inputs */
    free(y);
    by = kit_out(n * 4);
    CHECK(pl_launch_glu(&ks, &element[PL_EW_GELU_ERF], &bx, &bu, &by, rows, cols));
    pl_ref_glu(PL_REF_GELU_ERF, x, u, want, n);
    y = kit_down(&by);
    kit_near("gelu by erf", y, want, n, 4e-6, 1e-3);
    free(y);
    by = kit_out(n * 4);
    CHECK(pl_launch_glu(&ks, &element[PL_EW_RELU2], &bx, &bu, &by, rows, cols));
    pl_ref_glu(PL_REF_RELU2, x, u, want, n);
    y = kit_down(&by);
    kit_near("relu2", y, want, n, 4e-7, 1e-6);
    free(y);
    by = kit_out(n * 4);
    CHECK(pl_launch_glu(&ks, &element[PL_EW_PRODUCT], &bx, &bu, &by, rows, cols));
    pl_ref_glu(PL_REF_NONE, x, u, want, n);
    y = kit_down(&by);
    kit_near("product", y, want, n, 0, 0);
    free(y);
    by = kit_out(n * 4);
    CHECK(pl_launch_glu(&ks, &element[PL_EW_SIGMOID], &bx, &bu, &by, rows, cols));
    pl_ref_glu(PL_REF_SIGMOID, x, u, want, n);
    y = kit_down(&by);
    kit_near("sigmoid", y, want, n, 4e-6, 1e-3);
    free(y);
    by = kit_out(n * 4);
    CHECK(pl_launch_act(&ks, &element[PL_EW_SILU_ALONE], &bx, &by, rows, cols));
    for (size_t i = 0; i < n; i++) ones[i] = 1;
    pl_ref_glu(PL_REF_SILU, x, ones, want, n);
    y = kit_down(&by);
    kit_near("silu alone", y, want, n, 4e-6, 1e-3);
    free(y);
    by = kit_out(n * 4);
    CHECK(pl_launch_act(&ks, &element[PL_EW_GELU_TANH_ALONE], &bx, &by, rows, cols));
    pl_ref_glu(PL_REF_GELU_TANH, x, ones, want, n);
    y = kit_down(&by);
    kit_near("gelu alone", y, want, n, 4e-6, 0.3);
    free(y);
    by = kit_out(n * 4);
    CHECK(pl_launch_act(&ks, &element[PL_EW_GELU_ERF_ALONE], &bx, &by, rows, cols));
    pl_ref_glu(PL_REF_GELU_ERF, x, ones, want, n);
    y = kit_down(&by);
    kit_near("gelu by erf alone", y, want, n, 4e-6, 1e-3);
    free(y);
    struct pl_device_buffer bs = kit_up(x, n * 4);
    CHECK(pl_launch_softcap(&ks, &element[PL_EW_SCALE], &bs, rows, cols, 0.3f));
    for (size_t i = 0; i < n; i++) want[i] = x[i] * 0.3f;
    y = kit_down(&bs);
    assert_memory_equal(y, want, n * 4);
    free(y);
    struct pl_device_buffer bg = kit_up(x, n * 4);
    CHECK(pl_launch_add(&ks, &element[PL_EW_GATE_ROWS], &bg, &bu, rows, cols));
    for (size_t i = 0; i < n; i++) want[i] = (float)((double)x[i] / (1 + exp(-(double)u[i / cols])));
    y = kit_down(&bg);
    kit_near("gate_rows", y, want, n, 4e-6, 1e-3);
    free(y);
    CHECK(pl_launch_add(&ks, &element[PL_EW_ADD], &bu, &bx, rows, cols));
    for (size_t i = 0; i < n; i++) want[i] = u[i] + x[i];
    y = kit_down(&bu);
    assert_memory_equal(y, want, n * 4);
    free(y);
    CHECK(pl_launch_softcap(&ks, &element[PL_EW_SOFTCAP], &bx, rows, cols, 5.0f));
    memcpy(want, x, n * 4);
    pl_ref_softcap(want, n, 5.0);
    y = kit_down(&bx);
    kit_near("softcap", y, want, n, 4e-6, 1e-3);
    free(y);
    free(x), free(u), free(want), free(ones);
}
static void elements(void) {
    for (int i = 0; i < PL_EW_COUNT; i++) CHECK(pl_kernel_elementwise(&ks, (enum pl_elementwise)i, &element[i], &err));
    grid(one_elements);
    for (int i = 0; i < PL_EW_COUNT; i++) pl_kernel_free(&ks, &element[i]);
}

/* The greedy choice: lowest of equals, and rows that have none. */
static void check_pick(const float *from, size_t rows, size_t cols) {
    float *x = malloc(rows * cols * sizeof *x);
    uint32_t want[MOST_ROWS];
    memcpy(x, from, rows * cols * sizeof *x);
    for (size_t r = 0; r < rows; r++) {
        size_t top = pl_ref_argmax(x + r * cols, cols);
        if (cols > 2) x[r * cols + cols - 1] = x[r * cols + top]; /* an equal further on */
        want[r] = (uint32_t)pl_ref_argmax(x + r * cols, cols);
    }
    if (rows > 1) x[1 * cols + cols / 2] = NAN, want[1] = PL_PICK_BROKEN;
    if (rows > 2) x[2 * cols + cols - 1] = INFINITY, want[2] = PL_PICK_BROKEN;
    for (size_t i = 0; rows > 3 && i < cols; i++) x[3 * cols + i] = -INFINITY, want[3] = PL_PICK_NONE;
    struct pl_device_buffer bx = kit_up(x, rows * cols * 4), best = kit_out(rows * 4);
    struct pl_device_buffer parts = kit_out(rows * PL_PICK_SLICES * 8), second = kit_out(rows * 4);
    CHECK(pl_launch_pick(&ks, PL_PICK_ROWS, &pick[PL_PICK_ROWS], &bx, &best, rows, cols));
    CHECK(pl_launch_pick(&ks, PL_PICK_PART, &pick[PL_PICK_PART], &bx, &parts, rows, cols));
    if (ks.norm >= PL_PICK_SLICES)
        CHECK(pl_launch_pick(&ks, PL_PICK_JOIN, &pick[PL_PICK_JOIN], &parts, &second, rows, cols));
    uint32_t *got = kit_down(&best), *joined = kit_down(&second);
    if (ks.norm >= PL_PICK_SLICES) assert_memory_equal(got, joined, rows * 4);
    kit_drop(&parts);
    free(joined);
    for (size_t r = 0; r < rows; r++) {
        if (got[r] != want[r]) print_message("# pick of %zu columns, row %zu: %u, expected %u\n", cols, r, got[r], want[r]);
    }
    for (size_t r = 0; r < rows; r++) assert_int_equal(got[r], want[r]);
    free(got), free(x);
    kit_drop(&bx);
}

/* Some rows gathered, out of order and one twice; argmax and pick of all. */
static void one_pick(size_t rows, size_t cols) {
    enum { STRIDE = 64 };
    uint32_t step[5 * STRIDE] = {0}, *picked = step + PL_STEP_LOGIT(STRIDE);
    size_t count = PL_MIN(rows, (size_t)7);
    float *x = kit_random(rows * cols, 1);
    for (size_t i = 0; i < rows * cols; i++) x[i] = roundf(x[i] * 8); /* equal elements: the first must win */
    for (size_t i = 0; i < count; i++) picked[i] = (uint32_t)((rows - 1 + i * 5) % rows);
    struct pl_device_buffer bx = kit_up(x, rows * cols * 4), bs = kit_up(step, sizeof step), by = kit_out(count * cols * 4);
    CHECK(pl_launch_gather(&ks, &element[PL_EW_GATHER], &bx, &bs, STRIDE, &by, count, cols));
    float *y = kit_down(&by);
    for (size_t i = 0; i < count; i++) assert_memory_equal(y + i * cols, x + picked[i] * cols, cols * 4);
    free(y);
    struct pl_device_buffer best = kit_out(rows * 4);
    CHECK(pl_launch_argmax(&ks, &element[PL_EW_ARGMAX], &bx, &best, rows, cols));
    uint32_t *at = kit_down(&best);
    for (size_t r = 0; r < rows; r++) assert_int_equal(at[r], pl_ref_argmax(x + r * cols, cols));
    check_pick(x, rows, cols);
    free(at);
    kit_drop(&bx);
    kit_drop(&bs);
    free(x);
}

static void picks(void) {
    CHECK(pl_kernel_elementwise(&ks, PL_EW_GATHER, &element[PL_EW_GATHER], &err));
    CHECK(pl_kernel_elementwise(&ks, PL_EW_ARGMAX, &element[PL_EW_ARGMAX], &err));
    for (int i = 0; i < PL_PICK_COUNT; i++) CHECK(pl_kernel_pick(&ks, (enum pl_picking)i, &pick[i], &err));
    grid(one_pick);
    pl_kernel_free(&ks, &element[PL_EW_GATHER]);
    pl_kernel_free(&ks, &element[PL_EW_ARGMAX]);
    for (int i = 0; i < PL_PICK_COUNT; i++) pl_kernel_free(&ks, &pick[i]);
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
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norms),    cmocka_unit_test(test_layer_norms), cmocka_unit_test(test_norms_in_registers),
        cmocka_unit_test(test_elements), cmocka_unit_test(test_picks),       cmocka_unit_test(test_reads)};
    return TEST_RUN("row kernels", tests);
}
