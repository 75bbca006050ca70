/* http_call - inside of http.c and download.c: one GET with its redirects, the body going to a function. */
#ifndef PL_CMD_HTTP_CALL_H
#define PL_CMD_HTTP_CALL_H

#include "cmd/http.h"

struct pl_http_call {
    const struct pl_http *http;
    const char *accept;    /* Accept header or NULL */
    uint64_t resume_from;  /* > 0: ask for the rest only */
    const char *validator; /* If-Range, or NULL */
    /* Takes body bytes of a 200 or 206; anything but PL_OK (with err filled) ends the call. */
    enum pl_status (*body)(struct pl_http_call *c, const void *data, size_t len, struct pl_err *err);
    void *user;

    long code;              /* of the last response */
    char etag[256];         /* strong ETag of the last response, or "" */
    uint64_t length;        /* Content-Length of the last response; UINT64_MAX: not said */
    uint64_t range_start;   /* of a 206; UINT64_MAX: not said */
    char linked_sha256[65]; /* X-Linked-ETag of the first response when it is a SHA-256, or "" */
    uint32_t retry_after_s;
    bool temporary;  /* a failure that may pass: worth another try */
    char *final_url; /* of the last response; owned */
};

/* PL_OK: the last response was 200 or 206 and its body arrived whole. */
enum pl_status pl_http_call_run(struct pl_http_call *c, const char *url, struct pl_err *err) PL_MUST_CHECK;
void pl_http_call_deinit(struct pl_http_call *c);
/* Sleeps before try number `attempt` (1 = the first repetition). */
void pl_http_call_wait(const struct pl_http_call *c, uint32_t attempt);

#endif
