#include "cmd/bench_parallel.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/philox.h"
#include "engine/service.h"

struct run {
    pthread_mutex_t lock;
    pthread_cond_t done;
    uint32_t sequences, begun, ended, failed;
    uint64_t start_ns, all_begun_ns, end_ns, tokens_after, tokens_full,
        full_ns;       /* full: while all run, and its last token */
    uint64_t *last_ns; /* [sequences] */
    double *gaps;      /* ms, while all run */
    size_t gap_count, gap_cap;
    struct pl_err err;
    struct seq {
        struct run *run;
        uint32_t index;
    } * seqs;
};

enum pl_status pl_bench_parallel_parse(const char *list, uint32_t counts[PL_BENCH_PARALLEL_MAX], size_t *n,
                                       struct pl_err *err) {
    char item[16];
    *n = 0;
    for (const char *at = list;; at++) {
        size_t len = strcspn(at, ",");
        int64_t v;
        if (len == 0 || len >= sizeof item) PL_FAIL(err, PL_USAGE, "--parallel '%.60s': expected numbers like 1,8,64", list);
        memcpy(item, at, len);
        item[len] = '\0';
        if (!pl_parse_i64(item, 1, 1024, &v)) PL_FAIL(err, PL_USAGE, "--parallel: '%s' is no number from 1 to 1024", item);
        if (*n == PL_BENCH_PARALLEL_MAX) PL_FAIL(err, PL_USAGE, "--parallel: more than %d counts", PL_BENCH_PARALLEL_MAX);
        counts[(*n)++] = (uint32_t)v;
        at += len;
        if (*at == '\0') return PL_OK;
    }
}

/* Delivery thread. */
static void on_event(void *user, const struct pl_event *e) {
    struct seq *q = user;
    struct run *r = q->run;
    uint64_t now = pl_clock_ns();
    pthread_mutex_lock(&r->lock);
    if (e->kind == PL_EVENT_TOKEN) {
        if (r->last_ns[q->index] == 0 && ++r->begun == r->sequences) r->all_begun_ns = now;
        if (r->all_begun_ns != 0 && now > r->all_begun_ns) {
            r->tokens_after++;
            if (r->ended == 0) r->tokens_full++, r->full_ns = now;
            if (r->gap_count < r->gap_cap) r->gaps[r->gap_count++] = (double)(now - r->last_ns[q->index]) * 1e-6;
        }
        r->last_ns[q->index] = now;
    } else {
        if (e->kind == PL_EVENT_ERROR) {
            r->failed++;
            r->err = e->err;
        }
        r->end_ns = now;
        if (++r->ended == r->sequences) pthread_cond_signal(&r->done);
    }
    pthread_mutex_unlock(&r->lock);
}

