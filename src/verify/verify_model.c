/* verify_model - items that run a model of this build: answers, distributions, counters, routes, speed, the server. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cpu/cpu.h"
#include "device/device.h"
#include "ops/choose.h"
#include "verify/counters.h"
#include "verify/peer.h"
#include "verify/stats.h"
#include "verify/verify.h"

/* Activations in 8 bits move log-probabilities by some hundredths: two ways of summing swap choices nearer than this. */
static const double NEAR_TIE = 0.25, KL_MAX = 0.02, AGREEMENT_MIN = 0.9;

/* ---------- the matrix ---------- */

struct configuration {
    const char *name, *flags;
    bool numeric; /* other roundings are expected: near-ties may fall otherwise */
    bool quick;
};
static const struct configuration matrix[] = {
    {"one thread", "-t 1", false, true},
    {"prompts seven rows at a time", "--batch-rows 7", true, true},
    {"pages of 16 tokens", "--page-tokens 16", true, false},
    {"cache f32", "--kv-dtype f32", true, true},
    {"cache bf16", "--kv-dtype bf16", true, false},
    {"scalar", "--backend cpu --isa scalar", true, false},
    {"AVX2", "--backend cpu --isa avx2", true, true},
    {"AVX-512", "--backend cpu --isa avx512-vnni", true, false},
    {"AMX", "--backend cpu --isa avx512-amx", true, false},
    {"CPU", "--backend cpu", true, false},
    {"CUDA", "--backend cuda", true, true},
    {"ROCm", "--backend rocm", true, true},
    {"OpenCL", "--backend opencl", true, false},
};

static bool runs_here(const struct pl_verify_options *o, const struct configuration *c) {
    static const char *const kinds[] = {"cuda", "rocm", "opencl"};
    const char *isa = strstr(c->flags, "--isa "), *backend = strstr(c->flags, "--backend ");
    enum pl_isa which;
    if (o->quick && !c->quick) return false;
    if (isa != NULL && (!pl_isa_from_name(isa + 6, &which) || !pl_cpu_isa_available(which))) return false;
    for (int k = 0; backend != NULL && k < PL_DEVICE_KIND_COUNT; k++) {
        int n = 0;
        if (strncmp(backend + 10, kinds[k], strlen(kinds[k])) == 0)
            return pl_device_count((enum pl_device_kind)k, &n, NULL) == PL_OK && n > 0;
    }
    return true;
}

/* One comparison; the row says what came of it. */
static enum pl_verify_status compare_answers(const struct pl_verify_options *o, const char *base_self, const char *flags,
                                             bool numeric, bool allow_identical, json_t *row) {
    struct pl_buf base = {0}, arm = {0};
    struct pl_err err = {0};
    struct pl_ab_report *r = pl_calloc(1, sizeof *r);
    char all[300];
    snprintf(all, sizeof all, "--ignore-eos %s", flags);
    pl_verify_command(o, base_self, "generate", "--ignore-eos", &base);
    pl_verify_command(o, o->self, "generate", all, &arm);
    struct pl_ab_options ab = {.base = {.name = "base", .command = pl_buf_cstr(&base)},
                               .arm = {.name = "arm", .command = pl_buf_cstr(&arm)},
                               .prompts = pl_verify_prompts,
                               .prompt_count = o->quick ? 2 : PL_VERIFY_PROMPTS,
                               .n = o->quick ? 12 : 48,
                               .min_tokens = 8,
                               .concurrency = 1,
                               .timeout_s = o->timeout_s,
                               .near_tie = numeric ? NEAR_TIE : 0,
                               .same_binary_meant = allow_identical};
    enum pl_verify_status s = PL_VERIFY_INCONCLUSIVE;
    if (r == NULL || pl_ab_run(&ab, r, &err) != PL_OK) {
        json_object_set_new(row, "why", json_string(err.text));
    } else {
        if (r->verdict == PL_AB_EQUAL) s = PL_VERIFY_PASS;
        if (r->verdict == PL_AB_DIFFERS)
            s = numeric && r->near_ties == r->prompts_different ? PL_VERIFY_PASS : PL_VERIFY_FAIL;
        json_object_set_new(row, "verdict", json_string(pl_ab_verdict_name(r->verdict)));
        json_object_set_new(row, "near_ties", json_integer((json_int_t)r->near_ties));
        json_object_set_new(row, "prompts_different", json_integer((json_int_t)r->prompts_different));
        json_object_set_new(row, "tokens", json_integer((json_int_t)r->arm_tokens));
        json_object_set_new(row, "backend", json_string(r->arm[0].backend));
        if (r->reason_count > 0) json_object_set_new(row, "why", json_string(r->reason[0]));
        if (r->prompts_different > 0) json_object_set_new(row, "margin", json_real(r->difference[0].margin));
    }
    json_object_set_new(row, "base", json_string(pl_buf_cstr(&base)));
    json_object_set_new(row, "arm", json_string(pl_buf_cstr(&arm)));
    json_object_set_new(row, "status", json_string(pl_verify_status_name(s)));
    if (r != NULL) pl_ab_report_deinit(r);
    pl_free(r);
    pl_buf_deinit(&base);
    pl_buf_deinit(&arm);
    return s;
}

