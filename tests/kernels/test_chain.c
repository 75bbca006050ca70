/* What one row meets between two attentions as one launch (kernels/cuda/chain.k.c) against src/ref: every output, twice and
 * bit for bit, with one launch counted each time. Runs on sm_90 and up; elsewhere it is declined, which is checked, as is
 * what a launch takes of shared memory.
 *
 * test-variants: release
 * test-timeout: 300 */
#include "made.h"

#include "ops/cuda_chain.h"
#include "ops/cuda_mma.h"

enum { WEIGHTS = 7 };
struct shape {
    size_t heads, in, mid, out[3];
    bool gelu, next;
};
struct chain {
    struct made m[WEIGHTS];
    struct pl_device_weight w[WEIGHTS];
    float *from, *x, *norm[2], *bias[2];
};
struct results {
    float *x, *h, *g, *y[3];
};

static void rearrange(struct pl_device_weight *w) {
    struct pl_kernel retile = {0};
    struct pl_device_weight file = *w;
    CHECK(pl_kernel_retile(&ks, &file, &retile, &err));
    w->data = kit_out(pl_strips_bytes(&file));
    CHECK(pl_launch_retile(&ks, &retile, &file, &w->data));
    w->strips = true;
    kit_drop(&file.data);
    pl_kernel_free(&ks, &retile);
}

static void chain_make(struct chain *c, const enum pl_dtype *types, const struct shape *s) {
    const size_t in[WEIGHTS] = {s->heads, s->in, s->in, s->mid, s->in, s->in, s->in};
    const size_t out[WEIGHTS] = {s->in, s->mid, s->mid, s->in, s->out[0], s->out[1], s->out[2]};
    for (int i = 0; i < WEIGHTS; i++) {
        c->m[i] = make_tensor(types[i], out[i], in[i], 0, 0, PL_F32);
        c->w[i] = upload(&c->m[i]);
        if (types[i] == PL_Q4_K || types[i] == PL_Q6_K) rearrange(&c->w[i]);
    }
    c->from = kit_random(s->heads, 1);
    c->x = kit_random(s->in, 1);
    for (int i = 0; i < 2; i++) c->norm[i] = kit_random(s->in, 1), c->bias[i] = kit_random(s->out[i], 1);
}
static void chain_drop(struct chain *c) {
    for (int i = 0; i < WEIGHTS; i++) kit_drop(&c->w[i].data), free(c->m[i].data);
    free(c->from), free(c->x);
    for (int i = 0; i < 2; i++) free(c->norm[i]), free(c->bias[i]);
}

static void run(struct chain *c, const struct shape *s, struct pl_kernel *k, struct pl_chain_kind kind,
                const struct pl_device_buffer *meet, struct results *r) {
    struct pl_device_buffer from = kit_up(c->from, s->heads * 4), x = kit_up(c->x, s->in * 4), h = kit_out(s->in * 4),
                            g = kit_out(s->mid * 4), y[3], norm[2], bias[2];
    for (int i = 0; i < 3; i++) y[i] = kit_out(s->out[i] * 4);
    for (int i = 0; i < 2; i++) norm[i] = kit_up(c->norm[i], s->in * 4), bias[i] = kit_up(c->bias[i], s->out[i] * 4);
    struct pl_launch_chain l = {.o = &c->w[0],
                                .gate = &c->w[1],
                                .up = &c->w[2],
                                .down = &c->w[3],
                                .next = {&c->w[4], &c->w[5], &c->w[6]},
                                .count = s->next ? 3 : 0,
                                .bias = {&bias[0], &bias[1], NULL},
                                .y = {&y[0], &y[1], &y[2]},
                                .from = &from,
                                .x = &x,
                                .h = &h,
                                .g = &g,
                                .norm = &norm[0],
                                .next_norm = &norm[1],
                                .eps = 1e-5f,
                                .offset = 0.5f,
                                .next_eps = 1e-5f,
                                .next_offset = 0.5f,
                                .meet = meet};
    uint64_t before = 0, counted = 0;
    assert_null(pl_chain_declines(&ks, &l));
    CHECK(pl_kernel_counted(&ks, k, &before, &err));
    CHECK(pl_launch_chain(&ks, k, kind, &l));
    CHECK(pl_kernel_counted(&ks, k, &counted, &err));
    assert_int_equal(counted, before + 1);
    r->x = kit_down(&x), r->h = kit_down(&h), r->g = kit_down(&g);
    for (int i = 0; i < 3; i++) r->y[i] = kit_down(&y[i]);
    for (int i = 0; i < 2; i++) kit_drop(&norm[i]), kit_drop(&bias[i]);
    kit_drop(&from);
}

