/* A tokenizer from Hugging Face's tokenizer.json, with the names of its special tokens from tokenizer_config.json. */
#include <string.h>

#include "base/mem.h"
#include "token/json_util.h"

static enum pl_status added_token(struct pl_json_ctx *x, const json_t *o, size_t i) {
    struct pl_tokenizer *t = x->t;
    struct pl_str text;
    const json_t *id = json_object_get(o, "id");
    if (!json_is_object(o) || !json_is_integer(id) || json_integer_value(id) < 0)
        PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: added_tokens[%zu]: expected an object with an id", i);
    PL_TRY(pl_tj_str(x, o, "content", NULL, &text));
    uint32_t want = (uint32_t)json_integer_value(id), have = pl_tok_vocab_find(&t->vocab, text.data, text.len);
    bool outside = false;
    if (have == PL_TOK_NONE) {
        if (want < t->vocab.count && t->vocab.text[want].data != NULL)
            PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: added_tokens[%zu]: id %u already belongs to another token", i, want);
        PL_TRY(pl_tok_vocab_add(&t->vocab, want, text, false, &have));
        have = want;
        outside = true;
    }
    struct pl_added *a = pl_tok_add_added(t, have); /* a text that is there keeps its id */
    if (a == NULL) return PL_NO_MEMORY;
    a->text = t->vocab.text[have];
    a->outside = outside;
    PL_TRY(pl_tj_bool(x, o, "special", false, &a->special));
    PL_TRY(pl_tj_bool(x, o, "lstrip", false, &a->lstrip));
    PL_TRY(pl_tj_bool(x, o, "rstrip", false, &a->rstrip));
    PL_TRY(pl_tj_bool(x, o, "single_word", false, &a->single_word));
    return pl_tj_bool(x, o, "normalized", !a->special, &a->normalized);
}

/* ByteLevel as the last step needs no printable text: the model takes bytes. */
static void fold_byte_level(struct pl_tokenizer *t) {
    struct pl_tok_model *m = &t->model;
    bool last = t->pre_count > 0 && t->pres[t->pre_count - 1].kind == PL_PRE_BYTE_MAP;
    if (!last || m->kind != PL_MODEL_BPE || m->prefix.len > 0 || m->suffix.len > 0 || m->byte_fallback ||
        m->unk != PL_TOK_NONE)
        return;
    for (size_t i = 0; i + 1 < t->pre_count; i++)
        if (t->pres[i].kind == PL_PRE_BYTE_MAP) return;
    t->pre_count--;
    m->byte_level = true;
}

/* A token named in tokenizer_config.json: "text" or {"content": "text"}. */
static int64_t named(const struct pl_tokenizer *t, const json_t *config, const char *key) {
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v)) v = json_object_get(v, "content");
    if (!json_is_string(v)) return -1;
    uint32_t id = pl_tok_vocab_find(&t->vocab, json_string_value(v), json_string_length(v));
    return id < t->real_count ? (int64_t)id : -1;
}

/* An id, or the first of a list; all of them are returned through fn. */
static int64_t ids_of(struct pl_tokenizer *t, const json_t *config, const char *key, unsigned attr) {
    const json_t *v = json_object_get(config, key);
    int64_t first = -1;
    size_t n = json_is_array(v) ? json_array_size(v) : json_is_integer(v) ? 1 : 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_is_array(v) ? json_array_get(v, i) : v;
        json_int_t id = json_is_integer(e) ? json_integer_value(e) : -1;
        if (id < 0 || id >= (json_int_t)t->real_count) continue;
        t->attr[id] |= (uint8_t)attr;
        if (first < 0) first = id;
    }
    return first;
}

static int64_t choose(int64_t a, int64_t b) { return a >= 0 ? a : b; }

