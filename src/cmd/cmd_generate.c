/* generate - scriptable completion. The text, and nothing else, on stdout. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cmd/chat.h"
#include "cmd/cmd.h"
#include "cmd/common.h"
#include "cmd/interrupt.h"
#include "cmd/out.h"

struct generate {
    struct pl_model_opts model;
    struct pl_sampling_opts sampling;
    const char *prompt, *file, *witness, *counters;
    uint32_t count, logprobs;
    bool ids_only, json, ignore_eos, special, chat, raw, verbose;
    /* results */
    struct plumb_engine *engine;
    struct plumb_session *session;
    struct pl_ids prompt_ids, ids;
    struct pl_buf prompt_text, text;
    json_t *tokens; /* with logprobs */
    uint64_t prompt_ns, decode_ns;
    uint64_t began_ns, first_ns; /* before the model was opened; its first token */
    uint32_t generated;
    enum plumb_finish finish;
    bool out_of_memory;
};

static const char *const finish_names[] = {"length", "stop", "interrupted", "context"};

static json_t *top_json(const uint32_t *ids, const double *logprobs, size_t count) {
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_pack("[I, f]", (json_int_t)ids[i], isinf(logprobs[i]) ? -1e30 : logprobs[i]));
    return list;
}

static bool on_token(void *user, uint32_t id, const char *text, size_t len, double logprob, const uint32_t *top_ids,
                     const double *top_logprobs, size_t top_count) {
    struct generate *g = user;
    if (g->first_ns == 0) g->first_ns = pl_clock_ns();
    if (!g->ids_only && !g->json) {
        pl_out_text_begin();
        pl_out_write(text, len);
        pl_out_text_end(text, len);
    }
    pl_buf_add(&g->text, text, len);
    if (id == UINT32_MAX) return pl_buf_ok(&g->text); /* the rest of a cut character */
    if (pl_grow(&g->ids.data, &g->ids.cap, g->ids.len + 1, sizeof *g->ids.data) != PL_OK || !pl_buf_ok(&g->text)) {
        g->out_of_memory = true;
        return false;
    }
    g->ids.data[g->ids.len++] = id;
    if (g->tokens != NULL)
        json_array_append_new(g->tokens, json_pack("{s:I, s:s%, s:f, s:o}", "id", (json_int_t)id, "text", text, len,
                                                   "logprob", logprob, "top", top_json(top_ids, top_logprobs, top_count)));
    return !pl_interrupted();
}

/* Before anything is loaded: a prompt that cannot be used is told at once. */
static enum pl_status encode_prompt(void *user, struct plumb_engine *e, struct pl_err *err) {
    struct generate *g = user;
    const struct pl_buf *text = &g->prompt_text;
    PL_TRY(pl_engine_need_text(e, err));
    enum pl_status s = PL_OK;
    if (g->chat) {
        struct pl_chat_shown shown = {0};
        json_t *messages = json_pack("[{s:s, s:s%}]", "role", "user", "content", pl_buf_cstr(text), text->len);
        if (messages == NULL)
            s = pl_err_set(err, __FILE__, __LINE__, PL_INVALID,
                           "the prompt is not valid UTF-8, which a chat message must be");
        else
            s = pl_chat_encode(e, &shown, messages, &g->prompt_ids, err);
        json_decref(messages);
    } else {
        struct pl_encode_options opt = {.add_special = true, .parse_special = true};
        s = pl_tokenizer_encode(e->tok, pl_buf_cstr(text), text->len, &opt, &g->prompt_ids, err);
    }
    if (s == PL_OK && g->prompt_ids.len == 0)
        PL_FAIL(err, PL_INVALID, "the prompt is empty and this model has no BOS token to begin with: give some text");
    PL_TRY(s);
    return g->count == 0 ? PL_OK : pl_engine_need_room(e, g->prompt_ids.len, err);
}

static void show_prefill(void *user, uint64_t done, uint64_t total) {
    (void)user;
    pl_progress("reading the prompt", done, total, false);
}

static enum pl_status generate(struct generate *g, struct pl_err *err) {
    if (g->count == 0) return PL_OK;
    PL_TRY(pl_session_create(g->engine, &g->session, err));
    uint64_t start = pl_clock_ns();
    PL_TRY(pl_session_append(g->session, g->prompt_ids.data, g->prompt_ids.len, show_prefill, NULL, err));
    pl_progress_end();
    g->prompt_ns = pl_clock_ns() - start;
    struct plumb_generate_options opt = {
        .size = sizeof opt,
        .sampling = g->sampling.s,
        .max_tokens = g->count,
        .ignore_eos = g->ignore_eos,
        .show_special = g->special,
        .logprob = g->logprobs > 0,
        .logprobs = g->logprobs,
        .on_token = on_token,
        .user = g,
    };
    if (g->logprobs > 0) g->tokens = json_array();
    pl_interrupt_hold(true); /* from here on there is something to keep */
    start = pl_clock_ns();
    enum pl_status s = pl_session_generate_last(g->session, &opt, &g->generated, &g->finish, err);
    g->decode_ns = pl_clock_ns() - start;
    pl_out_text_over();
    if (s == PL_OK && g->out_of_memory) PL_FAIL(err, PL_NO_MEMORY, "out of memory for the generated text");
    return s;
}

