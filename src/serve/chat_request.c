/* chat_request.c - a conversation with its tools, in OpenAI's form, from checks to prompt tokens. */
#include "serve/internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"

enum { TOOLS_MAX = 256 };

void chat_request_deinit(struct chat_request *q) {
    json_decref(q->messages);
    json_decref(q->tools);
    json_decref(q->tool_choice);
    json_decref(q->response_format);
    json_decref(q->grammar);
    json_decref(q->extra);
    *q = (struct chat_request){0};
}

/* NULL for null. */
static json_t *take(json_t *body, const char *name) {
    json_t *v = json_object_get(body, name);
    v = json_is_null(v) ? NULL : json_incref(v);
    json_object_del(body, name);
    return v;
}

/* False: it is there and no boolean. */
static bool take_flag(json_t *body, const char *name, bool fallback, bool *out) {
    json_t *v = take(body, name);
    bool ok = v == NULL || json_is_boolean(v);
    *out = ok && v != NULL ? json_is_true(v) : fallback;
    json_decref(v);
    return ok;
}

/* Templates that know efforts (gpt-oss) read the word; those that can only be told to think or not (Qwen3) read the other.
 * What chat_template_kwargs says itself stands. */
static void tell_effort(struct chat_request *q, json_t *effort) {
    json_t *told = json_pack("{s:O}", "reasoning_effort", effort);
    const char *word = json_string_value(effort);
    if (strcmp(word, "none") == 0) json_object_set_new(told, "enable_thinking", json_false());
    if (q->extra != NULL) json_object_update(told, q->extra);
    json_decref(q->extra);
    q->extra = told;
}

/* What the template is given by this server: a request does not replace it. */
static enum pl_status check_kwargs(const json_t *extra, struct param_error *pe) {
    static const char *const own[] = {"messages",  "tools",    "add_generation_prompt", "bos_token", "eos_token",
                                      "unk_token", "pad_token"};
    if (extra != NULL && !json_is_object(extra))
        return param_bad(pe, "chat_template_kwargs", PL_INVALID, "chat_template_kwargs is no object");
    for (size_t i = 0; i < PL_COUNT_OF(own); i++)
        if (json_object_get(extra, own[i]) != NULL)
            return param_bad(pe, "chat_template_kwargs", PL_INVALID,
                             "chat_template_kwargs may not hold '%s': it is a parameter of its own or the model's", own[i]);
    return PL_OK;
}

