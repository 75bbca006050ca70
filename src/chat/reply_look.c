/* reply_look.c - looking for marks in what has been written so far. */
#include <string.h>

#include "base/mem.h"
#include "chat/reply_internal.h"

bool reply_is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

const char *reply_rest(const struct pl_reply *r, size_t *len) {
    *len = r->in.len - r->at;
    return pl_buf_cstr(&r->in) + r->at;
}

size_t reply_spaces(const char *data, size_t len) {
    size_t n = 0;
    while (n < len && reply_is_space(data[n])) n++;
    return n;
}

enum reply_match reply_begins(const char *data, size_t len, const char *mark) {
    size_t n = mark == NULL ? 0 : strlen(mark);
    if (n == 0 || memcmp(data, mark, PL_MIN(n, len)) != 0) return REPLY_NO;
    return len >= n ? REPLY_YES : REPLY_MAYBE;
}

int reply_which(const char *data, size_t len, const char *const *marks, size_t count, bool last) {
    bool maybe = len == 0;
    int found = -1;
    for (size_t i = 0; i < count; i++) {
        enum reply_match m = reply_begins(data, len, marks[i]);
        if (m == REPLY_YES && found < 0) found = (int)i;
        maybe |= m == REPLY_MAYBE && found < 0;
    }
    return maybe && !last ? -2 : found;
}

const char *reply_closes(const char *data, size_t len, const char *mark, size_t window, bool last, bool *more) {
    size_t seen = PL_MIN(len, window);
    const char *at = seen == 0 ? NULL : memmem(data, seen, mark, strlen(mark));
    *more = at == NULL && len < window && !last;
    return at;
}

size_t reply_partial(const char *data, size_t len, const char *mark) {
    size_t n = PL_MIN(strlen(mark) - 1, len);
    while (n > 0 && memcmp(data + len - n, mark, n) != 0) n--;
    return n;
}

size_t reply_earliest(const char *data, size_t len, const char *const *marks, size_t count, size_t *mark, size_t *hold) {
    size_t first = SIZE_MAX;
    *hold = 0;
    for (size_t i = 0; i < count && len > 0; i++) {
        if (marks[i] == NULL) continue;
        const char *at = memmem(data, len, marks[i], strlen(marks[i]));
        *hold = PL_MAX(*hold, reply_partial(data, len, marks[i]));
        if (at == NULL || (size_t)(at - data) >= first) continue;
        first = (size_t)(at - data);
        *mark = i;
    }
    return first;
}

bool reply_mark_holds(const char *mark, const char *piece, size_t len) {
    return len >= PIECE_MIN && memmem(mark, strlen(mark), piece, len) != NULL;
}
