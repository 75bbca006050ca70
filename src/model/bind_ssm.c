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
        PL_TRY(check_count(d, b, t, n));
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

enum pl_status pl_bind_heads_part(struct binder *d, const struct span *s, const struct pl_tensor *t, struct pl_tensor *out) {
    const struct pl_ssm_config *c = &d->m->cfg.ssm;
    uint64_t rows = c->head_dim, scale = 0;
    if (t->dtype == PL_MLX) scale = pl_tensor_cols(t) / t->group * pl_dtype_info(t->scale_dtype)->block_bytes;
    const uint64_t unit[] = {t->bytes / s->total, scale, scale};
    const void *const from[] = {t->data, t->scales, t->biases};
    char *to[3], *data = pl_alloc(s->n, unit[0] + 2 * scale);
    PL_TRY(pl_bind_remember(d, data));
    to[0] = data;
    to[1] = data + s->n * unit[0];
    to[2] = to[1] + s->n * scale;
    for (size_t i = 0; i < (scale > 0 ? 3 : 1); i++)
        for (uint64_t h = 0; h < c->heads; h++)
            memcpy(to[i] + h * rows * unit[i], (const char *)from[i] + (2 * h * rows + s->first) * unit[i], rows * unit[i]);
    d->m->bytes_owned += s->n * (unit[0] + 2 * scale);
    *out = *t;
    out->shape[0] = s->n;
    out->data = to[0];
    out->bytes = s->n * unit[0];
    out->scales = scale > 0 ? to[1] : NULL;
    out->biases = scale > 0 ? to[2] : NULL;
    return PL_OK;
}
