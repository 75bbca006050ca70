#include "ops/cuda_layers.h"

#include <stdio.h>

/* As kernels/cuda/ssm_layers.k.c has them. ROOM: what that keeps in shared memory beside sums; RESERVED: the system's part.
 */
enum { LANES = 128, TAPS_MAX = 4, DEPTH_LEAST = 8, EACH_MAX = 16, THREADS_MAX = 512 };
_Static_assert(sizeof(struct pl_args_ssm_layer) == PL_LAYERS_WORDS * sizeof(uint64_t), "a layer's addresses");

struct layout {
    uint32_t width, inner, warps, each, unit, fixed, depth;
};
static struct layout layout_of(const struct pl_kernels *ks, const struct pl_layer_launches *l) {
    struct layout at = {.width = (uint32_t)l->in.w[0]->cols, .inner = (uint32_t)l->in.w[0]->rows};
    uint32_t units = pl_device_info(ks->device)->units, most = pl_device_info(ks->device)->shared_optin_bytes;
    at.warps = at.width / 256;
    if (at.warps == 0 || units == 0) return at;
    uint32_t rows = 2 * ((at.inner / 2 + units - 1) / units); /* of the state, of a group of threads */
    at.each = (rows + at.warps - 1) / at.warps;
    at.unit = 4 * at.width;
    rows = at.each * at.warps;
    at.fixed = (2 * rows * at.warps + 2 * at.warps + 2 * l->ssm.n + 2 * rows) * (uint32_t)sizeof(float) +
               2 * (uint32_t)sizeof(struct pl_args_ssm_layer) + 16;
    uint32_t stage = at.unit + 2 * (uint32_t)sizeof(uint64_t);
    if (at.fixed + DEPTH_LEAST * stage <= most) at.depth = (most - at.fixed) / stage;
    return at;
}

static bool plain(const struct pl_device_weight *w, const struct pl_device_weight *like, uint64_t rows, uint64_t cols) {
    return (w->dtype == PL_BF16 || w->dtype == PL_F16) && w->dtype == like->dtype && w->rows == rows && w->cols == cols &&
           w->row_bytes == 2 * cols;
}
static const char *one_declines(const struct pl_kernels *ks, const struct pl_layer_launches *l) {
    const struct pl_launch_stream *in = &l->in, *out = &l->out;
    const struct pl_launch_ssm *s = &l->ssm;
    const struct pl_device_weight *z = in->w[0];
    uint64_t width = z->cols, inner = (uint64_t)s->heads * s->head_dim;
    if (in->count != 3 || out->count != 1 || in->norm == NULL || out->norm == NULL || in->add || !out->add)
        return "not the products of such a layer";
    for (size_t i = 0; i < 3; i++)
        if (in->bias[i] != NULL || out->bias[0] != NULL) return "biases of products";
    if (width % 256 != 0 || width / 8 > THREADS_MAX || inner != 2 * width) return "width";
    if (s->groups != 1 || s->head_dim % 2 != 0 || s->heads % 2 != 0) return "groups or heads";
    if (s->n % LANES != 0 || width / 8 < sizeof(struct pl_args_ssm_layer) / 4) return "shape of the state";
    if (l->kind.conv.kernel > TAPS_MAX || l->kind.conv.kernel < 2 || !l->kind.conv.silu) return "convolution";
    if (l->kind.ssm.full || !l->kind.ssm.gate) return "no gate, or a decay for each value";
    if (s->seq_count != 1 || s->slot_stride % 4 != 0 || s->state_first % 4 != 0) return "sequences";
    if (l->conv.channels != inner + 2 * (uint64_t)s->n || s->x_first != 0 || s->b_first != inner ||
        s->c_first != inner + s->n)
        return "channels";
    if (!plain(z, z, inner, width) || !plain(in->w[1], z, l->conv.channels, width) || !plain(in->w[2], z, s->heads, width) ||
        !plain(out->w[0], z, width, inner))
        return "weight types or shapes";
    bool flows = s->z == in->y[0] && l->conv.x == in->y[1] && s->dt == in->y[2] && s->y == s->z && out->x == s->y &&
                 out->y[0] == in->x;
    if (!flows) return "results do not follow each other";
    struct layout at = layout_of(ks, l);
    if (at.each > EACH_MAX || 2 * at.each > 32) return "too few multiprocessors for its state";
    return at.depth == 0 ? "too wide for shared memory" : NULL;
}
static bool alike(const struct pl_layer_launches *a, const struct pl_layer_launches *b) {
    const struct pl_launch_ssm *s = &a->ssm, *t = &b->ssm;
    bool same = a->in.w[0]->dtype == b->in.w[0]->dtype && a->in.w[0]->cols == b->in.w[0]->cols && s->heads == t->heads &&
                s->head_dim == t->head_dim && s->n == t->n && s->seqs == t->seqs && s->slot_stride == t->slot_stride &&
                s->state_first == t->state_first && s->dt_min == t->dt_min && s->dt_max == t->dt_max;
    same = same && a->in.x == b->in.x && a->in.eps == b->in.eps && a->in.offset == b->in.offset &&
           a->out.eps == b->out.eps && a->out.offset == b->out.offset && a->conv.x == b->conv.x && s->dt == t->dt &&
           s->y == t->y;
    return same && a->kind.conv.kernel == b->kind.conv.kernel && a->kind.conv.bias == b->kind.conv.bias &&
           a->kind.ssm.bias == b->kind.ssm.bias && a->kind.ssm.skip == b->kind.ssm.skip;
}

