/* png - a grey picture as a PNG file; zlib packs it. A build without zlib refuses. */
#ifndef PL_CMD_PNG_H
#define PL_CMD_PNG_H

#include <stdint.h>

#include "base/status.h"

/* pixels [height, width], 0 black, 255 white, the uppermost row first. */
enum pl_status pl_png_write(const char *path, const uint8_t *pixels, uint32_t width, uint32_t height,
                            struct pl_err *err) PL_MUST_CHECK;

#endif
