/* A line of progress while weights are packed at their second product, where that takes more than a second. */
#include <stdio.h>

#include "base/clock.h"
#include "base/progress.h"
#include "cpu/internal.h"

static const uint64_t pause_ns = 250000000, redraw_ns = 100000000;

static void end(struct cpu_packing *p) {
    if (p->shown) pl_log_progress_end();
    p->shown = false;
}

void cpu_packing_done(struct pl_cpu *c, const struct pl_cpu_weight *w, uint64_t since_ns) {
    struct cpu_packing *p = &c->packing;
    const uint64_t now = pl_clock_ns();
    if (since_ns - p->last_ns > pause_ns) p->begun_ns = since_ns;
    p->last_ns = now;
    p->done += w->bytes_owned;
    if (p->done >= p->total) {
        end(p);
    } else if (now - p->begun_ns >= p->patience_ns && now - p->drawn_ns >= redraw_ns) {
        char text[100];
        snprintf(text, sizeof text, "plumb: packing weights: %.0f of %.0f MB", (double)p->done / 1e6,
                 (double)p->total / 1e6);
        pl_log_progress_aside(text);
        p->drawn_ns = now;
        p->shown = true;
    }
}

void cpu_packing_rests(struct pl_cpu *c) {
    if (c->packing.shown && pl_clock_ns() - c->packing.last_ns > pause_ns) end(&c->packing);
}
void cpu_packing_end(struct pl_cpu *c) { end(&c->packing); }
