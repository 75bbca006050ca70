#include "sample/schema_merge.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"

enum { DEPTH_MAX = 16 };

const json_t *pl_schema_resolve(const json_t *document, const char *path) {
    const json_t *at = document;
    for (const char *p = path + 1; *p == '/' && at != NULL;) {
        struct pl_buf part = {0};
        for (p++; *p != '\0' && *p != '/'; p++) {
            bool tilde = p[0] == '~' && (p[1] == '0' || p[1] == '1');
            pl_buf_add_char(&part, tilde ? (p[1] == '0' ? '~' : '/') : *p);
            p += tilde;
        }
        int64_t index = 0;
        if (json_is_array(at))
            at = pl_parse_i64(pl_buf_cstr(&part), 0, INT32_MAX, &index) ? json_array_get(at, (size_t)index) : NULL;
        else
            at = json_object_get(at, pl_buf_cstr(&part));
        pl_buf_deinit(&part);
    }
    return at;
}

struct merge {
    const json_t *document;
    struct pl_err *err;
};

static enum pl_status join(const struct merge *m, json_t *into, const json_t *from, uint32_t depth);

static enum pl_status no_memory(const struct merge *m) { PL_FAIL(m->err, PL_NO_MEMORY, "no memory for the schema"); }

static enum pl_status refuse(const struct merge *m, const char *key) {
    PL_FAIL(m->err, PL_INVALID, "the schema keyword '%.60s' stands in several parts of an allOf and cannot be joined", key);
}

/* ---------- one keyword ---------- */

/* Values are looked up by their text: a list may have a million of them. */
static char *text_of(const json_t *v) { return json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS); }

static json_t *set_of(const json_t *list) {
    json_t *set = json_object();
    for (size_t i = 0; i < json_array_size(list); i++) {
        char *text = text_of(json_array_get(list, i));
        if (text == NULL || json_object_set_new(set, text, json_true()) != 0) {
            json_decref(set);
            set = NULL;
        }
        free(text);
    }
    return set;
}

static bool holds(const json_t *set, const json_t *v) {
    char *text = text_of(v);
    bool found = text != NULL && json_object_get(set, text) != NULL;
    free(text);
    return found;
}

static json_t *as_list(const json_t *v) {
    json_t *own = (json_t *)(uintptr_t)v;
    return json_is_array(v) ? json_incref(own) : json_pack("[O]", own);
}

/* What both lists hold. Every integer is a number. */
static json_t *in_both(const json_t *a, const json_t *b, bool types) {
    json_t *left = as_list(a), *list = as_list(b), *right = set_of(list), *out = right == NULL ? NULL : json_array(),
           *number = json_string("number"), *integer = json_string("integer");
    for (size_t i = 0; out != NULL && i < json_array_size(left); i++) {
        json_t *v = json_array_get(left, i);
        if (holds(right, v) || (types && json_equal(v, integer) && holds(right, number)))
            json_array_append(out, v);
        else if (types && json_equal(v, number) && holds(right, integer))
            json_array_append(out, integer);
    }
    json_decref(left);
    json_decref(list);
    json_decref(right);
    json_decref(number);
    json_decref(integer);
    return out;
}

/* 1: the larger holds; -1: the smaller; 0: it is no bound. */
static int bound_side(const char *key) {
    static const char *const low[] = {"minimum", "exclusiveMinimum", "minLength", "minItems"}, *const high[] = {
                                                                                                   "maximum",
                                                                                                   "exclusiveMaximum",
                                                                                                   "maxLength", "maxItems"};
    for (size_t i = 0; i < PL_COUNT_OF(low); i++) {
        if (strcmp(key, low[i]) == 0) return 1;
        if (strcmp(key, high[i]) == 0) return -1;
    }
    return 0;
}

