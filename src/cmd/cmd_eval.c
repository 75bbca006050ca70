/* eval - how well a model predicts a text: perplexity over windows, or log-probabilities of given ids. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cmd/cmd.h"
#include "cmd/common.h"
#include "cmd/interrupt.h"
#include "cmd/out.h"

enum { EVAL_LOGIT_ROWS = 64, EVAL_TOP = 5 };

struct eval {
    struct pl_model_opts model;
    const char *text_file, *tokens_file, *dump_file;
    uint32_t window, stride, limit;
    bool json;
    struct plumb_engine *engine;
    struct plumb_session *session;
    struct pl_buf text;
    struct pl_ids ids;
    float *logits; /* [EVAL_LOGIT_ROWS, V] */
    FILE *dump;
    double sum; /* of log-probabilities */
    uint64_t scored;
};

static void dump_row(struct eval *v, size_t pos, const float *logits) {
    uint32_t top[EVAL_TOP];
    double lp[EVAL_TOP];
    uint32_t vocab = v->engine->config.vocab;
    if (logits == NULL) {
        fprintf(v->dump, "{\"pos\":%zu,\"id\":%u,\"logprob\":null,\"top\":[]}\n", pos, v->ids.data[pos]);
        return;
    }
    fprintf(v->dump, "{\"pos\":%zu,\"id\":%u,\"logprob\":%.9g,\"top\":[", pos, v->ids.data[pos],
            pl_logprob(logits, vocab, v->ids.data[pos]));
    size_t n = pl_top_logprobs(logits, vocab, EVAL_TOP, top, lp);
    for (size_t i = 0; i < n; i++) fprintf(v->dump, "%s[%u,%.9g]", i == 0 ? "" : ",", top[i], lp[i]);
    fprintf(v->dump, "]}\n");
}

/* Scores the id at pos by the logits of the row before it. */
static enum pl_status score(struct eval *v, size_t pos, const float *logits, struct pl_err *err) {
    double logprob = pl_logprob(logits, v->engine->config.vocab, v->ids.data[pos]);
    if (!isfinite(logprob))
        PL_FAIL(err, PL_FORMAT, "the logits at position %zu are not numbers: the weights or a kernel are broken", pos - 1);
    v->sum += logprob;
    v->scored++;
    if (v->dump != NULL) dump_row(v, pos, logits);
    return PL_OK;
}

/* Ids [begin, end) through an empty session; ids at `first` and later (first > begin) are scored. */
static enum pl_status run_window(struct eval *v, size_t begin, size_t end, size_t first, struct pl_err *err) {
    struct plumb_engine *e = v->engine;
    PL_TRY(pl_session_truncate(v->session, 0, err));
    for (size_t at = begin; at < end;) {
        /* The row of id p gives the prediction of p + 1. Rows before first - 1 need no logits. */
        bool scores = at + 1 >= first;
        size_t most = scores ? EVAL_LOGIT_ROWS : e->batch_rows, stop = scores ? end : PL_MIN(end, first - 1);
        uint32_t n = (uint32_t)PL_MIN(PL_MIN(most, (size_t)e->batch_rows), stop - at);
        struct pl_step_part part = {.session = v->session, .ids = v->ids.data + at, .count = n, .logits = scores ? n : 0};
        PL_TRY(pl_engine_step(e, &part, 1, v->logits, err));
        for (uint32_t i = 0; scores && i < n && at + i + 1 < end; i++)
            PL_TRY(score(v, at + i + 1, v->logits + (size_t)i * e->config.vocab, err));
        at += n;
        if (pl_interrupted()) PL_FAIL(err, PL_CANCELLED, "interrupted after %zu of %zu tokens", at, v->ids.len);
        pl_progress("evaluating", at, v->ids.len, false);
    }
    return PL_OK;
}

/* Windows of `window` ids that advance by `stride`; each scores only what no window before it did. */
static enum pl_status run_windows(struct eval *v, struct pl_err *err) {
    size_t scored_to = 1;
    for (size_t begin = 0; scored_to < v->ids.len; begin += v->stride) {
        size_t end = PL_MIN(begin + v->window, v->ids.len);
        PL_TRY(run_window(v, begin, end, PL_MAX(scored_to, begin + 1), err));
        scored_to = end;
    }
    pl_progress_end();
    return PL_OK;
}

