/* count_kernels ISA [MORE] - one call of every hot kernel of a table, for tests/cpu/test_instructions.py: valgrind collects
 * inside counted() only and writes its count after each call; the names of the calls stand on stdout, in order. Sizes are
 * those of a small model's layer. MORE: every size that work grows with is a quarter larger. */
#include <string.h>

#include "cpu/internal.h"
#include "cpu/ssm.h"
#include "sample/sample.h"
#define PL_TEST_REAL_ONLY
#include "tests/cpu/support.h"

enum {
    E = 512,
    OUT = 64,
    ROWS = 64,
    H = 8,
    G = 2,
    D = 64,
    PAGE = 16,
    TOKENS = 512,
    PAGES = 2 * TOKENS / PAGE,
    VOCAB = 8192
};

typedef void (*work)(struct pl_cpu *c, void *args);

static bool more;
static size_t sized(size_t n) { return more ? n + n / 4 : n; }

__attribute__((noinline)) void counted(work run, struct pl_cpu *c, void *args);
void counted(work run, struct pl_cpu *c, void *args) {
    run(c, args);
    __asm__ volatile("" ::: "memory"); /* no tail call: it would end the counting */
}
static void count(const char *name, work run, struct pl_cpu *c, void *args) {
    printf("%s\n", name);
    counted(run, c, args);
}

static float *numbers(size_t n, uint64_t seed) {
    float *x = aligned_alloc(64, (n * sizeof *x + 63) / 64 * 64);
    assert_non_null(x);
    rng_fill(&seed, x, n);
    return x;
}
static void must(enum pl_status s, const struct pl_err *err) {
    if (s == PL_OK) return;
    fprintf(stderr, "count_kernels: %s\n", err->text);
    exit(1);
}

/* --- products --- */
static void run_matmul(struct pl_cpu *c, void *a) { pl_cpu_matmul(c, a); }
static void run_embed(struct pl_cpu *c, void *a) {
    const uint32_t ids[] = {1, 5, 9, 33, 2, 60, 7, 8, 40, 50};
    static float y[PL_COUNT_OF(ids) * E];
    pl_cpu_embed(c, a, ids, sized(8), 1, y, E);
}
static void run_quantize(struct pl_cpu *c, void *a) {
    c->table->quantize(a, E, c->table->group_max, sized(E), c->space.acts);
}
static void run_ternary_row(struct pl_cpu *c, void *a) {
    static int8_t q[2 * E];
    (void)c;
    (void)cpu_ternary_row(a, sized(E), q, 32);
}

static void count_product(struct pl_cpu *c, const struct weight_case *k, const char *type, size_t rows, bool fine) {
    struct pl_err err = {0};
    struct pl_tensor t = tensor_random(k, sized(OUT), E, 1);
    struct pl_cpu_weight *w = NULL;
    must(pl_cpu_weight_create(c, &t, &w, &err), &err);
    const struct pl_cpu_weight *one = w;
    float *x = numbers(ROWS * E, 3), *y = numbers(ROWS * 2 * OUT, 4);
    const size_t stride = sized(OUT);
    struct pl_cpu_matmul m = {
        .count = 1, .rows = rows, .w = &one, .x = x, .x_stride = E, .y = &y, .y_stride = &stride, .fine = fine};
    char name[64];
    snprintf(name, sizeof name, "product %s x %zu%s", type, rows, fine ? " fine" : "");
    count(name, run_matmul, c, &m);
    if (rows == 1 && k->dtype == PL_Q4_K) count("embed q4_k", run_embed, c, &t);
    pl_cpu_weight_destroy(w);
    tensor_free(&t);
    free(x), free(y);
}

