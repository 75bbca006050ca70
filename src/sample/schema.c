/* schema.c - one rule per subschema, written as text: the grammar compiler checks and bounds what comes of it. */
#include "sample/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "sample/grammar.h"
#include "sample/schema_merge.h"
#include "sample/schema_number.h"
#include "sample/schema_text.h"

struct builder {
    struct pl_buf *out;
    const json_t *document;
    const char *name;
    json_t *refs; /* "#/..." -> rule name */
    uint32_t rules;
    struct pl_err *err;
};

void pl_schema_common(struct pl_buf *out) {
    pl_buf_add_c(out, "js-ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n"
                      "js-char ::= [^\"\\\\\\x00-\\x1F\\x7F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" js-u)\n"
                      "js-u ::= ([0-9a-cA-CefEF] [0-9a-fA-F]{3}) | [dD] [0-7] [0-9a-fA-F]{2} | "
                      "[dD] [89abAB] [0-9a-fA-F]{2} \"\\\\u\" [dD] [c-fC-F] [0-9a-fA-F]{2}\n"
                      "js-string ::= \"\\\"\" js-char* \"\\\"\"\n"
                      "js-natural ::= \"0\" | [1-9] [0-9]{0,15}\n"
                      "js-integer ::= \"-\"? js-natural\n"
                      "js-fraction ::= (\".\" [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?\n"
                      "js-number ::= js-integer js-fraction\n"
                      "js-boolean ::= \"true\" | \"false\"\n"
                      "js-value ::= js-object | js-array | js-string | js-number | js-boolean | \"null\"\n"
                      "js-object ::= \"{\" js-ws (js-member (\",\" js-ws js-member)*)? \"}\"\n"
                      "js-member ::= js-string js-ws \":\" js-ws js-value js-ws\n"
                      "js-array ::= \"[\" js-ws (js-value js-ws (\",\" js-ws js-value js-ws)*)? \"]\"\n");
}

void pl_schema_literal(struct pl_buf *out, const char *text, size_t len) {
    pl_buf_add_char(out, '"');
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            pl_buf_printf(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7F)
            pl_buf_printf(out, "\\x%02X", c);
        else
            pl_buf_add_char(out, (char)c);
    }
    pl_buf_add_char(out, '"');
}

static enum pl_status value_literal(struct builder *b, struct pl_buf *rule, const json_t *v) {
    char *text = pl_json_write(v, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text == NULL) PL_FAIL(b->err, PL_NO_MEMORY, "no memory for the schema");
    pl_schema_literal(rule, text, strlen(text));
    free(text);
    return PL_OK;
}

static enum pl_status fresh_name(struct builder *b, char out[96]) {
    if (b->rules == PL_SCHEMA_RULES_MAX)
        PL_FAIL(b->err, PL_LIMIT, "the schema is too large: more than %d parts", PL_SCHEMA_RULES_MAX);
    if (b->out->len > PL_GRAMMAR_TEXT_MAX) /* it would be refused in the end, of whatever size it is then */
        PL_FAIL(b->err, PL_LIMIT, "the schema is too large: its grammar has more than %d bytes", PL_GRAMMAR_TEXT_MAX);
    snprintf(out, 96, "%.70s-%u", b->name, ++b->rules);
    return PL_OK;
}

static void emit(struct builder *b, const char *name, struct pl_buf *rule) {
    b->out->failed |= rule->failed;
    pl_buf_printf(b->out, "%s ::= ", name);
    pl_buf_add(b->out, pl_buf_cstr(rule), rule->len);
    pl_buf_add_char(b->out, '\n');
}

static enum pl_status visit(struct builder *b, const json_t *s, const char *name, uint32_t depth);

/* A rule of its own for a subschema; its name is appended to `rule`. */
static enum pl_status sub(struct builder *b, const json_t *s, struct pl_buf *rule, uint32_t depth) {
    char name[96];
    PL_TRY(fresh_name(b, name));
    PL_TRY(visit(b, s, name, depth + 1));
    pl_buf_add_c(rule, name);
    return PL_OK;
}

