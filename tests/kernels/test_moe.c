/* Mixtures of experts against src/ref: every router, orders and tiles, products of every weight type slot by slot and by
 * expert, biases, activations; sentinels, poisoned outputs, matrices past 4 GiB, and controls that must be seen.
 *
 * test-variants: release (the kernels are compiled by the OpenCL driver, which no sanitizer sees; the host code they go
 * through is sanitized in tests/device, tests/jit and tests/model)
 * test-timeout: 600
 * long file: one oracle of a mixture's products, and every form of them held to it */
#include "made.h"

#include "ops/cuda_moe.h"
#include "ops/ops.h"
#include "tests/skip.h"

static struct pl_moe_room room;
static int far_ran, far_skipped, cuda_ran;

enum { EXPERTS_MAX = 1024 };
static void room_open(size_t slots, size_t inner, size_t width) {
    room = (struct pl_moe_room){0};
    CHECK(pl_moe_ready(&ks, &room, slots, EXPERTS_MAX, inner, width, &err));
}
static void *fetch(const struct pl_device_buffer *b, size_t bytes) {
    void *p = malloc(bytes + 1);
    assert_non_null(p);
    CHECK(pl_device_download(ks.device, ks.stream, p, b, 0, bytes, &err));
    CHECK(pl_device_stream_wait(ks.device, ks.stream, &err));
    return p;
}

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

/* The order in the room is one of these choices. */
static void order_is_right(const uint32_t *ids, uint32_t experts, size_t slots, size_t stride, uint32_t rows) {
    uint32_t *order = fetch(&room.order, room.order.bytes), *slot = order + PL_ORDER_SLOT(stride),
             *place = order + PL_ORDER_PLACE(stride), *tile = order + PL_ORDER_TILE(stride),
             *count = order + PL_ORDER_COUNT(stride), seen = 0;
    assert_true(order[PL_ORDER_TILES] <= pl_moe_tiles(slots, experts, rows));
    for (uint32_t t = 0; t < order[PL_ORDER_TILES]; t++, tile += PL_TILE_WORDS) {
        assert_true(tile[1] == seen && tile[2] >= 1 && tile[2] <= rows);
        for (uint32_t i = 0; i < tile[2]; i++) {
            assert_true(slot[seen + i] < slots && ids[slot[seen + i]] == tile[0]);
            assert_int_equal(place[slot[seen + i]], seen + i);
            count[tile[0]]--;
        }
        if (t > 0) assert_true(tile[0] > tile[0 - PL_TILE_WORDS] || tile[2 - PL_TILE_WORDS] == rows);
        seen += tile[2];
    }
    assert_int_equal(seen, slots);
    for (uint32_t e = 0; e < experts; e++) assert_int_equal(count[e], 0);
    free(order);
}
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

enum { X = 5, USED = 2 };
struct mix {
    struct made m[3]; /* gate, up, down: all experts in one */
    struct pl_device_weight w[3];
    size_t in, inner;
};
static struct pl_tensor expert_of(const struct made *m, size_t i) {
    struct pl_tensor t = m->t;
    uint64_t out = t.shape[0] / X;
    t.shape[0] = out;
    t.bytes /= X;
    t.data = (const char *)t.data + i * t.bytes;
    if (t.dtype != PL_MLX) return t;
    uint64_t scales = out * (t.shape[1] / t.group) * pl_dtype_info(t.scale_dtype)->block_bytes;
    t.scales = (const char *)t.scales + i * scales;
    t.biases = (const char *)t.biases + i * scales;
    return t;
}

struct product_case {
    size_t rows;
    enum pl_ops_act act;
    bool biases, direct;
    bool alone; /* no gates: act(up x) */
};

static float glu_of(enum pl_ref_act act, double g, float u) {
    float a = (float)g, y;
    pl_ref_glu(act, &a, &u, &y, 1);
    return y;
}
/* What rounding does to h = act(g) u on the way, in units of a relative rounding of the terms of g and u, whose magnitudes
 * are mag_g and mag_u over `in` terms: those errors have no common sign, so the root of their number counts. Where g is
 * small and its terms are not, h is far less exact than its own size says. */
static double h_spread(enum pl_ref_act act, float g, float u, double mag_g, double mag_u, size_t in) {
    double step = ldexp(mag_g / sqrt((double)in), -8), mid = (double)glu_of(act, (double)g, u);
    double more = fabs((double)glu_of(act, (double)g + step, u) - mid),
           less = fabs((double)glu_of(act, (double)g - step, u) - mid);
    double of_u = fabs((double)glu_of(act, (double)g, u + 1) - mid) * mag_u / sqrt((double)in);
    return fabs(mid) + ldexp(fmax(more, less), 8) + of_u;
}

