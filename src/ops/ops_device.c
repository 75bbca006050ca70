/* The device backends: CUDA, ROCm and OpenCL through the same kernels. Work is enqueued on one stream; a step of one
 * token per sequence is collected and replayed as a graph where the device has graphs.
 *
 * A step's tokens, positions and block tables travel in one upload (layout: kernels/args/args.h), so launches of equal
 * shape have equal arguments whatever the lengths are. */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "base/mem.h"
#include "ops/device_ops.h"
#include "tensor/kv8.h"
#include "tensor/quant.h"

/* A hot call failed: the text goes to the log, the status to the caller. */
static enum pl_status report(struct dev_ops *d, enum pl_status st) {
    if (st != PL_OK) pl_log("%s", d->ks.err.text);
    return st;
}
static enum pl_status done(struct pl_ops *o, enum pl_op op, const struct pl_kernel *k, uint64_t bytes, enum pl_status st) {
    if (op != PL_OP_linear && op != PL_OP_linear_add) dev_of(o)->prepared = NULL; /* its rows may be others now */
    if (st == PL_OK) pl_ops_count(o, op, k->name, 1, bytes);
    return report(dev_of(o), st);
}

enum pl_status dev_done(struct pl_ops *o, enum pl_op op, const struct pl_kernel *k, uint64_t bytes, enum pl_status st) {
    return done(o, op, k, bytes, st);
}
enum pl_status dev_report(struct dev_ops *d, enum pl_status st) { return report(d, st); }

/* Handles go before their backend does: after a failure work may still be using them. */
static void settle_if_poisoned(struct dev_ops *d) {
    if (pl_device_poisoned(d->ks.device)) pl_device_settle(d->ks.device);
}

/* --- weights --- */

