#include "ops/moe.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"

enum { ROUTE_GROUP = 128, ORDER_GROUP = 256, ORDER_GROUP_CUDA = 1024, CPU_GROUP = 16 };

static bool is_cpu(const struct pl_kernels *ks) { return pl_device_info(ks->device)->is_cpu; }
static uint32_t groups(uint64_t n, uint32_t size) { return (uint32_t)((n + size - 1) / size); }

/* --- scratch --- */

uint32_t pl_moe_tiles(size_t slots, size_t experts, size_t tile) { return (uint32_t)PL_MIN(slots, slots / tile + experts); }

static enum pl_status grow(struct pl_kernels *ks, struct pl_device_buffer *b, uint64_t a, uint64_t n, struct pl_err *err) {
    size_t bytes;
    if (!pl_mul_size(a, n, &bytes) || !pl_mul_size(bytes, sizeof(float), &bytes))
        PL_FAIL(err, PL_LIMIT, "%llu slots of %llu values are larger than any memory", (unsigned long long)a,
                (unsigned long long)n);
    if (b->bytes >= bytes) return PL_OK;
    PL_TRY(pl_device_stream_wait(ks->device, ks->stream, err)); /* earlier steps may still use it */
    pl_device_free(ks->device, b);
    return pl_device_alloc(ks->device, bytes, b, err);
}

enum pl_status pl_moe_ready(struct pl_kernels *ks, struct pl_moe_room *room, size_t slots, size_t experts, size_t inner,
                            size_t width, struct pl_err *err) {
    experts = PL_MAX(experts, room->experts);
    slots = PL_MAX(slots, room->slots);
    inner = PL_MAX(inner, room->inner);
    width = PL_MAX(width, room->width);
    if (slots > UINT32_MAX / 8) PL_FAIL(err, PL_LIMIT, "%zu rows times experts in one step", slots);
    room->slots = 0; /* until all is there */
    PL_TRY(grow(ks, &room->ids, slots, 1, err));
    PL_TRY(grow(ks, &room->weights, slots, 1, err));
    PL_TRY(grow(ks, &room->order, 1, PL_ORDER_COUNT(slots) + experts, err));
    PL_TRY(grow(ks, &room->h, slots, inner, err));
    PL_TRY(grow(ks, &room->made, slots, width, err));
    room->slots = slots;
    room->experts = experts;
    room->inner = inner;
    room->width = width;
    return PL_OK;
}
void pl_moe_deinit(struct pl_kernels *ks, struct pl_moe_room *room) {
    struct pl_device_buffer *all[] = {&room->ids, &room->weights, &room->order, &room->h, &room->made};
    for (size_t i = 0; i < PL_COUNT_OF(all); i++) pl_device_free(ks->device, all[i]);
    room->slots = 0;
}

/* --- choice and order --- */

enum pl_status pl_kernel_moe_route(struct pl_kernels *ks, uint32_t experts, uint32_t used, uint32_t tile,
                                   struct pl_moe_route *out, struct pl_err *err) {
    struct pl_moe_route r = {.experts = experts, .used = used};
    struct pl_kernel *const kernels[] = {&r.route, &r.order, &r.combine};
    static const char *const entries[] = {"pk_moe_route", "pk_moe_order", "pk_moe_combine"};
    static const char *const parts[] = {"MOE_ROUTE", "MOE_ORDER", "MOE_COMBINE"};
    bool cuda = pl_device_info(ks->device)->kind == PL_DEVICE_CUDA; /* others hold fewer threads in a group */
    const uint32_t sizes[] = {is_cpu(ks) ? CPU_GROUP : ROUTE_GROUP,
                              is_cpu(ks) ? CPU_GROUP
                              : cuda     ? ORDER_GROUP_CUDA
                                         : ORDER_GROUP,
                              ks->wide};
    for (size_t i = 0; i < PL_COUNT_OF(kernels); i++) {
        char name[40];
        struct pl_jit_spec s = {.file = "moe_route.k.c", .entry = entries[i]};
        pl_jit_set_u32(&s, "GROUP", sizes[i]);
        pl_jit_set(&s, parts[i], "1");
        pl_jit_set_u32(&s, "EXPERTS", experts);
        pl_jit_set_u32(&s, "USED", used);
        if (i == 1) pl_jit_set_u32(&s, "TILE", tile);
        snprintf(name, sizeof name, "%s/x%u/k%u", entries[i] + 3, experts, used);
        if (i == 1) snprintf(name, sizeof name, "%s/x%u/t%u", entries[i] + 3, experts, tile);
        PL_TRY(pl_kernel_make(ks, &s, sizes[i], name, kernels[i], err));
    }
    *out = r;
    return PL_OK;
}

