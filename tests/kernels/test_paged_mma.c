/* Decode attention by plan on NVIDIA's tensor cores (kernels/cuda/paged_mma.k.c) against src/ref: every head size, group and
 * page size it takes, all types, every chunk length of the contract, shared pages, windows, soft-cap, more than 65,535
 * pages; negative controls that must be seen. What a row may not see is NaN.
 *
 * test-variants: release (the kernels are compiled by the driver's compiler, which no sanitizer sees)
 * test-timeout: 900 */
#include "paged_bed.h"
#include "tests/skip.h"

static void with_units(void (*fn)(void)) {
    int index = test_device_of(PL_DEVICE_CUDA);
    if (index < 0) SKIP("no CUDA device here");
    struct pl_jit_options jit = {.mode = PL_JIT_ON, .dir = "build/test-jit"};
    CHECK(pl_kernels_open(PL_DEVICE_CUDA, index, &jit, &ks, &err));
    on_units = true;
    fn();
    pl_kernels_close(&ks);
}

static void head_sizes(void) {
    static const uint32_t sizes[] = {32, 64, 80, 96, 112, 128, 160, 192, 256};
    static const uint32_t pages[] = {16, 32, 64, 128};
    for (size_t i = 0; i < PL_COUNT_OF(sizes); i += test_small() ? 4 : 1) {
        for (int type = 0; type < 2; type++) {
            struct pl_paged_shape s = {.kv = type == 0 ? PL_F16 : PL_BF16,
                                       .head_dim = sizes[i],
                                       .page_tokens = pages[(i + (size_t)type) % 4],
                                       .heads = 8,
                                       .kv_heads = 2};
            assert_null(pl_paged_mma_declines(&ks, &s));
            one(&s, 0, 0, i % 2 == 0 ? 2 : 0, sizes[i] == 128, V2 | CASCADE);
        }
    }
}

static void big_groups(void) {
    for (uint32_t r = 1; r <= 16; r += test_small() ? 6 : 1) {
        struct pl_paged_shape s = {
            .kv = r % 2 == 0 ? PL_BF16 : PL_F16, .head_dim = 128, .page_tokens = 32, .heads = 2 * r, .kv_heads = 2};
        one(&s, 0, r % 5 == 0 ? 30 : 0, 3, false, V2 | CASCADE);
    }
    struct pl_paged_shape many = {.kv = PL_BF16, .head_dim = 128, .page_tokens = 32, .heads = 64, .kv_heads = 1};
    one(&many, 0, 0, 3, false, V2 | CASCADE); /* four tiles of heads */
}

/* Caches in few bits: every group and page size, values far from each other, windows, a soft-cap, chunk lengths, long rows.
 */
static void few_bits(void) {
    static const enum pl_dtype types[] = {PL_I8, PL_F8, PL_K8V4};
    static const uint32_t sizes[] = {128, 64, 32, 80, 256}, groups[] = {4, 1, 8, 12, 3}, pages[] = {32, 16, 64, 16, 32};
    for (size_t t = 0; t < PL_COUNT_OF(types); t++) {
        for (size_t i = 0; i < (types[t] == PL_K8V4 ? 3 : PL_COUNT_OF(sizes)); i += test_small() ? 3 : 1) {
            uint32_t kv_heads = 1 + (uint32_t)i % 3 + (uint32_t)t % 2;
            struct pl_paged_shape s = {.kv = types[t],
                                       .head_dim = sizes[i],
                                       .page_tokens = pages[i],
                                       .heads = groups[i] * kv_heads,
                                       .kv_heads = kv_heads};
            assert_null(pl_paged_mma_declines(&ks, &s));
            one(&s, i == 1 ? 40 : 0, i == 2 ? 30 : 0, 0, i == 0, V2);
        }
        struct pl_paged_shape s = {.kv = types[t], .head_dim = 128, .page_tokens = 32, .heads = 12, .kv_heads = 3};
        uint32_t len[] = {5000, 77, 1301};
        struct bed b = {0};
        begin(&b, &s, 3, len, 0, 0);
        forms(&b, false, V2);
        struct pl_plan_options o = options(&b, 4, false);
        make_plan(&b, &o);
        assert_true(differs(&b, run_plan(&b, false, natural_log)));
        float *first = run_plan(&b, false, NULL), *again = run_plan(&b, false, NULL);
        assert_memory_equal(first, again, outputs(&b) * 4);
        free(first), free(again);
        b.scale *= 1.05f;
        assert_true(differs(&b, run_plan(&b, false, NULL)));
        finish(&b);
    }
}

/* Latent keys, whose first numbers are their values: one to four tiles of heads, every chunk length, long rows, a soft-cap.
 */
static void latents(void) {
    static const uint32_t heads[] = {16, 32, 48, 64, 128}, pages[] = {16, 32, 64};
    for (size_t i = 0; i < PL_COUNT_OF(heads); i += test_small() ? 2 : 1) {
        for (int type = 0; type < 2; type++) {
            struct pl_paged_shape s = {.kv = type == 0 ? PL_F16 : PL_BF16,
                                       .head_dim = 576,
                                       .value_dim = 512,
                                       .value_stride = 576,
                                       .page_tokens = pages[(i + (size_t)type) % 3],
                                       .heads = heads[i],
                                       .kv_heads = 1};
            assert_null(pl_paged_mma_declines(&ks, &s));
            one(&s, i == 1 ? 40 : 0, i == 3 ? 30 : 0, 2, heads[i] == 16, V2);
        }
    }
    struct pl_paged_shape s = {
        .kv = PL_F16, .head_dim = 576, .value_dim = 512, .value_stride = 576, .page_tokens = 16, .heads = 16, .kv_heads = 1};
    uint32_t len[] = {5000, 77, 1301};
    struct bed b = {0};
    begin(&b, &s, 3, len, 0, 0);
    forms(&b, true, V2);
    struct pl_plan_options o = options(&b, 4, false);
    make_plan(&b, &o);
    float *first = run_plan(&b, false, NULL), *again = run_plan(&b, false, NULL);
    assert_memory_equal(first, again, outputs(&b) * 4); /* the same bits again */
    free(first), free(again);
    assert_true(differs(&b, run_plan(&b, false, natural_log))); /* negative controls */
    b.scale *= 1.05f;
    assert_true(differs(&b, run_plan(&b, false, NULL)));
    finish(&b);
}

