/* Configuration from GGUF metadata: "<arch>.block_count" and its siblings. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "file/show.h"
#include "model/arch.h"
#include "tensor/quant.h"

static const struct {
    const char *name;
    enum pl_arch arch;
} gguf_archs[] = {
    {"llama", PL_ARCH_LLAMA},
    {"mistral3", PL_ARCH_MISTRAL},
    {"qwen2", PL_ARCH_QWEN2},
    {"qwen3", PL_ARCH_QWEN3},
    {"qwen2vl", PL_ARCH_QWEN2},
    {"qwen3vl", PL_ARCH_QWEN3},
    {"qwen3vlmoe", PL_ARCH_QWEN3_MOE},
    {"gemma2", PL_ARCH_GEMMA2},
    {"gemma3", PL_ARCH_GEMMA3},
    {"phi3", PL_ARCH_PHI3},
    {"smollm3", PL_ARCH_SMOLLM3},
    {"granite", PL_ARCH_GRANITE},
    {"olmo2", PL_ARCH_OLMO2},
    {"starcoder2", PL_ARCH_STARCODER2},
    {"command-r", PL_ARCH_COHERE},
    {"cohere2", PL_ARCH_COHERE2},
    {"chatglm", PL_ARCH_GLM},
    {"glm4", PL_ARCH_GLM4},
    {"glm4moe", PL_ARCH_GLM4_MOE},
    {"gemma", PL_ARCH_GEMMA},
    {"exaone4", PL_ARCH_EXAONE4},
    {"ernie4_5", PL_ARCH_ERNIE4_5},
    {"seed_oss", PL_ARCH_SEED_OSS},
    {"stablelm", PL_ARCH_STABLELM},
    {"granitemoe", PL_ARCH_GRANITE_MOE},
    {"qwen2moe", PL_ARCH_QWEN2_MOE},
    {"qwen3moe", PL_ARCH_QWEN3_MOE},
    {"olmoe", PL_ARCH_OLMOE},
    {"gpt-oss", PL_ARCH_GPT_OSS},
    {"deepseek2", PL_ARCH_DEEPSEEK_V2},
    {"mamba", PL_ARCH_MAMBA},
    {"mamba2", PL_ARCH_MAMBA2},
    {"granitehybrid", PL_ARCH_GRANITE_HYBRID},
    {"falcon-h1", PL_ARCH_FALCON_H1},
    {"jamba", PL_ARCH_JAMBA},
    {"nemotron_h", PL_ARCH_NEMOTRON_H},
    {"nemotron_h_moe", PL_ARCH_NEMOTRON_H},
    {"plamo2", PL_ARCH_PLAMO2},
    {"qwen3next", PL_ARCH_QWEN3_NEXT},
    {"qwen35", PL_ARCH_QWEN3_5},
    {"qwen35moe", PL_ARCH_QWEN3_5_MOE},
    {"lfm2", PL_ARCH_LFM2},
    {"lfm2moe", PL_ARCH_LFM2_MOE},
    {"bitnet", PL_ARCH_BITNET_SILU},
    {"bitnet-b1.58", PL_ARCH_BITNET},
};

struct reader {
    const struct pl_file *f;
    const struct pl_arch_def *def;
    char arch[64];
    struct pl_err *err;
    char key[160];
};

static const char *key_of(struct reader *r, const char *name) {
    snprintf(r->key, sizeof r->key, "%s.%s", r->arch, name);
    return r->key;
}

/* An integer in [min, max]. found NULL: the key must be there; else *found says whether it is. */
static enum pl_status read_u32(struct reader *r, const char *name, uint32_t min, uint32_t max, uint32_t *out, bool *found) {
    uint64_t v;
    enum pl_status st = pl_gguf_u64(r->f, key_of(r, name), &v, r->err);
    if (found != NULL) *found = st == PL_OK;
    if (st == PL_NOT_FOUND) {
        if (found != NULL) return PL_OK;
        PL_FAIL(r->err, PL_FORMAT, "metadata key %s is missing", r->key);
    }
    if (st != PL_OK) return st;
    if (v < min || v > max)
        PL_FAIL(r->err, PL_FORMAT, "metadata key %s is %llu; %u to %u was expected", r->key, (unsigned long long)v, min,
                max);
    *out = (uint32_t)v;
    return PL_OK;
}

/* A finite number; *out stays when the key is absent. */
static enum pl_status read_f32(struct reader *r, const char *name, float *out) {
    double v;
    enum pl_status st = pl_gguf_f64(r->f, key_of(r, name), &v, r->err);
    if (st == PL_NOT_FOUND) return PL_OK;
    if (st != PL_OK) return st;
    if (!(fabs(v) <= 3e38)) PL_FAIL(r->err, PL_FORMAT, "metadata key %s is %g; a finite number was expected", r->key, v);
    *out = (float)v;
    return PL_OK;
}

