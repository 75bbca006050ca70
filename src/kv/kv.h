/* kv - bookkeeping of KV pages: page numbers, reference counts, block tables. Never addresses.
 *
 * A page holds S tokens of one sequence for all layers. Pages are reference counted; a shared page is copied before it
 * is written. Invariants: a page is free xor referenced; free + referenced = total; a block table covers exactly
 * ceil(len / S) pages. Not thread safe: the engine thread owns it. */
#ifndef PL_KV_KV_H
#define PL_KV_KV_H

#include <stdint.h>

#include "base/status.h"

struct pl_page_pool {
    uint32_t page_count, page_tokens, free_count;
    uint32_t *refs;       /* [page_count] */
    uint32_t *generation; /* [page_count], bumped each time a page is freed */
    uint32_t *free_list;  /* [page_count] stack */
    uint32_t lane_pages;  /* 0: any page for anyone; else dense: a table's pages are one lane's, in order */
    uint64_t epoch;       /* grows whenever a page is taken, shared or let go: equal epochs, equal block tables */
};
enum pl_status pl_page_pool_init(struct pl_page_pool *p, uint32_t page_count, uint32_t page_tokens) PL_MUST_CHECK;
/* Dense: `lanes` runs of lane_pages pages; a sequence owns a run while it holds any page, nothing is shared. */
enum pl_status pl_page_pool_init_dense(struct pl_page_pool *p, uint32_t lanes, uint32_t lane_pages,
                                       uint32_t page_tokens) PL_MUST_CHECK;
void pl_page_pool_deinit(struct pl_page_pool *p);
enum pl_status pl_page_take(struct pl_page_pool *p, uint32_t *page); /* PL_NO_MEMORY when none is free; never dense */
void pl_page_ref(struct pl_page_pool *p, uint32_t page);
void pl_page_unref(struct pl_page_pool *p, uint32_t page);

/* The pages of one sequence. */
struct pl_block_table {
    uint32_t *pages;
    uint32_t count, cap;
    uint32_t len;  /* tokens */
    uint32_t gone; /* leading entries whose pages were given back (sliding windows); their numbers mean nothing */
};
void pl_block_table_deinit(struct pl_block_table *t, struct pl_page_pool *p);
/* Makes room for `extra` more tokens (pages taken all or none); len is not changed. *copy_from/_to report the one
 * shared last page that had to be replaced (copy_from == UINT32_MAX: none): the caller copies it before writing. */
enum pl_status pl_block_table_extend(struct pl_block_table *t, struct pl_page_pool *p, uint32_t extra, uint32_t *copy_from,
                                     uint32_t *copy_to) PL_MUST_CHECK;
/* Whether extend would succeed; nothing but the list's room changes. Dense pools: always PL_OK or PL_LIMIT. */
enum pl_status pl_block_table_reserve(struct pl_block_table *t, const struct pl_page_pool *p, uint32_t extra) PL_MUST_CHECK;
void pl_block_table_truncate(struct pl_block_table *t, struct pl_page_pool *p, uint32_t len);
/* Gives back the pages that hold nothing but tokens before `first`, which no later step reads. Dense pools keep them. The
 * table can then only be emptied or extended. */
void pl_block_table_trim(struct pl_block_table *t, struct pl_page_pool *p, uint32_t first);
/* t becomes a copy-on-write copy of the first len tokens of src. PL_UNSUPPORTED in a dense pool, or
 * when src was trimmed. */
enum pl_status pl_block_table_fork(struct pl_block_table *t, const struct pl_block_table *src, struct pl_page_pool *p,
                                   uint32_t len) PL_MUST_CHECK;

#endif
