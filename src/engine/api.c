/* api - include/plumb.h over engine.h: error structs, strings, JSON texts. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "build_info.h"
#include "engine/engine.h"

static int finish(enum pl_status s, const struct pl_err *from, struct plumb_error *to) {
    if (to == NULL) return (int)s;
    to->status = (int)s;
    if (s == PL_OK) {
        to->text[0] = '\0';
        return 0;
    }
    const char *text = from->text[0] != '\0' ? from->text : pl_status_text(s);
    size_t len = PL_MIN(strlen(text), sizeof to->text - 1);
    memcpy(to->text, text, len);
    to->text[len] = '\0';
    return (int)s;
}

/* Callers from other languages pass null pointers by mistake more often than anything else. */
static enum pl_status need(const void *pointer, const char *name, struct pl_err *err) {
    if (pointer == NULL) PL_FAIL(err, PL_INVALID, "%s is NULL", name);
    return PL_OK;
}
static enum pl_status need2(const void *a, const char *a_name, const void *b, const char *b_name, struct pl_err *err) {
    PL_TRY(need(a, a_name, err));
    return need(b, b_name, err);
}

const char *plumb_version(void) { return PLUMB_VERSION; }
const char *plumb_build_id(void) { return PL_BUILD_ID; }

int plumb_engine_create(const struct plumb_engine_options *opt, struct plumb_engine **out, struct plumb_error *err) {
    struct pl_err e = {0};
    enum pl_status s = need2(opt, "opt", out, "out", &e);
    if (s == PL_OK) s = pl_engine_create(opt, out, &e);
    return finish(s, &e, err);
}

/* Takes the reference. */
static enum pl_status json_text(json_t *value, char **out, struct pl_err *err) {
    char *text = value == NULL ? NULL : pl_json_write(value, JSON_INDENT(2));
    json_decref(value);
    if (text == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for a report");
    *out = text;
    return PL_OK;
}

int plumb_engine_info(struct plumb_engine *e, char **json, struct plumb_error *err) {
    struct pl_err pe = {0};
    enum pl_status s = need2(e, "e", json, "json", &pe);
    if (s == PL_OK) s = json_text(pl_engine_info(e), json, &pe);
    return finish(s, &pe, err);
}

int plumb_engine_witness(struct plumb_engine *e, bool reset, char **json, struct plumb_error *err) {
    struct pl_err pe = {0};
    enum pl_status s = need2(e, "e", json, "json", &pe);
    json_t *all = s == PL_OK ? pl_engine_witness_full(e, &pe) : NULL;
    if (s == PL_OK) s = all != NULL ? json_text(all, json, &pe) : pe.status != PL_OK ? pe.status : PL_NO_MEMORY;
    if (s == PL_OK && reset) pl_ops_witness_reset(e->ops);
    return finish(s, &pe, err);
}

void plumb_string_free(char *s) { free(s); } /* jansson's and ours both come from malloc */

static enum pl_status need_room(const uint32_t *ids, size_t capacity, const size_t *count, struct pl_err *err) {
    PL_TRY(need(count, "count", err));
    return capacity == 0 ? PL_OK : need(ids, "ids", err);
}

static enum pl_status give_ids(struct pl_ids *ids, uint32_t *out, size_t capacity, size_t *count, struct pl_err *err) {
    *count = ids->len;
    if (capacity > 0 && capacity < ids->len)
        PL_FAIL(err, PL_LIMIT, "%zu tokens do not fit in the capacity of %zu", ids->len, capacity);
    if (capacity > 0 && ids->len > 0) memcpy(out, ids->data, ids->len * sizeof *out);
    return PL_OK;
}

int plumb_tokenize(struct plumb_engine *e, const char *text, size_t len, bool add_special, bool parse_special, uint32_t *ids,
                   size_t capacity, size_t *count, struct plumb_error *err) {
    struct pl_err pe = {0};
    struct pl_ids list = {0};
    struct pl_encode_options opt = {.add_special = add_special, .parse_special = parse_special};
    enum pl_status s = need(e, "e", &pe);
    if (s == PL_OK && len > 0) s = need(text, "text", &pe);
    if (s == PL_OK) s = need_room(ids, capacity, count, &pe);
    if (s == PL_OK) s = pl_engine_need_text(e, &pe);
    if (s == PL_OK) s = pl_tokenizer_encode(e->tok, text == NULL ? "" : text, len, &opt, &list, &pe);
    if (s == PL_OK) s = give_ids(&list, ids, capacity, count, &pe);
    pl_ids_deinit(&list);
    return finish(s, &pe, err);
}

/* A model may have more rows than its tokenizer has tokens; such ids are empty text. Beyond both is a mistake. */
static enum pl_status check_ids(const struct plumb_engine *e, const uint32_t *ids, size_t count, struct pl_err *err) {
    uint32_t most = PL_MAX(e->config.vocab, pl_tokenizer_vocab_size(e->tok));
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= most)
            PL_FAIL(err, PL_INVALID, "id %zu of the list is %u but the vocabulary has %u tokens", i, ids[i], most);
    }
    return PL_OK;
}

