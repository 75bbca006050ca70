/* ssm_layers - one token through neighbouring Mamba-2 layers in one launch on NVIDIA GPUs of sm_90 and up: each x += out norm(y) with
 * y = what ssm_step.k.c makes of in norm(x). Contracts: kernels/linear.k.c, norm.k.c, ssm.k.c.
 *
 * A group of threads on every multiprocessor, all of them resident. Weights come through a ring in shared memory in the order of all
 * layers without a stop, 4 WIDTH bytes at a time: two rows of an input product, one of an output product, each one copy. Thread t has
 * inputs [8 t, 8 t + 8) of a product (and those WIDTH further on) in registers; a row's sums meet in shared memory.
 * A group makes the rows of x and z that its own rows of the state take, so that nobody waits for those. B, C and time steps are
 * made first, by all groups together, and have long come when the rows are done. So groups meet (meet.h) three times a layer, and
 * wait twice: for y and for x. meet[32] says where the counter stood when the launch began.
 * State, taps and weights of norms are fetched while groups wait. A norm's factor is applied to the sums.
 * cx [channels], dt [heads], y [INNER] hold what lies between.
 * WIDTH: of x, a multiple of 256; INNER = heads * head_dim, twice WIDTH; STATE: N, a multiple of 128; K taps; EACH rows of the state a
 * warp; HAS_CONV_BIAS; HAS_BIAS of dt, HAS_SKIP. One group of B and C; heads even; head_dim even.
 * Numerics: f32, fixed order: bitwise repeatable. Requires: a grid that fits on the device at once. GROUP WIDTH / 8 + 32. */
#define BULK
#include "dialect.h"
#include "args/args.h"
#include "ssm_math.h"
#include "cuda/meet.h"
#include "cuda/strips.h"

#define MEMBERS    (WIDTH / 8u) /* threads that multiply */
#define WARPS      (MEMBERS / 32u)
#define UNIT_BYTES (4u * WIDTH)
#define ROWS       (WARPS * EACH) /* of the state, at most */
#define HELD       (2u * ROWS)    /* sums of rows that wait to be added up */
#define VECTORS    (STATE / 128u)
#define SHARED_BC  (2u * STATE)                            /* channels that all groups convolve */
#define MINE       ((SHARED_BC + MEMBERS - 1u) / MEMBERS)  /* of a thread */
#define LAYER_WORDS ((u32)sizeof(struct pl_args_ssm_layer) / 4u)

#ifndef PL_EMULATED
extern __shared__ __align__(128) u8 shared[];
FN void members_meet(void) { asm volatile("bar.sync 1, %0;" ::"n"(MEMBERS) : "memory"); }
#endif
#ifdef EVERY_LANE /* for tools that do not follow __syncwarp */
#define LEAVERS (32u * WARPS)
#else
#define LEAVERS WARPS
#endif

/* Behind the ring; barriers follow. */
struct room {
    f32 made[SHARED_BC], x[ROWS], gate[ROWS];
    f32 sums[HELD][WARPS], squares[2][WARPS]; /* squares: of the input product, of the output product */
    struct pl_args_ssm_layer layer[2];
};
struct ring {
    u64 *full, *freed;
    u32 depth, slot, phase;
};

/* --- which rows --- */

FN u32 share(u32 total, u32 i, u32 grid) { return (u32)((u64)i * total / grid); }
/* Of this group: units of B, C and dt; pairs of units of x and z; rows of the output product. Groups with a pair less take two units of
 * the former, the others what is left. */
struct part {
    u32 extra, extra_end, pair, pair_end, out, out_end;
};
FN struct part part_of(const struct pl_args_ssm_layers *a) {
    u32 pairs = INNER / 2u, extras = (SHARED_BC + a->heads) / 2u, most = (pairs + a->grid - 1u) / a->grid, g = GROUP_X;
    struct part p;
    p.pair = share(pairs, g, a->grid), p.pair_end = share(pairs, g + 1u, a->grid);
    u32 light = most * a->grid - pairs, before = most * g - p.pair; /* groups with a pair less: all, and below this one */
    u32 taken = PL_MIN(extras, 2u * light);
    if (p.pair_end - p.pair < most) {
        p.extra = PL_MIN(taken, 2u * before), p.extra_end = PL_MIN(taken, 2u * before + 2u);
    } else {
        u32 full = a->grid - light;
        p.extra = taken + share(extras - taken, g - before, full), p.extra_end = taken + share(extras - taken, g - before + 1u, full);
    }
    p.out = share(WIDTH, g, a->grid), p.out_end = share(WIDTH, g + 1u, a->grid);
    return p;
}

