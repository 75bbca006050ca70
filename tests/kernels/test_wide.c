/* Attention of many rows by four warps together (kernels/cuda/attention_wide.k.c) against f64: several tiles of rows, more
 * tiles of tokens than the ring holds, windows, soft-caps, pages in random order. Runs on sm_90a; elsewhere it is declined.
 *
 * test-variants: release */
#include "kit.h"

#include "ops/cuda_dense.h"

enum { HEADS = 4, KV_HEADS = 2, PAGE = 32, ROW0 = 3, SPARE = 5, FIRST_PAGE = 2 };
struct shape {
    enum pl_dtype kv;
    uint32_t head_dim, rows, past, window;
    float softcap;
};
struct data {
    uint32_t *step, stride, pages;
    uint16_t *k, *v;
    float *q;
    size_t nq, pool;
};

static uint16_t pack(enum pl_dtype t, float v) { return t == PL_F16 ? pl_f32_to_f16(v) : pl_f32_to_bf16(v); }
static double unpack(enum pl_dtype t, uint16_t h) { return (double)(t == PL_F16 ? pl_f16_to_f32(h) : pl_bf16_to_f32(h)); }

static struct data make(const struct shape *s) {
    struct data d = {.stride = s->rows + ROW0 + SPARE, .pages = (s->past + s->rows + PAGE - 1) / PAGE};
    size_t words = 4 * (size_t)d.stride + FIRST_PAGE + d.pages;
    d.nq = (size_t)(s->rows + ROW0) * HEADS * s->head_dim;
    d.pool = (size_t)(d.pages + SPARE) * PAGE * KV_HEADS * s->head_dim;
    d.step = calloc(words, sizeof *d.step);
    d.k = malloc(d.pool * 2), d.v = malloc(d.pool * 2);
    assert_true(d.step != NULL && d.k != NULL && d.v != NULL);
    for (uint32_t i = 0; i < s->rows; i++) {
        d.step[PL_STEP_POSITION(d.stride) + ROW0 + i] = s->past + i;
        d.step[PL_STEP_PAGE_FIRST(d.stride) + ROW0 + i] = FIRST_PAGE;
    }
    uint32_t *table = d.step + PL_STEP_PAGES(d.stride) + FIRST_PAGE;
    for (uint32_t i = 0; i < d.pages; i++) table[i] = i;
    for (uint32_t i = d.pages; i-- > 1;) {
        uint32_t j = kit_u32() % (i + 1), t = table[i];
        table[i] = table[j], table[j] = t;
    }
    for (size_t i = 0; i < d.pool; i++) d.k[i] = pack(s->kv, kit_f32()), d.v[i] = pack(s->kv, kit_f32());
    d.q = kit_random(d.nq, 2);
    return d;
}
static void drop(struct data *d) { free(d->step), free(d->k), free(d->v), free(d->q); }

static size_t place(const struct shape *s, const struct data *d, uint32_t t, uint32_t head) {
    const uint32_t *table = d->step + PL_STEP_PAGES(d->stride) + FIRST_PAGE;
    return (((size_t)table[t / PAGE] * PAGE + t % PAGE) * KV_HEADS + head / (HEADS / KV_HEADS)) * s->head_dim;
}
/* One row of one head. */
static void expected(const struct shape *s, const struct data *d, uint32_t row, uint32_t head, double *o) {
    uint32_t at = s->past + row, low = s->window > 0 && at + 1 > s->window ? at + 1 - s->window : 0;
    const float *q = d->q + ((size_t)(row + ROW0) * HEADS + head) * s->head_dim;
    double *w = malloc((at - low + 1) * sizeof *w), top = -INFINITY, total = 0;
    for (uint32_t t = low; t <= at; t++) {
        const uint16_t *k = d->k + place(s, d, t, head);
        double v = 0;
        for (uint32_t e = 0; e < s->head_dim; e++) v += (double)q[e] * unpack(s->kv, k[e]);
        v /= sqrt(s->head_dim);
        if (s->softcap > 0) v = (double)s->softcap * tanh(v / (double)s->softcap);
        w[t - low] = v;
        top = fmax(top, v);
    }
    for (uint32_t e = 0; e < s->head_dim; e++) o[e] = 0;
    for (uint32_t t = low; t <= at; t++) {
        const uint16_t *v = d->v + place(s, d, t, head);
        double p = exp(w[t - low] - top);
        total += p;
        for (uint32_t e = 0; e < s->head_dim; e++) o[e] += p * unpack(s->kv, v[e]);
    }
    for (uint32_t e = 0; e < s->head_dim; e++) o[e] /= total;
    free(w);
}
static void compare(const struct shape *s, const struct data *d, const float *out) {
    double o[128];
    for (uint32_t row = 0; row<s->rows; row += s->rows> 40 ? 7 : 1) {
        for (uint32_t head = 0; head < HEADS; head++) {
            expected(s, d, row, head, o);
            for (uint32_t e = 0; e < s->head_dim; e++) {
                double got = (double)out[((size_t)(row + ROW0) * HEADS + head) * s->head_dim + e];
                if (fabs(got - o[e]) <= (s->kv == PL_F16 ? 2e-3 : 1.6e-2)) continue;
                print_message("# rows %u past %u window %u: row %u head %u element %u is %.6g, expected %.6g\n", s->rows,
                              s->past, s->window, row, head, e, got, o[e]);
                fail();
            }
        }
    }
}

