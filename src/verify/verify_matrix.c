/* verify_matrix - answers and distributions over configurations, and every implementation by force. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/pool.h"
#include "cpu/cpu.h"
#include "device/device.h"
#include "ops/choose.h"
#include "verify/counters.h"
#include "verify/score.h"
#include "verify/verify.h"

static const double NEAR_TIE = PL_NEAR_TIE, KL_MAX = 0.02, AGREEMENT_MIN = 0.9;

/* ---------- the matrix ---------- */

struct configuration {
    const char *name, *flags;
    bool numeric;       /* other roundings are expected: near-ties may fall otherwise */
    bool quick, device; /* device: nothing that a CPU has */
};
static const struct configuration matrix[] = {
    {"one thread", "-t 1", false, true, false},
    {"launched one by one, no graphs", "--no-graphs", false, true, true},
    {"kernels compiled anew", "--jit-cache off", false, false, true},
    {"products that know no neighbours", "--invariant", true, false, false},
    {"prompts seven rows at a time", "--batch-rows 7", true, true, false},
    {"pages of 16 tokens", "--page-tokens 16", true, false, false},
    {"cache without pages", "--kv dense", true, false, false},
    {"cache f32", "--kv-dtype f32", true, true, false},
    {"cache bf16", "--kv-dtype bf16", true, false, false},
    {"attention in one pass", "--attn v1", true, false, true},
    {"attention split and merged", "--attn v2", true, false, true},
    {"attention over shared beginnings", "--attn cascade", true, false, true},
    {"attention over gathered pages", "--attn gather", true, false, true},
    {"scalar", "--backend cpu --isa scalar", true, false, false},
    {"AVX2", "--backend cpu --isa avx2", true, true, false},
    {"AVX-VNNI", "--backend cpu --isa avx-vnni", true, false, false},
    {"AVX-512", "--backend cpu --isa avx512-vnni", true, false, false},
    {"AMX", "--backend cpu --isa avx512-amx", true, false, false},
    {"CPU", "--backend cpu", true, true, true},
    {"CUDA", "--backend cuda", true, true, false},
    {"ROCm", "--backend rocm", true, true, false},
    {"OpenCL", "--backend opencl", true, false, false},
};

static bool runs_here(const struct pl_verify_options *o, const struct configuration *c) {
    static const char *const kinds[] = {"cuda", "rocm", "opencl"};
    const char *isa = strstr(c->flags, "--isa "), *backend = strstr(c->flags, "--backend ");
    enum pl_isa which;
    enum pl_backend base = pl_verify_backend_of(o);
    if (o->quick && !c->quick) return false;
    if (c->device && base == PL_BACKEND_CPU) return false;
    if (isa != NULL && base != PL_BACKEND_CPU) return false; /* the row "CPU" is there */
    if (backend != NULL && isa == NULL && strcmp(backend + 10, pl_backend_name(base)) == 0) return false; /* the baseline */
    if (isa != NULL && (!pl_isa_from_name(isa + 6, &which) || !pl_cpu_isa_available(which))) return false;
    for (int k = 0; backend != NULL && k < PL_DEVICE_KIND_COUNT; k++) {
        int n = 0;
        if (strncmp(backend + 10, kinds[k], strlen(kinds[k])) == 0)
            return pl_device_count((enum pl_device_kind)k, &n, NULL) == PL_OK && n > 0;
    }
    return true;
}

/* One comparison; the row says what came of it. */
static enum pl_verify_status compare_answers(const struct pl_verify_options *o, const char *flags, bool numeric,
                                             struct pl_ab_baseline *baseline, json_t *row) {
    struct pl_buf base = {0}, arm = {0};
    struct pl_err err = {0};
    struct pl_ab_report *r = pl_calloc(1, sizeof *r);
    char all[300];
    snprintf(all, sizeof all, "--ignore-eos %s", flags);
    pl_verify_command(o, o->self, "generate", "--ignore-eos", &base);
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
                               /* a process of its own for each prompt: most of the time it starts, or waits for a device */
                               .at_once = (uint32_t)PL_MIN(PL_MAX(pl_cpu_count() / 4, 1), (int)pl_verify_processes(o)),
                               .same_binary_meant = true,
                               .baseline = baseline};
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

