/* arch - what an architecture file provides, and the bound model it works on. Private to this folder. */
#ifndef PL_MODEL_ARCH_H
#define PL_MODEL_ARCH_H

#include "model/model.h"

/* All weights that one layer of any known architecture has; NULL where this model has none. */
struct pl_layer {
    /* q to o_bias: of layers with attention. */
    struct pl_weight *attn_norm, *attn_norm_bias, *mlp_norm_bias, *q, *k, *v, *q_bias, *k_bias, *v_bias, *q_norm,
        *k_norm;                                 /* norms of each head */
    struct pl_weight *q_norm_wide, *k_norm_wide; /* norms over all heads */
    struct pl_weight *o, *o_bias, *post_attn_norm, *attn_gate;
    struct pl_weight *mlp_norm, *gate, *up, *down, *gate_bias, *up_bias, *down_bias, *post_mlp_norm;
    struct pl_weight *attn_sub_norm, *mlp_sub_norm; /* before the products that end each half */
    struct pl_weight *router, *gate_experts, *up_experts, *down_experts;
    struct pl_weight *router_bias, *gate_experts_bias, *up_experts_bias, *down_experts_bias, *sinks;
    struct pl_weight *shared_gate, *shared_up, *shared_down, *shared_router, *router_choice;
    struct pl_weight *q_a, *q_a_norm, *q_b, *kv_a, *kv_a_norm, *k_heads, *v_heads; /* latent attention */
    /* State-space layers. ssm_x: what the convolution takes. Mamba makes dt, B and C of its result, Mamba-2 of the layer's
     * input, where B and C are part of ssm_x. */
    struct pl_weight *ssm_x, *ssm_z, *ssm_dt, *ssm_b, *ssm_c, *ssm_dt_up, *ssm_dt_bias;
    struct pl_weight *ssm_conv, *ssm_conv_bias, *ssm_a, *ssm_d, *ssm_norm, *ssm_out;
    struct pl_weight *ssm_dt_norm, *ssm_b_norm, *ssm_c_norm;
};

struct pl_model {
    struct pl_model_config cfg;
    const struct pl_arch_def *def;
    struct pl_ops *ops;
    uint32_t max_rows, max_logits, max_context;
    uint64_t bytes_owned;
    void **repacked; /* matrices that the file keeps in another order */
    size_t repacked_count, repacked_cap;

    struct pl_weight *embed, *out_norm, *out_norm_bias;
    struct pl_weight *head; /* NULL while tied: the embedding serves both */
    struct pl_layer *layers;
    struct pl_rope *rope, *rope_local; /* local: NULL where windowed layers rotate like the others */

    /* Activations. x residual stream, h normalised, q k v, a attention result, g u MLP inner. */
    struct pl_activation *x, *h, *q, *k, *v, *a, *g, *u;
    struct pl_activation *x_out, *a_out, *logits;   /* logit rows only */
    struct pl_activation *router, *sg, *su, *share; /* NULL without experts: their logits, the shared one's MLP and gate */
    struct pl_activation *ql, *qa, *latent; /* latent attention: query rank, queries and results in the latents' terms */
    /* State-space layers: input and result of the convolution, gate, step, what it is made of, B, C, and the result. */
    struct pl_activation *cx, *cy, *z, *dt, *dt_low, *b, *c, *y, *y_out;
    struct pl_activation *ag;    /* the gate of attention's result */
    struct pl_activation *y_now; /* y, or of a step's last layer y_out */
};

enum pl_dim {
    PL_DIM_NONE,
    PL_DIM_E,
    PL_DIM_F,
    PL_DIM_V,
    PL_DIM_HD,
    PL_DIM_GD,
    PL_DIM_D,
    PL_DIM_X,  /* experts */
    PL_DIM_FX, /* MLP width of an expert */
    PL_DIM_FS, /* of the shared one */
    PL_DIM_ONE,
    PL_DIM_H,
    PL_DIM_XFX, /* one row of each expert: of its MLP width, */
    PL_DIM_XE,  /* of the model's */
    PL_DIM_HQ,  /* latent attention: heads x numbers of a query, */
    PL_DIM_HV,  /* of a value, */
    PL_DIM_QL,  /* rank of queries, */
    PL_DIM_KL,  /* of keys and values: the latents, */
    PL_DIM_KR,  /* those and what rotates */
    PL_DIM_SI,  /* width of state-space layers, */
    PL_DIM_SC,  /* of their convolution, */
    PL_DIM_SCK, /* times its taps */
    PL_DIM_SH,  /* heads, */
    PL_DIM_SA,  /* decays: of a head, or of a head and state */
    PL_DIM_SR,  /* rank of dt, */
    PL_DIM_SN,  /* state */
    PL_DIM_SP   /* head of a state-space layer */
};
enum pl_need {
    PL_NEED_ALWAYS,
    PL_NEED_UNTIED,
    PL_NEED_QKV_BIAS,
    PL_NEED_ATTN_GATE,
    PL_NEED_O_BIAS,
    PL_NEED_QK_NORM,
    PL_NEED_MLP_BIAS,
    PL_NEED_DENSE,
    PL_NEED_MOE,
    PL_NEED_SHARED,      /* an expert that always counts */
    PL_NEED_CHOICE_BIAS, /* of the router */
    PL_NEED_QUERY_RANK,
    PL_NEED_NO_QUERY_RANK,
    PL_NEED_SSM,
    PL_NEED_SSM_NORM,
    PL_NEED_ALONE, /* neither attention nor state: an MLP is all the layer has */
    PL_NEED_CONV_BIAS
};