void pl_tj_roles(struct pl_tokenizer *t, const json_t *tc, const json_t *config, const json_t *generation) {
    const json_t *text = json_object_get(config, "text_config"); /* multimodal configurations nest it */
    const json_t *from[] = {generation, config, text};
    t->bos = named(t, tc, "bos_token");
    t->eos = named(t, tc, "eos_token");
    t->pad = named(t, tc, "pad_token");
    t->unk = choose(named(t, tc, "unk_token"), t->model.unk == PL_TOK_NONE ? -1 : (int64_t)t->model.unk);
    for (size_t i = 0; i < PL_COUNT_OF(from); i++) {
        t->bos = choose(t->bos, ids_of(t, from[i], "bos_token_id", 0));
        t->eos = choose(t->eos, ids_of(t, from[i], "eos_token_id", 0));
        t->pad = choose(t->pad, ids_of(t, from[i], "pad_token_id", 0));
        (void)ids_of(t, from[i], "eos_token_id", PL_ATTR_EOG);
    }
    if (t->eos >= 0) t->attr[t->eos] |= PL_ATTR_EOG;
    for (size_t i = 0; i < t->added_count; i++)
        if (t->added[i].special && pl_tok_eog_name(t->added[i].text)) t->attr[t->added[i].id] |= PL_ATTR_EOG;
}

static enum pl_status check_template(const struct pl_json_ctx *x) {
    const struct pl_ids *both[] = {&x->t->prefix, &x->t->suffix};
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < both[k]->len; i++)
            if (both[k]->data[i] >= x->t->real_count)
                PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: post_processor: id %u in a vocabulary of %u", both[k]->data[i],
                        x->t->real_count);
    return PL_OK;
}

static enum pl_status stage(struct pl_json_ctx *x, const json_t *root, const char *key,
                            enum pl_status (*read)(struct pl_json_ctx *, const json_t *)) {
    const json_t *o = json_object_get(root, key);
    x->where = key;
    x->depth = 0;
    return o == NULL || json_is_null(o) ? PL_OK : read(x, o);
}

static enum pl_status build(struct pl_json_ctx *x, const json_t *root) {
    struct pl_tokenizer *t = x->t;
    const json_t *added = json_object_get(root, "added_tokens"), *decoder = json_object_get(root, "decoder");
    if (!json_is_object(root)) PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: expected an object");
    x->where = "model";
    PL_TRY(pl_tj_model(x, json_object_get(root, "model"), added));
    x->where = "added_tokens";
    for (size_t i = 0; i < json_array_size(added); i++) PL_TRY(added_token(x, json_array_get(added, i), i));
    t->real_count = t->vocab.count;
    t->attr = pl_calloc(PL_MAX(t->real_count, 1u), 1);
    if (t->attr == NULL) return PL_NO_MEMORY;
    if (t->model.log_prob != NULL &&
        t->real_count > json_array_size(json_object_get(json_object_get(root, "model"), "vocab"))) {
        double *more = pl_realloc(t->model.log_prob, t->real_count, sizeof *more); /* added tokens are not on the path */
        if (more == NULL) return PL_NO_MEMORY;
        t->model.log_prob = more;
    }
    for (size_t i = 0; i < t->added_count; i++)
        if (t->added[i].outside) t->attr[t->added[i].id] |= PL_ATTR_OUTSIDE;
    PL_TRY(stage(x, root, "normalizer", pl_tj_normalizer));
    PL_TRY(stage(x, root, "pre_tokenizer", pl_tj_pre_tokenizer));
    PL_TRY(stage(x, root, "post_processor", pl_tj_post_processor));
    PL_TRY(stage(x, root, "decoder", pl_tj_decoder));
    t->join_spaces = decoder == NULL || json_is_null(decoder);
    fold_byte_level(t);
    PL_TRY(check_template(x));
    return pl_tokenizer_finish(t, x->err);
}

enum pl_status pl_tokenizer_from_json(const json_t *tokenizer, const json_t *tokenizer_config, const json_t *config,
                                      const json_t *generation, struct pl_tokenizer **out, struct pl_err *err) {
    struct pl_json_ctx x = {.err = err};
    PL_TRY(pl_tokenizer_new(&x.t));
    enum pl_status st = build(&x, tokenizer);
    if (st == PL_OK) {
        pl_tj_roles(x.t, tokenizer_config, config, generation);
        *out = x.t;
        return PL_OK;
    }
    pl_tokenizer_destroy(x.t);
    if (err != NULL && err->status == PL_OK) PL_FAIL(err, st, "tokenizer.json: %s", pl_status_text(st));
    return st;
}
