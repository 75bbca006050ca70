/* BitNet's product against src/ref: rows 1..64, odd numbers of outputs, sentinels, poisoned outputs; both kernels apart. On
 * CUDA the products on matrix units too: the same bits as the portable kernels, and one launch the same as norm, product and
 * what follows apart.
 *
 * test-variants: release (the kernels are compiled by the OpenCL driver, which no sanitizer sees; the host code they go
 * through is sanitized in tests/device, tests/jit and tests/model)
 * test-timeout: 600 */
#include "kit.h"

#include "ops/cuda_ternary.h"
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
    assert_int_equal(steps_off("1", x, ROWS, IN), 0); /* beside the 2.5 that the quotient may be off itself */
    assert_int_equal(steps_off("-1", x, ROWS, IN), 0);
    assert_true(steps_off("9", x, ROWS, IN) > 0); /* too far to be mended */
    free(x);
}

/* --- on matrix units --- */

struct trio {
    struct matrix *m[PL_TERNARY_MATRICES_MAX];
    size_t count;
};
static struct trio trio_up(size_t out, size_t in, size_t count) {
    struct trio t = {.count = count};
    for (size_t i = 0; i < count; i++) {
        t.m[i] = matrix_up(count == 3 && i > 0 ? out / 2 + i : out, in);
        t.m[i]->scale = 0.75f + 0.125f * (float)i;
    }
    return t;
}
static void trio_drop(struct trio *t) {
    for (size_t i = 0; i < t->count; i++) matrix_drop(t->m[i]);
}
static void trio_fill(const struct trio *t, struct pl_launch_ternaries *l) {
    l->count = t->count;
    for (size_t i = 0; i < t->count; i++) l->w[i] = &t->m[i]->w, l->scale[i] = t->m[i]->scale;
}
static void same_bits(const char *what, const float *got, const float *want, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&got[i], &want[i], sizeof *got) == 0) continue;
        print_message("# %s: element %zu of %zu is %.9g, %.9g apart\n", what, i, n, (double)got[i], (double)want[i]);
        fail();
    }
}

static void rows_of_units(struct pl_ternary_kernels *k, const struct trio *t, size_t rows) {
    const size_t in = t->m[0]->w.cols;
    uint32_t tile_rows, tile = pl_tile_of(rows, &tile_rows);
    float *x = kit_random(rows * in, 30.0f);
    struct pl_device_buffer bx = kit_up(x, rows * in * 4), q = kit_out(rows * in), row = kit_out(rows * 8), y[3];
    struct pl_launch_ternaries l = {.rows = rows, .q = &q, .row = &row};
    struct pl_ternary_kind kind = {0};
    struct pl_kernel units;
    trio_fill(t, &l);
    for (size_t i = 0; i < t->count; i++) y[i] = kit_out(rows * t->m[i]->w.rows * 4), l.y[i] = &y[i];
    if (k->product[tile].jit == NULL) CHECK(pl_kernel_ternary(&ks, tile, &k->product[tile], &err));
    CHECK(pl_launch_ternary_quantize(&ks, &k->quantize, &bx, &q, &row, rows, in));
    pl_ternary_plan(&ks, &l, &kind);
    CHECK(pl_kernel_ternaries(&ks, &kind, &units, &err));
    CHECK(pl_launch_ternaries(&ks, &units, &kind, &l));
    for (size_t i = 0; i < t->count; i++) {
        const size_t n = rows * t->m[i]->w.rows;
        struct pl_device_buffer apart = kit_out(n * 4);
        float *want = malloc(n * 4), *scratch = malloc(in * 4);
        CHECK(pl_launch_ternary(&ks, &k->product[tile], &t->m[i]->w, t->m[i]->scale, &q, &row, &apart, rows, tile_rows));
        CHECK(pl_ref_ternary(&t->m[i]->t, x, in, rows, want, t->m[i]->w.rows, scratch));
        float *got = kit_down(&y[i]), *other = kit_down(&apart);
        kit_near(units.name, got, want, n, 4e-7, 1e-30);
        same_bits(units.name, got, other, n);
        free(got), free(other), free(want), free(scratch);
    }
    kit_drop(&bx), kit_drop(&q), kit_drop(&row);
    free(x);
}
static void units_of_rows(void) {
    static const size_t shapes[][2] = {{5, 64}, {40, 192}, {130, 320}, {33, 2560}, {64, 6912}};
    struct pl_ternary_kernels k = {0};
    if (pl_ternary_mma_declines(&ks, 64) != NULL) return;
    CHECK(pl_kernel_ternary_quantize(&ks, &k.quantize, &err));
    for (size_t s = 0; s < PL_COUNT_OF(shapes); s++) {
        struct trio t = trio_up(shapes[s][0], shapes[s][1], 1 + s % 3);
        static const size_t rows[] = {1, 2, 8, 9, 16, 17, 33, 64};
        for (size_t i = test_small() ? 3 : 0; i < PL_COUNT_OF(rows); i += test_small() ? 3 : 1)
            rows_of_units(&k, &t, rows[i]);
        trio_drop(&t);
    }
}

