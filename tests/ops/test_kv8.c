/* Caches in 8 bits: what is stored is what the oracle rounds to, attention over it is attention over those numbers, on every
 * instruction set and device, in every form of decode attention; a cache that only calls itself so would be seen.
 * test-kernels: shared
 * test-timeout: 600 */
#include "tests/ops/kv_bed.h"
#include "tests/skip.h"

/* The code whose value is nearest, of two the even one: looked for among all of them. */
static float nearest_f8(float v) {
    int best = 0;
    for (int c = 1; c < 256; c++) {
        if ((c & 0x7F) == 0x7F) continue; /* no number */
        double a = fabs((double)pl_f8_to_f32((uint8_t)c) - (double)v),
               b = fabs((double)pl_f8_to_f32((uint8_t)best) - (double)v);
        if (a < b || (a == b && c % 2 == 0)) best = c;
    }
    return pl_f8_to_f32((uint8_t)best);
}
static void round_vector(enum pl_dtype t, const float *x, size_t n, float *y) {
    float max = 0, most = t == PL_I8 ? 127.0f : 448.0f;
    for (size_t i = 0; i < n; i++) max = fmaxf(max, fabsf(x[i]));
    for (size_t i = 0; i < n; i++) {
        float v = max > 1e-30f ? x[i] * (most / max) : 0;
        y[i] = (t == PL_I8 ? rintf(v) : nearest_f8(v)) * (max / most);
    }
}

static void codes_are_those_of_the_format(void **state) {
    (void)state;
    static const struct {
        uint8_t code;
        float value;
    } known[] = {{0, 0},     {1, 0x1p-9f}, {7, 7 * 0x1p-9f}, {8, 0x1p-6f}, {9, 1.125f * 0x1p-6f}, {0x38, 1},
                 {0xB8, -1}, {0x3C, 1.5f}, {0x7E, 448},      {0xFE, -448}, {0x77, 240},           {0x40, 2}};
    for (size_t i = 0; i < PL_COUNT_OF(known); i++) {
        assert_true(pl_f8_to_f32(known[i].code) == known[i].value);
        assert_int_equal(pl_f8_from_f32(known[i].value), known[i].code);
    }
    for (int c = 0; c < 256; c++)
        if ((c & 0x7F) != 0x7F) assert_int_equal(pl_f8_from_f32(pl_f8_to_f32((uint8_t)c)), c);
    uint32_t seed = 1;
    for (int i = 0; i < 20000; i++) {
        seed = seed * 1664525u + 1013904223u;
        float v = ldexpf((float)(int32_t)seed, -31 - (int)(seed >> 7 & 15u)) * 448.0f;
        assert_true(pl_f8_to_f32(pl_f8_from_f32(v)) == nearest_f8(v));
    }
}

static void vectors_come_back(void **state) {
    (void)state;
    static const enum pl_dtype types[] = {PL_I8, PL_F8};
    for (size_t t = 0; t < 2; t++) {
        float x[36], y[36], want[36], zero[36] = {0};
        uint8_t bytes[40];
        for (int i = 0; i < 36; i++) x[i] = sinf((float)(7 * i)) * expf((float)(i % 9) - 4);
        pl_kv8_put(types[t], x, 36, bytes);
        pl_kv8_get(types[t], bytes, 36, 36, y);
        round_vector(types[t], x, 36, want);
        for (int i = 0; i < 36; i++) assert_true(fabsf(y[i] - want[i]) <= 1e-7f * fabsf(want[i]));
        pl_kv8_put(types[t], zero, 36, bytes);
        pl_kv8_get(types[t], bytes, 36, 36, y);
        for (int i = 0; i < 36; i++) assert_true(y[i] == 0);
        assert_int_equal(pl_kv_key_bytes(types[t], 36), 40);
        assert_int_equal(pl_kv_value_bytes(types[t], 36), 40);
    }
}

static void fill(size_t d, enum pl_dtype type) {
    bed_fill(d);
    for (size_t i = 0; i < (size_t)T * G; i++) {
        round_vector(type, bed.k + i * d, d, bed.kept_k + i * d);
        round_vector(type, bed.v + i * d, d, bed.kept_v + i * d);
    }
    bed_reference(d, bed.kept_k, bed.kept_v, bed.want);
    bed_reference(d, bed.k, bed.v, bed.whole);
}

static void run(const struct pl_ops_options *opt, const char *what) {
    static const enum pl_dtype types[] = {PL_I8, PL_F8};
    static const size_t dims[] = {32, 100, 128};
    for (size_t t = 0; t < 2; t++) {
        for (size_t i = 0; i < PL_COUNT_OF(dims); i++) {
            const size_t d = dims[i], n = T * H * d;
            fill(d, types[t]);
            bed_run(opt, d, types[t]);
            double off = bed_distance(bed.want, n), unrounded = bed_distance(bed.whole, n);
            print_message("# %s, %s, heads of %zu: %.1e off the oracle, %.1e off an f32 cache\n", what,
                          pl_kv_type_name(types[t]), d, off, unrounded);
            assert_true(off < bed_bound(what));
            assert_true(unrounded > 10 * off && unrounded > 1e-3);
        }
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
    struct pl_ops *o = NULL;
    struct pl_kv_store *kv = NULL;
    struct pl_err err = {0};
    struct pl_kv_shape s = {.layers = 1, .page_count = 1, .page_tokens = 16, .kv_heads = 1, .head_dim = 30, .dtype = PL_I8};
    (void)state;
    assert_int_equal(pl_kv_shape_bytes(&s), 2 * 16 * (30 + 4));
    assert_int_equal(pl_ops_create(&opt, &o, &err), PL_OK);
    assert_int_equal(pl_ops_kv_create(o, &s, &kv, &err), PL_UNSUPPORTED);
    assert_non_null(strstr(err.text, "int8"));
    s.head_dim = 64, s.value_dim = 32, s.dtype = PL_F8;
    assert_int_equal(pl_ops_kv_create(o, &s, &kv, &err), PL_UNSUPPORTED);
    assert_non_null(strstr(err.text, "fp8"));
    pl_ops_destroy(o);
}

int main(void) {
    test_own_cache();
    struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_those_of_the_format),
        cmocka_unit_test(vectors_come_back),
        cmocka_unit_test(on_the_cpu),
        cmocka_unit_test(on_devices),
        cmocka_unit_test(on_tiles),
        cmocka_unit_test(what_has_none_is_refused),
    };
    return TEST_RUN("kv8", tests);
}