static bool known_effort(const char *word) {
    static const char *const known[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
    for (size_t i = 0; word != NULL && i < PL_COUNT_OF(known); i++)
        if (strcmp(word, known[i]) == 0) return true;
    return false;
}

enum pl_status chat_request_take(json_t *body, struct chat_request *q, struct param_error *pe) {
    q->messages = take(body, "messages");
    q->tools = take(body, "tools");
    q->tool_choice = take(body, "tool_choice");
    q->extra = take(body, "chat_template_kwargs");
    q->response_format = take(body, "response_format");
    q->grammar = take(body, "grammar");
    bool prompt = true;
    if (!take_flag(body, "add_generation_prompt", true, &prompt))
        return param_bad(pe, "add_generation_prompt", PL_INVALID, "add_generation_prompt is no boolean");
    if (!take_flag(body, "continue_final_message", false, &q->continue_final))
        return param_bad(pe, "continue_final_message", PL_INVALID, "continue_final_message is no boolean");
    q->no_generation_prompt = !prompt;
    json_t *parallel = take(body, "parallel_tool_calls"), *format = take(body, "reasoning_format"),
           *effort = take(body, "reasoning_effort");
    bool wrong = parallel != NULL && !json_is_boolean(parallel);
    const char *name = json_string_value(format);
    bool unknown =
        format != NULL &&
        (name == NULL || (strcmp(name, "none") != 0 && strcmp(name, "auto") != 0 && strcmp(name, "deepseek") != 0));
    q->single_call = json_is_false(parallel);
    q->no_reasoning = name != NULL && strcmp(name, "none") == 0;
    bool told = effort == NULL || known_effort(json_string_value(effort));
    enum pl_status kwargs = check_kwargs(q->extra, pe);
    if (told && effort != NULL && (q->extra == NULL || json_is_object(q->extra))) tell_effort(q, effort);
    json_decref(parallel);
    json_decref(format);
    json_decref(effort);
    PL_TRY(kwargs);
    if (!told)
        return param_bad(pe, "reasoning_effort", PL_INVALID,
                         "reasoning_effort is none of none, minimal, low, medium, high, xhigh; what else a template "
                         "knows goes into chat_template_kwargs");
    if (wrong) return param_bad(pe, "parallel_tool_calls", PL_INVALID, "parallel_tool_calls is no boolean");
    if (unknown)
        return param_bad(pe, "reasoning_format", PL_INVALID, "reasoning_format is none of 'none', 'auto', 'deepseek'");
    return PL_OK;
}

/* ---------- tools ---------- */

static bool good_name(const char *name) {
    size_t n = strlen(name);
    return n > 0 && n <= 64 && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == n;
}

static enum pl_status check_tools(const json_t *tools, struct param_error *pe) {
    if (!json_is_array(tools)) return param_bad(pe, "tools", PL_INVALID, "tools is no list");
    if (json_array_size(tools) > TOOLS_MAX)
        return param_bad(pe, "tools", PL_INVALID, "tools has %zu entries, at most %d are taken", json_array_size(tools),
                         TOOLS_MAX);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *t = json_array_get(tools, i), *f = json_object_get(t, "function");
        const char *type = json_string_value(json_object_get(t, "type")),
                   *name = json_string_value(json_object_get(f, "name"));
        const json_t *parameters = json_object_get(f, "parameters");
        if (type == NULL || strcmp(type, "function") != 0)
            return param_bad(pe, "tools", PL_INVALID, "tool %zu is of type '%.40s', only 'function' is known", i,
                             type != NULL ? type : "");
        if (name == NULL || !good_name(name))
            return param_bad(pe, "tools", PL_INVALID,
                             "tool %zu has no function name of 1 to 64 letters, digits, '_', '-' or '.'", i);
        if (parameters != NULL && !json_is_object(parameters) && !json_is_null(parameters))
            return param_bad(pe, "tools", PL_INVALID, "parameters of tool %zu (%.64s) are no JSON schema object", i, name);
    }
    return PL_OK;
}

static const char *tool_name(const json_t *tools, size_t i) {
    return json_string_value(json_object_get(json_object_get(json_array_get(tools, i), "function"), "name"));
}

/* {"type":"allowed_tools","allowed_tools":{"mode":..,"tools":[..]}}: the other tools are not shown. */
static enum pl_status read_allowed(struct chat_request *q, const json_t *allowed, struct param_error *pe) {
    const json_t *list = json_object_get(allowed, "tools");
    const char *mode = json_string_value(json_object_get(allowed, "mode"));
    json_t *kept = json_array();
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *t = json_array_get(list, i), *f = json_object_get(t, "function");
        const char *name = json_string_value(json_object_get(f != NULL ? f : t, "name"));
        size_t at = 0, count = json_array_size(q->tools);
        while (name != NULL && at < count && strcmp(tool_name(q->tools, at), name) != 0) at++;
        if (name == NULL || at == count) {
            json_decref(kept);
            return param_bad(pe, "tool_choice", PL_INVALID, "tool_choice allows '%.64s', which is none of the tools",
                             name != NULL ? name : "");
        }
        json_array_append(kept, json_array_get(q->tools, at));
    }
    bool known = mode != NULL && (strcmp(mode, "auto") == 0 || strcmp(mode, "required") == 0);
    if (!known || json_array_size(kept) == 0) {
        json_decref(kept);
        return param_bad(pe, "tool_choice", PL_INVALID,
                         "allowed_tools wants a mode, 'auto' or 'required', and a list of tools");
    }
    json_decref(q->tools);
    q->tools = kept;
    q->choice = strcmp(mode, "required") == 0 ? CHOICE_REQUIRED : CHOICE_AUTO;
    return PL_OK;
}

