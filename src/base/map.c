#include "base/map.h"

#include <string.h>
#include <time.h>

#include "base/hash.h"
#include "base/mem.h"

void pl_map_init(struct pl_map *m) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *m = (struct pl_map){.seed = (uint64_t)now.tv_nsec ^ (uint64_t)(uintptr_t)m};
}

void pl_map_deinit(struct pl_map *m) {
    pl_free(m->slots);
    m->slots = NULL;
    m->cap = m->count = 0;
}

/* The slot that holds the key, or the free slot where it belongs. cap is a power of two and never full. */
static struct pl_map_slot *probe(struct pl_map_slot *slots, size_t cap, const char *key, size_t len, uint32_t hash) {
    for (size_t i = hash & (cap - 1);; i = (i + 1) & (cap - 1)) {
        struct pl_map_slot *s = &slots[i];
        if (!s->used) return s;
        if (s->hash == hash && s->len == len && memcmp(s->key, key, len) == 0) return s;
    }
}

static enum pl_status resize(struct pl_map *m, size_t cap) {
    struct pl_map_slot *fresh = pl_calloc(cap, sizeof *fresh);
    if (fresh == NULL) return PL_NO_MEMORY;
    for (size_t i = 0; i < m->cap; i++) {
        struct pl_map_slot *s = &m->slots[i];
        if (s->used) *probe(fresh, cap, s->key, s->len, s->hash) = *s;
    }
    pl_free(m->slots);
    m->slots = fresh;
    m->cap = cap;
    return PL_OK;
}

enum pl_status pl_map_reserve(struct pl_map *m, size_t count) {
    size_t cap = m->cap == 0 ? 16 : m->cap;
    while (cap - cap / 4 <= count) {
        if (cap > SIZE_MAX / 2 / sizeof(struct pl_map_slot)) return PL_NO_MEMORY;
        cap *= 2;
    }
    return cap == m->cap ? PL_OK : resize(m, cap);
}

enum pl_status pl_map_put(struct pl_map *m, const char *key, size_t len, uint32_t value, bool *existed) {
    if (len > UINT32_MAX) return PL_LIMIT;
    PL_TRY(pl_map_reserve(m, m->count + 1));
    uint32_t hash = (uint32_t)pl_hash64(key, len, m->seed);
    struct pl_map_slot *s = probe(m->slots, m->cap, key, len, hash);
    if (existed != NULL) *existed = s->used;
    if (s->used) return PL_OK;
    *s = (struct pl_map_slot){.key = key, .len = (uint32_t)len, .value = value, .hash = hash, .used = true};
    m->count++;
    return PL_OK;
}

bool pl_map_get(const struct pl_map *m, const char *key, size_t len, uint32_t *value) {
    if (m->cap == 0 || len > UINT32_MAX) return false;
    const struct pl_map_slot *s = probe(m->slots, m->cap, key, len, (uint32_t)pl_hash64(key, len, m->seed));
    if (s->used) *value = s->value;
    return s->used;
}
