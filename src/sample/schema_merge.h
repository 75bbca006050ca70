/* schema_merge - allOf: several schemas that hold together as one, where that can be said keyword by keyword. */
#ifndef PL_SAMPLE_SCHEMA_MERGE_H
#define PL_SAMPLE_SCHEMA_MERGE_H

#include <jansson.h>

#include "base/status.h"

/* Where a local reference leads; NULL: nowhere. */
const json_t *pl_schema_resolve(const json_t *document, const char *path);
/* A schema without allOf that says what `schema`, which has one, says: types and enums cut, bounds the tighter one,
 * properties and required joined. PL_INVALID names the keyword that does not join. The result is the caller's. */
enum pl_status pl_schema_merge(const json_t *document, const json_t *schema, json_t **out, struct pl_err *err) PL_MUST_CHECK;

#endif
