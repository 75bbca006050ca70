/* norm_rows - norm of many rows on NVIDIA GPUs: a row's values stay in registers between its sum and its result, PER times four a
 * thread. Contract and arguments: kernels/norm.k.c, without HAS_ADD. cols % 4 == 0, cols <= 4 PER GROUP. Numerics: f32, fixed order,
 * bitwise repeatable. */
#include "dialect.h"
#include "args/args.h"

/* grid: (rows) */
KERNEL(norm_rows)(const f32 *x, const f32 *add, const f32 *w, f32 *y, u32 *witness, const struct pl_args_rows a) {
    __shared__ f32 scratch[GROUP];
    count_launch(witness);
    (void)add;
    u64 base = (u64)GROUP_X * a.cols;
    float4 v[PER];
    f32 sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < PER; i++) {
        u32 c = 4u * (LOCAL_X + GROUP * i);
        v[i] = c < a.cols ? *(const float4 *)(x + base + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
#pragma unroll
    for (u32 i = 0; i < PER; i++) sum = FMA(v[i].x, v[i].x, FMA(v[i].y, v[i].y, FMA(v[i].z, v[i].z, FMA(v[i].w, v[i].w, sum))));
    sum = group_sum(sum, scratch);
    f32 inverse = 1.0f / SQRT(sum / (f32)a.cols + a.value);
#pragma unroll
    for (u32 i = 0; i < PER; i++) {
        u32 c = 4u * (LOCAL_X + GROUP * i);
        if (c >= a.cols) continue;
        float4 s = *(const float4 *)(w + c);
        *(float4 *)(y + base + c) = make_float4(v[i].x * inverse * (a.offset + s.x), v[i].y * inverse * (a.offset + s.y),
                                                v[i].z * inverse * (a.offset + s.z), v[i].w * inverse * (a.offset + s.w));
    }
}
