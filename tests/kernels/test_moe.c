/* Mixtures of experts against src/ref: every router, orders and tiles, products of every weight type slot by slot and by
 * expert, biases, activations; sentinels, poisoned outputs, matrices past 4 GiB, and controls that must be seen. Kernels
 * that only NVIDIA devices have: test_moe_cuda.c.
 *
 * test-variants: release (the kernels are compiled by the OpenCL driver, which no sanitizer sees; the host code they go
 * through is sanitized in tests/device, tests/jit and tests/model)
 * test-timeout: 600 */
#include "moe_bed.h"

#include "ops/cuda_moe.h"
#include "tests/skip.h"

static int far_ran, far_skipped;

/* --- choice --- */

struct route_case {
    uint32_t experts, used;
    bool sigmoid, renormalise, bias;
    uint32_t groups, groups_used, group_top;
    float scale;
};

static void check_route(const struct route_case *c) {
    enum { ROWS = 9 };
    struct pl_moe_route k = {0};
    size_t n = c->experts;
    CHECK(pl_kernel_moe_route(&ks, c->experts, c->used, PL_MOE_TILE, &k, &err));
    room_open(ROWS * c->used, 1, 1);
    float *logits = kit_random(ROWS * n, 3), *bias = kit_random(n, 1);
    for (size_t e = 0; e < n; e++) logits[e] = 1;                                                  /* all tie: the first */
    for (size_t e = 0; e < n && c->renormalise; e++) logits[n + e] = e % 3 == 0 ? NAN : -(float)e; /* last whatever else */
    for (size_t e = 0; e < n; e++) logits[2 * n + e] = e == n / 2 ? 3e38f : -3e38f;
    for (size_t e = 0; e < n; e++) logits[3 * n + e] = (e & 1u) != 0 ? -0.0f : 0.0f; /* equal */
    struct pl_device_buffer bl = kit_up(logits, ROWS * n * 4), bb = kit_up(bias, n * 4);
    struct pl_launch_route r = {.logits = &bl,
                                .bias = c->bias ? &bb : NULL,
                                .rows = ROWS,
                                .sigmoid = c->sigmoid,
                                .renormalise = c->renormalise,
                                .groups = c->groups,
                                .groups_used = c->groups_used,
                                .group_top = c->group_top,
                                .scale = c->scale};
    CHECK(pl_launch_moe_route(&ks, &k, &room, &r));
    uint32_t *ids = fetch(&room.ids, ROWS * c->used * 4);
    float *weights = fetch(&room.weights, ROWS * c->used * 4);
    const struct pl_ref_route ref = {.experts = n,
                                     .used = c->used,
                                     .groups = c->groups,
                                     .groups_used = c->groups_used,
                                     .group_top = c->group_top,
                                     .sigmoid = c->sigmoid,
                                     .renormalise = c->renormalise,
                                     .scale = (double)c->scale,
                                     .choice_bias = c->bias ? bias : NULL};
    size_t *want = calloc(c->used, sizeof *want);
    double *weigh = calloc(c->used, sizeof *weigh), *scratch = calloc(2 * n, sizeof *scratch);
    bool by_value = c->sigmoid || c->bias || c->groups > 0;
    for (size_t row = 0; row < ROWS; row++) {
        if (row == 1 && by_value) continue; /* scores of NaN have no order */
        pl_ref_route(&ref, logits + row * n, want, weigh, scratch);
        for (size_t i = 0; i < c->used; i++) {
            uint32_t id = ids[row * c->used + i];
            double w = (double)weights[row * c->used + i];
            bool near = isnan(weigh[i]) ? isnan(w) : fabs(w - weigh[i]) <= 2e-6 * fabs(weigh[i]) + 1e-30;
            if (id == want[i] && near) continue;
            fail_msg("%s row %zu: choice %zu is %u with %.9g, expected %zu with %.9g", k.route.name, row, i, id, w, want[i],
                     weigh[i]);
        }
    }
    free(ids), free(weights), free(want), free(weigh), free(scratch), free(logits), free(bias);
    kit_drop(&bl), kit_drop(&bb);
    pl_moe_deinit(&ks, &room);
}