static enum pl_status read_arch(struct reader *r, enum pl_arch *out) {
    struct pl_str name;
    enum pl_status st = pl_gguf_str(r->f, "general.architecture", &name, r->err);
    if (st == PL_NOT_FOUND) PL_FAIL(r->err, PL_FORMAT, "metadata key general.architecture is missing");
    if (st != PL_OK) return st;
    for (size_t i = 0; i < PL_COUNT_OF(gguf_archs); i++) {
        if (!pl_str_eq_c(name, gguf_archs[i].name)) continue;
        snprintf(r->arch, sizeof r->arch, "%s", gguf_archs[i].name);
        *out = gguf_archs[i].arch;
        r->def = pl_arch_def(*out);
        return PL_OK;
    }
    PL_FAIL(r->err, PL_UNSUPPORTED, "architecture '%s' is not implemented; known: %s", pl_shown(name).s, pl_arch_list());
}

/* Latent attention. Newer files say the sizes of a head apart (key_length_mla) from those of the one key that all share. */
static enum pl_status read_latent(struct reader *r, struct pl_model_config *c) {
    bool found;
    uint32_t key = 0;
    PL_TRY(read_u32(r, "attention.q_lora_rank", 0, PL_WIDTH_MAX, &c->query_rank, &found));
    PL_TRY(read_u32(r, "attention.kv_lora_rank", 1, PL_HEAD_MAX, &c->latent, NULL));
    PL_TRY(read_u32(r, "rope.dimension_count", 2, PL_HEAD_MAX, &c->rope_dim, NULL));
    PL_TRY(read_u32(r, "attention.key_length_mla", 1, PL_HEAD_MAX, &key, &found));
    if (!found) PL_TRY(read_u32(r, "attention.key_length", 1, PL_HEAD_MAX, &key, NULL));
    if (key <= c->rope_dim || c->latent + c->rope_dim > PL_HEAD_MAX)
        PL_FAIL(r->err, PL_FORMAT, "keys of %u, of which %u rotate, from latents of %u: that cannot be", key, c->rope_dim,
                c->latent);
    c->nope_dim = key - c->rope_dim;
    PL_TRY(read_u32(r, "attention.value_length_mla", 1, PL_HEAD_MAX, &c->value_dim, &found));
    if (!found) PL_TRY(read_u32(r, "attention.value_length", 1, PL_HEAD_MAX, &c->value_dim, NULL));
    c->kv_heads = 1;
    c->head_dim = c->latent + c->rope_dim;
    return PL_OK;
}

/* Falcon-Mamba is a mamba with norms on dt, B and C. */
static enum pl_status read_variant(struct reader *r, struct pl_model_config *c) {
    if (c->arch != PL_ARCH_MAMBA) return PL_OK;
    enum pl_status st = pl_gguf_bool(r->f, key_of(r, "ssm.dt_b_c_rms"), &c->ssm.bcdt_norm, r->err);
    if (st != PL_OK && st != PL_NOT_FOUND) return st;
    if (c->ssm.bcdt_norm) c->arch = PL_ARCH_FALCON_MAMBA;
    r->def = pl_arch_def(c->arch);
    return PL_OK;
}

/* A list of one integer for each layer; flags: of bools too. */
static enum pl_status check_list(struct reader *r, const struct pl_gguf_value *v, uint32_t layers, bool flags) {
    if (!pl_gguf_is_integer(v->elem_type) && !(flags && v->elem_type == PL_GGUF_BOOL))
        PL_FAIL(r->err, PL_FORMAT, "metadata key %s is a list of %s; integers%s were expected", r->key,
                pl_gguf_type_name(v->elem_type), flags ? " or bools" : "");
    if (v->count != layers)
        PL_FAIL(r->err, PL_FORMAT, "metadata key %s has %llu entries; one number per layer (%u) was expected", r->key,
                (unsigned long long)v->count, layers);
    return PL_OK;
}

/* Written as one number, or as one for each layer: all the same. */
static enum pl_status read_same(struct reader *r, const char *name, uint32_t layers, uint32_t max, uint32_t *out,
                                bool *found) {
    const struct pl_gguf_value *v = pl_gguf_find(r->f, key_of(r, name));
    if (v == NULL || v->type != PL_GGUF_ARRAY) return read_u32(r, name, 1, max, out, found);
    PL_TRY(check_list(r, v, layers, false));
    int64_t first = pl_gguf_elem_i64(v, 0);
    for (uint32_t l = 0; l < layers; l++)
        if (pl_gguf_elem_i64(v, l) != first)
            PL_FAIL(r->err, PL_UNSUPPORTED,
                    "metadata key %s says %lld for layer 0 and %lld for layer %u: layers of one shape "
                    "are implemented for %s",
                    r->key, (long long)first, (long long)pl_gguf_elem_i64(v, l), l, r->arch);
    if (first < 1 || first > (int64_t)max)
        PL_FAIL(r->err, PL_FORMAT, "metadata key %s is %lld; 1 to %u was expected", r->key, (long long)first, max);
    if (found != NULL) *found = true;
    *out = (uint32_t)first;
    return PL_OK;
}

