/* Latent attention by keys and values of each head on the CPU (src/cpu/latent_expand.c): when, and how it is counted. */
#include "ops/cpu_ops.h"

static struct pl_cpu_latent_shape shape_of(const struct pl_ops *o, const struct pl_attention *p,
                                           const struct pl_latent_heads *w) {
    const struct pl_kv_shape *s = &o->kv->shape;
    return (struct pl_cpu_latent_shape){.heads = p->heads,
                                        .nope = (size_t)w->k_heads->cols,
                                        .rope = s->head_dim - s->value_dim,
                                        .value = (size_t)w->v_heads->rows,
                                        .latent = s->value_dim};
}

/* By the latents inputs are of 8 bits, by the heads f32: worth four of those. */
static const struct pl_latent_costs costs = {.product = 0.25, .pair = 1, .head_product = 1, .head_pair = 1, .padded = true};

/* Where it is wanted and there is room. */
bool cpu_ops_takes_expanded(struct pl_ops *o, const struct pl_attention *p, const struct pl_latent_heads *w) {
    const struct pl_cpu_latent_shape s = shape_of(o, p, w);
    const struct pl_cpu_kv kv = cpu_ops_pages(o, p->layer);
    bool plain = kv.dtype == PL_F32 || kv.dtype == PL_F16 || kv.dtype == PL_BF16;
    size_t tokens = 0, rows = 0;
    for (uint32_t i = 0; i < o->batch->seq_count; i++) {
        const struct pl_batch_seq *q = &o->batch->seqs[i];
        tokens = PL_MAX(tokens, (size_t)q->past + q->rows);
        rows = PL_MAX(rows, (size_t)q->rows);
    }
    struct pl_cpu *c = cpu_ops_kernels(o);
    return plain && pl_ops_wants_expanded(o, w, &costs) &&
           pl_cpu_expand_reserve(c, &s, cpu_ops_positions(o), cpu_ops_rows_max(o), PL_CPU_EXPAND_ROOM) &&
           pl_cpu_expand_heads(c, tokens, rows) > 0;
}

enum pl_status cpu_ops_expanded(struct pl_ops *o, const struct pl_attention *p, const struct pl_latent_heads *w,
                                const struct pl_activation *q, const struct pl_activation *qa, struct pl_activation *out) {
    const struct pl_cpu_kv kv = cpu_ops_pages(o, p->layer);
    const struct pl_pick pick = {PL_IMPL_EXPANDED, PL_IMPL_EXPANDED, ""};
    struct pl_cpu_latent_attention a = {.seq_count = o->batch->seq_count,
                                        .seqs = cpu_ops_seqs(o),
                                        .k = cpu_ops_heads(w->k_heads),
                                        .v = cpu_ops_heads(w->v_heads),
                                        .scale = p->scale,
                                        .kv = &kv};
    a.q = cpu_ops_rows(q, &a.q_stride);
    a.qa = cpu_ops_rows(qa, &a.qa_stride);
    a.out = cpu_ops_rows(out, &a.out_stride);
    PL_TRY(pl_ops_end_decision(o, PL_OP_attention, &pick, 1, ""));
    pl_cpu_latent_attention(cpu_ops_kernels(o), &a);
    cpu_ops_count_attention(o, p, q->rows, "expanded");
    return PL_OK;
}
