/* Latent attention's own parts: a product of each head, and the append of latent keys. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "cpu/internal.h"
#include "tensor/convert.h"

/* --- products of heads --- */

/* Rows of all heads, those of one head one after the other, in turns of so many rows. */
struct cpu_heads_scratch {
    size_t heads, in, out, rows;
    float *x, *y; /* [heads * rows] */
    float **to;
    size_t *strides;
    struct pl_cpu_span *spans;
};
enum { SLOTS_MAX = 4096 }; /* rows of all heads in one turn */

void cpu_heads_free(struct cpu_heads_scratch *s) {
    if (s == NULL) return;
    pl_free(s->x);
    pl_free(s->y);
    pl_free((void *)s->to);
    pl_free(s->strides);
    pl_free(s->spans);
    pl_free(s);
}

static float *floats(size_t a, size_t b, size_t c) {
    size_t n;
    return pl_mul_size(a, b, &n) && pl_mul_size(n, c, &n) && pl_mul_size(n, sizeof(float), &n) ? pl_alloc_aligned(n, 64)
                                                                                               : NULL;
}

enum pl_status pl_cpu_heads_reserve(struct pl_cpu *c, size_t heads, size_t in, size_t out, size_t rows, struct pl_err *err) {
    const struct cpu_heads_scratch none = {0}, *now = c->heads != NULL ? c->heads : &none;
    rows = PL_MIN(rows, PL_MAX(SLOTS_MAX / heads, (size_t)1));
    if (heads <= now->heads && in <= now->in && out <= now->out && rows <= now->rows) return PL_OK;
    struct cpu_heads_scratch *s = pl_calloc(1, sizeof *s);
    if (s != NULL) {
        s->heads = PL_MAX(heads, now->heads);
        s->in = PL_MAX(in, now->in);
        s->out = PL_MAX(out, now->out);
        s->rows = PL_MAX(rows, now->rows);
        s->x = floats(s->heads, s->rows, s->in);
        s->y = floats(s->heads, s->rows, s->out);
        s->to = (float **)pl_alloc(s->heads, sizeof *s->to);
        s->strides = pl_alloc(s->heads, sizeof *s->strides);
        s->spans = pl_alloc(s->heads, sizeof *s->spans);
    }
    if (s == NULL || s->x == NULL || s->y == NULL || s->to == NULL || s->strides == NULL || s->spans == NULL) {
        cpu_heads_free(s);
        PL_FAIL(err, PL_NO_MEMORY, "no memory for products of %zu heads", heads);
    }
    cpu_heads_free(c->heads);
    c->heads = s;
    return pl_cpu_reserve(c, s->heads * s->rows, PL_MAX(s->in, s->out), 0, err);
}

/* Rows [first, first + n): each head's inputs together, a product of each, the outputs back to where they belong. */
static void some_rows(struct pl_cpu *c, const struct pl_cpu_heads *p, size_t first, size_t n) {
    struct cpu_heads_scratch *s = c->heads;
    size_t in = p->w[0]->in, out = p->w[0]->out;
    for (size_t h = 0; h < p->heads; h++) {
        s->to[h] = s->y;
        s->strides[h] = out;
        s->spans[h] = (struct pl_cpu_span){.first = h * n, .rows = n};
        for (size_t r = 0; r < n; r++)
            memcpy(s->x + (h * n + r) * in, p->x + (first + r) * p->x_stride + h * p->x_head, in * sizeof(float));
    }
    struct pl_cpu_matmul m = {.count = p->heads,
                              .rows = p->heads * n,
                              .w = p->w,
                              .x = s->x,
                              .x_stride = in,
                              .y = s->to,
                              .y_stride = s->strides,
                              .spans = s->spans};
    pl_cpu_matmul(c, &m);
    for (size_t h = 0; h < p->heads; h++)
        for (size_t r = 0; r < n; r++)
            memcpy(p->y + (first + r) * p->y_stride + h * p->y_head, s->y + (h * n + r) * out, out * sizeof(float));
}

