#include "ops/cuda_dense.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tensor/kv8.h"

enum { PACK_GROUP = 256, NORM_GROUP = 512, WIDEN_GROUP = 1024, TILES_GROUP = 128, TILE_ROWS = 64 };
/* Of attention_wide: threads, rows, tokens of a tile, tiles of its ring. */
enum { WIDE_GROUP = 384, WIDE_ROWS = 128, WIDE_BLOCK = 64, WIDE_RING = 384 / WIDE_BLOCK };

/* bf16 matrix units and asynchronous copies came with sm_80. */
/* "sm_90", or "compute_80" when code is made ahead of time. */
static int target_number(const char *target) {
    const char *digits = strrchr(target, '_');
    return digits != NULL ? atoi(digits + 1) : 0;
}
bool pl_cuda_has_units(const struct pl_kernels *ks) {
    const struct pl_device_info *info = pl_device_info(ks->device);
    return info->kind == PL_DEVICE_CUDA && target_number(info->target) >= 80;
}

static enum pl_status room(struct pl_kernels *ks, struct pl_device_buffer *b, uint64_t bytes, struct pl_err *err) {
    if (b->bytes >= bytes) return PL_OK;
    PL_TRY(pl_device_stream_wait(ks->device, ks->stream, err)); /* earlier steps may still use it */
    pl_device_free(ks->device, b);
    return pl_device_alloc(ks->device, bytes, b, err);
}

enum pl_status pl_dense_ready(struct pl_kernels *ks, struct pl_dense *dense, uint64_t x_bytes, uint64_t w_bytes,
                              struct pl_err *err) {
    if (!dense->tried) {
        struct pl_err why = {0};
        enum pl_status st = pl_gemm_open(ks->device, &ks->gemm, &why);
        if (st == PL_NO_MEMORY) {
            *err = why;
            return st;
        }
        dense->tried = true;
        if (st != PL_OK) {
            snprintf(dense->why_not, sizeof dense->why_not, "%.250s", why.text);
            pl_log("products of many rows run without tensor cores: %s", dense->why_not);
        }
    }
    if (dense->why_not[0] != 0) return PL_OK;
    if (dense->pack.jit == NULL) {
        struct pl_jit_spec s = {.file = "cuda/pack.k.c", .entry = "pk_pack"};
        pl_jit_set_u32(&s, "GROUP", PACK_GROUP);
        PL_TRY(pl_kernel_make(ks, &s, PACK_GROUP, "pack/bf16", &dense->pack, err));
    }
    PL_TRY(room(ks, &dense->x, x_bytes, err));
    return w_bytes > 0 ? room(ks, &dense->w, w_bytes, err) : PL_OK;
}

void pl_dense_deinit(struct pl_kernels *ks, struct pl_dense *dense) {
    pl_kernel_free(ks, &dense->pack);
    for (int i = 0; i < PL_PACK_COUNT; i++) pl_kernel_free(ks, &dense->packs[i]);
    pl_device_free(ks->device, &dense->x);
    pl_device_free(ks->device, &dense->w);
}

size_t pl_dense_rows(const struct pl_device_weight *w) {
    if (w->strips) return PL_DENSE_ROWS_STRIPS;
    return w->dtype == PL_BF16 ? PL_DENSE_ROWS_PLAIN : PL_DENSE_ROWS;
}

const char *pl_dense_declines(const struct pl_kernels *ks, const struct pl_device_weight *w, size_t rows) {
    if (!pl_cuda_has_units(ks)) return "no bf16 matrix units";
    if (w->dtype == PL_F32) return "weights of full precision";
    if (w->cols % 32 != 0 || w->rows % 8 != 0) return "width";
    if (rows < pl_dense_rows(w)) return "few rows";
    return NULL;
}

static uint64_t tile_rows(const struct pl_device_weight *w) {
    uint64_t n = PL_DENSE_TILE / (2 * w->cols) / 128 * 128;
    return PL_MIN(PL_MAX(n, (uint64_t)8), w->rows);
}
uint64_t pl_dense_unpacked_bytes(const struct pl_device_weight *w) {
    return w->dtype == PL_BF16 ? 0 : 2 * tile_rows(w) * w->cols;
}

enum pl_status pl_kernel_unpack(struct pl_kernels *ks, const struct pl_device_weight *w, struct pl_kernel *out,
                                struct pl_err *err) {
    char name[40];
    struct pl_jit_spec s = {.file = "cuda/pack.k.c", .entry = "pk_unpack"};
    pl_jit_set_u32(&s, "GROUP", PACK_GROUP);
    pl_jit_set(&s, "UNPACK", "1");
    if (w->strips) pl_jit_set(&s, "STRIPS", "1");
    pl_jit_set_weight(&s, w);
    snprintf(name, sizeof name, "unpack/%s%s", pl_dtype_name(w->dtype), w->strips ? "/strips" : "");
    return pl_kernel_make(ks, &s, PACK_GROUP, name, out, err);
}

