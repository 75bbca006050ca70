#include "ops/cuda_mma.h"

#include <stdio.h>
#include <string.h>

enum { PIECE_BYTES = 4256, RETILE_GROUP = 128, PREPARE_GROUP = 256, NORM_GROUP = 512, SPLITS_MAX = 4 };

const char *pl_strips_decline(const struct pl_kernels *ks, const struct pl_device_weight *w) {
    if (pl_cuda_capability(ks) < 80) return "no f16 matrix units, or no compiler";
    if (w->dtype != PL_Q4_K && w->dtype != PL_Q6_K) return "weight type";
    if (w->rows % 16 != 0 || w->cols % 256 != 0) return "width";
    return NULL;
}
const char *pl_mma_declines(const struct pl_kernels *ks, const struct pl_device_weight *w) {
    const char *why = pl_strips_decline(ks, w);
    if (pl_mma_plain(ks, w)) return NULL;
    if (why != NULL) return why;
    return w->strips ? NULL : "layout of the file";
}

static uint64_t strip_bytes(const struct pl_device_weight *w) {
    return w->dtype == PL_BF16 ? 16 * 576 : w->dtype == PL_Q6_K ? 3360 : 2368;
}
uint64_t pl_strips_bytes(const struct pl_device_weight *w) { return w->rows / 16 * (w->cols / 256) * strip_bytes(w); }

enum pl_status pl_kernel_retile(struct pl_kernels *ks, const struct pl_device_weight *w, struct pl_kernel *out,
                                struct pl_err *err) {
    char name[40];
    struct pl_jit_spec s = {.file = "cuda/retile.k.c", .entry = "pk_retile"};
    pl_jit_set_u32(&s, "GROUP", RETILE_GROUP);
    pl_jit_set_weight(&s, w);
    snprintf(name, sizeof name, "retile/%s", pl_dtype_name(w->dtype));
    return pl_kernel_make(ks, &s, RETILE_GROUP, name, out, err);
}
enum pl_status pl_launch_retile(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_device_weight *w,
                                pl_buffer_in *to) {
    PL_ASSERT(to->bytes >= pl_strips_bytes(w));
    struct pl_args_linear a = {(u32)w->rows, (u32)w->cols, (u32)w->rows, 0, w->row_bytes};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(&w->data), PL_ARG_BUFFER(to), PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    uint64_t strips = w->rows / 16 * (w->cols / 256), each = RETILE_GROUP / 32;
    return pl_kernel_launch(ks, k, (uint32_t)((strips + each - 1) / each), 1, 0, args, PL_COUNT_OF(args));
}

/* --- inputs --- */

static uint32_t pieces_of(size_t rows) { return (uint32_t)((rows + 7) / 8); }
uint64_t pl_mma_input_bytes(size_t rows, size_t cols) { return (uint64_t)PIECE_BYTES * pieces_of(rows) * (cols / 256); }

static enum pl_status room_for(struct pl_kernels *ks, struct pl_device_buffer *b, uint64_t bytes, bool zero,
                               struct pl_err *err) {
    if (b->bytes >= bytes) return PL_OK;
    PL_TRY(pl_device_stream_wait(ks->device, ks->stream, err)); /* earlier steps may still use it */
    pl_device_free(ks->device, b);
    PL_TRY(pl_device_alloc(ks->device, bytes, b, err));
    return zero ? pl_device_fill(ks->device, ks->stream, b, 0, err) : PL_OK;
}

/* Groups of threads of one launch, at most. */
static uint64_t groups_max(const struct pl_kernels *ks) { return 4 * (uint64_t)pl_device_info(ks->device)->units; }

uint32_t pl_mma_rows(const struct pl_kernels *ks) {
    return ks->fixed && pl_cuda_capability(ks) < 90 ? 16 : PL_MMA_ROWS; /* more need copies by the engine of sm_90 */
}
size_t pl_mma_ready_rows(const struct pl_kernels *ks) { return ks->fixed ? PL_MMA_FIXED_ROWS : PL_MMA_ROWS_MAX; }

