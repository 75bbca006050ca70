/* serve - the HTTP server: OpenAI- and Anthropic-compatible endpoints over the service.
 *
 * Threads: libmicrohttpd's pool parses requests, renders templates, tokenises and writes answers; the service's delivery
 * thread turns tokens into text and wakes connections; the engine thread does neither.
 * Every request body is hostile: bounded in size, depth, count and time, and refused with the parameter's name.
 * A client that leaves has its request cancelled at once: its pages are free after the step that is running. */
#ifndef PL_SERVE_SERVE_H
#define PL_SERVE_SERVE_H

#include "engine/service.h"

struct pl_serve_options {
    const char *host; /* address to bind; "127.0.0.1" by default */
    uint16_t port;    /* 0: the system picks one */
    int listen_fd;    /* above 0: an open listening socket, used instead of host and port */
    const char *const *api_keys;
    size_t api_key_count;
    const char *alias; /* model name in answers; NULL: the file's */
    const char *model_path;
    bool metrics, cors;
    bool loopback;                    /* found by pl_server_create: only this machine can connect */
    const char *const *allowed_hosts; /* names that requests may come to and pages may come from, beside local ones */
    size_t allowed_host_count;
    bool priorities;          /* requests may name theirs */
    uint32_t http_threads;    /* 0 = 4 */
    uint32_t connections_max; /* 0 = 1024 */
    uint32_t per_address_max; /* connections of one client address; 0 = no limit */
    uint32_t body_timeout_s;  /* for the whole body; 0 = 120 */
    uint32_t idle_timeout_s;  /* 0 = 60 */
    size_t body_bytes_max;    /* 0 = 16 MiB */
    uint32_t per_key_max;     /* running and waiting requests per API key; 0 = no limit */
    const char *access_log;   /* JSON lines; NULL: none, "-": stderr */
    bool log_bodies;          /* with the request's body, which holds prompts */
    const char *backend_line; /* what the start-up line said */
    float ceiling_gbs;        /* what memory gives, as `plumb bench` measured it; 0: not told, no ratio is shown */
    uint32_t context;
    struct pl_service_options service;
};

struct pl_server;

/* What is wrong with an address whatever the model, a port that is taken too: before minutes of loading. */
enum pl_status pl_server_check_address(const char *host, uint16_t port, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_server_create(struct plumb_engine *e, const struct pl_serve_options *opt, struct pl_server **out,
                                struct pl_err *err) PL_MUST_CHECK;
uint16_t pl_server_port(const struct pl_server *s);
/* Refuses new requests, lets running ones end for at most timeout_ms. */
bool pl_server_drain(struct pl_server *s, uint32_t timeout_ms);
void pl_server_reopen_logs(struct pl_server *s);
/* True when the device has failed: every request is answered 503 with the reason from then on. */
bool pl_server_failed(struct pl_server *s, struct pl_err *why);
/* Stops accepting and hands the listening socket out, so that a new process may go on with it; -1: there is none. */
int pl_server_take_socket(struct pl_server *s);
void pl_server_destroy(struct pl_server *s);

#endif
