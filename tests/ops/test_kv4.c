/* Values in 4 bits: the codebook is Lloyd's, the rotation spreads what one channel holds, vectors and attention over them
 * are the oracle's on every instruction set and device, in every form of decode attention; a wrong sign or a wrong level
 * would be seen.
 * test-kernels: shared
 * test-timeout: 600 */
#include "tests/ops/kv_bed.h"
#include "tests/skip.h"

static double levels[8]; /* Lloyd's, rounded to f16 */
static double work[3 * DIM_MAX];

static void the_codebook_is_lloyds(void **state) {
    double exact[8];
    (void)state;
    pl_ref_lloyd_max(exact);
    for (size_t i = 0; i < 8; i++) {
        levels[i] = (double)pl_f16_to_f32(pl_f32_to_f16((float)exact[i]));
        assert_true(levels[i] == (double)pl_kv4_levels[i] && levels[i] == -(double)pl_kv4_levels[8 + i]);
    }
    assert_true(fabs(exact[0] - 0.1284) < 1e-4 && fabs(exact[7] - 2.7326) < 1e-4); /* Max, 1960, table 1 */
    for (uint32_t c = 0; c < 16; c++) assert_int_equal(pl_kv4_code(pl_kv4_levels[c]), c);
    assert_int_equal(pl_kv4_code(9.0f), 7);
    assert_int_equal(pl_kv4_code(-9.0f), 15);
    assert_int_equal(pl_kv4_code(0.0f), 0);
}

static double off_by(const float *a, const float *b, size_t n) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
        largest = fmax(largest, fabs((double)b[i]));
    }
    return worst / largest;
}

static void vectors_come_back(void **state) {
    static const size_t dims[] = {16, 32, 48, 64, 80, 96, 128};
    (void)state;
    for (size_t i = 0; i < PL_COUNT_OF(dims); i++) {
        const size_t d = dims[i];
        float want[DIM_MAX], got[DIM_MAX] = {0}, wrong[DIM_MAX];
        uint8_t bytes[DIM_MAX / 2 + 4];
        bed_fill(d);
        for (size_t v = 0; v < (size_t)T * G; v++) {
            pl_kv4_put(bed.v + v * d, d, bytes);
            pl_kv4_get(bytes, d, got);
            pl_kv4_turn_back(got, d);
            pl_ref_kv4(bed.v + v * d, d, levels, 0, d, want, work);
            assert_true(off_by(got, want, d) < 1e-5);
            pl_ref_kv4(bed.v + v * d, d, levels, 1, d, wrong, work);
            assert_true(off_by(got, wrong, d) > 1e-2);
            pl_ref_kv4(bed.v + v * d, d, levels, 0, 3, wrong, work);
            assert_true(off_by(got, wrong, d) > 1e-4 || fabsf(got[3]) < 1e-4f);
        }
        memset(got, 0, sizeof got);
        pl_kv4_put(got, d, bytes);
        pl_kv4_get(bytes, d, got);
        for (size_t k = 0; k < d; k++) assert_true(got[k] == 0);
        assert_int_equal(pl_kv_value_bytes(PL_K8V4, d), d / 2 + 4);
        assert_int_equal(pl_kv_key_bytes(PL_K8V4, d), d + 4);
    }
}

/* One channel 50 times the others: without the rotation 16 levels of the largest leave the others nothing. */
static void the_rotation_spreads_outliers(void **state) {
    enum { D = 128 };
    float x[D], y[D];
    uint8_t bytes[D / 2 + 4];
    double error = 0, plain = 0, power = 0;
    (void)state;
    bed_fill(D);
    for (size_t v = 0; v < (size_t)T * G; v++) {
        float top = 0;
        for (size_t i = 0; i < D; i++) x[i] = bed.v[v * D + i] * (i == 77 ? 50.0f : 1.0f), top = fmaxf(top, fabsf(x[i]));
        pl_kv4_put(x, D, bytes);
        pl_kv4_get(bytes, D, y);
        pl_kv4_turn_back(y, D);
        for (size_t i = 0; i < D; i++) {
            float level = rintf(x[i] / top * 7.0f) * top / 7.0f;
            if (i == 77) continue;
            error += pow((double)y[i] - (double)x[i], 2);
            plain += pow((double)level - (double)x[i], 2);
            power += pow((double)x[i], 2);
        }
    }
    print_message("# squared error of the other channels: %.3f of their power turned, %.3f not\n", error / power,
                  plain / power);
    assert_true(error < 0.35 * plain);
}