int plumb_detokenize(struct plumb_engine *e, const uint32_t *ids, size_t count, bool show_special, char **text,
                     struct plumb_error *err) {
    struct pl_err pe = {0};
    struct pl_buf buf = {0};
    enum pl_status s = need2(e, "e", text, "text", &pe);
    if (s == PL_OK && count > 0) s = need(ids, "ids", &pe);
    if (s == PL_OK) s = pl_engine_need_text(e, &pe);
    if (s == PL_OK) s = check_ids(e, ids, count, &pe);
    if (s == PL_OK) s = pl_tokenizer_decode(e->tok, ids, count, show_special, &buf);
    if (s == PL_OK) pl_buf_add(&buf, "", 0);
    char *copy = s == PL_OK && pl_buf_ok(&buf) ? pl_strndup(pl_buf_cstr(&buf), buf.len) : NULL;
    if (s == PL_OK && copy == NULL) s = PL_NO_MEMORY;
    if (s == PL_OK) *text = copy;
    pl_buf_deinit(&buf);
    return finish(s, &pe, err);
}

static enum pl_status parse_chat(const char *messages, const char *tools, json_t **m, json_t **t, struct pl_err *err) {
    if (messages == NULL) PL_FAIL(err, PL_INVALID, "messages_json is NULL");
    PL_TRY(pl_json_parse("messages", messages, strlen(messages), m, err));
    if (!json_is_array(*m)) PL_FAIL(err, PL_INVALID, "messages must be a JSON array of objects");
    return tools == NULL ? PL_OK : pl_json_parse("tools", tools, strlen(tools), t, err);
}

int plumb_chat_render(struct plumb_engine *e, const char *messages_json, const char *tools_json, bool add_generation_prompt,
                      char **text, struct plumb_error *err) {
    struct pl_err pe = {0};
    json_t *m = NULL, *t = NULL;
    struct pl_rendered r = {0};
    enum pl_status s = need2(e, "e", text, "text", &pe);
    if (s == PL_OK) s = parse_chat(messages_json, tools_json, &m, &t, &pe);
    if (s == PL_OK) s = pl_engine_render(e, m, t, add_generation_prompt, NULL, &r, &pe);
    char *copy = s == PL_OK ? pl_strndup(pl_buf_cstr(&r.text), r.text.len) : NULL;
    if (s == PL_OK && copy == NULL) s = PL_NO_MEMORY;
    if (s == PL_OK) *text = copy;
    pl_rendered_deinit(&r);
    json_decref(m);
    json_decref(t);
    return finish(s, &pe, err);
}

int plumb_chat_tokenize(struct plumb_engine *e, const char *messages_json, const char *tools_json,
                        bool add_generation_prompt, uint32_t *ids, size_t capacity, size_t *count, struct plumb_error *err) {
    struct pl_err pe = {0};
    json_t *m = NULL, *t = NULL;
    struct pl_ids list = {0};
    enum pl_status s = need(e, "e", &pe);
    if (s == PL_OK) s = need_room(ids, capacity, count, &pe);
    if (s == PL_OK) s = parse_chat(messages_json, tools_json, &m, &t, &pe);
    if (s == PL_OK) s = pl_engine_chat_encode(e, m, t, add_generation_prompt, NULL, &list, &pe);
    if (s == PL_OK) s = give_ids(&list, ids, capacity, count, &pe);
    pl_ids_deinit(&list);
    json_decref(m);
    json_decref(t);
    return finish(s, &pe, err);
}

int plumb_session_create(struct plumb_engine *e, struct plumb_session **out, struct plumb_error *err) {
    struct pl_err pe = {0};
    enum pl_status s = need2(e, "e", out, "out", &pe);
    if (s == PL_OK) s = pl_session_create(e, out, &pe);
    return finish(s, &pe, err);
}

uint32_t plumb_session_length(const struct plumb_session *s) { return s == NULL ? 0 : pl_session_held(s); }

int plumb_session_truncate(struct plumb_session *s, uint32_t length, struct plumb_error *err) {
    struct pl_err pe = {0};
    enum pl_status st = need(s, "s", &pe);
    if (st == PL_OK) st = pl_session_truncate(s, length, &pe);
    return finish(st, &pe, err);
}

int plumb_session_append(struct plumb_session *s, const uint32_t *ids, size_t count, struct plumb_error *err) {
    struct pl_err pe = {0};
    enum pl_status st = need(s, "s", &pe);
    if (st == PL_OK && count > 0) st = need(ids, "ids", &pe);
    if (st == PL_OK) st = pl_session_append(s, ids, count, NULL, NULL, &pe);
    return finish(st, &pe, err);
}

const float *plumb_session_logits(const struct plumb_session *s, uint32_t *vocab) {
    if (vocab != NULL) *vocab = s == NULL ? 0 : s->engine->config.vocab;
    return s != NULL && s->has_logits ? s->logits : NULL;
}

void plumb_sampling_default(struct plumb_sampling *s) {
    struct pl_sampling d;
    if (s == NULL) return;
    pl_sampling_default(&d);
    *s = (struct plumb_sampling){
        .size = sizeof *s,
        .temperature = d.temperature,
        .top_p = d.top_p,
        .min_p = d.min_p,
        .typical_p = d.typical_p,
        .repetition_penalty = d.repetition_penalty,
        .presence_penalty = d.presence_penalty,
        .frequency_penalty = d.frequency_penalty,
        .top_k = d.top_k,
        .penalty_last_n = d.penalty_last_n,
    };
}

int plumb_session_generate(struct plumb_session *s, const struct plumb_generate_options *opt, uint32_t *generated,
                           enum plumb_finish *finish_out, struct plumb_error *err) {
    struct pl_err pe = {0};
    enum pl_status st = need2(s, "s", opt, "opt", &pe);
    if (st == PL_OK) st = pl_session_generate(s, opt, generated, finish_out, &pe);
    return finish(st, &pe, err);
}
