/* Qwen2 and Qwen2.5 (Yang et al. 2024): the Llama layer with biases on queries, keys and values. */
#include "model/arch.h"

static const struct pl_binding bindings[] = {
    PL_BIND_EMBED,
    PL_BIND_OUT_NORM,
    PL_BIND_HEAD,
    PL_BIND_ATTN_NORM,
    PL_BIND_QKV,
    PL_BIND_O,
    PL_BIND_MLP_NORM("post_attention_layernorm.weight"),
    PL_BIND_MLP,
};

static enum pl_status check(struct pl_model_config *c, struct pl_err *err) {
    if (c->qk_norm || c->o_bias || c->mlp_bias)
        PL_FAIL(err, PL_UNSUPPORTED,
                "a qwen2 model with norms on queries and keys, or biases on its output products, is not implemented");
    c->qkv_bias = true; /* whatever the file shows */
    return PL_OK;
}

const struct pl_arch_def pl_qwen2_def = {
    .windows = true,
    .window_opt_in = true,
    .window_default = 4096,
    .biases = {{NULL, true, PL_BIAS_QKV}},
    .check = check,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish,
};
