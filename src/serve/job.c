/* job.c - one generating request: its choices, the events that come for them, the connection that waits.
 *
 * Event order per choice is the service's. Everything below runs under job->lock except where it says otherwise. A
 * connection is parked (suspended) while there is nothing to send; whoever produces something wakes it. */
#include "serve/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "serve/json_out.h"

const struct api_shape *api_shape(enum api_kind api) {
    switch (api) {
    case API_CHAT: return &shape_chat;
    case API_COMPLETION: return &shape_completion;
    case API_MESSAGES: return &shape_messages;
    case API_RESPONSES: return &shape_responses;
    }
    return &shape_chat;
}

void gen_params_deinit(struct gen_params *p) {
    for (size_t i = 0; i < p->reply.name_count; i++) pl_free((void *)(uintptr_t)p->reply.names[i]);
    pl_free((void *)(uintptr_t)p->reply.names);
    pl_free(p->bias);
    pl_buf_deinit(&p->grammar);
    pl_grammar_destroy(p->compiled);
    pl_stops_deinit(&p->stops);
    *p = (struct gen_params){0};
}

/* ---------- life ---------- */

static void choice_deinit(struct choice *c) {
    for (size_t i = 0; i < c->call_count; i++) {
        pl_buf_deinit(&c->calls[i].name);
        pl_buf_deinit(&c->calls[i].arguments);
    }
    pl_free(c->calls);
    pl_buf_deinit(&c->held);
    pl_buf_deinit(&c->text);
    pl_buf_deinit(&c->reasoning);
    pl_reply_destroy(c->reply);
    pl_free(c->tokens);
    pl_free(c->tops);
}

static void job_free(struct job *j) {
    for (uint32_t i = 0; j->choices != NULL && i < j->choice_count; i++) choice_deinit(&j->choices[i]);
    for (uint32_t i = 0; i < j->prompt_count; i++) {
        if (j->prompts != NULL) pl_ids_deinit(&j->prompts[i]);
        if (j->prompt_texts != NULL) pl_buf_deinit(&j->prompt_texts[i]);
    }
    gen_params_deinit(&j->params);
    json_decref(j->tools);
    json_decref(j->echo);
    json_decref(j->items);
    pl_free(j->prompts);
    pl_free(j->prompt_texts);
    pl_free(j->choices);
    pl_free(j->choice_refs);
    pl_buf_deinit(&j->out);
    pthread_mutex_destroy(&j->lock);
    pl_free(j);
}

void job_unref(struct job *j) {
    if (atomic_fetch_sub(&j->refs, 1) != 1) return;
    struct pl_server *s = j->server;
    pthread_mutex_lock(&s->jobs_lock);
    if (j->prev_next != NULL) {
        *j->prev_next = j->next;
        if (j->next != NULL) j->next->prev_next = j->prev_next;
    }
    pthread_mutex_unlock(&s->jobs_lock);
    if (j->key_index >= 0) s->key_active[j->key_index]--;
    job_free(j);
}

struct job *job_create(struct exchange *x, enum api_kind api, const char *id_prefix) {
    struct pl_server *s = x->server;
    struct job *j = pl_calloc(1, sizeof *j);
    if (j == NULL) return NULL;
    *j = (struct job){.server = s, .api = api, .created_unix = (uint64_t)time(NULL), .created_ns = x->started_ns, .fd = -1};
    j->refs = 1;
    j->key_index = x->key_index;
    if (j->key_index >= 0) s->key_active[j->key_index]++;
    pthread_mutex_init(&j->lock, NULL);
    snprintf(j->id, sizeof j->id, "%s%08llx%08llx", id_prefix, (unsigned long long)(s->started_ns & 0xFFFFFFFFu),
             (unsigned long long)(++s->next_id));
    pthread_mutex_lock(&s->jobs_lock);
    j->next = s->jobs;
    j->prev_next = &s->jobs;
    if (j->next != NULL) j->next->prev_next = &j->next;
    s->jobs = j;
    pthread_mutex_unlock(&s->jobs_lock);
    return j;
}

