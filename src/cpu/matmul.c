/* Matrix products: weights prepared once, work split by tiles of output rows. Every element of y is computed by the
 * same operations whatever the thread, the thread count and the number of rows. */
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "cpu/internal.h"
#include "cpu/tile.h"
#include "cpu/wide.h"
#include "tensor/quant.h"

/* Activations of one pass over the weights: more are taken in further passes, so that they stay in the L2 cache. */
enum { PASS_BYTES = 1 << 20, PASS_ROWS = 64 };
/* Of so few rows memory is what a product waits for: threads take long shares. */
enum { FEW_ROWS = 16 };

static bool is_float(enum pl_dtype t) { return t == PL_F32 || t == PL_F16 || t == PL_BF16; }

static bool is_weight(enum pl_dtype t) { return is_float(t) || t == PL_MLX || pl_dtype_info(t)->block_elems > 1; }

static enum pl_status weight_check(const struct pl_cpu *c, const struct pl_tensor *t, struct pl_err *err) {
    uint64_t bytes;
    if (t->dtype >= PL_DTYPE_COUNT || !is_weight(t->dtype))
        PL_FAIL(err, PL_UNSUPPORTED, "tensor %s: elements of type %s cannot be the weights of a product",
                t->name != NULL ? t->name : "?", pl_dtype_name(t->dtype));
    if (t->dtype != PL_MLX && !pl_dtype_row_bytes(t->dtype, pl_tensor_cols(t), &bytes))
        PL_FAIL(err, PL_FORMAT, "tensor %s: %llu inputs are no multiple of the %u of a block of %s",
                t->name != NULL ? t->name : "?", (unsigned long long)pl_tensor_cols(t), pl_dtype_info(t->dtype)->block_elems,
                pl_dtype_name(t->dtype));
    if (t->dtype == PL_TERNARY && pl_tensor_cols(t) > CPU_TERNARY_IN_MAX)
        PL_FAIL(err, PL_UNSUPPORTED, "tensor %s: %llu inputs of a ternary product: %d are the most", t->name,
                (unsigned long long)pl_tensor_cols(t), CPU_TERNARY_IN_MAX);
    (void)c;
    return PL_OK;
}

static size_t file_bytes(const struct pl_tensor *t) {
    if (t->dtype != PL_MLX) return (size_t)t->bytes;
    size_t groups = (size_t)pl_tensor_rows(t) * (size_t)(pl_tensor_cols(t) / t->group);
    return (size_t)t->bytes + 2 * groups * pl_dtype_info(t->scale_dtype)->block_bytes;
}

struct pack_job {
    struct pl_cpu *c;
    struct pl_cpu_weight *w;
    size_t grain; /* tiles */
};

static void pack_worker(void *arg, int index, int count) {
    (void)count;
    struct pack_job *j = arg;
    for (int k = 0; k < cpu_nodes(j->c); k++) {
        int node = cpu_kth_node(j->c, index, k);
        size_t first, last, begin, end;
        cpu_near(j->c, (j->w->out + TILE_ROWS - 1) / TILE_ROWS, node, &first, &last);
        while (cpu_take_of(&j->c->near[node], j->grain, last - first, &begin, &end))
            for (size_t i = first + begin; i < first + end; i++)
                cpu_tile_pack(j->w->format, &j->w->layout, &j->w->t, i, j->w->tiles + i * j->w->layout.bytes);
    }
}

/* Fills the weight's tiles, on all threads. */
static void weight_pack(struct pl_cpu *c, struct pl_cpu_weight *w) {
    /* About a huge page for each turn: two threads that touch the same new one at once would both have it cleared. */
    const size_t tiles = (w->out + TILE_ROWS - 1) / TILE_ROWS,
                 share = (tiles + (size_t)pl_pool_threads(c->pool) - 1) / (size_t)pl_pool_threads(c->pool);
    struct pack_job j = {c, w, PL_MAX((size_t)1, PL_MIN(((size_t)2 << 20) / w->layout.bytes + 1, share))};
    cpu_near_start(c);
    pl_pool_run_any(c->pool, pack_worker, &j);
    w->packed = true;
    if (c->when_packed != NULL) c->when_packed(c->when_packed_user, &w->t);
}

