/* Rotary embedding, cache append and paged attention of every table against src/ref: head sizes 32..576, groups 1..16,
 * page sizes 6 to 64 with permuted pages, f16, bf16 and f32 caches, windows, soft-caps, several sequences, threads. */
#include "tests/cpu/support.h"

struct setup {
    size_t d, g, r, page, window;
    enum pl_dtype dtype;
    float softcap;
    size_t seqs;
    struct {
        size_t past, rows;
    } seq[3];
    bool q_norm, halves;
};

struct world {
    struct setup p;
    struct pl_cpu_kv kv;
    struct pl_cpu_seq seqs[3];
    uint32_t *pages[3];
    size_t rows, page_count, cap;
    float *cos_sin, *norm;
    float *hist_k[3], *hist_v[3]; /* all tokens of each sequence, before norm and rotation: [tokens, G*D] */
    float *q;                     /* rows of this step */
};

static float rounded(enum pl_dtype t, float x) {
    return t == PL_F32 ? x : t == PL_F16 ? pl_f16_to_f32(pl_f32_to_f16(x)) : pl_bf16_to_f32(pl_f32_to_bf16(x));
}
static size_t elem(enum pl_dtype t) { return t == PL_F32 ? 4 : 2; }

static void world_pages(struct world *w, uint64_t *s) {
    w->page_count = 3;
    for (size_t i = 0; i < w->p.seqs; i++) w->page_count += (w->p.seq[i].past + w->p.seq[i].rows) / w->p.page + 1;
    uint32_t *perm = malloc(w->page_count * sizeof *perm), used = 0;
    for (size_t i = 0; i < w->page_count; i++) perm[i] = (uint32_t)i;
    for (size_t i = w->page_count - 1; i > 0; i--) {
        size_t j = rng_next(s) % (i + 1);
        uint32_t t = perm[i];
        perm[i] = perm[j], perm[j] = t;
    }
    for (size_t i = 0; i < w->p.seqs; i++) {
        size_t n = (w->p.seq[i].past + w->p.seq[i].rows) / w->p.page + 1;
        w->pages[i] = malloc(n * sizeof(uint32_t));
        for (size_t j = 0; j < n; j++) w->pages[i][j] = perm[used++];
    }
    free(perm);
}

static struct world world_make(const struct setup *p) {
    struct world w = {.p = *p};
    uint64_t s = 77 + p->d * 131 + p->r * 7 + p->page;
    world_pages(&w, &s);
    size_t total = w.page_count * p->page * p->g * p->d, longest = 0;
    w.kv =
        (struct pl_cpu_kv){malloc(total * elem(p->dtype)), malloc(total * elem(p->dtype)), p->dtype, p->page, p->g, p->d, 0};
    memset(w.kv.k, 0xFF, total * elem(p->dtype)); /* NaN in all three types: what was not written must not be read */
    memset(w.kv.v, 0xFF, total * elem(p->dtype));
    for (size_t i = 0; i < p->seqs; i++) {
        size_t n = p->seq[i].past + p->seq[i].rows;
        longest = PL_MAX(longest, n);
        w.seqs[i] = (struct pl_cpu_seq){w.rows, p->seq[i].rows, p->seq[i].past, w.pages[i]};
        w.rows += p->seq[i].rows;
        w.hist_k[i] = malloc(n * p->g * p->d * sizeof(float));
        w.hist_v[i] = malloc(n * p->g * p->d * sizeof(float));
        rng_fill(&s, w.hist_k[i], n * p->g * p->d);
        rng_fill(&s, w.hist_v[i], n * p->g * p->d);
    }
    w.cap = longest;
    w.q = malloc(w.rows * p->g * p->r * p->d * sizeof(float));
    rng_fill(&s, w.q, w.rows * p->g * p->r * p->d);
    w.norm = malloc(p->d * sizeof(float));
    rng_fill(&s, w.norm, p->d);
    w.cos_sin = malloc(longest * p->d * sizeof(float));
    for (size_t i = 0; i < longest; i++)
        for (size_t j = 0; j < p->d / 2; j++) {
            double a = (double)i * pow(10000.0, -2.0 * (double)j / (double)p->d);
            w.cos_sin[i * p->d + 2 * j] = (float)cos(a);
            w.cos_sin[i * p->d + 2 * j + 1] = (float)sin(a);
        }
    return w;
}
static void world_free(struct world *w) {
    for (size_t i = 0; i < w->p.seqs; i++) free(w->pages[i]), free(w->hist_k[i]), free(w->hist_v[i]);
    free(w->kv.k), free(w->kv.v), free(w->q), free(w->norm), free(w->cos_sin);
}

