/* What both sources of a tokenizer share: making one, deriving its tables, asking it questions. */
#include <string.h>

#include "base/mem.h"
#include "token/internal.h"
#include "token/unicode.h"

enum pl_status pl_tokenizer_new(struct pl_tokenizer **out) {
    struct pl_tokenizer *t = pl_calloc(1, sizeof *t);
    if (t == NULL) return PL_NO_MEMORY;
    pl_uc_init();
    pl_tok_vocab_init(&t->vocab);
    pl_arena_init(&t->strings, 0);
    pl_tok_trie_init(&t->raw.trie);
    pl_tok_trie_init(&t->normalized.trie);
    pl_tok_trie_init(&t->model.trie);
    pthread_mutex_init(&t->lock, NULL);
    t->bos = t->eos = t->unk = t->pad = -1;
    t->model.unk = PL_TOK_NONE;
    t->model.max_chars = SIZE_MAX;
    for (int b = 0; b < 256; b++) t->model.byte_id[b] = PL_TOK_NONE;
    *out = t;
    return PL_OK;
}

void pl_tokenizer_destroy(struct pl_tokenizer *t) {
    if (t == NULL) return;
    pl_tok_ctx_destroy_all(t);
    for (size_t i = 0; i < t->norm_count; i++) pl_regex_destroy(t->norms[i].re);
    for (size_t i = 0; i < t->pre_count; i++) pl_regex_destroy(t->pres[i].split.re);
    for (size_t i = 0; i < t->dec_count; i++) pl_regex_destroy(t->decs[i].re);
    pl_free(t->norms);
    pl_free(t->pres);
    pl_free(t->decs);
    pl_free(t->added);
    pl_free(t->attr);
    pl_free(t->piece);
    pl_free(t->model.merges);
    pl_free(t->model.score);
    pl_free(t->model.log_prob);
    pl_free(t->model.pair_bloom);
    pl_tok_trie_deinit(&t->model.trie);
    pl_tok_trie_deinit(&t->raw.trie);
    pl_tok_trie_deinit(&t->normalized.trie);
    pl_ids_deinit(&t->prefix);
    pl_ids_deinit(&t->suffix);
    pl_tok_vocab_deinit(&t->vocab);
    pl_arena_deinit(&t->strings);
    pthread_mutex_destroy(&t->lock);
    pl_free(t);
}

bool pl_tok_keep(struct pl_tokenizer *t, struct pl_str s, struct pl_str *out) {
    char *copy = pl_arena_strndup(&t->strings, s.data == NULL ? "" : s.data, s.len);
    if (copy != NULL) *out = (struct pl_str){copy, s.len};
    return copy != NULL;
}

/* One more zeroed element at the end of an array, or NULL. */
static void *append(void *array, size_t *count, size_t *cap, size_t size) {
    if (pl_grow(array, cap, *count + 1, size) != PL_OK) return NULL;
    char *base;
    memcpy(&base, array, sizeof base);
    char *p = base + (*count)++ * size;
    memset(p, 0, size);
    return p;
}

struct pl_tok_norm *pl_tok_add_norm(struct pl_tokenizer *t, enum pl_norm_kind kind) {
    struct pl_tok_norm *n = append(&t->norms, &t->norm_count, &t->norm_cap, sizeof *n);
    if (n != NULL) n->kind = kind;
    return n;
}
struct pl_tok_pre *pl_tok_add_pre(struct pl_tokenizer *t, enum pl_pre_kind kind) {
    struct pl_tok_pre *p = append(&t->pres, &t->pre_count, &t->pre_cap, sizeof *p);
    if (p != NULL) p->kind = kind;
    return p;
}
struct pl_tok_dec *pl_tok_add_dec(struct pl_tokenizer *t, enum pl_dec_kind kind) {
    struct pl_tok_dec *d = append(&t->decs, &t->dec_count, &t->dec_cap, sizeof *d);
    if (d != NULL) d->kind = kind;
    return d;
}
struct pl_added *pl_tok_add_added(struct pl_tokenizer *t, uint32_t id) {
    struct pl_added *a = append(&t->added, &t->added_count, &t->added_cap, sizeof *a);
    if (a != NULL) a->id = id;
    return a;
}

