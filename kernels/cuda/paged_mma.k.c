/* paged_mma - decode attention by plan on tensor cores of NVIDIA GPUs (sm_80 and up). Contract, parts and their weights:
 * kernels/paged.k.c.
 *
 * A group takes one chunk for HEADS query heads of one KV head. Keys and values stream through STAGES tiles of TILE tokens
 * in shared memory, a warp copying RUN of them; rows of 16-byte units are one unit apart from a multiple of all banks.
 *   one member   a warp keeps to the RUN tokens it copied, all heads at once; the warps' states are combined at the end.
 *                What q and weights lose by rounding is multiplied as well, so that sums are as good as in f32: for
 *                HEADS <= 8 in rows 8 to 15 of the same matrix instructions, else by a second one
 *   TILES_M > 0  (cascade) up to ROWS rows, heads of several members: a warp takes TILES_M times 16 rows and all tokens;
 *                q and weights are rounded to the cache's type. TWICE: what they lose is multiplied as well (bf16)
 * Without shared chunks the group that arrives last at a merged row joins its states, in the plan's order; with them
 * paged_mma_merge does: too many rows would be complete at once. Bitwise repeatable.
 * What stands in the plan, and tokens older than this step (a.fresh), is read before the launch before this one is done.
 * Requires: HEAD_DIM % 16 == 0, PAGE_TOKENS % 16 == 0, GROUP 128, f16 or bf16 pages; of one member also few bits (KV_I8, KV_F8;
 * KV_K8V4 with HEAD_DIM 32, 64 or 128); `arrived` all 0, as this leaves it.
 * Relative error to src/ref <= 2e-3. Cost: reads each visible key and value once per HEADS heads. */
#include "dialect.h"
#include "args/args.h"
#include "kv.h"
#include "cuda/units.h"

extern __shared__ __align__(128) u8 shared[];
#define TEAM           GROUP
#define ME             LOCAL_X
#define TEAM_BARRIER() BARRIER()
#define team_shared()  shared
#include "cuda/paged_lone.h"

/* --- the states of one row become the row --- */

