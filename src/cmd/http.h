/* http - GET with rules: bounded redirects followed by hand, the token only ever sent to the host it is for, bodies
 * into a bounded buffer or into a file that can be continued after an interruption.
 *
 * Errors name the address without user, password or query, because those hold secrets. Needs libcurl; without it every
 * call is PL_UNSUPPORTED. */
#ifndef PL_CMD_HTTP_H
#define PL_CMD_HTTP_H

#include <stdint.h>

#include "base/str.h"
#include "cmd/digest.h"

struct pl_http {
    const char *token;        /* bearer token; NULL: none */
    const char *token_origin; /* an address whose scheme, host and port are the only ones that get it */
    uint32_t retries;         /* after a broken connection or a busy server */
};

/* The whole body, at most max bytes. accept: the Accept header or NULL. *final_url (may be NULL) is where it came from
 * after redirects; pl_free it. */
enum pl_status pl_http_text(const struct pl_http *h, const char *url, const char *accept, size_t max, struct pl_buf *body,
                            char **final_url, struct pl_err *err) PL_MUST_CHECK;

struct pl_http_file {
    const char *url;
    const char *path;  /* appears complete and checked, or not at all; path.part is the unfinished file */
    const char *label; /* for the progress line */
    uint64_t bytes;    /* 0: not known beforehand; filled with what it was */
    char sha256[65];   /* "": not known beforehand; filled with what it was */
    char git_sha1[41]; /* "": not known */
};
enum pl_status pl_http_download(const struct pl_http *h, struct pl_http_file *f, struct pl_err *err) PL_MUST_CHECK;

/* rel as seen from base; pl_free it. */
enum pl_status pl_http_join(const char *base, const char *rel, char **out, struct pl_err *err) PL_MUST_CHECK;
/* The address without user, password, query and fragment, for messages. */
void pl_http_redact(const char *url, char *out, size_t cap);

#endif
