/* api_responses.c - OpenAI's /v1/responses, without stored state: requests, answers and numbered events. */
#include "serve/internal.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* ---------- requests ---------- */

static json_t *take(json_t *body, const char *name) {
    json_t *v = json_object_get(body, name);
    v = json_is_null(v) ? NULL : json_incref(v);
    json_object_del(body, name);
    return v;
}

/* What a reasoning item says, as the model wrote it, else its summary; NULL: nothing. */
static enum pl_status take_reasoning(const json_t *item, json_t **out, struct param_error *pe) {
    static const char *const lists[] = {"content", "summary"};
    struct pl_buf b = {0};
    for (size_t k = 0; k < PL_COUNT_OF(lists) && b.len == 0; k++) {
        const json_t *parts = json_object_get(item, lists[k]);
        for (size_t i = 0; i < json_array_size(parts); i++) {
            const json_t *text = json_object_get(json_array_get(parts, i), "text");
            if (json_is_string(text)) pl_buf_add(&b, json_string_value(text), json_string_length(text));
        }
    }
    json_decref(*out);
    *out = b.len > 0 ? json_stringn(b.data, b.len) : NULL;
    bool ok = pl_buf_ok(&b) && (b.len == 0 || *out != NULL);
    pl_buf_deinit(&b);
    return ok ? PL_OK : param_bad(pe, "input", PL_NO_MEMORY, "no memory for the input");
}

/* Reasoning belongs to the assistant's message or call that comes next. */
static void give_reasoning(json_t *out, json_t **reasoning) {
    json_t *last = json_array_get(out, json_array_size(out) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (*reasoning != NULL && role != NULL && strcmp(role, "assistant") == 0)
        json_object_set(last, "reasoning_content", *reasoning);
    json_decref(*reasoning);
    *reasoning = NULL;
}

static enum pl_status add_item(json_t *out, json_t *item, json_t **reasoning, struct param_error *pe) {
    const char *type = json_string_value(json_object_get(item, "type"));
    json_t *role = json_object_get(item, "role"), *content = json_object_get(item, "content"),
           *id = json_object_get(item, "call_id");
    if (role != NULL && (type == NULL || strcmp(type, "message") == 0)) {
        json_array_append_new(out, json_pack("{s:O, s:O?}", "role", role, "content", content));
        give_reasoning(out, reasoning);
    } else if (type != NULL && strcmp(type, "function_call") == 0) {
        json_t *call = json_pack("{s:O?, s:s, s:{s:O?, s:O?}}", "id", id, "type", "function", "function", "name",
                                 json_object_get(item, "name"), "arguments", json_object_get(item, "arguments"));
        json_t *last = json_array_get(out, json_array_size(out) - 1), *calls = json_object_get(last, "tool_calls");
        if (json_array_size(out) > 0 && calls != NULL) /* parallel calls are one message */
            json_array_append_new(calls, call);
        else
            json_array_append_new(out, json_pack("{s:s, s:n, s:[o]}", "role", "assistant", "content", "tool_calls", call));
        give_reasoning(out, reasoning);
    } else if (type != NULL && strcmp(type, "function_call_output") == 0) {
        json_array_append_new(out, json_pack("{s:s, s:O?, s:O?}", "role", "tool", "tool_call_id", id, "content",
                                             json_object_get(item, "output")));
    } else if (type != NULL && strcmp(type, "reasoning") == 0) {
        return take_reasoning(item, reasoning, pe);
    } else {
        return param_bad(pe, "input", PL_INVALID, "an input item is of type '%.40s', which this server does not take",
                         type != NULL ? type : "unknown");
    }
    return PL_OK;
}

static enum pl_status read_input(json_t *input, json_t *instructions, struct chat_request *q, struct param_error *pe) {
    q->messages = json_array();
    if (q->messages == NULL) return param_bad(pe, "input", PL_NO_MEMORY, "no memory for the input");
    if (instructions != NULL && !json_is_string(instructions))
        return param_bad(pe, "instructions", PL_INVALID, "instructions is no string");
    if (instructions != NULL)
        json_array_append_new(q->messages, json_pack("{s:s, s:O}", "role", "system", "content", instructions));
    if (json_is_string(input)) {
        json_array_append_new(q->messages, json_pack("{s:s, s:O}", "role", "user", "content", input));
        return PL_OK;
    }
    if (!json_is_array(input) || json_array_size(input) == 0)
        return param_bad(pe, "input", PL_INVALID, "input is missing, or no string or list of items");
    json_t *reasoning = NULL;
    enum pl_status st = PL_OK;
    for (size_t i = 0; i < json_array_size(input) && st == PL_OK; i++)
        st = add_item(q->messages, json_array_get(input, i), &reasoning, pe);
    json_decref(reasoning);
    return st;
}

/* Here a function's fields stand beside its type; chat has them one level deeper. */
static enum pl_status read_tools(json_t *tools, json_t *choice, json_t *text, struct chat_request *q,
                                 struct param_error *pe) {
    if (tools != NULL && !json_is_array(tools)) return param_bad(pe, "tools", PL_INVALID, "tools is no list");
    if (json_array_size(tools) > 0) q->tools = json_array();
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *t = json_array_get(tools, i), *f = json_object();
        static const char *const keys[] = {"name", "description", "parameters"};
        for (size_t k = 0; k < PL_COUNT_OF(keys); k++)
            if (json_object_get(t, keys[k]) != NULL) json_object_set(f, keys[k], json_object_get(t, keys[k]));
        json_array_append_new(q->tools, json_pack("{s:O?, s:o}", "type", json_object_get(t, "type"), "function", f));
    }
    const char *type = json_string_value(json_object_get(choice, "type"));
    if (type != NULL && strcmp(type, "allowed_tools") == 0)
        q->tool_choice = json_pack("{s:s, s:O}", "type", type, "allowed_tools", choice);
    else if (json_is_object(choice))
        q->tool_choice =
            json_pack("{s:s, s:{s:O?}}", "type", "function", "function", "name", json_object_get(choice, "name"));
    else
        q->tool_choice = json_incref(choice);
    q->response_format = json_incref(json_object_get(text, "format"));
    return PL_OK;
}

