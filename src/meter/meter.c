#include "meter/meter.h"

#include <string.h>

#include "base/mem.h"

void pl_meter_init(struct pl_meter *m) { *m = (struct pl_meter){0}; }

void pl_meter_deinit(struct pl_meter *m) {
    pl_free(m->rows);
    pl_meter_init(m);
}

static bool same_text(const char *a, const char *b) { return a == b || strcmp(a, b) == 0; }

static bool is_row(const struct pl_meter_entry *e, const char *group, const char *name, const char *reason) {
    return same_text(e->name, name) && same_text(e->group, group) && same_text(e->reason, reason);
}

size_t pl_meter_row(struct pl_meter *m, const char *group, const char *name, const char *reason) {
    for (size_t i = 0; i < m->count; i++) /* the usual case: the very same constants */
        if (m->rows[i].name == name && m->rows[i].group == group && m->rows[i].reason == reason) return i;
    for (size_t i = 0; i < m->count; i++)
        if (is_row(&m->rows[i], group, name, reason)) return i;
    if (pl_grow(&m->rows, &m->cap, m->count + 1, sizeof(*m->rows)) != PL_OK) return PL_METER_NONE;
    m->rows[m->count] = (struct pl_meter_entry){.group = group, .name = name, .reason = reason};
    return m->count++;
}

void pl_meter_add(struct pl_meter *m, size_t row, uint64_t count, uint64_t bytes) {
    PL_ASSERT(row < m->count);
    m->rows[row].count += count;
    m->rows[row].bytes += bytes;
}

const struct pl_meter_entry *pl_meter_find(const struct pl_meter *m, const char *group, const char *name,
                                           const char *reason) {
    for (size_t i = 0; i < m->count; i++)
        if (is_row(&m->rows[i], group, name, reason)) return &m->rows[i];
    return NULL;
}

void pl_meter_reset(struct pl_meter *m) {
    for (size_t i = 0; i < m->count; i++) m->rows[i].count = m->rows[i].bytes = 0;
}