/* The worst of a matrix: fail before inconclusive before pass. */
static void conclude(struct pl_verify_result *r, const json_t *rows, size_t count[PL_VERIFY_STATUSES], const char *what) {
    enum pl_verify_status s = count[PL_VERIFY_FAIL] > 0           ? PL_VERIFY_FAIL
                              : count[PL_VERIFY_INCONCLUSIVE] > 0 ? PL_VERIFY_INCONCLUSIVE
                              : count[PL_VERIFY_PASS] > 0         ? PL_VERIFY_PASS
                                                                  : PL_VERIFY_SKIPPED;
    char names[300] = "";
    for (size_t i = 0; i < json_array_size(rows) && s != PL_VERIFY_PASS; i++) {
        const json_t *row = json_array_get(rows, i);
        const char *why = json_string_value(json_object_get(row, "why"));
        if (strcmp(json_string_value(json_object_get(row, "status")), pl_verify_status_name(s)) != 0) continue;
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s%s%.150s", used > 0 ? "; " : ": ",
                 json_string_value(json_object_get(row, "name")), why != NULL ? ": " : "", why != NULL ? why : "");
    }
    pl_verify_say(r, s, "%zu of %zu %s%s", count[PL_VERIFY_PASS], json_array_size(rows), what, names);
}

void pl_verify_outputs(const struct pl_verify_options *o, struct pl_verify_result *r) {
    json_t *rows = json_array();
    size_t count[PL_VERIFY_STATUSES] = {0};
    for (size_t i = 0; i < PL_COUNT_OF(matrix); i++) {
        if (!runs_here(o, &matrix[i])) continue;
        json_t *row = json_pack("{s:s, s:s}", "name", matrix[i].name, "flags", matrix[i].flags);
        count[compare_answers(o, o->self, matrix[i].flags, matrix[i].numeric, true, row)]++;
        json_array_append_new(rows, row);
    }
    conclude(r, rows, count, "configurations give the same answers");
    r->evidence = json_pack("{s:f, s:o}", "near_tie", NEAR_TIE, "configurations", rows);
}

/* ---------- accuracy ---------- */

struct scratch {
    char text[1200], reference[1200];
};

