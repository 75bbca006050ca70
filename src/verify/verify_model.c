/* verify_model - items that run a model's server: counters, health. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "ops/choose.h"
#include "verify/counters.h"
#include "verify/peer.h"
#include "verify/verify.h"

enum pl_backend pl_verify_backend_of(const struct pl_verify_options *o) {
    enum pl_backend b = PL_BACKEND_CPU;
    char why[200];
    if (o->backend == NULL || !pl_backend_from_name(o->backend, &b)) return pl_ops_auto(why, sizeof why);
    return b;
}

/* ---------- counters ---------- */

void pl_verify_counters(const struct pl_verify_options *o, struct pl_verify_result *r) {
    struct pl_buf command = {0};
    struct pl_err err = {0};
    const char *prompts[PL_VERIFY_PROMPTS + 1];
    char longest[2001]; /* several pages, so that there is something to split and merge */
    size_t most = o->quick || o->context == 0 ? 400 : sizeof longest - 1;
    size_t bytes = o->context == 0 ? most : PL_MIN((size_t)o->context / 2, most);
    for (int i = 0; i < PL_VERIFY_PROMPTS; i++) prompts[i] = pl_verify_prompts[i];
    snprintf(longest, sizeof longest, "%.*s", (int)bytes, pl_verify_text); /* a byte is a token at most */
    prompts[PL_VERIFY_PROMPTS] = longest;
    struct pl_counters_report *c = pl_calloc(1, sizeof *c);
    pl_verify_command(o, o->self, "serve", "--parallel 4", &command);
    struct pl_ab_side side = {.command = pl_buf_cstr(&command)};
    struct pl_counters_options opt = {.base = side,
                                      .arm = side,
                                      .prompts = prompts,
                                      .prompt_count = PL_COUNT_OF(prompts),
                                      .n = o->quick ? 16 : 64,
                                      .concurrency = 4,
                                      .rounds = 2,
                                      .timeout_s = o->timeout_s,
                                      .same_binary_meant = true};
    opt.base.name = "base";
    opt.arm.name = "arm";
    if (c == NULL || pl_counters_run(&opt, c, &err) != PL_OK) {
        pl_verify_say(r, PL_VERIFY_INCONCLUSIVE, "%.500s", err.text);
    } else {
        enum pl_verify_status s = c->verdict == PL_AB_EQUAL     ? PL_VERIFY_PASS
                                  : c->verdict == PL_AB_DIFFERS ? PL_VERIFY_FAIL
                                                                : PL_VERIFY_INCONCLUSIVE;
        pl_verify_say(r, s, "two runs of the server: %s%s%s; %.0f steps with two or more sequences",
                      pl_ab_verdict_name(c->verdict), c->finding_count > 0 ? ": " : "",
                      c->finding_count > 0 ? c->finding[0].text : "", c->base.batched_steps);
        r->evidence = pl_counters_json(&opt, c);
    }
    if (c != NULL) pl_counters_deinit(c);
    pl_free(c);
    pl_buf_deinit(&command);
}

/* ---------- the server ---------- */

static void check(json_t *rows, size_t *failed, const char *what, bool ok, const char *fmt, ...) PL_PRINTF(5, 6);
static void check(json_t *rows, size_t *failed, const char *what, bool ok, const char *fmt, ...) {
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    *failed += !ok;
    json_t *detail = json_string(text);
    json_array_append_new(rows, json_pack("{s:s, s:s, s:o}", "check", what, "status", ok ? "pass" : "fail", "detail",
                                          detail != NULL ? detail : json_string("")));
}

static void check_server(const struct pl_verify_options *o, const char *url, json_t *rows, size_t *failed) {
    struct pl_peer p = {.url = url, .timeout_s = o->timeout_s};
    static const char *const pages[] = {"/health", "/ready", "/v1/models", "/props"};
    long status = 0;
    json_t *answer = NULL;
    for (size_t i = 0; i < PL_COUNT_OF(pages); i++) {
        enum pl_status st = pl_peer_json(&p, pages[i], NULL, &status, &answer, NULL);
        check(rows, failed, pages[i], st == PL_OK && status == 200, "HTTP %ld", status);
        json_decref(answer);
        answer = NULL;
    }
    (void)!pl_peer_json(&p, "/metrics", NULL, &status, &answer, NULL);
    check(rows, failed, "metrics that are off answer 501, not zeros", status == 501, "HTTP %ld", status);
    json_decref(answer);
    answer = NULL;
    struct pl_verify_request c = {.url = url, .prompt = pl_verify_prompts[1], .timeout_s = o->timeout_s, .tokens = 24};
    (void)pl_verify_ask(&c);
    check(rows, failed, "a completion", !c.failed, "%s", c.failed ? "failed" : "24 tokens");
    (void)!pl_peer_json(&p, "/health", NULL, &status, &answer, NULL);
    double since = json_number_value(json_object_get(answer, "seconds_since_last_token"));
    check(rows, failed, "health proves progress", json_is_object(answer) && since >= 0, "last token %.2f s ago", since);
    json_decref(answer);
    answer = NULL;
    json_t *body = json_pack("{s:i}", "prompt", 3);
    (void)!pl_peer_json(&p, "/v1/completions", body, &status, &answer, NULL);
    check(rows, failed, "nonsense is a 400", status == 400, "HTTP %ld %.200s", status, pl_peer_error_text(answer));
    json_decref(body);
    json_decref(answer);
    pl_peer_deinit(&p);
}

void pl_verify_server(const struct pl_verify_options *o, struct pl_verify_result *r) {
    struct pl_buf command = {0};
    struct pl_child_server child;
    struct pl_err err = {0};
    json_t *rows = json_array();
    size_t failed = 0;
    pl_verify_command(o, o->self, "serve", "--parallel 2", &command);
    if (pl_child_server_start(pl_buf_cstr(&command), NULL, 0, false, o->timeout_s, &child, NULL, &err) != PL_OK) {
        pl_verify_say(r, PL_VERIFY_FAIL, "%.500s", err.text);
    } else {
        check_server(o, child.url, rows, &failed);
        int code = pl_child_server_stop(&child);
        check(rows, &failed, "a clean end after SIGTERM", code == 0, "exit code %d", code);
        pl_verify_say(r, failed == 0 ? PL_VERIFY_PASS : PL_VERIFY_FAIL, "%zu of %zu checks passed",
                      json_array_size(rows) - failed, json_array_size(rows));
    }
    r->evidence = json_pack("{s:o}", "checks", rows);
    pl_buf_deinit(&command);
}
