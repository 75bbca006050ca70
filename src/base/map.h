/* map - byte-string keys to 32-bit values, open addressing, no deletion. Keys are not copied: they must outlive the
 * map. Hashing is seeded XXH3, so hostile keys cannot choose their collisions. */
#ifndef PL_BASE_MAP_H
#define PL_BASE_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

struct pl_map_slot {
    const char *key;
    uint32_t len, value, hash;
    bool used;
};

struct pl_map {
    struct pl_map_slot *slots;
    size_t cap, count;
    uint64_t seed;
};

void pl_map_init(struct pl_map *m);
void pl_map_deinit(struct pl_map *m);
enum pl_status pl_map_reserve(struct pl_map *m, size_t count) PL_MUST_CHECK;
/* Inserts or keeps: *existed tells whether the key was there; its value is then unchanged. existed may be NULL. */
enum pl_status pl_map_put(struct pl_map *m, const char *key, size_t len, uint32_t value, bool *existed) PL_MUST_CHECK;
bool pl_map_get(const struct pl_map *m, const char *key, size_t len, uint32_t *value);

#endif