static enum pl_status begin_accuracy(const struct pl_verify_options *o, struct scratch *s, const char *limit,
                                     struct pl_err *err) {
    snprintf(s->text, sizeof s->text, "%.1100s/text.txt", o->dir);
    snprintf(s->reference, sizeof s->reference, "%.1100s/distributions.ref", o->dir);
    FILE *f = fopen(s->text, "we");
    bool ok = f != NULL && fputs(pl_verify_text, f) >= 0;
    if (f != NULL && fclose(f) != 0) ok = false;
    if (!ok) PL_FAIL(err, PL_IO, "cannot write %.300s", s->text);
    const char *const words[] = {"eval",    "-m",  o->model,           "-f",         s->text,  "-w", "128",
                                 "--limit", limit, "--save-reference", s->reference, "--json", NULL};
    struct pl_buf said = {0};
    int code = 0;
    enum pl_status st = pl_verify_self(o, words, NULL, &said, &code, err);
    if (st == PL_OK && code != 0)
        st = pl_err_set(err, __FILE__, __LINE__, PL_INTERNAL, "no reference (exit code %d): %.300s", code,
                        pl_buf_cstr(&said));
    pl_buf_deinit(&said);
    return st;
}

static double value_of(const json_t *against, const char *name) {
    return json_number_value(json_object_get(json_object_get(against, name), "value"));
}

static enum pl_verify_status measure(const struct pl_verify_options *o, const struct scratch *s, const char *limit,
                                     const struct configuration *c, json_t *row) {
    struct pl_verify_options with = *o;
    struct pl_buf flags = {0}, said = {0};
    struct pl_err err = {0};
    json_t *out = NULL;
    int code = 0;
    pl_buf_printf(&flags, "%s %s", o->flags != NULL ? o->flags : "", c->flags);
    with.flags = pl_buf_cstr(&flags);
    const char *const words[] = {"eval",    "-m",  o->model,    "-f",         s->text,  "-w", "128",
                                 "--limit", limit, "--against", s->reference, "--json", NULL};
    enum pl_status st = pl_verify_self(&with, words, &out, &said, &code, &err);
    const json_t *against = json_object_get(out, "against");
    enum pl_verify_status result = PL_VERIFY_INCONCLUSIVE;
    if (st == PL_OK && code == 0 && json_is_object(against)) {
        bool close = value_of(against, "kl_mean") <= KL_MAX && value_of(against, "top1_agreement") >= AGREEMENT_MIN;
        result = close ? PL_VERIFY_PASS : PL_VERIFY_FAIL;
        json_object_set_new(row, "against", json_deep_copy(against));
        json_object_set(row, "perplexity", json_object_get(out, "perplexity_interval"));
        if (!close)
            json_object_set_new(
                row, "why",
                json_sprintf("KL mean %.4g, top-1 %.4g", value_of(against, "kl_mean"), value_of(against, "top1_agreement")));
    } else {
        json_t *why = json_sprintf("exit code %d: %.200s %.200s", code, err.text, pl_buf_cstr(&said));
        json_object_set_new(row, "why", why != NULL ? why : json_string("failed"));
    }
    json_object_set_new(row, "status", json_string(pl_verify_status_name(result)));
    json_decref(out);
    pl_buf_deinit(&flags);
    pl_buf_deinit(&said);
    return result;
}

void pl_verify_accuracy(const struct pl_verify_options *o, struct pl_verify_result *r) {
    json_t *rows = json_array();
    size_t count[PL_VERIFY_STATUSES] = {0};
    struct scratch s;
    struct pl_err err = {0};
    const char *limit = o->quick ? "97" : "385";
    if (begin_accuracy(o, &s, limit, &err) != PL_OK) {
        if (strstr(err.text, "tokenizer") != NULL)
            pl_verify_say(r, PL_VERIFY_SKIPPED, "%.500s", err.text);
        else
            pl_verify_say(r, PL_VERIFY_FAIL, "%.500s", err.text);
    } else {
        for (size_t i = 0; i < PL_COUNT_OF(matrix); i++) {
            if (!matrix[i].numeric || !runs_here(o, &matrix[i])) continue;
            json_t *row = json_pack("{s:s, s:s}", "name", matrix[i].name, "flags", matrix[i].flags);
            count[measure(o, &s, limit, &matrix[i], row)]++;
            json_array_append_new(rows, row);
        }
        conclude(r, rows, count, "configurations have the same distributions");
    }
    (void)unlink(s.reference);
    (void)unlink(s.text);
    r->evidence = json_pack("{s:f, s:f, s:o}", "kl_mean_max", KL_MAX, "top1_min", AGREEMENT_MIN, "configurations", rows);
}

