/* Configuration from a Hugging Face or MLX config.json. Fields that would change the result and are not implemented are
 * refused; fields that are of no consequence here are ignored. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "file/show.h"
#include "model/arch.h"

/* Published files leave out fields that equal their library's defaults. 0: no default, the field must be there. */
static const struct hf_arch {
    const char *model_type;
    enum pl_arch arch;
    uint32_t vocab, width, mlp_width, layers, heads, kv_heads, head_dim, context;
    double eps, rope_theta;
    bool tied, nested; /* nested: the text model is described in text_config */
} hf_archs[] = {
    {"llama", PL_ARCH_LLAMA, 32000, 4096, 11008, 32, 32, 0, 0, 2048, 1e-6, 1e4, false, false},
    {"mistral", PL_ARCH_MISTRAL, 32000, 4096, 14336, 32, 32, 8, 0, 131072, 1e-6, 1e4, false, false},
    {"ministral", PL_ARCH_MINISTRAL, 32000, 4096, 14336, 32, 32, 8, 0, 131072, 1e-6, 1e4, false, false},
    {"ministral3", PL_ARCH_MINISTRAL3, 131072, 4096, 14336, 34, 32, 8, 128, 262144, 1e-5, 1e6, false, false},
    {"mistral3", PL_ARCH_MISTRAL, 32000, 4096, 14336, 32, 32, 8, 0, 131072, 1e-6, 1e4, false, true},
    {"qwen2", PL_ARCH_QWEN2, 151936, 4096, 22016, 32, 32, 32, 0, 32768, 1e-6, 1e4, false, false},
    {"qwen3", PL_ARCH_QWEN3, 151936, 4096, 22016, 32, 32, 32, 128, 32768, 1e-6, 1e4, false, false},
    {"gemma2", PL_ARCH_GEMMA2, 256000, 2304, 9216, 26, 8, 4, 256, 8192, 1e-6, 1e4, true, false},
    {"gemma3_text", PL_ARCH_GEMMA3, 262208, 2304, 9216, 26, 8, 4, 256, 131072, 1e-6, 1e6, true, false},
    {"gemma3", PL_ARCH_GEMMA3, 262208, 2304, 9216, 26, 8, 4, 256, 131072, 1e-6, 1e6, true, true},
    {"phi3", PL_ARCH_PHI3, 32064, 3072, 8192, 32, 32, 0, 0, 4096, 1e-5, 1e4, false, false},
    {"smollm3", PL_ARCH_SMOLLM3, 128256, 2048, 11008, 36, 16, 4, 0, 32768, 1e-6, 2e6, true, false},
    {"granite", PL_ARCH_GRANITE, 32000, 4096, 11008, 32, 32, 0, 0, 2048, 1e-6, 1e4, false, false},
    {"olmo2", PL_ARCH_OLMO2, 50304, 4096, 11008, 32, 32, 0, 0, 2048, 1e-5, 1e4, false, false},
    {"olmo3", PL_ARCH_OLMO3, 50304, 4096, 11008, 32, 32, 0, 0, 2048, 1e-5, 5e5, false, false},
    {"starcoder2", PL_ARCH_STARCODER2, 49152, 3072, 12288, 30, 24, 2, 0, 4096, 1e-5, 1e4, true, false},
    {"cohere", PL_ARCH_COHERE, 256000, 8192, 22528, 40, 64, 0, 0, 8192, 1e-5, 5e5, true, false},
    {"cohere2", PL_ARCH_COHERE2, 256000, 8192, 22528, 40, 64, 0, 0, 8192, 1e-5, 1e4, true, false},
    {"glm", PL_ARCH_GLM, 151552, 4096, 13696, 40, 32, 2, 128, 131072, 1.5625e-7, 1e4, false, false},
    {"qwen2_moe", PL_ARCH_QWEN2_MOE, 151936, 2048, 5632, 24, 16, 16, 0, 32768, 1e-6, 1e4, false, false},
    {"qwen3_moe", PL_ARCH_QWEN3_MOE, 151936, 2048, 6144, 24, 32, 4, 0, 32768, 1e-6, 1e4, false, false},
    {"mixtral", PL_ARCH_MIXTRAL, 32000, 4096, 14336, 32, 32, 8, 0, 131072, 1e-5, 1e6, false, false},
    {"olmoe", PL_ARCH_OLMOE, 50304, 2048, 2048, 16, 16, 0, 0, 4096, 1e-5, 1e4, false, false},
    {"deepseek_v2", PL_ARCH_DEEPSEEK_V2, 102400, 4096, 11008, 32, 32, 0, 0, 2048, 1e-6, 1e4, false, false},
    {"deepseek_v3", PL_ARCH_DEEPSEEK_V3, 129280, 7168, 18432, 61, 128, 0, 0, 4096, 1e-6, 1e4, false, false},
    {"mamba", PL_ARCH_MAMBA, 50280, 768, 0, 32, 0, 0, 0, 1 << 20, 1e-5, 1e4, true, false},
    {"mamba2", PL_ARCH_MAMBA2, 32768, 4096, 0, 64, 0, 0, 0, 1 << 20, 1e-5, 1e4, false, false},
    {"granitemoehybrid", PL_ARCH_GRANITE_HYBRID, 32000, 4096, 11008, 32, 32, 0, 0, 2048, 1e-6, 1e4, false, false},
    {"falcon_h1", PL_ARCH_FALCON_H1, 128000, 4096, 14336, 32, 32, 8, 0, 8192, 1e-5, 1e4, false, false},
    {"jamba", PL_ARCH_JAMBA, 65536, 4096, 14336, 32, 32, 8, 0, 262144, 1e-6, 1e4, false, false},
    {"nemotron_h", PL_ARCH_NEMOTRON_H, 131072, 4096, 21504, 52, 32, 8, 128, 4096, 1e-5, 1e4, false, false},
    {"qwen3_next", PL_ARCH_QWEN3_NEXT, 151936, 2048, 5632, 48, 16, 2, 256, 32768, 1e-6, 1e4, false, false},
    {"qwen3_5", PL_ARCH_QWEN3_5, 248320, 4096, 12288, 32, 16, 4, 256, 32768, 1e-6, 1e4, false, true},
    {"qwen3_5_text", PL_ARCH_QWEN3_5, 248320, 4096, 12288, 32, 16, 4, 256, 32768, 1e-6, 1e4, false, false},
    {"qwen3_5_moe", PL_ARCH_QWEN3_5_MOE, 248320, 2048, 1, 40, 16, 2, 256, 32768, 1e-6, 1e4, false, true},
    {"qwen3_5_moe_text", PL_ARCH_QWEN3_5_MOE, 248320, 2048, 1, 40, 16, 2, 256, 32768, 1e-6, 1e4, false, false},
    {"lfm2", PL_ARCH_LFM2, 65536, 2560, 12288, 32, 32, 8, 0, 128000, 1e-5, 1e6, true, false},
    {"lfm2_moe", PL_ARCH_LFM2_MOE, 65536, 2048, 7168, 32, 32, 8, 0, 128000, 1e-5, 1e6, true, false},
    {"plamo2", PL_ARCH_PLAMO2, 32000, 4096, 13312, 32, 32, 4, 128, 2048, 1e-6, 1e4, true, false},
    {"falcon_mamba", PL_ARCH_FALCON_MAMBA, 50280, 768, 0, 32, 0, 0, 0, 1 << 20, 1e-5, 1e4, true, false},
    {"gpt_oss", PL_ARCH_GPT_OSS, 201088, 2880, 2880, 36, 64, 8, 64, 131072, 1e-5, 1.5e5, false, false},
    {"bitnet", PL_ARCH_BITNET, 128256, 2560, 6912, 30, 20, 5, 0, 2048, 1e-5, 5e5, false, false},
    {"glm4", PL_ARCH_GLM4, 151552, 4096, 13696, 40, 32, 2, 128, 131072, 1.5625e-7, 1e4, false, false},
    {"qwen2_vl", PL_ARCH_QWEN2, 152064, 8192, 29568, 80, 64, 8, 0, 32768, 1e-5, 1e6, false, true},
    {"qwen2_vl_text", PL_ARCH_QWEN2, 152064, 8192, 29568, 80, 64, 8, 0, 32768, 1e-5, 1e6, false, false},
    {"qwen2_5_vl", PL_ARCH_QWEN2, 152064, 8192, 29568, 80, 64, 8, 0, 32768, 1e-5, 1e6, false, true},
    {"qwen2_5_vl_text", PL_ARCH_QWEN2, 152064, 8192, 29568, 80, 64, 8, 0, 32768, 1e-5, 1e6, false, false},
    {"qwen3_vl", PL_ARCH_QWEN3, 151936, 4096, 22016, 32, 32, 32, 128, 128000, 1e-6, 5e6, false, true},
    {"qwen3_vl_text", PL_ARCH_QWEN3, 151936, 4096, 22016, 32, 32, 32, 128, 128000, 1e-6, 5e6, false, false},
    {"glm4_moe", PL_ARCH_GLM4_MOE, 151552, 4096, 10944, 46, 96, 8, 0, 131072, 1e-5, 1e4, false, false},
    {"gemma", PL_ARCH_GEMMA, 256000, 3072, 24576, 28, 16, 16, 256, 8192, 1e-6, 1e4, true, false},
    {"exaone4", PL_ARCH_EXAONE4, 102400, 4096, 16384, 32, 32, 32, 0, 2048, 1e-5, 1e4, false, false},
    {"ernie4_5", PL_ARCH_ERNIE4_5, 103424, 1024, 3072, 18, 16, 2, 128, 131072, 1e-5, 5e5, true, false},
    {"stablelm", PL_ARCH_STABLELM, 50304, 2560, 6912, 32, 32, 32, 0, 4096, 1e-5, 1e4, false, false},
    {"granitemoe", PL_ARCH_GRANITE_MOE, 32000, 4096, 11008, 32, 32, 0, 0, 2048, 1e-6, 1e4, false, false},
    {"granitemoeshared", PL_ARCH_GRANITE_MOE, 32000, 4096, 11008, 32, 32, 0, 0, 2048, 1e-6, 1e4, false, false},
    {"mimo", PL_ARCH_QWEN2, 151680, 4096, 11008, 36, 32, 8, 0, 32768, 1e-6, 1e4, false, false},
    {"kimi_k2", PL_ARCH_DEEPSEEK_V3, 163840, 7168, 18432, 61, 64, 0, 0, 131072, 1e-6, 5e4, false, false},
    {"seed_oss", PL_ARCH_SEED_OSS, 155136, 4096, 27648, 64, 80, 8, 128, 524288, 1e-6, 1e4, false, false},
};

