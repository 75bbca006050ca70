/* The work of wide products: rows of a pass made bf16 once, then tiles of weights by whoever comes first. */
#include "cpu/wide.h"

#include <string.h>

#include "base/check.h"

bool cpu_wide_takes(const struct pl_cpu *c, const struct pl_cpu_weight *w, size_t rows) {
    const bool floats = w->kind == KIND_FLOAT && w->t.dtype != PL_F32;
    if (w->t.dtype == PL_TERNARY) return false; /* its activations are 8-bit by definition */
    return c->wide && c->space.wide != NULL && c->table->wide_tiles != NULL && rows >= WIDE_ROWS_MIN &&
           (floats || w->kind == KIND_Q8);
}

struct wide_job {
    struct pl_cpu *c;
    const struct pl_cpu_matmul *m;
    size_t first, each, units; /* first row of the pass; tiles of a unit, units of all matrices */
    struct wide_rows rows;
};

static size_t units_of(const struct pl_cpu_weight *w, size_t each) {
    return ((w->out + TILE_ROWS - 1) / TILE_ROWS + each - 1) / each;
}

static void group_worker(void *arg, int index, int count) {
    (void)index;
    (void)count;
    const struct wide_job *j = arg;
    const struct pl_cpu_matmul *m = j->m;
    size_t g, end;
    while (cpu_take(j->c, 1, (j->rows.rows + 15) / 16, &g, &end))
        j->c->table->wide_group(m->x + (j->first + 16 * g) * m->x_stride, m->x_stride, m->w[0]->in, &j->rows, g);
}

static void tiles_worker(void *arg, int index, int count) {
    (void)count;
    const struct wide_job *j = arg;
    const struct pl_cpu_matmul *m = j->m;
    size_t u, end;
    while (cpu_take(j->c, 1, j->units, &u, &end)) {
        size_t i = 0;
        for (size_t n; u >= (n = units_of(m->w[i], j->each)); i++) u -= n;
        const struct pl_cpu_weight *w = m->w[i];
        const size_t tile = u * j->each, tiles = (w->out + TILE_ROWS - 1) / TILE_ROWS;
        j->c->table->wide_tiles(w, tile, PL_MIN(j->each, tiles - tile), &j->rows, m->y[i] + j->first * m->y_stride[i],
                                m->y_stride[i], m->bias != NULL ? m->bias[i] : NULL, m->accumulate,
                                cpu_thread_scratch(j->c, index));
    }
}

void cpu_wide_matmul(struct pl_cpu *c, const struct pl_cpu_matmul *m) {
    struct wide_job j = {.c = c,
                         .m = m,
                         .each = WIDE_TILES,
                         .rows.blocks = (m->w[0]->in + 31) / 32,
                         .rows.terms = cpu_wide_terms(m->w[0]),
                         .rows.data = c->space.wide};
    for (;; j.each /= 2) { /* fewer tiles at a time when threads would be idle at the end */
        j.units = 0;
        for (size_t i = 0; i < m->count; i++) j.units += units_of(m->w[i], j.each);
        if (j.each == 2 || j.units >= 6 * (size_t)pl_pool_threads(c->pool)) break;
    }
    for (; j.first < m->rows; j.first += j.rows.rows) {
        j.rows.rows = PL_MIN((size_t)WIDE_ROWS, m->rows - j.first);
        atomic_store_explicit(&c->next, 0, memory_order_relaxed);
        pl_pool_run_any(c->pool, group_worker, &j);
        atomic_store_explicit(&c->next, 0, memory_order_relaxed);
        pl_pool_run_any(c->pool, tiles_worker, &j);
    }
}
