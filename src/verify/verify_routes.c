/* verify_routes - the ways that kernels are reached: each has its own way in, each is driven and reported, or is listed as
 * not runnable here with the reason. Equal answers cannot show a way that was never taken. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "verify/counters.h"
#include "verify/peer.h"
#include "verify/verify.h"

/* ---------- ways in: a server each, with the same requests ---------- */

enum way_id {
    PLANNED /* 0: the only one on a CPU */,
    FORCED_V1,
    FORCED_V2,
    FORCED_CASCADE,
    FORCED_GATHER,
    SWITCHED_OFF,
    WAYS
};
static const struct {
    const char *name, *flags, *env;
} ways[WAYS] = {
    [PLANNED] = {"as planned", "", NULL},
    [FORCED_V1] = {"--attn v1", "--attn v1", NULL},
    [FORCED_V2] = {"--attn v2", "--attn v2", NULL},
    [FORCED_CASCADE] = {"--attn cascade", "--attn cascade", NULL},
    [FORCED_GATHER] = {"--attn gather", "--attn gather", NULL},
    [SWITCHED_OFF] = {"PLUMB_ATTN_OFF=v1,v2,cascade", "", "PLUMB_ATTN_OFF=v1,v2,cascade"},
};

struct seen {
    bool driven, ok;
    char why[300];    /* it was not driven, or a request failed */
    json_t *kernels;  /* rows {op, kernel, launches} */
    json_t *forms;    /* rows {form, reason, layer_steps} */
    json_t *declined; /* of the pool: {outcome, reason, layer_steps} */
};

void *pl_verify_ask(void *request) {
    struct pl_verify_request *c = request;
    struct pl_peer p = {.url = c->url, .timeout_s = c->timeout_s};
    struct pl_err err = {0};
    long status = 0;
    json_t *answer = NULL, *body = json_pack("{s:s, s:i, s:f, s:b, s:i}", "prompt", c->prompt, "max_tokens", (int)c->tokens,
                                             "temperature", (double)c->temperature, "ignore_eos", 1, "seed", 1);
    enum pl_status st = body == NULL ? PL_NO_MEMORY : pl_peer_json(&p, "/v1/completions", body, &status, &answer, &err);
    c->failed = st != PL_OK || status != 200;
    if (c->failed)
        snprintf(c->error, sizeof c->error, "HTTP %ld %.180s", status, st != PL_OK ? err.text : pl_peer_error_text(answer));
    json_decref(body);
    json_decref(answer);
    pl_peer_deinit(&p);
    return c;
}

/* As much of the prose as fills half of what a sequence may hold, at most some 250 tokens. */
static size_t shared_bytes(struct pl_peer *p) {
    long status = 0;
    json_t *props = NULL, *tokens = NULL;
    size_t n = 800;
    (void)!pl_peer_json(p, "/props", NULL, &status, &props, NULL);
    json_int_t context = json_integer_value(json_object_get(props, "n_ctx"));
    json_t *body = json_pack("{s:s%}", "content", pl_verify_text, n);
    (void)!pl_peer_json(p, "/tokenize", body, &status, &tokens, NULL);
    size_t count = json_array_size(json_object_get(tokens, "tokens")),
           most = context > 0 ? PL_MIN((size_t)context / 2, (size_t)250) : 100;
    if (count > most) n = n * most / count;
    json_decref(props);
    json_decref(body);
    json_decref(tokens);
    return n;
}

static bool is_running(struct pl_peer *p) {
    struct pl_buf text = {0};
    struct pl_metrics m = {0};
    long status = 0;
    bool running = false;
    if (pl_peer_call(p, "/metrics", NULL, &status, &text, NULL) == PL_OK && status == 200 &&
        pl_metrics_parse(pl_buf_cstr(&text), &m, NULL) == PL_OK) {
        const double *n = pl_metrics_find(&m, "plumb_requests_running");
        running = n != NULL && *n > 0;
        pl_metrics_deinit(&m);
    }
    pl_buf_deinit(&text);
    return running;
}

static void together(struct pl_verify_request *c, size_t n) {
    pthread_t thread[8];
    size_t started = 0;
    for (; started < n && started < PL_COUNT_OF(thread); started++)
        if (pthread_create(&thread[started], NULL, pl_verify_ask, &c[started]) != 0) break;
    for (size_t i = started; i < n; i++) c[i].failed = true;
    for (size_t i = 0; i < started; i++) pthread_join(thread[i], NULL);
}

