/* paged_lone - a chunk of one member on tensor cores: 128 threads (a team) take HEADS query heads of one KV head. What it does and
 * requires: paged_mma.k.c.
 *
 * Before this file is included: TEAM threads, of which this one is ME; TEAM_BARRIER() for them; team_shared(), STAGES * STAGE bytes
 * of theirs (and 16 * PITCH more when HEADS > 8). */
#ifndef PL_PAGED_LONE_H
#define PL_PAGED_LONE_H

#define WARPS   (TEAM / 32u)
#define RUN     16u
#define TILE    (WARPS * RUN)
#define UNITS   (HEAD_DIM / 8u) /* of 16 bytes */
#define PITCH   ((UNITS + 1u) * 16u)
#define SIDE    (TILE * PITCH)
#define STAGE   (2u * SIDE)
#define STEPS   (HEAD_DIM / 16u)
#define COLUMNS (HEAD_DIM / 8u) /* of 8 values */
#define HALVES  (HEADS > 8u ? 2u : 1u)
#define LOG2E   1.4426950408889634f

struct work {
    const u32 *pages;
    u32 skip, tokens, last_page, g, kv_heads;
};
struct pools {
    const KV_TYPE *k, *v;
};

/* Physical pages of this warp's run in the tile at t0: that of its first token and that of its last. */
FN void look_up(u32 *page, const struct work *w, u32 t0) {
    u32 at = w->skip + t0 + RUN * (ME / 32u);
    page[0] = w->pages[PL_MIN(at / PAGE_TOKENS, w->last_page)];
    page[1] = w->pages[PL_MIN((at + RUN - 1u) / PAGE_TOKENS, w->last_page)];
}
FN void fetch_side(u32 to, const KV_TYPE *pages, const struct work *w, u32 t0, const u32 *page) {
    u32 lane = ME % 32u, run = RUN * (ME / 32u), at = w->skip + t0 + run, first = at / PAGE_TOKENS;
#pragma unroll
    for (u32 i = 0; i < UNITS * RUN / 32u; i++) {
        u32 j = lane + 32u * i, token = j / UNITS, unit = j % UNITS, pos = at + token;
        u32 physical = pos / PAGE_TOKENS == first ? page[0] : page[1];
        u64 from = (((u64)physical * PAGE_TOKENS + pos % PAGE_TOKENS) * w->kv_heads + w->g) * HEAD_DIM + 8u * unit;
        copy16(to + (run + token) * PITCH + 16u * unit, pages + from, t0 + run + token < w->tokens ? 16u : 0u);
    }
}
FN void fetch(u32 to, const struct work *w, const struct pools *p, u32 t0, const u32 *page) {
    fetch_side(to, p->k, w, t0, page);
    fetch_side(to + SIDE, p->v, w, t0, page);
}

FN f32 soft_capped(f32 s, f32 cap) { return cap * TANH(s / cap) * LOG2E; }
/* A product with what rounding lost adds nothing where the score is infinite. */
FN f32 finite(f32 v) { return (f32_bits(v) & 0x7F800000u) == 0x7F800000u ? 0.0f : v; }
/* exp2(a - b) where b >= a; nothing weighs nothing. */
FN f32 weight_of(f32 a, f32 b) { return a == NEG_INF ? 0.0f : power2(a - b); }

struct state {
    f32 o[COLUMNS][4], m[HALVES], l[HALVES];
};
#if HEADS > 8
#define LOW_AT (STAGES * STAGE) /* what q lost by rounding: 16 rows of PITCH */
#endif

/* Two inputs of head r, scaled; what rounding loses goes to *low. */
FN u32 q_pair(const f32 *q, u32 r, u32 d, f32 scale, u32 *low) {
    float2 v = make_float2(0.0f, 0.0f);
    if (r < HEADS) v = *(const float2 *)(q + r * HEAD_DIM + d);
    u32 high = two(v.x * scale, v.y * scale);
    *low = two(v.x * scale - low_of(high), v.y * scale - high_of(high));
    return high;
}
FN void load_q(u32 qf[STEPS][4], const f32 *q, f32 scale) {
    u32 lane = ME % 32u, g = lane / 4u, t = lane % 4u;
#pragma unroll
    for (u32 i = 0; i < STEPS; i++) {
#pragma unroll
        for (u32 j = 0; j < 2u; j++) { /* inputs 2 t and 8 further */
            u32 d = 16u * i + 8u * j + 2u * t, low;
            qf[i][2u * j] = q_pair(q, g, d, scale, &low);
#if HEADS > 8
            u32 further;
            qf[i][2u * j + 1u] = q_pair(q, g + 8u, d, scale, &further);
            if (ME < 32u) {
                shared_put4(shared_at(team_shared()) + LOW_AT + g * PITCH + 2u * d, low);
                shared_put4(shared_at(team_shared()) + LOW_AT + (g + 8u) * PITCH + 2u * d, further);
            }
#else
            qf[i][2u * j + 1u] = low;
#endif
        }
    }
#if HEADS > 8
    TEAM_BARRIER();
#endif
}

