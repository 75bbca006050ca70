/* rope_warps - rope.k.c (its contract) with a warp for each head and row, whose lanes keep HEAD_DIM / 32 neighbouring numbers each.
 *
 * Requires: HEAD_DIM 64, 128 or 256, the rotation over all of it or none, f16 or bf16 pages. HEAD_DIM, PAGE_TOKENS, KV_* (kv.h), Q_NORM,
 * K_NORM, ROPE_HALVES | ROPE_PAIRS. Order is fixed: bitwise repeatable. */
#include "dialect.h"
#include "args/args.h"
#include "kv.h"
#include "cuda/units.h"

#define MINE (HEAD_DIM / 32u) /* numbers of a lane */

#if defined(Q_NORM) || defined(K_NORM)
FN void normed(f32 *x, const f32 *w, f32 inverse, f32 offset) {
#pragma unroll
    for (u32 i = 0; i < MINE; i++) x[i] = x[i] * inverse * (offset + w[i]);
}
#endif
/* t: cos and sin of each pair. */
FN void rotated(f32 *x, const f32 *t, u32 lane) {
#ifdef ROPE_PAIRS
#pragma unroll
    for (u32 i = 0; i < MINE; i += 2u) {
        float2 r = *(const float2 *)(t + MINE * lane + i);
        f32 x0 = x[i], x1 = x[i + 1u];
        x[i] = x0 * r.x - x1 * r.y;
        x[i + 1u] = x0 * r.y + x1 * r.x;
    }
#elif defined(ROPE_HALVES)
#pragma unroll
    for (u32 i = 0; i < MINE; i++) {
        float2 r = *(const float2 *)(t + 2u * (MINE * (lane % 16u) + i));
        f32 other = lane_xor(x[i], 16);
        x[i] = lane < 16u ? x[i] * r.x - other * r.y : other * r.y + x[i] * r.x;
    }
#else
    (void)x;
    (void)t;
    (void)lane;
#endif
}

/* grid: (heads of q, k and v together / warps, rows) */
KERNEL(rope_append)(f32 *q, const f32 *__restrict__ k, const f32 *__restrict__ v, const f32 *__restrict__ q_norm,
                    const f32 *__restrict__ k_norm, const f32 *__restrict__ cos_sin, const u32 *__restrict__ step,
                    KV_TYPE *__restrict__ k_pages, KV_TYPE *__restrict__ v_pages, u32 *witness, const struct pl_args_rope a) {
    count_launch(witness);
    u32 lane = LOCAL_X % 32u, head = GROUP_X * (GROUP / 32u) + LOCAL_X / 32u, row = GROUP_Y;
    if (head >= a.heads + 2u * a.kv_heads) return;
    bool is_q = head < a.heads, is_k = !is_q && head < a.heads + a.kv_heads;
    u32 g = is_q ? head : is_k ? head - a.heads : head - a.heads - a.kv_heads, position = step[PL_STEP_POSITION(a.stride) + row];
    const f32 *from = (is_q ? q + ((u64)row * a.heads + g) * HEAD_DIM : (is_k ? k : v) + ((u64)row * a.kv_heads + g) * HEAD_DIM) + MINE * lane;
    f32 x[MINE];
#pragma unroll
    for (u32 i = 0; i < MINE; i += 2u) {
        float2 two_of = *(const float2 *)(from + i);
        x[i] = two_of.x, x[i + 1u] = two_of.y;
    }
#if defined(Q_NORM) || defined(K_NORM)
    f32 sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < MINE; i++) sum += x[i] * x[i];
#pragma unroll
    for (u32 by = 16u; by > 0u; by >>= 1) sum += lane_xor(sum, by);
    f32 inverse = 1.0f / SQRT(sum / (f32)HEAD_DIM + a.norm_eps);
#endif
#ifdef Q_NORM
    if (is_q) normed(x, q_norm + MINE * lane, inverse, a.norm_offset);
#endif
#ifdef K_NORM
    if (is_k) normed(x, k_norm + MINE * lane, inverse, a.norm_offset);
#endif
    (void)q_norm;
    (void)k_norm;
    if (is_q || is_k) rotated(x, cos_sin + (u64)position * HEAD_DIM, lane);
    if (is_q) {
        f32 *to = q + ((u64)row * a.heads + g) * HEAD_DIM + MINE * lane;
#pragma unroll
        for (u32 i = 0; i < MINE; i += 2u) *(float2 *)(to + i) = make_float2(x[i], x[i + 1u]);
        return;
    }
    const u32 *table = step + PL_STEP_PAGES(a.stride) + step[PL_STEP_PAGE_FIRST(a.stride) + row];
    u32 *to = (u32 *)((is_k ? k_pages : v_pages) + kv_offset(table, position, g, a.kv_heads) + MINE * lane);
#pragma unroll
    for (u32 i = 0; i < MINE; i += 2u) to[i / 2u] = two(x[i], x[i + 1u]);
}
