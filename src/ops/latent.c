#include "ops/latent.h"

#include <stdio.h>

enum { APPEND_GROUP = 128, CPU_GROUP = 16, TILE_GROUP = 256 };

static uint32_t groups(uint64_t n, uint32_t size) { return (uint32_t)((n + size - 1) / size); }

enum pl_status pl_kernel_heads(struct pl_kernels *ks, const struct pl_device_weight *w, uint32_t tile, struct pl_kernel *out,
                               struct pl_err *err) {
    char name[64], type[24];
    bool tiled = tile == PL_HEADS_TILE;
    struct pl_jit_spec s = {.file = "latent.k.c", .entry = tiled ? "pk_heads_tile" : "pk_heads_linear"};
    uint32_t group = tiled ? TILE_GROUP : ks->linear;
    pl_jit_set_u32(&s, "GROUP", group);
    if (tiled) {
        pl_jit_set(&s, "HEADS_TILE", "1");
    } else {
        pl_jit_set_u32(&s, "TEAM", ks->team);
        pl_jit_set_u32(&s, "ROWS", 1u << tile);
    }
    pl_jit_set(&s, "HEADS_LINEAR", "1");
    pl_jit_set_weight(&s, w);
    snprintf(type, sizeof type, "%s", pl_dtype_name(w->dtype));
    if (w->dtype == PL_MLX) snprintf(type, sizeof type, "mlx%u.%u", w->bits, w->group);
    snprintf(name, sizeof name, "heads_linear/%s/r%u", type, tiled ? PL_HEADS_TILE_ROWS : 1u << tile);
    return pl_kernel_make(ks, &s, group, name, out, err);
}

enum pl_status pl_launch_heads(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_heads *h,
                               uint32_t tile_rows) {
    const struct pl_device_weight *w = h->w;
    uint64_t out = w->rows / h->heads;
    struct pl_args_heads a = {(u32)h->rows,   (u32)h->heads,  (u32)w->cols, (u32)out,
                              (u32)h->x_head, (u32)h->y_head, w->row_bytes};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(&w->data), PL_ARG_BUFFER(&w->scales), PL_ARG_BUFFER(&w->biases),
                                   PL_ARG_BUFFER(h->x),     PL_ARG_BUFFER(h->y),       PL_ARG_BUFFER(&k->counter),
                                   PL_ARG_VALUE(a)};
    uint32_t outputs = tile_rows == PL_HEADS_TILE_ROWS ? PL_HEADS_TILE_ROWS : k->group / ks->team;
    return pl_kernel_launch(ks, k, (uint32_t)h->heads * groups(out, outputs), groups(h->rows, tile_rows), 0, args,
                            PL_COUNT_OF(args));
}

enum pl_status pl_kernel_latent_append(struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t value_dim,
                                       size_t page_tokens, bool halves, struct pl_kernel *out, struct pl_err *err) {
    char name[48];
    uint32_t group = pl_device_info(ks->device)->is_cpu ? CPU_GROUP : APPEND_GROUP;
    struct pl_jit_spec s = {.file = "latent.k.c", .entry = "pk_latent_append"};
    pl_jit_set_u32(&s, "GROUP", group);
    if (pl_jit_set_kv(&s, kv, head_dim, page_tokens) != PL_OK)
        PL_FAIL(err, PL_UNSUPPORTED, "no kernel fills a KV cache of type %s: f16, bf16 and f32 are known",
                pl_dtype_name(kv));
    pl_jit_set_u32(&s, "VALUE_DIM", (uint32_t)value_dim);
    pl_jit_set(&s, halves ? "ROPE_HALVES" : "ROPE_PAIRS", "1");
    snprintf(name, sizeof name, "latent_append/%s/d%zu/v%zu", pl_dtype_name(kv), head_dim, value_dim);
    return pl_kernel_make(ks, &s, group, name, out, err);
}

enum pl_status pl_launch_latent_append(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_latent *l) {
    struct pl_args_latent a = {l->heads, l->q_head, l->stride, l->norm_eps};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(l->q),     PL_ARG_BUFFER(l->latent),   PL_ARG_BUFFER(l->qa),
                                   PL_ARG_BUFFER(l->norm),  PL_ARG_BUFFER(l->cos_sin),  PL_ARG_BUFFER(l->step),
                                   PL_ARG_BUFFER(l->pages), PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    uint32_t pairs = groups((uint64_t)l->heads * l->turned / 2, k->group);
    return pl_kernel_launch(ks, k, 1 + pairs, l->rows, 0, args, PL_COUNT_OF(args));
}
