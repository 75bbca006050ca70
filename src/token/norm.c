/* Normalizers: each reads c->a and writes c->b, then the two change places. Taint travels with the bytes: a byte made
 * from several others is untrusted when any of them was. */
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "token/internal.h"
#include "token/unicode.h"

static unsigned taint_of(const struct pl_tok_text *t, size_t begin, size_t end) {
    if (!t->tracked) return 0;
    for (size_t i = begin; i < end; i++)
        if (t->taint[i]) return 1;
    return 0;
}

static enum pl_status add_cp(struct pl_tok_text *out, uint32_t cp, unsigned taint) {
    char s[4];
    size_t n = pl_uc_encode(cp, s);
    return pl_tok_text_add(out, s, n, taint);
}

static enum pl_status copy(const struct pl_tok_text *in, struct pl_tok_text *out, size_t begin, size_t end) {
    if (!in->tracked) return pl_tok_text_add(out, in->data + begin, end - begin, 0);
    for (size_t i = begin; i < end; i++) PL_TRY(pl_tok_text_add(out, in->data + i, 1, in->taint[i]));
    return PL_OK;
}

/* The end of the stretch from i that is normalized as one: up to ASCII or to a character that stays what it is. */
static size_t stretch_end(const struct pl_tok_text *in, size_t i) {
    uint32_t cp;
    if ((unsigned char)in->data[i] < 0x80) i++;
    while (i < in->len && (unsigned char)in->data[i] >= 0x80) {
        size_t n = pl_uc_next(in->data + i, &cp);
        if (cp >= 0x700 && pl_uc_is_unnormalized(cp)) break;
        i += n;
    }
    return i;
}

