/* A tokenizer from GGUF metadata (tokenizer.ggml.*). The ids are those of llama.cpp; src/token/README.md names the few
 * places where the model's own tokenizer is followed instead. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "token/internal.h"
#include "token/pretypes.h"
#include "token/unicode.h"

#define KEY(name) "tokenizer.ggml." name
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };

struct builder {
    const struct pl_file *f;
    struct pl_tokenizer *t;
    struct pl_err *err;
    const struct pl_gguf_value *tokens, *types, *scores, *merges;
    const struct pl_pretype *pre;
    bool add_bos, add_eos, space_prefix, extra_spaces;
    int64_t sep;
    struct pl_buf tmp;
};

static enum pl_status array(struct builder *b, const char *key, bool strings, bool required,
                            const struct pl_gguf_value **out) {
    const struct pl_gguf_value *v = pl_gguf_find(b->f, key);
    *out = v;
    if (v == NULL) {
        if (required)
            PL_FAIL(b->err, PL_FORMAT, "%s: %s is missing: this GGUF has no tokenizer of that kind", pl_file_path(b->f),
                    key);
        return PL_OK;
    }
    if (v->type != PL_GGUF_ARRAY || (v->elem_type == PL_GGUF_STRING) != strings)
        PL_FAIL(b->err, PL_FORMAT, "%s: %s has the wrong type: expected an array of %s", pl_file_path(b->f), key,
                strings ? "strings" : "numbers");
    if (v->count > PL_TOK_MAX_IDS)
        PL_FAIL(b->err, PL_LIMIT, "%s: %s has %llu elements: at most %u are taken", pl_file_path(b->f), key,
                (unsigned long long)v->count, PL_TOK_MAX_IDS);
    return PL_OK;
}

static int64_t type_of(const struct builder *b, uint32_t id) {
    return b->types == NULL ? TYPE_NORMAL : pl_gguf_elem_i64(b->types, id);
}

static enum pl_status load_tokens(struct builder *b) {
    struct pl_tokenizer *t = b->t;
    PL_TRY(array(b, KEY("tokens"), true, true, &b->tokens));
    PL_TRY(array(b, KEY("token_type"), false, false, &b->types));
    PL_TRY(array(b, KEY("scores"), false, false, &b->scores));
    uint32_t n = (uint32_t)b->tokens->count;
    if ((b->types != NULL && b->types->count < n) || (b->scores != NULL && b->scores->count < n))
        PL_FAIL(b->err, PL_FORMAT, "%s: %u tokens, but tokenizer.ggml.token_type or .scores has fewer elements",
                pl_file_path(b->f), n);
    PL_TRY(pl_tok_vocab_reserve(&t->vocab, n));
    for (uint32_t id = 0; id < n; id++) {
        struct pl_str s = b->tokens->strings[id];
        char empty[32];
        uint32_t old;
        if (s.len == 0) s = (struct pl_str){empty, (size_t)snprintf(empty, sizeof empty, "[EMPTY_%u]", id)};
        if (s.len > 65536)
            PL_FAIL(b->err, PL_LIMIT, "%s: token %u has %zu bytes: at most 65536", pl_file_path(b->f), id, s.len);
        PL_TRY(pl_tok_vocab_add(&t->vocab, id, s, false, &old));
        if (old != PL_TOK_NONE)
            PL_FAIL(b->err, PL_FORMAT, "%s: tokens %u and %u are both '%.*s': a vocabulary has each text once",
                    pl_file_path(b->f), old, id, (int)PL_MIN(s.len, (size_t)80), s.data);
    }
    t->real_count = n;
    t->attr = pl_calloc(n == 0 ? 1 : n, 1);
    return t->attr == NULL ? PL_NO_MEMORY : PL_OK;
}

/* A text of a merge: a part of it or the whole. */
struct merge_part {
    const char *s;
    size_t len;
    uint32_t hash, id;
};
struct merge_parts {
    struct merge_part left, right, both;
};

