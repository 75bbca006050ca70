/* prepare - inputs of mma.k.c made ready (strips.h): on their own (PREPARE_COPY), while they are normed (PREPARE_NORM, with
 * HAS_ADD after adding), while gate and up become one (PREPARE_GLU), or while the parts of split attention are joined
 * (PREPARE_MERGE). Contracts: norm.k.c, elementwise.k.c, cuda/attention_split.k.c; the f32 result is written too, in case
 * somebody else reads it.
 *
 * A warp owns 256 columns of a row, a thread eight of them. cols % 256 == 0. Numerics: fixed order, bitwise repeatable. */
#include "dialect.h"
#include "args/args.h"
#include "cuda/strips.h"

#define WARPS (GROUP / 32u)

FN void load8(const f32 *p, f32 *v) {
    float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
FN void store8(f32 *p, const f32 *v) {
    *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]);
    *(float4 *)(p + 4) = make_float4(v[4], v[5], v[6], v[7]);
}

/* Eight values a thread, columns 256 block + 8 lane and up. */
FN void put(u8 *out, u32 pieces, u32 row, u32 block, const f32 *v) {
    u32 lane = LOCAL_X % 32u, t = lane >> 3, m = lane & 7u, g = row % 8u;
    u8 *piece = out + ((u64)block * pieces + row / 8u) * PIECE_BYTES;
#ifdef PLAIN /* bf16, for weights as the file has them */
    u8 *place = piece + 512u * (lane >> 2) + 16u * g + 4u * (lane & 3u);
    (void)t;
    (void)m;
#pragma unroll
    for (u32 i = 0; i < 4u; i++) *(u32 *)(place + 128u * i) = bf16_bits(v[2u * i]) | (bf16_bits(v[2u * i + 1u]) << 16);
#else
    f32 top = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 8u; i++) top = FMAX(top, FABS(v[i]));
#pragma unroll
    for (u32 x = 16u; x > 0u; x >>= 1) top = FMAX(top, lane_xor(top, x));
    if (top < 1.0e-37f) top = 0.0f; /* its inverse would not be a number */
    f32 inverse = top > 0.0f ? 1.0f / top : 0.0f, sum = 0.0f;
    u32 h[4];
#pragma unroll
    for (u32 i = 0; i < 4u; i++) { /* elements 0,2 then 1,3 of each four */
        u32 at = 4u * (i >> 1) + (i & 1u);
        h[i] = h2_make(v[at] * inverse, v[at + 2u] * inverse);
        sum += h2_low(h[i]) + h2_high(h[i]);
    }
#ifdef WIDE
    u8 *to = piece + 512u * (2u * (m & 3u)) + 256u * (m >> 2) + 16u * g + 4u * t;
    *(u32 *)to = h[0];
    *(u32 *)(to + 128u) = h[1];
    *(u32 *)(to + 512u) = h[2];
    *(u32 *)(to + 640u) = h[3];
#else
    u8 *to = piece + 512u * (2u * (m & 3u)) + 16u * (4u * g + t) + 8u * (m >> 2);
    *(uint2 *)to = make_uint2(h[0], h[1]);
    *(uint2 *)(to + 512u) = make_uint2(h[2], h[3]);
#endif
    sum += lane_xor(sum, 1);
    sum += lane_xor(sum, 2);
    f32 other = lane_xor(sum, 4);
    if (m == 0u) *(u32 *)(piece + PIECE_SUMS + 4u * (4u * g + t)) = h2_make(sum, other);
    if (lane == 0u) *(f32 *)(piece + PIECE_SCALE + 4u * g) = top;
#endif
}

