/* counters.c - asks both servers, then judges. */
#include "verify/counters.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "verify/peer.h"

enum { THREADS_MAX = 256, SETTLE_TRIES = 100 };

static void find(struct pl_counters_report *r, bool doubt, const char *fmt, ...) PL_PRINTF(3, 4);
static void find(struct pl_counters_report *r, bool doubt, const char *fmt, ...) {
    if (r->finding_count == PL_COUNTERS_FINDINGS_MAX) return;
    struct pl_counters_finding *f = &r->finding[r->finding_count++];
    va_list ap;
    va_start(ap, fmt);
    f->doubt = doubt;
    vsnprintf(f->text, sizeof f->text, fmt, ap);
    va_end(ap);
}

/* ---------- asking ---------- */

struct load {
    const struct pl_counters_options *o;
    struct pl_counters_side *side;
    const char *url, *key, *label;
    bool plumb;
    _Atomic size_t next, done, failed;
    atomic_flag said;
};

static void ask_one(struct load *l, struct pl_peer *p, size_t i) {
    long status = 0;
    json_t *answer = NULL;
    struct pl_err err = {0};
    json_t *body = json_pack("{s:s, s:i, s:i, s:i}", "prompt", l->o->prompts[i % l->o->prompt_count], "max_tokens",
                             (int)l->o->n, "temperature", 0, "seed", 1);
    if (body != NULL && l->plumb) json_object_set_new(body, "ignore_eos", json_true());
    enum pl_status st = body == NULL ? PL_NO_MEMORY : pl_peer_json(p, "/v1/completions", body, &status, &answer, &err);
    if (st != PL_OK || status != 200) {
        atomic_fetch_add(&l->failed, 1);
        if (!atomic_flag_test_and_set(&l->said))
            snprintf(l->side->error, sizeof l->side->error, "HTTP %ld %.300s", status,
                     st != PL_OK ? err.text : pl_peer_error_text(answer));
    }
    json_decref(body);
    json_decref(answer);
}

static void *load_worker(void *arg) {
    struct load *l = arg;
    size_t total = l->side->asked;
    struct pl_peer p = {.url = l->url, .api_key = l->key, .timeout_s = l->o->timeout_s};
    for (size_t i; (i = atomic_fetch_add(&l->next, 1)) < total;) {
        ask_one(l, &p, i);
        size_t done = atomic_fetch_add(&l->done, 1) + 1;
        if (l->o->progress != NULL) l->o->progress(l->o->progress_user, l->label, done, total);
    }
    pl_peer_deinit(&p);
    return NULL;
}

static void ask_together(struct load *l) {
    pthread_t thread[THREADS_MAX];
    uint32_t started = 0, want = PL_MIN(l->o->concurrency, (uint32_t)THREADS_MAX);
    for (; started < want; started++)
        if (pthread_create(&thread[started], NULL, load_worker, l) != 0) break;
    for (uint32_t i = 0; i < started; i++) pthread_join(thread[i], NULL);
    l->side->failed = l->failed;
}

/* Few sequences with much behind them are what is split and merged: one more request, with nothing beside it. */
static void ask_longest_alone(struct load *l, struct pl_peer *p) {
    size_t longest = 0;
    for (size_t i = 1; i < l->o->prompt_count; i++)
        if (strlen(l->o->prompts[i]) > strlen(l->o->prompts[longest])) longest = i;
    l->side->asked++;
    ask_one(l, p, longest);
    l->side->failed = l->failed;
}

static enum pl_status read_page(struct pl_peer *p, struct pl_metrics *out, long *status, struct pl_err *err) {
    struct pl_buf text = {0};
    enum pl_status st = pl_peer_call(p, "/metrics", NULL, status, &text, err);
    pl_metrics_deinit(out);
    if (st == PL_OK && *status == 200) st = pl_metrics_parse(pl_buf_cstr(&text), out, err);
    pl_buf_deinit(&text);
    return st;
}

/* The page shows finished steps: it is read until nothing runs any more. */
static enum pl_status read_after(struct pl_peer *p, struct pl_counters_side *s, struct pl_err *err) {
    for (int i = 0; i < SETTLE_TRIES; i++) {
        PL_TRY(read_page(p, &s->after, &s->metrics_status, err));
        const double *running = pl_metrics_find(&s->after, "plumb_requests_running");
        if (running == NULL || *running == 0) return PL_OK;
        usleep(50000);
    }
    return PL_OK;
}

static void read_props(struct pl_peer *p, struct pl_counters_side *s, bool *plumb) {
    long status = 0;
    json_t *props = NULL;
    if (pl_peer_json(p, "/props", NULL, &status, &props, NULL) == PL_OK && status == 200) {
        const char *backend = json_string_value(json_object_get(props, "backend"));
        if (backend != NULL) snprintf(s->backend, sizeof s->backend, "%s", backend);
        *plumb = backend != NULL && json_is_object(json_object_get(props, "fingerprint"));
    }
    json_decref(props);
}

