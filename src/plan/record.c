/* record - a plan as the words that kernels read (layout: kernels/args/args.h). */
#include <string.h>

#include "plan/plan.h"

size_t pl_plan_words(const struct pl_plan *p) {
    return PL_PLAN_HEADER_WORDS + ((size_t)p->chunk_count + PL_PLAN_CHUNKS_SPARE) * PL_PLAN_CHUNK_WORDS + p->member_count +
           2 * p->merge_count + 1 + (size_t)p->state_count * PL_PLAN_STATE_WORDS + 5 * ((size_t)p->rows + 1) +
           p->page_entries;
}

static uint32_t put(uint32_t *out, uint32_t *at, const uint32_t *words, uint32_t count) {
    uint32_t place = *at;
    if (count > 0) memcpy(out + place, words, count * sizeof *out);
    *at += count;
    return place;
}

static void put_chunk(const struct pl_plan *p, uint32_t *out, uint32_t i, uint32_t *at) {
    const struct pl_plan_chunk *c = &p->chunks[i];
    uint32_t row = p->members[c->member_first], entry = out[out[PL_PLAN_ROW_MERGE] + row];
    bool merged = entry != PL_PLAN_DIRECT;
    const uint32_t words[PL_PLAN_CHUNK_WORDS] = {c->page_first,
                                                 c->page_count,
                                                 c->skip,
                                                 c->tokens,
                                                 c->member_first,
                                                 c->members,
                                                 c->part_first,
                                                 out[PL_PLAN_PAGE_INDEX] + c->page_first,
                                                 out[PL_PLAN_MEMBERS] + c->member_first,
                                                 row,
                                                 c->page_first + c->page_count == p->page_start[c->row + 1],
                                                 entry,
                                                 merged ? out[PL_PLAN_STATES] + p->merge_start[entry] * PL_PLAN_STATE_WORDS
                                                        : 0,
                                                 merged ? p->merge_start[entry + 1] - p->merge_start[entry] : 0};
    (void)put(out, at, words, PL_PLAN_CHUNK_WORDS);
}

/* Last: what they point at is in the record already. */
static uint32_t put_chunks(const struct pl_plan *p, uint32_t *out) {
    uint32_t at = PL_PLAN_HEADER_WORDS;
    for (uint32_t i = 0; i < p->chunk_count; i++) put_chunk(p, out, i, &at);
    memset(out + at, 0, (size_t)PL_PLAN_CHUNKS_SPARE * PL_PLAN_CHUNK_WORDS * sizeof *out);
    return PL_PLAN_HEADER_WORDS;
}

static uint32_t put_row_merge(const struct pl_plan *p, uint32_t *out, uint32_t *at) {
    uint32_t place = *at;
    for (uint32_t i = 0; i < p->rows; i++) out[place + i] = PL_PLAN_DIRECT;
    for (uint32_t i = 0; i < p->merge_count; i++) out[place + p->merge_row[i]] = i;
    *at += p->rows;
    return place;
}

static uint32_t put_states(const struct pl_plan *p, uint32_t *out, uint32_t *at) {
    uint32_t place = *at;
    for (uint32_t i = 0; i < p->state_count; i++) {
        const struct pl_plan_state *s = &p->states[i];
        const uint32_t words[PL_PLAN_STATE_WORDS] = {s->part_first, s->members, s->member, 0};
        (void)put(out, at, words, PL_PLAN_STATE_WORDS);
    }
    return place;
}

void pl_plan_write(const struct pl_plan *p, uint32_t *out) {
    uint32_t at = PL_PLAN_HEADER_WORDS + (p->chunk_count + PL_PLAN_CHUNKS_SPARE) * PL_PLAN_CHUNK_WORDS, zero = 0, dense = 0;
    memset(out, 0, PL_PLAN_HEADER_WORDS * sizeof *out);
    out[PL_PLAN_CHUNK_COUNT] = p->chunk_count;
    out[PL_PLAN_MERGE_COUNT] = p->merge_count;
    out[PL_PLAN_ROW_COUNT] = p->rows;
    out[PL_PLAN_SHARED_COUNT] = p->shared_count;
    out[PL_PLAN_STATES] = put_states(p, out, &at);
    out[PL_PLAN_MEMBERS] = put(out, &at, p->members, p->member_count);
    out[PL_PLAN_MERGE_ROW] = put(out, &at, p->merge_row, p->merge_count);
    out[PL_PLAN_MERGE_START] =
        p->merge_count > 0 ? put(out, &at, p->merge_start, p->merge_count + 1) : put(out, &at, &zero, 1);
    out[PL_PLAN_PAGE_START] = p->rows > 0 ? put(out, &at, p->page_start, p->rows + 1) : put(out, &at, &zero, 1);
    out[PL_PLAN_FIRST_OFFSET] = put(out, &at, p->first_offset, p->rows);
    out[PL_PLAN_VISIBLE] = put(out, &at, p->visible, p->rows);
    out[PL_PLAN_DENSE_START] = at;
    for (uint32_t i = 0; i < p->rows; dense += p->visible[i++]) out[at++] = dense;
    out[at++] = dense;
    out[PL_PLAN_ROW_MERGE] = put_row_merge(p, out, &at);
    out[PL_PLAN_PAGE_INDEX] = put(out, &at, p->page_index, p->page_entries);
    out[PL_PLAN_CHUNKS] = put_chunks(p, out);
}
