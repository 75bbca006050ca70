/* vocab - the table of tokens: id -> stored text, text -> id.
 * Texts are copied. Ids may have holes (text.data NULL). The hash is seeded, so hostile texts cannot choose collisions. */
#ifndef PL_TOKEN_VOCAB_H
#define PL_TOKEN_VOCAB_H

#include "base/arena.h"
#include "base/str.h"

#define PL_TOK_MAX_IDS (16u << 20)
#define PL_TOK_NONE    UINT32_MAX

struct pl_tok_slot {
    uint32_t hash, id; /* id PL_TOK_NONE = free */
};
struct pl_tok_vocab {
    struct pl_str *text; /* [count] */
    uint32_t count, cap;
    uint32_t used;            /* entries of the hash */
    struct pl_tok_slot *slot; /* [slots] */
    uint32_t slots;           /* power of two or 0 */
    uint64_t seed;
    size_t max_len; /* bytes of the longest text */
    struct pl_arena bytes;
};

void pl_tok_vocab_init(struct pl_tok_vocab *v);
void pl_tok_vocab_deinit(struct pl_tok_vocab *v);
/* Room for ids below count and as many entries; PL_LIMIT past PL_TOK_MAX_IDS. */
enum pl_status pl_tok_vocab_reserve(struct pl_tok_vocab *v, size_t count) PL_MUST_CHECK;
/* Sets id -> text and, unless the text already has an id, text -> id; *existing gets that earlier id or PL_TOK_NONE.
 * replace: the newer id wins the lookup. */
enum pl_status pl_tok_vocab_add(struct pl_tok_vocab *v, uint32_t id, struct pl_str text, bool replace,
                                uint32_t *existing) PL_MUST_CHECK;
uint32_t pl_tok_vocab_find(const struct pl_tok_vocab *v, const char *text, size_t len); /* PL_TOK_NONE: absent */
/* The same in steps, so that many lookups can wait for memory together: hash, then fetch twice, then find. */
uint32_t pl_tok_vocab_hash(const struct pl_tok_vocab *v, const char *text, size_t len);
void pl_tok_vocab_fetch_slot(const struct pl_tok_vocab *v, uint32_t hash);
void pl_tok_vocab_fetch_text(const struct pl_tok_vocab *v, uint32_t hash); /* once the slot has arrived */
uint32_t pl_tok_vocab_find_hashed(const struct pl_tok_vocab *v, const char *text, size_t len, uint32_t hash);

/* A trie over bytes: nodes are numbers, edges a hash of (node, byte). For longest and common prefix matches. */
struct pl_tok_trie {
    struct pl_tok_edge {
        uint64_t key; /* node << 8 | byte, UINT64_MAX = free */
        uint32_t next;
    } * edge; /* [cap] */
    size_t cap, edges;
    uint32_t *values; /* [nodes] id or PL_TOK_NONE */
    size_t nodes, values_cap;
    uint32_t first[256]; /* edges of the root, 0 = none */
};
void pl_tok_trie_init(struct pl_tok_trie *t);
void pl_tok_trie_deinit(struct pl_tok_trie *t);
enum pl_status pl_tok_trie_add(struct pl_tok_trie *t, const char *s, size_t len,
                               uint32_t value) PL_MUST_CHECK; /* last wins */
/* Child of node over byte, 0 = none (0 is the root, never a child). */
static inline uint64_t pl_tok_mix(uint64_t k) {
    k *= 0x9E3779B97F4A7C15u;
    return k ^ (k >> 29);
}
static inline uint32_t pl_tok_trie_step(const struct pl_tok_trie *t, uint32_t node, unsigned char byte) {
    if (node == 0) return t->first[byte];
    uint64_t key = (uint64_t)node << 8 | byte;
    for (size_t i = pl_tok_mix(key) & (t->cap - 1);; i = (i + 1) & (t->cap - 1)) {
        if (t->edge[i].key == key) return t->edge[i].next;
        if (t->edge[i].key == UINT64_MAX) return 0;
    }
}

#endif
