/* The pipeline from text to ids: invalid UTF-8 out, added tokens, normalizers, words, model, template. */
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "token/internal.h"
#include "token/unicode.h"

/* --- scratch contexts: taken for one call, kept for the next --- */

static void ctx_destroy(struct pl_tok_ctx *c) {
    if (c == NULL) return;
    pl_regex_scratch_deinit(&c->regex);
    pl_free(c->cache);
    pl_free(c->words.at);
    pl_free(c->spare.at);
    struct pl_tok_text *texts[] = {&c->a, &c->b, &c->clean};
    for (size_t i = 0; i < PL_COUNT_OF(texts); i++) {
        pl_free(texts[i]->data);
        pl_free(texts[i]->taint);
    }
    pl_free(c->sym);
    pl_free(c->heap);
    pl_free(c->path);
    pl_free(c->spans);
    pl_buf_deinit(&c->tmp);
    pl_free(c);
}

void pl_tok_ctx_destroy_all(struct pl_tokenizer *t) {
    while (t->idle != NULL) {
        struct pl_tok_ctx *c = t->idle;
        t->idle = c->next;
        ctx_destroy(c);
    }
}

static struct pl_tok_ctx *ctx_take(const struct pl_tokenizer *ct) {
    struct pl_tokenizer *t = (struct pl_tokenizer *)(uintptr_t)ct; /* the pool is the one mutable part */
    pthread_mutex_lock(&t->lock);
    struct pl_tok_ctx *c = t->idle;
    if (c != NULL) t->idle = c->next;
    pthread_mutex_unlock(&t->lock);
    if (c != NULL) return c;
    c = pl_calloc(1, sizeof *c);
    if (c == NULL) return NULL;
    c->cache = pl_calloc(PL_CACHE_SLOTS, sizeof *c->cache);
    if (c->cache == NULL) {
        pl_free(c);
        return NULL;
    }
    return c;
}

/* A huge text must not pin its buffers for ever. */
#define KEEP_BYTES (8u << 20)
static void ctx_give(const struct pl_tokenizer *ct, struct pl_tok_ctx *c) {
    struct pl_tokenizer *t = (struct pl_tokenizer *)(uintptr_t)ct;
    size_t held = c->words.cap * sizeof *c->words.at + c->spare.cap * sizeof *c->spare.at + c->a.cap + c->b.cap +
                  c->clean.cap + c->sym_cap * sizeof *c->sym + c->heap_cap * sizeof *c->heap + c->path_cap * sizeof *c->path;
    if (held > KEEP_BYTES || c->tmp.failed) {
        ctx_destroy(c);
        return;
    }
    pthread_mutex_lock(&t->lock);
    c->next = t->idle;
    t->idle = c;
    pthread_mutex_unlock(&t->lock);
}

/* --- words --- */

static inline uint64_t short_hash(const char *w, size_t len) {
    uint64_t h = len * 0x9E3779B97F4A7C15u, v;
    while (len >= 8) {
        memcpy(&v, w, 8);
        h = (h ^ v) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
        w += 8;
        len -= 8;
    }
    v = 0;
    memcpy(&v, w, len);
    h = (h ^ v) * 0xD6E8FEB86659FD93u;
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93u;
    return h ^ (h >> 29);
}

static enum pl_status word(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *w, size_t len,
                           struct pl_ids *out) {
    struct pl_cache_slot *slot = NULL;
    uint64_t h = 0;
    if (len <= sizeof slot->key) {
        h = short_hash(w, len);
        slot = &c->cache[h & (PL_CACHE_SLOTS - 1)];
        if (slot->hash == h && slot->len == len && memcmp(slot->key, w, len) == 0) {
            if (out->cap - out->len < 8) PL_TRY(pl_grow(&out->data, &out->cap, out->len + 8, sizeof *out->data));
            memcpy(out->data + out->len, slot->ids, sizeof slot->ids);
            out->len += slot->count;
            return PL_OK;
        }
    }
    size_t before = out->len;
    PL_TRY(pl_tok_model_word(t, c, w, len, out));
    size_t n = out->len - before;
    if (slot != NULL && n <= 8) {
        slot->hash = h;
        slot->len = (uint8_t)len;
        slot->count = (uint8_t)n;
        memcpy(slot->key, w, len);
        if (n > 0) memcpy(slot->ids, out->data + before, n * sizeof *slot->ids);
    }
    return PL_OK;
}

