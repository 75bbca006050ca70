/* metrics.c - /metrics in the Prometheus text format. Names are documented in docs/server.md and stay. */
#include "serve/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"

static void head(struct pl_buf *b, const char *name, const char *type, const char *help) {
    pl_buf_printf(b, "# HELP plumb_%s %s\n# TYPE plumb_%s %s\n", name, help, name, type);
}

static void metric(struct pl_buf *b, const char *name, const char *type, const char *help, double value) {
    head(b, name, type, help);
    pl_buf_printf(b, "plumb_%s %.17g\n", name, value);
}

static void label(struct pl_buf *b, const char *text) {
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') pl_buf_add_char(b, '\\');
        pl_buf_add_char(b, *text == '\n' ? ' ' : *text);
    }
}

static void histogram_end(struct pl_buf *b, const char *name, uint64_t total, double sum) {
    pl_buf_printf(b, "plumb_%s_bucket{le=\"+Inf\"} %" PRIu64 "\nplumb_%s_sum %.9g\nplumb_%s_count %" PRIu64 "\n", name,
                  total, name, sum, name, total);
}

static void seconds(struct pl_buf *b, const char *name, const char *help, const uint64_t bucket[PL_TIME_BUCKETS],
                    uint64_t sum_ns) {
    uint64_t total = 0;
    head(b, name, "histogram", help);
    for (size_t i = 0; i < PL_TIME_BUCKETS - 1; i++) {
        total += bucket[i];
        pl_buf_printf(b, "plumb_%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, pl_time_bucket_ms[i] * 1e-3, total);
    }
    histogram_end(b, name, total + bucket[PL_TIME_BUCKETS - 1], (double)sum_ns * 1e-9);
}

static void time_metric(struct pl_buf *b, const char *name, const char *help, struct time_count *t) {
    uint64_t bucket[PL_TIME_BUCKETS];
    for (size_t i = 0; i < PL_TIME_BUCKETS; i++) bucket[i] = t->bucket[i];
    seconds(b, name, help, bucket, t->sum_ns);
}

/* Buckets 1, 2, 4, 8, ... */
/* Upper bounds 1, 2, 4, ..; zero: the first bucket is that of 0. */
static void powers(struct pl_buf *b, const char *name, const char *help, const uint64_t *bucket, uint32_t count, bool zero,
                   uint64_t sum) {
    uint64_t total = 0;
    head(b, name, "histogram", help);
    if (zero) {
        total = *bucket++;
        count--;
        pl_buf_printf(b, "plumb_%s_bucket{le=\"0\"} %" PRIu64 "\n", name, total);
    }
    for (uint32_t i = 0; i < count; i++) {
        total += bucket[i];
        pl_buf_printf(b, "plumb_%s_bucket{le=\"%u\"} %" PRIu64 "\n", name, 1u << i, total);
    }
    histogram_end(b, name, total, (double)sum);
}

static void kernel_row(struct pl_buf *b, const char *name, const struct pl_ops_launches *l, uint64_t value) {
    pl_buf_printf(b, "plumb_%s{op=\"%s\",kernel=\"", name, l->op);
    label(b, l->kernel);
    pl_buf_printf(b, "\"} %" PRIu64 "\n", value);
}

/* A choice that did not end as planned; each reason is a series of its own. */
static void declined_row(struct pl_buf *b, const struct pl_ops_decision *d) {
    pl_buf_printf(b, "plumb_kernel_declined_total{op=\"%s\",planned=\"%s\",taken=\"%s\",reason=\"", d->op, d->planned,
                  d->taken);
    label(b, d->reason);
    pl_buf_printf(b, "\"} %" PRIu64 "\n", d->count);
}

/* Every kernel that ran, by operation and name: the witness as counters; and what was declined, by reason. */
static void kernels(struct pl_buf *b, struct pl_service *service) {
    struct pl_ops_launches list[PL_SERVICE_KERNELS_MAX];
    struct pl_ops_decision decided[PL_SERVICE_DECISIONS_MAX];
    size_t n = PL_MIN(pl_service_witness(service, list, PL_COUNT_OF(list)), PL_COUNT_OF(list)),
           d = PL_MIN(pl_service_decisions(service, decided, PL_COUNT_OF(decided)), PL_COUNT_OF(decided));
    head(b, "kernel_launches_total", "counter", "Launches by operation and kernel.");
    for (size_t i = 0; i < n; i++) kernel_row(b, "kernel_launches_total", &list[i], list[i].launches);
    head(b, "kernel_bytes_total", "counter", "Least bytes that the launches moved, where the operation knows.");
    for (size_t i = 0; i < n; i++)
        if (list[i].bytes > 0) kernel_row(b, "kernel_bytes_total", &list[i], list[i].bytes);
    head(b, "kernel_declined_total", "counter",
         "Times the planned kernel did not run, by operation, plan, what ran instead (empty: nothing) and reason.");
    for (size_t i = 0; i < d; i++)
        if (strcmp(decided[i].outcome, "chosen") != 0) declined_row(b, &decided[i]);
}

static void form_rows(struct pl_buf *b, const char *name, const char *key, const struct pl_ops_attention *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        pl_buf_printf(b, "plumb_%s{%s=\"%s\",reason=\"", name, key, list[i].form);
        label(b, list[i].reason);
        pl_buf_printf(b, "\"} %" PRIu64 "\n", list[i].layer_steps);
    }
}