/* --- weights on their way --- */

struct matrices {
    const u8 *z, *x, *dt, *out;
};
FN struct matrices matrices_of(const struct pl_args_ssm_layer *l) {
    struct matrices m = {(const u8 *)l->z, (const u8 *)l->x, (const u8 *)l->dt, (const u8 *)l->out};
    return m;
}
FN void bring(struct ring *q, const u8 *from) {
    if (q->phase > 0u) barrier_wait(q->freed + q->slot, (q->phase - 1u) & 1u); /* here: rounds */
    barrier_expect(q->full + q->slot, UNIT_BYTES);
    copy_bulk(shared + q->slot * UNIT_BYTES, from, UNIT_BYTES, q->full + q->slot);
    if (++q->slot == q->depth) q->slot = 0u, q->phase++;
}
FN void bring_all(struct ring q, const struct pl_args_ssm_layer *layers, const struct part *p, const struct pl_args_ssm_layers *a) {
    struct matrices m = matrices_of(layers);
    for (u32 l = 0; l < a->layers; l++) {
        struct matrices next = matrices_of(layers + PL_MIN(l + 1u, a->layers - 1u));
        for (u32 e = p->extra; e < p->extra_end; e++)
            bring(&q, 2u * e < SHARED_BC ? m.x + (u64)(INNER / 2u + e) * UNIT_BYTES : m.dt + (u64)(e - SHARED_BC / 2u) * UNIT_BYTES);
        for (u32 i = p->pair; i < p->pair_end; i++) bring(&q, m.x + (u64)i * UNIT_BYTES), bring(&q, m.z + (u64)i * UNIT_BYTES);
        for (u32 o = p->out; o < p->out_end; o++) bring(&q, m.out + (u64)o * UNIT_BYTES);
        m = next;
    }
}

/* --- the whole grid --- */

FN void arrive(u32 *meet) {
    members_meet();
    if (LOCAL_X == 0u) add_one(meet);
}
FN void await(const u32 *meet, u32 until) {
    if (LOCAL_X == 0u) {
        while ((i32)(count_of(meet) - until) < 0) again();
    }
    members_meet();
}

/* --- products --- */