/* May the text be cut between a and b without changing any id? Yes when no token holds the two side by side. */
static inline bool may_cut(const struct pl_tok_model *m, uint32_t a, uint32_t b) {
    if (m->cut_before_space_only && (b != 0x2581 || a == 0x2581)) return false;
    uint64_t h = pl_tok_mix((uint64_t)a << 21 | b) >> 8;
    return (m->pair_bloom[(h >> 6) & (PL_BLOOM_WORDS - 1)] >> (h & 63) & 1u) == 0;
}

static enum pl_status run_of_text(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *s, size_t len,
                                  struct pl_ids *out) {
    if (t->model.pair_bloom == NULL || len < 2) return len == 0 ? PL_OK : word(t, c, s, len, out);
    size_t begin = 0, i;
    uint32_t prev, cp;
    bool valid = !t->raw_bytes || pl_utf8_valid(s, len);
    if (!valid) return word(t, c, s, len, out);
    for (i = pl_uc_next(s, &prev); i < len; prev = cp) {
        size_t n = pl_uc_next(s + i, &cp);
        if (may_cut(&t->model, prev, cp)) {
            PL_TRY(word(t, c, s + begin, i - begin, out));
            begin = i;
        }
        i += n;
    }
    return word(t, c, s + begin, len - begin, out);
}

/* c->a holds normalized text without added tokens. */
static enum pl_status plain(const struct pl_tokenizer *t, struct pl_tok_ctx *c, bool at_start, struct pl_ids *out) {
    if (c->a.len == 0) return PL_OK;
    if (t->pre_count == 0) return run_of_text(t, c, c->a.data, c->a.len, out);
    PL_TRY(pl_tok_pretokenize(t, c, at_start));
    const char *s = c->a.data;
    for (size_t i = 0; i < c->words.len; i++) {
        struct pl_word w = c->words.at[i];
        if (w.end - w.begin > 64) {
            PL_TRY(run_of_text(t, c, s + w.begin, w.end - w.begin, out));
            continue;
        }
        PL_TRY(word(t, c, s + w.begin, w.end - w.begin, out));
    }
    return PL_OK;
}

/* --- added tokens --- */

struct source {
    const char *s;
    size_t len;
    const uint8_t *taint;        /* per byte, or */
    const struct pl_span *spans; /* sorted spans */
    size_t span_count, span_at;  /* first span that does not end before the position */
};

static bool tainted(struct source *in, size_t begin, size_t end) {
    if (in->taint != NULL) {
        for (size_t i = begin; i < end; i++)
            if (in->taint[i]) return true;
        return false;
    }
    while (in->span_at < in->span_count && in->spans[in->span_at].end <= begin) in->span_at++;
    for (size_t i = in->span_at; i < in->span_count && in->spans[i].begin < end; i++)
        if (in->spans[i].end > begin && in->spans[i].begin < in->spans[i].end) return true;
    return false;
}

static bool is_space(const struct pl_added *a, uint32_t cp) {
    return a->ascii_strip ? cp == ' ' || (cp >= 9 && cp <= 13) : (pl_uc_flags(cp) & PL_UC_SPACE) != 0;
}

static uint32_t char_before(const char *s, size_t i, size_t *begin) {
    uint32_t cp;
    size_t p = i - 1;
    while (p > 0 && ((unsigned char)s[p] & 0xC0) == 0x80) p--;
    *begin = p;
    pl_uc_next(s + p, &cp);
    return cp;
}

static bool inside_word(const struct source *in, size_t begin, size_t end) {
    size_t p;
    uint32_t cp;
    if (begin > 0 && (pl_uc_flags(char_before(in->s, begin, &p)) & PL_UC_WORD)) return true;
    if (end >= in->len) return false;
    pl_uc_next(in->s + end, &cp);
    return (pl_uc_flags(cp) & PL_UC_WORD) != 0;
}

struct hit {
    size_t begin, end, match_end;
    const struct pl_added *token;
};

