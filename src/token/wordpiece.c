/* Unigram (best path by log probability), WordPiece (greedy longest match) and whole-word models. */
#include <string.h>

#include "base/mem.h"
#include "token/internal.h"
#include "token/unicode.h"

static bool from_text(const struct pl_tokenizer *t, uint32_t id) {
    return id < t->real_count && (t->attr[id] & (PL_ATTR_SPECIAL | PL_ATTR_MARKER)) == 0;
}

/* --- unigram --- */

static void offer(struct pl_path_node *node, double score, uint32_t id, uint32_t from) {
    if (node->from == UINT32_MAX || score > node->score) *node = (struct pl_path_node){score, id, from};
}

/* Fills c->path: how each position is best reached. */
static enum pl_status best_paths(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *w, size_t len) {
    const struct pl_tok_model *m = &t->model;
    PL_TRY(pl_grow(&c->path, &c->path_cap, len + 1, sizeof *c->path));
    for (size_t i = 0; i <= len; i++) c->path[i] = (struct pl_path_node){0, 0, UINT32_MAX};
    for (size_t i = 0; i < len;) {
        size_t one = pl_uc_lead_len((unsigned char)w[i], len - i);
        double here = c->path[i].score;
        bool single = false;
        uint32_t node = 0;
        for (size_t e = i; e < len;) {
            node = pl_tok_trie_step(&m->trie, node, (unsigned char)w[e++]);
            if (node == 0) break;
            uint32_t id = m->trie.values[node];
            if (id == PL_TOK_NONE) continue;
            offer(&c->path[e], here + m->log_prob[id], id, (uint32_t)i);
            if (e - i == one) single = true;
        }
        if (!single) {
            if (m->unk == PL_TOK_NONE)
                PL_FAIL(c->err, PL_FORMAT, "the unigram vocabulary has no unknown token for the character at byte %zu", i);
            offer(&c->path[i + one], here + m->unk_score, m->unk, (uint32_t)i);
        }
        i += one;
    }
    return PL_OK;
}

/* Unknown characters, together: their bytes when every byte has a token, else one unknown token. */
static enum pl_status put_unknown(const struct pl_tokenizer *t, const char *s, size_t n, struct pl_ids *out) {
    bool all = t->model.byte_fallback;
    for (size_t i = 0; i < n && all; i++) all = t->model.byte_id[(unsigned char)s[i]] != PL_TOK_NONE;
    if (!all) return pl_ids_add(out, t->model.unk);
    for (size_t i = 0; i < n; i++) PL_TRY(pl_ids_add(out, t->model.byte_id[(unsigned char)s[i]]));
    return PL_OK;
}

enum pl_status pl_tok_unigram(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *w, size_t len,
                              struct pl_ids *out) {
    if (len >= UINT32_MAX) return PL_LIMIT;
    PL_TRY(best_paths(t, c, w, len));
    /* turn the chain round: next[i] in place of from[i], kept in the field id of the start node's neighbour list */
    uint32_t end = (uint32_t)len, next = UINT32_MAX;
    while (end != 0) {
        uint32_t from = c->path[end].from;
        c->path[end].from = next; /* now: where the following token ends */
        next = end;
        end = from;
    }
    uint32_t begin = 0;
    while (next != UINT32_MAX) {
        uint32_t stop = next, id = c->path[stop].id;
        next = c->path[stop].from;
        if (id == t->model.unk) {
            while (next != UINT32_MAX && c->path[next].id == t->model.unk) {
                stop = next;
                next = c->path[stop].from;
            }
            PL_TRY(put_unknown(t, w + begin, stop - begin, out));
        } else {
            PL_TRY(pl_ids_add(out, id));
        }
        begin = stop;
    }
    return PL_OK;
}

/* --- WordPiece --- */

/* Longest entry that begins at w[i] (with the affix that position asks for); its end, or i. */
static size_t longest_piece(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *w, size_t len, size_t i,
                            uint32_t *id) {
    const struct pl_str *affix = i > 0 ? &t->model.prefix : &t->model.suffix; /* suffix: marker of a word's first piece */
    size_t room = t->vocab.max_len > affix->len ? t->vocab.max_len - affix->len : 0;
    size_t end = len - i > room ? i + room : len;
    while (end > i && end < len && ((unsigned char)w[end] & 0xC0) == 0x80) end--;
    pl_buf_clear(&c->tmp);
    pl_buf_add(&c->tmp, affix->data, affix->len);
    pl_buf_add(&c->tmp, w + i, end - i);
    if (c->tmp.failed) return i;
    while (end > i) {
        *id = pl_tok_model_find(t, c->tmp.data, affix->len + (end - i));
        if (*id != PL_TOK_NONE && from_text(t, *id)) return end;
        do end--;
        while (end > i && ((unsigned char)w[end] & 0xC0) == 0x80);
    }
    return i;
}

enum pl_status pl_tok_wordpiece(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *w, size_t len,
                                struct pl_ids *out) {
    size_t chars = 0, start = out->len;
    for (size_t i = 0; i < len; i++) chars += ((unsigned char)w[i] & 0xC0) != 0x80;
    bool known = chars <= t->model.max_chars;
    for (size_t i = 0; i < len && known;) {
        uint32_t id = 0;
        size_t e = longest_piece(t, c, w, len, i, &id);
        known = e > i;
        if (known) PL_TRY(pl_ids_add(out, id));
        i = e;
    }
    if (c->tmp.failed) return PL_NO_MEMORY;
    if (known) return PL_OK;
    out->len = start;
    return t->model.unk == PL_TOK_NONE ? PL_OK : pl_ids_add(out, t->model.unk);
}

static enum pl_status word_level(const struct pl_tokenizer *t, const char *w, size_t len, struct pl_ids *out) {
    uint32_t id = pl_tok_model_find(t, w, len);
    if (!from_text(t, id)) id = t->model.unk;
    return id == PL_TOK_NONE ? PL_OK : pl_ids_add(out, id);
}

enum pl_status pl_tok_model_word(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *word, size_t len,
                                 struct pl_ids *out) {
    switch (t->model.kind) {
    case PL_MODEL_BPE: return pl_tok_bpe(t, c, word, len, out);
    case PL_MODEL_SPM: return pl_tok_spm(t, c, word, len, out);
    case PL_MODEL_UNIGRAM: return pl_tok_unigram(t, c, word, len, out);
    case PL_MODEL_PLAMO: return pl_tok_plamo(t, c, word, len, out);
    case PL_MODEL_WORDPIECE: return pl_tok_wordpiece(t, c, word, len, out);
    case PL_MODEL_WORDLEVEL: return word_level(t, word, len, out);
    }
    return PL_INTERNAL;
}
