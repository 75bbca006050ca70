#include "verify/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

enum { OUT_MAX = 64 << 20 };

void pl_spawned_deinit(struct pl_spawned *s) {
    pl_buf_deinit(&s->out);
    pl_buf_deinit(&s->err);
}

static bool executable(const char *path) {
    struct stat st;
    return access(path, X_OK) == 0 && stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool pl_find_program(const char *name, char *path, size_t cap) {
    if (strchr(name, '/') != NULL) {
        snprintf(path, cap, "%s", name);
        return executable(path);
    }
    const char *dirs = getenv("PATH");
    for (const char *at = dirs == NULL ? "/usr/bin:/bin" : dirs; *at != '\0';) {
        size_t n = strcspn(at, ":");
        int len = snprintf(path, cap, "%.*s/%s", (int)n, at, name);
        if (n > 0 && len > 0 && (size_t)len < cap && executable(path)) return true;
        at += n + (at[n] == ':');
    }
    return false;
}

/* In the child: nothing but exec or the error number into the pipe. */
static _Noreturn void child(char *const *argv, const char *const *env, size_t env_count, int out, int err, int report) {
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0) dup2(null, 0);
    dup2(out, 1);
    dup2(err, 2);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody is left to read it */
    for (size_t i = 0; i < env_count; i++) putenv((char *)(uintptr_t)env[i]);
    execvp(argv[0], argv);
    int e = errno;
    ssize_t ignored = write(report, &e, sizeof e);
    (void)ignored;
    _exit(127);
}

/* Reads both pipes until they are closed, the time is over or too much came. */
static void collect(int out, int err, uint64_t deadline, pid_t pid, struct pl_spawned *s) {
    struct pollfd p[2] = {{.fd = out, .events = POLLIN}, {.fd = err, .events = POLLIN}};
    char chunk[65536];
    while (p[0].fd >= 0 || p[1].fd >= 0) {
        uint64_t now = pl_clock_ns();
        if (now >= deadline || s->overflowed) {
            s->timed_out = !s->overflowed;
            kill(-pid, SIGKILL);
            return;
        }
        int wait_ms = (int)PL_MIN((deadline - now) / 1000000u + 1, (uint64_t)1000);
        if (poll(p, 2, wait_ms) < 0 && errno != EINTR) return;
        for (int i = 0; i < 2; i++) {
            if (p[i].fd < 0 || p[i].revents == 0) continue;
            ssize_t n = read(p[i].fd, chunk, sizeof chunk);
            struct pl_buf *to = i == 0 ? &s->out : &s->err;
            if (n > 0) pl_buf_add(to, chunk, (size_t)n);
            if (to->len > OUT_MAX || !pl_buf_ok(to)) s->overflowed = true;
            if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) p[i].fd = -1;
        }
    }
}

static enum pl_status make_pipes(int p[3][2], struct pl_err *err) {
    for (int i = 0; i < 3; i++) {
        if (pipe2(p[i], O_CLOEXEC) == 0) continue;
        for (int k = 0; k < i; k++) close(p[k][0]), close(p[k][1]);
        PL_FAIL(err, PL_IO, "no pipe to a child process: %s", strerror(errno));
    }
    return PL_OK;
}

enum pl_status pl_spawn(char *const *argv, const char *const *env, size_t env_count, uint32_t timeout_s,
                        struct pl_spawned *s, struct pl_err *err) {
    int p[3][2]; /* stdout, stderr, error number of a failed exec */
    *s = (struct pl_spawned){0};
    PL_TRY(make_pipes(p, err));
    uint64_t start = pl_clock_ns();
    pid_t pid = fork();
    if (pid == 0) child(argv, env, env_count, p[0][1], p[1][1], p[2][1]);
    for (int i = 0; i < 3; i++) close(p[i][1]);
    int exec_errno = 0, status = 0;
    if (pid > 0) {
        bool failed = read(p[2][0], &exec_errno, sizeof exec_errno) == (ssize_t)sizeof exec_errno;
        if (!failed) collect(p[0][0], p[1][0], start + (uint64_t)timeout_s * 1000000000u, pid, s);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    }
    for (int i = 0; i < 3; i++) close(p[i][0]);
    if (pid < 0) PL_FAIL(err, PL_IO, "no child process could be started: %s", strerror(errno));
    if (exec_errno != 0) {
        pl_spawned_deinit(s);
        PL_FAIL(err, PL_NOT_FOUND, "cannot run '%.200s': %s", argv[0], strerror(exec_errno));
    }
    s->seconds = (double)(pl_clock_ns() - start) * 1e-9;
    s->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return PL_OK;
}
