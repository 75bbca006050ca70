/* log - one sink, stderr by default. There are no levels: what is logged is meant to be read, and the kernel backend line
 * may never be lost. Lines are written whole, "plumb: " in front, never mixed between threads. */
#ifndef PL_BASE_LOG_H
#define PL_BASE_LOG_H

#include "base/status.h"

/* fn(line, user) gets the finished line without newline; NULL restores stderr. Not thread safe: set at start-up. */
void pl_log_set_sink(void (*fn)(const char *line, void *user), void *user);
void pl_log(const char *fmt, ...) PL_PRINTF(1, 2);

#endif