/* ---------- waking and leaving ---------- */

static void wake(struct job *j) {
    if (j->connection == NULL || !j->suspended) return;
    j->suspended = false;
    MHD_resume_connection(j->connection);
}

void job_cancel(struct job *j) {
    for (uint32_t i = 0; i < j->submitted; i++)
        if (!j->choices[i].ended) pl_service_cancel(j->server->service, j->choices[i].number);
}

void job_abandon(struct job *j) {
    pthread_mutex_lock(&j->lock);
    unwatch_job(j);
    j->connection = NULL;
    j->fd = -1;
    job_cancel(j);
    pthread_mutex_unlock(&j->lock);
    job_unref(j);
}

/* ---------- events ---------- */

static void observe(struct time_count *t, uint64_t ns) {
    t->bucket[pl_time_bucket(ns)]++;
    t->sum_ns += ns;
}

static void measure(struct job *j, struct choice *c) {
    struct server_counts *n = &j->server->counts;
    uint64_t now = pl_clock_ns();
    if (c->last_token_ns == 0)
        observe(&n->ttft, now - j->created_ns);
    else
        observe(&n->gap, now - c->last_token_ns);
    if (j->first_token_ns == 0) j->first_token_ns = now - j->created_ns;
    c->last_token_ns = now;
}

/* Whatever the reason, the choice is over. */
static void count_end(struct job *j, const struct choice *c, const struct pl_event *e) {
    struct server_counts *n = &j->server->counts;
    n->ended[e->kind == PL_EVENT_ERROR ? 3 : c->reason == PL_END_STOP ? 0 : c->reason == PL_END_LENGTH ? 1 : 2]++;
    witness_add(j, e);
    if (e->kind == PL_EVENT_ERROR) return;
    observe(&n->queue, e->queued_ns);
    j->queued_ns = PL_MAX(j->queued_ns, e->queued_ns);
}

/* ---------- parts of a reply: kept for the whole answer, sent when streaming ---------- */

static void on_content(void *user, const char *data, size_t len) {
    struct choice_ref *ref = user;
    struct job *j = ref->job;
    struct choice *c = &j->choices[ref->index];
    pl_buf_add(&c->text, data, len);
    if (j->params.stream) api_shape(j->api)->stream_delta(j, c, ref->index, data, len);
    c->token_sent = c->token_count;
}

static void on_reasoning(void *user, const char *data, size_t len) {
    struct choice_ref *ref = user;
    struct job *j = ref->job;
    struct choice *c = &j->choices[ref->index];
    const struct api_shape *shape = api_shape(j->api);
    pl_buf_add(&c->reasoning, data, len);
    c->text_token = c->token_count;
    if (j->params.stream && shape->stream_reasoning != NULL) shape->stream_reasoning(j, c, ref->index, data, len);
}

/* Mistral's templates insist on nine letters or digits; everybody else takes anything. */
static void make_call_id(struct job *j, char out[40]) {
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    uint64_t n = ++j->server->next_id;
    if (j->server->traits.kind == PL_REPLY_MISTRAL) {
        for (int i = 8; i >= 0; i--, n /= 62) out[i] = digits[n % 62];
        out[9] = '\0';
    } else {
        snprintf(out, 40, "%s%08llx%08llx", j->api == API_MESSAGES ? "toolu_" : "call_",
                 (unsigned long long)(j->server->started_ns & 0xFFFFFFFFu), (unsigned long long)n);
    }
}

static void on_call(void *user, const char *name, size_t len) {
    struct choice_ref *ref = user;
    struct job *j = ref->job;
    struct choice *c = &j->choices[ref->index];
    const struct api_shape *shape = api_shape(j->api);
    if (pl_grow(&c->calls, &c->call_cap, c->call_count + 1, sizeof *c->calls) != PL_OK) {
        c->broken = true;
        return;
    }
    struct tool_call *call = &c->calls[c->call_count++];
    *call = (struct tool_call){0};
    make_call_id(j, call->id);
    pl_buf_add(&call->name, name, len);
    if (j->params.stream && shape->stream_call != NULL) shape->stream_call(j, c, ref->index);
}

