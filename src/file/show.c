#include <stdio.h>
#include <string.h>

#include "file/reader.h"

struct pl_shown_num pl_num(uint64_t v) {
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)v);
    struct pl_shown_num out;
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) out.s[at++] = ',';
        out.s[at++] = digits[i];
    }
    out.s[at] = '\0';
    return out;
}

/* How many bytes at p stand for one printable character; 0: none, print '?' for *skip bytes. */
static size_t printable(const char *p, size_t len, size_t *skip) {
    size_t n = pl_utf8_len(p, len);
    unsigned char c = (unsigned char)p[0];
    *skip = n == 0 ? 1 : n;
    bool control = c < 0x20 || c == 0x7F || (c == 0xC2 && n == 2 && (unsigned char)p[1] < 0xA0);
    return control ? 0 : n;
}

size_t pl_show_into(struct pl_str s, char *out, size_t room) {
    size_t at = 0, i = 0;
    while (i < s.len) {
        size_t skip, n = printable(s.data + i, s.len - i, &skip);
        if (at + PL_MAX(n, (size_t)1) >= room) break;
        if (n > 0)
            memcpy(out + at, s.data + i, n);
        else
            out[at] = '?';
        at += PL_MAX(n, (size_t)1);
        i += skip;
    }
    out[at] = '\0';
    return i;
}

struct pl_shown_text pl_shown(struct pl_str s) {
    struct pl_shown_text out;
    if (pl_show_into(s, out.s, sizeof out.s - 4) < s.len) memcpy(out.s + strlen(out.s), "...", 4);
    return out;
}
