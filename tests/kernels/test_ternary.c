/* BitNet's product against src/ref: rows 1..64, odd numbers of outputs, sentinels, poisoned outputs; both kernels apart.
 *
 * test-variants: release (the kernels are compiled by the OpenCL driver, which no sanitizer sees; the host code they go
 * through is sanitized in tests/device, tests/jit and tests/model)
 * test-timeout: 600 */
#include "kit.h"

#include "ops/ternary.h"

enum { ROWS_MAX = 64 };

struct matrix {
    struct pl_tensor t;
    uint8_t *data;
    float scale;
    struct pl_device_weight w;
};

static struct matrix *matrix_up(size_t out, size_t in) {
    struct matrix *m = calloc(1, sizeof *m);
    float *row = malloc(in * sizeof *row);
    m->data = malloc(out * in / 4);
    for (size_t o = 0; o < out; o++) {
        for (size_t i = 0; i < in; i++) row[i] = 0.75f * (float)((int)(kit_u32() % 3) - 1);
        assert_true(pl_ternary_row(row, in, &m->scale, m->data + o * in / 4));
    }
    m->scale = 0.75f;
    m->t = (struct pl_tensor){.name = "t",
                              .dtype = PL_TERNARY,
                              .ndim = 2,
                              .shape = {out, in, 1, 1},
                              .data = m->data,
                              .bytes = out * in / 4,
                              .scales = &m->scale,
                              .scale_dtype = PL_F32};
    m->w = (struct pl_device_weight){.dtype = PL_TERNARY, .rows = out, .cols = in, .row_bytes = in / 4};
    m->w.data = kit_up(m->data, m->t.bytes);
    free(row);
    return m;
}
static void matrix_drop(struct matrix *m) {
    kit_drop(&m->w.data);
    free(m->data);
    free(m);
}

static float *product(const struct pl_ternary_kernels *k, struct pl_kernel *tile_kernel, const struct matrix *m,
                      const float *x, size_t rows, uint32_t tile_rows) {
    size_t in = m->w.cols;
    struct pl_kernel quantize = k->quantize;
    struct pl_device_buffer bx = kit_up(x, rows * in * 4), q = kit_out(rows * in), row = kit_out(rows * 8),
                            y = kit_out(rows * m->w.rows * 4);
    CHECK(pl_launch_ternary_quantize(&ks, &quantize, &bx, &q, &row, rows, in));
    CHECK(pl_launch_ternary(&ks, tile_kernel, &m->w, m->scale, &q, &row, &y, rows, tile_rows));
    kit_drop(&bx);
    int8_t *codes = kit_down(&q);
    for (size_t r = 0; r < rows; r++) { /* what was rounded, element by element */
        float top = 1e-5f;
        for (size_t i = 0; i < in; i++) top = fmaxf(top, fabsf(x[r * in + i]));
        for (size_t i = 0; i < in; i++) assert_int_equal(codes[r * in + i], lrintf(x[r * in + i] * (127.0f / top)));
    }
    free(codes);
    kit_drop(&row);
    return kit_down(&y);
}

static void all_shapes(void) {
    static const size_t shapes[][2] = {{1, 32}, {3, 64}, {33, 96}, {130, 256}, {17, 2560}, {64, 6912}};
    struct pl_ternary_kernels k = {0};
    CHECK(pl_kernel_ternary_quantize(&ks, &k.quantize, &err));
    for (size_t s = 0; s < PL_COUNT_OF(shapes); s++) {
        struct matrix *m = matrix_up(shapes[s][0], shapes[s][1]);
        const size_t in = m->w.cols, out = m->w.rows, step = s < 3 && !test_small() ? 1 : 21;
        float *scratch = malloc(in * 4);
        for (size_t rows = 1; rows <= ROWS_MAX; rows += step) {
            uint32_t tile_rows, tile = pl_tile_of(rows, &tile_rows);
            float *x = kit_random(rows * in, rows % 5 == 0 ? 1e-9f : 30.0f), *want = malloc(rows * out * 4);
            if (k.product[tile].jit == NULL) CHECK(pl_kernel_ternary(&ks, tile, &k.product[tile], &err));
            CHECK(pl_ref_ternary(&m->t, x, in, rows, want, out, scratch));
            float *y = product(&k, &k.product[tile], m, x, rows, tile_rows);
            kit_near(k.product[tile].name, y, want, rows * out, 4e-7, 1e-30);
            free(x), free(want), free(y);
        }
        free(scratch);
        matrix_drop(m);
    }
    for (int i = 0; i < PL_TILE_COUNT; i++) {
        if (k.product[i].jit != NULL) pl_kernel_free(&ks, &k.product[i]);
    }
    pl_kernel_free(&ks, &k.quantize);
}