static void routes(void) {
    static const struct route_case cases[] = {
        {4, 1, false, true, false, 0, 0, 0, 1},    {4, 4, false, false, false, 0, 0, 0, 1},
        {5, 2, false, true, false, 0, 0, 0, 2.5f}, {60, 4, false, false, false, 0, 0, 0, 1},
        {128, 8, false, true, false, 0, 0, 0, 1},  {257, 16, false, true, false, 0, 0, 0, 1},
        {64, 6, false, false, false, 8, 3, 1, 16}, {256, 8, true, true, true, 8, 4, 2, 2.5f},
        {64, 8, true, true, true, 1, 1, 2, 1},     {32, 4, true, false, true, 0, 0, 0, 1},
        {32, 4, true, true, false, 0, 0, 0, 1},    {160, 6, false, false, false, 8, 3, 1, 16},
        {48, 48, false, true, false, 0, 0, 0, 1},  {512, 10, true, true, true, 16, 5, 2, 1},
    };
    for (size_t i = 0; i < PL_COUNT_OF(cases); i += test_small() ? 4 : 1) check_route(&cases[i]);
}
static void test_routes(void **state) {
    (void)state;
    kit_each(routes);
}

/* --- order --- */
static void check_order(uint32_t experts, uint32_t used, size_t rows, size_t spare) {
    struct pl_moe_route k = {0};
    size_t slots = rows * used, stride = slots + spare;
    CHECK(pl_kernel_moe_route(&ks, experts, used, PL_MOE_TILE, &k, &err));
    room_open(stride, 1, 1);
    uint32_t *ids = malloc(slots * 4);
    for (size_t i = 0; i < slots; i++) ids[i] = kit_u32() % experts / (i % 2 != 0 ? 2u : 1u);
    CHECK(pl_device_upload(ks.device, ks.stream, &room.ids, 0, ids, slots * 4, &err));
    CHECK(pl_launch_moe_order(&ks, &k, &room, rows));
    order_is_right(ids, experts, slots, stride, PL_MOE_TILE);
    for (uint32_t tile = PL_MOE_TILE; pl_cuda_capability(&ks) >= 80 && tile <= PL_MOE_DENSE_TILE; tile *= 16) {
        struct pl_kernel sort = {0};
        CHECK(pl_device_fill(ks.device, ks.stream, &room.order, 0xFF, &err));
        CHECK(pl_kernel_moe_sort(&ks, experts, tile, &sort, &err));
        CHECK(pl_launch_moe_sort(&ks, &sort, &room, slots));
        order_is_right(ids, experts, slots, stride, tile);
    }
    free(ids);
    pl_moe_deinit(&ks, &room);
}
static void orders(void) {
    static const size_t rows[] = {1, 2, 3, 8, 33, 200};
    for (size_t i = 0; i < PL_COUNT_OF(rows); i++) {
        if (test_small() && i % 3 != 1) continue;
        check_order(128, 8, rows[i], i * 7);
        check_order(3, 1, rows[i], 0);
        check_order(5, 2, rows[i], 1);
    }
    uint64_t before = rng; /* what comes later keeps its data */
    check_order(128, 8, 1001, 3);
    check_order(1024, 2, 517, 0);
    rng = before;
}
static void test_orders(void **state) {
    (void)state;
    kit_each(orders);
}

/* --- products --- */

