/* fuzz_request - any bytes as a request's body: parameters, messages, tools, formats and grammars, up to the prompt. The
 * first byte picks the API and the notation of calls. A refusal always has a sentence. */
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "serve/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void checked(enum pl_status st, const struct param_error *pe) {
    if (st != PL_OK) PL_ASSERT(pe->err.text[0] != '\0');
}

/* In the order of the chat endpoint, without the rendering. */
static enum pl_status read_chat(const struct pl_server *s, json_t *body, struct job *j, struct param_error *pe) {
    struct chat_request q = {0};
    enum pl_status st = chat_request_take(body, &q, pe);
    if (st == PL_OK) st = params_read(s, API_CHAT, body, &j->params, pe);
    if (st == PL_OK) st = params_rest(API_CHAT, body, pe);
    if (st == PL_OK) st = chat_request_check(s, &q, pe);
    if (st == PL_OK) st = answer_grammar(&q, q.grammar, j, pe);
    chat_request_deinit(&q);
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct plumb_engine engine = {.config = {.vocab = 300}};
    struct pl_server server = {.engine = &engine, .opt = {.service = {.max_waiting = 64}}};
    struct job job = {.server = &server};
    struct param_error pe = {0};
    json_t *body = NULL;
    if (size < 1) return 0;
    server.traits.tools = (data[0] & 128) != 0 ? PL_TOOLS_VARIABLE : PL_TOOLS_DESCRIBED;
    server.traits.system = server.traits.calls = server.traits.results = (data[0] & 32) != 0;
    server.traits.null_content = server.call_args = (data[0] & 64) != 0;
    server.call_fence = (data[0] & 4) != 0;
    job.params.reply.kind = (enum pl_reply_kind)(data[0] >> 3 & 7);
    struct pl_buf text = {0};
    pl_buf_add(&text, (const char *)data + 1, size - 1);
    enum pl_status parsed = body_parse(&text, &body, &pe);
    pl_buf_deinit(&text);
    checked(parsed, &pe);
    if (parsed != PL_OK) return 0;
    enum api_kind api = (enum api_kind)(data[0] & 3);
    enum pl_status st;
    if (api == API_CHAT) {
        st = read_chat(&server, body, &job, &pe);
    } else {
        st = params_read(&server, api, body, &job.params, &pe);
        if (st == PL_OK) st = params_rest(api, body, &pe);
    }
    checked(st, &pe);
    gen_params_deinit(&job.params);
    json_decref(body);
    return 0;
}
