/* From ids to text. A token's bytes are worked out once, at creation; streaming only adds the rules that depend on
 * what came before: the first token, a leading space, characters that are cut over several tokens. */
#include <string.h>

#include "base/mem.h"
#include "token/internal.h"
#include "token/unicode.h"

static struct pl_str after(struct pl_str s, size_t n) { return (struct pl_str){s.data + n, s.len - n}; }

static void replace_all(struct pl_buf *out, struct pl_str s, struct pl_str what, struct pl_str by) {
    while (s.len > 0) {
        const char *hit = what.len == 0 ? NULL : memmem(s.data, s.len, what.data, what.len);
        size_t n = hit == NULL ? s.len : (size_t)(hit - s.data);
        pl_buf_add(out, s.data, n);
        s = after(s, n);
        if (hit == NULL) break;
        pl_buf_add(out, by.data, by.len);
        s = after(s, what.len);
    }
}

/* All characters map to bytes: those; else the text as it stands. */
static void byte_level(struct pl_buf *out, struct pl_str s) {
    size_t before = out->len;
    for (size_t i = 0; i < s.len;) {
        size_t n = pl_utf8_len(s.data + i, s.len - i);
        int b = n == 0 ? -1 : pl_uc_cp_to_byte(pl_utf8_decode(s.data + i, n));
        if (b < 0) {
            if (out->data != NULL) out->len = before;
            pl_buf_add(out, s.data, s.len);
            return;
        }
        pl_buf_add_char(out, (char)b);
        i += n;
    }
}

static void strip_each(struct pl_buf *out, const struct pl_tok_dec *d, struct pl_str s) {
    size_t n = d->a.len;
    for (size_t k = 0; k < d->start && n > 0 && s.len >= n && memcmp(s.data, d->a.data, n) == 0; k++) s = after(s, n);
    for (size_t k = 0; k < d->stop && n > 0 && s.len >= n && memcmp(s.data + s.len - n, d->a.data, n) == 0; k++) s.len -= n;
    pl_buf_add(out, s.data, s.len);
}