/* Where a weight lies in one that a file keeps fused: queries, keys, values in this order; gate, then up. */
enum pl_part {
    PL_PART_WHOLE,
    PL_PART_Q,
    PL_PART_K,
    PL_PART_V,
    PL_PART_GATE,
    PL_PART_UP,
    PL_PART_IN_X, /* Mamba: x, then z; of its result dt, B, C */
    PL_PART_IN_Z,
    PL_PART_X_DT,
    PL_PART_X_B,
    PL_PART_X_C,
    PL_PART_IN2_Z, /* Mamba-2: z, then x with B and C, then dt */
    PL_PART_IN2_X,
    PL_PART_IN2_DT,
    PL_PART_IN3_B, /* LFM2: what the convolution's input is multiplied by, what its result is, and that input */
    PL_PART_IN3_C,
    PL_PART_IN3_X,
    PL_PART_HEADS_Z, /* PLaMo 2: head by head z, then x; copied */
    PL_PART_HEADS_X,
    PL_PART_HEADS_Q, /* Qwen3-Next: head by head queries, then gates of attention; copied, as are those that follow */
    PL_PART_HEADS_GATE,
    PL_PART_QKVZ_X, /* key head by key head q, k, values, gates; */
    PL_PART_QKVZ_Z,
    PL_PART_BA_B, /* rates, time steps */
    PL_PART_BA_A, /* the last that is copied */
    PL_PART_BC_B, /* of the convolution's result B, C, dt */
    PL_PART_BC_C,
    PL_PART_BC_DT
};
/* Vectors that are made of a tensor of another shape or meaning: of rows, one after the other; -e^t of a safetensors file (a
 * GGUF has it done), taps of a convolution [channels, K] row by row of K, ones without any tensor, or one head's for all. */
enum pl_made { PL_MADE_AS_IS, PL_MADE_FLAT, PL_MADE_DECAY, PL_MADE_TAPS, PL_MADE_ONES, PL_MADE_REPEATED };

/* One weight: its name in either file kind, its shape in letters, and where it goes. Names of layer weights are relative
 * to the layer ("blk.7." or "model.layers.7."). rows PL_DIM_NONE: a vector of cols. */
struct pl_binding {
    const char *gguf, *hf;
    bool per_layer;
    size_t slot; /* offsetof in struct pl_model, or in struct pl_layer when per_layer */
    enum pl_weight_use use;
    enum pl_dim rows, cols;
    enum pl_need need;
    enum pl_part part; /* of the fused tensor, which serves where the weight itself has no name or is missing */
    const char *gguf_fused, *hf_fused;
    enum pl_made made;
};

/* A number of the configuration that only some architectures have. NULL: that file kind does not say it. */
struct pl_arch_field {
    const char *gguf, *hf;
    size_t slot;   /* offsetof in struct pl_model_config, a float */
    float missing; /* where the field is absent; null in config.json is 0 */
};
#define PL_FIELD(slot, gguf, hf, missing) \
    { gguf, hf, offsetof(struct pl_model_config, slot), missing }

/* Which products have biases, and what says so in config.json. field NULL: always. GGUF shows it by its tensors. */
enum pl_bias_part { PL_BIAS_QKV = 1, PL_BIAS_O = 2, PL_BIAS_MLP = 4 };
struct pl_arch_bias {
    const char *field;
    bool missing;
    unsigned parts; /* 0: no such entry */
};

/* SmolLM3: every fourth, or as no_rope_layers says; Cohere 2: those without a window; EXAONE 4: likewise, where there are
 * windows at all. */
enum pl_nope { PL_NOPE_NONE, PL_NOPE_FOURTH, PL_NOPE_GLOBAL, PL_NOPE_BESIDE_WINDOWS, PL_NOPE_ALL };