static enum pl_status ask_server(const struct pl_counters_options *o, const struct pl_ab_side *who, const char *url,
                                 struct pl_counters_side *s, struct pl_err *err) {
    struct pl_peer p = {.url = url, .api_key = who->api_key, .timeout_s = o->timeout_s};
    struct load l = {.o = o, .side = s, .url = url, .key = who->api_key, .label = who->name, .said = ATOMIC_FLAG_INIT};
    enum pl_status st = read_page(&p, &s->before, &s->metrics_status, err);
    if (st == PL_OK && s->metrics_status == 200) {
        read_props(&p, s, &l.plumb);
        /* Without the counters of steps there is nothing to learn: then nobody is kept waiting. */
        if (pl_metrics_find(&s->before, "plumb_steps_total") != NULL) {
            s->asked = o->prompt_count * o->rounds;
            ask_together(&l);
            ask_longest_alone(&l, &p);
        }
        st = read_after(&p, s, err);
        if (st != PL_OK && s->failed > 0) { /* it died: that is the finding, not our error */
            s->metrics_status = 0;
            st = PL_OK;
        }
    }
    pl_peer_deinit(&p);
    return st;
}

static enum pl_status ask_side(const struct pl_counters_options *o, const struct pl_ab_side *who, struct pl_counters_side *s,
                               struct pl_err *err) {
    struct pl_child_server child = {0};
    snprintf(s->url, sizeof s->url, "%.250s", who->url != NULL ? who->url : who->command);
    if (who->url != NULL) return ask_server(o, who, who->url, s, err);
    PL_TRY(pl_child_server_start(who->command, who->env, who->env_count, true, o->timeout_s, &child, NULL, err));
    enum pl_status st = ask_server(o, who, child.url, s, err);
    (void)pl_child_server_stop(&child);
    return st;
}

/* ---------- one side ---------- */

static bool is_launch(const char *key, char *op, char *kernel) {
    return pl_series_named(key, "plumb_kernel_launches_total") && pl_series_label(key, "op", op, 64) &&
           pl_series_label(key, "kernel", kernel, 200);
}

/* Pages gathered for a dense kernel: the composed way. (The operation "gather" collects rows and is none.) */
static bool is_gathered(const char *op, const char *kernel) {
    return strcmp(op, "gather") != 0 && (strstr(kernel, "gather") != NULL || strstr(kernel, "composed") != NULL);
}

static double op_launches(const struct pl_counters_side *s, const char *want) {
    double sum = 0, d;
    char op[64], kernel[200];
    for (size_t i = 0; i < s->after.count; i++) {
        const char *key = s->after.series[i].key;
        if (is_launch(key, op, kernel) && strcmp(op, want) == 0 && pl_metrics_delta(&s->before, &s->after, key, &d))
            sum += d;
    }
    return sum;
}

static void sum_up(struct pl_counters_side *s) {
    char op[64], kernel[200];
    for (size_t i = 0; i < s->after.count; i++) {
        const char *key = s->after.series[i].key;
        double d;
        if (!pl_metrics_delta(&s->before, &s->after, key, &d)) continue;
        bool launch = is_launch(key, op, kernel);
        if (launch && is_gathered(op, kernel))
            s->gathered += d;
        else if (launch)
            s->launches += d;
        if (strstr(key, "merge") != NULL) {
            s->can_merge = true;
            s->merges += d;
        }
        char form[64];
        bool by_form =
            pl_series_named(key, "plumb_attention_layer_steps_total") && pl_series_label(key, "form", form, sizeof form);
        if (by_form) s->layer_steps += d;
        if (by_form && strcmp(form, "gather") == 0) s->gathered += d;
        if (pl_series_named(key, "plumb_kernel_declined_total")) s->declined += d;
    }
    double one = 0, all = 0, plans = 0;
    /* A backend that plans nothing (the CPU) has the counters of plans and merges, and they stay at zero. */
    if (pl_metrics_delta(&s->before, &s->after, "plumb_attention_plans_total", &plans) && plans <= 0 && s->merges <= 0)
        s->can_merge = false;
    s->steps_known = pl_metrics_delta(&s->before, &s->after, "plumb_steps_total", &s->steps);
    if (pl_metrics_delta(&s->before, &s->after, "plumb_step_sequences_count", &all) &&
        pl_metrics_delta(&s->before, &s->after, "plumb_step_sequences_bucket{le=\"1\"}", &one))
        s->batched_steps = all - one;
    (void)pl_metrics_delta(&s->before, &s->after, "plumb_generated_tokens_total", &s->tokens);
}

