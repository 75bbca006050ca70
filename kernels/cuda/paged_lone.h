/* paged_lone - a chunk of one member on tensor cores: 128 threads (a team) take HEADS query heads of one KV head. What it does and
 * requires: paged_mma.k.c.
 *
 * Pages in few bits (KV_MOST): vectors begin at multiples of 4 bytes, so the units of 16 bytes that hold them are copied as they
 * are, and each warp widens the run it copied to f16 codes, which are exact, in a tile of its own. Scales of keys go to scores,
 * those of values to weights, which are kept near 1 by a power of two. Values of KV_K8V4 stay turned until a row is done.
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
#ifdef KV_MOST
#define K_UNITS ((KV_VECTOR + 27u) / 16u) /* units that a vector and what is before it take */
#define V_UNITS ((VALUE_VECTOR + 27u) / 16u)
#define K_RAW   (K_UNITS * 16u)
#define V_RAW   (V_UNITS * 16u)
#define RAW     (TILE * K_RAW)
#define STAGE   (RAW + TILE * V_RAW)
#define WIDE_AT (STAGES * STAGE) /* two tiles of f16 */
#define LOW_AT  (WIDE_AT + 2u * SIDE)
#else
#define STAGE  (2u * SIDE)
#define LOW_AT (STAGES * STAGE) /* what q lost by rounding: 16 rows of PITCH */
#endif
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
#ifdef KV_MOST
/* Bytes from a unit's start to the vector of the token at pos: vectors are 4 more than a multiple of 16, pages of 4 tokens' multiple. */
FN u32 lead(const struct work *w, u32 pos) { return 4u * ((pos * w->kv_heads + w->g) & 3u); }
FN void fetch_raw(u32 to, const u8 *pages, const struct work *w, u32 t0, const u32 *page, u32 vector, u32 units) {
    u32 lane = ME % 32u, run = RUN * (ME / 32u), at = w->skip + t0 + run, first = at / PAGE_TOKENS;
#pragma unroll
    for (u32 i = 0; i < (units * RUN + 31u) / 32u; i++) {
        u32 j = lane + 32u * i, token = j / units, unit = j % units, pos = at + token;
        u32 physical = pos / PAGE_TOKENS == first ? page[0] : page[1];
        u64 from = (((u64)physical * PAGE_TOKENS + pos % PAGE_TOKENS) * w->kv_heads + w->g) * vector / 16u * 16u + 16u * unit;
        if (token < RUN) copy16(to + (run + token) * 16u * units + 16u * unit, pages + from, t0 + run + token < w->tokens ? 16u : 0u);
    }
}
FN void fetch(u32 to, const struct work *w, const struct pools *p, u32 t0, const u32 *page) {
    fetch_raw(to, p->k, w, t0, page, KV_VECTOR, K_UNITS);
    fetch_raw(to + RAW, p->v, w, t0, page, VALUE_VECTOR, V_UNITS);
}

