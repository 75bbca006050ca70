/* api_openai.c - /v1/chat/completions and /v1/completions: reading the request, and the shapes of the answers. */
#include "serve/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "serve/json_out.h"

/* ---------- shared pieces ---------- */

static const char *finish_text(const struct choice *c) {
    switch (c->reason) {
    case PL_END_STOP: return c->call_count > 0 ? "tool_calls" : "stop";
    case PL_END_LENGTH: return "length";
    case PL_END_CANCELLED: break;
    }
    return "stop";
}

static json_t *usage_object(const struct job *j) {
    return json_pack("{s:i, s:i, s:i, s:{s:i}, s:{s:i}}", "prompt_tokens", (int)j->prompt_tokens, "completion_tokens",
                     (int)j->generated_tokens, "total_tokens", (int)(j->prompt_tokens + j->generated_tokens),
                     "prompt_tokens_details", "cached_tokens", (int)j->cached_tokens, "completion_tokens_details",
                     "reasoning_tokens", (int)j->reasoning_tokens);
}

void add_json(struct pl_buf *b, json_t *steals) {
    char *text = steals == NULL ? NULL : pl_json_write(steals, JSON_COMPACT);
    json_decref(steals);
    if (text != NULL)
        pl_buf_add_c(b, text);
    else
        pl_json_starve(); /* the caller's event is taken back (job.c) */
    free(text);
}

static void chunk_head(struct job *j, const char *object) {
    pl_buf_printf(&j->out, "data: {\"id\":\"%s\",\"object\":\"%s\",\"created\":%llu,\"model\":", j->id, object,
                  (unsigned long long)j->created_unix);
    pl_json_add_string(&j->out, j->server->model_name, strlen(j->server->model_name));
    pl_buf_add_c(&j->out, ",\"system_fingerprint\":\"plumb-" PLUMB_VERSION "\"");
}

/* Documented: with include_usage every other chunk has a usage that is null. */
static void chunk_begin(struct job *j, const char *object) {
    chunk_head(j, object);
    if (j->params.include_usage) pl_buf_add_c(&j->out, ",\"usage\":null");
}

static void chunk_usage(struct job *j, const char *object) {
    if (j->params.include_usage) {
        chunk_head(j, object);
        pl_buf_add_c(&j->out, ",\"choices\":[],\"usage\":");
        add_json(&j->out, usage_object(j));
        pl_buf_add_c(&j->out, "}\n\n");
    }
    pl_buf_add_c(&j->out, "data: [DONE]\n\n");
}

static void stream_error(struct job *j, unsigned status, const char *message) {
    pl_buf_add_c(&j->out, "data: ");
    add_json(&j->out, error_object(j->api, status, NULL, NULL, message));
    pl_buf_add_c(&j->out, "\n\n");
}

/* ---------- log-probabilities ---------- */

static struct pl_str piece(const struct job *j, uint32_t id) {
    struct pl_str s = {"", 0};
    (void)pl_tokenizer_piece(j->server->tokenizer, id, &s);
    return s;
}

static void add_token_fields(struct pl_buf *b, const struct job *j, uint32_t id, double logprob) {
    struct pl_str p = piece(j, id);
    pl_buf_add_c(b, "\"token\":");
    pl_json_add_string(b, p.data, p.len);
    pl_buf_add_c(b, ",\"logprob\":");
    pl_json_add_number(b, logprob);
    pl_buf_add_c(b, ",\"bytes\":[");
    for (size_t i = 0; i < p.len; i++) pl_buf_printf(b, "%s%u", i == 0 ? "" : ",", (unsigned)(unsigned char)p.data[i]);
    pl_buf_add_c(b, "]");
}

