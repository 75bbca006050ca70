/* jitcheck - the compiled-kernel cache of one device: the sequence that a weak key gets wrong, and the proof that it would
 * be seen. A folder of its own under dir is used and removed. */
#ifndef PL_VERIFY_JITCHECK_H
#define PL_VERIFY_JITCHECK_H

#include <jansson.h>

#include "device/device.h"

/* Appends {"check", "status", "detail"} rows; *failed counts those that failed. Other statuses than PL_OK: it could not run.
 */
enum pl_status pl_jitcheck_run(enum pl_device_kind kind, const char *dir, json_t *rows, size_t *failed,
                               struct pl_err *err) PL_MUST_CHECK;

#endif