/* Layer steps of attention: the sum over forms is steps x layers. */
static void attention(struct pl_buf *b, struct pl_service *service) {
    struct pl_service_attention a;
    pl_service_attention(service, &a);
    const struct pl_ops_attention_totals *t = &a.totals;
    head(b, "attention_layer_steps_total", "counter", "Layer steps by form of attention and why it was not another.");
    form_rows(b, "attention_layer_steps_total", "form", a.forms, a.form_count);
    head(b, "attention_cascade_layer_steps_total", "counter", "Planned layer steps that shared pages, or why not.");
    form_rows(b, "attention_cascade_layer_steps_total", "outcome", a.cascade, a.cascade_count);
    metric(b, "attention_steps_total", "counter", "Steps of the model.", (double)t->steps);
    metric(b, "attention_plans_total", "counter", "Plans made.", (double)t->plans);
    metric(b, "attention_plans_reused_total", "counter", "Of them those whose page lists were kept.",
           (double)t->plans_reused);
    metric(b, "attention_chunks_total", "counter", "Chunks, summed over layer steps.", (double)t->chunks);
    metric(b, "attention_merged_rows_total", "counter", "Rows merged from parts, summed over layer steps.",
           (double)t->merged_rows);
    metric(b, "attention_cascade_members_total", "counter", "Rows that shared pages, summed over layer steps.",
           (double)t->cascade_members);
    metric(b, "attention_cascade_tokens_saved_total", "counter", "Cached tokens not read again, summed over layer steps.",
           (double)t->cascade_tokens_saved);
    metric(b, "attention_gathered_bytes_total", "counter", "Bytes of pages copied for dense attention.",
           (double)t->gathered_bytes);
    metric(b, "attention_value_rows_total", "counter", "With sparse values: values of a token and KV head that were due.",
           (double)t->value_rows);
    metric(b, "attention_value_rows_skipped_total", "counter", "Of them those whose weight was below the bound.",
           (double)t->value_rows_skipped);
}

static void requests(struct pl_buf *b, const struct pl_service_info *n, struct server_counts *c) {
    static const char *const outcomes[] = {"stop", "length", "cancelled", "failed"};
    metric(b, "requests_total", "counter", "Sequences accepted.", (double)n->requests);
    head(b, "requests_ended_total", "counter", "Sequences that ended, by outcome.");
    for (size_t i = 0; i < PL_COUNT_OF(outcomes); i++)
        pl_buf_printf(b, "plumb_requests_ended_total{outcome=\"%s\"} %" PRIu64 "\n", outcomes[i], (uint64_t)c->ended[i]);
    metric(b, "requests_finished_total", "counter", "Sequences that ran to their end.", (double)n->finished);
    metric(b, "requests_cancelled_total", "counter", "Sequences ended by their client or a stop string.",
           (double)n->cancelled);
    metric(b, "requests_failed_total", "counter", "Sequences that ended with an error.", (double)n->failed);
    metric(b, "requests_refused_total", "counter", "Sequences refused because no place was free.", (double)n->refused);
    metric(b, "preemptions_total", "counter", "Sequences that gave their pages up and were computed again.",
           (double)n->preempted);
    metric(b, "requests_running", "gauge", "Sequences that own pages.", n->running);
    metric(b, "requests_waiting", "gauge", "Sequences in the queue.", n->waiting);
    metric(b, "parallel_max", "gauge", "Sequences that may run together.", n->max_running);
}