/* What the operations apart make of it, over what one launch made. */
static void apart(const struct trio *t, struct pl_ternary_kind kind, const struct pl_launch_ternaries *l, pl_buffer_in *h,
                  pl_buffer_in *const *y, pl_buffer_in *to) {
    const size_t in = t->m[0]->w.cols, out = t->m[0]->w.rows;
    struct pl_device_buffer q = kit_out(in), row = kit_out(8);
    struct pl_ternary_kernels k = {0};
    struct pl_kernel after;
    CHECK(pl_kernel_ternary_quantize(&ks, &k.quantize, &err));
    CHECK(pl_kernel_ternary(&ks, 0, &k.product[0], &err));
    if (kind.norm) {
        struct pl_kernel norm;
        CHECK(pl_kernel_norm(&ks, false, &norm, &err));
        CHECK(pl_launch_norm(&ks, &norm, l->x, NULL, l->norm, h, 1, in, l->eps, l->offset));
    }
    CHECK(pl_launch_ternary_quantize(&ks, &k.quantize, kind.norm ? h : l->x, &q, &row, 1, in));
    for (size_t i = 0; i < t->count; i++)
        CHECK(pl_launch_ternary(&ks, &k.product[0], &t->m[i]->w, t->m[i]->scale, &q, &row, y[i], 1, 1));
    if (kind.add) {
        CHECK(pl_kernel_elementwise(&ks, PL_EW_ADD, &after, &err));
        CHECK(pl_launch_add(&ks, &after, to, y[0], 1, out));
    }
    if (kind.relu2 || kind.silu) {
        CHECK(pl_kernel_elementwise(&ks, kind.relu2 ? PL_EW_RELU2 : PL_EW_SILU, &after, &err));
        CHECK(pl_launch_glu(&ks, &after, y[0], y[1], to, 1, out));
    }
    kit_drop(&q), kit_drop(&row);
}
static void one_launch(size_t out, size_t in, struct pl_ternary_kind kind) {
    struct trio t = trio_up(out, in, kind.add ? 1 : kind.relu2 || kind.silu ? 2 : 3);
    float *x = kit_random(in, 3.0f), *w = kit_random(in, 1.0f), *r = kit_random(out, 1.0f);
    struct pl_device_buffer bx = kit_up(x, in * 4), norm = kit_up(w, in * 4), h[2], y[2][3], to[2];
    struct pl_launch_ternaries l = {.rows = 1, .x = &bx, .norm = &norm, .eps = 1e-5f, .offset = 0.5f};
    pl_buffer_in *others[3];
    struct pl_kernel k;
    trio_fill(&t, &l);
    for (size_t i = 0; i < 2; i++) {
        h[i] = kit_out(in * 4), to[i] = kit_up(r, out * 4);
        for (size_t j = 0; j < t.count; j++) y[i][j] = kit_out(t.m[j]->w.rows * 4);
    }
    for (size_t j = 0; j < t.count; j++) l.y[j] = &y[0][j], others[j] = &y[1][j];
    l.h = &h[0], l.to = &to[0];
    pl_ternary_plan(&ks, &l, &kind);
    CHECK(pl_kernel_ternaries(&ks, &kind, &k, &err));
    CHECK(pl_launch_ternaries(&ks, &k, &kind, &l));
    apart(&t, kind, &l, &h[1], others, &to[1]);
    for (size_t j = 0; j < t.count; j++) {
        float *got = kit_down(&y[0][j]), *want = kit_down(&y[1][j]);
        same_bits(k.name, got, want, t.m[j]->w.rows);
        free(got), free(want);
    }
    float *a = kit_down(&to[0]), *b = kit_down(&to[1]), *c = kit_down(&h[0]), *d = kit_down(&h[1]);
    same_bits(k.name, a, b, out);
    same_bits(k.name, c, d, in); /* without a norm both hold what they held */
    kit_drop(&bx), kit_drop(&norm);
    free(a), free(b), free(c), free(d), free(x), free(w), free(r);
    trio_drop(&t);
}
static void one_launch_for_all(void) {
    static const size_t shapes[][2] = {{5, 64}, {130, 320}, {2560, 2560}, {48, 6912}, {33, 8192}};
    static const struct pl_ternary_kind kinds[] = {
        {0}, {.norm = true}, {.add = true}, {.norm = true, .add = true}, {.norm = true, .relu2 = true}, {.silu = true}};
    if (pl_ternary_one_declines(&ks, 64) != NULL) return;
    for (size_t s = 0; s < PL_COUNT_OF(shapes); s++)
        for (size_t i = 0; i < PL_COUNT_OF(kinds); i++)
            if (!test_small() || s < 2) one_launch(shapes[s][0], shapes[s][1], kinds[i]);
}

