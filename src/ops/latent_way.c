/* Which way latent attention goes, and what going by keys and values of each head takes: the same for all backends. */
#include "base/check.h"
#include "ops/impl.h"

/* By latents: L + R for a score and L for a value, and both products for each row; else N + R and V, and both products for
 * each token. */
double pl_latent_saving(const struct pl_latent_costs *c, size_t rows, size_t past, size_t latent, size_t rope, size_t nope,
                        size_t value) {
    const double l = (double)latent, r = (double)rope, n = (double)nope, v = (double)value, t = (double)rows;
    const double pairs = t * ((double)past + (t + 1) / 2), products = l * (n + v), vector = n + r + v + (c->padded ? v : 0);
    return c->pair * pairs * (2 * l + r) + c->product * t * products - c->head_pair * pairs * vector -
           c->head_product * ((double)past + t) * products;
}

/* A token's keys and values of all heads (a device's have 16 numbers more), and its latents in f32; on the CPU a row's
 * queries likewise; the heads' matrices in f32, and a number for each row and head. */
bool pl_latent_scratch_bytes(const struct pl_latent_sizes *s, uint64_t tokens, uint64_t rows, uint64_t *out) {
    const uint64_t vector = (s->nope + s->rope + s->value + 16) * sizeof(float),
                   room = PL_MAX(PL_EXPAND_ROOM, PL_CPU_EXPAND_ROOM);
    uint64_t held, parts[5];
    if (!pl_mul_u64(s->heads, vector, &held) || !pl_mul_u64(held, tokens + 16, &parts[0]) ||
        !pl_mul_u64(held, rows, &parts[1]) || !pl_mul_u64(tokens + 16, (s->latent + s->rope) * sizeof(float), &parts[2]) ||
        !pl_mul_u64(s->heads * (s->nope + s->value + 1), s->latent * sizeof(float), &parts[3]) ||
        !pl_mul_u64(rows, s->heads * sizeof(float), &parts[4]))
        return false;
    *out = 0;
    for (size_t i = 0; i < PL_COUNT_OF(parts); i++)
        if (!pl_add_u64(*out, i < 2 ? PL_MIN(parts[i], PL_MAX(room, 16 * held)) : parts[i], out)) return false;
    return true;
}

bool pl_ops_wants_expanded(const struct pl_ops *o, const struct pl_latent_heads *w, const struct pl_latent_costs *costs) {
    const struct pl_kv_shape *s = &o->kv->shape;
    uint32_t rows = 0;
    double saving = 0;
    if (o->invariant || (o->choice.disabled[PL_OP_attention] >> PL_IMPL_EXPANDED & 1u) != 0) return false;
    for (uint32_t i = 0; i < o->batch->seq_count; i++) {
        const struct pl_batch_seq *q = &o->batch->seqs[i];
        rows = PL_MAX(rows, q->rows);
        if (costs == NULL) continue;
        saving += pl_latent_saving(costs, q->rows, q->past, s->value_dim, s->head_dim - s->value_dim,
                                   (size_t)w->k_heads->cols, (size_t)w->v_heads->rows);
    }
    return (rows >= PL_EXPANDED_ROWS && saving > 0) || (o->choice.expanded && rows > 1);
}