static void count_products(struct pl_cpu *c) {
    static const enum pl_dtype types[] = {PL_F32,  PL_F16,  PL_BF16, PL_Q4_0, PL_Q4_1, PL_Q5_0,
                                          PL_Q8_0, PL_Q4_K, PL_Q5_K, PL_Q6_K, PL_MXFP4};
    static const size_t rows[] = {1, 4, 64};
    const bool packed = c->table->quantize != NULL; /* else all types are widened to f32 */
    for (size_t i = 0; i < PL_COUNT_OF(types); i++) {
        if (!packed && types[i] != PL_F32 && types[i] != PL_Q4_K) continue;
        for (size_t r = 0; r < PL_COUNT_OF(rows); r++)
            count_product(c, &(struct weight_case){types[i], 0, 0, 0}, pl_dtype_name(types[i]), rows[r], false);
    }
    count_product(c, &(struct weight_case){PL_MLX, 4, 64, PL_BF16}, "mlx4", 1, false);
    count_product(c, &(struct weight_case){PL_Q8_0, 0, 0, 0}, "q8_0", 1, true);
    float *x = numbers(ROWS * E * 2, 5);
    if (packed) count("activations to 8 bits", run_quantize, c, x);
    count("activations of ternary weights", run_ternary_row, c, x);
    free(x);
}

static void run_moe(struct pl_cpu *c, void *a) { (void)pl_cpu_moe(c, a); }
static void run_heads(struct pl_cpu *c, void *a) { (void)pl_cpu_heads_linear(c, a); }

static void count_experts(struct pl_cpu *c) {
    enum { X = 8, IN = 256, INNER = 256, SETS = 3 };
    struct pl_tensor t[SETS][X];
    const struct pl_cpu_weight *w[SETS][X];
    struct pl_err err = {0};
    const size_t inner = sized(INNER) / 256 * 256 + (more ? 256 : 0);
    for (size_t s = 0; s < SETS; s++)
        for (size_t e = 0; e < X; e++) {
            struct pl_cpu_weight *one = NULL;
            t[s][e] =
                tensor_random(&(struct weight_case){PL_Q4_K, 0, 0, 0}, s < 2 ? inner : IN, s < 2 ? IN : inner, s * X + e);
            must(pl_cpu_weight_create(c, &t[s][e], &one, &err), &err);
            w[s][e] = one;
        }
    float *x = numbers(ROWS * IN, 6), *y = numbers(ROWS * IN, 7), *logits = numbers(ROWS * X, 8);
    struct pl_cpu_moe m = {.experts = X,
                           .used = 2,
                           .in = IN,
                           .inner = inner,
                           .renormalise = true,
                           .scale = 1,
                           .act = PL_ACT_SILU,
                           .logits = logits,
                           .logits_stride = X,
                           .gate = w[0],
                           .up = w[1],
                           .down = w[2],
                           .x = x,
                           .x_stride = IN,
                           .y = y,
                           .y_stride = IN};
    must(pl_cpu_moe_reserve(c, &m, ROWS, &err), &err);
    m.rows = 1;
    count("experts q4_k x 1", run_moe, c, &m);
    m.rows = 16;
    count("experts q4_k x 16", run_moe, c, &m);
    struct pl_cpu_heads h = {
        .rows = sized(4), .heads = X, .w = w[0], .x = x, .x_stride = 0, .x_head = IN, .y = y, .y_stride = 0, .y_head = IN};
    float *heads_y = numbers(8 * X * inner, 9);
    h.y = heads_y, h.y_stride = X * inner, h.y_head = inner, h.x_stride = X * IN;
    must(pl_cpu_heads_reserve(c, X, IN, inner, 8, &err), &err);
    count("products of heads", run_heads, c, &h);
    for (size_t s = 0; s < SETS; s++)
        for (size_t e = 0; e < X; e++) {
            pl_cpu_weight_destroy((struct pl_cpu_weight *)(uintptr_t)w[s][e]);
            tensor_free(&t[s][e]);
        }
    free(x), free(y), free(logits), free(heads_y);
}

/* --- attention --- */
static void run_attention(struct pl_cpu *c, void *a) { pl_cpu_attention(c, a); }
static void run_append(struct pl_cpu *c, void *a) { pl_cpu_rope_append(c, a); }
static void run_latent_append(struct pl_cpu *c, void *a) { pl_cpu_latent_append(c, a); }

struct pool {
    struct pl_cpu_kv kv;
    uint32_t pages[PAGES];
    float *q, *k, *v, *out, *turns, *norm;
};

