#include "kv/states.h"

#include "base/check.h"
#include "base/mem.h"

enum pl_status pl_state_pool_init(struct pl_state_pool *p, uint32_t count) {
    struct pl_state_pool made = {.count = count, .free_count = count};
    made.refs = pl_calloc(count, sizeof *made.refs);
    made.free_list = pl_calloc(count, sizeof *made.free_list);
    if (made.refs == NULL || made.free_list == NULL) {
        pl_state_pool_deinit(&made);
        return PL_NO_MEMORY;
    }
    for (uint32_t i = 0; i < count; i++) made.free_list[i] = count - 1 - i; /* smallest number first */
    *p = made;
    return PL_OK;
}

void pl_state_pool_deinit(struct pl_state_pool *p) {
    pl_free(p->refs);
    pl_free(p->free_list);
    *p = (struct pl_state_pool){0};
}

uint32_t pl_state_take(struct pl_state_pool *p) {
    if (p->free_count == 0) return PL_STATE_NONE;
    uint32_t taken = p->free_list[--p->free_count];
    PL_ASSERT(p->refs[taken] == 0);
    p->refs[taken] = 1;
    return taken;
}

void pl_state_ref(struct pl_state_pool *p, uint32_t state) {
    PL_ASSERT(state < p->count && p->refs[state] > 0);
    p->refs[state]++;
}

void pl_state_unref(struct pl_state_pool *p, uint32_t state) {
    PL_ASSERT(state < p->count && p->refs[state] > 0);
    if (--p->refs[state] == 0) p->free_list[p->free_count++] = state;
}