/* More members than one chunk takes, spans of many tiles, and what each length has to itself. */
static void shared_spans(void) {
    struct pl_paged_shape s = {.kv = PL_BF16, .head_dim = 128, .page_tokens = 32, .heads = 8, .kv_heads = 2};
    uint32_t len[70];
    for (uint32_t i = 0; i < 70; i++) len[i] = 32 * 11 + 1 + kit_u32() % 300;
    struct bed b = {0};
    begin(&b, &s, 70, len, 11, 0);
    forms(&b, true, V2 | CASCADE);
    finish(&b);
}

/* Shared chunks of more tiles than are on their way at once, so that every register is used again: 160 rows of heads (a
 * whole tile of members and a part of one), and few, which two teams share. */
static void long_spans(void) {
    static const struct {
        uint32_t rows, group, dim;
        enum pl_dtype kv;
    } all[] = {{40, 4, 128, PL_F16}, {6, 4, 128, PL_BF16}, {6, 4, 64, PL_F16},  {40, 4, 64, PL_BF16},
               {5, 1, 128, PL_F16},  {9, 8, 128, PL_BF16}, {5, 7, 128, PL_F16}, {9, 16, 128, PL_F16}};
    for (size_t i = 0; i < (test_small() ? 2 : PL_COUNT_OF(all)); i++) {
        uint32_t len[40], rows = test_small() ? 6 : all[i].rows, pages = test_small() ? 30 : 50;
        struct pl_paged_shape s = {
            .kv = all[i].kv, .head_dim = all[i].dim, .page_tokens = 32, .heads = 2 * all[i].group, .kv_heads = 2};
        for (uint32_t r = 0; r < rows; r++) len[r] = 32 * pages + 1 + kit_u32() % 100;
        struct bed b = {0};
        begin(&b, &s, rows, len, pages, 0);
        forms(&b, !test_small(), CASCADE);
        finish(&b);
    }
}

static void lengths(void) {
    struct pl_paged_shape s = {.kv = PL_F16, .head_dim = 64, .page_tokens = 16, .heads = 3, .kv_heads = 1};
    uint32_t far[] = {2100, 131072, 77}; /* > 128 pages, and 8,192 */
    if (test_small()) far[1] = 300;
    struct bed a = {0};
    begin(&a, &s, 3, far, 4, 300);
    forms(&a, true, V2 | CASCADE);
    finish(&a);
    if (test_small()) return;
    uint32_t many[] = {16 * 65540 + 3, 16 * 65537}; /* more than 65,535 pages a row */
    struct bed b = {0};
    s.head_dim = 32;
    begin(&b, &s, 2, many, 60000, 500);
    forms(&b, false, V2 | CASCADE);
    finish(&b);
}

static void declines(void) {
    struct pl_paged_shape s = {.kv = PL_F32, .head_dim = 128, .page_tokens = 32, .heads = 8, .kv_heads = 2};
    assert_string_equal(pl_paged_mma_declines(&ks, &s), "dtype");
    s.kv = PL_F16;
    s.head_dim = 40;
    assert_string_equal(pl_paged_mma_declines(&ks, &s), "geometry");
    s.head_dim = 128;
    s.page_tokens = 8;
    assert_string_equal(pl_paged_mma_declines(&ks, &s), "geometry");
    s.page_tokens = 16;
    assert_null(pl_paged_mma_declines(&ks, &s));
    struct pl_paged_shape latent = {
        .kv = PL_F16, .head_dim = 576, .value_dim = 512, .value_stride = 576, .page_tokens = 32, .heads = 20, .kv_heads = 1};
    assert_string_equal(pl_paged_mma_declines(&ks, &latent), "geometry");
    latent.heads = 16;
    latent.kv = PL_F32;
    assert_string_equal(pl_paged_mma_declines(&ks, &latent), "dtype");
}

#define WITH_UNITS(name)                    \
    static void test_##name(void **state) { \
        (void)state;                        \
        with_units(name);                   \
    }
WITH_UNITS(declines)
WITH_UNITS(controls)
WITH_UNITS(repeatable)
WITH_UNITS(invariant)
WITH_UNITS(windows)
WITH_UNITS(head_sizes)
WITH_UNITS(big_groups)
WITH_UNITS(latents)
WITH_UNITS(few_bits)
WITH_UNITS(shared_spans)
WITH_UNITS(long_spans)
WITH_UNITS(batch)
WITH_UNITS(lengths)

int main(void) {
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_declines),   cmocka_unit_test(test_controls),     cmocka_unit_test(test_repeatable),
        cmocka_unit_test(test_invariant),  cmocka_unit_test(test_shared_spans), cmocka_unit_test(test_windows),
        cmocka_unit_test(test_head_sizes), cmocka_unit_test(test_big_groups),   cmocka_unit_test(test_batch),
        cmocka_unit_test(test_lengths),    cmocka_unit_test(test_latents),      cmocka_unit_test(test_long_spans),
        cmocka_unit_test(test_few_bits)};
    return TEST_RUN("decode attention on tensor cores", tests);
}
