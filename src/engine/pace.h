/* pace - how many rows a step may have to take about a given time, learned from steps that ran.
 *
 * A step of r rows takes a + b r: a is what a step costs anyway (weights that are read or unpacked once), b what a row adds.
 * Both are fitted to the latest steps, older ones count less. Pure arithmetic: equal histories give equal answers. */
#ifndef PL_ENGINE_PACE_H
#define PL_ENGINE_PACE_H

#include <stdint.h>

struct pl_pace {
    double n, x, y, xx, xy; /* weighted sums: steps, rows, ns, rows squared, rows times ns */
    double slope;           /* ns of a row, as last seen; 0: not yet */
    uint32_t first;         /* steps passed over at the beginning */
};

void pl_pace_note(struct pl_pace *p, uint32_t rows, uint64_t ns);
/* 0: nothing was noted yet. At most four times the rows that steps had lately: what is far away is not known. */
uint32_t pl_pace_rows(const struct pl_pace *p, double ns);

#endif
