/* mla - decode attention by plan over latent keys on tensor cores of NVIDIA GPUs (sm_80 and up): one key a token for all
 * heads, whose first VALUE_DIM numbers are its value. Contract, parts and their weights: kernels/paged.k.c.
 *
 * A group takes one chunk for HEADS query heads, a multiple of 16. Keys stream through STAGES tiles of TILE tokens in shared
 * memory, each read once for scores and values. Per tile: a warp multiplies one half of the key's numbers for a part of heads
 * and tokens, the two halves are added where the softmax is taken, then a warp weighs an eighth of the values for all heads.
 * q and weights are rounded to the cache's type. mla_merge joins the parts of a row: 128 numbers of one head a group.
 * Orders are fixed: bitwise repeatable. Requires: HEAD_DIM % 64 == 0, VALUE_DIM % 128 == 0, PAGE_TOKENS % 16 == 0, one KV
 * head, f16 or bf16 pages, GROUP 256. Relative error to src/ref <= 6e-3 (f16).
 * Cost: reads each visible key once per HEADS heads. */
#include "dialect.h"
#include "args/args.h"
#include "kv.h"
#include "cuda/units.h"

#define WARPS   (GROUP / 32u)
#define LOG2E   1.4426950408889634f

/* exp2(a - b) where b >= a; nothing weighs nothing. */
FN f32 weight_of(f32 a, f32 b) { return a == NEG_INF ? 0.0f : power2(a - b); }

#ifdef MERGE_ALONE
#define SLICE 128u /* numbers of a group */

/* grid: merged rows x heads x VALUE_DIM / SLICE, the last first */
KERNEL(mla_merge)(const f32 *parts, const f32 *lse_log2, const u32 *__restrict__ plan, f32 *out, u32 *witness, const struct pl_args_paged a) {
    __shared__ f32 tops[WARPS], totals[WARPS];
    __shared__ float4 sums[WARPS][32];
    u32 slices = VALUE_DIM / SLICE, slice = GROUP_X % slices, head = GROUP_X / slices % a.heads, entry = GROUP_X / slices / a.heads;
    u32 warp = LOCAL_X / 32u, lane = LOCAL_X % 32u, count = 0, d = slice * SLICE + 4u * lane;
    bool there = entry < plan[PL_PLAN_MERGE_COUNT]; /* the grid may be larger than the plan */
    const u32 *states = plan + plan[PL_PLAN_STATES];
    u64 row = 0;
    if (there) {
        const u32 *start = plan + plan[PL_PLAN_MERGE_START] + entry;
        row = plan[plan[PL_PLAN_MERGE_ROW] + entry];
        count = start[1] - start[0];
        states += start[0] * PL_PLAN_STATE_WORDS;
    }
    count_launch(witness);
    if (!there) return;
    f32 top = NEG_INF, total = 0.0f;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (u32 i = warp; i < count; i += 4u * WARPS) { /* four parts on their way */
        f32 lse[4], most = top;
        float4 v[4];
#pragma unroll
        for (u32 j = 0; j < 4u; j++) {
            u32 at = i + j * WARPS < count ? i + j * WARPS : i;
            u64 place = (u64)states[at * PL_PLAN_STATE_WORDS] * a.heads + head; /* parts of one member */
            lse[j] = i + j * WARPS < count ? fresh(lse_log2 + place) : NEG_INF;
            v[j] = fresh4(parts + place * VALUE_DIM + d);
        }
#pragma unroll
        for (u32 j = 0; j < 4u; j++) most = FMAX(most, lse[j]);
        f32 keep = weight_of(top, most);
        top = most;
        total *= keep, sum.x *= keep, sum.y *= keep, sum.z *= keep, sum.w *= keep;
#pragma unroll
        for (u32 j = 0; j < 4u; j++) {
            f32 e = weight_of(lse[j], top);
            total += e;
            sum.x += e * v[j].x, sum.y += e * v[j].y, sum.z += e * v[j].z, sum.w += e * v[j].w;
        }
    }
    if (lane == 0u) tops[warp] = top, totals[warp] = total;
    sums[warp][lane] = sum;
    BARRIER();
    if (warp != 0u) return;
    f32 most = NEG_INF;
    total = 0.0f;
    sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (u32 w = 0; w < WARPS; w++) most = FMAX(most, tops[w]);
#pragma unroll
    for (u32 w = 0; w < WARPS; w++) {
        f32 e = weight_of(tops[w], most);
        float4 v = sums[w][lane];
        total += totals[w] * e;
        sum.x += e * v.x, sum.y += e * v.y, sum.z += e * v.z, sum.w += e * v.w;
    }
    f32 by = total > 0.0f ? 1.0f / total : 0.0f;
    *(float4 *)(out + (row * a.heads + head) * VALUE_DIM + d) = make_float4(sum.x * by, sum.y * by, sum.z * by, sum.w * by);
}
#else