static enum pl_status check(struct eval *v, struct pl_err *err) {
    if ((v->text_file == NULL) == (v->tokens_file == NULL))
        PL_FAIL(err, PL_USAGE,
                v->text_file == NULL ? "-f TEXT or --tokens IDS.json is missing" : "-f and --tokens exclude each other");
    if (v->dump_file != NULL && v->tokens_file == NULL) PL_FAIL(err, PL_USAGE, "--dump needs --tokens");
    if (v->window > 0 && v->stride >= v->window)
        PL_FAIL(err, PL_USAGE, "stride is %u but must be smaller than the window of %u: each window scores after something",
                v->stride, v->window);
    return PL_OK;
}

static enum pl_status read_ids(struct eval *v, struct pl_err *err) {
    struct pl_buf text = {0};
    PL_TRY(pl_cmd_read_file(v->tokens_file, PL_TEXT_BYTES_MAX, &text, err));
    enum pl_status s = pl_cmd_parse_ids(pl_buf_cstr(&text), text.len, &v->ids, err);
    pl_buf_deinit(&text);
    if (s != PL_OK) pl_err_note(err, "reading %.200s", v->tokens_file);
    if (s == PL_OK && v->ids.len == 0) PL_FAIL(err, PL_INVALID, "%.300s has no ids", v->tokens_file);
    return s;
}

static enum pl_status encode_text(struct eval *v, struct pl_err *err) {
    struct pl_encode_options opt = {.add_special = true, .parse_special = false};
    PL_TRY(pl_engine_need_text(v->engine, err));
    enum pl_status s = pl_tokenizer_encode(v->engine->tok, pl_buf_cstr(&v->text), v->text.len, &opt, &v->ids, err);
    if (s == PL_OK && v->limit > 0 && v->ids.len > v->limit) v->ids.len = v->limit;
    if (s == PL_OK && v->ids.len < 2) PL_FAIL(err, PL_INVALID, "%.300s has fewer than two tokens to evaluate", v->text_file);
    return s;
}

static enum pl_status check_ids(const struct eval *v, struct pl_err *err) {
    for (size_t i = 0; i < v->ids.len; i++) {
        if (v->ids.data[i] >= v->engine->config.vocab)
            PL_FAIL(err, PL_INVALID, "id %zu of the list is %u but the vocabulary has %u tokens", i, v->ids.data[i],
                    v->engine->config.vocab);
    }
    return PL_OK;
}