/* One number; or of PLaMo 2 one for each layer, 0 where it has a state instead. */
static enum pl_status read_heads(struct reader *r, struct pl_model_config *c) {
    const struct pl_gguf_value *v = pl_gguf_find(r->f, key_of(r, "attention.head_count"));
    if (v == NULL || v->type != PL_GGUF_ARRAY || c->arch != PL_ARCH_PLAMO2)
        return read_same(r, "attention.head_count", c->layers, PL_HEADS_MAX, &c->heads, NULL);
    PL_TRY(check_list(r, v, c->layers, false));
    for (uint64_t l = 0; l < v->count; l++) {
        int64_t n = pl_gguf_elem_i64(v, l);
        if (n < 0 || n > (int64_t)PL_HEADS_MAX || (n > 0 && c->heads > 0 && n != c->heads))
            PL_FAIL(r->err, PL_FORMAT,
                    "metadata key %s says %lld for layer %llu: 0, or one number up to %u for all, was expected", r->key,
                    (long long)n, (unsigned long long)l, PL_HEADS_MAX);
        if (n > 0) c->heads = (uint32_t)n;
    }
    if (c->heads == 0) PL_FAIL(r->err, PL_FORMAT, "metadata key %s names no layer with attention", r->key);
    return PL_OK;
}

/* One number; or of hybrids one for each layer, 0 where it has a state instead. */
static enum pl_status read_kv_heads(struct reader *r, struct pl_model_config *c) {
    bool found;
    const struct pl_gguf_value *v = pl_gguf_find(r->f, key_of(r, "attention.head_count_kv"));
    if (v == NULL || v->type != PL_GGUF_ARRAY || r->def->ssm == PL_SSM_NONE) {
        PL_TRY(read_same(r, "attention.head_count_kv", c->layers, c->heads, &c->kv_heads, &found));
        if (!found) c->kv_heads = c->heads;
        return PL_OK;
    }
    PL_TRY(check_list(r, v, c->layers, false));
    for (uint32_t l = 0; l < c->layers; l++) {
        int64_t n = pl_gguf_elem_i64(v, l);
        if (n < 0 || n > c->heads || (n > 0 && c->kv_heads > 0 && n != c->kv_heads))
            PL_FAIL(r->err, PL_FORMAT,
                    "metadata key %s says %lld for layer %u: 0, or one number up to %u for all, was expected", r->key,
                    (long long)n, l, c->heads);
        if (n > 0) c->kv_heads = (uint32_t)n;
        c->layer_no_attention[l] = n == 0;
        c->layer_ssm[l] = n == 0 && !c->layer_moe[l];
        c->layer_moe[l] = false;
    }
    if (c->kv_heads == 0) c->kv_heads = c->heads;
    return PL_OK;
}

/* One number; or of Nemotron-H one for each layer, 0 where it has no MLP. */
static enum pl_status read_mlp_width(struct reader *r, struct pl_model_config *c) {
    const struct pl_gguf_value *v = pl_gguf_find(r->f, key_of(r, "feed_forward_length"));
    bool found, experts_alone = r->def->moe && !r->def->deepseek_moe && r->def->ssm == PL_SSM_NONE; /* no layer has an MLP */
    if (v == NULL || v->type != PL_GGUF_ARRAY || c->arch != PL_ARCH_NEMOTRON_H)
        return read_same(r, "feed_forward_length", c->layers, PL_MLP_MAX, &c->mlp_width, experts_alone ? &found : NULL);
    PL_TRY(check_list(r, v, c->layers, false));
    for (uint32_t l = 0; l < c->layers; l++) {
        int64_t n = pl_gguf_elem_i64(v, l);
        if (n < 0 || n > (int64_t)PL_MLP_MAX || (n > 0 && c->mlp_width > 0 && n != c->mlp_width))
            PL_FAIL(r->err, PL_FORMAT, "metadata key %s says %lld for layer %u: 0, or one number for all, was expected",
                    r->key, (long long)n, l);
        if (n > 0) c->mlp_width = (uint32_t)n;
        c->layer_moe[l] = n > 0; /* for the moment: read_kv_heads turns it into what the layer is */
    }
    return PL_OK;
}

/* GLM-4.5, Qwen3.5: the file counts them among its layers. */
static enum pl_status read_extra_layers(struct reader *r, struct pl_model_config *c) {
    bool found;
    if ((!r->def->deepseek_moe || r->def->latent) && r->def->ssm != PL_SSM_DELTA) return PL_OK;
    PL_TRY(read_u32(r, "nextn_predict_layers", 0, c->layers - 1, &c->extra_layers, &found));
    c->layers -= c->extra_layers;
    return PL_OK;
}

