/* grammar_run.c - states of a grammar, made when they are first met. A position is a BYTES node with a stack; stacks are
 * shared frames, equal ones stored once, so that equal states are found by comparing numbers. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sample/grammar_internal.h"

enum {
    POSITIONS_MAX = 4096, /* in one state */
    FRAMES_MAX = 1 << 20, /* stack frames of a run */
    TRIM_STATES = 4096,   /* beyond that many the store is emptied when asked */
    TRIM_ITEMS = 1 << 20,
    TRIM_FRAMES = 1 << 16,
    CLOSURE_MAX = 1 << 16, /* positions that one step may look at */
    STATE_COST = 64,       /* of a budget: what a new state costs beside its positions */
};
#define UNKNOWN  UINT32_MAX
#define NO_FRAME 0u

struct frame {
    uint32_t node, parent; /* where to go on after the rule, and the stack below */
};
struct position {
    uint32_t node, frame;
};
struct state {
    size_t first; /* into positions */
    uint32_t count, hash;
    bool accepts;
    uint32_t *next; /* [256], made when first stepped */
};

struct pl_grammar_run {
    const struct pl_grammar *g;
    struct frame *frames; /* [0] is the bottom */
    size_t frame_count, frame_cap;
    uint32_t *frame_index; /* open addressing, 0 = free */
    size_t frame_slots;
    struct position *positions;
    size_t position_count, position_cap;
    struct state *states; /* [0] is dead */
    size_t state_count, state_cap;
    uint32_t *state_index;
    size_t state_slots;
    struct position *work, *found; /* of a closure */
    size_t work_cap, found_cap, found_count;
    struct seen { /* which positions are in work already; an entry of another epoch is free */
        uint32_t epoch, index;
    } * seen;
    size_t seen_slots;
    uint32_t epoch;
    uint64_t budget;
    uint32_t start;
};

static uint32_t mix(uint32_t a, uint32_t b) {
    uint64_t x = ((uint64_t)a << 32 | b) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(x >> 32) ^ (uint32_t)(x >> 15);
}

/* ---------- frames ---------- */

static enum pl_status grow_index(uint32_t **index, size_t *slots) {
    size_t fresh = *slots == 0 ? 256 : *slots * 2;
    uint32_t *p = pl_calloc(fresh, sizeof *p);
    if (p == NULL) return PL_NO_MEMORY;
    pl_free(*index);
    *index = p;
    *slots = fresh;
    return PL_OK;
}

static enum pl_status intern_frame(struct pl_grammar_run *r, uint32_t node, uint32_t parent, uint32_t *out) {
    if ((r->frame_count + 1) * 2 >= r->frame_slots) {
        PL_TRY(grow_index(&r->frame_index, &r->frame_slots));
        for (uint32_t i = 1; i < r->frame_count; i++) {
            size_t at = mix(r->frames[i].node, r->frames[i].parent) & (r->frame_slots - 1);
            while (r->frame_index[at] != 0) at = (at + 1) & (r->frame_slots - 1);
            r->frame_index[at] = i;
        }
    }
    size_t at = mix(node, parent) & (r->frame_slots - 1);
    for (; r->frame_index[at] != 0; at = (at + 1) & (r->frame_slots - 1)) {
        const struct frame *f = &r->frames[r->frame_index[at]];
        if (f->node != node || f->parent != parent) continue;
        *out = r->frame_index[at];
        return PL_OK;
    }
    if (r->frame_count == FRAMES_MAX) return PL_LIMIT;
    PL_TRY(pl_grow(&r->frames, &r->frame_cap, r->frame_count + 1, sizeof *r->frames));
    r->frames[r->frame_count] = (struct frame){node, parent};
    r->frame_index[at] = *out = (uint32_t)r->frame_count++;
    return PL_OK;
}

/* ---------- closure: from positions to the bytes that may come next ---------- */

