/* internal - what the files of serve share: the server, one HTTP exchange, one generation job.
 *
 * Lifetimes: an exchange lives from MHD's first call to its completion call. A job (one generating request, one or more
 * choices) is referenced by its exchange and by every service request it submitted; the last one out frees it, so a
 * client may leave and events may come in any order. job->lock guards everything in a job that is marked so. */
#ifndef PL_SERVE_INTERNAL_H
#define PL_SERVE_INTERNAL_H

#include <jansson.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "chat/reply.h"
#include "chat/traits.h"
#include "engine/engine.h"
#include "serve/serve.h"
#include "serve/stops.h"
#include "token/token.h"

struct server_counts {
    _Atomic uint64_t http_requests, http_4xx, http_5xx, disconnects, streams, log_lost;
    _Atomic uint64_t ended[4]; /* stop, length, cancelled, failed */
    struct time_count {
        _Atomic uint64_t sum_ns, bucket[PL_TIME_BUCKETS];
    } ttft, gap, queue;
};
enum { WITNESS_KEPT = 256, QUEUE_DEFAULT = 256 }; /* the latter as the service has it */
struct witness_record;

struct pl_server {
    struct plumb_engine *engine;
    const struct pl_tokenizer *tokenizer;
    struct pl_service *service;
    struct MHD_Daemon *daemon;
    struct pl_serve_options opt;
    struct server_counts counts;
    struct pl_constraint_vocab *vocab;
    char *model_name;
    struct pl_traits traits;    /* what its template shows, and how it writes calls */
    bool call_args, call_fence; /* Mistral: name[ARGS]{..}; DeepSeek: arguments in a fence */
    uint64_t started_unix, started_ns;
    _Atomic bool draining;
    _Atomic uint64_t next_id;
    _Atomic uint32_t *key_active; /* per API key */
    pthread_mutex_t jobs_lock;    /* guards the list below */
    struct job *jobs;
    pthread_mutex_t conns_lock; /* guards the list below */
    struct conn *conns;
    pthread_t watcher;
    int watch_fd, watch_wake; /* epoll; eventfd that ends it */
    _Atomic bool watch_stop;
    bool watch_started;
    pthread_mutex_t later_lock; /* guards the two below */
    struct exchange *later;     /* large requests that wait to be read (later.c) */
    bool later_stop;
    pthread_cond_t later_more;
    pthread_t later_threads[2];
    uint32_t later_count;
    pthread_mutex_t witness_lock; /* guards the two below */
    struct witness_record *witnesses;
    uint64_t witness_count;
    pthread_mutex_t log_lock;
    void *log_file; /* FILE * */
};

enum api_kind { API_CHAT, API_COMPLETION, API_MESSAGES, API_RESPONSES };

/* Sampling and output parameters of one request, from any API. */
struct gen_params {
    struct pl_sampling sampling;
    struct pl_logit_bias *bias; /* owned */
    struct pl_stops stops;
    uint32_t max_tokens; /* 0: what the context leaves */
    uint32_t n;
    int32_t priority; /* lower comes earlier */
    bool stream, include_usage, logprobs, echo, ignore_eos, has_seed;
    bool no_answer; /* completions: max_tokens 0 */
    uint32_t top_logprobs;
    struct pl_reply_options reply; /* chat only; names are owned */
    bool parse_reply;
    struct pl_buf grammar;       /* GBNF the answer must follow; empty: any text */
    struct pl_grammar *compiled; /* of it, shared by all choices */
};
void gen_params_deinit(struct gen_params *p);

struct tool_call {
    char id[40];
    struct pl_buf name, arguments;
};

struct kept_top {
    uint32_t id;
    double logprob;
};
struct kept_token {
    uint32_t id, top_count;
    size_t top_from;
    double logprob; /* NaN: of the prompt's first token there is none */
};