struct pl_arch_def {
    /* What no file says. */
    enum pl_ssm_kind ssm;      /* some layers are of this kind; */
    bool no_attention;         /* or all, and there is no MLP either */
    bool gguf_pairs, hf_pairs; /* rotation pairs neighbours: in GGUF, where converters may have permuted rows, elsewhere */
    bool layer_norm;           /* norms take the mean away too */
    const char *hf_eps;        /* the norms' epsilon in config.json; NULL: rms_norm_eps */
    const char *hf_act;        /* the activation there; NULL: hidden_act */
    const char *hf_head_dim;   /* the size of a head there; NULL: head_dim */
    const char *hf_layers;     /* what precedes a layer's number in safetensors; NULL: layers */
    float rotary_part;         /* of a head that rotates, where the file does not say; 0: all, and no file may differ */
    enum pl_nope nope;         /* which layers do not rotate */
    bool embed_by_width;       /* embeddings are scaled by sqrt(E) */
    float hf_norm_offset;      /* safetensors hold norm weights less this; GGUF holds them whole */
    enum pl_ops_act act;       /* of the MLP, where the file does not say */
    bool qk_norm;              /* norms on queries and keys (GGUF shows it by its tensors), */
    bool qk_norm_optional;     /* or where use_qk_norm says so */
    bool query_scalar;         /* attention scales by query_pre_attn_scalar; GGUF: by the head size, */
    uint32_t nominal_scale_layers;         /* but by E/H in the one model of so many layers */
    bool windows;                          /* there may be a sliding window; else its library knows none */
    bool window_opt_in;                    /* only where use_sliding_window says so */
    bool layer_types_ignored;              /* all layers have the window whatever layer_types says */
    uint32_t window_default;               /* where the file does not say; 0: none */
    uint32_t window_pattern;               /* every n-th layer sees everything; 0: all layers have the window */
    bool longrope;                         /* GGUF may hold tensors of LongRoPE divisors */
    bool windowed_unscaled;                /* rotary scaling concerns the layers without a window only */
    float rope_base_gguf, rope_base_local; /* where the file does not say; 0: 10,000, and as the others */
    bool moe;                              /* mixture of experts, */
    bool moe_optional;                     /* or none at all; */
    bool renormalise;                      /* whose weights add up to 1 where the file does not say */
    bool shared_expert;                    /* and one expert counts always, by a gate of its own */
    bool ternary;                          /* products of BitNet: quantization_config says how safetensors hold them */
    bool mxfp4;                            /* safetensors may hold experts as blocks and scales */
    bool yarn_smooth;                      /* GGUF: the ramp's ends are not rounded */
    bool latent;                           /* latent attention */
    bool deepseek_moe;                     /* experts as DeepSeek-V3 has them; its configuration's words */
    struct pl_arch_bias biases[3];
    const struct pl_arch_field *fields;
    size_t field_count;

    enum pl_status (*check)(struct pl_model_config *c, struct pl_err *err); /* what this architecture adds; may be NULL */
    const struct pl_binding *bindings;
    size_t binding_count;
    /* One layer: m->a = attention over x of every row; then, for the rows that are still needed, x becomes the layer's
     * output. */
    enum pl_status (*attend)(struct pl_model *m, uint32_t l, const struct pl_layer *w, struct pl_activation *x);
    enum pl_status (*finish)(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *a,
                             struct pl_activation *x);
};
extern const struct pl_arch_def pl_deepseek_v2_def, pl_deepseek_v3_def;
extern const struct pl_arch_def pl_mamba_def, pl_falcon_mamba_def, pl_mamba2_def, pl_granite_hybrid_def, pl_falcon_h1_def,
    pl_jamba_def, pl_nemotron_h_def, pl_plamo2_def, pl_lfm2_def, pl_lfm2_moe_def, pl_qwen3_next_def, pl_qwen3_5_def,
    pl_qwen3_5_moe_def;
extern const struct pl_arch_def pl_bitnet_def, pl_bitnet_silu_def;
extern const struct pl_arch_def pl_qwen2_moe_def, pl_qwen3_moe_def, pl_mixtral_def, pl_olmoe_def, pl_gpt_oss_def;
extern const struct pl_arch_def pl_llama_def, pl_mistral_def, pl_ministral_def, pl_ministral3_def, pl_qwen2_def,
    pl_qwen3_def, pl_gemma2_def, pl_gemma3_def, pl_phi3_def, pl_smollm3_def, pl_granite_def, pl_olmo2_def, pl_olmo3_def,
    pl_starcoder2_def, pl_cohere_def, pl_cohere2_def, pl_glm_def, pl_glm4_def, pl_glm4_moe_def, pl_gemma_def, pl_exaone4_def,
    pl_ernie4_5_def, pl_seed_oss_def, pl_stablelm_def, pl_granite_moe_def;