/* ---------- keywords ---------- */

static bool is_annotation(const char *key) {
    static const char *const known[] = {"title",    "description", "default",    "examples",        "$schema",
                                        "$id",      "$comment",    "deprecated", "readOnly",        "writeOnly",
                                        "$defs",    "definitions", "format",     "discriminator",   "example",
                                        "nullable", "strict",      "$anchor",    "contentMediaType"};
    for (size_t i = 0; i < PL_COUNT_OF(known); i++)
        if (strcmp(key, known[i]) == 0) return true;
    return strncmp(key, "x-", 2) == 0;
}

static enum pl_status check_keywords(struct builder *b, const json_t *s) {
    static const char *const known[] = {"type",
                                        "properties",
                                        "required",
                                        "additionalProperties",
                                        "items",
                                        "prefixItems",
                                        "minItems",
                                        "maxItems",
                                        "enum",
                                        "const",
                                        "anyOf",
                                        "oneOf",
                                        "allOf",
                                        "$ref",
                                        "minLength",
                                        "pattern",
                                        "maxLength",
                                        "minimum",
                                        "maximum",
                                        "exclusiveMinimum",
                                        "exclusiveMaximum",
                                        "multipleOf"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)s, key, value) {
        bool ok = is_annotation(key);
        for (size_t i = 0; i < PL_COUNT_OF(known) && !ok; i++) ok = strcmp(key, known[i]) == 0;
        if (!ok) PL_FAIL(b->err, PL_INVALID, "the schema keyword '%.60s' is not supported", key);
    }
    return PL_OK;
}

static enum pl_status read_size(struct builder *b, const json_t *s, const char *key, int64_t fallback, int64_t *out) {
    const json_t *v = json_object_get(s, key);
    *out = fallback;
    if (v == NULL) return PL_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 4096)
        PL_FAIL(b->err, PL_INVALID, "the schema's %s is no integer from 0 to 4096", key);
    *out = json_integer_value(v);
    return PL_OK;
}

/* ---------- numbers and strings ---------- */

/* A string's text: between quotes, or bare. Nothing when the schema does not say anything about it. */
static enum pl_status text_rule(struct builder *b, const json_t *s, bool bare, struct pl_buf *rule) {
    const char *one =
        bare ? "[^<]" : "[^\"\\\\\\x00-\\x1F\\x7F]"; /* an escaped pair counts as one or two: valid either way */
    int64_t min, max;
    PL_TRY(read_size(b, s, "minLength", 0, &min));
    PL_TRY(read_size(b, s, "maxLength", -1, &max));
    if (max >= 0 && max < min) PL_FAIL(b->err, PL_INVALID, "the schema's maxLength is below its minLength");
    const json_t *pattern = json_object_get(s, "pattern"), *format = json_object_get(s, "format");
    if (pattern != NULL) {
        if (!json_is_string(pattern)) PL_FAIL(b->err, PL_INVALID, "the schema's pattern is no string");
        if (min > 0 || max >= 0)
            PL_FAIL(b->err, PL_INVALID,
                    "the schema's pattern beside minLength or maxLength is not supported: write the length into it");
        return pl_schema_pattern(json_string_value(pattern), json_string_length(pattern), bare, rule, b->err);
    }
    if (json_is_string(format) && min == 0 && max < 0 && pl_schema_format(json_string_value(format), rule)) return PL_OK;
    if (max == 0)
        pl_buf_add_c(rule, "\"\"");
    else if (max > 0)
        pl_buf_printf(rule, "%s{%lld,%lld}", one, (long long)min, (long long)max);
    else if (min > 0)
        pl_buf_printf(rule, "%s{%lld} %s*", one, (long long)min, bare ? one : "js-char");
    return PL_OK;
}

enum pl_status pl_schema_bare_text(const json_t *schema, struct pl_buf *out, struct pl_err *err) {
    struct builder b = {.out = out, .err = err};
    return text_rule(&b, schema, true, out);
}