static bool needed_counters(struct pl_counters_report *r, const char *name, const struct pl_counters_side *s) {
    static const char *const needed[] = {"plumb_steps_total", "plumb_generated_tokens_total", "plumb_step_sequences_count",
                                         "plumb_step_sequences_bucket{le=\"1\"}", "plumb_requests_failed_total"};
    bool all = true;
    for (size_t i = 0; i < PL_COUNT_OF(needed); i++) {
        double d;
        if (pl_metrics_delta(&s->before, &s->after, needed[i], &d)) continue;
        bool there = pl_metrics_find(&s->after, needed[i]) != NULL;
        find(r, true, "error: %s: the counter %s %s", name, needed[i],
             there ? "went down: the server was restarted meanwhile" : "is missing, which is no zero");
        all = false;
    }
    bool launches = false;
    for (size_t i = 0; i < s->after.count; i++)
        launches |= pl_series_named(s->after.series[i].key, "plumb_kernel_launches_total");
    if (!launches) find(r, true, "error: %s: the counter plumb_kernel_launches_total is missing, which is no zero", name);
    return all && launches;
}

/* False: there is nothing to compare. */
static bool judge_side(const struct pl_counters_options *o, struct pl_counters_report *r, const char *name,
                       struct pl_counters_side *s) {
    if (s->failed > 0)
        find(r, true, "%s: %zu of %zu requests failed, the first with %s", name, s->failed, s->asked, s->error);
    if (s->metrics_status == 0) {
        find(r, true, "%s: the server was gone when its counters were to be read again", name);
        return false;
    }
    if (s->metrics_status != 200) {
        find(r, true, "%s: /metrics answered %ld%s", name, s->metrics_status,
             s->metrics_status == 501 ? ": metrics are switched off (start the server with --metrics)" : "");
        return false;
    }
    if (!needed_counters(r, name, s)) return false;
    sum_up(s);
    if (s->batched_steps <= 0)
        find(r, true, "%s: no step had more than one sequence: batched routes were not reached (%zu requests, %u at a time)",
             name, s->asked, o->concurrency);
    if (s->can_merge ? s->merges <= 0 : o->require_merge)
        find(r, true, "%s: %s", name,
             s->can_merge ? "nothing was merged: no context was long enough for more than one chunk (longer prompts, or -n)"
                          : "it has no counter of merges");
    if (s->tokens <= 0) find(r, true, "%s: no token was generated", name);
    return true;
}

/* ---------- both sides ---------- */

static void compare_operations(struct pl_counters_report *r) {
    const struct pl_counters_side *sides[2] = {&r->base, &r->arm};
    const char *const names[2] = {"base", "arm"};
    char op[64], kernel[200], seen[2048] = " ";
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < sides[k]->after.count; i++) {
            char word[80];
            if (!is_launch(sides[k]->after.series[i].key, op, kernel)) continue;
            snprintf(word, sizeof word, " %s ", op);
            if (strstr(seen, word) != NULL || strlen(seen) + strlen(word) >= sizeof seen) continue;
            strcat(seen, word + 1);
            double here = op_launches(sides[k], op), there = op_launches(sides[!k], op);
            if (here > 0 && there <= 0)
                find(r, false, "operation %s was launched %.0f times on %s and never on %s", op, here, names[k], names[!k]);
        }
    }
}

/* Layer steps of attention, summed over its forms, are steps x layers. */
static void check_layer_steps(struct pl_counters_report *r) {
    const struct pl_counters_side *a = &r->base, *b = &r->arm;
    double x = a->steps > 0 ? a->layer_steps / a->steps : 0, y = b->steps > 0 ? b->layer_steps / b->steps : 0;
    if (x != floor(x) || y != floor(y) || (x > 0 && y > 0 && x != y))
        find(r, false,
             "attention ended %.0f layer steps in %.0f steps on base and %.0f in %.0f on the arm: not one form for each "
             "layer and step",
             a->layer_steps, a->steps, b->layer_steps, b->steps);
}

/* Counters count layer steps: what runs in layers of every step runs the same whole number of times in each of them. */
static void check_exact(struct pl_counters_report *r) {
    static const char *const in_layers[] = {"rope_append", "glu"};
    const struct pl_counters_side *sides[2] = {&r->base, &r->arm};
    double each[2];
    for (size_t i = 0; i < PL_COUNT_OF(in_layers); i++) {
        for (int k = 0; k < 2; k++) {
            double n = op_launches(sides[k], in_layers[i]);
            each[k] = sides[k]->steps > 0 ? n / sides[k]->steps : 0;
            if (each[k] != floor(each[k]))
                find(r, false,
                     "%s: %s was launched %.0f times in %.0f steps, which is no whole number for each: some layers did "
                     "not run it",
                     k == 0 ? "base" : "arm", in_layers[i], n, sides[k]->steps);
        }
        if (each[0] == floor(each[0]) && each[1] == floor(each[1]) && each[0] != each[1] && each[0] > 0 && each[1] > 0)
            find(r, false, "%s runs %.0f times in a step of base and %.0f times in a step of the arm", in_layers[i], each[0],
                 each[1]);
    }
}

