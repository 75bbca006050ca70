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
 * CLUSTER (sm_90 and up; as many as `splits`): the parts of a row's heads stay in the shared memory of the groups that made them,
 * and each joins its share of the values.
 * Requires: HEAD_DIM 64, 128 or 256; f16 or bf16 pages; HEADS at most 8 and a divisor of the group size. */
#include "dialect.h"
#include "args/args.h"
#include "kv.h"

#define WARPS (GROUP / 32u)
#include "cuda/attention_run.h"

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
    u32 warp = LOCAL_X / 32u, split = GROUP_X;
    u32 last = step[PL_STEP_POSITION(a.stride) + row];
    u32 first = a.window != 0u && last + 1u > a.window ? last + 1u - a.window : 0u;
    u32 chunk = (last + 1u - first + a.splits - 1u) / a.splits;
    chunk = (chunk + RUN * WARPS - 1u) / (RUN * WARPS) * (RUN * WARPS); /* whole rounds of all warps; the last parts may be empty */
#if defined(WHOLE) && !defined(CLUSTER)
    u32 parts = (last + chunk - first) / chunk; /* that have tokens */
    if (arrived != nullptr && split >= parts) { /* nobody waits for it */
        count_launch(witness);
        return;
    }
#endif
    u32 from = PL_MIN(first + split * chunk, last + 1u), to = PL_MIN(from + chunk, last + 1u);
    const u32 *table = step + PL_STEP_PAGES(a.stride) + step[PL_STEP_PAGE_FIRST(a.stride) + row];
    f32 scale = a.softcap > 0.0f ? a.scale : a.scale * 1.4426950408889634f;
    u32 qf[UNITS][4], t0 = from + RUN * warp;
#ifdef WHOLE
    __shared__ __align__(16) KV_TYPE q16[(HEADS + 2u) * HEAD_DIM];
#ifdef CLUSTER
    __shared__ f32 own_o[HEADS * HEAD_DIM], own_lse[HEADS];
#else
    __shared__ u32 before;
#endif
    const struct head_norms norms = {q_norm, k_norm, whole.norm_eps, whole.norm_offset};
    bool newest = from < to && to == last + 1u; /* the same for all threads */
    struct run r; /* of tokens that no launch of this step writes: on their way while the launch before ends; so is the step's record */
    if (t0 < to) fetch_run(&r, k_pages, v_pages, table, t0, to, kv, a.kv_heads);
    count_launch(witness);
    u64 kv_row = ((u64)row * a.kv_heads + kv) * HEAD_DIM;
    prepare_row(q16, q + ((u64)row * a.heads + head0) * HEAD_DIM, k_new + kv_row, v_new + kv_row, &norms, cos_sin + (u64)last * HEAD_DIM, scale,
                newest, WARPS);
    BARRIER();
    if (newest) {
        u64 at = kv_offset(table, last, kv, a.kv_heads);
        append_row(q16, k_pages + at, v_pages + at);
    }
    factors_of(q16, qf);
#else
    u32 g = LOCAL_X % 32u >> 2, t = LOCAL_X & 3u;
    f32 live = g < HEADS ? scale : 0.0f;
    struct run r;
#pragma unroll
    for (u32 j = 0; j < UNITS; j++) {
        const f32 *p = q + ((u64)row * a.heads + head0 + PL_MIN(g, HEADS - 1u)) * HEAD_DIM + 8u * (4u * j + t);
#pragma unroll
        for (u32 i = 0; i < 4u; i++) qf[j][i] = two(p[2u * i] * live, p[2u * i + 1u] * live);
    }
#endif
    f32 o[TILES][4], m, l;
    attend_begin(o, &m, &l);
    for (u32 at = t0; at < to; at += RUN * WARPS) {
#ifdef WHOLE
        if (at != t0) fetch_run(&r, k_pages, v_pages, table, at, to, kv, a.kv_heads);
        if (newest) renew(&r, q16, at, last);
#else
        fetch_run(&r, k_pages, v_pages, table, at, to, kv, a.kv_heads);
#endif
        attend(&r, qf, at, to, a.softcap, o, &m, &l);
    }
    attend_end(&l);
    leave_run(o, m, l, part_o, part_m, part_l);
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
#ifdef CLUSTER
        own_o[i] = total > 0.0f ? v / total : 0.0f;
        if (d == 0u) own_lse[h] = total > 0.0f ? top + LOG2(total) : NEG_INF;
#else
        u64 part = ((u64)row * a.heads + head0 + h) * a.splits + split;
        o_part[part * HEAD_DIM + d] = total > 0.0f ? v / total : 0.0f;
        if (d == 0u) lse_log2[part] = total > 0.0f ? top + LOG2(total) : NEG_INF;
#endif
    }
#ifdef CLUSTER
    cluster_meet();
    join_cluster(own_o, own_lse, out + ((u64)row * a.heads + head0) * HEAD_DIM);
    cluster_meet(); /* nobody's memory goes while another reads it */
#elif defined(WHOLE)
    if (arrived == nullptr) return;
    BARRIER();
    if (LOCAL_X == 0u) before = add_before(arrived + GROUP_Y);
    BARRIER();
    if (before + 1u != parts) return;
    if (LOCAL_X == 0u) arrived[GROUP_Y] = 0u;
    join_parts(o_part, lse_log2, out, (u64)row * a.heads + head0, a.splits, 1u, parts, GROUP);
#endif
}