/* The symbol of a text; what is no token gets an id past the vocabulary. */
static enum pl_status symbol(struct builder *b, struct merge_part *p) {
    struct pl_tok_vocab *v = &b->t->vocab;
    p->id = pl_tok_vocab_find_hashed(v, p->s, p->len, p->hash);
    if (p->id != PL_TOK_NONE) return PL_OK;
    p->id = v->count;
    return pl_tok_vocab_add(v, p->id, (struct pl_str){p->s, p->len}, false, NULL);
}

static void start_lookup(const struct pl_tok_vocab *v, struct merge_part *p) {
    p->hash = pl_tok_vocab_hash(v, p->s, p->len);
    pl_tok_vocab_fetch_slot(v, p->hash);
}

/* "left right" -> the parts; the text of both together goes to b->tmp. */
static enum pl_status cut_merge(struct builder *b, uint64_t i, struct merge_parts *p) {
    struct pl_str s = b->merges->strings[i];
    const char *gap = s.len > 2 ? memchr(s.data + 1, ' ', s.len - 1) : NULL;
    size_t l = gap == NULL ? 0 : (size_t)(gap - s.data), r = gap == NULL ? 0 : s.len - l - 1;
    if (l == 0 || r == 0 || s.len > 131072)
        PL_FAIL(b->err, PL_FORMAT, "%s: merge %llu is '%.*s': expected two symbols with a space between, at most 128 KiB",
                pl_file_path(b->f), (unsigned long long)i, (int)PL_MIN(s.len, (size_t)80), s.data);
    pl_buf_add(&b->tmp, s.data, l);
    pl_buf_add(&b->tmp, gap + 1, r);
    p->left = (struct merge_part){.s = s.data, .len = l};
    p->right = (struct merge_part){.s = gap + 1, .len = r};
    p->both = (struct merge_part){.len = l + r};
    return PL_OK;
}

/* One group of merges, so that their lookups wait for memory together and not one after the other. */
static enum pl_status load_merge_group(struct builder *b, uint64_t first, size_t n, struct merge_parts *p) {
    const struct pl_tok_vocab *v = &b->t->vocab;
    pl_buf_clear(&b->tmp);
    for (size_t k = 0; k < n; k++) PL_TRY(cut_merge(b, first + k, &p[k]));
    if (b->tmp.failed) return PL_NO_MEMORY;
    const char *both = b->tmp.data;
    for (size_t k = 0; k < n; k++) {
        p[k].both.s = both;
        both += p[k].both.len;
        start_lookup(v, &p[k].left);
        start_lookup(v, &p[k].right);
        start_lookup(v, &p[k].both);
    }
    for (size_t k = 0; k < n; k++) {
        pl_tok_vocab_fetch_text(v, p[k].left.hash);
        pl_tok_vocab_fetch_text(v, p[k].right.hash);
        pl_tok_vocab_fetch_text(v, p[k].both.hash);
    }
    for (size_t k = 0; k < n; k++) {
        PL_TRY(symbol(b, &p[k].left));
        PL_TRY(symbol(b, &p[k].right));
        PL_TRY(symbol(b, &p[k].both));
        pl_tok_merge_fetch(&b->t->model, p[k].left.id, p[k].right.id);
    }
    for (size_t k = 0; k < n; k++)
        pl_tok_merge_put(&b->t->model, p[k].left.id, p[k].right.id, (uint32_t)(first + k), p[k].both.id, false);
    return PL_OK;
}

static enum pl_status load_merges(struct builder *b) {
    struct merge_parts group[32];
    PL_TRY(array(b, KEY("merges"), true, true, &b->merges));
    PL_TRY(pl_tok_merges_reserve(&b->t->model, (size_t)b->merges->count));
    for (uint64_t i = 0; i < b->merges->count; i += PL_COUNT_OF(group))
        PL_TRY(load_merge_group(b, i, (size_t)PL_MIN(b->merges->count - i, (uint64_t)PL_COUNT_OF(group)), group));
    return PL_OK;
}