/* Rows of the tables; dimensions and needs by their short names. */
#define PL_MODEL_WEIGHT(slot, gguf, hf, use, rows, cols, need)                                                           \
    {                                                                                                                    \
        gguf, hf, false, offsetof(struct pl_model, slot), PL_WEIGHT_##use, PL_DIM_##rows, PL_DIM_##cols, PL_NEED_##need, \
            PL_PART_WHOLE, NULL, NULL, PL_MADE_AS_IS                                                                     \
    }
#define PL_LAYER_MATRIX(slot, gguf, hf, rows, cols)                                                                      \
    {                                                                                                                    \
        gguf, hf, true, offsetof(struct pl_layer, slot), PL_WEIGHT_MATRIX, PL_DIM_##rows, PL_DIM_##cols, PL_NEED_ALWAYS, \
            PL_PART_WHOLE, NULL, NULL, PL_MADE_AS_IS                                                                     \
    }
#define PL_LAYER_VECTOR(slot, gguf, hf, cols, need)                                                                    \
    {                                                                                                                  \
        gguf, hf, true, offsetof(struct pl_layer, slot), PL_WEIGHT_VECTOR, PL_DIM_NONE, PL_DIM_##cols, PL_NEED_##need, \
            PL_PART_WHOLE, NULL, NULL, PL_MADE_AS_IS                                                                   \
    }

/* Rows that many tables share. */
#define PL_BIND_EMBED        PL_MODEL_WEIGHT(embed, "token_embd.weight", "embed_tokens.weight", EMBED, V, E, ALWAYS)
#define PL_BIND_HEAD         PL_MODEL_WEIGHT(head, "output.weight", "lm_head.weight", HEAD, V, E, UNTIED)
#define PL_BIND_OUT_NORM     PL_MODEL_WEIGHT(out_norm, "output_norm.weight", "norm.weight", VECTOR, NONE, E, ALWAYS)
#define PL_BIND_ATTN_NORM    PL_LAYER_VECTOR(attn_norm, "attn_norm.weight", "input_layernorm.weight", E, ALWAYS)
#define PL_BIND_MLP_NORM(hf) PL_LAYER_VECTOR(mlp_norm, "ffn_norm.weight", hf, E, ALWAYS)
#define PL_BIND_FUSABLE(field, letter, dim, PART)                                                                  \
    {                                                                                                              \
        .gguf = "attn_" letter ".weight", .hf = "self_attn." letter "_proj.weight", .per_layer = true,             \
        .slot = offsetof(struct pl_layer, field), .use = PL_WEIGHT_MATRIX, .rows = PL_DIM_##dim, .cols = PL_DIM_E, \
        .part = PL_PART_##PART, .gguf_fused = "attn_qkv.weight", .hf_fused = "self_attn.qkv_proj.weight"           \
    }
#define PL_BIND_FUSABLE_BIAS(field, letter, dim, PART)                                                                     \
    {                                                                                                                      \
        .gguf = "attn_" letter ".bias", .hf = "self_attn." letter "_proj.bias", .per_layer = true,                         \
        .slot = offsetof(struct pl_layer, field), .use = PL_WEIGHT_VECTOR, .cols = PL_DIM_##dim, .need = PL_NEED_QKV_BIAS, \
        .part = PL_PART_##PART, .gguf_fused = "attn_qkv.bias", .hf_fused = "self_attn.qkv_proj.bias"                       \
    }
#define PL_BIND_QKV                                                                                 \
    PL_BIND_FUSABLE(q, "q", HD, Q), PL_BIND_FUSABLE(k, "k", GD, K), PL_BIND_FUSABLE(v, "v", GD, V), \
        PL_BIND_FUSABLE_BIAS(q_bias, "q", HD, Q), PL_BIND_FUSABLE_BIAS(k_bias, "k", GD, K),         \
        PL_BIND_FUSABLE_BIAS(v_bias, "v", GD, V)
#define PL_BIND_QK_WIDE_NORM                                                                   \
    PL_LAYER_VECTOR(q_norm_wide, "attn_q_norm.weight", "self_attn.q_norm.weight", HD, ALWAYS), \
        PL_LAYER_VECTOR(k_norm_wide, "attn_k_norm.weight", "self_attn.k_norm.weight", GD, ALWAYS)
#define PL_BIND_QK_HEAD_NORM                                                             \
    PL_LAYER_VECTOR(q_norm, "attn_q_norm.weight", "self_attn.q_norm.weight", D, ALWAYS), \
        PL_LAYER_VECTOR(k_norm, "attn_k_norm.weight", "self_attn.k_norm.weight", D, ALWAYS)
/* Converters of some families put the second norm where others have one after attention. */
#define PL_BIND_MLP_NORM_AS_POST \
    PL_LAYER_VECTOR(mlp_norm, "post_attention_norm.weight", "post_attention_layernorm.weight", E, ALWAYS)