static enum pl_status submit(struct pl_service *s, struct run *r, uint32_t index, uint32_t prompt, uint32_t generate,
                             uint32_t vocab, uint32_t *ids, struct pl_err *err) {
    uint64_t number;
    for (uint32_t i = 0; i < prompt; i++) {
        uint32_t c[4] = {i, index, 0, 0}, k[2] = {3, 4};
        ids[i] = pl_philox4x32(c, k).v[0] % vocab;
    }
    struct pl_service_request q = {.prompt = ids,
                                   .prompt_count = prompt,
                                   .max_tokens = generate,
                                   .ignore_eos = true,
                                   .on_event = on_event,
                                   .user = &r->seqs[index]};
    pl_sampling_default(&q.sampling);
    q.sampling.temperature = 0;
    return pl_service_submit(s, &q, &number, err);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum pl_status drive(struct pl_service *s, struct plumb_engine *e, uint32_t prompt, uint32_t generate, struct run *r,
                            uint32_t *ids, struct pl_err *err) {
    uint32_t sent = 0;
    enum pl_status st = PL_OK;
    r->start_ns = pl_clock_ns();
    for (; sent < r->sequences && st == PL_OK; sent += st == PL_OK)
        st = submit(s, r, sent, prompt, generate, e->config.vocab, ids, err);
    pthread_mutex_lock(&r->lock);
    if (st != PL_OK) r->sequences = sent; /* those that were sent still end */
    while (r->ended < r->sequences) pthread_cond_wait(&r->done, &r->lock);
    pthread_mutex_unlock(&r->lock);
    if (st != PL_OK) return st;
    if (r->failed > 0)
        PL_FAIL(err, r->err.status, "%u of %u sequences failed: %.300s", r->failed, r->sequences, r->err.text);
    return PL_OK;
}

static void summarise(struct run *r, uint32_t prompt, struct pl_bench_parallel *b) {
    double prefill_s = (double)(r->all_begun_ns - r->start_ns) * 1e-9,
           decode_s = (double)(r->end_ns - r->all_begun_ns) * 1e-9;
    b->prefill_tok_s = prefill_s > 0 ? (double)prompt * r->sequences / prefill_s : 0;
    b->decode_tok_s = decode_s > 0 ? (double)r->tokens_after / decode_s : 0;
    double full_s = (double)(r->full_ns - r->all_begun_ns) * 1e-9;
    b->full_tok_s = r->tokens_full >= 2 * r->sequences && full_s > 0 ? (double)r->tokens_full / full_s : 0;
    qsort(r->gaps, r->gap_count, sizeof *r->gaps, by_value);
    b->gap_ms_p50 = r->gap_count > 0 ? r->gaps[r->gap_count / 2] : 0;
    b->gap_ms_p99 = r->gap_count > 0 ? r->gaps[r->gap_count * 99 / 100] : 0;
    if (b->full_tok_s == 0 && r->tokens_after < r->sequences) b->decode_tok_s = 0; /* a few last ones: no speed follows */
}

/* What the first step of a shape costs once (kernels compiled, graphs made) is no part of the measurement. */
static enum pl_status warm_up(struct pl_service *s, struct plumb_engine *e, uint32_t prompt, struct run *r, uint32_t *ids,
                              struct pl_err *err) {
    enum { TOKENS = 4, SHORT = 16 };
    bool host = pl_ops_backend(e->ops) == PL_BACKEND_CPU; /* nothing there depends on the length */
    return drive(s, e, host ? PL_MIN(prompt, (uint32_t)SHORT) : prompt, TOKENS, r, ids, err);
}

static void forget(struct run *r) {
    r->begun = r->ended = r->failed = 0;
    r->start_ns = r->all_begun_ns = r->end_ns = r->tokens_after = r->tokens_full = r->full_ns = 0;
    r->gap_count = 0;
    memset(r->last_ns, 0, r->sequences * sizeof *r->last_ns);
}

/* One run. */
static enum pl_status measure(struct pl_service *s, struct plumb_engine *e, uint32_t prompt, uint32_t generate,
                              struct run *r, uint32_t *ids, struct pl_bench_parallel *b, struct pl_err *err) {
    struct pl_service_info before = {0}, after = {0};
    forget(r);
    pl_ops_witness_reset(e->ops);
    pl_service_info(s, &before);
    b->before = pl_cmd_made(e, (struct pl_cmd_made){0});
    PL_TRY(drive(s, e, prompt, generate, r, ids, err));
    b->within = pl_cmd_made(e, b->before);
    pl_service_info(s, &after);
    b->steps = after.steps - before.steps;
    b->steps_ahead = after.steps_ahead - before.steps_ahead;
    b->steps_late = after.steps_late - before.steps_late;
    return PL_OK;
}

enum pl_status pl_bench_parallel_run(struct plumb_engine *e, uint32_t prompt, uint32_t generate, struct pl_bench_parallel *b,
                                     struct pl_err *err) {
    struct run r = {.sequences = b->sequences, .gap_cap = (size_t)b->sequences * generate};
    struct pl_service_options opt = {.max_running = b->sequences, .no_prefix_cache = true};
    struct pl_service *s = NULL;
    uint32_t *ids = pl_alloc(prompt, sizeof *ids);
    r.last_ns = pl_calloc(b->sequences, sizeof *r.last_ns);
    r.seqs = pl_calloc(b->sequences, sizeof *r.seqs);
    r.gaps = pl_alloc(r.gap_cap, sizeof *r.gaps);
    pthread_mutex_init(&r.lock, NULL);
    pthread_cond_init(&r.done, NULL);
    enum pl_status st = ids != NULL && r.last_ns != NULL && r.seqs != NULL && r.gaps != NULL
                            ? PL_OK
                            : pl_err_set(err, __FILE__, __LINE__, PL_NO_MEMORY, "no memory for %u sequences", b->sequences);
    for (uint32_t i = 0; st == PL_OK && i < b->sequences; i++) r.seqs[i] = (struct seq){&r, i};
    if (st == PL_OK) st = pl_service_create(e, &opt, &s, err);
    if (st == PL_OK) st = warm_up(s, e, prompt, &r, ids, err);
    for (int i = 0; st == PL_OK && i < PL_CMD_MEASURE_MAX && (i == 0 || b->within.loaded > 0); i++)
        st = measure(s, e, prompt, generate, &r, ids, b, err);
    pl_service_destroy(s);
    if (st == PL_OK) {
        summarise(&r, prompt, b);
        b->kernels = pl_engine_witness(e);
    }
    pthread_mutex_destroy(&r.lock);
    pthread_cond_destroy(&r.done);
    pl_free(ids);
    pl_free(r.last_ns);
    pl_free(r.seqs);
    pl_free(r.gaps);
    return st;
}
