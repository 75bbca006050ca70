/* show - numbers and untrusted names in messages. */
#ifndef PL_FILE_SHOW_H
#define PL_FILE_SHOW_H

#include "base/str.h"

struct pl_shown_num {
    char s[32];
};
struct pl_shown_text {
    char s[104];
};
/* The value with thousands separators; lives to the end of the full expression: printf("%s", pl_num(n).s). */
struct pl_shown_num pl_num(uint64_t v);
/* Fills at most room bytes with s, terminated, as pl_shown does; returns how many bytes of s it took. */
size_t pl_show_into(struct pl_str s, char *out, size_t room);
/* About a hundred bytes of it, control characters and broken UTF-8 replaced by '?', "..." when cut. */
struct pl_shown_text pl_shown(struct pl_str s);
#define PL_SHOWN_C(cstr) pl_shown(pl_str_from(cstr)).s

#endif
