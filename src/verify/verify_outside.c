/* verify_outside - what can be known about anyone's server by asking it, and what cannot. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "verify/counters.h"
#include "verify/peer.h"
#include "verify/verify.h"

static struct pl_peer peer_of(const struct pl_verify_options *o) {
    return (struct pl_peer){.url = o->url, .api_key = o->api_key, .timeout_s = o->timeout_s};
}

static json_t *get(struct pl_peer *p, const char *path, long *status) {
    json_t *v = NULL;
    *status = 0;
    (void)!pl_peer_json(p, path, NULL, status, &v, NULL);
    return v;
}

void pl_verify_outside_identity(const struct pl_verify_options *o, struct pl_verify_result *r) {
    struct pl_peer p = peer_of(o);
    long models_status, props_status, kernels_status;
    json_t *models = get(&p, "/v1/models", &models_status), *props = get(&p, "/props", &props_status),
           *kernels = get(&p, "/v1/kernels", &kernels_status);
    const char *backend = json_string_value(json_object_get(props, "backend"));
    const char *id = json_string_value(json_object_get(json_array_get(json_object_get(models, "data"), 0), "id"));
    const json_t *print = json_object_get(props, "fingerprint");
    if (models_status != 200 || id == NULL)
        pl_verify_say(r, PL_VERIFY_FAIL, "%s does not answer /v1/models (HTTP %ld): no OpenAI-compatible server", o->url,
                      models_status);
    else if (backend == NULL)
        pl_verify_say(r, PL_VERIFY_PASS,
                      "model %.150s; the server does not say which backend it resolved or which kernels ran: its "
                      "route is unknown",
                      id);
    else if (o->backend != NULL && strncmp(backend, o->backend, strlen(o->backend)) != 0)
        pl_verify_say(r, PL_VERIFY_FAIL, "expected %s, got: %s", o->backend, backend);
    else
        pl_verify_say(r, PL_VERIFY_PASS, "model %.150s on %s", id, backend);
    r->evidence =
        json_pack("{s:s?, s:s?, s:O?, s:s?, s:O?}", "model", id, "backend", backend, "fingerprint", print, "server_build",
                  json_string_value(json_object_get(props, "build")), "kernels", json_object_get(kernels, "kernels"));
    json_decref(models);
    json_decref(props);
    json_decref(kernels);
    pl_peer_deinit(&p);
}

/* ---------- answers ---------- */

struct question {
    const struct pl_verify_options *o;
    const char *prompt;
    bool ignore_eos;
    struct pl_buf text;
    long status;
    char error[300];
};

static void *ask(void *arg) {
    struct question *q = arg;
    struct pl_peer p = peer_of(q->o);
    struct pl_err err = {0};
    json_t *answer = NULL, *body = json_pack("{s:s, s:i, s:i, s:i}", "prompt", q->prompt, "max_tokens",
                                             q->o->quick ? 12 : 32, "temperature", 0, "seed", 1);
    if (body != NULL && q->ignore_eos) json_object_set_new(body, "ignore_eos", json_true());
    if (body == NULL || pl_peer_json(&p, "/v1/completions", body, &q->status, &answer, &err) != PL_OK)
        snprintf(q->error, sizeof q->error, "%.290s", err.text);
    else if (q->status != 200)
        snprintf(q->error, sizeof q->error, "HTTP %ld %.200s", q->status, pl_peer_error_text(answer));
    const json_t *text = json_object_get(json_array_get(json_object_get(answer, "choices"), 0), "text");
    if (q->status == 200) pl_buf_add(&q->text, json_string_value(text), json_string_length(text));
    json_decref(body);
    json_decref(answer);
    pl_peer_deinit(&p);
    return NULL;
}

static bool same(const struct question *a, const struct question *b) {
    return a->text.len == b->text.len && memcmp(pl_buf_cstr(&a->text), pl_buf_cstr(&b->text), a->text.len) == 0;
}

