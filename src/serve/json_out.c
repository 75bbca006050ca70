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

void pl_json_add_string(struct pl_buf *b, const char *s, size_t len) {
    pl_buf_add_char(b, '"');
    size_t plain = 0; /* bytes that can be copied as they are */
    for (size_t i = 0; i < len;) {
        unsigned char c = (unsigned char)s[i];
        size_t n = pl_utf8_len(s + i, len - i);
        if (n > 0 && c >= 0x20 && c != '"' && c != '\\' && c != 0x7F) {
            plain += n;
            i += n;
            continue;
        }
        pl_buf_add(b, s + i - plain, plain);
        plain = 0;
        if (n == 0)
            pl_buf_add(b, "\xEF\xBF\xBD", 3);
        else
            add_escaped(b, c);
        i++;
    }
    pl_buf_add(b, s + len - plain, plain);
    pl_buf_add_char(b, '"');
}

void pl_json_add_number(struct pl_buf *b, double v) {
    if (!isfinite(v)) v = -9999.0;
    pl_buf_printf(b, "%.9g", v);
}
