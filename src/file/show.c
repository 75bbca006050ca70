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

size_t pl_show_into(struct pl_str s, char *out, size_t room) {
    size_t at = 0, i = 0;
    while (i < s.len) {
        size_t skip, n = pl_utf8_printable(s.data + i, s.len - i, &skip);
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