void pl_verify_outside_answers(const struct pl_verify_options *o, struct pl_verify_result *r) {
    enum { N = PL_VERIFY_PROMPTS, PASSES = 3 };
    struct question q[PASSES][N];
    pthread_t thread[N];
    size_t failed = 0, empty = 0, unsteady = 0, changed = 0;
    struct pl_peer p = peer_of(o);
    long status;
    json_t *props = get(&p, "/props", &status);
    bool plumb = json_is_object(json_object_get(props, "fingerprint")); /* others may not know ignore_eos */
    json_decref(props);
    pl_peer_deinit(&p);
    for (int k = 0; k < PASSES; k++) {
        int started = 0;
        for (int i = 0; i < N; i++) q[k][i] = (struct question){.o = o, .prompt = pl_verify_prompts[i], .ignore_eos = plumb};
        for (int i = 0; i < N && k < 2; i++) ask(&q[k][i]); /* alone, twice */
        for (; k == 2 && started < N; started++)
            if (pthread_create(&thread[started], NULL, ask, &q[k][started]) != 0) break;
        for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
        for (int i = 0; i < N; i++) failed += q[k][i].status != 200;
    }
    for (int i = 0; i < N; i++) {
        empty += q[0][i].text.len == 0;
        unsteady += !same(&q[0][i], &q[1][i]);
        changed += !same(&q[0][i], &q[2][i]);
    }
    if (failed > 0) {
        const char *why = "";
        for (int k = PASSES - 1; k >= 0; k--)
            for (int i = 0; i < N; i++)
                if (q[k][i].error[0] != '\0') why = q[k][i].error;
        pl_verify_say(r, PL_VERIFY_FAIL, "%zu of %d requests failed: %s", failed, N * PASSES, why);
    } else if (2 * empty > N) {
        pl_verify_say(r, PL_VERIFY_INCONCLUSIVE, "%zu of %d answers are empty", empty, N);
    } else if (unsteady > 0) {
        pl_verify_say(r, PL_VERIFY_INCONCLUSIVE, "%zu of %d greedy answers do not repeat, so nothing can be compared",
                      unsteady, N);
    } else {
        pl_verify_say(r, PL_VERIFY_PASS, "%d greedy answers repeat; %zu of them change when asked together%s", N, changed,
                      changed > 0 ? " (other sums for other batches: no invariant server)" : "");
    }
    r->evidence =
        json_pack("{s:i, s:I, s:I, s:I, s:I}", "prompts", (int)N, "failed", (json_int_t)failed, "empty", (json_int_t)empty,
                  "not_repeating", (json_int_t)unsteady, "changed_in_company", (json_int_t)changed);
    for (int k = 0; k < PASSES; k++)
        for (int i = 0; i < N; i++) pl_buf_deinit(&q[k][i].text);
}

/* ---------- speed ---------- */

/* Tokens a second of one answer at a time, as a client sees it: network, prompt and sampling included. */
void pl_verify_outside_speed(const struct pl_verify_options *o, struct pl_verify_result *r) {
    enum { REPEATS = 3 };
    struct pl_peer p = peer_of(o);
    json_t *all = json_array(), *body = json_pack("{s:s, s:i, s:i}", "prompt", pl_verify_prompts[1], "max_tokens",
                                                  o->quick ? 32 : 128, "temperature", 0);
    double best = 0;
    long status = 200;
    for (int i = 0; i < REPEATS && status == 200; i++) {
        json_t *answer = NULL;
        double start = pl_clock_s();
        if (pl_peer_json(&p, "/v1/completions", body, &status, &answer, NULL) != PL_OK) status = 0;
        double seconds = pl_clock_s() - start;
        json_int_t n = json_integer_value(json_object_get(json_object_get(answer, "usage"), "completion_tokens"));
        json_decref(answer);
        if (status != 200 || n <= 0 || seconds <= 0) continue;
        json_array_append_new(all, json_real((double)n / seconds));
        best = PL_MAX(best, (double)n / seconds);
    }
    if (best > 0)
        pl_verify_say(r, PL_VERIFY_PASS,
                      "one answer at a time: %.1f tok/s at best of %zu, prompt and network included; how close "
                      "that is to its limit cannot be known from outside",
                      best, json_array_size(all));
    else
        pl_verify_say(r, PL_VERIFY_SKIPPED,
                      "the server does not count the tokens of an answer (HTTP %ld), so there is no speed", status);
    r->evidence = json_pack("{s:o, s:f}", "tok_s_all", all, "tok_s", best);
    json_decref(body);
    pl_peer_deinit(&p);
}

/* ---------- counters ---------- */

void pl_verify_outside_counters(const struct pl_verify_options *o, struct pl_verify_result *r) {
    struct pl_counters_report *c = pl_calloc(1, sizeof *c);
    struct pl_err err = {0};
    struct pl_ab_side side = {.name = "base", .url = o->url, .api_key = o->api_key};
    struct pl_counters_options opt = {.base = side,
                                      .arm = side,
                                      .prompts = pl_verify_prompts,
                                      .prompt_count = PL_VERIFY_PROMPTS,
                                      .n = o->quick ? 16 : 64,
                                      .concurrency = 4,
                                      .rounds = 2,
                                      .timeout_s = o->timeout_s,
                                      .allow_identical = true};
    opt.arm.name = "arm";
    if (c == NULL || pl_counters_run(&opt, c, &err) != PL_OK) {
        pl_verify_say(r, PL_VERIFY_INCONCLUSIVE, "%.500s", err.text);
    } else {
        bool foreign = c->base.metrics_status == 404;
        for (size_t i = 0; i < c->finding_count; i++)
            foreign |= strstr(c->finding[i].text, "plumb_kernel_launches_total") != NULL;
        if (foreign)
            pl_verify_say(r, PL_VERIFY_SKIPPED,
                          "the server has no counters of kernels: routes and fallbacks cannot be known from "
                          "outside (%s)",
                          c->finding_count > 0 ? c->finding[0].text : "");
        else
            pl_verify_say(r,
                          c->verdict == PL_AB_EQUAL     ? PL_VERIFY_PASS
                          : c->verdict == PL_AB_DIFFERS ? PL_VERIFY_FAIL
                                                        : PL_VERIFY_INCONCLUSIVE,
                          "two rounds of requests: %s%s%s", pl_ab_verdict_name(c->verdict), c->finding_count > 0 ? ": " : "",
                          c->finding_count > 0 ? c->finding[0].text : "");
        r->evidence = pl_counters_json(&opt, c);
    }
    if (c != NULL) pl_counters_deinit(c);
    pl_free(c);
}

