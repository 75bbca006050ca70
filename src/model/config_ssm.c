/* What a configuration says of state-space layers: the same numbers under the names of each family. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "file/show.h"
#include "model/arch.h"

enum { INNER_MAX = 1 << 20, RANK_MAX = 1 << 16 };

/* Names in config.json; NULL: this family does not say it. */
struct names {
    const char *inner, *heads, *head_dim, *groups, *state, *conv, *expand, *rank, *conv_bias, *proj_bias;
    uint32_t heads_missing, head_dim_missing, groups_missing, state_missing;
};
static const struct names mamba_names = {.inner = "intermediate_size",
                                         .state = "state_size",
                                         .conv = "conv_kernel",
                                         .expand = "expand",
                                         .rank = "time_step_rank",
                                         .conv_bias = "use_conv_bias",
                                         .proj_bias = "use_bias",
                                         .state_missing = 16};

static const struct names mamba2_names = {.heads = "num_heads",
                                          .head_dim = "head_dim",
                                          .groups = "n_groups",
                                          .state = "state_size",
                                          .conv = "conv_kernel",
                                          .expand = "expand",
                                          .conv_bias = "use_conv_bias",
                                          .proj_bias = "use_bias",
                                          .heads_missing = 128,
                                          .head_dim_missing = 64,
                                          .groups_missing = 8,
                                          .state_missing = 128};

static const struct names hybrid_names = {.heads = "mamba_n_heads",
                                          .head_dim = "mamba_d_head",
                                          .groups = "mamba_n_groups",
                                          .state = "mamba_d_state",
                                          .conv = "mamba_d_conv",
                                          .expand = "mamba_expand",
                                          .conv_bias = "mamba_conv_bias",
                                          .proj_bias = "mamba_proj_bias",
                                          .heads_missing = 128,
                                          .groups_missing = 1,
                                          .state_missing = 256};

static const struct names jamba_names = {.state = "mamba_d_state",
                                         .conv = "mamba_d_conv",
                                         .expand = "mamba_expand",
                                         .rank = "mamba_dt_rank",
                                         .conv_bias = "mamba_conv_bias",
                                         .proj_bias = "mamba_proj_bias",
                                         .state_missing = 16};
static const struct names nemotron_names = {.heads = "mamba_num_heads",
                                            .head_dim = "mamba_head_dim",
                                            .groups = "n_groups",
                                            .state = "ssm_state_size",
                                            .conv = "conv_kernel",
                                            .expand = "expand",
                                            .conv_bias = "use_conv_bias",
                                            .proj_bias = "use_bias",
                                            .heads_missing = 128,
                                            .head_dim_missing = 64,
                                            .groups_missing = 8,
                                            .state_missing = 128};
static const struct names plamo2_names = {.heads = "mamba_num_heads",
                                          .head_dim = "hidden_size_per_head",
                                          .state = "mamba_d_state",
                                          .conv = "mamba_d_conv",
                                          .heads_missing = 64,
                                          .head_dim_missing = 128,
                                          .groups_missing = 1,
                                          .state_missing = 64};

static const struct names *names_of(enum pl_arch a) {
    return a == PL_ARCH_JAMBA                                      ? &jamba_names
           : a == PL_ARCH_PLAMO2                                   ? &plamo2_names
           : a == PL_ARCH_NEMOTRON_H                               ? &nemotron_names
           : a == PL_ARCH_GRANITE_HYBRID || a == PL_ARCH_FALCON_H1 ? &hybrid_names
           : a == PL_ARCH_MAMBA2                                   ? &mamba2_names
                                                                   : &mamba_names;
}

/* Infinity is 1e308 by now, or an object that names it (newer files). */
static bool limit_at(const json_t *list, size_t i, float *out) {
    const json_t *v = json_array_get(list, i);
    if (json_is_object(v)) v = json_object_get(v, "__float__");
    bool infinite = json_is_string(v) && strcmp(json_string_value(v), "Infinity") == 0;
    if (!json_is_number(v) && !infinite) return false;
    double n = infinite ? 1e308 : json_number_value(v);
    *out = (float)fmin(n, 3e38);
    return n >= 0;
}

static enum pl_status read_limits(const json_t *o, struct pl_model_config *c, struct pl_err *err) {
    const json_t *list = json_object_get(o, "time_step_limit");
    c->ssm.dt_min = 0;
    c->ssm.dt_max = 3e38f;
    if (list == NULL || json_is_null(list) || c->ssm.kind == PL_SSM_MAMBA) return PL_OK;
    if (json_array_size(list) != 2 || !limit_at(list, 0, &c->ssm.dt_min) || !limit_at(list, 1, &c->ssm.dt_max))
        PL_FAIL(err, PL_FORMAT, "config.json: time_step_limit is no pair of numbers from 0 on");
    return PL_OK;
}

