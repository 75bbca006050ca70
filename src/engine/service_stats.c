/* service_stats.c - what the service counts: steps, phases, kernels, and the witness of every request. */
#include <string.h>

#include "base/mem.h"
#include "engine/service_internal.h"

const char *const pl_phase_names[3] = {"decode", "prefill", "mixed"};
const uint32_t pl_time_bucket_ms[PL_TIME_BUCKETS - 1] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 30000};

const char *const pl_host_part_names[PL_HOST_PARTS] = {"plan", "launch", "wait", "take", "idle"};

void service_enter(struct pl_service *s, enum pl_host_part part) {
    uint64_t now = pl_clock_ns();
    if (s->part_since != 0) s->part_ns[s->part] += now - s->part_since;
    s->part_since = now;
    s->part = part;
}

uint32_t pl_time_bucket(uint64_t ns) {
    uint32_t i = 0;
    while (i < PL_TIME_BUCKETS - 1 && ns > (uint64_t)pl_time_bucket_ms[i] * 1000000u) i++;
    return i;
}

static uint32_t power_bucket(uint32_t n, uint32_t last) {
    uint32_t i = 0;
    while (i < last && (1u << i) < n) i++;
    return i;
}

/* Launches of this step alone, into fresh[].launches; kernels keeps the totals. Returns the bytes they moved. */
static uint64_t take_kernels(struct pl_service *s) {
    size_t n = PL_MIN(pl_ops_witness(s->engine->ops, s->fresh, PL_SERVICE_KERNELS_MAX), (size_t)PL_SERVICE_KERNELS_MAX);
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        struct pl_ops_launches now = s->fresh[i], before = {0};
        if (i < s->kernel_count) before = s->kernels[i];
        s->kernels[i] = now;
        s->fresh[i].launches = now.launches - before.launches;
        bytes += now.bytes - before.bytes;
    }
    s->kernel_count = n;
    return bytes;
}

static void take_decisions(struct pl_service *s) {
    uint64_t before[PL_SERVICE_DECISIONS_MAX] = {0};
    for (size_t i = 0; i < s->decision_count; i++) before[i] = s->decisions[i].count;
    size_t n = pl_ops_decisions(s->engine->ops, s->decisions, PL_SERVICE_DECISIONS_MAX);
    s->decision_count = PL_MIN(n, (size_t)PL_SERVICE_DECISIONS_MAX);
    for (size_t i = 0; i < s->decision_count; i++) s->ended[i] = s->decisions[i].count - before[i];
}

static void take_attention(struct pl_service *s) {
    const struct pl_ops *ops = s->engine->ops;
    struct pl_service_attention *a = &s->attention;
    a->form_count = PL_MIN(pl_ops_attention_rows(ops, a->forms, PL_SERVICE_FORMS_MAX), (size_t)PL_SERVICE_FORMS_MAX);
    a->cascade_count = PL_MIN(pl_ops_cascade_rows(ops, a->cascade, PL_SERVICE_FORMS_MAX), (size_t)PL_SERVICE_FORMS_MAX);
    pl_ops_attention_totals(ops, &a->totals);
}

void pl_service_attention(struct pl_service *s, struct pl_service_attention *out) {
    pthread_mutex_lock(&s->lock);
    *out = s->attention;
    pthread_mutex_unlock(&s->lock);
}

static void witness(const struct pl_service *s, struct pl_request_witness *w, uint32_t sequences, bool prompt) {
    if (w == NULL) return;
    w->steps++;
    w->prompt_steps += prompt;
    w->batch_sum += sequences;
    w->batch_max = PL_MAX(w->batch_max, sequences);
    w->batch_min = w->batch_min == 0 ? sequences : PL_MIN(w->batch_min, sequences);
    for (size_t i = 0; i < s->kernel_count; i++) w->launches[i] += s->fresh[i].launches;
    for (size_t i = 0; i < s->decision_count; i++) w->ended[i] += s->ended[i];
}

static void smooth(double *mean, double value) { *mean = *mean == 0 ? value : *mean + (value - *mean) * 0.2; }

enum phase { DECODE, PREFILL, MIXED };

/* Products take rows in tiles: full ones cost no more than begun ones, and few sizes mean few plans. */
static uint32_t even(uint32_t rows) { return rows >= 512 ? rows / 128 * 128 : rows >= 128 ? rows / 32 * 32 : rows; }

/* How many rows a step with running sequences may have, from what steps took until now: it takes about as long as five that
 * only decode, between the two bounds. Which rows share a step changes no result, only when it comes. */