/* NFC and its kin work on stretches that begin with ASCII: ASCII never composes with what stands before it. */
static enum pl_status unicode_form(const struct pl_tok_text *in, struct pl_tok_text *out, utf8proc_option_t opt) {
    for (size_t i = 0; i < in->len;) {
        size_t e = i + 1;
        while (e < in->len && (unsigned char)in->data[e] < 0x80) e++; /* ASCII stays itself ... */
        bool plain = (unsigned char)in->data[i] < 0x80;
        if (plain && e < in->len) e--; /* ... but its last may compose with what follows */
        if (plain && e > i) {
            if (in->tracked) {
                for (size_t k = i; k < e; k++) PL_TRY(pl_tok_text_add(out, in->data + k, 1, in->taint[k]));
            } else {
                PL_TRY(pl_tok_text_add(out, in->data + i, e - i, 0));
            }
            i = e;
            continue;
        }
        e = stretch_end(in, i);
        if (e == i) { /* as it is */
            e += pl_uc_lead_len((unsigned char)in->data[i], in->len - i);
            PL_TRY(copy(in, out, i, e));
            i = e;
            continue;
        }
        utf8proc_int32_t *cps = NULL;
        size_t cap = 0;
        utf8proc_ssize_t n = (utf8proc_ssize_t)(e - i);
        do { /* the first call may say how much room it needs */
            enum pl_status grown = pl_grow(&cps, &cap, (size_t)n + 1, sizeof *cps);
            if (grown != PL_OK) {
                pl_free(cps);
                return grown;
            }
            n = utf8proc_decompose((const utf8proc_uint8_t *)in->data + i, (utf8proc_ssize_t)(e - i), cps,
                                   (utf8proc_ssize_t)cap, opt);
        } while (n > (utf8proc_ssize_t)cap);
        if (n > 0 && (opt & UTF8PROC_COMPOSE)) n = utf8proc_normalize_utf32(cps, n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        unsigned taint = taint_of(in, i, e);
        enum pl_status st = n < 0 ? PL_INTERNAL : PL_OK;
        for (utf8proc_ssize_t k = 0; k < n && st == PL_OK; k++) st = add_cp(out, (uint32_t)cps[k], taint);
        pl_free(cps);
        PL_TRY(st);
        i = e;
    }
    return PL_OK;
}

static enum pl_status lower_into(struct pl_tok_text *out, uint32_t cp, unsigned taint) {
    if (cp == 0x130) return pl_tok_text_add(out, "i\xCC\x87", 3, taint);
    return add_cp(out, pl_uc_lower(cp), taint);
}

enum char_job { JOB_LOWER, JOB_NO_MARKS, JOB_NO_NONSPACING, JOB_CLEAN, JOB_CHINESE, JOB_NMT };

static bool nmt_removed(uint32_t c) {
    return (c >= 1 && c <= 8) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
}
static bool nmt_space(uint32_t c) {
    return c == 9 || c == 10 || c == 12 || c == 13 || c == 0x1680 || (c >= 0x200B && c <= 0x200F) || c == 0x2028 ||
           c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
}

static enum pl_status one_char(struct pl_tok_text *out, enum char_job job, uint32_t cp, unsigned taint) {
    switch (job) {
    case JOB_LOWER: return lower_into(out, cp, taint);
    case JOB_NO_MARKS: return pl_uc_is_accent(cp) ? PL_OK : add_cp(out, cp, taint);
    case JOB_NO_NONSPACING: return pl_uc_is_bert_mark(cp) ? PL_OK : add_cp(out, cp, taint);
    case JOB_CLEAN:
        if (cp == 9 || cp == 10 || cp == 13) return add_cp(out, ' ', taint);
        if (cp == 0xFFFD || pl_uc_is_bert_other(cp)) return PL_OK;
        return add_cp(out, pl_uc_flags(cp) & PL_UC_SPACE ? ' ' : cp, taint);
    case JOB_CHINESE:
        if (!pl_uc_is_chinese(cp)) return add_cp(out, cp, taint);
        PL_TRY(add_cp(out, ' ', taint));
        PL_TRY(add_cp(out, cp, taint));
        return add_cp(out, ' ', taint);
    case JOB_NMT: return nmt_removed(cp) ? PL_OK : add_cp(out, nmt_space(cp) ? ' ' : cp, taint);
    }
    return PL_INTERNAL;
}

static enum pl_status each_char(const struct pl_tok_text *in, struct pl_tok_text *out, enum char_job job) {
    for (size_t i = 0; i < in->len;) {
        uint32_t cp;
        size_t n = pl_uc_next(in->data + i, &cp);
        PL_TRY(one_char(out, job, cp, taint_of(in, i, i + n)));
        i += n;
    }
    return PL_OK;
}

static enum pl_status strip(const struct pl_tok_text *in, struct pl_tok_text *out, bool left, bool right) {
    size_t b = 0, e = in->len;
    uint32_t cp;
    while (left && b < e) {
        size_t n = pl_uc_next(in->data + b, &cp);
        if (!(pl_uc_flags(cp) & PL_UC_SPACE)) break;
        b += n;
    }
    while (right && e > b) {
        size_t p = e - 1;
        while (p > b && ((unsigned char)in->data[p] & 0xC0) == 0x80) p--;
        pl_uc_next(in->data + p, &cp);
        if (!(pl_uc_flags(cp) & PL_UC_SPACE)) break;
        e = p;
    }
    return copy(in, out, b, e);
}

static enum pl_status replace_literal(const struct pl_tok_text *in, struct pl_tok_text *out, struct pl_str what,
                                      struct pl_str by) {
    size_t i = 0;
    while (what.len > 0 && i + what.len <= in->len) {
        const char *hit = memmem(in->data + i, in->len - i, what.data, what.len);
        if (hit == NULL) break;
        size_t at = (size_t)(hit - in->data);
        PL_TRY(copy(in, out, i, at));
        PL_TRY(pl_tok_text_add(out, by.data, by.len, taint_of(in, at, at + what.len)));
        i = at + what.len;
    }
    return copy(in, out, i, in->len);
}

static enum pl_status replace_regex(struct pl_tok_ctx *c, const struct pl_tok_norm *n, const struct pl_tok_text *in,
                                    struct pl_tok_text *out) {
    size_t i = 0, done = 0, b, e;
    while (i <= in->len) {
        enum pl_status st = pl_regex_find(n->re, &c->regex, in->data, in->len, i, &b, &e, c->err);
        if (st == PL_NOT_FOUND) break;
        PL_TRY(st);
        PL_TRY(copy(in, out, done, b));
        PL_TRY(pl_tok_text_add(out, n->b.data, n->b.len, taint_of(in, b, e)));
        done = e;
        i = e > b ? e : e < in->len ? e + pl_uc_lead_len((unsigned char)in->data[e], in->len - e) : in->len + 1;
    }
    return copy(in, out, done, in->len);
}

/* --- SentencePiece's precompiled character map: a double array (darts) of little-endian units --- */

static uint32_t unit(const struct pl_tok_norm *n, size_t i) {
    uint32_t v = 0;
    if (i < n->units)
        for (int k = 3; k >= 0; k--) v = v << 8 | n->trie[i * 4 + (size_t)k];
    return v;
}
static size_t unit_offset(uint32_t u) { return (size_t)(u >> 10) << ((u & 0x200u) >> 6); }

/* Longest (or, as Hugging Face takes it, shortest) prefix of key with a replacement; 0: none. */
static size_t charsmap_find(const struct pl_tok_norm *n, const char *key, size_t len, bool longest, struct pl_str *out) {
    size_t node = unit_offset(unit(n, 0)), found = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char ch = (unsigned char)key[i];
        if (ch == 0) break;
        node ^= ch;
        uint32_t u = unit(n, node);
        if ((u & 0x800000FFu) != ch) break;
        node ^= unit_offset(u);
        if ((u >> 8 & 1u) == 0) continue;
        size_t at = unit(n, node) & 0x7FFFFFFFu;
        if (at >= n->strings.len) break;
        const char *text = n->strings.data + at, *nul = memchr(text, 0, n->strings.len - at);
        *out = (struct pl_str){text, nul == NULL ? n->strings.len - at : (size_t)(nul - text)};
        found = i + 1;
        if (!longest) break;
    }
    return found;
}

