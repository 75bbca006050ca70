/* gpt-oss (OpenAI 2025): pre-norm, biases everywhere, every other layer with a window, a sink for each head in the softmax;
 * every layer a mixture of experts with biases, whose gate and up are clamped. Published with experts in MXFP4. */
#include "model/arch.h"

/* One matrix of all experts; in safetensors (bind_experts.c) gate and up row by row in turn, in MLX's apart. */
#define EXPERTS(field, gguf_name, hf_name, mlx_name, ROWS, COLS, PART)                                                    \
    {                                                                                                                     \
        .gguf = gguf_name, .hf = hf_name, .hf_fused = mlx_name, .per_layer = true,                                        \
        .slot = offsetof(struct pl_layer, field), .use = PL_WEIGHT_EXPERTS, .rows = PL_DIM_##ROWS, .cols = PL_DIM_##COLS, \
        .need = PL_NEED_MOE, .part = PL_PART_##PART                                                                       \
    }
#define EXPERTS_BIAS(field, gguf_name, hf_name, mlx_name, COLS, PART)                                                  \
    {                                                                                                                  \
        .gguf = gguf_name, .hf = hf_name, .hf_fused = mlx_name, .per_layer = true,                                     \
        .slot = offsetof(struct pl_layer, field), .use = PL_WEIGHT_VECTOR, .cols = PL_DIM_##COLS, .need = PL_NEED_MOE, \
        .part = PL_PART_##PART                                                                                         \
    }

static const struct pl_binding bindings[] = {
    PL_BIND_EMBED,
    PL_BIND_OUT_NORM,
    PL_BIND_HEAD,
    PL_BIND_ATTN_NORM,
    PL_BIND_QKV,
    PL_BIND_O,
    PL_LAYER_VECTOR(sinks, "attn_sinks.weight", "self_attn.sinks", H, ALWAYS),
    PL_LAYER_VECTOR(mlp_norm, "post_attention_norm.weight", "post_attention_layernorm.weight", E, ALWAYS),
    PL_BIND_MATRIX(router, "ffn_gate_inp.weight", "mlp.router.weight", X, E, MOE, MATRIX),
    PL_LAYER_VECTOR(router_bias, "ffn_gate_inp.bias", "mlp.router.bias", X, MOE),
    EXPERTS(gate_experts, "ffn_gate_exps.weight", "mlp.experts.gate_up_proj", "mlp.experts.gate_proj.weight", FX, E, GATE),
    EXPERTS(up_experts, "ffn_up_exps.weight", "mlp.experts.gate_up_proj", "mlp.experts.up_proj.weight", FX, E, UP),
    EXPERTS(down_experts, "ffn_down_exps.weight", "mlp.experts.down_proj", "mlp.experts.down_proj.weight", E, FX, WHOLE),
    EXPERTS_BIAS(gate_experts_bias, "ffn_gate_exps.bias", "mlp.experts.gate_up_proj_bias", "mlp.experts.gate_proj.bias", XFX,
                 GATE),
    EXPERTS_BIAS(up_experts_bias, "ffn_up_exps.bias", "mlp.experts.gate_up_proj_bias", "mlp.experts.up_proj.bias", XFX, UP),
    EXPERTS_BIAS(down_experts_bias, "ffn_down_exps.bias", "mlp.experts.down_proj_bias", "mlp.experts.down_proj.bias", XE,
                 WHOLE),
};
static const struct pl_arch_field fields[] = {PL_FIELD(swiglu_limit, NULL, "swiglu_limit", 7)};

static enum pl_status check(struct pl_model_config *c, struct pl_err *err) {
    if (c->swiglu_limit != 0 && c->swiglu_limit != 7)
        PL_FAIL(err, PL_UNSUPPORTED, "swiglu_limit is %g: 7 is implemented", (double)c->swiglu_limit);
    if (!c->qkv_bias || !c->o_bias) PL_FAIL(err, PL_FORMAT, "a gpt_oss model without biases in its attention");
    c->experts_renormalise = true; /* no file may say otherwise */
    c->mlp_act = PL_OPS_SWIGLU_CLAMPED;
    return PL_OK;
}

const struct pl_arch_def pl_gpt_oss_def = {
    .windows = true,
    .window_default = 128,
    .window_pattern = 2,
    .rope_base_gguf = 150000,
    .moe = true,
    .renormalise = true,
    .mxfp4 = true,
    .yarn_smooth = true,
    .biases = {{"attention_bias", true, PL_BIAS_QKV | PL_BIAS_O}},
    .fields = fields,
    .field_count = PL_COUNT_OF(fields),
    .check = check,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish_moe,
};