/* ---------- every implementation by force ---------- */

/* Did op end as "chosen" with this implementation? */
static bool was_taken(const json_t *witness, const char *op, const char *impl) {
    const json_t *outcomes = json_object_get(witness, "outcomes");
    for (size_t i = 0; i < json_array_size(outcomes); i++) {
        const json_t *w = json_array_get(outcomes, i);
        const char *name = json_string_value(json_object_get(w, "op")),
                   *taken = json_string_value(json_object_get(w, "taken"));
        if (name != NULL && taken != NULL && strcmp(name, op) == 0 && strcmp(taken, impl) == 0 &&
            json_integer_value(json_object_get(w, "count")) > 0)
            return true;
    }
    return false;
}

static enum pl_verify_status force(const struct pl_verify_options *o, const char *op, const char *impl, json_t *row) {
    char flags[120], path[1200];
    struct pl_verify_options with = *o;
    struct pl_buf said = {0}, all = {0};
    struct pl_err err = {0};
    int code = 0;
    /* Forms of decode attention have an option of their own: prompts go on by plan. */
    static const char *const forms[] = {"v1", "v2", "cascade", "gather"};
    bool form = false;
    for (size_t i = 0; i < PL_COUNT_OF(forms); i++) form |= strcmp(op, "attention") == 0 && strcmp(impl, forms[i]) == 0;
    if (form)
        snprintf(flags, sizeof flags, "--attn %s", impl);
    else
        snprintf(flags, sizeof flags, "--force-kernel %s=%s", op, impl);
    snprintf(path, sizeof path, "%.1100s/forced.json", o->dir);
    pl_buf_printf(&all, "%s %s", o->flags != NULL ? o->flags : "", flags);
    with.flags = pl_buf_cstr(&all);
    const char *const words[] = {"generate", "-m",        o->model, "-p", pl_verify_prompts[0], "-n", "4", "--temp",
                                 "0",        "--witness", path,     NULL};
    enum pl_status st = pl_verify_self(&with, words, NULL, &said, &code, &err);
    json_t *witness = st == PL_OK && code == 0 ? json_load_file(path, 0, NULL) : NULL;
    enum pl_verify_status s = PL_VERIFY_SKIPPED;
    if (code == 0 && was_taken(witness, op, impl))
        s = compare_answers(o, o->self, flags, true, true, row);
    else
        json_object_set_new(row, "why",
                            code == 0 ? json_string("this model never asks for it")
                                      : json_sprintf("not runnable here: %.300s", pl_buf_cstr(&said)));
    json_object_set_new(row, "status", json_string(pl_verify_status_name(s)));
    json_decref(witness);
    (void)unlink(path);
    pl_buf_deinit(&said);
    pl_buf_deinit(&all);
    return s;
}

static enum pl_backend backend_of(const struct pl_verify_options *o) {
    enum pl_backend b = PL_BACKEND_CPU;
    char why[200];
    if (o->backend == NULL || !pl_backend_from_name(o->backend, &b)) return pl_ops_auto(why, sizeof why);
    return b;
}

