#include "serve/stops.h"

#include <string.h>

#include "base/mem.h"

void pl_stops_deinit(struct pl_stops *s) {
    for (uint32_t i = 0; i < s->count; i++) pl_free(s->text[i]);
    *s = (struct pl_stops){0};
}

enum pl_status pl_stops_add(struct pl_stops *s, const char *text, size_t len, struct pl_err *err) {
    if (len == 0) PL_FAIL(err, PL_INVALID, "a stop string is empty");
    if (s->count == PL_STOPS_MAX) PL_FAIL(err, PL_INVALID, "more than %d stop strings", PL_STOPS_MAX);
    char *copy = pl_strndup(text, len);
    if (copy == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a stop string");
    s->text[s->count] = copy;
    s->len[s->count++] = len;
    return PL_OK;
}

/* Longest proper prefix of a stop string that the text ends with. */
static size_t partial_tail(const struct pl_stops *s, const char *text, size_t len) {
    size_t best = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        size_t longest = PL_MIN(s->len[i] - 1, len);
        for (size_t n = longest; n > best; n--) {
            if (memcmp(text + len - n, s->text[i], n) != 0) continue;
            best = n;
            break;
        }
    }
    return best;
}

/* Whichever stop string completes first ends the text, so the answer does not depend on where tokens were cut; of those
 * that complete together the longest counts. */
bool pl_stops_scan(const struct pl_stops *s, const struct pl_buf *held, size_t *release, uint32_t *which) {
    const char *text = pl_buf_cstr(held), *first_end = NULL;
    for (uint32_t i = 0; i < s->count; i++) {
        const char *at = memmem(text, held->len, s->text[i], s->len[i]);
        if (at == NULL) continue;
        const char *end = at + s->len[i];
        if (first_end != NULL && (end > first_end || (end == first_end && s->len[i] <= s->len[*which]))) continue;
        first_end = end;
        *which = i;
    }
    if (first_end == NULL) {
        *release = held->len - partial_tail(s, text, held->len);
        return false;
    }
    *release = (size_t)(first_end - text) - s->len[*which];
    return true;
}
