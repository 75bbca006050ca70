/* attention_group - decode attention on tensor cores of NVIDIA GPUs (sm_80 and up): HEADS query heads of one KV head meet 16
 * cached tokens at a time; the visible tokens of a row are shared by `splits` groups, attention_merge joins the parts.
 * Contract, parts and their weights: attention_split.k.c.
 *
 * A warp takes every WARPS-th run of 16 tokens. Keys come as they lie, 16 bytes a thread: thread (g, t) holds units 4 j + t of
 * token g, and q in the same order; values likewise, dimension 8 g + j of neighbouring tokens becoming row g of a factor.
 * q and the weights of the softmax are rounded to the cache's type, sums are f32. Fixed order: bitwise repeatable.
 * WHOLE (one token a sequence): head norms and rotation of q, k and v of the new token into its page, and the parts joined, all in
 * this launch (contract: rope.k.c, rotating all of HEAD_DIM or nothing). The groups that see the newest token all put the same
 * bytes into its page and then read them; the last group of a row's heads to be done joins the parts, in their order.
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
FN uint4 load16(const KV_TYPE *p) { return __ldcg((const uint4 *)p); } /* never a line of the first cache: pages are written too */
#endif
FN u32 word(const uint4 *q, u32 i) { return i == 0u ? q->x : i == 1u ? q->y : i == 2u ? q->z : q->w; }
/* Element i (0..7) of two tokens. */
FN u32 pair(const uint4 *a, const uint4 *b, u32 i) { return __byte_perm(word(a, i / 2u), word(b, i / 2u), (i & 1u) != 0u ? 0x7632u : 0x5410u); }

#ifdef WHOLE
/* Lines of the pages that this group will read, on their way while the launch before this one ends: older tokens, which no
 * launch of this step writes, and at most as many as one round takes. */
