/* pack - what stands around dense products in bf16 on NVIDIA GPUs: activations from f32 and back, weights from every format.
 *
 * pk_pack: y[i] = bf16(x[i]), eight elements a thread; n % 8 == 0. PACK_WIDEN: f32 from bf16, in place. PACK_GLU: y = act(x) * up, all in bf16;
 * y may be x. IN_ORDER: the elements of each 256 in the order of moe_order.h; n % 256 == 0. PACK_NORM: a group a row of f32, y = bf16(norm(x)), contract of norm.k.c but for that; cols % 8 == 0. pk_unpack: rows of packed weights to bf16 [rows, in];
 * in % 32 == 0. Rounding is to nearest even; NaN stays NaN. */
#include "dialect.h"
#include "args/args.h"

FN u32 two_bf16(f32 lo, f32 hi) {
    u32 v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
    return v;
}

FN f32 bf16_low(u32 v) { return bits_f32(v << 16); }
FN f32 bf16_high(u32 v) { return bits_f32(v & 0xFFFF0000u); }

#if defined(PACK_WIDEN)
/* Elements [first, end): 2 first >= end, so that nobody writes what others read, or one group. */
KERNEL(pack)(u32 *x, u32 *witness, const u64 first, const u64 end) {
    count_launch(witness);
    u64 i = first / 8u + (u64)GROUP_X * GROUP + LOCAL_X;
    uint4 a = make_uint4(0u, 0u, 0u, 0u);
    if (i < end / 8u) a = ((const uint4 *)x)[i];
    BARRIER();
    if (i >= end / 8u) return;
    ((float4 *)x)[2u * i] = make_float4(bf16_low(a.x), bf16_high(a.x), bf16_low(a.y), bf16_high(a.y));
    ((float4 *)x)[2u * i + 1u] = make_float4(bf16_low(a.z), bf16_high(a.z), bf16_low(a.w), bf16_high(a.w));
}
#elif defined(PACK_GLU)
#ifdef ACT_GELU_TANH
FN f32 activate(f32 x) { return 0.5f * x * (1.0f + TANH(0.7978845608028654f * x * (1.0f + 0.044715f * x * x))); }
#else
FN f32 activate(f32 x) { return __fdividef(x, 1.0f + __expf(-x)); }
#endif
FN u32 gated(u32 gate, u32 up) {
    return two_bf16(activate(bf16_low(gate)) * bf16_low(up), activate(bf16_high(gate)) * bf16_high(up));
}
KERNEL(pack)(const u16 *x, const u16 *up, u16 *y, u32 *witness, const u64 n) {
    count_launch(witness);
    u64 i = ((u64)GROUP_X * GROUP + LOCAL_X) * 8u;
    if (i >= n) return;
    uint4 g = *(const uint4 *)(x + i), u = *(const uint4 *)(up + i);
    *(uint4 *)(y + i) = make_uint4(gated(g.x, u.x), gated(g.y, u.y), gated(g.z, u.z), gated(g.w, u.w));
}
#elif defined(PACK_NORM)
FN void load8(const f32 *p, f32 *v) {
    float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
KERNEL(pack)(const f32 *__restrict__ x, const f32 *__restrict__ w, u16 *__restrict__ y, u32 *witness, const struct pl_args_rows a) {
    __shared__ f32 scratch[GROUP];
    count_launch(witness);
    const f32 *from = x + (u64)GROUP_X * a.cols;
    f32 first[8], sum = 0.0f;
    for (u32 c = 8u * LOCAL_X; c < a.cols; c += 8u * GROUP) {
        f32 v[8];
        load8(from + c, v);
#pragma unroll
        for (u32 i = 0; i < 8u; i++) {
            sum = FMA(v[i], v[i], sum);
            if (c == 8u * LOCAL_X) first[i] = v[i];
        }
    }
    sum = group_sum(sum, scratch);
    f32 inverse = 1.0f / SQRT(sum / (f32)a.cols + a.value);
    for (u32 c = 8u * LOCAL_X; c < a.cols; c += 8u * GROUP) {
        f32 v[8], scale[8];
        if (c != 8u * LOCAL_X) load8(from + c, v);
        load8(w + c, scale);
#pragma unroll
        for (u32 i = 0; i < 8u; i++) v[i] = (c == 8u * LOCAL_X ? first[i] : v[i]) * inverse * (a.offset + scale[i]);
        *(uint4 *)(y + (u64)GROUP_X * a.cols + c) =
            make_uint4(two_bf16(v[0], v[1]), two_bf16(v[2], v[3]), two_bf16(v[4], v[5]), two_bf16(v[6], v[7]));
    }
}
#elif !defined(UNPACK)
#ifdef IN_ORDER
#include "cuda/moe_order.h"
#endif
KERNEL(pack)(const f32 *__restrict__ x, u16 *__restrict__ y, u32 *witness, const u64 n) {
    count_launch(witness);
    u64 i = ((u64)GROUP_X * GROUP + LOCAL_X) * 8u;
    if (i >= n) return;
#ifdef IN_ORDER
    f32 v[8];
    x += i - (i & 255u);
#pragma unroll
    for (u32 e = 0; e < 8u; e++) v[e] = x[input_at((u32)(i & 255u) + e)];
    float4 a = make_float4(v[0], v[1], v[2], v[3]), b = make_float4(v[4], v[5], v[6], v[7]);
#else
    float4 a = *(const float4 *)(x + i), b = *(const float4 *)(x + i + 4u);
#endif
    *(uint4 *)(y + i) = make_uint4(two_bf16(a.x, a.y), two_bf16(a.z, a.w), two_bf16(b.x, b.y), two_bf16(b.z, b.w));
}
#else
#ifdef STRIPS
#include "cuda/strips.h"
#else
#include "weights.h"
#endif
/* With CHOSEN the rows are those of experts, `out` each: experts that no row of this step takes are left out. */
#ifdef CHOSEN
#define CHOSEN_ARGS , const u32 *order, const u32 out, const u32 stride
#define IS_LEFT_OUT(row) (order[PL_ORDER_COUNT(stride) + (row) / out] == 0u)
#else
#define CHOSEN_ARGS
#define IS_LEFT_OUT(row) false
#endif
#ifndef STRIPS
FN void store16(u16 *y, const f32 *v) {
    *(uint4 *)y = make_uint4(two_bf16(v[0], v[1]), two_bf16(v[2], v[3]), two_bf16(v[4], v[5]), two_bf16(v[6], v[7]));
    *(uint4 *)(y + 8) = make_uint4(two_bf16(v[8], v[9]), two_bf16(v[10], v[11]), two_bf16(v[12], v[13]), two_bf16(v[14], v[15]));
}
#endif
#ifdef STRIPS
/* A thread makes 8 elements of a row: two words, one side of them. first % 16 == 0. */
KERNEL(unpack)(const u8 *__restrict__ data, const u8 *__restrict__ scales, const u8 *__restrict__ biases, u16 *__restrict__ y,
               u32 *witness, const struct pl_args_linear a, const u64 first CHOSEN_ARGS) {
    count_launch(witness);
    (void)scales;
    (void)biases;
    u64 unit = (u64)GROUP_X * GROUP + LOCAL_X, row = unit / (a.in / 8u);
    u32 k = (u32)(unit % (a.in / 8u)), t = (k >> 3) & 3u, side = (k >> 2) & 1u, words = k & 3u; /* words 2 words, + 1 */
    if (row >= a.rows || IS_LEFT_OUT(first + row)) return;
    u32 half = (u32)(row >> 3) & 1u, g = (u32)row & 7u, lane = 4u * g + t;
    const u8 *strip = data + ((first + row) / 16u * (a.in / 256u) + (k >> 5)) * STRIP_BYTES;
    uint2 q = *(const uint2 *)(strip + 1024u * half + 512u * (words >> 1) + 16u * lane + 8u * (words & 1u));
    u32 scale = *(const u32 *)(strip + STRIP_SCALE + 8u * lane + 4u * half);
    u32 low = (q.x >> (4u * side)) & 0x0F0F0F0Fu, high = (q.y >> (4u * side)) & 0x0F0F0F0Fu;
    f32 v[8];
#ifdef WTYPE_Q6_K
    u32 more = *(const u32 *)(strip + STRIP_HIGH + 512u * half + 16u * lane + 4u * words);
    f32 d = h2_low((u32) * (const u16 *)(strip + STRIP_D + 4u * g + 2u * half));
    f32 s = d * (f32)(i8)((scale >> (16u * side + 8u * (words >> 1))) & 255u);
#pragma unroll
    for (u32 i = 0; i < 4u; i++) {
        u32 bit = 4u * side + 2u * (i & 1u) + 16u * (i >> 1);
        v[i] = s * (f32)((i32)(((low >> (8u * i)) & 15u) | (((more >> bit) & 3u) << 4)) - 32);
        v[4u + i] = s * (f32)((i32)(((high >> (8u * i)) & 15u) | (((more >> (bit + 8u)) & 3u) << 4)) - 32);
    }
#else
    u32 dm = *(const u32 *)(strip + STRIP_D + 8u * g + 4u * half);
    f32 s = h2_low(dm) * (f32)((scale >> (8u * side)) & 255u), m = h2_high(dm) * (f32)((scale >> (16u + 8u * side)) & 255u);
#pragma unroll
    for (u32 i = 0; i < 4u; i++) {
        v[i] = s * (f32)((low >> (8u * i)) & 15u) - m;
        v[4u + i] = s * (f32)((high >> (8u * i)) & 15u) - m;
    }
#endif
    *(uint4 *)(y + unit * 8u) = make_uint4(two_bf16(v[0], v[1]), two_bf16(v[2], v[3]), two_bf16(v[4], v[5]), two_bf16(v[6], v[7]));
}
#else
/* A thread makes 32 elements. a.rows rows of data from its start. */
KERNEL(unpack)(const u8 *__restrict__ data, const u8 *__restrict__ scales, const u8 *__restrict__ biases, u16 *__restrict__ y,
               u32 *witness, const struct pl_args_linear a, const u64 first CHOSEN_ARGS) {
    count_launch(witness);
    u64 unit = (u64)GROUP_X * GROUP + LOCAL_X, row = unit / (a.in / 32u);
    u32 k = (u32)(unit % (a.in / 32u));
    if (row >= a.rows || IS_LEFT_OUT(first + row)) return;
    u16 *to = y + row * a.in;
    f32 v[32];
#ifdef WTYPE_Q4_K
    /* Eight neighbours share a block of 256: 16 bytes each, half of two sub-blocks. */
    const u8 *b = data + (first + row) * a.row_bytes + 144u * (u64)(k >> 3);
    u32 c = k & 7u, pair = c >> 1, half = c & 1u, s0, m0, s1, m1;
    scale_min(b + 4, 2u * pair, &s0, &m0);
    scale_min(b + 4, 2u * pair + 1u, &s1, &m1);
    uint4 q = *(const uint4 *)(b + 16u + 16u * c);
    u32 u[4] = {q.x, q.y, q.z, q.w};
    f32 d = f16_load((const u16 *)b), dm = f16_load((const u16 *)b + 1);
    f32 d0 = d * (f32)s0, d1 = d * (f32)s1, n0 = dm * (f32)m0, n1 = dm * (f32)m1;
#pragma unroll
    for (u32 i = 0; i < 16u; i++) {
        u32 byte = u[i / 4u] >> (8u * (i % 4u));
        v[i] = d0 * (f32)(byte & 15u) - n0;
        v[16u + i] = d1 * (f32)((byte >> 4) & 15u) - n1;
    }
    to += 256u * (k >> 3) + 64u * pair + 16u * half;
    store16(to, v);
    store16(to + 32, v + 16);
#else
    struct weight w = {data, scales, biases, a.row_bytes, a.in};
    dequant32(&w, first + row, k, 32u, v);
    store16(to + 32u * k, v);
    store16(to + 32u * k + 16u, v + 16);
#endif
}
#endif
#endif
