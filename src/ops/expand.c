#include "ops/expand.h"

#include <stdio.h>
#include <string.h>

/* Of attention_wide with keys of 192: threads, rows, tokens of a tile, tiles of its ring, bytes of a tile. */
enum { WIDE_GROUP = 384, WIDE_ROWS = 128, WIDE_BLOCK = 64, WIDE_RING = 4, WIDE_TILE = WIDE_BLOCK * 2 * (192 + 128) };
enum { TOKENS = 16, HELD = 4, ROWS = 16, PAD = 16, LOCAL_BYTES = 48 << 10 }; /* as in the kernels */

static uint32_t groups(uint64_t n, uint32_t size) { return (uint32_t)((n + size - 1) / size); }

/* Threads of a group: few on a processor, and everywhere as few as leave room for a tile of weights. */
static uint32_t group_of(const struct pl_kernels *ks, enum pl_expand_kernel which) {
    bool cpu = pl_device_info(ks->device)->is_cpu;
    if (which == PL_EXPAND_WIDEN) return cpu ? 16 : 128;
    return cpu ? 32 : 64;
}

const char *pl_expand_declines(const struct pl_kernels *ks, const struct pl_expand_shape *s) {
    const uint64_t group = group_of(ks, PL_EXPAND_ATTEND);
    uint64_t local = (s->nope + s->rope + (HELD + 1) * group + 3) * ROWS * sizeof(float);
    if (s->kv != PL_F32 && s->kv != PL_F16 && s->kv != PL_BF16) return "cache type";
    return local > LOCAL_BYTES || s->value > 4 * HELD * group ? "head size" : NULL;
}

uint32_t pl_expand_vector(const struct pl_expand_shape *s) { return s->nope + s->value + (s->halves ? 0 : PAD); }

bool pl_expand_halves(const struct pl_kernels *ks, const struct pl_expand_shape *s) {
    const struct pl_device_info *info = pl_device_info(ks->device);
    return info->kind == PL_DEVICE_CUDA && strcmp(info->target, "sm_90a") == 0 && ks->gemm != NULL && s->nope == 128 &&
           s->rope == 64 && s->value == 128 && s->latent % 64 == 0;
}

void pl_expand_spec(const struct pl_expand_shape *s, enum pl_expand_kernel which, uint32_t group, struct pl_jit_spec *out) {
    static const char *const entries[] = {"pk_latent_widen", "pk_latent_keys", "pk_latent_attend"};
    static const char *const parts[] = {"WIDEN", "KEYS", "ATTEND"};
    if (s->halves && which == PL_EXPAND_ATTEND) {
        *out = (struct pl_jit_spec){.file = "cuda/attention_wide.k.c", .entry = "pk_attention_wide"};
        pl_jit_set_u32(out, "GROUP", WIDE_GROUP);
        pl_jit_set(out, "EXPANDED", "1");
        PL_ASSERT(pl_jit_set_kv(out, PL_BF16, s->value, s->page_tokens) == PL_OK);
        pl_jit_set_u32(out, "KEY_DIM", s->nope + s->rope);
        pl_jit_set_u32(out, "ROPE", s->rope);
        pl_jit_set_u32(out, "LATENT", s->latent);
        pl_jit_set_u32(out, "BLOCK", WIDE_BLOCK);
        pl_jit_set_u32(out, "RING", WIDE_RING);
        return;
    }
    *out = (struct pl_jit_spec){.file = "latent_expand.k.c", .entry = entries[which]};
    pl_jit_set_u32(out, "GROUP", group);
    if (s->halves) pl_jit_set(out, "HALVES", "1");
    pl_jit_set(out, parts[which], "1");
    pl_jit_set_u32(out, "NOPE", s->nope);
    pl_jit_set_u32(out, "VALUE", s->value);
    if (which == PL_EXPAND_WIDEN) PL_ASSERT(pl_jit_set_kv(out, s->kv, s->latent + s->rope, s->page_tokens) == PL_OK);
    if (which == PL_EXPAND_ATTEND) {
        pl_jit_set_u32(out, "ROPE", s->rope);
        pl_jit_set_u32(out, "LATENT", s->latent);
    } else {
        pl_jit_set_u32(out, "VALUE_DIM", s->latent);
    }
}

enum pl_status pl_kernel_expand(struct pl_kernels *ks, const struct pl_expand_shape *s, enum pl_expand_kernel which,
                                struct pl_kernel *out, struct pl_err *err) {
    static const char *const names[] = {"widen", "keys", "attend"};
    uint32_t group = s->halves && which == PL_EXPAND_ATTEND ? WIDE_GROUP : group_of(ks, which);
    struct pl_jit_spec spec;
    char name[48];
    if (s->halves && which == PL_EXPAND_KEYS) return PL_OK; /* the library's */
    pl_expand_spec(s, which, group, &spec);
    snprintf(name, sizeof name, "expanded_%s/%s/n%u+%u/v%u/l%u", names[which],
             which == PL_EXPAND_WIDEN ? pl_dtype_name(s->kv)
             : s->halves              ? "wide"
                                      : "f32",
             s->nope, s->rope, s->value, s->latent);
    return pl_kernel_make(ks, &spec, group, name, out, err);
}

