/* api_messages.c - Anthropic's /v1/messages: its requests in OpenAI's form, its answers and events in its own. */
#include "serve/internal.h"

#include <string.h>

#include "base/mem.h"
#include "file/file.h"

/* ---------- requests ---------- */

static json_t *take(json_t *body, const char *name) {
    json_t *v = json_object_get(body, name);
    v = json_is_null(v) ? NULL : json_incref(v);
    json_object_del(body, name);
    return v;
}

static const char *type_of(const json_t *block) {
    const char *type = json_string_value(json_object_get(block, "type"));
    return type != NULL ? type : "";
}

/* A tool_use block as a call of an assistant message. */
static json_t *call_from(const json_t *block) {
    json_t *input = json_object_get(block, "input");
    return json_pack("{s:O?, s:s, s:{s:O?, s:o}}", "id", json_object_get(block, "id"), "type", "function", "function",
                     "name", json_object_get(block, "name"), "arguments",
                     input == NULL ? json_object() : json_incref(input));
}

/* One message of blocks: results of tools become messages of their own, before what the user says. */
static enum pl_status add_blocks(json_t *out, const char *role, const json_t *blocks, struct param_error *pe) {
    json_t *parts = json_array(), *calls = json_array();
    struct pl_buf thought = {0};
    enum pl_status st = PL_OK;
    for (size_t i = 0; i < json_array_size(blocks) && st == PL_OK; i++) {
        json_t *b = json_array_get(blocks, i), *content = json_object_get(b, "content");
        const char *type = type_of(b);
        if (strcmp(type, "text") == 0)
            json_array_append(parts, b);
        else if (strcmp(type, "tool_use") == 0)
            json_array_append_new(calls, call_from(b));
        else if (strcmp(type, "tool_result") == 0)
            json_array_append_new(out, json_pack("{s:s, s:O?, s:o}", "role", "tool", "tool_call_id",
                                                 json_object_get(b, "tool_use_id"), "content",
                                                 content == NULL ? json_string("") : json_incref(content)));
        else if (strcmp(type, "thinking") == 0 && json_is_string(json_object_get(b, "thinking")))
            pl_buf_add(&thought, json_string_value(json_object_get(b, "thinking")),
                       json_string_length(json_object_get(b, "thinking")));
        else if (strcmp(type, "thinking") != 0 && strcmp(type, "redacted_thinking") != 0)
            st = param_bad(pe, "messages", PL_INVALID, "a content block is of type '%.40s', which this server does not take",
                           type);
    }
    bool any = json_array_size(parts) + json_array_size(calls) > 0;
    if (st == PL_OK && any)
        json_array_append_new(out, json_pack("{s:s, s:O, s:O, s:o*}", "role", role, "content", parts, "tool_calls", calls,
                                             "reasoning_content",
                                             thought.len > 0 ? text_value(thought.data, thought.len) : NULL));
    if (!pl_buf_ok(&thought)) st = param_bad(pe, "messages", PL_NO_MEMORY, "no memory for the messages");
    pl_buf_deinit(&thought);
    json_decref(parts);
    json_decref(calls);
    return st;
}

static enum pl_status add_message(json_t *out, json_t *m, struct param_error *pe) {
    const char *role = json_string_value(json_object_get(m, "role"));
    json_t *content = json_object_get(m, "content");
    if (role == NULL || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0))
        return param_bad(pe, "messages", PL_INVALID, "a message's role is not 'user' or 'assistant'");
    if (json_is_array(content)) return add_blocks(out, role, content, pe);
    if (!json_is_string(content))
        return param_bad(pe, "messages", PL_INVALID, "a message's content is no string or list of blocks");
    json_array_append_new(out, json_pack("{s:s, s:O}", "role", role, "content", content));
    return PL_OK;
}

static enum pl_status read_messages(const json_t *messages, json_t *system, struct chat_request *q, struct param_error *pe) {
    q->messages = json_array();
    if (q->messages == NULL) return param_bad(pe, "messages", PL_NO_MEMORY, "no memory for the messages");
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return param_bad(pe, "messages", PL_INVALID, "messages is missing or no list of messages");
    if (system != NULL && !json_is_string(system) && !json_is_array(system))
        return param_bad(pe, "system", PL_INVALID, "system is no string or list of text blocks");
    if (system != NULL) json_array_append_new(q->messages, json_pack("{s:s, s:O}", "role", "system", "content", system));
    for (size_t i = 0; i < json_array_size(messages); i++) PL_TRY(add_message(q->messages, json_array_get(messages, i), pe));
    return PL_OK;
}