static enum pl_status read_sizes(struct reader *r, struct pl_model_config *c) {
    PL_TRY(read_u32(r, "block_count", 1, PL_MODEL_LAYERS_MAX, &c->layers, NULL));
    PL_TRY(read_u32(r, "embedding_length", 1, PL_WIDTH_MAX, &c->width, NULL));
    PL_TRY(read_extra_layers(r, c));
    if (r->def->no_attention) return read_u32(r, "context_length", 1, PL_CONTEXT_MAX, &c->context_train, NULL);
    PL_TRY(read_mlp_width(r, c));
    PL_TRY(read_u32(r, "context_length", 1, PL_CONTEXT_MAX, &c->context_train, NULL));
    PL_TRY(read_heads(r, c));
    if (r->def->latent) return read_latent(r, c);
    bool found;
    PL_TRY(read_kv_heads(r, c));
    PL_TRY(read_u32(r, "attention.key_length", 1, PL_HEAD_MAX, &c->head_dim, &found));
    if (!found) {
        if (c->width % c->heads != 0 || c->width / c->heads > PL_HEAD_MAX)
            PL_FAIL(r->err, PL_FORMAT, "width %u over %u heads gives no head size, and %s.attention.key_length is missing",
                    c->width, c->heads, r->arch);
        c->head_dim = c->width / c->heads;
    }
    uint32_t value_dim = c->head_dim;
    PL_TRY(read_u32(r, "attention.value_length", 1, PL_HEAD_MAX, &value_dim, &found));
    if (value_dim != c->head_dim)
        PL_FAIL(r->err, PL_UNSUPPORTED, "keys of %u and values of %u: equal head sizes are implemented", c->head_dim,
                value_dim);
    c->rope_dim = c->head_dim;
    return read_u32(r, "rope.dimension_count", 2, c->head_dim, &c->rope_dim, &found);
}

static enum pl_status read_vocab(struct reader *r, struct pl_model_config *c) {
    const struct pl_tensor *t = pl_file_tensor(r->f, "token_embd.weight");
    if (t == NULL) PL_FAIL(r->err, PL_FORMAT, "tensor token_embd.weight is missing");
    if (t->ndim != 2 || t->shape[0] == 0 || t->shape[0] > PL_VOCAB_MAX)
        PL_FAIL(r->err, PL_FORMAT,
                "tensor token_embd.weight has %llu rows in %u dimensions; a matrix of 1 to %u rows was expected",
                (unsigned long long)t->shape[0], t->ndim, PL_VOCAB_MAX);
    c->vocab = (uint32_t)t->shape[0];
    uint32_t told = c->vocab;
    bool found;
    PL_TRY(read_u32(r, "vocab_size", 1, PL_VOCAB_MAX, &told, &found));
    if (told != c->vocab) /* files of resized vocabularies: the matrix is what counts */
        pl_log("metadata key %s.vocab_size is %u but token_embd.weight has %u rows: those are used", r->arch, told,
               c->vocab);
    return PL_OK;
}

static bool has(const struct pl_file *f, const char *tensor) { return pl_file_tensor(f, tensor) != NULL; }

/* A sigmoid makes it a V3: its groups are judged by their two best experts, V2's by the best. */
static enum pl_status read_deepseek_experts(struct reader *r, struct pl_model_config *c) {
    bool found;
    uint32_t dense = 0, shared = 0, gating = r->def->latent ? 0 : 2; /* GLM-4.5 need not say it */
    PL_TRY(read_u32(r, "expert_count", 1, PL_EXPERTS_MAX, &c->experts, NULL));
    PL_TRY(read_u32(r, "expert_used_count", 1, PL_EXPERTS_MAX, &c->experts_used, NULL));
    PL_TRY(read_u32(r, "expert_feed_forward_length", 1, PL_MLP_MAX, &c->expert_width, NULL));
    PL_TRY(read_u32(r, "expert_shared_count", 0, PL_EXPERTS_MAX, &shared, &found));
    PL_TRY(read_u32(r, "leading_dense_block_count", 0, UINT32_MAX, &dense, &found));
    PL_TRY(read_u32(r, "expert_group_count", 0, PL_EXPERTS_MAX, &c->expert_groups, &found));
    PL_TRY(read_u32(r, "expert_group_used_count", 0, PL_EXPERTS_MAX, &c->groups_used, &found));
    PL_TRY(read_u32(r, "expert_gating_func", 0, UINT32_MAX, &gating, &found));
    c->experts_renormalise = r->def->renormalise;
    enum pl_status st = pl_gguf_bool(r->f, key_of(r, "expert_weights_norm"), &c->experts_renormalise, r->err);
    if (st != PL_OK && st != PL_NOT_FOUND) return st;
    float scale = 0;
    PL_TRY(read_f32(r, "expert_weights_scale", &scale));
    if (scale != 0) c->experts_scale = scale;
    if (gating > 2)
        PL_FAIL(r->err, PL_UNSUPPORTED, "experts with gating function %u: 1 (softmax) and 2 (sigmoid) are implemented",
                gating);
    if ((uint64_t)shared * c->expert_width > PL_MLP_MAX)
        PL_FAIL(r->err, PL_FORMAT, "%u shared experts of width %u: together at most %u was expected", shared,
                c->expert_width, PL_MLP_MAX);
    c->shared_width = shared * c->expert_width;
    c->experts_sigmoid = gating == 2;
    if (c->experts_sigmoid && r->def->latent) c->arch = PL_ARCH_DEEPSEEK_V3;
    r->def = pl_arch_def(c->arch);
    if (c->expert_groups <= 1) c->expert_groups = 0;
    c->expert_group_top = c->experts_sigmoid ? 2 : 1;
    for (uint32_t l = 0; l < c->layers; l++) c->layer_moe[l] = l >= dense;
    char name[64];
    snprintf(name, sizeof name, "blk.%u.exp_probs_b.bias", PL_MIN(dense, c->layers - 1));
    c->experts_bias = has(r->f, name);
    return PL_OK;
}

