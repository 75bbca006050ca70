/* Granite 4 hybrids (IBM 2025): Mamba-2 layers, a few of attention without rotation; after each an MLP, or a mixture of
 * experts beside one that always counts; Granite's four multipliers. Granite 3 MoE (IBM 2024): attention in all layers, and
 * the mixture, with or without an expert that always counts. */
#include "model/arch.h"

/* Under the second name gate and up are one tensor; MLX has them apart. */
#define FUSED(field, gguf_name, mlx, hf_name, ROWS, COLS, NEED, PART)                                                   \
    {                                                                                                                   \
        .gguf = gguf_name, .hf = mlx, .hf_fused = hf_name, .per_layer = true, .slot = offsetof(struct pl_layer, field), \
        .use = PL_WEIGHT_MATRIX, .rows = PL_DIM_##ROWS, .cols = PL_DIM_##COLS, .need = PL_NEED_##NEED,                  \
        .part = PL_PART_##PART                                                                                          \
    }
#define EXPERTS(field, gguf_name, mlx, hf_name, ROWS, COLS, PART)                                                           \
    {                                                                                                                       \
        .gguf = gguf_name, .hf = mlx, .hf_fused = hf_name, .per_layer = true, .slot = offsetof(struct pl_layer, field),     \
        .use = PL_WEIGHT_EXPERTS, .rows = PL_DIM_##ROWS, .cols = PL_DIM_##COLS, .need = PL_NEED_MOE, .part = PL_PART_##PART \
    }
#define SWITCH     "block_sparse_moe.switch_mlp."
#define SHARED_IN  "shared_mlp.input_linear.weight"
#define SHARED_OUT "shared_mlp.output_linear.weight"
#define MIXTURE                                                                                                           \
    PL_BIND_MATRIX(router, "ffn_gate_inp.weight", "block_sparse_moe.router.layer.weight", X, E, MOE, MATRIX),             \
        EXPERTS(gate_experts, "ffn_gate_exps.weight", SWITCH "gate_proj.weight", "block_sparse_moe.input_linear.weight",  \
                FX, E, GATE),                                                                                             \
        EXPERTS(up_experts, "ffn_up_exps.weight", SWITCH "up_proj.weight", "block_sparse_moe.input_linear.weight", FX, E, \
                UP),                                                                                                      \
        EXPERTS(down_experts, "ffn_down_exps.weight", SWITCH "down_proj.weight", "block_sparse_moe.output_linear.weight", \
                E, FX, WHOLE),                                                                                            \
        FUSED(shared_gate, "ffn_gate_shexp.weight", NULL, SHARED_IN, FS, E, SHARED, GATE),                                \
        FUSED(shared_up, "ffn_up_shexp.weight", NULL, SHARED_IN, FS, E, SHARED, UP),                                      \
        PL_BIND_MATRIX(shared_down, "ffn_down_shexp.weight", SHARED_OUT, E, FS, SHARED, MATRIX)

static const struct pl_binding bindings[] = {
    PL_BIND_EMBED,
    PL_BIND_OUT_NORM,
    PL_BIND_HEAD,
    PL_BIND_ATTN_NORM,
    PL_BIND_QKV,
    PL_BIND_O,
    PL_BIND_MAMBA2("mamba"),
    PL_BIND_MLP_NORM("post_attention_layernorm.weight"),
    FUSED(gate, "ffn_gate.weight", "mlp.gate_proj.weight", SHARED_IN, F, E, DENSE, GATE),
    FUSED(up, "ffn_up.weight", "mlp.up_proj.weight", SHARED_IN, F, E, DENSE, UP),
    FUSED(down, "ffn_down.weight", "mlp.down_proj.weight", SHARED_OUT, E, F, DENSE, WHOLE),
    MIXTURE,
};

static const struct pl_binding moe_bindings[] = {
    PL_BIND_EMBED,
    PL_BIND_OUT_NORM,
    PL_BIND_HEAD,
    PL_BIND_ATTN_NORM,
    PL_BIND_QKV,
    PL_BIND_O,
    PL_BIND_MLP_NORM("post_attention_layernorm.weight"),
    MIXTURE,
};

static const struct pl_arch_field fields[] = {
    PL_FIELD(embed_scale, "embedding_scale", "embedding_multiplier", 1),
    PL_FIELD(residual_scale, "residual_scale", "residual_multiplier", 1),
    PL_FIELD(attn_scale, NULL, "attention_multiplier", 1),
    PL_FIELD(logit_scale, "logit_scale", "logits_scaling", 1),
};

static enum pl_status check(struct pl_model_config *c, struct pl_err *err) {
    if (!(c->logit_scale > 0))
        PL_FAIL(err, PL_FORMAT, "logits are divided by %g: a positive number was expected", (double)c->logit_scale);
    c->logit_scale = 1 / c->logit_scale;
    c->experts_scale = c->residual_scale; /* what experts add goes straight into the stream */
    return PL_OK;
}

static enum pl_status attend(struct pl_model *m, uint32_t l, const struct pl_layer *w, struct pl_activation *x) {
    return m->cfg.layer_ssm[l] ? pl_layer_ssm(m, l, w, x) : pl_layer_attend(m, l, w, x);
}

static enum pl_status mixture(struct pl_model *m, const struct pl_layer *w, struct pl_activation *x) {
    const struct pl_moe moe = pl_layer_moe(m, w);
    const struct pl_weight *shared[] = {w->shared_gate, w->shared_up};
    struct pl_activation *made[] = {m->sg, m->su};
    PL_TRY(pl_layer_project(m, w->router, NULL, m->h, m->router));
    PL_TRY(pl_ops_moe(m->ops, &moe, m->router, m->h, x));
    if (w->shared_down == NULL) return PL_OK;
    PL_TRY(pl_ops_gated(m->ops, shared, NULL, m->cfg.mlp_act, m->h, made));
    return pl_layer_project_add(m, w->shared_down, NULL, m->sg, x);
}

static enum pl_status finish(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *a,
                             struct pl_activation *x) {
    PL_TRY(w->ssm_out != NULL ? pl_layer_project_add(m, w->ssm_out, NULL, m->y_now, x)
                              : pl_layer_project_add(m, w->o, w->o_bias, a, x));
    PL_TRY(pl_layer_norm(m, x, w->mlp_norm, NULL, m->h));
    if (w->router != NULL) return mixture(m, w, x);
    PL_TRY(pl_layer_gated(m, w, m->h));
    return pl_layer_project_add(m, w->down, NULL, m->g, x);
}

const struct pl_arch_def pl_granite_hybrid_def = {
    .ssm = PL_SSM_MAMBA2,
    .gguf_pairs = true,
    .moe = true,
    .moe_optional = true,
    .renormalise = true,
    .shared_expert = true,
    .biases = {{"attention_bias", false, PL_BIAS_QKV | PL_BIAS_O}},
    .fields = fields,
    .field_count = PL_COUNT_OF(fields),
    .check = check,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = attend,
    .finish = finish,
};

const struct pl_arch_def pl_granite_moe_def = {
    .gguf_pairs = true,
    .moe = true,
    .renormalise = true,
    .biases = {{"attention_bias", false, PL_BIAS_QKV | PL_BIAS_O}},
    .fields = fields,
    .field_count = PL_COUNT_OF(fields),
    .check = check,
    .bindings = moe_bindings,
    .binding_count = PL_COUNT_OF(moe_bindings),
    .attend = pl_layer_attend,
    .finish = finish,
};