/* What a client sent and finds again in the answer. */
static json_t *echo_of(json_t *body, json_t *instructions, json_t *tools, json_t *choice, json_t *text) {
    json_t *format = json_pack("{s:{s:s}}", "format", "type", "text"), *e = json_object();
    json_object_set(e, "instructions", instructions != NULL ? instructions : json_null());
    json_object_set_new(e, "tools", tools != NULL ? json_incref(tools) : json_array());
    json_object_set_new(e, "tool_choice", choice != NULL ? json_incref(choice) : json_string("auto"));
    json_object_set(e, "text", text != NULL ? text : format);
    json_object_set(e, "parallel_tool_calls",
                    json_is_false(json_object_get(body, "parallel_tool_calls")) ? json_false() : json_true());
    static const char *const same[] = {"max_output_tokens", "max_tool_calls", "user", "safety_identifier",
                                       "prompt_cache_key"};
    for (size_t i = 0; i < PL_COUNT_OF(same); i++) {
        json_t *v = json_object_get(body, same[i]);
        json_object_set(e, same[i], v != NULL ? v : json_null());
    }
    json_t *defaults = json_pack("{s:f, s:f, s:i, s:{}, s:s, s:{s:n, s:n}}", "temperature", 1.0, "top_p", 1.0,
                                 "top_logprobs", 0, "metadata", "service_tier", "default", "reasoning", "effort", "summary"),
           *value;
    const char *key;
    json_object_foreach(defaults, key, value) { /* what was not said has its default */
        json_t *v = json_object_get(body, key);
        json_object_set(e, key, v != NULL && !json_is_null(v) && strcmp(key, "service_tier") != 0 ? v : value);
    }
    json_decref(defaults);
    json_decref(format);
    return e;
}

