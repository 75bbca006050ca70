/* body.c - what is asked of every request before an endpoint reads it: that it comes from where it may, and that its JSON
 * holds no surprise for code that compares words. */
#include "serve/internal.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "file/file.h"

/* ---------- where a request comes from ----------
 * A page that somebody looks at may send requests to this machine from inside their browser. It cannot read the answers of
 * another origin, but it can make them be computed; and a name that its owner lets point here (DNS rebinding) makes it the
 * same origin. Keys end both, as a browser adds none by itself; so does saying that any page may call (--cors). */

/* The part before the port, without brackets. */
static struct pl_str host_part(const char *text) {
    size_t n = strcspn(text, "/");
    const char *close = memchr(text, ']', n);
    if (text[0] == '[' && close != NULL) return (struct pl_str){text + 1, (size_t)(close - text - 1)};
    return (struct pl_str){text, strcspn(text, ":/")};
}

static bool ends_with(struct pl_str s, const char *end) {
    size_t n = strlen(end);
    return s.len >= n && strncasecmp(s.data + s.len - n, end, n) == 0;
}

/* A name that somebody elsewhere can let point to any address has a dot, and none of the endings kept for local use. */
static bool is_local_name(struct pl_str host) {
    static const char *const endings[] = {".localhost", ".local", ".internal"};
    unsigned char address[16];
    char text[64];
    if (host.len < sizeof text) {
        memcpy(text, host.data, host.len);
        text[host.len] = '\0';
        if (inet_pton(AF_INET, text, address) == 1 || inet_pton(AF_INET6, text, address) == 1) return true;
    }
    for (size_t i = 0; i < PL_COUNT_OF(endings); i++)
        if (ends_with(host, endings[i])) return true;
    return memchr(host.data, '.', host.len) == NULL;
}

static bool is_allowed(const struct pl_serve_options *o, struct pl_str host) {
    for (size_t i = 0; i < o->allowed_host_count; i++)
        if (strlen(o->allowed_hosts[i]) == host.len && strncasecmp(o->allowed_hosts[i], host.data, host.len) == 0)
            return true;
    return false;
}

bool request_is_foreign(const struct exchange *x, const char **what) {
    const struct pl_serve_options *o = &x->server->opt;
    const char *host = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST),
               *origin = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ORIGIN);
    if (o->cors || o->api_key_count > 0) return false;
    *what = host;
    if (host != NULL && o->loopback && !is_local_name(host_part(host)) && !is_allowed(o, host_part(host))) return true;
    if (origin == NULL) return false;
    const char *at = strstr(origin, "://");
    *what = origin;
    if (at == NULL) return true; /* "null": a page without an origin of its own */
    return (host == NULL || strcasecmp(at + 3, host) != 0) && !is_allowed(o, host_part(at + 3));
}

/* ---------- JSON ---------- */

/* Texts that a model or a tokenizer reads: there U+0000 is a character as any other. */
static bool is_free_text(const char *key) {
    static const char *const keys[] = {"content",   "text",   "prompt", "input",     "stop",     "stop_sequences",
                                       "arguments", "output", "system", "reasoning", "thinking", "refusal"};
    for (size_t i = 0; i < PL_COUNT_OF(keys); i++)
        if (strcmp(key, keys[i]) == 0) return true;
    return false;
}

/* Words are compared as C strings, which end at U+0000: what would be cut is refused instead. */
static bool has_hidden_end(const char *key, const json_t *v) {
    const char *name;
    json_t *part;
    size_t i;
    if (json_is_string(v)) return !is_free_text(key) && strlen(json_string_value(v)) != json_string_length(v);
    if (json_is_array(v)) json_array_foreach(v, i, part) if (has_hidden_end(key, part)) return true;
    if (json_is_object(v))
        json_object_foreach((json_t *)(uintptr_t)v, name, part) if (has_hidden_end(name, part)) return true;
    return false;
}

enum pl_status body_parse(struct pl_buf *text, json_t **out, struct param_error *pe) {
    const char *key;
    json_t *value, *body = NULL;
    if (text->len == 0) PL_FAIL(&pe->err, PL_FORMAT, "the request has no body, expected a JSON object");
    enum pl_status st = pl_json_parse("request body", text->data, text->len, &body, &pe->err);
    if (st == PL_FORMAT) { /* integers beyond 64 bits are read as fractions, so that their parameter is named */
        struct pl_err again = {0};
        pl_json_soften_integers(text->data, text->len);
        if (pl_json_parse("request body", text->data, text->len, &body, &again) == PL_OK) st = PL_OK;
    }
    PL_TRY(st);
    if (!json_is_object(body)) {
        json_decref(body);
        PL_FAIL(&pe->err, PL_FORMAT, "the request body is no JSON object");
    }
    json_object_foreach(body, key, value) {
        if (!has_hidden_end(key, value)) continue;
        st = param_bad(pe, key, PL_INVALID, "%.60s holds a string with U+0000, which only free text may have", key);
        json_decref(body);
        return st;
    }
    *out = body;
    return PL_OK;
}
