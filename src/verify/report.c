/* report.c - the verdict of a comparison as JSON, Markdown and JUnit XML. */
#include <stdlib.h>
#include <string.h>

#include "verify/ab.h"
#include "verify/junit.h"

static json_t *side_json(const struct pl_ab_side *s, const struct pl_ab_answer *a, size_t tokens) {
    const char *backend = a != NULL ? a[0].backend : "";
    json_t *kernels = a != NULL && a[0].kernels != NULL ? json_incref(a[0].kernels) : json_null();
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:o}", "is", s->description, "program", s->program, "build_id",
                     s->build_id, "kernel_hash", s->kernel_hash, "backend", backend, "tokens", (json_int_t)tokens, "kernels",
                     kernels);
}

static json_t *difference_json(const struct pl_ab_difference *d) {
    json_t *v = json_pack("{s:I, s:I, s:s, s:b, s:s, s:s, s:s}", "prompt", (json_int_t)d->prompt, "at", (json_int_t)d->token,
                          "unit", d->by_ids ? "token" : "byte", "near_tie", d->near_tie, "after", d->context, "base",
                          d->base_text, "arm", d->arm_text);
    /* Cut in the middle of a character a text may be no UTF-8: the place still stands. */
    if (v == NULL)
        v = json_pack("{s:I, s:I, s:s, s:b}", "prompt", (json_int_t)d->prompt, "at", (json_int_t)d->token, "unit",
                      d->by_ids ? "token" : "byte", "near_tie", d->near_tie);
    if (v != NULL) json_object_set_new(v, "margin", d->margin >= 0 ? json_real(d->margin) : json_null());
    return v;
}

json_t *pl_ab_report_json(const struct pl_ab_options *o, const struct pl_ab_report *r) {
    json_t *reasons = json_array(), *differences = json_array();
    for (size_t i = 0; i < r->reason_count; i++)
        json_array_append_new(reasons, json_stringn(r->reason[i], strlen(r->reason[i])));
    for (size_t i = 0; i < PL_MIN(r->prompts_different, (size_t)PL_AB_SHOWN_MAX); i++)
        json_array_append_new(differences, difference_json(&r->difference[i]));
    return json_pack("{s:s, s:s, s:i, s:I, s:i, s:b, s:o, s:I, s:I, s:o, s:o, s:I, s:o, s:o}", "schema", "plumb-ab-1",
                     "verdict", pl_ab_verdict_name(r->verdict), "exit_code", (int)r->verdict, "prompts",
                     (json_int_t)r->prompt_count, "n", (int)o->n, "route_unknown", r->route_unknown, "reasons", reasons,
                     "prompts_different", (json_int_t)r->prompts_different, "near_ties", (json_int_t)r->near_ties,
                     "differences", differences, "logprob_drift", r->drift.known ? json_real(r->drift.most) : json_null(),
                     "batch_mismatches", (json_int_t)r->batch_mismatches, "base",
                     side_json(&o->base, r->base, r->base_tokens), "arm", side_json(&o->arm, r->arm, r->arm_tokens));
}

static void side_markdown(const char *name, const struct pl_ab_side *s, const struct pl_ab_answer *a, size_t tokens,
                          struct pl_buf *out) {
    pl_buf_printf(out, "| %s | `%s` | %s | %s | %zu |\n", name, s->description, s->build_id[0] != '\0' ? s->build_id : "-",
                  a != NULL && a[0].backend[0] != '\0' ? a[0].backend : "not said", tokens);
}

static void quoted(struct pl_buf *out, const char *text) {
    pl_buf_add_char(out, '\'');
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            pl_buf_add_c(out, "'\\''");
        else
            pl_buf_add_char(out, *text);
    }
    pl_buf_add_char(out, '\'');
}

static void side_shows_it(const struct pl_ab_side *s, const char *prompt, uint32_t n, struct pl_buf *out) {
    if (s->url != NULL) {
        json_t *body =
            json_pack("{s:s, s:i, s:i, s:i}", "prompt", prompt, "max_tokens", (int)n, "temperature", 0, "seed", 1);
        char *text = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
        json_decref(body);
        pl_buf_printf(out, "    curl %s/v1/completions -H 'Content-Type: application/json' -d ", s->url);
        quoted(out, text != NULL ? text : "");
        free(text);
    } else {
        bool filled = strstr(s->command, "{prompt}") != NULL;
        pl_buf_add_c(out, "   ");
        for (size_t i = 0; i < s->env_count; i++) pl_buf_printf(out, " %s", s->env[i]);
        pl_buf_add_char(out, ' ');
        for (const char *c = s->command + strspn(s->command, " "); *c != '\0';) {
            if (strncmp(c, "{prompt}", 8) == 0) {
                quoted(out, prompt);
                c += 8;
            } else if (strncmp(c, "{n}", 3) == 0) {
                pl_buf_printf(out, "%u", n);
                c += 3;
            } else {
                pl_buf_add_char(out, *c++);
            }
        }
        if (!filled) {
            pl_buf_add_c(out, " -p ");
            quoted(out, prompt);
            pl_buf_printf(out, " -n %u --temp 0", n);
        }
    }
    pl_buf_add_char(out, '\n');
}

/* Commands for a person who wants to see it with their own eyes. */
static void shows_it(const struct pl_ab_options *o, size_t prompt, struct pl_buf *out) {
    pl_buf_printf(out, "\nPrompt %zu again, base and arm:\n\n", prompt + 1);
    side_shows_it(&o->base, o->prompts[prompt], o->n, out);
    side_shows_it(&o->arm, o->prompts[prompt], o->n, out);
}

