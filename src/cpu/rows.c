/* Row-wise operations: a few rows run on the caller, more are shared out by row. */
#include <math.h>
#include <string.h>

#include "cpu/internal.h"

/* Below this many elements waking the workers costs more than they save. */
enum { SERIAL_ELEMENTS = 1 << 14 };

static void share(struct pl_cpu *c, size_t elements, pl_pool_fn fn, void *arg) {
    atomic_store_explicit(&c->next, 0, memory_order_relaxed);
    if (elements < SERIAL_ELEMENTS)
        fn(arg, 0, 1);
    else
        pl_pool_run_any(c->pool, fn, arg);
}

/* Units taken at a time: a few pieces for each thread. */
static size_t grain_of(size_t units, int count) { return PL_MAX((size_t)1, units / ((size_t)count * 4)); }

struct row_job {
    struct pl_cpu *c;
    const struct pl_cpu_norm *norm;
    float *x, *y;
    const float *a, *b;
    size_t rows, cols, x_stride, y_stride, a_stride, b_stride;
    float cap; /* or scale */
    enum pl_act act;
};

static void norm_worker(void *arg, int index, int count) {
    (void)index;
    struct row_job *j = arg;
    size_t begin, end, grain = grain_of(j->norm->rows, count);
    while (cpu_take(j->c, grain, j->norm->rows, &begin, &end)) j->c->table->norm(j->norm, begin, end);
}
void pl_cpu_rmsnorm(struct pl_cpu *c, const struct pl_cpu_norm *n) {
    struct row_job j = {.c = c, .norm = n};
    share(c, n->rows * n->cols, norm_worker, &j);
}

static void add_worker(void *arg, int index, int count) {
    (void)index;
    struct row_job *j = arg;
    size_t begin, end, grain = grain_of(j->rows, count);
    while (cpu_take(j->c, grain, j->rows, &begin, &end))
        for (size_t r = begin; r < end; r++) j->c->table->add(j->x + r * j->x_stride, j->a + r * j->a_stride, j->cols);
}
void pl_cpu_add(struct pl_cpu *c, float *x, const float *add, size_t rows, size_t cols, size_t x_stride, size_t add_stride) {
    struct row_job j = {.c = c, .x = x, .a = add, .rows = rows, .cols = cols, .x_stride = x_stride, .a_stride = add_stride};
    share(c, rows * cols, add_worker, &j);
}

/* One row is split by columns, in units that keep the vector tails where they are. */
enum { COLUMN_GRAIN = 64 };
struct piece {
    size_t begin, end;  /* units taken and not yet done */
    size_t row, c0, c1; /* the next piece of one row */
};
static bool next_piece(struct row_job *j, int count, struct piece *p) {
    size_t units = (j->cols + COLUMN_GRAIN - 1) / COLUMN_GRAIN, total = j->rows * units;
    if (p->begin == p->end && !cpu_take(j->c, grain_of(total, count), total, &p->begin, &p->end)) return false;
    size_t u = p->begin % units, n = PL_MIN(p->end - p->begin, units - u);
    p->row = p->begin / units;
    p->c0 = u * COLUMN_GRAIN;
    p->c1 = PL_MIN(j->cols, p->c0 + n * COLUMN_GRAIN);
    p->begin += n;
    return true;
}

static void glu_worker(void *arg, int index, int count) {
    (void)index;
    struct row_job *j = arg;
    struct piece p = {0};
    while (next_piece(j, count, &p)) {
        size_t r = p.row, c0 = p.c0, n = p.c1 - p.c0;
        const float *up = j->b != NULL ? j->b + r * j->b_stride + c0 : NULL;
        j->c->table->glu(j->act, j->a + r * j->a_stride + c0, up, j->y + r * j->y_stride + c0, n);
    }
}
void pl_cpu_glu(struct pl_cpu *c, enum pl_act act, const float *gate, const float *up, float *y, size_t rows, size_t cols,
                size_t gate_stride, size_t up_stride, size_t y_stride) {
    PL_ASSERT(up != NULL || act != PL_ACT_SWIGLU_CLAMPED);
    struct row_job j = {.c = c,
                        .act = act,
                        .a = gate,
                        .b = up,
                        .y = y,
                        .rows = rows,
                        .cols = cols,
                        .a_stride = gate_stride,
                        .b_stride = up_stride,
                        .y_stride = y_stride};
    share(c, 4 * rows * cols, glu_worker, &j);
}

