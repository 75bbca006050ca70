/* Latent attention by keys and values of each head against its definition in double: sequences with and without a past in
 * scattered pages, caches and weights of several types, heads in turns and threads that change no bit, a sequence there is
 * no room for, and two faults that are seen. */
#include "tests/cpu/support.h"

#include "tensor/quant.h"

enum { H = 5, N = 32, R = 8, V = 24, L = 64, D = L + R, PAGE = 16, PAGES = 16, SEQS = 2, ROWS = 75, LONGEST = 103 };
static const size_t rows_of[SEQS] = {70, 5}, past_of[SEQS] = {33, 0};

struct bed {
    struct pl_tensor k_t[H], v_t[H];
    const struct pl_cpu_weight *k[H], *v[H];
    double wk[H][L][N], wv[H][V][L], key[SEQS][LONGEST][H][N];
    enum pl_dtype cache;
    float latents[SEQS][LONGEST][D]; /* as the cache holds them */
    uint32_t pages[SEQS][PAGES];
    char pool[2 * PAGES * PAGE * D * sizeof(float)];
    float q[ROWS * H * (N + R)], qa[ROWS * H * D];
    double want[ROWS * H * V];
};

static float stored(struct bed *b, size_t at, float v) {
    uint16_t *half = (uint16_t *)(void *)b->pool + at;
    if (b->cache == PL_F32) return ((float *)(void *)b->pool)[at] = v;
    *half = b->cache == PL_F16 ? pl_f32_to_f16(v) : pl_f32_to_bf16(v);
    return b->cache == PL_F16 ? pl_f16_to_f32(*half) : pl_bf16_to_f32(*half);
}

static void open_bed(struct bed *b, struct pl_cpu *c, enum pl_dtype weights, enum pl_dtype cache) {
    const struct weight_case kind = {weights, 0, 0, PL_F32};
    struct pl_err err = {0};
    uint64_t seed = 11;
    b->cache = cache;
    for (size_t h = 0; h < H; h++) {
        float row[L];
        struct pl_cpu_weight *w = NULL;
        b->k_t[h] = tensor_random(&kind, L, N, 2 * h + 1), b->v_t[h] = tensor_random(&kind, V, L, 2 * h + 2);
        if (pl_cpu_weight_create(c, &b->k_t[h], &w, &err) != PL_OK) fail_msg("%s", err.text);
        b->k[h] = w;
        if (pl_cpu_weight_create(c, &b->v_t[h], &w, &err) != PL_OK) fail_msg("%s", err.text);
        b->v[h] = w;
        for (size_t r = 0; r < L; r++) {
            assert_int_equal(pl_dequant_row_product(&b->k_t[h], r, row), PL_OK);
            for (size_t i = 0; i < N; i++) b->wk[h][r][i] = (double)row[i];
        }
        for (size_t r = 0; r < V; r++) {
            assert_int_equal(pl_dequant_row_product(&b->v_t[h], r, row), PL_OK);
            for (size_t i = 0; i < L; i++) b->wv[h][r][i] = (double)row[i];
        }
    }
    for (size_t s = 0; s < SEQS; s++) {
        for (uint32_t i = 0; i < PAGES; i++) b->pages[s][i] = (i * 7 + 3) % PAGES * 2 + (uint32_t)s;
        for (size_t t = 0; t < past_of[s] + rows_of[s]; t++)
            for (size_t i = 0; i < D; i++)
                b->latents[s][t][i] = stored(b, (b->pages[s][t / PAGE] * PAGE + t % PAGE) * D + i, rng_uniform(&seed));
    }
    memset(b->key, 0, sizeof b->key);
    for (size_t s = 0; s < SEQS; s++)
        for (size_t t = 0; t < past_of[s] + rows_of[s]; t++)
            for (size_t h = 0; h < H; h++)
                for (size_t r = 0; r < L; r++)
                    for (size_t i = 0; i < N; i++) b->key[s][t][h][i] += b->wk[h][r][i] * (double)b->latents[s][t][r];
    for (size_t i = 0; i < ROWS * H * (N + R); i++) b->q[i] = rng_uniform(&seed);
    for (size_t i = 0; i < ROWS * H * D; i++) b->qa[i] = rng_uniform(&seed);
}
static void close_bed(struct bed *b) {
    for (size_t h = 0; h < H; h++) {
        pl_cpu_weight_destroy((struct pl_cpu_weight *)(uintptr_t)b->k[h]);
        pl_cpu_weight_destroy((struct pl_cpu_weight *)(uintptr_t)b->v[h]);
        free((void *)(uintptr_t)b->k_t[h].data), free((void *)(uintptr_t)b->v_t[h].data);
    }
}

enum fault { NONE, LAST_LOST, NOT_ROTATED };
static const double scale = 0.3;