#ifdef PREPARE_NORM
/* grid: (rows) */
KERNEL(prepare)(f32 *x, const f32 *add, const f32 *__restrict__ w, f32 *y, u8 *out, u32 *witness, const struct pl_args_prepare a) {
    __shared__ f32 scratch[GROUP];
    u32 warp = LOCAL_X / 32u, lane = LOCAL_X % 32u, row = GROUP_X, blocks = a.cols / 256u;
    count_launch(witness);
    f32 *from = x + (u64)row * a.cols + 8u * lane;
    f32 first[8], sum = 0.0f;
    for (u32 b = warp; b < blocks; b += WARPS) {
        f32 v[8];
        load8(from + 256u * b, v);
#ifdef HAS_ADD
        f32 more[8];
        load8(add + (u64)row * a.cols + 256u * b + 8u * lane, more);
#pragma unroll
        for (u32 i = 0; i < 8u; i++) v[i] += more[i];
        store8(from + 256u * b, v);
#else
        (void)add;
#endif
#pragma unroll
        for (u32 i = 0; i < 8u; i++) {
            sum = FMA(v[i], v[i], sum);
            if (b == warp) first[i] = v[i];
        }
    }
    sum = group_sum(sum, scratch);
    f32 inverse = 1.0f / SQRT(sum / (f32)a.cols + a.value);
    for (u32 b = warp; b < blocks; b += WARPS) {
        f32 v[8], scale[8];
        if (b == warp) {
#pragma unroll
            for (u32 i = 0; i < 8u; i++) v[i] = first[i];
        } else {
            load8(from + 256u * b, v); /* y may be x: read by this same thread before it is written */
        }
        load8(w + 256u * b + 8u * lane, scale);
#pragma unroll
        for (u32 i = 0; i < 8u; i++) v[i] = v[i] * inverse * (a.offset + scale[i]);
        store8(y + (u64)row * a.cols + 256u * b + 8u * lane, v);
        put(out, a.pieces, row, b, v);
    }
}
#else
#ifdef ACT_GELU_TANH
FN f32 activate(f32 x) { return 0.5f * x * (1.0f + TANH(0.7978845608028654f * x * (1.0f + 0.044715f * x * x))); }
#else
FN f32 activate(f32 x) { return __fdividef(x, 1.0f + __expf(-x)); }
#endif
/* grid: (blocks of 256 / WARPS, rows) */
KERNEL(prepare)(const f32 *x, const f32 *up, const f32 *w, f32 *y, u8 *out, u32 *witness, const struct pl_args_prepare a) {
    count_launch(witness);
    u32 block = GROUP_X * WARPS + LOCAL_X / 32u, row = GROUP_Y;
    (void)w;
    if (block >= a.cols / 256u) return;
    u64 at = (u64)row * a.cols + 256u * block + 8u * (LOCAL_X % 32u);
    f32 v[8];
#ifdef PREPARE_MERGE /* x: parts [row, head, split, head_dim], up: their weights as log2 [row, head, split] */
    u64 head = at / a.head_dim;
    const f32 *lse = up + head * a.splits, *part = x + head * a.splits * a.head_dim + at % a.head_dim;
    f32 top = NEG_INF, total = 0.0f;
    for (u32 s = 0; s < a.splits; s++) top = FMAX(top, lse[s]);
#pragma unroll
    for (u32 i = 0; i < 8u; i++) v[i] = 0.0f;
#pragma unroll 4
    for (u32 s = 0; s < a.splits; s++) { /* empty parts are zeros with weight 0 */
        f32 p[8], e = lse[s] == NEG_INF ? 0.0f : EXP2(lse[s] - top);
        load8(part + (u64)s * a.head_dim, p);
        total += e;
#pragma unroll
        for (u32 i = 0; i < 8u; i++) v[i] = FMA(e, p[i], v[i]);
    }
    f32 inverse = total > 0.0f ? 1.0f / total : 0.0f;
#pragma unroll
    for (u32 i = 0; i < 8u; i++) v[i] *= inverse;
    store8(y + at, v);
#else
    load8(x + at, v);
#endif
#ifdef PREPARE_GLU
    f32 u[8];
    load8(up + at, u);
#pragma unroll
    for (u32 i = 0; i < 8u; i++) v[i] = activate(v[i]) * u[i];
    store8(y + at, v);
#elif !defined(PREPARE_MERGE)
    (void)up;
    (void)y;
#endif
    put(out, a.pieces, row, block, v);
}
#endif
