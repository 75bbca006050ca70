/* http_side.c - one answer of an OpenAI-compatible server. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "verify/ab.h"
#include "verify/peer.h"

/* ---------- who it is ---------- */

static void put_hash(char out[20], uint64_t h) { snprintf(out, 20, "%016" PRIx64, h); }

static void probe(struct pl_peer *p, char out[20]) {
    long status = 0;
    json_t *answer = NULL,
           *body = json_pack("{s:s, s:b, s:b}", "content", pl_fingerprint_probe, "add_special", 0, "parse_special", 0);
    if (body != NULL && pl_peer_json(p, "/tokenize", body, &status, &answer, NULL) == PL_OK && status == 200) {
        const json_t *list = json_object_get(answer, "tokens");
        size_t n = json_array_size(list);
        uint32_t *ids = pl_alloc(PL_MAX(n, (size_t)1), sizeof *ids);
        for (size_t i = 0; ids != NULL && i < n; i++) ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
        if (ids != NULL && n > 0) put_hash(out, pl_hash64(ids, n * sizeof *ids, 0));
        pl_free(ids);
    }
    json_decref(body);
    json_decref(answer);
}

void pl_ab_fingerprint_read(const json_t *object, struct pl_ab_fingerprint *out) {
    char *to[] = {out->vocabulary, out->chat_template, out->probe};
    static const char *const name[] = {"vocabulary", "chat_template", "probe"};
    for (size_t i = 0; i < PL_COUNT_OF(name); i++) {
        const char *text = json_string_value(json_object_get(object, name[i]));
        if (text != NULL) snprintf(to[i], 20, "%s", text);
    }
}

/* The start-up line and the fingerprint, from a server that tells; what any server can be asked, from others. */
static void read_props(struct pl_peer *p, struct pl_ab_answer *out) {
    long status = 0;
    json_t *props = NULL;
    if (pl_peer_json(p, "/props", NULL, &status, &props, NULL) == PL_OK && status == 200) {
        const char *backend = json_string_value(json_object_get(props, "backend"));
        if (backend != NULL) snprintf(out->backend, sizeof out->backend, "%s", backend);
        pl_ab_fingerprint_read(json_object_get(props, "fingerprint"), &out->fingerprint);
        const json_t *tmpl = json_object_get(props, "chat_template");
        if (out->fingerprint.chat_template[0] == '\0' && json_string_length(tmpl) > 0)
            put_hash(out->fingerprint.chat_template, pl_hash64(json_string_value(tmpl), json_string_length(tmpl), 0));
    }
    json_decref(props);
}

/* Kept out of the answers: asking for it costs as much as an answer. */
void pl_ab_probe_url(const struct pl_ab_side *s, uint32_t timeout_s, struct pl_ab_fingerprint *out) {
    struct pl_peer peer = {.url = s->url, .api_key = s->api_key, .timeout_s = timeout_s};
    if (out->probe[0] == '\0') probe(&peer, out->probe);
    pl_peer_deinit(&peer);
}

/* ---------- kernels ---------- */

static json_t *read_kernels(struct pl_peer *p) {
    long status = 0;
    json_t *w = NULL, *list = NULL;
    if (pl_peer_json(p, "/v1/kernels", NULL, &status, &w, NULL) == PL_OK && status == 200)
        list = json_incref(json_object_get(w, "kernels"));
    json_decref(w);
    return list;
}

static json_int_t launches_of(const json_t *list, const char *op, const char *kernel) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *k = json_array_get(list, i);
        const char *o = json_string_value(json_object_get(k, "op")), *n = json_string_value(json_object_get(k, "kernel"));
        if (o != NULL && n != NULL && strcmp(o, op) == 0 && strcmp(n, kernel) == 0)
            return json_integer_value(json_object_get(k, "launches"));
    }
    return 0;
}

/* A server counts since its start: what ran for this answer is the difference, or an old launch would vouch for it. */
static json_t *new_launches(const json_t *before, const json_t *after) {
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(after); i++) {
        const json_t *k = json_array_get(after, i);
        const char *op = json_string_value(json_object_get(k, "op")),
                   *kernel = json_string_value(json_object_get(k, "kernel"));
        if (op == NULL || kernel == NULL) continue;
        json_int_t n = json_integer_value(json_object_get(k, "launches")) - launches_of(before, op, kernel);
        if (n > 0) json_array_append_new(out, json_pack("{s:s, s:s, s:I}", "op", op, "kernel", kernel, "launches", n));
    }
    if (json_array_size(out) > 0) return out;
    json_decref(out);
    return NULL;
}

/* ---------- tokens ---------- */

static bool token_room(struct pl_ab_answer *a, size_t n, bool ids) {
    a->pieces = pl_calloc(n, sizeof *a->pieces);
    a->margin = pl_calloc(n, sizeof *a->margin);
    a->logprob = pl_calloc(n, sizeof *a->logprob);
    a->ids = ids ? pl_calloc(n, sizeof *a->ids) : NULL;
    a->id_count = n;
    return a->pieces != NULL && a->margin != NULL && a->logprob != NULL && (!ids || a->ids != NULL);
}

static double number(const json_t *v) { return json_is_number(v) ? json_number_value(v) : NAN; }

static bool is_id(const json_t *v) {
    return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= UINT32_MAX;
}

static uint64_t piece_hash(const json_t *text) {
    return json_is_string(text) ? pl_hash64(json_string_value(text), json_string_length(text), 0) : 0;
}

