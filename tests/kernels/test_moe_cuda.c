/* Mixtures of experts by the kernels that only NVIDIA devices have: products on tensor cores in every form, choice and order
 * by a warp a row, one row in one launch, routers of f32 weights; against src/ref, with controls that must be seen.
 *
 * test-variants: release (nothing of it runs without a CUDA device; the host code is sanitized in tests/device and
 * tests/model) test-timeout: 600 */
#include "moe_bed.h"

#include "ops/cuda_moe.h"
#include "tests/skip.h"

static int cuda_ran;

enum cuda_form { MMA, BULK, DENSE, TOGETHER, TALL };
static double cuda_distance(struct mix *k, size_t rows, enum pl_ops_act act, bool biases, enum cuda_form form, bool wrong) {
    struct pl_moe_route route = {0};
    bool direct = form == MMA && rows == 1, bulk = form == BULK;
    struct trial t;
    CHECK(pl_kernel_moe_route(&ks, X, USED, form >= DENSE ? PL_MOE_DENSE_TILE : PL_MOE_TILE, &route, &err));
    trial_open(&t, k, rows, 5);
    for (size_t i = 0; i < t.slots; i++) t.ids[i] = kit_u32() % (X - 1) + (i % 3 == 0); /* the first expert is rare */
    trial_begin(&t);
    if (!direct) CHECK(pl_launch_moe_order(&ks, &route, &room, rows));
    if (form < DENSE) {
        struct pl_mma_room ready = {0};
        struct pl_kernel copy = {0}, up = {0}, down = {0};
        struct pl_launch_prepare p = {.x = &t.bx, .rows = rows, .cols = k->in};
        enum pl_moe_mma second = direct ? PL_MOE_MMA_MIX : PL_MOE_MMA_DOWN;
        CHECK(pl_moe_ready_room(&ks, &ready, rows, k->in, &err));
        CHECK(pl_kernel_prepare(&ks, PL_PREPARE_COPY, PL_INPUTS_FEW, &copy, &err));
        CHECK(pl_launch_prepare(&ks, PL_PREPARE_COPY, &copy, &ready, &p));
        CHECK(pl_kernel_moe_mma(&ks, &k->w[0], PL_MOE_MMA_UP, (int)act, direct, bulk, &up, &err));
        CHECK(pl_kernel_moe_mma(&ks, &k->w[2], second, 0, direct, bulk && !direct, &down, &err));
        const struct pl_launch_moe_mma a = {&k->w[0], &k->w[1], &ready.x, &room.h, X, rows, USED, direct, bulk};
        const struct pl_launch_moe_mma b = {&k->w[2], NULL,   &room.h, direct ? &t.by : &room.made, X, rows,
                                            USED,     direct, bulk};
        CHECK(pl_launch_moe_mma(&ks, &up, PL_MOE_MMA_UP, &room, &a));
        CHECK(pl_launch_moe_mma(&ks, &down, second, &room, &b));
        pl_mma_deinit(&ks, &ready);
    } else if (form == TALL) {
        struct pl_moe_dense d = {0};
        struct pl_kernel pair = {0}, down = {0}, sum = {0};
        const struct pl_launch_moe_tall a = {&k->w[0], &k->w[1], X, rows, USED}, b = {&k->w[2], NULL, X, rows, USED};
        CHECK(pl_moe_dense_ready(&ks, &d, rows, USED, k->in, k->inner, 0, &err));
        CHECK(pl_device_fill(ks.device, ks.stream, &d.h, 0xFF, &err));
        CHECK(pl_launch_moe_pack(&ks, &d, true, &t.bx, t.n));
        CHECK(pl_kernel_moe_tall(&ks, &k->w[0], true, (int)act, &pair, &err));
        CHECK(pl_kernel_moe_tall(&ks, &k->w[2], false, 0, &down, &err));
        CHECK(pl_launch_moe_tall(&ks, &d, &pair, &room, &a));
        CHECK(pl_launch_moe_tall(&ks, &d, &down, &room, &b));
        CHECK(pl_kernel_moe_sum(&ks, USED, &sum, &err));
        CHECK(pl_launch_moe_sum(&ks, &sum, &room, rows, k->in, &t.by));
        pl_moe_dense_deinit(&ks, &d);
    } else {
        struct pl_moe_dense d = {0};
        struct pl_kernel unpack[3] = {0}, pair = {0}, down = {0};
        struct pl_launch_moe_dense m = {
            .experts = X, .rows = rows, .used = USED, .in = k->in, .out = k->inner, .pair = true};
        CHECK(pl_moe_dense_ready(&ks, &d, rows, USED, k->in, k->inner, 2 * X * k->in * k->inner, &err));
        CHECK(pl_launch_moe_pack(&ks, &d, false, &t.bx, t.n));
        for (size_t i = 0; i < 3; i++) {
            m.w[i % 2] = k->w[i].dtype == PL_BF16 ? &k->w[i].data : &d.w[i % 2];
            if (k->w[i].dtype != PL_BF16) {
                CHECK(pl_kernel_moe_unpack(&ks, &k->w[i], &unpack[i], &err));
                CHECK(pl_launch_moe_unpack(&ks, &d, &unpack[i], &k->w[i], X, &room, i % 2));
            }
            if (i == 0) continue;
            struct pl_kernel *g = i == 1 ? &pair : &down;
            if (biases) m.bias[0] = &t.bb[i == 1 ? 0 : 2], m.bias[1] = &t.bb[1];
            CHECK(pl_kernel_moe_dense(&ks, i == 1, i == 1 ? (int)act : 0, form == TOGETHER, g, &err));
            CHECK(pl_launch_moe_dense(&ks, &d, g, &room, &m));
            m.in = k->inner, m.out = k->in, m.pair = false;
        }
        pl_moe_dense_deinit(&ks, &d);
    }
    if (!direct && form != TALL) CHECK(pl_launch_moe_combine(&ks, &route, &room, rows, k->in, &t.by));
    const struct product_case c = {rows, act, biases, direct, false};
    return trial_close(&t, k, &c, wrong);
}

