/* Nemotron-H (NVIDIA 2025) and Nemotron 3 Nano: each layer is a norm and one thing: a Mamba-2 layer, attention without
 * rotation, an MLP with the square of what is above zero, or a mixture of such ones beside one that always counts. */
#include "model/arch.h"

#define ATTENTION(field, gguf_name, hf_name, ROWS, COLS) \
    PL_BIND_MATRIX(field, gguf_name, "mixer." hf_name "_proj.weight", ROWS, COLS, ALWAYS, MATRIX)

static const struct pl_binding bindings[] = {
    PL_MODEL_WEIGHT(embed, "token_embd.weight", "embeddings.weight", EMBED, V, E, ALWAYS),
    PL_MODEL_WEIGHT(out_norm, "output_norm.weight", "norm_f.weight", VECTOR, NONE, E, ALWAYS),
    PL_BIND_HEAD,
    PL_LAYER_VECTOR(attn_norm, "attn_norm.weight", "norm.weight", E, ALWAYS),
    ATTENTION(q, "attn_q.weight", "q", HD, E),
    ATTENTION(k, "attn_k.weight", "k", GD, E),
    ATTENTION(v, "attn_v.weight", "v", GD, E),
    ATTENTION(o, "attn_output.weight", "o", E, HD),
    PL_BIND_MAMBA2("mixer"),
    PL_BIND_MATRIX(up, "ffn_up.weight", "mixer.up_proj.weight", F, E, ALONE, MATRIX),
    PL_BIND_MATRIX(down, "ffn_down.weight", "mixer.down_proj.weight", E, F, ALONE, MATRIX),
    PL_BIND_MATRIX(router, "ffn_gate_inp.weight", "mixer.gate.weight", X, E, MOE, MATRIX),
    PL_LAYER_VECTOR(router_choice, "exp_probs_b.bias", "mixer.gate.e_score_correction_bias", X, CHOICE_BIAS),
    PL_BIND_STACK(up_experts, "ffn_up_exps.weight", "mixer.experts.%u.up_proj.weight", "mixer.switch_mlp.fc1.weight", FX, E),
    PL_BIND_STACK(down_experts, "ffn_down_exps.weight", "mixer.experts.%u.down_proj.weight", "mixer.switch_mlp.fc2.weight",
                  E, FX),
    PL_BIND_MATRIX(shared_up, "ffn_up_shexp.weight", "mixer.shared_experts.up_proj.weight", FS, E, SHARED, MATRIX),
    PL_BIND_MATRIX(shared_down, "ffn_down_shexp.weight", "mixer.shared_experts.down_proj.weight", E, FS, SHARED, MATRIX),
};

static enum pl_status check(struct pl_model_config *c, struct pl_err *err) {
    if (c->qkv_bias || c->o_bias || c->mlp_bias)
        PL_FAIL(err, PL_UNSUPPORTED, "biases in the attention or the MLP of a nemotron_h model are not implemented");
    c->mlp_act = PL_OPS_RELU2;
    return PL_OK;
}

static enum pl_status attend(struct pl_model *m, uint32_t l, const struct pl_layer *w, struct pl_activation *x) {
    if (m->cfg.layer_ssm[l]) return pl_layer_ssm(m, l, w, x);
    return m->cfg.layer_no_attention[l] ? PL_OK : pl_layer_attend(m, l, w, x);
}

/* x += down(relu2(up(m->h))), through u. */
static enum pl_status squared(struct pl_model *m, const struct pl_weight *up, const struct pl_weight *down,
                              struct pl_activation *u, struct pl_activation *x) {
    PL_TRY(pl_layer_project(m, up, NULL, m->h, u));
    PL_TRY(pl_ops_glu(m->ops, PL_OPS_RELU2, u, NULL, u));
    return pl_layer_project_add(m, down, NULL, u, x);
}

static enum pl_status mixture(struct pl_model *m, const struct pl_layer *w, struct pl_activation *x) {
    const struct pl_moe moe = pl_layer_moe(m, w);
    PL_TRY(pl_layer_project(m, w->router, NULL, m->h, m->router));
    PL_TRY(pl_ops_moe(m->ops, &moe, m->router, m->h, x));
    return w->shared_up != NULL ? squared(m, w->shared_up, w->shared_down, m->su, x) : PL_OK;
}

static enum pl_status finish(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *a,
                             struct pl_activation *x) {
    if (w->ssm_out != NULL) return pl_layer_project_add(m, w->ssm_out, NULL, m->y_now, x);
    if (w->o != NULL) return pl_layer_project_add(m, w->o, NULL, a, x);
    PL_TRY(pl_layer_norm(m, x, w->attn_norm, NULL, m->h));
    return w->router != NULL ? mixture(m, w, x) : squared(m, w->up, w->down, m->u, x);
}

const struct pl_arch_def pl_nemotron_h_def = {
    .ssm = PL_SSM_MAMBA2,
    .hf_eps = "layer_norm_epsilon",
    .nope = PL_NOPE_ALL,
    .moe = true,
    .moe_optional = true,
    .biases = {{"attention_bias", false, PL_BIAS_QKV | PL_BIAS_O}, {"mlp_bias", false, PL_BIAS_MLP}},
    .check = check,
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = attend,
    .finish = finish,
};