/* Of the bytes that memory could have given in the time, how many moved. Without a ceiling there is no such number. */
static void ceiling(struct pl_buf *b, const struct pl_service_info *n, float gbs) {
    if (!(gbs > 0)) return;
    head(b, "phase_ceiling_ratio", "gauge",
         "Bytes that steps moved over what --ceiling-gbs would have moved in their time.");
    for (size_t i = 0; i < 3; i++)
        if (n->phase[i].ns > 0)
            pl_buf_printf(b, "plumb_phase_ceiling_ratio{phase=\"%s\"} %.4g\n", pl_phase_names[i],
                          (double)n->phase[i].bytes / (double)n->phase[i].ns / (double)gbs);
}

static void by_place(struct pl_buf *b, const char *name, const uint64_t *count) {
    for (int p = 0; p < PL_CHOICE_PLACES; p++)
        if (count[p] > 0)
            pl_buf_printf(b, "plumb_%s{place=\"%s\",reason=\"%s\"} %" PRIu64 "\n", name,
                          p == PL_CHOICE_DEVICE ? "device" : "host",
                          p == PL_CHOICE_DEVICE ? "" : pl_choice_place_name((enum pl_choice_place)p), count[p]);
}

static void choices(struct pl_buf *b, const struct pl_service_info *n) {
    head(b, "choices_total", "counter", "Rows of logits, by where they were used, and why not on the device.");
    by_place(b, "choices_total", n->choices);
    metric(b, "steps_ahead_total", "counter", "Steps launched before the last one's tokens were read.",
           (double)n->steps_ahead);
    metric(b, "steps_late_total", "counter",
           "Of them those launched when the last one was done: the device had nothing to do.", (double)n->steps_late);
    head(b, "steps_waited_total", "counter", "Steps read before the next was planned, and why.");
    by_place(b, "steps_waited_total", n->steps_waited);
    metric(b, "unconverged_draws_total", "counter", "Rows drawn in too many rounds, which got their largest token.",
           (double)n->unconverged);
    metric(b, "surplus_rows_total", "counter", "Rows launched ahead for sequences that had ended.", (double)n->surplus_rows);
}

static void steps(struct pl_buf *b, const struct pl_service_info *n) {
    metric(b, "steps_total", "counter", "Steps of the engine.", (double)n->steps);
    seconds(b, "step_duration_seconds", "Duration of a step.", n->step_histogram, n->step_ns_total);
    powers(b, "step_sequences", "Sequences in one step.", n->batch_histogram, 16, false, n->batch_sum);
    powers(b, "step_rows", "Tokens computed in one step.", n->rows_histogram, 17, false, n->rows_sum);
    powers(b, "step_waiting", "Requests that waited while a step ran.", n->waiting_histogram, 17, true, n->waiting_sum);
    head(b, "engine_seconds_total", "counter",
         "Time of the engine thread: planning steps, launching them, waiting for their tokens, taking those, idle.");
    for (size_t i = 0; i < PL_HOST_PARTS; i++)
        pl_buf_printf(b, "plumb_engine_seconds_total{part=\"%s\"} %.9g\n", pl_host_part_names[i],
                      (double)n->host_ns[i] * 1e-9);
    metric(b, "graphs_replayed_total", "counter", "Collected launches that ran as a graph of the device.",
           (double)n->graphs.replayed);
    metric(b, "graphs_made_total", "counter", "Graphs made, when the same launches came a second time.",
           (double)n->graphs.made);
    metric(b, "graphs_made_seconds_total", "counter", "Time that making them took.", (double)n->graphs.made_ns * 1e-9);
    metric(b, "graphs_once_total", "counter", "Collected launches that were new and ran one by one.",
           (double)n->graphs.once);
    head(b, "phase_seconds_total", "counter", "Time of steps that only decode, only prefill, or do both.");
    for (size_t i = 0; i < 3; i++)
        pl_buf_printf(b, "plumb_phase_seconds_total{phase=\"%s\"} %.9g\n", pl_phase_names[i], (double)n->phase[i].ns * 1e-9);
    head(b, "phase_steps_total", "counter", "How many steps those were.");
    for (size_t i = 0; i < 3; i++)
        pl_buf_printf(b, "plumb_phase_steps_total{phase=\"%s\"} %" PRIu64 "\n", pl_phase_names[i], n->phase[i].steps);
    head(b, "phase_rows_total", "counter", "Tokens computed in those steps.");
    for (size_t i = 0; i < 3; i++)
        pl_buf_printf(b, "plumb_phase_rows_total{phase=\"%s\"} %" PRIu64 "\n", pl_phase_names[i], n->phase[i].rows);
    head(b, "phase_bytes_total", "counter", "Least bytes that those steps moved.");
    for (size_t i = 0; i < 3; i++)
        pl_buf_printf(b, "plumb_phase_bytes_total{phase=\"%s\"} %" PRIu64 "\n", pl_phase_names[i], n->phase[i].bytes);
}