/* [{token, logprob, bytes, top_logprobs:[..]}], one entry per token, always */
static void add_logprob_list(struct pl_buf *b, const struct job *j, const struct choice *c, size_t from, size_t to) {
    pl_buf_add_char(b, '[');
    for (size_t i = from; i < to; i++) {
        const struct kept_token *e = &c->tokens[i];
        const struct kept_top *top = &c->tops[e->top_from];
        pl_buf_add_c(b, i == from ? "{" : ",{");
        add_token_fields(b, j, e->id, e->logprob);
        pl_buf_add_c(b, ",\"top_logprobs\":[");
        for (uint32_t k = 0; k < e->top_count; k++) {
            pl_buf_add_c(b, k == 0 ? "{" : ",{");
            add_token_fields(b, j, top[k].id, top[k].logprob);
            pl_buf_add_char(b, '}');
        }
        pl_buf_add_c(b, "]}");
    }
    pl_buf_add_char(b, ']');
}

/* The value that was written into b, which ends here. */
static json_t *taken_json(struct pl_buf *b, size_t flags) {
    if (!pl_buf_ok(b)) pl_json_starve();
    json_t *v = pl_buf_ok(b) ? pl_json_read(b->data, b->len, flags | JSON_ALLOW_NUL, NULL) : NULL;
    pl_buf_deinit(b);
    return v;
}

json_t *logprob_list(const struct job *j, const struct choice *c, size_t from, size_t to) {
    struct pl_buf b = {0};
    add_logprob_list(&b, j, c, from, to);
    return taken_json(&b, 0);
}

static void add_chat_logprobs(struct pl_buf *b, const struct job *j, const struct choice *c, size_t from, size_t to) {
    pl_buf_add_c(b, "{\"content\":");
    add_logprob_list(b, j, c, from, to);
    pl_buf_add_c(b, ",\"refusal\":null}");
}

/* A token that is a part of a character has no text of its own: OpenAI writes its bytes. So is one with U+0000 written,
 * which the name of a field cannot hold. */
static void add_piece(struct pl_buf *b, const struct job *j, uint32_t id) {
    struct pl_str p = piece(j, id);
    if (pl_utf8_valid(p.data, p.len) && memchr(p.data, 0, p.len) == NULL) {
        pl_json_add_string(b, p.data, p.len);
        return;
    }
    pl_buf_add_c(b, "\"bytes:");
    for (size_t i = 0; i < p.len; i++) pl_buf_printf(b, "\\\\x%02x", (unsigned)(unsigned char)p.data[i]);
    pl_buf_add_char(b, '"');
}

static size_t count_chars(const char *s, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += ((unsigned char)s[i] & 0xC0) != 0x80;
    return n;
}

/* How many bytes of the prompt's text token i stands for: none for those that were put before it, and a space that the
 * tokenizer added is none of the text's. */
static size_t prompt_bytes(const struct job *j, const struct choice *c, size_t i) {
    const struct pl_buf *text = &j->prompt_texts[c->prompt];
    const char *rest = pl_buf_cstr(text) + c->offset_bytes;
    struct pl_str p = piece(j, c->tokens[i].id);
    size_t left = text->len - c->offset_bytes;
    if (p.len <= left && memcmp(rest, p.data, p.len) == 0) return p.len;
    if (p.len > 0 && p.len - 1 <= left && p.data[0] == ' ' && memcmp(rest, p.data + 1, p.len - 1) == 0) return p.len - 1;
    return pl_tokenizer_is_special(j->server->tokenizer, c->tokens[i].id) ? 0 : PL_MIN(p.len, left);
}

/* In characters from the beginning of the text that is returned. */
static size_t text_offset(const struct job *j, struct choice *c, size_t token) {
    for (; c->offset_token < token; c->offset_token++) {
        size_t i = c->offset_token;
        if (i < c->scored) {
            size_t n = prompt_bytes(j, c, i);
            c->offset_chars += count_chars(pl_buf_cstr(&j->prompt_texts[c->prompt]) + c->offset_bytes, n);
            c->offset_bytes += n;
        } else if (!pl_tokenizer_is_special(j->server->tokenizer, c->tokens[i].id)) {
            struct pl_str p = piece(j, c->tokens[i].id);
            c->offset_chars += count_chars(p.data, p.len);
        }
    }
    return c->offset_chars;
}

