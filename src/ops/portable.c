/* The portable kernels: specialisation and launch of each. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "ops/launch.h"

static uint32_t groups(uint64_t n, uint32_t size) { return (uint32_t)((n + size - 1) / size); }

static struct pl_jit_spec spec_of(const char *file, const char *entry, uint32_t group) {
    struct pl_jit_spec s = {.file = file, .entry = entry};
    pl_jit_set_u32(&s, "GROUP", group);
    return s;
}

static bool has_code_book(enum pl_dtype t) {
    return t == PL_IQ1_S || t == PL_IQ1_M || t == PL_IQ2_XXS || t == PL_IQ2_XS || t == PL_IQ2_S || t == PL_IQ3_XXS ||
           t == PL_IQ3_S;
}

void pl_jit_set_weight(struct pl_jit_spec *s, const struct pl_device_weight *w) {
    static const char *const macros[PL_DTYPE_COUNT] = {
        [PL_F32] = "WTYPE_F32",         [PL_F16] = "WTYPE_F16",       [PL_BF16] = "WTYPE_BF16",
        [PL_Q4_0] = "WTYPE_Q4_0",       [PL_Q4_1] = "WTYPE_Q4_1",     [PL_Q5_0] = "WTYPE_Q5_0",
        [PL_Q5_1] = "WTYPE_Q5_1",       [PL_Q8_0] = "WTYPE_Q8_0",     [PL_Q2_K] = "WTYPE_Q2_K",
        [PL_Q3_K] = "WTYPE_Q3_K",       [PL_Q4_K] = "WTYPE_Q4_K",     [PL_Q5_K] = "WTYPE_Q5_K",
        [PL_Q6_K] = "WTYPE_Q6_K",       [PL_IQ4_NL] = "WTYPE_IQ4_NL", [PL_IQ4_XS] = "WTYPE_IQ4_XS",
        [PL_MXFP4] = "WTYPE_MXFP4",     [PL_TQ1_0] = "WTYPE_TQ1_0",   [PL_TQ2_0] = "WTYPE_TQ2_0",
        [PL_MLX] = "WTYPE_MLX",         [PL_IQ1_S] = "WTYPE_IQ1_S",   [PL_IQ1_M] = "WTYPE_IQ1_M",
        [PL_IQ2_XXS] = "WTYPE_IQ2_XXS", [PL_IQ2_XS] = "WTYPE_IQ2_XS", [PL_IQ2_S] = "WTYPE_IQ2_S",
        [PL_IQ3_XXS] = "WTYPE_IQ3_XXS", [PL_IQ3_S] = "WTYPE_IQ3_S"};
    PL_ASSERT(macros[w->dtype] != NULL);
    pl_jit_set(s, macros[w->dtype], "1");
    if (has_code_book(w->dtype)) pl_jit_set(s, "WTYPE_FILE", "\"weights_iq.h\"");
    if (w->dtype != PL_MLX) return;
    pl_jit_set_u32(s, "BITS", w->bits);
    pl_jit_set_u32(s, "MLX_GROUP", w->group);
    pl_jit_set(s, w->scale_dtype == PL_F32 ? "SCALE_F32" : w->scale_dtype == PL_F16 ? "SCALE_F16" : "SCALE_BF16", "1");
}

enum pl_status pl_jit_set_kv(struct pl_jit_spec *s, enum pl_dtype dtype, size_t head_dim, size_t page_tokens) {
    static const char *const macros[PL_DTYPE_COUNT] = {[PL_F32] = "KV_F32", [PL_F16] = "KV_F16", [PL_BF16] = "KV_BF16",
                                                       [PL_I8] = "KV_I8",   [PL_F8] = "KV_F8",   [PL_K8V4] = "KV_K8V4"};
    if (macros[dtype] == NULL) return PL_UNSUPPORTED;
    pl_jit_set(s, macros[dtype], "1");
    pl_jit_set_u32(s, "HEAD_DIM", (uint32_t)head_dim);
    pl_jit_set_u32(s, "PAGE_TOKENS", (uint32_t)page_tokens);
    return PL_OK;
}

enum pl_status pl_kernel_elementwise(struct pl_kernels *ks, enum pl_elementwise which, struct pl_kernel *out,
                                     struct pl_err *err) {
    static const char *const entries[PL_EW_COUNT] = {
        "pk_add",       "pk_glu",     "pk_glu",    "pk_glu",    "pk_act", "pk_act", "pk_act", "pk_scale",
        "pk_gate_rows", "pk_softcap", "pk_gather", "pk_argmax", "pk_glu", "pk_act", "pk_glu", "pk_glu"};
    static const char *const names[PL_EW_COUNT] = {
        "add",       "glu/silu", "glu/gelu_tanh", "glu/relu2", "act/silu", "act/gelu_tanh", "act/relu2", "scale",
        "gate_rows", "softcap",  "gather",        "argmax",    "glu/gelu", "act/gelu",      "glu/plain", "glu/sigmoid"};
    struct pl_jit_spec s = spec_of("elementwise.k.c", entries[which], ks->wide);
    if (which == PL_EW_GELU_TANH || which == PL_EW_GELU_TANH_ALONE) pl_jit_set(&s, "ACT_GELU_TANH", "1");
    if (which == PL_EW_GELU_ERF || which == PL_EW_GELU_ERF_ALONE) pl_jit_set(&s, "ACT_GELU_ERF", "1");
    if (which == PL_EW_RELU2 || which == PL_EW_RELU2_ALONE) pl_jit_set(&s, "ACT_RELU2", "1");
    if (which == PL_EW_PRODUCT) pl_jit_set(&s, "ACT_NONE", "1");
    if (which == PL_EW_SIGMOID) pl_jit_set(&s, "ACT_SIGMOID", "1");
    return pl_kernel_make(ks, &s, ks->wide, names[which], out, err);
}

enum pl_status pl_kernel_pick(struct pl_kernels *ks, enum pl_picking which, struct pl_kernel *out, struct pl_err *err) {
    static const char *const names[PL_PICK_COUNT] = {"pick", "pick/part", "pick/join"};
    struct pl_jit_spec s = spec_of("pick.k.c", "pk_pick", ks->norm);
    if (which == PL_PICK_PART) pl_jit_set(&s, "PICK_PART", "1");
    if (which == PL_PICK_JOIN) pl_jit_set(&s, "PICK_JOIN", "1");
    return pl_kernel_make(ks, &s, ks->norm, names[which], out, err);
}

enum pl_status pl_kernel_norm(struct pl_kernels *ks, bool add, struct pl_kernel *out, struct pl_err *err) {
    struct pl_jit_spec s = spec_of("norm.k.c", "pk_norm", ks->norm);
    if (add) pl_jit_set(&s, "HAS_ADD", "1");
    return pl_kernel_make(ks, &s, ks->norm, add ? "add_norm" : "norm", out, err);
}

enum pl_status pl_kernel_layer_norm(struct pl_kernels *ks, bool bias, struct pl_kernel *out, struct pl_err *err) {
    struct pl_jit_spec s = spec_of("norm.k.c", "pk_layer_norm", ks->norm);
    if (bias) pl_jit_set(&s, "HAS_BIAS", "1");
    return pl_kernel_make(ks, &s, ks->norm, bias ? "layer_norm/bias" : "layer_norm", out, err);
}

static void weight_name(char *out, size_t size, const char *op, const struct pl_device_weight *w, uint32_t rows) {
    char type[32], tail[16] = "";
    snprintf(type, sizeof type, "%s", pl_dtype_name(w->dtype));
    if (w->dtype == PL_MLX) snprintf(type, sizeof type, "mlx%u.%u", w->bits, w->group);
    if (rows > 0) snprintf(tail, sizeof tail, "/r%u", rows);
    snprintf(out, size, "%s/%s%s", op, type, tail);
}

enum pl_status pl_kernel_embed(struct pl_kernels *ks, const struct pl_device_weight *w, struct pl_kernel *out,
                               struct pl_err *err) {
    char name[48];
    uint32_t group = ks->wide / 2;
    struct pl_jit_spec s = spec_of("embed.k.c", "pk_embed", group);
    pl_jit_set_weight(&s, w);
    weight_name(name, sizeof name, "embed", w, 0);
    return pl_kernel_make(ks, &s, group, name, out, err);
}

uint32_t pl_tile_of(size_t rows, uint32_t *tile_rows) {
    uint32_t tile = rows <= 1 ? 0 : rows <= 2 ? 1 : rows <= 4 ? 2 : 3;
    *tile_rows = 1u << tile;
    return tile;
}

void pl_kernel_linear_name(const struct pl_kernels *ks, const struct pl_device_weight *w, uint32_t tile, char out[48]) {
    char name[40];
    weight_name(name, sizeof name, "linear", w, 1u << tile);
    snprintf(out, 48, "%s/%s", pl_device_kind_name(pl_device_info(ks->device)->kind), name);
}

enum pl_status pl_kernel_linear(struct pl_kernels *ks, const struct pl_device_weight *w, uint32_t tile,
                                struct pl_kernel *out, struct pl_err *err) {
    char name[48];
    struct pl_jit_spec s = spec_of("linear.k.c", "pk_linear", ks->linear);
    pl_jit_set_u32(&s, "TEAM", ks->team);
    pl_jit_set_u32(&s, "ROWS", 1u << tile);
    pl_jit_set_weight(&s, w);
    weight_name(name, sizeof name, "linear", w, 1u << tile);
    return pl_kernel_make(ks, &s, ks->linear, name, out, err);
}

enum { ROPE_WARPS_GROUP = 256 };
bool pl_rope_by_warps(const struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, struct pl_rope_kind kind,
                      size_t rope_dim) {
    return pl_device_info(ks->device)->kind == PL_DEVICE_CUDA && (kv == PL_F16 || kv == PL_BF16) &&
           (head_dim == 64 || head_dim == 128 || head_dim == 256) && (!kind.rope || rope_dim == head_dim);
}
static enum pl_status rope_kernel(struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t page_tokens,
                                  struct pl_rope_kind kind, bool warps, struct pl_kernel *out, struct pl_err *err) {
    char name[48];
    uint32_t group = warps ? ROPE_WARPS_GROUP : ks->head;
    struct pl_jit_spec s = spec_of(warps ? "cuda/rope_warps.k.c" : "rope.k.c", "pk_rope_append", group);
    if (pl_jit_set_kv(&s, kv, head_dim, page_tokens) != PL_OK) {
        PL_FAIL(err, PL_UNSUPPORTED, "no kernel appends to a KV cache of type %s: f16, bf16 and f32 are known",
                pl_dtype_name(kv));
    }
    if (kind.q_norm) pl_jit_set(&s, "Q_NORM", "1");
    if (kind.k_norm) pl_jit_set(&s, "K_NORM", "1");
    if (kind.rope) pl_jit_set(&s, kind.halves ? "ROPE_HALVES" : "ROPE_PAIRS", "1");
    snprintf(name, sizeof name, "rope_%s/%s/d%zu%s%s", warps ? "warps" : "append", pl_dtype_name(kv), head_dim,
             kind.q_norm || kind.k_norm ? "/norm" : "",
             !kind.rope    ? "/none"
             : kind.halves ? "/halves"
                           : "/pairs");
    return pl_kernel_make(ks, &s, group, name, out, err);
}
enum pl_status pl_kernel_rope(struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t page_tokens,
                              struct pl_rope_kind kind, struct pl_kernel *out, struct pl_err *err) {
    return rope_kernel(ks, kv, head_dim, page_tokens, kind, false, out, err);
}
enum pl_status pl_kernel_rope_warps(struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t page_tokens,
                                    struct pl_rope_kind kind, struct pl_kernel *out, struct pl_err *err) {
    return rope_kernel(ks, kv, head_dim, page_tokens, kind, true, out, err);
}

enum pl_status pl_kernel_widen(struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t page_tokens,
                               struct pl_kernel *out, struct pl_err *err) {
    char name[48];
    struct pl_jit_spec s = spec_of("widen.k.c", "pk_kv_widen", ks->head);
    pl_jit_set(&s, "WIDEN", "1");
    PL_TRY(pl_jit_set_kv(&s, kv, head_dim, page_tokens));
    snprintf(name, sizeof name, "kv_widen/%s/d%zu", pl_dtype_name(kv), head_dim);
    return pl_kernel_make(ks, &s, ks->head, name, out, err);
}

enum pl_status pl_kernel_turn_back(struct pl_kernels *ks, size_t head_dim, struct pl_kernel *out, struct pl_err *err) {
    char name[48];
    struct pl_jit_spec s = spec_of("widen.k.c", "pk_values_turn_back", ks->head);
    pl_jit_set(&s, "TURN_BACK", "1");
    PL_TRY(pl_jit_set_kv(&s, PL_K8V4, head_dim, 16));
    snprintf(name, sizeof name, "values_turn_back/d%zu", head_dim);
    return pl_kernel_make(ks, &s, ks->head, name, out, err);
}

enum pl_status pl_kernel_attention(struct pl_kernels *ks, enum pl_dtype kv, size_t head_dim, size_t value_dim,
                                   size_t page_tokens, bool sinks, bool sparse, struct pl_kernel *out, struct pl_err *err) {
    char name[48];
    struct pl_jit_spec s = spec_of("attention.k.c", "pk_attention", ks->head);
    if (pl_jit_set_kv(&s, kv, head_dim, page_tokens) != PL_OK) {
        PL_FAIL(err, PL_UNSUPPORTED, "no kernel reads a KV cache of type %s: f16, bf16 and f32 are known",
                pl_dtype_name(kv));
    }
    char values[16] = "";
    if (sinks) pl_jit_set(&s, "SINKS", "1");
    if (sparse) pl_jit_set(&s, "SPARSE_V", "1");
    if (value_dim != head_dim) {
        pl_jit_set_u32(&s, "VALUE_DIM", (uint32_t)value_dim);
        snprintf(values, sizeof values, "/v%u", (uint32_t)value_dim);
    }
    snprintf(name, sizeof name, "attention/%s/d%u%s%s%s", pl_dtype_name(kv), (uint32_t)head_dim, values,
             sinks ? "/sinks" : "", sparse ? "/sparse" : "");
    return pl_kernel_make(ks, &s, ks->head, name, out, err);
}

/* --- launches --- */