#define PL_BIND_POST_ATTN_NORM(hf) PL_LAYER_VECTOR(post_attn_norm, "post_attention_norm.weight", hf, E, ALWAYS)
#define PL_BIND_POST_MLP_NORM(hf)  PL_LAYER_VECTOR(post_mlp_norm, "post_ffw_norm.weight", hf, E, ALWAYS)
#define PL_BIND_O                                                               \
    PL_LAYER_MATRIX(o, "attn_output.weight", "self_attn.o_proj.weight", E, HD), \
        PL_LAYER_VECTOR(o_bias, "attn_output.bias", "self_attn.o_proj.bias", E, O_BIAS)
#define PL_BIND_MLP                                                         \
    PL_LAYER_MATRIX(gate, "ffn_gate.weight", "mlp.gate_proj.weight", F, E), \
        PL_LAYER_MATRIX(up, "ffn_up.weight", "mlp.up_proj.weight", F, E),   \
        PL_LAYER_MATRIX(down, "ffn_down.weight", "mlp.down_proj.weight", E, F)
#define PL_BIND_MATRIX(field, gguf_name, hf_name, ROWS, COLS, NEED, USE)                               \
    {                                                                                                  \
        .gguf = gguf_name, .hf = hf_name, .per_layer = true, .slot = offsetof(struct pl_layer, field), \
        .use = PL_WEIGHT_##USE, .rows = PL_DIM_##ROWS, .cols = PL_DIM_##COLS, .need = PL_NEED_##NEED   \
    }
/* The experts of a layer: one tensor of all, or one of each; %u stands for the expert's number. MLX stacks them. */
#define PL_BIND_STACK(field, gguf_name, hf_name, stacked, ROWS, COLS)                                                       \
    {                                                                                                                       \
        .gguf = gguf_name, .hf = hf_name, .hf_fused = stacked, .per_layer = true, .slot = offsetof(struct pl_layer, field), \
        .use = PL_WEIGHT_EXPERTS, .rows = PL_DIM_##ROWS, .cols = PL_DIM_##COLS, .need = PL_NEED_MOE                         \
    }
/* Those of a GGUF whose converter was told to put gate and up into one tensor stand in it one after the other. */
#define PL_BIND_STACK_HALF(field, gguf_name, hf_name, stacked, PART)                                                        \
    {                                                                                                                       \
        .gguf = gguf_name, .hf = hf_name, .hf_fused = stacked, .per_layer = true, .slot = offsetof(struct pl_layer, field), \
        .use = PL_WEIGHT_EXPERTS, .rows = PL_DIM_FX, .cols = PL_DIM_E, .need = PL_NEED_MOE, .part = PL_PART_##PART,         \
        .gguf_fused = "ffn_gate_up_exps.weight"                                                                             \
    }
#define PL_BIND_EXPERTS(block, gate, up, down)                                                    \
    PL_BIND_STACK_HALF(gate_experts, "ffn_gate_exps.weight", block ".experts.%u." gate ".weight", \
                       block ".switch_mlp.gate_proj.weight", GATE),                               \
        PL_BIND_STACK_HALF(up_experts, "ffn_up_exps.weight", block ".experts.%u." up ".weight",   \
                           block ".switch_mlp.up_proj.weight", UP),                               \
        PL_BIND_STACK(down_experts, "ffn_down_exps.weight", block ".experts.%u." down ".weight",  \
                      block ".switch_mlp.down_proj.weight", E, FX),                               \
        PL_BIND_MATRIX(router, "ffn_gate_inp.weight", block ".gate.weight", X, E, MOE, MATRIX)
#define PL_BIND_DENSE_MLP                                                                 \
    PL_BIND_MATRIX(gate, "ffn_gate.weight", "mlp.gate_proj.weight", F, E, DENSE, MATRIX), \
        PL_BIND_MATRIX(up, "ffn_up.weight", "mlp.up_proj.weight", F, E, DENSE, MATRIX),   \
        PL_BIND_MATRIX(down, "ffn_down.weight", "mlp.down_proj.weight", E, F, DENSE, MATRIX)
#define PL_BIND_SHARED_EXPERT                                                                                           \
    PL_BIND_MATRIX(shared_gate, "ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight", FS, E, MOE, MATRIX),     \
        PL_BIND_MATRIX(shared_up, "ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight", FS, E, MOE, MATRIX),       \
        PL_BIND_MATRIX(shared_down, "ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight", E, FS, MOE, MATRIX), \
        PL_BIND_MATRIX(shared_router, "ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", ONE, E, MOE, MATRIX)
