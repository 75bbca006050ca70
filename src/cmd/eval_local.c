/* eval_local - windows of a text through a model that is loaded here. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "cmd/eval.h"
#include "cmd/interrupt.h"
#include "cmd/out.h"

static void dump_row(struct eval *v, size_t pos, const float *logits) {
    uint32_t top[EVAL_TOP];
    double lp[EVAL_TOP];
    uint32_t vocab = v->engine->config.vocab;
    if (logits == NULL) {
        fprintf(v->dump, "{\"pos\":%zu,\"id\":%u,\"logprob\":null,\"top\":[]}\n", pos, v->ids.data[pos]);
        return;
    }
    size_t n = pl_top_logprobs(logits, vocab, EVAL_TOP, top, lp);
    fprintf(v->dump, "{\"pos\":%zu,\"id\":%u,\"logprob\":%.9g,\"top\":[", pos, v->ids.data[pos],
            pl_logprob(logits, vocab, v->ids.data[pos]));
    for (size_t i = 0; i < n; i++) fprintf(v->dump, "%s[%u,%.9g]", i == 0 ? "" : ",", top[i], lp[i]);
    fprintf(v->dump, "]}\n");
    if (v->dump == stdout) pl_out_check(ferror(stdout) == 0); /* a reader that left ends the work here */
}

/* Scores the id at pos by the logits of the row before it. */
static enum pl_status score(struct eval *v, size_t pos, const float *logits, struct pl_err *err) {
    uint32_t vocab = v->engine->config.vocab;
    struct pl_row row = {.logprob = pl_logprob(logits, vocab, v->ids.data[pos])};
    if (!isfinite(row.logprob))
        PL_FAIL(err, PL_FORMAT, "the logits at position %zu are not numbers: the weights or a kernel are broken", pos - 1);
    if (v->row != NULL) {
        pl_row_normalise(logits, vocab, v->row);
        row.full = v->row;
    }
    PL_TRY(pl_scorer_take(&v->scorer, &row, err));
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

static enum pl_status encode_text(struct eval *v, const struct plumb_engine *e, struct pl_err *err) {
    struct pl_encode_options opt = {.add_special = true, .parse_special = false};
    PL_TRY(pl_engine_need_text(e, err));
    return pl_tokenizer_encode(e->tok, pl_buf_cstr(&v->text), v->text.len, &opt, &v->ids, err);
}

enum pl_status eval_local_need(void *user, struct plumb_engine *e, struct pl_err *err) {
    struct eval *v = user;
    if (v->tokens_file == NULL) PL_TRY(encode_text(v, e, err));
    if (v->limit > 0 && v->ids.len > v->limit) v->ids.len = v->limit;
    if (v->ids.len < 2 && v->tokens_file == NULL)
        PL_FAIL(err, PL_INVALID, "%.300s has fewer than two tokens to evaluate", v->text_file);
    for (size_t i = 0; i < v->ids.len; i++) {
        if (v->ids.data[i] >= e->config.vocab)
            PL_FAIL(err, PL_INVALID, "id %zu of the list is %u but the vocabulary has %u tokens", i, v->ids.data[i],
                    e->config.vocab);
    }
    return PL_OK;
}

enum pl_status eval_local_prepare(struct eval *v, struct pl_err *err) {
    uint32_t vocab = v->engine->config.vocab;
    struct pl_fingerprint f;
    PL_TRY(pl_session_create(v->engine, &v->session, err));
    v->logits = pl_alloc((size_t)EVAL_LOGIT_ROWS * vocab, sizeof *v->logits);
    if (v->logits == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for logits");
    if (v->scorer.save_path != NULL || v->scorer.against_path != NULL) {
        v->row = pl_alloc(vocab, sizeof *v->row);
        if (v->row == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for logits");
    }
    PL_TRY(eval_windows(v, v->engine->context, err));
    pl_engine_fingerprint(v->engine, &f);
    v->scorer.about.vocab = vocab;
    v->scorer.about.vocabulary_hash = f.vocabulary;
    snprintf(v->backend, sizeof v->backend, "%s", pl_ops_describe(v->engine->ops));
    v->origin = json_pack("{s:s, s:s, s:s, s:s, s:s}", "model", v->engine->model_path, "fingerprint",
                          pl_file_fingerprint(v->engine->file), "build", plumb_build_id(), "backend", v->backend, "kv_dtype",
                          pl_kv_type_name(v->engine->kv_shape.dtype));
    return PL_OK;
}

enum pl_status eval_local_run(struct eval *v, struct pl_err *err) {
    if (v->dump_file == NULL) return eval_each_window(v, run_window, err);
    v->dump = strcmp(v->dump_file, "-") == 0 ? stdout : fopen(v->dump_file, "we");
    if (v->dump == NULL) PL_FAIL(err, PL_IO, "%.300s: %s", v->dump_file, strerror(errno));
    pl_interrupt_hold(true); /* whole lines stay */
    dump_row(v, 0, NULL);
    PL_TRY(eval_each_window(v, run_window, err));
    if (v->dump == stdout) {
        pl_out_flush();
        return PL_OK;
    }
    bool bad = fflush(v->dump) != 0 || ferror(v->dump);
    if (bad) PL_FAIL(err, PL_IO, "%.300s: %s", v->dump_file, strerror(errno));
    return PL_OK;
}
