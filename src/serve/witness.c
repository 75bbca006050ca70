/* witness.c - what ran for the latest requests: a ring of records, oldest overwritten, read at /v1/witness. */
#include "serve/internal.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

struct witness_record {
    char id[48], reason[160];
    int key_index;
    enum api_kind api;
    bool stream, failed;
    uint64_t created_unix, queued_ns, first_token_ns, total_ns;
    uint32_t choices, prompt_tokens, cached_tokens, generated_tokens;
    struct pl_request_witness ran;
};

enum pl_status witness_ring_create(struct pl_server *s) {
    pthread_mutex_init(&s->witness_lock, NULL);
    s->witnesses = pl_calloc(WITNESS_KEPT, sizeof *s->witnesses);
    return s->witnesses == NULL ? PL_NO_MEMORY : PL_OK;
}

void witness_ring_destroy(struct pl_server *s) {
    pl_free(s->witnesses);
    pthread_mutex_destroy(&s->witness_lock);
}

/* One choice of a job has ended. Under job->lock. */
void witness_add(struct job *j, const struct pl_event *e) {
    const struct pl_request_witness *w = e->witness;
    struct pl_request_witness *sum = &j->ran;
    if (w == NULL || w->steps == 0) return;
    sum->steps += w->steps;
    sum->prompt_steps += w->prompt_steps;
    sum->batch_sum += w->batch_sum;
    sum->batch_min = sum->batch_min == 0 ? w->batch_min : PL_MIN(sum->batch_min, w->batch_min);
    sum->batch_max = PL_MAX(sum->batch_max, w->batch_max);
    sum->preemptions += w->preemptions;
    for (size_t i = 0; i < PL_SERVICE_KERNELS_MAX; i++) sum->launches[i] += w->launches[i];
    for (size_t i = 0; i < PL_SERVICE_DECISIONS_MAX; i++) sum->ended[i] += w->ended[i];
}

/* The job's last choice has ended. Under job->lock. */
void witness_keep(struct job *j) {
    struct pl_server *s = j->server;
    struct witness_record r = {.key_index = j->key_index,
                               .api = j->api,
                               .stream = j->params.stream,
                               .failed = j->failed,
                               .created_unix = j->created_unix,
                               .queued_ns = j->queued_ns,
                               .first_token_ns = j->first_token_ns,
                               .total_ns = pl_clock_ns() - j->created_ns,
                               .choices = j->choice_count,
                               .prompt_tokens = j->prompt_tokens,
                               .cached_tokens = j->cached_tokens,
                               .generated_tokens = j->generated_tokens,
                               .ran = j->ran};
    snprintf(r.id, sizeof r.id, "%s", j->id);
    if (j->failed) snprintf(r.reason, sizeof r.reason, "%.150s", j->err.text);
    pthread_mutex_lock(&s->witness_lock);
    s->witnesses[s->witness_count++ % WITNESS_KEPT] = r;
    pthread_mutex_unlock(&s->witness_lock);
}

/* The number-th newest record that this key may see. */
static bool record_at(struct exchange *x, uint64_t back, struct witness_record *out) {
    struct pl_server *s = x->server;
    bool found = false;
    pthread_mutex_lock(&s->witness_lock);
    if (back < PL_MIN(s->witness_count, (uint64_t)WITNESS_KEPT)) {
        *out = s->witnesses[(s->witness_count - 1 - back) % WITNESS_KEPT];
        found = true;
    }
    pthread_mutex_unlock(&s->witness_lock);
    return found;
}

static const char *api_path(enum api_kind api) {
    switch (api) {
    case API_CHAT: return "/v1/chat/completions";
    case API_COMPLETION: return "/v1/completions";
    case API_MESSAGES: return "/v1/messages";
    case API_RESPONSES: return "/v1/responses";
    }
    return "";
}

static json_t *milliseconds(uint64_t ns) { return json_real((double)(ns / 1000) * 1e-3); }