static void on_arguments(void *user, const char *data, size_t len) {
    struct choice_ref *ref = user;
    struct job *j = ref->job;
    struct choice *c = &j->choices[ref->index];
    const struct api_shape *shape = api_shape(j->api);
    if (c->broken || c->call_count == 0) return;
    pl_buf_add(&c->calls[c->call_count - 1].arguments, data, len);
    if (j->params.stream && shape->stream_arguments != NULL) shape->stream_arguments(j, c, ref->index, data, len);
}

/* Moves `n` bytes from the held text to the reply's parts and to the client. Tokens whose text is still held back have
 * their log-probabilities sent now, one entry per token. */
static void release_text(struct job *j, struct choice *c, uint32_t index, size_t n) {
    if (n > 0 && c->reply != NULL && pl_reply_push(c->reply, c->held.data, n) != PL_OK) c->broken = true;
    if (n > 0 && c->reply == NULL) on_content(&j->choice_refs[index], c->held.data, n);
    if (j->params.stream && j->params.logprobs && c->token_sent < c->token_count) {
        api_shape(j->api)->stream_delta(j, c, index, "", 0);
        c->token_sent = c->token_count;
    }
    if (n == 0) return;
    memmove(c->held.data, c->held.data + n, c->held.len - n + 1);
    c->held.len -= n;
}

static void keep_token(struct job *j, struct choice *c, const struct pl_event *e) {
    if (!j->params.logprobs) return;
    if (j->params.top_logprobs > 0 && e->top_count == 0 && !isnan(e->logprob)) c->broken = true; /* they found no memory */
    if (pl_grow(&c->tokens, &c->token_cap, c->token_count + 1, sizeof *c->tokens) != PL_OK ||
        pl_grow(&c->tops, &c->top_cap, c->top_count + e->top_count, sizeof *c->tops) != PL_OK) {
        c->broken = true;
        return;
    }
    c->tokens[c->token_count++] = (struct kept_token){e->id, e->top_count, c->top_count, e->logprob};
    for (uint32_t i = 0; i < e->top_count; i++)
        c->tops[c->top_count++] = (struct kept_top){e->top_ids[i], e->top_logprobs[i]};
}

/* The prompt's tokens, when echo and logprobs are asked for; nothing precedes the first, so nothing tells how likely it is.
 */
static void on_prompt_token(struct job *j, struct choice *c, const struct pl_event *e) {
    keep_token(j, c, e);
    c->scored = c->token_count;
}

/* Some models mark calls and reasoning by special tokens, which decoding hides. */
static void show_mark(const struct job *j, struct choice *c, uint32_t id) {
    struct pl_str piece;
    const struct pl_tokenizer *t = j->server->tokenizer;
    if (c->reply == NULL || !pl_tokenizer_is_special(t, id) || !pl_tokenizer_piece(t, id, &piece)) return;
    if (pl_reply_is_mark(piece.data, piece.len)) pl_buf_add(&c->held, piece.data, piece.len);
}

static void on_token(struct job *j, struct choice *c, uint32_t index, const struct pl_event *e) {
    if (c->stopped) return;
    measure(j, c);
    c->generated++;
    if (e->is_end_token) return; /* counted, not shown */
    keep_token(j, c, e);
    if (pl_decoder_push(&c->decoder, e->id, &c->held) != PL_OK) return;
    show_mark(j, c, e->id);
    size_t release;
    uint32_t which = 0;
    c->stopped = pl_stops_scan(&j->params.stops, &c->held, &release, &which);
    if (c->stopped) c->stop_index = (int32_t)which;
    bool reasons = c->reply != NULL && pl_reply_in_reasoning(c->reply);
    release_text(j, c, index, release);
    if (reasons || (c->reply != NULL && pl_reply_in_reasoning(c->reply))) c->reasoned++;
    if (c->stopped) pl_service_cancel(j->server->service, c->number);
}

