/* kv_bed - one layer of attention over a cache that keeps fewer bits than it is given, in a prompt, its second part and
 * single tokens, over pages of which one was copied: against src/ref over what the cache gives back. */
#ifndef TESTS_OPS_KV_BED_H
#define TESTS_OPS_KV_BED_H

#include <math.h>
#include <stdio.h>

#include "cpu/cpu.h"
#include "ops/ops.h"
#include "ref/ref.h"
#include "tensor/convert.h"
#include "tensor/kv8.h"
#include "tests/devices.h"

enum { T = 40, H = 4, G = 2, PAGE = 16, PAGES = 5, DIM_MAX = 128 };

/* Random queries, keys and values of T tokens, looked up like embeddings. */
struct bed {
    float q[T * H * DIM_MAX], k[T * G * DIM_MAX], v[T * G * DIM_MAX];
    float kept_k[T * G * DIM_MAX], kept_v[T * G * DIM_MAX]; /* what the cache gives back; the test's own */
    float want[T * H * DIM_MAX], whole[T * H * DIM_MAX];    /* over what it gives back, over what it was given */
    float got[T * H * DIM_MAX];
};
static struct bed bed;

static void bed_fill(size_t d) {
    uint32_t seed = (uint32_t)d;
    float *const arrays[] = {bed.q, bed.k, bed.v};
    const size_t counts[] = {T * H * d, T * G * d, T * G * d};
    for (size_t a = 0; a < 3; a++) {
        for (size_t i = 0; i < counts[a]; i++) {
            seed = seed * 1664525u + 1013904223u;
            arrays[a][i] = (float)(int32_t)seed * 0x1p-31f * (1 + (float)(i / d % 7));
        }
    }
}

static void bed_reference(size_t d, const float *k, const float *v, float *out) {
    double scores[T];
    struct pl_ref_attention a = {.rows = T,
                                 .heads = H,
                                 .kv_heads = G,
                                 .head_dim = d,
                                 .scale = 0.1,
                                 .q = bed.q,
                                 .k = k,
                                 .v = v,
                                 .q_stride = H * d,
                                 .out = out,
                                 .out_stride = H * d};
    pl_ref_attention(&a, scores);
}

struct handles {
    struct pl_ops *o;
    struct pl_weight *w[3];
    struct pl_activation *a[4];
    struct pl_kv_store *kv;
};

static void bed_make(struct handles *h, const struct pl_ops_options *opt, size_t d, enum pl_dtype type) {
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
    if (pl_ops_kv_create(h->o, &s, &h->kv, &err) != PL_OK) fail_msg("%s", err.text);
}
static void bed_drop(struct handles *h) {
    pl_ops_kv_destroy(h->o, h->kv);
    for (size_t i = 0; i < 3; i++) pl_ops_weight_destroy(h->o, h->w[i]);
    for (size_t i = 0; i < 4; i++) pl_ops_activation_destroy(h->o, h->a[i]);
    pl_ops_destroy(h->o);
}

static void bed_step(struct handles *h, const uint32_t *pages, uint32_t past, uint32_t rows, size_t d) {
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

static inline double bed_distance(const float *want, size_t n) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)bed.got[i] - (double)want[i]));
        largest = fmax(largest, fabs((double)want[i]));
    }
    return worst / largest;
}

/* All of it in bed.got: 20 rows, 15 more, a page copied (scales travel with it), one by one. */
static inline void bed_run(const struct pl_ops_options *opt, size_t d, enum pl_dtype type) {
    struct handles h = {0};
    uint32_t pages[3] = {4, 0, 2};
    bed_make(&h, opt, d, type);
    bed_step(&h, pages, 0, 20, d);
    bed_step(&h, pages, 20, 15, d);
    assert_int_equal(pl_ops_kv_copy_page(h.o, h.kv, false, 0, 3), PL_OK);
    pages[1] = 3;
    for (uint32_t past = 35; past < T; past++) bed_step(&h, pages, past, 1, d);
    bed_drop(&h);
}

/* fn on every instruction set of this CPU; on every device, in every form of decode attention. */
typedef void bed_fn(const struct pl_ops_options *opt, const char *what);
static void bed_on_the_cpu(bed_fn *fn) {
    for (int isa = 0; isa < PL_ISA_COUNT; isa++) {
        if (!pl_cpu_isa_available((enum pl_isa)isa)) continue;
        const struct pl_ops_options opt = {.backend = PL_BACKEND_CPU, .threads = 2, .isa = pl_isa_name((enum pl_isa)isa)};
        fn(&opt, opt.isa);
    }
}
static int bed_on_devices(bed_fn *fn) {
    static const enum pl_backend backends[PL_DEVICE_KIND_COUNT] = {
        [PL_DEVICE_CUDA] = PL_BACKEND_CUDA, [PL_DEVICE_ROCM] = PL_BACKEND_ROCM, [PL_DEVICE_OPENCL] = PL_BACKEND_OPENCL};
    static const char *const forms[] = {NULL, "v1", "v2", "gather"};
    int ran = 0;
    for (int kind = 0; kind < PL_DEVICE_KIND_COUNT; kind++) {
        int index = test_device_of((enum pl_device_kind)kind);
        if (index < 0) continue;
        for (size_t f = 0; f < (test_small() ? 1 : PL_COUNT_OF(forms)); f++, ran++) {
            const struct pl_ops_options opt = {.backend = backends[kind],
                                               .device = index,
                                               .attn = forms[f],
                                               .disable = kind == PL_DEVICE_CUDA ? "attention=tiles" : NULL};
            fn(&opt, forms[f] != NULL ? forms[f] : pl_device_kind_name((enum pl_device_kind)kind));
        }
    }
    return ran;
}

/* On NVIDIA's tensor cores, where the prompt of 20 rows is computed from what widen.k.c made of the cache. */
static inline bool bed_on_tiles(bed_fn *fn) {
    int index = test_device_of(PL_DEVICE_CUDA);
    if (index < 0) return false;
    const struct pl_ops_options opt = {.backend = PL_BACKEND_CUDA, .device = index};
    fn(&opt, "tiles");
    return true;
}
/* q, what is cached and the weights are rounded to f16 there. */
static inline double bed_bound(const char *what) { return strcmp(what, "tiles") == 0 ? 2e-3 : 1e-4; }

#endif
