/* The CPU backend: activations are host arrays, weights wrap what src/cpu prepared, every call runs at once. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "cpu/cpu.h"
#include "ops/cpu_ops.h"
#include "tensor/kv8.h"
#include "tensor/quant.h"

enum { ALIGN = 64, KERNEL_NAME = 40 };

struct cpu_ops {
    struct pl_ops base;
    struct pl_cpu *cpu;
    bool best;               /* the instruction set was not asked for by name */
    struct pl_cpu_seq *seqs; /* of the current step; behind them the same with the pages of windowed layers */
    size_t seqs_cap;
    struct pl_cpu_state_seq *states; /* of the current step, in the layer at hand */
    size_t states_cap;
    size_t reserved_rows, reserved_cols, reserved_tokens;
    size_t positions;                      /* of the longest rotary table: no sequence is longer */
    struct pl_cpu_sparse sparse;           /* least 0: off */
    char kernel[PL_OP_COUNT][KERNEL_NAME]; /* "avx2/norm"; products have names of their own */
    char expanded[KERNEL_NAME];            /* "avx2/attention/expanded" */
};
struct cpu_weight {
    struct pl_weight base;
    struct pl_cpu_weight *matrix;   /* NULL for vectors and pure lookups */
    struct pl_tensor table;         /* lookups read the file */
    float *vector;                  /* NULL for matrices */
    struct pl_cpu_weight **experts; /* [base.experts], of experts or heads, or NULL */
    size_t expert_count;
    char fine_kernel[2][48]; /* of the output product, for one row and for more */
};
struct cpu_activation {
    struct pl_activation base;
    float *data;
    size_t stride; /* cols rounded up to whole cache lines */
};
struct cpu_kv {
    struct pl_kv_store base;
    char *data;                    /* NULL: no layer has pages */
    size_t key_bytes, value_bytes; /* of one page: a layer's keys, and then its values where they are not keys */
    float *state;                  /* [layers, slots, conv + ssm] or NULL */
};
struct cpu_rope {
    struct pl_rope base;
    float *cos_sin;
};

static struct cpu_ops *cpu_of(struct pl_ops *o) { return (struct cpu_ops *)o; }
static const struct cpu_weight *weight_of(const struct pl_weight *w) { return (const struct cpu_weight *)w; }
static const struct cpu_activation *data_of(const struct pl_activation *a) { return (const struct cpu_activation *)a; }

static void count(struct pl_ops *o, enum pl_op op, uint64_t bytes) { pl_ops_count(o, op, cpu_of(o)->kernel[op], 1, bytes); }

/* Scratch grows while a model is loaded, never within a step. */
static enum pl_status reserve(struct cpu_ops *c, size_t rows, size_t cols, size_t tokens, struct pl_err *err) {
    rows = PL_MAX(rows, c->reserved_rows);
    cols = PL_MAX(cols, c->reserved_cols);
    tokens = PL_MAX(tokens, c->reserved_tokens);
    if (rows == c->reserved_rows && cols == c->reserved_cols && tokens == c->reserved_tokens) return PL_OK;
    PL_TRY(pl_cpu_reserve(c->cpu, rows, cols, tokens, err));
    c->reserved_rows = rows;
    c->reserved_cols = cols;
    c->reserved_tokens = tokens;
    return PL_OK;
}

/* --- handles --- */

static void weight_destroy(struct pl_ops *o, struct pl_weight *weight) {
    (void)o;
    struct cpu_weight *w = (struct cpu_weight *)weight;
    if (w->matrix != NULL) pl_cpu_weight_destroy(w->matrix);
    for (size_t i = 0; i < w->expert_count; i++) pl_cpu_weight_destroy(w->experts[i]);
    pl_free((void *)w->experts);
    pl_free(w->vector);
    pl_free(w);
}