/* Inputs of outputs are shared out by whole segments. */
static bool by_segments(const struct pl_kernels *ks, const struct pl_mma_shape *s) { return ks->fixed && s->wk == 1; }
static uint64_t sums_bytes(const struct pl_mma_shape *s) {
    return (uint64_t)s->wm * s->each * s->rows_8 * 128 * sizeof(float);
}
/* What a launch of that shape may leave in `partial`. */
static uint64_t partial_bytes(const struct pl_kernels *ks, const struct pl_mma_shape *s, uint64_t grid) {
    return 2 * grid * sums_bytes(s) * (by_segments(ks, s) ? PL_MMA_SEGMENTS : 1);
}
static uint64_t partial_room(const struct pl_kernels *ks, size_t rows) {
    uint64_t most = 0;
    uint32_t sizes = ks->fixed ? pl_mma_size(PL_MIN(rows, (size_t)PL_MMA_ROWS), PL_INPUTS_FEW) + 1 : PL_MMA_SIZES;
    for (uint32_t i = 0; i < 2 * sizes; i++) {
        struct pl_mma_shape s = pl_mma_shape_of(ks, i % 2 == 1, i / 2);
        uint64_t grid = ks->fixed ? (uint64_t)pl_device_info(ks->device)->units * s.per_unit : groups_max(ks);
        if (!ks->fixed || s.split) most = PL_MAX(most, partial_bytes(ks, &s, grid));
    }
    return most;
}

enum pl_status pl_mma_ready(struct pl_kernels *ks, struct pl_mma_room *room, size_t rows, size_t cols, size_t outputs,
                            struct pl_err *err) {
    PL_TRY(room_for(ks, &room->x, pl_mma_input_bytes(PL_MIN(rows, pl_mma_ready_rows(ks)), cols), false, err));
    PL_TRY(room_for(ks, &room->partial, partial_room(ks, rows), false, err));
    return room_for(ks, &room->arrived, (outputs / 16 + PL_MMA_MATRICES_MAX) * sizeof(uint32_t), true, err);
}
void pl_mma_deinit(struct pl_kernels *ks, struct pl_mma_room *room) {
    pl_device_free(ks->device, &room->x);
    pl_device_free(ks->device, &room->partial);
    pl_device_free(ks->device, &room->arrived);
}

static bool is_norm(enum pl_prepare which) { return which == PL_PREPARE_NORM || which == PL_PREPARE_ADD_NORM; }

enum pl_status pl_kernel_prepare(struct pl_kernels *ks, enum pl_prepare which, enum pl_inputs inputs, struct pl_kernel *out,
                                 struct pl_err *err) {
    char name[40];
    static const char *const names[PL_PREPARE_COUNT] = {
        "prepare",          "norm+prepare",          "add_norm+prepare",
        "glu/silu+prepare", "glu/gelu_tanh+prepare", "attention_merge+prepare"};
    struct pl_jit_spec s = {.file = "cuda/prepare.k.c", .entry = "pk_prepare"};
    uint32_t group = is_norm(which) ? NORM_GROUP : PREPARE_GROUP;
    pl_jit_set_u32(&s, "GROUP", group);
    if (is_norm(which)) pl_jit_set(&s, "PREPARE_NORM", "1");
    if (which == PL_PREPARE_ADD_NORM) pl_jit_set(&s, "HAS_ADD", "1");
    if (which == PL_PREPARE_SILU || which == PL_PREPARE_GELU_TANH) pl_jit_set(&s, "PREPARE_GLU", "1");
    if (which == PL_PREPARE_MERGE) pl_jit_set(&s, "PREPARE_MERGE", "1");
    if (which == PL_PREPARE_GELU_TANH) pl_jit_set(&s, "ACT_GELU_TANH", "1");
    if (inputs == PL_INPUTS_WIDE) pl_jit_set(&s, "WIDE", "1");
    if (inputs == PL_INPUTS_PLAIN) pl_jit_set(&s, "PLAIN", "1");
    snprintf(name, sizeof name, "%s%s", names[which],
             inputs == PL_INPUTS_WIDE    ? "/wide"
             : inputs == PL_INPUTS_PLAIN ? "/bf16"
                                         : "");
    return pl_kernel_make(ks, &s, group, name, out, err);
}