/* Twice the places, for what is in work[0..count). */
static enum pl_status grow_seen(struct pl_grammar_run *r, size_t count) {
    size_t slots = r->seen_slots == 0 ? 256 : r->seen_slots * 2;
    struct seen *fresh = pl_calloc(slots, sizeof *fresh);
    if (fresh == NULL) return PL_NO_MEMORY;
    pl_free(r->seen);
    r->seen = fresh;
    r->seen_slots = slots;
    r->epoch = 1;
    for (size_t i = 0; i < count; i++) {
        size_t at = mix(r->work[i].node, r->work[i].frame) & (slots - 1);
        while (fresh[at].epoch == r->epoch) at = (at + 1) & (slots - 1);
        fresh[at] = (struct seen){r->epoch, (uint32_t)i};
    }
    return PL_OK;
}

static void begin_closure(struct pl_grammar_run *r) {
    r->found_count = 0;
    if (++r->epoch != 0) return;
    if (r->seen != NULL) memset(r->seen, 0, r->seen_slots * sizeof *r->seen);
    r->epoch = 1;
}

/* Each position once: loops of parts that match nothing end here. */
static enum pl_status push(struct pl_grammar_run *r, size_t *count, uint32_t node, uint32_t frame) {
    if ((*count + 1) * 2 > r->seen_slots) PL_TRY(grow_seen(r, *count));
    size_t at = mix(node, frame) & (r->seen_slots - 1);
    for (; r->seen[at].epoch == r->epoch; at = (at + 1) & (r->seen_slots - 1)) {
        const struct position *p = &r->work[r->seen[at].index];
        if (p->node == node && p->frame == frame) return PL_OK;
    }
    if (*count == CLOSURE_MAX || r->budget == 0) return PL_LIMIT;
    r->budget--;
    PL_TRY(pl_grow(&r->work, &r->work_cap, *count + 1, sizeof *r->work));
    r->seen[at] = (struct seen){r->epoch, (uint32_t)*count};
    r->work[(*count)++] = (struct position){node, frame};
    return PL_OK;
}

static enum pl_status add_found(struct pl_grammar_run *r, struct position p) {
    if (r->found_count == POSITIONS_MAX) return PL_LIMIT;
    PL_TRY(pl_grow(&r->found, &r->found_cap, r->found_count + 1, sizeof *r->found));
    r->found[r->found_count++] = p;
    return PL_OK;
}

static int compare_positions(const void *a, const void *b) {
    const struct position *p = a, *q = b;
    if (p->node != q->node) return p->node < q->node ? -1 : 1;
    return (p->frame > q->frame) - (p->frame < q->frame);
}

/* Equal sets must be equal lists. Most have a handful of positions. */
static void sort_found(struct pl_grammar_run *r) {
    if (r->found_count > 16) {
        qsort(r->found, r->found_count, sizeof *r->found, compare_positions);
        return;
    }
    for (size_t i = 1; i < r->found_count; i++) {
        struct position p = r->found[i];
        size_t k = i;
        for (; k > 0 && compare_positions(&r->found[k - 1], &p) > 0; k--) r->found[k] = r->found[k - 1];
        r->found[k] = p;
    }
}

/* From the positions in work[0..count), which grows, to those that wait for a byte. */
static enum pl_status close_positions(struct pl_grammar_run *r, size_t count, bool *accepts) {
    for (size_t i = 0; i < count; i++) {
        struct position p = r->work[i];
        const struct node *n = &r->g->nodes[p.node];
        switch ((enum node_kind)n->kind) {
        case NODE_BYTES: PL_TRY(add_found(r, p)); break;
        case NODE_SPLIT:
            PL_TRY(push(r, &count, n->a, p.frame));
            PL_TRY(push(r, &count, n->b, p.frame));
            break;
        case NODE_CALL: {
            uint32_t frame = 0;
            PL_TRY(intern_frame(r, n->b, p.frame, &frame));
            PL_TRY(push(r, &count, r->g->rules[n->a].start, frame));
            break;
        }
        case NODE_RETURN:
            if (p.frame == NO_FRAME)
                *accepts = true;
            else
                PL_TRY(push(r, &count, r->frames[p.frame].node, r->frames[p.frame].parent));
            break;
        }
    }
    sort_found(r);
    return PL_OK;
}

/* ---------- states ---------- */

static uint32_t hash_found(const struct pl_grammar_run *r, bool accepts) {
    uint32_t h = accepts;
    for (size_t i = 0; i < r->found_count; i++) h = mix(h ^ r->found[i].node, r->found[i].frame + 0x9E37u);
    return h;
}

