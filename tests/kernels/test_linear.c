/* Products and embeddings of every weight type against src/ref: rows 1..64, odd widths, sentinels, poisoned outputs.
 *
 * test-variants: release (the kernels are compiled by the OpenCL driver, which no sanitizer sees; the host code they go
 * through is sanitized in tests/device, tests/jit and tests/model)
 * test-timeout: 600 */
#include "kit.h"

#include "ops/cuda_dense.h"
#include "ops/cuda_fast.h"

struct made {
    struct pl_tensor t;
    void *data, *scales, *biases;
};

static uint16_t small_f16(void) { return pl_f32_to_f16((kit_f32() + 2.0f) * 0.01f); }

/* Random bytes, with every scale field made a sensible f16. */
static void fill_blocks(enum pl_dtype dtype, uint8_t *p, size_t blocks) {
    static const struct {
        enum pl_dtype dtype;
        int first, second;
    } fields[] = {{PL_Q4_0, 0, -1},   {PL_Q4_1, 0, 2},    {PL_Q5_0, 0, -1},   {PL_Q5_1, 0, 2},   {PL_Q8_0, 0, -1},
                  {PL_Q2_K, 80, 82},  {PL_Q3_K, 108, -1}, {PL_Q4_K, 0, 2},    {PL_Q5_K, 0, 2},   {PL_Q6_K, 208, -1},
                  {PL_IQ4_NL, 0, -1}, {PL_IQ4_XS, 0, -1}, {PL_TQ1_0, 52, -1}, {PL_TQ2_0, 64, -1}};
    size_t stride = pl_dtype_info(dtype)->block_bytes;
    for (size_t i = 0; i < blocks * stride; i++) p[i] = (uint8_t)kit_u32();
    for (size_t b = 0; b < blocks; b++) {
        for (size_t f = 0; f < PL_COUNT_OF(fields); f++) {
            if (fields[f].dtype != dtype) continue;
            uint16_t h = small_f16();
            memcpy(p + b * stride + fields[f].first, &h, 2);
            h = small_f16();
            if (fields[f].second >= 0) memcpy(p + b * stride + fields[f].second, &h, 2);
        }
        if (dtype == PL_MXFP4) p[b * stride] = (uint8_t)(118 + kit_u32() % 8);
    }
}

static void fill_plain(enum pl_dtype dtype, void *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float v = kit_f32();
        uint16_t h = dtype == PL_F16 ? pl_f32_to_f16(v) : pl_f32_to_bf16(v);
        if (dtype == PL_F32) memcpy((char *)p + 4 * i, &v, 4);
        if (dtype != PL_F32) memcpy((char *)p + 2 * i, &h, 2);
    }
}

static struct made make_tensor(enum pl_dtype dtype, size_t rows, size_t cols, uint32_t bits, uint32_t group,
                               enum pl_dtype scale_dtype) {
    struct made m = {.t = {.name = "w", .dtype = dtype, .ndim = 2, .shape = {rows, cols, 1, 1}}};
    uint64_t row_bytes = cols * bits / 8;
    if (dtype != PL_MLX) assert_true(pl_dtype_row_bytes(dtype, cols, &row_bytes));
    m.t.bytes = rows * row_bytes;
    m.t.data = m.data = malloc(m.t.bytes);
    if (dtype == PL_F32 || dtype == PL_F16 || dtype == PL_BF16) {
        fill_plain(dtype, m.data, rows * cols);
    } else if (dtype == PL_MLX) {
        size_t n = rows * (cols / group);
        for (size_t i = 0; i < m.t.bytes; i++) ((uint8_t *)m.data)[i] = (uint8_t)kit_u32();
        m.t.scales = m.scales = malloc(n * 4);
        m.t.biases = m.biases = malloc(n * 4);
        fill_plain(scale_dtype, m.scales, n);
        fill_plain(scale_dtype, m.biases, n);
        m.t.scale_dtype = scale_dtype;
        m.t.bits = bits;
        m.t.group = group;
    } else {
        fill_blocks(dtype, m.data, m.t.bytes / pl_dtype_info(dtype)->block_bytes);
    }
    return m;
}

static struct pl_device_weight upload(const struct made *m) {
    const struct pl_tensor *t = &m->t;
    struct pl_device_weight w = {.dtype = t->dtype, .rows = t->shape[0], .cols = t->shape[1]};
    w.row_bytes = t->bytes / w.rows;
    w.data = kit_up(t->data, t->bytes);
    if (t->dtype == PL_MLX) {
        size_t n = w.rows * (w.cols / t->group) * pl_dtype_info(t->scale_dtype)->block_bytes;
        w.scales = kit_up(t->scales, n);
        w.biases = kit_up(t->biases, n);
        w.scale_dtype = t->scale_dtype;
        w.bits = t->bits;
        w.group = t->group;
    }
    return w;
}

