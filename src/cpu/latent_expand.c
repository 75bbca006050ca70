/* Latent attention of many rows by keys and values of each head, made from the latents in f32 for as many heads at once as
 * there is room for: w_k c and w_v c, and then plain attention over vectors [v, k, r], of which the first are the values.
 * Made anew for each layer of a step, so it pays where rows are many beside the tokens before them. */
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "cpu/internal.h"
#include "tensor/convert.h"
#include "tensor/quant.h"

enum { HEADS_MAX = 32 }; /* at once */

struct cpu_expand_scratch {
    struct pl_cpu_latent_shape shape;
    size_t positions, rows, room, heads; /* made for; at most so many heads at once */
    size_t keys_size, q_size;            /* f32 */
    float *latents;                      /* [tokens][D] */
    float *keys;                         /* [tokens][heads][V + N + R] */
    float *q;                            /* [rows][heads][V + N + R]; what meets values is zero */
    float *w;                            /* [heads][N + V][L], and a row for each of them to turn by */
    float *row;
    struct pl_cpu_weight **products; /* [2 * heads]: f32, of the head's part of w */
    float **to;
    size_t *strides;
};

static size_t vector_of(const struct pl_cpu_latent_shape *s) { return s->value + s->nope + s->rope; }

void cpu_expand_free(struct cpu_expand_scratch *s) {
    if (s == NULL) return;
    for (size_t i = 0; s->products != NULL && i < 2 * s->heads; i++) pl_cpu_weight_destroy(s->products[i]);
    pl_free((void *)s->products);
    pl_free((void *)s->to);
    pl_free(s->strides);
    pl_free(s->latents);
    pl_free(s->keys);
    pl_free(s->q);
    pl_free(s->w);
    pl_free(s->row);
    pl_free(s);
}

static float *floats(size_t a, size_t b, size_t c) {
    size_t n;
    return pl_mul_size(a, b, &n) && pl_mul_size(n, c, &n) && pl_mul_size(n, sizeof(float), &n) ? pl_alloc_aligned(n, 64)
                                                                                               : NULL;
}

static enum pl_status make_products(struct pl_cpu *c, struct cpu_expand_scratch *s, struct pl_err *err) {
    const size_t n = s->shape.nope, v = s->shape.value, l = s->shape.latent;
    for (size_t h = 0; h < s->heads; h++)
        for (size_t side = 0; side < 2; side++) {
            const struct pl_tensor t = {.name = "expanded",
                                        .dtype = PL_F32,
                                        .ndim = 2,
                                        .shape = {side == 0 ? n : v, l, 1, 1},
                                        .data = s->w + (h * (n + v) + side * n) * l,
                                        .bytes = (side == 0 ? n : v) * l * sizeof(float)};
            PL_TRY(pl_cpu_weight_create(c, &t, &s->products[2 * h + side], err));
        }
    return PL_OK;
}

static bool same_shape(const struct pl_cpu_latent_shape *a, const struct pl_cpu_latent_shape *b) {
    return a->heads == b->heads && a->nope == b->nope && a->value == b->value && a->latent == b->latent &&
           a->rope == b->rope;
}

static struct cpu_expand_scratch *make(struct pl_cpu *c, const struct pl_cpu_latent_shape *shape, size_t positions,
                                       size_t rows, size_t room) {
    const size_t vector = vector_of(shape), floats_max = room / sizeof(float),
                 tokens = PL_MIN(positions, floats_max / vector);
    struct cpu_expand_scratch *s = pl_calloc(1, sizeof *s);
    struct pl_err err = {0};
    if (s == NULL) return NULL;
    s->shape = *shape, s->positions = positions, s->rows = rows, s->room = room;
    s->heads = PL_MIN(shape->heads, (size_t)HEADS_MAX);
    s->keys_size = PL_MIN(floats_max, tokens * s->heads * vector);
    s->q_size = PL_MIN(floats_max, rows * s->heads * vector);
    s->latents = floats(tokens, shape->latent + shape->rope, 1);
    s->keys = floats(s->keys_size, 1, 1);
    s->q = floats(s->q_size, 1, 1);
    s->w = floats(s->heads, shape->nope + shape->value, shape->latent);
    s->row = floats(s->heads, PL_MAX(shape->nope, shape->latent), 1);
    s->products = (struct pl_cpu_weight **)pl_calloc(2 * s->heads, sizeof *s->products);
    s->to = (float **)pl_calloc(2 * s->heads, sizeof *s->to);
    s->strides = pl_calloc(2 * s->heads, sizeof *s->strides);
    bool all = s->latents != NULL && s->keys != NULL && s->q != NULL && s->w != NULL && s->row != NULL &&
               s->products != NULL && s->to != NULL && s->strides != NULL;
    if (all && make_products(c, s, &err) == PL_OK) return s;
    cpu_expand_free(s);
    return NULL;
}

