#include "base/log.h"

#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "base/progress.h"
#include "base/str.h"

static void (*log_sink)(const char *, void *);
static void *log_user;
static _Atomic bool progress_shown, progress_below; /* below the line of the cursor */
static _Atomic bool text_open;

const char *pl_log_progress_wipe(void) {
    if (!atomic_exchange(&progress_shown, false)) return "";
    return atomic_exchange(&progress_below, false) ? "\0337\033[B\r\033[K\0338" : "\r\033[K";
}

void pl_log_set_sink(void (*fn)(const char *, void *), void *user) {
    log_sink = fn;
    log_user = user;
}

void pl_log_progress_line(const char *text) {
    if (log_sink != NULL || !isatty(STDERR_FILENO)) return;
    const char *before = atomic_load(&progress_below) ? pl_log_progress_wipe() : "";
    atomic_store(&progress_shown, true);
    fprintf(stderr, "%s\r\033[K%s", before, text);
    fflush(stderr);
}
void pl_log_progress_aside(const char *text) {
    if (!atomic_load(&text_open)) {
        pl_log_progress_line(text);
        return;
    }
    if (log_sink != NULL || !isatty(STDERR_FILENO)) return;
    atomic_store(&progress_below, true);
    atomic_store(&progress_shown, true);
    fprintf(stderr, "\033D\033M\0337\033[B\r\033[K%s\0338", text); /* down and up first: that scrolls on the last line */
    fflush(stderr);
}
void pl_log_text_open(bool open) { atomic_store(&text_open, open); }
void pl_log_progress(const char *what, size_t done, size_t total) {
    char text[160];
    snprintf(text, sizeof text, "plumb: %s: %zu of %zu", what, done, total);
    pl_log_progress_line(text);
}
bool pl_log_text_is_open(void) { return atomic_load(&text_open); }
bool pl_log_progress_shown(void) { return atomic_load(&progress_shown); }
void pl_log_progress_end(void) { fputs(pl_log_progress_wipe(), stderr); }

void pl_log(const char *fmt, ...) {
    char line[2048];
    int n = snprintf(line, sizeof line, "plumb: ");
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line + n, sizeof line - (size_t)n, fmt, ap);
    va_end(ap);
    pl_text_clean(line);
    if (log_sink != NULL)
        log_sink(line, log_user);
    else
        fprintf(stderr, "%s%s\n", pl_log_progress_wipe(), line);
}
