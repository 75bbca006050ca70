#include "kv/tables.h"

#include "base/check.h"

uint32_t pl_window_pages(uint32_t window, uint32_t page_tokens, uint32_t rows) {
    uint64_t before = ((uint64_t)window - 1 + page_tokens - 1) / page_tokens,
             after = ((uint64_t)PL_MAX(rows, 1u) - 1 + page_tokens - 1) / page_tokens;
    return (uint32_t)PL_MIN(before + after + 1, (uint64_t)UINT32_MAX);
}

uint32_t pl_window_first(uint32_t window, uint32_t next) { return next >= window ? next - window + 1 : 0; }

enum pl_status pl_block_tables_extend(struct pl_block_tables *t, const struct pl_page_pools *p, uint32_t extra,
                                      struct pl_page_copy *copies) {
    for (int g = 0; g < PL_PAGE_GROUPS; g++) {
        copies[g] = (struct pl_page_copy){(enum pl_page_group)g, UINT32_MAX, UINT32_MAX};
        if (p->of[g] != NULL) PL_TRY(pl_block_table_reserve(&t->of[g], p->of[g], extra));
    }
    for (int g = 0; g < PL_PAGE_GROUPS; g++) /* only a dense pool, which is alone, can fail now */
        if (p->of[g] != NULL) PL_TRY(pl_block_table_extend(&t->of[g], p->of[g], extra, &copies[g].from, &copies[g].to));
    return PL_OK;
}

void pl_block_tables_set_length(struct pl_block_tables *t, const struct pl_page_pools *p, uint32_t len) {
    for (int g = 0; g < PL_PAGE_GROUPS; g++)
        if (p->of[g] != NULL) t->of[g].len = len;
}

void pl_block_tables_trim(struct pl_block_tables *t, const struct pl_page_pools *p, uint32_t next) {
    if (p->of[PL_PAGES_WINDOWED] == NULL) return;
    pl_block_table_trim(&t->of[PL_PAGES_WINDOWED], p->of[PL_PAGES_WINDOWED], pl_window_first(p->window, next));
}

bool pl_block_tables_truncate(struct pl_block_tables *t, const struct pl_page_pools *p, uint32_t len) {
    const struct pl_block_table *w = &t->of[PL_PAGES_WINDOWED];
    if (len > 0 && w->gone > 0 && pl_window_first(p->window, len) / p->of[PL_PAGES_WINDOWED]->page_tokens < w->gone)
        return false;
    for (int g = 0; g < PL_PAGE_GROUPS; g++)
        if (p->of[g] != NULL) pl_block_table_truncate(&t->of[g], p->of[g], len);
    return true;
}

void pl_block_tables_undo(struct pl_block_tables *t, const struct pl_page_pools *p) {
    for (int g = 0; g < PL_PAGE_GROUPS; g++)
        if (p->of[g] != NULL) pl_block_table_truncate(&t->of[g], p->of[g], t->of[g].len);
}

void pl_block_tables_deinit(struct pl_block_tables *t, const struct pl_page_pools *p) {
    for (int g = 0; g < PL_PAGE_GROUPS; g++)
        if (p->of[g] != NULL) pl_block_table_deinit(&t->of[g], p->of[g]);
}

uint64_t pl_page_pools_epoch(const struct pl_page_pools *p) {
    const struct pl_page_pool *w = p->of[PL_PAGES_WINDOWED];
    return p->of[PL_PAGES_FULL]->epoch + (w != NULL ? w->epoch : 0); /* both only grow */
}