#define PLACES   256u /* of parts at a time */
#define IN_HAND  16u
FN u32 *places(void) { return (u32 *)shared; }
/* Where parts [from, from + count) of a row stand, for the heads of this group. */
FN void find_parts(const u32 *states, u32 from, u32 count, u32 y, u32 heads) {
    for (u32 i = LOCAL_X; i < PL_MIN(count, PLACES); i += GROUP) {
        uint4 s = *(const uint4 *)(states + (from + i) * PL_PLAN_STATE_WORDS);
        places()[i] = s.x * heads + (y * s.y + s.z) * HEADS;
    }
}
struct joined {
    f32 top, total;
    float4 sum;
};
/* IN_HAND parts at most, of element d and head r. */
FN void join(struct joined *a, const u32 *place, u32 count, const f32 *parts, const f32 *lse_log2, u32 r, u32 d) {
    f32 lse[IN_HAND], top = a->top;
    float4 v[IN_HAND];
#pragma unroll
    for (u32 i = 0; i < IN_HAND; i++) {
        u64 at = (u64)place[i < count ? i : 0u] + r;
        lse[i] = i < count ? fresh(lse_log2 + at) : NEG_INF;
        v[i] = fresh4(parts + at * HEAD_DIM + d); /* finite: zeros where nothing was seen */
    }
#pragma unroll
    for (u32 i = 0; i < IN_HAND; i++) top = FMAX(top, lse[i]);
    f32 keep = weight_of(a->top, top);
    a->top = top;
    a->total *= keep;
    a->sum.x *= keep, a->sum.y *= keep, a->sum.z *= keep, a->sum.w *= keep;
#pragma unroll
    for (u32 i = 0; i < IN_HAND; i++) {
        f32 e = weight_of(lse[i], top);
        a->total += e;
        a->sum.x += e * v[i].x, a->sum.y += e * v[i].y, a->sum.z += e * v[i].z, a->sum.w += e * v[i].w;
    }
}
/* The first PLACES parts are found already. to: the row's HEADS heads. */
FN void merge(const u32 *states, u32 count, u32 y, const f32 *parts, const f32 *lse_log2, f32 *to, u32 heads) {
    for (u32 unit = LOCAL_X; unit < (HEADS * HEAD_DIM / 4u + GROUP - 1u) / GROUP * GROUP; unit += GROUP) {
        u32 r = unit / (HEAD_DIM / 4u), d = unit % (HEAD_DIM / 4u) * 4u;
        struct joined a = {NEG_INF, 0.0f, make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
        for (u32 s0 = 0; s0 < count; s0 += PLACES) {
            if (count > PLACES) { /* found again: others have been there since */
                BARRIER();
                find_parts(states, s0, count - s0, y, heads);
                BARRIER();
            }
            for (u32 i = 0; r < HEADS && i < PL_MIN(count - s0, PLACES); i += IN_HAND)
                join(&a, places() + i, PL_MIN(count - s0, PLACES) - i, parts, lse_log2, r, d);
        }
        f32 by = a.total > 0.0f ? 1.0f / a.total : 0.0f;
        float4 row = make_float4(a.sum.x * by, a.sum.y * by, a.sum.z * by, a.sum.w * by);
#ifdef KV_K8V4
        row = turned_back(row, d / 4u);
#endif
        if (r < HEADS) *(float4 *)(to + r * HEAD_DIM + d) = row;
    }
}

/* Counts this group's part at its row; true for all threads when it was the last one missing. */
FN bool completes(u32 *arrived, u32 states, u32 *flag) {
    BARRIER(); /* the part is written */
    if (LOCAL_X == 0u) {
        bool last = arrive(arrived) + 1u == states;
        if (last) *arrived = 0u;
        *flag = last;
    }
    BARRIER();
    bool last = *flag != 0u;
    if (last) FENCE();
    return last;
}

/* --- several members --- */

#if TILES_M > 0
#define SPAN    32u                    /* tokens at a time */
#define Q_AT    (STAGES * STAGE)
#define Q_LOW   (16u * WARPS * TILES_M * PITCH) /* what q lost by rounding: so much further */

FN void share_q(const f32 *q, const u32 *members, u32 used, u32 y, u32 heads, f32 scale) {
    u32 to = shared_at(shared) + Q_AT;
    for (u32 i = LOCAL_X; i < (used + 15u) / 16u * 16u * UNITS; i += GROUP) {
        u32 r = i / UNITS, unit = i % UNITS;
        float4 a = make_float4(0.0f, 0.0f, 0.0f, 0.0f), b = a;
        if (r < used) {
            const f32 *from = q + ((u64)members[r / HEADS] * heads + y * HEADS + r % HEADS) * HEAD_DIM + 8u * unit;
            a = *(const float4 *)from, b = *(const float4 *)(from + 4);
        }
        u32 h[4] = {two(a.x * scale, a.y * scale), two(a.z * scale, a.w * scale), two(b.x * scale, b.y * scale), two(b.z * scale, b.w * scale)};
        shared_put16(to + r * PITCH + 16u * unit, h[0], h[1], h[2], h[3]);
#ifdef TWICE
        shared_put16(to + Q_LOW + r * PITCH + 16u * unit, two(a.x * scale - low_of(h[0]), a.y * scale - high_of(h[0])),
                     two(a.z * scale - low_of(h[1]), a.w * scale - high_of(h[1])), two(b.x * scale - low_of(h[2]), b.y * scale - high_of(h[2])),
                     two(b.z * scale - low_of(h[3]), b.w * scale - high_of(h[3])));
#endif
    }
}

template <u32 N> struct rows {
    f32 o[N][COLUMNS][4], m[N][2], l[N][2];
};

/* SPAN tokens at k and v for N tiles of rows, WARPS tiles apart from q on. */
template <u32 N> FN void span_shared(struct rows<N> *a, u32 q, u32 k, u32 v, u32 live, f32 softcap) {
    u32 lane = LOCAL_X % 32u, t = lane % 4u;
    f32 s[N][SPAN / 8u][4];
    u32 p[N][SPAN / 16u][4];
#ifdef TWICE
    u32 p_low[N][SPAN / 16u][4];
    f32 lost[N][SPAN / 8u][4];
#pragma unroll
    for (u32 n = 0; n < N; n++)
#pragma unroll
        for (u32 i = 0; i < SPAN / 8u; i++) lost[n][i][0] = lost[n][i][1] = lost[n][i][2] = lost[n][i][3] = 0.0f;
#endif
#pragma unroll
    for (u32 n = 0; n < N; n++)
#pragma unroll
        for (u32 i = 0; i < SPAN / 8u; i++) s[n][i][0] = s[n][i][1] = s[n][i][2] = s[n][i][3] = 0.0f;
#pragma unroll
    for (u32 i = 0; i < STEPS; i++) {
        u32 b[SPAN / 16u][4], f[N][4];
#pragma unroll
        for (u32 n = 0; n < N; n++)
            factors(f[n], q + (16u * WARPS * n + (lane & 15u)) * PITCH + 16u * (2u * i + (lane >> 4)));
#pragma unroll
        for (u32 j = 0; j < SPAN / 16u; j++)
            factors(b[j], k + (16u * j + (lane & 7u) + 8u * (lane >> 4)) * PITCH + 16u * (2u * i + ((lane >> 3) & 1u)));
#pragma unroll
        for (u32 n = 0; n < N; n++)
#pragma unroll
            for (u32 j = 0; j < SPAN / 16u; j++) {
                mma(s[n][2u * j], f[n], b[j][0], b[j][1]);
                mma(s[n][2u * j + 1u], f[n], b[j][2], b[j][3]);
            }
#ifdef TWICE
#pragma unroll
        for (u32 n = 0; n < N; n++) {
            factors(f[n], q + Q_LOW + (16u * WARPS * n + (lane & 15u)) * PITCH + 16u * (2u * i + (lane >> 4)));
#pragma unroll
            for (u32 j = 0; j < SPAN / 16u; j++) {
                mma(lost[n][2u * j], f[n], b[j][0], b[j][1]);
                mma(lost[n][2u * j + 1u], f[n], b[j][2], b[j][3]);
            }
        }
#endif
    }
#ifdef TWICE
#pragma unroll
    for (u32 n = 0; n < N; n++)
#pragma unroll
        for (u32 i = 0; i < SPAN / 8u; i++)
#pragma unroll
            for (u32 j = 0; j < 4u; j++) s[n][i][j] += finite(lost[n][i][j]);
#endif
    if (softcap > 0.0f) {
#pragma unroll
        for (u32 n = 0; n < N; n++)
#pragma unroll
            for (u32 i = 0; i < SPAN / 8u; i++)
#pragma unroll
                for (u32 j = 0; j < 4u; j++) s[n][i][j] = soft_capped(s[n][i][j], softcap);
    }
    if (live < SPAN) {
#pragma unroll
        for (u32 n = 0; n < N; n++)
#pragma unroll
            for (u32 i = 0; i < SPAN / 8u; i++)
#pragma unroll
                for (u32 j = 0; j < 4u; j++) s[n][i][j] = 8u * i + 2u * t + (j & 1u) < live ? s[n][i][j] : NEG_INF;
    }
#pragma unroll
    for (u32 n = 0; n < N; n++) {
        f32 top[2] = {a->m[n][0], a->m[n][1]};
#pragma unroll
        for (u32 i = 0; i < SPAN / 8u; i++)
#pragma unroll
            for (u32 j = 0; j < 4u; j++) top[j >> 1] = FMAX(top[j >> 1], s[n][i][j]);
#pragma unroll
        for (u32 h = 0; h < 2u; h++) {
            top[h] = FMAX(top[h], lane_xor(top[h], 1));
            top[h] = FMAX(top[h], lane_xor(top[h], 2));
        }
        if (any_lane(top[0] > a->m[n][0] || top[1] > a->m[n][1])) {
            f32 keep[2] = {weight_of(a->m[n][0], top[0]), weight_of(a->m[n][1], top[1])};
#pragma unroll
            for (u32 h = 0; h < 2u; h++) a->m[n][h] = top[h], a->l[n][h] *= keep[h];
#pragma unroll
            for (u32 i = 0; i < COLUMNS; i++)
#pragma unroll
                for (u32 j = 0; j < 4u; j++) a->o[n][i][j] *= keep[j >> 1];
        }
#pragma unroll
        for (u32 h = 0; h < 2u; h++) top[h] = top[h] == NEG_INF ? 0.0f : top[h];
#pragma unroll
        for (u32 i = 0; i < SPAN / 8u; i++)
#pragma unroll
            for (u32 j = 0; j < 4u; j++) s[n][i][j] = power2(s[n][i][j] - top[j >> 1]);
#pragma unroll
        for (u32 i = 0; i < SPAN / 16u; i++)
#pragma unroll
            for (u32 j = 0; j < 4u; j++) {
                f32 x = s[n][2u * i + j / 2u][2u * (j & 1u)], y = s[n][2u * i + j / 2u][2u * (j & 1u) + 1u];
                a->l[n][j & 1u] += x + y;
                p[n][i][j] = two(x, y);
#ifdef TWICE
                p_low[n][i][j] = two(x - low_of(p[n][i][j]), y - high_of(p[n][i][j]));
#endif
            }
    }
#pragma unroll
    for (u32 j = 0; j < SPAN / 16u; j++)
#pragma unroll
        for (u32 i = 0; i < COLUMNS / 2u; i++) {
            u32 b[4];
            factors_turned(b, v + (16u * j + (lane & 15u)) * PITCH + 16u * (2u * i + (lane >> 4)));
#pragma unroll
            for (u32 n = 0; n < N; n++) {
                mma(a->o[n][2u * i], p[n][j], b[0], b[1]);
                mma(a->o[n][2u * i + 1u], p[n][j], b[2], b[3]);
#ifdef TWICE
                mma(a->o[n][2u * i], p_low[n][j], b[0], b[1]);
                mma(a->o[n][2u * i + 1u], p_low[n][j], b[2], b[3]);
#endif
            }
        }
}

template <u32 N> FN void put_rows(struct rows<N> *a, u32 used, f32 *to, f32 *lse) {
    u32 warp = LOCAL_X / 32u, lane = LOCAL_X % 32u, g = lane / 4u, t = lane % 4u;
#pragma unroll
    for (u32 n = 0; n < N; n++)
#pragma unroll
        for (u32 h = 0; h < 2u; h++) {
            u32 r = 16u * (warp + WARPS * n) + 8u * h + g;
            f32 total = a->l[n][h];
            total += lane_xor(total, 1);
            total += lane_xor(total, 2);
            if (r >= used) continue;
            f32 by = total > 0.0f ? 1.0f / total : 0.0f;
#pragma unroll
            for (u32 i = 0; i < COLUMNS; i++)
                *(float2 *)(to + r * HEAD_DIM + 8u * i + 2u * t) = make_float2(a->o[n][i][2u * h] * by, a->o[n][i][2u * h + 1u] * by);
            if (t == 0u) lse[r] = total > 0.0f ? a->m[n][h] + LOG2(total) : NEG_INF;
        }
}

/* N tiles of rows for this warp; 0: it copies and waits with the others. */
template <u32 N> FN void shared_chunk(const struct work *w, const struct pools *pools, u32 page[2], u32 used, f32 *to, f32 *lse, f32 softcap) {
    struct rows<N + (N == 0u)> a;
    u32 base = shared_at(shared), q = base + Q_AT + 16u * (LOCAL_X / 32u) * PITCH, stage = 0, last = STAGES - 1u;
#pragma unroll
    for (u32 n = 0; n < N; n++) {
        a.m[n][0] = a.m[n][1] = NEG_INF;
        a.l[n][0] = a.l[n][1] = 0.0f;
#pragma unroll
        for (u32 i = 0; i < COLUMNS; i++) a.o[n][i][0] = a.o[n][i][1] = a.o[n][i][2] = a.o[n][i][3] = 0.0f;
    }
    for (u32 t0 = 0; t0 < w->tokens; t0 += TILE) {
        COPIES_WAIT(STAGES - 2);
        BARRIER();
        u32 next = t0 + (STAGES - 1u) * TILE;
        if (next < w->tokens) fetch(base + last * STAGE, w, pools, next, page);
        copies_close();
        look_up(page, w, next + TILE);
        if (N > 0u) {
#pragma unroll 1
            for (u32 i = 0; i < TILE && t0 + i < w->tokens; i += SPAN) {
                u32 k = base + stage * STAGE + i * PITCH;
                span_shared<N + (N == 0u)>(&a, q, k, k + SIDE, w->tokens - t0 - i, softcap);
            }
        }
        stage = stage + 1u == STAGES ? 0u : stage + 1u;
        last = last + 1u == STAGES ? 0u : last + 1u;
    }
    if (N > 0u) put_rows<N + (N == 0u)>(&a, used, to, lse);
}
#endif

#if TILES_M > 0
/* Chunk of several members: parts only. */
FN void several(const struct work *w, const struct pools *pools, u32 page[2], const f32 *q, f32 *parts, f32 *lse_log2, const u32 *members,
                u32 count, u32 part_first, u32 y, f32 scale, const struct pl_args_paged *a) {
    u32 used = count * HEADS, warp = LOCAL_X / 32u, tiles = (used + 15u) / 16u;
    u32 mine = tiles > warp ? (tiles - warp + WARPS - 1u) / WARPS : 0u;
    u64 at = (u64)part_first * a->heads + (u64)y * used;
    share_q(q, members, used, y, a->heads, scale);
    if (mine == 0u) {
        shared_chunk<0>(w, pools, page, used, 0, 0, a->softcap);
    } else if (mine == 1u) {
        shared_chunk<1>(w, pools, page, used, parts + at * HEAD_DIM, lse_log2 + at, a->softcap);
    } else {
        shared_chunk<TILES_M>(w, pools, page, used, parts + at * HEAD_DIM, lse_log2 + at, a->softcap);
    }
}
#endif

#ifdef MERGE_ALONE
/* grid: merged rows x H / HEADS, the latter first */
KERNEL(paged_mma_merge)(const f32 *parts, const f32 *lse_log2, const u32 *__restrict__ plan, f32 *out, u32 *witness, const struct pl_args_paged a) {
    u32 tiles = a.heads / HEADS, entry = GROUP_X / tiles, y = GROUP_X % tiles, count = 0;
    bool there = entry < plan[PL_PLAN_MERGE_COUNT]; /* the grid may be larger than the plan */
    const u32 *states = plan + plan[PL_PLAN_STATES];
    u64 row = 0;
    if (there) {
        const u32 *start = plan + plan[PL_PLAN_MERGE_START] + entry;
        row = plan[plan[PL_PLAN_MERGE_ROW] + entry];
        count = start[1] - start[0];
        states += start[0] * PL_PLAN_STATE_WORDS;
        find_parts(states, 0, count, y, a.heads);
    }
    count_launch(witness);
    BARRIER();
    if (there) merge(states, count, y, parts, lse_log2, out + (row * a.heads + y * HEADS) * HEAD_DIM, a.heads);
}
#else
/* grid: chunks x H / HEADS, the latter first */
KERNEL(paged_mma)(const f32 *q, const KV_TYPE *k_pages, const KV_TYPE *v_pages, const u32 *__restrict__ plan, f32 *out, f32 *parts, f32 *lse_log2,
                  u32 *arrived, u32 *witness, const struct pl_args_paged a) {
    __shared__ u32 flag;
    u32 tiles = a.heads / HEADS, x = GROUP_X / tiles, y = GROUP_X % tiles, base = shared_at(shared), page[2];
    const uint4 *chunk = (const uint4 *)(plan + PL_PLAN_HEADER_WORDS + x * PL_PLAN_CHUNK_WORDS);
    const uint4 c0 = chunk[0], c1 = chunk[1], c2 = chunk[2], c3 = chunk[3]; /* args.h: words of a chunk */
    u32 count = c1.y, part_first = c1.z, row = c2.y;
    struct work w = {plan + c1.w, c0.z, c0.w, c0.y > 0u ? c0.y - 1u : 0u, y / (a.heads / a.kv_heads / HEADS), a.kv_heads};
    const struct pools pools = {k_pages, v_pages};
    u32 first = begin_lone(base, &w, &pools, page, c2.z != 0u || a.fresh == PL_PAGED_ALL_FRESH ? a.fresh : 0u);
    count_launch(witness);
    if (count == 0u) return; /* the grid is larger than the plan */
    go_on_lone(base, &w, &pools, page, first);
    f32 scale = a.softcap > 0.0f ? a.scale : a.scale * LOG2E;
#if TILES_M > 0
    if (count > 1u) {
        several(&w, &pools, page, q, parts, lse_log2, plan + c2.x, count, part_first, y, scale, &a);
        return;
    }
#endif
    bool direct = part_first == PL_PLAN_DIRECT;
    u64 mine = (u64)row * a.heads + y * HEADS, at = direct ? mine : (u64)part_first * a.heads + y * HEADS;
    u32 qf[STEPS][4];
    load_q(qf, q + mine * HEAD_DIM, scale);
    lone_chunk(&w, &pools, page, qf, (direct ? out : parts) + at * HEAD_DIM, direct ? 0 : lse_log2 + at, a.softcap);
    if (direct || arrived == 0) return;
    const u32 *states = plan + c3.x;
    BARRIER(); /* places() are free */
    find_parts(states, 0, c3.y, y, a.heads);
    if (!completes(arrived + c2.w * tiles + y, c3.y, &flag)) return;
    merge(states, c3.y, y, parts, lse_log2, out + mine * HEAD_DIM, a.heads);
}
#endif