bool pl_cpu_expand_reserve(struct pl_cpu *c, const struct pl_cpu_latent_shape *shape, size_t positions, size_t rows,
                           size_t room) {
    const struct cpu_expand_scratch *now = c->expand;
    if (now != NULL && same_shape(&now->shape, shape) && positions <= now->positions && rows <= now->rows &&
        room == now->room)
        return true;
    cpu_expand_free(c->expand);
    c->expand = make(c, shape, positions, rows, room);
    return c->expand != NULL;
}

size_t pl_cpu_expand_heads(const struct pl_cpu *c, size_t tokens, size_t rows) {
    const struct cpu_expand_scratch *s = c->expand;
    const size_t vector = vector_of(&s->shape);
    return PL_MIN(s->heads, PL_MIN(s->keys_size / (tokens * vector), s->q_size / (rows * vector)));
}

/* --- what is done head by head, or token by token --- */

struct expand_job {
    struct pl_cpu *c;
    const struct pl_cpu_latent_attention *p;
    const struct pl_cpu_seq *seq;
    size_t head0, heads, units;
    void (*unit)(const struct expand_job *j, size_t at);
};

static void worker(void *arg, int index, int count) {
    struct expand_job *j = arg;
    size_t at, unused;
    (void)index;
    (void)count;
    while (cpu_take(j->c, 1, j->units, &at, &unused)) j->unit(j, at);
}
static void each(struct expand_job *j, size_t units, void (*unit)(const struct expand_job *j, size_t at)) {
    j->units = units, j->unit = unit;
    atomic_store_explicit(&j->c->next, 0, memory_order_relaxed);
    pl_pool_run_any(j->c->pool, worker, j);
}

static void widen_weights(const struct expand_job *j, size_t h) {
    const struct cpu_expand_scratch *s = j->c->expand;
    const size_t n = s->shape.nope, v = s->shape.value, l = s->shape.latent;
    float *k = s->w + h * (n + v) * l, *row = s->row + h * PL_MAX(n, l);
    const struct pl_tensor *turned = &j->p->k[j->head0 + h]->t, *values = &j->p->v[j->head0 + h]->t;
    bool good = true;
    for (size_t r = 0; r < l && good; r++) { /* [L, N] to [N, L] */
        good = pl_dequant_row_product(turned, r, row) == PL_OK;
        for (size_t i = 0; i < n; i++) k[i * l + r] = row[i];
    }
    for (size_t r = 0; r < v && good; r++) good = pl_dequant_row_product(values, r, k + (n + r) * l) == PL_OK;
    PL_ASSERT(good); /* products of the same matrices have been made */
}

static void widen_latent(const struct expand_job *j, size_t token) {
    const struct pl_cpu_kv *kv = j->p->kv;
    const size_t d = kv->head_dim, size = kv->page_tokens;
    const size_t at = ((size_t)j->seq->pages[token / size] * size + token % size) * d;
    float *to = j->c->expand->latents + token * d;
    if (kv->dtype == PL_F32) {
        memcpy(to, (const float *)kv->k + at, d * sizeof *to);
        return;
    }
    const uint16_t *from = (const uint16_t *)kv->k + at;
    for (size_t i = 0; i < d; i++) to[i] = kv->dtype == PL_F16 ? pl_f16_to_f32(from[i]) : pl_bf16_to_f32(from[i]);
}

