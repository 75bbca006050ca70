#include "base/hash.h"

#include <stdio.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t pl_hash64(const void *data, size_t len, uint64_t seed) { return XXH3_64bits_withSeed(data, len, seed); }

void pl_hash128_hex(const void *data, size_t len, char out[33]) {
    XXH128_hash_t h = XXH3_128bits(data, len);
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
}
