#include "ops/ternary.h"

#include <stdio.h>

enum pl_status pl_kernel_ternary_quantize(struct pl_kernels *ks, struct pl_kernel *out, struct pl_err *err) {
    struct pl_jit_spec s = {.file = "ternary.k.c", .entry = "pk_ternary_quantize"};
    pl_jit_set_u32(&s, "GROUP", ks->norm);
    return pl_kernel_make(ks, &s, ks->norm, "ternary/quantize", out, err);
}

/* Rows are short: a team reads several of them at once. Where every thread is a team it has registers for one. */
uint32_t pl_ternary_per(const struct pl_kernels *ks) { return ks->team > 1 ? 4 : 1; }

enum pl_status pl_kernel_ternary(struct pl_kernels *ks, uint32_t tile, struct pl_kernel *out, struct pl_err *err) {
    struct pl_jit_spec s = {.file = "ternary.k.c", .entry = "pk_ternary"};
    char name[48];
    pl_jit_set_u32(&s, "GROUP", ks->linear);
    pl_jit_set_u32(&s, "TEAM", ks->team);
    pl_jit_set_u32(&s, "ROWS", 1u << tile);
    pl_jit_set_u32(&s, "PER", pl_ternary_per(ks));
    snprintf(name, sizeof name, "ternary/r%u", 1u << tile);
    return pl_kernel_make(ks, &s, ks->linear, name, out, err);
}

enum pl_status pl_launch_ternary_quantize(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x, pl_buffer_in *q,
                                          pl_buffer_in *row, size_t rows, size_t in) {
    struct pl_args_ternary a = {.rows = (u32)rows, .in = (u32)in};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(x), PL_ARG_BUFFER(q), PL_ARG_BUFFER(row), PL_ARG_BUFFER(&k->counter),
                                   PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, (uint32_t)rows, 1, 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_launch_ternary(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_device_weight *w, float scale,
                                 pl_buffer_in *q, pl_buffer_in *row, pl_buffer_in *y, size_t rows, uint32_t tile_rows) {
    struct pl_args_ternary a = {(u32)rows, (u32)w->cols, (u32)w->rows, scale};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(&w->data), PL_ARG_BUFFER(q),           PL_ARG_BUFFER(row),
                                   PL_ARG_BUFFER(y),        PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    const uint64_t outputs = (uint64_t)k->group / ks->team * pl_ternary_per(ks);
    return pl_kernel_launch(ks, k, (uint32_t)((w->rows + outputs - 1) / outputs),
                            (uint32_t)((rows + tile_rows - 1) / tile_rows), 0, args, PL_COUNT_OF(args));
}