/* Appends rows [first, first+n) of sequence i with its q rows (or scratch rows for the past). */
static void append(struct pl_cpu *c, struct world *w, size_t i, size_t past, size_t n, float *q, size_t first_row) {
    struct pl_cpu_seq s = {first_row, n, past, w->pages[i]};
    size_t gd = w->p.g * w->p.d;
    struct pl_cpu_rope_append a = {1,
                                   &s,
                                   w->p.g * w->p.r,
                                   q,
                                   w->hist_k[i] + past * gd - first_row * gd,
                                   w->hist_v[i] + past * gd - first_row * gd,
                                   gd * w->p.r,
                                   gd,
                                   gd,
                                   w->p.q_norm ? w->norm : NULL,
                                   w->p.q_norm ? w->norm : NULL,
                                   1e-6f,
                                   1.0f,
                                   w->cos_sin,
                                   w->p.d,
                                   w->p.halves,
                                   &w->kv};
    pl_cpu_rope_append(c, &a);
}

static void prepared(const struct world *w, float *x, size_t pos) {
    if (w->p.q_norm) pl_ref_rmsnorm(x, w->norm, w->p.d, 1e-6, 1.0, x);
    pl_ref_rope(x, w->cos_sin + pos * w->p.d, w->p.d, w->p.halves);
}

static void fill_cache(struct pl_cpu *c, struct world *w, float *q) {
    size_t width = w->p.g * w->p.r * w->p.d;
    for (size_t i = 0; i < w->p.seqs; i++) {
        float *junk = malloc((w->p.seq[i].past + 1) * width * sizeof *junk);
        memset(junk, 0, (w->p.seq[i].past + 1) * width * sizeof *junk);
        append(c, w, i, 0, w->p.seq[i].past, junk, 0);
        append(c, w, i, w->p.seq[i].past, w->p.seq[i].rows, q, w->seqs[i].first_row);
        free(junk);
    }
}

/* Every other setup has a sink for each head: from hardly there to taking nearly everything. */
static const float *sinks_of(const struct world *w) {
    static float sinks[64];
    for (size_t i = 0; i < PL_COUNT_OF(sinks); i++) sinks[i] = (float)i * 0.9f - 6.0f;
    return w->p.r % 2 == 1 ? sinks : NULL;
}
static void attend(struct pl_cpu *c, struct world *w, const float *q, float *out) {
    size_t width = w->p.g * w->p.r * w->p.d;
    struct pl_cpu_attention a = {w->p.seqs,    w->seqs,     w->p.g * w->p.r, q,   width, 0.3f / sqrtf((float)w->p.d),
                                 w->p.softcap, w->p.window, &w->kv,          out, width, sinks_of(w),
                                 NULL};
    PL_ASSERT(w->p.g * w->p.r <= 64);
    pl_cpu_attention(c, &a);
}

/* What the cache holds of a sequence, as f32 [tokens, G*D]; checks it against norm + rotation of the history. */
static float *cache_read(const struct world *w, size_t i, bool keys) {
    size_t n = w->p.seq[i].past + w->p.seq[i].rows, gd = w->p.g * w->p.d;
    float *x = malloc(n * gd * sizeof *x), *want = malloc(w->p.d * sizeof *want);
    const void *side = keys ? w->kv.k : w->kv.v;
    for (size_t t = 0; t < n; t++)
        for (size_t g = 0; g < w->p.g; g++) {
            size_t at = (((size_t)w->pages[i][t / w->p.page] * w->p.page + t % w->p.page) * w->p.g + g) * w->p.d;
            memcpy(want, (keys ? w->hist_k : w->hist_v)[i] + t * gd + g * w->p.d, w->p.d * sizeof *want);
            if (keys) prepared(w, want, t);
            double step = w->p.dtype == PL_F32 ? 0 : w->p.dtype == PL_F16 ? 0x1p-11 : 0x1p-8;
            for (size_t d = 0; d < w->p.d; d++) {
                const uint16_t *h = side;
                float v = w->p.dtype == PL_F32   ? ((const float *)side)[at + d]
                          : w->p.dtype == PL_F16 ? pl_f16_to_f32(h[at + d])
                                                 : pl_bf16_to_f32(h[at + d]);
                if (!keys) assert_true(v == rounded(w->p.dtype, want[d]));
                check_close("cache", v, (double)want[d], TOL_ROPE + step, 1e-5);
                x[t * gd + g * w->p.d + d] = v;
            }
        }
    free(want);
    return x;
}