/* Four codes as f16; of KV_F8 a 256th of each. */
FN void widen4(u32 *h, u32 c) {
#ifdef KV_F8
    u32 x = pick_bytes(c, 0u, 0x1404u), y = pick_bytes(c, 0u, 0x3424u);
    h[0] = (x & 0x80008000u) | (x >> 1 & 0x3F803F80u);
    h[1] = (y & 0x80008000u) | (y >> 1 & 0x3F803F80u);
#else
    c ^= 0x80808080u; /* from 0 on: the last bits of 1024 and up, minus 1152 */
    h[0] = minus2(pick_bytes(c, 0x64646464u, 0x4140u), 0x64806480u);
    h[1] = minus2(pick_bytes(c, 0x64646464u, 0x4342u), 0x64806480u);
#endif
}
#ifdef KV_K8V4
/* Four places of the codebook, the first in the low bits, as f16: its bytes are looked up. */
FN void level4(u32 *h, u32 c) {
    u32 at = c & 0x7777u, low = pick_bytes(0x8A41351Cu, 0x77237906u, at), high = pick_bytes(0x3B393630u, 0x41403E3Du, at);
    u32 none = pick_bytes(0x01010101u, 0u, c & 0x8888u); /* bit 3 spreads the sign of 01: zeros where it is set */
    high |= (none << 7) ^ 0x80808080u;
    h[0] = pick_bytes(low, high, 0x5140u);
    h[1] = pick_bytes(low, high, 0x7362u);
}
#endif
/* This warp's run, from raw to its part of the tiles; at: the first token's place in the sequence. */
FN void widen_run(u32 wide, u32 raw_k, u32 raw_v, const struct work *w, u32 at) {
    u32 lane = ME % 32u;
#pragma unroll 4
    for (u32 i = lane; i < RUN * (HEAD_DIM / 4u); i += 32u) {
        u32 token = i / (HEAD_DIM / 4u), word = i % (HEAD_DIM / 4u), h[2];
        widen4(h, shared_get4(raw_k + token * K_RAW + lead(w, at + token) + 4u * word));
        shared_put8(wide + token * PITCH + 8u * word, h[0], h[1]);
    }
    wide += SIDE;
#ifdef KV_K8V4
#pragma unroll 4
    for (u32 i = lane; i < RUN * (HEAD_DIM / 8u); i += 32u) {
        u32 token = i / (HEAD_DIM / 8u), word = i % (HEAD_DIM / 8u), h[4];
        u32 c = shared_get4(raw_v + token * V_RAW + lead(w, at + token) + 4u * word);
        level4(h, c);
        level4(h + 2, c >> 16);
        shared_put16(wide + token * PITCH + 16u * word, h[0], h[1], h[2], h[3]);
    }
#else
#pragma unroll 4
    for (u32 i = lane; i < RUN * (HEAD_DIM / 4u); i += 32u) {
        u32 token = i / (HEAD_DIM / 4u), word = i % (HEAD_DIM / 4u), h[2];
        widen4(h, shared_get4(raw_v + token * V_RAW + lead(w, at + token) + 4u * word));
        shared_put8(wide + token * PITCH + 8u * word, h[0], h[1]);
    }
#endif
}
/* Scales of this lane's tokens: 2 t, 2 t + 1 and eight further. */
struct scales {
    f32 k[4], v[4];
};
FN struct scales read_scales(u32 raw_k, u32 raw_v, const struct work *w, u32 at) {
    struct scales s;
#pragma unroll
    for (u32 i = 0; i < 4u; i++) {
        u32 token = 8u * (i >> 1) + 2u * (ME % 4u) + (i & 1u), from = lead(w, at + token);
        s.k[i] = bits_f32(shared_get4(raw_k + token * K_RAW + from + KV_VECTOR - 4u));
        s.v[i] = bits_f32(shared_get4(raw_v + token * V_RAW + from + VALUE_VECTOR - 4u));
#ifdef KV_F8
        s.k[i] *= 256.0f, s.v[i] *= 256.0f;
#endif
    }
    return s;
}
#ifdef KV_K8V4
/* Element 4 i and three further of a row that HEAD_DIM / 4 neighbouring lanes hold, turned back. All lanes come along. */
FN float4 turned_back(float4 v, u32 i) {
    float4 a = make_float4(v.x + v.y, v.x - v.y, v.z + v.w, v.z - v.w);
    v = make_float4(a.x + a.z, a.y + a.w, a.x - a.z, a.y - a.w);
#pragma unroll
    for (u32 m = 1; m < HEAD_DIM / 4u; m <<= 1) {
        float4 o = make_float4(lane_xor(v.x, m), lane_xor(v.y, m), lane_xor(v.z, m), lane_xor(v.w, m));
        f32 own = (i & m) != 0u ? -1.0f : 1.0f;
        v = make_float4(o.x + own * v.x, o.y + own * v.y, o.z + own * v.z, o.w + own * v.w);
    }
    return make_float4(v.x * value_sign(4u * i), v.y * value_sign(4u * i + 1u), v.z * value_sign(4u * i + 2u), v.w * value_sign(4u * i + 3u));
}
#endif
#else
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
#endif

FN f32 soft_capped(f32 s, f32 cap) { return cap * TANH(s / cap) * LOG2E; }
/* A product with what rounding lost adds nothing where the score is infinite. */
FN f32 finite(f32 v) { return (f32_bits(v) & 0x7F800000u) == 0x7F800000u ? 0.0f : v; }
/* exp2(a - b) where b >= a; nothing weighs nothing. */
FN f32 weight_of(f32 a, f32 b) { return a == NEG_INF ? 0.0f : power2(a - b); }

