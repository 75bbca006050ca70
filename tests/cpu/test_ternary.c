/* BitNet's products on every table against src/ref: the same bits on all of them, for 1 to 64 rows.
 * test-timeout: 600 */
#include "cpu/internal.h"
#include "tensor/quant.h"
#include "tests/cpu/support.h"

struct matrix {
    struct pl_tensor t;
    uint8_t *data;
    float scale;
};

static struct matrix *matrix_random(size_t out, size_t in, uint64_t seed) {
    struct matrix *m = calloc(1, sizeof *m);
    float *row = malloc(in * sizeof *row);
    m->data = malloc(out * in / 4);
    for (size_t o = 0; o < out; o++) {
        for (size_t i = 0; i < in; i++) row[i] = 0.37f * (float)((int)(rng_next(&seed) % 3) - 1);
        assert_true(pl_ternary_row(row, in, &m->scale, m->data + o * in / 4));
    }
    assert_true(m->scale == 0.37f);
    m->t = (struct pl_tensor){.name = "t",
                              .dtype = PL_TERNARY,
                              .ndim = 2,
                              .shape = {out, in, 1, 1},
                              .data = m->data,
                              .bytes = out * in / 4,
                              .scales = &m->scale,
                              .scale_dtype = PL_F32};
    free(row);
    return m;
}
static void matrix_free(struct matrix *m) { free(m->data), free(m); }

static struct pl_cpu_weight *weight_of(struct pl_cpu *c, const struct matrix *m) {
    struct pl_cpu_weight *w = NULL;
    struct pl_err err = {0};
    if (pl_cpu_weight_create(c, &m->t, &w, &err) != PL_OK) fail_msg("%s", err.text);
    return w;
}

static void multiply(struct pl_cpu *c, size_t n, const struct pl_cpu_weight *const *w, const float *x, size_t x_stride,
                     size_t rows, float *const *y, const size_t *y_stride) {
    struct pl_cpu_matmul m = {n, rows, w, NULL, x, x_stride, y, y_stride, false, false, NULL};
    struct pl_err err = {0};
    assert_int_equal(pl_cpu_reserve(c, rows, (size_t)pl_tensor_cols(&w[0]->t), 128, &err), PL_OK);
    pl_cpu_matmul(c, &m);
}

/* Every row count on every table: near the oracle, and the plainest table's bits. */
static void all_tables_agree_with_the_oracle(void **state) {
    (void)state;
    for (size_t rows = 1; rows <= 64; rows += rows < 20 ? 1 : 11) {
        const size_t in = 32 * (1 + rows % 9), out = 1 + rows * 7 % 50, xs = in + 3, ys = out + 5;
        struct matrix *m = matrix_random(out, in, rows);
        float *x = malloc(rows * xs * sizeof *x), *row = malloc(in * sizeof *row), *first = NULL;
        struct guarded want = guarded_make(rows * ys);
        uint64_t rng = rows;
        rng_fill(&rng, x, rows * xs);
        for (size_t i = 0; i < in; i++)
            x[i] *= rows % 4 == 0 ? 1e-9f : 100.0f; /* below the least, and rows of another size */
        assert_int_equal(pl_ref_ternary(&m->t, x, xs, rows, want.x, ys, row), PL_OK);
        FOR_EACH_ISA(isa) {
            struct pl_cpu *c = cpu_make(isa, 2);
            struct pl_cpu_weight *w = weight_of(c, m);
            struct guarded y = guarded_make(rows * ys);
            float *to = y.x;
            assert_non_null(strstr(pl_cpu_weight_kernel(c, w, rows), "ternaryxq8"));
            multiply(c, 1, (const struct pl_cpu_weight *const *)&w, x, xs, rows, &to, &ys);
            if (first == NULL) first = memcpy(malloc(rows * ys * sizeof *first), y.x, rows * ys * sizeof *first);
            for (size_t r = 0; r < rows; r++) {
                for (size_t o = 0; o < ys; o++) {
                    float got = y.x[r * ys + o];
                    if (o >= out) {
                        assert_true(got == POISON);
                        continue;
                    }
                    check_close(pl_isa_name(isa), got, (double)want.x[r * ys + o], 4e-7, 1e-30);
                    assert_true(got == first[r * ys + o]);
                }
            }
            guarded_free(&y);
            pl_cpu_weight_destroy(w);
            pl_cpu_destroy(c);
        }
        guarded_free(&want);
        matrix_free(m);
        free(x), free(row), free(first);
    }
}