static enum pl_status index_states(struct pl_grammar_run *r) {
    if ((r->state_count + 1) * 2 < r->state_slots) return PL_OK;
    PL_TRY(grow_index(&r->state_index, &r->state_slots));
    for (uint32_t i = 1; i < r->state_count; i++) {
        size_t at = r->states[i].hash & (r->state_slots - 1);
        while (r->state_index[at] != 0) at = (at + 1) & (r->state_slots - 1);
        r->state_index[at] = i;
    }
    return PL_OK;
}

static enum pl_status intern_state(struct pl_grammar_run *r, bool accepts, uint32_t *out) {
    if (r->found_count == 0 && !accepts) {
        *out = PL_GRAMMAR_DEAD;
        return PL_OK;
    }
    PL_TRY(index_states(r));
    uint32_t h = hash_found(r, accepts);
    size_t at = h & (r->state_slots - 1);
    for (; r->state_index[at] != 0; at = (at + 1) & (r->state_slots - 1)) {
        const struct state *s = &r->states[r->state_index[at]];
        if (s->hash != h || s->accepts != accepts || s->count != r->found_count) continue;
        if (s->count > 0 && memcmp(r->positions + s->first, r->found, s->count * sizeof *r->found) != 0) continue;
        *out = r->state_index[at];
        return PL_OK;
    }
    if (r->budget < STATE_COST) return PL_LIMIT;
    r->budget -= STATE_COST;
    PL_TRY(pl_grow(&r->positions, &r->position_cap, r->position_count + r->found_count, sizeof *r->positions));
    PL_TRY(pl_grow(&r->states, &r->state_cap, r->state_count + 1, sizeof *r->states));
    if (r->found_count > 0) memcpy(r->positions + r->position_count, r->found, r->found_count * sizeof *r->found);
    r->states[r->state_count] = (struct state){r->position_count, (uint32_t)r->found_count, h, accepts, NULL};
    r->position_count += r->found_count;
    r->state_index[at] = *out = (uint32_t)r->state_count++;
    return PL_OK;
}

void pl_grammar_run_refill(struct pl_grammar_run *r) { r->budget = PL_GRAMMAR_BUDGET; }
uint32_t pl_grammar_start(const struct pl_grammar_run *r) { return r->start; }
bool pl_grammar_accepts(const struct pl_grammar_run *r, uint32_t state) { return r->states[state].accepts; }

static enum pl_status compute(struct pl_grammar_run *r, uint32_t state, unsigned char byte, uint32_t *next) {
    const struct state *s = &r->states[state];
    size_t count = 0;
    bool accepts = false;
    begin_closure(r);
    for (uint32_t i = 0; i < s->count; i++) {
        struct position p = r->positions[s->first + i];
        const struct node *n = &r->g->nodes[p.node];
        if (byte >= n->low && byte <= n->high) PL_TRY(push(r, &count, n->a, p.frame));
    }
    PL_TRY(close_positions(r, count, &accepts));
    return intern_state(r, accepts, next);
}

enum pl_status pl_grammar_step(struct pl_grammar_run *r, uint32_t state, unsigned char byte, uint32_t *next) {
    if (state == PL_GRAMMAR_DEAD) {
        *next = PL_GRAMMAR_DEAD;
        return PL_OK;
    }
    if (r->states[state].next == NULL) {
        uint32_t *table = pl_alloc(256, sizeof *table);
        if (table == NULL) return PL_NO_MEMORY;
        memset(table, 0xFF, 256 * sizeof *table);
        r->states[state].next = table;
    }
    if (r->states[state].next[byte] == UNKNOWN) {
        uint32_t to = 0;
        PL_TRY(compute(r, state, byte, &to));
        r->states[state].next[byte] = to;
    }
    *next = r->states[state].next[byte];
    return PL_OK;
}

/* ---------- life ---------- */

static void forget(struct pl_grammar_run *r) {
    for (size_t i = 0; i < r->state_count; i++) pl_free(r->states[i].next);
    r->state_count = 1;
    r->states[0] = (struct state){0};
    r->position_count = 0;
    if (r->state_slots > 0) memset(r->state_index, 0, r->state_slots * sizeof *r->state_index);
}