static void to_strips(struct mix *k) {
    for (size_t i = 0; i < 3; i++) {
        struct pl_kernel retile = {0};
        struct pl_device_weight file = k->w[i];
        CHECK(pl_kernel_retile(&ks, &file, &retile, &err));
        k->w[i].data = kit_out(pl_strips_bytes(&file));
        CHECK(pl_launch_retile(&ks, &retile, &file, &k->w[i].data));
        k->w[i].strips = true;
        kit_drop(&file.data);
    }
}

static bool can_bulk(const struct mix *k) {
    return pl_moe_bulk(&ks, &k->w[0], PL_MOE_MMA_UP, false) && pl_moe_bulk(&ks, &k->w[2], PL_MOE_MMA_DOWN, false);
}
static const struct {
    enum pl_dtype dtype, down;
    size_t in, inner;
    bool strips;
} mixes[] = {{PL_Q4_K, PL_Q4_K, 512, 768, true},  {PL_Q4_K, PL_Q6_K, 2304, 768, true},   {PL_Q6_K, PL_Q4_K, 256, 1536, true},
             {PL_Q8_0, PL_Q8_0, 128, 192, false}, {PL_MXFP4, PL_MXFP4, 192, 320, false}, {PL_BF16, PL_BF16, 64, 128, false}};
static void cuda_forms(void) {
    static const size_t rows[] = {1, 2, 7, 33, 150};
    static const char *const names[] = {"mma", "bulk", "dense", "wide"};
    if (pl_device_info(ks.device)->kind != PL_DEVICE_CUDA) return;
    for (size_t i = 0; i < PL_COUNT_OF(mixes); i += test_small() ? 2 : 1) {
        struct mix k = mix_of(mixes[i].dtype, mixes[i].down, mixes[i].in, mixes[i].inner, 0);
        if (pl_moe_dense_declines(&ks, &k.w[0], X) != NULL) fail_msg("%s", pl_moe_dense_declines(&ks, &k.w[0], X));
        if (mixes[i].strips) assert_null(pl_moe_strips_decline(&ks, &k.w[0], X)), to_strips(&k);
        for (size_t r = 0; r < PL_COUNT_OF(rows); r += test_small() ? 2 : 1) {
            if (test_small() && rows[r] > 33) continue;
            for (int form = mixes[i].strips ? MMA : DENSE; form <= TOGETHER; form++) {
                if (form == TOGETHER && !pl_moe_dense_wide(&ks)) continue;
                if (form == BULK && !can_bulk(&k)) continue;
                bool biases = form >= DENSE && r % 2 == 0;
                enum pl_ops_act act = (enum pl_ops_act)(r % (form >= DENSE ? 3 : 2));
                double off = cuda_distance(&k, rows[r], act, biases, (enum cuda_form)form, false);
                if (!(off <= (form >= DENSE ? 8e-3 : 1e-3)))
                    fail_msg("%s %s %s, %zu rows: off by %.3g", names[form], pl_dtype_name(mixes[i].dtype),
                             pl_dtype_name(mixes[i].down), rows[r], off);
                assert_true(rows[r] > 33 || cuda_distance(&k, rows[r], act, biases, (enum cuda_form)form, true) > 2e-2);
            }
        }
        mix_free(&k);
    }
    cuda_ran++;
}
static void test_cuda(void **state) {
    (void)state;
    kit_each(cuda_forms);
    if (cuda_ran == 0) SKIP("no CUDA device here");
}

