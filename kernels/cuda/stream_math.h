/* stream_math - how one row meets weights that come through shared memory (stream.k.c, chain.k.c): what a unit is, the input as
 * the products want it, and the products of a warp.
 *
 * A unit is RG outputs x 2048 inputs (plain weights: CHUNK, no more), a warp of eight takes 256 of them.
 * Strips (strips.h): u8 x s8 on the matrix units. The input becomes integers of 15 bits per 32 (top / 16256), high * 128 +
 * low, and each of the 8 columns of a product belongs to one sub-block: a factor has zeros for all others, so that the sums
 * of a sub-block end in the thread that holds its scale. Integers are exact; rounded is the input alone.
 * Other quantised weights, as the file has them: the same integers, four at a time.
 * Plain weights: f32 sums of products with the f32 input. */
#ifndef PL_STREAM_MATH_H
#define PL_STREAM_MATH_H

#define BULK
#include "cuda/strips.h"

#define WARPS   8u
#define MEMBERS 256u /* threads that multiply */
#ifdef WTYPE_Q6_K
#define TOGETHER 1u /* groups of outputs that share what is fetched of the input */
#else
#define TOGETHER 2u
#endif
#define HOLD    16u  /* groups of outputs whose sums wait to be added up */
#if defined(WTYPE_Q8_0)
#define BLOCK_BYTES 34u
#elif defined(WTYPE_Q4_0)
#define BLOCK_BYTES 18u
#elif defined(WTYPE_Q4_1)
#define BLOCK_BYTES 20u
#elif defined(WTYPE_Q5_0)
#define BLOCK_BYTES 22u
#endif
#if defined(WTYPE_BF16) || defined(WTYPE_F16)
#ifndef CHUNK
#define CHUNK 2048u /* inputs of a unit */
#endif
#define RG         4u
#define UNIT_BYTES (2u * RG * CHUNK)
#define X_BYTES    (4u * CHUNK) /* f32, of each 256 inputs the first four of every thread, then the others */
#else
#ifdef BLOCK_BYTES
#define RG         8u
#define ROW_BYTES  (64u * BLOCK_BYTES + 48u) /* in shared memory: banks apart */
#define UNIT_BYTES (RG * ROW_BYTES)
#else
#define RG         16u
#define UNIT_BYTES (8u * STRIP_BYTES)
#endif
#define X_BLOCK    576u /* of 256 inputs: high, low, then per 64 the scale of either sub-block and their scaled sums */
#define X_BYTES    (8u * X_BLOCK)
#endif
extern __shared__ __align__(128) u8 shared[];
#define SUMS_BYTES (HOLD * WARPS * RG * 4u)

#ifndef PL_EMULATED
FN void members_meet(void) { asm volatile("bar.sync 1, 256;" ::: "memory"); }
#endif

/* A warp has read what a barrier's stage holds. One lane says so for all, behind __syncwarp; tools that follow barriers but not
 * that get a build in which each lane does. */
#ifdef EVERY_LANE
#define LEAVERS (32u * WARPS)
FN void have_read(u64 *stage) { barrier_arrive(stage); }
#else
#define LEAVERS WARPS
FN void have_read(u64 *stage) {
    __syncwarp();
    if (LOCAL_X % 32u == 0u) barrier_arrive(stage);
}
#endif

FN u32 groups_of(u32 out) { return (out + RG - 1u) / RG; }

/* --- the input --- */

