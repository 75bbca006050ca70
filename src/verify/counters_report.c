/* counters_report - the counter gate's findings and its table of differences. */
#include <math.h>
#include <string.h>

#include "verify/counters.h"
#include "verify/junit.h"

/* Why two counts of this series may differ, or may not. */
static const char *meaning(const struct pl_counters_report *r, const char *key, double base, double arm) {
    if (strstr(key, "_seconds") != NULL) return "time: noise, or speed (measure it with plumb bench)";
    if (pl_series_named(key, "plumb_kernel_declined_total"))
        return base > 0 && arm > 0 ? "declined on both" : "declined on one side";
    if (pl_series_named(key, "plumb_kernel_launches_total")) {
        if (base <= 0) return "only the arm took this kernel";
        if (arm <= 0) return "only the base took this kernel";
        double x = r->base.steps > 0 ? base / r->base.steps : 0, y = r->arm.steps > 0 ? arm / r->arm.steps : 0;
        return y >= 2 * x   ? "twice as often or more in a step of the arm"
               : x >= 2 * y ? "twice as often or more in a step of the base"
                            : "follows the number of steps";
    }
    if (strstr(key, "step_") != NULL || strstr(key, "steps_") != NULL || strstr(key, "phase_") != NULL ||
        strstr(key, "kernel_bytes") != NULL)
        return "how requests fell into steps";
    if (strstr(key, "http_") != NULL) return "the gate's own questions";
    return "";
}

/* Launches of operations, declines, merges, steps: not every bucket of every histogram. */
static bool is_shown(const char *key) {
    static const char *const names[] = {
        "plumb_kernel_launches_total",  "plumb_kernel_declined_total",   "plumb_steps_total",
        "plumb_generated_tokens_total", "plumb_prompt_tokens_total",     "plumb_preemptions_total",
        "plumb_requests_failed_total",  "plumb_prefix_tokens_hit_total", "plumb_step_sequences_sum"};
    for (size_t i = 0; i < PL_COUNT_OF(names); i++)
        if (pl_series_named(key, names[i])) return true;
    return strstr(key, "merge") != NULL || strstr(key, "outcome") != NULL || strstr(key, "chunk") != NULL;
}

struct row {
    const char *key;
    bool in_base, in_arm;
    double base, arm;
};

/* Series of both sides in order; false at the end. */
static bool next_row(const struct pl_counters_report *r, size_t *i, size_t *k, struct row *out) {
    const struct pl_metrics *a = &r->base.after, *b = &r->arm.after;
    if (*i >= a->count && *k >= b->count) return false;
    int order = *i >= a->count ? 1 : *k >= b->count ? -1 : strcmp(a->series[*i].key, b->series[*k].key);
    *out = (struct row){.key = order <= 0 ? a->series[*i].key : b->series[*k].key};
    if (order <= 0) out->in_base = pl_metrics_delta(&r->base.before, a, out->key, &out->base);
    if (order >= 0) out->in_arm = pl_metrics_delta(&r->arm.before, b, out->key, &out->arm);
    *i += order <= 0;
    *k += order >= 0;
    return true;
}

static json_t *side_json(const struct pl_counters_side *s) {
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:o, s:f}", "is", s->url, "backend", s->backend,
                     "metrics_status", (json_int_t)s->metrics_status, "requests", (json_int_t)s->asked, "requests_failed",
                     (json_int_t)s->failed, "steps", s->steps, "steps_batched", s->batched_steps, "fused_launches",
                     s->launches, "gathered_launches", s->gathered, "declined", s->declined, "merges",
                     s->can_merge ? json_real(s->merges) : json_null(), "tokens", s->tokens);
}

