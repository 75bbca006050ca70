/* pretypes - the named pre-tokenizers of GGUF files (tokenizer.ggml.pre). */
#ifndef PL_TOKEN_PRETYPES_H
#define PL_TOKEN_PRETYPES_H

#include "base/str.h"

#define PL_PRETYPE_IGNORE_MERGES 1u
#define PL_PRETYPE_ADD_BOS       2u
#define PL_PRETYPE_RAW           4u /* merges work on UTF-8 with U+2581 for spaces, unknown characters as <0xXX> */
#define PL_PRETYPE_NEWLINES      8u /* a run of newlines that is a token is taken whole */

struct pl_pretype {
    const char *names;       /* separated by spaces */
    const char *patterns[6]; /* one Split after the other, matches isolated */
    unsigned flags;
};
const struct pl_pretype *pl_pretype_find(struct pl_str name); /* NULL: not known */
void pl_pretype_list(struct pl_buf *out);                     /* "bailingmoe, bloom, ..." for messages */

#endif
