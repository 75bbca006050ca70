/* Configuration: which reader, and the checks that both file kinds share. */
#include <math.h>

#include "base/log.h"
#include "model/arch.h"

static const struct {
    const char *name;
    const struct pl_arch_def *def;
} archs[] = {
    [PL_ARCH_LLAMA] = {"llama", &pl_llama_def},
    [PL_ARCH_MISTRAL] = {"mistral", &pl_mistral_def},
    [PL_ARCH_MINISTRAL] = {"ministral", &pl_ministral_def},
    [PL_ARCH_MINISTRAL3] = {"ministral3", &pl_ministral3_def},
    [PL_ARCH_QWEN2] = {"qwen2", &pl_qwen2_def},
    [PL_ARCH_QWEN3] = {"qwen3", &pl_qwen3_def},
    [PL_ARCH_GEMMA2] = {"gemma2", &pl_gemma2_def},
    [PL_ARCH_GEMMA3] = {"gemma3", &pl_gemma3_def},
    [PL_ARCH_PHI3] = {"phi3", &pl_phi3_def},
    [PL_ARCH_SMOLLM3] = {"smollm3", &pl_smollm3_def},
    [PL_ARCH_GRANITE] = {"granite", &pl_granite_def},
    [PL_ARCH_OLMO2] = {"olmo2", &pl_olmo2_def},
    [PL_ARCH_OLMO3] = {"olmo3", &pl_olmo3_def},
    [PL_ARCH_STARCODER2] = {"starcoder2", &pl_starcoder2_def},
    [PL_ARCH_COHERE] = {"cohere", &pl_cohere_def},
    [PL_ARCH_COHERE2] = {"cohere2", &pl_cohere2_def},
    [PL_ARCH_GLM] = {"glm", &pl_glm_def},
    [PL_ARCH_GLM4] = {"glm4", &pl_glm4_def},
    [PL_ARCH_GLM4_MOE] = {"glm4_moe", &pl_glm4_moe_def},
    [PL_ARCH_GEMMA] = {"gemma", &pl_gemma_def},
    [PL_ARCH_EXAONE4] = {"exaone4", &pl_exaone4_def},
    [PL_ARCH_ERNIE4_5] = {"ernie4_5", &pl_ernie4_5_def},
    [PL_ARCH_SEED_OSS] = {"seed_oss", &pl_seed_oss_def},
    [PL_ARCH_STABLELM] = {"stablelm", &pl_stablelm_def},
    [PL_ARCH_GRANITE_MOE] = {"granitemoe", &pl_granite_moe_def},
    [PL_ARCH_QWEN2_MOE] = {"qwen2_moe", &pl_qwen2_moe_def},
    [PL_ARCH_QWEN3_MOE] = {"qwen3_moe", &pl_qwen3_moe_def},
    [PL_ARCH_MIXTRAL] = {"mixtral", &pl_mixtral_def},
    [PL_ARCH_OLMOE] = {"olmoe", &pl_olmoe_def},
    [PL_ARCH_MAMBA] = {"mamba", &pl_mamba_def},
    [PL_ARCH_FALCON_MAMBA] = {"falcon_mamba", &pl_falcon_mamba_def},
    [PL_ARCH_MAMBA2] = {"mamba2", &pl_mamba2_def},
    [PL_ARCH_GRANITE_HYBRID] = {"granitemoehybrid", &pl_granite_hybrid_def},
    [PL_ARCH_FALCON_H1] = {"falcon_h1", &pl_falcon_h1_def},
    [PL_ARCH_JAMBA] = {"jamba", &pl_jamba_def},
    [PL_ARCH_NEMOTRON_H] = {"nemotron_h", &pl_nemotron_h_def},
    [PL_ARCH_PLAMO2] = {"plamo2", &pl_plamo2_def},
    [PL_ARCH_QWEN3_NEXT] = {"qwen3_next", &pl_qwen3_next_def},
    [PL_ARCH_QWEN3_5] = {"qwen3_5", &pl_qwen3_5_def},
    [PL_ARCH_QWEN3_5_MOE] = {"qwen3_5_moe", &pl_qwen3_5_moe_def},
    [PL_ARCH_LFM2] = {"lfm2", &pl_lfm2_def},
    [PL_ARCH_LFM2_MOE] = {"lfm2_moe", &pl_lfm2_moe_def},
    [PL_ARCH_GPT_OSS] = {"gpt_oss", &pl_gpt_oss_def},
    [PL_ARCH_DEEPSEEK_V2] = {"deepseek_v2", &pl_deepseek_v2_def},
    [PL_ARCH_DEEPSEEK_V3] = {"deepseek_v3", &pl_deepseek_v3_def},
    [PL_ARCH_BITNET] = {"bitnet", &pl_bitnet_def},
    [PL_ARCH_BITNET_SILU] = {"bitnet (silu)", &pl_bitnet_silu_def},
};
_Static_assert(PL_COUNT_OF(archs) == PL_ARCH_COUNT, "a new architecture needs its row above and its name below");

