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

struct pl_shown_text pl_shown(struct pl_str s) {
    enum { MAX = 96 };
    struct pl_shown_text out;
    size_t at = 0, i = 0;
    while (i < s.len) {
        size_t n = pl_utf8_len(s.data + i, s.len - i);
        if (at + (n == 0 ? 1 : n) > MAX) break;
        unsigned char c = (unsigned char)s.data[i];
        if (n == 0 || c < 0x20 || c == 0x7F || (n == 2 && c == 0xC2 && (unsigned char)s.data[i + 1] < 0xA0)) {
            out.s[at++] = '?';
        } else {
            memcpy(out.s + at, s.data + i, n);
            at += n;
        }
        i += n == 0 ? 1 : n;
    }
    memcpy(out.s + at, i < s.len ? "..." : "", i < s.len ? 4 : 1);
    return out;
}
