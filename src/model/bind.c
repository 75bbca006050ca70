/* Binding: every weight that the architecture's table asks for is found, checked against the configuration's letters,
 * and handed to the backend; what is left over is reported. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/pool.h"
#include "file/show.h"
#include "model/binder.h"
#include "tensor/quant.h"

uint64_t pl_bind_dim(const struct pl_model_config *c, enum pl_dim d) {
    switch (d) {
    case PL_DIM_NONE: return 1;
    case PL_DIM_E: return c->width;
    case PL_DIM_F: return c->mlp_width;
    case PL_DIM_V: return c->vocab;
    case PL_DIM_HD: return (uint64_t)c->heads * c->head_dim;
    case PL_DIM_GD: return (uint64_t)c->kv_heads * c->head_dim;
    case PL_DIM_D: return c->head_dim;
    case PL_DIM_X: return c->experts;
    case PL_DIM_FX: return c->expert_width;
    case PL_DIM_FS: return c->shared_width;
    case PL_DIM_ONE: return 1;
    case PL_DIM_H: return c->heads;
    case PL_DIM_XFX: return (uint64_t)c->experts * c->expert_width;
    case PL_DIM_XE: return (uint64_t)c->experts * c->width;
    case PL_DIM_HQ: return (uint64_t)c->heads * (c->nope_dim + c->rope_dim);
    case PL_DIM_HV: return (uint64_t)c->heads * c->value_dim;
    case PL_DIM_QL: return c->query_rank;
    case PL_DIM_KL: return c->latent;
    case PL_DIM_KR: return (uint64_t)c->latent + c->rope_dim;
    case PL_DIM_SI: return c->ssm.inner;
    case PL_DIM_SC: return pl_ssm_channels(&c->ssm);
    case PL_DIM_SCK: return pl_ssm_channels(&c->ssm) * c->ssm.conv;
    case PL_DIM_SH: return c->ssm.heads;
    case PL_DIM_SP: return c->ssm.head_dim;
    case PL_DIM_SA: return c->ssm.kind == PL_SSM_MAMBA ? (uint64_t)c->ssm.heads * c->ssm.state : c->ssm.heads;
    case PL_DIM_SR: return c->ssm.dt_rank;
    case PL_DIM_SN: return c->ssm.state;
    }
    return 0;
}

const char *pl_bind_dim_text(enum pl_dim d) {
    static const char *const text[] = {"1",
                                       "width",
                                       "MLP width",
                                       "vocabulary",
                                       "heads x head size",
                                       "KV heads x head size",
                                       "head size",
                                       "experts",
                                       "width of an expert",
                                       "width of the shared expert",
                                       "one",
                                       "heads",
                                       "experts x width of an expert",
                                       "experts x width",
                                       "heads x query size",
                                       "heads x value size",
                                       "query rank",
                                       "latent size",
                                       "latent and rotated size",
                                       "state-space width",
                                       "state-space width and groups",
                                       "channels x taps",
                                       "state-space heads",
                                       "decays",
                                       "rank of time steps",
                                       "state size",
                                       "size of a state-space head"};
    return text[d];
}

static bool is_of_attention(const struct pl_binding *b) {
    return b->per_layer && b->slot >= offsetof(struct pl_layer, q) && b->slot <= offsetof(struct pl_layer, o_bias);
}

static bool is_needed(const struct pl_model_config *c, const struct pl_binding *b, uint32_t layer) {
    if (is_of_attention(b) && c->layer_no_attention[layer]) return false;
    switch (b->need) {
    case PL_NEED_ALWAYS: return true;
    case PL_NEED_UNTIED: return !c->tied_embeddings;
    case PL_NEED_QKV_BIAS: return c->qkv_bias;
    case PL_NEED_ATTN_GATE: return c->attn_gate && !c->layer_no_attention[layer];
    case PL_NEED_O_BIAS: return c->o_bias;
    case PL_NEED_QK_NORM: return c->qk_norm;
    case PL_NEED_MLP_BIAS: return c->mlp_bias;
    case PL_NEED_DENSE: return !c->layer_moe[layer];
    case PL_NEED_MOE: return c->layer_moe[layer];
    case PL_NEED_SHARED: return c->layer_moe[layer] && c->shared_width > 0;
    case PL_NEED_CHOICE_BIAS: return c->layer_moe[layer] && c->experts_bias;
    case PL_NEED_QUERY_RANK: return c->query_rank > 0;
    case PL_NEED_NO_QUERY_RANK: return c->query_rank == 0;
    case PL_NEED_SSM: return c->layer_ssm[layer];
    case PL_NEED_ALONE: return c->layer_no_attention[layer] && !c->layer_ssm[layer] && !c->layer_moe[layer];
    case PL_NEED_SSM_NORM: return c->layer_ssm[layer] && c->ssm.norm;
    case PL_NEED_CONV_BIAS: return c->layer_ssm[layer] && c->ssm.conv_bias;
    }
    return false;
}

void pl_bind_shape_text(const struct pl_tensor *t, char *buf, size_t cap) {
    size_t used = 0;
    for (uint32_t i = 0; i < t->ndim && used < cap; i++)
        used += (size_t)snprintf(buf + used, cap - used, "%s%llu", i > 0 ? ", " : "", (unsigned long long)t->shape[i]);
    if (t->ndim == 0) snprintf(buf, cap, "scalar");
}

struct span pl_bind_span(const struct pl_model_config *c, const struct pl_binding *b, bool fused) {
    uint64_t n = pl_bind_dim(c, b->rows == PL_DIM_NONE ? b->cols : b->rows);
    uint64_t hd = pl_bind_dim(c, PL_DIM_HD), gd = pl_bind_dim(c, PL_DIM_GD);
    uint64_t in = c->ssm.inner, rank = c->ssm.dt_rank, state = c->ssm.state, conv = pl_ssm_channels(&c->ssm);
    if (!fused) return (struct span){0, n, n};
    switch (b->part) {
    case PL_PART_WHOLE: break;
    case PL_PART_Q: return (struct span){0, n, hd + 2 * gd};
    case PL_PART_K: return (struct span){hd, n, hd + 2 * gd};
    case PL_PART_V: return (struct span){hd + gd, n, hd + 2 * gd};
    case PL_PART_GATE: return (struct span){0, n, 2 * n};
    case PL_PART_UP: return (struct span){n, n, 2 * n};
    case PL_PART_IN_X: return (struct span){0, n, 2 * in};
    case PL_PART_IN_Z: return (struct span){in, n, 2 * in};
    case PL_PART_X_DT: return (struct span){0, n, rank + 2 * state};
    case PL_PART_X_B: return (struct span){rank, n, rank + 2 * state};
    case PL_PART_X_C: return (struct span){rank + state, n, rank + 2 * state};
    case PL_PART_IN2_Z: return (struct span){0, n, in + conv + c->ssm.heads};
    case PL_PART_IN2_X: return (struct span){in, n, in + conv + c->ssm.heads};
    case PL_PART_IN2_DT: return (struct span){in + conv, n, in + conv + c->ssm.heads};
    case PL_PART_IN3_B: return (struct span){0, n, 3 * in};
    case PL_PART_IN3_C: return (struct span){in, n, 3 * in};
    case PL_PART_IN3_X: return (struct span){2 * in, n, 3 * in};
    case PL_PART_HEADS_Z:
    case PL_PART_HEADS_X: return (struct span){0, n, 2 * in};
    case PL_PART_HEADS_Q:
    case PL_PART_HEADS_GATE: return (struct span){0, n, 2 * hd};
    case PL_PART_QKVZ_X:
    case PL_PART_QKVZ_Z: return (struct span){0, n, conv + in};
    case PL_PART_BA_B:
    case PL_PART_BA_A: return (struct span){0, n, 2 * (uint64_t)c->ssm.heads};
    case PL_PART_BC_B: return (struct span){0, n, 2 * state + rank};
    case PL_PART_BC_C: return (struct span){state, n, 2 * state + rank};
    case PL_PART_BC_DT: return (struct span){2 * state, n, 2 * state + rank};
    }
    return (struct span){0, n, n};
}

enum pl_status pl_bind_check_shape(const struct binder *d, const struct pl_binding *b, const struct span *s,
                                   const struct pl_tensor *t) {
    uint64_t cols = pl_bind_dim(&d->m->cfg, b->cols);
    bool vector = b->rows == PL_DIM_NONE;
    bool fits = vector ? t->ndim >= 1 && pl_tensor_rows(t) == 1 && pl_tensor_cols(t) == s->total
                       : (t->ndim == 2 || (t->ndim == 1 && s->total == 1)) && pl_tensor_rows(t) == s->total &&
                             pl_tensor_cols(t) == cols;
    if (fits) return PL_OK;
    char found[96];
    pl_bind_shape_text(t, found, sizeof found);
    const char *what = s->total == s->n ? pl_bind_dim_text(vector ? b->cols : b->rows) : "fused";
    if (vector)
        PL_FAIL(d->err, PL_FORMAT, "tensor %s has shape [%s]; the configuration expects [%llu] (%s)", t->name, found,
                (unsigned long long)s->total, what);
    PL_FAIL(d->err, PL_FORMAT, "tensor %s has shape [%s]; the configuration expects [%llu, %llu] (%s, %s)", t->name, found,
            (unsigned long long)s->total, (unsigned long long)cols, what, pl_bind_dim_text(b->cols));
}

/* The span as a tensor of its own: a view, as rows of every format stand one after the other. */
static enum pl_status cut_span(const struct binder *d, const struct span *s, const struct pl_tensor *t,
                               struct pl_tensor *out) {
    *out = *t;
    if (s->n == s->total) return PL_OK;
    bool vector = t->ndim == 1;
    if (vector && pl_dtype_info(t->dtype)->block_elems != 1)
        PL_FAIL(d->err, PL_UNSUPPORTED, "tensor %s has type %s, which is no vector of weights", t->name,
                pl_dtype_name(t->dtype));
    uint64_t unit = t->bytes / s->total;
    out->shape[0] = s->n;
    out->data = (const char *)t->data + s->first * unit;
    out->bytes = s->n * unit;
    if (t->dtype != PL_MLX) return PL_OK;
    uint64_t scales = s->first * (pl_tensor_cols(t) / t->group) * pl_dtype_info(t->scale_dtype)->block_bytes;
    out->scales = (const char *)t->scales + scales;
    out->biases = (const char *)t->biases + scales;
    return PL_OK;
}