/* DeepSeek's words: experts that always count, together one, and the bias of the router's choice. */
#define PL_BIND_SHARED_EXPERTS                                                                                              \
    PL_LAYER_VECTOR(router_choice, "exp_probs_b.bias", "mlp.gate.e_score_correction_bias", X, CHOICE_BIAS),                 \
        PL_BIND_MATRIX(shared_gate, "ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight", FS, E, SHARED, MATRIX), \
        PL_BIND_MATRIX(shared_up, "ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight", FS, E, SHARED, MATRIX),       \
        PL_BIND_MATRIX(shared_down, "ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight", E, FS, SHARED, MATRIX)
#define PL_BIND_HALF(field, PART)                                                                                      \
    {                                                                                                                  \
        .per_layer = true, .slot = offsetof(struct pl_layer, field), .use = PL_WEIGHT_MATRIX, .rows = PL_DIM_F,        \
        .cols = PL_DIM_E, .part = PL_PART_##PART, .gguf_fused = "ffn_up.weight", .hf_fused = "mlp.gate_up_proj.weight" \
    }
#define PL_BIND_FUSED_MLP \
    PL_BIND_HALF(gate, GATE), PL_BIND_HALF(up, UP), PL_LAYER_MATRIX(down, "ffn_down.weight", "mlp.down_proj.weight", E, F)
#define PL_BIND_MLP_BIAS                                                            \
    PL_LAYER_VECTOR(gate_bias, "ffn_gate.bias", "mlp.gate_proj.bias", F, MLP_BIAS), \
        PL_LAYER_VECTOR(up_bias, "ffn_up.bias", "mlp.up_proj.bias", F, MLP_BIAS),   \
        PL_LAYER_VECTOR(down_bias, "ffn_down.bias", "mlp.down_proj.bias", E, MLP_BIAS)

/* State-space layers. */
#define PL_BIND_PART(field, gguf_name, hf_name, ROWS, COLS, PART)                                                          \
    {                                                                                                                      \
        .gguf_fused = gguf_name, .hf_fused = hf_name, .per_layer = true, .slot = offsetof(struct pl_layer, field),         \
        .use = PL_WEIGHT_MATRIX, .rows = PL_DIM_##ROWS, .cols = PL_DIM_##COLS, .need = PL_NEED_SSM, .part = PL_PART_##PART \
    }
#define PL_BIND_MADE(field, gguf_name, hf_name, COLS, NEED, MADE)                                      \
    {                                                                                                  \
        .gguf = gguf_name, .hf = hf_name, .per_layer = true, .slot = offsetof(struct pl_layer, field), \
        .use = PL_WEIGHT_VECTOR, .cols = PL_DIM_##COLS, .need = PL_NEED_##NEED, .made = PL_MADE_##MADE \
    }
/* Its name has no suffix in files of some converters. */
#define PL_BIND_PRE_FF_NORM                                                                                      \
    {                                                                                                            \
        .gguf = "ffn_norm", .gguf_fused = "ffn_norm.weight", .hf = "pre_ff_layernorm.weight", .per_layer = true, \
        .slot = offsetof(struct pl_layer, mlp_norm), .use = PL_WEIGHT_VECTOR, .cols = PL_DIM_E                   \
    }
/* block: "mixer", ... */
#define PL_BIND_SSM_COMMON(block)                                                                   \
    PL_BIND_MADE(ssm_conv, "ssm_conv1d.weight", block ".conv1d.weight", SCK, SSM, TAPS),            \
        PL_BIND_MADE(ssm_conv_bias, "ssm_conv1d.bias", block ".conv1d.bias", SC, CONV_BIAS, AS_IS), \
        PL_BIND_MADE(ssm_a, "ssm_a", block ".A_log", SA, SSM, DECAY),                               \
        PL_BIND_MATRIX(ssm_out, "ssm_out.weight", block ".out_proj.weight", E, SI, SSM, MATRIX)
#define PL_BIND_MAMBA(block)                                                                      \
    PL_BIND_PART(ssm_x, "ssm_in.weight", block ".in_proj.weight", SI, E, IN_X),                   \
        PL_BIND_PART(ssm_z, "ssm_in.weight", block ".in_proj.weight", SI, E, IN_Z),               \
        PL_BIND_PART(ssm_dt, "ssm_x.weight", block ".x_proj.weight", SR, SI, X_DT),               \
        PL_BIND_PART(ssm_b, "ssm_x.weight", block ".x_proj.weight", SN, SI, X_B),                 \
        PL_BIND_PART(ssm_c, "ssm_x.weight", block ".x_proj.weight", SN, SI, X_C),                 \
        PL_BIND_MATRIX(ssm_dt_up, "ssm_dt.weight", block ".dt_proj.weight", SI, SR, SSM, MATRIX), \
        PL_BIND_MADE(ssm_dt_bias, "ssm_dt.bias", block ".dt_proj.bias", SH, SSM, AS_IS),          \
        PL_BIND_MADE(ssm_d, "ssm_d", block ".D", SH, SSM, AS_IS), PL_BIND_SSM_COMMON(block)