static enum pl_status refuse_state(json_t *body, struct param_error *pe) {
    static const char *const stateful[] = {"previous_response_id", "conversation", "prompt"};
    for (size_t i = 0; i < PL_COUNT_OF(stateful); i++) {
        const json_t *v = json_object_get(body, stateful[i]);
        if (v != NULL && !json_is_null(v))
            return param_bad(pe, stateful[i], PL_INVALID,
                             "%s is not supported: this server stores nothing, send the whole "
                             "conversation as input",
                             stateful[i]);
    }
    if (json_is_true(json_object_get(body, "background")))
        return param_bad(pe, "background", PL_INVALID, "background is not supported: this server stores nothing");
    static const char *const passed[] = {"previous_response_id", "conversation", "prompt",        "background", "include",
                                         "truncation",           "reasoning",    "max_tool_calls"};
    for (size_t i = 0; i < PL_COUNT_OF(passed); i++) json_object_del(body, passed[i]);
    return PL_OK;
}

/* What chat calls otherwise would be passed over, and so would what is of another kind than documented. */
static enum pl_status check_kinds(const json_t *body, struct param_error *pe) {
    static const struct {
        const char *name;
        int kind; /* JSON_TRUE: a boolean; -1: it has another name here */
        const char *said;
    } known[] = {{"reasoning", JSON_OBJECT, "no object"},
                 {"text", JSON_OBJECT, "no object"},
                 {"include", JSON_ARRAY, "no list"},
                 {"background", JSON_TRUE, "no boolean"},
                 {"max_tool_calls", JSON_INTEGER, "no integer"},
                 {"top_logprobs", JSON_INTEGER, "no integer"},
                 {"messages", -1, "not known here: it is called input"},
                 {"response_format", -1, "not known here: it is called text.format"}};
    for (size_t i = 0; i < PL_COUNT_OF(known); i++) {
        const json_t *v = json_object_get(body, known[i].name);
        if (v == NULL || json_is_null(v) || (int)json_typeof(v) == known[i].kind) continue;
        if (known[i].kind == JSON_TRUE && json_is_false(v)) continue;
        return param_bad(pe, known[i].name, PL_INVALID, "%s is %s", known[i].name, known[i].said);
    }
    const json_t *max = json_object_get(body, "max_output_tokens"), *old = json_object_get(body, "max_tokens");
    if (max != NULL && !json_is_null(max) && old != NULL && !json_is_null(old))
        return param_bad(pe, "max_tokens", PL_INVALID, "max_tokens and max_output_tokens cannot be given together");
    return PL_OK;
}

/* {"effort": word} as chat has it; log-probabilities when they are to be included; a context that is too small is an error
 * here, nothing is cut from the input. */
static enum pl_status read_reasoning(json_t *body, struct param_error *pe) {
    json_t *effort = json_object_get(json_object_get(body, "reasoning"), "effort");
    const json_t *truncation = json_object_get(body, "truncation");
    const char *word = json_string_value(truncation);
    if (effort != NULL) json_object_set(body, "reasoning_effort", effort);
    const json_t *include = json_object_get(body, "include");
    bool logprobs = false;
    for (size_t i = 0; i < json_array_size(include); i++) {
        const char *what = json_string_value(json_array_get(include, i));
        logprobs |= what != NULL && strcmp(what, "message.output_text.logprobs") == 0;
    }
    if (logprobs)
        json_object_set_new(body, "logprobs", json_true());
    else /* it says how many, not whether */
        json_object_del(body, "top_logprobs");
    if (truncation != NULL && !json_is_null(truncation) && (word == NULL || strcmp(word, "disabled") != 0))
        return param_bad(pe, "truncation", PL_INVALID, "truncation is not supported: only 'disabled' is taken");
    return PL_OK;
}

