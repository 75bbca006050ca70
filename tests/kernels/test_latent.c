/* Latent attention's own kernels on every device present, against src/ref: products of each head with weights of every kind,
 * one row and many, and the append of keys; what lies between heads stays as it was. A wrong head, row or angle is seen.
 * Attention by keys and values of each head, made from the latents chunk by chunk; a row that sees one token too few is
 * seen. In bf16 it is told in two: the keys and values that the device made, then attention over those.
 *
 * test-variants: release (the kernels are compiled by the OpenCL driver, which no sanitizer sees; the host code they go
 * through is sanitized in tests/model) */
#include "made.h"

#include "ops/expand.h"
#include "ops/latent.h"

struct product {
    enum pl_dtype dtype;
    size_t heads, rows, in, out, x_head, y_head;
};

static void one_product(const struct product *p, bool tiled) {
    struct made m = make_tensor(p->dtype, p->heads * p->out, p->in, 4, 32, PL_F16);
    struct pl_device_weight w = upload(&m);
    size_t nx = p->rows * p->heads * p->x_head, ny = p->rows * p->heads * p->y_head;
    float *x = kit_random(nx, 1), *want = kit_random(ny, 2), *row = kit_random(p->in, 1);
    double *size = calloc(ny, sizeof *size); /* of the terms of each sum; 0: nothing is written */
    assert_non_null(size);
    struct pl_device_buffer bx = kit_up(x, nx * 4), by = kit_up(want, ny * 4);
    uint32_t tile_rows, tile = pl_tile_of(p->rows, &tile_rows);
    if (tiled) tile = PL_HEADS_TILE, tile_rows = PL_HEADS_TILE_ROWS;
    struct pl_kernel k = {0};
    CHECK(pl_kernel_heads(&ks, &w, tile, &k, &err));
    const struct pl_launch_heads l = {&w, &bx, &by, p->heads, p->rows, p->x_head, p->y_head};
    CHECK(pl_launch_heads(&ks, &k, &l, tile_rows));
    for (size_t h = 0; h < p->heads; h++) {
        struct pl_tensor t = m.t;
        t.shape[0] = p->out;
        t.bytes = m.t.bytes / p->heads;
        t.data = (const char *)m.t.data + h * t.bytes;
        if (p->dtype == PL_MLX) {
            size_t scales = p->out * (p->in / m.t.group) * pl_dtype_info(m.t.scale_dtype)->block_bytes;
            t.scales = (const char *)m.t.scales + h * scales;
            t.biases = (const char *)m.t.biases + h * scales;
        }
        for (size_t r = 0; r < p->rows; r++) {
            size_t at = r * p->heads + h;
            CHECK(pl_ref_matmul(&t, NULL, x + at * p->x_head, 0, 1, false, want + at * p->y_head, 0, size + at * p->y_head,
                                row));
        }
    }
    float *got = kit_down(&by);
    for (size_t i = 0; i < ny; i++) {
        if (fabs((double)got[i] - (double)want[i]) > 2e-6 * size[i])
            fail_msg("element %zu is %g, expected %g", i, (double)got[i], (double)want[i]);
    }
    size_t other = p->heads > 1 ? p->y_head : 0; /* negative control: the next head's answer is another one */
    assert_true(other == 0 || fabsf(got[0] - want[other]) > 1e-4f);
    kit_drop(&bx);
    made_free(&m, &w);
    free(x), free(want), free(row), free(got), free(size);
    pl_kernel_free(&ks, &k);
}

static void products(void) {
    static const struct product list[] = {{PL_F16, 16, 1, 128, 512, 192, 576}, {PL_BF16, 4, 3, 512, 128, 512, 128},
                                          {PL_F32, 3, 9, 33, 7, 40, 9},        {PL_Q8_0, 4, 2, 512, 24, 512, 24},
                                          {PL_Q4_K, 2, 5, 512, 16, 512, 16},   {PL_MLX, 3, 17, 64, 24, 64, 30},
                                          {PL_BF16, 2, 70, 128, 130, 192, 576}};
    for (size_t i = 0; i < PL_COUNT_OF(list); i++) one_product(&list[i], false), one_product(&list[i], true);
}

