/* cascade - rows whose page lists begin with the very same pages.
 *
 * Rows are sorted by their page lists, so that equal beginnings are neighbours. Groups are the disjoint runs of
 * neighbours that save most page reads, (members - 1) * span, found by cutting at the shortest common beginning as long
 * as the two sides save more apart than together. */
#include <stdlib.h>
#include <string.h>

#include "plan/plan_internal.h"

enum { SEARCH_ROWS_MAX = 1024 }; /* the search is quadratic at worst */

static const uint32_t *list_of(const struct pl_plan *p, uint32_t row) { return p->page_index + p->page_start[row]; }
/* A span never takes a row's last page: everyone keeps pages of its own. */
static uint32_t sharable(const struct pl_plan *p, uint32_t row) {
    uint32_t n = p->page_start[row + 1] - p->page_start[row];
    return n == 0 ? 0 : n - 1;
}

static uint32_t common(const struct pl_plan *p, uint32_t a, uint32_t b) {
    const uint32_t *x = list_of(p, a), *y = list_of(p, b);
    uint32_t most = PL_MIN(sharable(p, a), sharable(p, b)), n = 0;
    while (n < most && x[n] == y[n]) n++;
    return n;
}

static int compare(const void *pa, const void *pb, void *arg) {
    const struct pl_plan *p = arg;
    uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb, na = sharable(p, a), nb = sharable(p, b);
    const uint32_t *x = list_of(p, a), *y = list_of(p, b);
    for (uint32_t i = 0; i < na && i < nb; i++) {
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    }
    if (na != nb) return na < nb ? -1 : 1;
    return a < b ? -1 : a > b; /* a total order: equal input, equal plan */
}

static void set_group(struct pl_plan *p, uint32_t from, uint32_t to, uint32_t span) {
    for (uint32_t i = from; i < to; i++) {
        p->span[p->order[i]] = span;
        p->group[p->order[i]] = to - from;
    }
}

/* Marks the groups of [from, to) that save most, and returns what they save. lcp[i]: pages common to order[i - 1] and
 * order[i]. */
static uint64_t best_groups(struct pl_plan *p, uint32_t from, uint32_t to) {
    if (to - from < 2) return 0;
    uint32_t cut = from + 1;
    for (uint32_t i = from + 2; i < to; i++)
        if (p->lcp[i] < p->lcp[cut]) cut = i;
    uint64_t whole = (uint64_t)(to - from - 1) * p->lcp[cut];
    uint64_t apart = best_groups(p, from, cut) + best_groups(p, cut, to);
    if (apart >= whole) return apart;
    set_group(p, from, to, p->lcp[cut]);
    return whole;
}

/* Groups below the floors go back to single rows. Returns whether any group is left. */
static bool apply_floors(struct pl_plan *p, bool *below) {
    uint32_t span_min = PL_MAX(p->opt.span_min, 1u), members_min = PL_MAX(p->opt.members_min, 2u);
    bool any = false;
    for (uint32_t i = 0; i < p->rows; i++) {
        if (p->span[i] == 0) continue;
        if (p->opt.cascade_always || (p->span[i] >= span_min && p->group[i] >= members_min)) {
            any = true;
            continue;
        }
        *below = true;
        p->span[i] = 0;
    }
    return any;
}

static void no_groups(struct pl_plan *p) {
    for (uint32_t i = 0; i < p->rows; i++) {
        p->order[i] = i;
        p->span[i] = 0;
        p->group[i] = 1;
        p->lcp[i] = 0;
    }
}

/* lcp becomes the mark of a group's first row, by row. */
static void mark_firsts(struct pl_plan *p) {
    for (uint32_t i = 0; i < p->rows; i++) p->lcp[i] = 1;
    for (uint32_t i = 0; i < p->rows;) {
        uint32_t row = p->order[i];
        p->lcp[row] = 0;
        i += p->span[row] > 0 ? p->group[row] : 1;
    }
}

static bool pays(const struct pl_plan *p) {
    double shared = 0, apart = 0;
    if (p->opt.cascade_always || p->opt.pages_per_chunk > 0) return true;
    if (plan_best_length(p, true, &shared) == 0) return false;
    return plan_best_length(p, false, &apart) == 0 || shared < apart;
}

enum pl_plan_cascade plan_find_shared(struct pl_plan *p) {
    bool below = false;
    no_groups(p);
    if (!p->opt.cascade || p->opt.invariant || !p->opt.split) return PL_CASCADE_OFF;
    if (p->rows < 2 || p->rows > SEARCH_ROWS_MAX) return PL_CASCADE_NONE;
    for (uint32_t i = 0; i < p->rows; i++) /* a trimmed list no longer begins at the beginning */
        if (p->first_page[i] > 0 || p->first_offset[i] > 0) return PL_CASCADE_WINDOW;
    qsort_r(p->order, p->rows, sizeof *p->order, compare, p);
    for (uint32_t i = 1; i < p->rows; i++) p->lcp[i] = common(p, p->order[i - 1], p->order[i]);
    uint64_t saved = best_groups(p, 0, p->rows);
    bool any = saved > 0 && apply_floors(p, &below);
    mark_firsts(p);
    if (any && pays(p)) return PL_CASCADE_USED;
    no_groups(p);
    return saved == 0 ? PL_CASCADE_NONE : any ? PL_CASCADE_COST : PL_CASCADE_FLOOR;
}