json_t *pl_counters_json(const struct pl_counters_options *o, const struct pl_counters_report *r) {
    json_t *reasons = json_array(), *differences = json_array(), *table = json_array();
    for (size_t i = 0; i < r->finding_count; i++)
        json_array_append_new(r->finding[i].doubt ? reasons : differences,
                              json_stringn(r->finding[i].text, strlen(r->finding[i].text)));
    struct row row;
    for (size_t i = 0, k = 0; next_row(r, &i, &k, &row);) {
        if (!is_shown(row.key) || (row.base == row.arm && row.in_base == row.in_arm)) continue;
        json_array_append_new(table, json_pack("{s:s, s:o, s:o, s:s}", "series", row.key, "base",
                                               row.in_base ? json_real(row.base) : json_null(), "arm",
                                               row.in_arm ? json_real(row.arm) : json_null(), "why",
                                               meaning(r, row.key, row.base, row.arm)));
    }
    return json_pack("{s:s, s:s, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o}", "schema", "plumb-ab-counters-1", "verdict",
                     pl_ab_verdict_name(r->verdict), "exit_code", (int)r->verdict, "concurrency", (int)o->concurrency, "n",
                     (int)o->n, "reasons", reasons, "differences", differences, "base", side_json(&r->base), "arm",
                     side_json(&r->arm), "table", table);
}

static void side_markdown(const char *name, const struct pl_counters_side *s, struct pl_buf *out) {
    pl_buf_printf(out, "| %s | `%s` | %s | %zu | %.0f | %.0f | %.0f | %.0f | %.0f | ", name, s->url,
                  s->backend[0] != '\0' ? s->backend : "not said", s->asked, s->tokens, s->steps, s->batched_steps,
                  s->launches, s->gathered);
    if (s->can_merge)
        pl_buf_printf(out, "%.0f | %.0f |\n", s->merges, s->declined);
    else
        pl_buf_printf(out, "not counted | %.0f |\n", s->declined);
}

static void cell(bool there, double v, struct pl_buf *out) {
    if (there)
        pl_buf_printf(out, " %.10g |", v);
    else
        pl_buf_add_c(out, " absent |");
}

void pl_counters_markdown(const struct pl_counters_options *o, const struct pl_counters_report *r, struct pl_buf *out) {
    pl_buf_printf(out, "# Counters: %s\n\n%zu requests of %u tokens at each side, %u at a time, then one alone.\n\n",
                  pl_ab_verdict_name(r->verdict), o->prompt_count * o->rounds, o->n, o->concurrency);
    pl_buf_add_c(
        out, "| side | what | backend | requests | tokens | steps | with 2+ sequences | fused launches | gathered | merges "
             "| declined |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
    side_markdown("base", &r->base, out);
    side_markdown("arm", &r->arm, out);
    for (int doubt = 1; doubt >= 0; doubt--) {
        bool first = true;
        for (size_t i = 0; i < r->finding_count; i++) {
            if (r->finding[i].doubt != (doubt != 0)) continue;
            if (first) pl_buf_add_c(out, doubt ? "\n## Why nothing can be concluded\n\n" : "\n## Differences\n\n");
            first = false;
            pl_buf_printf(out, "- %s\n", r->finding[i].text);
        }
    }
    struct row row;
    bool first = true;
    for (size_t i = 0, k = 0; next_row(r, &i, &k, &row);) {
        if (!is_shown(row.key) || (row.base == row.arm && row.in_base == row.in_arm)) continue;
        if (first) pl_buf_add_c(out, "\n## Counters that differ\n\n| series | base | arm | why |\n|---|---|---|---|\n");
        first = false;
        pl_buf_printf(out, "| `%s` |", row.key);
        cell(row.in_base, row.base, out);
        cell(row.in_arm, row.arm, out);
        pl_buf_printf(out, " %s |\n", meaning(r, row.key, row.base, row.arm));
    }
}

/* One case for the verdict, and one for each finding. */
void pl_counters_junit(const struct pl_counters_report *r, struct pl_buf *out) {
    struct pl_junit j = {0};
    enum pl_junit_verdict v = r->verdict == PL_AB_EQUAL     ? PL_JUNIT_PASS
                              : r->verdict == PL_AB_DIFFERS ? PL_JUNIT_FAILURE
                                                            : PL_JUNIT_ERROR;
    char name[64];
    pl_junit_add(&j, "plumb ab --counters", "verdict", v, r->finding_count > 0 ? r->finding[0].text : "", -1);
    for (size_t i = 0; i < r->finding_count; i++) {
        snprintf(name, sizeof name, "finding %zu", i + 1);
        pl_junit_add(&j, "plumb ab --counters", name, r->finding[i].doubt ? PL_JUNIT_ERROR : PL_JUNIT_FAILURE,
                     r->finding[i].text, -1);
    }
    pl_junit_finish(&j, "plumb ab --counters", out);
}
