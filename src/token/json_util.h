/* json_util - careful reading of tokenizer.json: every member is checked for its type, errors say where. */
#ifndef PL_TOKEN_JSON_UTIL_H
#define PL_TOKEN_JSON_UTIL_H

#include <jansson.h>

#include "token/internal.h"

struct pl_json_ctx {
    struct pl_tokenizer *t;
    struct pl_err *err;
    const char *where; /* "normalizer", ... for messages */
    int depth;
};

/* Members; absent or null gives the default. A wrong type is PL_FORMAT. */
enum pl_status pl_tj_str(const struct pl_json_ctx *x, const json_t *o, const char *key, const char *dflt,
                         struct pl_str *out) PL_MUST_CHECK;
enum pl_status pl_tj_bool(const struct pl_json_ctx *x, const json_t *o, const char *key, bool dflt, bool *out) PL_MUST_CHECK;
enum pl_status pl_tj_size(const struct pl_json_ctx *x, const json_t *o, const char *key, size_t dflt, size_t max,
                          size_t *out) PL_MUST_CHECK;
/* {"String": s} or {"Regex": s} */
enum pl_status pl_tj_pattern(const struct pl_json_ctx *x, const json_t *o, struct pl_str *out, bool *is_regex) PL_MUST_CHECK;
enum pl_status pl_tj_type(const struct pl_json_ctx *x, const json_t *o, struct pl_str *out) PL_MUST_CHECK;
/* The refusal of a type, with the list of known ones. */
enum pl_status pl_tj_unknown(const struct pl_json_ctx *x, struct pl_str type, const char *known) PL_MUST_CHECK;
struct pl_str pl_tj_value(const json_t *s); /* of a string */

enum pl_status pl_tj_normalizer(struct pl_json_ctx *x, const json_t *o) PL_MUST_CHECK;
enum pl_status pl_tj_pre_tokenizer(struct pl_json_ctx *x, const json_t *o) PL_MUST_CHECK;
enum pl_status pl_tj_post_processor(struct pl_json_ctx *x, const json_t *o) PL_MUST_CHECK;
enum pl_status pl_tj_decoder(struct pl_json_ctx *x, const json_t *o) PL_MUST_CHECK;
enum pl_status pl_tj_model(struct pl_json_ctx *x, const json_t *o, const json_t *added) PL_MUST_CHECK;

/* bos, eos, pad, unk and what ends a text, from tokenizer_config.json and the others; after finish. */
void pl_tj_roles(struct pl_tokenizer *t, const json_t *tc, const json_t *config, const json_t *generation);

#endif
