/* Jamba (AI21 2024): Mamba layers with norms on time steps, B and C, attention without rotation at every period-th; after
 * each an MLP or a mixture of experts. */
#include "model/arch.h"

static const struct pl_binding bindings[] = {
    PL_BIND_EMBED,
    PL_MODEL_WEIGHT(out_norm, "output_norm.weight", "final_layernorm.weight", VECTOR, NONE, E, ALWAYS),
    PL_BIND_HEAD,
    PL_BIND_ATTN_NORM,
    PL_BIND_QKV,
    PL_BIND_O,
    PL_BIND_MAMBA("mamba"),
    PL_LAYER_VECTOR(ssm_dt_norm, "ssm_dt_norm.weight", "mamba.dt_layernorm.weight", SR, SSM),
    PL_LAYER_VECTOR(ssm_b_norm, "ssm_b_norm.weight", "mamba.b_layernorm.weight", SN, SSM),
    PL_LAYER_VECTOR(ssm_c_norm, "ssm_c_norm.weight", "mamba.c_layernorm.weight", SN, SSM),
    PL_BIND_PRE_FF_NORM,
    PL_BIND_MATRIX(gate, "ffn_gate.weight", "feed_forward.gate_proj.weight", F, E, DENSE, MATRIX),
    PL_BIND_MATRIX(up, "ffn_up.weight", "feed_forward.up_proj.weight", F, E, DENSE, MATRIX),
    PL_BIND_MATRIX(down, "ffn_down.weight", "feed_forward.down_proj.weight", E, F, DENSE, MATRIX),
    PL_BIND_STACK(gate_experts, "ffn_gate_exps.weight", "feed_forward.experts.%u.gate_proj.weight",
                  "feed_forward.switch_mlp.gate_proj.weight", FX, E),
    PL_BIND_STACK(up_experts, "ffn_up_exps.weight", "feed_forward.experts.%u.up_proj.weight",
                  "feed_forward.switch_mlp.up_proj.weight", FX, E),
    PL_BIND_STACK(down_experts, "ffn_down_exps.weight", "feed_forward.experts.%u.down_proj.weight",
                  "feed_forward.switch_mlp.down_proj.weight", E, FX),
    PL_BIND_MATRIX(router, "ffn_gate_inp.weight", "feed_forward.router.weight", X, E, MOE, MATRIX),
};

static enum pl_status attend(struct pl_model *m, uint32_t l, const struct pl_layer *w, struct pl_activation *x) {
    return m->cfg.layer_ssm[l] ? pl_layer_ssm(m, l, w, x) : pl_layer_attend(m, l, w, x);
}

const struct pl_arch_def pl_jamba_def = {
    .ssm = PL_SSM_MAMBA,
    .nope = PL_NOPE_ALL,
    .moe = true,
    .moe_optional = true,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = attend,
    .finish = pl_layer_finish_hybrid,
};