const char *pl_arch_name(enum pl_arch a) { return (unsigned)a < PL_ARCH_COUNT ? archs[a].name : "?"; }
const char *pl_arch_list(void) {
    return "llama (Llama 1 to 3.2, SmolLM2), mistral, ministral, ministral3, mistral3 (text), qwen2, qwen3, qwen2_vl, "
           "qwen2_5_vl, qwen3_vl (text), gemma, gemma2, gemma3 "
           "(text), "
           "phi3 (Phi-3, Phi-4), smollm3, granite, olmo2, olmo3, starcoder2, cohere, cohere2, glm, glm4, glm4_moe, exaone4, "
           "ernie4_5, seed_oss, stablelm, granitemoe, "
           "qwen2_moe, qwen3_moe, mixtral, olmoe, gpt_oss, deepseek_v2, deepseek_v3, mamba, falcon_mamba, mamba2, "
           "granitemoehybrid, falcon_h1, jamba, nemotron_h, plamo2, qwen3_next, qwen3_5, qwen3_5_moe (text), lfm2, "
           "lfm2_moe, bitnet";
}
const struct pl_arch_def *pl_arch_def(enum pl_arch a) {
    PL_ASSERT((unsigned)a < PL_ARCH_COUNT);
    return archs[a].def;
}

static bool is_positive(float v) { return isfinite(v) && v > 0; }

static enum pl_status check_shape(const struct pl_model_config *c, struct pl_err *err) {
    if (!(c->norm_eps >= 0) || !(c->norm_eps < 1))
        PL_FAIL(err, PL_FORMAT, "norm epsilon %g: a number from 0 to 1 was expected", (double)c->norm_eps);
    if (pl_arch_def(c->arch)->no_attention) return PL_OK;
    if (c->heads % c->kv_heads != 0)
        PL_FAIL(err, PL_FORMAT, "%u query heads over %u KV heads: not a whole number of queries per KV head", c->heads,
                c->kv_heads);
    if (c->rope_dim == 0 || c->rope_dim % 2 != 0 || c->rope_dim > c->head_dim)
        PL_FAIL(err, PL_FORMAT, "rotary dimension %u with head size %u: an even number up to the head size was expected",
                c->rope_dim, c->head_dim);
    if (!is_positive(c->attn_scale))
        PL_FAIL(err, PL_FORMAT, "attention scale %g: a positive number was expected", (double)c->attn_scale);
    if (!(c->attn_softcap >= 0) || !isfinite(c->attn_softcap) || !(c->logit_softcap >= 0) || !isfinite(c->logit_softcap))
        PL_FAIL(err, PL_FORMAT, "soft-caps %g and %g: 0 (none) or positive numbers were expected", (double)c->attn_softcap,
                (double)c->logit_softcap);
    return PL_OK;
}

static enum pl_status check_scales(const struct pl_model_config *c, struct pl_err *err) {
    const struct {
        const char *name;
        float value;
    } scales[] = {{"embedding", c->embed_scale}, {"residual", c->residual_scale}, {"logit", c->logit_scale}};
    for (size_t i = 0; i < PL_COUNT_OF(scales); i++)
        if (!is_positive(scales[i].value))
            PL_FAIL(err, PL_FORMAT, "%s scale %g: a positive number was expected", scales[i].name, (double)scales[i].value);
    return PL_OK;
}

static enum pl_status check_experts(const struct pl_model_config *c, struct pl_err *err) {
    const struct pl_arch_def *d = pl_arch_def(c->arch);
    if (!d->moe || (d->moe_optional && c->experts == 0)) return PL_OK;
    if (c->experts == 0 || c->experts_used == 0 || c->experts_used > c->experts || c->expert_width == 0)
        PL_FAIL(err, PL_FORMAT, "%u of %u experts of width %u: at least one, and no more than there are, was expected",
                c->experts_used, c->experts, c->expert_width);
    if (!is_positive(c->experts_scale))
        PL_FAIL(err, PL_FORMAT, "experts weighted by %g: a positive number was expected", (double)c->experts_scale);
    if (c->expert_groups == 0) return PL_OK;
    if (c->experts % c->expert_groups != 0 || c->groups_used == 0 || c->groups_used > c->expert_groups ||
        c->experts_used > c->experts / c->expert_groups * c->groups_used)
        PL_FAIL(err, PL_FORMAT, "%u experts of %u of %u groups of %u experts: there are not so many", c->experts_used,
                c->groups_used, c->expert_groups, c->experts);
    return PL_OK;
}

