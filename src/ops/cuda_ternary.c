#include "ops/cuda_ternary.h"

#include <stdio.h>

enum { GROUP = 256, WARPS = 8, TILE = 16, NORM_GROUP = 1024 }; /* as kernels/cuda/ternary.k.c has them */

const char *pl_ternary_mma_declines(const struct pl_kernels *ks, uint64_t cols) {
    if (pl_cuda_capability(ks) < 80) return "no matrix units of sm_80, or no compiler";
    return cols % 64 != 0 ? "inputs are no multiple of 64" : NULL;
}
const char *pl_ternary_one_declines(const struct pl_kernels *ks, uint64_t cols) {
    const char *why = pl_ternary_mma_declines(ks, cols);
    if (why == NULL && cols > PL_TERNARY_ONE_COLS_MAX) return "input too wide to be made ready by every group";
    return why != NULL || ks->norm == NORM_GROUP ? why : "norms of other groups of threads";
}

static uint32_t tiles_of(const struct pl_launch_ternaries *l) {
    uint32_t tiles = 0;
    for (size_t i = 0; i < l->count; i++) tiles += (uint32_t)((l->w[i]->rows + TILE - 1) / TILE);
    return tiles;
}
static uint32_t each_of(const struct pl_ternary_kind *k) { return k->rows_8 > 2 ? 2 : 1; }

/* Many warps share a tile where there are few tiles for the device, or long rows; a gate and its input are two tiles. */
void pl_ternary_plan(const struct pl_kernels *ks, const struct pl_launch_ternaries *l, struct pl_ternary_kind *kind) {
    uint32_t units = pl_device_info(ks->device)->units;
    bool gated = kind->relu2 || kind->silu, few = tiles_of(l) <= 2 * units || l->w[0]->cols > 4096;
    kind->in = (uint32_t)l->w[0]->cols;
    if (l->q != NULL) kind->rows_8 = l->rows <= 8 ? 1 : l->rows <= 16 ? 2 : 4;
    kind->split = kind->rows_8 > 2 || gated || !few ? 4 : WARPS;
}

bool pl_ternary_same(const struct pl_ternary_kind *a, const struct pl_ternary_kind *b) {
    return a->in == b->in && a->rows_8 == b->rows_8 && a->split == b->split && a->norm == b->norm && a->add == b->add &&
           a->relu2 == b->relu2 && a->silu == b->silu;
}

static void short_name(const struct pl_ternary_kind *k, char *out, size_t size) {
    snprintf(out, size, "ternary/mma/r%u%s%s", k->rows_8 > 0 ? 8 * k->rows_8 : 1, k->norm ? "/norm" : "",
             k->add     ? "/add"
             : k->relu2 ? "/relu2"
             : k->silu  ? "/silu"
                        : "");
}

void pl_ternaries_spec(const struct pl_ternary_kind *kind, struct pl_jit_spec *s) {
    bool one = kind->rows_8 == 0;
    *s = (struct pl_jit_spec){.file = "cuda/ternary.k.c", .entry = one ? "pk_ternary_one" : "pk_ternary_rows"};
    pl_jit_set_u32(s, "GROUP", GROUP);
    pl_jit_set_u32(s, "IN", kind->in);
    pl_jit_set_u32(s, "SPLIT", kind->split);
    pl_jit_set(s, one ? "TERNARY_ONE" : "TERNARY_ROWS", "1");
    if (kind->norm) pl_jit_set(s, "HAS_NORM", "1");
    if (kind->add) pl_jit_set(s, "HAS_ADD", "1");
    if (kind->relu2 || kind->silu) pl_jit_set(s, "HAS_GLU", "1");
    if (kind->relu2) pl_jit_set(s, "ACT_RELU2", "1");
    if (one) pl_jit_set_u32(s, "GROUPS_HELD", kind->in <= 4096 ? 4 : 2);
    if (!one) pl_jit_set_u32(s, "ROWS_8", kind->rows_8), pl_jit_set_u32(s, "EACH", each_of(kind));
}
enum pl_status pl_kernel_ternaries(struct pl_kernels *ks, const struct pl_ternary_kind *kind, struct pl_kernel *out,
                                   struct pl_err *err) {
    char name[40];
    struct pl_jit_spec s;
    pl_ternaries_spec(kind, &s);
    short_name(kind, name, sizeof name);
    return pl_kernel_make(ks, &s, GROUP, name, out, err);
}

enum pl_status pl_launch_ternaries(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_ternary_kind *kind,
                                   const struct pl_launch_ternaries *l) {
    static const struct pl_device_buffer none;
    const bool one = kind->rows_8 == 0, gated = kind->relu2 || kind->silu;
    uint32_t out[PL_TERNARY_MATRICES_MAX] = {0}, n = PL_TERNARY_MATRICES_MAX;
    float scale[PL_TERNARY_MATRICES_MAX] = {0};
    struct pl_device_arg args[12];
    PL_ASSERT(l->count <= PL_TERNARY_MATRICES_MAX && (!kind->add || l->count == 1) && (!one || l->rows == 1) &&
              (!gated || (l->count == 2 && l->w[0]->rows == l->w[1]->rows)));
    for (uint32_t i = 0; i < PL_TERNARY_MATRICES_MAX; i++) {
        bool here = i < l->count;
        args[i] = PL_ARG_BUFFER(here ? &l->w[i]->data : &none);
        args[n + i] = PL_ARG_BUFFER(here ? l->y[i] : &none);
        out[i] = here ? (uint32_t)l->w[i]->rows : 0;
        scale[i] = here ? l->scale[i] : 0;
    }
    n *= 2;
    args[n++] = PL_ARG_BUFFER(one ? l->x : l->q);
    if (one) {
        args[n++] = PL_ARG_BUFFER(kind->norm ? l->norm : &none);
        args[n++] = PL_ARG_BUFFER(kind->norm ? l->h : &none);
        args[n++] = PL_ARG_BUFFER(kind->add || gated ? l->to : &none);
    } else {
        args[n++] = PL_ARG_BUFFER(l->row);
    }
    args[n++] = PL_ARG_BUFFER(&k->counter);
    struct pl_args_ternaries a = {(u32)l->rows, out[0],   out[1],   out[2], tiles_of(l),
                                  scale[0],     scale[1], scale[2], l->eps, l->offset};
    args[n++] = PL_ARG_VALUE(a);
    const uint32_t each = WARPS / kind->split * (one ? 1 : each_of(kind)), rows = one ? 1 : 8 * kind->rows_8;
    return pl_kernel_launch(ks, k, (a.tiles + each - 1) / each, ((u32)l->rows + rows - 1) / rows, 0, args, n);
}