static bool is_allowed(const struct pl_counters_options *o, const char *reason) {
    for (size_t i = 0; i < o->allow_declined_count; i++)
        if (strstr(reason, o->allow_declined[i]) != NULL) return true;
    return false;
}

/* Every reason by itself, so that none hides another. */
static void compare_declined(const struct pl_counters_options *o, struct pl_counters_report *r) {
    const struct pl_counters_side *sides[2] = {&r->base, &r->arm};
    const char *const names[2] = {"base", "arm"};
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < sides[k]->after.count; i++) {
            const char *key = sides[k]->after.series[i].key;
            double here, there = 0;
            char op[64] = "", reason[256] = "";
            if (!pl_series_named(key, "plumb_kernel_declined_total")) continue;
            if (!pl_metrics_delta(&sides[k]->before, &sides[k]->after, key, &here) || here <= 0) continue;
            (void)pl_metrics_delta(&sides[!k]->before, &sides[!k]->after, key, &there);
            (void)pl_series_label(key, "op", op, sizeof op);
            (void)pl_series_label(key, "reason", reason, sizeof reason);
            if (there <= 0 && !is_allowed(o, reason))
                find(r, false, "declined on %s alone: %s, %.0f times: %s (--allow-declined accepts a reason)", names[k], op,
                     here, reason);
        }
    }
}

static void compare(const struct pl_counters_options *o, struct pl_counters_report *r) {
    struct pl_counters_side *a = &r->base, *b = &r->arm;
    if (a->launches <= 0 || b->launches <= 0)
        find(r, a->launches <= 0 && b->launches <= 0, "fused launches: %.0f on base, %.0f on arm: neither may be zero",
             a->launches, b->launches);
    if (b->gathered > 0 && a->gathered <= 0)
        find(r, false, "gathered on the arm alone: %.0f launches, %.0f on base", b->gathered, a->gathered);
    if (a->gathered > 0 && b->gathered <= 0)
        find(r, false, "gathered on base alone: %.0f launches; the arm does better, or does not count", a->gathered);
    if (a->can_merge != b->can_merge) find(r, false, "merges are counted on %s alone", a->can_merge ? "base" : "arm");
    compare_operations(r);
    compare_declined(o, r);
    check_exact(r);
    check_layer_steps(r);
}

static void decide(struct pl_counters_report *r) {
    r->verdict = r->finding_count == 0 ? PL_AB_EQUAL : PL_AB_DIFFERS;
    for (size_t i = 0; i < r->finding_count; i++)
        if (r->finding[i].doubt) r->verdict = PL_AB_INCONCLUSIVE;
}

enum pl_status pl_counters_run(struct pl_counters_options *o, struct pl_counters_report *r, struct pl_err *err) {
    *r = (struct pl_counters_report){0};
    PL_TRY(pl_ab_identify(&o->base, err));
    PL_TRY(pl_ab_identify(&o->arm, err));
    if (o->prompt_count == 0) {
        find(r, true, "the prompt set is empty");
        decide(r);
        return PL_OK;
    }
    if (!o->allow_identical && !o->same_binary_meant && o->base.url != NULL && o->arm.url != NULL &&
        strcmp(o->base.url, o->arm.url) == 0)
        find(r, true, "both sides are the same server (%s); --allow-identical if that is meant", o->base.url);
    if (!o->allow_identical && !o->same_binary_meant && o->base.build_id[0] != '\0' &&
        strcmp(o->base.build_id, o->arm.build_id) == 0 && strcmp(o->base.command, o->arm.command) == 0)
        find(r, true, "both sides are one build with one command (build id %s); --allow-identical if that is meant",
             o->base.build_id);
    PL_TRY(ask_side(o, &o->base, &r->base, err));
    PL_TRY(ask_side(o, &o->arm, &r->arm, err));
    bool base = judge_side(o, r, "base", &r->base), arm = judge_side(o, r, "arm", &r->arm);
    if (base && arm) compare(o, r);
    decide(r);
    return PL_OK;
}

void pl_counters_deinit(struct pl_counters_report *r) {
    struct pl_counters_side *sides[2] = {&r->base, &r->arm};
    for (int k = 0; k < 2; k++) {
        pl_metrics_deinit(&sides[k]->before);
        pl_metrics_deinit(&sides[k]->after);
    }
}
