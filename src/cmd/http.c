#include "cmd/http.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "cmd/http_call.h"
#include "plumb.h"

#ifdef PL_HAVE_CURL
#include <curl/curl.h>

enum { MAX_REDIRECTS = 10, CONNECT_TIMEOUT_S = 20, STALL_BYTES_S = 512, STALL_S = 30 };

struct hop { /* what the callbacks of one request see */
    struct pl_http_call *call;
    CURL *curl;
    bool first;
    enum pl_status fault;
    struct pl_err *err;
};

static bool url_part(CURLU *u, CURLUPart what, unsigned flags, char *out, size_t cap) {
    char *text = NULL;
    out[0] = '\0';
    if (curl_url_get(u, what, &text, flags) != CURLUE_OK) return false;
    size_t len = strlen(text);
    if (len < cap) memcpy(out, text, len + 1);
    curl_free(text);
    return len < cap;
}

void pl_http_redact(const char *url, char *out, size_t cap) {
    CURLU *u = curl_url();
    char *text = NULL;
    out[0] = '\0';
    if (u != NULL && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK) {
        const CURLUPart secret[] = {CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_OPTIONS, CURLUPART_QUERY,
                                    CURLUPART_FRAGMENT};
        for (size_t i = 0; i < PL_COUNT_OF(secret); i++) (void)curl_url_set(u, secret[i], NULL, 0);
        if (curl_url_get(u, CURLUPART_URL, &text, 0) == CURLUE_OK && cap > 0) {
            strncpy(out, text, cap - 1);
            out[cap - 1] = '\0';
        }
    }
    if (out[0] == '\0' && cap > 16) strcpy(out, "(bad address)");
    curl_free(text);
    curl_url_cleanup(u);
}

struct origin {
    char scheme[16], host[256], port[16];
};

static bool origin_of(const char *url, struct origin *o) {
    CURLU *u = curl_url();
    bool ok = u != NULL && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
              url_part(u, CURLUPART_SCHEME, 0, o->scheme, sizeof o->scheme) &&
              url_part(u, CURLUPART_HOST, 0, o->host, sizeof o->host) &&
              url_part(u, CURLUPART_PORT, CURLU_DEFAULT_PORT, o->port, sizeof o->port);
    curl_url_cleanup(u);
    return ok;
}

/* Same scheme, host and port. */
static bool same_origin(const char *a, const char *b) {
    struct origin x, y;
    return origin_of(a, &x) && origin_of(b, &y) && strcmp(x.scheme, y.scheme) == 0 && strcasecmp(x.host, y.host) == 0 &&
           strcmp(x.port, y.port) == 0;
}

/* A token never travels in clear, except on this machine. */
static bool may_send_token(const struct pl_http *h, const char *url) {
    struct origin o;
    if (h->token == NULL || h->token_origin == NULL || !same_origin(url, h->token_origin) || !origin_of(url, &o))
        return false;
    return strcmp(o.scheme, "https") == 0 || strcmp(o.host, "127.0.0.1") == 0 || strcmp(o.host, "localhost") == 0 ||
           strcmp(o.host, "[::1]") == 0;
}

enum pl_status pl_http_join(const char *base, const char *rel, char **out, struct pl_err *err) {
    CURLU *u = curl_url();
    char *text = NULL;
    *out = NULL;
    if (u != NULL && curl_url_set(u, CURLUPART_URL, base, 0) == CURLUE_OK &&
        curl_url_set(u, CURLUPART_URL, rel, 0) == CURLUE_OK && curl_url_get(u, CURLUPART_URL, &text, 0) == CURLUE_OK)
        *out = pl_strdup(text);
    curl_free(text);
    curl_url_cleanup(u);
    if (*out == NULL) PL_FAIL(err, PL_FORMAT, "no address can be made of '%.200s'", rel);
    return PL_OK;
}

/* The value of a header line when its name is `name`, without surrounding blanks. */
static bool header_is(const char *line, size_t len, const char *name, char *value, size_t cap) {
    size_t n = strlen(name);
    if (len <= n || line[n] != ':' || strncasecmp(line, name, n) != 0) return false;
    const char *p = line + n + 1, *end = line + len;
    while (p < end && (*p == ' ' || *p == '\t')) p++;
    while (end > p && (unsigned char)end[-1] <= ' ') end--;
    size_t size = (size_t)(end - p);
    if (size >= cap) return false;
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)p[i] < ' ' || (unsigned char)p[i] > '~') return false;
    memcpy(value, p, size);
    value[size] = '\0';
    return true;
}

static void read_linked(struct pl_http_call *c, const char *value) {
    while (*value == '"' || *value == 'W' || *value == '/') value++;
    if (strspn(value, "0123456789abcdef") != 64) return;
    memcpy(c->linked_sha256, value, 64);
    c->linked_sha256[64] = '\0';
}