enum pl_status pl_launch_prepare(struct pl_kernels *ks, enum pl_prepare which, struct pl_kernel *k, struct pl_mma_room *room,
                                 const struct pl_launch_prepare *p) {
    PL_ASSERT(p->cols % 256 == 0 && room->x.bytes >= pl_mma_input_bytes(p->rows, p->cols));
    struct pl_args_prepare a = {(u32)p->rows, (u32)p->cols, pieces_of(p->rows), p->splits,
                                p->head_dim,  p->eps,       p->offset,          0};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(p->x), PL_ARG_BUFFER(p->second), PL_ARG_BUFFER(p->w),
                                   PL_ARG_BUFFER(p->y), PL_ARG_BUFFER(&room->x),  PL_ARG_BUFFER(&k->counter),
                                   PL_ARG_VALUE(a)};
    uint32_t blocks = (uint32_t)(p->cols / 256), warps = PREPARE_GROUP / 32, rows = (uint32_t)p->rows;
    if (is_norm(which)) return pl_kernel_launch(ks, k, rows, 1, 0, args, PL_COUNT_OF(args));
    return pl_kernel_launch(ks, k, (blocks + warps - 1) / warps, rows, 0, args, PL_COUNT_OF(args));
}

/* --- products --- */

static bool multiplies_wide(const struct pl_kernels *ks) {
    return pl_cuda_capability(ks) == 90 && strcmp(pl_device_info(ks->device)->target, "sm_90a") == 0;
}
bool pl_mma_wide(const struct pl_kernels *ks, size_t ready) {
    return ready >= PL_MMA_WIDE_ROWS && !ks->fixed && multiplies_wide(ks);
}
bool pl_mma_plain(const struct pl_kernels *ks, const struct pl_device_weight *w) {
    return w->dtype == PL_BF16 && w->cols % 256 == 0 && w->rows % 16 == 0 && w->row_bytes == 2 * w->cols &&
           multiplies_wide(ks);
}
enum pl_inputs pl_mma_inputs(const struct pl_kernels *ks, bool plain, size_t ready) {
    return plain ? PL_INPUTS_PLAIN : pl_mma_wide(ks, ready) ? PL_INPUTS_WIDE : PL_INPUTS_FEW;
}
uint32_t pl_mma_size(size_t rows, enum pl_inputs inputs) {
    if (rows > 16 || inputs == PL_INPUTS_WIDE) return rows <= 32 ? 3 : 4;
    return rows <= 1 && inputs == PL_INPUTS_FEW ? 0 : rows <= 8 ? 1 : 2;
}
struct pl_mma_shape pl_mma_shape_of(const struct pl_kernels *ks, bool plain, uint32_t size) {
    /* rows, warps by outputs and inputs, strips a warp, depth, stages of inputs, sums that wait, groups a multiprocessor */
#define FEW                                                                                         \
    {1, 1, 8, 1, 2, 0, 8, 2, false, false, false}, {1, 1, 8, 1, 2, 0, 8, 2, false, false, false}, { \
        2, 2, 8, 1, 2, 0, 2, 1, false, false, false                                                 \
    }
    static const struct pl_mma_shape shapes[5][PL_MMA_SIZES] = {
        {FEW, {4, 4, 4, 1, 2, 0, 1, 1, true, false, false}, {8, 4, 2, 1, 2, 0, 1, 1, true, false, false}},
        {FEW, {4, 8, 1, 1, 3, 3, 1, 2, true, false, true}, {8, 8, 1, 1, 4, 3, 1, 1, true, false, true}},
        {FEW, {4, 8, 1, 1, 4, 3, 1, 1, true, true, true}, {8, 8, 1, 1, 4, 3, 1, 1, true, true, true}},
        {{1, 8, 1, 1, 3, 2, 1, 1, true, true, true}, /* weights as they are */
         {1, 8, 1, 1, 3, 2, 1, 1, true, true, true},
         {2, 8, 1, 1, 2, 4, 1, 1, true, true, true},
         {4, 8, 1, 1, 2, 4, 1, 1, true, true, true},
         {8, 8, 1, 1, 2, 2, 1, 1, true, true, true}},
        /* fixed: as the second, but two sets of sums a thread leave room for one group of 32 rows */
        {FEW, {4, 8, 1, 1, 4, 3, 1, 1, true, false, true}, {8, 8, 1, 1, 4, 3, 1, 1, true, false, true}}};
    PL_ASSERT(size < PL_MMA_SIZES);
    if (plain) return shapes[3][size];
    if (ks->fixed) return shapes[4][pl_cuda_capability(ks) < 90 ? PL_MIN(size, 2u) : size];
    return shapes[pl_mma_wide(ks, PL_MMA_ROWS) ? 2 : pl_cuda_capability(ks) >= 90][size];
}

