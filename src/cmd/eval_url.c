/* eval_url - windows of a text through a server, by one of two ways that servers have:
 *   echo   POST /v1/completions with the ids as prompt, echo and logprobs: one request gives every token of the window
 *          (OpenAI's older API; plumb, vLLM).
 *   steps  POST /completion with n_probs: one request gives the whole distribution after one prefix (llama-server, which
 *          keeps the prefix cached).
 * The ids are those of the model file (-m) when one is given, else the server's own /tokenize. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "cmd/eval.h"
#include "cmd/interrupt.h"
#include "cmd/out.h"

enum {
    STEP_PROBS = 512,
    ECHO_TOP = 5,
    HASHED_VOCAB = 1 << 24
}; /* without a model file tokens are known by a hash of their text */

/* ---------- ids ---------- */

static enum pl_status take_tokens(struct eval *v, const json_t *list, struct pl_err *err) {
    size_t n = json_array_size(list);
    v->ids.data = pl_alloc(PL_MAX(n, (size_t)1), sizeof *v->ids.data);
    if (v->ids.data == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for %zu ids", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, i);
        if (json_is_object(id)) id = json_object_get(id, "id");
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > UINT32_MAX)
            PL_FAIL(err, PL_FORMAT, "%.200s/tokenize: entry %zu of its answer is no id", v->peer.url, i);
        v->ids.data[v->ids.len++] = (uint32_t)json_integer_value(id);
    }
    return PL_OK;
}

static enum pl_status ask_tokens(struct eval *v, struct pl_err *err) {
    long status = 0;
    json_t *answer = NULL, *word = json_stringn(pl_buf_cstr(&v->text), v->text.len);
    if (word == NULL) PL_FAIL(err, PL_INVALID, "%.300s is no UTF-8 text, which a server needs", v->text_file);
    json_t *body = json_pack("{s:o, s:b, s:b}", "content", word, "add_special", 1, "parse_special", 0);
    enum pl_status st = pl_peer_json(&v->peer, "/tokenize", body, &status, &answer, err);
    json_decref(body);
    if (st == PL_OK && (status != 200 || !json_is_array(json_object_get(answer, "tokens"))))
        st = pl_err_set(err, __FILE__, __LINE__, PL_UNSUPPORTED,
                        "%.200s/tokenize gives no list of tokens (HTTP %ld): give the model's own file with -m, or --tokens",
                        v->peer.url, status);
    if (st == PL_OK) st = take_tokens(v, json_object_get(answer, "tokens"), err);
    json_decref(answer);
    return st;
}

/* The tokenizer and vocabulary of -m; no weights are loaded. */
static enum pl_status open_tokenizer(struct eval *v, struct pl_err *err) {
    char *path = NULL;
    struct pl_fingerprint f;
    PL_TRY(pl_store_resolve(v->model.model, &path, err));
    v->model.engine.model = path;
    enum pl_status st = pl_engine_open(&v->model.engine, &v->engine, err);
    pl_free(path);
    PL_TRY(st);
    PL_TRY(pl_engine_need_text(v->engine, err));
    pl_engine_fingerprint(v->engine, &f);
    v->scorer.about.vocabulary_hash = f.vocabulary;
    v->scorer.about.vocab = v->engine->config.vocab;
    if (v->text_file == NULL) return PL_OK;
    struct pl_encode_options opt = {.add_special = true};
    return pl_tokenizer_encode(v->engine->tok, pl_buf_cstr(&v->text), v->text.len, &opt, &v->ids, err);
}

static uint32_t id_of(const struct eval *v, const char *text, size_t len) {
    uint32_t id;
    if (v->engine == NULL) return (uint32_t)(pl_hash64(text, len, 0) % HASHED_VOCAB);
    return pl_tokenizer_find(v->engine->tok, text, len, &id) ? id : UINT32_MAX;
}

/* ---------- one request ---------- */

static json_t *ids_json(const uint32_t *ids, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    return list;
}