static enum pl_status string_rule(struct builder *b, const json_t *s, struct pl_buf *rule) {
    struct pl_buf text = {0};
    enum pl_status st = text_rule(b, s, false, &text);
    if (text.len > 0)
        pl_buf_printf(rule, "\"\\\"\" %s \"\\\"\"", pl_buf_cstr(&text));
    else
        pl_buf_add_c(rule, "js-string");
    rule->failed |= text.failed;
    pl_buf_deinit(&text);
    return st;
}

/* ---------- arrays and objects ---------- */

static enum pl_status array_rule(struct builder *b, const json_t *s, struct pl_buf *rule, uint32_t depth) {
    const json_t *items = json_object_get(s, "items"), *prefix = json_object_get(s, "prefixItems");
    int64_t min, max;
    PL_TRY(read_size(b, s, "minItems", 0, &min));
    PL_TRY(read_size(b, s, "maxItems", -1, &max));
    if (max >= 0 && max < min) PL_FAIL(b->err, PL_INVALID, "the schema's maxItems is below its minItems");
    pl_buf_add_c(rule, "\"[\" js-ws ");
    if (json_is_array(prefix)) {
        size_t n = json_array_size(prefix);
        if ((size_t)min > n || (max >= 0 && (size_t)max < n))
            PL_FAIL(b->err, PL_INVALID, "minItems and maxItems beside prefixItems must allow exactly its items");
        for (size_t i = 0; i < n; i++) {
            if (i > 0) pl_buf_add_c(rule, "\",\" js-ws ");
            PL_TRY(sub(b, json_array_get(prefix, i), rule, depth));
            pl_buf_add_c(rule, " js-ws ");
        }
    } else if (max != 0) {
        struct pl_buf item = {0};
        enum pl_status st = PL_OK;
        if (items != NULL)
            st = sub(b, items, &item, depth);
        else
            pl_buf_add_c(&item, "js-value");
        if (min == 0) pl_buf_add_c(rule, "(");
        pl_buf_printf(rule, "%s js-ws", pl_buf_cstr(&item));
        if (max < 0)
            pl_buf_printf(rule, " (\",\" js-ws %s js-ws){%lld,}", pl_buf_cstr(&item), (long long)(min > 1 ? min - 1 : 0));
        else if (max > 1)
            pl_buf_printf(rule, " (\",\" js-ws %s js-ws){%lld,%lld}", pl_buf_cstr(&item), (long long)(min > 1 ? min - 1 : 0),
                          (long long)(max - 1));
        pl_buf_add_c(rule, min == 0 ? ")? " : " ");
        rule->failed |= item.failed;
        pl_buf_deinit(&item);
        PL_TRY(st);
    }
    pl_buf_add_c(rule, "\"]\"");
    return PL_OK;
}

enum pl_status pl_schema_required(const json_t *schema, json_t **out, struct pl_err *err) {
    const json_t *list = json_object_get(schema, "required");
    if (list != NULL && !json_is_array(list)) PL_FAIL(err, PL_INVALID, "the schema's required is no list");
    json_t *names = json_object();
    int bad = names == NULL;
    for (size_t i = 0; bad == 0 && i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name == NULL) {
            json_decref(names);
            PL_FAIL(err, PL_INVALID, "the schema's required holds something that is no string");
        }
        bad = json_object_set_new(names, name, json_true());
    }
    if (bad != 0) {
        json_decref(names);
        PL_FAIL(err, PL_NO_MEMORY, "no memory for the schema");
    }
    *out = names;
    return PL_OK;
}

