/* traits - what a chat template can show, and conversations put into what it can: calls, results and system texts that it
 * would pass over, or refuse, become text of the turns it knows.
 *
 * Templates do not say what they show, so it is tried out: once for a model, by rendering conversations of marks. One of
 * which nothing is known (it refuses a user's message) is taken to show everything. */
#ifndef PL_CHAT_TRAITS_H
#define PL_CHAT_TRAITS_H

#include <jansson.h>

#include "chat/reply.h"
#include "chat/template.h"

/* Where a template takes tools from: nowhere (a system text describes them), its variable `tools`, or the key `tools` of
 * the system message, as text or as the list. */
enum pl_tools_place { PL_TOOLS_DESCRIBED, PL_TOOLS_VARIABLE, PL_TOOLS_SYSTEM_TEXT, PL_TOOLS_SYSTEM_LIST };

struct pl_traits {
    enum pl_reply_kind kind; /* how this model writes tool calls */
    enum pl_tools_place tools;
    bool tools_unseen; /* it speaks of tools and shows none */
    bool system, calls, results;
    bool observations; /* calls and results as GLM-4 has them */
    bool parts;        /* content as a list of parts only */
    bool null_content; /* calls are told by content that is none */
};

/* Renders with the prompt of an answer. */
typedef enum pl_status pl_traits_render(void *user, const json_t *messages, const json_t *tools, struct pl_rendered *out,
                                        struct pl_err *err);
void pl_traits_read(struct pl_traits *out, struct pl_str source, pl_traits_render *render, void *data);

/* What a template does not show, as bits, and one of them in words: "system messages: they begin ..". */
enum { PL_UNSEEN_SYSTEM = 1, PL_UNSEEN_TOOLS = 2, PL_UNSEEN_CALLS = 4, PL_UNSEEN_RESULTS = 8 };
uint32_t pl_traits_missing(const struct pl_traits *t);
const char *pl_traits_missing_text(uint32_t one);
json_t *pl_traits_json(const struct pl_traits *t);

/* Rewrites the messages, which may be replaced by a new list; *rewritten: what of them (bits above). */
enum pl_status pl_traits_apply(const struct pl_traits *t, json_t **messages, uint32_t *rewritten) PL_MUST_CHECK;
/* Tools as a part of the system message, where the template wants them there. */
enum pl_status pl_traits_place_tools(const struct pl_traits *t, json_t *messages, json_t *tools) PL_MUST_CHECK;
/* The same messages with content as the template takes it; NULL: no memory. */
json_t *pl_traits_messages(const struct pl_traits *t, json_t *messages);

#endif