/* {"content": [{"id", "token", "logprob", "top_logprobs": [{"logprob"}, ..]}]}: chat's form, which llama-server gives. */
static bool take_content(const json_t *list, struct pl_ab_answer *a) {
    size_t n = json_array_size(list);
    bool ids = true;
    for (size_t i = 0; i < n && ids; i++) ids = is_id(json_object_get(json_array_get(list, i), "id"));
    if (n == 0 || !token_room(a, n, ids)) return n == 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *t = json_array_get(list, i), *top = json_object_get(t, "top_logprobs");
        if (a->ids != NULL) a->ids[i] = (uint32_t)json_integer_value(json_object_get(t, "id"));
        a->pieces[i] = piece_hash(json_object_get(t, "token"));
        a->logprob[i] = number(json_object_get(t, "logprob"));
        a->margin[i] = json_array_size(top) < 2 ? -1
                                                : json_number_value(json_object_get(json_array_get(top, 0), "logprob")) -
                                                      json_number_value(json_object_get(json_array_get(top, 1), "logprob"));
    }
    return true;
}

/* {"tokens": [], "top_logprobs": [{text: logprob}]}: the older form. */
static bool take_legacy(const json_t *lp, struct pl_ab_answer *a) {
    const json_t *tokens = json_object_get(lp, "tokens"), *tops = json_object_get(lp, "top_logprobs");
    size_t n = json_array_size(tokens);
    if (n == 0 || !token_room(a, n, false)) return n == 0;
    for (size_t i = 0; i < n; i++) {
        double best = -1e30, second = -1e30;
        const char *key;
        json_t *value, *top = json_array_get(tops, i);
        json_object_foreach(top, key, value) {
            double v = json_number_value(value);
            if (v > best) {
                second = best;
                best = v;
            } else if (v > second) {
                second = v;
            }
        }
        a->pieces[i] = piece_hash(json_array_get(tokens, i));
        a->logprob[i] = number(json_array_get(json_object_get(lp, "token_logprobs"), i));
        a->margin[i] = json_object_size(top) < 2 ? -1 : best - second;
    }
    return true;
}

static void take_answer(const json_t *v, struct pl_ab_answer *out) {
    const json_t *choice = json_array_get(json_object_get(v, "choices"), 0), *lp = json_object_get(choice, "logprobs");
    const json_t *text = json_object_get(choice, "text");
    pl_buf_add(&out->text, json_string_value(text), json_string_length(text));
    const json_t *content = json_object_get(lp, "content");
    if (!pl_buf_ok(&out->text) || !(json_is_array(content) ? take_content(content, out) : take_legacy(lp, out))) {
        out->failed = true;
        snprintf(out->error, sizeof out->error, "no memory for the answer");
    }
    const json_t *count = json_object_get(json_object_get(v, "usage"), "completion_tokens");
    if (json_is_integer(count) && json_integer_value(count) >= 0)
        out->tokens = (size_t)json_integer_value(count);
    else
        out->tokens = out->id_count > 0 ? out->id_count : out->text.len / 4 + (out->text.len > 0);
}

/* ---------- one answer ---------- */

static json_t *ask(struct pl_peer *p, const char *prompt, uint32_t n, bool logprobs, long *status, char *error, size_t cap) {
    json_t *v = NULL,
           *body = json_pack("{s:s, s:i, s:i, s:i}", "prompt", prompt, "max_tokens", (int)n, "temperature", 0, "seed", 1);
    struct pl_err err = {0};
    if (body == NULL) {
        snprintf(error, cap, "the prompt is no UTF-8 text, which a JSON request must be");
        return NULL;
    }
    if (logprobs) json_object_set_new(body, "logprobs", json_integer(2));
    if (pl_peer_json(p, "/v1/completions", body, status, &v, &err) != PL_OK) snprintf(error, cap, "%.500s", err.text);
    json_decref(body);
    return v;
}

void pl_ab_ask_url(const struct pl_ab_side *s, const char *prompt, uint32_t n, uint32_t timeout_s,
                   struct pl_ab_answer *out) {
    *out = (struct pl_ab_answer){0};
    struct pl_peer peer = {.url = s->url, .api_key = s->api_key, .timeout_s = timeout_s};
    long status = 0;
    json_t *before = read_kernels(&peer);
    uint64_t start = pl_clock_ns();
    json_t *v = ask(&peer, prompt, n, true, &status, out->error, sizeof out->error);
    if (status == 400) { /* a server that knows no logprobs */
        json_decref(v);
        v = ask(&peer, prompt, n, false, &status, out->error, sizeof out->error);
    }
    out->seconds = (double)(pl_clock_ns() - start) * 1e-9;
    const json_t *choice = json_array_get(json_object_get(v, "choices"), 0);
    if (status != 200 || !json_is_string(json_object_get(choice, "text"))) {
        const char *message = pl_peer_error_text(v);
        out->failed = true;
        if (status != 0)
            snprintf(out->error, sizeof out->error, "HTTP %ld: %.300s", status,
                     message[0] != '\0' ? message
                     : v == NULL        ? "the answer is no JSON"
                                        : "the answer has no text (choices[0].text)");
    } else {
        take_answer(v, out);
        read_props(&peer, out);
        if (before != NULL) {
            json_t *after = read_kernels(&peer);
            out->kernels = new_launches(before, after);
            json_decref(after);
        }
    }
    json_decref(before);
    json_decref(v);
    pl_peer_deinit(&peer);
}