/* Single characters that no merge names and no token holds still stand between their neighbours: give bytes a symbol. */
static enum pl_status missing_bytes(struct builder *b) {
    for (unsigned v = 0; v < 256; v++) {
        char u[4];
        struct merge_part p = {.s = u, .len = pl_uc_encode(pl_uc_byte_to_cp((unsigned char)v), u)};
        p.hash = pl_tok_vocab_hash(&b->t->vocab, p.s, p.len);
        PL_TRY(symbol(b, &p));
    }
    return PL_OK;
}

static enum pl_status special_id(struct builder *b, const char *key, int64_t fallback, int64_t *out) {
    uint64_t v;
    enum pl_status st = pl_gguf_u64(b->f, key, &v, b->err);
    *out = fallback >= (int64_t)b->t->real_count ? -1 : fallback;
    if (st == PL_NOT_FOUND) return PL_OK;
    PL_TRY(st);
    if (v < b->t->real_count)
        *out = (int64_t)v;
    else if (v != UINT32_MAX)
        pl_log("%s: %s is %llu but there are %u tokens: ignored", pl_file_path(b->f), key, (unsigned long long)v,
               b->t->real_count);
    return PL_OK;
}

static enum pl_status flag(struct builder *b, const char *key, bool *out) {
    enum pl_status st = pl_gguf_bool(b->f, key, out, b->err);
    return st == PL_NOT_FOUND ? PL_OK : st;
}

static void force_special(struct pl_tokenizer *t, const char *name, unsigned attr) {
    uint32_t id = pl_tok_vocab_find(&t->vocab, name, strlen(name));
    if (id < t->real_count) t->attr[id] |= (uint8_t)attr;
}

static bool has(const struct pl_tokenizer *t, const char *name) {
    return pl_tok_vocab_find(&t->vocab, name, strlen(name)) < t->real_count;
}

static void forget(struct pl_tokenizer *t, const char *name) {
    uint32_t id = pl_tok_vocab_find(&t->vocab, name, strlen(name));
    if (id < t->real_count) t->attr[id] &= (uint8_t) ~(PL_ATTR_EOG | PL_ATTR_SPECIAL);
}

