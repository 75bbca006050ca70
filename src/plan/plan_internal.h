/* plan_internal - between plan.c and cascade.c. */
#ifndef PL_PLAN_PLAN_INTERNAL_H
#define PL_PLAN_PLAN_INTERNAL_H

#include "plan/plan.h"

uint32_t plan_members_max(const struct pl_plan *p);
uint32_t plan_shared_pages(const struct pl_plan *p, uint32_t pages, uint32_t members);
double plan_cost(const struct pl_plan *p, uint32_t pages, bool shared);
/* The cheapest chunk length, 0 when none fits the grid. */
uint32_t plan_best_length(const struct pl_plan *p, bool shared, double *cost);

/* Fills order (rows, groups together), span (pages each row shares, 0: none), group (members of its group) and lcp (0 at
 * a group's first row in order, else 1; by row). Page lists are there already. */
enum pl_plan_cascade plan_find_shared(struct pl_plan *p);

#endif
