/* stops - stop strings over token borders. Bytes that may be the beginning of a stop string are held back, so that no
 * part of one ever reaches a client. */
#ifndef PL_SERVE_STOPS_H
#define PL_SERVE_STOPS_H

#include "base/str.h"

enum { PL_STOPS_MAX = 16 };

struct pl_stops {
    char *text[PL_STOPS_MAX]; /* owned, not empty */
    size_t len[PL_STOPS_MAX];
    uint32_t count;
};
void pl_stops_deinit(struct pl_stops *s);
enum pl_status pl_stops_add(struct pl_stops *s, const char *text, size_t len, struct pl_err *err) PL_MUST_CHECK;

/* held collects text that was not released yet. After appending to it: returns true when a stop string stands in it
 * (the one that completes first; of several that complete together the longest); *release bytes from its front may go out;
 * *which is its index. */
bool pl_stops_scan(const struct pl_stops *s, const struct pl_buf *held, size_t *release, uint32_t *which);

#endif
