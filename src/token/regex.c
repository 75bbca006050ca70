/* PCRE2 behind a small door. Published tokenizers write their patterns for Oniguruma (Ruby syntax) or Rust; the
 * translation below covers where PCRE2 means something else:
 *   \s \w \b \h      white space is Unicode's White_Space, words are Oniguruma's, \h is a hexadecimal digit
 *   \uXXXX           -> \x{XXXX}
 *   \p{Han}          the script itself, not its extensions
 *   [a[bc]]          nested classes are unions;  [a&&[^b]] is an intersection
 *   ^ and $          match at every line */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "token/split.h"
#include "token/unicode.h"

struct pl_regex {
    pcre2_code *code;
    bool jit;
};

#define SPACE_SET "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define WORD_SET  "\\p{L}\\p{M}\\p{N}\\p{Pc}"
#define NEWER_HAN "\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"

static const char *const scripts[] = {"Han",      "Hiragana", "Katakana", "Hangul",   "Thai",    "Lao",
                                      "Khmer",    "Myanmar",  "Arabic",   "Cyrillic", "Greek",   "Latin",
                                      "Hebrew",   "Armenian", "Tamil",    "Telugu",   "Bengali", "Devanagari",
                                      "Georgian", "Ethiopic", "Tibetan",  "Mongolian"};

struct translator {
    const char *s;
    size_t len, i;
    struct pl_buf *out;
};

