/* The model's life: configuration, weights, rotary tables, activations, and one step. */
#include "model/model.h"

#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "model/arch.h"

/* --- activations --- */

struct activation_plan {
    size_t slot; /* offsetof in struct pl_model */
    size_t rows, cols;
};

enum { ACTIVATIONS = 28 };

static void plan_activations(const struct pl_model_config *c, size_t rows, size_t logits,
                             struct activation_plan plan[ACTIVATIONS]) {
    size_t hd = (size_t)c->heads * c->head_dim, gd = (size_t)c->kv_heads * c->head_dim, vd = gd, ad = hd;
    size_t ql = 0, qa = 0, latent = 0;
    if (c->latent > 0) {
        qa = hd;
        hd = (size_t)c->heads * (c->nope_dim + c->rope_dim);
        vd = 0;
        ad = (size_t)c->heads * c->value_dim;
        ql = c->query_rank;
        latent = (size_t)c->heads * c->latent;
    }
    const struct pl_ssm_config *s = &c->ssm;
    bool delta = s->kind == PL_SSM_DELTA,
         selects = s->kind != PL_SSM_MAMBA2 && !delta; /* dt, B and C are products of their own */
    size_t steps = s->kind == PL_SSM_CONV ? 0 : s->heads;
    size_t conv = (size_t)pl_ssm_channels(s), n = selects ? s->state : 0;
    const struct activation_plan all[ACTIVATIONS] = {{offsetof(struct pl_model, x), rows, c->width},
                                                     {offsetof(struct pl_model, h), rows, c->width},
                                                     {offsetof(struct pl_model, q), rows, hd},
                                                     {offsetof(struct pl_model, k), rows, gd},
                                                     {offsetof(struct pl_model, v), rows, vd},
                                                     {offsetof(struct pl_model, a), rows, ad},
                                                     {offsetof(struct pl_model, g), rows, c->mlp_width},
                                                     {offsetof(struct pl_model, u), rows, c->mlp_width},
                                                     {offsetof(struct pl_model, x_out), logits, c->width},
                                                     {offsetof(struct pl_model, a_out), logits, ad},
                                                     {offsetof(struct pl_model, logits), logits, c->vocab},
                                                     {offsetof(struct pl_model, router), rows, c->experts},
                                                     {offsetof(struct pl_model, sg), rows, c->shared_width},
                                                     {offsetof(struct pl_model, su), rows, c->shared_width},
                                                     {offsetof(struct pl_model, share), rows, c->shared_width > 0 ? 1 : 0},
                                                     {offsetof(struct pl_model, ql), rows, ql},
                                                     {offsetof(struct pl_model, qa), rows, qa},
                                                     {offsetof(struct pl_model, latent), rows, latent},
                                                     {offsetof(struct pl_model, cx), rows, conv},
                                                     {offsetof(struct pl_model, cy), rows, conv},
                                                     {offsetof(struct pl_model, z), rows, s->inner},
                                                     {offsetof(struct pl_model, dt), rows, steps},
                                                     {offsetof(struct pl_model, dt_low), rows, selects ? s->dt_rank : 0},
                                                     {offsetof(struct pl_model, b), rows, delta ? s->heads : n},
                                                     {offsetof(struct pl_model, c), rows, n},
                                                     {offsetof(struct pl_model, y), rows, s->inner},
                                                     {offsetof(struct pl_model, y_out), logits, s->inner},
                                                     {offsetof(struct pl_model, ag), rows, c->attn_gate ? hd : 0}};
    memcpy(plan, all, sizeof all);
}

static enum pl_status make_activations(struct pl_model *m, struct pl_err *err) {
    struct activation_plan plan[ACTIVATIONS];
    plan_activations(&m->cfg, m->max_rows, m->max_logits, plan);
    for (size_t i = 0; i < ACTIVATIONS; i++) {
        struct pl_activation *a;
        if (plan[i].cols == 0) continue; /* not in this model */
        PL_TRY(pl_ops_activation_create(m->ops, plan[i].rows, plan[i].cols, &a, err));
        memcpy((char *)m + plan[i].slot, &a, sizeof a);
        m->bytes_owned += plan[i].rows * plan[i].cols * sizeof(float);
    }
    return PL_OK;
}