static double per_second(uint64_t count, uint64_t ns) { return ns == 0 ? 0.0 : (double)count * 1e9 / (double)ns; }

static json_t *ids_json(const struct pl_ids *ids) {
    json_t *list = json_array();
    for (size_t i = 0; i < ids->len; i++) json_array_append_new(list, json_integer((json_int_t)ids->data[i]));
    return list;
}

/* From before the model was opened; 0: there was none. */
static double first_token_s(const struct generate *g) {
    return g->first_ns == 0 ? 0.0 : (double)(g->first_ns - g->began_ns) * 1e-9;
}

static void print_start(const struct generate *g) {
    char start[PL_ENGINE_START_TEXT];
    pl_engine_start_text(g->engine, start);
    fprintf(stderr, "plumb: start %s; first token after %.2f s\n", start, first_token_s(g));
}

static json_t *result_json(struct generate *g) {
    json_t *o = json_pack("{s:s%, s:o, s:s, s:I, s:I}", "text", pl_buf_cstr(&g->text), g->text.len, "ids", ids_json(&g->ids),
                          "finish_reason", finish_names[g->finish], "prompt_tokens", (json_int_t)g->prompt_ids.len,
                          "generated_tokens", (json_int_t)g->generated);
    if (o == NULL) return NULL;
    json_object_set_new(o, "seed", json_integer((json_int_t)g->sampling.s.seed));
    if (g->tokens != NULL) json_object_set(o, "logprobs", g->tokens);
    json_object_set_new(o, "timings",
                        json_pack("{s:f, s:f, s:f, s:f, s:f}", "prompt_ms", (double)g->prompt_ns / 1e6, "prompt_tok_s",
                                  per_second(g->prompt_ids.len, g->prompt_ns), "decode_ms", (double)g->decode_ns / 1e6,
                                  "decode_tok_s", per_second(g->generated, g->decode_ns), "first_token_ms",
                                  first_token_s(g) * 1e3));
    json_object_set_new(o, "start", pl_engine_start_json(g->engine));
    json_object_set_new(o, "backend", json_string(pl_ops_describe(g->engine->ops)));
    json_object_set_new(o, "fingerprint", pl_engine_fingerprint_json(g->engine));
    json_object_set_new(o, "kernels", pl_engine_witness(g->engine));
    return o;
}

static void print_stats(struct generate *g) {
    if (!g->ids_only && !g->json && g->text.len > 0) pl_out_end_line(g->text.data[g->text.len - 1]);
    if (g->sampling.s.temperature > 0.0f && !g->sampling.seed_given)
        fprintf(stderr, "plumb: seed %llu\n", (unsigned long long)g->sampling.s.seed);
    fprintf(stderr, "plumb: prompt %zu token%s, %.1f tok/s; generated %u token%s, %.1f tok/s; stopped by %s\n",
            g->prompt_ids.len, pl_cmd_s(g->prompt_ids.len), per_second(g->prompt_ids.len, g->prompt_ns), g->generated,
            pl_cmd_s(g->generated), per_second(g->generated, g->decode_ns), finish_names[g->finish]);
    if (g->verbose) print_start(g);
    if (g->verbose) pl_cmd_print_kernels(g->engine);
}

static enum pl_status print_result(struct generate *g, struct pl_err *err) {
    if (g->json) PL_TRY(pl_cmd_print_json(result_json(g), err));
    if (g->ids_only && !g->json) pl_cmd_print_ids(g->ids.data, g->ids.len);
    pl_out_flush();
    print_stats(g);
    if (g->counters != NULL) PL_TRY(pl_cmd_write_counters(g->engine, g->counters, err));
    return g->witness == NULL ? PL_OK : pl_cmd_write_witness(g->engine, g->witness, err);
}

static enum pl_status check(struct generate *g, struct pl_err *err) {
    if (g->chat && g->raw) PL_FAIL(err, PL_USAGE, "--chat and --raw exclude each other");
    if (g->ids_only && g->json) PL_FAIL(err, PL_USAGE, "--ids and --json exclude each other: the JSON has the ids");
    if (g->logprobs > 0 && !g->json) PL_FAIL(err, PL_USAGE, "--logprobs needs --json, which is where they are printed");
    if ((g->prompt == NULL) == (g->file == NULL))
        PL_FAIL(err, PL_USAGE,
                g->prompt == NULL ? "-p TEXT or -f FILE is missing ('-f -' reads standard input)"
                                  : "-p and -f exclude each other");
    PL_TRY(pl_sampling_opts_check(&g->sampling, err));
    return pl_cmd_can_record(g->witness, g->counters, err);
}

