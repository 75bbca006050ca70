#include "ops/cuda_stream.h"

#include <stdio.h>

/* As kernels/cuda/stream.k.c has them. */
enum { GROUP = 288, WARPS = 8, HOLD = 16, CHUNK = 2048, RESERVED = 1024, DEPTH_LEAST = 3 };

static bool is_half(const struct pl_device_weight *w) { return w->dtype == PL_BF16 || w->dtype == PL_F16; }
/* Bytes of a block of 32 of the types that are taken as the file has them, else 0. */
static uint32_t block_bytes(const struct pl_device_weight *w) {
    bool taken = w->dtype == PL_Q8_0 || w->dtype == PL_Q4_0 || w->dtype == PL_Q4_1 || w->dtype == PL_Q5_0;
    return taken ? pl_dtype_info(w->dtype)->block_bytes : 0;
}

/* Inputs of a unit. Plain weights: rows in equal parts, so that no unit leaves its place in the ring half empty. */
static uint32_t chunk_of(const struct pl_device_weight *w) {
    uint32_t chunks = (uint32_t)((w->cols + CHUNK - 1) / CHUNK);
    return is_half(w) ? (uint32_t)(((w->cols + chunks - 1) / chunks + 255) / 256 * 256) : CHUNK;
}
uint32_t pl_stream_chunk_index(const struct pl_device_weight *w) { return chunk_of(w) / 256 - 1; }

struct layout {
    uint32_t together; /* outputs */
    uint32_t unit, fixed, depth;
};
/* Two launches share a multiprocessor where they can: the next one's weights are on their way while this one ends. */
static struct layout layout_of(const struct pl_kernels *ks, const struct pl_device_weight *w) {
    struct layout l = {.together = is_half(w) ? 4 : block_bytes(w) > 0 ? 8 : 16};
    uint32_t chunks = (uint32_t)((w->cols + CHUNK - 1) / CHUNK), most = pl_device_info(ks->device)->shared_optin_bytes;
    uint32_t half = (most + RESERVED) / 2 - RESERVED, input = is_half(w) ? 4 * chunk_of(w) : 4608;
    l.unit = is_half(w) ? 8 * chunk_of(w) : 8 * (w->dtype == PL_Q6_K ? 3360 : 2368);
    if (block_bytes(w) > 0) l.unit = 8 * (64 * block_bytes(w) + 48);
    uint32_t stage = l.unit + 2 * (uint32_t)sizeof(uint64_t);
    if (chunks > most / input) return l;
    l.fixed = chunks * input + HOLD * WARPS * l.together * (uint32_t)sizeof(float);
    if (l.fixed + DEPTH_LEAST * stage <= half) {
        l.depth = (half - l.fixed) / stage;
    } else if (l.fixed + DEPTH_LEAST * stage <= most) {
        l.depth = (most - l.fixed) / stage;
    }
    return l;
}

const char *pl_stream_declines(const struct pl_kernels *ks, const struct pl_device_weight *w, size_t rows) {
    if (pl_cuda_capability(ks) < 90) return "no copies by the engine of sm_90, or no compiler";
    if (rows != 1) return "more than one row";
    if (!w->strips && !is_half(w) && block_bytes(w) == 0)
        return w->dtype == PL_Q4_K || w->dtype == PL_Q6_K ? "layout of the file" : "weight type";
    if (!w->strips && (w->cols % 8 != 0 || w->row_bytes % 16 != 0)) return "rows are no multiple of 16 bytes";
    if (layout_of(ks, w).depth == 0) return "input too wide for shared memory";
    return NULL;
}

uint32_t pl_stream_index(struct pl_stream_kind k) { return (k.norm ? 3u : 0u) + (k.glu ? k.gelu ? 2u : 1u : 0u); }

static void short_name(const struct pl_device_weight *w, struct pl_stream_kind k, char *out, size_t size) {
    snprintf(out, size, "stream/%s%s%s", pl_dtype_name(w->dtype), k.norm ? "/norm" : "",
             !k.glu   ? ""
             : k.gelu ? "/gelu_tanh"
                      : "/silu");
}
void pl_kernel_stream_name(const struct pl_device_weight *w, struct pl_stream_kind kind, char out[48]) {
    char name[40];
    short_name(w, kind, name, sizeof name);
    snprintf(out, 48, "cuda/%s", name);
}

enum pl_status pl_kernel_stream(struct pl_kernels *ks, const struct pl_device_weight *w, struct pl_stream_kind kind,
                                struct pl_kernel *out, struct pl_err *err) {
    char name[40];
    struct pl_jit_spec s = {.file = "cuda/stream.k.c", .entry = "pk_stream"};
    pl_jit_set_u32(&s, "GROUP", GROUP);
    if (kind.norm) pl_jit_set(&s, "HAS_NORM", "1");
    if (kind.glu) pl_jit_set(&s, "HAS_GLU", "1");
    if (kind.glu && kind.gelu) pl_jit_set(&s, "ACT_GELU_TANH", "1");
    if (chunk_of(w) != CHUNK) pl_jit_set_u32(&s, "CHUNK", chunk_of(w));
    pl_jit_set_weight(&s, w);
    short_name(w, kind, name, sizeof name);
    return pl_kernel_make(ks, &s, GROUP, name, out, err);
}

enum pl_status pl_launch_stream(struct pl_kernels *ks, struct pl_kernel *k, struct pl_stream_kind kind,
                                const struct pl_launch_stream *l) {
    static const struct pl_device_buffer none;
    struct layout at = layout_of(ks, l->w[0]);
    struct pl_device_arg args[14];
    uint32_t out[PL_STREAM_MATRICES_MAX] = {0}, groups = 0, units = pl_device_info(ks->device)->units;
    PL_ASSERT(at.depth > 0 && (!kind.glu || (l->count == 2 && l->w[0]->rows == l->w[1]->rows && !l->add)));
    for (size_t i = 0; i < PL_STREAM_MATRICES_MAX; i++) {
        bool here = i < l->count, written = here && (i == 0 || !kind.glu);
        args[i] = PL_ARG_BUFFER(here ? &l->w[i]->data : &none);
        args[3 + i] = PL_ARG_BUFFER(here && l->bias[i] != NULL ? l->bias[i] : &none);
        args[6 + i] = PL_ARG_BUFFER(written ? l->y[i] : &none);
        out[i] = here ? (uint32_t)l->w[i]->rows : 0;
        if (written) groups += (out[i] + at.together - 1) / at.together;
    }
    struct pl_args_stream a = {.in = (u32)l->w[0]->cols,
                               .flags = l->add ? PL_LINEAR_ADD : 0u,
                               .out0 = out[0],
                               .out1 = out[1],
                               .out2 = out[2],
                               .depth = at.depth,
                               .grid = PL_MIN(groups, units),
                               .value = l->eps,
                               .offset = l->offset,
                               .row_bytes = l->w[0]->row_bytes};
    uint32_t shared = at.fixed + at.depth * (at.unit + 2 * (uint32_t)sizeof(uint64_t));
    args[9] = PL_ARG_BUFFER(l->x);
    args[10] = PL_ARG_BUFFER(kind.norm ? l->norm : &none);
    args[11] = PL_ARG_BUFFER(kind.norm ? l->h : &none);
    args[12] = PL_ARG_BUFFER(&k->counter);
    args[13] = PL_ARG_VALUE(a);
    return pl_kernel_launch(ks, k, a.grid, 1, shared, args, PL_COUNT_OF(args));
}