static float *run(const struct shape *s, const struct data *d, struct pl_kernel *k) {
    struct pl_device_buffer q = kit_up(d->q, d->nq * 4), pk = kit_up(d->k, d->pool * 2), pv = kit_up(d->v, d->pool * 2),
                            out = kit_out(d->nq * 4),
                            step = kit_up(d->step, (4 * (size_t)d->stride + FIRST_PAGE + d->pages) * 4);
    struct pl_launch_attention a = {.q = &q,
                                    .k_pages = &pk,
                                    .v_pages = &pv,
                                    .step = &step,
                                    .out = &out,
                                    .rows = s->rows,
                                    .heads = HEADS,
                                    .kv_heads = KV_HEADS,
                                    .window = s->window,
                                    .stride = d->stride,
                                    .scale = 1.0f / sqrtf((float)s->head_dim),
                                    .softcap = s->softcap};
    uint64_t before = 0, counted = 0;
    CHECK(pl_kernel_counted(&ks, k, &before, &err));
    CHECK(pl_launch_tiles(&ks, k, &a, s->head_dim, ROW0, s->rows));
    CHECK(pl_kernel_counted(&ks, k, &counted, &err));
    assert_int_equal(counted, before + 1);
    kit_drop(&q), kit_drop(&pk), kit_drop(&pv), kit_drop(&step);
    return kit_down(&out);
}

static void wide(void) {
    static const struct shape shapes[] = {{PL_F16, 128, 9, 0, 0, 0},     {PL_BF16, 64, 130, 70, 0, 0},
                                          {PL_F16, 128, 300, 200, 0, 0}, {PL_BF16, 128, 260, 100, 90, 0},
                                          {PL_F16, 64, 64, 500, 0, 30},  {PL_F16, 128, 1024, 0, 0, 0}};
    for (size_t i = 0; i < (test_small() ? 2 : PL_COUNT_OF(shapes)); i++) {
        const struct shape *s = &shapes[i];
        struct pl_kernel k = {0};
        if (pl_wide_declines(&ks, s->kv, s->head_dim, HEADS, KV_HEADS) != NULL) return;
        CHECK(pl_kernel_tiles(&ks, s->kv, s->head_dim, PAGE, true, &k, &err));
        struct data d = make(s);
        float *out = run(s, &d, &k), *again = run(s, &d, &k);
        compare(s, &d, out);
        assert_memory_equal(out + (size_t)ROW0 * HEADS * s->head_dim, again + (size_t)ROW0 * HEADS * s->head_dim,
                            (size_t)s->rows * HEADS * s->head_dim * 4);
        free(out), free(again);
        pl_kernel_free(&ks, &k);
        drop(&d);
    }
}
static void test_wide(void **state) {
    (void)state;
    kit_each(wide);
}

int main(void) {
    struct CMUnitTest tests[] = {cmocka_unit_test(test_wide)};
    return TEST_RUN("attention by four warps together", tests);
}