/* "auto", "none", "required" or {"type":"function","function":{"name":..}}. With "none" the model sees no tools. */
static enum pl_status read_choice(struct chat_request *q, struct param_error *pe) {
    const char *word = json_string_value(q->tool_choice);
    const json_t *f = json_object_get(q->tool_choice, "function");
    const char *name = json_string_value(json_object_get(f, "name"));
    size_t count = json_array_size(q->tools);
    q->choice = CHOICE_AUTO;
    if (q->tool_choice == NULL) return PL_OK;
    if (word != NULL && strcmp(word, "auto") == 0) return PL_OK;
    if (word != NULL && strcmp(word, "none") == 0) {
        q->choice = CHOICE_NONE;
        return PL_OK;
    }
    const char *type = json_string_value(json_object_get(q->tool_choice, "type"));
    if (type != NULL && strcmp(type, "allowed_tools") == 0)
        return read_allowed(q, json_object_get(q->tool_choice, "allowed_tools"), pe);
    if (word == NULL && name == NULL)
        return param_bad(
            pe, "tool_choice", PL_INVALID,
            "tool_choice is none of 'auto', 'none', 'required' and {\"type\":\"function\",\"function\":{\"name\":..}}");
    if (word != NULL && strcmp(word, "required") != 0)
        return param_bad(pe, "tool_choice", PL_INVALID, "tool_choice is '%.40s', expected 'auto', 'none' or 'required'",
                         word);
    if (count == 0) return param_bad(pe, "tool_choice", PL_INVALID, "tool_choice wants a call but there are no tools");
    q->choice = CHOICE_REQUIRED;
    if (name == NULL) return PL_OK;
    q->choice = CHOICE_NAMED;
    for (q->named = 0; q->named < count; q->named++)
        if (strcmp(tool_name(q->tools, q->named), name) == 0) return PL_OK;
    return param_bad(pe, "tool_choice", PL_INVALID, "tool_choice names '%.64s', which is none of the tools", name);
}

