#include "token/json_util.h"

struct pl_str pl_tj_value(const json_t *s) {
    return (struct pl_str){json_string_value(s), json_string_length(s)};
}

static enum pl_status wrong(const struct pl_json_ctx *x, const char *key, const char *expected) {
    PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: %s: '%s' has the wrong type: expected %s", x->where, key, expected);
}

enum pl_status pl_tj_str(const struct pl_json_ctx *x, const json_t *o, const char *key, const char *dflt,
                         struct pl_str *out) {
    const json_t *v = json_object_get(o, key);
    if (v == NULL || json_is_null(v)) {
        if (dflt == NULL)
            PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: %s: '%s' is missing: expected a string", x->where, key);
        *out = pl_str_from(dflt);
        return PL_OK;
    }
    if (!json_is_string(v)) return wrong(x, key, "a string");
    *out = pl_tj_value(v);
    return PL_OK;
}

enum pl_status pl_tj_bool(const struct pl_json_ctx *x, const json_t *o, const char *key, bool dflt, bool *out) {
    const json_t *v = json_object_get(o, key);
    if (v != NULL && !json_is_null(v) && !json_is_boolean(v)) return wrong(x, key, "true or false");
    *out = v == NULL || json_is_null(v) ? dflt : json_is_true(v);
    return PL_OK;
}

enum pl_status pl_tj_size(const struct pl_json_ctx *x, const json_t *o, const char *key, size_t dflt, size_t max,
                          size_t *out) {
    const json_t *v = json_object_get(o, key);
    *out = dflt;
    if (v == NULL || json_is_null(v)) return PL_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || (json_int_t)max < json_integer_value(v))
        return wrong(x, key, "a whole number in range");
    *out = (size_t)json_integer_value(v);
    return PL_OK;
}

enum pl_status pl_tj_pattern(const struct pl_json_ctx *x, const json_t *o, struct pl_str *out, bool *is_regex) {
    const json_t *p = json_object_get(o, "pattern"), *s = json_object_get(p, "String"), *r = json_object_get(p, "Regex");
    if (!json_is_string(s) && !json_is_string(r))
        PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: %s: 'pattern': expected {\"String\": text} or {\"Regex\": text}",
                x->where);
    *is_regex = !json_is_string(s);
    *out = pl_tj_value(*is_regex ? r : s);
    return PL_OK;
}

enum pl_status pl_tj_type(const struct pl_json_ctx *x, const json_t *o, struct pl_str *out) {
    if (!json_is_object(o)) PL_FAIL(x->err, PL_FORMAT, "tokenizer.json: %s: expected an object", x->where);
    if (x->depth > 16) PL_FAIL(x->err, PL_LIMIT, "tokenizer.json: %s: sequences nest more than 16 deep", x->where);
    return pl_tj_str(x, o, "type", NULL, out);
}

enum pl_status pl_tj_unknown(const struct pl_json_ctx *x, struct pl_str type, const char *known) {
    PL_FAIL(x->err, PL_UNSUPPORTED, "tokenizer.json: %s of type '%.*s' is not known: expected one of %s", x->where,
            (int)PL_MIN(type.len, (size_t)60), type.data, known);
}