static void add_legacy_top(struct pl_buf *b, const struct job *j, const struct choice *c, const struct kept_token *t) {
    bool chosen = false; /* documented: the token itself is always there, so there may be one more */
    if (isnan(t->logprob)) {
        pl_buf_add_c(b, "null");
        return;
    }
    pl_buf_add_char(b, '{');
    for (uint32_t k = 0; k < t->top_count; k++) {
        const struct kept_top *top = &c->tops[t->top_from + k];
        chosen |= top->id == t->id;
        if (k > 0) pl_buf_add_char(b, ',');
        add_piece(b, j, top->id);
        pl_buf_add_char(b, ':');
        pl_json_add_number(b, top->logprob);
    }
    if (!chosen) {
        if (t->top_count > 0) pl_buf_add_char(b, ',');
        add_piece(b, j, t->id);
        pl_buf_add_char(b, ':');
        pl_json_add_number(b, t->logprob);
    }
    pl_buf_add_char(b, '}');
}

/* completions: {"tokens":[], "token_logprobs":[], "top_logprobs":[{text: lp}], "text_offset":[]} */
static void add_legacy_logprobs(struct pl_buf *b, const struct job *j, struct choice *c, size_t from, size_t to) {
    pl_buf_add_c(b, "{\"tokens\":[");
    for (size_t i = from; i < to; i++) {
        if (i > from) pl_buf_add_char(b, ',');
        add_piece(b, j, c->tokens[i].id);
    }
    pl_buf_add_c(b, "],\"token_logprobs\":[");
    for (size_t i = from; i < to; i++) {
        if (i > from) pl_buf_add_char(b, ',');
        if (isnan(c->tokens[i].logprob))
            pl_buf_add_c(b, "null");
        else
            pl_json_add_number(b, c->tokens[i].logprob);
    }
    pl_buf_add_c(b, "],\"top_logprobs\":");
    if (j->params.top_logprobs == 0) {
        pl_buf_add_c(b, "null");
    } else {
        pl_buf_add_char(b, '[');
        for (size_t i = from; i < to; i++) {
            if (i > from) pl_buf_add_char(b, ',');
            add_legacy_top(b, j, c, &c->tokens[i]);
        }
        pl_buf_add_char(b, ']');
    }
    pl_buf_add_c(b, ",\"text_offset\":[");
    for (size_t i = from; i < to; i++) pl_buf_printf(b, "%s%zu", i == from ? "" : ",", text_offset(j, c, i));
    pl_buf_add_c(b, "]}");
}

static json_t *logprobs_object(struct job *j, struct choice *c) {
    if (!j->params.logprobs) return json_null();
    struct pl_buf b = {0};
    if (j->api == API_CHAT)
        add_chat_logprobs(&b, j, c, 0, c->token_count);
    else
        add_legacy_logprobs(&b, j, c, 0, c->token_count);
    return taken_json(&b, 0);
}

/* The released text; bytes that are no UTF-8 (a model may produce any) become U+FFFD as they do in a stream. */
json_t *text_value(const char *text, size_t len) {
    struct pl_buf b = {0};
    pl_json_add_string(&b, text, len);
    return taken_json(&b, JSON_DECODE_ANY);
}

/* ---------- chat ---------- */

#define CHAT_CHUNK "chat.completion.chunk"

static void chat_stream_begin(struct job *j) {
    for (uint32_t i = 0; i < j->choice_count; i++) {
        chunk_begin(j, CHAT_CHUNK);
        pl_buf_printf(&j->out,
                      ",\"choices\":[{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                      "\"finish_reason\":null}]}\n\n",
                      i);
    }
}

static void delta_begin(struct job *j, uint32_t index) {
    chunk_begin(j, CHAT_CHUNK);
    pl_buf_printf(&j->out, ",\"choices\":[{\"index\":%u,\"delta\":{", index);
}

