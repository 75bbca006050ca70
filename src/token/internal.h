/* internal - how a tokenizer is held in memory. gguf.c and the json_*.c files fill the same description; encode.c and
 * decode.c run it. The pipeline is that of Hugging Face tokenizers:
 *
 *   text -> added tokens (raw) -> normalizers -> added tokens (normalized) -> pre-tokenizers -> model -> template
 *
 * Everything in struct pl_tokenizer is immutable after creation except the pool of scratch contexts. */
#ifndef PL_TOKEN_INTERNAL_H
#define PL_TOKEN_INTERNAL_H

#include <pthread.h>

#include "base/arena.h"
#include "base/str.h"
#include "token/split.h"
#include "token/token.h"
#include "token/vocab.h"

/* --- text that carries, per byte, whether it came from an untrusted span (taint NULL: nothing did) --- */
struct pl_tok_text {
    char *data;
    uint8_t *taint;
    size_t len, cap, taint_cap;
    bool tracked;
};

/* --- normalizers --- */
enum pl_norm_kind {
    PL_NORM_NFC,
    PL_NORM_NFD,
    PL_NORM_NFKC,
    PL_NORM_NFKD,
    PL_NORM_LOWERCASE,
    PL_NORM_STRIP_ACCENTS,
    PL_NORM_STRIP,
    PL_NORM_PREPEND,
    PL_NORM_REPLACE,
    PL_NORM_REPLACE_REGEX,
    PL_NORM_BERT,
    PL_NORM_NMT,
    PL_NORM_BYTE_LEVEL,
    PL_NORM_PRECOMPILED,         /* one replacement per grapheme, as Hugging Face does it */
    PL_NORM_PRECOMPILED_LONGEST, /* longest prefix, as SentencePiece and llama.cpp do it */
    PL_NORM_SPM_SPACES           /* SentencePiece white space: f[0] dummy prefix, f[1] collapse, f[2] escape */
};
struct pl_tok_norm {
    enum pl_norm_kind kind;
    bool f[4]; /* STRIP: left, right. BERT: clean, chinese, accents, lowercase */
    struct pl_str a, b;
    struct pl_regex *re;
    const uint8_t *trie; /* precompiled charsmap: little-endian units, then NUL-terminated replacements */
    size_t units;
    struct pl_str strings;
};

/* --- pre-tokenizers --- */
enum pl_pre_kind { PL_PRE_SPLIT, PL_PRE_PREFIX_SPACE, PL_PRE_METASPACE, PL_PRE_BYTE_MAP, PL_PRE_FIXED };
enum pl_metaspace_scheme { PL_META_ALWAYS, PL_META_FIRST, PL_META_NEVER };
struct pl_tok_pre {
    enum pl_pre_kind kind;
    struct pl_splitter split; /* SPLIT; METASPACE uses it too */
    struct pl_str replacement;
    enum pl_metaspace_scheme scheme;
    bool do_split;
    size_t length; /* FIXED */
};

/* --- models --- */
enum pl_model_kind { PL_MODEL_BPE, PL_MODEL_SPM, PL_MODEL_UNIGRAM, PL_MODEL_WORDPIECE, PL_MODEL_WORDLEVEL, PL_MODEL_PLAMO };
struct pl_merge_slot {
    uint64_t pair; /* left << 32 | right; UINT64_MAX = free */
    uint32_t rank, id;
};
struct pl_tok_model {
    enum pl_model_kind kind;
    uint32_t unk; /* PL_TOK_NONE: none */
    bool byte_level, byte_fallback, fuse_unk, ignore_merges, newline_whole, drop_unknown_bytes;
    uint32_t byte_id[256];        /* byte level: symbol of each byte; else: the <0xXX> tokens */
    struct pl_str prefix, suffix; /* continuing_subword_prefix, end_of_word_suffix */
    size_t max_chars;             /* WordPiece */
    struct pl_merge_slot *merges;
    size_t merge_slots;
    float *score;     /* SPM, indexed by id */
    double *log_prob; /* unigram; PLaMo 2: whole numbers, NaN: never taken */
    double unk_score;
    struct pl_tok_trie trie;    /* unigram, PLaMo 2 */
    uint64_t *pair_bloom;       /* adjacent characters that occur inside some token; NULL: text may not be cut */
    bool cut_before_space_only; /* unigram: cut only before U+2581 */
};