/* The weight's own tensor, or the fused one. */
enum pl_status pl_bind_find(struct binder *d, const struct pl_binding *b, uint32_t layer, bool *fused,
                            const struct pl_tensor **out) {
    char name[2][192];
    for (int i = 0; i < 2; i++) {
        uint32_t at;
        *fused = i > 0;
        if (!pl_binding_name(d->f, d->m->def, d->prefix, b, *fused, layer, name[i], sizeof name[i]))
            PL_FAIL(d->err, PL_INTERNAL, "the name of weight %s is too long", b->hf);
        if (name[i][0] == 0 || !pl_map_get(&d->index, name[i], strlen(name[i]), &at)) continue;
        d->used[at] = true;
        return pl_bind_settle(d, at, out);
    }
    PL_FAIL(d->err, PL_FORMAT, "tensor %s is missing; a %s model needs it", name[0][0] != 0 ? name[0] : name[1],
            pl_arch_name(d->m->cfg.arch));
}

struct share {
    void (*run)(void *arg, size_t unit);
    void *arg;
    size_t units;
    _Atomic size_t next;
};

static void take_share(void *arg, int index, int count) {
    struct share *s = arg;
    (void)index;
    (void)count;
    for (size_t i; (i = atomic_fetch_add(&s->next, 1)) < s->units;) s->run(s->arg, i);
}