/* One alone, which leaves the beginning in the cache; four that share it; one with a temperature; and a prompt that comes
 * while another sequence is being answered. */
static void drive(const struct pl_verify_options *o, const char *url, struct seen *s) {
    enum { N = 8 };
    struct pl_verify_request c[N];
    char prompt[N][1000];
    struct pl_peer p = {.url = url, .timeout_s = o->timeout_s};
    size_t shared = shared_bytes(&p);
    pthread_t thread;
    for (int i = 0; i < N; i++) {
        bool beginning = i < 5;
        snprintf(prompt[i], sizeof prompt[i], "%.*s %s", beginning ? (int)shared : 0, pl_verify_text,
                 pl_verify_prompts[i % PL_VERIFY_PROMPTS]);
        c[i] = (struct pl_verify_request){.url = url, .prompt = prompt[i], .timeout_s = o->timeout_s, .tokens = 24};
    }
    c[5].temperature = 0.8f;
    c[6].tokens = 64;
    (void)pl_verify_ask(&c[0]);
    together(c + 1, 4);
    (void)pl_verify_ask(&c[5]);
    if (pthread_create(&thread, NULL, pl_verify_ask, &c[6]) == 0) {
        const struct timespec moment = {.tv_nsec = 2000000};
        for (int i = 0; i < 500 && !is_running(&p); i++) nanosleep(&moment, NULL);
        (void)pl_verify_ask(&c[7]);
        pthread_join(thread, NULL);
    }
    s->ok = true;
    for (int i = 0; i < N && s->ok; i++) {
        s->ok = !c[i].failed;
        if (!s->ok) snprintf(s->why, sizeof s->why, "%.200s", c[i].error);
    }
    pl_peer_deinit(&p);
}

static json_t *labelled(const struct pl_metrics *m, const char *series, const char *label) {
    json_t *rows = json_array();
    for (size_t i = 0; i < m->count; i++) {
        char name[64] = "", reason[200] = "";
        const char *key = m->series[i].key;
        if (!pl_series_named(key, series) || m->series[i].value <= 0 || !pl_series_label(key, label, name, sizeof name))
            continue;
        (void)pl_series_label(key, "reason", reason, sizeof reason);
        json_array_append_new(
            rows, json_pack("{s:s, s:s, s:f}", label, name, "reason", reason, "layer_steps", m->series[i].value));
    }
    return rows;
}

static void read_counts(const struct pl_verify_options *o, const char *url, struct seen *s) {
    struct pl_peer p = {.url = url, .timeout_s = o->timeout_s};
    struct pl_buf text = {0};
    struct pl_metrics m = {0};
    long status = 0;
    json_t *answer = NULL;
    if (pl_peer_json(&p, "/v1/kernels", NULL, &status, &answer, NULL) == PL_OK && status == 200)
        s->kernels = json_incref(json_object_get(answer, "kernels"));
    if (pl_peer_call(&p, "/metrics", NULL, &status, &text, NULL) == PL_OK && status == 200 &&
        pl_metrics_parse(pl_buf_cstr(&text), &m, NULL) == PL_OK) {
        s->forms = labelled(&m, "plumb_attention_layer_steps_total", "form");
        s->declined = labelled(&m, "plumb_attention_cascade_layer_steps_total", "outcome");
        pl_metrics_deinit(&m);
    }
    if (s->kernels == NULL || s->forms == NULL) {
        s->ok = false;
        snprintf(s->why, sizeof s->why, "the server does not say what ran (/v1/kernels, /metrics: HTTP %ld)", status);
    }
    pl_buf_deinit(&text);
    json_decref(answer);
    pl_peer_deinit(&p);
}

static void take(const struct pl_verify_options *o, enum way_id w, struct seen *s) {
    struct pl_buf command = {0};
    struct pl_child_server child;
    struct pl_err err = {0};
    char flags[80];
    /* Where a device has one more form than those that can be switched off by name, that one goes too. */
    bool split = w == SWITCHED_OFF && pl_verify_backend_of(o) == PL_BACKEND_CUDA;
    snprintf(flags, sizeof flags, "--parallel 4 %s%s", ways[w].flags, split ? "--disable-kernel attention=split" : "");
    pl_verify_command(o, o->self, "serve", flags, &command);
    s->driven = true;
    enum pl_status st = pl_child_server_start(pl_buf_cstr(&command), &ways[w].env, ways[w].env != NULL, true, o->timeout_s,
                                              &child, NULL, &err);
    if (st != PL_OK) {
        snprintf(s->why, sizeof s->why, "%.290s", err.text);
    } else {
        drive(o, child.url, s);
        if (s->ok) read_counts(o, child.url, s);
        (void)pl_child_server_stop(&child);
    }
    pl_buf_deinit(&command);
}