FN void load8(const f32 *p, f32 *v) {
    float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
/* What other multiprocessors wrote in this launch: never from the first cache. */
FN void fetch8(const f32 *p, f32 *v) {
    float4 a = __ldcg((const float4 *)p), b = __ldcg((const float4 *)(p + 4));
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
/* Inputs [8 LOCAL_X, + 8) of each WIDTH times what their norm weighs them with (plus its offset); their squares to `squares`. */
FN void inputs(const f32 *x, u32 n, f32 (*weight)[8], f32 offset, f32 *squares, f32 (*v)[8]) {
    f32 sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < n; i++) fetch8(x + WIDTH * i + 8u * LOCAL_X, v[i]);
#pragma unroll
    for (u32 i = 0; i < 8u * n; i++) {
        f32 *e = &v[i / 8u][i % 8u];
        sum = FMA(*e, *e, sum);
        *e *= offset + weight[i / 8u][i % 8u];
    }
    for (u32 m = 16u; m > 0u; m >>= 1) sum += lane_xor(sum, m);
    if (LOCAL_X % 32u == 0u) squares[LOCAL_X / 32u] = sum;
}
FN f32 inverse_of(const f32 *squares, f32 count, f32 value) {
    f32 sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) sum += squares[i];
    return 1.0f / SQRT(sum / count + value);
}
FN void widen(u32 u, f32 *lo, f32 *hi) {
#ifdef WTYPE_BF16
    *lo = bits_f32(u << 16);
    *hi = bits_f32(u & 0xFFFF0000u);
#else
    *lo = h2_low(u);
    *hi = h2_high(u);
#endif
}
FN f32 dot8(const uint4 *q, const f32 *v, f32 sum) {
    u32 u[4] = {q->x, q->y, q->z, q->w};
#pragma unroll
    for (u32 j = 0; j < 4u; j++) {
        f32 lo, hi;
        widen(u[j], &lo, &hi);
        sum = FMA(lo, v[2u * j], sum);
        sum = FMA(hi, v[2u * j + 1u], sum);
    }
    return sum;
}
/* Of each of four rows the sum over the warp; thread 8 i holds row i's. */
FN f32 gather4(const f32 *acc) {
    u32 lane = LOCAL_X % 32u;
    bool upper = (lane & 16u) != 0u, odd = (lane & 8u) != 0u;
    f32 give0 = upper ? acc[0] : acc[2], give1 = upper ? acc[1] : acc[3];
    f32 v0 = (upper ? acc[2] : acc[0]) + lane_xor(give0, 16), v1 = (upper ? acc[3] : acc[1]) + lane_xor(give1, 16);
    f32 v = (odd ? v1 : v0) + lane_xor(odd ? v0 : v1, 8);
    v += lane_xor(v, 4);
    v += lane_xor(v, 2);
    return v + lane_xor(v, 1);
}
/* The next `rows` rows of the ring, n times WIDTH inputs each (2 / n rows a unit), into sums[row][this warp]. */
FN void products(struct ring *q, u32 rows, u32 n, f32 (*v)[8], f32 (*sums)[WARPS]) {
    u32 lane = LOCAL_X % 32u, warp = LOCAL_X / 32u;
    for (u32 r = 0; r < rows; r += 4u) {
        u32 slot = q->slot, phase = q->phase;
        uint4 w[4][2];
#pragma unroll
        for (u32 i = 0; i < 4u; i++) {
            w[i][0] = w[i][1] = make_uint4(0u, 0u, 0u, 0u);
            if (r + i >= rows) continue;
            bool first = n == 2u || i % 2u == 0u;
            if (first) barrier_wait(q->full + slot, phase);
            const u8 *at = shared + slot * UNIT_BYTES + (n == 2u ? 0u : i % 2u * 2u * WIDTH) + 16u * LOCAL_X;
#pragma unroll
            for (u32 j = 0; j < n; j++) w[i][j] = *(const uint4 *)(at + 2u * WIDTH * j);
            if (n == 2u || i % 2u == 1u) {
                if (++slot == q->depth) slot = 0u, phase ^= 1u;
            }
        }
        f32 acc[4];
#pragma unroll
        for (u32 i = 0; i < 4u; i++) {
            acc[i] = dot8(&w[i][0], v[0], 0.0f);
            if (n == 2u) acc[i] = dot8(&w[i][1], v[1], acc[i]);
        }
        WARP_SYNC();
#pragma unroll
        for (u32 i = 0; i < 4u; i++) {
            if (r + i >= rows || (n == 1u && i % 2u == 1u)) continue;
            if (LEAVERS > WARPS || lane == 0u) barrier_arrive(q->freed + q->slot);
            if (++q->slot == q->depth) q->slot = 0u, q->phase ^= 1u;
        }
        f32 sum = gather4(acc);
        if (lane % 8u == 0u && r + lane / 8u < rows) sums[r + lane / 8u][warp] = sum;
    }
}
FN f32 total(const f32 *sums) {
    f32 v = 0.0f;
#pragma unroll
    for (u32 w = 0; w < WARPS; w++) v += sums[w];
    return v;
}

/* --- the convolution --- */

struct filter {
    f32 taps[K], in[K], add;
};
FN void open_filter(struct filter *f, u32 c, const f32 *past, const struct pl_args_ssm_layer *l, u32 channels) {
    const f32 *taps = (const f32 *)l->taps;
    f->add = 0.0f;
#ifdef HAS_CONV_BIAS
    f->add = ((const f32 *)l->taps_bias)[c];
#endif
#pragma unroll
    for (u32 k = 0; k < K; k++) f->taps[k] = taps[(u64)k * channels + c];
#pragma unroll
    for (u32 k = 0; k + 1u < K; k++) f->in[k] = past != nullptr ? past[(u64)k * channels + c] : 0.0f;
}
FN f32 filtered(struct filter *f, f32 x) {
    f32 sum = f->add;
    f->in[K - 1u] = x;
#pragma unroll
    for (u32 k = 0; k < K; k++) sum = FMA(f->taps[k], f->in[k], sum);
    return silu(sum);
}
FN void keep_filter(const struct filter *f, u32 c, f32 *slot, u32 channels) {
#pragma unroll
    for (u32 k = 0; k + 1u < K; k++) slot[(u64)k * channels + c] = f->in[k + 1u];
}

/* --- the recurrence: EACH rows a warp, four values of N a lane and VECTORS times --- */