struct product {
    double *v, *size;
};
/* y = w x, and the sum of magnitudes. */
static struct product multiply(const struct made *m, const double *x) {
    size_t out = m->t.shape[0], in = m->t.shape[1];
    struct product p = {malloc((out + 1) * sizeof(double)), malloc((out + 1) * sizeof(double))};
    float *row = malloc(in * 4 + 4);
    for (size_t o = 0; o < out; o++) {
        CHECK(pl_dequant_row(&m->t, o, row));
        p.v[o] = p.size[o] = 0;
        for (size_t i = 0; i < in; i++) p.v[o] += row[i] * x[i], p.size[o] += fabs(row[i] * x[i]);
    }
    free(row);
    return p;
}
static void product_free(struct product *p) { free(p->v), free(p->size); }
static double *wide(const float *x, size_t n) {
    double *v = malloc((n + 1) * sizeof *v);
    for (size_t i = 0; i < n; i++) v[i] = x[i];
    return v;
}
static double *normed(const double *x, const float *w, size_t n) {
    double square = 0, *h = malloc((n + 1) * sizeof *h);
    for (size_t i = 0; i < n; i++) square += x[i] * x[i];
    for (size_t i = 0; i < n; i++) h[i] = x[i] / sqrt(square / (double)n + 1e-5) * (0.5 + (double)w[i]);
    return h;
}
static double act(double v, bool gelu) {
    return gelu ? 0.5 * v * (1 + tanh(0.7978845608028654 * v * (1 + 0.044715 * v * v))) : v / (1 + exp(-v));
}
/* How many elements are off; the first one is told unless that is wanted. */
static size_t far(const char *what, const float *got, const double *want, const double *size, size_t n) {
    size_t off = 0;
    for (size_t i = 0; i < n; i++) {
        if (fabs((double)got[i] - want[i]) <= 1e-4 * (size[i] + fabs(want[i]) + 1e-9)) continue;
        if (off++ > 0 || what == NULL) continue;
        print_message("# %s: element %zu of %zu is %.9g, expected %.9g\n", what, i, n, (double)got[i], want[i]);
    }
    return off;
}
static void near(const char *what, const float *got, const double *want, const double *size, size_t n) {
    assert_int_equal(far(what, got, want, size, n), 0);
}

