#include "ops/cuda_chain.h"

#include <stdatomic.h>
#include <stdio.h>

/* As kernels/cuda/chain.k.c has them. APART: shared memory left to the attention that runs beside it. */
enum { TEAM = 256, WARPS = 8, HOLD = 16, CHUNK = 2048, STAGE = 192, APART = 12 * 1024, DEPTH_LEAST = 4 };

static atomic_int backends;
void pl_chain_backend(int step) { atomic_fetch_add(&backends, step); }

static bool is_half(const struct pl_device_weight *w) { return w->dtype == PL_BF16 || w->dtype == PL_F16; }

enum { MATRICES = 4 + PL_STREAM_MATRICES_MAX };

/* Teams of warps that take outputs of their own. */
static uint32_t teams_of(const struct pl_device_weight *w) { return w->strips ? 2 : 1; }
static uint32_t group_of(const struct pl_device_weight *w) { return TEAM * teams_of(w) + 32; }
static uint32_t together_of(const struct pl_device_weight *w) { return is_half(w) ? 4 : w->strips ? 16 : 8; }
static uint32_t unit_of(const struct pl_device_weight *w, bool mixed) {
    if (is_half(w)) return 16384;
    if (w->strips) return 8 * (mixed || w->dtype == PL_Q6_K ? 3360 : 2368);
    return 8 * (64 * (uint32_t)pl_dtype_info(w->dtype)->block_bytes + 48);
}
/* Matrices in the order of the kernel's arguments. */
static size_t matrices_of(const struct pl_launch_chain *l, const struct pl_device_weight **all) {
    const struct pl_device_weight *first[] = {l->o, l->gate, l->up, l->down};
    for (size_t i = 0; i < 4; i++) all[i] = first[i];
    for (size_t i = 0; i < l->count; i++) all[4 + i] = l->next[i];
    return 4 + l->count;
}
struct pl_chain_room pl_chain_room(uint32_t most, struct pl_chain_kind kind, const struct pl_launch_chain *l) {
    const struct pl_device_weight *w = l->o;
    uint64_t widest = PL_MAX(PL_MAX(l->o->cols, l->o->rows), l->down->cols), input = is_half(w) ? 8192 : 4608;
    uint64_t fixed = (widest + CHUNK - 1) / CHUNK * input + HOLD * WARPS * together_of(w) * sizeof(float) + 4 * STAGE +
                     WARPS * teams_of(w) * sizeof(float);
    uint32_t stage = unit_of(w, kind.mixed) + 2 * (uint32_t)sizeof(uint64_t);
    if (fixed + DEPTH_LEAST * stage > most) return (struct pl_chain_room){0};
    uint32_t depth = (most - (uint32_t)fixed) / stage;
    return (struct pl_chain_room){depth, (uint32_t)fixed + depth * stage};
}
static struct pl_chain_room room_of(const struct pl_kernels *ks, struct pl_chain_kind kind,
                                    const struct pl_launch_chain *l) {
    return pl_chain_room(pl_device_info(ks->device)->shared_optin_bytes - APART, kind, l);
}

/* Strips meet inputs of one form, whatever they are made of. */
static bool alike(const struct pl_device_weight *a, const struct pl_device_weight *b) {
    return a->strips == b->strips && (a->strips || a->dtype == b->dtype);
}
bool pl_chain_mixed(const struct pl_launch_chain *l) {
    const struct pl_device_weight *all[MATRICES];
    size_t count = matrices_of(l, all);
    for (size_t i = 1; i < count; i++)
        if (all[i]->dtype != all[0]->dtype) return true;
    return false;
}

const char *pl_chain_declines(const struct pl_kernels *ks, const struct pl_launch_chain *l) {
    const struct pl_device_weight *all[MATRICES];
    size_t count = matrices_of(l, all);
    if (atomic_load(&backends) > 1) return "another CUDA backend of this process may run beside it";
    for (size_t i = 0; i < count; i++) {
        const char *why = pl_stream_declines(ks, all[i], 1);
        if (why != NULL) return why;
        if (!alike(all[i], l->o)) return "weights of several types";
        if (all[i]->rows % together_of(l->o) != 0) return "outputs are no multiple of a unit's";
        if (all[i]->cols % 32 != 0) return "inputs are no multiple of 32";
    }
    bool fits = l->gate->cols == l->o->rows && l->up->cols == l->o->rows && l->up->rows == l->gate->rows &&
                l->down->cols == l->gate->rows && l->down->rows == l->o->rows;
    for (size_t i = 0; i < l->count; i++) fits = fits && l->next[i]->cols == l->o->rows;
    if (!fits) return "shapes do not follow each other";
    struct pl_chain_kind kind = {.mixed = pl_chain_mixed(l)};
    return room_of(ks, kind, l).depth == 0 ? "input too wide for shared memory" : NULL;
}

