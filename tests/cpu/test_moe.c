/* Mixtures of experts against src/ref: choices with ties and NaN, both kinds of weights, batches of every size bit-equal to
 * their rows alone, any threads, experts past 4 GiB. */
#include "tests/cpu/support.h"
#include "tests/skip.h"

#include <sys/mman.h>

#include "ops/ops.h"

enum { X = 12, IN = 64, INNER = 96, ROWS = 37, USED = 3 };

struct mix {
    struct pl_tensor tensors[3][X];
    const struct pl_cpu_weight *weights[3][X]; /* gate, up, down */
    struct pl_cpu_moe m;
    float x[ROWS * IN], y[ROWS * IN], logits[ROWS * X];
};

static void mix_open(struct mix *k, struct pl_cpu *c, enum pl_dtype dtype) {
    struct pl_err err = {0};
    const struct weight_case kind = {dtype, 0, 0, PL_F32};
    for (size_t p = 0; p < 3; p++)
        for (size_t e = 0; e < X; e++) {
            k->tensors[p][e] = tensor_random(&kind, p < 2 ? INNER : IN, p < 2 ? IN : INNER, 100 * p + e + 1);
            struct pl_cpu_weight *w = NULL;
            if (pl_cpu_weight_create(c, &k->tensors[p][e], &w, &err) != PL_OK) fail_msg("%s", err.text);
            k->weights[p][e] = w;
        }
    uint64_t s = 7;
    rng_fill(&s, k->x, ROWS * IN), rng_fill(&s, k->y, ROWS * IN), rng_fill(&s, k->logits, ROWS * X);
    for (size_t e = 0; e < X; e++) k->logits[e] = 1;                               /* all tie: the first three */
    for (size_t e = 0; e < X; e++) k->logits[X + e] = e % 2 == 0 ? NAN : (float)e; /* 11, 9, 7 */
    for (size_t e = 0; e < X; e++) k->logits[2 * X + e] = e == 5 ? 3e38f : -3e38f; /* one takes it all */
    k->m = (struct pl_cpu_moe){.rows = ROWS,
                               .experts = X,
                               .used = USED,
                               .in = IN,
                               .inner = INNER,
                               .scale = 1,
                               .act = PL_ACT_SILU,
                               .logits = k->logits,
                               .logits_stride = X,
                               .gate = k->weights[0],
                               .up = k->weights[1],
                               .down = k->weights[2],
                               .x = k->x,
                               .x_stride = IN,
                               .y = k->y,
                               .y_stride = IN};
    if (pl_cpu_moe_reserve(c, &k->m, ROWS, &err) != PL_OK) fail_msg("%s", err.text);
}

static void mix_close(struct mix *k) {
    for (size_t p = 0; p < 3; p++)
        for (size_t e = 0; e < X; e++) {
            pl_cpu_weight_destroy((struct pl_cpu_weight *)(uintptr_t)k->weights[p][e]);
            free((void *)(uintptr_t)k->tensors[p][e].data);
        }
}

/* The three largest by their definition, weighed in double. */
static void expected_row(const struct mix *k, size_t r, bool renormalise, float *y) {
    const float *l = k->logits + r * X;
    double sum = 0, chosen = 0, weight[USED];
    size_t ids[USED];
    bool taken[X] = {false};
    for (size_t i = 0; i < USED; i++) {
        size_t best = X;
        for (size_t e = 0; e < X; e++)
            if (!taken[e] && !isnan(l[e]) && (best == X || l[e] > l[best])) best = e;
        taken[ids[i] = best] = true;
    }
    for (size_t e = 0; e < X; e++) sum += exp((double)l[e] - (double)l[ids[0]]);
    for (size_t i = 0; i < USED; i++) chosen += weight[i] = exp((double)l[ids[i]] - (double)l[ids[0]]);
    for (size_t i = 0; i < USED; i++) {
        float g[INNER], u[INNER], d[IN], row[INNER];
        const struct pl_tensor *w[3] = {&k->tensors[0][ids[i]], &k->tensors[1][ids[i]], &k->tensors[2][ids[i]]};
        bool alone = k->m.gate == NULL;
        assert_int_equal(pl_ref_matmul(w[alone ? 1 : 0], NULL, k->x + r * IN, IN, 1, false, g, INNER, NULL, row), PL_OK);
        assert_int_equal(pl_ref_matmul(w[1], NULL, k->x + r * IN, IN, 1, false, u, INNER, NULL, row), PL_OK);
        for (size_t n = 0; alone && n < INNER; n++) u[n] = 1;
        pl_ref_glu(alone ? PL_REF_RELU2 : PL_REF_SILU, g, u, g, INNER);
        assert_int_equal(pl_ref_matmul(w[2], NULL, g, INNER, 1, false, d, IN, NULL, row), PL_OK);
        for (size_t n = 0; n < IN; n++) y[n] += (float)(weight[i] / (renormalise ? chosen : sum)) * d[n];
    }
}