static enum pl_status work(struct eval *v, struct pl_err *err) {
    if (v->tokens_file == NULL) PL_TRY(encode_text(v, err));
    PL_TRY(check_ids(v, err));
    PL_TRY(pl_session_create(v->engine, &v->session, err));
    v->logits = pl_alloc((size_t)EVAL_LOGIT_ROWS * v->engine->config.vocab, sizeof *v->logits);
    if (v->logits == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for logits");
    if (v->window == 0) v->window = v->engine->context;
    if (v->window > v->engine->context)
        PL_FAIL(err, PL_LIMIT, "window is %u but the context holds %u: raise --context", v->window, v->engine->context);
    if (v->stride == 0) v->stride = PL_MAX(1u, v->window / 2);
    if (v->stride >= v->window && v->ids.len > v->window)
        PL_FAIL(err, PL_INVALID, "stride is %u but must be smaller than the window of %u", v->stride, v->window);
    if (v->dump_file == NULL) return run_windows(v, err);
    v->dump = strcmp(v->dump_file, "-") == 0 ? stdout : fopen(v->dump_file, "we");
    if (v->dump == NULL) PL_FAIL(err, PL_IO, "%.300s: %s", v->dump_file, strerror(errno));
    pl_interrupt_hold(true); /* whole lines stay */
    dump_row(v, 0, NULL);
    PL_TRY(run_windows(v, err));
    bool bad = fflush(v->dump) != 0 || ferror(v->dump);
    if (v->dump == stdout) pl_out_flush();
    if (bad) PL_FAIL(err, PL_IO, "%.300s: %s", v->dump_file, strerror(errno));
    return PL_OK;
}

static enum pl_status report(struct eval *v, struct pl_err *err) {
    double mean = v->scored == 0 ? 0.0 : v->sum / (double)v->scored;
    if (v->json)
        return pl_cmd_print_json(json_pack("{s:I, s:I, s:f, s:f, s:I, s:I, s:s, s:o}", "tokens", (json_int_t)v->ids.len,
                                           "scored", (json_int_t)v->scored, "mean_logprob", mean, "perplexity", exp(-mean),
                                           "window", (json_int_t)v->window, "stride", (json_int_t)v->stride, "backend",
                                           pl_ops_describe(v->engine->ops), "kernels", pl_engine_witness(v->engine)),
                                 err);
    if (v->dump != stdout)
        pl_out_printf("perplexity %.4f (mean logprob %.6f over %llu of %zu tokens, window %u, stride %u)\n", exp(-mean),
                      mean, (unsigned long long)v->scored, v->ids.len, v->window, v->stride);
    return PL_OK;
}

static int run(struct eval *v) {
    struct pl_err err = {0};
    int code = PL_EXIT_OK;
    enum pl_status s = check(v, &err);
    if (s == PL_OK) s = pl_cmd_check_model(&v->model, &err);
    pl_interrupt_catch();
    if (s == PL_OK && v->text_file != NULL) s = pl_cmd_read_file(v->text_file, PL_TEXT_BYTES_MAX, &v->text, &err);
    v->model.engine.logit_rows = EVAL_LOGIT_ROWS;
    if (s == PL_OK && v->tokens_file != NULL) {
        s = read_ids(v, &err);
        /* All of them in one context unless the caller said otherwise. */
        if (s == PL_OK && v->model.engine.context == 0 && v->window == 0) v->model.engine.context = (uint32_t)v->ids.len;
    }
    if (s == PL_OK && v->window > 0 && v->model.engine.context == 0) v->model.engine.context = v->window;
    if (s == PL_OK) {
        v->engine = pl_cmd_open_engine("eval", &v->model, &code);
        if (v->engine == NULL) return code;
        s = work(v, &err);
    }
    if (s == PL_OK) s = report(v, &err);
    if (s == PL_OK) return pl_out_close();
    err.status = s;
    code = pl_cmd_fail("eval", &err);
    return s == PL_CANCELLED ? PL_EXIT_INTERRUPTED : code;
}

int pl_cmd_eval(int argc, char **argv) {
    struct eval v = {0};
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
        {0, "json", NULL, PL_ARG_FLAG, &v.json, "print one JSON object", 0, 0, NULL},
        {0},
    };
    struct pl_args args = {
        .command = "eval",
        .synopsis = "-m MODEL (-f TEXT | --tokens IDS.json [--dump OUT.jsonl]) [OPTIONS]",
        .about =
            "Perplexity of a text: exp of minus the mean log-probability of each token given those before it. A long text\n"
            "is cut into windows that overlap by window minus stride; every token but the first is scored once, by the\n"
            "first window that reaches it. With --dump: {\"pos\",\"id\",\"logprob\",\"top\":[[id,logprob] x5]} per "
            "position.",
        .examples = "  plumb eval -m smollm2.gguf -f wiki.txt --window 512 --stride 256\n"
                    "  plumb tokenize -m smollm2.gguf -f page.txt > ids.json\n"
                    "  plumb eval -m smollm2.gguf --tokens ids.json --dump logprobs.jsonl\n",
        .groups = (const struct pl_arg *const[]){own, model, NULL},
    };
    int code = pl_args_parse(&args, argc, argv);
    if (code == -1) code = run(&v);
    if (v.dump != NULL && v.dump != stdout) fclose(v.dump);
    plumb_session_destroy(v.session);
    plumb_engine_destroy(v.engine);
    pl_free(v.logits);
    pl_buf_deinit(&v.text);
    pl_ids_deinit(&v.ids);
    return code;
}