enum pl_status pl_kernel_chain(struct pl_kernels *ks, const struct pl_device_weight *w, struct pl_chain_kind kind,
                               struct pl_kernel *out, struct pl_err *err) {
    char name[40];
    struct pl_jit_spec s = {.file = "cuda/chain.k.c", .entry = "pk_chain"};
    pl_jit_set_u32(&s, "GROUP", group_of(w));
    if (kind.gelu) pl_jit_set(&s, "ACT_GELU_TANH", "1");
    if (kind.mixed) {
        pl_jit_set(&s, "WTYPE_STRIPS", "1");
    } else {
        pl_jit_set_weight(&s, w);
    }
    snprintf(name, sizeof name, "chain/%s/%s", kind.mixed ? "q4_k_q6_k" : pl_dtype_name(w->dtype),
             kind.gelu ? "gelu_tanh" : "silu");
    return pl_kernel_make(ks, &s, group_of(w), name, out, err);
}

enum pl_status pl_launch_chain(struct pl_kernels *ks, struct pl_kernel *k, struct pl_chain_kind kind,
                               const struct pl_launch_chain *l) {
    static const struct pl_device_buffer none;
    const struct pl_device_weight *all[MATRICES];
    size_t count = matrices_of(l, all);
    struct pl_chain_room room = room_of(ks, kind, l);
    struct pl_device_arg args[22];
    uint32_t out[PL_STREAM_MATRICES_MAX] = {0}, six = 0;
    PL_ASSERT(room.depth > 0 && l->count <= PL_STREAM_MATRICES_MAX && (kind.mixed || !pl_chain_mixed(l)));
    for (size_t i = 0; i < 4; i++) args[i] = PL_ARG_BUFFER(&all[i]->data);
    for (size_t i = 0; i < count; i++) six |= (all[i]->dtype == PL_Q6_K ? 1u : 0u) << i;
    for (size_t i = 0; i < PL_STREAM_MATRICES_MAX; i++) {
        bool here = i < l->count;
        args[4 + i] = PL_ARG_BUFFER(here ? &l->next[i]->data : &none);
        args[7 + i] = PL_ARG_BUFFER(here && l->bias[i] != NULL ? l->bias[i] : &none);
        args[16 + i] = PL_ARG_BUFFER(here ? l->y[i] : &none);
        out[i] = here ? (uint32_t)l->next[i]->rows : 0;
    }
    struct pl_args_chain a = {.heads = (u32)l->o->cols,
                              .in = (u32)l->o->rows,
                              .mid = (u32)l->down->cols,
                              .out0 = out[0],
                              .out1 = out[1],
                              .out2 = out[2],
                              .stages = l->count > 0 ? PL_CHAIN_STAGES : PL_CHAIN_STAGES - 1u,
                              .depth = room.depth,
                              .grid = pl_device_info(ks->device)->units,
                              .value0 = l->eps,
                              .offset0 = l->offset,
                              .value1 = l->next_eps,
                              .offset1 = l->next_offset,
                              .six = six};
    args[10] = PL_ARG_BUFFER(l->norm);
    args[11] = PL_ARG_BUFFER(l->count > 0 ? l->next_norm : &none);
    args[12] = PL_ARG_BUFFER(l->from);
    args[13] = PL_ARG_BUFFER(l->x);
    args[14] = PL_ARG_BUFFER(l->h);
    args[15] = PL_ARG_BUFFER(l->g);
    args[19] = PL_ARG_BUFFER(l->meet);
    args[20] = PL_ARG_BUFFER(&k->counter);
    args[21] = PL_ARG_VALUE(a);
    return pl_kernel_launch(ks, k, a.grid, 1, room.bytes, args, PL_COUNT_OF(args));
}
