/* Byte-pair encoding: the pair with the lowest rank is merged first, the leftmost among equals. Short words scan their
 * pairs, long ones keep a heap: O(n log n). SentencePiece's variant ranks a pair by the score of the token it makes. */
#include <string.h>

#include "base/mem.h"
#include "token/internal.h"
#include "token/unicode.h"

#define END        UINT32_MAX
#define SHORT_WORD 24u

/* --- merge table --- */

enum pl_status pl_tok_merges_reserve(struct pl_tok_model *m, size_t count) {
    size_t slots = 16;
    if (count > PL_TOK_MAX_IDS) return PL_LIMIT;
    while (slots < count * 2) slots *= 2;
    m->merges = pl_alloc(slots, sizeof *m->merges);
    if (m->merges == NULL) return PL_NO_MEMORY;
    m->merge_slots = slots;
    memset(m->merges, 0xFF, slots * sizeof *m->merges);
    return PL_OK;
}

static inline size_t slot_of(const struct pl_tok_model *m, uint64_t pair) {
    uint64_t h = pair * 0xD6E8FEB86659FD93u;
    h = (h ^ (h >> 32)) * 0xD6E8FEB86659FD93u;
    return (h >> 20) & (m->merge_slots - 1);
}

void pl_tok_merge_put(struct pl_tok_model *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id, bool last_wins) {
    uint64_t pair = (uint64_t)left << 32 | right;
    size_t i = slot_of(m, pair);
    while (m->merges[i].pair != UINT64_MAX && m->merges[i].pair != pair) i = (i + 1) & (m->merge_slots - 1);
    if (m->merges[i].pair == pair && !last_wins) return;
    m->merges[i] = (struct pl_merge_slot){pair, rank, id};
}

void pl_tok_merge_fetch(const struct pl_tok_model *m, uint32_t left, uint32_t right) {
    __builtin_prefetch(&m->merges[slot_of(m, (uint64_t)left << 32 | right)]);
}

const struct pl_merge_slot *pl_tok_merge_find(const struct pl_tok_model *m, uint32_t left, uint32_t right) {
    uint64_t pair = (uint64_t)left << 32 | right;
    if (m->merge_slots == 0) return NULL;
    for (size_t i = slot_of(m, pair);; i = (i + 1) & (m->merge_slots - 1)) {
        if (m->merges[i].pair == pair) return &m->merges[i];
        if (m->merges[i].pair == UINT64_MAX) return NULL;
    }
}

/* --- heap of candidate merges --- */

static inline bool before(const struct pl_heap_item *a, const struct pl_heap_item *b) {
    return a->key < b->key || (a->key == b->key && a->pos < b->pos);
}

static enum pl_status heap_push(struct pl_tok_ctx *c, struct pl_heap_item item) {
    if (c->heap_len == c->heap_cap) PL_TRY(pl_grow(&c->heap, &c->heap_cap, c->heap_len + 1, sizeof *c->heap));
    size_t i = c->heap_len++;
    for (; i > 0 && before(&item, &c->heap[(i - 1) / 2]); i = (i - 1) / 2) c->heap[i] = c->heap[(i - 1) / 2];
    c->heap[i] = item;
    return PL_OK;
}

static struct pl_heap_item heap_pop(struct pl_tok_ctx *c) {
    struct pl_heap_item top = c->heap[0], last = c->heap[--c->heap_len];
    size_t i = 0, n = c->heap_len;
    for (;;) {
        size_t k = 2 * i + 1;
        if (k >= n) break;
        if (k + 1 < n && before(&c->heap[k + 1], &c->heap[k])) k++;
        if (!before(&c->heap[k], &last)) break;
        c->heap[i] = c->heap[k];
        i = k;
    }
    if (n > 0) c->heap[i] = last;
    return top;
}

/* --- symbols --- */

static enum pl_status add_symbol(struct pl_tok_ctx *c, uint32_t *n, uint32_t id, size_t begin, size_t end) {
    if (*n >= c->sym_cap) PL_TRY(pl_grow(&c->sym, &c->sym_cap, (size_t)*n + 1, sizeof *c->sym));
    c->sym[*n] = (struct pl_symbol){id, *n - 1u, *n + 1u, (uint32_t)begin, (uint32_t)end};
    ++*n;
    return PL_OK;
}

/* Does the pair (left, right) merge, how soon, and into what? */
typedef bool (*pair_fn)(const struct pl_tokenizer *t, const char *w, const struct pl_symbol *l, const struct pl_symbol *r,
                        double *key, uint32_t *id);

static bool bpe_pair(const struct pl_tokenizer *t, const char *w, const struct pl_symbol *l, const struct pl_symbol *r,
                     double *key, uint32_t *id) {
    (void)w;
    const struct pl_merge_slot *m = pl_tok_merge_find(&t->model, l->id, r->id);
    if (m == NULL) return false;
    *key = m->rank;
    *id = m->id;
    return true;
}