static double norm_of(const float *a, const float *b, size_t n) {
    double s = 0;
    for (size_t i = 0; i < n; i++) s += pow((double)a[i] - (b != NULL ? (double)b[i] : 0), 2);
    return sqrt(s);
}

static void against_the_definition(void **state) {
    (void)state;
    static const enum pl_dtype types[] = {PL_F32, PL_BF16, PL_Q8_0, PL_Q4_0};
    static struct mix k;
    FOR_EACH_ISA(isa) {
        for (size_t t = 0; t < PL_COUNT_OF(types); t++) {
            for (int form = 0; form < 4; form++) { /* renormalised or not, with gates or without */
                int renormalise = form % 2;
                struct pl_cpu *c = cpu_make(isa, 2);
                mix_open(&k, c, types[t]);
                if (form >= 2) k.m.gate = NULL, k.m.act = PL_ACT_RELU2;
                float before[ROWS * IN];
                memcpy(before, k.y, sizeof before);
                k.m.renormalise = renormalise != 0;
                assert_true(pl_cpu_moe(c, &k.m) > 0);
                bool rounds = types[t] >= PL_Q4_0 && isa != PL_ISA_SCALAR;
                for (size_t r = 0; r < ROWS; r++) {
                    if (r == 1 && !renormalise) continue; /* the sum over all logits is no number */
                    expected_row(&k, r, renormalise != 0, before + r * IN);
                    double off = norm_of(k.y + r * IN, before + r * IN, IN), size = norm_of(before + r * IN, NULL, IN);
                    if (!(off <= (rounds ? 4e-2 : 2e-6) * size))
                        fail_msg("%s, %s, row %zu: off by %g of %g", pl_isa_name(isa), pl_dtype_name(types[t]), r, off,
                                 size);
                }
                mix_close(&k);
                pl_cpu_destroy(c);
            }
        }
    }
}

/* A row's bits do not depend on what stands beside it, nor on the threads. */
static void batches_change_nothing(void **state) {
    (void)state;
    static struct mix k;
    static const enum pl_dtype types[] = {PL_F16, PL_Q4_0};
    FOR_EACH_ISA(isa) {
        for (size_t t = 0; t < PL_COUNT_OF(types); t++) {
            static float start[ROWS * IN], alone[ROWS * IN];
            for (int threads = 1; threads <= 3; threads++) {
                struct pl_cpu *c = cpu_make(isa, threads);
                mix_open(&k, c, types[t]);
                memcpy(start, k.y, sizeof start);
                struct pl_cpu_moe all = k.m;
                for (size_t r = 0; r < ROWS && threads == 1; r++) {
                    struct pl_cpu_moe one = all;
                    one.rows = 1;
                    one.x += r * IN, one.y += r * IN, one.logits += r * X;
                    (void)pl_cpu_moe(c, &one);
                }
                if (threads == 1) memcpy(alone, k.y, sizeof alone);
                memcpy(k.y, start, sizeof start);
                (void)pl_cpu_moe(c, &all);
                assert_memory_equal(k.y, alone, sizeof alone);
                mix_close(&k);
                pl_cpu_destroy(c);
            }
        }
    }
}