/* "key" ":" value, as a rule. */
static enum pl_status member(struct builder *b, const char *key, const json_t *value, char name[96], uint32_t depth) {
    struct pl_buf rule = {0};
    json_t *text = json_string(key);
    enum pl_status st = fresh_name(b, name);
    if (st == PL_OK) st = value_literal(b, &rule, text);
    pl_buf_add_c(&rule, " js-ws \":\" js-ws ");
    if (st == PL_OK && value != NULL) st = sub(b, value, &rule, depth);
    if (value == NULL) pl_buf_add_c(&rule, "js-value");
    pl_buf_add_c(&rule, " js-ws");
    if (st == PL_OK) emit(b, name, &rule);
    pl_buf_deinit(&rule);
    json_decref(text);
    return st;
}

/* Rules from the last property to the first: `rest` follows when something was written (a comma is due), `first` when
 * nothing was. */
static enum pl_status member_chain(struct builder *b, const char *kv, bool required, char rest[96], char first[96]) {
    char next_rest[96], next_first[96];
    struct pl_buf rule = {0};
    PL_TRY(fresh_name(b, next_rest));
    PL_TRY(fresh_name(b, next_first));
    pl_buf_printf(&rule, "\",\" js-ws %s %s", kv, rest);
    if (!required) pl_buf_printf(&rule, " | %s", rest);
    emit(b, next_rest, &rule);
    pl_buf_clear(&rule);
    pl_buf_printf(&rule, "%s %s", kv, rest);
    if (!required) pl_buf_printf(&rule, " | %s", first);
    emit(b, next_first, &rule);
    pl_buf_deinit(&rule);
    memcpy(rest, next_rest, 96);
    memcpy(first, next_first, 96);
    return PL_OK;
}

static enum pl_status map_rule(struct builder *b, const json_t *value, struct pl_buf *rule, uint32_t depth) {
    char name[96];
    struct pl_buf m = {0};
    PL_TRY(fresh_name(b, name));
    pl_buf_add_c(&m, "js-string js-ws \":\" js-ws ");
    enum pl_status st = sub(b, value, &m, depth);
    pl_buf_add_c(&m, " js-ws");
    if (st == PL_OK) emit(b, name, &m);
    pl_buf_deinit(&m);
    pl_buf_printf(rule, "\"{\" js-ws (%s (\",\" js-ws %s)*)? \"}\"", name, name);
    return st;
}

/* The properties, then what is required and not described: any value. */
static enum pl_status members_rule(struct builder *b, json_t *properties, json_t *required, struct pl_buf *rule,
                                   uint32_t depth) {
    char rest[96], first[96], kv[96];
    struct pl_buf none = {0};
    PL_TRY(fresh_name(b, rest));
    emit(b, rest, &none);
    memcpy(first, rest, sizeof first);
    size_t n = 0;
    const char **keys = pl_alloc(json_object_size(properties) + json_object_size(required), sizeof *keys), *key;
    if (keys == NULL) PL_FAIL(b->err, PL_NO_MEMORY, "no memory for the schema");
    json_t *value;
    json_object_foreach(properties, key, value) keys[n++] = key;
    json_object_foreach(required, key, value) if (json_object_get(properties, key) == NULL) keys[n++] = key;
    enum pl_status st = PL_OK;
    while (n-- > 0 && st == PL_OK) {
        st = member(b, keys[n], json_object_get(properties, keys[n]), kv, depth);
        if (st == PL_OK) st = member_chain(b, kv, json_object_get(required, keys[n]) != NULL, rest, first);
    }
    pl_free((void *)keys);
    pl_buf_printf(rule, "\"{\" js-ws %s \"}\"", first);
    return st;
}

