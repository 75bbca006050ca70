/* Chains (cuda_chain.h) as the device backend runs them: what one row is asked to go through between two attentions waits
 * until all of it is known, and is then one launch. Anything that does not continue the chain has what waits launched first,
 * as it would have been without. */
#include <stdlib.h>
#include <unistd.h>

#include "ops/device_ops.h"

/* Processes that run on one device at the same time (NVIDIA's Multi-Process Service) could each hold half of it and wait. */
static bool is_shared(void) {
    return getenv("CUDA_MPS_PIPE_DIRECTORY") != NULL || access("/tmp/nvidia-mps/control", F_OK) == 0;
}

bool dev_chain_wanted(const struct dev_ops *d) {
    const struct pl_choice *c = &d->base.choice;
    enum pl_impl forced = c->forced[PL_OP_linear];
    if ((c->disabled[PL_OP_linear] >> PL_IMPL_CHAIN & 1u) != 0 || d->base.invariant) return false;
    if (forced != PL_IMPL_NONE || (!c->chain && (!PL_CHAIN_DEFAULT || is_shared()))) return false;
    return pl_cuda_capability(&d->ks) >= 90;
}

static bool asked(const struct dev_ops *d, enum pl_op op) {
    return d->base.choice.forced[op] != PL_IMPL_NONE || d->base.choice.disabled[op] != 0;
}

enum pl_status dev_chain_begin(struct dev_ops *d) {
    struct dev_chain *c = &d->chain;
    c->at = DEV_CHAIN_EMPTY;
    c->fits = false;
    if (c->meet.handle != NULL || c->off || d->streams + d->strip_streams == 0 || !dev_chain_wanted(d)) return PL_OK;
    PL_TRY(pl_device_alloc(d->ks.device, PL_CHAIN_MEET_BYTES, &c->meet, &d->ks.err));
    return pl_device_fill(d->ks.device, d->ks.stream, &c->meet, 0, &d->ks.err);
}
void dev_chain_deinit(struct dev_ops *d) { pl_device_free(d->ks.device, &d->chain.meet); }

static bool ready(const struct dev_ops *d) {
    const struct dev_chain *c = &d->chain;
    return c->meet.handle != NULL && !c->off && !c->replaying && !asked(d, PL_OP_norm) && !asked(d, PL_OP_glu);
}

/* What the chain so far would be as a launch. */
static void launch_of(const struct dev_chain *c, struct pl_launch_chain *l) {
    *l = (struct pl_launch_chain){.o = &weight_of(c->o)->w,
                                  .gate = &weight_of(c->gate_up[0])->w,
                                  .up = &weight_of(c->gate_up[1])->w,
                                  .down = &weight_of(c->down)->w,
                                  .from = data_of(c->from),
                                  .x = data_of(c->x),
                                  .h = data_of(c->norm[0].y),
                                  .g = data_of(c->g[0]),
                                  .norm = &weight_of(c->norm[0].w)->w.data,
                                  .eps = c->norm[0].eps,
                                  .offset = c->norm[0].offset,
                                  .meet = &c->meet,
                                  .count = c->count};
    if (c->count == 0) return;
    l->next_norm = &weight_of(c->norm[1].w)->w.data;
    l->next_eps = c->norm[1].eps;
    l->next_offset = c->norm[1].offset;
    for (size_t i = 0; i < c->count; i++) {
        l->next[i] = &weight_of(c->next[i])->w;
        l->bias[i] = vector_of(c->bias[i]);
        l->y[i] = data_of(c->y[i]);
    }
}

/* Whether what follows o may be of these formats; the rest pl_chain_declines says when all is known. */
static bool formats_agree(const struct dev_chain *c, size_t count, const struct pl_weight *const *w) {
    const struct dev_weight *o = weight_of(c->o);
    for (size_t i = 0; i < count; i++) {
        const struct dev_weight *next = weight_of(w[i]);
        if (next->format != o->format && !(next->w.strips && o->w.strips)) return false;
    }
    return true;
}

/* --- what continues it --- */

bool dev_chain_fits(const struct dev_ops *d, enum pl_op op, size_t count, const struct pl_weight *const *w,
                    const struct pl_weight *const *bias, const struct pl_activation *x, struct pl_activation *const *y) {
    const struct dev_chain *c = &d->chain;
    if (!ready(d) || x->rows != 1 || d->layers.at == DEV_LAYERS_SSM) return false;
    if (op == PL_OP_linear_add && c->at == DEV_CHAIN_EMPTY)
        return x != y[0] && pl_stream_declines(&d->ks, &weight_of(w[0])->w, 1) == NULL;
    if (op == PL_OP_linear_add) {
        struct dev_chain all = *c;
        struct pl_launch_chain l;
        if (c->at != DEV_CHAIN_GATED || x != c->g[0] || y[0] != c->x) return false;
        all.down = w[0];
        all.count = 0;
        launch_of(&all, &l);
        return pl_chain_declines(&d->ks, &l) == NULL;
    }
    if (c->at == DEV_CHAIN_NORM && op == PL_OP_glu)
        return x == c->norm[0].y && formats_agree(c, count, w) && (bias == NULL || (bias[0] == NULL && bias[1] == NULL)) &&
               y[0] != c->x && y[0] != c->norm[0].y && y[0] != c->from;
    if (c->at != DEV_CHAIN_NEXT_NORM || x != c->norm[1].y || count > PL_STREAM_MATRICES_MAX) return false;
    struct dev_chain all = *c;
    struct pl_launch_chain l;
    all.count = count;
    for (size_t i = 0; i < count; i++) {
        if (y[i] == c->x || y[i] == c->norm[1].y || y[i] == c->g[0] || y[i] == c->from) return false;
        all.next[i] = w[i];
        all.bias[i] = bias != NULL ? bias[i] : NULL;
        all.y[i] = y[i];
    }
    launch_of(&all, &l);
    return pl_chain_declines(&d->ks, &l) == NULL;
}