/* Many rows with strips unpacked in registers, on data of their own, so that the other forms keep theirs. */
static void tall_forms(void) {
    static const size_t rows[] = {1, 2, 7, 33, 150, 300};
    if (!pl_moe_dense_wide(&ks)) return;
    uint64_t others = rng;
    rng = 88172645463325252ull;
    for (size_t i = 0; i < PL_COUNT_OF(mixes); i += test_small() ? 2 : 1) {
        struct mix k = mix_of(mixes[i].dtype, mixes[i].down, mixes[i].in, mixes[i].inner, 0);
        if (mixes[i].strips) to_strips(&k);
        bool can = pl_moe_tall_declines(&ks, &k.w[0], X) == NULL && pl_moe_tall_declines(&ks, &k.w[2], X) == NULL;
        for (size_t r = 0; r < PL_COUNT_OF(rows) && can; r += test_small() ? 2 : 1) {
            if (rows[r] > (test_small() ? 33u : mixes[i].in > 512 ? 150u : 300u)) continue; /* the reference is slow */
            uint64_t before = rng;
            enum pl_ops_act act = (enum pl_ops_act)(r % 2);
            double off = cuda_distance(&k, rows[r], act, false, TALL, false);
            if (!(off <= 8e-3))
                fail_msg("tall %s %s, %zu rows: off by %.3g", pl_dtype_name(mixes[i].dtype), pl_dtype_name(mixes[i].down),
                         rows[r], off);
            assert_true(rows[r] > 33 || cuda_distance(&k, rows[r], act, false, TALL, true) > 2e-2);
            rng = before;
            cuda_ran++;
        }
        mix_free(&k);
    }
    rng = others;
}
static void test_tall(void **state) {
    (void)state;
    cuda_ran = 0;
    kit_each(tall_forms);
    if (cuda_ran == 0) SKIP("no CUDA device with the units here");
}

/* A warp a row chooses as the portable kernel does, and leaves an order of its own. */
static void check_choose(uint32_t experts, uint32_t used, size_t rows, bool renormalise, uint32_t tile) {
    struct pl_moe_route route = {0};
    struct pl_kernel k = {0};
    size_t slots = rows * used, stride = slots + 5;
    float *logits = kit_random(rows * experts, 3);
    for (size_t e = 0; e < experts; e += 3) logits[e] = 0.5f; /* equals */
    if (renormalise && used < experts) logits[experts - 1] = NAN;
    struct pl_device_buffer bl = kit_up(logits, rows * experts * 4);
    const struct pl_launch_route r = {.logits = &bl, .rows = rows, .renormalise = renormalise, .scale = 1.5f};
    room_open(stride, 1, 1);
    assert_null(pl_moe_routed_declines(&r, experts, used));
    CHECK(pl_kernel_moe_route(&ks, experts, used, PL_MOE_TILE, &route, &err));
    CHECK(pl_launch_moe_route(&ks, &route, &room, &r));
    uint32_t *ids = fetch(&room.ids, slots * 4);
    float *weights = fetch(&room.weights, slots * 4);
    CHECK(pl_device_fill(ks.device, ks.stream, &room.ids, 0xFF, &err));
    CHECK(pl_device_fill(ks.device, ks.stream, &room.weights, 0xFF, &err));
    CHECK(pl_device_fill(ks.device, ks.stream, &room.order, 0xFF, &err));
    CHECK(pl_kernel_moe_choose(&ks, experts, used, tile, &k, &err));
    CHECK(pl_launch_moe_choose(&ks, &k, &room, &r, tile > 0));
    uint32_t *ids2 = fetch(&room.ids, slots * 4);
    float *weights2 = fetch(&room.weights, slots * 4);
    assert_memory_equal(ids, ids2, slots * 4);
    kit_near("weights", weights2, weights, slots, 1e-5, 1e-9);
    if (tile > 0) order_is_right(ids, experts, slots, stride, tile);
    free(ids), free(ids2), free(weights), free(weights2), free(logits);
    kit_drop(&bl);
    pl_moe_deinit(&ks, &room);
}
static void chooses(void) {
    if (pl_cuda_capability(&ks) < 80) return;
    static const size_t rows[] = {1, 7, 64, 200};
    for (size_t i = 0; i < PL_COUNT_OF(rows); i++) {
        for (uint32_t tile = 0; tile <= (rows[i] <= PL_MOE_CHOOSE_ROWS ? 2 : 0); tile++) {
            uint32_t of = tile == 0 ? 0 : tile == 1 ? PL_MOE_TILE : PL_MOE_DENSE_TILE;
            check_choose(128, 8, rows[i], true, of);
            check_choose(32, 32, rows[i], false, of);
            check_choose(512, 10, rows[i], true, of);
            check_choose(64, 1, rows[i], false, of);
        }
    }
    cuda_ran++;
}
static void test_choose(void **state) {
    (void)state;
    cuda_ran = 0;
    kit_each(chooses);
    if (cuda_ran == 0) SKIP("no CUDA device here");
}

