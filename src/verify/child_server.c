/* child_server - starts a server, learns its address from what it prints, and ends it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "verify/counters.h"

static bool has(char *const *words, size_t count, const char *word) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(words[i], word) == 0) return true;
    return false;
}

static _Noreturn void become(char *const *argv, const char *const *env, size_t env_count, int err) {
    int null = open("/dev/null", O_RDWR);
    if (null >= 0) {
        dup2(null, 0);
        dup2(null, 1);
    }
    dup2(err, 2);
    setpgid(0, 0); /* Ctrl-C is the parent's, who ends it in order */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    for (size_t i = 0; i < env_count; i++) putenv((char *)(uintptr_t)env[i]);
    execvp(argv[0], argv);
    fprintf(stderr, "cannot run '%s': %s\n", argv[0], strerror(errno));
    _exit(127);
}

/* "listening on http://ADDRESS" on its stderr. */
static bool find_url(const char *text, char *out, size_t cap) {
    static const char mark[] = "listening on ";
    const char *at = strstr(text, mark);
    if (at == NULL) return false;
    at += sizeof mark - 1;
    size_t n = strcspn(at, " \n");
    if (at[n] == '\0' || n >= cap) return false;
    snprintf(out, cap, "%.*s", (int)n, at);
    return true;
}

static void add_some(int fd, int wait_ms, struct pl_buf *to, bool *ended) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char chunk[4096];
    if (poll(&p, 1, wait_ms) <= 0) return;
    ssize_t n = read(fd, chunk, sizeof chunk);
    if (n > 0 && to->len < 1 << 20) pl_buf_add(to, chunk, (size_t)n);
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) *ended = true;
}

static enum pl_status start_words(char **words, size_t count, const char *const *env, size_t env_count, bool metrics,
                                  struct pl_child_server *out, struct pl_err *err) {
    int pipes[2];
    char *argv[256];
    char port[] = "--port", zero[] = "0", measured[] = "--metrics";
    size_t n = 0;
    if (count > 240) PL_FAIL(err, PL_USAGE, "the server's command has %zu words", count);
    for (; n < count; n++) argv[n] = words[n];
    if (!has(words, count, "--port")) {
        argv[n++] = port;
        argv[n++] = zero;
    }
    if (metrics && !has(words, count, "--metrics")) argv[n++] = measured;
    argv[n] = NULL;
    if (pipe2(pipes, O_CLOEXEC) != 0) PL_FAIL(err, PL_IO, "no pipe to a server: %s", strerror(errno));
    out->pid = fork();
    if (out->pid == 0) become(argv, env, env_count, pipes[1]);
    close(pipes[1]);
    out->err_fd = pipes[0];
    if (out->pid > 0) return PL_OK;
    close(pipes[0]);
    PL_FAIL(err, PL_IO, "no process for a server: %s", strerror(errno));
}

enum pl_status pl_child_server_start(const char *command, const char *const *env, size_t env_count, bool metrics,
                                     uint32_t timeout_s, struct pl_child_server *out, struct pl_buf *said,
                                     struct pl_err *err) {
    char **words = NULL;
    size_t count;
    struct pl_buf text = {0};
    *out = (struct pl_child_server){0};
    PL_TRY(pl_ab_split(command, &words, &count, err));
    enum pl_status st = start_words(words, count, env, env_count, metrics, out, err);
    pl_free((void *)words);
    PL_TRY(st);
    uint64_t end = pl_clock_ns() + (uint64_t)timeout_s * 1000000000u;
    bool ended = false, listens = false;
    while (!ended && !listens && pl_clock_ns() < end) {
        add_some(out->err_fd, 200, &text, &ended);
        listens = find_url(pl_buf_cstr(&text), out->url, sizeof out->url);
    }
    if (said != NULL) pl_buf_add(said, pl_buf_cstr(&text), text.len);
    if (!listens) {
        int code = pl_child_server_stop(out);
        st = pl_err_set(err, __FILE__, __LINE__, PL_IO, "the server did not start (exit code %d): %.200s: %.500s", code,
                        command, pl_buf_cstr(&text));
    }
    pl_buf_deinit(&text);
    return st;
}

int pl_child_server_stop(struct pl_child_server *s) {
    int status = 0;
    if (s->pid <= 0) return 0;
    kill(s->pid, SIGTERM);
    for (int i = 0; i < 200; i++) {
        struct pl_buf rest = {0}; /* a full pipe must not hold it */
        bool ended = false;
        add_some(s->err_fd, 50, &rest, &ended);
        pl_buf_deinit(&rest);
        if (waitpid(s->pid, &status, WNOHANG) == s->pid) break;
        if (ended) usleep(50000);
        if (i == 199) {
            kill(s->pid, SIGKILL);
            waitpid(s->pid, &status, 0);
        }
    }
    close(s->err_fd);
    s->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
