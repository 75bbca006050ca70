/* Attention on devices: one token per sequence by plan (v1, v2 with merge, cascade, gather), any rows by the portable
 * kernel, and what only NVIDIA devices have. Each layer step is counted under exactly one form and reason. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "ops/device_ops.h"
#include "tensor/kv8.h"

/* Cached tokens that the rows of one sequence read, each once. */
static uint64_t visible_tokens(const struct pl_batch_seq *s, uint32_t window) {
    uint64_t all = (uint64_t)s->past + s->rows, seen = (uint64_t)window + s->rows - 1;
    return window > 0 && seen < all ? seen : all;
}

static enum pl_status grow(struct dev_ops *d, struct pl_device_buffer *b, uint64_t bytes) {
    if (b->bytes >= bytes) return PL_OK;
    PL_TRY(pl_device_stream_wait(d->ks.device, d->ks.stream, &d->ks.err)); /* earlier steps may still use it */
    pl_device_free(d->ks.device, b);
    return pl_device_alloc(d->ks.device, bytes, b, &d->ks.err);
}

bool dev_whole(const struct dev_ops *d, const struct pl_launch_rope *r, struct pl_rope_kind kind) {
    const struct pl_kv_shape *s = &d->base.kv->shape;
    const struct pl_batch *b = d->base.batch;
    const struct pl_choice *c = &d->base.choice;
    if (pl_device_info(d->ks.device)->kind != PL_DEVICE_CUDA || d->base.invariant || b->rows != b->seq_count) return false;
    if (d->strips && !dev_streams_strips(d)) return false; /* not faster there */
    if (d->sparse > 0) return false;
    if (c->forced[PL_OP_rope_append] != PL_IMPL_NONE || c->disabled[PL_OP_rope_append] != 0) return false;
    return pl_split_declines(&d->ks, s->dtype, s->head_dim, r->heads, s->kv_heads, r->rows) == NULL &&
           pl_whole_declines(&d->ks, kind, s->head_dim, r->rope_dim, d->exact) == NULL;
}

/* The parts of d as one, made ready for products. */
static struct pl_launch_prepare merge_of(const struct dev_ops *d, const struct pl_launch_attention *a, uint32_t splits,
                                         size_t head_dim) {
    return (struct pl_launch_prepare){.x = &d->parts,
                                      .second = &d->lse,
                                      .y = a->out,
                                      .rows = a->rows,
                                      .cols = a->heads * head_dim,
                                      .splits = splits,
                                      .head_dim = (uint32_t)head_dim};
}

/* Attention with the rotation that waits: its parts are joined in the same launch where nobody else makes them ready. */
static enum pl_status whole_attention(struct pl_ops *o, const struct pl_launch_attention *a, const struct pl_activation *out,
                                      uint64_t bytes) {
    struct dev_ops *d = dev_of(o);
    struct dev_kv *kv = (struct dev_kv *)o->kv;
    const struct pl_kv_shape *s = &kv->base.shape;
    const struct dev_rope_waits w = d->rope_waits;
    enum pl_status st = PL_OK;
    d->rope_waits = (struct dev_rope_waits){0};
    size_t group = a->heads / a->kv_heads;
    uint32_t visible = a->window > 0 ? PL_MIN(a->window, d->longest) : d->longest;
    uint32_t splits = pl_split_count(&d->ks, a->rows, a->heads / pl_whole_heads(group), visible);
    uint64_t parts = (uint64_t)PL_SPLITS_MAX * a->rows * a->heads, words = (uint64_t)d->stride * a->heads;
    bool joined = (a->rows == 1 && dev_streams_strips(d)) || !dev_prepares(d, a->rows, a->heads * s->head_dim);
    bool cluster = joined && a->rows == 1 && visible > PL_CLUSTER_TOKENS && pl_whole_clusters(&d->ks, s->head_dim, group);
    if (cluster) splits = PL_WHOLE_CLUSTER;
    for (int i = 0; i < 2; i++) { /* lengths change: both at once, while kernels are planned */
        struct pl_kernel *made = &kv->whole[i][dev_rope_index(w.kind)];
        if (made->jit != NULL || (i == 1 && !pl_whole_clusters(&d->ks, s->head_dim, group))) continue;
        st = pl_kernel_whole(&d->ks, s->dtype, s->head_dim, s->page_tokens, group, w.kind, i == 1, made, &d->ks.err);
        if (st != PL_OK) return dev_report(d, st);
    }
    struct pl_kernel *k = &kv->whole[cluster][dev_rope_index(w.kind)];
    struct pl_launch_whole l = {a, &w.r, splits, &d->parts, &d->lse, joined ? &d->arrived : NULL};
    st = grow(d, &d->lse, parts * sizeof(float));
    if (st == PL_OK && splits > 1) st = grow(d, &d->parts, parts * s->head_dim * sizeof(float));
    if (st == PL_OK && d->arrived.bytes < words * sizeof(uint32_t)) {
        st = grow(d, &d->arrived, words * sizeof(uint32_t));
        if (st == PL_OK) st = pl_device_fill(d->ks.device, d->ks.stream, &d->arrived, 0, &d->ks.err);
    }
    if (st == PL_OK) st = pl_launch_whole(&d->ks, k, &l);
    if (st == PL_OK) pl_ops_count(o, PL_OP_rope_append, k->name, 1, w.bytes); /* the same launch */
    st = dev_done(o, PL_OP_attention, k, bytes, st);
    if (st != PL_OK || splits == 1 || joined) return st;
    const struct pl_launch_prepare p = merge_of(d, a, splits, s->head_dim);
    return dev_prepare(o, PL_OP_attention, PL_PREPARE_MERGE, &p, out);
}

