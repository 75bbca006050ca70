/* Tokens drawn on a device against src/sample: the same ones, for every filter, type of logits, width, number of rows and
 * length of lists; frequencies against exact probabilities; logits far apart; rows that have no token.
 *
 * test-variants: release (the kernels are compiled by the OpenCL driver, which no sanitizer sees)
 * test-timeout: 600 */
#include "kit.h"

#include "ops/draw.h"
#include "sample/sample.h"
#include "tensor/convert.h"
#include "tests/skip.h"

static struct pl_draw_kernels draw;
static struct pl_draw_room room;

/* Rounds logits to what the type holds, and packs them. */
static void *pack(float *x, size_t n, enum pl_dtype type) {
    if (type == PL_F32) {
        float *p = malloc(n * 4 + 1);
        memcpy(p, x, n * 4);
        return p;
    }
    uint16_t *p = malloc(n * 2 + 1);
    for (size_t i = 0; i < n; i++) {
        p[i] = type == PL_F16 ? pl_f32_to_f16(x[i]) : pl_f32_to_bf16(x[i]);
        x[i] = type == PL_F16 ? pl_f16_to_f32(p[i]) : pl_bf16_to_f32(p[i]);
    }
    return p;
}

static uint32_t *run(float *x, size_t rows, size_t cols, enum pl_dtype type, const struct pl_draw *how, bool climb,
                     uint32_t list) {
    struct pl_draw_ways ways = climb ? pl_draw_ways_of(how, rows) : (struct pl_draw_ways){.lists = true};
    struct pl_args_draw *args = malloc(rows * sizeof *args);
    for (size_t r = 0; r < rows; r++) args[r] = pl_draw_args(&how[r], (uint32_t)cols);
    void *packed = pack(x, rows * cols, type);
    struct pl_device_buffer bx = kit_up(packed, rows * cols * pl_dtype_info(type)->block_bytes),
                            bd = kit_up(args, rows * sizeof *args), out = kit_out(2 * rows * 4);
    CHECK(pl_draw_reserve(&ks, &room, rows));
    CHECK(pl_launch_draw(&ks, &draw, &room, &bx, &bd, &out, rows, cols, ways, list));
    uint32_t *got = kit_down(&out);
    kit_drop(&bx);
    kit_drop(&bd);
    free(packed), free(args);
    return got;
}

static uint32_t on_host(const float *row, size_t cols, const struct pl_draw *d) {
    struct pl_sampling s;
    pl_sampling_default(&s);
    s.temperature = d->temperature, s.top_k = d->top_k, s.top_p = d->top_p, s.min_p = d->min_p, s.seed = d->seed;
    struct pl_sampler *sampler = NULL;
    CHECK(pl_sampler_create(&s, (uint32_t)cols, &sampler, &err));
    float *copy = malloc(cols * sizeof *copy);
    memcpy(copy, row, cols * sizeof *copy);
    uint32_t id = 0;
    enum pl_status st = pl_sampler_draw(sampler, copy, d->position, &id);
    free(copy);
    pl_sampler_destroy(sampler);
    return st == PL_OK ? id : st == PL_INVALID ? PL_PICK_NONE : PL_PICK_BROKEN;
}

static void check(float *x, size_t rows, size_t cols, enum pl_dtype type, const struct pl_draw *how, bool climb,
                  uint32_t list) {
    uint32_t *got = run(x, rows, cols, type, how, climb, list);
    for (size_t r = 0; r < rows; r++) {
        uint32_t want = on_host(x + r * cols, cols, &how[r]);
        assert_int_equal(got[rows + r], 0);
        if (got[r] == want) continue;
        print_message(
            "# %s, row %zu of %zu, %zu columns, lists of %u: %u, on the host %u (T %g, top_k %u, top_p %g, min_p %g)\n",
            pl_dtype_name(type), r, rows, cols, list, got[r], want, (double)how[r].temperature, how[r].top_k,
            (double)how[r].top_p, (double)how[r].min_p);
        fail();
    }
    free(got);
}