#define PL_BIND_MAMBA2(block)                                                          \
    PL_BIND_PART(ssm_z, "ssm_in.weight", block ".in_proj.weight", SI, E, IN2_Z),       \
        PL_BIND_PART(ssm_x, "ssm_in.weight", block ".in_proj.weight", SC, E, IN2_X),   \
        PL_BIND_PART(ssm_dt, "ssm_in.weight", block ".in_proj.weight", SH, E, IN2_DT), \
        PL_BIND_MADE(ssm_dt_bias, "ssm_dt.bias", block ".dt_bias", SH, SSM, FLAT),     \
        PL_BIND_MADE(ssm_d, "ssm_d", block ".D", SH, SSM, FLAT),                       \
        PL_BIND_MADE(ssm_norm, "ssm_norm.weight", block ".norm.weight", SI, SSM_NORM, FLAT), PL_BIND_SSM_COMMON(block)

/* --- bind.c --- */
enum pl_status pl_model_bind(struct pl_model *m, const struct pl_file *f, const struct pl_model_options *opt,
                             struct pl_err *err) PL_MUST_CHECK;
void pl_model_unbind(struct pl_model *m);

/* --- rope.c --- */
enum pl_status pl_model_make_ropes(struct pl_model *m, const struct pl_file *f, struct pl_err *err) PL_MUST_CHECK;
/* Angle per position of each of the rope_dim/2 pairs, and the factor on cosine and sine. divisors: [rope_dim/2] or
 * NULL. local: the table of windowed layers. context: what it has to reach. */
void pl_rope_frequencies(const struct pl_model_config *c, uint32_t context, bool local, const float *divisors, double *freq,
                         double *magnitude);

/* --- layer.c: the steps that layers are written in --- */
/* y = norm(x), of the model's kind; y may be x. bias: of layer norms, or NULL. */
enum pl_status pl_layer_norm(struct pl_model *m, struct pl_activation *x, const struct pl_weight *w,
                             const struct pl_weight *bias, struct pl_activation *y) PL_MUST_CHECK;
/* m->q, m->k, m->v = products of `from`, with biases where the model has them. */
enum pl_status pl_layer_qkv(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *from) PL_MUST_CHECK;
/* Head norms and rotation of m->q and m->k, their place in the cache, m->a = attention of layer l. */
enum pl_status pl_layer_attention(struct pl_model *m, uint32_t l, const struct pl_layer *w) PL_MUST_CHECK;
/* y = from w^T + bias; bias may be NULL. */
enum pl_status pl_layer_project(struct pl_model *m, const struct pl_weight *w, const struct pl_weight *bias,
                                const struct pl_activation *from, struct pl_activation *y) PL_MUST_CHECK;
/* x += residual_scale (from w^T + bias). Anything but the plain sum goes by way of m->h. */
enum pl_status pl_layer_project_add(struct pl_model *m, const struct pl_weight *w, const struct pl_weight *bias,
                                    const struct pl_activation *from, struct pl_activation *x) PL_MUST_CHECK;
/* x += scale (from w^T + bias) */
enum pl_status pl_layer_project_add_scaled(struct pl_model *m, const struct pl_weight *w, const struct pl_weight *bias,
                                           const struct pl_activation *from, struct pl_activation *x,
                                           float scale) PL_MUST_CHECK;
/* m->g = act(gate(from)) * up(from): the inner half of a gated MLP. */
enum pl_status pl_layer_gated(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *from) PL_MUST_CHECK;
/* The second half of a pre-norm layer: x += a o^T, x += mlp(norm(x)). */
enum pl_status pl_layer_finish(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *a,
                               struct pl_activation *x) PL_MUST_CHECK;
/* The same with a norm more after each half: x += norm(a o^T), x += norm(mlp(norm(x))). RMS norms. */
enum pl_status pl_layer_finish_sandwich(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *a,
                                        struct pl_activation *x) PL_MUST_CHECK;
/* The second half where norms stand after its parts alone: x += norm(a o^T), x += norm(mlp(x)). RMS norms. */
enum pl_status pl_layer_finish_after(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *a,
                                     struct pl_activation *x) PL_MUST_CHECK;
/* The second half with experts instead of the MLP, in the layers that have them. */
enum pl_status pl_layer_finish_moe(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *a,
                                   struct pl_activation *x) PL_MUST_CHECK;
/* x += mlp(norm(x)), or experts and the one that always counts. */
enum pl_status pl_layer_mixture(struct pl_model *m, const struct pl_layer *w, struct pl_activation *x) PL_MUST_CHECK;
/* How the experts of a layer are mixed. */
struct pl_moe pl_layer_moe(const struct pl_model *m, const struct pl_layer *w);
/* The first half: queries, keys and values of norm(x), and attention. */
enum pl_status pl_layer_attend(struct pl_model *m, uint32_t l, const struct pl_layer *w,
                               struct pl_activation *x) PL_MUST_CHECK;

