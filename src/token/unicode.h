/* unicode - what tokenizers ask about a code point. Classes come from utf8proc, one byte per code point in a table
 * that is filled once per process; white space is Unicode's White_Space (25 code points), not a regex dialect's.
 * Hugging Face tokenizers mixes editions of Unicode: its regexes know 16, BERT's classes are those of 8, its normalizers
 * those of 9. unicode_tables.h holds where that differs from the libraries. */
#ifndef PL_TOKEN_UNICODE_H
#define PL_TOKEN_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

enum pl_uc {
    PL_UC_LETTER = 1, /* L* */
    PL_UC_NUMBER = 2, /* N* */
    PL_UC_MARK = 4,   /* M* */
    PL_UC_PUNCT = 8,  /* P* */
    PL_UC_SPACE = 16, /* White_Space */
    PL_UC_WORD = 32,  /* Rust's \w: alphabetic, marks, decimal digits, connectors, joiners */
    PL_UC_DIGIT = 128 /* Nd */
};

extern uint8_t pl_uc_table[0x110000];
void pl_uc_init(void); /* idempotent, any thread */

static inline unsigned pl_uc_flags(uint32_t cp) { return cp < 0x110000 ? pl_uc_table[cp] : 0; }

/* Decodes the character at s, which must be valid UTF-8; returns its length. */
static inline size_t pl_uc_next(const char *s, uint32_t *cp) {
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80) {
        *cp = u[0];
        return 1;
    }
    if (u[0] < 0xE0) {
        *cp = (uint32_t)(u[0] & 0x1F) << 6 | (u[1] & 0x3F);
        return 2;
    }
    if (u[0] < 0xF0) {
        *cp = (uint32_t)(u[0] & 0x0F) << 12 | (uint32_t)(u[1] & 0x3F) << 6 | (u[2] & 0x3F);
        return 3;
    }
    *cp = (uint32_t)(u[0] & 0x07) << 18 | (uint32_t)(u[1] & 0x3F) << 12 | (uint32_t)(u[2] & 0x3F) << 6 | (u[3] & 0x3F);
    return 4;
}
/* Length that a lead byte announces (1 for continuation bytes), cut to what is there. */
static inline size_t pl_uc_lead_len(unsigned char c, size_t avail) {
    size_t n = c < 0xC0 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    return n < avail ? n : avail;
}
size_t pl_uc_encode(uint32_t cp, char out[4]);

bool pl_uc_is_chinese(uint32_t cp);      /* the CJK blocks of BERT's tokenizer */
bool pl_uc_is_bert_other(uint32_t cp);   /* BERT's control characters */
bool pl_uc_is_bert_mark(uint32_t cp);    /* Mn */
bool pl_uc_is_bert_punct(uint32_t cp);   /* P*, and in ASCII also S* */
bool pl_uc_is_accent(uint32_t cp);       /* M*, for StripAccents */
bool pl_uc_is_unnormalized(uint32_t cp); /* NFC and its kin leave it alone and take it for a starter */
/* For a regex class: the characters newer than the libraries of a category (L, Lu, N, ...), as ranges. */
void pl_uc_add_newer(struct pl_buf *out, const char *name, size_t len);
uint32_t pl_uc_lower(uint32_t cp); /* simple mapping; U+0130 is the caller's (two code points) */

/* GPT-2's bijection between bytes and printable code points (all below U+0180). */
uint32_t pl_uc_byte_to_cp(unsigned char b);
int pl_uc_cp_to_byte(uint32_t cp); /* -1: no byte */

#endif