/* g and x of the results are what the products after them are held to: errors do not add up in the comparison. */
static void compare(const struct chain *c, const struct shape *s, const struct results *r) {
    double *from = wide(c->from, s->heads), *g = wide(r->g, s->mid), *x = wide(r->x, s->in);
    struct product o = multiply(&c->m[0], from);
    for (size_t i = 0; i < s->in; i++) o.v[i] += (double)c->x[i], o.size[i] += fabs((double)c->x[i]);
    double *h = normed(o.v, c->norm[0], s->in);
    struct product gate = multiply(&c->m[1], h), up = multiply(&c->m[2], h), down = multiply(&c->m[3], g);
    for (size_t i = 0; i < s->mid; i++) {
        double v = act(gate.v[i], s->gelu) * up.v[i];
        gate.size[i] = (gate.size[i] * (fabs(up.v[i]) + 1) + up.size[i] * (fabs(gate.v[i]) + 1)) * 2;
        gate.v[i] = v;
    }
    near("gated", r->g, gate.v, gate.size, s->mid);
    for (size_t i = 0; i < s->in; i++) down.v[i] += o.v[i], down.size[i] += o.size[i];
    near("x", r->x, down.v, down.size, s->in);
    double *last = s->next ? normed(x, c->norm[1], s->in) : h, *ones = malloc((s->in + 1) * sizeof *ones);
    double square = 0;
    for (size_t i = 0; i < s->in; i++) square += o.v[i] * o.v[i];
    for (size_t i = 0; i < s->in; i++) ones[i] = s->next ? 1 : o.size[i] / sqrt(square / (double)s->in);
    near("what the norm left", r->h, last, ones, s->in);
    for (int i = 0; i < 3 && s->next; i++) {
        struct product y = multiply(&c->m[4 + i], last);
        for (size_t e = 0; e < s->out[i] && i < 2; e++) y.v[e] += (double)c->bias[i][e];
        near("next", r->y[i], y.v, y.size, s->out[i]);
        product_free(&y);
    }
    if (s->next) free(last);
    product_free(&o), product_free(&gate), product_free(&up), product_free(&down);
    free(from), free(g), free(x), free(h), free(ones);
}
static void same(struct results *a, struct results *b, const struct shape *s) {
    assert_memory_equal(a->x, b->x, s->in * 4);
    assert_memory_equal(a->h, b->h, s->in * 4);
    assert_memory_equal(a->g, b->g, s->mid * 4);
    for (int i = 0; i < 3 && s->next; i++) assert_memory_equal(a->y[i], b->y[i], s->out[i] * 4);
}
static void results_free(struct results *r) {
    free(r->x), free(r->h), free(r->g);
    for (int i = 0; i < 3; i++) free(r->y[i]);
}

/* down, a matrix of Q6_K, taken for Q4_K: nearly all of what it makes is wrong then, and the comparison sees it wherever
 * down adds anything to see (random gates may all be closed). */
static size_t mistakes_seen;
static void mistaken(struct chain *c, const struct shape *s, struct pl_kernel *k, struct pl_chain_kind kind,
                     const struct pl_device_buffer *meet) {
    struct results r;
    size_t off = 0, visible = 0;
    print_message("# the same, down taken for Q4_K\n");
    c->w[3].dtype = PL_Q4_K;
    run(c, s, k, kind, meet, &r);
    c->w[3].dtype = PL_Q6_K;
    double *from = wide(c->from, s->heads), *g = wide(r.g, s->mid);
    struct product o = multiply(&c->m[0], from), down = multiply(&c->m[3], g);
    for (size_t i = 0; i < s->in; i++) {
        double x = o.v[i] + (double)c->x[i] + down.v[i], size = o.size[i] + fabs((double)c->x[i]) + down.size[i];
        off += far(NULL, &r.x[i], &x, &size, 1);
        visible += fabs(down.v[i]) > 1e-3 * (size + fabs(x));
    }
    if (visible > s->in / 2) {
        assert_true(off > s->in / 2);
        mistakes_seen++;
    }
    product_free(&o), product_free(&down);
    free(from), free(g);
    results_free(&r);
}

static void one(const enum pl_dtype *types, const struct shape *s, const struct pl_device_buffer *meet) {
    struct chain c;
    struct pl_kernel k = {0};
    struct results first, again;
    bool mixed = false;
    for (int i = 1; i < WEIGHTS; i++) mixed = mixed || types[i] != types[0];
    chain_make(&c, types, s);
    struct pl_chain_kind kind = {.gelu = s->gelu, .mixed = mixed};
    CHECK(pl_kernel_chain(&ks, &c.w[0], kind, &k, &err));
    print_message("# %s %zu -> %zu -> %zu\n", k.name, s->heads, s->in, s->mid);
    assert_true((strstr(k.name, "q4_k_q6_k") != NULL) == mixed);
    run(&c, s, &k, kind, meet, &first);
    compare(&c, s, &first);
    run(&c, s, &k, kind, meet, &again);
    same(&first, &again, s);
    results_free(&first), results_free(&again);
    if (mixed && types[3] == PL_Q6_K) mistaken(&c, s, &k, kind, meet);
    pl_kernel_free(&ks, &k);
    chain_drop(&c);
}