static void chat_stream_delta(struct job *j, struct choice *c, uint32_t index, const char *text, size_t len) {
    delta_begin(j, index);
    pl_buf_add_c(&j->out, "\"content\":");
    pl_json_add_string(&j->out, text, len);
    pl_buf_add_c(&j->out, "},\"logprobs\":");
    if (j->params.logprobs)
        add_chat_logprobs(&j->out, j, c, c->token_sent, c->token_count);
    else
        pl_buf_add_c(&j->out, "null");
    pl_buf_add_c(&j->out, ",\"finish_reason\":null}]}\n\n");
}

static void chat_stream_reasoning(struct job *j, struct choice *c, uint32_t index, const char *text, size_t len) {
    (void)c;
    delta_begin(j, index);
    pl_buf_add_c(&j->out, "\"reasoning_content\":");
    pl_json_add_string(&j->out, text, len);
    pl_buf_add_c(&j->out, "},\"logprobs\":null,\"finish_reason\":null}]}\n\n");
}

static void chat_stream_call(struct job *j, struct choice *c, uint32_t index) {
    const struct tool_call *call = &c->calls[c->call_count - 1];
    delta_begin(j, index);
    pl_buf_printf(&j->out, "\"tool_calls\":[{\"index\":%zu,\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":",
                  c->call_count - 1, call->id);
    pl_json_add_string(&j->out, pl_buf_cstr(&call->name), call->name.len);
    pl_buf_add_c(&j->out, ",\"arguments\":\"\"}}]},\"logprobs\":null,\"finish_reason\":null}]}\n\n");
}

static void chat_stream_arguments(struct job *j, struct choice *c, uint32_t index, const char *text, size_t len) {
    delta_begin(j, index);
    pl_buf_printf(&j->out, "\"tool_calls\":[{\"index\":%zu,\"function\":{\"arguments\":", c->call_count - 1);
    pl_json_add_string(&j->out, text, len);
    pl_buf_add_c(&j->out, "}}]},\"logprobs\":null,\"finish_reason\":null}]}\n\n");
}

static void chat_stream_choice_end(struct job *j, struct choice *c, uint32_t index) {
    chunk_begin(j, CHAT_CHUNK);
    pl_buf_printf(&j->out, ",\"choices\":[{\"index\":%u,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"%s\"}]}\n\n",
                  index, finish_text(c));
}

static void chat_stream_end(struct job *j) { chunk_usage(j, CHAT_CHUNK); }

/* content is null when there is nothing but calls, as OpenAI has it. */
static json_t *chat_message(const struct choice *c) {
    bool none = c->call_count > 0 && c->text.len == 0;
    json_t *m = json_pack("{s:s, s:o, s:n}", "role", "assistant", "content",
                          none ? json_null() : text_value(pl_buf_cstr(&c->text), c->text.len), "refusal");
    if (c->reasoning.len > 0)
        json_object_set_new(m, "reasoning_content", text_value(pl_buf_cstr(&c->reasoning), c->reasoning.len));
    json_t *calls = json_array();
    for (size_t i = 0; i < c->call_count; i++) {
        const struct tool_call *t = &c->calls[i];
        json_array_append_new(calls, json_pack("{s:s, s:s, s:{s:o, s:o}}", "id", t->id, "type", "function", "function",
                                               "name", text_value(pl_buf_cstr(&t->name), t->name.len), "arguments",
                                               text_value(pl_buf_cstr(&t->arguments), t->arguments.len)));
    }
    if (c->call_count > 0)
        json_object_set_new(m, "tool_calls", calls);
    else
        json_decref(calls);
    return m;
}

/* Takes value. */
static void add_choice(struct job *j, json_t *list, uint32_t index, const char *name, json_t *value) {
    struct choice *c = &j->choices[index];
    json_array_append_new(list, json_pack("{s:i, s:o, s:o, s:s}", "index", (int)index, name, value, "logprobs",
                                          logprobs_object(j, c), "finish_reason", finish_text(c)));
}