static enum pl_status precompiled_longest(const struct pl_tok_norm *n, const struct pl_tok_text *in,
                                          struct pl_tok_text *out) {
    for (size_t i = 0; i < in->len;) {
        struct pl_str by = {NULL, 0};
        size_t k = charsmap_find(n, in->data + i, in->len - i, true, &by);
        if (k == 0) {
            k = pl_uc_lead_len((unsigned char)in->data[i], in->len - i);
            by = (struct pl_str){in->data + i, k};
        }
        PL_TRY(pl_tok_text_add(out, by.data, by.len, taint_of(in, i, i + k)));
        i += k;
    }
    return PL_OK;
}

static size_t grapheme_end(const struct pl_tok_text *in, size_t i) {
    uint32_t cp, next;
    utf8proc_int32_t state = 0;
    i += pl_uc_next(in->data + i, &cp);
    while (i < in->len) {
        size_t k = pl_uc_next(in->data + i, &next);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)cp, (utf8proc_int32_t)next, &state)) break;
        cp = next;
        i += k;
    }
    return i;
}

static enum pl_status precompiled_grapheme(const struct pl_tok_norm *n, const struct pl_tok_text *in,
                                           struct pl_tok_text *out) {
    for (size_t i = 0; i < in->len;) {
        size_t e = grapheme_end(in, i);
        struct pl_str by = {NULL, 0};
        if (e - i < 6 && charsmap_find(n, in->data + i, e - i, false, &by) > 0) {
            PL_TRY(pl_tok_text_add(out, by.data, by.len, taint_of(in, i, e)));
            i = e;
            continue;
        }
        while (i < e) {
            size_t k = pl_uc_lead_len((unsigned char)in->data[i], e - i);
            if (charsmap_find(n, in->data + i, k, false, &by) == 0) by = (struct pl_str){in->data + i, k};
            PL_TRY(pl_tok_text_add(out, by.data, by.len, taint_of(in, i, i + k)));
            i += k;
        }
    }
    return PL_OK;
}