static bool spm_pair(const struct pl_tokenizer *t, const char *w, const struct pl_symbol *l, const struct pl_symbol *r,
                     double *key, uint32_t *id) {
    size_t n = r->end - l->begin;
    if (n > t->vocab.max_len) return false;
    uint32_t found = pl_tok_model_find(t, w + l->begin, n);
    /* control, unknown and byte tokens are never made from text */
    if (found >= t->real_count || (t->attr[found] & (PL_ATTR_SPECIAL | PL_ATTR_BYTE | PL_ATTR_MARKER)) != 0) return false;
    *key = -(double)t->model.score[found];
    *id = found;
    return true;
}

static enum pl_status try_pair(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *w, uint32_t left,
                               pair_fn pair) {
    struct pl_symbol *l = &c->sym[left], *r = &c->sym[l->next];
    struct pl_heap_item item = {.pos = left, .size = r->end - l->begin};
    return pair(t, w, l, r, &item.key, &item.id) ? heap_push(c, item) : PL_OK;
}

static inline void join(struct pl_tok_ctx *c, uint32_t left, uint32_t id) {
    struct pl_symbol *l = &c->sym[left], *r = &c->sym[l->next];
    l->id = id;
    l->end = r->end;
    l->next = r->next;
    r->begin = r->end = END; /* gone */
    if (l->next != END) c->sym[l->next].prev = left;
}

static enum pl_status merge_heap(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *w, uint32_t n,
                                 pair_fn pair) {
    c->heap_len = 0;
    for (uint32_t i = 0; i + 1 < n; i++) PL_TRY(try_pair(t, c, w, i, pair));
    while (c->heap_len > 0) {
        struct pl_heap_item top = heap_pop(c);
        struct pl_symbol *l = &c->sym[top.pos];
        /* a pair that has grown since is another pair: its length tells */
        if (l->begin == END || l->next == END || c->sym[l->next].end - l->begin != top.size) continue;
        join(c, top.pos, top.id);
        if (l->prev != END) PL_TRY(try_pair(t, c, w, l->prev, pair));
        if (l->next != END) PL_TRY(try_pair(t, c, w, top.pos, pair));
    }
    return PL_OK;
}

/* The same for a few symbols without a heap. */
static void merge_short(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *w, uint32_t n, pair_fn pair) {
    double key[SHORT_WORD];
    uint32_t into[SHORT_WORD];
    for (uint32_t i = 0; i + 1 < n; i++)
        if (!pair(t, w, &c->sym[i], &c->sym[i + 1], &key[i], &into[i])) into[i] = END;
    for (;;) {
        uint32_t best = END;
        for (uint32_t i = 0; i != END && c->sym[i].next != END; i = c->sym[i].next)
            if (into[i] != END && (best == END || key[i] < key[best])) best = i;
        if (best == END) return;
        join(c, best, into[best]);
        struct pl_symbol *l = &c->sym[best];
        into[best] = END;
        if (l->next != END && !pair(t, w, l, &c->sym[l->next], &key[best], &into[best])) into[best] = END;
        uint32_t p = l->prev;
        if (p != END && !pair(t, w, &c->sym[p], l, &key[p], &into[p])) into[p] = END;
    }
}

static enum pl_status merge_all(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *w, uint32_t n,
                                pair_fn pair) {
    if (n == 0) return PL_OK;
    c->sym[0].prev = END;
    c->sym[n - 1].next = END;
    if (n > SHORT_WORD) return merge_heap(t, c, w, n, pair);
    merge_short(t, c, w, n, pair);
    return PL_OK;
}

/* A symbol that only merges know is no token: its bytes are looked up one by one, and dropped when they have none. */
static enum pl_status put_symbol(const struct pl_tokenizer *t, uint32_t id, struct pl_ids *out) {
    if (id < t->real_count) return pl_ids_add(out, id);
    struct pl_str s = t->vocab.text[id];
    for (size_t i = 0; i < s.len; i++) {
        uint32_t one =
            t->model.byte_fallback ? t->model.byte_id[(unsigned char)s.data[i]] : pl_tok_model_find(t, s.data + i, 1);
        if (one != PL_TOK_NONE && one < t->real_count) PL_TRY(pl_ids_add(out, one));
    }
    return PL_OK;
}

static enum pl_status put_symbols(const struct pl_tokenizer *t, struct pl_tok_ctx *c, uint32_t n, struct pl_ids *out) {
    for (uint32_t i = n > 0 ? 0 : END; i != END; i = c->sym[i].next) PL_TRY(put_symbol(t, c->sym[i].id, out));
    return PL_OK;
}

/* The token whose stored text is the whole word, for models that ask before merging. */
static uint32_t whole_word(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *w, size_t len) {
    if (!t->model.byte_level) return pl_tok_model_find(t, w, len);
    if (len > t->vocab.max_len) return PL_TOK_NONE;
    pl_buf_clear(&c->tmp);
    for (size_t i = 0; i < len; i++) {
        char u[4];
        size_t n = pl_uc_encode(pl_uc_byte_to_cp((unsigned char)w[i]), u);
        pl_buf_add(&c->tmp, u, n);
    }
    return c->tmp.failed ? PL_TOK_NONE : pl_tok_model_find(t, pl_buf_cstr(&c->tmp), c->tmp.len);
}