/* A code of the second matrix changed: that output of it is another, nothing else. */
static void one_wrong_code_on_units(void) {
    if (pl_ternary_one_declines(&ks, 64) != NULL) return;
    struct trio t = trio_up(40, 320, 2);
    float *x = kit_random(320, 1.0f), want[40], scratch[320];
    CHECK(pl_ref_ternary(&t.m[1]->t, x, 320, 1, want, 40, scratch));
    uint8_t *there = kit_down(&t.m[1]->w.data);
    size_t at = 37 * 320 / 4 + 4 * 16 + 2; /* output 37, inputs 256 + 2 and up */
    there[at] = (uint8_t)((there[at] & ~3u) | (((there[at] & 3u) + 1u) % 3u));
    t.m[1]->w.data = kit_up(there, t.m[1]->t.bytes);
    struct pl_device_buffer bx = kit_up(x, 320 * 4), y[2] = {kit_out(160), kit_out(160)};
    struct pl_launch_ternaries l = {.rows = 1, .x = &bx, .y = {&y[0], &y[1]}};
    struct pl_ternary_kind kind = {0};
    struct pl_kernel k;
    trio_fill(&t, &l);
    pl_ternary_plan(&ks, &l, &kind);
    CHECK(pl_kernel_ternaries(&ks, &kind, &k, &err));
    CHECK(pl_launch_ternaries(&ks, &k, &kind, &l));
    float *got = kit_down(&y[1]);
    for (size_t i = 0; i < 40; i++) assert_true((fabsf(got[i] - want[i]) <= 1e-5f) == (i != 37));
    kit_drop(&bx), kit_drop(&y[0]);
    free(there), free(got), free(x);
    trio_drop(&t);
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

static void test_units_of_rows(void **state) {
    (void)state;
    kit_each(units_of_rows);
}
static void test_one_launch_for_all(void **state) {
    (void)state;
    kit_each(one_launch_for_all);
}
static void test_one_wrong_code_on_units(void **state) {
    (void)state;
    kit_each(one_wrong_code_on_units);
}

int main(void) {
    struct CMUnitTest tests[] = {cmocka_unit_test(test_all_shapes),         cmocka_unit_test(test_one_wrong_code),
                                 cmocka_unit_test(test_quotients_off),      cmocka_unit_test(test_units_of_rows),
                                 cmocka_unit_test(test_one_launch_for_all), cmocka_unit_test(test_one_wrong_code_on_units)};
    return TEST_RUN("ternary kernels", tests);
}