/* Longest added token that may match at i. Special ones want parse_special; markup and special ones want trusted bytes. */
static const struct pl_added *token_at(const struct pl_tokenizer *t, const struct pl_added_set *set, struct source *in,
                                       size_t i, const struct pl_encode_options *opt, size_t *end) {
    const struct pl_added *best = NULL;
    uint32_t node = 0;
    for (size_t e = i; e < in->len;) {
        node = pl_tok_trie_step(&set->trie, node, (unsigned char)in->s[e++]);
        if (node == 0) break;
        uint32_t v = set->trie.values[node];
        if (v == PL_TOK_NONE) continue;
        const struct pl_added *a = &t->added[v];
        if (a->special && !opt->parse_special) continue;
        if ((a->special || a->marker) && tainted(in, i, e)) continue;
        best = a;
        *end = e;
    }
    return best;
}

static bool next_added(const struct pl_tokenizer *t, const struct pl_added_set *set, struct source *in, size_t from,
                       size_t floor, const struct pl_encode_options *opt, struct hit *h) {
    for (size_t i = from; i < in->len; i++) {
        if (set->trie.first[(unsigned char)in->s[i]] == 0) continue;
        size_t end = 0;
        const struct pl_added *a = token_at(t, set, in, i, opt, &end);
        if (a == NULL) continue;
        if (a->single_word && inside_word(in, i, end)) {
            i = end - 1;
            continue;
        }
        *h = (struct hit){i, end, end, a};
        size_t p;
        uint32_t cp;
        while (a->lstrip && h->begin > floor && is_space(a, char_before(in->s, h->begin, &p))) h->begin = PL_MAX(p, floor);
        while (a->rstrip && h->end < in->len) {
            size_t n = pl_uc_next(in->s + h->end, &cp);
            if (!is_space(a, cp)) break;
            h->end += n;
        }
        return true;
    }
    return false;
}

/* Second pass: tokens that are looked for in normalized text (in c->a, which plain() needs: keep a copy). */
static enum pl_status normalized_pass(const struct pl_tokenizer *t, struct pl_tok_ctx *c, bool at_start,
                                      const struct pl_encode_options *opt, struct pl_ids *out) {
    struct pl_tok_text whole = c->clean; /* borrow the buffer */
    c->clean = c->a;
    c->a = whole;
    struct source in = {.s = c->clean.data, .len = c->clean.len, .taint = c->clean.tracked ? c->clean.taint : NULL};
    enum pl_status st = PL_OK;
    struct hit h;
    size_t done = 0, from = 0;
    while (st == PL_OK && next_added(t, &t->normalized, &in, from, done, opt, &h)) {
        if (h.begin > done) {
            pl_tok_text_clear(&c->a, false);
            st = pl_tok_text_add(&c->a, in.s + done, h.begin - done, 0);
            if (st == PL_OK) st = plain(t, c, at_start && done == 0, out);
        }
        if (st == PL_OK) st = pl_ids_add(out, h.token->id);
        done = h.end;
        from = h.match_end;
    }
    if (st == PL_OK && done < in.len) {
        pl_tok_text_clear(&c->a, false);
        st = pl_tok_text_add(&c->a, in.s + done, in.len - done, 0);
        if (st == PL_OK) st = plain(t, c, at_start && done == 0, out);
    }
    return st;
}

/* One stretch between raw added tokens. */
static enum pl_status stretch(const struct pl_tokenizer *t, struct pl_tok_ctx *c, struct source *in, size_t begin,
                              size_t end, const struct pl_encode_options *opt, struct pl_ids *out) {
    if (begin >= end) return PL_OK;
    if (t->norm_count == 0 && !t->normalized.any && t->pre_count == 0)
        return run_of_text(t, c, in->s + begin, end - begin, out);
    bool track = t->normalized.any && in->span_count > 0;
    pl_tok_text_clear(&c->a, track);
    PL_TRY(pl_tok_text_add(&c->a, in->s + begin, end - begin, 0));
    for (size_t i = 0; track && i < in->span_count; i++)
        for (size_t k = PL_MAX(in->spans[i].begin, begin); k < PL_MIN(in->spans[i].end, end); k++) c->a.taint[k - begin] = 1;
    PL_TRY(pl_tok_normalize(t, c));
    if (t->normalized.any) return normalized_pass(t, c, begin == 0, opt, out);
    return plain(t, c, begin == 0, out);
}

static enum pl_status all_text(const struct pl_tokenizer *t, struct pl_tok_ctx *c, struct source *in,
                               const struct pl_encode_options *opt, struct pl_ids *out) {
    size_t done = 0, from = 0;
    struct hit h;
    while (t->raw.any && next_added(t, &t->raw, in, from, done, opt, &h)) {
        PL_TRY(stretch(t, c, in, done, h.begin, opt, out));
        PL_TRY(pl_ids_add(out, h.token->id));
        done = h.end;
        from = h.match_end;
    }
    return stretch(t, c, in, done, in->len, opt, out);
}

