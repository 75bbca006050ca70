/* table - what `plumb tune` measured for a device, kept in the user's data directory and handed to ops.
 *
 * One JSON file a device, $XDG_DATA_HOME/plumb/tune (else ~/.local/share/plumb/tune). It holds the device's kind, name and
 * target, the driver's version and the hash of all kernel sources; a file in which any of them differs is refused, not
 * used, and the reason says which. Values are checked: a table from anywhere cannot ask for nonsense. */
#ifndef PL_TUNE_TABLE_H
#define PL_TUNE_TABLE_H

#include <jansson.h>

#include "device/device.h"
#include "ops/ops.h"

/* path (size bytes): where the device's table stands. */
enum pl_status pl_tune_path(const struct pl_device_info *d, char *path, size_t size, struct pl_err *err) PL_MUST_CHECK;
/* PL_NOT_FOUND: none. PL_INVALID: refused, with the reason in err. dir NULL: the user's. */
enum pl_status pl_tune_load(const struct pl_device_info *d, const char *path, struct pl_attn_table *out,
                            struct pl_err *err) PL_MUST_CHECK;
/* The user's table when there is one for this very device, else the built-in values; a refused table is said once. */
void pl_tune_or_built_in(const struct pl_device_info *d, struct pl_attn_table *out);
/* Written beside and renamed. report: what was measured, kept in the file (may be NULL; not taken). */
enum pl_status pl_tune_store(const struct pl_device_info *d, const char *path, const struct pl_attn_table *t, json_t *report,
                             struct pl_err *err) PL_MUST_CHECK;

#endif
