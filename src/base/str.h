/* str - views of bytes and a growing byte buffer.
 * A view never owns. A buffer is always terminated with a zero byte past len (data may be NULL while empty). An
 * allocation failure sets buf->failed and further appends do nothing: check once at the end with pl_buf_ok. */
#ifndef PL_BASE_STR_H
#define PL_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct pl_str {
    const char *data;
    size_t len;
};

#define PL_STR(literal) ((struct pl_str){(literal), sizeof(literal) - 1})
struct pl_str pl_str_from(const char *cstr);
bool pl_str_eq(struct pl_str a, struct pl_str b);
bool pl_str_eq_c(struct pl_str a, const char *cstr);
bool pl_str_starts(struct pl_str s, const char *prefix);
bool pl_str_ends(struct pl_str s, const char *suffix);

struct pl_buf {
    char *data;
    size_t len, cap;
    bool failed;
};

void pl_buf_deinit(struct pl_buf *b);
void pl_buf_clear(struct pl_buf *b); /* keeps memory */
void pl_buf_add(struct pl_buf *b, const void *data, size_t len);
void pl_buf_add_c(struct pl_buf *b, const char *cstr);
void pl_buf_add_char(struct pl_buf *b, char c);
void pl_buf_add_utf8(struct pl_buf *b, uint32_t code_point);
void pl_buf_printf(struct pl_buf *b, const char *fmt, ...) PL_PRINTF(2, 3);
/* A space and the word in quotes, so that a shell and whoever splits like one see it as it is. */
void pl_buf_add_word(struct pl_buf *b, const char *word);
bool pl_buf_ok(const struct pl_buf *b);
const char *pl_buf_cstr(const struct pl_buf *b); /* "" while empty */

/* Strict decimal parsing of a whole string: no leading space, no trailing bytes, range checked. */
bool pl_parse_i64(const char *s, int64_t min, int64_t max, int64_t *out);
bool pl_parse_u64(const char *s, uint64_t max, uint64_t *out);
bool pl_parse_f64(const char *s, double min, double max, double *out); /* finite only */

/* UTF-8. Length in bytes of the valid sequence at s (1..4), or 0 when it is invalid or cut. */
size_t pl_utf8_len(const char *s, size_t avail);
/* Decodes one valid sequence of the length pl_utf8_len gave. */
uint32_t pl_utf8_decode(const char *s, size_t len);
bool pl_utf8_valid(const char *s, size_t len);
/* Length of the printable character at s, or 0 for a control character and broken UTF-8: *skip bytes to pass over. */
size_t pl_utf8_printable(const char *s, size_t avail, size_t *skip);
/* Messages hold text of files: control characters other than newline and tab, and broken or cut UTF-8, become '?', so that
 * none reaches a terminal as a command. In place. */
void pl_text_clean(char *text);
/* How many bytes at the end of s are the beginning of a character that is not complete yet (0..3). */
size_t pl_utf8_incomplete_tail(const char *s, size_t len);

/* Edit distance for "did you mean" messages; capped, small strings only. */
size_t pl_edit_distance(const char *a, const char *b);

#endif
