/* attention_run - HEADS query heads of one KV head meet cached tokens, 16 at a time, by each warp of a group
 * (attention_group.k.c). */
#ifndef PL_ATTENTION_RUN_H
#define PL_ATTENTION_RUN_H

#include "args/args.h"
#include "kv.h"

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

#if defined(ROPE_HALVES) || defined(ROPE_PAIRS)
FN void turn(f32 *x0, f32 *x1, f32 c, f32 s) {
    f32 a = *x0, b = *x1;
    *x0 = a * c - b * s;
    *x1 = a * s + b * c;
}
#endif
/* A head of q or k by one warp, normed and rotated, times `by`, in the cache's type: thread l holds pairs l and l + 32 ... of what is
 * rotated together. */
FN void prepare_head(const f32 *from, KV_TYPE *to, bool normed, const f32 *norm, const f32 *cos_sin, f32 eps, f32 offset, f32 by) {
    u32 lane = LOCAL_X % 32u;
    f32 x[HEAD_DIM / 64u][2], sum = 0.0f;
#ifdef ROPE_PAIRS
#define FIRST_OF(i)  (2u * (i))
#define SECOND_OF(i) (2u * (i) + 1u)
#else
#define FIRST_OF(i)  (i)
#define SECOND_OF(i) ((i) + HEAD_DIM / 2u)
#endif
#pragma unroll
    for (u32 m = 0; m < HEAD_DIM / 64u; m++) {
        u32 i = lane + 32u * m;
        x[m][0] = __ldcg(from + FIRST_OF(i)), x[m][1] = __ldcg(from + SECOND_OF(i));
        sum += x[m][0] * x[m][0] + x[m][1] * x[m][1];
    }
    if (normed) {
        for (u32 b = 16u; b > 0u; b >>= 1) sum += lane_xor(sum, b);
        f32 inverse = 1.0f / SQRT(sum / (f32)HEAD_DIM + eps);
#pragma unroll
        for (u32 m = 0; m < HEAD_DIM / 64u; m++) {
            u32 i = lane + 32u * m;
            x[m][0] = x[m][0] * inverse * (offset + norm[FIRST_OF(i)]);
            x[m][1] = x[m][1] * inverse * (offset + norm[SECOND_OF(i)]);
        }
    }
#pragma unroll
    for (u32 m = 0; m < HEAD_DIM / 64u; m++) {
        u32 i = lane + 32u * m;
#if defined(ROPE_HALVES) || defined(ROPE_PAIRS)
        turn(&x[m][0], &x[m][1], cos_sin[2u * i], cos_sin[2u * i + 1u]);
#else
        (void)cos_sin;
#endif
        kv_store(to + FIRST_OF(i), x[m][0] * by);
        kv_store(to + SECOND_OF(i), x[m][1] * by);
    }
}
/* What a row brings to attention, in shared memory: q16 [HEADS][HEAD_DIM], and behind it, where the newest token is, its key and
 * value. q, k, v: of this KV head. A head by one of `warps` warps. */
