/* params.c - request parameters: one table says name, kind, range and place. What a table does not know is either
 * harmless (listed) or an error that names it. */
#include "serve/internal.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"

enum kind { F32, U32, S32, BOOL, SEED, TOP_K };

struct param {
    const char *name;
    enum kind kind;
    size_t offset;
    double min, max;
    bool open_min; /* min itself is not allowed */
};

#define AT(member) offsetof(struct gen_params, member)
static const struct param numbers[] = {
    {"temperature", F32, AT(sampling.temperature), 0, 2, false},
    {"top_p", F32, AT(sampling.top_p), 0, 1, true},
    {"min_p", F32, AT(sampling.min_p), 0, 0.999999, false},
    {"typical_p", F32, AT(sampling.typical_p), 0, 1, true},
    {"top_k", TOP_K, AT(sampling.top_k), 0, 1e6, false},
    {"repeat_penalty", F32, AT(sampling.repetition_penalty), 0.001, 100, false},
    {"repetition_penalty", F32, AT(sampling.repetition_penalty), 0.001, 100, false},
    {"presence_penalty", F32, AT(sampling.presence_penalty), -2, 2, false},
    {"frequency_penalty", F32, AT(sampling.frequency_penalty), -2, 2, false},
    {"max_tokens", U32, AT(max_tokens), 1, 16777216, false},
    {"n", U32, AT(n), 1, 128, false},
    {"priority", S32, AT(priority), -1000, 1000, false},
    {"stream", BOOL, AT(stream), 0, 0, false},
    {"echo", BOOL, AT(echo), 0, 0, false},
    {"ignore_eos", BOOL, AT(ignore_eos), 0, 0, false},
    {"seed", SEED, AT(sampling.seed), 0, 0, false},
};

/* Sent by ordinary clients, without meaning here: docs/server.md lists them. */
static const char *const harmless[] = {"user",
                                       "store",
                                       "metadata",
                                       "service_tier",
                                       "safety_identifier",
                                       "prompt_cache_key",
                                       "prompt_cache_retention",
                                       "cache_prompt",
                                       "id_slot",
                                       "timings_per_token",
                                       "verbosity",
                                       "prediction"};
/* These mean something that is not done here: only the value that asks for nothing is taken. */
static const struct {
    const char *name, *instead;
} idle_only[] = {{"suffix", "write the model's own infill tokens into prompt"},
                 {"n_probs", "use logprobs"},
                 {"functions", "it was replaced by tools"},
                 {"function_call", "it was replaced by tool_choice"}};

#define bad param_bad
enum pl_status param_bad(struct param_error *pe, const char *name, enum pl_status st, const char *fmt, ...) {
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(pe->param, sizeof pe->param, "%s", name);
    return pl_err_set(&pe->err, __FILE__, __LINE__, st, "%s", text);
}

static const char *type_name(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: break;
    }
    return "null";
}