struct state {
    f32 o[COLUMNS][4], m[HALVES], l[HALVES];
#ifdef KV_MOST
    f32 by; /* a power of two, the same in all lanes: o is so much too large; 0: no value yet */
#endif
};

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

#ifdef KV_MOST
/* s->v become shares of by, which is chosen so that the largest of the first run is near 1, and again when one is far above. */
FN void keep_near_one(struct state *a, struct scales *s) {
    f32 top = FMAX(FMAX(s->v[0], s->v[1]), FMAX(s->v[2], s->v[3]));
    top = FMAX(top, lane_xor(top, 1));
    top = FMAX(top, lane_xor(top, 2));
    if (top > 1e-30f && (a->by == 0.0f || top * a->by > 1024.0f)) {
        f32 by = bits_f32((254u << 23) - (f32_bits(top) & 0x7F800000u)), change = a->by == 0.0f ? 0.0f : by / a->by;
        a->by = by;
#pragma unroll
        for (u32 i = 0; i < COLUMNS; i++) a->o[i][0] *= change, a->o[i][1] *= change, a->o[i][2] *= change, a->o[i][3] *= change;
    }
#pragma unroll
    for (u32 i = 0; i < 4u; i++) s->v[i] *= a->by;
}
#define SCALES , const struct scales *by_token
#else
#define SCALES
#endif

/* The warp's RUN tokens at k and v; token i of them is live when i < live. */
FN void run_alone(struct state *a, u32 qf[STEPS][4], u32 k, u32 v, u32 live, f32 softcap SCALES) {
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
#ifdef KV_MOST
            x *= by_token->k[i];
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
#ifdef KV_MOST
            e[2u * i] *= by_token->v[2u * i], e[2u * i + 1u] *= by_token->v[2u * i + 1u];
#endif
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
#ifdef KV_MOST
    f32 back = a->by > 0.0f ? 1.0f / a->by : 0.0f;
#endif
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
#ifdef KV_MOST
            v.x *= back, v.y *= back;
#endif
            *(float2 *)(o + (warp * HEADS + r) * HEAD_DIM + 8u * i + 2u * t) = v;
        }
    }
    TEAM_BARRIER();
    for (u32 unit = ME; unit < (HEADS * HEAD_DIM / 4u + TEAM - 1u) / TEAM * TEAM; unit += TEAM) {
        u32 r = PL_MIN(unit / (HEAD_DIM / 4u), HEADS - 1u), d = unit % (HEAD_DIM / 4u) * 4u;
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
        sum = make_float4(sum.x * by, sum.y * by, sum.z * by, sum.w * by);
#ifdef KV_K8V4
        if (lse == 0) sum = turned_back(sum, d / 4u); /* a part of a row stays turned */
#endif
        if (unit >= HEADS * HEAD_DIM / 4u) continue;
        *(float4 *)(to + r * HEAD_DIM + d) = sum;
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
#ifdef KV_MOST
    a.by = 0.0f;
#endif
    u32 stage = 0, last = STAGES - 1u;
    for (u32 t0 = 0; t0 < w->tokens; t0 += TILE) {
        COPIES_WAIT(STAGES - 2);
        WARP_BARRIER(); /* a warp reads what it copied */
        u32 next = t0 + (STAGES - 1u) * TILE;
        if (next < w->tokens) fetch(base + last * STAGE, w, pools, next, page);
        copies_close();
        look_up(page, w, next + TILE);
#ifdef KV_MOST
        if (t0 + run < w->tokens) {
            u32 raw_k = base + stage * STAGE + run * K_RAW, raw_v = base + stage * STAGE + RAW + run * V_RAW, at = w->skip + t0 + run;
            u32 k = base + WIDE_AT + run * PITCH;
            struct scales s = read_scales(raw_k, raw_v, w, at);
            widen_run(k, raw_k, raw_v, w, at);
            WARP_BARRIER();
            keep_near_one(&a, &s);
            run_alone(&a, qf, k, k + SIDE, w->tokens - t0 - run, softcap, &s);
        }
#else
        u32 k = base + stage * STAGE + run * PITCH;
        if (t0 + run < w->tokens) run_alone(&a, qf, k, k + SIDE, w->tokens - t0 - run, softcap);
#endif
        stage = stage + 1u == STAGES ? 0u : stage + 1u;
        last = last + 1u == STAGES ? 0u : last + 1u;
    }
    combine(&a, to, lse);
}

#endif
