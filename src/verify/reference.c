#include "verify/reference.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "tensor/convert.h"

struct head {
    char magic[8];
    uint32_t version, form, vocab, top_count, window, stride;
    uint64_t id_count, ids_hash, vocabulary_hash, origin_bytes;
};
_Static_assert(sizeof(struct head) == 64, "the head's layout is part of the format");

static const char MAGIC[8] = {'p', 'l', 'u', 'm', 'b', 'r', 'e', 'f'};
enum { VERSION = 1, ORIGIN_MAX = 1 << 20, VOCAB_MAX = 1 << 24, ROW_HEAD = 16, ROW_TAIL = 8 };

static uint64_t payload_bytes(const struct pl_reference_about *a) {
    switch (a->form) {
    case PL_REFERENCE_F16: return ((uint64_t)a->vocab * 2 + 7) / 8 * 8;
    case PL_REFERENCE_F32: return ((uint64_t)a->vocab * 4 + 7) / 8 * 8;
    default: return (uint64_t)a->top_count * 8;
    }
}

static enum pl_status check_about(const struct pl_reference_about *a, const char *path, struct pl_err *err) {
    if (a->form >= PL_REFERENCE_FORM_COUNT || a->vocab == 0 || a->vocab > VOCAB_MAX || a->id_count < 2 ||
        a->id_count > UINT32_MAX || a->top_count > PL_REFERENCE_TOP_MAX ||
        (a->form == PL_REFERENCE_TOP) != (a->top_count > 0))
        PL_FAIL(err, PL_FORMAT, "%.300s: the head is damaged (form %u, vocabulary %u, %" PRIu64 " ids, top %u)", path,
                (unsigned)a->form, a->vocab, a->id_count, a->top_count);
    return PL_OK;
}

static void dispose(struct pl_reference *r) {
    if (r->file != NULL) fclose(r->file);
    json_decref(r->origin);
    pl_free(r->raw);
    pl_free(r->full);
    pl_free(r);
}

