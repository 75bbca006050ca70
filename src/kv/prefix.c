#include "kv/prefix.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

#define NONE UINT32_MAX

struct node {
    uint64_t space, used; /* use count at last touch */
    uint32_t parent, children, page, hash;
    uint32_t state;              /* PL_STATE_NONE: none is kept */
    uint32_t windowed;           /* the page of windowed layers, NONE: it is not kept; */
    uint32_t win_prev, win_next; /* those that are, in the order of their last use */
    bool live;
};

struct pl_prefix_tree {
    struct pl_page_pool *pool;
    struct pl_state_pool *states; /* NULL: no recurrent state */
    struct pl_page_pool *win;     /* NULL: no windowed pages */
    uint32_t window, win_first, win_last, win_count;
    struct node *nodes;  /* [page_count] */
    uint32_t *tokens;    /* [page_count][S] */
    uint32_t *slots;     /* open addressing, node number or NONE; never more than half full */
    uint32_t *free_list; /* node numbers */
    uint8_t *blocked;    /* scratch of evictable */
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
    *t = (struct pl_prefix_tree){
        .pool = pool, .slot_count = (uint32_t)slots, .seed = 0x9E3779B97F4A7C15u, .win_first = NONE, .win_last = NONE};
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
        if (t->nodes[i].windowed != NONE) pl_page_unref(t->win, t->nodes[i].windowed);
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

void pl_prefix_with_states(struct pl_prefix_tree *t, struct pl_state_pool *states) { t->states = states; }

/* --- windowed pages: a list from the longest unused to the last used --- */

void pl_prefix_with_windows(struct pl_prefix_tree *t, struct pl_page_pool *pool, uint32_t window) {
    PL_ASSERT(window > 0 && pool->page_tokens == t->pool->page_tokens && t->stats.pages_inserted == 0);
    t->win = pool;
    t->window = window;
}

static void win_unlink(struct pl_prefix_tree *t, uint32_t node) {
    const struct node *d = &t->nodes[node];
    *(d->win_prev == NONE ? &t->win_first : &t->nodes[d->win_prev].win_next) = d->win_next;
    *(d->win_next == NONE ? &t->win_last : &t->nodes[d->win_next].win_prev) = d->win_prev;
    t->win_count--;
}

static void win_append(struct pl_prefix_tree *t, uint32_t node) {
    struct node *d = &t->nodes[node];
    d->win_prev = t->win_last;
    d->win_next = NONE;
    *(t->win_last == NONE ? &t->win_first : &t->nodes[t->win_last].win_next) = node;
    t->win_last = node;
    t->win_count++;
}

static void win_drop(struct pl_prefix_tree *t, uint32_t node) {
    if (t->nodes[node].windowed == NONE) return;
    win_unlink(t, node);
    pl_page_unref(t->win, t->nodes[node].windowed);
    t->nodes[node].windowed = NONE;
}

/* Of a run of `pages` pages the first one that the row behind it sees. */
static uint32_t first_seen(const struct pl_prefix_tree *t, uint32_t pages) {
    return pl_window_first(t->window, pages * t->pool->page_tokens) / t->pool->page_tokens;
}

/* The longest run, of `pages` pages down to *n at most, behind which a sequence can go on; *n becomes its last node. */
static uint32_t whole_run(const struct pl_prefix_tree *t, uint32_t *n, uint32_t pages, bool with_state) {
    uint32_t end = *n, at = *n;
    for (uint32_t i = pages; i > 0; i--, at = t->nodes[at].parent) { /* pages [i, pages) have all that their end needs */
        if (i == pages && with_state && t->nodes[at].state == PL_STATE_NONE) {
            end = t->nodes[at].parent;
            pages--;
            continue;
        }
        if (t->win == NULL || i <= first_seen(t, pages)) break;
        if (t->nodes[at].windowed != NONE) continue;
        end = t->nodes[at].parent; /* every run that ends behind it within its window lacks it too */
        pages = i - 1;
    }
    *n = end;
    return pages;
}

uint32_t pl_prefix_peek(const struct pl_prefix_tree *t, uint64_t space, const uint32_t *tokens, uint32_t count) {
    uint32_t last, pages = walk(t, space, tokens, adoptable(t, count), &last);
    return whole_run(t, &last, pages, false) * t->pool->page_tokens;
}

static bool make_list(struct pl_block_table *table, uint32_t pages) {
    uint32_t *list = pl_realloc(table->pages, PL_MAX(pages, table->cap), sizeof *list);
    if (list == NULL) return false;
    table->pages = list;
    table->cap = PL_MAX(pages, table->cap);
    return true;
}

/* tables become a reference to the path of `pages` nodes down to n. */
static uint32_t take_path(struct pl_prefix_tree *t, uint32_t n, uint32_t pages, struct pl_block_tables *tables) {
    struct pl_block_table *full = &tables->of[PL_PAGES_FULL], *windowed = &tables->of[PL_PAGES_WINDOWED];
    if (pages == 0) return 0;
    if (!make_list(full, pages) || (t->win != NULL && !make_list(windowed, pages)))
        return 0; /* no memory for the list: computing afresh is always right */
    uint32_t seen = t->win != NULL ? first_seen(t, pages) : pages;
    t->uses++;
    for (uint32_t i = pages; i-- > 0; n = t->nodes[n].parent) {
        full->pages[i] = t->nodes[n].page;
        t->nodes[n].used = t->uses;
        pl_page_ref(t->pool, full->pages[i]);
        if (t->win == NULL) continue;
        windowed->pages[i] = i >= seen ? t->nodes[n].windowed : 0; /* gone: any number of a page */
        if (i < seen) continue;
        pl_page_ref(t->win, windowed->pages[i]);
        win_unlink(t, n);
        win_append(t, n);
    }
    full->count = pages;
    full->len = pages * t->pool->page_tokens;
    if (t->win != NULL) {
        windowed->count = pages;
        windowed->len = full->len;
        windowed->gone = seen;
    }
    t->stats.tokens_adopted += full->len;
    return full->len;
}

static uint32_t look_up(struct pl_prefix_tree *t, uint64_t space, const uint32_t *tokens, uint32_t count, bool with_state,
                        uint32_t *n, uint32_t *matched) {
    uint32_t pages = walk(t, space, tokens, adoptable(t, count), n);
    t->stats.lookups++;
    t->stats.tokens_asked += count;
    *matched = pages * t->pool->page_tokens;
    return whole_run(t, n, pages, with_state);
}

uint32_t pl_prefix_adopt(struct pl_prefix_tree *t, uint64_t space, const uint32_t *tokens, uint32_t count,
                         struct pl_block_tables *tables, uint32_t *matched) {
    uint32_t n, pages = look_up(t, space, tokens, count, false, &n, matched);
    return take_path(t, n, pages, tables);
}

uint32_t pl_prefix_adopt_state(struct pl_prefix_tree *t, uint64_t space, const uint32_t *tokens, uint32_t count,
                               struct pl_block_tables *tables, uint32_t *state, uint32_t *matched) {
    uint32_t n, pages = look_up(t, space, tokens, count, true, &n, matched);
    *state = PL_STATE_NONE;
    if (take_path(t, n, pages, tables) == 0) return 0;
    *state = t->nodes[n].state;
    pl_state_ref(t->states, *state);
    return tables->of[PL_PAGES_FULL].len;
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

/* The windowed page of the same tokens: kept, or used once more. */
static void keep_windowed(struct pl_prefix_tree *t, uint32_t node, uint32_t page) {
    if (t->nodes[node].windowed != NONE) {
        win_unlink(t, node);
    } else {
        t->nodes[node].windowed = page;
        pl_page_ref(t->win, page);
        t->stats.window_inserted++;
    }
    win_append(t, node);
}

void pl_prefix_insert(struct pl_prefix_tree *t, uint64_t space, const uint32_t *tokens, uint32_t count,
                      const struct pl_block_tables *tables) {
    const struct pl_block_table *table = &tables->of[PL_PAGES_FULL], *windowed = &tables->of[PL_PAGES_WINDOWED];
    uint32_t parent = NONE, pages = PL_MIN(count / t->pool->page_tokens, table->count);
    uint32_t seen = t->win != NULL ? PL_MAX(first_seen(t, pages), windowed->gone) : pages;
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
                                        .windowed = NONE,
                                        .live = true};
            memcpy(node_tokens(t, n), key, key_bytes(t));
            t->slots[slot] = n;
            if (parent != NONE) t->nodes[parent].children++;
            pl_page_ref(t->pool, table->pages[i]);
            t->stats.pages_inserted++;
        }
        t->nodes[n].used = t->uses;
        if (i >= seen) keep_windowed(t, n, windowed->pages[i]);
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
    win_drop(t, node);
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

static uint32_t evict_windowed(struct pl_prefix_tree *t, uint32_t pages) {
    uint32_t freed = 0;
    for (uint32_t n = t->win_first, next; n != NONE && freed < pages; n = next) {
        next = t->nodes[n].win_next;
        if (t->win->refs[t->nodes[n].windowed] != 1) continue;
        win_drop(t, n);
        freed++;
    }
    t->stats.window_evicted += freed;
    return freed;
}

uint32_t pl_prefix_evict(struct pl_prefix_tree *t, enum pl_page_group group, uint32_t pages) {
    uint32_t freed = 0;
    if (group == PL_PAGES_WINDOWED) return evict_windowed(t, pages);
    for (; freed < pages; freed++) {
        uint32_t n = victim(t);
        if (n == NONE) break;
        remove_leaf(t, n);
    }
    return freed;
}

uint32_t pl_prefix_evictable(const struct pl_prefix_tree *t, enum pl_page_group group) {
    uint32_t n = 0;
    if (group == PL_PAGES_WINDOWED) {
        for (uint32_t i = t->win_first; i != NONE; i = t->nodes[i].win_next) n += t->win->refs[t->nodes[i].windowed] == 1;
        return n;
    }
    memset(t->blocked, 0, t->pool->page_count);
    for (uint32_t i = 0; i < t->pool->page_count; i++) {
        if (!t->nodes[i].live || t->pool->refs[t->nodes[i].page] == 1) continue;
        for (uint32_t up = i; up != NONE && !t->blocked[up]; up = t->nodes[up].parent) t->blocked[up] = 1;
    }
    for (uint32_t i = 0; i < t->pool->page_count; i++) n += t->nodes[i].live && !t->blocked[i];
    return n;
}

uint32_t pl_prefix_pages(const struct pl_prefix_tree *t, enum pl_page_group group) {
    return group == PL_PAGES_WINDOWED ? t->win_count : t->pool->page_count - t->free_count;
}

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

static const char *window_check(const struct pl_prefix_tree *t) {
    uint32_t listed = 0, kept = 0, before = NONE;
    for (uint32_t n = t->win_first; n != NONE && listed <= t->pool->page_count; n = t->nodes[n].win_next, listed++) {
        const struct node *d = &t->nodes[n];
        if (!d->live || d->windowed == NONE || d->win_prev != before) return "the list of windowed pages is broken";
        if (t->win->refs[d->windowed] == 0) return "the tree holds a free windowed page";
        before = n;
    }
    for (uint32_t i = 0; i < t->pool->page_count; i++) kept += t->nodes[i].live && t->nodes[i].windowed != NONE;
    return listed == kept && kept == t->win_count && before == t->win_last ? NULL : "windowed pages were lost";
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
    return window_check(t);
}