/* One sequence, filled as the engine does it, `count` rows at a time. */
static void append(struct pl_cpu *c, struct pool *p, size_t past, size_t rows, const char *name) {
    const struct pl_cpu_seq seq = {0, rows, past, p->pages};
    struct pl_cpu_rope_append a = {.seq_count = 1,
                                   .seqs = &seq,
                                   .heads = H,
                                   .q = p->q,
                                   .k = p->k,
                                   .v = p->v,
                                   .q_stride = H * D,
                                   .k_stride = G * D,
                                   .v_stride = G * D,
                                   .q_norm = p->norm,
                                   .k_norm = p->norm,
                                   .norm_eps = 1e-6f,
                                   .cos_sin = p->turns,
                                   .rope_dim = D,
                                   .halves = true,
                                   .kv = &p->kv};
    if (name != NULL)
        count(name, run_append, c, &a);
    else
        pl_cpu_rope_append(c, &a);
}
static void attend(struct pl_cpu *c, struct pool *p, size_t past, size_t rows, const char *name) {
    const struct pl_cpu_seq seq = {0, rows, past, p->pages};
    struct pl_cpu_attention a = {.seq_count = 1,
                                 .seqs = &seq,
                                 .heads = H,
                                 .q = p->q,
                                 .q_stride = H * D,
                                 .scale = 0.125f,
                                 .kv = &p->kv,
                                 .out = p->out,
                                 .out_stride = H * D};
    count(name, run_attention, c, &a);
}

static struct pool pool_make(enum pl_dtype dtype) {
    struct pool p = {.kv = {.dtype = dtype, .page_tokens = PAGE, .kv_heads = G, .head_dim = D}};
    for (uint32_t i = 0; i < PAGES; i++) p.pages[i] = (i * 7 + 3) % PAGES;
    p.kv.k = calloc(PAGES * PAGE * G, D * sizeof(float)), p.kv.v = calloc(PAGES * PAGE * G, D * sizeof(float));
    p.q = numbers(2 * ROWS * H * D, 1), p.k = numbers(2 * ROWS * G * D, 2), p.v = numbers(2 * ROWS * G * D, 3);
    p.out = numbers(2 * ROWS * H * D, 4), p.turns = numbers(2 * TOKENS * D, 5), p.norm = numbers(D, 6);
    return p;
}
static void pool_free(struct pool *p) {
    free(p->kv.k), free(p->kv.v);
    float *all[] = {p->q, p->k, p->v, p->out, p->turns, p->norm};
    for (size_t i = 0; i < PL_COUNT_OF(all); i++) free(all[i]);
}

static void count_attention(struct pl_cpu *c) {
    static const enum pl_dtype types[] = {PL_F16, PL_BF16, PL_F32, PL_I8, PL_F8, PL_K8V4};
    for (size_t i = 0; i < PL_COUNT_OF(types); i++) {
        struct pool p = pool_make(types[i]);
        char name[64];
        for (size_t at = 0; at < sized(TOKENS); at += ROWS) append(c, &p, at, ROWS, NULL);
        snprintf(name, sizeof name, "rope and append %s", pl_dtype_name(types[i]));
        append(c, &p, 0, sized(16), name);
        snprintf(name, sizeof name, "attention %s, one row", pl_dtype_name(types[i]));
        attend(c, &p, sized(TOKENS) - 1, 1, name);
        snprintf(name, sizeof name, "attention %s, %d rows", pl_dtype_name(types[i]), ROWS);
        if (i == 0) attend(c, &p, sized(128), ROWS, name);
        pool_free(&p);
    }
}

