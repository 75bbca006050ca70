/* Rotation with append, and attention over scattered pages, against src/ref: head sizes 32..576, groups 1..16, pages in
 * random order and shared, windows, softcap, several sequences, prefill and decode.
 *
 * test-variants: release (the kernels are compiled by the OpenCL driver, which no sanitizer sees; the host code they go
 * through is sanitized in tests/device, tests/jit and tests/model)
 * test-timeout: 600 */
#include "kit.h"

#include "ops/cuda_dense.h"
#include "ops/cuda_fast.h"

struct shape {
    size_t heads, kv_heads, head_dim, page_tokens;
    enum pl_dtype kv;
    uint32_t window;
    float softcap;
    bool q_norm, k_norm, halves;
    size_t rope_dim;
};

enum { SEQS = 3, STRIDE = 96, PAGES = 80, POSITIONS = 1024 };
static uint32_t pasts[SEQS] = {0, 37, 70}, lengths[SEQS] = {9, 1, 4};

static float round_kv(enum pl_dtype t, float v) {
    return t == PL_F16 ? pl_f16_to_f32(pl_f32_to_f16(v)) : t == PL_BF16 ? pl_bf16_to_f32(pl_f32_to_bf16(v)) : v;
}
static void pack_kv(enum pl_dtype t, float v, uint8_t *p) {
    uint16_t h = t == PL_F16 ? pl_f32_to_f16(v) : pl_f32_to_bf16(v);
    if (t == PL_F32) memcpy(p, &v, 4);
    if (t != PL_F32) memcpy(p, &h, 2);
}
static float unpack_kv(enum pl_dtype t, const uint8_t *p) {
    uint16_t h;
    float f;
    memcpy(&h, p, 2);
    memcpy(&f, p, 4);
    return t == PL_F32 ? f : t == PL_F16 ? pl_f16_to_f32(h) : pl_bf16_to_f32(h);
}