/* Scratch is taken at its largest at once: launches already collected in this step must not lose theirs. */
static enum pl_status split_attention(struct pl_ops *o, const struct pl_launch_attention *a, const struct pl_activation *out,
                                      uint64_t bytes) {
    struct dev_ops *d = dev_of(o);
    struct dev_kv *kv = (struct dev_kv *)o->kv;
    const struct pl_kv_shape *s = &kv->base.shape;
    enum pl_status st = PL_OK;
    if (kv->split.split.jit == NULL) {
        st = pl_kernel_split(&d->ks, s->dtype, s->head_dim, s->page_tokens, a->heads / a->kv_heads, d->exact, &kv->split,
                             &d->ks.err);
    }
    if (st != PL_OK) return dev_report(d, st);
    uint32_t visible = a->window > 0 ? PL_MIN(a->window, d->longest) : d->longest;
    uint32_t splits = pl_split_count(&d->ks, a->rows, a->heads / kv->split.heads_together, visible);
    uint64_t parts = (uint64_t)PL_SPLITS_MAX * a->rows * a->heads; /* the same for every layer of a step */
    st = grow(d, &d->lse, parts * sizeof(float));
    if (st == PL_OK && splits > 1) st = grow(d, &d->parts, parts * s->head_dim * sizeof(float));
    if (st == PL_OK) st = pl_launch_split(&d->ks, &kv->split, a, splits, &d->parts, &d->lse);
    st = dev_done(o, PL_OP_attention, &kv->split.split, bytes, st);
    if (st != PL_OK || splits == 1) return st;
    const struct pl_launch_prepare p = merge_of(d, a, splits, s->head_dim);
    if (dev_prepares(d, p.rows, p.cols)) return dev_prepare(o, PL_OP_attention, PL_PREPARE_MERGE, &p, out);
    return dev_done(o, PL_OP_attention, &kv->split.merge, 0,
                    pl_launch_merge(&d->ks, &kv->split, a, splits, &d->parts, &d->lse));
}

/* Half as much again, so that lengths may grow for a while. */
static enum pl_status room(struct dev_ops *d, struct pl_device_buffer *b, uint64_t bytes) {
    return b->bytes >= bytes ? PL_OK : grow(d, b, bytes + bytes / 2);
}

/* What tiles of a cache in few bits read: the sequence's visible tokens in f16. */
static enum pl_status widened(struct pl_ops *o, struct pl_launch_attention *a, const struct pl_batch_seq *q) {
    struct dev_ops *d = dev_of(o);
    struct dev_kv *kv = (struct dev_kv *)o->kv;
    const struct pl_kv_shape *s = &kv->base.shape;
    uint32_t end = q->past + q->rows, first = a->window > 0 && q->past + 1 > a->window ? q->past + 1 - a->window : 0;
    uint64_t bytes = (uint64_t)end * s->kv_heads * s->head_dim * 2;
    if (kv->widen.jit == NULL)
        PL_TRY(pl_kernel_widen(&d->ks, s->dtype, s->head_dim, s->page_tokens, &kv->widen, &d->ks.err));
    if (s->dtype == PL_K8V4 && kv->turn_back.jit == NULL)
        PL_TRY(pl_kernel_turn_back(&d->ks, s->head_dim, &kv->turn_back, &d->ks.err));
    if (d->ks.planning) return PL_OK;
    PL_TRY(room(d, &d->wide_k, bytes));
    PL_TRY(room(d, &d->wide_v, bytes));
    PL_TRY(pl_launch_widen(&d->ks, &kv->widen, a, q->first_row, first, end, &d->wide_k, &d->wide_v));
    pl_ops_count(o, PL_OP_attention, kv->widen.name, 1, 0);
    a->k_pages = &d->wide_k;
    a->v_pages = &d->wide_v;
    return PL_OK;
}

/* A dry step notes all of them. */
static enum pl_status tiles_kernel(struct dev_ops *d, enum pl_tiles which, struct pl_kernel **out) {
    struct dev_kv *kv = (struct dev_kv *)d->base.kv;
    const struct pl_kv_shape *s = &kv->base.shape;
    bool wide = pl_tiles_wide(&d->ks, s->dtype, s->head_dim, s->page_tokens);
    for (int i = 0; i < (wide ? PL_TILES_COUNT : PL_TILES_WIDE); i++) {
        struct pl_kernel *k = &kv->tiles[i];
        if (k->jit != NULL || (!d->ks.planning && i != (int)which)) continue;
        PL_TRY(pl_kernel_tiles(&d->ks, s->dtype, s->head_dim, s->page_tokens, (enum pl_tiles)i, k, &d->ks.err));
    }
    *out = &kv->tiles[which];
    return PL_OK;
}
static bool goes_wide(const struct dev_ops *d, size_t rows) {
    const struct pl_kv_shape *s = &d->base.kv->shape;
    return rows >= PL_TILES_WIDE_ROWS && pl_tiles_wide(&d->ks, s->dtype, s->head_dim, s->page_tokens);
}
/* Whether the result may be bf16: the output product is next (not a norm, as before ternary ones, nor a choice of rows, as
 * in the last layer), and every row is of a sequence that can leave it. */