/* --- added tokens --- */
struct pl_added {
    uint32_t id;
    struct pl_str text; /* what is looked for: as the normalizers leave it */
    bool special, lstrip, rstrip, single_word, normalized;
    bool ascii_strip; /* strip only what C's isspace calls space */
    bool outside;     /* the model does not know it */
    bool marker;      /* looks like markup: never matched in untrusted text */
};
struct pl_added_set {
    struct pl_tok_trie trie; /* values: index into added */
    bool any;
};

/* --- decoders --- */
enum pl_dec_kind {
    PL_DEC_BYTE_LEVEL,
    PL_DEC_BYTE_FALLBACK,
    PL_DEC_METASPACE,
    PL_DEC_REPLACE,
    PL_DEC_REPLACE_REGEX,
    PL_DEC_STRIP,
    PL_DEC_WORDPIECE,
    PL_DEC_BPE
};
struct pl_tok_dec {
    enum pl_dec_kind kind;
    struct pl_str a, b;
    struct pl_regex *re;
    size_t start, stop;
    bool flag; /* WORDPIECE: clean up; METASPACE: drop the marker of the first token */
};

/* What a token turns into, apart from rules for the first one. */
enum pl_piece_kind { PL_PIECE_TEXT, PL_PIECE_BYTE };

struct pl_tok_ctx; /* scratch of one encode call */

struct pl_tokenizer {
    struct pl_tok_vocab vocab; /* ids of the model, then pseudo symbols that only merges know */
    uint32_t real_count;       /* ids that exist for the outside: vocab.count without pseudo symbols */
    uint8_t *attr;             /* [real_count] PL_ATTR_* */
    struct pl_str *piece;      /* [real_count] decoded bytes */
    struct pl_tok_model model;
    struct pl_tok_norm *norms;
    size_t norm_count, norm_cap;
    struct pl_tok_pre *pres;
    size_t pre_count, pre_cap;
    struct pl_added *added;
    size_t added_count, added_cap;
    struct pl_added_set raw, normalized;
    struct pl_tok_dec *decs;
    size_t dec_count, dec_cap;
    bool literal_added; /* added tokens are spelled as they are stored (GGUF) */
    bool first_matters, per_byte_errors;
    bool join_spaces;         /* no decoder: tokens are joined with one space */
    struct pl_str lead_strip; /* removed once from the very start of decoded text */
    size_t lead_strip_max;
    struct pl_ids prefix, suffix; /* what add_special adds */
    bool raw_bytes;               /* the model takes invalid UTF-8 as it is (byte fallback) */
    int64_t bos, eos, unk, pad;
    struct pl_arena strings; /* patterns, replacements, pieces */
    pthread_mutex_t lock;
    struct pl_tok_ctx *idle;
};
#define PL_ATTR_SPECIAL 1u /* hidden in decoded text */
#define PL_ATTR_EOG     2u
#define PL_ATTR_BYTE    4u /* a <0xXX> token, decoded as that byte */
#define PL_ATTR_ADDED   8u
#define PL_ATTR_MARKER  16u /* added, not special, but looks like markup: plain text never becomes it */
#define PL_ATTR_OUTSIDE 32u /* added and unknown to the model */

/* A range of the working text. */
struct pl_word {
    size_t begin, end;
};
struct pl_words {
    struct pl_word *at;
    size_t len, cap;
};

#define PL_CACHE_SLOTS 8192u /* of 64 bytes */
struct pl_cache_slot {
    uint64_t hash;
    uint8_t len, count;
    char key[22];
    uint32_t ids[8];
};
_Static_assert(sizeof(struct pl_cache_slot) == 64, "a cache slot is one cache line");

struct pl_symbol {
    uint32_t id, prev, next, begin, end;
};
struct pl_heap_item {
    double key; /* smaller first */
    uint32_t pos, id, size;
};
struct pl_tok_ctx {
    struct pl_tok_ctx *next;
    struct pl_cache_slot *cache;
    struct pl_regex_scratch regex;
    struct pl_words words, spare;
    struct pl_tok_text a, b, clean;
    struct pl_symbol *sym;
    size_t sym_cap;
    struct pl_heap_item *heap;
    size_t heap_len, heap_cap;
    struct pl_buf tmp;
    struct pl_path_node {
        double score;
        uint32_t id;
        uint32_t from;
    } * path;
    size_t path_cap;
    struct pl_span *spans; /* untrusted spans after invalid UTF-8 grew */
    size_t spans_cap;
    struct pl_err *err;
};

#define PL_BLOOM_WORDS (1u << 16) /* of 64 bits */
void pl_tok_ctx_destroy_all(struct pl_tokenizer *t);

/* text buffers */
enum pl_status pl_tok_text_add(struct pl_tok_text *t, const char *s, size_t len, unsigned taint) PL_MUST_CHECK;
void pl_tok_text_clear(struct pl_tok_text *t, bool tracked);