enum pl_status pl_launch_add(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x, pl_buffer_in *add, size_t rows,
                             size_t cols) {
    struct pl_args_rows a = {(u32)rows, (u32)cols, 0, 0};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(x), PL_ARG_BUFFER(add), PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, groups((uint64_t)rows * cols, k->group), 1, 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_launch_glu(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *gate, pl_buffer_in *up,
                             pl_buffer_in *y, size_t rows, size_t cols) {
    struct pl_args_rows a = {(u32)rows, (u32)cols, 0, 0};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(gate), PL_ARG_BUFFER(up), PL_ARG_BUFFER(y), PL_ARG_BUFFER(&k->counter),
                                   PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, groups((uint64_t)rows * cols, k->group), 1, 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_launch_act(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *gate, pl_buffer_in *y, size_t rows,
                             size_t cols) {
    struct pl_args_rows a = {(u32)rows, (u32)cols, 0, 0};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(gate), PL_ARG_BUFFER(y), PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, groups((uint64_t)rows * cols, k->group), 1, 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_launch_softcap(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x, size_t rows, size_t cols,
                                 float cap) {
    struct pl_args_rows a = {(u32)rows, (u32)cols, cap, 0};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(x), PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, groups((uint64_t)rows * cols, k->group), 1, 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_launch_gather(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x, pl_buffer_in *step,
                                uint32_t stride, pl_buffer_in *y, size_t rows, size_t cols) {
    struct pl_args_rows a = {(u32)rows, (u32)cols, 0, 0};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(x),           PL_ARG_BUFFER(step), PL_ARG_BUFFER(y),
                                   PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a),     PL_ARG_VALUE(stride)};
    return pl_kernel_launch(ks, k, groups(cols, k->group), (uint32_t)rows, 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_launch_pick(struct pl_kernels *ks, enum pl_picking which, struct pl_kernel *k, pl_buffer_in *x,
                              pl_buffer_in *best, size_t rows, size_t cols) {
    struct pl_args_rows a = {PL_PICK_SLICES, (u32)cols, 0, 0};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(x), PL_ARG_BUFFER(best), PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, (uint32_t)rows, which == PL_PICK_PART ? PL_PICK_SLICES : 1, 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_launch_argmax(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x, pl_buffer_in *best, size_t rows,
                                size_t cols) {
    struct pl_args_rows a = {(u32)rows, (u32)cols, 0, 0};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(x), PL_ARG_BUFFER(best), PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, (uint32_t)rows, 1, 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_launch_norm(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x, pl_buffer_in *add,
                              pl_buffer_in *w, pl_buffer_in *y, size_t rows, size_t cols, float eps, float offset) {
    struct pl_args_rows a = {(u32)rows, (u32)cols, eps, offset};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(x), PL_ARG_BUFFER(add),         PL_ARG_BUFFER(w),
                                   PL_ARG_BUFFER(y), PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, (uint32_t)rows, 1, 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_launch_layer_norm(struct pl_kernels *ks, struct pl_kernel *k, pl_buffer_in *x, pl_buffer_in *w,
                                    pl_buffer_in *bias, pl_buffer_in *y, size_t rows, size_t cols, float eps) {
    struct pl_args_rows a = {(u32)rows, (u32)cols, eps, 0};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(x), PL_ARG_BUFFER(w),           PL_ARG_BUFFER(bias),
                                   PL_ARG_BUFFER(y), PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, (uint32_t)rows, 1, 0, args, PL_COUNT_OF(args));
}

static struct pl_args_linear linear_args(const struct pl_device_weight *w, size_t rows) {
    return (struct pl_args_linear){(u32)rows, (u32)w->cols, (u32)w->rows, 0, w->row_bytes};
}

enum pl_status pl_launch_embed(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_device_weight *w,
                               pl_buffer_in *step, uint32_t stride, pl_buffer_in *chosen, pl_buffer_in *x, size_t rows,
                               float scale) {
    struct pl_args_linear a = linear_args(w, rows);
    struct pl_device_arg args[] = {PL_ARG_BUFFER(&w->data),    PL_ARG_BUFFER(&w->scales), PL_ARG_BUFFER(&w->biases),
                                   PL_ARG_BUFFER(step),        PL_ARG_BUFFER(chosen),     PL_ARG_BUFFER(x),
                                   PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a),           PL_ARG_VALUE(scale),
                                   PL_ARG_VALUE(stride)};
    return pl_kernel_launch(ks, k, groups((w->cols + 31) / 32, k->group), (uint32_t)rows, 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_launch_linear(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_device_weight *w,
                                pl_buffer_in *x, pl_buffer_in *bias, pl_buffer_in *y, size_t rows, uint32_t tile_rows,
                                bool add) {
    struct pl_args_linear a = linear_args(w, rows);
    a.flags = (bias != NULL ? PL_LINEAR_BIAS : 0u) | (add ? PL_LINEAR_ADD : 0u);
    struct pl_device_arg args[] = {
        PL_ARG_BUFFER(&w->data), PL_ARG_BUFFER(&w->scales), PL_ARG_BUFFER(&w->biases),  PL_ARG_BUFFER(x),
        PL_ARG_BUFFER(bias),     PL_ARG_BUFFER(y),          PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, groups(w->rows, k->group / ks->team), groups(rows, tile_rows), 0, args,
                            PL_COUNT_OF(args));
}

enum pl_status pl_launch_rope(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_rope *r) {
    struct pl_args_rope a = {r->heads, r->kv_heads, r->rope_dim, r->stride, r->norm_eps, r->norm_offset};
    struct pl_device_arg args[] = {
        PL_ARG_BUFFER(r->q),       PL_ARG_BUFFER(r->k),        PL_ARG_BUFFER(r->v),    PL_ARG_BUFFER(r->q_norm),
        PL_ARG_BUFFER(r->k_norm),  PL_ARG_BUFFER(r->cos_sin),  PL_ARG_BUFFER(r->step), PL_ARG_BUFFER(r->k_pages),
        PL_ARG_BUFFER(r->v_pages), PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    uint32_t heads = r->heads + 2 * r->kv_heads;
    if (k->group == ROPE_WARPS_GROUP) heads = groups(heads, ROPE_WARPS_GROUP / 32); /* a group has so many warps */
    return pl_kernel_launch(ks, k, heads, r->rows, 0, args, PL_COUNT_OF(args));
}

enum { WIDEN_SPAN = 16 };
enum pl_status pl_launch_widen(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_attention *p,
                               uint32_t row0, uint32_t first, uint32_t end, pl_buffer_in *wide_k, pl_buffer_in *wide_v) {
    struct pl_args_widen a = {p->heads, p->kv_heads, p->stride, row0, first, end};
    struct pl_device_arg args[] = {
        PL_ARG_BUFFER(p->k_pages), PL_ARG_BUFFER(p->v_pages),  PL_ARG_BUFFER(p->step), PL_ARG_BUFFER(wide_k),
        PL_ARG_BUFFER(wide_v),     PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, groups(end - first, WIDEN_SPAN), p->kv_heads, 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_launch_turn_back(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_attention *p,
                                   uint32_t row0, uint32_t rows) {
    struct pl_args_widen a = {p->heads, p->kv_heads, p->stride, row0, 0, 0};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(p->out), PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, p->heads, rows, 0, args, PL_COUNT_OF(args));
}

enum pl_status pl_launch_attention(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_launch_attention *p) {
    struct pl_args_attention a = {p->heads, p->kv_heads, p->window, p->stride, p->scale, p->softcap, 1, p->least};
    struct pl_device_arg args[] = {
        PL_ARG_BUFFER(p->q),     PL_ARG_BUFFER(p->k_pages), PL_ARG_BUFFER(p->v_pages),  PL_ARG_BUFFER(p->step),
        PL_ARG_BUFFER(p->sinks), PL_ARG_BUFFER(p->out),     PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    return pl_kernel_launch(ks, k, p->heads, p->rows, 0, args, PL_COUNT_OF(args));
}
