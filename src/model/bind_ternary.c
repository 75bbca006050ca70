/* Binding of BitNet's matrices: whatever a file keeps them as becomes plumb's two bits a weight and one scale. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "model/binder.h"
#include "tensor/quant.h"

struct job {
    const struct pl_tensor *t;
    uint64_t rows, cols;
    bool bytes;        /* four rows to a byte row: i, i + rows/4, ... */
    float inverse;     /* values are rounded to -1, 0, 1 after this; 0: they are -unit, 0, unit already */
    float unit, scale; /* the magnitude in the tensor; of the product */
    uint8_t *out;
    _Atomic bool bad, starved;
};
enum { UNIT_ROWS = 64 };

static bool one_row(struct job *j, uint64_t r, float *row) {
    uint8_t *to = j->out + r * (j->cols / 4);
    if (j->bytes) {
        const uint64_t each = j->rows / 4;
        return pl_ternary_bytes((const uint8_t *)j->t->data + r % each * j->cols, (unsigned)(r / each * 2), j->cols, to);
    }
    float unit = j->unit;
    if (pl_dequant_row(j->t, r, row) != PL_OK) return false;
    if (j->inverse > 0) {
        unit = 1;
        for (uint64_t i = 0; i < j->cols; i++) row[i] = fmaxf(-1.0f, fminf(1.0f, rintf(row[i] * j->inverse)));
    }
    return pl_ternary_row(row, j->cols, &unit, to);
}

static void some_rows(void *arg, size_t unit) {
    struct job *j = arg;
    float *row = pl_alloc(j->cols, sizeof *row);
    if (row == NULL) {
        j->starved = true;
        return;
    }
    for (uint64_t r = unit * UNIT_ROWS; r < PL_MIN(j->rows, (uint64_t)(unit + 1) * UNIT_ROWS) && !j->bad; r++)
        if (!one_row(j, r, row)) j->bad = true;
    pl_free(row);
}

/* The one magnitude, or with `mean` what BitNet rounds by while it trains: the mean of all. */
static enum pl_status measure(struct binder *d, struct job *j, bool mean) {
    float *row = pl_alloc(j->cols, sizeof *row);
    double sum = 0;
    if (row == NULL) PL_FAIL(d->err, PL_NO_MEMORY, "no memory for a row of %s", j->t->name);
    enum pl_status st = PL_OK;
    for (uint64_t r = 0; r < j->rows && st == PL_OK && (mean || j->unit == 0); r++) {
        st = pl_dequant_row(j->t, r, row);
        for (uint64_t i = 0; i < j->cols; i++) {
            sum += (double)fabsf(row[i]);
            if (!mean && j->unit == 0) j->unit = fabsf(row[i]);
        }
    }
    pl_free(row);
    if (st != PL_OK)
        PL_FAIL(d->err, PL_UNSUPPORTED, "tensor %s has type %s, which is no matrix of weights", j->t->name,
                pl_dtype_name(j->t->dtype));
    if (!mean) return PL_OK;
    j->inverse = (float)(1.0 / fmax(sum / ((double)j->rows * (double)j->cols), 1e-5));
    j->unit = 1.0f / j->inverse;
    return PL_OK;
}

/* A tensor of one number beside the weight, *out stays where there is none. */
static enum pl_status read_factor(struct binder *d, const struct pl_binding *b, uint32_t layer, bool must, float *out) {
    char tail[96];
    struct pl_binding one = *b;
    struct pl_err ignored = {0}, *err = d->err;
    const struct pl_tensor *t = NULL;
    float v = 0;
    bool fused;
    if (pl_file_kind(d->f) == PL_FILE_GGUF) { /* attn_q.scale */
        snprintf(tail, sizeof tail, "%.*sscale", (int)(strlen(b->gguf) - strlen("weight")), b->gguf);
        one.gguf = tail;
    } else {
        snprintf(tail, sizeof tail, "%s_scale", b->hf);
        one.hf = tail;
    }
    if (!must) d->err = &ignored;
    enum pl_status st = pl_bind_find(d, &one, layer, &fused, &t);
    d->err = err;
    if (st != PL_OK) return must ? st : PL_OK;
    bool number = pl_tensor_rows(t) == 1 && pl_tensor_cols(t) == 1 && pl_dequant_row(t, 0, &v) == PL_OK;
    if (!number || !(v > 0) || !isfinite(v))
        PL_FAIL(d->err, PL_FORMAT, "tensor %s (%s) holds no positive number", t->name, pl_dtype_name(t->dtype));
    *out = v;
    return PL_OK;
}

