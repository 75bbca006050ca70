#include "ops/bandwidth.h"

#include <inttypes.h>
#include <stdio.h>

enum { PASSES = 8, WORD = 16, GROUPS_PER_UNIT_MAX = 32 };

/* A CPU runs the threads of a group one after the other: there a group is one thread. */
static bool on_cpu(const struct pl_kernels *ks) { return pl_device_info(ks->device)->is_cpu; }
static uint32_t group_of(const struct pl_kernels *ks) { return on_cpu(ks) ? 1 : ks->wide; }

uint32_t pl_read_tile(const struct pl_kernels *ks, uint32_t unroll) { return group_of(ks) * unroll * WORD; }

enum pl_status pl_kernel_read(struct pl_kernels *ks, uint32_t unroll, struct pl_kernel *out, struct pl_err *err) {
    char name[40];
    struct pl_jit_spec s = {.file = "bandwidth.k.c", .entry = "pk_read"};
    pl_jit_set_u32(&s, "GROUP", group_of(ks));
    pl_jit_set_u32(&s, "UNROLL", unroll);
    snprintf(name, sizeof name, "read/u%u", unroll);
    return pl_kernel_make(ks, &s, group_of(ks), name, out, err);
}

enum pl_status pl_launch_read(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x, pl_buffer_in *sink,
                              uint64_t bytes, uint32_t unroll, uint32_t groups) {
    u64 words = bytes / WORD, tile = pl_read_tile(ks, unroll) / WORD, tiles = words / tile;
    u32 each = (u32)((tiles + groups - 1) / groups);
    u64 first = on_cpu(ks) ? each * tile : tile, step = on_cpu(ks) ? tile : groups * tile;
    struct pl_device_arg args[] = {PL_ARG_BUFFER(x),    PL_ARG_BUFFER(sink), PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(words),
                                   PL_ARG_VALUE(first), PL_ARG_VALUE(step),  PL_ARG_VALUE(each)};
    return pl_kernel_launch(ks, k, groups, 1, 0, args, PL_COUNT_OF(args));
}

struct measure {
    struct pl_device_buffer a, b, sink;
    struct pl_device_event e[2];
    struct pl_bandwidth best;
};

static enum pl_status timed(struct pl_kernels *ks, struct measure *m, double *us, struct pl_err *err) {
    PL_TRY(pl_device_event_record(ks->device, &m->e[1], ks->stream, err));
    PL_TRY(pl_device_stream_wait(ks->device, ks->stream, err));
    return pl_device_event_elapsed_us(ks->device, &m->e[0], &m->e[1], us, err);
}

static enum pl_status measure_copy(struct pl_kernels *ks, struct measure *m, struct pl_err *err) {
    for (int i = 0; i <= PASSES; i++) {
        double us = 0;
        PL_TRY(pl_device_event_record(ks->device, &m->e[0], ks->stream, err));
        PL_TRY(pl_device_copy(ks->device, ks->stream, &m->b, 0, &m->a, 0, m->b.bytes, err));
        PL_TRY(timed(ks, m, &us, err));
        if (i > 0 && us > 0) m->best.copy_gbs = PL_MAX(m->best.copy_gbs, 2e-3 * (double)m->b.bytes / us);
    }
    return PL_OK;
}

static enum pl_status measure_read(struct pl_kernels *ks, struct measure *m, uint32_t unroll, uint32_t per_unit,
                                   struct pl_err *err) {
    struct pl_kernel k = {0};
    uint32_t groups = pl_device_info(ks->device)->units * per_unit;
    PL_TRY(pl_kernel_read(ks, unroll, &k, err));
    enum pl_status st = PL_OK;
    for (int i = 0; i <= PASSES && st == PL_OK; i++) {
        double us = 0;
        st = pl_device_event_record(ks->device, &m->e[0], ks->stream, err);
        if (st == PL_OK && (st = pl_launch_read(ks, &k, &m->a, &m->sink, m->a.bytes, unroll, groups)) != PL_OK)
            *err = ks->err;
        if (st == PL_OK) st = timed(ks, m, &us, err);
        double gbs = us > 0 ? 1e-3 * (double)m->a.bytes / us : 0;
        if (st != PL_OK || i == 0 || gbs <= m->best.read_gbs) continue;
        m->best.read_gbs = gbs;
        snprintf(m->best.kernel, sizeof m->best.kernel, "read/u%u x %u groups", unroll, groups);
    }
    uint64_t counted = 0;
    if (st == PL_OK) st = pl_kernel_counted(ks, &k, &counted, err);
    if (st == PL_OK && counted != k.record->eager) /* what did not run is fast */
        st = pl_err_set(err, __FILE__, __LINE__, PL_INTERNAL,
                        "the reading kernel was launched %" PRIu64 " times and counted %" PRIu64, k.record->eager, counted);
    pl_kernel_free(ks, &k);
    return st;
}

static enum pl_status measure_all(struct pl_kernels *ks, struct measure *m, struct pl_err *err) {
    static const uint32_t unrolls[] = {4, 8}, per_unit[] = {1, 8, GROUPS_PER_UNIT_MAX};
    const struct pl_device_info *info = pl_device_info(ks->device);
    uint64_t bytes = info->is_cpu ? UINT64_C(1) << 28 : UINT64_C(1) << 31;
    uint64_t left = info->memory_bytes; /* a model may be loaded already */
    if (pl_device_memory_free(ks->device, &left, NULL) != PL_OK) left = info->memory_bytes;
    while (bytes > info->memory_bytes / 8 || bytes > info->alloc_max_bytes || bytes > left / 4) bytes /= 2;
    if (bytes < UINT64_C(1) << 20)
        PL_FAIL(err, PL_NO_MEMORY, "%" PRIu64 " bytes of %s are free, too few to measure its bandwidth", left, info->name);
    m->best.bytes = bytes;
    PL_TRY(pl_device_alloc(ks->device, bytes, &m->a, err));
    PL_TRY(pl_device_alloc(ks->device, bytes, &m->b, err));
    PL_TRY(pl_device_alloc(ks->device, (uint64_t)info->units * GROUPS_PER_UNIT_MAX * sizeof(uint32_t), &m->sink, err));
    PL_TRY(pl_device_fill(ks->device, ks->stream, &m->a, 0x3C, err));
    for (int i = 0; i < 2; i++) PL_TRY(pl_device_event_create(ks->device, &m->e[i], err));
    PL_TRY(measure_copy(ks, m, err));
    for (size_t u = 0; u < PL_COUNT_OF(unrolls); u++) {
        for (size_t p = 0; p < PL_COUNT_OF(per_unit); p++) PL_TRY(measure_read(ks, m, unrolls[u], per_unit[p], err));
    }
    return PL_OK;
}

enum pl_status pl_bandwidth_measure(struct pl_kernels *ks, struct pl_bandwidth *out, struct pl_err *err) {
    struct measure m = {0};
    enum pl_status st = measure_all(ks, &m, err);
    if (st != PL_OK) pl_device_settle(ks->device);
    for (int i = 0; i < 2; i++) pl_device_event_destroy(ks->device, &m.e[i]);
    pl_device_free(ks->device, &m.a);
    pl_device_free(ks->device, &m.b);
    pl_device_free(ks->device, &m.sink);
    if (st == PL_OK) *out = m.best;
    return st;
}
