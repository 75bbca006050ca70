/* cursor - reading little-endian fields of a part, each one bounds checked, each failure naming file, field and byte.
 * `subject` ("key general.name", "tensor blk.0.attn_q.weight") is what the fields belong to. */
#ifndef PL_FILE_CURSOR_H
#define PL_FILE_CURSOR_H

#include "file/reader.h"

struct pl_cursor {
    const struct pl_part *part;
    uint64_t at;
    const char *kind;      /* "header", "key", "tensor" */
    struct pl_str subject; /* name; empty before it is known */
    struct pl_err *err;
};

/* The next n bytes, or an error that says the file ends too early. */
enum pl_status pl_take(struct pl_cursor *c, uint64_t n, const char *field, const uint8_t **out) PL_MUST_CHECK;
enum pl_status pl_take_u32(struct pl_cursor *c, const char *field, uint32_t *out) PL_MUST_CHECK;
enum pl_status pl_take_u64(struct pl_cursor *c, const char *field, uint64_t *out) PL_MUST_CHECK;
/* u64 length, then that many bytes. */
enum pl_status pl_take_string(struct pl_cursor *c, const char *field, struct pl_str *out) PL_MUST_CHECK;
/* A string that names something: 1..max bytes of valid UTF-8 without control characters. */
enum pl_status pl_take_name(struct pl_cursor *c, const char *field, uint64_t max, struct pl_str *out) PL_MUST_CHECK;

/* Valid UTF-8 without control characters. */
bool pl_is_name(struct pl_str s);

#endif