struct head_norms {
    const f32 *q, *k;
    f32 eps, offset;
};
#ifdef Q_NORM
#define Q_NORMED true
#else
#define Q_NORMED false
#endif
#ifdef K_NORM
#define K_NORMED true
#else
#define K_NORMED false
#endif
FN void prepare_row(KV_TYPE *q16, const f32 *q, const f32 *k, const f32 *v, const struct head_norms *n, const f32 *cos_sin, f32 scale, bool newest,
                    u32 warps) {
    u32 lane = LOCAL_X % 32u;
    for (u32 h = LOCAL_X / 32u; h < HEADS + (newest ? 2u : 0u); h += warps) {
        KV_TYPE *to = q16 + h * HEAD_DIM;
        if (h < HEADS) {
            prepare_head(q + h * HEAD_DIM, to, Q_NORMED, n->q, cos_sin, n->eps, n->offset, scale);
        } else if (h == HEADS) {
            prepare_head(k, to, K_NORMED, n->k, cos_sin, n->eps, n->offset, 1.0f);
        } else {
#pragma unroll
            for (u32 i = 0; i < HEAD_DIM / 32u; i++) kv_store(to + lane + 32u * i, __ldcg(v + lane + 32u * i));
        }
    }
}
/* The newest key and value to their place in the pages, 16 bytes a thread. */
FN void append_row(const KV_TYPE *q16, KV_TYPE *k_to, KV_TYPE *v_to) {
    if (LOCAL_X >= HEAD_DIM / 4u) return;
    ((uint4 *)(LOCAL_X < HEAD_DIM / 8u ? k_to : v_to))[LOCAL_X % (HEAD_DIM / 8u)] = ((const uint4 *)(q16 + HEADS * HEAD_DIM))[LOCAL_X];
}
FN void factors_of(const KV_TYPE *q16, u32 (*qf)[4]) {
    u32 lane = LOCAL_X % 32u, g = lane >> 2, t = lane & 3u;
#pragma unroll
    for (u32 j = 0; j < UNITS; j++) {
        uint4 w = g < HEADS ? *(const uint4 *)(q16 + g * HEAD_DIM + 8u * (4u * j + t)) : make_uint4(0u, 0u, 0u, 0u);
        qf[j][0] = w.x, qf[j][1] = w.y, qf[j][2] = w.z, qf[j][3] = w.w;
    }
}
/* 16 tokens from t0 on, as a warp holds them. */
struct run {
    uint4 k0[UNITS], k1[UNITS], v[CHUNKS][4];
};
/* Those from `to` on are the one before it. */
FN void fetch_run(struct run *r, const KV_TYPE *k_pages, const KV_TYPE *v_pages, const u32 *table, u32 t0, u32 to, u32 kv, u32 kv_heads) {
    u32 lane = LOCAL_X % 32u, g = lane >> 2, t = lane & 3u;
    const KV_TYPE *at0 = k_pages + kv_offset(table, PL_MIN(t0 + g, to - 1u), kv, kv_heads) + 8u * t;
    const KV_TYPE *at1 = k_pages + kv_offset(table, PL_MIN(t0 + 8u + g, to - 1u), kv, kv_heads) + 8u * t;
#pragma unroll
    for (u32 j = 0; j < UNITS; j++) r->k0[j] = load16(at0 + 32u * j), r->k1[j] = load16(at1 + 32u * j);
#pragma unroll
    for (u32 i = 0; i < 4u; i++) {
        u32 token = t0 + 2u * t + (i & 1u) + 8u * (i >> 1);
        const KV_TYPE *at = v_pages + kv_offset(table, PL_MIN(token, to - 1u), kv, kv_heads) + 8u * g;
#pragma unroll
        for (u32 c = 0; c < CHUNKS; c++) r->v[c][i] = load16(at + 64u * c);
    }
}
/* The newest token, at `last`, of a run that was fetched before it was there. */
FN void renew(struct run *r, const KV_TYPE *q16, u32 t0, u32 last) {
    const KV_TYPE *k = q16 + HEADS * HEAD_DIM, *v = k + HEAD_DIM;
    u32 lane = LOCAL_X % 32u, g = lane >> 2, t = lane & 3u;
    if (t0 + RUN <= last) return;
    if (t0 + g >= last) {
#pragma unroll
        for (u32 j = 0; j < UNITS; j++) r->k0[j] = *(const uint4 *)(k + 8u * t + 32u * j);
    }
    if (t0 + 8u + g >= last) {
#pragma unroll
        for (u32 j = 0; j < UNITS; j++) r->k1[j] = *(const uint4 *)(k + 8u * t + 32u * j);
    }
#pragma unroll
    for (u32 i = 0; i < 4u; i++) {
        if (t0 + 2u * t + (i & 1u) + 8u * (i >> 1) < last) continue;
#pragma unroll
        for (u32 c = 0; c < CHUNKS; c++) r->v[c][i] = *(const uint4 *)(v + 8u * g + 64u * c);
    }
}
FN void attend_begin(f32 (*o)[4], f32 *most, f32 *sum) {
#pragma unroll
    for (u32 i = 0; i < TILES; i++) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0.0f;
    *most = NEG_INF;
    *sum = 0.0f;
}
/* Tokens [t0, to) of a run, at least one: of head g the largest score, and of this thread's tokens the sum of weights; in o what the
 * warp summed of values. */