struct reader {
    const struct pl_file *f;
    const json_t *root; /* the object with the text model's fields */
    const struct hf_arch *hf;
    const struct pl_arch_def *def;
    struct pl_err *err;
};

/* --- typed access; null counts as absent --- */

static const json_t *field(const json_t *object, const char *name) {
    const json_t *v = json_object_get(object, name);
    return json_is_null(v) ? NULL : v;
}

static const char *kind_of(const json_t *v) {
    static const char *const names[] = {"an object",     "an array", "a string", "an integer",
                                        "a real number", "true",     "false",    "null"};
    return v != NULL && (size_t)json_typeof(v) < PL_COUNT_OF(names) ? names[json_typeof(v)] : "nothing";
}

static enum pl_status read_u32(struct reader *r, const json_t *o, const char *name, uint32_t min, uint32_t max,
                               uint32_t missing, uint32_t *out) {
    const json_t *v = field(o, name);
    if (v == NULL) {
        if (missing < min) PL_FAIL(r->err, PL_FORMAT, "config.json: field %s is missing", name);
        *out = missing;
        return PL_OK;
    }
    double n = json_number_value(v); /* 0.0 for anything else; whole reals are integers too */
    if (!json_is_number(v) || n != floor(n))
        PL_FAIL(r->err, PL_FORMAT, "config.json: field %s is %s; an integer was expected", name, kind_of(v));
    if (n < min || n > max)
        PL_FAIL(r->err, PL_FORMAT, "config.json: field %s is %.0f; %u to %u was expected", name, n, min, max);
    *out = (uint32_t)n;
    return PL_OK;
}

static enum pl_status read_f64(struct reader *r, const json_t *o, const char *name, double missing, double *out) {
    const json_t *v = field(o, name);
    if (v != NULL && !json_is_number(v))
        PL_FAIL(r->err, PL_FORMAT, "config.json: field %s is %s; a number was expected", name, kind_of(v));
    double n = v != NULL ? json_number_value(v) : missing;
    if (!(fabs(n) <= 3e38)) PL_FAIL(r->err, PL_FORMAT, "config.json: field %s is %g; a finite number was expected", name, n);
    *out = n;
    return PL_OK;
}

static enum pl_status read_f32(struct reader *r, const json_t *o, const char *name, double missing, float *out) {
    double v = 0;
    PL_TRY(read_f64(r, o, name, missing, &v));
    *out = (float)v;
    return PL_OK;
}

static enum pl_status read_bool(struct reader *r, const json_t *o, const char *name, bool missing, bool *out) {
    const json_t *v = field(o, name);
    if (v != NULL && !json_is_boolean(v))
        PL_FAIL(r->err, PL_FORMAT, "config.json: field %s is %s; true or false was expected", name, kind_of(v));
    *out = v != NULL ? json_is_true(v) : missing;
    return PL_OK;
}

/* Entry i of a list of whole numbers. */
static enum pl_status read_entry(struct reader *r, const json_t *list, const char *name, size_t i, double *out) {
    const json_t *v = json_array_get(list, i);
    double n = json_number_value(v);
    if (!json_is_number(v) || n != floor(n))
        PL_FAIL(r->err, PL_FORMAT, "config.json: %s[%zu] is %s; an integer was expected", name, i, kind_of(v));
    *out = n;
    return PL_OK;
}

/* --- what kind of model --- */

static const struct hf_arch *arch_named(const char *name) {
    for (size_t i = 0; i < PL_COUNT_OF(hf_archs); i++)
        if (strcmp(name, hf_archs[i].model_type) == 0) return &hf_archs[i];
    return NULL;
}

static enum pl_status find_arch(struct reader *r, const json_t *config) {
    const json_t *type = field(config, "model_type");
    if (!json_is_string(type))
        PL_FAIL(r->err, PL_FORMAT, "config.json: field model_type is %s; a string was expected", kind_of(type));
    const char *name = json_string_value(type);
    r->hf = arch_named(name);
    if (r->hf == NULL)
        PL_FAIL(r->err, PL_UNSUPPORTED, "config.json: model_type '%s' is not implemented; known: %s", PL_SHOWN_C(name),
                pl_arch_list());
    r->def = pl_arch_def(r->hf->arch);
    const json_t *text = field(config, "text_config"), *inner = field(text, "model_type");
    bool flat = text == NULL && r->hf->arch == PL_ARCH_QWEN2; /* Qwen2-VL's and 2.5-VL's older files */
    if (!r->hf->nested || flat) return PL_OK;
    if (!json_is_object(text))
        PL_FAIL(r->err, PL_FORMAT, "config.json: field text_config is %s; %s keeps its text model there", kind_of(text),
                name);
    r->root = text;
    if (inner == NULL) return PL_OK;
    if (!json_is_string(inner))
        PL_FAIL(r->err, PL_FORMAT, "config.json: field text_config.model_type is %s; a string was expected", kind_of(inner));
    r->hf = arch_named(json_string_value(inner));
    if (r->hf == NULL)
        PL_FAIL(r->err, PL_UNSUPPORTED, "config.json: text_config.model_type '%s' is not implemented; known: %s",
                PL_SHOWN_C(json_string_value(inner)), pl_arch_list());
    r->def = pl_arch_def(r->hf->arch);
    return PL_OK;
}