static struct pl_draw random_draw(void) {
    static const float temperatures[] = {0, 0.05f, 0.7f, 1, 1.5f, 30};
    static const uint32_t ks_[] = {0, 0, 1, 2, 40, 300};
    static const float ps[] = {1, 1, 0.95f, 0.5f, 0.01f, 0.9999f}, mins[] = {0, 0, 0.05f, 0.5f};
    return (struct pl_draw){temperatures[kit_u32() % 6],
                            ks_[kit_u32() % 6],
                            ps[kit_u32() % 6],
                            mins[kit_u32() % 4],
                            ((uint64_t)kit_u32() << 32) | kit_u32(),
                            kit_u32() % 3 == 0 ? (uint64_t)kit_u32() << 20 : kit_u32() % 4096};
}

/* Logits as models give them: most low, few high; or all alike; or in steps, so that many are equal. */
static float *random_rows(size_t rows, size_t cols) {
    float *x = kit_random(rows * cols, 1);
    for (size_t r = 0; r < rows; r++) {
        float spread = (float[]){0.01f, 1, 6, 20}[kit_u32() % 4];
        bool steps = kit_u32() % 4 == 0;
        for (size_t i = 0; i < cols; i++) {
            float v = x[r * cols + i] * spread;
            if (kit_u32() % 50 == 0) v += spread;
            if (kit_u32() % 40 == 0) v = -INFINITY;
            x[r * cols + i] = steps ? roundf(v) : v;
        }
    }
    return x;
}

static void equal_tokens(void) {
    static const size_t widths[] = {1, 2, 33, 64, 255, 1000, 5003, 20000};
    static const size_t counts[] = {1, 3, 17};
    static const enum pl_dtype types[] = {PL_F32, PL_F16, PL_BF16};
    static const uint32_t lists[] = {PL_DRAW_LIST, 1, 7};
    for (size_t t = 0; t < PL_COUNT_OF(types); t++) {
        CHECK(pl_kernel_draw(&ks, types[t], &draw, &err));
        for (size_t again = 0; again < (test_small() ? 2 : 40); again++) {
            size_t cols = widths[again % PL_COUNT_OF(widths)], rows = counts[again % PL_COUNT_OF(counts)];
            float *x = random_rows(rows, cols);
            struct pl_draw how[17];
            for (size_t r = 0; r < rows; r++) how[r] = random_draw();
            check(x, rows, cols, types[t], how, again % 4 != 0, lists[again % PL_COUNT_OF(lists)]);
            free(x);
        }
    }
    pl_draw_release(&ks, &room);
}

/* Rows of one width in f32, f16, bf16 and f32 again, one cache for all of them; how many tokens are not the host's. */
static uint32_t wrong_in_turn(const enum pl_dtype *order, size_t count) {
    enum { COLS = 1000, ROWS = 8 };
    uint32_t wrong = 0;
    for (size_t t = 0; t < count; t++) {
        float *x = kit_random(ROWS * COLS, 8);
        struct pl_draw how[ROWS];
        for (uint32_t r = 0; r < ROWS; r++) how[r] = (struct pl_draw){0.7f, r % 2 ? 40 : 0, 0.95f, 0, 40 + r, 2};
        CHECK(pl_kernel_draw(&ks, order[t], &draw, &err));
        uint32_t *got = run(x, ROWS, COLS, order[t], how, true, PL_DRAW_LIST);
        for (uint32_t r = 0; r < ROWS; r++) wrong += got[r] != on_host(x + r * COLS, COLS, &how[r]);
        free(got), free(x);
    }
    pl_draw_release(&ks, &room);
    return wrong;
}
/* A cache whose key lacks the type gives f16's kernels to f32 (that way round nothing is read past the rows). */
static void types_in_turn(void) {
    static const enum pl_dtype order[] = {PL_F32, PL_F16, PL_BF16, PL_F32}, narrow_first[] = {PL_F16, PL_F32};
    assert_int_equal(wrong_in_turn(order, PL_COUNT_OF(order)), 0);
    pl_jit_test_weaken(ks.jit, PL_JIT_FIELD_VALUES);
    uint32_t wrong = wrong_in_turn(narrow_first, PL_COUNT_OF(narrow_first));
    pl_jit_test_weaken(ks.jit, PL_JIT_FIELD_COUNT);
    assert_in_range(wrong, 5, 8);
}

