#include "base/str.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"

struct pl_str pl_str_from(const char *c) {
    return (struct pl_str){c, c == NULL ? 0 : strlen(c)};
}
bool pl_str_eq(struct pl_str a, struct pl_str b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}
bool pl_str_eq_c(struct pl_str a, const char *c) { return pl_str_eq(a, pl_str_from(c)); }
bool pl_str_starts(struct pl_str s, const char *p) {
    size_t n = strlen(p);
    return s.len >= n && memcmp(s.data, p, n) == 0;
}
bool pl_str_ends(struct pl_str s, const char *p) {
    size_t n = strlen(p);
    return s.len >= n && memcmp(s.data + s.len - n, p, n) == 0;
}

void pl_buf_deinit(struct pl_buf *b) {
    pl_free(b->data);
    *b = (struct pl_buf){0};
}

void pl_buf_clear(struct pl_buf *b) {
    b->len = 0;
    if (b->data != NULL) b->data[0] = '\0';
}

static bool reserve(struct pl_buf *b, size_t extra) {
    size_t need;
    if (b->failed) return false;
    if (!pl_add_size(b->len, extra, &need) || !pl_add_size(need, 1, &need) || pl_grow(&b->data, &b->cap, need, 1) != PL_OK) {
        b->failed = true;
        return false;
    }
    return true;
}

void pl_buf_add(struct pl_buf *b, const void *data, size_t len) {
    if (!reserve(b, len)) return;
    if (len > 0) memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = '\0';
}

void pl_buf_add_c(struct pl_buf *b, const char *c) { pl_buf_add(b, c, strlen(c)); }
void pl_buf_add_char(struct pl_buf *b, char c) { pl_buf_add(b, &c, 1); }

void pl_buf_add_utf8(struct pl_buf *b, uint32_t cp) {
    unsigned char s[4];
    size_t n;
    if (cp < 0x80) {
        s[0] = (unsigned char)cp;
        n = 1;
    } else if (cp < 0x800) {
        s[0] = (unsigned char)(0xC0 | (cp >> 6));
        s[1] = (unsigned char)(0x80 | (cp & 63));
        n = 2;
    } else if (cp < 0x10000) {
        s[0] = (unsigned char)(0xE0 | (cp >> 12));
        s[1] = (unsigned char)(0x80 | ((cp >> 6) & 63));
        s[2] = (unsigned char)(0x80 | (cp & 63));
        n = 3;
    } else {
        s[0] = (unsigned char)(0xF0 | ((cp >> 18) & 7));
        s[1] = (unsigned char)(0x80 | ((cp >> 12) & 63));
        s[2] = (unsigned char)(0x80 | ((cp >> 6) & 63));
        s[3] = (unsigned char)(0x80 | (cp & 63));
        n = 4;
    }
    pl_buf_add(b, s, n);
}

void pl_buf_printf(struct pl_buf *b, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n >= 0 && reserve(b, (size_t)n)) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    } else {
        b->failed = true;
    }
    va_end(again);
}

void pl_buf_add_word(struct pl_buf *b, const char *word) {
    pl_buf_add_c(b, " '");
    for (; *word != '\0'; word++) {
        if (*word == '\'')
            pl_buf_add_c(b, "'\\''");
        else
            pl_buf_add_char(b, *word);
    }
    pl_buf_add_char(b, '\'');
}

bool pl_buf_ok(const struct pl_buf *b) { return !b->failed; }
const char *pl_buf_cstr(const struct pl_buf *b) { return b->data == NULL ? "" : b->data; }

bool pl_parse_i64(const char *s, int64_t min, int64_t max, int64_t *out) {
    if (!((s[0] >= '0' && s[0] <= '9') || (s[0] == '-' && s[1] >= '0' && s[1] <= '9'))) return false;
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (errno != 0 || *end != '\0' || v < min || v > max) return false;
    *out = v;
    return true;
}

bool pl_parse_u64(const char *s, uint64_t max, uint64_t *out) {
    if (!(s[0] >= '0' && s[0] <= '9')) return false;
    char *end;
    errno = 0;
    unsigned long long v = strtoull(s, &end, 10);
    if (errno != 0 || *end != '\0' || v > max) return false;
    *out = v;
    return true;
}

