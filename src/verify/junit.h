/* junit - results as JUnit XML, which every CI reads. Counts stand in the first line, so cases are collected first. */
#ifndef PL_VERIFY_JUNIT_H
#define PL_VERIFY_JUNIT_H

#include "base/str.h"

enum pl_junit_verdict { PL_JUNIT_PASS, PL_JUNIT_FAILURE, PL_JUNIT_ERROR, PL_JUNIT_SKIPPED, PL_JUNIT_VERDICTS };

struct pl_junit {
    struct pl_buf cases;
    size_t count[PL_JUNIT_VERDICTS];
};
/* message: why it did not pass; seconds below 0: not known. */
void pl_junit_add(struct pl_junit *j, const char *group, const char *name, enum pl_junit_verdict v, const char *message,
                  double seconds);
/* The document; j is empty afterwards. */
void pl_junit_finish(struct pl_junit *j, const char *suite, struct pl_buf *out);

#endif
