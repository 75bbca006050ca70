/* Command R (Cohere 2024) and Command R7B, A: both halves of a layer read the same layer norm, which has no bias; rotation
 * pairs neighbours; logits are scaled. Cohere 2 has windowed layers that rotate and, every fourth, global ones that do
 * not. */
#include "model/arch.h"

static const struct pl_binding bindings[] = {
    PL_BIND_EMBED, PL_BIND_HEAD, PL_BIND_OUT_NORM, PL_BIND_ATTN_NORM, PL_BIND_QKV, PL_BIND_O, PL_BIND_MLP,
};

static const struct pl_arch_field fields[] = {
    PL_FIELD(logit_scale, "logit_scale", "logit_scale", 0.0625),
};

static enum pl_status check(struct pl_model_config *c, struct pl_err *err) {
    if (c->qk_norm)
        PL_FAIL(err, PL_UNSUPPORTED, "a %s model with norms on queries and keys is not implemented", pl_arch_name(c->arch));
    return PL_OK;
}

/* x += a o^T + mlp(norm(x)) */
static enum pl_status finish(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *a,
                             struct pl_activation *x) {
    PL_TRY(pl_layer_norm(m, x, w->attn_norm, NULL, m->h));
    PL_TRY(pl_layer_gated(m, w, m->h));
    PL_TRY(pl_layer_project_add(m, w->o, w->o_bias, a, x));
    return pl_layer_project_add(m, w->down, NULL, m->g, x);
}

const struct pl_arch_def pl_cohere_def = {
    .gguf_pairs = true,
    .hf_pairs = true,
    .layer_norm = true,
    .hf_eps = "layer_norm_eps",
    .biases = {{"attention_bias", false, PL_BIAS_QKV | PL_BIAS_O}},
    .fields = fields,
    .field_count = PL_COUNT_OF(fields),
    .check = check,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = pl_layer_attend,
    .finish = finish,
};

const struct pl_arch_def pl_cohere2_def = {
    .gguf_pairs = true,
    .hf_pairs = true,
    .layer_norm = true,
    .hf_eps = "layer_norm_eps",
    .nope = PL_NOPE_GLOBAL,
    .windows = true,
    .window_default = 4096,
    .window_pattern = 4,
    .biases = {{"attention_bias", false, PL_BIAS_QKV | PL_BIAS_O}},
    .fields = fields,
    .field_count = PL_COUNT_OF(fields),
    .check = check,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = pl_layer_attend,
    .finish = finish,
};
