/* Caches in 8 bits: what is stored is what the oracle rounds to, attention over it is attention over those numbers, on every
 * instruction set and device, in every form of decode attention; a cache that only calls itself so would be seen.
 * test-timeout: 600 */
#include <math.h>
#include <stdio.h>

#include "cpu/cpu.h"
#include "ops/ops.h"
#include "ref/ref.h"
#include "tensor/kv8.h"
#include "tests/devices.h"

enum { T = 40, H = 4, G = 2, PAGE = 16, PAGES = 5, DIM_MAX = 128 };

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
        assert_int_equal(pl_kv_vector_bytes(types[t], 36), 40);
    }
}

/* Random queries, keys and values of T tokens, looked up like embeddings. */
struct bed {
    float q[T * H * DIM_MAX], k[T * G * DIM_MAX], v[T * G * DIM_MAX];
    float rounded_k[T * G * DIM_MAX], rounded_v[T * G * DIM_MAX], want[T * H * DIM_MAX], whole[T * H * DIM_MAX];
    float got[T * H * DIM_MAX];
};
static struct bed bed;

static void fill(size_t d, enum pl_dtype type) {
    uint32_t seed = (uint32_t)d;
    float *const arrays[] = {bed.q, bed.k, bed.v};
    const size_t counts[] = {T * H * d, T * G * d, T * G * d};
    for (size_t a = 0; a < 3; a++) {
        for (size_t i = 0; i < counts[a]; i++) {
            seed = seed * 1664525u + 1013904223u;
            arrays[a][i] = (float)(int32_t)seed * 0x1p-31f * (1 + (float)(i / d % 7));
        }
    }
    for (size_t i = 0; i < (size_t)T * G; i++) {
        round_vector(type, bed.k + i * d, d, bed.rounded_k + i * d);
        round_vector(type, bed.v + i * d, d, bed.rounded_v + i * d);
    }
    double scores[T];
    struct pl_ref_attention a = {.rows = T,
                                 .heads = H,
                                 .kv_heads = G,
                                 .head_dim = d,
                                 .scale = 0.1,
                                 .q = bed.q,
                                 .k = bed.rounded_k,
                                 .v = bed.rounded_v,
                                 .q_stride = H * d,
                                 .out = bed.want,
                                 .out_stride = H * d};
    pl_ref_attention(&a, scores);
    a.k = bed.k, a.v = bed.v, a.out = bed.whole;
    pl_ref_attention(&a, scores);
}

struct handles {
    struct pl_ops *o;
    struct pl_weight *w[3];
    struct pl_activation *a[4];
    struct pl_kv_store *kv;
};

static void make(struct handles *h, const struct pl_ops_options *opt, size_t d, enum pl_dtype type) {
    struct pl_err err = {0};
    const size_t cols[4] = {H * d, G * d, G * d, H * d};
    const float *data[3] = {bed.q, bed.k, bed.v};
    if (pl_ops_create(opt, &h->o, &err) != PL_OK) fail_msg("%s", err.text);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pl_ops_activation_create(h->o, T, cols[i], &h->a[i], &err), PL_OK);
        if (i == 3) continue;
        struct pl_tensor t = {.name = "t",
                              .dtype = PL_F32,
                              .ndim = 2,
                              .shape = {T, cols[i], 1, 1},
                              .data = data[i],
                              .bytes = T * cols[i] * sizeof(float)};
        assert_int_equal(pl_ops_weight_create(h->o, &t, PL_WEIGHT_EMBED, &h->w[i], &err), PL_OK);
    }
    struct pl_kv_shape s = {
        .layers = 2, .page_count = PAGES, .page_tokens = PAGE, .kv_heads = G, .head_dim = d, .dtype = type};
    assert_int_equal(pl_kv_shape_bytes(&s), 2 * 2 * PAGES * PAGE * G * (d + 4));
    if (pl_ops_kv_create(h->o, &s, &h->kv, &err) != PL_OK) fail_msg("%s", err.text);
}
static void drop(struct handles *h) {
    pl_ops_kv_destroy(h->o, h->kv);
    for (size_t i = 0; i < 3; i++) pl_ops_weight_destroy(h->o, h->w[i]);
    for (size_t i = 0; i < 4; i++) pl_ops_activation_destroy(h->o, h->a[i]);
    pl_ops_destroy(h->o);
}

