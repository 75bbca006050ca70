/* log - one sink, stderr by default. Errors and warnings are shown, lesser levels are not; pl_log_always is for the lines
 * that may never be lost (the kernel backend line). Lines are written whole, "plumb: " in front, never mixed between
 * threads. */
#ifndef PL_BASE_LOG_H
#define PL_BASE_LOG_H

#include "base/status.h"

enum pl_log_level { PL_LOG_ERROR, PL_LOG_WARN, PL_LOG_INFO, PL_LOG_DEBUG };

/* fn(line, user) gets the finished line without newline; NULL restores stderr. Not thread safe: set at start-up. */
void pl_log_set_sink(void (*fn)(const char *line, void *user), void *user);
void pl_log(enum pl_log_level level, const char *fmt, ...) PL_PRINTF(2, 3);
void pl_log_always(const char *fmt, ...) PL_PRINTF(1, 2);

#endif