static bool leaves_half(const struct dev_ops *d, uint32_t layer, const struct pl_activation *out) {
    const struct pl_batch *b = d->base.batch;
    if (layer + 1 == d->base.kv->shape.layers || !dev_may_round(d, out) || d->ternary.cols > 0 ||
        d->base.kv->shape.dtype == PL_K8V4)
        return false;
    for (uint32_t i = 0; i < b->seq_count; i++)
        if (!goes_wide(d, b->seqs[i].rows)) return false;
    return true;
}

/* One sequence of several rows. */
static enum pl_status tiles_of(struct pl_ops *o, const struct pl_launch_attention *a, const struct pl_batch_seq *q,
                               bool half, struct pl_kernel **used) {
    struct dev_ops *d = dev_of(o);
    struct dev_kv *kv = (struct dev_kv *)o->kv;
    const struct pl_kv_shape *s = &kv->base.shape;
    struct pl_launch_attention one = *a;
    PL_TRY(tiles_kernel(d, half ? PL_TILES_HALF : goes_wide(d, q->rows) ? PL_TILES_WIDE : PL_TILES_PLAIN, used));
    if (pl_is_kv8(s->dtype)) PL_TRY(widened(o, &one, q));
    PL_TRY(pl_launch_tiles(&d->ks, *used, &one, s->head_dim, q->first_row, q->rows));
    if (s->dtype != PL_K8V4 || d->ks.planning) return PL_OK;
    PL_TRY(pl_launch_turn_back(&d->ks, &kv->turn_back, a, q->first_row, q->rows));
    pl_ops_count(o, PL_OP_attention, kv->turn_back.name, 1, 0);
    return PL_OK;
}

/* Every sequence of the step, or only those of several rows. */
static enum pl_status tiled_attention(struct pl_ops *o, uint32_t layer, const struct pl_launch_attention *a, bool several,
                                      struct pl_activation *out, uint64_t bytes) {
    struct dev_ops *d = dev_of(o);
    enum pl_status st = PL_OK;
    struct pl_kernel *k = NULL;
    const bool half = !several && leaves_half(d, layer, out);
    for (uint32_t i = 0; i < o->batch->seq_count && st == PL_OK; i++) {
        const struct pl_batch_seq *q = &o->batch->seqs[i];
        if (several && q->rows == 1) continue;
        if (k != NULL) pl_ops_count(o, PL_OP_attention, k->name, 1, 0);
        st = tiles_of(o, a, q, half, &k);
    }
    out->rounded = half && st == PL_OK;
    return k != NULL ? dev_done(o, PL_OP_attention, k, bytes, st) : dev_report(d, st);
}

/* What kernels that pass values over have counted. */
void dev_value_rows(const struct pl_ops *o, uint64_t *rows, uint64_t *skipped) {
    pl_kernels_values(&((const struct dev_ops *)(const void *)o)->ks, rows, skipped);
}
enum pl_status dev_settle_counts(struct pl_ops *o) {
    struct dev_ops *d = dev_of(o);
    return dev_report(d, pl_device_stream_wait(d->ks.device, d->ks.stream, &d->ks.err));
}

/* --- by plan --- */

void dev_attention_init(struct dev_ops *d, const struct pl_ops_options *opt) {
    const struct pl_device_info *info = pl_device_info(d->ks.device);
    d->attn_table =
        opt->attn_table != NULL ? *opt->attn_table : pl_attn_built_in(info->units, info->is_cpu, pl_cuda_capability(&d->ks));
}

void dev_attention_deinit(struct dev_ops *d) {
    struct pl_device *dev = d->ks.device;
    for (size_t i = 0; i < DEV_PLANS_MAX; i++) {
        struct dev_plan *p = &d->plans[i];
        struct pl_device_buffer *const all[] = {&p->record, &p->parts, &p->lse, &p->arrived, &p->dense_k, &p->dense_v};
        for (size_t k = 0; k < PL_COUNT_OF(all); k++) pl_device_free(dev, all[k]);
        pl_device_host_free(dev, p->staging);
        pl_device_event_destroy(dev, &p->uploaded);
        pl_plan_deinit(&p->plan);
        pl_free(p->rows);
    }
}

/* The slot of (window, heads); NULL when the model has more than there are. */
static struct dev_plan *plan_slot(struct dev_ops *d, uint32_t window, uint32_t heads) {
    for (size_t i = 0; i < DEV_PLANS_MAX; i++) {
        struct dev_plan *p = &d->plans[i];
        if (p->used && (p->window != window || p->heads != heads)) continue;
        p->used = true;
        p->window = window;
        p->heads = heads;
        return p;
    }
    return NULL;
}

/* Only the portable kernels pass values over. */
static void init_sparse(const struct pl_kernels *ks, struct pl_paged *p, const struct pl_paged_shape *s) {
    (void)ks;
    pl_paged_init(p, s);
    p->sparse = true;
}

static struct pl_paged *paged_of(struct dev_ops *d, struct dev_kv *kv, const struct pl_paged_shape *s) {
    for (size_t i = 0; i < PL_COUNT_OF(kv->paged); i++) {
        struct pl_paged *p = &kv->paged[i];
        if (p->shape.heads == 0) (d->sparse > 0 ? init_sparse : pl_paged_init_best)(&d->ks, p, s);
        if (p->shape.heads == s->heads) return p;
    }
    return NULL;
}

