/* DeepSeek-V2, V2-Lite and V3 (DeepSeek-AI 2024): latent attention, a few plain layers, then mixtures of small experts
 * beside ones that always count. Published configurations say how the router chooses.
 *
 * All heads share one key a token, the normed latent c and a rotated part r. Of each head q.(W_K c) = (W_K^T q).c and
 * sum p (W_V c) = W_V (sum p c): queries go into the latents' terms, attention is over latents, and its result comes back;
 * or, for many rows, keys and values of each head are made from the latents.
 */
#include <math.h>

#include "model/arch.h"

#define HEADS(field, gguf_name, PART)                                                                                       \
    {                                                                                                                       \
        .gguf = gguf_name, .hf = "self_attn.kv_b_proj.weight", .per_layer = true, .slot = offsetof(struct pl_layer, field), \
        .use = PL_WEIGHT_HEADS, .part = PL_PART_##PART, .gguf_fused = "attn_kv_b.weight",                                   \
        .hf_fused = PL_PART_##PART == PL_PART_K ? "self_attn.embed_q.weight" : "self_attn.unembed_out.weight"               \
    }
#define MATRIX(field, gguf_name, hf_name, ROWS, COLS, NEED) \
    PL_BIND_MATRIX(field, gguf_name, hf_name, ROWS, COLS, NEED, MATRIX)
#define VECTOR(field, gguf_name, hf_name, COLS, NEED) PL_LAYER_VECTOR(field, gguf_name, hf_name, COLS, NEED)

static const struct pl_binding bindings[] = {
    PL_BIND_EMBED,
    PL_BIND_OUT_NORM,
    PL_BIND_HEAD,
    PL_BIND_ATTN_NORM,
    MATRIX(q, "attn_q.weight", "self_attn.q_proj.weight", HQ, E, NO_QUERY_RANK),
    MATRIX(q_a, "attn_q_a.weight", "self_attn.q_a_proj.weight", QL, E, QUERY_RANK),
    VECTOR(q_a_norm, "attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight", QL, QUERY_RANK),
    MATRIX(q_b, "attn_q_b.weight", "self_attn.q_b_proj.weight", HQ, QL, QUERY_RANK),
    MATRIX(kv_a, "attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight", KR, E, ALWAYS),
    VECTOR(kv_a_norm, "attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight", KL, ALWAYS),
    HEADS(k_heads, "attn_k_b.weight", K),
    HEADS(v_heads, "attn_v_b.weight", V),
    MATRIX(o, "attn_output.weight", "self_attn.o_proj.weight", E, HV, ALWAYS),
    PL_BIND_MLP_NORM("post_attention_layernorm.weight"),
    PL_BIND_DENSE_MLP,
    PL_BIND_EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    PL_BIND_SHARED_EXPERTS,
};

static enum pl_status check(struct pl_model_config *c, struct pl_err *err) {
    if (c->qkv_bias || c->mlp_bias)
        PL_FAIL(err, PL_UNSUPPORTED, "biases in the attention or the MLP of a %s model are not implemented",
                pl_arch_name(c->arch));
    double scale = 1 / sqrt((double)c->nope_dim + c->rope_dim);
    double m = c->rope_scaling == PL_ROPE_YARN && c->rope_factor > 1
                   ? 0.1 * (double)c->mscale_all * log((double)c->rope_factor) + 1
                   : 1;
    c->attn_scale = (float)(scale * m * m);
    if (!(c->attn_scale > 0) || !isfinite(c->attn_scale))
        PL_FAIL(err, PL_FORMAT, "mscale_all_dim %g gives no attention scale", (double)c->mscale_all);
    return PL_OK;
}

static enum pl_status queries(struct pl_model *m, const struct pl_layer *w) {
    if (w->q_a == NULL) {
        const struct pl_weight *in[] = {w->q, w->kv_a};
        struct pl_activation *out[] = {m->q, m->k};
        return pl_ops_linear(m->ops, 2, in, NULL, m->h, out);
    }
    const struct pl_weight *in[] = {w->q_a, w->kv_a};
    struct pl_activation *out[] = {m->ql, m->k};
    PL_TRY(pl_ops_linear(m->ops, 2, in, NULL, m->h, out));
    PL_TRY(pl_ops_norm(m->ops, m->ql, w->q_a_norm, m->cfg.latent_eps, 0, m->ql));
    return pl_layer_project(m, w->q_b, NULL, m->ql, m->q);
}

static enum pl_status attend(struct pl_model *m, uint32_t l, const struct pl_layer *w, struct pl_activation *x) {
    const struct pl_model_config *c = &m->cfg;
    const struct pl_latent latent = {
        .layer = l, .heads = c->heads, .norm = w->kv_a_norm, .norm_eps = c->latent_eps, .rope = m->rope};
    const struct pl_attention attention = {.layer = l, .heads = c->heads, .scale = c->attn_scale};
    PL_TRY(pl_layer_norm(m, x, w->attn_norm, NULL, m->h));
    PL_TRY(queries(m, w));
    const struct pl_latent_heads heads = {w->k_heads, w->v_heads};
    PL_TRY(pl_ops_latent_append(m->ops, &latent, m->q, m->k, m->qa));
    return pl_ops_latent_attention(m->ops, &attention, &heads, m->q, m->qa, m->latent, m->a);
}

#define DEEPSEEK                                                                                                          \
    {                                                                                                                     \
        .gguf_pairs = true, .hf_pairs = true, .moe = true, .latent = true, .deepseek_moe = true,                          \
        .biases = {{"attention_bias", false, PL_BIAS_QKV | PL_BIAS_O}, {"mlp_bias", false, PL_BIAS_MLP}}, .check = check, \
        .bindings = bindings, .binding_count = PL_COUNT_OF(bindings), .attend = attend, .finish = pl_layer_finish_moe,    \
    }
const struct pl_arch_def pl_deepseek_v2_def = DEEPSEEK;
const struct pl_arch_def pl_deepseek_v3_def = DEEPSEEK;
