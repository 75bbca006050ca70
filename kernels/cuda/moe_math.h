/* moe_math - what the kernels of experts with rearranged weights share: strips times inputs that stand ready (strips.h),
 * results made ready in turn, gates, and the order of a router's logits. */
#ifndef PL_MOE_MATH_H
#define PL_MOE_MATH_H

#include "cuda/strip_math.h"

#ifdef ACT_GELU_TANH
FN f32 gated(f32 g, f32 u) { return 0.5f * g * (1.0f + TANH(0.7978845608028654f * g * (1.0f + 0.044715f * g * g))) * u; }
#else
FN f32 gated(f32 g, f32 u) { return __fdividef(g, 1.0f + __expf(-g)) * u; }
#endif

/* A strip in shared memory. */
FN void take(struct strip *s, const u8 *at) {
    u32 lane = LOCAL_X % 32u;
#pragma unroll
    for (u32 i = 0; i < 4u; i++) s->q[i] = *(const uint4 *)(at + 512u * i + 16u * lane);
#ifdef WTYPE_Q6_K
    s->high[0] = *(const uint4 *)(at + STRIP_HIGH + 16u * lane);
    s->high[1] = *(const uint4 *)(at + STRIP_HIGH + 512u + 16u * lane);
    s->d = *(const u32 *)(at + STRIP_D + 4u * (lane >> 2));
#else
    s->d = *(const uint2 *)(at + STRIP_D + 8u * (lane >> 2));
#endif
    s->scale = *(const uint2 *)(at + STRIP_SCALE + 8u * lane);
}
/* The inputs of one block as this lane meets them: 16 bytes of each word of row lane / 4, `step` bytes apart, its sums of 32;
 * magnitudes of rows 2 t and 2 t + 1. */
