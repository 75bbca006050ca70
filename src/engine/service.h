/* service - one engine thread, many requests: continuous batching behind a door that any thread may knock at.
 *
 * The engine thread only schedules, runs steps and samples. Everything a request produces is handed to one delivery
 * thread, which calls the request's on_event; HTTP, JSON and detokenising happen there or later, never in a step.
 *
 * Promises
 *  1. on_event is called from the delivery thread, in order: one PL_EVENT_PROMPT per prompt token but the first when those
 *     are wanted, one PL_EVENT_TOKEN per token and then exactly one PL_EVENT_END or PL_EVENT_ERROR; nothing after it. It
 * must not block and must not call pl_service_destroy.
 *  2. pl_service_cancel returns at once; the request's pages are free after the step that is running. Its END event
 *     (PL_END_CANCELLED) still comes.
 *  3. A request that fails fails alone. A step that fails (device) fails every request in it, with the reason.
 *  4. The text of a request depends on its tokens, its sampling and its seed, not on what ran beside it, as far as the
 *     backend's products are independent of the row count (pl_service_info.invariant says whether they are).
 *
 * The engine handle belongs to the service from create to destroy: no session may be used meanwhile. */
#ifndef PL_ENGINE_SERVICE_H
#define PL_ENGINE_SERVICE_H

#include "base/status.h"
#include "ops/ops.h"
#include "plumb.h"
#include "sample/constraint.h"
#include "sample/sample.h"

struct pl_service;

struct pl_service_options {
    uint32_t max_running;    /* sequences in one step; 0 = 8 */
    uint32_t max_waiting;    /* 0 = 256 */
    uint32_t step_tokens;    /* rows of one step; 0 = the engine's batch rows */
    uint32_t prefill_tokens; /* of them for prompts; 0 = what decoding rows leave */
    uint32_t gap_ms;         /* a step that also decodes prefills about as much as takes this long; 0: no such bound */
    uint32_t
        gap_least_ms; /* five steps that only decode, where they take less than gap_ms, but no less than this; 0: gap_ms */
    bool no_prefix_cache;
    uint64_t fail_step; /* drill: this step (the first is 1) fails as if the device had; 0: none */
};

enum pl_event_kind { PL_EVENT_PROMPT, PL_EVENT_TOKEN, PL_EVENT_END, PL_EVENT_ERROR };
enum pl_end_reason { PL_END_STOP, PL_END_LENGTH, PL_END_CANCELLED };
enum { PL_EVENT_TOP_MAX = 20 };

struct pl_event {
    enum pl_event_kind kind;
    uint64_t request;  /* number given at submit */
    uint32_t id;       /* PROMPT, TOKEN */
    bool is_end_token; /* TOKEN: it ends the text (EOG); it is not part of the text */
    double logprob;    /* PROMPT; TOKEN, when logprobs were asked for */
    uint32_t top_count;
    uint32_t top_ids[PL_EVENT_TOP_MAX];
    double top_logprobs[PL_EVENT_TOP_MAX];
    enum pl_end_reason reason;                        /* END */
    uint32_t prompt_tokens, cached_tokens, generated; /* END: of the prompt that many came from the prefix cache */
    uint64_t queued_ns, prefill_ns, decode_ns;        /* END: where its time went */
    const struct pl_request_witness *witness;         /* END, ERROR: valid during the call */
    struct pl_err err;                                /* ERROR */
};

/* What ran for one request: the steps it took part in and, per kernel, the launches in those steps (which others shared).
 * launches[i] belongs to entry i of pl_service_witness, ended[i] to entry i of pl_service_decisions. */
enum { PL_SERVICE_KERNELS_MAX = 256, PL_SERVICE_FORMS_MAX = 64, PL_SERVICE_DECISIONS_MAX = 64 };
struct pl_request_witness {
    uint64_t steps, prompt_steps, batch_sum;
    uint32_t batch_min, batch_max, preemptions;
    uint64_t launches[PL_SERVICE_KERNELS_MAX];
    uint64_t ended[PL_SERVICE_DECISIONS_MAX];
};

struct pl_service_request {
    const uint32_t *prompt; /* copied */
    size_t prompt_count;
    uint32_t max_tokens; /* 0: whatever the context leaves */
    int32_t priority;
    uint32_t group;              /* who asks; groups share the places evenly */
    struct pl_sampling sampling; /* bias copied */
    bool want_logprobs;
    uint32_t top_logprobs; /* <= PL_EVENT_TOP_MAX */
    bool score_prompt; /* PL_EVENT_PROMPT for each prompt token but the first; nothing of it comes from the prefix cache */
    bool no_answer;    /* the request ends after its prompt; max_tokens is ignored */
    bool ignore_eos;
    struct pl_constraint *constraint; /* may be NULL; the service's own once the submit is PL_OK */
    void (*on_event)(void *user, const struct pl_event *e);
    void *user;
};

enum pl_status pl_service_create(struct plumb_engine *e, const struct pl_service_options *opt, struct pl_service **out,
                                 struct pl_err *err) PL_MUST_CHECK;
