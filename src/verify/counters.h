/* counters - the counter gate: the same concurrent requests at two servers, and what their counters say.
 *
 * Outputs cannot see a fallback, because a fallback gives the same outputs; counters can. EQUAL: on both sides every
 * operation ran, none was gathered or declined on one side alone, launches are a whole number per step. DIFFERS: something
 * of that is not so. INCONCLUSIVE: metrics are off, a counter is missing (an error, never a zero), no step had two
 * sequences, nothing was merged although the server can, requests failed. Each finding is named. */
#ifndef PL_VERIFY_COUNTERS_H
#define PL_VERIFY_COUNTERS_H

#include "verify/ab.h"
#include "verify/metrics.h"

struct pl_counters_options {
    struct pl_ab_side base, arm; /* url, or command: a server's command line, started and stopped here */
    const char *const *prompts;
    size_t prompt_count;
    uint32_t n, concurrency, rounds, timeout_s;
    bool allow_identical, require_merge, same_binary_meant;
    const char *const *allow_declined; /* parts of reasons that only one side may have */
    size_t allow_declined_count;
    void (*progress)(void *user, const char *what, size_t done, size_t total);
    void *progress_user;
};

struct pl_counters_side {
    struct pl_metrics before, after;
    char backend[256], url[256];
    size_t asked, failed;
    char error[400];
    long metrics_status;
    bool steps_known;
    double steps, launches, batched_steps, merges, gathered, declined, tokens, layer_steps;
    bool can_merge; /* it has a counter of merges */
};

enum { PL_COUNTERS_FINDINGS_MAX = 64 };
struct pl_counters_report {
    enum pl_ab_verdict verdict;
    struct pl_counters_side base, arm;
    struct pl_counters_finding {
        bool doubt; /* nothing can be concluded; else: a difference */
        char text[400];
    } finding[PL_COUNTERS_FINDINGS_MAX];
    size_t finding_count;
};

enum pl_status pl_counters_run(struct pl_counters_options *o, struct pl_counters_report *r,
                               struct pl_err *err) PL_MUST_CHECK;
void pl_counters_deinit(struct pl_counters_report *r);
json_t *pl_counters_json(const struct pl_counters_options *o, const struct pl_counters_report *r) PL_MUST_CHECK;
void pl_counters_junit(const struct pl_counters_report *r, struct pl_buf *out);
void pl_counters_markdown(const struct pl_counters_options *o, const struct pl_counters_report *r, struct pl_buf *out);

/* --- a server of our own, for the time of a check --- */
struct pl_child_server {
    int pid, err_fd;
    char url[128];
};
/* Starts the command (a plumb serve; --port 0 is appended unless a port is given, --metrics when wanted) and waits until it
 * listens. *said, when not NULL, receives what it printed until then. */
enum pl_status pl_child_server_start(const char *command, const char *const *env, size_t env_count, bool metrics,
                                     uint32_t timeout_s, struct pl_child_server *out, struct pl_buf *said,
                                     struct pl_err *err) PL_MUST_CHECK;
/* SIGTERM, then SIGKILL after ten seconds. Returns the exit code, or 128 + signal. */
int pl_child_server_stop(struct pl_child_server *s);

#endif
