/* prefix - a tree of full KV pages keyed by the token ids they hold, so that equal beginnings are computed once.
 *
 * A node is one full page: its key is its parent and the S token ids, compared in full (the hash only finds the slot).
 * `space` separates what may never be shared though the ids are equal: model, adapter, KV dtype. The tree holds one
 * reference to each of its pages; adopters hold their own, so eviction never pulls a page from under a sequence.
 *
 * Invariants
 *  1. A node's parent is in the tree; eviction takes leaves only.
 *  2. Node count = pages referenced by the tree <= pages of the pool.
 *  3. Only full pages enter; an adopter always recomputes at least the last token of its prompt.
 *  4. With recurrent state (pl_prefix_with_states) a node may hold a reference to a copy of the state after its last token;
 *     adoption then ends at the deepest node that has one.
 *  5. The victim is total: least recently used first, then the smaller node number. Use is counted, not clocked.
 *  6. With windowed pages (pl_prefix_with_windows) a node may hold a reference to the page of the same tokens in windowed
 *     layers; adoption then ends at the deepest node before which all pages that the next row's window sees are there. Those
 *     pages go by themselves, the longest unused window first, or with their node.
 * One thread owns it. */
#ifndef PL_KV_PREFIX_H
#define PL_KV_PREFIX_H

#include "kv/states.h"
#include "kv/tables.h"

struct pl_prefix_tree;

struct pl_prefix_stats {
    uint64_t lookups, tokens_asked, tokens_adopted, pages_inserted, pages_evicted;
    uint64_t window_inserted, window_evicted; /* the same of windowed pages */
};

/* All memory is taken here, for the pool's page count. pool is borrowed. */
enum pl_status pl_prefix_create(struct pl_page_pool *pool, struct pl_prefix_tree **out) PL_MUST_CHECK;
void pl_prefix_destroy(struct pl_prefix_tree *t); /* gives its pages back */

/* The longest run of pages that tokens[0, count) begin with, but never the whole of count: tables (empty before) become
 * a reference to them, len set. Returns the tokens adopted, a multiple of S. *matched: tokens of all pages found, with or
 * without what going on behind them needs. */
uint32_t pl_prefix_adopt(struct pl_prefix_tree *t, uint64_t space, const uint32_t *tokens, uint32_t count,
                         struct pl_block_tables *tables, uint32_t *matched) PL_MUST_CHECK;
/* Before anything is inserted; pool is borrowed, window > 0. */
void pl_prefix_with_windows(struct pl_prefix_tree *t, struct pl_page_pool *pool, uint32_t window);
/* Before anything is inserted; states is borrowed. */
void pl_prefix_with_states(struct pl_prefix_tree *t, struct pl_state_pool *states);
/* The same with states: the longest run of pages that ends at a kept one, of which the caller gets a reference;
 * PL_STATE_NONE where 0 is returned. */
uint32_t pl_prefix_adopt_state(struct pl_prefix_tree *t, uint64_t space, const uint32_t *tokens, uint32_t count,
                               struct pl_block_tables *tables, uint32_t *state, uint32_t *matched) PL_MUST_CHECK;
/* The state after tokens[0, count), a multiple of S whose pages are in the tree: its node takes a reference, unless there is
 * no such node or it has one. */
void pl_prefix_attach(struct pl_prefix_tree *t, uint64_t space, const uint32_t *tokens, uint32_t count, uint32_t state);
/* Lets the least recently used state go that nobody but the tree refers to. False: there is none. */
bool pl_prefix_drop_state(struct pl_prefix_tree *t);
/* How many tokens adopt would give; nothing changes. */
uint32_t pl_prefix_peek(const struct pl_prefix_tree *t, uint64_t space, const uint32_t *tokens, uint32_t count);
/* Remembers the full pages of tables whose keys and values for tokens[0, count) are computed, and the windowed ones that
 * going on behind the last of them needs. Pages whose content is in the tree already are not taken twice. */
void pl_prefix_insert(struct pl_prefix_tree *t, uint64_t space, const uint32_t *tokens, uint32_t count,
                      const struct pl_block_tables *tables);
/* Evicts until at least `pages` more pages of the group's pool are free; returns how many became free (may be fewer). */
uint32_t pl_prefix_evict(struct pl_prefix_tree *t, enum pl_page_group group, uint32_t pages);
/* Pages that eviction could free now: those that nobody but the tree refers to and, of full ones, that only such pages
 * stand under. */
uint32_t pl_prefix_evictable(const struct pl_prefix_tree *t, enum pl_page_group group);
uint32_t pl_prefix_pages(const struct pl_prefix_tree *t, enum pl_page_group group);
void pl_prefix_clear(struct pl_prefix_tree *t);
struct pl_prefix_stats pl_prefix_stats(const struct pl_prefix_tree *t);
const char *pl_prefix_check(const struct pl_prefix_tree *t); /* for tests: NULL, or what is wrong */

#endif