static void finish_job(struct job *j) {
    j->ready = true;
    witness_keep(j);
    if (j->params.stream && !j->failed) api_shape(j->api)->stream_end(j);
}

static void fail_job(struct job *j, const struct pl_err *why) {
    if (j->failed) return;
    j->failed = true;
    j->err = *why;
    job_cancel(j);
    if (j->params.stream) api_shape(j->api)->stream_error(j, http_status(j->server, why->status), why->text);
}

/* What was made while memory ran out is not whole: what a stream got of it since it had `sent` bytes is taken back, and the
 * error told instead; where the job failed meanwhile its own is told again. */
static void fail_starved(struct job *j, size_t sent, bool failed_before) {
    struct pl_err why = {0};
    if (failed_before || (!pl_json_starved() && pl_buf_ok(&j->out))) return;
    pl_json_watch();
    j->out.failed = false;
    if (j->out.len > sent) {
        j->out.len = sent;
        j->out.data[sent] = '\0';
    }
    (void)pl_err_set(&why, __FILE__, __LINE__, PL_NO_MEMORY, "no memory for the answer");
    if (j->failed && j->params.stream)
        api_shape(j->api)->stream_error(j, http_status(j->server, j->err.status), j->err.text);
    fail_job(j, &why);
}

static void on_error(struct job *j, struct choice *c, const struct pl_event *e) {
    c->ended = true;
    fail_job(j, &e->err);
}

static bool is_whole(const struct choice *c) {
    bool ok = !c->broken && pl_buf_ok(&c->text) && pl_buf_ok(&c->held) && pl_buf_ok(&c->reasoning);
    for (size_t i = 0; i < c->call_count; i++) ok &= pl_buf_ok(&c->calls[i].name) && pl_buf_ok(&c->calls[i].arguments);
    return ok;
}

static void on_end(struct job *j, struct choice *c, uint32_t index, const struct pl_event *e) {
    c->ended = true;
    c->reason = c->stopped ? PL_END_STOP : e->reason;
    if (j->failed) return;
    j->generated_tokens += c->generated;
    j->reasoning_tokens += c->reasoned;
    if (c->reason == PL_END_CANCELLED && (j->server->draining || j->left)) { /* half an answer is none */
        struct pl_event cut = {.kind = PL_EVENT_ERROR};
        if (j->left) /* who closed only the sending half still reads */
            (void)pl_err_set(&cut.err, __FILE__, __LINE__, PL_CANCELLED,
                             "the client closed its end of the connection, which cancels its request");
        else
            (void)pl_err_set(&cut.err, __FILE__, __LINE__, PL_BUSY, "the server is shutting down");
        on_error(j, c, &cut);
        return;
    }
    if (!c->stopped) {
        pl_decoder_flush(&c->decoder, &c->held);
        release_text(j, c, index, c->held.len);
    }
    if (c->reply != NULL && pl_reply_finish(c->reply) != PL_OK) c->broken = true;
    if (!is_whole(c)) {
        struct pl_event failed = {.kind = PL_EVENT_ERROR};
        (void)pl_err_set(&failed.err, __FILE__, __LINE__, PL_NO_MEMORY, "no memory for the answer");
        on_error(j, c, &failed);
        return;
    }
    if (index % j->params.n == 0) j->prompt_tokens += e->prompt_tokens; /* a prompt counts once for its n choices */
    if (index % j->params.n == 0) j->cached_tokens += e->cached_tokens;
    if (j->params.stream && !j->failed) api_shape(j->api)->stream_choice_end(j, c, index);
}