static size_t on_header(char *line, size_t size, size_t count, void *user) {
    struct hop *hop = user;
    struct pl_http_call *c = hop->call;
    size_t len = size * count;
    char v[256];
    unsigned long long n;
    if (len > 5 && memcmp(line, "HTTP/", 5) == 0) { /* a new response begins */
        c->etag[0] = '\0';
        c->length = c->range_start = UINT64_MAX;
        c->retry_after_s = 0;
    } else if (header_is(line, len, "etag", v, sizeof v) && v[0] == '"') {
        memcpy(c->etag, v, sizeof v);
    } else if (header_is(line, len, "content-length", v, sizeof v)) {
        (void)pl_parse_u64(v, UINT64_MAX - 1, &c->length);
    } else if (header_is(line, len, "content-range", v, sizeof v)) {
        if (sscanf(v, "bytes %llu-", &n) == 1) c->range_start = n;
    } else if (header_is(line, len, "retry-after", v, sizeof v)) {
        uint64_t s;
        if (pl_parse_u64(v, 60, &s)) c->retry_after_s = (uint32_t)s;
    } else if (hop->first && header_is(line, len, "x-linked-etag", v, sizeof v)) {
        read_linked(c, v);
    }
    return len;
}

static size_t on_body(char *data, size_t size, size_t count, void *user) {
    struct hop *hop = user;
    size_t len = size * count;
    long code = 0;
    curl_easy_getinfo(hop->curl, CURLINFO_RESPONSE_CODE, &code);
    hop->call->code = code;
    if (code != 200 && code != 206) return len; /* pages that explain an error are not for us */
    hop->fault = hop->call->body(hop->call, data, len, hop->err);
    return hop->fault == PL_OK ? len : 0;
}

static struct curl_slist *add_header(struct curl_slist *list, const char *name, const char *value) {
    struct pl_buf b = {0};
    pl_buf_printf(&b, "%s: %s", name, value);
    struct curl_slist *more = pl_buf_ok(&b) ? curl_slist_append(list, pl_buf_cstr(&b)) : NULL;
    pl_buf_deinit(&b);
    return more != NULL ? more : list;
}

static struct curl_slist *headers_for(const struct pl_http_call *c, const char *url) {
    struct curl_slist *list = NULL;
    char range[40];
    if (c->accept != NULL) list = add_header(list, "Accept", c->accept);
    if (c->resume_from > 0) {
        snprintf(range, sizeof range, "bytes=%llu-", (unsigned long long)c->resume_from);
        list = add_header(list, "Range", range);
        if (c->validator != NULL) list = add_header(list, "If-Range", c->validator);
    }
    if (may_send_token(c->http, url)) {
        struct pl_buf b = {0};
        pl_buf_printf(&b, "Bearer %s", c->http->token);
        if (pl_buf_ok(&b)) list = add_header(list, "Authorization", pl_buf_cstr(&b));
        pl_buf_deinit(&b);
    }
    return list;
}

/* A bundled libcurl looks where its own distribution keeps the certificates; others keep them elsewhere. */
static const char *certificates(void) {
    static const char *const places[] = {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                                         "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};
    const char *named = getenv("SSL_CERT_FILE");
    if (named != NULL && named[0] != '\0') return named;
    for (size_t i = 0; i < PL_COUNT_OF(places); i++)
        if (access(places[i], R_OK) == 0) return places[i];
    return NULL;
}

static void set_options(struct hop *hop, const char *url, struct curl_slist *headers, char *why) {
    CURL *curl = hop->curl;
    curl_easy_reset(curl);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "plumb/" PLUMB_VERSION);
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_TIMEOUT_S);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, (long)STALL_BYTES_S);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)STALL_S);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, hop);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, hop);
    const char *ca = certificates();
    if (ca != NULL) curl_easy_setopt(curl, CURLOPT_CAINFO, ca);
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
}

static enum pl_status transport_failed(struct pl_http_call *c, CURLcode rc, const char *where, const char *why,
                                       struct pl_err *err) {
    bool final = rc == CURLE_COULDNT_RESOLVE_HOST || rc == CURLE_UNSUPPORTED_PROTOCOL || rc == CURLE_URL_MALFORMAT ||
                 rc == CURLE_PEER_FAILED_VERIFICATION || rc == CURLE_SSL_CACERT_BADFILE;
    c->temporary = !final;
    PL_FAIL(err, PL_IO, "%s: %s", where, why[0] != '\0' ? why : curl_easy_strerror(rc));
}

static enum pl_status refused(struct pl_http_call *c, const char *where, struct pl_err *err) {
    c->temporary = c->code == 429 || (c->code >= 500 && c->code != 501);
    if (c->code == 401 || c->code == 403)
        PL_FAIL(
            err, PL_IO,
            "%s: the server wants authorisation (HTTP %ld): for Hugging Face accept the model's terms on its page and set "
            "HF_TOKEN",
            where, c->code);
    if (c->code == 404) PL_FAIL(err, PL_NOT_FOUND, "%s: there is no such file (HTTP 404)", where);
    PL_FAIL(err, PL_IO, "%s: HTTP %ld", where, c->code);
}