static enum pl_status read_number(const struct param *p, const json_t *v, struct gen_params *out, struct param_error *pe) {
    char *place = (char *)out + p->offset;
    if (p->kind == BOOL) {
        if (!json_is_boolean(v)) return bad(pe, p->name, PL_INVALID, "%s is %s, expected a boolean", p->name, type_name(v));
        bool b = json_is_true(v);
        memcpy(place, &b, sizeof b);
        return PL_OK;
    }
    bool whole = p->kind != F32, huge = json_is_real(v) && fabs(json_real_value(v)) >= 0x1p63;
    if (whole ? !json_is_integer(v) : !json_is_number(v)) {
        char real[40] = ""; /* with its point or exponent, which is what makes it no integer */
        if (json_is_real(v)) (void)json_dumpb(v, real, sizeof real - 1, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
        return bad(pe, p->name, PL_INVALID, "%s is %s, expected %s", p->name,
                   huge              ? "beyond 64 bits"
                   : json_is_real(v) ? real
                                     : type_name(v),
                   whole ? "an integer" : "a number");
    }
    if (p->kind == SEED) {
        uint64_t seed = (uint64_t)json_integer_value(v);
        memcpy(place, &seed, sizeof seed);
        out->has_seed = json_integer_value(v) != -1; /* -1: a random one, as llama-server has it */
        return PL_OK;
    }
    double d = json_number_value(v);
    if (p->kind == F32 && fabs(d) < FLT_MIN) d = 0; /* as the float that it becomes; where 0 is not allowed it is neither */
    if (p->kind == TOP_K && d == -1) d = 0;         /* off, as vLLM has it */
    if (!(d >= p->min && d <= p->max) || (p->open_min && d <= p->min))
        return bad(pe, p->name, PL_INVALID, "%s is %.10g, expected %s%.10g to %.10g", p->name, d,
                   p->open_min ? "more than " : "", p->min, p->max);
    if (p->kind == U32 || p->kind == TOP_K) {
        uint32_t u = (uint32_t)d;
        memcpy(place, &u, sizeof u);
    } else if (p->kind == S32) {
        int32_t i = (int32_t)d;
        memcpy(place, &i, sizeof i);
    } else {
        float f = (float)d;
        memcpy(place, &f, sizeof f);
    }
    return PL_OK;
}

static enum pl_status read_numbers(json_t *body, struct gen_params *out, struct param_error *pe) {
    for (size_t i = 0; i < PL_COUNT_OF(numbers); i++) {
        const json_t *v = json_object_get(body, numbers[i].name);
        if (v == NULL) continue;
        if (!json_is_null(v)) PL_TRY(read_number(&numbers[i], v, out, pe));
        json_object_del(body, numbers[i].name);
    }
    return PL_OK;
}

static enum pl_status read_stop(json_t *body, struct gen_params *out, struct param_error *pe) {
    const json_t *v = json_object_get(body, "stop");
    if (v == NULL) return PL_OK;
    size_t count = json_is_array(v) ? json_array_size(v) : json_is_null(v) ? 0 : 1;
    for (size_t i = 0; i < count; i++) {
        const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(s)) return bad(pe, "stop", PL_INVALID, "stop holds %s, expected strings", type_name(s));
        if (pl_stops_add(&out->stops, json_string_value(s), json_string_length(s), &pe->err) != PL_OK) {
            snprintf(pe->param, sizeof pe->param, "stop");
            return pe->err.status;
        }
    }
    json_object_del(body, "stop");
    return PL_OK;
}

/* {"id": bias} as OpenAI has it, or [[id, bias], ...] as llama-server has it too (false bans). */
static enum pl_status add_bias(struct gen_params *out, uint32_t vocab, const char *id_text, json_int_t id,
                               const json_t *value, struct param_error *pe) {
    int64_t parsed = id;
    if (id_text != NULL && !pl_parse_i64(id_text, 0, UINT32_MAX, &parsed))
        return bad(pe, "logit_bias", PL_INVALID, "logit_bias names the token '%.40s', expected a token id", id_text);
    if (parsed < 0 || parsed >= vocab)
        return bad(pe, "logit_bias", PL_INVALID, "logit_bias names token %lld, the vocabulary has %u", (long long)parsed,
                   vocab);
    double b = json_is_false(value) ? -INFINITY : json_number_value(value);
    if (!json_is_false(value) && (!json_is_number(value) || b < -100 || b > 100))
        return bad(pe, "logit_bias", PL_INVALID, "logit_bias of token %lld is no number from -100 to 100",
                   (long long)parsed);
    if (b <= -100) b = -INFINITY; /* documented: -100 bans the token */
    out->bias[out->sampling.bias_count++] = (struct pl_logit_bias){(uint32_t)parsed, (float)b};
    return PL_OK;
}

static enum pl_status read_bias(const struct pl_server *s, json_t *body, struct gen_params *out, struct param_error *pe) {
    json_t *v = json_object_get(body, "logit_bias");
    if (v == NULL) return PL_OK;
    size_t count = json_is_object(v) ? json_object_size(v) : json_array_size(v);
    if (!json_is_object(v) && !json_is_array(v) && !json_is_null(v))
        return bad(pe, "logit_bias", PL_INVALID, "logit_bias is %s, expected an object", type_name(v));
    if (count > 1024) return bad(pe, "logit_bias", PL_INVALID, "logit_bias has %zu entries, at most 1024 are taken", count);
    out->bias = pl_calloc(count, sizeof *out->bias);
    if (out->bias == NULL) return bad(pe, "logit_bias", PL_NO_MEMORY, "no memory for logit_bias");
    out->sampling.bias = out->bias;
    uint32_t vocab = s->engine->config.vocab;
    const char *key;
    json_t *value;
    size_t i;
    if (json_is_object(v)) json_object_foreach(v, key, value) PL_TRY(add_bias(out, vocab, key, 0, value, pe));
    if (json_is_array(v)) json_array_foreach(v, i, value) {
            if (!json_is_array(value) || json_array_size(value) != 2 || !json_is_integer(json_array_get(value, 0)))
                return bad(pe, "logit_bias", PL_INVALID, "logit_bias entry %zu is no [token id, bias] pair", i);
            PL_TRY(add_bias(out, vocab, NULL, json_integer_value(json_array_get(value, 0)), json_array_get(value, 1), pe));
        }
    json_object_del(body, "logit_bias");
    return PL_OK;
}