enum pl_status pl_tok_add_regex_split(struct pl_tokenizer *t, struct pl_str pattern, enum pl_split_behavior behavior,
                                      bool invert, struct pl_err *err) {
    struct pl_tok_pre *p = pl_tok_add_pre(t, PL_PRE_SPLIT);
    if (p == NULL) return PL_NO_MEMORY;
    p->split.behavior = behavior;
    p->split.invert = invert;
    p->split.scan = pl_scan_for_pattern(pattern);
    p->split.kind = p->split.scan != PL_SCAN_NONE ? PL_MATCH_SCAN : PL_MATCH_REGEX;
    return p->split.kind == PL_MATCH_SCAN ? PL_OK : pl_regex_create(pattern, &p->split.re, err);
}

enum pl_status pl_tok_set_charsmap(struct pl_tokenizer *t, struct pl_tok_norm *n, const void *blob, size_t len,
                                   struct pl_err *err) {
    const uint8_t *b = blob;
    if (len < 4) PL_FAIL(err, PL_FORMAT, "precompiled_charsmap has %zu bytes: expected at least 4", len);
    size_t trie = (size_t)b[0] | (size_t)b[1] << 8 | (size_t)b[2] << 16 | (size_t)b[3] << 24;
    if (trie > len - 4 || trie % 4 != 0)
        PL_FAIL(err, PL_FORMAT,
                "precompiled_charsmap: its trie has %zu bytes, of %zu there: expected a multiple of 4 that fits", trie,
                len - 4);
    struct pl_str kept;
    if (!pl_tok_keep(t, (struct pl_str){(const char *)b + 4, len - 4}, &kept)) return PL_NO_MEMORY;
    n->trie = (const uint8_t *)kept.data;
    n->units = trie / 4;
    n->strings = (struct pl_str){kept.data + trie, len - 4 - trie};
    if (!pl_utf8_valid(n->strings.data, n->strings.len))
        PL_FAIL(err, PL_FORMAT, "precompiled_charsmap: replacements are not valid UTF-8");
    return PL_OK;
}