FN void load8(const f32 *p, f32 *v) {
    float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
FN u32 larger(u32 a, u32 b) { return a > b ? a : b; }
FN u32 four_bytes(const i32 *v) {
    u32 low = __byte_perm((u32)v[0], (u32)v[1], 0x0040u), high = __byte_perm((u32)v[2], (u32)v[3], 0x0040u);
    return __byte_perm(low, high, 0x5410u);
}
/* Inputs [k, k + 8) of this thread; four neighbouring threads hold 32. */
FN void put(u8 *to, u32 k, const f32 *v) {
#if defined(WTYPE_BF16) || defined(WTYPE_F16)
    f32 *at = (f32 *)to + k / 256u * 256u + 4u * (k % 256u / 8u);
    *(float4 *)at = make_float4(v[0], v[1], v[2], v[3]);
    *(float4 *)(at + 128) = make_float4(v[4], v[5], v[6], v[7]);
#else
    u8 *block = to + k / 256u * X_BLOCK;
    u32 e = k % 256u, sub = e / 32u, bits = 0u;
    i32 q[8], h[8], total = 0;
#pragma unroll
    for (u32 i = 0; i < 8u; i++) bits = larger(bits, f32_bits(v[i]) & 0x7FFFFFFFu); /* NaN is larger than all */
    bits = larger(bits, lane_xor(bits, 1));
    bits = larger(bits, lane_xor(bits, 2));
    f32 top = bits < 0x07000000u ? 0.0f : bits_f32(bits), inverse = top > 0.0f ? __frcp_rn(top) * 16256.0f : 0.0f; /* of 1e-34 it is a number */
#pragma unroll
    for (u32 i = 0; i < 8u; i++) { /* rounded to nearest by what the sum has no room for */
        q[i] = (i32)(f32_bits(FMA(v[i], inverse, 12582912.0f)) - 0x4B400000u);
        h[i] = (q[i] + 64) >> 7;
        total += q[i];
        q[i] -= h[i] * 128;
    }
    total += lane_xor(total, 1);
    total += lane_xor(total, 2);
    *(uint2 *)(block + e) = make_uint2(four_bytes(h), four_bytes(h + 4));
    *(uint2 *)(block + 256u + e) = make_uint2(four_bytes(q), four_bytes(q + 4));
    if (e % 32u == 0u) {
        f32 d = bits >= 0x7F800000u ? bits_f32(0x7FC00000u) : top * (1.0f / 16256.0f);
        f32 *scales = (f32 *)(block + 512u + 16u * (sub >> 1));
#ifdef WTYPE_Q6_K
        scales[sub & 1u] = d * 0.25f;
#elif defined(BLOCK_BYTES)
        scales[sub & 1u] = d;
        scales[2u + (sub & 1u)] = d * (f32)total;
#else
        scales[sub & 1u] = (sub & 1u) != 0u ? d * 0.0625f : d;
        scales[2u + (sub & 1u)] = d * (f32)total;
#endif
    }
#endif
}

/* --- products --- */

#if defined(WTYPE_BF16) || defined(WTYPE_F16)
FN void widen(u32 u, f32 *lo, f32 *hi) {
#ifdef WTYPE_BF16
    *lo = bits_f32(u << 16);
    *hi = bits_f32(u & 0xFFFF0000u);
#else
    *lo = h2_low(u);
    *hi = h2_high(u);
#endif
}
/* acc[j][i] += of output i of group j, of n groups; units in shared memory, inputs of this warp's 256. */
FN void multiply(const u8 *const *unit, u32 n, const u8 *x, f32 (*acc)[RG]) {
    u32 lane = LOCAL_X % 32u, warp = LOCAL_X / 32u;
    uint4 w[2][RG];
    f32 e[8];
#pragma unroll
    for (u32 i = 0; i < n * RG; i++) w[i / RG][i % RG] = *(const uint4 *)(unit[i / RG] + 2u * CHUNK * (i % RG) + 512u * warp + 16u * lane);
    float4 e0 = *(const float4 *)(x + 1024u * warp + 16u * lane), e1 = *(const float4 *)(x + 1024u * warp + 512u + 16u * lane);
    e[0] = e0.x, e[1] = e0.y, e[2] = e0.z, e[3] = e0.w, e[4] = e1.x, e[5] = e1.y, e[6] = e1.z, e[7] = e1.w;
#pragma unroll
    for (u32 i = 0; i < n * RG; i++) {
        const uint4 *q = &w[i / RG][i % RG];
        u32 u[4] = {q->x, q->y, q->z, q->w};
        f32 *sum = &acc[i / RG][i % RG];
#pragma unroll
        for (u32 j = 0; j < 4u; j++) {
            f32 lo, hi;
            widen(u[j], &lo, &hi);
            *sum = FMA(lo, e[2u * j], *sum);
            *sum = FMA(hi, e[2u * j + 1u], *sum);
        }
    }
}
#define ACC RG
/* Of each output the sum over the warp; thread 8 i holds output i. */
FN void leave(f32 *sums, f32 *acc) {
    u32 lane = LOCAL_X % 32u;
    bool upper = (lane & 16u) != 0u, odd = (lane & 8u) != 0u;
    f32 give0 = upper ? acc[0] : acc[2], give1 = upper ? acc[1] : acc[3];
    f32 v0 = (upper ? acc[2] : acc[0]) + lane_xor(give0, 16), v1 = (upper ? acc[3] : acc[1]) + lane_xor(give1, 16);
    f32 v = (odd ? v1 : v0) + lane_xor(odd ? v0 : v1, 8);
    v += lane_xor(v, 4);
    v += lane_xor(v, 2);
    v += lane_xor(v, 1);
    if (lane % 8u == 0u) sums[lane / 8u] = v;
}
#elif defined(BLOCK_BYTES)
/* A block of 32 as the file has it: bytes in element order, scale, what is added once per element. */
struct block {
    u32 q[8];
    f32 d, m;
};
FN u32 two_bytes(const u16 *p, u32 i) { return (u32)p[2u * i] | ((u32)p[2u * i + 1u] << 16); }
FN void open_block(const u8 *at, struct block *b) {
    const u16 *p = (const u16 *)at;
    b->d = h2_low(p[0]);
#ifdef WTYPE_Q8_0
    b->m = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 8u; i++) b->q[i] = two_bytes(p + 1, i);
#else
#if defined(WTYPE_Q4_0)
    const u16 *q = p + 1;
    b->m = -8.0f * b->d;
#elif defined(WTYPE_Q4_1)
    const u16 *q = p + 2;
    b->m = h2_low(p[1]);
#else
    const u16 *q = p + 3;
    u32 high = two_bytes(p + 1, 0u);
    b->m = -16.0f * b->d;
#endif
#pragma unroll
    for (u32 i = 0; i < 4u; i++) {
        u32 v = two_bytes(q, i);
        b->q[i] = v & 0x0F0F0F0Fu;
        b->q[i + 4u] = (v >> 4) & 0x0F0F0F0Fu;
#ifdef WTYPE_Q5_0
#define SPREAD(bits) (((bits) & 1u) << 4 | ((bits) & 2u) << 11 | ((bits) & 4u) << 18 | ((bits) & 8u) << 25)
        b->q[i] |= SPREAD(high >> (4u * i));
        b->q[i + 4u] |= SPREAD(high >> (16u + 4u * i));
#endif
    }
#endif
}
/* acc[j][i] += of output lane / 8 + 4 i of group j over block lane % 8 of this warp's eight; x: their inputs. */
FN void multiply(const u8 *const *unit, u32 n, const u8 *x, f32 (*acc)[2]) {
    u32 lane = LOCAL_X % 32u, warp = LOCAL_X / 32u, k = lane % 8u;
    uint4 high[2], low[2];
#pragma unroll
    for (u32 i = 0; i < 2u; i++) {
        high[i] = *(const uint4 *)(x + 32u * k + 16u * i);
        low[i] = *(const uint4 *)(x + 256u + 32u * k + 16u * i);
    }
    f32 scale = *(const f32 *)(x + 512u + 16u * (k >> 1) + 4u * (k & 1u)), total = *(const f32 *)(x + 520u + 16u * (k >> 1) + 4u * (k & 1u));
#pragma unroll
    for (u32 r = 0; r < 2u * n; r++) {
        struct block b;
        i32 h = 0, l = 0;
        open_block(unit[r / 2u] + (lane / 8u + 4u * (r % 2u)) * ROW_BYTES + (8u * warp + k) * BLOCK_BYTES, &b);
#pragma unroll
        for (u32 i = 0; i < 8u; i++) {
            const uint4 *p = &high[i / 4u], *q = &low[i / 4u];
            u32 e = i % 4u;
            h = __dp4a((int)b.q[i], (int)(e == 0u ? p->x : e == 1u ? p->y : e == 2u ? p->z : p->w), h);
            l = __dp4a((int)b.q[i], (int)(e == 0u ? q->x : e == 1u ? q->y : e == 2u ? q->z : q->w), l);
        }
        acc[r / 2u][r % 2u] += b.d * (scale * (f32)(h * 128 + l)) + b.m * total;
    }
}
#define ACC 2u
FN void leave(f32 *sums, f32 *acc) {
    u32 lane = LOCAL_X % 32u;
#pragma unroll
    for (u32 r = 0; r < 2u; r++) {
        acc[r] += lane_xor(acc[r], 1);
        acc[r] += lane_xor(acc[r], 2);
        acc[r] += lane_xor(acc[r], 4);
        if ((lane & 7u) == 0u) sums[(lane >> 3) + 4u * r] = acc[r];
    }
}
#else
#ifndef PL_EMULATED
FN void mma_u8(i32 *c, const u32 *a, u32 b0, u32 b1) {
#ifdef WTYPE_Q6_K
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif
FN u32 word_of(const uint4 *q, u32 i) {
    const uint4 *at = q + (i >> 2);
    return (i & 3u) == 0u ? at->x : (i & 3u) == 1u ? at->y : (i & 3u) == 2u ? at->z : at->w;
}
FN u32 byte_of(u32 v, u32 i) { return (v >> (8u * i)) & 255u; }
#ifdef WTYPE_Q6_K
/* 4 (q - 32) of four inputs: `four` their lower bits << 2 with the sign turned, u the word of upper bits, at: their first. */
FN u32 six(u32 four, u32 u, u32 at) {
    u32 even = at > 6u ? u >> (at - 6u) : u << (6u - at), odd = at + 2u > 14u ? u >> (at + 2u - 14u) : u << (14u - at - 2u);
    return four ^ (even & 0x00C000C0u) ^ (odd & 0xC000C000u);
}
#endif
#ifdef WTYPE_Q6_K
#define SETS 2u /* of sums: the first and the second 16 inputs of a half */
#else
#define SETS 1u
#endif
/* acc[r] += of outputs g + 8 r of one strip, its sums known; s: scales and sums of this thread's 64 inputs. */
FN void weigh(const u8 *strip, i32 (*sum)[2][2][4], float4 s, f32 *acc) {
    u32 lane = LOCAL_X % 32u;
    uint2 scale = *(const uint2 *)(strip + STRIP_SCALE + 8u * lane);
#ifdef WTYPE_Q6_K
    u32 d = *(const u32 *)(strip + STRIP_D + 4u * (lane >> 2));
#else
    uint2 d = *(const uint2 *)(strip + STRIP_D + 8u * (lane >> 2));
#endif
#pragma unroll
    for (u32 r = 0; r < 2u; r++) {
        u32 bytes = r == 0u ? scale.x : scale.y;
#ifdef WTYPE_Q6_K
        f32 v[4];
#pragma unroll
        for (u32 i = 0; i < 4u; i++) { /* sub-block: i & 1 first or second 16, i >> 1 half */
            i32 n = sum[i & 1u][i >> 1][0][2u * r + (i >> 1)] * 128 + sum[i & 1u][i >> 1][1][2u * r + (i >> 1)];
            v[i] = (f32)(i8)byte_of(bytes, i) * (f32)n;
        }
        acc[r] = FMA(r == 0u ? h2_low(d) : h2_high(d), s.x * (v[0] + v[1]) + s.y * (v[2] + v[3]), acc[r]);
#else
        i32 n0 = sum[0][0][0][2u * r] * 128 + sum[0][0][1][2u * r], n1 = sum[0][1][0][2u * r + 1u] * 128 + sum[0][1][1][2u * r + 1u];
        f32 e = (f32)byte_of(bytes, 0u) * (s.x * (f32)n0) + (f32)byte_of(bytes, 1u) * (s.y * (f32)n1);
        f32 m = (f32)byte_of(bytes, 2u) * s.z + (f32)byte_of(bytes, 3u) * s.w;
        u32 dm = r == 0u ? d.x : d.y;
        acc[r] += h2_low(dm) * e - h2_high(dm) * m;
#endif
    }
}
/* acc[j][r] += of outputs g + 8 r of strip j, of n strips over the same inputs; x: the block of inputs. Of a factor's columns g a thread
 * has something in, sub-block g, only where those are its own inputs (g / 2 == t); nibbles of either half have sums of their own, of
 * which the columns that belong to them are used. */
FN void multiply(const u8 *const *unit, u32 n, const u8 *x, f32 (*acc)[2]) {
    u32 lane = LOCAL_X % 32u, warp = LOCAL_X / 32u;
    bool mine = lane >> 3 == (lane & 3u);
    const u8 *strip[2] = {unit[0] + warp * STRIP_BYTES, unit[1] + warp * STRIP_BYTES};
    uint4 q[2][4];
    i32 sum[2][SETS][2][2][4]; /* set, half, high or low part */
#ifdef WTYPE_Q6_K
    uint4 upper[2][2];
#endif
#pragma unroll
    for (u32 j = 0; j < n; j++) {
#pragma unroll
        for (u32 i = 0; i < 4u; i++) q[j][i] = *(const uint4 *)(strip[j] + 512u * i + 16u * lane);
#ifdef WTYPE_Q6_K
        upper[j][0] = *(const uint4 *)(strip[j] + STRIP_HIGH + 16u * lane);
        upper[j][1] = *(const uint4 *)(strip[j] + STRIP_HIGH + 512u + 16u * lane);
#endif
#pragma unroll
        for (u32 i = 0; i < 16u * SETS; i++) sum[j][i >> 4][i >> 3 & 1u][i >> 2 & 1u][i & 3u] = 0;
    }
#pragma unroll
    for (u32 m = 0; m < 2u; m++) {
        uint4 b[2] = {make_uint4(0u, 0u, 0u, 0u), make_uint4(0u, 0u, 0u, 0u)}; /* high and low part: the words of two products */
        if (mine) b[0] = *(const uint4 *)(x + 8u * (lane & ~3u) + 16u * m), b[1] = *(const uint4 *)(x + 256u + 8u * (lane & ~3u) + 16u * m);
#pragma unroll
        for (u32 h = 0; h < 2u; h++) {
            u32 p = 2u * m + h;
#pragma unroll
            for (u32 j = 0; j < n; j++) {
                u32 first[4], second[4];
#pragma unroll
                for (u32 i = 0; i < 4u; i++) { /* output g + 8 (i & 1), word 2 p + (i >> 1) */
                    u32 v = word_of(q[j], 8u * (i & 1u) + 2u * p + (i >> 1));
#ifdef WTYPE_Q6_K
                    u32 u = word_of(upper[j], 4u * (i & 1u) + p), at = 8u * (i >> 1);
                    first[i] = six(((v << 2) & 0x3C3C3C3Cu) ^ 0x80808080u, u, at);
                    second[i] = six(((v >> 2) & 0x3C3C3C3Cu) ^ 0x80808080u, u, at + 4u);
#else
                    first[i] = v & 0x0F0F0F0Fu;
                    second[i] = v & 0xF0F0F0F0u; /* 16 q */
#endif
                }
#pragma unroll
                for (u32 part = 0; part < 2u; part++) {
                    u32 set = SETS > 1u ? p >> 1 : 0u;
                    mma_u8(sum[j][set][0][part], first, word_of(&b[part], 2u * h), word_of(&b[part], 2u * h + 1u));
                    mma_u8(sum[j][set][1][part], second, word_of(&b[part], 2u * h), word_of(&b[part], 2u * h + 1u));
                }
            }
        }
    }
    float4 s = *(const float4 *)(x + 512u + 16u * (lane & 3u));
#pragma unroll
    for (u32 j = 0; j < n; j++) weigh(strip[j], sum[j], s, acc[j]);
}
#define ACC 2u
FN void leave(f32 *sums, f32 *acc) {
    u32 lane = LOCAL_X % 32u;
#pragma unroll
    for (u32 r = 0; r < 2u; r++) {
        acc[r] += lane_xor(acc[r], 1);
        acc[r] += lane_xor(acc[r], 2);
        if ((lane & 3u) == 0u) sums[(lane >> 2) + 8u * r] = acc[r];
    }
}
#endif

/* --- results --- */

#if defined(HAS_GLU) || defined(HAS_CHAIN)
#ifdef ACT_GELU_TANH
FN f32 activate(f32 x) { return 0.5f * x * (1.0f + TANH(0.7978845608028654f * x * (1.0f + 0.044715f * x * x))); }
#else
FN f32 activate(f32 x) { return __fdividef(x, 1.0f + __expf(-x)); }
#endif
#endif
FN f32 total(const f32 *sums, u32 slot, u32 o) {
    f32 v = 0.0f;
#pragma unroll
    for (u32 w = 0; w < WARPS; w++) v += sums[(slot * WARPS + w) * RG + o];
    return v;
}
#endif
