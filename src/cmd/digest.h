/* digest - SHA-256 and SHA-1 as streams, for checking downloads against what their publisher says.
 * SHA-1 is only here because git names file contents by it; nothing is trusted for being SHA-1 alone. */
#ifndef PL_CMD_DIGEST_H
#define PL_CMD_DIGEST_H

#include <stddef.h>
#include <stdint.h>

enum pl_digest_kind { PL_SHA256, PL_SHA1 };

struct pl_digest {
    enum pl_digest_kind kind;
    uint32_t h[8];
    uint64_t bytes;
    uint8_t block[64];
};

void pl_digest_init(struct pl_digest *d, enum pl_digest_kind kind);
void pl_digest_add(struct pl_digest *d, const void *data, size_t len);
/* Lower-case hex, terminated: 64 digits for SHA-256, 40 for SHA-1. d is used up. */
void pl_digest_hex(struct pl_digest *d, char out[65]);

#endif
