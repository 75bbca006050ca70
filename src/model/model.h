/* model - architectures. One file each: config check, weight binding, a forward pass that reads like the paper.
 *
 * pl_model_open reads the configuration of either file kind into one struct, checks every tensor's shape against it,
 * binds weights on the backend and prepares rotary tables up to max_context. Unknown architectures, and known ones
 * with features that are not implemented, are refused with the list of what is known. */
#ifndef PL_MODEL_MODEL_H
#define PL_MODEL_MODEL_H

#include "file/file.h"
#include "ops/ops.h"

enum pl_arch {
    PL_ARCH_LLAMA,
    PL_ARCH_MISTRAL,
    PL_ARCH_MINISTRAL,
    PL_ARCH_MINISTRAL3,
    PL_ARCH_QWEN2,
    PL_ARCH_QWEN3,
    PL_ARCH_GEMMA2,
    PL_ARCH_GEMMA3,
    PL_ARCH_PHI3,
    PL_ARCH_SMOLLM3,
    PL_ARCH_GRANITE,
    PL_ARCH_OLMO2,
    PL_ARCH_OLMO3,
    PL_ARCH_STARCODER2,
    PL_ARCH_COHERE,
    PL_ARCH_COHERE2,
    PL_ARCH_GLM,
    PL_ARCH_GLM4,
    PL_ARCH_GLM4_MOE,
    PL_ARCH_GEMMA,
    PL_ARCH_EXAONE4,
    PL_ARCH_ERNIE4_5,
    PL_ARCH_SEED_OSS,
    PL_ARCH_STABLELM,
    PL_ARCH_GRANITE_MOE,
    PL_ARCH_QWEN2_MOE,
    PL_ARCH_QWEN3_MOE,
    PL_ARCH_MIXTRAL,
    PL_ARCH_OLMOE,
    PL_ARCH_GPT_OSS,
    PL_ARCH_DEEPSEEK_V2,
    PL_ARCH_DEEPSEEK_V3,
    PL_ARCH_MAMBA,
    PL_ARCH_FALCON_MAMBA,
    PL_ARCH_MAMBA2,
    PL_ARCH_GRANITE_HYBRID,
    PL_ARCH_FALCON_H1,
    PL_ARCH_JAMBA,
    PL_ARCH_NEMOTRON_H,
    PL_ARCH_PLAMO2,
    PL_ARCH_QWEN3_NEXT,
    PL_ARCH_QWEN3_5,
    PL_ARCH_QWEN3_5_MOE,
    PL_ARCH_LFM2,
    PL_ARCH_LFM2_MOE,
    PL_ARCH_BITNET,
    PL_ARCH_BITNET_SILU,
    PL_ARCH_COUNT /* the last: one line each */
};

enum pl_rope_scaling { PL_ROPE_NONE, PL_ROPE_LINEAR, PL_ROPE_LLAMA3, PL_ROPE_YARN, PL_ROPE_LONG, PL_ROPE_DYNAMIC };

enum { PL_MODEL_LAYERS_MAX = 512, PL_MODEL_HEAD_MAX = 1024 };

enum pl_ssm_kind { PL_SSM_NONE, PL_SSM_MAMBA, PL_SSM_MAMBA2, PL_SSM_HEADS, PL_SSM_CONV, PL_SSM_DELTA };
/* State-space layers, all of one shape. Mamba: every channel is a head of size 1 with decays of its own for each of N.
 * Heads (PLaMo 2): as Mamba makes its inputs, with Mamba-2's heads and decays. Conv (LFM2): a gated convolution and no other
 * state: N is 0. Delta (Qwen3-Next): the gated delta rule; G key heads of N, H value heads of P, q, k and v through the
 * convolution. */
struct pl_ssm_config {
    enum pl_ssm_kind kind;
    uint32_t inner, heads, head_dim, groups, state, conv, dt_rank; /* I = H * P, G, N, K; dt_rank: not Mamba-2 */
    float dt_min, dt_max;                                          /* of a step */
    bool bcdt_norm;                                                /* RMS norms on dt, B and C, */
    float bcdt_eps;
    float scale[5], out_scale;        /* of z, x, B, C, dt as they come in, of what goes out; 1: none */
    bool in_turn;                     /* delta: the key head of value head h is h mod G, not h / (H / G) */
    bool conv_bias, norm, norm_first; /* norm: RMS norm of groups with the gate, before which it comes with norm_first */
};

/* Channels of the convolution: what it makes is I wide, or I and two times G * N. */
static inline uint64_t pl_ssm_channels(const struct pl_ssm_config *s) {
    bool both = s->kind == PL_SSM_MAMBA2 || s->kind == PL_SSM_DELTA;
    return s->inner + (both ? 2 * (uint64_t)s->groups * s->state : 0);
}