const char *pl_layers_declines(const struct pl_kernels *ks, const struct pl_layer_launches *layer, size_t count) {
    if (pl_cuda_capability(ks) < 90) return "no copies by the engine of sm_90, or no compiler";
    if (count == 0 || count > PL_LAYERS_MAX) return "no layers, or too many";
    for (size_t i = 0; i < count; i++) {
        const char *why = one_declines(ks, &layer[i]);
        if (why != NULL) return why;
        if (!alike(&layer[i], &layer[0])) return "layers differ";
    }
    return NULL;
}

enum pl_status pl_kernel_layers(struct pl_kernels *ks, const struct pl_layer_launches *layer, struct pl_kernel *out,
                                struct pl_err *err) {
    struct pl_jit_spec s = {.file = "cuda/ssm_layers.k.c", .entry = "pk_ssm_layers"};
    struct layout at = layout_of(ks, layer);
    char name[40];
    pl_jit_set_u32(&s, "GROUP", 32 * at.warps + 32);
    pl_jit_set_u32(&s, "WIDTH", at.width);
    pl_jit_set_u32(&s, "INNER", at.inner);
    pl_jit_set_u32(&s, "STATE", layer->ssm.n);
    pl_jit_set_u32(&s, "K", layer->kind.conv.kernel);
    pl_jit_set_u32(&s, "EACH", at.each);
    if (layer->kind.conv.bias) pl_jit_set(&s, "HAS_CONV_BIAS", "1");
    if (layer->kind.ssm.bias) pl_jit_set(&s, "HAS_BIAS", "1");
    if (layer->kind.ssm.skip) pl_jit_set(&s, "HAS_SKIP", "1");
    pl_jit_set_weight(&s, layer->in.w[0]);
    snprintf(name, sizeof name, "ssm_layers/%s/%u", pl_dtype_name(layer->in.w[0]->dtype), at.width);
    return pl_kernel_make(ks, &s, 32 * at.warps + 32, name, out, err);
}

static uint64_t address(pl_buffer_in *b) { return b != NULL ? (uint64_t)(uintptr_t)pl_device_raw_buffer(b) : 0; }
void pl_layers_fill(const struct pl_layer_launches *layer, size_t count, uint64_t (*table)[PL_LAYERS_WORDS]) {
    for (size_t i = 0; i < count; i++) {
        const struct pl_layer_launches *l = &layer[i];
        pl_buffer_in *const of[PL_LAYERS_WORDS] = {
            &l->in.w[0]->data, &l->in.w[1]->data, &l->in.w[2]->data, &l->out.w[0]->data, l->in.norm,  l->out.norm,
            l->conv.w,         l->conv.bias,      l->ssm.a,          l->ssm.dt_bias,     l->ssm.skip, l->ssm.state};
        for (size_t k = 0; k < PL_LAYERS_WORDS; k++) table[i][k] = address(of[k]);
    }
}

enum pl_status pl_launch_layers(struct pl_kernels *ks, struct pl_kernel *k, const struct pl_layer_launches *layer,
                                size_t count, pl_buffer_in *table, pl_buffer_in *meet) {
    struct layout at = layout_of(ks, layer);
    const struct pl_launch_ssm *s = &layer->ssm;
    PL_ASSERT(at.depth > 0);
    struct pl_args_ssm_layers a = {.layers = (u32)count,
                                   .heads = s->heads,
                                   .head_dim = s->head_dim,
                                   .channels = (u32)layer->conv.channels,
                                   .depth = at.depth,
                                   .grid = pl_device_info(ks->device)->units,
                                   .value = layer->in.eps,
                                   .offset = layer->in.offset,
                                   .inner_value = layer->out.eps,
                                   .inner_offset = layer->out.offset,
                                   .dt_min = s->dt_min,
                                   .dt_max = s->dt_max,
                                   .slot_stride = s->slot_stride,
                                   .state_first = s->state_first};
    struct pl_device_arg args[] = {PL_ARG_BUFFER(table), PL_ARG_BUFFER(layer->in.x), PL_ARG_BUFFER(layer->conv.x),
                                   PL_ARG_BUFFER(s->dt), PL_ARG_BUFFER(s->y),        PL_ARG_BUFFER(s->seqs),
                                   PL_ARG_BUFFER(meet),  PL_ARG_BUFFER(&k->counter), PL_ARG_VALUE(a)};
    uint32_t shared = at.fixed + at.depth * (at.unit + 2 * (uint32_t)sizeof(uint64_t));
    return pl_kernel_launch(ks, k, a.grid, 1, shared, args, PL_COUNT_OF(args));
}
