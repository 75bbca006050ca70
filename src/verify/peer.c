#include "verify/peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef PL_HAVE_CURL
#include <curl/curl.h>

enum { BODY_MAX = 64 << 20 };

static size_t on_data(char *data, size_t size, size_t n, void *user) {
    struct pl_buf *b = user;
    if (b->len + size * n > BODY_MAX) return 0;
    pl_buf_add(b, data, size * n);
    return pl_buf_ok(b) ? size * n : 0;
}

void pl_peer_deinit(struct pl_peer *p) {
    if (p->curl != NULL) curl_easy_cleanup(p->curl);
    p->curl = NULL;
}

static void set_options(CURL *c, const struct pl_peer *p, const char *url, const char *body, struct curl_slist *headers,
                        struct pl_buf *out) {
    curl_easy_reset(c); /* keeps the connection */
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_TIMEOUT, (long)(p->timeout_s == 0 ? 600 : p->timeout_s));
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, out);
    if (body == NULL) return;
    curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE, (long)strlen(body));
    curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
}

/* Who is asked is who was named: neither a key nor a verdict goes to somebody else. */
static enum pl_status refuse_redirect(const struct pl_peer *p, const char *url, long *http_status, struct pl_err *err) {
    char *to = NULL;
    long status = *http_status;
    curl_easy_getinfo(p->curl, CURLINFO_REDIRECT_URL, &to);
    *http_status = 0;
    PL_FAIL(err, PL_IO, "%.300s redirects (HTTP %ld) to %.200s: redirects are not followed, give that address", url, status,
            to != NULL ? to : "nowhere");
}

enum pl_status pl_peer_call(struct pl_peer *p, const char *path, const char *body, long *http_status, struct pl_buf *out,
                            struct pl_err *err) {
    char url[1200], auth[600];
    size_t len = strlen(p->url);
    *http_status = 0;
    snprintf(url, sizeof url, "%.*s%s", (int)(len > 0 && p->url[len - 1] == '/' ? len - 1 : len), p->url, path);
    if (p->curl == NULL) p->curl = curl_easy_init();
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (p->api_key != NULL) {
        snprintf(auth, sizeof auth, "Authorization: Bearer %.500s", p->api_key);
        headers = curl_slist_append(headers, auth);
    }
    CURLcode rc = CURLE_FAILED_INIT;
    if (p->curl != NULL && headers != NULL) {
        set_options(p->curl, p, url, body, headers, out);
        rc = curl_easy_perform(p->curl);
        if (rc == CURLE_OK) curl_easy_getinfo(p->curl, CURLINFO_RESPONSE_CODE, http_status);
    }
    curl_slist_free_all(headers);
    if (rc == CURLE_WRITE_ERROR && pl_buf_ok(out))
        PL_FAIL(err, PL_LIMIT, "%.300s: the answer is larger than %d MB, it is not read on", url, BODY_MAX >> 20);
    if (rc != CURLE_OK) PL_FAIL(err, PL_IO, "%.300s: %s", url, curl_easy_strerror(rc));
    return *http_status / 100 == 3 ? refuse_redirect(p, url, http_status, err) : PL_OK;
}

#else

void pl_peer_deinit(struct pl_peer *p) { (void)p; }

enum pl_status pl_peer_call(struct pl_peer *p, const char *path, const char *body, long *http_status, struct pl_buf *out,
                            struct pl_err *err) {
    (void)path, (void)body, (void)out;
    *http_status = 0;
    PL_FAIL(err, PL_UNSUPPORTED, "%.200s: this build has no HTTP client (libcurl)", p->url);
}

#endif

enum pl_status pl_peer_json(struct pl_peer *p, const char *path, const json_t *body, long *http_status, json_t **out,
                            struct pl_err *err) {
    struct pl_buf answer = {0};
    char *text = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
    if (body != NULL && text == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a request");
    enum pl_status st = pl_peer_call(p, path, text, http_status, &answer, err);
    free(text);
    if (st == PL_OK) *out = json_loadb(pl_buf_cstr(&answer), answer.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    pl_buf_deinit(&answer);
    return st;
}

const char *pl_peer_error_text(const json_t *answer) {
    const json_t *e = json_object_get(answer, "error");
    const char *text = json_string_value(json_is_object(e) ? json_object_get(e, "message") : e);
    return text != NULL ? text : "";
}
