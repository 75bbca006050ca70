/* Vectors of state-space layers that are made of a tensor of another shape or meaning. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "model/binder.h"
#include "tensor/quant.h"

/* Decays may be [H], [H, 1] or [H, N], taps [channels, 1, K], [channels, K] or [channels, K, 1]: what counts is how many. */
static enum pl_status check_count(const struct binder *d, const struct pl_binding *b, const struct pl_tensor *t,
                                  uint64_t n) {
    uint64_t found = pl_tensor_rows(t) * pl_tensor_cols(t);
    bool turned = b->made == PL_MADE_DECAY && t->ndim >= 2 && t->shape[0] > 1 && t->shape[0] != d->m->cfg.ssm.heads;
    if (t->ndim >= 1 && found == n && !turned && (b->made != PL_MADE_TAPS || t->shape[0] == n / d->m->cfg.ssm.conv))
        return PL_OK;
    char text[96];
    pl_bind_shape_text(t, text, sizeof text);
    PL_FAIL(d->err, PL_FORMAT, "tensor %s has shape [%s]; the configuration expects %llu values (%s)%s", t->name, text,
            (unsigned long long)n, pl_bind_dim_text(b->cols), turned ? ", heads first" : "");
}

static enum pl_status read_values(const struct binder *d, const struct pl_tensor *t, float *out) {
    for (uint64_t r = 0; r < pl_tensor_rows(t); r++)
        if (pl_dequant_row(t, r, out + r * pl_tensor_cols(t)) != PL_OK)
            PL_FAIL(d->err, PL_UNSUPPORTED, "tensor %s has type %s, which is no vector of weights", t->name,
                    pl_dtype_name(t->dtype));
    return PL_OK;
}

/* GGUF keeps -e^A_log. A decay that is none would let the state grow without bound. */
static enum pl_status make_decay(const struct binder *d, const struct pl_tensor *t, const float *from, uint64_t n,
                                 float *to) {
    bool done = pl_file_kind(d->f) == PL_FILE_GGUF;
    for (uint64_t i = 0; i < n; i++) {
        to[i] = done ? from[i] : (float)-exp((double)from[i]);
        if (!(to[i] <= 0) || !isfinite(to[i]))
            PL_FAIL(d->err, PL_FORMAT, "tensor %s gives %g at %llu; finite decays up to 0 were expected", t->name,
                    (double)to[i], (unsigned long long)i);
    }
    return PL_OK;
}

static enum pl_status make(struct binder *d, const struct pl_binding *b, const struct pl_tensor *t, uint64_t n, float *raw,
                           float *out) {
    uint64_t taps = d->m->cfg.ssm.conv;
    PL_TRY(read_values(d, t, raw));
    if (b->made == PL_MADE_DECAY) return make_decay(d, t, raw, n, out);
    if (b->made == PL_MADE_FLAT) return memcpy(out, raw, n * sizeof *out), PL_OK;
    if (b->made == PL_MADE_REPEATED) { /* of each head the same */
        for (uint64_t i = 0; i < n; i++) out[i] = raw[i % d->m->cfg.ssm.head_dim];
        return PL_OK;
    }
    const struct pl_ssm_config *s = &d->m->cfg.ssm; /* of Mamba-2: x, B, C have scales of their own */
    for (uint64_t i = 0, c, group = (uint64_t)s->groups * s->state; i < n; i++) {
        c = i / taps;
        out[i % taps * (n / taps) + c] = raw[i] * s->scale[c < s->inner ? 1 : c < s->inner + group ? 2 : 3];
    }
    return PL_OK;
}