enum pl_status pl_kernel_turn(struct pl_kernels *ks, const struct pl_device_weight *w, bool halves, struct pl_kernel *out,
                              struct pl_err *err) {
    uint32_t group = ks->wide;
    struct pl_jit_spec s = {.file = "latent_expand.k.c", .entry = "pk_latent_turn"};
    char name[48], type[24];
    pl_jit_set_u32(&s, "GROUP", group);
    pl_jit_set(&s, "TURN", "1");
    if (halves) pl_jit_set(&s, "HALVES", "1");
    pl_jit_set_weight(&s, w);
    snprintf(type, sizeof type, "%s", pl_dtype_name(w->dtype));
    if (w->dtype == PL_MLX) snprintf(type, sizeof type, "mlx%u.%u", w->bits, w->group);
    snprintf(name, sizeof name, "expanded_turn/%s%s", type, halves ? "/bf16" : "");
    return pl_kernel_make(ks, &s, group, name, out, err);
}

enum pl_status pl_launch_turn(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_expand_shape *s,
                              const struct pl_device_weight *w, bool values, pl_buffer_in *to, uint32_t heads) {
    struct pl_args_turn a = {.rows = (u32)w->rows,
                             .cols = (u32)w->cols,
                             .each = (u32)w->rows / heads,
                             .row_stride = values ? s->latent : 1,
                             .col_stride = values ? 1 : s->latent,
                             .first = values ? s->nope * s->latent : 0,
                             .head_stride = (uint64_t)(s->nope + s->value) * s->latent,
                             .row_bytes = w->row_bytes};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(&w->data), PL_ARG_BUFFER(&w->scales),  PL_ARG_BUFFER(&w->biases),
                                   PL_ARG_BUFFER(to),       PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, groups(w->rows * groups(w->cols, 32), k->group), 1, 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_launch_expand(struct pl_kernels *ks, const struct pl_expand_shape *s, enum pl_expand_kernel which,
                                struct pl_kernel *k, const struct pl_launch_expand *l) {
    const uint32_t tiles = groups(l->tokens, TOKENS), held = HELD * k->group;
    struct pl_args_expand a = {.heads = l->heads,
                               .stride = l->stride,
                               .row0 = l->row0,
                               .rows = l->rows,
                               .past = l->past,
                               .first = l->first,
                               .tokens = l->tokens,
                               .padded = tiles * TOKENS,
                               .scale = l->scale};
    struct pl_device_arg widen[] = {PL_ARG_BUFFER(l->pages),   PL_ARG_BUFFER(l->step),     PL_ARG_BUFFER(l->latents),
                                    PL_ARG_BUFFER(l->rotated), PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    struct pl_device_arg keys[] = {PL_ARG_BUFFER(l->latents), PL_ARG_BUFFER(l->w), PL_ARG_BUFFER(l->kv),
                                   PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    struct pl_device_arg attend[] = {PL_ARG_BUFFER(l->q),        PL_ARG_BUFFER(l->qa),  PL_ARG_BUFFER(l->kv),
                                     PL_ARG_BUFFER(l->rotated),  PL_ARG_BUFFER(l->out), PL_ARG_BUFFER(l->lse),
                                     PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    if (s->halves && which == PL_EXPAND_KEYS) {
        const uint32_t m = l->heads * (s->nope + s->value);
        const struct pl_gemm_call c = {.w = l->w->handle,
                                       .x = l->latents->handle,
                                       .y = l->kv->handle,
                                       .m = m,
                                       .n = a.padded,
                                       .k = s->latent,
                                       .ldy = m,
                                       .half = 1};
        return pl_kernel_gemm(ks, &c);
    }
    if (s->halves && which == PL_EXPAND_ATTEND)
        return pl_kernel_launch(ks, k, l->heads, groups(l->rows, WIDE_ROWS), WIDE_RING * WIDE_TILE + 1024, attend,
                                PL_COUNT_OF(attend));
    switch (which) {
    case PL_EXPAND_WIDEN: return pl_kernel_launch(ks, k, tiles, 1, 0, widen, PL_COUNT_OF(widen));
    case PL_EXPAND_KEYS:
        return pl_kernel_launch(ks, k, tiles, l->heads * groups(s->nope + s->value, held), 0, keys, PL_COUNT_OF(keys));
    case PL_EXPAND_ATTEND: return pl_kernel_launch(ks, k, l->heads, groups(l->rows, ROWS), 0, attend, PL_COUNT_OF(attend));
    default: return PL_INVALID;
    }
}
