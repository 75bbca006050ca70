#include "cmd/piped.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

enum { QUIET_MS = 1000 }; /* of the wait, before it is told */

static int poll_one(int fd, int wait_ms) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int got;
    do got = poll(&p, 1, wait_ms);
    while (got < 0 && errno == EINTR);
    return got;
}

/* False: nothing came. */
static bool comes(int fd, int wait_ms) {
    int quiet = PL_MIN(wait_ms, (int)QUIET_MS);
    if (poll_one(fd, quiet) != 0) return true;
    if (wait_ms > quiet) {
        fprintf(stderr,
                "plumb: waiting up to %d s for the text on standard input, a pipe ('< /dev/null': there is none; "
                "'-f -': as long as it takes)\n",
                wait_ms / 1000);
        if (poll_one(fd, wait_ms - quiet) != 0) return true;
    }
    fprintf(stderr, "plumb: nothing came on standard input: asking without it\n");
    return false;
}

enum pl_status pl_piped_read(int fd, int wait_ms, size_t max_bytes, struct pl_buf *out, struct pl_err *err) {
    struct stat st;
    if (fstat(fd, &st) != 0 || !(S_ISREG(st.st_mode) || S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode))) return PL_OK;
    if (!S_ISREG(st.st_mode) && !comes(fd, wait_ms)) return PL_OK;
    char block[65536];
    for (;;) {
        ssize_t n = read(fd, block, sizeof block);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) PL_FAIL(err, PL_IO, "standard input: %s", strerror(errno));
        if (n == 0) return PL_OK;
        pl_buf_add(out, block, (size_t)n);
        if (!pl_buf_ok(out)) PL_FAIL(err, PL_NO_MEMORY, "standard input: out of memory");
        if (out->len > max_bytes)
            PL_FAIL(err, PL_LIMIT, "standard input is larger than the %zu MB that are read", max_bytes >> 20);
    }
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

enum pl_status pl_piped_join(struct pl_buf *text, const char *question, struct pl_err *err) {
    size_t first = 0;
    while (first < text->len && is_space(text->data[first])) first++;
    if (first == text->len) text->len = 0;
    while (text->len > 0 && (text->data[text->len - 1] == '\n' || text->data[text->len - 1] == '\r')) text->len--;
    if (text->len > 0 && question[0] != '\0') pl_buf_add_c(text, "\n\n");
    pl_buf_add_c(text, question);
    if (!pl_buf_ok(text)) PL_FAIL(err, PL_NO_MEMORY, "out of memory for the question");
    return PL_OK;
}