struct rows {
    float4 s[EACH][VECTORS];
    f32 rate[EACH], shift[EACH], direct[EACH], step[EACH];
    u32 head[EACH];
};
FN void open_rows(struct rows *o, u32 row, u32 end, const f32 *own, bool has_past, const struct pl_args_ssm_layer *l, u32 head_dim) {
#pragma unroll
    for (u32 r = 0; r < EACH; r++) {
        bool here = row + r < end;
        u32 h = (here ? row + r : 0u) / head_dim;
#pragma unroll
        for (u32 v = 0; v < VECTORS; v++) {
            o->s[r][v] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (here && has_past) o->s[r][v] = __ldcg((const float4 *)(own + (u64)(row + r) * STATE + 128u * v));
        }
        o->rate[r] = o->shift[r] = o->direct[r] = o->step[r] = 0.0f;
        o->head[r] = h;
        if (!here) continue;
        o->rate[r] = ((const f32 *)l->decay)[h];
#ifdef HAS_BIAS
        o->shift[r] = ((const f32 *)l->dt_bias)[h];
#endif
#ifdef HAS_SKIP
        o->direct[r] = ((const f32 *)l->skip)[h];
#endif
    }
}
FN void recur(struct rows *o, u32 row, u32 first, u32 end, f32 *own, const struct room *m, f32 *y, const struct pl_args_ssm_layers *a) {
    u32 lane = LOCAL_X % 32u;
    f32 sum[EACH], push[EACH], keep[EACH], all = 0.0f;
#pragma unroll
    for (u32 r = 0; r < EACH; r++) {
        u32 at = PL_MIN(row + r, end - 1u);
        f32 d = clipped_softplus(o->step[r] + o->shift[r], a->dt_min, a->dt_max);
        sum[r] = 0.0f, push[r] = d * m->x[at - first], keep[r] = EXP(d * o->rate[r]);
    }
#pragma unroll
    for (u32 v = 0; v < VECTORS; v++) {
        float4 b = *(const float4 *)(m->made + 128u * v + 4u * lane), c = *(const float4 *)(m->made + STATE + 128u * v + 4u * lane);
#pragma unroll
        for (u32 r = 0; r < EACH; r++) {
            float4 *q = &o->s[r][v];
            q->x = FMA(q->x, keep[r], push[r] * b.x), q->y = FMA(q->y, keep[r], push[r] * b.y);
            q->z = FMA(q->z, keep[r], push[r] * b.z), q->w = FMA(q->w, keep[r], push[r] * b.w);
            sum[r] = FMA(q->x, c.x, FMA(q->y, c.y, FMA(q->z, c.z, FMA(q->w, c.w, sum[r]))));
            if (row + r < end) *(float4 *)(own + (u64)(row + r) * STATE + 128u * v) = *q;
        }
    }
#pragma unroll
    for (u32 r = 0; r < EACH; r++) {
        for (u32 i = 16u; i > 0u; i >>= 1) sum[r] += lane_xor(sum[r], i);
        if (lane == r) all = FMA(o->direct[r], m->x[PL_MIN(row + r, end - 1u) - first], sum[r]);
    }
    if (lane < EACH && row + lane < end) y[row + lane] = all * m->gate[row + lane - first];
}

/* --- a layer --- */

FN void fetch_layer(struct room *m, const struct pl_args_ssm_layer *layers, u32 l) {
    if (LOCAL_X < LAYER_WORDS) ((u32 *)(m->layer + l % 2u))[LOCAL_X] = ((const u32 *)(layers + l))[LOCAL_X];
}
/* B, C and time steps of this group, to all. */
FN void extras(struct ring *q, struct room *m, const struct part *p, f32 (*v)[8], f32 *cx, f32 *dt, const struct pl_args_ssm_layers *a) {
    for (u32 from = 2u * p->extra, end = 2u * p->extra_end; from < end; from += HELD) {
        u32 n = PL_MIN(end - from, HELD);
        if (from > 2u * p->extra) members_meet(); /* sums have been read */
        products(q, n, 1u, v, m->sums);
        members_meet();
        f32 by = inverse_of(m->squares[0], (f32)WIDTH, a->value);
        for (u32 i = LOCAL_X; i < n; i += MEMBERS) {
            u32 at = from + i;
            f32 *to = at < SHARED_BC ? cx + INNER + at : dt + (at - SHARED_BC);
            *to = by * total(m->sums[i]);
        }
    }
}

