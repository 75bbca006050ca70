/* Models of tokenizer.json: vocabulary, merges, scores. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "token/json_util.h"

/* Room for ids up to the highest that is named; an id far beyond the number of entries is refused. */
static enum pl_status room(const struct pl_json_ctx *x, size_t entries, json_int_t top) {
    if (entries > PL_TOK_MAX_IDS)
        PL_FAIL(x->err, PL_LIMIT, "tokenizer.json: %zu tokens: at most %u are taken", entries, PL_TOK_MAX_IDS);
    if (top >= (json_int_t)(entries * 4 + 1000000) || top >= (json_int_t)PL_TOK_MAX_IDS)
        PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: token id %lld among %zu tokens: expected ids near that number",
                (long long)top, entries);
    return pl_tok_vocab_reserve(&x->t->vocab, PL_MAX(entries, (size_t)(top + 1)));
}

static enum pl_status put(const struct pl_json_ctx *x, json_int_t id, struct pl_str text, bool replace) {
    struct pl_tok_vocab *v = &x->t->vocab;
    uint32_t old;
    if (text.len > 65536)
        PL_FAIL(x->err, PL_LIMIT, "tokenizer.json: token %lld has %zu bytes: at most 65536", (long long)id, text.len);
    if ((uint32_t)id < v->count && v->text[id].data != NULL) {
        if (pl_str_eq(v->text[id], text)) return PL_OK;
        PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: id %lld belongs to '%.*s' and to '%.*s'", (long long)id,
                (int)PL_MIN(v->text[id].len, (size_t)60), v->text[id].data, (int)PL_MIN(text.len, (size_t)60), text.data);
    }
    return pl_tok_vocab_add(v, (uint32_t)id, text, replace, &old);
}

static json_int_t top_of(const json_t *added, size_t *entries) {
    json_int_t top = -1;
    for (size_t i = 0; i < json_array_size(added); i++) {
        json_int_t id = json_integer_value(json_object_get(json_array_get(added, i), "id"));
        top = PL_MAX(top, id);
        ++*entries;
    }
    return top;
}

static enum pl_status vocab_object(const struct pl_json_ctx *x, const json_t *vocab, const json_t *added) {
    if (!json_is_object(vocab)) PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: model: 'vocab' is missing or no object");
    size_t entries = json_object_size(vocab);
    json_int_t top = top_of(added, &entries);
    json_t *o = (json_t *)(uintptr_t)vocab; /* jansson's iterators want it writable */
    for (void *it = json_object_iter(o); it != NULL; it = json_object_iter_next(o, it)) {
        const json_t *id = json_object_iter_value(it);
        if (!json_is_integer(id) || json_integer_value(id) < 0)
            PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: model: vocab['%s'] is no token id", json_object_iter_key(it));
        top = PL_MAX(top, json_integer_value(id));
    }
    PL_TRY(room(x, entries, top));
    for (void *it = json_object_iter(o); it != NULL; it = json_object_iter_next(o, it)) {
        struct pl_str text = {json_object_iter_key(it), json_object_iter_key_len(it)};
        PL_TRY(put(x, json_integer_value(json_object_iter_value(it)), text, false));
    }
    return PL_OK;
}

/* One merge: "a b" or ["a", "b"]. */
static bool merge_parts(const json_t *m, struct pl_str *l, struct pl_str *r) {
    if (json_is_array(m) && json_array_size(m) == 2 && json_is_string(json_array_get(m, 0)) &&
        json_is_string(json_array_get(m, 1))) {
        *l = pl_tj_value(json_array_get(m, 0));
        *r = pl_tj_value(json_array_get(m, 1));
        return l->len > 0 && r->len > 0;
    }
    if (!json_is_string(m)) return false;
    struct pl_str s = pl_tj_value(m);
    const char *gap = memchr(s.data, ' ', s.len);
    if (gap == NULL || gap == s.data || gap + 1 == s.data + s.len) return false;
    *l = (struct pl_str){s.data, (size_t)(gap - s.data)};
    *r = (struct pl_str){gap + 1, s.len - l->len - 1};
    return true;
}

static enum pl_status one_merge(const struct pl_json_ctx *x, const json_t *m, size_t i, struct pl_buf *both) {
    struct pl_tokenizer *t = x->t;
    struct pl_str l, r;
    if (!merge_parts(m, &l, &r))
        PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: model: merges[%zu]: expected two tokens, \"a b\" or [\"a\", \"b\"]", i);
    size_t skip = t->model.prefix.len <= r.len ? t->model.prefix.len : 0;
    pl_buf_clear(both);
    pl_buf_add(both, l.data, l.len);
    pl_buf_add(both, r.data + skip, r.len - skip);
    if (both->failed) return PL_NO_MEMORY;
    uint32_t a = pl_tok_vocab_find(&t->vocab, l.data, l.len), b = pl_tok_vocab_find(&t->vocab, r.data, r.len),
             c = pl_tok_vocab_find(&t->vocab, both->data, both->len);
    if (a == PL_TOK_NONE || b == PL_TOK_NONE || c == PL_TOK_NONE)
        PL_FAIL(x->err, PL_FORMAT,
                "tokenizer.json: model: merges[%zu] ('%.*s' + '%.*s') names or makes a token that is not in the vocabulary",
                i, (int)PL_MIN(l.len, (size_t)60), l.data, (int)PL_MIN(r.len, (size_t)60), r.data);
    pl_tok_merge_put(&t->model, a, b, (uint32_t)i, c, true);
    return PL_OK;
}

