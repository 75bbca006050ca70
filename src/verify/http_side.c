/* http_side.c - one answer of an OpenAI-compatible server. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "verify/ab.h"

#ifdef PL_HAVE_CURL
#include <curl/curl.h>

enum { BODY_MAX = 64 << 20 };

static size_t on_data(char *data, size_t size, size_t n, void *user) {
    struct pl_buf *b = user;
    if (b->len + size * n > BODY_MAX) return 0;
    pl_buf_add(b, data, size * n);
    return pl_buf_ok(b) ? size * n : 0;
}

/* GET (body NULL) or POST; the parsed JSON or NULL, *status 0 when no answer came. */
static json_t *call(const struct pl_ab_side *s, const char *path, const char *body, uint32_t timeout_s, long *status,
                    char *error, size_t cap) {
    char url[1200], auth[600];
    struct pl_buf answer = {0};
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    size_t len = strlen(s->url);
    *status = 0;
    snprintf(url, sizeof url, "%.*s%s", (int)(len > 0 && s->url[len - 1] == '/' ? len - 1 : len), s->url, path);
    if (s->api_key != NULL) {
        snprintf(auth, sizeof auth, "Authorization: Bearer %.500s", s->api_key);
        headers = curl_slist_append(headers, auth);
    }
    CURL *c = curl_easy_init();
    CURLcode rc = CURLE_FAILED_INIT;
    if (c != NULL && headers != NULL) {
        curl_easy_setopt(c, CURLOPT_URL, url);
        curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
        curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
        curl_easy_setopt(c, CURLOPT_TIMEOUT, (long)timeout_s);
        curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_data);
        curl_easy_setopt(c, CURLOPT_WRITEDATA, &answer);
        if (body != NULL) curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
        rc = curl_easy_perform(c);
        if (rc == CURLE_OK) curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, status);
    }
    if (rc != CURLE_OK) snprintf(error, cap, "%.300s: %s", url, curl_easy_strerror(rc));
    curl_easy_cleanup(c);
    curl_slist_free_all(headers);
    json_t *v = *status != 0 ? json_loadb(pl_buf_cstr(&answer), answer.len, 0, NULL) : NULL;
    if (*status != 0 && v == NULL) snprintf(error, cap, "%.300s answered %ld without JSON", url, *status);
    pl_buf_deinit(&answer);
    return v;
}

/* The start-up line and the kernels, where the server is one that tells (plumb). */
static void read_route(const struct pl_ab_side *s, uint32_t timeout_s, struct pl_ab_answer *out) {
    char ignored[256];
    long status;
    json_t *props = call(s, "/props", NULL, timeout_s, &status, ignored, sizeof ignored);
    const char *backend = json_string_value(json_object_get(props, "backend"));
    if (status == 200 && backend != NULL) snprintf(out->backend, sizeof out->backend, "%s", backend);
    json_decref(props);
    if (out->backend[0] == '\0') return;
    json_t *w = call(s, "/v1/kernels", NULL, timeout_s, &status, ignored, sizeof ignored);
    json_t *kernels = json_object_get(w, "kernels");
    if (status == 200 && json_array_size(kernels) > 0) out->kernels = json_incref(kernels);
    json_decref(w);
}

static json_t *ask(const struct pl_ab_side *s, const char *prompt, uint32_t n, uint32_t timeout_s, bool logprobs,
                   long *status, char *error, size_t cap) {
    json_t *body = json_pack("{s:s, s:i, s:i, s:i}", "prompt", prompt, "max_tokens", (int)n, "temperature", 0, "seed", 1);
    if (body != NULL && logprobs) json_object_set_new(body, "logprobs", json_integer(2));
    char *text = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
    json_decref(body);
    json_t *v = text == NULL ? NULL : call(s, "/v1/completions", text, timeout_s, status, error, cap);
    if (text == NULL) snprintf(error, cap, "the prompt is no UTF-8 text, which a JSON request must be");
    free(text);
    return v;
}

void pl_ab_ask_url(const struct pl_ab_side *s, const char *prompt, uint32_t n, uint32_t timeout_s,
                   struct pl_ab_answer *out) {
    *out = (struct pl_ab_answer){0};
    long status = 0;
    uint64_t start = pl_clock_ns();
    json_t *v = ask(s, prompt, n, timeout_s, true, &status, out->error, sizeof out->error);
    if (status == 400) { /* a server that knows no logprobs */
        json_decref(v);
        v = ask(s, prompt, n, timeout_s, false, &status, out->error, sizeof out->error);
    }
    out->seconds = (double)(pl_clock_ns() - start) * 1e-9;
    const json_t *choice = json_array_get(json_object_get(v, "choices"), 0);
    const char *text = json_string_value(json_object_get(choice, "text"));
    if (status != 200 || text == NULL) {
        const char *message = json_string_value(json_object_get(json_object_get(v, "error"), "message"));
        out->failed = true;
        if (status != 0)
            snprintf(out->error, sizeof out->error, "HTTP %ld: %.300s", status, message != NULL ? message : "no text");
    } else {
        pl_buf_add_c(&out->text, text);
        const json_t *count = json_object_get(json_object_get(v, "usage"), "completion_tokens");
        out->tokens = json_is_integer(count) ? (size_t)json_integer_value(count) : out->text.len / 4 + (out->text.len > 0);
        read_route(s, timeout_s, out);
    }
    json_decref(v);
}

#else

void pl_ab_ask_url(const struct pl_ab_side *s, const char *prompt, uint32_t n, uint32_t timeout_s,
                   struct pl_ab_answer *out) {
    (void)prompt, (void)n, (void)timeout_s;
    *out = (struct pl_ab_answer){.failed = true};
    snprintf(out->error, sizeof out->error, "%.200s: this build has no HTTP client (libcurl)", s->url);
}

#endif
