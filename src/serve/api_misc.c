/* api_misc.c - the small endpoints: models, tokens, template, properties, health. */
#include "serve/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "serve/json_out.h"

/* ---------- models ---------- */

static json_t *model_object(const struct pl_server *s) {
    const struct plumb_engine *e = s->engine;
    return json_pack("{s:s, s:s, s:I, s:s, s:{s:s, s:i, s:i, s:i}}", "id", s->model_name, "object", "model", "created",
                     (json_int_t)s->started_unix, "owned_by", "plumb", "meta", "architecture", pl_arch_name(e->config.arch),
                     "n_vocab", (int)e->config.vocab, "n_ctx", (int)e->context, "n_ctx_train", (int)e->config.context_train);
}

/* As Anthropic lists them, to clients that send its header. */
static bool is_anthropic(const struct exchange *x) {
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "anthropic-version") != NULL;
}

static json_t *anthropic_model(const struct pl_server *s) {
    char when[32] = "";
    struct tm t;
    time_t at = (time_t)s->started_unix;
    if (gmtime_r(&at, &t) != NULL) strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &t);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:n, s:n, s:n, s:n}", "type", "model", "id", s->model_name,
                     "display_name", s->model_name, "created_at", when, "lifecycle", "active", "max_input_tokens",
                     (int)s->engine->context - 1, "max_tokens", (int)s->engine->context - 1, "capabilities", "deprecated_at",
                     "line", "retires_at");
}

/* Of a list of one nothing comes before or after it. */
static enum MHD_Result anthropic_models(struct exchange *x) {
    static const char *const cursors[] = {"after_id", "before_id"};
    bool none = false;
    for (size_t i = 0; i < PL_COUNT_OF(cursors); i++)
        none |= MHD_lookup_connection_value(x->connection, MHD_GET_ARGUMENT_KIND, cursors[i]) != NULL;
    const char *id = none ? NULL : x->server->model_name;
    json_t *list = json_array();
    if (!none) json_array_append_new(list, anthropic_model(x->server));
    return answer_json(x, 200,
                       json_pack("{s:o, s:b, s:s?, s:s?}", "data", list, "has_more", 0, "first_id", id, "last_id", id));
}

enum MHD_Result handle_models(struct exchange *x) {
    if (is_anthropic(x)) return anthropic_models(x);
    return answer_json(x, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", model_object(x->server)));
}

enum MHD_Result handle_model(struct exchange *x, const char *id) {
    if (strcmp(id, x->server->model_name) == 0)
        return answer_json(x, 200, is_anthropic(x) ? anthropic_model(x->server) : model_object(x->server));
    return answer_error(x, 404, NULL, "model", "there is no model '%.100s', this server has '%s'", id,
                        x->server->model_name);
}

/* ---------- tokens and template ---------- */

/* False: it is there and no boolean. */
static bool read_flag(const json_t *body, const char *name, bool fallback, bool *out) {
    const json_t *v = json_object_get(body, name);
    *out = json_is_boolean(v) ? json_is_true(v) : fallback;
    return v == NULL || json_is_boolean(v) || json_is_null(v);
}

/* A name that is none of these, or a model that is no string, or NULL. */
static const char *stranger(const json_t *body, const char *const *names, size_t count) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)body, key, value) {
        bool known = json_is_null(value);
        for (size_t i = 0; i < count && !known; i++) known = strcmp(key, names[i]) == 0;
        known = known && (strcmp(key, "model") != 0 || json_is_string(value) || json_is_null(value));
        if (!known) return key;
    }
    return NULL;
}

static enum MHD_Result answer_unknown(struct exchange *x, const char *name) {
    if (strcmp(name, "model") == 0) return answer_error(x, 400, NULL, name, "model is no string");
    return answer_error(x, 400, NULL, name, "unknown parameter '%.60s'", name);
}

/* With pieces a token is an object; a piece that is a part of a character is a list of bytes, as llama-server has it. */
static void add_token(struct pl_buf *b, const struct pl_tokenizer *t, uint32_t id, bool pieces) {
    struct pl_str p = {"", 0};
    if (!pieces) {
        pl_buf_printf(b, "%" PRIu32, id);
        return;
    }
    (void)pl_tokenizer_piece(t, id, &p);
    pl_buf_printf(b, "{\"id\":%" PRIu32 ",\"piece\":", id);
    if (pl_utf8_valid(p.data, p.len)) {
        pl_json_add_string(b, p.data, p.len);
    } else {
        for (size_t i = 0; i < p.len; i++) pl_buf_printf(b, "%c%u", i == 0 ? '[' : ',', (unsigned)(unsigned char)p.data[i]);
        pl_buf_add_char(b, ']');
    }
    pl_buf_add_char(b, '}');
}