/* One row, chosen and multiplied in one launch: as by the two. */
static void routed(void) {
    static const struct {
        uint32_t experts, used;
        bool renormalise;
    } cases[] = {{32, 1, true}, {128, 8, true}, {64, 6, false}, {512, 10, true}, {32, 32, false}};
    if (pl_device_info(ks.device)->kind != PL_DEVICE_CUDA) return;
    for (size_t i = 0; i < PL_COUNT_OF(cases); i++) {
        uint32_t n = cases[i].experts, used = cases[i].used;
        struct made m = make_tensor(PL_Q4_K, (size_t)n * 32, 512, 0, 0, PL_F32);
        struct mix k = {.m = {m, m, m}, .w = {upload(&m), upload(&m), upload(&m)}};
        to_strips(&k);
        float *x = kit_random(512, 1), *logits = kit_random(n, 3);
        for (size_t e = 0; e < n; e += 5) logits[e] = 1.5f; /* equals */
        if (cases[i].renormalise) logits[n - 1] = NAN;
        struct pl_device_buffer bx = kit_up(x, 512 * 4), bl = kit_up(logits, n * 4);
        struct pl_mma_room ready = {0};
        struct pl_moe_route route = {0};
        struct pl_kernel copy = {0}, up = {0}, both = {0};
        struct pl_launch_prepare p = {.x = &bx, .rows = 1, .cols = 512};
        const struct pl_launch_route r = {.logits = &bl, .rows = 1, .renormalise = cases[i].renormalise, .scale = 1.5f};
        const struct pl_launch_moe_mma a = {&k.w[0], &k.w[1], &ready.x, &room.h, n, 1, used, true, false};
        room_open(used, 32, 1);
        assert_null(pl_moe_routed_declines(&r, n, used));
        CHECK(pl_moe_ready_room(&ks, &ready, 1, 512, &err));
        CHECK(pl_kernel_prepare(&ks, PL_PREPARE_COPY, PL_INPUTS_FEW, &copy, &err));
        CHECK(pl_launch_prepare(&ks, PL_PREPARE_COPY, &copy, &ready, &p));
        CHECK(pl_kernel_moe_route(&ks, n, used, PL_MOE_TILE, &route, &err));
        CHECK(pl_kernel_moe_mma(&ks, &k.w[0], PL_MOE_MMA_UP, 0, true, false, &up, &err));
        CHECK(pl_kernel_moe_routed(&ks, &k.w[0], 0, n, used, &both, &err));
        CHECK(pl_launch_moe_route(&ks, &route, &room, &r));
        CHECK(pl_launch_moe_mma(&ks, &up, PL_MOE_MMA_UP, &room, &a));
        uint32_t *ids = fetch(&room.ids, used * 4);
        float *weights = fetch(&room.weights, used * 4), *h = fetch(&room.h, used * 32 * 4);
        CHECK(pl_device_fill(ks.device, ks.stream, &room.h, 0xFF, &err));
        CHECK(pl_device_fill(ks.device, ks.stream, &room.ids, 0xFF, &err));
        CHECK(pl_device_fill(ks.device, ks.stream, &room.weights, 0xFF, &err));
        CHECK(pl_launch_moe_routed(&ks, &both, &room, &r, &a));
        uint32_t *ids2 = fetch(&room.ids, used * 4);
        float *weights2 = fetch(&room.weights, used * 4), *h2 = fetch(&room.h, used * 32 * 4);
        assert_memory_equal(ids, ids2, used * 4);
        assert_memory_equal(h, h2, used * 32 * 4);
        kit_near("weights", weights2, weights, used, 1e-5, 1e-9);
        free(ids), free(ids2), free(weights), free(weights2), free(h), free(h2), free(x), free(logits);
        kit_drop(&bx), kit_drop(&bl);
        pl_mma_deinit(&ks, &ready);
        pl_moe_deinit(&ks, &room);
        for (size_t t = 0; t < 3; t++) kit_drop(&k.w[t].data);
        free(m.data);
    }
    cuda_ran++;
}
static void test_routed(void **state) {
    (void)state;
    cuda_ran = 0;
    kit_each(routed);
    if (cuda_ran == 0) SKIP("no CUDA device here");
}

