/* schema_text - a string's pattern or format as a grammar expression of what stands between the quotes.
 *
 * Patterns: ECMAScript's syntax as far as it is regular: literals, ., classes with ranges and \d \w \s, groups, |, * + ?
 * {m,n}, ^ at the beginning and $ at the end of an alternative (without them anything may stand there). Refused by name:
 * references back, look-around, \b, \p. Characters are written as JSON has them. */
#ifndef PL_SAMPLE_SCHEMA_TEXT_H
#define PL_SAMPLE_SCHEMA_TEXT_H

#include "base/str.h"

/* bare: characters stand for themselves, as where a string has no quotes round it, and '<' is left out. */
enum pl_status pl_schema_pattern(const char *pattern, size_t len, bool bare, struct pl_buf *out,
                                 struct pl_err *err) PL_MUST_CHECK;
/* False: the format is not one that is enforced. */
bool pl_schema_format(const char *format, struct pl_buf *out);

#endif