static enum pl_status request_read(struct exchange *x, struct job *j, json_t *body, struct param_error *pe) {
    struct chat_request q = {0};
    PL_TRY(check_kinds(body, pe));
    json_t *sent = json_copy(body);
    enum pl_status st = read_reasoning(body, pe);
    if (st == PL_OK) st = refuse_state(body, pe);
    if (st != PL_OK) {
        json_decref(sent);
        return st;
    }
    json_t *input = take(body, "input"), *instructions = take(body, "instructions"), *tools = take(body, "tools"),
           *choice = take(body, "tool_choice"), *text = take(body, "text");
    j->echo = echo_of(sent, instructions, tools, choice, text);
    json_decref(sent);
    json_t *max = take(body, "max_output_tokens");
    if (max != NULL) json_object_set(body, "max_tokens", max);
    st = chat_request_take(body, &q, pe);
    if (st == PL_OK) st = params_read(x->server, API_RESPONSES, body, &j->params, pe);
    if (st != PL_OK && strcmp(pe->param, "max_tokens") == 0) snprintf(pe->param, sizeof pe->param, "max_output_tokens");
    if (st == PL_OK) st = params_rest(API_RESPONSES, body, pe);
    if (st == PL_OK) st = read_input(input, instructions, &q, pe);
    if (st == PL_OK) st = read_tools(tools, choice, text, &q, pe);
    if (st == PL_OK && j->params.n != 1) st = param_bad(pe, "n", PL_INVALID, "n is not known here");
    if (st == PL_OK) st = chat_request_prepare(x->server, &q, j, pe);
    if (st != PL_OK && strcmp(pe->param, "messages") == 0) snprintf(pe->param, sizeof pe->param, "input");
    chat_request_deinit(&q);
    json_decref(input);
    json_decref(instructions);
    json_decref(tools);
    json_decref(choice);
    json_decref(text);
    json_decref(max);
    return st;
}

enum MHD_Result handle_responses(struct exchange *x, json_t *body) {
    struct param_error pe = {0};
    struct job *j = job_create(x, API_RESPONSES, "resp_");
    if (j == NULL) return answer_error(x, 503, NULL, NULL, "no memory for the request");
    return finish_start(x, j, request_read(x, j, body, &pe), &pe);
}

/* ---------- answers: items of the output ---------- */

static json_t *text_part(const char *text, size_t len, json_t *logprobs) {
    return json_pack("{s:s, s:o, s:[], s:o}", "type", "output_text", "text", text_value(text, len), "annotations",
                     "logprobs", logprobs);
}

static json_t *text_logprobs(const struct job *j, const struct choice *c) {
    return j->params.logprobs ? logprob_list(j, c, c->text_token, c->token_count) : json_array();
}

static json_t *message_item(const struct job *j, size_t number, const char *status, json_t *part) {
    char id[72];
    snprintf(id, sizeof id, "msg_%s_%zu", j->id, number);
    json_t *content = json_array();
    if (part != NULL) json_array_append_new(content, part);
    return json_pack("{s:s, s:s, s:s, s:s, s:o}", "id", id, "type", "message", "status", status, "role", "assistant",
                     "content", content);
}

static json_t *reasoning_item(const struct job *j, size_t number, const char *text, size_t len) {
    char id[72];
    snprintf(id, sizeof id, "rs_%s_%zu", j->id, number);
    return json_pack("{s:s, s:s, s:[], s:[{s:s, s:o}]}", "id", id, "type", "reasoning", "summary", "content", "type",
                     "reasoning_text", "text", text_value(text, len));
}

static json_t *call_item(const struct tool_call *t, const char *status, bool with_arguments) {
    char id[48];
    snprintf(id, sizeof id, "fc_%s", t->id);
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:o}", "id", id, "type", "function_call", "status", status, "call_id", t->id,
                     "name", text_value(t->name.data, t->name.len), "arguments",
                     text_value(pl_buf_cstr(&t->arguments), with_arguments ? t->arguments.len : 0));
}

static json_t *response_object(struct job *j, const char *status, json_t *output) {
    bool done = strcmp(status, "in_progress") != 0, cut = strcmp(status, "incomplete") == 0;
    json_t *r = json_copy(j->echo);
    json_t *own = json_pack("{s:s, s:s, s:I, s:s, s:s, s:n, s:o, s:n, s:b, s:b, s:s, s:o, s:o}", "id", j->id, "object",
                            "response", "created_at", (json_int_t)j->created_unix, "status", status, "model",
                            j->server->model_name, "error", "incomplete_details",
                            cut ? json_pack("{s:s}", "reason", "max_output_tokens") : json_null(), "previous_response_id",
                            "store", 0, "background", 0, "truncation", "disabled", "output", output, "usage", json_null());
    json_object_update(r, own);
    json_decref(own);
    if (done)
        json_object_set_new(r, "usage",
                            json_pack("{s:i, s:{s:i, s:i}, s:i, s:{s:i}, s:i}", "input_tokens", (int)j->prompt_tokens,
                                      "input_tokens_details", "cached_tokens", (int)j->cached_tokens, "cache_write_tokens",
                                      0, "output_tokens", (int)j->generated_tokens, "output_tokens_details",
                                      "reasoning_tokens", (int)j->reasoning_tokens, "total_tokens",
                                      (int)(j->prompt_tokens + j->generated_tokens)));
    return r;
}

