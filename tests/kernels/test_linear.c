/* Products and embeddings of every weight type against src/ref: rows 1..64, widths 1..1025, sentinels, poisoned outputs.
 *
 * test-variants: release (the kernels are compiled by the OpenCL driver, which no sanitizer sees; the host code they go
 * through is sanitized in tests/device, tests/jit and tests/model)
 * test-timeout: 600 */
#include "made.h"

#include "ops/cuda_dense.h"
#include "ops/cuda_fast.h"
#include "ops/cuda_mma.h"
#include "ops/cuda_stream.h"

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
    uint32_t before[4] = {0, 0, kit_u32() % (uint32_t)w->rows, PL_PICK_BROKEN};
    for (size_t i = 0; i < ROWS; i++) step[i] = kit_u32() % (uint32_t)w->rows;
    float *want = malloc((ROWS * w->cols + 1) * 4);
    for (size_t i = 0; i < ROWS; i++) CHECK(pl_dequant_row_product(&m->t, step[i], want + i * w->cols));
    step[1] = PL_STEP_CHOSEN | 2u; /* what the step before chose; where that was nothing, the last row of the table */
    step[3] = PL_STEP_CHOSEN | 3u;
    CHECK(pl_dequant_row_product(&m->t, before[2], want + 1 * w->cols));
    CHECK(pl_dequant_row_product(&m->t, w->rows - 1, want + 3 * w->cols));
    struct pl_device_buffer bs = kit_up(step, sizeof step), bx = kit_out(ROWS * w->cols * 4),
                            chosen = kit_up(before, sizeof before);
    CHECK(pl_launch_embed(&ks, &k, w, &bs, STRIDE, &chosen, &bx, ROWS, 1.0f));
    float *x = kit_down(&bx);
    kit_near(k.name, x, want, ROWS * w->cols, 1e-6, 1.0);
    free(x);
    kit_drop(&bs);
    kit_drop(&chosen);
    free(want);
    pl_kernel_free(&ks, &k);
}