/* One request. *next is set when it was a redirect; the caller frees it. */
static enum pl_status one_hop(struct hop *hop, const char *url, char **next, struct pl_err *err) {
    struct pl_http_call *c = hop->call;
    char why[CURL_ERROR_SIZE] = "", where[300], *to = NULL;
    pl_http_redact(url, where, sizeof where);
    struct curl_slist *headers = headers_for(c, url);
    set_options(hop, url, headers, why);
    CURLcode rc = curl_easy_perform(hop->curl);
    curl_slist_free_all(headers);
    if (hop->fault != PL_OK) return hop->fault;
    if (rc != CURLE_OK) return transport_failed(c, rc, where, why, err);
    curl_easy_getinfo(hop->curl, CURLINFO_RESPONSE_CODE, &c->code);
    curl_easy_getinfo(hop->curl, CURLINFO_REDIRECT_URL, &to);
    if (c->code >= 300 && c->code < 400 && to != NULL) {
        if (strncmp(url, "https:", 6) == 0 && strncmp(to, "https:", 6) != 0)
            PL_FAIL(err, PL_IO, "%s: redirects from https to an address that is not", where);
        *next = pl_strdup(to);
        if (*next == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for an address");
        return PL_OK;
    }
    return c->code == 200 || c->code == 206 ? PL_OK : refused(c, where, err);
}

enum pl_status pl_http_call_run(struct pl_http_call *c, const char *url, struct pl_err *err) {
    struct hop hop = {.call = c, .curl = curl_easy_init(), .first = true, .err = err};
    pl_free(c->final_url);
    c->final_url = pl_strdup(url);
    c->temporary = false;
    enum pl_status st = PL_OK;
    if (hop.curl == NULL || c->final_url == NULL) st = pl_err_set(err, __FILE__, __LINE__, PL_NO_MEMORY, "out of memory");
    for (int hops = 0; st == PL_OK; hops++) {
        char *next = NULL;
        if (hops > MAX_REDIRECTS) {
            char where[300];
            pl_http_redact(url, where, sizeof where);
            st = pl_err_set(err, __FILE__, __LINE__, PL_IO, "%s: more than %d redirects", where, MAX_REDIRECTS);
            break;
        }
        st = one_hop(&hop, c->final_url, &next, err);
        if (next == NULL) break;
        pl_free(c->final_url);
        c->final_url = next;
        hop.first = false;
    }
    curl_easy_cleanup(hop.curl);
    return st;
}

struct text_sink {
    struct pl_buf *body;
    size_t max;
};

static enum pl_status keep_text(struct pl_http_call *c, const void *data, size_t len, struct pl_err *err) {
    struct text_sink *to = c->user;
    if (len > to->max - to->body->len) PL_FAIL(err, PL_LIMIT, "an answer is longer than %zu bytes", to->max);
    pl_buf_add(to->body, data, len);
    if (!pl_buf_ok(to->body)) PL_FAIL(err, PL_NO_MEMORY, "out of memory for an answer of %zu bytes", to->body->len + len);
    return PL_OK;
}

enum pl_status pl_http_text(const struct pl_http *h, const char *url, const char *accept, size_t max, struct pl_buf *body,
                            char **final_url, struct pl_err *err) {
    struct text_sink to = {body, max};
    struct pl_http_call c = {.http = h, .accept = accept, .body = keep_text, .user = &to};
    enum pl_status st = PL_OK;
    for (uint32_t attempt = 0;; attempt++) {
        if (attempt > 0) pl_http_call_wait(&c, attempt);
        pl_buf_clear(body);
        st = pl_http_call_run(&c, url, err);
        if (st == PL_OK || !c.temporary || attempt >= h->retries) break;
    }
    if (st == PL_OK && final_url != NULL) {
        *final_url = c.final_url;
        c.final_url = NULL;
    }
    pl_http_call_deinit(&c);
    return st;
}

#else /* no libcurl */

void pl_http_redact(const char *url, char *out, size_t cap) {
    (void)url;
    if (cap > 0) out[0] = '\0';
}
enum pl_status pl_http_join(const char *base, const char *rel, char **out, struct pl_err *err) {
    (void)base, (void)rel, (void)out;
    PL_FAIL(err, PL_UNSUPPORTED, "this plumb was built without libcurl, so it cannot download");
}
enum pl_status pl_http_call_run(struct pl_http_call *c, const char *url, struct pl_err *err) {
    (void)c, (void)url;
    PL_FAIL(err, PL_UNSUPPORTED, "this plumb was built without libcurl, so it cannot download");
}
enum pl_status pl_http_text(const struct pl_http *h, const char *url, const char *accept, size_t max, struct pl_buf *body,
                            char **final_url, struct pl_err *err) {
    (void)h, (void)accept, (void)max, (void)body, (void)final_url;
    struct pl_http_call c = {0};
    return pl_http_call_run(&c, url, err);
}
#endif

void pl_http_call_deinit(struct pl_http_call *c) {
    pl_free(c->final_url);
    c->final_url = NULL;
}

void pl_http_call_wait(const struct pl_http_call *c, uint32_t attempt) {
    uint64_t ms = 250u << PL_MIN(attempt, 6u);
    if (c->retry_after_s > 0) ms = c->retry_after_s * 1000u;
    struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}
