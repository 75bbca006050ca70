/* Invariant mode: what a row becomes in a whole MLP (norm, gate and up, gate, down added, output product), or in a mixture
 * of experts in its place, has the same bits alone and among 1 to 199 others at any place, for every weight type, by
 * whatever the backend chooses. Comparing bits needs no tolerance; that the bits are right as well is test_linear's and
 * test_moe's.
 *
 * test-variants: release (the kernels are compiled by the OpenCL driver, which no sanitizer sees; model/test_device takes
 * the host code they go through to it sanitized) test-timeout: 300 */
#include "made.h"

#include <unistd.h>

#include "ops/ops.h"
#include "tests/skip.h"

enum { TOKENS = 24, ROWS_MAX = 200, PAGE = 16, PAGES = (ROWS_MAX + PAGE - 1) / PAGE, OUTPUTS = 48, USED = 3, WEIGHTS = 7 };
static const uint32_t counts[] = {2, 3, 5, 8, 9, 16, 17, 31, 32, 33, 64, 65, 129, ROWS_MAX};

struct shape {
    size_t in, mid, experts; /* experts 0: none */
};
/* A layer without attention: rows are looked up by token, so that each token's row is known. */
struct mlp {
    struct pl_ops *o;
    struct pl_weight *table, *norm, *gate, *up, *down, *head, *router;
    struct pl_activation *x, *h, *g, *u, *logits, *routed;
    struct pl_moe moe;
    struct pl_kv_store *kv;
    struct made made[WEIGHTS];
    struct shape s;
};

static struct pl_weight *weight(struct mlp *m, size_t at, enum pl_dtype type, size_t rows, size_t cols,
                                enum pl_weight_use use) {
    struct pl_weight *w = NULL;
    size_t experts = use == PL_WEIGHT_EXPERTS ? m->s.experts : 1;
    m->made[at] = make_tensor(type, rows * experts, cols, 4, 64, PL_BF16);
    if (use == PL_WEIGHT_VECTOR) m->made[at].t.ndim = 1, m->made[at].t.shape[0] = cols, m->made[at].t.shape[1] = 1;
    if (use == PL_WEIGHT_EXPERTS) {
        struct pl_tensor all = m->made[at].t, list[16];
        assert_true(experts <= PL_COUNT_OF(list) && type != PL_MLX);
        all.ndim = 3, all.shape[0] = experts, all.shape[1] = rows, all.shape[2] = cols;
        for (size_t i = 0; i < experts; i++) list[i] = pl_expert_of(&all, i);
        CHECK(pl_ops_experts_create(m->o, list, experts, &w, &err));
    } else {
        CHECK(pl_ops_weight_create(m->o, &m->made[at].t, use, &w, &err));
    }
    return w;
}
static struct pl_activation *rows_of(struct mlp *m, size_t cols) {
    struct pl_activation *a = NULL;
    CHECK(pl_ops_activation_create(m->o, ROWS_MAX, cols, &a, &err));
    return a;
}
static void mlp_open(struct mlp *m, const struct pl_ops_options *opt, enum pl_dtype type, struct shape s) {
    const struct pl_kv_shape kv = {
        .layers = 1, .page_count = PAGES, .page_tokens = PAGE, .kv_heads = 1, .head_dim = 32, .dtype = PL_F32};
    *m = (struct mlp){.s = s};
    CHECK(pl_ops_create(opt, &m->o, &err));
    m->table = weight(m, 0, PL_F32, TOKENS, s.in, PL_WEIGHT_EMBED);
    m->norm = weight(m, 1, PL_F32, 1, s.in, PL_WEIGHT_VECTOR);
    enum pl_weight_use use = s.experts > 0 ? PL_WEIGHT_EXPERTS : PL_WEIGHT_MATRIX;
    m->gate = weight(m, 2, type, s.mid, s.in, use);
    m->up = weight(m, 3, type, s.mid, s.in, use);
    m->down = weight(m, 4, type, s.in, s.mid, use);
    m->head = weight(m, 5, type, OUTPUTS, s.in, PL_WEIGHT_HEAD);
    m->x = rows_of(m, s.in), m->h = rows_of(m, s.in), m->g = rows_of(m, s.mid), m->u = rows_of(m, s.mid);
    m->logits = rows_of(m, OUTPUTS);
    if (s.experts > 0) {
        m->router = weight(m, 6, PL_F32, s.experts, s.in, PL_WEIGHT_MATRIX);
        m->routed = rows_of(m, s.experts);
        m->moe = (struct pl_moe){.used = USED,
                                 .renormalise = true,
                                 .scale = 1,
                                 .act = PL_OPS_SILU,
                                 .gate = m->gate,
                                 .up = m->up,
                                 .down = m->down};
        CHECK(pl_ops_moe_reserve(m->o, &m->moe, ROWS_MAX, &err));
    }
    CHECK(pl_ops_kv_create(m->o, &kv, &m->kv, &err));
}
static void mlp_close(struct mlp *m) {
    struct pl_weight *const w[WEIGHTS] = {m->table, m->norm, m->gate, m->up, m->down, m->head, m->router};
    struct pl_activation *const a[] = {m->x, m->h, m->g, m->u, m->logits, m->routed};
    size_t less = m->router == NULL;
    for (size_t i = 0; i < WEIGHTS - less; i++) pl_ops_weight_destroy(m->o, w[i]);
    for (size_t i = 0; i < PL_COUNT_OF(a) - less; i++) pl_ops_activation_destroy(m->o, a[i]);
    pl_ops_kv_destroy(m->o, m->kv);
    pl_ops_destroy(m->o);
    for (size_t i = 0; i < PL_COUNT_OF(m->made); i++)
        free(m->made[i].data), free(m->made[i].scales), free(m->made[i].biases);
}