static enum pl_status object_rule(struct builder *b, const json_t *s, struct pl_buf *rule, uint32_t depth) {
    json_t *properties = json_object_get(s, "properties"), *required = NULL, *value;
    const json_t *extra = json_object_get(s, "additionalProperties");
    const char *key;
    if (properties != NULL && !json_is_object(properties))
        PL_FAIL(b->err, PL_INVALID, "the schema's properties are no object");
    PL_TRY(pl_schema_required(s, &required, b->err));
    enum pl_status st = PL_OK;
    json_object_foreach(required, key, value) {
        if (st != PL_OK || !json_is_false(extra) || json_object_get(properties, key) != NULL) continue;
        st = pl_err_set(b->err, __FILE__, __LINE__, PL_INVALID, "the schema requires '%.60s' and forbids it", key);
    }
    if (st == PL_OK && json_object_size(properties) + json_object_size(required) > 0)
        st = members_rule(b, properties, required, rule, depth);
    else if (st == PL_OK && json_is_object(extra))
        st = map_rule(b, extra, rule, depth);
    else if (st == PL_OK)
        pl_buf_add_c(rule, json_is_false(extra) || properties != NULL ? "\"{\" js-ws \"}\"" : "js-object");
    json_decref(required);
    return st;
}

/* ---------- the rest ---------- */

static enum pl_status alternatives(struct builder *b, const json_t *list, struct pl_buf *rule, uint32_t depth) {
    if (!json_is_array(list) || json_array_size(list) == 0)
        PL_FAIL(b->err, PL_INVALID, "the schema's anyOf, oneOf or allOf is no list of schemas");
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (i > 0) pl_buf_add_c(rule, " | ");
        PL_TRY(sub(b, json_array_get(list, i), rule, depth));
    }
    return PL_OK;
}

/* "#", "#/a/b" with ~0 and ~1; one rule for each target, so that recursion works. */
static enum pl_status ref_rule(struct builder *b, const json_t *ref, struct pl_buf *rule, uint32_t depth) {
    const char *path = json_string_value(ref);
    if (path == NULL || path[0] != '#' || (path[1] != '/' && path[1] != '\0'))
        PL_FAIL(b->err, PL_INVALID, "the schema's $ref is '%.100s', expected a reference into the same document (#/...)",
                path == NULL ? "" : path);
    const json_t *known = json_object_get(b->refs, path);
    if (known != NULL) {
        pl_buf_add_c(rule, json_string_value(known));
        return PL_OK;
    }
    const json_t *at = pl_schema_resolve(b->document, path);
    if (at == NULL) PL_FAIL(b->err, PL_INVALID, "the schema's $ref '%.100s' leads nowhere", path);
    char name[96];
    PL_TRY(fresh_name(b, name));
    if (json_object_set_new(b->refs, path, json_string(name)) != 0)
        PL_FAIL(b->err, PL_NO_MEMORY, "no memory for the schema");
    pl_buf_add_c(rule, name);
    return visit(b, at, name, depth + 1);
}

static enum pl_status typed(struct builder *b, const json_t *s, const char *type, struct pl_buf *rule, uint32_t depth) {
    if (strcmp(type, "object") == 0) return object_rule(b, s, rule, depth);
    if (strcmp(type, "array") == 0) return array_rule(b, s, rule, depth);
    if (strcmp(type, "string") == 0) return string_rule(b, s, rule);
    bool number = strcmp(type, "integer") == 0 || strcmp(type, "number") == 0;
    if (number && json_object_get(s, "multipleOf") != NULL)
        return pl_schema_multiple(s, strcmp(type, "integer") == 0, rule, b->err);
    if (strcmp(type, "integer") == 0) return pl_schema_integer(s, rule, b->err);
    if (strcmp(type, "number") == 0) return pl_schema_number(s, rule, b->err);
    if (strcmp(type, "boolean") != 0 && strcmp(type, "null") != 0)
        PL_FAIL(b->err, PL_INVALID, "the schema's type '%.40s' is unknown", type);
    pl_buf_add_c(rule, strcmp(type, "null") == 0 ? "\"null\"" : "js-boolean");
    return PL_OK;
}

static enum pl_status literals(struct builder *b, const json_t *list, struct pl_buf *rule) {
    if (!json_is_array(list) || json_array_size(list) == 0)
        PL_FAIL(b->err, PL_INVALID, "the schema's enum is no list of values");
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (i > 0) pl_buf_add_c(rule, " | ");
        PL_TRY(value_literal(b, rule, json_array_get(list, i)));
    }
    return PL_OK;
}

