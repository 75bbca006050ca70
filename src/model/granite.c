/* Granite 3 and 4, dense (IBM 2024): the Llama layer with four multipliers: of embeddings, of attention scores, of what a
 * half adds to the stream, and of logits (which are divided by theirs). */
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
    PL_BIND_MLP_BIAS,
};

static const struct pl_arch_field fields[] = {
    PL_FIELD(embed_scale, "embedding_scale", "embedding_multiplier", 1),
    PL_FIELD(residual_scale, "residual_scale", "residual_multiplier", 1),
    PL_FIELD(attn_scale, NULL, "attention_multiplier", 1), /* GGUF: attention.scale, which all architectures have */
    PL_FIELD(logit_scale, "logit_scale", "logits_scaling", 1),
};

static enum pl_status check(struct pl_model_config *c, struct pl_err *err) {
    if (!(c->logit_scale > 0))
        PL_FAIL(err, PL_FORMAT, "logits are divided by %g: a positive number was expected", (double)c->logit_scale);
    c->logit_scale = 1 / c->logit_scale;
    return PL_OK;
}

const struct pl_arch_def pl_granite_def = {
    .gguf_pairs = true,
    .biases = {{"attention_bias", false, PL_BIAS_QKV | PL_BIAS_O}, {"mlp_bias", false, PL_BIAS_MLP}},
    .fields = fields,
    .field_count = PL_COUNT_OF(fields),
    .check = check,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish,
};