/* Called by the service's delivery thread. */
static void on_event(void *user, const struct pl_event *e) {
    struct choice_ref *ref = user;
    struct job *j = ref->job;
    pthread_mutex_lock(&j->lock);
    struct choice *c = &j->choices[ref->index];
    const size_t sent = j->out.len;
    const bool failed_before = j->failed;
    pl_json_watch();
    switch (e->kind) {
    case PL_EVENT_PROMPT: on_prompt_token(j, c, e); break;
    case PL_EVENT_TOKEN:
        if (!j->failed) on_token(j, c, ref->index, e);
        break;
    case PL_EVENT_END: on_end(j, c, ref->index, e); break;
    case PL_EVENT_ERROR: on_error(j, c, e); break;
    }
    bool last = e->kind == PL_EVENT_END || e->kind == PL_EVENT_ERROR;
    if (last) count_end(j, c, e);
    if (last && --j->open == 0) finish_job(j);
    fail_starved(j, sent, failed_before);
    if (j->params.stream ? j->out.len > j->out_sent || j->ready : j->ready) wake(j);
    pthread_mutex_unlock(&j->lock);
    if (last) job_unref(j);
}

/* ---------- starting ---------- */

static enum pl_status prepare_choices(struct job *j, struct pl_err *err) {
    j->choice_count = j->prompt_count * j->params.n;
    j->choices = pl_calloc(j->choice_count, sizeof *j->choices);
    j->choice_refs = pl_calloc(j->choice_count, sizeof *j->choice_refs);
    if (j->choices == NULL || j->choice_refs == NULL)
        PL_FAIL(err, PL_NO_MEMORY, "no memory for %u choices", j->choice_count);
    for (uint32_t i = 0; i < j->choice_count; i++) {
        struct choice *c = &j->choices[i];
        c->prompt = i / j->params.n;
        c->stop_index = -1;
        pl_decoder_init(&c->decoder, j->server->tokenizer, false);
        c->decoder.started = true; /* a continuation: the space before its first word is part of the text */
        j->choice_refs[i] = (struct choice_ref){j, i};
        if (!j->params.parse_reply) continue;
        const struct pl_reply_sink sink = {&j->choice_refs[i], on_content, on_reasoning, on_call, on_arguments};
        if (pl_reply_create(&j->params.reply, &sink, &c->reply) != PL_OK)
            PL_FAIL(err, PL_NO_MEMORY, "no memory for %u choices", j->choice_count);
    }
    return PL_OK;
}

static enum pl_status submit_choice(struct job *j, uint32_t index, struct pl_err *err) {
    struct choice *c = &j->choices[index];
    const struct pl_ids *prompt = &j->prompts[c->prompt];
    struct pl_service_request r = {
        .prompt = prompt->data,
        .prompt_count = prompt->len,
        .max_tokens = j->params.max_tokens,
        .sampling = j->params.sampling,
        .want_logprobs = j->params.logprobs,
        .top_logprobs = j->params.top_logprobs,
        .ignore_eos = j->params.ignore_eos,
        .score_prompt = j->params.echo && j->params.logprobs,
        .no_answer = j->params.no_answer,
        .on_event = on_event,
        .user = &j->choice_refs[index],
    };
    r.group = (uint32_t)(j->key_index + 1);
    r.priority = -j->params.priority; /* the service's higher numbers come first */
    r.sampling.seed += index;         /* each choice its own stream, the first that of a single request */
    if (r.score_prompt) on_prompt_token(j, c, &(struct pl_event){.id = prompt->data[0], .logprob = NAN});
    PL_TRY(make_constraint(j, &r.constraint, err));
    j->refs++;
    j->open++;
    enum pl_status st = pl_service_submit(j->server->service, &r, &c->number, err);
    if (st != PL_OK) {
        pl_constraint_destroy(r.constraint);
        j->open--;
        j->refs--;
        return st;
    }
    j->submitted++;
    return PL_OK;
}