/* Rows of the step as rows of the plan: row r of a sequence sees what came before it and itself. singles: rows of sequences
 * that have several are not the plan's. */
static enum pl_status list_rows(struct dev_plan *p, const struct pl_batch *b, bool singles) {
    const uint32_t *pages = p->window > 0 && b->window_pages != NULL ? b->window_pages : b->pages;
    PL_TRY(pl_grow(&p->rows, &p->row_cap, (size_t)b->rows + 1, sizeof *p->rows));
    for (uint32_t i = 0; i < b->seq_count; i++) {
        const struct pl_batch_seq *s = &b->seqs[i];
        for (uint32_t r = 0; r < s->rows; r++)
            p->rows[s->first_row + r] =
                (struct pl_plan_row){pages + s->page_first, singles && s->rows > 1 ? 0 : s->past + r + 1};
    }
    return PL_OK;
}

/* A plan that shares is read by the cascade alone: v2 would miss what is shared. */
static bool may_share(const struct pl_choice *c) {
    return c->attn != PL_IMPL_V2 && c->forced[PL_OP_attention] != PL_IMPL_V2 &&
           (c->disabled[PL_OP_attention] >> PL_IMPL_CASCADE & 1u) == 0;
}

enum { INVARIANT_TOKENS = 256 }; /* of a chunk whose length may depend on nothing */
static struct pl_plan_options plan_options(const struct dev_ops *d, const struct pl_paged *paged, uint32_t window) {
    const struct pl_attn_table *t = &d->attn_table;
    const struct pl_choice *c = &d->base.choice;
    struct pl_plan_options o = {
        .window = window,
        .grid_max = 1u << 30,
        .span_min = t->span_min,
        .members_min = t->members_min,
        .split = true,
        .cascade = may_share(c),
        .cascade_always = c->attn == PL_IMPL_CASCADE || c->forced[PL_OP_attention] == PL_IMPL_CASCADE,
        .costs = {.slots = t->slots, .chunk = t->chunk_cost, .merge = t->merge_cost, .member = t->member_cost}};
    if (paged->few) o.cascade = o.cascade_always; /* its cascade has no tensor cores: only where it is asked for */
    pl_paged_plan_options(paged, &o);
    if (d->base.invariant) {
        o.invariant = true;
        o.pages_per_chunk = PL_MAX(1u, INVARIANT_TOKENS / o.page_tokens);
    }
    return o;
}

static enum pl_status upload_plan(struct dev_ops *d, struct dev_plan *p) {
    uint64_t words = pl_plan_words(&p->plan);
    if (p->uploaded.handle == NULL) PL_TRY(pl_device_event_create(d->ks.device, &p->uploaded, &d->ks.err));
    if (p->pending) PL_TRY(pl_device_event_wait(d->ks.device, &p->uploaded, &d->ks.err)); /* the staging is ours again */
    if (words > p->staging_words) {
        uint64_t room = words + words / 2;
        PL_TRY(pl_device_stream_wait(d->ks.device, d->ks.stream, &d->ks.err));
        pl_device_free(d->ks.device, &p->record);
        pl_device_host_free(d->ks.device, p->staging);
        p->staging = NULL;
        p->staging_words = 0;
        PL_TRY(pl_device_alloc(d->ks.device, room * sizeof(uint32_t), &p->record, &d->ks.err));
        PL_TRY(pl_device_host_alloc(d->ks.device, room * sizeof(uint32_t), (void **)&p->staging, &d->ks.err));
        p->staging_words = room;
    }
    pl_plan_write(&p->plan, p->staging);
    PL_TRY(pl_device_upload(d->ks.device, d->ks.stream, &p->record, 0, p->staging, words * sizeof(uint32_t), &d->ks.err));
    PL_TRY(pl_device_event_record(d->ks.device, &p->uploaded, d->ks.stream, &d->ks.err));
    p->pending = true;
    return PL_OK;
}

/* Zeros: launches leave them so. */
static enum pl_status room_for_arrivals(struct dev_ops *d, struct dev_plan *p, uint64_t bytes) {
    if (p->arrived.bytes >= bytes) return PL_OK;
    PL_TRY(room(d, &p->arrived, bytes));
    return pl_device_fill(d->ks.device, d->ks.stream, &p->arrived, 0, &d->ks.err);
}

/* Whether every row of any step is the plan's, prompts as well. */
static bool plans_all(const struct dev_ops *d) { return d->base.invariant || d->base.kv->shape.value_dim > 0; }

/* Plans this step for p's window unless an earlier layer did. Nothing collected in this step uses p's buffers yet. */
static enum pl_status plan_step(struct dev_ops *d, struct dev_plan *p, const struct pl_paged *paged) {
    const struct pl_batch *b = d->base.batch;
    if (p->step == d->steps) return PL_OK;
    p->step = d->steps;
    struct pl_plan_options opt = plan_options(d, paged, p->window);
    opt.skip_empty = b->rows != b->seq_count && !plans_all(d);
    PL_TRY(list_rows(p, b, opt.skip_empty));
    p->status = pl_plan_make(&p->plan, &opt, p->rows, b->rows, b->epoch);
    if (p->status == PL_OK && p->plan.cascade == PL_CASCADE_USED && (d->base.choice.attn_off >> PL_IMPL_CASCADE & 1u) != 0) {
        opt.cascade = false; /* it would have been used: the layer steps say that it is switched off */
        p->status = pl_plan_make(&p->plan, &opt, p->rows, b->rows, b->epoch);
        p->plan.cascade = PL_CASCADE_OFF;
    }
    if (p->status == PL_NO_MEMORY) return p->status;
    d->base.attention_totals.plans++;
    d->base.attention_totals.plans_reused += p->plan.reused;
    if (p->status != PL_OK || d->ks.planning) return PL_OK; /* rejected: others serve; or nothing runs */
    uint64_t parts = (uint64_t)p->plan.part_count * p->heads;
    PL_TRY(upload_plan(d, p));
    PL_TRY(room(d, &p->parts, PL_MAX(parts, (uint64_t)1) * paged->shape.value_dim * sizeof(float)));
    PL_TRY(room(d, &p->lse, PL_MAX(parts, (uint64_t)1) * sizeof(float)));
    return pl_paged_merges(paged) ? room_for_arrivals(d, p, pl_paged_arrived_bytes(paged, b->rows)) : PL_OK;
}