static void rows_without_a_token(void) {
    enum { COLS = 700, ROWS = 5 };
    CHECK(pl_kernel_draw(&ks, PL_F32, &draw, &err));
    for (uint32_t top_k = 0; top_k < 6; top_k += 5) { /* without and with: by both ways */
        float *x = kit_random(ROWS * COLS, 3);
        struct pl_draw how[ROWS];
        for (size_t r = 0; r < ROWS; r++) how[r] = (struct pl_draw){r == 4 ? 0 : 1, top_k, 0.9f, 0, r, 3};
        x[1 * COLS + 300] = NAN;
        x[2 * COLS + COLS - 1] = INFINITY;
        for (size_t i = 0; i < COLS; i++) x[3 * COLS + i] = -INFINITY;
        x[4 * COLS] = INFINITY;
        uint32_t *got = run(x, ROWS, COLS, PL_F32, how, true, PL_DRAW_LIST);
        assert_true(got[0] < COLS);
        assert_int_equal(got[1], PL_PICK_BROKEN);
        assert_int_equal(got[2], PL_PICK_BROKEN);
        assert_int_equal(got[3], PL_PICK_NONE);
        assert_int_equal(got[4], PL_PICK_BROKEN);
        free(got), free(x);
    }
    pl_draw_release(&ks, &room);
}

/* Rows of which a grammar leaves few tokens, none among the first; as large or as small as they come. */
static void masked_rows(void) {
    enum { COLS = 20000, ROWS = 12 };
    CHECK(pl_kernel_draw(&ks, PL_F32, &draw, &err));
    float *x = malloc(ROWS * COLS * sizeof *x);
    struct pl_draw how[ROWS];
    for (size_t i = 0; i < ROWS * COLS; i++) x[i] = -INFINITY;
    for (size_t r = 0; r < ROWS; r++) {
        static const float at[] = {0, 40, -90, 200};
        for (uint32_t n = 0; n < 3 + 40 * (r % 3); n++)
            x[r * COLS + 12000 + kit_u32() % 8000] = at[r % 4] + (float)(kit_u32() % 1000) * 0.004f;
        how[r] = (struct pl_draw){0.8f, 0, r % 2 ? 0.7f : 1, r % 3 ? 0 : 0.1f, 77 + r, 5};
    }
    check(x, ROWS, COLS, PL_F32, how, true, PL_DRAW_LIST);
    free(x);
    pl_draw_release(&ks, &room);
}

/* The comparison sees a filter that is not there, and one that is another: half of what is drawn without lies outside 0.5.
 */
static void other_filters_are_seen(void) {
    enum { COLS = 5003, ROWS = 16 };
    CHECK(pl_kernel_draw(&ks, PL_F32, &draw, &err));
    float *x = kit_random(ROWS * COLS, 1);
    struct pl_draw how[ROWS];
    for (uint32_t r = 0; r < ROWS; r++) how[r] = (struct pl_draw){1, 0, 0.5f, 0, 900 + r, 1};
    uint32_t *got = run(x, ROWS, COLS, PL_F32, how, true, PL_DRAW_LIST), differ[2] = {0};
    for (uint32_t r = 0; r < ROWS; r++) {
        struct pl_draw wide = how[r], none = how[r];
        wide.top_p = 0.8f, none.top_p = 1;
        differ[0] += got[r] != on_host(x + r * COLS, COLS, &wide);
        differ[1] += got[r] != on_host(x + r * COLS, COLS, &none);
    }
    assert_true(differ[0] > 0 && differ[1] > 2 && differ[1] < ROWS);
    free(got), free(x);
    pl_draw_release(&ks, &room);
}