/* A number, or the text "auto". */
static enum pl_status u32_or_auto(const json_t *o, const char *name, uint32_t max, uint32_t automatic, uint32_t *out,
                                  struct pl_err *err) {
    const json_t *v = json_object_get(o, name);
    *out = automatic;
    if (json_is_string(v) && strcmp(json_string_value(v), "auto") == 0) return PL_OK;
    return pl_hf_u32(o, name, 1, max, automatic, out, err);
}

/* No file says it. */
static uint32_t plamo2_rank(uint32_t width) { return PL_MAX(64u, width / 16); }

static enum pl_status read_widths(const json_t *o, const struct names *n, struct pl_model_config *c, struct pl_err *err) {
    struct pl_ssm_config *s = &c->ssm;
    float expand = 2;
    PL_TRY(pl_hf_f32(o, n->expand, 2, &expand, err));
    if (!(expand > 0) || !(expand <= 64))
        PL_FAIL(err, PL_FORMAT, "config.json: %s is %g; a number above 0 and up to 64 was expected", n->expand,
                (double)expand);
    uint32_t inner = (uint32_t)(expand * (float)c->width);
    if (inner > INNER_MAX) PL_FAIL(err, PL_FORMAT, "config.json: an inner width of %u is larger than %d", inner, INNER_MAX);
    s->inner = inner;
    if (c->arch == PL_ARCH_FALCON_H1) PL_TRY(pl_hf_u32(o, "mamba_d_ssm", 1, INNER_MAX, inner, &s->inner, err));
    if (n->inner != NULL) PL_TRY(pl_hf_u32(o, n->inner, 1, INNER_MAX, inner, &s->inner, err));
    if (s->kind == PL_SSM_MAMBA) {
        s->heads = s->inner;
        s->head_dim = s->groups = 1;
        return u32_or_auto(o, n->rank, RANK_MAX, (c->width + 15) / 16, &s->dt_rank, err);
    }
    PL_TRY(pl_hf_u32(o, n->heads, 1, PL_HEADS_MAX, n->heads_missing, &s->heads, err));
    PL_TRY(pl_hf_u32(o, n->groups, 1, PL_HEADS_MAX, n->groups_missing, &s->groups, err));
    PL_TRY(u32_or_auto(o, n->head_dim, INNER_MAX, n->head_dim_missing > 0 ? n->head_dim_missing : s->inner / s->heads,
                       &s->head_dim, err));
    if (c->arch == PL_ARCH_NEMOTRON_H || s->kind == PL_SSM_HEADS)
        s->inner = (uint32_t)PL_MIN((uint64_t)s->heads * s->head_dim, (uint64_t)INNER_MAX);
    if (s->kind == PL_SSM_HEADS) s->dt_rank = plamo2_rank(c->width);
    return PL_OK;
}

/* What follows the convolution; a library without the field has no other. */
static enum pl_status check_act(const json_t *o, enum pl_arch arch, struct pl_err *err) {
    const char *name = arch == PL_ARCH_NEMOTRON_H ? "mamba_hidden_act" : "hidden_act";
    const json_t *v = json_object_get(o, name);
    if (v == NULL || json_is_null(v)) return PL_OK;
    const char *s = json_is_string(v) ? json_string_value(v) : "no text";
    if (strcmp(s, "silu") == 0 || strcmp(s, "swish") == 0) return PL_OK;
    PL_FAIL(err, PL_UNSUPPORTED, "config.json: %s is '%s', which is not implemented for state-space layers; silu is", name,
            PL_SHOWN_C(s));
}

/* No other state than the convolution's: one head a channel, none of which has numbers. */
static void only_convolution(struct pl_model_config *c) {
    struct pl_ssm_config *s = &c->ssm;
    s->inner = s->heads = c->width;
    s->head_dim = s->groups = 1;
    s->dt_max = 3e38f;
}

static enum pl_status read_convolution(const json_t *o, struct pl_model_config *c, struct pl_err *err) {
    bool bias = false;
    PL_TRY(pl_hf_bool(o, "conv_bias", false, &bias, err));
    if (bias) PL_FAIL(err, PL_UNSUPPORTED, "config.json: conv_bias is true, which is not implemented");
    only_convolution(c);
    return pl_hf_u32(o, "conv_L_cache", 2, PL_OPS_CONV_MAX, 3, &c->ssm.conv, err);
}

