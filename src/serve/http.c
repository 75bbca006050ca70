/* http.c - the daemon: limits, authorisation, routing, answers. */
#include "serve/internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "file/file.h"

enum { DROPPED_BYTES_MAX = 32 << 20, QUERY_BYTES_MAX = 8 << 10, QUERY_ARGS_MAX = 64 };

/* ---------- answers ---------- */

/* Anthropic's paths, and those it shares when its clients ask. */
static bool is_messages(const struct exchange *x) {
    return strncmp(x->path, "/v1/messages", 12) == 0 ||
           (strncmp(x->path, "/v1/models", 10) == 0 &&
            MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "anthropic-version") != NULL);
}
static const char *request_id(const struct exchange *x) { return x->job != NULL ? x->job->id : x->id; }

enum MHD_Result answer_queue(struct exchange *x, unsigned status, struct MHD_Response *r) {
    x->http_status = status;
    if (x->reading == READING_LATER) {
        if (x->late != NULL) MHD_destroy_response(x->late);
        x->late = r;
        return MHD_YES;
    }
    enum MHD_Result ok = MHD_queue_response(x->connection, status, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result queue(struct exchange *x, unsigned status, struct MHD_Response *r, const char *type) {
    if (r == NULL) return MHD_NO;
    MHD_add_response_header(r, "Content-Type", type);
    MHD_add_response_header(r, "Server", "plumb/" PLUMB_VERSION);
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(r, "Content-Security-Policy",
                            "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; "
                            "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    MHD_add_response_header(r, is_messages(x) ? "request-id" : "x-request-id", request_id(x));
    if (x->server->opt.cors) {
        MHD_add_response_header(r, "Access-Control-Allow-Origin", "*");
        MHD_add_response_header(r, "Access-Control-Expose-Headers", "x-request-id, request-id, Retry-After");
    }
    if (status == 429 || status == 503) MHD_add_response_header(r, "Retry-After", "1");
    if (x->allow != NULL) MHD_add_response_header(r, "Allow", x->allow);
    if (status == 401) MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    return answer_queue(x, status, r);
}

enum MHD_Result answer_bytes(struct exchange *x, unsigned status, const char *type, const char *data, size_t len) {
    void *copy = (void *)(uintptr_t)data; /* MHD copies it */
    return queue(x, status, MHD_create_response_from_buffer(len, copy, MHD_RESPMEM_MUST_COPY), type);
}

/* Made of nothing that could run out. */
static enum MHD_Result answer_starved(struct exchange *x) {
    static const char openai[] =
        "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,\"code\":null}}";
    static const char anthropic[] = "{\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"out of memory\"}}";
    const char *text = is_messages(x) ? anthropic : openai;
    return answer_bytes(x, 503, "application/json", text, strlen(text));
}

/* What was made while memory ran out is not whole, and is not sent. */
enum MHD_Result answer_json(struct exchange *x, unsigned status, json_t *steals) {
    char *text = steals == NULL || pl_json_starved() ? NULL : pl_json_write(steals, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(steals);
    if (text == NULL) return answer_starved(x);
    enum MHD_Result r = answer_bytes(x, status, "application/json", text, strlen(text));
    free(text);
    return r;
}

/* The words that each API documents. */
static const char *anthropic_type(unsigned status) {
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

static const char *openai_type(unsigned status) {
    return status == 429 ? "rate_limit_error" : status >= 500 ? "server_error" : "invalid_request_error";
}

/* OpenAI's code: a word, or null where it has none. */
static const char *openai_code(unsigned status, const char *param, const char *message) {
    if (status == 401) return "invalid_api_key";
    if (status == 429) return "rate_limit_exceeded";
    if (status == 404 && param != NULL && strcmp(param, "model") == 0) return "model_not_found";
    if (status != 400) return NULL;
    if (strncmp(message, "unknown parameter", 17) == 0) return "unknown_parameter";
    if (strstr(message, "the context holds") != NULL) return "context_length_exceeded";
    return param != NULL ? "invalid_value" : NULL;
}

/* Message and parameter repeat what a client sent, cut anywhere: they may be no UTF-8. */
json_t *error_object(enum api_kind api, unsigned status, const char *type, const char *param, const char *message) {
    json_t *text = text_value(message, strlen(message));
    if (api == API_MESSAGES)
        return json_pack("{s:s, s:{s:s, s:o}}", "type", "error", "error", "type",
                         type != NULL ? type : anthropic_type(status), "message", text);
    return json_pack(
        "{s:{s:o, s:s, s:o, s:s?}}", "error", "message", text, "type", type != NULL ? type : openai_type(status), "param",
        param == NULL ? json_null() : text_value(param, strlen(param)), "code", openai_code(status, param, message));
}

enum MHD_Result answer_error(struct exchange *x, unsigned status, const char *type, const char *param, const char *fmt,
                             ...) {
    char message[1200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    /* Where memory ran out, what looks like a client's mistake may be ours. */
    if (pl_json_starved() && status < 500) return answer_starved(x);
    pl_json_watch(); /* the reason is told; the answer is made anew */
    json_t *error = error_object(is_messages(x) ? API_MESSAGES : API_CHAT, status, type, param, message);
    if (is_messages(x)) json_object_set_new(error, "request_id", json_string(request_id(x))); /* as Anthropic documents */
    return answer_json(x, status, error);
}

unsigned http_status(const struct pl_server *s, enum pl_status st) {
    return st == PL_BUSY && s->draining
               ? 503
               : (unsigned)pl_status_http(st); /* it does not pass: another server should be asked */
}

enum MHD_Result answer_status(struct exchange *x, const struct pl_err *err, const char *param) {
    unsigned status = http_status(x->server, err->status);
    if (err->status == PL_UNSUPPORTED || err->status == PL_NOT_FOUND) status = 400; /* of a parameter, not of a path */
    return answer_error(x, status, NULL, param != NULL && param[0] != '\0' ? param : NULL, "%s",
                        err->text[0] != '\0' ? err->text : pl_status_text(err->status));
}

/* ---------- authorisation ---------- */

/* Time depends on the lengths only. */
static bool equal_secret(const char *a, const char *b) {
    size_t la = strlen(a), lb = strlen(b);
    unsigned diff = la != lb;
    for (size_t i = 0; i < la; i++) diff |= (unsigned)(unsigned char)a[i] ^ (unsigned char)b[lb == 0 ? 0 : i % lb];
    return diff == 0;
}

static bool is_public(const char *path) {
    return strcmp(path, "/health") == 0 || strcmp(path, "/ready") == 0 || strcmp(path, "/") == 0 ||
           strcmp(path, "/v1/health") == 0;
}

static bool authorised(struct exchange *x) {
    const struct pl_serve_options *o = &x->server->opt;
    x->key_index = -1;
    if (o->api_key_count == 0 || is_public(x->path)) return true;
    const char *given = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Authorization");
    if (given != NULL && strncasecmp(given, "Bearer ", 7) == 0)
        given += 7;
    else
        given = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "x-api-key");
    if (given == NULL) return false;
    for (size_t i = 0; i < o->api_key_count; i++)
        if (equal_secret(given, o->api_keys[i])) x->key_index = (int)i; /* all keys are compared, always */
    return x->key_index >= 0;
}

/* ---------- routing ---------- */

static const struct route {
    const char *method, *path;
    enum MHD_Result (*get)(struct exchange *);
    enum MHD_Result (*post)(struct exchange *, json_t *);
} routes[] = {
    {"POST", "/v1/chat/completions", NULL, handle_chat},
    {"POST", "/chat/completions", NULL, handle_chat},
    {"POST", "/v1/completions", NULL, handle_completion},
    {"POST", "/completions", NULL, handle_completion},
    {"POST", "/v1/messages", NULL, handle_messages},
    {"POST", "/v1/messages/count_tokens", NULL, handle_count_tokens},
    {"POST", "/v1/responses", NULL, handle_responses},
    {"POST", "/tokenize", NULL, handle_tokenize},
    {"POST", "/detokenize", NULL, handle_detokenize},
    {"POST", "/apply-template", NULL, handle_apply_template},
    {"GET", "/v1/models", handle_models, NULL},
    {"GET", "/models", handle_models, NULL},
    {"GET", "/props", handle_props, NULL},
    {"GET", "/slots", handle_slots, NULL},
    {"GET", "/health", handle_health, NULL},
    {"GET", "/v1/health", handle_health, NULL},
    {"GET", "/ready", handle_ready, NULL},
    {"GET", "/metrics", handle_metrics, NULL},
    {"GET", "/v1/kernels", handle_kernels, NULL},
    {"GET", "/v1/witness", handle_witnesses, NULL},
    {"GET", "/openapi.json", handle_openapi, NULL},
    {"GET", "/", handle_page, NULL},
};

static enum MHD_Result call_post(struct exchange *x, const struct route *r) {
    struct param_error pe = {0};
    json_t *body = NULL;
    if (later_take(x)) return MHD_YES;
    if (body_parse(&x->body, &body, &pe) != PL_OK) return answer_status(x, &pe.err, pe.param);
    enum MHD_Result ok = r->post(x, body);
    json_decref(body);
    if (!x->server->opt.log_bodies) pl_buf_deinit(&x->body);
    return ok;
}

enum MHD_Result dispatch(struct exchange *x) {
    const struct route *same_path = NULL;
    bool head = strcmp(x->method, "HEAD") == 0;
    if (x->cut_path) return answer_error(x, 404, NULL, NULL, "there is no endpoint of such a length");
    for (size_t i = 0; i < PL_COUNT_OF(routes); i++) {
        if (strcmp(routes[i].path, x->path) != 0) continue;
        same_path = &routes[i];
        if (strcmp(routes[i].method, head ? "GET" : x->method) != 0) continue;
        return routes[i].get != NULL ? routes[i].get(x) : call_post(x, &routes[i]);
    }
    if (same_path != NULL) x->allow = strcmp(same_path->method, "GET") == 0 ? "GET, HEAD" : same_path->method;
    if (same_path != NULL)
        return answer_error(x, 405, NULL, NULL, "%s is not allowed on %s, use %s", x->method, x->path, same_path->method);
    if (strncmp(x->path, "/v1/models/", 11) == 0 && strcmp(x->method, "GET") == 0) return handle_model(x, x->path + 11);
    if (strncmp(x->path, "/v1/witness/", 12) == 0 && strcmp(x->method, "GET") == 0) return handle_witness(x, x->path + 12);
    return answer_error(x, 404, NULL, NULL, "there is no endpoint %.100s", x->path);
}

static enum MHD_Result preflight(struct exchange *x) {
    struct MHD_Response *r = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (r == NULL) return MHD_NO;
    MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    MHD_add_response_header(r, "Access-Control-Allow-Headers", "Authorization, *"); /* '*' does not cover it */
    return queue(x, 204, r, "text/plain");
}

static enum MHD_Result route(struct exchange *x) {
    pl_json_watch();
    if (x->reading == READING_DONE) return later_finish(x);
    if (x->job != NULL) return job_answer(x);
    if (x->routed) return MHD_NO;
    x->routed = true;
    if (x->too_large)
        return answer_error(x, 413, NULL, NULL, "the request body is larger than %zu bytes", x->server->opt.body_bytes_max);
    if (!pl_buf_ok(&x->body)) return answer_error(x, 503, NULL, NULL, "no memory for the request body");
    if (strcmp(x->method, "OPTIONS") == 0 && x->server->opt.cors) return preflight(x);
    if (x->foreign)
        return answer_error(x, 403, "permission_error", NULL,
                            "requests from '%.100s' are refused: without an API key this server answers its own page, local "
                            "names and --allow-host only, unless --cors lets any page call it",
                            x->came_from);
    if (!authorised(x)) return answer_error(x, 401, NULL, NULL, "the API key is missing or wrong");
    return dispatch(x);
}

/* ---------- MHD callbacks ---------- */

/* The library lets a request be answered before its body, where it stops reading and a client that is still sending may lose
 * the answer to a reset, or after it. A body that is too large is answered here, at once, and read on for a while. */
static void answer_too_large(struct exchange *x) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    char message[100], date[40] = "";
    struct pl_buf b = {0};
    struct tm tm;
    time_t now = time(NULL);
    if (gmtime_r(&now, &tm) != NULL) (void)strftime(date, sizeof date, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &tm);
    snprintf(message, sizeof message, "the request body is larger than %zu bytes", x->server->opt.body_bytes_max);
    json_t *error = error_object(is_messages(x) ? API_MESSAGES : API_CHAT, 413, NULL, NULL, message);
    if (is_messages(x)) json_object_set_new(error, "request_id", json_string(request_id(x)));
    char *text = error == NULL ? NULL : pl_json_write(error, JSON_COMPACT);
    json_decref(error);
    if (text != NULL && info != NULL) {
        pl_buf_printf(&b,
                      "HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Type: application/json\r\n"
                      "X-Content-Type-Options: nosniff\r\nServer: plumb/" PLUMB_VERSION
                      "\r\n%s: %s\r\n%s%sContent-Length: %zu\r\n\r\n%s",
                      is_messages(x) ? "request-id" : "x-request-id", request_id(x),
                      x->server->opt.cors ? "Access-Control-Allow-Origin: *\r\n" : "", date, strlen(text), text);
        if (pl_buf_ok(&b)) (void)send(info->connect_fd, b.data, b.len, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    free(text);
    pl_buf_deinit(&b);
    pl_buf_deinit(&x->body);
    x->http_status = 413;
    x->routed = x->answered = true;
}

static enum MHD_Result count_header(void *cls, enum MHD_ValueKind kind, const char *name, const char *value) {
    unsigned *n = cls;
    (void)kind, (void)value;
    n[0] += strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0;
    n[1] += strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0;
    n[2] += strcasecmp(name, MHD_HTTP_HEADER_HOST) == 0;
    return MHD_YES;
}

/* The headers are in, the body is not: what can be refused by them alone. A client that waits for "100 Continue" is answered
 * at once; one that sends anyway keeps its answer, as its bytes are read and dropped. */
static enum MHD_Result headers_are_in(struct exchange *x, bool long_query) {
    unsigned n[3] = {0, 0, 0};
    if (long_query) {
        x->routed = true;
        return answer_error(x, 414, NULL, NULL, "the query is longer than %d bytes or has more than %d arguments",
                            QUERY_BYTES_MAX, QUERY_ARGS_MAX);
    }
    (void)MHD_get_connection_values(x->connection, MHD_HEADER_KIND, count_header, n);
    if (n[0] > 1 || n[1] > 1 || (n[0] > 0 && n[1] > 0)) { /* where the body ends would be a guess (RFC 9112, 6.3) */
        x->routed = true;
        return answer_error(x, 400, NULL, NULL, "the request has more than one Content-Length or Transfer-Encoding");
    }
    if (n[2] > 1) { /* which of them is checked would be a guess (RFC 9112, 3.2) */
        x->routed = true;
        return answer_error(x, 400, NULL, NULL, "the request has more than one Host");
    }
    const char *coding = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_TRANSFER_ENCODING);
    if (coding != NULL && strcasecmp(coding, "chunked") != 0) { /* the library would wait for the connection's end */
        x->routed = true;
        return answer_error(x, 501, NULL, NULL, "Transfer-Encoding '%.60s' is not known, only 'chunked' is", coding);
    }
    const char *length = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    x->too_large = length != NULL && strtoull(length, NULL, 10) > x->server->opt.body_bytes_max;
    x->foreign = request_is_foreign(x, &x->came_from);
    x->unauthorised = !(strcmp(x->method, "OPTIONS") == 0 && x->server->opt.cors) && !authorised(x);
    bool waits = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_EXPECT) != NULL;
    if (x->too_large && !waits) answer_too_large(x);
    return waits && (x->too_large || x->unauthorised || x->foreign) ? route(x) : MHD_YES;
}

/* No memory even to note the request. */
static enum MHD_Result refuse_unseen(struct MHD_Connection *c) {
    static char text[] =
        "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,\"code\":null}}";
    struct MHD_Response *r = MHD_create_response_from_buffer(sizeof text - 1, text, MHD_RESPMEM_PERSISTENT);
    if (r == NULL) return MHD_NO;
    MHD_add_response_header(r, "Content-Type", "application/json");
    MHD_add_response_header(r, "Retry-After", "1");
    enum MHD_Result ok = MHD_queue_response(c, 503, r);
    MHD_destroy_response(r);
    return ok;
}

/* In the place of an exchange: the query was too much to be read. */
static char query_too_large;

/* The library reads a query before anybody sees the request, and where its memory does not hold the arguments the connection
 * stands still until it times out. So one that is too much is ended here, in the library's own copy of the target. */
static void *on_target(void *cls, const char *target, struct MHD_Connection *c) {
    (void)cls, (void)c;
    char *query = (char *)(uintptr_t)strchr(target, '?');
    size_t args = 1;
    if (query == NULL) return NULL;
    for (const char *p = query; (p = strchr(p, '&')) != NULL; p++) args++;
    if (args <= QUERY_ARGS_MAX && strlen(target) <= QUERY_BYTES_MAX) return NULL;
    query[1] = '\0';
    return &query_too_large;
}

static enum MHD_Result on_access(void *cls, struct MHD_Connection *c, const char *url, const char *method,
                                 const char *version, const char *data, size_t *data_size, void **con_cls) {
    (void)version;
    struct pl_server *s = cls;
    struct exchange *x = *con_cls;
    bool long_query = *con_cls == &query_too_large;
    if (x == NULL || long_query) {
        *con_cls = NULL;
        x = pl_calloc(1, sizeof *x);
        if (x == NULL) return refuse_unseen(c);
        *x = (struct exchange){.server = s, .connection = c, .started_ns = pl_clock_ns(), .key_index = -1};
        snprintf(x->path, sizeof x->path, "%s", url);
        x->cut_path = strlen(url) >= sizeof x->path;
        snprintf(x->method, sizeof x->method, "%s", method);
        snprintf(x->id, sizeof x->id, "req_%08llx%08llx", (unsigned long long)(s->started_ns & 0xFFFFFFFFu),
                 (unsigned long long)(++s->next_id));
        *con_cls = x;
        s->counts.http_requests++;
        watch_body(x);
        return headers_are_in(x, long_query);
    }
    if (*data_size > 0) {
        /* A body that trickles in holds a connection and memory for as long as it likes: not here. */
        if (pl_clock_ns() - x->started_ns > (uint64_t)s->opt.body_timeout_s * 1000000000u) return MHD_NO;
        /* Past the limit bytes are read and dropped, so that the client gets its answer, up to an end. */
        if (x->answered && (x->dropped += *data_size) > DROPPED_BYTES_MAX) return MHD_NO;
        if (!x->answered && x->body.len + *data_size > s->opt.body_bytes_max) {
            x->too_large = true;
            answer_too_large(x);
        }
        if (!x->too_large && !x->unauthorised && !x->foreign) pl_buf_add(&x->body, data, *data_size);
        *data_size = 0;
        return MHD_YES;
    }
    if (x->answered) return MHD_NO; /* all is said: the connection ends */
    if (!x->routed) watch_work(x);
    return route(x);
}

static void access_log(struct exchange *x, bool completed) {
    struct pl_server *s = x->server;
    if (s->opt.access_log == NULL) return;
    const struct job *j = x->job;
    json_t *line =
        json_pack("{s:I, s:o, s:o, s:i, s:f, s:b}", "time", (json_int_t)time(NULL), "method",
                  text_value(x->method, strlen(x->method)), "path", text_value(x->path, strlen(x->path)), "status",
                  (int)x->http_status, "ms", (double)(pl_clock_ns() - x->started_ns) * 1e-6, "completed", completed);
    if (line != NULL && j != NULL) {
        json_object_set_new(line, "prompt_tokens", json_integer(j->prompt_tokens));
        json_object_set_new(line, "generated_tokens", json_integer(j->generated_tokens));
        json_object_set_new(line, "cached_tokens", json_integer(j->cached_tokens));
        json_object_set_new(line, "stream", json_boolean(j->params.stream));
        json_object_set_new(line, "queued_ms", json_real((double)j->queued_ns * 1e-6));
        json_object_set_new(line, "first_token_ms", json_real((double)j->first_token_ns * 1e-6));
    }
    if (line != NULL) json_object_set_new(line, "id", json_string(request_id(x)));
    if (line != NULL && x->key_index >= 0) json_object_set_new(line, "key", json_integer(x->key_index));
    if (line != NULL && s->opt.log_bodies && x->body.len > 0)
        json_object_set_new(line, "body", text_value(x->body.data, x->body.len));
    char *text = line == NULL ? NULL : pl_json_write(line, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(line);
    if (text == NULL) return;
    pthread_mutex_lock(&s->log_lock);
    if (s->log_file != NULL && (fprintf(s->log_file, "%s\n", text) < 0 || fflush(s->log_file) != 0)) {
        s->counts.log_lost++; /* a full disk loses lines, nothing else */
        clearerr(s->log_file);
    }
    pthread_mutex_unlock(&s->log_lock);
    free(text);
}

static void on_completed(void *cls, struct MHD_Connection *c, void **con_cls, enum MHD_RequestTerminationCode why) {
    (void)c;
    struct pl_server *s = cls;
    struct exchange *x = *con_cls;
    if (x == NULL || *con_cls == &query_too_large) return;
    if (x->http_status >= 500) s->counts.http_5xx++;
    if (x->http_status >= 400 && x->http_status < 500) s->counts.http_4xx++;
    /* What ends a request whose client has gone is sent without an error, to nobody. */
    const bool completed = (x->answered || why == MHD_REQUEST_TERMINATED_COMPLETED_OK) && (x->job == NULL || !x->job->left);
    if (!completed) s->counts.disconnects++;
    access_log(x, completed);
    if (x->job != NULL) job_abandon(x->job);
    if (x->late != NULL) MHD_destroy_response(x->late);
    watch_idle(x);
    pl_buf_deinit(&x->body);
    pl_free(x);
    *con_cls = NULL;
}

/* ---------- life ---------- */

static enum pl_status resolve_address(const struct pl_serve_options *o, struct sockaddr_storage *out, struct pl_err *err) {
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, strcasecmp(o->host, "localhost") == 0 ? "127.0.0.1" : o->host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(o->port);
        return PL_OK;
    }
    if (inet_pton(AF_INET6, o->host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(o->port);
        return PL_OK;
    }
    PL_FAIL(err, PL_INVALID, "host '%.60s' is no IP address: use localhost, 127.0.0.1, 0.0.0.0, ::1 or ::", o->host);
}

static enum pl_status cannot_listen(const char *host, unsigned port, int code, struct pl_err *err) {
    PL_FAIL(err, PL_IO, "cannot listen on %s port %u: %s%s", host, port, strerror(code),
            code == EADDRINUSE ? " (is another server running there? try --port)" : "");
}

enum pl_status pl_server_check_address(const char *host, uint16_t port, struct pl_err *err) {
    struct sockaddr_storage addr;
    struct pl_serve_options o = {.host = host, .port = port};
    PL_TRY(resolve_address(&o, &addr, err));
    int fd = port == 0 ? -1 : socket(addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1, failed = 0;
    if (fd < 0) return PL_OK; /* the daemon will say it */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (addr.ss_family == AF_INET6) (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&addr,
             addr.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6)) != 0 ||
        listen(fd, 1) != 0)
        failed = errno;
    close(fd);
    return failed == 0 ? PL_OK : cannot_listen(host, port, failed, err);
}

/* Paths are C strings: "%00" stays as it is written, so that nothing behind it is lost. */
static size_t unescape(void *cls, struct MHD_Connection *c, char *text) {
    (void)cls, (void)c;
    return strstr(text, "%00") != NULL ? strlen(text) : MHD_http_unescape(text);
}

static bool is_loopback(const struct sockaddr_storage *a) {
    if (a->ss_family == AF_INET) return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->ss_family != AF_INET6 || IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static void daemon_log(void *cls, const char *fmt, va_list ap) { (void)cls, (void)fmt, (void)ap; }

static enum pl_status start_daemon(struct pl_server *s, struct pl_err *err) {
    struct sockaddr_storage addr;
    socklen_t len = sizeof addr;
    PL_TRY(resolve_address(&s->opt, &addr, err));
    if (s->opt.listen_fd > 0) (void)getsockname(s->opt.listen_fd, (struct sockaddr *)&addr, &len);
    s->opt.loopback = is_loopback(&addr);
    unsigned flags = MHD_USE_EPOLL | MHD_USE_INTERNAL_POLLING_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    if (addr.ss_family == AF_INET6) flags |= MHD_USE_IPv6;
    s->daemon = MHD_start_daemon(
        flags, s->opt.port, NULL, NULL, on_access, s, MHD_OPTION_EXTERNAL_LOGGER, daemon_log, NULL, MHD_OPTION_SOCK_ADDR,
        &addr, MHD_OPTION_THREAD_POOL_SIZE, s->opt.http_threads, MHD_OPTION_CONNECTION_LIMIT, s->opt.connections_max,
        MHD_OPTION_CONNECTION_TIMEOUT, s->opt.idle_timeout_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)64 * 1024,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_NOTIFY_CONNECTION, watch_connection, s,
        MHD_OPTION_UNESCAPE_CALLBACK, unescape, s, MHD_OPTION_URI_LOG_CALLBACK, on_target, s,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, s->opt.per_address_max, MHD_OPTION_LISTEN_BACKLOG_SIZE, 1024u,
        s->opt.listen_fd > 0 ? MHD_OPTION_LISTEN_SOCKET : MHD_OPTION_END, s->opt.listen_fd, MHD_OPTION_END);
    if (s->daemon == NULL) return cannot_listen(s->opt.host, s->opt.port, errno, err);
    return PL_OK;
}

static void set_defaults(struct pl_serve_options *o) {
    if (o->host == NULL) o->host = "127.0.0.1";
    if (o->http_threads == 0) o->http_threads = 4;
    if (o->connections_max == 0) o->connections_max = 1024;
    if (o->connections_max < o->http_threads) o->connections_max = o->http_threads;
    if (o->idle_timeout_s == 0) o->idle_timeout_s = 60;
    if (o->body_timeout_s == 0) o->body_timeout_s = 120;
    if (o->body_bytes_max == 0) o->body_bytes_max = (size_t)16 << 20;
}

void pl_server_reopen_logs(struct pl_server *s) {
    if (s->opt.access_log == NULL) return;
    FILE *fresh = strcmp(s->opt.access_log, "-") == 0 ? stderr : fopen(s->opt.access_log, "ae");
    pthread_mutex_lock(&s->log_lock);
    FILE *old = s->log_file;
    if (fresh != NULL) s->log_file = fresh; /* a log that cannot be reopened stays where it was */
    pthread_mutex_unlock(&s->log_lock);
    if (fresh != NULL && old != NULL && old != stderr) fclose(old);
}

static const char *base_name(const char *path) {
    const char *slash = path == NULL ? NULL : strrchr(path, '/');
    return slash != NULL && slash[1] != '\0' ? slash + 1 : path != NULL ? path : "model";
}

/* How the model's template treats tools; it is parsed here, once, before several threads may ask for it. */
static void read_template(struct pl_server *s) {
    struct pl_str t = {"", 0};
    struct pl_err err = {0};
    struct pl_rendered out = {0};
    (void)pl_engine_chat_template(s->engine, true, &t);
    s->call_args = t.len > 0 && memmem(t.data, t.len, "[ARGS]", 6) != NULL;
    s->call_fence = t.len > 0 && memmem(t.data, t.len, "```json", 7) != NULL;
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "x");
    if (messages != NULL && pl_engine_render(s->engine, messages, NULL, true, NULL, &out, &err) != PL_OK)
        pl_log("chat is refused until this is mended: %s", err.text);
    pl_rendered_deinit(&out);
    json_decref(messages);
    pl_engine_chat_traits(s->engine, &s->traits);
    for (uint32_t one = 1, missing = pl_traits_missing(&s->traits); one <= missing; one *= 2)
        if ((missing & one) != 0) pl_log("the chat template shows no %s", pl_traits_missing_text(one));
}

enum pl_status pl_server_create(struct plumb_engine *e, const struct pl_serve_options *opt, struct pl_server **out,
                                struct pl_err *err) {
    struct pl_server *s = pl_calloc(1, sizeof *s);
    if (s == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for the server");
    s->engine = e;
    s->opt = *opt;
    set_defaults(&s->opt);
    s->tokenizer = e->tok;
    s->started_unix = (uint64_t)time(NULL);
    s->started_ns = pl_clock_ns();
    pthread_mutex_init(&s->jobs_lock, NULL);
    pthread_mutex_init(&s->log_lock, NULL);
    watch_init(s);
    later_init(s);
    s->model_name = pl_strdup(opt->alias != NULL ? opt->alias : base_name(opt->model_path));
    s->key_active = pl_calloc(opt->api_key_count + 1, sizeof *s->key_active);
    read_template(s);
    pl_server_reopen_logs(s);
    enum pl_status st = PL_NO_MEMORY, rings = witness_ring_create(s);
    if (s->model_name != NULL && s->key_active != NULL && rings == PL_OK)
        st = pl_constraint_vocab_create(s->tokenizer, &s->vocab, err);
    if (st == PL_OK) st = pl_service_create(e, &s->opt.service, &s->service, err);
    if (st == PL_OK) st = later_start(s, err);
    if (st == PL_OK) st = start_daemon(s, err);
    if (st == PL_OK) st = watch_start(s, err);
    if (st == PL_OK && s->opt.access_log != NULL && s->log_file == NULL)
        st = pl_err_set(err, __FILE__, __LINE__, PL_IO, "cannot open the access log %s: %s", s->opt.access_log,
                        strerror(errno));
    if (st != PL_OK) {
        pl_server_destroy(s);
        return st;
    }
    *out = s;
    return PL_OK;
}

bool pl_server_failed(struct pl_server *s, struct pl_err *why) {
    struct pl_service_info n;
    pl_service_info(s->service, &n);
    if (n.poisoned) *why = n.poison;
    return n.poisoned;
}

int pl_server_take_socket(struct pl_server *s) { return (int)MHD_quiesce_daemon(s->daemon); }

uint16_t pl_server_port(const struct pl_server *s) {
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    if (s->opt.listen_fd > 0 && getsockname(s->opt.listen_fd, (struct sockaddr *)&a, &len) == 0)
        return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                             : ((struct sockaddr_in *)&a)->sin_port);
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    return info == NULL ? s->opt.port : info->port;
}

bool pl_server_drain(struct pl_server *s, uint32_t timeout_ms) {
    s->draining = true;
    return pl_service_drain(s->service, timeout_ms);
}

/* What is made goes out, except to those who do not take it. */
static void wait_for_answers(struct pl_server *s, uint32_t ms) {
    for (uint32_t i = 0; i < ms / 5; i++) {
        pthread_mutex_lock(&s->jobs_lock);
        bool any = s->jobs != NULL;
        pthread_mutex_unlock(&s->jobs_lock);
        if (!any) return;
        struct timespec t = {0, 5 * 1000 * 1000};
        nanosleep(&t, NULL);
    }
}

void pl_server_destroy(struct pl_server *s) {
    if (s == NULL) return;
    s->draining = true;
    watch_stop(s);
    later_stop(s);
    /* The service ends first: its last events wake every parked connection, which MHD needs before it can stop. */
    pl_service_destroy(s->service);
    wait_for_answers(s, 2000);
    if (s->daemon != NULL) MHD_stop_daemon(s->daemon);
    if (s->log_file != NULL && s->log_file != stderr) fclose(s->log_file);
    pthread_mutex_destroy(&s->jobs_lock);
    pthread_mutex_destroy(&s->log_lock);
    watch_deinit(s);
    later_deinit(s);
    witness_ring_destroy(s);
    pl_constraint_vocab_destroy(s->vocab);
    pl_free(s->model_name);
    pl_free((void *)s->key_active);
    pl_free(s);
}
