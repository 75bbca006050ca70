/* attention_split - decode attention on NVIDIA GPUs: the visible tokens of a row are shared by SPLIT groups, each K and V
 * element is loaded once for HEADS query heads of its KV head; attention_merge joins the parts. Contract:
 * kernels/attention.k.c.
 *
 * LANES = HEAD_DIM / 8 neighbouring threads hold one token, 16 bytes each. Parts are normalised sums with their weight as
 * lse_log2 = m + log2(l); an empty part has lse_log2 = -inf and is skipped. Order is fixed: bitwise repeatable.
 * Requires: HEAD_DIM 64, 128 or 256; f16 or bf16 pages; HEADS divides the group size. */
#include "dialect.h"
#include "args/args.h"
#include "kv.h"

#define LANES (HEAD_DIM / 8u)
#define TEAMS (GROUP / LANES)

FN void load8(const KV_TYPE *p, f32 *v) {
    uint4 q = *(const uint4 *)p;
    u32 u[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (u32 i = 0; i < 4u; i++) {
#ifdef KV_BF16
        v[2u * i] = bits_f32(u[i] << 16);
        v[2u * i + 1u] = bits_f32(u[i] & 0xFFFF0000u);
#else
        u16 lo = (u16)u[i], hi = (u16)(u[i] >> 16);
        v[2u * i] = f16_load(&lo);
        v[2u * i + 1u] = f16_load(&hi);
#endif
    }
}

/* grid: (splits, heads / HEADS, rows); o_part [row, head, split, D], lse_log2 [row, head, split] */
KERNEL(attention_split)(const f32 *__restrict__ q, const KV_TYPE *__restrict__ k_pages, const KV_TYPE *__restrict__ v_pages,
                        const u32 *__restrict__ step, f32 *o_part, f32 *lse_log2, u32 *witness, const struct pl_args_attention a) {
    __shared__ f32 part_o[TEAMS][HEAD_DIM];
    __shared__ f32 part_m[TEAMS][HEADS], part_l[TEAMS][HEADS];
    count_launch(witness);
    u32 row = GROUP_Y / (a.heads / HEADS), head0 = GROUP_Y % (a.heads / HEADS) * HEADS, g = head0 / (a.heads / a.kv_heads);
    u32 team = LOCAL_X / LANES, lane = LOCAL_X % LANES, split = GROUP_X;
    u32 last = step[PL_STEP_POSITION(a.stride) + row];
    u32 first = a.window != 0u && last + 1u > a.window ? last + 1u - a.window : 0u;
    u32 chunk = (last + 1u - first + a.splits - 1u) / a.splits;
    u32 from = first + split * chunk, to = PL_MIN(from + chunk, last + 1u);
    const u32 *table = step + PL_STEP_PAGES(a.stride) + step[PL_STEP_PAGE_FIRST(a.stride) + row];
    f32 qs[HEADS][8], o[HEADS][8], m[HEADS], l[HEADS];
    f32 scale = a.softcap > 0.0f ? a.scale : a.scale * 1.4426950408889634f;
#pragma unroll
    for (u32 h = 0; h < HEADS; h++) {
        const f32 *p = q + ((u64)row * a.heads + head0 + h) * HEAD_DIM + 8u * lane;
#pragma unroll
        for (u32 i = 0; i < 8u; i++) {
            qs[h][i] = p[i] * scale;
            o[h][i] = 0.0f;
        }
        m[h] = NEG_INF;
        l[h] = 0.0f;
    }
    for (u32 t0 = from; t0 < to; t0 += TEAMS) { /* all lanes take part in the shuffles */
        u32 t = t0 + team;
        bool live = t < to;
        u64 at = kv_offset(table, live ? t : to - 1u, g, a.kv_heads) + 8u * lane;
        f32 kx[8], vx[8];
        load8(k_pages + at, kx);
        load8(v_pages + at, vx);
#pragma unroll
        for (u32 h = 0; h < HEADS; h++) {
            f32 s = 0.0f;
#pragma unroll
            for (u32 i = 0; i < 8u; i++) s = FMA(qs[h][i], kx[i], s);
#pragma unroll
            for (u32 x = LANES / 2u; x > 0u; x >>= 1) s += lane_xor(s, x);
            if (a.softcap > 0.0f) s = a.softcap * TANH(s / a.softcap) * 1.4426950408889634f;
            f32 m_new = live ? FMAX(m[h], s) : m[h];
            f32 keep = m[h] == NEG_INF ? 0.0f : EXP2(m[h] - m_new), e = live ? EXP2(s - m_new) : 0.0f;
            m[h] = m_new;
            if (!live) keep = 1.0f;
            l[h] = l[h] * keep + e;
#pragma unroll
            for (u32 i = 0; i < 8u; i++) o[h][i] = FMA(e, vx[i], o[h][i] * keep);
        }
    }
    if (lane == 0u) {
#pragma unroll
        for (u32 h = 0; h < HEADS; h++) part_m[team][h] = m[h], part_l[team][h] = l[h];
    }
#pragma unroll
    for (u32 h = 0; h < HEADS; h++) {
        BARRIER();
#pragma unroll
        for (u32 i = 0; i < 8u; i++) part_o[team][8u * lane + i] = o[h][i];
        BARRIER();
        f32 top = NEG_INF, total = 0.0f;
        for (u32 i = 0; i < TEAMS; i++) top = FMAX(top, part_m[i][h]);
        for (u32 i = 0; i < TEAMS; i++) total += part_m[i][h] == NEG_INF ? 0.0f : part_l[i][h] * EXP2(part_m[i][h] - top);
        u64 part = ((u64)row * a.heads + head0 + h) * a.splits + split;
        for (u32 d = LOCAL_X; d < HEAD_DIM; d += GROUP) {
            f32 v = 0.0f;
            for (u32 i = 0; i < TEAMS; i++) v += part_m[i][h] == NEG_INF ? 0.0f : part_o[i][d] * EXP2(part_m[i][h] - top);
            o_part[part * HEAD_DIM + d] = total > 0.0f ? v / total : 0.0f;
        }
        if (LOCAL_X == 0u) lse_log2[part] = total > 0.0f ? top + LOG2(total) : NEG_INF;
    }
}

/* grid: (heads, rows), a thread a dimension */
KERNEL(attention_merge)(const f32 *__restrict__ o_part, const f32 *__restrict__ lse_log2, f32 *out, u32 *witness,
                        const struct pl_args_attention a) {
    count_launch(witness);
    u64 head = (u64)GROUP_Y * a.heads + GROUP_X;
    const f32 *lse = lse_log2 + head * a.splits;
    f32 top = NEG_INF;
    for (u32 s = 0; s < a.splits; s++) top = FMAX(top, lse[s]);
    for (u32 d = LOCAL_X; d < HEAD_DIM; d += GROUP) {
        f32 v = 0.0f, total = 0.0f;
        for (u32 s = 0; s < a.splits; s++) {
            if (lse[s] == NEG_INF) continue;
            f32 e = EXP2(lse[s] - top);
            total += e;
            v += e * o_part[(head * a.splits + s) * HEAD_DIM + d];
        }
        out[head * HEAD_DIM + d] = total > 0.0f ? v / total : 0.0f;
    }
}
