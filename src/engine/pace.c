#include "engine/pace.h"

static const double KEEP = 0.9; /* of the weight of what came before: about the last ten steps count */

void pl_pace_note(struct pl_pace *p, uint32_t rows, uint64_t ns) {
    double x = rows, y = (double)ns;
    p->n = p->n * KEEP + 1;
    p->x = p->x * KEEP + x;
    p->y = p->y * KEEP + y;
    p->xx = p->xx * KEEP + x * x;
    p->xy = p->xy * KEEP + x * y;
}

uint32_t pl_pace_rows(const struct pl_pace *p, double ns) {
    if (p->n == 0 || p->x <= 0 || p->y <= 0) return 0;
    double x = p->x / p->n, y = p->y / p->n, whole = y / x, b = whole;
    double spread = p->xx / p->n - x * x;
    if (spread > 0.01 * x * x) b = (p->xy / p->n - x * y) / spread; /* otherwise all steps were alike */
    b = b < 0.1 * whole ? 0.1 * whole : b > whole ? whole : b;      /* a is not below 0 */
    double rows = x + (ns - y) / b;
    if (rows > 4 * x) rows = 4 * x;
    return rows < 1 ? 1 : rows > 1e9 ? 1000000000u : (uint32_t)rows;
}
