/* plan - rows, chunks, merge lists. cascade.c finds shared beginnings. */
#include "plan/plan.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "plan/plan_internal.h"

void pl_plan_init(struct pl_plan *p) { *p = (struct pl_plan){0}; }

void pl_plan_deinit(struct pl_plan *p) {
    pl_free(p->page_index);
    pl_free(p->page_start);
    pl_free(p->chunks);
    pl_free(p->members);
    pl_free(p->merge_row);
    pl_free(p->merge_start);
    pl_free(p->states);
    *p = (struct pl_plan){0};
}

const char *pl_plan_cascade_text(enum pl_plan_cascade c) {
    switch (c) {
    case PL_CASCADE_USED: return "used";
    case PL_CASCADE_OFF: return "off";
    case PL_CASCADE_NONE: return "nothing shared";
    case PL_CASCADE_FLOOR: return "below floor";
    case PL_CASCADE_COST: return "slower by cost";
    case PL_CASCADE_WINDOW: return "window";
    }
    return "?";
}

/* All arrays of one entry a row stand in one block. */
enum { ROW_ARRAYS = 9 };
static enum pl_status reserve_rows(struct pl_plan *p, uint32_t rows) {
    if (rows < p->row_cap) return PL_OK; /* one entry more than rows */
    size_t cap = PL_MAX((size_t)rows + 1, 2 * p->row_cap);
    uint32_t *block = pl_calloc(cap, ROW_ARRAYS * sizeof *block);
    if (block == NULL) return PL_NO_MEMORY;
    pl_free(p->page_start);
    p->page_start = block;
    p->first_offset = block + cap;
    p->last_len = block + 2 * cap;
    p->visible = block + 3 * cap;
    p->first_page = block + 4 * cap;
    p->order = block + 5 * cap;
    p->lcp = block + 6 * cap;
    p->span = block + 7 * cap;
    p->group = block + 8 * cap;
    p->row_cap = cap;
    return PL_OK;
}

struct extent {
    uint32_t first_page, pages, first_offset, last_len, visible;
};
static struct extent extent_of(uint32_t len, uint32_t window, uint32_t size) {
    struct extent e = {0};
    uint32_t first = window > 0 && len > window ? len - window : 0;
    if (len == 0) return e;
    e.first_page = first / size;
    e.pages = (len - 1) / size + 1 - e.first_page;
    e.first_offset = first % size;
    e.last_len = (len - 1) % size + 1;
    e.visible = len - first;
    return e;
}

/* Scalars of every row, always from the lengths. True when no row's pages differ from those planned before. */
static bool measure_rows(struct pl_plan *p, const struct pl_plan_row *rows, bool compare) {
    uint32_t size = p->opt.page_tokens;
    bool same = compare;
    p->tokens = 0;
    for (uint32_t i = 0; i < p->rows; i++) {
        struct extent e = extent_of(rows[i].len, p->opt.window, size);
        same = same && p->first_page[i] == e.first_page && p->page_start[i + 1] - p->page_start[i] == e.pages &&
               (p->first_offset[i] > 0) == (e.first_offset > 0); /* a trimmed page is not shared */
        p->first_offset[i] = e.first_offset;
        p->last_len[i] = e.last_len;
        p->visible[i] = e.visible;
        p->tokens += e.visible;
    }
    return same;
}

static enum pl_status list_pages(struct pl_plan *p, const struct pl_plan_row *rows) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < p->rows; i++) total += extent_of(rows[i].len, p->opt.window, p->opt.page_tokens).pages;
    if (total > UINT32_MAX / 2) return PL_LIMIT;
    PL_TRY(pl_grow(&p->page_index, &p->page_cap, (size_t)total + 1, sizeof *p->page_index));
    p->page_entries = 0;
    for (uint32_t i = 0; i < p->rows; i++) {
        struct extent e = extent_of(rows[i].len, p->opt.window, p->opt.page_tokens);
        p->first_page[i] = e.first_page;
        p->page_start[i] = p->page_entries;
        if (e.pages > 0) memcpy(p->page_index + p->page_entries, rows[i].pages + e.first_page, e.pages * sizeof(uint32_t));
        p->page_entries += e.pages;
    }
    p->page_start[p->rows] = p->page_entries;
    return PL_OK;
}

/* --- how long a chunk is --- */

static uint32_t pages_of(const struct pl_plan *p, uint32_t row) { return p->page_start[row + 1] - p->page_start[row]; }
static uint64_t div_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