/* Cancels everything, delivers the last events, joins both threads. */
void pl_service_destroy(struct pl_service *s);
/* Any thread. On PL_OK events will come; otherwise none will. PL_BUSY: queue full; PL_LIMIT: does not fit the context. */
enum pl_status pl_service_submit(struct pl_service *s, const struct pl_service_request *r, uint64_t *number,
                                 struct pl_err *err) PL_MUST_CHECK;
void pl_service_cancel(struct pl_service *s, uint64_t number);
/* No new requests (PL_BUSY); those admitted run to their end. Returns when none is left or after timeout_ms. */
bool pl_service_drain(struct pl_service *s, uint32_t timeout_ms);

/* Upper bounds in ms: 1 2 5 10 20 50 100 200 500 1000 2000 5000 10000 30000, then the rest. */
enum { PL_TIME_BUCKETS = 15 };
extern const uint32_t pl_time_bucket_ms[PL_TIME_BUCKETS - 1];
uint32_t pl_time_bucket(uint64_t ns);

/* Where tokens were chosen, and what kept the choice on the host. */
enum pl_choice_place {
    PL_CHOICE_DEVICE,
    PL_CHOICE_HOST_MEMORY, /* the backend's logits are there anyway */
    PL_CHOICE_TYPICAL_P,
    PL_CHOICE_GRAMMAR,
    PL_CHOICE_LOGPROBS,
    PL_CHOICE_LOGIT_BIAS,
    PL_CHOICE_PENALTIES,
    PL_CHOICE_PROMPT_SCORES,
    PL_CHOICE_BY_REQUEST, /* of steps: nothing is to be launched ahead */
    PL_CHOICE_PLACES
};
const char *pl_choice_place_name(enum pl_choice_place p); /* "device", else the reason: "logprobs" */

/* What the engine thread does: picks the next step's rows; hands it to the device; waits for the last one's tokens; takes
 * them; waits for requests. */
enum pl_host_part { PL_HOST_PLAN, PL_HOST_LAUNCH, PL_HOST_WAIT, PL_HOST_TAKE, PL_HOST_IDLE, PL_HOST_PARTS };
extern const char *const pl_host_part_names[PL_HOST_PARTS];

struct pl_service_info {
    uint32_t running, waiting, max_running, page_count, pages_free, pages_cached, page_tokens;
    uint32_t window_pages, window_pages_free, window_pages_cached; /* of windowed layers; 0: they have none of their own */
    bool invariant, poisoned;
    uint64_t steps, tokens_prefilled, tokens_generated, requests, finished, cancelled, failed, refused, preempted;
    uint64_t prefix_tokens_asked, prefix_tokens_adopted;
    uint64_t prefix_declined; /* requests that could not begin with all pages known: no state or window was kept there */
    uint64_t states_kept, states_restored, states_skipped; /* copies made, begun with, not made for want of room */
    uint64_t choices[PL_CHOICE_PLACES];                    /* rows, by place */
    uint64_t steps_ahead;                                  /* launched before the last one's tokens were read */
    uint64_t steps_late;                     /* of them those launched when the last one was done already: a gap */
    uint64_t steps_waited[PL_CHOICE_PLACES]; /* whose tokens were read before the next was planned, by the first reason */
    uint64_t unconverged;                    /* rows drawn on the device in too many rounds: they got their largest token */
    uint64_t surplus_rows;                   /* computed of sequences that had ended with the step before */
    uint64_t step_ns_total, last_token_ns;   /* last_token_ns: clock time of the last token, 0 = none yet */
    uint64_t batch_histogram[16], batch_sum; /* steps whose sequence count was 1, 2, 3-4, 5-8, ...; sequences of all steps */
    uint64_t rows_histogram[17], rows_sum;   /* the same of a step's rows, to 65536 */
    uint64_t waiting_histogram[17], waiting_sum; /* of the requests that waited while a step was planned */
    uint64_t step_histogram[PL_TIME_BUCKETS];
    uint64_t host_ns[PL_HOST_PARTS]; /* of the engine thread, until the last step was read */
    struct pl_ops_graphs graphs;
    struct pl_phase_stats { /* steps that only decode, only prefill, do both */
        uint64_t steps, ns, rows, bytes;
    } phase[3];
    struct pl_err poison; /* when poisoned */
};
extern const char *const pl_phase_names[3];                              /* "decode", "prefill", "mixed" */
void pl_service_info(struct pl_service *s, struct pl_service_info *out); /* any thread */

/* Kernels that ran, as of the last finished step; any thread. Returns the full count. */
/* Attention by form and why it did not share, likewise. */
struct pl_service_attention {
    struct pl_ops_attention forms[PL_SERVICE_FORMS_MAX], cascade[PL_SERVICE_FORMS_MAX];
    size_t form_count, cascade_count;
    struct pl_ops_attention_totals totals;
};
void pl_service_attention(struct pl_service *s, struct pl_service_attention *out);
size_t pl_service_witness(struct pl_service *s, struct pl_ops_launches *out, size_t cap);
/* How every choice of a kernel ended: what ran as planned, and what did not, with the reason. Entries keep their places. */
size_t pl_service_decisions(struct pl_service *s, struct pl_ops_decision *out, size_t cap);

#endif
