/* Latent attention's own kernels on every device present, against src/ref: products of each head with weights of every kind,
 * one row and many, and the append of keys; what lies between heads stays as it was. A wrong head, row or angle is seen.
 *
 * test-variants: release (the kernels are compiled by the OpenCL driver, which no sanitizer sees; the host code they go
 * through is sanitized in tests/model) */
#include "made.h"

#include "ops/latent.h"

struct product {
    enum pl_dtype dtype;
    size_t heads, rows, in, out, x_head, y_head;
};

static void one_product(const struct product *p) {
    struct made m = make_tensor(p->dtype, p->heads * p->out, p->in, 4, 32, PL_F16);
    struct pl_device_weight w = upload(&m);
    size_t nx = p->rows * p->heads * p->x_head, ny = p->rows * p->heads * p->y_head;
    float *x = kit_random(nx, 1), *want = kit_random(ny, 2), *row = kit_random(p->in, 1);
    double *size = calloc(ny, sizeof *size); /* of the terms of each sum; 0: nothing is written */
    assert_non_null(size);
    struct pl_device_buffer bx = kit_up(x, nx * 4), by = kit_up(want, ny * 4);
    uint32_t tile_rows, tile = pl_tile_of(p->rows, &tile_rows);
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
                                          {PL_Q4_K, 2, 5, 512, 16, 512, 16},   {PL_MLX, 3, 17, 64, 24, 64, 30}};
    for (size_t i = 0; i < PL_COUNT_OF(list); i++) one_product(&list[i]);
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

static void heads_linear(void **state) {
    (void)state;
    kit_each(products);
}
static void latent_append(void **state) {
    (void)state;
    kit_each(appends);
}

int main(void) {
    struct CMUnitTest tests[] = {cmocka_unit_test(heads_linear), cmocka_unit_test(latent_append)};
    return TEST_RUN("latent attention", tests);
}