/* Rows that passed although an answer differs. */
static size_t near_ties(const json_t *rows) {
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        n += strcmp(json_string_value(json_object_get(row, "status")), "pass") == 0 &&
             json_integer_value(json_object_get(row, "near_ties")) > 0;
    }
    return n;
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
    char ties[80] = "";
    if (near_ties(rows) > 0)
        snprintf(ties, sizeof ties, ", %zu of them but for near-ties (within %.2f nats)", near_ties(rows), NEAR_TIE);
    pl_verify_say(r, s, "%zu of %zu %s%s%s", count[PL_VERIFY_PASS], json_array_size(rows), what, ties, names);
}

/* Four prompts one after the other at a server of ours, then together: an answer that changes is a near-tie, and with
 * --invariant it is a fault. */
static enum pl_verify_status compare_company(const struct pl_verify_options *o, const char *flags, bool invariant,
                                             json_t *row) {
    struct pl_buf command = {0};
    struct pl_err err = {0};
    struct pl_child_server child;
    struct pl_ab_report *r = pl_calloc(1, sizeof *r);
    enum pl_verify_status s = PL_VERIFY_INCONCLUSIVE;
    pl_verify_command(o, o->self, "serve", flags, &command);
    json_object_set_new(row, "arm", json_string(pl_buf_cstr(&command)));
    enum pl_status st = r == NULL
                            ? PL_NO_MEMORY
                            : pl_child_server_start(pl_buf_cstr(&command), NULL, 0, true, o->timeout_s, &child, NULL, &err);
    if (st == PL_OK) {
        struct pl_ab_options ab = {.base = {.name = "base", .url = child.url},
                                   .arm = {.name = "arm", .url = child.url},
                                   .prompts = pl_verify_prompts,
                                   .prompt_count = PL_VERIFY_PROMPTS,
                                   .n = o->quick ? 12 : 48,
                                   .min_tokens = 8,
                                   .concurrency = PL_VERIFY_PROMPTS,
                                   .timeout_s = o->timeout_s,
                                   .near_tie = NEAR_TIE,
                                   .invariant = invariant,
                                   .allow_identical = true};
        st = pl_ab_run(&ab, r, &err);
        (void)pl_child_server_stop(&child);
    }
    if (st != PL_OK) {
        json_object_set_new(row, "why", json_string(err.text));
    } else {
        bool explained = invariant ? r->batch_mismatches == 0 : r->batch_mismatches == r->batch_near_ties;
        if (r->reason_count == 0)
            s = r->prompts_different == 0 && explained && r->batch_answers > 0 ? PL_VERIFY_PASS : PL_VERIFY_FAIL;
        json_object_set_new(row, "verdict", json_string(pl_ab_verdict_name(r->verdict)));
        json_object_set_new(row, "near_ties", json_integer((json_int_t)r->batch_near_ties));
        json_object_set_new(row, "prompts_different", json_integer((json_int_t)r->batch_mismatches));
        json_object_set_new(row, "tokens", json_integer((json_int_t)r->arm_tokens));
        json_object_set_new(row, "backend", json_string(r->arm[0].backend));
        if (r->reason_count > 0) json_object_set_new(row, "why", json_string(r->reason[0]));
    }
    json_object_set_new(row, "status", json_string(pl_verify_status_name(s)));
    if (r != NULL) pl_ab_report_deinit(r);
    pl_free(r);
    pl_buf_deinit(&command);
    return s;
}

/* What runs here of the matrix, as rows that are filled in beside each other. */
struct sweep {
    const struct pl_verify_options *o;
    const struct configuration *c[PL_COUNT_OF(matrix) + 2];
    json_t *row[PL_COUNT_OF(matrix) + 2];
    enum pl_verify_status status[PL_COUNT_OF(matrix) + 2];
    size_t count;
    struct pl_ab_baseline baseline;
    const struct scratch *scratch; /* of accuracy */
    const char *limit;
};

static void sweep_add(struct sweep *s, const struct configuration *c) {
    s->c[s->count] = c;
    s->row[s->count++] = json_pack("{s:s, s:s, s:s}", "name", c->name, "status", "", "flags", c->flags);
}

/* Takes the rows. */
static json_t *sweep_rows(struct sweep *s, size_t count[PL_VERIFY_STATUSES]) {
    json_t *rows = json_array();
    for (size_t i = 0; i < s->count; i++) {
        count[s->status[i]]++;
        json_array_append_new(rows, s->row[i]);
    }
    return rows;
}