/* The vocabulary entry of one character, with the affixes some models put on. */
static uint32_t char_id(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *s, size_t n, bool first, bool last) {
    const struct pl_tok_model *m = &t->model;
    bool pre = !first && m->prefix.len > 0, suf = last && m->suffix.len > 0;
    if (!pre && !suf) return pl_tok_model_find(t, s, n);
    pl_buf_clear(&c->tmp);
    if (pre) pl_buf_add(&c->tmp, m->prefix.data, m->prefix.len);
    pl_buf_add(&c->tmp, s, n);
    if (suf) pl_buf_add(&c->tmp, m->suffix.data, m->suffix.len);
    return c->tmp.failed ? PL_TOK_NONE : pl_tok_model_find(t, c->tmp.data, c->tmp.len);
}

/* Byte tokens for the n bytes at s when all of them exist. */
static enum pl_status add_bytes(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *s, size_t at, size_t n,
                                uint32_t *count, bool *done) {
    *done = t->model.byte_fallback;
    for (size_t k = 0; k < n && *done; k++) *done = t->model.byte_id[(unsigned char)s[at + k]] != PL_TOK_NONE;
    for (size_t k = 0; k < n && *done; k++)
        PL_TRY(add_symbol(c, count, t->model.byte_id[(unsigned char)s[at + k]], at + k, at + k + 1));
    return PL_OK;
}

static enum pl_status chars(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *w, size_t len, uint32_t *n) {
    const struct pl_tok_model *m = &t->model;
    bool waiting = false; /* an unknown token not written yet, it may grow */
    size_t wait_begin = 0, wait_end = 0;
    for (size_t i = 0; i < len;) {
        size_t k = pl_uc_lead_len((unsigned char)w[i], len - i);
        uint32_t id = char_id(t, c, w + i, k, i == 0, i + k == len);
        bool done = false;
        if (id != PL_TOK_NONE) {
            if (waiting) PL_TRY(add_symbol(c, n, m->unk, wait_begin, wait_end));
            waiting = false;
            PL_TRY(add_symbol(c, n, id, i, i + k));
        } else {
            PL_TRY(add_bytes(t, c, w, i, k, n, &done));
            if (!done && m->unk != PL_TOK_NONE) {
                if (waiting && !m->fuse_unk) PL_TRY(add_symbol(c, n, m->unk, wait_begin, wait_end));
                if (!waiting || !m->fuse_unk) wait_begin = i;
                wait_end = i + k;
                waiting = true;
            }
        }
        i += k;
    }
    return waiting ? add_symbol(c, n, m->unk, wait_begin, wait_end) : PL_OK;
}

enum pl_status pl_tok_bpe(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *w, size_t len,
                          struct pl_ids *out) {
    const struct pl_tok_model *m = &t->model;
    if (len >= END - 1) return PL_LIMIT;
    if (m->ignore_merges || (m->newline_whole && w[0] == '\n')) {
        uint32_t id = whole_word(t, c, w, len);
        if (id < t->real_count && (t->attr[id] & (PL_ATTR_SPECIAL | PL_ATTR_MARKER)) == 0) return pl_ids_add(out, id);
    }
    uint32_t n = 0;
    if (m->byte_level) {
        for (size_t i = 0; i < len; i++) {
            uint32_t id = m->byte_id[(unsigned char)w[i]];
            if (id != PL_TOK_NONE) PL_TRY(add_symbol(c, &n, id, i, i + 1));
        }
    } else {
        PL_TRY(chars(t, c, w, len, &n));
    }
    PL_TRY(merge_all(t, c, w, n, bpe_pair));
    return put_symbols(t, c, n, out);
}

enum pl_status pl_tok_spm(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *w, size_t len,
                          struct pl_ids *out) {
    if (len >= END - 1) return PL_LIMIT;
    uint32_t n = 0;
    for (size_t i = 0; i < len;) {
        size_t k = pl_uc_lead_len((unsigned char)w[i], len - i);
        PL_TRY(add_symbol(c, &n, pl_tok_model_find(t, w + i, k), i, i + k));
        i += k;
    }
    PL_TRY(merge_all(t, c, w, n, spm_pair));
    for (uint32_t i = n > 0 ? 0 : END; i != END; i = c->sym[i].next) {
        if (c->sym[i].id != PL_TOK_NONE) {
            PL_TRY(pl_ids_add(out, c->sym[i].id));
            continue;
        }
        for (uint32_t b = c->sym[i].begin; b < c->sym[i].end; b++) {
            uint32_t id = t->model.byte_id[(unsigned char)w[b]];
            if (id == PL_TOK_NONE) id = t->model.unk;
            if (id != PL_TOK_NONE) PL_TRY(pl_ids_add(out, id));
        }
    }
    return PL_OK;
}