static void run_products(const struct mix *k, const struct product_case *c, struct pl_moe_route *route,
                         const struct pl_device_buffer *x, struct pl_device_buffer *bias, struct pl_device_buffer *y,
                         bool apart) {
    struct pl_kernel pair = {0}, one = {0}, gated = {0}, down = {0};
    struct pl_launch_moe m = {.w = &k->w[0], .up = &k->w[1], .x = x, .y = &room.h, .experts = X, .rows = c->rows};
    m.used = USED;
    m.direct = c->direct;
    m.bias = c->biases ? &bias[0] : NULL;
    m.up_bias = c->biases ? &bias[1] : NULL;
    if (!c->direct) CHECK(pl_launch_moe_order(&ks, route, &room, c->rows));
    if (c->alone) {
        m.w = &k->w[1], m.alone = true;
        CHECK(pl_kernel_moe(&ks, &k->w[1], PL_MOE_ONE, (int)c->act, c->direct, &one, &err));
        CHECK(pl_launch_moe(&ks, &one, PL_MOE_ONE, &room, &m));
    } else if (apart) {
        CHECK(pl_kernel_moe(&ks, &k->w[0], PL_MOE_ONE, 0, c->direct, &one, &err));
        CHECK(pl_kernel_moe(&ks, &k->w[0], PL_MOE_ONE, (int)c->act, c->direct, &gated, &err));
        CHECK(pl_launch_moe(&ks, &one, PL_MOE_ONE, &room, &m));
        m.w = &k->w[1], m.bias = m.up_bias, m.gated = true;
        CHECK(pl_launch_moe(&ks, &gated, PL_MOE_ONE, &room, &m));
    } else {
        CHECK(pl_kernel_moe(&ks, &k->w[0], PL_MOE_PAIR, (int)c->act, c->direct, &pair, &err));
        CHECK(pl_launch_moe(&ks, &pair, PL_MOE_PAIR, &room, &m));
    }
    struct pl_launch_moe second = {.w = &k->w[2], .x = &room.h, .experts = X, .rows = c->rows, .used = USED};
    second.direct = c->direct;
    second.by_place = !c->direct;
    second.bias = c->biases ? &bias[2] : NULL;
    second.y = c->direct ? y : &room.made;
    CHECK(pl_kernel_moe(&ks, &k->w[2], c->direct ? PL_MOE_MIX : PL_MOE_ONE, 0, c->direct, &down, &err));
    CHECK(pl_launch_moe(&ks, &down, c->direct ? PL_MOE_MIX : PL_MOE_ONE, &room, &second));
    if (!c->direct) CHECK(pl_launch_moe_combine(&ks, route, &room, c->rows, k->in, y));
}

static double distance(const struct mix *k, const struct product_case *c, bool apart, bool wrong_expert) {
    struct pl_moe_route route = {0};
    struct trial t;
    CHECK(pl_kernel_moe_route(&ks, X, USED, PL_MOE_TILE, &route, &err));
    trial_open(&t, k, c->rows, 3);
    for (size_t i = 0; i < t.slots; i++) t.ids[i] = kit_u32() % X;
    if (t.slots > 1) t.ids[1] = X - 1; /* the last of all is always there */
    trial_begin(&t);
    run_products(k, c, &route, &t.bx, t.bb, &t.by, apart);
    return trial_close(&t, k, c, wrong_expert);
}

/* Kernels are many and their compilers slow: all activations, and both matrices apart, with the plain types alone. */
static void one_mix(enum pl_dtype dtype, enum pl_dtype down, size_t in, size_t inner, uint32_t bits) {
    bool all = dtype == PL_F32 || dtype == PL_Q8_0;
    struct mix k = mix_of(dtype, down, in, inner, bits);
    static const size_t rows[] = {1, 2, 5, 17};
    for (size_t i = 0; i < PL_COUNT_OF(rows); i++) {
        for (int direct = 0; direct < 2; direct++) {
            const struct product_case c = {rows[i], all ? (enum pl_ops_act)((i + (size_t)direct) % 3) : PL_OPS_SILU,
                                           i % 2 == 0, direct != 0, false};
            double off = distance(&k, &c, all && i == 1, false);
            if (!(off <= 2e-5))
                fail_msg("%s, %s, %zu rows, inner %zu, act %d, direct %d: off by %.3g", pl_dtype_name(dtype),
                         pl_dtype_name(down), rows[i], inner, (int)c.act, direct, off);
        }
    }
    mix_free(&k);
}

