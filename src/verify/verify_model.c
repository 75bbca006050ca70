/* verify_model - items that run a model's server: counters, routes, health. */
#include <pthread.h>
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
    char longest[401]; /* several pages, so that there is something to split and merge */
    for (int i = 0; i < PL_VERIFY_PROMPTS; i++) prompts[i] = pl_verify_prompts[i];
    snprintf(longest, sizeof longest, "%.400s", pl_verify_text);
    prompts[PL_VERIFY_PROMPTS] = longest;
    struct pl_counters_report *c = pl_calloc(1, sizeof *c);
    pl_verify_command(o, o->self, "serve", "-c 512 --parallel 4", &command);
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

/* ---------- routes ---------- */

/* The ways through the runtime that a verification must drive (design: every route has its own way in). */
static const struct route {
    const char *name, *kernel, *driven;
    bool cpu; /* the CPU has it under another name */
} routes[] = {
    {"paged decode, one pass", "paged_v1", "single sequences", false},
    {"paged decode, split", "paged_v2", "several sequences at once", false},
    {"merge of split parts", "paged_merge", "a context of several chunks", false},
    {"cascade over a shared prefix", "paged_cascade", "sequences with one beginning", false},
    {"gather, then dense", "paged_gather", "forced, or an unsupported shape", false},
    {"attention", "attention", "every request", true},
    {"norm", "norm", "every request", true},
    {"rope and append", "rope_append", "every request", true},
    {"products, one row", "gemv", "decode", true},
    {"products, many rows", "gemm", "prompts", true},
    {"gate and up", "glu", "every request", true},
    {"samplers", "sample", "requests with a temperature", false},
    {"mixture of experts", "moe", "a model with experts", false},
    {"state update", "state", "a recurrent model", false},
    {"latent attention", "mla", "a model with latent attention", false},
    {"ternary product", "ternary", "a BitNet model", false},
    {"FFT", "fft", "a model that uses it", false},
};

struct company {
    const char *url, *prompt;
    float temperature;
    uint32_t timeout_s;
    bool failed;
};
static void *ask_one(void *arg) {
    struct company *c = arg;
    struct pl_peer p = {.url = c->url, .timeout_s = c->timeout_s};
    long status = 0;
    json_t *answer = NULL, *body = json_pack("{s:s, s:i, s:f, s:b, s:i}", "prompt", c->prompt, "max_tokens", 24,
                                             "temperature", (double)c->temperature, "ignore_eos", 1, "seed", 1);
    c->failed = body == NULL || pl_peer_json(&p, "/v1/completions", body, &status, &answer, NULL) != PL_OK || status != 200;
    json_decref(body);
    json_decref(answer);
    pl_peer_deinit(&p);
    return NULL;
}

/* One alone, then four together that share a beginning of more than a page, then a long one, where the context allows it. */
static bool drive(const struct pl_verify_options *o, const char *url) {
    struct company c[5], longest = {.url = url, .prompt = pl_verify_text, .timeout_s = o->timeout_s};
    pthread_t thread[5];
    char prompt[5][400];
    bool ok = true;
    for (int i = 0; i < 5; i++) {
        snprintf(prompt[i], sizeof prompt[i], "%.200s %s", pl_verify_text, pl_verify_prompts[i % PL_VERIFY_PROMPTS]);
        c[i] =
            (struct company){.url = url, .prompt = prompt[i], .timeout_s = o->timeout_s, .temperature = i == 4 ? 0.8f : 0};
    }
    ask_one(&c[0]);
    int started = 1;
    for (; started < 5; started++)
        if (pthread_create(&thread[started], NULL, ask_one, &c[started]) != 0) break;
    for (int i = 1; i < started; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < started; i++) ok = ok && !c[i].failed;
    ask_one(&longest);
    return ok && started == 5;
}

static bool reached(const json_t *kernels, const char *part) {
    for (size_t i = 0; i < json_array_size(kernels); i++) {
        const json_t *k = json_array_get(kernels, i);
        const char *name = json_string_value(json_object_get(k, "kernel")),
                   *op = json_string_value(json_object_get(k, "op"));
        bool ran = json_integer_value(json_object_get(k, "launches")) > 0;
        if (name == NULL || op == NULL || !ran || strncmp(name, "declined", 8) == 0) continue;
        if (strstr(name, part) != NULL || strstr(op, part) != NULL) return true;
    }
    return false;
}

void pl_verify_routes(const struct pl_verify_options *o, struct pl_verify_result *r) {
    struct pl_buf command = {0};
    struct pl_child_server child;
    struct pl_err err = {0};
    long status = 0;
    json_t *answer = NULL, *rows = json_array();
    size_t count = 0;
    pl_verify_command(o, o->self, "serve", "--parallel 4", &command);
    if (pl_child_server_start(pl_buf_cstr(&command), NULL, 0, true, o->timeout_s, &child, NULL, &err) != PL_OK) {
        pl_verify_say(r, PL_VERIFY_FAIL, "%.500s", err.text);
        r->evidence = json_pack("{s:o}", "routes", rows);
        pl_buf_deinit(&command);
        return;
    }
    bool ok = drive(o, child.url);
    struct pl_peer p = {.url = child.url, .timeout_s = o->timeout_s};
    if (pl_peer_json(&p, "/v1/kernels", NULL, &status, &answer, &err) != PL_OK) ok = false;
    pl_peer_deinit(&p);
    (void)pl_child_server_stop(&child);
    const json_t *kernels = json_object_get(answer, "kernels");
    bool cpu = pl_verify_backend_of(o) == PL_BACKEND_CPU;
    for (size_t i = 0; i < PL_COUNT_OF(routes); i++) {
        bool yes = reached(kernels, routes[i].kernel);
        count += yes;
        json_array_append_new(rows, json_pack("{s:s, s:s, s:b, s:s}", "route", routes[i].name, "way_in", routes[i].driven,
                                              "reached", yes, "why",
                                              yes                     ? ""
                                              : cpu && !routes[i].cpu ? "not on the CPU backend, or not with this model"
                                                                      : "not reached by these requests with this model"));
    }
    pl_verify_say(r, ok && count > 0 ? PL_VERIFY_PASS : PL_VERIFY_INCONCLUSIVE,
                  "%zu of %zu routes reached%s; the others are listed with the reason", count, PL_COUNT_OF(routes),
                  ok ? "" : ", but a request failed");
    r->evidence = json_pack("{s:o, s:O?}", "routes", rows, "kernels", kernels);
    json_decref(answer);
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
    struct company c = {.url = url, .prompt = pl_verify_prompts[1], .timeout_s = o->timeout_s};
    ask_one(&c);
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
    pl_verify_command(o, o->self, "serve", "-c 512 --parallel 2", &command);
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
