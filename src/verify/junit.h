/* junit - results as JUnit XML, which every CI reads, written and read. Counts stand in the first line, so cases are
 * collected first. */
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

/* A case of a document: the attributes classname and name as they are written, entities and all. An error is a failure. */
typedef void pl_junit_each(void *user, const char *group, const char *name, enum pl_junit_verdict v);
/* Every <testcase> with the <failure>, <error> or <skipped> inside, which is what all writers of JUnit XML agree on. Takes
 * time in proportion to len. False: the text ends in the middle; its last case may be missing. */
bool pl_junit_read(const char *text, size_t len, pl_junit_each *each, void *user) PL_MUST_CHECK;

#endif
