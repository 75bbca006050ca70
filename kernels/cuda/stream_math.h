/* stream_math - how one row meets weights that come through shared memory (stream.k.c, chain.k.c): what a unit is, the input as
 * the products want it, and the products of a warp.
 *
 * A unit is RG outputs x 2048 inputs (plain weights: CHUNK, no more), a warp of eight takes 256 of them. There are TEAMS times eight
 * warps, 1 where nothing is said.
 * Strips (strips.h): u8 x s8 (Q6_K: s8 x s8) on the matrix units. The input becomes integers of 15 bits per 32 (top / 16256),
 * high * 128 + low. A product takes of each thread's two sub-blocks the first or the second; of its 8 columns, 2 t has the high
 * and 2 t + 1 the low part of what thread t's sub-block meets, with zeros for all others, so that the sums of a sub-block end in
 * the thread that holds its scale. Integers are exact; rounded is the input alone. One form of the input serves both types;
 * WTYPE_STRIPS instead of a type: kernels that meet both, by multiply_strip.
 * Other quantised weights, as the file has them: the same integers, four at a time.
 * Plain weights: f32 sums of products with the f32 input. */
#ifndef PL_STREAM_MATH_H
#define PL_STREAM_MATH_H

#define BULK
#include "cuda/strips.h"

#ifndef TEAMS
#define TEAMS 1u
#endif
#define WARPS   8u             /* of a team */
#define MEMBERS (256u * TEAMS) /* threads that multiply */
#if defined(WTYPE_Q6_K) || TEAMS > 1
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
#ifdef WTYPE_STRIPS
#define UNIT_BYTES (8u * 3360u) /* the larger of both */
#else
#define UNIT_BYTES (8u * STRIP_BYTES)
#endif
#endif
/* Of 256 inputs: their parts, then per 64 the scale of either sub-block and their scaled sums. Parts: the high ones, then the low
 * ones; for strips [first or second 16 of a half][half][t][high, low] of 16 bytes. */
#define X_BLOCK    576u
#define X_BYTES    (8u * X_BLOCK)
#endif
extern __shared__ __align__(128) u8 shared[];
#define SUMS_BYTES (HOLD * WARPS * RG * 4u)

#ifndef PL_EMULATED
FN void members_meet(void) { asm volatile("bar.sync 1, %0;" ::"n"(MEMBERS) : "memory"); }
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
#ifndef PL_EMULATED
FN f32 larger(f32 a, f32 b) { /* NaN is larger than all */
    f32 v;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
    return v;
}
FN f32 reciprocal(f32 x) {
    f32 v;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
    return v;
}
#endif
/* Four numbers q + 64 in the lowest 16 bits of u: their high parts (q + 64) >> 7 and what those leave, as bytes. */
FN void parts_of(const u32 *u, u32 *high, u32 *low) {
    u32 first = __byte_perm(u[0], u[1], 0x5410u), second = __byte_perm(u[2], u[3], 0x5410u);
    u32 rest = (__byte_perm(first, second, 0x6420u) & 0x7F7F7F7Fu) ^ 0x40404040u;
    *high = __byte_perm(first >> 7, second >> 7, 0x6420u);
    *low = rest | ((rest & 0x40404040u) << 1);
}
/* Inputs [k, k + 8) of this thread; four neighbouring threads hold 32. */
FN void put(u8 *to, u32 k, const f32 *v) {
#if defined(WTYPE_BF16) || defined(WTYPE_F16)
    f32 *at = (f32 *)to + k / 256u * 256u + 4u * (k % 256u / 8u);
    *(float4 *)at = make_float4(v[0], v[1], v[2], v[3]);
    *(float4 *)(at + 128) = make_float4(v[4], v[5], v[6], v[7]);
#else
    u8 *block = to + k / 256u * X_BLOCK;
    u32 e = k % 256u, sub = e / 32u, u[8], total = 0u;
    f32 top = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 8u; i++) top = larger(top, FABS(v[i]));
    top = larger(top, lane_xor(top, 1));
    top = larger(top, lane_xor(top, 2));
    if (f32_bits(top) < 0x07000000u) top = 0.0f; /* of what is larger the reciprocal is a number, and a 256th no denormal one */
    f32 inverse = top > 0.0f ? reciprocal(top * (1.0f / 256.0f)) * 63.5f : 0.0f;