static bool ends_with(const char *s, const char *tail) {
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

/* A classifier or an embedding model has the same layers and no output product. */
static enum pl_status check_head(struct reader *r, const json_t *config) {
    const json_t *list = field(config, "architectures"), *name = json_array_get(list, 0);
    if (list != NULL && !json_is_array(list))
        PL_FAIL(r->err, PL_FORMAT, "config.json: field architectures is %s; an array was expected", kind_of(list));
    if (name == NULL) return PL_OK;
    if (!json_is_string(name))
        PL_FAIL(r->err, PL_FORMAT, "config.json: architectures[0] is %s; a string was expected", kind_of(name));
    const char *s = json_string_value(name);
    if (ends_with(s, "ForCausalLM") || ends_with(s, "ForConditionalGeneration")) return PL_OK;
    PL_FAIL(r->err, PL_UNSUPPORTED, "config.json: %s is no language model that generates text (...ForCausalLM)",
            PL_SHOWN_C(s));
}

static bool has_field(const struct pl_arch_def *d, const char *name) {
    for (size_t i = 0; i < d->field_count; i++)
        if (d->fields[i].hf != NULL && strcmp(d->fields[i].hf, name) == 0) return true;
    return false;
}

static enum pl_status refuse_features(struct reader *r, const json_t *config) {
    static const char *const experts[] = {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"};
    const char *norms = r->def->qk_norm_optional ? "rope_interleaved" : "use_qk_norm"; /* one less to refuse */
    const char *const switches[] = {"rope_interleaved", "use_bidirectional_attention", "qk_layernorm",
                                    "use_parallel_residual", norms};
    static const char *const factors[] = {"attention_multiplier", "embedding_multiplier", "residual_multiplier",
                                          "logits_scaling"};
    for (size_t i = 0; i < PL_COUNT_OF(experts) && !r->def->moe; i++) {
        double count = 0;
        PL_TRY(read_f64(r, r->root, experts[i], 0, &count));
        if (count > 0)
            PL_FAIL(r->err, PL_UNSUPPORTED,
                    "config.json: %s asks for a mixture of experts, which is not implemented for %s; known: %s", experts[i],
                    r->hf->model_type, pl_arch_list());
    }
    for (size_t i = 0; i < PL_COUNT_OF(switches); i++) {
        bool on = false;
        PL_TRY(read_bool(r, r->root, switches[i], false, &on));
        if (on)
            PL_FAIL(r->err, PL_UNSUPPORTED, "config.json: %s is true, which is not implemented for %s", switches[i],
                    r->hf->model_type);
    }
    for (size_t i = 0; i < PL_COUNT_OF(factors); i++) {
        double factor = 1;
        PL_TRY(read_f64(r, r->root, factors[i], 1, &factor));
        if (factor != 1 && !has_field(r->def, factors[i]))
            PL_FAIL(r->err, PL_UNSUPPORTED, "config.json: %s is %g, which is not implemented for %s", factors[i], factor,
                    r->hf->model_type);
    }
    const json_t *quant = field(config, "quantization_config"), *method;
    if (quant == NULL) quant = field(r->root, "quantization_config");
    method = field(quant, "quant_method");
    const char *known = r->def->mxfp4 ? "mxfp4" : r->def->ternary ? "bitnet" : NULL;
    if (method != NULL && !(known != NULL && json_is_string(method) && strcmp(json_string_value(method), known) == 0))
        PL_FAIL(r->err, PL_UNSUPPORTED,
                "config.json: weights quantised with '%s' are not readable; take the model in bf16 or f16, an MLX "
                "conversion (affine or mxfp4), or a GGUF",
                json_is_string(method) ? PL_SHOWN_C(json_string_value(method)) : "?");
    return PL_OK;
}

/* MLX's converter writes its own quantization over the original's, and its library multiplies by the scales. */
static bool is_mlx_ternary(const struct reader *r, const json_t *config) {
    char name[128];
    const char *prefix = pl_hf_prefix(r->f);
    snprintf(name, sizeof name, "%slayers.0.self_attn.q_proj.weight", prefix != NULL ? prefix : "");
    const struct pl_tensor *t = pl_file_tensor(r->f, name);
    return field(config, "quantization") != NULL && t != NULL && t->dtype == PL_U8;
}

/* How the matrices of BitNet stand in the file. */
static enum pl_status read_ternary(struct reader *r, const json_t *config, struct pl_model_config *c) {
    const json_t *q = field(config, "quantization_config"), *kind = field(q, "linear_class"),
                 *mode = field(q, "quantization_mode"), *plain = field(q, "modules_to_not_convert");
    bool normed = false;
    if (!r->def->ternary) return PL_OK;
    bool mlx = field(q, "quant_method") == NULL && is_mlx_ternary(r, config);
    if (field(q, "quant_method") == NULL && !mlx)
        PL_FAIL(r->err, PL_UNSUPPORTED,
                "config.json: a bitnet model without quantization_config: its products would be plain "
                "ones, which is not implemented");
    const char *k = json_is_string(kind) ? json_string_value(kind)
                    : mlx                ? "autobitlinear"
                                         : "bitlinear",
               *m = json_is_string(mode) ? json_string_value(mode) : "offline";
    c->ternary_multiplies = strcmp(k, "autobitlinear") == 0;
    c->ternary_online = c->ternary_multiplies && strcmp(m, "online") == 0;
    if ((!c->ternary_multiplies && strcmp(k, "bitlinear") != 0) || (!c->ternary_online && strcmp(m, "offline") != 0))
        PL_FAIL(r->err, PL_UNSUPPORTED,
                "config.json: linear_class '%s' with quantization_mode '%s'; known: bitlinear, "
                "autobitlinear; offline, online",
                PL_SHOWN_C(k), PL_SHOWN_C(m));
    PL_TRY(read_bool(r, q, "use_rms_norm", false, &normed));
    if (normed) PL_FAIL(r->err, PL_UNSUPPORTED, "config.json: use_rms_norm is true, which is not implemented");
    if (plain != NULL && !json_is_array(plain))
        PL_FAIL(r->err, PL_FORMAT, "config.json: modules_to_not_convert is %s; an array or null was expected",
                kind_of(plain));
    for (size_t i = 0; i < json_array_size(plain); i++) {
        const char *name = json_string_value(json_array_get(plain, i));
        if (name == NULL || strcmp(name, "lm_head") != 0)
            PL_FAIL(r->err, PL_UNSUPPORTED, "config.json: modules_to_not_convert names %s; lm_head alone is implemented",
                    name != NULL ? PL_SHOWN_C(name) : "no text");
    }
    return PL_OK;
}

/* --- sizes and numbers --- */

/* partial_rotary_factor, on either level. */
static enum pl_status read_rotary_part(struct reader *r, struct pl_model_config *c) {
    double part = r->def->rotary_part > 0 ? r->def->rotary_part : 1;
    PL_TRY(read_f64(r, r->root, "partial_rotary_factor", part, &part));
    PL_TRY(read_f64(r, field(r->root, "rope_parameters"), "partial_rotary_factor", part, &part));
    PL_TRY(read_f64(r, field(r->root, "rope_scaling"), "partial_rotary_factor", part, &part));
    if (part != 1 && r->def->rotary_part == 0)
        PL_FAIL(r->err, PL_UNSUPPORTED, "config.json: partial_rotary_factor is %g, which is not implemented for %s", part,
                r->hf->model_type);
    if (!(part > 0) || !(part <= 1))
        PL_FAIL(r->err, PL_FORMAT, "config.json: partial_rotary_factor is %g; above 0 and at most 1 was expected", part);
    c->rope_dim = (uint32_t)(c->head_dim * part);
    return PL_OK;
}

/* Sizes of latent attention: one key a token for all heads. */
static enum pl_status read_latent(struct reader *r, struct pl_model_config *c) {
    const json_t *rank = json_object_get(r->root, "q_lora_rank"); /* null is none, absent the default */
    if (field(r->root, "index_topk") != NULL)
        PL_FAIL(r->err, PL_UNSUPPORTED,
                "config.json: attention to the tokens that an indexer picks (index_topk) is not implemented");
    PL_TRY(read_u32(r, r->root, "q_lora_rank", 0, PL_WIDTH_MAX, rank == NULL ? 1536 : 0, &c->query_rank));
    PL_TRY(read_u32(r, r->root, "kv_lora_rank", 1, PL_HEAD_MAX, 512, &c->latent));
    PL_TRY(read_u32(r, r->root, "qk_nope_head_dim", 1, PL_HEAD_MAX, 128, &c->nope_dim));
    PL_TRY(read_u32(r, r->root, "qk_rope_head_dim", 2, PL_HEAD_MAX, 64, &c->rope_dim));
    PL_TRY(read_u32(r, r->root, "v_head_dim", 1, PL_HEAD_MAX, 128, &c->value_dim));
    if (c->latent + c->rope_dim > PL_HEAD_MAX)
        PL_FAIL(r->err, PL_FORMAT, "config.json: kv_lora_rank %u and qk_rope_head_dim %u: together at most %u was expected",
                c->latent, c->rope_dim, PL_HEAD_MAX);
    c->kv_heads = 1;
    c->head_dim = c->latent + c->rope_dim;
    c->latent_eps = 1e-6f; /* of those norms, whatever rms_norm_eps is */
    return PL_OK;
}

/* No attention: no heads, no rotation, and intermediate_size is none of an MLP. */
static enum pl_status read_sizes_without(struct reader *r, struct pl_model_config *c) {
    PL_TRY(read_u32(r, r->root, "vocab_size", 1, PL_VOCAB_MAX, r->hf->vocab, &c->vocab));
    return read_u32(r, r->root, "max_position_embeddings", 1, PL_CONTEXT_MAX, r->hf->context, &c->context_train);
}

static enum pl_status read_sizes(struct reader *r, struct pl_model_config *c) {
    const struct hf_arch *d = r->hf;
    uint32_t listed = pl_hf_listed_layers(r->root); /* newer files say the number by their list alone */
    PL_TRY(read_u32(r, r->root, "num_hidden_layers", 1, PL_MODEL_LAYERS_MAX, listed > 0 ? listed : d->layers, &c->layers));
    PL_TRY(read_u32(r, r->root, "hidden_size", 1, PL_WIDTH_MAX, d->width, &c->width));
    if (r->def->no_attention) return read_sizes_without(r, c);
    PL_TRY(read_u32(r, r->root, "intermediate_size", 1, PL_MLP_MAX, d->mlp_width, &c->mlp_width));
    PL_TRY(read_u32(r, r->root, "vocab_size", 1, PL_VOCAB_MAX, d->vocab, &c->vocab));
    PL_TRY(read_u32(r, r->root, "max_position_embeddings", 1, PL_CONTEXT_MAX, d->context, &c->context_train));
    PL_TRY(read_u32(r, r->root, "num_attention_heads", 1, PL_HEADS_MAX, d->heads, &c->heads));
    if (r->def->latent) return read_latent(r, c);
    uint32_t kv_heads = d->kv_heads > 0 && d->kv_heads <= c->heads ? d->kv_heads : c->heads;
    PL_TRY(read_u32(r, r->root, "num_key_value_heads", 1, c->heads, kv_heads, &c->kv_heads));
    uint32_t derived = c->width % c->heads == 0 && c->width / c->heads <= PL_HEAD_MAX ? c->width / c->heads : 0;
    const char *name = r->def->hf_head_dim != NULL ? r->def->hf_head_dim : "head_dim";
    PL_TRY(read_u32(r, r->root, name, 1, PL_HEAD_MAX, d->head_dim > 0 ? d->head_dim : derived, &c->head_dim));
    return read_rotary_part(r, c);
}

/* A layer has experts at every decoder_sparse_step-th place, unless mlp_only_layers names it. */
static enum pl_status read_moe_layers(struct reader *r, struct pl_model_config *c) {
    uint32_t step;
    const json_t *dense = field(r->root, "mlp_only_layers");
    PL_TRY(read_u32(r, r->root, "decoder_sparse_step", 1, UINT32_MAX, 1, &step));
    if (dense != NULL && !json_is_array(dense))
        PL_FAIL(r->err, PL_FORMAT, "config.json: field mlp_only_layers is %s; an array was expected", kind_of(dense));
    for (uint32_t l = 0; l < c->layers; l++) c->layer_moe[l] = (l + 1) % step == 0;
    for (size_t i = 0; i < json_array_size(dense); i++) {
        double l = 0;
        PL_TRY(read_entry(r, dense, "mlp_only_layers", i, &l));
        if (l >= 0 && l < c->layers) c->layer_moe[(uint32_t)l] = false;
    }
    return PL_OK;
}

/* How DeepSeek's routers choose: V2 by softmax, of the groups with the best experts; V3 by sigmoid with a bias, of those
 * whose two best are best together. */
static enum pl_status read_router(struct reader *r, struct pl_model_config *c) {
    bool glm = c->arch == PL_ARCH_GLM4_MOE, v3 = glm || c->arch == PL_ARCH_DEEPSEEK_V3;
    const json_t *method = field(r->root, "topk_method"), *scoring = field(r->root, "scoring_func");
    const char *how = json_is_string(method) ? json_string_value(method) : v3 ? "noaux_tc" : "greedy";
    const char *score = json_is_string(scoring) ? json_string_value(scoring) : v3 ? "sigmoid" : "softmax";
    bool grouped = v3 || strcmp(how, "group_limited_greedy") == 0;
    if ((method != NULL && !json_is_string(method)) || (scoring != NULL && !json_is_string(scoring)))
        PL_FAIL(r->err, PL_FORMAT, "config.json: topk_method is %s and scoring_func is %s; strings were expected",
                kind_of(method), kind_of(scoring));
    if (strcmp(score, v3 ? "sigmoid" : "softmax") != 0 ||
        (v3 ? strcmp(how, "noaux_tc") != 0 : !grouped && strcmp(how, "greedy") != 0))
        PL_FAIL(r->err, PL_UNSUPPORTED,
                "config.json: topk_method '%s' with scoring_func '%s' is not implemented for %s; known: greedy and "
                "group_limited_greedy with softmax for deepseek_v2, noaux_tc with sigmoid for deepseek_v3",
                PL_SHOWN_C(how), PL_SHOWN_C(score), r->hf->model_type);
    PL_TRY(read_bool(r, r->root, "norm_topk_prob", v3, &c->experts_renormalise));
    if (!v3 && c->experts_renormalise)
        PL_FAIL(r->err, PL_UNSUPPORTED, "config.json: norm_topk_prob is true, which is not implemented for %s",
                r->hf->model_type);
    PL_TRY(read_f32(r, r->root, "routed_scaling_factor", v3 && !glm ? 2.5 : 1, &c->experts_scale));
    c->experts_sigmoid = c->experts_bias = v3;
    if (!grouped) return PL_OK;
    PL_TRY(read_u32(r, r->root, "n_group", 1, PL_EXPERTS_MAX, glm ? 1 : v3 ? 8 : 0, &c->expert_groups));
    PL_TRY(read_u32(r, r->root, "topk_group", 1, PL_EXPERTS_MAX, glm ? 1 : v3 ? 4 : 0, &c->groups_used));
    c->expert_group_top = v3 ? 2 : 1;
    if (c->expert_groups == 1) c->expert_groups = 0;
    return PL_OK;
}

static enum pl_status read_deepseek_experts(struct reader *r, struct pl_model_config *c) {
    bool glm = c->arch == PL_ARCH_GLM4_MOE, v3 = glm || c->arch == PL_ARCH_DEEPSEEK_V3;
    uint32_t dense, freq, shared;
    PL_TRY(read_u32(r, r->root, "n_routed_experts", 1, PL_EXPERTS_MAX, glm ? 128 : v3 ? 256 : 64, &c->experts));
    PL_TRY(read_u32(r, r->root, "num_experts_per_tok", 1, PL_EXPERTS_MAX, v3 ? 8 : 0, &c->experts_used));
    PL_TRY(read_u32(r, r->root, "moe_intermediate_size", 1, PL_MLP_MAX, glm ? 1408 : v3 ? 2048 : 1407, &c->expert_width));
    bool none = json_is_null(json_object_get(r->root, "n_shared_experts"));
    PL_TRY(read_u32(r, r->root, "n_shared_experts", 0, PL_EXPERTS_MAX, none ? 0 : v3 ? 1 : 2, &shared));
    PL_TRY(read_u32(r, r->root, "first_k_dense_replace", 0, UINT32_MAX, glm ? 1 : v3 ? 3 : 0, &dense));
    PL_TRY(read_u32(r, r->root, "moe_layer_freq", 1, UINT32_MAX, 1, &freq));
    if (freq != 1)
        PL_FAIL(r->err, PL_UNSUPPORTED, "config.json: moe_layer_freq is %u; experts in every layer, 1, are implemented",
                freq);
    if ((uint64_t)shared * c->expert_width > PL_MLP_MAX)
        PL_FAIL(r->err, PL_FORMAT, "config.json: %u shared experts of width %u: together at most %u was expected", shared,
                c->expert_width, PL_MLP_MAX);
    c->shared_width = shared * c->expert_width; /* together they are one */
    for (uint32_t l = 0; l < c->layers; l++) c->layer_moe[l] = l >= dense;
    return read_router(r, c);
}

/* Jamba: experts at every period-th layer; one expert is none. */
static enum pl_status read_jamba_experts(struct reader *r, struct pl_model_config *c) {
    uint32_t period, offset;
    PL_TRY(read_u32(r, r->root, "num_experts", 0, PL_EXPERTS_MAX, 16, &c->experts));
    PL_TRY(read_u32(r, r->root, "num_experts_per_tok", 1, PL_EXPERTS_MAX, 2, &c->experts_used));
    PL_TRY(read_u32(r, r->root, "expert_layer_period", 1, UINT32_MAX, 2, &period));
    PL_TRY(read_u32(r, r->root, "expert_layer_offset", 0, UINT32_MAX, 1, &offset));
    if (c->experts <= 1) c->experts = c->experts_used = 0;
    c->expert_width = c->mlp_width;
    for (uint32_t l = 0; l < c->layers; l++) c->layer_moe[l] = c->experts > 0 && l % period == offset;
    return PL_OK;
}

/* Granite 4, and 3 with experts: an expert that always counts, and others or none; without them it is the MLP. */
static enum pl_status read_granite_experts(struct reader *r, struct pl_model_config *c) {
    PL_TRY(read_u32(r, r->root, "num_local_experts", 0, PL_EXPERTS_MAX, 8, &c->experts));
    bool always = c->arch == PL_ARCH_GRANITE_HYBRID; /* Granite 3: where its file says so */
    PL_TRY(read_u32(r, r->root, "shared_intermediate_size", always, PL_MLP_MAX, always ? 1024 : 0, &c->shared_width));
    c->experts_renormalise = true;
    if (c->experts == 0) {
        c->mlp_width = c->shared_width;
        c->shared_width = 0;
        return PL_OK;
    }
    c->expert_width = c->mlp_width;
    for (uint32_t l = 0; l < c->layers; l++) c->layer_moe[l] = true;
    return read_u32(r, r->root, "num_experts_per_tok", 1, PL_EXPERTS_MAX, 2, &c->experts_used);
}

/* LFM2: sigmoids with a bias for the choice, past the first layers. */
static enum pl_status read_lfm2_experts(struct reader *r, struct pl_model_config *c) {
    uint32_t dense;
    PL_TRY(read_u32(r, r->root, "num_experts", 1, PL_EXPERTS_MAX, 32, &c->experts));
    PL_TRY(read_u32(r, r->root, "num_experts_per_tok", 1, PL_EXPERTS_MAX, 4, &c->experts_used));
    PL_TRY(read_u32(r, r->root, "moe_intermediate_size", 1, PL_MLP_MAX, 1792, &c->expert_width));
    PL_TRY(read_u32(r, r->root, "num_dense_layers", 0, UINT32_MAX, 2, &dense));
    PL_TRY(read_bool(r, r->root, "use_expert_bias", true, &c->experts_bias));
    PL_TRY(read_bool(r, r->root, "norm_topk_prob", true, &c->experts_renormalise));
    PL_TRY(read_f32(r, r->root, "routed_scaling_factor", 1, &c->experts_scale));
    c->experts_sigmoid = true;
    for (uint32_t l = 0; l < c->layers; l++) c->layer_moe[l] = l >= dense;
    return PL_OK;
}

static enum pl_status read_experts(struct reader *r, struct pl_model_config *c) {
    const struct pl_arch_def *d = r->def;
    if (c->arch == PL_ARCH_LFM2_MOE) return read_lfm2_experts(r, c);
    if (d->deepseek_moe) return read_deepseek_experts(r, c);
    bool next = d->ssm == PL_SSM_DELTA;
    bool own = c->arch == PL_ARCH_QWEN2_MOE || c->arch == PL_ARCH_QWEN3_MOE || next; /* narrower than intermediate_size */
    if (!d->moe) return PL_OK;
    if (c->arch == PL_ARCH_JAMBA) return read_jamba_experts(r, c);
    if (c->arch == PL_ARCH_NEMOTRON_H) return PL_OK; /* where its layers are read */
    if (d->moe_optional || c->arch == PL_ARCH_GRANITE_MOE) return read_granite_experts(r, c);
    bool local = c->arch == PL_ARCH_MIXTRAL || c->arch == PL_ARCH_GPT_OSS;
    uint32_t count = c->arch == PL_ARCH_MIXTRAL       ? 8
                     : c->arch == PL_ARCH_QWEN2_MOE   ? 60
                     : c->arch == PL_ARCH_OLMOE       ? 64
                     : c->arch == PL_ARCH_QWEN3_NEXT  ? 512
                     : c->arch == PL_ARCH_QWEN3_5_MOE ? 256
                                                      : 128;
    uint32_t used = c->arch == PL_ARCH_MIXTRAL                                   ? 2
                    : c->arch == PL_ARCH_QWEN2_MOE || c->arch == PL_ARCH_GPT_OSS ? 4
                    : c->arch == PL_ARCH_QWEN3_NEXT                              ? 10
                                                                                 : 8;
    const char *name = local ? "num_local_experts" : "num_experts", *other = local ? "num_experts" : "num_local_experts";
    if (json_object_get(r->root, name) == NULL && json_object_get(r->root, other) != NULL)
        name = other; /* both are written */
    PL_TRY(read_u32(r, r->root, name, 1, PL_EXPERTS_MAX, count, &c->experts));
    PL_TRY(read_u32(r, r->root, "num_experts_per_tok", 1, PL_EXPERTS_MAX, used, &c->experts_used));
    c->expert_width = c->mlp_width;
    if (own)
        PL_TRY(read_u32(r, r->root, "moe_intermediate_size", 1, PL_MLP_MAX,
                        next               ? 512
                        : d->shared_expert ? 1408
                                           : 768,
                        &c->expert_width));
    if (d->shared_expert)
        PL_TRY(read_u32(r, r->root, "shared_expert_intermediate_size", 1, PL_MLP_MAX, next ? 512 : 5632, &c->shared_width));
    PL_TRY(read_bool(r, r->root, "norm_topk_prob", next, &c->experts_renormalise));
    c->experts_renormalise = c->experts_renormalise || c->arch == PL_ARCH_QWEN3_5_MOE; /* always */
    double clip, alpha, limit;
    PL_TRY(read_f64(r, r->root, "swiglu_alpha", 1.702, &alpha));
    PL_TRY(read_f64(r, r->root, "swiglu_limit", 7, &limit));
    if (c->arch == PL_ARCH_GPT_OSS && (fabs(alpha - 1.702) > 1e-6 || limit != 7))
        PL_FAIL(r->err, PL_UNSUPPORTED, "config.json: swiglu_alpha %g and swiglu_limit %g: 1.702 and 7 are implemented",
                alpha, limit);
    PL_TRY(read_f64(r, r->root, "clip_qkv", 0, &clip));
    if (clip != 0) PL_FAIL(r->err, PL_UNSUPPORTED, "config.json: clip_qkv is %g, which is not implemented", clip);
    return read_moe_layers(r, c);
}

static enum pl_status read_act(struct reader *r, struct pl_model_config *c) {
    const char *name = r->def->hf_act != NULL ? r->def->hf_act : "hidden_act";
    const json_t *v = field(r->root, name);
    c->mlp_act = r->def->act;
    if (v == NULL) return PL_OK;
    const char *s = json_is_string(v) ? json_string_value(v) : "";
    if (r->def->ternary && strcmp(s, "relu2") == 0) return PL_OK;
    bool silu = strcmp(s, "silu") == 0 || strcmp(s, "swish") == 0;
    if (strcmp(s, "gelu") == 0 && !r->def->moe) {
        c->mlp_act = PL_OPS_GELU;
        return PL_OK;
    }
    if (!silu && strcmp(s, "gelu_pytorch_tanh") != 0 && strcmp(s, "gelu_new") != 0)
        PL_FAIL(r->err, PL_UNSUPPORTED, "config.json: %s '%s' is not implemented; known: silu, gelu_pytorch_tanh%s", name,
                PL_SHOWN_C(s), r->def->moe ? "" : ", gelu");
    c->mlp_act = silu ? PL_OPS_SILU : PL_OPS_GELU_TANH;
    return PL_OK;
}

/* Null is the library's None: 0. */
static enum pl_status read_fields(struct reader *r, struct pl_model_config *c) {
    for (size_t i = 0; i < r->def->field_count; i++) {
        const struct pl_arch_field *f = &r->def->fields[i];
        if (f->hf == NULL) continue;
        bool null = json_is_null(json_object_get(r->root, f->hf));
        PL_TRY(read_f32(r, r->root, f->hf, null ? 0 : f->missing, pl_field_slot(c, f)));
    }
    return PL_OK;
}

static enum pl_status read_numbers(struct reader *r, struct pl_model_config *c) {
    c->layer_norm = r->def->layer_norm;
    PL_TRY(read_f32(r, r->root, r->def->hf_eps != NULL ? r->def->hf_eps : "rms_norm_eps", r->hf->eps, &c->norm_eps));
    double scale_width = r->def->no_attention ? 1 : c->head_dim;
    if (r->def->query_scalar) PL_TRY(read_f64(r, r->root, "query_pre_attn_scalar", 256, &scale_width));
    if (!(scale_width > 0))
        PL_FAIL(r->err, PL_FORMAT, "config.json: field query_pre_attn_scalar is %g; a positive number was expected",
                scale_width);
    c->attn_scale = (float)(1 / sqrt(scale_width));
    c->norm_offset = r->def->hf_norm_offset;
    if (r->def->embed_by_width) c->embed_scale = (float)sqrt((double)c->width);
    if (!has_field(r->def, "attn_logit_softcapping") && r->def->query_scalar) {
        float ignored = 0; /* checked, but Gemma 3's own library does not apply it */
        PL_TRY(read_f32(r, r->root, "attn_logit_softcapping", 0, &ignored));
        if (ignored != 0) pl_log("config.json: attn_logit_softcapping is not applied by gemma3 models");
    }
    PL_TRY(read_fields(r, c));
    return read_act(r, c);
}

/* A composite model may say it on either level; the outer one is what its library reads last. Where no level says it, or the
 * two disagree, a checkpoint that has an output matrix needs it, and one without has the other. Where they are said to be
 * one and both are there with different values, each is used, as in transformers 5. */
static enum pl_status read_tied(struct reader *r, const json_t *config, struct pl_model_config *c) {
    static const char name[] = "tie_word_embeddings";
    const json_t *inner = field(r->root, name), *outer = field(config, name);
    PL_TRY(read_bool(r, r->root, name, r->hf->tied, &c->tied_embeddings));
    PL_TRY(read_bool(r, config, name, c->tied_embeddings, &c->tied_embeddings));
    bool disagree = inner != NULL && outer != NULL && !json_equal(inner, outer);
    bool said = (inner != NULL || outer != NULL) && !disagree;
    if (!said && pl_hf_prefix(r->f) != NULL) c->tied_embeddings = !pl_hf_has_head(r->f);
    if (!c->tied_embeddings || !pl_hf_head_differs(r->f)) return PL_OK;
    pl_log("config.json: %s is true, but the checkpoint's lm_head.weight is not its embeddings: it is used", name);
    c->tied_embeddings = false;
    return PL_OK;
}

static enum pl_status read_biases(struct reader *r, const json_t *config, struct pl_model_config *c) {
    bool unused;
    PL_TRY(read_bool(r, r->root, "attention_bias", false, &unused));
    PL_TRY(read_bool(r, r->root, "mlp_bias", false, &unused));
    for (size_t i = 0; i < PL_COUNT_OF(r->def->biases); i++) {
        const struct pl_arch_bias *b = &r->def->biases[i];
        bool on = b->missing;
        if (b->field != NULL) PL_TRY(read_bool(r, r->root, b->field, b->missing, &on));
        c->qkv_bias = c->qkv_bias || (on && (b->parts & PL_BIAS_QKV) != 0);
        c->o_bias = c->o_bias || (on && (b->parts & PL_BIAS_O) != 0);
        c->mlp_bias = c->mlp_bias || (on && (b->parts & PL_BIAS_MLP) != 0);
    }
    PL_TRY(read_bool(r, r->root, "use_qk_norm", false, &c->qk_norm));
    c->qk_norm = c->qk_norm || r->def->qk_norm;
    return read_tied(r, config, c);
}

/* --- rotary embedding --- */

static float yarn_magnitude(double factor, double mscale) {
    return factor <= 1 ? 1.0f : (float)(0.1 * mscale * log(factor) + 1);
}

static enum pl_status read_yarn(struct reader *r, const json_t *o, struct pl_model_config *c) {
    double attention, fast, slow, mscale, mscale_all;
    PL_TRY(read_f64(r, o, "attention_factor", 0, &attention));
    PL_TRY(read_f64(r, o, "beta_fast", 0, &fast));
    PL_TRY(read_f64(r, o, "beta_slow", 0, &slow));
    PL_TRY(read_f64(r, o, "mscale", 0, &mscale));
    PL_TRY(read_f64(r, o, "mscale_all_dim", 0, &mscale_all));
    PL_TRY(read_bool(r, o, "truncate", true, &c->rope_truncate));
    c->mscale_all = (float)mscale_all;
    if (fast != 0) c->rope_beta_fast = (float)fast;
    if (slow != 0) c->rope_beta_slow = (float)slow;
    if (attention != 0)
        c->rope_attn_factor = (float)attention;
    else if (mscale != 0 && mscale_all != 0)
        c->rope_attn_factor = yarn_magnitude(c->rope_factor, mscale) / yarn_magnitude(c->rope_factor, mscale_all);
    else
        c->rope_attn_factor = yarn_magnitude(c->rope_factor, 1);
    return PL_OK;
}

static enum pl_status read_divisors(struct reader *r, const json_t *o, const char *name, uint32_t pairs, float *out) {
    const json_t *list = field(o, name);
    if (!json_is_array(list) || json_array_size(list) != pairs)
        PL_FAIL(r->err, PL_FORMAT, "config.json: %s has %zu entries; one per rotated pair (%u) was expected", name,
                json_array_size(list), pairs);
    for (uint32_t i = 0; i < pairs; i++) {
        double v = json_number_value(json_array_get(list, i));
        if (!(v > 0) || !(v <= 3e38)) PL_FAIL(r->err, PL_FORMAT, "config.json: %s[%u] is no positive number", name, i);
        out[i] = (float)v;
    }
    return PL_OK;
}

static enum pl_status read_longrope(struct reader *r, const json_t *o, struct pl_model_config *c) {
    c->rope_scaling = PL_ROPE_LONG;
    PL_TRY(read_u32(r, r->root, "original_max_position_embeddings", 1, PL_CONTEXT_MAX,
                    r->def->longrope ? 4096 : c->context_train, &c->rope_context_orig));
    PL_TRY(
        read_u32(r, o, "original_max_position_embeddings", 1, PL_CONTEXT_MAX, c->rope_context_orig, &c->rope_context_orig));
    double orig = c->rope_context_orig, factor = c->context_train / orig;
    if (!r->def->longrope) PL_TRY(read_f64(r, o, "factor", factor, &factor));
    double attention = factor <= 1 || orig <= 1 ? 1 : sqrt(1 + log(factor) / log(orig));
    PL_TRY(read_f32(r, o, "attention_factor", attention, &c->rope_attn_factor));
    PL_TRY(read_divisors(r, o, "short_factor", c->rope_dim / 2, c->rope_short));
    return read_divisors(r, o, "long_factor", c->rope_dim / 2, c->rope_long);
}

/* One set of rotary parameters: rope_scaling, or rope_parameters of newer files. NULL: unscaled. */
static enum pl_status read_scaling(struct reader *r, const json_t *o, struct pl_model_config *c) {
    if (o == NULL) return PL_OK;
    const json_t *type = field(o, "rope_type");
    if (type == NULL) type = field(o, "type");
    const char *name = type == NULL ? "default" : json_is_string(type) ? json_string_value(type) : "";
    if (strcmp(name, "default") == 0) return PL_OK;
    if (strcmp(name, "mrope") == 0 && field(o, "mrope_section") != NULL) return PL_OK; /* of text all sections turn alike */
    if (strcmp(name, "longrope") == 0 || strcmp(name, "su") == 0 || (r->def->longrope && strcmp(name, "yarn") == 0))
        return read_longrope(r, o, c); /* the older names are Phi-3's */
    bool dynamic = strcmp(name, "dynamic") == 0;
    if (strcmp(name, "linear") == 0)
        c->rope_scaling = PL_ROPE_LINEAR;
    else if (strcmp(name, "llama3") == 0)
        c->rope_scaling = PL_ROPE_LLAMA3;
    else if (strcmp(name, "yarn") == 0)
        c->rope_scaling = PL_ROPE_YARN;
    else if (dynamic)
        c->rope_scaling = PL_ROPE_DYNAMIC;
    else
        PL_FAIL(
            r->err, PL_UNSUPPORTED,
            "config.json: rotary scaling '%s' is not implemented; known: default, linear, dynamic, llama3, yarn, longrope",
            PL_SHOWN_C(name));
    PL_TRY(read_f32(r, o, "factor", 0, &c->rope_factor));
    if (!(c->rope_factor > 0)) PL_FAIL(r->err, PL_FORMAT, "config.json: rotary scaling '%s' needs a positive factor", name);
    if (dynamic) { /* its library counts from max_position_embeddings, which such files leave at the original context */
        c->rope_context_orig = c->context_train;
        c->context_train = (uint32_t)fmin((double)c->context_train * fmax((double)c->rope_factor, 1), PL_CONTEXT_MAX);
        return PL_OK;
    }
    PL_TRY(read_u32(r, o, "original_max_position_embeddings", 1, PL_CONTEXT_MAX, c->context_train, &c->rope_context_orig));
    PL_TRY(read_f32(r, o, "low_freq_factor", 1, &c->rope_low_freq));
    PL_TRY(read_f32(r, o, "high_freq_factor", 4, &c->rope_high_freq));
    return c->rope_scaling == PL_ROPE_YARN ? read_yarn(r, o, c) : PL_OK;
}

static enum pl_status read_object(struct reader *r, const json_t *o, const char *name, const json_t **out) {
    *out = field(o, name);
    if (*out != NULL && !json_is_object(*out))
        PL_FAIL(r->err, PL_FORMAT, "config.json: field %s is %s; an object was expected", name, kind_of(*out));
    return PL_OK;
}

/* Ministral 3: queries grow by 1 + beta * log(1 + floor(position / original context)): not at all before that. */
static enum pl_status read_position_scale(struct reader *r, struct pl_model_config *c) {
    double beta = 0;
    if (c->arch != PL_ARCH_MINISTRAL3) return PL_OK;
    const json_t *o = field(r->root, "rope_parameters");
    if (o == NULL) PL_FAIL(r->err, PL_FORMAT, "config.json: field rope_parameters is missing; a ministral3 model needs it");
    PL_TRY(read_f64(r, o, "llama_4_scaling_beta", 0, &beta));
    if (beta == 0) return PL_OK;
    PL_TRY(read_u32(r, o, "original_max_position_embeddings", 1, PL_CONTEXT_MAX, 0, &c->context_limit));
    return PL_OK;
}

/* What rope_scaling says goes before rope_parameters, and either before the fields beside them. */
static enum pl_status read_rope(struct reader *r, struct pl_model_config *c) {
    const json_t *parameters, *scaling, *global, *local;
    PL_TRY(read_object(r, r->root, "rope_scaling", &scaling));
    PL_TRY(read_object(r, r->root, "rope_parameters", &parameters));
    PL_TRY(read_object(r, parameters, "full_attention", &global));
    PL_TRY(read_object(r, parameters, "sliding_attention", &local));
    if (global == NULL && local == NULL) global = parameters;
    bool pairs = r->def->hf_pairs;
    if (r->def->latent) PL_TRY(read_bool(r, r->root, "rope_interleave", true, &pairs));
    c->rope_halves = !pairs;
    double theta, theta_local;
    PL_TRY(read_f64(r, r->root, "rope_theta", r->hf->rope_theta, &theta));
    PL_TRY(read_f64(r, global, "rope_theta", theta, &theta));
    PL_TRY(read_f32(r, scaling, "rope_theta", theta, &c->rope_base));
    PL_TRY(read_f64(r, r->root, "rope_local_base_freq", r->def->rope_base_local > 0 ? r->def->rope_base_local : c->rope_base,
                    &theta_local));
    PL_TRY(read_f32(r, local, "rope_theta", theta_local, &c->rope_base_local));
    const json_t *local_type = field(local, "rope_type");
    if (json_is_string(local_type) && strcmp(json_string_value(local_type), "default") != 0)
        PL_FAIL(r->err, PL_UNSUPPORTED, "config.json: rotary scaling '%s' on sliding layers is not implemented",
                PL_SHOWN_C(json_string_value(local_type)));
    return read_scaling(r, json_object_size(scaling) > 0 ? scaling : global, c);
}

/* --- layers that do not rotate, sliding windows --- */

static enum pl_status read_nope(struct reader *r, struct pl_model_config *c) {
    bool by_windows = r->def->nope == PL_NOPE_GLOBAL || r->def->nope == PL_NOPE_BESIDE_WINDOWS;
    if (r->def->nope == PL_NOPE_NONE || by_windows) return PL_OK;
    for (uint32_t l = 0; l < c->layers; l++) c->layer_nope[l] = true;
    if (r->def->nope == PL_NOPE_ALL) return PL_OK;
    const json_t *list = field(r->root, "no_rope_layers");
    uint32_t interval = 4;
    PL_TRY(read_u32(r, r->root, "no_rope_layer_interval", 1, UINT32_MAX, 4, &interval));
    if (list != NULL && (!json_is_array(list) || json_array_size(list) < c->layers))
        PL_FAIL(r->err, PL_FORMAT, "config.json: no_rope_layers has %zu entries; one per layer (%u) was expected",
                json_array_size(list), c->layers);
    for (uint32_t l = 0; l < c->layers; l++) { /* the list says 1 where a layer does rotate */
        double rotates = (l + 1) % interval;
        if (list != NULL) PL_TRY(read_entry(r, list, "no_rope_layers", l, &rotates));
        c->layer_nope[l] = rotates == 0;
    }
    return PL_OK;
}

static enum pl_status read_layer_types(struct reader *r, const json_t *types, struct pl_model_config *c) {
    if (!json_is_array(types) || json_array_size(types) != c->layers)
        PL_FAIL(r->err, PL_FORMAT, "config.json: layer_types has %zu entries; one per layer (%u) was expected",
                json_array_size(types), c->layers);
    for (uint32_t l = 0; l < c->layers; l++) {
        const json_t *v = json_array_get(types, l);
        const char *s = json_is_string(v) ? json_string_value(v) : "";
        bool windowed = strcmp(s, "sliding_attention") == 0;
        if (!windowed && strcmp(s, "full_attention") != 0)
            PL_FAIL(r->err, PL_UNSUPPORTED,
                    "config.json: layer_types[%u] is '%s'; full_attention and sliding_attention are implemented", l,
                    PL_SHOWN_C(s));
        if (windowed && c->window == 0)
            PL_FAIL(r->err, PL_FORMAT, "config.json: layer_types[%u] is sliding_attention but sliding_window is missing", l);
        c->layer_windowed[l] = windowed;
    }
    return PL_OK;
}

static enum pl_status read_window(struct reader *r, struct pl_model_config *c) {
    bool opt_in = r->def->window_opt_in, use = false;
    if (!r->def->windows) return PL_OK;
    PL_TRY(read_bool(r, r->root, "use_sliding_window", !opt_in, &use));
    if (!use && opt_in) return PL_OK;
    /* Absent is the default, null is none. */
    bool absent = json_object_get(r->root, "sliding_window") == NULL;
    PL_TRY(read_u32(r, r->root, "sliding_window", 0, PL_CONTEXT_MAX, absent ? r->def->window_default : 0, &c->window));
    const json_t *types = field(r->root, "layer_types");
    if (types != NULL && !r->def->layer_types_ignored) return read_layer_types(r, types, c);
    uint32_t pattern = r->def->window_pattern, first = 28;
    PL_TRY(read_u32(r, r->root, "sliding_window_pattern", 0, PL_MODEL_LAYERS_MAX, pattern, &pattern));
    PL_TRY(read_u32(r, r->root, "_sliding_window_pattern", 0, PL_MODEL_LAYERS_MAX, pattern, &pattern));
    PL_TRY(read_u32(r, r->root, "max_window_layers", 0, UINT32_MAX, 28, &first));
    for (uint32_t l = 0; l < c->layers; l++) {
        bool windowed = pattern > 0 ? (l + 1) % pattern != 0 : opt_in ? l >= first : true;
        if (r->def->nope == PL_NOPE_FOURTH) windowed = c->layer_nope[l];
        c->layer_windowed[l] = windowed && c->window > 0;
    }
    return PL_OK;
}

enum pl_status pl_config_read_hf(const struct pl_file *f, struct pl_model_config *c, struct pl_err *err) {
    const json_t *config = pl_file_json(f, PL_JSON_CONFIG);
    if (!json_is_object(config)) PL_FAIL(err, PL_FORMAT, "config.json is missing, or no object");
    struct reader r = {.f = f, .root = config, .err = err};
    PL_TRY(find_arch(&r, config));
    c->arch = r.hf->arch;
    PL_TRY(check_head(&r, config));
    PL_TRY(refuse_features(&r, config));
    PL_TRY(read_ternary(&r, config, c));
    PL_TRY(read_sizes(&r, c));
    PL_TRY(read_experts(&r, c));
    if (r.def->ssm != PL_SSM_NONE) PL_TRY(pl_config_ssm_hf(r.root, c, err));
    PL_TRY(read_numbers(&r, c));
    PL_TRY(read_biases(&r, config, c));
    PL_TRY(read_rope(&r, c));
    PL_TRY(read_position_scale(&r, c));
    PL_TRY(read_nope(&r, c));
    PL_TRY(read_window(&r, c));
    bool globals = r.def->nope == PL_NOPE_GLOBAL || (r.def->nope == PL_NOPE_BESIDE_WINDOWS && c->window > 0);
    for (uint32_t l = 0; l < c->layers && globals; l++) c->layer_nope[l] = !c->layer_windowed[l];
    return r.def->ssm != PL_SSM_NONE ? pl_config_ssm_layers(f, r.root, c, err) : PL_OK;
}

enum pl_status pl_hf_u32(const json_t *o, const char *name, uint32_t min, uint32_t max, uint32_t missing, uint32_t *out,
                         struct pl_err *err) {
    struct reader r = {.err = err};
    return read_u32(&r, o, name, min, max, missing, out);
}
enum pl_status pl_hf_entry(const json_t *list, const char *name, size_t i, double *out, struct pl_err *err) {
    struct reader r = {.err = err};
    return read_entry(&r, list, name, i, out);
}
enum pl_status pl_hf_f32(const json_t *o, const char *name, double missing, float *out, struct pl_err *err) {
    struct reader r = {.err = err};
    return read_f32(&r, o, name, missing, out);
}
enum pl_status pl_hf_bool(const json_t *o, const char *name, bool missing, bool *out, struct pl_err *err) {
    struct reader r = {.err = err};
    return read_bool(&r, o, name, missing, out);
}
