#include "serve/json_out.h"

#include <math.h>
#include <string.h>

static void add_escaped(struct pl_buf *b, unsigned char c) {
    switch (c) {
    case '"': pl_buf_add(b, "\\\"", 2); break;
    case '\\': pl_buf_add(b, "\\\\", 2); break;
    case '\n': pl_buf_add(b, "\\n", 2); break;
    case '\r': pl_buf_add(b, "\\r", 2); break;
    case '\t': pl_buf_add(b, "\\t", 2); break;
    default: pl_buf_printf(b, "\\u%04x", c);
    }
}

/* What some clients take for the end of a line inside an event (Python's splitlines does): U+0085, U+2028, U+2029; 0:
 * another. */
static unsigned ends_line(const char *s, size_t n) {
    if (n == 2 && memcmp(s, "\xC2\x85", 2) == 0) return 0x85;
    if (n == 3 && memcmp(s, "\xE2\x80", 2) == 0 && ((unsigned char)s[2] & 0xFE) == 0xA8)
        return 0x2000 + ((unsigned char)s[2] & 0x3F);
    return 0;
}

void pl_json_add_string(struct pl_buf *b, const char *s, size_t len) {
    pl_buf_add_char(b, '"');
    size_t plain = 0; /* bytes that can be copied as they are */
    for (size_t i = 0; i < len;) {
        unsigned char c = (unsigned char)s[i];
        size_t n = pl_utf8_len(s + i, len - i);
        unsigned line = ends_line(s + i, n);
        if (line == 0 && n > 0 && c >= 0x20 && c != '"' && c != '\\' && c != 0x7F) {
            plain += n;
            i += n;
            continue;
        }
        pl_buf_add(b, s + i - plain, plain);
        plain = 0;
        if (n == 0)
            pl_buf_add(b, "\xEF\xBF\xBD", 3);
        else if (line != 0)
            pl_buf_printf(b, "\\u%04x", line);
        else
            add_escaped(b, c);
        i += PL_MAX(n, 1);
    }
    pl_buf_add(b, s + len - plain, plain);
    pl_buf_add_char(b, '"');
}

void pl_json_add_number(struct pl_buf *b, double v) {
    if (!isfinite(v)) v = -9999.0;
    pl_buf_printf(b, "%.9g", v);
}
