/* schema - JSON schema to GBNF rules (grammar.h). Every text the rules accept is valid under the schema.
 *
 * Enforced: type (one or a list), properties, required, additionalProperties, items, prefixItems, minItems, maxItems, enum,
 * const, anyOf, oneOf (as anyOf), allOf (schema_merge.h), $ref into the same document, minLength, maxLength, pattern, the
 * formats date, time, date-time, duration, uuid, ipv4, ipv6, hostname and email (schema_text.h), minimum, maximum,
 * exclusiveMinimum, exclusiveMaximum, multipleOf (schema_number.h). Objects list their properties in the schema's order.
 * Annotations (title, description, default, examples, other formats, ..) are passed over; every other keyword is refused by
 * name, as are schemas beyond the limits.
 */
#ifndef PL_SAMPLE_SCHEMA_H
#define PL_SAMPLE_SCHEMA_H

#include <jansson.h>

#include "base/str.h"

enum { PL_SCHEMA_DEPTH_MAX = 64, PL_SCHEMA_RULES_MAX = 8192 };

/* Appends rules; the one named `name` accepts the schema's values, helpers are named <name>-<number>. schema may be NULL:
 * any JSON object. */
enum pl_status pl_schema_rules(const json_t *schema, const char *name, struct pl_buf *out, struct pl_err *err) PL_MUST_CHECK;
/* Appends an expression of what a schema of strings allows where strings stand without quotes, '<' left out; nothing when
 * it says nothing of them. */
enum pl_status pl_schema_bare_text(const json_t *schema, struct pl_buf *out, struct pl_err *err) PL_MUST_CHECK;
/* The names that a schema requires, each once and in its order: the keys of a new object. Looked up in a large list one by
 * one they would take as long as the list is, squared. */
enum pl_status pl_schema_required(const json_t *schema, json_t **out, struct pl_err *err) PL_MUST_CHECK;
/* The rules that all schemas share; once per grammar. */
void pl_schema_common(struct pl_buf *out);
/* A GBNF literal of any bytes that are UTF-8, with its quotes. */
void pl_schema_literal(struct pl_buf *out, const char *text, size_t len);

#endif
