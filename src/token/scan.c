/* Hand-written scanners for the pre-tokenizer patterns that nearly every published model uses. Each function returns
 * the end of the match that begins exactly at s[i] (i for "no match here"), with the leftmost-first alternation and
 * backtracking of the pattern worked out by hand. */
#include <string.h>

#include "token/split.h"
#include "token/unicode.h"

#define SPACE  PL_UC_SPACE
#define LETTER PL_UC_LETTER
#define NUMBER PL_UC_NUMBER
#define MARK   PL_UC_MARK

struct chr {
    uint32_t cp;
    unsigned flags;
    size_t len; /* 0 at the end of the text */
};

static inline struct chr at(const char *s, size_t len, size_t i) {
    struct chr c = {0, 0, 0};
    if (i >= len) return c;
    c.len = pl_uc_next(s + i, &c.cp);
    c.flags = pl_uc_table[c.cp];
    return c;
}

static inline size_t run_of(const char *s, size_t len, size_t i, unsigned flags) {
    while (i < len) {
        struct chr c = at(s, len, i);
        if ((c.flags & flags) == 0) break;
        i += c.len;
    }
    return i;
}

static inline size_t run_without(const char *s, size_t len, size_t i, unsigned flags) {
    while (i < len) {
        struct chr c = at(s, len, i);
        if ((c.flags & flags) != 0) break;
        i += c.len;
    }
    return i;
}

static inline unsigned char fold(unsigned char c, bool any_case) { return any_case && c >= 'A' && c <= 'Z' ? c + 32 : c; }

/* 's 't 'm 'd 're 've 'll after an apostrophe at s[i]; U+017F folds to s unless ascii_fold. */
static size_t contraction(const char *s, size_t len, size_t i, bool any_case, bool ascii_fold) {
    if (i + 1 >= len) return i;
    unsigned char a = fold((unsigned char)s[i + 1], any_case);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return i + 2;
    if (i + 2 >= len) return i;
    unsigned char b = fold((unsigned char)s[i + 2], any_case);
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return i + 3;
    if (any_case && !ascii_fold && a == 0xC5 && (unsigned char)s[i + 2] == 0xBF) return i + 3;
    return i;
}

/* \s+(?!\S)|\s+ at a white-space run [i, end): all of it at the end of the text, else all but its last character. */
static size_t trailing_spaces(const char *s, size_t len, size_t i, size_t end) {
    if (end == len) return end;
    size_t last = end - 1;
    while (((unsigned char)s[last] & 0xC0) == 0x80) last--;
    return last > i ? last : end;
}

static size_t gpt2(const char *s, size_t len, size_t i) {
    struct chr c = at(s, len, i);
    if (c.cp == '\'') {
        size_t e = contraction(s, len, i, false, true);
        if (e > i) return e;
    }
    struct chr d = c.cp == ' ' ? at(s, len, i + 1) : c;
    size_t body = c.cp == ' ' ? i + 1 : i;
    if (d.len > 0) {
        if (d.flags & LETTER) return run_of(s, len, body, LETTER);
        if (d.flags & NUMBER) return run_of(s, len, body, NUMBER);
        if (!(d.flags & SPACE)) return run_without(s, len, body, SPACE | LETTER | NUMBER);
    }
    return trailing_spaces(s, len, i, run_of(s, len, i, SPACE));
}

/* \s*[\r\n]+ over the white-space run [i, end): up to its last line break; i when there is none. */
static size_t line_breaks(const char *s, size_t i, size_t end) {
    for (size_t j = end; j > i; j--)
        if (s[j - 1] == '\n' || s[j - 1] == '\r') return j;
    return i;
}

static size_t digits(const char *s, size_t len, size_t i, int max) {
    for (int n = 0; n < max && i < len; n++) {
        struct chr c = at(s, len, i);
        if (!(c.flags & NUMBER)) break;
        i += c.len;
    }
    return i;
}

/* The cl100k family: word = the flags of word characters, max_digits 1 or 3. */
static inline size_t cl100k(const char *s, size_t len, size_t i, unsigned word, int max_digits, bool ascii_fold) {
    struct chr c = at(s, len, i);
    if (c.cp == '\'') {
        size_t e = contraction(s, len, i, true, ascii_fold);
        if (e > i) return e;
    }
    if (c.flags & word) { /* a letter; with marks as letters also a mark, which may lead as "anything else" too */
        return run_of(s, len, i + c.len, word);
    }
    if (c.cp != '\r' && c.cp != '\n' && !(c.flags & NUMBER)) {
        struct chr d = at(s, len, i + c.len);
        if (d.flags & word) return run_of(s, len, i + c.len + d.len, word);
    }
    if (c.flags & NUMBER) return digits(s, len, i, max_digits);
    struct chr d = c.cp == ' ' ? at(s, len, i + 1) : c;
    if (d.len > 0 && !(d.flags & (SPACE | NUMBER | word))) {
        size_t e = run_without(s, len, c.cp == ' ' ? i + 1 : i, SPACE | NUMBER | word);
        while (e < len && (s[e] == '\r' || s[e] == '\n')) e++;
        return e;
    }
    size_t end = run_of(s, len, i, SPACE), e = line_breaks(s, i, end);
    return e > i ? e : trailing_spaces(s, len, i, end);
}

