#include "sample/constraint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "chat/reply.h"

enum { PIECE_MAX = 512, MASKS_MAX = 32, AFTER_MAX = 32 };

struct entry {
    const char *piece;
    uint32_t len, id, shared; /* bytes it has in common with the entry before */
};

struct pl_constraint_vocab {
    const struct pl_tokenizer *tok;
    struct entry *entries; /* sorted by piece */
    size_t count;
    uint32_t vocab;
};

struct mask {
    uint32_t state;
    uint64_t used;
    uint64_t *bits;
};

struct pl_constraint {
    const struct pl_constraint_vocab *v;
    struct pl_grammar *grammar;
    struct pl_grammar_run *run;
    uint32_t state;
    char after[AFTER_MAX]; /* empty: constrained */
    struct pl_buf tail;
    struct mask masks[MASKS_MAX];
    uint64_t clock;
};

/* ---------- the vocabulary ---------- */

static int compare(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    int c = memcmp(x->piece, y->piece, PL_MIN(x->len, y->len));
    if (c != 0) return c;
    return x->len != y->len ? (x->len < y->len ? -1 : 1) : (x->id > y->id) - (x->id < y->id);
}

static bool usable(const struct pl_tokenizer *t, uint32_t id, struct pl_str *piece) {
    if (!pl_tokenizer_piece(t, id, piece) || piece->len == 0 || piece->len > PIECE_MAX || pl_tokenizer_is_eog(t, id))
        return false;
    return !pl_tokenizer_is_special(t, id) || pl_reply_is_mark(piece->data, piece->len);
}

enum pl_status pl_constraint_vocab_create(const struct pl_tokenizer *t, struct pl_constraint_vocab **out,
                                          struct pl_err *err) {
    struct pl_constraint_vocab *v = pl_calloc(1, sizeof *v);
    uint32_t vocab = pl_tokenizer_vocab_size(t);
    if (v != NULL) v->entries = pl_alloc(vocab, sizeof *v->entries);
    if (v == NULL || v->entries == NULL) {
        pl_free(v);
        PL_FAIL(err, PL_NO_MEMORY, "no memory for the vocabulary's order");
    }
    v->tok = t;
    v->vocab = vocab;
    for (uint32_t id = 0; id < vocab; id++) {
        struct pl_str p;
        if (usable(t, id, &p)) v->entries[v->count++] = (struct entry){p.data, (uint32_t)p.len, id, 0};
    }
    qsort(v->entries, v->count, sizeof *v->entries, compare);
    for (size_t i = 1; i < v->count; i++) {
        const struct entry *a = &v->entries[i - 1];
        struct entry *b = &v->entries[i];
        while (b->shared < a->len && b->shared < b->len && a->piece[b->shared] == b->piece[b->shared]) b->shared++;
    }
    *out = v;
    return PL_OK;
}

void pl_constraint_vocab_destroy(struct pl_constraint_vocab *v) {
    if (v == NULL) return;
    pl_free(v->entries);
    pl_free(v);
}

/* ---------- masks ---------- */

static enum pl_status walk(struct pl_constraint *c, uint32_t *state, const char *bytes, size_t len) {
    for (size_t i = 0; i < len && *state != PL_GRAMMAR_DEAD; i++)
        PL_TRY(pl_grammar_step(c->run, *state, (unsigned char)bytes[i], state));
    return PL_OK;
}

/* path[d]: the state after d bytes of the current entry. An entry whose shared beginning is dead is dead too. */
static enum pl_status fill(struct pl_constraint *c, uint64_t *bits) {
    const struct pl_constraint_vocab *v = c->v;
    uint32_t path[PIECE_MAX + 1], known = 0;
    path[0] = c->state;
    memset(bits, 0, ((size_t)v->vocab + 63) / 64 * sizeof *bits);
    for (size_t i = 0; i < v->count; i++) {
        const struct entry *e = &v->entries[i];
        if (e->shared < known) known = e->shared;
        while (known < e->len && path[known] != PL_GRAMMAR_DEAD) {
            PL_TRY(pl_grammar_step(c->run, path[known], (unsigned char)e->piece[known], &path[known + 1]));
            known++;
        }
        if (known == e->len && path[known] != PL_GRAMMAR_DEAD) bits[e->id / 64] |= (uint64_t)1 << (e->id % 64);
    }
    return PL_OK;
}

static enum pl_status find_mask(struct pl_constraint *c, const uint64_t **bits) {
    struct mask *oldest = &c->masks[0];
    for (size_t i = 0; i < MASKS_MAX; i++) {
        struct mask *m = &c->masks[i];
        if (m->used < oldest->used) oldest = m;
        if (m->bits == NULL || m->state != c->state) continue;
        m->used = ++c->clock;
        *bits = m->bits;
        return PL_OK;
    }
    if (oldest->bits == NULL) oldest->bits = pl_alloc(((size_t)c->v->vocab + 63) / 64, sizeof *oldest->bits);
    if (oldest->bits == NULL) return PL_NO_MEMORY;
    oldest->state = PL_GRAMMAR_DEAD; /* no state's, should filling fail */
    PL_TRY(fill(c, oldest->bits));
    oldest->state = c->state;
    oldest->used = ++c->clock;
    *bits = oldest->bits;
    return PL_OK;
}

