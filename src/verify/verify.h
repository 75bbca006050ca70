/* verify - the whole pass: a plan of items, each ending in pass, fail, inconclusive or skipped, with its evidence.
 *
 * Every item runs in a process of its own, so that a crash or a hang is an item's result and not the end of the report. The
 * report is written after every item; a run that was interrupted goes on after the last one. Nothing is left out in
 * silence: what could not run says why, and the report lists it. */
#ifndef PL_VERIFY_VERIFY_H
#define PL_VERIFY_VERIFY_H

#include <jansson.h>

#include "base/str.h"
#include "ops/ops.h"

enum pl_verify_status { PL_VERIFY_PASS, PL_VERIFY_FAIL, PL_VERIFY_INCONCLUSIVE, PL_VERIFY_SKIPPED, PL_VERIFY_STATUSES };
const char *pl_verify_status_name(enum pl_verify_status s); /* "pass", "fail", "inconclusive", "skipped" */

enum { PL_VERIFY_ROUTE_MODELS = 8 };
struct pl_verify_options {
    const char *self;            /* this program */
    const char *model, *flags;   /* NULL: items that need one are skipped; flags: of the engine, for every item */
    const char *backend;         /* which must run; NULL: whatever does */
    const char *url, *api_key;   /* a server instead */
    const char *dir;             /* report and scratch */
    const char *against, *tests; /* report or build to compare with; JUnit results of the suite */
    const char *order;           /* JUnit results of the same suite in other orders, with commas */
    const char *route_models[PL_VERIFY_ROUTE_MODELS]; /* for routes that the model does not reach */
    size_t route_model_count;
    bool quick;
    uint32_t floor;     /* percent of the read ceiling that decoding must reach; 0: none */
    uint32_t jobs;      /* items at once, and half as many rows of an item; 0: by the number of CPUs */
    uint32_t context;   /* tokens a sequence may hold; 0: the model's own, as plumb serve bounds it */
    uint32_t timeout_s; /* of one item */
};

struct pl_verify_result {
    enum pl_verify_status status;
    char summary[600];
    json_t *evidence; /* owned; NULL: none */
};
void pl_verify_say(struct pl_verify_result *r, enum pl_verify_status s, const char *fmt, ...) PL_PRINTF(3, 4);

struct pl_verify_item {
    const char *name, *what;
    int question; /* of the nine that a pass must answer (docs/verify.md); 0: none of them */
    bool local, outside, needs_model;
    bool timed; /* measures time: nothing else of the pass runs meanwhile */
    void (*run)(const struct pl_verify_options *o, struct pl_verify_result *r);
};
extern const struct pl_verify_item pl_verify_items[];
extern const size_t pl_verify_item_count;
const struct pl_verify_item *pl_verify_item_find(const char *name);
bool pl_verify_item_planned(const struct pl_verify_options *o, const struct pl_verify_item *i);

/* Runs one item here, in this process. */
void pl_verify_run_item(const struct pl_verify_options *o, const struct pl_verify_item *i, struct pl_verify_result *r);
json_t *pl_verify_result_json(const struct pl_verify_item *i, const struct pl_verify_result *r,
                              double seconds) PL_MUST_CHECK;

/* A new report without items. */
json_t *pl_verify_report_begin(const struct pl_verify_options *o) PL_MUST_CHECK;
/* Adds verdict, exit code and the list of what was not measured. */
void pl_verify_report_finish(json_t *report);
void pl_verify_report_junit(const json_t *report, struct pl_buf *out);
void pl_verify_report_markdown(const json_t *report, struct pl_buf *out);
/* 0 all passed or skipped, 1 something failed, 2 something is inconclusive. */
int pl_verify_exit_code(const json_t *report);

/* How many processes with the model may run at once, by memory; how many items do. */
uint32_t pl_verify_processes(const struct pl_verify_options *o);
uint32_t pl_verify_jobs(const struct pl_verify_options *o);

/* --- for items --- */
/* Calls each(user, i) for i from 0 to count - 1, by as many threads as rows of an item may run at once; nothing is promised
 * about the order. */
