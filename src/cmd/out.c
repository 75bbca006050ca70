#include "cmd/out.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cmd/cmd.h"
#include "cmd/interrupt.h"

static int verdict = -1;

void pl_out_verdict(int code) { verdict = code; }

void pl_out_check(bool ok) {
    if (ok) return;
    int e = errno;
    if (e == EPIPE) _exit(verdict >= 0 ? verdict : PL_EXIT_OK);
    if (e == EINTR && pl_interrupted()) _exit(PL_EXIT_INTERRUPTED); /* nobody reads, and Ctrl-C ends the waiting */
    fprintf(stderr, "plumb: cannot write to standard output: %s\n", strerror(e));
    _exit(verdict > 0 ? verdict : verdict == 0 ? PL_EXIT_INCONCLUSIVE : PL_EXIT_FAILED);
}

void pl_out_write(const void *data, size_t len) { pl_out_check(len == 0 || fwrite(data, 1, len, stdout) == len); }
void pl_out_str(const char *s) { pl_out_write(s, strlen(s)); }

void pl_out_printf(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vfprintf(stdout, fmt, ap);
    va_end(ap);
    pl_out_check(n >= 0);
}

void pl_out_flush(void) { pl_out_check(fflush(stdout) == 0); }

int pl_out_close(void) {
    pl_out_flush();
    return PL_EXIT_OK;
}

/* Terminal state of the one progress line; the program has one stderr. */
static uint64_t progress_last_ns;
static bool progress_shown;

void pl_progress(const char *label, uint64_t done, uint64_t total, bool bytes) {
    if (!isatty(STDERR_FILENO)) return;
    uint64_t now = pl_clock_ns();
    if (progress_shown && done < total && now - progress_last_ns < 100000000u) return;
    progress_last_ns = now;
    progress_shown = true;
    double percent = total > 0 ? 100.0 * (double)done / (double)total : 0.0;
    if (bytes)
        fprintf(stderr, "\r\033[K%s %3.0f%%  %.1f of %.1f MB", label, percent, (double)done / 1e6, (double)total / 1e6);
    else
        fprintf(stderr, "\r\033[K%s %3.0f%%  %llu of %llu", label, percent, (unsigned long long)done,
                (unsigned long long)total);
    fflush(stderr);
}

void pl_progress_end(void) {
    if (progress_shown) fprintf(stderr, "\r\033[K");
    progress_shown = false;
}