uint32_t plan_members_max(const struct pl_plan *p) {
    uint32_t each = p->opt.heads / p->opt.kv_heads;
    return PL_MAX(1u, PL_MAX(p->opt.rows_max, each) / each);
}

/* How long a shared page takes, where one row's takes 1. */
static float page_weight(const struct pl_plan *p, uint32_t members) {
    return 1.0f / (float)PL_MAX(p->opt.costs.wide, 1u) + p->opt.costs.member * (float)(members - 1);
}

/* Shared chunks take about as long as the others, so they have more or fewer pages. */
uint32_t plan_shared_pages(const struct pl_plan *p, uint32_t pages, uint32_t members) {
    return PL_MAX(1u, (uint32_t)((float)pages / page_weight(p, members)));
}

/* Chunks and merged states when a row's own chunks have `pages` pages. */
static void count_work(const struct pl_plan *p, uint32_t pages, bool shared, uint64_t *chunks, uint64_t *states) {
    *chunks = *states = 0;
    uint32_t most = plan_members_max(p);
    for (uint32_t i = 0; i < p->rows; i++) {
        uint32_t span = shared ? p->span[i] : 0;
        if (p->opt.skip_empty && pages_of(p, i) == 0) continue;
        uint64_t own = PL_MAX(div_up(pages_of(p, i) - span, pages), (uint64_t)1);
        *chunks += own;
        if (span == 0) {
            if (own > 1) *states += own;
            continue;
        }
        uint32_t members = p->group[i]; /* how many rows share its span */
        uint32_t tile = PL_MIN(most, members);
        uint64_t above = div_up(span, plan_shared_pages(p, pages, tile));
        *states += own + above;
        if (p->lcp[i] == 0) *chunks += above * div_up(members, most); /* counted at the group's first row */
    }
}

/* Pages that all groups go through, a shared one counting for as long as it takes. */
static double shared_work(const struct pl_plan *p) {
    double pages = 0;
    uint32_t most = plan_members_max(p);
    for (uint32_t i = 0; i < p->rows; i++) {
        uint32_t members = p->group[i];
        pages += (double)(pages_of(p, i) - p->span[i]);
        if (p->span[i] == 0 || p->lcp[i] != 0) continue;
        pages += (double)p->span[i] * (double)div_up(members, most) * (double)page_weight(p, PL_MIN(most, members));
    }
    return pages;
}

/* Shared chunks come first and take `wide` slots each; the others fill what is left. Merging is a launch of its own, in
 * which a part is a quarter of a page: written and read, heads of one token against keys and values of sixteen and more. */
static double wide_cost(const struct pl_plan *p, uint32_t pages) {
    static const double own_start = 2.0, merge = 6.0, part = 0.75;
    const struct pl_plan_costs *c = &p->opt.costs;
    double slots = (double)PL_MAX(c->slots, 1u), places = PL_MAX(slots / (double)c->wide, 1.0), kv = (double)p->opt.kv_heads;
    double shared = 0, own = 0, parts = 0, groups = 0, longest = 0;
    uint32_t most = plan_members_max(p);
    for (uint32_t i = 0; i < p->rows; i++) {
        uint32_t members = p->group[i], mine = pages_of(p, i) - p->span[i], tile = PL_MIN(most, members);
        uint32_t length = plan_shared_pages(p, pages, tile), above = (uint32_t)div_up(p->span[i], length);
        double chunks = (double)div_up(mine, pages);
        own += (double)mine + (own_start + (double)c->chunk) * chunks;
        parts += (double)above + chunks;
        if (p->span[i] == 0 || p->lcp[i] != 0) continue;
        double tiles = (double)div_up(members, most), weight = (double)page_weight(p, tile);
        shared += tiles * (double)p->span[i] * weight;
        groups += tiles * (double)above;
        longest = PL_MAX(longest, (double)PL_MIN(length, p->span[i]) * weight);
    }
    double waves = ceil(groups * kv / places), busy = shared * kv / places + own * kv / slots;
    return PL_MAX(busy, waves * longest) + merge + parts * kv * part / slots;
}