bool pl_parse_f64(const char *s, double min, double max, double *out) {
    if (!((s[0] >= '0' && s[0] <= '9') || s[0] == '-' || s[0] == '+' || s[0] == '.')) return false;
    char *end;
    errno = 0;
    double v = strtod(s, &end);
    if (end == s || *end != '\0' || !isfinite(v) || v < min || v > max) return false;
    *out = v;
    return true;
}

static bool cont(char c) { return ((unsigned char)c & 0xC0) == 0x80; }

size_t pl_utf8_len(const char *p, size_t avail) {
    if (avail == 0) return 0;
    const unsigned char *s = (const unsigned char *)p;
    if (s[0] < 0x80) return 1;
    if (s[0] < 0xC2) return 0;
    if (s[0] < 0xE0) return avail >= 2 && cont(p[1]) ? 2 : 0;
    if (s[0] < 0xF0) {
        if (avail < 3 || !cont(p[1]) || !cont(p[2])) return 0;
        if (s[0] == 0xE0 && s[1] < 0xA0) return 0; /* overlong */
        if (s[0] == 0xED && s[1] > 0x9F) return 0; /* surrogate */
        return 3;
    }
    if (s[0] > 0xF4 || avail < 4 || !cont(p[1]) || !cont(p[2]) || !cont(p[3])) return 0;
    if (s[0] == 0xF0 && s[1] < 0x90) return 0;
    if (s[0] == 0xF4 && s[1] > 0x8F) return 0;
    return 4;
}

uint32_t pl_utf8_decode(const char *p, size_t len) {
    const unsigned char *s = (const unsigned char *)p;
    switch (len) {
    case 1: return s[0];
    case 2: return ((uint32_t)(s[0] & 0x1F) << 6) | (s[1] & 0x3F);
    case 3: return ((uint32_t)(s[0] & 0x0F) << 12) | ((uint32_t)(s[1] & 0x3F) << 6) | (s[2] & 0x3F);
    case 4:
        return ((uint32_t)(s[0] & 0x07) << 18) | ((uint32_t)(s[1] & 0x3F) << 12) | ((uint32_t)(s[2] & 0x3F) << 6) |
               (s[3] & 0x3F);
    default: return 0xFFFD;
    }
}

bool pl_utf8_valid(const char *s, size_t len) {
    while (len > 0) {
        size_t n = pl_utf8_len(s, len);
        if (n == 0) return false;
        s += n;
        len -= n;
    }
    return true;
}

size_t pl_utf8_printable(const char *p, size_t avail, size_t *skip) {
    size_t n = pl_utf8_len(p, avail);
    unsigned char c = (unsigned char)p[0];
    *skip = n == 0 ? 1 : n;
    bool control = c < 0x20 || c == 0x7F || (c == 0xC2 && n == 2 && (unsigned char)p[1] < 0xA0);
    return control ? 0 : n;
}

void pl_text_clean(char *text) {
    size_t len = strlen(text), to = 0;
    for (size_t i = 0, skip; i < len; i += skip) {
        size_t n = pl_utf8_printable(text + i, len - i, &skip);
        if (n == 0 && text[i] != '\n' && text[i] != '\t')
            text[to++] = '?';
        else
            for (size_t k = 0; k < skip; k++) text[to++] = text[i + k];
    }
    text[to] = '\0';
}

size_t pl_utf8_incomplete_tail(const char *s, size_t len) {
    for (size_t back = 1; back <= 3 && back <= len; back++) {
        unsigned char c = (unsigned char)s[len - back];
        if ((c & 0xC0) == 0x80) continue;
        size_t want = c >= 0xF0 && c <= 0xF4 ? 4 : c >= 0xE0 && c < 0xF0 ? 3 : c >= 0xC2 && c < 0xE0 ? 2 : 1;
        return want > back ? back : 0;
    }
    return 0;
}

size_t pl_edit_distance(const char *a, const char *b) {
    enum { CAP = 63 };
    size_t la = strnlen(a, CAP), lb = strnlen(b, CAP);
    size_t row[CAP + 1];
    for (size_t j = 0; j <= lb; j++) row[j] = j;
    for (size_t i = 1; i <= la; i++) {
        size_t diag = row[0];
        row[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            size_t up = row[j];
            size_t best = diag + (a[i - 1] != b[j - 1]);
            best = PL_MIN(best, up + 1);
            best = PL_MIN(best, row[j - 1] + 1);
            diag = up;
            row[j] = best;
        }
    }
    return row[lb];
}