static void compare(struct world *w, const float *q, const float *out, const float *q_before) {
    size_t width = w->p.g * w->p.r * w->p.d;
    for (size_t i = 0; i < w->p.seqs; i++) {
        size_t n = w->p.seq[i].past + w->p.seq[i].rows, rows = w->p.seq[i].rows;
        float *k = cache_read(w, i, true), *v = cache_read(w, i, false), *want = malloc(rows * width * sizeof *want),
              top = 0;
        float *head = malloc(w->p.d * sizeof *head);
        double *scores = malloc(n * sizeof *scores);
        const float *sq = q + w->seqs[i].first_row * width;
        for (size_t r = 0; r < rows; r++)
            for (size_t h = 0; h < w->p.g * w->p.r; h++) {
                memcpy(head, q_before + (w->seqs[i].first_row + r) * width + h * w->p.d, w->p.d * sizeof *head);
                prepared(w, head, w->p.seq[i].past + r);
                for (size_t d = 0; d < w->p.d; d++)
                    check_close("q", sq[r * width + h * w->p.d + d], (double)head[d], TOL_ROPE, 1e-5);
            }
        for (size_t j = 0; j < n * w->p.g * w->p.d; j++) top = fmaxf(top, fabsf(v[j]));
        struct pl_ref_attention a = {rows,
                                     w->p.seq[i].past,
                                     w->p.g * w->p.r,
                                     w->p.g,
                                     w->p.d,
                                     w->p.window,
                                     (double)(0.3f / sqrtf((float)w->p.d)),
                                     (double)w->p.softcap,
                                     sq,
                                     k,
                                     v,
                                     width,
                                     want,
                                     width,
                                     sinks_of(w)};
        pl_ref_attention(&a, scores);
        for (size_t j = 0; j < rows * width; j++)
            check_close("attention", out[w->seqs[i].first_row * width + j], (double)want[j], 0, TOL_ATTENTION * (double)top);
        free(k), free(v), free(want), free(scores), free(head);
    }
}

static void run_setup(const struct setup *p) {
    FOR_EACH_ISA(isa) {
        struct world w = world_make(p);
        size_t n = w.rows * p->g * p->r * p->d;
        struct guarded first = guarded_make(n);
        for (int threads = 1; threads <= 3; threads++) {
            struct pl_cpu *c = cpu_make(isa, threads);
            struct pl_err err = {0};
            assert_int_equal(pl_cpu_reserve(c, w.rows, 64, w.cap, &err), PL_OK);
            struct guarded q = guarded_make(n), out = guarded_make(n);
            memcpy(q.x, w.q, n * sizeof(float));
            fill_cache(c, &w, q.x);
            attend(c, &w, q.x, out.x);
            if (threads == 1) {
                compare(&w, q.x, out.x, w.q);
                memcpy(first.x, out.x, n * sizeof(float));
            }
            assert_memory_equal(first.x, out.x, n * sizeof(float));
            guarded_free(&q), guarded_free(&out);
            pl_cpu_destroy(c);
        }
        guarded_free(&first);
        world_free(&w);
    }
}

static void head_and_group_sizes(void **state) {
    (void)state;
    const size_t heads[] = {32, 40, 64, 72, 80, 96, 112, 128, 160, 192, 256, 576};
    const enum pl_dtype types[] = {PL_F16, PL_BF16, PL_F32};
    for (size_t i = 0; i < PL_COUNT_OF(heads); i++)
        for (size_t r = 1; r <= 16; r += heads[i] == 64 ? 1 : 5) {
            struct setup p = {heads[i],           1 + i % 3, r, (size_t)16 << (i + r) % 3, 0,
                              types[(i + r) % 3], 0,         2, {{37 + i, 1}, {5, 3}},     r % 2 == 0,
                              i % 2 == 0};
            run_setup(&p);
        }
}

