/* Mixtral (Jiang et al. 2024): the Mistral layer with a few large experts, whose weights are a softmax over the chosen ones.
 * GGUF calls it llama, with experts. */
#include "model/arch.h"

static const struct pl_binding bindings[] = {
    PL_BIND_EMBED,
    PL_BIND_OUT_NORM,
    PL_BIND_HEAD,
    PL_BIND_ATTN_NORM,
    PL_BIND_QKV,
    PL_BIND_O,
    PL_BIND_MLP_NORM("post_attention_layernorm.weight"),
    PL_BIND_EXPERTS("block_sparse_moe", "w1", "w3", "w2"),
};

static enum pl_status check(struct pl_model_config *c, struct pl_err *err) {
    if (c->qk_norm) PL_FAIL(err, PL_UNSUPPORTED, "a mixtral model with norms on queries and keys is not implemented");
    c->experts_renormalise = true; /* no file may say otherwise */
    return PL_OK;
}

const struct pl_arch_def pl_mixtral_def = {
    .gguf_pairs = true,
    .windows = true,
    .layer_types_ignored = true,
    .moe = true,
    .renormalise = true,
    .check = check,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish_moe,
};
