/* Binding of latent attention's second product, [H * (nope + v), latent]: of each head what makes its keys, turned to
 * [latent, nope], and what makes its values, [v, latent], as it lies. Files may keep the two apart, in just these shapes:
 * GGUF's attn_k_b and attn_v_b, MLX's embed_q and unembed_out. */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "model/binder.h"
#include "tensor/convert.h"
#include "tensor/quant.h"

/* Rows [first, first + n) of a matrix, or of a stack of them seen as one. */
static struct pl_tensor rows_of(const struct pl_tensor *t, uint64_t first, uint64_t n) {
    struct pl_tensor part = *t;
    uint64_t cols = pl_tensor_cols(t), row = t->bytes / pl_tensor_rows(t);
    part.ndim = 2;
    part.shape[0] = n;
    part.shape[1] = cols;
    part.shape[2] = part.shape[3] = 1;
    part.data = (const char *)t->data + first * row;
    part.bytes = n * row;
    if (t->dtype != PL_MLX) return part;
    uint64_t scales = first * (cols / t->group) * pl_dtype_info(t->scale_dtype)->block_bytes;
    part.scales = (const char *)t->scales + scales;
    part.biases = (const char *)t->biases + scales;
    return part;
}

static enum pl_status wrong_shape(const struct binder *d, const struct pl_tensor *t, uint64_t a, uint64_t b, uint64_t c) {
    char found[96];
    pl_bind_shape_text(t, found, sizeof found);
    if (a > 0)
        PL_FAIL(d->err, PL_FORMAT, "tensor %s has shape [%s]; the configuration expects [%llu, %llu, %llu] (heads first)",
                t->name, found, (unsigned long long)a, (unsigned long long)b, (unsigned long long)c);
    PL_FAIL(d->err, PL_FORMAT,
            "tensor %s has shape [%s]; the configuration expects [%llu, %llu] (heads x (key and value size), latent size)",
            t->name, found, (unsigned long long)b, (unsigned long long)c);
}

/* to[c][r] = row r, element c: n rows of `cols`. */
static enum pl_status turn(const struct pl_tensor *t, uint64_t n, uint64_t cols, float *row, float *to) {
    for (uint64_t r = 0; r < n; r++) {
        PL_TRY(pl_dequant_row_product(t, r, row));
        for (uint64_t c = 0; c < cols; c++) to[c * n + r] = row[c];
    }
    return PL_OK;
}

/* The type that holds every value of t. */
static enum pl_dtype exact_type(enum pl_dtype t) { return t == PL_F16 || t == PL_BF16 ? t : PL_F32; }

/* All heads' keys, turned, in memory of the model's own. */
static enum pl_status turn_keys(struct binder *d, const struct pl_tensor *t, struct pl_tensor *out) {
    const struct pl_model_config *c = &d->m->cfg;
    enum pl_dtype type = exact_type(t->dtype);
    uint64_t nope = c->nope_dim, latent = c->latent, both = nope + c->value_dim, each = nope * latent, size, all;
    size = pl_dtype_info(type)->block_bytes;
    if (!pl_mul_u64(each * size, c->heads, &all)) PL_FAIL(d->err, PL_LIMIT, "tensor %s is larger than any memory", t->name);
    char *data = pl_alloc(all, 1);
    float *f = pl_alloc(each + latent, sizeof *f);
    enum pl_status st = pl_bind_remember(d, data);
    if (st == PL_OK && f == NULL) st = pl_err_set(d->err, __FILE__, __LINE__, PL_NO_MEMORY, "no memory for %s", t->name);
    for (uint32_t h = 0; h < c->heads && st == PL_OK; h++) {
        struct pl_tensor rows = rows_of(t, h * both, nope);
        char *to = data + h * each * size;
        st = turn(&rows, nope, latent, f + each, f);
        if (st != PL_OK) {
            st = pl_err_set(d->err, __FILE__, __LINE__, PL_UNSUPPORTED,
                            "tensor %s has type %s, which is no matrix of weights", t->name, pl_dtype_name(t->dtype));
        }
        for (uint64_t i = 0; i < each && st == PL_OK; i++) {
            if (type == PL_F32)
                ((float *)(void *)to)[i] = f[i];
            else
                ((uint16_t *)(void *)to)[i] = type == PL_F16 ? pl_f32_to_f16(f[i]) : pl_f32_to_bf16(f[i]);
        }
        out[h] = (struct pl_tensor){
            .name = t->name, .dtype = type, .ndim = 2, .shape = {latent, nope, 1, 1}, .data = to, .bytes = each * size};
    }
    pl_free(f);
    if (st == PL_OK) d->m->bytes_owned += all;
    return st;
}

/* One of each head: from a stack of its own (apart), else cut out of both together. */
static enum pl_status cut(struct binder *d, const struct pl_binding *b, const struct pl_tensor *t, bool apart,
                          struct pl_tensor *out) {
    const struct pl_model_config *c = &d->m->cfg;
    bool keys = b->part == PL_PART_K;
    uint64_t rows = keys ? c->latent : c->value_dim, cols = keys ? c->nope_dim : c->latent;
    uint64_t both = (uint64_t)c->nope_dim + c->value_dim;
    if (apart) {
        if (t->ndim != 3 || t->shape[0] != c->heads || t->shape[1] != rows || t->shape[2] != cols)
            return wrong_shape(d, t, c->heads, rows, cols);
        for (uint32_t h = 0; h < c->heads; h++) out[h] = rows_of(t, h * rows, rows);
        return PL_OK;
    }
    if (t->ndim != 2 || t->shape[0] != c->heads * both || t->shape[1] != c->latent)
        return wrong_shape(d, t, 0, c->heads * both, c->latent);
    if (keys) return turn_keys(d, t, out);
    for (uint32_t h = 0; h < c->heads; h++) out[h] = rows_of(t, h * both + c->nope_dim, c->value_dim);
    return PL_OK;
}

enum pl_status pl_bind_heads(struct binder *d, const struct pl_binding *b, uint32_t layer) {
    const struct pl_tensor *t = NULL;
    uint32_t n = d->m->cfg.heads;
    bool fused, gguf = pl_file_kind(d->f) == PL_FILE_GGUF;
    PL_TRY(pl_bind_find(d, b, layer, &fused, &t));
    struct pl_tensor *list = pl_alloc(n, sizeof *list);
    if (list == NULL) PL_FAIL(d->err, PL_NO_MEMORY, "no memory for %u heads", n);
    enum pl_status st = cut(d, b, t, fused != gguf, list);
    struct pl_weight *w = NULL;
    if (st == PL_OK) st = pl_ops_heads_create(d->m->ops, list, n, &w, d->err);
    if (st == PL_OK) pl_bind_keep(d, b, layer, w, list, n);
    pl_free(list);
    return st;
}