struct taking {
    const struct pl_verify_options *o;
    struct seen *seen;
};
static void take_one(void *user, size_t w) {
    struct taking *t = user;
    take(t->o, (enum way_id)w, &t->seen[w]);
}

/* ---------- what was reached ---------- */

static double form_steps(const struct seen *s, const char *form, const char *reason, char *instead, size_t cap) {
    double n = 0;
    for (size_t i = 0; i < json_array_size(s->forms); i++) {
        const json_t *row = json_array_get(s->forms, i);
        const char *f = json_string_value(json_object_get(row, "form")),
                   *r = json_string_value(json_object_get(row, "reason"));
        double steps = json_number_value(json_object_get(row, "layer_steps"));
        if ((form == NULL || strcmp(f, form) == 0) && (reason == NULL || strstr(r, reason) != NULL)) n += steps;
        size_t used = strlen(instead);
        snprintf(instead + used, cap - used, "%s%s%s%s %.0f", used > 0 ? "; " : "", f, r[0] != '\0' ? ": " : "", r, steps);
    }
    return n;
}

static double launches(const struct seen *s, const char *op, const char *const *parts, char *names, size_t cap) {
    double n = 0;
    for (size_t i = 0; i < json_array_size(s->kernels); i++) {
        const json_t *k = json_array_get(s->kernels, i);
        const char *name = json_string_value(json_object_get(k, "kernel")), *o = json_string_value(json_object_get(k, "op"));
        double count = json_number_value(json_object_get(k, "launches"));
        if (name == NULL || o == NULL || count <= 0 || strncmp(name, "declined", 8) == 0 || strcmp(o, op) != 0) continue;
        bool named = parts == NULL;
        for (size_t p = 0; parts != NULL && parts[p] != NULL && !named; p++) named = strstr(name, parts[p]) != NULL;
        if (!named) continue;
        n += count;
        size_t used = strlen(names);
        if (strstr(names, name) == NULL) snprintf(names + used, cap - used, "%s%s", used > 0 ? ", " : "", name);
    }
    return n;
}

struct report {
    const struct seen *seen;
    json_t *rows;
    size_t reached;
    bool cpu;
};

static void add_row(struct report *r, const char *route, const char *way, double count, const char *what, const char *why) {
    r->reached += count > 0;
    json_array_append_new(r->rows, json_pack("{s:s, s:s, s:b, s:f, s:s, s:s}", "route", route, "way_in", way, "reached",
                                             count > 0, "count", count, "what_ran", what, "why", count > 0 ? "" : why));
}

/* A form of decode attention, by one way in. */
static void form_row(struct report *r, const char *route, enum way_id w, const char *form, const char *reason) {
    char instead[400] = "", names[300] = "", why[480];
    const struct seen *s = &r->seen[w];
    if (!s->driven) {
        add_row(r, route, ways[w].name, 0, "", r->cpu ? "the CPU has one form of attention" : "not driven");
        return;
    }
    double n = form_steps(s, form, reason, instead, sizeof instead);
    (void)launches(s, "attention", NULL, names, sizeof names);
    snprintf(why, sizeof why, "%s", s->why[0] != '\0' ? s->why : instead[0] != '\0' ? instead : "no layer step was counted");
    add_row(r, route, ways[w].name, n, names, why);
}

/* An operation's kernels, in any of the ways; parts NULL: any kernel of it. */
static void kernel_row(struct report *r, const char *route, const char *op, const char *const *parts, const char *way,
                       const char *why) {
    char names[300] = "";
    double n = 0;
    for (int w = 0; w < WAYS; w++) n += launches(&r->seen[w], op, parts, names, sizeof names);
    add_row(r, route, way, n, names, why);
}