void pl_bind_share(struct pl_model *m, size_t units, void (*run)(void *arg, size_t unit), void *arg) {
    struct share s = {.run = run, .arg = arg, .units = units};
    struct pl_pool *pool = NULL;
    if (pl_ops_backend(m->ops) == PL_BACKEND_CPU || units < 2 || pl_pool_create(0, &pool, NULL) != PL_OK) {
        pl_ops_share(m->ops, units, run, arg);
        return;
    }
    pl_pool_run_any(pool, take_share, &s);
    pl_pool_destroy(pool);
}

enum pl_status pl_bind_remember(struct binder *d, void *p) {
    struct pl_model *m = d->m;
    if (p == NULL || pl_grow(&m->repacked, &m->repacked_cap, m->repacked_count + 1, sizeof *m->repacked) != PL_OK) {
        pl_free(p);
        PL_FAIL(d->err, PL_NO_MEMORY, "no memory for weights in another order");
    }
    m->repacked[m->repacked_count++] = p;
    return PL_OK;
}

/* The weight made of n tensors takes its place; what it copied need not stay in memory. */
void pl_bind_keep(struct binder *d, const struct pl_binding *b, uint32_t layer, struct pl_weight *w,
                  const struct pl_tensor *from, size_t n) {
    struct pl_model *m = d->m;
    char *base = b->per_layer ? (char *)&m->layers[layer] : (char *)m;
    memcpy(base + b->slot, &w, sizeof w);
    uint64_t owned = pl_ops_weight_bytes_owned(m->ops, w);
    m->bytes_owned += owned;
    for (size_t i = 0; i < n; i++) {
        if (owned > 0 && !d->later) pl_file_forget(d->f, &from[i]); /* held once: the copy is what products read */
        d->done_bytes += from[i].bytes;
    }
    if (d->opt->progress != NULL) d->opt->progress(d->opt->progress_user, d->done_bytes, pl_file_bytes(d->f));
}