/* Nemotron 3: a sigmoid, whether the file says it or not; an expert that always counts. */
static enum pl_status read_nemotron_experts(struct reader *r, struct pl_model_config *c) {
    bool found;
    uint32_t gating = 2, latent = 0;
    PL_TRY(read_u32(r, "moe_latent_size", 0, PL_WIDTH_MAX, &latent, &found));
    if (latent > 0) PL_FAIL(r->err, PL_UNSUPPORTED, "experts in a latent space (%s) are not implemented", r->key);
    PL_TRY(read_u32(r, "expert_gating_func", 0, UINT32_MAX, &gating, &found));
    if (gating != 2 && gating != 0)
        PL_FAIL(r->err, PL_UNSUPPORTED, "experts with gating function %u: 2 (sigmoid) is implemented for %s", gating,
                r->arch);
    PL_TRY(read_u32(r, "expert_used_count", 1, PL_EXPERTS_MAX, &c->experts_used, NULL));
    PL_TRY(read_u32(r, "expert_feed_forward_length", 1, PL_MLP_MAX, &c->expert_width, NULL));
    PL_TRY(read_u32(r, "expert_shared_feed_forward_length", 0, PL_MLP_MAX, &c->shared_width, &found));
    PL_TRY(read_u32(r, "expert_group_count", 0, PL_EXPERTS_MAX, &c->expert_groups, &found));
    if (c->expert_groups > 1) PL_TRY(read_u32(r, "expert_group_used_count", 1, PL_EXPERTS_MAX, &c->groups_used, NULL));
    if (c->expert_groups == 1) c->expert_groups = 0;
    c->expert_group_top = 2;
    c->experts_sigmoid = true;
    enum pl_status st = pl_gguf_bool(r->f, key_of(r, "expert_weights_norm"), &c->experts_renormalise, r->err);
    if (st != PL_OK && st != PL_NOT_FOUND) return st;
    float scale = 0;
    PL_TRY(read_f32(r, "expert_weights_scale", &scale));
    if (scale != 0) c->experts_scale = scale;
    for (uint32_t l = 0; l < c->layers; l++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.ffn_gate_inp.weight", l);
        c->layer_moe[l] = has(r->f, name);
        snprintf(name, sizeof name, "blk.%u.exp_probs_b.bias", l);
        c->experts_bias |= has(r->f, name);
    }
    return PL_OK;
}

/* Mixtral is a llama with experts. */
static enum pl_status read_experts(struct reader *r, struct pl_model_config *c) {
    bool found;
    float scale = 0;
    uint32_t gating = 0;
    if (r->def->deepseek_moe) return read_deepseek_experts(r, c);
    PL_TRY(read_u32(r, "expert_count", 0, PL_EXPERTS_MAX, &c->experts, &found));
    if (c->experts > 0 && c->arch == PL_ARCH_LLAMA) {
        c->arch = PL_ARCH_MIXTRAL;
        r->def = pl_arch_def(c->arch);
    }
    if (c->experts > 0 && !r->def->moe)
        PL_FAIL(r->err, PL_UNSUPPORTED, "a mixture of %u experts is not implemented for %s; known: %s", c->experts, r->arch,
                pl_arch_list());
    if (!r->def->moe) return PL_OK;
    if (c->arch == PL_ARCH_NEMOTRON_H) return c->experts > 0 ? read_nemotron_experts(r, c) : PL_OK;
    if (r->def->moe_optional && c->experts == 0) /* the expert that always counts is the MLP */
        return read_u32(r, "expert_shared_feed_forward_length", 1, PL_MLP_MAX, &c->mlp_width, &found);
    PL_TRY(read_u32(r, "expert_used_count", 1, PL_EXPERTS_MAX, &c->experts_used, NULL));
    PL_TRY(read_u32(r, "expert_feed_forward_length", 1, PL_MLP_MAX, &c->expert_width, &found));
    if (!found)
        c->expert_width = r->def->qk_norm && c->arch == PL_ARCH_QWEN3_MOE ? c->mlp_width / c->experts_used : c->mlp_width;
    c->shared_width = r->def->shared_expert ? c->mlp_width : 0;
    if (r->def->shared_expert || c->arch == PL_ARCH_GRANITE_MOE) /* the latter: or none */
        PL_TRY(read_u32(r, "expert_shared_feed_forward_length", 1, PL_MLP_MAX, &c->shared_width, &found));
    if (c->expert_width == 0 || (r->def->shared_expert && c->shared_width == 0))
        PL_FAIL(r->err, PL_FORMAT, "metadata key %s.%s is missing, and so is feed_forward_length", r->arch,
                c->expert_width == 0 ? "expert_feed_forward_length" : "expert_shared_feed_forward_length");
    c->experts_renormalise = r->def->renormalise;
    enum pl_status st = pl_gguf_bool(r->f, key_of(r, "expert_weights_norm"), &c->experts_renormalise, r->err);
    if (st != PL_OK && st != PL_NOT_FOUND) return st;
    PL_TRY(read_f32(r, "expert_weights_scale", &scale));
    PL_TRY(read_u32(r, "expert_gating_func", 0, UINT32_MAX, &gating, &found));
    if (gating == 3 && c->experts_renormalise) gating = 1; /* a softmax over the chosen: the same */
    if ((scale != 0 && scale != 1) || gating > 1)
        PL_FAIL(r->err, PL_UNSUPPORTED, "experts weighted by %g with gating function %u: a plain softmax is implemented",
                (double)scale, gating);
    for (uint32_t l = c->layers; l-- > 0;) { /* Jamba, Qwen3-Next: some layers */
        char router[64];
        snprintf(router, sizeof router, "blk.%u.ffn_gate_inp.weight", l);
        c->layer_moe[l] = (!r->def->moe_optional && r->def->ssm != PL_SSM_DELTA) || has(r->f, router);
    }
    return PL_OK;
}

