/* MXFP4 in other orders of bytes than GGUF's, which products read: what a file keeps as codes and exponents apart, two
 * neighbours a byte, becomes blocks of one exponent and the codes of elements i and i + 16 a byte, in memory of the model's
 * own. So MLX keeps whole matrices, and gpt-oss as published its experts (bind_experts.c). */
#include "base/check.h"
#include "base/mem.h"
#include "model/binder.h"

enum { ELEMS = 32, BYTES = 17 };

static void one_block(const unsigned char *from, unsigned char exponent, unsigned char *to) {
    unsigned char e[ELEMS];
    for (int i = 0; i < 16; i++) {
        e[2 * i] = from[i] & 15;
        e[2 * i + 1] = from[i] >> 4;
    }
    to[0] = exponent;
    for (int i = 0; i < 16; i++) to[1 + i] = (unsigned char)(e[i] | e[i + 16] << 4);
}

/* What the threads share: row r of the result is row first + step * r of the source. */
struct job {
    const unsigned char *codes, *exponents;
    unsigned char *to;
    uint64_t rows, units, first, step;
};
enum { UNIT_ROWS = 256 };

static void some_rows(void *arg, size_t unit) {
    const struct job *j = arg;
    uint64_t end = PL_MIN(j->rows, (uint64_t)(unit + 1) * UNIT_ROWS);
    for (uint64_t r = (uint64_t)unit * UNIT_ROWS; r < end; r++)
        for (uint64_t u = 0; u < j->units; u++) {
            uint64_t at = (j->first + j->step * r) * j->units + u;
            one_block(j->codes + at * 16, j->exponents[at], j->to + (r * j->units + u) * BYTES);
        }
}

enum pl_status pl_bind_mxfp4(struct binder *d, const char *name, const void *codes, const void *exponents, uint64_t first,
                             uint64_t step, uint64_t rows, uint64_t cols, const void **out) {
    uint64_t units = cols / ELEMS, all;
    if (!pl_mul_u64(rows, units * BYTES, &all)) PL_FAIL(d->err, PL_LIMIT, "tensor %s is larger than any memory", name);
    struct job j = {.codes = codes,
                    .exponents = exponents,
                    .to = pl_alloc(all, 1),
                    .rows = rows,
                    .units = units,
                    .first = first,
                    .step = step};
    PL_TRY(pl_bind_remember(d, j.to));
    pl_bind_share(d->m, (size_t)((rows + UNIT_ROWS - 1) / UNIT_ROWS), some_rows, &j);
    d->m->bytes_owned += all;
    *out = j.to;
    return PL_OK;
}

enum pl_status pl_bind_settle(struct binder *d, uint32_t at, const struct pl_tensor **out) {
    const struct pl_tensor *t = pl_file_tensor_at(d->f, at);
    if (t->dtype != PL_MLX_MXFP4) {
        *out = t;
        return PL_OK;
    }
    struct pl_tensor **made = &d->settled[at];
    if (*made == NULL) { /* parts of one tensor may be asked for one after the other */
        struct pl_tensor blocks = *t;
        uint64_t rows = pl_tensor_rows(t), cols = pl_tensor_cols(t);
        PL_TRY(pl_bind_mxfp4(d, t->name, t->data, t->scales, 0, 1, rows, cols, &blocks.data));
        blocks.dtype = PL_MXFP4;
        blocks.bytes = rows * (cols / ELEMS) * BYTES;
        blocks.scales = NULL;
        *made = pl_alloc(1, sizeof **made);
        if (*made == NULL) PL_FAIL(d->err, PL_NO_MEMORY, "no memory for the description of %s", t->name);
        **made = blocks;
        pl_file_forget(d->f, t);
    }
    *out = *made;
    return PL_OK;
}