static void plain(void) {
    one_mix(PL_F32, PL_F32, 33, 17, 0);
    if (test_small()) return;
    one_mix(PL_BF16, PL_F16, 64, 127, 0);
    one_mix(PL_F16, PL_BF16, 96, 32, 0);
}
static void test_plain(void **state) {
    (void)state;
    kit_each(plain);
}
static void packed(void) {
    one_mix(PL_Q4_K, PL_Q6_K, 256, 256, 0);
    if (test_small()) return;
    one_mix(PL_Q8_0, PL_Q4_0, 64, 96, 0);
    one_mix(PL_MXFP4, PL_MXFP4, 64, 32, 0);
    one_mix(PL_Q5_K, PL_IQ4_XS, 256, 512, 0);
    one_mix(PL_Q4_1, PL_Q5_0, 32, 64, 0);
    one_mix(PL_MLX, PL_MLX, 64, 32, 4);
    one_mix(PL_MLX, PL_MLX, 96, 64, 3);
}
static void test_packed(void **state) {
    (void)state;
    kit_each(packed);
}

/* Experts without gates; and another expert's result is far from right. */
static void lone(void) {
    static const enum pl_dtype types[] = {PL_F32, PL_Q8_0, PL_Q4_K};
    for (size_t t = 0; t < (test_small() ? 1 : PL_COUNT_OF(types)); t++) {
        struct mix k = mix_of(types[t], types[t], 256, 512, 0);
        static const size_t rows[] = {1, 5, 17};
        for (size_t i = 0; i < 2 * PL_COUNT_OF(rows); i++) {
            const struct product_case c = {rows[i / 2], i == 0 ? PL_OPS_SILU : PL_OPS_RELU2, false, .direct = i % 2 == 0,
                                           .alone = true};
            double off = distance(&k, &c, false, false);
            if (!(off <= 2e-5))
                fail_msg("%s without gates, %zu rows, act %d: off by %.3g", pl_dtype_name(types[t]), c.rows, (int)c.act,
                         off);
            if (i == 0) assert_true(distance(&k, &c, false, true) > 1e-3);
        }
        mix_free(&k);
    }
}
static void test_lone(void **state) {
    (void)state;
    kit_each(lone);
}

/* The bound sees one slot of many sent to its neighbour. */
static void wrong_expert(void) {
    struct mix k = mix_of(PL_Q8_0, PL_Q8_0, 64, 64, 0);
    for (int direct = 0; direct < 2; direct++) {
        const struct product_case c = {9, PL_OPS_SILU, false, direct != 0, false};
        assert_true(distance(&k, &c, false, true) > 1e-3);
    }
    mix_free(&k);
}
static void test_control(void **state) {
    (void)state;
    kit_each(wrong_expert);
}

/* The same launch gives the same bits, and a row's bits do not depend on the rows beside it. */
static void repeats(void) {
    struct mix k = mix_of(PL_Q4_0, PL_Q8_0, 64, 96, 0);
    struct pl_moe_route route = {0};
    enum { ROWS = 12 };
    CHECK(pl_kernel_moe_route(&ks, X, USED, PL_MOE_TILE, &route, &err));
    room_open(ROWS * USED, k.inner, k.in);
    float *x = kit_random(ROWS * k.in, 1), *y0 = kit_random(ROWS * k.in, 1), *logits = kit_random(ROWS * X, 2), *all[2];
    for (size_t t = 0; t < 2 + ROWS; t++) { /* all rows twice, then each alone */
        size_t row = t < 2 ? 0 : t - 2, rows = t < 2 ? ROWS : 1;
        struct pl_device_buffer bl = kit_up(logits + row * X, rows * X * 4), bx = kit_up(x + row * k.in, rows * k.in * 4),
                                by = kit_up(y0 + row * k.in, rows * k.in * 4);
        const struct product_case c = {rows, PL_OPS_SILU, false, false, false};
        const struct pl_launch_route r = {.logits = &bl, .rows = rows, .renormalise = true, .scale = 1};
        CHECK(pl_launch_moe_route(&ks, &route, &room, &r));
        run_products(&k, &c, &route, &bx, NULL, &by, false);
        float *y = kit_down(&by);
        if (t < 2) all[t] = y;
        if (t == 1) assert_memory_equal(all[0], y, ROWS * k.in * 4);
        if (t >= 2) assert_memory_equal(all[0] + row * k.in, y, k.in * 4), free(y);
        kit_drop(&bl), kit_drop(&bx);
    }
    free(all[0]), free(all[1]), free(x), free(y0), free(logits);
    pl_moe_deinit(&ks, &room);
    mix_free(&k);
}
static void test_repeats(void **state) {
    (void)state;
    kit_each(repeats);
}

