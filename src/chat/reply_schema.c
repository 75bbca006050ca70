/* reply_schema.c - what a tool's schema says of a value that stands between tags: text as it is, or JSON. */
#include <string.h>

#include "base/mem.h"
#include "chat/reply.h"

enum { REFS_MAX = 16, DEPTH_MAX = 8, PARTS_MAX = 1024 };

/* Behind its references into the same document ("#/$defs/x"), as far as they can be followed; never NULL but for NULL. */
static const json_t *resolve(const json_t *document, const json_t *schema) {
    static const char *const places[] = {"$defs", "definitions"};
    for (int i = 0; i < REFS_MAX; i++) {
        const char *ref = json_string_value(json_object_get(schema, "$ref"));
        const json_t *all = json_object_get(schema, "allOf"), *next = NULL;
        if (json_array_size(all) == 1 && json_object_get(schema, "type") == NULL) next = json_array_get(all, 0);
        for (size_t k = 0; k < PL_COUNT_OF(places) && ref != NULL && ref[0] == '#' && ref[1] == '/'; k++) {
            size_t n = strlen(places[k]);
            if (strncmp(ref + 2, places[k], n) == 0 && ref[2 + n] == '/')
                next = json_object_get(json_object_get(document, places[k]), ref + 3 + n);
        }
        if (next == NULL) break;
        schema = next;
    }
    return schema;
}

struct seen {
    bool text, null, other;
    int parts; /* looked at: where references lead round, there would be no end */
};

static void see_type(const char *word, struct seen *s) {
    if (strcmp(word, "string") == 0)
        s->text = true;
    else if (strcmp(word, "null") == 0)
        s->null = true;
    else
        s->other = true;
}

static void see_value(const json_t *v, struct seen *s) {
    s->text |= json_is_string(v);
    s->null |= json_is_null(v);
    s->other |= !json_is_string(v) && !json_is_null(v);
}

static void see(const json_t *document, const json_t *schema, struct seen *s, int depth) {
    schema = resolve(document, schema);
    const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum");
    const json_t *only = json_object_get(schema, "const"), *any = json_object_get(schema, "anyOf");
    if (any == NULL) any = json_object_get(schema, "oneOf");
    if (s->other) return;
    if (json_is_string(type)) {
        see_type(json_string_value(type), s);
    } else if (json_array_size(type) > 0) {
        for (size_t i = 0; i < json_array_size(type); i++)
            if (json_is_string(json_array_get(type, i))) see_type(json_string_value(json_array_get(type, i)), s);
    } else if (json_array_size(values) > 0) {
        for (size_t i = 0; i < json_array_size(values); i++) see_value(json_array_get(values, i), s);
    } else if (only != NULL) {
        see_value(only, s);
    } else if (json_array_size(any) > 0 && depth < DEPTH_MAX && s->parts++ < PARTS_MAX) {
        for (size_t i = 0; i < json_array_size(any); i++) see(document, json_array_get(any, i), s, depth + 1);
    } else {
        s->other = true;
    }
}

enum pl_reply_value pl_reply_value(const json_t *document, const json_t *schema) {
    struct seen s = {0};
    see(document, schema, &s, 0);
    bool listed =
        json_is_array(json_object_get(resolve(document, schema), "type")); /* such a list: as text, whatever else */
    if (!s.text || (s.other && !listed)) return PL_REPLY_VALUE_JSON;
    return s.null ? PL_REPLY_VALUE_TEXT_OR_NULL : PL_REPLY_VALUE_TEXT;
}

const json_t *pl_reply_resolve(const json_t *document, const json_t *schema) { return resolve(document, schema); }
