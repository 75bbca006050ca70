/* service_internal - shared by the service's files. */
#ifndef PL_ENGINE_SERVICE_INTERNAL_H
#define PL_ENGINE_SERVICE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/pace.h"
#include "engine/service.h"
#include "kv/prefix.h"
#include "sched/sched.h"

/* Owned by the table until its end is pushed, then by the delivery thread. tokens, known, sampler are the engine
 * thread's (prefix calls read tokens under lock, from whoever plans, commits or cancels). */
struct request {
    uint64_t number;
    uint32_t *tokens, known, prompt, fresh_max, generated, cached;
    struct pl_sampler *sampler;
    struct pl_constraint *constraint; /* NULL: any text */
    struct pl_logit_bias *bias;
    bool want_logprobs, ignore_eos, score_prompt, no_answer, admitted, cancelled, failed;
    bool ended;          /* out of the scheduler, its last token on its way */
    uint32_t unread;     /* steps on their way that give it a token */
    uint32_t choice_row; /* of the last of them: where its token stands among the choices */
    uint32_t restore;    /* a kept state that it begins with, until its first rows are launched */
    uint32_t fork;       /* tokens whose pages were known without a state or a window: others will begin so too; 0: none */
    struct kept_state {  /* copies it took: at the fork, at the prompt's last page, at the last page */
        uint32_t state, len; /* len 0: none */
    } kept[3];
    uint32_t group;
    uint32_t top_logprobs, scored; /* scored: prompt tokens whose log-probability was pushed, the first counts as one */
    enum pl_end_reason reason;
    void (*on_event)(void *user, const struct pl_event *e);
    void *user;
    uint64_t submitted_ns, admitted_ns, first_ns;
    struct pl_request_witness *witness; /* NULL: no memory for it */
    struct pl_err err;
};

struct top_list {
    uint32_t count, ids[PL_EVENT_TOP_MAX];
    double logprobs[PL_EVENT_TOP_MAX];
};

struct delivery {
    struct request *request;
    enum pl_event_kind kind;
    uint32_t id;
    bool is_end;
    double logprob;
    struct top_list *top; /* owned, NULL when not asked for */
    uint64_t now;
};

struct draw { /* what one row of logits gave: a new token, or the log-probability of a prompt token */
    uint32_t id;
    bool ok, is_end, is_prompt;
    double logprob;
    struct top_list *top;
};

/* A step from its plan until its tokens were read. The engine thread's. */
struct flight {
    bool live; /* launched and not read */
    uint32_t items, rows, decoding, slot;
    bool drawn;                     /* some of the choices with noise */
    bool has_choices;               /* some row was chosen on the device */
    enum pl_choice_place wait;      /* not PL_CHOICE_DEVICE: it is read before the next is planned, and why */
    struct pl_sched_item *item;     /* [items] a copy of the plan's */
    struct request **request;       /* [items] NULL: ended before this step was read */
    uint32_t *item_logit;           /* [items + 1] an item's first row of logits */
    uint32_t *row_item, *logit_row; /* [logit_cap] of a row of logits: its item, its row in the step */
    uint8_t *place;                 /* [logit_cap] enum pl_choice_place */
    uint64_t start_ns, bytes;
    const struct pl_activation *logits;
    struct state_copy { /* [items] slots of recurrent state copied before and after the step; from == to: none */
        uint32_t from, to;
    } * before, *after;
};