static void free_activations(struct pl_model *m) {
    struct activation_plan plan[ACTIVATIONS];
    plan_activations(&m->cfg, 1, 1, plan);
    for (size_t i = 0; i < ACTIVATIONS; i++) {
        struct pl_activation *a;
        memcpy(&a, (char *)m + plan[i].slot, sizeof a);
        pl_ops_activation_destroy(m->ops, a);
    }
}

/* --- create and destroy --- */

static uint32_t or_default(uint32_t v, uint32_t otherwise) { return v > 0 ? v : otherwise; }

static enum pl_status reserve_experts(struct pl_model *m, struct pl_err *err) {
    for (uint32_t l = 0; l < m->cfg.layers; l++) {
        if (!m->cfg.layer_moe[l]) continue;
        const struct pl_moe moe = pl_layer_moe(m, &m->layers[l]);
        PL_TRY(pl_ops_moe_reserve(m->ops, &moe, m->max_rows, err));
    }
    return PL_OK;
}

static enum pl_status reserve_heads(struct pl_model *m, struct pl_err *err) {
    if (m->cfg.latent == 0) return PL_OK; /* all layers have the same shapes */
    PL_TRY(pl_ops_heads_reserve(m->ops, m->layers[0].k_heads, m->max_rows, err));
    return pl_ops_heads_reserve(m->ops, m->layers[0].v_heads, m->max_rows, err);
}

static bool rotates(const struct pl_model_config *c) {
    for (uint32_t l = 0; l < c->layers; l++)
        if (!c->layer_no_attention[l] && !c->layer_nope[l]) return true;
    return false;
}

/* A backend that cannot run the layers says so before anything is loaded. */
static enum pl_status check_ports(const struct pl_model *m, struct pl_err *err) {
    static const enum pl_op ops[] = {PL_OP_causal_conv, PL_OP_gated_norm, PL_OP_ssm_update, PL_OP_ssm_scan, PL_OP_delta};
    enum pl_backend b = pl_ops_backend(m->ops);
    const enum pl_ssm_kind kind = m->cfg.ssm.kind;
    size_t count = m->cfg.state_layers == 0 ? 0
                   : kind == PL_SSM_CONV    ? 1
                   : kind == PL_SSM_DELTA   ? PL_COUNT_OF(ops)
                                            : PL_COUNT_OF(ops) - 1;
    for (size_t i = 0; i < count; i++)
        if (pl_ops_port(ops[i], b) == PL_PORT_NONE)
            PL_FAIL(err, PL_UNSUPPORTED, "%s has state-space layers: backend %s has no port of %s; the cpu backend has",
                    pl_arch_name(m->cfg.arch), pl_backend_name(b), pl_op_name(ops[i]));
    return PL_OK;
}

