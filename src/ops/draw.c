#include "ops/draw.h"

#include <math.h>
#include <stdio.h>

#include "base/noise.h"

/* Of a row's maxima, held by one thread: kernels/draw.k.c, kth_floor. */
enum { MAXIMA_EACH = 8 };

static enum pl_status make(struct pl_kernels *ks, enum pl_dtype logits, const char *entry, const char *part,
                           const char *name, struct pl_kernel *out, struct pl_err *err) {
    struct pl_jit_spec s = {.file = "draw.k.c", .entry = entry};
    char full[48];
    pl_jit_set_u32(&s, "GROUP", ks->wide);
    pl_jit_set(&s, part, "1"); /* the others are left out */
    pl_jit_set(&s, logits == PL_F32 ? "LOGITS_F32" : logits == PL_F16 ? "LOGITS_F16" : "LOGITS_BF16", "1");
    snprintf(full, sizeof full, "draw/%s/%s", name, pl_dtype_name(logits));
    return pl_kernel_make(ks, &s, ks->wide, full, out, err);
}

enum pl_status pl_kernel_draw(struct pl_kernels *ks, enum pl_dtype logits, struct pl_draw_kernels *out, struct pl_err *err) {
    if (logits != PL_F32 && logits != PL_F16 && logits != PL_BF16)
        PL_FAIL(err, PL_UNSUPPORTED, "no kernel draws from logits of type %s", pl_dtype_name(logits));
    PL_TRY(make(ks, logits, "pk_draw_scan", "DRAW_SCAN", "scan", &out->scan, err));
    PL_TRY(make(ks, logits, "pk_draw_climb", "DRAW_CLIMB", "climb", &out->climb, err));
    PL_TRY(make(ks, logits, "pk_draw_weigh", "DRAW_WEIGH", "weigh", &out->weigh, err));
    PL_TRY(make(ks, logits, "pk_draw_gather", "DRAW_GATHER", "gather", &out->gather, err));
    return make(ks, logits, "pk_draw_choose", "DRAW_CHOOSE", "choose", &out->choose, err);
}

/* Parts of a row, so that some groups run on every unit. */
static uint32_t parts_of(const struct pl_kernels *ks, uint64_t rows) {
    uint64_t n = 4 * (uint64_t)pl_device_info(ks->device)->units / rows, parts = 1;
    while (2 * parts <= n && parts < PL_DRAW_PARTS_MAX) parts *= 2;
    return (uint32_t)parts;
}

void pl_draw_release(struct pl_kernels *ks, struct pl_draw_room *room) {
    struct pl_device_buffer *const all[] = {&room->part_max, &room->part_id, &room->maxima, &room->rises,  &room->stairs,
                                            &room->above,    &room->parts,   &room->ids,    &room->logits, &room->scores};
    for (size_t i = 0; i < PL_COUNT_OF(all); i++) pl_device_free(ks->device, all[i]);
    room->rows = 0;
}

enum pl_status pl_draw_reserve(struct pl_kernels *ks, struct pl_draw_room *room, uint64_t rows) {
    if (rows <= room->rows) return PL_OK;
    uint64_t parts = 1;
    for (uint64_t r = 1; r <= rows; r++) parts = PL_MAX(parts, r * parts_of(ks, r));
    PL_TRY(pl_device_stream_wait(ks->device, ks->stream, &ks->err));
    pl_draw_release(ks, room);
    PL_TRY(pl_device_alloc(ks->device, parts * sizeof(float), &room->part_max, &ks->err));
    PL_TRY(pl_device_alloc(ks->device, parts * sizeof(uint32_t), &room->part_id, &ks->err));
    PL_TRY(pl_device_alloc(ks->device, parts * ks->wide * sizeof(float), &room->maxima, &ks->err));
    PL_TRY(pl_device_alloc(ks->device, parts * sizeof(struct pl_draw_rise), &room->rises, &ks->err));
    PL_TRY(pl_device_alloc(ks->device, parts * PL_DRAW_STAIRS * sizeof(struct pl_draw_stair), &room->stairs, &ks->err));
    PL_TRY(pl_device_alloc(ks->device, parts * PL_DRAW_STAIRS * sizeof(float), &room->above, &ks->err));
    PL_TRY(pl_device_alloc(ks->device, parts * sizeof(struct pl_draw_part), &room->parts, &ks->err));
    PL_TRY(pl_device_alloc(ks->device, parts * PL_DRAW_LIST * sizeof(uint32_t), &room->ids, &ks->err));
    PL_TRY(pl_device_alloc(ks->device, parts * PL_DRAW_LIST * sizeof(float), &room->logits, &ks->err));
    PL_TRY(pl_device_alloc(ks->device, parts * PL_DRAW_LIST * sizeof(float), &room->scores, &ks->err));
    room->rows = rows;
    return PL_OK;
}

/* Where a token's mass is below an equal share of what top_p gives away, the mass of all such tokens is less than that: none
 * of them is kept. A little lower, for what rounding moves. */
static float mass_floor(uint32_t top_p, uint32_t vocab) {
    double away = 1.0 - (double)top_p / 4294967296.0, share = (away / vocab - 0x1p-34) * 0.99;
    return share > 0 ? (float)log(share) : -INFINITY;
}

struct pl_args_draw pl_draw_args(const struct pl_draw *d, uint32_t vocab) {
    struct pl_args_draw a = {.seed_low = (uint32_t)d->seed,
                             .seed_high = (uint32_t)(d->seed >> 32),
                             .position_low = (uint32_t)d->position,
                             .position_high = (uint32_t)(d->position >> 32),
                             .top_k = d->top_k,
                             .inverse_t = d->temperature > 0 ? 1.0f / d->temperature : 0,
                             .min_floor = d->min_p > 0 ? logf(d->min_p) : -INFINITY,
                             .mass_floor = -INFINITY};
    if (d->top_p < 1) a.top_p = pl_top_p_fixed(d->top_p);
    if (d->top_p < 1) a.mass_floor = mass_floor(a.top_p, vocab);
    return a;
}