double plan_cost(const struct pl_plan *p, uint32_t pages, bool shared) {
    const struct pl_plan_costs *c = &p->opt.costs;
    uint64_t chunks, states;
    if (shared && c->wide > 1) return wide_cost(p, pages);
    count_work(p, pages, shared, &chunks, &states);
    double slots = (double)PL_MAX(c->slots, 1u), merge = (double)c->merge * (double)states;
    if (shared) { /* own chunks are as short as they are: all work, and half of the longest chunk at the end */
        double busy = (shared_work(p) + (double)c->chunk * (double)chunks) * p->opt.kv_heads / slots;
        return PL_MAX(busy + 0.5 * (double)pages, (double)pages + (double)c->chunk) + merge;
    }
    double waves = (double)div_up(chunks * p->opt.kv_heads, PL_MAX(c->slots, 1u));
    double busy = (double)chunks * p->opt.kv_heads / slots; /* a last wave that is not full is shorter */
    waves = PL_MAX(waves * 0.5 + busy * 0.5, 1.0);
    return waves * ((double)pages + (double)c->chunk) + merge;
}

static bool fits_grid(const struct pl_plan *p, uint32_t pages, bool shared) {
    uint64_t chunks, states;
    count_work(p, pages, shared, &chunks, &states);
    return chunks <= UINT32_MAX / 4 && (p->opt.grid_max == 0 || chunks <= p->opt.grid_max);
}

/* 1, 2, 3, 4, 6, 8, 12, ... : close enough to every length, few enough to try all. */
static uint32_t next_length(uint32_t n) { return n < 4 ? n + 1 : (n & (n - 1)) == 0 ? n + n / 2 : n / 3 * 4; }

static uint32_t longest_row(const struct pl_plan *p) {
    uint32_t longest = 1;
    for (uint32_t i = 0; i < p->rows; i++) longest = PL_MAX(longest, pages_of(p, i));
    return longest;
}
/* The rows alone keep the device busy. */
static bool rows_fill(const struct pl_plan *p) {
    uint64_t mean = PL_MAX(p->page_entries / PL_MAX(p->rows, 1u), 1u);
    return (uint64_t)p->rows * p->opt.kv_heads >= p->opt.costs.slots && longest_row(p) <= 2 * mean;
}

/* Lengths with which the longest span falls into 1, 2, ... equal chunks: they are tried too. */
enum { PIECES_MAX = 64 };
static uint32_t span_length(const struct pl_plan *p, uint32_t pieces) {
    uint32_t span = 0, members = 1, most = plan_members_max(p);
    for (uint32_t i = 0; i < p->rows; i++) {
        if (p->span[i] <= span) continue;
        span = p->span[i];
        members = PL_MIN(most, p->group[i]);
    }
    return (uint32_t)ceilf((float)div_up(span, pieces) * page_weight(p, members));
}

static void try_length(const struct pl_plan *p, uint32_t pages, bool shared, uint32_t *best, double *cost) {
    double c = plan_cost(p, pages, shared);
    if (!fits_grid(p, pages, shared) || (*best > 0 && c >= *cost)) return;
    *best = pages;
    *cost = c;
}

uint32_t plan_best_length(const struct pl_plan *p, bool shared, double *cost) {
    uint32_t longest = longest_row(p), best = 0;
    if (!p->opt.split || (rows_fill(p) && !shared)) {
        *cost = plan_cost(p, longest, shared);
        return fits_grid(p, longest, shared) ? longest : 0;
    }
    for (uint32_t n = 1, pages = 0; pages < longest; n = next_length(n)) {
        pages = PL_MIN(n, longest);
        try_length(p, pages, shared, &best, cost);
    }
    for (uint32_t i = 1; shared && i <= PIECES_MAX; i++)
        try_length(p, PL_MIN(PL_MAX(span_length(p, i), 1u), longest), shared, &best, cost);
    return best;
}

/* --- making the lists --- */

static enum pl_status add_chunk(struct pl_plan *p, struct pl_plan_chunk c, const uint32_t *members, uint32_t *out) {
    PL_TRY(pl_grow(&p->chunks, &p->chunk_cap, (size_t)p->chunk_count + 1, sizeof *p->chunks));
    PL_TRY(pl_grow(&p->members, &p->member_cap, (size_t)p->member_count + c.members, sizeof *p->members));
    c.member_first = p->member_count;
    memcpy(p->members + p->member_count, members, c.members * sizeof *members);
    p->member_count += c.members;
    if (c.part_first != PL_PLAN_DIRECT) {
        c.part_first = p->part_count;
        p->part_count += c.members;
    }
    *out = p->chunk_count;
    p->chunks[p->chunk_count++] = c;
    return PL_OK;
}