static bool hex_digit(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

/* \p{Name}, \P{Name}, \p{^Name}: scripts are spelled so that PCRE2 ignores script extensions; characters newer than its
 * tables are added (not to a negated property inside a class, which no published pattern has). */
static void property(struct translator *t, bool in_class) {
    const char *s = t->s + t->i;
    const char *close = t->i + 2 < t->len && s[2] == '{' ? memchr(s, '}', t->len - t->i) : NULL;
    if (close == NULL) {
        pl_buf_add(t->out, s, 2);
        t->i += 2;
        return;
    }
    bool hat = s[3] == '^', negated = (s[1] == 'P') != hat;
    const char *name = s + 3 + hat;
    size_t n = (size_t)(close - name);
    struct pl_buf more = {0};
    if (!negated || !in_class) pl_uc_add_newer(&more, name, n);
    if (!negated && n == 3 && memcmp(name, "Han", 3) == 0) pl_buf_add_c(&more, NEWER_HAN);
    bool wrap = more.len > 0 && !in_class;
    if (wrap) pl_buf_add_c(t->out, negated ? "[^" : "[");
    pl_buf_add_c(t->out, negated && !wrap ? "\\P{" : "\\p{");
    for (size_t k = 0; k < PL_COUNT_OF(scripts); k++)
        if (strlen(scripts[k]) == n && memcmp(name, scripts[k], n) == 0) pl_buf_add_c(t->out, "sc:");
    pl_buf_add(t->out, name, n + 1);
    pl_buf_add(t->out, more.data, more.len);
    if (wrap) pl_buf_add_char(t->out, ']');
    if (more.failed) t->out->failed = true;
    pl_buf_deinit(&more);
    t->i += (size_t)(close - s) + 1;
}

/* The characters of a \w, \d, \s or \h, as items of a class. */
static void add_set(struct pl_buf *out, char c) {
    static const char *const words[] = {"L", "M", "N"};
    if (c == 's' || c == 'S') pl_buf_add_c(out, SPACE_SET);
    if (c == 'h') pl_buf_add_c(out, "0-9a-fA-F");
    if (c == 'd' || c == 'D') {
        pl_buf_add_c(out, "\\p{Nd}");
        pl_uc_add_newer(out, "Nd", 2);
    }
    if (c != 'w' && c != 'W') return;
    pl_buf_add_c(out, WORD_SET);
    for (size_t k = 0; k < PL_COUNT_OF(words); k++) pl_uc_add_newer(out, words[k], 1);
}

/* \b and \B: by the same notion of a word. */
static void boundary(struct pl_buf *out, bool negated) {
    static const char *const is[] = {"(?:(?<=[", "])(?![", "])|(?<![", "])(?=[", "]))"};
    static const char *const is_not[] = {"(?:(?<=[", "])(?=[", "])|(?<![", "])(?![", "]))"};
    for (size_t k = 0; k < 5; k++) {
        pl_buf_add_c(out, negated ? is_not[k] : is[k]);
        if (k < 4) add_set(out, 'w');
    }
}

static void unicode_escape(struct translator *t) {
    size_t i = t->i + 2, n = 0;
    bool braces = i < t->len && t->s[i] == '{';
    if (braces) i++;
    while (i + n < t->len && n < (braces ? 8u : 4u) && hex_digit(t->s[i + n])) n++;
    pl_buf_printf(t->out, "\\x{%.*s}", (int)n, t->s + i);
    t->i = i + n + (braces ? 1 : 0);
    if (t->i > t->len) t->i = t->len;
}

/* One backslash sequence at t->i, inside a class or not. */
static void escape(struct translator *t, bool in_class) {
    char c = t->i + 1 < t->len ? t->s[t->i + 1] : '\\';
    bool negated = c == 'S' || c == 'W' || c == 'D';
    bool set = negated || c == 's' || c == 'w' || c == 'd' || c == 'h';
    if (c == 'p' || c == 'P') {
        property(t, in_class);
    } else if ((c == 'b' || c == 'B') && !in_class) {
        boundary(t->out, c == 'B');
        t->i += 2;
    } else if (c == 'u') {
        unicode_escape(t);
    } else if (set && !(in_class && negated)) {
        if (!in_class) pl_buf_add_c(t->out, negated ? "[^" : "[");
        add_set(t->out, c);
        if (!in_class) pl_buf_add_char(t->out, ']');
        t->i += 2;
    } else {
        size_t n = PL_MIN((size_t)2, t->len - t->i);
        pl_buf_add(t->out, t->s + t->i, n);
        t->i += n;
    }
}

static enum pl_status char_class(struct translator *t, int depth, struct pl_err *err);

/* Inside a class at t->i: the rest up to its ']' goes to t->out; "&&[...]" goes to cond as a look-ahead. */
static enum pl_status class_items(struct translator *t, struct pl_buf *cond, int depth, struct pl_err *err) {
    bool first = true;
    while (t->i < t->len && (t->s[t->i] != ']' || first)) {
        const char *s = t->s + t->i;
        size_t left = t->len - t->i;
        first = false;
        if (s[0] == '\\') {
            escape(t, true);
        } else if (left >= 3 && memcmp(s, "&&[", 3) == 0) {
            struct pl_buf *out = t->out;
            bool negated = left >= 4 && s[3] == '^';
            t->i += 2;
            pl_buf_add_c(cond, negated ? "(?!" : "(?=");
            if (negated) { /* [^x] as "not [x]" */
                t->i += 2;
                pl_buf_add_char(cond, '[');
                t->out = cond;
                enum pl_status st = class_items(t, cond, depth + 1, err);
                t->out = out;
                PL_TRY(st);
                pl_buf_add_char(cond, ']');
                t->i++;
            } else {
                t->out = cond;
                enum pl_status st = char_class(t, depth + 1, err);
                t->out = out;
                PL_TRY(st);
            }
            pl_buf_add_char(cond, ')');
        } else if (s[0] == '[' && left >= 2 && s[1] == ':') { /* POSIX class */
            const char *close = memchr(s, ']', left);
            size_t n = close == NULL ? left : (size_t)(close - s) + 1;
            pl_buf_add(t->out, s, n);
            t->i += n;
        } else if (s[0] == '[') {
            if (depth > 8 || (left >= 2 && s[1] == '^'))
                PL_FAIL(err, PL_UNSUPPORTED, "regex: a negated class inside a class is not supported: %.*s", (int)t->len,
                        t->s);
            t->i++;
            PL_TRY(class_items(t, cond, depth + 1, err));
            t->i++;
        } else {
            pl_buf_add(t->out, s, 1);
            t->i++;
        }
    }
    if (t->i >= t->len) PL_FAIL(err, PL_FORMAT, "regex: a character class is not closed: %.*s", (int)t->len, t->s);
    return PL_OK;
}

static enum pl_status char_class(struct translator *t, int depth, struct pl_err *err) {
    struct pl_buf body = {0}, cond = {0}, *out = t->out;
    t->i++; /* [ */
    t->out = &body;
    if (t->i < t->len && t->s[t->i] == '^') {
        pl_buf_add_char(&body, '^');
        t->i++;
    }
    enum pl_status st = class_items(t, &cond, depth, err);
    t->out = out;
    if (st == PL_OK) {
        t->i++; /* ] */
        if (cond.len > 0) pl_buf_printf(out, "(?:%s", cond.data);
        pl_buf_printf(out, "[%s]", pl_buf_cstr(&body));
        if (cond.len > 0) pl_buf_add_char(out, ')');
        if (body.failed || cond.failed) out->failed = true;
    }
    pl_buf_deinit(&body);
    pl_buf_deinit(&cond);
    return st;
}

static enum pl_status translate(struct pl_str p, struct pl_buf *out, struct pl_err *err) {
    struct translator t = {p.data, p.len, 0, out};
    while (t.i < t.len) {
        char c = t.s[t.i];
        if (c == '\\') {
            escape(&t, false);
        } else if (c == '[') {
            PL_TRY(char_class(&t, 0, err));
        } else {
            pl_buf_add_char(out, c);
            t.i++;
        }
    }
    return pl_buf_ok(out) ? PL_OK : PL_NO_MEMORY;
}

static void *re_alloc(size_t n, void *u) {
    (void)u;
    return pl_alloc(n, 1);
}
static void re_free(void *p, void *u) {
    (void)u;
    pl_free(p);
}

static enum pl_status compile(struct pl_str pattern, const struct pl_buf *text, struct pl_regex *re, struct pl_err *err) {
    pcre2_general_context *g = pcre2_general_context_create(re_alloc, re_free, NULL);
    pcre2_compile_context *cc = g == NULL ? NULL : pcre2_compile_context_create(g);
    int code = 0;
    PCRE2_SIZE where = 0;
    if (cc != NULL) {
        pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
        re->code = pcre2_compile((PCRE2_SPTR)pl_buf_cstr(text), text->len,
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &where, cc);
    }
    pcre2_compile_context_free(cc);
    pcre2_general_context_free(g);
    if (re->code != NULL) {
        re->jit = pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE) == 0;
        return PL_OK;
    }
    if (cc == NULL || code == PCRE2_ERROR_NOMEMORY || code == PCRE2_ERROR_HEAP_FAILED) return PL_NO_MEMORY;
    unsigned char why[128] = "";
    pcre2_get_error_message(code, why, sizeof why);
    PL_FAIL(err, PL_FORMAT, "regex '%.*s' does not compile: %s (at byte %zu of its translation)",
            (int)PL_MIN(pattern.len, (size_t)300), pattern.data, (const char *)why, (size_t)where);
}