/* The bed that the tuner times forms in: kernels without a model, no dispatch in between. */
static void bed_rows(const struct pl_verify_options *o, struct report *r) {
    static const char *const forms[] = {"v1", "v2", "cascade", "gather"};
    const char *const words[] = {"bench",
                                 "--op",
                                 "paged-decode",
                                 "--backend",
                                 pl_backend_name(pl_verify_backend_of(o)),
                                 "--batch",
                                 "4",
                                 "--len",
                                 "1024",
                                 "--shared",
                                 "512",
                                 "--compare",
                                 "v1,v2,cascade,gather",
                                 "--json",
                                 NULL};
    json_t *out = NULL;
    struct pl_buf said = {0};
    struct pl_err err = {0};
    int code = 0;
    if (r->cpu) {
        add_row(r, "v1 in the tuner's bed", "plumb bench --op paged-decode", 0, "", "the CPU has one form of attention");
        return;
    }
    if (pl_verify_self(o, words, &out, &said, &code, &err) != PL_OK) code = 1;
    const json_t *rows = json_object_get(out, "rows");
    for (size_t f = 0; f < PL_COUNT_OF(forms); f++) {
        char route[64], why[300] = "it was not timed", names[200] = "";
        double n = 0;
        if (code != 0) snprintf(why, sizeof why, "exit code %d: %.200s", code, pl_buf_cstr(&said));
        for (size_t i = 0; i < json_array_size(rows); i++) {
            const json_t *row = json_array_get(rows, i);
            const char *form = json_string_value(json_object_get(row, "form")),
                       *no = json_string_value(json_object_get(row, "declined")),
                       *kernels = json_string_value(json_object_get(row, "kernels"));
            if (form == NULL || strcmp(form, forms[f]) != 0) continue;
            if (no != NULL) snprintf(why, sizeof why, "%.290s", no);
            if (kernels != NULL) snprintf(names, sizeof names, "%.190s", kernels);
            n = json_number_value(json_object_get(row, "launches"));
        }
        snprintf(route, sizeof route, "%s in the tuner's bed", forms[f]);
        add_row(r, route, "plumb bench --op paged-decode", n, names, why);
    }
    json_decref(out);
    pl_buf_deinit(&said);
}

/* Why steps did not read a shared beginning once, each reason by itself. */
static void decline_rows(struct report *r) {
    static const char *const reasons[] = {"nothing shared", "below floor", "slower by cost"};
    for (size_t i = 0; i < PL_COUNT_OF(reasons); i++) {
        const json_t *list = r->seen[PLANNED].declined;
        char route[80];
        double n = 0;
        for (size_t k = 0; k < json_array_size(list); k++) {
            const json_t *row = json_array_get(list, k);
            const char *why = json_string_value(json_object_get(row, "reason"));
            if (why != NULL && strcmp(why, reasons[i]) == 0) n += json_number_value(json_object_get(row, "layer_steps"));
        }
        snprintf(route, sizeof route, "cascade declined: %s", reasons[i]);
        add_row(r, route, ways[PLANNED].name, n, "",
                r->cpu ? "the CPU has one form of attention" : "no step was declined for it");
    }
}

static void attention_rows(struct report *r) {
    static const char *const merge[] = {"merge", NULL};
    char names[300] = "", instead[400] = "";
    double n = launches(&r->seen[PLANNED], "attention", NULL, names, sizeof names);
    (void)form_steps(&r->seen[PLANNED], NULL, NULL, instead, sizeof instead);
    add_row(r, "attention as planned", ways[PLANNED].name, n, instead, "nothing was launched");
    form_row(r, "v1: one pass over pages", FORCED_V1, "v1", NULL);
    form_row(r, "v2: chunks, several sequences at once", FORCED_V2, "v2", NULL);
    kernel_row(r, "merge of chunks", "attention", merge, "a context of several chunks",
               r->cpu ? "the CPU merges inside its kernel" : "no context had more than one chunk");
    double latent = 0;
    char ran[300] = "";
    for (int w = 0; w < WAYS; w++) latent += launches(&r->seen[w], "latent_append", NULL, ran, sizeof ran);
    kernel_row(r, "latent attention: keys and values in one", "latent_append", NULL, "a model with latent attention",
               "this model has no latent attention");
    if (latent > 0)
        kernel_row(r, "merge of latent attention's chunks", "attention", merge, "a context of several chunks",
                   r->cpu ? "the CPU merges inside its kernel" : "no context had more than one chunk");
    else
        add_row(r, "merge of latent attention's chunks", "a model with latent attention", 0, "",
                "this model has no latent attention");
    form_row(r, "cascade over a shared beginning", FORCED_CASCADE, "cascade", NULL);
    decline_rows(r);
    form_row(r, "gather, asked for", FORCED_GATHER, "gather", NULL);
    form_row(r, "gather, because all else is switched off", SWITCHED_OFF, "gather", NULL);
    form_row(r, "declined before the pool: a step of several tokens", FORCED_V2, NULL, "multi-token");
    form_row(r, "declined before the pool: prompts beside rows of decoding", PLANNED, NULL, "mixed");
}