static enum pl_status add_state(struct pl_plan *p, const struct pl_plan_chunk *c, uint32_t member) {
    PL_TRY(pl_grow(&p->states, &p->state_cap, (size_t)p->state_count + 1, sizeof *p->states));
    p->states[p->state_count++] = (struct pl_plan_state){c->part_first, c->members, member};
    return PL_OK;
}

/* Where the cut after page `at` (of the row's own list) lies: multiples from the sequence's start when invariant. */
static uint32_t cut_after(const struct pl_plan *p, uint32_t row, uint32_t at, uint32_t length, uint32_t end) {
    uint32_t to_go = p->opt.invariant ? length - (p->first_page[row] + at) % length : length;
    return to_go < end - at ? at + to_go : end;
}

/* Chunks [from, pages) of one row alone. */
static enum pl_status chunk_row(struct pl_plan *p, uint32_t row, uint32_t from, bool direct) {
    uint32_t pages = pages_of(p, row), at = from, index;
    do {
        uint32_t to = cut_after(p, row, at, p->pages_per_chunk, pages);
        bool whole = direct && at == 0 && to == pages;
        struct pl_plan_chunk c = {.page_first = p->page_start[row] + at,
                                  .page_count = to - at,
                                  .members = 1,
                                  .part_first = whole ? PL_PLAN_DIRECT : 0,
                                  .row = row};
        PL_TRY(add_chunk(p, c, &row, &index));
        if (!whole) PL_TRY(add_state(p, &p->chunks[index], 0));
        at = to;
    } while (at < pages);
    return PL_OK;
}

/* Pages of a shared chunk of a group of so many. */
static uint32_t group_length(const struct pl_plan *p, uint32_t count) {
    return plan_shared_pages(p, p->pages_per_chunk, PL_MIN(plan_members_max(p), count));
}

/* Shared chunks of the group whose rows are order[first, first + count): tile by tile of members. */
static enum pl_status chunk_group(struct pl_plan *p, uint32_t first, uint32_t count) {
    uint32_t most = plan_members_max(p), row = p->order[first], span = p->span[row], index;
    uint32_t length = group_length(p, count);
    for (uint32_t t = 0; t < count; t += most) {
        uint32_t members = PL_MIN(most, count - t);
        for (uint32_t at = 0; at < span; at += length) {
            struct pl_plan_chunk c = {.page_first = p->page_start[row] + at,
                                      .page_count = PL_MIN(length, span - at),
                                      .members = members,
                                      .row = row};
            PL_TRY(add_chunk(p, c, p->order + first + t, &index));
        }
    }
    p->groups++;
    p->group_members += count;
    p->span_pages += span;
    return PL_OK;
}

static enum pl_status merge_begin(struct pl_plan *p, uint32_t row) {
    size_t cap = p->merge_cap;
    PL_TRY(pl_grow(&p->merge_row, &cap, (size_t)p->merge_count + 2, sizeof *p->merge_row));
    PL_TRY(pl_grow(&p->merge_start, &p->merge_cap, (size_t)p->merge_count + 2, sizeof *p->merge_start));
    p->merge_row[p->merge_count] = row;
    p->merge_start[p->merge_count] = p->state_count;
    return PL_OK;
}

static enum pl_status chunk_alone(struct pl_plan *p, uint32_t row) {
    uint32_t before = p->state_count;
    if (p->opt.skip_empty && pages_of(p, row) == 0) return PL_OK;
    PL_TRY(merge_begin(p, row));
    PL_TRY(chunk_row(p, row, 0, true));
    if (p->state_count > before) p->merge_count++;
    return PL_OK;
}

/* What the members of a group merge: the chunks of their tile, which begin at *chunk, and their own. */
static enum pl_status chunk_members(struct pl_plan *p, uint32_t first, uint32_t count, uint32_t *chunk) {
    uint32_t most = plan_members_max(p), span = p->span[p->order[first]];
    uint32_t per_tile = (uint32_t)div_up(span, group_length(p, count));
    for (uint32_t m = 0; m < count; m++) {
        uint32_t row = p->order[first + m], from = *chunk + m / most * per_tile;
        PL_TRY(merge_begin(p, row));
        for (uint32_t i = 0; i < per_tile; i++) PL_TRY(add_state(p, &p->chunks[from + i], m % most));
        PL_TRY(chunk_row(p, row, span, false));
        p->merge_count++;
    }
    *chunk += (uint32_t)div_up(count, most) * per_tile;
    return PL_OK;
}

static uint32_t rows_of_group(const struct pl_plan *p, uint32_t i) {
    uint32_t row = p->order[i];
    return p->span[row] > 0 ? p->group[row] : 1;
}