/* For models whose template knows no tools: they are told in the system message. */
static enum pl_status describe_tools(struct chat_request *q) {
    static const char before[] = "You can call these functions:\n",
                      after[] =
                          "\nTo call one, answer with nothing but a JSON object: {\"name\": <function name>, \"arguments\": "
                          "<object of arguments>}. For several calls answer with a JSON list of such objects. Otherwise "
                          "answer in plain text.";
    struct pl_buf b = {0};
    json_t *first = json_array_get(q->messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    const json_t *system = json_object_get(first, "content");
    bool has = role != NULL && strcmp(role, "system") == 0 && json_is_string(system);
    if (has) pl_buf_add(&b, json_string_value(system), json_string_length(system));
    if (has) pl_buf_add_c(&b, "\n\n");
    pl_buf_add_c(&b, before);
    for (size_t i = 0; i < json_array_size(q->tools); i++) {
        char *text = pl_json_write(json_object_get(json_array_get(q->tools, i), "function"), JSON_COMPACT);
        pl_buf_add_c(&b, text == NULL ? "" : text);
        pl_buf_add_char(&b, '\n');
        b.failed |= text == NULL;
        free(text);
    }
    pl_buf_add_c(&b, after + 1);
    if (!pl_buf_ok(&b)) pl_json_starve();
    json_t *text = pl_buf_ok(&b) ? json_stringn(b.data, b.len) : NULL;
    pl_buf_deinit(&b);
    if (has) return json_object_set_new(first, "content", text) == 0 ? PL_OK : PL_NO_MEMORY;
    json_t *m = json_pack("{s:s, s:o}", "role", "system", "content", text);
    return json_array_insert_new(q->messages, 0, m) == 0 ? PL_OK : PL_NO_MEMORY;
}

enum pl_status chat_request_check(const struct pl_server *s, struct chat_request *q, struct param_error *pe) {
    PL_TRY(messages_normalise(s, q->messages, pe));
    if (q->tools != NULL) PL_TRY(check_tools(q->tools, pe));
    PL_TRY(read_choice(q, pe));
    if (q->choice == CHOICE_NONE || json_array_size(q->tools) == 0) {
        json_decref(q->tools);
        q->tools = NULL;
    }
    enum pl_tools_place place = s->traits.tools;
    if (q->tools != NULL && place == PL_TOOLS_DESCRIBED && describe_tools(q) != PL_OK)
        return param_bad(pe, "tools", PL_NO_MEMORY, "no memory for the tools");
    bool system = place != PL_TOOLS_DESCRIBED && place != PL_TOOLS_VARIABLE;
    if (q->tools != NULL && system && pl_traits_place_tools(&s->traits, q->messages, q->tools) != PL_OK)
        return param_bad(pe, "tools", PL_NO_MEMORY, "no memory for the tools");
    uint32_t rewritten;
    if (pl_traits_apply(&s->traits, &q->messages, &rewritten) != PL_OK)
        return param_bad(pe, "messages", PL_NO_MEMORY, "no memory for the messages");
    return PL_OK;
}

/* ---------- rendering ---------- */

/* Some templates glue arguments to text and want them as such. */
static bool arguments_as_text(json_t *messages) {
    bool any = false;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *calls = json_object_get(json_array_get(messages, i), "tool_calls");
        for (size_t k = 0; k < json_array_size(calls); k++) {
            json_t *f = json_object_get(json_array_get(calls, k), "function");
            const json_t *args = json_object_get(f, "arguments");
            char *text = args == NULL || json_is_string(args) ? NULL : pl_json_write(args, 0);
            if (text == NULL) continue;
            any |= json_object_set_new(f, "arguments", json_string(text)) == 0;
            free(text);
        }
    }
    return any;
}

/* Text and spans end with the last place where `content` stands. */
static bool cut_after(struct pl_rendered *r, const char *content, size_t len) {
    size_t at = r->text.len < len ? 0 : r->text.len - len + 1, n = 0;
    while (at > 0 && memcmp(r->text.data + at - 1, content, len) != 0) at--;
    if (at == 0) return false;
    r->text.len = at - 1 + len;
    r->text.data[r->text.len] = '\0';
    for (size_t i = 0; i < r->content_count && r->content[i].begin < r->text.len; i++, n++)
        r->content[i].end = PL_MIN(r->content[i].end, r->text.len);
    r->content_count = n;
    return true;
}

