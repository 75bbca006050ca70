#include "cmd/out.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/progress.h"
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

void pl_out_text_begin(void) { pl_log_progress_end(); }
void pl_out_text_end(const char *text, size_t len) {
    pl_out_flush();
    if (len > 0) pl_log_text_open(text[len - 1] != '\n' && isatty(STDOUT_FILENO));
}
void pl_out_text_over(void) { pl_log_text_open(false); }

int pl_out_close(void) {
    pl_out_flush();
    return PL_EXIT_OK;
}

static uint64_t progress_last_ns;

void pl_progress(const char *label, uint64_t done, uint64_t total, bool bytes) {
    if (!isatty(STDERR_FILENO)) return;
    uint64_t now = pl_clock_ns();
    if (pl_log_progress_shown() && done < total && now - progress_last_ns < 100000000u) return;
    progress_last_ns = now;
    char text[200];
    double percent = total > 0 ? 100.0 * (double)done / (double)total : 0.0;
    if (bytes)
        snprintf(text, sizeof text, "%s %3.0f%%  %.1f of %.1f MB", label, percent, (double)done / 1e6, (double)total / 1e6);
    else
        snprintf(text, sizeof text, "%s %3.0f%%  %llu of %llu", label, percent, (unsigned long long)done,
                 (unsigned long long)total);
    pl_log_progress_line(text);
}

void pl_progress_end(void) { pl_log_progress_end(); }

void pl_out_end_line(char last) {
    if (last != '\n' && last != '\0' && isatty(STDOUT_FILENO) && isatty(STDERR_FILENO)) fputc('\n', stderr);
}
