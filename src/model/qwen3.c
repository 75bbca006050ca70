/* Qwen3 (Yang et al. 2025), dense: the Llama layer with an RMS norm on each query and key head before rotation, and a
 * head size of its own. */
#include "model/arch.h"

static const struct pl_binding bindings[] = {
    PL_BIND_EMBED, PL_BIND_OUT_NORM,     PL_BIND_HEAD, PL_BIND_ATTN_NORM,
    PL_BIND_QKV,   PL_BIND_QK_HEAD_NORM, PL_BIND_O,    PL_BIND_MLP_NORM("post_attention_layernorm.weight"),
    PL_BIND_MLP,
};

static enum pl_status check(struct pl_model_config *c, struct pl_err *err) {
    if (c->mlp_bias) PL_FAIL(err, PL_UNSUPPORTED, "a qwen3 model with biases in its MLP is not implemented");
    return PL_OK;
}

const struct pl_arch_def pl_qwen3_def = {
    .qk_norm = true,
    .windows = true,
    .window_opt_in = true,
    .window_default = 4096,
    .biases = {{"attention_bias", false, PL_BIAS_QKV | PL_BIAS_O}},
    .check = check,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish,
};