static enum pl_status read_tools(const json_t *tools, const json_t *choice, struct chat_request *q, struct param_error *pe) {
    const char *type = type_of(choice);
    if (tools != NULL && !json_is_array(tools)) return param_bad(pe, "tools", PL_INVALID, "tools is no list");
    if (json_array_size(tools) > 0) q->tools = json_array();
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *t = json_array_get(tools, i), *schema = json_object_get(t, "input_schema"), *f = json_object();
        if (schema == NULL) {
            json_decref(f);
            return param_bad(pe, "tools", PL_INVALID, "tool %zu has no input_schema: only tools of the caller are known", i);
        }
        json_object_set(f, "name", json_object_get(t, "name"));
        if (json_object_get(t, "description") != NULL) json_object_set(f, "description", json_object_get(t, "description"));
        json_object_set(f, "parameters", schema);
        json_array_append_new(q->tools, json_pack("{s:s, s:o}", "type", "function", "function", f));
    }
    if (choice == NULL) return PL_OK;
    q->single_call = json_is_true(json_object_get(choice, "disable_parallel_tool_use"));
    if (strcmp(type, "tool") == 0)
        q->tool_choice =
            json_pack("{s:s, s:{s:O?}}", "type", "function", "function", "name", json_object_get(choice, "name"));
    else if (strcmp(type, "auto") == 0 || strcmp(type, "none") == 0)
        q->tool_choice = json_string(type);
    else if (strcmp(type, "any") == 0)
        q->tool_choice = json_string("required");
    else
        return param_bad(pe, "tool_choice", PL_INVALID, "tool_choice is of type '%.40s', expected auto, any, tool or none",
                         type);
    return PL_OK;
}

/* Documented: when the last turn is the assistant's, the answer goes on where it ends. */
static bool ends_with_answer(const json_t *messages) {
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    return role != NULL && strcmp(role, "assistant") == 0 && json_array_size(json_object_get(last, "tool_calls")) == 0;
}

/* {"format": a schema for the answer, "effort": a word for templates that know efforts}. */
static enum pl_status read_output(json_t *config, struct chat_request *q, struct param_error *pe) {
    static const char *const efforts[] = {"low", "medium", "high", "xhigh", "max"};
    const char *key, *word = json_string_value(json_object_get(config, "effort"));
    json_t *value, *format = json_object_get(config, "format");
    if (config != NULL && !json_is_object(config))
        return param_bad(pe, "output_config", PL_INVALID, "output_config is no object");
    json_object_foreach(config, key, value) if (strcmp(key, "format") != 0 && strcmp(key, "effort") != 0) return param_bad(
        pe, "output_config", PL_INVALID, "unknown parameter 'output_config.%.60s'", key);
    if (format != NULL && !json_is_null(format)) {
        if (strcmp(type_of(format), "json_schema") != 0)
            return param_bad(pe, "output_config", PL_INVALID,
                             "output_config.format is of type '%.40s', expected json_schema", type_of(format));
        q->response_format = json_incref(format);
    }
    value = json_object_get(config, "effort");
    if (value == NULL || json_is_null(value)) return PL_OK;
    size_t i = 0;
    while (word != NULL && i < PL_COUNT_OF(efforts) && strcmp(word, efforts[i]) != 0) i++;
    if (word == NULL || i == PL_COUNT_OF(efforts))
        return param_bad(pe, "output_config", PL_INVALID,
                         "output_config.effort is none of low, medium, high, xhigh and max");
    if (q->extra == NULL) q->extra = json_object();
    return json_object_set(q->extra, "reasoning_effort", value) == 0
               ? PL_OK
               : param_bad(pe, "output_config", PL_NO_MEMORY, "no memory for the request");
}