/* The step record: block tables of scattered pages, three sequences. */
static void make_step(const struct shape *s, uint32_t *step, uint32_t *tables) {
    uint32_t order[PAGES], next = 0, row = 0, entry = 0;
    for (uint32_t i = 0; i < PAGES; i++) order[i] = i;
    for (uint32_t i = PAGES - 1; i > 0; i--) {
        uint32_t j = kit_u32() % (i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    for (uint32_t q = 0; q < SEQS; q++) {
        uint32_t pages = (uint32_t)((pasts[q] + lengths[q] + s->page_tokens - 1) / s->page_tokens);
        tables[q] = entry;
        for (uint32_t r = 0; r < lengths[q]; r++, row++) {
            step[PL_STEP_POSITION(STRIDE) + row] = pasts[q] + r;
            step[PL_STEP_PAGE_FIRST(STRIDE) + row] = entry;
        }
        for (uint32_t p = 0; p < pages; p++) step[PL_STEP_PAGES(STRIDE) + entry++] = order[next++];
        assert_true(next <= PAGES && PL_STEP_PAGES(STRIDE) + entry <= 5 * STRIDE);
    }
}

static uint8_t *token_at(const struct shape *s, uint8_t *pool, const uint32_t *step, uint32_t table, size_t t, size_t g) {
    size_t page = step[PL_STEP_PAGES(STRIDE) + table + t / s->page_tokens];
    size_t at = ((page * s->page_tokens + t % s->page_tokens) * s->kv_heads + g) * s->head_dim;
    return pool + at * pl_dtype_info(s->kv)->block_bytes;
}

static void expect_rope(const struct shape *s, float *x, const float *w, const float *cos_sin, uint32_t position,
                        bool norm) {
    float t[1024];
    if (norm) {
        pl_ref_rmsnorm(x, w, s->head_dim, 1e-6, 1.0, t);
        memcpy(x, t, s->head_dim * 4);
    }
    if (s->rope_dim > 0) pl_ref_rope(x, cos_sin + (size_t)position * s->rope_dim, s->rope_dim, s->halves);
}

/* Rotation, append, attention and merge in one launch: one token a sequence. Twice, so that what it counts parts with is as
 * it was; want, gk and gv: what the launches one by one made. */
static void check_whole(const struct shape *s, const struct pl_launch_rope *rope,
                        const struct pl_launch_attention *attention, const float *q, const uint8_t *hk, const uint8_t *hv,
                        size_t pool, const float *want, const uint8_t *gk, const uint8_t *gv, bool cluster) {
    size_t nq = attention->rows * s->heads * s->head_dim, size = pl_dtype_info(s->kv)->block_bytes;
    struct pl_rope_kind kind = {s->q_norm, s->k_norm, s->rope_dim > 0, s->halves};
    struct pl_kernel k = {0};
    CHECK(pl_kernel_whole(&ks, s->kv, s->head_dim, s->page_tokens, s->heads / s->kv_heads, kind, cluster, &k, &err));
    uint32_t *zeros = calloc(attention->rows * s->heads, sizeof *zeros);
    for (uint32_t splits = cluster ? PL_WHOLE_CLUSTER : 1; splits <= 8; splits *= 2) {
        struct pl_device_buffer bq = kit_up(q, nq * 4), bk = kit_up(hk, pool * size), bv = kit_up(hv, pool * size),
                                out = kit_out(nq * 4), parts = kit_out(nq * 8 * 4),
                                lse = kit_out(attention->rows * s->heads * 8 * 4),
                                arrived = kit_up(zeros, attention->rows * s->heads * 4);
        struct pl_launch_rope r = *rope;
        struct pl_launch_attention a = *attention;
        r.q = a.q = &bq, r.k_pages = a.k_pages = &bk, r.v_pages = a.v_pages = &bv, a.out = &out;
        struct pl_launch_whole l = {&a, &r, splits, &parts, &lse, &arrived};
        CHECK(pl_launch_whole(&ks, &k, &l));
        CHECK(pl_launch_whole(&ks, &k, &l));
        float *got = kit_down(&out);
        uint8_t *pk = kit_down(&bk), *pv = kit_down(&bv);
        uint32_t *left = kit_down(&arrived);
        kit_near("whole attention", got, want, nq, s->kv == PL_F16 ? 2e-3 : 1.6e-2, 0.5);
        assert_memory_equal(left, zeros, attention->rows * s->heads * 4);
        assert_memory_equal(pv, gv, pool * size);
        for (size_t i = 0; i < pool; i++) {
            double a0 = (double)unpack_kv(s->kv, pk + i * size), b0 = (double)unpack_kv(s->kv, gk + i * size);
            assert_true(fabs(a0 - b0) <= (s->kv == PL_BF16 ? 8e-3 : 1e-3) * (fabs(b0) + 0.1));
        }
        free(got), free(pk), free(pv), free(left);
        kit_drop(&bq), kit_drop(&parts), kit_drop(&lse);
    }
    free(zeros);
    pl_kernel_free(&ks, &k);
}

/* The same by warps: pages and q as the launch that r is of has left them, but for the rounding of sums. */
static void check_warps(const struct shape *s, const struct pl_launch_rope *rope, struct pl_rope_kind kind, const float *q,
                        const uint8_t *hk, const uint8_t *hv, size_t nq, size_t pool) {
    size_t size = pl_dtype_info(s->kv)->block_bytes;
    struct pl_kernel k = {0};
    CHECK(pl_kernel_rope_warps(&ks, s->kv, s->head_dim, s->page_tokens, kind, &k, &err));
    struct pl_device_buffer bq = kit_up(q, nq * 4), bk = kit_up(hk, pool * size), bv = kit_up(hv, pool * size);
    struct pl_launch_rope r = *rope;
    r.q = &bq, r.k_pages = &bk, r.v_pages = &bv;
    CHECK(pl_launch_rope(&ks, &k, &r));
    uint8_t *wk = malloc(pool * size), *wv = malloc(pool * size), *pk = kit_down(&bk), *pv = kit_down(&bv);
    float *wq = malloc(nq * 4), *got = kit_down(&bq);
    CHECK(pl_device_download(ks.device, ks.stream, wq, rope->q, 0, nq * 4, &err));
    CHECK(pl_device_download(ks.device, ks.stream, wk, rope->k_pages, 0, pool * size, &err));
    CHECK(pl_device_download(ks.device, ks.stream, wv, rope->v_pages, 0, pool * size, &err));
    CHECK(pl_device_stream_wait(ks.device, ks.stream, &err));
    kit_near("rotated q by warps", got, wq, nq, 3e-6, 0.2);
    assert_memory_equal(pv, wv, pool * size);
    for (size_t i = 0; i < pool; i++) {
        double a = (double)unpack_kv(s->kv, pk + i * size), b = (double)unpack_kv(s->kv, wk + i * size);
        assert_true(fabs(a - b) <= (s->kv == PL_BF16 ? 8e-3 : 1e-3) * (fabs(b) + 0.1));
    }
    free(wk), free(wv), free(pk), free(pv), free(wq), free(got);
    pl_kernel_free(&ks, &k);
}

/* long function: one shape set up, run on the device and compared, read from top to bottom */
static void one(const struct shape *s) {
    size_t rows = 0, D = s->head_dim, size = pl_dtype_info(s->kv)->block_bytes;
    for (int q = 0; q < SEQS; q++) rows += lengths[q];
    size_t nq = rows * s->heads * D, nk = rows * s->kv_heads * D, pool = PAGES * s->page_tokens * s->kv_heads * D;
    uint32_t step[5 * STRIDE] = {0}, tables[SEQS];
    make_step(s, step, tables);
    float *q = kit_random(nq, 1), *k = kit_random(nk, 1), *v = kit_random(nk, 1), *qn = kit_random(D, 1),
          *kn = kit_random(D, 1);
    float *cs = kit_random(POSITIONS * PL_MAX(s->rope_dim, (size_t)2), 1);
    uint8_t *hk = malloc(pool * size), *hv = malloc(pool * size);
    for (size_t i = 0; i < pool; i++) pack_kv(s->kv, kit_f32(), hk + i * size), pack_kv(s->kv, kit_f32(), hv + i * size);
    struct pl_device_buffer bq = kit_up(q, nq * 4), bk = kit_up(k, nk * 4), bv = kit_up(v, nk * 4), bqn = kit_up(qn, D * 4),
                            bkn = kit_up(kn, D * 4), bcs = kit_up(cs, POSITIONS * PL_MAX(s->rope_dim, (size_t)2) * 4),
                            bs = kit_up(step, sizeof step), bhk = kit_up(hk, pool * size), bhv = kit_up(hv, pool * size),
                            bo = kit_out(nq * 4);
    struct pl_kernel rope = {0}, attn = {0};
    struct pl_rope_kind kind = {s->q_norm, s->k_norm, s->rope_dim > 0, s->halves};
    CHECK(pl_kernel_rope(&ks, s->kv, D, s->page_tokens, kind, &rope, &err));
    CHECK(pl_kernel_attention(&ks, s->kv, D, D, s->page_tokens, false, false, &attn, &err));
    struct pl_launch_rope r = {.q = &bq,
                               .k = &bk,
                               .v = &bv,
                               .q_norm = &bqn,
                               .k_norm = &bkn,
                               .cos_sin = &bcs,
                               .step = &bs,
                               .k_pages = &bhk,
                               .v_pages = &bhv,
                               .rows = (uint32_t)rows,
                               .heads = (uint32_t)s->heads,
                               .kv_heads = (uint32_t)s->kv_heads,
                               .rope_dim = (uint32_t)s->rope_dim,
                               .stride = STRIDE,
                               .norm_eps = 1e-6f,
                               .norm_offset = 1.0f};
    CHECK(pl_launch_rope(&ks, &rope, &r));
    if (pl_rope_by_warps(&ks, s->kv, D, kind, s->rope_dim)) check_warps(s, &r, kind, q, hk, hv, nq, pool);
    float scale = 1.0f / sqrtf((float)D);
    struct pl_launch_attention a = {
        &bq,    &bhk,  &bhv,       &bs,  &bo, (uint32_t)rows, (uint32_t)s->heads, (uint32_t)s->kv_heads, s->window,
        STRIDE, scale, s->softcap, NULL, 0};
    CHECK(pl_launch_attention(&ks, &attn, &a));
    struct pl_kernel with_sinks = {0};
    float *sinks = kit_random(s->heads, 4);
    struct pl_device_buffer bsinks = kit_up(sinks, s->heads * 4), bo4 = kit_out(nq * 4);
    struct pl_launch_attention sunk = a;
    sunk.sinks = &bsinks;
    sunk.out = &bo4;
    CHECK(pl_kernel_attention(&ks, s->kv, D, D, s->page_tokens, true, false, &with_sinks, &err));
    CHECK(pl_launch_attention(&ks, &with_sinks, &sunk));
    struct pl_device_buffer bo2[2] = {0}; /* f32 throughout; on tensor cores */
    for (int exact = 0; exact < 2; exact++) {
        struct pl_split_attention split = {0};
        if (pl_split_declines(&ks, s->kv, D, s->heads, s->kv_heads, rows) != NULL) continue;
        CHECK(pl_kernel_split(&ks, s->kv, D, s->page_tokens, s->heads / s->kv_heads, exact == 1, &split, &err));
        uint32_t splits = 1u << kit_u32() % 4;
        struct pl_device_buffer parts = kit_out(nq * 8 * 4), lse = kit_out(rows * s->heads * 8 * 4);
        bo2[exact] = kit_out(nq * 4);
        a.out = &bo2[exact];
        CHECK(pl_launch_split(&ks, &split, &a, splits, &parts, &lse));
        if (splits > 1) CHECK(pl_launch_merge(&ks, &split, &a, splits, &parts, &lse));
        kit_drop(&parts);
        kit_drop(&lse);
        pl_kernel_free(&ks, &split.split);
        pl_kernel_free(&ks, &split.merge);
    }
    struct pl_kernel tiles = {0};
    struct pl_device_buffer bo3 = {0};
    if (pl_tiles_declines(&ks, s->kv, D, s->heads, s->kv_heads) == NULL) { /* the same on tensor cores */
        CHECK(pl_kernel_tiles(&ks, s->kv, D, s->page_tokens,
                              pl_tiles_wide(&ks, s->kv, D, s->page_tokens) ? PL_TILES_WIDE : PL_TILES_PLAIN, &tiles, &err));
        bo3 = kit_out(nq * 4);
        a.out = &bo3;
        for (uint32_t i = 0, at = 0; i < SEQS; at += lengths[i++])
            CHECK(pl_launch_tiles(&ks, &tiles, &a, D, at, lengths[i]));
        pl_kernel_free(&ks, &tiles);
    }
    float *gq = kit_down(&bq), *out = kit_down(&bo), *sunk_out = kit_down(&bo4);
    if (bo3.handle != NULL) { /* q and the weights are rounded to the cache's type */
        float *other = kit_down(&bo3);
        kit_near("tiled attention", other, out, nq, s->kv == PL_F16 ? 2e-3 : 1.6e-2, 0.5);
        free(other);
    }
    for (int exact = 0; exact < 2; exact++) {
        if (bo2[exact].handle == NULL) continue;
        float *other = kit_down(&bo2[exact]);
        if (exact == 1) kit_near("split attention", other, out, nq, 2e-5, 0.05);
        if (exact == 0) kit_near("group attention", other, out, nq, s->kv == PL_F16 ? 2e-3 : 1.6e-2, 0.5);
        free(other);
    }
    uint8_t *gk = kit_down(&bhk), *gv = kit_down(&bhv);
    bool alone = lengths[0] == 1 && lengths[1] == 1 && lengths[2] == 1;
    if (alone && pl_split_declines(&ks, s->kv, D, s->heads, s->kv_heads, rows) == NULL &&
        pl_whole_declines(&ks, kind, D, s->rope_dim, false) == NULL)
        for (int cluster = 0; cluster < (pl_whole_clusters(&ks, D, s->heads / s->kv_heads) ? 2 : 1); cluster++)
            check_whole(s, &r, &a, q, hk, hv, pool, out, gk, gv, cluster == 1);
    /* Expected: rotate and append on the host, then compare the pools, then attention with what the device stored. */
    for (size_t row = 0; row < rows; row++) {
        uint32_t position = step[PL_STEP_POSITION(STRIDE) + row], table = step[PL_STEP_PAGE_FIRST(STRIDE) + row];
        for (size_t h = 0; h < s->heads; h++) expect_rope(s, q + (row * s->heads + h) * D, qn, cs, position, s->q_norm);
        for (size_t g = 0; g < s->kv_heads; g++) {
            float *kr = k + (row * s->kv_heads + g) * D, *vr = v + (row * s->kv_heads + g) * D;
            expect_rope(s, kr, kn, cs, position, s->k_norm);
            uint8_t *pk = token_at(s, hk, step, table, position, g), *pv = token_at(s, hv, step, table, position, g);
            const uint8_t *dk = token_at(s, gk, step, table, position, g);
            for (size_t i = 0; i < D; i++) {
                double off = fabs((double)unpack_kv(s->kv, dk + i * size) - (double)round_kv(s->kv, kr[i]));
                assert_true(off <= (s->kv == PL_BF16 ? 8e-3 : s->kv == PL_F16 ? 1e-3 : 4e-6) * (fabs((double)kr[i]) + 0.1));
                pack_kv(s->kv, vr[i], pv + i * size);
            }
            memcpy(pk, dk, D * size);
        }
    }
    kit_near("rotated q", gq, q, nq, 3e-6, 0.2);
    assert_memory_equal(gk, hk, pool * size); /* nothing but the new tokens changed */
    assert_memory_equal(gv, hv, pool * size);
    size_t row0 = 0;
    for (int i = 0; i < SEQS; i++) {
        size_t tokens = pasts[i] + lengths[i];
        float *ck = malloc(tokens * s->kv_heads * D * 4), *cv = malloc(tokens * s->kv_heads * D * 4),
              *want = kit_random(nq, 0);
        double *scores = malloc(tokens * sizeof *scores);
        for (size_t t = 0; t < tokens; t++) {
            for (size_t e = 0; e < s->kv_heads * D; e++) {
                ck[t * s->kv_heads * D + e] = unpack_kv(s->kv, token_at(s, gk, step, tables[i], t, 0) + e * size);
                cv[t * s->kv_heads * D + e] = unpack_kv(s->kv, token_at(s, gv, step, tables[i], t, 0) + e * size);
            }
        }
        struct pl_ref_attention ref = {lengths[i],
                                       pasts[i],
                                       s->heads,
                                       s->kv_heads,
                                       D,
                                       s->window,
                                       (double)scale,
                                       (double)s->softcap,
                                       gq + row0 * s->heads * D,
                                       ck,
                                       cv,
                                       s->heads * D,
                                       want,
                                       s->heads * D,
                                       NULL};
        pl_ref_attention(&ref, scores);
        kit_near("attention", out + row0 * s->heads * D, want, lengths[i] * s->heads * D, 2e-5, 0.05);
        ref.sinks = sinks;
        pl_ref_attention(&ref, scores);
        kit_near("attention with sinks", sunk_out + row0 * s->heads * D, want, lengths[i] * s->heads * D, 2e-5, 0.05);
        row0 += lengths[i];
        free(ck), free(cv), free(want), free(scores);
    }
    kit_drop(&bk), kit_drop(&bv), kit_drop(&bqn), kit_drop(&bkn), kit_drop(&bcs), kit_drop(&bs);
    free(q), free(k), free(v), free(qn), free(kn), free(cs), free(hk), free(hv), free(gq), free(gk), free(gv), free(out),
        free(sinks), free(sunk_out);
    kit_drop(&bsinks);
    pl_kernel_free(&ks, &with_sinks);
    pl_kernel_free(&ks, &rope);
    pl_kernel_free(&ks, &attn);
}

static void all_shapes(void) {
    static const struct shape shapes[] = {
        {4, 2, 32, 16, PL_F32, 0, 0, false, false, true, 32},    {3, 3, 64, 16, PL_F16, 0, 0, false, false, false, 64},
        {9, 3, 64, 32, PL_F16, 0, 0, false, false, true, 64},    {16, 1, 64, 32, PL_BF16, 20, 0, false, false, true, 32},
        {4, 1, 256, 32, PL_F16, 16, 0, true, true, true, 256},   {8, 4, 80, 16, PL_F32, 0, 30, false, true, true, 20},
        {5, 1, 96, 64, PL_BF16, 0, 50, true, false, false, 96},  {14, 2, 128, 32, PL_F16, 1, 0, false, false, true, 0},
        {2, 1, 576, 16, PL_F32, 0, 0, false, false, true, 64},   {12, 1, 40, 2, PL_F32, 0, 0, false, false, true, 40},
        {7, 1, 33, 7, PL_F16, 5, 0, false, false, false, 32},    {6, 2, 112, 32, PL_BF16, 0, 0, false, false, true, 56},
        {4, 4, 160, 16, PL_F16, 0, 0, true, true, false, 160},   {6, 3, 192, 16, PL_F32, 40, 0, false, false, true, 128},
        {4, 2, 512, 16, PL_BF16, 0, 20, false, false, true, 128}};
    for (size_t i = 0; i < PL_COUNT_OF(shapes); i++) {
        if (shapes[i].page_tokens * PAGES < 90) continue; /* the table would not fit its record */
        if (test_small() && i % 4 != 1) continue;
        one(&shapes[i]);
    }
}
static void groups(void) {
    for (size_t g = 1; g <= 16; g += test_small() ? 7 : 1) {
        struct shape s = {g, 1, 64, 32, PL_F16, 0, 0, false, false, true, 64};
        one(&s);
    }
}

/* Decode: one token of each sequence, the first of a page and of a sequence among them. */
static void one_token_each(void) {
    static const struct shape shapes[] = {
        {8, 2, 128, 32, PL_F16, 0, 0, false, false, true, 128},  {32, 8, 128, 32, PL_F16, 0, 0, false, false, false, 128},
        {16, 8, 128, 16, PL_BF16, 0, 0, true, true, true, 128},  {9, 3, 64, 32, PL_F16, 0, 0, false, true, true, 64},
        {16, 1, 64, 32, PL_BF16, 20, 0, true, false, false, 64}, {4, 1, 256, 32, PL_F16, 16, 30, true, true, true, 256},
        {4, 2, 256, 64, PL_F16, 0, 0, false, false, false, 256}, {14, 2, 128, 32, PL_F16, 1, 0, false, false, true, 0},
        {16, 2, 128, 32, PL_F16, 0, 0, true, true, true, 128}};
    uint32_t past1[SEQS], length1[SEQS];
    memcpy(past1, pasts, sizeof pasts);
    memcpy(length1, lengths, sizeof lengths);
    for (uint32_t i = 0; i < SEQS; i++) lengths[i] = 1;
    pasts[1] = 64;
    for (size_t i = 0; i < PL_COUNT_OF(shapes); i++) one(&shapes[i]);
    pasts[0] = 600, pasts[1] = 127, pasts[2] = 300; /* several parts of 64 and of 128 tokens */
    for (size_t i = 0; i < PL_COUNT_OF(shapes) && !test_small(); i++) one(&shapes[i]);
    memcpy(pasts, past1, sizeof pasts);
    memcpy(lengths, length1, sizeof lengths);
}

/* More than one tile of rows and of tokens. */
static void long_sequences(void) {
    static const uint32_t past2[SEQS] = {10, 0, 75}, length2[SEQS] = {80, 11, 5};
    uint32_t past1[SEQS], length1[SEQS];
    memcpy(past1, pasts, sizeof pasts), memcpy(length1, lengths, sizeof lengths);
    memcpy(pasts, past2, sizeof pasts), memcpy(lengths, length2, sizeof lengths);
    static const struct shape shapes[] = {{6, 2, 64, 16, PL_F16, 0, 0, false, false, true, 64},
                                          {4, 2, 128, 32, PL_F16, 0, 20, false, false, true, 128},
                                          {4, 1, 128, 16, PL_BF16, 33, 0, false, false, true, 64}};
    for (size_t i = 0; i < (test_small() ? 1 : PL_COUNT_OF(shapes)); i++) one(&shapes[i]);
    memcpy(pasts, past1, sizeof pasts), memcpy(lengths, length1, sizeof lengths);
}

/* Many rows of one sequence among rows of others, more tiles of tokens than stand in shared memory at once: both kernels on
 * tensor cores. */
struct many {
    uint32_t past, rows, row0, heads, kv_heads, page_tokens, window;
    enum pl_dtype kv;
    float softcap;
};
static void many_one(const struct many *m) {
    enum { D = 128, AFTER = 3 };
    const uint32_t stride = m->row0 + m->rows + AFTER, tokens = m->past + m->rows;
    const uint32_t pages = (tokens + m->page_tokens - 1) / m->page_tokens, first = 2;
    const uint32_t pool_pages = pages + ((pages + 5) % 7 == 0 ? 6 : 5); /* no multiple of 7: pages do not meet */
    size_t nq = (size_t)stride * m->heads * D, pool = (size_t)pool_pages * m->page_tokens * m->kv_heads * D;
    uint32_t words = PL_STEP_PAGES(stride) + first + pages, *step = calloc(words, sizeof *step);
    float *q = kit_random(nq, 2), *ck = malloc((size_t)tokens * m->kv_heads * D * 4),
          *cv = malloc((size_t)tokens * m->kv_heads * D * 4), *want = malloc(nq * 4);
    uint8_t *hk = malloc(pool * 2), *hv = malloc(pool * 2);
    double *scores = malloc(tokens * sizeof *scores);
    memset(hk, 0xFF, pool * 2), memset(hv, 0xFF, pool * 2); /* NaN where nothing was cached */
    for (uint32_t r = 0; r < m->rows; r++) {
        step[PL_STEP_POSITION(stride) + m->row0 + r] = m->past + r;
        step[PL_STEP_PAGE_FIRST(stride) + m->row0 + r] = first;
    }
    for (uint32_t i = 0; i < pages; i++) step[PL_STEP_PAGES(stride) + first + i] = (i * 7 + 3) % pool_pages;
    for (uint32_t t = 0; t < tokens; t++) {
        size_t page = step[PL_STEP_PAGES(stride) + first + t / m->page_tokens];
        for (size_t e = 0; e < (size_t)m->kv_heads * D; e++) {
            size_t to = (page * m->page_tokens + t % m->page_tokens) * m->kv_heads * D + e,
                   from = (size_t)t * m->kv_heads * D + e;
            pack_kv(m->kv, kit_f32(), hk + 2 * to), pack_kv(m->kv, kit_f32(), hv + 2 * to);
            ck[from] = unpack_kv(m->kv, hk + 2 * to), cv[from] = unpack_kv(m->kv, hv + 2 * to);
        }
    }
    const float scale = 1.0f / sqrtf((float)D);
    const struct pl_ref_attention ref = {m->rows,
                                         m->past,
                                         m->heads,
                                         m->kv_heads,
                                         D,
                                         m->window,
                                         (double)scale,
                                         (double)m->softcap,
                                         q + (size_t)m->row0 * m->heads * D,
                                         ck,
                                         cv,
                                         (size_t)m->heads * D,
                                         want,
                                         (size_t)m->heads * D,
                                         NULL};
    pl_ref_attention(&ref, scores);
    struct pl_device_buffer bq = kit_up(q, nq * 4), bs = kit_up(step, words * 4), bk = kit_up(hk, pool * 2),
                            bv = kit_up(hv, pool * 2);
    for (enum pl_tiles which = PL_TILES_PLAIN; which < PL_TILES_COUNT; which++) {
        struct pl_kernel k = {0};
        const size_t row = (size_t)m->heads * D, begin = m->row0 * row, n = m->rows * row,
                     size = which == PL_TILES_HALF ? 2 : 4;
        uint8_t *first_time = NULL;
        if (pl_tiles_declines(&ks, m->kv, D, m->heads, m->kv_heads) != NULL) continue;
        if (which != PL_TILES_PLAIN && !pl_tiles_wide(&ks, m->kv, D, m->page_tokens)) continue;
        CHECK(pl_kernel_tiles(&ks, m->kv, D, m->page_tokens, which, &k, &err));
        for (int again = 0; again < 2; again++) {
            struct pl_device_buffer bo = kit_out(nq * size);
            const struct pl_launch_attention a = {&bq,         &bk,       &bv,    &bs,   &bo,        stride, m->heads,
                                                  m->kv_heads, m->window, stride, scale, m->softcap, NULL,   0};
            CHECK(pl_launch_tiles(&ks, &k, &a, D, m->row0, m->rows));
            uint8_t *got = kit_down(&bo);
            for (size_t i = 0; i < nq * size; i++)
                if (i < begin * size || i >= (begin + n) * size)
                    assert_int_equal(got[i], 0xFF); /* other rows are nobody's */
            float *values = malloc(n * 4);
            for (size_t i = 0; i < n; i++)
                values[i] =
                    size == 2 ? pl_bf16_to_f32(((uint16_t *)(void *)got)[begin + i]) : ((float *)(void *)got)[begin + i];
            kit_near("many rows on tensor cores", values, want, n,
                     (m->kv == PL_F16 ? 2e-3 : 1.6e-2) + (size == 2 ? 4e-3 : 0), 0.5);
            if (again == 1) assert_memory_equal(got, first_time, nq * size); /* bitwise repeatable */
            free(values), free(first_time);
            first_time = got;
        }
        free(first_time);
        pl_kernel_free(&ks, &k);
    }
    kit_drop(&bq), kit_drop(&bs), kit_drop(&bk), kit_drop(&bv);
    free(step), free(q), free(ck), free(cv), free(want), free(hk), free(hv), free(scores);
}
static void many_rows(void) {
    static const struct many cases[] = {/* few kinds of pages: each is three kernels to compile */
                                        {0, 300, 0, 2, 1, 32, 0, PL_F16, 0},     {0, 128, 0, 2, 2, 16, 0, PL_BF16, 0},
                                        {5, 65, 3, 4, 1, 32, 0, PL_F16, 0},      {513, 257, 2, 2, 1, 32, 0, PL_F16, 0},
                                        {900, 64, 1, 3, 1, 16, 0, PL_BF16, 30},  {37, 700, 0, 1, 1, 64, 0, PL_F16, 0},
                                        {300, 500, 4, 2, 1, 32, 200, PL_F16, 0}, {64, 192, 0, 4, 2, 16, 33, PL_BF16, 0},
                                        {1, 1, 0, 2, 1, 32, 0, PL_F16, 0},       {0, 1023, 0, 1, 1, 16, 0, PL_BF16, 20},
                                        {127, 129, 0, 2, 1, 32, 128, PL_F16, 0}, {0, 16, 5, 8, 1, 32, 1, PL_F16, 0}};
    if (pl_device_info(ks.device)->kind != PL_DEVICE_CUDA) return;
    for (size_t i = 0; i < PL_COUNT_OF(cases); i++) /* small: one kind of pages, the ring once round, a window */
        if (!test_small() || i == 0 || i == 3 || i == 10) many_one(&cases[i]);
}
static void test_many(void **state) {
    (void)state;
    kit_each(many_rows);
}

static void test_long(void **state) {
    (void)state;
    kit_each(long_sequences);
}
static void test_one_each(void **state) {
    (void)state;
    kit_each(one_token_each);
}
static void test_shapes(void **state) {
    (void)state;
    kit_each(all_shapes);
}
static void test_groups(void **state) {
    (void)state;
    kit_each(groups);
}

int main(void) {
    struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_groups), cmocka_unit_test(test_long),
                                 cmocka_unit_test(test_one_each), cmocka_unit_test(test_many)};
    return TEST_RUN("rope and attention", tests);
}
