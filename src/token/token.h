/* token - text to token ids and back.
 *
 * Built from a model file (GGUF metadata or tokenizer.json). Immutable after creation: one tokenizer serves any number
 * of threads. Ids are exactly those of the model's own tokenizer (Hugging Face tokenizers, llama.cpp for GGUF).
 * An unknown pre-tokenizer, model type or normaliser is refused with the list of known ones, never guessed. */
#ifndef PL_TOKEN_TOKEN_H
#define PL_TOKEN_TOKEN_H

#include <stdint.h>

#include "base/str.h"
#include "file/file.h"

struct pl_tokenizer;

enum pl_status pl_tokenizer_create(const struct pl_file *f, struct pl_tokenizer **out, struct pl_err *err) PL_MUST_CHECK;
/* From parsed JSON: tokenizer.json (must be there), and, each may be NULL, tokenizer_config.json (names of bos, eos, unk,
 * pad), config.json and generation_config.json (ids that end a text). What pl_tokenizer_create does for a directory. */
enum pl_status pl_tokenizer_from_json(const json_t *tokenizer, const json_t *tokenizer_config, const json_t *config,
                                      const json_t *generation, struct pl_tokenizer **out, struct pl_err *err) PL_MUST_CHECK;
/* PLaMo 2's tokenizer.jsonl: an array of [token, score, type]. */
enum pl_status pl_tokenizer_from_lines(const json_t *lines, const json_t *tokenizer_config, const json_t *config,
                                       const json_t *generation, struct pl_tokenizer **out,
                                       struct pl_err *err) PL_MUST_CHECK;
void pl_tokenizer_destroy(struct pl_tokenizer *t);

uint32_t pl_tokenizer_vocab_size(const struct pl_tokenizer *t);
/* The token's bytes as they appear in text (special tokens: their name). False: no such id. */
bool pl_tokenizer_piece(const struct pl_tokenizer *t, uint32_t id, struct pl_str *out);
bool pl_tokenizer_is_special(const struct pl_tokenizer *t, uint32_t id); /* control tokens, hidden in decoded text */
bool pl_tokenizer_find(const struct pl_tokenizer *t, const char *text, size_t len,
                       uint32_t *id);                   /* exact vocabulary entry */
int64_t pl_tokenizer_bos(const struct pl_tokenizer *t); /* -1: none */
int64_t pl_tokenizer_eos(const struct pl_tokenizer *t);
int64_t pl_tokenizer_unk(const struct pl_tokenizer *t);
int64_t pl_tokenizer_pad(const struct pl_tokenizer *t);
bool pl_tokenizer_is_eog(const struct pl_tokenizer *t, uint32_t id); /* any token that ends a turn or the text */

/* A half-open range of bytes. */
struct pl_span {
    size_t begin, end;
};
/* A growing list of ids, owned by the caller; zero-initialise. */
struct pl_ids {
    uint32_t *data;
    size_t len, cap;
};
void pl_ids_deinit(struct pl_ids *ids);

struct pl_encode_options {
    bool add_special;                /* what the model adds by itself: BOS, EOS as its settings say */
    bool parse_special;              /* names of special tokens in the text become those tokens ... */
    const struct pl_span *untrusted; /* ... except where they touch one of these spans (sorted, disjoint): */
    size_t untrusted_count;          /* content that came from a user is only ever text. Tokens that were added without
                                        being special match always, save those that look like markup (<|x|>, [X], <x>
                                        but for plain HTML tags): they too match trusted bytes only. */
};
/* Appends to out. Any bytes are accepted (invalid UTF-8 goes through byte fallback or U+FFFD as the model's own
 * tokenizer does). Time is O(n log n). On failure out holds what it held before. */
enum pl_status pl_tokenizer_encode(const struct pl_tokenizer *t, const char *text, size_t len,
                                   const struct pl_encode_options *opt, struct pl_ids *out,
                                   struct pl_err *err) PL_MUST_CHECK;

/* Streaming decode: bytes that are no complete character yet are held back (at most 3 and a pending space rule);
 * flush gives U+FFFD for what never completed. Equal to decoding all ids at once. */
struct pl_decoder {
    const struct pl_tokenizer *tok;
    bool show_special;
    bool started;    /* set it after init when the ids continue a text: then no leading-space rule applies */
    bool owed_space; /* BPE decoders: a word ended, the space comes with the next token */
    uint8_t pending[8];
    uint8_t pending_len;
    size_t lead_left; /* leading characters that may still be stripped */
};
void pl_decoder_init(struct pl_decoder *d, const struct pl_tokenizer *t, bool show_special);
enum pl_status pl_decoder_push(struct pl_decoder *d, uint32_t id, struct pl_buf *out) PL_MUST_CHECK;
void pl_decoder_flush(struct pl_decoder *d, struct pl_buf *out);
enum pl_status pl_tokenizer_decode(const struct pl_tokenizer *t, const uint32_t *ids, size_t count, bool show_special,
                                   struct pl_buf *out) PL_MUST_CHECK;

#endif