/* One row from its norm on: router, up, mix. */
struct one_case {
    enum pl_dtype dtype, down;
    uint32_t experts, used;
    size_t in, inner;
    bool renormalise, bias;
};
static struct pl_tensor one_expert(const struct made *m, size_t experts, size_t e) {
    struct pl_tensor t = m->t;
    t.shape[0] /= experts;
    t.bytes /= experts;
    t.data = (const char *)t.data + e * t.bytes;
    return t;
}
/* wrong: the first choice is taken to be its neighbour. */
static double one_expected(const struct one_case *c, const struct made m[3], const float *h, const float *logits,
                           const float *y0, const float *y, bool wrong) {
    enum { USED_MAX = 32 };
    const struct pl_ref_route ref = {.experts = c->experts, .used = c->used, .renormalise = c->renormalise, .scale = 1.5};
    size_t chosen[USED_MAX];
    double weight[USED_MAX], *scratch = calloc(2 * c->experts, sizeof *scratch), worst = 0;
    double *want = calloc(c->in, sizeof *want), *magnitude = calloc(c->in, sizeof *magnitude),
           *mag = calloc(c->in, sizeof *mag), *mag_g = calloc(c->inner, sizeof *mag), *mag_u = calloc(c->inner, sizeof *mag);
    float *g = malloc(c->inner * 4), *u = malloc(c->inner * 4), *spread = malloc(c->inner * 4), *d = malloc(c->in * 4),
          *row = malloc(PL_MAX(c->in, c->inner) * 4 + 4);
    pl_ref_route(&ref, logits, chosen, weight, scratch);
    for (size_t k = 0; k < c->used; k++) {
        size_t e = wrong && k == 0 ? (chosen[0] + 1) % c->experts : chosen[k];
        const struct pl_tensor w[] = {one_expert(&m[0], c->experts, e), one_expert(&m[1], c->experts, e),
                                      one_expert(&m[2], c->experts, e)};
        CHECK(pl_ref_matmul(&w[0], NULL, h, c->in, 1, false, g, c->inner, mag_g, row));
        CHECK(pl_ref_matmul(&w[1], NULL, h, c->in, 1, false, u, c->inner, mag_u, row));
        for (size_t i = 0; i < c->inner; i++)
            spread[i] = (float)h_spread(PL_REF_SILU, g[i], u[i], mag_g[i], mag_u[i], c->in);
        pl_ref_glu(PL_REF_SILU, g, u, g, c->inner);
        CHECK(pl_ref_matmul(&w[2], NULL, spread, c->inner, 1, false, d, c->in, mag, row));
        CHECK(pl_ref_matmul(&w[2], NULL, g, c->inner, 1, false, d, c->in, NULL, row));
        for (size_t i = 0; i < c->in; i++) {
            want[i] += weight[k] * (double)d[i];
            magnitude[i] += fabs(weight[k]) * mag[i];
        }
    }
    for (size_t i = 0; i < c->in; i++) {
        double sum = want[i] + (double)y0[i], off = fabs((double)y[i] - sum) / (magnitude[i] + fabs(sum) + 1e-6);
        worst = isnan(off) ? INFINITY : fmax(worst, off);
    }
    free(scratch), free(want), free(magnitude), free(mag), free(g), free(u), free(d), free(row);
    free(spread), free(mag_g), free(mag_u);
    return worst;
}