FN void bring(const KV_TYPE *k_pages, const KV_TYPE *v_pages, const u32 *table, u32 from, u32 to, u32 kv, u32 kv_heads) {
    u32 lines = HEAD_DIM / 64u, count = PL_MIN(to - from, RUN * WARPS) * lines;
    for (u32 i = LOCAL_X; i < count; i += GROUP) {
        u64 at = kv_offset(table, from + i / lines, kv, kv_heads) + i % lines * 64u;
        asm volatile("prefetch.global.L2 [%0];" ::"l"(k_pages + at));
        asm volatile("prefetch.global.L2 [%0];" ::"l"(v_pages + at));
    }
}
FN void load8(const f32 *p, f32 *v) {
    float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
#if defined(ROPE_HALVES) || defined(ROPE_PAIRS)
FN void turn(f32 *x0, f32 *x1, f32 c, f32 s) {
    f32 a = *x0, b = *x1;
    *x0 = a * c - b * s;
    *x1 = a * s + b * c;
}
#endif
/* x[j]: elements 8 (4 j + t) and up of a head; four neighbouring threads hold all of it. */
FN void prepare_q(f32 (*x)[8], const f32 *norm, const f32 *cos_sin, f32 eps, f32 offset) {
    u32 t = LOCAL_X & 3u;
    (void)t;
#ifdef Q_NORM
    f32 sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 8u * UNITS; i++) sum = FMA(x[i / 8u][i % 8u], x[i / 8u][i % 8u], sum);
    sum += lane_xor(sum, 1);
    sum += lane_xor(sum, 2);
    f32 inverse = 1.0f / SQRT(sum / (f32)HEAD_DIM + eps);
#pragma unroll
    for (u32 j = 0; j < UNITS; j++) {
        f32 w[8];
        load8(norm + 8u * (4u * j + t), w);
#pragma unroll
        for (u32 i = 0; i < 8u; i++) x[j][i] = x[j][i] * inverse * (offset + w[i]);
    }
#else
    (void)norm;
    (void)eps;
    (void)offset;
#endif
#ifdef ROPE_HALVES
#pragma unroll
    for (u32 j = 0; j < UNITS / 2u; j++) {
        f32 c[16];
        load8(cos_sin + 16u * (4u * j + t), c);
        load8(cos_sin + 16u * (4u * j + t) + 8u, c + 8);
#pragma unroll
        for (u32 i = 0; i < 8u; i++) turn(&x[j][i], &x[j + UNITS / 2u][i], c[2u * i], c[2u * i + 1u]);
    }
#elif defined(ROPE_PAIRS)
#pragma unroll
    for (u32 j = 0; j < UNITS; j++) {
        f32 c[8];
        load8(cos_sin + 8u * (4u * j + t), c);
#pragma unroll
        for (u32 i = 0; i < 4u; i++) turn(&x[j][2u * i], &x[j][2u * i + 1u], c[2u * i], c[2u * i + 1u]);
    }
#else
    (void)cos_sin;
#endif
}
/* A head of k by one warp: thread l holds pairs l and l + 32 ... of what is rotated together. */
FN void append_k(const f32 *k, KV_TYPE *to, const f32 *norm, const f32 *cos_sin, f32 eps, f32 offset) {
    u32 lane = LOCAL_X % 32u;
    f32 x[CHUNKS][2], sum = 0.0f;
#pragma unroll
    for (u32 m = 0; m < CHUNKS; m++) {
        u32 i = lane + 32u * m;
#ifdef ROPE_PAIRS
        u32 i0 = 2u * i, i1 = i0 + 1u;
#else
        u32 i0 = i, i1 = i + HEAD_DIM / 2u;
#endif
        x[m][0] = k[i0], x[m][1] = k[i1];
        sum += x[m][0] * x[m][0] + x[m][1] * x[m][1];
    }
#ifdef K_NORM
    for (u32 b = 16u; b > 0u; b >>= 1) sum += lane_xor(sum, b);
    f32 inverse = 1.0f / SQRT(sum / (f32)HEAD_DIM + eps);
#else
    (void)norm;
    (void)eps;
    (void)offset;
    (void)sum;
#endif
#pragma unroll
    for (u32 m = 0; m < CHUNKS; m++) {
        u32 i = lane + 32u * m;
#ifdef ROPE_PAIRS
        u32 i0 = 2u * i, i1 = i0 + 1u;
#else
        u32 i0 = i, i1 = i + HEAD_DIM / 2u;
#endif
#ifdef K_NORM
        x[m][0] = x[m][0] * inverse * (offset + norm[i0]);
        x[m][1] = x[m][1] * inverse * (offset + norm[i1]);
#endif
#if defined(ROPE_HALVES) || defined(ROPE_PAIRS)
        turn(&x[m][0], &x[m][1], cos_sin[2u * i], cos_sin[2u * i + 1u]);
#else
        (void)cos_sin;
#endif
        kv_store(to + i0, x[m][0]);
        kv_store(to + i1, x[m][1]);
    }
}
/* The parts of HEADS heads joined by the last group that made one. */
FN void join(const f32 *o_part, const f32 *lse_log2, f32 *out, u32 *arrived, u64 head0, u32 splits) {
    __shared__ u32 before;
    __threadfence();
    BARRIER();
    if (LOCAL_X == 0u) before = atomicAdd(arrived, 1u);
    BARRIER();
    if (before != splits - 1u) return;
    __threadfence();
    if (LOCAL_X == 0u) *arrived = 0u;
    for (u32 i = LOCAL_X; i < HEADS * HEAD_DIM / 4u; i += GROUP) {
        u64 head = head0 + i / (HEAD_DIM / 4u);
        const f32 *lse = lse_log2 + head * splits;
        const float4 *part = (const float4 *)(o_part + head * splits * HEAD_DIM) + i % (HEAD_DIM / 4u);
        f32 top = NEG_INF, total = 0.0f;
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (u32 s = 0; s < splits; s++) top = FMAX(top, __ldcg(lse + s));
#pragma unroll 4
        for (u32 s = 0; s < splits; s++) { /* empty parts are zeros with weight 0 */
            f32 l = __ldcg(lse + s), e = l == NEG_INF ? 0.0f : EXP2(l - top);
            float4 p = __ldcg(part + (u64)s * (HEAD_DIM / 4u));
            total += e;
            v.x = FMA(e, p.x, v.x), v.y = FMA(e, p.y, v.y), v.z = FMA(e, p.z, v.z), v.w = FMA(e, p.w, v.w);
        }
        f32 inverse = total > 0.0f ? 1.0f / total : 0.0f;
        ((float4 *)(out + head * HEAD_DIM))[i % (HEAD_DIM / 4u)] = make_float4(v.x * inverse, v.y * inverse, v.z * inverse, v.w * inverse);
    }
}
#endif

