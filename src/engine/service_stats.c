/* service_stats.c - what the service counts: steps, phases, kernels, and the witness of every request. */
#include <string.h>

#include "base/mem.h"
#include "engine/service_internal.h"

const char *const pl_phase_names[3] = {"decode", "prefill", "mixed"};
const uint32_t pl_time_bucket_ms[PL_TIME_BUCKETS - 1] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 30000};

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
}

static void smooth(double *mean, double value) { *mean = *mean == 0 ? value : *mean + (value - *mean) * 0.2; }

enum phase { DECODE, PREFILL, MIXED };

/* How many prompt rows may share a step with running sequences, from what steps took until now. Which rows share a step
 * changes no result, only when it comes. */
static void bound_gap(struct pl_service *s, enum phase phase, uint32_t rows, uint64_t ns) {
    enum { LEAST = 16 };
    if (s->gap_ns == 0) return;
    if (phase == DECODE) smooth(&s->decode_ns, (double)ns);
    if (phase != DECODE && rows >= LEAST) smooth(&s->row_ns, (double)ns / rows);
    if (s->row_ns == 0) return;
    double wanted = PL_MAX((double)s->gap_ns, 2 * s->decode_ns) / s->row_ns;
    pl_sched_limit_mixed(s->sched, wanted < LEAST ? LEAST : wanted > 65536 ? 65536 : (uint32_t)wanted);
}

void service_count_step(struct pl_service *s, const struct pl_sched_plan *p, uint64_t ns) {
    uint32_t decoding = 0;
    uint64_t bytes = take_kernels(s);
    take_attention(s);
    for (uint32_t i = 0; i < p->item_count; i++) {
        const struct request *r = s->item_request[i];
        bool prompt = p->items[i].first < r->prompt;
        decoding += p->items[i].count == 1 && !prompt;
        if (prompt) s->info.tokens_prefilled += p->items[i].count;
        witness(s, r->witness, p->item_count, prompt);
    }
    enum phase phase = decoding == p->item_count ? DECODE : decoding == 0 ? PREFILL : MIXED;
    s->info.batch_histogram[power_bucket(p->item_count, 15)]++;
    s->info.batch_sum += p->item_count;
    s->info.rows_histogram[power_bucket(p->rows, 16)]++;
    s->info.rows_sum += p->rows;
    uint32_t waiting = pl_sched_waiting(s->sched);
    s->info.waiting_histogram[waiting == 0 ? 0 : PL_MIN(power_bucket(waiting, 15) + 1, 16u)]++;
    s->info.waiting_sum += waiting;
    s->info.step_histogram[pl_time_bucket(ns)]++;
    s->info.step_ns_total += ns;
    struct pl_phase_stats *f = &s->info.phase[phase];
    *f = (struct pl_phase_stats){f->steps + 1, f->ns + ns, f->rows + p->rows, f->bytes + bytes};
    bound_gap(s, phase, p->rows, ns);
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
    out->invariant = pl_ops_invariant(s->engine->ops);
    out->poisoned = s->poisoned;
    out->poison = s->poison;
    out->steps = st.steps;
    out->finished = st.finished;
    out->cancelled = st.cancelled;
    out->preempted = st.preempted;
    if (s->tree != NULL) {
        struct pl_prefix_stats p = pl_prefix_stats(s->tree);
        out->pages_cached = pl_prefix_pages(s->tree);
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