enum MHD_Result handle_tokenize(struct exchange *x, json_t *body) {
    static const char *const names[] = {"content", "prompt", "add_special", "parse_special", "with_pieces", "model"};
    bool pieces = false;
    const char *unknown = stranger(body, names, PL_COUNT_OF(names));
    if (unknown != NULL) return answer_unknown(x, unknown);
    const json_t *text = json_object_get(body, "content");
    if (text == NULL) text = json_object_get(body, "prompt");
    if (!json_is_string(text)) return answer_error(x, 400, NULL, "content", "content is missing or no string");
    struct pl_encode_options o = {0};
    if (!read_flag(body, "add_special", false, &o.add_special) || !read_flag(body, "parse_special", true, &o.parse_special))
        return answer_error(x, 400, NULL, "add_special", "add_special and parse_special are booleans");
    if (!read_flag(body, "with_pieces", false, &pieces))
        return answer_error(x, 400, NULL, "with_pieces", "with_pieces is no boolean");
    struct pl_ids ids = {0};
    struct pl_err err = {0};
    enum pl_status st =
        pl_tokenizer_encode(x->server->tokenizer, json_string_value(text), json_string_length(text), &o, &ids, &err);
    if (st != PL_OK) {
        pl_ids_deinit(&ids);
        return answer_status(x, &err, "content");
    }
    struct pl_buf b = {0};
    pl_buf_add_c(&b, "{\"tokens\":[");
    for (size_t i = 0; i < ids.len; i++) {
        if (i > 0) pl_buf_add_char(&b, ',');
        add_token(&b, x->server->tokenizer, ids.data[i], pieces);
    }
    pl_buf_printf(&b, "],\"count\":%zu}", ids.len);
    pl_ids_deinit(&ids);
    enum MHD_Result r = pl_buf_ok(&b) ? answer_bytes(x, 200, "application/json", b.data, b.len)
                                      : answer_error(x, 503, NULL, NULL, "no memory for the answer");
    pl_buf_deinit(&b);
    return r;
}

enum MHD_Result handle_detokenize(struct exchange *x, json_t *body) {
    static const char *const names[] = {"tokens", "model"};
    const char *unknown = stranger(body, names, PL_COUNT_OF(names));
    if (unknown != NULL) return answer_unknown(x, unknown);
    const json_t *list = json_object_get(body, "tokens");
    if (!json_is_array(list)) return answer_error(x, 400, NULL, "tokens", "tokens is missing or no list of token ids");
    size_t n = json_array_size(list);
    uint32_t *ids = pl_alloc(n, sizeof *ids);
    if (ids == NULL) return answer_error(x, 503, NULL, NULL, "no memory for %zu tokens", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= pl_tokenizer_vocab_size(x->server->tokenizer)) {
            pl_free(ids);
            return answer_error(x, 400, NULL, "tokens", "entry %zu of tokens is no id of this vocabulary", i);
        }
        ids[i] = (uint32_t)id;
    }
    struct pl_buf text = {0}, b = {0};
    enum pl_status st = pl_tokenizer_decode(x->server->tokenizer, ids, n, true, &text);
    pl_free(ids);
    pl_buf_add_c(&b, "{\"content\":");
    pl_json_add_string(&b, pl_buf_cstr(&text), text.len);
    pl_buf_add_char(&b, '}');
    enum MHD_Result r = st == PL_OK && pl_buf_ok(&b) && pl_buf_ok(&text)
                            ? answer_bytes(x, 200, "application/json", b.data, b.len)
                            : answer_error(x, 503, NULL, NULL, "no memory for the answer");
    pl_buf_deinit(&text);
    pl_buf_deinit(&b);
    return r;
}