FN void attend(const struct run *r, u32 (*qf)[4], u32 t0, u32 to, f32 softcap, f32 (*o)[4], f32 *most, f32 *sum) {
    u32 t = LOCAL_X & 3u;
    f32 s[2][4] = {{0.0f, 0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
#pragma unroll
    for (u32 j = 0; j < UNITS; j++) {
        mma(s[0], qf[j][0], 0u, qf[j][1], 0u, r->k0[j].x, r->k0[j].y);
        mma(s[1], qf[j][0], 0u, qf[j][1], 0u, r->k1[j].x, r->k1[j].y);
        mma(s[0], qf[j][2], 0u, qf[j][3], 0u, r->k0[j].z, r->k0[j].w);
        mma(s[1], qf[j][2], 0u, qf[j][3], 0u, r->k1[j].z, r->k1[j].w);
    }
    f32 top = *most, p[4];
#pragma unroll
    for (u32 i = 0; i < 4u; i++) { /* head g, tokens 2 t, 2 t + 1 and eight further */
        p[i] = s[i >> 1][i & 1u];
        if (softcap > 0.0f) p[i] = softcap * TANH(p[i] / softcap) * 1.4426950408889634f;
        if (t0 + 2u * t + (i & 1u) + 8u * (i >> 1) >= to) p[i] = NEG_INF;
        top = FMAX(top, p[i]);
    }
    top = FMAX(top, lane_xor(top, 1));
    top = FMAX(top, lane_xor(top, 2)); /* never -inf: token t0 is live */
    f32 keep = *most == NEG_INF ? 0.0f : EXP2(*most - top);
    *most = top;
    *sum *= keep;
#pragma unroll
    for (u32 i = 0; i < 4u; i++) {
        p[i] = EXP2(p[i] - top);
        *sum += p[i];
    }
    u32 b0 = two(p[0], p[1]), b1 = two(p[2], p[3]);
    f32 keep0 = of_lane(keep, 8u * t), keep1 = of_lane(keep, 8u * t + 4u); /* of heads 2 t and 2 t + 1 */
#pragma unroll
    for (u32 i = 0; i < TILES; i++) {
        o[i][0] *= keep0, o[i][1] *= keep1, o[i][2] *= keep0, o[i][3] *= keep1;
#if HEAD_DIM == 64
        const uint4 *x = r->v[0], *y = r->v[0];
        u32 ex = i, ey = i + 4u;
#else
        const uint4 *x = r->v[i / 8u * 2u], *y = r->v[i / 8u * 2u + 1u];
        u32 ex = i % 8u, ey = ex;
#endif
        mma(o[i], pair(&x[0], &x[1], ex), pair(&y[0], &y[1], ey), pair(&x[2], &x[3], ex), pair(&y[2], &y[3], ey), b0, b1);
    }
}
FN void attend_end(f32 *sum) {
    *sum += lane_xor(*sum, 1);
    *sum += lane_xor(*sum, 2);
}
/* Of this warp: [warp][head] largest scores and sums, [warp][head][dimension] values. */
FN void leave_run(f32 (*o)[4], f32 m, f32 l, f32 (*part_o)[HEADS][HEAD_DIM], f32 (*part_m)[HEADS], f32 (*part_l)[HEADS]) {
    u32 warp = LOCAL_X / 32u, lane = LOCAL_X % 32u, g = lane >> 2, t = lane & 3u;
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
}
#ifdef PL_TARGET_CUDA
FN u32 add_before(u32 *p) {
    u32 v;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(v) : "l"(p) : "memory");
    return v;
}
#endif
/* The parts of HEADS heads from head0 on joined, in their order, by `threads` threads: part p of head h is vector
 * h * of_head + p * of_part of o_part, and so is its place in lse_log2. */
#define JOINED 8u /* parts fetched at once */
FN void join_parts(const f32 *o_part, const f32 *lse_log2, f32 *out, u64 head0, u32 of_head, u32 of_part, u32 parts, u32 threads) {
    for (u32 i = LOCAL_X; i < HEADS * HEAD_DIM / 4u; i += threads) {
        u64 head = head0 + i / (HEAD_DIM / 4u);
        const f32 *lse_of = lse_log2 + head * of_head;
        const float4 *o_of = (const float4 *)o_part + head * of_head * (HEAD_DIM / 4u) + i % (HEAD_DIM / 4u);
        f32 top = NEG_INF, total = 0.0f;
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (u32 p0 = 0; p0 < parts; p0 += JOINED) {
            f32 lse[JOINED], before = top;
            float4 o[JOINED];
#pragma unroll
            for (u32 p = 0; p < JOINED; p++) {
                u32 at = PL_MIN(p0 + p, parts - 1u) * of_part;
                lse[p] = __ldcg(lse_of + at);
                o[p] = __ldcg(o_of + at * (HEAD_DIM / 4u));
            }
#pragma unroll
            for (u32 p = 0; p < JOINED; p++) top = FMAX(top, lse[p]);
            f32 keep = before == NEG_INF ? 0.0f : EXP2(before - top);
            total *= keep, v.x *= keep, v.y *= keep, v.z *= keep, v.w *= keep;
#pragma unroll
            for (u32 p = 0; p < JOINED; p++) {
                f32 w = p0 + p < parts ? EXP2(lse[p] - top) : 0.0f;
                total += w;
                v.x = FMA(w, o[p].x, v.x), v.y = FMA(w, o[p].y, v.y), v.z = FMA(w, o[p].z, v.z), v.w = FMA(w, o[p].w, v.w);
            }
        }
        f32 inverse = 1.0f / total;
        ((float4 *)out)[head * (HEAD_DIM / 4u) + i % (HEAD_DIM / 4u)] =
            make_float4(v.x * inverse, v.y * inverse, v.z * inverse, v.w * inverse);
    }
}
#ifdef CLUSTER
FN void cluster_meet(void) {
    asm volatile("barrier.cluster.arrive.release;\n barrier.cluster.wait.acquire;" ::: "memory");
}
FN f32 of_group(const f32 *p, u32 group) { /* what p is in the shared memory of another group of the cluster */
    u64 at;
    u32 here, there;
    f32 v;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(at) : "l"(p));
    here = (u32)at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(group));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there) : "memory");
    return v;
}
/* This group's share of HEADS heads: the parts of all groups of the cluster joined, in their order. */
FN void join_cluster(const f32 *o, const f32 *lse, f32 *out) {
    const u32 share = HEADS * HEAD_DIM / CLUSTER;
    u32 i = GROUP_X % CLUSTER * share + LOCAL_X;
    f32 part[CLUSTER], log[CLUSTER], top = NEG_INF, total = 0.0f, v = 0.0f;
    if (LOCAL_X >= share) return;
#pragma unroll
    for (u32 p = 0; p < CLUSTER; p++) log[p] = of_group(lse + i / HEAD_DIM, p), part[p] = of_group(o + i, p);
#pragma unroll
    for (u32 p = 0; p < CLUSTER; p++) top = FMAX(top, log[p]);
#pragma unroll
    for (u32 p = 0; p < CLUSTER; p++) { /* parts without tokens are zeros with weight 0 */
        f32 w = EXP2(log[p] - top);
        total += w;
        v = FMA(w, part[p], v);
    }
    out[i] = v / total;
}
#endif
#endif
