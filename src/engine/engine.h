/* engine - a loaded model with its sequences. The inside of include/plumb.h, for the commands and the server.
 *
 * An engine owns the file, tokenizer, chat template, backend, model and KV pages; a session owns a block table, the ids it
 * holds and the logits of its last token. One step runs rows of any number of sessions through the model together;
 * everything a step needs was allocated when the engine or the session was created.
 *
 * Failure: a step commits all of its parts or none. A device failure poisons the engine: every later call says so. */
#ifndef PL_ENGINE_ENGINE_H
#define PL_ENGINE_ENGINE_H

#include <jansson.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "chat/template.h"
#include "chat/traits.h"
#include "kv/tables.h"
#include "model/model.h"
#include "plumb.h"
#include "sample/sample.h"
#include "token/token.h"

enum { PL_SESSION_BACK = 256 }; /* tokens that a session may be truncated by before its windows are lost */

struct pl_epoch_part {
    uint64_t id; /* of a session or request */
    uint32_t rows;
};

/* Steps launched before the last one's token was read; rows they computed of sequences that had ended. */
struct pl_pipeline_stats {
    uint64_t steps, surplus_rows;
};

/* Where the time until the first step went, nanoseconds of each part in their order; no two overlap. */
struct pl_engine_start {
    uint64_t file;    /* headers, configuration, tokenizer, budget */
    uint64_t backend; /* driver, context, threads */
    uint64_t weights; /* read, staged, rearranged */
    uint64_t memory;  /* KV pages, states, working space */
    uint64_t kernels; /* taken from the cache or compiled, before anybody waits for a token */
};

struct plumb_engine {
    struct plumb_engine_options opt; /* strings are copies owned by the engine */
    char *model_path, *isa;
    struct pl_file *file;
    struct pl_tokenizer *tok;              /* NULL: the file has none, text is refused */
    struct pl_template *tmpl, *tmpl_tools; /* parsed on first use; the latter, "tool_use", where the file has it */
    struct pl_ops *ops;
    struct pl_model *model;
    struct pl_model_config config;
    struct pl_kv_shape kv_shape;
    struct pl_kv_store *kv;
    struct pl_page_pool pages, window_pages;
    struct pl_page_pools pools;     /* of both; the second only where windowed layers have pages of their own */
    bool *state_used;               /* [max_sessions] slots of recurrent state, NULL where the model has none */
    uint32_t kept_states;           /* slots behind those, for copies that a service keeps of the states after prefixes */
    bool dense;                     /* KV pages of a session stand in one run */
    struct pl_memory_budget budget; /* as computed before loading */
    uint64_t memory_limit;
    uint32_t context, max_sessions, batch_rows, logit_rows, session_count;
    struct pl_engine_start start;
    bool poisoned;
    atomic_bool written_told;
    atomic_bool cancel; /* set from a signal handler or another thread: prefill stops between chunks */
    struct {            /* of one step */
        uint32_t *tokens, *logit_rows, *pages, *window_pages;
        struct pl_batch_seq *seqs;
        struct pl_epoch_part *who;
    } step;
    struct { /* of the last step that was described: what pl_batch.epoch stands for */
        uint64_t epoch, pool;
        struct pl_epoch_part *parts;
        size_t count, cap;
    } last;
    struct pl_pipeline_stats ahead;
    uint64_t state_recomputed;               /* tokens computed again because a state or a window cannot go back */
    float *sample_logits;                    /* [V] the sampler's copy */
    const struct pl_activation *picked_from; /* the model's, of the last step that picked */
};

struct plumb_session {
    struct plumb_engine *engine;
    struct pl_block_tables tables;
    uint32_t *ids; /* [context] what the cache holds */
    float *logits; /* [V] of the last token */
    bool has_logits;
    uint32_t state;     /* its slot of recurrent state, where the model has any; */
    uint32_t state_len; /* the tokens that it stands after: where that is not their number they are computed again */
    bool window_lost;   /* truncated to where its window has pages no more: computed again as well */
};
static inline uint32_t pl_session_held(const struct plumb_session *s) { return s->tables.of[PL_PAGES_FULL].len; }

/* Recurrent state: PL_LIMIT when all slots are in use. */
bool pl_engine_is_recurrent(const struct plumb_engine *e);
enum pl_status pl_engine_take_state(struct plumb_engine *e, uint32_t *slot, struct pl_err *err) PL_MUST_CHECK;
void pl_engine_give_state(struct plumb_engine *e, uint32_t slot);