struct choice {
    uint64_t number; /* of the service request */
    uint32_t prompt; /* which prompt of the request it belongs to */
    struct pl_decoder decoder;
    struct pl_buf held;     /* decoded, not released yet */
    struct pl_buf text;     /* released: the answer's content */
    struct pl_reply *reply; /* NULL: everything is content */
    struct pl_buf reasoning;
    struct tool_call *calls;
    size_t call_count, call_cap;
    struct kept_token *tokens; /* kept when logprobs are wanted: the prompt's (echo), then the answer's */
    size_t token_count, token_cap, token_sent, scored; /* scored: how many are the prompt's */
    size_t text_token;                                 /* the first that is not reasoning */
    struct kept_top *tops;                             /* the alternatives of all of them */
    size_t top_count, top_cap;
    size_t offset_token, offset_bytes, offset_chars; /* where the text of token number offset_token begins */
    bool echoed;                                     /* streaming: the prompt was sent */
    uint32_t generated, reasoned;                    /* tokens; of them reasoning */
    bool broken;                                     /* memory ran out: the answer is incomplete */
    bool started, stopped, ended;                    /* stopped: a stop string was found, later tokens are ignored */
    int32_t stop_index;                              /* which stop string, -1: none */
    enum pl_end_reason reason;
    uint64_t last_token_ns;
};

struct job {
    struct pl_server *server;
    struct job *next, **prev_next; /* server->jobs_lock */
    _Atomic uint32_t refs;
    pthread_mutex_t lock;
    enum api_kind api;
    char id[48];
    uint64_t created_unix, created_ns;
    struct gen_params params;
    struct choice *choices;
    struct choice_ref {
        struct job *job;
        uint32_t index;
    } * choice_refs;
    uint32_t choice_count;
    struct pl_ids *prompts;      /* [prompt_count] */
    struct pl_buf *prompt_texts; /* for echo; may be NULL */
    uint32_t prompt_count;
    /* under lock */
    uint32_t prompt_tokens, cached_tokens, generated_tokens, reasoning_tokens;
    uint64_t queued_ns, first_token_ns; /* the longest wait of a choice; from arrival to the first token of any, 0: none */
    struct pl_request_witness ran;      /* of all choices */
    uint32_t submitted, open;           /* requests submitted and not ended */
    struct MHD_Connection *connection;  /* NULL once the exchange is over */
    int fd;
    bool suspended, ready, failed; /* ready: the answer can be made (not streaming) */
    _Atomic bool left;             /* the client went before its choices had ended */
    struct pl_buf out;             /* streaming: bytes to send */
    size_t out_sent;
    uint32_t event_index;                                              /* numbering of APIs that number their events */
    enum { BLOCK_NONE, BLOCK_TEXT, BLOCK_THINKING, BLOCK_CALL } block; /* APIs whose events come in blocks: the open one */
    size_t block_from;                                                 /* where its text begins */
    size_t block_token;                                                /* of its text, the next whose logprob goes out */
    json_t *tools;                                                     /* what the reply's parser reads types from */
    json_t *echo, *items; /* responses: request fields repeated, output so far */
    struct pl_err err;
    int key_index; /* -1: none */
};

struct exchange {
    struct pl_server *server;
    struct MHD_Connection *connection;
    struct pl_buf body;
    struct job *job;
    uint64_t started_ns;
    unsigned http_status;
    int key_index;
    const char *allow;                     /* of a 405 */
    bool too_large, unauthorised, foreign; /* nothing of the body is kept then */
    const char *came_from;                 /* foreign: the header's value */
    bool routed, cut_path;
    bool answered;                                              /* past the library, while its body is still coming */
    size_t dropped;                                             /* bytes of the body that came after that */
    enum { READING_HERE, READING_LATER, READING_DONE } reading; /* LATER: by another thread, the connection is parked */
    struct MHD_Response *late;                                  /* what that thread answered with; NULL: a job was begun */
    bool broken;                                                /* it could not answer */
    struct exchange *next;                                      /* server->later_lock */
    char path[160];
    char method[12];
    char id[32]; /* of the request, where no job gives it one */
};

/* --- requests --- */
enum MHD_Result dispatch(struct exchange *x); /* to the endpoint's handler (http.c) */

/* --- large requests (later.c) --- */
void later_init(struct pl_server *s);
enum pl_status later_start(struct pl_server *s, struct pl_err *err) PL_MUST_CHECK;
void later_stop(struct pl_server *s);
void later_deinit(struct pl_server *s);
/* True: it is large, its connection is parked and its handler runs on another thread. */
bool later_take(struct exchange *x);
/* The rest, on the connection's own thread. */
enum MHD_Result later_finish(struct exchange *x);

/* --- answers --- */
/* Sends r, or keeps it for the connection's own thread; takes it. */
enum MHD_Result answer_queue(struct exchange *x, unsigned status, struct MHD_Response *r);
enum MHD_Result answer_json(struct exchange *x, unsigned status, json_t *steals);
enum MHD_Result answer_bytes(struct exchange *x, unsigned status, const char *type, const char *data, size_t len);
/* {"error":{"message","type","param","code"}} (Anthropic: {"type":"error","error":{..}} on its paths). */
enum MHD_Result answer_error(struct exchange *x, unsigned status, const char *type, const char *param, const char *fmt, ...)
    PL_PRINTF(5, 6);