/* The one key a token of latent attention, and attention over it. */
static void count_latent(struct pl_cpu *c) {
    enum { L = 128, R = 32, HEAD = 48 };
    struct pool p = pool_make(PL_F16);
    p.kv.kv_heads = 1, p.kv.head_dim = L + R, p.kv.value_dim = L;
    const struct pl_cpu_seq rows = {0, sized(16), 0, p.pages}, one = {0, 1, sized(256) - 1, p.pages};
    float *latent = numbers(ROWS * (L + R), 7), *qa = numbers(ROWS * H * (L + R), 8), *norm = numbers(L, 9);
    struct pl_cpu_latent_append a = {.seq_count = 1,
                                     .seqs = &rows,
                                     .heads = H,
                                     .q_head = HEAD,
                                     .q = p.q,
                                     .latent = latent,
                                     .qa = qa,
                                     .q_stride = H * HEAD,
                                     .latent_stride = L + R,
                                     .qa_stride = H * (L + R),
                                     .norm = norm,
                                     .norm_eps = 1e-6f,
                                     .cos_sin = p.turns,
                                     .kv = &p.kv};
    count("append of latents", run_latent_append, c, &a);
    struct pl_cpu_attention t = {.seq_count = 1,
                                 .seqs = &one,
                                 .heads = H,
                                 .q = qa,
                                 .q_stride = H * (L + R),
                                 .scale = 0.1f,
                                 .kv = &p.kv,
                                 .out = p.out,
                                 .out_stride = H * L};
    count("attention over latents, one row", run_attention, c, &t);
    free(latent), free(qa), free(norm);
    pool_free(&p);
}

/* --- rows --- */
static void run_norm(struct pl_cpu *c, void *a) { pl_cpu_rmsnorm(c, a); }
struct rows_args {
    float *x, *y;
    size_t rows;
    enum pl_act act;
};
static void run_add(struct pl_cpu *c, void *p) {
    const struct rows_args *a = p;
    pl_cpu_add(c, a->y, a->x, a->rows, E, E, E);
}
static void run_scale(struct pl_cpu *c, void *p) {
    const struct rows_args *a = p;
    pl_cpu_scale(c, a->y, a->rows, E, E, 0.5f);
}
static void run_softcap(struct pl_cpu *c, void *p) {
    const struct rows_args *a = p;
    pl_cpu_softcap(c, a->y, a->rows, E, E, 30);
}
static void run_glu(struct pl_cpu *c, void *p) {
    const struct rows_args *a = p;
    pl_cpu_glu(c, a->act, a->x, a->x + E, a->y, a->rows, E, 2 * E, 2 * E, E);
}

static void count_rows(struct pl_cpu *c) {
    float *x = numbers(2 * ROWS * E, 1), *y = numbers(ROWS * E, 2), *w = numbers(E, 3);
    struct rows_args a = {x, y, sized(16), PL_ACT_SILU};
    struct pl_cpu_norm n = {.rows = a.rows, .cols = E, .x = x, .x_stride = E, .w = w, .eps = 1e-6f, .y = y, .y_stride = E};
    count("norm", run_norm, c, &n);
    n.add = y, n.add_stride = E;
    count("norm after an addition", run_norm, c, &n);
    n.center = true, n.bias = w;
    count("layer norm", run_norm, c, &n);
    count("add", run_add, c, &a);
    count("scale", run_scale, c, &a);
    count("softcap", run_softcap, c, &a);
    static const char *const acts[] = {"silu", "gelu_tanh", "gelu_erf", "relu2", "swiglu_clamped"};
    for (size_t i = 0; i < PL_COUNT_OF(acts); i++) {
        char name[32];
        a.act = (enum pl_act)i;
        snprintf(name, sizeof name, "glu %s", acts[i]);
        count(name, run_glu, c, &a);
    }
    free(x), free(y), free(w);
}

/* --- state-space layers --- */
static void run_conv(struct pl_cpu *c, void *a) { pl_cpu_causal_conv(c, a); }
static void run_ssm(struct pl_cpu *c, void *a) { pl_cpu_ssm(c, a); }
static void run_gated_norm(struct pl_cpu *c, void *a) { pl_cpu_gated_norm(c, a); }

