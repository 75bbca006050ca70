/* chat - a conversation with an engine: messages, the session that holds their tokens, one streamed answer at a time.
 * Each turn renders the whole conversation and keeps the longest prefix of tokens that the session already holds. */
#ifndef PL_CMD_CHAT_H
#define PL_CMD_CHAT_H

#include "cmd/common.h"

/* What the model's template shows, and what of it was told already. */
struct pl_chat_shown {
    struct pl_traits traits;
    uint32_t told;
    bool read;
};

struct pl_chat {
    struct plumb_engine *engine;
    struct pl_chat_shown shown;
    struct plumb_session *session;
    json_t *messages;
    struct plumb_sampling *sampling;
    uint32_t max_tokens; /* 0: what the context leaves */
    bool on_terminal;    /* control characters of the answer are made harmless */
    atomic_bool stop;    /* set from the signal handler: end the answer */
    /* of the last answer */
    uint32_t prompt_tokens, reused_tokens, generated;
    uint64_t prompt_ns, decode_ns;
    enum plumb_finish finish;
    struct pl_buf answer;
};

/* Tokens of the messages, put into what the template can show (chat/traits.h); what had to be rewritten is told on stderr
 * once. The messages stay as they are. ids is appended to. */
enum pl_status pl_chat_encode(struct plumb_engine *e, struct pl_chat_shown *shown, const json_t *messages,
                              struct pl_ids *ids, struct pl_err *err) PL_MUST_CHECK;

enum pl_status pl_chat_init(struct pl_chat *c, struct plumb_engine *e, struct plumb_sampling *s,
                            struct pl_err *err) PL_MUST_CHECK;
void pl_chat_deinit(struct pl_chat *c);
/* Forgets everything but the system message. */
enum pl_status pl_chat_reset(struct pl_chat *c) PL_MUST_CHECK;
/* Replaces or (empty text) removes the system message; the conversation starts anew. */
enum pl_status pl_chat_system(struct pl_chat *c, const char *text, struct pl_err *err) PL_MUST_CHECK;
/* Adds the user's message, streams the answer to stdout, adds the answer. On failure the message is taken back. */
enum pl_status pl_chat_ask(struct pl_chat *c, const char *text, size_t len, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_chat_save(const struct pl_chat *c, const char *path, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_chat_load(struct pl_chat *c, const char *path, struct pl_err *err) PL_MUST_CHECK;

#endif