/* One step of so many rows, as one sequence (a prompt) or as many (decode); [rows, in + OUTPUTS]: the row, its logits. */
static void step(struct mlp *m, const uint32_t *tokens, uint32_t rows, bool prompt, float *out) {
    static struct pl_batch_seq seqs[ROWS_MAX];
    uint32_t pages[PAGES];
    for (uint32_t i = 0; i < PAGES; i++) pages[i] = i;
    uint32_t n = prompt ? 1 : rows;
    for (uint32_t i = 0; i < n; i++) seqs[i] = (struct pl_batch_seq){.first_row = i, .rows = prompt ? rows : 1};
    struct pl_batch b = {
        .rows = rows, .tokens = tokens, .seq_count = n, .seqs = seqs, .pages = pages, .page_entries = prompt ? PAGES : 1};
    const struct pl_weight *pair[] = {m->gate, m->up}, *head[] = {m->head}, *router[] = {m->router};
    struct pl_activation *two[] = {m->g, m->u}, *logits[] = {m->logits}, *routed[] = {m->routed};
    size_t width = m->s.in + OUTPUTS;
    CHECK(pl_ops_begin(m->o, &b, m->kv));
    CHECK(pl_ops_embed(m->o, m->table, 1, m->x));
    CHECK(pl_ops_norm(m->o, m->x, m->norm, 1e-5f, 1.0f, m->h));
    if (m->s.experts > 0) {
        CHECK(pl_ops_linear(m->o, 1, router, NULL, m->h, routed));
        CHECK(pl_ops_moe(m->o, &m->moe, m->routed, m->h, m->x));
    } else {
        CHECK(pl_ops_linear(m->o, 2, pair, NULL, m->h, two));
        CHECK(pl_ops_glu(m->o, PL_OPS_SILU, m->g, m->u, m->g));
        CHECK(pl_ops_linear_add(m->o, m->down, m->g, m->x));
    }
    CHECK(pl_ops_norm(m->o, m->x, m->norm, 1e-5f, 1.0f, m->h));
    CHECK(pl_ops_linear(m->o, 1, head, NULL, m->h, logits));
    CHECK(pl_ops_end(m->o));
    float *x = malloc(rows * m->s.in * 4), *l = malloc((size_t)rows * OUTPUTS * 4);
    CHECK(pl_ops_activation_read(m->o, m->x, 0, rows, x));
    CHECK(pl_ops_activation_read(m->o, m->logits, 0, rows, l));
    for (size_t r = 0; r < rows; r++) {
        memcpy(out + r * width, x + r * m->s.in, m->s.in * 4);
        memcpy(out + r * width + m->s.in, l + r * OUTPUTS, OUTPUTS * 4);
    }
    free(x), free(l);
}

/* How many rows of all steps differ from the same token's row alone. */
static size_t differing(struct mlp *m, bool spoil) {
    size_t width = m->s.in + OUTPUTS, wrong = 0;
    float *alone = malloc(TOKENS * width * 4), *got = malloc(ROWS_MAX * width * 4);
    for (uint32_t t = 0; t < TOKENS; t++) {
        step(m, &t, 1, t % 2 == 0, alone + t * width);
        for (size_t i = 0; i < width; i++) assert_true(isfinite(alone[t * width + i]));
    }
    if (spoil) ((uint32_t *)alone)[5 * width + 3] ^= 1u; /* the last bit of one number */
    for (size_t c = 0; c < PL_COUNT_OF(counts) - (test_small() ? 3 : 0); c++) {
        uint32_t tokens[ROWS_MAX];
        for (uint32_t r = 0; r < counts[c]; r++) tokens[r] = kit_u32() % TOKENS;
        step(m, tokens, counts[c], c % 3 == 0, got);
        for (uint32_t r = 0; r < counts[c]; r++) wrong += memcmp(got + r * width, alone + tokens[r] * width, width * 4) != 0;
    }
    free(alone), free(got);
    return wrong;
}

