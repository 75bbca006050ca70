/* SmolLM3 (Bakouch et al. 2025): the Llama layer, where every fourth one does not rotate queries and keys (Yang et al.
 * 2025, "Rope to Nope and Back Again"); a window, where one is asked for, is of those. */
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

const struct pl_arch_def pl_smollm3_def = {
    .gguf_pairs = true,
    .nope = PL_NOPE_FOURTH,
    .windows = true,
    .window_opt_in = true,
    .biases = {{"attention_bias", false, PL_BIAS_QKV | PL_BIAS_O}, {"mlp_bias", false, PL_BIAS_MLP}},
    .bindings = bindings,
    .binding_count = PL_COUNT_OF(bindings),
    .attend = pl_layer_attend,
    .finish = pl_layer_finish,
};
