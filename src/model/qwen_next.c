/* Qwen3-Next (Qwen Team 2025) and Qwen3.5: three layers of four hold a state under the gated delta rule, every fourth
 * attends, with norms of each head, a quarter of each head rotating and a gate on what comes out; after each an MLP, or
 * experts beside one that always counts. */
#include "model/arch.h"

#define PICKED(field, gguf_own, gguf_shared, hf_own, hf_shared, ROWS, NEED, PART)                                   \
    {                                                                                                               \
        .gguf = gguf_own, .gguf_fused = gguf_shared, .hf = hf_own, .hf_fused = hf_shared, .per_layer = true,        \
        .slot = offsetof(struct pl_layer, field), .use = PL_WEIGHT_MATRIX, .rows = PL_DIM_##ROWS, .cols = PL_DIM_E, \
        .need = PL_NEED_##NEED, .part = PL_PART_##PART                                                              \
    }
#define LA(name) "linear_attn." name ".weight"
#define COMMON                                                                                                     \
    PL_BIND_EMBED, PL_BIND_OUT_NORM, PL_BIND_HEAD, PL_BIND_ATTN_NORM,                                              \
        PICKED(q, NULL, "attn_q.weight", NULL, "self_attn.q_proj.weight", HD, ALWAYS, HEADS_Q),                    \
        PICKED(attn_gate, NULL, "attn_q.weight", NULL, "self_attn.q_proj.weight", HD, ATTN_GATE, HEADS_GATE),      \
        PL_LAYER_MATRIX(k, "attn_k.weight", "self_attn.k_proj.weight", GD, E),                                     \
        PL_LAYER_MATRIX(v, "attn_v.weight", "self_attn.v_proj.weight", GD, E), PL_BIND_QK_HEAD_NORM, PL_BIND_O,    \
        PICKED(ssm_x, "attn_qkv.weight", "ssm_in.weight", LA("in_proj_qkv"), LA("in_proj_qkvz"), SC, SSM, QKVZ_X), \
        PICKED(ssm_z, "attn_gate.weight", "ssm_in.weight", LA("in_proj_z"), LA("in_proj_qkvz"), SI, SSM, QKVZ_Z),  \
        PICKED(ssm_b, "ssm_beta.weight", "ssm_ba.weight", LA("in_proj_b"), LA("in_proj_ba"), SH, SSM, BA_B),       \
        PICKED(ssm_dt, "ssm_alpha.weight", "ssm_ba.weight", LA("in_proj_a"), LA("in_proj_ba"), SH, SSM, BA_A),     \
        PL_BIND_MADE(ssm_dt_bias, "ssm_dt.bias", "linear_attn.dt_bias", SH, SSM, FLAT),                            \
        PL_BIND_MADE(ssm_norm, "ssm_norm.weight", LA("norm"), SI, SSM, REPEATED),                                  \
        PL_BIND_MADE(ssm_conv, "ssm_conv1d.weight", LA("conv1d"), SCK, SSM, TAPS),                                 \
        PL_BIND_MADE(ssm_a, "ssm_a", "linear_attn.A_log", SA, SSM, DECAY),                                         \
        PL_BIND_MATRIX(ssm_out, "ssm_out.weight", LA("out_proj"), E, SI, SSM, MATRIX),                             \
        PL_LAYER_VECTOR(mlp_norm, "post_attention_norm.weight", "post_attention_layernorm.weight", E, ALWAYS),     \
        PL_BIND_DENSE_MLP
/* As transformers 5 keeps them: the experts of a layer in two tensors; MLX in three. */
#define STACKED(field, gguf_name, mlx, hf_name, ROWS, COLS, PART)                                                         \
    {                                                                                                                     \
        .gguf = gguf_name, .hf = "mlp.switch_mlp." mlx ".weight", .hf_fused = "mlp.experts." hf_name, .per_layer = true,  \
        .slot = offsetof(struct pl_layer, field), .use = PL_WEIGHT_EXPERTS, .rows = PL_DIM_##ROWS, .cols = PL_DIM_##COLS, \
        .need = PL_NEED_MOE, .part = PL_PART_##PART                                                                       \
    }

static const struct pl_binding bindings[] = {COMMON};
static const struct pl_binding next_bindings[] = {
    COMMON,
    PL_BIND_EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    PL_BIND_SHARED_EXPERT,
};
static const struct pl_binding moe_bindings[] = {
    COMMON,
    STACKED(gate_experts, "ffn_gate_exps.weight", "gate_proj", "gate_up_proj", FX, E, GATE),
    STACKED(up_experts, "ffn_up_exps.weight", "up_proj", "gate_up_proj", FX, E, UP),
    STACKED(down_experts, "ffn_down_exps.weight", "down_proj", "down_proj", E, FX, WHOLE),
    PL_BIND_MATRIX(router, "ffn_gate_inp.weight", "mlp.gate.weight", X, E, MOE, MATRIX),
    PL_BIND_SHARED_EXPERT,
};

static enum pl_status check(struct pl_model_config *c, struct pl_err *err) {
    if (c->qkv_bias || c->o_bias || c->mlp_bias)
        PL_FAIL(err, PL_UNSUPPORTED, "biases in the attention or the MLP of a %s model are not implemented",
                pl_arch_name(c->arch));
    c->attn_gate = true;
    return PL_OK;
}

static enum pl_status gated_attention(struct pl_model *m, uint32_t l, const struct pl_layer *w, struct pl_activation *x) {
    PL_TRY(pl_layer_attend(m, l, w, x));
    PL_TRY(pl_layer_project(m, w->attn_gate, NULL, m->h, m->ag));
    return pl_ops_glu(m->ops, PL_OPS_SIGMOID, m->ag, m->a, m->a);
}

static enum pl_status attend(struct pl_model *m, uint32_t l, const struct pl_layer *w, struct pl_activation *x) {
    return m->cfg.layer_ssm[l] ? pl_layer_ssm(m, l, w, x) : gated_attention(m, l, w, x);
}

#define DEFINE(name, table, ...)                                                                                \
    const struct pl_arch_def pl_##name##_def = {.ssm = PL_SSM_DELTA,                                            \
                                                .rotary_part = 0.25f,                                           \
                                                .hf_norm_offset = 1,                                            \
                                                .qk_norm = true,                                                \
                                                .biases = {{"attention_bias", false, PL_BIAS_QKV | PL_BIAS_O}}, \
                                                .check = check,                                                 \
                                                .bindings = table,                                              \
                                                .binding_count = PL_COUNT_OF(table),                            \
                                                .attend = attend,                                               \
                                                .finish = pl_layer_finish_hybrid,                               \
                                                __VA_ARGS__}
DEFINE(qwen3_5, bindings, .windows = false);
DEFINE(qwen3_next, next_bindings, .moe = true, .renormalise = true, .shared_expert = true);
DEFINE(qwen3_5_moe, moe_bindings, .moe = true, .renormalise = true, .shared_expert = true);