static void long_contexts_windows_and_caps(void **state) {
    (void)state;
    const struct setup cases[] = {
        {64, 1, 3, 16, 0, PL_F16, 0, 1, {{0, 1}}, false, true},
        {64, 1, 3, 16, 0, PL_F16, 0, 1, {{127, 1}}, false, true},
        {64, 2, 3, 32, 0, PL_F16, 0, 1, {{128, 1}}, false, true},
        {64, 1, 4, 32, 0, PL_F16, 0, 1, {{700, 1}}, false, true},
        {64, 1, 4, 64, 0, PL_F16, 50, 1, {{0, 300}}, true, false},
        {64, 2, 1, 16, 100, PL_F16, 0, 1, {{0, 290}}, false, true},
        {64, 1, 4, 16, 33, PL_BF16, 20, 2, {{500, 70}, {600, 1}}, true, true},
        {32, 1, 40, 16, 0, PL_F32, 0, 1, {{200, 5}}, false, true},
        {128, 2, 4, 64, 512, PL_F16, 0, 3, {{1100, 1}, {130, 1}, {1, 1}}, false, true},
        {64, 3, 1, 16, 1, PL_F16, 0, 1, {{260, 4}}, false, false},
        {80, 2, 3, 6, 0, PL_F16, 0, 2, {{300, 1}, {11, 2}}, false, false}, /* pages end within groups of tokens */
        {72, 3, 2, 10, 45, PL_BF16, 0, 1, {{133, 1}}, false, true},
    };
    for (size_t i = 0; i < PL_COUNT_OF(cases); i++) run_setup(&cases[i]);
}

/* Prefill in one step, in pieces, and token by token: the same bits. Later tokens change nothing. */
static void causal_and_independent_of_chunking(void **state) {
    (void)state;
    const size_t total = 201, steps[] = {201, 64, 7, 1};
    FOR_EACH_ISA(isa) {
        float *first = NULL;
        for (size_t k = 0; k < 2 * PL_COUNT_OF(steps); k++) {
            struct setup p = {64, 2, 3, 16, k < 4 ? 0 : 50, PL_F16, 0, 1, {{0, total}}, false, true};
            struct world w = world_make(&p);
            struct pl_cpu *c = cpu_make(isa, 2);
            size_t width = 6 * 64;
            float *q = malloc(total * width * sizeof *q), *out = malloc(total * width * sizeof *out);
            memcpy(q, w.q, total * width * sizeof *q);
            if (k % 4 == 1) /* the future differs while the past is computed: only its last piece may see it */
                for (size_t j = 0; j < 100; j++) w.hist_k[0][200 * 128 + j] += 0.0f;
            for (size_t at = 0; at < total; at += steps[k % 4]) {
                size_t n = PL_MIN(steps[k % 4], total - at);
                append(c, &w, 0, at, n, q, at);
                struct pl_cpu_seq s = {at, n, at, w.pages[0]};
                struct pl_cpu_attention a = {1, &s, 6, q, width, 0.125f, 0, p.window, &w.kv, out, width, NULL, NULL};
                pl_cpu_attention(c, &a);
            }
            if (k % 4 == 0) {
                free(first);
                first = out;
            } else {
                assert_memory_equal(first, out, total * width * sizeof *out);
                free(out);
            }
            free(q);
            pl_cpu_destroy(c);
            world_free(&w);
        }
        free(first);
    }
}

static void future_tokens_change_nothing(void **state) {
    (void)state;
    FOR_EACH_ISA(isa) {
        struct setup p = {64, 1, 3, 16, 0, PL_F16, 0, 1, {{0, 150}}, false, true};
        struct world w = world_make(&p);
        struct pl_cpu *c = cpu_make(isa, 2);
        size_t width = 3 * 64, n = 150 * width;
        float *q = malloc(n * sizeof *q), *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b);
        memcpy(q, w.q, n * sizeof *q);
        fill_cache(c, &w, q);
        attend(c, &w, q, a);
        for (size_t i = 0; i < 64; i++) {
            w.hist_k[0][100 * 64 + i] = 100.0f;
            w.hist_v[0][100 * 64 + i] = INFINITY;
        }
        memcpy(q, w.q, n * sizeof *q);
        fill_cache(c, &w, q);
        attend(c, &w, q, b);
        assert_memory_equal(a, b, 100 * width * sizeof *a);
        assert_true(memcmp(a + 100 * width, b + 100 * width, width * sizeof *a) != 0);
        free(q), free(a), free(b);
        pl_cpu_destroy(c);
        world_free(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_and_group_sizes),
        cmocka_unit_test(long_contexts_windows_and_caps),
        cmocka_unit_test(causal_and_independent_of_chunking),
        cmocka_unit_test(future_tokens_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