/* ---------- scoring ---------- */

void pl_verify_outside_scoring(const struct pl_verify_options *o, struct pl_verify_result *r) {
    struct pl_peer p = peer_of(o);
    long echo_status = 0, step_status = 0, token_status = 0;
    json_t *echo = NULL, *step = NULL, *tokens = NULL;
    json_t *body = json_pack("{s:s, s:i, s:b, s:i, s:i}", "prompt", "one two three", "max_tokens", 1, "echo", 1, "logprobs",
                             2, "temperature", 0);
    (void)!pl_peer_json(&p, "/v1/completions", body, &echo_status, &echo, NULL);
    json_decref(body);
    body = json_pack("{s:s, s:i, s:i, s:i}", "prompt", "one two three", "n_predict", 1, "n_probs", 2, "temperature", 0);
    (void)!pl_peer_json(&p, "/completion", body, &step_status, &step, NULL);
    json_decref(body);
    body = json_pack("{s:s}", "content", "one two three");
    (void)!pl_peer_json(&p, "/tokenize", body, &token_status, &tokens, NULL);
    json_decref(body);
    const json_t *lp = json_object_get(json_array_get(json_object_get(echo, "choices"), 0), "logprobs");
    bool by_echo = echo_status == 200 && json_array_size(json_object_get(lp, "token_logprobs")) >= 3;
    bool by_step = step_status == 200 && json_array_size(json_object_get(step, "completion_probabilities")) > 0;
    bool ids = token_status == 200 && json_is_array(json_object_get(tokens, "tokens"));
    if (by_echo || by_step)
        pl_verify_say(r, PL_VERIFY_PASS, "plumb eval --url works with it: %s%s",
                      by_echo ? "echo with logprobs" : "n_probs, a request for each token",
                      ids ? "" : "; it has no /tokenize, so the model's file is needed (-m)");
    else
        pl_verify_say(r, PL_VERIFY_SKIPPED,
                      "its accuracy cannot be measured over HTTP: no log-probabilities of a prompt (echo with "
                      "logprobs: HTTP %ld; n_probs: HTTP %ld)",
                      echo_status, step_status);
    r->evidence = json_pack("{s:b, s:b, s:b}", "echo_logprobs", by_echo, "n_probs", by_step, "tokenize", ids);
    json_decref(echo);
    json_decref(step);
    json_decref(tokens);
    pl_peer_deinit(&p);
}

/* ---------- health ---------- */

void pl_verify_outside_health(const struct pl_verify_options *o, struct pl_verify_result *r) {
    struct pl_peer p = peer_of(o);
    long health_status, bad_status = 0, none_status;
    json_t *health = get(&p, "/health", &health_status), *none = get(&p, "/no-such-page", &none_status), *bad = NULL;
    json_t *body = json_pack("{s:i, s:s}", "prompt", 3, "max_tokens", "many");
    (void)!pl_peer_json(&p, "/v1/completions", body, &bad_status, &bad, NULL);
    bool progress = json_is_number(json_object_get(health, "seconds_since_last_token"));
    bool refuses = bad_status >= 400 && bad_status < 500 && none_status == 404;
    if (health_status != 200 && health_status != 404)
        pl_verify_say(r, PL_VERIFY_FAIL, "/health answers %ld", health_status);
    else if (!refuses)
        pl_verify_say(r, PL_VERIFY_FAIL, "a request that makes no sense was answered %ld, an unknown page %ld", bad_status,
                      none_status);
    else
        pl_verify_say(r, PL_VERIFY_PASS, "/health %ld%s; nonsense is refused with %ld", health_status,
                      progress ? " with the time since the last token" : " (an open socket; it proves no progress)",
                      bad_status);
    r->evidence = json_pack("{s:I, s:b, s:I, s:I}", "health_status", (json_int_t)health_status, "proves_progress", progress,
                            "nonsense_status", (json_int_t)bad_status, "unknown_page_status", (json_int_t)none_status);
    json_decref(body);
    json_decref(health);
    json_decref(none);
    json_decref(bad);
    pl_peer_deinit(&p);
}
