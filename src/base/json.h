/* json - jansson's values, read and written so that any allocation may fail.
 *
 * jansson's own reader goes on when the buffer of a string could not grow and then copies past its end, and its writer
 * leaves the name of a member out. Values are therefore read here, and every allocation that jansson asks for is watched:
 * what was made or written while one failed is not whole and must be thrown away. A program that gave jansson allocation
 * functions of its own keeps them, and loses the watch. */
#ifndef PL_BASE_JSON_H
#define PL_BASE_JSON_H

#include <jansson.h>

#include "base/status.h"

struct pl_json_fault {
    size_t at; /* bytes read */
    int line;
    bool no_memory;
    char text[120];
};
/* The one value of a text (RFC 8259, UTF-8, whole); NULL when it is none, *why says so (it may be NULL). flags are
 * jansson's: JSON_REJECT_DUPLICATES, JSON_DECODE_ANY (else an array or an object), JSON_ALLOW_NUL (in strings, never in
 * names). */
json_t *pl_json_read(const char *data, size_t len, size_t flags, struct pl_json_fault *why) PL_MUST_CHECK;
/* json_dumps; NULL, too, when a part of it was lost. */
char *pl_json_write(const json_t *value, size_t flags) PL_MUST_CHECK;

/* Between the two, on one thread: did an allocation fail that JSON asked for? */
void pl_json_watch(void);
bool pl_json_starved(void);
/* One did that JSON was to be made of. */
void pl_json_starve(void);

#endif
