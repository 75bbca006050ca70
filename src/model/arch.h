/* arch - what an architecture file provides, and the bound model it works on. Private to this folder. */
#ifndef PL_MODEL_ARCH_H
#define PL_MODEL_ARCH_H

#include "model/model.h"

/* All weights that one layer of any known architecture has; NULL where this model has none. */
struct pl_layer {
    struct pl_weight *attn_norm, *q, *k, *v, *q_bias, *k_bias, *v_bias, *q_norm, *k_norm;
    struct pl_weight *o, *o_bias, *post_attn_norm;
    struct pl_weight *mlp_norm, *gate, *up, *down, *gate_bias, *up_bias, *down_bias, *post_mlp_norm;
};

struct pl_model {
    struct pl_model_config cfg;
    const struct pl_arch_def *def;
    struct pl_ops *ops;
    uint32_t max_rows, max_logits, max_context;
    uint64_t bytes_owned;

    struct pl_weight *embed, *out_norm;
    struct pl_weight *head; /* NULL while tied: the embedding serves both */
    struct pl_layer *layers;
    struct pl_rope *rope, *rope_local; /* local: NULL where windowed layers rotate like the others */

    /* Activations. x residual stream, h normalised, q k v, a attention result, g u MLP inner. */
    struct pl_activation *x, *h, *q, *k, *v, *a, *g, *u;
    struct pl_activation *x_out, *a_out, *logits; /* logit rows only */
};

enum pl_dim { PL_DIM_NONE, PL_DIM_E, PL_DIM_F, PL_DIM_V, PL_DIM_HD, PL_DIM_GD, PL_DIM_D };
enum pl_need { PL_NEED_ALWAYS, PL_NEED_UNTIED, PL_NEED_QKV_BIAS, PL_NEED_O_BIAS, PL_NEED_MLP_BIAS };

/* One weight: its name in either file kind, its shape in letters, and where it goes. Names of layer weights are relative
 * to the layer ("blk.7." or "model.layers.7."). rows PL_DIM_NONE: a vector of cols. */
struct pl_binding {
    const char *gguf, *hf;
    bool per_layer;
    size_t slot; /* offsetof in struct pl_model, or in struct pl_layer when per_layer */
    enum pl_weight_use use;
    enum pl_dim rows, cols;
    enum pl_need need;
};

struct pl_arch_def {
    enum pl_status (*check)(const struct pl_model_config *c, struct pl_err *err); /* what this architecture adds */
    const struct pl_binding *bindings;
    size_t binding_count;
    enum pl_status (*forward)(struct pl_model *m);
};
extern const struct pl_arch_def pl_llama_def, pl_qwen2_def, pl_qwen3_def, pl_gemma3_def;

/* Rows of the tables; dimensions and needs by their short names. */
#define PL_MODEL_WEIGHT(slot, gguf, hf, use, rows, cols, need) \
    { gguf, hf, false, offsetof(struct pl_model, slot), PL_WEIGHT_##use, PL_DIM_##rows, PL_DIM_##cols, PL_NEED_##need }
#define PL_LAYER_MATRIX(slot, gguf, hf, rows, cols) \
    { gguf, hf, true, offsetof(struct pl_layer, slot), PL_WEIGHT_MATRIX, PL_DIM_##rows, PL_DIM_##cols, PL_NEED_ALWAYS }
#define PL_LAYER_VECTOR(slot, gguf, hf, cols, need) \
    { gguf, hf, true, offsetof(struct pl_layer, slot), PL_WEIGHT_VECTOR, PL_DIM_NONE, PL_DIM_##cols, PL_NEED_##need }

/* --- bind.c --- */
enum pl_status pl_model_bind(struct pl_model *m, const struct pl_file *f, const struct pl_model_options *opt,
                             struct pl_err *err) PL_MUST_CHECK;
void pl_model_unbind(struct pl_model *m);

/* --- rope.c --- */
enum pl_status pl_model_make_ropes(struct pl_model *m, const struct pl_file *f, struct pl_err *err) PL_MUST_CHECK;
/* Angle per position of each of the rope_dim/2 pairs, and the factor on cosine and sine. divisors: [rope_dim/2] or
 * NULL. local: the table of windowed layers. */
void pl_rope_frequencies(const struct pl_model_config *c, bool local, const float *divisors, double *freq,
                         double *magnitude);

/* --- helpers of forward passes (model.c) --- */
static inline const struct pl_rope *pl_layer_rope(const struct pl_model *m, uint32_t l) {
    return m->rope_local != NULL && m->cfg.layer_windowed[l] ? m->rope_local : m->rope;
}
static inline uint32_t pl_layer_window(const struct pl_model *m, uint32_t l) {
    return m->cfg.layer_windowed[l] ? m->cfg.window : 0;
}
/* From the last layer's attention on only the rows whose logits are wanted matter: gathers *x and *a into their small
 * twins and points there. Before the last layer it does nothing. */
enum pl_status pl_model_keep_logit_rows(struct pl_model *m, uint32_t layer, struct pl_activation **x,
                                        struct pl_activation **a) PL_MUST_CHECK;
/* Final norm and output product over the kept rows. */
enum pl_status pl_model_output(struct pl_model *m, struct pl_activation *x) PL_MUST_CHECK;

/* --- config.c --- */
enum pl_status pl_config_read_gguf(const struct pl_file *f, struct pl_model_config *c, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_config_read_hf(const struct pl_file *f, struct pl_model_config *c, struct pl_err *err) PL_MUST_CHECK;
const struct pl_arch_def *pl_arch_def(enum pl_arch a);
/* Ranges used by both readers. */
#define PL_WIDTH_MAX   (1u << 20)
#define PL_MLP_MAX     (1u << 22)
#define PL_HEADS_MAX   4096u
#define PL_HEAD_MAX    1024u
#define PL_VOCAB_MAX   (1u << 24)
#define PL_CONTEXT_MAX (1u << 28)

/* --- names.c: where a checkpoint keeps its tensors --- */
/* "model.", "language_model.model.", ...: what precedes embed_tokens.weight in a Hugging Face checkpoint. NULL: none. */
const char *pl_hf_prefix(const struct pl_file *f);
/* The tensor's full name into buf; false when it does not fit. */
bool pl_binding_name(const struct pl_file *f, const char *prefix, const struct pl_binding *b, uint32_t layer, char *buf,
                     size_t cap);

#endif
