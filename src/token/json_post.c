/* Post-processors (what add_special adds) and decoders of tokenizer.json. */
#include <string.h>

#include "token/json_util.h"
#include "token/unicode.h"

static enum pl_status id_member(const struct pl_json_ctx *x, const json_t *v, uint32_t *id) {
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= (json_int_t)PL_TOK_MAX_IDS)
        PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: %s: expected a token id", x->where);
    *id = (uint32_t)json_integer_value(v);
    return PL_OK;
}

/* Puts ids in front of what is there. */
static enum pl_status prepend(struct pl_ids *to, const struct pl_ids *ids) {
    for (size_t i = 0; i < ids->len; i++) PL_TRY(pl_ids_add(to, 0));
    memmove(to->data + ids->len, to->data, (to->len - ids->len) * sizeof *to->data);
    if (ids->len > 0) memcpy(to->data, ids->data, ids->len * sizeof *ids->data);
    return PL_OK;
}

static enum pl_status wrap(struct pl_json_ctx *x, const struct pl_ids *before, const struct pl_ids *after) {
    if (before->len > 0) PL_TRY(prepend(&x->t->prefix, before));
    for (size_t i = 0; i < after->len; i++) PL_TRY(pl_ids_add(&x->t->suffix, after->data[i]));
    return PL_OK;
}

static enum pl_status template_ids(struct pl_json_ctx *x, const json_t *o, struct pl_str name, struct pl_ids *out) {
    const json_t *tok = json_object_get(json_object_get(o, "special_tokens"), name.data), *ids = json_object_get(tok, "ids");
    if (!json_is_array(ids))
        PL_FAIL(x->err, PL_FORMAT,
                "tokenizer.json: post_processor: the template names '%.*s' but special_tokens has no ids for it",
                (int)PL_MIN(name.len, (size_t)60), name.data);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        uint32_t id = 0;
        PL_TRY(id_member(x, json_array_get(ids, i), &id));
        PL_TRY(pl_ids_add(out, id));
    }
    return PL_OK;
}

static enum pl_status template(struct pl_json_ctx *x, const json_t *o, struct pl_ids *before, struct pl_ids *after) {
    const json_t *single = json_object_get(o, "single"); int sequences = 0; if (!json_is_array(single))
        PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: post_processor: TemplateProcessing needs an array 'single'");
    for (size_t i = 0; i < json_array_size(single) && i < 256;
         i++){const json_t *item = json_array_get(single, i), *special = json_object_get(item, "SpecialToken");
              if (json_object_get(item, "Sequence") != NULL){sequences++; continue;}
const json_t *id = json_object_get(special, "id");
if (!json_is_string(id))
    PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: post_processor: single[%zu] is neither Sequence nor SpecialToken", i);
PL_TRY(template_ids(x, o, pl_tj_value(id), sequences > 0 ? after : before));
}
if (sequences != 1)
    PL_FAIL(x->err, PL_UNSUPPORTED,
            "tokenizer.json: post_processor: the single template holds the text %d times: expected once", sequences);
return PL_OK;
}

/* BertProcessing and RobertaProcessing: [name, id] pairs. */
static enum pl_status cls_sep(struct pl_json_ctx *x, const json_t *o, struct pl_ids *before, struct pl_ids *after) {
    uint32_t cls = 0, sep = 0;
    PL_TRY(id_member(x, json_array_get(json_object_get(o, "cls"), 1), &cls));
    PL_TRY(id_member(x, json_array_get(json_object_get(o, "sep"), 1), &sep));
    PL_TRY(pl_ids_add(before, cls));
    return pl_ids_add(after, sep);
}

enum pl_status pl_tj_post_processor(struct pl_json_ctx *x, const json_t *o) {
    struct pl_str type;
    PL_TRY(pl_tj_type(x, o, &type));
    if (pl_str_eq_c(type, "ByteLevel")) return PL_OK; /* moves offsets only */
    if (pl_str_eq_c(type, "Sequence")) {
        const json_t *list = json_object_get(o, "processors");
        if (!json_is_array(list) || json_array_size(list) > 64)
            PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: post_processor: Sequence needs an array 'processors' of at most 64");
        x->depth++;
        for (size_t i = 0; i < json_array_size(list); i++) PL_TRY(pl_tj_post_processor(x, json_array_get(list, i)));
        x->depth--;
        return PL_OK;
    }
    struct pl_ids before = {0}, after = {0};
    enum pl_status st;
    if (pl_str_eq_c(type, "TemplateProcessing"))
        st = template(x, o, &before, &after);
    else if (pl_str_eq_c(type, "BertProcessing") || pl_str_eq_c(type, "RobertaProcessing"))
        st = cls_sep(x, o, &before, &after);
    else
        st = pl_tj_unknown(x, type, "TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel, Sequence");
    if (st == PL_OK) st = wrap(x, &before, &after);
    pl_ids_deinit(&before);
    pl_ids_deinit(&after);
    return st;
}

/* --- decoders --- */

