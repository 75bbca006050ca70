/* Falcon-H1 (Zuo et al. 2025): attention and a Mamba-2 layer side by side on the same norm, then an MLP. Multipliers
 * everywhere; GGUF has them in its weights, MLX most (config_ssm.c). Those of queries and keys are attention's scale, those
 * of x, B and C stand in the convolution's taps. */
#include <math.h>

#include "model/arch.h"

static const struct pl_binding bindings[] = {
    PL_BIND_EMBED,
    PL_MODEL_WEIGHT(out_norm, "output_norm.weight", "final_layernorm.weight", VECTOR, NONE, E, ALWAYS),
    PL_BIND_HEAD,
    PL_BIND_ATTN_NORM,
    PL_BIND_QKV,
    PL_BIND_O,
    PL_BIND_MAMBA2("mamba"),
    PL_BIND_PRE_FF_NORM,
    PL_LAYER_MATRIX(gate, "ffn_gate.weight", "feed_forward.gate_proj.weight", F, E),
    PL_LAYER_MATRIX(up, "ffn_up.weight", "feed_forward.up_proj.weight", F, E),
    PL_LAYER_MATRIX(down, "ffn_down.weight", "feed_forward.down_proj.weight", E, F),
};

static const struct pl_arch_field fields[] = {
    PL_FIELD(embed_scale, NULL, "embedding_multiplier", 1),        PL_FIELD(logit_scale, NULL, "lm_head_multiplier", 1),
    PL_FIELD(attn_in_scale, NULL, "attention_in_multiplier", 1),   PL_FIELD(attn_key_scale, NULL, "key_multiplier", 1),
    PL_FIELD(attn_out_scale, NULL, "attention_out_multiplier", 1), PL_FIELD(ssm_in_scale, NULL, "ssm_in_multiplier", 1),
    PL_FIELD(ssm.out_scale, NULL, "ssm_out_multiplier", 1),
};

static enum pl_status check(struct pl_model_config *c, struct pl_err *err) {
    const float *scales[] = {&c->attn_in_scale, &c->attn_key_scale, &c->attn_out_scale, &c->ssm_in_scale, &c->ssm.out_scale};
    for (size_t i = 0; i < PL_COUNT_OF(scales); i++)
        if (!(*scales[i] > 0) || !isfinite(*scales[i]))
            PL_FAIL(err, PL_FORMAT, "a multiplier of %g: a positive number was expected", (double)*scales[i]);
    if (c->qkv_bias || c->o_bias || c->mlp_bias)
        PL_FAIL(err, PL_UNSUPPORTED, "biases in the attention or the MLP of a falcon_h1 model are not implemented");
    c->attn_scale *= c->attn_in_scale * c->attn_in_scale * c->attn_key_scale;
    c->attn_out_scale *= c->attn_in_scale;
    for (size_t i = 0; i < PL_COUNT_OF(c->ssm.scale); i++) c->ssm.scale[i] *= c->ssm_in_scale;
    return PL_OK;
}

static enum pl_status attend(struct pl_model *m, uint32_t l, const struct pl_layer *w, struct pl_activation *x) {
    PL_TRY(pl_layer_attend(m, l, w, x));
    return pl_layer_ssm_normed(m, l, w);
}

static enum pl_status finish(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *a,
                             struct pl_activation *x) {
    const struct pl_model_config *c = &m->cfg;
    const struct pl_weight *in[] = {w->gate, w->up};
    struct pl_activation *made[] = {m->g, m->u};
    PL_TRY(pl_layer_project_add_scaled(m, w->o, NULL, a, x, c->attn_out_scale));
    PL_TRY(pl_layer_project_add_scaled(m, w->ssm_out, NULL, m->y_now, x, c->ssm.out_scale));
    PL_TRY(pl_layer_norm(m, x, w->mlp_norm, NULL, m->h));
    if (c->gate_scale == 1) {
        PL_TRY(pl_layer_gated(m, w, m->h));
    } else {
        PL_TRY(pl_ops_linear(m->ops, 2, in, NULL, m->h, made));
        PL_TRY(pl_ops_scale(m->ops, m->g, c->gate_scale));
        PL_TRY(pl_ops_glu(m->ops, c->mlp_act, m->g, m->u, m->g));
    }
    return pl_layer_project_add_scaled(m, w->down, NULL, m->g, x, c->down_scale);
}

const struct pl_arch_def pl_falcon_h1_def = {
    .ssm = PL_SSM_MAMBA2,
    .biases = {{"attention_bias", false, PL_BIAS_QKV | PL_BIAS_O}, {"mlp_bias", false, PL_BIAS_MLP}},
    .fields = fields,
    .field_count = PL_COUNT_OF(fields),
    .check = check,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = attend,
    .finish = finish,
};