/* Rows of a table are read as they are asked for: whether they can be is known of the first. */
static enum pl_status check_table(const struct pl_tensor *t, struct pl_err *err) {
    float *row = pl_alloc(pl_tensor_cols(t), sizeof *row);
    if (row == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a row of %s", t->name);
    enum pl_status st = pl_dequant_row_product(t, 0, row);
    pl_free(row);
    if (st != PL_OK)
        PL_FAIL(err, PL_UNSUPPORTED, "tensor %s: elements of type %s cannot be a table of embeddings", t->name,
                pl_dtype_name(t->dtype));
    return PL_OK;
}

static enum pl_status fill_weight(struct cpu_ops *c, const struct pl_tensor *t, enum pl_weight_use use, struct cpu_weight *w,
                                  struct pl_err *err) {
    w->table = *t;
    if (use == PL_WEIGHT_EMBED) return check_table(t, err);
    if (use != PL_WEIGHT_VECTOR) {
        PL_TRY(reserve(c, 0, pl_tensor_cols(t), 0, err));
        /* A ternary one is packed now: what it is made of need not stay. */
        size_t least = use == PL_WEIGHT_TERNARY ? pl_cpu_pack_threshold(c->cpu, SIZE_MAX) : 0;
        enum pl_status st = pl_cpu_weight_create(c->cpu, t, &w->matrix, err);
        if (use == PL_WEIGHT_TERNARY) (void)pl_cpu_pack_threshold(c->cpu, least);
        PL_TRY(st);
        for (size_t many = 0; many < 2; many++)
            snprintf(w->fine_kernel[many], sizeof w->fine_kernel[many], "%s-fine",
                     pl_cpu_weight_kernel(c->cpu, w->matrix, many + 1));
        return PL_OK;
    }
    w->vector = pl_alloc(pl_tensor_cols(t), sizeof(float));
    if (w->vector == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for %s", t->name);
    if (pl_dequant_row(t, 0, w->vector) != PL_OK)
        PL_FAIL(err, PL_UNSUPPORTED, "tensor %s has type %s, which is no vector of weights", t->name,
                pl_dtype_name(t->dtype));
    return PL_OK;
}

/* How a product with this weight ends: as planned, or with its rows widened one by one. */
static struct pl_pick product_pick(const struct cpu_ops *c, const struct cpu_weight *w) {
    struct pl_pick p = c->base.usual[PL_OP_linear];
    const char *why = pl_cpu_weight_declines(c->cpu, w->matrix);
    if (why == NULL) return p;
    p.taken = c->base.choice.strict ? PL_IMPL_NONE : PL_IMPL_WIDENED;
    p.reason = why;
    return p;
}

/* Under --strict a weight that its products cannot take stops the model from loading. */
static enum pl_status check_strict(const struct cpu_ops *c, const struct pl_tensor *t, const struct cpu_weight *w,
                                   struct pl_err *err) {
    if (w->matrix == NULL || !c->base.choice.strict) return PL_OK;
    struct pl_pick p = product_pick(c, w);
    if (p.taken != PL_IMPL_NONE) return PL_OK;
    PL_FAIL(err, PL_UNSUPPORTED, "--strict: linear of tensor %s, %s [%llu, %llu], cannot take %s: %s", t->name,
            pl_dtype_name(t->dtype), (unsigned long long)pl_tensor_rows(t), (unsigned long long)pl_tensor_cols(t),
            pl_impl_name(p.planned), p.reason);
}

static enum pl_status weight_create(struct pl_ops *o, const struct pl_tensor *t, enum pl_weight_use use,
                                    struct pl_weight **out, struct pl_err *err) {
    struct cpu_weight *w = pl_calloc(1, sizeof *w);
    if (w == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for %s", t->name);
    enum pl_status st = fill_weight(cpu_of(o), t, use, w, err);
    if (st == PL_OK) st = check_strict(cpu_of(o), t, w, err);
    if (st != PL_OK) {
        weight_destroy(o, &w->base);
        return st;
    }
    *out = &w->base;
    return PL_OK;
}

enum { LATER_BYTES = 4 << 20 }; /* weights, or all experts of a layer, of this size are packed at their second use */

static enum pl_status experts_create(struct pl_ops *o, const struct pl_tensor *experts, size_t n, struct pl_weight **out,
                                     struct pl_err *err) {
    struct cpu_ops *c = cpu_of(o);
    struct cpu_weight *w = pl_calloc(1, sizeof *w);
    if (w != NULL) w->experts = (struct pl_cpu_weight **)pl_calloc(n, sizeof *w->experts);
    if (w == NULL || w->experts == NULL) {
        pl_free(w);
        PL_FAIL(err, PL_NO_MEMORY, "no memory for %zu experts of %s", n, experts[0].name);
    }
    enum pl_status st = reserve(c, 0, pl_tensor_cols(&experts[0]), 0, err);
    size_t each = pl_cpu_pack_threshold(c->cpu, experts[0].bytes * n < LATER_BYTES ? LATER_BYTES : 0);
    for (; st == PL_OK && w->expert_count < n; w->expert_count += st == PL_OK)
        st = pl_cpu_weight_create(c->cpu, &experts[w->expert_count], &w->experts[w->expert_count], err);
    (void)pl_cpu_pack_threshold(c->cpu, each);
    if (st != PL_OK) {
        weight_destroy(o, &w->base);
        return st;
    }
    *out = &w->base;
    return PL_OK;
}

static uint64_t weight_bytes_owned(const struct pl_ops *o, const struct pl_weight *weight) {
    (void)o;
    const struct cpu_weight *w = weight_of(weight);
    if (w->vector != NULL) return w->base.cols * sizeof(float);
    uint64_t sum = 0;
    for (size_t i = 0; i < w->expert_count; i++) sum += pl_cpu_weight_bytes_owned(w->experts[i]);
    if (w->expert_count > 0) return sum;
    return w->matrix != NULL ? pl_cpu_weight_bytes_owned(w->matrix) : 0;
}

static void pack_later(struct pl_ops *o, void (*when_packed)(void *user, const struct pl_tensor *t), void *user) {
    pl_cpu_pack_later(cpu_of(o)->cpu, LATER_BYTES, when_packed, user);
}

/* The output product takes its inputs in two terms, or in 16 bits, where products make them 8-bit. */
static bool is_fine(const struct cpu_ops *c, const struct cpu_weight *w) {
    bool head = w->base.use == PL_WEIGHT_HEAD || w->base.use == PL_WEIGHT_TIED;
    return head && strstr(pl_cpu_weight_kernel(c->cpu, w->matrix, 1), "xq8/") != NULL;
}

static const char *kernel_name(const struct cpu_ops *c, const struct cpu_weight *w, size_t rows) {
    return is_fine(c, w) ? w->fine_kernel[rows > 1] : pl_cpu_weight_kernel(c->cpu, w->matrix, rows);
}

static const char *weight_kernel(const struct pl_ops *o, const struct pl_weight *weight, size_t rows) {
    const struct cpu_ops *c = (const struct cpu_ops *)o;
    const struct cpu_weight *w = weight_of(weight);
    if (w->expert_count > 0) return pl_cpu_weight_kernel(c->cpu, w->experts[0], rows);
    return w->matrix != NULL ? kernel_name(c, w, rows) : c->kernel[PL_OP_embed];
}

static enum pl_status activation_create(struct pl_ops *o, size_t rows_max, size_t cols, struct pl_activation **out,
                                        struct pl_err *err) {
    size_t stride, bytes;
    if (!pl_align_up(cols, ALIGN / sizeof(float), &stride) || !pl_mul_size(stride, rows_max, &bytes) ||
        !pl_mul_size(bytes, sizeof(float), &bytes))
        PL_FAIL(err, PL_LIMIT, "an activation of %zu x %zu does not fit in memory", rows_max, cols);
    PL_TRY(reserve(cpu_of(o), rows_max, 0, 0, err));
    struct cpu_activation *a = pl_calloc(1, sizeof *a);
    float *data = pl_alloc_aligned(bytes, ALIGN);
    if (a == NULL || data == NULL) {
        pl_free(a);
        pl_free(data);
        PL_FAIL(err, PL_NO_MEMORY, "no memory for an activation of %zu x %zu", rows_max, cols);
    }
    a->data = data;
    a->stride = stride;
    *out = &a->base;
    return PL_OK;
}

static void activation_destroy(struct pl_ops *o, struct pl_activation *activation) {
    (void)o;
    struct cpu_activation *a = (struct cpu_activation *)activation;
    pl_free(a->data);
    pl_free(a);
}

static enum pl_status activation_read(struct pl_ops *o, const struct pl_activation *activation, size_t first_row,
                                      size_t rows, float *out) {
    (void)o;
    const struct cpu_activation *a = data_of(activation);
    for (size_t i = 0; i < rows; i++)
        memcpy(out + i * a->base.cols, a->data + (first_row + i) * a->stride, a->base.cols * sizeof(float));
    return PL_OK;
}

static enum pl_status kv_create(struct pl_ops *o, const struct pl_kv_shape *s, struct pl_kv_store **out,
                                struct pl_err *err) {
    struct cpu_ops *c = cpu_of(o);
    size_t tokens = s->page_count * s->page_tokens, bytes = pl_kv_pages_bytes(s), state_bytes = pl_kv_state_bytes(s);
    if (c->positions > 0) tokens = PL_MIN(tokens, c->positions);
    if (bytes > 0) PL_TRY(reserve(c, 0, s->head_dim, tokens, err));
    struct cpu_kv *kv = pl_calloc(1, sizeof *kv);
    char *data = bytes > 0 ? pl_alloc_aligned(bytes, ALIGN) : NULL;
    float *state = state_bytes > 0 ? pl_alloc_aligned(state_bytes, ALIGN) : NULL;
    if (kv == NULL || (data == NULL && bytes > 0) || (state == NULL && state_bytes > 0)) {
        pl_free(kv);
        pl_free(data);
        pl_free(state);
        PL_FAIL(err, PL_NO_MEMORY, "no memory for a KV cache of %zu bytes: ask for a smaller context", bytes + state_bytes);
    }
    kv->data = data;
    kv->state = state;
    kv->key_bytes = pl_kv_page_bytes(s, 0);
    kv->value_bytes = pl_kv_sides(s) > 1 ? pl_kv_page_bytes(s, 1) : 0;
    *out = &kv->base;
    return PL_OK;
}

static void kv_destroy(struct pl_ops *o, struct pl_kv_store *store) {
    (void)o;
    struct cpu_kv *kv = (struct cpu_kv *)store;
    pl_free(kv->data);
    pl_free(kv->state);
    pl_free(kv);
}

struct share_job {
    void (*fn)(void *arg, size_t unit);
    void *arg;
    size_t units;
    _Atomic size_t next;
};

static void share_worker(void *arg, int index, int count) {
    (void)index;
    (void)count;
    struct share_job *j = arg;
    for (size_t i; (i = atomic_fetch_add(&j->next, 1)) < j->units;) j->fn(j->arg, i);
}

static void share(struct pl_ops *o, size_t units, void (*fn)(void *arg, size_t unit), void *arg) {
    struct share_job j = {.fn = fn, .arg = arg, .units = units};
    pl_pool_run_any(pl_cpu_pool(cpu_of(o)->cpu), share_worker, &j);
}

static char *layer_pages(const struct pl_kv_store *store, size_t layer) {
    const struct cpu_kv *kv = (const struct cpu_kv *)store;
    return kv->data + pl_kv_pages_before(&store->shape, layer) * (kv->key_bytes + kv->value_bytes);
}

/* One layer's pages: the layers follow each other, K before V, where it is not a part of K. */
static struct pl_cpu_kv layer_kv(const struct pl_kv_store *store, size_t layer) {
    const struct cpu_kv *kv = (const struct cpu_kv *)store;
    const struct pl_kv_shape *s = &store->shape;
    char *k = layer_pages(store, layer);
    return (struct pl_cpu_kv){.k = k,
                              .v = pl_kv_sides(s) > 1 ? k + pl_kv_layer_pages(s, layer) * kv->key_bytes : k,
                              .dtype = s->dtype,
                              .page_tokens = s->page_tokens,
                              .kv_heads = s->kv_heads,
                              .head_dim = s->head_dim,
                              .value_dim = s->value_dim};
}

static enum pl_status kv_copy_page(struct pl_ops *o, struct pl_kv_store *store, bool windowed, uint32_t from, uint32_t to) {
    (void)o;
    const struct cpu_kv *kv = (const struct cpu_kv *)store;
    const struct pl_kv_shape *s = &store->shape;
    size_t keys = kv->key_bytes, values = kv->value_bytes;
    for (size_t layer = 0; layer < s->layers; layer++) {
        if (pl_kv_is_windowed(s, layer) != windowed) continue;
        char *k = layer_pages(store, layer), *v = k + pl_kv_layer_pages(s, layer) * keys;
        memcpy(k + to * keys, k + from * keys, keys);
        memcpy(v + to * values, v + from * values, values);
    }
    return PL_OK;
}

static enum pl_status state_copy(struct pl_ops *o, struct pl_kv_store *store, uint32_t from, uint32_t to) {
    (void)o;
    const struct pl_kv_shape *s = &store->shape;
    size_t slot = s->state_conv + s->state_ssm;
    for (size_t l = 0; l < s->state_layers; l++) {
        float *base = ((struct cpu_kv *)store)->state + l * s->state_slots * slot;
        memcpy(base + to * slot, base + from * slot, slot * sizeof *base);
    }
    return PL_OK;
}

static enum pl_status rope_create(struct pl_ops *o, const float *cos_sin, size_t positions, size_t dim, bool halves,
                                  struct pl_rope **out, struct pl_err *err) {
    (void)halves;
    struct cpu_ops *c = cpu_of(o);
    size_t bytes;
    if (!pl_mul_size(positions, dim, &bytes) || !pl_mul_size(bytes, sizeof(float), &bytes))
        PL_FAIL(err, PL_LIMIT, "a rotary table of %zu positions does not fit in memory", positions);
    PL_TRY(reserve(c, 0, 0, positions, err));
    struct cpu_rope *r = pl_calloc(1, sizeof *r);
    float *table = pl_alloc_aligned(bytes, ALIGN);
    if (r == NULL || table == NULL) {
        pl_free(r);
        pl_free(table);
        PL_FAIL(err, PL_NO_MEMORY, "no memory for a rotary table of %zu bytes: ask for a smaller context", bytes);
    }
    memcpy(table, cos_sin, bytes);
    r->cos_sin = table;
    c->positions = PL_MAX(c->positions, positions);
    *out = &r->base;
    return PL_OK;
}

static void rope_destroy(struct pl_ops *o, struct pl_rope *rope) {
    (void)o;
    struct cpu_rope *r = (struct cpu_rope *)rope;
    pl_free(r->cos_sin);
    pl_free(r);
}

/* --- a step --- */

static enum pl_status begin(struct pl_ops *o, const struct pl_batch *b, struct pl_kv_store *kv) {
    struct cpu_ops *c = cpu_of(o);
    PL_TRY(pl_grow(&c->seqs, &c->seqs_cap, 2 * (size_t)b->seq_count, sizeof(*c->seqs)));
    if (kv->shape.state_layers > 0) PL_TRY(pl_grow(&c->states, &c->states_cap, b->seq_count, sizeof(*c->states)));
    for (uint32_t i = 0; i < b->seq_count; i++) {
        const struct pl_batch_seq *s = &b->seqs[i];
        c->seqs[i] = (struct pl_cpu_seq){
            .first_row = s->first_row, .rows = s->rows, .past = s->past, .pages = b->pages + s->page_first};
        c->seqs[b->seq_count + i] = c->seqs[i];
        if (b->window_pages != NULL) c->seqs[b->seq_count + i].pages = b->window_pages + s->page_first;
    }
    return PL_OK;
}

static enum pl_status end(struct pl_ops *o) {
    (void)o;
    return PL_OK;
}

static enum pl_status embed(struct pl_ops *o, const struct pl_weight *table, float scale, struct pl_activation *x) {
    const struct cpu_activation *a = data_of(x);
    const struct pl_tensor *t = &weight_of(table)->table;
    pl_cpu_embed(cpu_of(o)->cpu, t, o->batch->tokens, x->rows, scale, a->data, a->stride);
    count(o, PL_OP_embed, x->rows * (t->bytes / pl_tensor_rows(t)));
    return PL_OK;
}

static enum pl_status add_norm(struct pl_ops *o, struct pl_activation *x, const struct pl_activation *addend,
                               const struct pl_weight *w, float eps, float offset, struct pl_activation *y) {
    if (pl_fault("crash")) abort();
    const struct cpu_activation *xa = data_of(x), *ya = data_of(y), *aa = addend != NULL ? data_of(addend) : NULL;
    struct pl_cpu_norm n = {.rows = x->rows,
                            .cols = x->cols,
                            .x = xa->data,
                            .x_stride = xa->stride,
                            .add = aa != NULL ? aa->data : NULL,
                            .add_stride = aa != NULL ? aa->stride : 0,
                            .w = weight_of(w)->vector,
                            .eps = eps,
                            .offset = offset,
                            .y = ya->data,
                            .y_stride = ya->stride};
    pl_cpu_rmsnorm(cpu_of(o)->cpu, &n);
    count(o, addend != NULL ? PL_OP_add_norm : PL_OP_norm, 0);
    return PL_OK;
}

static enum pl_status norm(struct pl_ops *o, struct pl_activation *x, const struct pl_weight *w, float eps, float offset,
                           struct pl_activation *y) {
    return add_norm(o, x, NULL, w, eps, offset, y);
}

static enum pl_status layer_norm(struct pl_ops *o, struct pl_activation *x, const struct pl_weight *w,
                                 const struct pl_weight *bias, float eps, struct pl_activation *y) {
    const struct cpu_activation *xa = data_of(x), *ya = data_of(y);
    struct pl_cpu_norm n = {.rows = x->rows,
                            .cols = x->cols,
                            .x = xa->data,
                            .x_stride = xa->stride,
                            .w = weight_of(w)->vector,
                            .eps = eps,
                            .y = ya->data,
                            .y_stride = ya->stride,
                            .center = true,
                            .bias = bias != NULL ? weight_of(bias)->vector : NULL};
    pl_cpu_rmsnorm(cpu_of(o)->cpu, &n);
    count(o, PL_OP_layer_norm, 0);
    return PL_OK;
}

static enum pl_status add(struct pl_ops *o, struct pl_activation *x, const struct pl_activation *addend) {
    const struct cpu_activation *xa = data_of(x), *aa = data_of(addend);
    pl_cpu_add(cpu_of(o)->cpu, xa->data, aa->data, x->rows, x->cols, xa->stride, aa->stride);
    count(o, PL_OP_add, 0);
    return PL_OK;
}

static enum pl_status products(struct pl_ops *o, enum pl_op op, size_t n, const struct pl_weight *const *w,
                               const struct pl_weight *const *bias, const struct pl_activation *x,
                               struct pl_activation *const *y) {
    struct pl_cpu *cpu = cpu_of(o)->cpu;
    const struct pl_cpu_weight *matrix[PL_OPS_LINEAR_MAX];
    const float *biases[PL_OPS_LINEAR_MAX];
    float *out[PL_OPS_LINEAR_MAX];
    size_t stride[PL_OPS_LINEAR_MAX];
    for (size_t i = 0; i < n; i++) {
        matrix[i] = weight_of(w[i])->matrix;
        biases[i] = bias != NULL && bias[i] != NULL ? weight_of(bias[i])->vector : NULL;
        out[i] = data_of(y[i])->data;
        stride[i] = data_of(y[i])->stride;
        struct pl_pick p = product_pick(cpu_of(o), weight_of(w[i]));
        PL_TRY(pl_ops_end_decision(o, op, &p, 1, "")); /* strict refused when the weight was made, so this succeeds */
        pl_ops_count(o, op, kernel_name(cpu_of(o), weight_of(w[i]), x->rows), 1, pl_cpu_weight_bytes_read(matrix[i]));
    }
    struct pl_cpu_matmul m = {.count = n,
                              .rows = x->rows,
                              .w = matrix,
                              .bias = bias != NULL ? biases : NULL,
                              .x = data_of(x)->data,
                              .x_stride = data_of(x)->stride,
                              .y = out,
                              .y_stride = stride,
                              .accumulate = op == PL_OP_linear_add,
                              .fine = n == 1 && is_fine(cpu_of(o), weight_of(w[0]))};
    pl_cpu_matmul(cpu, &m);
    return PL_OK;
}

static enum pl_status linear(struct pl_ops *o, size_t n, const struct pl_weight *const *w,
                             const struct pl_weight *const *bias, const struct pl_activation *x,
                             struct pl_activation *const *y) {
    return products(o, PL_OP_linear, n, w, bias, x, y);
}

static enum pl_status linear_add(struct pl_ops *o, const struct pl_weight *w, const struct pl_activation *x,
                                 struct pl_activation *y) {
    return products(o, PL_OP_linear_add, 1, &w, NULL, x, &y);
}

static enum pl_status ternary(struct pl_ops *o, size_t n, const struct pl_weight *const *w, const struct pl_activation *x,
                              struct pl_activation *const *y) {
    return products(o, PL_OP_ternary, n, w, NULL, x, y);
}

static const struct pl_cpu_seq *seqs_of(struct pl_ops *o, uint32_t layer) {
    return cpu_of(o)->seqs + (pl_kv_is_windowed(&o->kv->shape, layer) ? o->batch->seq_count : 0);
}

static enum pl_status rope_append(struct pl_ops *o, const struct pl_qkv *p, struct pl_activation *q, struct pl_activation *k,
                                  struct pl_activation *v) {
    const struct pl_cpu_kv kv = layer_kv(o->kv, p->layer);
    const struct cpu_rope *rope = (const struct cpu_rope *)p->rope;
    struct pl_cpu_rope_append a = {.seq_count = o->batch->seq_count,
                                   .seqs = seqs_of(o, p->layer),
                                   .heads = p->heads,
                                   .q = data_of(q)->data,
                                   .k = data_of(k)->data,
                                   .v = data_of(v)->data,
                                   .q_stride = data_of(q)->stride,
                                   .k_stride = data_of(k)->stride,
                                   .v_stride = data_of(v)->stride,
                                   .q_norm = p->q_norm != NULL ? weight_of(p->q_norm)->vector : NULL,
                                   .k_norm = p->k_norm != NULL ? weight_of(p->k_norm)->vector : NULL,
                                   .norm_eps = p->norm_eps,
                                   .norm_offset = p->norm_offset,
                                   .cos_sin = rope != NULL ? rope->cos_sin : NULL,
                                   .rope_dim = rope != NULL ? rope->base.dim : 0,
                                   .halves = rope != NULL && rope->base.halves,
                                   .kv = &kv};
    /* A row that begins a page is lost: the page keeps what was there before. */
    bool stale = pl_fault("stale-page") && o->batch->seq_count == 1 && o->batch->rows == 1 && o->batch->seqs[0].past > 0 &&
                 o->batch->seqs[0].past % kv.page_tokens == 0;
    if (!stale) pl_cpu_rope_append(cpu_of(o)->cpu, &a);
    count(o, PL_OP_rope_append, k->rows * kv.kv_heads * pl_kv_token_bytes(&o->kv->shape));
    return PL_OK;
}

static enum pl_status latent_append(struct pl_ops *o, const struct pl_latent *p, const struct pl_activation *q,
                                    const struct pl_activation *latent, struct pl_activation *qa) {
    const struct pl_cpu_kv kv = layer_kv(o->kv, p->layer);
    const struct cpu_rope *rope = (const struct cpu_rope *)p->rope;
    struct pl_cpu_latent_append a = {.seq_count = o->batch->seq_count,
                                     .seqs = seqs_of(o, p->layer),
                                     .heads = p->heads,
                                     .q_head = q->cols / p->heads,
                                     .q = data_of(q)->data,
                                     .latent = data_of(latent)->data,
                                     .qa = data_of(qa)->data,
                                     .q_stride = data_of(q)->stride,
                                     .latent_stride = data_of(latent)->stride,
                                     .qa_stride = data_of(qa)->stride,
                                     .norm = weight_of(p->norm)->vector,
                                     .norm_eps = p->norm_eps,
                                     .cos_sin = rope->cos_sin,
                                     .halves = rope->base.halves,
                                     .kv = &kv};
    pl_cpu_latent_append(cpu_of(o)->cpu, &a);
    count(o, PL_OP_latent_append, latent->rows * latent->cols * pl_dtype_info(kv.dtype)->block_bytes);
    return PL_OK;
}

static enum pl_status heads_linear(struct pl_ops *o, const struct pl_weight *weight, const struct pl_activation *x,
                                   struct pl_activation *y) {
    const struct cpu_weight *w = weight_of(weight);
    struct pl_cpu_heads p = {.rows = x->rows,
                             .heads = w->base.experts,
                             .w = (const struct pl_cpu_weight *const *)w->experts,
                             .x = data_of(x)->data,
                             .x_stride = data_of(x)->stride,
                             .x_head = x->cols / w->base.experts,
                             .y = data_of(y)->data,
                             .y_stride = data_of(y)->stride,
                             .y_head = y->cols / w->base.experts};
    size_t bytes = pl_cpu_heads_linear(cpu_of(o)->cpu, &p);
    pl_ops_count(o, PL_OP_heads_linear, pl_cpu_weight_kernel(cpu_of(o)->cpu, w->experts[0], x->rows), 1, bytes);
    return PL_OK;
}

static enum pl_status heads_reserve(struct pl_ops *o, const struct pl_weight *w, size_t rows, struct pl_err *err) {
    return pl_cpu_heads_reserve(cpu_of(o)->cpu, w->experts, w->cols, w->rows, rows, err);
}

/* Cached tokens that the rows of one sequence read, each once. */
static uint64_t visible_tokens(const struct pl_batch_seq *s, uint32_t window) {
    uint64_t all = (uint64_t)s->past + s->rows, seen = (uint64_t)window + s->rows - 1;
    return window > 0 && seen < all ? seen : all;
}

void cpu_ops_count_attention(struct pl_ops *o, const struct pl_attention *p, size_t rows, const char *form) {
    const struct pl_cpu_kv kv = layer_kv(o->kv, p->layer);
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < o->batch->seq_count; i++) tokens += visible_tokens(&o->batch->seqs[i], p->window);
    uint64_t bytes = tokens * kv.kv_heads * pl_kv_token_bytes(&o->kv->shape);
    if (strcmp(form, "expanded") == 0)
        pl_ops_count(o, PL_OP_attention, cpu_of(o)->expanded, 1, bytes);
    else if (pl_fault("gathered"))
        pl_ops_count(o, PL_OP_attention, "composed/gather", 1, bytes);
    else
        count(o, PL_OP_attention, bytes);
    o->attention_totals.rows += rows;
    o->attention_totals.tokens += tokens;
    pl_ops_count_attention(o, form, o->usual[PL_OP_attention].reason, bytes);
}

static enum pl_status attention(struct pl_ops *o, const struct pl_attention *p, const struct pl_activation *q,
                                struct pl_activation *out) {
    const struct pl_cpu_kv kv = layer_kv(o->kv, p->layer);
    struct pl_cpu_sparse *sparse = &cpu_of(o)->sparse;
    struct pl_cpu_attention a = {.seq_count = o->batch->seq_count,
                                 .seqs = seqs_of(o, p->layer),
                                 .heads = p->heads,
                                 .q = data_of(q)->data,
                                 .q_stride = data_of(q)->stride,
                                 .scale = p->scale,
                                 .softcap = p->softcap,
                                 .window = p->window,
                                 .sinks = p->sinks != NULL ? weight_of(p->sinks)->vector : NULL,
                                 .kv = &kv,
                                 .out = data_of(out)->data,
                                 .out_stride = data_of(out)->stride,
                                 .sparse = sparse->least > 0 ? sparse : NULL};
    pl_cpu_attention(cpu_of(o)->cpu, &a);
    o->attention_totals.value_rows += atomic_exchange(&sparse->rows, 0);
    o->attention_totals.value_rows_skipped += atomic_exchange(&sparse->skipped, 0);
    cpu_ops_count_attention(o, p, q->rows, "cpu");
    return PL_OK;
}

static enum pl_status glu(struct pl_ops *o, enum pl_ops_act act, const struct pl_activation *gate,
                          const struct pl_activation *up, struct pl_activation *y) {
    static unsigned calls;
    if (pl_fault("skipped-launch") && calls++ % 7 == 3) return PL_OK;
    enum pl_act fn = act == PL_OPS_SILU      ? PL_ACT_SILU
                     : act == PL_OPS_RELU2   ? PL_ACT_RELU2
                     : act == PL_OPS_GELU    ? PL_ACT_GELU_ERF
                     : act == PL_OPS_NO_ACT  ? PL_ACT_NONE
                     : act == PL_OPS_SIGMOID ? PL_ACT_SIGMOID
                                             : PL_ACT_GELU_TANH;
    const struct cpu_activation *g = data_of(gate), *u = up != NULL ? data_of(up) : NULL, *to = data_of(y);
    pl_cpu_glu(cpu_of(o)->cpu, fn, g->data, u != NULL ? u->data : NULL, to->data, gate->rows, gate->cols, g->stride,
               u != NULL ? u->stride : 0, to->stride);
    count(o, PL_OP_glu, 0);
    return PL_OK;
}

static enum pl_status gather(struct pl_ops *o, const struct pl_activation *x, struct pl_activation *y) {
    const struct cpu_activation *from = data_of(x), *to = data_of(y);
    for (size_t i = 0; i < y->rows; i++)
        memcpy(to->data + i * to->stride, from->data + o->batch->logit_rows[i] * from->stride, x->cols * sizeof(float));
    count(o, PL_OP_gather, 0);
    return PL_OK;
}

static enum pl_status softcap(struct pl_ops *o, struct pl_activation *x, float cap) {
    pl_cpu_softcap(cpu_of(o)->cpu, data_of(x)->data, x->rows, x->cols, data_of(x)->stride, cap);
    count(o, PL_OP_softcap, 0);
    return PL_OK;
}

static enum pl_status scale(struct pl_ops *o, struct pl_activation *x, float by) {
    pl_cpu_scale(cpu_of(o)->cpu, data_of(x)->data, x->rows, x->cols, data_of(x)->stride, by);
    count(o, PL_OP_scale, 0);
    return PL_OK;
}

static enum pl_status gate_rows(struct pl_ops *o, struct pl_activation *x, const struct pl_activation *gate) {
    const struct cpu_activation *xa = data_of(x), *ga = data_of(gate);
    pl_cpu_gate_rows(cpu_of(o)->cpu, xa->data, ga->data, x->rows, x->cols, xa->stride, ga->stride);
    count(o, PL_OP_gate_rows, 0);
    return PL_OK;
}

static struct pl_cpu_moe moe_of(const struct pl_moe *p) {
    const struct cpu_weight *gate = p->gate != NULL ? weight_of(p->gate) : NULL;
    return (struct pl_cpu_moe){.experts = p->up->experts,
                               .used = p->used,
                               .in = p->up->cols,
                               .inner = p->up->rows,
                               .sigmoid = p->router == PL_ROUTER_SIGMOID,
                               .renormalise = p->renormalise,
                               .groups = p->groups,
                               .groups_used = p->groups_used,
                               .group_top = p->group_top,
                               .scale = p->scale,
                               .choice_bias = p->choice_bias != NULL ? weight_of(p->choice_bias)->vector : NULL,
                               .gate_bias = p->gate_bias != NULL ? weight_of(p->gate_bias)->vector : NULL,
                               .up_bias = p->up_bias != NULL ? weight_of(p->up_bias)->vector : NULL,
                               .down_bias = p->down_bias != NULL ? weight_of(p->down_bias)->vector : NULL,
                               .act = p->act == PL_OPS_SILU        ? PL_ACT_SILU
                                      : p->act == PL_OPS_GELU_TANH ? PL_ACT_GELU_TANH
                                      : p->act == PL_OPS_RELU2     ? PL_ACT_RELU2
                                                                   : PL_ACT_SWIGLU_CLAMPED,
                               .gate = gate != NULL ? (const struct pl_cpu_weight *const *)gate->experts : NULL,
                               .up = (const struct pl_cpu_weight *const *)weight_of(p->up)->experts,
                               .down = (const struct pl_cpu_weight *const *)weight_of(p->down)->experts};
}

static enum pl_status moe_reserve(struct pl_ops *o, const struct pl_moe *p, size_t rows, struct pl_err *err) {
    struct pl_cpu_moe m = moe_of(p);
    PL_TRY(pl_cpu_moe_reserve(cpu_of(o)->cpu, &m, rows, err));
    return reserve(cpu_of(o), rows * p->used, PL_MAX(m.in, m.inner), 0, err);
}

static enum pl_status moe(struct pl_ops *o, const struct pl_moe *p, const struct pl_activation *logits,
                          const struct pl_activation *x, struct pl_activation *y) {
    struct pl_cpu_moe m = moe_of(p);
    m.rows = x->rows;
    m.logits = data_of(logits)->data;
    m.logits_stride = data_of(logits)->stride;
    m.x = data_of(x)->data;
    m.x_stride = data_of(x)->stride;
    m.y = data_of(y)->data;
    m.y_stride = data_of(y)->stride;
    if (pl_fault("moe-expert")) m.used--; /* the least of the chosen */
    size_t bytes = pl_cpu_moe(cpu_of(o)->cpu, &m);
    pl_ops_count(o, PL_OP_moe, pl_cpu_weight_kernel(cpu_of(o)->cpu, (m.gate != NULL ? m.gate : m.up)[0], x->rows), 1, bytes);
    return PL_OK;
}

/* --- for cpu_ssm.c --- */

struct pl_cpu *cpu_ops_kernels(struct pl_ops *o) {
    return cpu_of(o)->cpu;
}
float *cpu_ops_rows(const struct pl_activation *a, size_t *stride) {
    *stride = a != NULL ? data_of(a)->stride : 0;
    return a != NULL ? data_of(a)->data : NULL;
}
const float *cpu_ops_vector(const struct pl_weight *w) { return w != NULL ? weight_of(w)->vector : NULL; }
void cpu_ops_count(struct pl_ops *o, enum pl_op op, uint64_t bytes) { count(o, op, bytes); }
struct pl_cpu_kv cpu_ops_pages(const struct pl_ops *o, uint32_t layer) {
    return layer_kv(o->kv, layer);
}
const struct pl_cpu_seq *cpu_ops_seqs(const struct pl_ops *o) { return ((const struct cpu_ops *)o)->seqs; }
size_t cpu_ops_positions(const struct pl_ops *o) { return ((const struct cpu_ops *)o)->positions; }
size_t cpu_ops_rows_max(const struct pl_ops *o) { return ((const struct cpu_ops *)o)->reserved_rows; }
const struct pl_cpu_weight *const *cpu_ops_heads(const struct pl_weight *w) {
    return (const struct pl_cpu_weight *const *)weight_of(w)->experts;
}

const struct pl_cpu_state_seq *cpu_ops_states(struct pl_ops *o, uint32_t layer) {
    struct cpu_ops *c = cpu_of(o);
    const struct pl_kv_shape *s = &o->kv->shape;
    float *state = ((const struct cpu_kv *)o->kv)->state + layer * s->state_slots * (s->state_conv + s->state_ssm);
    for (uint32_t i = 0; i < o->batch->seq_count; i++) {
        const struct pl_batch_seq *q = &o->batch->seqs[i];
        float *slot = state + q->state * (s->state_conv + s->state_ssm);
        c->states[i] = (struct pl_cpu_state_seq){.first_row = q->first_row,
                                                 .rows = q->rows,
                                                 .fresh = q->past == 0 || pl_fault("lost-state"),
                                                 .conv = slot,
                                                 .ssm = slot + s->state_conv};
    }
    return c->states;
}

/* --- opening --- */

static void destroy(struct pl_ops *o) {
    struct cpu_ops *c = cpu_of(o);
    if (c->cpu != NULL) pl_cpu_destroy(c->cpu);
    pl_free(c->seqs);
    pl_free(c->states);
    pl_free(c);
}

static const struct pl_ops_impl cpu_impl = {
    .backend = PL_BACKEND_CPU,
    .destroy = destroy,
    .weight_create = weight_create,
    .weight_destroy = weight_destroy,
    .weight_bytes_owned = weight_bytes_owned,
    .pack_later = pack_later,
    .weight_kernel = weight_kernel,
    .activation_create = activation_create,
    .activation_destroy = activation_destroy,
    .activation_read = activation_read,
    .kv_create = kv_create,
    .kv_destroy = kv_destroy,
    .share = share,
    .kv_copy_page = kv_copy_page,
    .state_copy = state_copy,
    .rope_create = rope_create,
    .rope_destroy = rope_destroy,
    .begin = begin,
    .end = end,
    .embed = embed,
    .norm = norm,
    .add_norm = add_norm,
    .layer_norm = layer_norm,
    .add = add,
    .linear = linear,
    .linear_add = linear_add,
    .ternary = ternary,
    .rope_append = rope_append,
    .attention = attention,
    .glu = glu,
    .gather = gather,
    .softcap = softcap,
    .scale = scale,
    .gate_rows = gate_rows,
    .moe = moe,
    .causal_conv = cpu_ops_causal_conv,
    .ssm_update = cpu_ops_ssm_update,
    .ssm_scan = cpu_ops_ssm_scan,
    .delta = cpu_ops_delta,
    .gated_norm = cpu_ops_gated_norm,
    .experts_create = experts_create,
    .moe_reserve = moe_reserve,
    .heads_linear = heads_linear,
    .latent_append = latent_append,
    .takes_expanded = cpu_ops_takes_expanded,
    .expanded = cpu_ops_expanded,
    .heads_create = experts_create, /* a matrix of each, likewise */
    .heads_reserve = heads_reserve,
};

#define ISA_NAME(name, text) ", " text
static enum pl_status pick_isa(const char *name, enum pl_isa *isa, struct pl_err *err) {
    *isa = pl_cpu_best_isa();
    if (name == NULL || strcmp(name, "auto") == 0) return PL_OK;
    if (!pl_isa_from_name(name, isa))
        PL_FAIL(err, PL_INVALID, "instruction set '%s' is unknown; known: auto" PL_ISA_LIST(ISA_NAME), name);
    const char *declined = pl_cpu_isa_declined(*isa);
    if (declined != NULL) PL_FAIL(err, PL_UNSUPPORTED, "%s is not used here: %s", name, declined);
    if (!pl_cpu_isa_available(*isa))
        PL_FAIL(err, PL_UNSUPPORTED, "this machine lacks %s; its best is %s", name, pl_isa_name(pl_cpu_best_isa()));
    return PL_OK;
}

/* The implementation of one operation: the instruction set unless another is forced or it is disabled. */
static enum pl_status pick_impl(struct cpu_ops *c, enum pl_op op, enum pl_isa base, struct pl_err *err) {
    static const enum pl_cpu_part parts[PL_OP_COUNT] = {
        [PL_OP_embed] = PL_CPU_EMBED,      [PL_OP_norm] = PL_CPU_NORM,           [PL_OP_add_norm] = PL_CPU_NORM,
        [PL_OP_add] = PL_CPU_ADD,          [PL_OP_linear] = PL_CPU_LINEAR,       [PL_OP_linear_add] = PL_CPU_LINEAR,
        [PL_OP_rope_append] = PL_CPU_ROPE, [PL_OP_attention] = PL_CPU_ATTENTION, [PL_OP_glu] = PL_CPU_GLU,
        [PL_OP_softcap] = PL_CPU_SOFTCAP,  [PL_OP_layer_norm] = PL_CPU_NORM,     [PL_OP_scale] = PL_CPU_EMBED,
        [PL_OP_gate_rows] = PL_CPU_EMBED,  [PL_OP_moe] = PL_CPU_LINEAR,          [PL_OP_causal_conv] = PL_CPU_SSM,
        [PL_OP_ssm_update] = PL_CPU_SSM,   [PL_OP_ssm_scan] = PL_CPU_SSM,        [PL_OP_delta] = PL_CPU_SSM,
        [PL_OP_gated_norm] = PL_CPU_SSM,   [PL_OP_ternary] = PL_CPU_LINEAR};
    struct pl_candidate list[PL_IMPL_COUNT + 1];
    enum pl_impl ranked[PL_IMPL_COUNT];
    size_t n = pl_impl_ranked(PL_BACKEND_CPU, op, ranked);
    const bool products = pl_op_leader(op) == PL_OP_linear; /* what a declined set would have been for */
    for (size_t i = 0; i < n; i++) {
        bool isa = ranked[i] >= PL_IMPL_ISA;
        enum pl_isa level = isa ? (enum pl_isa)(ranked[i] - PL_IMPL_ISA) : PL_ISA_SCALAR;
        const char *declined = isa && products ? pl_cpu_isa_declined(level) : NULL;
        bool wanted = level <= base || (declined != NULL && c->best); /* what was to be the best and is not */
        if (declined == NULL && !pl_cpu_isa_available(level)) declined = "this machine lacks the instruction set";
        list[i] = (struct pl_candidate){ranked[i], wanted && ranked[i] != PL_IMPL_WIDENED && ranked[i] != PL_IMPL_EXPANDED,
                                        declined};
    }
    if (op == PL_OP_attention && c->base.choice.attn != PL_IMPL_NONE)
        list[n++] = (struct pl_candidate){c->base.choice.attn, false, "no port"};
    struct pl_pick *p = &c->base.usual[op];
    *p = pl_choose(&c->base.choice, op, list, n);
    if (p->taken == PL_IMPL_NONE) {
        PL_FAIL(err, PL_UNSUPPORTED, "%s: %s cannot take %s: %s",
                c->base.choice.forced[op] != PL_IMPL_NONE ? "--force-kernel" : "--strict", pl_op_name(op),
                pl_impl_name(p->planned), p->reason);
    }
    snprintf(c->kernel[op], KERNEL_NAME, "%s/%s", pl_impl_name(p->taken), pl_op_name(op));
    enum pl_isa isa = (enum pl_isa)(p->taken - PL_IMPL_ISA);
    return p->taken < PL_IMPL_ISA || isa == base ? PL_OK : pl_cpu_override(c->cpu, parts[op], isa, err);
}

static enum pl_status open_cpu(struct cpu_ops *c, enum pl_isa isa, const struct pl_ops_options *opt, struct pl_err *err) {
    PL_TRY(pl_ops_set_choice(&c->base, opt, err));
    c->best = opt->isa == NULL || strcmp(opt->isa, "auto") == 0;
    for (int i = 0; c->best && i < PL_ISA_COUNT; i++) {
        const char *why = pl_cpu_isa_declined((enum pl_isa)i);
        if (why != NULL) pl_log("%s runs instead of %s: %s", pl_isa_name(isa), pl_isa_name((enum pl_isa)i), why);
    }
    const struct pl_pool_options pool = {.threads = opt->threads, .pin = opt->pin};
    PL_TRY(pl_cpu_create_with(isa, &pool, &c->cpu, err));
    pl_cpu_allow_wide(c->cpu, !opt->invariant && !opt->exact);
    snprintf(c->expanded, sizeof c->expanded, "%s/attention/expanded", pl_isa_name(isa));
    for (int op = 0; op < PL_OP_COUNT; op++) PL_TRY(pick_impl(c, (enum pl_op)op, isa, err));
    return PL_OK;
}

enum pl_status pl_ops_cpu_create(const struct pl_ops_options *opt, struct pl_ops **out, struct pl_err *err) {
    enum pl_isa isa;
    PL_TRY(pick_isa(opt->isa, &isa, err));
    struct cpu_ops *c = pl_calloc(1, sizeof *c);
    if (c == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for the CPU backend");
    pl_ops_init(&c->base, &cpu_impl);
    c->sparse.least = opt->sparse_values;
    enum pl_status st = open_cpu(c, isa, opt, err);
    if (st != PL_OK) {
        pl_ops_destroy(&c->base);
        return st;
    }
    int threads = pl_pool_threads(pl_cpu_pool(c->cpu));
    snprintf(c->base.describe, sizeof c->base.describe, "cpu (%s, %d %sthread%s)", pl_isa_name(isa), threads,
             opt->pin ? "pinned " : "", threads == 1 ? "" : "s");
    *out = &c->base;
    return PL_OK;
}