/* What the machine, its cgroup and the caller allow, in bytes. */
uint64_t pl_engine_memory_limit(uint64_t wanted);
/* Reads the configuration and computes sizes; nothing is loaded. Fills context.. and budget of e, whose file is open. */
enum pl_status pl_engine_plan(struct plumb_engine *e, struct pl_err *err) PL_MUST_CHECK;
/* PL_LIMIT with all numbers when the budget is beyond the limit. */
enum pl_status pl_engine_check_budget(const struct plumb_engine *e, struct pl_err *err) PL_MUST_CHECK;

/* plumb_engine_create with its own error type. */
enum pl_status pl_engine_create(const struct plumb_engine_options *opt, struct plumb_engine **out,
                                struct pl_err *err) PL_MUST_CHECK;
/* Its two halves. Opened and planned: the file's metadata alone, for inspect and for what a command can refuse from it; no
 * weights, no pages, sessions are refused. The options' strings stay the caller's until it is loaded. */
enum pl_status pl_engine_open(const struct plumb_engine_options *opt, struct plumb_engine **out,
                              struct pl_err *err) PL_MUST_CHECK;
/* The backend, weights, pages and kernels of an opened engine, once; after a failure it can only be destroyed. */
enum pl_status pl_engine_load(struct plumb_engine *e, struct pl_err *err) PL_MUST_CHECK;
/* What an engine of these options would open its operations with: "auto" is a backend then. Strings stay the caller's. */
enum pl_status pl_engine_ops_options(const struct plumb_engine_options *o, struct pl_ops_options *out,
                                     struct pl_err *err) PL_MUST_CHECK;
/* Says, once, when the model's file has been written to since it was opened: asked where a text begins. Any thread. */
void pl_engine_tell_written(struct plumb_engine *e);

/* The epoch of a step of these parts: the last one's when they, their order and all pages are the same, else a new one. */
uint64_t pl_engine_epoch(struct plumb_engine *e, const struct pl_epoch_part *parts, size_t count);

/* One part of a step: `count` ids after what the session holds, logits wanted of its last `logits` rows. */
struct pl_step_part {
    struct plumb_session *session;
    const uint32_t *ids;
    uint32_t count, logits;
    /* Not NULL, with logits 1, this part alone and a backend that chooses (pl_engine_chooses): the choice is left on
     * the device, *choice is for pl_engine_chosen, and the session has no logits until pl_engine_fetch_logits. The step is
     * only enqueued: the next one's id may be PL_TOKEN_CHOSEN before anybody has read which token that is. */
    uint32_t *choice;
    const struct pl_draw *draw; /* how it is chosen; NULL: the largest */
};
/* Runs all parts as one batch: at most batch_rows rows, logit_rows logits, each session once. When a part wants logits,
 * those of its last row go to its session. all_logits (may be NULL) receives [sum of logits, V], parts in order. */
enum pl_status pl_engine_step(struct plumb_engine *e, const struct pl_step_part *parts, size_t part_count, float *all_logits,
                              struct pl_err *err) PL_MUST_CHECK;

bool pl_engine_chooses(const struct plumb_engine *e);
/* Waits for a choice; PL_OPS_PICK_* where there was none to make. */
enum pl_status pl_engine_chosen(struct plumb_engine *e, uint32_t choice, uint32_t *id, struct pl_err *err) PL_MUST_CHECK;
/* The logits that the last step, of this session alone with `choice`, left on the device. */
enum pl_status pl_engine_fetch_logits(struct plumb_session *s, struct pl_err *err) PL_MUST_CHECK;

/* Two tokens for nobody, before the first request (CPU; nothing elsewhere), and a line that says so. No session may be in
 * use. */
enum pl_status pl_engine_warm_up(struct plumb_engine *e, struct pl_err *err) PL_MUST_CHECK;

enum pl_status pl_session_create(struct plumb_engine *e, struct plumb_session **out, struct pl_err *err) PL_MUST_CHECK;
/* Appends in chunks; on failure (or cancel: PL_CANCELLED) the session is as before but without logits. progress may be
 * NULL. */