#define TILE    32u
#define MT      (HEADS / 16u)           /* tiles of heads: 1, 2 or 4 */
#define BESIDE  (4u / MT)               /* warps that share one, for the tokens */
#define UNITS   (HEAD_DIM / 8u)         /* of 16 bytes */
#define PITCH   ((UNITS | 1u) * 16u)    /* odd units: rows of a matrix lie in different banks */
#define STAGE   (TILE * PITCH)
#define STEPS   (HEAD_DIM / 32u)        /* of 16 numbers, in one half of the key */
#define PARTS   (VALUE_DIM / WARPS / 8u) /* matrices of 8 values, of a warp */
#define S_PITCH 40u                     /* f32 */
#define P_PITCH 80u                     /* bytes */
#define SHARE   (GROUP / HEADS)         /* threads that take the softmax of a head */
#define EACH    (TILE / SHARE)
#define S_AT    (STAGES * STAGE)
#define P_AT    (S_AT + 2u * HEADS * S_PITCH * 4u)
#define KEEP_AT (P_AT + HEADS * P_PITCH)

extern __shared__ __align__(128) u8 shared[];

struct work {
    const u32 *pages;
    u32 skip, tokens, last_page;
};

/* The pages that the tile at t0 may lie in. */
FN void look_up(u32 *page, const struct work *w, u32 t0) {
    u32 first = (w->skip + t0) / PAGE_TOKENS;
#pragma unroll
    for (u32 i = 0; i < 3u; i++) page[i] = w->pages[PL_MIN(first + i, w->last_page)];
}
FN void fetch(u32 to, const KV_TYPE *pool, const struct work *w, u32 t0, const u32 *page) {
    u32 first = (w->skip + t0) / PAGE_TOKENS;
#pragma unroll
    for (u32 i = 0; i < TILE * UNITS / GROUP; i++) {
        u32 j = LOCAL_X + GROUP * i, token = j / UNITS, unit = j % UNITS, pos = w->skip + t0 + token, d = pos / PAGE_TOKENS - first;
        u32 physical = d == 0u ? page[0] : d == 1u ? page[1] : page[2];
        u64 from = ((u64)physical * PAGE_TOKENS + pos % PAGE_TOKENS) * HEAD_DIM + 8u * unit;
        copy16(to + token * PITCH + 16u * unit, pool + from, t0 + token < w->tokens ? 16u : 0u);
    }
}

/* This warp's heads and its half of the key, scaled. */
FN void load_q(u32 qf[STEPS][4], const f32 *q, u32 m, u32 half, f32 scale) {
    u32 lane = LOCAL_X % 32u, g = lane / 4u, t = lane % 4u;
#pragma unroll
    for (u32 i = 0; i < STEPS; i++)
#pragma unroll
        for (u32 j = 0; j < 4u; j++) { /* rows g and g + 8, numbers 2 t and 8 further */
            float2 v = *(const float2 *)(q + (16u * m + g + 8u * (j & 1u)) * HEAD_DIM + 16u * (half * STEPS + i) + 8u * (j >> 1) + 2u * t);
            qf[i][j] = two(v.x * scale, v.y * scale);
        }
}