struct pl_service {
    struct plumb_engine *engine;
    struct pl_sched_config config;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct pl_sched *sched;
    struct pl_prefix_tree *tree; /* NULL: switched off */
    uint64_t space;              /* of its keys: what else the pages' content depends on */
    struct request **table;      /* [table_cap] by number % table_cap */
    uint32_t table_cap;
    uint64_t numbers;
    bool stop, draining, poisoned;
    bool no_prefix; /* asked for, but there is no room for copies of recurrent state */
    struct pl_err poison;
    struct pl_service_info info;
    struct pl_ops_launches kernels[PL_SERVICE_KERNELS_MAX]; /* copied after each step, so that readers need no engine */
    struct pl_ops_launches fresh[PL_SERVICE_KERNELS_MAX];   /* the step's own, before it becomes kernels */
    size_t kernel_count;
    struct pl_ops_decision decisions[PL_SERVICE_DECISIONS_MAX]; /* likewise */
    uint64_t ended[PL_SERVICE_DECISIONS_MAX];                   /* in the last step */
    size_t decision_count;
    struct pl_service_attention attention; /* likewise */
    uint64_t gap_ns, gap_least_ns, fail_step, steps_begun;
    uint64_t part_ns[PL_HOST_PARTS], part_since; /* the engine thread's; the part that it is in began then */
    enum pl_host_part part;
    double decode_ns;    /* measured: a step that only decodes */
    struct pl_pace pace; /* of the others */
    pthread_t engine_thread, delivery_thread;
    struct pl_state_pool kept;     /* copies of states after prefixes; count 0: none */
    uint32_t *states, state_count; /* slots of recurrent state by the scheduler's slot; NULL where the model has none */
    /* of one step, the engine thread's */
    uint32_t *batch_tokens, *batch_pages, *batch_windows;
    struct pl_batch_seq *batch_seqs;
    struct flight flights[2];
    uint32_t turn; /* of the flight begun last */
    uint64_t last_read_ns;
    uint32_t logit_cap;
    float *logits;         /* [logit_cap, V] of rows that the host chooses from */
    struct pl_draw *draws; /* [logit_cap] how the device is to choose */
    uint32_t *picks;       /* [logit_cap] the device's choices */
    bool *ends;            /* [items] */
    const bool *no_ends;   /* [items] */
    struct draw *drawn;    /* [logit_cap] */
    /* to the delivery thread: what a step gave goes to it at once */
    struct delivery *made;
    size_t made_len, made_cap;
    pthread_mutex_t out_lock;
    pthread_cond_t out_ready;
    struct delivery *out, *taken; /* taken: the delivery thread's, which it exchanges for out */
    size_t out_len, out_cap, taken_cap;
    bool out_stop;
    _Atomic uint64_t undelivered; /* requests whose END or ERROR was not delivered yet */
};

void *service_engine_main(void *arg);
void service_request_free(struct request *r);
/* After a launch: kernels, each request's witness. After its tokens were read: histograms, the prefill budget. Under lock.
 */
void service_count_launch(struct pl_service *s, struct flight *f);
void service_count_step(struct pl_service *s, const struct flight *f, uint64_t ns);
/* The engine thread: d goes out with the next service_hand_over. */
void service_push(struct pl_service *s, const struct delivery *d);
void service_hand_over(struct pl_service *s);
/* The engine thread goes over to something else. */
void service_enter(struct pl_service *s, enum pl_host_part part);

/* service_state.c: recurrent state, by slots: those of requests, then kept copies. Under lock, but for service_copy_states.
 */
enum pl_status service_take_states(struct pl_service *s, bool keep);
void service_give_states(struct pl_service *s);
uint32_t service_adopt_state(struct pl_service *s, struct request *r, struct pl_block_tables *tables);
void service_retire_states(struct pl_service *s, struct request *r, uint32_t computed, bool sound);
uint32_t service_state_most(void *user, uint64_t id, uint32_t computed, uint32_t count);
/* The slot of item i, and what has to be copied before and after the step. */
uint32_t service_place_state(struct pl_service *s, struct flight *f, uint32_t i);
enum pl_status service_copy_states(struct pl_service *s, const struct state_copy *list, uint32_t count) PL_MUST_CHECK;
struct request *service_request_of(struct pl_service *s, uint64_t number);

/* service_draw.c: where the rows of a step are chosen, and the choices. Under no lock. */
void service_place_rows(struct pl_service *s, struct flight *f);
/* Is row `row` the one an item's new token comes from? Otherwise it tells of a prompt token. */
bool service_row_is_new(const struct flight *f, size_t row);
enum pl_status service_read_rows(struct pl_service *s, struct flight *f);
void service_draw_rows(struct pl_service *s, struct flight *f, float *copy);

#endif
