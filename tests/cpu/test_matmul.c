/* Products of every weight type on every table against src/ref: rows 1..64, odd sizes, bias, accumulation, several
 * matrices at once, thread counts, and row counts (the same bits).
 * test-timeout: 900 */
#include "cpu/internal.h"
#include "tests/cpu/support.h"
#include "tensor/quant.h"

static struct pl_cpu_weight *weight_make(struct pl_cpu *c, const struct pl_tensor *t) {
    struct pl_cpu_weight *w = NULL;
    struct pl_err err = {0};
    if (pl_cpu_weight_create(c, t, &w, &err) != PL_OK) fail_msg("%s", err.text);
    return w;
}

static bool is_q8(const struct pl_cpu *c, const struct pl_cpu_weight *w) {
    return strstr(pl_cpu_weight_kernel(c, w, 1), "xq8") != NULL;
}

static void multiply(struct pl_cpu *c, const struct pl_cpu_weight *w, const float *bias, const float *x, size_t x_stride,
                     size_t rows, bool accumulate, bool fine, float *y, size_t y_stride) {
    struct pl_cpu_matmul m = {1, rows, &w, &bias, x, x_stride, &y, &y_stride, accumulate, fine, NULL};
    pl_cpu_matmul(c, &m);
}

/* A row in 16 bits, by one scale for 32 elements. */
static void as_words(const float *x, size_t cols, float *y, float *half_step) {
    for (size_t b = 0; b < cols; b += 32) {
        const size_t end = PL_MIN(cols, b + 32);
        float top = 0;
        for (size_t i = b; i < end; i++) top = fmaxf(top, fabsf(x[i]));
        for (size_t i = b; i < end; i++) {
            y[i] = top > 0 ? (float)lrintf(x[i] * (32767.0f / top)) * (top / 32767.0f) : 0;
            half_step[i] = 0.5f * top / 32767.0f;
        }
    }
}

/* x as 8-bit kernels see it, in one term, in two or in 16 bits, and the most each element was moved by rounding. */
static float *as_quantised(const float *x, size_t stride, size_t rows, size_t cols, bool fine, bool words,
                           float *half_step) {
    size_t blocks = (cols + 31) / 32;
    float *out = malloc(rows * stride * sizeof *out), *scale = malloc(blocks * sizeof *scale),
          *lost = malloc(cols * sizeof *lost);
    int8_t *q = malloc(blocks * 32);
    for (size_t r = 0; r < rows; r++) {
        float *y = out + r * stride;
        if (fine && words) {
            as_words(x + r * stride, cols, y, half_step + r * stride);
            continue;
        }
        pl_ref_quantize(x + r * stride, cols, q, scale);
        for (size_t i = 0; i < cols; i++) y[i] = (float)q[i] * scale[i / 32];
        if (fine) {
            for (size_t i = 0; i < cols; i++) lost[i] = x[r * stride + i] - y[i];
            pl_ref_quantize(lost, cols, q, scale);
            for (size_t i = 0; i < cols; i++) y[i] += (float)q[i] * scale[i / 32];
        }
        for (size_t i = 0; i < cols; i++) half_step[r * stride + i] = 0.5f * scale[i / 32];
    }
    free(scale), free(q), free(lost);
    return out;
}

struct shape {
    size_t out, in, rows;
    bool fine, extreme;
};

/* Codes of the largest magnitude everywhere, scales as they are: what lies where in a block. */
static void codes_extreme(const struct pl_tensor *t, unsigned char code) {
    static const struct {
        size_t at, bytes;
    } codes[] = {[PL_Q4_0] = {2, 16}, [PL_Q5_0] = {2, 20},  [PL_Q8_0] = {2, 32},
                 [PL_Q3_K] = {0, 96}, [PL_Q6_K] = {0, 192}, [PL_MXFP4] = {1, 16}};
    if (t->dtype == PL_Q8_0) code ^= 0x80; /* has a sign: -128 and 127 */
    const size_t each = pl_dtype_info(t->dtype)->block_bytes;
    for (size_t at = 0; at < t->bytes; at += each)
        memset((unsigned char *)(uintptr_t)t->data + at + codes[t->dtype].at, code, codes[t->dtype].bytes);
}