static enum pl_status unk_token(const struct pl_json_ctx *x, const json_t *o, bool required) {
    struct pl_str unk;
    PL_TRY(pl_tj_str(x, o, "unk_token", required ? NULL : "", &unk));
    if (unk.len == 0) return PL_OK;
    x->t->model.unk = pl_tok_vocab_find(&x->t->vocab, unk.data, unk.len);
    if (x->t->model.unk == PL_TOK_NONE)
        PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: model: unk_token '%.*s' is not in the vocabulary",
                (int)PL_MIN(unk.len, (size_t)60), unk.data);
    return PL_OK;
}

static enum pl_status keep_str(const struct pl_json_ctx *x, const json_t *o, const char *key, const char *dflt,
                               struct pl_str *out) {
    struct pl_str s;
    PL_TRY(pl_tj_str(x, o, key, dflt, &s));
    return pl_tok_keep(x->t, s, out) ? PL_OK : PL_NO_MEMORY;
}

static enum pl_status bpe(struct pl_json_ctx *x, const json_t *o, const json_t *added) {
    struct pl_tok_model *m = &x->t->model;
    const json_t *merges = json_object_get(o, "merges"), *dropout = json_object_get(o, "dropout");
    m->kind = PL_MODEL_BPE;
    if (json_is_number(dropout) && json_number_value(dropout) > 0)
        PL_FAIL(x->err, PL_UNSUPPORTED, "tokenizer.json: model: dropout %g makes ids random: set it to null",
                json_number_value(dropout));
    PL_TRY(pl_tj_bool(x, o, "fuse_unk", false, &m->fuse_unk));
    PL_TRY(pl_tj_bool(x, o, "byte_fallback", false, &m->byte_fallback));
    PL_TRY(pl_tj_bool(x, o, "ignore_merges", false, &m->ignore_merges));
    PL_TRY(keep_str(x, o, "continuing_subword_prefix", "", &m->prefix));
    PL_TRY(keep_str(x, o, "end_of_word_suffix", "", &m->suffix));
    PL_TRY(vocab_object(x, json_object_get(o, "vocab"), added));
    PL_TRY(unk_token(x, o, false));
    if (!json_is_array(merges)) PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: model: 'merges' is missing or no array");
    size_t n = json_array_size(merges);
    PL_TRY(pl_tok_merges_reserve(m, n));
    struct pl_buf both = {0};
    enum pl_status st = PL_OK;
    for (size_t i = 0; i < n && st == PL_OK; i++) st = one_merge(x, json_array_get(merges, i), i, &both);
    pl_buf_deinit(&both);
    return st;
}

static enum pl_status unigram(struct pl_json_ctx *x, const json_t *o, const json_t *added) {
    struct pl_tok_model *m = &x->t->model;
    const json_t *vocab = json_object_get(o, "vocab"), *unk = json_object_get(o, "unk_id");
    size_t n = json_array_size(vocab), entries = n;
    m->kind = PL_MODEL_UNIGRAM;
    if (n == 0)
        PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: model: 'vocab' is missing or empty: expected [[token, score], ...]");
    PL_TRY(pl_tj_bool(x, o, "byte_fallback", false, &m->byte_fallback));
    PL_TRY(room(x, entries, PL_MAX((json_int_t)n - 1, top_of(added, &entries))));
    m->log_prob = pl_calloc(PL_MAX(n, (size_t)1), sizeof *m->log_prob);
    if (m->log_prob == NULL) return PL_NO_MEMORY;
    double least = INFINITY;
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_array_get(vocab, i), *s = json_array_get(e, 0), *p = json_array_get(e, 1);
        if (!json_is_string(s) || !json_is_number(p))
            PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: model: vocab[%zu]: expected [token, score]", i);
        m->log_prob[i] = json_number_value(p);
        least = PL_MIN(least, m->log_prob[i]);
        PL_TRY(put(x, (json_int_t)i, pl_tj_value(s), true));
    }
    m->unk_score = least - 10.0;
    if (json_is_integer(unk)) {
        if (json_integer_value(unk) < 0 || json_integer_value(unk) >= (json_int_t)n)
            PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: model: unk_id %lld in a vocabulary of %zu",
                    (long long)json_integer_value(unk), n);
        m->unk = (uint32_t)json_integer_value(unk);
    }
    return PL_OK;
}

static enum pl_status words(struct pl_json_ctx *x, const json_t *o, const json_t *added, bool pieces) {
    struct pl_tok_model *m = &x->t->model;
    m->kind = pieces ? PL_MODEL_WORDPIECE : PL_MODEL_WORDLEVEL;
    PL_TRY(vocab_object(x, json_object_get(o, "vocab"), added));
    PL_TRY(unk_token(x, o, pieces));
    if (!pieces) return PL_OK;
    PL_TRY(pl_tj_size(x, o, "max_input_chars_per_word", 100, SIZE_MAX / 2, &m->max_chars));
    return keep_str(x, o, "continuing_subword_prefix", "##", &m->prefix);
}

enum pl_status pl_tj_model(struct pl_json_ctx *x, const json_t *o, const json_t *added) {
    struct pl_str type;
    if (!json_is_object(o)) PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: 'model' is missing");
    const char *guess = json_object_get(o, "merges") != NULL         ? "BPE"
                        : json_is_array(json_object_get(o, "vocab")) ? "Unigram"
                                                                     : "WordPiece";
    PL_TRY(pl_tj_str(x, o, "type", guess, &type)); /* old files leave it out; the members tell */
    if (pl_str_eq_c(type, "BPE")) return bpe(x, o, added);
    if (pl_str_eq_c(type, "Unigram")) return unigram(x, o, added);
    if (pl_str_eq_c(type, "WordPiece")) return words(x, o, added, true);
    if (pl_str_eq_c(type, "WordLevel")) return words(x, o, added, false);
    return pl_tj_unknown(x, type, "BPE, Unigram, WordPiece, WordLevel");
}