static void count_plan(struct pl_ops *o, const struct dev_plan *p, const struct pl_paged *paged, enum pl_impl form) {
    struct pl_ops_attention_totals *t = &o->attention_totals;
    const struct pl_plan *plan = &p->plan;
    bool off = (o->choice.attn_off >> PL_IMPL_CASCADE & 1u) != 0;
    if (form == PL_IMPL_CASCADE || form == PL_IMPL_V2) {
        t->chunks += plan->chunk_count;
        t->merged_rows += plan->merge_count;
        t->merged_states += plan->state_count;
    }
    if (form == PL_IMPL_CASCADE) {
        t->cascade_groups += plan->groups;
        t->cascade_members += plan->group_members;
        t->cascade_span_pages += plan->span_pages;
        t->cascade_tokens_saved += plan->tokens - plan->tokens_read;
    }
    if (plan->cascade == PL_CASCADE_OFF && off) {
        pl_ops_count_cascade(o, false, "kill switch");
    } else if (o->invariant) {
        pl_ops_count_cascade(o, false, "invariant");
    } else if (form != PL_IMPL_CASCADE && paged->few) {
        pl_ops_count_cascade(o, false, "dtype");
    } else {
        pl_ops_count_cascade(o, form == PL_IMPL_CASCADE, form == PL_IMPL_CASCADE ? "" : pl_plan_cascade_text(plan->cascade));
    }
}

/* Grids larger than the plan keep a graph's launches the same while chunks come and go. */
static uint32_t grid_of(const struct dev_ops *d, uint32_t n) { return d->ks.recording ? (n + 15) / 16 * 16 : n; }

static enum pl_status launch_form(struct pl_ops *o, struct pl_paged *paged, enum pl_paged_kernel which,
                                  const struct pl_paged_launch *l, uint64_t bytes) {
    static const size_t at[] = {offsetof(struct pl_paged, v1),      offsetof(struct pl_paged, v2),
                                offsetof(struct pl_paged, cascade), offsetof(struct pl_paged, merge),
                                offsetof(struct pl_paged, gather),  offsetof(struct pl_paged, dense)};
    struct dev_ops *d = dev_of(o);
    enum pl_status st = pl_paged_make(&d->ks, paged, which, &d->ks.err);
    if (st == PL_OK) st = pl_launch_paged(&d->ks, paged, which, l);
    return dev_done(o, PL_OP_attention, (const struct pl_kernel *)((const char *)paged + at[which]), bytes, st);
}

static enum pl_status gathered(struct pl_ops *o, struct dev_plan *p, struct pl_paged *paged, struct pl_paged_launch *l,
                               uint64_t bytes) {
    struct dev_ops *d = dev_of(o);
    uint64_t token = (uint64_t)paged->shape.kv_heads * pl_dtype_info(paged->shape.kv)->block_bytes;
    uint64_t keys = p->plan.tokens * paged->shape.kv_heads * pl_kv_key_bytes(paged->shape.kv, paged->shape.head_dim),
             values = p->plan.tokens * token * paged->shape.value_stride;
    enum pl_status st = room(d, &p->dense_k, PL_MAX(keys, (uint64_t)1));
    if (st == PL_OK) st = room(d, &p->dense_v, PL_MAX(values, (uint64_t)1));
    if (st != PL_OK) return dev_report(d, st);
    l->dense_k = &p->dense_k;
    l->dense_v = &p->dense_v;
    for (uint32_t r = 0; r < p->plan.rows; r++)
        l->pages_longest = PL_MAX(l->pages_longest, p->plan.page_start[r + 1] - p->plan.page_start[r]);
    PL_TRY(launch_form(o, paged, PL_PAGED_GATHER, l, keys + values));
    o->attention_totals.gathered_pages += p->plan.page_entries;
    o->attention_totals.gathered_bytes += keys + values;
    return launch_form(o, paged, PL_PAGED_DENSE, l, bytes);
}

/* A dry step is short: what longer ones need is noted with it. */
static enum pl_status note_kernels(struct dev_ops *d, struct pl_paged *paged, enum pl_impl form) {
    bool gather = form == PL_IMPL_GATHER, only_v1 = d->base.choice.attn == PL_IMPL_V1;
    enum pl_paged_kernel first = gather ? PL_PAGED_GATHER : only_v1 ? PL_PAGED_V1 : PL_PAGED_V2;
    enum pl_paged_kernel last = gather ? PL_PAGED_DENSE : only_v1 ? PL_PAGED_V1 : PL_PAGED_MERGE;
    for (enum pl_paged_kernel k = first; k <= last; k++) {
        if (k == PL_PAGED_CASCADE && paged->latent) continue; /* never shared */
        enum pl_status st = pl_paged_make(&d->ks, paged, k, &d->ks.err);
        if (st != PL_OK) return dev_report(d, st);
    }
    return PL_OK;
}