/* Letters as in docs: L layers, E width, F MLP width, H query heads, G KV heads, D head size, V vocabulary. */
struct pl_model_config {
    enum pl_arch arch;
    uint32_t layers, width, mlp_width, heads, kv_heads, head_dim, vocab, context_train;
    bool layer_norm;                   /* norms take the mean away too; else RMS */
    float norm_eps, norm_offset;       /* offset 1: weights are stored as (w - 1) */
    float residual_scale, logit_scale; /* 1: none */
    float embed_scale;                 /* 1, or sqrt(E) for Gemma */
    float attn_scale;                  /* usually 1/sqrt(D) */
    float attn_softcap, logit_softcap; /* 0: none */
    float rope_base, rope_base_local;  /* local: layers with a window, where they differ */
    uint32_t rope_dim;
    bool rope_halves; /* pairs (i, i+dim/2); GGUF Llama stores adjacent pairs */
    enum pl_rope_scaling rope_scaling;
    float rope_factor, rope_low_freq, rope_high_freq, rope_attn_factor, rope_beta_fast, rope_beta_slow;
    uint32_t context_limit; /* attention scales by position from here on, which is not implemented; 0: nowhere */
    bool rope_truncate;     /* YaRN: the ramp's ends are rounded to whole dimensions */
    bool rope_freq_tensor;  /* GGUF: rope_freqs.weight divides the frequencies */
    uint32_t rope_context_orig;
    float rope_short[PL_MODEL_HEAD_MAX / 2], rope_long[PL_MODEL_HEAD_MAX / 2]; /* LongRoPE: divisors up to and past it */
    uint32_t window;                                                           /* sliding window, 0: no layer has one */
    bool layer_windowed[PL_MODEL_LAYERS_MAX];                                  /* which layers use it */
    bool layer_nope[PL_MODEL_LAYERS_MAX];                                      /* which layers do not rotate */
    enum pl_ops_act mlp_act;
    bool tied_embeddings;
    uint32_t experts, experts_used, expert_width, shared_width; /* mixture of experts; shared: one that always counts */
    bool experts_renormalise;                                   /* weights of the chosen ones add up to 1 */
    float swiglu_limit;                                         /* of gpt-oss's experts; 0: the file does not say */
    bool layer_moe[PL_MODEL_LAYERS_MAX];
    bool experts_sigmoid, experts_bias;                    /* scores; a bias that counts for the choice alone */
    float experts_scale;                                   /* of their weights; 1: none */
    uint32_t expert_groups, groups_used, expert_group_top; /* struct pl_moe; 0: none */
    /* Latent attention (MLA). latent > 0: G = 1, D = latent + rope_dim, and a key's first `latent` numbers are its value. */
    uint32_t latent, query_rank;  /* query_rank 0: queries by one product */
    uint32_t nope_dim, value_dim; /* of a head: what does not rotate, what its values have */
    float latent_eps, mscale_all; /* of the norms on the ranks; YaRN: attention scales by its square as well, 0: not */
    bool qkv_bias, o_bias, mlp_bias, qk_norm;
    bool attn_gate;        /* attention's result is multiplied by sigmoids of products of their own (Qwen3-Next) */
    uint32_t extra_layers; /* GGUF: of the file, past `layers`, which predict more tokens and are not used */
    float qk_eps;          /* of norms by heads on queries and keys whose weights differ from head to head */
    struct pl_ssm_config ssm;
    float attn_in_scale, attn_key_scale, attn_out_scale, ssm_in_scale, gate_scale, down_scale; /* Falcon-H1's; 1: none */
    bool layer_ssm[PL_MODEL_LAYERS_MAX], layer_no_attention[PL_MODEL_LAYERS_MAX];
    uint16_t layer_kv[PL_MODEL_LAYERS_MAX], layer_state[PL_MODEL_LAYERS_MAX]; /* of those with either, which one it is */
    uint32_t kv_layers, state_layers;
    bool ternary_multiplies,
        ternary_online; /* safetensors of BitNet: by weight_scale, not its inverse; rounded while loading */
};

struct pl_model;

enum pl_status pl_model_config_read(const struct pl_file *f, struct pl_model_config *out, struct pl_err *err) PL_MUST_CHECK;
/* What the cache of this model is made of: layers, heads, and values of recurrent state; the rest of *out stays. */
void pl_model_cache_shape(const struct pl_model_config *c, struct pl_kv_shape *out);
const char *pl_arch_name(enum pl_arch a);
/* "llama, mistral, ...": for messages. Static. */
const char *pl_arch_list(void);

struct pl_model_options {
    uint32_t max_context;                                                    /* rows of rotary tables; 0 = context_train */
    uint32_t max_rows;                                                       /* rows of one step */
    uint32_t max_logits;                                                     /* logit rows of one step */
    void (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL */
    void *progress_user;
    const struct pl_model_config *config; /* as read from this file already; NULL: it is read here */
};
/* f and o must outlive the model. */
enum pl_status pl_model_create(const struct pl_file *f, struct pl_ops *o, const struct pl_model_options *opt,
                               struct pl_model **out, struct pl_err *err) PL_MUST_CHECK;
void pl_model_destroy(struct pl_model *m);
const struct pl_model_config *pl_model_config(const struct pl_model *m);
/* One step. PL_INVALID: a token outside the vocabulary or an inconsistent batch; PL_LIMIT: more rows, logits or positions
 * than the model was made for. Logits of the batch's logit rows stay in *logits [logit_count, V] until the next step. */
enum pl_status pl_model_forward(struct pl_model *m, const struct pl_batch *b, struct pl_kv_store *kv,
                                const struct pl_activation **logits) PL_MUST_CHECK;
/* What a model of this config needs, before anything is allocated. */
struct pl_memory_budget {
    uint64_t weight_bytes_mapped;   /* in the file */
    uint64_t weight_bytes_owned;    /* the most that repacked copies can take */
    uint64_t weight_bytes_resident; /* the most that stays in memory: a weight is a view or a copy, never both */
    uint64_t kv_bytes, scratch_bytes;
};
/* kv may be NULL. PL_LIMIT: the sums overflow. */
enum pl_status pl_model_budget(const struct pl_file *f, const struct pl_model_config *c, const struct pl_model_options *opt,
                               const struct pl_kv_shape *kv, struct pl_memory_budget *out, struct pl_err *err) PL_MUST_CHECK;
/* Private copies this model really holds (weights, rotary tables, activations). */
uint64_t pl_model_bytes_owned(const struct pl_model *m);

#endif
