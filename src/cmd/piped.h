/* piped - the text that was piped to a command beside its question: `git diff | plumb run MODEL -p "Sum this up."`
 * A terminal, /dev/null and whatever else is neither a pipe, a socket nor a file count as no text. */
#ifndef PL_CMD_PIPED_H
#define PL_CMD_PIPED_H

#include "base/str.h"

enum { PL_PIPED_WAIT_MS = 30000 };
/* All that fd holds, at most max_bytes, appended to out. A pipe that stays open and silent for wait_ms is left alone, since
 * programs that start others often leave theirs so: both the wait and the leaving are told on stderr. */
enum pl_status pl_piped_read(int fd, int wait_ms, size_t max_bytes, struct pl_buf *out, struct pl_err *err) PL_MUST_CHECK;
/* Text, an empty line, question: what is asked. Line ends behind the text are dropped; a text of white space is none. */
enum pl_status pl_piped_join(struct pl_buf *text, const char *question, struct pl_err *err) PL_MUST_CHECK;

#endif
