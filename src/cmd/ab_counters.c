/* ab_counters - plumb ab --counters: runs the counter gate, prints and writes its report. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "cmd/ab.h"
#include "cmd/cmd.h"
#include "cmd/out.h"
#include "verify/counters.h"

static enum pl_status write_reports(const struct ab *a, const struct pl_counters_options *o,
                                    const struct pl_counters_report *r, const struct pl_buf *markdown, struct pl_err *err) {
    if (a->report_dir == NULL) return PL_OK;
    if (mkdir(a->report_dir, 0777) != 0 && errno != EEXIST)
        PL_FAIL(err, PL_IO, "cannot make the folder %s: %s", a->report_dir, strerror(errno));
    json_t *v = pl_counters_json(o, r);
    char *json = v == NULL ? NULL : json_dumps(v, JSON_INDENT(2));
    json_decref(v);
    if (json == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for the report");
    enum pl_status st = ab_write_file(a->report_dir, "counters.md", pl_buf_cstr(markdown), markdown->len, err);
    if (st == PL_OK) st = ab_write_file(a->report_dir, "counters.json", json, strlen(json), err);
    free(json);
    struct pl_buf junit = {0};
    pl_counters_junit(r, &junit);
    if (st == PL_OK) st = ab_write_file(a->report_dir, "counters.xml", pl_buf_cstr(&junit), junit.len, err);
    pl_buf_deinit(&junit);
    return st;
}

static struct pl_counters_options options_of(const struct ab *a) {
    return (struct pl_counters_options){.base = a->o.base,
                                        .arm = a->o.arm,
                                        .prompts = a->o.prompts,
                                        .prompt_count = a->o.prompt_count,
                                        .n = a->o.n,
                                        .concurrency = a->o.concurrency,
                                        .rounds = a->rounds,
                                        .timeout_s = a->o.timeout_s,
                                        .allow_identical = a->o.allow_identical,
                                        .require_merge = a->require_merge,
                                        .same_binary_meant = a->o.same_binary_meant,
                                        .allow_declined = (const char *const *)a->allow_declined.item,
                                        .allow_declined_count = a->allow_declined.count,
                                        .progress = ab_progress};
}

int ab_counters(struct ab *a) {
    struct pl_counters_options o = options_of(a);
    struct pl_counters_report *r = pl_calloc(1, sizeof *r);
    struct pl_buf markdown = {0};
    struct pl_err err = {0};
    enum pl_status st = r == NULL ? pl_err_set(&err, __FILE__, __LINE__, PL_NO_MEMORY, "no memory for the report")
                                  : pl_counters_run(&o, r, &err);
    pl_progress_end();
    if (st == PL_OK) {
        pl_counters_markdown(&o, r, &markdown);
        st = write_reports(a, &o, r, &markdown, &err);
    }
    int code = st == PL_OK ? ab_print(&markdown, (int)r->verdict) : ab_fail(&err);
    pl_buf_deinit(&markdown);
    if (r != NULL) pl_counters_deinit(r);
    pl_free(r);
    return code;
}
