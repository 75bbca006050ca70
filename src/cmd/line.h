/* line - one line from the user: with editing and history on a terminal when the library is there, plainly otherwise.
 * The prompt goes to stderr, never to stdout. */
#ifndef PL_CMD_LINE_H
#define PL_CMD_LINE_H

#include <stdatomic.h>

#include "base/str.h"

/* Loads the history file (may be NULL: none is kept). While *stop is true (a signal handler raised it) a line that is
 * being typed is given up: pl_line_read returns. stop may be NULL. */
void pl_line_init(const char *history_file, const atomic_bool *stop);
void pl_line_deinit(const char *history_file);
/* Gives the terminal back as it was found, where pl_line_init changed it. May be called in a signal handler that ends the
 * process. */
void pl_line_restore(void);
/* False at the end of input. A line that ends in a backslash goes on in the next one. */
bool pl_line_read(const char *prompt, struct pl_buf *out);

#endif
