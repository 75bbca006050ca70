#include "kv/kv.h"

#include <string.h>

#include "base/check.h"
#include "base/mem.h"

enum pl_status pl_page_pool_init(struct pl_page_pool *p, uint32_t page_count, uint32_t page_tokens) {
    PL_ASSERT(page_tokens > 0);
    struct pl_page_pool made = {.page_count = page_count, .page_tokens = page_tokens, .free_count = page_count};
    made.refs = pl_calloc(page_count, sizeof *made.refs);
    made.generation = pl_calloc(page_count, sizeof *made.generation);
    made.free_list = pl_calloc(page_count, sizeof *made.free_list);
    if (made.refs == NULL || made.generation == NULL || made.free_list == NULL) {
        pl_page_pool_deinit(&made);
        return PL_NO_MEMORY;
    }
    for (uint32_t i = 0; i < page_count; i++) made.free_list[i] = page_count - 1 - i; /* page 0 is taken first */
    *p = made;
    return PL_OK;
}

enum pl_status pl_page_pool_init_dense(struct pl_page_pool *p, uint32_t lanes, uint32_t lane_pages, uint32_t page_tokens) {
    PL_ASSERT(lane_pages > 0);
    if ((uint64_t)lanes * lane_pages > UINT32_MAX) return PL_LIMIT;
    PL_TRY(pl_page_pool_init(p, lanes * lane_pages, page_tokens));
    p->lane_pages = lane_pages;
    return PL_OK;
}

void pl_page_pool_deinit(struct pl_page_pool *p) {
    pl_free(p->refs);
    pl_free(p->generation);
    pl_free(p->free_list);
    *p = (struct pl_page_pool){0};
}

enum pl_status pl_page_take(struct pl_page_pool *p, uint32_t *page) {
    PL_ASSERT(p->lane_pages == 0);
    if (p->free_count == 0) return PL_NO_MEMORY;
    uint32_t taken = p->free_list[--p->free_count];
    PL_ASSERT(p->refs[taken] == 0);
    p->refs[taken] = 1;
    p->epoch++;
    *page = taken;
    return PL_OK;
}

void pl_page_ref(struct pl_page_pool *p, uint32_t page) {
    PL_ASSERT(page < p->page_count && p->refs[page] > 0 && p->refs[page] < UINT32_MAX);
    p->refs[page]++;
    p->epoch++;
}

void pl_page_unref(struct pl_page_pool *p, uint32_t page) {
    PL_ASSERT(page < p->page_count && p->refs[page] > 0);
    p->epoch++;
    if (--p->refs[page] > 0) return;
    p->generation[page]++;
    if (p->lane_pages == 0) p->free_list[p->free_count] = page;
    p->free_count++;
}

static uint32_t pages_for(uint64_t tokens, uint32_t page_tokens) {
    return (uint32_t)((tokens + page_tokens - 1) / page_tokens);
}

void pl_block_table_deinit(struct pl_block_table *t, struct pl_page_pool *p) {
    for (uint32_t i = t->gone; i < t->count; i++) pl_page_unref(p, t->pages[i]);
    pl_free(t->pages);
    *t = (struct pl_block_table){0};
}

static enum pl_status grow_table(struct pl_block_table *t, uint32_t need) {
    size_t cap = t->cap;
    PL_TRY(pl_grow(&t->pages, &cap, need, sizeof *t->pages));
    t->cap = (uint32_t)PL_MIN(cap, UINT32_MAX);
    return PL_OK;
}

/* The partly filled last page, where the next token will be written, belongs to somebody else too. */
static bool last_page_shared(const struct pl_block_table *t, const struct pl_page_pool *p) {
    return t->len % p->page_tokens != 0 && p->refs[t->pages[t->len / p->page_tokens]] > 1;
}