static void one_row_of(const struct one_case *c) {
    enum { AGAIN = 20 };
    struct made m[3];
    struct mix k = {0};
    for (size_t i = 0; i < 3; i++) {
        m[i] = make_tensor(i < 2 ? c->dtype : c->down, c->experts * (i < 2 ? c->inner : c->in), i < 2 ? c->in : c->inner, 0,
                           0, PL_F32);
        k.w[i] = upload(&m[i]);
    }
    to_strips(&k);
    struct made rm = make_tensor(PL_F32, c->experts, c->in, 0, 0, PL_F32);
    struct pl_device_weight rw = upload(&rm);
    float *x = kit_random(c->in, 3), *norm = kit_random(c->in, 1), *bias = kit_random(c->experts, 1),
          *y0 = kit_random(c->in, 1), *h_want = malloc(c->in * 4), *row = malloc(c->in * 4 + 4);
    float *logits_want = calloc(c->experts, 4), *first = NULL;
    double *mag = calloc(c->experts, sizeof *mag);
    struct pl_device_buffer bx = kit_up(x, c->in * 4), bn = kit_up(norm, c->in * 4), bb = kit_up(bias, c->experts * 4),
                            bh = kit_out(c->in * 4), bl = kit_out(c->experts * 4);
    struct pl_mma_room ready = {0};
    struct pl_kernel router = {0}, up = {0}, mix = {0};
    const struct pl_launch_route r = {.logits = &bl, .rows = 1, .renormalise = c->renormalise, .scale = 1.5f};
    room_open(c->used, c->inner, 1);
    assert_null(pl_moe_one_declines(&ks, &k.w[0], &k.w[2], &r, c->experts, c->used));
    assert_null(pl_router_declines(&ks, &rw));
    CHECK(pl_moe_ready_room(&ks, &ready, 1, c->in, &err));
    CHECK(pl_kernel_router(&ks, &router, &err));
    CHECK(pl_kernel_moe_one(&ks, &k.w[0], PL_MOE_ONE_UP, 0, c->experts, c->used, &up, &err));
    CHECK(pl_kernel_moe_one(&ks, &k.w[2], PL_MOE_ONE_MIX, 0, c->experts, c->used, &mix, &err));
    pl_ref_rmsnorm(x, norm, c->in, 1e-5, 0.25, h_want);
    CHECK(pl_ref_matmul(&rm.t, c->bias ? bias : NULL, h_want, c->in, 1, false, logits_want, c->experts, mag, row));
    for (int t = 0; t < AGAIN; t++) {
        struct pl_device_buffer by = kit_up(y0, c->in * 4);
        const struct pl_launch_router l = {.x = &bx,
                                           .norm = &bn,
                                           .w = &rw.data,
                                           .bias = c->bias ? &bb : NULL,
                                           .h = &bh,
                                           .ready = &ready.x,
                                           .logits = &bl,
                                           .in = c->in,
                                           .experts = c->experts,
                                           .eps = 1e-5f,
                                           .offset = 0.25f};
        const struct pl_launch_moe_mma a = {&k.w[0], &k.w[1], &ready.x, &room.h, c->experts, 1, c->used, true, false};
        const struct pl_launch_moe_mma b = {&k.w[2], NULL, &room.h, &by, c->experts, 1, c->used, true, false};
        CHECK(pl_device_fill(ks.device, ks.stream, &room.h, 0xFF, &err));
        CHECK(pl_device_fill(ks.device, ks.stream, &ready.x, 0xFF, &err));
        CHECK(pl_launch_router(&ks, &router, &l));
        CHECK(pl_launch_moe_one(&ks, &up, PL_MOE_ONE_UP, &room, &r, &a));
        CHECK(pl_launch_moe_one(&ks, &mix, PL_MOE_ONE_MIX, &room, &r, &b));
        float *y = kit_down(&by);
        if (t > 0) assert_memory_equal(first, y, c->in * 4), free(y);
        if (t > 0) continue;
        first = y;
        float *h = fetch(&bh, c->in * 4), *logits = fetch(&bl, c->experts * 4);
        kit_near("norm", h, h_want, c->in, 1e-5, 1e-6);
        for (size_t e = 0; e < c->experts; e++)
            if (!(fabs((double)logits[e] - (double)logits_want[e]) <= 3e-6 * (mag[e] + 1)))
                fail_msg("logit %zu is %.9g, expected %.9g", e, (double)logits[e], (double)logits_want[e]);
        double off = one_expected(c, m, h, logits, y0, y, false), wrong = one_expected(c, m, h, logits, y0, y, true);
        if (!(off <= 1e-3 && wrong > 2e-2))
            fail_msg("%s %s x%u/%u: off by %.3g, a wrong expert by %.3g", pl_dtype_name(c->dtype), pl_dtype_name(c->down),
                     c->experts, c->used, off, wrong);
        free(h), free(logits);
    }
    free(x), free(norm), free(bias), free(y0), free(h_want), free(row), free(logits_want), free(first), free(mag);
    kit_drop(&bx), kit_drop(&bn), kit_drop(&bb), kit_drop(&bh), kit_drop(&bl);
    pl_mma_deinit(&ks, &ready);
    pl_moe_deinit(&ks, &room);
    for (size_t i = 0; i < 3; i++) kit_drop(&k.w[i].data), free(m[i].data);
    made_free(&rm, &rw);
}
static void one_rows(void) {
    static const struct one_case cases[] = {{PL_Q4_K, PL_Q4_K, 32, 4, 512, 256, true, false},
                                            {PL_Q4_K, PL_Q4_K, 128, 8, 2048, 768, true, true},
                                            {PL_Q4_K, PL_Q6_K, 64, 2, 768, 1280, false, false},
                                            {PL_Q6_K, PL_Q4_K, 96, 3, 2304, 512, true, true}};
    if (pl_cuda_capability(&ks) < 90) return;
    for (size_t i = 0; i < PL_COUNT_OF(cases); i += test_small() ? 4 : 1) one_row_of(&cases[i]);
    cuda_ran++;
}
static void test_one_row(void **state) {
    (void)state;
    cuda_ran = 0;
    kit_each(one_rows);
    if (cuda_ran == 0) SKIP("no CUDA device here");
}

