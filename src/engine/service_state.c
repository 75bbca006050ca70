/* service_state.c - recurrent state behind the scheduler: every slot of it has a slot of state, and copies of states after
 * whole pages stand with the nodes of the prefix tree.
 *
 * A state exists only at the token where its sequence stands, so copies are made when a step ends there: at the last whole
 * page of the prompt, where a later turn will go on; at every whole page while decoding, the last one kept; and where the
 * pages of a prompt were known but no state was (a fork), because who comes next will begin there too. Prefill stops at the
 * first and the last of these. Copies are the request's until it retires, then the tree's. */
#include "base/mem.h"
#include "engine/service_internal.h"

enum { AT_FORK, AT_PROMPT, AT_LAST };

enum pl_status service_take_states(struct pl_service *s, bool keep) {
    if (!pl_engine_is_recurrent(s->engine)) return PL_OK;
    struct pl_err full;
    s->states = pl_alloc(s->config.max_running, sizeof *s->states);
    if (s->states == NULL) return PL_NO_MEMORY;
    for (; s->state_count < s->config.max_running; s->state_count++)
        if (pl_engine_take_state(s->engine, &s->states[s->state_count], &full) != PL_OK) break;
    s->config.max_running = s->state_count; /* sessions may hold the others */
    if (s->state_count == 0) return PL_LIMIT;
    return keep && s->engine->kept_states > 0 ? pl_state_pool_init(&s->kept, s->engine->kept_states) : PL_OK;
}

void service_give_states(struct pl_service *s) {
    for (uint32_t i = 0; i < s->state_count; i++) pl_engine_give_state(s->engine, s->states[i]);
    pl_free(s->states);
    pl_state_pool_deinit(&s->kept);
}

static uint32_t slot_of(const struct pl_service *s, uint32_t kept) { return s->engine->max_sessions + kept; }
static uint32_t page_of(const struct pl_service *s) { return s->engine->pages.page_tokens; }
/* The last whole page that a prompt's tokens can be adopted to. */
static uint32_t prompt_end(const struct pl_service *s, const struct request *r) {
    return (r->prompt - 1) / page_of(s) * page_of(s);
}

uint32_t service_adopt_state(struct pl_service *s, struct request *r, struct pl_block_tables *tables) {
    uint32_t matched;
    uint32_t n = pl_prefix_adopt_state(s->tree, s->space, r->tokens, r->known, tables, &r->restore, &matched);
    s->info.prefix_declined += n < matched;
    s->info.states_restored += n > 0;
    r->fork = n < matched ? matched : 0;
    return n;
}

static void let_go(struct pl_service *s, struct kept_state *k) {
    if (k->len > 0) pl_state_unref(&s->kept, k->state);
    *k = (struct kept_state){0};
}

/* A copy whose tokens did not all come to be (a surplus row) is of no use. */
void service_retire_states(struct pl_service *s, struct request *r, uint32_t computed, bool sound) {
    if (r->restore != PL_STATE_NONE) pl_state_unref(&s->kept, r->restore);
    r->restore = PL_STATE_NONE;
    for (size_t i = 0; i < PL_COUNT_OF(r->kept); i++) {
        struct kept_state *k = &r->kept[i];
        if (sound && k->len > 0 && k->len <= computed && k->len <= r->known)
            pl_prefix_attach(s->tree, s->space, r->tokens, k->len, k->state);
        let_go(s, k);
    }
}

uint32_t service_state_most(void *user, uint64_t id, uint32_t computed, uint32_t count) {
    struct pl_service *s = user;
    const struct request *r = service_request_of(s, id);
    const uint32_t stops[] = {r->fork, prompt_end(s, r)};
    for (size_t i = 0; i < PL_COUNT_OF(stops); i++)
        if (stops[i] > computed && stops[i] - computed < count) count = stops[i] - computed;
    return count;
}

static bool take_kept(struct pl_service *s, uint32_t *out) {
    *out = pl_state_take(&s->kept);
    if (*out == PL_STATE_NONE && pl_prefix_drop_state(s->tree)) *out = pl_state_take(&s->kept);
    if (*out == PL_STATE_NONE) s->info.states_skipped++;
    return *out != PL_STATE_NONE;
}

/* Which copy a step that ends with `end` tokens is for; false: none. */
static bool copy_at(const struct pl_service *s, const struct request *r, uint32_t end, bool decodes, size_t *which) {
    if (s->kept.count == 0 || end % page_of(s) != 0) return false;
    *which = end == r->fork ? AT_FORK : end == prompt_end(s, r) ? AT_PROMPT : AT_LAST;
    return *which != AT_LAST || decodes;
}

uint32_t service_place_state(struct pl_service *s, struct flight *f, uint32_t i) {
    const struct pl_sched_item *it = &f->item[i];
    struct request *r = f->request[i];
    uint32_t slot = s->states[it->slot], end = it->first + it->count;
    size_t which;
    f->before[i] = f->after[i] = (struct state_copy){slot, slot};
    if (r->restore !=
        PL_STATE_NONE) { /* copies are in the order of steps: it may be taken again once this one is enqueued */
        f->before[i].from = slot_of(s, r->restore);
        pl_state_unref(&s->kept, r->restore);
        r->restore = PL_STATE_NONE;
    }
    if (!copy_at(s, r, end, it->first >= r->prompt, &which)) return slot;
    struct kept_state *k = &r->kept[which];
    uint32_t taken;
    let_go(s, k);
    if (!take_kept(s, &taken)) return slot;
    *k = (struct kept_state){taken, end};
    f->after[i].to = slot_of(s, taken);
    s->info.states_kept++;
    return slot;
}

enum pl_status service_copy_states(struct pl_service *s, const struct state_copy *list, uint32_t count) {
    struct plumb_engine *e = s->engine;
    for (uint32_t i = 0; i < count; i++) PL_TRY(pl_ops_state_copy(e->ops, e->kv, list[i].from, list[i].to));
    return PL_OK;
}
