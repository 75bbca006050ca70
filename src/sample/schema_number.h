/* schema_number - bounds of numbers as grammar expressions: digit by digit, so that every number that is accepted lies
 * within them. */
#ifndef PL_SAMPLE_SCHEMA_NUMBER_H
#define PL_SAMPLE_SCHEMA_NUMBER_H

#include <jansson.h>

#include "base/str.h"

/* Expressions for the schema's type integer or number with its minimum, maximum, exclusiveMinimum and exclusiveMaximum:
 * plain decimals of up to 16 digits before and after the point, without exponents when there is a bound. PL_INVALID says
 * what a bound may be. */
enum pl_status pl_schema_integer(const json_t *schema, struct pl_buf *out, struct pl_err *err) PL_MUST_CHECK;
/* With its multipleOf, which says itself where it cannot be written. (schema_multiple.c) */
enum pl_status pl_schema_multiple(const json_t *schema, bool integer, struct pl_buf *out, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_schema_number(const json_t *schema, struct pl_buf *out, struct pl_err *err) PL_MUST_CHECK;

#endif