static enum pl_status weight_hold(struct pl_cpu *c, struct pl_cpu_weight *w, struct pl_err *err) {
    size_t tiles = (w->out + TILE_ROWS - 1) / TILE_ROWS, total;
    w->layout = cpu_tile_layout(w->format, &w->t);
    if (!pl_mul_size(tiles, w->layout.bytes, &total)) PL_FAIL(err, PL_LIMIT, "tensor %s is too large to pack", w->t.name);
    w->tiles = cpu_huge_alloc(total);
    if (w->tiles == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for %zu bytes of packed weights of %s", total, w->t.name);
    w->bytes_owned = w->bytes_read = total;
    if (c->when_packed == NULL || total < c->later_bytes)
        weight_pack(c, w);
    else
        c->packing.total += total;
    return PL_OK;
}

void pl_cpu_pack_later(struct pl_cpu *c, size_t min_bytes, void (*when_packed)(void *user, const struct pl_tensor *t),
                       void *user) {
    c->later_bytes = min_bytes;
    c->when_packed = when_packed;
    c->when_packed_user = user;
}

size_t pl_cpu_pack_threshold(struct pl_cpu *c, size_t min_bytes) {
    size_t before = c->later_bytes;
    c->later_bytes = min_bytes;
    return before;
}

enum pl_status pl_cpu_weight_create(struct pl_cpu *c, const struct pl_tensor *t, struct pl_cpu_weight **out,
                                    struct pl_err *err) {
    PL_TRY(weight_check(c, t, err));
    struct pl_cpu_weight *w = pl_calloc(1, sizeof *w);
    if (w == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for weight %s", t->name != NULL ? t->name : "?");
    w->t = *t;
    w->out = (size_t)pl_tensor_rows(t);
    w->in = (size_t)pl_tensor_cols(t);
    w->bytes_read = file_bytes(t);
    if (t->dtype == PL_TERNARY) w->scale = *(const float *)t->scales;
    w->format = c->table->q8_tile != NULL ? cpu_tile_format(t) : NULL;
    w->kind = w->format != NULL ? KIND_Q8 : is_float(t->dtype) && c->table->float_tile != NULL ? KIND_FLOAT : KIND_PLAIN;
    if (w->kind == KIND_Q8) {
        enum pl_status s = weight_hold(c, w, err);
        if (s != PL_OK) {
            pl_cpu_weight_destroy(w);
            return s;
        }
    }
    *out = w;
    return PL_OK;
}

void pl_cpu_weight_destroy(struct pl_cpu_weight *w) {
    if (w == NULL) return;
    pl_free(w->tiles);
    pl_free(w);
}
size_t pl_cpu_weight_bytes_owned(const struct pl_cpu_weight *w) { return w->bytes_owned; }
size_t pl_cpu_weight_bytes_read(const struct pl_cpu_weight *w) { return w->bytes_read; }

const char *pl_cpu_weight_declines(const struct pl_cpu *c, const struct pl_cpu_weight *w) {
    return w->kind == KIND_PLAIN && c->table->q8_tile != NULL ? "no packed form of this type and width" : NULL;
}

/* --- names: [dtype][gemv, gemm] of each table and kind --- */
#define NAMES(prefix, suffix) \
    { PL_DTYPE_LIST(prefix##_##suffix) }
#define SCALAR_F32(n, text, e, b, g)  [n] = {"scalar/" text "xf32/gemv", "scalar/" text "xf32/gemm"},
#define AVX2_F32(n, text, e, b, g)    [n] = {"avx2/" text "xf32/gemv", "avx2/" text "xf32/gemm"},
#define AVX512_F32(n, text, e, b, g)  [n] = {"avx512/" text "xf32/gemv", "avx512/" text "xf32/gemm"},
#define AMX_Q8(n, text, e, b, g)      [n] = {"avx512-amx/" text "xq8/gemm"},
#define AMX_F32(n, text, e, b, g)     [n] = {"avx512-amx/" text "xbf16/gemv", "avx512-amx/" text "xbf16/gemm"},
#define AMX_WIDE(n, text, e, b, g)    [n] = {"avx512-amx/" text "xbf16/wide"},
#define NEON_F32(n, text, e, b, g)    [n] = {"neon/" text "xf32/gemv", "neon/" text "xf32/gemm"},
#define NEON_Q8(n, text, e, b, g)     [n] = {"neon-dotprod/" text "xq8/gemv", "neon-dotprod/" text "xq8/gemm"},
#define I8MM_Q8(n, text, e, b, g)     [n] = {"neon-dotprod/" text "xq8/gemv", "neon-i8mm/" text "xq8/gemm"},
#define AVX2_Q8(n, text, e, b, g)     [n] = {"avx2/" text "xq8/gemv", "avx2/" text "xq8/gemm"},
#define AVX_VNNI_Q8(n, text, e, b, g) [n] = {"avx-vnni/" text "xq8/gemv", "avx-vnni/" text "xq8/gemm"},
#define AVX512_Q8(n, text, e, b, g)   [n] = {"avx512-vnni/" text "xq8/gemv", "avx512-vnni/" text "xq8/gemm"},
static const char *const names_scalar[][2] = NAMES(SCALAR, F32);
static const char *const names_avx2[][2] = NAMES(AVX2, F32);
static const char *const names_avx512[][2] = NAMES(AVX512, F32);
static const char *const names_neon[][2] = NAMES(NEON, F32);
static const char *const names_neon_q8[][2] = NAMES(NEON, Q8);
static const char *const names_i8mm_q8[][2] = NAMES(I8MM, Q8);
static const char *const names_avx2_q8[][2] = NAMES(AVX2, Q8);
static const char *const names_avx_vnni_q8[][2] = NAMES(AVX_VNNI, Q8);
static const char *const names_avx512_q8[][2] = NAMES(AVX512, Q8);
static const char *const names_amx[][2] = NAMES(AMX, F32);
static const char *const names_amx_q8[][1] = NAMES(AMX, Q8);
static const char *const names_amx_wide[][1] = NAMES(AMX, WIDE);

/* Float weights by terms: of few rows only where all rows must have the same bits, for vectors read one row twice as fast.
 */
static bool by_terms(const struct pl_cpu *c, size_t rows) {
    return c->table->float_groups != NULL && (!c->wide || rows >= WIDE_ROWS_MIN);
}

const char *pl_cpu_weight_kernel(const struct pl_cpu *c, const struct pl_cpu_weight *w, size_t rows) {
    size_t many = rows > 1;
    bool q8 = w->kind == KIND_Q8;
    if (w->kind == KIND_PLAIN && w->t.dtype == PL_TERNARY) return many ? "scalar/ternaryxq8/gemm" : "scalar/ternaryxq8/gemv";
    if (cpu_wide_takes(c, w, rows)) return names_amx_wide[w->t.dtype][0];
    if (c->table->isa == PL_ISA_AMX && q8 && rows >= CPU_AMX_ROWS_MIN) return names_amx_q8[w->t.dtype][0];
    if (w->kind == KIND_FLOAT && by_terms(c, rows)) return names_amx[w->t.dtype][many];
    if (c->table->isa == PL_ISA_AVX512 || c->table->isa == PL_ISA_AMX)
        return q8 ? names_avx512_q8[w->t.dtype][many] : names_avx512[w->t.dtype][many];
    if (c->table->isa == PL_ISA_I8MM && q8) return names_i8mm_q8[w->t.dtype][many];
    if (c->table->isa == PL_ISA_NEON || c->table->isa == PL_ISA_I8MM)
        return q8 ? names_neon_q8[w->t.dtype][many] : names_neon[w->t.dtype][many];
    if (c->table->isa == PL_ISA_AVX_VNNI && q8) return names_avx_vnni_q8[w->t.dtype][many];
    if (c->table->isa == PL_ISA_AVX2 || c->table->isa == PL_ISA_AVX_VNNI)
        return q8 ? names_avx2_q8[w->t.dtype][many] : names_avx2[w->t.dtype][many];
    return names_scalar[w->t.dtype][many];
}

/* --- the product --- */
struct product {
    struct pl_cpu *c;
    const struct pl_cpu_matmul *m;
    size_t group_count, most_groups, groups_per_pass, rows_per_pass, passes;
    size_t tiles;          /* of all matrices */
    bool ternary;          /* all of them */
    bool terms;            /* float weights by terms */
    bool words, two_terms; /* a fine one: inputs of 16 bits, or in two terms of 8 */
    size_t term_count, most_terms, terms_per_pass;
};

static void plain_tile(const struct product *p, size_t i, size_t tile, size_t begin, size_t end, float *row) {
    const struct pl_cpu_matmul *m = p->m;
    const struct pl_cpu_weight *w = m->w[i];
    size_t last = PL_MIN((tile + 1) * TILE_ROWS, w->out);
    for (size_t o = tile * TILE_ROWS; o < last; o++) {
        PL_ASSERT(pl_dequant_row_product(&w->t, o, row) == PL_OK);
        float b = m->bias != NULL && m->bias[i] != NULL ? m->bias[i][o] : 0.0f;
        for (size_t r = begin; r < end; r++) {
            float *y = m->y[i] + r * m->y_stride[i] + o, v = p->c->table->dot(m->x + r * m->x_stride, row, w->in) + b;
            *y = m->accumulate ? *y + v : v;
        }
    }
}

/* A group of a fine product holds the first terms of its rows, then the second ones: their sums are the results. */
static void fine_tile(const struct product *p, const struct pl_cpu_weight *w, size_t i, size_t tile,
                      const struct cpu_act_group *a, const float *bias) {
    const struct pl_cpu_matmul *m = p->m;
    float terms[GROUP_MAX * TILE_ROWS];
    size_t outs = PL_MIN((size_t)TILE_ROWS, w->out - tile * TILE_ROWS), rows = a->rows / 2;
    const struct cpu_act_group here = {0, a->rows, a->data};
    if (p->c->table->q8_groups != NULL)
        p->c->table->q8_groups(w, tile, &here, 1, terms, TILE_ROWS, NULL, false);
    else
        p->c->table->q8_tile(w, tile, a, terms, TILE_ROWS, NULL, false);
    for (size_t r = 0; r < rows; r++) {
        float *y = m->y[i] + (a->first / 2 + r) * m->y_stride[i] + tile * TILE_ROWS;
        for (size_t o = 0; o < outs; o++) {
            float v = terms[r * TILE_ROWS + o] + terms[(rows + r) * TILE_ROWS + o] + (bias != NULL ? bias[o] : 0.0f);
            y[o] = m->accumulate ? y[o] + v : v;
        }
    }
}

/* The rows of groups [first, last): sums of whole numbers become results. */
static void scale_sums(const struct product *p, const struct pl_cpu_weight *w, size_t i, size_t tile, size_t first,
                       size_t last) {
    const struct cpu_act_group *g = p->c->space.groups;
    if (first >= last) return;
    const size_t row = g[first].first, rows = g[last - 1].first + g[last - 1].rows - row;
    cpu_ternary_scale(w, tile, p->c->space.factors + row, rows, p->m->y[i] + row * p->m->y_stride[i] + tile * TILE_ROWS,
                      p->m->y_stride[i]);
}

static void tile_run(const struct product *p, size_t i, size_t tile, size_t pass, void *scratch) {
    const struct pl_cpu_matmul *m = p->m;
    const struct pl_cpu_weight *w = m->w[i];
    struct pl_cpu_weight once;
    if (w->kind == KIND_Q8 && !w->packed) { /* one tile of it, in scratch */
        PL_ASSERT(w->layout.bytes <= p->c->scratch_each);
        cpu_tile_pack(w->format, &w->layout, &w->t, tile, scratch);
        once = *w;
        once.tiles = (unsigned char *)scratch - tile * w->layout.bytes;
        w = &once;
    }
    if (w->kind == KIND_Q8) {
        const float *bias = m->bias != NULL && m->bias[i] != NULL ? m->bias[i] + tile * TILE_ROWS : NULL;
        size_t first = m->spans != NULL ? m->spans[i].group : 0, n = m->spans != NULL ? m->spans[i].groups : p->group_count;
        size_t last = PL_MIN(n, (pass + 1) * p->groups_per_pass);
        if (p->c->table->q8_groups != NULL && !m->fine && pass * p->groups_per_pass < last) {
            const struct cpu_act_group *a = &p->c->space.groups[first + pass * p->groups_per_pass];
            p->c->table->q8_groups(w, tile, a, last - pass * p->groups_per_pass, m->y[i] + tile * TILE_ROWS, m->y_stride[i],
                                   bias, m->accumulate);
            if (p->ternary) scale_sums(p, w, i, tile, pass * p->groups_per_pass, last);
            return;
        }
        for (size_t g = pass * p->groups_per_pass; g < last; g++) {
            const struct cpu_act_group *a = &p->c->space.groups[first + g];
            if (p->two_terms) {
                fine_tile(p, w, i, tile, a, bias);
                continue;
            }
            float *y = m->y[i] + a->first * m->y_stride[i] + tile * TILE_ROWS;
            (p->words ? p->c->table->fine_tile : p->c->table->q8_tile)(w, tile, a, y, m->y_stride[i], bias, m->accumulate);
        }
        if (p->ternary) scale_sums(p, w, i, tile, pass * p->groups_per_pass, last);
        return;
    }
    if (w->kind == KIND_FLOAT && p->terms) {
        const float *bias = m->bias != NULL && m->bias[i] != NULL ? m->bias[i] + tile * TILE_ROWS : NULL;
        size_t first = m->spans != NULL ? m->spans[i].term_group : 0,
               n = m->spans != NULL ? m->spans[i].term_groups : p->term_count, begin = pass * p->terms_per_pass;
        if (begin < n)
            p->c->table->float_groups(w, tile, &p->c->space.term_groups[first + begin], PL_MIN(n - begin, p->terms_per_pass),
                                      m->y[i] + tile * TILE_ROWS, m->y_stride[i], bias, m->accumulate);
        return;
    }
    size_t first = m->spans != NULL ? m->spans[i].first : 0, n = m->spans != NULL ? m->spans[i].rows : m->rows;
    size_t begin = first + pass * p->rows_per_pass, end = PL_MIN(first + n, begin + p->rows_per_pass);
    if (begin >= end) return;
    if (p->ternary)
        cpu_ternary_plain(w, tile, m->x + begin * m->x_stride, m->x_stride, end - begin,
                          m->y[i] + begin * m->y_stride[i] + tile * TILE_ROWS, m->y_stride[i], scratch);
    else if (w->kind == KIND_FLOAT)
        p->c->table->float_tile(m, i, tile, begin, end, scratch);
    else
        plain_tile(p, i, tile, begin, end, scratch);
}

/* Tiles of matrix i that lie on the node. */
static void near_tiles(const struct product *p, size_t i, int node, size_t *first, size_t *last) {
    cpu_near(p->c, (p->m->w[i]->out + TILE_ROWS - 1) / TILE_ROWS, node, first, last);
}

/* Unit u of a node's share: its tiles of all matrices, once for each pass. */
static void run_unit(const struct product *p, int node, size_t share, size_t u, void *scratch) {
    size_t pass = u / share, at = u % share, i = 0, first, last;
    if (p->m->spans != NULL) { /* grouped products have matrices of one height: many, so they are not walked */
        near_tiles(p, 0, node, &first, &last);
        i = at / (last - first);
        at -= i * (last - first);
    }
    for (near_tiles(p, i, node, &first, &last); at >= last - first; near_tiles(p, i, node, &first, &last)) {
        at -= last - first;
        i++;
    }
    tile_run(p, i, first + at, pass, scratch);
}

static void product_worker(void *arg, int index, int count) {
    struct product *p = arg;
    const struct pl_cpu_matmul *m = p->m;
    void *scratch = cpu_thread_scratch(p->c, index);
    const bool few = m->rows <= FEW_ROWS;
    for (int k = 0; k < cpu_nodes(p->c); k++) {
        int node = cpu_kth_node(p->c, index, k);
        size_t share = 0, first, last, begin, end;
        for (size_t i = 0; i < (m->spans != NULL ? 1 : m->count); i++) {
            near_tiles(p, i, node, &first, &last);
            share += last - first;
        }
        if (m->spans != NULL) share *= m->count;
        if (share == 0) continue;
        const size_t grain = PL_MAX((size_t)1, p->tiles / ((size_t)count * 8));
        while (few ? cpu_take_share(&p->c->near[node], (size_t)count, grain, share * p->passes, &begin, &end)
                   : cpu_take_of(&p->c->near[node], grain, share * p->passes, &begin, &end))
            for (size_t u = begin; u < end; u++) run_unit(p, node, share, u, scratch);
    }
}

/* Packs rows, looks at what was lost, and packs rows and losses together. */
static void quantize_fine(const struct product *p, const struct cpu_act_group *g, float *both) {
    const struct pl_cpu_matmul *m = p->m;
    size_t rows = g->rows / 2, in = m->w[0]->in;
    const float *x = m->x + g->first / 2 * m->x_stride;
    unsigned char *packed = (unsigned char *)g->data;
    p->c->table->quantize(x, m->x_stride, rows, in, packed);
    for (size_t at = 0; at < in; at += ACT_BLOCK, packed += rows * ACT_ROW_BYTES) {
        const int8_t *q = (const int8_t *)packed;
        const float *scale = (const float *)(const void *)(packed + ACT_BLOCK * rows);
        for (size_t r = 0; r < rows; r++)
            for (size_t k = 0; k < PL_MIN((size_t)ACT_BLOCK, in - at); k++) {
                float v = x[r * m->x_stride + at + k];
                both[r * in + at + k] = v;
                both[(rows + r) * in + at + k] = v - scale[r] * (float)q[r * ACT_BLOCK + k];
            }
    }
    p->c->table->quantize(both, in, g->rows, in, (unsigned char *)g->data);
}

static void quantize_worker(void *arg, int index, int count) {
    (void)count;
    struct product *p = arg;
    const struct pl_cpu_matmul *m = p->m;
    size_t begin, end;
    while (cpu_take(p->c, 1, p->group_count, &begin, &end)) {
        const struct cpu_act_group *g = &p->c->space.groups[begin];
        if (p->two_terms) {
            quantize_fine(p, g, cpu_thread_scratch(p->c, index));
            continue;
        }
        if (p->ternary) {
            cpu_ternary_group(m->x + g->first * m->x_stride, m->x_stride, g->rows, m->w[0]->in, (unsigned char *)g->data,
                              p->c->space.factors + g->first);
            continue;
        }
        (p->words ? p->c->table->fine_inputs : p->c->table->quantize)(m->x + g->first * m->x_stride, m->x_stride, g->rows,
                                                                      m->w[0]->in, (unsigned char *)g->data);
    }
}

static void terms_worker(void *arg, int index, int count) {
    (void)index;
    (void)count;
    struct product *p = arg;
    const struct pl_cpu_matmul *m = p->m;
    size_t begin, end;
    while (cpu_take(p->c, 1, p->term_count, &begin, &end)) {
        const struct cpu_act_group *g = &p->c->space.term_groups[begin];
        p->c->table->float_terms(m->x + g->first * m->x_stride, m->x_stride, g->rows, m->w[0]->in, (unsigned char *)g->data);
    }
}

/* Rows [first, end) in groups of 16, and one of what is left. */
static void plan_terms_span(struct product *p, size_t row_bytes, size_t first, size_t end, size_t *used) {
    struct pl_cpu *c = p->c;
    for (size_t rows; first < end; first += rows) {
        rows = PL_MIN((size_t)GROUP_MAX, end - first);
        PL_ASSERT(p->term_count < c->group_cap);
        c->space.term_groups[p->term_count++] = (struct cpu_act_group){first, rows, c->space.terms + *used};
        *used += rows * row_bytes;
    }
}

static void plan_terms(struct product *p, size_t in) {
    const struct pl_cpu_matmul *m = p->m;
    size_t row_bytes = (in + ACT_BLOCK - 1) / ACT_BLOCK * ACT_BLOCK * 6, used = 0;
    if (m->spans == NULL) plan_terms_span(p, row_bytes, 0, m->rows, &used);
    for (size_t i = 0; m->spans != NULL && i < m->count; i++) {
        struct pl_cpu_span *s = &m->spans[i], *before = i > 0 ? s - 1 : NULL;
        bool same = before != NULL && before->first == s->first && before->rows == s->rows;
        s->term_group = same ? before->term_group : p->term_count;
        if (!same) plan_terms_span(p, row_bytes, s->first, s->first + s->rows, &used);
        s->term_groups = same ? before->term_groups : p->term_count - s->term_group;
        p->most_terms = PL_MAX(p->most_terms, s->term_groups);
    }
    if (m->spans == NULL) p->most_terms = p->term_count;
    p->terms_per_pass = PL_MAX((size_t)(PASS_ROWS / GROUP_MAX), PASS_BYTES / (row_bytes * GROUP_MAX));
}

/* Rows [first, end): full groups, then one group for each power of two of what is left. */
static void plan_span(struct product *p, size_t row_bytes, size_t first, size_t end, size_t *used) {
    struct pl_cpu *c = p->c;
    for (size_t rows = c->table->group_max; first < end; first += rows) {
        while (rows > end - first) rows /= 2;
        PL_ASSERT(p->group_count < c->group_cap);
        c->space.groups[p->group_count++] = (struct cpu_act_group){first, rows, c->space.acts + *used};
        *used += (rows * row_bytes + 63) / 64 * 64;
    }
}

static void plan_groups(struct product *p, size_t in) {
    const struct pl_cpu_matmul *m = p->m;
    size_t row_bytes = (in + ACT_BLOCK - 1) / ACT_BLOCK * (p->words ? (size_t)FINE_ROW_BYTES : ACT_ROW_BYTES), used = 0,
           most = 0;
    if (m->spans == NULL) plan_span(p, row_bytes, 0, m->rows * (p->two_terms ? 2 : 1), &used); /* even, so every group is */
    for (size_t i = 0; m->spans != NULL && i < m->count; i++) {
        struct pl_cpu_span *s = &m->spans[i], *before = i > 0 ? s - 1 : NULL;
        bool same = before != NULL && before->first == s->first && before->rows == s->rows;
        s->group = same ? before->group : p->group_count;
        if (!same) plan_span(p, row_bytes, s->first, s->first + s->rows, &used);
        s->groups = same ? before->groups : p->group_count - s->group;
        most = PL_MAX(most, s->groups);
    }
    p->most_groups = m->spans != NULL ? most : p->group_count;
    /* 64 rows never need a second pass over the weights, however wide they are. */
    const size_t least = PASS_ROWS * (p->two_terms ? 2 : 1) / p->c->table->group_max;
    p->groups_per_pass = PL_MAX(least, PASS_BYTES / (row_bytes * p->c->table->group_max));
}

static size_t most_rows(const struct pl_cpu_matmul *m) {
    size_t most = 0;
    if (m->spans == NULL) return m->rows;
    for (size_t i = 0; i < m->count; i++) most = PL_MAX(most, m->spans[i].rows);
    return most;
}

/* All of it goes the wide way. */
static bool is_wide(const struct pl_cpu *c, const struct pl_cpu_matmul *m) {
    if (m->fine || m->spans != NULL) return false;
    for (size_t i = 0; i < m->count; i++)
        if (!cpu_wide_takes(c, m->w[i], m->rows) || m->w[i]->kind != m->w[0]->kind) return false;
    return true;
}

/* Packs what was met before, or has to be packed; true when a matrix is met for the first time and stays as it is. */
static bool settle(struct pl_cpu *c, const struct pl_cpu_matmul *m, bool must) {
    bool first = false, packs = false;
    for (size_t i = 0; i < m->count; i++) {
        struct pl_cpu_weight *w = (struct pl_cpu_weight *)(uintptr_t)m->w[i]; /* made by pl_cpu_weight_create, not const */
        if (w->kind != KIND_Q8 || w->packed) continue;
        if (!w->met && !must) {
            first = w->met = true;
            continue;
        }
        const uint64_t since = pl_clock_ns();
        weight_pack(c, w);
        cpu_packing_done(c, w, since);
        packs = true;
    }
    if (!packs) cpu_packing_rests(c);
    return first;
}

void pl_cpu_matmul(struct pl_cpu *c, const struct pl_cpu_matmul *m) {
    if (m->rows == 0 || m->count == 0) return;
    size_t in = m->w[0]->in;
    PL_ASSERT(m->rows <= c->max_rows && in <= c->max_in);
    struct product p = {.c = c, .m = m, .ternary = m->w[0]->t.dtype == PL_TERNARY};
    p.words = m->fine && c->table->fine_tile != NULL;
    p.two_terms = m->fine && !p.words;
    PL_ASSERT(!p.ternary || (m->bias == NULL && m->spans == NULL && !m->accumulate && !m->fine));
    const bool wide = is_wide(c, m);
    bool q8 = false, floats = false, first = settle(c, m, wide);
    if (wide) {
        cpu_wide_matmul(c, m);
        return;
    }
    for (size_t i = 0; i < m->count; i++) {
        PL_ASSERT(m->w[i]->in == in && (m->w[i]->t.dtype == PL_TERNARY) == p.ternary);
        q8 = q8 || m->w[i]->kind == KIND_Q8;
        floats = floats || m->w[i]->kind == KIND_FLOAT;
        PL_ASSERT(m->spans == NULL || (m->w[i]->out == m->w[0]->out && !m->fine));
        p.tiles += (m->w[i]->out + TILE_ROWS - 1) / TILE_ROWS;
    }
    p.rows_per_pass = PL_MAX((size_t)PASS_ROWS, PASS_BYTES / (in * sizeof(float)));
    p.passes = (most_rows(m) + p.rows_per_pass - 1) / p.rows_per_pass;
    p.terms = floats && by_terms(c, m->rows);
    if (p.terms) {
        plan_terms(&p, in);
        p.passes = PL_MAX(p.passes, (p.most_terms + p.terms_per_pass - 1) / p.terms_per_pass);
        atomic_store_explicit(&c->next, 0, memory_order_relaxed);
        if (p.term_count == 1)
            terms_worker(&p, 0, 1);
        else
            pl_pool_run_any(c->pool, terms_worker, &p);
    }
    if (q8) {
        plan_groups(&p, in);
        p.passes = PL_MAX(p.passes, (p.most_groups + p.groups_per_pass - 1) / p.groups_per_pass);
        if (first)
            p.rows_per_pass = m->rows, p.groups_per_pass = p.group_count, p.terms_per_pass = p.term_count,
            p.passes = 1; /* a tile is made once */
        atomic_store_explicit(&c->next, 0, memory_order_relaxed);
        if (m->rows < 4)
            quantize_worker(&p, 0, 1);
        else
            pl_pool_run_any(c->pool, quantize_worker, &p);
    }
    cpu_near_start(c);
    pl_pool_run_any(c->pool, product_worker, &p);
}

/* --- embedding rows --- */
struct embed_job {
    struct pl_cpu *c;
    const struct pl_tensor *table;
    const uint32_t *ids;
    size_t rows, y_stride;
    float scale, *y;
};

static void embed_worker(void *arg, int index, int count) {
    (void)index;
    (void)count;
    struct embed_job *j = arg;
    size_t r, unused, cols = (size_t)pl_tensor_cols(j->table);
    while (cpu_take(j->c, 1, j->rows, &r, &unused)) {
        PL_ASSERT(j->ids[r] < pl_tensor_rows(j->table));
        PL_ASSERT(pl_dequant_row_product(j->table, j->ids[r], j->y + r * j->y_stride) == PL_OK);
        if (j->scale != 1.0f) j->c->table->scale(j->y + r * j->y_stride, j->scale, cols);
    }
}

void pl_cpu_embed(struct pl_cpu *c, const struct pl_tensor *table, const uint32_t *ids, size_t rows, float scale, float *y,
                  size_t y_stride) {
    struct embed_job j = {c, table, ids, rows, y_stride, scale, y};
    atomic_store_explicit(&c->next, 0, memory_order_relaxed);
    if (rows < 4)
        embed_worker(&j, 0, 1);
    else
        pl_pool_run_any(c->pool, embed_worker, &j);
}
