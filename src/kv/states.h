/* states - kept copies of recurrent state, by number and reference count. The bytes belong to ops.
 *
 * A copy is free or referenced, never both: by the node of the prefix tree that stands where it was taken, by the request
 * that took it, by a request that will begin with it. One thread (or one lock) owns it. */
#ifndef PL_KV_STATES_H
#define PL_KV_STATES_H

#include <stdint.h>

#include "base/status.h"

#define PL_STATE_NONE UINT32_MAX
struct pl_state_pool {
    uint32_t count, free_count;
    uint32_t *refs;      /* [count] */
    uint32_t *free_list; /* [count] stack */
};
enum pl_status pl_state_pool_init(struct pl_state_pool *p, uint32_t count) PL_MUST_CHECK;
void pl_state_pool_deinit(struct pl_state_pool *p);
uint32_t pl_state_take(struct pl_state_pool *p); /* PL_STATE_NONE when none is free */
void pl_state_ref(struct pl_state_pool *p, uint32_t state);
void pl_state_unref(struct pl_state_pool *p, uint32_t state);

#endif
