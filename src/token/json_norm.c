/* Normalizers and pre-tokenizers of tokenizer.json. */
#include <string.h>

#include "base/mem.h"
#include "token/json_util.h"
#include "token/unicode.h"

static enum pl_status sequence(struct pl_json_ctx *x, const json_t *o, const char *key,
                               enum pl_status (*each)(struct pl_json_ctx *, const json_t *)) {
    const json_t *list = json_object_get(o, key);
    if (!json_is_array(list)) PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: %s: Sequence needs an array '%s'", x->where, key);
    if (json_array_size(list) > 256)
        PL_FAIL(x->err, PL_LIMIT, "tokenizer.json: %s: a Sequence of more than 256 steps", x->where);
    x->depth++;
    for (size_t i = 0; i < json_array_size(list); i++) PL_TRY(each(x, json_array_get(list, i)));
    x->depth--;
    return PL_OK;
}

static int base64_digit(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

static enum pl_status precompiled(struct pl_json_ctx *x, const json_t *o) {
    struct pl_str s;
    PL_TRY(pl_tj_str(x, o, "precompiled_charsmap", "", &s));
    while (s.len > 0 && s.data[s.len - 1] == '=') s.len--;
    if (s.len == 0) return PL_OK;
    uint8_t *blob = pl_alloc(s.len, 1);
    if (blob == NULL) return PL_NO_MEMORY;
    size_t n = 0;
    uint32_t acc = 0;
    bool good = true;
    for (size_t i = 0; i < s.len && good; i++) {
        int d = base64_digit(s.data[i]);
        good = d >= 0;
        acc = acc << 6 | (uint32_t)(d & 63);
        if (i % 4 > 0) blob[n++] = (uint8_t)(acc >> (6 - 2 * (i % 4)));
    }
    struct pl_tok_norm *norm = good ? pl_tok_add_norm(x->t, PL_NORM_PRECOMPILED) : NULL;
    enum pl_status st = norm == NULL ? PL_NO_MEMORY : pl_tok_set_charsmap(x->t, norm, blob, n, x->err);
    pl_free(blob);
    if (!good) PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: normalizer: precompiled_charsmap is not base64");
    return st;
}

static enum pl_status replace(struct pl_json_ctx *x, const json_t *o) {
    struct pl_str pattern, content;
    bool regex;
    PL_TRY(pl_tj_pattern(x, o, &pattern, &regex));
    PL_TRY(pl_tj_str(x, o, "content", NULL, &content));
    struct pl_tok_norm *n = pl_tok_add_norm(x->t, regex ? PL_NORM_REPLACE_REGEX : PL_NORM_REPLACE);
    if (n == NULL || !pl_tok_keep(x->t, pattern, &n->a) || !pl_tok_keep(x->t, content, &n->b)) return PL_NO_MEMORY;
    return regex ? pl_regex_create(pattern, &n->re, x->err) : PL_OK;
}

static enum pl_status bert(struct pl_json_ctx *x, const json_t *o) {
    bool f[4];
    PL_TRY(pl_tj_bool(x, o, "clean_text", true, &f[0]));
    PL_TRY(pl_tj_bool(x, o, "handle_chinese_chars", true, &f[1]));
    PL_TRY(pl_tj_bool(x, o, "lowercase", true, &f[3]));
    PL_TRY(pl_tj_bool(x, o, "strip_accents", f[3], &f[2]));
    struct pl_tok_norm *n = pl_tok_add_norm(x->t, PL_NORM_BERT);
    if (n == NULL) return PL_NO_MEMORY;
    memcpy(n->f, f, sizeof f);
    return PL_OK;
}

enum pl_status pl_tj_normalizer(struct pl_json_ctx *x, const json_t *o) {
    static const struct {
        const char *name;
        enum pl_norm_kind kind;
    } plain[] = {{"NFC", PL_NORM_NFC},
                 {"NFD", PL_NORM_NFD},
                 {"NFKC", PL_NORM_NFKC},
                 {"NFKD", PL_NORM_NFKD},
                 {"Nmt", PL_NORM_NMT},
                 {"Lowercase", PL_NORM_LOWERCASE},
                 {"StripAccents", PL_NORM_STRIP_ACCENTS},
                 {"ByteLevel", PL_NORM_BYTE_LEVEL}};
    struct pl_str type;
    PL_TRY(pl_tj_type(x, o, &type));
    for (size_t i = 0; i < PL_COUNT_OF(plain); i++)
        if (pl_str_eq_c(type, plain[i].name)) return pl_tok_add_norm(x->t, plain[i].kind) == NULL ? PL_NO_MEMORY : PL_OK;
    if (pl_str_eq_c(type, "Sequence")) return sequence(x, o, "normalizers", pl_tj_normalizer);
    if (pl_str_eq_c(type, "Replace")) return replace(x, o);
    if (pl_str_eq_c(type, "BertNormalizer")) return bert(x, o);
    if (pl_str_eq_c(type, "Precompiled")) return precompiled(x, o);
    if (pl_str_eq_c(type, "Prepend")) {
        struct pl_str s;
        PL_TRY(pl_tj_str(x, o, "prepend", NULL, &s));
        struct pl_tok_norm *n = pl_tok_add_norm(x->t, PL_NORM_PREPEND);
        return n == NULL || !pl_tok_keep(x->t, s, &n->a) ? PL_NO_MEMORY : PL_OK;
    }
    if (pl_str_eq_c(type, "Strip")) {
        bool l, r;
        PL_TRY(pl_tj_bool(x, o, "strip_left", true, &l));
        PL_TRY(pl_tj_bool(x, o, "strip_right", true, &r));
        struct pl_tok_norm *n = pl_tok_add_norm(x->t, PL_NORM_STRIP);
        if (n == NULL) return PL_NO_MEMORY;
        n->f[0] = l;
        n->f[1] = r;
        return PL_OK;
    }
    return pl_tj_unknown(x, type,
                         "NFC, NFD, NFKC, NFKD, Nmt, Lowercase, StripAccents, ByteLevel, Strip, Prepend, Replace, "
                         "BertNormalizer, Precompiled, Sequence");
}

/* --- pre-tokenizers --- */

static enum pl_status behavior(const struct pl_json_ctx *x, const json_t *o, const char *dflt, enum pl_split_behavior *out) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    struct pl_str s;
    PL_TRY(pl_tj_str(x, o, "behavior", dflt, &s));
    for (size_t i = 0; i < PL_COUNT_OF(names); i++) {
        if (!pl_str_eq_c(s, names[i])) continue;
        *out = (enum pl_split_behavior)i;
        return PL_OK;
    }
    PL_FAIL(x->err, PL_UNSUPPORTED,
            "tokenizer.json: %s: behavior '%.*s' is not known: expected one of Removed, Isolated, MergedWithPrevious, "
            "MergedWithNext, "
            "Contiguous",
            x->where, (int)PL_MIN(s.len, (size_t)60), s.data);
}