static enum pl_status read_delta(const json_t *o, struct pl_model_config *c, struct pl_err *err) {
    struct pl_ssm_config *s = &c->ssm;
    uint32_t heads;
    PL_TRY(pl_hf_u32(o, "linear_num_value_heads", 1, PL_HEADS_MAX, 32, &heads, err));
    PL_TRY(pl_hf_u32(o, "linear_value_head_dim", 1, PL_OPS_SSM_HEAD_MAX, 128, &s->head_dim, err));
    PL_TRY(pl_hf_u32(o, "linear_num_key_heads", 1, PL_HEADS_MAX, 16, &s->groups, err));
    PL_TRY(pl_hf_u32(o, "linear_key_head_dim", 1, PL_OPS_STATE_MAX, 128, &s->state, err));
    s->heads = heads;
    s->inner = heads * s->head_dim;
    s->dt_max = 3e38f;
    s->norm = true;
    return pl_hf_u32(o, "linear_conv_kernel_dim", 2, PL_OPS_CONV_MAX, 4, &s->conv, err);
}

enum pl_status pl_config_ssm_hf(const json_t *o, struct pl_model_config *c, struct pl_err *err) {
    const struct names *n = names_of(c->arch);
    struct pl_ssm_config *s = &c->ssm;
    bool proj_bias = false;
    s->kind = pl_arch_def(c->arch)->ssm;
    if (s->kind == PL_SSM_CONV) return read_convolution(o, c, err);
    if (s->kind == PL_SSM_DELTA) return read_delta(o, c, err);
    PL_TRY(check_act(o, c->arch, err));
    PL_TRY(pl_hf_u32(o, n->state, 1, PL_OPS_STATE_MAX, n->state_missing, &s->state, err));
    PL_TRY(pl_hf_u32(o, n->conv, 2, PL_OPS_CONV_MAX, 4, &s->conv, err));
    PL_TRY(read_widths(o, n, c, err));
    PL_TRY(pl_hf_bool(o, n->conv_bias, s->kind != PL_SSM_HEADS, &s->conv_bias, err));
    PL_TRY(pl_hf_bool(o, n->proj_bias, false, &proj_bias, err));
    if (proj_bias) PL_FAIL(err, PL_UNSUPPORTED, "config.json: %s is true, which is not implemented", n->proj_bias);
    PL_TRY(read_limits(o, c, err));
    s->bcdt_norm = c->arch == PL_ARCH_FALCON_MAMBA || c->arch == PL_ARCH_JAMBA;
    s->norm = s->kind == PL_SSM_MAMBA2;
    return pl_hf_f32(o, "mixer_rms_eps", 1e-6, &s->bcdt_eps, err);
}

/* Numbers of a list; a list that is missing or null leaves what is there. */
static enum pl_status read_scales(const json_t *o, const char *name, size_t n, float *out, struct pl_err *err) {
    const json_t *list = json_object_get(o, name);
    if (list == NULL || json_is_null(list)) return PL_OK;
    if (!json_is_array(list) || json_array_size(list) != n)
        PL_FAIL(err, PL_FORMAT, "config.json: %s has %zu entries; %zu were expected", name, json_array_size(list), n);
    for (size_t i = 0; i < n; i++) {
        double v = json_number_value(json_array_get(list, i));
        if (!(v > 0) || !(v <= 1e30)) PL_FAIL(err, PL_FORMAT, "config.json: %s[%zu] is no positive number", name, i);
        out[i] = (float)v;
    }
    return PL_OK;
}

/* MLX's converter turns the taps of a convolution, and while it does so multiplies most multipliers into the weights; its
 * library, too, knows such a directory by the taps. */
static bool is_folded(const struct pl_file *f, const char *block) {
    char name[128];
    const char *prefix = pl_hf_prefix(f);
    snprintf(name, sizeof name, "%slayers.0.%s.conv1d.weight", prefix != NULL ? prefix : "", block);
    const struct pl_tensor *t = pl_file_tensor(f, name);
    return t != NULL && t->ndim == 3 && t->shape[1] >= t->shape[2];
}

/* What is left to do: keys have not got key_multiplier (the converter looks for it under another name), values nothing. */
static void leave_unfolded(struct pl_model_config *c) {
    c->logit_scale = c->tied_embeddings ? c->logit_scale / c->embed_scale : 1;
    c->attn_out_scale = c->attn_in_scale;
    c->embed_scale = c->attn_in_scale = c->ssm_in_scale = c->ssm.out_scale = c->gate_scale = c->down_scale = 1;
    for (size_t i = 0; i < PL_COUNT_OF(c->ssm.scale); i++) c->ssm.scale[i] = 1;
}