/* Token types, then names that are control tokens whatever the file says. */
static void mark_special(struct builder *b) {
    struct pl_tokenizer *t = b->t;
    static const char *const fim[] = {
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>",
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>",  "<SUF>", "▁<SUF>", "<|code_suffix|>",
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>",   "<MID>", "▁<MID>", "<|code_middle|>"};
    static const char *const stops[] = {"<|fim_pad|>", "<fim-pad>",    "<fim_pad>",     "<PAD>",
                                        "[PAD]",       "<|fim_repo|>", "<|repo_name|>", "<fim-repo>",
                                        "<REPO>",      "<reponame>",   "<|file_sep|>"};
    for (uint32_t id = 0; id < t->real_count; id++) {
        int64_t type = type_of(b, id);
        if (type == TYPE_CONTROL || type == TYPE_UNKNOWN) t->attr[id] |= PL_ATTR_SPECIAL;
        if (type == TYPE_BYTE && pl_tok_byte_token(t->vocab.text[id]) >= 0) t->attr[id] |= PL_ATTR_BYTE;
    }
    for (size_t i = 0; i < PL_COUNT_OF(fim); i++) force_special(t, fim[i], PL_ATTR_SPECIAL);
    for (size_t i = 0; i < PL_COUNT_OF(stops); i++) force_special(t, stops[i], PL_ATTR_SPECIAL | PL_ATTR_EOG);
    pl_tok_mark_eog_by_name(t);
    bool call = has(t, "<|call|>") || has(t, "<|calls|>");
    if (call && (has(t, "<|return|>") || has(t, "<|flush|>"))) forget(t, "<|end|>"); /* ends a message, not the turn */
    if (has(t, "<|tool_response>") || has(t, "<|plamo:eos|>")) forget(t, "</s>");    /* plain text there */
}

static enum pl_status ids_and_eog(struct builder *b) {
    struct pl_tokenizer *t = b->t;
    enum pl_model_kind k = t->model.kind;
    bool spm = k == PL_MODEL_SPM, bert = k == PL_MODEL_WORDPIECE, t5 = k == PL_MODEL_UNIGRAM, plamo = k == PL_MODEL_PLAMO;
    PL_TRY(special_id(b, KEY("cls_token_id"), bert ? 101 : -1, &t->bos));
    if (!bert) t->bos = spm || plamo ? 1 : -1;
    PL_TRY(special_id(b, KEY("bos_token_id"), t->bos, &t->bos));
    PL_TRY(special_id(b, KEY("eos_token_id"), spm || plamo ? 2 : t5 ? 1 : -1, &t->eos));
    PL_TRY(special_id(b, KEY("unknown_token_id"), spm || plamo ? 0 : bert ? 100 : t5 ? 2 : -1, &t->unk));
    PL_TRY(special_id(b, KEY("padding_token_id"), bert || t5 ? 0 : plamo ? 3 : -1, &t->pad));
    PL_TRY(special_id(b, KEY("seperator_token_id"), bert ? 102 : -1, &b->sep));
    if (t->unk >= 0 && k != PL_MODEL_BPE) t->model.unk = (uint32_t)t->unk;
    const char *const ends[] = {KEY("eot_token_id"), KEY("eom_token_id"), KEY("fim_pad_token_id"), KEY("fim_rep_token_id"),
                                KEY("fim_sep_token_id")};
    for (size_t i = 0; i < PL_COUNT_OF(ends); i++) {
        int64_t id;
        PL_TRY(special_id(b, ends[i], -1, &id));
        if (id >= 0) t->attr[id] |= PL_ATTR_EOG;
    }
    if (t->eos >= 0) t->attr[t->eos] |= PL_ATTR_EOG;
    return PL_OK;
}

/* Phi-3's special tokens swallow the white space behind them; a mask token swallows what is before it. */
static void strip_rules(struct builder *b, struct pl_added *a) {
    struct pl_str name = {"", 0}, arch = {"", 0};
    char low[64];
    if (pl_gguf_str(b->f, "general.name", &name, NULL) != PL_OK) name = (struct pl_str){"", 0};
    if (pl_gguf_str(b->f, "general.architecture", &arch, NULL) != PL_OK) arch = (struct pl_str){"", 0};
    size_t n = PL_MIN(name.len, sizeof low - 1);
    for (size_t i = 0; i < n; i++) low[i] = name.data[i] >= 'A' && name.data[i] <= 'Z' ? name.data[i] + 32 : name.data[i];
    low[n] = '\0';
    if (strstr(low, "phi-3") != NULL || strstr(low, "phi3") != NULL)
        a->rstrip = !pl_str_eq_c(a->text, "<unk>") && !pl_str_eq_c(a->text, "<s>") && !pl_str_eq_c(a->text, "<|endoftext|>");
    if (pl_str_eq_c(a->text, "<mask>") && (pl_str_starts(arch, "nomic-bert-moe") || pl_str_starts(arch, "jina-bert-v3")))
        a->lstrip = true;
}

static enum pl_status load_added(struct builder *b) {
    struct pl_tokenizer *t = b->t;
    for (uint32_t id = 0; id < t->real_count; id++) {
        bool special = (t->attr[id] & PL_ATTR_SPECIAL) != 0;
        if (!special && type_of(b, id) != TYPE_USER) continue;
        struct pl_added *a = pl_tok_add_added(t, id);
        if (a == NULL) return PL_NO_MEMORY;
        a->text = t->vocab.text[id];
        a->special = special;
        a->ascii_strip = true;
        strip_rules(b, a);
    }
    return PL_OK;
}

static enum pl_status append(struct pl_ids *ids, int64_t id) { return id < 0 ? PL_OK : pl_ids_add(ids, (uint32_t)id); }

static enum pl_status load_template(struct builder *b) {
    struct pl_tokenizer *t = b->t;
    PL_TRY(flag(b, KEY("add_bos_token"), &b->add_bos));
    PL_TRY(flag(b, KEY("add_eos_token"), &b->add_eos));
    if (b->pre != NULL && (b->pre->flags & PL_PRETYPE_NEWLINES)) b->add_bos = true;
    if (t->model.kind == PL_MODEL_WORDPIECE) {
        PL_TRY(append(&t->prefix, t->bos));
        return append(&t->suffix, b->sep);
    }
    if (b->add_bos) PL_TRY(append(&t->prefix, t->bos));
    return b->add_eos ? append(&t->suffix, t->eos) : PL_OK;
}

static enum pl_status add_replace(struct pl_tokenizer *t, const char *from, const char *to) {
    struct pl_tok_norm *n = pl_tok_add_norm(t, PL_NORM_REPLACE);
    if (n == NULL) return PL_NO_MEMORY;
    n->a = pl_str_from(from);
    n->b = pl_str_from(to);
    return PL_OK;
}

static enum pl_status add_spaces_decoder(struct pl_tokenizer *t, bool strip_first) {
    struct pl_tok_dec *d = pl_tok_add_dec(t, PL_DEC_REPLACE);
    if (d == NULL) return PL_NO_MEMORY;
    d->a = PL_STR("\xE2\x96\x81");
    d->b = PL_STR(" ");
    if (pl_tok_add_dec(t, PL_DEC_BYTE_FALLBACK) == NULL) return PL_NO_MEMORY;
    t->per_byte_errors = true;
    if (strip_first) {
        t->lead_strip = PL_STR(" ");
        t->lead_strip_max = 1;
    }
    return PL_OK;
}

static enum pl_status setup_bpe(struct builder *b, struct pl_str pre_name) {
    struct pl_tokenizer *t = b->t;
    t->model.kind = PL_MODEL_BPE;
    b->pre = pl_pretype_find(pre_name);
    if (b->pre == NULL) {
        struct pl_buf list = {0};
        pl_pretype_list(&list);
        (void)pl_err_set(b->err, __FILE__, __LINE__, PL_UNSUPPORTED,
                         "%s: tokenizer.ggml.pre '%.*s' is not known: expected one of %s", pl_file_path(b->f),
                         (int)PL_MIN(pre_name.len, (size_t)60), pre_name.data, pl_buf_cstr(&list));
        pl_buf_deinit(&list);
        return PL_UNSUPPORTED;
    }
    bool raw = (b->pre->flags & PL_PRETYPE_RAW) != 0;
    t->model.byte_level = !raw;
    t->model.byte_fallback = raw;
    t->model.ignore_merges = (b->pre->flags & PL_PRETYPE_IGNORE_MERGES) != 0;
    t->model.newline_whole = (b->pre->flags & PL_PRETYPE_NEWLINES) != 0;
    b->add_bos = (b->pre->flags & PL_PRETYPE_ADD_BOS) != 0;
    for (size_t i = 0; i < PL_COUNT_OF(b->pre->patterns) && b->pre->patterns[i] != NULL; i++)
        PL_TRY(pl_tok_add_regex_split(t, pl_str_from(b->pre->patterns[i]), PL_SPLIT_ISOLATED, false, b->err));
    if (raw) {
        PL_TRY(add_replace(t, " ", "\xE2\x96\x81"));
        return add_spaces_decoder(t, false);
    }
    return pl_tok_add_dec(t, PL_DEC_BYTE_LEVEL) == NULL ? PL_NO_MEMORY : PL_OK;
}

static enum pl_status setup_spm(struct builder *b) {
    struct pl_tokenizer *t = b->t;
    t->model.kind = PL_MODEL_SPM;
    t->raw_bytes = true;
    b->add_bos = b->space_prefix = true;
    PL_TRY(flag(b, KEY("add_space_prefix"), &b->space_prefix));
    if (b->space_prefix) {
        struct pl_tok_norm *n = pl_tok_add_norm(t, PL_NORM_PREPEND);
        if (n == NULL) return PL_NO_MEMORY;
        n->a = PL_STR("\xE2\x96\x81");
    }
    PL_TRY(add_replace(t, " ", "\xE2\x96\x81"));
    return add_spaces_decoder(t, b->space_prefix);
}

static enum pl_status setup_bert(struct builder *b) {
    struct pl_tokenizer *t = b->t;
    bool lower = true, accents;
    t->model.kind = PL_MODEL_WORDPIECE;
    t->model.suffix = PL_STR("\xE2\x96\x81"); /* a word's first piece carries the marker */
    t->model.max_chars = 100;
    struct pl_tok_norm *n = pl_tok_add_norm(t, PL_NORM_BERT);
    struct pl_tok_pre *p = pl_tok_add_pre(t, PL_PRE_SPLIT);
    if (n == NULL || p == NULL) return PL_NO_MEMORY;
    PL_TRY(flag(b, KEY("normalizer.lowercase"), &lower));
    accents = lower;
    PL_TRY(flag(b, KEY("normalizer.strip_accents"), &accents));
    n->f[0] = n->f[1] = true;
    n->f[2] = accents;
    n->f[3] = lower;
    p->split = (struct pl_splitter){.kind = PL_MATCH_CLASS, .behavior = PL_SPLIT_REMOVED, .cls = PL_CLASS_SPACE};
    p = pl_tok_add_pre(t, PL_PRE_SPLIT);
    if (p == NULL) return PL_NO_MEMORY;
    p->split = (struct pl_splitter){.kind = PL_MATCH_CLASS, .behavior = PL_SPLIT_ISOLATED, .cls = PL_CLASS_PUNCT};
    return add_spaces_decoder(t, true);
}

static enum pl_status setup_t5(struct builder *b) {
    struct pl_tokenizer *t = b->t;
    t->model.kind = PL_MODEL_UNIGRAM;
    b->add_eos = true;
    PL_TRY(flag(b, KEY("add_space_prefix"), &b->space_prefix));
    PL_TRY(flag(b, KEY("remove_extra_whitespaces"), &b->extra_spaces));
    const struct pl_gguf_value *map;
    PL_TRY(array(b, KEY("precompiled_charsmap"), false, false, &map));
    if (map != NULL && map->count > 0) {
        if (map->elem_type != PL_GGUF_I8 && map->elem_type != PL_GGUF_U8)
            PL_FAIL(b->err, PL_FORMAT, "%s: tokenizer.ggml.precompiled_charsmap: expected an array of bytes",
                    pl_file_path(b->f));
        struct pl_tok_norm *n = pl_tok_add_norm(t, PL_NORM_PRECOMPILED_LONGEST);
        if (n == NULL) return PL_NO_MEMORY;
        PL_TRY(pl_tok_set_charsmap(t, n, map->data, (size_t)map->count, b->err));
    }
    struct pl_tok_norm *n = pl_tok_add_norm(t, PL_NORM_SPM_SPACES);
    if (n == NULL) return PL_NO_MEMORY;
    n->f[0] = b->space_prefix;
    n->f[1] = b->extra_spaces;
    n->f[2] = true;
    return add_spaces_decoder(t, b->space_prefix || b->extra_spaces);
}

static enum pl_status setup_plamo(struct builder *b) {
    b->t->model.kind = PL_MODEL_PLAMO;
    b->t->model.byte_fallback = true;
    return pl_tok_add_dec(b->t, PL_DEC_BYTE_FALLBACK) == NULL ? PL_NO_MEMORY : PL_OK;
}

static enum pl_status load_scores(struct builder *b) {
    struct pl_tokenizer *t = b->t;
    bool spm = t->model.kind == PL_MODEL_SPM;
    bool plamo = t->model.kind == PL_MODEL_PLAMO;
    if (!spm && !plamo && t->model.kind != PL_MODEL_UNIGRAM) return PL_OK;
    if (b->scores == NULL)
        PL_FAIL(b->err, PL_FORMAT, "%s: tokenizer.ggml.scores is missing: a SentencePiece vocabulary needs it",
                pl_file_path(b->f));
    t->model.score = spm ? pl_calloc(t->real_count, sizeof *t->model.score) : NULL;
    t->model.log_prob = spm ? NULL : pl_calloc(t->real_count, sizeof *t->model.log_prob);
    if ((spm ? (void *)t->model.score : (void *)t->model.log_prob) == NULL) return PL_NO_MEMORY;
    double least = INFINITY;
    for (uint32_t id = 0; id < t->real_count; id++) {
        double s = pl_gguf_elem_f64(b->scores, id);
        if (isnan(s)) PL_FAIL(b->err, PL_FORMAT, "%s: tokenizer.ggml.scores[%u] is not a number", pl_file_path(b->f), id);
        int64_t type = type_of(b, id);
        if (type == TYPE_NORMAL) least = PL_MIN(least, s);
        if (plamo)
            t->model.log_prob[id] = pl_tok_plamo_score(s);
        else if (spm)
            t->model.score[id] = (float)s;
        else
            t->model.log_prob[id] = type == TYPE_USER ? 0.0 : s;
    }
    t->model.unk_score = (isfinite(least) ? least : 0.0) - 10.0;
    return PL_OK;
}

static enum pl_status build(struct builder *b) {
    struct pl_str model, pre = PL_STR("default");
    PL_TRY(pl_gguf_str(b->f, KEY("model"), &model, b->err));
    if (pl_str_eq_c(model, "no_vocab") || pl_str_eq_c(model, "none")) /* what converters write when they leave it out */
        PL_FAIL(b->err, PL_NOT_FOUND, "%s: tokenizer.ggml.model is '%.*s': this GGUF has no tokenizer", pl_file_path(b->f),
                (int)model.len, model.data);
    enum pl_status st = pl_gguf_str(b->f, KEY("pre"), &pre, b->err);
    if (st != PL_NOT_FOUND) PL_TRY(st);
    if (pl_str_eq_c(model, "gemma4")) pre = PL_STR("gemma4");
    bool bpe = pl_str_eq_c(model, "gpt2") || pl_str_eq_c(model, "gemma4");
    if (bpe && st == PL_NOT_FOUND && !pl_str_eq_c(model, "gemma4"))
        pl_log("%s: tokenizer.ggml.pre is missing: words are cut as llama.cpp's 'default' does; convert the model again "
               "for the right cuts",
               pl_file_path(b->f));
    if (bpe)
        PL_TRY(setup_bpe(b, pre));
    else if (pl_str_eq_c(model, "llama"))
        PL_TRY(setup_spm(b));
    else if (pl_str_eq_c(model, "bert"))
        PL_TRY(setup_bert(b));
    else if (pl_str_eq_c(model, "t5"))
        PL_TRY(setup_t5(b));
    else if (pl_str_eq_c(model, "plamo2"))
        PL_TRY(setup_plamo(b));
    else
        PL_FAIL(b->err, PL_UNSUPPORTED,
                "%s: tokenizer.ggml.model '%.*s' is not known: expected one of gpt2, gemma4, llama, bert, t5, plamo2",
                pl_file_path(b->f), (int)PL_MIN(model.len, (size_t)60), model.data);
    PL_TRY(load_tokens(b));
    if (bpe) PL_TRY(load_merges(b));
    if (b->t->model.byte_level) PL_TRY(missing_bytes(b));
    mark_special(b);
    PL_TRY(ids_and_eog(b));
    PL_TRY(load_scores(b));
    PL_TRY(load_added(b));
    PL_TRY(load_template(b));
    b->t->literal_added = true;
    return pl_tokenizer_finish(b->t, b->err);
}

enum pl_status pl_tokenizer_from_gguf(const struct pl_file *f, struct pl_tokenizer **out, struct pl_err *err) {
    struct builder b = {.f = f, .err = err};
    PL_TRY(pl_tokenizer_new(&b.t));
    enum pl_status st = build(&b);
    pl_buf_deinit(&b.tmp);
    if (st == PL_OK) {
        *out = b.t;
        return PL_OK;
    }
    pl_tokenizer_destroy(b.t);
    if (st == PL_NOT_FOUND && (err == NULL || err->status == PL_OK))
        PL_FAIL(err, PL_NOT_FOUND, "%s: tokenizer.ggml.model is missing: this GGUF has no tokenizer", pl_file_path(f));
    if (err != NULL && err->status == PL_OK) PL_FAIL(err, st, "%s: tokenizer: %s", pl_file_path(f), pl_status_text(st));
    return st;
}