static void check(const struct made *m, const struct pl_device_weight *w, struct pl_kernel *k, size_t rows, bool use_bias,
                  bool add) {
    uint32_t tile_rows;
    (void)pl_tile_of(rows, &tile_rows);
    size_t in = w->cols, out = w->rows;
    float *x = kit_random(rows * in, 1), *bias = kit_random(out, 1), *want = kit_random(rows * out, 1),
          *row = malloc(in * 4 + 4);
    double *magnitude = malloc(rows * out * sizeof *magnitude);
    struct pl_device_buffer bx = kit_up(x, rows * in * 4), bb = kit_up(bias, out * 4);
    struct pl_device_buffer by = add ? kit_up(want, rows * out * 4) : kit_out(rows * out * 4);
    CHECK(pl_launch_linear(&ks, k, w, &bx, use_bias ? &bb : NULL, &by, rows, tile_rows, add));
    CHECK(pl_ref_matmul(&m->t, use_bias ? bias : NULL, x, in, rows, add, want, out, magnitude, row));
    float *y = kit_down(&by);
    for (size_t i = 0; i < rows * out; i++) {
        double off = fabs((double)y[i] - (double)want[i]);
        if (off <= 3e-6 * (magnitude[i] + fabs((double)want[i]) + 1e-6)) continue;
        print_message("# %s rows %zu of %zu x %zu: element %zu is %.9g, expected %.9g\n", k->name, rows, out, in, i,
                      (double)y[i], (double)want[i]);
        fail();
    }
    free(y);
    kit_drop(&bx);
    kit_drop(&bb);
    free(x), free(bias), free(want), free(row), free(magnitude);
}

static void check_embed(const struct made *m, const struct pl_device_weight *w) {
    enum { STRIDE = 8, ROWS = 5 };
    struct pl_kernel k = {0};
    CHECK(pl_kernel_embed(&ks, w, &k, &err));
    uint32_t step[5 * STRIDE] = {0};
    for (size_t i = 0; i < ROWS; i++) step[i] = kit_u32() % (uint32_t)w->rows;
    float *want = malloc((ROWS * w->cols + 1) * 4);
    for (size_t i = 0; i < ROWS; i++) CHECK(pl_dequant_row_product(&m->t, step[i], want + i * w->cols));
    struct pl_device_buffer bs = kit_up(step, sizeof step), bx = kit_out(ROWS * w->cols * 4);
    CHECK(pl_launch_embed(&ks, &k, w, &bs, STRIDE, &bx, ROWS, 1.0f));
    float *x = kit_down(&bx);
    kit_near(k.name, x, want, ROWS * w->cols, 1e-6, 1.0);
    free(x);
    kit_drop(&bs);
    free(want);
    pl_kernel_free(&ks, &k);
}

static void one_type(enum pl_dtype dtype, size_t out, size_t in, uint32_t bits, uint32_t group, enum pl_dtype scales,
                     size_t max_rows) {
    struct made m = make_tensor(dtype, out, in, bits, group, scales);
    struct pl_device_weight w = upload(&m);
    struct pl_kernel k[PL_TILE_COUNT] = {0};
    for (size_t rows = 1; rows <= max_rows; rows++) {
        uint32_t tile_rows, tile = pl_tile_of(rows, &tile_rows);
        if (k[tile].jit == NULL) CHECK(pl_kernel_linear(&ks, &w, tile, &k[tile], &err));
        check(&m, &w, &k[tile], rows, rows % 3 == 1, rows % 2 == 0);
    }
    check_embed(&m, &w);
    for (int i = 0; i < PL_TILE_COUNT; i++) {
        if (k[i].jit != NULL) pl_kernel_free(&ks, &k[i]);
    }
    kit_drop(&w.data);
    if (dtype == PL_MLX) kit_drop(&w.scales), kit_drop(&w.biases);
    free(m.data), free(m.scales), free(m.biases);
}

