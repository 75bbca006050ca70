/* StableLM (Stability AI 2024): the Llama layer with layer norms that have biases, a quarter of each head rotates. What the
 * 12B model adds, both halves of a layer side by side and norms of each head, is refused. */
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
    PL_BIND_MLP,
};

static enum pl_status check(struct pl_model_config *c, struct pl_err *err) {
    if (c->qk_norm) PL_FAIL(err, PL_UNSUPPORTED, "a stablelm model with norms on queries and keys is not implemented");
    return PL_OK;
}

const struct pl_arch_def pl_stablelm_def = {
    .layer_norm = true,
    .hf_eps = "layer_norm_eps",
    .rotary_part = 0.25,
    .biases = {{"use_qkv_bias", false, PL_BIAS_QKV}},
    .check = check,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish,
};