/* Signs are half and half, and no pattern that the transform would gather into one number. */
static void the_signs_are_no_pattern(void **state) {
    static const size_t dims[] = {64, 128, 256};
    (void)state;
    for (size_t i = 0; i < PL_COUNT_OF(dims); i++) {
        float x[256];
        double sum = 0, top = 0;
        for (size_t k = 0; k < dims[i]; k++) x[k] = pl_kv4_sign(k), sum += (double)x[k];
        pl_kv4_transform(x, dims[i]);
        for (size_t k = 0; k < dims[i]; k++) top = fmax(top, fabs((double)x[k]));
        print_message("# %zu signs: sum %.0f, largest of the transform %.0f\n", dims[i], sum, top);
        assert_true(top < 4.5 * sqrt((double)dims[i]));
    }
}

static void run(const struct pl_ops_options *opt, const char *what) {
    static const size_t dims[] = {96, 16, 128, 32};
    static float wrong[T * G * DIM_MAX], wrong_want[2][T * H * DIM_MAX];
    for (size_t i = 0; i < (opt->backend == PL_BACKEND_OPENCL ? 2 : PL_COUNT_OF(dims)); i++) { /* compiling takes long */
        const size_t d = dims[i], n = T * H * d;
        bed_fill(d);
        for (size_t v = 0; v < (size_t)T * G; v++) {
            uint8_t bytes[DIM_MAX + 4];
            pl_kv8_put(PL_I8, bed.k + v * d, d, bytes);
            pl_kv8_get(PL_I8, bytes, d, d, bed.kept_k + v * d);
            pl_ref_kv4(bed.v + v * d, d, levels, 0, d, bed.kept_v + v * d, work);
        }
        bed_reference(d, bed.kept_k, bed.kept_v, bed.want);
        bed_reference(d, bed.k, bed.v, bed.whole);
        for (size_t w = 0; w < 2; w++) {
            for (size_t v = 0; v < (size_t)T * G; v++)
                pl_ref_kv4(bed.v + v * d, d, levels, w == 0, w == 0 ? d : 3, wrong + v * d, work);
            bed_reference(d, bed.kept_k, wrong, wrong_want[w]);
        }
        bed_run(opt, d, PL_K8V4);
        double off = bed_distance(bed.want, n), given = bed_distance(bed.whole, n);
        double shifted = bed_distance(wrong_want[0], n), flipped = bed_distance(wrong_want[1], n);
        print_message("# %s, k8v4, heads of %zu: %.1e off the oracle, %.1e off an f32 cache, %.1e and %.1e off wrong ones\n",
                      what, d, off, given, shifted, flipped);
        assert_true(off < bed_bound(what));
        assert_true(given > 1e-2 && shifted > 1e-2 && flipped > 1e-2);
    }
}

static void on_the_cpu(void **state) {
    (void)state;
    bed_on_the_cpu(run);
}

static void on_tiles(void **state) {
    (void)state;
    if (!bed_on_tiles(run)) SKIP("this CPU has no AMX");
}

static void on_devices(void **state) {
    (void)state;
    if (bed_on_devices(run) == 0) SKIP("no such device here");
}

static void what_has_none_is_refused(void **state) {
    const struct pl_ops_options opt = {.backend = PL_BACKEND_CPU, .threads = 1};
    struct pl_kv_shape s = {
        .layers = 1, .page_count = 5, .page_tokens = 16, .kv_heads = 3, .head_dim = 96, .dtype = PL_K8V4};
    struct pl_ops *o = NULL;
    struct pl_kv_store *kv = NULL;
    struct pl_err err = {0};
    (void)state;
    assert_int_equal(pl_kv_shape_bytes(&s), 5 * 16 * 3 * (100 + 52));
    assert_int_equal(pl_ops_create(&opt, &o, &err), PL_OK);
    s.head_dim = 100;
    assert_int_equal(pl_ops_kv_create(o, &s, &kv, &err), PL_UNSUPPORTED);
    assert_non_null(strstr(err.text, "k8v4"));
    s.head_dim = 64, s.value_dim = 32;
    assert_int_equal(pl_ops_kv_create(o, &s, &kv, &err), PL_UNSUPPORTED);
    pl_ops_destroy(o);
}

int main(void) {
    test_own_cache();
    struct CMUnitTest tests[] = {
        cmocka_unit_test(the_codebook_is_lloyds),
        cmocka_unit_test(vectors_come_back),
        cmocka_unit_test(the_rotation_spreads_outliers),
        cmocka_unit_test(the_signs_are_no_pattern),
        cmocka_unit_test(on_the_cpu),
        cmocka_unit_test(on_devices),
        cmocka_unit_test(on_tiles),
        cmocka_unit_test(what_has_none_is_refused),
    };
    return TEST_RUN("kv4", tests);
}