static void bound_gap(struct pl_service *s, const struct flight *f, enum phase phase, uint64_t ns) {
    enum { LEAST = 16 };
    if (s->gap_ns == 0) return;
    if (phase == DECODE) smooth(&s->decode_ns, (double)ns);
    if (phase != DECODE && f->rows >= LEAST) pl_pace_note(&s->pace, f->rows, ns);
    double gap = PL_MIN(PL_MAX(5 * s->decode_ns, (double)s->gap_least_ns), (double)s->gap_ns);
    uint32_t rows = even(pl_pace_rows(&s->pace, PL_MAX(gap, 2 * s->decode_ns)));
    if (rows > 0) pl_sched_limit_mixed(s->sched, PL_MAX(rows, f->decoding + LEAST));
}

void service_count_launch(struct pl_service *s, struct flight *f) {
    f->bytes = take_kernels(s);
    take_decisions(s);
    take_attention(s);
    for (uint32_t i = 0; i < f->items; i++) {
        const struct request *r = f->request[i];
        bool prompt = f->item[i].first < r->prompt;
        if (prompt) s->info.tokens_prefilled += f->item[i].count;
        witness(s, r->witness, f->items, prompt);
    }
    for (uint32_t row = 0; row < f->item_logit[f->items]; row++) s->info.choices[f->place[row]]++;
}

void service_count_step(struct pl_service *s, const struct flight *f, uint64_t ns) {
    enum phase phase = f->decoding == f->items ? DECODE : f->decoding == 0 ? PREFILL : MIXED;
    s->info.batch_histogram[power_bucket(f->items, 15)]++;
    s->info.batch_sum += f->items;
    s->info.rows_histogram[power_bucket(f->rows, 16)]++;
    s->info.rows_sum += f->rows;
    uint32_t waiting = pl_sched_waiting(s->sched);
    s->info.waiting_histogram[waiting == 0 ? 0 : PL_MIN(power_bucket(waiting, 15) + 1, 16u)]++;
    s->info.waiting_sum += waiting;
    s->info.step_histogram[pl_time_bucket(ns)]++;
    s->info.step_ns_total += ns;
    s->info.unconverged = pl_ops_unconverged(s->engine->ops);
    s->info.graphs = pl_ops_graphs(s->engine->ops);
    memcpy(s->info.host_ns, s->part_ns, sizeof s->info.host_ns);
    struct pl_phase_stats *p = &s->info.phase[phase];
    *p = (struct pl_phase_stats){p->steps + 1, p->ns + ns, p->rows + f->rows, p->bytes + f->bytes};
    bound_gap(s, f, phase, ns);
}

void pl_service_info(struct pl_service *s, struct pl_service_info *out) {
    pthread_mutex_lock(&s->lock);
    *out = s->info;
    struct pl_sched_stats st = pl_sched_stats(s->sched);
    out->running = pl_sched_running(s->sched);
    out->waiting = pl_sched_waiting(s->sched);
    out->max_running = s->config.max_running;
    out->page_count = s->engine->pages.page_count;
    out->page_tokens = s->engine->pages.page_tokens;
    out->pages_free = s->engine->pages.free_count;
    out->window_pages = s->engine->window_pages.page_count;
    out->window_pages_free = s->engine->window_pages.free_count;
    out->invariant = pl_ops_invariant(s->engine->ops);
    out->poisoned = s->poisoned;
    out->poison = s->poison;
    out->steps = st.steps;
    out->finished = st.finished;
    out->cancelled = st.cancelled;
    out->preempted = st.preempted;
    if (s->tree != NULL) {
        struct pl_prefix_stats p = pl_prefix_stats(s->tree);
        out->pages_cached = pl_prefix_pages(s->tree, PL_PAGES_FULL);
        out->window_pages_cached = pl_prefix_pages(s->tree, PL_PAGES_WINDOWED);
        out->prefix_tokens_asked = p.tokens_asked;
        out->prefix_tokens_adopted = p.tokens_adopted;
    }
    pthread_mutex_unlock(&s->lock);
}

size_t pl_service_witness(struct pl_service *s, struct pl_ops_launches *out, size_t cap) {
    pthread_mutex_lock(&s->lock);
    size_t count = s->kernel_count, n = PL_MIN(PL_MIN(count, cap), (size_t)PL_SERVICE_KERNELS_MAX);
    if (n > 0) memcpy(out, s->kernels, n * sizeof *out);
    pthread_mutex_unlock(&s->lock);
    return count;
}

size_t pl_service_decisions(struct pl_service *s, struct pl_ops_decision *out, size_t cap) {
    pthread_mutex_lock(&s->lock);
    size_t count = s->decision_count, n = PL_MIN(count, cap);
    if (n > 0) memcpy(out, s->decisions, n * sizeof *out);
    pthread_mutex_unlock(&s->lock);
    return count;
}
