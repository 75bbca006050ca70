#include "ops/cuda_moe.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "ops/cuda_dense.h"
#include "ops/cuda_fast.h"

enum {
    SPAN = 4,
    PACK_GROUP = 256,
    DENSE_GROUP = 128,
    DENSE_STAGES = 3,
    DENSE_STAGE_BYTES = 32768,
    WIDE_GROUP = 256,
    WIDE_SHARED = 4 * 49152,
    TALL_STAGES = 8 * 16384,
    TALL_KNOWN = 4 * 528,
    SUM_GROUP = 128,
    FMA_GROUP = 256,
    FMA_GROUP_FEW = 64,
    FMA_TILE = 64,
    TF32_ROWS_FEW = 1024,
    SPAN_BULK = 3,
    BULK_HELD = 4,
    BULK_SHARED_MAX = 100 * 1024, /* two groups a multiprocessor at least */
    CHOOSE_GROUP = 128,
    CHOOSE_ORDER_GROUP = 1024,
    ONE_INPUT = 544, /* of a block of inputs, as kernels/cuda/moe_one.k.c has it */
    ONE_STATIC = 16384,
    ONE_BLOCKS_MAX = 64,
    ONE_UNITS_MAX = 128,
    ROUTER_GROUP = 128,
    ROUTER_IN_MAX = 8192
};

static uint32_t groups(uint64_t n, uint32_t size) { return (uint32_t)((n + size - 1) / size); }
/* Threads of a group, and groups that a multiprocessor shall hold. */
static const struct { uint32_t group, held; } shapes[PL_MOE_MMA_COUNT] = {{128, 4}, {512, 1}, {128, 5}};
static uint32_t pieces_of(size_t rows) { return (uint32_t)((rows + 7) / 8); }

static enum pl_status room_for(struct pl_kernels *ks, struct pl_device_buffer *b, uint64_t bytes, struct pl_err *err) {
    if (b->bytes >= bytes) return PL_OK;
    PL_TRY(pl_device_stream_wait(ks->device, ks->stream, err));
    pl_device_free(ks->device, b);
    return pl_device_alloc(ks->device, bytes, b, err);
}

static struct pl_args_moe args_of(const struct pl_device_weight *w, size_t experts, size_t rows, size_t used,
                                  const struct pl_moe_room *room) {
    return (struct pl_args_moe){
        (u32)rows, (u32)used, (u32)w->cols, (u32)(w->rows / experts), (u32)room->slots, 0, w->row_bytes, pieces_of(rows), 0};
}

/* --- rearranged weights --- */

const char *pl_moe_strips_decline(const struct pl_kernels *ks, const struct pl_device_weight *w, size_t experts) {
    struct pl_device_weight one = *w;
    one.rows = w->rows / experts;
    return pl_strips_decline(ks, &one);
}

enum pl_status pl_moe_ready_room(struct pl_kernels *ks, struct pl_mma_room *room, size_t rows, size_t cols,
                                 struct pl_err *err) {
    return room_for(ks, &room->x, pl_mma_input_bytes(rows, cols), err);
}

const char *pl_moe_routed_declines(const struct pl_launch_route *r, size_t experts, size_t used) {
    if (r->sigmoid || r->bias != NULL || r->groups > 0) return "router";
    return experts % 32 != 0 || experts > 512 || used > 32 ? "number of experts" : NULL;
}

