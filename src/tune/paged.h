/* paged - chooses the planner's constants and floors from measurements on one device.
 *
 * Chunk lengths are timed over a grid of batches and lengths; the constants kept are those whose choices lose least
 * against the best length measured in each cell. Cascades are timed against plain chunks, with half, once and twice what a
 * member is said to cost; floors are those spans and member counts with which the cells lose least. One pass is timed
 * against unsplit chunks. */
#ifndef PL_TUNE_PAGED_H
#define PL_TUNE_PAGED_H

#include <jansson.h>

#include "ops/ops.h"
#include "tune/paged_bench.h"

struct pl_tune_options {
    struct pl_paged_case shape;  /* batch, len and shared are the grid's */
    uint32_t len_max;            /* longest sequence timed */
    bool decode, merge, cascade; /* which parts to measure; the others stay as they are in *out */
    void (*progress)(void *user, const char *what);
    void *user;
};
/* *out holds the values to start from. *report: rows of what was timed, a new reference. */
enum pl_status pl_tune_paged(struct pl_paged_bed *b, const struct pl_tune_options *opt, struct pl_attn_table *out,
                             json_t **report, struct pl_err *err) PL_MUST_CHECK;

#endif