static void matrices_that_share_inputs(void **state) {
    (void)state;
    enum { IN = 64, ROWS = 5 };
    const size_t outs[3] = {33, 16, 7};
    FOR_EACH_ISA(isa) {
        struct pl_cpu *c = cpu_make(isa, 3);
        struct matrix *m[3];
        const struct pl_cpu_weight *w[3];
        float x[ROWS * IN], *y[3], row[IN], want[33 * ROWS];
        uint64_t rng = 4;
        rng_fill(&rng, x, ROWS * IN);
        for (size_t i = 0; i < 3; i++) {
            m[i] = matrix_random(outs[i], IN, i);
            m[i]->scale = 0.5f + (float)i;
            w[i] = weight_of(c, m[i]);
            y[i] = malloc(outs[i] * ROWS * sizeof(float));
        }
        multiply(c, 3, w, x, IN, ROWS, y, outs);
        for (size_t i = 0; i < 3; i++) {
            assert_int_equal(pl_ref_ternary(&m[i]->t, x, IN, ROWS, want, outs[i], row), PL_OK);
            for (size_t k = 0; k < outs[i] * ROWS; k++) check_close("shared", y[i][k], (double)want[k], 4e-7, 1e-30);
            pl_cpu_weight_destroy((struct pl_cpu_weight *)(uintptr_t)w[i]);
            matrix_free(m[i]);
            free(y[i]);
        }
        pl_cpu_destroy(c);
    }
}

/* Byte rows of a Hugging Face checkpoint: byte row i holds rows i, i + out/4, i + 2 out/4, i + 3 out/4. Inputs whose largest
 * is 127 lose nothing in 8 bits. */
static void the_check_vector(void **state) {
    (void)state;
    static const uint8_t bytes[4] = {134, 137, 100, 97};
    static const float want[4] = {-4, -4, 8, 6}, want2[4] = {-4, -250, 254, 6};
    uint8_t packed[4 * 8], padded[32];
    float scale = 2, row[32], x[2][32] = {{1, 2, 3, 4}, {1, 2, 3, 127}}, y[4], *to = y;
    const size_t ys = 4;
    memset(padded, 0x55, sizeof padded); /* zeros */
    memcpy(padded, bytes, sizeof bytes);
    for (unsigned r = 0; r < 4; r++) assert_true(pl_ternary_bytes(padded, 2 * r, 32, packed + 8 * r));
    struct matrix m = {.t = {.name = "t",
                             .dtype = PL_TERNARY,
                             .ndim = 2,
                             .shape = {4, 32, 1, 1},
                             .data = packed,
                             .bytes = sizeof packed,
                             .scales = &scale,
                             .scale_dtype = PL_F32}};
    assert_int_equal(pl_ref_matmul(&m.t, NULL, x[0], 32, 1, false, y, 4, NULL, row), PL_OK);
    assert_memory_equal(y, want, sizeof y);
    FOR_EACH_ISA(isa) {
        struct pl_cpu *c = cpu_make(isa, 1);
        struct pl_cpu_weight *w = weight_of(c, &m);
        multiply(c, 1, (const struct pl_cpu_weight *const *)&w, x[1], 32, 1, &to, &ys);
        for (int i = 0; i < 4; i++) assert_true(y[i] == want2[i]);
        packed[0] ^= 1; /* the comparison sees one code more or less */
        pl_cpu_weight_destroy(w);
        w = weight_of(c, &m);
        multiply(c, 1, (const struct pl_cpu_weight *const *)&w, x[1], 32, 1, &to, &ys);
        assert_true(y[0] != want2[0]);
        packed[0] ^= 1;
        pl_cpu_weight_destroy(w);
        pl_cpu_destroy(c);
    }
}

static void what_is_not_ternary_is_refused(void **state) {
    (void)state;
    static const float bad[][2] = {{1, 2}, {1, 0.999f}, {NAN, 1}, {1, NAN}, {INFINITY, INFINITY}};
    uint8_t out[8], three[32] = {[31] = 3 << 4};
    float row[32] = {0}, scale = 0;
    assert_true(pl_ternary_row(row, 32, &scale, out) && scale == 0);
    for (size_t i = 0; i < PL_COUNT_OF(bad); i++) {
        scale = 0;
        row[3] = bad[i][0];
        row[30] = bad[i][1];
        assert_false(pl_ternary_row(row, 32, &scale, out));
    }
    assert_false(pl_ternary_bytes(three, 4, 32, out));
    assert_true(pl_ternary_bytes(three, 2, 32, out));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_tables_agree_with_the_oracle),
        cmocka_unit_test(matrices_that_share_inputs),
        cmocka_unit_test(the_check_vector),
        cmocka_unit_test(what_is_not_ternary_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