/* Every byte that belongs to no valid character becomes U+FFFD; spans move along. */
static enum pl_status clean_up(struct pl_tok_text *clean, struct source *in, struct pl_tok_ctx *c) {
    PL_TRY(pl_grow(&c->spans, &c->spans_cap, in->span_count + 1, sizeof *c->spans));
    pl_tok_text_clear(clean, false);
    size_t k = 0, i = 0;
    size_t spans = 0;
    for (size_t j = 0; j < in->span_count; j++)
        if (in->spans[j].end > in->spans[j].begin) c->spans[spans++] = in->spans[j];
    in->span_count = spans;
    bool inside = false;
    while (i < in->len) {
        size_t n = pl_utf8_len(in->s + i, in->len - i), step = n == 0 ? 1 : n;
        if (k < in->span_count && inside && c->spans[k].end <= i) {
            c->spans[k++].end = clean->len;
            inside = false;
        }
        if (k < in->span_count && !inside && c->spans[k].begin < i + step) { /* a character touched is untrusted whole */
            c->spans[k].begin = clean->len;
            inside = true;
        }
        PL_TRY(n == 0 ? pl_tok_text_add(clean, "\xEF\xBF\xBD", 3, 0) : pl_tok_text_add(clean, in->s + i, n, 0));
        i += step;
    }
    if (k < in->span_count && inside) c->spans[k++].end = clean->len;
    in->s = clean->data;
    in->len = clean->len;
    in->spans = c->spans;
    in->span_count = k;
    return PL_OK;
}

static enum pl_status check_spans(const struct pl_encode_options *opt, size_t len, struct pl_err *err) {
    for (size_t i = 0; i < opt->untrusted_count; i++) {
        const struct pl_span *s = &opt->untrusted[i];
        if (s->begin > s->end || s->end > len || (i > 0 && s->begin < s[-1].end))
            PL_FAIL(err, PL_INVALID,
                    "untrusted span %zu is [%zu, %zu) in a text of %zu bytes: expected sorted, disjoint spans", i, s->begin,
                    s->end, len);
    }
    return PL_OK;
}

static enum pl_status encode(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *text, size_t len,
                             const struct pl_encode_options *opt, struct pl_ids *out) {
    struct source in = {.s = text, .len = len, .spans = opt->untrusted, .span_count = opt->untrusted_count};
    struct pl_tok_text clean = {0};
    enum pl_status st = PL_OK;
    for (size_t i = 0; opt->add_special && i < t->prefix.len && st == PL_OK; i++) st = pl_ids_add(out, t->prefix.data[i]);
    if (st == PL_OK && !t->raw_bytes && !pl_utf8_valid(text, len)) st = clean_up(&clean, &in, c);
    if (st == PL_OK) st = all_text(t, c, &in, opt, out);
    for (size_t i = 0; opt->add_special && i < t->suffix.len && st == PL_OK; i++) st = pl_ids_add(out, t->suffix.data[i]);
    pl_free(clean.data);
    return st;
}

enum pl_status pl_tokenizer_encode(const struct pl_tokenizer *t, const char *text, size_t len,
                                   const struct pl_encode_options *opt, struct pl_ids *out, struct pl_err *err) {
    PL_TRY(check_spans(opt, len, err));
    if (len >= UINT32_MAX / 2)
        PL_FAIL(err, PL_LIMIT, "text of %zu bytes: at most %u can be tokenized at once", len, UINT32_MAX / 2);
    struct pl_tok_ctx *c = ctx_take(t);
    struct pl_err own = {0};
    size_t before = out->len;
    enum pl_status st = PL_NO_MEMORY;
    if (c != NULL) {
        c->err = err != NULL ? err : &own;
        st = encode(t, c, text, len, opt, out);
        if (st == PL_OK && c->tmp.failed) st = PL_NO_MEMORY;
        c->err = NULL;
        ctx_give(t, c);
    }
    if (st == PL_OK) return PL_OK;
    out->len = before;
    if (err != NULL && err->status == PL_OK) PL_FAIL(err, st, "while tokenizing %zu bytes: %s", len, pl_status_text(st));
    return st;
}