static enum pl_status ask_echo(struct eval *v, const uint32_t *ids, size_t n, json_t **answer, long *status,
                               struct pl_err *err) {
    json_t *body = json_pack("{s:o, s:i, s:b, s:i, s:i}", "prompt", ids_json(ids, n), "max_tokens", 0, "echo", 1, "logprobs",
                             (int)v->top, "temperature", 0);
    enum pl_status st = pl_peer_json(&v->peer, "/v1/completions", body, status, answer, err);
    if (st == PL_OK && *status == 400) { /* some want at least one token */
        json_decref(*answer);
        *answer = NULL;
        json_object_set_new(body, "max_tokens", json_integer(1));
        st = pl_peer_json(&v->peer, "/v1/completions", body, status, answer, err);
    }
    json_decref(body);
    return st;
}

static enum pl_status ask_step(struct eval *v, const uint32_t *ids, size_t n, uint32_t probs, json_t **answer, long *status,
                               struct pl_err *err) {
    json_t *body = json_pack("{s:o, s:i, s:i, s:i, s:b, s:b}", "prompt", ids_json(ids, n), "n_predict", 1, "n_probs",
                             (int)probs, "temperature", 0, "cache_prompt", 1, "post_sampling_probs", 0);
    enum pl_status st = pl_peer_json(&v->peer, "/completion", body, status, answer, err);
    json_decref(body);
    return st;
}

static const json_t *echo_logprobs(const json_t *answer) {
    return json_object_get(json_array_get(json_object_get(answer, "choices"), 0), "logprobs");
}
static const json_t *step_list(const json_t *answer) {
    return json_object_get(json_array_get(json_object_get(answer, "completion_probabilities"), 0), "top_logprobs");
}

/* ---------- rows ---------- */

/* Rounding may put one a little above 0; what a float cannot hold is none. */
static bool is_logprob(double x) { return x <= 1e-3 && x >= -1e30; }

/* {text: logprob}: the most likely first. */
static void top_of_object(const struct eval *v, json_t *object, struct pl_row *row, uint32_t *ids, float *top) {
    const char *text;
    json_t *value;
    size_t len;
    json_object_keylen_foreach(object, text, len, value) {
        double lp = json_number_value(value);
        uint32_t id = id_of(v, text, len), at = row->top_count;
        if (at == PL_REFERENCE_TOP_MAX || id == UINT32_MAX || !json_is_number(value) || !is_logprob(lp)) continue;
        for (; at > 0 && top[at - 1] < lp; at--) {
            top[at] = top[at - 1];
            ids[at] = ids[at - 1];
        }
        top[at] = (float)lp;
        ids[at] = id;
        row->top_count++;
    }
    row->top = top;
    row->top_ids = ids;
}

static enum pl_status score_echo(struct eval *v, const json_t *answer, size_t begin, size_t end, size_t first,
                                 struct pl_err *err) {
    const json_t *lp = echo_logprobs(answer), *chosen = json_object_get(lp, "token_logprobs");
    json_t *tops = json_object_get(lp, "top_logprobs");
    uint32_t ids[PL_REFERENCE_TOP_MAX];
    float top[PL_REFERENCE_TOP_MAX];
    if (json_array_size(chosen) < end - begin)
        PL_FAIL(err, PL_FORMAT, "%.200s scored %zu of %zu tokens: its tokenizer or context differs", v->peer.url,
                json_array_size(chosen), end - begin);
    for (size_t pos = first; pos < end; pos++) {
        const json_t *value = json_array_get(chosen, pos - begin);
        struct pl_row row = {.logprob = json_number_value(value)};
        if (!json_is_number(value)) PL_FAIL(err, PL_FORMAT, "%.200s: no log-probability for token %zu", v->peer.url, pos);
        if (!is_logprob(row.logprob))
            PL_FAIL(err, PL_FORMAT, "%.200s: %g for token %zu is no log-probability", v->peer.url, row.logprob, pos);
        top_of_object(v, json_array_get(tops, pos - begin), &row, ids, top);
        PL_TRY(pl_scorer_take(&v->scorer, &row, err));
    }
    return PL_OK;
}