static void other_rows(struct report *r) {
    static const char *const one[] = {"gemv", "/r1", "stream", NULL};
    static const char *const many[] = {"gemm", "cublaslt", "mma", "/r8", "/r4", "tile", NULL};
    kernel_row(r, "norm", "norm", NULL, "every request", "this model has none");
    kernel_row(r, "residual and norm in one", "add_norm", NULL, "every request",
               "this model does not call it: its products add");
    kernel_row(r, "product and residual in one", "linear_add", NULL, "every request", "this model does not call it");
    kernel_row(r, "head norms, rotation and append in one", "rope_append", NULL, "every request", "this model has none");
    kernel_row(r, "products of one row", "linear", one, "decode", "no kernel for one row ran");
    kernel_row(r, "products of many rows", "linear", many, "prompts", "no kernel for many rows ran");
    kernel_row(r, "gate and up", "glu", NULL, "every request", "this model has none");
    kernel_row(r, "greedy choice on the device", "argmax", NULL, "requests without a temperature",
               r->cpu ? "on the CPU the sampler reads logits where they are" : "logits were read by the host");
    char drawn[300] = "";
    double draws = launches(&r->seen[PLANNED], "draw", NULL, drawn, sizeof drawn);
    add_row(r, "sampling", "a request with a temperature", draws > 0 ? draws : r->seen[PLANNED].ok,
            draws > 0 ? drawn : "on the host, from logits that were read", "failed");
    kernel_row(r, "mixture of experts", "moe", NULL, "a model with experts", "this model has no experts");
    kernel_row(r, "state update", "ssm_update", NULL, "a recurrent model, decode", "this model has no recurrent layers");
    kernel_row(r, "scan over states", "ssm_scan", NULL, "a recurrent model, prompts", "this model has no recurrent layers");
    kernel_row(r, "ternary product", "ternary", NULL, "a model with ternary weights", "this model has no ternary weights");
    add_row(r, "FFT", "a model that takes sound", 0, "", "this model takes no sound (the transform: tests/audio)");
}

void pl_verify_routes(const struct pl_verify_options *o, struct pl_verify_result *r) {
    struct seen seen[WAYS] = {0};
    struct report report = {.seen = seen, .rows = json_array(), .cpu = pl_verify_backend_of(o) == PL_BACKEND_CPU};
    json_t *taken = json_array();
    char bad[400] = "";
    struct taking taking = {o, seen};
    pl_verify_each(o, report.cpu ? PLANNED + 1 : WAYS, take_one, &taking);
    for (int w = 0; w < WAYS; w++) {
        if (report.cpu && w != PLANNED) continue;
        if (!seen[w].ok && bad[0] == '\0') snprintf(bad, sizeof bad, "%s: %s", ways[w].name, seen[w].why);
        json_array_append_new(
            taken, json_pack("{s:s, s:O?, s:O?}", "way", ways[w].name, "forms", seen[w].forms, "shared", seen[w].declined));
    }
    attention_rows(&report);
    bed_rows(o, &report);
    other_rows(&report);
    if (bad[0] != '\0')
        pl_verify_say(r, PL_VERIFY_FAIL, "%s", bad);
    else
        pl_verify_say(r, report.reached > 0 ? PL_VERIFY_PASS : PL_VERIFY_INCONCLUSIVE,
                      "%zu of %zu routes reached; the others are listed with the reason", report.reached,
                      json_array_size(report.rows));
    r->evidence = json_pack("{s:o, s:o, s:O?}", "routes", report.rows, "ways", taken, "kernels", seen[PLANNED].kernels);
    for (int w = 0; w < WAYS; w++) {
        json_decref(seen[w].kernels);
        json_decref(seen[w].forms);
        json_decref(seen[w].declined);
    }
}