/* What each slot makes, in double where it matters, and the magnitude that rounding is relative to. */
static void expected(const struct mix *k, const struct product_case *c, const float *x, float *const bias[3],
                     const uint32_t *ids, const float *weights, float *y, double *magnitude) {
    static const enum pl_ref_act acts[] = {PL_REF_SILU, PL_REF_GELU_TANH, PL_REF_SWIGLU_CLAMPED, PL_REF_RELU2};
    size_t widest = PL_MAX(k->in, k->inner);
    float *g = malloc(k->inner * 4), *u = malloc(k->inner * 4), *d = malloc(k->in * 4), *row = malloc(widest * 4 + 4);
    float *spread = malloc(k->inner * 4), *ignored = malloc(k->in * 4);
    double *mag = malloc(widest * sizeof *mag), *mag_g = malloc(k->inner * sizeof *mag),
           *mag_u = malloc(k->inner * sizeof *mag);
    for (size_t s = 0; s < c->rows * USED; s++) {
        size_t e = ids[s], r = s / USED;
        const struct pl_tensor w[] = {expert_of(&k->m[0], e), expert_of(&k->m[1], e), expert_of(&k->m[2], e)};
        const float *bg = c->biases ? bias[0] + e * k->inner : NULL, *bu = c->biases ? bias[1] + e * k->inner : NULL;
        CHECK(pl_ref_matmul(&w[0], bg, x + r * k->in, k->in, 1, false, g, k->inner, mag_g, row));
        CHECK(pl_ref_matmul(&w[1], bu, x + r * k->in, k->in, 1, false, u, k->inner, mag_u, row));
        for (size_t i = 0; c->alone && i < k->inner; i++) g[i] = u[i], mag_g[i] = mag_u[i], u[i] = 1, mag_u[i] = 0;
        for (size_t i = 0; i < k->inner; i++)
            spread[i] = (float)h_spread(acts[c->act], g[i], u[i], mag_g[i], mag_u[i], k->in);
        pl_ref_glu(acts[c->act], g, u, g, k->inner);
        CHECK(pl_ref_matmul(&w[2], c->biases ? bias[2] + e * k->in : NULL, g, k->inner, 1, false, d, k->in, NULL, row));
        CHECK(pl_ref_matmul(&w[2], NULL, spread, k->inner, 1, false, ignored, k->in, mag, row));
        for (size_t i = 0; i < k->in; i++) {
            y[r * k->in + i] += weights[s] * d[i];
            magnitude[r * k->in + i] += fabs((double)weights[s]) * mag[i];
        }
    }
    free(g), free(u), free(d), free(row), free(mag), free(spread), free(ignored), free(mag_g), free(mag_u);
}

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

/* Inputs, choices and room of one comparison. */
struct trial {
    size_t n, slots;
    float *x, *want, *weights, *bias[3];
    uint32_t *ids;
    struct pl_device_buffer bx, by, bb[3];
};
/* `spare`: an odd stride of what is laid out behind the slots. ids are the caller's to choose. */
static void trial_open(struct trial *t, const struct mix *k, size_t rows, size_t spare) {
    *t = (struct trial){.n = rows * k->in, .slots = rows * USED};
    room_open(t->slots + spare, k->inner, k->in);
    t->x = kit_random(t->n, 1), t->want = kit_random(t->n, 1), t->weights = kit_random(t->slots, 1);
    t->weights[0] = 1; /* the slot that a control sends elsewhere counts */
    t->ids = malloc(t->slots * 4);
    t->bx = kit_up(t->x, t->n * 4), t->by = kit_up(t->want, t->n * 4);
    for (size_t i = 0; i < 3; i++) {
        size_t values = X * (i < 2 ? k->inner : k->in);
        t->bias[i] = kit_random(values, 1);
        t->bb[i] = kit_up(t->bias[i], values * 4);
    }
}
static void trial_begin(struct trial *t) {
    CHECK(pl_device_fill(ks.device, ks.stream, &room.h, 0xFF, &err)); /* NaNs */
    CHECK(pl_device_fill(ks.device, ks.stream, &room.made, 0xFF, &err));
    CHECK(pl_device_upload(ks.device, ks.stream, &room.ids, 0, t->ids, t->slots * 4, &err));
    CHECK(pl_device_upload(ks.device, ks.stream, &room.weights, 0, t->weights, t->slots * 4, &err));
    CHECK(pl_device_stream_wait(ks.device, ks.stream, &err)); /* the control changes ids: not while they are read */
}
/* How far the result is from the reference in the worst place, relative to the terms' magnitudes. */
static double trial_close(struct trial *t, const struct mix *k, const struct product_case *c, bool wrong_expert) {
    double *magnitude = calloc(t->n, sizeof *magnitude), worst = 0;
    if (wrong_expert) t->ids[0] = (t->ids[0] + 1) % X;
    expected(k, c, t->x, t->bias, t->ids, t->weights, t->want, magnitude);
    float *y = kit_down(&t->by);
    for (size_t i = 0; i < t->n; i++) {
        double off = fabs((double)y[i] - (double)t->want[i]) / (magnitude[i] + fabs((double)t->want[i]) + 1e-6);
        worst = isnan(off) ? INFINITY : fmax(worst, off);
    }
    free(t->x), free(t->want), free(t->weights), free(magnitude), free(t->ids), free(y);
    for (size_t i = 0; i < 3; i++) free(t->bias[i]), kit_drop(&t->bb[i]);
    kit_drop(&t->bx);
    pl_moe_deinit(&ks, &room);
    return worst;
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

static struct mix mix_of(enum pl_dtype dtype, enum pl_dtype down, size_t in, size_t inner, uint32_t bits) {
    struct mix k = {.in = in, .inner = inner};
    for (size_t i = 0; i < 3; i++) {
        size_t rows = i < 2 ? inner : in, cols = i < 2 ? in : inner;
        k.m[i] = make_tensor(i < 2 ? dtype : down, X * rows, cols, bits, 32, PL_F16);
        k.w[i] = upload(&k.m[i]);
    }
    return k;
}
static void mix_free(struct mix *k) {
    for (size_t i = 0; i < 3; i++) made_free(&k->m[i], &k->w[i]);
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

/* --- NVIDIA's tensor cores: inputs of f16 or bf16 --- */

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
                                 cmocka_unit_test(test_repeats), cmocka_unit_test(test_far),
                                 cmocka_unit_test(test_cuda),    cmocka_unit_test(test_fma),
                                 cmocka_unit_test(test_routed),  cmocka_unit_test(test_one_row),
                                 cmocka_unit_test(test_choose),  cmocka_unit_test(test_router_choices),
                                 cmocka_unit_test(test_tall)};
    return TEST_RUN("experts", tests);
}