static enum pl_status read_falcon_h1(const struct pl_file *f, const json_t *o, struct pl_model_config *c,
                                     struct pl_err *err) {
    float mlp[2] = {1, 1};
    bool bias = false;
    PL_TRY(pl_hf_bool(o, "mamba_rms_norm", false, &c->ssm.norm, err));
    PL_TRY(pl_hf_bool(o, "mamba_norm_before_gate", true, &c->ssm.norm_first, err));
    PL_TRY(pl_hf_bool(o, "projectors_bias", false, &bias, err));
    if (bias) PL_FAIL(err, PL_UNSUPPORTED, "config.json: projectors_bias is true, which is not implemented");
    PL_TRY(read_scales(o, "ssm_multipliers", PL_COUNT_OF(c->ssm.scale), c->ssm.scale, err));
    PL_TRY(read_scales(o, "mlp_multipliers", PL_COUNT_OF(mlp), mlp, err));
    c->gate_scale = mlp[0];
    c->down_scale = mlp[1];
    if (is_folded(f, "mamba")) leave_unfolded(c);
    return PL_OK;
}

/* Granite: layers are of either kind, and attention rotates where position_embedding_type says so. */
static enum pl_status read_granite(const json_t *o, struct pl_model_config *c, struct pl_err *err) {
    const json_t *types = json_object_get(o, "layer_types"), *position = json_object_get(o, "position_embedding_type");
    bool absent = types == NULL || json_is_null(types), rotates = false;
    if (json_is_string(position))
        rotates = strcmp(json_string_value(position), "rope") == 0;
    else if (position != NULL && !json_is_null(position))
        PL_FAIL(err, PL_FORMAT, "config.json: position_embedding_type is no text; rope, nope or null was expected");
    if (!absent && (!json_is_array(types) || json_array_size(types) != c->layers))
        PL_FAIL(err, PL_FORMAT, "config.json: layer_types has %zu entries; one per layer (%u) was expected",
                json_array_size(types), c->layers);
    for (uint32_t l = 0; l < c->layers; l++) {
        const json_t *v = json_array_get(types, l);
        const char *s = absent ? "mamba" : json_is_string(v) ? json_string_value(v) : "";
        bool ssm = strcmp(s, "mamba") == 0 || strcmp(s, "linear_attention") == 0;
        if (!ssm && strcmp(s, "attention") != 0 && strcmp(s, "full_attention") != 0)
            PL_FAIL(err, PL_UNSUPPORTED, "config.json: layer_types[%u] is '%s'; mamba and attention are implemented", l,
                    PL_SHOWN_C(s));
        c->layer_ssm[l] = c->layer_no_attention[l] = ssm;
        c->layer_nope[l] = !rotates;
    }
    return PL_OK;
}

static enum pl_status read_jamba(const json_t *o, struct pl_model_config *c, struct pl_err *err) {
    uint32_t period, offset;
    PL_TRY(pl_hf_u32(o, "attn_layer_period", 1, UINT32_MAX, 8, &period, err));
    PL_TRY(pl_hf_u32(o, "attn_layer_offset", 0, UINT32_MAX, 4, &offset, err));
    for (uint32_t l = 0; l < c->layers; l++) c->layer_ssm[l] = c->layer_no_attention[l] = l % period != offset;
    c->ssm.bcdt_eps = c->norm_eps;
    return PL_OK;
}

/* What layer l is: a letter of hybrid_override_pattern, or a word of layers_block_type; 0: neither is there. */
static char nemotron_layer(const json_t *o, uint32_t l) {
    const json_t *pattern = json_object_get(o, "hybrid_override_pattern"), *types = json_object_get(o, "layers_block_type");
    if (json_is_string(pattern)) return l < json_string_length(pattern) ? json_string_value(pattern)[l] : 0;
    const json_t *v = json_array_get(types, l);
    const char *s = json_is_string(v) ? json_string_value(v) : "";
    return strcmp(s, "mamba") == 0 || strcmp(s, "linear_attention") == 0     ? 'M'
           : strcmp(s, "attention") == 0 || strcmp(s, "full_attention") == 0 ? '*'
           : strcmp(s, "mlp") == 0                                           ? '-'
           : strcmp(s, "moe") == 0                                           ? 'E'
                                                                             : 0;
}

uint32_t pl_hf_listed_layers(const json_t *o) {
    const json_t *pattern = json_object_get(o, "hybrid_override_pattern"), *types = json_object_get(o, "layers_block_type");
    size_t n = json_is_string(pattern) ? json_string_length(pattern) : json_array_size(types);
    return n <= PL_MODEL_LAYERS_MAX ? (uint32_t)n : 0;
}

static enum pl_status nemotron_count(const json_t *o, const char *name, uint32_t layers, struct pl_err *err) {
    const json_t *v = json_object_get(o, name);
    size_t n = json_is_string(v) ? json_string_length(v) : json_array_size(v);
    if (v != NULL && !json_is_null(v) && n != layers)
        PL_FAIL(err, PL_FORMAT, "config.json: %s names %zu layers; num_hidden_layers is %u", name, n, layers);
    return PL_OK;
}