enum { PAGES = 9, STEP_STRIDE = 8 };
struct append {
    enum pl_dtype kv;
    size_t heads, rows, page, c, dim, q_head;
    bool halves;
};

static float unpack(enum pl_dtype t, const void *p, size_t i) {
    if (t == PL_F32) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return t == PL_F16 ? pl_f16_to_f32(h) : pl_bf16_to_f32(h);
}

static void one_append(const struct append *a) {
    size_t D = a->c + a->dim, size = pl_dtype_info(a->kv)->block_bytes, n = PAGES * a->page * D;
    size_t nq = a->rows * a->heads * a->q_head, na = a->rows * a->heads * D, past = a->page + 1;
    float *q = kit_random(nq, 1), *latent = kit_random(a->rows * D, 2), *qa = kit_random(na, 1), *norm = kit_random(a->c, 1);
    float *angles = kit_random((past + a->rows) * a->dim, 1), *key = kit_random(D, 0);
    uint32_t step[4 * STEP_STRIDE + 4] = {0};
    static const uint32_t table[] = {7, 2, 5, 4};
    memcpy(step + PL_STEP_PAGES(STEP_STRIDE), table, sizeof table);
    for (size_t r = 0; r < a->rows; r++) step[PL_STEP_POSITION(STEP_STRIDE) + r] = (uint32_t)(past + r);
    struct pl_device_buffer bq = kit_up(q, nq * 4), bl = kit_up(latent, a->rows * D * 4), ba = kit_up(qa, na * 4),
                            bn = kit_up(norm, a->c * 4), bc = kit_up(angles, (past + a->rows) * a->dim * 4),
                            bs = kit_up(step, sizeof step), bp = kit_out(n * size);
    struct pl_kernel k = {0};
    CHECK(pl_kernel_latent_append(&ks, a->kv, D, a->c, a->page, a->halves, &k, &err));
    const struct pl_launch_latent l = {.q = &bq,
                                       .latent = &bl,
                                       .qa = &ba,
                                       .norm = &bn,
                                       .cos_sin = &bc,
                                       .step = &bs,
                                       .pages = &bp,
                                       .rows = (uint32_t)a->rows,
                                       .heads = (uint32_t)a->heads,
                                       .q_head = (uint32_t)a->q_head,
                                       .turned = (uint32_t)a->dim,
                                       .stride = STEP_STRIDE,
                                       .norm_eps = 1e-6f};
    CHECK(pl_launch_latent_append(&ks, &k, &l));
    float *got = kit_down(&ba);
    void *pages = kit_down(&bp);
    double off = a->kv == PL_F32 ? 4e-6 : a->kv == PL_F16 ? 6e-4 : 5e-3;
    size_t written = 0, last = 0;
    for (size_t r = 0; r < a->rows; r++) {
        size_t position = past + r, at = (table[position / a->page] * a->page + position % a->page) * D;
        last = at;
        pl_ref_rmsnorm(latent + r * D, norm, a->c, 1e-6, 0, key);
        memcpy(key + a->c, latent + r * D + a->c, a->dim * 4);
        pl_ref_rope(key + a->c, angles + position * a->dim, a->dim, a->halves);
        for (size_t i = 0; i < D; i++) {
            float v = unpack(a->kv, pages, at + i);
            kit_near("latent key", &v, key + i, 1, off, 0.1);
        }
        for (size_t h = 0; h < a->heads; h++) { /* qa's first numbers stay */
            float *to = qa + (r * a->heads + h) * D + a->c;
            memcpy(to, q + (r * a->heads + h + 1) * a->q_head - a->dim, a->dim * 4);
            pl_ref_rope(to, angles + position * a->dim, a->dim, a->halves);
        }
    }
    kit_near("rotated queries", got, qa, na, 4e-6, 0.1);
    pl_ref_rope(key + a->c, angles, a->dim, a->halves); /* negative control: turned once more is another key */
    assert_true(fabsf(key[a->c] - unpack(a->kv, pages, last + a->c)) > 0.01f);
    for (size_t i = 0; i < n; i++) written += !isnan((double)unpack(a->kv, pages, i));
    assert_int_equal(written, a->rows * D); /* nothing else was touched */
    kit_drop(&bq), kit_drop(&bl), kit_drop(&bn), kit_drop(&bc), kit_drop(&bs);
    free(q), free(latent), free(qa), free(norm), free(angles), free(key), free(got), free(pages);
    pl_kernel_free(&ks, &k);
}