/* Kernels are shared by all weights of one format. */
static bool same_format(const struct dev_format *f, const struct pl_device_weight *w) {
    return f->w.dtype == w->dtype && f->w.bits == w->bits && f->w.group == w->group && f->w.scale_dtype == w->scale_dtype &&
           f->w.strips == w->strips;
}
enum pl_status dev_format_of(struct dev_ops *d, const struct pl_device_weight *w, struct dev_format **out,
                             struct pl_err *err) {
    for (struct dev_format *f = d->formats; f != NULL; f = f->next) {
        if (same_format(f, w)) return *out = f, PL_OK;
    }
    struct dev_format *f = pl_calloc(1, sizeof *f);
    if (f == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for the kernels of a weight format");
    f->w = (struct pl_device_weight){
        .dtype = w->dtype, .bits = w->bits, .group = w->group, .scale_dtype = w->scale_dtype, .strips = w->strips};
    f->next = d->formats;
    d->formats = f;
    *out = f;
    return PL_OK;
}

enum pl_status dev_upload(struct dev_ops *d, const struct pl_device_buffer *to, uint64_t offset, const void *from,
                          uint64_t n, struct pl_err *err) {
    if (!pl_stage_helps(d->ks.device, n)) return pl_device_upload(d->ks.device, d->ks.stream, to, offset, from, n, err);
    if (d->stage == NULL) PL_TRY(pl_stage_create(d->ks.device, &d->stage, err));
    return pl_stage_upload(d->stage, d->ks.stream, to, offset, from, n, err);
}
static enum pl_status put(struct dev_ops *d, const void *bytes, uint64_t n, struct pl_device_buffer *out,
                          struct pl_err *err) {
    PL_TRY(pl_device_alloc(d->ks.device, n, out, err));
    return dev_upload(d, out, 0, bytes, n, err);
}

static void weight_destroy(struct pl_ops *o, struct pl_weight *weight) {
    settle_if_poisoned(dev_of(o));
    struct dev_weight *w = (struct dev_weight *)weight;
    struct pl_device *d = dev_of(o)->ks.device;
    pl_device_free(d, &w->w.data);
    pl_device_free(d, &w->w.scales);
    pl_device_free(d, &w->w.biases);
    pl_device_free(d, &w->kept);
    for (struct dev_weight **p = &dev_of(o)->packed; *p != NULL; p = &(*p)->next_packed) {
        if (*p != w) continue;
        *p = w->next_packed;
        break;
    }
    pl_free(w);
}

static enum pl_status fill_vector(struct dev_ops *d, const struct pl_tensor *t, struct dev_weight *w, struct pl_err *err) {
    uint64_t n = pl_tensor_cols(t);
    float *v = pl_alloc(n, sizeof *v);
    if (v == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for %s", t->name);
    enum pl_status st = pl_dequant_row(t, 0, v);
    if (st != PL_OK) {
        st = pl_err_set(err, __FILE__, __LINE__, PL_UNSUPPORTED, "tensor %s has type %s, which is no vector of weights",
                        t->name, pl_dtype_name(t->dtype));
    }
    if (st == PL_OK) st = put(d, v, n * sizeof *v, &w->w.data, err);
    if (st == PL_OK) st = pl_device_stream_wait(d->ks.device, d->ks.stream, err);
    if (st != PL_OK) pl_device_settle(d->ks.device); /* a copy may still read v */
    pl_free(v);
    return st;
}

bool dev_is_matrix_type(enum pl_dtype t) {
    return t == PL_F32 || t == PL_F16 || t == PL_BF16 || t == PL_MLX || pl_dtype_info(t)->block_elems > 1;
}

static enum pl_status fill_matrix(struct dev_ops *d, const struct pl_tensor *t, enum pl_weight_use use, struct dev_weight *w,
                                  struct pl_err *err) {
    if (!dev_is_matrix_type(t->dtype)) {
        PL_FAIL(err, PL_UNSUPPORTED, "tensor %s has type %s, which no product takes", t->name, pl_dtype_name(t->dtype));
    }
    PL_TRY(pl_tensor_check_scales(t, err));
    w->w = (struct pl_device_weight){.dtype = t->dtype, .rows = pl_tensor_rows(t), .cols = pl_tensor_cols(t)};
    w->w.row_bytes = t->bytes / w->w.rows;
    w->bytes = t->bytes;
    w->w.strips = dev_wants_strips(d, &w->w, use);
    if (!w->w.strips) PL_TRY(put(d, t->data, t->bytes, &w->w.data, err));
    if (t->dtype == PL_MLX) {
        uint64_t n = w->w.rows * (w->w.cols / t->group) * pl_dtype_info(t->scale_dtype)->block_bytes;
        w->w.bits = t->bits;
        w->w.group = t->group;
        w->w.scale_dtype = t->scale_dtype;
        PL_TRY(put(d, t->scales, n, &w->w.scales, err));
        PL_TRY(put(d, t->biases, n, &w->w.biases, err));
        w->bytes += 2 * n;
    }
    if (pl_dense_declines(&d->ks, &w->w, SIZE_MAX) == NULL) {
        d->dense_cols = PL_MAX(d->dense_cols, w->w.cols);
        d->plain |= w->w.dtype == PL_BF16;
        d->dense_bytes = PL_MAX(d->dense_bytes, pl_dense_unpacked_bytes(&w->w));
    }
    if (dev_mma_plain(d, &w->w)) {
        d->mma_cols = PL_MAX(d->mma_cols, w->w.cols);
        d->mma_outputs = PL_MAX(d->mma_outputs, PL_MMA_MATRICES_MAX * w->w.rows);
    }
    d->routers += !d->exact && pl_router_declines(&d->ks, &w->w) == NULL;
    if (pl_stream_declines(&d->ks, &w->w, 1) == NULL) w->w.strips ? d->strip_streams++ : d->streams++;
    PL_TRY(dev_format_of(d, &w->w, &w->format, err));
    return w->w.strips ? dev_load_strips(d, t->data, t->bytes, w, err) : PL_OK;
}

static enum pl_status weight_create(struct pl_ops *o, const struct pl_tensor *t, enum pl_weight_use use,
                                    struct pl_weight **out, struct pl_err *err) {
    struct dev_weight *w = pl_calloc(1, sizeof *w);
    if (w == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for %s", t->name);
    enum pl_status st = use == PL_WEIGHT_VECTOR    ? fill_vector(dev_of(o), t, w, err)
                        : use == PL_WEIGHT_TERNARY ? dev_ternary_fill(dev_of(o), t, w, err)
                                                   : fill_matrix(dev_of(o), t, use, w, err);
    if (st != PL_OK) {
        pl_device_settle(dev_of(o)->ks.device); /* a copy may still read the tensor */
        weight_destroy(o, &w->base);
        pl_err_note(err, "copying %s to the device", t->name);
        return st;
    }
    struct dev_ops *d = dev_of(o);
    if (use == PL_WEIGHT_MATRIX && w->w.dtype != PL_BF16 && pl_dense_declines(&d->ks, &w->w, SIZE_MAX) == NULL) {
        w->next_packed = d->packed;
        d->packed = w;
    }
    *out = &w->base;
    return PL_OK;
}

static uint64_t weight_bytes_owned(const struct pl_ops *o, const struct pl_weight *w) {
    (void)o;
    const struct dev_weight *own = weight_of(w);
    return own->w.data.bytes + own->w.scales.bytes + own->w.biases.bytes + own->kept.bytes;
}

static enum pl_status linear_kernel(struct dev_ops *d, struct dev_format *f, uint32_t tile, struct pl_kernel **out) {
    struct pl_kernel *k = &f->linear[tile];
    if (k->jit == NULL) PL_TRY(pl_kernel_linear(&d->ks, &f->w, tile, k, &d->ks.err));
    *out = k;
    return PL_OK;
}

static bool forced(const struct dev_ops *d, enum pl_op op, enum pl_impl impl) { return d->base.choice.forced[op] == impl; }

/* Dense products are meant for many rows of weights that may be rounded, on devices with matrix units. */
static struct pl_candidate dense_candidate(const struct dev_ops *d, const struct dev_weight *w, size_t rows) {
    size_t least = dev_mma_plain(d, &w->w) ? PL_DENSE_ROWS_STRIPS : pl_dense_rows(&w->w), enough = PL_MAX(rows, least);
    const char *why = pl_dense_declines(&d->ks, &w->w, forced(d, PL_OP_linear, PL_IMPL_CUBLASLT) ? enough : rows);
    bool planned = !d->exact && rows >= least && w->w.dtype != PL_F32 && pl_cuda_has_units(&d->ks);
    if (why == NULL && d->exact) why = "exact products were asked for";
    if (why == NULL && d->dense.why_not[0] != 0) why = "cuBLASLt is missing";
    return (struct pl_candidate){PL_IMPL_CUBLASLT, planned, why};
}

/* Invariant: one kernel for any number of rows, or kernels that add in one order (ks.fixed). */
static uint32_t tile_of(const struct dev_ops *d, size_t rows, uint32_t *tile_rows) {
    return pl_tile_of(d->base.invariant ? SIZE_MAX : rows, tile_rows);
}

enum { PRODUCT_IMPLS = 7 };
/* In rank order; rows > 0. */
static size_t product_candidates(const struct dev_ops *d, const struct dev_weight *w, size_t rows,
                                 struct pl_candidate out[PRODUCT_IMPLS]) {
    size_t n = 0;
    if (pl_device_info(d->ks.device)->kind == PL_DEVICE_CUDA && !d->base.invariant) {
        out[n++] = dense_candidate(d, w, rows);
        const char *not_chain = d->chain.fits ? NULL : rows > 1 ? "more than one row" : "not between two attentions";
        out[n++] = (struct pl_candidate){PL_IMPL_CHAIN, not_chain == NULL, not_chain};
        const char *not_stream = pl_stream_declines(&d->ks, &w->w, rows);
        bool streams = rows == 1 && (dev_streams_strips(d) || !w->w.strips) && not_stream == NULL;
        out[n++] = (struct pl_candidate){PL_IMPL_STREAM, streams, not_stream};
        bool plain = dev_mma_plain(d, &w->w), few = rows > 1 && rows <= PL_MMA_ROWS_MAX;
        const char *not_mma = pl_mma_declines(&d->ks, &w->w);
        if (not_mma == NULL && !plain && !w->w.strips) not_mma = "exact products were asked for";
        out[n++] = (struct pl_candidate){PL_IMPL_MMA, w->w.strips || (plain && few), not_mma};
        const char *not_fma = pl_fma_declines(&d->ks, &w->w, rows);
        out[n++] = (struct pl_candidate){PL_IMPL_FMA, not_fma == NULL, not_fma};
        out[n++] = (struct pl_candidate){PL_IMPL_GEMV, true, pl_gemv_declines(&d->ks, &w->w, rows)};
    } else if (d->ks.fixed) { /* asked for the most rows: the choice may not depend on their number either */
        const char *not_mma = pl_mma_declines(&d->ks, &w->w);
        out[n++] = (struct pl_candidate){PL_IMPL_MMA, w->w.strips || dev_mma_plain(d, &w->w), not_mma};
        out[n++] = (struct pl_candidate){PL_IMPL_GEMV, true, pl_gemv_declines(&d->ks, &w->w, PL_GEMV_ROWS_MAX)};
    }
    out[n++] = (struct pl_candidate){PL_IMPL_PORTABLE, true, w->w.strips ? "rearranged weights" : NULL};
    return n;
}
enum pl_status dev_decide(struct dev_ops *d, enum pl_op op, const struct dev_weight *w, size_t rows, enum pl_impl *taken) {
    struct pl_candidate list[PRODUCT_IMPLS];
    char shape[96];
    size_t n = product_candidates(d, w, rows, list);
    struct pl_pick pick = pl_choose(&d->base.choice, op, list, n);
    *taken = pick.taken;
    if (pick.taken != PL_IMPL_NONE) return pl_ops_end_decision(&d->base, op, &pick, 1, "");
    snprintf(shape, sizeof shape, "%zu rows by %s [%llu, %llu]", rows, pl_dtype_name(w->w.dtype),
             (unsigned long long)w->w.rows, (unsigned long long)w->w.cols);
    return pl_ops_end_decision(&d->base, op, &pick, 1, shape);
}

enum pl_impl dev_product(const struct dev_ops *d, const struct dev_weight *w, size_t rows) {
    struct pl_candidate list[PRODUCT_IMPLS];
    return rows == 0 ? PL_IMPL_NONE
                     : pl_choose(&d->base.choice, PL_OP_linear, list, product_candidates(d, w, rows, list)).taken;
}

static const char *weight_kernel(const struct pl_ops *o, const struct pl_weight *w, size_t rows) {
    const struct dev_weight *dw = weight_of(w);
    const struct dev_ops *d = (const struct dev_ops *)o;
    uint32_t tile_rows, tile = tile_of(d, rows, &tile_rows);
    if (dw->format == NULL || rows == 0) return "none";
    if (dw->w.dtype == PL_TERNARY) return dev_ternary_name(d, dw, rows);
    struct dev_format *f = dw->format;
    enum pl_impl taken = dev_product(d, dw, rows);
    if (taken == PL_IMPL_NONE) return "refused";
    if (taken == PL_IMPL_CUBLASLT) return DEV_DENSE_NAME;
    if (taken == PL_IMPL_STREAM || taken == PL_IMPL_CHAIN) return dev_stream_name(f);
    if (taken == PL_IMPL_MMA) return dev_mma_name(d, f, rows);
    if (taken == PL_IMPL_FMA) return pl_fma_name(pl_fma_kernel_of(&d->ks, &dw->w, rows));
    if (taken == PL_IMPL_GEMV) {
        rows = PL_MIN(rows, (size_t)PL_GEMV_ROWS_MAX);
        if (f->gemv_names[rows - 1][0] == 0) pl_kernel_gemv_name(&f->w, (uint32_t)rows, f->gemv_names[rows - 1]);
        return f->gemv_names[rows - 1];
    }
    if (f->names[tile][0] == 0) pl_kernel_linear_name(&((const struct dev_ops *)o)->ks, &f->w, tile, f->names[tile]);
    return f->names[tile];
}

/* --- activations, KV, rotary tables --- */

static enum pl_status activation_create(struct pl_ops *o, size_t rows_max, size_t cols, struct pl_activation **out,
                                        struct pl_err *err) {
    struct dev_ops *d = dev_of(o);
    size_t bytes;
    if (!pl_mul_size(rows_max, cols, &bytes) || !pl_mul_size(bytes, sizeof(float), &bytes) || cols > UINT32_MAX ||
        rows_max > UINT32_MAX / 8) {
        PL_FAIL(err, PL_LIMIT, "an activation of %zu x %zu does not fit in memory", rows_max, cols);
    }
    struct dev_activation *a = pl_calloc(1, sizeof *a);
    if (a == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for an activation");
    enum pl_status st = pl_device_alloc(d->ks.device, bytes, &a->data, err);
    if (st != PL_OK) {
        pl_free(a);
        return st;
    }
    d->stride = PL_MAX(d->stride, (uint32_t)rows_max);
    *out = &a->base;
    return PL_OK;
}
static void activation_destroy(struct pl_ops *o, struct pl_activation *activation) {
    settle_if_poisoned(dev_of(o));
    struct dev_activation *a = (struct dev_activation *)activation;
    pl_device_free(dev_of(o)->ks.device, &a->data);
    pl_free(a);
}
static enum pl_status activation_read(struct pl_ops *o, const struct pl_activation *a, size_t first_row, size_t rows,
                                      float *out) {
    struct dev_ops *d = dev_of(o);
    uint64_t row = a->cols * sizeof(float);
    PL_TRY(dev_settle(o));
    enum pl_status st = pl_kernels_record_end(&d->ks); /* a read inside a step: run what was collected */
    if (st == PL_OK) {
        st = pl_device_download(d->ks.device, d->ks.stream, out, data_of(a), first_row * row, rows * row, &d->ks.err);
    }
    if (st == PL_OK) st = pl_device_stream_wait(d->ks.device, d->ks.stream, &d->ks.err);
    if (st != PL_OK) pl_device_settle(d->ks.device); /* nothing may be written to `out` later */
    return report(d, st);
}

static void kv_destroy(struct pl_ops *o, struct pl_kv_store *store) {
    settle_if_poisoned(dev_of(o));
    struct dev_kv *kv = (struct dev_kv *)store;
    struct pl_device *d = dev_of(o)->ks.device;
    struct pl_kernels *ks = &dev_of(o)->ks;
    for (size_t i = 0; i < kv->side_count; i++) pl_device_free(d, &kv->sides[i]);
    dev_states_destroy(dev_of(o), kv);
    for (size_t i = 0; i < PL_COUNT_OF(kv->rope); i++) {
        pl_kernel_free(ks, &kv->rope[i]), pl_kernel_free(ks, &kv->rope_warps[i]);
        pl_kernel_free(ks, &kv->whole[0][i]), pl_kernel_free(ks, &kv->whole[1][i]);
    }
    pl_kernel_free(ks, &kv->attention);
    pl_kernel_free(ks, &kv->attention_sinks);
    for (int i = 0; i < PL_TILES_COUNT; i++) pl_kernel_free(ks, &kv->tiles[i]);
    pl_kernel_free(ks, &kv->widen), pl_kernel_free(ks, &kv->turn_back);
    pl_kernel_free(ks, &kv->split.split);
    pl_kernel_free(ks, &kv->split.merge);
    for (size_t i = 0; i < PL_COUNT_OF(kv->paged); i++) pl_paged_free(ks, &kv->paged[i]);
    pl_free(kv->sides);
    pl_free(kv);
}

static enum pl_status kv_create(struct pl_ops *o, const struct pl_kv_shape *s, struct pl_kv_store **out,
                                struct pl_err *err) {
    struct dev_ops *d = dev_of(o);
    size_t sides = pl_kv_sides(s) * s->layers;
    struct dev_kv *kv = pl_calloc(1, sizeof *kv);
    if (kv == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a KV cache");
    kv->sides = pl_calloc(sides + 1, sizeof *kv->sides);
    enum pl_status st =
        kv->sides != NULL ? PL_OK : pl_err_set(err, __FILE__, __LINE__, PL_NO_MEMORY, "no memory for a KV cache");
    while (st == PL_OK && kv->side_count < sides) {
        size_t layer = kv->side_count / pl_kv_sides(s), side = kv->side_count % pl_kv_sides(s);
        uint64_t bytes = pl_kv_layer_pages(s, layer) * pl_kv_page_bytes(s, side);
        st = pl_device_alloc(d->ks.device, bytes, &kv->sides[kv->side_count], err);
        if (st == PL_OK) st = pl_device_fill(d->ks.device, d->ks.stream, &kv->sides[kv->side_count++], 0, err);
    }
    if (st == PL_OK) st = dev_states_create(d, kv, s, err);
    if (st != PL_OK) {
        pl_err_note(err, "making a KV cache of %llu bytes: ask for a smaller context",
                    (unsigned long long)pl_kv_shape_bytes(s));
        kv_destroy(o, &kv->base);
        return st;
    }
    *out = &kv->base;
    return PL_OK;
}

static enum pl_status kv_copy_page(struct pl_ops *o, struct pl_kv_store *store, bool windowed, uint32_t from, uint32_t to) {
    struct dev_ops *d = dev_of(o);
    struct dev_kv *kv = (struct dev_kv *)store;
    for (size_t i = 0; i < kv->side_count; i++) {
        size_t sides = pl_kv_sides(&store->shape);
        if (pl_kv_is_windowed(&store->shape, i / sides) != windowed) continue;
        uint64_t page = pl_kv_page_bytes(&store->shape, i % sides);
        enum pl_status st = pl_device_copy(d->ks.device, d->ks.stream, &kv->sides[i], to * page, &kv->sides[i], from * page,
                                           page, &d->ks.err);
        if (st != PL_OK) return report(d, st);
    }
    return PL_OK;
}

static enum pl_status rope_create(struct pl_ops *o, const float *cos_sin, size_t positions, size_t dim, bool halves,
                                  struct pl_rope **out, struct pl_err *err) {
    (void)halves;
    struct dev_ops *d = dev_of(o);
    size_t bytes;
    if (!pl_mul_size(positions, dim, &bytes) || !pl_mul_size(bytes, sizeof(float), &bytes)) {
        PL_FAIL(err, PL_LIMIT, "a rotary table of %zu positions does not fit in memory", positions);
    }
    struct dev_rope *r = pl_calloc(1, sizeof *r);
    if (r == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a rotary table");
    enum pl_status st = put(d, cos_sin, bytes, &r->cos_sin, err);
    if (st == PL_OK) st = pl_device_stream_wait(d->ks.device, d->ks.stream, err);
    if (st != PL_OK) {
        pl_device_settle(d->ks.device);
        pl_device_free(d->ks.device, &r->cos_sin);
        pl_free(r);
        return st;
    }
    *out = &r->base;
    return PL_OK;
}
static void rope_destroy(struct pl_ops *o, struct pl_rope *rope) {
    settle_if_poisoned(dev_of(o));
    struct dev_rope *r = (struct dev_rope *)rope;
    pl_device_free(dev_of(o)->ks.device, &r->cos_sin);
    pl_free(r);
}

/* --- a step --- */

static enum pl_status reserve_step(struct dev_ops *d, const struct pl_batch *b) {
    uint64_t need = 4 * (uint64_t)d->stride + b->page_entries;
    bool second = b->window_pages != NULL;
    if (need <= d->step_entries && (!second || d->step_windowed.bytes > 0)) return PL_OK;
    need += need / 2;
    PL_TRY(pl_device_stream_wait(d->ks.device, d->ks.stream, &d->ks.err));
    pl_device_free(d->ks.device, &d->step);
    pl_device_free(d->ks.device, &d->step_windowed);
    pl_device_host_free(d->ks.device, d->staging);
    d->staging = NULL;
    d->step_entries = 0;
    PL_TRY(pl_device_alloc(d->ks.device, need * sizeof(uint32_t), &d->step, &d->ks.err));
    if (second) PL_TRY(pl_device_alloc(d->ks.device, need * sizeof(uint32_t), &d->step_windowed, &d->ks.err));
    uint64_t seqs = (uint64_t)d->stride * PL_SEQ_WORDS; /* behind both the sequences, for models with state */
    PL_TRY(pl_device_host_alloc(d->ks.device, (2 * need + seqs) * sizeof(uint32_t), (void **)&d->staging, &d->ks.err));
    d->step_entries = need;
    return PL_OK;
}

static void write_step(struct dev_ops *d, const struct pl_batch *b) {
    uint32_t *s = d->staging, stride = d->stride;
    memset(s, 0, 4 * (size_t)stride * sizeof *s);
    memcpy(s + PL_STEP_TOKEN(stride), b->tokens, b->rows * sizeof *s);
    for (uint32_t i = 0; i < b->seq_count; i++) {
        const struct pl_batch_seq *q = &b->seqs[i];
        for (uint32_t r = 0; r < q->rows; r++) {
            s[PL_STEP_POSITION(stride) + q->first_row + r] = q->past + r;
            s[PL_STEP_PAGE_FIRST(stride) + q->first_row + r] = q->page_first;
        }
    }
    if (b->logit_count > 0) memcpy(s + PL_STEP_LOGIT(stride), b->logit_rows, b->logit_count * sizeof *s);
    if (b->page_entries > 0) memcpy(s + PL_STEP_PAGES(stride), b->pages, b->page_entries * sizeof *s);
    if (b->window_pages == NULL) return;
    memcpy(s + d->step_entries, s, 4 * (size_t)stride * sizeof *s);
    memcpy(s + d->step_entries + PL_STEP_PAGES(stride), b->window_pages, b->page_entries * sizeof *s);
}

static enum pl_status upload_step(struct dev_ops *d, const struct pl_batch *b, bool states) {
    d->stride = PL_MAX(d->stride, b->rows);
    PL_TRY(reserve_step(d, b));
    if (states) PL_TRY(dev_reserve_seqs(d));
    if (d->uploaded.handle != NULL && d->upload_pending) {
        PL_TRY(pl_device_event_wait(d->ks.device, &d->uploaded, &d->ks.err)); /* the staging memory is ours again */
    }
    write_step(d, b);
    uint64_t bytes = (4 * (uint64_t)d->stride + b->page_entries) * sizeof(uint32_t);
    PL_TRY(pl_device_upload(d->ks.device, d->ks.stream, &d->step, 0, d->staging, bytes, &d->ks.err));
    if (b->window_pages != NULL)
        PL_TRY(pl_device_upload(d->ks.device, d->ks.stream, &d->step_windowed, 0, d->staging + d->step_entries, bytes,
                                &d->ks.err));
    if (states) PL_TRY(dev_upload_seqs(d, b, d->staging + 2 * d->step_entries));
    PL_TRY(pl_device_event_record(d->ks.device, &d->uploaded, d->ks.stream, &d->ks.err));
    d->upload_pending = true;
    return PL_OK;
}

/* The step before this one still runs: its tokens were not waited for. */
static bool is_ahead(const struct pl_batch *b) {
    for (uint32_t i = 0; i < b->rows; i++)
        if ((b->tokens[i] & PL_TOKEN_CHOSEN) != 0) return true;
    return false;
}

static enum pl_status begin(struct pl_ops *o, const struct pl_batch *b, struct pl_kv_store *kv) {
    struct dev_ops *d = dev_of(o);
    if (b->rows == 0) return PL_OK;
    if (d->ks.fixed && b->rows > PL_MMA_FIXED_ROWS) {
        return report(d, pl_err_set(&d->ks.err, __FILE__, __LINE__, PL_LIMIT, "%u rows in a step, at most %d when invariant",
                                    b->rows, PL_MMA_FIXED_ROWS));
    }
    pl_stage_destroy(d->stage); /* everything is loaded */
    d->stage = NULL;
    enum pl_status st = upload_step(d, b, kv->shape.state_layers > 0);
    if (st != PL_OK) return report(d, st);
    bool many = b->rows >= (d->plain ? PL_DENSE_ROWS_PLAIN : PL_DENSE_ROWS) || forced(d, PL_OP_linear, PL_IMPL_CUBLASLT);
    if (many && d->dense_cols > 0 && !d->exact) { /* now: nothing may be allocated while launches are collected */
        st = pl_dense_ready(&d->ks, &d->dense, 2 * d->dense_cols * d->stride, d->dense_bytes, &d->ks.err);
        if (st != PL_OK) return report(d, st);
    }
    d->prepared = NULL;
    d->norm_waits = d->rounds = (struct dev_norm){0}; /* of a step that failed half way */
    d->rope_waits = (struct dev_rope_waits){0};
    st = dev_ternary_begin(d);
    if (st == PL_OK) st = dev_mma_begin(d);
    if (st == PL_OK) st = dev_chain_begin(d);
    if (st == PL_OK) st = dev_layers_begin(d, kv);
    if (st == PL_OK) st = dev_choice_begin(d);
    if (st != PL_OK) return report(d, st);
    d->steps++;
    d->longest = 0;
    for (uint32_t i = 0; i < b->seq_count; i++) d->longest = PL_MAX(d->longest, b->seqs[i].past + b->seqs[i].rows);
    if (b->rows == b->seq_count) pl_kernels_record_begin(&d->ks);
    if (is_ahead(b)) pl_kernels_record_whole(&d->ks);
    return PL_OK;
}
static enum pl_status end(struct pl_ops *o) {
    struct dev_ops *d = dev_of(o);
    d->rope_waits = (struct dev_rope_waits){0}; /* of a step that failed: there is no cache any more, and no attention */
    enum pl_status st = dev_settle(o), ended = report(d, pl_kernels_record_end(&d->ks));
    if (ended == PL_OK && d->sparse > 0 && !d->ks.planning) ended = report(d, pl_kernels_fetch_values(&d->ks));
    o->graphs = (struct pl_ops_graphs){d->ks.graph_launches, d->ks.graphs_made, d->ks.graphs_ns, d->ks.launched_once};
    return st != PL_OK ? st : ended;
}

static enum pl_status embed(struct pl_ops *o, const struct pl_weight *table, float scale, struct pl_activation *x) {
    struct dev_ops *d = dev_of(o);
    PL_TRY(dev_settle(o));
    const struct dev_weight *w = weight_of(table);
    struct pl_kernel *k = &w->format->embed;
    if (k->jit == NULL) {
        enum pl_status st = pl_kernel_embed(&d->ks, &w->w, k, &d->ks.err);
        if (st != PL_OK) return report(d, st);
    }
    return done(o, PL_OP_embed, k, x->rows * w->w.row_bytes,
                pl_launch_embed(&d->ks, k, &w->w, &d->step, d->stride, &d->choice.tokens, data_of(x), x->rows, scale));
}

static enum pl_status launch_norm(struct pl_ops *o, struct pl_activation *x, const struct pl_weight *w, float eps,
                                  float offset, struct pl_activation *y) {
    struct dev_ops *d = dev_of(o);
    struct pl_launch_prepare p = {.x = data_of(x),
                                  .w = &weight_of(w)->w.data,
                                  .y = data_of(y),
                                  .rows = x->rows,
                                  .cols = x->cols,
                                  .eps = eps,
                                  .offset = offset};
    if (dev_prepares(d, x->rows, x->cols)) return dev_prepare(o, PL_OP_norm, PL_PREPARE_NORM, &p, y);
    struct pl_kernel *k = NULL;
    PL_TRY(dev_norm_kernel(d, x->rows, x->cols, &k));
    return done(
        o, PL_OP_norm, k, 0,
        pl_launch_norm(&d->ks, k, data_of(x), NULL, &weight_of(w)->w.data, data_of(y), x->rows, x->cols, eps, offset));
}
enum pl_status dev_norm(struct pl_ops *o, const struct dev_norm *n) {
    return launch_norm(o, n->x, n->w, n->eps, n->offset, n->y);
}
enum pl_status dev_settle(struct pl_ops *o) {
    PL_TRY(dev_layers_settle(o));
    PL_TRY(dev_chain_settle(o));
    PL_TRY(dev_ternary_settle(o));
    PL_TRY(dev_round_settle(o));
    struct dev_norm n = dev_of(o)->norm_waits;
    struct dev_rope_waits w = dev_of(o)->rope_waits;
    if (w.r.q != NULL) {
        dev_of(o)->rope_waits = (struct dev_rope_waits){0};
        return dev_rope(o, &w.r, w.kind, w.bytes);
    }
    if (n.y == NULL) return PL_OK;
    dev_of(o)->norm_waits = (struct dev_norm){0};
    return launch_norm(o, n.x, n.w, n.eps, n.offset, n.y);
}
static enum pl_status norm(struct pl_ops *o, struct pl_activation *x, const struct pl_weight *w, float eps, float offset,
                           struct pl_activation *y) {
    const struct dev_norm n = {x, y, w, eps, offset};
    if (dev_chain_norm(dev_of(o), &n) || dev_layers_hold_norm(dev_of(o), &n)) return PL_OK;
    PL_TRY(dev_settle(o));
    if (dev_norm_waits(dev_of(o), &n) || dev_rounds_norm(dev_of(o), &n)) return PL_OK;
    return launch_norm(o, x, w, eps, offset, y);
}
static enum pl_status add_norm(struct pl_ops *o, struct pl_activation *x, const struct pl_activation *add,
                               const struct pl_weight *w, float eps, float offset, struct pl_activation *y) {
    struct dev_ops *d = dev_of(o);
    PL_TRY(dev_settle(o));
    struct pl_launch_prepare p = {.x = data_of(x),
                                  .second = data_of(add),
                                  .w = &weight_of(w)->w.data,
                                  .y = data_of(y),
                                  .rows = x->rows,
                                  .cols = x->cols,
                                  .eps = eps,
                                  .offset = offset};
    if (dev_prepares(d, x->rows, x->cols)) return dev_prepare(o, PL_OP_add_norm, PL_PREPARE_ADD_NORM, &p, y);
    return done(o, PL_OP_add_norm, &d->add_norm, 0,
                pl_launch_norm(&d->ks, &d->add_norm, data_of(x), data_of(add), &weight_of(w)->w.data, data_of(y), x->rows,
                               x->cols, eps, offset));
}
static enum pl_status layer_norm(struct pl_ops *o, struct pl_activation *x, const struct pl_weight *w,
                                 const struct pl_weight *bias, float eps, struct pl_activation *y) {
    struct dev_ops *d = dev_of(o);
    PL_TRY(dev_settle(o));
    struct pl_kernel *k = &d->layer_norm[bias != NULL];
    enum pl_status st = k->jit != NULL ? PL_OK : pl_kernel_layer_norm(&d->ks, bias != NULL, k, &d->ks.err);
    if (st != PL_OK) return report(d, st);
    const struct pl_device_buffer *b = vector_of(bias);
    st = pl_launch_layer_norm(&d->ks, k, data_of(x), &weight_of(w)->w.data, b, data_of(y), x->rows, x->cols, eps);
    return done(o, PL_OP_layer_norm, k, 0, st);
}
static enum pl_status add(struct pl_ops *o, struct pl_activation *x, const struct pl_activation *add_) {
    struct dev_ops *d = dev_of(o);
    if (dev_ternary_adds(d, x, add_)) return dev_ternary_add(o, x);
    PL_TRY(dev_settle(o));
    struct pl_kernel *k = &d->elementwise[PL_EW_ADD];
    return done(o, PL_OP_add, k, 0, pl_launch_add(&d->ks, k, data_of(x), data_of(add_), x->rows, x->cols));
}

static enum pl_status product(struct pl_ops *o, enum pl_op op, const struct pl_weight *weight, const struct pl_weight *bias,
                              const struct pl_activation *x, struct pl_activation *y) {
    struct dev_ops *d = dev_of(o);
    const struct dev_weight *w = weight_of(weight);
    uint32_t tile_rows, tile = tile_of(d, x->rows, &tile_rows);
    struct pl_kernel *k = NULL;
    enum pl_status st = linear_kernel(d, w->format, tile, &k);
    if (st != PL_OK) return report(d, st);
    const struct pl_device_buffer *b = vector_of(bias);
    st = pl_launch_linear(&d->ks, k, &w->w, data_of(x), b, data_of(y), x->rows, tile_rows, op == PL_OP_linear_add);
    return done(o, op, k, w->bytes, st);
}
/* The longest run of matrices from `at` on that were given to the same implementation, and that one launch can take. */
static size_t run_of(size_t count, const struct pl_weight *const *w, const enum pl_impl *taken, size_t at) {
    const struct dev_weight *first = weight_of(w[at]);
    size_t n = 1;
    for (; at + n < count && taken[at + n] == taken[at]; n++) {
        const struct dev_weight *next = weight_of(w[at + n]);
        bool alike = next->format == first->format && next->w.row_bytes == first->w.row_bytes;
        if (taken[at] == PL_IMPL_GEMV && (n == PL_GEMV_MATRICES_MAX || !alike)) break;
        if (taken[at] == PL_IMPL_MMA && (n == PL_MMA_MATRICES_MAX || !alike)) break;
        if (taken[at] == PL_IMPL_STREAM && (n == PL_STREAM_MATRICES_MAX || !alike)) break;
    }
    return n;
}

static enum pl_status gemv_kernel(struct dev_ops *d, struct dev_format *f, uint32_t rows, struct pl_kernel **out) {
    struct pl_kernel *k = &f->gemv[rows - 1];
    if (k->jit == NULL) PL_TRY(pl_kernel_gemv(&d->ks, &f->w, rows, k, &d->ks.err));
    *out = k;
    return PL_OK;
}

/* Blocks of at most PL_GEMV_ROWS_MAX rows, each streaming the weights once. */
static enum pl_status gemv(struct pl_ops *o, enum pl_op op, size_t count, const struct pl_weight *const *w,
                           const struct pl_weight *const *bias, const struct pl_activation *x,
                           struct pl_activation *const *y) {
    struct dev_ops *d = dev_of(o);
    struct pl_launch_gemv g = {.count = count, .x = data_of(x), .add = op == PL_OP_linear_add};
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        g.w[i] = &weight_of(w[i])->w;
        g.bias[i] = bias != NULL ? vector_of(bias[i]) : NULL;
        g.y[i] = data_of(y[i]);
        bytes += weight_of(w[i])->bytes;
    }
    for (; g.row0 < x->rows; g.row0 += g.rows) {
        struct pl_kernel *k = NULL;
        g.rows = PL_MIN((uint32_t)x->rows - g.row0, (uint32_t)PL_GEMV_ROWS_MAX);
        enum pl_status st = gemv_kernel(d, weight_of(w[0])->format, g.rows, &k);
        if (st != PL_OK) return report(d, st);
        PL_TRY(done(o, op, k, bytes, pl_launch_gemv(&d->ks, k, &g)));
    }
    return PL_OK;
}

static enum pl_status fma_f32(struct pl_ops *o, enum pl_op op, const struct pl_weight *w, const struct pl_weight *bias,
                              const struct pl_activation *x, struct pl_activation *y) {
    struct dev_ops *d = dev_of(o);
    uint32_t which = pl_fma_kernel_of(&d->ks, &weight_of(w)->w, x->rows);
    struct pl_kernel *k = &d->fma[which];
    enum pl_status st = k->jit != NULL ? PL_OK : pl_kernel_fma(&d->ks, which, k, &d->ks.err);
    if (st != PL_OK) return report(d, st);
    const struct pl_device_buffer *b = vector_of(bias);
    st = pl_launch_fma(&d->ks, k, &weight_of(w)->w, data_of(x), b, data_of(y), x->rows, op == PL_OP_linear_add);
    return done(o, op, k, weight_of(w)->bytes, st);
}

static enum pl_status products(struct pl_ops *o, enum pl_op op, size_t count, const struct pl_weight *const *w,
                               const struct pl_weight *const *bias, const struct pl_activation *x,
                               struct pl_activation *const *y) {
    enum pl_impl taken[PL_OPS_LINEAR_MAX] = {PL_IMPL_NONE};
    bool chained = dev_chain_fits(dev_of(o), op, count, w, bias, x, y);
    if (!chained) PL_TRY(dev_chain_settle(o));
    dev_of(o)->chain.fits = chained;
    for (size_t i = 0; i < count; i++) PL_TRY(dev_decide(dev_of(o), op, weight_of(w[i]), x->rows, &taken[i]));
    dev_of(o)->chain.fits = false;
    bool dense = taken[0] == PL_IMPL_CUBLASLT;
    for (size_t i = 1; i < count; i++) dense = dense && taken[i] == PL_IMPL_CUBLASLT;
    if (dense) PL_TRY(dev_round(o, x, count, w));
    if (!dense && x->rounded) PL_TRY(dev_whole_again(o, (struct pl_activation *)x));
    if (chained && taken[0] == PL_IMPL_CHAIN) return dev_chain_take(o, op, count, w, bias, x, y, false);
    for (size_t i = 0, n; i < count; i += n) {
        const struct pl_weight *const *b = bias != NULL ? bias + i : NULL;
        n = run_of(count, w, taken, i);
        if (taken[i] == PL_IMPL_STREAM) {
            PL_TRY(dev_stream(o, op, n, w + i, b, x, y + i));
            continue;
        }
        if (taken[i] == PL_IMPL_FMA && n == 1 && op == PL_OP_linear && dev_takes_router(dev_of(o), w[i], x, y[i])) {
            PL_TRY(dev_router(o, w[i], b != NULL ? b[0] : NULL, x, y[i]));
            continue;
        }
        PL_TRY(dev_settle(o));
        if (taken[i] == PL_IMPL_CUBLASLT) {
            PL_TRY(dev_dense(o, op, n, w + i, b, x, y + i, false));
        } else if (taken[i] == PL_IMPL_MMA) {
            PL_TRY(dev_mma(o, op, n, w + i, b, x, y + i));
        } else if (taken[i] == PL_IMPL_GEMV) {
            PL_TRY(gemv(o, op, n, w + i, b, x, y + i));
        } else if (taken[i] == PL_IMPL_FMA) {
            for (size_t k = 0; k < n; k++) PL_TRY(fma_f32(o, op, w[i + k], b != NULL ? b[k] : NULL, x, y[i + k]));
        } else {
            for (size_t k = 0; k < n; k++) PL_TRY(product(o, op, w[i + k], b != NULL ? b[k] : NULL, x, y[i + k]));
        }
    }
    return PL_OK;
}
static enum pl_status linear(struct pl_ops *o, size_t count, const struct pl_weight *const *w,
                             const struct pl_weight *const *bias, const struct pl_activation *x,
                             struct pl_activation *const *y) {
    return products(o, PL_OP_linear, count, w, bias, x, y);
}
static enum pl_status linear_add(struct pl_ops *o, const struct pl_weight *w, const struct pl_activation *x,
                                 struct pl_activation *y) {
    return products(o, PL_OP_linear_add, 1, &w, NULL, x, &y);
}

/* Kernels of one cache shape, by which norms and which rotation they have. */
size_t dev_rope_index(struct pl_rope_kind kind) {
    return (kind.q_norm ? 1u : 0u) | (kind.k_norm ? 2u : 0u) | (kind.rope ? 4u : 0u) | (kind.halves ? 8u : 0u);
}
static enum pl_status rope_kernel(struct dev_ops *d, const struct pl_launch_rope *r, struct pl_rope_kind kind,
                                  struct pl_kernel **out) {
    struct dev_kv *kv = (struct dev_kv *)d->base.kv;
    const struct pl_kv_shape *s = &kv->base.shape;
    const struct pl_choice *c = &d->base.choice;
    bool asked = c->forced[PL_OP_rope_append] != PL_IMPL_NONE || c->disabled[PL_OP_rope_append] != 0;
    bool warps = !asked && pl_rope_by_warps(&d->ks, s->dtype, s->head_dim, kind, r->rope_dim);
    struct pl_kernel *k = &(warps ? kv->rope_warps : kv->rope)[dev_rope_index(kind)];
    if (k->jit == NULL)
        PL_TRY((warps ? pl_kernel_rope_warps : pl_kernel_rope)(&d->ks, s->dtype, s->head_dim, s->page_tokens, kind, k,
                                                               &d->ks.err));
    *out = k;
    return PL_OK;
}

enum pl_status dev_rope(struct pl_ops *o, const struct pl_launch_rope *r, struct pl_rope_kind kind, uint64_t bytes) {
    struct dev_ops *d = dev_of(o);
    struct pl_kernel *k = NULL;
    enum pl_status st = rope_kernel(d, r, kind, &k);
    if (st != PL_OK) return report(d, st);
    return done(o, PL_OP_rope_append, k, bytes, pl_launch_rope(&d->ks, k, r));
}
static enum pl_status rope_append(struct pl_ops *o, const struct pl_qkv *p, struct pl_activation *q, struct pl_activation *k,
                                  struct pl_activation *v) {
    struct dev_ops *d = dev_of(o);
    PL_TRY(dev_settle(o));
    struct dev_kv *kv = (struct dev_kv *)o->kv;
    const struct pl_kv_shape *s = &kv->base.shape;
    struct pl_rope_kind kind = {p->q_norm != NULL, p->k_norm != NULL, p->rope != NULL, p->rope != NULL && p->rope->halves};
    struct pl_launch_rope r = {.q = data_of(q),
                               .k = data_of(k),
                               .v = data_of(v),
                               .q_norm = vector_of(p->q_norm),
                               .k_norm = vector_of(p->k_norm),
                               .cos_sin = p->rope != NULL ? &((const struct dev_rope *)p->rope)->cos_sin : NULL,
                               .step = dev_step(d, p->layer),
                               .k_pages = &kv->sides[2 * p->layer],
                               .v_pages = &kv->sides[2 * p->layer + 1],
                               .rows = (uint32_t)q->rows,
                               .heads = p->heads,
                               .kv_heads = (uint32_t)s->kv_heads,
                               .rope_dim = p->rope != NULL ? (uint32_t)p->rope->dim : 0,
                               .stride = d->stride,
                               .norm_eps = p->norm_eps,
                               .norm_offset = p->norm_offset};
    uint64_t bytes = k->rows * s->kv_heads * pl_kv_token_bytes(s);
    if (!dev_whole(d, &r, kind)) return dev_rope(o, &r, kind, bytes);
    d->rope_waits = (struct dev_rope_waits){r, kind, bytes};
    return PL_OK;
}

static enum pl_elementwise act_kernel(enum pl_ops_act act, bool gated) {
    if (act == PL_OPS_SILU) return gated ? PL_EW_SILU : PL_EW_SILU_ALONE;
    if (act == PL_OPS_RELU2) return gated ? PL_EW_RELU2 : PL_EW_RELU2_ALONE;
    if (act == PL_OPS_NO_ACT) return PL_EW_PRODUCT;
    if (act == PL_OPS_SIGMOID) return PL_EW_SIGMOID;
    if (act == PL_OPS_GELU) return gated ? PL_EW_GELU_ERF : PL_EW_GELU_ERF_ALONE;
    return gated ? PL_EW_GELU_TANH : PL_EW_GELU_TANH_ALONE;
}

static enum pl_status glu(struct pl_ops *o, enum pl_ops_act act, const struct pl_activation *gate,
                          const struct pl_activation *up, struct pl_activation *y) {
    struct dev_ops *d = dev_of(o);
    if (dev_ternary_gates(d, act, gate, up, y)) return dev_ternary_gate(o, act, y);
    PL_TRY(dev_settle(o));
    PL_ASSERT((act != PL_OPS_NO_ACT && act != PL_OPS_SIGMOID) || up != NULL);
    const enum pl_elementwise which = act_kernel(act, up != NULL);
    struct pl_kernel *k = &d->elementwise[which];
    enum pl_status made = k->jit != NULL ? PL_OK : pl_kernel_elementwise(&d->ks, which, k, &d->ks.err);
    if (made != PL_OK) return report(d, made);
    if (up == NULL)
        return done(o, PL_OP_glu, k, 0, pl_launch_act(&d->ks, k, data_of(gate), data_of(y), gate->rows, gate->cols));
    struct pl_launch_prepare p = {
        .x = data_of(gate), .second = data_of(up), .y = data_of(y), .rows = gate->rows, .cols = gate->cols};
    bool prepared = act == PL_OPS_SILU || act == PL_OPS_GELU_TANH;
    if (prepared && dev_prepares(d, gate->rows, gate->cols))
        return dev_prepare(o, PL_OP_glu, act == PL_OPS_SILU ? PL_PREPARE_SILU : PL_PREPARE_GELU_TANH, &p, y);
    return done(o, PL_OP_glu, k, 0,
                pl_launch_glu(&d->ks, k, data_of(gate), data_of(up), data_of(y), gate->rows, gate->cols));
}
static enum pl_status gather(struct pl_ops *o, const struct pl_activation *x, struct pl_activation *y) {
    struct dev_ops *d = dev_of(o);
    PL_TRY(dev_settle(o));
    struct pl_kernel *k = &d->elementwise[PL_EW_GATHER];
    return done(o, PL_OP_gather, k, 0,
                pl_launch_gather(&d->ks, k, data_of(x), &d->step, d->stride, data_of(y), y->rows, x->cols));
}
static enum pl_status softcap(struct pl_ops *o, struct pl_activation *x, float cap) {
    struct dev_ops *d = dev_of(o);
    PL_TRY(dev_settle(o));
    struct pl_kernel *k = &d->elementwise[PL_EW_SOFTCAP];
    return done(o, PL_OP_softcap, k, 0, pl_launch_softcap(&d->ks, k, data_of(x), x->rows, x->cols, cap));
}

static enum pl_status gate_rows(struct pl_ops *o, struct pl_activation *x, const struct pl_activation *gate) {
    struct dev_ops *d = dev_of(o);
    PL_TRY(dev_settle(o));
    struct pl_kernel *k = &d->elementwise[PL_EW_GATE_ROWS];
    return done(o, PL_OP_gate_rows, k, 0, pl_launch_add(&d->ks, k, data_of(x), data_of(gate), x->rows, x->cols));
}
static enum pl_status scale(struct pl_ops *o, struct pl_activation *x, float by) {
    struct dev_ops *d = dev_of(o);
    PL_TRY(dev_settle(o));
    struct pl_kernel *k = &d->elementwise[PL_EW_SCALE];
    return done(o, PL_OP_scale, k, 0, pl_launch_softcap(&d->ks, k, data_of(x), x->rows, x->cols, by));
}

/* --- witness --- */

static enum pl_status kernels(struct pl_ops *o, struct pl_ops_kernel *out, size_t cap, size_t *count, struct pl_err *err) {
    struct dev_ops *d = dev_of(o);
    size_t n = 0;
    for (const struct pl_kernel_record *r = d->ks.records; r != NULL; r = r->next, n++) {
        if (n >= cap) continue;
        out[n] = (struct pl_ops_kernel){.kernel = r->name,
                                        .symbol = r->symbol,
                                        .variant = r->variant.len > 0 ? r->variant.data : "",
                                        .module = r->jit != NULL ? r->jit->hash : "",
                                        .target = pl_device_info(d->ks.device)->target,
                                        .origin = r->jit != NULL ? pl_jit_origin_name(r->jit->origin) : "library",
                                        .eager = r->eager,
                                        .graph = r->graph,
                                        .counted = r->counted};
        if (r->counted) PL_TRY(pl_kernel_record_counted(&d->ks, r, &out[n].device, err));
    }
    *count = n;
    return PL_OK;
}
static void plan_begin(struct pl_ops *o) { pl_kernels_plan_begin(&dev_of(o)->ks); }
static enum pl_status plan_end(struct pl_ops *o, struct pl_err *err) { return pl_kernels_plan_end(&dev_of(o)->ks, err); }
static void kernels_reset(struct pl_ops *o) { pl_kernels_reset_counts(&dev_of(o)->ks); }
static bool cache_state(const struct pl_ops *o, struct pl_ops_cache *out) {
    const struct dev_ops *d = (const struct dev_ops *)o;
    struct pl_jit_stats s = pl_jit_stats(d->ks.jit);
    *out = (struct pl_ops_cache){.mode = pl_jit_mode_name(pl_jit_mode(d->ks.jit)),
                                 .dir = pl_jit_dir(d->ks.jit),
                                 .compiler = pl_jit_compiler(d->ks.jit),
                                 .memory_hits = s.memory_hits,
                                 .disk_hits = s.disk_hits,
                                 .compiled = s.compiled,
                                 .loaded = s.loaded,
                                 .shipped = s.shipped,
                                 .differed = s.differed,
                                 .damaged = s.damaged,
                                 .stored = s.stored,
                                 .evicted = s.evicted};
    return true;
}

/* --- opening --- */

static void destroy(struct pl_ops *o) {
    struct dev_ops *d = dev_of(o);
    struct pl_device *dev = d->ks.device;
    if (o->impl->backend == PL_BACKEND_CUDA) pl_chain_backend(-1);
    if (dev != NULL) {
        pl_device_settle(dev);
        pl_stage_destroy(d->stage);
        pl_device_free(dev, &d->step);
        pl_device_free(dev, &d->step_windowed);
        dev_states_deinit(d);
        pl_device_free(dev, &d->parts);
        pl_device_free(dev, &d->lse);
        pl_device_free(dev, &d->arrived);
        pl_device_free(dev, &d->wide_k);
        pl_device_free(dev, &d->wide_v);
        dev_attention_deinit(d);
        pl_dense_deinit(&d->ks, &d->dense);
        dev_mma_deinit(d);
        dev_chain_deinit(d);
        dev_layers_deinit(d);
        dev_moe_deinit(d);
        dev_ternary_deinit(d);
        dev_latent_deinit(d);
        dev_expand_deinit(d);
        dev_choice_deinit(d);
        pl_device_host_free(dev, d->staging);
        pl_device_event_destroy(dev, &d->uploaded);
        for (int i = 0; i < PL_EW_COUNT; i++) pl_kernel_free(&d->ks, &d->elementwise[i]);
        pl_kernel_free(&d->ks, &d->norm);
        pl_kernel_free(&d->ks, &d->add_norm);
        for (size_t i = 0; i < PL_COUNT_OF(d->layer_norm); i++) pl_kernel_free(&d->ks, &d->layer_norm[i]);
        while (d->formats != NULL) {
            struct dev_format *f = d->formats;
            d->formats = f->next;
            for (int i = 0; i < PL_TILE_COUNT; i++) pl_kernel_free(&d->ks, &f->linear[i]);
            for (int i = 0; i < PL_GEMV_ROWS_MAX; i++) pl_kernel_free(&d->ks, &f->gemv[i]);
            pl_kernel_free(&d->ks, &f->embed);
            pl_kernel_free(&d->ks, &f->unpack);
            pl_kernel_free(&d->ks, &f->retile);
            for (int i = 0; i < PL_MMA_SIZES; i++) pl_kernel_free(&d->ks, &f->mma[i]);
            for (int i = 0; i < PL_STREAM_CHUNKS * PL_STREAM_KINDS; i++)
                pl_kernel_free(&d->ks, &f->stream[i / PL_STREAM_KINDS][i % PL_STREAM_KINDS]);
            for (int i = 0; i < PL_CHAIN_KINDS; i++) pl_kernel_free(&d->ks, &f->chain[i]);
            pl_free(f);
        }
        pl_kernels_close(&d->ks);
    }
    pl_free(d);
}

#define DEVICE_IMPL(kind)                                                                                                   \
    {                                                                                                                       \
        .backend = kind, .destroy = destroy, .weight_create = weight_create, .weight_destroy = weight_destroy,              \
        .weight_bytes_owned = weight_bytes_owned, .weight_kernel = weight_kernel, .activation_create = activation_create,   \
        .activation_destroy = activation_destroy, .activation_read = activation_read, .kv_create = kv_create,               \
        .kv_destroy = kv_destroy, .kv_copy_page = kv_copy_page, .state_copy = dev_state_copy, .rope_create = rope_create,   \
        .rope_destroy = rope_destroy, .begin = begin, .end = end, .embed = embed, .norm = norm, .add_norm = add_norm,       \
        .add = add, .linear = linear, .linear_add = linear_add, .rope_append = rope_append, .attention = dev_attention,     \
        .glu = glu, .gather = gather, .softcap = softcap, .kernels = kernels, .kernels_reset = kernels_reset,               \
        .cache_state = cache_state, .plan_begin = plan_begin, .plan_end = plan_end, .scale = scale, .gate_rows = gate_rows, \
        .layer_norm = layer_norm, .argmax = dev_argmax, .draw = dev_draw, .chosen = dev_chosen, .moe = dev_moe,             \
        .experts_create = dev_experts_create, .moe_reserve = dev_moe_reserve, .takes_gated = dev_takes_gated,               \
        .gated = dev_gated, .causal_conv = dev_causal_conv, .delta = dev_delta, .ssm_update = dev_ssm_update,               \
        .ssm_scan = dev_ssm_scan, .takes_conv_ssm = dev_takes_conv_ssm, .conv_ssm = dev_conv_ssm,                           \
        .gated_norm = dev_gated_norm, .ternary = dev_ternary, .heads_create = dev_heads_create,                             \
        .heads_linear = dev_heads_linear, .latent_append = dev_latent_append, .value_rows = dev_value_rows,                 \
        .settle = dev_settle_counts, .whole = dev_whole_again, .takes_expanded = dev_takes_expanded,                        \
        .expanded = dev_expanded,                                                                                           \
    }
static const struct pl_ops_impl impls[PL_DEVICE_KIND_COUNT] = {
    [PL_DEVICE_CUDA] = DEVICE_IMPL(PL_BACKEND_CUDA),
    [PL_DEVICE_ROCM] = DEVICE_IMPL(PL_BACKEND_ROCM),
    [PL_DEVICE_OPENCL] = DEVICE_IMPL(PL_BACKEND_OPENCL),
};

/* The kernels that every model needs. */
static enum pl_status make_common(struct dev_ops *d, struct pl_err *err) {
    PL_TRY(pl_kernel_norm(&d->ks, false, &d->norm, err));
    PL_TRY(pl_kernel_norm(&d->ks, true, &d->add_norm, err));
    for (int i = 0; i < PL_EW_RARE; i++) {
        PL_TRY(pl_kernel_elementwise(&d->ks, (enum pl_elementwise)i, &d->elementwise[i], err));
    }
    return PL_OK;
}

static enum pl_status open_device(struct dev_ops *d, enum pl_device_kind kind, const struct pl_ops_options *opt,
                                  struct pl_err *err) {
    struct pl_jit_options jit = {.mode = PL_JIT_ON};
    if (opt->jit_cache != NULL && !pl_jit_mode_from_name(opt->jit_cache, &jit.mode)) {
        PL_FAIL(err, PL_INVALID, "the kernel cache is '%.40s' but must be off, on or verify", opt->jit_cache);
    }
    PL_TRY(pl_ops_set_choice(&d->base, opt, err));
    PL_TRY(pl_kernels_open(kind, opt->device, &jit, &d->ks, err));
    d->ks.uncounted = opt->uncounted;
    d->ks.fixed = kind == PL_DEVICE_CUDA && opt->invariant && !opt->exact;
    if (opt->no_graphs) d->ks.graphs = false;
    PL_TRY(pl_device_event_create(d->ks.device, &d->uploaded, err));
    pl_kernels_plan_begin(&d->ks); /* twice: all compiled at once, then made */
    enum pl_status st = make_common(d, err);
    enum pl_status end = pl_kernels_plan_end(&d->ks, err);
    PL_TRY(st != PL_OK ? st : end);
    return make_common(d, err);
}

static enum pl_status create(enum pl_device_kind kind, const struct pl_ops_options *opt, struct pl_ops **out,
                             struct pl_err *err) {
    struct dev_ops *d = pl_calloc(1, sizeof *d);
    if (d == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for the %s backend", pl_device_kind_name(kind));
    pl_ops_init(&d->base, &impls[kind]);
    d->base.failure = d->ks.err.text;
    d->exact = opt->exact || opt->invariant;
    d->sparse = opt->sparse_values;
    if (kind == PL_DEVICE_CUDA) pl_chain_backend(1);
    enum pl_status st = open_device(d, kind, opt, err);
    if (st != PL_OK) {
        pl_ops_destroy(&d->base);
        return st;
    }
    dev_attention_init(d, opt);
    char line[400];
    pl_device_line(pl_device_info(d->ks.device), line, sizeof line);
    snprintf(d->base.describe, sizeof d->base.describe, "%s (%.170s)", pl_device_kind_name(kind), line);
    *out = &d->base;
    return PL_OK;
}
enum pl_status pl_ops_cuda_create(const struct pl_ops_options *opt, struct pl_ops **out, struct pl_err *err) {
    return create(PL_DEVICE_CUDA, opt, out, err);
}
enum pl_status pl_ops_rocm_create(const struct pl_ops_options *opt, struct pl_ops **out, struct pl_err *err) {
    return create(PL_DEVICE_ROCM, opt, out, err);
}
enum pl_status pl_ops_opencl_create(const struct pl_ops_options *opt, struct pl_ops **out, struct pl_err *err) {
    return create(PL_DEVICE_OPENCL, opt, out, err);
}
