/* Decode attention by plan on every device present, against src/ref: v1, v2 with merge, cascade, gather with dense. Head
 * sizes 32..576, groups 1..16, scattered and shared pages, lengths round page ends, windows, soft-cap, every chunk length
 * of the contract; and negative controls that must be seen. What a row may not see is NaN.
 *
 * test-variants: release (the kernels are compiled by the OpenCL driver, which no sanitizer sees; the plan and the launch
 * code are sanitized in tests/plan and tests/model)
 * test-timeout: 900 */
#include "paged_bed.h"

static void head_sizes(void) {
    static const uint32_t sizes[] = {32, 40, 64, 80, 96, 112, 128, 160, 192, 256};
    static const uint32_t pages[] = {16, 32, 64};
    for (size_t i = test_small() ? 1 : 0; i < PL_COUNT_OF(sizes); i += test_small() ? 5 : 1) {
        struct pl_paged_shape s = {.kv = i % 3 == 0   ? PL_F16
                                         : i % 3 == 1 ? PL_BF16
                                                      : PL_F32,
                                   .head_dim = sizes[i],
                                   .page_tokens = pages[i % 3],
                                   .heads = 6,
                                   .kv_heads = 2};
        one(&s, 0, 0, i % 2, (i == 2 || i == 6) && !test_small(), i % 5 == 1 ? ALL : V1 | V2);
    }
    struct pl_paged_shape odd = {.kv = PL_F16, .head_dim = 33, .page_tokens = 7, .heads = 3, .kv_heads = 3};
    one(&odd, 9, 30, 0, false, ALL);
}

static void groups(void) {
    for (uint32_t r = 1; r <= 16; r += test_small() ? 6 : 1) {
        struct pl_paged_shape s = {
            .kv = r % 2 == 0 ? PL_F16 : PL_BF16, .head_dim = 64, .page_tokens = 16, .heads = 2 * r, .kv_heads = 2};
        one(&s, 0, 0, 3, r == 4, r == 4 || r == 7 ? V2 | CASCADE : V2);
    }
    struct pl_paged_shape many = {.kv = PL_F16, .head_dim = 32, .page_tokens = 16, .heads = 71, .kv_heads = 1};
    one(&many, 0, 0, 3, false, V2); /* a prime group beyond what a thread holds */
}

/* The latent cache of MLA: one KV head, keys of 576 whose first 512 are the values. */
static void latent(void) {
    struct pl_paged_shape s = {
        .kv = PL_F32, .head_dim = 576, .value_dim = 512, .value_stride = 576, .page_tokens = 16, .heads = 32, .kv_heads = 1};
    one(&s, 0, 0, 2, false, V1 | V2);
}

static void lengths(void) {
    struct pl_paged_shape s = {.kv = PL_F16, .head_dim = 64, .page_tokens = 16, .heads = 3, .kv_heads = 1};
    uint32_t far[] = {2100, 131072, 77}; /* > 128 pages, and 8,192 */
    if (test_small()) far[1] = 300;
    struct bed a = {0};
    begin(&a, &s, 3, far, 4, 300);
    forms(&a, false, ALL);
    finish(&a);
    if (test_small()) return;
    uint32_t many[] = {131100, 131073}; /* more than 65,535 pages a row */
    struct bed b = {0};
    s.page_tokens = 2;
    s.head_dim = 32;
    begin(&b, &s, 2, many, 60000, 500);
    forms(&b, false, ALL);
    finish(&b);
}

/* Scores of -inf: nothing visible weighs anything, and no NaN appears. Keys of -inf with a positive query element give it
 * without 0 * inf. */
static void nothing_weighs(void) {
    struct pl_paged_shape s = {.kv = PL_F32, .head_dim = 32, .page_tokens = 16, .heads = 2, .kv_heads = 1};
    uint32_t len[] = {40, 20};
    struct bed b = {0};
    begin(&b, &s, 2, len, 0, 0);
    float *q = b.q, minus = -INFINITY;
    for (size_t i = 0; i < 2 * 2 * 32; i++) q[i] = fabsf(q[i]) + 0.1f;
    kit_drop(&b.bq), kit_drop(&b.bk);
    b.bq = kit_up(q, 2 * 2 * 32 * 4);
    for (uint32_t t = 0; t < 40; t++) { /* all of row 0 */
        size_t at = ((size_t)b.table[0][t / 16] * 16 + t % 16) * 32;
        memcpy(b.k + at * 4, &minus, 4);
    }
    for (uint32_t t = 0; t < 16; t++) { /* the first page of row 1: one whole chunk of nothing */
        size_t at = ((size_t)b.table[1][0] * 16 + t) * 32;
        memcpy(b.k + at * 4, &minus, 4);
    }
    b.bk = kit_up(b.k, (size_t)b.pages * 16 * 32 * 4);
    expect(&b);
    memset(b.want, 0, 2 * 32 * 4); /* row 0: zeros, where the definition gives 0 / 0 */
    forms(&b, true, ALL);
    finish(&b);
}

#define ON_EACH_DEVICE(name)                \
    static void test_##name(void **state) { \
        (void)state;                        \
        kit_each(name);                     \
    }
ON_EACH_DEVICE(head_sizes)
ON_EACH_DEVICE(latent)
ON_EACH_DEVICE(groups)
ON_EACH_DEVICE(windows)
ON_EACH_DEVICE(lengths)
ON_EACH_DEVICE(batch)
ON_EACH_DEVICE(nothing_weighs)
ON_EACH_DEVICE(repeatable)
ON_EACH_DEVICE(invariant)
ON_EACH_DEVICE(controls)

int main(void) {
    struct CMUnitTest tests[] = {cmocka_unit_test(test_controls),   cmocka_unit_test(test_nothing_weighs),
                                 cmocka_unit_test(test_repeatable), cmocka_unit_test(test_invariant),
                                 cmocka_unit_test(test_windows),    cmocka_unit_test(test_head_sizes),
                                 cmocka_unit_test(test_latent),     cmocka_unit_test(test_groups),
                                 cmocka_unit_test(test_lengths),    cmocka_unit_test(test_batch)};
    return TEST_RUN("decode attention by plan", tests);
}