void pl_verify_each(const struct pl_verify_options *o, size_t count, void (*each)(void *user, size_t i), void *user);
/* Runs this program with these words (NULL-terminated); stdout as JSON into *out (NULL when it is none). */
enum pl_status pl_verify_self(const struct pl_verify_options *o, const char *const *words, json_t **out, struct pl_buf *said,
                              int *exit_code, struct pl_err *err) PL_MUST_CHECK;
/* "self COMMAND -m MODEL FLAGS EXTRA" as a command line for ab. */
void pl_verify_command(const struct pl_verify_options *o, const char *self, const char *command, const char *extra,
                       struct pl_buf *out);
/* A completion of a server of ours, ended by length; a thread's function, argument and result are the request. */
struct pl_verify_request {
    const char *url, *prompt;
    float temperature;
    uint32_t timeout_s, tokens;
    bool failed;
    char error[200];
};
void *pl_verify_ask(void *request);
enum { PL_VERIFY_PROMPTS = 4 };
extern const char *const pl_verify_prompts[PL_VERIFY_PROMPTS];
extern const char pl_verify_text[]; /* some prose, for perplexities */

/* {path: hash} of every source a plumb was built from; NULL: it does not say. */
json_t *pl_verify_sources_of(const char *program);
enum { PL_VERIFY_BACKENDS_MAX = 8 };
/* Backends whose operations are tested: the one that must run and the CPU, there with every instruction set. */
size_t pl_verify_backends(const struct pl_verify_options *o, struct pl_ops_options out[PL_VERIFY_BACKENDS_MAX]);
/* The one that a model runs on. */
enum pl_backend pl_verify_backend_of(const struct pl_verify_options *o);

void pl_verify_build(const struct pl_verify_options *o, struct pl_verify_result *r);
void pl_verify_backend(const struct pl_verify_options *o, struct pl_verify_result *r);
void pl_verify_routing(const struct pl_verify_options *o, struct pl_verify_result *r);
void pl_verify_operations(const struct pl_verify_options *o, struct pl_verify_result *r);
void pl_verify_order(const struct pl_verify_options *o, struct pl_verify_result *r);
void pl_verify_jit(const struct pl_verify_options *o, struct pl_verify_result *r);
void pl_verify_forced(const struct pl_verify_options *o, struct pl_verify_result *r);
void pl_verify_outputs(const struct pl_verify_options *o, struct pl_verify_result *r);
void pl_verify_accuracy(const struct pl_verify_options *o, struct pl_verify_result *r);
void pl_verify_counters(const struct pl_verify_options *o, struct pl_verify_result *r);
void pl_verify_routes(const struct pl_verify_options *o, struct pl_verify_result *r);
void pl_verify_bench(const struct pl_verify_options *o, struct pl_verify_result *r);
void pl_verify_op_bench(const struct pl_verify_options *o, struct pl_verify_result *r);
void pl_verify_server(const struct pl_verify_options *o, struct pl_verify_result *r);
void pl_verify_tuner(const struct pl_verify_options *o, struct pl_verify_result *r);
void pl_verify_tests(const struct pl_verify_options *o, struct pl_verify_result *r);
void pl_verify_outside_identity(const struct pl_verify_options *o, struct pl_verify_result *r);
void pl_verify_outside_answers(const struct pl_verify_options *o, struct pl_verify_result *r);
void pl_verify_outside_counters(const struct pl_verify_options *o, struct pl_verify_result *r);
void pl_verify_outside_health(const struct pl_verify_options *o, struct pl_verify_result *r);
void pl_verify_outside_speed(const struct pl_verify_options *o, struct pl_verify_result *r);
void pl_verify_outside_scoring(const struct pl_verify_options *o, struct pl_verify_result *r);
/* Compares with an earlier report or another build: against must be set, report holds the items so far. */
void pl_verify_against(const struct pl_verify_options *o, const json_t *report, struct pl_verify_result *r);

#endif
