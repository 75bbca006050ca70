/* moe_router - one row on NVIDIA GPUs of sm_90 and up: normed (norm.k.c), made ready for products with rearranged weights
 * (prepare.k.c) and multiplied by f32 weights (linear.k.c), nothing of that product rounded: the logits of a router.
 *
 * A warp makes one output and has asked for its weights before the launch before is done. Every group of threads norms the row;
 * h and, if `ready` is there, the blocks made ready are spread over the groups. in % 256 == 0; shared memory holds the row.
 * grid: (out / warps). Numerics: f32, order fixed by GROUP, bitwise repeatable. */
#include "dialect.h"
#include "args/args.h"
#include "cuda/moe_math.h"

#define WARPS (GROUP / 32u)
#define PARTS 16u /* float4 of a row of weights that a lane holds at a time */
#define SPAN  (32u * 4u * PARTS)
#define EARLY 2u /* blocks whose norm weights are fetched early */
extern __shared__ __align__(128) u8 shared[];

FN void take_row(float4 *v, const f32 *row, u32 at, u32 in) {
#pragma unroll
    for (u32 i = 0; i < PARTS; i++) {
        u32 c = at + 128u * i + 4u * (LOCAL_X % 32u);
        v[i] = c < in ? *(const float4 *)(row + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}
FN void store8(f32 *p, const f32 *v) {
    *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]);
    *(float4 *)(p + 4) = make_float4(v[4], v[5], v[6], v[7]);
}

KERNEL(moe_router)(const f32 *x, const f32 *__restrict__ norm, const f32 *__restrict__ w, const f32 *__restrict__ bias, f32 *h,
                   u8 *ready, f32 *logits, u32 *witness, const struct pl_args_stream a) {
    __shared__ f32 scratch[WARPS];
    f32 *row = (f32 *)shared;
    u32 lane = LOCAL_X % 32u, warp = LOCAL_X / 32u, blocks = a.in / 256u, o = GROUP_X * WARPS + warp;
    const f32 *weights = w + (u64)PL_MIN(o, a.out0 - 1u) * a.in;
    float4 v[PARTS];
    f32 early[EARLY][8], sum = 0.0f;
    take_row(v, weights, 0u, a.in);
#pragma unroll
    for (u32 i = 0; i < EARLY; i++)
        if (warp + i * WARPS < blocks) load8(norm + 256u * (warp + i * WARPS) + 8u * lane, early[i]);
    count_launch(witness);
    for (u32 b = warp; b < blocks; b += WARPS) {
        f32 e[8];
        load8(x + 256u * b + 8u * lane, e);
#pragma unroll
        for (u32 i = 0; i < 8u; i++) sum = FMA(e[i], e[i], sum);
        store8(row + 256u * b + 8u * lane, e);
    }
#pragma unroll
    for (u32 m = 16u; m > 0u; m >>= 1) sum += lane_xor(sum, m);
    if (lane == 0u) scratch[warp] = sum;
    BARRIER();
    sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) sum += scratch[i];
    f32 inverse = 1.0f / SQRT(sum / (f32)a.in + a.value);
    for (u32 i = 0, b = warp; b < blocks; b += WARPS, i++) {
        f32 e[8], scale[8];
        load8(row + 256u * b + 8u * lane, e); /* this thread's own */
        if (i < EARLY) {
#pragma unroll
            for (u32 k = 0; k < 8u; k++) scale[k] = i == 0u ? early[0][k] : early[EARLY - 1u][k];
        } else {
            load8(norm + 256u * b + 8u * lane, scale);
        }
#pragma unroll
        for (u32 k = 0; k < 8u; k++) e[k] = e[k] * inverse * (a.offset + scale[k]);
        store8(row + 256u * b + 8u * lane, e);
        if (b % a.grid != GROUP_X) continue; /* the same for the warp */
        store8(h + 256u * b + 8u * lane, e);
        if (ready == nullptr) continue;
        u8 *piece = ready + (u64)b * PIECE_BYTES;
        f32 top = ready_of(e, piece, 32u, (u32 *)(piece + PIECE_SUMS));
        if (lane == 0u) *(f32 *)(piece + PIECE_SCALE) = top;
    }
    BARRIER();
    f32 total = 0.0f;
    for (u32 k = 0; k < a.in; k += SPAN) {
        if (k > 0u) take_row(v, weights, k, a.in);
#pragma unroll
        for (u32 i = 0; i < PARTS; i++) {
            u32 c = k + 128u * i + 4u * lane;
            if (c >= a.in) continue;
            float4 p = *(const float4 *)(row + c);
            total = FMA(v[i].x, p.x, FMA(v[i].y, p.y, FMA(v[i].z, p.z, FMA(v[i].w, p.w, total))));
        }
    }
#pragma unroll
    for (u32 m = 16u; m > 0u; m >>= 1) total += lane_xor(total, m);
    if (lane != 0u || o >= a.out0) return;
    if ((a.flags & PL_LINEAR_BIAS) != 0u) total += bias[o];
    logits[o] = total;
}
