/* Mamba (Gu and Dao 2023) and Mamba-2 (Dao and Gu 2024): state-space layers alone, each a norm, the layer, a sum.
 * Falcon-Mamba (Zuo et al. 2024) norms time steps, B and C. */
#include "model/arch.h"

#define BIND_BODY                                                                                                \
    PL_MODEL_WEIGHT(embed, "token_embd.weight", "embeddings.weight", EMBED, V, E, ALWAYS),                       \
        PL_MODEL_WEIGHT(out_norm, "output_norm.weight", "norm_f.weight", VECTOR, NONE, E, ALWAYS), PL_BIND_HEAD, \
        PL_LAYER_VECTOR(attn_norm, "attn_norm.weight", "norm.weight", E, ALWAYS)

static const struct pl_binding mamba_bindings[] = {BIND_BODY, PL_BIND_MAMBA("mixer")};
static const struct pl_binding mamba2_bindings[] = {BIND_BODY, PL_BIND_MAMBA2("mixer")};
static const struct pl_binding falcon_bindings[] = {
    BIND_BODY,
    PL_BIND_MAMBA("mixer"),
    PL_BIND_MADE(ssm_dt_norm, NULL, NULL, SR, SSM, ONES),
    PL_BIND_MADE(ssm_b_norm, NULL, NULL, SN, SSM, ONES),
    PL_BIND_MADE(ssm_c_norm, NULL, NULL, SN, SSM, ONES),
};

const struct pl_arch_def pl_mamba_def = {
    .ssm = PL_SSM_MAMBA,
    .no_attention = true,
    .hf_eps = "layer_norm_epsilon",
    .bindings = mamba_bindings,
    .binding_count = PL_COUNT_OF(mamba_bindings),
    .attend = pl_layer_ssm,
    .finish = pl_layer_finish_ssm,
};

const struct pl_arch_def pl_falcon_mamba_def = {
    .ssm = PL_SSM_MAMBA,
    .no_attention = true,
    .hf_eps = "layer_norm_epsilon",
    .bindings = falcon_bindings,
    .binding_count = PL_COUNT_OF(falcon_bindings),
    .attend = pl_layer_ssm,
    .finish = pl_layer_finish_ssm,
};

const struct pl_arch_def pl_mamba2_def = {
    .ssm = PL_SSM_MAMBA2,
    .no_attention = true,
    .hf_eps = "layer_norm_epsilon",
    .bindings = mamba2_bindings,
    .binding_count = PL_COUNT_OF(mamba2_bindings),
    .attend = pl_layer_ssm,
    .finish = pl_layer_finish_ssm,
};
