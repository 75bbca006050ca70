/* template - chat templates: a Jinja engine complete for what published models use, byte-identical to Python's jinja2
 * as transformers sets it up (ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks, loop controls, tojson,
 * strftime_now, raise_exception, the generation block).
 *
 * Content can never inject special tokens: every byte of the output knows whether the template's author wrote it or it
 * came from the caller's values, through every filter and concatenation. The spans of caller bytes go to
 * pl_tokenizer_encode as untrusted.
 * Rendering is bounded in steps, depth, memory and output; hostile templates end in PL_LIMIT. */
#ifndef PL_CHAT_TEMPLATE_H
#define PL_CHAT_TEMPLATE_H

#include <jansson.h>

#include "base/str.h"

struct pl_template;

enum pl_status pl_template_parse(const char *source, size_t len, struct pl_template **out, struct pl_err *err) PL_MUST_CHECK;
void pl_template_destroy(struct pl_template *t);

struct pl_template_limits { /* 0 = default */
    uint64_t steps;         /* default 10,000,000 evaluated nodes */
    size_t output_bytes;    /* default 64 MiB */
    size_t memory_bytes;    /* default 512 MiB */
    uint32_t depth;         /* default 200 nested calls or expressions */
};

struct pl_text_span {
    size_t begin, end;
};
struct pl_rendered {
    struct pl_buf text;
    struct pl_text_span *content; /* sorted, disjoint, merged: bytes that came from the caller's values */
    size_t content_count, content_cap;
};
void pl_rendered_deinit(struct pl_rendered *r);

/* vars is an object: messages, tools, add_generation_prompt, bos_token, eos_token and whatever else the caller sets.
 * trusted (may be NULL) lists names of top-level vars whose strings count as the template's own (bos_token, eos_token).
 * now_unix is the clock that strftime_now sees; -1 = the real one. A template that raises gives PL_INVALID and its message.
 */
enum pl_status pl_template_render(const struct pl_template *t, const json_t *vars, const char *const *trusted,
                                  const struct pl_template_limits *limits, int64_t now_unix, struct pl_rendered *out,
                                  struct pl_err *err) PL_MUST_CHECK;

#endif