static enum pl_status fill(struct pl_model *m, const struct pl_file *f, const struct pl_model_options *opt,
                           struct pl_err *err) {
    m->max_rows = or_default(opt->max_rows, 512);
    m->max_logits = PL_MIN(or_default(opt->max_logits, 1), m->max_rows);
    m->max_context = or_default(opt->max_context, m->cfg.context_train);
    if (m->cfg.context_limit > 0 && m->max_context > m->cfg.context_limit)
        PL_FAIL(
            err, PL_UNSUPPORTED,
            "a context of %u: attention of this %s model scales by position from %u on, which is not implemented; ask for "
            "at most that (--context %u)",
            m->max_context, pl_arch_name(m->cfg.arch), m->cfg.context_limit, m->cfg.context_limit);
    m->layers = pl_calloc(m->cfg.layers, sizeof *m->layers);
    if (m->layers == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for %u layers", m->cfg.layers);
    PL_TRY(check_ports(m, err));
    PL_TRY(pl_model_bind(m, f, opt, err));
    if (rotates(&m->cfg)) PL_TRY(pl_model_make_ropes(m, f, err));
    PL_TRY(make_activations(m, err));
    PL_TRY(reserve_heads(m, err));
    return reserve_experts(m, err);
}

enum pl_status pl_model_create(const struct pl_file *f, struct pl_ops *o, const struct pl_model_options *opt,
                               struct pl_model **out, struct pl_err *err) {
    struct pl_model *m = pl_calloc(1, sizeof *m);
    if (m == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for a model");
    m->ops = o;
    enum pl_status st = PL_OK;
    if (opt->config != NULL)
        m->cfg = *opt->config;
    else
        st = pl_model_config_read(f, &m->cfg, err);
    if (st == PL_OK) {
        m->def = pl_arch_def(m->cfg.arch);
        st = fill(m, f, opt, err);
        if (st != PL_OK) (void)pl_err_note(err, "loading %s", pl_file_path(f));
    }
    if (st != PL_OK) {
        pl_model_destroy(m);
        return st;
    }
    *out = m;
    return PL_OK;
}

void pl_model_destroy(struct pl_model *m) {
    if (m == NULL) return;
    if (m->def != NULL) {
        pl_model_unbind(m);
        free_activations(m);
        pl_ops_rope_destroy(m->ops, m->rope);
        pl_ops_rope_destroy(m->ops, m->rope_local);
    }
    for (size_t i = 0; i < m->repacked_count; i++) pl_free(m->repacked[i]);
    pl_free((void *)m->repacked);
    pl_free(m->layers);
    pl_free(m);
}

const struct pl_model_config *pl_model_config(const struct pl_model *m) { return &m->cfg; }
uint64_t pl_model_bytes_owned(const struct pl_model *m) { return m->bytes_owned; }

/* --- memory before anything is allocated --- */

static bool scratch_bytes(const struct pl_model_config *c, const struct pl_model_options *opt, uint64_t *out) {
    struct activation_plan plan[ACTIVATIONS];
    uint64_t rows = or_default(opt->max_rows, 512), logits = PL_MIN(or_default(opt->max_logits, 1), rows);
    uint64_t context = or_default(opt->max_context, c->context_train), sum = 0, part;
    plan_activations(c, rows, logits, plan);
    for (size_t i = 0; i < ACTIVATIONS; i++)
        if (!pl_mul_u64(plan[i].rows, plan[i].cols, &part) || !pl_mul_u64(part, sizeof(float), &part) ||
            !pl_add_u64(sum, part, &sum))
            return false;
    /* Gathered rows of the chosen experts: inputs, two inner values, outputs. */
    if (!pl_mul_u64(rows * c->experts_used, 2 * ((uint64_t)c->width + c->expert_width) * sizeof(float), &part) ||
        !pl_add_u64(sum, part, &sum))
        return false;
    if (c->latent > 0) {
        const struct pl_latent_sizes s = {c->heads, c->nope_dim, c->rope_dim, c->value_dim, c->latent};
        if (!pl_latent_scratch_bytes(&s, context, rows, &part) || !pl_add_u64(sum, part, &sum)) return false;
    }
    uint64_t tables = c->rope_base_local != c->rope_base ? 2 : 1;
    if (!pl_mul_u64(context, (uint64_t)c->rope_dim * sizeof(float) * tables, &part)) return false;
    return pl_add_u64(sum, part, out);
}

/* By how many sixteenths codes or scales are wider in a repacked copy, at most. */
static uint64_t wider_sixteenths(enum pl_dtype t) {
    switch (t) {
    case PL_TQ1_0: return 4;
    case PL_IQ1_S: /* code books' entries, 11 bits for eight elements, become codes of three bits */
    case PL_IQ1_M: return 20;
    case PL_IQ2_XXS:
    case PL_IQ2_XS: return 12;
    case PL_IQ2_S:
    case PL_IQ3_XXS:
    case PL_IQ3_S: return 8; /* of iq3: of four bits */
    default: return 1;
    }
}

/* What a repacked copy takes at most: rows padded to tiles of 16, codes or scales kept a little wider. Floats stay views. */
static bool owned_bound(const struct pl_tensor *t, uint64_t *out) {
    *out = 0;
    uint64_t rows = pl_tensor_rows(t), bytes = t->bytes;
    if (t->dtype == PL_MLX || t->dtype == PL_MLX_MXFP4) {
        uint64_t scale_bytes = 2 * rows * (pl_tensor_cols(t) / t->group) * pl_dtype_info(t->scale_dtype)->block_bytes;
        if (!pl_add_u64(bytes, scale_bytes, &bytes)) return false;
    } else if (pl_dtype_info(t->dtype)->block_elems == 1 && t->dtype != PL_U8) { /* bytes: codes in another order */
        return true;
    }
    uint64_t padding = rows > 0 ? (0 - rows) % 16 * (bytes / rows) : 0;
    return pl_add_u64(bytes, (bytes + 15) / 16 * wider_sixteenths(t->dtype), &bytes) && pl_add_u64(bytes, padding, out);
}

/* Matrices that are put in another order of bytes before a backend packs them (bind_mxfp4.c, bind_experts.c): the first copy
 * stays. */
static bool copied_bytes(const struct pl_file *f, const struct pl_model_config *c, const struct pl_tensor *t,
                         uint64_t *out) {
    bool experts = pl_file_kind(f) == PL_FILE_HF && pl_arch_def(c->arch)->mxfp4;
    bool blocks = experts && t->dtype == PL_U8 && t->ndim == 4;
    bool widened = experts && (t->dtype == PL_BF16 || t->dtype == PL_F16) && t->ndim == 3;
    /* Qwen3-Next: rows in turn (bind_ssm.c) */
    static const char *const in_turn[] = {"q_proj.weight", "attn_q.weight", "in_proj_qkvz.weight", "ssm_in.weight",
                                          "_ba.weight"};
    bool picked = false;
    for (size_t i = 0; c->ssm.kind == PL_SSM_DELTA && i < PL_COUNT_OF(in_turn); i++)
        picked = picked || strstr(t->name, in_turn[i]) != NULL;
    *out = 0;
    if (t->dtype != PL_MLX_MXFP4 && !blocks && !widened && !picked) return true;
    return pl_add_u64(t->bytes, widened ? 0 : t->bytes / 16, out);
}

/* State-space inputs that a file keeps head by head are copied, likewise. */
static bool add_by_head(const struct pl_model_config *c, uint64_t *sum) {
    uint64_t layers = c->ssm.kind == PL_SSM_HEADS ? c->state_layers : 0, each;
    return pl_mul_u64(2 * sizeof(float) * (uint64_t)c->ssm.inner, c->width, &each) && pl_mul_u64(each, layers, &each) &&
           pl_add_u64(*sum, each, sum);
}

enum pl_status pl_model_budget(const struct pl_file *f, const struct pl_model_config *c, const struct pl_model_options *opt,
                               const struct pl_kv_shape *kv, struct pl_memory_budget *out, struct pl_err *err) {
    struct pl_memory_budget b = {0};
    for (size_t i = 0; i < pl_file_tensor_count(f); i++) {
        const struct pl_tensor *t = pl_file_tensor_at(f, i);
        uint64_t owned = 0, copied = 0;
        if (!owned_bound(t, &owned) || !copied_bytes(f, c, t, &copied) || !pl_add_u64(owned, copied, &owned) ||
            !pl_add_u64(b.weight_bytes_mapped, t->bytes, &b.weight_bytes_mapped) ||
            !pl_add_u64(b.weight_bytes_owned, owned, &b.weight_bytes_owned) ||
            !pl_add_u64(b.weight_bytes_resident, owned > 0 ? owned : t->bytes, &b.weight_bytes_resident))
            PL_FAIL(err, PL_LIMIT, "the weights overflow");
    }
    /* Latent attention: a copy of what kv_b makes of keys, turned, in f32 at most. */
    uint64_t turned = 0;
    if (!pl_mul_u64((uint64_t)c->layers * c->heads * sizeof(float), (uint64_t)c->nope_dim * c->latent, &turned) ||
        !add_by_head(c, &turned) || !pl_add_u64(b.weight_bytes_owned, turned, &b.weight_bytes_owned) ||
        !pl_add_u64(b.weight_bytes_resident, turned, &b.weight_bytes_resident))
        PL_FAIL(err, PL_LIMIT, "the weights overflow");
    if (kv != NULL) b.kv_bytes = pl_kv_shape_bytes(kv);
    if (kv != NULL && b.kv_bytes == 0)
        PL_FAIL(err, PL_LIMIT, "a KV cache of %zu pages of %zu tokens is larger than any memory", kv->page_count,
                kv->page_tokens);
    if (!scratch_bytes(c, opt, &b.scratch_bytes))
        PL_FAIL(err, PL_LIMIT, "%u rows and a context of %u are larger than any memory", opt->max_rows, opt->max_context);
    *out = b;
    return PL_OK;
}

/* --- one step --- */

/* From the last layer's attention on only the rows whose logits are wanted matter. */
static enum pl_status keep_logit_rows(struct pl_model *m, uint32_t last, struct pl_activation **x,
                                      struct pl_activation **a) {
    PL_TRY(pl_ops_gather_logit_rows(m->ops, *x, m->x_out));
    if (!m->cfg.layer_no_attention[last]) PL_TRY(pl_ops_gather_logit_rows(m->ops, *a, m->a_out));
    if (m->cfg.layer_ssm[last]) PL_TRY(pl_ops_gather_logit_rows(m->ops, m->y, m->y_out));
    *x = m->x_out;
    *a = m->a_out;
    m->y_now = m->y_out;
    return PL_OK;
}

/* Final norm and output product over the kept rows. */
static enum pl_status output(struct pl_model *m, struct pl_activation *x) {
    const struct pl_model_config *c = &m->cfg;
    PL_TRY(pl_layer_norm(m, x, m->out_norm, m->out_norm_bias, m->h)); /* not in place: a product may do it on its way */
    PL_TRY(pl_layer_project(m, m->head != NULL ? m->head : m->embed, NULL, m->h, m->logits));
    if (c->logit_scale != 1) PL_TRY(pl_ops_scale(m->ops, m->logits, c->logit_scale));
    return c->logit_softcap > 0 ? pl_ops_softcap(m->ops, m->logits, c->logit_softcap) : PL_OK;
}

static enum pl_status forward(struct pl_model *m, bool one) {
    struct pl_activation *x = m->x, *a = m->a;
    m->y_now = m->y;
    PL_TRY(pl_ops_embed(m->ops, m->embed, m->cfg.embed_scale, x));
    for (uint32_t l = 0; l < m->cfg.layers; l++) {
        PL_TRY(m->def->attend(m, l, &m->layers[l], x));
        if (l + 1 == m->cfg.layers && !one) PL_TRY(keep_logit_rows(m, l, &x, &a));
        PL_TRY(m->def->finish(m, &m->layers[l], a, x));
    }
    return output(m, x);
}

static enum pl_status check_batch(const struct pl_model *m, const struct pl_batch *b) {
    if (b->rows > m->max_rows || b->logit_count > m->max_logits) return PL_LIMIT;
    for (uint32_t i = 0; i < b->rows; i++)
        if (!pl_ops_is_token(m->ops, b->tokens[i], m->cfg.vocab)) return PL_INVALID;
    for (uint32_t i = 0; i < b->seq_count; i++)
        if ((uint64_t)b->seqs[i].past + b->seqs[i].rows > m->max_context) return PL_LIMIT;
    return PL_OK;
}

enum pl_status pl_model_forward(struct pl_model *m, const struct pl_batch *b, struct pl_kv_store *kv,
                                const struct pl_activation **logits) {
    PL_TRY(check_batch(m, b));
    PL_TRY(pl_ops_begin(m->ops, b, kv));
    bool one = b->rows == 1 && b->logit_count == 1; /* all there is */
    enum pl_status st = forward(m, one), ended = pl_ops_end(m->ops);
    if (st == PL_OK) st = ended;
    if (st == PL_OK) *logits = m->logits;
    return st;
}