static uint32_t pack_groups(uint64_t count) { return (uint32_t)((count / 8 + PACK_GROUP - 1) / PACK_GROUP); }
enum pl_status pl_launch_pack(struct pl_kernels *ks, struct pl_dense *dense, pl_buffer_in *x, uint64_t count) {
    PL_ASSERT(dense->x.bytes >= 2 * count && count % 8 == 0);
    u64 n = count;
    struct pl_device_arg args[] = {PL_ARG_BUFFER(x), PL_ARG_BUFFER(&dense->x), PL_ARG_BUFFER(&dense->pack.counter),
                                   PL_ARG_VALUE(n)};
    return pl_kernel_launch(ks, &dense->pack, pack_groups(count), 1, 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_kernel_pack(struct pl_kernels *ks, enum pl_pack which, struct pl_kernel *out, struct pl_err *err) {
    static const char *const names[PL_PACK_COUNT] = {"norm+pack/bf16", "glu/silu+pack/bf16", "glu/gelu_tanh+pack/bf16",
                                                     "pack/widen"};
    static const char *const flags[PL_PACK_COUNT] = {"PACK_NORM", "PACK_GLU", "PACK_GLU", "PACK_WIDEN"};
    const uint32_t group = which == PL_PACK_NORM ? NORM_GROUP : which == PL_PACK_WIDEN ? WIDEN_GROUP : PACK_GROUP;
    struct pl_jit_spec s = {.file = "cuda/pack.k.c", .entry = "pk_pack"};
    pl_jit_set_u32(&s, "GROUP", group);
    pl_jit_set(&s, flags[which], "1");
    if (which == PL_PACK_GELU_TANH) pl_jit_set(&s, "ACT_GELU_TANH", "1");
    return pl_kernel_make(ks, &s, group, names[which], out, err);
}

enum pl_status pl_launch_pack_norm(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x, pl_buffer_in *w,
                                   pl_buffer_in *y, size_t rows, size_t cols, float eps, float offset) {
    struct pl_args_rows a = {(u32)rows, (u32)cols, eps, offset};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(x), PL_ARG_BUFFER(w), PL_ARG_BUFFER(y), PL_ARG_BUFFER(&k->counter),
                                   PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, (uint32_t)rows, 1, 0, args, PL_COUNT_OF(args));
}
enum pl_status pl_launch_pack_glu(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *gate, pl_buffer_in *up,
                                  pl_buffer_in *y, uint64_t count) {
    u64 n = count;
    struct pl_device_arg args[] = {PL_ARG_BUFFER(gate), PL_ARG_BUFFER(up), PL_ARG_BUFFER(y), PL_ARG_BUFFER(&k->counter),
                                   PL_ARG_VALUE(n)};
    return pl_kernel_launch(ks, k, pack_groups(count), 1, 0, args, PL_COUNT_OF(args));
}
enum pl_status pl_launch_pack_widen(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x, uint64_t count) {
    for (u64 first, end = count; end > 0; end = first) {
        first = end > 8 * WIDEN_GROUP ? (end / 2 + 7) / 8 * 8 : 0;
        struct pl_device_arg args[] = {PL_ARG_BUFFER(x), PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(first), PL_ARG_VALUE(end)};
        uint32_t groups = (uint32_t)(((end - first) / 8 + WIDEN_GROUP - 1) / WIDEN_GROUP);
        PL_TRY(pl_kernel_launch(ks, k, groups, 1, 0, args, PL_COUNT_OF(args)));
    }
    return PL_OK;
}

static enum pl_status unpack_rows(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_device_weight *w, u64 first,
                                  uint64_t rows, pl_buffer_in *to) {
    struct pl_args_linear a = {(u32)rows, (u32)w->cols, (u32)w->rows, 0, w->row_bytes};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(&w->data), PL_ARG_BUFFER(&w->scales),  PL_ARG_BUFFER(&w->biases),
                                   PL_ARG_BUFFER(to),       PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a),
                                   PL_ARG_VALUE(first)};
    uint64_t threads = rows * (w->cols / (w->strips ? 8 : 32));
    uint32_t groups = (uint32_t)((threads + PACK_GROUP - 1) / PACK_GROUP);
    return pl_kernel_launch(ks, k, groups, 1, 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_launch_unpack(struct pl_kernels *ks, struct pl_kernel *unpack, const struct pl_device_weight *w,
                                pl_buffer_in *to) {
    PL_ASSERT(to->bytes >= 2 * w->rows * w->cols);
    return unpack_rows(ks, unpack, w, 0, w->rows, to);
}

/* Outputs [at, at + n) from n rows of bf16. */
static enum pl_status part(struct pl_kernels *ks, const struct pl_launch_dense *l, const void *weights, uint64_t at,
                           uint64_t n) {
    struct pl_gemm_call c = {.w = weights,
                             .x = l->x->handle,
                             .bias = l->bias != NULL ? (const float *)l->bias->handle + at : NULL,
                             .y = (char *)l->y->handle + (l->half ? 2 : 4) * at,
                             .m = (uint32_t)n,
                             .n = (uint32_t)l->rows,
                             .k = (uint32_t)l->w->cols,
                             .ldy = (uint32_t)l->w->rows,
                             .add = l->add,
                             .half = l->half};
    return pl_kernel_gemm(ks, &c);
}

enum pl_status pl_launch_dense(struct pl_kernels *ks, struct pl_dense *dense, struct pl_kernel *unpack,
                               const struct pl_launch_dense *l) {
    const struct pl_device_weight *w = l->w;
    if (w->dtype == PL_BF16) return part(ks, l, w->data.handle, 0, w->rows);
    for (uint64_t at = 0, n; at < w->rows; at += n) { /* kept: in the same tiles, so that the library gives the same bits */
        const char *weights = l->kept != NULL ? (const char *)l->kept->handle + 2 * at * w->cols : dense->w.handle;
        n = PL_MIN(tile_rows(w), w->rows - at);
        if (l->kept == NULL) PL_TRY(unpack_rows(ks, unpack, w, at, n, &dense->w));
        PL_TRY(part(ks, l, weights, at, n));
    }
    return PL_OK;
}

/* --- attention --- */

const char *pl_tiles_declines(const struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t heads,
                              size_t kv_heads) {
    if (!pl_cuda_has_units(ks)) return "no bf16 matrix units";
    if (kv != PL_F16 && kv != PL_BF16 && !pl_is_kv8(kv)) return "cache type";
    if (head_dim != 64 && head_dim != 128) return "head size";
    if (kv_heads == 0 || heads % kv_heads != 0 || heads > 65535) return "head groups";
    return NULL;
}

bool pl_tiles_wide(const struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t page_tokens) {
    return strcmp(pl_device_info(ks->device)->target, "sm_90a") == 0 && head_dim == 128 &&
           (page_tokens % 16 == 0 || pl_is_kv8(kv));
}

enum pl_status pl_kernel_tiles(struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t page_tokens,
                               enum pl_tiles which, struct pl_kernel *out, struct pl_err *err) {
    const bool wide = which != PL_TILES_PLAIN;
    struct pl_jit_spec s = {.file = wide ? "cuda/attention_wide.k.c" : "cuda/attention_tiles.k.c",
                            .entry = wide ? "pk_attention_wide" : "pk_attention_tiles"};
    char name[40];
    const bool widened = pl_is_kv8(kv);
    const uint32_t group = wide ? WIDE_GROUP : TILES_GROUP;
    pl_jit_set_u32(&s, "GROUP", group);
    if (pl_jit_set_kv(&s, widened ? PL_F16 : kv, head_dim, page_tokens) != PL_OK)
        PL_FAIL(err, PL_UNSUPPORTED, "cache type of tiled attention");
    if (widened) pl_jit_set(&s, "PAGES_IN_ORDER", "1");
    if (wide) {
        pl_jit_set_u32(&s, "BLOCK", WIDE_BLOCK);
        pl_jit_set_u32(&s, "RING", WIDE_RING);
    }
    if (which == PL_TILES_HALF) pl_jit_set(&s, "HALF_OUT", "1");
    snprintf(name, sizeof name, "attention_%s/%s/d%zu%s%s", wide ? "wide" : "tiles", pl_dtype_name(kv), head_dim,
             widened ? "/widened" : "", which == PL_TILES_HALF ? "+pack" : "");
    return pl_kernel_make(ks, &s, group, name, out, err);
}

enum pl_status pl_launch_tiles(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_attention *p,
                               size_t head_dim, uint32_t row0, uint32_t rows) {
    struct pl_args_tiles a = {p->heads, p->kv_heads, p->window, p->stride, p->scale, p->softcap, row0, rows};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(p->q),    PL_ARG_BUFFER(p->k_pages), PL_ARG_BUFFER(p->v_pages),
                                   PL_ARG_BUFFER(p->step), PL_ARG_BUFFER(p->out),     PL_ARG_BUFFER(&k->counter),
                                   PL_ARG_VALUE(a)};
    if (k->group == WIDE_GROUP) {
        uint32_t ring = (uint32_t)(4 * WIDE_RING * WIDE_BLOCK * head_dim); /* K and V, two bytes each */
        return pl_kernel_launch(ks, k, p->heads, (rows + WIDE_ROWS - 1) / WIDE_ROWS, ring + 1024, args, PL_COUNT_OF(args));
    }
    uint32_t shared = (uint32_t)(8 * TILE_ROWS * head_dim); /* two stages of K and V, two bytes each */
    return pl_kernel_launch(ks, k, (rows + TILE_ROWS - 1) / TILE_ROWS, p->heads, shared, args, PL_COUNT_OF(args));
}
