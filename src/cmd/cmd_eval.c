/* eval - how well a model predicts a text: perplexity over windows, log-probabilities of given ids, and how far its
 * distributions are from saved ones. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "cmd/cmd.h"
#include "cmd/eval.h"
#include "cmd/interrupt.h"
#include "cmd/out.h"

static enum pl_status check(struct eval *v, struct pl_err *err) {
    if ((v->text_file == NULL) == (v->tokens_file == NULL))
        PL_FAIL(err, PL_USAGE,
                v->text_file == NULL ? "-f TEXT or --tokens IDS.json is missing" : "-f and --tokens exclude each other");
    if (v->dump_file != NULL && v->tokens_file == NULL) PL_FAIL(err, PL_USAGE, "--dump needs --tokens");
    if (v->window > 0 && v->stride >= v->window)
        PL_FAIL(err, PL_USAGE,
                "--stride is %u but must be smaller than the window of %u: each window scores after something", v->stride,
                v->window);
    if (v->peer.url != NULL && strncmp(v->peer.url, "http://", 7) != 0 && strncmp(v->peer.url, "https://", 8) != 0)
        PL_FAIL(err, PL_USAGE, "'%.200s' is no http:// or https:// address", v->peer.url);
    if (v->peer.url != NULL && v->dump_file != NULL) PL_FAIL(err, PL_USAGE, "--dump needs a model, not --url: use --scores");
    if (v->peer.url != NULL && (v->witness != NULL || v->counters != NULL))
        PL_FAIL(err, PL_USAGE, "--witness and --counters need a model, not --url: the server has /metrics and /v1/witness");
    if (v->scorer.resume && v->scorer.save_path == NULL && v->scorer.scores_path == NULL)
        PL_FAIL(err, PL_USAGE, "--resume needs --save-reference or --scores: they hold what is done already");
    if (v->scorer.resume && v->dump_file != NULL) PL_FAIL(err, PL_USAGE, "--dump and --resume exclude each other");
    if (v->scorer.save_path != NULL && v->scorer.against_path != NULL &&
        strcmp(v->scorer.save_path, v->scorer.against_path) == 0)
        PL_FAIL(err, PL_USAGE, "--save-reference and --against are the same file");
    const char *dtype = v->reference_dtype == NULL ? "f16" : v->reference_dtype;
    if (strcmp(dtype, "f16") != 0 && strcmp(dtype, "f32") != 0)
        PL_FAIL(err, PL_USAGE, "--reference-dtype '%.30s' is neither f16 nor f32", dtype);
    if (v->reference_dtype != NULL && v->scorer.save_path == NULL)
        PL_FAIL(err, PL_USAGE, "--reference-dtype needs --save-reference: it says how that file is written");
    v->scorer.about.form = strcmp(dtype, "f32") == 0 ? PL_REFERENCE_F32 : PL_REFERENCE_F16;
    PL_TRY(pl_cmd_can_write(v->dump_file != NULL && strcmp(v->dump_file, "-") == 0 ? NULL : v->dump_file, "dump", err));
    PL_TRY(pl_cmd_can_write(v->scorer.save_path, "reference", err));
    PL_TRY(pl_cmd_can_write(v->scorer.scores_path, "scores", err));
    return pl_cmd_can_record(v->witness, v->counters, err);
}

enum pl_status eval_read_ids(struct eval *v, struct pl_err *err) {
    struct pl_buf text = {0};
    PL_TRY(pl_cmd_read_file(v->tokens_file, PL_TEXT_BYTES_MAX, &text, err));
    enum pl_status s = pl_cmd_parse_ids(pl_buf_cstr(&text), text.len, &v->ids, err);
    pl_buf_deinit(&text);
    if (s != PL_OK) pl_err_note(err, "reading %.200s", v->tokens_file);
    if (s == PL_OK && v->ids.len == 0) PL_FAIL(err, PL_INVALID, "%.300s has no ids", v->tokens_file);
    return s;
}

enum pl_status eval_windows(struct eval *v, uint32_t context, struct pl_err *err) {
    if (v->window == 0) v->window = context;
    if (v->window > context)
        PL_FAIL(err, PL_LIMIT, "--window is %u but the context holds %u: raise --context", v->window, context);
    if (v->stride == 0) v->stride = PL_MAX(1u, v->window / 2);
    if (v->stride >= v->window && v->ids.len > v->window)
        PL_FAIL(err, PL_INVALID, "--stride is %u but must be smaller than the window of %u", v->stride, v->window);
    struct pl_reference_about *a = &v->scorer.about;
    a->window = v->window;
    a->stride = v->stride;
    a->id_count = v->ids.len;
    a->ids_hash = pl_hash64(v->ids.data, v->ids.len * sizeof *v->ids.data, 0);
    return PL_OK;
}

enum pl_status eval_each_window(struct eval *v,
                                enum pl_status (*run)(struct eval *v, size_t begin, size_t end, size_t first,
                                                      struct pl_err *err),
                                struct pl_err *err) {
    size_t scored_to = 1, done = v->scorer.count + 1;
    for (size_t begin = 0; scored_to < v->ids.len; begin += v->stride) {
        size_t end = PL_MIN(begin + v->window, v->ids.len);
        size_t first = PL_MAX(PL_MAX(scored_to, begin + 1), done);
        if (first < end) PL_TRY(run(v, begin, end, first, err));
        scored_to = end;
    }
    pl_progress_end();
    return PL_OK;
}

static enum pl_status work(struct eval *v, struct pl_err *err) {
    bool url = v->peer.url != NULL;
    PL_TRY(url ? eval_url_prepare(v, err) : eval_local_prepare(v, err));
    if (v->origin == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory");
    if ((v->scorer.save_path != NULL || v->scorer.against_path != NULL) && v->ids.len < 2)
        PL_FAIL(err, PL_INVALID, "there are fewer than two tokens to evaluate");
    v->scorer.ids = v->ids.data;
    v->scorer.origin = v->origin;
    pl_interrupt_hold(v->scorer.save_path != NULL || v->scorer.scores_path != NULL); /* whole rows stay */
    PL_TRY(pl_scorer_begin(&v->scorer, err));
    if (v->scorer.resume && v->scorer.count > 0)
        fprintf(stderr, "plumb: %zu of %zu tokens were scored before\n", v->scorer.count, v->ids.len - 1);
    enum pl_status st = url ? eval_url_run(v, err) : eval_local_run(v, err);
    if (st != PL_OK) {
        (void)!pl_scorer_end(&v->scorer, NULL); /* the first failure is the one to tell */
        return st;
    }
    return pl_scorer_end(&v->scorer, err);
}