static int run(struct generate *g) {
    struct pl_err err = {0};
    int code = PL_EXIT_OK;
    enum pl_status s = check(g, &err);
    if (s == PL_OK) s = pl_cmd_check_model(&g->model, &err);
    pl_interrupt_catch();
    if (s == PL_OK) s = pl_cmd_read_text(g->prompt, g->file, &g->prompt_text, &err); /* before minutes of loading */
    if (s == PL_OK) {
        pl_sampling_opts_seed(&g->sampling);
        g->began_ns = pl_clock_ns();
        g->engine = pl_cmd_open_engine("generate", &g->model, &(struct pl_cmd_need){encode_prompt, g}, &code);
        if (g->engine == NULL) return code;
        s = generate(g, &err);
    }
    if (s == PL_OK) s = print_result(g, &err);
    if (s == PL_OK) {
        code = pl_out_close();
        return pl_interrupted() ? PL_EXIT_INTERRUPTED : code;
    }
    err.status = s;
    pl_sampling_opts_name(&err);
    return pl_cmd_fail("generate", &err);
}

static void release(struct generate *g) {
    plumb_session_destroy(g->session);
    plumb_engine_destroy(g->engine);
    pl_sampling_opts_deinit(&g->sampling);
    pl_ids_deinit(&g->prompt_ids);
    pl_ids_deinit(&g->ids);
    pl_buf_deinit(&g->prompt_text);
    pl_buf_deinit(&g->text);
    json_decref(g->tokens);
}

/* Without options the most likely token is taken each time; filters are off until they are asked for. */
static void set_defaults(struct generate *g) {
    g->count = 128;
    plumb_sampling_default(&g->sampling.s);
    g->sampling.s.temperature = 0.0f;
    g->sampling.s.top_k = 0;
    g->sampling.s.top_p = 1.0f;
    g->sampling.s.min_p = 0.0f;
}

int pl_cmd_generate(int argc, char **argv) {
    struct generate g = {0};
    struct pl_arg model[PL_MODEL_ARG_ROWS], sampling[PL_SAMPLING_ARG_ROWS];
    set_defaults(&g);
    pl_model_args(&g.model, model);
    pl_sampling_args(&g.sampling, sampling);
    const struct pl_arg own[] = {
        {'p', "prompt", "TEXT", PL_ARG_STR, &g.prompt, "the prompt", 0, 0, NULL},
        {'f', "file", "FILE", PL_ARG_STR, &g.file, "the prompt is this file's bytes ('-': standard input)", 0, 0, NULL},
        {'n', "count", "N", PL_ARG_U32, &g.count, "most tokens to generate (128); 0 prints nothing", 0, 0, NULL},
        {0, "chat", NULL, PL_ARG_FLAG, &g.chat, "the prompt is a user message: apply the chat template", 0, 0, NULL},
        {0, "raw", NULL, PL_ARG_FLAG, &g.raw, "the prompt is the text to continue (default)", 0, 0, NULL},
        {0, "ids", NULL, PL_ARG_FLAG, &g.ids_only, "print a JSON array of the generated ids instead of text", 0, 0, NULL},
        {0, "json", NULL, PL_ARG_FLAG, &g.json, "print one JSON object: text, ids, finish_reason, timings, kernels", 0, 0,
         NULL},
        {0, "logprobs", "K", PL_ARG_U32, &g.logprobs, "with --json: log-probabilities and K alternatives, up to 20", 0, 20,
         NULL},
        {0, "ignore-eos", NULL, PL_ARG_FLAG, &g.ignore_eos, "an end token does not end the text", 0, 0, NULL},
        {0, "special", NULL, PL_ARG_FLAG, &g.special, "show special tokens by name", 0, 0, NULL},
        {0, "witness", "FILE", PL_ARG_STR, &g.witness, "write every kernel that ran, with launches, as JSON", 0, 0, NULL},
        {0, "counters", "FILE", PL_ARG_STR, &g.counters, "write how every choice of a kernel ended, as JSON", 0, 0, NULL},
        {'v', "verbose", NULL, PL_ARG_FLAG, &g.verbose, "list the kernels that ran on stderr", 0, 0, NULL},
        {0},
    };
    struct pl_args args = {
        .command = "generate",
        .synopsis = "[-m] MODEL (-p TEXT | -f FILE) [-n N] [OPTIONS]",
        .about = "Continues a text. The new text alone goes to stdout. Greedy unless --temp is given; all filters are off\n"
                 "until they are asked for.",
        .examples = "  plumb generate -m smollm2.gguf -p 'The capital of France is' -n 8\n"
                    "  plumb generate -m smollm2.gguf --chat -p 'Name three rivers.' --temp 0.8 --top-p 0.95 --seed 7\n"
                    "  plumb generate -m smollm2.gguf -f prompt.txt -n 64 --ids\n"
                    "  plumb generate -m smollm2.gguf -p 'Hello' --json --logprobs 5\n",
        .groups = (const struct pl_arg *const[]){own, model, sampling, NULL},
    };
    int code = pl_args_parse(&args, argc, argv);
    if (code == -1) code = run(&g);
    release(&g);
    return code;
}