static json_t *summary(const struct witness_record *r) {
    return json_pack("{s:s, s:s, s:I, s:s, s:b, s:s, s:i, s:i, s:i, s:i, s:o, s:o, s:o}", "id", r->id, "object", "witness",
                     "created", (json_int_t)r->created_unix, "endpoint", api_path(r->api), "stream", r->stream, "outcome",
                     r->failed ? r->reason : "ok", "choices", (int)r->choices, "prompt_tokens", (int)r->prompt_tokens,
                     "cached_tokens", (int)r->cached_tokens, "generated_tokens", (int)r->generated_tokens, "queued_ms",
                     milliseconds(r->queued_ns), "first_token_ms", milliseconds(r->first_token_ns), "total_ms",
                     milliseconds(r->total_ns));
}

/* What ran in this request's steps, and every choice in them that did not end as planned. */
static void add_kernels(struct pl_server *s, const struct witness_record *r, json_t *o) {
    struct pl_ops_launches list[PL_SERVICE_KERNELS_MAX];
    struct pl_ops_decision decided[PL_SERVICE_DECISIONS_MAX];
    size_t n = PL_MIN(pl_service_witness(s->service, list, PL_COUNT_OF(list)), PL_COUNT_OF(list)),
           d = PL_MIN(pl_service_decisions(s->service, decided, PL_COUNT_OF(decided)), PL_COUNT_OF(decided));
    json_t *kernels = json_array(), *declined = json_array();
    for (size_t i = 0; i < n; i++) {
        if (r->ran.launches[i] == 0) continue;
        json_array_append_new(kernels, json_pack("{s:s, s:s, s:I}", "op", list[i].op, "kernel", list[i].kernel, "launches",
                                                 (json_int_t)r->ran.launches[i]));
    }
    for (size_t i = 0; i < d; i++) {
        if (r->ran.ended[i] == 0 || strcmp(decided[i].outcome, "chosen") == 0) continue;
        json_array_append_new(declined, json_pack("{s:s, s:s, s:s, s:s, s:I}", "op", decided[i].op, "planned",
                                                  decided[i].planned, "taken", decided[i].taken, "reason", decided[i].reason,
                                                  "count", (json_int_t)r->ran.ended[i]));
    }
    json_object_set_new(o, "kernels", kernels);
    json_object_set_new(o, "declined", declined);
}

enum MHD_Result handle_witness(struct exchange *x, const char *id) {
    struct pl_server *s = x->server;
    struct witness_record r;
    for (uint64_t back = 0; record_at(x, back, &r); back++) {
        if (strcmp(r.id, id) != 0 || r.key_index != x->key_index) continue;
        json_t *o = summary(&r);
        double steps = r.ran.steps > 0 ? (double)r.ran.steps : 1;
        json_object_set_new(o, "steps", json_integer((json_int_t)r.ran.steps));
        json_object_set_new(o, "prompt_steps", json_integer((json_int_t)r.ran.prompt_steps));
        json_object_set_new(o, "preemptions", json_integer(r.ran.preemptions));
        json_object_set_new(o, "sequences_per_step",
                            json_pack("{s:i, s:f, s:i}", "min", (int)r.ran.batch_min, "mean",
                                      (double)r.ran.batch_sum / steps, "max", (int)r.ran.batch_max));
        json_object_set_new(o, "backend", json_string(pl_ops_describe(s->engine->ops)));
        json_object_set_new(o, "build", json_string(plumb_build_id()));
        add_kernels(s, &r, o);
        return answer_json(x, 200, o);
    }
    return answer_error(x, 404, NULL, "id", "there is no record of '%.60s': the latest %d requests are kept", id,
                        WITNESS_KEPT);
}

/* The latest requests of this key, newest first, without their kernels. */
enum MHD_Result handle_witnesses(struct exchange *x) {
    json_t *list = json_array();
    struct witness_record r;
    for (uint64_t back = 0; record_at(x, back, &r); back++)
        if (r.key_index == x->key_index) json_array_append_new(list, summary(&r));
    return answer_json(x, 200, json_pack("{s:s, s:o}", "object", "list", "data", list));
}