static void check_product(struct pl_cpu *c, const struct weight_case *wc, struct shape s, bool with_bias, bool accumulate) {
    struct pl_tensor t = tensor_random(wc, s.out, s.in, 11 + s.out * 7 + s.in + wc->dtype);
    if (s.extreme) codes_extreme(&t, s.rows % 2 != 0 ? 0x00 : 0xFF);
    struct pl_cpu_weight *w = weight_make(c, &t);
    struct pl_tensor unrounded = is_q8(c, w) ? without_rounding(&t) : t;
    struct pl_err err = {0};
    assert_int_equal(pl_cpu_reserve(c, s.rows, s.in, 128, &err), PL_OK);
    size_t xs = s.in + 3, ys = s.out + 5;
    uint64_t rng = s.rows;
    float *x = malloc(s.rows * xs * sizeof *x), *bias = malloc(s.out * sizeof *bias), *row = malloc(s.in * sizeof *row);
    double *mag = malloc(s.rows * s.out * sizeof *mag);
    rng_fill(&rng, x, s.rows * xs);
    for (size_t i = 0; s.extreme && i < s.rows * xs; i++) x[i] = s.rows % 3 != 0 ? 1.0f : -1.0f; /* 127 of one sign */
    rng_fill(&rng, bias, s.out);
    struct guarded y = guarded_make(s.rows * ys), want = guarded_make(s.rows * ys), exact = guarded_make(s.rows * ys);
    if (accumulate) {
        rng_fill(&rng, y.x, y.n);
        memcpy(want.x, y.x, y.n * sizeof(float));
        memcpy(exact.x, y.x, y.n * sizeof(float));
    }
    float *before = calloc(y.n, sizeof *before);
    if (accumulate) memcpy(before, y.x, y.n * sizeof *before);
    bool q8 = is_q8(c, w);
    float *half = malloc(s.rows * xs * sizeof *half), *unused = malloc(s.rows * ys * sizeof *unused);
    double *moved = malloc(s.rows * s.out * sizeof *moved);
    float *xq = as_quantised(x, xs, s.rows, s.in, s.fine, c->table->fine_tile != NULL, half);
    multiply(c, w, with_bias ? bias : NULL, x, xs, s.rows, accumulate, s.fine, y.x, ys);
    assert_int_equal(pl_ref_matmul(&unrounded, with_bias ? bias : NULL, x, xs, s.rows, accumulate, want.x, ys, mag, row),
                     PL_OK);
    if (q8)
        assert_int_equal(
            pl_ref_matmul(&unrounded, with_bias ? bias : NULL, xq, xs, s.rows, accumulate, exact.x, ys, mag, row), PL_OK);
    assert_int_equal(pl_ref_matmul(&unrounded, NULL, half, xs, s.rows, false, unused, ys, moved, row), PL_OK);
    char what[160];
    for (size_t r = 0; r < s.rows; r++)
        for (size_t o = 0; o < ys; o++) {
            size_t at = r * ys + o;
            if (o >= s.out) {
                if (!accumulate) assert_true(y.x[at] == POISON);
                continue;
            }
            snprintf(what, sizeof what, "%s%s %zux%zu rows %zu: row %zu out %zu", pl_cpu_weight_kernel(c, w, s.rows),
                     s.fine ? " fine" : "", s.out, s.in, s.rows, r, o);
            double m = mag[r * s.out + o] + 1e-3 + (with_bias ? fabs((double)bias[o]) : 0) + fabs((double)before[at]);
            check_close(what, y.x[at], (double)want.x[at], 1e-6,
                        TOL_MATMUL_F32 * m + (q8 ? TOL_MATMUL_Q8 * moved[r * s.out + o] : 0));
            if (q8) check_close(what, y.x[at], (double)exact.x[at], 1e-6, TOL_MATMUL_Q8_EXACT * m);
        }
    guarded_free(&y), guarded_free(&want), guarded_free(&exact);
    free(x), free(xq), free(bias), free(row), free(mag), free(before), free(half), free(unused), free(moved);
    pl_cpu_weight_destroy(w);
    if (t.dtype == PL_MLX && q8) free((void *)(uintptr_t)unrounded.scales), free((void *)(uintptr_t)unrounded.biases);
    tensor_free(&t);
}