static enum pl_status bind_one(struct binder *d, const struct pl_binding *b, uint32_t layer) {
    struct pl_model *m = d->m;
    if (!is_needed(&m->cfg, b, layer)) return PL_OK;
    if (b->made != PL_MADE_AS_IS) return pl_bind_made(d, b, layer);
    if (b->use == PL_WEIGHT_TERNARY) return pl_bind_ternary(d, b, layer);
    if (b->use == PL_WEIGHT_EXPERTS) return pl_bind_experts(d, b, layer);
    if (b->use == PL_WEIGHT_HEADS) return pl_bind_heads(d, b, layer);
    if (b->cols == PL_DIM_XFX || b->cols == PL_DIM_XE) return pl_bind_experts_bias(d, b, layer);
    const struct pl_tensor *t = NULL;
    struct pl_tensor part;
    bool fused;
    PL_TRY(pl_bind_find(d, b, layer, &fused, &t));
    const struct span s = pl_bind_span(&m->cfg, b, fused);
    PL_TRY(pl_bind_check_shape(d, b, &s, t));
    bool picked = fused && b->part >= PL_PART_HEADS_Z && b->part <= PL_PART_BA_A;
    PL_TRY(picked ? pl_bind_picked(d, b->part, &s, t, &part) : cut_span(d, &s, t, &part));
    enum pl_weight_use use = b->use == PL_WEIGHT_EMBED && m->cfg.tied_embeddings ? PL_WEIGHT_TIED : b->use;
    struct pl_weight *w;
    PL_TRY(pl_ops_weight_create(m->ops, &part, use, &w, d->err));
    pl_bind_keep(d, b, layer, w, &part, 1);
    return PL_OK;
}

static enum pl_status bind_all(struct binder *d) {
    const struct pl_arch_def *def = d->m->def;
    for (size_t i = 0; i < def->binding_count; i++)
        if (!def->bindings[i].per_layer) PL_TRY(bind_one(d, &def->bindings[i], 0));
    for (uint32_t l = 0; l < d->m->cfg.layers; l++)
        for (size_t i = 0; i < def->binding_count; i++)
            if (def->bindings[i].per_layer) PL_TRY(bind_one(d, &def->bindings[i], l));
    return PL_OK;
}

/* --- leftovers --- */

static bool starts_with(const char *s, const char *head) { return strncmp(s, head, strlen(head)) == 0; }

/* The output matrix's tensor of that kind, where hf_head_name looks for it. */
static bool is_of_head(const char *name, const char *kind) {
    static const char *const heads[] = {"lm_head.", "language_model.lm_head."};
    for (size_t i = 0; i < PL_COUNT_OF(heads); i++)
        if (starts_with(name, heads[i]) && strcmp(name + strlen(heads[i]), kind) == 0) return true;
    return false;
}

/* Present in sound checkpoints and of no use here. */
static bool is_known_unused(const char *name) {
    static const char *const heads[] = {"visual.",
                                        "model.visual.",
                                        "vision_tower.",
                                        "model.vision_tower.",
                                        "multi_modal_projector.",
                                        "model.multi_modal_projector.",
                                        "rope_freqs.",
                                        "rope_factors_long.",
                                        "rope_factors_short.",
                                        "v.",
                                        "mm."};
    for (size_t i = 0; i < PL_COUNT_OF(heads); i++)
        if (starts_with(name, heads[i])) return true;
    if (is_of_head(name, "weight")) return true;                                   /* beside tied embeddings */
    if (starts_with(name, "mtp.") || starts_with(name, "model.mtp.")) return true; /* predicts tokens further ahead */
    return strstr(name, "rotary_emb.inv_freq") != NULL || strstr(name, "attn_rot_embd") != NULL;
}

/* Of a GGUF's layers that predict tokens further ahead. */
static bool is_extra_layer(const struct binder *d, const char *name) {
    const struct pl_model_config *c = &d->m->cfg;
    unsigned long l = starts_with(name, "blk.") ? strtoul(name + 4, NULL, 10) : 0;
    return c->extra_layers > 0 && pl_file_kind(d->f) == PL_FILE_GGUF && l >= c->layers && l < c->layers + c->extra_layers;
}

