/* progress - one line on stderr that is redrawn, "plumb: compiling kernels: 5 of 12"; only where stderr is a terminal and no
 * sink takes the log. A line of the log removes it first. Any thread may call. */
#ifndef PL_BASE_PROGRESS_H
#define PL_BASE_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

void pl_log_progress(const char *what, size_t done, size_t total);
/* Any text as that line. */
void pl_log_progress_line(const char *text);
/* The same while text may be under way: where some stands on the terminal's line (pl_log_text_open), on the line below it,
 * and the cursor goes back. */
void pl_log_progress_aside(const char *text);
void pl_log_text_open(bool open);
bool pl_log_text_is_open(void);
bool pl_log_progress_shown(void);
/* What a terminal must be sent to remove the line, which then counts as removed; "" where there is none. This and the two
 * above may be called in a signal handler. */
const char *pl_log_progress_wipe(void);
void pl_log_progress_end(void);

#endif