void pl_verify_forced(const struct pl_verify_options *o, struct pl_verify_result *r) {
    json_t *rows = json_array();
    size_t count[PL_VERIFY_STATUSES] = {0};
    enum pl_backend b = backend_of(o);
    for (int op = 0; op < PL_OP_COUNT; op++) {
        enum pl_impl list[PL_IMPL_COUNT];
        size_t n = pl_impl_ranked(b, (enum pl_op)op, list);
        bool core = op == PL_OP_linear || op == PL_OP_attention;
        if (pl_op_leader((enum pl_op)op) != (enum pl_op)op || n < 2 || (o->quick && !core)) continue;
        for (size_t i = o->quick ? 1 : 0; i < n && (!o->quick || i < 2);
             i++) { /* quick: the plan itself runs all the time */
            enum pl_isa isa;
            const char *impl = pl_impl_name(list[i]);
            if (list[i] == PL_IMPL_WIDENED || (pl_isa_from_name(impl, &isa) && !pl_cpu_isa_available(isa))) continue;
            char name[80];
            snprintf(name, sizeof name, "%s=%s", pl_op_name((enum pl_op)op), impl);
            json_t *row = json_pack("{s:s}", "name", name);
            count[force(o, pl_op_name((enum pl_op)op), impl, row)]++;
            json_array_append_new(rows, row);
        }
    }
    conclude(r, rows, count, "implementations ran when forced and gave the same answers");
    if (json_array_size(rows) == 0)
        pl_verify_say(r, PL_VERIFY_SKIPPED, "no operation has two implementations on %s", pl_backend_name(b));
    r->evidence = json_pack("{s:o}", "implementations", rows);
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
    bool cpu = backend_of(o) == PL_BACKEND_CPU;
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

/* ---------- speed ---------- */

/* Speed by how many sequences run at once: where batching begins to pay. */
static json_t *bench_together(const struct pl_verify_options *o) {
    const char *const words[] = {"bench", "-m", o->model,     "-p",      "32",     "-n", "32",
                                 "-r",    "3",  "--parallel", "1,2,4,8", "--json", NULL};
    json_t *out = NULL, *rows = json_array();
    int code = 0;
    if (pl_verify_self(o, words, &out, NULL, &code, NULL) != PL_OK || code != 0) code = 1;
    const json_t *list = json_object_get(out, "parallel");
    for (size_t i = 0; code == 0 && i < json_array_size(list); i++) {
        json_t *row = json_array_get(list, i);
        json_array_append_new(rows, json_pack("{s:O?, s:O?, s:O?, s:O?}", "sequences", json_object_get(row, "sequences"),
                                              "prefill_tok_s", json_object_get(row, "prefill_tok_s"), "decode_tok_s",
                                              json_object_get(row, "decode_tok_s"), "gap_ms_p99",
                                              json_object_get(row, "gap_ms_p99")));
    }
    json_decref(out);
    return rows;
}

void pl_verify_bench(const struct pl_verify_options *o, struct pl_verify_result *r) {
    const char *p = o->quick ? "64" : "256", *n = o->quick ? "16" : "64", *repeats = o->quick ? "3" : "7";
    const char *const words[] = {"bench", "-m", o->model, "-p", p, "-n", n, "-r", repeats, "--json", NULL};
    struct pl_buf said = {0};
    struct pl_err err = {0};
    json_t *out = NULL;
    int code = 0;
    if (pl_verify_self(o, words, &out, &said, &code, &err) != PL_OK || code != 0 || !json_is_object(out)) {
        pl_verify_say(r, PL_VERIFY_FAIL, "plumb bench: exit code %d: %.300s %.200s", code, err.text, pl_buf_cstr(&said));
    } else {
        double percent = json_number_value(json_object_get(out, "decode_percent_of_ceiling"));
        bool named = json_array_size(json_object_get(out, "kernels")) > 0, low = percent < o->floor;
        pl_verify_say(
            r, named && !low ? PL_VERIFY_PASS : PL_VERIFY_FAIL,
            "prompt %.1f tok/s, decode %.1f tok/s, %.0f%% of the read ceiling of %.1f GB/s measured in the same run%s%s",
            json_number_value(json_object_get(out, "prefill_tok_s")),
            json_number_value(json_object_get(out, "decode_tok_s")), percent,
            json_number_value(json_object_get(out, "read_ceiling_gb_s")), named ? "" : "; no kernel was named",
            low ? "; below the floor" : "");
        if (!o->quick) json_object_set_new(out, "together", bench_together(o));
    }
    r->evidence = out != NULL ? out : json_null();
    pl_buf_deinit(&said);
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