static enum pl_status planned_attention(struct pl_ops *o, enum pl_impl form, struct dev_plan *p, struct pl_paged *paged,
                                        const struct pl_launch_attention *a, uint64_t bytes) {
    struct dev_ops *d = dev_of(o);
    const struct pl_plan *plan = &p->plan;
    bool decode = o->batch->rows == o->batch->seq_count, joined = pl_paged_merges(paged) && form == PL_IMPL_V2;
    uint32_t merges = plan->merge_count > 0 && d->ks.recording ? plan->rows : plan->merge_count;
    struct pl_paged_launch l = {.q = a->q,
                                .k_pages = a->k_pages,
                                .v_pages = a->v_pages,
                                .plan = &p->record,
                                .out = a->out,
                                .parts = &p->parts,
                                .lse = &p->lse,
                                .arrived = joined ? &p->arrived : NULL,
                                .fresh = decode ? 1 : PL_PAGED_ALL_FRESH,
                                .rows = plan->rows,
                                .chunks = grid_of(d, plan->chunk_count),
                                .merges = merges,
                                .shared = plan->shared_count,
                                .scale = a->scale,
                                .softcap = a->softcap,
                                .least = a->least};
    if (d->ks.planning) return note_kernels(d, paged, form);
    count_plan(o, p, paged, form);
    if (form == PL_IMPL_V1) return launch_form(o, paged, PL_PAGED_V1, &l, bytes);
    if (form == PL_IMPL_GATHER) return gathered(o, p, paged, &l, bytes);
    uint64_t read = plan->tokens > 0 ? bytes * plan->tokens_read / plan->tokens : 0;
    PL_TRY(launch_form(o, paged, form == PL_IMPL_CASCADE ? PL_PAGED_CASCADE : PL_PAGED_V2, &l, read));
    return merges > 0 && !joined ? launch_form(o, paged, PL_PAGED_MERGE, &l, 0) : PL_OK;
}

/* --- choosing --- */

/* What a plan would run: the cascade it found, else parts where it splits, else one pass for short rows. */
static enum pl_impl form_of_plan(const struct dev_ops *d, const struct pl_plan *plan) {
    if (d->base.invariant) return PL_IMPL_V2;
    if (plan->cascade == PL_CASCADE_USED) return PL_IMPL_CASCADE;
    if (plan->merge_count > 0) return PL_IMPL_V2;
    if (d->attn_units) return PL_IMPL_V2;
    return plan->tokens <= (uint64_t)d->attn_table.v1_tokens_max * plan->rows ? PL_IMPL_V1 : PL_IMPL_V2;
}

/* The forms by plan as candidates: the planned one first, the others to fall back on. Where NVIDIA devices have kernels of
 * their own, the portable ones are only taken when asked for. */
static size_t form_candidates(struct dev_ops *d, const struct pl_launch_attention *a, struct dev_plan *p, const char *why,
                              bool auto_, struct pl_candidate *out) {
    static const enum pl_impl forms[] = {PL_IMPL_CASCADE, PL_IMPL_V2, PL_IMPL_V1, PL_IMPL_GATHER};
    size_t n = 0;
    (void)a;
    if (why == NULL && p->status != PL_OK) why = "plan rejected";
    enum pl_impl first = why == NULL ? form_of_plan(d, &p->plan) : PL_IMPL_V2;
    out[n++] = (struct pl_candidate){first, auto_, why};
    for (size_t i = 0; i < PL_COUNT_OF(forms); i++) {
        const char *not_this = why;
        if (forms[i] == first) continue;
        if (not_this == NULL && forms[i] == PL_IMPL_CASCADE) not_this = pl_plan_cascade_text(p->plan.cascade);
        if (not_this == NULL && d->base.invariant) not_this = "invariant";
        bool usual = forms[i] == PL_IMPL_V2 || (forms[i] != PL_IMPL_CASCADE && (!d->attn_units || d->base.invariant));
        out[n++] = (struct pl_candidate){forms[i], auto_ && usual, not_this};
    }
    return n;
}

static bool is_asked(const struct dev_ops *d, enum pl_impl i) {
    return d->base.choice.attn == i || d->base.choice.forced[PL_OP_attention] == i;
}
/* Whether a plan is wanted at all: everywhere but on NVIDIA devices whose tensor cores do not take the shape, there when a
 * form was asked for, or where values are a part of keys or in few bits, which their other kernels do not know. */
static bool wants_plan(const struct dev_ops *d, bool cuda) {
    const struct pl_kv_shape *s = &d->base.kv->shape;
    return !cuda || s->value_dim > 0 || pl_is_kv8(s->dtype) || d->sparse > 0 || d->attn_units || d->base.invariant ||
           is_asked(d, PL_IMPL_V1) || is_asked(d, PL_IMPL_V2) || is_asked(d, PL_IMPL_CASCADE) || is_asked(d, PL_IMPL_GATHER);
}
static struct pl_paged_shape shape_of(const struct pl_kv_shape *s, const struct pl_launch_attention *a) {
    return (struct pl_paged_shape){.kv = s->dtype,
                                   .head_dim = (uint32_t)s->head_dim,
                                   .value_dim = (uint32_t)pl_kv_value_dim(s),
                                   .value_stride = (uint32_t)s->head_dim,
                                   .page_tokens = (uint32_t)s->page_tokens,
                                   .heads = a->heads,
                                   .kv_heads = a->kv_heads};
}