static void every_type_every_row_count(void **state) {
    (void)state;
    FOR_EACH_ISA(isa) {
        struct pl_cpu *c = cpu_make(isa, 2);
        for (size_t k = 0; k < WEIGHT_CASES; k++) {
            size_t grain = case_grain(&weight_cases[k]);
            const size_t step = isa == PL_ISA_SCALAR ? 9 : isa == PL_ISA_AMX ? 3 : PL_TEST_ROW_STEP;
            for (size_t rows = 1; rows <= 64; rows += rows < 24 ? step : step * PL_TEST_SHARE) {
                size_t in = grain * (1 + (rows * 5 + k) % (grain >= 256 ? 2 : 5));
                check_product(c, &weight_cases[k], (struct shape){1 + (rows * 13 + k * 3) % 50, in, rows, false, false},
                              rows % 2, rows % 3 == 0);
            }
        }
        pl_cpu_destroy(c);
    }
}

/* Sums of products in 16 bits, or in 32 of fine ones, and what an offset adds to them, hold the largest codes and inputs. */
static void largest_codes_and_inputs(void **state) {
    (void)state;
    static const enum pl_dtype types[] = {PL_Q4_0, PL_Q5_0, PL_Q8_0, PL_Q3_K, PL_Q6_K, PL_MXFP4};
    FOR_EACH_ISA(isa) {
        struct pl_cpu *c = cpu_make(isa, 2);
        for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
            const struct weight_case wc = {types[k], 0, 0, 0};
            for (size_t rows = 1; rows <= 12; rows++)
                for (int fine = 0; fine < 2; fine++) {
                    const struct shape s = {.out = 24, .in = 512, .rows = rows, .fine = fine != 0, .extreme = true};
                    check_product(c, &wc, s, false, false);
                }
        }
        pl_cpu_destroy(c);
    }
}

/* Two 8-bit terms: exactly their sum, so a hundred times nearer to the product of what was given; or words. Tables without
 * 8-bit products take no notice. */
static void fine_products(void **state) {
    (void)state;
    FOR_EACH_ISA(isa) {
        struct pl_cpu *c = cpu_make(isa, 2);
        for (size_t k = 0; k < WEIGHT_CASES; k++) {
            size_t grain = case_grain(&weight_cases[k]);
            for (size_t rows = 1; rows <= 64; rows += PL_TEST_ROW_STEP * (rows < 9 ? 1 : isa == PL_ISA_SCALAR ? 26 : 5)) {
                size_t in = grain * (1 + (rows * 5 + k) % (grain >= 256 ? 2 : 5));
                check_product(c, &weight_cases[k], (struct shape){1 + (rows * 13 + k * 3) % 50, in, rows, true, false},
                              rows % 2, rows % 3 == 0);
            }
        }
        pl_cpu_destroy(c);
    }
}