static enum pl_status refuse_features(struct reader *r) {
    if (!r->def->longrope && (has(r->f, "rope_factors_long.weight") || has(r->f, "rope_factors_short.weight")))
        PL_FAIL(r->err, PL_UNSUPPORTED, "LongRoPE (tensor rope_factors_long.weight) is not implemented for %s", r->arch);
    bool of_images = strstr(r->arch, "vl") != NULL ||
                     strncmp(r->arch, "qwen35", 6) == 0; /* tokens of text have one position in all sections */
    if (!of_images && pl_gguf_find(r->f, key_of(r, "rope.dimension_sections")) != NULL)
        PL_FAIL(r->err, PL_UNSUPPORTED, "rotation in sections (%s) is not implemented", r->key);
    bool causal = true;
    enum pl_status st = pl_gguf_bool(r->f, key_of(r, "attention.causal"), &causal, r->err);
    if (st != PL_OK && st != PL_NOT_FOUND) return st;
    if (!causal) PL_FAIL(r->err, PL_UNSUPPORTED, "an encoder (%s is false): only causal models are implemented", r->key);
    return PL_OK;
}

/* rope.scaling.factor, or the older rope.scale_linear; 0 and nothing stand for 1. */
static enum pl_status read_rope_factor(struct reader *r, float *out) {
    *out = 0;
    PL_TRY(read_f32(r, "rope.scaling.factor", out));
    if (*out == 0) PL_TRY(read_f32(r, "rope.scale_linear", out));
    if (*out == 0) *out = 1;
    return PL_OK;
}

static enum pl_status read_yarn(struct reader *r, struct pl_model_config *c) {
    bool found;
    float magnitude = 0, factor = 1;
    c->rope_context_orig = c->context_train;
    c->rope_truncate = !r->def->yarn_smooth;
    PL_TRY(read_u32(r, "rope.scaling.original_context_length", 1, PL_CONTEXT_MAX, &c->rope_context_orig, &found));
    PL_TRY(read_f32(r, "rope.scaling.yarn_beta_fast", &c->rope_beta_fast));
    PL_TRY(read_f32(r, "rope.scaling.yarn_beta_slow", &c->rope_beta_slow));
    PL_TRY(read_f32(r, "rope.scaling.attn_factor", &factor));
    PL_TRY(read_f32(r, "rope.scaling.yarn_attn_factor", &magnitude)); /* attention_factor of config.json: all of it */
    float log_multiplier = 0; /* a tenth of mscale_all_dim, which divides the magnitude: with an equal mscale, 1 is left */
    bool whole = strcmp(r->arch, "mistral3") == 0; /* mscale_all_dim itself, 1 */
    if (r->def->latent || whole) PL_TRY(read_f32(r, "rope.scaling.yarn_log_multiplier", &log_multiplier));
    if (whole && log_multiplier != 0 && log_multiplier != 1)
        PL_FAIL(r->err, PL_UNSUPPORTED, "metadata key %s is %g; 1 is implemented for %s", r->key, (double)log_multiplier,
                r->arch);
    if (!whole) c->mscale_all = 10 * log_multiplier;
    if (log_multiplier != 0 && magnitude == 0) magnitude = 1;
    if (magnitude == 0) magnitude = c->rope_factor > 1 ? 1.0f + 0.1f * logf(c->rope_factor) : 1.0f;
    c->rope_attn_factor = factor * magnitude;
    return PL_OK;
}