static void plain_types(void) {
    static const size_t widths[] = {1, 31, 33, 64, 127, 1021, 1025};
    one_type(PL_F32, 37, 96, 0, 0, 0, 64); /* every row count */
    for (size_t i = 0; i < PL_COUNT_OF(widths); i++) {
        one_type(PL_F32, 19, widths[i], 0, 0, 0, 3);
        one_type(PL_F16, 17, widths[i], 0, 0, 0, 2);
        one_type(PL_BF16, 1 + i * 5, widths[i], 0, 0, 0, 2);
    }
    one_type(PL_BF16, 67, 256, 0, 0, 0, 64);
    one_type(PL_F16, 5, 64, 0, 0, 0, 64);
}
static void block_types(void) {
    static const enum pl_dtype types[] = {PL_Q4_0, PL_Q4_1, PL_Q5_0,   PL_Q5_1,   PL_Q8_0,  PL_Q2_K,  PL_Q3_K, PL_Q4_K,
                                          PL_Q5_K, PL_Q6_K, PL_IQ4_NL, PL_IQ4_XS, PL_MXFP4, PL_TQ1_0, PL_TQ2_0};
    for (size_t i = 0; i < PL_COUNT_OF(types); i++) {
        size_t block = pl_dtype_info(types[i])->block_elems;
        one_type(types[i], 33, block * 3, 0, 0, 0, 9); /* every tile, and a rest behind the largest */
    }
    one_type(PL_Q4_K, 50, 512, 0, 0, 0, 64);
    one_type(PL_Q4_1, 23, 32, 0, 0, 0, 20);
}
static void mlx_types(void) {
    static const uint32_t bits[] = {2, 3, 4, 5, 6, 8};
    static const uint32_t sizes[] = {32, 64, 128};
    static const enum pl_dtype scales[] = {PL_F16, PL_BF16, PL_F32};
    for (size_t i = 0; i < PL_COUNT_OF(bits); i++) {
        for (size_t k = 0; k < PL_COUNT_OF(sizes); k++) {
            one_type(PL_MLX, 21, 256, bits[i], sizes[k], scales[(i + k) % 3], k == i % 3 ? 9 : 1);
        }
    }
}

/* The fast products of few rows: x in 8 bits for quantised types, so the reference gets the same. */
static void check_gemv(const struct made *m, const struct pl_device_weight *w, uint32_t rows, bool use_bias, bool add) {
    size_t in = w->cols, out = w->rows;
    bool plain = w->dtype == PL_F32 || w->dtype == PL_F16 || w->dtype == PL_BF16;
    struct pl_kernel k = {0};
    CHECK(pl_kernel_gemv(&ks, w, rows, &k, &err));
    float *x = kit_random(rows * in, 1), *bias = kit_random(out, 1), *want = kit_random(rows * out, 1),
          *row = malloc(in * 4 + 4);
    float *second = kit_random(rows * out, 1), *scale = malloc(in * 4);
    int8_t *q = malloc(in + 32);
    double *magnitude = malloc(rows * out * sizeof *magnitude);
    struct pl_device_buffer bx = kit_up(x, rows * in * 4), bb = kit_up(bias, out * 4);
    struct pl_device_buffer by = add ? kit_up(want, rows * out * 4) : kit_out(rows * out * 4);
    struct pl_device_buffer b2 = add ? kit_up(want, rows * out * 4) : kit_out(rows * out * 4);
    struct pl_launch_gemv g = {.count = 2,
                               .w = {w, w},
                               .bias = {use_bias ? &bb : NULL, use_bias ? &bb : NULL},
                               .y = {&by, &b2},
                               .x = &bx,
                               .rows = rows,
                               .add = add};
    CHECK(pl_launch_gemv(&ks, &k, &g));
    for (size_t r = 0; !plain && r < rows; r++) {
        pl_ref_quantize(x + r * in, in, q, scale);
        for (size_t i = 0; i < in; i++) x[r * in + i] = (float)q[i] * scale[i / 32];
    }
    CHECK(pl_ref_matmul(&m->t, use_bias ? bias : NULL, x, in, rows, add, want, out, magnitude, row));
    float *y = kit_down(&by), *y2 = kit_down(&b2);
    assert_memory_equal(y, y2, rows * out * 4); /* two matrices in one launch: the same bits */
    for (size_t i = 0; i < rows * out; i++) {
        double off = fabs((double)y[i] - (double)want[i]);
        if (off <= (plain ? 3e-6 : 3e-4) * (magnitude[i] + 1e-6)) continue;
        print_message("# %s %zu x %zu: element %zu is %.9g, expected %.9g\n", k.name, out, in, i, (double)y[i],
                      (double)want[i]);
        fail();
    }
    kit_drop(&bx);
    kit_drop(&bb);
    free(x), free(bias), free(want), free(row), free(second), free(scale), free(q), free(magnitude), free(y), free(y2);
    pl_kernel_free(&ks, &k);
}