/* Several types: each in parentheses of its own. */
static enum pl_status types(struct builder *b, const json_t *s, const json_t *list, struct pl_buf *rule, uint32_t depth) {
    if (json_array_size(list) == 0) PL_FAIL(b->err, PL_INVALID, "the schema's type is no string or list of strings");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *type = json_string_value(json_array_get(list, i));
        if (type == NULL) PL_FAIL(b->err, PL_INVALID, "the schema's type is no string or list of strings");
        pl_buf_add_c(rule, i > 0 ? " | (" : "(");
        PL_TRY(typed(b, s, type, rule, depth));
        pl_buf_add_c(rule, ")");
    }
    return PL_OK;
}

/* A keyword beside `key` that says more than an annotation does; NULL: there is none. */
static const char *sibling(const json_t *s, const char *key, const char *but) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)s, name, value) {
        (void)value;
        if (!is_annotation(name) && strcmp(name, key) != 0 && strcmp(name, but) != 0) return name;
    }
    return NULL;
}

/* What holds together becomes one schema first. */
static enum pl_status merged(struct builder *b, const json_t *s, struct pl_buf *rule, uint32_t depth) {
    json_t *one = NULL;
    PL_TRY(pl_schema_merge(b->document, s, &one, b->err));
    enum pl_status st = sub(b, one, rule, depth);
    json_decref(one);
    return st;
}

static enum pl_status any_of(struct builder *b, const json_t *s, const char *key, struct pl_buf *rule, uint32_t depth) {
    const json_t *list = json_object_get(s, key);
    if (sibling(s, key, key) == NULL || json_array_size(list) == 0) return alternatives(b, list, rule, depth);
    json_t *rest = json_copy((json_t *)(uintptr_t)s);
    json_object_del(rest, key);
    enum pl_status st = PL_OK;
    for (size_t i = 0; i < json_array_size(list) && st == PL_OK; i++) { /* what stands beside them holds for each */
        json_t *both = json_pack("{s:[O, O]}", "allOf", rest, json_array_get(list, i));
        if (i > 0) pl_buf_add_c(rule, " | ");
        st = both == NULL ? pl_err_set(b->err, __FILE__, __LINE__, PL_NO_MEMORY, "no memory for the schema")
                          : merged(b, both, rule, depth);
        json_decref(both);
    }
    json_decref(rest);
    return st;
}

static bool is_of_type(const json_t *v, const json_t *type) {
    for (size_t i = 0; i < json_array_size(type); i++)
        if (is_of_type(v, json_array_get(type, i))) return true;
    const char *word = json_string_value(type);
    if (type == NULL) return true;
    if (word == NULL) return false;
    switch (json_typeof(v)) {
    case JSON_OBJECT: return strcmp(word, "object") == 0;
    case JSON_ARRAY: return strcmp(word, "array") == 0;
    case JSON_STRING: return strcmp(word, "string") == 0;
    case JSON_INTEGER: return strcmp(word, "integer") == 0 || strcmp(word, "number") == 0;
    case JSON_REAL: return strcmp(word, "number") == 0;
    case JSON_TRUE:
    case JSON_FALSE: return strcmp(word, "boolean") == 0;
    case JSON_NULL: break;
    }
    return strcmp(word, "null") == 0;
}

/* The values of an enum (a const is one of one) that the type beside it allows. */
static enum pl_status values(struct builder *b, const json_t *s, const char *key, struct pl_buf *rule) {
    const json_t *list = json_object_get(s, key), *type = json_object_get(s, "type");
    const char *other = sibling(s, key, "type");
    if (other != NULL) PL_FAIL(b->err, PL_INVALID, "the schema keyword '%.60s' beside '%s' is not supported", other, key);
    json_t *kept = json_array();
    if (strcmp(key, "const") == 0 && is_of_type(list, type)) json_array_append(kept, (json_t *)(uintptr_t)list);
    for (size_t i = 0; strcmp(key, "enum") == 0 && i < json_array_size(list); i++)
        if (is_of_type(json_array_get(list, i), type)) json_array_append(kept, json_array_get(list, i));
    enum pl_status st = literals(b, kept, rule);
    json_decref(kept);
    return st;
}