/* Scores by sigmoid with a bias for the choice; groups, where there are several, by their two best. */
static enum pl_status read_nemotron_experts(const json_t *o, struct pl_model_config *c, struct pl_err *err) {
    const json_t *latent = json_object_get(o, "moe_latent_size"), *shared = json_object_get(o, "n_shared_experts");
    uint32_t always = 1;
    if (latent != NULL && !json_is_null(latent))
        PL_FAIL(err, PL_UNSUPPORTED,
                "config.json: moe_latent_size asks for experts in a latent space, which is not implemented");
    PL_TRY(pl_hf_u32(o, "n_routed_experts", 1, PL_EXPERTS_MAX, 8, &c->experts, err));
    PL_TRY(pl_hf_u32(o, "num_experts_per_tok", 1, PL_EXPERTS_MAX, 2, &c->experts_used, err));
    PL_TRY(pl_hf_u32(o, "moe_intermediate_size", 1, PL_MLP_MAX, 7688, &c->expert_width, err));
    PL_TRY(pl_hf_u32(o, "n_shared_experts", 0, PL_EXPERTS_MAX, json_is_null(shared) ? 0 : 1, &always, err));
    if (always > 0) PL_TRY(pl_hf_u32(o, "moe_shared_expert_intermediate_size", 1, PL_MLP_MAX, 7688, &c->shared_width, err));
    PL_TRY(pl_hf_bool(o, "norm_topk_prob", true, &c->experts_renormalise, err));
    PL_TRY(pl_hf_f32(o, "routed_scaling_factor", 1, &c->experts_scale, err));
    PL_TRY(pl_hf_u32(o, "n_group", 1, PL_EXPERTS_MAX, 1, &c->expert_groups, err));
    PL_TRY(pl_hf_u32(o, "topk_group", 1, PL_EXPERTS_MAX, 1, &c->groups_used, err));
    c->expert_group_top = 2;
    c->experts_sigmoid = c->experts_bias = true;
    if (c->expert_groups == 1) c->expert_groups = 0;
    return PL_OK;
}

static enum pl_status read_nemotron(const json_t *o, struct pl_model_config *c, struct pl_err *err) {
    const json_t *act = json_object_get(o, "mlp_hidden_act");
    const char *name = act == NULL || json_is_null(act) ? "relu2" : json_is_string(act) ? json_string_value(act) : "no text";
    if (strcmp(name, "relu2") != 0)
        PL_FAIL(err, PL_UNSUPPORTED, "config.json: mlp_hidden_act '%s' is not implemented for nemotron_h; relu2 is",
                PL_SHOWN_C(name));
    bool mixed = false;
    PL_TRY(pl_hf_f32(o, "time_step_min", 0.001, &c->ssm.dt_min, err));
    c->ssm.dt_max = 3e38f;
    PL_TRY(nemotron_count(o, "hybrid_override_pattern", c->layers, err));
    PL_TRY(nemotron_count(o, "layers_block_type", c->layers, err));
    for (uint32_t l = 0; l < c->layers; l++) {
        char kind = nemotron_layer(o, l);
        if (kind != 'M' && kind != '*' && kind != '-' && kind != 'E')
            PL_FAIL(err, PL_FORMAT,
                    "config.json: neither hybrid_override_pattern nor layers_block_type says what layer %u is", l);
        c->layer_ssm[l] = kind == 'M';
        c->layer_no_attention[l] = kind != '*';
        c->layer_moe[l] = kind == 'E';
        mixed = mixed || kind == 'E';
    }
    return mixed ? read_nemotron_experts(o, c, err) : PL_OK;
}

/* Attention at every mamba_step-th layer, of fewer layers at the last. It sees attention_window_size tokens before its own,
 * but in the layers that full_attention_idx names, whose rotation may differ. */
static enum pl_status read_plamo2(const json_t *o, struct pl_model_config *c, struct pl_err *err) {
    const json_t *full = json_object_get(o, "full_attention_idx");
    uint32_t step, window;
    bool mamba = true;
    PL_TRY(pl_hf_bool(o, "mamba_enabled", true, &mamba, err));
    PL_TRY(pl_hf_u32(o, "mamba_step", 2, UINT32_MAX, 2, &step, err));
    PL_TRY(pl_hf_u32(o, "attention_window_size", 1, PL_CONTEXT_MAX, 2048, &window, err));
    PL_TRY(pl_hf_f32(o, "rope_local_theta", 1e4, &c->rope_base_local, err));
    if (full != NULL && !json_is_null(full) && !json_is_array(full))
        PL_FAIL(err, PL_FORMAT, "config.json: full_attention_idx is no array of layers");
    c->window = window + 1;
    for (uint32_t l = 0; l < c->layers; l++) {
        bool attends = !mamba || (c->layers <= step / 2 ? l + 1 == c->layers : l % step == step / 2);
        c->layer_ssm[l] = c->layer_no_attention[l] = !attends;
        c->layer_windowed[l] = attends;
    }
    for (size_t i = 0; i < json_array_size(full); i++) {
        double l = 0;
        PL_TRY(pl_hf_entry(full, "full_attention_idx", i, &l, err));
        if (l >= 0 && l < c->layers) c->layer_windowed[(uint32_t)l] = false;
    }
    c->ssm.bcdt_eps = c->norm_eps;
    c->qk_eps = 1e-6f;
    return PL_OK;
}