/* Takes choices. An answer that lacks one is none. */
static json_t *whole_answer(struct job *j, const char *object, json_t *choices) {
    if (json_array_size(choices) != j->choice_count) {
        json_decref(choices);
        choices = NULL;
    }
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:o, s:o}", "id", j->id, "object", object, "created",
                     (json_int_t)j->created_unix, "model", j->server->model_name, "system_fingerprint",
                     "plumb-" PLUMB_VERSION, "choices", choices, "usage", usage_object(j));
}

static json_t *chat_whole(struct job *j) {
    json_t *choices = json_array();
    for (uint32_t i = 0; i < j->choice_count; i++) add_choice(j, choices, i, "message", chat_message(&j->choices[i]));
    return whole_answer(j, "chat.completion", choices);
}

const struct api_shape shape_chat = {.stream_begin = chat_stream_begin,
                                     .stream_delta = chat_stream_delta,
                                     .stream_reasoning = chat_stream_reasoning,
                                     .stream_call = chat_stream_call,
                                     .stream_arguments = chat_stream_arguments,
                                     .stream_choice_end = chat_stream_choice_end,
                                     .stream_end = chat_stream_end,
                                     .stream_error = stream_error,
                                     .whole = chat_whole};

/* ---------- completions ---------- */

static void completion_chunk(struct job *j, uint32_t index, const char *text, size_t len, struct choice *c,
                             const char *finish, size_t logprobs_to) {
    chunk_begin(j, "text_completion");
    pl_buf_printf(&j->out, ",\"choices\":[{\"index\":%u,\"text\":", index);
    pl_json_add_string(&j->out, text, len);
    pl_buf_add_c(&j->out, ",\"logprobs\":");
    if (j->params.logprobs && finish == NULL)
        add_legacy_logprobs(&j->out, j, c, c->token_sent, logprobs_to);
    else
        pl_buf_add_c(&j->out, "null");
    if (finish != NULL)
        pl_buf_printf(&j->out, ",\"finish_reason\":\"%s\"}]}\n\n", finish);
    else
        pl_buf_add_c(&j->out, ",\"finish_reason\":null}]}\n\n");
}

/* The prompt goes out first, with its log-probabilities as soon as there is something after them. */
static void stream_echo(struct job *j, struct choice *c, uint32_t index) {
    if (!j->params.echo || c->echoed) return;
    const struct pl_buf *text = &j->prompt_texts[c->prompt];
    c->echoed = true;
    completion_chunk(j, index, pl_buf_cstr(text), text->len, c, NULL, c->scored);
    c->token_sent = c->scored;
}

static void completion_stream_begin(struct job *j) {
    for (uint32_t i = 0; i < j->choice_count && !j->params.logprobs; i++) stream_echo(j, &j->choices[i], i);
}
static void completion_stream_delta(struct job *j, struct choice *c, uint32_t index, const char *text, size_t len) {
    stream_echo(j, c, index);
    completion_chunk(j, index, text, len, c, NULL, c->token_count);
}
static void completion_stream_choice_end(struct job *j, struct choice *c, uint32_t index) {
    stream_echo(j, c, index);
    completion_chunk(j, index, "", 0, c, finish_text(c), 0);
}
static void completion_stream_end(struct job *j) { chunk_usage(j, "text_completion"); }

static json_t *completion_text(const struct job *j, const struct choice *c) {
    struct pl_buf b = {0};
    const struct pl_buf *prompt = &j->prompt_texts[c->prompt];
    if (j->params.echo) pl_buf_add(&b, pl_buf_cstr(prompt), prompt->len);
    pl_buf_add(&b, pl_buf_cstr(&c->text), c->text.len);
    if (!pl_buf_ok(&b)) pl_json_starve();
    json_t *v = pl_buf_ok(&b) ? text_value(pl_buf_cstr(&b), b.len) : NULL;
    pl_buf_deinit(&b);
    return v;
}