/* The frames of the state that is kept, from the bottom up: a parent's number is always smaller. */
static void keep_frames(struct pl_grammar_run *r, struct position *kept, size_t count, uint32_t *fresh) {
    memset(fresh, 0, r->frame_count * sizeof *fresh);
    for (size_t i = 0; i < count; i++)
        for (uint32_t f = kept[i].frame; f != NO_FRAME && fresh[f] == 0; f = r->frames[f].parent) fresh[f] = 1;
    uint32_t n = 1;
    for (uint32_t f = 1; f < r->frame_count; f++) {
        if (fresh[f] == 0) continue;
        r->frames[n] = (struct frame){r->frames[f].node, fresh[r->frames[f].parent]};
        fresh[f] = n++;
    }
    r->frame_count = n;
    memset(r->frame_index, 0, r->frame_slots * sizeof *r->frame_index);
    for (uint32_t i = 1; i < n; i++) {
        size_t at = mix(r->frames[i].node, r->frames[i].parent) & (r->frame_slots - 1);
        while (r->frame_index[at] != 0) at = (at + 1) & (r->frame_slots - 1);
        r->frame_index[at] = i;
    }
    for (size_t i = 0; i < count; i++) kept[i].frame = kept[i].frame == NO_FRAME ? NO_FRAME : fresh[kept[i].frame];
}

bool pl_grammar_run_trim(struct pl_grammar_run *r, uint32_t *state) {
    if (r->state_count < TRIM_STATES && r->position_count < TRIM_ITEMS && r->frame_count < TRIM_FRAMES) return false;
    if (*state == PL_GRAMMAR_DEAD) return false;
    struct state s = r->states[*state];
    uint32_t *fresh = pl_alloc(r->frame_count, sizeof *fresh);
    if (fresh == NULL || pl_grow(&r->found, &r->found_cap, s.count, sizeof *r->found) != PL_OK) {
        pl_free(fresh);
        return false; /* later, then */
    }
    if (s.count > 0) memcpy(r->found, r->positions + s.first, s.count * sizeof *r->found);
    if (r->frame_slots > 0) keep_frames(r, r->found, s.count, fresh);
    pl_free(fresh);
    forget(r);
    /* Renumbering keeps the order of frames, so the positions stay sorted. */
    r->found_count = s.count;
    r->budget = STATE_COST;
    PL_ASSERT(intern_state(r, s.accepts, state) == PL_OK); /* everything it needs is allocated */
    return true;
}

enum pl_status pl_grammar_run_create(const struct pl_grammar *g, struct pl_grammar_run **out, struct pl_err *err) {
    struct pl_grammar_run *r = pl_calloc(1, sizeof *r);
    if (r == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for the grammar");
    r->g = g;
    r->budget = PL_GRAMMAR_BUDGET;
    r->frame_count = r->state_count = 1;
    size_t count = 0;
    bool accepts = false;
    enum pl_status st = pl_grow(&r->frames, &r->frame_cap, 1, sizeof *r->frames);
    if (st == PL_OK) st = pl_grow(&r->states, &r->state_cap, 1, sizeof *r->states);
    if (st == PL_OK) {
        r->frames[0] = (struct frame){0};
        r->states[0] = (struct state){0};
        begin_closure(r);
        st = push(r, &count, g->rules[g->root].start, NO_FRAME);
    }
    if (st == PL_OK) st = close_positions(r, count, &accepts);
    if (st == PL_OK) st = intern_state(r, accepts, &r->start);
    if (st != PL_OK) {
        pl_grammar_run_destroy(r);
        PL_FAIL(err, st, st == PL_LIMIT ? "the grammar allows too many ways at its beginning" : "no memory for the grammar");
    }
    *out = r;
    return PL_OK;
}

void pl_grammar_run_destroy(struct pl_grammar_run *r) {
    if (r == NULL) return;
    for (size_t i = 0; r->states != NULL && i < r->state_count; i++) pl_free(r->states[i].next);
    pl_free(r->frames);
    pl_free(r->frame_index);
    pl_free(r->positions);
    pl_free(r->states);
    pl_free(r->state_index);
    pl_free(r->work);
    pl_free(r->found);
    pl_free(r->seen);
    pl_free(r);
}