static enum pl_status check_start(struct job *j, struct exchange *x, struct pl_err *err) {
    struct pl_server *s = j->server;
    if (s->draining) PL_FAIL(err, PL_BUSY, "the server is shutting down");
    if (s->opt.per_key_max != 0 && x->key_index >= 0 && s->key_active[x->key_index] > s->opt.per_key_max)
        PL_FAIL(err, PL_BUSY, "this API key has %u requests running, the limit is %u", s->key_active[x->key_index] - 1,
                s->opt.per_key_max);
    return PL_OK;
}

enum pl_status job_start(struct job *j, struct exchange *x, struct pl_err *err) {
    PL_TRY(check_start(j, x, err));
    PL_TRY(prepare_choices(j, err));
    if (pl_json_starved()) PL_FAIL(err, PL_NO_MEMORY, "no memory for the request");
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    enum pl_status st = PL_OK;
    pthread_mutex_lock(&j->lock); /* events wait until all choices are submitted */
    for (uint32_t i = 0; i < j->choice_count && st == PL_OK; i++) st = submit_choice(j, i, err);
    if (st != PL_OK) {
        j->failed = true;
        job_cancel(j);
    } else {
        j->connection = x->connection;
        j->fd = info == NULL ? -1 : info->connect_fd;
        watch_job(j);
        const size_t sent = j->out.len;
        if (j->params.stream) {
            api_shape(j->api)->stream_begin(j);
            fail_starved(j, sent, false);
        } else if (!j->ready && x->reading == READING_HERE) {
            j->suspended = true;
            MHD_suspend_connection(x->connection);
        }
    }
    pthread_mutex_unlock(&j->lock);
    return st;
}

enum MHD_Result job_answer(struct exchange *x) {
    struct job *j = x->job;
    pthread_mutex_lock(&j->lock);
    j->suspended = false;
    bool failed = j->failed;
    struct pl_err err = j->err;
    json_t *body = failed ? NULL : api_shape(j->api)->whole(j);
    pthread_mutex_unlock(&j->lock);
    return failed ? answer_status(x, &err, NULL) : answer_json(x, 200, body);
}

enum MHD_Result job_wait(struct job *j, struct exchange *x) {
    pthread_mutex_lock(&j->lock);
    bool waits = !j->ready;
    if (waits) {
        j->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&j->lock);
    return waits ? MHD_YES : job_answer(x);
}

/* ---------- streaming ---------- */

static ssize_t stream_read(void *cls, uint64_t pos, char *out, size_t max) {
    (void)pos;
    struct job *j = cls;
    pthread_mutex_lock(&j->lock);
    size_t left = j->out.len - j->out_sent;
    ssize_t n = 0;
    if (!pl_buf_ok(&j->out)) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (left > 0) {
        size_t take = PL_MIN(left, max);
        memcpy(out, j->out.data + j->out_sent, take);
        j->out_sent += take;
        if (j->out_sent == j->out.len) {
            pl_buf_clear(&j->out);
            j->out_sent = 0;
        }
        n = (ssize_t)take;
    } else if (j->ready) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else if (j->connection != NULL) {
        j->suspended = true;
        MHD_suspend_connection(j->connection);
    }
    pthread_mutex_unlock(&j->lock);
    return n;
}

enum MHD_Result job_stream(struct job *j, struct exchange *x) {
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16 * 1024, stream_read, j, NULL);
    if (r == NULL) return MHD_NO;
    x->server->counts.streams++;
    MHD_add_response_header(r, "Content-Type", "text/event-stream; charset=utf-8");
    MHD_add_response_header(r, "Cache-Control", "no-cache");
    MHD_add_response_header(r, "X-Accel-Buffering", "no");
    MHD_add_response_header(r, "Server", "plumb/" PLUMB_VERSION);
    MHD_add_response_header(r, j->api == API_MESSAGES ? "request-id" : "x-request-id", j->id);
    if (x->server->opt.cors) MHD_add_response_header(r, "Access-Control-Allow-Origin", "*");
    return answer_queue(x, 200, r);
}