static const uint32_t size_rows[PL_MMA_SIZES] = {1, 8, 16, 32, 64};
void pl_kernel_mma_name(const struct pl_kernels *ks, const struct pl_device_weight *w, uint32_t size, char out[48]) {
    snprintf(out, 48, "cuda/mma/%s/r%u%s", pl_dtype_name(w->dtype), size_rows[size], ks->fixed ? "/fixed" : "");
}

enum pl_status pl_kernel_mma(struct pl_kernels *ks, const struct pl_device_weight *w, const struct pl_mma_shape *shape,
                             struct pl_kernel *out, struct pl_err *err) {
    char name[40];
    struct pl_jit_spec s = {.file = "cuda/mma.k.c", .entry = "pk_mma"};
    uint32_t group = 32 * shape->wm * shape->wk;
    pl_jit_set_u32(&s, "GROUP", group);
    pl_jit_set_u32(&s, "ROWS_8", shape->rows_8);
    if (shape->wide) pl_jit_set(&s, "WIDE", "1");
    if (ks->fixed) pl_jit_set(&s, "FIXED", "1");
    pl_jit_set(&s, "WM", (char[]){(char)('0' + shape->wm), 0}); /* plain digits: the preprocessor compares them */
    pl_jit_set(&s, "WK", (char[]){(char)('0' + shape->wk), 0});
    pl_jit_set_u32(&s, "EACH", shape->each);
    pl_jit_set_u32(&s, "DEPTH", shape->depth);
    pl_jit_set_u32(&s, "HOLD", shape->hold);
    if (shape->bulk) {
        pl_jit_set(&s, "BULK", "1");
        pl_jit_set(&s, "X_STAGES", (char[]){(char)('0' + shape->x_stages), 0});
    }
    pl_jit_set_weight(&s, w);
    snprintf(name, sizeof name, "mma/%s/r%u%s", pl_dtype_name(w->dtype), 8 * shape->rows_8, ks->fixed ? "/fixed" : "");
    return pl_kernel_make(ks, &s, group, name, out, err);
}

/* As kernels/cuda/mma.k.c lays it out. */
static uint32_t shared_bytes(const struct pl_device_weight *w, const struct pl_mma_shape *s) {
    uint32_t warps = s->wm * s->wk, slots = s->bulk ? s->hold : s->hold + s->depth - 1;
    uint32_t sums = s->wk > 1 ? slots * warps * s->each * s->rows_8 * 128 * (uint32_t)sizeof(float) : 0;
    if (!s->bulk) return sums;
    return warps * s->depth * s->each * (uint32_t)strip_bytes(w) + s->x_stages * s->wk * s->rows_8 * PIECE_BYTES + sums +
           (warps * s->depth + 2 * s->x_stages) * (uint32_t)sizeof(uint64_t);
}