static enum pl_status join_cut(const struct merge *m, json_t *into, const char *key, const json_t *a, const json_t *b) {
    json_t *both = in_both(a, b, strcmp(key, "type") == 0);
    if (both == NULL) return no_memory(m);
    if (json_array_size(both) == 0) {
        json_decref(both);
        PL_FAIL(m->err, PL_INVALID, "the parts of the schema's allOf allow nothing together: '%.60s'", key);
    }
    bool one = strcmp(key, "type") == 0 && json_array_size(both) == 1;
    json_t *value = one ? json_incref(json_array_get(both, 0)) : json_incref(both);
    json_decref(both);
    return json_object_set_new(into, key, value) == 0 ? PL_OK : no_memory(m);
}

/* Both schemas hold for one property or item. */
static enum pl_status join_schemas(const struct merge *m, json_t *into, const char *key, const json_t *a, const json_t *b,
                                   uint32_t depth) {
    json_t *both = json_pack("{s:[O, O]}", "allOf", (json_t *)(uintptr_t)a, (json_t *)(uintptr_t)b), *one = json_object();
    enum pl_status st = both == NULL || one == NULL ? no_memory(m) : join(m, one, both, depth + 1);
    if (st == PL_OK && json_object_set(into, key, one) != 0) st = no_memory(m);
    json_decref(both);
    json_decref(one);
    return st;
}

static enum pl_status join_properties(const struct merge *m, json_t *into, const json_t *a, const json_t *b,
                                      uint32_t depth) {
    const char *key;
    json_t *value, *all = json_copy((json_t *)(uintptr_t)a);
    enum pl_status st = all == NULL ? no_memory(m) : PL_OK;
    json_object_foreach((json_t *)(uintptr_t)b, key, value) {
        const json_t *has = json_object_get(a, key);
        if (st == PL_OK && has != NULL && !json_equal(has, value)) st = join_schemas(m, all, key, has, value, depth);
        if (st == PL_OK && has == NULL && json_object_set(all, key, value) != 0) st = no_memory(m);
    }
    if (st == PL_OK && json_object_set(into, "properties", all) != 0) st = no_memory(m);
    json_decref(all);
    return st;
}

static enum pl_status join_required(const struct merge *m, json_t *into, const json_t *a, const json_t *b) {
    json_t *all = json_copy((json_t *)(uintptr_t)a), *known = set_of(a);
    bool failed = all == NULL || known == NULL;
    for (size_t i = 0; !failed && i < json_array_size(b); i++)
        if (!holds(known, json_array_get(b, i))) failed = json_array_append(all, json_array_get(b, i)) != 0;
    json_decref(known);
    if (failed) json_decref(all);
    if (failed) return no_memory(m);
    return json_object_set_new(into, "required", all) == 0 ? PL_OK : no_memory(m);
}

static bool is_note(const char *key) {
    static const char *const notes[] = {"title",       "description", "default",  "examples",  "example",
                                        "$comment",    "deprecated",  "readOnly", "writeOnly", "$defs",
                                        "definitions", "$id",         "$schema",  "nullable"};
    for (size_t i = 0; i < PL_COUNT_OF(notes); i++)
        if (strcmp(key, notes[i]) == 0) return true;
    return false;
}

static enum pl_status join_keyword(const struct merge *m, json_t *into, const char *key, json_t *value, uint32_t depth) {
    const json_t *has = json_object_get(into, key);
    int side = bound_side(key);
    if (has == NULL) return json_object_set(into, key, value) == 0 ? PL_OK : no_memory(m);
    if (json_equal(has, value) || is_note(key)) return PL_OK;
    if (strcmp(key, "type") == 0 || strcmp(key, "enum") == 0) return join_cut(m, into, key, has, value);
    if (strcmp(key, "properties") == 0 && json_is_object(has) && json_is_object(value))
        return join_properties(m, into, has, value, depth);
    if (strcmp(key, "required") == 0 && json_is_array(has) && json_is_array(value))
        return join_required(m, into, has, value);
    if (strcmp(key, "items") == 0) return join_schemas(m, into, key, has, value, depth);
    if (side == 0 || !json_is_number(has) || !json_is_number(value)) return refuse(m, key);
    bool tighter = (json_number_value(value) - json_number_value(has)) * side > 0;
    return !tighter || json_object_set(into, key, value) == 0 ? PL_OK : no_memory(m);
}