/* Logits 100 apart leave no chance to any noise. */
static void far_apart(void) {
    enum { COLS = 4000, ROWS = 8 };
    CHECK(pl_kernel_draw(&ks, PL_F32, &draw, &err));
    float *x = malloc(ROWS * COLS * sizeof *x);
    for (size_t i = 0; i < ROWS * COLS; i++) x[i] = i % COLS == 17 ? 100 : 0;
    for (uint32_t again = 0; again < (test_small() ? 2 : 60); again++) {
        struct pl_draw how[ROWS];
        for (uint32_t r = 0; r < ROWS; r++) how[r] = (struct pl_draw){1, 0, 1, 0, again * ROWS + r, again};
        uint32_t *got = run(x, ROWS, COLS, PL_F32, how, true, PL_DRAW_LIST);
        for (uint32_t r = 0; r < ROWS; r++) assert_int_equal(got[r], 17);
        free(got);
    }
    free(x);
    pl_draw_release(&ks, &room);
}

/* Frequencies of filtered and tempered draws against probabilities in double. 99.9% of right samplers stay below the bound.
 */
static double chi_square(float told) {
    enum { COLS = 24, ROWS = 128, TIMES = 80, KEPT = 12 };
    float *x = malloc(ROWS * COLS * sizeof *x);
    double p[COLS] = {0}, sum = 0, chi = 0;
    uint32_t seen[COLS] = {0};
    for (size_t i = 0; i < ROWS * COLS; i++) x[i] = 0.15f * (float)(i % COLS);
    for (size_t i = COLS - KEPT; i < COLS; i++) sum += p[i] = exp(0.15 * (double)i / 0.8);
    for (uint32_t again = 0; again < TIMES; again++) {
        struct pl_draw how[ROWS];
        for (uint32_t r = 0; r < ROWS; r++) how[r] = (struct pl_draw){told, KEPT, 1, 0, 5 + r, again};
        uint32_t *got = run(x, ROWS, COLS, PL_F32, how, true, PL_DRAW_LIST);
        for (uint32_t r = 0; r < ROWS; r++) seen[got[r]]++;
        free(got);
    }
    for (size_t i = 0; i < COLS; i++) {
        if (i < COLS - KEPT) assert_int_equal(seen[i], 0);
        double want = p[i] / sum * ROWS * TIMES;
        if (i >= COLS - KEPT) chi += (seen[i] - want) * (seen[i] - want) / want;
    }
    free(x);
    pl_draw_release(&ks, &room);
    return chi;
}
static void frequencies(void) {
    CHECK(pl_kernel_draw(&ks, PL_F32, &draw, &err));
    double right = chi_square(0.8f), wrong = chi_square(0.96f);
    print_message("# chi-square of 11 degrees: %.1f; with a temperature 20%% off %.1f\n", right, wrong);
    assert_true(right < 31.3 && wrong > 31.3);
}

static void test_equal_tokens(void **state) {
    (void)state;
    kit_each(equal_tokens);
}
static void test_types_in_turn(void **state) {
    (void)state;
    kit_each(types_in_turn);
}
static void test_rows_without_a_token(void **state) {
    (void)state;
    kit_each(rows_without_a_token);
}
static void test_masked_rows(void **state) {
    (void)state;
    kit_each(masked_rows);
}
static void test_other_filters_are_seen(void **state) {
    (void)state;
    kit_each(other_filters_are_seen);
}
static void test_far_apart(void **state) {
    (void)state;
    kit_each(far_apart);
}
static void test_frequencies(void **state) {
    (void)state;
    if (test_small()) SKIP("it is about many, and this run about small ones");
    kit_each(frequencies);
}

int main(void) {
    struct CMUnitTest tests[] = {cmocka_unit_test(test_equal_tokens),
                                 cmocka_unit_test(test_types_in_turn),
                                 cmocka_unit_test(test_rows_without_a_token),
                                 cmocka_unit_test(test_masked_rows),
                                 cmocka_unit_test(test_other_filters_are_seen),
                                 cmocka_unit_test(test_far_apart),
                                 cmocka_unit_test(test_frequencies)};
    return TEST_RUN("draw kernels", tests);
}