#pragma unroll
    for (u32 i = 0; i < 8u; i++) { /* rounded to nearest by what the sum has no room for */
        u[i] = f32_bits(FMA(v[i], inverse, 12582976.0f));
        total += u[i];
    }
    total -= 8u * 0x4B400040u;
    total += lane_xor(total, 1);
    total += lane_xor(total, 2);
#ifdef BLOCK_BYTES
    u8 *high = block + e, *low = high + 256u;
#else
    u8 *high = block + 256u * (e >> 4 & 1u) + 128u * (e >> 5 & 1u) + 32u * (e >> 6) + (e & 8u), *low = high + 16u;
#endif
    uint2 h, l;
    parts_of(u, &h.x, &l.x);
    parts_of(u + 4, &h.y, &l.y);
    *(uint2 *)high = h;
    *(uint2 *)low = l;
    if (e % 32u == 0u) {
        f32 d = f32_bits(top) >= 0x7F800000u ? bits_f32(0x7FC00000u) : top * (1.0f / 16256.0f);
        f32 *scales = (f32 *)(block + 512u + 16u * (sub >> 1));
        scales[sub & 1u] = d;
        scales[2u + (sub & 1u)] = d * (f32)(i32)total;
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
/* c += a b, or without what was in c: 16 outputs x 32 inputs, signed (Q6_K) or unsigned, by 32 signed inputs x 8 columns. */
#define MMA_8(type, c, z)                                                                                            \
    asm("mma.sync.aligned.m16n8k32.row.col.s32." type ".s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};" \
        : "=r"((c)[0]), "=r"((c)[1]), "=r"((c)[2]), "=r"((c)[3])                                                     \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"((z)[0]), "r"((z)[1]), "r"((z)[2]), "r"((z)[3]))
FN void mma_8(bool six, bool first, i32 *c, const u32 *a, u32 b0, u32 b1) {
    i32 z[4] = {first ? 0 : c[0], first ? 0 : c[1], first ? 0 : c[2], first ? 0 : c[3]};
    if (six) {
        MMA_8("s8", c, z);
    } else {
        MMA_8("u8", c, z);
    }
}
#endif
FN u32 word_of(const uint4 *q, u32 i) {
    const uint4 *at = q + (i >> 2);
    return (i & 3u) == 0u ? at->x : (i & 3u) == 1u ? at->y : (i & 3u) == 2u ? at->z : at->w;
}
FN u32 byte_of(u32 v, u32 i) { return (v >> (8u * i)) & 255u; }
/* 4 (q - 32) of four inputs of Q6_K: `four` their lower bits << 2 with the sign turned, u the word of upper bits, at: their first. */
FN u32 six_of(u32 four, u32 u, u32 at) {
    u32 even = at > 6u ? u >> (at - 6u) : u << (6u - at), odd = at + 2u > 14u ? u >> (at + 2u - 14u) : u << (14u - at - 2u);
    return four ^ (even & 0x00C000C0u) ^ (odd & 0xC000C000u);
}
/* acc[r] += of outputs g + 8 r of one strip, its sums known (Q6_K: of the first and the second 16 inputs of a half); s: scales and
 * sums of this thread's 64 inputs, the scales divided by what the integers have been multiplied with. */
FN void weigh(bool six, const u8 *strip, i32 (*sum)[2][4], float4 s, f32 *acc) {
    u32 lane = LOCAL_X % 32u;
    uint2 scale = *(const uint2 *)(strip + strip_scale(six) + 8u * lane), d;
    if (six) {
        d.x = *(const u32 *)(strip + strip_d(six) + 4u * (lane >> 2));
    } else {
        d = *(const uint2 *)(strip + strip_d(six) + 8u * (lane >> 2));
    }
#pragma unroll
    for (u32 r = 0; r < 2u; r++) {
        u32 bytes = r == 0u ? scale.x : scale.y;
        if (six) {
            f32 v[4];
#pragma unroll
            for (u32 i = 0; i < 4u; i++) { /* sub-block: i & 1 first or second 16, i >> 1 half */
                i32 n = sum[i & 1u][i >> 1][2u * r] * 128 + sum[i & 1u][i >> 1][2u * r + 1u];
                v[i] = (f32)(i8)byte_of(bytes, i) * (f32)n;
            }
            acc[r] = FMA(r == 0u ? h2_low(d.x) : h2_high(d.x), s.x * (v[0] + v[1]) + s.y * (v[2] + v[3]), acc[r]);
        } else {
            i32 n0 = sum[0][0][2u * r] * 128 + sum[0][0][2u * r + 1u], n1 = sum[0][1][2u * r] * 128 + sum[0][1][2u * r + 1u];
            f32 e = (f32)byte_of(bytes, 0u) * (s.x * (f32)n0) + (f32)byte_of(bytes, 1u) * (s.y * (f32)n1);
            f32 m = (f32)byte_of(bytes, 2u) * s.z + (f32)byte_of(bytes, 3u) * s.w;
            u32 dm = r == 0u ? d.x : d.y;
            acc[r] += h2_low(dm) * e - h2_high(dm) * m;
        }
    }
}
/* What a thread has of a block of inputs: of [first or second 16 of a half][half] the words of two products, scales and sums. */
struct inputs_of {
    uint4 b[2][2];
    float4 s;
};
FN struct inputs_of open_inputs(const u8 *x) {
    u32 lane = LOCAL_X % 32u;
    const uint4 *from = (const uint4 *)(x + 32u * (lane & 3u) + 4u * (lane & 4u));
    const uint4 none = make_uint4(0u, 0u, 0u, 0u);
    struct inputs_of in = {{{none, none}, {none, none}}, *(const float4 *)(x + 512u + 16u * (lane & 3u))};
    if (lane >> 3 == (lane & 3u)) in.b[0][0] = from[0], in.b[0][1] = from[8], in.b[1][0] = from[16], in.b[1][1] = from[24];
    return in;
}
/* acc[r] += of outputs g + 8 r of one strip (six: Q6_K, else Q4_K; a constant where this is called). */
FN void multiply_strip(bool six, const u8 *strip, const struct inputs_of *in, f32 *acc) {
    u32 lane = LOCAL_X % 32u;
    uint4 q[4], upper[2];
    i32 sum[2][2][4]; /* Q6_K: first or second 16; half, column */
#pragma unroll
    for (u32 i = 0; i < 4u; i++) q[i] = *(const uint4 *)(strip + 512u * i + 16u * lane);
#pragma unroll
    for (u32 i = 0; i < 2u && six; i++) upper[i] = *(const uint4 *)(strip + strip_high() + 512u * i + 16u * lane);
#pragma unroll
    for (u32 p = 0; p < 4u; p++) {
        u32 m = p >> 1, h = p & 1u, set = six ? m : 0u, first[4], second[4];
        bool start = h == 0u && (six || m == 0u);
#pragma unroll
        for (u32 i = 0; i < 4u; i++) { /* output g + 8 (i & 1), word 2 p + (i >> 1) */
            u32 v = word_of(q, 8u * (i & 1u) + 2u * p + (i >> 1));
            if (six) {
                u32 u = word_of(upper, 4u * (i & 1u) + p), at = 8u * (i >> 1);
                first[i] = six_of(((v << 2) & 0x3C3C3C3Cu) ^ 0x80808080u, u, at);
                second[i] = six_of(((v >> 2) & 0x3C3C3C3Cu) ^ 0x80808080u, u, at + 4u);
            } else {
                first[i] = v & 0x0F0F0F0Fu;
                second[i] = v & 0xF0F0F0F0u; /* 16 q */
            }
        }
        mma_8(six, start, sum[set][0], first, word_of(&in->b[m][0], 2u * h), word_of(&in->b[m][0], 2u * h + 1u));
        mma_8(six, start, sum[set][1], second, word_of(&in->b[m][1], 2u * h), word_of(&in->b[m][1], 2u * h + 1u));
    }
    float4 s = in->s;
    if (six) s.x *= 0.25f;
    s.y *= six ? 0.25f : 0.0625f;
    weigh(six, strip, sum, s, acc);
}
/* The same of strip j of this warp in n units of one type. */
FN void multiply_strips(bool six, const u8 *const *unit, u32 n, const u8 *x, f32 (*acc)[2]) {
    struct inputs_of in = open_inputs(x);
#pragma unroll
    for (u32 j = 0; j < n; j++) multiply_strip(six, unit[j] + LOCAL_X / 32u % WARPS * strip_bytes(six), &in, acc[j]);
}
#ifdef WTYPE_Q6_K
FN void multiply(const u8 *const *unit, u32 n, const u8 *x, f32 (*acc)[2]) { multiply_strips(true, unit, n, x, acc); }
#elif !defined(WTYPE_STRIPS)
FN void multiply(const u8 *const *unit, u32 n, const u8 *x, f32 (*acc)[2]) { multiply_strips(false, unit, n, x, acc); }
#endif
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