static enum pl_status wrong_shape(const struct binder *d, const struct job *j) {
    char found[96];
    pl_bind_shape_text(j->t, found, sizeof found);
    PL_FAIL(d->err, PL_FORMAT, "tensor %s has shape [%s]; the configuration expects [%llu, %llu], or in bytes [%llu, %llu]",
            j->t->name, found, (unsigned long long)j->rows, (unsigned long long)j->cols, (unsigned long long)j->rows / 4,
            (unsigned long long)j->cols);
}

/* What the tensor is and by what its values are scaled. */
static enum pl_status describe(struct binder *d, const struct pl_binding *b, uint32_t layer, struct job *j) {
    const struct pl_model_config *c = &d->m->cfg;
    const bool gguf = pl_file_kind(d->f) == PL_FILE_GGUF;
    float factor = 1;
    j->bytes = !gguf && j->t->dtype == PL_U8;
    if (j->bytes && j->rows % 4 != 0)
        PL_FAIL(d->err, PL_UNSUPPORTED, "tensor %s: %llu outputs are no multiple of 4", j->t->name,
                (unsigned long long)j->rows);
    if (j->t->ndim != 2 || j->t->shape[0] != (j->bytes ? j->rows / 4 : j->rows) || j->t->shape[1] != j->cols)
        return wrong_shape(d, j);
    PL_TRY(read_factor(d, b, layer, !gguf && !c->ternary_online, &factor));
    if (!gguf && !c->ternary_multiplies) factor = 1.0f / factor;
    j->unit = 0;
    if (!j->bytes) PL_TRY(measure(d, j, c->ternary_online));
    j->scale = (j->bytes ? 1 : j->unit) * factor;
    return PL_OK;
}

static enum pl_status convert(struct binder *d, struct job *j) {
    const uint64_t bytes = j->rows * (j->cols / 4);
    j->out = pl_alloc(bytes + sizeof j->scale, 1); /* the scale stands behind the codes */
    if (j->out == NULL)
        PL_FAIL(d->err, PL_NO_MEMORY, "no memory for %llu bytes of %s", (unsigned long long)bytes, j->t->name);
    memcpy(j->out + bytes, &j->scale, sizeof j->scale);
    pl_bind_share(d->m, (size_t)((j->rows + UNIT_ROWS - 1) / UNIT_ROWS), some_rows, j);
    if (j->starved) PL_FAIL(d->err, PL_NO_MEMORY, "no memory for rows of %s", j->t->name);
    if (j->bad)
        PL_FAIL(d->err, PL_UNSUPPORTED,
                "tensor %s (%s) holds values other than -s, 0 and s for one s: bitnet models with ternary weights are "
                "implemented",
                j->t->name, pl_dtype_name(j->t->dtype));
    return PL_OK;
}

static enum pl_status create(struct binder *d, const struct job *j, struct pl_weight **out) {
    struct pl_model *m = d->m;
    const uint64_t bytes = j->rows * (j->cols / 4);
    const struct pl_tensor packed = {.name = j->t->name,
                                     .dtype = PL_TERNARY,
                                     .ndim = 2,
                                     .shape = {j->rows, j->cols, 1, 1},
                                     .data = j->out,
                                     .bytes = bytes,
                                     .scales = j->out + bytes,
                                     .scale_dtype = PL_F32};
    if (pl_grow(&m->repacked, &m->repacked_cap, m->repacked_count + 1, sizeof *m->repacked) != PL_OK)
        PL_FAIL(d->err, PL_NO_MEMORY, "no memory for a list of weights");
    return pl_ops_weight_create(m->ops, &packed, PL_WEIGHT_TERNARY, out, d->err);
}

enum pl_status pl_bind_ternary(struct binder *d, const struct pl_binding *b, uint32_t layer) {
    struct pl_model *m = d->m;
    struct job j = {.rows = pl_bind_dim(&m->cfg, b->rows), .cols = pl_bind_dim(&m->cfg, b->cols)};
    struct pl_weight *w = NULL;
    bool fused;
    PL_TRY(pl_bind_find(d, b, layer, &fused, &j.t));
    PL_TRY(describe(d, b, layer, &j));
    enum pl_status st = convert(d, &j);
    if (st == PL_OK) st = create(d, &j, &w);
    if (st == PL_OK && pl_ops_weight_bytes_owned(m->ops, w) == 0) { /* it is a view of what was made here */
        m->repacked[m->repacked_count++] = j.out;
        m->bytes_owned += j.rows * (j.cols / 4);
        j.out = NULL;
    }
    pl_free(j.out);
    if (st != PL_OK) return st;
    pl_bind_keep(d, b, layer, w, j.t, 1);
    pl_file_forget(d->f, j.t);
    return PL_OK;
}