unsigned http_status(const struct pl_server *s, enum pl_status st);
enum MHD_Result answer_status(struct exchange *x, const struct pl_err *err, const char *param);
json_t *error_object(enum api_kind api, unsigned status, const char *type, const char *param, const char *message);

/* --- every request (body.c) --- */
/* It comes from a page of somebody else; what names the header's value that says so. */
bool request_is_foreign(const struct exchange *x, const char **what);

/* --- parameters (params.c) --- */
/* Reads the parameters shared by the APIs out of body, removing what it knows. On failure param names the culprit. */
struct param_error {
    char param[64];
    struct pl_err err;
};
/* The body's JSON object. It may change the text: integers beyond 64 bits become fractions. (body.c) */
enum pl_status body_parse(struct pl_buf *text, json_t **out, struct param_error *pe) PL_MUST_CHECK;
enum pl_status params_read(const struct pl_server *s, enum api_kind api, json_t *body, struct gen_params *out,
                           struct param_error *pe) PL_MUST_CHECK;
/* More choices than the queue has places are refused: they would be at any time. */
enum pl_status params_check_choices(const struct pl_server *s, uint32_t prompts, const struct gen_params *p,
                                    struct param_error *pe) PL_MUST_CHECK;
/* After all readers took what they know: what is left is harmless, or an error that names it. */
enum pl_status params_rest(enum api_kind api, const json_t *body, struct param_error *pe) PL_MUST_CHECK;

/* --- chat requests in OpenAI's form, whatever API they came through (chat_request.c) --- */
struct chat_request { /* all owned, each may be NULL */
    json_t *messages, *tools, *tool_choice, *response_format, *grammar, *extra;
    bool single_call; /* parallel_tool_calls: false */
    bool no_reasoning, no_generation_prompt;
    bool continue_final; /* the answer goes on where the last message, the assistant's, ends */
    enum { CHOICE_AUTO, CHOICE_NONE, CHOICE_REQUIRED, CHOICE_NAMED } choice; /* read from tool_choice */
    size_t named;                                                            /* index into tools */
};
void chat_request_deinit(struct chat_request *q);
/* Takes what it knows out of a chat completion's body. */
enum pl_status chat_request_take(json_t *body, struct chat_request *q, struct param_error *pe) PL_MUST_CHECK;
/* Messages and tools as templates expect them, tool_choice read. */
enum pl_status chat_request_check(const struct pl_server *s, struct chat_request *q, struct param_error *pe) PL_MUST_CHECK;
/* Checks messages and tools, renders and tokenises the prompt, sets up the job's reply parser. */
enum pl_status chat_request_prepare(const struct pl_server *s, struct chat_request *q, struct job *j,
                                    struct param_error *pe) PL_MUST_CHECK;
enum pl_status chat_request_render(const struct pl_server *s, struct chat_request *q, struct pl_rendered *out,
                                   struct param_error *pe) PL_MUST_CHECK;
/* Every message in the form templates expect: content one string, arguments objects. (messages.c) */
enum pl_status messages_normalise(const struct pl_server *s, json_t *messages, struct param_error *pe) PL_MUST_CHECK;

/* Writes the grammar of the answer into the job's parameters. q may be NULL. (format.c) */
enum pl_status answer_grammar(const struct chat_request *q, const json_t *grammar, struct job *j,
                              struct param_error *pe) PL_MUST_CHECK;
/* tool_choice required or named: the rules of the answer. (forced.c) */
enum pl_status forced_calls(const struct chat_request *q, const struct job *j, struct pl_buf *g,
                            struct param_error *pe) PL_MUST_CHECK;
enum pl_status make_constraint(const struct job *j, struct pl_constraint **out, struct pl_err *err) PL_MUST_CHECK;
enum pl_status param_bad(struct param_error *pe, const char *name, enum pl_status st, const char *fmt, ...) PL_PRINTF(4, 5);

