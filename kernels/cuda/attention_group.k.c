/* attention_group - decode attention on tensor cores of NVIDIA GPUs (sm_80 and up): HEADS query heads of one KV head meet 16
 * cached tokens at a time; the visible tokens of a row are shared by `splits` groups, attention_merge joins the parts.
 * Contract, parts and their weights: attention_split.k.c.
 *
 * A warp takes every WARPS-th run of 16 tokens. Keys come as they lie, 16 bytes a thread: thread (g, t) holds units 4 j + t of
 * token g, and q in the same order; values likewise, dimension 8 g + j of neighbouring tokens becoming row g of a factor.
 * q and the weights of the softmax are rounded to the cache's type, sums are f32. Fixed order: bitwise repeatable.
 * Requires: HEAD_DIM 64, 128 or 256; f16 or bf16 pages; HEADS at most 8 and a divisor of the group size. */
#include "dialect.h"
#include "args/args.h"
#include "kv.h"

#define WARPS  (GROUP / 32u)
#define UNITS  (HEAD_DIM / 32u) /* of 16 bytes, a thread and token */
#define CHUNKS (HEAD_DIM / 64u)
#define TILES  (HEAD_DIM / 16u)
#define RUN    16u

#ifndef PL_EMULATED
FN u32 two(f32 lo, f32 hi) {
    u32 v;
#ifdef KV_BF16
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
#endif
    return v;
}
FN void mma(f32 *c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#ifdef KV_BF16
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
FN f32 of_lane(f32 v, u32 lane) { return __shfl_sync(0xFFFFFFFFu, v, (int)lane); }
FN uint4 load16(const KV_TYPE *p) { return __ldg((const uint4 *)p); }
#endif
FN u32 word(const uint4 *q, u32 i) { return i == 0u ? q->x : i == 1u ? q->y : i == 2u ? q->z : q->w; }
/* Element i (0..7) of two tokens. */
FN u32 pair(const uint4 *a, const uint4 *b, u32 i) { return __byte_perm(word(a, i / 2u), word(b, i / 2u), (i & 1u) != 0u ? 0x7632u : 0x5410u); }

/* grid: (splits, heads / HEADS * rows) */
KERNEL(attention_group)(const f32 *__restrict__ q, const KV_TYPE *__restrict__ k_pages, const KV_TYPE *__restrict__ v_pages,
                        const u32 *__restrict__ step, f32 *o_part, f32 *lse_log2, u32 *witness, const struct pl_args_attention a) {
    __shared__ f32 part_o[WARPS][HEADS][HEAD_DIM];
    __shared__ f32 part_m[WARPS][HEADS], part_l[WARPS][HEADS];
    count_launch(witness);
    u32 row = GROUP_Y / (a.heads / HEADS), head0 = GROUP_Y % (a.heads / HEADS) * HEADS, kv = head0 / (a.heads / a.kv_heads);
    u32 warp = LOCAL_X / 32u, lane = LOCAL_X % 32u, g = lane >> 2, t = lane & 3u, split = GROUP_X;
    u32 last = step[PL_STEP_POSITION(a.stride) + row];
    u32 first = a.window != 0u && last + 1u > a.window ? last + 1u - a.window : 0u;
    u32 chunk = (last + 1u - first + a.splits - 1u) / a.splits;
    chunk = (chunk + RUN * WARPS - 1u) / (RUN * WARPS) * (RUN * WARPS); /* whole rounds of all warps; the last parts may be empty */
    u32 from = PL_MIN(first + split * chunk, last + 1u), to = PL_MIN(from + chunk, last + 1u);
    const u32 *table = step + PL_STEP_PAGES(a.stride) + step[PL_STEP_PAGE_FIRST(a.stride) + row];
    f32 scale = a.softcap > 0.0f ? a.scale : a.scale * 1.4426950408889634f;
    u32 qf[UNITS][4];
#pragma unroll
    for (u32 j = 0; j < UNITS; j++) {
        const f32 *p = q + ((u64)row * a.heads + head0 + PL_MIN(g, HEADS - 1u)) * HEAD_DIM + 8u * (4u * j + t);
        f32 live = g < HEADS ? scale : 0.0f;
#pragma unroll
        for (u32 i = 0; i < 4u; i++) qf[j][i] = two(p[2u * i] * live, p[2u * i + 1u] * live);
    }
    f32 o[TILES][4], m = NEG_INF, l = 0.0f;
#pragma unroll
    for (u32 i = 0; i < TILES; i++) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0.0f;
    for (u32 t0 = from + RUN * warp; t0 < to; t0 += RUN * WARPS) {
        uint4 k0[UNITS], k1[UNITS], v[CHUNKS][4];
        const KV_TYPE *at0 = k_pages + kv_offset(table, PL_MIN(t0 + g, to - 1u), kv, a.kv_heads) + 8u * t;
        const KV_TYPE *at1 = k_pages + kv_offset(table, PL_MIN(t0 + 8u + g, to - 1u), kv, a.kv_heads) + 8u * t;
#pragma unroll
        for (u32 j = 0; j < UNITS; j++) k0[j] = load16(at0 + 32u * j), k1[j] = load16(at1 + 32u * j);
#pragma unroll
        for (u32 i = 0; i < 4u; i++) {
            u32 token = t0 + 2u * t + (i & 1u) + 8u * (i >> 1);
            const KV_TYPE *at = v_pages + kv_offset(table, PL_MIN(token, to - 1u), kv, a.kv_heads) + 8u * g;
#pragma unroll
            for (u32 c = 0; c < CHUNKS; c++) v[c][i] = load16(at + 64u * c);
        }
        f32 s[2][4] = {{0.0f, 0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
#pragma unroll
        for (u32 j = 0; j < UNITS; j++) {
            mma(s[0], qf[j][0], 0u, qf[j][1], 0u, k0[j].x, k0[j].y);
            mma(s[1], qf[j][0], 0u, qf[j][1], 0u, k1[j].x, k1[j].y);
            mma(s[0], qf[j][2], 0u, qf[j][3], 0u, k0[j].z, k0[j].w);
            mma(s[1], qf[j][2], 0u, qf[j][3], 0u, k1[j].z, k1[j].w);
        }
        f32 top = m, p[4];
#pragma unroll
        for (u32 i = 0; i < 4u; i++) { /* head g, tokens 2 t, 2 t + 1 and eight further */
            p[i] = s[i >> 1][i & 1u];
            if (a.softcap > 0.0f) p[i] = a.softcap * TANH(p[i] / a.softcap) * 1.4426950408889634f;
            if (t0 + 2u * t + (i & 1u) + 8u * (i >> 1) >= to) p[i] = NEG_INF;
            top = FMAX(top, p[i]);
        }
        top = FMAX(top, lane_xor(top, 1));
        top = FMAX(top, lane_xor(top, 2)); /* never -inf: token t0 is live */
        f32 keep = m == NEG_INF ? 0.0f : EXP2(m - top);
        m = top;
        l *= keep;
#pragma unroll
        for (u32 i = 0; i < 4u; i++) {
            p[i] = EXP2(p[i] - top);
            l += p[i];
        }
        u32 b0 = two(p[0], p[1]), b1 = two(p[2], p[3]);
        f32 keep0 = of_lane(keep, 8u * t), keep1 = of_lane(keep, 8u * t + 4u); /* of heads 2 t and 2 t + 1 */
#pragma unroll
        for (u32 i = 0; i < TILES; i++) {
            o[i][0] *= keep0, o[i][1] *= keep1, o[i][2] *= keep0, o[i][3] *= keep1;
#if HEAD_DIM == 64
            const uint4 *x = v[0], *y = v[0];
            u32 ex = i, ey = i + 4u;
#else
            const uint4 *x = v[i / 8u * 2u], *y = v[i / 8u * 2u + 1u];
            u32 ex = i % 8u, ey = ex;
#endif
            mma(o[i], pair(&x[0], &x[1], ex), pair(&y[0], &y[1], ey), pair(&x[2], &x[3], ex), pair(&y[2], &y[3], ey), b0, b1);
        }
    }
    l += lane_xor(l, 1);
    l += lane_xor(l, 2);
    if (t == 0u && g < HEADS) part_m[warp][g] = m, part_l[warp][g] = l;
#pragma unroll
    for (u32 i = 0; i < TILES; i++) {
#if HEAD_DIM == 64
        u32 dx = 8u * g + i, dy = dx + 4u;
#else
        u32 dx = 64u * (i / 8u * 2u) + 8u * g + i % 8u, dy = dx + 64u;
#endif
#pragma unroll
        for (u32 e = 0; e < 2u; e++) {
            if (2u * t + e >= HEADS) continue;
            part_o[warp][2u * t + e][dx] = o[i][e];
            part_o[warp][2u * t + e][dy] = o[i][2u + e];
        }
    }
    BARRIER();
    for (u32 i = LOCAL_X; i < HEADS * HEAD_DIM; i += GROUP) {
        u32 h = i / HEAD_DIM, d = i % HEAD_DIM;
        f32 top = NEG_INF, total = 0.0f, v = 0.0f;
        for (u32 w = 0; w < WARPS; w++) top = FMAX(top, part_m[w][h]);
        for (u32 w = 0; w < WARPS; w++) {
            f32 e = part_m[w][h] == NEG_INF ? 0.0f : EXP2(part_m[w][h] - top);
            total += part_l[w][h] * e;
            v += part_o[w][h][d] * e;
        }
        u64 part = ((u64)row * a.heads + head0 + h) * a.splits + split;
        o_part[part * HEAD_DIM + d] = total > 0.0f ? v / total : 0.0f;
        if (d == 0u) lse_log2[part] = total > 0.0f ? top + LOG2(total) : NEG_INF;
    }
}