/* *absent: the token that came is not among those told; nothing was scored then. */
static enum pl_status score_step(struct eval *v, const json_t *answer, size_t pos, bool whole, bool *absent,
                                 struct pl_err *err) {
    const json_t *list = step_list(answer);
    uint32_t vocab = v->scorer.about.vocab, seen = 0;
    for (uint32_t i = 0; i < vocab; i++) v->row[i] = -1000.0f;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *t = json_array_get(list, i), *id = json_object_get(t, "id");
        double lp = json_number_value(json_object_get(t, "logprob"));
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= vocab || !is_logprob(lp))
            continue;
        v->row[json_integer_value(id)] = (float)PL_MAX(lp, -1000.0);
        seen++;
    }
    *absent = v->row[v->ids.data[pos]] <= -1000.0f && seen < vocab;
    if (*absent && !whole) return PL_OK;
    if (*absent)
        PL_FAIL(err, PL_UNSUPPORTED, "%.200s told %u of %u probabilities and not that of token %zu", v->peer.url, seen,
                vocab, pos);
    struct pl_row row = {.full = v->row, .logprob = v->row[v->ids.data[pos]]};
    return pl_scorer_take(&v->scorer, &row, err);
}

/* ---------- which way ---------- */

static enum pl_status vocabulary_size(struct eval *v, struct pl_err *err) {
    long status = 0;
    json_t *answer = NULL;
    PL_TRY(pl_peer_json(&v->peer, "/v1/models", NULL, &status, &answer, err));
    json_int_t n = json_integer_value(
        json_object_get(json_object_get(json_array_get(json_object_get(answer, "data"), 0), "meta"), "n_vocab"));
    json_decref(answer);
    if (v->scorer.about.vocab == 0 && (n <= 0 || n > HASHED_VOCAB))
        PL_FAIL(err, PL_UNSUPPORTED, "%.200s does not tell the size of its vocabulary: give the model's own file with -m",
                v->peer.url);
    if (v->scorer.about.vocab == 0) v->scorer.about.vocab = (uint32_t)n;
    return PL_OK;
}

static enum pl_status choose_way(struct eval *v, struct pl_err *err) {
    long echo_status = 0, step_status = 0;
    json_t *answer = NULL;
    size_t n = PL_MIN(v->ids.len, (size_t)4);
    PL_TRY(ask_echo(v, v->ids.data, n, &answer, &echo_status, err));
    if (echo_status == 400 && v->top > ECHO_TOP) { /* OpenAI's own limit */
        json_decref(answer);
        answer = NULL;
        v->top = ECHO_TOP;
        PL_TRY(ask_echo(v, v->ids.data, n, &answer, &echo_status, err));
    }
    char said[200];
    snprintf(said, sizeof said, "%.190s", pl_peer_error_text(answer));
    bool echo = echo_status == 200 && json_array_size(json_object_get(echo_logprobs(answer), "token_logprobs")) >= n;
    json_decref(answer);
    answer = NULL;
    if (echo) {
        v->how = "echo";
        if (v->scorer.about.vocab == 0) v->scorer.about.vocab = HASHED_VOCAB;
        return PL_OK;
    }
    PL_TRY(ask_step(v, v->ids.data, n, 2, &answer, &step_status, err));
    bool steps = step_status == 200 && json_array_size(step_list(answer)) >= 2;
    json_decref(answer);
    if (!steps)
        PL_FAIL(err, PL_UNSUPPORTED,
                "%.200s cannot be evaluated: /v1/completions with echo and logprobs gave no log-probabilities of the prompt "
                "(HTTP %ld %s), and /completion with n_probs none of the next token (HTTP %ld)",
                v->peer.url, echo_status, said, step_status);
    v->how = "steps";
    PL_TRY(vocabulary_size(v, err));
    v->row = pl_alloc(v->scorer.about.vocab, sizeof *v->row);
    if (v->row == NULL) PL_FAIL(err, PL_NO_MEMORY, "out of memory for a distribution");
    return PL_OK;
}