static enum pl_status prepare(struct pl_reference *r, uint64_t origin_bytes, struct pl_err *err) {
    r->row_bytes = ROW_HEAD + payload_bytes(&r->about) + ROW_TAIL;
    r->rows_at = sizeof(struct head) + origin_bytes + r->about.id_count * 4;
    r->raw = pl_calloc(1, r->row_bytes);
    r->full = pl_alloc(r->about.vocab, sizeof *r->full);
    if (r->raw == NULL || r->full == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a row of %u values", r->about.vocab);
    return PL_OK;
}

static enum pl_status write_start(struct pl_reference *r, const char *path, const uint32_t *ids, const char *origin,
                                  struct pl_err *err) {
    const struct pl_reference_about *a = &r->about;
    size_t bytes = strlen(origin);
    struct head h = {.version = VERSION,
                     .form = a->form,
                     .vocab = a->vocab,
                     .top_count = a->top_count,
                     .window = a->window,
                     .stride = a->stride,
                     .id_count = a->id_count,
                     .ids_hash = a->ids_hash,
                     .vocabulary_hash = a->vocabulary_hash,
                     .origin_bytes = bytes};
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    r->file = fopen(path, "w+be");
    if (r->file == NULL || fwrite(&h, sizeof h, 1, r->file) != 1 || fwrite(origin, 1, bytes, r->file) != bytes ||
        fwrite(ids, 4, a->id_count, r->file) != a->id_count)
        PL_FAIL(err, PL_IO, "%.300s: %s", path, strerror(errno));
    return prepare(r, bytes, err);
}

enum pl_status pl_reference_create(const char *path, const struct pl_reference_about *about, const uint32_t *ids,
                                   const json_t *origin, struct pl_reference **out, struct pl_err *err) {
    PL_TRY(check_about(about, path, err));
    struct pl_reference *r = pl_calloc(1, sizeof *r);
    char *text = json_dumps(origin, JSON_COMPACT);
    enum pl_status st = PL_OK;
    if (r == NULL || text == NULL) {
        free(text);
        pl_free(r);
        PL_FAIL(err, PL_NO_MEMORY, "no memory for a reference");
    }
    r->about = *about;
    r->origin = json_deep_copy(origin);
    st = write_start(r, path, ids, text, err);
    free(text);
    if (st == PL_OK)
        *out = r;
    else
        dispose(r);
    return st;
}

/* ---------- reading ---------- */

static enum pl_status read_origin(struct pl_reference *r, const char *path, uint64_t bytes, struct pl_err *err) {
    char *text = pl_alloc(bytes + 1, 1);
    if (text == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a reference");
    bool ok = fread(text, 1, bytes, r->file) == bytes;
    r->origin = ok ? json_loadb(text, bytes, 0, NULL) : NULL;
    pl_free(text);
    if (!json_is_object(r->origin))
        PL_FAIL(err, PL_FORMAT, "%.300s: the part that says where it came from is damaged", path);
    return PL_OK;
}

static enum pl_status read_ids_hash(struct pl_reference *r, const char *path, struct pl_err *err) {
    uint32_t *ids = pl_alloc(r->about.id_count, 4);
    if (ids == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for the ids of %.300s", path);
    bool ok = fread(ids, 4, r->about.id_count, r->file) == r->about.id_count &&
              pl_hash64(ids, r->about.id_count * 4, 0) == r->about.ids_hash;
    pl_free(ids);
    if (!ok) PL_FAIL(err, PL_FORMAT, "%.300s: the token ids in the file are damaged or cut off", path);
    return PL_OK;
}

static enum pl_status read_start(struct pl_reference *r, const char *path, struct pl_err *err) {
    struct head h;
    if (fread(&h, sizeof h, 1, r->file) != 1 || memcmp(h.magic, MAGIC, sizeof MAGIC) != 0)
        PL_FAIL(err, PL_FORMAT, "%.300s is no reference of plumb eval --save-reference", path);
    if (h.version != VERSION)
        PL_FAIL(err, PL_FORMAT, "%.300s has format version %u, this build reads %u: save it again", path, h.version,
                (unsigned)VERSION);
    r->about = (struct pl_reference_about){.vocab = h.vocab,
                                           .window = h.window,
                                           .stride = h.stride,
                                           .id_count = h.id_count,
                                           .ids_hash = h.ids_hash,
                                           .vocabulary_hash = h.vocabulary_hash,
                                           .top_count = h.top_count,
                                           .form = h.form < PL_REFERENCE_FORM_COUNT ? (enum pl_reference_form)h.form
                                                                                    : PL_REFERENCE_FORM_COUNT};
    PL_TRY(check_about(&r->about, path, err));
    if (h.origin_bytes > ORIGIN_MAX) PL_FAIL(err, PL_FORMAT, "%.300s: the head is damaged", path);
    PL_TRY(read_origin(r, path, h.origin_bytes, err));
    if (fseeko(r->file, 0, SEEK_END) != 0) PL_FAIL(err, PL_IO, "%.300s: %s", path, strerror(errno));
    off_t size = ftello(r->file);
    if (size < 0 || (uint64_t)size < sizeof h + h.origin_bytes + h.id_count * 4)
        PL_FAIL(err, PL_FORMAT, "%.300s: the token ids in the file are damaged or cut off", path);
    if (fseeko(r->file, (off_t)(sizeof h + h.origin_bytes), SEEK_SET) != 0)
        PL_FAIL(err, PL_IO, "%.300s: %s", path, strerror(errno));
    PL_TRY(read_ids_hash(r, path, err));
    PL_TRY(prepare(r, h.origin_bytes, err));
    r->rows = PL_MIN(((uint64_t)size - r->rows_at) / r->row_bytes, r->about.id_count - 1);
    return PL_OK;
}

/* What an interrupted run left after its last whole and sound row is cut off. */
static enum pl_status cut_tail(struct pl_reference *r, const char *path, struct pl_err *err) {
    struct pl_row row;
    while (r->rows > 0 && pl_reference_read(r, r->rows - 1, &row, NULL) != PL_OK) r->rows--;
    if (fflush(r->file) != 0 || ftruncate(fileno(r->file), (off_t)(r->rows_at + r->rows * r->row_bytes)) != 0)
        PL_FAIL(err, PL_IO, "%.300s: %s", path, strerror(errno));
    return PL_OK;
}

enum pl_status pl_reference_open(const char *path, bool writable, struct pl_reference **out, struct pl_err *err) {
    struct pl_reference *r = pl_calloc(1, sizeof *r);
    if (r == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a reference");
    r->file = fopen(path, writable ? "r+be" : "rbe");
    enum pl_status st = r->file == NULL ? pl_err_set(err, __FILE__, __LINE__, errno == ENOENT ? PL_NOT_FOUND : PL_IO,
                                                     "%.300s: %s", path, strerror(errno))
                                        : read_start(r, path, err);
    if (st == PL_OK && writable) st = cut_tail(r, path, err);
    if (st == PL_OK)
        *out = r;
    else
        dispose(r);
    return st;
}

enum pl_status pl_reference_match(const struct pl_reference *r, const struct pl_reference_about *w, struct pl_err *err) {
    const struct pl_reference_about *a = &r->about;
    if (a->vocab != w->vocab ||
        (a->vocabulary_hash != 0 && w->vocabulary_hash != 0 && a->vocabulary_hash != w->vocabulary_hash))
        PL_FAIL(err, PL_INVALID,
                "the reference was made with another vocabulary (%u tokens, hash %016" PRIx64 "; this model: %u, %016" PRIx64
                ")",
                a->vocab, a->vocabulary_hash, w->vocab, w->vocabulary_hash);
    if (a->id_count != w->id_count || a->ids_hash != w->ids_hash)
        PL_FAIL(err, PL_INVALID,
                "the reference was made from another text (%" PRIu64 " ids, hash %016" PRIx64 "; this text: %" PRIu64
                ", %016" PRIx64 ")",
                a->id_count, a->ids_hash, w->id_count, w->ids_hash);
    if (a->window != w->window || a->stride != w->stride)
        PL_FAIL(err, PL_INVALID,
                "the reference was made with window %u and stride %u, not %u and %u: tokens would be judged after different "
                "texts",
                a->window, a->stride, w->window, w->stride);
    return PL_OK;
}

/* ---------- rows ---------- */

static void pack(struct pl_reference *r, const struct pl_row *row) {
    uint8_t *to = r->raw + ROW_HEAD;
    const struct pl_reference_about *a = &r->about;
    memset(to, 0, payload_bytes(a));
    if (a->form == PL_REFERENCE_F32) {
        memcpy(to, row->full, (size_t)a->vocab * 4);
    } else if (a->form == PL_REFERENCE_F16) {
        for (uint32_t i = 0; i < a->vocab; i++) {
            uint16_t h = pl_f32_to_f16(PL_MAX(row->full[i], -65000.0f));
            memcpy(to + (size_t)i * 2, &h, 2);
        }
    } else {
        for (uint32_t i = 0; i < a->top_count; i++) {
            uint32_t id = i < row->top_count ? row->top_ids[i] : UINT32_MAX;
            memcpy(to + (size_t)i * 8, &id, 4);
            if (i < row->top_count) memcpy(to + (size_t)i * 8 + 4, &row->top[i], 4);
        }
    }
}

enum pl_status pl_reference_append(struct pl_reference *r, const struct pl_row *row, struct pl_err *err) {
    PL_ASSERT(r->rows + 1 < r->about.id_count);
    PL_ASSERT((r->about.form == PL_REFERENCE_TOP) == (row->full == NULL));
    uint32_t position = (uint32_t)r->rows + 1;
    float logprob = (float)row->logprob;
    memcpy(r->raw, &position, 4);
    memcpy(r->raw + 4, &logprob, 4);
    /* Rounded to 16 bits the two best may tie: which one led is kept. */
    uint32_t best = pl_row_best(row, r->about.vocab), zero = 0;
    memcpy(r->raw + 8, &best, 4);
    memcpy(r->raw + 12, &zero, 4);
    pack(r, row);
    uint64_t sum = pl_hash64(r->raw, r->row_bytes - ROW_TAIL, 0);
    memcpy(r->raw + r->row_bytes - ROW_TAIL, &sum, 8);
    if (fseeko(r->file, (off_t)(r->rows_at + r->rows * r->row_bytes), SEEK_SET) != 0 ||
        fwrite(r->raw, r->row_bytes, 1, r->file) != 1)
        PL_FAIL(err, PL_IO, "the reference cannot be written: %s", strerror(errno));
    r->rows++;
    return PL_OK;
}

static void unpack(struct pl_reference *r, struct pl_row *out) {
    const uint8_t *from = r->raw + ROW_HEAD;
    const struct pl_reference_about *a = &r->about;
    if (a->form == PL_REFERENCE_F32) {
        memcpy(r->full, from, (size_t)a->vocab * 4);
    } else if (a->form == PL_REFERENCE_F16) {
        double sum = 0;
        for (uint32_t i = 0; i < a->vocab; i++) {
            uint16_t h;
            memcpy(&h, from + (size_t)i * 2, 2);
            r->full[i] = pl_f16_to_f32(h);
            sum += exp(r->full[i]);
        }
        /* Rounding each value moves the sum a little off one: the row is made a distribution again. */
        float shift = sum > 0 ? (float)log(sum) : 0;
        for (uint32_t i = 0; i < a->vocab; i++) r->full[i] -= shift;
    } else {
        for (uint32_t i = 0; i < a->top_count; i++) {
            memcpy(&r->top_ids[i], from + (size_t)i * 8, 4);
            memcpy(&r->top[i], from + (size_t)i * 8 + 4, 4);
            if (r->top_ids[i] >= a->vocab) break;
            out->top_count++;
        }
        out->top = r->top;
        out->top_ids = r->top_ids;
        return;
    }
    out->full = r->full;
}

enum pl_status pl_reference_read(struct pl_reference *r, uint64_t index, struct pl_row *out, struct pl_err *err) {
    uint32_t position;
    uint64_t sum;
    float logprob;
    if (index >= r->rows)
        PL_FAIL(err, PL_INVALID,
                "the reference ends after %" PRIu64 " of %" PRIu64 " tokens: it was interrupted, finish it with --resume",
                r->rows, r->about.id_count - 1);
    if (fseeko(r->file, (off_t)(r->rows_at + index * r->row_bytes), SEEK_SET) != 0 ||
        fread(r->raw, r->row_bytes, 1, r->file) != 1)
        PL_FAIL(err, PL_IO, "row %" PRIu64 " of the reference cannot be read", index);
    memcpy(&position, r->raw, 4);
    memcpy(&logprob, r->raw + 4, 4);
    memcpy(&sum, r->raw + r->row_bytes - ROW_TAIL, 8);
    if (sum != pl_hash64(r->raw, r->row_bytes - ROW_TAIL, 0) || position != index + 1)
        PL_FAIL(err, PL_FORMAT, "row %" PRIu64 " of the reference is damaged: save it again", index);
    *out = (struct pl_row){.logprob = logprob, .best_known = true};
    memcpy(&out->best, r->raw + 8, 4);
    unpack(r, out);
    return PL_OK;
}

enum pl_status pl_reference_close(struct pl_reference *r, struct pl_err *err) {
    if (r == NULL) return PL_OK;
    bool ok = fflush(r->file) == 0 && !ferror(r->file);
    int e = errno;
    ok = fclose(r->file) == 0 && ok;
    r->file = NULL;
    dispose(r);
    if (!ok) PL_FAIL(err, PL_IO, "the reference cannot be written: %s", strerror(e));
    return PL_OK;
}

/* ---------- what rows say ---------- */

void pl_row_normalise(const float *logits, uint32_t vocab, float *logprobs) {
    float top = logits[0];
    double sum = 0;
    for (uint32_t i = 1; i < vocab; i++) top = PL_MAX(top, logits[i]);
    for (uint32_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - top);
    double shift = top + log(sum);
    /* A banned token keeps a finite value: sums over a whole row must stay numbers. */
    for (uint32_t i = 0; i < vocab; i++) logprobs[i] = PL_MAX((float)(logits[i] - shift), -1000.0f);
}

uint32_t pl_row_best(const struct pl_row *r, uint32_t vocab) {
    if (r->best_known) return r->best;
    if (r->full == NULL) return r->top_count > 0 ? r->top_ids[0] : UINT32_MAX;
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (r->full[i] > r->full[best]) best = i;
    return best;
}

double pl_row_logprob(const struct pl_row *r, uint32_t id, uint32_t vocab) {
    if (r->full != NULL) return id < vocab ? r->full[id] : -INFINITY;
    for (uint32_t i = 0; i < r->top_count; i++)
        if (r->top_ids[i] == id) return r->top[i];
    return -INFINITY;
}

/* Mass below this counts as nothing: what is left of one after sums of rounded values. */
static const double NOTHING = 1e-12;

static double coarse_kl(const struct pl_row *p, const struct pl_row *q, uint32_t vocab) {
    const struct pl_row *list = p->full == NULL ? p : q;
    double kl = 0, p_rest = 1, q_rest = 1;
    for (uint32_t i = 0; i < list->top_count; i++) {
        double lp = pl_row_logprob(p, list->top_ids[i], vocab), lq = pl_row_logprob(q, list->top_ids[i], vocab);
        if (!isfinite(lp) || !isfinite(lq)) continue;
        kl += exp(lp) * (lp - lq);
        p_rest -= exp(lp);
        q_rest -= exp(lq);
    }
    if (p_rest > NOTHING && q_rest > NOTHING) kl += p_rest * log(p_rest / q_rest);
    return PL_MAX(kl, 0.0);
}

double pl_row_kl(const struct pl_row *p, const struct pl_row *q, uint32_t vocab, bool *bound) {
    *bound = p->full == NULL || q->full == NULL;
    if (*bound) return coarse_kl(p, q, vocab);
    double kl = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        double pi = exp(p->full[i]);
        if (pi > 0) kl += pi * ((double)p->full[i] - q->full[i]);
    }
    return PL_MAX(kl, 0.0);
}