/* First digit run at or after i (Nd); its end and its count of characters. */
static bool digit_run(const char *s, size_t len, size_t *i, size_t *end, size_t *count) {
    size_t p = *i;
    while (p < len) {
        struct chr c = at(s, len, p);
        if (c.flags & PL_UC_DIGIT) break;
        p += c.len;
    }
    if (p >= len) return false;
    *i = p;
    *count = 0;
    while (p < len) {
        struct chr c = at(s, len, p);
        if (!(c.flags & PL_UC_DIGIT)) break;
        p += c.len;
        ++*count;
    }
    *end = p;
    return true;
}

static size_t skip_chars(const char *s, size_t len, size_t i, size_t n) {
    while (n-- > 0 && i < len) i += at(s, len, i).len;
    return i;
}

/* \d{1,3}(?=(?:\d{3})*\b): groups of three counted from the right, when the run ends at a word boundary. */
static bool groups3(const char *s, size_t len, size_t *begin, size_t *end) {
    size_t i = *begin, run_end, count;
    while (digit_run(s, len, &i, &run_end, &count)) {
        unsigned f = at(s, len, run_end).flags; /* Oniguruma's \b: letters, marks, numbers, connectors */
        if (!(f & (LETTER | MARK | NUMBER)) && (f & (PL_UC_WORD | PL_UC_PUNCT)) != (PL_UC_WORD | PL_UC_PUNCT)) {
            *begin = i;
            *end = skip_chars(s, len, i, count % 3 == 0 ? 3 : count % 3);
            return true;
        }
        i = run_end;
    }
    return false;
}

/* (?=(\d{3})+(?!\d)): an empty match wherever a multiple of three digits is left in a run. */
static bool suffix3(const char *s, size_t len, size_t *begin, size_t *end) {
    size_t i = *begin, run_end, count;
    while (digit_run(s, len, &i, &run_end, &count)) {
        if (count >= 3) {
            *begin = *end = skip_chars(s, len, i, count % 3);
            return true;
        }
        i = run_end;
    }
    return false;
}

static bool next_number(const char *s, size_t len, size_t *begin, size_t *end, int max) {
    size_t i = run_without(s, len, *begin, NUMBER);
    if (i >= len) return false;
    *begin = i;
    *end = digits(s, len, i, max);
    return true;
}

bool pl_scan_next(enum pl_scan scan, bool ascii_fold, const char *s, size_t len, size_t *begin, size_t *end) {
    size_t i = *begin;
    if (i >= len) return false;
    switch (scan) {
    case PL_SCAN_GPT2: *end = gpt2(s, len, i); return true;
    case PL_SCAN_CL100K: *end = cl100k(s, len, i, LETTER, 3, ascii_fold); return true;
    case PL_SCAN_QWEN2: *end = cl100k(s, len, i, LETTER, 1, ascii_fold); return true;
    case PL_SCAN_QWEN35: *end = cl100k(s, len, i, LETTER | MARK, 1, ascii_fold); return true;
    case PL_SCAN_DIGIT: return next_number(s, len, begin, end, 1);
    case PL_SCAN_DIGITS3: return next_number(s, len, begin, end, 3);
    case PL_SCAN_GROUPS3: return groups3(s, len, begin, end);
    case PL_SCAN_SUFFIX3: return suffix3(s, len, begin, end);
    case PL_SCAN_NEWLINES: {
        const char *nl = s[i] == '\n' ? NULL : memchr(s + i, '\n', len - i);
        size_t e = i;
        if (s[i] == '\n')
            while (e < len && s[e] == '\n') e++;
        else
            e = nl == NULL ? len : (size_t)(nl - s);
        *end = e;
        return true;
    }
    case PL_SCAN_NONE: break;
    }
    return false;
}

static const struct {
    enum pl_scan scan;
    const char *pattern;
} known[] = {
    {PL_SCAN_GPT2, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {PL_SCAN_CL100K, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {PL_SCAN_QWEN2, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {PL_SCAN_QWEN35, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
                     "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {PL_SCAN_DIGIT, "\\p{N}"},
    {PL_SCAN_DIGITS3, "\\p{N}{1,3}"},
    {PL_SCAN_GROUPS3, "\\d{1,3}(?=(?:\\d{3})*\\b)"},
    {PL_SCAN_SUFFIX3, "(?=(\\d{3})+(?!\\d))"},
    {PL_SCAN_NEWLINES, "[^\\n]+|[\\n]+"},
};

enum pl_scan pl_scan_for_pattern(struct pl_str p) {
    for (size_t i = 0; i < PL_COUNT_OF(known); i++)
        if (pl_str_eq_c(p, known[i].pattern)) return known[i].scan;
    return PL_SCAN_NONE;
}

const char *pl_scan_pattern(enum pl_scan scan) {
    for (size_t i = 0; i < PL_COUNT_OF(known); i++)
        if (known[i].scan == scan) return known[i].pattern;
    return NULL;
}