/* One code more or less in a matrix is seen: the oracle keeps the old one. */
static void one_wrong_code(void) {
    struct pl_ternary_kernels k = {0};
    struct matrix *m = matrix_up(5, 64);
    float *x = kit_random(64, 1.0f), want[5], row[64];
    CHECK(pl_kernel_ternary_quantize(&ks, &k.quantize, &err));
    CHECK(pl_kernel_ternary(&ks, 0, &k.product[0], &err));
    CHECK(pl_ref_ternary(&m->t, x, 64, 1, want, 5, row));
    uint8_t *there = kit_down(&m->w.data);
    there[16] = (uint8_t)((there[16] & ~3u) | (((there[16] & 3u) + 1u) % 3u)); /* output 1, input 0 */
    m->w.data = kit_up(there, m->t.bytes);
    float *y = product(&k, &k.product[0], m, x, 1, 1);
    assert_true(fabsf(y[0] - want[0]) <= 1e-5f);
    assert_true(fabsf(y[1] - want[1]) > 0.5f * fabsf(x[0]) * m->scale);
    free(there), free(x), free(y);
    matrix_drop(m);
    pl_kernel_free(&ks, &k.quantize);
    pl_kernel_free(&ks, &k.product[0]);
}

/* Steps of 8 bits that differ from the host's, when the quotient that decides them is moved by so many floats before it is
 * mended. Only OpenCL mends it. */
static size_t steps_off(const char *moved, const float *x, size_t rows, size_t in) {
    struct pl_jit_spec s = {.file = "ternary.k.c", .entry = "pk_ternary_quantize"};
    struct pl_kernel k = {0};
    size_t off = 0;
    pl_jit_set_u32(&s, "GROUP", ks.norm);
    pl_jit_set(&s, "PL_DIV_OFF", moved);
    CHECK(pl_kernel_make(&ks, &s, ks.norm, "ternary/quantize", &k, &err));
    struct pl_device_buffer bx = kit_up(x, rows * in * 4), q = kit_out(rows * in), row = kit_out(rows * 8);
    CHECK(pl_launch_ternary_quantize(&ks, &k, &bx, &q, &row, rows, in));
    int8_t *codes = kit_down(&q);
    float *scales = kit_down(&row);
    for (size_t r = 0; r < rows; r++) {
        float top = 1e-5f;
        for (size_t i = 0; i < in; i++) top = fmaxf(top, fabsf(x[r * in + i]));
        for (size_t i = 0; i < in; i++) off += codes[r * in + i] != lrintf(x[r * in + i] * (127.0f / top));
        off += scales[2 * r] != top / 127.0f;
    }
    kit_drop(&bx);
    free(codes), free(scales);
    pl_kernel_free(&ks, &k);
    return off;
}
static void quotients_off(void) {
    enum { ROWS = 64, IN = 6912 };
    if (pl_device_info(ks.device)->kind != PL_DEVICE_OPENCL) return;
    float *x = kit_random(ROWS * IN, 3.0f);
    assert_int_equal(steps_off("0", x, ROWS, IN), 0);
    assert_int_equal(steps_off("3", x, ROWS, IN), 0);
    assert_int_equal(steps_off("-3", x, ROWS, IN), 0);
    assert_true(steps_off("9", x, ROWS, IN) > 0); /* too far to be mended */
    free(x);
}

static void test_all_shapes(void **state) {
    (void)state;
    kit_each(all_shapes);
}
static void test_one_wrong_code(void **state) {
    (void)state;
    kit_each(one_wrong_code);
}

static void test_quotients_off(void **state) {
    (void)state;
    kit_each(quotients_off);
}

int main(void) {
    struct CMUnitTest tests[] = {cmocka_unit_test(test_all_shapes), cmocka_unit_test(test_one_wrong_code),
                                 cmocka_unit_test(test_quotients_off)};
    return TEST_RUN("ternary kernels", tests);
}
