/* out - standard output, where results and nothing else go.
 *
 * A reader that has gone away (closed pipe) ends the program at once, quietly and with exit code 0: it has what it
 * wanted. Any other write error ends it with a sentence on stderr and exit code 1, never a lost byte unnoticed.
 * Also the progress line on stderr, which only ever shows on a terminal. */
#ifndef PL_CMD_OUT_H
#define PL_CMD_OUT_H

#include <stdint.h>

#include "base/status.h"

void pl_out_write(const void *data, size_t len);
void pl_out_str(const char *s);
void pl_out_printf(const char *fmt, ...) PL_PRINTF(1, 2);
void pl_out_flush(void);
/* Around a piece of generated text: progress leaves its line; flushed, and progress keeps off a line that is not ended. */
void pl_out_text_begin(void);
void pl_out_text_end(const char *text, size_t len);
/* No more text comes: lines are free again. */
void pl_out_text_over(void);
/* For who writes to stdout by other means: false ends the process as a failed write here does (errno says why). */
void pl_out_check(bool ok);
/* From here on the exit code is a verdict: a reader that leaves does not turn it into a good one, and when the report cannot
 * be written a good verdict (0) is inconclusive. */
void pl_out_verdict(int code);
/* Flushes and returns the exit code of a command that went well. */
int pl_out_close(void);

/* A line "label  42%  12.3 of 29.1 MB" redrawn at most ten times a second; nothing when stderr is no terminal. */
void pl_progress(const char *label, uint64_t done, uint64_t total, bool bytes);
void pl_progress_end(void);
/* Before a message that follows output whose last character is given: on a terminal it begins a line of its own, while the
 * output stays as it is. */
void pl_out_end_line(char last);

#endif