static json_t *completion_whole(struct job *j) {
    json_t *choices = json_array();
    for (uint32_t i = 0; i < j->choice_count; i++) add_choice(j, choices, i, "text", completion_text(j, &j->choices[i]));
    return whole_answer(j, "text_completion", choices);
}

const struct api_shape shape_completion = {.stream_begin = completion_stream_begin,
                                           .stream_delta = completion_stream_delta,
                                           .stream_choice_end = completion_stream_choice_end,
                                           .stream_end = completion_stream_end,
                                           .stream_error = stream_error,
                                           .whole = completion_whole};

/* ---------- requests ---------- */

enum MHD_Result finish_start(struct exchange *x, struct job *j, enum pl_status st, const struct param_error *pe) {
    struct pl_err err = pe->err;
    if (st == PL_OK) st = job_start(j, x, &err);
    if (st == PL_OK) {
        x->job = j; /* the exchange's reference */
        return j->params.stream ? job_stream(j, x) : MHD_YES;
    }
    err.status = st;
    const char *param = pe->param;
    if (st == PL_LIMIT && param[0] == '\0') /* the context is too small for it */
        param = j->api == API_COMPLETION ? "prompt" : j->api == API_RESPONSES ? "input" : "messages";
    enum MHD_Result r = answer_status(x, &err, param);
    job_unref(j);
    return r;
}

enum pl_status one_prompt(struct job *j, uint32_t count) {
    j->prompts = pl_calloc(count, sizeof *j->prompts);
    j->prompt_texts = pl_calloc(count, sizeof *j->prompt_texts);
    if (j->prompts == NULL || j->prompt_texts == NULL) return PL_NO_MEMORY;
    j->prompt_count = count;
    return PL_OK;
}

static enum pl_status chat_read(struct exchange *x, struct job *j, json_t *body, struct param_error *pe) {
    struct chat_request q = {0};
    enum pl_status st = chat_request_take(body, &q, pe);
    if (st == PL_OK) st = params_read(x->server, API_CHAT, body, &j->params, pe);
    if (st == PL_OK) st = params_rest(API_CHAT, body, pe);
    if (st == PL_OK) st = chat_request_prepare(x->server, &q, j, pe);
    chat_request_deinit(&q);
    return st;
}

enum MHD_Result handle_chat(struct exchange *x, json_t *body) {
    struct param_error pe = {0};
    struct job *j = job_create(x, API_CHAT, "chatcmpl-");
    if (j == NULL) return answer_error(x, 503, NULL, NULL, "no memory for the request");
    return finish_start(x, j, chat_read(x, j, body, &pe), &pe);
}

static enum pl_status prompt_from_ids(const json_t *list, uint32_t vocab, struct pl_ids *out, struct pl_err *err) {
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)(uintptr_t)list, i, v) {
        if (!json_is_integer(v)) PL_FAIL(err, PL_INVALID, "prompt token %zu is no token id", i);
        if (json_integer_value(v) < 0 || json_integer_value(v) >= vocab)
            PL_FAIL(err, PL_INVALID, "prompt token %zu is %lld, the vocabulary has %u", i, (long long)json_integer_value(v),
                    vocab);
        if (pl_grow(&out->data, &out->cap, out->len + 1, sizeof *out->data) != PL_OK)
            PL_FAIL(err, PL_NO_MEMORY, "no memory for the prompt");
        out->data[out->len++] = (uint32_t)json_integer_value(v);
    }
    return PL_OK;
}