static void one_type(enum pl_dtype dtype, size_t out, size_t in, uint32_t bits, uint32_t group, enum pl_dtype scales,
                     size_t max_rows) {
    struct made m = make_tensor(dtype, out, in, bits, group, scales);
    struct pl_device_weight w = upload(&m);
    struct pl_kernel k[PL_TILE_COUNT] = {0};
    for (size_t rows = 1; rows <= max_rows; rows += test_small() && rows < max_rows ? PL_MIN(3, max_rows - rows) : 1) {
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
    static const enum pl_dtype types[] = {PL_F32, PL_F16, PL_BF16};
    enum { WIDEST = 1025 };
    for (size_t cols = 1; cols <= WIDEST; cols += test_small() ? 256 : 1) /* every width, and each type at most of them */
        one_type(types[cols % 3], 1 + cols % 19, cols, 0, 0, 0, 1 + cols % 2);
    if (test_small()) return;
    static const size_t widths[] = {1, 31, 32, 33, 64, 127, 1021, 1025};
    for (size_t i = 0; i < PL_COUNT_OF(widths); i++) {
        for (size_t t = 0; t < PL_COUNT_OF(types); t++) one_type(types[t], 1 + i * 5, widths[i], 0, 0, 0, 3);
    }
    one_type(PL_F32, 37, 96, 0, 0, 0, 64); /* every row count */
    one_type(PL_BF16, 67, 256, 0, 0, 0, 64);
    one_type(PL_F16, 5, 64, 0, 0, 0, 64);
}
static void block_types(void) {
    static const enum pl_dtype types[] = {
        PL_Q4_0,   PL_Q4_1,  PL_Q5_0,  PL_Q5_1,  PL_Q8_0,  PL_Q2_K,  PL_Q3_K,    PL_Q4_K,   PL_Q5_K,  PL_Q6_K,    PL_IQ4_NL,
        PL_IQ4_XS, PL_MXFP4, PL_TQ1_0, PL_TQ2_0, PL_IQ1_S, PL_IQ1_M, PL_IQ2_XXS, PL_IQ2_XS, PL_IQ2_S, PL_IQ3_XXS, PL_IQ3_S};
    for (size_t i = 0; i < PL_COUNT_OF(types); i++) {
        size_t block = pl_dtype_info(types[i])->block_elems;
        one_type(types[i], 33, block * (test_small() ? 1 : 3), 0, 0, 0, test_small() ? 8 : 64);
        for (size_t n = 1; n <= 1024 / block && !test_small(); n++)
            one_type(types[i], 1 + n % 7, block * n, 0, 0, 0, 1 + n % 3);
    }
}
static void mlx_types(void) {
    static const uint32_t bits[] = {2, 3, 4, 5, 6, 8};
    static const uint32_t sizes[] = {32, 64, 128};
    static const enum pl_dtype scales[] = {PL_F16, PL_BF16, PL_F32};
    for (size_t i = 0; i < PL_COUNT_OF(bits); i++) {
        for (size_t k = 0; k < (test_small() ? 1 : PL_COUNT_OF(sizes)); k++) {
            one_type(PL_MLX, 21, 256, bits[i], sizes[k], scales[(i + k) % 3], test_small() ? 4 : k == i % 3 ? 64 : 1);
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
        for (uint32_t rows = 1; rows <= PL_GEMV_ROWS_MAX; rows += test_small() ? 7 : 1) {
            size_t i = (t + rows) % (test_small() ? 2 : PL_COUNT_OF(widths));
            struct made m = make_tensor(types[t], 37, widths[i], 0, 0, 0);
            struct pl_device_weight w = upload(&m);
            const char *why = pl_gemv_declines(&ks, &w, rows);
            if (why == NULL) check_gemv(&m, &w, rows, i % 2 == 0, rows % 3 == 1);
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
        struct pl_launch_dense l = {
            .w = &w, .x = &dense.x, .bias = use_bias ? &bb : NULL, .y = &by, .rows = rows, .add = add};
        CHECK(pl_launch_dense(&ks, &dense, &unpack, &l));
        if (dtype != PL_BF16) { /* unpacked once and kept: the same bits */
            struct pl_device_buffer kept = kit_out(2 * in * out),
                                    again = add ? kit_up(want, rows * out * 4) : kit_out(rows * out * 4);
            CHECK(pl_launch_unpack(&ks, &unpack, &w, &kept));
            l.kept = &kept, l.y = &again;
            CHECK(pl_launch_dense(&ks, &dense, &unpack, &l));
            float *first = kit_down(&by), *second = kit_down(&again);
            assert_memory_equal(first, second, rows * out * 4);
            by = kit_up(first, rows * out * 4);
            free(first), free(second), kit_drop(&kept);
        }
        CHECK(pl_ref_matmul(&m.t, use_bias ? bias : NULL, x, in, rows, add, want, out, magnitude, row));
        if (!use_bias && !add) { /* the same rounded to bf16 */
            struct pl_device_buffer bh = kit_out(rows * out * 2);
            l.kept = NULL, l.y = &bh, l.half = true;
            CHECK(pl_launch_dense(&ks, &dense, &unpack, &l));
            uint16_t *h = kit_down(&bh);
            for (size_t i = 0; i < rows * out; i++)
                assert_true(fabs((double)pl_bf16_to_f32(h[i]) - (double)want[i]) <=
                            8e-3 * (magnitude[i] + fabs((double)want[i]) + 1e-6));
            free(h);
        }
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
        if (test_small()) continue;
        one_dense(types[i], 200, 768, 65, false, true);
        if (types[i] == PL_BF16)
            one_dense(types[i], 136, 512, 3, true, false), one_dense(types[i], 136, 512, 8, false, true);
    }
}
static void test_dense(void **state) {
    (void)state;
    kit_each(dense);
}

/* --- rearranged weights on tensor cores: inputs rounded to 11 bits of the largest of their 256 --- */

struct strips {
    struct made m;
    struct pl_device_weight w;
    struct pl_mma_room room;
    struct pl_kernel copy;
};
static struct strips strips_of(enum pl_dtype dtype, size_t out, size_t in, size_t rows) {
    struct strips s = {.m = make_tensor(dtype, out, in, 0, 0, PL_F32)};
    struct pl_device_weight file = upload(&s.m);
    struct pl_kernel retile = {0};
    s.w = file;
    CHECK(pl_kernel_retile(&ks, &file, &retile, &err));
    s.w.data = kit_out(pl_strips_bytes(&file));
    CHECK(pl_launch_retile(&ks, &retile, &file, &s.w.data));
    s.w.strips = true;
    CHECK(pl_mma_ready(&ks, &s.room, rows, in, 3 * out, &err));
    CHECK(pl_kernel_prepare(&ks, PL_PREPARE_COPY, pl_mma_inputs(&ks, false, rows), &s.copy, &err));
    pl_kernel_free(&ks, &retile);
    kit_drop(&file.data);
    return s;
}
static void strips_drop(struct strips *s) {
    pl_kernel_free(&ks, &s->copy);
    pl_mma_deinit(&ks, &s->room);
    kit_drop(&s->w.data);
    free(s->m.data);
}

static void check_mma(struct strips *s, size_t rows, size_t matrices, bool use_bias, bool add,
                      const struct pl_mma_shape *force) {
    size_t in = s->w.cols, out = s->w.rows;
    float *x = kit_random(rows * in, 1), *bias = kit_random(out, 1), *want = kit_random(rows * out, 1),
          *row = malloc(in * 4 + 4);
    double *magnitude = malloc(rows * out * sizeof *magnitude);
    for (size_t r = 0; r < rows; r++) { /* magnitudes far apart, also of neighbouring blocks */
        for (size_t i = 0; i < in; i++) x[r * in + i] *= ldexpf(1.0f, (int)((r * 7 + i / 256 * 5) % 41) - 20);
    }
    struct pl_device_buffer bx = kit_up(x, rows * in * 4), bb = kit_up(bias, out * 4), by[PL_MMA_MATRICES_MAX];
    struct pl_launch_mma m = {.count = matrices, .ready = rows, .add = add};
    for (size_t i = 0; i < matrices; i++) {
        by[i] = add ? kit_up(want, rows * out * 4) : kit_out(rows * out * 4);
        m.w[i] = &s->w, m.bias[i] = use_bias ? &bb : NULL, m.y[i] = &by[i];
    }
    struct pl_launch_prepare p = {.x = &bx, .rows = rows, .cols = in};
    CHECK(pl_launch_prepare(&ks, PL_PREPARE_COPY, &s->copy, &s->room, &p));
    for (m.from = 0; m.from < rows; m.from += pl_mma_rows(&ks)) {
        m.rows = PL_MIN((uint32_t)rows - m.from, pl_mma_rows(&ks));
        m.row0 = m.from;
        struct pl_mma_shape shape =
            force != NULL ? *force : pl_mma_shape_of(&ks, false, pl_mma_size(m.rows, pl_mma_inputs(&ks, false, rows)));
        struct pl_kernel k = {0};
        CHECK(pl_kernel_mma(&ks, &s->w, &shape, &k, &err));
        uint64_t before = 0, counted = 0;
        CHECK(pl_kernel_counted(&ks, &k, &before, &err));
        CHECK(pl_launch_mma(&ks, &k, &shape, &s->room, &m));
        CHECK(pl_kernel_counted(&ks, &k, &counted, &err));
        assert_int_equal(counted, before + 1);
        pl_kernel_free(&ks, &k);
    }
    CHECK(pl_ref_matmul(&s->m.t, use_bias ? bias : NULL, x, in, rows, add, want, out, magnitude, row));
    for (size_t i = 0; i < matrices; i++) {
        float *y = kit_down(&by[i]);
        for (size_t e = 0; e < rows * out; e++) {
            double off = fabs((double)y[e] - (double)want[e]);
            if (off <= 5e-4 * (magnitude[e] + fabs((double)want[e]) + 1e-9)) continue;
            print_message("# mma %s rows %zu of %zu x %zu: matrix %zu element %zu is %.9g, expected %.9g\n",
                          pl_dtype_name(s->w.dtype), rows, out, in, i, e, (double)y[e], (double)want[e]);
            fail();
        }
        free(y);
    }
    kit_drop(&bx), kit_drop(&bb);
    free(x), free(bias), free(want), free(row), free(magnitude);
}

/* bf16 weights as they are, inputs rounded to bf16. */
static void one_plain(size_t out, size_t in, size_t rows, size_t matrices, bool use_bias, bool add) {
    struct strips s = {.m = make_tensor(PL_BF16, out, in, 0, 0, PL_F32)};
    s.w = upload(&s.m);
    if (!pl_mma_plain(&ks, &s.w)) {
        kit_drop(&s.w.data);
        free(s.m.data);
        return;
    }
    assert_null(pl_mma_declines(&ks, &s.w));
    CHECK(pl_mma_ready(&ks, &s.room, rows, in, 3 * out, &err));
    CHECK(pl_kernel_prepare(&ks, PL_PREPARE_COPY, PL_INPUTS_PLAIN, &s.copy, &err));
    float *x = kit_random(rows * in, 1), *bias = kit_random(out, 1), *want = kit_random(rows * out, 1),
          *row = malloc(in * 4 + 4);
    double *magnitude = malloc(rows * out * sizeof *magnitude);
    for (size_t i = 0; i < rows * in; i++) x[i] = pl_bf16_to_f32(pl_f32_to_bf16(x[i])); /* so nothing is rounded */
    struct pl_device_buffer bx = kit_up(x, rows * in * 4), bb = kit_up(bias, out * 4), by[PL_MMA_MATRICES_MAX];
    struct pl_launch_mma m = {.count = matrices, .ready = rows, .add = add};
    for (size_t i = 0; i < matrices; i++) {
        by[i] = add ? kit_up(want, rows * out * 4) : kit_out(rows * out * 4);
        m.w[i] = &s.w, m.bias[i] = use_bias ? &bb : NULL, m.y[i] = &by[i];
    }
    struct pl_launch_prepare p = {.x = &bx, .rows = rows, .cols = in};
    CHECK(pl_launch_prepare(&ks, PL_PREPARE_COPY, &s.copy, &s.room, &p));
    for (m.from = 0; m.from < rows; m.from += pl_mma_rows(&ks)) {
        m.rows = PL_MIN((uint32_t)rows - m.from, pl_mma_rows(&ks));
        m.row0 = m.from;
        struct pl_mma_shape shape = pl_mma_shape_of(&ks, true, pl_mma_size(m.rows, PL_INPUTS_PLAIN));
        struct pl_kernel k = {0};
        CHECK(pl_kernel_mma(&ks, &s.w, &shape, &k, &err));
        CHECK(pl_launch_mma(&ks, &k, &shape, &s.room, &m));
        pl_kernel_free(&ks, &k);
    }
    CHECK(pl_ref_matmul(&s.m.t, use_bias ? bias : NULL, x, in, rows, add, want, out, magnitude, row));
    for (size_t i = 0; i < matrices; i++) {
        float *y = kit_down(&by[i]);
        for (size_t e = 0; e < rows * out; e++) {
            double off = fabs((double)y[e] - (double)want[e]);
            if (off <= 1e-5 * (magnitude[e] + fabs((double)want[e]) + 1e-9)) continue;
            print_message("# mma bf16 rows %zu of %zu x %zu: matrix %zu element %zu is %.9g, expected %.9g\n", rows, out, in,
                          i, e, (double)y[e], (double)want[e]);
            fail();
        }
        free(y);
    }
    kit_drop(&bx), kit_drop(&bb);
    free(x), free(bias), free(want), free(row), free(magnitude);
    strips_drop(&s);
}
static void plain_on_units(void) {
    one_plain(16, 256, 2, 1, true, false);
    one_plain(272, 2304, 3, 3, false, true);
    one_plain(1040, 1024, 8, 2, true, true);
    one_plain(144, 4096, 12, 1, false, false);
    one_plain(80, 14336, 17, 1, true, false);
    one_plain(1040, 768, 33, 3, false, true);
    one_plain(2176, 1280, 64, 2, true, false);
    one_plain(48, 512, 70, 1, false, false);
    one_plain(64, 256, 128, 1, true, true);
}
static void test_plain_on_units(void **state) {
    (void)state;
    kit_each(plain_on_units);
}

static void mma_types(void) {
    static const enum pl_dtype types[] = {PL_Q4_K, PL_Q6_K};
    static const struct {
        size_t out, in, rows, matrices;
    } cases[] = {{16, 256, 1, 1},     {272, 2304, 1, 3},  {48, 768, 5, 2},    {64, 4096, 8, 3},  {2176, 256, 3, 1},
                 {80, 2304, 9, 2},    {144, 1024, 16, 1}, {144, 1280, 17, 3}, {272, 512, 32, 2}, {144, 2304, 33, 1},
                 {1040, 1024, 64, 3}, {48, 512, 100, 2},  {48, 512, 70, 1}};
    for (size_t t = 0; t < PL_COUNT_OF(types); t++) {
        for (size_t i = 0; i < PL_COUNT_OF(cases); i++) {
            if (test_small() && cases[i].out * cases[i].in > 160000) continue;
            struct pl_device_weight w = {.dtype = types[t], .rows = cases[i].out, .cols = cases[i].in};
            const char *why = pl_strips_decline(&ks, &w);
            if (pl_device_info(ks.device)->kind == PL_DEVICE_CUDA) assert_null(why);
            if (why != NULL) continue;
            struct strips s = strips_of(types[t], cases[i].out, cases[i].in, cases[i].rows);
            assert_null(pl_mma_declines(&ks, &s.w));
            check_mma(&s, cases[i].rows, cases[i].matrices, i % 2 == 0, i % 3 == 0, NULL);
            strips_drop(&s);
        }
        struct pl_device_weight w = {.dtype = types[t], .rows = 48, .cols = 512};
        for (size_t rows = 1; rows <= 64 && pl_strips_decline(&ks, &w) == NULL && !test_small(); rows++) {
            struct strips s = strips_of(types[t], w.rows, w.cols, rows);
            check_mma(&s, rows, 1 + rows % 3, rows % 2 == 0, rows % 3 == 0, NULL);
            strips_drop(&s);
        }
    }
}
static void test_mma(void **state) {
    (void)state;
    kit_each(mma_types);
}

static void prepares(void);
/* The same in the order of additions that no number of rows changes. Which bits are the same: test_invariant. */
static void fixed(void) {
    ks.fixed = pl_device_info(ks.device)->kind == PL_DEVICE_CUDA;
    if (!ks.fixed) return;
    mma_types();
    if (test_small()) return;
    plain_on_units();
    prepares();
}
static void test_fixed(void **state) {
    (void)state;
    kit_each(fixed);
}

/* The f32 results of what makes inputs ready, and the inputs themselves through a product with them. */
static void one_prepare(enum pl_prepare which, size_t rows, size_t cols) {
    struct strips s = strips_of(PL_Q4_K, 48, cols, rows);
    struct pl_kernel k = {0}, mm = {0};
    struct pl_mma_shape shape = pl_mma_shape_of(&ks, false, pl_mma_size(rows, pl_mma_inputs(&ks, false, rows)));
    CHECK(pl_kernel_prepare(&ks, which, pl_mma_inputs(&ks, false, rows), &k, &err));
    CHECK(pl_kernel_mma(&ks, &s.w, &shape, &mm, &err));
    float *x = kit_random(rows * cols, 2), *second = kit_random(rows * cols, 2), *w = kit_random(cols, 1),
          *want = malloc(rows * cols * 4 + 4), *sum = malloc(rows * cols * 4 + 4);
    bool norm = which == PL_PREPARE_NORM || which == PL_PREPARE_ADD_NORM;
    for (size_t r = 0; r < rows; r++) {
        double square = 0;
        for (size_t i = r * cols; i < (r + 1) * cols; i++) {
            sum[i] = which == PL_PREPARE_ADD_NORM ? x[i] + second[i] : x[i];
            square += (double)sum[i] * sum[i];
        }
        for (size_t i = r * cols; i < (r + 1) * cols; i++) {
            double v = sum[i], gelu = 0.5 * v * (1 + tanh(0.7978845608028654 * v * (1 + 0.044715 * v * v)));
            if (norm) v = v / sqrt(square / (double)cols + 1e-5) * (0.5 + (double)w[i - r * cols]);
            if (which == PL_PREPARE_SILU) v = v / (1 + exp(-v)) * second[i];
            if (which == PL_PREPARE_GELU_TANH) v = gelu * second[i];
            want[i] = (float)v;
        }
    }
    struct pl_device_buffer bx = kit_up(x, rows * cols * 4), b2 = kit_up(second, rows * cols * 4), bw = kit_up(w, cols * 4),
                            by = kit_out(rows * cols * 4), bo = kit_out(rows * 48 * 4);
    struct pl_launch_prepare p = {
        .x = &bx, .second = &b2, .w = &bw, .y = &by, .rows = rows, .cols = cols, .eps = 1e-5f, .offset = 0.5f};
    CHECK(pl_launch_prepare(&ks, which, &k, &s.room, &p));
    struct pl_launch_mma m = {.count = 1, .w = {&s.w}, .y = {&bo}, .ready = rows, .rows = (uint32_t)rows};
    CHECK(pl_launch_mma(&ks, &mm, &shape, &s.room, &m));
    float *after = kit_down(&bx), *y = kit_down(&by), *out = kit_down(&bo), *ref = malloc(rows * 48 * 4),
          *row = malloc(cols * 4 + 4);
    double *magnitude = malloc(rows * 48 * sizeof *magnitude);
    kit_near("the sum", after, sum, rows * cols, 1e-6, 1e-6);
    kit_near(k.name, y, want, rows * cols, 3e-5, 1e-3);
    CHECK(pl_ref_matmul(&s.m.t, NULL, y, cols, rows, false, ref, 48, magnitude, row));
    for (size_t i = 0; i < rows * 48; i++) {
        if (fabs((double)out[i] - (double)ref[i]) <= 5e-4 * (magnitude[i] + 1e-9)) continue;
        print_message("# %s then mma, %zu x %zu: element %zu is %.9g, expected %.9g\n", k.name, rows, cols, i,
                      (double)out[i], (double)ref[i]);
        fail();
    }
    kit_drop(&b2), kit_drop(&bw);
    free(x), free(second), free(w), free(want), free(sum), free(after), free(y), free(out), free(ref), free(row),
        free(magnitude);
    pl_kernel_free(&ks, &k);
    pl_kernel_free(&ks, &mm);
    strips_drop(&s);
}
/* Parts of split attention, some of them empty, joined and made ready. */
static void one_merge(size_t rows, size_t heads, size_t head_dim, uint32_t splits) {
    size_t cols = heads * head_dim, n = rows * heads;
    struct strips s = strips_of(PL_Q4_K, 48, cols, rows);
    struct pl_kernel k = {0}, mm = {0};
    struct pl_mma_shape shape = pl_mma_shape_of(&ks, false, pl_mma_size(rows, pl_mma_inputs(&ks, false, rows)));
    CHECK(pl_kernel_prepare(&ks, PL_PREPARE_MERGE, pl_mma_inputs(&ks, false, rows), &k, &err));
    CHECK(pl_kernel_mma(&ks, &s.w, &shape, &mm, &err));
    float *x = kit_random(n * splits * head_dim, 2), *lse = kit_random(n * splits, 8), *want = malloc(rows * cols * 4);
    for (size_t i = 0; i < n; i++) {
        double total = 0;
        if (i % 3 == 1) lse[i * splits + i % splits] = -INFINITY;
        for (uint32_t p = 0; p < splits; p++) total += exp2((double)lse[i * splits + p]);
        for (size_t d = 0; d < head_dim; d++) {
            double v = 0;
            for (uint32_t p = 0; p < splits; p++) {
                v += exp2((double)lse[i * splits + p]) * (double)x[(i * splits + p) * head_dim + d];
            }
            want[i * head_dim + d] = (float)(total > 0 ? v / total : 0);
        }
    }
    struct pl_device_buffer bx = kit_up(x, n * splits * head_dim * 4), bl = kit_up(lse, n * splits * 4),
                            by = kit_out(rows * cols * 4), bo = kit_out(rows * 48 * 4);
    struct pl_launch_prepare p = {
        .x = &bx, .second = &bl, .y = &by, .rows = rows, .cols = cols, .splits = splits, .head_dim = (uint32_t)head_dim};
    CHECK(pl_launch_prepare(&ks, PL_PREPARE_MERGE, &k, &s.room, &p));
    struct pl_launch_mma m = {.count = 1, .w = {&s.w}, .y = {&bo}, .ready = rows, .rows = (uint32_t)rows};
    CHECK(pl_launch_mma(&ks, &mm, &shape, &s.room, &m));
    float *y = kit_down(&by), *out = kit_down(&bo), *ref = malloc(rows * 48 * 4), *row = malloc(cols * 4 + 4);
    double *magnitude = malloc(rows * 48 * sizeof *magnitude);
    kit_near(k.name, y, want, rows * cols, 3e-5, 1e-2);
    CHECK(pl_ref_matmul(&s.m.t, NULL, y, cols, rows, false, ref, 48, magnitude, row));
    for (size_t i = 0; i < rows * 48; i++) {
        assert_true(fabs((double)out[i] - (double)ref[i]) <= 5e-4 * (magnitude[i] + 1e-9));
    }
    kit_drop(&bx), kit_drop(&bl);
    free(x), free(lse), free(want), free(y), free(out), free(ref), free(row), free(magnitude);
    pl_kernel_free(&ks, &k);
    pl_kernel_free(&ks, &mm);
    strips_drop(&s);
}
static void prepares(void) {
    struct pl_device_weight w = {.dtype = PL_Q4_K, .rows = 48, .cols = 256};
    if (pl_strips_decline(&ks, &w) != NULL) return;
    one_merge(1, 4, 64, 1);
    if (!test_small()) one_merge(3, 32, 128, 8), one_merge(9, 5, 256, 3), one_merge(20, 8, 64, 2);
    for (int i = PL_PREPARE_NORM; i < PL_PREPARE_MERGE; i++) {
        one_prepare((enum pl_prepare)i, 1, 256);
        if (test_small()) continue;
        one_prepare((enum pl_prepare)i, 11, 4096);
        one_prepare((enum pl_prepare)i, 3, 5120);
        one_prepare((enum pl_prepare)i, 40, 1024);
    }
}
static void test_prepare(void **state) {
    (void)state;
    kit_each(prepares);
}

/* Rearranged weights unpacked: bit for bit what the file's layout unpacks to. */
static void unpacks(void) {
    static const enum pl_dtype types[] = {PL_Q4_K, PL_Q6_K};
    for (size_t t = 0; t < PL_COUNT_OF(types); t++) {
        struct pl_device_weight probe = {.dtype = types[t], .rows = 160, .cols = 768};
        if (pl_strips_decline(&ks, &probe) != NULL) continue;
        struct strips s = strips_of(types[t], 160, 768, 8);
        struct pl_device_weight file = upload(&s.m);
        float *y[2], *x = kit_random(40 * 768, 1);
        for (int i = 0; i < 2; i++) {
            struct pl_device_weight *w = i == 0 ? &file : &s.w;
            struct pl_dense d = {0};
            struct pl_kernel unpack = {0};
            CHECK(pl_dense_ready(&ks, &d, 2 * 40 * 768, pl_dense_unpacked_bytes(w), &err));
            assert_int_equal(d.why_not[0], 0);
            CHECK(pl_kernel_unpack(&ks, w, &unpack, &err));
            struct pl_device_buffer bx = kit_up(x, 40 * 768 * 4), by = kit_out(40 * 160 * 4);
            CHECK(pl_launch_pack(&ks, &d, &bx, 40 * 768));
            const struct pl_launch_dense l = {.w = w, .x = &d.x, .y = &by, .rows = 40};
            CHECK(pl_launch_dense(&ks, &d, &unpack, &l));
            y[i] = kit_down(&by);
            kit_drop(&bx);
            pl_kernel_free(&ks, &unpack);
            pl_dense_deinit(&ks, &d);
            pl_gemm_close(ks.gemm);
            ks.gemm = NULL;
        }
        assert_memory_equal(y[0], y[1], 40 * 160 * 4);
        free(y[0]), free(y[1]), free(x);
        kit_drop(&file.data);
        strips_drop(&s);
    }
}
static void test_unpack(void **state) {
    (void)state;
    kit_each(unpacks);
}

/* Norms and gates that leave bf16, and bf16 made f32 again. */
static void one_pack(size_t rows, size_t cols) {
    struct pl_kernel k[PL_PACK_COUNT] = {0};
    size_t n = rows * cols;
    float *x = kit_random(n, 3), *w = kit_random(cols, 1), *want = malloc(cols * 4);
    uint16_t *gate = malloc(2 * n), *up = malloc(2 * n);
    for (size_t i = 0; i < n; i++) gate[i] = pl_f32_to_bf16(kit_f32() * 6), up[i] = pl_f32_to_bf16(kit_f32() * 2);
    for (int i = 0; i < PL_PACK_COUNT; i++) CHECK(pl_kernel_pack(&ks, (enum pl_pack)i, &k[i], &err));
    struct pl_device_buffer bx = kit_up(x, n * 4), bw = kit_up(w, cols * 4), by = kit_out(n * 2), bu = kit_up(up, n * 2);
    CHECK(pl_launch_pack_norm(&ks, &k[PL_PACK_NORM], &bx, &bw, &by, rows, cols, 1e-5f, 1.0f));
    uint16_t *y = kit_down(&by);
    for (size_t r = 0; r < rows; r++) {
        pl_ref_rmsnorm(x + r * cols, w, cols, 1e-5, 1.0, want);
        for (size_t i = 0; i < cols; i++)
            assert_true(fabs((double)pl_bf16_to_f32(y[r * cols + i]) - (double)want[i]) <=
                        4e-3 * fabs((double)want[i]) + 1e-6);
    }
    free(y);
    for (int act = 0; act < 2; act++) { /* in place, as it is used */
        struct pl_device_buffer bg = kit_up(gate, n * 2);
        CHECK(pl_launch_pack_glu(&ks, &k[act == 0 ? PL_PACK_SILU : PL_PACK_GELU_TANH], &bg, &bu, &bg, n));
        y = kit_down(&bg);
        for (size_t i = 0; i < n; i++) {
            double g = (double)pl_bf16_to_f32(gate[i]), u = (double)pl_bf16_to_f32(up[i]);
            double silu = g / (1 + exp(-g)), gelu = 0.5 * g * (1 + tanh(0.7978845608028654 * g * (1 + 0.044715 * g * g)));
            double expected = (act == 0 ? silu : gelu) * u;
            assert_true(fabs((double)pl_bf16_to_f32(y[i]) - expected) <= 4e-3 * fabs(expected) + 1e-6);
        }
        free(y);
    }
    float *f = malloc(n * 4);
    memcpy(f, up, n * 2);
    struct pl_device_buffer bf = kit_up(f, n * 4);
    free(f);
    CHECK(pl_launch_pack_widen(&ks, &k[PL_PACK_WIDEN], &bf, n));
    f = kit_down(&bf);
    for (size_t i = 0; i < n; i++) assert_true(f[i] == pl_bf16_to_f32(up[i]));
    free(f);
    kit_drop(&bx), kit_drop(&bw), kit_drop(&bu);
    for (int i = 0; i < PL_PACK_COUNT; i++) pl_kernel_free(&ks, &k[i]);
    free(x), free(w), free(want), free(gate), free(up);
}
static void packs(void) {
    if (!pl_cuda_has_units(&ks)) return;
    one_pack(1, 8);
    one_pack(3, 4096);
    one_pack(5, 328);
    one_pack(130, 64);
    one_pack(2, 9000);
}
static void test_packs(void **state) {
    (void)state;
    kit_each(packs);
}

/* --- one row at the speed of the memory: integers of 15 bits for packed weights, f32 for plain ones --- */

static double gate_of(const struct pl_stream_kind *k, double v) {
    return k->gelu ? 0.5 * v * (1 + tanh(0.7978845608028654 * v * (1 + 0.044715 * v * v))) : v / (1 + exp(-v));
}
static void normed(const float *x, const float *w, size_t n, float *h) {
    double square = 0;
    for (size_t i = 0; i < n; i++) square += (double)x[i] * x[i];
    for (size_t i = 0; i < n; i++) h[i] = (float)(x[i] / sqrt(square / (double)n + 1e-5) * (0.5 + (double)w[i]));
}

static void one_stream(enum pl_dtype dtype, size_t out, size_t in, struct pl_stream_kind kind, size_t matrices,
                       bool use_bias, bool add) {
    bool half = dtype == PL_BF16 || dtype == PL_F16;
    bool strips = dtype == PL_Q4_K || dtype == PL_Q6_K;
    double tolerance = half ? 1e-5 : 1e-4;
    struct made m = make_tensor(dtype, out, in, 0, 0, PL_F32);
    struct pl_device_weight file = upload(&m), w = file;
    struct pl_kernel retile = {0}, k = {0};
    if (strips) {
        CHECK(pl_kernel_retile(&ks, &file, &retile, &err));
        w.data = kit_out(pl_strips_bytes(&file));
        CHECK(pl_launch_retile(&ks, &retile, &file, &w.data));
        w.strips = true;
    }
    assert_null(pl_stream_declines(&ks, &w, 1));
    CHECK(pl_kernel_stream(&ks, &w, kind, &k, &err));
    float *x = kit_random(in, 1), *norm = kit_random(in, 1), *h = malloc(in * 4 + 4), *bias = kit_random(out, 1),
          *old = kit_random(out, 1), *want = malloc(out * 4 + 4), *row = malloc(in * 4 + 4);
    double *magnitude = malloc(out * sizeof *magnitude);
    for (size_t i = 0; i < in && !kind.norm; i++) x[i] *= ldexpf(1.0f, (int)(i / 32 * 5 % 41) - 20);
    for (size_t i = 0; i < in; i++) h[i] = x[i];
    if (kind.norm) normed(x, norm, in, h);
    struct pl_device_buffer bx = kit_up(x, in * 4), bn = kit_up(norm, in * 4), bh = kit_out(in * 4),
                            bb = kit_up(bias, out * 4), by[PL_STREAM_MATRICES_MAX];
    struct pl_launch_stream l = {
        .count = matrices, .x = &bx, .norm = &bn, .h = &bh, .eps = 1e-5f, .offset = 0.5f, .add = add};
    for (size_t i = 0; i < matrices; i++) {
        by[i] = add ? kit_up(old, out * 4) : kit_out(out * 4);
        l.w[i] = &w, l.bias[i] = use_bias ? &bb : NULL, l.y[i] = &by[i];
    }
    uint64_t before = 0, counted = 0;
    CHECK(pl_kernel_counted(&ks, &k, &before, &err));
    CHECK(pl_launch_stream(&ks, &k, kind, &l));
    CHECK(pl_kernel_counted(&ks, &k, &counted, &err));
    assert_int_equal(counted, before + 1);
    for (size_t i = 0; i < out; i++) want[i] = old[i];
    CHECK(pl_ref_matmul(&m.t, use_bias ? bias : NULL, h, in, 1, add, want, out, magnitude, row));
    for (size_t i = 0; i < (kind.glu ? 1 : matrices); i++) {
        float *y = kit_down(&by[i]);
        for (size_t e = 0; e < out; e++) {
            double v = want[e], size = magnitude[e] + fabs(v);
            if (kind.glu) v = gate_of(&kind, v) * v, size = size * (fabs((double)want[e]) + 1) * 2.5;
            if (fabs((double)y[e] - v) <= tolerance * (size + 1e-9)) continue;
            print_message("# %s of %zu x %zu: matrix %zu element %zu is %.9g, expected %.9g\n", k.name, out, in, i, e,
                          (double)y[e], v);
            fail();
        }
        free(y);
    }
    if (kind.norm) {
        float *got = kit_down(&bh);
        kit_near("what the norm left", got, h, in, 3e-5, 1e-3);
        free(got);
    } else {
        kit_drop(&bh);
    }
    for (size_t i = kind.glu ? 1 : matrices; i < matrices; i++) kit_drop(&by[i]);
    kit_drop(&bx), kit_drop(&bn), kit_drop(&bb), kit_drop(&w.data);
    if (strips) kit_drop(&file.data), pl_kernel_free(&ks, &retile);
    free(x), free(norm), free(h), free(bias), free(old), free(want), free(row), free(magnitude), free(m.data);
    pl_kernel_free(&ks, &k);
}

/* Not a number in, not a number out: integers must not hide it. */
static void broken_input(void) {
    struct strips s = strips_of(PL_Q4_K, 48, 512, 1);
    struct pl_kernel k = {0};
    CHECK(pl_kernel_stream(&ks, &s.w, (struct pl_stream_kind){0}, &k, &err));
    for (int what = 0; what < 2; what++) {
        float *x = kit_random(512, 1);
        x[300] = what == 0 ? NAN : INFINITY;
        struct pl_device_buffer bx = kit_up(x, 512 * 4), by = kit_out(48 * 4);
        struct pl_launch_stream l = {.count = 1, .w = {&s.w}, .y = {&by}, .x = &bx};
        CHECK(pl_launch_stream(&ks, &k, (struct pl_stream_kind){0}, &l));
        float *y = kit_down(&by);
        for (size_t i = 0; i < 48; i++) assert_false(isfinite(y[i]));
        kit_drop(&bx);
        free(x), free(y);
    }
    pl_kernel_free(&ks, &k);
    strips_drop(&s);
}

static void streams(void) {
    static const enum pl_dtype types[] = {PL_Q4_K, PL_Q6_K, PL_BF16, PL_F16, PL_Q8_0, PL_Q4_0, PL_Q4_1, PL_Q5_0};
    static const struct {
        size_t out, in, matrices;
        struct pl_stream_kind kind;
    } cases[] = {{16, 256, 1, {0}},
                 {272, 2304, 3, {0}},
                 {4096, 1024, 2, {.norm = true}},
                 {48, 4096, 1, {.norm = true}},
                 {2176, 768, 2, {.norm = true, .glu = true}},
                 {80, 2048, 2, {.glu = true, .gelu = true}},
                 {144, 2560, 2, {.norm = true, .glu = true, .gelu = true}},
                 {64, 5120, 1, {.norm = true}},
                 {64, 14336, 1, {0}},
                 {16, 28672, 1, {0}},
                 {35904, 256, 1, {.norm = true}}};
    struct pl_device_weight probe = {.dtype = PL_BF16, .rows = 48, .cols = 512, .row_bytes = 1024};
    if (pl_stream_declines(&ks, &probe, 1) != NULL) return;
    assert_non_null(pl_stream_declines(&ks, &probe, 2));
    for (size_t t = 0; t < PL_COUNT_OF(types); t++) {
        for (size_t i = 0; i < PL_COUNT_OF(cases); i++) {
            bool add = i % 3 == 1 && !cases[i].kind.glu;
            one_stream(types[t], cases[i].out, cases[i].in, cases[i].kind, cases[i].matrices, i % 2 == 0, add);
        }
    }
    one_stream(PL_BF16, 37, 1000, (struct pl_stream_kind){.norm = true}, 2, true, true); /* neither in fours nor in 256s */
    one_stream(PL_F16, 3, 2056, (struct pl_stream_kind){.glu = true}, 2, false, false);
    broken_input();
}
static void test_stream(void **state) {
    (void)state;
    kit_each(streams);
}

int main(void) {
    struct CMUnitTest tests[] = {cmocka_unit_test(test_stream), cmocka_unit_test(test_plain_on_units),
                                 cmocka_unit_test(test_mma),    cmocka_unit_test(test_prepare),
                                 cmocka_unit_test(test_fixed),  cmocka_unit_test(test_unpack),
                                 cmocka_unit_test(test_packs),  cmocka_unit_test(test_dense),
                                 cmocka_unit_test(test_plain),  cmocka_unit_test(test_blocks),
                                 cmocka_unit_test(test_mlx),    cmocka_unit_test(test_gemv)};
    return TEST_RUN("products", tests);
}