int pl_tok_byte_token(struct pl_str s) {
    if (s.len != 6 || memcmp(s.data, "<0x", 3) != 0 || s.data[5] != '>') return -1;
    int v = 0;
    for (int i = 3; i < 5; i++) {
        char ch = s.data[i];
        int d = ch >= '0' && ch <= '9'   ? ch - '0'
                : ch >= 'A' && ch <= 'F' ? ch - 'A' + 10
                : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10
                                         : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* HTML elements that vocabularies such as Gemma's hold as tokens of ordinary text. */
static bool html_tag(struct pl_str s) {
    static const char *const names[] = {"table", "caption", "thead", "tbody", "tfoot", "tr",         "th",     "td", "h1",
                                        "h2",    "h3",      "h4",    "h5",    "h6",    "blockquote", "strong", "em", "b",
                                        "i",     "u",       "s",     "sub",   "sup",   "code",       "pre",    "p",  "br",
                                        "hr",    "ul",      "ol",    "li",    "a",     "div",        "span",   "img"};
    if (s.len < 3 || s.data[0] != '<' || s.data[s.len - 1] != '>') return false;
    struct pl_str name = {s.data + 1, s.len - 2};
    if (name.data[0] == '/') name = (struct pl_str){name.data + 1, name.len - 1};
    for (size_t i = 0; i < PL_COUNT_OF(names); i++)
        if (pl_str_eq_c(name, names[i])) return !pl_str_eq_c(s, "<s>") && !pl_str_eq_c(s, "</s>");
    return false;
}

bool pl_tok_is_marker(struct pl_str s) {
    if (s.len < 3 || html_tag(s)) return false;
    bool letters = false, brackets = false;
    for (size_t i = 0; i < s.len; i++) {
        unsigned char ch = (unsigned char)s.data[i];
        letters |= (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || ch >= 0x80 || (ch >= '0' && ch <= '9');
        brackets |= ch == '<' || ch == '>' || ch == '[' || ch == ']' || ch == '|';
    }
    return brackets && letters;
}

/* --- derived tables --- */

static enum pl_status model_bytes(struct pl_tokenizer *t) {
    struct pl_tok_model *m = &t->model;
    for (unsigned b = 0; b < 256; b++) {
        char s[8];
        size_t n = 6;
        if (m->byte_level) {
            n = pl_uc_encode(pl_uc_byte_to_cp((unsigned char)b), s);
        } else {
            static const char hex[] = "0123456789ABCDEF";
            memcpy(s, "<0x00>", 6);
            s[3] = hex[b >> 4];
            s[4] = hex[b & 15];
        }
        m->byte_id[b] = pl_tok_model_find(t, s, n);
        if (m->kind == PL_MODEL_SPM && m->byte_id[b] == PL_TOK_NONE) {
            s[0] = (char)b;
            m->byte_id[b] = pl_tok_model_find(t, s, 1);
        }
    }
    return PL_OK;
}

static enum pl_status bloom(struct pl_tokenizer *t) {
    struct pl_tok_model *m = &t->model;
    bool unigram = m->kind == PL_MODEL_UNIGRAM;
    bool marker = pl_tok_vocab_find(&t->vocab, "\xE2\x96\x81", 3) < t->real_count;
    if (m->byte_level || m->prefix.len > 0 || m->suffix.len > 0) return PL_OK;
    if (m->kind != PL_MODEL_BPE && m->kind != PL_MODEL_SPM && !(unigram && marker)) return PL_OK;
    bool all_bytes = m->byte_fallback || m->kind == PL_MODEL_SPM || unigram;
    for (int b = 0; b < 256 && m->kind == PL_MODEL_BPE; b++) all_bytes &= m->byte_id[b] != PL_TOK_NONE;
    if (!all_bytes && m->unk != PL_TOK_NONE) return PL_OK;          /* unknown characters fuse across a cut */
    if (m->kind == PL_MODEL_BPE && !m->byte_fallback) return PL_OK; /* characters may vanish: neighbours change */
    for (size_t i = 0; i < m->merge_slots; i++) /* byte tokens that merge: what they become is not what they spell */
        if (m->merges[i].pair != UINT64_MAX && (pl_tok_byte_token(t->vocab.text[m->merges[i].pair >> 32]) >= 0 ||
                                                pl_tok_byte_token(t->vocab.text[m->merges[i].pair & UINT32_MAX]) >= 0))
            return PL_OK;
    m->pair_bloom = pl_calloc(PL_BLOOM_WORDS, sizeof *m->pair_bloom);
    if (m->pair_bloom == NULL) return PL_NO_MEMORY;
    m->cut_before_space_only = unigram;
    for (uint32_t id = 0; id < t->vocab.count; id++) {
        struct pl_str s = t->vocab.text[id];
        uint32_t prev = 0, cp;
        for (size_t i = 0; i < s.len; prev = cp) {
            size_t n = pl_utf8_len(s.data + i, s.len - i);
            cp = n == 0 ? (unsigned char)s.data[i] : pl_utf8_decode(s.data + i, n);
            if (i > 0) {
                uint64_t h = pl_tok_mix((uint64_t)prev << 21 | cp) >> 8;
                m->pair_bloom[(h >> 6) & (PL_BLOOM_WORDS - 1)] |= 1ull << (h & 63);
            }
            i += n == 0 ? 1 : n;
        }
    }
    return PL_OK;
}

static enum pl_status unigram_tables(struct pl_tokenizer *t, struct pl_err *err) {
    struct pl_tok_model *m = &t->model;
    for (uint32_t id = 0; id < t->real_count; id++) {
        struct pl_str s = t->vocab.text[id];
        if (s.len == 0 || (t->attr[id] & (PL_ATTR_SPECIAL | PL_ATTR_MARKER | PL_ATTR_OUTSIDE)) ||
            (t->attr[id] & PL_ATTR_BYTE && m->byte_fallback))
            continue;
        if (pl_tok_vocab_find(&t->vocab, s.data, s.len) == id) PL_TRY(pl_tok_trie_add(&m->trie, s.data, s.len, id));
    }
    if (m->trie.nodes == 0) PL_FAIL(err, PL_FORMAT, "the unigram vocabulary has no ordinary token");
    return PL_OK;
}

static enum pl_status added_tables(struct pl_tokenizer *t) {
    for (size_t i = 0; i < t->added_count; i++) {
        struct pl_added *a = &t->added[i];
        if (a->text.len == 0) continue;
        a->marker = !a->special && pl_tok_is_marker(a->text);
        if (a->id < t->real_count) {
            t->attr[a->id] |= PL_ATTR_ADDED;
            if (a->special) t->attr[a->id] |= PL_ATTR_SPECIAL;
            if (a->marker) t->attr[a->id] |= PL_ATTR_MARKER;
        }
        struct pl_added_set *set = a->normalized ? &t->normalized : &t->raw;
        set->any = true;
        PL_TRY(pl_tok_trie_add(&set->trie, a->text.data, a->text.len, (uint32_t)i));
    }
    return PL_OK;
}

/* The text of an added token as the normalizers leave it: that is what is looked for. */
static enum pl_status normalize_added(struct pl_tokenizer *t, struct pl_err *err) {
    struct pl_tok_ctx c = {.err = err};
    enum pl_status st = PL_OK;
    for (size_t i = 0; i < t->added_count && st == PL_OK && t->norm_count > 0; i++) {
        struct pl_added *a = &t->added[i];
        if (!a->normalized) continue;
        pl_tok_text_clear(&c.a, false);
        st = pl_tok_text_add(&c.a, a->text.data, a->text.len, 0);
        if (st == PL_OK) st = pl_tok_normalize(t, &c);
        if (st == PL_OK && !pl_tok_keep(t, (struct pl_str){c.a.data, c.a.len}, &a->text)) st = PL_NO_MEMORY;
    }
    pl_free(c.a.data);
    pl_free(c.b.data);
    pl_regex_scratch_deinit(&c.regex);
    return st;
}

enum pl_status pl_tokenizer_finish(struct pl_tokenizer *t, struct pl_err *err) {
    if (t->real_count == 0) PL_FAIL(err, PL_FORMAT, "the vocabulary is empty");
    PL_TRY(normalize_added(t, err));
    PL_TRY(added_tables(t));
    PL_TRY(model_bytes(t));
    if (t->model.kind == PL_MODEL_UNIGRAM || t->model.kind == PL_MODEL_PLAMO) PL_TRY(unigram_tables(t, err));
    if (t->model.kind == PL_MODEL_PLAMO) PL_TRY(pl_tok_plamo_check(t, err));
    PL_TRY(bloom(t));
    return pl_tok_make_pieces(t, err);
}

/* --- questions --- */

uint32_t pl_tokenizer_vocab_size(const struct pl_tokenizer *t) { return t->real_count; }
int64_t pl_tokenizer_bos(const struct pl_tokenizer *t) { return t->bos; }
int64_t pl_tokenizer_eos(const struct pl_tokenizer *t) { return t->eos; }
int64_t pl_tokenizer_unk(const struct pl_tokenizer *t) { return t->unk; }
int64_t pl_tokenizer_pad(const struct pl_tokenizer *t) { return t->pad; }
bool pl_tokenizer_is_special(const struct pl_tokenizer *t, uint32_t id) {
    return id < t->real_count && (t->attr[id] & PL_ATTR_SPECIAL) != 0;
}
bool pl_tokenizer_is_eog(const struct pl_tokenizer *t, uint32_t id) {
    return id < t->real_count && (t->attr[id] & PL_ATTR_EOG) != 0;
}
bool pl_tokenizer_piece(const struct pl_tokenizer *t, uint32_t id, struct pl_str *out) {
    if (id >= t->real_count || t->vocab.text[id].data == NULL) return false;
    *out = t->piece[id];
    return true;
}

bool pl_tokenizer_find(const struct pl_tokenizer *t, const char *text, size_t len, uint32_t *id) {
    uint32_t found = pl_tok_vocab_find(&t->vocab, text, len);
    if (found >= t->real_count && t->model.byte_level) { /* stored in the printable form of its bytes */
        struct pl_buf b = {0};
        for (size_t i = 0; i < len; i++) pl_buf_add_utf8(&b, pl_uc_byte_to_cp((unsigned char)text[i]));
        found = b.failed ? PL_TOK_NONE : pl_tok_vocab_find(&t->vocab, pl_buf_cstr(&b), b.len);
        pl_buf_deinit(&b);
    }
    if (found >= t->real_count) return false;
    *id = found;
    return true;
}

enum pl_status pl_tokenizer_create(const struct pl_file *f, struct pl_tokenizer **out, struct pl_err *err) {
    if (pl_file_kind(f) == PL_FILE_GGUF) return pl_tokenizer_from_gguf(f, out, err);
    const json_t *tok = pl_file_json(f, PL_JSON_TOKENIZER), *lines = pl_file_json(f, PL_JSON_TOKENIZER_LINES);
    if (tok == NULL && lines != NULL)
        return pl_tokenizer_from_lines(lines, pl_file_json(f, PL_JSON_TOKENIZER_CONFIG), pl_file_json(f, PL_JSON_CONFIG),
                                       pl_file_json(f, PL_JSON_GENERATION), out, err);
    if (tok == NULL)
        PL_FAIL(
            err, PL_NOT_FOUND,
            "%s has no tokenizer.json, nor PLaMo 2's tokenizer.jsonl: plumb reads those only (convert with transformers' "
            "save_pretrained)",
            pl_file_path(f));
    return pl_tokenizer_from_json(tok, pl_file_json(f, PL_JSON_TOKENIZER_CONFIG), pl_file_json(f, PL_JSON_CONFIG),
                                  pl_file_json(f, PL_JSON_GENERATION), out, err);
}