/* Divisors from a tensor of one number per rotated pair. */
static enum pl_status read_divisors(struct reader *r, const char *name, uint32_t pairs, float *out) {
    const struct pl_tensor *t = pl_file_tensor(r->f, name);
    if (t == NULL || pl_tensor_rows(t) != 1 || pl_tensor_cols(t) != pairs || pl_dequant_row(t, 0, out) != PL_OK)
        PL_FAIL(r->err, PL_FORMAT, "tensor %s is missing, or does not have one number per rotated pair (%u)", name, pairs);
    for (uint32_t i = 0; i < pairs; i++)
        if (!(out[i] > 0) || !isfinite(out[i]))
            PL_FAIL(r->err, PL_FORMAT, "tensor %s holds a value that is no positive number", name);
    return PL_OK;
}

/* Ministral 3: queries grow past the original context. */
static enum pl_status read_position_scale(struct reader *r, struct pl_model_config *c) {
    float temperature = 0;
    PL_TRY(read_f32(r, "attention.temperature_scale", &temperature));
    if (temperature == 0) return PL_OK;
    if (c->arch != PL_ARCH_MISTRAL)
        PL_FAIL(r->err, PL_UNSUPPORTED, "attention scaled by position (%s) is not implemented for %s", r->key, r->arch);
    return read_u32(r, "rope.scaling.original_context_length", 1, PL_CONTEXT_MAX, &c->context_limit, NULL);
}

static enum pl_status read_longrope(struct reader *r, struct pl_model_config *c) {
    bool found;
    c->rope_scaling = PL_ROPE_LONG;
    c->rope_context_orig = c->context_train;
    PL_TRY(read_u32(r, "rope.scaling.original_context_length", 1, PL_CONTEXT_MAX, &c->rope_context_orig, &found));
    PL_TRY(read_f32(r, "rope.scaling.attn_factor", &c->rope_attn_factor));
    PL_TRY(read_divisors(r, "rope_factors_short.weight", c->rope_dim / 2, c->rope_short));
    return read_divisors(r, "rope_factors_long.weight", c->rope_dim / 2, c->rope_long);
}

static enum pl_status read_rope_scaling(struct reader *r, struct pl_model_config *c) {
    if (r->def->longrope && has(r->f, "rope_factors_long.weight")) return read_longrope(r, c);
    struct pl_str type = PL_STR("linear"); /* what a factor without a type means */
    enum pl_status st = pl_gguf_str(r->f, key_of(r, "rope.scaling.type"), &type, r->err);
    if (st != PL_OK && st != PL_NOT_FOUND) return st;
    bool linear = pl_str_eq_c(type, "linear"), yarn = pl_str_eq_c(type, "yarn");
    if (!linear && !yarn && !pl_str_eq_c(type, "none"))
        PL_FAIL(r->err, PL_UNSUPPORTED,
                "rotary scaling '%s' is not implemented; known: none, linear, yarn, and the llama3 tensor rope_freqs.weight",
                pl_shown(type).s);
    if (!linear && !yarn) return PL_OK;
    PL_TRY(read_rope_factor(r, &c->rope_factor));
    if (yarn) c->rope_scaling = PL_ROPE_YARN;
    if (linear && c->rope_factor != 1) c->rope_scaling = PL_ROPE_LINEAR;
    return yarn ? read_yarn(r, c) : PL_OK;
}

/* sliding_window_pattern: every n-th layer is global (0: none is), or one flag per layer. */
static enum pl_status read_window(struct reader *r, struct pl_model_config *c) {
    bool found;
    bool implied =
        r->def->window_pattern > 0 && r->def->nope != PL_NOPE_BESIDE_WINDOWS; /* EXAONE 4: two models, one without */
    c->window = implied ? r->def->window_default : 0;
    PL_TRY(read_u32(r, "attention.sliding_window", 0, PL_CONTEXT_MAX, &c->window, &found));
    uint32_t pattern = r->def->window_pattern;
    const struct pl_gguf_value *v = pl_gguf_find(r->f, key_of(r, "attention.sliding_window_pattern"));
    if (v != NULL && v->type == PL_GGUF_ARRAY) {
        PL_TRY(check_list(r, v, c->layers, true));
        for (uint32_t l = 0; l < c->layers; l++) c->layer_windowed[l] = c->window > 0 && pl_gguf_elem_i64(v, l) != 0;
        return PL_OK;
    }
    PL_TRY(read_u32(r, "attention.sliding_window_pattern", 0, PL_MODEL_LAYERS_MAX, &pattern, &found));
    for (uint32_t l = 0; l < c->layers; l++)
        c->layer_windowed[l] = c->window > 0 && (pattern == 0 || (l + 1) % pattern != 0);
    return PL_OK;
}