/* f32 weights. */
static void fma_shapes(void) {
    static const size_t shapes[][3] = {{9, 4, 1},       {64, 64, 64},   {65, 128, 130}, {200, 2052, 60}, {1, 2048, 128},
                                       {3, 4100, 7},    {8, 36, 1024},  {1, 4, 1},      {33, 2048, 128}, {1030, 2048, 128},
                                       {1100, 20, 33},  {70, 64, 1030}, {2, 2048, 128}, {8, 2880, 32},   {13, 4100, 60},
                                       {64, 2048, 130}, {27, 516, 16}};
    uint64_t after = 0;
    for (size_t i = 0; i < PL_COUNT_OF(shapes); i++) {
        size_t rows = shapes[i][0], in = shapes[i][1], out = shapes[i][2];
        if (i == 8) after = rng; /* what comes later keeps its data */
        struct made m = make_tensor(PL_F32, out, in, 0, 0, PL_F32);
        struct pl_device_weight w = upload(&m);
        struct pl_kernel k = {0};
        if (pl_fma_declines(&ks, &w, rows) == NULL) {
            float *x = kit_random(rows * in, 1), *want = kit_random(rows * out, 1), *row = malloc(in * 4 + 4);
            float *bias = kit_random(out, 1);
            double *magnitude = malloc(rows * out * sizeof *magnitude);
            struct pl_device_buffer bx = kit_up(x, rows * in * 4), bb = kit_up(bias, out * 4),
                                    by = kit_up(want, rows * out * 4);
            CHECK(pl_kernel_fma(&ks, pl_fma_kernel_of(&ks, &w, rows), &k, &err));
            CHECK(pl_launch_fma(&ks, &k, &w, &bx, &bb, &by, rows, true));
            CHECK(pl_ref_matmul(&m.t, bias, x, in, rows, true, want, out, magnitude, row));
            float *y = kit_down(&by);
            for (size_t e = 0; e < rows * out; e++)
                if (!(fabs((double)y[e] - (double)want[e]) <= 3e-6 * (magnitude[e] + fabs((double)want[e]) + 1e-6)))
                    fail_msg("%zu x %zu x %zu: element %zu is %.9g, expected %.9g", rows, in, out, e, (double)y[e],
                             (double)want[e]);
            free(x), free(want), free(row), free(bias), free(magnitude), free(y);
            kit_drop(&bx), kit_drop(&bb);
            cuda_ran++;
        }
        made_free(&m, &w);
    }
    rng = after;
}
static void test_fma(void **state) {
    (void)state;
    cuda_ran = 0;
    kit_each(fma_shapes);
    if (cuda_ran == 0) SKIP("no CUDA device here");
}

