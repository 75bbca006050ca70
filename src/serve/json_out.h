/* json_out - writing JSON by hand where building a tree per token would cost more than the token. */
#ifndef PL_SERVE_JSON_OUT_H
#define PL_SERVE_JSON_OUT_H

#include "base/str.h"

/* A JSON string with its quotes; bytes that are no UTF-8 become U+FFFD, control characters are escaped, and so are
 * U+0085, U+2028 and U+2029, at which clients that read events line by line may break. */
void pl_json_add_string(struct pl_buf *b, const char *s, size_t len);
/* A finite number as short as it stays exact enough (%.9g); NaN and infinities become -9999.0, which is what clients of
 * the logprob fields expect of "impossible". */
void pl_json_add_number(struct pl_buf *b, double v);

#endif