/* LFM2's dense files say a width of which two thirds are meant, rounded up, unless block_auto_adjust_ff_dim is false. */
static enum pl_status read_lfm2_width(const json_t *o, struct pl_model_config *c, struct pl_err *err) {
    bool adjust = true;
    uint32_t multiple = 256;
    float factor = 1;
    PL_TRY(pl_hf_u32(o, "block_ff_dim", 1, PL_MLP_MAX, c->mlp_width, &c->mlp_width, err));
    PL_TRY(pl_hf_bool(o, "block_auto_adjust_ff_dim", true, &adjust, err));
    PL_TRY(pl_hf_u32(o, "block_multiple_of", 1, PL_MLP_MAX, 256, &multiple, err));
    PL_TRY(pl_hf_f32(o, "block_ffn_dim_multiplier", 1, &factor, err));
    if (!adjust) return PL_OK;
    double width = floor(floor(2.0 * c->mlp_width / 3) * (double)factor);
    width = multiple * ceil(width / multiple);
    if (!(width >= 1) || !(width <= PL_MLP_MAX))
        PL_FAIL(err, PL_FORMAT,
                "config.json: two thirds of block_ff_dim %u times %g give an MLP of %g; 1 to %u was expected", c->mlp_width,
                (double)factor, width, PL_MLP_MAX);
    c->mlp_width = (uint32_t)width;
    return PL_OK;
}

static enum pl_status read_lfm2(const json_t *o, struct pl_model_config *c, struct pl_err *err) {
    const json_t *types = json_object_get(o, "layer_types"), *full = json_object_get(o, "full_attn_idxs");
    bool typed = json_is_array(types), listed = json_is_array(full);
    if ((types != NULL && !json_is_null(types) && !typed) || (full != NULL && !json_is_null(full) && !listed))
        PL_FAIL(err, PL_FORMAT, "config.json: layer_types or full_attn_idxs is no array");
    if (typed && json_array_size(types) != c->layers)
        PL_FAIL(err, PL_FORMAT, "config.json: layer_types has %zu entries; one per layer (%u) was expected",
                json_array_size(types), c->layers);
    for (uint32_t l = 0; l < c->layers; l++) {
        const char *s = typed ? json_string_value(json_array_get(types, l)) : listed ? "conv" : "full_attention";
        bool conv = s != NULL && strcmp(s, "conv") == 0;
        if (!conv && (s == NULL || strcmp(s, "full_attention") != 0))
            PL_FAIL(err, PL_UNSUPPORTED, "config.json: layer_types[%u] is '%s'; conv and full_attention are implemented", l,
                    s == NULL ? "no text" : PL_SHOWN_C(s));
        c->layer_ssm[l] = c->layer_no_attention[l] = conv;
    }
    for (size_t i = 0; !typed && i < json_array_size(full); i++) {
        double l = 0;
        PL_TRY(pl_hf_entry(full, "full_attn_idxs", i, &l, err));
        if (l >= 0 && l < c->layers) c->layer_ssm[(uint32_t)l] = c->layer_no_attention[(uint32_t)l] = false;
    }
    return c->arch == PL_ARCH_LFM2 ? read_lfm2_width(o, c, err) : PL_OK;
}