/* The warp's RUN tokens at k and v; token i of them is live when i < live. */
FN void run_alone(struct state *a, u32 qf[STEPS][4], u32 k, u32 v, u32 live, f32 softcap) {
    u32 lane = ME % 32u, t = lane % 4u;
    f32 s[2][4] = {{0.0f, 0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
#if HEADS > 8
    f32 lost[2][4] = {{0.0f, 0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
#endif
#pragma unroll
    for (u32 i = 0; i < STEPS; i++) {
        u32 b[4];
        factors(b, k + ((lane & 7u) + 8u * (lane >> 4)) * PITCH + 16u * (2u * i + ((lane >> 3) & 1u)));
        mma(s[0], qf[i], b[0], b[1]);
        mma(s[1], qf[i], b[2], b[3]);
#if HEADS > 8
        u32 f[4];
        factors(f, shared_at(team_shared()) + LOW_AT + (lane & 15u) * PITCH + 16u * (2u * i + (lane >> 4)));
        mma(lost[0], f, b[0], b[1]);
        mma(lost[1], f, b[2], b[3]);
#endif
    }
    u32 p[4];
#if HEADS > 8
    u32 p_low[4];
#endif
#pragma unroll
    for (u32 h = 0; h < HALVES; h++) {
        f32 e[4], top = a->m[h];
#pragma unroll
        for (u32 i = 0; i < 4u; i++) { /* tokens 2 t, 2 t + 1 and eight further */
            f32 x = s[i >> 1][2u * h + (i & 1u)];
#if HEADS <= 8
            x += finite(s[i >> 1][2u + (i & 1u)]);
#else
            x += finite(lost[i >> 1][2u * h + (i & 1u)]);
#endif
            e[i] = x;
        }
        if (softcap > 0.0f) {
#pragma unroll
            for (u32 i = 0; i < 4u; i++) e[i] = soft_capped(e[i], softcap);
        }
#pragma unroll
        for (u32 i = 0; i < 4u; i++) {
            e[i] = 8u * (i >> 1) + 2u * t + (i & 1u) < live ? e[i] : NEG_INF;
            top = FMAX(top, e[i]);
        }
        top = FMAX(top, lane_xor(top, 1));
        top = FMAX(top, lane_xor(top, 2));
        if (any_lane(top > a->m[h])) {
            f32 keep = weight_of(a->m[h], top);
            a->m[h] = top;
            a->l[h] *= keep;
#pragma unroll
            for (u32 i = 0; i < COLUMNS; i++) {
                a->o[i][2u * h] *= keep, a->o[i][2u * h + 1u] *= keep;
#if HEADS <= 8
                a->o[i][2] *= keep, a->o[i][3] *= keep;
#endif
            }
        }
        f32 from = top == NEG_INF ? 0.0f : top;
#pragma unroll
        for (u32 i = 0; i < 4u; i++) a->l[h] += e[i] = power2(e[i] - from);
#pragma unroll
        for (u32 i = 0; i < 2u; i++) {
            u32 high = two(e[2u * i], e[2u * i + 1u]), low = two(e[2u * i] - low_of(high), e[2u * i + 1u] - high_of(high));
            p[2u * i + h] = high;
#if HEADS <= 8
            p[2u * i + 1u] = low;
#else
            p_low[2u * i + h] = low;
#endif
        }
    }
#pragma unroll
    for (u32 i = 0; i < COLUMNS / 2u; i++) {
        u32 b[4];
        factors_turned(b, v + (lane & 15u) * PITCH + 16u * (2u * i + (lane >> 4)));
        mma(a->o[2u * i], p, b[0], b[1]);
        mma(a->o[2u * i + 1u], p, b[2], b[3]);
#if HEADS > 8
        mma(a->o[2u * i], p_low, b[0], b[1]);
        mma(a->o[2u * i + 1u], p_low, b[2], b[3]);
#endif
    }
}

/* The warps' states become one: to[r * HEAD_DIM ...] for each head, and its weight. lse NULL: not wanted. */
FN void combine(struct state *a, f32 *to, f32 *lse) {
    f32 *o = (f32 *)team_shared(), *m = o + WARPS * HEADS * HEAD_DIM, *l = m + WARPS * HEADS;
    u32 warp = ME / 32u, lane = ME % 32u, g = lane / 4u, t = lane % 4u;
    TEAM_BARRIER(); /* nobody reads tiles any more */
#pragma unroll
    for (u32 h = 0; h < HALVES; h++) {
        u32 r = g + 8u * h;
        f32 total = a->l[h];
        total += lane_xor(total, 1);
        total += lane_xor(total, 2);
        if (r >= HEADS) continue;
        if (t == 0u) m[warp * HEADS + r] = a->m[h], l[warp * HEADS + r] = total;
#pragma unroll
        for (u32 i = 0; i < COLUMNS; i++) {
            float2 v = make_float2(a->o[i][2u * h], a->o[i][2u * h + 1u]);
#if HEADS <= 8
            v.x += a->o[i][2], v.y += a->o[i][3];
#endif
            *(float2 *)(o + (warp * HEADS + r) * HEAD_DIM + 8u * i + 2u * t) = v;
        }
    }
    TEAM_BARRIER();
    for (u32 unit = ME; unit < HEADS * HEAD_DIM / 4u; unit += TEAM) {
        u32 r = unit / (HEAD_DIM / 4u), d = unit % (HEAD_DIM / 4u) * 4u;
        f32 top = NEG_INF, total = 0.0f;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) top = FMAX(top, m[w * HEADS + r]);
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) {
            f32 e = weight_of(m[w * HEADS + r], top);
            float4 v = *(const float4 *)(o + (w * HEADS + r) * HEAD_DIM + d);
            total += l[w * HEADS + r] * e;
            sum.x += e * v.x, sum.y += e * v.y, sum.z += e * v.z, sum.w += e * v.w;
        }
        f32 by = total > 0.0f ? 1.0f / total : 0.0f;
        *(float4 *)(to + r * HEAD_DIM + d) = make_float4(sum.x * by, sum.y * by, sum.z * by, sum.w * by);
        if (d == 0u && lse != 0) lse[r] = total > 0.0f ? top + LOG2(total) : NEG_INF;
    }
}

/* Tiles of tokens that no launch of this step writes (all but the last `fresh`) begin before the launch before this one is done. Returns
 * how many. */
FN u32 begin_lone(u32 base, const struct work *w, const struct pools *pools, u32 page[2], u32 fresh) {
    u32 old = w->tokens > fresh ? w->tokens - fresh : 0u, first = 0;
    if (w->tokens == 0u) return 0u;
    look_up(page, w, 0);
    for (; first < STAGES - 1u && (first + 1u) * TILE <= old; first++) {
        fetch(base + first * STAGE, w, pools, first * TILE, page);
        copies_close();
        look_up(page, w, (first + 1u) * TILE);
    }
    return first;
}
/* The others of the first STAGES - 1. */
FN void go_on_lone(u32 base, const struct work *w, const struct pools *pools, u32 page[2], u32 first) {
    for (; first < STAGES - 1u; first++) {
        if (first * TILE < w->tokens) {
            fetch(base + first * STAGE, w, pools, first * TILE, page);
            look_up(page, w, (first + 1u) * TILE);
        }
        copies_close();
    }
}
FN void lone_chunk(const struct work *w, const struct pools *pools, u32 page[2], u32 qf[STEPS][4], f32 *to, f32 *lse, f32 softcap) {
    struct state a;
    u32 base = shared_at(team_shared()), run = RUN * (ME / 32u);
#pragma unroll
    for (u32 h = 0; h < HALVES; h++) a.m[h] = NEG_INF, a.l[h] = 0.0f;
#pragma unroll
    for (u32 i = 0; i < COLUMNS; i++) a.o[i][0] = a.o[i][1] = a.o[i][2] = a.o[i][3] = 0.0f;
    u32 stage = 0, last = STAGES - 1u;
    for (u32 t0 = 0; t0 < w->tokens; t0 += TILE) {
        COPIES_WAIT(STAGES - 2);
        WARP_BARRIER(); /* a warp reads what it copied */
        u32 next = t0 + (STAGES - 1u) * TILE;
        if (next < w->tokens) fetch(base + last * STAGE, w, pools, next, page);
        copies_close();
        look_up(page, w, next + TILE);
        u32 k = base + stage * STAGE + run * PITCH;
        if (t0 + run < w->tokens) run_alone(&a, qf, k, k + SIDE, w->tokens - t0 - run, softcap);
        stage = stage + 1u == STAGES ? 0u : stage + 1u;
        last = last + 1u == STAGES ? 0u : last + 1u;
    }
    combine(&a, to, lse);
}

#endif
