/* Phi-3 (Abdin et al. 2024) and Phi-4: the Llama layer, whose checkpoints keep queries, keys and values in one matrix and
 * gate and up in another; part of each head may rotate; LongRoPE. */
#include "model/arch.h"

static const struct pl_binding bindings[] = {
    PL_BIND_EMBED,
    PL_BIND_OUT_NORM,
    PL_BIND_HEAD,
    PL_BIND_ATTN_NORM,
    PL_BIND_QKV,
    PL_BIND_O,
    PL_BIND_MLP_NORM("post_attention_layernorm.weight"),
    PL_BIND_FUSED_MLP,
};

static enum pl_status check(struct pl_model_config *c, struct pl_err *err) {
    if (c->qk_norm || c->mlp_bias)
        PL_FAIL(err, PL_UNSUPPORTED, "a phi3 model with norms on queries and keys or biases in its MLP is not implemented");
    return PL_OK;
}

const struct pl_arch_def pl_phi3_def = {
    .rotary_part = 1,
    .longrope = true,
    .windows = true,
    .check = check,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish,
};