enum MHD_Result handle_apply_template(struct exchange *x, json_t *body) {
    struct chat_request q = {0};
    struct param_error pe = {0};
    struct pl_rendered out = {0};
    enum pl_status st = chat_request_take(body, &q, &pe);
    static const char *const names[] = {"model"};
    const char *unknown = stranger(body, names, PL_COUNT_OF(names));
    if (st == PL_OK && unknown != NULL) st = param_bad(&pe, unknown, PL_INVALID, "unknown parameter '%.60s'", unknown);
    if (st == PL_OK) st = chat_request_render(x->server, &q, &out, &pe);
    enum MHD_Result r;
    if (st != PL_OK) {
        r = answer_status(x, &pe.err, pe.param);
    } else {
        struct pl_buf b = {0};
        pl_buf_add_c(&b, "{\"prompt\":");
        pl_json_add_string(&b, pl_buf_cstr(&out.text), out.text.len);
        pl_buf_add_char(&b, '}');
        r = pl_buf_ok(&b) ? answer_bytes(x, 200, "application/json", b.data, b.len)
                          : answer_error(x, 503, NULL, NULL, "no memory for the answer");
        pl_buf_deinit(&b);
    }
    pl_rendered_deinit(&out);
    chat_request_deinit(&q);
    return r;
}

/* ---------- state ---------- */

enum MHD_Result handle_props(struct exchange *x) {
    const struct pl_server *s = x->server;
    const struct plumb_engine *e = s->engine;
    struct pl_service_info n;
    pl_service_info(s->service, &n);
    struct pl_str tmpl = {"", 0};
    (void)pl_file_chat_template(e->file, NULL, &tmpl);
    return answer_json(x, 200,
                       json_pack("{s:s, s:s, s:s, s:s, s:o, s:i, s:i, s:i, s:s%, s:o, s:{s:i}}", "model_alias",
                                 s->model_name, "model_path", s->opt.model_path != NULL ? s->opt.model_path : "", "backend",
                                 pl_ops_describe(e->ops), "build", plumb_build_id(), "fingerprint",
                                 pl_engine_fingerprint_json(e), "total_slots", (int)n.max_running, "n_ctx", (int)e->context,
                                 "kv_pages", (int)n.page_count, "chat_template", tmpl.data, tmpl.len, "chat_template_shows",
                                 pl_traits_json(&s->traits), "default_generation_settings", "n_ctx", (int)e->context));
}

enum MHD_Result handle_slots(struct exchange *x) {
    struct pl_service_info n;
    pl_service_info(x->server->service, &n);
    json_t *list = json_array();
    for (uint32_t i = 0; i < n.max_running; i++)
        json_array_append_new(list, json_pack("{s:i, s:b}", "id", (int)i, "is_processing", i < n.running));
    return answer_json(x, 200, list);
}

/* Health is progress: while sequences run, a token must have come lately. */
enum { STALL_S = 60 };

enum MHD_Result handle_health(struct exchange *x) {
    struct pl_service_info n;
    pl_service_info(x->server->service, &n);
    uint64_t now = pl_clock_ns();
    double since = n.last_token_ns == 0 ? -1 : (double)(now - n.last_token_ns) * 1e-9;
    uint64_t from = n.last_token_ns != 0 ? n.last_token_ns : x->server->started_ns;
    bool stalled = n.running > 0 && now - from > (uint64_t)STALL_S * 1000000000u;
    bool bad = n.poisoned || stalled;
    json_t *o = json_pack("{s:s, s:i, s:i, s:f}", "status",
                          n.poisoned ? "device failed"
                          : stalled  ? "stalled"
                                     : "ok",
                          "running", (int)n.running, "waiting", (int)n.waiting, "seconds_since_last_token", since);
    if (n.poisoned) json_object_set_new(o, "reason", json_string(n.poison.text));
    return answer_json(x, bad ? 503 : 200, o);
}

enum MHD_Result handle_ready(struct exchange *x) {
    struct pl_service_info n;
    pl_service_info(x->server->service, &n);
    bool ready = !x->server->draining && !n.poisoned;
    return answer_json(x, ready ? 200 : 503, json_pack("{s:b}", "ready", ready));
}

/* Every kernel that ran since the start, as JSON: the witness of the process. */
enum MHD_Result handle_kernels(struct exchange *x) {
    struct pl_service_info n;
    struct pl_ops_launches list[PL_SERVICE_KERNELS_MAX];
    size_t count = pl_service_witness(x->server->service, list, PL_COUNT_OF(list));
    pl_service_info(x->server->service, &n);
    json_t *kernels = json_array();
    for (size_t i = 0; i < PL_MIN(count, PL_COUNT_OF(list)); i++)
        json_array_append_new(kernels, json_pack("{s:s, s:s, s:I}", "op", list[i].op, "kernel", list[i].kernel, "launches",
                                                 (json_int_t)list[i].launches));
    return answer_json(x, 200,
                       json_pack("{s:s, s:I, s:o}", "backend", pl_ops_describe(x->server->engine->ops), "steps",
                                 (json_int_t)n.steps, "kernels", kernels));
}
