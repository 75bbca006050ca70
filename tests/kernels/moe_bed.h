/* moe_bed - what the tests of mixtures of experts share: room for choices and order, made experts, one comparison with
 * src/ref.
 *
 * A trial is opened with random inputs, its caller chooses ids and launches products into `by`, and closing it gives how far
 * the result is from the reference in the worst place, relative to the magnitudes of the terms. */
#ifndef MOE_BED_H
#define MOE_BED_H

#include "made.h"

#include "ops/moe.h"
#include "ops/ops.h"

static struct pl_moe_room room;

enum { EXPERTS_MAX = 1024 };
static inline void room_open(size_t slots, size_t inner, size_t width) {
    room = (struct pl_moe_room){0};
    CHECK(pl_moe_ready(&ks, &room, slots, EXPERTS_MAX, inner, width, &err));
}
static inline void *fetch(const struct pl_device_buffer *b, size_t bytes) {
    void *p = malloc(bytes + 1);
    assert_non_null(p);
    CHECK(pl_device_download(ks.device, ks.stream, p, b, 0, bytes, &err));
    CHECK(pl_device_stream_wait(ks.device, ks.stream, &err));
    return p;
}

/* The order in the room is one of these choices. */
static inline void order_is_right(const uint32_t *ids, uint32_t experts, size_t slots, size_t stride, uint32_t rows) {
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
enum { X = 5, USED = 2 };
struct mix {
    struct made m[3]; /* gate, up, down: all experts in one */
    struct pl_device_weight w[3];
    size_t in, inner;
};
static inline struct pl_tensor expert_of(const struct made *m, size_t i) {
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

static inline float glu_of(enum pl_ref_act act, double g, float u) {
    float a = (float)g, y;
    pl_ref_glu(act, &a, &u, &y, 1);
    return y;
}
/* What rounding does to h = act(g) u on the way, in units of a relative rounding of the terms of g and u, whose magnitudes
 * are mag_g and mag_u over `in` terms: those errors have no common sign, so the root of their number counts. Where g is
 * small and its terms are not, h is far less exact than its own size says. */
static inline double h_spread(enum pl_ref_act act, float g, float u, double mag_g, double mag_u, size_t in) {
    double step = ldexp(mag_g / sqrt((double)in), -8), mid = (double)glu_of(act, (double)g, u);
    double more = fabs((double)glu_of(act, (double)g + step, u) - mid),
           less = fabs((double)glu_of(act, (double)g - step, u) - mid);
    double of_u = fabs((double)glu_of(act, (double)g, u + 1) - mid) * mag_u / sqrt((double)in);
    return fabs(mid) + ldexp(fmax(more, less), 8) + of_u;
}

/* What each slot makes, in double where it matters, and the magnitude that rounding is relative to. */
static inline void expected(const struct mix *k, const struct product_case *c, const float *x, float *const bias[3],
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

/* Inputs, choices and room of one comparison. */
struct trial {
    size_t n, slots;
    float *x, *want, *weights, *bias[3];
    uint32_t *ids;
    struct pl_device_buffer bx, by, bb[3];
};
/* `spare`: an odd stride of what is laid out behind the slots. ids are the caller's to choose. */
static inline void trial_open(struct trial *t, const struct mix *k, size_t rows, size_t spare) {
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
static inline void trial_begin(struct trial *t) {
    CHECK(pl_device_fill(ks.device, ks.stream, &room.h, 0xFF, &err)); /* NaNs */
    CHECK(pl_device_fill(ks.device, ks.stream, &room.made, 0xFF, &err));
    CHECK(pl_device_upload(ks.device, ks.stream, &room.ids, 0, t->ids, t->slots * 4, &err));
    CHECK(pl_device_upload(ks.device, ks.stream, &room.weights, 0, t->weights, t->slots * 4, &err));
    CHECK(pl_device_stream_wait(ks.device, ks.stream, &err)); /* the control changes ids: not while they are read */
}
/* How far the result is from the reference in the worst place, relative to the terms' magnitudes. */
static inline double trial_close(struct trial *t, const struct mix *k, const struct product_case *c, bool wrong_expert) {
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

static inline struct mix mix_of(enum pl_dtype dtype, enum pl_dtype down, size_t in, size_t inner, uint32_t bits) {
    struct mix k = {.in = in, .inner = inner};
    for (size_t i = 0; i < 3; i++) {
        size_t rows = i < 2 ? inner : in, cols = i < 2 ? in : inner;
        k.m[i] = make_tensor(i < 2 ? dtype : down, X * rows, cols, bits, 32, PL_F16);
        k.w[i] = upload(&k.m[i]);
    }
    return k;
}
static inline void mix_free(struct mix *k) {
    for (size_t i = 0; i < 3; i++) made_free(&k->m[i], &k->w[i]);
}

#endif