enum pl_status pl_constraint_mask(struct pl_constraint *c, float *logits, uint32_t vocab) {
    const uint64_t *bits = NULL;
    if (c->after[0] != '\0') return PL_OK;
    pl_grammar_run_refill(c->run);
    PL_TRY(find_mask(c, &bits));
    bool accepts = pl_grammar_accepts(c->run, c->state);
    for (uint32_t id = 0; id < vocab; id++) {
        bool ok = id < c->v->vocab && (bits[id / 64] >> (id % 64) & 1) != 0;
        if (!ok && accepts) ok = pl_tokenizer_is_eog(c->v->tok, id);
        if (!ok) logits[id] = -INFINITY;
    }
    return PL_OK;
}

enum pl_status pl_constraint_allows(struct pl_constraint *c, uint32_t id, bool *allowed) {
    struct pl_str piece;
    *allowed = true;
    if (c->after[0] != '\0') return PL_OK;
    *allowed = false;
    if (pl_tokenizer_is_eog(c->v->tok, id)) {
        *allowed = pl_grammar_accepts(c->run, c->state);
        return PL_OK;
    }
    if (!usable(c->v->tok, id, &piece)) return PL_OK;
    uint32_t state = c->state;
    pl_grammar_run_refill(c->run);
    PL_TRY(walk(c, &state, piece.data, piece.len));
    *allowed = state != PL_GRAMMAR_DEAD;
    return PL_OK;
}

/* ---------- going on ---------- */

/* The text until the mark, and at once what stands behind it in the same token. */
static enum pl_status wait_for_mark(struct pl_constraint *c, struct pl_str piece) {
    size_t n = strlen(c->after);
    pl_buf_add(&c->tail, piece.data, piece.len);
    if (!pl_buf_ok(&c->tail)) return PL_NO_MEMORY;
    const char *at = c->tail.len == 0 ? NULL : memmem(c->tail.data, c->tail.len, c->after, n);
    if (at == NULL) {
        size_t drop = c->tail.len > n ? c->tail.len - n : 0;
        if (drop > 0) memmove(c->tail.data, c->tail.data + drop, c->tail.len - drop + 1);
        c->tail.len -= drop;
        return PL_OK;
    }
    c->after[0] = '\0';
    const char *end = c->tail.data + c->tail.len;
    for (at += n; at < end && (*at == '\n' || *at == ' '); at++) {} /* white space behind the mark is nobody's */
    uint32_t state = c->state;
    PL_TRY(walk(c, &state, at, (size_t)(end - at)));
    if (state != PL_GRAMMAR_DEAD) c->state = state;
    return PL_OK;
}

enum pl_status pl_constraint_accept(struct pl_constraint *c, uint32_t id) {
    struct pl_str piece = {"", 0};
    if (pl_tokenizer_is_eog(c->v->tok, id) || !pl_tokenizer_piece(c->v->tok, id, &piece)) return PL_OK;
    pl_grammar_run_refill(c->run);
    if (c->after[0] != '\0') return wait_for_mark(c, piece);
    PL_TRY(walk(c, &c->state, piece.data, piece.len));
    if (pl_grammar_run_trim(c->run, &c->state))
        for (size_t i = 0; i < MASKS_MAX; i++) c->masks[i].state = PL_GRAMMAR_DEAD;
    return PL_OK;
}

enum pl_status pl_constraint_create(const struct pl_constraint_vocab *v, struct pl_grammar *g, const char *after,
                                    struct pl_constraint **out, struct pl_err *err) {
    if (after != NULL && strlen(after) >= AFTER_MAX) PL_FAIL(err, PL_INVALID, "the mark '%.60s' is too long", after);
    struct pl_constraint *c = pl_calloc(1, sizeof *c);
    if (c == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for the grammar");
    c->v = v;
    enum pl_status st = pl_grammar_run_create(g, &c->run, err);
    if (st != PL_OK) {
        pl_free(c);
        return st;
    }
    c->grammar = g;
    c->state = pl_grammar_start(c->run);
    if (after != NULL) memcpy(c->after, after, strlen(after) + 1);
    *out = c;
    return PL_OK;
}

void pl_constraint_destroy(struct pl_constraint *c) {
    if (c == NULL) return;
    for (size_t i = 0; i < MASKS_MAX; i++) pl_free(c->masks[i].bits);
    pl_grammar_run_destroy(c->run);
    pl_grammar_destroy(c->grammar);
    pl_buf_deinit(&c->tail);
    pl_free(c);
}