static enum pl_status report(struct eval *v, struct pl_err *err) {
    struct pl_score_summary m;
    PL_TRY(pl_scorer_summary(&v->scorer, &m, err));
    if (v->json) {
        json_t *o = json_pack("{s:I, s:I, s:f, s:f, s:o, s:I, s:I, s:s, s:o}", "tokens", (json_int_t)v->ids.len, "scored",
                              (json_int_t)m.scored, "mean_logprob", m.mean_logprob.value, "perplexity", m.perplexity.value,
                              "perplexity_interval", pl_interval_json(m.perplexity), "window", (json_int_t)v->window,
                              "stride", (json_int_t)v->stride, "backend", v->backend, "against", pl_score_against_json(&m));
        if (o != NULL && v->peer.url == NULL) json_object_set_new(o, "kernels", pl_engine_witness(v->engine));
        if (o != NULL && v->peer.url != NULL) json_object_set_new(o, "way", json_string(v->how));
        return pl_cmd_print_json(o, err);
    }
    if (v->dump == stdout) return PL_OK;
    struct pl_buf text = {0};
    pl_out_printf("perplexity %.4f (mean logprob %.6f over %zu of %zu tokens, window %u, stride %u; ", m.perplexity.value,
                  m.mean_logprob.value, m.scored, v->ids.len, v->window, v->stride);
    if (m.scored < 2)
        pl_out_str("no interval: one token)\n");
    else
        pl_out_printf("95%% interval %.4f to %.4f)\n", m.perplexity.low, m.perplexity.high);
    if (m.against) pl_score_print(&m, &text);
    pl_out_str(pl_buf_cstr(&text));
    pl_buf_deinit(&text);
    return PL_OK;
}

static int run(struct eval *v) {
    struct pl_err err = {0};
    int code = PL_EXIT_OK;
    enum pl_status s = check(v, &err);
    if (s == PL_OK && v->peer.url == NULL) s = pl_cmd_check_model(&v->model, &err);
    pl_interrupt_catch();
    if (s == PL_OK && v->text_file != NULL) s = pl_cmd_read_file(v->text_file, PL_TEXT_BYTES_MAX, &v->text, &err);
    v->model.engine.logit_rows = EVAL_LOGIT_ROWS;
    if (s == PL_OK && v->tokens_file != NULL) {
        s = eval_read_ids(v, &err);
        /* All of them in one context unless the caller said otherwise. */
        if (s == PL_OK && v->model.engine.context == 0 && v->window == 0) v->model.engine.context = (uint32_t)v->ids.len;
    }
    if (s == PL_OK && v->window > 0 && v->model.engine.context == 0) v->model.engine.context = v->window;
    if (s == PL_OK && v->peer.url == NULL) {
        v->engine = pl_cmd_open_engine("eval", &v->model, &(struct pl_cmd_need){eval_local_need, v}, &code);
        if (v->engine == NULL) return code;
    }
    if (s == PL_OK) s = work(v, &err);
    if (s == PL_OK) s = report(v, &err);
    if (s == PL_OK && v->counters != NULL) s = pl_cmd_write_counters(v->engine, v->counters, &err);
    if (s == PL_OK && v->witness != NULL) s = pl_cmd_write_witness(v->engine, v->witness, &err);
    if (s == PL_OK) return pl_out_close();
    err.status = s;
    code = pl_cmd_fail("eval", &err);
    return s == PL_CANCELLED ? PL_EXIT_INTERRUPTED : code;
}

