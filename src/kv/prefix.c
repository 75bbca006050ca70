#include "kv/prefix.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

#define NONE UINT32_MAX

struct node {
    uint64_t space, used; /* use count at last touch */
    uint32_t parent, children, page, hash;
    uint32_t state; /* PL_STATE_NONE: none is kept */
    bool live;
};

struct pl_prefix_tree {
    struct pl_page_pool *pool;
    struct pl_state_pool *states; /* NULL: no recurrent state */
    struct node *nodes;           /* [page_count] */
    uint32_t *tokens;             /* [page_count][S] */
    uint32_t *slots;              /* open addressing, node number or NONE; never more than half full */
    uint32_t *free_list;          /* node numbers */
    uint8_t *blocked;             /* scratch of evictable */
    uint32_t slot_count, free_count;
    uint64_t seed, uses;
    struct pl_prefix_stats stats;
};

enum pl_status pl_prefix_create(struct pl_page_pool *pool, struct pl_prefix_tree **out) {
    struct pl_prefix_tree *t = pl_calloc(1, sizeof *t);
    if (t == NULL) return PL_NO_MEMORY;
    uint32_t n = pool->page_count;
    uint64_t slots = 16;
    while (slots < 2 * (uint64_t)n) slots *= 2;
    *t = (struct pl_prefix_tree){.pool = pool, .slot_count = (uint32_t)slots, .seed = 0x9E3779B97F4A7C15u};
    t->nodes = pl_calloc(n, sizeof *t->nodes);
    t->tokens = pl_calloc(n, (size_t)pool->page_tokens * sizeof *t->tokens);
    t->slots = pl_alloc(slots, sizeof *t->slots);
    t->free_list = pl_alloc(n, sizeof *t->free_list);
    t->blocked = pl_calloc(n, 1);
    if (slots > UINT32_MAX || !t->nodes || !t->tokens || !t->slots || !t->free_list || !t->blocked) {
        pl_prefix_destroy(t);
        return PL_NO_MEMORY;
    }
    memset(t->slots, 0xFF, slots * sizeof *t->slots);
    for (uint32_t i = 0; i < n; i++) t->free_list[i] = n - 1 - i; /* smallest number first */
    t->free_count = n;
    *out = t;
    return PL_OK;
}

void pl_prefix_destroy(struct pl_prefix_tree *t) {
    if (t == NULL) return;
    for (uint32_t i = 0; t->nodes != NULL && i < t->pool->page_count; i++) {
        if (!t->nodes[i].live) continue;
        pl_page_unref(t->pool, t->nodes[i].page);
        if (t->nodes[i].state != PL_STATE_NONE) pl_state_unref(t->states, t->nodes[i].state);
    }
    pl_free(t->nodes);
    pl_free(t->tokens);
    pl_free(t->slots);
    pl_free(t->free_list);
    pl_free(t->blocked);
    pl_free(t);
}

static size_t key_bytes(const struct pl_prefix_tree *t) { return (size_t)t->pool->page_tokens * sizeof(uint32_t); }
static uint32_t *node_tokens(const struct pl_prefix_tree *t, uint32_t node) {
    return t->tokens + (size_t)node * t->pool->page_tokens;
}

static uint32_t key_hash(const struct pl_prefix_tree *t, uint64_t space, uint32_t parent, const uint32_t *tokens) {
    uint64_t h = pl_hash64(tokens, key_bytes(t), t->seed ^ space ^ ((uint64_t)parent * 0xD6E8FEB86659FD93u));
    return (uint32_t)(h ^ (h >> 32));
}

/* The node of this key, or NONE; *slot is where it is or belongs. */
static uint32_t find(const struct pl_prefix_tree *t, uint64_t space, uint32_t parent, const uint32_t *tokens, uint32_t hash,
                     uint32_t *slot) {
    for (uint32_t i = hash & (t->slot_count - 1);; i = (i + 1) & (t->slot_count - 1)) {
        *slot = i;
        uint32_t n = t->slots[i];
        if (n == NONE) return NONE;
        const struct node *d = &t->nodes[n];
        if (d->hash == hash && d->space == space && d->parent == parent &&
            memcmp(node_tokens(t, n), tokens, key_bytes(t)) == 0)
            return n;
    }
}

static uint32_t walk(const struct pl_prefix_tree *t, uint64_t space, const uint32_t *tokens, uint32_t pages,
                     uint32_t *path_last) {
    uint32_t parent = NONE, done = 0, slot;
    for (; done < pages; done++) {
        const uint32_t *key = tokens + (size_t)done * t->pool->page_tokens;
        uint32_t n = find(t, space, parent, key, key_hash(t, space, parent, key), &slot);
        if (n == NONE) break;
        parent = n;
    }
    *path_last = parent;
    return done;
}