/* A GGUF holds what its architecture uses, so a weight that is left over would change the result: refused. Other
 * checkpoints may carry more than that, and their own library ignores it; but no model is meant without its output
 * matrix's bias. */
static enum pl_status report_unused(const struct binder *d) {
    size_t count = 0, first = 0;
    for (size_t i = pl_file_tensor_count(d->f); i-- > 0;) {
        const char *left = pl_file_tensor_at(d->f, i)->name;
        if (d->used[i] || is_known_unused(left) || is_extra_layer(d, left)) continue;
        if (is_of_head(left, "bias"))
            PL_FAIL(d->err, PL_UNSUPPORTED,
                    "tensor %s has no place in a %s model as implemented: its output matrix has no bias", left,
                    pl_arch_name(d->m->cfg.arch));
        count++;
        first = i;
    }
    if (count == 0) return PL_OK;
    const char *name = pl_file_tensor_at(d->f, first)->name, *arch = pl_arch_name(d->m->cfg.arch);
    if (pl_file_kind(d->f) == PL_FILE_GGUF)
        PL_FAIL(d->err, PL_UNSUPPORTED, "tensor %s has no place in a %s model as implemented (%zu such tensor%s)",
                PL_SHOWN_C(name), arch, count, count == 1 ? "" : "s");
    pl_log("%s: %zu tensor%s not used by a %s model, the first is %s", pl_file_path(d->f), count,
           count == 1 ? " is" : "s are", arch, PL_SHOWN_C(name));
    return PL_OK;
}

static enum pl_status make_index(struct binder *d) {
    size_t n = pl_file_tensor_count(d->f);
    d->used = pl_calloc(n > 0 ? n : 1, sizeof(*d->used));
    d->settled = pl_calloc(n > 0 ? n : 1, sizeof *d->settled);
    if (d->used == NULL || d->settled == NULL || pl_map_reserve(&d->index, n) != PL_OK)
        PL_FAIL(d->err, PL_NO_MEMORY, "no memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        const char *name = pl_file_tensor_at(d->f, i)->name;
        if (pl_map_put(&d->index, name, strlen(name), (uint32_t)i, NULL) != PL_OK)
            PL_FAIL(d->err, PL_NO_MEMORY, "no memory for %zu tensors", n);
    }
    return PL_OK;
}

/* On all cores, with threads of its own: the backend may not have any. */
static enum pl_status check_scales(const struct pl_file *f, struct pl_err *err) {
    struct pl_pool *pool = NULL;
    if (pl_pool_create(0, &pool, NULL) != PL_OK) pool = NULL;
    enum pl_status st = pl_file_check_scales(f, pool, err);
    if (pool != NULL) pl_pool_destroy(pool);
    return st;
}

static void forget(void *file, const struct pl_tensor *t) { pl_file_forget(file, t); }

enum pl_status pl_model_bind(struct pl_model *m, const struct pl_file *f, const struct pl_model_options *opt,
                             struct pl_err *err) {
    struct binder d = {.m = m, .f = f, .opt = opt, .prefix = "", .err = err};
    if (pl_file_kind(f) == PL_FILE_HF) {
        d.prefix = pl_hf_prefix(f);
        if (d.prefix == NULL)
            PL_FAIL(err, PL_FORMAT,
                    "no tensor model.embed_tokens.weight (nor one of the multimodal names): this is no %s checkpoint",
                    pl_arch_name(m->cfg.arch));
    }
    d.later = pl_ops_pack_later(m->ops, forget, (void *)(uintptr_t)f);
    pl_map_init(&d.index);
    enum pl_status st = make_index(&d);
    if (st == PL_OK) st = check_scales(f, err);
    if (st == PL_OK) st = bind_all(&d);
    if (st == PL_OK) st = report_unused(&d);
    pl_map_deinit(&d.index);
    for (size_t i = 0; d.settled != NULL && i < pl_file_tensor_count(f); i++) pl_free(d.settled[i]);
    pl_free((void *)d.settled);
    pl_free(d.used);
    return st;
}

void pl_model_unbind(struct pl_model *m) {
    for (size_t i = 0; i < m->def->binding_count; i++) {
        const struct pl_binding *b = &m->def->bindings[i];
        for (uint32_t l = 0; l < (b->per_layer ? m->cfg.layers : 1); l++) {
            if (b->per_layer && m->layers == NULL) break;
            struct pl_weight *w;
            memcpy(&w, (b->per_layer ? (char *)&m->layers[l] : (char *)m) + b->slot, sizeof w);
            pl_ops_weight_destroy(m->ops, w);
        }
    }
}