static const char *status_of(const struct choice *c) { return c->reason == PL_END_LENGTH ? "incomplete" : "completed"; }

static json_t *whole(struct job *j) {
    const struct choice *c = &j->choices[0];
    json_t *output = json_array();
    if (c->reasoning.len > 0) json_array_append_new(output, reasoning_item(j, 0, c->reasoning.data, c->reasoning.len));
    if (c->text.len > 0 || c->call_count == 0)
        json_array_append_new(output, message_item(j, json_array_size(output), status_of(c),
                                                   text_part(pl_buf_cstr(&c->text), c->text.len, text_logprobs(j, c))));
    for (size_t i = 0; i < c->call_count; i++) json_array_append_new(output, call_item(&c->calls[i], status_of(c), true));
    return response_object(j, status_of(c), output);
}

/* ---------- events ---------- */

static void event(struct job *j, const char *type, json_t *steals) {
    if (steals != NULL) {
        json_object_set_new(steals, "type", json_string(type));
        json_object_set_new(steals, "sequence_number", json_integer(j->event_index++));
    }
    pl_buf_printf(&j->out, "event: %s\ndata: ", type);
    add_json(&j->out, steals);
    pl_buf_add_c(&j->out, "\n\n");
}

static json_t *item_now(const struct job *j, bool done, const char *status) {
    const struct choice *c = &j->choices[0];
    size_t number = json_array_size(j->items), from = j->block_from;
    switch (j->block) {
    case BLOCK_THINKING:
        return reasoning_item(j, number, pl_buf_cstr(&c->reasoning) + from, done ? c->reasoning.len - from : 0);
    case BLOCK_CALL: return call_item(&c->calls[c->call_count - 1], status, done);
    default:
        return message_item(j, number, status,
                            done ? text_part(pl_buf_cstr(&c->text) + from, c->text.len - from, text_logprobs(j, c)) : NULL);
    }
}

/* Fields that events of one part share. */
static json_t *place(const struct job *j, const char *key, json_t *steals) {
    json_t *item = item_now(j, false, "in_progress");
    json_t *v = json_pack("{s:i, s:O, s:o}", "output_index", (int)json_array_size(j->items), "item_id",
                          json_object_get(item, "id"), key, steals);
    if (j->block != BLOCK_CALL) json_object_set_new(v, "content_index", json_integer(0));
    json_decref(item);
    return v;
}

static void close_block(struct job *j, const char *status) {
    const struct choice *c = &j->choices[0];
    if (j->block == BLOCK_NONE) return;
    json_t *item = item_now(j, true, status);
    if (j->block == BLOCK_CALL) {
        const struct tool_call *t = &c->calls[c->call_count - 1];
        json_t *e = place(j, "arguments", text_value(pl_buf_cstr(&t->arguments), t->arguments.len));
        json_object_set(e, "name", json_object_get(item, "name"));
        event(j, "response.function_call_arguments.done", e);
    } else {
        json_t *part = json_array_get(json_object_get(item, "content"), 0);
        bool text = j->block == BLOCK_TEXT;
        json_t *e = place(j, "text", json_incref(json_object_get(part, "text")));
        if (text) json_object_set(e, "logprobs", json_object_get(part, "logprobs"));
        event(j, text ? "response.output_text.done" : "response.reasoning_text.done", e);
        event(j, "response.content_part.done", place(j, "part", json_incref(part)));
    }
    event(j, "response.output_item.done",
          json_pack("{s:i, s:O}", "output_index", (int)json_array_size(j->items), "item", item));
    json_array_append_new(j->items, item);
    j->block = BLOCK_NONE;
}