/* Every fourth layer attends, or as layer_types says. MLX's converter adds the ones that norms lack. */
static enum pl_status read_qwen_next(const struct pl_file *f, const json_t *o, struct pl_model_config *c,
                                     struct pl_err *err) {
    const json_t *types = json_object_get(o, "layer_types");
    bool typed = types != NULL && !json_is_null(types);
    uint32_t interval;
    PL_TRY(pl_hf_u32(o, "full_attention_interval", 1, UINT32_MAX, 4, &interval, err));
    if (typed && (!json_is_array(types) || json_array_size(types) != c->layers))
        PL_FAIL(err, PL_FORMAT, "config.json: layer_types has %zu entries; one per layer (%u) was expected",
                json_array_size(types), c->layers);
    for (uint32_t l = 0; l < c->layers; l++) {
        const json_t *v = json_array_get(types, l);
        const char *s = !typed ? "" : json_is_string(v) ? json_string_value(v) : "no text";
        bool state = typed ? strcmp(s, "linear_attention") == 0 : (l + 1) % interval != 0;
        if (typed && !state && strcmp(s, "full_attention") != 0)
            PL_FAIL(err, PL_UNSUPPORTED,
                    "config.json: layer_types[%u] is '%s'; linear_attention and full_attention are implemented", l,
                    PL_SHOWN_C(s));
        c->layer_ssm[l] = c->layer_no_attention[l] = state;
    }
    if (is_folded(f, "linear_attn")) c->norm_offset = 0;
    return PL_OK;
}

enum pl_status pl_config_ssm_layers(const struct pl_file *f, const json_t *o, struct pl_model_config *c,
                                    struct pl_err *err) {
    if (c->arch == PL_ARCH_GRANITE_HYBRID) return read_granite(o, c, err);
    if (c->arch == PL_ARCH_JAMBA) return read_jamba(o, c, err);
    if (c->ssm.kind == PL_SSM_CONV) return read_lfm2(o, c, err);
    if (c->ssm.kind == PL_SSM_DELTA) return read_qwen_next(f, o, c, err);
    if (c->arch == PL_ARCH_NEMOTRON_H) return read_nemotron(o, c, err);
    if (c->arch == PL_ARCH_PLAMO2) return read_plamo2(o, c, err);
    for (uint32_t l = 0; l < c->layers; l++) {
        c->layer_ssm[l] = true;
        c->layer_no_attention[l] = pl_arch_def(c->arch)->no_attention;
    }
    return c->arch == PL_ARCH_FALCON_H1 ? read_falcon_h1(f, o, c, err) : PL_OK;
}

/* Its rank is the number of value heads; of Qwen3.5 the converter puts them in the order of their place in a group. */
static enum pl_status read_delta_gguf(const struct pl_file *f, const char *arch, struct pl_model_config *c,
                                      struct pl_err *err) {
    struct pl_ssm_config *s = &c->ssm;
    char name[96];
    uint32_t interval;
    PL_TRY(pl_gguf_key_u32(f, arch, "ssm.group_count", 1, PL_HEADS_MAX, 0, &s->groups, err));
    PL_TRY(pl_gguf_key_u32(f, arch, "full_attention_interval", 1, UINT32_MAX, 4, &interval, err));
    s->heads = s->dt_rank;
    s->head_dim = s->inner / PL_MAX(s->heads, 1u);
    s->dt_rank = 0;
    s->dt_max = 3e38f;
    s->norm = true;
    s->in_turn = c->arch != PL_ARCH_QWEN3_NEXT;
    snprintf(name, sizeof name, "%s.attention.recurrent_layers", arch);
    const struct pl_gguf_value *v = pl_gguf_find(f, name);
    bool listed =
        v != NULL && v->type == PL_GGUF_ARRAY && (v->elem_type == PL_GGUF_BOOL || pl_gguf_is_integer(v->elem_type));
    if ((v != NULL && !listed) || (listed && v->count < c->layers))
        PL_FAIL(err, PL_FORMAT, "metadata key %s is no list of a flag for each layer (%u)", name, c->layers);
    for (uint32_t l = 0; l < c->layers; l++)
        c->layer_ssm[l] = c->layer_no_attention[l] = listed ? pl_gguf_elem_i64(v, l) != 0 : (l + 1) % interval != 0;
    return PL_OK;
}

