/* StarCoder2 (Lozhkov et al. 2024): layer norms with biases, biases on every product, a plain MLP with GELU. */
#include "model/arch.h"

static const struct pl_binding bindings[] = {
    PL_BIND_EMBED,
    PL_BIND_OUT_NORM,
    PL_MODEL_WEIGHT(out_norm_bias, "output_norm.bias", "norm.bias", VECTOR, NONE, E, ALWAYS),
    PL_BIND_HEAD,
    PL_BIND_ATTN_NORM,
    PL_LAYER_VECTOR(attn_norm_bias, "attn_norm.bias", "input_layernorm.bias", E, ALWAYS),
    PL_BIND_QKV,
    PL_BIND_O,
    PL_BIND_MLP_NORM("post_attention_layernorm.weight"),
    PL_LAYER_VECTOR(mlp_norm_bias, "ffn_norm.bias", "post_attention_layernorm.bias", E, ALWAYS),
    PL_LAYER_MATRIX(up, "ffn_up.weight", "mlp.c_fc.weight", F, E),
    PL_LAYER_VECTOR(up_bias, "ffn_up.bias", "mlp.c_fc.bias", F, MLP_BIAS),
    PL_LAYER_MATRIX(down, "ffn_down.weight", "mlp.c_proj.weight", E, F),
    PL_LAYER_VECTOR(down_bias, "ffn_down.bias", "mlp.c_proj.bias", E, MLP_BIAS),
};

static enum pl_status finish(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *a,
                             struct pl_activation *x) {
    PL_TRY(pl_layer_project_add(m, w->o, w->o_bias, a, x));
    PL_TRY(pl_layer_norm(m, x, w->mlp_norm, w->mlp_norm_bias, m->h));
    PL_TRY(pl_layer_project(m, w->up, w->up_bias, m->h, m->u));
    PL_TRY(pl_ops_glu(m->ops, m->cfg.mlp_act, m->u, NULL, m->u));
    return pl_layer_project_add(m, w->down, w->down_bias, m->u, x);
}

const struct pl_arch_def pl_starcoder2_def = {
    .layer_norm = true,
    .hf_eps = "norm_epsilon",
    .act = PL_OPS_GELU_TANH,
    .windows = true,
    .biases = {{"use_bias", true, PL_BIAS_QKV | PL_BIAS_O | PL_BIAS_MLP}},
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = pl_layer_attend,
    .finish = finish,
};