/* Where no type is given what is said of numbers or texts tells it; the schema would allow others too. */
static const char *implied_type(const json_t *s) {
    static const char *const numbers[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
                             *const texts[] = {"minLength", "maxLength", "pattern"},
                             *const lists[] = {"items", "prefixItems", "minItems", "maxItems"};
    if (json_object_get(s, "properties") || json_object_get(s, "required") || json_object_get(s, "additionalProperties"))
        return "object";
    for (size_t i = 0; i < PL_COUNT_OF(lists); i++)
        if (json_object_get(s, lists[i]) != NULL) return "array";
    for (size_t i = 0; i < PL_COUNT_OF(texts); i++)
        if (json_object_get(s, texts[i]) != NULL) return "string";
    for (size_t i = 0; i < PL_COUNT_OF(numbers); i++)
        if (json_object_get(s, numbers[i]) != NULL) return "number";
    return NULL;
}

static enum pl_status body(struct builder *b, const json_t *s, struct pl_buf *rule, uint32_t depth) {
    const json_t *all = json_object_get(s, "allOf"), *ref = json_object_get(s, "$ref"), *v;
    if (all != NULL && json_array_size(all) == 1 && sibling(s, "allOf", "allOf") == NULL)
        return alternatives(b, all, rule, depth);
    if (all != NULL || (ref != NULL && sibling(s, "$ref", "$ref") != NULL)) return merged(b, s, rule, depth);
    if (ref != NULL) return ref_rule(b, ref, rule, depth);
    if (json_object_get(s, "const") != NULL) return values(b, s, "const", rule);
    if (json_object_get(s, "enum") != NULL) return values(b, s, "enum", rule);
    if (json_object_get(s, "anyOf") != NULL) return any_of(b, s, "anyOf", rule, depth);
    if (json_object_get(s, "oneOf") != NULL) return any_of(b, s, "oneOf", rule, depth);
    v = json_object_get(s, "type");
    if (json_is_string(v)) return typed(b, s, json_string_value(v), rule, depth);
    if (v != NULL) return types(b, s, v, rule, depth);
    const char *type = implied_type(s);
    if (type != NULL) return typed(b, s, type, rule, depth);
    pl_buf_add_c(rule, "js-value");
    return PL_OK;
}

static enum pl_status visit(struct builder *b, const json_t *s, const char *name, uint32_t depth) {
    struct pl_buf rule = {0};
    enum pl_status st = PL_OK;
    if (depth > PL_SCHEMA_DEPTH_MAX) PL_FAIL(b->err, PL_LIMIT, "the schema is nested deeper than %d", PL_SCHEMA_DEPTH_MAX);
    if (json_is_true(s)) {
        pl_buf_add_c(&rule, "js-value");
    } else if (!json_is_object(s)) {
        PL_FAIL(b->err, PL_INVALID, "the schema has a part that is no object");
    } else {
        st = check_keywords(b, s);
        if (st == PL_OK) st = body(b, s, &rule, depth);
    }
    if (st == PL_OK) emit(b, name, &rule);
    pl_buf_deinit(&rule);
    return st;
}

enum pl_status pl_schema_rules(const json_t *schema, const char *name, struct pl_buf *out, struct pl_err *err) {
    if (schema == NULL) {
        pl_buf_printf(out, "%s ::= js-object\n", name);
        return PL_OK;
    }
    struct builder b = {.out = out, .document = schema, .name = name, .refs = json_object(), .err = err};
    if (b.refs == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for the schema");
    enum pl_status st = visit(&b, schema, name, 0);
    json_decref(b.refs);
    if (st == PL_OK && !pl_buf_ok(out)) PL_FAIL(err, PL_NO_MEMORY, "no memory for the schema");
    return st;
}