/* Pages that may be adopted from a prompt of count tokens: the last token is always computed afresh. */
static uint32_t adoptable(const struct pl_prefix_tree *t, uint32_t count) {
    return count == 0 ? 0 : (count - 1) / t->pool->page_tokens;
}

uint32_t pl_prefix_peek(const struct pl_prefix_tree *t, uint64_t space, const uint32_t *tokens, uint32_t count) {
    uint32_t last;
    return walk(t, space, tokens, adoptable(t, count), &last) * t->pool->page_tokens;
}

void pl_prefix_with_states(struct pl_prefix_tree *t, struct pl_state_pool *states) { t->states = states; }

/* table becomes a reference to the path of `pages` nodes down to n. */
static uint32_t take_path(struct pl_prefix_tree *t, uint32_t n, uint32_t pages, struct pl_block_table *table) {
    if (pages == 0) return 0;
    uint32_t *list = pl_realloc(table->pages, PL_MAX(pages, table->cap), sizeof *list);
    if (list == NULL) return 0; /* no memory for the list: computing afresh is always right */
    table->pages = list;
    table->cap = PL_MAX(pages, table->cap);
    t->uses++;
    for (uint32_t i = pages; i-- > 0; n = t->nodes[n].parent) {
        list[i] = t->nodes[n].page;
        t->nodes[n].used = t->uses;
        pl_page_ref(t->pool, list[i]);
    }
    table->count = pages;
    table->len = pages * t->pool->page_tokens;
    t->stats.tokens_adopted += table->len;
    return table->len;
}

uint32_t pl_prefix_adopt(struct pl_prefix_tree *t, uint64_t space, const uint32_t *tokens, uint32_t count,
                         struct pl_block_table *table) {
    uint32_t n, pages = walk(t, space, tokens, adoptable(t, count), &n);
    t->stats.lookups++;
    t->stats.tokens_asked += count;
    return take_path(t, n, pages, table);
}

uint32_t pl_prefix_adopt_state(struct pl_prefix_tree *t, uint64_t space, const uint32_t *tokens, uint32_t count,
                               struct pl_block_table *table, uint32_t *state, uint32_t *matched) {
    uint32_t n, pages = walk(t, space, tokens, adoptable(t, count), &n);
    t->stats.lookups++;
    t->stats.tokens_asked += count;
    *matched = pages * t->pool->page_tokens;
    *state = PL_STATE_NONE;
    for (; pages > 0 && t->nodes[n].state == PL_STATE_NONE; pages--) n = t->nodes[n].parent;
    if (take_path(t, n, pages, table) == 0) return 0;
    *state = t->nodes[n].state;
    pl_state_ref(t->states, *state);
    return table->len;
}

void pl_prefix_attach(struct pl_prefix_tree *t, uint64_t space, const uint32_t *tokens, uint32_t count, uint32_t state) {
    uint32_t n, pages = count / t->pool->page_tokens;
    if (pages == 0 || walk(t, space, tokens, pages, &n) != pages || t->nodes[n].state != PL_STATE_NONE) return;
    t->nodes[n].state = state;
    pl_state_ref(t->states, state);
}

static void drop_state(struct pl_prefix_tree *t, uint32_t node) {
    if (t->nodes[node].state == PL_STATE_NONE) return;
    pl_state_unref(t->states, t->nodes[node].state);
    t->nodes[node].state = PL_STATE_NONE;
}

bool pl_prefix_drop_state(struct pl_prefix_tree *t) {
    uint32_t best = NONE;
    for (uint32_t i = 0; i < t->pool->page_count; i++) {
        const struct node *d = &t->nodes[i];
        if (!d->live || d->state == PL_STATE_NONE || t->states->refs[d->state] != 1) continue;
        if (best == NONE || d->used <= t->nodes[best].used) best = i; /* of one path the deeper ones, made later */
    }
    if (best != NONE) drop_state(t, best);
    return best != NONE;
}

void pl_prefix_insert(struct pl_prefix_tree *t, uint64_t space, const uint32_t *tokens, uint32_t count,
                      const struct pl_block_table *table) {
    uint32_t parent = NONE, pages = PL_MIN(count / t->pool->page_tokens, table->count);
    t->uses++;
    for (uint32_t i = 0; i < pages; i++) {
        const uint32_t *key = tokens + (size_t)i * t->pool->page_tokens;
        uint32_t slot, hash = key_hash(t, space, parent, key), n = find(t, space, parent, key, hash, &slot);
        if (n == NONE) {
            PL_ASSERT(t->free_count > 0); /* a node per page of the pool, and a page is in the tree at most once */
            n = t->free_list[--t->free_count];
            t->nodes[n] = (struct node){.space = space,
                                        .parent = parent,
                                        .page = table->pages[i],
                                        .hash = hash,
                                        .state = PL_STATE_NONE,
                                        .live = true};
            memcpy(node_tokens(t, n), key, key_bytes(t));
            t->slots[slot] = n;
            if (parent != NONE) t->nodes[parent].children++;
            pl_page_ref(t->pool, table->pages[i]);
            t->stats.pages_inserted++;
        }
        t->nodes[n].used = t->uses;
        parent = n;
    }
}