struct question {
    struct pl_candidate list[8];
    size_t count;
    struct dev_plan *plan;
    struct pl_paged *paged;
    bool decode;
    bool mixed; /* prompts beside sequences of one row, which the plan is for */
    uint32_t layer;
};

static enum pl_status ask_plan(struct dev_ops *d, const struct pl_launch_attention *a, bool cuda, struct question *q) {
    struct dev_kv *kv = (struct dev_kv *)d->base.kv;
    struct pl_paged_shape shape = shape_of(&kv->base.shape, a);
    const char *why = a->sinks != NULL ? "attention sinks" : pl_paged_declines(&shape);
    bool auto_ = a->sinks == NULL && wants_plan(d, cuda); /* asked for one in vain: another of them, not what is portable */
    if (why == NULL) q->paged = paged_of(d, kv, &shape);
    q->plan = plan_slot(d, a->window, a->heads);
    if (why == NULL && (q->paged == NULL || q->plan == NULL)) why = "geometry";
    if (why == NULL) PL_TRY(plan_step(d, q->plan, q->paged));
    q->count = form_candidates(d, a, q->plan, why, auto_, q->list);
    return PL_OK;
}

/* Sequences of one row beside prompts: by plan, in one launch, when nobody asked for something else. */
static enum pl_status ask_mixed(struct dev_ops *d, const struct pl_launch_attention *a, struct question *q) {
    struct dev_kv *kv = (struct dev_kv *)d->base.kv;
    struct pl_paged_shape shape = shape_of(&kv->base.shape, a);
    const struct pl_choice *c = &d->base.choice;
    const struct pl_batch *b = d->base.batch;
    uint32_t singles = 0;
    bool off = ((c->disabled[PL_OP_attention] | c->attn_off) >> PL_IMPL_V2 & 1u) != 0;
    for (uint32_t i = 0; i < b->seq_count; i++) singles += b->seqs[i].rows == 1;
    if (singles == 0 || off || c->forced[PL_OP_attention] != PL_IMPL_NONE || d->base.invariant || d->ks.recording)
        return PL_OK;
    q->paged = paged_of(d, kv, &shape);
    q->plan = plan_slot(d, a->window, a->heads);
    if (q->paged == NULL || q->plan == NULL) return PL_OK;
    PL_TRY(plan_step(d, q->plan, q->paged));
    q->mixed = q->plan->status == PL_OK;
    return PL_OK;
}

/* Tiles are meant for sequences of many rows: one launch a sequence. */
/* One row of few tokens whose rotation waits: rotation, append, attention and merge are one launch, which is worth more
 * there than what a plan gains. */
static bool in_one_launch(const struct dev_ops *d, const struct pl_launch_attention *a) {
    const struct pl_choice *c = &d->base.choice;
    const struct pl_launch_rope *r = &d->rope_waits.r;
    if (r->q == NULL || r->q != a->q || a->rows != 1 || a->sinks != NULL || d->longest > PL_WHOLE_TOKENS) return false;
    return c->forced[PL_OP_attention] == PL_IMPL_NONE && c->attn == PL_IMPL_NONE &&
           (c->disabled[PL_OP_attention] >> PL_IMPL_SPLIT & 1u) == 0;
}
static enum pl_status ask(struct dev_ops *d, const struct pl_launch_attention *a, struct question *q) {
    const struct pl_kv_shape *s = &d->base.kv->shape;
    const struct pl_batch *b = d->base.batch;
    bool cuda = pl_device_info(d->ks.device)->kind == PL_DEVICE_CUDA, many = false;
    struct pl_paged_shape shape = shape_of(s, a);
    q->decode = b->rows == b->seq_count;
    d->attn_units = cuda && a->sinks == NULL && d->sparse == 0 && pl_paged_mma_declines(&d->ks, &shape) == NULL;
    if (wants_plan(d, cuda) && (q->decode || plans_all(d)) && !in_one_launch(d, a)) PL_TRY(ask_plan(d, a, cuda, q));
    if (cuda) {
        const char *fixed = d->base.invariant  ? "invariant"
                            : a->sinks != NULL ? "attention sinks"
                            : s->value_dim > 0 ? "latent keys"
                                               : NULL;
        for (uint32_t i = 0; i < b->seq_count; i++) many = many || b->seqs[i].rows >= PL_TILES_ROWS;
        const char *tiles = pl_tiles_declines(&d->ks, s->dtype, s->head_dim, a->heads, s->kv_heads);
        const char *split = pl_split_declines(&d->ks, s->dtype, s->head_dim, a->heads, s->kv_heads, a->rows);
        if (d->sparse > 0 && q->decode) split = "sparse values";
        if (d->attn_units && many && tiles == NULL && !q->decode) PL_TRY(ask_mixed(d, a, q));
        bool tiled = a->sinks == NULL && many && !d->ks.recording && pl_cuda_has_units(&d->ks);
        q->list[q->count++] = (struct pl_candidate){PL_IMPL_TILES, tiled, fixed != NULL ? fixed : tiles};
        q->list[q->count++] = (struct pl_candidate){PL_IMPL_SPLIT, a->sinks == NULL, fixed != NULL ? fixed : split};
    }
    q->list[q->count++] = (struct pl_candidate){PL_IMPL_PORTABLE, true, NULL};
    return PL_OK;
}