static enum pl_status add_class(struct pl_json_ctx *x, enum pl_split_class cls, enum pl_split_behavior how, bool invert,
                                uint32_t ch) {
    struct pl_tok_pre *p = pl_tok_add_pre(x->t, PL_PRE_SPLIT);
    if (p == NULL) return PL_NO_MEMORY;
    p->split = (struct pl_splitter){.kind = PL_MATCH_CLASS, .behavior = how, .invert = invert, .cls = cls, .ch = ch};
    return PL_OK;
}

static enum pl_status split(struct pl_json_ctx *x, const json_t *o) {
    struct pl_str pattern;
    bool regex, invert;
    enum pl_split_behavior how = PL_SPLIT_ISOLATED;
    PL_TRY(pl_tj_pattern(x, o, &pattern, &regex));
    PL_TRY(behavior(x, o, NULL, &how));
    PL_TRY(pl_tj_bool(x, o, "invert", false, &invert));
    if (regex) return pl_tok_add_regex_split(x->t, pattern, how, invert, x->err);
    struct pl_tok_pre *p = pl_tok_add_pre(x->t, PL_PRE_SPLIT);
    if (p == NULL) return PL_NO_MEMORY;
    p->split = (struct pl_splitter){.kind = PL_MATCH_LITERAL, .behavior = how, .invert = invert};
    return pl_tok_keep(x->t, pattern, &p->split.literal) ? PL_OK : PL_NO_MEMORY;
}

static enum pl_status byte_level(struct pl_json_ctx *x, const json_t *o) {
    bool prefix, regex;
    PL_TRY(pl_tj_bool(x, o, "add_prefix_space", true, &prefix));
    PL_TRY(pl_tj_bool(x, o, "use_regex", true, &regex));
    if (prefix && pl_tok_add_pre(x->t, PL_PRE_PREFIX_SPACE) == NULL) return PL_NO_MEMORY;
    if (regex)
        PL_TRY(pl_tok_add_regex_split(x->t, pl_str_from(pl_scan_pattern(PL_SCAN_GPT2)), PL_SPLIT_ISOLATED, false, x->err));
    return pl_tok_add_pre(x->t, PL_PRE_BYTE_MAP) == NULL ? PL_NO_MEMORY : PL_OK;
}

