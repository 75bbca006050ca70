/* zip - one member out of a zip archive whose checksum the caller has already verified; still read as if hostile. */
#ifndef PL_CMD_ZIP_H
#define PL_CMD_ZIP_H

#include <stdint.h>

#include "base/status.h"

/* Appends the content of the member whose name ends with suffix (exactly one may) to fd. Stored or deflated, no
 * encryption, no zip64. Its CRC and size are checked. Needs zlib: PL_UNSUPPORTED without. */
enum pl_status pl_zip_extract(const char *archive, const char *suffix, int fd, struct pl_err *err) PL_MUST_CHECK;

#endif