/* The same bits for any neighbours and thread count, as for one term. */
static void fine_rows_stand_alone(void **state) {
    (void)state;
    enum { ROWS = 21, OUT = 35, IN = 256 };
    struct pl_tensor t = tensor_random(&weight_cases[4], OUT, IN, 3);
    uint64_t rng = 9;
    float x[ROWS * IN], all[ROWS * OUT], one[OUT];
    rng_fill(&rng, x, ROWS * IN);
    FOR_EACH_ISA(isa) {
        for (int threads = 1; threads <= 3; threads++) {
            struct pl_cpu *c = cpu_make(isa, threads);
            struct pl_err err = {0};
            assert_int_equal(pl_cpu_reserve(c, ROWS, IN, 128, &err), PL_OK);
            struct pl_cpu_weight *w = weight_make(c, &t);
            multiply(c, w, NULL, x, IN, ROWS, false, true, all, OUT);
            for (size_t r = 0; r < ROWS; r++) {
                multiply(c, w, NULL, x + r * IN, IN, 1, false, true, one, OUT);
                assert_memory_equal(all + r * OUT, one, sizeof one);
            }
            pl_cpu_weight_destroy(w);
            pl_cpu_destroy(c);
        }
    }
    tensor_free(&t);
}

static void odd_widths(void **state) {
    (void)state;
    FOR_EACH_ISA(isa) {
        struct pl_cpu *c = cpu_make(isa, 1);
        for (size_t k = 0; k < WEIGHT_CASES; k++) {
            size_t grain = case_grain(&weight_cases[k]), limit = grain == 1 ? 1025 : 16 * grain;
            for (size_t in = grain; in <= limit; in += grain == 1 && in > 70 ? 53 : grain)
                check_product(c, &weight_cases[k], (struct shape){17, in, 1 + in / grain % 6, false, false}, false, false);
            check_product(c, &weight_cases[k], (struct shape){33, grain >= 32 ? 2048 : 2053, 3, false, false}, true, true);
        }
        pl_cpu_destroy(c);
    }
}

/* Threads 1..5 and any number of neighbours: the same bits. */
static void threads_and_rows_change_nothing(void **state) {
    (void)state;
    enum { ROWS = 37, OUT = 83, IN = 512 };
    for (size_t k = 0; k < WEIGHT_CASES; k++) {
        struct pl_tensor t = tensor_random(&weight_cases[k], OUT, IN, k);
        uint64_t rng = 5;
        float *x = malloc(ROWS * IN * sizeof *x), *first = malloc(ROWS * OUT * sizeof *x),
              *y = malloc(ROWS * OUT * sizeof *x);
        rng_fill(&rng, x, ROWS * IN);
        FOR_EACH_ISA(isa) {
            for (int threads = 1; threads <= 5; threads += isa == PL_ISA_AMX ? 2 : 1) {
                struct pl_cpu *c = cpu_make(isa, threads);
                struct pl_err err = {0};
                assert_int_equal(pl_cpu_reserve(c, ROWS, IN, 128, &err), PL_OK);
                struct pl_cpu_weight *w = weight_make(c, &t);
                multiply(c, w, NULL, x, IN, ROWS, false, false, threads == 1 ? first : y, OUT);
                if (threads > 1) assert_memory_equal(first, y, ROWS * OUT * sizeof *y);
                for (size_t r = 0; r < ROWS; r += threads == 1 ? 1 : 7) {
                    size_t n = PL_MIN((size_t)threads, ROWS - r);
                    multiply(c, w, NULL, x + r * IN, IN, n, false, false, y, OUT);
                    assert_memory_equal(first + r * OUT, y, n * OUT * sizeof *y);
                }
                pl_cpu_weight_destroy(w);
                pl_cpu_destroy(c);
            }
        }
        free(x), free(first), free(y);
        tensor_free(&t);
    }
}