struct inputs {
    const u8 *words;
    u32 step, sums;
    bool live;
    f32 top0, top1;
};
#define AHEAD 4u /* words fetched at once */
/* acc += 16 outputs times 256 inputs of eight rows. */
FN void multiply(const struct strip *s, const struct inputs *in, f32 *acc) {
    f32 p[4] = {0.0f, 0.0f, 0.0f, 0.0f}, q[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    struct factors f;
    factors_of(s, &f);
#pragma unroll
    for (u32 w0 = 0; w0 < 8u; w0 += AHEAD) {
        uint4 e[AHEAD];
#pragma unroll
        for (u32 w = 0; w < AHEAD; w++) {
            e[w] = make_uint4(0u, 0u, 0u, 0u);
            if (in->live) e[w] = *(const uint4 *)(in->words + (w0 + w) * in->step);
        }
#pragma unroll
        for (u32 w = 0; w < AHEAD; w++) {
            u32 a[4], b[4];
            unpack(s, &f, w0 + w, a, b);
            mma16(p, a, e[w].x, e[w].y);
            mma16(q, b, e[w].z, e[w].w);
        }
    }
#pragma unroll
    for (u32 i = 0; i < 4u; i++) p[i] += q[i];
#ifdef WTYPE_Q6_K
    f32 d0 = h2_low(s->d), d1 = h2_high(s->d);
    f32 v[4] = {d0 * p[0], d0 * p[1], d1 * p[2], d1 * p[3]};
#else
    f32 d0 = h2_low(s->d.x), d1 = h2_low(s->d.y), m0 = h2_high(s->d.x), m1 = h2_high(s->d.y), sums[4];
    mma8(sums, f.min, in->sums);
    f32 v[4] = {d0 * p[0] - m0 * sums[0], d0 * p[1] - m0 * sums[1], d1 * p[2] - m1 * sums[2], d1 * p[3] - m1 * sums[3]};
#endif
    acc[0] = FMA(in->top0, v[0], acc[0]);
    acc[1] = FMA(in->top1, v[1], acc[1]);
    acc[2] = FMA(in->top0, v[2], acc[2]);
    acc[3] = FMA(in->top1, v[3], acc[3]);
}

FN void load8(const f32 *p, f32 *v) {
    float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
/* A warp makes 256 f32 of one row ready, eight a lane: words of 16 bytes at `words` (word w, quarter t: 16 * (step w + t)),
 * sums of 32 at `sums`, the magnitude is returned. As in prepare.k.c. */
FN f32 ready_of(const f32 *v, u8 *words, u32 step, u32 *sums) {
    u32 lane = LOCAL_X % 32u, t = lane >> 3, m = lane & 7u, h[4];
    f32 top = 0.0f, sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 8u; i++) top = FMAX(top, FABS(v[i]));
#pragma unroll
    for (u32 x = 16u; x > 0u; x >>= 1) top = FMAX(top, lane_xor(top, x));
    if (top < 1.0e-37f) top = 0.0f; /* its inverse would not be a number */
    f32 inverse = top > 0.0f ? 1.0f / top : 0.0f;
#pragma unroll
    for (u32 i = 0; i < 4u; i++) { /* elements 0,2 then 1,3 of each four */
        u32 at = 4u * (i >> 1) + (i & 1u);
        h[i] = h2_make(v[at] * inverse, v[at + 2u] * inverse);
        sum += h2_low(h[i]) + h2_high(h[i]);
    }
    u8 *to = words + 16u * (step * (2u * (m & 3u)) + t) + 8u * (m >> 2);
    *(uint2 *)to = make_uint2(h[0], h[1]);
    *(uint2 *)(to + 16u * step) = make_uint2(h[2], h[3]);
    sum += lane_xor(sum, 1);
    sum += lane_xor(sum, 2);
    f32 other = lane_xor(sum, 4);
    if (m == 0u) sums[t] = h2_make(sum, other);
    return top;
}
FN f32 ready(const f32 *row, u8 *words, u32 step, u32 *sums) {
    f32 v[8];
    load8(row + 8u * (LOCAL_X % 32u), v);
    return ready_of(v, words, step, sums);
}

/* As in kernels/moe_route.k.c: larger is better, NaN 1, taken 0. */
FN u32 key_of(f32 v) {
    u32 b = f32_bits(v);
    if ((b & 0x7FFFFFFFu) > 0x7F800000u) return 1u;
    if (b == 0x80000000u) b = 0u; /* -0 equals 0 */
    return (b >> 31) != 0u ? ~b : b | 0x80000000u;
}
FN f32 value_of(u32 key) { return key == 1u ? bits_f32(0x7FC00000u) : bits_f32((key >> 31) != 0u ? key & 0x7FFFFFFFu : ~key); }


#ifdef EXPERTS /* a multiple of 32: a warp chooses among a row's logits */
#define LANE_KEYS (EXPERTS / 32u)
/* The largest logit is returned. */
FN f32 keys_of(const f32 *logits, u32 *key) {
    u32 lane = LOCAL_X % 32u;
    f32 v[LANE_KEYS], top = NEG_INF;
#pragma unroll
    for (u32 i = 0; i < LANE_KEYS; i++) v[i] = __ldcg(logits + lane + 32u * i);
#pragma unroll
    for (u32 i = 0; i < LANE_KEYS; i++) {
        key[i] = key_of(v[i]);
        top = FMAX(top, v[i]);
    }
#pragma unroll
    for (u32 m = 16u; m > 0u; m >>= 1) top = FMAX(top, lane_xor(top, m));
    return top;
}
/* The best that is left, and takes it. */
FN u32 next_of(u32 *key, u32 *best) {
    u32 lane = LOCAL_X % 32u, at = 0xFFFFFFFFu;
    *best = 0u;
#pragma unroll
    for (u32 i = 0; i < LANE_KEYS; i++) *best = max(*best, key[i]);
    *best = __reduce_max_sync(0xFFFFFFFFu, *best);
#pragma unroll
    for (u32 i = LANE_KEYS; i-- > 0u;) at = key[i] == *best ? lane + 32u * i : at;
    at = __reduce_min_sync(0xFFFFFFFFu, at);
#pragma unroll
    for (u32 i = 0; i < LANE_KEYS; i++) key[i] = lane + 32u * i == at ? 0u : key[i];
    return at;
}
#endif
#endif