static void open_block(struct job *j, int block, size_t from) {
    close_block(j, "completed");
    j->block = block;
    j->block_from = from;
    event(
        j, "response.output_item.added",
        json_pack("{s:i, s:o}", "output_index", (int)json_array_size(j->items), "item", item_now(j, false, "in_progress")));
    if (block == BLOCK_TEXT) event(j, "response.content_part.added", place(j, "part", text_part("", 0, json_array())));
    if (block == BLOCK_THINKING)
        event(j, "response.content_part.added",
              place(j, "part", json_pack("{s:s, s:s}", "type", "reasoning_text", "text", "")));
}

static void stream_begin(struct job *j) {
    j->items = json_array();
    event(j, "response.created", json_pack("{s:o}", "response", response_object(j, "in_progress", json_array())));
    event(j, "response.in_progress", json_pack("{s:o}", "response", response_object(j, "in_progress", json_array())));
}

static void stream_delta(struct job *j, struct choice *c, uint32_t index, const char *text, size_t len) {
    (void)index;
    if (len == 0) return;
    if (j->block != BLOCK_TEXT) open_block(j, BLOCK_TEXT, c->text.len - len);
    json_t *e = place(j, "delta", text_value(text, len));
    j->block_token = PL_MAX(j->block_token, c->text_token);
    json_object_set_new(e, "logprobs",
                        j->params.logprobs ? logprob_list(j, c, j->block_token, c->token_count) : json_array());
    j->block_token = c->token_count;
    event(j, "response.output_text.delta", e);
}

static void stream_reasoning(struct job *j, struct choice *c, uint32_t index, const char *text, size_t len) {
    (void)index;
    if (j->block != BLOCK_THINKING) open_block(j, BLOCK_THINKING, c->reasoning.len - len);
    event(j, "response.reasoning_text.delta", place(j, "delta", text_value(text, len)));
}

static void stream_call_before(struct job *j, struct choice *c, uint32_t index) {
    (void)index;
    c->call_count--; /* the block that ends now may be the call before */
    close_block(j, "completed");
    c->call_count++;
    open_block(j, BLOCK_CALL, 0);
}

static void stream_arguments(struct job *j, struct choice *c, uint32_t index, const char *text, size_t len) {
    (void)c, (void)index;
    event(j, "response.function_call_arguments.delta", place(j, "delta", text_value(text, len)));
}

static void stream_choice_end(struct job *j, struct choice *c, uint32_t index) {
    (void)index;
    if (c->text.len == 0 && c->call_count == 0 && j->block != BLOCK_TEXT) open_block(j, BLOCK_TEXT, 0);
    close_block(j, status_of(c));
}

static void stream_end(struct job *j) {
    const char *status = status_of(&j->choices[0]);
    char type[40];
    snprintf(type, sizeof type, "response.%s", status);
    event(j, type, json_pack("{s:o}", "response", response_object(j, status, json_incref(j->items))));
}

static void stream_error(struct job *j, unsigned status, const char *message) {
    const char *code = status >= 500 ? "server_error" : "invalid_request_error";
    event(j, "error", json_pack("{s:s, s:o, s:n}", "code", code, "message", text_value(message, strlen(message)), "param"));
    json_t *r = response_object(j, "failed", json_incref(j->items));
    json_object_set_new(r, "error",
                        json_pack("{s:s, s:o}", "code", status >= 500 ? "server_error" : "invalid_prompt", "message",
                                  text_value(message, strlen(message))));
    event(j, "response.failed", json_pack("{s:o}", "response", r));
}

const struct api_shape shape_responses = {.stream_begin = stream_begin,
                                          .stream_delta = stream_delta,
                                          .stream_reasoning = stream_reasoning,
                                          .stream_call = stream_call_before,
                                          .stream_arguments = stream_arguments,
                                          .stream_choice_end = stream_choice_end,
                                          .stream_end = stream_end,
                                          .stream_error = stream_error,
                                          .whole = whole};