static void tokens_and_pages(struct pl_buf *b, const struct pl_service_info *n) {
    metric(b, "prompt_tokens_total", "counter", "Prompt tokens computed.", (double)n->tokens_prefilled);
    metric(b, "generated_tokens_total", "counter", "Tokens generated.", (double)n->tokens_generated);
    metric(b, "prefix_tokens_asked_total", "counter", "Prompt tokens looked up in the prefix cache.",
           (double)n->prefix_tokens_asked);
    metric(b, "prefix_tokens_hit_total", "counter", "Prompt tokens found in the prefix cache.",
           (double)n->prefix_tokens_adopted);
    metric(b, "prefix_declined_total", "counter",
           "Requests that could not begin with all pages known to them: no recurrent state or window was kept there.",
           (double)n->prefix_declined);
    metric(b, "states_kept_total", "counter", "Copies of recurrent state made for the prefix cache.",
           (double)n->states_kept);
    metric(b, "states_restored_total", "counter", "Requests that began with such a copy.", (double)n->states_restored);
    metric(b, "kv_pages", "gauge", "Pages of the KV cache.", n->page_count);
    metric(b, "kv_pages_free", "gauge", "Pages nobody refers to.", n->pages_free);
    metric(b, "kv_pages_cached", "gauge", "Pages kept by the prefix cache.", n->pages_cached);
    metric(b, "kv_window_pages", "gauge", "Pages of layers with a sliding window, where they have their own.",
           n->window_pages);
    metric(b, "kv_window_pages_free", "gauge", "Of them those nobody refers to.", n->window_pages_free);
    metric(b, "kv_window_pages_cached", "gauge", "Of them those kept by the prefix cache.", n->window_pages_cached);
    metric(b, "kv_page_tokens", "gauge", "Tokens of a page.", n->page_tokens);
}

static void http(struct pl_buf *b, struct server_counts *c) {
    time_metric(b, "time_to_first_token_seconds", "From the request's arrival to its first token.", &c->ttft);
    time_metric(b, "inter_token_seconds", "Between two tokens of one sequence.", &c->gap);
    time_metric(b, "queue_seconds", "From a sequence's arrival to its admission.", &c->queue);
    metric(b, "http_requests_total", "counter", "HTTP requests.", (double)c->http_requests);
    metric(b, "http_streams_total", "counter", "Answers that were streamed.", (double)c->streams);
    metric(b, "http_client_errors_total", "counter", "HTTP answers with a 4xx status.", (double)c->http_4xx);
    metric(b, "http_server_errors_total", "counter", "HTTP answers with a 5xx status.", (double)c->http_5xx);
    metric(b, "http_disconnects_total", "counter", "Connections that ended before their answer did.",
           (double)c->disconnects);
    metric(b, "log_lines_lost_total", "counter", "Lines of the access log that could not be written.", (double)c->log_lost);
}

enum MHD_Result handle_metrics(struct exchange *x) {
    struct pl_server *s = x->server;
    if (!s->opt.metrics || pl_fault("metrics-off"))
        return answer_error(x, 501, "not_supported_error", NULL,
                            "metrics are switched off: start the server with --metrics (this is no zero)");
    struct pl_service_info n;
    pl_service_info(s->service, &n);
    struct pl_buf b = {0};
    head(&b, "info", "gauge", "The process.");
    pl_buf_add_c(&b, "plumb_info{version=\"" PLUMB_VERSION "\",backend=\"");
    label(&b, pl_ops_describe(s->engine->ops));
    pl_buf_add_c(&b, "\",model=\"");
    label(&b, s->model_name);
    pl_buf_add_c(&b, "\"} 1\n");
    metric(&b, "start_time_seconds", "gauge", "When the process began to serve, Unix time.", (double)s->started_unix);
    metric(&b, "device_failed", "gauge", "1 when the device has failed and nothing runs any more.", n.poisoned);
    requests(&b, &n, &s->counts);
    steps(&b, &n);
    choices(&b, &n);
    ceiling(&b, &n, s->opt.ceiling_gbs);
    tokens_and_pages(&b, &n);
    http(&b, &s->counts);
    kernels(&b, s->service);
    attention(&b, s->service);
    enum MHD_Result r = pl_buf_ok(&b) ? answer_bytes(x, 200, "text/plain; version=0.0.4; charset=utf-8", b.data, b.len)
                                      : answer_error(x, 503, NULL, NULL, "no memory for the answer");
    pl_buf_deinit(&b);
    return r;
}