static enum pl_status read_count(json_t *body, const char *name, uint32_t max, bool *on, uint32_t *out,
                                 struct param_error *pe) {
    const json_t *v = json_object_get(body, name);
    if (v == NULL) return PL_OK;
    if (!json_is_null(v)) {
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > max)
            return bad(pe, name, PL_INVALID, "%s is not an integer from 0 to %u", name, max);
        *out = (uint32_t)json_integer_value(v);
        *on = true;
    }
    json_object_del(body, name);
    return PL_OK;
}

/* chat: logprobs is a boolean and top_logprobs a count; completions: logprobs is the count. */
static enum pl_status read_logprobs(enum api_kind api, json_t *body, struct gen_params *out, struct param_error *pe) {
    if (api == API_COMPLETION) return read_count(body, "logprobs", 5, &out->logprobs, &out->top_logprobs, pe);
    const json_t *v = json_object_get(body, "logprobs");
    bool counted = false;
    if (v != NULL && !json_is_boolean(v) && !json_is_null(v))
        return bad(pe, "logprobs", PL_INVALID, "logprobs is %s, expected a boolean", type_name(v));
    out->logprobs = json_is_true(v);
    json_object_del(body, "logprobs");
    PL_TRY(read_count(body, "top_logprobs", PL_EVENT_TOP_MAX, &counted, &out->top_logprobs, pe));
    if (counted && !out->logprobs) return bad(pe, "top_logprobs", PL_INVALID, "top_logprobs needs logprobs to be true");
    return PL_OK;
}

static enum pl_status read_stream_options(json_t *body, struct gen_params *out, struct param_error *pe) {
    const json_t *v = json_object_get(body, "stream_options");
    if (v == NULL) return PL_OK;
    if (!json_is_null(v)) {
        if (!out->stream) return bad(pe, "stream_options", PL_INVALID, "stream_options is only allowed when stream is true");
        if (!json_is_object(v)) return bad(pe, "stream_options", PL_INVALID, "stream_options is no object");
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)(uintptr_t)v, key,
                            value) if (strcmp(key, "include_usage") != 0 &&
                                       strcmp(key, "include_obfuscation") !=
                                           0) return bad(pe, "stream_options", PL_INVALID,
                                                         "unknown parameter 'stream_options.%.60s'", key);
        const json_t *usage = json_object_get(v, "include_usage");
        if (usage != NULL && !json_is_boolean(usage) && !json_is_null(usage))
            return bad(pe, "stream_options.include_usage", PL_INVALID, "stream_options.include_usage is no boolean");
        out->include_usage = json_is_true(usage);
    }
    json_object_del(body, "stream_options");
    return PL_OK;
}

/* The model's name is not checked against ours: clients send all kinds of names to a server that has one model. */
static enum pl_status read_model(json_t *body, struct param_error *pe) {
    const json_t *v = json_object_get(body, "model");
    if (v != NULL && !json_is_string(v) && !json_is_null(v)) return bad(pe, "model", PL_INVALID, "model is no string");
    json_object_del(body, "model");
    return PL_OK;
}

