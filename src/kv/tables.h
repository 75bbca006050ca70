/* tables - the block tables of one sequence: one of its pages in layers that see everything, one of its pages in layers with
 * a sliding window, which gives pages back.
 *
 * Both cover the same tokens. A page of either group holds S tokens for all layers of that group; numbers of one group mean
 * nothing in the other. Models without windowed layers, and dense pools, have the first group alone: its pages are those of
 * all layers. Where all layers have a window, the first group's pages have no bytes and still count the tokens.
 *
 * Invariants
 *  1. Both tables have the same length and entries; the windowed one's first `gone` entries own nothing and are numbers of
 *     pages all the same.
 *  2. Pages are taken in both groups or in none. */
#ifndef PL_KV_TABLES_H
#define PL_KV_TABLES_H

#include "kv/kv.h"

enum pl_page_group { PL_PAGES_FULL, PL_PAGES_WINDOWED, PL_PAGE_GROUPS };

struct pl_page_pools {
    struct pl_page_pool *of[PL_PAGE_GROUPS]; /* the second NULL: no such group */
    uint32_t window;                         /* tokens that a windowed layer's row sees, its own included */
};
struct pl_block_tables {
    struct pl_block_table of[PL_PAGE_GROUPS];
};
/* A shared last page that was replaced: to be copied before it is written. from UINT32_MAX: none. */
struct pl_page_copy {
    enum pl_page_group group;
    uint32_t from, to;
};

/* Pages of the windowed group that a sequence owns at most while a step computes `rows` of its tokens, when those are given
 * back that nobody sees from the last whole page on. UINT32_MAX: more than can be counted. */
uint32_t pl_window_pages(uint32_t window, uint32_t page_tokens, uint32_t rows);
/* The first token that the row at position `next` sees, and those after it. */
uint32_t pl_window_first(uint32_t window, uint32_t next);

/* As pl_block_table_extend, for both or none. copies: PL_PAGE_GROUPS entries. */
enum pl_status pl_block_tables_extend(struct pl_block_tables *t, const struct pl_page_pools *p, uint32_t extra,
                                      struct pl_page_copy *copies) PL_MUST_CHECK;
void pl_block_tables_set_length(struct pl_block_tables *t, const struct pl_page_pools *p, uint32_t len);
/* Gives back the windowed pages that no row from position `next` on sees. */
void pl_block_tables_trim(struct pl_block_tables *t, const struct pl_page_pools *p, uint32_t next);
/* False: windowed pages that the row at position len needs were given back. Then nothing changed. */
bool pl_block_tables_truncate(struct pl_block_tables *t, const struct pl_page_pools *p, uint32_t len) PL_MUST_CHECK;
/* As they were before an extend. */
void pl_block_tables_undo(struct pl_block_tables *t, const struct pl_page_pools *p);
void pl_block_tables_deinit(struct pl_block_tables *t, const struct pl_page_pools *p);
/* One number for both pools: equal ones, equal block tables. */
uint64_t pl_page_pools_epoch(const struct pl_page_pools *p);

#endif