enum pl_status pl_session_append(struct plumb_session *s, const uint32_t *ids, size_t count,
                                 void (*progress)(void *user, uint64_t done, uint64_t total), void *user,
                                 struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_session_truncate(struct plumb_session *s, uint32_t len, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_session_generate(struct plumb_session *s, const struct plumb_generate_options *opt, uint32_t *generated,
                                   enum plumb_finish *finish, struct pl_err *err) PL_MUST_CHECK;
/* The same for who does not go on: the last token is told and not computed, so the session holds one token less. */
enum pl_status pl_session_generate_last(struct plumb_session *s, const struct plumb_generate_options *opt,
                                        uint32_t *generated, enum plumb_finish *finish, struct pl_err *err) PL_MUST_CHECK;

/* size 0: defaults. */
struct pl_sampling pl_sampling_from_api(const struct plumb_sampling *s);
/* How a device is to choose for it; false: it needs more than the row (pl_sampler_needs). */
bool pl_sampler_draw_of(const struct pl_sampler *s, uint64_t position, struct pl_draw *out);

/* Text. Without a tokenizer or template in the file these are PL_UNSUPPORTED, with what to do instead. */
enum pl_status pl_engine_need_text(const struct plumb_engine *e, struct pl_err *err) PL_MUST_CHECK;
/* The same of a chat template that can be parsed. */
enum pl_status pl_engine_need_chat(struct plumb_engine *e, struct pl_err *err) PL_MUST_CHECK;
/* A text of so many tokens fits the context of a session that holds nothing yet: PL_LIMIT. */
enum pl_status pl_engine_need_room(const struct plumb_engine *e, size_t count, struct pl_err *err) PL_MUST_CHECK;
bool pl_engine_chat_template(const struct plumb_engine *e, bool tools, struct pl_str *source); /* false: it has none */
enum pl_status pl_engine_render(struct plumb_engine *e, const json_t *messages, const json_t *tools, bool generation_prompt,
                                const json_t *extra, struct pl_rendered *out, struct pl_err *err) PL_MUST_CHECK;
/* Renders and encodes; user content is untrusted. ids is appended to. */
enum pl_status pl_engine_chat_encode(struct plumb_engine *e, const json_t *messages, const json_t *tools,
                                     bool generation_prompt, const json_t *extra, struct pl_ids *ids,
                                     struct pl_err *err) PL_MUST_CHECK;

/* What the model's template shows, tried out (chat/traits.h). Also parses it, for several threads to use. */
void pl_engine_chat_traits(struct plumb_engine *e, struct pl_traits *out);

/* Texts of the special tokens that templates name; NULL entries are left out. */
struct pl_chat_specials {
    char *bos, *eos, *unk, *pad;
};
/* tok may be NULL: then all are. */
enum pl_status pl_chat_specials_read(const struct pl_tokenizer *tok, struct pl_chat_specials *out) PL_MUST_CHECK;
void pl_chat_specials_deinit(struct pl_chat_specials *sp);
/* The variables a template sees, as transformers sets them; extra (an object or NULL) comes last and wins. Returns a new
 * object, or NULL when memory is short. */
json_t *pl_chat_vars(const json_t *messages, const json_t *tools, bool generation_prompt, const struct pl_chat_specials *sp,
                     const json_t *extra) PL_MUST_CHECK;
extern const char *const pl_chat_trusted[]; /* names of those of them that count as the template's own */

/* Hashes that say whether two engines mean the same by a token id and by a conversation; 0: the file has none. */
struct pl_fingerprint {
    uint64_t vocabulary, chat_template;
};
void pl_engine_fingerprint(const struct plumb_engine *e, struct pl_fingerprint *out);
/* {"vocabulary", "chat_template", "probe", "weights"}: hex or null; probe is pl_hash64 of the ids of this text. */
json_t *pl_engine_fingerprint_json(const struct plumb_engine *e) PL_MUST_CHECK; /* NULL: out of memory */
extern const char pl_fingerprint_probe[];

json_t *pl_engine_info(struct plumb_engine *e) PL_MUST_CHECK; /* NULL: out of memory */
/* Seconds of each part of a start, their sum, and the file's bytes a second while weights were read; NULL: out of memory. */
json_t *pl_engine_start_json(const struct plumb_engine *e) PL_MUST_CHECK;
/* The same for people: "0.21 s: file 0.01, backend 0.00, weights 0.19 (0.10 GB, 0.5 GB/s), memory 0.00, kernels 0.01". */
#define PL_ENGINE_START_TEXT 200
void pl_engine_start_text(const struct plumb_engine *e, char out[PL_ENGINE_START_TEXT]);
json_t *pl_engine_witness(struct plumb_engine *e) PL_MUST_CHECK; /* list of {op, kernel, launches, bytes}; NULL likewise */
/* Schema plumb-counters-1: how every choice of an implementation ended, since the last reset. NULL: out of memory. */
json_t *pl_engine_counters(struct plumb_engine *e) PL_MUST_CHECK;
/* Schema plumb-witness-1: the counters, and every compiled kernel as the host and as the device counted it. Waits for the
 * device. NULL and err on failure. */
json_t *pl_engine_witness_full(struct plumb_engine *e, struct pl_err *err) PL_MUST_CHECK;

#endif