/* Scores of 16 heads with MT times 8 tokens from n on, over one half of the numbers. */
FN void scores(f32 *to, u32 qf[STEPS][4], u32 k, u32 n, u32 half) {
    u32 lane = LOCAL_X % 32u, g = lane / 4u, t = lane % 4u;
    f32 c[MT == 1u ? 2u : MT][4];
#pragma unroll
    for (u32 i = 0; i < (MT == 1u ? 2u : MT); i++) c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0.0f;
#if HEADS == 16
    u32 at = k + (8u * n + (lane & 7u)) * PITCH + 16u * (2u * half * STEPS + (lane >> 3));
#pragma unroll
    for (u32 i = 0; i < STEPS; i += 2u) {
        u32 b[4];
        factors(b, at + 32u * i);
        mma(c[0], qf[i], b[0], b[1]);
        mma(c[1], qf[i + 1u], b[2], b[3]);
    }
#pragma unroll
    for (u32 j = 0; j < 4u; j++) c[0][j] += c[1][j];
#else
    u32 at = k + (8u * n + (lane & 7u) + 8u * (lane >> 4)) * PITCH + 16u * (2u * half * STEPS + ((lane >> 3) & 1u));
#pragma unroll
    for (u32 i = 0; i < STEPS; i++)
#pragma unroll
        for (u32 j = 0; j < MT / 2u; j++) {
            u32 b[4];
            factors(b, at + 16u * j * PITCH + 32u * i);
            mma(c[2u * j], qf[i], b[0], b[1]);
            mma(c[2u * j + 1u], qf[i], b[2], b[3]);
        }
#endif
#pragma unroll
    for (u32 j = 0; j < MT; j++) {
        *(float2 *)(to + g * S_PITCH + 8u * (n + j) + 2u * t) = make_float2(c[j][0], c[j][1]);
        *(float2 *)(to + (g + 8u) * S_PITCH + 8u * (n + j) + 2u * t) = make_float2(c[j][2], c[j][3]);
    }
}

/* EACH tokens of one head: scores become weights. */
FN void soften(const f32 *s, f32 *m, f32 *l, u32 live, f32 softcap) {
    u32 head = LOCAL_X / SHARE, first = LOCAL_X % SHARE * EACH;
    const f32 *x = s + head * S_PITCH + first;
    f32 e[EACH], top = *m;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        e[i] = x[i] + x[HEADS * S_PITCH + i];
        if (softcap > 0.0f) e[i] = softcap * TANH(e[i] / softcap) * LOG2E;
        e[i] = first + i < live ? e[i] : NEG_INF;
        top = FMAX(top, e[i]);
    }
#pragma unroll
    for (u32 i = SHARE / 2u; i > 0u; i >>= 1) top = FMAX(top, lane_xor(top, i));
    f32 keep = weight_of(*m, top), from = top == NEG_INF ? 0.0f : top;
    *l *= keep;
    *m = top;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) *l += e[i] = power2(e[i] - from);
#pragma unroll
    for (u32 i = 0; i < EACH; i += 2u) shared_put4(shared_at(shared) + P_AT + head * P_PITCH + 2u * (first + i), two(e[i], e[i + 1u]));
    if (first == 0u) ((f32 *)(shared + KEEP_AT))[head] = keep;
}

/* o += weights times this warp's values. */
FN void weigh(f32 o[MT][PARTS][4], u32 v) {
    u32 warp = LOCAL_X / 32u, lane = LOCAL_X % 32u, g = lane / 4u;
    const f32 *keep = (const f32 *)(shared + KEEP_AT);
    f32 by[MT][2];
    bool any = false;
#pragma unroll
    for (u32 m = 0; m < MT; m++)
#pragma unroll
        for (u32 h = 0; h < 2u; h++) {
            by[m][h] = keep[16u * m + 8u * h + g];
            any = any || by[m][h] != 1.0f;
        }
    if (any_lane(any)) {
#pragma unroll
        for (u32 m = 0; m < MT; m++)
#pragma unroll
            for (u32 i = 0; i < PARTS; i++)
#pragma unroll
                for (u32 j = 0; j < 4u; j++) o[m][i][j] *= by[m][j >> 1];
    }
#pragma unroll
    for (u32 s = 0; s < TILE / 16u; s++) {
        u32 f[MT][4];
#pragma unroll
        for (u32 m = 0; m < MT; m++) factors(f[m], shared_at(shared) + P_AT + (16u * m + (lane & 15u)) * P_PITCH + 16u * (2u * s + (lane >> 4)));
#pragma unroll
        for (u32 i = 0; i < PARTS / 2u; i++) {
            u32 b[4];
            factors_turned(b, v + (16u * s + (lane & 15u)) * PITCH + 16u * (PARTS * warp + 2u * i + (lane >> 4)));
#pragma unroll
            for (u32 m = 0; m < MT; m++) {
                mma(o[m][2u * i], f[m], b[0], b[1]);
                mma(o[m][2u * i + 1u], f[m], b[2], b[3]);
            }
        }
    }
}