static enum pl_status portable_attention(struct pl_ops *o, const struct pl_launch_attention *a, uint64_t bytes) {
    struct dev_ops *d = dev_of(o);
    struct dev_kv *kv = (struct dev_kv *)o->kv;
    const struct pl_kv_shape *s = &kv->base.shape;
    enum pl_status st = PL_OK;
    struct pl_kernel *k = a->sinks != NULL ? &kv->attention_sinks : &kv->attention;
    if (k->jit == NULL)
        st = pl_kernel_attention(&d->ks, s->dtype, s->head_dim, pl_kv_value_dim(s), s->page_tokens, a->sinks != NULL,
                                 d->sparse > 0, k, &d->ks.err);
    if (st == PL_OK) st = pl_launch_attention(&d->ks, k, a);
    return dev_done(o, PL_OP_attention, k, bytes, st);
}

static enum pl_status run_attention(struct pl_ops *o, enum pl_impl form, const struct question *q,
                                    const struct pl_launch_attention *a, struct pl_activation *out, uint64_t bytes) {
    switch (form) {
    case PL_IMPL_TILES:
        if (q->mixed) {
            bool shared = q->plan->plan.cascade == PL_CASCADE_USED;
            PL_TRY(planned_attention(o, shared ? PL_IMPL_CASCADE : PL_IMPL_V2, q->plan, q->paged, a, 0));
        }
        return tiled_attention(o, q->layer, a, q->mixed, out, bytes);
    case PL_IMPL_SPLIT:
        return dev_of(o)->rope_waits.r.q != NULL ? whole_attention(o, a, out, bytes) : split_attention(o, a, out, bytes);
    case PL_IMPL_V1:
    case PL_IMPL_V2:
    case PL_IMPL_CASCADE:
    case PL_IMPL_GATHER: return planned_attention(o, form, q->plan, q->paged, a, bytes);
    default: return portable_attention(o, a, bytes);
    }
}

/* Why decode attention was not asked: one kind of step must not hide the other. */
static const char *step_kind(const struct pl_batch *b) {
    bool decode = false, prompt = false;
    for (uint32_t i = 0; i < b->seq_count; i++) {
        decode |= b->seqs[i].rows == 1;
        prompt |= b->seqs[i].rows > 1;
    }
    return decode && prompt ? "mixed batch" : "multi-token step";
}

enum pl_status dev_attention(struct pl_ops *o, const struct pl_attention *p, const struct pl_activation *q,
                             struct pl_activation *out) {
    struct dev_ops *d = dev_of(o);
    struct dev_kv *kv = (struct dev_kv *)o->kv;
    const struct pl_kv_shape *s = &kv->base.shape;
    struct pl_launch_attention a = {.q = &((const struct dev_activation *)q)->data,
                                    .k_pages = &kv->sides[pl_kv_sides(s) * p->layer],
                                    .v_pages = &kv->sides[pl_kv_sides(s) * (p->layer + 1) - 1],
                                    .step = dev_step(d, p->layer),
                                    .out = &((const struct dev_activation *)out)->data,
                                    .rows = (uint32_t)q->rows,
                                    .heads = p->heads,
                                    .kv_heads = (uint32_t)s->kv_heads,
                                    .window = p->window,
                                    .stride = d->stride,
                                    .scale = p->scale,
                                    .softcap = p->softcap,
                                    .least = d->sparse,
                                    .sinks = vector_of(p->sinks)};
    struct question what = {.layer = p->layer};
    if (d->rope_waits.r.q == NULL) PL_TRY(dev_settle(o));
    enum pl_status st = ask(d, &a, &what);
    if (st != PL_OK) return dev_report(d, st);
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < o->batch->seq_count; i++) tokens += visible_tokens(&o->batch->seqs[i], p->window);
    uint64_t bytes = tokens * s->kv_heads * pl_kv_token_bytes(s);
    char shape[96];
    struct pl_pick pick = pl_choose(&o->choice, PL_OP_attention, what.list, what.count);
    shape[0] = 0; /* only a refusal tells it */
    if (pick.taken == PL_IMPL_NONE)
        snprintf(shape, sizeof shape, "%u rows, %u heads of %zu, %zu KV heads, %s cache", a.rows, p->heads, s->head_dim,
                 s->kv_heads, pl_dtype_name(s->dtype));
    PL_TRY(pl_ops_end_decision(o, PL_OP_attention, &pick, 1, shape));
    const struct pl_launch_rope *r = &d->rope_waits.r;
    if (r->q != NULL && (pick.taken != PL_IMPL_SPLIT || r->q != a.q || r->k_pages != a.k_pages)) PL_TRY(dev_settle(o));
    st = run_attention(o, pick.taken, &what, &a, out, bytes);
    if (st != PL_OK) return st;
    o->attention_totals.rows += a.rows;
    o->attention_totals.tokens += tokens;
    bool rows = !what.decode && (what.plan == NULL || what.mixed) && pick.reason[0] == 0; /* not a question for the plan */
    pl_ops_count_attention(o, pl_impl_name(pick.taken), rows ? step_kind(o->batch) : pick.reason, bytes);
    return PL_OK;
}
