/* serve - the HTTP server as a command. Names follow llama-server where the meaning is the same. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "cmd/cmd.h"
#include "cmd/common.h"
#include "cmd/out.h"
#include "cmd/serve_env.h"
#include "cmd/serve_flags.h"
#include "device/device.h"
#include "ops/keep.h"
#include "serve/serve.h"

enum {
    KEYS_MAX = 256,
    HOSTS_MAX = 64,
    SCORE_ROWS = 64,
    LISTEN_FD = 3
};                           /* rows of a step that may give a prompt's log-probabilities */
enum { GAP_AUTO = 1 << 20 }; /* no gap was given */

struct serve {
    struct pl_model_opts model;
    struct pl_serve_options opt;
    const char *api_key_file;
    uint32_t port, idle_s, gpu_layers, drain_s;
    const char *on_failure;
    enum on_failure { ON_FAILURE_EXIT, ON_FAILURE_STAY, ON_FAILURE_RESTART } failure;
    char **argv; /* as it was given, for a restart */
    uint64_t body_bytes, fail_call, unpacked_memory;
    bool no_prefix_cache;
    char *keys[KEYS_MAX]; /* owned */
    size_t key_count;
    char *hosts[HOSTS_MAX]; /* owned */
    size_t host_count;
};

static enum pl_status add_key(void *out, const char *value, struct pl_err *err) {
    struct serve *s = out;
    if (value[0] == '\0') PL_FAIL(err, PL_INVALID, "an API key is empty");
    if (s->key_count == KEYS_MAX) PL_FAIL(err, PL_LIMIT, "more than %d API keys", KEYS_MAX);
    char *copy = pl_strdup(value);
    if (copy == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for an API key");
    s->keys[s->key_count++] = copy;
    return PL_OK;
}

static enum pl_status add_host(void *out, const char *value, struct pl_err *err) {
    struct serve *s = out;
    if (value[0] == '\0') PL_FAIL(err, PL_INVALID, "an allowed host is empty");
    if (s->host_count == HOSTS_MAX) PL_FAIL(err, PL_LIMIT, "more than %d allowed hosts", HOSTS_MAX);
    char *copy = pl_strdup(value);
    if (copy == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for an allowed host");
    s->hosts[s->host_count++] = copy;
    return PL_OK;
}

static char *trimmed(char *line) {
    line += strspn(line, " \t");
    size_t len = strlen(line);
    while (len > 0 && (line[len - 1] == ' ' || line[len - 1] == '\t')) line[--len] = '\0';
    return line;
}

/* One key a line, without the spaces around it; empty lines and lines that begin with # are skipped. */
static enum pl_status read_key_file(struct serve *s, struct pl_err *err) {
    struct pl_buf text = {0};
    if (s->api_key_file == NULL) return PL_OK;
    enum pl_status st = pl_cmd_read_file(s->api_key_file, 1 << 20, &text, err);
    size_t before = s->key_count;
    char *rest = text.data;
    if (st == PL_OK && text.len > 0 && memchr(text.data, '\0', text.len) != NULL)
        st = pl_err_set(err, __FILE__, __LINE__, PL_INVALID, "%s holds a zero byte: it is no list of keys", s->api_key_file);
    for (char *line; st == PL_OK && rest != NULL && (line = strsep(&rest, "\r\n")) != NULL;) {
        line = trimmed(line);
        if (line[0] != '\0' && line[0] != '#') st = add_key(s, line, err);
    }
    pl_buf_deinit(&text);
    if (st == PL_OK && s->key_count == before) PL_FAIL(err, PL_INVALID, "%s holds no API key", s->api_key_file);
    return st;
}

static int parse(struct serve *s, int argc, char **argv) {
    struct pl_arg model[PL_MODEL_ARG_ROWS];
    pl_model_args(&s->model, model);
    struct pl_serve_options *o = &s->opt;
    const struct pl_arg own[] = {
        {0, "host", "ADDRESS", PL_ARG_STR, &o->host, "IP address to listen on (127.0.0.1)", 0, 0, NULL},
        {0, "port", "N", PL_ARG_U32, &s->port, "TCP port (8080; 0 = any free one, printed)", 0, 65535, NULL},
        {0, "parallel", "N", PL_ARG_U32, &o->service.max_running, "sequences that run together, also -np (4)", 1, 1024,
         NULL},
        {0, "queue", "N", PL_ARG_U32, &o->service.max_waiting, "requests that may wait; more get 429 (256)", 1, 65536, NULL},
        {0, "max-tokens-per-step", "N", PL_ARG_U32, &o->service.step_tokens, "rows of one step (0 = the batch rows)", 0,
         65536, NULL},
        {0, "kv-memory", "BYTES", PL_ARG_U64, &s->model.engine.kv_memory,
         "memory for KV pages, at least one sequence's (0 = all sequences at full context)", 0, 0, NULL},
        {0, "unpacked-memory", "BYTES", PL_ARG_U64, &s->unpacked_memory,
         "GPU memory for weights unpacked for long prompts (what leaves a quarter free; 0, --memory-limit: none)", 0, 0,
         NULL},
        {0, "gap-ms", "MS", PL_ARG_U32, &o->service.gap_ms,
         "prompts may lengthen a step of running sequences to about this (250, on a GPU 20 to 40; 0 = no bound)", 0, 60000,
         NULL},
        {0, "no-prefix-cache", NULL, PL_ARG_FLAG, &s->no_prefix_cache, "do not reuse the pages of equal beginnings", 0, 0,
         NULL},
        {'a', "alias", "NAME", PL_ARG_STR, &o->alias, "model name in answers (the file's name)", 0, 0, NULL},
        {0, "api-key", "KEY", PL_ARG_EACH, s, "require this key; may be given several times", 0, 0, add_key},
        {0, "api-key-file", "FILE", PL_ARG_STR, &s->api_key_file, "keys, one a line", 0, 0, NULL},
        {0, "per-key", "N", PL_ARG_U32, &o->per_key_max, "requests one key may have running and waiting (0 = any)", 0, 65536,
         NULL},
        {0, "priorities", NULL, PL_ARG_FLAG, &o->priorities, "requests may carry a priority (lower comes earlier)", 0, 0,
         NULL},
        {0, "metrics", NULL, PL_ARG_FLAG, &o->metrics, "serve /metrics (Prometheus); otherwise it answers 501", 0, 0, NULL},
        {0, "ceiling-gbs", "GB/S", PL_ARG_F32, &o->ceiling_gbs,
         "what memory gives here, as bench prints it: metrics then show the part reached", 0, 1e6, NULL},
        {0, "allow-host", "NAME", PL_ARG_EACH, s,
         "a name that this server is reached by, beside local ones; without keys others are refused; several times", 0, 0,
         add_host},
        {0, "cors", NULL, PL_ARG_FLAG, &o->cors, "allow pages of any origin to call", 0, 0, NULL},
        {0, "threads-http", "N", PL_ARG_U32, &o->http_threads, "threads that parse requests and write answers (4)", 1, 64,
         NULL},
        {0, "connections", "N", PL_ARG_U32, &o->connections_max, "open connections (1024)", 1, 65536, NULL},
        {0, "connections-per-address", "N", PL_ARG_U32, &o->per_address_max, "of them from one address (0 = any)", 0, 65536,
         NULL},
        {0, "body-timeout", "SECONDS", PL_ARG_U32, &o->body_timeout_s, "for a whole request body (120)", 1, 86400, NULL},
        {0, "timeout", "SECONDS", PL_ARG_U32, &s->idle_s, "close connections that say or take nothing (60)", 1, 86400, NULL},
        {0, "body-limit", "BYTES", PL_ARG_U64, &s->body_bytes, "largest request body (16 MiB)", 0, 0, NULL},
        {0, "drain", "SECONDS", PL_ARG_U32, &s->drain_s, "time for running requests after SIGTERM (30)", 0, 86400, NULL},
        {0, "access-log", "FILE", PL_ARG_STR, &o->access_log, "a JSON line per request, no prompt text ('-': stderr)", 0, 0,
         NULL},
        {0, "log-bodies", NULL, PL_ARG_FLAG, &o->log_bodies, "write request bodies, that is prompts, to the access log too",
         0, 0, NULL},
        {0, "on-device-failure", "WHAT", PL_ARG_STR, &s->on_failure,
         "exit (1), stay (and answer 503) or restart (same process, same socket) (exit)", 0, 0, NULL},
        {0, "fail-step", "N", PL_ARG_U64, &o->service.fail_step, "drill: step N fails as if the device had", 0, 0, NULL},
        {0, "fail-call", "N", PL_ARG_U64, &s->fail_call, "drill: call N of the device's driver from now on fails; 0: none",
         0, 0, NULL},
        {0, "gpu-layers", "N", PL_ARG_U32, &s->gpu_layers, "accepted as -ngl; plumb runs all layers on its backend", 0,
         100000, NULL},
        {0},
    };
    const struct pl_arg *groups[] = {model, own, NULL};
    struct pl_args a = {.command = "serve",
                        .synopsis = "[-m] MODEL [--host ADDRESS] [--port N] [--parallel N]",
                        .about = "Serves a model over HTTP with OpenAI-compatible endpoints.",
                        .examples = "plumb serve -m smollm2-135m-instruct\n"
                                    "plumb serve -m model.gguf --host 0.0.0.0 --port 8000 --parallel 8 --api-key SECRET\n"
                                    "curl http://127.0.0.1:8080/v1/chat/completions -d "
                                    "'{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'",
                        .groups = groups};
    return pl_args_parse(&a, argc, argv);
}

/* A listening socket from systemd, or from the process that this one was before a restart: descriptor 3. */
static int inherited_socket(void) {
    const char *count = getenv("LISTEN_FDS"), *pid = getenv("LISTEN_PID");
    if (count == NULL || pid == NULL || strcmp(count, "1") != 0 || strtol(pid, NULL, 10) != (long)getpid()) return 0;
    fcntl(LISTEN_FD, F_SETFD, FD_CLOEXEC);
    return LISTEN_FD;
}

static bool is_gpu(const char *backend) {
    enum pl_backend b = PL_BACKEND_CPU;
    char why[256];
    if (backend == NULL || strcmp(backend, "auto") == 0)
        b = pl_ops_auto(why, sizeof why);
    else if (!pl_backend_from_name(backend, &b))
        return false; /* opening it says so */
    return b == PL_BACKEND_CUDA || b == PL_BACKEND_ROCM;
}

/* On a GPU the prompts of many clients are served faster in larger steps, and few of them fit between two tokens
 * (docs/perf/server.md). */
static void suit_backend(struct serve *s) {
    bool gpu = is_gpu(s->model.engine.backend);
    if (s->model.engine.batch_rows == 0 && gpu) s->model.engine.batch_rows = 2048; /* otherwise the engine's own */
    if (s->opt.service.gap_ms != GAP_AUTO) return;
    s->opt.service.gap_ms = gpu ? 40 : 250;
    if (gpu) s->opt.service.gap_least_ms = 20;
}

/* --max-tokens-per-step is met, not cut to the rows that a step happens to have. */
static enum pl_status suit_steps(struct serve *s, struct pl_err *err) {
    const uint32_t rows = s->model.engine.batch_rows, step = s->opt.service.step_tokens, many = s->opt.service.max_running;
    if (rows != 0 && step > rows)
        PL_FAIL(err, PL_USAGE, "--max-tokens-per-step %u is more than a step has rows: --batch-rows is %u", step, rows);
    if (step != 0 && step <= many)
        PL_FAIL(err, PL_USAGE, "--max-tokens-per-step %u leaves no room for prompts beside --parallel %u: use at least %u",
                step, many, many + 1);
    if (rows == 0 && step > 512) s->model.engine.batch_rows = step;
    return PL_OK;
}

static enum pl_status prepare(struct serve *s, struct pl_err *err) {
    struct pl_serve_options *o = &s->opt;
    static const char *const failures[] = {"exit", "stay", "restart"};
    PL_TRY(read_key_file(s, err));
    size_t failure = 0;
    while (s->on_failure != NULL && failure < PL_COUNT_OF(failures) && strcmp(s->on_failure, failures[failure]) != 0)
        failure++;
    if (failure == PL_COUNT_OF(failures))
        PL_FAIL(err, PL_USAGE, "--on-device-failure is '%.40s' but must be exit, stay or restart", s->on_failure);
    s->failure = (enum on_failure)failure;
    o->listen_fd = inherited_socket();
    o->port = (uint16_t)s->port;
    o->idle_timeout_s = s->idle_s;
    o->body_bytes_max = s->body_bytes;
    o->api_keys = (const char *const *)s->keys;
    o->api_key_count = s->key_count;
    o->allowed_hosts = (const char *const *)s->hosts;
    o->allowed_host_count = s->host_count;
    o->service.no_prefix_cache = s->no_prefix_cache;
    PL_TRY(suit_steps(s, err));
    suit_backend(s);
    s->model.engine.max_sessions = o->service.max_running;
    s->model.engine.logit_rows = o->service.max_running + SCORE_ROWS;
    return PL_OK;
}

/* Waits for signals: TERM or INT drain (a second one stops at once), HUP reopens logs. True: the device has failed and the
 * server is not to stay. */
static bool wait_for_end(struct serve *s, struct pl_server *server, const sigset_t *set) {
    for (;;) {
        struct timespec tick = {0, 200 * 1000 * 1000};
        int sig = sigtimedwait(set, NULL, &tick);
        struct pl_err why = {0};
        if (sig < 0) {
            if (s->failure == ON_FAILURE_STAY || !pl_server_failed(server, &why)) continue;
            fprintf(stderr, "plumb serve: %s: %s\n", why.text, s->failure == ON_FAILURE_EXIT ? "leaving" : "starting again");
            return true;
        }
        if (sig == SIGHUP) {
            pl_server_reopen_logs(server);
            continue;
        }
        fprintf(stderr, "plumb serve: %s: finishing what runs, for at most %u s (again: stop at once)\n",
                sig == SIGINT ? "interrupted" : "terminating", s->drain_s);
        uint64_t until = pl_clock_ns() + (uint64_t)s->drain_s * 1000000000u;
        struct timespec none = {0, 0};
        for (sig = 0; sig != SIGTERM && sig != SIGINT && !pl_server_drain(server, 50) && pl_clock_ns() < until;) {
            sig = sigtimedwait(set, NULL, &none);
            if (sig == SIGHUP) pl_server_reopen_logs(server);
        }
        return false;
    }
}

/* A drill fails once. */
static void end_drill(char **argv) {
    static const char *const names[] = {"--fail-step", "--fail-call"};
    char **to = argv;
    for (char **from = argv; *from != NULL; from++) {
        size_t n = 0;
        for (size_t i = 0; i < PL_COUNT_OF(names) && n == 0; i++)
            if (strncmp(*from, names[i], strlen(names[i])) == 0) n = strlen(names[i]);
        if (n == 0) *to++ = *from;
        if (n > 0 && (*from)[n] == '\0' && from[1] != NULL) from++;
    }
    *to = NULL;
}

static enum pl_status keep_unpacked(const struct serve *s, struct plumb_engine *e, struct pl_err *err) {
    uint64_t most = s->unpacked_memory, kept = 0;
    if (most == PL_KEEP_AUTO && s->model.engine.memory_limit != 0) most = 0;
    if (most > 0) PL_TRY(pl_ops_keep_unpacked(e->ops, most, &kept, err));
    if (kept > 0)
        fprintf(stderr, "plumb serve: %.1f GB of weights unpacked once for long prompts (--unpacked-memory 0: each time)\n",
                (double)kept * 1e-9);
    return PL_OK;
}

static enum pl_status begin_drill(const struct serve *s, struct pl_err *err) {
    if (s->fail_call == 0) return PL_OK;
    if (pl_device_calls() == 0)
        PL_FAIL(err, PL_USAGE, "--fail-call needs a --backend with a device: this one calls no driver");
    pl_device_fail_at(s->fail_call);
    return PL_OK;
}

/* A failed device takes its process with it on some platforms, so the process begins again, on the same socket: clients
 * that connect meanwhile wait. Returns only when that was not possible. */
static void restart(struct serve *s, int fd) {
    char pid[24];
    snprintf(pid, sizeof pid, "%ld", (long)getpid());
    if (fd < 0 || (fd != LISTEN_FD && dup2(fd, LISTEN_FD) < 0)) return;
    fcntl(LISTEN_FD, F_SETFD, 0);
    setenv("LISTEN_FDS", "1", 1);
    setenv("LISTEN_PID", pid, 1);
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    end_drill(s->argv);
    execv("/proc/self/exe", s->argv);
    fprintf(stderr, "plumb serve: cannot start again: %s\n", strerror(errno));
}

static enum pl_status need_text(void *user, struct plumb_engine *e, struct pl_err *err) {
    (void)user;
    return pl_engine_need_text(e, err);
}

static int serve(struct serve *s) {
    int code = 0, fd = -1;
    bool failed = false;
    struct pl_err err = {0};
    const char *host = s->opt.host != NULL ? s->opt.host : "127.0.0.1";
    if (s->opt.listen_fd == 0 && pl_server_check_address(host, s->opt.port, &err) != PL_OK)
        return pl_cmd_fail("serve", &err);
    const char *log = s->opt.access_log != NULL && strcmp(s->opt.access_log, "-") != 0 ? s->opt.access_log : NULL;
    if (pl_cmd_can_write(log, "access log", &err) != PL_OK) return pl_cmd_fail("serve", &err);
    sigset_t set; /* blocked before any thread exists, so that only sigwait sees them */
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    struct plumb_engine *e = pl_cmd_open_engine("serve", &s->model, &(struct pl_cmd_need){need_text, NULL}, &code);
    if (e == NULL) return code;
    struct pl_server *server = NULL;
    s->opt.model_path = e->model_path;
    enum pl_status st = keep_unpacked(s, e, &err);
    if (st == PL_OK) st = begin_drill(s, &err);
    if (st == PL_OK) st = pl_engine_warm_up(e, &err);
    if (st == PL_OK) st = pl_server_create(e, &s->opt, &server, &err);
    if (st == PL_OK) {
        bool v6 = strchr(host, ':') != NULL;
        fprintf(stderr, "plumb serve: listening on http://%s%s%s:%u (%u sequence%s of %u tokens; ", v6 ? "[" : "", host,
                v6 ? "]" : "", pl_server_port(server), s->opt.service.max_running, pl_cmd_s(s->opt.service.max_running),
                e->context);
        const struct pl_kv_shape *kv = &e->kv_shape;
        if (kv->layers > 0)
            fprintf(stderr, "KV cache %s, %zu page%s of %zu tokens%s, %.1f MB)\n", pl_kv_type_name(kv->dtype),
                    kv->page_count, pl_cmd_s(kv->page_count), kv->page_tokens,
                    kv->window_page_count > 0 ? " beside those of windowed layers" : "",
                    (double)pl_kv_shape_bytes(kv) * 1e-6);
        else
            fprintf(stderr, "recurrent state %.1f MB)\n", (double)pl_kv_shape_bytes(kv) * 1e-6);
        char start[PL_ENGINE_START_TEXT];
        pl_engine_start_text(e, start);
        fprintf(stderr, "plumb serve: the model was opened in %s\n", start);
        failed = wait_for_end(s, server, &set);
        if (failed) pl_server_drain(server, 2000); /* the failed requests get their answers */
        if (failed && s->failure == ON_FAILURE_RESTART) fd = pl_server_take_socket(server);
        if (failed) code = 1;
        pl_server_destroy(server);
    } else {
        code = pl_cmd_fail("serve", &err);
    }
    plumb_engine_destroy(e);
    if (failed && s->failure == ON_FAILURE_RESTART) restart(s, fd);
    return code;
}

int pl_cmd_serve(int argc, char **argv) {
    struct serve s = {.port = 8080, .drain_s = 30, .unpacked_memory = PL_KEEP_AUTO};
    struct pl_err err = {0};
    s.opt.service.max_running = 4;
    s.opt.service.max_waiting = 256;
    s.opt.service.gap_ms = GAP_AUTO;
    s.argv = argv - 1; /* main's own, with the program's name */
    char *made = NULL;
    struct pl_serve_argv args = {0};
    if (pl_serve_flags_translate(&argc, argv, &made, &err) != PL_OK) {
        pl_free(made);
        return pl_cmd_fail("serve", &err);
    }
    if (pl_serve_env_read(argc, argv, environ, &args, &err) != PL_OK) return pl_cmd_fail("serve", &err);
    int code = parse(&s, args.argc, args.argv);
    if (code < 0) {
        if (prepare(&s, &err) != PL_OK)
            code = pl_cmd_fail("serve", &err);
        else
            code = serve(&s);
    }
    for (size_t i = 0; i < s.key_count; i++) pl_free(s.keys[i]);
    for (size_t i = 0; i < s.host_count; i++) pl_free(s.hosts[i]);
    pl_free(made);
    pl_serve_env_free(&args); /* values are views into it */
    return code;
}