enum pl_status pl_launch_moe_route(struct pl_kernels *ks, struct pl_moe_route *k, const struct pl_moe_room *room,
                                   const struct pl_launch_route *r) {
    PL_ASSERT(r->rows * k->used <= room->slots);
    PL_ASSERT(r->groups == 0 || (k->experts % r->groups == 0 && r->groups_used <= r->groups));
    struct pl_args_route a = {(u32)r->rows, 0, r->groups, r->groups_used, r->group_top, r->scale};
    a.flags = (r->renormalise ? PL_ROUTE_RENORMALISE : 0u) | (r->sigmoid ? PL_ROUTE_SIGMOID : 0u) |
              (r->bias != NULL ? PL_ROUTE_BIAS : 0u);
    struct pl_device_arg args[] = {PL_ARG_BUFFER(r->logits),         PL_ARG_BUFFER(r->bias),
                                   PL_ARG_BUFFER(&room->ids),        PL_ARG_BUFFER(&room->weights),
                                   PL_ARG_BUFFER(&k->route.counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, &k->route, (uint32_t)r->rows, 1, 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_launch_moe_order(struct pl_kernels *ks, struct pl_moe_route *k, const struct pl_moe_room *room,
                                   size_t rows) {
    u32 slots = (u32)(rows * k->used), stride = (u32)room->slots;
    PL_ASSERT(slots <= room->slots);
    struct pl_device_arg args[] = {PL_ARG_BUFFER(&room->ids), PL_ARG_BUFFER(&room->order), PL_ARG_BUFFER(&k->order.counter),
                                   PL_ARG_VALUE(slots), PL_ARG_VALUE(stride)};
    return pl_kernel_launch(ks, &k->order, 1, 1, 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_launch_moe_combine(struct pl_kernels *ks, struct pl_moe_route *k, const struct pl_moe_room *room,
                                     size_t rows, size_t cols, pl_buffer_in *y) {
    struct pl_args_rows a = {(u32)rows, (u32)cols, 0, 0};
    u32 stride = (u32)room->slots;
    struct pl_device_arg args[] = {
        PL_ARG_BUFFER(&room->made), PL_ARG_BUFFER(&room->order),        PL_ARG_BUFFER(&room->weights),
        PL_ARG_BUFFER(y),           PL_ARG_BUFFER(&k->combine.counter), PL_ARG_VALUE(a),
        PL_ARG_VALUE(stride)};
    return pl_kernel_launch(ks, &k->combine, groups(cols, k->combine.group), (uint32_t)rows, 0, args, PL_COUNT_OF(args));
}

/* --- products --- */

static const char *const kernel_names[PL_MOE_KERNELS] = {"moe_pair", "moe_one", "moe_mix"};

static void name_of(const struct pl_device_weight *w, enum pl_moe_kernel which, int act, bool direct, char *out,
                    size_t size) {
    static const char *const acts[PL_MOE_ACTS] = {"silu", "gelu_tanh", "clamped", "relu2"};
    char type[24];
    snprintf(type, sizeof type, "%s", pl_dtype_name(w->dtype));
    if (w->dtype == PL_MLX) snprintf(type, sizeof type, "mlx%u.%u", w->bits, w->group);
    snprintf(out, size, "%s/%s%s%s/r%u", kernel_names[which], type, which == PL_MOE_MIX ? "" : "/",
             which == PL_MOE_MIX ? "" : acts[act], direct ? 1u : (unsigned)PL_MOE_TILE);
}

enum pl_status pl_kernel_moe(struct pl_kernels *ks, const struct pl_device_weight *w, enum pl_moe_kernel which, int act,
                             bool direct, struct pl_kernel *out, struct pl_err *err) {
    static const char *const entries[PL_MOE_KERNELS] = {"pk_moe_pair", "pk_moe_one", "pk_moe_mix"};
    static const char *const parts[PL_MOE_KERNELS] = {"MOE_PAIR", "MOE_ONE", "MOE_MIX"};
    static const char *const acts[PL_MOE_ACTS] = {NULL, "ACT_GELU_TANH", "ACT_SWIGLU_CLAMPED", "ACT_RELU2"};
    PL_ASSERT(act < PL_MOE_ACTS && (which != PL_MOE_MIX || direct));
    char name[40];
    struct pl_jit_spec s = {.file = "moe.k.c", .entry = entries[which]};
    pl_jit_set_u32(&s, "GROUP", ks->linear);
    pl_jit_set_u32(&s, "TEAM", ks->team);
    pl_jit_set_u32(&s, "ROWS", direct ? 1 : PL_MOE_TILE);
    pl_jit_set(&s, parts[which], "1");
    if (direct) pl_jit_set(&s, "MOE_DIRECT", "1");
    if (acts[act] != NULL) pl_jit_set(&s, acts[act], "1");
    pl_jit_set_weight(&s, w);
    name_of(w, which, act, direct, name, sizeof name);
    return pl_kernel_make(ks, &s, ks->linear, name, out, err);
}

enum pl_status pl_launch_moe(struct pl_kernels *ks, struct pl_kernel *k, enum pl_moe_kernel which,
                             const struct pl_moe_room *room, const struct pl_launch_moe *m) {
    size_t slots = m->rows * m->used, n = 0;
    uint64_t out = m->w->rows / m->experts;
    PL_ASSERT(slots <= room->slots);
    struct pl_args_moe a = {
        (u32)m->rows, (u32)m->used, (u32)m->w->cols, (u32)out, (u32)room->slots, 0, m->w->row_bytes, 0, 0};
    a.flags = (m->bias != NULL ? PL_LINEAR_BIAS : 0u) | (m->by_place ? PL_MOE_BY_PLACE : 0u) |
              (m->gated ? PL_MOE_GATED : 0u) | (m->alone ? PL_MOE_ALONE : 0u);
    const struct pl_device_buffer *list = m->direct ? &room->ids : &room->order;
    struct pl_device_arg args[16];
    const struct pl_device_weight *w[] = {m->w, which == PL_MOE_PAIR ? m->up : NULL};
    for (size_t i = 0; i < 2 && w[i] != NULL; i++) {
        args[n++] = PL_ARG_BUFFER(&w[i]->data);
        args[n++] = PL_ARG_BUFFER(&w[i]->scales);
        args[n++] = PL_ARG_BUFFER(&w[i]->biases);
    }
    args[n++] = PL_ARG_BUFFER(m->x);
    args[n++] = PL_ARG_BUFFER(m->bias);
    if (which == PL_MOE_PAIR) args[n++] = PL_ARG_BUFFER(m->up_bias);
    args[n++] = PL_ARG_BUFFER(list);
    if (which == PL_MOE_MIX) args[n++] = PL_ARG_BUFFER(&room->weights);
    args[n++] = PL_ARG_BUFFER(m->y);
    args[n++] = PL_ARG_BUFFER(&k->counter);
    args[n++] = PL_ARG_VALUE(a);
    uint32_t tiles = which == PL_MOE_MIX ? (uint32_t)m->rows
                     : m->direct         ? (uint32_t)slots
                                         : pl_moe_tiles(slots, m->experts, PL_MOE_TILE);
    return pl_kernel_launch(ks, k, groups(out, k->group / ks->team), tiles, 0, args, n);
}