/* --- jobs (job.c) --- */
struct job *job_create(struct exchange *x, enum api_kind api, const char *id_prefix);
void job_unref(struct job *j);
/* Submits every choice and parks the connection. On failure nothing runs on. */
enum pl_status job_start(struct job *j, struct exchange *x, struct pl_err *err) PL_MUST_CHECK;
void job_abandon(struct job *j);                               /* the client left: cancel what still runs */
enum MHD_Result job_stream(struct job *j, struct exchange *x); /* queues the SSE response */
enum MHD_Result job_wait(struct job *j, struct exchange *x);   /* parks the connection until there is an answer */
enum MHD_Result job_answer(struct exchange *x);                /* the finished answer of a job that does not stream */
void job_cancel(struct job *j);                                /* under its lock: what still runs ends within a step */

/* --- connections (watch.c) --- */
void watch_init(struct pl_server *s);
enum pl_status watch_start(struct pl_server *s, struct pl_err *err) PL_MUST_CHECK;
void watch_stop(struct pl_server *s);
void watch_deinit(struct pl_server *s);
void watch_connection(void *cls, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode code);
void watch_body(struct exchange *x); /* the headers are there */
void watch_work(struct exchange *x); /* so is the body */
void watch_idle(struct exchange *x); /* answered */
void watch_job(struct job *j);       /* its client's leaving cancels it */
void unwatch_job(struct job *j);

/* --- the shapes of each API: called under job->lock --- */
struct api_shape {
    void (*stream_begin)(struct job *j);
    void (*stream_delta)(struct job *j, struct choice *c, uint32_t index, const char *text, size_t len);
    /* NULL where the API has no such thing */
    void (*stream_reasoning)(struct job *j, struct choice *c, uint32_t index, const char *text, size_t len);
    void (*stream_call)(struct job *j, struct choice *c, uint32_t index); /* the last of c->calls begins */
    void (*stream_arguments)(struct job *j, struct choice *c, uint32_t index, const char *text, size_t len);
    void (*stream_choice_end)(struct job *j, struct choice *c, uint32_t index);
    void (*stream_end)(struct job *j);
    void (*stream_error)(struct job *j, unsigned status, const char *message);
    json_t *(*whole)(struct job *j); /* the body of a non-streaming answer */
};
extern const struct api_shape shape_chat, shape_completion, shape_messages, shape_responses;
const struct api_shape *api_shape(enum api_kind api);
/* A JSON string of any bytes; what is no UTF-8 becomes U+FFFD. */
json_t *text_value(const char *text, size_t len);
void add_json(struct pl_buf *b, json_t *steals);
/* Tokens [from, to) with their log-probabilities, as chat completions and responses list them. */
json_t *logprob_list(const struct job *j, const struct choice *c, size_t from, size_t to);
enum MHD_Result finish_start(struct exchange *x, struct job *j, enum pl_status st, const struct param_error *pe);
enum pl_status one_prompt(struct job *j, uint32_t count) PL_MUST_CHECK;

/* --- endpoints --- */
enum MHD_Result handle_chat(struct exchange *x, json_t *body);
enum MHD_Result handle_completion(struct exchange *x, json_t *body);
enum MHD_Result handle_messages(struct exchange *x, json_t *body);
enum MHD_Result handle_count_tokens(struct exchange *x, json_t *body);
enum MHD_Result handle_responses(struct exchange *x, json_t *body);
enum MHD_Result handle_tokenize(struct exchange *x, json_t *body);
enum MHD_Result handle_detokenize(struct exchange *x, json_t *body);
enum MHD_Result handle_apply_template(struct exchange *x, json_t *body);
enum MHD_Result handle_models(struct exchange *x);
enum MHD_Result handle_model(struct exchange *x, const char *id);
enum MHD_Result handle_props(struct exchange *x);
enum MHD_Result handle_slots(struct exchange *x);
enum MHD_Result handle_health(struct exchange *x);
enum MHD_Result handle_ready(struct exchange *x);
enum MHD_Result handle_metrics(struct exchange *x);
enum MHD_Result handle_kernels(struct exchange *x);
enum MHD_Result handle_page(struct exchange *x);
enum MHD_Result handle_openapi(struct exchange *x);
enum MHD_Result handle_witness(struct exchange *x, const char *id);
enum MHD_Result handle_witnesses(struct exchange *x);

/* --- what ran (witness.c) --- */
enum pl_status witness_ring_create(struct pl_server *s) PL_MUST_CHECK;
void witness_ring_destroy(struct pl_server *s);
void witness_add(struct job *j, const struct pl_event *e);
void witness_keep(struct job *j);

#endif
