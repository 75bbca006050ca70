/* meter - counters with names, and outcomes: each decision of the runtime ends in exactly one named outcome with a
 * reason.
 *
 * A meter is a small set of rows (group, name, reason) -> count, bytes. Rows are made once (pl_meter_row) and then
 * counted by index, so the hot path is one addition. One row per (name, reason): a second reason never hides behind the
 * first. Names are not copied: they must outlive the meter. Owned by one thread; a reader on another thread takes a
 * snapshot through its owner. A row that was never made is absent, which is not the same as zero. */
#ifndef PL_METER_METER_H
#define PL_METER_METER_H

#include <stdint.h>

#include "base/status.h"

struct pl_meter_entry {
    const char *group, *name, *reason; /* reason "" when there is none */
    uint64_t count;
    uint64_t bytes; /* 0 where the counter has no bytes */
};

struct pl_meter {
    struct pl_meter_entry *rows;
    size_t count, cap;
};

#define PL_METER_NONE SIZE_MAX

void pl_meter_init(struct pl_meter *m);
void pl_meter_deinit(struct pl_meter *m);
/* Index of the row, made on first use; PL_METER_NONE when memory ran out. Compared by text, pointers first. */
size_t pl_meter_row(struct pl_meter *m, const char *group, const char *name, const char *reason);
void pl_meter_add(struct pl_meter *m, size_t row, uint64_t count, uint64_t bytes);
const struct pl_meter_entry *pl_meter_find(const struct pl_meter *m, const char *group, const char *name,
                                           const char *reason); /* NULL: absent */
/* All counts to zero; rows stay. */
void pl_meter_reset(struct pl_meter *m);

#endif
