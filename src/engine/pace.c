#include "engine/pace.h"

#include <math.h>

enum { FIRST = 2 };
static const double KEEP = 0.9; /* of the weight of what came before: about the last ten steps count */

/* Of all the time a row's share, and at least a tenth of it: what a step costs anyway is not below 0 and not all of it. */
static double slope(const struct pl_pace *p) {
    double whole = p->y / p->x;
    if (p->slope == 0 || p->slope > whole) return whole;
    return p->slope < 0.1 * whole ? 0.1 * whole : p->slope;
}

/* Steps that were all alike tell nothing of the slope: then the one found last stays. */
void pl_pace_note(struct pl_pace *p, uint32_t rows, uint64_t ns) {
    double x = rows, y = (double)ns;
    if (p->first < FIRST) { /* they load code and find their sizes */
        p->first++;
        return;
    }
    if (p->n > 0 && p->x > 0) y = fmin(y, 2 * (p->y + slope(p) * (x * p->n - p->x)) / p->n); /* one held up is no rule */
    p->n = p->n * KEEP + 1;
    p->x = p->x * KEEP + x;
    p->y = p->y * KEEP + y;
    p->xx = p->xx * KEEP + x * x;
    p->xy = p->xy * KEEP + x * y;
    double mean = p->x / p->n, spread = p->xx / p->n - mean * mean;
    if (spread > 0.01 * mean * mean) p->slope = (p->xy / p->n - mean * (p->y / p->n)) / spread;
}

uint32_t pl_pace_rows(const struct pl_pace *p, double ns) {
    if (p->n == 0 || p->x <= 0 || p->y <= 0) return 0;
    double x = p->x / p->n, y = p->y / p->n, rows = x + (ns - y) / slope(p);
    if (rows > 4 * x) rows = 4 * x;
    return rows < 1 ? 1 : rows > 1e9 ? 1000000000u : (uint32_t)rows;
}