/* A stack of more than 4 GiB, of which only the pages of two experts exist. */
static void experts_past_4_gib(void **state) {
    (void)state;
    enum { COUNT = 700, OUT = 1024, WIDE = 4096 }; /* 8 MiB each */
    const uint64_t each = (uint64_t)OUT * WIDE * 2, total = each * COUNT;
    assert_true(total > (uint64_t)5 << 30);
    uint16_t *data = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) SKIP("no address space for 5 GiB here");
    struct pl_tensor all = {
        .name = "stack", .dtype = PL_F16, .ndim = 3, .shape = {COUNT, OUT, WIDE, 1}, .data = data, .bytes = total};
    struct pl_cpu *c = cpu_make(pl_cpu_best_isa(), 2);
    struct pl_err err = {0};
    static const uint64_t picked[] = {0, COUNT - 1};
    static float x[WIDE], y[OUT];
    uint64_t s = 3;
    rng_fill(&s, x, WIDE);
    for (size_t i = 0; i < 2; i++) {
        struct pl_tensor e = pl_expert_of(&all, picked[i]);
        assert_ptr_equal(e.data, (const char *)data + picked[i] * each);
        uint16_t *row = data + picked[i] * OUT * WIDE + (uint64_t)(OUT - 1) * WIDE; /* its last row */
        double want = 0;
        for (size_t n = 0; n < WIDE; n++) {
            row[n] = pl_f32_to_f16((float)(i + 1) * rng_uniform(&s));
            want += (double)x[n] * (double)pl_f16_to_f32(row[n]);
        }
        struct pl_cpu_weight *w = NULL;
        if (pl_cpu_reserve(c, 1, WIDE, 0, &err) != PL_OK || pl_cpu_weight_create(c, &e, &w, &err) != PL_OK)
            fail_msg("%s", err.text);
        const struct pl_cpu_weight *cw = w;
        float *py = y;
        size_t stride = OUT;
        struct pl_cpu_matmul m = {.count = 1, .rows = 1, .w = &cw, .x = x, .x_stride = WIDE, .y = &py, .y_stride = &stride};
        pl_cpu_matmul(c, &m);
        check_close("last row", y[OUT - 1], want, 1e-4, 1e-3);
        assert_true(y[0] == 0);
        pl_cpu_weight_destroy(w);
    }
    pl_cpu_destroy(c);
    munmap(data, total);
}

static void count_packed(void *user, const struct pl_tensor *t) {
    assert_non_null(t->data);
    ++*(size_t *)user;
}

/* Experts multiplied from the file at their first use and packed at their second: the same bits, each packed once. */
static void packed_at_the_second_use(void **state) {
    (void)state;
    static struct mix now, later;
    FOR_EACH_ISA(isa) {
        struct pl_cpu *c = cpu_make(isa, 2);
        size_t packed = 0;
        mix_open(&now, c, PL_Q8_0);
        pl_cpu_pack_later(c, (size_t)1 << 40, count_packed, &packed);
        assert_int_equal(pl_cpu_pack_threshold(c, 0), (size_t)1 << 40);
        mix_open(&later, c, PL_Q8_0);
        for (int i = 0; i < 3; i++) {
            now.m.rows = later.m.rows = i == 0 ? 5 : ROWS;
            assert_int_equal(pl_cpu_moe(c, &now.m), pl_cpu_moe(c, &later.m));
            assert_memory_equal(now.y, later.y, sizeof now.y);
            if (isa != PL_ISA_SCALAR) assert_true(i == 0 ? packed == 0 : i == 1 ? packed > 0 : packed == 3 * X);
        }
        mix_close(&now), mix_close(&later);
        pl_cpu_destroy(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_at_the_second_use),
        cmocka_unit_test(against_the_definition),
        cmocka_unit_test(batches_change_nothing),
        cmocka_unit_test(experts_past_4_gib),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