/* Experts in a buffer of more than 4 GiB, of which only what two of them need is ever written: the bytes that a 32-bit
 * offset would lead to hold NaNs. */
static void far(void) {
    enum { COUNT = 530, OUT = 1024, WIDE = 4096 }; /* 8 MiB each */
    const uint64_t each = (uint64_t)OUT * WIDE * 2, total = each * COUNT, wrapped = (COUNT - 1) * each % (1ull << 32);
    struct pl_device_weight w = {.dtype = PL_F16, .rows = (uint64_t)OUT * COUNT, .cols = WIDE, .row_bytes = WIDE * 2};
    assert_true(total > 1ull << 32 && wrapped + each < (uint64_t)(COUNT - 1) * each);
    if (pl_device_alloc(ks.device, total, &w.data, &err) != PL_OK) {
        print_message("# %s: no buffer of %llu bytes: not run\n", pl_device_info(ks.device)->name,
                      (unsigned long long)total);
        far_skipped++;
        return;
    }
    uint16_t *last = malloc(each), *bad = malloc(each);
    for (size_t i = 0; i < each / 2; i++) last[i] = pl_f32_to_f16(kit_f32()), bad[i] = 0x7E00;
    CHECK(pl_device_upload(ks.device, ks.stream, &w.data, wrapped, bad, each, &err));
    CHECK(pl_device_upload(ks.device, ks.stream, &w.data, (COUNT - 1) * each, last, each, &err));
    room_open(1, OUT, WIDE);
    const uint32_t id = COUNT - 1;
    const float one = 1;
    CHECK(pl_device_upload(ks.device, ks.stream, &room.ids, 0, &id, 4, &err));
    CHECK(pl_device_upload(ks.device, ks.stream, &room.weights, 0, &one, 4, &err));
    float *x = kit_random(WIDE, 1), *want = calloc(OUT, 4), *row = malloc(WIDE * 4 + 4), *zero = calloc(OUT, 4);
    struct pl_device_buffer bx = kit_up(x, WIDE * 4), by = kit_up(zero, OUT * 4);
    struct pl_kernel k = {0};
    struct pl_launch_moe m = {.w = &w, .x = &bx, .y = &by, .experts = COUNT, .rows = 1, .used = 1, .direct = true};
    CHECK(pl_kernel_moe(&ks, &w, PL_MOE_MIX, 0, true, &k, &err));
    CHECK(pl_launch_moe(&ks, &k, PL_MOE_MIX, &room, &m));
    const struct pl_tensor t = {
        .name = "last", .dtype = PL_F16, .ndim = 2, .shape = {OUT, WIDE, 1, 1}, .data = last, .bytes = each};
    CHECK(pl_ref_matmul(&t, NULL, x, WIDE, 1, false, want, OUT, NULL, row));
    float *y = kit_down(&by);
    kit_near(k.name, y, want, OUT, 1e-4, 1.0);
    free(y), free(x), free(want), free(row), free(zero), free(last), free(bad);
    kit_drop(&bx);
    pl_moe_deinit(&ks, &room);
    pl_device_free(ks.device, &w.data);
    far_ran++;
}
static void test_far(void **state) {
    (void)state;
    if (test_small()) SKIP("small shapes only in this run");
    kit_each(far);
    if (far_ran == 0) SKIP("no device with room for more than 4 GiB here");
}

int main(void) {
    struct CMUnitTest tests[] = {cmocka_unit_test(test_routes),  cmocka_unit_test(test_orders),
                                 cmocka_unit_test(test_plain),   cmocka_unit_test(test_lone),
                                 cmocka_unit_test(test_packed),  cmocka_unit_test(test_control),
                                 cmocka_unit_test(test_repeats), cmocka_unit_test(test_far)};
    return TEST_RUN("experts", tests);
}