static void appends(void) {
    static const struct append list[] = {
        {PL_F16, 16, 1, 16, 512, 64, 192, false}, {PL_BF16, 5, 7, 4, 96, 32, 80, true}, {PL_F32, 3, 6, 7, 33, 6, 11, false}};
    for (size_t i = 0; i < PL_COUNT_OF(list); i++) one_append(&list[i]);
}

struct expanded {
    struct pl_expand_shape s;
    enum pl_dtype k, v; /* of the weights */
    uint32_t heads, rows, past, chunk;
};
enum { ROW0 = 3 }; /* rows of other sequences come first */

/* Halves: peaked, so that a later chunk often holds the largest score and what was before is weighed again. */
static float scale_of(const struct pl_expand_shape *s) { return s->halves ? 0.05f : 0.02f; }

/* What tensor cores are given. */
static float part_of(const struct pl_expand_shape *s, float v) { return s->halves ? pl_bf16_to_f32(pl_f32_to_bf16(v)) : v; }
/* bf16 as made: off by half a unit in its last place, and by what 32 sums of 16 terms lose in f32. size: of the terms. */
static float as_made(uint16_t made, double want, double size) {
    float got = pl_bf16_to_f32(made);
    assert_true(fabs((double)got - want) <= 0x1p-8 * fabs(want) + 0x1p-18 * size);
    return got;
}

/* One head's keys and values [tokens, N + R] of the latents [tokens, L + R]; values, V <= N + R, padded with zeros. made:
 * what the device has made of them, bf16 [tokens, heads, N + V], is right and stands in their place. */
static void keys_of(const struct expanded *e, const struct pl_tensor *k, const struct pl_tensor *v, const float *latents,
                    const uint16_t *made, uint32_t head, float *keys, float *values) {
    const uint32_t N = e->s.nope, R = e->s.rope, V = e->s.value, L = e->s.latent, D = L + R;
    float *wk = malloc((size_t)L * N * sizeof *wk), *wv = malloc((size_t)V * L * sizeof *wv);
    assert_true(wk != NULL && wv != NULL);
    for (uint32_t r = 0; r < L; r++) assert_int_equal(pl_dequant_row_product(k, head * L + r, wk + r * N), PL_OK);
    for (uint32_t r = 0; r < V; r++) assert_int_equal(pl_dequant_row_product(v, head * V + r, wv + r * L), PL_OK);
    for (uint32_t i = 0; i < L * N; i++) wk[i] = part_of(&e->s, wk[i]);
    for (uint32_t i = 0; i < V * L; i++) wv[i] = part_of(&e->s, wv[i]);
    for (uint32_t t = 0; t < e->past + e->rows; t++) {
        const float *c = latents + (size_t)t * D;
        const uint16_t *m = made != NULL ? made + ((size_t)t * e->heads + head) * (N + V) : NULL;
        for (uint32_t i = 0; i < N + R; i++) {
            double key = i < N ? 0 : (double)part_of(&e->s, c[L + i - N]), value = 0, size[2] = {0};
            for (uint32_t r = 0; r < L; r++) {
                double x = (double)part_of(&e->s, c[r]), of_key = i < N ? (double)wk[r * N + i] * x : 0,
                       of_value = i < V ? (double)wv[i * L + r] * x : 0;
                key += of_key, size[0] += fabs(of_key);
                value += of_value, size[1] += fabs(of_value);
            }
            keys[t * (N + R) + i] = m != NULL && i < N ? as_made(m[i], key, size[0]) : (float)key;
            values[t * (N + R) + i] = m != NULL && i < V ? as_made(m[N + i], value, size[1]) : (float)value;
        }
    }
    free(wk), free(wv);
}

