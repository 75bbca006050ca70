#include "cmd/chat.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cmd/out.h"

enum pl_status pl_chat_init(struct pl_chat *c, struct plumb_engine *e, struct plumb_sampling *s, struct pl_err *err) {
    c->engine = e;
    c->sampling = s;
    c->messages = json_array();
    if (c->messages == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for a conversation");
    return pl_session_create(e, &c->session, err);
}

void pl_chat_deinit(struct pl_chat *c) {
    plumb_session_destroy(c->session);
    json_decref(c->messages);
    pl_buf_deinit(&c->answer);
}

static const json_t *system_message(const struct pl_chat *c) {
    const json_t *first = json_array_get(c->messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    return role != NULL && strcmp(role, "system") == 0 ? first : NULL;
}

enum pl_status pl_chat_reset(struct pl_chat *c) {
    size_t keep = system_message(c) != NULL ? 1 : 0;
    while (json_array_size(c->messages) > keep) json_array_remove(c->messages, json_array_size(c->messages) - 1);
    return PL_OK;
}

enum pl_status pl_chat_system(struct pl_chat *c, const char *text, struct pl_err *err) {
    json_t *message = text[0] == '\0' ? NULL : json_pack("{s:s, s:s}", "role", "system", "content", text);
    if (text[0] != '\0' && message == NULL) PL_FAIL(err, PL_INVALID, "the system text is not valid UTF-8");
    json_array_clear(c->messages);
    if (message != NULL && json_array_append_new(c->messages, message) != 0)
        PL_FAIL(err, PL_NO_MEMORY, "out of memory for the system text");
    return PL_OK;
}

/* Keeps a terminal from obeying the model: control characters but newline and tab become '?'. */
static void write_harmless(const char *text, size_t len) {
    size_t from = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char ch = (unsigned char)text[i];
        bool c1 = ch == 0xC2 && i + 1 < len && (unsigned char)text[i + 1] < 0xA0;
        if (!c1 && (ch >= 0x20 || ch == '\n' || ch == '\t') && ch != 0x7F) continue;
        pl_out_write(text + from, i - from);
        pl_out_str("?");
        i += c1;
        from = i + 1;
    }
    pl_out_write(text + from, len - from);
}

static bool on_token(void *user, uint32_t id, const char *text, size_t len, double logprob, const uint32_t *top_ids,
                     const double *top_logprobs, size_t top_count) {
    (void)id, (void)logprob, (void)top_ids, (void)top_logprobs, (void)top_count;
    struct pl_chat *c = user;
    pl_out_text_begin();
    if (c->on_terminal)
        write_harmless(text, len);
    else
        pl_out_write(text, len);
    pl_out_text_end(text, len);
    pl_buf_add(&c->answer, text, len);
    return pl_buf_ok(&c->answer) && !atomic_load(&c->stop);
}

static void show_prefill(void *user, uint64_t done, uint64_t total) {
    (void)user;
    if (done < total) pl_progress("reading", done, total, false);
}

/* Brings the session to exactly `ids`, running only what it does not hold yet. */
static enum pl_status prefill(struct pl_chat *c, const struct pl_ids *ids, struct pl_err *err) {
    uint32_t common = 0, held = plumb_session_length(c->session);
    while (common < held && common + 1 < ids->len && c->session->ids[common] == ids->data[common]) common++;
    PL_TRY(pl_session_truncate(c->session, common, err));
    c->prompt_tokens = (uint32_t)ids->len;
    c->reused_tokens = common;
    uint64_t start = pl_clock_ns();
    PL_TRY(pl_session_append(c->session, ids->data + common, ids->len - common, show_prefill, NULL, err));
    pl_progress_end();
    c->prompt_ns = pl_clock_ns() - start;
    return PL_OK;
}

static void tell(struct pl_chat_shown *shown, uint32_t rewritten) {
    uint32_t fresh = rewritten & ~shown->told;
    for (uint32_t one = 1; one <= fresh; one *= 2)
        if ((fresh & one) != 0) fprintf(stderr, "plumb: the chat template shows no %s\n", pl_traits_missing_text(one));
    shown->told |= rewritten;
}

enum pl_status pl_chat_encode(struct plumb_engine *e, struct pl_chat_shown *shown, const json_t *messages,
                              struct pl_ids *ids, struct pl_err *err) {
    if (!shown->read) pl_engine_chat_traits(e, &shown->traits);
    shown->read = true;
    json_t *own = json_deep_copy(messages), *shaped = NULL;
    uint32_t rewritten = 0;
    bool ok = own != NULL && pl_traits_apply(&shown->traits, &own, &rewritten) == PL_OK;
    if (ok) shaped = pl_traits_messages(&shown->traits, own);
    json_decref(own);
    if (shaped == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for the messages");
    tell(shown, rewritten);
    enum pl_status s = pl_engine_chat_encode(e, shaped, NULL, true, NULL, ids, err);
    json_decref(shaped);
    return s;
}

static enum pl_status answer(struct pl_chat *c, struct pl_err *err) {
    struct pl_ids ids = {0};
    pl_buf_clear(&c->answer);
    enum pl_status s = pl_chat_encode(c->engine, &c->shown, c->messages, &ids, err);
    if (s == PL_OK && ids.len == 0) s = pl_err_set(err, __FILE__, __LINE__, PL_INVALID, "the chat template gave no text");
    if (s == PL_OK) s = prefill(c, &ids, err);
    pl_ids_deinit(&ids);
    if (s != PL_OK) return s;
    struct plumb_generate_options opt = {.size = sizeof opt,
                                         .sampling = *c->sampling,
                                         .max_tokens = c->max_tokens == 0 ? c->engine->context : c->max_tokens,
                                         .on_token = on_token,
                                         .user = c};
    uint64_t start = pl_clock_ns();
    enum pl_status done = pl_session_generate(c->session, &opt, &c->generated, &c->finish, err);
    pl_out_text_over();
    PL_TRY(done);
    c->decode_ns = pl_clock_ns() - start;
    return PL_OK;
}

static enum pl_status add_message(struct pl_chat *c, const char *role, const char *text, size_t len, struct pl_err *err) {
    json_t *m = json_pack("{s:s, s:s%}", "role", role, "content", text, len);
    if (m == NULL) PL_FAIL(err, PL_INVALID, "the message is not valid UTF-8");
    if (json_array_append_new(c->messages, m) != 0) PL_FAIL(err, PL_NO_MEMORY, "out of memory for a message");
    return PL_OK;
}

enum pl_status pl_chat_ask(struct pl_chat *c, const char *text, size_t len, struct pl_err *err) {
    size_t before = json_array_size(c->messages);
    pl_engine_tell_written(c->engine);
    PL_TRY(add_message(c, "user", text, len, err));
    enum pl_status s = answer(c, err);
    if (s == PL_OK) s = add_message(c, "assistant", pl_buf_cstr(&c->answer), c->answer.len, err);
    if (s == PL_OK) return PL_OK;
    while (json_array_size(c->messages) > before) json_array_remove(c->messages, json_array_size(c->messages) - 1);
    return s;
}

enum pl_status pl_chat_save(const struct pl_chat *c, const char *path, struct pl_err *err) {
    if (json_dump_file(c->messages, path, JSON_INDENT(2)) == 0) return PL_OK;
    PL_FAIL(err, PL_IO, "%.400s: cannot write the conversation: %s", path, strerror(errno));
}

static bool is_message(const json_t *m) {
    return json_is_string(json_object_get(m, "role")) && json_is_string(json_object_get(m, "content"));
}

enum pl_status pl_chat_load(struct pl_chat *c, const char *path, struct pl_err *err) {
    json_t *doc = NULL;
    PL_TRY(pl_json_load(path, PL_TEXT_BYTES_MAX, &doc, err));
    bool ok = json_is_array(doc);
    for (size_t i = 0; ok && i < json_array_size(doc); i++) ok = is_message(json_array_get(doc, i));
    if (!ok) {
        json_decref(doc);
        PL_FAIL(err, PL_FORMAT, "%.400s is no conversation: expected a JSON list of {\"role\", \"content\"}", path);
    }
    json_decref(c->messages);
    c->messages = doc;
    return PL_OK;
}
