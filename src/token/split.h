/* split - matchers that cut text, and the five ways to cut around a match.
 * A matcher is a hand-written scanner (the common pre-tokenizer regexes), a PCRE2 pattern, a literal or a character
 * class. Scanners give exactly the matches of the pattern they stand for; tests compare them with PCRE2. */
#ifndef PL_TOKEN_SPLIT_H
#define PL_TOKEN_SPLIT_H

#include "base/str.h"

struct pl_regex;          /* a compiled pattern, immutable */
struct pl_regex_scratch { /* one per thread */
    void *match, *stack, *mctx;
};
/* Oniguruma/Rust spelling is translated where PCRE2 differs (white space, word characters, class intersection). */
enum pl_status pl_regex_create(struct pl_str pattern, struct pl_regex **out, struct pl_err *err) PL_MUST_CHECK;
void pl_regex_destroy(struct pl_regex *re);
void pl_regex_scratch_deinit(struct pl_regex_scratch *s);
/* First match at or after from in valid UTF-8. PL_NOT_FOUND: none. PL_LIMIT: the pattern needs too much work. */
enum pl_status pl_regex_find(const struct pl_regex *re, struct pl_regex_scratch *s, const char *text, size_t len,
                             size_t from, size_t *begin, size_t *end, struct pl_err *err) PL_MUST_CHECK;

enum pl_scan {
    PL_SCAN_GPT2,     /* 's|'t|... | ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
    PL_SCAN_CL100K,   /* llama 3 and friends, \p{N}{1,3}; contractions in any case */
    PL_SCAN_QWEN2,    /* the same with \p{N} */
    PL_SCAN_QWEN35,   /* the same with marks as letters */
    PL_SCAN_DIGIT,    /* \p{N} */
    PL_SCAN_DIGITS3,  /* \p{N}{1,3} */
    PL_SCAN_GROUPS3,  /* \d{1,3}(?=(?:\d{3})*\b) */
    PL_SCAN_SUFFIX3,  /* (?=(\d{3})+(?!\d)): empty matches */
    PL_SCAN_NEWLINES, /* [^\n]+|[\n]+ */
    PL_SCAN_NONE
};
/* The end of the match that starts at or after *begin (moved there); false: none. flags: PL_SCAN_ASCII_FOLD. */
bool pl_scan_next(enum pl_scan scan, bool ascii_fold, const char *s, size_t len, size_t *begin, size_t *end);
/* The scanner of a pattern as it is spelled in published tokenizers, or PL_SCAN_NONE. */
enum pl_scan pl_scan_for_pattern(struct pl_str pattern);
const char *pl_scan_pattern(enum pl_scan scan); /* the pattern it stands for */

enum pl_split_class { PL_CLASS_SPACE, PL_CLASS_NUMBER, PL_CLASS_PUNCT, PL_CLASS_WORD_RUNS, PL_CLASS_CHAR };
enum pl_match_kind { PL_MATCH_SCAN, PL_MATCH_REGEX, PL_MATCH_LITERAL, PL_MATCH_CLASS };
enum pl_split_behavior { PL_SPLIT_REMOVED, PL_SPLIT_ISOLATED, PL_SPLIT_PREVIOUS, PL_SPLIT_NEXT, PL_SPLIT_CONTIGUOUS };
struct pl_splitter {
    enum pl_match_kind kind;
    enum pl_split_behavior behavior;
    bool invert, ascii_fold;
    enum pl_scan scan;
    enum pl_split_class cls;
    uint32_t ch; /* PL_CLASS_CHAR */
    struct pl_str literal;
    struct pl_regex *re; /* owned */
};

#endif