static uint32_t ask_context(struct eval *v) {
    long status = 0;
    json_t *props = NULL;
    if (pl_peer_json(&v->peer, "/props", NULL, &status, &props, NULL) != PL_OK) return 512;
    const json_t *n = json_object_get(props, "n_ctx");
    if (n == NULL) n = json_object_get(json_object_get(props, "default_generation_settings"), "n_ctx");
    json_int_t c = json_integer_value(n);
    const char *backend = json_string_value(json_object_get(props, "backend"));
    if (backend != NULL) snprintf(v->backend, sizeof v->backend, "%s", backend);
    json_decref(props);
    return c >= 2 && c <= 1 << 24 ? (uint32_t)c : 512;
}

enum pl_status eval_url_prepare(struct eval *v, struct pl_err *err) {
    if (v->model.model != NULL) PL_TRY(open_tokenizer(v, err));
    if (v->model.model == NULL && v->tokens_file == NULL) PL_TRY(ask_tokens(v, err));
    if (v->limit > 0 && v->ids.len > v->limit) v->ids.len = v->limit;
    if (v->ids.len < 2) PL_FAIL(err, PL_INVALID, "there are fewer than two tokens to evaluate");
    PL_TRY(eval_windows(v, ask_context(v), err));
    PL_TRY(choose_way(v, err));
    bool top = strcmp(v->how, "echo") == 0;
    if (top) {
        v->scorer.about.form = PL_REFERENCE_TOP;
        v->scorer.about.top_count = v->top + 1; /* the token itself may come in addition */
    }
    v->origin = json_pack("{s:s, s:s, s:s}", "url", v->peer.url, "way", v->how, "backend", v->backend);
    return PL_OK;
}

static enum pl_status request(struct eval *v, bool echo, const uint32_t *ids, size_t n, uint32_t probs, json_t **answer,
                              struct pl_err *err) {
    long status = 0;
    PL_TRY(echo ? ask_echo(v, ids, n, answer, &status, err) : ask_step(v, ids, n, probs, answer, &status, err));
    if (status != 200)
        PL_FAIL(err, PL_IO, "%.200s answered HTTP %ld: %.300s", v->peer.url, status, pl_peer_error_text(*answer));
    return PL_OK;
}

/* The whole distribution is megabytes of text: for the perplexity alone a part of it mostly does. */
static enum pl_status one_step(struct eval *v, size_t begin, size_t pos, struct pl_err *err) {
    uint32_t vocab = v->scorer.about.vocab;
    bool need_all = v->scorer.save_path != NULL || v->scorer.against_path != NULL, absent = false;
    for (uint32_t probs = need_all ? vocab : PL_MIN(vocab, (uint32_t)STEP_PROBS);; probs = vocab) {
        json_t *answer = NULL;
        enum pl_status st = request(v, false, v->ids.data + begin, pos - begin, probs, &answer, err);
        if (st == PL_OK) st = score_step(v, answer, pos, probs == vocab, &absent, err);
        json_decref(answer);
        if (st != PL_OK || !absent) return st;
    }
}

static enum pl_status run_window(struct eval *v, size_t begin, size_t end, size_t first, struct pl_err *err) {
    bool echo = strcmp(v->how, "echo") == 0;
    for (size_t pos = first; pos < end; pos = echo ? end : pos + 1) {
        json_t *answer = NULL;
        enum pl_status st;
        if (echo) {
            st = request(v, true, v->ids.data + begin, end - begin, 0, &answer, err);
            if (st == PL_OK) st = score_echo(v, answer, begin, end, first, err);
            json_decref(answer);
        } else {
            st = one_step(v, begin, pos, err);
        }
        if (st != PL_OK) return st;
        if (pl_interrupted()) PL_FAIL(err, PL_CANCELLED, "interrupted after %zu of %zu tokens", v->scorer.count, v->ids.len);
        pl_progress("evaluating", echo ? end : pos + 1, v->ids.len, false);
    }
    return PL_OK;
}

enum pl_status eval_url_run(struct eval *v, struct pl_err *err) { return eval_each_window(v, run_window, err); }
