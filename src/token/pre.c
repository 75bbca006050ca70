/* Pre-tokenizers: from ranges of the working text to smaller ranges. Steps that change the text (the marker of
 * Metaspace, the printable form of ByteLevel, a prefix space) write a new one. */
#include <string.h>

#include "base/mem.h"
#include "token/internal.h"
#include "token/unicode.h"

static enum pl_status push(struct pl_words *w, size_t begin, size_t end) {
    if (w->len == w->cap) PL_TRY(pl_grow(&w->at, &w->cap, w->len + 1, sizeof *w->at));
    w->at[w->len++] = (struct pl_word){begin, end};
    return PL_OK;
}

/* Where the pieces of one word go, with the behaviour of the split applied on the way. */
struct sink {
    struct pl_words *out;
    enum pl_split_behavior behavior;
    bool invert, last_match, any;
    size_t floor;        /* words of earlier inputs may not be extended */
    struct pl_word held; /* SPLIT_NEXT: a match that waits for what follows */
    bool holding;
};

static enum pl_status piece(struct sink *k, size_t begin, size_t end, bool match) {
    match ^= k->invert;
    bool before = k->any && k->last_match;
    enum pl_status st = PL_OK;
    struct pl_word *last = k->out->len > k->floor ? &k->out->at[k->out->len - 1] : NULL;
    switch (k->behavior) {
    case PL_SPLIT_ISOLATED:
        if (end > begin) st = push(k->out, begin, end);
        break;
    case PL_SPLIT_REMOVED:
        if (!match && end > begin) st = push(k->out, begin, end);
        break;
    case PL_SPLIT_CONTIGUOUS:
        if (k->any && last != NULL && match == k->last_match)
            last->end = end;
        else if (end > begin || match)
            st = push(k->out, begin, end);
        break;
    case PL_SPLIT_PREVIOUS:
        if (match && !before && last != NULL)
            last->end = end;
        else
            st = push(k->out, begin, end);
        break;
    case PL_SPLIT_NEXT:
        if (k->holding && (match || end == begin)) {
            st = push(k->out, k->held.begin, k->held.end);
            k->holding = false;
        }
        if (match) {
            k->held = (struct pl_word){begin, end};
            k->holding = true;
        } else if (st == PL_OK) {
            st = push(k->out, k->holding ? k->held.begin : begin, end);
            k->holding = false;
        }
        break;
    }
    k->last_match = match;
    k->any = true;
    return st;
}

static enum pl_status finish(struct sink *k) {
    if (k->holding) PL_TRY(push(k->out, k->held.begin, k->held.end));
    size_t n = k->floor; /* empty pieces vanish */
    for (size_t i = k->floor; i < k->out->len; i++)
        if (k->out->at[i].end > k->out->at[i].begin) k->out->at[n++] = k->out->at[i];
    k->out->len = n;
    return PL_OK;
}

static bool class_has(const struct pl_splitter *sp, uint32_t cp) {
    switch (sp->cls) {
    case PL_CLASS_SPACE: return (pl_uc_flags(cp) & PL_UC_SPACE) != 0;
    case PL_CLASS_NUMBER: return (pl_uc_flags(cp) & PL_UC_NUMBER) != 0;
    case PL_CLASS_PUNCT: return pl_uc_is_bert_punct(cp);
    case PL_CLASS_CHAR: return cp == sp->ch;
    case PL_CLASS_WORD_RUNS: break;
    }
    return false;
}

/* \w+|[^\w\s]+ */
static size_t word_run(const char *s, size_t len, size_t i) {
    uint32_t cp;
    size_t n = pl_uc_next(s + i, &cp);
    unsigned kind = pl_uc_flags(cp) & (PL_UC_WORD | PL_UC_SPACE);
    for (i += n; i < len; i += n) {
        n = pl_uc_next(s + i, &cp);
        unsigned f = pl_uc_flags(cp) & (PL_UC_WORD | PL_UC_SPACE);
        if ((kind & PL_UC_WORD) != (f & PL_UC_WORD) || (!(kind & PL_UC_WORD) && f != 0)) break;
    }
    return i;
}

static bool next_in_class(const struct pl_splitter *sp, const char *s, size_t len, size_t *begin, size_t *end) {
    for (size_t i = *begin, n; i < len; i += n) {
        uint32_t cp;
        n = pl_uc_next(s + i, &cp);
        bool hit = sp->cls == PL_CLASS_WORD_RUNS ? !(pl_uc_flags(cp) & PL_UC_SPACE) : class_has(sp, cp);
        if (!hit) continue;
        *begin = i;
        *end = sp->cls == PL_CLASS_WORD_RUNS ? word_run(s, len, i) : i + n;
        return true;
    }
    return false;
}

/* Next match at or after *begin. PL_NOT_FOUND: none. */
static enum pl_status next_match(const struct pl_splitter *sp, struct pl_tok_ctx *c, const char *s, size_t len,
                                 size_t *begin, size_t *end) {
    const char *hit;
    switch (sp->kind) {
    case PL_MATCH_SCAN: return pl_scan_next(sp->scan, sp->ascii_fold, s, len, begin, end) ? PL_OK : PL_NOT_FOUND;
    case PL_MATCH_CLASS: return next_in_class(sp, s, len, begin, end) ? PL_OK : PL_NOT_FOUND;
    case PL_MATCH_LITERAL:
        hit =
            *begin < len && sp->literal.len > 0 ? memmem(s + *begin, len - *begin, sp->literal.data, sp->literal.len) : NULL;
        if (hit == NULL) return PL_NOT_FOUND;
        *begin = (size_t)(hit - s);
        *end = *begin + sp->literal.len;
        return PL_OK;
    case PL_MATCH_REGEX: return pl_regex_find(sp->re, &c->regex, s, len, *begin, begin, end, c->err);
    }
    return PL_INTERNAL;
}

