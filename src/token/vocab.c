#include "token/vocab.h"

#include <string.h>
#include <time.h>

#include "base/hash.h"
#include "base/mem.h"

void pl_tok_vocab_init(struct pl_tok_vocab *v) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *v = (struct pl_tok_vocab){.seed = (uint64_t)now.tv_nsec * 0x9E3779B97F4A7C15u ^ (uint64_t)(uintptr_t)v};
    pl_arena_init(&v->bytes, 0);
}

void pl_tok_vocab_deinit(struct pl_tok_vocab *v) {
    pl_free(v->text);
    pl_free(v->slot);
    pl_arena_deinit(&v->bytes);
    *v = (struct pl_tok_vocab){0};
}

uint32_t pl_tok_vocab_hash(const struct pl_tok_vocab *v, const char *s, size_t len) {
    return (uint32_t)pl_hash64(s, len, v->seed);
}

static enum pl_status rehash(struct pl_tok_vocab *v, uint32_t slots) {
    struct pl_tok_slot *to = pl_alloc(slots, sizeof *to);
    if (to == NULL) return PL_NO_MEMORY;
    memset(to, 0xFF, slots * sizeof *to);
    for (uint32_t i = 0; i < v->slots; i++) {
        if (v->slot[i].id == PL_TOK_NONE) continue;
        uint32_t at = v->slot[i].hash & (slots - 1);
        while (to[at].id != PL_TOK_NONE) at = (at + 1) & (slots - 1);
        to[at] = v->slot[i];
    }
    pl_free(v->slot);
    v->slot = to;
    v->slots = slots;
    return PL_OK;
}

enum pl_status pl_tok_vocab_reserve(struct pl_tok_vocab *v, size_t count) {
    if (count > PL_TOK_MAX_IDS) return PL_LIMIT;
    if (count > v->cap) {
        size_t cap = v->cap;
        PL_TRY(pl_grow(&v->text, &cap, count, sizeof *v->text));
        v->cap = (uint32_t)cap;
    }
    uint32_t slots = v->slots < 16 ? 16 : v->slots;
    while (slots / 2 < count) slots *= 2;
    return slots == v->slots ? PL_OK : rehash(v, slots);
}

/* The slot of the text, or the free one where it belongs. */
static uint32_t probe(const struct pl_tok_vocab *v, const char *s, size_t len, uint32_t hash) {
    for (uint32_t i = hash & (v->slots - 1);; i = (i + 1) & (v->slots - 1)) {
        uint32_t id = v->slot[i].id;
        if (id == PL_TOK_NONE) return i;
        if (v->slot[i].hash == hash && v->text[id].len == len && memcmp(v->text[id].data, s, len) == 0) return i;
    }
}

enum pl_status pl_tok_vocab_add(struct pl_tok_vocab *v, uint32_t id, struct pl_str text, bool replace, uint32_t *existing) {
    PL_TRY(pl_tok_vocab_reserve(v, (size_t)PL_MAX(id, v->used) + 1));
    char *copy = pl_arena_alloc(&v->bytes, text.len + 1, 1);
    if (copy == NULL) return PL_NO_MEMORY;
    memcpy(copy, text.data, text.len);
    copy[text.len] = '\0';
    while (v->count <= id) v->text[v->count++] = (struct pl_str){NULL, 0};
    uint32_t hash = pl_tok_vocab_hash(v, copy, text.len), at = probe(v, copy, text.len, hash), old = v->slot[at].id;
    v->text[id] = (struct pl_str){copy, text.len};
    if (old == PL_TOK_NONE) {
        v->slot[at] = (struct pl_tok_slot){hash, id};
        v->used++;
    } else if (replace) {
        v->slot[at].id = id;
    }
    if (existing != NULL) *existing = old;
    v->max_len = PL_MAX(v->max_len, text.len);
    return PL_OK;
}

uint32_t pl_tok_vocab_find(const struct pl_tok_vocab *v, const char *text, size_t len) {
    if (v->slots == 0 || len > v->max_len) return PL_TOK_NONE;
    return v->slot[probe(v, text, len, pl_tok_vocab_hash(v, text, len))].id;
}

void pl_tok_vocab_fetch_slot(const struct pl_tok_vocab *v, uint32_t hash) {
    if (v->slots > 0) __builtin_prefetch(&v->slot[hash & (v->slots - 1)]);
}

void pl_tok_vocab_fetch_text(const struct pl_tok_vocab *v, uint32_t hash) {
    uint32_t id = v->slots > 0 ? v->slot[hash & (v->slots - 1)].id : PL_TOK_NONE;
    if (id != PL_TOK_NONE) __builtin_prefetch(&v->text[id]);
}

uint32_t pl_tok_vocab_find_hashed(const struct pl_tok_vocab *v, const char *text, size_t len, uint32_t hash) {
    return v->slots == 0 ? PL_TOK_NONE : v->slot[probe(v, text, len, hash)].id;
}

void pl_tok_trie_init(struct pl_tok_trie *t) { *t = (struct pl_tok_trie){0}; }

void pl_tok_trie_deinit(struct pl_tok_trie *t) {
    pl_free(t->edge);
    pl_free(t->values);
    *t = (struct pl_tok_trie){0};
}

static void put_edge(struct pl_tok_edge *edge, size_t cap, struct pl_tok_edge e) {
    size_t at = pl_tok_mix(e.key) & (cap - 1);
    while (edge[at].key != UINT64_MAX) at = (at + 1) & (cap - 1);
    edge[at] = e;
}

static enum pl_status trie_rehash(struct pl_tok_trie *t, size_t cap) {
    struct pl_tok_edge *to = pl_alloc(cap, sizeof *to);
    if (to == NULL) return PL_NO_MEMORY;
    memset(to, 0xFF, cap * sizeof *to);
    for (size_t i = 0; i < t->cap; i++)
        if (t->edge[i].key != UINT64_MAX) put_edge(to, cap, t->edge[i]);
    pl_free(t->edge);
    t->edge = to;
    t->cap = cap;
    return PL_OK;
}

static enum pl_status trie_child(struct pl_tok_trie *t, uint32_t node, unsigned char byte, uint32_t *out) {
    uint32_t next = t->cap == 0 && node != 0 ? 0 : pl_tok_trie_step(t, node, byte);
    if (next == 0) {
        if (t->nodes >= UINT32_MAX - 2) return PL_LIMIT;
        PL_TRY(pl_grow(&t->values, &t->values_cap, t->nodes + 1, sizeof *t->values));
        if ((t->edges + 1) * 2 > t->cap) PL_TRY(trie_rehash(t, t->cap == 0 ? 64 : t->cap * 2));
        next = (uint32_t)t->nodes++;
        t->values[next] = PL_TOK_NONE;
        if (node == 0) {
            t->first[byte] = next;
        } else {
            put_edge(t->edge, t->cap, (struct pl_tok_edge){(uint64_t)node << 8 | byte, next});
            t->edges++;
        }
    }
    *out = next;
    return PL_OK;
}

enum pl_status pl_tok_trie_add(struct pl_tok_trie *t, const char *s, size_t len, uint32_t value) {
    if (t->nodes == 0) {
        PL_TRY(pl_grow(&t->values, &t->values_cap, 1, sizeof *t->values));
        t->values[t->nodes++] = PL_TOK_NONE;
    }
    uint32_t node = 0;
    for (size_t i = 0; i < len; i++) PL_TRY(trie_child(t, node, (unsigned char)s[i], &node));
    t->values[node] = value;
    return PL_OK;
}