size_t pl_cpu_heads_linear(struct pl_cpu *c, const struct pl_cpu_heads *p) {
    size_t bytes = 0;
    PL_ASSERT(c->heads != NULL && p->heads <= c->heads->heads && p->w[0]->in <= c->heads->in &&
              p->w[0]->out <= c->heads->out);
    size_t most = PL_MAX(c->heads->rows * c->heads->heads / p->heads, (size_t)1);
    for (size_t r = 0; r < p->rows; r += most) some_rows(c, p, r, PL_MIN(most, p->rows - r));
    for (size_t h = 0; h < p->heads; h++) bytes += p->w[h]->bytes_read;
    return bytes;
}

/* --- append --- */

struct append_job {
    struct pl_cpu *c;
    const struct pl_cpu_latent_append *a;
    size_t rows;
};

static void rotate(const float *x, float *y, const float *cos_sin, size_t dim, bool halves) {
    for (size_t i = 0; i < dim / 2; i++) {
        size_t i0 = halves ? i : 2 * i, i1 = halves ? i + dim / 2 : 2 * i + 1;
        float c = cos_sin[2 * i], s = cos_sin[2 * i + 1], x0 = x[i0], x1 = x[i1];
        y[i0] = x0 * c - x1 * s;
        y[i1] = x0 * s + x1 * c;
    }
}

static void store(const struct pl_cpu_kv *kv, size_t slot, const float *x) {
    size_t at = slot * kv->head_dim;
    for (size_t i = 0; i < kv->head_dim; i++) {
        if (kv->dtype == PL_F32)
            ((float *)kv->k)[at + i] = x[i];
        else
            ((uint16_t *)kv->k)[at + i] = kv->dtype == PL_F16 ? pl_f32_to_f16(x[i]) : pl_f32_to_bf16(x[i]);
    }
}

/* Row r of the sequence; key: room for one. */
static void append_row(const struct pl_cpu_latent_append *a, const struct pl_cpu_seq *q, size_t r, float *key) {
    const struct pl_cpu_kv *kv = a->kv;
    size_t row = q->first_row + r, position = q->past + r, c = kv->value_dim, dim = kv->head_dim - c;
    const float *latent = a->latent + row * a->latent_stride, *table = a->cos_sin + position * dim;
    double sum = 0;
    for (size_t i = 0; i < c; i++) sum += (double)latent[i] * (double)latent[i];
    float inverse = (float)(1 / sqrt(sum / (double)c + (double)a->norm_eps));
    for (size_t i = 0; i < c; i++) key[i] = latent[i] * inverse * a->norm[i];
    rotate(latent + c, key + c, table, dim, a->halves);
    store(kv, (size_t)q->pages[position / kv->page_tokens] * kv->page_tokens + position % kv->page_tokens, key);
    for (size_t h = 0; h < a->heads; h++)
        rotate(a->q + row * a->q_stride + (h + 1) * a->q_head - dim, a->qa + row * a->qa_stride + h * kv->head_dim + c,
               table, dim, a->halves);
}

static void append_worker(void *arg, int index, int count) {
    (void)count;
    struct append_job *j = arg;
    size_t at, unused;
    float *key = cpu_thread_scratch(j->c, index);
    while (cpu_take(j->c, 1, j->rows, &at, &unused)) {
        size_t s = 0;
        for (; at >= j->a->seqs[s].rows; s++) at -= j->a->seqs[s].rows;
        append_row(j->a, &j->a->seqs[s], at, key);
    }
}

void pl_cpu_latent_append(struct pl_cpu *c, const struct pl_cpu_latent_append *a) {
    PL_ASSERT(a->kv->head_dim <= ATTN_HEAD_MAX && a->kv->kv_heads == 1 && a->kv->value_dim < a->kv->head_dim);
    struct append_job j = {.c = c, .a = a};
    for (size_t s = 0; s < a->seq_count; s++) j.rows += a->seqs[s].rows;
    atomic_store_explicit(&c->next, 0, memory_order_relaxed);
    if (j.rows < 8)
        append_worker(&j, 0, 1);
    else
        pl_pool_run_any(c->pool, append_worker, &j);
}