/* Pages are taken in a lane's order and given back in the reverse: its first page says whether it is in use. */
static enum pl_status extend_dense(struct pl_block_table *t, struct pl_page_pool *p, uint32_t need) {
    uint32_t first = 0;
    if (need > p->lane_pages) return PL_NO_MEMORY;
    if (t->count > 0) {
        first = t->pages[0];
    } else {
        while (first < p->page_count && p->refs[first] > 0) first += p->lane_pages;
        if (first >= p->page_count) return PL_NO_MEMORY;
    }
    PL_TRY(grow_table(t, need));
    for (; t->count < need; t->count++) {
        uint32_t page = first + t->count;
        PL_ASSERT(p->refs[page] == 0);
        p->refs[page] = 1;
        p->free_count--;
        p->epoch++;
        t->pages[t->count] = page;
    }
    return PL_OK;
}

enum pl_status pl_block_table_reserve(struct pl_block_table *t, const struct pl_page_pool *p, uint32_t extra) {
    uint64_t want = (uint64_t)t->len + extra;
    if (want > UINT32_MAX) return PL_LIMIT;
    uint32_t need = pages_for(want, p->page_tokens), fresh = need > t->count ? need - t->count : 0;
    if (p->lane_pages > 0 || extra == 0) return PL_OK;
    if ((uint64_t)fresh + last_page_shared(t, p) > p->free_count) return PL_NO_MEMORY;
    return grow_table(t, need);
}

enum pl_status pl_block_table_extend(struct pl_block_table *t, struct pl_page_pool *p, uint32_t extra, uint32_t *copy_from,
                                     uint32_t *copy_to) {
    *copy_from = *copy_to = UINT32_MAX;
    if (extra == 0) return PL_OK;
    PL_TRY(pl_block_table_reserve(t, p, extra));
    uint32_t need = pages_for((uint64_t)t->len + extra, p->page_tokens);
    if (p->lane_pages > 0) return extend_dense(t, p, need);
    if (last_page_shared(t, p)) {
        uint32_t at = t->len / p->page_tokens, page = 0;
        PL_TRY(pl_page_take(p, &page));
        *copy_from = t->pages[at];
        *copy_to = page;
        pl_page_unref(p, t->pages[at]);
        t->pages[at] = page;
    }
    while (t->count < need) {
        PL_TRY(pl_page_take(p, &t->pages[t->count])); /* cannot fail: reserved */
        t->count++;
    }
    return PL_OK;
}

void pl_block_table_truncate(struct pl_block_table *t, struct pl_page_pool *p, uint32_t len) {
    PL_ASSERT(len <= t->len);
    uint32_t keep = pages_for(len, p->page_tokens);
    PL_ASSERT(len == 0 || keep >= t->gone);
    while (t->count > PL_MAX(keep, t->gone)) pl_page_unref(p, t->pages[--t->count]);
    if (len == 0) t->count = t->gone = 0;
    t->len = len;
}

void pl_block_table_trim(struct pl_block_table *t, struct pl_page_pool *p, uint32_t first) {
    uint32_t until = PL_MIN(first, t->len) / p->page_tokens;
    if (p->lane_pages > 0) return;
    while (t->gone < until) pl_page_unref(p, t->pages[t->gone++]);
}

enum pl_status pl_block_table_fork(struct pl_block_table *t, const struct pl_block_table *src, struct pl_page_pool *p,
                                   uint32_t len) {
    PL_ASSERT(t != src && len <= src->len);
    if (p->lane_pages > 0 || src->gone > 0) return PL_UNSUPPORTED;
    struct pl_block_table made = {.len = len};
    uint32_t count = pages_for(len, p->page_tokens);
    PL_TRY(grow_table(&made, count));
    for (uint32_t i = 0; i < count; i++) {
        pl_page_ref(p, src->pages[i]);
        made.pages[i] = src->pages[i];
    }
    made.count = count;
    pl_block_table_deinit(t, p);
    *t = made;
    return PL_OK;
}