/* out [rows, heads, value]: rows that see `lost` tokens too few. size: the same of values without their signs. */
static void define(const struct expanded *e, const struct made *k, const struct made *v, const float *latents,
                   const uint16_t *made, const float *q, const float *qa, uint32_t lost, float *out, float *size) {
    const uint32_t N = e->s.nope, R = e->s.rope, V = e->s.value, D = e->s.latent + R, K = N + R, tokens = e->past + e->rows;
    const uint32_t none = lost > e->past ? lost - e->past : 0; /* rows that would see nothing are left out */
    const float log2e = 1.44269504f, by = e->s.halves ? scale_of(&e->s) : 1.0f; /* halves: in powers of two, then rounded */
    float *keys = malloc((size_t)tokens * K * 4), *values = malloc((size_t)tokens * K * 4),
          *mine = malloc((size_t)e->rows * K * 4), *got = calloc((size_t)e->rows * K, 4);
    double *scores = malloc(tokens * sizeof *scores);
    for (uint32_t h = 0; h < e->heads; h++) {
        keys_of(e, &k->t, &v->t, latents, made, h, keys, values);
        for (uint32_t r = 0; r < e->rows; r++) {
            memcpy(mine + r * K, q + ((size_t)(ROW0 + r) * e->heads + h) * K, N * sizeof *mine);
            memcpy(mine + r * K + N, qa + ((size_t)(ROW0 + r) * e->heads + h) * D + e->s.latent, R * sizeof *mine);
        }
        for (uint32_t i = 0; e->s.halves && i < e->rows * K; i++) mine[i] = part_of(&e->s, mine[i] * by * log2e);
        const struct pl_ref_attention a = {.heads = 1,
                                           .kv_heads = 1,
                                           .head_dim = K,
                                           .rows = e->rows - none,
                                           .past = e->past + none - lost,
                                           .q = mine + none * K,
                                           .q_stride = K,
                                           .k = keys,
                                           .v = values,
                                           .scale = e->s.halves ? 0.6931471805599453 : (double)scale_of(&e->s),
                                           .out = got + none * K,
                                           .out_stride = K};
        for (int side = 0; side < 2; side++) {
            float *to = side == 0 ? out : size;
            pl_ref_attention(&a, scores);
            for (uint32_t r = 0; r < e->rows; r++) memcpy(to + ((size_t)r * e->heads + h) * V, got + r * K, V * sizeof *to);
            for (uint32_t i = 0; i < tokens * K; i++) values[i] = fabsf(values[i]);
        }
    }
    free(keys), free(values), free(mine), free(got), free(scores);
}

/* Of the values without their signs, weighed (`size`). f32: 2^-17, keys and values are f32 sums of up to 512 terms; seen at
 * most 3.6e-6 in 25 sets of random numbers. Halves: weights of the softmax are bf16, each off by half a unit in its last
 * place at most (2^-8 of it), their sum is f32; and scores of up to 64 in f32 sums of 192 terms (2^-12 of a weight). */
static bool is_near(const struct expanded *e, float got, float want, float size) {
    double bound = (e->s.halves ? 0x1p-8 + 0x1p-12 : 0x1p-17) * (double)size;
    return fabs((double)got - (double)want) <= bound;
}