/* Shared chunks first: they take longest, and one kernel has groups of its own for them. */
static enum pl_status make_lists(struct pl_plan *p) {
    uint32_t chunk = 0;
    p->chunk_count = p->member_count = p->part_count = p->merge_count = p->state_count = 0;
    p->groups = p->group_members = p->span_pages = 0;
    PL_TRY(merge_begin(p, 0));
    for (uint32_t i = 0; i < p->rows; i += rows_of_group(p, i))
        if (rows_of_group(p, i) > 1) PL_TRY(chunk_group(p, i, rows_of_group(p, i)));
    p->shared_count = p->chunk_count;
    for (uint32_t i = 0; i < p->rows; i += rows_of_group(p, i)) {
        uint32_t n = rows_of_group(p, i);
        PL_TRY(n > 1 ? chunk_members(p, i, n, &chunk) : chunk_alone(p, p->order[i]));
    }
    p->merge_start[p->merge_count] = p->state_count;
    return PL_OK;
}

/* How many tokens each chunk holds now. */
static void fill_chunks(struct pl_plan *p) {
    uint32_t size = p->opt.page_tokens;
    p->tokens_read = 0;
    for (uint32_t i = 0; i < p->chunk_count; i++) {
        struct pl_plan_chunk *c = &p->chunks[i];
        uint32_t row = c->row, from = p->page_start[row], to = p->page_start[row + 1];
        c->skip = c->page_first == from ? p->first_offset[row] : 0;
        c->tokens = c->page_count * size;
        if (c->page_count == 0) continue;
        if (c->page_first + c->page_count == to) c->tokens -= size - p->last_len[row];
        c->tokens -= c->skip;
        p->tokens_read += c->tokens;
    }
}

static enum pl_status choose(struct pl_plan *p) {
    double cost = 0;
    p->cascade = plan_find_shared(p);
    if (p->opt.pages_per_chunk > 0) {
        p->pages_per_chunk = p->opt.pages_per_chunk;
        return fits_grid(p, p->pages_per_chunk, p->cascade == PL_CASCADE_USED) ? PL_OK : PL_LIMIT;
    }
    p->pages_per_chunk = plan_best_length(p, p->cascade == PL_CASCADE_USED, &cost);
    return p->pages_per_chunk > 0 ? PL_OK : PL_LIMIT;
}

static bool same_options(const struct pl_plan_options *a, const struct pl_plan_options *b) {
    return a->page_tokens == b->page_tokens && a->heads == b->heads && a->kv_heads == b->kv_heads &&
           a->window == b->window && a->pages_per_chunk == b->pages_per_chunk && a->grid_max == b->grid_max &&
           a->rows_max == b->rows_max && a->span_min == b->span_min && a->members_min == b->members_min &&
           a->split == b->split && a->cascade == b->cascade && a->skip_empty == b->skip_empty &&
           a->cascade_always == b->cascade_always && a->invariant == b->invariant && a->costs.slots == b->costs.slots &&
           a->costs.chunk == b->costs.chunk && a->costs.merge == b->costs.merge && a->costs.member == b->costs.member &&
           a->costs.wide == b->costs.wide;
}

enum pl_status pl_plan_make(struct pl_plan *p, const struct pl_plan_options *opt, const struct pl_plan_row *rows,
                            uint32_t count, uint64_t epoch) {
    PL_ASSERT(opt->page_tokens > 0 && opt->kv_heads > 0 && opt->heads % opt->kv_heads == 0);
    PL_ASSERT(!opt->invariant || opt->pages_per_chunk > 0);
    bool known = epoch != 0 && epoch == p->epoch && count == p->rows && same_options(opt, &p->opt);
    p->epoch = 0; /* until all is well */
    enum pl_status st = reserve_rows(p, count);
    if (st == PL_OK) {
        p->opt = *opt;
        p->rows = count;
        p->reused = measure_rows(p, rows, known);
        if (!p->reused) {
            st = list_pages(p, rows);
            if (st == PL_OK) st = choose(p);
            if (st == PL_OK) st = make_lists(p);
            if (st == PL_OK && opt->grid_max > 0 && p->chunk_count > opt->grid_max) st = PL_LIMIT;
        }
    }
    if (st != PL_OK) {
        p->rows = p->chunk_count = p->merge_count = p->part_count = p->shared_count = 0;
        return st;
    }
    fill_chunks(p);
    p->epoch = epoch;
    return PL_OK;
}