enum pl_status pl_regex_create(struct pl_str pattern, struct pl_regex **out, struct pl_err *err) {
    if (pattern.len == 0 || pattern.len > 65536)
        PL_FAIL(err, PL_FORMAT, "regex of %zu bytes: expected 1 to 65536 bytes", pattern.len);
    if (!pl_utf8_valid(pattern.data, pattern.len)) PL_FAIL(err, PL_FORMAT, "regex: not valid UTF-8");
    struct pl_buf text = {0};
    struct pl_regex *re = pl_calloc(1, sizeof *re);
    enum pl_status st = re == NULL ? PL_NO_MEMORY : translate(pattern, &text, err);
    if (st == PL_OK) st = compile(pattern, &text, re, err);
    pl_buf_deinit(&text);
    if (st == PL_OK)
        *out = re;
    else
        pl_free(re);
    return st;
}

void pl_regex_destroy(struct pl_regex *re) {
    if (re == NULL) return;
    pcre2_code_free(re->code);
    pl_free(re);
}

void pl_regex_scratch_deinit(struct pl_regex_scratch *s) {
    pcre2_match_data_free(s->match);
    pcre2_jit_stack_free(s->stack);
    pcre2_match_context_free(s->mctx);
    *s = (struct pl_regex_scratch){0};
}

static enum pl_status scratch_init(struct pl_regex_scratch *s) {
    if (s->mctx != NULL) return PL_OK;
    pcre2_general_context *g = pcre2_general_context_create(re_alloc, re_free, NULL);
    if (g == NULL) return PL_NO_MEMORY;
    s->match = pcre2_match_data_create(16, g);
    s->stack = pcre2_jit_stack_create(32u << 10, 8u << 20, g);
    s->mctx = pcre2_match_context_create(g);
    pcre2_general_context_free(g);
    if (s->match == NULL || s->stack == NULL || s->mctx == NULL) {
        pl_regex_scratch_deinit(s);
        return PL_NO_MEMORY;
    }
    pcre2_jit_stack_assign(s->mctx, NULL, s->stack);
    pcre2_set_match_limit(s->mctx, 50000000);
    pcre2_set_heap_limit(s->mctx, 512u << 10); /* KiB, interpreter only */
    return PL_OK;
}

enum pl_status pl_regex_find(const struct pl_regex *re, struct pl_regex_scratch *s, const char *text, size_t len,
                             size_t from, size_t *begin, size_t *end, struct pl_err *err) {
    PL_TRY(scratch_init(s));
    int rc =
        re->jit ? pcre2_jit_match(re->code, (PCRE2_SPTR)text, len, from, 0, s->match, s->mctx) : PCRE2_ERROR_JIT_STACKLIMIT;
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(re->code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->match, s->mctx);
    if (rc == PCRE2_ERROR_NOMATCH) return PL_NOT_FOUND;
    if (rc == PCRE2_ERROR_NOMEMORY) return PL_NO_MEMORY;
    if (rc < 0) {
        unsigned char why[128] = "";
        pcre2_get_error_message(rc, why, sizeof why);
        PL_FAIL(err, PL_LIMIT, "the pre-tokenizer's regex gave up at byte %zu of a text of %zu bytes: %s", from, len,
                (const char *)why);
    }
    const PCRE2_SIZE *o = pcre2_get_ovector_pointer(s->match);
    *begin = o[0];
    *end = o[1] < o[0] ? o[0] : o[1]; /* \K in a look-ahead could turn the order round */
    return PL_OK;
}
