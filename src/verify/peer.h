/* peer - calls to a server whose answers are to be judged: JSON or text, bounded in bytes and time.
 *
 * A peer keeps one connection open between calls and belongs to one thread. Every answer with an HTTP status is PL_OK,
 * whatever the status; no answer at all is PL_IO with the reason. Builds without libcurl say PL_UNSUPPORTED. */
#ifndef PL_VERIFY_PEER_H
#define PL_VERIFY_PEER_H

#include <jansson.h>

#include "base/str.h"

struct pl_peer {
    const char *url, *api_key; /* api_key NULL: none */
    uint32_t timeout_s;
    void *curl; /* own */
};
void pl_peer_deinit(struct pl_peer *p);

/* GET when body is NULL, else POST of that JSON. *out is appended to. */
enum pl_status pl_peer_call(struct pl_peer *p, const char *path, const char *body, long *http_status, struct pl_buf *out,
                            struct pl_err *err) PL_MUST_CHECK;
/* The same with JSON in and out; body is borrowed, NULL: GET. *out is NULL when the answer was no JSON. */
enum pl_status pl_peer_json(struct pl_peer *p, const char *path, const json_t *body, long *http_status, json_t **out,
                            struct pl_err *err) PL_MUST_CHECK;
/* What an error body says: error.message, error, or "". */
const char *pl_peer_error_text(const json_t *answer);

#endif