static void chains(void) {
    static const enum pl_dtype types[] = {PL_Q4_K, PL_BF16, PL_Q6_K, PL_F16, PL_Q8_0, PL_Q4_0, PL_Q4_1, PL_Q5_0};
    static const struct shape shapes[] = {
        {2304, 512, 2560, {256, 64, 64}, false, true},    {256, 256, 256, {16, 16, 16}, true, true},
        {1024, 4096, 768, {48, 16, 16}, false, false},    {4096, 4096, 6144, {4096, 1024, 1024}, false, true},
        {256, 2304, 14336, {1024, 256, 256}, true, true}, {256, 256, 512, {16, 16, 16}, false, false},
        {256, 2304, 256, {16, 16, 16}, false, true}};
    static const enum pl_dtype mixes[][WEIGHTS] = {{PL_Q4_K, PL_Q4_K, PL_Q4_K, PL_Q6_K, PL_Q4_K, PL_Q4_K, PL_Q6_K},
                                                   {PL_Q6_K, PL_Q4_K, PL_Q4_K, PL_Q4_K, PL_Q6_K, PL_Q4_K, PL_Q4_K},
                                                   {PL_Q4_K, PL_Q4_K, PL_Q6_K, PL_Q6_K, PL_Q4_K, PL_Q6_K, PL_Q4_K}};
    struct pl_device_weight probe = {.dtype = PL_BF16, .rows = 48, .cols = 512, .row_bytes = 1024};
    if (pl_stream_declines(&ks, &probe, 1) != NULL) return;
    struct pl_device_buffer meet;
    pl_chain_backend(1);
    mistakes_seen = 0;
    CHECK(pl_device_alloc(ks.device, PL_CHAIN_MEET_BYTES, &meet, &err));
    CHECK(pl_device_fill(ks.device, ks.stream, &meet, 0, &err));
    for (size_t i = 0; i < PL_COUNT_OF(shapes); i++) {
        bool small = shapes[i].in <= 512 || shapes[i].mid <= 256, large = shapes[i].mid > 4096;
        for (size_t t = 0; t < PL_COUNT_OF(types); t++) {
            enum pl_dtype all[WEIGHTS];
            for (size_t w = 0; w < WEIGHTS; w++) all[w] = types[t];
            if (test_small() ? small && t < 3 : !large || t < 2) one(all, &shapes[i], &meet);
        }
        for (size_t t = 0; t < PL_COUNT_OF(mixes); t++) {
            if (test_small() ? small : !large || t == 0) one(mixes[t], &shapes[i], &meet);
        }
    }
    assert_true(mistakes_seen > 0);
    pl_device_free(ks.device, &meet);
    pl_chain_backend(-1);
}
static void test_chain(void **state) {
    (void)state;
    kit_each(chains);
}

/* What a launch takes is what its kernel lays out (units, inputs, sums, stages, squares, barriers), and no more than there
 * is: of a kernel of several types also where all matrices are of the smaller one. */