static void one_expanded(const struct expanded *e) {
    const struct pl_expand_shape *s = &e->s;
    const uint32_t D = s->latent + s->rope, tokens = e->past + e->rows, all = ROW0 + e->rows, stride = all + 1;
    const uint32_t pages = (tokens + s->page_tokens - 1) / s->page_tokens,
                   size = (uint32_t)pl_dtype_info(s->kv)->block_bytes;
    const size_t each = s->halves ? 2 : 4, chunk = (e->chunk + 15) / 16 * 16, nout = (size_t)all * e->heads * s->value;
    struct made k = make_tensor(e->k, e->heads * s->latent, s->nope, 4, 32, PL_F16),
                v = make_tensor(e->v, e->heads * s->value, s->latent, 4, 32, PL_F16);
    struct pl_device_weight wk = upload(&k), wv = upload(&v);
    float *latents = kit_random((size_t)tokens * D, 1), *q = kit_random((size_t)all * e->heads * (s->nope + s->rope), 1),
          *qa = kit_random((size_t)all * e->heads * D, 1), *want = malloc(nout * 4), *other = malloc(nout * 4),
          *sizes = malloc(nout * 4), *unused = malloc(nout * 4);
    uint16_t *made = s->halves ? malloc((size_t)tokens * e->heads * pl_expand_vector(s) * 2) : NULL;
    char *pool = malloc((size_t)2 * pages * s->page_tokens * D * size);
    uint32_t *step = calloc(4 * stride + 2 * pages, sizeof *step);
    assert_true(pool != NULL && step != NULL && want != NULL && other != NULL && sizes != NULL && unused != NULL);
    assert_true(made != NULL || !s->halves);
    memset(pool, 0xFF, (size_t)2 * pages * s->page_tokens * D * size);
    for (uint32_t r = 0; r < e->rows; r++) step[PL_STEP_PAGE_FIRST(stride) + ROW0 + r] = 1;
    for (uint32_t i = 0; i < pages; i++) step[PL_STEP_PAGES(stride) + 1 + i] = 2 * (pages - 1 - i) + i % 2;
    for (size_t i = 0; i < (size_t)tokens * D; i++) {
        size_t t = i / D, page = step[PL_STEP_PAGES(stride) + 1 + t / s->page_tokens];
        size_t at = (page * s->page_tokens + t % s->page_tokens) * D + i % D;
        uint16_t half = s->kv == PL_F16 ? pl_f32_to_f16(latents[i]) : pl_f32_to_bf16(latents[i]);
        memcpy(pool + at * size, s->kv == PL_F32 ? (void *)&latents[i] : (void *)&half, size);
        latents[i] = unpack(s->kv, pool, at); /* as the cache holds it */
    }
    struct pl_device_buffer bw = kit_out((size_t)e->heads * (s->nope + s->value) * s->latent * each),
                            bl = kit_out(chunk * s->latent * each), br = kit_out(chunk * s->rope * each),
                            bk = kit_out(chunk * e->heads * pl_expand_vector(s) * each), bo = kit_out(nout * 4),
                            be = kit_out((size_t)all * e->heads * 4),
                            bq = kit_up(q, (size_t)all * e->heads * (s->nope + s->rope) * 4),
                            ba = kit_up(qa, (size_t)all * e->heads * D * 4),
                            bp = kit_up(pool, (size_t)2 * pages * s->page_tokens * D * size),
                            bs = kit_up(step, (4 * stride + 2 * pages) * sizeof *step);
    struct pl_kernel turn[2] = {0}, kernels[PL_EXPAND_COUNT] = {0};
    uint64_t counted, chunks = 0, before[PL_EXPAND_COUNT] = {0};
    assert_null(pl_expand_declines(&ks, s));
    CHECK(pl_kernel_turn(&ks, &wk, s->halves, &turn[0], &err));
    CHECK(pl_kernel_turn(&ks, &wv, s->halves, &turn[1], &err));
    CHECK(pl_launch_turn(&ks, &turn[0], s, &wk, false, &bw, e->heads));
    CHECK(pl_launch_turn(&ks, &turn[1], s, &wv, true, &bw, e->heads));
    for (int i = 0; i < PL_EXPAND_COUNT; i++) {
        CHECK(pl_kernel_expand(&ks, s, (enum pl_expand_kernel)i, &kernels[i], &err));
        if (kernels[i].jit != NULL) CHECK(pl_kernel_counted(&ks, &kernels[i], &before[i], &err));
    }
    struct pl_launch_expand l = {&bp, &bs,      &bw,    &bq,  &ba,     &bl,     &br, &bk, &bo,
                                 &be, e->heads, stride, ROW0, e->rows, e->past, 0,   0,   scale_of(s)};
    for (; l.first < tokens; l.first += l.tokens, chunks++) {
        l.tokens = PL_MIN(e->chunk, tokens - l.first);
        for (int i = 0; i < PL_EXPAND_COUNT; i++) CHECK(pl_launch_expand(&ks, s, (enum pl_expand_kernel)i, &kernels[i], &l));
        if (made == NULL) continue;
        const size_t token = (size_t)e->heads * pl_expand_vector(s);
        CHECK(pl_device_download(ks.device, ks.stream, made + l.first * token, &bk, 0, l.tokens * token * 2, &err));
        CHECK(pl_device_stream_wait(ks.device, ks.stream, &err));
    }
    for (int i = 0; i < PL_EXPAND_COUNT; i++) {
        if (kernels[i].jit == NULL) continue; /* the library's */
        CHECK(pl_kernel_counted(&ks, &kernels[i], &counted, &err));
        assert_int_equal(counted - before[i], chunks);
    }
    float *got = kit_down(&bo);
    size_t skip = (size_t)ROW0 * e->heads * s->value, mine = nout - skip, differ = 0;
    define(e, &k, &v, latents, made, q, qa, 0, want, sizes);
    define(e, &k, &v, latents, made, q, qa, 1, other, unused);
    for (size_t i = 0; i < mine; i++) {
        float x = got[skip + i];
        if (!is_near(e, x, want[i], sizes[i]))
            fail_msg("keys of heads: element %zu of %zu is %.9g, expected %.9g", i, mine, (double)x, (double)want[i]);
        differ += s->halves ? !is_near(e, x, other[i], sizes[i]) : fabsf(x - other[i]) > 1e-3f; /* negative control */
    }
    assert_true(differ > mine / (s->halves ? 128 : 4)); /* peaked: few tokens weigh more than what is rounded away */
    for (size_t i = 0; i < skip; i++) assert_true(isnan(got[i])); /* other sequences' rows are theirs */
    kit_drop(&bw), kit_drop(&bl), kit_drop(&br), kit_drop(&bk), kit_drop(&be), kit_drop(&bq), kit_drop(&ba), kit_drop(&bp);
    kit_drop(&bs);
    made_free(&k, &wk), made_free(&v, &wv);
    free(latents), free(q), free(qa), free(want), free(other), free(sizes), free(unused);
    free(pool), free(step), free(got), free(made);
    for (int i = 0; i < PL_EXPAND_COUNT; i++) pl_kernel_free(&ks, &kernels[i]);
    pl_kernel_free(&ks, &turn[0]), pl_kernel_free(&ks, &turn[1]);
}

