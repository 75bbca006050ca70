/* BitNet b1.58 (Ma et al. 2024; "BitNet b1.58 2B4T" 2025): pre-norm, all products ternary with activations in 8 bits, one
 * more norm before the output product of attention and before that of the MLP, which squares what is above zero. */
#include "model/arch.h"

#define TERNARY(field, gguf_name, hf_name, ROWS, COLS)                                                 \
    {                                                                                                  \
        .gguf = gguf_name, .hf = hf_name, .per_layer = true, .slot = offsetof(struct pl_layer, field), \
        .use = PL_WEIGHT_TERNARY, .rows = PL_DIM_##ROWS, .cols = PL_DIM_##COLS                         \
    }

static const struct pl_binding bindings[] = {
    PL_BIND_EMBED,
    PL_BIND_OUT_NORM,
    PL_BIND_HEAD,
    PL_BIND_ATTN_NORM,
    TERNARY(q, "attn_q.weight", "self_attn.q_proj.weight", HD, E),
    TERNARY(k, "attn_k.weight", "self_attn.k_proj.weight", GD, E),
    TERNARY(v, "attn_v.weight", "self_attn.v_proj.weight", GD, E),
    PL_LAYER_VECTOR(attn_sub_norm, "attn_sub_norm.weight", "self_attn.attn_sub_norm.weight", E, ALWAYS),
    TERNARY(o, "attn_output.weight", "self_attn.o_proj.weight", E, HD),
    PL_BIND_MLP_NORM("post_attention_layernorm.weight"),
    TERNARY(gate, "ffn_gate.weight", "mlp.gate_proj.weight", F, E),
    TERNARY(up, "ffn_up.weight", "mlp.up_proj.weight", F, E),
    PL_LAYER_VECTOR(mlp_sub_norm, "ffn_sub_norm.weight", "mlp.ffn_sub_norm.weight", F, ALWAYS),
    TERNARY(down, "ffn_down.weight", "mlp.down_proj.weight", E, F),
};

static enum pl_status check(struct pl_model_config *c, struct pl_err *err) {
    uint64_t hd = (uint64_t)c->heads * c->head_dim, gd = (uint64_t)c->kv_heads * c->head_dim;
    if (hd != c->width)
        PL_FAIL(err, PL_UNSUPPORTED,
                "%u heads of %u in a bitnet model of width %u: heads that add up to the width are implemented", c->heads,
                c->head_dim, c->width);
    if (c->width % 32 != 0 || c->mlp_width % 32 != 0 || gd % 4 != 0)
        PL_FAIL(err, PL_UNSUPPORTED, "a bitnet model of width %u and MLP width %u: multiples of 32 are implemented",
                c->width, c->mlp_width);
    if (c->qkv_bias || c->o_bias || c->mlp_bias || c->qk_norm)
        PL_FAIL(err, PL_UNSUPPORTED, "a bitnet model with biases or norms on queries and keys is not implemented");
    return PL_OK;
}

static enum pl_status product(struct pl_model *m, const struct pl_weight *w, const struct pl_activation *x,
                              struct pl_activation *y) {
    return pl_ops_ternary(m->ops, 1, &w, x, &y);
}

static enum pl_status attend(struct pl_model *m, uint32_t l, const struct pl_layer *w, struct pl_activation *x) {
    const struct pl_weight *qkv[] = {w->q, w->k, w->v};
    struct pl_activation *out[] = {m->q, m->k, m->v};
    PL_TRY(pl_layer_norm(m, x, w->attn_norm, NULL, m->h));
    PL_TRY(pl_ops_ternary(m->ops, 3, qkv, m->h, out));
    return pl_layer_attention(m, l, w);
}

/* No result is written over its own input, so that a device may do several of these at once; m->q is as wide as m->h. */
static enum pl_status finish(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *a,
                             struct pl_activation *x) {
    const struct pl_weight *gate_up[] = {w->gate, w->up};
    struct pl_activation *inner[] = {m->g, m->u};
    PL_TRY(pl_layer_norm(m, a == m->a ? m->a : m->a_out, w->attn_sub_norm, NULL, m->h));
    PL_TRY(product(m, w->o, m->h, m->q));
    PL_TRY(pl_ops_add(m->ops, x, m->q));
    PL_TRY(pl_layer_norm(m, x, w->mlp_norm, NULL, m->h));
    PL_TRY(pl_ops_ternary(m->ops, 2, gate_up, m->h, inner));
    PL_TRY(pl_ops_glu(m->ops, m->cfg.mlp_act, m->g, m->u, m->g));
    PL_TRY(pl_layer_norm(m, m->g, w->mlp_sub_norm, NULL, m->u));
    PL_TRY(product(m, w->down, m->u, m->h));
    return pl_ops_add(m->ops, x, m->h);
}

const struct pl_arch_def pl_bitnet_def = {
    .act = PL_OPS_RELU2,
    .ternary = true,
    .biases = {{"attention_bias", false, PL_BIAS_QKV | PL_BIAS_O}, {"mlp_bias", false, PL_BIAS_MLP}},
    .check = check,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = attend,
    .finish = finish,
};

/* What GGUF calls bitnet: the first models, with SiLU. */
const struct pl_arch_def pl_bitnet_silu_def = {
    .act = PL_OPS_SILU,
    .ternary = true,
    .check = check,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = attend,
    .finish = finish,
};