int pl_cmd_eval(int argc, char **argv) {
    struct eval v = {.top = 5, .peer = {.timeout_s = 600}};
    struct pl_arg model[PL_MODEL_ARG_ROWS];
    pl_model_args(&v.model, model);
    const struct pl_arg own[] = {
        {'f', "file", "TEXT", PL_ARG_STR, &v.text_file, "text to evaluate ('-': standard input)", 0, 0, NULL},
        {0, "tokens", "IDS.json", PL_ARG_STR, &v.tokens_file, "ids to evaluate instead, exactly as given (no BOS added)", 0,
         0, NULL},
        {0, "dump", "OUT.jsonl", PL_ARG_STR, &v.dump_file, "with --tokens: one line per position ('-': stdout)", 0, 0, NULL},
        {'w', "window", "N", PL_ARG_U32, &v.window, "ids of one window (default: the whole context)", 2, 16777216, NULL},
        {0, "stride", "N", PL_ARG_U32, &v.stride, "how far windows advance (default: half a window)", 1, 16777216, NULL},
        {0, "limit", "N", PL_ARG_U32, &v.limit, "evaluate only the first N tokens (0 = all)", 0, 0, NULL},
        {0, "save-reference", "FILE", PL_ARG_STR, &v.scorer.save_path, "save every distribution, to compare others with", 0,
         0, NULL},
        {0, "reference-dtype", "TYPE", PL_ARG_STR, &v.reference_dtype, "how it is saved: f16 or f32 (f16)", 0, 0, NULL},
        {0, "against", "FILE", PL_ARG_STR, &v.scorer.against_path,
         "compare with a saved reference: KL divergence, top-1 agreement, perplexity ratio", 0, 0, NULL},
        {0, "scores", "FILE", PL_ARG_STR, &v.scorer.scores_path, "one JSON line per token: position, id, logprob, KL, ..", 0,
         0, NULL},
        {0, "resume", NULL, PL_ARG_FLAG, &v.scorer.resume, "go on where --save-reference or --scores was interrupted", 0, 0,
         NULL},
        {0, "url", "URL", PL_ARG_STR, &v.peer.url, "ask a server instead; -m then only gives the tokenizer", 0, 0, NULL},
        {0, "top", "K", PL_ARG_U32, &v.top, "with --url: alternatives to ask for (5)", 1, 255, NULL},
        {0, "api-key", "KEY", PL_ARG_STR, &v.peer.api_key, "sent to the server", 0, 0, NULL},
        {0, "timeout", "SECONDS", PL_ARG_U32, &v.peer.timeout_s, "of one request (600)", 1, 86400, NULL},
        {0, "witness", "FILE", PL_ARG_STR, &v.witness, "write every kernel that ran, with launches, as JSON", 0, 0, NULL},
        {0, "counters", "FILE", PL_ARG_STR, &v.counters, "write how every choice of a kernel ended, as JSON", 0, 0, NULL},
        {0, "json", NULL, PL_ARG_FLAG, &v.json, "print one JSON object", 0, 0, NULL},
        {0},
    };
    struct pl_args args = {
        .command = "eval",
        .synopsis = "(-m MODEL | --url URL) (-f TEXT | --tokens IDS.json [--dump OUT.jsonl]) [OPTIONS]",
        .about =
            "Perplexity of a text: exp of minus the mean log-probability of each token given those before it. A long text\n"
            "is cut into windows that overlap by window minus stride; every token but the first is scored once, by the\n"
            "first window that reaches it. With --dump: {\"pos\",\"id\",\"logprob\",\"top\":[[id,logprob] x5]} per "
            "position.\nWith --against the distance from a saved reference. Intervals are 95 percent, from blocks of "
            "tokens.",
        .examples = "  plumb eval -m smollm2.gguf -f wiki.txt --window 512 --stride 256\n"
                    "  plumb tokenize -m smollm2.gguf -f page.txt > ids.json\n"
                    "  plumb eval -m smollm2.gguf --tokens ids.json --dump logprobs.jsonl\n"
                    "  plumb eval -m f16.gguf -f wiki.txt -w 512 --save-reference wiki.ref --resume\n"
                    "  plumb eval -m q4.gguf -f wiki.txt -w 512 --against wiki.ref\n"
                    "  plumb eval --url http://127.0.0.1:8080 -m q4.gguf -f wiki.txt -w 512 --against wiki.ref\n",
        .groups = (const struct pl_arg *const[]){own, model, NULL},
    };
    int code = pl_args_parse(&args, argc, argv);
    if (code == -1) code = run(&v);
    if (v.dump != NULL && v.dump != stdout) fclose(v.dump);
    pl_scorer_deinit(&v.scorer);
    pl_peer_deinit(&v.peer);
    json_decref(v.origin);
    plumb_session_destroy(v.session);
    plumb_engine_destroy(v.engine);
    pl_free(v.logits);
    pl_free(v.row);
    pl_buf_deinit(&v.text);
    pl_ids_deinit(&v.ids);
    return code;
}