static enum pl_status metaspace(struct pl_json_ctx *x, const json_t *o) {
    struct pl_str replacement, scheme;
    bool legacy, do_split;
    PL_TRY(pl_tj_str(x, o, "replacement", "\xE2\x96\x81", &replacement));
    PL_TRY(pl_tj_bool(x, o, "add_prefix_space", true, &legacy));
    PL_TRY(pl_tj_str(x, o, "prepend_scheme", legacy ? "always" : "never", &scheme));
    PL_TRY(pl_tj_bool(x, o, "split", true, &do_split));
    struct pl_tok_pre *p = pl_tok_add_pre(x->t, PL_PRE_METASPACE);
    if (p == NULL || !pl_tok_keep(x->t, replacement, &p->replacement)) return PL_NO_MEMORY;
    if (pl_str_eq_c(scheme, "always"))
        p->scheme = PL_META_ALWAYS;
    else if (pl_str_eq_c(scheme, "first"))
        p->scheme = PL_META_FIRST;
    else if (pl_str_eq_c(scheme, "never"))
        p->scheme = PL_META_NEVER;
    else
        PL_FAIL(x->err, PL_UNSUPPORTED,
                "tokenizer.json: %s: prepend_scheme '%.*s' is not known: expected always, first or never", x->where,
                (int)PL_MIN(scheme.len, (size_t)60), scheme.data);
    p->do_split = do_split;
    p->split = (struct pl_splitter){.kind = PL_MATCH_LITERAL, .behavior = PL_SPLIT_NEXT, .literal = p->replacement};
    return PL_OK;
}

static enum pl_status simple_pre(struct pl_json_ctx *x, const json_t *o, struct pl_str type, bool *known) {
    enum pl_split_behavior how = PL_SPLIT_ISOLATED;
    *known = true;
    if (pl_str_eq_c(type, "Whitespace")) return add_class(x, PL_CLASS_WORD_RUNS, PL_SPLIT_REMOVED, true, 0);
    if (pl_str_eq_c(type, "WhitespaceSplit")) return add_class(x, PL_CLASS_SPACE, PL_SPLIT_REMOVED, false, 0);
    if (pl_str_eq_c(type, "BertPreTokenizer")) {
        PL_TRY(add_class(x, PL_CLASS_SPACE, PL_SPLIT_REMOVED, false, 0));
        return add_class(x, PL_CLASS_PUNCT, PL_SPLIT_ISOLATED, false, 0);
    }
    if (pl_str_eq_c(type, "Punctuation")) {
        PL_TRY(behavior(x, o, "Isolated", &how));
        return add_class(x, PL_CLASS_PUNCT, how, false, 0);
    }
    if (pl_str_eq_c(type, "Digits")) {
        bool each;
        PL_TRY(pl_tj_bool(x, o, "individual_digits", false, &each));
        return add_class(x, PL_CLASS_NUMBER, each ? PL_SPLIT_ISOLATED : PL_SPLIT_CONTIGUOUS, false, 0);
    }
    if (pl_str_eq_c(type, "CharDelimiterSplit")) {
        struct pl_str s;
        uint32_t cp;
        PL_TRY(pl_tj_str(x, o, "delimiter", NULL, &s));
        if (s.len == 0 || pl_uc_next(s.data, &cp) != s.len)
            PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: %s: 'delimiter': expected one character", x->where);
        return add_class(x, PL_CLASS_CHAR, PL_SPLIT_REMOVED, false, cp);
    }
    if (pl_str_eq_c(type, "FixedLength")) {
        size_t n;
        PL_TRY(pl_tj_size(x, o, "length", 5, 1u << 20, &n));
        struct pl_tok_pre *p = n == 0 ? NULL : pl_tok_add_pre(x->t, PL_PRE_FIXED);
        if (n == 0) PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: %s: FixedLength of 0", x->where);
        if (p == NULL) return PL_NO_MEMORY;
        p->length = n;
        return PL_OK;
    }
    *known = false;
    return PL_OK;
}

enum pl_status pl_tj_pre_tokenizer(struct pl_json_ctx *x, const json_t *o) {
    struct pl_str type;
    bool known;
    PL_TRY(pl_tj_type(x, o, &type));
    if (pl_str_eq_c(type, "Sequence")) return sequence(x, o, "pretokenizers", pl_tj_pre_tokenizer);
    if (pl_str_eq_c(type, "Split")) return split(x, o);
    if (pl_str_eq_c(type, "ByteLevel")) return byte_level(x, o);
    if (pl_str_eq_c(type, "Metaspace")) return metaspace(x, o);
    PL_TRY(simple_pre(x, o, type, &known));
    return known ? PL_OK
                 : pl_tj_unknown(x, type,
                                 "ByteLevel, Split, Metaspace, Digits, Whitespace, WhitespaceSplit, Punctuation, "
                                 "BertPreTokenizer, CharDelimiterSplit, FixedLength, Sequence");
}
