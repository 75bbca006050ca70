/* constraint - a grammar over tokens: which of them may come next.
 *
 * The vocabulary is sorted once by the tokens' bytes, so that a mask walks each shared beginning once. A constraint belongs
 * to one request and one thread at a time; the vocabulary is immutable and shared. Tokens that end the text are allowed
 * exactly where the grammar accepts; other special tokens never, except those that mark calls, as the text they are. */
#ifndef PL_SAMPLE_CONSTRAINT_H
#define PL_SAMPLE_CONSTRAINT_H

#include "sample/grammar.h"
#include "token/token.h"

struct pl_constraint_vocab;
enum pl_status pl_constraint_vocab_create(const struct pl_tokenizer *t, struct pl_constraint_vocab **out,
                                          struct pl_err *err) PL_MUST_CHECK;
void pl_constraint_vocab_destroy(struct pl_constraint_vocab *v);

struct pl_constraint;
/* Takes the grammar over, on success only. after (may be NULL): nothing is constrained until the text has held it. */
enum pl_status pl_constraint_create(const struct pl_constraint_vocab *v, struct pl_grammar *g, const char *after,
                                    struct pl_constraint **out, struct pl_err *err) PL_MUST_CHECK;
void pl_constraint_destroy(struct pl_constraint *c);
enum pl_status pl_constraint_allows(struct pl_constraint *c, uint32_t id, bool *allowed) PL_MUST_CHECK;
/* Everything that may not come next becomes -inf. */
enum pl_status pl_constraint_mask(struct pl_constraint *c, float *logits, uint32_t vocab) PL_MUST_CHECK;
/* id was taken; it was allowed. */
enum pl_status pl_constraint_accept(struct pl_constraint *c, uint32_t id) PL_MUST_CHECK;

#endif