static void step(struct handles *h, const uint32_t *pages, uint32_t past, uint32_t rows, size_t d) {
    uint32_t tokens[T];
    for (uint32_t i = 0; i < rows; i++) tokens[i] = past + i;
    struct pl_batch_seq seq = {.rows = rows, .past = past};
    struct pl_batch b = {.rows = rows, .tokens = tokens, .seq_count = 1, .seqs = &seq, .pages = pages, .page_entries = 3};
    const struct pl_qkv qkv = {.layer = 1, .heads = H};
    const struct pl_attention at = {.layer = 1, .heads = H, .scale = 0.1f};
    assert_int_equal(pl_ops_begin(h->o, &b, h->kv), PL_OK);
    for (size_t i = 0; i < 3; i++) assert_int_equal(pl_ops_embed(h->o, h->w[i], 1, h->a[i]), PL_OK);
    assert_int_equal(pl_ops_rope_append(h->o, &qkv, h->a[0], h->a[1], h->a[2]), PL_OK);
    assert_int_equal(pl_ops_attention(h->o, &at, h->a[0], h->a[3]), PL_OK);
    assert_int_equal(pl_ops_end(h->o), PL_OK);
    assert_int_equal(pl_ops_activation_read(h->o, h->a[3], 0, rows, bed.got + past * H * d), PL_OK);
}

static double distance(const float *want, size_t n) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)bed.got[i] - (double)want[i]));
        largest = fmax(largest, fabs((double)want[i]));
    }
    return worst / largest;
}

static void run(const struct pl_ops_options *opt, const char *what) {
    static const enum pl_dtype types[] = {PL_I8, PL_F8};
    static const size_t dims[] = {32, 100, 128};
    for (size_t t = 0; t < 2; t++) {
        for (size_t i = 0; i < PL_COUNT_OF(dims); i++) {
            struct handles h = {0};
            uint32_t pages[3] = {4, 0, 2};
            const size_t d = dims[i], n = T * H * d;
            fill(d, types[t]);
            make(&h, opt, d, types[t]);
            step(&h, pages, 0, 20, d);
            step(&h, pages, 20, 15, d);
            assert_int_equal(pl_ops_kv_copy_page(h.o, h.kv, 0, 3), PL_OK); /* scales travel with their page */
            pages[1] = 3;
            for (uint32_t past = 35; past < T; past++) step(&h, pages, past, 1, d);
            double off = distance(bed.want, n), unrounded = distance(bed.whole, n);
            print_message("# %s, %s, heads of %zu: %.1e off the oracle, %.1e off an f32 cache\n", what,
                          pl_kv_type_name(types[t]), d, off, unrounded);
            assert_true(off < 1e-4);
            assert_true(unrounded > 10 * off && unrounded > 1e-3);
            drop(&h);
        }
    }
}

static void on_the_cpu(void **state) {
    (void)state;
    for (int isa = 0; isa < PL_ISA_COUNT; isa++) {
        if (!pl_cpu_isa_available((enum pl_isa)isa)) continue;
        const struct pl_ops_options opt = {.backend = PL_BACKEND_CPU, .threads = 2, .isa = pl_isa_name((enum pl_isa)isa)};
        run(&opt, opt.isa);
    }
}

static void on_devices(void **state) {
    static const enum pl_backend backends[PL_DEVICE_KIND_COUNT] = {
        [PL_DEVICE_CUDA] = PL_BACKEND_CUDA, [PL_DEVICE_ROCM] = PL_BACKEND_ROCM, [PL_DEVICE_OPENCL] = PL_BACKEND_OPENCL};
    static const char *const forms[] = {NULL, "v1", "v2", "gather"};
    int ran = 0;
    (void)state;
    for (int kind = 0; kind < PL_DEVICE_KIND_COUNT; kind++) {
        int index = test_device_of((enum pl_device_kind)kind);
        if (index < 0) continue;
        for (size_t f = 0; f < (test_small() ? 1 : PL_COUNT_OF(forms)); f++, ran++) {
            const struct pl_ops_options opt = {.backend = backends[kind], .device = index, .attn = forms[f]};
            run(&opt, forms[f] != NULL ? forms[f] : pl_device_kind_name((enum pl_device_kind)kind));
        }
    }
    if (ran == 0) skip();
}

static void what_has_none_is_refused(void **state) {
    const struct pl_ops_options opt = {.backend = PL_BACKEND_CPU, .threads = 1};
    struct pl_ops *o = NULL;
    struct pl_kv_store *kv = NULL;
    struct pl_err err = {0};
    struct pl_kv_shape s = {.layers = 1, .page_count = 1, .page_tokens = 16, .kv_heads = 1, .head_dim = 30, .dtype = PL_I8};
    (void)state;
    assert_int_equal(pl_ops_create(&opt, &o, &err), PL_OK);
    assert_int_equal(pl_ops_kv_create(o, &s, &kv, &err), PL_UNSUPPORTED);
    assert_non_null(strstr(err.text, "int8"));
    s.head_dim = 64, s.value_dim = 32, s.dtype = PL_F8;
    assert_int_equal(pl_ops_kv_create(o, &s, &kv, &err), PL_UNSUPPORTED);
    assert_non_null(strstr(err.text, "fp8"));
    pl_ops_destroy(o);
}

int main(void) {
    struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_those_of_the_format),
        cmocka_unit_test(vectors_come_back),
        cmocka_unit_test(on_the_cpu),
        cmocka_unit_test(on_devices),
        cmocka_unit_test(what_has_none_is_refused),
    };
    return TEST_RUN("kv8", tests);
}