/* grid: (groups of threads). meet: counters that were zero when they were made. */
KERNEL(ssm_layers)(const struct pl_args_ssm_layer *layers, f32 *x, f32 *cx, f32 *dt, f32 *y, const u32 *seqs, u32 *meet, u32 *witness,
                   const struct pl_args_ssm_layers a) {
    struct room *m = (struct room *)(shared + a.depth * UNIT_BYTES);
    u64 *barriers = (u64 *)(m + 1);
    struct ring q = {barriers, barriers + a.depth, a.depth, 0u, 0u};
    const struct part p = part_of(&a);
    if (LOCAL_X == MEMBERS) {
        for (u32 i = 0; i < a.depth; i++) barrier_init(q.full + i, 1u), barrier_init(q.freed + i, LEAVERS);
        barriers_ready();
    }
    fetch_layer(m, layers, 0u);
    BARRIER();
    if (LOCAL_X >= MEMBERS) { /* weights depend on no launch before this one */
        if (LOCAL_X == MEMBERS) bring_all(q, layers, &p, &a);
        return;
    }
    u32 warp = LOCAL_X / 32u, lane = LOCAL_X % 32u, first = 2u * p.pair, end = 2u * p.pair_end, row = first + EACH * warp;
    u32 base = 0u, met = 0u;
    bool has_past = seqs[PL_SEQ_PAST] > 0u;
    u64 slot_at = seqs[PL_SEQ_SLOT] * a.slot_stride;
    for (u32 l = 0; l < a.layers; l++) {
        const struct pl_args_ssm_layer *w = m->layer + l % 2u;
        f32 *slot = (f32 *)w->state + slot_at, *own = slot + a.state_first + 4u * lane;
        f32 weight[2][8], v[2][8];
        struct filter shares[MINE], mine;
        struct rows o;
        load8((const f32 *)w->norm + 8u * LOCAL_X, weight[0]);
        open_rows(&o, row, end, own, has_past, w, a.head_dim);
#pragma unroll
        for (u32 j = 0; j < MINE; j++) {
            u32 c = INNER + PL_MIN(LOCAL_X + MEMBERS * j, SHARED_BC - 1u);
            open_filter(&shares[j], c, has_past ? slot : nullptr, w, a.channels);
        }
        if (LOCAL_X < end - first) open_filter(&mine, first + LOCAL_X, has_past ? slot : nullptr, w, a.channels);
        if (l == 0u) {
            count_launch(witness);
            if (LOCAL_X == 0u) base = __ldcg(meet + 32);
        } else {
            await(meet, base + met * a.grid);
        }
        inputs(x, 1u, weight, a.offset, m->squares[0], v);
        extras(&q, m, &p, v, cx, dt, &a);
        arrive(meet), met++;
        products(&q, 2u * (end - first), 1u, v, m->sums);
        if (l + 1u < a.layers) fetch_layer(m, layers, l + 1u);
        await(meet, base + met * a.grid);
        f32 by = inverse_of(m->squares[0], (f32)WIDTH, a.value);
#pragma unroll
        for (u32 r = 0; r < EACH; r++) o.step[r] = __ldcg(dt + o.head[r]);
#pragma unroll
        for (u32 j = 0; j < MINE; j++) {
            u32 c = LOCAL_X + MEMBERS * j;
            if (c < SHARED_BC) m->made[c] = filtered(&shares[j], __ldcg(cx + INNER + c));
        }
        if (LOCAL_X < end - first) { /* a unit of x, then one of z */
            u32 at = LOCAL_X / 2u * 4u + LOCAL_X % 2u;
            m->x[LOCAL_X] = filtered(&mine, by * total(m->sums[at]));
            m->gate[LOCAL_X] = silu(by * total(m->sums[at + 2u]));
            keep_filter(&mine, first + LOCAL_X, slot, a.channels);
        }
        members_meet();
        if (row < end) recur(&o, row, first, end, own, m, y, &a);
        arrive(meet), met++;
        f32 old = 0.0f;
        if (LOCAL_X < p.out_end - p.out) old = __ldcg(x + p.out + LOCAL_X);
#pragma unroll
        for (u32 i = 0; i < 2u; i++) load8((const f32 *)w->inner_norm + WIDTH * i + 8u * LOCAL_X, weight[i]);
        await(meet, base + met * a.grid);
#pragma unroll
        for (u32 j = 0; j < MINE; j++) { /* everyone has read what it kept of B and C */
            u32 c = LOCAL_X + MEMBERS * j;
            if (GROUP_X == 0u && c < SHARED_BC) keep_filter(&shares[j], INNER + c, slot, a.channels);
        }
        inputs(y, 2u, weight, a.inner_offset, m->squares[1], v);
        products(&q, p.out_end - p.out, 2u, v, m->sums);
        members_meet();
        if (LOCAL_X < p.out_end - p.out)
            x[p.out + LOCAL_X] = old + inverse_of(m->squares[1], (f32)INNER, a.inner_value) * total(m->sums[LOCAL_X]);
        if (l + 1u < a.layers) arrive(meet), met++;
    }
    if (GROUP_X + 1u == a.grid && LOCAL_X == 0u) meet[32] = base + met * a.grid;
}