/* SentencePiece white space: a word is preceded by the marker, runs collapse, as the model's flags say. */
static enum pl_status spm_spaces(const struct pl_tok_norm *n, const struct pl_tok_text *in, struct pl_tok_text *out) {
    struct pl_str mark = n->f[2] ? PL_STR("\xE2\x96\x81") : PL_STR(" ");
    bool in_word = false, prepended = false;
    for (size_t i = 0; i < in->len; i++) {
        unsigned taint = taint_of(in, i, i + 1);
        if (in->data[i] == ' ') {
            in_word = false;
            if (!n->f[1]) PL_TRY(pl_tok_text_add(out, mark.data, mark.len, taint));
            continue;
        }
        if (!in_word && ((n->f[0] && !prepended) || n->f[1])) {
            PL_TRY(pl_tok_text_add(out, mark.data, mark.len, taint));
            prepended = true;
        }
        in_word = true;
        PL_TRY(pl_tok_text_add(out, in->data + i, 1, taint));
    }
    return PL_OK;
}

static enum pl_status byte_level(const struct pl_tok_text *in, struct pl_tok_text *out) {
    for (size_t i = 0; i < in->len; i++)
        PL_TRY(add_cp(out, pl_uc_byte_to_cp((unsigned char)in->data[i]), taint_of(in, i, i + 1)));
    return PL_OK;
}

static void swap(struct pl_tok_ctx *c) {
    struct pl_tok_text t = c->a;
    c->a = c->b;
    c->b = t;
    pl_tok_text_clear(&c->b, c->a.tracked);
}

static enum pl_status bert(const struct pl_tok_norm *n, struct pl_tok_ctx *c) {
    const enum char_job before[] = {JOB_CLEAN, JOB_CHINESE};
    for (int k = 0; k < 2; k++) {
        if (!n->f[k]) continue;
        PL_TRY(each_char(&c->a, &c->b, before[k]));
        swap(c);
    }
    if (n->f[2]) {
        PL_TRY(unicode_form(&c->a, &c->b, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE));
        swap(c);
        PL_TRY(each_char(&c->a, &c->b, JOB_NO_NONSPACING));
        swap(c);
    }
    if (n->f[3]) {
        PL_TRY(each_char(&c->a, &c->b, JOB_LOWER));
        swap(c);
    }
    return PL_OK;
}

static enum pl_status run_one(const struct pl_tok_norm *n, struct pl_tok_ctx *c) {
    const struct pl_tok_text *in = &c->a;
    struct pl_tok_text *out = &c->b;
    switch (n->kind) {
    case PL_NORM_NFC: return unicode_form(in, out, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    case PL_NORM_NFD: return unicode_form(in, out, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
    case PL_NORM_NFKC: return unicode_form(in, out, UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    case PL_NORM_NFKD: return unicode_form(in, out, UTF8PROC_STABLE | UTF8PROC_COMPAT | UTF8PROC_DECOMPOSE);
    case PL_NORM_LOWERCASE: return each_char(in, out, JOB_LOWER);
    case PL_NORM_STRIP_ACCENTS: return each_char(in, out, JOB_NO_MARKS);
    case PL_NORM_NMT: return each_char(in, out, JOB_NMT);
    case PL_NORM_STRIP: return strip(in, out, n->f[0], n->f[1]);
    case PL_NORM_PREPEND:
        if (in->len > 0) PL_TRY(pl_tok_text_add(out, n->a.data, n->a.len, taint_of(in, 0, 1)));
        return copy(in, out, 0, in->len);
    case PL_NORM_REPLACE: return replace_literal(in, out, n->a, n->b);
    case PL_NORM_REPLACE_REGEX: return replace_regex(c, n, in, out);
    case PL_NORM_BYTE_LEVEL: return byte_level(in, out);
    case PL_NORM_PRECOMPILED: return precompiled_grapheme(n, in, out);
    case PL_NORM_PRECOMPILED_LONGEST: return precompiled_longest(n, in, out);
    case PL_NORM_SPM_SPACES: return spm_spaces(n, in, out);
    case PL_NORM_BERT: break;
    }
    return PL_INTERNAL;
}

enum pl_status pl_tok_normalize(const struct pl_tokenizer *t, struct pl_tok_ctx *c) {
    pl_tok_text_clear(&c->b, c->a.tracked);
    for (size_t i = 0; i < t->norm_count && c->a.len > 0; i++) {
        if (t->norms[i].kind == PL_NORM_BERT) {
            PL_TRY(bert(&t->norms[i], c));
            continue;
        }
        PL_TRY(run_one(&t->norms[i], c));
        swap(c);
    }
    return PL_OK;
}