/* Routers of many rows choose as exact logits do, but among experts whose logits differ by no more than TIE of their terms'
 * magnitudes; with inputs and weights of bf16 they do not. */
enum { ROUTER_ROWS = 400, ROUTER_IN = 2048, ROUTER_X = 128, ROUTER_USED = 8 };
#define TIE 1e-6
static size_t wrong_choices(const float *got, const float *want, const double *magnitude) {
    const struct pl_ref_route ref = {.experts = ROUTER_X, .used = ROUTER_USED, .renormalise = true, .scale = 1};
    size_t chosen[2][ROUTER_USED], wrong = 0;
    double weight[ROUTER_USED], scratch[2 * ROUTER_X];
    for (size_t r = 0; r < ROUTER_ROWS; r++) {
        const float *w = want + r * ROUTER_X;
        pl_ref_route(&ref, got + r * ROUTER_X, chosen[0], weight, scratch);
        pl_ref_route(&ref, w, chosen[1], weight, scratch);
        double last = (double)w[chosen[1][ROUTER_USED - 1]];
        for (size_t k = 0; k < ROUTER_USED; k++) {
            size_t e = chosen[0][k];
            wrong += (double)w[e] < last - TIE * magnitude[r * ROUTER_X + e];
        }
    }
    return wrong;
}
static void router_choices(void) {
    struct made m = make_tensor(PL_F32, ROUTER_X, ROUTER_IN, 0, 0, PL_F32);
    struct pl_device_weight w = upload(&m);
    struct pl_kernel k = {0};
    size_t n = ROUTER_ROWS * ROUTER_X;
    if (pl_cuda_capability(&ks) >= 80) {
        float *x = kit_random(ROUTER_ROWS * ROUTER_IN, 1), *want = calloc(n, 4), *rounded = calloc(n, 4),
              *row = malloc(ROUTER_IN * 4 + 4);
        double *magnitude = malloc(n * sizeof *magnitude);
        struct pl_device_buffer bx = kit_up(x, ROUTER_ROWS * ROUTER_IN * 4), by = kit_out(n * 4);
        uint32_t which = pl_fma_kernel_of(&ks, &w, ROUTER_ROWS);
        CHECK(pl_kernel_fma(&ks, which, &k, &err));
        CHECK(pl_launch_fma(&ks, &k, &w, &bx, NULL, &by, ROUTER_ROWS, false));
        CHECK(pl_ref_matmul(&m.t, NULL, x, ROUTER_IN, ROUTER_ROWS, false, want, ROUTER_X, magnitude, row));
        float *y = kit_down(&by), *data = m.data;
        for (size_t i = 0; i < ROUTER_ROWS * ROUTER_IN; i++) x[i] = pl_bf16_to_f32(pl_f32_to_bf16(x[i]));
        for (size_t i = 0; i < ROUTER_X * ROUTER_IN; i++) data[i] = pl_bf16_to_f32(pl_f32_to_bf16(data[i]));
        CHECK(pl_ref_matmul(&m.t, NULL, x, ROUTER_IN, ROUTER_ROWS, false, rounded, ROUTER_X, NULL, row));
        assert_int_equal(wrong_choices(y, want, magnitude), 0);
        assert_true(wrong_choices(rounded, want, magnitude) > 0);
        free(x), free(want), free(rounded), free(row), free(magnitude), free(y);
        kit_drop(&bx);
        cuda_ran++;
    }
    made_free(&m, &w);
}
static void test_router_choices(void **state) {
    (void)state;
    cuda_ran = 0;
    kit_each(router_choices);
    if (cuda_ran == 0) SKIP("no CUDA device with the units here");
}
int main(void) {
    struct CMUnitTest tests[] = {cmocka_unit_test(test_cuda),   cmocka_unit_test(test_fma),
                                 cmocka_unit_test(test_routed), cmocka_unit_test(test_one_row),
                                 cmocka_unit_test(test_choose), cmocka_unit_test(test_router_choices),
                                 cmocka_unit_test(test_tall)};
    return TEST_RUN("experts on tensor cores", tests);
}