/* norm.c: runs all normalizers over ctx->a (input and result). */
enum pl_status pl_tok_normalize(const struct pl_tokenizer *t, struct pl_tok_ctx *c) PL_MUST_CHECK;
/* pre.c: cuts ctx->a into ctx->words (may rewrite ctx->a); at_start: the piece begins the whole text. */
enum pl_status pl_tok_pretokenize(const struct pl_tokenizer *t, struct pl_tok_ctx *c, bool at_start) PL_MUST_CHECK;
/* model: appends the ids of one word */
enum pl_status pl_tok_model_word(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *word, size_t len,
                                 struct pl_ids *out) PL_MUST_CHECK;
enum pl_status pl_tok_bpe(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *w, size_t len,
                          struct pl_ids *out) PL_MUST_CHECK;
enum pl_status pl_tok_spm(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *w, size_t len,
                          struct pl_ids *out) PL_MUST_CHECK;
enum pl_status pl_tok_unigram(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *w, size_t len,
                              struct pl_ids *out) PL_MUST_CHECK;
enum pl_status pl_tok_plamo(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *w, size_t len,
                            struct pl_ids *out) PL_MUST_CHECK;
double pl_tok_plamo_score(double s); /* a vocabulary's score as the model counts it */
enum pl_status pl_tok_plamo_check(const struct pl_tokenizer *t, struct pl_err *err) PL_MUST_CHECK; /* all bytes are there */
enum pl_status pl_tok_wordpiece(const struct pl_tokenizer *t, struct pl_tok_ctx *c, const char *w, size_t len,
                                struct pl_ids *out) PL_MUST_CHECK;
enum pl_status pl_ids_add(struct pl_ids *ids, uint32_t id) PL_MUST_CHECK;

/* What the model itself finds under a text. */
static inline uint32_t pl_tok_model_find(const struct pl_tokenizer *t, const char *s, size_t len) {
    uint32_t id = pl_tok_vocab_find(&t->vocab, s, len);
    return id < t->real_count && (t->attr[id] & PL_ATTR_OUTSIDE) != 0 ? PL_TOK_NONE : id;
}

/* building */
enum pl_status pl_tokenizer_new(struct pl_tokenizer **out) PL_MUST_CHECK;
enum pl_status pl_tokenizer_finish(struct pl_tokenizer *t, struct pl_err *err) PL_MUST_CHECK; /* derives tables */
struct pl_tok_norm *pl_tok_add_norm(struct pl_tokenizer *t, enum pl_norm_kind kind);          /* NULL: no memory */
struct pl_tok_pre *pl_tok_add_pre(struct pl_tokenizer *t, enum pl_pre_kind kind);
struct pl_tok_dec *pl_tok_add_dec(struct pl_tokenizer *t, enum pl_dec_kind kind);
struct pl_added *pl_tok_add_added(struct pl_tokenizer *t, uint32_t id);
enum pl_status pl_tok_add_regex_split(struct pl_tokenizer *t, struct pl_str pattern, enum pl_split_behavior behavior,
                                      bool invert, struct pl_err *err) PL_MUST_CHECK;
bool pl_tok_keep(struct pl_tokenizer *t, struct pl_str s, struct pl_str *out); /* copies; false: no memory */
enum pl_status pl_tok_merges_reserve(struct pl_tok_model *m, size_t count) PL_MUST_CHECK;
void pl_tok_merge_put(struct pl_tok_model *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id, bool last_wins);
void pl_tok_merge_fetch(const struct pl_tok_model *m, uint32_t left, uint32_t right); /* will be put or looked for soon */
const struct pl_merge_slot *pl_tok_merge_find(const struct pl_tok_model *m, uint32_t left, uint32_t right);
enum pl_status pl_tok_set_charsmap(struct pl_tokenizer *t, struct pl_tok_norm *n, const void *blob, size_t len,
                                   struct pl_err *err) PL_MUST_CHECK;
bool pl_tok_is_marker(struct pl_str text);
bool pl_tok_eog_name(struct pl_str text); /* a token name that by convention ends a turn */
void pl_tok_mark_eog_by_name(struct pl_tokenizer *t);
int pl_tok_byte_token(struct pl_str text); /* the byte of a "<0xXX>" name, else -1 */

enum pl_status pl_tok_make_pieces(struct pl_tokenizer *t, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_tokenizer_from_gguf(const struct pl_file *f, struct pl_tokenizer **out, struct pl_err *err) PL_MUST_CHECK;

#endif