static size_t one_type(enum pl_backend backend, int device, enum pl_dtype type, struct shape s) {
    const struct pl_ops_options opt = {.backend = backend, .device = device, .invariant = true, .threads = 2};
    struct mlp m;
    mlp_open(&m, &opt, type, s);
    for (size_t rows = 2; rows <= ROWS_MAX && backend != PL_BACKEND_CPU;
         rows++) { /* one form for all; of one form, kernels of several sizes */
        const char *one = pl_ops_weight_kernel(m.o, m.head, 1), *many = pl_ops_weight_kernel(m.o, m.head, rows);
        assert_memory_equal(one, many, strcspn(one, "/") + 4);
    }
    size_t wrong = differing(&m, false);
    if (wrong > 0)
        print_message("# %s, %zu x %zu, %zu experts, %s: %zu rows differ in company\n", pl_dtype_name(type), s.mid, s.in,
                      s.experts, pl_ops_weight_kernel(m.o, m.head, ROWS_MAX), wrong);
    mlp_close(&m);
    return wrong;
}

/* Widths: inputs in one block, in fewer blocks than segments, in segments of several blocks whose last is short; outputs
 * that groups of threads share, and more of them than groups. */
static const enum pl_dtype types[] = {PL_Q4_K,   PL_BF16,  PL_Q6_K,    PL_F32,   PL_F16,   PL_Q4_0,  PL_Q4_1,
                                      PL_Q5_0,   PL_Q8_0,  PL_Q5_1,    PL_Q2_K,  PL_Q3_K,  PL_Q5_K,  PL_IQ4_NL,
                                      PL_IQ4_XS, PL_MXFP4, PL_TQ1_0,   PL_TQ2_0, PL_IQ1_S, PL_IQ1_M, PL_IQ2_XXS,
                                      PL_IQ2_XS, PL_IQ2_S, PL_IQ3_XXS, PL_IQ3_S, PL_MLX};
static void on_cuda(void **state) {
    (void)state;
    int index = test_device_of(PL_DEVICE_CUDA);
    static const struct shape wide[] = {{1024, 4352, 0}, {4096, 2560, 0}, {512, 35840, 0}};
    size_t wrong = 0;
    if (index < 0) SKIP("no such device here");
    for (size_t i = 0; i < (test_small() ? 4 : PL_COUNT_OF(types)); i++) {
        wrong += one_type(PL_BACKEND_CUDA, index, types[i], (struct shape){.in = 256, .mid = 768});
        for (size_t k = 0; k < PL_COUNT_OF(wide) && i < 3 && !test_small(); k++) /* on tensor cores */
            wrong += one_type(PL_BACKEND_CUDA, index, types[i], wide[k]);
        if (i < 4) wrong += one_type(PL_BACKEND_CUDA, index, types[i], (struct shape){512, 768, i == 0 ? 16 : 8});
    }
    assert_int_equal(wrong, 0);
}
static void on_opencl(void **state) {
    (void)state;
    int index = test_device_of(PL_DEVICE_OPENCL);
    if (index < 0) SKIP("no OpenCL device here");
    static const enum pl_dtype few[] = {PL_Q4_K, PL_BF16, PL_Q8_0};
    for (size_t i = 0; i < PL_COUNT_OF(few); i++)
        assert_int_equal(one_type(PL_BACKEND_OPENCL, index, few[i], (struct shape){256, 512, i == 0 ? 8 : 0}), 0);
}
static void on_the_cpu(void **state) {
    (void)state;
    for (size_t i = 0; i < PL_COUNT_OF(types); i++)
        assert_int_equal(one_type(PL_BACKEND_CPU, 0, types[i], (struct shape){256, 512, 0}), 0);
}

/* The controls: one bit of one row is seen; and on tensor cores without invariant mode rows of other steps do differ. */
static void differences_are_seen(void **state) {
    (void)state;
    struct pl_ops_options opt = {.backend = PL_BACKEND_CPU, .invariant = true, .threads = 2};
    struct mlp m;
    mlp_open(&m, &opt, PL_Q8_0, (struct shape){256, 512, 0});
    assert_true(differing(&m, true) > 0);
    mlp_close(&m);
    opt.device = test_device_of(PL_DEVICE_CUDA);
    if (opt.device < 0 || test_small()) return;
    opt.backend = PL_BACKEND_CUDA;
    opt.invariant = false;
    for (size_t i = 0; i < 3; i++) {
        mlp_open(&m, &opt, types[i], (struct shape){1024, 4352, 0});
        size_t wrong = differing(&m, false);
        print_message("# %s without invariant mode: %zu rows differ\n", pl_dtype_name(types[i]), wrong);
        assert_true(wrong > 0);
        mlp_close(&m);
    }
}

int main(void) {
    test_own_cache();
    struct CMUnitTest tests[] = {cmocka_unit_test(on_the_cpu), cmocka_unit_test(on_opencl), cmocka_unit_test(on_cuda),
                                 cmocka_unit_test(differences_are_seen)};
    return TEST_RUN("invariant products", tests);
}