enum pl_status pl_bind_made(struct binder *d, const struct pl_binding *b, uint32_t layer) {
    uint64_t n = pl_bind_dim(&d->m->cfg, b->cols);
    const struct pl_tensor *t = NULL;
    bool fused;
    if (b->made != PL_MADE_ONES) {
        PL_TRY(pl_bind_find(d, b, layer, &fused, &t));
        PL_TRY(check_count(d, b, t, b->made == PL_MADE_REPEATED ? d->m->cfg.ssm.head_dim : n));
    }
    float *raw = pl_alloc(2 * n, sizeof *raw), *v = raw != NULL ? raw + n : NULL;
    if (raw == NULL) PL_FAIL(d->err, PL_NO_MEMORY, "no memory for %llu values", (unsigned long long)n);
    enum pl_status st = PL_OK;
    for (uint64_t i = 0; t == NULL && i < n; i++) v[i] = 1;
    if (t != NULL) st = make(d, b, t, n, raw, v);
    struct pl_tensor made = {.name = t != NULL ? t->name : "ones",
                             .dtype = PL_F32,
                             .ndim = 1,
                             .shape = {n, 1, 1, 1},
                             .data = v,
                             .bytes = n * sizeof *v};
    struct pl_weight *w = NULL;
    if (st == PL_OK) st = pl_ops_weight_create(d->m->ops, &made, PL_WEIGHT_VECTOR, &w, d->err);
    if (st == PL_OK) pl_bind_keep(d, b, layer, w, t, t != NULL);
    pl_free(raw);
    return st;
}

/* Which row of the file's tensor is row i of a part that stands there in turn with others: head by head its own rows, then
 * those of the other; or key head by key head q, k, the values and the gates of its value heads (Qwen3-Next), likewise their
 * two numbers. */
static uint64_t picked_row(const struct pl_model_config *c, enum pl_part part, uint64_t i) {
    const struct pl_ssm_config *s = &c->ssm;
    uint64_t p = s->head_dim, n = s->state, keys = (uint64_t)s->groups * n, share = s->heads / PL_MAX(s->groups, 1u),
             values = share * p, block = 2 * n + 2 * values, d = c->head_dim;
    switch (part) {
    case PL_PART_HEADS_Z: return i / p * 2 * p + i % p;
    case PL_PART_HEADS_X: return i / p * 2 * p + p + i % p;
    case PL_PART_HEADS_Q: return i / d * 2 * d + i % d;
    case PL_PART_HEADS_GATE: return i / d * 2 * d + d + i % d;
    case PL_PART_QKVZ_X:
        if (i < 2 * keys) return i % keys / n * block + i / keys * n + i % n;
        return (i - 2 * keys) / values * block + 2 * n + (i - 2 * keys) % values;
    case PL_PART_QKVZ_Z: return i / values * block + 2 * n + values + i % values;
    case PL_PART_BA_B: return i / share * 2 * share + i % share;
    default: return i / share * 2 * share + share + i % share; /* PL_PART_BA_A */
    }
}

enum pl_status pl_bind_picked(struct binder *d, enum pl_part part, const struct span *s, const struct pl_tensor *t,
                              struct pl_tensor *out) {
    uint64_t scale = 0;
    if (t->dtype == PL_MLX) scale = pl_tensor_cols(t) / t->group * pl_dtype_info(t->scale_dtype)->block_bytes;
    const uint64_t unit[] = {t->bytes / s->total, scale, scale};
    const void *const from[] = {t->data, t->scales, t->biases};
    char *to[3], *data = pl_alloc(s->n, unit[0] + 2 * scale);
    PL_TRY(pl_bind_remember(d, data));
    to[0] = data;
    to[1] = data + s->n * unit[0];
    to[2] = to[1] + s->n * scale;
    for (size_t k = 0; k < (scale > 0 ? 3 : 1); k++)
        for (uint64_t i = 0; i < s->n; i++)
            memcpy(to[k] + i * unit[k], (const char *)from[k] + picked_row(&d->m->cfg, part, i) * unit[k], unit[k]);
    d->m->bytes_owned += s->n * (unit[0] + 2 * scale);
    *out = *t;
    out->shape[0] = s->n;
    out->data = to[0];
    out->bytes = s->n * unit[0];
    out->scales = scale > 0 ? to[1] : NULL;
    out->biases = scale > 0 ? to[2] : NULL;
    return PL_OK;
}