static void kernels_markdown(const char *name, const struct pl_ab_answer *a, struct pl_buf *out) {
    if (a == NULL || a[0].kernels == NULL) return;
    pl_buf_printf(out, "\nKernels of %s (first prompt):\n\n| operation | kernel | launches |\n|---|---|---|\n", name);
    for (size_t i = 0; i < json_array_size(a[0].kernels); i++) {
        const json_t *k = json_array_get(a[0].kernels, i);
        const char *op = json_string_value(json_object_get(k, "op")),
                   *kernel = json_string_value(json_object_get(k, "kernel"));
        pl_buf_printf(out, "| %s | %s | %lld |\n", op != NULL ? op : "-", kernel != NULL ? kernel : "-",
                      (long long)json_integer_value(json_object_get(k, "launches")));
    }
}

void pl_ab_report_markdown(const struct pl_ab_options *o, const struct pl_ab_report *r, struct pl_buf *out) {
    pl_buf_printf(out, "# Comparison: %s%s\n\n%zu prompt%s, up to %u token%s each, greedy; the baseline ran twice.\n\n",
                  pl_ab_verdict_name(r->verdict), r->route_unknown ? " (route unknown)" : "", r->prompt_count,
                  r->prompt_count == 1 ? "" : "s", o->n, o->n == 1 ? "" : "s");
    pl_buf_add_c(out, "| side | what | build | backend | tokens |\n|---|---|---|---|---|\n");
    side_markdown("base", &o->base, r->base, r->base_tokens, out);
    side_markdown("arm", &o->arm, r->arm, r->arm_tokens, out);
    if (r->reason_count > 0) pl_buf_add_c(out, "\n## Why nothing can be concluded\n\n");
    for (size_t i = 0; i < r->reason_count; i++) pl_buf_printf(out, "- %s\n", r->reason[i]);
    size_t shown = PL_MIN(r->prompts_different, (size_t)PL_AB_SHOWN_MAX);
    if (shown > 0)
        pl_buf_printf(out, "\n## Differences: %zu of %zu prompts, %zu of them near-ties\n\n", r->prompts_different,
                      r->prompt_count, r->near_ties);
    for (size_t i = 0; i < shown; i++) {
        const struct pl_ab_difference *d = &r->difference[i];
        pl_buf_printf(out, "- prompt %zu, %s %zu, after \"%s\": base \"%s\", arm \"%s\"", d->prompt + 1,
                      d->by_ids ? "token" : "byte", d->token, d->context, d->base_text, d->arm_text);
        if (d->margin >= 0)
            pl_buf_printf(out, " (the baseline's choice was %.4f ahead of its runner-up%s)\n", d->margin,
                          d->near_tie ? ": a near-tie" : "");
        else
            pl_buf_add_char(out, '\n');
    }
    if (shown < r->prompts_different) pl_buf_printf(out, "- and %zu more\n", r->prompts_different - shown);
    if (shown > 0) shows_it(o, r->difference[0].prompt, out);
    if (r->drift.known)
        pl_buf_printf(
            out, "%sLog-probabilities of tokens that both sides chose moved by at most %.4g (prompt %zu, token %zu)%s.\n",
            "\n", r->drift.most, r->drift.prompt + 1, r->drift.token,
            o->drift > 0 ? r->drift.most > o->drift ? ": more than --tolerance logprob allows" : ", as allowed" : "");
    if (o->concurrency > 1)
        pl_buf_printf(out, "\n%zu of %zu answers of the arm differed from their single run when %u ran together%s.\n",
                      r->batch_mismatches, r->batch_answers, o->concurrency,
                      o->invariant ? ", and none may" : " (a rate, not a verdict: --invariant makes it one)");
    kernels_markdown("base", r->base, out);
    kernels_markdown("arm", r->arm, out);
}

/* One case per prompt, and one for the verdict, which is an error when it is inconclusive. */
void pl_ab_report_junit(const struct pl_ab_options *o, const struct pl_ab_report *r, struct pl_buf *out) {
    struct pl_junit j = {0};
    char name[64], text[400];
    enum pl_junit_verdict v = r->verdict == PL_AB_EQUAL     ? PL_JUNIT_PASS
                              : r->verdict == PL_AB_DIFFERS ? PL_JUNIT_FAILURE
                                                            : PL_JUNIT_ERROR;
    snprintf(text, sizeof text,
             "%zu of %zu prompts differ, %zu of them near-ties; log-probabilities moved by up to %.4g; %zu of "
             "%zu answers changed in company",
             r->prompts_different, r->prompt_count, r->near_ties, r->drift.most, r->batch_mismatches, r->batch_answers);
    (void)o;
    pl_junit_add(&j, "plumb ab", "verdict", v, r->reason_count > 0 ? r->reason[0] : text, -1);
    for (size_t i = 0, d = 0; i < r->prompt_count; i++) {
        bool differs = d < r->prompts_different && r->difference[d].prompt == i;
        snprintf(name, sizeof name, "prompt %zu", i + 1);
        text[0] = '\0';
        if (differs)
            snprintf(text, sizeof text, "after '%s' base '%s' arm '%s'", r->difference[d].context,
                     r->difference[d].base_text, r->difference[d].arm_text);
        d += differs;
        pl_junit_add(&j, "plumb ab", name, differs ? PL_JUNIT_FAILURE : PL_JUNIT_PASS, text, -1);
    }
    pl_junit_finish(&j, "plumb ab", out);
}