static enum pl_status read_fields(struct reader *r, struct pl_model_config *c) {
    for (size_t i = 0; i < r->def->field_count; i++) {
        const struct pl_arch_field *f = &r->def->fields[i];
        if (f->gguf == NULL) continue;
        *pl_field_slot(c, f) = f->missing;
        PL_TRY(read_f32(r, f->gguf, pl_field_slot(c, f)));
    }
    return PL_OK;
}

static enum pl_status read_numbers(struct reader *r, struct pl_model_config *c) {
    const struct pl_arch_def *d = r->def;
    c->norm_eps = -1;
    c->layer_norm = d->layer_norm;
    PL_TRY(read_f32(r, d->layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", &c->norm_eps));
    if (c->norm_eps < 0 && d->ssm != PL_SSM_NONE) PL_TRY(read_f32(r, "attention.layer_norm_epsilon", &c->norm_eps));
    if (c->norm_eps < 0) PL_FAIL(r->err, PL_FORMAT, "metadata key %s is missing or negative", r->key);
    c->latent_eps = c->norm_eps;
    c->rope_base = d->rope_base_gguf > 0 ? d->rope_base_gguf : 1e4f;
    PL_TRY(read_f32(r, "rope.freq_base", &c->rope_base));
    c->rope_base_local = d->rope_base_local > 0 ? d->rope_base_local : c->rope_base;
    PL_TRY(read_f32(r, "rope.freq_base_swa", &c->rope_base_local));
    bool nominal = c->layers == d->nominal_scale_layers;
    c->attn_scale = d->no_attention ? 1.0f : 1.0f / sqrtf((float)(nominal ? c->width / c->heads : c->head_dim));
    float scale = 0;
    PL_TRY(read_f32(r, "attention.scale", &scale));
    if (scale != 0) c->attn_scale = scale; /* 0 stands for the default */
    c->embed_scale = d->embed_by_width ? sqrtf((float)c->width) : 1.0f;
    c->mlp_act = d->act;
    return read_fields(r, c);
}

/* Whether the first layer with attention has that tensor. */
static bool attention_has(const struct pl_file *f, const struct pl_model_config *c, const char *tail) {
    char name[64];
    uint32_t l = 0;
    while (l + 1 < c->layers && c->layer_no_attention[l]) l++;
    snprintf(name, sizeof name, "blk.%u.attn_%s", l, tail);
    return has(f, name);
}

enum pl_status pl_config_read_gguf(const struct pl_file *f, struct pl_model_config *c, struct pl_err *err) {
    struct reader r = {.f = f, .err = err};
    PL_TRY(read_arch(&r, &c->arch));
    PL_TRY(read_variant(&r, c));
    PL_TRY(refuse_features(&r));
    PL_TRY(read_sizes(&r, c));
    PL_TRY(read_experts(&r, c));
    PL_TRY(read_vocab(&r, c));
    PL_TRY(read_numbers(&r, c));
    if (r.def->ssm != PL_SSM_NONE) PL_TRY(pl_config_ssm_gguf(f, r.arch, c, err));
    PL_TRY(read_rope_scaling(&r, c));
    PL_TRY(read_position_scale(&r, c));
    PL_TRY(read_window(&r, c));
    c->rope_halves = !r.def->gguf_pairs;
    c->rope_freq_tensor = has(f, "rope_freqs.weight");
    c->tied_embeddings = !has(f, "output.weight");
    c->qkv_bias = attention_has(f, c, "q.bias") || attention_has(f, c, "qkv.bias");
    c->o_bias = attention_has(f, c, "output.bias");
    c->mlp_bias = has(f, "blk.0.ffn_down.bias");
    c->qk_norm = attention_has(f, c, "q_norm.weight");
    bool rotates = true; /* Granite's hybrids: switched so */
    enum pl_status st = pl_gguf_bool(f, key_of(&r, "rope.scaling.finetuned"), &rotates, err);
    if (st != PL_OK && st != PL_NOT_FOUND) return st;
    for (uint32_t l = 0; l < c->layers; l++)
        c->layer_nope[l] = r.def->nope == PL_NOPE_ALL              ? true
                           : r.def->moe_optional                   ? !rotates
                           : r.def->nope == PL_NOPE_FOURTH         ? (l + 1) % 4 == 0
                           : r.def->nope == PL_NOPE_GLOBAL         ? !c->layer_windowed[l]
                           : r.def->nope == PL_NOPE_BESIDE_WINDOWS ? c->window > 0 && !c->layer_windowed[l]
                                                                   : false;
    return PL_OK;
}

enum pl_status pl_gguf_key_u32(const struct pl_file *f, const char *arch, const char *name, uint32_t min, uint32_t max,
                               uint32_t missing, uint32_t *out, struct pl_err *err) {
    struct reader r = {.f = f, .err = err};
    bool found = false;
    snprintf(r.arch, sizeof r.arch, "%s", arch);
    PL_TRY(read_u32(&r, name, min, max, out, missing < min ? NULL : &found));
    if (missing >= min && !found) *out = missing;
    return PL_OK;
}