static enum pl_status request_read(struct exchange *x, struct job *j, json_t *body, bool generates, struct param_error *pe) {
    struct chat_request q = {0};
    json_t *output = take(body, "output_config");
    json_t *messages = take(body, "messages"), *system = take(body, "system"), *tools = take(body, "tools"),
           *choice = take(body, "tool_choice"), *stops = take(body, "stop_sequences");
    /* What the model writes in <think> comes as a thinking block; templates that can be told not to think are told. */
    if (strcmp(type_of(json_object_get(body, "thinking")), "disabled") == 0)
        q.extra = json_pack("{s:b}", "enable_thinking", 0);
    json_object_del(body, "thinking");
    const json_t *stop = json_object_get(body, "stop");
    enum pl_status st = read_output(output, &q, pe);
    if (st == PL_OK && stop != NULL && !json_is_null(stop))
        st = param_bad(pe, "stop", PL_INVALID, "stop is not known here: it is called stop_sequences");
    if (stops != NULL) json_object_set(body, "stop", stops);
    if (st == PL_OK && generates && !json_is_integer(json_object_get(body, "max_tokens")))
        st = param_bad(pe, "max_tokens", PL_INVALID, "max_tokens is missing or no integer");
    if (st == PL_OK && stops != NULL && !json_is_array(stops))
        st = param_bad(pe, "stop_sequences", PL_INVALID, "stop_sequences is no list of strings");
    if (st == PL_OK) st = params_read(x->server, API_MESSAGES, body, &j->params, pe);
    if (st == PL_OK) st = params_rest(API_MESSAGES, body, pe);
    if (st == PL_OK) st = read_messages(messages, system, &q, pe);
    if (st == PL_OK) st = read_tools(tools, choice, &q, pe);
    if (st == PL_OK && j->params.n != 1) st = param_bad(pe, "n", PL_INVALID, "n is not known here");
    if (st == PL_OK) q.continue_final = ends_with_answer(q.messages);
    if (st == PL_OK) st = chat_request_prepare(x->server, &q, j, pe);
    chat_request_deinit(&q);
    json_decref(messages);
    json_decref(system);
    json_decref(tools);
    json_decref(choice);
    json_decref(stops);
    json_decref(output);
    return st;
}

enum MHD_Result handle_messages(struct exchange *x, json_t *body) {
    struct param_error pe = {0};
    struct job *j = job_create(x, API_MESSAGES, "msg_");
    if (j == NULL) return answer_error(x, 503, NULL, NULL, "no memory for the request");
    return finish_start(x, j, request_read(x, j, body, true, &pe), &pe);
}

enum MHD_Result handle_count_tokens(struct exchange *x, json_t *body) {
    struct param_error pe = {0};
    struct job *j = job_create(x, API_MESSAGES, "msg_");
    if (j == NULL) return answer_error(x, 503, NULL, NULL, "no memory for the request");
    enum pl_status st = request_read(x, j, body, false, &pe);
    pe.err.status = st;
    enum MHD_Result r = st == PL_OK ? answer_json(x, 200, json_pack("{s:i}", "input_tokens", (int)j->prompts[0].len))
                                    : answer_status(x, &pe.err, pe.param);
    job_unref(j);
    return r;
}

/* ---------- answers ---------- */

static const char *stop_reason(const struct job *j, const struct choice *c) {
    uint32_t asked = j->params.max_tokens;
    if (c->stop_index >= 0) return "stop_sequence";
    if (c->reason == PL_END_LENGTH) return c->generated < asked ? "model_context_window_exceeded" : "max_tokens";
    return c->call_count > 0 ? "tool_use" : "end_turn";
}

static json_t *stop_sequence(const struct job *j, const struct choice *c) {
    const struct pl_stops *s = &j->params.stops;
    return c->stop_index < 0 ? json_null() : json_stringn(s->text[c->stop_index], s->len[c->stop_index]);
}

/* Tokens read from the cache are counted apart, as documented. */
static json_t *usage(const struct job *j, uint32_t input, uint32_t output) {
    uint32_t cached = PL_MIN(j->cached_tokens, input);
    return json_pack("{s:i, s:i, s:i, s:i}", "input_tokens", (int)(input - cached), "cache_creation_input_tokens", 0,
                     "cache_read_input_tokens", (int)cached, "output_tokens", (int)output);
}

static json_t *input_object(const struct tool_call *t) {
    json_t *v = NULL;
    struct pl_err err = {0};
    if (t->arguments.len > 0 && pl_json_parse("input", t->arguments.data, t->arguments.len, &v, &err) == PL_OK) return v;
    return json_object(); /* cut by max_tokens: stop_reason says so */
}

static json_t *whole(struct job *j) {
    const struct choice *c = &j->choices[0];
    json_t *content = json_array();
    if (c->reasoning.len > 0)
        json_array_append_new(content, json_pack("{s:s, s:o, s:s}", "type", "thinking", "thinking",
                                                 text_value(c->reasoning.data, c->reasoning.len), "signature", ""));
    if (c->text.len > 0)
        json_array_append_new(content,
                              json_pack("{s:s, s:o}", "type", "text", "text", text_value(c->text.data, c->text.len)));
    for (size_t i = 0; i < c->call_count; i++) {
        const struct tool_call *t = &c->calls[i];
        json_array_append_new(content, json_pack("{s:s, s:s, s:o, s:o}", "type", "tool_use", "id", t->id, "name",
                                                 text_value(t->name.data, t->name.len), "input", input_object(t)));
    }
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:s, s:o, s:o}", "id", j->id, "type", "message", "role", "assistant",
                     "model", j->server->model_name, "content", content, "stop_reason", stop_reason(j, c), "stop_sequence",
                     stop_sequence(j, c), "usage", usage(j, j->prompt_tokens, j->generated_tokens));
}