enum pl_status pl_config_ssm_gguf(const struct pl_file *f, const char *arch, struct pl_model_config *c, struct pl_err *err) {
    struct pl_ssm_config *s = &c->ssm;
    s->kind = pl_arch_def(c->arch)->ssm;
    if (s->kind == PL_SSM_CONV) { /* its layers were read before, by their numbers of KV heads */
        only_convolution(c);
        return pl_gguf_key_u32(f, arch, "shortconv.l_cache", 2, PL_OPS_CONV_MAX, 0, &s->conv, err);
    }
    PL_TRY(pl_gguf_key_u32(f, arch, "ssm.state_size", 1, PL_OPS_STATE_MAX, 0, &s->state, err));
    PL_TRY(pl_gguf_key_u32(f, arch, "ssm.conv_kernel", 2, PL_OPS_CONV_MAX, 0, &s->conv, err));
    PL_TRY(pl_gguf_key_u32(f, arch, "ssm.inner_size", 1, INNER_MAX, 0, &s->inner, err));
    PL_TRY(pl_gguf_key_u32(f, arch, "ssm.time_step_rank", 1, RANK_MAX, 0, &s->dt_rank, err));
    if (s->kind == PL_SSM_DELTA) return read_delta_gguf(f, arch, c, err);
    s->heads = s->inner;
    s->head_dim = s->groups = 1;
    if (s->kind == PL_SSM_HEADS) { /* likewise */
        s->heads = s->dt_rank;
        s->head_dim = s->inner / s->heads;
        s->dt_rank = plamo2_rank(c->width);
        c->qk_eps = c->norm_eps;
    }
    if (s->kind == PL_SSM_MAMBA2) { /* its rank is the number of heads */
        PL_TRY(pl_gguf_key_u32(f, arch, "ssm.group_count", 1, PL_HEADS_MAX, 0, &s->groups, err));
        s->heads = s->dt_rank;
        s->head_dim = s->inner / s->heads;
        s->dt_rank = 0;
        s->norm = c->arch != PL_ARCH_FALCON_H1 || pl_file_tensor(f, "blk.0.ssm_norm.weight") != NULL;
    }
    s->dt_max = 3e38f;
    s->bcdt_eps = c->norm_eps;
    s->bcdt_norm |= c->arch == PL_ARCH_JAMBA;
    /* Of these the layers were read before, by their numbers of KV heads. */
    bool listed = c->arch == PL_ARCH_GRANITE_HYBRID || c->arch == PL_ARCH_JAMBA || c->arch == PL_ARCH_NEMOTRON_H ||
                  c->arch == PL_ARCH_PLAMO2;
    for (uint32_t l = c->layers; l-- > 0;) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.ssm_conv1d.bias", l);
        if (!listed) c->layer_ssm[l] = true;
        if (!listed) c->layer_no_attention[l] = pl_arch_def(c->arch)->no_attention;
        if (c->layer_ssm[l]) s->conv_bias = pl_file_tensor(f, name) != NULL;
    }
    return PL_OK;
}

static enum pl_status check_sizes(const struct pl_ssm_config *s, struct pl_err *err) {
    if ((uint64_t)s->heads * s->head_dim != s->inner || s->heads % s->groups != 0)
        PL_FAIL(err, PL_FORMAT,
                "state-space layers of width %u with %u heads of %u in %u groups: heads times their size must be the width, "
                "and groups divide the heads",
                s->inner, s->heads, s->head_dim, s->groups);
    if (s->head_dim > PL_OPS_SSM_HEAD_MAX)
        PL_FAIL(err, PL_UNSUPPORTED, "state-space heads of %u: up to %d are implemented", s->head_dim, PL_OPS_SSM_HEAD_MAX);
    if (!(s->bcdt_eps >= 0) || !(s->bcdt_eps < 1))
        PL_FAIL(err, PL_FORMAT, "norm epsilon %g of time steps, B and C: a number from 0 to 1 was expected",
                (double)s->bcdt_eps);
    if (!(s->dt_min <= s->dt_max))
        PL_FAIL(err, PL_FORMAT, "time steps from %g to %g: the first must not be larger", (double)s->dt_min,
                (double)s->dt_max);
    return PL_OK;
}

enum pl_status pl_config_ssm_check(struct pl_model_config *c, struct pl_err *err) {
    c->kv_layers = c->state_layers = 0;
    for (uint32_t l = 0; l < c->layers; l++) {
        c->layer_kv[l] = (uint16_t)c->kv_layers;
        c->layer_state[l] = (uint16_t)c->state_layers;
        c->kv_layers += !c->layer_no_attention[l];
        c->state_layers += c->layer_ssm[l];
    }
    if (c->state_layers == 0) c->ssm = (struct pl_ssm_config){.scale = {1, 1, 1, 1, 1}, .out_scale = 1}; /* of no layer */
    return c->ssm.kind == PL_SSM_NONE ? PL_OK : check_sizes(&c->ssm, err);
}

void pl_model_cache_shape(const struct pl_model_config *c, struct pl_kv_shape *out) {
    const struct pl_ssm_config *s = &c->ssm;
    size_t channels = (size_t)pl_ssm_channels(s);
    out->layers = c->kv_layers;
    for (uint32_t l = 0; l < c->layers; l++)
        if (!c->layer_no_attention[l] && c->layer_windowed[l] && c->window > 0)
            out->windowed[c->layer_kv[l] / 64] |= (uint64_t)1 << c->layer_kv[l] % 64;
    out->kv_heads = c->kv_heads;
    out->head_dim = c->head_dim;
    out->value_dim = c->latent;
    out->state_layers = c->state_layers;
    out->state_conv = c->state_layers > 0 ? (s->conv - 1) * channels : 0;
    out->state_ssm = c->state_layers > 0 ? (size_t)s->inner * s->state : 0;
}
