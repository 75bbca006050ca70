/* PLaMo 2's tokenizer: the path of best score through a text, whole numbers, found from the text's end on; of paths as good
 * the one whose first token is longest. Characters that no token helps with become the tokens of their bytes. From GGUF, or
 * from the lines [token, score, type] of a tokenizer.jsonl. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "token/json_util.h"
#include "token/unicode.h"

static const double invalid_score = -20000000, unknown_score = -10000000;

double pl_tok_plamo_score(double s) {
    double whole = isfinite(s) ? nearbyint(s * 1e4) : invalid_score;
    return whole > invalid_score ? whole : NAN;
}

enum pl_status pl_tok_plamo_check(const struct pl_tokenizer *t, struct pl_err *err) {
    for (int b = 0; b < 256; b++)
        if (t->model.byte_id[b] == PL_TOK_NONE)
            PL_FAIL(err, PL_FORMAT, "the plamo2 vocabulary has no token <0x%02X>: it needs one of each byte", (unsigned)b);
    return PL_OK;
}

/* c->path[i]: how the text from i on is best told. */
static void best_from(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *w, size_t len, size_t i) {
    const struct pl_tok_model *m = &t->model;
    size_t one = pl_uc_lead_len((unsigned char)w[i], len - i);
    struct pl_path_node *best = &c->path[i];
    uint32_t node = 0;
    *best = (struct pl_path_node){c->path[i + one].score + unknown_score, PL_TOK_NONE, (uint32_t)(i + one)};
    for (size_t e = i; e < len;) {
        node = pl_tok_trie_step(&m->trie, node, (unsigned char)w[e++]);
        if (node == 0) break;
        uint32_t id = m->trie.values[node];
        if (id == PL_TOK_NONE || isnan(m->log_prob[id])) continue;
        double score = c->path[e].score + m->log_prob[id];
        if (score >= best->score) *best = (struct pl_path_node){score, id, (uint32_t)e};
    }
}

enum pl_status pl_tok_plamo(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *w, size_t len,
                            struct pl_ids *out) {
    if (len >= UINT32_MAX) return PL_LIMIT;
    PL_TRY(pl_grow(&c->path, &c->path_cap, len + 1, sizeof *c->path));
    c->path[len] = (struct pl_path_node){0, 0, 0};
    for (size_t i = len; i-- > 0;) {
        if (((unsigned char)w[i] & 0xC0) != 0x80)
            best_from(t, c, w, len, i);
        else /* within a character */
            c->path[i] = (struct pl_path_node){0, PL_TOK_NONE, (uint32_t)(i + 1)};
    }
    for (size_t i = 0; i < len;) {
        const struct pl_path_node *n = &c->path[i];
        if (n->id != PL_TOK_NONE) PL_TRY(pl_ids_add(out, n->id));
        for (size_t b = i; n->id == PL_TOK_NONE && b < n->from; b++)
            PL_TRY(pl_ids_add(out, t->model.byte_id[(unsigned char)w[b]]));
        i = n->from;
    }
    return PL_OK;
}

/* --- tokenizer.jsonl --- */

static enum pl_status line(struct pl_json_ctx *x, const json_t *row, uint32_t id) {
    struct pl_tokenizer *t = x->t;
    const json_t *text = json_array_get(row, 0), *score = json_array_get(row, 1), *kind = json_array_get(row, 2);
    uint32_t old;
    if (!json_is_string(text) || json_string_length(text) == 0 || !json_is_number(score))
        PL_FAIL(x->err, PL_FORMAT, "tokenizer.jsonl: line %u: expected [token, score, type]", id + 1);
    const char *type = json_is_string(kind) ? json_string_value(kind) : "NORMAL";
    struct pl_str s = pl_tj_value(text);
    PL_TRY(pl_tok_vocab_add(&t->vocab, id, s, true, &old));
    if (old != PL_TOK_NONE)
        PL_FAIL(x->err, PL_FORMAT, "tokenizer.jsonl: lines %u and %u are the same token", old + 1, id + 1);
    t->model.log_prob[id] = pl_tok_plamo_score(json_number_value(score));
    bool control = strcmp(type, "CONTROL") == 0 || strcmp(type, "UNKNOWN") == 0 ||
                   (pl_str_starts(s, "<|plamo:") && pl_str_ends(s, "|>"));
    if (strcmp(type, "BYTE") == 0 && pl_tok_byte_token(s) >= 0) t->attr[id] |= PL_ATTR_BYTE;
    if (!control) return PL_OK;
    struct pl_added *a = pl_tok_add_added(t, id);
    if (a == NULL) return PL_NO_MEMORY;
    a->text = t->vocab.text[id];
    a->special = true;
    t->attr[id] |= PL_ATTR_SPECIAL;
    return PL_OK;
}

static enum pl_status template(struct pl_json_ctx *x, const json_t *tc) {
    bool bos = false, eos = false; x->where = "tokenizer_config.json";
    PL_TRY(pl_tj_bool(x, tc, "add_bos_token", false, &bos));
    PL_TRY(pl_tj_bool(x, tc, "add_eos_token", false, &eos));
    if (bos && x->t->bos >= 0) PL_TRY(pl_ids_add(&x->t->prefix, (uint32_t)x->t->bos));
    return eos && x->t->eos >= 0 ? pl_ids_add(&x->t->suffix, (uint32_t)x->t->eos) : PL_OK;
}

static enum pl_status build(struct pl_json_ctx *x, const json_t *lines) {
    struct pl_tokenizer *t = x->t;
    size_t n = json_array_size(lines);
    if (n == 0 || n > PL_TOK_MAX_IDS)
        PL_FAIL(x->err, PL_FORMAT, "tokenizer.jsonl has %zu lines: 1 to %u were expected", n, PL_TOK_MAX_IDS);
    PL_TRY(pl_tok_vocab_reserve(&t->vocab, (uint32_t)n));
    t->real_count = (uint32_t)n;
    t->attr = pl_calloc(n, 1);
    t->model.kind = PL_MODEL_PLAMO;
    t->model.byte_fallback = true;
    t->model.log_prob = pl_calloc(n, sizeof *t->model.log_prob);
    if (t->attr == NULL || t->model.log_prob == NULL) return PL_NO_MEMORY;
    for (uint32_t id = 0; id < n; id++) PL_TRY(line(x, json_array_get(lines, id), id));
    if (pl_tok_add_dec(t, PL_DEC_BYTE_FALLBACK) == NULL) return PL_NO_MEMORY;
    return pl_tokenizer_finish(t, x->err);
}

enum pl_status pl_tokenizer_from_lines(const json_t *lines, const json_t *tokenizer_config, const json_t *config,
                                       const json_t *generation, struct pl_tokenizer **out, struct pl_err *err) {
    struct pl_json_ctx x = {.err = err};
    PL_TRY(pl_tokenizer_new(&x.t));
    enum pl_status st = build(&x, lines);
    if (st == PL_OK) {
        pl_tj_roles(x.t, tokenizer_config, config, generation);
        st = template(&x, tokenizer_config);
    }
    if (st == PL_OK) {
        *out = x.t;
        return PL_OK;
    }
    pl_tokenizer_destroy(x.t);
    if (err != NULL && err->status == PL_OK) PL_FAIL(err, st, "tokenizer.jsonl: %s", pl_status_text(st));
    return st;
}