/* grid: (splits, heads / HEADS * rows) */
#ifdef WHOLE
KERNEL(attention_group)(const f32 *__restrict__ q, KV_TYPE *k_pages, KV_TYPE *v_pages, const u32 *__restrict__ step, f32 *o_part,
                        f32 *lse_log2, u32 *witness, const f32 *__restrict__ k_new, const f32 *__restrict__ v_new,
                        const f32 *__restrict__ q_norm, const f32 *__restrict__ k_norm, const f32 *__restrict__ cos_sin, f32 *out,
                        u32 *arrived, const struct pl_args_whole whole) {
    const struct pl_args_attention a = whole.a;
#else
KERNEL(attention_group)(const f32 *__restrict__ q, const KV_TYPE *__restrict__ k_pages, const KV_TYPE *__restrict__ v_pages,
                        const u32 *__restrict__ step, f32 *o_part, f32 *lse_log2, u32 *witness, const struct pl_args_attention a) {
#endif
    __shared__ f32 part_o[WARPS][HEADS][HEAD_DIM];
    __shared__ f32 part_m[WARPS][HEADS], part_l[WARPS][HEADS];
#ifndef WHOLE
    count_launch(witness);
#endif
    u32 row = GROUP_Y / (a.heads / HEADS), head0 = GROUP_Y % (a.heads / HEADS) * HEADS, kv = head0 / (a.heads / a.kv_heads);
    u32 warp = LOCAL_X / 32u, lane = LOCAL_X % 32u, g = lane >> 2, t = lane & 3u, split = GROUP_X;
    u32 last = step[PL_STEP_POSITION(a.stride) + row];
    u32 first = a.window != 0u && last + 1u > a.window ? last + 1u - a.window : 0u;
    u32 chunk = (last + 1u - first + a.splits - 1u) / a.splits;
    chunk = (chunk + RUN * WARPS - 1u) / (RUN * WARPS) * (RUN * WARPS); /* whole rounds of all warps; the last parts may be empty */
    u32 from = PL_MIN(first + split * chunk, last + 1u), to = PL_MIN(from + chunk, last + 1u);
    const u32 *table = step + PL_STEP_PAGES(a.stride) + step[PL_STEP_PAGE_FIRST(a.stride) + row];
#ifdef WHOLE
    bring(k_pages, v_pages, table, from, to, kv, a.kv_heads); /* the step's record is older than this launch and the one before */
    count_launch(witness);
#endif
    f32 scale = a.softcap > 0.0f ? a.scale : a.scale * 1.4426950408889634f;
    u32 qf[UNITS][4];
    f32 live = g < HEADS ? scale : 0.0f;
#ifdef WHOLE
    f32 head[UNITS][8];
    const f32 *angles = cos_sin + (u64)last * HEAD_DIM;
#pragma unroll
    for (u32 j = 0; j < UNITS; j++) load8(q + ((u64)row * a.heads + head0 + PL_MIN(g, HEADS - 1u)) * HEAD_DIM + 8u * (4u * j + t), head[j]);
    prepare_q(head, q_norm, angles, whole.norm_eps, whole.norm_offset);
    if (from < to && to == last + 1u) { /* the same for all threads */
        u64 at = kv_offset(table, last, kv, a.kv_heads), from_new = ((u64)row * a.kv_heads + kv) * HEAD_DIM;
        if (warp == 0u) append_k(k_new + from_new, k_pages + at, k_norm, angles, whole.norm_eps, whole.norm_offset);
        for (u32 i = LOCAL_X; i < HEAD_DIM; i += GROUP) kv_store(v_pages + at + i, v_new[from_new + i]);
        BARRIER();
    }
#endif
#pragma unroll
    for (u32 j = 0; j < UNITS; j++) {
#ifdef WHOLE
        const f32 *p = head[j];
#else
        const f32 *p = q + ((u64)row * a.heads + head0 + PL_MIN(g, HEADS - 1u)) * HEAD_DIM + 8u * (4u * j + t);
#endif
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
#ifdef WHOLE
    if (arrived != nullptr) join(o_part, lse_log2, out, arrived + GROUP_Y, (u64)row * a.heads + head0, a.splits);
#endif
}