/* to: HEADS rows of VALUE_DIM; lse NULL: not wanted. */
FN void put(f32 o[MT][PARTS][4], f32 m, f32 l, f32 *to, f32 *lse) {
    u32 warp = LOCAL_X / 32u, lane = LOCAL_X % 32u, g = lane / 4u, t = lane % 4u, head = LOCAL_X / SHARE;
    f32 *by = (f32 *)(shared + KEEP_AT);
#pragma unroll
    for (u32 i = SHARE / 2u; i > 0u; i >>= 1) l += lane_xor(l, i);
    BARRIER(); /* nobody reads what was kept any more */
    if (LOCAL_X % SHARE == 0u) {
        by[head] = l > 0.0f ? 1.0f / l : 0.0f;
        if (lse != 0) lse[head] = l > 0.0f ? m + LOG2(l) : NEG_INF;
    }
    BARRIER();
#pragma unroll
    for (u32 k = 0; k < MT; k++)
#pragma unroll
        for (u32 h = 0; h < 2u; h++) {
            u32 r = 16u * k + 8u * h + g;
            f32 *row = to + r * VALUE_DIM + 8u * PARTS * warp + 2u * t;
#pragma unroll
            for (u32 i = 0; i < PARTS; i++) *(float2 *)(row + 8u * i) = make_float2(o[k][i][2u * h] * by[r], o[k][i][2u * h + 1u] * by[r]);
        }
}

/* grid: chunks x H / HEADS, the latter first */
KERNEL(mla)(const f32 *q, const KV_TYPE *pages, const u32 *__restrict__ plan, f32 *out, f32 *parts, f32 *lse_log2, u32 *witness,
            const struct pl_args_paged a) {
    u32 tiles = a.heads / HEADS, x = GROUP_X / tiles, y = GROUP_X % tiles, base = shared_at(shared), page[3];
    const uint4 *chunk = (const uint4 *)(plan + PL_PLAN_HEADER_WORDS + x * PL_PLAN_CHUNK_WORDS);
    const uint4 c0 = chunk[0], c1 = chunk[1], c2 = chunk[2]; /* args.h: words of a chunk */
    struct work w = {plan + c1.w, c0.z, c0.w, c0.y > 0u ? c0.y - 1u : 0u};
    u32 warp = LOCAL_X / 32u, half = warp & 1u, tile = (warp >> 1) / BESIDE, n = (warp >> 1) % BESIDE * MT;
    count_launch(witness);
    if (c1.y == 0u) return; /* the grid is larger than the plan */
    u32 stage = 0, last = STAGES - 1u;
    if (w.tokens > 0u) look_up(page, &w, 0);
#pragma unroll 1
    for (u32 s = 0; s < STAGES - 1u; s++) {
        if (s * TILE < w.tokens) fetch(base + s * STAGE, pages, &w, s * TILE, page);
        copies_close();
        if (w.tokens > 0u) look_up(page, &w, (s + 1u) * TILE);
    }
    bool direct = c1.z == PL_PLAN_DIRECT;
    u64 mine = (u64)c2.y * a.heads + y * HEADS, at = direct ? mine : (u64)c1.z * a.heads + y * HEADS;
    u32 qf[STEPS][4];
    load_q(qf, q + mine * HEAD_DIM, tile, half, a.softcap > 0.0f ? a.scale : a.scale * LOG2E);
    f32 o[MT][PARTS][4], m = NEG_INF, l = 0.0f;
#pragma unroll
    for (u32 k = 0; k < MT; k++)
#pragma unroll
        for (u32 i = 0; i < PARTS; i++) o[k][i][0] = o[k][i][1] = o[k][i][2] = o[k][i][3] = 0.0f;
    f32 *s = (f32 *)(shared + S_AT);
    COPIES_WAIT(STAGES - 2);
    BARRIER();
#pragma unroll 1
    for (u32 t0 = 0; t0 < w.tokens; t0 += TILE) {
        u32 k = base + stage * STAGE, next = t0 + (STAGES - 1u) * TILE;
        scores(s + (half * HEADS + 16u * tile) * S_PITCH, qf, k, n, half);
        BARRIER(); /* scores stand; the tile before this one is free */
        if (next < w.tokens) fetch(base + last * STAGE, pages, &w, next, page);
        copies_close();
        look_up(page, &w, next + TILE);
        soften(s, &m, &l, w.tokens - t0, a.softcap);
        COPIES_WAIT(STAGES - 2);
        BARRIER(); /* weights stand, and the next tile */
        weigh(o, k);
        stage = stage + 1u == STAGES ? 0u : stage + 1u;
        last = last + 1u == STAGES ? 0u : last + 1u;
    }
    put(o, m, l, (direct ? out : parts) + at * VALUE_DIM, direct ? 0 : lse_log2 + at);
}
#endif