static void define(struct bed *b, enum fault f) {
    for (size_t s = 0, row = 0; s < SEQS; s++)
        for (size_t t = 0; t < rows_of[s]; t++, row++)
            for (size_t h = 0; h < H; h++) {
                const float *q = b->q + (row * H + h) * (N + R), *turned = b->qa + (row * H + h) * D + L;
                double score[LONGEST], top = -INFINITY, sum = 0, mix[L] = {0};
                const size_t seen = past_of[s] + t + (f == LAST_LOST && t > 0 ? 0 : 1);
                for (size_t k = 0; k < seen; k++) {
                    const float *c = b->latents[s][k];
                    score[k] = 0;
                    for (size_t i = 0; i < N; i++) score[k] += (double)q[i] * b->key[s][k][h][i];
                    for (size_t i = 0; i < R; i++)
                        score[k] += (double)(f == NOT_ROTATED ? q[N + i] : turned[i]) * (double)c[L + i];
                    top = fmax(top, score[k] *= scale);
                }
                for (size_t k = 0; k < seen; k++) {
                    double e = exp(score[k] - top);
                    sum += e;
                    for (size_t r = 0; r < L; r++) mix[r] += e * (double)b->latents[s][k][r];
                }
                for (size_t i = 0; i < V; i++) {
                    double v = 0;
                    for (size_t r = 0; r < L; r++) v += b->wv[h][i][r] * mix[r] / sum;
                    b->want[(row * H + h) * V + i] = v;
                }
            }
}

static double apart(const struct bed *b, const float *got) {
    double most = 0, top = 0;
    for (size_t i = 0; i < ROWS * H * V; i++) {
        most = fmax(most, isnan(got[i]) ? INFINITY : fabs((double)got[i] - b->want[i]));
        top = fmax(top, fabs(b->want[i]));
    }
    return most / top;
}

static const struct pl_cpu_latent_shape shape = {H, N, R, V, L};

static void run(struct pl_cpu *c, struct bed *b, size_t room, size_t heads, float *out) {
    struct pl_err err = {0};
    const struct pl_cpu_kv kv = {
        .k = b->pool, .v = b->pool, .dtype = b->cache, .page_tokens = PAGE, .kv_heads = 1, .head_dim = D, .value_dim = L};
    const struct pl_cpu_seq seqs[SEQS] = {{0, rows_of[0], past_of[0], b->pages[0]},
                                          {rows_of[0], rows_of[1], past_of[1], b->pages[1]}};
    const struct pl_cpu_latent_attention a = {.seq_count = SEQS,
                                              .seqs = seqs,
                                              .k = b->k,
                                              .v = b->v,
                                              .q = b->q,
                                              .qa = b->qa,
                                              .q_stride = H * (N + R),
                                              .qa_stride = H * D,
                                              .scale = (float)scale,
                                              .kv = &kv,
                                              .out = out,
                                              .out_stride = H * V};
    if (pl_cpu_reserve(c, 48, D, LONGEST, &err) != PL_OK) fail_msg("%s", err.text); /* tokens in turns too */
    assert_true(pl_cpu_expand_reserve(c, &shape, LONGEST, ROWS, room));
    assert_int_equal(pl_cpu_expand_heads(c, LONGEST, rows_of[0]), heads);
    pl_cpu_latent_attention(c, &a);
}

static void one(enum pl_isa isa, enum pl_dtype weights, enum pl_dtype cache) {
    static struct bed b;
    const size_t head = LONGEST * (V + N + R) * sizeof(float);
    struct pl_cpu *single = cpu_make(isa, 1), *three = cpu_make(isa, 3);
    struct guarded out = guarded_make(ROWS * H * V), turns = guarded_make(ROWS * H * V);
    open_bed(&b, single, weights, cache);
    run(single, &b, PL_CPU_EXPAND_ROOM, H, out.x);
    run(three, &b, 2 * head, 2, turns.x); /* two heads, two, one */
    assert_memory_equal(out.x, turns.x, ROWS * H * V * sizeof(float));
    define(&b, NONE);
    double off = apart(&b, out.x);
    if (!(off < 1e-5)) fail_msg("%s, %s, cache %s: %g", pl_isa_name(isa), pl_dtype_name(weights), pl_dtype_name(cache), off);
    for (enum fault f = LAST_LOST; f <= NOT_ROTATED; f++) {
        define(&b, f);
        assert_true(apart(&b, out.x) > 1e-2);
    }
    assert_int_equal(pl_cpu_expand_heads(three, 3 * LONGEST, 1), 0);
    guarded_free(&out), guarded_free(&turns);
    close_bed(&b);
    pl_cpu_destroy(single), pl_cpu_destroy(three);
}

static void keys_of_heads_equal_the_definition(void **unused) {
    (void)unused;
    FOR_EACH_ISA(isa) {
        one(isa, PL_F32, PL_F32);
        one(isa, PL_BF16, PL_F16);
        one(isa, PL_Q8_0, PL_BF16);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(keys_of_heads_equal_the_definition)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