enum pl_status pl_kernel_moe_routed(struct pl_kernels *ks, const struct pl_device_weight *w, int act, uint32_t experts,
                                    uint32_t used, struct pl_kernel *out, struct pl_err *err) {
    char name[40];
    struct pl_jit_spec s = {.file = "cuda/moe.k.c", .entry = "pk_moe_up"};
    pl_jit_set_u32(&s, "GROUP", shapes[PL_MOE_MMA_UP].group);
    pl_jit_set_u32(&s, "GROUPS_HELD", shapes[PL_MOE_MMA_UP].held);
    pl_jit_set(&s, "MOE_UP", "1");
    pl_jit_set(&s, "MOE_DIRECT", "1");
    pl_jit_set_u32(&s, "ROUTED", experts);
    pl_jit_set_u32(&s, "USED", used);
    if (act == 1) pl_jit_set(&s, "ACT_GELU_TANH", "1");
    pl_jit_set_weight(&s, w);
    snprintf(name, sizeof name, "moe_route+up/mma/%s/x%u", pl_dtype_name(w->dtype), experts);
    return pl_kernel_make(ks, &s, shapes[PL_MOE_MMA_UP].group, name, out, err);
}
enum pl_status pl_launch_moe_routed(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_moe_room *room,
                                    const struct pl_launch_route *r, const struct pl_launch_moe_mma *m) {
    struct pl_args_moe a = args_of(m->w, m->experts, m->rows, m->used, room);
    f32 scale = r->scale;
    PL_ASSERT(m->rows == 1 && m->used <= room->slots);
    a.flags = r->renormalise ? PL_ROUTE_RENORMALISE : 0u;
    struct pl_device_arg args[] = {PL_ARG_BUFFER(&m->w->data), PL_ARG_BUFFER(&m->up->data), PL_ARG_BUFFER(m->x),
                                   PL_ARG_BUFFER(r->logits),   PL_ARG_BUFFER(&room->ids),   PL_ARG_BUFFER(&room->weights),
                                   PL_ARG_BUFFER(m->y),        PL_ARG_BUFFER(&k->counter),  PL_ARG_VALUE(a),
                                   PL_ARG_VALUE(scale)};
    return pl_kernel_launch(ks, k, a.out / 16, (uint32_t)m->used, 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_kernel_moe_mma(struct pl_kernels *ks, const struct pl_device_weight *w, enum pl_moe_mma which, int act,
                                 bool direct, bool bulk, struct pl_kernel *out, struct pl_err *err) {
    static const char *const entries[PL_MOE_MMA_COUNT] = {"pk_moe_up", "pk_moe_mix", "pk_moe_down"};
    static const char *const parts[PL_MOE_MMA_COUNT] = {"MOE_UP", "MOE_MIX", "MOE_DOWN"};
    static const char *const acts[PL_MOE_ACTS] = {"silu", "gelu_tanh", "clamped", "relu2"};
    char name[40];
    struct pl_jit_spec s = {.file = "cuda/moe.k.c", .entry = entries[which]};
    pl_jit_set_u32(&s, "GROUP", shapes[which].group);
    pl_jit_set_u32(&s, "GROUPS_HELD", bulk ? BULK_HELD : shapes[which].held);
    pl_jit_set(&s, parts[which], "1");
    if (bulk) pl_jit_set(&s, "BULK", "1");
    if (direct) pl_jit_set(&s, "MOE_DIRECT", "1");
    if (which == PL_MOE_MMA_DOWN) pl_jit_set_u32(&s, "SPAN", bulk ? SPAN_BULK : SPAN);
    if (act == 1) pl_jit_set(&s, "ACT_GELU_TANH", "1");
    pl_jit_set_weight(&s, w);
    snprintf(name, sizeof name, "%s/%s/%s%s%s/r%u", entries[which] + 3, bulk ? "bulk" : "mma", pl_dtype_name(w->dtype),
             which == PL_MOE_MMA_UP ? "/" : "", which == PL_MOE_MMA_UP ? acts[act] : "",
             direct || which == PL_MOE_MMA_MIX ? 1u : (unsigned)PL_MOE_TILE);
    return pl_kernel_make(ks, &s, shapes[which].group, name, out, err);
}

static uint32_t strip_bytes(const struct pl_device_weight *w) {
    return (uint32_t)(pl_strips_bytes(w) / (w->rows / 16 * (w->cols / 256)));
}
static uint32_t bulk_shared(const struct pl_device_weight *w, enum pl_moe_mma which) {
    uint32_t blocks = (uint32_t)(w->cols / 256), warps = shapes[which].group / 32, barrier = sizeof(uint64_t);
    return which == PL_MOE_MMA_UP ? blocks * (2 * strip_bytes(w) + barrier) : warps * (blocks * strip_bytes(w) + barrier);
}
bool pl_moe_bulk(const struct pl_kernels *ks, const struct pl_device_weight *w, enum pl_moe_mma which, bool direct) {
    return pl_cuda_capability(ks) >= 90 && !direct && w->cols / 256 <= ONE_BLOCKS_MAX &&
           bulk_shared(w, which) <= BULK_SHARED_MAX;
}
enum pl_status pl_launch_moe_mma(struct pl_kernels *ks, struct pl_kernel *k, enum pl_moe_mma which,
                                 const struct pl_moe_room *room, const struct pl_launch_moe_mma *m) {
    struct pl_args_moe a = args_of(m->w, m->experts, m->rows, m->used, room);
    size_t slots = m->rows * m->used, n = 0;
    const struct pl_device_buffer *list = m->direct ? &room->ids : &room->order;
    struct pl_device_arg args[8];
    PL_ASSERT(slots <= room->slots);
    args[n++] = PL_ARG_BUFFER(&m->w->data);
    if (which == PL_MOE_MMA_UP) args[n++] = PL_ARG_BUFFER(&m->up->data);
    args[n++] = PL_ARG_BUFFER(m->x);
    args[n++] = PL_ARG_BUFFER(list);
    if (which == PL_MOE_MMA_MIX) args[n++] = PL_ARG_BUFFER(&room->weights);
    args[n++] = PL_ARG_BUFFER(m->y);
    args[n++] = PL_ARG_BUFFER(&k->counter);
    args[n++] = PL_ARG_VALUE(a);
    uint32_t strips = a.out / 16, tiles = m->direct ? (uint32_t)slots : pl_moe_tiles(slots, m->experts, PL_MOE_TILE);
    if (which == PL_MOE_MMA_MIX) tiles = (uint32_t)m->rows;
    if (which == PL_MOE_MMA_DOWN) strips = groups(strips, k->group / 32);
    return pl_kernel_launch(ks, k, strips, tiles, m->bulk ? bulk_shared(m->w, which) : 0, args, n);
}

/* --- choice and order --- */

enum pl_status pl_kernel_moe_choose(struct pl_kernels *ks, uint32_t experts, uint32_t used, uint32_t tile,
                                    struct pl_kernel *out, struct pl_err *err) {
    char name[40];
    struct pl_jit_spec s = {.file = "cuda/moe_choose.k.c", .entry = "pk_moe_choose"};
    uint32_t group = tile > 0 ? CHOOSE_ORDER_GROUP : CHOOSE_GROUP;
    pl_jit_set_u32(&s, "GROUP", group);
    pl_jit_set_u32(&s, "EXPERTS", experts);
    pl_jit_set_u32(&s, "USED", used);
    if (tile > 0) pl_jit_set(&s, "CHOOSE_ORDER", "1");
    if (tile > 0) pl_jit_set_u32(&s, "TILE", tile);
    if (tile > 0) pl_jit_set_u32(&s, "ROWS_MAX", PL_MOE_CHOOSE_ROWS);
    snprintf(name, sizeof name, "moe_choose/x%u/k%u", experts, used);
    if (tile > 0) snprintf(name, sizeof name, "moe_choose+order/x%u/k%u/t%u", experts, used, tile);
    return pl_kernel_make(ks, &s, group, name, out, err);
}

enum pl_status pl_launch_moe_choose(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_moe_room *room,
                                    const struct pl_launch_route *r, bool order) {
    struct pl_args_route a = {.rows = (u32)r->rows, .flags = r->renormalise ? PL_ROUTE_RENORMALISE : 0u, .scale = r->scale};
    u32 stride = (u32)room->slots;
    size_t n = 0;
    struct pl_device_arg args[8];
    PL_ASSERT(!order || r->rows <= PL_MOE_CHOOSE_ROWS);
    args[n++] = PL_ARG_BUFFER(r->logits);
    args[n++] = PL_ARG_BUFFER(&room->ids);
    args[n++] = PL_ARG_BUFFER(&room->weights);
    if (order) args[n++] = PL_ARG_BUFFER(&room->order);
    args[n++] = PL_ARG_BUFFER(&k->counter);
    args[n++] = PL_ARG_VALUE(a);
    if (order) args[n++] = PL_ARG_VALUE(stride);
    return pl_kernel_launch(ks, k, order ? 1 : groups(r->rows, CHOOSE_GROUP / 32), 1, 0, args, n);
}

enum pl_status pl_kernel_moe_sort(struct pl_kernels *ks, uint32_t experts, uint32_t tile, struct pl_kernel *out,
                                  struct pl_err *err) {
    char name[40];
    struct pl_jit_spec s = {.file = "cuda/moe_sort.k.c", .entry = "pk_moe_sort"};
    PL_ASSERT(experts <= PL_MOE_SORT_EXPERTS);
    pl_jit_set_u32(&s, "GROUP", PL_MOE_SORT_SLOTS / 2);
    pl_jit_set_u32(&s, "EXPERTS", experts);
    pl_jit_set_u32(&s, "TILE", tile);
    snprintf(name, sizeof name, "moe_sort/x%u/t%u", experts, tile);
    return pl_kernel_make(ks, &s, PL_MOE_SORT_SLOTS / 2, name, out, err);
}
enum pl_status pl_launch_moe_sort(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_moe_room *room, size_t slots) {
    u32 count = (u32)slots, stride = (u32)room->slots;
    PL_ASSERT(slots <= room->slots);
    struct pl_device_arg args[] = {PL_ARG_BUFFER(&room->ids), PL_ARG_BUFFER(&room->order), PL_ARG_BUFFER(&k->counter),
                                   PL_ARG_VALUE(count), PL_ARG_VALUE(stride)};
    return pl_kernel_launch(ks, k, groups(slots, PL_MOE_SORT_SLOTS), 1, 0, args, PL_COUNT_OF(args));
}

/* --- one row on sm_90 --- */

static const uint32_t one_groups[PL_MOE_ONE_COUNT] = {128, 384};
static uint32_t one_shared(const struct pl_device_weight *w, enum pl_moe_one which, size_t used) {
    uint32_t blocks = (uint32_t)(w->cols / 256), strip = strip_bytes(w);
    if (which == PL_MOE_ONE_MIX) return (uint32_t)used * blocks * (strip + (uint32_t)sizeof(uint64_t));
    return blocks * (2 * strip + ONE_INPUT + (uint32_t)sizeof(uint64_t));
}
const char *pl_moe_one_declines(const struct pl_kernels *ks, const struct pl_device_weight *up,
                                const struct pl_device_weight *down, const struct pl_launch_route *r, size_t experts,
                                size_t used) {
    uint32_t most = pl_device_info(ks->device)->shared_optin_bytes - ONE_STATIC;
    if (pl_cuda_capability(ks) < 90) return "no copies by the engine of sm_90, or no compiler";
    if (pl_moe_routed_declines(r, experts, used) != NULL) return pl_moe_routed_declines(r, experts, used);
    if (up->cols / 256 > ONE_BLOCKS_MAX || used * (down->cols / 256) > ONE_UNITS_MAX)
        return "input too wide for shared memory";
    bool fits = one_shared(up, PL_MOE_ONE_UP, used) <= most && one_shared(down, PL_MOE_ONE_MIX, used) <= most;
    return fits ? NULL : "input too wide for shared memory";
}

enum pl_status pl_kernel_moe_one(struct pl_kernels *ks, const struct pl_device_weight *w, enum pl_moe_one which, int act,
                                 uint32_t experts, uint32_t used, struct pl_kernel *out, struct pl_err *err) {
    char name[40];
    struct pl_jit_spec s = {.file = "cuda/moe_one.k.c", .entry = "pk_moe_one"};
    pl_jit_set_u32(&s, "GROUP", one_groups[which]);
    if (which == PL_MOE_ONE_UP) pl_jit_set(&s, "MOE_UP", "1");
    pl_jit_set_u32(&s, "EXPERTS", experts);
    pl_jit_set_u32(&s, "USED", used);
    if (act == 1) pl_jit_set(&s, "ACT_GELU_TANH", "1");
    pl_jit_set_weight(&s, w);
    snprintf(name, sizeof name, "moe_route+%s/one/%s/x%u", which == PL_MOE_ONE_UP ? "up" : "mix", pl_dtype_name(w->dtype),
             experts);
    return pl_kernel_make(ks, &s, one_groups[which], name, out, err);
}

enum pl_status pl_launch_moe_one(struct pl_kernels *ks, struct pl_kernel *k, enum pl_moe_one which,
                                 const struct pl_moe_room *room, const struct pl_launch_route *r,
                                 const struct pl_launch_moe_mma *m) {
    struct pl_args_moe a = args_of(m->w, m->experts, 1, m->used, room);
    f32 scale = r->scale;
    size_t n = 0;
    struct pl_device_arg args[8];
    PL_ASSERT(m->rows == 1 && m->used <= room->slots);
    a.flags = r->renormalise ? PL_ROUTE_RENORMALISE : 0u;
    args[n++] = PL_ARG_BUFFER(&m->w->data);
    if (which == PL_MOE_ONE_UP) args[n++] = PL_ARG_BUFFER(&m->up->data);
    args[n++] = PL_ARG_BUFFER(m->x);
    args[n++] = PL_ARG_BUFFER(r->logits);
    args[n++] = PL_ARG_BUFFER(m->y);
    args[n++] = PL_ARG_BUFFER(&k->counter);
    args[n++] = PL_ARG_VALUE(a);
    if (which == PL_MOE_ONE_MIX) args[n++] = PL_ARG_VALUE(scale);
    uint32_t slots = which == PL_MOE_ONE_UP ? (uint32_t)m->used : 1;
    return pl_kernel_launch(ks, k, a.out / 16, slots, one_shared(m->w, which, m->used), args, n);
}

const char *pl_router_declines(const struct pl_kernels *ks, const struct pl_device_weight *w) {
    if (pl_cuda_capability(ks) < 90) return "no launches that overlap, or no compiler";
    if (w->dtype != PL_F32) return "weight type";
    return w->cols % 256 != 0 || w->cols > ROUTER_IN_MAX || w->rows > PL_FMA_OUT_FEW ? "width" : NULL;
}
enum pl_status pl_kernel_router(struct pl_kernels *ks, struct pl_kernel *out, struct pl_err *err) {
    struct pl_jit_spec s = {.file = "cuda/moe_router.k.c", .entry = "pk_moe_router"};
    pl_jit_set_u32(&s, "GROUP", ROUTER_GROUP);
    return pl_kernel_make(ks, &s, ROUTER_GROUP, "norm+fma/f32/r1", out, err);
}
enum pl_status pl_launch_router(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_router *r) {
    static const struct pl_device_buffer none;
    struct pl_args_stream a = {.in = (u32)r->in,
                               .flags = r->bias != NULL ? PL_LINEAR_BIAS : 0u,
                               .out0 = (u32)r->experts,
                               .grid = groups(r->experts, ROUTER_GROUP / 32),
                               .value = r->eps,
                               .offset = r->offset};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(r->x),      PL_ARG_BUFFER(r->norm),
                                   PL_ARG_BUFFER(r->w),      PL_ARG_BUFFER(r->bias != NULL ? r->bias : &none),
                                   PL_ARG_BUFFER(r->h),      PL_ARG_BUFFER(r->ready != NULL ? r->ready : &none),
                                   PL_ARG_BUFFER(r->logits), PL_ARG_BUFFER(&k->counter),
                                   PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, a.grid, 1, a.in * (uint32_t)sizeof(float), args, PL_COUNT_OF(args));
}

/* --- many rows --- */

const char *pl_moe_dense_declines(const struct pl_kernels *ks, const struct pl_device_weight *w, size_t experts) {
    if (!pl_cuda_has_units(ks) || pl_cuda_capability(ks) < 80) return "no bf16 matrix units";
    if (w->dtype == PL_F32) return "weights of full precision";
    if (w->cols % 64 != 0 || w->rows / experts % 2 != 0) return "width";
    return NULL;
}

enum pl_status pl_moe_dense_ready(struct pl_kernels *ks, struct pl_moe_dense *d, size_t rows, size_t used, size_t width,
                                  size_t inner, uint64_t unpacked_bytes, struct pl_err *err) {
    if (d->pack.jit == NULL) {
        struct pl_jit_spec s = {.file = "cuda/pack.k.c", .entry = "pk_pack"};
        pl_jit_set_u32(&s, "GROUP", PACK_GROUP);
        PL_TRY(pl_kernel_make(ks, &s, PACK_GROUP, "pack/bf16", &d->pack, err));
        pl_jit_set(&s, "IN_ORDER", "1");
        PL_TRY(pl_kernel_make(ks, &s, PACK_GROUP, "pack/bf16/order", &d->pack_in_order, err));
    }
    PL_TRY(room_for(ks, &d->x, 2ull * rows * width, err));
    PL_TRY(room_for(ks, &d->h, 2ull * rows * used * inner, err));
    for (size_t i = 0; i < 2 && unpacked_bytes > 0; i++) PL_TRY(room_for(ks, &d->w[i], unpacked_bytes, err));
    return PL_OK;
}
void pl_moe_dense_deinit(struct pl_kernels *ks, struct pl_moe_dense *d) {
    pl_kernel_free(ks, &d->pack);
    pl_kernel_free(ks, &d->pack_in_order);
    pl_device_free(ks->device, &d->x);
    pl_device_free(ks->device, &d->h);
    pl_device_free(ks->device, &d->w[0]);
    pl_device_free(ks->device, &d->w[1]);
}

enum pl_status pl_kernel_moe_unpack(struct pl_kernels *ks, const struct pl_device_weight *w, struct pl_kernel *out,
                                    struct pl_err *err) {
    char name[40];
    struct pl_jit_spec s = {.file = "cuda/pack.k.c", .entry = "pk_unpack"};
    pl_jit_set_u32(&s, "GROUP", PACK_GROUP);
    pl_jit_set(&s, "UNPACK", "1");
    pl_jit_set(&s, "CHOSEN", "1");
    if (w->strips) pl_jit_set(&s, "STRIPS", "1");
    pl_jit_set_weight(&s, w);
    snprintf(name, sizeof name, "moe_unpack/%s%s", pl_dtype_name(w->dtype), w->strips ? "/strips" : "");
    return pl_kernel_make(ks, &s, PACK_GROUP, name, out, err);
}
enum pl_status pl_launch_moe_unpack(struct pl_kernels *ks, struct pl_moe_dense *d, struct pl_kernel *k,
                                    const struct pl_device_weight *w, size_t experts, const struct pl_moe_room *room,
                                    size_t to) {
    struct pl_args_linear a = {(u32)w->rows, (u32)w->cols, (u32)w->rows, 0, w->row_bytes};
    u64 first = 0;
    u32 out = (u32)(w->rows / experts), stride = (u32)room->slots;
    PL_ASSERT(d->w[to].bytes >= 2 * w->rows * w->cols);
    struct pl_device_arg args[] = {PL_ARG_BUFFER(&w->data),  PL_ARG_BUFFER(&w->scales),   PL_ARG_BUFFER(&w->biases),
                                   PL_ARG_BUFFER(&d->w[to]), PL_ARG_BUFFER(&k->counter),  PL_ARG_VALUE(a),
                                   PL_ARG_VALUE(first),      PL_ARG_BUFFER(&room->order), PL_ARG_VALUE(out),
                                   PL_ARG_VALUE(stride)};
    uint64_t threads = w->rows * (w->cols / (w->strips ? 8 : 32));
    return pl_kernel_launch(ks, k, groups(threads, PACK_GROUP), 1, 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_launch_moe_pack(struct pl_kernels *ks, struct pl_moe_dense *d, bool in_order, pl_buffer_in *x,
                                  uint64_t count) {
    struct pl_kernel *k = in_order ? &d->pack_in_order : &d->pack;
    PL_ASSERT(d->x.bytes >= 2 * count && count % (in_order ? 256 : 8) == 0);
    u64 n = count;
    struct pl_device_arg args[] = {PL_ARG_BUFFER(x), PL_ARG_BUFFER(&d->x), PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(n)};
    return pl_kernel_launch(ks, k, groups(count / 8, PACK_GROUP), 1, 0, args, PL_COUNT_OF(args));
}

bool pl_moe_dense_wide(const struct pl_kernels *ks) { return pl_mma_wide(ks, PL_MMA_WIDE_ROWS); }
enum pl_status pl_kernel_moe_dense(struct pl_kernels *ks, bool pair, int act, bool wide, struct pl_kernel *out,
                                   struct pl_err *err) {
    static const char *const acts[PL_MOE_ACTS] = {"silu", "gelu_tanh", "clamped", "relu2"};
    char name[40];
    struct pl_jit_spec s = {.file = wide ? "cuda/moe_wide.k.c" : "cuda/moe_dense.k.c",
                            .entry = wide ? "pk_moe_wide" : "pk_moe_dense"};
    uint32_t group = wide ? WIDE_GROUP : DENSE_GROUP;
    pl_jit_set_u32(&s, "GROUP", group);
    if (!wide)
        pl_jit_set(&s, "STAGES", (char[]){(char)('0' + DENSE_STAGES), 0}); /* plain digits: the assembler gets STAGES - 2 */
    if (pair) pl_jit_set(&s, "MOE_PAIR", "1");
    if (act == 1) pl_jit_set(&s, "ACT_GELU_TANH", "1");
    if (act == 2) pl_jit_set(&s, "ACT_SWIGLU_CLAMPED", "1");
    snprintf(name, sizeof name, "moe_%s/bf16%s%s", wide ? "wide" : "dense", pair ? "/" : "", pair ? acts[act] : "");
    return pl_kernel_make(ks, &s, group, name, out, err);
}

enum pl_status pl_launch_moe_dense(struct pl_kernels *ks, struct pl_moe_dense *d, struct pl_kernel *k,
                                   const struct pl_moe_room *room, const struct pl_launch_moe_dense *m) {
    const struct pl_device_buffer *second = m->pair ? m->w[1] : m->w[0];
    struct pl_args_moe a = {(u32)m->rows, (u32)m->used, (u32)m->in, (u32)m->out, (u32)room->slots, 0, 2 * m->in, 0, 0};
    if (m->bias[0] != NULL) a.flags = PL_LINEAR_BIAS;
    struct pl_device_arg args[] = {PL_ARG_BUFFER(m->pair ? &d->x : &d->h),
                                   PL_ARG_BUFFER(m->w[0]),
                                   PL_ARG_BUFFER(second),
                                   PL_ARG_BUFFER(m->bias[0]),
                                   PL_ARG_BUFFER(m->bias[1]),
                                   PL_ARG_BUFFER(&room->order),
                                   PL_ARG_BUFFER(m->pair ? &d->h : &room->made),
                                   PL_ARG_BUFFER(&k->counter),
                                   PL_ARG_VALUE(a)};
    uint32_t tiles = pl_moe_tiles(m->rows * m->used, m->experts, PL_MOE_DENSE_TILE);
    bool wide = k->group == WIDE_GROUP;
    uint32_t outs = (wide ? 256 : 128) / (m->pair ? 2 : 1), shared = wide ? WIDE_SHARED : DENSE_STAGES * DENSE_STAGE_BYTES;
    return pl_kernel_launch(ks, k, groups(m->out, outs), tiles, shared, args, PL_COUNT_OF(args));
}

const char *pl_moe_tall_declines(const struct pl_kernels *ks, const struct pl_device_weight *w, size_t experts) {
    if (!w->strips) return "layout of the file";
    if (!pl_moe_dense_wide(ks)) return "no products of four warps (sm_90a), or no compiler";
    return w->rows / experts % 16 != 0 || w->cols % 256 != 0 || w->cols < 512 ? "width" : NULL;
}
enum pl_status pl_kernel_moe_tall(struct pl_kernels *ks, const struct pl_device_weight *w, bool pair, int act,
                                  struct pl_kernel *out, struct pl_err *err) {
    static const char *const acts[PL_MOE_ACTS] = {"silu", "gelu_tanh", "clamped", "relu2"};
    char name[40];
    struct pl_jit_spec s = {.file = "cuda/moe_tall.k.c", .entry = "pk_moe_tall"};
    PL_ASSERT(act < 2);
    pl_jit_set_u32(&s, "GROUP", WIDE_GROUP);
    if (pair) pl_jit_set(&s, "MOE_PAIR", "1");
    if (act == 1) pl_jit_set(&s, "ACT_GELU_TANH", "1");
    pl_jit_set_weight(&s, w);
    snprintf(name, sizeof name, "moe_tall/%s%s%s", pl_dtype_name(w->dtype), pair ? "/" : "", pair ? acts[act] : "");
    return pl_kernel_make(ks, &s, WIDE_GROUP, name, out, err);
}
enum pl_status pl_launch_moe_tall(struct pl_kernels *ks, struct pl_moe_dense *d, struct pl_kernel *k,
                                  const struct pl_moe_room *room, const struct pl_launch_moe_tall *m) {
    bool pair = m->up != NULL;
    struct pl_args_moe a = args_of(m->w, m->experts, m->rows, m->used, room);
    PL_ASSERT(!pair || a.out % 256 == 0); /* h stands in order by 256 */
    uint32_t outs = pair ? 128 : 256, tiles = pl_moe_tiles(m->rows * m->used, m->experts, PL_MOE_DENSE_TILE);
    a.grid = PL_MIN(pl_device_info(ks->device)->units, tiles * groups(a.out, outs));
    struct pl_device_arg args[] = {PL_ARG_BUFFER(pair ? &d->x : &d->h),
                                   PL_ARG_BUFFER(&m->w->data),
                                   PL_ARG_BUFFER(pair ? &m->up->data : &m->w->data),
                                   PL_ARG_BUFFER(&room->order),
                                   PL_ARG_BUFFER(pair ? &d->h : &room->made),
                                   PL_ARG_BUFFER(&k->counter),
                                   PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, a.grid, 1, TALL_STAGES + PL_MOE_DENSE_TILE * 2 * (outs + 8) + TALL_KNOWN, args,
                            PL_COUNT_OF(args));
}

enum pl_status pl_kernel_moe_sum(struct pl_kernels *ks, uint32_t used, struct pl_kernel *out, struct pl_err *err) {
    char name[40];
    struct pl_jit_spec s = {.file = "cuda/moe_combine.k.c", .entry = "pk_moe_combine"};
    pl_jit_set_u32(&s, "GROUP", SUM_GROUP);
    pl_jit_set_u32(&s, "USED", used);
    snprintf(name, sizeof name, "moe_combine/bf16/k%u", used);
    return pl_kernel_make(ks, &s, SUM_GROUP, name, out, err);
}
enum pl_status pl_launch_moe_sum(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_moe_room *room, size_t rows,
                                 size_t cols, pl_buffer_in *y) {
    struct pl_args_rows a = {(u32)rows, (u32)cols, 0, 0};
    u32 stride = (u32)room->slots;
    struct pl_device_arg args[] = {PL_ARG_BUFFER(&room->made), PL_ARG_BUFFER(&room->order), PL_ARG_BUFFER(&room->weights),
                                   PL_ARG_BUFFER(y),           PL_ARG_BUFFER(&k->counter),  PL_ARG_VALUE(a),
                                   PL_ARG_VALUE(stride)};
    return pl_kernel_launch(ks, k, groups(cols / 8, SUM_GROUP), (uint32_t)rows, 0, args, PL_COUNT_OF(args));
}

/* --- f32 --- */

const char *pl_fma_declines(const struct pl_kernels *ks, const struct pl_device_weight *w, size_t rows) {
    if (pl_device_info(ks->device)->kind != PL_DEVICE_CUDA) return "no port to this backend";
    if (w->dtype != PL_F32) return "weight type";
    if (w->cols % 4 != 0) return "width";
    return rows <= PL_FMA_ROWS_FEW && w->rows > PL_FMA_OUT_FEW ? "few rows" : NULL;
}
/* Rows and outputs of a group of threads, and its size; without outputs: fma.k.c. */
static const struct {
    const char *name;
    uint32_t rows, outs, group;
} fmas[PL_FMA_KERNELS] = {{"cuda/fma/f32/r1", 0, 0, 0},      {"cuda/fma/f32/r8", 0, 0, 0},
                          {"cuda/fma/f32", 0, 0, 0},         {"cuda/tf32x3/r8", 8, 16, 512},
                          {"cuda/tf32x3/r16", 16, 16, 512},  {"cuda/tf32x3/o16", 32, 16, 512},
                          {"cuda/tf32x3/o128", 32, 128, 512}};
enum { FMA_UNITS_FEW = 3, FMA_UNITS = 5 };
uint32_t pl_fma_kernel_of(const struct pl_kernels *ks, const struct pl_device_weight *w, size_t rows) {
    if (rows <= 1) return 0;
    if (pl_cuda_capability(ks) < 80 || w->rows > PL_FMA_OUT_FEW) return rows <= PL_FMA_ROWS_FEW ? 1 : 2;
    for (uint32_t i = FMA_UNITS_FEW; i < FMA_UNITS; i++)
        if (rows <= fmas[i].rows) return i;
    return rows <= TF32_ROWS_FEW ? FMA_UNITS : FMA_UNITS + 1;
}
const char *pl_fma_name(uint32_t which) { return fmas[which].name; }

enum pl_status pl_kernel_fma(struct pl_kernels *ks, uint32_t which, struct pl_kernel *out, struct pl_err *err) {
    bool units = fmas[which].outs > 0;
    struct pl_jit_spec s = {.file = !units              ? "cuda/fma.k.c"
                                    : which < FMA_UNITS ? "cuda/tf32x3_few.k.c"
                                                        : "cuda/tf32x3.k.c",
                            .entry = units ? "pk_tf32x3" : "pk_fma"};
    uint32_t group = units ? fmas[which].group : which < 2 ? FMA_GROUP_FEW : FMA_GROUP;
    pl_jit_set_u32(&s, "GROUP", group);
    if (which >= FMA_UNITS) pl_jit_set_u32(&s, "OUTS", fmas[which].outs);
    if (units && which < FMA_UNITS) pl_jit_set_u32(&s, "ROWS_8", fmas[which].rows / 8);
    if (which < 2) pl_jit_set_u32(&s, "ROWS", which == 0 ? 1 : PL_FMA_ROWS_FEW);
    return pl_kernel_make(ks, &s, group, fmas[which].name + sizeof "cuda", out, err);
}
enum pl_status pl_launch_fma(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_device_weight *w, pl_buffer_in *x,
                             pl_buffer_in *bias, pl_buffer_in *y, size_t rows, bool add) {
    struct pl_args_linear a = {(u32)rows, (u32)w->cols, (u32)w->rows, 0, w->row_bytes};
    a.flags = (bias != NULL ? PL_LINEAR_BIAS : 0u) | (add ? PL_LINEAR_ADD : 0u);
    struct pl_device_arg args[] = {PL_ARG_BUFFER(&w->data), PL_ARG_BUFFER(x),           PL_ARG_BUFFER(bias),
                                   PL_ARG_BUFFER(y),        PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    uint32_t which = pl_fma_kernel_of(ks, w, rows), outs = fmas[which].outs;
    if (outs > 0)
        return pl_kernel_launch(ks, k, groups(w->rows, outs), groups(rows, fmas[which].rows), 0, args, PL_COUNT_OF(args));
    if (rows <= PL_FMA_ROWS_FEW)
        return pl_kernel_launch(ks, k, groups(w->rows, FMA_GROUP_FEW / 32), 1, 0, args, PL_COUNT_OF(args));
    return pl_kernel_launch(ks, k, groups(w->rows, FMA_TILE), groups(rows, FMA_TILE), 0, args, PL_COUNT_OF(args));
}