static void count_states(struct pl_cpu *c) {
    enum { K = 4, HEADS = 4, P = 64, N = 64 };
    float *x = numbers(ROWS * E, 1), *y = numbers(ROWS * E, 2), *z = numbers(ROWS * E, 3), *w = numbers(K * E, 4),
          *b = numbers(ROWS * N, 5), *d = numbers(ROWS * E, 6), *a = numbers(E * N, 7), *state = numbers(E * N, 8),
          *inputs = numbers(K * E, 9);
    for (size_t i = 0; i < E * N; i++) a[i] = -fabsf(a[i]);
    struct pl_cpu_state_seq seq = {.rows = sized(8), .conv = inputs, .ssm = state};
    struct pl_cpu_conv v = {.seq_count = 1,
                            .channels = E,
                            .kernel = K,
                            .seqs = &seq,
                            .w = w,
                            .bias = w,
                            .silu = true,
                            .x = x,
                            .x_stride = E,
                            .y = y,
                            .y_stride = E};
    count("causal convolution", run_conv, c, &v);
    struct pl_cpu_ssm s = {.seq_count = 1,
                           .heads = HEADS,
                           .head_dim = P,
                           .groups = 1,
                           .state = N,
                           .seqs = &seq,
                           .a = a,
                           .dt_bias = w,
                           .skip = w,
                           .dt_min = 0,
                           .dt_max = 30,
                           .x = x,
                           .b = b,
                           .c = b,
                           .dt = d,
                           .z = z,
                           .x_stride = E,
                           .b_stride = N,
                           .c_stride = N,
                           .dt_stride = E,
                           .z_stride = E,
                           .y = y,
                           .y_stride = E};
    count("state-space step, Mamba-2", run_ssm, c, &s);
    s.heads = E / 2, s.head_dim = 1, s.state = 16, s.full = true;
    count("state-space step, Mamba", run_ssm, c, &s);
    struct pl_cpu_gated_norm g = {.rows = sized(8),
                                  .cols = E,
                                  .groups = 2,
                                  .x = x,
                                  .z = z,
                                  .w = w,
                                  .x_stride = E,
                                  .z_stride = E,
                                  .eps = 1e-6f,
                                  .y = y,
                                  .y_stride = E};
    count("gated norm", run_gated_norm, c, &g);
    float *all[] = {x, y, z, w, b, d, a, state, inputs};
    for (size_t i = 0; i < PL_COUNT_OF(all); i++) free(all[i]);
}

/* --- sampling: one table for all machines --- */
static void run_draw(struct pl_cpu *c, void *sampler) {
    static float logits[2 * VOCAB];
    static bool filled;
    uint64_t seed = 1;
    uint32_t id;
    (void)c;
    if (!filled) rng_fill(&seed, logits, 2 * VOCAB);
    filled = true;
    if (sampler != NULL && pl_sampler_draw(sampler, logits, 7, &id) != PL_OK) exit(1);
    if (sampler == NULL) (void)pl_log_normalizer(logits, (uint32_t)sized(VOCAB));
}

static void count_draws(struct pl_cpu *c) {
    static const float temperatures[] = {0, 0.8f};
    static const char *const names[] = {"greedy choice", "draw of top-k, top-p, min-p"};
    run_draw(c, NULL);
    for (size_t i = 0; i < PL_COUNT_OF(names); i++) {
        struct pl_sampling s;
        struct pl_sampler *sampler = NULL;
        struct pl_err err = {0};
        pl_sampling_default(&s);
        s.temperature = temperatures[i];
        must(pl_sampler_create(&s, (uint32_t)sized(VOCAB), &sampler, &err), &err);
        count(names[i], run_draw, c, sampler);
        pl_sampler_destroy(sampler);
    }
    count("softmax's sum over the vocabulary", run_draw, c, NULL);
}

int main(int argc, char **argv) {
    enum pl_isa isa;
    struct pl_err err = {0};
    if (argc < 2 || !pl_isa_from_name(argv[1], &isa)) return 2;
    more = argc > 2;
    struct pl_cpu *c = cpu_make(isa, 1);
    must(pl_cpu_reserve(c, 2 * ROWS, 2 * E, 2 * TOKENS, &err), &err);
    count_products(c);
    count_experts(c);
    count_attention(c);
    count_latent(c);
    count_rows(c);
    count_states(c);
    if (isa != PL_ISA_SCALAR) count_draws(c);
    pl_cpu_destroy(c);
    return 0;
}
