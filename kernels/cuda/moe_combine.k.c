/* moe_combine - the weighted sums of what the experts made in bf16 (moe_tall.k.c), on NVIDIA GPUs. Contract: moe_combine of
 * kernels/moe_route.k.c. Eight columns a thread, cols % 8 == 0. Numerics: f32, best expert first, bitwise repeatable. */
#include "dialect.h"
#include "args/args.h"

/* grid: (cols / (8 GROUP), rows) */
KERNEL(moe_combine)(const u16 *made, const u32 *order, const f32 *weights, f32 *y, u32 *witness, const struct pl_args_rows a,
                    const u32 stride) {
    u32 col = 8u * (GROUP_X * GROUP + LOCAL_X);
    count_launch(witness);
    if (col >= a.cols) return;
    f32 *to = y + (u64)GROUP_Y * a.cols + col, sum[8], weight[USED];
    uint4 v[USED];
#pragma unroll
    for (u32 k = 0; k < USED; k++) {
        u32 slot = GROUP_Y * USED + k;
        weight[k] = weights[slot];
        v[k] = __ldcs((const uint4 *)(made + (u64)order[PL_ORDER_PLACE(stride) + slot] * a.cols + col));
    }
    *(float4 *)sum = *(const float4 *)to;
    *(float4 *)(sum + 4) = *(const float4 *)(to + 4);
#pragma unroll
    for (u32 k = 0; k < USED; k++) {
        u32 u[4] = {v[k].x, v[k].y, v[k].z, v[k].w};
#pragma unroll
        for (u32 i = 0; i < 4u; i++) {
            sum[2u * i] = FMA(weight[k], bits_f32(u[i] << 16), sum[2u * i]);
            sum[2u * i + 1u] = FMA(weight[k], bits_f32(u[i] & 0xFFFF0000u), sum[2u * i + 1u]);
        }
    }
    *(float4 *)to = *(const float4 *)sum;
    *(float4 *)(to + 4) = *(const float4 *)(sum + 4);
}