static void rooms(bool mixed, enum pl_dtype dtype, uint32_t unit, uint32_t input, uint32_t outputs, uint32_t warps) {
    static const struct { uint64_t heads, in, mid; } shapes[] = {{1024, 4096, 768}, {2304, 512, 2560}, {256, 2304, 14336}};
    enum { MOST = 220160 }; /* 227 KB less what is left to the attention beside it */
    for (size_t i = 0; i < PL_COUNT_OF(shapes); i++) {
        uint64_t heads = shapes[i].heads, in = shapes[i].in, mid = shapes[i].mid;
        bool strips = dtype == PL_Q4_K || dtype == PL_Q6_K;
        struct pl_device_weight o = {.dtype = dtype, .rows = in, .cols = heads, .strips = strips};
        struct pl_device_weight gate = {.dtype = dtype, .rows = mid, .cols = in, .strips = strips};
        struct pl_device_weight down = {.dtype = dtype, .rows = in, .cols = mid, .strips = strips};
        struct pl_launch_chain l = {.o = &o, .gate = &gate, .up = &gate, .down = &down};
        struct pl_chain_room room = pl_chain_room(MOST, (struct pl_chain_kind){.mixed = mixed}, &l);
        uint64_t chunks = (PL_MAX(PL_MAX(heads, in), mid) + 2047) / 2048;
        uint64_t fixed = chunks * input + 16 * 8 * outputs * 4 + 4 * 192 + warps * 4;
        assert_int_equal(room.bytes, fixed + room.depth * (unit + 16));
        assert_true(room.depth >= 4 && room.bytes <= MOST && room.bytes + unit + 16 > MOST);
        room = pl_chain_room((uint32_t)fixed + 4 * (unit + 16) - 1, (struct pl_chain_kind){.mixed = mixed}, &l);
        assert_int_equal(room.depth, 0);
    }
}
static void test_room(void **state) {
    (void)state;
    rooms(true, PL_Q4_K, 8 * 3360, 4608, 16, 16);
    rooms(true, PL_Q6_K, 8 * 3360, 4608, 16, 16);
    rooms(false, PL_Q6_K, 8 * 3360, 4608, 16, 16);
    rooms(false, PL_Q4_K, 8 * 2368, 4608, 16, 16);
    rooms(false, PL_BF16, 16384, 8192, 4, 8);
    rooms(false, PL_Q8_0, 8 * (64 * 34 + 48), 4608, 8, 8);
}

/* What cannot be one launch says why. */
static void declined(void) {
    struct pl_device_weight w = {.dtype = PL_BF16, .rows = 512, .cols = 512, .row_bytes = 1024}, odd = w;
    struct pl_launch_chain l = {.o = &w, .gate = &w, .up = &w, .down = &w};
    if (pl_stream_declines(&ks, &w, 1) != NULL) {
        assert_non_null(pl_chain_declines(&ks, &l));
        return;
    }
    assert_null(pl_chain_declines(&ks, &l));
    odd.cols = 1024, odd.row_bytes = 2048;
    l.down = &odd;
    assert_string_equal(pl_chain_declines(&ks, &l), "shapes do not follow each other");
    odd = w;
    odd.dtype = PL_F16;
    assert_string_equal(pl_chain_declines(&ks, &l), "weights of several types");
    struct pl_device_weight four = {.dtype = PL_Q4_K, .rows = 512, .cols = 512, .strips = true}, six = four;
    six.dtype = PL_Q6_K;
    l.o = l.gate = l.up = l.down = &four;
    assert_null(pl_chain_declines(&ks, &l));
    assert_false(pl_chain_mixed(&l));
    l.down = &six;
    assert_null(pl_chain_declines(&ks, &l));
    assert_true(pl_chain_mixed(&l));
    l.down = &w;
    assert_string_equal(pl_chain_declines(&ks, &l), "weights of several types");
    l.o = l.gate = l.up = &w;
    pl_chain_backend(2);
    assert_non_null(strstr(pl_chain_declines(&ks, &l), "another CUDA backend"));
    pl_chain_backend(-2);
}
static void test_declined(void **state) {
    (void)state;
    kit_each(declined);
}

int main(void) {
    struct CMUnitTest tests[] = {cmocka_unit_test(test_declined), cmocka_unit_test(test_room), cmocka_unit_test(test_chain)};
    return TEST_RUN("chains", tests);
}