/* A completion prompt is the caller's own raw text: special tokens written in it are meant. */
static enum pl_status read_prompt(struct exchange *x, struct job *j, uint32_t i, const json_t *v, struct pl_err *err) {
    if (json_is_array(v))
        PL_TRY(prompt_from_ids(v, x->server->engine->config.vocab, &j->prompts[i], err));
    else if (!json_is_string(v))
        PL_FAIL(err, PL_INVALID, "prompt is no string, list of strings or list of token ids");
    if (json_is_string(v)) {
        struct pl_encode_options o = {.add_special = true, .parse_special = true};
        PL_TRY(
            pl_tokenizer_encode(x->server->tokenizer, json_string_value(v), json_string_length(v), &o, &j->prompts[i], err));
        pl_buf_add(&j->prompt_texts[i], json_string_value(v), json_string_length(v));
    } else {
        PL_TRY(pl_tokenizer_decode(x->server->tokenizer, j->prompts[i].data, j->prompts[i].len, true, &j->prompt_texts[i]));
    }
    if (!pl_buf_ok(&j->prompt_texts[i])) PL_FAIL(err, PL_NO_MEMORY, "no memory for the prompt");
    if (j->prompts[i].len == 0)
        PL_FAIL(err, PL_INVALID, "the prompt is empty and this model has no token that begins a text");
    return PL_OK;
}

static enum pl_status read_prompts(struct exchange *x, struct job *j, const json_t *prompt, struct param_error *pe) {
    snprintf(pe->param, sizeof pe->param, "prompt");
    if (prompt == NULL) PL_FAIL(&pe->err, PL_INVALID, "prompt is missing");
    bool many = json_is_array(prompt) && json_array_size(prompt) > 0 && !json_is_integer(json_array_get(prompt, 0));
    size_t count = many ? json_array_size(prompt) : 1;
    if (count > 64) PL_FAIL(&pe->err, PL_INVALID, "%zu prompts in one request, at most 64 are taken", count);
    PL_TRY(one_prompt(j, (uint32_t)count));
    for (size_t i = 0; i < count; i++)
        PL_TRY(read_prompt(x, j, (uint32_t)i, many ? json_array_get(prompt, i) : prompt, &pe->err));
    pe->param[0] = '\0';
    return PL_OK;
}

static enum pl_status completion_read(struct exchange *x, struct job *j, json_t *body, struct param_error *pe) {
    json_t *prompt = json_incref(json_object_get(body, "prompt")), *grammar = json_incref(json_object_get(body, "grammar"));
    json_object_del(body, "prompt");
    json_object_del(body, "grammar");
    const json_t *best_of = json_object_get(body, "best_of");
    enum pl_status st = PL_OK;
    if (best_of != NULL && !json_is_null(best_of) && !(json_is_integer(best_of) && json_integer_value(best_of) == 1)) {
        snprintf(pe->param, sizeof pe->param, "best_of");
        st = pl_err_set(&pe->err, __FILE__, __LINE__, PL_INVALID, "best_of is not supported; use n and choose yourself");
    }
    json_object_del(body, "best_of");
    const json_t *max = json_object_get(body, "max_tokens");
    if (json_is_integer(max) && json_integer_value(max) == 0) { /* only the prompt, scored when echo and logprobs say so */
        j->params.no_answer = true;
        json_object_del(body, "max_tokens");
    }
    if (st == PL_OK) st = params_read(x->server, API_COMPLETION, body, &j->params, pe);
    if (st == PL_OK && j->params.max_tokens == 0) j->params.max_tokens = 16; /* the documented default of this endpoint */
    if (st == PL_OK) st = params_rest(API_COMPLETION, body, pe);
    if (st == PL_OK) st = read_prompts(x, j, prompt, pe);
    if (st == PL_OK) st = params_check_choices(x->server, j->prompt_count, &j->params, pe);
    if (st == PL_OK && !json_is_null(grammar)) st = answer_grammar(NULL, grammar, j, pe);
    json_decref(prompt);
    json_decref(grammar);
    return st;
}

enum MHD_Result handle_completion(struct exchange *x, json_t *body) {
    struct param_error pe = {0};
    struct job *j = job_create(x, API_COMPLETION, "cmpl-");
    if (j == NULL) return answer_error(x, 503, NULL, NULL, "no memory for the request");
    return finish_start(x, j, completion_read(x, j, body, &pe), &pe);
}