/* ---------- whole schemas ---------- */

/* A part that allows no other properties than its own speaks of those of the other parts too. */
static enum pl_status check_closed(const struct merge *m, const json_t *into, const json_t *part) {
    const json_t *extra = json_object_get(part, "additionalProperties"), *own = json_object_get(part, "properties");
    const char *key;
    json_t *value;
    if (extra == NULL || json_is_true(extra)) return PL_OK;
    json_object_foreach(json_object_get(into, "properties"), key, value) if (json_object_get(own, key) == NULL) {
        (void)value;
        PL_FAIL(
            m->err, PL_INVALID,
            "the schema keyword 'additionalProperties' in a part of an allOf forbids '%.60s' of another part: write them "
            "as one object",
            key);
    }
    return PL_OK;
}

static enum pl_status join(const struct merge *m, json_t *into, const json_t *from, uint32_t depth) {
    const json_t *ref = json_object_get(from, "$ref"), *parts = json_object_get(from, "allOf");
    const char *key;
    json_t *value;
    if (depth > DEPTH_MAX) PL_FAIL(m->err, PL_LIMIT, "the schema keyword 'allOf' is nested deeper than %d", DEPTH_MAX);
    if (json_is_true(from)) return PL_OK;
    if (!json_is_object(from)) PL_FAIL(m->err, PL_INVALID, "the schema's allOf has a part that is no object");
    if (ref != NULL) {
        const char *path = json_string_value(ref);
        const json_t *to = path != NULL && path[0] == '#' ? pl_schema_resolve(m->document, path) : NULL;
        if (to == NULL) PL_FAIL(m->err, PL_INVALID, "the schema's $ref '%.100s' leads nowhere", path == NULL ? "" : path);
        PL_TRY(join(m, into, to, depth + 1));
    }
    if (parts != NULL && (!json_is_array(parts) || json_array_size(parts) == 0))
        PL_FAIL(m->err, PL_INVALID, "the schema's anyOf, oneOf or allOf is no list of schemas");
    for (size_t i = 0; i < json_array_size(parts); i++) PL_TRY(join(m, into, json_array_get(parts, i), depth + 1));
    json_object_foreach((json_t *)(uintptr_t)from, key, value) if (strcmp(key, "allOf") != 0 && strcmp(key, "$ref") != 0)
        PL_TRY(join_keyword(m, into, key, value, depth));
    return PL_OK;
}

/* Once everything is joined, every part that is closed must know all properties. */
static enum pl_status check_parts(const struct merge *m, const json_t *into, const json_t *part, uint32_t depth) {
    const json_t *parts = json_object_get(part, "allOf");
    const char *path = json_string_value(json_object_get(part, "$ref"));
    if (depth > DEPTH_MAX) return PL_OK;
    PL_TRY(check_closed(m, into, part));
    if (path != NULL) PL_TRY(check_parts(m, into, pl_schema_resolve(m->document, path), depth + 1));
    for (size_t i = 0; i < json_array_size(parts); i++) PL_TRY(check_parts(m, into, json_array_get(parts, i), depth + 1));
    return PL_OK;
}

enum pl_status pl_schema_merge(const json_t *document, const json_t *schema, json_t **out, struct pl_err *err) {
    struct merge m = {document, err};
    json_t *into = json_object();
    enum pl_status st = into == NULL ? no_memory(&m) : join(&m, into, schema, 0);
    if (st == PL_OK) st = check_parts(&m, into, schema, 0);
    if (st == PL_OK)
        *out = into;
    else
        json_decref(into);
    return st;
}