/* Threads on made-up memory nodes: each begins with its own node's tiles, every tile is done once, and no bit changes. */
static void nodes_change_nothing(void **state) {
    (void)state;
    enum { ROWS = 19, OUT = 210, IN = 512 };
    static struct pl_topology four = {.count = 4, .cores = 4};
    uint64_t rng = 5;
    float *x = malloc(ROWS * IN * sizeof *x), *want[3], *got[3];
    rng_fill(&rng, x, ROWS * IN);
    const size_t outs[3] = {OUT, 16, 5}, strides[3] = {OUT, 16, 5};
    for (size_t i = 0; i < 3; i++) want[i] = malloc(ROWS * OUT * sizeof(float)), got[i] = calloc(ROWS * OUT, sizeof(float));
    for (int nodes = 1; nodes <= 4; nodes++) {
        four.nodes = nodes;
        for (int i = 0; i < 4; i++) four.cpus[i] = (struct pl_topology_cpu){.core = i, .node = i % nodes};
        struct pl_pool_options o = {.topology = &four};
        struct pl_cpu *c = NULL;
        struct pl_err err = {0};
        assert_int_equal(pl_cpu_create_with(pl_cpu_best_isa(), &o, &c, &err), PL_OK);
        assert_int_equal(cpu_nodes(c), nodes);
        size_t begin, end, before = 0;
        for (int n = 0; n < nodes; n++, before = end) {
            cpu_near(c, 13, n, &begin, &end);
            assert_int_equal(begin, before);
        }
        assert_int_equal(before, 13);
        for (int t = 0; t < 4; t++)
            for (int k = 0; k < nodes; k++) assert_int_equal(cpu_kth_node(c, t, k), (t % nodes + k) % nodes);
        assert_int_equal(pl_cpu_reserve(c, ROWS, IN, 128, &err), PL_OK);
        struct pl_tensor t[3];
        const struct pl_cpu_weight *w[3];
        for (size_t i = 0; i < 3; i++) {
            t[i] = tensor_random(&weight_cases[i == 1 ? 1 : 10], outs[i], IN, i);
            w[i] = weight_make(c, &t[i]);
        }
        struct pl_cpu_matmul m = {3, ROWS, w, NULL, x, IN, nodes == 1 ? want : got, strides, false, false, NULL};
        pl_cpu_matmul(c, &m);
        for (size_t i = 0; i < 3; i++) {
            if (nodes > 1) assert_memory_equal(want[i], got[i], ROWS * outs[i] * sizeof(float));
            pl_cpu_weight_destroy((struct pl_cpu_weight *)(uintptr_t)w[i]);
            tensor_free(&t[i]);
        }
        pl_cpu_destroy(c);
    }
    for (size_t i = 0; i < 3; i++) free(want[i]), free(got[i]);
    free(x);
}

static void count_packed(void *user, const struct pl_tensor *t) {
    assert_non_null(t->data);
    ++*(size_t *)user;
}

/* Packed at once, or multiplied from the file first and packed at the second product: the same bits every time. */
static void packed_at_the_second_product(void **state) {
    (void)state;
    enum { OUT = 83, ROWS = 300, TIMES = 3 };
    FOR_EACH_ISA(isa) {
        for (size_t k = 0; k < WEIGHT_CASES; k++) {
            const size_t in = 2 * case_grain(&weight_cases[k]), rows[TIMES] = {k % 2 ? 1 : ROWS, 5, 2};
            struct pl_cpu *c = cpu_make(isa, 3);
            struct pl_err err = {0};
            assert_int_equal(pl_cpu_reserve(c, ROWS, in, 128, &err), PL_OK);
            struct pl_tensor t = tensor_random(&weight_cases[k], OUT, in, k);
            struct pl_cpu_weight *now = weight_make(c, &t);
            size_t packed = 0;
            pl_cpu_pack_later(c, 0, count_packed, &packed);
            struct pl_cpu_weight *later = weight_make(c, &t);
            bool waits = pl_cpu_weight_bytes_owned(later) > 0;
            uint64_t rng = k + 1;
            float *x = malloc(ROWS * in * sizeof *x), *a = malloc(ROWS * OUT * sizeof *a),
                  *b = malloc(ROWS * OUT * sizeof *b);
            rng_fill(&rng, x, ROWS * in);
            for (size_t i = 0; i < TIMES; i++) {
                multiply(c, now, NULL, x, in, rows[i], false, k % 3 == 0, a, OUT);
                multiply(c, later, NULL, x, in, rows[i], false, k % 3 == 0, b, OUT);
                assert_memory_equal(a, b, rows[i] * OUT * sizeof *a);
                assert_int_equal(packed, waits && i > 0);
            }
            pl_cpu_weight_destroy(now), pl_cpu_weight_destroy(later);
            free(x), free(a), free(b);
            tensor_free(&t);
            pl_cpu_destroy(c);
        }
    }
}