static void gemv_types(void) {
    static const enum pl_dtype types[] = {PL_F32, PL_F16, PL_BF16, PL_Q4_0, PL_Q4_1, PL_Q5_0, PL_Q8_0, PL_Q4_K, PL_Q6_K};
    static const size_t widths[] = {256, 768, 1024, 2304, 4096};
    for (size_t t = 0; t < PL_COUNT_OF(types); t++) {
        for (size_t i = 0; i < PL_COUNT_OF(widths); i++) {
            struct made m = make_tensor(types[t], 37, widths[i], 0, 0, 0);
            struct pl_device_weight w = upload(&m);
            uint32_t rows = (uint32_t)((t + i) % 8 + 1);
            const char *why = pl_gemv_declines(&ks, &w, rows);
            if (why == NULL) check_gemv(&m, &w, rows, i % 2 == 0, i % 3 == 0), check_gemv(&m, &w, 1, false, true);
            if (pl_device_info(ks.device)->kind == PL_DEVICE_CUDA) assert_null(why);
            kit_drop(&w.data);
            free(m.data);
        }
    }
}
static void test_gemv(void **state) {
    (void)state;
    kit_each(gemv_types);
}

static void test_plain(void **state) {
    (void)state;
    kit_each(plain_types);
}
static void test_blocks(void **state) {
    (void)state;
    kit_each(block_types);
}
static void test_mlx(void **state) {
    (void)state;
    kit_each(mlx_types);
}

/* Products of many rows on tensor cores: inputs, and weights where unpacked, are rounded to 8 bits of mantissa. */
static void one_dense(enum pl_dtype dtype, size_t out, size_t in, size_t rows, bool use_bias, bool add) {
    struct made m = make_tensor(dtype, out, in, 0, 0, PL_F32);
    struct pl_device_weight w = upload(&m);
    if (pl_dense_declines(&ks, &w, rows) == NULL) {
        struct pl_dense dense = {0};
        struct pl_kernel unpack = {0};
        CHECK(pl_dense_ready(&ks, &dense, 2 * rows * in, PL_MAX(pl_dense_unpacked_bytes(&w), (uint64_t)2), &err));
        if (dense.why_not[0] != 0) print_message("# %s\n", dense.why_not);
        assert_int_equal(dense.why_not[0], 0);
        if (dtype != PL_BF16) CHECK(pl_kernel_unpack(&ks, &w, &unpack, &err));
        float *x = kit_random(rows * in, 1), *bias = kit_random(out, 1), *want = kit_random(rows * out, 1),
              *row = malloc(in * 4 + 4);
        double *magnitude = malloc(rows * out * sizeof *magnitude);
        struct pl_device_buffer bx = kit_up(x, rows * in * 4), bb = kit_up(bias, out * 4);
        struct pl_device_buffer by = add ? kit_up(want, rows * out * 4) : kit_out(rows * out * 4);
        CHECK(pl_launch_pack(&ks, &dense, &bx, rows * in));
        CHECK(pl_launch_dense(&ks, &dense, &unpack, &w, use_bias ? &bb : NULL, &by, rows, add));
        CHECK(pl_ref_matmul(&m.t, use_bias ? bias : NULL, x, in, rows, add, want, out, magnitude, row));
        float *y = kit_down(&by);
        for (size_t i = 0; i < rows * out; i++) {
            double off = fabs((double)y[i] - (double)want[i]);
            if (off <= 4e-3 * (magnitude[i] + fabs((double)want[i]) + 1e-6)) continue;
            print_message("# dense %s rows %zu of %zu x %zu: element %zu is %.9g, expected %.9g\n", pl_dtype_name(dtype),
                          rows, out, in, i, (double)y[i], (double)want[i]);
            fail();
        }
        free(y), free(x), free(bias), free(want), free(row), free(magnitude);
        kit_drop(&bx), kit_drop(&bb);
        pl_kernel_free(&ks, &unpack);
        pl_dense_deinit(&ks, &dense);
        pl_gemm_close(ks.gemm);
        ks.gemm = NULL;
    }
    kit_drop(&w.data);
    free(m.data);
}
static void dense(void) {
    static const enum pl_dtype types[] = {PL_BF16, PL_F16, PL_Q4_0, PL_Q8_0, PL_Q4_K, PL_Q5_K, PL_Q6_K, PL_IQ4_XS};
    for (size_t i = 0; i < PL_COUNT_OF(types); i++) {
        one_dense(types[i], 72, 512, 40, i % 2 == 0, false);
        one_dense(types[i], 200, 768, 65, false, true);
    }
}
static void test_dense(void **state) {
    (void)state;
    kit_each(dense);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dense), cmocka_unit_test(test_plain),
                                       cmocka_unit_test(test_blocks), cmocka_unit_test(test_mlx),
                                       cmocka_unit_test(test_gemv)};
    return cmocka_run_group_tests_name("products", tests, NULL, NULL);
}