static enum pl_status check_rope(const struct pl_model_config *c, struct pl_err *err) {
    if (!(c->rope_base > 1) || !isfinite(c->rope_base) || !(c->rope_base_local > 1) || !isfinite(c->rope_base_local))
        PL_FAIL(err, PL_FORMAT, "rotary bases %g and %g: finite numbers above 1 were expected", (double)c->rope_base,
                (double)c->rope_base_local);
    if (c->rope_scaling == PL_ROPE_NONE) return PL_OK;
    if (!is_positive(c->rope_factor) || !is_positive(c->rope_attn_factor))
        PL_FAIL(err, PL_FORMAT, "rotary scaling factor %g with attention factor %g: positive numbers were expected",
                (double)c->rope_factor, (double)c->rope_attn_factor);
    if (c->rope_scaling != PL_ROPE_LINEAR && c->rope_context_orig == 0)
        PL_FAIL(err, PL_FORMAT, "this rotary scaling needs the original context length, which is missing");
    if (c->rope_scaling == PL_ROPE_DYNAMIC && (c->rope_factor < 1 || c->rope_dim < 4))
        PL_FAIL(err, PL_FORMAT, "dynamic rotary scaling by %g over %u numbers: at least 1, over at least 4, was expected",
                (double)c->rope_factor, c->rope_dim);
    if (c->rope_scaling == PL_ROPE_LLAMA3 &&
        (!is_positive(c->rope_low_freq) || !isfinite(c->rope_high_freq) || !(c->rope_high_freq > c->rope_low_freq)))
        PL_FAIL(err, PL_FORMAT, "llama3 scaling with frequency factors %g and %g: 0 < low < high was expected",
                (double)c->rope_low_freq, (double)c->rope_high_freq);
    if (c->rope_scaling == PL_ROPE_YARN && (!is_positive(c->rope_beta_fast) || !is_positive(c->rope_beta_slow)))
        PL_FAIL(err, PL_FORMAT, "YaRN with beta_fast %g and beta_slow %g: positive numbers were expected",
                (double)c->rope_beta_fast, (double)c->rope_beta_slow);
    return PL_OK;
}

enum pl_status pl_model_config_read(const struct pl_file *f, struct pl_model_config *out, struct pl_err *err) {
    struct pl_model_config c = {.embed_scale = 1,
                                .residual_scale = 1,
                                .logit_scale = 1,
                                .ssm = {.scale = {1, 1, 1, 1, 1}, .out_scale = 1},
                                .attn_in_scale = 1,
                                .attn_key_scale = 1,
                                .attn_out_scale = 1,
                                .ssm_in_scale = 1,
                                .gate_scale = 1,
                                .down_scale = 1,
                                .rope_factor = 1,
                                .rope_low_freq = 1,
                                .rope_high_freq = 4,
                                .rope_attn_factor = 1,
                                .rope_beta_fast = 32,
                                .rope_beta_slow = 1,
                                .rope_truncate = true,
                                .experts_scale = 1};
    enum pl_status st = pl_file_kind(f) == PL_FILE_GGUF ? pl_config_read_gguf(f, &c, err) : pl_config_read_hf(f, &c, err);
    if (st == PL_OK) st = check_shape(&c, err);
    if (st == PL_OK) st = check_rope(&c, err);
    if (st == PL_OK) st = check_experts(&c, err);
    if (st == PL_OK && pl_arch_def(c.arch)->check != NULL) st = pl_arch_def(c.arch)->check(&c, err);
    if (st == PL_OK) st = check_scales(&c, err);
    if (st == PL_OK) st = pl_config_ssm_check(&c, err);
    if (st != PL_OK) {
        (void)pl_err_note(err, "reading the configuration of %s", pl_file_path(f));
        return st;
    }
    if (c.context_limit > 0 && c.context_limit < c.context_train) {
        pl_log("attention of this %s model scales by position from %u tokens on, which is not implemented: "
               "contexts end there, not at %u",
               pl_arch_name(c.arch), c.context_limit, c.context_train);
        c.context_train = c.context_limit;
    }
    *out = c;
    return PL_OK;
}