static void several_matrices_share_the_activations(void **state) {
    (void)state;
    FOR_EACH_ISA(isa) {
        struct pl_cpu *c = cpu_make(isa, 2);
        const struct weight_case *cases[3] = {&weight_cases[3], &weight_cases[12], &weight_cases[1]};
        const size_t outs[3] = {40, 16, 5};
        for (size_t rows = 1; rows <= 21; rows += 4) {
            struct pl_tensor t[3];
            const struct pl_cpu_weight *w[3];
            struct guarded y[3];
            float *yp[3];
            size_t strides[3];
            uint64_t rng = rows;
            float *x = malloc(rows * 256 * sizeof *x), *alone = malloc(rows * 40 * sizeof *alone), bias[40];
            const float *biases[3] = {NULL, bias, NULL};
            rng_fill(&rng, x, rows * 256);
            rng_fill(&rng, bias, 40);
            struct pl_err err = {0};
            assert_int_equal(pl_cpu_reserve(c, rows, 256, 128, &err), PL_OK);
            for (size_t i = 0; i < 3; i++) {
                t[i] = tensor_random(cases[i], outs[i], 256, i);
                w[i] = weight_make(c, &t[i]);
                y[i] = guarded_make(rows * outs[i]);
                yp[i] = y[i].x;
                strides[i] = outs[i];
            }
            struct pl_cpu_matmul m = {3, rows, w, biases, x, 256, yp, strides, false, false, NULL};
            pl_cpu_matmul(c, &m);
            for (size_t i = 0; i < 3; i++) {
                multiply(c, w[i], biases[i], x, 256, rows, false, false, alone, outs[i]);
                assert_memory_equal(alone, y[i].x, rows * outs[i] * sizeof(float));
                guarded_free(&y[i]);
                pl_cpu_weight_destroy((struct pl_cpu_weight *)(uintptr_t)w[i]);
                tensor_free(&t[i]);
            }
            free(x), free(alone);
        }
        pl_cpu_destroy(c);
    }
}

static void embedding_rows(void **state) {
    (void)state;
    FOR_EACH_ISA(isa) {
        struct pl_cpu *c = cpu_make(isa, 2);
        for (size_t k = 0; k < WEIGHT_CASES; k++) {
            size_t cols = PL_MAX(case_grain(&weight_cases[k]), (size_t)33) / 32 * 32;
            struct pl_tensor t = tensor_random(&weight_cases[k], 50, cols, k);
            uint32_t ids[7] = {49, 0, 7, 7, 31, 2, 48};
            struct guarded y = guarded_make(7 * (cols + 1));
            float *row = malloc(cols * sizeof *row);
            pl_cpu_embed(c, &t, ids, 7, 3.5f, y.x, cols + 1);
            for (size_t r = 0; r < 7; r++) {
                assert_int_equal(pl_dequant_row_product(&t, ids[r], row), PL_OK);
                for (size_t i = 0; i < cols; i++) assert_true(y.x[r * (cols + 1) + i] == row[i] * 3.5f);
                assert_true(y.x[r * (cols + 1) + cols] == POISON);
            }
            guarded_free(&y);
            free(row);
            tensor_free(&t);
        }
        pl_cpu_destroy(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_every_row_count),
        cmocka_unit_test(largest_codes_and_inputs),
        cmocka_unit_test(odd_widths),
        cmocka_unit_test(fine_products),
        cmocka_unit_test(fine_rows_stand_alone),
        cmocka_unit_test(threads_and_rows_change_nothing),
        cmocka_unit_test(nodes_change_nothing),
        cmocka_unit_test(packed_at_the_second_product),
        cmocka_unit_test(several_matrices_share_the_activations),
        cmocka_unit_test(embedding_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