/* --- layer_ssm.c --- */
/* m->y = a state-space layer's result for norm(x), before its output product. */
enum pl_status pl_layer_ssm(struct pl_model *m, uint32_t l, const struct pl_layer *w, struct pl_activation *x) PL_MUST_CHECK;
/* The same for what m->h holds, normed already. */
enum pl_status pl_layer_ssm_normed(struct pl_model *m, uint32_t l, const struct pl_layer *w) PL_MUST_CHECK;
/* x += y_now ssm_out^T */
enum pl_status pl_layer_finish_ssm(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *a,
                                   struct pl_activation *x) PL_MUST_CHECK;

/* The second half of a layer of either kind: x += y_now ssm_out^T or a o^T, x += mlp(norm(x)) or experts instead of it. */
enum pl_status pl_layer_finish_hybrid(struct pl_model *m, const struct pl_layer *w, const struct pl_activation *a,
                                      struct pl_activation *x) PL_MUST_CHECK;
/* Layer l's convolution over its part of the state. */
struct pl_conv pl_layer_convolution(const struct pl_model *m, uint32_t l, const struct pl_layer *w);

/* --- config_ssm.c: what both readers ask for where def->ssm is not NONE --- */
enum pl_status pl_config_ssm_hf(const json_t *o, struct pl_model_config *c, struct pl_err *err) PL_MUST_CHECK;
/* Which layers have what, and the rest of what hybrids say; after everything else was read. */
enum pl_status pl_config_ssm_layers(const struct pl_file *f, const json_t *o, struct pl_model_config *c,
                                    struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_config_ssm_gguf(const struct pl_file *f, const char *arch, struct pl_model_config *c,
                                  struct pl_err *err) PL_MUST_CHECK;
/* Ranges, and which layer is which of its kind; for all models. */
enum pl_status pl_config_ssm_check(struct pl_model_config *c, struct pl_err *err) PL_MUST_CHECK;
/* How many layers the configuration's list of what each layer is names (Nemotron-H); 0: it has none. */
uint32_t pl_hf_listed_layers(const json_t *o);
/* config_hf.c, config_gguf.c: typed access. missing < min: the field must be there. */
enum pl_status pl_hf_u32(const json_t *o, const char *name, uint32_t min, uint32_t max, uint32_t missing, uint32_t *out,
                         struct pl_err *err) PL_MUST_CHECK;
/* Entry i of a list of whole numbers. */
enum pl_status pl_hf_entry(const json_t *list, const char *name, size_t i, double *out, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_hf_f32(const json_t *o, const char *name, double missing, float *out, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_hf_bool(const json_t *o, const char *name, bool missing, bool *out, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_gguf_key_u32(const struct pl_file *f, const char *arch, const char *name, uint32_t min, uint32_t max,
                               uint32_t missing, uint32_t *out, struct pl_err *err) PL_MUST_CHECK;

/* --- config.c --- */
enum pl_status pl_config_read_gguf(const struct pl_file *f, struct pl_model_config *c, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_config_read_hf(const struct pl_file *f, struct pl_model_config *c, struct pl_err *err) PL_MUST_CHECK;
const struct pl_arch_def *pl_arch_def(enum pl_arch a);
/* The float of c that the field names. */
static inline float *pl_field_slot(struct pl_model_config *c, const struct pl_arch_field *f) {
    return (float *)(void *)((char *)c + f->slot);
}
/* Ranges used by both readers. */
#define PL_WIDTH_MAX   (1u << 20)
#define PL_MLP_MAX     (1u << 22)
#define PL_HEADS_MAX   4096u
#define PL_HEAD_MAX    ((uint32_t)PL_MODEL_HEAD_MAX)
#define PL_EXPERTS_MAX 4096u
#define PL_VOCAB_MAX   (1u << 24)
#define PL_CONTEXT_MAX (1u << 28)

/* --- names.c: where a checkpoint keeps its tensors --- */
/* "model.", "language_model.model.", ...: what precedes embed_tokens.weight in a Hugging Face checkpoint. NULL: none. */
const char *pl_hf_prefix(const struct pl_file *f);
bool pl_hf_has_head(const struct pl_file *f); /* an output matrix of its own */
/* That matrix and the embeddings are floats of one type and shape with different bytes. */
bool pl_hf_head_differs(const struct pl_file *f);
/* The full name of the tensor, or of the fused one it is part of, into buf; empty where this file kind has none; false when
 * it does not fit. */
bool pl_binding_name(const struct pl_file *f, const struct pl_arch_def *def, const char *prefix, const struct pl_binding *b,
                     bool fused, uint32_t layer, char *buf, size_t cap);

#endif