static enum pl_status continue_final(const struct chat_request *q, struct pl_rendered *r, struct param_error *pe) {
    const json_t *last = json_array_get(q->messages, json_array_size(q->messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role")),
               *content = json_string_value(json_object_get(last, "content"));
    size_t len = content == NULL ? 0 : json_string_length(json_object_get(last, "content"));
    while (len > 0 && memchr(" \n\r\t", content[len - 1], 4) != NULL) len--; /* templates trim it */
    if (strcmp(role, "assistant") != 0 || len == 0 || json_object_get(last, "tool_calls") != NULL)
        return param_bad(pe, "continue_final_message", PL_INVALID,
                         "the last message is no assistant's with text, there is nothing to continue");
    if (!cut_after(r, content, len))
        return param_bad(pe, "continue_final_message", PL_INVALID,
                         "this model's template does not show the last message as it is");
    return PL_OK;
}

static enum pl_status render_once(const struct pl_server *s, const struct chat_request *q, struct pl_rendered *out,
                                  struct param_error *pe) {
    const json_t *tools = s->traits.tools == PL_TOOLS_VARIABLE ? q->tools : NULL;
    json_t *messages = pl_traits_messages(&s->traits, q->messages);
    if (messages == NULL) return param_bad(pe, "messages", PL_NO_MEMORY, "no memory for the messages");
    enum pl_status st = pl_engine_render(s->engine, messages, tools, !q->no_generation_prompt, q->extra, out, &pe->err);
    json_decref(messages);
    return st;
}

static enum pl_status render(const struct pl_server *s, struct chat_request *q, struct pl_rendered *out,
                             struct param_error *pe) {
    if (q->continue_final) q->no_generation_prompt = true;
    enum pl_status st = render_once(s, q, out, pe);
    if (st == PL_INVALID && arguments_as_text(q->messages)) {
        pl_rendered_deinit(out);
        *out = (struct pl_rendered){0};
        pe->err = (struct pl_err){0};
        st = render_once(s, q, out, pe);
    }
    if (st == PL_OK && q->continue_final) return continue_final(q, out, pe);
    if (st != PL_OK) snprintf(pe->param, sizeof pe->param, "messages");
    return st;
}

enum pl_status chat_request_render(const struct pl_server *s, struct chat_request *q, struct pl_rendered *out,
                                   struct param_error *pe) {
    PL_TRY(chat_request_check(s, q, pe));
    return render(s, q, out, pe);
}

static enum pl_status keep_names(const json_t *tools, struct pl_reply_options *o) {
    size_t count = json_array_size(tools);
    const char **names = pl_calloc(count, sizeof *names);
    if (names == NULL) return PL_NO_MEMORY;
    o->names = names;
    for (size_t i = 0; i < count; i++) {
        names[i] = pl_strdup(tool_name(tools, i));
        if (names[i] == NULL) return PL_NO_MEMORY;
        o->name_count++;
    }
    return PL_OK;
}

static enum pl_status setup_reply(const struct pl_server *s, const struct chat_request *q, const struct pl_rendered *r,
                                  struct job *j, struct param_error *pe) {
    struct pl_reply_options *o = &j->params.reply;
    *o = (struct pl_reply_options){.kind = q->tools != NULL && s->traits.tools == PL_TOOLS_DESCRIBED ? PL_REPLY_JSON
                                                                                                     : s->traits.kind,
                                   .tools = q->tools != NULL,
                                   .reasoning = !q->no_reasoning,
                                   .in_reasoning = pl_reply_opens_reasoning(pl_buf_cstr(&r->text), r->text.len),
                                   .single = q->single_call};
    j->params.parse_reply = o->tools || o->reasoning || o->kind == PL_REPLY_HARMONY || o->kind == PL_REPLY_FUNCTIONARY;
    o->tools_json = j->tools = json_incref(q->tools);
    if (q->tools != NULL && keep_names(q->tools, o) != PL_OK)
        return param_bad(pe, "tools", PL_NO_MEMORY, "no memory for the tools");
    return PL_OK;
}

enum pl_status chat_request_prepare(const struct pl_server *s, struct chat_request *q, struct job *j,
                                    struct param_error *pe) {
    struct pl_rendered r = {0};
    PL_TRY(chat_request_check(s, q, pe));
    enum pl_status st = one_prompt(j, 1);
    if (st != PL_OK) return param_bad(pe, "messages", st, "no memory for the prompt");
    st = render(s, q, &r, pe);
    struct pl_encode_options opt = {.parse_special = true,
                                    .untrusted = (const struct pl_span *)(const void *)r.content,
                                    .untrusted_count = r.content_count};
    if (st == PL_OK)
        st = pl_tokenizer_encode(s->tokenizer, pl_buf_cstr(&r.text), r.text.len, &opt, &j->prompts[0], &pe->err);
    if (st == PL_OK) st = setup_reply(s, q, &r, j, pe);
    if (st == PL_OK) st = answer_grammar(q, q->grammar, j, pe);
    pl_rendered_deinit(&r);
    return st;
}