/* Open addressing without tombstones: entries after the hole move back when their probe path crosses it. */
static void unlink_slot(struct pl_prefix_tree *t, uint32_t node) {
    uint32_t mask = t->slot_count - 1, hole = t->nodes[node].hash & mask;
    while (t->slots[hole] != node) hole = (hole + 1) & mask;
    for (uint32_t i = (hole + 1) & mask; t->slots[i] != NONE; i = (i + 1) & mask) {
        uint32_t home = t->nodes[t->slots[i]].hash & mask;
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        t->slots[hole] = t->slots[i];
        hole = i;
    }
    t->slots[hole] = NONE;
}

static void remove_leaf(struct pl_prefix_tree *t, uint32_t node) {
    struct node *d = &t->nodes[node];
    unlink_slot(t, node);
    if (d->parent != NONE) t->nodes[d->parent].children--;
    pl_page_unref(t->pool, d->page);
    drop_state(t, node);
    d->live = false;
    t->free_list[t->free_count++] = node;
    t->stats.pages_evicted++;
}

/* Least recently used leaf whose page only the tree refers to. Linear in the pool: eviction is rare beside a step, and
 * a page bought by it is worth S tokens of work. */
static uint32_t victim(const struct pl_prefix_tree *t) {
    uint32_t best = NONE;
    for (uint32_t i = 0; i < t->pool->page_count; i++) {
        const struct node *d = &t->nodes[i];
        if (!d->live || d->children != 0 || t->pool->refs[d->page] != 1) continue;
        if (best == NONE || d->used < t->nodes[best].used) best = i;
    }
    return best;
}

uint32_t pl_prefix_evict(struct pl_prefix_tree *t, uint32_t pages) {
    uint32_t freed = 0;
    for (; freed < pages; freed++) {
        uint32_t n = victim(t);
        if (n == NONE) break;
        remove_leaf(t, n);
    }
    return freed;
}

uint32_t pl_prefix_evictable(const struct pl_prefix_tree *t) {
    uint32_t n = 0;
    memset(t->blocked, 0, t->pool->page_count);
    for (uint32_t i = 0; i < t->pool->page_count; i++) {
        if (!t->nodes[i].live || t->pool->refs[t->nodes[i].page] == 1) continue;
        for (uint32_t up = i; up != NONE && !t->blocked[up]; up = t->nodes[up].parent) t->blocked[up] = 1;
    }
    for (uint32_t i = 0; i < t->pool->page_count; i++) n += t->nodes[i].live && !t->blocked[i];
    return n;
}

uint32_t pl_prefix_pages(const struct pl_prefix_tree *t) { return t->pool->page_count - t->free_count; }

void pl_prefix_clear(struct pl_prefix_tree *t) {
    for (bool again = true; again;) {
        again = false;
        for (uint32_t i = 0; i < t->pool->page_count; i++) {
            if (!t->nodes[i].live || t->nodes[i].children != 0) continue;
            remove_leaf(t, i);
            again = true;
        }
    }
}

struct pl_prefix_stats pl_prefix_stats(const struct pl_prefix_tree *t) {
    return t->stats;
}

const char *pl_prefix_check(const struct pl_prefix_tree *t) {
    uint32_t live = 0, linked = 0, children = 0, inner = 0;
    for (uint32_t i = 0; i < t->slot_count; i++) linked += t->slots[i] != NONE;
    for (uint32_t i = 0; i < t->pool->page_count; i++) {
        const struct node *d = &t->nodes[i];
        if (!d->live) continue;
        live++;
        children += d->children;
        inner += d->parent != NONE;
        if (d->parent != NONE && !t->nodes[d->parent].live) return "a node's parent is not in the tree";
        if (t->pool->refs[d->page] == 0) return "the tree holds a free page";
        if (d->state != PL_STATE_NONE && t->states->refs[d->state] == 0) return "the tree holds a free state";
        uint32_t slot;
        if (find(t, d->space, d->parent, node_tokens(t, i), d->hash, &slot) != i) return "a node cannot be found by its key";
    }
    if (live != linked) return "slots and nodes differ";
    if (children != inner) return "child counts are wrong";
    if (live + t->free_count != t->pool->page_count) return "nodes were lost";
    return NULL;
}