static const struct configuration company[] = {
    {"four sequences in a step", "--parallel 4", false, true, false},
    {"four sequences in a step, --invariant", "--parallel 4 --invariant", false, true, false},
};

static void outputs_row(void *user, size_t i) {
    struct sweep *s = user;
    const struct configuration *c = s->c[i];
    bool together = c >= company && c < company + PL_COUNT_OF(company);
    if (s->status[i] != PL_VERIFY_STATUSES) return; /* the first one, which asked the baseline */
    struct pl_ab_baseline *shared = i == 0 || s->baseline.base != NULL ? &s->baseline : NULL;
    s->status[i] = together ? compare_company(s->o, c->flags, c == &company[1], s->row[i])
                            : compare_answers(s->o, c->flags, c->numeric, shared, s->row[i]);
}

void pl_verify_outputs(const struct pl_verify_options *o, struct pl_verify_result *r) {
    struct sweep s = {.o = o};
    size_t count[PL_VERIFY_STATUSES] = {0};
    for (size_t i = 0; i < PL_COUNT_OF(matrix); i++)
        if (runs_here(o, &matrix[i])) sweep_add(&s, &matrix[i]);
    for (size_t i = 0; i < PL_COUNT_OF(company); i++) sweep_add(&s, &company[i]);
    for (size_t i = 0; i < s.count; i++) s.status[i] = PL_VERIFY_STATUSES;
    outputs_row(&s, 0);
    pl_verify_each(o, s.count, outputs_row, &s);
    json_t *rows = sweep_rows(&s, count);
    conclude(r, rows, count, "configurations give the same answers");
    pl_ab_baseline_deinit(&s.baseline);
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
        /* as with answers: where every other choice was a near-tie, another order of sums explains it */
        bool same = value_of(against, "top1_agreement") >= AGREEMENT_MIN || value_of(against, "top1_or_near_tie") >= 1;
        bool close = value_of(against, "kl_mean") <= KL_MAX && same;
        result = close ? PL_VERIFY_PASS : PL_VERIFY_FAIL;
        static const char *const shown[] = {"kl_mean", "kl_max", "top1_agreement", "top1_or_near_tie"};
        for (size_t i = 0; i < PL_COUNT_OF(shown); i++) json_object_set(row, shown[i], json_object_get(against, shown[i]));
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

static void accuracy_row(void *user, size_t i) {
    struct sweep *s = user;
    s->status[i] = measure(s->o, s->scratch, s->limit, s->c[i], s->row[i]);
}

void pl_verify_accuracy(const struct pl_verify_options *o, struct pl_verify_result *r) {
    json_t *rows = NULL;
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
        struct sweep all = {.o = o, .scratch = &s, .limit = limit};
        for (size_t i = 0; i < PL_COUNT_OF(matrix); i++)
            if (matrix[i].numeric && runs_here(o, &matrix[i])) sweep_add(&all, &matrix[i]);
        pl_verify_each(o, all.count, accuracy_row, &all);
        rows = sweep_rows(&all, count);
        conclude(r, rows, count, "configurations have the same distributions");
    }
    (void)unlink(s.reference);
    (void)unlink(s.text);
    r->evidence = json_pack("{s:f, s:f, s:o}", "kl_mean_max", KL_MAX, "top1_min", AGREEMENT_MIN, "configurations",
                            rows != NULL ? rows : json_array());
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

/* Of what a command said on stderr; the sentence that ended it. */
static const char *last_line(struct pl_buf *said) {
    while (said->len > 0 && said->data[said->len - 1] == '\n') said->data[--said->len] = '\0';
    const char *text = pl_buf_cstr(said), *line = strrchr(text, '\n');
    return line != NULL ? line + 1 : text;
}

static enum pl_verify_status force(const struct pl_verify_options *o, const char *op, const char *impl,
                                   struct pl_ab_baseline *baseline, json_t *row) {
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
    snprintf(path, sizeof path, "%.1000s/forced-%s-%s.json", o->dir, op, impl);
    pl_buf_printf(&all, "%s %s", o->flags != NULL ? o->flags : "", flags);
    with.flags = pl_buf_cstr(&all);
    const char *const words[] = {"generate", "-m",        o->model, "-p", pl_verify_prompts[0], "-n", "4", "--temp",
                                 "0",        "--witness", path,     NULL};
    enum pl_status st = pl_verify_self(&with, words, NULL, &said, &code, &err);
    json_t *witness = st == PL_OK && code == 0 ? json_load_file(path, 0, NULL) : NULL;
    enum pl_verify_status s = PL_VERIFY_SKIPPED;
    if (code == 0 && was_taken(witness, op, impl))
        s = compare_answers(o, flags, true, baseline, row);
    else
        json_object_set_new(row, "why",
                            code == 0 ? json_string("this model never asks for it")
                                      : json_sprintf("not for every case of this model: %.300s", last_line(&said)));
    json_object_set_new(row, "status", json_string(pl_verify_status_name(s)));
    json_decref(witness);
    (void)unlink(path);
    pl_buf_deinit(&said);
    pl_buf_deinit(&all);
    return s;
}

/* What can run here at all, best first. */
static size_t available(enum pl_backend b, enum pl_op op, enum pl_impl out[PL_IMPL_COUNT]) {
    enum pl_impl all[PL_IMPL_COUNT];
    size_t n = pl_impl_ranked(b, op, all), kept = 0;
    for (size_t i = 0; i < n; i++) {
        enum pl_isa isa;
        bool missing = pl_isa_from_name(pl_impl_name(all[i]), &isa) && !pl_cpu_isa_available(isa);
        if (all[i] != PL_IMPL_WIDENED && !missing) out[kept++] = all[i];
    }
    return kept;
}

enum { FORCES_MAX = PL_OP_COUNT * PL_IMPL_COUNT };
struct forces {
    const struct pl_verify_options *o;
    const char *op[FORCES_MAX], *impl[FORCES_MAX];
    json_t *row[FORCES_MAX];
    enum pl_verify_status status[FORCES_MAX];
    size_t count;
    struct pl_ab_baseline baseline;
};

static void forced_row(void *user, size_t i) {
    struct forces *f = user;
    if (f->status[i] == PL_VERIFY_STATUSES) f->status[i] = force(f->o, f->op[i], f->impl[i], &f->baseline, f->row[i]);
}

static json_t *forced_rows(struct forces *f, size_t count[PL_VERIFY_STATUSES]) {
    json_t *rows = json_array();
    for (size_t i = 0; i < f->count; i++) f->status[i] = PL_VERIFY_STATUSES;
    /* The first that runs asks the baseline, which the others share. */
    for (size_t i = 0; i < f->count && f->baseline.base == NULL; i++) forced_row(f, i);
    pl_verify_each(f->o, f->count, forced_row, f);
    for (size_t i = 0; i < f->count; i++) {
        count[f->status[i]]++;
        json_array_append_new(rows, f->row[i]);
    }
    pl_ab_baseline_deinit(&f->baseline);
    return rows;
}

void pl_verify_forced(const struct pl_verify_options *o, struct pl_verify_result *r) {
    size_t count[PL_VERIFY_STATUSES] = {0};
    struct forces f = {.o = o};
    enum pl_backend b = pl_verify_backend_of(o);
    for (int op = 0; op < PL_OP_COUNT; op++) {
        enum pl_impl list[PL_IMPL_COUNT];
        size_t n = available(b, (enum pl_op)op, list), first = 0;
        bool core = op == PL_OP_linear || op == PL_OP_attention;
        if (pl_op_leader((enum pl_op)op) != (enum pl_op)op || n < 2 || (o->quick && !core)) continue;
        /* quick: the plan itself runs all the time; of a CPU's instruction sets one other will do */
        if (o->quick) first = 1;
        if (o->quick && b == PL_BACKEND_CPU) n = 2;
        if (o->quick && b != PL_BACKEND_CPU && list[n - 1] == PL_IMPL_PORTABLE) n--;
        for (size_t i = first; i < n && f.count < FORCES_MAX; i++) {
            char name[80];
            snprintf(name, sizeof name, "%s=%s", pl_op_name((enum pl_op)op), pl_impl_name(list[i]));
            f.op[f.count] = pl_op_name((enum pl_op)op);
            f.impl[f.count] = pl_impl_name(list[i]);
            f.row[f.count++] = json_pack("{s:s, s:s}", "name", name, "status", "");
        }
    }
    json_t *rows = forced_rows(&f, count);
    conclude(r, rows, count, "implementations ran when forced and gave the same answers");
    if (json_array_size(rows) == 0)
        pl_verify_say(r, PL_VERIFY_SKIPPED, "no operation has two implementations on %s", pl_backend_name(b));
    r->evidence = json_pack("{s:o}", "implementations", rows);
}