/* Units (chunks, or segments) a group of threads takes: whole outputs, or an even share where a group of outputs may be
 * shared. */
static uint32_t span_of(const struct pl_kernels *ks, const struct pl_mma_shape *shape, uint32_t shared, uint32_t groups,
                        uint32_t chunks) {
    const struct pl_device_info *info = pl_device_info(ks->device);
    enum { RESERVED = 1024 }; /* of shared memory, by every group of threads */
    uint32_t held = PL_MIN(shape->per_unit, (info->shared_optin_bytes + RESERVED) / (shared + RESERVED));
    uint32_t units = info->units * PL_MAX(held, 1u), all = groups * chunks;
    uint32_t whole = (groups + units - 1) / units * chunks;
    if (!shape->split) return whole;
    uint32_t even = (all + units - 1) / units, least = (chunks + SPLITS_MAX - 1) / SPLITS_MAX;
    even = PL_MAX(even, least);
    return even * 10 > whole * 9 ? whole : even; /* sharing costs: only where it gains */
}

enum pl_status pl_launch_mma(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_mma_shape *shape,
                             struct pl_mma_room *room, const struct pl_launch_mma *m) {
    static const struct pl_device_buffer none;
    struct pl_device_arg args[14];
    uint32_t out[PL_MMA_MATRICES_MAX] = {0}, groups = 0, strips = shape->wm * shape->each, cols = (uint32_t)m->w[0]->cols;
    for (size_t i = 0; i < PL_MMA_MATRICES_MAX; i++) {
        bool here = i < m->count;
        args[i] = PL_ARG_BUFFER(here ? &m->w[i]->data : &none);
        args[3 + i] = PL_ARG_BUFFER(here && m->bias[i] != NULL ? m->bias[i] : &none);
        args[6 + i] = PL_ARG_BUFFER(here ? m->y[i] : &none);
        out[i] = here ? (uint32_t)m->w[i]->rows : 0;
        groups += (out[i] / 16 + strips - 1) / strips;
    }
    uint32_t chunks = (cols / 256 + shape->wk - 1) / shape->wk, shared = shared_bytes(m->w[0], shape);
    uint32_t segment = (cols / 256 + PL_MMA_SEGMENTS - 1) / PL_MMA_SEGMENTS,
             parts = by_segments(ks, shape) ? (chunks + segment - 1) / segment : chunks;
    uint32_t span = span_of(ks, shape, shared, groups, parts), grid = (groups * parts + span - 1) / span;
    PL_ASSERT(m->from % 8 == 0 && m->rows <= 8 * shape->rows_8 && grid <= groups_max(ks) &&
              room->arrived.bytes >= groups * sizeof(uint32_t));
    PL_ASSERT(!shape->split || room->partial.bytes >= partial_bytes(ks, shape, grid));
    PL_ASSERT(!ks->fixed || shape->wk == 1 || (shape->wk == PL_MMA_SEGMENTS && !shape->split)); /* one order of additions */
    struct pl_args_mma a = {cols,    m->add ? PL_LINEAR_ADD : 0u, out[0],      out[1], out[2], m->rows,
                            m->row0, pieces_of(m->ready),         m->from / 8, span};
    args[9] = PL_ARG_BUFFER(&room->x);
    args[10] = PL_ARG_BUFFER(&room->partial);
    args[11] = PL_ARG_BUFFER(&room->arrived);
    args[12] = PL_ARG_BUFFER(&k->counter);
    args[13] = PL_ARG_VALUE(a);
    return pl_kernel_launch(ks, k, grid, 1, shared, args, PL_COUNT_OF(args));
}
