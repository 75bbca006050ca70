#include "token/unicode.h"

#include <pthread.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"

struct range {
    uint32_t first, last;
};
struct newer {
    uint32_t first, last;
    utf8proc_category_t category;
};
#include "token/unicode_tables.h"

uint8_t pl_uc_table[0x110000];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool white_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/* Circled and squared letters: Alphabetic although their category is So. */
static bool other_alphabetic(uint32_t c) {
    return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
           (c >= 0x1F170 && c <= 0x1F189);
}

static unsigned category_flags(utf8proc_category_t k) {
    switch (k) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return PL_UC_LETTER | PL_UC_WORD;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: return PL_UC_MARK | PL_UC_WORD;
    case UTF8PROC_CATEGORY_ND: return PL_UC_NUMBER | PL_UC_WORD | PL_UC_DIGIT;
    case UTF8PROC_CATEGORY_NL: return PL_UC_NUMBER | PL_UC_WORD;
    case UTF8PROC_CATEGORY_NO: return PL_UC_NUMBER;
    case UTF8PROC_CATEGORY_PC: return PL_UC_PUNCT | PL_UC_WORD;
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO: return PL_UC_PUNCT;
    default: return 0;
    }
}

static void fill_known(void) {
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c == 0x3400 || c == 0x4E00 || c == 0xAC00 || c == 0x20000) {
            /* long runs of one class: CJK, Hangul syllables */
            uint32_t end = c == 0x3400 ? 0x4DC0 : c == 0x4E00 ? 0xA000 : c == 0xAC00 ? 0xD7A4 : 0x2A6DF;
            for (; c < end; c++) pl_uc_table[c] = PL_UC_LETTER | PL_UC_WORD;
        }
        if (c >= 0x32000 && c < 0xE0000) continue; /* unassigned planes */
        if (c >= 0xF0000) return;                  /* private use */
        unsigned f = category_flags(utf8proc_category((utf8proc_int32_t)c));
        if (white_space(c)) f |= PL_UC_SPACE;
        if (other_alphabetic(c) || c == 0x200C || c == 0x200D) f |= PL_UC_WORD;
        pl_uc_table[c] = (uint8_t)f;
    }
}

static void fill(void) {
    fill_known();
    for (size_t i = 0; i < PL_COUNT_OF(newer); i++)
        for (uint32_t c = newer[i].first; c <= newer[i].last; c++)
            pl_uc_table[c] = (uint8_t)category_flags(newer[i].category);
}

void pl_uc_init(void) { (void)pthread_once(&once, fill); }

size_t pl_uc_encode(uint32_t cp, char out[4]) {
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)cp, (utf8proc_uint8_t *)out);
}

static bool in_ranges(const struct range *r, size_t n, uint32_t c) {
    size_t low = 0;
    while (low < n) { /* the first range that does not end before c */
        size_t mid = (low + n) / 2;
        if (r[mid].last < c)
            low = mid + 1;
        else
            n = mid;
    }
    return r[low].first <= c && c <= r[low].last;
}
/* The last range ends the search: past it there is nothing to look at. */
#define IN(table, c) ((c) <= (table)[PL_COUNT_OF(table) - 1].last && in_ranges(table, PL_COUNT_OF(table) - 1, c))

bool pl_uc_is_bert_other(uint32_t c) { return c < 0x80 ? c < 0x20 || c == 0x7F : IN(bert_other, c); }
bool pl_uc_is_bert_mark(uint32_t c) { return IN(bert_marks, c); }
bool pl_uc_is_accent(uint32_t c) { return IN(accents, c); }
bool pl_uc_is_bert_punct(uint32_t c) {
    if (c < 0x80) return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
    return IN(bert_punct, c);
}

bool pl_uc_is_unnormalized(uint32_t c) {
    if (IN(unknown, c)) return true;
    for (size_t i = 0; i < PL_COUNT_OF(newer) && newer[i].first <= c; i++)
        if (c <= newer[i].last) return true;
    return false;
}

static const char *category_name(utf8proc_category_t k) {
    switch (k) {
    case UTF8PROC_CATEGORY_LU: return "Lu";
    case UTF8PROC_CATEGORY_LL: return "Ll";
    case UTF8PROC_CATEGORY_LM: return "Lm";
    case UTF8PROC_CATEGORY_LO: return "Lo";
    case UTF8PROC_CATEGORY_MN: return "Mn";
    case UTF8PROC_CATEGORY_MC: return "Mc";
    case UTF8PROC_CATEGORY_ND: return "Nd";
    case UTF8PROC_CATEGORY_NO: return "No";
    case UTF8PROC_CATEGORY_PO: return "Po";
    default: return "So";
    }
}

void pl_uc_add_newer(struct pl_buf *out, const char *name, size_t len) {
    for (size_t i = 0; i < PL_COUNT_OF(newer) && len >= 1 && len <= 2; i++)
        if (memcmp(category_name(newer[i].category), name, len) == 0)
            pl_buf_printf(out, "\\x{%x}-\\x{%x}", newer[i].first, newer[i].last);
}

bool pl_uc_is_chinese(uint32_t c) {
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) ||
           (c >= 0x2B920 && c <= 0x2CEAF) || /* Hugging Face's bound; BERT's own is 2B820 */
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

uint32_t pl_uc_lower(uint32_t cp) {
    if (cp < 0x80) return cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
    uint32_t low = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
    for (size_t i = 0; i < PL_COUNT_OF(newer_lower) && low == cp && cp >= newer_lower[i][0]; i++)
        if (newer_lower[i][0] == cp) return newer_lower[i][1];
    return low;
}

static bool printable_byte(unsigned b) { return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE; }

uint32_t pl_uc_byte_to_cp(unsigned char b) {
    if (printable_byte(b)) return b;
    if (b <= 0x20) return 0x100u + b;
    if (b == 0xAD) return 0x143;
    return 0x121u + (b - 0x7Fu); /* 7F..A0 follow the 33 bytes 00..20 */
}

int pl_uc_cp_to_byte(uint32_t cp) {
    if (cp < 0x100) return printable_byte(cp) ? (int)cp : -1;
    if (cp <= 0x120) return (int)(cp - 0x100);
    if (cp <= 0x142) return (int)(cp - 0x121 + 0x7F);
    return cp == 0x143 ? 0xAD : -1;
}
