/* plan - from the lengths and block tables of one step to the lists that attention kernels read. Pure functions: no
 * device, no clock, no addresses; memory is the plan's own and stops growing after the largest step.
 *
 * A plan answers: which pages does each row see (CSR table, first and last page trimmed to the visible tokens), which
 * runs of pages does one group of threads read (chunks), which rows read a run together because their pages are the very
 * same (cascade), and which partial results become one row (merge list).
 *
 * Promises
 *  1. Every visible token of a row lies in exactly one chunk of that row's states; nothing else does.
 *  2. Equal input gives an equal plan; it depends on lengths, page numbers and options only.
 *  3. A row of one whole chunk is written directly; every other row has a merge entry, its states in token order.
 *  4. With `invariant` the chunks of a row depend on that row alone.
 *  5. Page lists and chunks are reused only when the caller's epoch says that no page moved, and no row gained or lost a
 *     page; lengths are recomputed every time. A reused plan equals the one that would have been made.
 * One thread owns a plan. */
#ifndef PL_PLAN_PLAN_H
#define PL_PLAN_PLAN_H

#include <stdint.h>

#include "base/status.h"
#include "kernels/args/args.h"

/* What one row sees: tokens [0, len) of a block table; the last of them is its own. len 0: nothing. */
struct pl_plan_row {
    const uint32_t *pages; /* at least ceil(len / S) */
    uint32_t len;
};

/* In units of the time one group takes for one page of one KV head and one row's heads. Measured per device by tune. */
struct pl_plan_costs {
    uint32_t slots; /* groups the device runs at once: units x groups on a unit; 0 counts as 1 */
    float chunk;    /* every chunk: start, end, writing its part */
    float merge;    /* every state that is merged */
    float member;   /* a page read for one more member (loaded already, computed again), 0..1 */
    uint32_t wide;  /* slots that a shared chunk takes, reading so much faster; 0 counts as 1. Kernels say, not tune */
};

struct pl_plan_options {
    uint32_t page_tokens, heads, kv_heads;
    uint32_t window;          /* 0: none; else a row sees its last `window` tokens */
    uint32_t pages_per_chunk; /* 0: by cost; else exactly so many (tests, tuning, invariant) */
    uint32_t grid_max;        /* most chunks of one launch; 0: no limit */
    uint32_t rows_max;        /* heads that one group takes at most; bounds the members of a shared chunk */
    uint32_t span_min;        /* least pages worth sharing; 0 counts as 1 */
    uint32_t members_min;     /* least members worth sharing with; 0 counts as 2 */
    bool split, cascade;      /* allowed */
    bool skip_empty;          /* rows of length 0 get no chunk: nothing is written for them */
    bool cascade_always;      /* tests, forcing: share whatever can be, whatever it costs */
    bool invariant;           /* needs pages_per_chunk; cuts at its multiples from the sequence's start; no cascade */
    struct pl_plan_costs costs;
};

struct pl_plan_chunk {
    uint32_t page_first, page_count; /* in page_index */
    uint32_t skip, tokens;           /* of its first page; visible in the chunk (0: an empty chunk) */
    uint32_t member_first, members;  /* in `members`: rows that read it */
    uint32_t part_first; /* its parts are [part_first, + members), H heads each; PL_PLAN_DIRECT: the row itself */
    uint32_t row;        /* whose pages these are */
};
/* Part of one row: member `member` of a chunk of `members` whose parts begin at part_first. */
struct pl_plan_state {
    uint32_t part_first, members, member;
};

enum pl_plan_cascade { /* why a plan shares or does not */
                       PL_CASCADE_USED,
                       PL_CASCADE_OFF,    /* not allowed by the options */
                       PL_CASCADE_NONE,   /* no two rows begin with the same pages */
                       PL_CASCADE_FLOOR,  /* span or members below their floors */
                       PL_CASCADE_COST,   /* would take longer */
                       PL_CASCADE_WINDOW, /* a window has cut the beginning off */
};

struct pl_plan {
    /* per row */
    uint32_t rows, page_entries;
    uint32_t *page_index;                        /* [page_entries] physical pages in order */
    uint32_t *page_start;                        /* [rows + 1] */
    uint32_t *first_offset, *last_len, *visible; /* [rows] */
    uint32_t *first_page;                        /* [rows] pages trimmed from the table's beginning */
    /* work */
    struct pl_plan_chunk *chunks;
    uint32_t *members;
    uint32_t chunk_count, member_count, part_count;
    uint32_t shared_count;             /* chunks of groups that share: the first ones */
    uint32_t *merge_row, *merge_start; /* [merge_count], [merge_count + 1] */
    struct pl_plan_state *states;
    uint32_t merge_count, state_count;
    /* what was decided */
    uint32_t pages_per_chunk, groups, group_members, span_pages; /* cascade groups, their members, sum of their spans */
    enum pl_plan_cascade cascade;
    uint64_t tokens;      /* visible, summed over rows */
    uint64_t tokens_read; /* summed over chunks: less than tokens when shared */
    uint64_t epoch;
    bool reused;
    /* private */
    struct pl_plan_options opt;
    uint32_t *order, *lcp, *span, *group; /* [rows] scratch of the cascade search */
    size_t row_cap, page_cap, chunk_cap, member_cap, merge_cap, state_cap;
};

void pl_plan_init(struct pl_plan *p);
void pl_plan_deinit(struct pl_plan *p);
/* epoch: equal epochs, not 0, promise the same rows in the same order with block tables whose pages did not move.
 * PL_LIMIT: no chunk length keeps within grid_max. On failure the plan is empty. */
enum pl_status pl_plan_make(struct pl_plan *p, const struct pl_plan_options *opt, const struct pl_plan_row *rows,
                            uint32_t count, uint64_t epoch) PL_MUST_CHECK;
const char *pl_plan_cascade_text(enum pl_plan_cascade c); /* "used", "below floor", ... */

/* The device record (kernels/args/args.h, "plan record"). */
size_t pl_plan_words(const struct pl_plan *p);
void pl_plan_write(const struct pl_plan *p, uint32_t *out); /* out: pl_plan_words */

#endif
