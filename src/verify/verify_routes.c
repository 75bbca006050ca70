/* verify_routes - the ways that kernels are reached: each has its own way in, each is driven and reported, or is listed as
 * not runnable here with the reason. Equal answers cannot show a way that was never taken. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

/* What came of one way in: the ways of the model first, then the other models, each as planned. */
enum { SEEN_MAX = WAYS + PL_VERIFY_ROUTE_MODELS };
struct seen {
    const char *model; /* its file's name */
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

enum { PAGE_AND_A_BIT = 48 }; /* tokens */

/* As much of the prose as fills half of what a sequence may hold, at most some 250 tokens. */
static size_t shared_bytes(struct pl_peer *p, size_t *tokens_out) {
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
    *tokens_out = PL_MIN(count, most);
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

/* One alone, which leaves the beginning in the cache; four that share it, and two that share little more than a page of it;
 * one with a temperature; and a prompt that comes while another sequence is being answered. */
static void drive(const struct pl_verify_options *o, const char *url, struct seen *s) {
    enum { N = 10 };
    struct pl_verify_request c[N];
    char prompt[N][1000];
    struct pl_peer p = {.url = url, .timeout_s = o->timeout_s};
    size_t tokens, shared = shared_bytes(&p, &tokens), page = tokens > PAGE_AND_A_BIT ? shared * PAGE_AND_A_BIT / tokens : 0;
    pthread_t thread;
    for (int i = 0; i < N; i++) {
        size_t beginning = i < 5 ? shared : i < 8 ? 0 : page;
        snprintf(prompt[i], sizeof prompt[i], "%.*s %s", (int)beginning, pl_verify_text,
                 pl_verify_prompts[i % PL_VERIFY_PROMPTS]);
        c[i] = (struct pl_verify_request){.url = url, .prompt = prompt[i], .timeout_s = o->timeout_s, .tokens = 24};
    }
    c[5].temperature = 0.8f;
    c[6].tokens = 64;
    (void)pl_verify_ask(&c[0]);
    together(c + 1, 4);
    together(c + 8, 2);
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
    size_t ways; /* of the model */
};
static void take_one(void *user, size_t i) {
    struct taking *t = user;
    struct pl_verify_options other = *t->o;
    if (i < t->ways) {
        take(t->o, (enum way_id)i, &t->seen[i]);
    } else {
        other.model = t->o->route_models[i - t->ways];
        take(&other, PLANNED, &t->seen[WAYS + i - t->ways]);
    }
}

static const char *file_of(const char *path) {
    size_t len = strlen(path);
    while (len > 0 && path[len - 1] == '/') len--;
    while (len > 0 && path[len - 1] != '/') len--;
    return path + len;
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

/* Why a route is none on a CPU. */
static const char cpu_one_form[] = "the CPU has one form of attention", cpu_merges[] = "the CPU merges inside its kernel",
                  cpu_reads[] = "on the CPU the sampler reads logits where they are";

struct report {
    const struct seen *seen; /* [SEEN_MAX] */
    size_t models;           /* further ones */
    json_t *rows;
    size_t reached, absent; /* absent: not runnable here, whatever the model */
    bool cpu;
};

static void add_row_of(struct report *r, const char *route, const char *way, const char *model, double count,
                       const char *what, const char *why) {
    bool absent = count <= 0 && (why == cpu_one_form || why == cpu_merges || why == cpu_reads);
    r->reached += count > 0;
    r->absent += absent;
    json_array_append_new(r->rows, json_pack("{s:s, s:s, s:s, s:b, s:b, s:f, s:s, s:s}", "route", route, "way_in", way,
                                             "model", model, "runnable", !absent, "reached", count > 0, "count", count,
                                             "what_ran", what, "why", count > 0 ? "" : why));
}
static void add_row(struct report *r, const char *route, const char *way, double count, const char *what, const char *why) {
    add_row_of(r, route, way, count > 0 ? r->seen[PLANNED].model : "", count, what, why);
}

/* A form of decode attention, by one way in. */
static void form_row(struct report *r, const char *route, enum way_id w, const char *form, const char *reason) {
    char instead[400] = "", names[300] = "", why[480];
    const struct seen *s = &r->seen[w];
    if (!s->driven || r->cpu) {
        add_row(r, route, ways[w].name, 0, "", r->cpu ? cpu_one_form : "not driven");
        return;
    }
    double n = form_steps(s, form, reason, instead, sizeof instead);
    (void)launches(s, "attention", NULL, names, sizeof names);
    snprintf(why, sizeof why, "%s", s->why[0] != '\0' ? s->why : instead[0] != '\0' ? instead : "no layer step was counted");
    add_row(r, route, ways[w].name, n, names, why);
}

static bool has(const struct seen *s, const char *op) {
    char names[300] = "";
    return op == NULL || launches(s, op, NULL, names, sizeof names) > 0;
}

/* An operation's kernels in any of the ways, or else with another model; parts NULL: any kernel of it; with: only where
 * this operation ran too. */
static void kernel_row_with(struct report *r, const char *route, const char *op, const char *const *parts, const char *with,
                            const char *way, const char *why) {
    char names[300] = "";
    double n = 0;
    const char *model = "";
    for (size_t i = 0; i < WAYS + r->models && (i < WAYS || n == 0); i++) {
        double more = has(&r->seen[i], with) ? launches(&r->seen[i], op, parts, names, sizeof names) : 0;
        if (more > 0) model = r->seen[i].model;
        n += more;
    }
    add_row_of(r, route, way, model, n, names, why);
}
static void kernel_row(struct report *r, const char *route, const char *op, const char *const *parts, const char *way,
                       const char *why) {
    kernel_row_with(r, route, op, parts, NULL, way, why);
}

/* What runs instead where the paged kernels do not take a model's heads: with the first model of which that is said. */
static void shape_row(struct report *r, const char *route, const char *way) {
    static const char *const reasons[] = {"geometry", "head size", "head groups"};
    char instead[400], names[300] = "";
    double n = 0;
    size_t at = PLANNED;
    for (size_t i = 0; i < (1 + r->models) * PL_COUNT_OF(reasons) && n == 0; i++) {
        size_t model = i / PL_COUNT_OF(reasons);
        instead[0] = '\0';
        at = model == 0 ? PLANNED : WAYS + model - 1;
        n = form_steps(&r->seen[at], NULL, reasons[i % PL_COUNT_OF(reasons)], instead, sizeof instead);
    }
    if (n > 0) (void)launches(&r->seen[at], "attention", NULL, names, sizeof names);
    add_row_of(r, route, way, n > 0 ? r->seen[at].model : "", n, names,
               r->cpu ? cpu_one_form : "the kernels take the heads of these models");
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
        add_row(r, "v1 in the tuner's bed", "plumb bench --op paged-decode", 0, "", cpu_one_form);
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
        add_row(r, route, ways[PLANNED].name, n, "", r->cpu ? cpu_one_form : "no step was declined for it");
    }
}

static bool has_latent(const struct report *r) {
    bool found = false;
    for (size_t i = 0; i < WAYS + r->models; i++) found |= r->seen[i].kernels != NULL && has(&r->seen[i], "latent_append");
    return found;
}

static void attention_rows(struct report *r) {
    static const char *const merge[] = {"merge", NULL}, *const sinks[] = {"/sinks", NULL};
    char names[300] = "", instead[400] = "";
    double n = launches(&r->seen[PLANNED], "attention", NULL, names, sizeof names);
    (void)form_steps(&r->seen[PLANNED], NULL, NULL, instead, sizeof instead);
    add_row(r, "attention as planned", ways[PLANNED].name, n, instead, "nothing was launched");
    form_row(r, "v1: one pass over pages", FORCED_V1, "v1", NULL);
    form_row(r, "v2: chunks, several sequences at once", FORCED_V2, "v2", NULL);
    kernel_row(r, "merge of chunks", "attention", merge, "a context of several chunks",
               r->cpu ? cpu_merges : "no context had more than one chunk");
    kernel_row(r, "latent attention: keys and values in one", "latent_append", NULL, "a model with latent attention",
               "no model here has latent attention");
    kernel_row_with(r, "merge of latent attention's chunks", "attention", merge, "latent_append",
                    "a context of several chunks",
                    !has_latent(r) ? "no model here has latent attention"
                    : r->cpu       ? cpu_merges
                                   : "no context had more than one chunk");
    form_row(r, "cascade over a shared beginning", FORCED_CASCADE, "cascade", NULL);
    decline_rows(r);
    form_row(r, "gather, asked for", FORCED_GATHER, "gather", NULL);
    form_row(r, "kill switch: every form by plan is switched off", SWITCHED_OFF, NULL, "kill switch");
    shape_row(r, "declined for the size of heads", "a model whose heads the paged kernels do not take");
    kernel_row(r, "attention with sinks", "attention", sinks, "a model with sinks",
               r->cpu ? cpu_one_form : "no model here has attention sinks");
    form_row(r, "declined before the pool: a step of several tokens", FORCED_V2, NULL, "multi-token");
    form_row(r, "declined before the pool: prompts beside rows of decoding", PLANNED, NULL, "mixed");
}

/* What only some families of models ask for. */
static const struct {
    const char *route, *op, *way, *why;
} some_models[] = {
    {"mixture of experts", "moe", "a model with experts", "no model here has experts"},
    {"shared experts behind a gate", "gate_rows", "a model with gated shared experts", "no model here has them"},
    {"state update", "ssm_update", "a recurrent model, decode", "no model here has recurrent layers"},
    {"scan over states", "ssm_scan", "a recurrent model, prompts", "no model here has recurrent layers"},
    {"convolution before states", "causal_conv", "a recurrent model", "no model here has recurrent layers"},
    {"gated delta rule", "delta", "a recurrent model under that rule", "no model here has such layers"},
    {"norm behind a gate", "gated_norm", "a recurrent model with gated norms", "no model here has them"},
    {"products of each head", "heads_linear", "a model with latent attention", "no model here has latent attention"},
    {"ternary product", "ternary", "a model with ternary weights", "no model here has ternary weights"},
    {"norm around a mean", "layer_norm", "a model with layer norms", "no model here has layer norms"},
    {"logits held below a bound", "softcap", "a model with soft caps", "no model here caps its logits"},
    {"logits scaled", "scale", "a model that scales", "no model here scales"},
};

static void other_rows(struct report *r) {
    static const char *const one[] = {"gemv", "/r1", "stream", NULL};
    static const char *const many[] = {"gemm", "cublaslt", "mma", "/r8", "/r4", "tile", NULL};
    kernel_row(r, "rows of the embedding", "embed", NULL, "every request", "nothing was launched");
    kernel_row(r, "rows whose logits are wanted", "gather", NULL, "every request", "nothing was launched");
    kernel_row(r, "norm", "norm", NULL, "every request", "this model has none");
    kernel_row(r, "residual and norm in one", "add_norm", NULL, "every request",
               "no model here calls it: their products add");
    kernel_row(r, "residual by itself", "add", NULL, "a model with norms after its products", "no model here calls it");
    kernel_row(r, "product and residual in one", "linear_add", NULL, "every request", "this model does not call it");
    kernel_row(r, "head norms, rotation and append in one", "rope_append", NULL, "every request", "this model has none");
    kernel_row(r, "products of one row", "linear", one, "decode", "no kernel for one row ran");
    kernel_row(r, "products of many rows", "linear", many, "prompts", "no kernel for many rows ran");
    kernel_row(r, "gate and up", "glu", NULL, "every request", "this model has none");
    kernel_row(r, "greedy choice on the device", "argmax", NULL, "requests without a temperature",
               r->cpu ? cpu_reads : "logits were read by the host");
    char drawn[300] = "";
    double draws = launches(&r->seen[PLANNED], "draw", NULL, drawn, sizeof drawn);
    add_row(r, "sampling", "a request with a temperature", draws > 0 ? draws : r->seen[PLANNED].ok,
            draws > 0 ? drawn : "on the host, from logits that were read", "failed");
    for (size_t i = 0; i < PL_COUNT_OF(some_models); i++)
        kernel_row(r, some_models[i].route, some_models[i].op, NULL, some_models[i].way, some_models[i].why);
}

/* ---------- the transform of sound ---------- */

/* A second of a tone, as 16-bit PCM. */
static bool write_tone(const char *path) {
    enum { RATE = 16000 };
    static const uint8_t head[44] = {'R', 'I', 'F', 'F', 0x24, 0x7d, 0,   0,   'W', 'A',  'V',  'E',  'f', 'm', 't',
                                     ' ', 16,  0,   0,   0,    1,    0,   1,   0,   0x80, 0x3e, 0,    0,   0,   0x7d,
                                     0,   0,   2,   0,   16,   0,    'd', 'a', 't', 'a',  0,    0x7d, 0,   0};
    FILE *f = fopen(path, "we");
    bool ok = f != NULL && fwrite(head, 1, sizeof head, f) == sizeof head;
    for (int i = 0; i < RATE && ok; i++) {
        int v = (int)lrint(12000 * sin(6.283185307179586 * 1000 * i / RATE)) & 0xffff;
        ok = fputc(v & 0xff, f) != EOF && fputc(v >> 8, f) != EOF;
    }
    return f != NULL && fclose(f) == 0 && ok;
}

static void sound_row(const struct pl_verify_options *o, struct report *r) {
    enum pl_backend b = pl_verify_backend_of(o);
    const char *with = b == PL_BACKEND_CUDA || b == PL_BACKEND_ROCM ? pl_backend_name(b) : "cpu";
    char path[1200], why[300] = "the tone could not be written", what[100] = "";
    static const char mark[] = "transformed by ";
    struct pl_buf said = {0};
    struct pl_err err = {0};
    int code = 0;
    snprintf(path, sizeof path, "%.1100s/tone.wav", o->dir);
    const char *const words[] = {"mel", path, "--whole", "--backend", with, NULL};
    if (write_tone(path)) {
        if (pl_verify_self(o, words, NULL, &said, &code, &err) != PL_OK) code = 1;
        const char *at = strstr(pl_buf_cstr(&said), mark);
        if (code == 0 && at != NULL)
            snprintf(what, sizeof what, "%.*s", (int)PL_MIN(strcspn(at + sizeof mark - 1, "\n"), (size_t)99),
                     at + sizeof mark - 1);
        snprintf(why, sizeof why, "exit code %d: %.250s %.30s", code, pl_buf_cstr(&said), err.text);
    }
    add_row_of(r, "FFT", "plumb mel, which models of sound begin with", "", what[0] != '\0', what, why);
    (void)unlink(path);
    pl_buf_deinit(&said);
}

/* A named model that could not be driven leaves its routes open. */
static void conclude(struct report *r, const char *bad, const char *open, struct pl_verify_result *out) {
    if (bad[0] != '\0')
        pl_verify_say(out, PL_VERIFY_FAIL, "%s", bad);
    else
        pl_verify_say(out, r->reached > 0 && open[0] == '\0' ? PL_VERIFY_PASS : PL_VERIFY_INCONCLUSIVE,
                      "%zu of %zu routes reached, %zu more are none on this backend; each with the reason%s%s", r->reached,
                      json_array_size(r->rows) - r->absent, r->absent, open[0] != '\0' ? "; not driven: " : "", open);
}

void pl_verify_routes(const struct pl_verify_options *o, struct pl_verify_result *r) {
    struct seen seen[SEEN_MAX] = {0};
    bool cpu = pl_verify_backend_of(o) == PL_BACKEND_CPU;
    struct report report = {.seen = seen, .models = o->route_model_count, .rows = json_array(), .cpu = cpu};
    json_t *taken = json_array();
    char bad[400] = "", open[400] = "";
    struct taking taking = {o, seen, cpu ? PLANNED + 1 : WAYS};
    for (size_t i = 0; i < WAYS; i++) seen[i].model = file_of(o->model);
    for (size_t i = 0; i < report.models; i++) seen[WAYS + i].model = file_of(o->route_models[i]);
    pl_verify_each(o, taking.ways + report.models, take_one, &taking);
    for (size_t i = 0; i < WAYS + report.models; i++) {
        const char *way = ways[i < WAYS ? i : PLANNED].name;
        if (cpu && i < WAYS && i != PLANNED) continue;
        char *first = i < WAYS ? bad : open;
        if (!seen[i].ok && first[0] == '\0')
            snprintf(first, sizeof bad, "%.60s: %s", i < WAYS ? way : seen[i].model, seen[i].why);
        json_array_append_new(taken, json_pack("{s:s, s:s, s:O?, s:O?, s:s}", "way", way, "model", seen[i].model, "forms",
                                               seen[i].forms, "shared", seen[i].declined, "why", seen[i].why));
    }
    attention_rows(&report);
    bed_rows(o, &report);
    other_rows(&report);
    sound_row(o, &report);
    conclude(&report, bad, open, r);
    r->evidence = json_pack("{s:o, s:o, s:O?}", "routes", report.rows, "ways", taken, "kernels", seen[PLANNED].kernels);
    for (size_t i = 0; i < SEEN_MAX; i++) {
        json_decref(seen[i].kernels);
        json_decref(seen[i].forms);
        json_decref(seen[i].declined);
    }
}
