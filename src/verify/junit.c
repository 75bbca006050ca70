#include "verify/junit.h"

static void escaped(struct pl_buf *out, const char *text) {
    for (; *text != '\0'; text++) switch (*text) {
        case '<': pl_buf_add_c(out, "&lt;"); break;
        case '>': pl_buf_add_c(out, "&gt;"); break;
        case '&': pl_buf_add_c(out, "&amp;"); break;
        case '"': pl_buf_add_c(out, "&quot;"); break;
        default: pl_buf_add_char(out, (unsigned char)*text < 0x20 ? ' ' : *text);
        }
}

void pl_junit_add(struct pl_junit *j, const char *group, const char *name, enum pl_junit_verdict v, const char *message,
                  double seconds) {
    static const char *const tags[PL_JUNIT_VERDICTS] = {"", "failure", "error", "skipped"};
    struct pl_buf *out = &j->cases;
    j->count[v]++;
    pl_buf_add_c(out, "<testcase classname=\"");
    escaped(out, group);
    pl_buf_add_c(out, "\" name=\"");
    escaped(out, name);
    pl_buf_add_c(out, "\"");
    if (seconds >= 0) pl_buf_printf(out, " time=\"%.3f\"", seconds);
    if (v == PL_JUNIT_PASS) {
        pl_buf_add_c(out, "/>\n");
        return;
    }
    pl_buf_printf(out, "><%s message=\"", tags[v]);
    escaped(out, message);
    pl_buf_add_c(out, "\"/></testcase>\n");
}

void pl_junit_finish(struct pl_junit *j, const char *suite, struct pl_buf *out) {
    size_t all = 0;
    for (int v = 0; v < PL_JUNIT_VERDICTS; v++) all += j->count[v];
    pl_buf_add_c(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"");
    escaped(out, suite);
    pl_buf_printf(out, "\" tests=\"%zu\" failures=\"%zu\" errors=\"%zu\" skipped=\"%zu\">\n", all,
                  j->count[PL_JUNIT_FAILURE], j->count[PL_JUNIT_ERROR], j->count[PL_JUNIT_SKIPPED]);
    pl_buf_add(out, pl_buf_cstr(&j->cases), j->cases.len);
    pl_buf_add_c(out, "</testsuite>\n");
    pl_buf_deinit(&j->cases);
    *j = (struct pl_junit){0};
}