static void expanded_shapes(void) {
    static const struct expanded list[] = {
        {{PL_F16, 128, 64, 128, 512, 32, 0}, PL_BF16, PL_Q8_0, 2, 70, 133, 64}, /* published sizes, four chunks, the last
                                                                                 * short
                                                                                 */
        {{PL_F32, 33, 6, 21, 40, 7, 0}, PL_F32, PL_F32, 3, 17, 1, 4096},        /* no block divides anything */
        {{PL_BF16, 64, 16, 76, 64, 16, 0}, PL_MLX, PL_MLX, 4, 2, 300, 160}};
    static const struct expanded halves[] = {
        {{PL_F16, 128, 64, 128, 512, 32, 1}, PL_BF16, PL_Q8_0, 2, 70, 133, 64},
        {{PL_BF16, 128, 64, 128, 512, 64, 1}, PL_Q8_0, PL_Q8_0, 3, 300, 517, 256}, /* rows that see none of the last chunk */
        {{PL_F32, 128, 64, 128, 512, 32, 1}, PL_F16, PL_F16, 1, 129, 0, 4096}};
    for (size_t i = 0; i < PL_COUNT_OF(list); i++) one_expanded(&list[i]);
    if (ks.gemm == NULL && pl_gemm_open(ks.device, &ks.gemm, &err) != PL_OK)
        ks.gemm = NULL; /* where there is none: portable alone */
    for (size_t i = 0; i < PL_COUNT_OF(halves) && pl_expand_halves(&ks, &halves[i].s); i++) one_expanded(&halves[i]);
    const struct pl_expand_shape large = {PL_F16, 640, 64, 128, 512, 32, 0}, bytes = {PL_I8, 128, 64, 128, 512, 32, 0};
    assert_string_equal(pl_expand_declines(&ks, &large), "head size");
    assert_string_equal(pl_expand_declines(&ks, &bytes), "cache type");
}

static void heads_linear(void **state) {
    (void)state;
    kit_each(products);
}
static void latent_append(void **state) {
    (void)state;
    kit_each(appends);
}
static void expanded(void **state) {
    (void)state;
    kit_each(expanded_shapes);
}

int main(void) {
    struct CMUnitTest tests[] = {cmocka_unit_test(heads_linear), cmocka_unit_test(latent_append),
                                 cmocka_unit_test(expanded)};
    return TEST_RUN("latent attention", tests);
}