static void gate_worker(void *arg, int index, int count) {
    (void)index;
    struct row_job *j = arg;
    size_t begin, end, grain = grain_of(j->rows, count);
    while (cpu_take(j->c, grain, j->rows, &begin, &end))
        for (size_t r = begin; r < end; r++)
            j->c->table->scale(j->x + r * j->x_stride, 1.0f / (1.0f + expf(-j->a[r * j->a_stride])), j->cols);
}
void pl_cpu_gate_rows(struct pl_cpu *c, float *x, const float *gate, size_t rows, size_t cols, size_t x_stride,
                      size_t gate_stride) {
    struct row_job j = {
        .c = c, .x = x, .a = gate, .rows = rows, .cols = cols, .x_stride = x_stride, .a_stride = gate_stride};
    share(c, rows * cols, gate_worker, &j);
}

static void scale_worker(void *arg, int index, int count) {
    (void)index;
    struct row_job *j = arg;
    struct piece p = {0};
    while (next_piece(j, count, &p)) j->c->table->scale(j->x + p.row * j->x_stride + p.c0, j->cap, p.c1 - p.c0);
}
void pl_cpu_scale(struct pl_cpu *c, float *x, size_t rows, size_t cols, size_t stride, float scale) {
    struct row_job j = {.c = c, .x = x, .rows = rows, .cols = cols, .x_stride = stride, .cap = scale};
    share(c, rows * cols, scale_worker, &j);
}

static void softcap_worker(void *arg, int index, int count) {
    (void)index;
    struct row_job *j = arg;
    struct piece p = {0};
    while (next_piece(j, count, &p)) {
        size_t r = p.row, c0 = p.c0, n = p.c1 - p.c0;
        j->c->table->softcap(j->x + r * j->x_stride + c0, n, j->cap);
    }
}
void pl_cpu_softcap(struct pl_cpu *c, float *x, size_t rows, size_t cols, size_t stride, float cap) {
    struct row_job j = {.c = c, .x = x, .rows = rows, .cols = cols, .x_stride = stride, .cap = cap};
    share(c, 4 * rows * cols, softcap_worker, &j);
}

struct rope_job {
    struct pl_cpu *c;
    const struct pl_cpu_rope_append *a;
    size_t rows;
};

static void rope_worker(void *arg, int index, int count) {
    struct rope_job *j = arg;
    size_t begin, end, grain = grain_of(j->rows, count);
    float *tmp = cpu_thread_scratch(j->c, index);
    while (cpu_take(j->c, grain, j->rows, &begin, &end)) {
        size_t seen = 0;
        for (size_t s = 0; s < j->a->seq_count && seen < end; seen += j->a->seqs[s].rows, s++) {
            const struct pl_cpu_seq *q = &j->a->seqs[s];
            for (size_t r = begin > seen ? begin - seen : 0; r < q->rows && seen + r < end; r++)
                j->c->table->rope_append(j->a, q, r, tmp);
        }
    }
}
void pl_cpu_rope_append(struct pl_cpu *c, const struct pl_cpu_rope_append *a) {
    PL_ASSERT(a->kv->head_dim <= ATTN_HEAD_MAX && a->rope_dim <= a->kv->head_dim && a->rope_dim % 2 == 0);
    struct rope_job j = {.c = c, .a = a};
    for (size_t s = 0; s < a->seq_count; s++) j.rows += a->seqs[s].rows;
    share(c, 2 * j.rows * (a->heads + 2 * a->kv->kv_heads) * a->kv->head_dim, rope_worker, &j);
}
