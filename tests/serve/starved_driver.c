/* starved_driver - a server in this process whose n-th allocation fails, for tests/serve/test_starved.py.
 *
 * Use: starved_driver MODEL, then on standard input for each request a line "PATH LENGTH" and LENGTH bytes of body. For n =
 * 0 (none fails), 1, 2, ... until no allocation was left to fail, one line each: n, HTTP status (0: the connection ended
 * without an answer), body with its line breaks as spaces. A line "." ends a request's list. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "serve/serve.h"

static int fail(const char *what) {
    fprintf(stderr, "starved_driver: %s\n", what);
    return 1;
}

static int connect_to(uint16_t port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0) exit(fail("cannot connect"));
    return fd;
}

/* The whole answer, headers and all; terminated. */
static char *ask(uint16_t port, const char *path, const char *body, size_t len, size_t *got) {
    static char answer[1 << 20];
    char head[512];
    int n = snprintf(head, sizeof head, "POST %s HTTP/1.0\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", path, len);
    int fd = connect_to(port);
    if (send(fd, head, (size_t)n, MSG_NOSIGNAL) != n) exit(fail("cannot send"));
    (void)!send(fd, body, len, MSG_NOSIGNAL); /* the server may have answered already */
    *got = 0;
    for (ssize_t r; (r = read(fd, answer + *got, sizeof answer - 1 - *got)) > 0;) *got += (size_t)r;
    answer[*got] = '\0';
    close(fd);
    return answer;
}

/* False when every allocation was asked for. */
static bool one(uint16_t port, const char *path, const char *body, size_t len, uint64_t n) {
    size_t got;
    uint64_t before = pl_mem_calls();
    pl_mem_fail_at(n);
    char *answer = ask(port, path, body, len, &got);
    bool reached = pl_mem_calls() - before >= n;
    pl_mem_fail_at(0);
    const char *text = strstr(answer, "\r\n\r\n");
    text = text == NULL ? "" : text + 4;
    for (char *c = answer; *c != '\0'; c++)
        if (*c == '\n') *c = ' ';
    printf("%llu %s %s\n", (unsigned long long)n, got < 12 ? "0" : strndupa(answer + 9, 3), text);
    return n == 0 || reached;
}

int main(int argc, char **argv) {
    struct pl_err err = {0};
    struct plumb_engine *e = NULL;
    struct pl_server *s = NULL;
    if (argc != 2) return fail("usage: starved_driver MODEL");
    struct plumb_engine_options eo = {
        .size = sizeof eo, .model = argv[1], .threads = 1, .backend = "cpu", .max_sessions = 2, .logit_rows = 66};
    struct pl_serve_options so = {.model_path = argv[1], .alias = "tiny", .http_threads = 1};
    so.service.max_running = 2;
    if (pl_engine_create(&eo, &e, &err) != PL_OK || pl_server_create(e, &so, &s, &err) != PL_OK) return fail(err.text);
    char path[128];
    size_t len;
    while (scanf("%127s %zu", path, &len) == 2) {
        char *body = malloc(len + 1);
        if (body == NULL || getchar() != '\n' || fread(body, 1, len, stdin) != len) return fail("a request ends early");
        for (uint64_t n = 0; one(pl_server_port(s), path, body, len, n); n++) {}
        printf(".\n");
        fflush(stdout);
        free(body);
    }
    pl_server_destroy(s);
    plumb_engine_destroy(e);
    return 0;
}
