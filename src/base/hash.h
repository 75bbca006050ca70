/* hash - XXH3 for tables and file names. Never the only proof of identity: callers compare full contents. */
#ifndef PL_BASE_HASH_H
#define PL_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t pl_hash64(const void *data, size_t len, uint64_t seed);
/* 32 lower-case hex digits of the 128-bit hash, terminated. */
void pl_hash128_hex(const void *data, size_t len, char out[33]);

#endif