static enum pl_status split_word(const struct pl_splitter *sp, struct pl_tok_ctx *c, struct pl_word w) {
    const char *s = c->a.data + w.begin;
    size_t len = w.end - w.begin, i = 0, done = 0;
    struct sink k = {.out = &c->spare, .behavior = sp->behavior, .invert = sp->invert, .floor = c->spare.len};
    while (i <= len) {
        size_t b = i, e = i;
        enum pl_status st = next_match(sp, c, s, len, &b, &e);
        if (st == PL_NOT_FOUND) break;
        PL_TRY(st);
        if (b > done) PL_TRY(piece(&k, w.begin + done, w.begin + b, false));
        PL_TRY(piece(&k, w.begin + b, w.begin + e, true));
        done = e;
        i = e > b ? e : e < len ? e + pl_uc_lead_len((unsigned char)s[e], len - e) : len + 1;
    }
    if (done < len) PL_TRY(piece(&k, w.begin + done, w.end, false));
    return finish(&k);
}

static void swap_words(struct pl_tok_ctx *c) {
    struct pl_words t = c->words;
    c->words = c->spare;
    c->spare = t;
    c->spare.len = 0;
}

static enum pl_status split_all(const struct pl_splitter *sp, struct pl_tok_ctx *c) {
    c->spare.len = 0;
    for (size_t i = 0; i < c->words.len; i++) PL_TRY(split_word(sp, c, c->words.at[i]));
    swap_words(c);
    return PL_OK;
}

/* Rewrites every word into c->b; words follow each other without gaps. */
static enum pl_status rewrite(const struct pl_tok_pre *p, struct pl_tok_ctx *c, bool at_start) {
    pl_tok_text_clear(&c->b, false);
    for (size_t i = 0; i < c->words.len; i++) {
        struct pl_word *w = &c->words.at[i];
        const char *s = c->a.data + w->begin;
        size_t len = w->end - w->begin, begin = c->b.len;
        if (p->kind == PL_PRE_PREFIX_SPACE) {
            if (s[0] != ' ') PL_TRY(pl_tok_text_add(&c->b, " ", 1, 0));
            PL_TRY(pl_tok_text_add(&c->b, s, len, 0));
        } else if (p->kind == PL_PRE_BYTE_MAP) {
            for (size_t k = 0; k < len; k++) {
                char u[4];
                size_t n = pl_uc_encode(pl_uc_byte_to_cp((unsigned char)s[k]), u);
                PL_TRY(pl_tok_text_add(&c->b, u, n, 0));
            }
        } else {
            struct pl_str r = p->replacement;
            bool marked = s[0] == ' ' || (len >= r.len && memcmp(s, r.data, r.len) == 0);
            bool wanted = p->scheme == PL_META_ALWAYS || (p->scheme == PL_META_FIRST && at_start && w->begin == 0);
            if (wanted && !marked) PL_TRY(pl_tok_text_add(&c->b, r.data, r.len, 0));
            for (size_t k = 0; k < len;) {
                const char *sp = memchr(s + k, ' ', len - k);
                size_t n = sp == NULL ? len - k : (size_t)(sp - (s + k));
                PL_TRY(pl_tok_text_add(&c->b, s + k, n, 0));
                if (sp != NULL) PL_TRY(pl_tok_text_add(&c->b, r.data, r.len, 0));
                k += n + (sp != NULL);
            }
        }
        *w = (struct pl_word){begin, c->b.len};
    }
    struct pl_tok_text t = c->a;
    c->a = c->b;
    c->b = t;
    return PL_OK;
}

static enum pl_status fixed(const struct pl_tok_pre *p, struct pl_tok_ctx *c) {
    c->spare.len = 0;
    for (size_t i = 0; i < c->words.len; i++) {
        struct pl_word w = c->words.at[i];
        for (size_t b = w.begin, e = b; b < w.end; b = e) {
            for (size_t n = 0; n < p->length && e < w.end; n++) e += pl_uc_lead_len((unsigned char)c->a.data[e], w.end - e);
            PL_TRY(push(&c->spare, b, e));
        }
    }
    swap_words(c);
    return PL_OK;
}

enum pl_status pl_tok_pretokenize(const struct pl_tokenizer *t, struct pl_tok_ctx *c, bool at_start) {
    c->words.len = 0;
    if (c->a.len == 0) return PL_OK;
    PL_TRY(push(&c->words, 0, c->a.len));
    for (size_t i = 0; i < t->pre_count && c->words.len > 0; i++) {
        const struct pl_tok_pre *p = &t->pres[i];
        switch (p->kind) {
        case PL_PRE_SPLIT: PL_TRY(split_all(&p->split, c)); break;
        case PL_PRE_FIXED: PL_TRY(fixed(p, c)); break;
        case PL_PRE_PREFIX_SPACE:
        case PL_PRE_BYTE_MAP: PL_TRY(rewrite(p, c, at_start)); break;
        case PL_PRE_METASPACE:
            PL_TRY(rewrite(p, c, at_start));
            if (p->do_split) PL_TRY(split_all(&p->split, c));
            break;
        }
    }
    return PL_OK;
}