struct pl_draw_ways pl_draw_ways_of(const struct pl_draw *draws, size_t rows) {
    struct pl_draw_ways w = {false, false, false};
    for (size_t i = 0; i < rows; i++) {
        bool climbs = draws[i].temperature > 0 && draws[i].top_k == 0;
        w.lists |= !climbs;
        w.climbs |= climbs;
        w.weighs |= climbs && draws[i].top_p < 1;
    }
    return w;
}

static enum pl_status launch_climb(struct pl_kernels *ks, struct pl_draw_kernels *k, const struct pl_draw_room *room,
                                   const struct pl_device_buffer *x, const struct pl_device_buffer *draws,
                                   const struct pl_args_draws *a, bool weigh) {
    struct pl_device_arg climb[] = {PL_ARG_BUFFER(x),
                                    PL_ARG_BUFFER(draws),
                                    PL_ARG_BUFFER(&room->rises),
                                    PL_ARG_BUFFER(&room->stairs),
                                    PL_ARG_BUFFER(&k->climb.counter),
                                    PL_ARG_VALUE(*a)};
    struct pl_device_arg weighing[] = {PL_ARG_BUFFER(x),
                                       PL_ARG_BUFFER(draws),
                                       PL_ARG_BUFFER(&room->rises),
                                       PL_ARG_BUFFER(&room->stairs),
                                       PL_ARG_BUFFER(&room->above),
                                       PL_ARG_BUFFER(&k->weigh.counter),
                                       PL_ARG_VALUE(*a)};
    PL_TRY(pl_kernel_launch(ks, &k->climb, a->parts, a->rows, 0, climb, PL_COUNT_OF(climb)));
    return weigh ? pl_kernel_launch(ks, &k->weigh, a->parts, a->rows, 0, weighing, PL_COUNT_OF(weighing)) : PL_OK;
}

static enum pl_status launch_lists(struct pl_kernels *ks, struct pl_draw_kernels *k, const struct pl_draw_room *room,
                                   const struct pl_device_buffer *x, const struct pl_device_buffer *draws,
                                   const struct pl_args_draws *a) {
    struct pl_device_arg scan[] = {PL_ARG_BUFFER(x),
                                   PL_ARG_BUFFER(draws),
                                   PL_ARG_BUFFER(&room->part_max),
                                   PL_ARG_BUFFER(&room->part_id),
                                   PL_ARG_BUFFER(&room->maxima),
                                   PL_ARG_BUFFER(&k->scan.counter),
                                   PL_ARG_VALUE(*a)};
    struct pl_device_arg gather[] = {PL_ARG_BUFFER(x),
                                     PL_ARG_BUFFER(draws),
                                     PL_ARG_BUFFER(&room->part_max),
                                     PL_ARG_BUFFER(&room->part_id),
                                     PL_ARG_BUFFER(&room->maxima),
                                     PL_ARG_BUFFER(&room->parts),
                                     PL_ARG_BUFFER(&room->ids),
                                     PL_ARG_BUFFER(&room->logits),
                                     PL_ARG_BUFFER(&room->scores),
                                     PL_ARG_BUFFER(&k->gather.counter),
                                     PL_ARG_VALUE(*a)};
    PL_TRY(pl_kernel_launch(ks, &k->scan, a->parts, a->rows, 0, scan, PL_COUNT_OF(scan)));
    return pl_kernel_launch(ks, &k->gather, a->parts, a->rows, 0, gather, PL_COUNT_OF(gather));
}

enum pl_status pl_launch_draw(struct pl_kernels *ks, struct pl_draw_kernels *k, const struct pl_draw_room *room,
                              const struct pl_device_buffer *x, const struct pl_device_buffer *draws,
                              const struct pl_device_buffer *out, size_t rows, size_t cols, struct pl_draw_ways ways,
                              uint32_t list) {
    uint32_t parts = parts_of(ks, rows);
    struct pl_args_draws a = {
        .rows = (u32)rows, .cols = (u32)cols, .parts = parts, .maxima = ks->wide, .list = list, .climbs = ways.climbs};
    while (a.maxima > 1 && a.maxima * parts > MAXIMA_EACH * ks->wide) a.maxima /= 2;
    struct pl_device_arg choose[] = {PL_ARG_BUFFER(x),
                                     PL_ARG_BUFFER(draws),
                                     PL_ARG_BUFFER(&room->part_max),
                                     PL_ARG_BUFFER(&room->part_id),
                                     PL_ARG_BUFFER(&room->parts),
                                     PL_ARG_BUFFER(&room->ids),
                                     PL_ARG_BUFFER(&room->logits),
                                     PL_ARG_BUFFER(&room->scores),
                                     PL_ARG_BUFFER(&room->rises),
                                     PL_ARG_BUFFER(&room->stairs),
                                     PL_ARG_BUFFER(&room->above),
                                     PL_ARG_BUFFER(out),
                                     PL_ARG_BUFFER(&k->choose.counter),
                                     PL_ARG_VALUE(a)};
    if (ways.climbs) PL_TRY(launch_climb(ks, k, room, x, draws, &a, ways.weighs));
    if (ways.lists) PL_TRY(launch_lists(ks, k, room, x, draws, &a));
    return pl_kernel_launch(ks, &k->choose, (uint32_t)rows, 1, 0, choose, PL_COUNT_OF(choose));
}