static enum pl_status dec_replace(struct pl_json_ctx *x, const json_t *o) {
    struct pl_str pattern, content;
    bool regex;
    PL_TRY(pl_tj_pattern(x, o, &pattern, &regex));
    PL_TRY(pl_tj_str(x, o, "content", NULL, &content));
    struct pl_tok_dec *d = pl_tok_add_dec(x->t, regex ? PL_DEC_REPLACE_REGEX : PL_DEC_REPLACE);
    if (d == NULL || !pl_tok_keep(x->t, pattern, &d->a) || !pl_tok_keep(x->t, content, &d->b)) return PL_NO_MEMORY;
    return regex ? pl_regex_create(pattern, &d->re, x->err) : PL_OK;
}

static enum pl_status dec_strip(struct pl_json_ctx *x, const json_t *o, bool fused) {
    struct pl_str content;
    size_t start, stop;
    uint32_t cp;
    PL_TRY(pl_tj_str(x, o, "content", NULL, &content));
    PL_TRY(pl_tj_size(x, o, "start", 0, 1u << 20, &start));
    PL_TRY(pl_tj_size(x, o, "stop", 0, 1u << 20, &stop));
    if (content.len == 0 || pl_uc_next(content.data, &cp) != content.len)
        PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: decoder: Strip: 'content': expected one character");
    if (fused) {
        if (stop > 0 || x->t->lead_strip_max > 0)
            PL_FAIL(x->err, PL_UNSUPPORTED,
                    "tokenizer.json: decoder: Strip after Fuse is supported once, at the start of the text");
        x->t->lead_strip_max = start;
        return pl_tok_keep(x->t, content, &x->t->lead_strip) ? PL_OK : PL_NO_MEMORY;
    }
    struct pl_tok_dec *d = pl_tok_add_dec(x->t, PL_DEC_STRIP);
    if (d == NULL || !pl_tok_keep(x->t, content, &d->a)) return PL_NO_MEMORY;
    d->start = start;
    d->stop = stop;
    return PL_OK;
}

static enum pl_status dec_text(struct pl_json_ctx *x, const json_t *o, enum pl_dec_kind kind, const char *key,
                               const char *dflt, bool flag) {
    struct pl_str s;
    PL_TRY(pl_tj_str(x, o, key, dflt, &s));
    struct pl_tok_dec *d = pl_tok_add_dec(x->t, kind);
    if (d == NULL || !pl_tok_keep(x->t, s, &d->a)) return PL_NO_MEMORY;
    d->flag = flag;
    return PL_OK;
}

static enum pl_status decoder(struct pl_json_ctx *x, const json_t *o, bool *fused) {
    struct pl_str type;
    bool b;
    PL_TRY(pl_tj_type(x, o, &type));
    if (pl_str_eq_c(type, "Sequence")) {
        const json_t *list = json_object_get(o, "decoders");
        if (!json_is_array(list) || json_array_size(list) > 64)
            PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: decoder: Sequence needs an array 'decoders' of at most 64");
        x->depth++;
        for (size_t i = 0; i < json_array_size(list); i++) PL_TRY(decoder(x, json_array_get(list, i), fused));
        x->depth--;
        return PL_OK;
    }
    if (pl_str_eq_c(type, "Strip")) return dec_strip(x, o, *fused);
    if (pl_str_eq_c(type, "Fuse")) {
        *fused = true;
        return PL_OK;
    }
    if (*fused)
        PL_FAIL(x->err, PL_UNSUPPORTED, "tokenizer.json: decoder: '%.*s' after Fuse is not supported",
                (int)PL_MIN(type.len, (size_t)60), type.data);
    if (pl_str_eq_c(type, "ByteLevel")) return pl_tok_add_dec(x->t, PL_DEC_BYTE_LEVEL) == NULL ? PL_NO_MEMORY : PL_OK;
    if (pl_str_eq_c(type, "ByteFallback")) {
        x->t->per_byte_errors = true;
        return pl_tok_add_dec(x->t, PL_DEC_BYTE_FALLBACK) == NULL ? PL_NO_MEMORY : PL_OK;
    }
    if (pl_str_eq_c(type, "Replace")) return dec_replace(x, o);
    if (pl_str_eq_c(type, "WordPiece")) {
        PL_TRY(pl_tj_bool(x, o, "cleanup", true, &b));
        return dec_text(x, o, PL_DEC_WORDPIECE, "prefix", "##", b);
    }
    if (pl_str_eq_c(type, "BPEDecoder")) return dec_text(x, o, PL_DEC_BPE, "suffix", "</w>", false);
    if (pl_str_eq_c(type, "Metaspace")) {
        struct pl_str scheme;
        PL_TRY(pl_tj_bool(x, o, "add_prefix_space", true, &b));
        PL_TRY(pl_tj_str(x, o, "prepend_scheme", b ? "always" : "never", &scheme));
        return dec_text(x, o, PL_DEC_METASPACE, "replacement", "\xE2\x96\x81", !pl_str_eq_c(scheme, "never"));
    }
    return pl_tj_unknown(x, type,
                         "ByteLevel, ByteFallback, Metaspace, Replace, Fuse, Strip, WordPiece, BPEDecoder, Sequence");
}

enum pl_status pl_tj_decoder(struct pl_json_ctx *x, const json_t *o) {
    bool fused = false;
    return decoder(x, o, &fused);
}