static void tidy(struct pl_buf *out, struct pl_buf *tmp) {
    static const char *const rules[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                           {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                           {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < PL_COUNT_OF(rules); i++) {
        pl_buf_clear(tmp);
        replace_all(tmp, (struct pl_str){pl_buf_cstr(out), out->len}, pl_str_from(rules[i][0]), pl_str_from(rules[i][1]));
        struct pl_buf swap = *out;
        *out = *tmp;
        *tmp = swap;
    }
}

static void word_piece(struct pl_buf *out, const struct pl_tok_dec *d, struct pl_str s, bool first, struct pl_buf *tmp) {
    bool joined = s.len >= d->a.len && memcmp(s.data, d->a.data, d->a.len) == 0;
    if (!first && joined)
        s = after(s, d->a.len);
    else if (!first)
        pl_buf_add_char(out, ' ');
    pl_buf_add(out, s.data, s.len);
    if (d->flag) tidy(out, tmp);
}

static enum pl_status replace_regex(struct pl_buf *out, const struct pl_tok_dec *d, struct pl_str s) {
    struct pl_regex_scratch scratch = {0};
    size_t i = 0, done = 0, b, e;
    enum pl_status st = PL_OK;
    while (i <= s.len && (st = pl_regex_find(d->re, &scratch, s.data, s.len, i, &b, &e, NULL)) == PL_OK) {
        pl_buf_add(out, s.data + done, b - done);
        pl_buf_add(out, d->b.data, d->b.len);
        done = e;
        i = e > b ? e : e < s.len ? e + pl_uc_lead_len((unsigned char)s.data[e], s.len - e) : s.len + 1;
    }
    pl_buf_add(out, s.data + done, s.len - done);
    pl_regex_scratch_deinit(&scratch);
    return st == PL_NOT_FOUND ? PL_OK : st;
}

/* Runs the decoders over one token. in and out change roles; the result is left in *a. */
static enum pl_status run_decoders(const struct pl_tokenizer *t, struct pl_buf *a, struct pl_buf *b, struct pl_buf *tmp,
                                   bool first) {
    for (size_t i = 0; i < t->dec_count; i++) {
        const struct pl_tok_dec *d = &t->decs[i];
        struct pl_str s = {pl_buf_cstr(a), a->len};
        pl_buf_clear(b);
        switch (d->kind) {
        case PL_DEC_BYTE_LEVEL: byte_level(b, s); break;
        case PL_DEC_BYTE_FALLBACK: continue; /* known from the token's attribute */
        case PL_DEC_METASPACE: replace_all(b, s, d->a, first && d->flag ? PL_STR("") : PL_STR(" ")); break;
        case PL_DEC_REPLACE: replace_all(b, s, d->a, d->b); break;
        case PL_DEC_REPLACE_REGEX: PL_TRY(replace_regex(b, d, s)); break;
        case PL_DEC_STRIP: strip_each(b, d, s); break;
        case PL_DEC_WORDPIECE: word_piece(b, d, s, first, tmp); break;
        case PL_DEC_BPE: replace_all(b, s, d->a, PL_STR("")); break; /* the space is owed */
        }
        struct pl_buf swap = *a;
        *a = *b;
        *b = swap;
    }
    return a->failed || b->failed || tmp->failed ? PL_NO_MEMORY : PL_OK;
}

static bool first_matters(const struct pl_tokenizer *t) {
    for (size_t i = 0; i < t->dec_count; i++)
        if (t->decs[i].kind == PL_DEC_WORDPIECE || (t->decs[i].kind == PL_DEC_METASPACE && t->decs[i].flag)) return true;
    return false;
}

enum pl_status pl_tok_make_pieces(struct pl_tokenizer *t, struct pl_err *err) {
    struct pl_buf a = {0}, b = {0}, tmp = {0};
    enum pl_status st = PL_OK;
    bool fallback = false;
    for (size_t i = 0; i < t->dec_count; i++) fallback |= t->decs[i].kind == PL_DEC_BYTE_FALLBACK;
    t->piece = pl_calloc(t->real_count, sizeof *t->piece);
    if (t->piece == NULL) return PL_NO_MEMORY;
    for (size_t i = 0; i < t->added_count; i++) /* decoded as they are looked for */
        if (t->added[i].normalized) t->piece[t->added[i].id] = t->added[i].text;
    for (uint32_t id = 0; id < t->real_count && st == PL_OK; id++) {
        struct pl_str s = t->piece[id].data != NULL ? t->piece[id] : t->vocab.text[id];
        int byte = fallback ? pl_tok_byte_token(s) : -1;
        if (byte >= 0) t->attr[id] |= PL_ATTR_BYTE;
        pl_buf_clear(&a);
        if (byte >= 0)
            pl_buf_add_char(&a, (char)byte);
        else
            pl_buf_add(&a, s.data == NULL ? "" : s.data, s.len);
        bool literal = t->literal_added && (t->attr[id] & (PL_ATTR_ADDED | PL_ATTR_SPECIAL)) != 0;
        if (byte < 0 && !literal) st = run_decoders(t, &a, &b, &tmp, false);
        if (st == PL_OK && (a.failed || !pl_tok_keep(t, (struct pl_str){pl_buf_cstr(&a), a.len}, &t->piece[id])))
            st = PL_NO_MEMORY;
    }
    pl_buf_deinit(&a);
    pl_buf_deinit(&b);
    pl_buf_deinit(&tmp);
    t->first_matters = first_matters(t);
    (void)err;
    return st;
}

void pl_decoder_init(struct pl_decoder *d, const struct pl_tokenizer *t, bool show_special) {
    *d = (struct pl_decoder){.tok = t, .show_special = show_special};
}

/* How many of the n bytes at s begin a character: *need is its length; 0: s[0] begins none. */
static size_t good_prefix(const uint8_t *s, size_t n, size_t *need) {
    uint8_t c = s[0], lo = 0x80, hi = 0xBF;
    *need = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
    if (*need == 0) return 0;
    if (c == 0xE0) lo = 0xA0;
    if (c == 0xED) hi = 0x9F;
    if (c == 0xF0) lo = 0x90;
    if (c == 0xF4) hi = 0x8F;
    size_t k = 1;
    while (k < n && k < *need && s[k] >= lo && s[k] <= hi) {
        k++;
        lo = 0x80;
        hi = 0xBF;
    }
    return k;
}

static void put_char(struct pl_decoder *d, struct pl_buf *out, const void *s, size_t n) {
    if (d->lead_left > 0) {
        struct pl_str lead = d->tok->lead_strip;
        if (n == lead.len && memcmp(s, lead.data, n) == 0) {
            d->lead_left--;
            return;
        }
        d->lead_left = 0;
    }
    pl_buf_add(out, s, n);
}

/* Invalid bytes: one U+FFFD per piece of a character, or per byte where bytes are tokens. */
static void put_invalid(struct pl_decoder *d, struct pl_buf *out, size_t bytes) {
    for (size_t k = d->tok->per_byte_errors ? bytes : 1; k > 0; k--) put_char(d, out, "\xEF\xBF\xBD", 3);
}

static void put_bytes(struct pl_decoder *d, struct pl_buf *out, const uint8_t *s, size_t n) {
    for (size_t i = 0; i < n; i++) { /* finish the character that waits */
        if (d->pending_len == 0) {
            size_t need, k = good_prefix(s + i, n - i, &need);
            if (k > 0 && k == need) {
                if (need == 1 && d->lead_left == 0) { /* ASCII runs are the common case */
                    size_t e = i + 1;
                    while (e < n && s[e] < 0x80) e++;
                    pl_buf_add(out, s + i, e - i);
                    i = e - 1;
                    continue;
                }
                put_char(d, out, s + i, k);
                i += k - 1;
                continue;
            }
            if (k == 0) {
                put_invalid(d, out, 1);
                continue;
            }
        }
        d->pending[d->pending_len++] = s[i];
        size_t need, k = good_prefix(d->pending, d->pending_len, &need);
        if (k < d->pending_len) { /* this byte does not belong to it */
            put_invalid(d, out, (size_t)d->pending_len - 1);
            d->pending_len = 0;
            i--;
        } else if (k == need) {
            put_char(d, out, d->pending, k);
            d->pending_len = 0;
        }
    }
}

static enum pl_status first_piece(struct pl_decoder *d, uint32_t id, struct pl_buf *out) {
    const struct pl_tokenizer *t = d->tok;
    struct pl_buf a = {0}, b = {0}, tmp = {0};
    pl_buf_add(&a, t->vocab.text[id].data, t->vocab.text[id].len);
    enum pl_status st = run_decoders(t, &a, &b, &tmp, true);
    if (st == PL_OK) put_bytes(d, out, (const uint8_t *)pl_buf_cstr(&a), a.len);
    pl_buf_deinit(&a);
    pl_buf_deinit(&b);
    pl_buf_deinit(&tmp);
    return st;
}

enum pl_status pl_decoder_push(struct pl_decoder *d, uint32_t id, struct pl_buf *out) {
    const struct pl_tokenizer *t = d->tok;
    if (id >= t->real_count || t->vocab.text[id].data == NULL) return PL_OK; /* ids past the vocabulary spell nothing */
    if (!d->show_special && (t->attr[id] & PL_ATTR_SPECIAL)) return PL_OK;
    bool first = !d->started;
    if (first) {
        d->started = true;
        d->lead_left = t->lead_strip_max;
    } else if (t->join_spaces) {
        put_bytes(d, out, (const uint8_t *)" ", 1);
    }
    if (d->owed_space) {
        put_bytes(d, out, (const uint8_t *)" ", 1);
        d->owed_space = false;
    }
    for (size_t i = 0; i < t->dec_count; i++)
        if (t->decs[i].kind == PL_DEC_BPE && t->decs[i].a.len > 0)
            d->owed_space =
                memmem(t->vocab.text[id].data, t->vocab.text[id].len, t->decs[i].a.data, t->decs[i].a.len) != NULL;
    if (first && t->first_matters && !(t->attr[id] & PL_ATTR_BYTE)) {
        PL_TRY(first_piece(d, id, out));
    } else {
        put_bytes(d, out, (const uint8_t *)t->piece[id].data, t->piece[id].len);
    }
    return out->failed ? PL_NO_MEMORY : PL_OK;
}

void pl_decoder_flush(struct pl_decoder *d, struct pl_buf *out) {
    if (d->pending_len > 0) put_invalid(d, out, d->pending_len);
    d->pending_len = 0;
    d->owed_space = false;
}

enum pl_status pl_tokenizer_decode(const struct pl_tokenizer *t, const uint32_t *ids, size_t count, bool show_special,
                                   struct pl_buf *out) {
    struct pl_decoder d;
    pl_decoder_init(&d, t, show_special);
    for (size_t i = 0; i < count; i++) PL_TRY(pl_decoder_push(&d, ids[i], out));
    pl_decoder_flush(&d, out);
    return out->failed ? PL_NO_MEMORY : PL_OK;
}