bool dev_chain_norm(struct dev_ops *d, const struct dev_norm *n) {
    struct dev_chain *c = &d->chain;
    bool first = c->at == DEV_CHAIN_O, second = c->at == DEV_CHAIN_DOWN;
    if ((!first && !second) || n->x != c->x || n->y == c->x || n->y == c->from || n->x->rows != 1) return false;
    if (second && n->y != c->norm[0].y) return false; /* both leave their result in one place */
    c->norm[second] = *n;
    c->at = first ? DEV_CHAIN_NORM : DEV_CHAIN_NEXT_NORM;
    return true;
}

static enum pl_status launch(struct pl_ops *o) {
    struct dev_ops *d = dev_of(o);
    struct dev_chain *c = &d->chain;
    struct dev_format *f = weight_of(c->o)->format;
    struct pl_launch_chain l;
    uint64_t added = weight_of(c->o)->bytes + weight_of(c->down)->bytes;
    uint64_t others = weight_of(c->gate_up[0])->bytes + weight_of(c->gate_up[1])->bytes;
    launch_of(c, &l);
    const struct pl_chain_kind kind = {.gelu = c->gelu, .mixed = pl_chain_mixed(&l)};
    struct pl_kernel *k = &f->chain[(kind.mixed ? 2 : 0) + (kind.gelu ? 1 : 0)];
    c->at = DEV_CHAIN_EMPTY;
    d->prepared = NULL;
    for (size_t i = 0; i < c->count; i++) others += weight_of(c->next[i])->bytes;
    enum pl_status st = k->jit != NULL ? PL_OK : pl_kernel_chain(&d->ks, &weight_of(c->o)->w, kind, k, &d->ks.err);
    if (st == PL_OK) st = pl_launch_chain(&d->ks, k, kind, &l);
    if (st != PL_OK) return dev_report(d, st);
    pl_ops_count(o, PL_OP_linear_add, k->name, 1, added); /* one launch, counted under all that it does */
    pl_ops_count(o, PL_OP_linear, k->name, 1, others);
    pl_ops_count(o, PL_OP_norm, k->name, 1, 0);
    pl_ops_count(o, PL_OP_glu, k->name, 1, 0);
    return PL_OK;
}

enum pl_status dev_chain_take(struct pl_ops *o, enum pl_op op, size_t count, const struct pl_weight *const *w,
                              const struct pl_weight *const *bias, const struct pl_activation *x,
                              struct pl_activation *const *y, bool gelu) {
    struct dev_chain *c = &dev_of(o)->chain;
    c->fits = false;
    switch (c->at) {
    case DEV_CHAIN_EMPTY:
        PL_TRY(dev_settle(o));
        c->o = w[0];
        c->from = x;
        c->x = y[0];
        c->at = DEV_CHAIN_O;
        return PL_OK;
    case DEV_CHAIN_NORM:
        for (size_t i = 0; i < 2; i++) c->gate_up[i] = w[i], c->g[i] = y[i];
        c->gelu = gelu;
        c->at = DEV_CHAIN_GATED;
        return PL_OK;
    case DEV_CHAIN_GATED:
        c->down = w[0];
        c->count = 0;
        c->at = DEV_CHAIN_DOWN;
        return PL_OK;
    default:
        PL_ASSERT(c->at == DEV_CHAIN_NEXT_NORM && op == PL_OP_linear);
        c->count = count;
        for (size_t i = 0; i < count; i++) c->next[i] = w[i], c->bias[i] = bias != NULL ? bias[i] : NULL, c->y[i] = y[i];
        return launch(o);
    }
}

/* --- what does not --- */

static enum pl_status replay(struct pl_ops *o, enum dev_chain_at at) {
    struct dev_chain *c = &dev_of(o)->chain;
    static const struct pl_weight *const no_bias[2];
    if (at >= DEV_CHAIN_O) PL_TRY(dev_stream(o, PL_OP_linear_add, 1, &c->o, NULL, c->from, &c->x));
    if (at >= DEV_CHAIN_NORM && !dev_norm_waits(dev_of(o), &c->norm[0])) PL_TRY(dev_norm(o, &c->norm[0]));
    if (at >= DEV_CHAIN_GATED)
        PL_TRY(dev_gated(o, c->gate_up, no_bias, c->gelu ? PL_OPS_GELU_TANH : PL_OPS_SILU, c->norm[0].y, c->g));
    return PL_OK;
}

enum pl_status dev_chain_settle(struct pl_ops *o) {
    struct dev_ops *d = dev_of(o);
    struct dev_chain *c = &d->chain;
    enum dev_chain_at at = c->at;
    enum pl_status st;
    if (at == DEV_CHAIN_EMPTY) return PL_OK;
    c->at = DEV_CHAIN_EMPTY;
    if (at >= DEV_CHAIN_DOWN) {
        st = launch(o);
    } else {
        c->off = true; /* these layers are no chains: do not ask again */
        c->replaying = true;
        st = replay(o, at);
        c->replaying = false;
    }
    if (st == PL_OK && at == DEV_CHAIN_NEXT_NORM && !dev_norm_waits(d, &c->norm[1])) st = dev_norm(o, &c->norm[1]);
    return st;
}