/* ---------- events ---------- */

static void event(struct job *j, const char *type, json_t *steals) {
    if (steals != NULL) json_object_set_new(steals, "type", json_string(type));
    pl_buf_printf(&j->out, "event: %s\ndata: ", type);
    add_json(&j->out, steals);
    pl_buf_add_c(&j->out, "\n\n");
}

static void stream_begin(struct job *j) {
    uint32_t input = (uint32_t)j->prompts[0].len;
    event(j, "message_start",
          json_pack("{s:{s:s, s:s, s:s, s:s, s:[], s:n, s:n, s:o}}", "message", "id", j->id, "type", "message", "role",
                    "assistant", "model", j->server->model_name, "content", "stop_reason", "stop_sequence", "usage",
                    usage(j, input, 0)));
    event(j, "ping", json_object());
}

static void close_block(struct job *j) {
    if (j->block == BLOCK_NONE) return;
    event(j, "content_block_stop", json_pack("{s:i}", "index", (int)j->event_index++));
    j->block = BLOCK_NONE;
}

static void open_block(struct job *j, int block, json_t *steals) {
    close_block(j);
    j->block = block;
    event(j, "content_block_start", json_pack("{s:i, s:o}", "index", (int)j->event_index, "content_block", steals));
}

static void delta(struct job *j, const char *type, const char *key, const char *text, size_t len) {
    event(j, "content_block_delta",
          json_pack("{s:i, s:{s:s, s:o}}", "index", (int)j->event_index, "delta", "type", type, key, text_value(text, len)));
}

static void stream_delta(struct job *j, struct choice *c, uint32_t index, const char *text, size_t len) {
    (void)c, (void)index;
    if (len == 0) return;
    if (j->block != BLOCK_TEXT) open_block(j, BLOCK_TEXT, json_pack("{s:s, s:s}", "type", "text", "text", ""));
    delta(j, "text_delta", "text", text, len);
}

static void stream_reasoning(struct job *j, struct choice *c, uint32_t index, const char *text, size_t len) {
    (void)c, (void)index;
    if (j->block != BLOCK_THINKING)
        open_block(j, BLOCK_THINKING, json_pack("{s:s, s:s, s:s}", "type", "thinking", "thinking", "", "signature", ""));
    delta(j, "thinking_delta", "thinking", text, len);
}

static void stream_call(struct job *j, struct choice *c, uint32_t index) {
    (void)index;
    const struct tool_call *t = &c->calls[c->call_count - 1];
    open_block(j, BLOCK_CALL,
               json_pack("{s:s, s:s, s:o, s:{}}", "type", "tool_use", "id", t->id, "name",
                         text_value(t->name.data, t->name.len), "input"));
}

static void stream_arguments(struct job *j, struct choice *c, uint32_t index, const char *text, size_t len) {
    (void)c, (void)index;
    delta(j, "input_json_delta", "partial_json", text, len);
}

static void stream_choice_end(struct job *j, struct choice *c, uint32_t index) {
    (void)index;
    close_block(j);
    event(j, "message_delta",
          json_pack("{s:{s:s, s:o}, s:o}", "delta", "stop_reason", stop_reason(j, c), "stop_sequence", stop_sequence(j, c),
                    "usage", usage(j, j->prompt_tokens, j->generated_tokens)));
}

static void stream_end(struct job *j) { event(j, "message_stop", json_object()); }

static void stream_error(struct job *j, unsigned status, const char *message) {
    event(j, "error", error_object(API_MESSAGES, status, NULL, NULL, message));
}

const struct api_shape shape_messages = {.stream_begin = stream_begin,
                                         .stream_delta = stream_delta,
                                         .stream_reasoning = stream_reasoning,
                                         .stream_call = stream_call,
                                         .stream_arguments = stream_arguments,
                                         .stream_choice_end = stream_choice_end,
                                         .stream_end = stream_end,
                                         .stream_error = stream_error,
                                         .whole = whole};