enum pl_status params_read(const struct pl_server *s, enum api_kind api, json_t *body, struct gen_params *out,
                           struct param_error *pe) {
    pl_sampling_default(&out->sampling);
    out->sampling.temperature = 1; /* what the APIs document, not what a terminal likes */
    out->sampling.top_k = 0;
    out->sampling.top_p = 1;
    out->sampling.min_p = 0;
    out->n = 1;
    const json_t *max = json_object_get(body, "max_completion_tokens"); /* only compared below */
    if (max != NULL) {                                                  /* the newer name of the same thing */
        const json_t *old = json_object_get(body, "max_tokens");
        if (!json_is_null(max) && old != NULL && !json_is_null(old))
            return bad(pe, "max_tokens", PL_INVALID, "max_tokens and max_completion_tokens cannot be given together");
        if (!json_is_null(max)) json_object_set(body, "max_tokens", (json_t *)(uintptr_t)max);
        json_object_del(body, "max_completion_tokens");
    }
    PL_TRY(read_model(body, pe));
    enum pl_status st = read_numbers(body, out, pe);
    if (st != PL_OK && strcmp(pe->param, "max_tokens") == 0) { /* under the name it was sent with */
        const char *sent = api == API_RESPONSES ? "max_output_tokens" : max != NULL ? "max_completion_tokens" : "max_tokens";
        char text[sizeof pe->err.text];
        snprintf(text, sizeof text, "%s%s", sent, pe->err.text + strlen("max_tokens"));
        snprintf(pe->err.text, sizeof pe->err.text, "%s", text);
        snprintf(pe->param, sizeof pe->param, "%s", sent);
    }
    PL_TRY(st);
    if (api == API_MESSAGES && out->sampling.temperature > 1) /* as Anthropic documents it */
        return bad(pe, "temperature", PL_INVALID, "temperature is %g, expected 0 to 1", (double)out->sampling.temperature);
    PL_TRY(read_stop(body, out, pe));
    PL_TRY(read_bias(s, body, out, pe));
    PL_TRY(read_logprobs(api, body, out, pe));
    PL_TRY(read_stream_options(body, out, pe));
    if (out->echo && api != API_COMPLETION)
        return bad(pe, "echo", PL_INVALID, "echo is not known here, only where a prompt is text or tokens");
    if (out->logprobs && api == API_MESSAGES)
        return bad(pe, "logprobs", PL_INVALID, "logprobs is not known here: the answer has no place for them");
    if (!out->has_seed) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        out->sampling.seed = (uint64_t)t.tv_sec * 1000000007u ^ (uint64_t)t.tv_nsec;
    }
    if (out->priority != 0 && !s->opt.priorities) /* otherwise everybody would ask to be first */
        return bad(pe, "priority", PL_INVALID, "priority is %d, but this server was not started with --priorities",
                   out->priority);
    return params_check_choices(s, 1, out, pe);
}

enum pl_status params_check_choices(const struct pl_server *s, uint32_t prompts, const struct gen_params *p,
                                    struct param_error *pe) {
    uint32_t most = s->opt.service.max_waiting != 0 ? s->opt.service.max_waiting : QUEUE_DEFAULT;
    if ((uint64_t)prompts * p->n <= most) return PL_OK;
    return bad(pe, p->n > 1 ? "n" : "prompt", PL_INVALID,
               "%u prompts with %u choices each can never be queued: this server queues at most %u (--queue)", prompts, p->n,
               most);
}

static bool asks_nothing(const json_t *v) {
    return json_is_null(v) || json_is_false(v) || (json_is_integer(v) && json_integer_value(v) == 0) ||
           (json_is_string(v) && json_string_length(v) == 0);
}

/* Images, sounds: of this server there is only text. */
static bool only_text(const char *key, const json_t *v) {
    const char *word = json_string_value(json_array_get(v, 0));
    return strcmp(key, "modalities") == 0 && json_array_size(v) == 1 && word != NULL && strcmp(word, "text") == 0;
}

enum pl_status params_rest(enum api_kind api, const json_t *body, struct param_error *pe) {
    (void)api;
    const char *key;
    json_t *value;
    for (size_t i = 0; i < PL_COUNT_OF(idle_only); i++) {
        const json_t *v = json_object_get(body, idle_only[i].name);
        if (v != NULL && !asks_nothing(v))
            return bad(pe, idle_only[i].name, PL_INVALID, "%s is not supported: %s", idle_only[i].name,
                       idle_only[i].instead);
    }
    json_object_foreach((json_t *)(uintptr_t)body, key, value) {
        bool known = json_is_null(value) || only_text(key, value);
        for (size_t i = 0; i < PL_COUNT_OF(idle_only) && !known; i++) known = strcmp(key, idle_only[i].name) == 0;
        for (size_t i = 0; i < PL_COUNT_OF(harmless) && !known; i++) known = strcmp(key, harmless[i]) == 0;
        if (!known && strcmp(key, "modalities") == 0)
            return bad(pe, key, PL_INVALID, "modalities asks for more than ['text'], which is all that this server makes");
        if (!known) return bad(pe, key, PL_INVALID, "unknown parameter '%.60s'", key);
    }
    return PL_OK;
}