static void put_rotated(const struct expand_job *j, size_t token) {
    const struct cpu_expand_scratch *s = j->c->expand;
    const size_t vector = vector_of(&s->shape), r = s->shape.rope, l = s->shape.latent;
    for (size_t h = 0; h < j->heads; h++)
        memcpy(s->keys + (token * j->heads + h + 1) * vector - r, s->latents + token * (l + r) + l, r * sizeof(float));
}

static void put_queries(const struct expand_job *j, size_t row) {
    const struct cpu_expand_scratch *s = j->c->expand;
    const size_t vector = vector_of(&s->shape), n = s->shape.nope, r = s->shape.rope, v = s->shape.value,
                 l = s->shape.latent;
    for (size_t h = 0; h < j->heads; h++) {
        float *to = s->q + (row * j->heads + h) * vector;
        const size_t from = j->seq->first_row + row, head = j->head0 + h;
        memset(to, 0, v * sizeof *to);
        memcpy(to + v, j->p->q + from * j->p->q_stride + head * (n + r), n * sizeof *to);
        memcpy(to + v + n, j->p->qa + from * j->p->qa_stride + (head + 1) * (l + r) - r, r * sizeof *to);
    }
}

static void make_keys(struct expand_job *j, size_t tokens) {
    const struct cpu_expand_scratch *s = j->c->expand;
    const size_t vector = vector_of(&s->shape), d = s->shape.latent + s->shape.rope, most = j->c->max_rows;
    for (size_t first = 0; first < tokens; first += most) {
        for (size_t i = 0; i < 2 * j->heads; i++) {
            s->to[i] = s->keys + (first * j->heads + i / 2) * vector + (i % 2 == 0 ? s->shape.value : 0);
            s->strides[i] = j->heads * vector;
        }
        const struct pl_cpu_matmul m = {.count = 2 * j->heads,
                                        .rows = PL_MIN(most, tokens - first),
                                        .w = (const struct pl_cpu_weight *const *)s->products,
                                        .x = s->latents + first * d,
                                        .x_stride = d,
                                        .y = s->to,
                                        .y_stride = s->strides};
        pl_cpu_matmul(j->c, &m);
    }
    each(j, tokens, put_rotated);
}

static void attend(struct expand_job *j, size_t tokens) {
    static const uint32_t one_page[1] = {0};
    const struct cpu_expand_scratch *s = j->c->expand;
    const size_t vector = vector_of(&s->shape);
    const struct pl_cpu_kv kv = {.k = s->keys,
                                 .v = s->keys,
                                 .dtype = PL_F32,
                                 .page_tokens = tokens,
                                 .kv_heads = j->heads,
                                 .head_dim = vector,
                                 .value_dim = s->shape.value};
    const struct pl_cpu_seq seq = {.rows = j->seq->rows, .past = j->seq->past, .pages = one_page};
    const struct pl_cpu_attention a = {.seq_count = 1,
                                       .seqs = &seq,
                                       .heads = j->heads,
                                       .q = s->q,
                                       .q_stride = j->heads * vector,
                                       .scale = j->p->scale,
                                       .kv = &kv,
                                       .out = j->p->out + j->seq->first_row * j->p->out_stride + j->head0 * s->shape.value,
                                       .out_stride = j->p->out_stride};
    pl_cpu_attention(j->c, &a);
}

void pl_cpu_latent_attention(struct pl_cpu *c, const struct pl_cpu_latent_attention *p) {
    for (size_t i = 0; i < p->seq_count; i++) {
        struct expand_job j = {.c = c, .p = p, .seq = &p->seqs[i]};
        const size_t tokens = j.seq->past + j.seq->rows, most = pl_cpu_expand_heads(c, tokens, j.seq->rows);
        PL_ASSERT(most > 0);
        each(&j, tokens, widen_latent);
        for (j.head0 = 0; j.head0 < c->expand->shape.heads; j.head0 += j.heads) {
            j.heads = PL_MIN(most, c->expand->shape.heads - j.head0);
            each(&j, j.heads, widen_weights);
            make_keys(&j, tokens);
            each(&j, j.seq->rows, put_queries);
            attend(&j, tokens);
        }
    }
}
